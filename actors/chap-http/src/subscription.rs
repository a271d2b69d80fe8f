//! One participant's notices as they come. A subscription fetches a page only when the page before it has been taken,
//! so a slow reader makes the Coordinator wait for nothing and this crate keep nothing.

use std::time::Duration;

use choir_messages::chap::Notice;
use serde_json::Value;

use crate::accounts::Place;
use crate::auth::Identity;
use crate::front::{Front, NoNotices, NoticeAsk};
use crate::inbox::Wanted;
use crate::limits::{STREAM_PAGE, TROUBLE_PAUSE, TROUBLES};
use crate::refusal::{Failed, Refusal};

/// An open subscription. Dropping it gives its place back.
pub(crate) struct Subscription {
    front: Front,
    who: Identity,
    wanted: Wanted,
    after: u64,
    /// Failures in a row.
    troubles: u32,
    /// The page that proved that the caller may read.
    first: Option<Vec<Notice>>,
    _slot: Place<(String, String)>,
}

/// What a subscription has to say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Heard {
    /// Notices, at least one.
    Notices(Vec<Notice>),
    /// Nothing for a while.
    Quiet,
    /// It is over: the Coordinator refuses, with this JSON-RPC error object.
    Refused(Value),
    /// It is over: the server or the Coordinator ends, or is in trouble for too long.
    Over,
}

impl Subscription {
    /// Opens one; a caller that may not read learns it here.
    pub(crate) async fn open(front: &Front, who: &Identity, wanted: Wanted) -> Result<Self, Refusal> {
        let slot = front.slots().begin((wanted.workspace.clone(), wanted.participant.clone()))?;
        let mut subscription = Self {
            front: front.clone(),
            who: who.clone(),
            after: wanted.after,
            wanted,
            troubles: 0,
            first: None,
            _slot: slot,
        };
        let first = subscription.ask(None).await?;
        subscription.first = Some(first);
        Ok(subscription)
    }

    pub(crate) const fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// What comes next. Ends with `Refused` or `Over`.
    pub(crate) async fn next(&mut self) -> Heard {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Heard::Notices(first);
        }
        let front = self.front.clone();
        tokio::select! {
            biased;
            () = front.stopped() => Heard::Over,
            heard = self.listen() => heard,
        }
    }

    async fn listen(&mut self) -> Heard {
        let heartbeat = self.front.limits().heartbeat;
        match self.ask(Some(heartbeat)).await {
            Ok(notices) => {
                self.troubles = 0;
                if notices.is_empty() { Heard::Quiet } else { Heard::Notices(notices) }
            }
            Err(NoNotices::Refused(error)) => Heard::Refused(error),
            Err(NoNotices::Failed(Failed::Ending)) => Heard::Over,
            Err(NoNotices::Failed(_)) => {
                self.troubles += 1;
                if self.troubles > TROUBLES {
                    return Heard::Over;
                }
                tokio::time::sleep(pause(self.troubles)).await;
                Heard::Quiet
            }
        }
    }

    async fn ask(&mut self, wait: Option<Duration>) -> Result<Vec<Notice>, NoNotices> {
        let ask = NoticeAsk {
            who: &self.who,
            workspace: &self.wanted.workspace,
            participant: &self.wanted.participant,
            after: self.after,
            limit: STREAM_PAGE,
            wait,
        };
        let Some(page) = self.front.notices(ask).await? else { return Ok(Vec::new()) };
        // A page that moves nothing forward would be asked for again and again.
        let moved = page.next > self.after;
        if page.notices.is_empty() && !moved && wait.is_some() {
            tokio::time::sleep(TROUBLE_PAUSE).await;
        }
        self.after = self.after.max(page.next);
        Ok(if moved { page.notices } else { Vec::new() })
    }
}

const fn pause(troubles: u32) -> Duration {
    TROUBLE_PAUSE.saturating_mul(1 << (if troubles > TROUBLES { TROUBLES } else { troubles }))
}
