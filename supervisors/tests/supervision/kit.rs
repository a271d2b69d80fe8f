//! A probe actor that does what it is told and writes down what happens to it.

use choir_supervisors::{
    Actor, Address, Backoff, ChildSpec, Context, Failure, Mail, MailboxSpec, ReplyTo, ReplyToSelf,
    StartContext, Tree, TreeHandle, TreeNode, WhenFull, mailbox,
};
use std::collections::HashSet;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Longer than anything here takes, so that a failure is a failure and not a hang.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) enum Msg {
    Note(u32),
    Ask(ReplyTo<u64>),
    Panic,
    Fail,
    Stop,
    /// Never returns.
    Hang,
    /// Never returns and never answers.
    HangAsk(ReplyTo<u64>),
    /// Waits for the gate, then goes on.
    Gate(oneshot::Receiver<()>),
    /// Works this many seconds, saying so every second.
    Work(u32),
    /// Blocks its thread.
    Spin(std::sync::mpsc::Receiver<()>),
    /// A pipe that ends at once with this note.
    Pipe(u32),
    /// A pipe that never ends and holds this.
    PipeHolding(Box<dyn std::any::Any + Send>),
    PipePanic,
    /// Runs beside the actor until the gate opens, then writes this note into the log.
    Beside(oneshot::Receiver<()>, u32),
    /// Gives away a port whose answer comes back as a note, 99 for none.
    Port(oneshot::Sender<ReplyToSelf<u32>>),
    After(Duration, u32),
    Every(Duration, u32),
}

impl Mail for Msg {
    fn label(&self) -> &'static str {
        match self {
            Self::Note(_) => "note",
            Self::Ask(_) => "ask",
            Self::Panic => "panic",
            Self::Fail => "fail",
            Self::Stop => "stop",
            Self::Hang => "hang",
            Self::HangAsk(_) => "hang_ask",
            Self::Gate(_) => "gate",
            Self::Work(_) => "work",
            Self::Spin(_) => "spin",
            Self::Pipe(_) | Self::PipeHolding(_) | Self::PipePanic => "pipe",
            Self::Beside(..) => "beside",
            Self::Port(_) => "port",
            Self::After(..) | Self::Every(..) => "timer",
        }
    }
}

/// What happened, in order: `a+1` the first incarnation of `a` started, `a:7` it handled note 7, `a~1` its `stopping`
/// ran, `a-1` it was dropped.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, entry: String) {
        self.0.lock().unwrap().push(entry);
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

pub(crate) struct Probe {
    name: String,
    generation: u64,
    log: Log,
    slow_stop: Option<Duration>,
}

impl Actor for Probe {
    type Msg = Msg;

    async fn handle(&mut self, msg: Msg, cx: &mut Context<Msg>) -> Result<(), Failure> {
        match msg {
            Msg::Note(n) => self.log.add(format!("{}:{n}", self.name)),
            Msg::Ask(reply) => reply.send(self.generation),
            Msg::Panic => panic!("told to panic"),
            Msg::Fail => return Err(Failure::new("told to fail")),
            Msg::Stop => cx.stop(),
            Msg::Hang => pending().await,
            Msg::HangAsk(_reply) => pending().await,
            Msg::Gate(gate) => drop(gate.await),
            Msg::Work(seconds) => {
                for _ in 0..seconds {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    cx.progress();
                }
                self.log.add(format!("{} worked", self.name));
            }
            Msg::Spin(until) => drop(until.recv()),
            Msg::Pipe(n) => drop(cx.pipe_to_self(async move { n }, Msg::Note)?),
            Msg::PipeHolding(held) => {
                cx.pipe_to_self(
                    async move {
                        let _held = held;
                        pending::<u32>().await
                    },
                    Msg::Note,
                )?;
            }
            Msg::PipePanic => {
                cx.pipe_to_self(async { panic!("the pipe burst") }, |()| Msg::Note(0))?;
            }
            Msg::Beside(gate, n) => {
                let (log, name) = (self.log.clone(), self.name.clone());
                cx.run_beside(async move {
                    let _ = gate.await;
                    log.add(format!("{name} beside:{n}"));
                })?;
            }
            Msg::Port(to) => drop(to.send(cx.reply_to_self(|n: Option<u32>| Msg::Note(n.unwrap_or(99))))),
            Msg::After(delay, n) => drop(cx.send_after(delay, Msg::Note(n))?),
            Msg::Every(period, n) => drop(cx.send_interval(period, move || Msg::Note(n))?),
        }
        Ok(())
    }

    async fn stopping(&mut self, _: &mut Context<Msg>) {
        if let Some(time) = self.slow_stop {
            tokio::time::sleep(time).await;
        }
        self.log.add(format!("{}~{}", self.name, self.generation));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.log.add(format!("{}-{}", self.name, self.generation));
    }
}

/// Makes probes. `sick` holds the names whose factory fails.
#[derive(Clone, Default)]
pub(crate) struct Kit {
    pub(crate) log: Log,
    pub(crate) sick: Arc<Mutex<HashSet<String>>>,
}

pub(crate) const ROOMY: MailboxSpec = MailboxSpec { capacity: 64, when_full: WhenFull::Refuse };

impl Kit {
    pub(crate) fn probe(&self, name: &str) -> (Address<Msg>, ChildSpec) {
        self.probe_with(name, ROOMY, None)
    }

    pub(crate) fn probe_with(
        &self,
        name: &str,
        spec: MailboxSpec,
        slow_stop: Option<Duration>,
    ) -> (Address<Msg>, ChildSpec) {
        let (address, slot) = mailbox(name, spec);
        let (kit, name) = (self.clone(), name.to_owned());
        let factory = move |cx: StartContext<Msg>| {
            let (kit, name) = (kit.clone(), name.clone());
            async move {
                if kit.sick.lock().unwrap().contains(&name) {
                    return Err(Failure::new("the factory is sick"));
                }
                kit.log.add(format!("{name}+{}", cx.generation()));
                Ok(Probe { name, generation: cx.generation(), log: kit.log, slow_stop })
            }
        };
        (address, ChildSpec::worker(slot, factory).backoff(Backoff::NONE))
    }
}

/// Waits until the live tree looks as it should, and returns it.
pub(crate) async fn eventually(
    tree: &TreeHandle,
    what: &str,
    mut holds: impl FnMut(&TreeNode) -> bool,
) -> TreeNode {
    let mut changes = tree.changes();
    let wait = async {
        loop {
            changes.mark_unchanged();
            let now = tree.snapshot();
            if holds(&now) {
                return now;
            }
            // The sender lives as long as the handle.
            let _ = changes.changed().await;
        }
    };
    match timeout(LONG, wait).await {
        Ok(now) => now,
        Err(_) => panic!("never came true: {what}; the tree is {:#?}", tree.snapshot()),
    }
}

/// Waits for a place to be up in this generation.
pub(crate) async fn running(tree: &TreeHandle, path: &str, generation: u64) -> TreeNode {
    eventually(tree, &format!("{path} running as #{generation}"), |root| {
        root.find(path).is_some_and(|node| {
            node.generation == generation && node.state == choir_supervisors::NodeState::Running
        })
    })
    .await
}

pub(crate) async fn ask(address: &Address<Msg>) -> u64 {
    address.call(LONG, Msg::Ask).await.expect("the probe answers")
}

/// Ends the tree and proves that nothing of it is left.
pub(crate) async fn end(tree: Tree) {
    let report = timeout(LONG, tree.shutdown()).await.expect("the shutdown ends");
    assert_eq!(report.left, 0, "actors, pipes or timers leaked: {report:?}");
}
