//! The hello of a new link (`choir §13.2`): where the host stands, page by page, and the settings with their key.

use std::sync::Arc;

use choir_messages::event::{Event, Head, verify_chain};
use choir_messages::mail::Restored;
use choir_messages::secret::Secret;
use choir_messages::session::SessionView;
use choir_messages::wire::{AgentSettings, ControlPlane, HelloAnswer, LinkError, Reply, Request, Verdict};

use crate::identity::LinkIdentity;
use crate::limits::{HELLO_ANSWER, HELLO_PAGES};

/// Says hello for a log that stands at `from`, and collects everything the host has after it.
///
/// Errors: the link's, a host whose log does not verify ([`LinkError::Malformed`]), or one whose log ends before ours
/// continues it ([`Verdict::Diverged`]).
pub async fn greet(
    control: &dyn ControlPlane,
    identity: &Arc<LinkIdentity>,
    from: Head,
) -> Result<(Restored, Head), LinkError> {
    let mut head = from;
    let mut view = None;
    let mut tail: Vec<Event> = Vec::new();
    for _ in 0..HELLO_PAGES {
        let answer = hello(control, identity, head).await?;
        if let Some(snapshot) = answer.snapshot
            && head == Head::START
            && snapshot.session == identity.session
        {
            head = snapshot.head;
            view = Some(*snapshot);
        }
        let before = head;
        head = verify_chain(identity.session, head, &answer.tail).map_err(|error| {
            tracing::error!(%error, "the host's log does not verify");
            LinkError::Malformed
        })?;
        tail.extend(answer.tail);
        // A reconnecting agent may be ahead of the host; a starting one must reach the host's head exactly.
        if head == answer.durable || (from != Head::START && head.rev >= answer.durable.rev) {
            let key = key(control, identity, &answer.settings).await?;
            let view = view.unwrap_or_else(|| SessionView::new(identity.session));
            return Ok((Restored { view, tail, settings: answer.settings, key }, answer.durable));
        }
        if head == before {
            return Err(LinkError::Malformed);
        }
    }
    Err(LinkError::Malformed)
}

async fn hello(
    control: &dyn ControlPlane,
    identity: &Arc<LinkIdentity>,
    head: Head,
) -> Result<HelloAnswer, LinkError> {
    match control.call(identity.envelope(identity.hello(head)), HELLO_ANSWER).await? {
        Reply::Hello(answer) => Ok(*answer),
        _ => Err(LinkError::Malformed),
    }
}

/// The key of the configured model. A host that has none is no reason not to start: the model's endpoint will say so.
pub(super) async fn key(
    control: &dyn ControlPlane,
    identity: &Arc<LinkIdentity>,
    settings: &AgentSettings,
) -> Result<Option<Secret>, LinkError> {
    let Some(name) = settings.model.secret.clone() else { return Ok(None) };
    let request = Request::GetSecrets { names: vec![name.clone()] };
    match control.call(identity.envelope(request), HELLO_ANSWER).await {
        Ok(Reply::Secrets { mut values }) => Ok(values.remove(&name)),
        Ok(_) => Err(LinkError::Malformed),
        Err(LinkError::Refused(Verdict::Rejected(why))) => {
            tracing::warn!(secret = %name, %why, "the host gives no key for the model");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
