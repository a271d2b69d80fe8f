//! The gate's rules: what one sandbox may say, and what it is told (`choir §12.5`). The sandbox is hostile from its
//! first instruction; everything it sends is checked against the grant it was started under.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use choir_messages::event::Head;
use choir_messages::wire::{
    BoxFuture, Envelope, Hello, HelloAnswer, Reply, Request, VerbHandler, Verdict, WIRE_VERSION,
};
use choir_supervisors::{Address, CallError, Mail, ReplyTo};
use tracing::Instrument as _;

use super::Grant;
use super::gate::GateMsg;
use super::parts::Shared;
use super::replica::{ReplicaMsg, tree_fits};
use super::session_mail::SessionMsg;
use super::watchdog_actor::WatchdogMsg;
use crate::limits;

/// Longest wait for the replica: an append's own deadline in the store, with room.
const REPLICA: Duration = Duration::from_secs(30);

/// How often an agent that waits for the host counts as heard: well below the smallest crash threshold.
const STILL_HERE: Duration = Duration::from_millis(100);

/// One sandbox's gate.
pub(super) struct Gate {
    pub(super) shared: Arc<Shared>,
    pub(super) grant: Arc<Grant>,
    pub(super) revoked: Arc<AtomicBool>,
}

impl VerbHandler for Gate {
    fn handle(&self, envelope: Envelope) -> BoxFuture<'_, Result<Reply, Verdict>> {
        let span = tracing::info_span!(
            "verb",
            otel.kind = "server",
            verb = ?envelope.body.verb(),
            session = %self.grant.session,
            agent = %self.shared.agent,
        );
        crate::telemetry::set_parent(&span, &envelope.trace);
        Box::pin(self.answer(envelope).instrument(span))
    }
}

impl Gate {
    async fn answer(&self, envelope: Envelope) -> Result<Reply, Verdict> {
        if envelope.version != WIRE_VERSION {
            return Err(Verdict::Version(WIRE_VERSION));
        }
        let grant = &*self.grant;
        let valid = envelope.session == grant.session
            && envelope.lease == grant.lease
            && envelope.generation == grant.generation
            && !self.revoked.load(Ordering::Acquire);
        if !valid {
            return Err(Verdict::LeaseRevoked);
        }
        // A full mailbox drops the oldest word, which this one replaces.
        let _ = self.shared.watchdog.try_send(WatchdogMsg::Heard(grant.attempt));
        match envelope.body {
            Request::InitHello(hello) => self.hello(hello).await,
            Request::GetSecrets { names } => self.secrets(&names),
            Request::Heartbeat(heartbeat) => {
                let (grant, heartbeat) = (Arc::clone(&self.grant), Box::new(heartbeat));
                let ask = ask(&self.shared.replica, |reply| ReplicaMsg::Append { grant, heartbeat, reply });
                Ok(Reply::Heartbeat(self.heard_meanwhile(ask).await??))
            }
            Request::RequestApproval { kind, payload } => {
                let size = serde_json::to_string(&payload.0).map_or(usize::MAX, |text| text.len());
                if size > limits::APPROVAL_BYTES {
                    let most = limits::APPROVAL_BYTES;
                    return Err(Verdict::Rejected(format!("an approval's payload has at most {most} bytes")));
                }
                let store =
                    self.shared.host.store().ok_or_else(|| Verdict::Unavailable("no database".into()))?;
                let row = store.request_approval(grant.session, &kind, &payload).await;
                let row = row.map_err(|error| {
                    if error.is_transient() {
                        Verdict::Unavailable(error.to_string())
                    } else {
                        Verdict::Rejected(error.to_string())
                    }
                })?;
                Ok(Reply::Approval { approval: row.approval, status: row.status })
            }
            Request::ReportStatus(status) => {
                if !tree_fits(&status.tree.0) {
                    let most = limits::STATUS_TREE_BYTES;
                    return Err(Verdict::Rejected(format!("a reported tree has at most {most} bytes")));
                }
                let report = ReplicaMsg::Status { grant: Arc::clone(&self.grant), status: Box::new(status) };
                self.shared.replica.send(report).await.map_err(|e| Verdict::Unavailable(e.to_string()))?;
                Ok(Reply::Done)
            }
            Request::TerminateSelf { reason } => {
                let reason = reason.chars().take(200).filter(|c| !c.is_control()).collect();
                let leaving = SessionMsg::Leaving { attempt: grant.attempt, reason };
                self.shared.session.send(leaving).await.map_err(|e| Verdict::Unavailable(e.to_string()))?;
                Ok(Reply::Done)
            }
            Request::FetchDynamicConfig { current } => {
                let settings = self.shared.host.settings();
                let newer = (settings.version > current).then(|| settings.for_agent(&grant.llm)).flatten();
                Ok(Reply::Config { version: settings.version, settings: newer.map(Box::new) })
            }
            Request::ExecuteHostTool { tool, .. } => {
                let tool: String = tool.chars().take(80).collect();
                Err(Verdict::Rejected(format!("there is no host tool named \"{tool}\"")))
            }
        }
    }

    async fn hello(&self, hello: Hello) -> Result<Reply, Verdict> {
        let grant = &*self.grant;
        if hello.agent != self.shared.agent {
            return Err(Verdict::Rejected("the hello names another agent".into()));
        }
        let settings = self.shared.host.settings();
        let Some(settings) = settings.for_agent(&grant.llm) else {
            let what = format!("the model \"{}\" is no longer configured", grant.llm);
            return Err(Verdict::Unavailable(what));
        };
        let from = hello.head;
        let resume =
            |reply| ReplicaMsg::Resume { grant: Arc::clone(&self.grant), hello: Box::new(hello), reply };
        let point = self.heard_meanwhile(ask(&self.shared.replica, resume)).await??;
        let reaches = point.tail.last().map(choir_messages::event::Event::head);
        let reaches = reaches.or(point.snapshot.as_ref().map(|view| view.head)).unwrap_or(from);
        if covers(reaches, point.durable) {
            let greeted = GateMsg::Greeted { attempt: grant.attempt };
            self.shared.gate.send(greeted).await.map_err(|e| Verdict::Unavailable(e.to_string()))?;
        }
        Ok(Reply::Hello(Box::new(HelloAnswer {
            durable: point.durable,
            snapshot: point.snapshot.map(Box::new),
            tail: point.tail,
            bindings: grant.bindings.clone(),
            settings,
        })))
    }

    /// Waits for the host's own answer. Whoever waits for it is not silent: a database that is away for longer than the
    /// crash threshold must not cost the agent its life.
    async fn heard_meanwhile<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return answer,
                () = tokio::time::sleep(STILL_HERE) => {
                    let _ = self.shared.watchdog.try_send(WatchdogMsg::Heard(self.grant.attempt));
                }
            }
        }
    }

    /// Only secrets of the session's own resources (`choir §14.2`), whatever is asked for.
    fn secrets(&self, names: &[String]) -> Result<Reply, Verdict> {
        if names.len() > limits::SECRET_NAMES {
            return Err(Verdict::Rejected(format!("at most {} names at a time", limits::SECRET_NAMES)));
        }
        let settings = self.shared.host.settings();
        let bound = settings.config.models.get(&self.grant.llm).and_then(|model| model.secret.as_deref());
        let mut values = BTreeMap::new();
        for name in names {
            if Some(name.as_str()) != bound {
                let name: String = name.chars().take(63).collect();
                tracing::warn!(agent = %self.shared.agent, name, "a secret that is not the agent's was asked for");
                return Err(Verdict::Rejected(format!(
                    "\"{name}\" is not a secret of this session's resources"
                )));
            }
            let Some(value) = settings.secrets.get(name) else {
                let what = format!(
                    "the secret \"{name}\" is not set; run `choirctl secret set {name}` and `choirctl secret apply`"
                );
                return Err(Verdict::Rejected(what));
            };
            values.insert(name.clone(), value.clone());
        }
        Ok(Reply::Secrets { values })
    }
}

/// Whether an agent whose log reaches this far has everything that is durable.
fn covers(reaches: Head, durable: Head) -> bool {
    reaches == durable || reaches.rev > durable.rev
}

async fn ask<M: Mail, R>(to: &Address<M>, make: impl FnOnce(ReplyTo<R>) -> M) -> Result<R, Verdict> {
    to.call(REPLICA, make).await.map_err(|error: CallError| Verdict::Unavailable(error.to_string()))
}
