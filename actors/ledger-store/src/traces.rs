//! Traces of a home: beginning one, going on with one after a crash, and looking at them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use choir_ledger::event::Event;
use choir_ledger::id::{ReportId, TraceId};
use choir_ledger::layout;
use choir_ledger::meta::{Participant, TraceMeta, TraceStatus};
use choir_ledger::trace::{Phase, Policy, PolicyProfile, Step, Trace};
use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bounds::{MAX_DOCUMENT_BYTES, MAX_TASK_ID_BYTES, MAX_TRACES};
use crate::checkpoint::Head;
use crate::disk::{self, Lock};
use crate::error::StoreError;
use crate::home::Home;
use crate::keys::signs_no_more;
use crate::ledger::{self, End, Torn};
use crate::writer::{STATUS_REASON, Start, TraceWriter, owned};

/// The lock of a trace's writer, in the trace's folder.
const WRITER_LOCK: &str = ".writer.lock";

/// The member of the meta file that keeps the policy until the session's event states it.
const POLICY: &str = "policy";

/// A trace to begin.
#[derive(Debug, Clone)]
pub struct NewTrace {
    /// The task, as its file calls it.
    pub task_id: String,
    /// Who takes part: at least three roles, each with an active key of this home.
    pub participants: Vec<Participant>,
    /// What the run is allowed to do.
    pub policy: Policy,
    /// A digest of the settings.
    pub config_fingerprint: Option<String>,
    /// Versions of the tools that take part.
    pub tool_versions: Option<BTreeMap<String, String>>,
}

/// A trace that is gone on with.
#[derive(Debug)]
pub struct Resumed {
    /// Its writer.
    pub writer: TraceWriter,
    /// A last line that a crash had cut.
    pub torn: Option<Torn>,
}

/// What a list shows of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The trace.
    pub trace_id: TraceId,
    /// Its folder.
    pub path: PathBuf,
    /// What its meta file says; `None` if that cannot be read.
    pub meta: Option<TraceMeta>,
    /// The verdict of the latest report: `pass`, `pass-with-warnings` or `fail`.
    pub verdict: Option<String>,
    /// Why the meta file cannot be read.
    pub problem: Option<String>,
}

impl Home {
    /// Begins a trace.
    pub fn begin(&self, new: NewTrace) -> Result<TraceWriter, StoreError> {
        let NewTrace { task_id, participants, policy, config_fingerprint, tool_versions } = new;
        if task_id.is_empty() || task_id.len() > MAX_TASK_ID_BYTES {
            return Err(StoreError::Name { what: "a task's id", form: "1 to 256 bytes" });
        }
        // Until the trace is there to be seen, so that no key of it is rotated in between.
        let keys = self.lock_keys()?;
        let started_at = self.check_participants(&participants)?.max(self.now());
        let trace_id = TraceId::from_parts(started_at.millis(), TraceId::fresh().bits());
        let mut other = serde_json::Map::new();
        let kept = serde_json::to_value(policy.to_value());
        other.insert(POLICY.into(), kept.map_err(|why| StoreError::Log(why.to_string()))?);
        let meta = TraceMeta {
            schema_version: "1.0.0".into(),
            trace_id,
            task_id,
            started_at: started_at.to_string(),
            status: TraceStatus::Running,
            participants,
            head_event_hash: Digest::ZERO,
            event_count: 0,
            artifact_count: 0,
            policy_profile: policy.profile.as_str().into(),
            config_fingerprint,
            tool_versions,
            ended_at: None,
            other,
        };
        let folder = self.path(layout::trace_dir(trace_id));
        if folder.exists() {
            return Err(StoreError::Exists(folder));
        }
        disk::make_folder(&folder)?;
        let lock = Lock::take(&folder.join(WRITER_LOCK), &folder)?;
        let tail = disk::open_tail(&folder.join(layout::EVENTS))?;
        let head = Head { events: 0, hash: Digest::ZERO, status: TraceStatus::Running, artifacts: 0 };
        self.write_head(&meta, &head)?;
        drop(keys);
        let trace = Trace::new(policy.clone());
        let start = Start {
            home: self.clone(),
            trace,
            policy,
            meta,
            last: started_at,
            length: 0,
            lock,
            stale: false,
        };
        TraceWriter::start(start, Box::new(tail))
    }

    /// Whether these may take part, and since when all their keys are good.
    fn check_participants(&self, participants: &[Participant]) -> Result<Timestamp, StoreError> {
        let registry = self.registry()?;
        let roles: BTreeSet<_> = participants.iter().map(|participant| participant.role).collect();
        if roles.len() < 3 {
            return Err(StoreError::Name {
                what: "the participants of a trace",
                form: "of three roles at least",
            });
        }
        let mut since = Timestamp::from_millis(0);
        for Participant { agent_id, role, key_id } in participants {
            let identity = registry.by_key(key_id).filter(|identity| identity.agent_id == *agent_id);
            let Some(identity) = identity.filter(|identity| identity.role_capabilities.contains(role)) else {
                return Err(StoreError::NotParticipant {
                    agent_id: agent_id.clone(),
                    key_id: key_id.clone(),
                    role: role.as_str(),
                });
            };
            if let Some(why) = signs_no_more(identity) {
                return Err(StoreError::Key { key_id: key_id.clone(), why });
            }
            since = since.max(choir_ledger::time::parse(&identity.created_at).unwrap_or(since));
        }
        Ok(since)
    }

    /// Goes on with a running trace after its writer ended, however that came: takes the lock, holds the ledger against its
    /// checkpoint, checks form and chain of every line and the last one's signature, replays the rules, and sets a torn end
    /// aside. Refusals change nothing. The trace may turn out to be complete but for its status; then only
    /// [`TraceWriter::finish`] is left to do.
    pub fn resume(&self, trace_id: TraceId) -> Result<Resumed, StoreError> {
        let folder = self.path(layout::trace_dir(trace_id));
        let mut meta = self.meta(trace_id)?;
        let lock = Lock::take(&folder.join(WRITER_LOCK), &folder)?;
        let signed = self.checkpoint(trace_id)?.ok_or(StoreError::NoCheckpoint(trace_id))?;
        if meta.status != TraceStatus::Running || signed.status != TraceStatus::Running {
            return Err(StoreError::Ended(trace_id));
        }
        let policy = self.kept_policy(&meta)?;
        let mut replayed = Replay::new(trace_id, policy.clone(), signed);
        let path = folder.join(layout::EVENTS);
        let extent = ledger::each(&path, trace_id, End::Writing, |line, event| replayed.take(line, event))?;
        replayed.check_end(&extent)?;
        if let Some(last) = &replayed.last_event {
            self.check_signature(last, extent.events)?;
        }
        let torn = ledger::set_aside(&path, &extent)?;
        let started_at = choir_ledger::time::parse(&meta.started_at).unwrap_or(Timestamp::from_millis(0));
        let last = replayed.last_event.as_ref().map_or(started_at, Event::created_at);
        meta.head_event_hash = extent.head;
        meta.event_count = extent.events;
        meta.artifact_count = replayed.artifacts;
        let tail = disk::open_tail(&path)?;
        let start = Start {
            home: self.clone(),
            trace: replayed.trace,
            policy,
            meta,
            last,
            length: extent.complete,
            lock,
            stale: true,
        };
        Ok(Resumed { writer: TraceWriter::start(start, Box::new(tail))?, torn })
    }

    /// Marks a trace whose ledger was found damaged or rolled back (agent protocol, "Failure Semantics"): its meta file says
    /// `tampered` and why, and nobody goes on with it. Ledger and checkpoint stay as they are: they are the evidence.
    pub fn condemn(&self, trace: TraceId, reason: &str) -> Result<TraceMeta, StoreError> {
        let folder = self.path(layout::trace_dir(trace));
        let mut meta = self.meta(trace)?;
        let _lock = Lock::take(&folder.join(WRITER_LOCK), &folder)?;
        meta.status = TraceStatus::Tampered;
        meta.ended_at = Some(self.now().to_string());
        meta.other.insert(STATUS_REASON.into(), reason.into());
        self.write_meta(&meta)?;
        Ok(meta)
    }

    fn check_signature(&self, event: &Event, line: u64) -> Result<(), StoreError> {
        let registry = self.registry()?;
        let identity = registry.by_key(&event.actor().key_id);
        let key = identity.and_then(|identity| choir_ledger::identity::from_pem(&identity.public_key));
        if key.is_some_and(|key| event.verify(&key).is_ok()) {
            Ok(())
        } else {
            let why = "its signature does not verify".to_owned();
            Err(StoreError::Damaged { trace: event.trace_id(), line, why })
        }
    }

    /// The policy that the meta file keeps; the session's event, if there is one, states it under a signature.
    fn kept_policy(&self, meta: &TraceMeta) -> Result<Policy, StoreError> {
        match meta.other.get(POLICY) {
            Some(kept) => Ok(Policy::from_value(&owned(kept.clone()))?),
            None => Ok(Policy::protocol(meta.policy_profile.parse::<PolicyProfile>().unwrap_or_default())),
        }
    }

    /// The meta file of a trace.
    pub fn meta(&self, trace: TraceId) -> Result<TraceMeta, StoreError> {
        let path = self.path(layout::meta(trace));
        let text = disk::read_text(&path, MAX_DOCUMENT_BYTES)?.ok_or(StoreError::NoTrace(trace))?;
        let meta: TraceMeta =
            serde_json::from_str(&text).map_err(|why| StoreError::unreadable(&path, why))?;
        if meta.trace_id == trace {
            Ok(meta)
        } else {
            Err(StoreError::unreadable(&path, "it is another trace's"))
        }
    }

    /// Hands over every event, in order, with its line; a torn end is passed over. Stops at a damaged line.
    pub fn each_event(
        &self,
        trace: TraceId,
        take: impl FnMut(u64, Event) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        self.meta(trace)?;
        Ok(ledger::each(&self.path(layout::events(trace)), trace, End::Reading, take)?.events)
    }

    /// All events of a trace.
    pub fn events(&self, trace: TraceId) -> Result<Vec<Event>, StoreError> {
        let mut events = Vec::new();
        self.each_event(trace, |_, event| {
            events.push(event);
            Ok(())
        })?;
        Ok(events)
    }

    /// What the rules know of a trace, without a right to write.
    pub fn trace(&self, trace: TraceId) -> Result<Trace, StoreError> {
        let meta = self.meta(trace)?;
        let mut replayed = Trace::new(self.kept_policy(&meta)?);
        self.each_event(trace, |_, event| Ok(replayed.apply(&Step::of(&event)?)?))?;
        let ended = replayed.phase().is_terminal();
        match meta.status {
            TraceStatus::Aborted if !ended => replayed.abort()?,
            TraceStatus::Failed | TraceStatus::Tampered if !ended => replayed.fail()?,
            _ => {}
        }
        Ok(replayed)
    }

    /// The ids of all traces, the oldest first.
    pub fn trace_ids(&self) -> Result<Vec<TraceId>, StoreError> {
        let names = disk::names(&self.path(layout::TRACES))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).take(MAX_TRACES).collect())
    }

    /// What a list shows, the oldest first. A folder in which a crash left no trace yet is none.
    pub fn list(&self) -> Result<Vec<Summary>, StoreError> {
        let began = |trace: &TraceId| {
            let events = std::fs::metadata(self.path(layout::events(*trace)));
            self.path(layout::meta(*trace)).exists() || events.is_ok_and(|events| events.len() > 0)
        };
        Ok(self.trace_ids()?.into_iter().filter(began).map(|trace| self.summary(trace)).collect())
    }

    /// What a list shows of this trace.
    #[must_use]
    pub fn summary(&self, trace: TraceId) -> Summary {
        let path = self.path(layout::trace_dir(trace));
        let (meta, problem) = match self.meta(trace) {
            Ok(meta) => (Some(meta), None),
            Err(why) => (None, Some(why.to_string())),
        };
        let report = disk::read_text(&path.join(layout::LATEST_REPORT), MAX_DOCUMENT_BYTES).ok().flatten();
        let report = report.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
        let verdict = report.as_ref().and_then(|report| report.get("verification_status"));
        let verdict = verdict.and_then(serde_json::Value::as_str).map(str::to_owned);
        Summary { trace_id: trace, path, meta, verdict, problem }
    }

    /// The traces that are running: after a start of the host, those to resume.
    pub fn open_traces(&self) -> Result<Vec<TraceId>, StoreError> {
        let running = |trace: &TraceId| {
            self.meta(*trace).is_ok_and(|meta| meta.status == TraceStatus::Running)
                && self.checkpoint(*trace).is_ok_and(|head| head.is_some())
        };
        Ok(self.trace_ids()?.into_iter().filter(running).collect())
    }

    /// A running trace in which this key takes part.
    pub(crate) fn running_with(&self, key_id: &str) -> Result<Option<TraceId>, StoreError> {
        let signs = |trace: &TraceId| {
            self.meta(*trace).is_ok_and(|meta| meta.participants.iter().any(|who| who.key_id == key_id))
        };
        Ok(self.open_traces()?.into_iter().find(signs))
    }

    /// Keeps a verification report: `reports/<id>.json` and `.txt`, and `verification.latest.json`.
    pub fn save_report(
        &self,
        trace: TraceId,
        report: ReportId,
        json: &serde_json::Value,
        text: &str,
    ) -> Result<PathBuf, StoreError> {
        self.meta(trace)?;
        let path = self.path(layout::report(trace, report));
        if path.exists() {
            return Err(StoreError::Exists(path));
        }
        let pretty = serde_json::to_string_pretty(json).map_err(|why| StoreError::unreadable(&path, why))?;
        if let Some(folder) = path.parent() {
            disk::make_folder(folder)?;
        }
        disk::write_whole(&path.with_extension("txt"), text.as_bytes())?;
        disk::write_whole(&path, pretty.as_bytes())?;
        let latest = self.path(layout::trace_dir(trace)).join(layout::LATEST_REPORT);
        disk::write_whole(&latest, pretty.as_bytes())?;
        Ok(path)
    }
}

/// The rules replayed over a ledger, and the checkpoint held against it on the way.
struct Replay {
    trace_id: TraceId,
    trace: Trace,
    signed: Head,
    artifacts: u64,
    last_event: Option<Event>,
}

impl Replay {
    fn new(trace_id: TraceId, policy: Policy, signed: Head) -> Self {
        Self { trace_id, trace: Trace::new(policy), signed, artifacts: 0, last_event: None }
    }

    fn take(&mut self, line: u64, event: Event) -> Result<(), StoreError> {
        let applied = Step::of(&event).and_then(|step| self.trace.apply(&step));
        applied.map_err(|why| StoreError::Damaged { trace: self.trace_id, line, why: why.to_string() })?;
        self.artifacts += event.artifacts().len() as u64;
        if self.trace.standing().events == self.signed.events && event.event_hash() != self.signed.hash {
            return Err(self.rolled_back("and the ledger has another event there".into()));
        }
        self.last_event = Some(event);
        Ok(())
    }

    fn check_end(&self, extent: &ledger::Extent) -> Result<(), StoreError> {
        if extent.events < self.signed.events {
            return Err(self.rolled_back(format!("and the ledger has {}", extent.events)));
        }
        if self.trace.phase() == Phase::Aborted { Err(StoreError::Ended(self.trace_id)) } else { Ok(()) }
    }

    fn rolled_back(&self, found: String) -> StoreError {
        StoreError::RolledBack { trace: self.trace_id, signed: self.signed.events, found }
    }
}
