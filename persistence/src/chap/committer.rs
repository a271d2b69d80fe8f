//! The committer of workspaces: one task with one connection that turns waiting commits into statements. While one is
//! being made durable the next group gathers, so the disk's latency is shared by all workspaces.
//!
//! A commit whose answer was lost is not left at that. The connection holds a claim, an advisory lock, that the server
//! gives to the next connection only when the lost one and its transaction are gone; what the tables then say is final.

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use futures_util::FutureExt;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use sqlx::{Connection, PgConnection};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::{Instrument as _, Span};

use super::CommitError;
use super::names;
use super::queue::{Commit, gather, refuse, take_waiting, tell, verdict};
use super::rows::{Rows, standings};
use crate::error::StoreError;
use crate::limits;
use crate::store::claim::Claim;

pub(crate) struct Committer {
    claim: Claim,
    connection: Option<PgConnection>,
    used: Instant,
}

/// Why a group's statement has no answer.
enum Failed {
    /// The server said no, or was never asked: nothing was written.
    Surely(StoreError),
    /// It may have been written.
    Perhaps(StoreError),
}

impl Committer {
    pub(crate) fn new(claim: Claim) -> Self {
        Self { claim, connection: None, used: Instant::now() }
    }

    /// Works until every sender is gone.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Commit>) {
        let mut waiting: VecDeque<Commit> = VecDeque::new();
        let mut last_group = 0;
        loop {
            if waiting.is_empty() {
                match queue.recv().await {
                    Some(commit) => waiting.push_back(commit),
                    None => break,
                }
            }
            take_waiting(&mut waiting, &mut queue);
            // Those whose commits were answered together will come together again. The first of them would go alone and
            // make all others wait for two commits.
            let first = Instant::now();
            while waiting.len() < last_group && first.elapsed() < limits::CHAP_LINGER {
                tokio::task::yield_now().await;
                take_waiting(&mut waiting, &mut queue);
            }
            let group = gather(&mut waiting);
            last_group = group.len();
            // A panic would be a defect; it must cost one group an "unknown", not every workspace its store.
            if AssertUnwindSafe(self.commit(group)).catch_unwind().await.is_err() {
                tracing::error!("the committer of workspaces panicked; its connection is made anew");
                self.connection = None;
            }
        }
        if let Some(connection) = self.connection.take() {
            // The server notices a dropped connection just as well; this only spares its log a line.
            let _ = tokio::time::timeout(limits::CONNECT_WITHIN, connection.close()).await;
        }
    }

    async fn commit(&mut self, group: Vec<Commit>) {
        match self.attempt(&group).await {
            Ok(taken) => answer(group, &taken),
            Err(Failed::Perhaps(error)) => self.settle(group, error).await,
            Err(Failed::Surely(error)) if error.is_about_data() && group.len() > 1 => {
                // One workspace's rows spoil the statement: each gets its own, so that only the culprit fails.
                for commit in group {
                    let alone = vec![commit];
                    match self.attempt(&alone).await {
                        Ok(taken) => answer(alone, &taken),
                        Err(Failed::Perhaps(error)) => self.settle(alone, error).await,
                        Err(Failed::Surely(error)) => refuse(alone, &error),
                    }
                }
            }
            Err(Failed::Surely(error)) => refuse(group, &error),
        }
    }

    /// One statement for the group, within its deadline. The connection is kept only if it is still good.
    async fn attempt(&mut self, group: &[Commit]) -> Result<HashSet<i64>, Failed> {
        let cause = group.first().map_or_else(Span::none, |first| first.span.clone());
        let entries: usize = group.iter().map(|c| c.change.entries.len()).sum();
        let span = tracing::info_span!(
            target: "choir::store", parent: &cause, "store.commit", workspaces = group.len(), entries
        );
        for other in group.iter().skip(1) {
            span.follows_from(&other.span);
        }
        self.attempt_within(group).instrument(span).await
    }

    async fn attempt_within(&mut self, group: &[Commit]) -> Result<HashSet<i64>, Failed> {
        let mut connection = match tokio::time::timeout(limits::COMMIT_WITHIN, self.connected()).await {
            Ok(connected) => connected.map_err(Failed::Surely)?,
            Err(_) => return Err(Failed::Surely(StoreError::Unavailable("no connection in time".into()))),
        };
        let mut rows = Rows::default();
        for commit in group {
            rows.add(&commit.change);
        }
        self.used = Instant::now();
        let written = tokio::time::timeout(limits::COMMIT_WITHIN, rows.write(&mut connection)).await;
        match written {
            Ok(Ok(taken)) => {
                self.connection = Some(connection);
                Ok(taken)
            }
            Ok(Err(error)) if is_verdict(&error) => {
                self.connection = Some(connection);
                Err(Failed::Surely(error.into()))
            }
            Ok(Err(error)) => Err(Failed::Perhaps(error.into())),
            Err(_) => Err(Failed::Perhaps(StoreError::Unconfirmed)),
        }
    }

    async fn connected(&mut self) -> Result<PgConnection, StoreError> {
        match self.connection.take() {
            // A server that restarted while nothing was committed is noticed here, before anything is at stake.
            Some(mut kept) if self.used.elapsed() > limits::TRUSTED_WHILE_USED => match kept.ping().await {
                Ok(()) => Ok(kept),
                Err(_) => self.claim.reconnect().await,
            },
            Some(kept) => Ok(kept),
            None => self.claim.reconnect().await,
        }
    }

    /// Finds out what became of a group whose answer was lost.
    async fn settle(&mut self, group: Vec<Commit>, lost: StoreError) {
        tracing::warn!(error = %lost, commits = group.len(), "the database was lost in mid-commit; asking it again");
        let keys: Vec<String> = group.iter().map(|c| names::key(&c.change.workspace).into_owned()).collect();
        let asked = async {
            loop {
                if let Ok(mut connection) = self.claim.reconnect().await
                    && let Ok(found) = standings(&mut connection, &keys).await
                {
                    return (connection, found);
                }
                tokio::time::sleep(limits::CHAP_SETTLE_PAUSE).await;
            }
        };
        let Ok((connection, found)) = tokio::time::timeout(limits::CHAP_SETTLE_WITHIN, asked).await else {
            for commit in group {
                commit.reply.send(Err(CommitError::Unknown(lost.clone())));
            }
            return;
        };
        self.connection = Some(connection);
        self.used = Instant::now();
        for (commit, key) in group.into_iter().zip(keys) {
            commit.reply.send(verdict(&commit.change, found.get(&key), &lost));
        }
    }
}

/// Whether the server itself refused the statement, in a session that goes on: then it has rolled back. An error that
/// ends the session may come after the commit.
fn is_verdict(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|e| e.try_downcast_ref::<PgDatabaseError>())
        .is_some_and(|e| matches!(e.severity(), PgSeverity::Error))
}

fn answer(group: Vec<Commit>, taken: &HashSet<i64>) {
    let verdict = |ord| if taken.contains(&ord) { Ok(()) } else { Err(CommitError::Conflict) };
    let told = group.into_iter().zip(0i64..).map(|(commit, ord)| (commit.reply, verdict(ord)));
    tell(&Handle::current(), told.collect());
}
