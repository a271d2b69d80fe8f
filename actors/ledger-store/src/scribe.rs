//! The thread behind a writer: batches, syncs, checkpoints.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use choir_ledger::layout;
use choir_ledger::meta::TraceMeta;
use choir_messages::chain::Digest;

use crate::bounds::{BATCH_BYTES, CHECKPOINT_EVERY, CHECKPOINT_IDLE};
use crate::checkpoint::Head;
use crate::disk::{self, Tail};
use crate::error::StoreError;
use crate::home::Home;
use crate::ticket::Promise;

/// One event's line.
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) hash: Digest,
    pub(crate) artifacts: u64,
    pub(crate) done: Promise,
}

/// What the thread is asked to do.
pub(crate) enum Job {
    /// Write an event.
    Append(Line),
    /// Write the checkpoint and the meta file.
    Checkpoint(Promise),
    /// Write them with this end of the trace.
    Finish {
        /// The meta file's content.
        meta: Box<TraceMeta>,
        /// When done.
        done: Promise,
    },
}

/// What the writer and its thread share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    waiting: Mutex<usize>,
    left: Condvar,
    stopped: OnceLock<Arc<StoreError>>,
}

impl Shared {
    /// Whether the thread still writes.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self.stopped.get() {
            None => Ok(()),
            Some(why) => Err(StoreError::Stopped(why.clone())),
        }
    }

    /// Takes a place in the queue, waiting for one if all are taken.
    pub(crate) fn enter(&self, places: usize, limit: Duration) -> Result<(), StoreError> {
        let until = Instant::now() + limit;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while *waiting >= places {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreError::Busy(*waiting));
            }
            (waiting, _) = self.left.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner);
        }
        *waiting += 1;
        Ok(())
    }

    /// Gives places back.
    pub(crate) fn leave(&self, places: usize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = waiting.saturating_sub(places);
        self.left.notify_all();
    }
}

/// The thread's state.
pub(crate) struct Scribe {
    home: Home,
    meta: TraceMeta,
    path: PathBuf,
    tail: Box<dyn Tail>,
    length: u64,
    shared: Arc<Shared>,
    /// Events since the last checkpoint.
    since: u64,
    /// Whether the checkpoint is behind the ledger.
    behind: bool,
    /// Whether it is to be written at the next quiet.
    stale: bool,
}

impl Scribe {
    pub(crate) fn new(
        home: Home,
        meta: TraceMeta,
        tail: Box<dyn Tail>,
        length: u64,
        shared: Arc<Shared>,
        stale: bool,
    ) -> Self {
        let path = home.path(layout::events(meta.trace_id));
        Self { home, meta, path, tail, length, shared, since: 0, behind: stale, stale }
    }

    /// Works until the writer is gone.
    pub(crate) fn run(mut self, inbox: &Receiver<Job>) {
        let _closing = Closing(self.shared.clone());
        loop {
            let next = if self.stale {
                inbox.recv_timeout(CHECKPOINT_IDLE)
            } else {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match next {
                Ok(job) => {
                    let behind = self.batch(job, inbox);
                    if let Some(job) = behind {
                        self.other(job);
                    }
                    if self.since >= CHECKPOINT_EVERY {
                        self.quietly();
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.quietly(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if self.behind {
            self.quietly();
        }
    }

    /// Writes the events that wait, in one go. Returns the job behind them, if it is another one.
    fn batch(&mut self, first: Job, inbox: &Receiver<Job>) -> Option<Job> {
        let (mut lines, mut bytes, mut next) = (Vec::new(), Vec::new(), Some(first));
        let behind = loop {
            match next {
                Some(Job::Append(line)) => {
                    bytes.extend_from_slice(line.text.as_bytes());
                    bytes.push(b'\n');
                    lines.push(line);
                }
                other => break other,
            }
            if bytes.len() >= BATCH_BYTES {
                break None;
            }
            next = inbox.try_recv().ok();
        };
        if !lines.is_empty() {
            self.write(&bytes, lines);
        }
        behind
    }

    fn write(&mut self, bytes: &[u8], lines: Vec<Line>) {
        let count = lines.len();
        let result = self.shared.check().and_then(|()| self.put(bytes));
        if result.is_ok() {
            self.length += bytes.len() as u64;
            (self.behind, self.stale) = (true, true);
            for line in &lines {
                self.meta.head_event_hash = line.hash;
                self.meta.event_count += 1;
                self.meta.artifact_count += line.artifacts;
                self.since += 1;
            }
        }
        for line in lines {
            line.done.keep(result.clone());
        }
        self.shared.leave(count);
    }

    /// Writes and syncs. What could not be written whole is taken back: nobody was told of it.
    fn put(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.tail.write(bytes).and_then(|()| self.tail.sync());
        let Err(error) = written else { return Ok(()) };
        let error = StoreError::io("append to", &self.path, error);
        // If this fails too, resuming sets the torn end aside.
        let _ = self.tail.cut(self.length);
        let _ = self.shared.stopped.set(Arc::new(error.clone()));
        Err(error)
    }

    fn other(&mut self, job: Job) {
        match job {
            // Never here: the batch takes them.
            Job::Append(line) => self.write(format!("{}\n", line.text).as_bytes(), vec![line]),
            Job::Checkpoint(done) => {
                let result = self.shared.check().and_then(|()| self.checkpoint());
                done.keep(result);
            }
            Job::Finish { meta, done } => {
                let result = self.shared.check().and_then(|()| {
                    // The counts are the thread's own: what was really written.
                    self.meta.status = meta.status;
                    self.meta.ended_at = meta.ended_at;
                    self.meta.other = meta.other;
                    self.checkpoint()
                });
                done.keep(result);
            }
        }
    }

    /// A checkpoint that nobody waits for. If it fails, it is tried again after the next event, and at the end: the
    /// ledger itself is ahead, never behind.
    fn quietly(&mut self) {
        let _ = self.checkpoint();
        self.stale = false;
        self.since = 0;
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        let head = Head {
            events: self.meta.event_count,
            hash: self.meta.head_event_hash,
            status: self.meta.status,
            artifacts: self.meta.artifact_count,
        };
        self.home.write_head(&self.meta, &head)?;
        (self.behind, self.stale, self.since) = (false, false, 0);
        Ok(())
    }
}

/// Lets nobody wait for a place in the queue of a thread that is gone, for whatever reason.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.stopped.set(Arc::new(StoreError::Log("the writer's thread has failed".into())));
        }
        self.0.leave(usize::MAX);
    }
}

impl Home {
    /// Writes the meta file and then the checkpoint: the checkpoint never claims what the ledger does not have.
    pub(crate) fn write_head(&self, meta: &TraceMeta, head: &Head) -> Result<(), StoreError> {
        self.write_meta(meta)?;
        let note = self.checkpoint_text(meta.trace_id, head)?;
        disk::write_whole(&self.checkpoint_path(meta.trace_id), note.as_bytes())
    }

    pub(crate) fn write_meta(&self, meta: &TraceMeta) -> Result<(), StoreError> {
        let path = self.path(layout::meta(meta.trace_id));
        let text = serde_json::to_string_pretty(meta).map_err(|why| StoreError::unreadable(&path, why))?;
        disk::write_whole(&path, text.as_bytes())
    }
}
