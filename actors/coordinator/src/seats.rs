//! Which workspaces have a live actor, and where it is reached. The dispatcher starts and ends them; the router sends
//! straight to those there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use choir_supervisors::Address;
use tokio::time::Instant;

use crate::gauge::{Gauge, Held};
use crate::workspace::WorkspaceMsg;

/// The live workspace actors.
#[derive(Clone, Default)]
pub(crate) struct Seats(Arc<Mutex<HashMap<String, Seat>>>);

/// One live workspace actor.
struct Seat {
    number: u64,
    child: String,
    address: Address<WorkspaceMsg>,
    /// What was sent to it and is not answered.
    under_way: Gauge,
    used: Instant,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Seat>> {
        // No critical section here calls out.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets them all.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The address of a workspace's actor, if it has one. The actor is not ended while what is returned with it lives.
    pub(crate) fn of(&self, workspace: &str) -> Option<(Address<WorkspaceMsg>, Held)> {
        let mut seats = self.lock();
        let seat = seats.get_mut(workspace)?;
        if seat.address.is_closed() {
            seats.remove(workspace);
            return None;
        }
        seat.used = Instant::now();
        Some((seat.address.clone(), seat.under_way.hold()))
    }

    /// Seats an actor.
    pub(crate) fn take(
        &self,
        workspace: String,
        number: u64,
        child: String,
        address: Address<WorkspaceMsg>,
    ) -> Held {
        let under_way = Gauge::new();
        let held = under_way.hold();
        self.lock().insert(workspace, Seat { number, child, address, under_way, used: Instant::now() });
        held
    }

    /// This actor did not come up.
    pub(crate) fn vacate(&self, workspace: &str, number: u64) {
        let mut seats = self.lock();
        if seats.get(workspace).is_some_and(|seat| seat.number == number) {
            seats.remove(workspace);
        }
    }

    /// Takes the seat of the actor that has had nothing to do for longest, and tells which it was. None if all are busy.
    pub(crate) fn free_one(&self) -> Option<String> {
        let mut seats = self.lock();
        let idle = seats.iter().filter(|(_, seat)| seat.under_way.count() == 0);
        let oldest = idle.min_by_key(|(_, seat)| seat.used).map(|(name, _)| name.clone())?;
        seats.remove(&oldest).map(|seat| seat.child)
    }

    /// Takes the seats of all actors that have had nothing to do for so long, and tells which they were.
    pub(crate) fn free_idle(&self, idle_after: Duration) -> Vec<String> {
        let idle = |seat: &Seat| seat.under_way.count() == 0 && seat.used.elapsed() >= idle_after;
        self.lock().extract_if(|_, seat| idle(seat)).map(|(_, seat)| seat.child).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_supervisors::mailbox;

    #[tokio::test(start_paused = true)]
    async fn an_actor_with_work_keeps_its_seat_and_the_longest_idle_goes_first() {
        let seats = Seats::default();
        let mut slots = Vec::new();
        for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
            let (address, slot) = mailbox(name, crate::workspace::MAILBOX);
            slots.push(slot);
            drop(seats.take(name.to_owned(), number as u64, format!("{name}.child"), address));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let held = seats.of("a").unwrap();
        assert_eq!(seats.free_one().unwrap(), "b.child");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(seats.free_idle(Duration::from_secs(60)), ["c.child"]);
        assert!(seats.free_one().is_none() && seats.len() == 1);
        drop(held);
        assert_eq!(seats.free_one().unwrap(), "a.child");
    }

    #[tokio::test]
    async fn nothing_is_sent_to_an_actor_that_is_gone() {
        let seats = Seats::default();
        let (address, slot) = mailbox("a", crate::workspace::MAILBOX);
        drop(seats.take("a".to_owned(), 7, "a.child".to_owned(), address.clone()));
        seats.vacate("a", 6);
        assert!(seats.of("a").is_some(), "another's");
        drop(slot);
        assert!(seats.of("a").is_none() && seats.len() == 0);
        drop(seats.take("a".to_owned(), 8, "a.child".to_owned(), address));
        seats.vacate("a", 8);
        assert_eq!(seats.len(), 0);
    }
}
