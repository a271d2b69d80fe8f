//! The messages of the control socket. Plain data; decoding is total.

use choir_messages::event::Revision;
use choir_messages::id::{AgentId, MessageId, OutboundId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the control protocol; both sides must have the same.
pub const CONTROL_VERSION: u16 = 1;

/// Characters of a parser's words that go into an answer: enough for the list of what can be asked; a request may hold
/// megabytes, and what it holds must not reach a terminal as it is.
const WHY_CHARS: usize = 600;

/// One request: `{"v":1,"id":7,"op":{"agent_start":{"agent":"assistant"}}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestLine {
    /// [`CONTROL_VERSION`].
    pub v: u16,
    /// Chosen by the client; unique among its requests under way.
    pub id: u64,
    /// What is asked.
    pub op: Op,
}

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Are you there? Answers with version, pid and uptime.
    Ping,
    /// One screen about everything.
    Status,
    /// Start an agent; ends once it is up, or with why it is not.
    AgentStart {
        /// Which.
        agent: AgentId,
        /// Open a new session instead of resuming the last.
        #[serde(default)]
        fresh: bool,
        /// Another workspace than its default.
        #[serde(default)]
        workspace: Option<String>,
        /// Another model than its default.
        #[serde(default)]
        llm: Option<String>,
    },
    /// Stop an agent; ends once it is stopped.
    AgentStop {
        /// Which.
        agent: AgentId,
    },
    /// Stop and start an agent.
    AgentRestart {
        /// Which.
        agent: AgentId,
        /// As for `agent_start`.
        #[serde(default)]
        fresh: bool,
    },
    /// All agents.
    AgentList,
    /// One agent in detail.
    AgentStatus {
        /// Which.
        agent: AgentId,
    },
    /// Sessions, newest first.
    SessionList {
        /// Of one agent only.
        #[serde(default)]
        agent: Option<AgentId>,
    },
    /// Events of a session, in order; with `follow` also those to come.
    SessionEvents {
        /// Which.
        session: SessionId,
        /// After this revision.
        #[serde(default)]
        after: Revision,
        /// Go on with new ones.
        #[serde(default)]
        follow: bool,
    },
    /// Verify a session's whole log.
    SessionVerify {
        /// Which.
        session: SessionId,
    },
    /// Messages of users.
    Messages {
        /// Of one agent only.
        #[serde(default)]
        agent: Option<AgentId>,
        /// Only those without an outcome.
        #[serde(default)]
        unanswered: bool,
    },
    /// Hand a message to an agent. Done means that it is durable. The id makes a repeat harmless.
    Send {
        /// To whom.
        agent: AgentId,
        /// The message's id, chosen by the client.
        message: MessageId,
        /// Its text.
        text: String,
    },
    /// Stream what the agent says, until the connection ends or a newer stream takes over. Each item must be
    /// acknowledged by `delivered`.
    Chat {
        /// Which agent.
        agent: AgentId,
        /// Whether the client recognises repeats by id, and may therefore be sent again what may not have arrived.
        #[serde(default)]
        redeliver: bool,
    },
    /// The client has shown an outbound message of its `chat` stream.
    Delivered {
        /// Whose.
        agent: AgentId,
        /// Which.
        outbound: OutboundId,
    },
    /// The live actor trees: choird's own, and each agent's as it last reported it.
    Tree,
    /// Lines of a log: the last ones, and with `follow` those to come.
    Logs {
        /// `choird` or an agent.
        source: String,
        /// How many of the last lines.
        lines: u32,
        /// Go on with new ones.
        #[serde(default)]
        follow: bool,
    },
    /// choird's own checks, for `choirctl doctor`.
    Doctor,
    /// Read `secrets.json` again and tell running agents.
    SecretApply,
    /// Read `config.json` again, apply what can be applied, say what needs a restart.
    ConfigReload,
    /// Say what `config_reload` would change; change nothing.
    ConfigDiff,
    /// Kill one actor of choird's tree or of an agent's, to see it recover.
    ActorKill {
        /// Its path, such as `choird/store` or `assistant/choir-agent/session/arbiter`.
        path: String,
    },
    /// Begin a run of the signed ledger, and tell what happens until it has ended.
    LedgerRun {
        /// The task, in the form of a task file.
        task: Value,
        /// The agent whose tools are used; without it the only one there is.
        #[serde(default)]
        agent: Option<AgentId>,
    },
    /// What a run's trace says, until it has ended.
    LedgerFollow {
        /// The trace's id.
        trace: String,
        /// After so many events.
        #[serde(default)]
        after: u64,
    },
    /// End a run.
    LedgerAbort {
        /// The trace's id.
        trace: String,
        /// Why.
        reason: String,
    },
    /// The runs under way.
    LedgerRuns,
    /// Shut choird down in order.
    Shutdown,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplyLine {
    /// [`CONTROL_VERSION`] of choird.
    pub v: u16,
    /// The request's id; 0 where the request could not be read.
    pub id: u64,
    /// The answer.
    pub reply: Reply,
}

/// What is answered: any number of items, then one `done` or `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// One of many.
    Item(Value),
    /// The last word, with the result.
    Done(Value),
    /// The last word: it was not done.
    Error(ControlError),
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{what}{}", .next.as_ref().map(|n| format!("\n  {n}")).unwrap_or_default())]
pub struct ControlError {
    /// What kind, which decides the exit code.
    pub code: ErrorCode,
    /// What happened and why, for a person.
    pub what: String,
    /// The next command, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The kinds of errors; each is an exit code of `choirctl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The answer is no: not running, not found, not verified. Exit code 1.
    Negative,
    /// The request is wrong. Exit code 2.
    Usage,
    /// Something that is needed does not work now. Exit code 3.
    Runtime,
    /// A fault of choird. Exit code 4.
    Internal,
    /// Refused by a rule. Exit code 5.
    Refused,
}

impl ErrorCode {
    /// The exit code.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Negative => 1,
            Self::Usage => 2,
            Self::Runtime => 3,
            Self::Internal => 4,
            Self::Refused => 5,
        }
    }
}

impl ControlError {
    /// An error without a next command.
    #[must_use]
    pub fn new(code: ErrorCode, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), next: None }
    }

    /// Names the next command.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl RequestLine {
    /// Reads a line. The error carries the id if the line got that far.
    pub fn read(line: &str) -> Result<Self, (u64, ControlError)> {
        #[derive(Deserialize)]
        struct Outer {
            #[serde(default)]
            id: u64,
            v: Option<u16>,
        }
        let outer = serde_json::from_str::<Outer>(line).unwrap_or(Outer { id: 0, v: None });
        if let Some(v) = outer.v.filter(|v| *v != CONTROL_VERSION) {
            let what = format!("this choird speaks control version {CONTROL_VERSION}, the request has {v}");
            let error = ControlError::new(ErrorCode::Usage, what)
                .next("use the choirctl that belongs to the running choird");
            return Err((outer.id, error));
        }
        serde_json::from_str(line).map_err(|e| {
            let why = e.to_string();
            let why: String =
                why.chars().take(WHY_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
            (outer.id, ControlError::new(ErrorCode::Usage, format!("the request cannot be read: {why}")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ops() -> Vec<Op> {
        let agent: AgentId = "a".parse().unwrap();
        let session = SessionId::from_bits(1);
        vec![
            Op::Ping,
            Op::Status,
            Op::AgentStart { agent: agent.clone(), fresh: true, workspace: Some("w".into()), llm: None },
            Op::AgentStop { agent: agent.clone() },
            Op::AgentRestart { agent: agent.clone(), fresh: false },
            Op::AgentList,
            Op::AgentStatus { agent: agent.clone() },
            Op::SessionList { agent: None },
            Op::SessionEvents { session, after: 3, follow: true },
            Op::SessionVerify { session },
            Op::Messages { agent: Some(agent.clone()), unanswered: true },
            Op::Send { agent: agent.clone(), message: MessageId::from_bits(2), text: "é\n\0".into() },
            Op::Chat { agent: agent.clone(), redeliver: true },
            Op::Delivered { agent, outbound: OutboundId::from_bits(3) },
            Op::Tree,
            Op::Logs { source: "choird".into(), lines: 10, follow: false },
            Op::Doctor,
            Op::SecretApply,
            Op::ConfigReload,
            Op::ConfigDiff,
            Op::ActorKill { path: "choird/store".into() },
            Op::LedgerRun { task: serde_json::json!({ "task_id": "t" }), agent: None },
            Op::LedgerFollow { trace: "01ARZ3NDEKTSV4RRFFQ69G5FAV".into(), after: 7 },
            Op::LedgerAbort { trace: "01ARZ3NDEKTSV4RRFFQ69G5FAV".into(), reason: "enough".into() },
            Op::LedgerRuns,
            Op::Shutdown,
        ]
    }

    #[test]
    fn every_request_reads_back_what_it_writes_on_one_line() {
        for op in ops() {
            let line = RequestLine { v: CONTROL_VERSION, id: 7, op };
            let text = serde_json::to_string(&line).unwrap();
            assert!(!text.contains('\n'));
            assert_eq!(RequestLine::read(&text).unwrap(), line);
        }
    }

    #[test]
    fn what_cannot_be_read_is_answered_under_its_id_if_it_has_one() {
        let (id, error) =
            RequestLine::read(r#"{"v":1,"id":9,"op":{"agent_strat":{"agent":"a"}}}"#).unwrap_err();
        assert_eq!((id, error.code), (9, ErrorCode::Usage));
        assert!(error.what.contains("agent_strat") && error.what.contains("agent_start"), "{}", error.what);
        let (id, error) = RequestLine::read(r#"{"v":2,"id":9,"op":"from_the_future"}"#).unwrap_err();
        assert!(id == 9 && error.what.contains("control version 1"), "{}", error.what);
        let (_, error) =
            RequestLine::read(r#"{"v":1,"id":1,"op":{"agent_stop":{"agent":"A B"}}}"#).unwrap_err();
        assert!(error.what.contains("is not a name"), "{}", error.what);
        assert_eq!(RequestLine::read("nonsense").unwrap_err().0, 0);
    }

    #[test]
    fn the_answer_to_what_cannot_be_read_is_short_and_on_one_line() {
        let op = format!("\\u001b[2J\\n{}", "x".repeat(100_000));
        let (_, error) = RequestLine::read(&format!(r#"{{"v":1,"id":1,"op":"{op}"}}"#)).unwrap_err();
        assert!(error.what.chars().count() < WHY_CHARS + 50, "{} bytes", error.what.len());
        assert!(!error.what.contains(char::is_control), "{}", error.what);
    }

    proptest! {
        #[test]
        fn no_line_makes_the_reader_panic(line in ".{0,300}") {
            let _ = RequestLine::read(&line);
        }

        #[test]
        fn a_damaged_request_is_read_or_refused(which in 0usize..26, cut in 0usize..200, with in any::<char>()) {
            let op = ops().swap_remove(which);
            let mut text = serde_json::to_string(&RequestLine { v: 1, id: 1, op }).unwrap();
            let at = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.insert(at, with);
            let _ = RequestLine::read(&text);
        }
    }
}
