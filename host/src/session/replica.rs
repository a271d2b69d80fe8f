//! The host's copy of an agent's log (`choir §13.1`): appends what heartbeats carry, acknowledges what is durable, and
//! keeps what the agent last said of itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use choir_messages::event::{Head, Revision};
use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_messages::wire::{Heartbeat, HeartbeatAck, Hello, LaneStatus, Verdict};
use choir_persistence::AppendError;
use choir_persistence::store::resume::{ResumeError, ResumePoint};
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Slot};
use serde_json::Value;

use super::Grant;
use super::core::Attempt;
use super::parts::Shared;
use super::session_mail::SessionMsg;
use crate::control::views::LaneView;
use crate::limits;

/// Most lanes kept: the edge and the most core jobs a budget may allow.
const LANES: usize = 65;

/// Longest handling of one message: an append's own deadline, with room.
const STUCK: Duration = Duration::from_secs(60);

/// What the replica is told. The gate has checked session, lease and generation.
pub(crate) enum ReplicaMsg {
    /// Events and a sign of life.
    Append { grant: Arc<Grant>, heartbeat: Box<Heartbeat>, reply: ReplyTo<Result<HeartbeatAck, Verdict>> },
    /// Where do we stand?
    Resume { grant: Arc<Grant>, hello: Box<Hello>, reply: ReplyTo<Result<ResumePoint, Verdict>> },
    /// How a lane is.
    Status { grant: Arc<Grant>, status: Box<LaneStatus> },
    /// What is known.
    View { reply: ReplyTo<ReplicaView> },
}

impl Mail for ReplicaMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Append { .. } => "append",
            Self::Resume { .. } => "resume",
            Self::Status { .. } => "status",
            Self::View { .. } => "view",
        }
    }
}

/// What the replica knows of its agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplicaView {
    pub(crate) durable: Revision,
    pub(crate) newest: Revision,
    pub(crate) config_version: Option<u64>,
    pub(crate) silent: Option<Duration>,
    pub(crate) lanes: BTreeMap<String, LaneView>,
    pub(crate) tree: Option<Value>,
}

struct Replica {
    shared: Arc<Shared>,
    attempt: Attempt,
    /// Whether the session was told of this sandbox's progress.
    told: bool,
    start: Option<Revision>,
    heard: Option<super::Now>,
    view: ReplicaView,
}

pub(super) fn child_spec(slot: Slot<ReplicaMsg>, shared: Arc<Shared>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let shared = Arc::clone(&shared);
        async move {
            let view = ReplicaView::default();
            Ok(Replica { shared, attempt: 0, told: false, start: None, heard: None, view })
        }
    })
    .stuck_after(STUCK)
}

impl Actor for Replica {
    type Msg = ReplicaMsg;

    async fn handle(&mut self, msg: ReplicaMsg, _cx: &mut Context<ReplicaMsg>) -> Result<(), Failure> {
        match msg {
            ReplicaMsg::Append { grant, heartbeat, reply } => {
                self.hear(&grant);
                reply.send(self.append(&grant, *heartbeat).await);
            }
            ReplicaMsg::Resume { grant, hello, reply } => {
                self.hear(&grant);
                reply.send(self.resume(&grant, hello.head).await);
            }
            ReplicaMsg::Status { grant, status } => {
                self.hear(&grant);
                let LaneStatus { lane, state, spent, tree } = *status;
                let lane = lane.to_string();
                if self.view.lanes.len() < LANES || self.view.lanes.contains_key(&lane) {
                    let state = state.chars().take(64).collect();
                    self.view.lanes.insert(lane, LaneView { state, spent });
                }
                if !tree.0.is_null() {
                    self.view.tree = Some(tree.0);
                }
            }
            ReplicaMsg::View { reply } => {
                let mut view = self.view.clone();
                view.silent = self.heard.map(|at| self.shared.host.now().saturating_sub(at));
                reply.send(view);
            }
        }
        Ok(())
    }
}

impl Replica {
    /// A word of a new sandbox makes what the one before said of itself stale.
    fn hear(&mut self, grant: &Grant) {
        if grant.attempt != self.attempt {
            self.attempt = grant.attempt;
            self.told = false;
            self.start = None;
            self.view.lanes.clear();
            self.view.tree = None;
            self.view.config_version = None;
        }
        self.heard = Some(self.shared.host.now());
    }

    async fn append(&mut self, grant: &Grant, heartbeat: Heartbeat) -> Result<HeartbeatAck, Verdict> {
        let store = self.shared.host.store().ok_or_else(|| self.no_store())?;
        self.view.newest = heartbeat.newest;
        self.view.config_version = Some(heartbeat.config_version);
        let appended = store.append(grant.session, grant.lease, grant.generation, heartbeat.events).await;
        let ack = appended.map_err(|error| verdict(&error))?;
        self.stands_at(grant, ack.head).await;
        // What the agent has beyond what is durable here, were it to die now.
        let lag = heartbeat.newest.saturating_sub(ack.head.rev);
        self.shared.host.metrics.replication_lag(self.shared.agent.as_str(), lag);
        Ok(HeartbeatAck { durable: ack.head, config_version: self.shared.host.settings().version })
    }

    async fn resume(&mut self, grant: &Grant, from: Head) -> Result<ResumePoint, Verdict> {
        let store = self.shared.host.store().ok_or_else(|| self.no_store())?;
        let point = match store.resume_point(grant.session, from).await {
            Ok(point) => point,
            // An agent that reconnects may be ahead of what is durable; it streams the rest, and every event of it is
            // checked against the chain then.
            Err(ResumeError::Diverged { durable }) if from.rev > durable.rev => {
                ResumePoint { durable, snapshot: None, tail: Vec::new() }
            }
            Err(ResumeError::Diverged { durable }) => return Err(Verdict::Diverged { durable }),
            Err(ResumeError::Database(error)) => return Err(Verdict::Unavailable(error.to_string())),
        };
        self.stands_at(grant, point.durable).await;
        Ok(point)
    }

    async fn stands_at(&mut self, grant: &Grant, head: Head) {
        self.view.durable = head.rev;
        let start = *self.start.get_or_insert(head.rev);
        if head.rev > start && !self.told {
            let progress = SessionMsg::Progress { attempt: grant.attempt };
            self.told = self.shared.session.send(progress).await.is_ok();
        }
    }

    fn no_store(&self) -> Verdict {
        let why = self.shared.host.health.borrow().trouble.clone();
        Verdict::Unavailable(why.unwrap_or_else(|| "the database is not open".into()))
    }
}

fn verdict(error: &AppendError) -> Verdict {
    match error {
        AppendError::LeaseRevoked => Verdict::LeaseRevoked,
        AppendError::Diverged { durable } => Verdict::Diverged { durable: *durable },
        error if error.is_transient() => Verdict::Unavailable(error.to_string()),
        AppendError::Database(error) => Verdict::Unavailable(error.to_string()),
        error => Verdict::Rejected(error.to_string()),
    }
}

/// Whether a reported tree is small enough to keep.
pub(super) fn tree_fits(tree: &Value) -> bool {
    serde_json::to_string(tree).is_ok_and(|text| text.len() <= limits::STATUS_TREE_BYTES)
}
