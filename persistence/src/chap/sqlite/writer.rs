//! The journal's thread: makes waiting commits durable, group by group, and answers them. While one group is being synced
//! the next gathers. What a group was answered is in the journal; the tables follow.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use choir_messages::chap::Change;
use rusqlite::Connection;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::Span;

use super::super::queue::{Commit, gather, refuse, take_waiting, tell};
use super::super::{CommitError, names};
use super::journal::{Journal, SEGMENT};
use super::record::{self, Key};
use super::shared::{Durable, Head, Shared};
use super::tables::Tables;
use super::write;
use crate::error::StoreError;
use crate::limits;

/// Text of a group, in bytes, that goes into the tables without the journal: it is large enough that the difference does
/// not matter, and a segment has room for many groups.
const STRAIGHT: usize = SEGMENT as usize / 8;

/// What the journal's thread works with.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) journal: Journal,
    pub(super) key: Key,
    pub(super) shared: Arc<Shared>,
    pub(super) tables: Arc<Mutex<Tables>>,
    /// For looking where workspaces stand.
    pub(super) reader: Connection,
    /// Where those stand that were written to last, by key: nobody else writes to them.
    pub(super) heads: HashMap<String, Head>,
    /// Where answers are given.
    pub(super) runtime: Option<Handle>,
}

/// Why a group is not durable.
enum Failed {
    /// Nothing of it is there.
    Surely(StoreError),
    /// It may be there after a crash, and then it counts.
    Perhaps(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Surely(error)
    }
}

/// Works until nobody can send a commit any more; then the tables are brought up to date.
pub(super) fn run(mut writer: Writer, mut queue: mpsc::Receiver<Commit>) {
    let mut waiting: VecDeque<Commit> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match queue.blocking_recv() {
                Some(commit) => waiting.push_back(commit),
                None => break,
            }
        }
        take_waiting(&mut waiting, &mut queue);
        let group = gather(&mut waiting);
        // A panic would be a defect; it must cost one group an "unknown", not every workspace its store.
        if std::panic::catch_unwind(AssertUnwindSafe(|| writer.commit(group))).is_err() {
            tracing::error!("the writer of workspaces panicked");
            writer.heads.clear();
        }
    }
    writer.shared.close();
}

impl Writer {
    fn commit(&mut self, group: Vec<Commit>) {
        if group.is_empty() {
            return;
        }
        let cause = group.first().map_or_else(Span::none, |first| first.span.clone());
        let entries: usize = group.iter().map(|c| c.change.entries.len()).sum();
        let span = tracing::info_span!(
            target: "choir::store", parent: &cause, "store.commit", workspaces = group.len(), entries
        );
        for other in group.iter().skip(1) {
            span.follows_from(&other.span);
        }
        let _entered = span.enter();
        // A record that may or may not be there would be brought in after a crash, over what is written now.
        if let Err(error) = self.journal.clear() {
            return refuse(group, &unavailable(&error));
        }
        // Each change by itself either continues its workspace or does not; a group has a workspace once.
        let mut heads = Vec::with_capacity(group.len());
        let mut fitting = Vec::with_capacity(group.len());
        for commit in group {
            match self.next_head(&commit.change) {
                Ok(Some(head)) => {
                    heads.push((names::key(&commit.change.workspace).into_owned(), head));
                    fitting.push(commit);
                }
                Ok(None) => commit.reply.send(Err(CommitError::Conflict)),
                Err(error) => refuse(vec![commit], &error),
            }
        }
        if fitting.is_empty() {
            return;
        }
        let bytes: usize = fitting.iter().map(|commit| commit.bytes).sum();
        if bytes > STRAIGHT {
            return self.straight(fitting, &heads);
        }
        let (changes, replies): (Vec<Change>, Vec<_>) =
            fitting.into_iter().map(|c| (c.change, c.reply)).unzip();
        let verdict = match self.journaled(changes, heads) {
            Ok(()) => Ok(()),
            Err(Failed::Surely(error)) => {
                tracing::warn!(%error, commits = replies.len(), "a group of commits was not written");
                Err(CommitError::NotWritten(error))
            }
            Err(Failed::Perhaps(error)) => Err(CommitError::Unknown(error)),
        };
        let told = replies.into_iter().map(|reply| (reply, verdict.clone()));
        match &self.runtime {
            Some(runtime) => tell(runtime, told.collect()),
            None => told.for_each(|(reply, verdict)| reply.send(verdict)),
        }
        self.shared.wake();
    }

    /// Where a change leaves its workspace; nothing if it does not continue it.
    fn next_head(&self, change: &Change) -> Result<Option<Head>, StoreError> {
        let key = names::key(&change.workspace);
        let head = match self.heads.get(&*key).copied().or_else(|| self.shared.head(&key)) {
            Some(head) => head,
            None => write::head(&self.reader, &key)?,
        };
        Ok(write::after(change, head))
    }

    /// Remembers where workspaces stand now.
    fn remember(&mut self, heads: &[(String, Head)]) {
        // All at once and seldom: they are found in the tables again.
        if self.heads.len() >= limits::CHAP_HEADS {
            self.heads.clear();
        }
        self.heads.extend(heads.iter().cloned());
    }

    /// Makes changes durable in the journal.
    fn journaled(&mut self, changes: Vec<Change>, heads: Vec<(String, Head)>) -> Result<(), Failed> {
        self.shared.until_room()?;
        let number = self.journal.next();
        let record = record::encode(&self.key, number, &changes)?;
        if !self.journal.has_room(record.len()) {
            // What the other segment has must be safe before it is written over, and what this one has by the next turn.
            self.shared.until_safe(self.journal.overwritten_by_turning())?;
            self.journal.turn();
            self.shared.want_safe(self.journal.newest());
        }
        if let Err(error) = self.journal.append(&record) {
            return Err(self.cleared(&error));
        }
        let erases = changes.iter().any(write::erases);
        self.remember(&heads);
        self.shared.push(Durable { number, changes, bytes: record.len() }, heads);
        if erases {
            self.forget();
        }
        Ok(())
    }

    /// After a write that failed: makes sure that nothing of it is there, or says that this cannot be told.
    fn cleared(&mut self, error: &io::Error) -> Failed {
        tracing::warn!(%error, "the journal could not be written; looking that nothing of it is there");
        let since = Instant::now();
        while let Err(again) = self.journal.clear() {
            if since.elapsed() > limits::CHAP_SETTLE_WITHIN {
                return Failed::Perhaps(unavailable(&again));
            }
            std::thread::sleep(limits::CHAP_SETTLE_PAUSE);
        }
        Failed::Surely(unavailable(error))
    }

    /// Brings all into the tables and empties the journal, which still has what was erased there.
    fn forget(&mut self) {
        let forgotten = self.shared.until_safe(self.journal.newest()).and_then(|()| {
            self.tables.lock().unwrap_or_else(PoisonError::into_inner).wipe(&mut self.journal)
        });
        if let Err(error) = forgotten {
            tracing::warn!(%error, "the journal still has what was erased, until it is written over");
        }
    }

    /// Commits large changes into the tables themselves, after all that went before them.
    fn straight(&mut self, group: Vec<Commit>, heads: &[(String, Head)]) {
        for (key, _) in heads {
            self.heads.remove(key);
        }
        if let Err(error) = self.shared.until_safe(self.journal.newest()) {
            return refuse(group, &error);
        }
        let erases = group.iter().any(|commit| write::erases(&commit.change));
        let mut answers = Vec::with_capacity(group.len());
        for commit in group {
            let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
            let verdict = match tables.commit_alone(&commit.change) {
                Ok(()) => Ok(()),
                // The log could not even be written to its end, which is what a commit is.
                Err(StoreError::DiskFull) => Err(CommitError::NotWritten(StoreError::DiskFull)),
                Err(error) if error.is_about_data() => Err(CommitError::NotWritten(error)),
                Err(error) => Err(CommitError::Unknown(error)),
            };
            answers.push((commit.reply, verdict));
        }
        if erases {
            self.forget();
        }
        for (reply, verdict) in answers {
            reply.send(verdict);
        }
    }
}

fn unavailable(error: &io::Error) -> StoreError {
    StoreError::Unavailable(format!("the journal: {error}").into())
}
