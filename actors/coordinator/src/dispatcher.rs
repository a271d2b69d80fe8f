//! The dispatcher: gives each call its workspace's actor, starts one where there is none, and ends those that idle.

use std::sync::Arc;

use choir_chap::{Answer, Attested, Body, Call, Context as StepContext, Outcome, Refusal, Workspace, codes};
use choir_messages::chap::ObjectKey;
use choir_messages::id::MessageId;
use choir_messages::mail::{Caller, Mail};
use choir_supervisors::{
    Actor, Address, ChildSpec, Context, DynamicHandle, Failure, MailboxSpec, Slot, WhenFull, mailbox,
};

use crate::fresh;
use crate::gauge::{Gauge, Held};
use crate::inboxes::Ask;
use crate::job::{Asker, Job};
use crate::limits::{ATTEST_WITHIN, ATTESTING, READ_BESIDE, ROUTER_MAILBOX, SWEEP_EVERY};
use crate::rates::Quotas;
use crate::seats::Seats;
use crate::settings::{Hooks, Presentation, Settings};
use crate::workspace::{self, Surroundings, WorkspaceMsg};

/// What the dispatcher is told.
#[derive(Debug)]
pub(crate) enum DispatchMsg {
    /// A call that was read.
    Call {
        /// The call.
        call: Box<Call>,
        /// Who carries it.
        caller: Caller,
        /// Who waits.
        asker: Asker,
        /// Counts it for the router until it has been passed on.
        in_line: Option<Held>,
    },
    /// A long body, to be read beside.
    Read {
        /// The call as received.
        bytes: Arc<[u8]>,
        /// Who carries it.
        caller: Caller,
        /// Who waits.
        asker: Asker,
    },
    /// A long body was read.
    WasRead,
    /// What a call shows was looked at.
    Attested(Job),
    /// Deadlines of a workspace have come.
    Lapse {
        /// The workspace.
        workspace: String,
        /// The objects.
        keys: Vec<ObjectKey>,
    },
    /// A participant asks for its notices.
    Inbox {
        /// The question.
        ask: Ask,
        /// Who carries it.
        caller: Caller,
    },
    /// A workspace's actor is up, or not.
    Started {
        /// The workspace.
        workspace: String,
        /// The actor's number.
        number: u64,
        /// Whether it is up.
        up: bool,
    },
    /// Time to look for idle actors.
    Sweep,
}

impl Mail for DispatchMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Call { .. } => "call",
            Self::Read { .. } => "read",
            Self::WasRead => "was_read",
            Self::Attested(_) => "attested",
            Self::Lapse { .. } => "lapse",
            Self::Inbox { .. } => "inbox",
            Self::Started { .. } => "started",
            Self::Sweep => "sweep",
        }
    }
}

/// Whoever finds it full is told that the Coordinator is busy.
pub(crate) const MAILBOX: MailboxSpec = MailboxSpec { capacity: ROUTER_MAILBOX, when_full: WhenFull::Refuse };

/// What every incarnation of the dispatcher is given.
#[derive(Clone)]
pub(crate) struct Deps {
    pub(crate) settings: Arc<Settings>,
    pub(crate) hooks: Hooks,
    pub(crate) around: Arc<Surroundings>,
    pub(crate) workspaces: DynamicHandle,
    pub(crate) seats: Seats,
    pub(crate) quotas: Quotas,
}

pub(crate) struct Dispatcher {
    deps: Deps,
    /// Actors ever started; with the incarnation it makes their names unique.
    numbers: u64,
    generation: u64,
    reading: usize,
    attesting: Gauge,
}

pub(crate) fn child(slot: Slot<DispatchMsg>, deps: Deps) -> ChildSpec {
    ChildSpec::worker(slot, move |cx| {
        let deps = deps.clone();
        async move {
            // The actors of the dispatcher before have ended with it.
            deps.seats.clear();
            Ok(Dispatcher {
                deps,
                numbers: 0,
                generation: cx.generation(),
                reading: 0,
                attesting: Gauge::new(),
            })
        }
    })
}

/// Characters of a workspace's id that show in its actor's name.
const NAME_CHARS: usize = 40;

fn child_name(workspace: &str, generation: u64, number: u64) -> String {
    let readable: String = workspace
        .chars()
        .take(NAME_CHARS)
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' })
        .collect();
    format!("{readable}.{generation}.{number}")
}

impl Dispatcher {
    fn call(&mut self, mut call: Box<Call>, caller: Caller, mut asker: Asker, cx: &mut Context<DispatchMsg>) {
        match self.deps.quotas.admit(sender(&call, &caller)) {
            Some(held) => asker.hold(held),
            // Dropped, it says so.
            None => return,
        }
        if call.wants_a_workspace_id() {
            call.place(format!("wsp_{}", MessageId::fresh()));
        }
        let Some(workspace) = call.workspace().map(str::to_owned) else {
            return self.homeless(&call, caller, asker);
        };
        let rules = &self.deps.around.rules;
        if let (Some(attest), Some(shown)) = (&self.deps.hooks.attest, call.presented(rules)) {
            if self.attesting.count() >= ATTESTING {
                return;
            }
            let presentation = Presentation {
                workspace,
                participant: call.from().map(str::to_owned),
                oidc_token: shown.oidc_token.map(str::to_owned),
                dpop_proof: shown.dpop_proof.map(str::to_owned),
                vc_presentation: shown.vc_presentation.cloned(),
            };
            let late = Attested {
                oidc: presentation.oidc_token.as_ref().map(|_| Err(late(codes::OIDC_TOKEN_INVALID))),
                vc: presentation.vc_presentation.as_ref().map(|_| Err(late(codes::VC_PRESENTATION_INVALID))),
            };
            let (attest, held) = (Arc::clone(attest), self.attesting.hold());
            let work = async move {
                let verdict = tokio::time::timeout(ATTEST_WITHIN, attest.attest(presentation)).await;
                drop(held);
                Job::new(*call, caller, verdict.unwrap_or(late), asker)
            };
            let _ = cx.pipe_to_self(work, DispatchMsg::Attested);
            return;
        }
        self.seat(Job::new(*call, caller, Attested::default(), asker), cx);
    }

    /// A call that names no workspace can only be refused, or is of a method that needs none.
    fn homeless(&self, call: &Call, caller: Caller, asker: Asker) {
        let context = StepContext {
            settings: &self.deps.around.rules,
            now: (self.deps.around.clock)(),
            caller,
            attested: Attested::default(),
            fresh: &mut fresh::bits,
        };
        let answer = match Workspace::absent("").step(call, context) {
            Outcome::Done { answer, change: None } => answer,
            // Only a workspace's own call changes anything or reads a log.
            Outcome::Done { change: Some(_), .. } | Outcome::Needs { .. } | Outcome::Read(_) => {
                Answer { id: call.id(), body: Body::Refused(Refusal::missing("workspace")) }
            }
        };
        asker.answer(call.method().name, answer);
    }

    /// Sends a job to its workspace's actor. One that finds no place is dropped, which tells its asker.
    fn seat(&mut self, mut job: Job, cx: &mut Context<DispatchMsg>) {
        let workspace = job.parts().and_then(|(call, ..)| call.workspace().map(str::to_owned));
        if let Some(workspace) = workspace
            && let Some((address, held)) = self.place(&workspace, cx)
        {
            job.hold(held);
            let _ = address.try_send(WorkspaceMsg::Call(job));
        }
    }

    /// The address of a workspace's actor, started if need be; none if no more can be live.
    fn place(
        &mut self,
        workspace: &str,
        cx: &mut Context<DispatchMsg>,
    ) -> Option<(Address<WorkspaceMsg>, Held)> {
        if let Some(seat) = self.deps.seats.of(workspace) {
            return Some(seat);
        }
        if self.deps.seats.len() >= self.deps.settings.live_workspaces.max(1) {
            let child = self.deps.seats.free_one()?;
            self.end(child, cx);
        }
        self.numbers += 1;
        let number = self.numbers;
        let child = child_name(workspace, self.generation, number);
        let (address, slot) = mailbox(&child, workspace::MAILBOX);
        let spec = workspace::child(slot, workspace.to_owned(), Arc::clone(&self.deps.around));
        let (workspaces, name) = (self.deps.workspaces.clone(), workspace.to_owned());
        // What is sent before it is up waits in its mailbox; if it does not come up, the mailbox closes and drops it.
        let starting = async move {
            let started = workspaces.start_child(spec).await;
            if let Err(error) = &started {
                tracing::warn!(workspace = name, %error, "a workspace's actor did not start");
            }
            (name, started.is_ok())
        };
        cx.pipe_to_self(starting, move |(workspace, up)| DispatchMsg::Started { workspace, number, up })
            .ok()?;
        let held = self.deps.seats.take(workspace.to_owned(), number, child, address.clone());
        Some((address, held))
    }

    /// Ends an actor that has lost its seat. Nothing is sent to it any more, and a new one may start before it is gone.
    fn end(&self, child: String, cx: &mut Context<DispatchMsg>) {
        let workspaces = self.deps.workspaces.clone();
        let ending = async move {
            // Gone already is as good.
            let _ = workspaces.terminate_child(&child).await;
        };
        let _ = cx.run_beside(ending);
    }

    fn sweep(&self, cx: &mut Context<DispatchMsg>) {
        for child in self.deps.seats.free_idle(self.deps.settings.idle_after) {
            self.end(child, cx);
        }
        let live = self.deps.seats.len() as u64;
        tracing::event!(target: "choir::metric", tracing::Level::INFO, gauge.choir.chap.live = live);
    }

    fn read(&mut self, bytes: Arc<[u8]>, caller: Caller, asker: Asker, cx: &mut Context<DispatchMsg>) {
        if self.reading >= READ_BESIDE {
            return;
        }
        let rules = Arc::clone(&self.deps.around.rules);
        let address = cx.address();
        let work = async move {
            let read = tokio::task::spawn_blocking(move || (Call::parse(&bytes, &rules), asker)).await;
            match read {
                Ok((Ok(call), asker)) => {
                    // Back into the line like any other; dropped if that is full.
                    let call = Box::new(call);
                    let _ = address.try_send(DispatchMsg::Call { call, caller, asker, in_line: None });
                }
                Ok((Err(answer), asker)) => asker.answer("none", answer),
                // The reader panicked: a defect that cost this one call.
                Err(error) => tracing::error!(%error, "reading a call failed"),
            }
        };
        if cx.pipe_to_self(work, |()| DispatchMsg::WasRead).is_ok() {
            self.reading += 1;
        }
    }
}

/// Whose account a call counts in.
pub(crate) fn sender<'a>(call: &'a Call, caller: &'a Caller) -> Option<&'a str> {
    match &caller.participants {
        // The word of the carrier, where there is one: `from` is only the sender's.
        Some(known) => known.first().map(String::as_str),
        None => call.from(),
    }
}

fn late(code: i64) -> Refusal {
    Refusal::new(code, "It could not be verified in time; try again later")
}

impl Actor for Dispatcher {
    type Msg = DispatchMsg;

    async fn started(&mut self, cx: &mut Context<DispatchMsg>) -> Result<(), Failure> {
        cx.send_interval(SWEEP_EVERY, || DispatchMsg::Sweep)?;
        Ok(())
    }

    async fn handle(&mut self, msg: DispatchMsg, cx: &mut Context<DispatchMsg>) -> Result<(), Failure> {
        match msg {
            DispatchMsg::Call { call, caller, asker, in_line } => {
                self.call(call, caller, asker, cx);
                drop(in_line);
            }
            DispatchMsg::Read { bytes, caller, asker } => self.read(bytes, caller, asker, cx),
            DispatchMsg::WasRead => self.reading = self.reading.saturating_sub(1),
            DispatchMsg::Attested(job) => self.seat(job, cx),
            DispatchMsg::Lapse { workspace, keys } => {
                if let Some((address, held)) = self.place(&workspace, cx) {
                    let _ = address.try_send(WorkspaceMsg::Lapse { keys, held });
                }
            }
            DispatchMsg::Inbox { mut ask, caller } => {
                let participant = caller.participants.as_ref().and_then(|p| p.first().map(String::as_str));
                let participant = participant.unwrap_or(&ask.participant);
                if let Some(admitted) = self.deps.quotas.admit(Some(participant))
                    && let Some((address, held)) = self.place(&ask.workspace, cx)
                {
                    ask.hold(admitted);
                    ask.hold(held);
                    let _ = address.try_send(WorkspaceMsg::Inbox { ask, caller });
                }
            }
            DispatchMsg::Started { workspace, number, up } => {
                if !up {
                    self.deps.seats.vacate(&workspace, number);
                }
            }
            DispatchMsg::Sweep => self.sweep(cx),
        }
        Ok(())
    }
}
