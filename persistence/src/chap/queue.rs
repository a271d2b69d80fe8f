//! Commits on their way to whoever writes them: a bounded queue, and groups taken from it, so that workspaces which write
//! at the same moment share the disk's latency.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError, RwLock};

use choir_messages::chap::Change;
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tracing::Span;

use super::{CommitError, Done, merge};
use crate::error::StoreError;
use crate::limits;
use crate::store::ids;

/// One commit that waits.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) change: Change,
    /// Bytes of its texts.
    pub(crate) bytes: usize,
    pub(crate) reply: Reply,
    /// Whose work it is, for the trace.
    pub(crate) span: Span,
}

/// Who is told what became of a commit.
pub(crate) enum Reply {
    /// Somebody who waits.
    Waits(oneshot::Sender<Result<(), CommitError>>),
    /// What is to be done then. Behind a lock, which nobody ever waits for, so that commits may be looked at by several.
    Does(Mutex<Done>),
}

impl Reply {
    /// Tells. Whoever stopped waiting needs no answer.
    pub(crate) fn send(self, verdict: Result<(), CommitError>) {
        match self {
            Self::Waits(waits) => drop(waits.send(verdict)),
            Self::Does(done) => done.into_inner().unwrap_or_else(PoisonError::into_inner)(verdict),
        }
    }

    /// Whether nobody wants to know any more.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Waits(waits) => waits.is_closed(),
            Self::Does(_) => false,
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reply(..)")
    }
}

/// Answers that one task gives: few enough that those of a large group are given side by side.
const TOLD_AT_ONCE: usize = 8;

/// Tells many what became of their commits, beside whoever writes: each answer takes as long as a tenth of a sync, which
/// the next group would wait for.
pub(crate) fn tell(runtime: &Handle, mut told: Vec<(Reply, Result<(), CommitError>)>) {
    while !told.is_empty() {
        let few: Vec<_> = told.drain(..told.len().min(TOLD_AT_ONCE)).collect();
        runtime.spawn(async move { few.into_iter().for_each(|(reply, verdict)| reply.send(verdict)) });
    }
}

/// Where commits are put.
#[derive(Debug)]
pub(crate) struct Queue {
    /// None once closed: the writer ends when nobody can send it anything any more.
    commits: RwLock<Option<mpsc::Sender<Commit>>>,
}

impl Queue {
    /// A queue and the end that its writer takes from.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Commit>) {
        let (commits, queue) = mpsc::channel(limits::CHAP_QUEUE);
        (Self { commits: RwLock::new(Some(commits)) }, queue)
    }

    /// Commits that wait.
    pub(crate) fn waiting(&self) -> usize {
        let commits = self.commits.read().unwrap_or_else(PoisonError::into_inner);
        commits.as_ref().map_or(0, |queue| queue.max_capacity().saturating_sub(queue.capacity()))
    }

    /// Lets nothing more in.
    pub(crate) fn close(&self) {
        drop(self.commits.write().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Puts a change into the line and waits for the writer's verdict.
    pub(crate) async fn commit(&self, change: Change) -> Result<(), CommitError> {
        let (reply, answer) = oneshot::channel();
        if let Some((commits, commit)) = self.offer(change, Reply::Waits(reply)) {
            enqueue(commits, commit).await;
        }
        match tokio::time::timeout(limits::CHAP_COMMIT_WITHIN, answer).await {
            Ok(Ok(verdict)) => verdict,
            // The writer panicked or was aborted, or is late.
            Ok(Err(_)) | Err(_) => Err(CommitError::Unknown(StoreError::Unconfirmed)),
        }
    }

    /// Puts a change into the line; the writer's verdict is told later.
    pub(crate) fn submit(&self, change: Change, done: Done) {
        if let Some((commits, commit)) = self.offer(change, Reply::Does(Mutex::new(done))) {
            tokio::spawn(enqueue(commits, commit));
        }
    }

    /// Puts a commit into the line if there is room. If not it comes back, with the line that it has to wait for.
    fn offer(&self, change: Change, reply: Reply) -> Option<(mpsc::Sender<Commit>, Commit)> {
        let bytes = merge::weight(&change);
        let commit = Commit { change, bytes, reply, span: Span::current() };
        let commits = self.commits.read().unwrap_or_else(PoisonError::into_inner);
        let refused = match &*commits {
            None => commit,
            Some(commits) => match commits.try_send(commit) {
                Ok(()) => return None,
                Err(TrySendError::Full(commit)) => return Some((commits.clone(), commit)),
                Err(TrySendError::Closed(commit)) => commit,
            },
        };
        drop(commits);
        refused.reply.send(Err(CommitError::NotWritten(StoreError::Closed)));
        None
    }
}

/// Waits for room in the line.
async fn enqueue(commits: mpsc::Sender<Commit>, commit: Commit) {
    let error = match tokio::time::timeout(limits::ENQUEUE_WITHIN, commits.reserve()).await {
        Ok(Ok(room)) => return room.send(commit),
        Ok(Err(_)) => StoreError::Closed,
        Err(_) => StoreError::Unavailable("too many commits wait".into()),
    };
    commit.reply.send(Err(CommitError::NotWritten(error)));
}

/// Where a workspace stands, as the tables say.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) version: i64,
    pub(crate) meta: String,
}

/// What became of a change whose answer was lost, by where its workspace stands now that nothing is under way.
pub(crate) fn verdict(
    change: &Change,
    standing: Option<&Standing>,
    lost: &StoreError,
) -> Result<(), CommitError> {
    // The meta decides where two changes could have one version.
    let is_after = |s: &Standing| {
        ids::column(change.version_after).is_ok_and(|v| v == s.version) && s.meta == change.meta
    };
    if standing.is_some_and(is_after) {
        Ok(())
    } else if Some(standing.map_or(0, |s| s.version)) == i64::try_from(change.version_before).ok() {
        Err(CommitError::NotWritten(lost.clone()))
    } else {
        Err(CommitError::Conflict)
    }
}

/// Takes what is there, up to a group's size.
pub(crate) fn take_waiting(waiting: &mut VecDeque<Commit>, queue: &mut mpsc::Receiver<Commit>) {
    while waiting.len() < limits::CHAP_GROUP {
        match queue.try_recv() {
            Ok(commit) => waiting.push_back(commit),
            Err(_) => break,
        }
    }
}

/// Tells a group that nothing of it was written.
pub(crate) fn refuse(group: Vec<Commit>, error: &StoreError) {
    tracing::warn!(%error, commits = group.len(), "a group of commits was not written");
    for commit in group {
        commit.reply.send(Err(CommitError::NotWritten(error.clone())));
    }
}

/// Takes the next group from the front: each workspace at most once, within the bounds. What stays keeps its order.
/// Commits that nobody waits for any more are dropped: nobody was told anything about them.
pub(crate) fn gather(waiting: &mut VecDeque<Commit>) -> Vec<Commit> {
    let mut group: Vec<Commit> = Vec::new();
    let mut later = VecDeque::new();
    let mut taken: HashSet<String> = HashSet::new();
    let mut bytes = 0usize;
    while let Some(commit) = waiting.pop_front() {
        if commit.reply.is_closed() {
            continue;
        }
        let fits = group.is_empty()
            || (group.len() < limits::CHAP_GROUP
                && bytes.saturating_add(commit.bytes) <= limits::GROUP_BYTES);
        let first = taken.insert(commit.change.workspace.clone());
        if fits && first {
            bytes = bytes.saturating_add(commit.bytes);
            group.push(commit);
        } else {
            later.push_back(commit);
        }
    }
    *waiting = later;
    group
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn commit(
        workspace: u8,
        number: u64,
        bytes: usize,
    ) -> (Commit, oneshot::Receiver<Result<(), CommitError>>) {
        let (reply, answer) = oneshot::channel();
        let change = Change {
            workspace: workspace.to_string(),
            version_before: number,
            version_after: number + 1,
            meta: String::new(),
            puts: Vec::new(),
            removes: Vec::new(),
            entries: Vec::new(),
            notices: Vec::new(),
        };
        (Commit { change, bytes, reply: Reply::Waits(reply), span: Span::none() }, answer)
    }

    #[tokio::test]
    async fn what_finds_no_room_in_time_was_not_written_and_what_the_writer_loses_is_told_nobody() {
        let (queue, mut taken) = Queue::new();
        let (tell, mut told) = mpsc::unbounded_channel();
        let submit = |number| {
            let tell = tell.clone();
            queue.submit(
                commit(0, number, 0).0.change,
                Box::new(move |verdict| drop(tell.send((number, verdict)))),
            );
        };
        (0..limits::CHAP_QUEUE as u64).for_each(submit);
        submit(9_001);
        let (number, verdict) = told.recv().await.unwrap();
        assert!(number == 9_001 && matches!(verdict, Err(CommitError::NotWritten(_))), "{verdict:?}");
        // Room that comes in time is taken, behind all others.
        submit(9_002);
        tokio::task::yield_now().await;
        let first = taken.recv().await.unwrap();
        for number in (1..limits::CHAP_QUEUE as u64).chain([9_002]) {
            assert_eq!(taken.recv().await.unwrap().change.version_before, number);
        }
        drop(first);
        drop((queue, tell));
        assert!(told.recv().await.is_none(), "nobody was told of what was dropped");
    }

    proptest! {
        /// Every commit that is waited for is taken exactly once, each workspace's in order; no group has a workspace
        /// twice or too many bytes.
        #[test]
        fn groups_take_all_commits_in_each_workspaces_order(
            commits in prop::collection::vec((0u8..6, 0usize..10_000_000, prop::bool::weighted(0.9)), 0..200)
        ) {
            let mut waiting = VecDeque::new();
            let mut answers = Vec::new();
            let mut wanted = 0;
            for ((workspace, bytes, waits), number) in commits.iter().zip(0u64..) {
                let (commit, answer) = commit(*workspace, number, *bytes);
                waiting.push_back(commit);
                if *waits {
                    wanted += 1;
                    answers.push(answer);
                }
            }
            let mut last: HashMap<String, u64> = HashMap::new();
            let mut seen = 0;
            while !waiting.is_empty() {
                let group = gather(&mut waiting);
                prop_assert!(group.len() <= limits::CHAP_GROUP);
                let total: usize = group.iter().map(|c| c.bytes).sum();
                prop_assert!(group.len() <= 1 || total <= limits::GROUP_BYTES);
                for c in &group {
                    if let Some(before) = last.insert(c.change.workspace.clone(), c.change.version_before) {
                        prop_assert!(before < c.change.version_before);
                    }
                }
                let names: HashSet<_> = group.iter().map(|c| c.change.workspace.clone()).collect();
                prop_assert_eq!(names.len(), group.len());
                seen += group.len();
            }
            prop_assert_eq!(seen, wanted);
        }
    }
}
