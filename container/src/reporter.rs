//! The reporter: tells the host how the lanes are (`REPORT_STATUS`), with the live tree, so that `choirctl tree` shows
//! both processes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use choir_messages::json::Json;
use choir_messages::mail::{EdgeMsg, Mail, UplinkMsg};
use choir_messages::wire::{LaneStatus, Request};
use choir_supervisors::{
    Actor, Address, ChildSpec, Context, Failure, MailboxSpec, TreeHandle, WhenFull, mailbox,
};

/// How often, at most.
const EVERY: Duration = Duration::from_secs(1);

/// A report is repeated after this many periods even if nothing changed.
const AT_LEAST: u32 = 10;

/// Longest wait for the lane or the host.
const WITHIN: Duration = Duration::from_secs(2);

/// Longest tree told, in bytes of JSON.
const TREE_BYTES: usize = 60 * 1024;

/// The reporter's own messages.
#[derive(Debug)]
pub(crate) enum ReporterMsg {
    Tick,
    Status(Option<LaneStatus>),
    Sent,
}

impl Mail for ReporterMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Tick => "tick",
            Self::Status(_) => "status",
            Self::Sent => "sent",
        }
    }
}

/// Filled once the tree stands; the reporter is part of it.
pub(crate) type TreeCell = Arc<OnceLock<TreeHandle>>;

struct Reporter {
    edge: Address<EdgeMsg>,
    uplink: Address<UplinkMsg>,
    tree: TreeCell,
    last: Option<(String, u64)>,
    quiet: u32,
    sending: bool,
}

/// The reporter's place in the tree.
pub(crate) fn child_spec(edge: Address<EdgeMsg>, uplink: Address<UplinkMsg>, tree: TreeCell) -> ChildSpec {
    let (_, slot) = mailbox("reporter", MailboxSpec { capacity: 8, when_full: WhenFull::DropOldest });
    ChildSpec::worker(slot, move |_| {
        let (edge, uplink, tree) = (edge.clone(), uplink.clone(), Arc::clone(&tree));
        async move { Ok::<_, Failure>(Reporter { edge, uplink, tree, last: None, quiet: 0, sending: false }) }
    })
}

impl Actor for Reporter {
    type Msg = ReporterMsg;

    async fn started(&mut self, cx: &mut Context<ReporterMsg>) -> Result<(), Failure> {
        cx.send_interval(EVERY, || ReporterMsg::Tick)?;
        Ok(())
    }

    async fn handle(&mut self, msg: ReporterMsg, cx: &mut Context<ReporterMsg>) -> Result<(), Failure> {
        match msg {
            ReporterMsg::Tick if !self.sending => {
                self.sending = true;
                let edge = self.edge.clone();
                cx.pipe_to_self(
                    async move { edge.call(WITHIN, |reply| EdgeMsg::Status { reply }).await.ok() },
                    ReporterMsg::Status,
                )?;
            }
            ReporterMsg::Tick => {}
            ReporterMsg::Status(None) => self.sending = false,
            ReporterMsg::Status(Some(mut status)) => {
                let mark = (status.state.clone(), status.spent.model_calls + status.spent.tool_calls);
                self.quiet += 1;
                if self.last.as_ref() == Some(&mark) && self.quiet < AT_LEAST {
                    self.sending = false;
                    return Ok(());
                }
                (self.last, self.quiet) = (Some(mark), 0);
                status.tree = self.tree_json();
                let uplink = self.uplink.clone();
                let deadline_ms = u64::try_from(WITHIN.as_millis()).unwrap_or(u64::MAX);
                cx.pipe_to_self(
                    async move {
                        let request = Request::ReportStatus(status);
                        // A report that is lost is followed by another.
                        let _ = uplink
                            .call(WITHIN, |reply| UplinkMsg::Call { request, deadline_ms, reply })
                            .await;
                    },
                    |()| ReporterMsg::Sent,
                )?;
            }
            ReporterMsg::Sent => self.sending = false,
        }
        Ok(())
    }
}

impl Reporter {
    fn tree_json(&self) -> Json {
        let Some(tree) = self.tree.get() else { return Json::default() };
        let value = serde_json::to_value(tree.snapshot()).unwrap_or_default();
        if value.to_string().len() > TREE_BYTES { Json::default() } else { Json(value) }
    }
}
