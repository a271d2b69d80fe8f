//! The journal's actor: takes the host's log at its start, then appends, reads and wakes.

use choir_messages::mail::{Appended, JournalMsg, ReplicatorMsg, UplinkEnd, UplinkMsg};
use choir_messages::reply::ReplyTo;
use choir_messages::time::Timestamp;
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, Slot};

use super::core::{Journal, Waited};
use crate::limits::UNREACHABLE;

/// What a journal needs to start.
#[derive(Debug, Clone)]
pub struct JournalDeps {
    /// Where the host's log comes from.
    pub uplink: Address<UplinkMsg>,
    /// Who is told of new revisions.
    pub replicator: Address<ReplicatorMsg>,
}

/// The keeper of a session's events.
#[derive(Debug)]
pub struct JournalActor {
    journal: Journal<ReplyTo<()>>,
    replicator: Address<ReplicatorMsg>,
    uplink: Address<UplinkMsg>,
}

/// The journal's place in the tree. Every start takes the host's log anew: what was not durable there is forgotten,
/// and nobody had been promised it.
#[must_use]
pub fn child_spec(slot: Slot<JournalMsg>, deps: JournalDeps) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let deps = deps.clone();
        async move {
            let restored = deps.uplink.call(UNREACHABLE, |reply| UplinkMsg::Restore { reply }).await?;
            let journal = Journal::restore(restored.view, restored.tail)?;
            tracing::info!(rev = journal.status().head.rev, "journal restored");
            Ok::<_, Failure>(JournalActor { journal, replicator: deps.replicator, uplink: deps.uplink })
        }
    })
    .start_within(UNREACHABLE)
}

impl Actor for JournalActor {
    type Msg = JournalMsg;

    async fn handle(&mut self, msg: JournalMsg, _cx: &mut Context<JournalMsg>) -> Result<(), Failure> {
        match msg {
            JournalMsg::Append { lane, bodies, reply } => {
                let result = self.journal.append(&lane, bodies, Timestamp::now());
                if result.is_ok() {
                    // A nudge: if the mailbox is full of earlier ones, the replicator's own look at the journal will do.
                    let rev = self.journal.status().head.rev;
                    let _ = self.replicator.try_send(ReplicatorMsg::Committed { rev });
                }
                reply.send(result.map(|events| Appended { events }));
            }
            JournalMsg::Read { after, limit, reply } => reply.send(self.journal.read(after, limit)),
            JournalMsg::View { reply } => reply.send(self.journal.view()),
            JournalMsg::Acknowledged { head } => match self.journal.acknowledged(head) {
                Ok(woken) => woken.into_iter().for_each(|waiter| waiter.send(())),
                // Nothing that waits may begin: a fresh process starts from the host's log.
                Err(foreign) => {
                    tracing::error!(%foreign, "this life's events are not what the host has");
                    self.uplink.send(UplinkMsg::End(UplinkEnd::Diverged)).await?;
                }
            },
            JournalMsg::WaitDurable { rev, reply } => match self.journal.wait_durable(rev, reply) {
                Ok(()) => {}
                Err(Waited::Durable(reply)) => reply.send(()),
                // Dropping the port tells the asker at once.
                Err(Waited::NoRoom(_)) => {
                    tracing::warn!(rev, "too many wait for the host; a call is refused")
                }
            },
            JournalMsg::Status { reply } => reply.send(self.journal.status()),
        }
        Ok(())
    }
}
