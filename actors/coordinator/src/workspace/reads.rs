//! Reads of the log: carried out beside the actor, page by page, so that a long check holds up no write.

use std::sync::Arc;

use choir_chap::Plan;
use choir_messages::chap::{EntryPage, EntryQuery};
use choir_messages::mail::Unanswered;
use choir_persistence::StoreError;
use choir_persistence::chap::ChapStore;
use choir_supervisors::{Context, Failure};
use tokio::task::JoinSet;

use super::{WorkspaceActor, WorkspaceMsg};
use crate::job::Job;
use crate::limits::READS;

impl WorkspaceActor {
    pub(super) const fn may_read(&self) -> bool {
        self.reads < READS
    }

    /// Begins a read. If this actor dies over it, the call comes back and the read begins anew.
    pub(super) fn read(
        &mut self,
        job: Job,
        mut plan: Plan,
        cx: &mut Context<WorkspaceMsg>,
    ) -> Result<(), Failure> {
        let (around, id) = (Arc::clone(&self.around), self.id.clone());
        let work = async move {
            let mut ahead = Ahead::default();
            while let Some(query) = plan.wants() {
                match ahead.page(&around.store, &id, query).await {
                    Ok(page) => plan.page(page),
                    Err(error) => return job.fail(Unanswered::NotStored(error.to_string())),
                }
                // A page of a thousand entries is milliseconds of hashing: others get their turn.
                tokio::task::yield_now().await;
            }
            job.answer(plan.finish());
        };
        cx.pipe_to_self(work, |()| WorkspaceMsg::WasRead)?;
        self.reads += 1;
        Ok(())
    }
}

/// Reads one page ahead of a plan that goes through the log, while the plan is busy with the page before.
#[derive(Default)]
struct Ahead {
    /// What a plan that goes on wants next.
    guess: Option<EntryQuery>,
    /// The page of that guess under way; ends with this value.
    reading: JoinSet<Result<EntryPage, StoreError>>,
}

impl Ahead {
    async fn page(
        &mut self,
        store: &ChapStore,
        workspace: &str,
        query: EntryQuery,
    ) -> Result<EntryPage, StoreError> {
        // Most reads want one page; only one that wanted the next will want those after it.
        let goes_on = self.guess.take().is_some_and(|guess| guess == query);
        let ahead = if goes_on { self.reading.join_next().await } else { None };
        // A guess that was wrong must not be taken for a later one.
        self.reading = JoinSet::new();
        let page = match ahead {
            Some(Ok(page)) => page?,
            Some(Err(_)) | None => store.entries(workspace, &query).await?,
        };
        let next = EntryQuery { from_seq: page.next_seq, ..query };
        if goes_on && next.to_seq.is_none_or(|to| next.from_seq < to) && !page.entries.is_empty() {
            let (store, workspace, next) = (store.clone(), workspace.to_owned(), next.clone());
            self.reading.spawn(async move { store.entries(&workspace, &next).await });
        }
        self.guess = Some(next);
        Ok(page)
    }
}
