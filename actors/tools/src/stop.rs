//! Stopping a running call. Tools run on blocking threads, which cannot be aborted; they ask [`Stop::check`] between
//! steps, and carry out what changes the world inside [`Stop::commit`].
//!
//! The promise: once [`Stop::cancel`] has returned, the call changes nothing any more, even if its thread still runs.
//! So the call's locks may be released at that moment.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, Signal, kill_process_group};

/// Why a call has to end early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Somebody asked for it.
    #[error("the call was cancelled")]
    Cancelled,
    /// Its time limit is over.
    #[error("the call ran out of time")]
    Deadline,
}

/// The switch of one call, shared by the executor and the thread that runs the tool.
#[derive(Debug)]
pub struct Stop {
    cancelled: AtomicBool,
    deadline: Instant,
    /// Rings a thread that waits in `poll`. Without one (no descriptors left) such a thread looks now and then.
    bell: Option<OwnedFd>,
    /// Held while something changes the world; the process group that must die with the call.
    effect: Mutex<Option<Pid>>,
}

impl Stop {
    /// A switch for a call that must end by `deadline`.
    #[must_use]
    pub fn at(deadline: Instant) -> Self {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Self { cancelled: AtomicBool::new(false), deadline, bell, effect: Mutex::new(None) }
    }

    /// A switch for a call that may take this long.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self::at(Instant::now() + limit)
    }

    /// When the call must have ended.
    #[must_use]
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the call may go on.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.cancelled.load(Ordering::Acquire) {
            Err(Stopped::Cancelled)
        } else if Instant::now() >= self.deadline {
            Err(Stopped::Deadline)
        } else {
            Ok(())
        }
    }

    /// Carries out a short step that changes the world, unless the call has to end. Cancelling waits for it.
    pub fn commit<T>(&self, step: impl FnOnce() -> T) -> Result<T, Stopped> {
        let _gate = self.gate();
        self.check()?;
        Ok(step())
    }

    /// As [`Stop::commit`], for the start of a process group; it is killed when the call is cancelled.
    pub fn commit_group<T, E>(
        &self,
        step: impl FnOnce() -> Result<(T, Pid), E>,
    ) -> Result<Result<T, E>, Stopped> {
        let mut gate = self.gate();
        self.check()?;
        Ok(step().map(|(started, group)| {
            *gate = Some(group);
            started
        }))
    }

    /// The process group has ended and its number may be used again by others.
    pub fn group_ended(&self) {
        *self.gate() = None;
    }

    /// Ends the call. When this returns, the call changes nothing any more.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        if let Some(group) = *self.gate() {
            // It fails only if nobody is left in the group.
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(bell) = &self.bell {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// What becomes readable when the call is cancelled.
    #[must_use]
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(AsFd::as_fd)
    }

    fn gate(&self) -> MutexGuard<'_, Option<Pid>> {
        // A step that panicked has released whatever it held; the number inside is whole.
        self.effect.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cancels the call when dropped: an executor that is killed takes its call with it.
#[derive(Debug)]
pub struct CancelOnDrop(pub Arc<Stop>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn after_a_cancel_no_step_is_carried_out() {
        let stop = Stop::within(Duration::from_secs(60));
        assert_eq!(stop.commit(|| 1), Ok(1));
        stop.cancel();
        assert_eq!(stop.commit(|| 2), Err(Stopped::Cancelled));
        assert_eq!(stop.check(), Err(Stopped::Cancelled));
    }

    #[test]
    fn a_cancel_waits_for_the_step_that_has_begun() {
        let stop = Arc::new(Stop::within(Duration::from_secs(60)));
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let step = std::thread::spawn({
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            move || {
                stop.commit(|| {
                    begun.send(()).unwrap();
                    may_go.recv().unwrap();
                    done.store(true, Ordering::SeqCst);
                })
            }
        });
        has_begun.recv().unwrap();
        let canceller = std::thread::spawn({
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            move || {
                stop.cancel();
                done.load(Ordering::SeqCst)
            }
        });
        go.send(()).unwrap();
        assert!(canceller.join().unwrap(), "cancel returned before the step was over");
        step.join().unwrap().unwrap();
    }

    #[test]
    fn past_its_deadline_a_call_stops() {
        let stop = Stop::at(Instant::now());
        assert_eq!(stop.check(), Err(Stopped::Deadline));
    }
}
