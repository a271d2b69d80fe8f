//! What stands outside the agent in a simulation: the host's tables, the workspace, the model, the tools' rules. The
//! checkers read these and nothing of the agent's own.

use std::collections::BTreeMap;

use choir_arbiter::{ToolRules, ValidCall};
use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody, Head, MessageOutcome};
use choir_messages::id::{InvocationId, MessageId, SessionId};
use choir_messages::json::Json;
use choir_messages::mail::Execution;
use choir_messages::model::{ModelAnswer, Turn, Usage};
use choir_messages::session::SessionView;
use choir_messages::tool::{
    Lane, LockMode, LockSpec, Replay, ResourceKey, SideEffect, ToolCall, ToolOutcome, ToolStatus,
};
use serde_json::json;

/// The host's tables, by the rules the real host keeps.
#[derive(Debug)]
pub struct Host {
    /// The session.
    pub session: SessionId,
    /// Durable events.
    pub events: Vec<Event>,
    /// Their fold.
    pub view: SessionView,
    /// Every message ever accepted, with its recorded end.
    pub inbox: Vec<(MessageId, String, Option<MessageOutcome>)>,
}

impl Host {
    /// An empty host.
    #[must_use]
    pub const fn new(session: SessionId) -> Self {
        Self { session, events: Vec::new(), view: SessionView::new(session), inbox: Vec::new() }
    }

    /// Stores a heartbeat's events; durable ones are no-ops. Panics when the agent sends what a host must refuse:
    /// in a simulation nothing is hostile, so that is a fault of the agent's cores.
    pub fn append(&mut self, events: &[Event]) -> Head {
        for event in events {
            if let Some(known) = self.events.get(usize::try_from(event.rev).expect("small") - 1) {
                assert_eq!(known.hash, event.hash, "the agent's log diverged at revision {}", event.rev);
                continue;
            }
            event.check(self.session, self.view.head).expect("a contiguous chain");
            self.view.apply(event).expect("a legal log");
            if let EventBody::MessageClosed { message, outcome, .. } = &event.body {
                let row = self.inbox.iter_mut().find(|row| row.0 == *message).expect("an accepted message");
                assert_eq!(row.2, None, "message {message} was closed twice");
                row.2 = Some(*outcome);
            }
            self.events.push(event.clone());
        }
        self.view.head
    }

    /// Messages whose `UserMsg` is not durable here.
    #[must_use]
    pub fn unrecorded(&self) -> Vec<(MessageId, String)> {
        let recorded: Vec<MessageId> = self
            .events
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::UserMsg { message, .. } => Some(*message),
                _ => None,
            })
            .collect();
        self.inbox.iter().filter(|row| !recorded.contains(&row.0)).map(|row| (row.0, row.1.clone())).collect()
    }

    /// Whether the committed event of this call is durable here.
    #[must_use]
    pub fn has_committed(&self, wanted: InvocationId) -> bool {
        self.events.iter().any(|event| {
            matches!(&event.body, EventBody::ToolCallCommitted { invocation, .. } if *invocation == wanted)
        })
    }
}

/// The agent's workspace: one file, and a list of what commands left behind.
#[derive(Debug, Default)]
pub struct Workspace {
    /// Content of the file.
    pub file: String,
    /// How often each call took effect.
    pub effects: BTreeMap<InvocationId, u32>,
}

impl Workspace {
    /// The replay guard of a write.
    #[must_use]
    pub fn guard(&self, execution: &Execution) -> Replay {
        let after = self.after(execution);
        Replay::FileChange {
            path: "f".to_owned(),
            before: Some(Digest::of(self.file.as_bytes())),
            after: Some(Digest::of(after.as_bytes())),
        }
    }

    fn after(&self, execution: &Execution) -> String {
        format!("{}{}\n", self.file, execution.input.0["content"].as_str().unwrap_or_default())
    }

    /// Runs a call as the executor does, repeats included.
    pub fn run(&mut self, execution: &Execution) -> ToolOutcome {
        let ok = |output| ToolOutcome { status: ToolStatus::Success, output: Json(output), cut_bytes: 0 };
        match execution.tool.as_str() {
            "read" => ok(json!({ "content": self.file })),
            "write" => {
                if let Replay::FileChange { before, after, .. } = &execution.replay
                    && execution.again
                {
                    let now = Some(Digest::of(self.file.as_bytes()));
                    if now == *after {
                        return ok(json!({ "already": true }));
                    }
                    if now != *before {
                        return ToolOutcome::says(ToolStatus::OutcomeUnknown, "changed meanwhile");
                    }
                }
                self.file = self.after(execution);
                *self.effects.entry(execution.invocation).or_default() += 1;
                ok(json!({}))
            }
            _ => {
                *self.effects.entry(execution.invocation).or_default() += 1;
                ok(json!({ "exit": 0 }))
            }
        }
    }
}

/// The tools' rules.
#[derive(Debug)]
pub struct Rules;

impl ToolRules for Rules {
    fn validate(&self, _lane: &Lane, tool: &str, arguments: &str) -> Result<ValidCall, ToolOutcome> {
        let refuse = |why: &str| ToolOutcome::says(ToolStatus::Refused, why);
        let input: serde_json::Value = serde_json::from_str(arguments).map_err(|_| refuse("not JSON"))?;
        let file = |mode| vec![LockSpec { resource: ResourceKey::File("f".to_owned()), mode }];
        let (locks, side_effect, replay) = match tool {
            "read" => (file(LockMode::S), SideEffect::Read, Some(Replay::Idempotent)),
            "write" => (file(LockMode::X), SideEffect::Write, None),
            "exec" => (
                vec![LockSpec { resource: ResourceKey::Workspace, mode: LockMode::X }],
                SideEffect::Write,
                Some(Replay::Unrepeatable),
            ),
            _ => return Err(refuse("no such tool")),
        };
        Ok(ValidCall { input: Json(input), locks, side_effect, replay })
    }

    fn manifest(&self) -> Digest {
        Digest::of(b"rules")
    }
}

/// The model: a pure function of the transcript, so that a repeated request gets the same answer.
///
/// Panics on a transcript no provider would take: a call without its result, a result without its call.
#[must_use]
pub fn model(turns: &[Turn]) -> ModelAnswer {
    check_pairs(turns);
    let last_user = turns
        .iter()
        .rposition(|turn| matches!(turn, Turn::User(text) if text.starts_with("message")))
        .expect("a model is asked about a message");
    let Turn::User(text) = &turns[last_user] else { unreachable!("found as such") };
    let step = turns[last_user..].iter().filter(|turn| matches!(turn, Turn::Assistant { .. })).count();
    let mut draw = crate::seed::Seed::new(text.bytes().map(u64::from).sum::<u64>() + step as u64);
    let usage = Usage { prompt_tokens: 10, completion_tokens: 5 };
    let calls = if step >= 3 { 0 } else { draw.below(4) };
    let answer = |text, calls| ModelAnswer { text, calls, usage, model: "simulated".to_owned() };
    if calls == 0 {
        return answer(Some(format!("answer to {text}")), Vec::new());
    }
    let calls = (0..calls)
        .map(|n| {
            let tool = ["read", "write", "exec", "unknown"][usize::try_from(draw.below(4)).expect("below 4")];
            let arguments =
                if draw.once_in(12) { "{".to_owned() } else { json!({ "content": text }).to_string() };
            ToolCall { provider_id: format!("c{step}-{n}"), tool: tool.to_owned(), arguments }
        })
        .collect();
    answer(None, calls)
}

fn check_pairs(turns: &[Turn]) {
    let mut open: Vec<&str> = Vec::new();
    for turn in turns {
        match turn {
            Turn::Assistant { calls, .. } => {
                assert!(open.is_empty(), "calls without results: {open:?}");
                open = calls.iter().map(|call| call.provider_id.as_str()).collect();
            }
            Turn::ToolResult { provider_id, .. } => {
                let at = open.iter().position(|id| id == provider_id).expect("a result of an open call");
                open.remove(at);
            }
            Turn::System(_) | Turn::User(_) => assert!(open.is_empty(), "calls without results: {open:?}"),
        }
    }
    assert!(open.is_empty(), "calls without results: {open:?}");
}
