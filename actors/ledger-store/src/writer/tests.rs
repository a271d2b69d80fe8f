//! The writer over a disk that fails on command.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use super::*;
use crate::disk;
use crate::traces::NewTrace;
use choir_ledger::layout;
use choir_ledger::meta::Participant;
use choir_ledger::payload;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What the disk does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    Fine,
    /// Writes this many bytes, then is full.
    FullAfter(usize),
    /// Writes everything, and fails to sync it.
    NoSync,
    /// Writes some bytes, and then fails at everything, cutting included.
    Dead(usize),
}

struct Moody {
    file: File,
    mood: Arc<Mutex<Mood>>,
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl Tail for Moody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match *self.mood.lock().unwrap() {
            Mood::Fine | Mood::NoSync => self.file.write(bytes),
            Mood::FullAfter(some) | Mood::Dead(some) => {
                self.file.write(&bytes[..some.min(bytes.len())])?;
                Err(full())
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        if *self.mood.lock().unwrap() == Mood::Fine { self.file.sync() } else { Err(io::Error::other("no")) }
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        if matches!(*self.mood.lock().unwrap(), Mood::Dead(_)) { Err(full()) } else { self.file.cut(length) }
    }
}

/// A disk that waits for leave before each sync.
struct Gated {
    file: File,
    asked: Sender<()>,
    leave: Receiver<()>,
}

impl Tail for Gated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.asked.send(()).map_err(|_| full())?;
        self.leave.recv().map_err(|_| full())?;
        self.file.sync()
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.cut(length)
    }
}

/// A home with one agent for everything, and a running trace without a writer.
fn trace(folder: &Path) -> (Home, Signer, TraceId) {
    let home = Home::create(folder).unwrap();
    let signer = home.ensure_agent("all-agent", "All", Role::ALL).unwrap();
    let who = |role: &Role| Participant {
        agent_id: "all-agent".into(),
        role: *role,
        key_id: signer.identity().key_id.clone(),
    };
    let writer = home.begin(NewTrace {
        task_id: "t".into(),
        participants: Role::ALL.iter().map(who).collect(),
        policy: Policy::default(),
        config_fingerprint: None,
        tool_versions: None,
    });
    let trace = writer.unwrap().trace_id();
    (home, signer, trace)
}

fn over(home: &Home, trace: TraceId, tail: impl FnOnce(File) -> Box<dyn Tail>) -> TraceWriter {
    let folder = home.path(layout::trace_dir(trace));
    let meta = home.meta(trace).unwrap();
    let start = Start {
        home: home.clone(),
        trace: Trace::new(Policy::default()),
        policy: Policy::default(),
        last: home.now(),
        length: 0,
        lock: Lock::take(&folder.join("test.lock"), &folder).unwrap(),
        stale: false,
        meta,
    };
    TraceWriter::start(start, tail(disk::open_tail(&folder.join(layout::EVENTS)).unwrap())).unwrap()
}

fn say(writer: &mut TraceWriter, signer: &Signer, event_type: EventType) -> Result<Appended, StoreError> {
    let payload = match event_type {
        EventType::SessionInitialized => payload::session("t", "o", &[]),
        _ => payload::proposal("o", &[], &["x".into()], &[]),
    };
    let role = event_type.role();
    writer.append(Draft {
        event_id: None,
        event_type,
        signer,
        role,
        payload,
        claims: vec![],
        artifacts: vec![],
    })
}

#[test]
fn a_failed_append_leaves_the_ledger_as_it_was_and_stops_the_writer() {
    for mood in [Mood::FullAfter(0), Mood::FullAfter(100), Mood::FullAfter(usize::MAX), Mood::NoSync] {
        let folder = tempfile::tempdir().unwrap();
        let (home, signer, id) = trace(folder.path());
        let now = Arc::new(Mutex::new(Mood::Fine));
        let tail = now.clone();
        let mut writer = over(&home, id, |file| Box::new(Moody { file, mood: tail }));
        say(&mut writer, &signer, EventType::SessionInitialized).unwrap().ticket.wait().unwrap();
        writer.checkpoint().unwrap().wait().unwrap();
        let sound = std::fs::read(home.path(layout::events(id))).unwrap();
        *now.lock().unwrap() = mood;
        let error = say(&mut writer, &signer, EventType::ProposalCreated).unwrap().ticket.wait().unwrap_err();
        let expected = matches!(error, StoreError::NoRoom { .. } | StoreError::Io { .. });
        assert!(expected, "{mood:?}: {error}");
        *now.lock().unwrap() = Mood::Fine;
        let stopped = say(&mut writer, &signer, EventType::ProposalCreated).unwrap_err();
        assert!(matches!(stopped, StoreError::Stopped(_)), "{mood:?}: {stopped}");
        assert!(matches!(writer.finish(TraceStatus::Aborted, None), Err(StoreError::Stopped(_))));
        drop(writer);
        assert_eq!(std::fs::read(home.path(layout::events(id))).unwrap(), sound, "{mood:?}");
        let mut writer = home.resume(id).unwrap().writer;
        say(&mut writer, &signer, EventType::ProposalCreated).unwrap().ticket.wait().unwrap();
    }
}

#[test]
fn what_a_dead_disk_leaves_behind_is_set_aside_when_the_trace_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (home, signer, id) = trace(folder.path());
    let now = Arc::new(Mutex::new(Mood::Fine));
    let tail = now.clone();
    let mut writer = over(&home, id, |file| Box::new(Moody { file, mood: tail }));
    say(&mut writer, &signer, EventType::SessionInitialized).unwrap().ticket.wait().unwrap();
    *now.lock().unwrap() = Mood::Dead(77);
    let error = say(&mut writer, &signer, EventType::ProposalCreated).unwrap().ticket.wait().unwrap_err();
    assert!(matches!(error, StoreError::NoRoom { .. }), "{error}");
    drop(writer);
    let resumed = home.resume(id).unwrap();
    assert_eq!(resumed.torn.map(|torn| torn.bytes), Some(77));
    assert_eq!(resumed.writer.meta().event_count, 1);
}

#[test]
fn events_that_wait_share_one_sync_and_none_is_acknowledged_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (home, signer, id) = trace(folder.path());
    let ((asked, asks), (grant, leave)) = (channel(), channel());
    let mut writer = over(&home, id, |file| Box::new(Gated { file, asked, leave }));
    let first = say(&mut writer, &signer, EventType::SessionInitialized).unwrap();
    asks.recv().unwrap();
    let behind: Vec<_> =
        (0..10).map(|_| say(&mut writer, &signer, EventType::ProposalCreated).unwrap().ticket).collect();
    assert!(matches!(first.ticket.wait_for(std::time::Duration::ZERO), Err(StoreError::Slow)));
    grant.send(()).unwrap();
    asks.recv().unwrap();
    grant.send(()).unwrap();
    for ticket in behind {
        ticket.wait().unwrap();
    }
    drop(writer);
    assert!(asks.try_recv().is_err(), "ten events took one sync");
    assert_eq!(home.events(id).unwrap().len(), 11);
}

#[test]
fn a_queue_that_stays_full_refuses_and_changes_nothing() {
    let shared = Shared::default();
    shared.enter(1, std::time::Duration::ZERO).unwrap();
    assert!(matches!(shared.enter(1, std::time::Duration::ZERO), Err(StoreError::Busy(1))));
    shared.leave(1);
    shared.enter(1, std::time::Duration::ZERO).unwrap();
}
