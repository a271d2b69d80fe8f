//! The lock manager against a second one that is written for plainness: no canonical sets, no noted blockers, paths as
//! lists of parts, and everything looked at again after every event.
#![allow(clippy::unwrap_used)] // In helpers of tests, too, a failed unwrap is a failed test.

mod common;

use choir_locks::{Action, LockEvent, LockManager, MAX_WAIT_MS, Origin, Request};
use choir_messages::id::InvocationId;
use choir_messages::mail::LockRefused;
use choir_messages::tool::{Lane, LockMode, LockSpec, ResourceKey};
use common::call;
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Entry {
    request: Request,
    asked_at: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Granted(InvocationId, Origin, u64),
    Late(InvocationId, Origin, u64),
    Void(InvocationId),
    Duplicate(InvocationId),
    Released(InvocationId),
}

/// What a key stands for.
#[derive(PartialEq, Eq)]
enum Thing {
    Workspace,
    Path(Vec<String>),
    Other(String),
}

fn thing(key: &ResourceKey) -> Thing {
    match key {
        ResourceKey::Workspace => Thing::Workspace,
        ResourceKey::File(path) => {
            let parts: Vec<String> =
                path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect();
            if parts.iter().any(|part| part == "..") {
                Thing::Path(Vec::new())
            } else if parts.first().is_some_and(|first| first == ".choirtmp") {
                Thing::Other("choirtmp".into())
            } else {
                Thing::Path(parts)
            }
        }
        other => Thing::Other(other.to_string()),
    }
}

fn overlap(one: &LockSpec, other: &LockSpec) -> bool {
    match (thing(&one.resource), thing(&other.resource)) {
        (Thing::Workspace, Thing::Workspace | Thing::Path(_)) | (Thing::Path(_), Thing::Workspace) => true,
        (Thing::Path(one), Thing::Path(other)) => one.iter().zip(&other).all(|(a, b)| a == b),
        (Thing::Other(one), Thing::Other(other)) => one == other,
        _ => false,
    }
}

#[derive(Default)]
struct Naive {
    held: Vec<Entry>,
    waiting: Vec<Entry>,
}

impl Naive {
    fn dirty(&self) -> bool {
        self.held.iter().any(|entry| {
            entry.request.owner != Lane::Edge
                && entry
                    .request
                    .locks
                    .iter()
                    .any(|lock| lock.mode == LockMode::X && lock.resource == ResourceKey::Workspace)
        })
    }

    fn free(&self, request: &Request, ahead: usize) -> bool {
        let dirty = request.owner == Lane::Edge && self.dirty();
        self.held.iter().chain(&self.waiting[..ahead]).all(|other| {
            request.locks.iter().all(|mine| {
                let file_read = mine.mode == LockMode::S && matches!(thing(&mine.resource), Thing::Path(_));
                (dirty && file_read)
                    || other.request.locks.iter().all(|theirs| {
                        mine.mode == LockMode::S && theirs.mode == LockMode::S || !overlap(mine, theirs)
                    })
            })
        })
    }

    fn settle(&mut self, now: u64, verdicts: &mut Vec<Verdict>) {
        while let Some(place) =
            (0..self.waiting.len()).find(|place| self.free(&self.waiting[*place].request, *place))
        {
            let entry = self.waiting.remove(place);
            let waited = now - entry.asked_at;
            verdicts.push(Verdict::Granted(entry.request.invocation, Origin::Queue, waited));
            self.held.push(entry);
        }
    }

    fn step(&mut self, event: LockEvent, now: u64) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        let (late, rest): (Vec<Entry>, Vec<Entry>) = self
            .waiting
            .drain(..)
            .partition(|entry| entry.asked_at + entry.request.wait_ms.min(MAX_WAIT_MS) <= now);
        self.waiting = rest;
        for entry in late {
            verdicts.push(Verdict::Late(entry.request.invocation, Origin::Queue, now - entry.asked_at));
        }
        self.settle(now, &mut verdicts);
        match event {
            LockEvent::Acquire(request) => {
                let call = request.invocation;
                if self.held.iter().chain(&self.waiting).any(|entry| entry.request.invocation == call) {
                    verdicts.push(Verdict::Duplicate(call));
                } else if self.free(&request, self.waiting.len()) {
                    verdicts.push(Verdict::Granted(call, Origin::Door, 0));
                    if !request.locks.is_empty() {
                        self.held.push(Entry { request, asked_at: now });
                    }
                } else if request.wait_ms == 0 {
                    verdicts.push(Verdict::Late(call, Origin::Door, 0));
                } else {
                    self.waiting.push(Entry { request, asked_at: now });
                }
            }
            LockEvent::Release { invocation } => {
                let held = self.held.len();
                self.held.retain(|entry| entry.request.invocation != invocation);
                if self.held.len() < held {
                    verdicts.push(Verdict::Released(invocation));
                }
                let waiting = self.waiting.len();
                self.waiting.retain(|entry| entry.request.invocation != invocation);
                if self.waiting.len() < waiting {
                    verdicts.push(Verdict::Void(invocation));
                }
                self.settle(now, &mut verdicts);
            }
            LockEvent::NewEpoch => {
                verdicts.extend(self.waiting.drain(..).map(|entry| Verdict::Void(entry.request.invocation)));
                verdicts.extend(self.held.drain(..).map(|entry| Verdict::Released(entry.request.invocation)));
            }
            LockEvent::Tick => {}
        }
        verdicts
    }
}

fn verdict(action: Action) -> Verdict {
    match action {
        Action::Grant { invocation, from, waited_ms } => Verdict::Granted(invocation, from, waited_ms),
        Action::Released { invocation, .. } => Verdict::Released(invocation),
        Action::Refuse { invocation, from, why } => match why {
            LockRefused::Deadline { waited_ms, .. } => Verdict::Late(invocation, from, waited_ms),
            LockRefused::Void => Verdict::Void(invocation),
            LockRefused::Duplicate => Verdict::Duplicate(invocation),
            other => panic!("not expected here: {other}"),
        },
    }
}

fn any_key() -> impl Strategy<Value = ResourceKey> {
    let path = prop::sample::select(vec![
        "a",
        "b",
        "a/b",
        "a/c",
        "a/b/c",
        "./a",
        "a/",
        "",
        ".",
        "../x",
        ".choirtmp",
        ".choirtmp/send",
        "ab",
    ]);
    prop_oneof![
        2 => Just(ResourceKey::Workspace),
        8 => path.prop_map(|path| ResourceKey::File(path.to_owned())),
        1 => Just(ResourceKey::ChoirTmp),
        1 => Just(ResourceKey::BrowserTab),
        1 => Just(ResourceKey::Ext("a".into())),
    ]
}

fn any_lock() -> impl Strategy<Value = LockSpec> {
    (any_key(), any::<bool>())
        .prop_map(|(resource, x)| LockSpec { resource, mode: if x { LockMode::X } else { LockMode::S } })
}

fn any_event() -> impl Strategy<Value = LockEvent> {
    let owner = prop::sample::select(vec!["edge", "edge", "core:a", "core:b", "core:c"]);
    let acquire = (owner, 0..12u128, prop::collection::vec(any_lock(), 0..4), 0..40u64).prop_map(
        |(owner, number, locks, wait_ms)| {
            LockEvent::Acquire(Request {
                owner: common::lane(owner),
                invocation: call(number),
                locks,
                wait_ms,
            })
        },
    );
    prop_oneof![
        12 => acquire,
        8 => (0..12u128).prop_map(|number| LockEvent::Release { invocation: call(number) }),
        2 => Just(LockEvent::Tick),
        1 => Just(LockEvent::NewEpoch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn it_decides_as_the_naive_one_does(
        events in prop::collection::vec((any_event(), 0..6u64), 1..80),
    ) {
        let (mut manager, mut naive) = (LockManager::new(), Naive::default());
        let mut now = 0;
        for (event, later) in events {
            now += later;
            let expected = naive.step(event.clone(), now);
            let actions = manager.step(event, now);
            let holders: Vec<String> =
                manager.table(now).held.iter().map(|held| held.owner.to_string()).collect();
            for action in &actions {
                if let Action::Refuse { why: LockRefused::Deadline { blocked_by, .. }, .. } = action {
                    prop_assert!(blocked_by != "another call", "a refusal names a holder");
                    // Only a release in the same step can have taken the holder away.
                    prop_assert!(actions.len() > 1 || holders.contains(blocked_by));
                }
            }
            prop_assert_eq!(actions.into_iter().map(verdict).collect::<Vec<_>>(), expected);
            let table = manager.table(now);
            let calls = |entries: &[Entry]| -> Vec<InvocationId> {
                entries.iter().map(|entry| entry.request.invocation).collect()
            };
            prop_assert_eq!(
                table.held.iter().map(|held| held.invocation).collect::<Vec<_>>(),
                calls(&naive.held)
            );
            prop_assert_eq!(
                table.waiting.iter().map(|held| held.invocation).collect::<Vec<_>>(),
                calls(&naive.waiting)
            );
        }
    }

    #[test]
    fn when_everybody_lets_go_everybody_has_had_a_turn(
        requests in prop::collection::vec((any_event(), any::<prop::sample::Index>()), 1..40),
    ) {
        let mut manager = LockManager::new();
        let mut outstanding = Vec::new();
        let mut asked = 0u128;
        let mut granted = 0;
        for (event, _) in &requests {
            let LockEvent::Acquire(mut request) = event.clone() else { continue };
            asked += 1;
            request.invocation = call(100 + asked);
            request.wait_ms = MAX_WAIT_MS;
            granted += common::granted(&manager.step(LockEvent::Acquire(request), 0)).len();
        }
        for (_, which) in requests.iter().cycle() {
            outstanding.clear();
            outstanding.extend(manager.table(0).held.iter().map(|held| held.invocation));
            if outstanding.is_empty() {
                break;
            }
            let invocation = *which.get(&outstanding);
            granted += common::granted(&manager.step(LockEvent::Release { invocation }, 0)).len();
        }
        prop_assert_eq!(granted as u128, asked);
        prop_assert_eq!(manager.len(), (0, 0));
    }
}
