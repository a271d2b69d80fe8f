//! What the journal's thread, the tables' thread and the readers tell each other: how far each is, what waits to be
//! brought into the tables, and where the workspaces stand that wait.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use choir_messages::chap::Change;
use tokio::sync::watch;

use super::super::names;
use crate::error::StoreError;
use crate::limits;

/// Where a workspace stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) version: i64,
    /// Entries in its log.
    pub(super) entries: i64,
}

/// Changes that are durable in the journal.
#[derive(Debug)]
pub(super) struct Durable {
    /// The record they stand in.
    pub(super) number: u64,
    pub(super) changes: Vec<Change>,
    /// Bytes of the record.
    pub(super) bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Durable>,
    /// Bytes of what waits.
    bytes: usize,
    /// Where workspaces stand whose changes wait, by key, and the record that says so.
    heads: HashMap<String, (u64, Head)>,
    /// The newest record in the journal.
    journaled: u64,
    /// The newest record that is safe in the tables, whatever happens.
    safe: u64,
    /// The record that should be: a segment is to be written over.
    wanted_safe: u64,
    /// Somebody waits for the tables to be brought up to date.
    hurry: bool,
    /// The tables' thread waits for work, and not for more of it.
    idle: bool,
    /// Nothing more will come.
    closing: bool,
    /// Why the tables cannot be brought up to date just now.
    trouble: Option<StoreError>,
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// For the tables' thread: there is work, or what it lingers over is wanted.
    wanted: Condvar,
    /// For the journal's thread: the tables have come further.
    moved: Condvar,
    /// The newest record in the tables, for readers.
    applied: watch::Sender<u64>,
}

/// What the tables' thread does next.
#[derive(Debug)]
pub(super) enum Work {
    /// Bring these into the tables.
    Apply(Vec<Durable>),
    /// Make what is in the tables safe.
    Secure,
    /// Everything is done.
    End,
}

impl Shared {
    pub(super) fn new(applied: u64) -> Self {
        let state = State { journaled: applied, safe: applied, ..State::default() };
        Self {
            state: Mutex::new(state),
            wanted: Condvar::new(),
            moved: Condvar::new(),
            applied: watch::Sender::new(applied),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics short of exhausted memory, which ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a workspace stands whose changes wait.
    pub(super) fn head(&self, key: &str) -> Option<Head> {
        self.state().heads.get(key).map(|(_, head)| *head)
    }

    /// These are durable in the journal. Readers see them from now on. Those who wait are to be answered first, then
    /// [`Shared::wake`] is to be called.
    pub(super) fn push(&self, durable: Durable, heads: Vec<(String, Head)>) {
        let mut state = self.state();
        state.journaled = durable.number;
        state.bytes += durable.bytes;
        state.heads.extend(heads.into_iter().map(|(key, head)| (key, (durable.number, head))));
        state.waiting.push_back(durable);
    }

    /// Lets the tables' thread begin with what was pushed, unless it waits for more on purpose.
    pub(super) fn wake(&self) {
        let state = self.state();
        let wakes = state.idle || state.waiting.len() >= limits::CHAP_APPLY;
        drop(state);
        if wakes {
            self.wanted.notify_all();
        }
    }

    /// What the tables' thread does next; waits for it. Where many write it waits a moment for more, since pages of the
    /// same workspaces then change once.
    pub(super) fn work(&self) -> Work {
        let mut state = self.state();
        loop {
            if state.waiting.is_empty() {
                if state.safe < state.wanted_safe {
                    return Work::Secure;
                }
                if state.closing {
                    return Work::End;
                }
                state.hurry = false;
                state.idle = true;
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle = false;
                continue;
            }
            let alone = state.waiting.iter().all(|durable| durable.changes.len() == 1);
            let since = Instant::now();
            while !alone && !state.hurry && !state.closing && state.waiting.len() < limits::CHAP_APPLY {
                let left = limits::CHAP_APPLY_LINGER.saturating_sub(since.elapsed());
                if left.is_zero() {
                    break;
                }
                state = self.wanted.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            let many = state.waiting.len().min(limits::CHAP_APPLY);
            return Work::Apply(state.waiting.drain(..many).collect());
        }
    }

    /// These are in the tables now.
    pub(super) fn applied(&self, batch: &[Durable]) {
        let Some(newest) = batch.last().map(|durable| durable.number) else { return };
        let mut state = self.state();
        state.bytes -= batch.iter().map(|durable| durable.bytes).sum::<usize>();
        for change in batch.iter().flat_map(|durable| &durable.changes) {
            let key = names::key(&change.workspace);
            if state.heads.get(&*key).is_some_and(|(number, _)| *number <= newest) {
                state.heads.remove(&*key);
            }
        }
        state.trouble = None;
        drop(state);
        self.applied.send_replace(newest);
        self.moved.notify_all();
    }

    /// The newest record in the tables.
    pub(super) fn newest_applied(&self) -> u64 {
        *self.applied.borrow()
    }

    /// Everything up to this record is safe in the tables.
    pub(super) fn secured(&self, number: u64) {
        let mut state = self.state();
        state.safe = state.safe.max(number);
        state.trouble = None;
        drop(state);
        self.moved.notify_all();
    }

    /// The tables cannot be brought up to date just now; whoever waits for that is told why when it takes too long.
    /// Whether that is new, and so worth a line in the log.
    pub(super) fn in_trouble(&self, error: StoreError) -> bool {
        self.state().trouble.replace(error).is_none()
    }

    /// Lets no more come.
    pub(super) fn close(&self) {
        self.state().closing = true;
        self.wanted.notify_all();
    }

    /// The newest record in the journal, and the newest that is safe in the tables.
    #[cfg(test)]
    pub(super) fn standing(&self) -> (u64, u64) {
        let state = self.state();
        (state.journaled, state.safe)
    }

    /// Whether nothing more will come.
    pub(super) fn is_closing(&self) -> bool {
        self.state().closing
    }

    /// Whether what is in the tables is to be made safe now.
    pub(super) fn should_secure(&self) -> bool {
        let state = self.state();
        state.safe < state.wanted_safe && self.newest_applied() >= state.wanted_safe
    }

    /// Waits, on the journal's thread, until all up to a record is safe in the tables.
    pub(super) fn until_safe(&self, number: u64) -> Result<(), StoreError> {
        {
            let mut state = self.state();
            state.wanted_safe = state.wanted_safe.max(number);
            state.hurry |= state.safe < number;
        }
        self.wanted.notify_all();
        self.until(limits::COMMIT_WITHIN, |state| state.safe >= number)
    }

    /// Asks for everything up to a record to be made safe, soon.
    pub(super) fn want_safe(&self, number: u64) {
        let mut state = self.state();
        state.wanted_safe = state.wanted_safe.max(number);
        drop(state);
        self.wanted.notify_all();
    }

    /// Waits, on the journal's thread, until not too much waits. Where the tables cannot follow, nothing more is let in:
    /// what is in the journal and not in the tables cannot be read.
    pub(super) fn until_room(&self) -> Result<(), StoreError> {
        if let Some(trouble) = &self.state().trouble {
            return Err(trouble.clone());
        }
        self.until(limits::ENQUEUE_WITHIN, |state| state.bytes <= limits::CHAP_UNAPPLIED_BYTES)
    }

    fn until(&self, within: Duration, done: impl Fn(&State) -> bool) -> Result<(), StoreError> {
        let since = Instant::now();
        let mut state = self.state();
        while !done(&state) {
            let left = within.saturating_sub(since.elapsed());
            if left.is_zero() {
                let late = || StoreError::Unavailable("the tables are behind the journal".into());
                return Err(state.trouble.clone().unwrap_or_else(late));
            }
            state = self.moved.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Waits, as a reader, until the tables have everything that was durable at the call: of one workspace, or of all.
    pub(super) async fn up_to_date(&self, workspace: Option<&str>) -> Result<(), StoreError> {
        let target = {
            let mut state = self.state();
            let target = match workspace {
                Some(name) => state.heads.get(&*names::key(name)).map_or(0, |(number, _)| *number),
                None => state.journaled,
            };
            if self.newest_applied() >= target {
                return Ok(());
            }
            state.hurry = true;
            target
        };
        self.wanted.notify_all();
        let mut applied = self.applied.subscribe();
        let reached = applied.wait_for(|applied| *applied >= target);
        if let Ok(Ok(_)) = tokio::time::timeout(limits::ACQUIRE_WITHIN, reached).await {
            return Ok(());
        }
        let late = || StoreError::Unavailable("the tables are behind the journal".into());
        Err(self.state().trouble.clone().unwrap_or_else(late))
    }
}
