use super::*;
use proptest::prelude::*;

fn up() -> SessionCore {
    let mut core = SessionCore::new();
    core.step(Input::Start { fresh: false }, Now::ZERO);
    core.step(Input::Opened, Now::ZERO);
    core.step(Input::Launched { attempt: 1, pid: 7 }, Now::ZERO);
    core.step(Input::Ready { attempt: 1 }, Now::ZERO);
    assert_eq!(core.phase(), Phase::Up);
    core
}

fn crash(core: &mut SessionCore, now: Now) {
    let attempt = core.attempt();
    core.step(Input::LinkDown { attempt, reason: "end of file".into(), for_good: true }, now);
    core.step(Input::Gone { attempt, how: "signal 9".into() }, now);
    core.step(Input::Closed, now);
}

#[test]
fn a_closed_link_kills_closes_the_lease_and_starts_anew_at_once_after_progress() {
    let mut core = up();
    core.step(Input::Progress { attempt: 1 }, Now::ZERO);
    let now = Duration::from_secs(5);
    let out = core.step(Input::LinkDown { attempt: 1, reason: "end of file".into(), for_good: true }, now);
    assert!(matches!(&out[..], [Action::Kill { attempt: 1, .. }]));
    assert!(!core.serves());
    let out = core.step(Input::Gone { attempt: 1, how: "signal 9".into() }, now);
    assert!(matches!(out.last(), Some(Action::Close { crashed: Some(_) })));
    assert_eq!(core.step(Input::Closed, now), [Action::Open { fresh: false }]);
    assert_eq!(core.step(Input::Opened, now), [Action::Launch { attempt: 2 }]);
}

#[test]
fn a_link_may_come_back_within_its_grace_and_is_a_crash_after_it() {
    let mut core = up();
    let down = Input::LinkDown { attempt: 1, reason: "end of file".into(), for_good: false };
    assert!(core.step(down.clone(), Now::ZERO).is_empty());
    assert_eq!(core.deadline(), Some(limits::LINK_GRACE));
    core.step(Input::LinkUp { attempt: 1 }, Now::ZERO);
    assert_eq!(core.deadline(), None);
    core.step(down, Now::ZERO);
    let out = core.step(Input::Tick, limits::LINK_GRACE);
    assert!(matches!(&out[..], [Action::Kill { .. }]));
}

#[test]
fn silence_is_a_crash_and_a_late_word_of_an_earlier_sandbox_is_nothing() {
    let mut core = up();
    let out = core.step(Input::Silent { attempt: 1, silent: Duration::from_secs(10) }, Now::ZERO);
    assert!(matches!(&out[..], [Action::Kill { .. }]));
    core.step(Input::Gone { attempt: 1, how: "signal 9".into() }, Now::ZERO);
    core.step(Input::Closed, Now::ZERO);
    core.step(Input::Tick, Duration::from_secs(60));
    core.step(Input::Opened, Now::ZERO);
    assert_eq!(core.attempt(), 2);
    assert!(core.step(Input::Gone { attempt: 1, how: "late".into() }, Now::ZERO).is_empty());
    assert!(
        core.step(Input::LinkDown { attempt: 1, reason: "late".into(), for_good: true }, Now::ZERO)
            .is_empty()
    );
}

#[test]
fn an_agent_that_never_gets_anywhere_is_given_up_and_says_so_and_can_be_started_again() {
    let mut core = SessionCore::new();
    let mut now = Now::ZERO;
    core.step(Input::Start { fresh: false }, now);
    let mut waits = Vec::new();
    for n in 1..=limits::CRASHES_WITHOUT_PROGRESS {
        core.step(Input::Opened, now);
        core.step(Input::LaunchFailed { attempt: u64::from(n), reason: "no such file".into() }, now);
        core.step(Input::Closed, now);
        if let Some(until) = core.deadline() {
            waits.push((until - now).as_millis());
            now = until;
            assert_eq!(core.step(Input::Tick, now), [Action::Open { fresh: false }]);
        }
    }
    assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 12800]);
    let Phase::Failed { why } = core.phase() else { panic!("{:?}", core.phase()) };
    assert!(why.contains("8 times in a row") && why.contains("no such file"), "{why}");
    core.step(Input::Start { fresh: false }, now);
    assert_eq!(core.phase(), Phase::Opening);
}

#[test]
fn crashes_with_progress_are_bounded_by_the_window() {
    let mut core = up();
    let mut now = Now::ZERO;
    for n in 0.. {
        let attempt = core.attempt();
        core.step(Input::Progress { attempt }, now);
        crash(&mut core, now);
        if matches!(core.phase(), Phase::Failed { .. }) {
            assert_eq!(n, limits::CRASHES_IN_WINDOW);
            break;
        }
        core.step(Input::Opened, now);
        now += Duration::from_secs(1);
    }
}

#[test]
fn a_stop_asks_then_kills_then_closes_and_forgets_the_wish() {
    let mut core = up();
    let out = core.step(Input::Stop, Now::ZERO);
    assert!(matches!(&out[..], [Action::Remember { wanted: false }, Action::AskToLeave { .. }]));
    let out = core.step(Input::Tick, limits::STOP_WITHIN);
    assert!(matches!(&out[..], [Action::Kill { .. }]));
    let out = core.step(Input::Gone { attempt: 1, how: "signal 9".into() }, limits::STOP_WITHIN);
    assert!(matches!(out.last(), Some(Action::Close { crashed: None })));
    core.step(Input::Closed, limits::STOP_WITHIN);
    assert_eq!(core.phase(), Phase::Stopped);
}

#[test]
fn a_choird_that_ends_does_not_wait_for_a_database_that_is_away() {
    let mut core = up();
    core.step(Input::Quit, Now::ZERO);
    core.step(Input::Gone { attempt: 1, how: "exit 0".into() }, Now::ZERO);
    assert_eq!(core.phase(), Phase::Closing);
    core.step(Input::CloseFailed { reason: "away".into() }, Now::ZERO);
    assert_eq!(core.phase(), Phase::Stopped);
    // A stopped agent waits for it: somebody else may want its resources.
    let mut core = up();
    core.step(Input::Stop, Now::ZERO);
    core.step(Input::Gone { attempt: 1, how: "exit 0".into() }, Now::ZERO);
    core.step(Input::CloseFailed { reason: "away".into() }, Now::ZERO);
    assert_eq!(core.phase(), Phase::Closing);
}

#[test]
fn a_restart_comes_back_without_a_wait_and_a_second_start_changes_nothing() {
    let mut core = up();
    assert_eq!(core.step(Input::Start { fresh: true }, Now::ZERO), [Action::Remember { wanted: true }]);
    core.step(Input::Restart { fresh: true }, Now::ZERO);
    core.step(Input::Gone { attempt: 1, how: "exit 0".into() }, Now::ZERO);
    assert_eq!(core.step(Input::Closed, Now::ZERO), [Action::Open { fresh: true }]);
    core.step(Input::Opened, Now::ZERO);
    // A later crash must not open a fresh session again.
    core.step(Input::LaunchFailed { attempt: 2, reason: "x".into() }, Now::ZERO);
    core.step(Input::Closed, Now::ZERO);
    assert_eq!(core.step(Input::Tick, Duration::from_secs(60)), [Action::Open { fresh: false }]);
}

#[test]
fn shutting_down_stops_it_without_forgetting_that_it_is_wanted() {
    let mut core = up();
    let out = core.step(Input::Quit, Now::ZERO);
    assert!(matches!(&out[..], [Action::AskToLeave { .. }]));
    core.step(Input::Gone { attempt: 1, how: "exit 0".into() }, Now::ZERO);
    core.step(Input::Closed, Now::ZERO);
    assert_eq!(core.phase(), Phase::Stopped);
    assert!(core.step(Input::Start { fresh: false }, Now::ZERO).is_empty());
}

#[test]
fn a_database_that_is_away_is_tried_again_and_a_lease_held_by_another_is_not() {
    let mut core = SessionCore::new();
    core.step(Input::Start { fresh: false }, Now::ZERO);
    core.step(Input::OpenFailed { reason: "no connection".into() }, Now::ZERO);
    assert_eq!(core.trouble(), Some("no connection"));
    assert_eq!(core.step(Input::Tick, limits::OPEN_RETRY), [Action::Open { fresh: false }]);
    core.step(
        Input::OpenRefused { reason: "workspace main is leased to agent b".into() },
        limits::OPEN_RETRY,
    );
    assert!(matches!(core.phase(), Phase::Failed { .. }));
}

#[derive(Debug, Clone)]
enum Event {
    Operator(Input),
    Store(bool),
    Launch(bool),
    Agent(u8),
    Die,
    Pass(u16),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        2 => any::<bool>().prop_map(|fresh| Event::Operator(Input::Start { fresh })),
        1 => Just(Event::Operator(Input::Stop)),
        1 => any::<bool>().prop_map(|fresh| Event::Operator(Input::Restart { fresh })),
        6 => prop::bool::weighted(0.8).prop_map(Event::Store),
        6 => prop::bool::weighted(0.8).prop_map(Event::Launch),
        4 => any::<u8>().prop_map(Event::Agent),
        4 => Just(Event::Die),
        4 => any::<u16>().prop_map(Event::Pass),
    ];
    proptest::collection::vec(event, 0..200)
}

/// The world around a session: one store, at most one process, and the promises that must hold at each step.
#[derive(Default)]
struct World {
    now: Now,
    store_asked: Option<bool>,
    lease_open: bool,
    launching: Option<Attempt>,
    alive: Option<Attempt>,
}

impl World {
    fn carry_out(&mut self, actions: Vec<Action>) -> Result<(), TestCaseError> {
        for action in actions {
            match action {
                Action::Open { .. } => {
                    prop_assert!(!self.lease_open, "opened while a lease is open");
                    prop_assert!(self.alive.is_none() && self.launching.is_none(), "opened beside a process");
                    self.store_asked = Some(true);
                }
                Action::Launch { attempt } => {
                    prop_assert!(self.lease_open, "launched without a lease");
                    prop_assert!(self.alive.is_none() && self.launching.is_none(), "two instances");
                    self.launching = Some(attempt);
                }
                Action::Close { .. } => {
                    prop_assert!(self.alive.is_none() && self.launching.is_none(), "closed beside a process");
                    self.store_asked = Some(false);
                }
                Action::AskToLeave { .. }
                | Action::Kill { .. }
                | Action::Remember { .. }
                | Action::Report { .. } => {}
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn an_agent_runs_at_most_once_and_always_comes_to_rest(events in events()) {
        let mut core = SessionCore::new();
        let mut world = World::default();
        let mut script = events;
        // Whatever happened, an operator's stop and a world that works again lead to rest.
        script.push(Event::Operator(Input::Stop));
        for _ in 0..8 {
            script.extend([Event::Store(true), Event::Launch(true), Event::Die, Event::Pass(u16::MAX)]);
        }
        for event in script {
            let input = match event {
                Event::Operator(input) => Some(input),
                Event::Store(works) => world.store_asked.take().map(|opening| match (opening, works) {
                    (true, true) => { world.lease_open = true; Input::Opened }
                    (true, false) => Input::OpenFailed { reason: "x".into() },
                    (false, true) => { world.lease_open = false; Input::Closed }
                    (false, false) => Input::CloseFailed { reason: "x".into() },
                }),
                Event::Launch(works) => world.launching.take().map(|attempt| if works {
                    world.alive = Some(attempt);
                    Input::Launched { attempt, pid: 1 }
                } else {
                    Input::LaunchFailed { attempt, reason: "x".into() }
                }),
                Event::Agent(what) => world.alive.map(|attempt| match what % 7 {
                    0 => Input::Ready { attempt },
                    1 => Input::Progress { attempt },
                    2 => Input::LinkDown { attempt, reason: "x".into(), for_good: true },
                    5 => Input::LinkDown { attempt, reason: "x".into(), for_good: false },
                    6 => Input::LinkUp { attempt },
                    3 => Input::Silent { attempt, silent: Duration::from_secs(1) },
                    _ => Input::Leaving { attempt, reason: "x".into() },
                }),
                Event::Die => world.alive.take().map(|attempt| Input::Gone { attempt, how: "x".into() }),
                Event::Pass(ms) => { world.now += Duration::from_millis(u64::from(ms)); Some(Input::Tick) }
            };
            if let Some(input) = input {
                let actions = core.step(input, world.now);
                world.carry_out(actions)?;
            }
        }
        prop_assert_eq!(core.phase(), Phase::Stopped);
        prop_assert!(!world.lease_open && world.alive.is_none());
    }
}
