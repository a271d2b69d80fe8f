//! How many signed events a second one trace takes, and whether that stays so as it grows. Prints the rate of each part of
//! the way; `LEDGER_EVENTS` sets the length (1,000,000 by default).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and fails by panicking")]

use choir_ledger::event::{Descriptor, EventType, Role};
use choir_ledger::id::ClaimId;
use choir_ledger::json::Owned;
use choir_ledger::meta::Participant;
use choir_ledger::payload::{self, ProposalStatus};
use choir_ledger::trace::{Policy, PolicyProfile};
use choir_ledger_store::{Draft, Home, NewTrace, Signer, Ticket, TraceWriter};
use std::time::Instant;

/// Tickets not waited for yet: a run's roles in parallel have far fewer, a flood has more.
const IN_FLIGHT: usize = 2048;

struct Run {
    writer: TraceWriter,
    signer: Signer,
    tickets: std::collections::VecDeque<Ticket>,
}

impl Run {
    fn say(
        &mut self,
        event_type: EventType,
        payload: Owned,
        claims: Vec<ClaimId>,
        artifacts: Vec<Descriptor>,
    ) {
        let (signer, role) = (&self.signer, event_type.role());
        let draft = Draft { event_id: None, event_type, signer, role, payload, claims, artifacts };
        self.tickets.push_back(self.writer.append(draft).unwrap().ticket);
        if self.tickets.len() > IN_FLIGHT {
            self.tickets.pop_front().unwrap().wait().unwrap();
        }
    }
}

fn main() {
    let events: u64 =
        std::env::var("LEDGER_EVENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let folder = tempfile::tempdir().unwrap();
    let home = Home::create(folder.path()).unwrap();
    let signer = home.ensure_agent("bench-agent", "Bench", Role::ALL).unwrap();
    let who = |role: &Role| Participant {
        agent_id: "bench-agent".into(),
        role: *role,
        key_id: signer.identity().key_id.clone(),
    };
    let new = NewTrace {
        task_id: "bench".into(),
        participants: Role::ALL.iter().map(who).collect(),
        policy: Policy::protocol(PolicyProfile::Default),
        config_fingerprint: None,
        tool_versions: None,
    };
    let writer = home.begin(new).unwrap();
    let mut run = Run { writer, signer, tickets: std::collections::VecDeque::new() };
    run.say(EventType::SessionInitialized, payload::session("bench", "bench", &[]), vec![], vec![]);
    let tools = ["scale.tool".to_owned()];
    run.say(EventType::ProposalCreated, payload::proposal("bench", &[], &tools, &[]), vec![], vec![]);
    run.say(
        EventType::ProposalReviewed,
        payload::review(ProposalStatus::Approved, "low", "bench"),
        vec![],
        vec![],
    );
    let (id, at) = (run.writer.new_event_id(), run.writer.now());
    let blob = home.put_artifact(b"{\"blob\":1}", "application/json", "utf-8", run.writer.trace_id(), id, at);
    let blob = blob.unwrap();
    let hash = blob.artifact_hash;

    println!("{:>9}  {:>9}  {:>12}", "events", "events/s", "of this part");
    let (begun, mut part, mut from, mut next) = (Instant::now(), Instant::now(), 3u64, 1_000u64);
    let mut written = 3u64;
    for cycle in 0u64.. {
        let exec = format!("exec_{cycle}");
        run.say(
            EventType::ToolIntentSigned,
            payload::intent("scale.tool", &hash, "standard", "bench"),
            vec![],
            vec![],
        );
        run.say(
            EventType::ToolExecutionStarted,
            payload::started("scale.tool", &exec),
            vec![],
            vec![blob.clone()],
        );
        let completed = payload::completed("scale.tool", &exec, 0, &[hash]);
        run.say(EventType::ToolExecutionCompleted, completed, vec![], vec![blob.clone()]);
        let recorded = payload::recorded(&hash, "application/json");
        run.say(EventType::ArtifactRecorded, recorded, vec![], vec![blob.clone()]);
        let claim = ClaimId::fresh();
        let claimed = payload::claim(claim, &exec, 0.5, &[hash]);
        run.say(EventType::ClaimIssued, claimed, vec![claim], vec![blob.clone()]);
        written += 5;
        if written >= next || written >= events {
            for ticket in run.tickets.drain(..) {
                ticket.wait().unwrap();
            }
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let rate = |events: u64, since: Instant| events as f64 / since.elapsed().as_secs_f64();
            println!("{written:>9}  {:>9.0}  {:>12.0}", rate(written, begun), rate(written - from, part));
            (part, from) = (Instant::now(), written);
            next = if next < 10_000 { next * 10 } else { next + 100_000 };
        }
        if written >= events {
            break;
        }
    }
    drop(run);
}
