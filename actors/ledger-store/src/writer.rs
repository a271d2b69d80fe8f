//! The single writer of a trace. It admits an event by the trace's rules, signs it, and hands it to a thread that writes and
//! syncs what waits in one go: the more waits, the larger the batches. A ticket comes true after the sync. The ledger is
//! never read again, so an append costs the same at the first event and at the millionth.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use choir_ledger::event::{Descriptor, Event, EventType, Role, UnsignedEvent};
use choir_ledger::id::{ClaimId, EventId, TraceId};
use choir_ledger::identity::Identity;
use choir_ledger::json::{Owned, Value};
use choir_ledger::meta::{TraceMeta, TraceStatus};
use choir_ledger::trace::{Act, Phase, Policy, Refused, Step, Trace};
use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;

use crate::bounds::{MAX_EVENT_BYTES, QUEUE, QUEUE_WAIT, TICKET_WAIT};
use crate::disk::{Lock, Tail};
use crate::error::StoreError;
use crate::home::Home;
use crate::keys::{Signer, signs_no_more};
use crate::scribe::{Job, Line, Scribe, Shared};
use crate::ticket::{Ticket, ticket};

/// The member of the meta file that says why a trace ended as it did.
pub const STATUS_REASON: &str = "status_reason";

/// An event to be appended.
#[derive(Debug)]
pub struct Draft<'a> {
    /// Its id, if artefacts were stored under it before; else it gets one.
    pub event_id: Option<EventId>,
    /// Its type.
    pub event_type: EventType,
    /// Who signs it.
    pub signer: &'a Signer,
    /// In which role.
    pub role: Role,
    /// What it says; `choir_ledger::payload` builds them.
    pub payload: Owned,
    /// The claims it is about.
    pub claims: Vec<ClaimId>,
    /// The artefacts it rests on, stored already.
    pub artifacts: Vec<Descriptor>,
}

/// An event that was admitted and signed, and will be on the disk when the ticket comes true.
#[derive(Debug)]
pub struct Appended {
    /// The event.
    pub event: Event,
    /// When it is there.
    pub ticket: Ticket,
}

/// The single writer of one trace. Dropping it writes what waits and gives the trace free.
pub struct TraceWriter {
    home: Home,
    trace: Trace,
    policy: Policy,
    meta: TraceMeta,
    last: Timestamp,
    last_id: EventId,
    jobs: Option<SyncSender<Job>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    _lock: Lock,
}

impl std::fmt::Debug for TraceWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceWriter")
            .field("trace", &self.meta.trace_id)
            .field("events", &self.meta.event_count)
            .field("phase", &self.trace.phase())
            .finish_non_exhaustive()
    }
}

/// What a writer begins with.
pub(crate) struct Start {
    pub(crate) home: Home,
    pub(crate) trace: Trace,
    pub(crate) policy: Policy,
    pub(crate) meta: TraceMeta,
    pub(crate) last: Timestamp,
    pub(crate) length: u64,
    pub(crate) lock: Lock,
    /// Whether the checkpoint and the meta file must be written although nothing is appended.
    pub(crate) stale: bool,
}

impl TraceWriter {
    pub(crate) fn start(start: Start, tail: Box<dyn Tail>) -> Result<Self, StoreError> {
        let Start { home, trace, policy, meta, last, length, lock, stale } = start;
        let shared = Arc::new(Shared::default());
        // A few places beyond the queue are for jobs that are no events.
        let (jobs, inbox) = sync_channel(QUEUE + 8);
        let scribe = Scribe::new(home.clone(), meta.clone(), tail, length, shared.clone(), stale);
        let thread =
            std::thread::Builder::new().name("ledger-writer".into()).spawn(move || scribe.run(&inbox));
        let thread = thread.map_err(|error| StoreError::io("start the writer of", home.root(), error))?;
        Ok(Self {
            home,
            trace,
            policy,
            meta,
            last,
            last_id: EventId::from_bits(0),
            jobs: Some(jobs),
            shared,
            thread: Some(thread),
            _lock: lock,
        })
    }

    /// The trace.
    #[must_use]
    pub const fn trace_id(&self) -> TraceId {
        self.meta.trace_id
    }

    /// What the rules know of it, the events that are not synced yet included.
    #[must_use]
    pub const fn trace(&self) -> &Trace {
        &self.trace
    }

    /// What the meta file will say once everything is written.
    #[must_use]
    pub const fn meta(&self) -> &TraceMeta {
        &self.meta
    }

    /// The last event's hash, zeros before the first.
    #[must_use]
    pub const fn head(&self) -> Digest {
        self.meta.head_event_hash
    }

    /// The time that the next event would get: the clock's, or the last event's if the clock went back.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.home.now().max(self.last)
    }

    /// An id for an event to come: later than all before it, so that ids sort as the ledger does.
    #[must_use]
    pub fn new_event_id(&mut self) -> EventId {
        let fresh = EventId::from_parts(self.now().millis(), EventId::fresh().bits());
        let id = if fresh > self.last_id { fresh } else { EventId::from_bits(self.last_id.bits() + 1) };
        self.last_id = id;
        id
    }

    /// Appends an event: admits it, signs it, queues it. Refusals change nothing. The rules count the event from now on; it is
    /// there for others when the ticket comes true. If writing fails, this and all later tickets say so, the ledger on the disk
    /// is as it was, and the writer has stopped: resume the trace.
    pub fn append(&mut self, draft: Draft<'_>) -> Result<Appended, StoreError> {
        self.shared.check()?;
        if self.meta.status != TraceStatus::Running {
            return Err(StoreError::Ended(self.trace_id()));
        }
        self.check_signer(&draft)?;
        let Draft { event_id, event_type, signer, role, mut payload, claims, artifacts } = draft;
        if event_type == EventType::SessionInitialized {
            payload = self.with_policy(payload)?;
        }
        let created_at = self.now();
        let event_id = match event_id {
            Some(id) => id,
            None => self.new_event_id(),
        };
        let step = Step {
            event_id,
            at_ms: created_at.millis(),
            role,
            carried: artifacts.iter().map(|item| item.artifact_hash).collect(),
            act: Act::read(event_type, &payload)?,
        };
        self.trace.admit(&step)?;
        let actor = signer.actor(role);
        let trace_id = self.trace_id();
        let event =
            UnsignedEvent { trace_id, event_id, event_type, created_at, actor, payload, claims, artifacts }
                .sign(signer.key(), self.head())?;
        if event.line().len() > MAX_EVENT_BYTES {
            return Err(StoreError::TooLarge { bytes: event.line().len(), limit: MAX_EVENT_BYTES });
        }
        self.shared.enter(QUEUE, QUEUE_WAIT)?;
        // Signing brings texts into NFC, so the rules see what was signed.
        if let Err(refused) = Step::of(&event).and_then(|step| self.trace.apply(&step)) {
            self.shared.leave(1);
            if matches!(refused, Refused::Broken { .. }) {
                self.finish(TraceStatus::Failed, Some(&refused.to_string()))?;
            }
            return Err(refused.into());
        }
        self.last = created_at;
        self.meta.head_event_hash = event.event_hash();
        self.meta.event_count += 1;
        self.meta.artifact_count += event.artifacts().len() as u64;
        let (promise, ticket) = ticket();
        self.send(Job::Append(Line {
            text: event.line().to_owned(),
            hash: event.event_hash(),
            artifacts: event.artifacts().len() as u64,
            done: promise,
        }))?;
        Ok(Appended { event, ticket })
    }

    /// The actor is a participant, its key is good, and it may act in the role (R05, R06).
    fn check_signer(&self, draft: &Draft<'_>) -> Result<(), StoreError> {
        let actor = draft.signer.actor(draft.role);
        let takes_part = self.meta.participants.iter().any(|participant| {
            (&participant.agent_id, participant.role, &participant.key_id)
                == (&actor.agent_id, actor.role, &actor.key_id)
        });
        let registry = self.home.registry()?;
        let known = registry.by_key(&actor.key_id);
        let may = |identity: &Identity| identity.role_capabilities.contains(&draft.role);
        if !takes_part || !known.is_some_and(may) {
            let role = draft.role.as_str();
            return Err(StoreError::NotParticipant { agent_id: actor.agent_id, key_id: actor.key_id, role });
        }
        if let Some(why) = known.and_then(signs_no_more) {
            return Err(StoreError::Key { key_id: actor.key_id, why });
        }
        Ok(())
    }

    /// The session's first event states the policy, so that its signature covers it.
    fn with_policy(&self, payload: Owned) -> Result<Owned, StoreError> {
        match Policy::of_session(&payload)? {
            None => Ok(payload.with("policy", self.policy.to_value())),
            Some(stated) if stated == self.policy => Ok(payload),
            Some(_) => Err(Refused::Policy { member: "policy" }.into()),
        }
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.shared.check().err().unwrap_or(StoreError::Slow)),
        }
    }

    /// Comes true when everything appended so far is synced, and the meta file and the signed checkpoint say so. Do this before
    /// a running trace is verified.
    pub fn checkpoint(&mut self) -> Result<Ticket, StoreError> {
        self.shared.check()?;
        let (promise, ticket) = ticket();
        self.send(Job::Checkpoint(promise))?;
        Ok(ticket)
    }

    /// Ends the trace: waits for everything appended, then writes the status. `Succeeded` only for a trace that is verified.
    /// Repeating it with the same status does nothing.
    pub fn finish(&mut self, status: TraceStatus, reason: Option<&str>) -> Result<TraceMeta, StoreError> {
        if self.meta.status == status && status != TraceStatus::Running {
            return Ok(self.meta.clone());
        }
        if self.meta.status != TraceStatus::Running {
            return Err(StoreError::Ended(self.trace_id()));
        }
        match (status, self.trace.phase()) {
            (TraceStatus::Running, _) => return Ok(self.meta.clone()),
            (TraceStatus::Succeeded, phase) if phase != Phase::Completed => {
                return Err(StoreError::Conflict(format!(
                    "the trace is {phase}, not verified, and cannot succeed"
                )));
            }
            // What is verified cannot be aborted any more.
            (TraceStatus::Aborted, Phase::Completed | Phase::Failed) => {
                return Err(StoreError::Ended(self.trace_id()));
            }
            _ => {}
        }
        let mut meta = self.meta.clone();
        meta.status = status;
        meta.ended_at = Some(self.now().to_string());
        if let Some(reason) = reason {
            meta.other.insert(STATUS_REASON.into(), reason.into());
        }
        let (promise, ticket) = ticket();
        self.send(Job::Finish { meta: Box::new(meta.clone()), done: promise })?;
        ticket.wait_for(TICKET_WAIT)?;
        self.meta = meta;
        if !self.trace.phase().is_terminal() {
            if status == TraceStatus::Aborted { self.trace.abort()? } else { self.trace.fail()? }
        }
        Ok(self.meta.clone())
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // It ends by itself once the queue is empty; a panic in it has failed every ticket already.
            let _ = thread.join();
        }
    }
}

/// A value of `serde_json` as the ledger's own.
pub(crate) fn owned(value: serde_json::Value) -> Owned {
    Value::from(value)
}

#[cfg(test)]
mod tests;
