//! When to look at what is due, and what of it to act on: plain rules. What stays due although it was acted on (its
//! workspace was busy, or cannot be opened) is tried again less and less often, and holds up nothing else.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use choir_messages::chap::ObjectKey;
use choir_messages::time::Timestamp;
use choir_persistence::chap::Due;

use crate::limits::{DUE_PAGE, DUE_PAUSE, LAPSE_RETRY, LAPSE_RETRY_MAX, LAPSE_STUCK, TIMERS_EVERY};

/// What was acted on and may still be due.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    tried: HashMap<(String, ObjectKey, Timestamp), Tried>,
}

#[derive(Debug, Clone, Copy)]
struct Tried {
    times: u32,
    again: Timestamp,
}

fn after(now: Timestamp, pause: Duration) -> Timestamp {
    Timestamp::from_millis(now.millis().saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)))
}

impl Alarm {
    /// Workspaces not worth looking at now: their deadlines were acted on again and again to no avail, and however many
    /// they are they must not crowd out others.
    pub(crate) fn except(&self, now: Timestamp) -> Vec<String> {
        let stuck = self.tried.iter().filter(|(_, tried)| tried.times >= LAPSE_STUCK && tried.again > now);
        stuck
            .map(|((workspace, ..), _)| workspace.as_str())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    /// Of all that is due now in other workspaces than `except`, what to act on.
    pub(crate) fn fire(&mut self, due: Vec<Due>, except: &[String], now: Timestamp) -> Vec<Due> {
        let mut still: HashMap<_, _> = HashMap::with_capacity(due.len());
        self.tried.retain(|name, tried| {
            let unseen = except.contains(&name.0);
            if unseen {
                still.insert(name.clone(), *tried);
            }
            !unseen
        });
        let mut fired = Vec::new();
        for item in due {
            let name = (item.workspace.clone(), item.key.clone(), item.at);
            let tried = match self.tried.get(&name) {
                Some(tried) if tried.again > now => *tried,
                earlier => {
                    let times = earlier.map_or(0, |tried| tried.times);
                    let pause = LAPSE_RETRY.saturating_mul(2u32.saturating_pow(times)).min(LAPSE_RETRY_MAX);
                    fired.push(item);
                    Tried { times: times.saturating_add(1), again: after(now, pause) }
                }
            };
            still.insert(name, tried);
        }
        self.tried = still;
        fired
    }

    /// When to look again after a look that found `found` objects, given what is due next after now.
    pub(crate) fn next(&self, found: usize, next_due: Option<Timestamp>, now: Timestamp) -> Timestamp {
        if found >= DUE_PAGE {
            // There may be more that is due than was looked at.
            return after(now, DUE_PAUSE);
        }
        let retry = self.tried.values().map(|tried| tried.again).min();
        [next_due, retry, Some(after(now, TIMERS_EVERY))].into_iter().flatten().min().unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::chap::ObjectKind;

    fn due(id: &str, at: u64) -> Due {
        due_in("w", id, at)
    }

    fn due_in(workspace: &str, id: &str, at: u64) -> Due {
        let key = ObjectKey { kind: ObjectKind::Whisper, id: id.to_owned() };
        Due { workspace: workspace.to_owned(), key, at: Timestamp::from_millis(at) }
    }

    #[test]
    fn what_stays_due_is_tried_again_less_often_and_holds_up_nothing_else() {
        let mut alarm = Alarm::default();
        let mut now = Timestamp::from_millis(10_000);
        let mut tries = Vec::new();
        // It never goes away; a new one is due at each look, and done at once.
        for n in 0..200u64 {
            let except = alarm.except(now);
            let mut found = vec![due_in("ok", &format!("new{n}"), now.millis())];
            if !except.contains(&"w".to_owned()) {
                found.push(due("stuck", 1));
            }
            let fired = alarm.fire(found, &except, now);
            assert!(fired.iter().any(|d| d.key.id == format!("new{n}")), "the new one fires at once");
            if fired.iter().any(|d| d.key.id == "stuck") {
                tries.push(now.millis());
            }
            let next = alarm.next(1, None, now);
            assert!(next > now, "it never spins");
            now = next;
        }
        let gaps: Vec<u64> = tries.windows(2).map(|w| w[1] - w[0]).collect();
        assert!(gaps.windows(2).all(|w| w[0] <= w[1]), "{gaps:?}");
        assert_eq!(gaps.last(), Some(&60_000));
    }

    #[test]
    fn the_next_look_is_at_the_next_deadline_and_never_later_than_the_bound() {
        let alarm = Alarm::default();
        let now = Timestamp::from_millis(5);
        assert_eq!(alarm.next(0, Some(Timestamp::from_millis(70)), now), Timestamp::from_millis(70));
        assert_eq!(alarm.next(0, None, now), after(now, TIMERS_EVERY));
        assert_eq!(alarm.next(0, Some(Timestamp::from_millis(u64::MAX)), now), after(now, TIMERS_EVERY));
    }

    #[test]
    fn a_deadline_that_was_moved_fires_anew_at_once() {
        let mut alarm = Alarm::default();
        let now = Timestamp::from_millis(100);
        assert_eq!(alarm.fire(vec![due("a", 1)], &[], now).len(), 1);
        assert_eq!(alarm.fire(vec![due("a", 1)], &[], now).len(), 0);
        assert_eq!(alarm.fire(vec![due("a", 2)], &[], now).len(), 1);
    }

    #[test]
    fn what_is_done_is_forgotten() {
        let mut alarm = Alarm::default();
        alarm.fire(vec![due("a", 1), due("b", 1)], &[], Timestamp::from_millis(5));
        alarm.fire(vec![due("b", 1)], &[], Timestamp::from_millis(6));
        assert_eq!(alarm.tried.len(), 1);
    }

    #[test]
    fn a_workspace_full_of_deadlines_that_cannot_be_met_does_not_crowd_out_others() {
        let mut alarm = Alarm::default();
        let mut now = Timestamp::from_millis(10_000);
        let (mut looks, mut crowded_out) = (0u64, 0);
        while now < Timestamp::from_millis(600_000) {
            looks += 1;
            let except = alarm.except(now);
            let stuck = (0..DUE_PAGE).map(|n| due(&n.to_string(), 1));
            let fresh = due_in("ok", &looks.to_string(), 2);
            let all = stuck.chain([fresh]).filter(|due| !except.contains(&due.workspace));
            let found: Vec<Due> = all.take(DUE_PAGE).collect();
            crowded_out += u32::from(found.iter().all(|due| due.workspace == "w"));
            let count = found.len();
            alarm.fire(found, &except, now);
            now = alarm.next(count, None, now);
        }
        assert!(crowded_out < 100, "{crowded_out} looks saw nothing else");
    }
}
