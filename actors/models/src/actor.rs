//! The models actor: a thin shell that starts calls, bounds them, and holds the settings in force.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use choir_messages::id::{ModelCallId, SessionId};
use choir_messages::mail::ModelsMsg;
use choir_messages::model::{ModelAnswer, ModelConfig, ModelFailure, ModelRequest};
use choir_messages::reply::ReplyTo;
use choir_messages::secret::Secret;
use choir_messages::tool::Lane;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, Slot, TaskHandle, WhenFull};
use tokio::time::Instant;
use tracing::{Instrument as _, Level, Span, field};

use crate::client::Client;
use crate::limits;
use crate::settings::SettingsError;

/// The mailbox this actor is meant to have: room for every lane's call and its cancellation; a sender waits briefly,
/// for handlers here never wait themselves.
pub const MAILBOX: MailboxSpec =
    MailboxSpec { capacity: 2 * limits::CALLS_WAITING, when_full: WhenFull::Wait(Duration::from_secs(1)) };

/// A handler only keeps books and at most reads root certificates; longer than this it hangs.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// The settings in force, as every incarnation of the actor shares them: a crash must not bring old ones back.
type InForce = Arc<Mutex<Option<Result<Client, SettingsError>>>>;

/// Makes the model calls of one agent.
#[derive(Debug)]
pub struct ModelsActor {
    session: Option<SessionId>,
    in_force: InForce,
    running: Vec<Running>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Running {
    call: ModelCallId,
    task: TaskHandle,
    over: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Waiting {
    call: ModelCallId,
    lane: Lane,
    request: ModelRequest,
    limited: ReplyTo<u64>,
    reply: ReplyTo<Result<ModelAnswer, ModelFailure>>,
    span: Span,
}

/// The actor's child spec. `initial` is the configuration it begins with; without one, and until the first
/// [`ModelsMsg::Configure`], calls fail with a sentence that says so.
#[must_use]
pub fn child_spec(slot: Slot<ModelsMsg>, initial: Option<(ModelConfig, Option<Secret>)>) -> ChildSpec {
    spec(slot, None, initial)
}

/// The same with the session's id on every span.
#[must_use]
pub fn child_spec_in(
    session: SessionId,
    slot: Slot<ModelsMsg>,
    initial: Option<(ModelConfig, Option<Secret>)>,
) -> ChildSpec {
    spec(slot, Some(session), initial)
}

fn spec(
    slot: Slot<ModelsMsg>,
    session: Option<SessionId>,
    initial: Option<(ModelConfig, Option<Secret>)>,
) -> ChildSpec {
    let in_force: InForce = Arc::new(Mutex::new(initial.map(|(config, key)| Client::new(config, key))));
    ChildSpec::worker(slot, move |_cx| {
        let in_force = Arc::clone(&in_force);
        async move { Ok(ModelsActor { session, in_force, running: Vec::new(), waiting: VecDeque::new() }) }
    })
    .stuck_after(STUCK_AFTER)
}

impl Actor for ModelsActor {
    type Msg = ModelsMsg;

    async fn handle(&mut self, msg: ModelsMsg, cx: &mut Context<ModelsMsg>) -> Result<(), Failure> {
        match msg {
            ModelsMsg::Complete { call, lane, request, limited, reply } => {
                // Whoever asks again under the same id has lost the first answer.
                self.cancel(call);
                let waiting = Waiting { call, lane, request, limited, reply, span: Span::current() };
                if self.waiting.len() < limits::CALLS_WAITING {
                    self.waiting.push_back(waiting);
                } else {
                    waiting.reply.send(Err(ModelFailure::Unreachable {
                        reason: format!("{} calls of this agent are waiting already", limits::CALLS_WAITING),
                    }));
                }
            }
            ModelsMsg::Cancel { call } => self.cancel(call),
            ModelsMsg::Configure { config, key } => {
                let client = Client::new(config, key);
                match &client {
                    Ok(client) => tracing::info!(
                        target: "choir::models",
                        model = client.config().model, endpoint = client.shown(), "new model settings"
                    ),
                    Err(error) => {
                        tracing::warn!(target: "choir::models", %error, "new model settings cannot be used");
                    }
                }
                *self.in_force.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
            }
            // Only wakes the actor: which call is over is noted at the call.
            ModelsMsg::Finished { .. } => {}
        }
        self.running.retain(|running| !running.over.load(Ordering::Acquire));
        while self.running.len() < limits::CALLS_IN_FLIGHT {
            let Some(waiting) = self.waiting.pop_front() else { break };
            if !waiting.reply.is_abandoned() {
                self.start(waiting, cx)?;
            }
        }
        Ok(())
    }
}

impl ModelsActor {
    fn cancel(&mut self, call: ModelCallId) {
        self.waiting.retain(|waiting| waiting.call != call);
        self.running.retain(|running| {
            if running.call == call {
                running.task.abort();
            }
            running.call != call
        });
    }

    fn start(&mut self, waiting: Waiting, cx: &mut Context<ModelsMsg>) -> Result<(), Failure> {
        let Waiting { call, lane, request, limited, reply, span: parent } = waiting;
        let in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let client = match in_force {
            Some(Ok(client)) => client,
            Some(Err(error)) => {
                reply.send(Err(ModelFailure::Unreachable { reason: error.to_string() }));
                return Ok(());
            }
            None => {
                reply.send(Err(ModelFailure::Unreachable {
                    reason: "no model is configured for this agent".to_owned(),
                }));
                return Ok(());
            }
        };
        let span = call_span(&parent, &client, call, &lane, self.session);
        let (model, started) = (client.config().model.clone(), Instant::now());
        let over = Arc::new(AtomicBool::new(false));
        let ends = Ends(Arc::clone(&over));
        let work = async move {
            let _ends = ends;
            let work = client.complete(call, &request, |millis| {
                tracing::info!(target: "choir::models", %call, millis, "the provider limits the rate");
                limited.send(millis);
            });
            tokio::select! {
                result = work => {
                    record(&result);
                    measure(&model, started.elapsed(), &result);
                    reply.send(result);
                }
                () = abandoned(&reply) => {
                    Span::current().record("error.type", "abandoned");
                }
            }
        };
        let task = cx.pipe_to_self(work.instrument(span), move |()| ModelsMsg::Finished { call })?;
        self.running.push(Running { call, task, over });
        Ok(())
    }
}

/// Notes the end of a call, however it ends, before the actor is woken.
#[derive(Debug)]
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

async fn abandoned<R>(reply: &ReplyTo<R>) {
    while !reply.is_abandoned() {
        tokio::time::sleep(limits::ABANDONED_CHECK).await;
    }
}

/// One span a call, by the GenAI semantic conventions; names and counts, never content.
fn call_span(
    parent: &Span,
    client: &Client,
    call: ModelCallId,
    lane: &Lane,
    session: Option<SessionId>,
) -> Span {
    let model = client.config().model.as_str();
    tracing::info_span!(
        target: "choir::models",
        parent: parent,
        "chat",
        otel.name = format!("chat {model}"),
        otel.kind = "client",
        otel.status_code = field::Empty,
        gen_ai.operation.name = "chat",
        gen_ai.provider.name = client.host(),
        gen_ai.request.model = model,
        gen_ai.request.temperature = client.config().temperature,
        gen_ai.response.model = field::Empty,
        gen_ai.usage.input_tokens = field::Empty,
        gen_ai.usage.output_tokens = field::Empty,
        server.address = client.host(),
        error.type = field::Empty,
        choir.session = session.map(field::display),
        choir.lane = %lane,
        choir.model_call = %call,
        choir.tool_calls = field::Empty,
    )
}

fn record(result: &Result<ModelAnswer, ModelFailure>) {
    let span = Span::current();
    match result {
        Ok(answer) => {
            span.record("gen_ai.response.model", answer.model.as_str());
            span.record("gen_ai.usage.input_tokens", answer.usage.prompt_tokens);
            span.record("gen_ai.usage.output_tokens", answer.usage.completion_tokens);
            span.record("choir.tool_calls", answer.calls.len());
        }
        Err(failure) => {
            span.record("otel.status_code", "ERROR");
            span.record("error.type", kind(failure));
        }
    }
}

/// Counts a call that ended. One that was abandoned is no figure of the model's.
fn measure(model: &str, took: Duration, result: &Result<ModelAnswer, ModelFailure>) {
    let (seconds, outcome) = (took.as_secs_f64(), result.as_ref().map_or_else(kind, |_| "ok"));
    tracing::event!(target: "choir::metric", Level::INFO, histogram.choir.model.duration = seconds, model, outcome);
    if let Ok(answer) = result {
        let usage = answer.usage;
        for (direction, tokens) in [("prompt", usage.prompt_tokens), ("completion", usage.completion_tokens)]
        {
            tracing::event!(target: "choir::metric", Level::INFO, monotonic_counter.choir.model.tokens = tokens, model, direction);
        }
    }
}

const fn kind(failure: &ModelFailure) -> &'static str {
    match failure {
        ModelFailure::RateLimited { .. } => "rate_limited",
        ModelFailure::Unauthorised { .. } => "unauthorised",
        ModelFailure::Rejected { .. } => "rejected",
        ModelFailure::ServerError { .. } => "server_error",
        ModelFailure::Timeout { .. } => "timeout",
        ModelFailure::Unreachable { .. } => "unreachable",
        ModelFailure::Malformed { .. } => "malformed",
        ModelFailure::Filtered => "filtered",
        ModelFailure::TooLarge { .. } => "too_large",
        ModelFailure::Budget { .. } => "budget",
    }
}
