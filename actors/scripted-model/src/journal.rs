//! What the endpoint saw and said: the evidence from outside that a demo or a chaos test counts.

use serde::Serialize;
use std::collections::{BTreeSet, VecDeque};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use choir_messages::time::Timestamp;
use tokio::sync::watch;

use crate::faults::Fault;
use crate::limits::{JOURNAL_ENTRIES, JOURNAL_TEXT_BYTES};

/// Where the journal is written besides memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum JournalSink {
    /// Nowhere.
    #[default]
    Memory,
    /// Appended to this file as JSON lines: the whole entry at each change, so the last line with a number is what
    /// came of it.
    File(PathBuf),
}

/// One request and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its number, from 1, in the order of arrival.
    pub number: u64,
    /// When it arrived.
    pub at: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// The user's message that the answer is for; empty if the request was refused before that was known.
    pub message: String,
    /// The rule that answers it, or `chat`.
    pub rule: String,
    /// Which step of the turn, from 0.
    pub step: usize,
    /// Messages in the transcript.
    pub messages: usize,
    /// Bytes of the request's body.
    pub request_bytes: usize,
    /// Digest of the transcript: the same request again has the same.
    pub transcript: String,
    /// The fault it met, if any.
    pub fault: Option<Fault>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing yet.
    Open,
    /// Held for the controller.
    Held,
    /// Answered by the script.
    Answered {
        /// The text.
        text: Option<String>,
        /// The tools called, by their names on the wire.
        tools: Vec<String>,
        /// Whether the script had nothing for this step.
        off_script: bool,
    },
    /// Refused, as a real endpoint would.
    Refused {
        /// HTTP status.
        status: u16,
        /// Why.
        reason: String,
    },
    /// Met its fault instead of an answer.
    Faulted,
    /// The client was gone before the answer.
    Disconnected,
}

impl Entry {
    /// Whether nothing has come of it yet.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.outcome, Outcome::Open | Outcome::Held)
    }

    /// The text, if this is the script's last answer to its message.
    #[must_use]
    pub fn final_answer(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Answered { text: Some(text), tools, .. } if tools.is_empty() => Some(text),
            _ => None,
        }
    }
}

/// A condition on the journal did not come true in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the model's journal did not show what was waited for within {} ms", .0.as_millis())]
pub struct NotSeen(pub Duration);

/// The record of an endpoint.
#[derive(Debug)]
pub struct Journal {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    requests: u64,
    file: Option<std::fs::File>,
    failed: Option<String>,
}

impl Journal {
    /// An empty journal. Opens the file, for appending, if it is to be written there.
    pub fn open(sink: &JournalSink) -> std::io::Result<Self> {
        let file = match sink {
            JournalSink::Memory => None,
            JournalSink::File(path) => {
                Some(std::fs::OpenOptions::new().create(true).append(true).open(path)?)
            }
        };
        let state = Mutex::new(State { file, ..State::default() });
        Ok(Self { state, changes: watch::Sender::new(0) })
    }

    /// Every entry kept, oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().entries.iter().cloned().collect()
    }

    /// Requests seen in all, whether their entries are still kept or not.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.lock().requests
    }

    /// The entries for messages that contain this text.
    #[must_use]
    pub fn about(&self, message: &str) -> Vec<Entry> {
        self.lock().entries.iter().filter(|entry| entry.message.contains(message)).cloned().collect()
    }

    /// Requests that are not ended.
    #[must_use]
    pub fn open_calls(&self) -> Vec<Entry> {
        self.lock().entries.iter().filter(|entry| entry.is_open()).cloned().collect()
    }

    /// The different last answers that were given to messages that contain this text; more than one means that the
    /// message was answered on two different grounds.
    #[must_use]
    pub fn final_answers(&self, message: &str) -> BTreeSet<String> {
        let state = self.lock();
        let about = state.entries.iter().filter(|entry| entry.message.contains(message));
        about.filter_map(|entry| entry.final_answer().map(str::to_owned)).collect()
    }

    /// The messages seen, in the order of their first request.
    #[must_use]
    pub fn messages(&self) -> Vec<String> {
        let state = self.lock();
        let mut seen = BTreeSet::new();
        let named = state.entries.iter().map(|entry| &entry.message).filter(|message| !message.is_empty());
        named.filter(|message| seen.insert(*message)).cloned().collect()
    }

    /// How many answers were given to a transcript that had been answered before: what crashes cost in model calls.
    #[must_use]
    pub fn repeats(&self) -> usize {
        let state = self.lock();
        let mut seen = BTreeSet::new();
        let answered = state.entries.iter().filter(|entry| matches!(entry.outcome, Outcome::Answered { .. }));
        answered.filter(|entry| !seen.insert(&entry.transcript)).count()
    }

    /// Why the file could not be written, if so; the entries in memory are whole all the same.
    #[must_use]
    pub fn write_failure(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    /// Waits until `seen` finds what it looks for among the entries, looking again after each change. The journal is
    /// locked while it looks, so `seen` must not ask the journal itself.
    pub async fn until<T>(
        &self,
        within: Duration,
        mut seen: impl FnMut(&[Entry]) -> Option<T>,
    ) -> Result<T, NotSeen> {
        let mut changes = self.changes.subscribe();
        let look = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = seen(self.lock().entries.make_contiguous()) {
                    return found;
                }
                // The sender is this journal's own, so it is there as long as this borrow.
                let _ = changes.changed().await;
            }
        };
        tokio::time::timeout(within, look).await.map_err(|_| NotSeen(within))
    }

    /// Notes a request; returns its number.
    pub(crate) fn arrived(&self) -> u64 {
        let number = {
            let mut state = self.lock();
            state.requests += 1;
            let number = state.requests;
            if state.entries.len() >= JOURNAL_ENTRIES {
                state.entries.pop_front();
            }
            state.entries.push_back(Entry {
                number,
                at: Timestamp::now(),
                ended: None,
                message: String::new(),
                rule: String::new(),
                step: 0,
                messages: 0,
                request_bytes: 0,
                transcript: String::new(),
                fault: None,
                outcome: Outcome::Open,
            });
            number
        };
        self.changes.send_modify(|version| *version += 1);
        number
    }

    /// Changes an entry and writes it.
    pub(crate) fn update(&self, number: u64, change: impl FnOnce(&mut Entry)) {
        {
            let mut state = self.lock();
            let Some(entry) = state.entries.iter_mut().rev().find(|entry| entry.number == number) else {
                return;
            };
            change(entry);
            if !entry.is_open() && entry.ended.is_none() {
                entry.ended = Some(Timestamp::now());
            }
            cut(&mut entry.message);
            if let Outcome::Answered { text: Some(text), .. } = &mut entry.outcome {
                cut(text);
            }
            let line = serde_json::to_string(entry).map(|line| line + "\n");
            if let Some(file) = &mut state.file {
                let written =
                    line.map_err(std::io::Error::other).and_then(|line| file.write_all(line.as_bytes()));
                if let Err(error) = written {
                    tracing::warn!(target: "choir::scripted_model", %error, "the journal's file cannot be written");
                    state.failed = Some(error.to_string());
                    state.file = None;
                }
            }
        }
        self.changes.send_modify(|version| *version += 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cut(text: &mut String) {
    while text.len() > JOURNAL_TEXT_BYTES {
        text.pop();
    }
}
