//! The arbiter's rules, one sentence a test. A small log stands in for the journal; it takes what the journal takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use choir_arbiter::{Answer, Arbiter, Decision, Effect, Input, ToolRules, ValidCall};
use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody, MessageOutcome};
use choir_messages::id::{InvocationId, MessageId, ModelCallId, SessionId};
use choir_messages::json::Json;
use choir_messages::limits;
use choir_messages::mail::{LockRefused, Proposal};
use choir_messages::model::{ModelAnswer, ModelFailure, Usage};
use choir_messages::session::{Next, SessionView};
use choir_messages::time::Timestamp;
use choir_messages::tool::{
    Lane, LockMode, LockSpec, Replay, ResourceKey, SideEffect, ToolCall, ToolOutcome, ToolStatus,
};
use choir_messages::wire::{Budgets, Signal, SignalAck, SignalRefused};
use serde_json::json;

struct Rules;

impl ToolRules for Rules {
    fn validate(&self, _lane: &Lane, tool: &str, arguments: &str) -> Result<ValidCall, ToolOutcome> {
        let input = serde_json::from_str(arguments)
            .map_err(|_| ToolOutcome::says(ToolStatus::Refused, "the arguments are not JSON"))?;
        let (side_effect, replay) = match tool {
            "read" => (SideEffect::Read, Some(Replay::Idempotent)),
            "write" => (SideEffect::Write, None),
            "exec" => (SideEffect::Write, Some(Replay::Unrepeatable)),
            _ => return Err(ToolOutcome::says(ToolStatus::Refused, "no such tool")),
        };
        let locks = vec![LockSpec { resource: ResourceKey::Workspace, mode: LockMode::X }];
        Ok(ValidCall { input: Json(input), locks, side_effect, replay })
    }

    fn manifest(&self) -> Digest {
        Digest::ZERO
    }
}

/// An arbiter with a log of its own.
struct Bench {
    arbiter: Arbiter,
    log: Vec<Arc<Event>>,
    effects: Vec<Effect>,
}

impl Bench {
    fn new(budgets: Budgets) -> Self {
        let view = SessionView::new(SessionId::from_bits(1));
        let mut bench = Self {
            arbiter: Arbiter::new("a".parse().unwrap(), view, budgets),
            log: Vec::new(),
            effects: Vec::new(),
        };
        let decision = bench.arbiter.start(&Rules);
        bench.commit(decision);
        bench
    }

    fn commit(&mut self, decision: Decision) -> Option<Answer> {
        let mut head = self.arbiter.view().head;
        let mut events = Vec::new();
        for body in decision.commit {
            let (event, _) =
                Event::append(self.arbiter.view().session, head, Timestamp::from_millis(1), Lane::Edge, body)
                    .unwrap();
            head = event.head();
            events.push(Arc::new(event));
        }
        self.effects.extend(decision.effects);
        let effects = self.arbiter.committed(&events, &Rules);
        self.effects.extend(effects);
        self.log.extend(events);
        decision.answer
    }

    fn tell(&mut self, input: Input) -> Option<Answer> {
        let decision = self.arbiter.decide(input, &Rules);
        self.commit(decision)
    }

    fn message(&mut self, n: u128) -> Option<Answer> {
        let message = MessageId::from_bits(n);
        self.tell(Input::Signal(Signal::UserMessage { message, text: format!("m{n}") }))
    }

    fn answer(&mut self, n: u128, calls: &[(&str, &str)], text: Option<&str>) {
        let calls = calls
            .iter()
            .enumerate()
            .map(|(i, (tool, arguments))| ToolCall {
                provider_id: format!("p{i}"),
                tool: (*tool).to_owned(),
                arguments: (*arguments).to_owned(),
            })
            .collect();
        let answer = ModelAnswer {
            text: text.map(str::to_owned),
            calls,
            usage: Usage::default(),
            model: "m".to_owned(),
        };
        let proposal =
            Proposal::Answer { message: MessageId::from_bits(n), call: ModelCallId::from_bits(1), answer };
        self.tell(Input::Propose(Lane::Edge, proposal));
    }

    /// A new life of the arbiter over the same log, which does nothing until a lane speaks.
    fn next_life(&self) -> Self {
        let mut view = SessionView::new(self.arbiter.view().session);
        for event in &self.log {
            view.apply(event).unwrap();
        }
        let arbiter = Arbiter::new("a".parse().unwrap(), view, Budgets::default());
        assert_eq!(arbiter.start(&Rules), Decision::default());
        Self { arbiter, log: self.log.clone(), effects: Vec::new() }
    }

    /// What becomes of a lane's finding the turn of the first message open: the bodies that are committed.
    fn found_open(&mut self, asked: bool) -> Vec<EventBody> {
        let before = self.log.len();
        let message = MessageId::from_bits(1);
        self.tell(Input::Propose(Lane::Edge, Proposal::Resume { message, asked }));
        self.log[before..].iter().map(|event| event.body.clone()).collect()
    }

    /// The calls whose locks are asked for.
    fn acquired(&self) -> Vec<InvocationId> {
        let acquired = |effect: &Effect| match effect {
            Effect::Acquire { invocation, .. } => Some(*invocation),
            _ => None,
        };
        self.effects.iter().filter_map(acquired).collect()
    }

    fn calls(&self) -> Vec<InvocationId> {
        self.log
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::ModelOutput { calls, .. } => {
                    Some(calls.iter().map(|(id, _)| *id).collect::<Vec<_>>())
                }
                _ => None,
            })
            .next_back()
            .unwrap_or_default()
    }

    fn results(&self) -> Vec<(InvocationId, ToolStatus)> {
        self.log
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::ToolResultCommitted { invocation, outcome } => Some((*invocation, outcome.status)),
                _ => None,
            })
            .collect()
    }
}

fn outcome() -> ToolOutcome {
    ToolOutcome { status: ToolStatus::Success, output: Json(json!({})), cut_bytes: 0 }
}

#[test]
fn a_log_is_opened_once() {
    let bench = Bench::new(Budgets::default());
    assert!(matches!(bench.log[0].body, EventBody::SessionOpened { .. }));
    bench.next_life();
}

#[test]
fn a_message_told_twice_is_recorded_once_and_acknowledged_twice() {
    let mut bench = Bench::new(Budgets::default());
    assert_eq!(bench.message(1), Some(Answer::Recorded));
    assert_eq!(bench.message(1), Some(Answer::Now(SignalAck::Recorded { rev: 2 })));
    assert_eq!(bench.log.len(), 2);
}

#[test]
fn the_queue_is_bounded_and_says_so() {
    let mut bench = Bench::new(Budgets::default());
    for n in 0..limits::USER_QUEUE as u128 {
        assert_eq!(bench.message(n), Some(Answer::Recorded));
    }
    let waiting = limits::USER_QUEUE as u32;
    let full = SignalAck::Refused(SignalRefused::QueueFull { waiting });
    assert_eq!(bench.message(999), Some(Answer::Now(full)));
}

#[test]
fn a_message_of_a_megabyte_is_refused() {
    let mut bench = Bench::new(Budgets::default());
    let signal = Signal::UserMessage { message: MessageId::from_bits(1), text: "x".repeat(1 << 20) };
    let refused = SignalAck::Refused(SignalRefused::TooLarge { limit: limits::USER_MESSAGE_BYTES as u64 });
    assert_eq!(bench.tell(Input::Signal(signal)), Some(Answer::Now(refused)));
}

#[test]
fn an_answer_without_calls_closes_the_message_in_the_same_commit() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[], Some("hello"));
    let bodies: Vec<_> = bench.log[2..].iter().map(|event| event.body.kind()).collect();
    assert_eq!(bodies, ["ModelOutput", "MessageClosed"]);
    assert_eq!(bench.arbiter.view().next(), Next::Idle);
}

#[test]
fn a_bad_call_is_refused_to_the_model_and_the_good_one_runs() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("nonsense", "{}"), ("read", "not json"), ("read", "{}")], None);
    let calls = bench.calls();
    assert_eq!(bench.results(), [(calls[0], ToolStatus::Refused), (calls[1], ToolStatus::Refused)]);
    assert!(matches!(&bench.effects[..], [Effect::Acquire { invocation, .. }] if *invocation == calls[2]));
}

#[test]
fn a_write_runs_only_after_its_durable_commit_and_a_read_at_once() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("write", "{}"), ("read", "{}")], None);
    let calls = bench.calls();
    bench.effects.clear();
    bench.tell(Input::Locked(calls[0], Ok(())));
    assert!(matches!(&bench.effects[..], [Effect::Prepare(_)]), "a guard is worked out under the locks");
    bench.effects.clear();
    bench.tell(Input::Prepared(calls[0], Ok(Replay::Idempotent)));
    let rev = bench.log.last().unwrap().rev;
    assert!(
        matches!(&bench.effects[..], [Effect::Execute(run)] if run.durable_first == Some(rev) && !run.again)
    );
    bench.effects.clear();
    bench.tell(Input::Locked(calls[1], Ok(())));
    assert!(matches!(&bench.effects[..], [Effect::Execute(run)] if run.durable_first.is_none()));
    bench.effects.clear();
    bench.tell(Input::Executed(calls[0], Some(outcome())));
    assert_eq!(bench.effects, [Effect::Release(calls[0])]);
}

#[test]
fn locks_that_do_not_come_in_time_are_an_error_the_model_reads() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("exec", "{}")], None);
    let call = bench.calls()[0];
    let late =
        LockRefused::Deadline { waited_ms: 5, blocked_by: "edge".into(), resource: "workspace".into() };
    bench.tell(Input::Locked(call, Err(late)));
    assert_eq!(bench.results(), [(call, ToolStatus::Error)]);
    assert_eq!(bench.arbiter.view().next(), Next::Model);
}

#[test]
fn an_executor_that_dies_leaves_an_unknown_outcome_for_effects_and_an_error_for_reads() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("exec", "{}"), ("read", "{}")], None);
    let calls = bench.calls();
    for call in &calls {
        bench.tell(Input::Locked(*call, Ok(())));
        bench.tell(Input::Executed(*call, None));
    }
    assert_eq!(bench.results(), [(calls[0], ToolStatus::OutcomeUnknown), (calls[1], ToolStatus::Error)]);
}

#[test]
fn a_new_life_repeats_what_is_harmless_and_calls_the_rest_unknown() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("exec", "{}"), ("read", "{}"), ("write", "{}"), ("exec", "{}")], None);
    let calls = bench.calls();
    for call in &calls[..3] {
        bench.tell(Input::Locked(*call, Ok(())));
    }
    let guard = Replay::FileChange { path: "f".into(), before: None, after: Some(Digest::ZERO) };
    bench.tell(Input::Prepared(calls[2], Ok(guard.clone())));
    let mut bench = bench.next_life();
    let settled = bench.found_open(false);
    // The committed command is unknown; the one that only waited for its locks goes back into the queue.
    assert!(matches!(&settled[..],
        [EventBody::TurnResumed { .. }, EventBody::ToolResultCommitted { invocation, outcome }]
            if *invocation == calls[0] && outcome.status == ToolStatus::OutcomeUnknown));
    assert_eq!(bench.acquired(), calls[1..]);
    let resumed = bench.log[bench.log.len() - 2].rev;
    let committed = bench.log.len();
    bench.tell(Input::Locked(calls[2], Ok(())));
    assert_eq!(bench.log.len(), committed, "it is committed already");
    let again = bench.effects.last().unwrap();
    assert!(
        matches!(again, Effect::Execute(run) if run.again && run.replay == guard
        && run.durable_first == Some(resumed)),
        "it may run once its second try is sure to be counted: {again:?}"
    );
}

#[test]
fn a_resumption_that_could_not_be_recorded_is_proposed_again_with_the_same_result() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("exec", "{}"), ("read", "{}")], None);
    let call = bench.calls()[0];
    bench.tell(Input::Locked(call, Ok(())));
    let mut bench = bench.next_life();
    let resume = Proposal::Resume { message: MessageId::from_bits(1), asked: false };
    let refused = bench.arbiter.decide(Input::Propose(Lane::Edge, resume), &Rules);
    assert_eq!(bench.found_open(false), refused.commit);
    assert_eq!(bench.acquired(), bench.calls()[1..]);
    assert!(bench.found_open(false).is_empty(), "once is enough");
}

#[test]
fn a_turn_interrupted_at_the_same_step_again_is_set_aside_and_its_calls_do_not_run() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("read", "{}"), ("write", "{}")], None);
    for call in bench.calls() {
        bench.tell(Input::Locked(call, Ok(())));
    }
    bench.tell(Input::Prepared(bench.calls()[1], Ok(Replay::Idempotent)));
    let mut second = bench.next_life();
    assert!(matches!(second.found_open(false)[..], [EventBody::TurnResumed { .. }]));
    assert_eq!(second.acquired(), bench.calls());
    let mut third = second.next_life();
    let settled = third.found_open(false);
    assert!(
        matches!(&settled[..], [
        EventBody::ToolResultCommitted { outcome: read, .. },
        EventBody::ToolResultCommitted { outcome: write, .. },
        EventBody::MessageClosed { outcome: MessageOutcome::Failed, text, .. },
    ] if read.status == ToolStatus::Cancelled && write.status == ToolStatus::OutcomeUnknown
        && text.contains("interrupted 2 times at the same step")),
        "{settled:?}"
    );
    assert!(third.effects.is_empty(), "{:?}", third.effects);
    assert_eq!(third.arbiter.view().next(), Next::Idle);
}

#[test]
fn a_turn_that_comes_further_is_resumed_again_though_not_for_ever() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    for _ in 0..limits::RESUMES_PER_MESSAGE {
        bench = bench.next_life();
        assert!(matches!(bench.found_open(false)[..], [EventBody::TurnResumed { .. }]));
        bench.answer(1, &[("no such", "{}")], None);
    }
    bench = bench.next_life();
    let settled = bench.found_open(false);
    let times = format!("interrupted {} times, so", limits::RESUMES_PER_MESSAGE + 1);
    assert!(
        matches!(&settled[..], [EventBody::MessageClosed { outcome: MessageOutcome::Failed, text, .. }]
            if text.contains(&times)),
        "{settled:?}"
    );
}

#[test]
fn two_interruptions_at_different_steps_do_not_set_a_turn_aside() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("exec", "{}")], None);
    bench.tell(Input::Locked(bench.calls()[0], Ok(())));
    // One while the command runs, one while the model is told that its outcome is unknown.
    for _ in 0..2 {
        bench = bench.next_life();
        assert!(matches!(bench.found_open(false)[0], EventBody::TurnResumed { .. }));
    }
    bench.answer(1, &[], Some("done"));
    assert!(matches!(
        &bench.log.last().unwrap().body,
        EventBody::MessageClosed { outcome: MessageOutcome::Answered, .. }
    ));
}

#[test]
fn a_turn_nobody_worked_on_was_not_interrupted() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    // Its message came while the lane was starting.
    assert!(bench.found_open(false).is_empty());
    // A lane before had asked the model for it.
    assert!(matches!(bench.found_open(true)[..], [EventBody::TurnResumed { .. }]));
    // It was already there when this life began.
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    assert!(matches!(bench.next_life().found_open(false)[..], [EventBody::TurnResumed { .. }]));
}

#[test]
fn a_lane_that_dies_while_its_calls_run_interrupts_nothing() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("read", "{}")], None);
    let call = bench.calls()[0];
    bench.tell(Input::Locked(call, Ok(())));
    bench.effects.clear();
    for _ in 0..3 {
        assert!(bench.found_open(true).is_empty());
    }
    bench.tell(Input::Executed(call, Some(outcome())));
    assert_eq!(bench.effects, [Effect::Release(call)]);
    assert!(matches!(bench.found_open(true)[..], [EventBody::TurnResumed { .. }]), "now the model is asked");
}

#[test]
fn the_calls_of_a_cancelled_turn_end_with_the_life_that_ran_them() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("exec", "{}"), ("read", "{}")], None);
    for call in bench.calls() {
        bench.tell(Input::Locked(call, Ok(())));
    }
    bench.tell(Input::Signal(Signal::Cancel { request: MessageId::from_bits(77) }));
    let mut bench = bench.next_life();
    let settled = bench.found_open(true);
    assert!(
        matches!(&settled[..], [
        EventBody::ToolResultCommitted { outcome: exec, .. },
        EventBody::ToolResultCommitted { outcome: read, .. },
    ] if exec.status == ToolStatus::OutcomeUnknown && read.status == ToolStatus::Cancelled),
        "{settled:?}"
    );
    assert_eq!(bench.arbiter.view().next(), Next::Close);
    assert!(bench.found_open(true).is_empty());
}

#[test]
fn a_cancel_ends_waiting_calls_stops_running_ones_and_is_recorded_once() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    bench.answer(1, &[("exec", "{}"), ("exec", "{}")], None);
    let calls = bench.calls();
    bench.tell(Input::Locked(calls[0], Ok(())));
    bench.effects.clear();
    let request = MessageId::from_bits(77);
    assert_eq!(bench.tell(Input::Signal(Signal::Cancel { request })), Some(Answer::Recorded));
    assert_eq!(bench.results(), [(calls[1], ToolStatus::Cancelled)]);
    assert!(bench.effects.contains(&Effect::Cancel(calls[0])));
    assert!(matches!(
        bench.tell(Input::Signal(Signal::Cancel { request })),
        Some(Answer::Now(SignalAck::Recorded { .. }))
    ));
    // A grant that was on its way finds the call gone and is given back.
    bench.effects.clear();
    bench.tell(Input::Locked(calls[1], Ok(())));
    assert_eq!(bench.effects, [Effect::Release(calls[1])]);
    bench.tell(Input::Executed(calls[0], Some(ToolOutcome::says(ToolStatus::Cancelled, "stopped"))));
    assert_eq!(bench.arbiter.view().next(), Next::Close);
}

#[test]
fn the_budget_of_tool_calls_binds_within_one_answer_and_for_new_messages() {
    let mut bench = Bench::new(Budgets { max_tool_calls_per_session: 1, ..Budgets::default() });
    bench.message(1);
    bench.answer(1, &[("read", "{}"), ("read", "{}")], None);
    let calls = bench.calls();
    assert_eq!(bench.results(), [(calls[1], ToolStatus::Refused)]);
    bench.tell(Input::Locked(calls[0], Ok(())));
    bench.tell(Input::Executed(calls[0], Some(outcome())));
    let refused = SignalRefused::Budget { which: "max_tool_calls_per_session".to_owned() };
    assert_eq!(bench.message(2), Some(Answer::Now(SignalAck::Refused(refused))));
}

#[test]
fn a_failed_model_call_ends_the_message_with_the_reason() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    let failure = ModelFailure::ServerError { status: 503 };
    let proposal = Proposal::ModelFailed {
        message: MessageId::from_bits(1),
        call: ModelCallId::from_bits(1),
        failure: failure.clone(),
    };
    bench.tell(Input::Propose(Lane::Edge, proposal));
    assert!(matches!(&bench.log.last().unwrap().body,
        EventBody::MessageClosed { outcome: MessageOutcome::Failed, text, .. } if *text == failure.to_string()));
}

#[test]
fn an_answer_beyond_the_logs_bounds_is_a_failure_the_user_hears_of_and_no_loop() {
    let mut bench = Bench::new(Budgets::default());
    bench.message(1);
    let huge = "x".repeat(limits::MODEL_TEXT_BYTES + 1);
    bench.answer(1, &[], Some(&huge));
    assert!(matches!(
        &bench.log.last().unwrap().body,
        EventBody::MessageClosed { outcome: MessageOutcome::Failed, .. }
    ));
    assert_eq!(bench.arbiter.view().next(), Next::Idle);
}

/// A call of the host, by its id.
fn run_tool(n: u128, tool: &str) -> Input {
    Input::Signal(Signal::RunTool {
        invocation: InvocationId::from_bits(n),
        job: "ledger".parse().unwrap(),
        tool: tool.to_owned(),
        arguments: "{}".to_owned(),
    })
}

#[test]
fn a_call_of_the_host_goes_the_way_of_every_call_and_a_repeat_is_recognised() {
    let mut bench = Bench::new(Budgets::default());
    let call = InvocationId::from_bits(9);
    assert_eq!(bench.tell(run_tool(9, "exec")), Some(Answer::Recorded));
    assert_eq!(bench.acquired(), [call]);
    assert!(bench.effects.iter().any(|effect| matches!(
        effect,
        Effect::Acquire { owner: Lane::Core(job), .. } if job.as_str() == "ledger"
    )));
    let before = bench.log.len();
    assert!(matches!(bench.tell(run_tool(9, "exec")), Some(Answer::Now(SignalAck::Recorded { .. }))));
    assert_eq!(bench.log.len(), before, "a repeat while it waits records nothing");
    bench.tell(Input::Locked(call, Ok(())));
    assert!(bench.effects.iter().any(|effect| matches!(
        effect,
        Effect::Execute(run) if run.invocation == call && run.durable_first.is_some()
    )));
    bench.tell(Input::Executed(call, Some(outcome())));
    assert_eq!(bench.results(), [(call, ToolStatus::Success)]);
    assert!(bench.effects.contains(&Effect::Release(call)));
    assert!(matches!(bench.tell(run_tool(9, "exec")), Some(Answer::Now(SignalAck::Recorded { .. }))));
    assert_eq!(bench.results().len(), 1, "nor does one afterwards");
    assert_eq!(bench.arbiter.view().next(), Next::Idle, "the turn has nothing to do with it");
}

#[test]
fn a_call_of_the_host_that_was_left_open_is_taken_up_when_the_host_asks_again() {
    let mut bench = Bench::new(Budgets::default());
    let (read, exec, waiting) = (9, 10, 11);
    for (n, tool) in [(read, "read"), (exec, "exec"), (waiting, "exec")] {
        bench.tell(run_tool(n, tool));
    }
    for n in [read, exec] {
        bench.tell(Input::Locked(InvocationId::from_bits(n), Ok(())));
    }
    let mut bench = bench.next_life();
    assert!(bench.effects.is_empty(), "nothing is done before the host asks");
    for (n, tool) in [(read, "read"), (exec, "exec"), (waiting, "exec")] {
        bench.tell(run_tool(n, tool));
    }
    assert_eq!(
        bench.results(),
        [(InvocationId::from_bits(exec), ToolStatus::OutcomeUnknown)],
        "what may have had its effect and cannot be recognised is not repeated"
    );
    assert_eq!(bench.acquired(), [InvocationId::from_bits(read), InvocationId::from_bits(waiting)]);
}

#[test]
fn a_call_of_the_host_that_is_interrupted_again_and_again_is_given_up() {
    let mut bench = Bench::new(Budgets::default());
    for _ in 0..limits::HOST_CALL_TRIES {
        bench.tell(run_tool(9, "read"));
        assert!(bench.results().is_empty());
        bench = bench.next_life();
    }
    bench.tell(run_tool(9, "read"));
    assert_eq!(bench.results(), [(InvocationId::from_bits(9), ToolStatus::Error)]);
}

#[test]
fn calls_of_the_host_are_bounded_stopped_on_request_and_untouched_by_a_cancelled_turn() {
    let mut bench = Bench::new(Budgets::default());
    for n in 0..limits::HOST_CALLS as u128 {
        assert_eq!(bench.tell(run_tool(n, "exec")), Some(Answer::Recorded));
    }
    let full = SignalRefused::QueueFull { waiting: limits::HOST_CALLS as u32 };
    assert_eq!(bench.tell(run_tool(99, "exec")), Some(Answer::Now(SignalAck::Refused(full))));
    bench.tell(Input::Locked(InvocationId::from_bits(0), Ok(())));
    bench.effects.clear();
    bench.tell(Input::Signal(Signal::Cancel { request: MessageId::from_bits(77) }));
    assert!(bench.results().is_empty() && bench.effects.is_empty());
    let stop = |n| Input::Signal(Signal::StopTool { invocation: InvocationId::from_bits(n) });
    bench.tell(stop(0));
    assert_eq!(bench.effects, [Effect::Cancel(InvocationId::from_bits(0))]);
    bench.tell(stop(1));
    assert_eq!(bench.results(), [(InvocationId::from_bits(1), ToolStatus::Cancelled)]);
    assert_eq!(bench.tell(stop(98)), Some(Answer::Now(SignalAck::Noted)), "an unknown one is over already");
}
