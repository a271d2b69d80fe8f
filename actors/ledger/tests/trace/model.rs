//! An exhaustive check of the rules behind a ledger that crashes: every order in which a small run's events can be offered,
//! synced, lost and replayed, up to two proposals, two intents of different risk, one claim and one challenge. In every state
//! that can be reached the numbered invariants hold, and what is replayed after a crash is what was synced.

use crate::kit::{Names, Say};
use choir_ledger::trace::invariants::check_invariants;
use choir_ledger::trace::{ExecutionState, IntentState, Phase, Policy, PolicyProfile, Refused, Step, Trace};
use stateright::{Checker, Model, Property};
use std::hash::{Hash, Hasher};

/// Most events in one trace of the model.
const MAX_EVENTS: u64 = 12;

/// Most judgements in one trace of the model.
const MAX_REVIEWS: u64 = 3;

struct Run {
    policy: Policy,
}

/// A ledger and the process that writes it.
#[derive(Clone, Debug)]
struct State {
    /// What is on the disk.
    synced: Vec<Step>,
    synced_said: Vec<Say>,
    /// An event that is folded in, and not synced yet.
    pending: Option<(Step, Say)>,
    /// The process's view; `None` while it is dead.
    live: Option<Trace>,
    names: Names,
    broken: Option<&'static str>,
}

impl State {
    fn said(&self) -> Vec<Say> {
        self.synced_said.iter().copied().chain(self.pending.as_ref().map(|(_, say)| *say)).collect()
    }

    /// What matters for what may come next: two histories that leave the same behind are one state.
    fn essence(&self) -> impl Hash + Eq + use<> {
        let mut trace = Trace::new(Policy::default());
        if let Some(live) = &self.live {
            trace = live.clone();
        }
        let standing = *trace.standing();
        let mut intents: Vec<_> = trace.intents().values().cloned().collect();
        intents.sort_by_key(|intent| intent.place);
        let intents: Vec<_> =
            intents.into_iter().map(|i| (i.class, i.proposal, i.state, i.approved)).collect();
        let mut plans: Vec<_> = trace.proposals().values().cloned().collect();
        plans.sort_by_key(|plan| plan.place);
        let plans: Vec<_> = plans.into_iter().map(|plan| (plan.judgement, plan.revised)).collect();
        let runs: Vec<_> = trace.executions().values().map(|run| (run.state, run.has_artefact)).collect();
        let claims: Vec<_> = trace.claims().values().map(|c| (c.text, c.open_challenges)).collect();
        let pending = self.pending.as_ref().map(|(_, say)| *say);
        let dead = self.live.is_none().then(|| self.said());
        (standing, intents, plans, (runs, claims, trace.carried().clone()), pending, dead, self.broken)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.essence() == other.essence()
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.essence().hash(hasher);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Move {
    /// A role offers an event.
    Offer(Say),
    /// The disk has it.
    Sync,
    /// The process dies; what was not synced is on the disk all the same, or not.
    Crash {
        kept: bool,
    },
    /// A new process replays the ledger.
    Restart,
    Abort,
    Fail,
}

const MENU: &[Say] = &[
    Say::Session,
    Say::Propose,
    Say::Revise(0),
    Say::Fallback(0),
    Say::Approve(0),
    Say::Approve(1),
    Say::Reject(0),
    Say::ApproveIntent(0),
    Say::Block(0),
    Say::Intent("standard"),
    Say::Intent("high"),
    Say::Start(0),
    Say::Start(1),
    Say::Complete(0),
    Say::Fail(0),
    Say::Fail(1),
    Say::Claim(0),
    Say::Resolve(0),
    Say::Challenge(0),
    Say::Final(0),
    Say::Verify,
    Say::Verdict("pass"),
    Say::Verdict("fail"),
];

/// Time stands still but for the session, so that histories can meet.
fn step(names: &Names, say: Say) -> Step {
    names.step(say, say.event_type().role(), 1)
}

fn sensible(trace: &Trace, say: Say) -> bool {
    let standing = trace.standing();
    let again = match say {
        Say::Claim(_) | Say::Resolve(_) => standing.claims < 2,
        Say::Verify => standing.verifications == 0,
        Say::Approve(_) | Say::Condition(_) | Say::Reject(_) | Say::ApproveIntent(_) | Say::Block(_) => {
            standing.reviews < MAX_REVIEWS
        }
        _ => true,
    };
    again && standing.events < MAX_EVENTS
}

impl Model for Run {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            synced: Vec::new(),
            synced_said: Vec::new(),
            pending: None,
            live: Some(Trace::new(self.policy.clone())),
            names: Names::default(),
            broken: None,
        }]
    }

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        let Some(live) = &state.live else { return moves.push(Move::Restart) };
        if state.pending.is_some() {
            return moves.extend([Move::Sync, Move::Crash { kept: false }, Move::Crash { kept: true }]);
        }
        let offered = MENU.iter().filter(|say| {
            sensible(live, **say)
                && !matches!(
                    live.admit(&step(&state.names, **say)),
                    // What is refused changes nothing: no state of its own.
                    Err(refused) if !matches!(refused, Refused::Broken { .. })
                )
        });
        moves.extend(offered.map(|say| Move::Offer(*say)));
        moves.push(Move::Crash { kept: false });
        if !live.phase().is_terminal() && live.standing().events < 6 {
            moves.extend([Move::Abort, Move::Fail]);
        }
    }

    fn next_state(&self, last: &State, action: Move) -> Option<State> {
        let mut state = last.clone();
        match action {
            Move::Offer(say) => {
                let step = step(&state.names, say);
                match state.live.as_mut()?.apply(&step) {
                    Ok(()) => state.pending = Some((step, say)),
                    Err(Refused::Broken { id, .. }) => state.broken = Some(id),
                    Err(_) => return None,
                }
                state.names.took(say);
            }
            Move::Sync => {
                let (step, say) = state.pending.take()?;
                state.synced.push(step);
                state.synced_said.push(say);
            }
            Move::Crash { kept } => {
                if let Some((step, say)) = state.pending.take().filter(|_| kept) {
                    state.synced.push(step);
                    state.synced_said.push(say);
                }
                state.live = None;
            }
            Move::Restart => {
                let replayed = Trace::replay(self.policy.clone(), state.synced.clone());
                match replayed {
                    Ok(trace) => state.live = Some(trace),
                    Err(_) => state.broken = Some("what was synced does not replay"),
                }
                state.names = Names::default();
                for say in &state.synced_said {
                    state.names.took(*say);
                }
                // Ids are fresh after a restart, as a random part makes them; the numbers of lost events are used again.
            }
            Move::Abort => state.live.as_mut()?.abort().ok()?,
            Move::Fail => state.live.as_mut()?.fail().ok()?,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn seen(state: &State, what: impl Fn(&Trace) -> bool) -> bool {
            state.live.as_ref().is_some_and(what)
        }
        vec![
            Property::always("the trace keeps its invariants", |_, state: &State| {
                state.live.as_ref().is_none_or(|trace| check_invariants(trace).is_empty())
            }),
            Property::always(
                "every change keeps its invariants, and what was synced replays",
                |_, state: &State| state.broken.is_none(),
            ),
            Property::always("the live trace is the fold of its ledger", |run: &Self, state: &State| {
                let Some(live) = &state.live else { return true };
                let steps = state.synced.iter().cloned().chain(state.pending.clone().map(|(step, _)| step));
                let ended = matches!(live.phase(), Phase::Aborted | Phase::Failed);
                ended || Trace::replay(run.policy.clone(), steps).as_ref() == Ok(live)
            }),
            Property::sometimes("a run completes", |_, state: &State| {
                seen(state, |trace| trace.phase() == Phase::Completed)
            }),
            Property::sometimes("a verification fails", |_, state: &State| {
                seen(state, |trace| trace.standing().verified.is_some() && trace.phase() == Phase::Failed)
            }),
            Property::sometimes("a run is aborted", |_, state: &State| {
                seen(state, |trace| trace.phase() == Phase::Aborted)
            }),
            Property::sometimes("claims follow failures only", |_, state: &State| {
                seen(state, |trace| trace.standing().completed == 0 && trace.standing().claims > 0)
            }),
            Property::sometimes("a risky intent runs with the critic's approval", |_, state: &State| {
                seen(state, |trace| {
                    trace.intents().values().any(|i| i.approved && i.state == IntentState::Used)
                })
            }),
            Property::sometimes("an intent is blocked and another one runs", |_, state: &State| {
                seen(state, |trace| {
                    trace.standing().blocked > 0
                        && trace.executions().values().any(|run| run.state == ExecutionState::Running)
                })
            }),
            Property::sometimes("a revision takes the place of a proposal", |_, state: &State| {
                seen(state, |trace| trace.proposals().values().any(|plan| plan.revised))
            }),
            Property::sometimes("a challenge is answered", |_, state: &State| {
                seen(state, |trace| trace.standing().challenges > 0 && trace.standing().open_challenges == 0)
            }),
        ]
    }
}

#[test]
fn every_reachable_trace_keeps_the_invariants_through_every_crash() {
    let policy = Policy {
        profile: PolicyProfile::Default,
        tool_calls: Some(2),
        failures: Some(2),
        proposals: Some(2),
        challenges: Some(1),
        ..Policy::default()
    };
    let checker = Run { policy }.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} distinct", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
}
