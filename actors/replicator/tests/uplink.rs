//! The uplink beside neighbours that take everything and do nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use choir_messages::chain::Digest;
use choir_messages::event::Head;
use choir_messages::id::{LeaseId, SessionId};
use choir_messages::json::Json;
use choir_messages::mail::{LinkState, Mail, ReplicatorMsg, UplinkMsg};
use choir_messages::model::ModelConfig;
use choir_messages::reply::reply_port;
use choir_messages::wire::{
    AgentSettings, BoxFuture, Budgets, ControlPlane, Envelope, HelloAnswer, LinkError, Reply, Request,
    TraceContext, Verdict,
};
use choir_replicator::identity::LinkIdentity;
use choir_replicator::uplink::{Connector, UplinkDeps, child_spec};
use choir_supervisors::{
    Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Strategy, SupervisorSpec, Tree, WhenFull,
    mailbox,
};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A link that lives until it is dropped.
struct Link;

impl ControlPlane for Link {
    fn call(&self, envelope: Envelope, _: Duration) -> BoxFuture<'_, Result<Reply, LinkError>> {
        Box::pin(async move {
            match envelope.body {
                Request::InitHello(_) => Ok(Reply::Hello(Box::new(HelloAnswer {
                    durable: Head::START,
                    snapshot: None,
                    tail: Vec::new(),
                    bindings: BTreeMap::new(),
                    settings: settings(),
                }))),
                Request::TerminateSelf { .. } => pending().await,
                _ => Err(LinkError::Refused(Verdict::Rejected("not here".into()))),
            }
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        Box::pin(pending())
    }
}

fn settings() -> AgentSettings {
    AgentSettings {
        version: 1,
        model: ModelConfig {
            name: "m".into(),
            model: "m".into(),
            endpoint: "http://127.0.0.1:1".into(),
            temperature: None,
            reasoning_effort: None,
            secret: None,
            timeout_ms: 1000,
            rate_limit_retry_ms: 1000,
            extra: Json::default(),
        },
        budgets: Budgets::default(),
        heartbeat_interval_ms: 700,
    }
}

/// Tells of each link it makes, without holding it. Like a host, it makes none while there is another.
struct Links(mpsc::UnboundedSender<Weak<Link>>, Mutex<Weak<Link>>);

impl Connector for Links {
    fn connect(&self) -> BoxFuture<'static, Result<Arc<dyn ControlPlane>, LinkError>> {
        let mut last = self.1.lock().unwrap();
        if last.upgrade().is_some() {
            return Box::pin(async { Err(LinkError::Down) });
        }
        let link = Arc::new(Link);
        *last = Arc::downgrade(&link);
        let _ = self.0.send(Arc::downgrade(&link));
        Box::pin(async move { Ok(link as Arc<dyn ControlPlane>) })
    }
}

/// Drops whatever it is sent.
struct Sink<M>(std::marker::PhantomData<fn() -> M>);

impl<M: Mail> Actor for Sink<M> {
    type Msg = M;

    async fn handle(&mut self, _: M, _: &mut Context<M>) -> Result<(), Failure> {
        Ok(())
    }
}

const ROOM: MailboxSpec = MailboxSpec { capacity: 64, when_full: WhenFull::Wait(Duration::from_secs(1)) };

fn sink<M: Mail>(name: &str) -> (Address<M>, ChildSpec) {
    let (address, slot) = mailbox::<M>(name, ROOM);
    (address, ChildSpec::worker(slot, |_| async { Ok(Sink::<M>(std::marker::PhantomData)) }))
}

/// Holds the link it is told of until it is told that there is none, as the replicator does.
#[derive(Default)]
struct Holder(Option<Arc<dyn ControlPlane>>);

impl Actor for Holder {
    type Msg = ReplicatorMsg;

    async fn handle(&mut self, msg: ReplicatorMsg, _: &mut Context<ReplicatorMsg>) -> Result<(), Failure> {
        match msg {
            ReplicatorMsg::Link(LinkState::Up { control, .. }) => self.0 = Some(control),
            ReplicatorMsg::Link(LinkState::Down) => self.0 = None,
            _ => {}
        }
        Ok(())
    }
}

struct World {
    tree: Tree,
    uplink: Address<UplinkMsg>,
    links: mpsc::UnboundedReceiver<Weak<Link>>,
    interval: watch::Receiver<Duration>,
}

async fn world() -> World {
    let (made, links) = mpsc::unbounded_channel();
    let (interval, interval_at) = watch::channel(Duration::from_secs(5));
    let (uplink, slot) = mailbox("uplink", ROOM);
    let (journal, journal_spec) = sink("journal");
    let (replicator, replicator_slot) = mailbox("replicator", ROOM);
    let replicator_spec = ChildSpec::worker(replicator_slot, |_| async { Ok(Holder::default()) });
    let (arbiter, arbiter_spec) = sink("arbiter");
    let (edge, edge_spec) = sink("edge");
    let (models, models_spec) = sink("models");
    let identity = LinkIdentity {
        agent: "a".parse().unwrap(),
        session: SessionId::from_bits(1),
        lease: LeaseId::from_bits(2),
        generation: 1,
        image_version: "test".into(),
        tool_manifest: Digest::ZERO,
        skill_manifest: Digest::ZERO,
        trace: TraceContext::default,
    };
    let deps = UplinkDeps {
        connector: Arc::new(Links(made, Mutex::default())),
        identity: Arc::new(identity),
        journal,
        replicator,
        arbiter,
        edge,
        models,
        interval,
        ended: Arc::new(|_| {}),
    };
    let spec = SupervisorSpec::new("top", Strategy::OneForOne)
        .child(journal_spec)
        .child(replicator_spec)
        .child(arbiter_spec)
        .child(edge_spec)
        .child(models_spec)
        .child(child_spec(slot, deps));
    World { tree: Tree::start(spec).await.unwrap(), uplink, links, interval: interval_at }
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_interval_of_the_settings_is_put_into_force() {
    let mut world = world().await;
    let told = world.interval.wait_for(|interval| *interval == Duration::from_millis(700));
    timeout(LONG, told).await.unwrap().unwrap();
    world.tree.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_given_up_is_let_go_before_the_next_is_made() {
    let mut world = world().await;
    let first = timeout(LONG, world.links.recv()).await.unwrap().unwrap();
    // Up once the settings of its hello are in force.
    timeout(LONG, world.interval.changed()).await.unwrap().unwrap();
    assert!(first.upgrade().is_some());
    world.uplink.send(UplinkMsg::Lost { attempt: 0 }).await.unwrap();
    let second = timeout(LONG, world.links.recv()).await.unwrap().unwrap();
    assert!(first.upgrade().is_none(), "the host would still see the first link");
    assert!(second.upgrade().is_some());
    world.tree.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_link_of_a_killed_uplink_is_let_go_by_everyone_who_had_it() {
    let mut world = world().await;
    let first = timeout(LONG, world.links.recv()).await.unwrap().unwrap();
    timeout(LONG, world.interval.changed()).await.unwrap().unwrap();
    // A call that the host never answers holds the link too.
    let (reply, answer) = reply_port();
    let request = Request::TerminateSelf { reason: "unanswered".into() };
    world.uplink.send(UplinkMsg::Call { request, deadline_ms: 3_600_000, reply }).await.unwrap();
    // It is under way once the next message is answered.
    world.uplink.call(LONG, |reply| UplinkMsg::Current { reply }).await.unwrap();
    assert!(first.upgrade().is_some());
    assert!(world.tree.handle().kill("top/uplink"));
    let second = timeout(LONG, world.links.recv()).await.unwrap().unwrap();
    assert!(timeout(LONG, answer).await.unwrap().is_err(), "its asker is told");
    assert!(first.upgrade().is_none());
    assert!(second.upgrade().is_some());
    world.tree.shutdown().await;
}
