//! Words for writing locks down in tests.
#![allow(dead_code, unreachable_pub, missing_docs)]

use choir_locks::{Action, LockEvent, LockManager, Request};
use choir_messages::id::InvocationId;
use choir_messages::tool::{Lane, LockMode, LockSpec};

/// `file:a:X` and the like.
pub fn lock(text: &str) -> LockSpec {
    let (key, mode) = text.rsplit_once(':').unwrap();
    let mode = match mode {
        "S" => LockMode::S,
        "X" => LockMode::X,
        other => panic!("no lock mode: {other}"),
    };
    LockSpec { resource: key.parse().unwrap(), mode }
}

pub fn locks(texts: &[&str]) -> Vec<LockSpec> {
    texts.iter().map(|text| lock(text)).collect()
}

pub const fn call(number: u128) -> InvocationId {
    InvocationId::from_bits(number)
}

pub fn lane(text: &str) -> Lane {
    text.parse().unwrap()
}

pub fn acquire(number: u128, owner: &str, set: &[&str], wait_ms: u64) -> LockEvent {
    LockEvent::Acquire(Request { owner: lane(owner), invocation: call(number), locks: locks(set), wait_ms })
}

pub fn release(number: u128) -> LockEvent {
    LockEvent::Release { invocation: call(number) }
}

/// A table, its clock, and short verdicts.
#[derive(Default)]
pub struct Desk {
    pub table: LockManager,
    pub now_ms: u64,
}

impl Desk {
    pub fn step(&mut self, event: LockEvent) -> Vec<Action> {
        self.table.step(event, self.now_ms)
    }

    /// Asks, with a minute to wait, and says whether it was granted at once.
    pub fn ask(&mut self, number: u128, owner: &str, set: &[&str]) -> bool {
        let actions = self.step(acquire(number, owner, set, 60_000));
        match actions.as_slice() {
            [] => false,
            [Action::Grant { invocation, .. }] if *invocation == call(number) => true,
            other => panic!("neither granted nor waiting: {other:?}"),
        }
    }

    /// Releases, and says who was granted by it, in order.
    pub fn done(&mut self, number: u128) -> Vec<u128> {
        let actions = self.step(release(number));
        granted(&actions)
    }

    pub fn held(&self) -> Vec<u128> {
        self.table.table(self.now_ms).held.iter().map(|held| held.invocation.bits()).collect()
    }

    pub fn waiting(&self) -> Vec<u128> {
        self.table.table(self.now_ms).waiting.iter().map(|waiter| waiter.invocation.bits()).collect()
    }
}

pub fn granted(actions: &[Action]) -> Vec<u128> {
    let granted = actions.iter().filter_map(|action| match action {
        Action::Grant { invocation, .. } => Some(invocation.bits()),
        _ => None,
    });
    granted.collect()
}
