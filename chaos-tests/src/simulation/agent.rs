//! The agent of a simulation: the real cores, wired as the container's tree wires their actors, with every message in
//! flight held in one list from which the seed picks the next.

use std::sync::Arc;

use choir_arbiter::{Answer, Arbiter, Decision, Effect, Input as Decide};
use choir_lanes::{Action as LaneAction, Edge, Input as LaneInput};
use choir_locks::{Action as LockAction, LockEvent, LockManager, Request};
use choir_messages::event::{Event, Head};
use choir_messages::id::{InvocationId, MessageId, ModelCallId};
use choir_messages::mail::{Execution, Proposal, ProposalRefused};
use choir_messages::model::Turn;
use choir_messages::time::Timestamp;
use choir_messages::tool::{Lane, Replay, ToolOutcome, ToolStatus};
use choir_messages::wire::{Budgets, Signal};
use choir_replicator::journal::Journal;
use choir_replicator::stream::{Action as StreamAction, Event as StreamEvent, Outcome, Stream};

use super::world::{Host, Rules, Workspace, model};
use crate::seed::Seed;

/// Something on its way.
#[derive(Debug)]
enum Mail {
    ToArbiter(Decide),
    Proposal(Proposal),
    ToEdge(LaneInput),
    Ask(ModelCallId, Vec<Turn>),
    Prepare(Execution),
    Execute(Execution),
    Heartbeat { attempt: u64, events: Vec<Event> },
    HeartbeatAnswer { attempt: u64, durable: Head },
}

/// One life of an agent's process.
#[derive(Debug)]
pub struct Agent {
    journal: Journal<()>,
    /// Where the host last said that its log stands.
    claimed: Head,
    stream: Stream,
    locks: LockManager,
    arbiter: Arbiter,
    edge: Edge,
    /// For which message this process asked the model last.
    asked: Option<MessageId>,
    mail: Vec<Mail>,
    now_ms: u64,
}

impl Agent {
    /// A fresh process, from what the host has.
    #[must_use]
    pub fn restore(host: &Host) -> Self {
        let journal =
            Journal::restore(choir_messages::session::SessionView::new(host.session), host.events.clone())
                .expect("the host's log is good");
        let rev = journal.status().head.rev;
        let view = Arc::unwrap_or_clone(journal.view());
        let mut agent = Self {
            stream: Stream::new(rev, rev, 1000),
            locks: LockManager::new(),
            arbiter: Arbiter::new("sim".parse().expect("a name"), view.clone(), Budgets::default()),
            edge: Edge::new(view, Budgets::default(), None),
            asked: None,
            claimed: journal.status().head,
            journal,
            mail: Vec::new(),
            now_ms: 0,
        };
        agent.start_arbiter();
        let actions = agent.stream.step(StreamEvent::Up(rev), 0);
        agent.stream_actions(actions);
        agent
    }

    /// The arbiter dies, and with it the executions and the lane.
    pub fn kill_arbiter(&mut self) {
        self.mail.retain(|mail| matches!(mail, Mail::Heartbeat { .. } | Mail::HeartbeatAnswer { .. }));
        self.start_arbiter();
    }

    /// The lane dies alone.
    pub fn kill_edge(&mut self) {
        // What was sent to the arbiter stays in its mailbox; what ran for the lane is gone.
        self.mail.retain(|mail| !matches!(mail, Mail::ToEdge(_) | Mail::Ask(..)));
        self.start_edge();
    }

    /// The link breaks and comes back: whatever was on it is lost, in either direction.
    pub fn break_link(&mut self) {
        self.mail.retain(|mail| !matches!(mail, Mail::Heartbeat { .. } | Mail::HeartbeatAnswer { .. }));
        let _ = self.stream.step(StreamEvent::Down, self.now_ms);
        let durable = self.journal.status().durable;
        let actions = self.stream.step(StreamEvent::Up(durable), self.now_ms);
        self.stream_actions(actions);
    }

    /// The host says these over the link.
    pub fn hear(&mut self, signals: Vec<Signal>) {
        self.mail.extend(signals.into_iter().map(|signal| Mail::ToArbiter(Decide::Signal(signal))));
    }

    fn start_arbiter(&mut self) {
        self.locks.step(LockEvent::NewEpoch, self.now_ms);
        let view = Arc::unwrap_or_clone(self.journal.view());
        self.arbiter = Arbiter::new("sim".parse().expect("a name"), view, Budgets::default());
        let decision = self.arbiter.start(&Rules);
        self.carry_out(&Lane::Edge, decision).expect("what an arbiter starts with is legal");
        self.start_edge();
    }

    fn start_edge(&mut self) {
        let view = Arc::unwrap_or_clone(self.journal.view());
        self.edge = Edge::new(view, Budgets::default(), self.asked);
        self.lane(LaneInput::Begin);
    }

    /// One thing happens: a message arrives, time passes, or the host pushes what is not recorded yet.
    pub fn step(&mut self, draw: &mut Seed, host: &mut Host, workspace: &mut Workspace) {
        self.now_ms += 1 + draw.below(20);
        let tick = self.stream.step(StreamEvent::Tick, self.now_ms);
        self.stream_actions(tick);
        if draw.once_in(10) {
            for (message, text) in host.unrecorded() {
                self.mail.push(Mail::ToArbiter(Decide::Signal(Signal::UserMessage { message, text })));
            }
        }
        if self.mail.is_empty() {
            return;
        }
        // Any order between different pairs is possible; mailboxes keep the order per receiver, which picking the
        // first of a kind preserves.
        let pick = usize::try_from(draw.below(self.mail.len() as u64)).expect("an index");
        let kind = std::mem::discriminant(&self.mail[pick]);
        let at = match &self.mail[pick] {
            Mail::ToArbiter(_) | Mail::ToEdge(_) | Mail::Proposal(_) => {
                self.mail.iter().position(|mail| std::mem::discriminant(mail) == kind).unwrap_or(pick)
            }
            _ => pick,
        };
        match self.mail.remove(at) {
            Mail::ToArbiter(input) => {
                let lane = match &input {
                    Decide::Signal(Signal::RunTool { job, .. }) => Lane::Core(job.clone()),
                    _ => Lane::Edge,
                };
                let mut decision = self.arbiter.decide(input, &Rules);
                let _: Option<Answer> = decision.answer.take();
                self.carry_out(&lane, decision).expect("what the arbiter commits of its own is legal");
            }
            Mail::Proposal(proposal) => {
                let decision = self.arbiter.decide(Decide::Propose(Lane::Edge, proposal), &Rules);
                let result = self.carry_out(&Lane::Edge, decision);
                self.mail.push(Mail::ToEdge(LaneInput::Proposed(result)));
            }
            Mail::ToEdge(input) => self.lane(input),
            Mail::Ask(call, turns) => {
                self.mail.push(Mail::ToEdge(LaneInput::Answered(call, Some(Ok(model(&turns))))));
            }
            Mail::Prepare(execution) => {
                let guard: Result<Replay, ToolOutcome> = Ok(workspace.guard(&execution));
                self.mail.push(Mail::ToArbiter(Decide::Prepared(execution.invocation, guard)));
            }
            Mail::Execute(execution) => {
                if let Some(rev) = execution.durable_first {
                    if self.journal.status().durable < rev {
                        // Not durable yet: it waits.
                        self.mail.push(Mail::Execute(execution));
                        return;
                    }
                    assert!(
                        host.has_committed(execution.invocation),
                        "an effect before its commit is durable on the host"
                    );
                }
                let outcome = workspace.run(&execution);
                self.mail.push(Mail::ToArbiter(Decide::Executed(execution.invocation, Some(outcome))));
            }
            Mail::Heartbeat { attempt, events } => {
                let durable = host.append(&events);
                self.mail.push(Mail::HeartbeatAnswer { attempt, durable });
            }
            Mail::HeartbeatAnswer { attempt, durable } => {
                self.claimed = durable;
                let outcome = Outcome::Acked { rev: durable.rev, config_version: 0 };
                let actions = self.stream.step(StreamEvent::Answered { attempt, outcome }, self.now_ms);
                self.stream_actions(actions);
            }
        }
    }

    fn carry_out(&mut self, lane: &Lane, decision: Decision) -> Result<(), ProposalRefused> {
        let mut effects = decision.effects;
        if !decision.commit.is_empty() {
            let events = self.journal.append(lane, decision.commit, Timestamp::from_millis(self.now_ms))?;
            effects.extend(self.arbiter.committed(&events, &Rules));
            self.mail.push(Mail::ToEdge(LaneInput::Committed(events)));
            let rev = self.journal.status().head.rev;
            let actions = self.stream.step(StreamEvent::Committed(rev), self.now_ms);
            self.stream_actions(actions);
        }
        for effect in effects {
            match effect {
                Effect::Acquire { invocation, owner, locks } => {
                    let request = Request { owner, invocation, locks, wait_ms: u64::MAX / 2 };
                    let actions = self.locks.step(LockEvent::Acquire(request), self.now_ms);
                    self.lock_actions(actions);
                }
                Effect::Release(invocation) => self.release(invocation),
                Effect::Prepare(execution) => self.mail.push(Mail::Prepare(execution)),
                Effect::Execute(execution) => self.mail.push(Mail::Execute(execution)),
                Effect::Cancel(invocation) => self.cancel(invocation),
            }
        }
        Ok(())
    }

    /// A call that has not begun yet ends without an effect; one that has ended keeps its outcome.
    fn cancel(&mut self, invocation: InvocationId) {
        let waits =
            |mail: &Mail| matches!(mail, Mail::Execute(execution) if execution.invocation == invocation);
        let Some(at) = self.mail.iter().position(waits) else { return };
        self.mail.remove(at);
        let outcome = ToolOutcome::says(ToolStatus::Cancelled, "stopped");
        self.mail.push(Mail::ToArbiter(Decide::Executed(invocation, Some(outcome))));
    }

    fn release(&mut self, invocation: InvocationId) {
        let actions = self.locks.step(LockEvent::Release { invocation }, self.now_ms);
        self.lock_actions(actions);
    }

    fn lock_actions(&mut self, actions: Vec<LockAction>) {
        for action in actions {
            match action {
                LockAction::Grant { invocation, .. } => {
                    self.mail.push(Mail::ToArbiter(Decide::Locked(invocation, Ok(()))));
                }
                LockAction::Refuse { invocation, why, .. } => {
                    self.mail.push(Mail::ToArbiter(Decide::Locked(invocation, Err(why))));
                }
                LockAction::Released { .. } => {}
            }
        }
    }

    fn lane(&mut self, input: LaneInput) {
        for action in self.edge.step(input) {
            match action {
                LaneAction::Ask(call) => {
                    self.asked = self.edge.view().turn.as_ref().map(|turn| turn.message);
                    let turns = self.edge.view().transcript.iter().map(|turn| Turn::clone(turn)).collect();
                    self.mail.push(Mail::Ask(call, turns));
                }
                LaneAction::Propose(proposal) => self.mail.push(Mail::Proposal(proposal)),
                LaneAction::Resync => {
                    self.edge.resync(Arc::unwrap_or_clone(self.journal.view()));
                    self.mail.push(Mail::ToEdge(LaneInput::Retry));
                }
                LaneAction::RetryLater => self.mail.push(Mail::ToEdge(LaneInput::Retry)),
                LaneAction::CancelAsk(_) | LaneAction::Drained => {}
            }
        }
    }

    fn stream_actions(&mut self, actions: Vec<StreamAction>) {
        for action in actions {
            match action {
                StreamAction::Send { attempt, base, .. } => {
                    let events =
                        self.journal.read(base, 256).iter().map(|event| Event::clone(event)).collect();
                    self.mail.push(Mail::Heartbeat { attempt, events });
                }
                StreamAction::Durable(_) => {
                    self.journal
                        .acknowledged(self.claimed)
                        .expect("one life's words reach the host in order");
                }
                StreamAction::Config(_) => {}
                StreamAction::DropLink | StreamAction::Diverged | StreamAction::Revoked => {
                    panic!("nothing in a simulation is hostile: {action:?}")
                }
            }
        }
    }
}
