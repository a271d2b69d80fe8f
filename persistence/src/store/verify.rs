//! Verifying a stored log: every text against its hash, every link of the chain, every rule of a legal log, and the
//! head that the session claims. Reads the log once, in constant memory.

use choir_messages::chain::Digest;
use choir_messages::event::{Event, Head, Revision};
use choir_messages::id::SessionId;
use choir_messages::session::SessionView;
use futures_util::TryStreamExt;
use serde::Serialize;

use super::{Store, ids};
use crate::error::StoreError;

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The session.
    pub session: SessionId,
    /// Events that were found good, from the first on.
    pub events: u64,
    /// The last good head.
    pub head: Head,
    /// The first fault, if any.
    pub fault: Option<Fault>,
}

/// The first thing wrong with a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// At which revision.
    pub rev: Revision,
    /// What, in one sentence.
    pub what: String,
}

impl VerifyReport {
    /// Whether the whole log is good.
    #[must_use]
    pub const fn is_verified(&self) -> bool {
        self.fault.is_none()
    }
}

impl Store {
    /// Verifies the whole stored log of a session.
    pub async fn verify(&self, session: SessionId) -> Result<VerifyReport, StoreError> {
        // One view of the tables: appends may go on meanwhile.
        let mut transaction =
            self.pool().begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let found: Option<(i64, String)> =
            sqlx::query_as("SELECT head_rev, head_hash FROM choir_control.sessions WHERE session_id = $1")
                .bind(session.to_string())
                .fetch_optional(&mut *transaction)
                .await?;
        let (rev, hash) = found.ok_or(StoreError::UnknownSession(session))?;
        let claimed = ids::head(rev, &hash)?;
        // A log may take longer to read than one statement of ordinary work.
        sqlx::query("SET LOCAL statement_timeout = 0").execute(&mut *transaction).await?;
        let mut view = SessionView::new(session);
        let mut fault = None;
        {
            let mut rows = sqlx::query_as::<_, (i64, String, String)>(
                "SELECT rev, canonical, hash FROM choir_control.session_events WHERE session_id = $1 ORDER BY rev",
            )
            .bind(session.to_string())
            .fetch(&mut *transaction);
            while let Some((rev, canonical, hash)) = rows.try_next().await? {
                if let Err(what) = check(&mut view, rev, &canonical, &hash) {
                    fault = Some(Fault { rev: ids::rev(rev)?, what });
                    break;
                }
            }
        }
        if fault.is_none() && view.head != claimed {
            let what = format!("the log ends here, the session's head says revision {}", claimed.rev);
            fault = Some(Fault { rev: view.head.rev, what });
        }
        // The read is over; how its transaction ends changes nothing.
        let _ = transaction.rollback().await;
        Ok(VerifyReport { session, events: view.head.rev, head: view.head, fault })
    }
}

/// Checks one stored row against the log so far and folds it in.
fn check(view: &mut SessionView, rev: i64, canonical: &str, hash: &str) -> Result<(), String> {
    let expected = view.head.rev.saturating_add(1);
    if u64::try_from(rev) != Ok(expected) {
        return Err(format!("revision {expected} is missing"));
    }
    let hash: Digest = hash.parse().map_err(|_| "the stored hash is not a digest".to_owned())?;
    if Digest::of(canonical.as_bytes()) != hash {
        return Err("the content does not match its hash".to_owned());
    }
    let event =
        Event::from_canonical(canonical, hash).map_err(|e| format!("the content is no event: {e}"))?;
    if event.session != view.session {
        return Err("the event belongs to another session".to_owned());
    }
    if event.rev != expected {
        return Err(format!("the content says revision {}", event.rev));
    }
    if event.prev != view.head.hash {
        return Err("the link to the event before is broken".to_owned());
    }
    view.apply(&event).map_err(|e| e.rule.to_string())
}
