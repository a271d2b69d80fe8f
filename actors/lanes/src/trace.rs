//! One span a turn: the parent of its model calls and of what its proposals lead to, from the message's turn to its end.

use std::fmt;
use std::sync::Arc;

use choir_messages::event::{Event, EventBody, MessageOutcome};
use choir_messages::id::{AgentId, MessageId, SessionId};
use choir_messages::session::SessionView;
use tokio::time::Instant;
use tracing::{Level, Span, field};

/// Makes a turn's span part of its message's trace, which a turn that is resumed continues, in whichever process.
pub type Adopt = Arc<dyn Fn(&Span, MessageId) + Send + Sync>;

/// Knows which span the lane works in.
pub(crate) struct TurnTrace {
    agent: AgentId,
    adopt: Adopt,
    turn: Option<Turn>,
    /// How a message ended, until its turn is seen to be over.
    ended: Option<(MessageId, MessageOutcome)>,
}

struct Turn {
    message: MessageId,
    span: Span,
    /// Resumptions that its span tells of.
    resumes: u32,
    since: Instant,
}

impl fmt::Debug for TurnTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnTrace")
            .field("turn", &self.turn.as_ref().map(|turn| turn.message))
            .finish_non_exhaustive()
    }
}

impl TurnTrace {
    pub(crate) const fn new(agent: AgentId, adopt: Adopt) -> Self {
        Self { agent, adopt, turn: None, ended: None }
    }

    /// Takes note of how messages end.
    pub(crate) fn heard(&mut self, events: &[Arc<Event>]) {
        for event in events {
            if let EventBody::MessageClosed { message, outcome, .. } = &event.body {
                self.ended = Some((*message, *outcome));
            }
        }
    }

    /// The span to work in now that the log stands so: the turn's, or the current one between turns.
    pub(crate) fn follow(&mut self, view: &SessionView) -> Span {
        let now = view.turn.as_ref().map(|turn| turn.message);
        if self.turn.as_ref().map(|turn| turn.message) != now {
            self.end();
            self.turn = now.map(|message| self.begin(message, view.session));
        }
        let resumes = view.turn.as_ref().map_or(0, |turn| turn.resumes);
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.resumes < resumes) {
            turn.resumes = resumes;
            turn.span.record("choir.resumed", true);
        }
        self.turn.as_ref().map_or_else(Span::current, |turn| turn.span.clone())
    }

    /// A turn may begin when another's ends, so its parent is not the span at hand.
    fn begin(&self, message: MessageId, session: SessionId) -> Turn {
        let agent = self.agent.as_str();
        let span = tracing::info_span!(
            target: "choir::lanes",
            parent: None,
            "turn",
            otel.name = format!("invoke_agent {agent}"),
            otel.status_code = field::Empty,
            gen_ai.operation.name = "invoke_agent",
            gen_ai.agent.name = agent,
            gen_ai.conversation.id = %session,
            session = %session,
            lane = "edge",
            %message,
            choir.resumed = field::Empty,
            outcome = field::Empty,
        );
        (self.adopt)(&span, message);
        Turn { message, span, resumes: 0, since: Instant::now() }
    }

    fn end(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let outcome = match self.ended.take() {
            Some((message, outcome)) if message == turn.message => outcome_name(outcome),
            // Seen only through a view that was read anew.
            _ => "unknown",
        };
        turn.span.record("outcome", outcome);
        if outcome == "failed" {
            turn.span.record("otel.status_code", "ERROR");
        }
        // The last thing that happens in it: this is its end.
        turn.span.in_scope(|| {
            let seconds = turn.since.elapsed().as_secs_f64();
            tracing::event!(target: "choir::metric", Level::INFO, histogram.choir.turn.duration = seconds, outcome);
        });
    }
}

const fn outcome_name(outcome: MessageOutcome) -> &'static str {
    match outcome {
        MessageOutcome::Answered => "answered",
        MessageOutcome::Refused => "refused",
        MessageOutcome::Failed => "failed",
        MessageOutcome::Expired => "expired",
    }
}
