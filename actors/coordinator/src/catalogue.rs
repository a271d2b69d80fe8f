//! The catalogue: which workspaces there are, for operators. One question at a time; it holds nothing.

use choir_messages::mail::{Mail, Unanswered, WorkspaceLine};
use choir_messages::reply::ReplyTo;
use choir_persistence::chap::ChapStore;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, Slot, WhenFull};

use crate::limits::{CATALOGUE_MAILBOX, CATALOGUE_PAGE, CATALOGUE_WITHIN};

/// One question.
#[derive(Debug)]
pub(crate) struct CatalogueMsg {
    /// The last workspace the asker has.
    pub(crate) after: Option<String>,
    /// Most wanted.
    pub(crate) limit: usize,
    /// The page.
    pub(crate) reply: ReplyTo<Result<Vec<WorkspaceLine>, Unanswered>>,
}

impl Mail for CatalogueMsg {
    fn label(&self) -> &'static str {
        "list"
    }
}

/// An asker that finds it full is told so by its reply port, and asks again.
pub(crate) const MAILBOX: MailboxSpec =
    MailboxSpec { capacity: CATALOGUE_MAILBOX, when_full: WhenFull::Refuse };

struct Catalogue {
    store: ChapStore,
}

pub(crate) fn child(slot: Slot<CatalogueMsg>, store: ChapStore) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let store = store.clone();
        async move { Ok(Catalogue { store }) }
    })
}

impl Actor for Catalogue {
    type Msg = CatalogueMsg;

    async fn handle(
        &mut self,
        CatalogueMsg { after, limit, reply }: CatalogueMsg,
        _cx: &mut Context<CatalogueMsg>,
    ) -> Result<(), Failure> {
        if reply.is_abandoned() {
            return Ok(());
        }
        let found = self.store.workspaces(after.as_deref(), limit.clamp(1, CATALOGUE_PAGE));
        let page = match tokio::time::timeout(CATALOGUE_WITHIN, found).await {
            Ok(Ok(found)) => Ok(found
                .into_iter()
                .map(|one| WorkspaceLine { workspace: one.workspace, entries: one.entries })
                .collect()),
            Ok(Err(error)) => Err(Unanswered::NotStored(error.to_string())),
            Err(_) => Err(Unanswered::NotStored("the store did not answer in time".to_owned())),
        };
        reply.send(page);
        Ok(())
    }
}
