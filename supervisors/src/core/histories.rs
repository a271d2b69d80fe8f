//! The rules over random histories: whatever happens in whatever order, what a supervisor must never do it never does.

use super::tests::{S, exits, rules};
use super::*;
use crate::spec::Strategy;
use proptest::prelude::*;
use proptest::strategy::Strategy as Generate;
use std::collections::BTreeSet;

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    /// The n-th living child ends.
    End(usize, usize),
    /// The n-th outstanding start or stop is carried out; starts fail if the flag says so.
    Resolve(usize, bool),
    Pass(u64),
    Add(usize),
    Remove(usize),
    Stop,
}

fn step() -> impl Generate<Value = Step> {
    prop_oneof![
        4 => (any::<usize>(), 0..6usize).prop_map(|(n, exit)| Step::End(n, exit)),
        8 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(n, fails)| Step::Resolve(n, fails)),
        3 => (1..4000u64).prop_map(Step::Pass),
        1 => (0..3usize).prop_map(Step::Add),
        1 => any::<usize>().prop_map(Step::Remove),
        1 => Just(Step::Stop),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outside {
    Starting,
    Up,
    Stopping,
}

/// Carries out actions when told to, and checks each against what a supervisor may do.
struct Checker {
    core: Core,
    rules: Rules,
    kinds: BTreeMap<Key, Restart>,
    outside: BTreeMap<Key, Outside>,
    ended_for_good: BTreeSet<Key>,
    now: Duration,
    wakes: BTreeMap<Key, Duration>,
    restarts: Vec<Duration>,
    ready: bool,
    done: bool,
}

impl Checker {
    fn tell(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.core.step(event, self.now, &mut actions);
        for action in actions {
            assert!(!self.done, "{action:?} after the end");
            self.check(action);
        }
    }

    fn check(&mut self, action: Action) {
        let ordered = !self.rules.dynamic && (!self.ready || self.rules.strategy != Strategy::OneForOne);
        match action {
            Action::Start(key) => {
                assert!(!self.outside.contains_key(&key), "two incarnations of {key}");
                if ordered {
                    let busy: Vec<_> = self.outside.iter().filter(|(_, o)| **o != Outside::Up).collect();
                    assert!(busy.is_empty(), "{key} starts beside {busy:?}");
                    assert!(
                        self.kinds.iter().all(|(k, kind)| *k >= key
                            || self.outside.contains_key(k)
                            || *kind != Restart::Permanent),
                        "{key} starts before an earlier permanent child is up"
                    );
                }
                self.outside.insert(key, Outside::Starting);
            }
            Action::Stop(key) => {
                let before = self.outside.insert(key, Outside::Stopping);
                assert!(
                    matches!(before, Some(Outside::Up | Outside::Starting)),
                    "{key} stopped while {before:?}"
                );
                if !self.rules.dynamic {
                    let stopping = self.outside.values().filter(|o| **o == Outside::Stopping).count();
                    assert_eq!(stopping, 1, "two children are being stopped at once");
                    if self.core.is_ending() {
                        assert_eq!(self.outside.keys().max(), Some(&key), "not in reverse order");
                    }
                }
            }
            Action::Wake { key, at } => {
                assert!(at > self.now);
                self.wakes.insert(key, at);
            }
            Action::Forget(key) => {
                assert!(!self.outside.contains_key(&key));
                self.ended_for_good.insert(key);
            }
            Action::Ready => {
                assert!(!self.ready);
                self.ready = true;
            }
            Action::Done(exit) => {
                assert!(self.outside.is_empty(), "{exit} with {:?} alive", self.outside);
                self.done = true;
            }
            Action::Report { key, exit, reaction } => match reaction {
                Reaction::Restarting { .. } => {
                    assert!(self.kinds.get(&key).is_some_and(|kind| *kind != Restart::Temporary));
                    self.restarts.push(self.now);
                    let within = self.rules.intensity.within;
                    let recent = self.restarts.iter().filter(|at| self.now - **at <= within).count();
                    assert!(
                        recent <= self.rules.intensity.restarts as usize,
                        "{recent} restarts, the last {exit}"
                    );
                }
                Reaction::Left => {
                    assert!(!self.kinds.get(&key).is_some_and(|kind| kind.restarts_after(&exit)));
                }
                Reaction::Stopped | Reaction::NotStarted | Reaction::Escalated => {}
            },
        }
    }

    fn apply(&mut self, step: Step) {
        let pick = |keys: Vec<Key>, n: usize| (!keys.is_empty()).then(|| keys[n % keys.len()]);
        match step {
            Step::End(n, exit) => {
                let up = self.outside.iter().filter(|(_, o)| **o == Outside::Up).map(|(k, _)| *k).collect();
                if let Some(key) = pick(up, n) {
                    self.outside.remove(&key);
                    self.tell(Event::Ended(key, exits()[exit].clone()));
                }
            }
            Step::Resolve(n, fails) => {
                let open = self.outside.iter().filter(|(_, o)| **o != Outside::Up).map(|(k, _)| *k).collect();
                let Some(key) = pick(open, n) else { return };
                match self.outside.remove(&key) {
                    Some(Outside::Starting) if fails => {
                        self.tell(Event::NotStarted(key, Exit::Failed("f".into())));
                    }
                    Some(Outside::Starting) => {
                        self.outside.insert(key, Outside::Up);
                        self.tell(Event::Started(key));
                    }
                    _ => self.tell(Event::Ended(key, Exit::Shutdown)),
                }
            }
            Step::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                let due: Vec<_> =
                    self.wakes.iter().filter(|(_, at)| **at <= self.now).map(|(k, _)| *k).collect();
                for key in due {
                    self.wakes.remove(&key);
                    self.tell(Event::Due(key));
                }
            }
            Step::Add(kind) if self.rules.dynamic => {
                let restart = kind_of(kind);
                if let Some(key) = self.core.add(ChildRules { restart, ..kid(kind) }) {
                    self.kinds.insert(key, restart);
                    self.tell(Event::Added(key));
                }
            }
            Step::Remove(n) if self.rules.dynamic => {
                let there: Vec<_> = self.kinds.keys().copied().collect();
                if let Some(key) = pick(there, n) {
                    self.tell(Event::Remove(key));
                }
            }
            Step::Add(_) | Step::Remove(_) => {}
            Step::Stop => self.tell(Event::Stop),
        }
    }

    /// Carries everything out and lets all time pass.
    fn quiesce(&mut self) {
        for _ in 0..1000 {
            let open = self.outside.values().any(|o| *o != Outside::Up);
            if open {
                self.apply(Step::Resolve(0, false));
            } else if !self.wakes.is_empty() && !self.done {
                self.apply(Step::Pass(60_000));
            } else {
                return;
            }
        }
        panic!("the supervisor never comes to rest");
    }
}

fn kind_of(n: usize) -> Restart {
    [Restart::Permanent, Restart::Transient, Restart::Temporary][n % 3]
}

fn kid(n: usize) -> ChildRules {
    let backoff =
        if n.is_multiple_of(2) { Backoff::NONE } else { Backoff::doubling(Duration::from_millis(100), S(2)) };
    ChildRules { restart: kind_of(n), backoff, significant: false }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn over_any_history_no_child_runs_twice_order_holds_and_everything_wanted_comes_up(
        strategy in prop::sample::select(vec![Strategy::OneForOne, Strategy::OneForAll, Strategy::RestForOne]),
        dynamic in any::<bool>(),
        restarts in 0..6u32,
        kinds in prop::collection::vec(0..6usize, 0..6),
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let strategy = if dynamic { Strategy::OneForOne } else { strategy };
        let rules = Rules { dynamic, max_children: 8, ..rules(strategy, restarts) };
        let mut core = Core::new(rules.clone());
        let mut all = BTreeMap::new();
        for n in &kinds {
            let key = core.add(kid(*n)).expect("fewer than the bound");
            all.insert(key, kind_of(*n));
        }
        let mut checker = Checker {
            core,
            rules,
            kinds: all,
            outside: BTreeMap::new(),
            ended_for_good: BTreeSet::new(),
            now: S(1),
            wakes: BTreeMap::new(),
            restarts: Vec::new(),
            ready: false,
            done: false,
        };
        checker.tell(Event::Begin);
        for step in steps {
            checker.apply(step);
        }
        checker.quiesce();
        if checker.core.is_ending() {
            prop_assert!(checker.done, "ending but not ended");
        } else {
            prop_assert!(checker.ready, "never ready");
            for (key, kind) in &checker.kinds {
                let up = checker.outside.contains_key(key);
                prop_assert!(
                    up || *kind != Restart::Permanent || checker.ended_for_good.contains(key),
                    "permanent child {key} is not up"
                );
            }
            checker.tell(Event::Stop);
            checker.quiesce();
            prop_assert!(checker.done);
        }
        prop_assert!(checker.outside.is_empty());
    }
}
