//! Reading a log back: the newest usable snapshot and the events after it (`choir §13.2`).

use choir_messages::chain::Digest;
use choir_messages::event::{Event, Head, Revision};
use choir_messages::id::SessionId;
use choir_messages::session::SessionView;
use sqlx::PgConnection;

use crate::error::StoreError;
use crate::limits;
use crate::store::ids;

/// The newest snapshot that can be read and whose hash is the log's at its revision, but none after `until`. A
/// snapshot is a cache: one that cannot be read (an older version's shape, say) is passed over.
pub(crate) async fn snapshot(
    connection: &mut PgConnection,
    session: SessionId,
    until: Revision,
) -> Result<Option<SessionView>, StoreError> {
    let rows: Vec<(i64, String, String)> = sqlx::query_as(
        "SELECT s.rev, s.hash, s.view_json FROM choir_control.session_snapshots s
         JOIN choir_control.session_events e USING (session_id, rev)
         WHERE s.session_id = $1 AND s.rev <= $2 AND s.hash = e.hash ORDER BY s.rev DESC LIMIT $3",
    )
    .bind(session.to_string())
    .bind(ids::column(until)?)
    .bind(ids::column(limits::SNAPSHOTS_KEPT)?)
    .fetch_all(connection)
    .await?;
    for (rev, hash, text) in rows {
        let head = ids::head(rev, &hash)?;
        match serde_json::from_str::<SessionView>(&text) {
            Ok(view) if view.session == session && view.head == head => return Ok(Some(view)),
            Ok(_) => tracing::warn!(%session, rev, "a snapshot does not match its log and is passed over"),
            Err(error) => {
                tracing::warn!(%session, rev, %error, "a snapshot cannot be read and is passed over")
            }
        }
    }
    Ok(None)
}

/// Events after `after`, in order: at most `limit`, and at most `bytes` of canonical text unless the first alone is
/// larger.
pub(crate) async fn events(
    connection: &mut PgConnection,
    session: SessionId,
    after: Revision,
    limit: i64,
    bytes: usize,
) -> Result<Vec<Event>, StoreError> {
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT canonical, hash FROM (
             SELECT rev, canonical, hash, sum(octet_length(canonical)) OVER (ORDER BY rev) AS total FROM (
                 SELECT rev, canonical, hash FROM choir_control.session_events
                 WHERE session_id = $1 AND rev > $2 ORDER BY rev LIMIT $3) page) counted
         WHERE total <= $4 OR rev = $2 + 1 ORDER BY rev",
    )
    .bind(session.to_string())
    .bind(ids::column(after)?)
    .bind(limit)
    .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(|(canonical, hash)| event(&canonical, &hash)).collect()
}

/// One stored event.
pub(crate) fn event(canonical: &str, hash: &str) -> Result<Event, StoreError> {
    Event::from_canonical(canonical, ids::parse(hash)?)
        .map_err(|e| StoreError::corrupt(format!("a stored event: {e}")))
}

/// The state of a log up to `head`, and the revision of the snapshot it was built from (0 for none). Fails if the
/// stored events do not lead to `head`.
pub(crate) async fn view(
    connection: &mut PgConnection,
    session: SessionId,
    head: Head,
) -> Result<(SessionView, Revision), StoreError> {
    let start = snapshot(connection, session, head.rev).await?;
    let from = start.as_ref().map_or(0, |view| view.head.rev);
    let mut view = start.unwrap_or_else(|| SessionView::new(session));
    while view.head.rev < head.rev {
        let page = events(connection, session, view.head.rev, limits::READ_PAGE, limits::GROUP_BYTES).await?;
        if page.is_empty() {
            break;
        }
        for event in &page {
            if event.session != session || event.rev != view.head.rev + 1 || event.prev != view.head.hash {
                return Err(StoreError::corrupt(format!(
                    "session {session}: the chain is broken at revision {}; see `choirctl session verify`",
                    event.rev
                )));
            }
            view.apply(event).map_err(|e| StoreError::corrupt(format!("session {session}: {e}")))?;
        }
    }
    if view.head == head {
        Ok((view, from))
    } else {
        Err(StoreError::corrupt(format!(
            "session {session}: its events end at revision {}, its head says {}",
            view.head.rev, head.rev
        )))
    }
}

/// Hashes of the durable revisions from `first` to `last`.
pub(crate) async fn hashes(
    connection: &mut PgConnection,
    session: SessionId,
    (first, last): (Revision, Revision),
) -> Result<std::collections::HashMap<Revision, Digest>, StoreError> {
    let rows: Vec<(i64, String)> = sqlx::query_as(
        "SELECT rev, hash FROM choir_control.session_events WHERE session_id = $1 AND rev BETWEEN $2 AND $3",
    )
    .bind(session.to_string())
    .bind(ids::column(first)?)
    .bind(ids::column(last)?)
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(|(rev, hash)| Ok((ids::rev(rev)?, ids::parse(&hash)?))).collect()
}
