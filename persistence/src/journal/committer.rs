//! Group commit: one connection on which waiting appends become transactions. While one transaction is being made
//! durable, the next group gathers, so the disk's latency is shared by all sessions. The actor around it is in
//! [`super::actor`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use choir_messages::event::Head;
use choir_messages::id::{AgentId, SessionId};
use sqlx::{Connection, PgConnection};
use tokio::sync::broadcast;
use tracing::{Instrument as _, Span};

use super::keeper::{Keeper, Refused};
use super::rows::Rows;
use super::{Ack, Append, AppendError, load};
use crate::error::StoreError;
use crate::limits;
use crate::store::changes::{Change, ChangeKind};
use crate::store::claim::Claim;
use crate::store::ids;

/// One append's verdict and, if events were added, whose they are.
type Outcome = Result<(Ack, Option<AgentId>), AppendError>;

pub(crate) struct Committer {
    claim: Claim,
    connection: Option<PgConnection>,
    keepers: HashMap<SessionId, (Keeper, u64)>,
    /// Counts groups; the age of a keeper's last use.
    clock: u64,
    changes: broadcast::Sender<Option<Change>>,
    /// When the connection was last used.
    used: Instant,
}

/// A connection used within this time is not asked first whether it still lives: a round trip saved for busy sessions.
const TRUSTED_WHILE_USED: Duration = Duration::from_millis(200);

impl Committer {
    /// A committer on a connection that holds the claim on the database, or without one yet.
    pub(crate) fn new(
        claim: Claim,
        connection: Option<PgConnection>,
        changes: broadcast::Sender<Option<Change>>,
    ) -> Self {
        let used = Instant::now();
        Self { claim, connection, keepers: HashMap::new(), clock: 0, changes, used }
    }

    /// Takes the claim on the database, if it is not held.
    pub(crate) async fn claim(&mut self) -> Result<(), StoreError> {
        if self.connection.is_none() {
            self.connection = Some(self.claim.reconnect().await?);
            self.used = Instant::now();
        }
        Ok(())
    }

    /// Lets go of the connection, and of the claim with it.
    pub(crate) async fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            // The server notices a dropped connection just as well; this only spares its log a line.
            let _ = tokio::time::timeout(limits::CONNECT_WITHIN, connection.close()).await;
        }
    }

    /// Commits a group in one transaction and answers it. Where one session's rows spoiled the transaction, nobody is
    /// answered yet: each of the appends returned is to be committed alone, so that only the culprit fails.
    pub(crate) async fn commit(&mut self, group: Vec<Append>) -> Vec<Append> {
        self.clock += 1;
        match self.attempt(&group).await {
            Ok(outcomes) => self.answer(group, outcomes),
            Err(error) => {
                self.forget(&group);
                if error.is_about_data() && group.len() > 1 {
                    return group;
                }
                tracing::warn!(%error, appends = group.len(), "a group of appends was not committed");
                for append in group {
                    append.reply.send(Err(AppendError::Database(error.clone())));
                }
            }
        }
        Vec::new()
    }

    fn forget(&mut self, group: &[Append]) {
        for append in group {
            self.keepers.remove(&append.session);
        }
    }

    fn answer(&self, group: Vec<Append>, outcomes: Vec<Outcome>) {
        for (append, outcome) in group.into_iter().zip(outcomes) {
            let verdict = outcome.map(|(ack, agent)| {
                if let Some(agent) = agent {
                    let kind = ChangeKind::Journal { session: append.session, head: ack.head };
                    let _ = self.changes.send(Some(Change { agent, kind }));
                }
                ack
            });
            append.reply.send(verdict);
        }
    }

    /// One transaction for the group, within its deadline. The connection is kept only if all went well.
    async fn attempt(&mut self, group: &[Append]) -> Result<Vec<Outcome>, StoreError> {
        let work = async {
            let mut connection = match self.connection.take() {
                // A server that restarted while nothing was appended is noticed here, before anything is at stake.
                Some(mut kept) if self.used.elapsed() > TRUSTED_WHILE_USED => match kept.ping().await {
                    Ok(()) => kept,
                    Err(_) => self.claim.reconnect().await?,
                },
                Some(kept) => kept,
                None => self.claim.reconnect().await?,
            };
            self.used = Instant::now();
            let result = self.transact(&mut connection, group).await;
            if result.as_ref().err().is_none_or(StoreError::is_about_data) {
                self.connection = Some(connection);
            }
            result
        };
        let events: usize = group.iter().map(|a| a.events.len()).sum();
        // A commit belongs to the trace of the append that it was begun for; those it takes along are linked to it.
        let cause = group.first().map_or_else(Span::none, |first| first.span.clone());
        let span = tracing::info_span!(
            target: "choir::store", parent: &cause, "store.commit", appends = group.len(), events
        );
        for other in group.iter().skip(1) {
            span.follows_from(&other.span);
        }
        match tokio::time::timeout(limits::COMMIT_WITHIN, work.instrument(span)).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::Unconfirmed),
        }
    }

    async fn transact(
        &mut self,
        connection: &mut PgConnection,
        group: &[Append],
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut transaction = connection.begin().await?;
        let sessions = lock_sessions(&mut transaction, group).await?;
        let mut rows = Rows::default();
        let mut outcomes = Vec::with_capacity(group.len());
        for append in group {
            let session = sessions.get(&append.session);
            outcomes.push(self.stage(&mut transaction, append, session, &mut rows).await?);
        }
        if rows.is_empty() {
            transaction.rollback().await?;
            return Ok(outcomes);
        }
        rows.write(&mut transaction).await?;
        transaction.commit().await.map_err(|error| match StoreError::from(error) {
            // Lost between COMMIT and its answer: it may have happened.
            StoreError::Unavailable(_) => StoreError::Unconfirmed,
            other => other,
        })?;
        for said in &rows.said {
            let _ = self.changes.send(Some(Change { agent: said.agent.clone(), kind: ChangeKind::Outbox }));
        }
        if rows.records_messages() {
            for agent in sessions.values().map(|s| &s.agent) {
                let _ = self.changes.send(Some(Change { agent: agent.clone(), kind: ChangeKind::Inbox }));
            }
        }
        Ok(outcomes)
    }

    /// Checks one append against its locked session and gathers its rows.
    async fn stage<'a>(
        &mut self,
        connection: &mut PgConnection,
        append: &'a Append,
        session: Option<&'a LockedSession>,
        rows: &mut Rows<'a>,
    ) -> Result<Outcome, StoreError> {
        let Some(locked) = session.filter(|s| s.admits(append)) else {
            self.keepers.remove(&append.session);
            return Ok(Err(AppendError::LeaseRevoked));
        };
        let mut keeper = match self.keepers.remove(&append.session) {
            Some((keeper, _)) if keeper.head() == locked.head => keeper,
            _ => {
                let (view, snapshot) = load::view(connection, append.session, locked.head).await?;
                Keeper::new(locked.agent.clone(), view, snapshot)
            }
        };
        let older = match keeper.unknown(&append.events) {
            Some(range) => load::hashes(connection, append.session, range).await?,
            None => HashMap::new(),
        };
        let known = match keeper.add(&append.events, &older) {
            Ok(known) => known,
            Err(refused) => {
                // Only a refused keeper that took nothing in may be kept.
                if matches!(refused, Refused::Diverged { .. }) {
                    self.keep(append.session, keeper);
                }
                return Ok(Err(match refused {
                    Refused::Diverged { durable } => AppendError::Diverged { durable },
                    Refused::Chain(error) => AppendError::Chain(error),
                    Refused::Illegal(error) => AppendError::Illegal(error),
                    Refused::WrongAgent => AppendError::WrongAgent,
                }));
            }
        };
        let new = append.events.get(known..).unwrap_or_default();
        let head = keeper.head();
        if !new.is_empty() {
            rows.session(append.session, &locked.agent, new, head)?;
            if keeper.wants_snapshot() {
                let view = serde_json::to_string(keeper.view())
                    .map_err(|e| StoreError::corrupt(format!("a snapshot: {e}")))?;
                rows.snapshot(append.session, head, view)?;
                keeper.snapshot = head.rev;
            }
        }
        self.keep(append.session, keeper);
        let agent = (!new.is_empty()).then(|| locked.agent.clone());
        Ok(Ok((Ack { head }, agent)))
    }

    fn keep(&mut self, session: SessionId, keeper: Keeper) {
        if self.keepers.len() >= limits::KEEPERS
            && let Some(oldest) = self.keepers.iter().min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id)
        {
            self.keepers.remove(&oldest);
        }
        self.keepers.insert(session, (keeper, self.clock));
    }
}

/// Takes the next group from the front: each session at most once, within the bounds. What stays keeps its order.
pub(crate) fn gather(waiting: &mut VecDeque<Append>) -> Vec<Append> {
    let mut group = Vec::new();
    let mut later = VecDeque::new();
    let mut taken = HashSet::new();
    let mut bytes = 0usize;
    while let Some(append) = waiting.pop_front() {
        let fits = group.is_empty()
            || (group.len() < limits::GROUP_APPENDS
                && bytes.saturating_add(append.bytes) <= limits::GROUP_BYTES);
        // A session whose earlier append waits must not be overtaken by its later one.
        if fits && taken.insert(append.session) {
            bytes = bytes.saturating_add(append.bytes);
            group.push(append);
        } else {
            taken.insert(append.session);
            later.push_back(append);
        }
    }
    *waiting = later;
    group
}

/// A session's row, locked until the transaction ends.
#[derive(Debug)]
struct LockedSession {
    agent: AgentId,
    lease: String,
    generation: i64,
    active: bool,
    head: Head,
}

impl LockedSession {
    fn admits(&self, append: &Append) -> bool {
        self.active
            && self.lease == append.lease.to_string()
            && u64::try_from(self.generation) == Ok(append.generation)
    }
}

async fn lock_sessions(
    connection: &mut PgConnection,
    group: &[Append],
) -> Result<HashMap<SessionId, LockedSession>, StoreError> {
    let wanted: Vec<String> = group.iter().map(|a| a.session.to_string()).collect();
    // In one order, so that two transactions never wait for each other.
    let rows: Vec<(String, String, String, i64, bool, i64, String)> = sqlx::query_as(
        "SELECT session_id, agent_id, lease_id, generation, status = 'active', head_rev, head_hash
         FROM choir_control.sessions WHERE session_id = ANY($1) ORDER BY session_id FOR NO KEY UPDATE",
    )
    .bind(&wanted)
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|(id, agent, lease, generation, active, rev, hash)| {
            let head = ids::head(rev, &hash)?;
            Ok((
                ids::parse(&id)?,
                LockedSession { agent: ids::parse(&agent)?, lease, generation, active, head },
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::id::LeaseId;
    use choir_messages::reply::reply_port;
    use proptest::prelude::*;

    fn append(session: u128, bytes: usize) -> Append {
        Append {
            session: SessionId::from_bits(session),
            lease: LeaseId::from_bits(0),
            generation: 1,
            events: Vec::new(),
            bytes,
            reply: reply_port().0,
            span: Span::none(),
        }
    }

    proptest! {
        /// Every append is taken exactly once, each session's in order, no group has a session twice or too many bytes.
        #[test]
        fn groups_take_all_appends_in_each_sessions_order(
            appends in prop::collection::vec((0u128..6, 0usize..10_000_000), 0..200)
        ) {
            // The generation numbers the appends.
            let mut waiting: VecDeque<Append> = appends
                .iter()
                .zip(0u64..)
                .map(|((s, b), n)| Append { generation: n, ..append(*s, *b) })
                .collect();
            let mut last: HashMap<SessionId, u64> = HashMap::new();
            let mut seen = 0;
            while !waiting.is_empty() {
                let group = gather(&mut waiting);
                prop_assert!(!group.is_empty() && group.len() <= limits::GROUP_APPENDS);
                let total: usize = group.iter().map(|a| a.bytes).sum();
                prop_assert!(group.len() == 1 || total <= limits::GROUP_BYTES);
                for a in &group {
                    if let Some(before) = last.insert(a.session, a.generation) {
                        prop_assert!(before < a.generation);
                    }
                }
                prop_assert_eq!(group.iter().map(|a| a.session).collect::<HashSet<_>>().len(), group.len());
                seen += group.len();
            }
            prop_assert_eq!(seen, appends.len());
        }
    }
}
