//! The scribe: the only one that appends. It takes a role's drafts if they were made of the newest board, has the trace's
//! rules admit them, signs them with that role's key, syncs, and shows the new board to everyone. When the verification
//! is recorded, it ends the trace.

use std::sync::Arc;

use choir_ledger::event::{Event, EventType, Role};
use choir_messages::chain::Digest;
use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, Slot, WhenFull};

use crate::board::Board;
use crate::book::{Book, BookError, Ending, entry, is_read};
use crate::draft::Draft;
use crate::driver::NotAppended;
use crate::limits::{EVENTS, SCRIBE};
use crate::role::RoleMsg;
use crate::run::{Opened, RunDeps, RunEnd};

/// Submissions of the roles, a few each, and an end.
pub(crate) const MAILBOX: MailboxSpec = MailboxSpec { capacity: 64, when_full: WhenFull::Wait(SCRIBE) };

/// What the scribe is told.
#[derive(Debug)]
pub enum ScribeMsg {
    /// Append these, if the trace has `seen` events.
    Submit {
        /// Who signs.
        role: Role,
        /// What.
        drafts: Vec<Draft>,
        /// The events the role has seen.
        seen: usize,
        /// Answered once they are synced, or with why not.
        reply: ReplyTo<Result<(), NotAppended>>,
    },
    /// Bring what stands beside the ledger up to date.
    Checkpoint {
        /// Answered once it is.
        reply: ReplyTo<Result<(), String>>,
    },
    /// End the run without success.
    End {
        /// How.
        ending: Ending,
        /// Why, for a person.
        reason: String,
        /// Whether policy is why.
        refused: bool,
    },
}

impl Mail for ScribeMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Submit { .. } => "submit",
            Self::Checkpoint { .. } => "checkpoint",
            Self::End { .. } => "end",
        }
    }
}

pub(crate) struct Scribe {
    deps: Arc<RunDeps>,
    book: Option<Box<dyn Book>>,
    board: Arc<Board>,
}

pub(crate) fn child(slot: Slot<ScribeMsg>, deps: Arc<RunDeps>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let deps = Arc::clone(&deps);
        async move {
            match (deps.open)().await.map_err(Failure::new)? {
                Opened::Ended(end) => {
                    deps.end.send_replace(Some(end));
                    Ok(Scribe { deps, book: None, board: Arc::default() })
                }
                Opened::Book(book) => {
                    let (book, read) = blocking(book, |book| read(book.as_ref())).await?;
                    Ok(Scribe { deps, book: Some(book), board: Arc::new(read.map_err(fail)?) })
                }
            }
        }
    })
}

fn fail(error: BookError) -> Failure {
    Failure::new(error.to_string())
}

/// Runs something that waits for the disk where it holds nobody up. If this incarnation ends meanwhile, the book is
/// closed when it is done.
async fn blocking<T: Send + 'static>(
    mut book: Box<dyn Book>,
    work: impl FnOnce(&mut Box<dyn Book>) -> T + Send + 'static,
) -> Result<(Box<dyn Book>, T), Failure> {
    let done = tokio::task::spawn_blocking(move || {
        let result = work(&mut book);
        (book, result)
    });
    done.await.map_err(|error| Failure::new(format!("the ledger's writer panicked: {error}")))
}

fn read(book: &dyn Book) -> Result<Board, BookError> {
    let mut board = Board::default();
    for event in book.events()? {
        apply(&mut board, &event, |hash| book.artifact(hash));
    }
    Ok(board)
}

fn apply(board: &mut Board, event: &Event, artifact: impl Fn(&Digest) -> Option<Vec<u8>>) {
    if is_read(event.event_type()) {
        for descriptor in event.artifacts() {
            let hash = &descriptor.artifact_hash;
            if let Some(text) = artifact(hash).and_then(|bytes| String::from_utf8(bytes).ok()) {
                board.texts.insert(hash.to_string(), text.into());
            }
        }
    }
    board.apply(Arc::new(entry(event)));
}

impl Actor for Scribe {
    type Msg = ScribeMsg;

    async fn started(&mut self, _cx: &mut Context<ScribeMsg>) -> Result<(), Failure> {
        if self.book.is_some() && self.board.count == 0 {
            let Some(task) = &self.deps.task else {
                return self.end(Ending::Failed, "its session was never initialised", false).await;
            };
            let draft = Draft::new(EventType::SessionInitialized, task.payload(self.deps.agent.as_str()));
            match self.append(Role::Planner, vec![draft]).await? {
                Ok(()) => {}
                Err(BookError::NoSigner(_)) => return Ok(()),
                Err(error) => return Err(fail(error)),
            }
        }
        self.show();
        self.end_if_verified().await
    }

    async fn handle(&mut self, msg: ScribeMsg, _cx: &mut Context<ScribeMsg>) -> Result<(), Failure> {
        match msg {
            ScribeMsg::Submit { role, drafts, seen, reply } => {
                let result = self.submit(role, drafts, seen).await?;
                reply.send(result);
                self.end_if_verified().await?;
            }
            ScribeMsg::Checkpoint { reply } => {
                let Some(book) = self.book.take() else {
                    reply.send(Err("the run has ended".to_owned()));
                    return Ok(());
                };
                let (book, result) = blocking(book, |book| book.checkpoint()).await?;
                self.book = Some(book);
                reply.send(result.map_err(|error| error.to_string()));
            }
            ScribeMsg::End { ending, reason, refused } => self.end(ending, &reason, refused).await?,
        }
        Ok(())
    }
}

impl Scribe {
    async fn submit(
        &mut self,
        role: Role,
        drafts: Vec<Draft>,
        seen: usize,
    ) -> Result<Result<(), NotAppended>, Failure> {
        if self.book.is_none() {
            return Ok(Err(NotAppended::Unavailable("the run has ended".to_owned())));
        }
        if seen != self.board.count {
            self.show();
            return Ok(Err(NotAppended::Behind));
        }
        if self.board.count.saturating_add(drafts.len()) > EVENTS {
            return Ok(Err(NotAppended::Refused(format!("a run has at most {EVENTS} events"))));
        }
        let result = self.append(role, drafts).await?;
        self.show();
        Ok(result.map_err(|error| match error {
            BookError::Refused(why) => NotAppended::Refused(why),
            BookError::NoSigner(why) | BookError::Failed(why) => NotAppended::Unavailable(why),
        }))
    }

    /// A writer that failed is of no more use: this incarnation ends, and the next one opens the trace again. A role that
    /// can sign no more ends the run, for nothing that is missing from it will come.
    async fn append(&mut self, role: Role, drafts: Vec<Draft>) -> Result<Result<(), BookError>, Failure> {
        let Some(book) = self.book.take() else { return Err(Failure::new("the run has ended")) };
        let board = Board::clone(&self.board);
        let (book, (board, result)) = blocking(book, move |book| {
            let mut board = board;
            let (events, result) = match book.append(role, &drafts) {
                Ok(events) => (events, Ok(())),
                Err((events, error)) => (events, Err(error)),
            };
            for event in &events {
                apply(&mut board, event, |hash| book.artifact(hash));
            }
            (board, result)
        })
        .await?;
        self.book = Some(book);
        self.board = Arc::new(board);
        match &result {
            Err(BookError::Failed(why)) => {
                self.show();
                Err(Failure::new(why.clone()))
            }
            Err(BookError::NoSigner(why)) => {
                self.end(Ending::Failed, why, false).await?;
                Ok(result)
            }
            Ok(()) | Err(BookError::Refused(_)) => Ok(result),
        }
    }

    /// Shows the board, and says to the roles that there is something to look at.
    fn show(&self) {
        self.deps.board.send_replace(Arc::clone(&self.board));
        for role in &self.deps.roles {
            // A hint: a role that misses it looks by itself.
            let _ = role.try_send(RoleMsg::Moved);
        }
    }

    async fn end_if_verified(&mut self) -> Result<(), Failure> {
        let Some(verified) = self.board.verified.clone().filter(|_| self.book.is_some()) else {
            return Ok(());
        };
        let ending = if verified.status == "fail" { Ending::Failed } else { Ending::Completed };
        self.end(ending, &format!("verification: {}", verified.status), false).await
    }

    async fn end(&mut self, ending: Ending, reason: &str, refused: bool) -> Result<(), Failure> {
        let Some(book) = self.book.take() else { return Ok(()) };
        let why = reason.to_owned();
        let finished = tokio::task::spawn_blocking(move || book.finish(ending, &why)).await;
        finished.map_err(|error| Failure::new(error.to_string()))?.map_err(fail)?;
        let verdict = self.board.verified.as_ref().map(|verified| verified.status.clone());
        tracing::info!(trace = %self.deps.trace, ?ending, reason, "the run has ended");
        self.show();
        self.deps.end.send_replace(Some(RunEnd { ending, reason: reason.to_owned(), refused, verdict }));
        Ok(())
    }
}
