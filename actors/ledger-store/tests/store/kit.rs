//! A home with four agents, and runs told in a line.

use choir_ledger::event::{Descriptor, EventType, Role};
use choir_ledger::id::{ClaimId, EventId, ReportId, TraceId};
use choir_ledger::json::Owned;
use choir_ledger::meta::{Participant, TraceStatus};
use choir_ledger::payload::{self, ProposalStatus};
use choir_ledger::trace::Policy;
use choir_ledger::verify::{Folder, Options, Profile, Reading, Report, Verdict, verify};
use choir_ledger_store::{Appended, Draft, Home, NewTrace, Signer, StoreError, TraceWriter};
use std::path::Path;

pub(crate) const TOOL: &str = "text.count";

/// The four agents of a home.
pub(crate) struct Cast {
    pub(crate) home: Home,
    pub(crate) signers: Vec<(Role, Signer)>,
}

impl Cast {
    pub(crate) fn at(path: &Path) -> Self {
        Self::of(Home::create(path).unwrap())
    }

    pub(crate) fn of(home: Home) -> Self {
        let agent = |role: &Role| {
            (*role, home.ensure_agent(&format!("{role}-agent"), role.as_str(), &[*role]).unwrap())
        };
        let signers = Role::ALL.iter().map(agent).collect();
        Self { home, signers }
    }

    pub(crate) fn signer(&self, role: Role) -> &Signer {
        &self.signers.iter().find(|(own, _)| *own == role).unwrap().1
    }

    pub(crate) fn participants(&self) -> Vec<Participant> {
        let who = |(role, signer): &(Role, Signer)| {
            let actor = signer.actor(*role);
            Participant { agent_id: actor.agent_id, role: *role, key_id: actor.key_id }
        };
        self.signers.iter().map(who).collect()
    }

    pub(crate) fn new_trace(&self, policy: Policy) -> NewTrace {
        NewTrace {
            task_id: "task-1".into(),
            participants: self.participants(),
            policy,
            config_fingerprint: None,
            tool_versions: None,
        }
    }

    pub(crate) fn begin(&self) -> TraceWriter {
        self.home.begin(self.new_trace(Policy::default())).unwrap()
    }

    pub(crate) fn try_say(
        &self,
        writer: &mut TraceWriter,
        event_type: EventType,
        payload: Owned,
        claims: Vec<ClaimId>,
        artifacts: Vec<Descriptor>,
        event_id: Option<EventId>,
    ) -> Result<Appended, StoreError> {
        let role = event_type.role();
        let signer = self.signer(role);
        writer.append(Draft { event_id, event_type, signer, role, payload, claims, artifacts })
    }

    pub(crate) fn say(&self, writer: &mut TraceWriter, event_type: EventType, payload: Owned) -> Appended {
        self.try_say(writer, event_type, payload, vec![], vec![], None).unwrap()
    }

    pub(crate) fn put(&self, writer: &mut TraceWriter, bytes: &[u8]) -> (EventId, Descriptor) {
        let (id, at) = (writer.new_event_id(), writer.now());
        (id, self.home.put_artifact(bytes, "text/plain", "utf-8", writer.trace_id(), id, at).unwrap())
    }

    /// Session, proposal, approval.
    pub(crate) fn open(&self, writer: &mut TraceWriter) {
        self.say(writer, EventType::SessionInitialized, payload::session("task-1", "count", &[]));
        let tools = [TOOL.to_owned()];
        self.say(writer, EventType::ProposalCreated, payload::proposal("count", &[], &tools, &[]));
        let review = payload::review(ProposalStatus::Approved, "low", "small and local");
        self.say(writer, EventType::ProposalReviewed, review);
    }

    /// One tool call, from its intent to its claim. Returns the claim.
    pub(crate) fn cycle(&self, writer: &mut TraceWriter, number: usize) -> ClaimId {
        let exec = format!("exec_{number}");
        let (input, output) = (format!("input {number}"), format!("output {number}"));
        let hash = choir_messages::chain::Digest::of(input.as_bytes());
        let intent = payload::intent(TOOL, &hash, "standard", "needed");
        self.say(writer, EventType::ToolIntentSigned, intent);
        let (id, input) = self.put(writer, input.as_bytes());
        let started = payload::started(TOOL, &exec);
        self.try_say(writer, EventType::ToolExecutionStarted, started, vec![], vec![input], Some(id))
            .unwrap();
        let (id, output) = self.put(writer, output.as_bytes());
        let hash = output.artifact_hash;
        let completed = payload::completed(TOOL, &exec, 0, &[hash]);
        let event = EventType::ToolExecutionCompleted;
        self.try_say(writer, event, completed, vec![], vec![output.clone()], Some(id)).unwrap();
        let claim = ClaimId::fresh();
        let claimed = payload::claim(claim, &format!("cycle {number}"), 0.9, &[hash]);
        self.try_say(writer, EventType::ClaimIssued, claimed, vec![claim], vec![output], None).unwrap();
        claim
    }

    /// The end of a run: final statement, verification, status.
    pub(crate) fn close(&self, writer: &mut TraceWriter, claims: &[ClaimId]) {
        let last = payload::final_statement(claims, "done");
        let event = EventType::FinalStatementSigned;
        self.try_say(writer, event, last, claims.to_vec(), vec![], None).unwrap();
        self.say(writer, EventType::VerificationRunStarted, payload::verification_started("default"));
        writer.checkpoint().unwrap().wait().unwrap();
        let options = Options { awaiting_verdict: true, ..Options::default() };
        let report = verify(&Folder::new(self.home.root()), writer.trace_id(), options);
        assert_ne!(report.verification_status, Verdict::Fail, "{:?}", report.failures);
        let status = report.verification_status.as_str();
        let completed = payload::verification_completed(status, ReportId::fresh());
        self.say(writer, EventType::VerificationRunCompleted, completed);
        writer.finish(TraceStatus::Succeeded, None).unwrap();
    }

    /// A whole run of so many tool calls.
    pub(crate) fn run(&self, cycles: usize) -> TraceId {
        let mut writer = self.begin();
        self.open(&mut writer);
        let claims: Vec<_> = (0..cycles).map(|number| self.cycle(&mut writer, number)).collect();
        self.close(&mut writer, &claims);
        writer.trace_id()
    }
}

pub(crate) fn strictly(home: &Path, trace: TraceId) -> Report {
    verify(&Folder::new(home), trace, Options::default())
}

/// Passes strictly, and as the original reads it.
pub(crate) fn assert_sound(home: &Path, trace: TraceId) {
    for reading in [Reading::Strict, Reading::Compat] {
        for profile in Profile::ALL {
            let report =
                verify(&Folder::new(home), trace, Options { reading, profile, awaiting_verdict: false });
            let found = (&report.failures, &report.warnings);
            // The trace's own profile is part of the strict reading (R07); the original compares nothing.
            let own = profile == Profile::Default || reading == Reading::Compat;
            assert!(!own || report.verification_status == Verdict::Pass, "{reading} {profile}: {found:?}");
        }
    }
}

/// Every file below a folder, but locks, with its bytes.
pub(crate) fn bytes_of(folder: &Path) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.to_string_lossy().ends_with(".lock") {
                let bytes = std::fs::read(&path).unwrap();
                files.insert(path, bytes);
            }
        }
    }
    files
}
