//! Where a run stands: the steps that were seen, the wounds that were dealt, and the story of both for whoever must
//! understand a failure.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::plan::At;

/// See the module's text.
pub(super) struct Stage {
    began: Instant,
    seen: watch::Sender<BTreeSet<At>>,
    dealt: watch::Sender<BTreeSet<At>>,
    /// The conversation is over: steps that were not reached will not be.
    over: watch::Sender<bool>,
    story: Mutex<Vec<(Duration, String)>>,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            seen: watch::Sender::default(),
            dealt: watch::Sender::default(),
            over: watch::Sender::new(false),
            story: Mutex::default(),
        }
    }

    /// Adds a line to the story.
    pub(super) fn tell(&self, line: impl Into<String>) {
        let mut story = self.story.lock().unwrap_or_else(PoisonError::into_inner);
        story.push((self.began.elapsed(), line.into()));
    }

    /// The story, one line an entry.
    pub(super) fn story(&self) -> Vec<String> {
        let story = self.story.lock().unwrap_or_else(PoisonError::into_inner);
        story.iter().map(|(at, line)| format!("{:>8.3} s  {line}", at.as_secs_f64())).collect()
    }

    /// The longest time in which nothing happened, and what had happened before it.
    pub(super) fn longest_pause(&self) -> (Duration, String) {
        let story = self.story.lock().unwrap_or_else(PoisonError::into_inner);
        let pauses = story.windows(2).filter_map(|pair| match pair {
            [(before, line), (after, _)] => Some((after.saturating_sub(*before), line.trim().to_owned())),
            _ => None,
        });
        pauses.max().unwrap_or_default()
    }

    /// A step was reached.
    pub(super) fn mark(&self, at: At) {
        if self.seen.send_if_modified(|seen| seen.insert(at)) {
            self.tell(at.to_string());
        }
    }

    /// Waits for a step; false if the conversation ended without it.
    pub(super) async fn until(&self, at: At) -> bool {
        let mut seen = self.seen.subscribe();
        let mut over = self.over.subscribe();
        // Both senders are this stage's own.
        tokio::select! {
            biased;
            _ = seen.wait_for(|seen| seen.contains(&at)) => true,
            _ = over.wait_for(|over| *over) => false,
        }
    }

    /// The wound of a step was dealt, or given up.
    pub(super) fn dealt(&self, at: At) {
        self.dealt.send_if_modified(|dealt| dealt.insert(at));
    }

    /// Waits until the wound of a step was dealt.
    pub(super) async fn until_dealt(&self, at: At, within: Duration) {
        let mut dealt = self.dealt.subscribe();
        // A wound that hangs is told of by whoever deals it.
        let _ = tokio::time::timeout(within, dealt.wait_for(|dealt| dealt.contains(&at))).await;
    }

    /// The conversation is over.
    pub(super) fn end(&self) {
        self.over.send_replace(true);
    }
}
