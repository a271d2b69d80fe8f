//! A whole agent in one thread: its real cores, a simulated world, and a seed that decides what happens next and what
//! dies when. A failure names its seed; the seed replays it.

mod agent;
mod desk;
mod world;

pub use agent::Agent;
pub use desk::{Desk, Runs};
pub use world::{Host, Rules, Workspace, model};

use choir_messages::event::{Event, EventBody, MessageOutcome};
use choir_messages::id::{MessageId, SessionId};

use crate::seed::Seed;

/// What one run came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Messages answered.
    pub answered: u32,
    /// Messages that ended otherwise.
    pub failed: u32,
    /// Kills of any kind.
    pub kills: u32,
    /// Durable events.
    pub events: u64,
    /// Side effects.
    pub effects: u32,
    /// What the ledger's desk had run.
    pub runs: Runs,
}

/// Steps in which faults may happen; then the run must come to an end by itself.
const FAULTY_STEPS: u32 = 600;

/// Steps within which an undisturbed agent must have answered everything.
const CALM_STEPS: u32 = 20_000;

/// Plays one conversation under the seed's schedule and checks DESIGN §5 from outside. Panics, naming what broke.
pub fn run(seed: u64) -> Report {
    let mut draw = Seed::new(seed);
    let session = SessionId::from_bits(u128::from(seed) + 1);
    let mut host = Host::new(session);
    let mut workspace = Workspace::default();
    let mut agent = Agent::restore(&host);
    let mut report = Report::default();
    let messages = 1 + draw.below(5);
    let mut desk = Desk::new(&mut draw);
    let kill_rate = [8, 20, 60, 200][usize::try_from(draw.below(4)).unwrap_or(0)];

    for step in 0..FAULTY_STEPS + CALM_STEPS {
        let faulty = step < FAULTY_STEPS;
        if (host.inbox.len() as u64) < messages && draw.once_in(15) {
            let id = MessageId::from_bits(host.inbox.len() as u128 + 1);
            host.inbox.push((id, format!("message {}", draw.below(1000)), None));
        }
        if faulty && draw.once_in(kill_rate) {
            report.kills += 1;
            match draw.below(4) {
                // The process: everything but the host and the workspace is gone.
                0 => agent = Agent::restore(&host),
                // rest_for_one: the actor and everything started after it.
                1 => agent.kill_arbiter(),
                2 => agent.kill_edge(),
                _ => agent.break_link(),
            }
        }
        let answered = host.inbox.len() as u64 == messages && host.inbox.iter().all(|row| row.2.is_some());
        if answered && desk.is_done(&host.events) && !faulty {
            break;
        }
        if draw.once_in(20) {
            agent.hear(desk.speak(&mut draw, &host.events));
        }
        agent.step(&mut draw, &mut host, &mut workspace);
    }

    let events =
        choir_messages::event::verify_chain(session, choir_messages::event::Head::START, &host.events);
    report.events = events.expect("the host's chain verifies").rev;
    for (id, _, outcome) in &host.inbox {
        match outcome.unwrap_or_else(|| panic!("message {id} was lost")) {
            MessageOutcome::Answered => report.answered += 1,
            _ => report.failed += 1,
        }
    }
    // Each kill interrupts one turn at most, and a turn is set aside at its second interruption at the earliest.
    let resumed = |event: &&Event| matches!(event.body, EventBody::TurnResumed { .. });
    let resumed = host.events.iter().filter(resumed).count();
    let interrupted = resumed + report.failed as usize;
    assert!(interrupted <= report.kills as usize, "{interrupted} interruptions by {} kills", report.kills);
    assert!(
        report.failed as usize <= resumed,
        "{} turns set aside after {resumed} resumptions",
        report.failed
    );
    report.runs = desk.judge(&host.events, &workspace);
    for (invocation, count) in &workspace.effects {
        assert_eq!(*count, 1, "call {invocation} took effect {count} times");
        report.effects += count;
    }
    report
}
