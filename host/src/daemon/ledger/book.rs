//! The store's writer as the scribe's book: each role signs with its own key, artefacts are stored before the event that
//! names them, and nothing counts before it is synced.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use choir_ledger::event::{Descriptor, Event, Role};
use choir_ledger::id::{ClaimId, TraceId};
use choir_ledger::json::Owned;
use choir_ledger::meta::{Participant, TraceStatus};
use choir_ledger_roles::book::{Book, BookError, Ending};
use choir_ledger_roles::draft::{Draft, Piece};
use choir_ledger_roles::run::{Opened, RunEnd};
use choir_ledger_roles::task::Task;
use choir_ledger_store::{Home, NewTrace, STATUS_REASON, Signer, StoreError, TraceWriter};
use choir_messages::chain::Digest;

/// The four roles, as participants are listed.
pub(super) const ROLES: [Role; 4] = [Role::Planner, Role::Executor, Role::Critic, Role::Auditor];

/// How long a scribe waits for the one before to let go of the trace.
const LET_GO: Duration = Duration::from_secs(10);

/// Pause between two tries to open a trace that is held.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// One trace, open for writing.
pub(super) struct StoreBook {
    home: Home,
    writer: TraceWriter,
    /// Or why the role signs no more: its key was revoked since the trace began.
    signers: BTreeMap<Role, Result<Signer, StoreError>>,
    carried: BTreeMap<Digest, Descriptor>,
}

/// The agent's name of a role: those of the format's own runs.
fn agent_of(role: Role) -> (String, String) {
    let name = role.as_str();
    let mut title = name.to_owned();
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    (format!("{name}-agent"), format!("{title} Agent"))
}

/// The keys of the four roles, made at first use.
pub(super) fn signers(home: &Home) -> Result<BTreeMap<Role, Signer>, StoreError> {
    ROLES
        .into_iter()
        .map(|role| {
            let (agent, title) = agent_of(role);
            Ok((role, home.ensure_agent(&agent, &title, &[role])?))
        })
        .collect()
}

impl StoreBook {
    /// A new trace for this task.
    pub(super) fn begin(home: &Home, task: &Task) -> Result<Self, StoreError> {
        let signers = signers(home)?;
        let participants = signers
            .iter()
            .map(|(role, signer)| {
                let actor = signer.actor(*role);
                Participant { agent_id: actor.agent_id, role: *role, key_id: actor.key_id }
            })
            .collect();
        let fingerprint = Digest::of(task.payload("").to_string().as_bytes()).to_string();
        let tool_versions = BTreeMap::from([("choir".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
        let writer = home.begin(NewTrace {
            task_id: task.task_id.clone(),
            participants,
            policy: task.policy(),
            config_fingerprint: Some(fingerprint),
            tool_versions: Some(tool_versions),
        })?;
        let signers = signers.into_iter().map(|(role, signer)| (role, Ok(signer))).collect();
        Ok(Self { home: home.clone(), writer, signers, carried: BTreeMap::new() })
    }

    /// A trace that was begun before. Each role signs with the key it has in that trace; one whose key is of no more use is
    /// found out when it has something to say, for the others may be all that is still needed.
    pub(super) fn resume(home: &Home, trace: TraceId) -> Result<Opened, StoreError> {
        let until = Instant::now() + LET_GO;
        let resumed = loop {
            match home.resume(trace) {
                Err(StoreError::Locked(_)) if Instant::now() < until => std::thread::sleep(TRY_AGAIN),
                Err(error) => match ended(home, trace) {
                    Some(end) => return Ok(Opened::Ended(end)),
                    None => return Err(error),
                },
                Ok(resumed) => break resumed,
            }
        };
        if let Some(torn) = &resumed.torn {
            tracing::warn!(%trace, path = %torn.path.display(), bytes = torn.bytes, "a torn last line was set aside");
        }
        let mut signers = BTreeMap::new();
        for participant in &resumed.writer.meta().participants {
            let signer = match home.signer(&participant.key_id) {
                Err(error) if !matches!(error, StoreError::Key { .. }) => return Err(error),
                signer => signer,
            };
            signers.insert(participant.role, signer);
        }
        let mut carried = BTreeMap::new();
        for event in home.events(trace)? {
            note(&mut carried, &event);
        }
        Ok(Opened::Book(Box::new(Self { home: home.clone(), writer: resumed.writer, signers, carried })))
    }

    fn one(&mut self, role: Role, draft: &Draft) -> Result<(Event, choir_ledger_store::Ticket), StoreError> {
        let (event_id, at) = (self.writer.new_event_id(), self.writer.now());
        let trace = self.writer.trace_id();
        let mut artifacts = Vec::new();
        for piece in &draft.artifacts {
            artifacts.push(match piece {
                Piece::New { text, media_type } => {
                    self.home.put_artifact(text.as_bytes(), media_type, "utf-8", trace, event_id, at)?
                }
                Piece::Again(hash) => {
                    let known = hash.parse::<Digest>().ok().and_then(|hash| self.carried.get(&hash));
                    known.cloned().ok_or_else(|| StoreError::Refused(not_carried(hash)))?
                }
            });
        }
        let claims = draft.claims.iter().filter_map(|id| id.parse::<ClaimId>().ok()).collect();
        let signer = match self.signers.get(&role) {
            Some(Ok(signer)) => signer,
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(StoreError::Refused(no_signer(role))),
        };
        let appended = self.writer.append(choir_ledger_store::Draft {
            event_id: Some(event_id),
            event_type: draft.kind,
            role,
            signer,
            payload: Owned::from(draft.payload.clone()),
            claims,
            artifacts,
        })?;
        note(&mut self.carried, &appended.event);
        Ok((appended.event, appended.ticket))
    }
}

fn not_carried(hash: &str) -> choir_ledger::trace::Refused {
    choir_ledger::trace::Refused::EvidenceNotCarried { hash: hash.to_owned() }
}

fn no_signer(role: Role) -> choir_ledger::trace::Refused {
    choir_ledger::trace::Refused::Unknown { what: "participant", id: role.as_str().to_owned() }
}

fn note(carried: &mut BTreeMap<Digest, Descriptor>, event: &Event) {
    for descriptor in event.artifacts() {
        carried.entry(descriptor.artifact_hash).or_insert_with(|| descriptor.clone());
    }
}

/// How a trace ended that is not open any more.
pub(super) fn ended(home: &Home, trace: TraceId) -> Option<RunEnd> {
    let meta = home.meta(trace).ok()?;
    let verdict = home.summary(trace).verdict;
    let ending = match meta.status {
        TraceStatus::Running => return None,
        TraceStatus::Succeeded => Ending::Completed,
        TraceStatus::Aborted => Ending::Aborted,
        TraceStatus::Failed | TraceStatus::Tampered => Ending::Failed,
    };
    let reason = meta.other.get(STATUS_REASON).and_then(|reason| reason.as_str());
    let reason = reason.map_or_else(
        || verdict.as_ref().map_or_else(|| "no reason is given".to_owned(), |v| format!("verification: {v}")),
        str::to_owned,
    );
    Some(RunEnd { ending, reason, refused: false, verdict })
}

fn told(error: StoreError) -> BookError {
    match &error {
        StoreError::Key { key_id, why } => BookError::NoSigner(format!(
            "its key {key_id} {why}; what it signed before stays good, and a new run gets a new key"
        )),
        // What is wrong with the event itself: trying again would not help.
        StoreError::Refused(_)
        | StoreError::TooLarge { .. }
        | StoreError::Build(_)
        | StoreError::NotParticipant { .. }
        | StoreError::Artifact { .. } => BookError::Refused(error.to_string()),
        _ => BookError::Failed(error.to_string()),
    }
}

impl Book for StoreBook {
    fn trace(&self) -> TraceId {
        self.writer.trace_id()
    }

    fn events(&self) -> Result<Vec<Event>, BookError> {
        self.home.events(self.writer.trace_id()).map_err(told)
    }

    fn append(&mut self, role: Role, drafts: &[Draft]) -> Result<Vec<Event>, (Vec<Event>, BookError)> {
        let (mut events, mut tickets, mut failed) = (Vec::new(), Vec::new(), None);
        for draft in drafts {
            match self.one(role, draft) {
                Ok((event, ticket)) => {
                    events.push(event);
                    tickets.push(ticket);
                }
                Err(error) => {
                    failed = Some(match told(error) {
                        BookError::NoSigner(why) => {
                            BookError::NoSigner(format!("the {} cannot go on: {why}", role.as_str()))
                        }
                        told => told,
                    });
                    break;
                }
            }
        }
        // What is not synced was not said.
        for (at, ticket) in tickets.into_iter().enumerate() {
            if let Err(error) = ticket.wait() {
                events.truncate(at);
                return Err((events, told(error)));
            }
        }
        match failed {
            None => Ok(events),
            Some(error) => Err((events, error)),
        }
    }

    fn artifact(&self, hash: &Digest) -> Option<Vec<u8>> {
        self.home.artifact(hash).ok()
    }

    fn checkpoint(&mut self) -> Result<(), BookError> {
        self.writer.checkpoint().and_then(choir_ledger_store::Ticket::wait).map_err(told)
    }

    fn finish(mut self: Box<Self>, ending: Ending, reason: &str) -> Result<(), BookError> {
        let status = match ending {
            Ending::Completed => TraceStatus::Succeeded,
            Ending::Failed => TraceStatus::Failed,
            Ending::Aborted => TraceStatus::Aborted,
        };
        self.writer.finish(status, Some(reason)).map(|_| ()).map_err(told)
    }
}
