//! Executors: one actor a running call (`choir §8.9`). The arbiter starts one for each committed call and is never
//! blocked by it. An executor that ends in any way takes its call with it.

pub mod core;
mod run;

use std::sync::Arc;
use std::time::Duration;

use choir_messages::mail::{Execution, ExecutorMsg, JournalMsg};
use choir_messages::reply::ReplyTo;
use choir_messages::tool::ToolOutcome;
use choir_supervisors::{
    Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Restart, Shutdown, WhenFull, mailbox,
};
use tokio::sync::watch;

use crate::registry::ToolRegistry;

pub use run::{bounded, execute, prepare};

/// Messages one executor may have waiting: a run, its end and some cancels.
pub const MAILBOX: usize = 8;

/// How long an executor may take to stop: the call is cancelled at once, nothing else is waited for.
pub const SHUTDOWN: Duration = Duration::from_secs(2);

/// The actor of one call.
#[derive(Debug)]
pub struct ExecutorActor {
    execution: Execution,
    registry: Arc<ToolRegistry>,
    journal: Address<JournalMsg>,
    cancel: watch::Sender<bool>,
    reply: Option<ReplyTo<ToolOutcome>>,
}

/// The address and child spec of the executor for one committed call. Temporary: a call that dies is not run again by
/// its supervisor, and whoever asked is told by the dropped reply port. Send it [`ExecutorMsg::Run`] once; it ends by
/// itself after the answer.
#[must_use]
pub fn executor_child(
    execution: Execution,
    registry: Arc<ToolRegistry>,
    journal: Address<JournalMsg>,
) -> (Address<ExecutorMsg>, ChildSpec) {
    let name = format!("call-{}", execution.invocation);
    let (address, slot) = mailbox(&name, MailboxSpec { capacity: MAILBOX, when_full: WhenFull::Refuse });
    let spec = ChildSpec::worker(slot, move |_start| {
        let actor = ExecutorActor {
            execution: execution.clone(),
            registry: Arc::clone(&registry),
            journal: journal.clone(),
            cancel: watch::Sender::new(false),
            reply: None,
        };
        async move { Ok(actor) }
    });
    (address, spec.restart(Restart::Temporary).shutdown(Shutdown::Within(SHUTDOWN)))
}

impl Actor for ExecutorActor {
    type Msg = ExecutorMsg;

    async fn handle(&mut self, msg: ExecutorMsg, cx: &mut Context<ExecutorMsg>) -> Result<(), Failure> {
        match msg {
            // A second run would be a second effect; its port is dropped, which tells the asker so.
            ExecutorMsg::Run { .. } if self.reply.is_some() => {}
            ExecutorMsg::Run { reply } => {
                self.reply = Some(reply);
                let call = execute(
                    Arc::clone(&self.registry),
                    self.execution.clone(),
                    self.journal.clone(),
                    self.cancel.subscribe(),
                );
                cx.pipe_to_self(call, ExecutorMsg::Finished)?;
            }
            ExecutorMsg::Cancel => {
                self.cancel.send_replace(true);
            }
            ExecutorMsg::Finished(outcome) => {
                if let Some(reply) = self.reply.take() {
                    reply.send(outcome);
                }
                cx.stop();
            }
        }
        Ok(())
    }
    // Stopped before its end it answers nothing: the call's future is dropped, which ends the call, and what came of it
    // is for the recovery to find out.
}
