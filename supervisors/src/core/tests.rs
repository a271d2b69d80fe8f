//! The rules against OTP's, case by case.

use super::*;
use std::collections::BTreeSet;

pub(super) const S: fn(u64) -> Duration = Duration::from_secs;

pub(super) fn rules(strategy: Strategy, restarts: u32) -> Rules {
    Rules {
        strategy,
        intensity: Intensity::new(restarts, S(10)),
        auto_shutdown: AutoShutdown::Never,
        dynamic: false,
        max_children: 64,
    }
}

fn child(restart: Restart) -> ChildRules {
    ChildRules { restart, backoff: Backoff::NONE, significant: false }
}

/// A world in which every start and stop is carried out at once, and what was done is written down.
struct World {
    core: Core,
    now: Duration,
    alive: BTreeSet<Key>,
    log: Vec<String>,
    ready: bool,
    done: Option<Exit>,
    wakes: BTreeMap<Key, Duration>,
    forgotten: BTreeSet<Key>,
    /// Children whose next start fails.
    sick: BTreeSet<Key>,
    last_reaction: Option<Reaction>,
}

impl World {
    fn new(rules: Rules, children: impl IntoIterator<Item = ChildRules>) -> Self {
        let mut core = Core::new(rules);
        for rules in children {
            core.add(rules).unwrap();
        }
        Self {
            core,
            now: S(100),
            alive: BTreeSet::new(),
            log: Vec::new(),
            ready: false,
            done: None,
            wakes: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            sick: BTreeSet::new(),
            last_reaction: None,
        }
    }

    fn up(strategy: Strategy, children: impl IntoIterator<Item = Restart>) -> Self {
        let mut world = Self::new(rules(strategy, 100), children.into_iter().map(child));
        world.tell(Event::Begin);
        assert!(world.ready);
        world.log.clear();
        world
    }

    fn tell(&mut self, event: Event) {
        let mut todo = VecDeque::from([event]);
        while let Some(event) = todo.pop_front() {
            let mut actions = Vec::new();
            self.core.step(event, self.now, &mut actions);
            for action in actions {
                match action {
                    Action::Start(key) if self.sick.remove(&key) => {
                        self.log.push(format!("fail {key}"));
                        todo.push_back(Event::NotStarted(key, Exit::Failed("sick".into())));
                    }
                    Action::Start(key) => {
                        assert!(self.alive.insert(key), "{key} was started while alive");
                        self.log.push(format!("start {key}"));
                        todo.push_back(Event::Started(key));
                    }
                    Action::Stop(key) => {
                        assert!(self.alive.remove(&key), "{key} was stopped while not alive");
                        self.log.push(format!("stop {key}"));
                        todo.push_back(Event::Ended(key, Exit::Shutdown));
                    }
                    Action::Wake { key, at } => {
                        assert!(at > self.now);
                        self.wakes.insert(key, at);
                    }
                    Action::Forget(key) => {
                        self.forgotten.insert(key);
                    }
                    Action::Ready => self.ready = true,
                    Action::Done(exit) => {
                        assert!(self.alive.is_empty(), "ended with {:?} alive", self.alive);
                        assert!(self.done.replace(exit).is_none(), "ended twice");
                    }
                    Action::Report { reaction, .. } => self.last_reaction = Some(reaction),
                }
            }
        }
    }

    fn end(&mut self, key: Key, exit: Exit) {
        assert!(self.alive.remove(&key));
        self.tell(Event::Ended(key, exit));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let due: Vec<_> = self.wakes.iter().filter(|(_, at)| **at <= self.now).map(|(key, _)| *key).collect();
        for key in due {
            self.wakes.remove(&key);
            self.tell(Event::Due(key));
        }
    }

    fn log(&mut self) -> String {
        std::mem::take(&mut self.log).join(", ")
    }
}

pub(super) fn exits() -> [Exit; 6] {
    [
        Exit::Normal,
        Exit::Shutdown,
        Exit::Killed,
        Exit::Panicked { message: "p".into(), location: None },
        Exit::Failed("f".into()),
        Exit::Stuck { message: "m".into(), for_ms: 1 },
    ]
}

#[test]
fn every_exit_under_every_restart_and_strategy_does_what_otp_does() {
    for strategy in [Strategy::OneForOne, Strategy::OneForAll, Strategy::RestForOne] {
        for restart in [Restart::Permanent, Restart::Transient, Restart::Temporary] {
            for exit in exits() {
                let mut world = World::up(strategy, [Restart::Permanent, restart, Restart::Permanent]);
                world.end(1, exit.clone());
                let restarted = match (restart, &exit) {
                    (Restart::Permanent, _) => true,
                    (Restart::Transient, Exit::Normal | Exit::Shutdown) => false,
                    (Restart::Transient, _) => true,
                    (Restart::Temporary, _) => false,
                };
                let expected = match (restarted, strategy) {
                    (false, _) => "",
                    (true, Strategy::OneForOne) => "start 1",
                    (true, Strategy::OneForAll) => "stop 2, stop 0, start 0, start 1, start 2",
                    (true, Strategy::RestForOne) => "stop 2, start 1, start 2",
                };
                assert_eq!(world.log(), expected, "{strategy:?} {restart:?} {exit}");
                assert_eq!(world.forgotten.contains(&1), !restarted, "{strategy:?} {restart:?} {exit}");
            }
        }
    }
}

#[test]
fn children_start_left_to_right_and_stop_right_to_left() {
    let mut world = World::new(rules(Strategy::OneForOne, 1), (0..4).map(|_| child(Restart::Permanent)));
    world.tell(Event::Begin);
    assert_eq!(world.log(), "start 0, start 1, start 2, start 3");
    world.tell(Event::Stop);
    assert_eq!(world.log(), "stop 3, stop 2, stop 1, stop 0");
    assert_eq!(world.done, Some(Exit::Shutdown));
}

#[test]
fn a_failing_first_start_stops_the_earlier_children_in_reverse_and_reports() {
    let mut world = World::new(rules(Strategy::OneForOne, 5), (0..4).map(|_| child(Restart::Permanent)));
    world.sick.insert(2);
    world.tell(Event::Begin);
    assert_eq!(world.log(), "start 0, start 1, fail 2, stop 1, stop 0");
    assert_eq!(world.done, Some(Exit::Failed("a child did not start: it failed: sick".into())));
    assert!(!world.ready);
}

#[test]
fn temporary_siblings_are_taken_along_but_not_restarted() {
    let mut world =
        World::up(Strategy::OneForAll, [Restart::Temporary, Restart::Permanent, Restart::Temporary]);
    world.end(1, Exit::Killed);
    assert_eq!(world.log(), "stop 2, stop 0, start 1");
    assert_eq!(world.forgotten, BTreeSet::from([0, 2]));
}

#[test]
fn a_transient_that_had_ended_normally_starts_again_with_its_group_as_in_otp() {
    let mut world = World::up(Strategy::RestForOne, [Restart::Permanent, Restart::Transient]);
    world.end(1, Exit::Normal);
    assert_eq!(world.log(), "");
    world.end(0, Exit::Failed("x".into()));
    assert_eq!(world.log(), "start 0, start 1");
}

#[test]
fn a_sibling_that_fails_while_the_group_is_stopping_counts_no_restart() {
    let mut core = Core::new(rules(Strategy::OneForAll, 1));
    let keys: Vec<_> = (0..3).map(|_| core.add(child(Restart::Permanent)).unwrap()).collect();
    let mut out = Vec::new();
    core.step(Event::Begin, S(0), &mut out);
    for key in &keys {
        core.step(Event::Started(*key), S(0), &mut out);
    }
    out.clear();
    core.step(Event::Ended(0, Exit::Killed), S(1), &mut out);
    assert_eq!(out.last(), Some(&Action::Stop(2)));
    out.clear();
    // 1 is doomed but not yet told; its own crash now is part of the same restart.
    core.step(Event::Ended(1, Exit::Killed), S(1), &mut out);
    assert_eq!(out, [Action::Report { key: 1, exit: Exit::Killed, reaction: Reaction::Stopped }]);
    out.clear();
    core.step(Event::Ended(2, Exit::Shutdown), S(1), &mut out);
    assert_eq!(out.last(), Some(&Action::Start(0)));
    assert_eq!(core.recent_restarts(S(1)), 1);
}

#[test]
fn one_restart_more_than_the_intensity_within_the_period_escalates() {
    let mut world = World::new(rules(Strategy::OneForOne, 3), (0..2).map(|_| child(Restart::Permanent)));
    world.tell(Event::Begin);
    for _ in 0..3 {
        world.pass(S(3));
        world.end(1, Exit::Killed);
        assert_eq!(world.done, None);
    }
    world.pass(S(3));
    world.log.clear();
    world.end(1, Exit::Killed);
    assert_eq!(world.log(), "stop 0");
    assert_eq!(world.last_reaction, Some(Reaction::Stopped));
    let Some(Exit::Failed(reason)) = &world.done else { panic!("{:?}", world.done) };
    assert_eq!(reason, "more than 3 restarts within 10s; the last child was killed");
}

#[test]
fn restarts_further_apart_than_the_period_go_on_for_ever() {
    let mut world = World::new(rules(Strategy::OneForAll, 3), (0..2).map(|_| child(Restart::Permanent)));
    world.tell(Event::Begin);
    for _ in 0..50 {
        world.pass(Duration::from_millis(3334));
        world.end(0, Exit::Killed);
    }
    assert_eq!(world.done, None);
    assert_eq!(world.core.recent_restarts(world.now), 3);
}

#[test]
fn an_intensity_of_zero_escalates_at_the_first_failure() {
    let mut world = World::new(rules(Strategy::OneForOne, 0), [child(Restart::Transient)]);
    world.tell(Event::Begin);
    world.end(0, Exit::Panicked { message: "x".into(), location: None });
    assert!(matches!(world.done, Some(Exit::Failed(_))));
}

#[test]
fn a_failing_restart_counts_and_is_tried_again() {
    let mut world = World::up(Strategy::OneForOne, [Restart::Transient]);
    world.sick.insert(0);
    world.end(0, Exit::Killed);
    assert_eq!(world.log(), "fail 0, start 0");
    assert_eq!(world.core.recent_restarts(world.now), 2);
}

#[test]
fn back_off_grows_to_its_bound_and_is_forgotten_after_a_stable_run() {
    let backoff = Backoff { immediate: 1, initial: S(1), max: S(3), factor: 2, stable_after: S(60) };
    let mut world = World::new(
        rules(Strategy::OneForOne, 1000),
        [ChildRules { backoff, ..child(Restart::Permanent) }, child(Restart::Permanent)],
    );
    world.tell(Event::Begin);
    for expected in [0, 1, 2, 3, 3] {
        world.end(0, Exit::Killed);
        assert_eq!(world.last_reaction, Some(Reaction::Restarting { after: S(expected) }));
        assert_eq!(world.alive.contains(&0), expected == 0);
        world.pass(S(expected));
        assert!(world.alive.contains(&0), "after {expected} s");
    }
    world.pass(S(60));
    world.end(0, Exit::Killed);
    assert_eq!(world.last_reaction, Some(Reaction::Restarting { after: S(0) }));
}

#[test]
fn a_group_waits_for_the_back_off_of_the_child_that_failed() {
    let backoff = Backoff::doubling(S(1), S(8));
    let mut world = World::new(
        rules(Strategy::RestForOne, 1000),
        [
            child(Restart::Permanent),
            ChildRules { backoff, ..child(Restart::Permanent) },
            child(Restart::Permanent),
        ],
    );
    world.tell(Event::Begin);
    world.log.clear();
    world.end(1, Exit::Killed);
    assert_eq!(world.log(), "stop 2");
    world.pass(S(1));
    assert_eq!(world.log(), "start 1, start 2");
}

#[test]
fn a_shutdown_during_back_off_ends_without_starting_anything() {
    let backoff = Backoff::doubling(S(1), S(8));
    let mut world =
        World::new(rules(Strategy::OneForOne, 1000), [ChildRules { backoff, ..child(Restart::Permanent) }]);
    world.tell(Event::Begin);
    world.end(0, Exit::Killed);
    world.log.clear();
    world.tell(Event::Stop);
    world.pass(S(10));
    assert_eq!(world.log(), "");
    assert_eq!(world.done, Some(Exit::Shutdown));
}

#[test]
fn the_end_of_a_significant_child_shuts_down_as_asked() {
    for (auto_shutdown, after_one, after_two) in [
        (AutoShutdown::Never, false, false),
        (AutoShutdown::AnySignificant, true, true),
        (AutoShutdown::AllSignificant, false, true),
    ] {
        let significant = ChildRules { significant: true, ..child(Restart::Transient) };
        let mut world = World::new(
            Rules { auto_shutdown, ..rules(Strategy::OneForOne, 3) },
            [significant.clone(), significant, child(Restart::Permanent)],
        );
        world.tell(Event::Begin);
        world.end(0, Exit::Normal);
        assert_eq!(world.done.is_some(), after_one, "{auto_shutdown:?}");
        if !after_one {
            world.end(1, Exit::Normal);
            assert_eq!(world.done.is_some(), after_two, "{auto_shutdown:?}");
        }
        if after_two {
            assert_eq!(world.done, Some(Exit::Shutdown));
        }
    }
}

#[test]
fn dynamic_children_are_independent_bounded_and_forgotten_when_they_end() {
    let rules = Rules { dynamic: true, max_children: 2, ..rules(Strategy::OneForOne, 9) };
    let mut world = World::new(rules, []);
    world.tell(Event::Begin);
    assert!(world.ready);
    let a = world.core.add(child(Restart::Temporary)).unwrap();
    world.tell(Event::Added(a));
    let b = world.core.add(child(Restart::Permanent)).unwrap();
    world.tell(Event::Added(b));
    assert_eq!(world.core.add(child(Restart::Temporary)), None);
    world.end(a, Exit::Killed);
    assert!(world.forgotten.contains(&a));
    let c = world.core.add(child(Restart::Temporary)).expect("there is room again");
    world.sick.insert(c);
    world.tell(Event::Added(c));
    assert_eq!(world.last_reaction, Some(Reaction::NotStarted));
    assert!(world.forgotten.contains(&c), "a first start is not retried");
    world.end(b, Exit::Killed);
    world.tell(Event::Remove(b));
    assert_eq!(world.log(), "start 0, start 1, fail 2, start 1, stop 1");
    world.tell(Event::Stop);
    assert_eq!(world.done, Some(Exit::Shutdown));
}

#[test]
fn a_child_that_cannot_be_stopped_fails_its_supervisor_and_is_never_replaced() {
    let mut world = World::up(Strategy::OneForAll, [Restart::Permanent, Restart::Permanent]);
    world.alive.remove(&1);
    world.tell(Event::Immovable(1));
    assert_eq!(world.log(), "stop 0");
    assert!(matches!(world.done, Some(Exit::Failed(_))));
}
