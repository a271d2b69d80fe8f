//! Batches: as many waiting calls as one commit may carry are stepped one after the other, and stored together.

use std::sync::Arc;

use choir_chap::{Answer, Attested, Context as StepContext, Outcome, Plan, Workspace};
use choir_messages::chap::{Change, Object, ObjectKey, ObjectKind};
use choir_messages::mail::{Caller, Unanswered};
use choir_persistence::StoreError;
use choir_persistence::chap::ChapStore;
use choir_supervisors::{Context, Failure};

use super::{WorkspaceActor, WorkspaceMsg};
use crate::fresh;
use crate::gauge::Held;
use crate::job::Job;
use crate::limits::{BATCH_BYTES, BATCH_CALLS, ROUNDS};

/// What waits for a workspace's actor.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A call to step.
    Call(Job),
    /// A call that was stepped and reads the log, once everything before it is stored.
    Read(Job, Plan),
    /// An object whose time has come.
    Lapse(ObjectKey, Arc<Held>),
}

/// What a batch came to.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// To be stored, in order.
    pub(super) changes: Vec<Change>,
    /// To be given away after that.
    pub(super) answers: Vec<(Job, Answer)>,
    /// Text of the changes so far.
    bytes: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.changes.len() >= BATCH_CALLS || self.answers.len() >= BATCH_CALLS || self.bytes >= BATCH_BYTES
    }

    fn push(&mut self, change: Change) {
        let objects: usize = change.puts.iter().map(|object| object.body.len()).sum();
        let entries: usize = change.entries.iter().map(|entry| entry.record.len()).sum();
        self.bytes = self.bytes.saturating_add(objects).saturating_add(entries);
        self.changes.push(change);
    }
}

/// What one step came to, its loads done.
enum Stepped {
    Done(Answer, Option<Box<Change>>),
    Read(Plan),
    /// The store could not be read; nothing happened.
    Failed(String),
}

impl WorkspaceActor {
    /// Makes sure that the rules' view is there.
    pub(super) async fn open(&mut self) -> Result<(), String> {
        if self.memory.is_none() {
            let opened = self.around.store.open(&self.id).await.map_err(|error| error.to_string())?;
            self.memory = Some(match opened {
                Some(opened) => Workspace::open(&self.id, &opened).map_err(|error| {
                    tracing::error!(%error, "a workspace cannot be opened");
                    error.to_string()
                })?,
                None => Workspace::absent(&self.id),
            });
        }
        Ok(())
    }

    /// Steps what waits, from the front, into one batch.
    pub(super) async fn batch(&mut self, cx: &mut Context<WorkspaceMsg>) -> Result<Batch, Failure> {
        let mut batch = Batch::default();
        if let Err(error) = self.open().await {
            // Lapses stay due; the timers try again.
            for waiting in self.waiting.drain(..) {
                if let Waiting::Call(job) | Waiting::Read(job, _) = waiting {
                    job.fail(Unanswered::NotStored(error.clone()));
                }
            }
            return Ok(batch);
        }
        self.prefetch().await;
        while !batch.is_full()
            && let Some(waiting) = self.waiting.pop_front()
        {
            cx.progress();
            match waiting {
                Waiting::Call(mut job) => {
                    job.in_hand();
                    let stepped = self.step_job(&job).await;
                    job.put_down();
                    match stepped {
                        Stepped::Done(answer, change) => {
                            if let Some(change) = change {
                                batch.push(*change);
                            }
                            if batch.changes.is_empty() {
                                // It has seen nothing that is not stored.
                                job.answer(answer);
                            } else {
                                batch.answers.push((job, answer));
                            }
                        }
                        Stepped::Read(plan) => {
                            self.waiting.push_front(Waiting::Read(job, plan));
                            if !batch.changes.is_empty() {
                                break;
                            }
                        }
                        Stepped::Failed(why) => job.fail(Unanswered::NotStored(why)),
                    }
                }
                Waiting::Read(job, plan) if batch.changes.is_empty() && self.may_read() => {
                    self.read(job, plan, cx)?;
                }
                Waiting::Read(job, plan) => {
                    self.waiting.push_front(Waiting::Read(job, plan));
                    break;
                }
                Waiting::Lapse(key, held) => {
                    let stepped = self.step_lapse(&key).await;
                    if let Stepped::Done(_, Some(change)) = stepped {
                        batch.push(*change);
                    }
                    drop(held);
                }
            }
        }
        Ok(batch)
    }

    /// Loads what the next calls will surely look at, in one go. If that fails, their own steps will say so.
    async fn prefetch(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        let calls = self.waiting.iter().take(BATCH_CALLS).filter_map(|waiting| match waiting {
            Waiting::Call(job) => job.parts().map(|(call, ..)| call),
            Waiting::Read(..) | Waiting::Lapse(..) => None,
        });
        let mut keys: Vec<ObjectKey> = calls.flat_map(|call| memory.needs(call)).collect();
        keys.sort_unstable();
        keys.dedup();
        if !keys.is_empty()
            && let Ok(found) = self.around.store.load(&self.id, &keys).await
        {
            memory.supply(&keys, found);
        }
    }

    async fn step_job(&mut self, job: &Job) -> Stepped {
        let Some((call, caller, attested)) = job.parts() else {
            return Stepped::Failed("the call was answered already".to_owned());
        };
        self.step(|memory, context| memory.step(call, context), caller, attested).await
    }

    async fn step_lapse(&mut self, key: &ObjectKey) -> Stepped {
        self.step(|memory, context| memory.lapse(key, context), &Caller::anyone(), &Attested::default()).await
    }

    /// Steps until the rules have all the objects they ask for.
    async fn step(
        &mut self,
        step: impl Fn(&mut Workspace, StepContext<'_>) -> Outcome,
        caller: &Caller,
        attested: &Attested,
    ) -> Stepped {
        let around = Arc::clone(&self.around);
        for _ in 0..ROUNDS {
            let Some(memory) = &mut self.memory else { break };
            let context = StepContext {
                settings: &around.rules,
                now: (around.clock)(),
                caller: caller.clone(),
                attested: attested.clone(),
                fresh: &mut fresh::bits,
            };
            match step(memory, context) {
                Outcome::Done { answer, change } => return Stepped::Done(answer, change.map(Box::new)),
                Outcome::Read(plan) => return Stepped::Read(plan),
                Outcome::Needs { keys, open } => {
                    if !keys.is_empty() {
                        match around.store.load(&self.id, &keys).await {
                            Ok(found) => memory.supply(&keys, found),
                            Err(error) => return Stepped::Failed(error.to_string()),
                        }
                    }
                    for kind in open {
                        match all_open(&around.store, &self.id, kind).await {
                            Ok(found) => memory.supply_open(kind, found),
                            Err(error) => return Stepped::Failed(error.to_string()),
                        }
                    }
                }
            }
        }
        tracing::error!(workspace = self.id, "a step asked for objects without end");
        Stepped::Failed("the call asks for more than the Coordinator can load".to_owned())
    }
}

/// Every stored open object of a kind; of too many, one more than the rules take.
async fn all_open(store: &ChapStore, workspace: &str, kind: ObjectKind) -> Result<Vec<Object>, StoreError> {
    let mut all: Vec<Object> = Vec::new();
    loop {
        let after = all.last().map(|object| object.key.id.clone());
        let page = store.open_objects(workspace, kind, after.as_deref(), usize::MAX).await?;
        if page.is_empty() || all.len() > choir_chap::limits::TASKS_PER_SNAPSHOT {
            return Ok(all);
        }
        all.extend(page);
    }
}
