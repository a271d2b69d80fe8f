//! Plays one plan: opens a fresh session, holds the conversation, deals the wounds at their steps, waits for the end,
//! stops the agent, and gathers what was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use choir_host::control::views::{AgentView, EventLine};
use choir_host::control::{Client, ClientError, Op};
use choir_messages::event::EventBody;
use choir_messages::id::{InvocationId, MessageId, SessionId};
use choir_scripted_model::{Handle, Outcome};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::house::House;
use super::stage::Stage;
use super::{HarnessError, client, evidence, limits, surgeon};
use crate::check::{Asked, Evidence};
use crate::plan::{At, Plan, Target, Wound, Wounding};

/// What came of a run.
pub struct Played {
    /// What was seen; or why there is nothing to see.
    pub result: Result<Evidence, HarnessError>,
    /// What happened, line by line.
    pub story: Vec<String>,
    /// The longest time in which nothing happened, and what had happened before it.
    pub pause: (Duration, String),
    /// The wounds that were dealt.
    pub dealt: Vec<Wound>,
}

/// Plays a plan in a house.
pub async fn play(house: &House, plan: &Plan) -> Played {
    let stage = Stage::new();
    let dealt = Mutex::new(Vec::new());
    let result = conversation(house, &stage, plan, &dealt).await;
    if let Err(error) = &result {
        stage.tell(error.to_string());
    }
    let dealt = dealt.into_inner().unwrap_or_else(PoisonError::into_inner);
    Played { result, story: stage.story(), pause: stage.longest_pause(), dealt }
}

async fn conversation(
    house: &House,
    stage: &Stage,
    plan: &Plan,
    dealt: &Mutex<Vec<Wound>>,
) -> Result<Evidence, HarnessError> {
    stage.tell("a fresh session is opened");
    house.ready().await?;
    evidence::prepare(house, plan)?;
    let before = known_messages(house).await?;
    let model = house.model(plan.script()).await?;
    stage.tell("the agent is started");
    let start = Op::AgentStart { agent: house.agent().clone(), fresh: true, workspace: None, llm: None };
    let started: AgentView = house.ask(start).await?;
    let session = started.session.ok_or(HarnessError::Deadline("a session"))?;
    stage.tell(format!("agent up, session {session}"));

    let ids: Vec<MessageId> = plan.messages.iter().map(|_| MessageId::fresh()).collect();
    let heard = client::Heard::default();
    let last_call = Mutex::new(None);
    let wounds = async {
        let dealing: FuturesUnordered<_> =
            plan.wounds.iter().map(|w| wound(house, stage, &model, w, &last_call, dealt)).collect();
        dealing.collect::<Vec<()>>().await;
    };
    let talk = async {
        let said = speak(house, stage, plan, &ids, &heard).await;
        stage.end();
        said
    };
    let both = async { tokio::join!(talk, wounds).0 };
    let ended = tokio::select! {
        ended = both => ended,
        () = client::listen(house, stage, plan, &ids, &heard) => unreachable!("listens for ever"),
        () = follow(house, stage, session, &last_call) => unreachable!("follows for ever"),
    };
    if let Err(error) = ended {
        autopsy(house, stage, &model).await;
        return Err(error);
    }
    stage.tell("the conversation is over");
    // What the last wounds broke must mend by itself, and what is on its way must arrive.
    let settled = async {
        tokio::select! {
            settled = settle(house, session, &before) => settled,
            () = client::listen(house, stage, plan, &ids, &heard) => unreachable!("listens for ever"),
        }
    };
    let settled = timeout(limits::SETTLED, settled).await;
    match settled {
        Ok(settled) => settled?,
        // The checker says what did not settle.
        Err(_) => {
            stage.tell("not everything was recorded as delivered in time");
            autopsy(house, stage, &model).await;
        }
    }
    stop(house).await?;
    stage.tell("agent stopped");
    for death in house.take_deaths() {
        stage.tell(format!("choird had ended: {death}"));
        let killed =
            dealt.lock().unwrap_or_else(PoisonError::into_inner).contains(&Wound::Kill(Target::Choird));
        if !killed {
            return Err(HarnessError::Fell(death));
        }
    }
    let tables = evidence::tables(house, session, &before).await?;
    let lines = evidence::lines(house, plan)?;
    let requests = model.shutdown().await.entries();
    let asked = ids.iter().zip(&plan.messages).map(|(message, said)| Asked {
        message: *message,
        tag: said.tag.clone(),
        effects: said.effects.clone(),
    });
    let wounds = dealt.lock().unwrap_or_else(PoisonError::into_inner).len();
    Ok(Evidence {
        session,
        head: tables.head,
        asked: asked.collect(),
        inbox: tables.inbox,
        outbox: tables.outbox,
        log: tables.log,
        invocations: tables.invocations,
        said: heard.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        requests,
        lines,
        leases: tables.leases,
        wounds: u32::try_from(wounds).unwrap_or(u32::MAX),
    })
}

/// Tells everything that may explain why a run does not come to its end.
async fn autopsy(house: &House, stage: &Stage, model: &Handle) {
    for entry in model.journal().entries() {
        stage.tell(format!(
            "  model request {} for \"{}\", step {}: {:?}, fault {:?}",
            entry.number, entry.message, entry.step, entry.outcome, entry.fault
        ));
    }
    match house.view().await {
        Ok(view) => stage.tell(format!("  {view:?}")),
        Err(error) => stage.tell(format!("  no view of the agent: {error}")),
    }
    match house.ask::<Value>(Op::Tree).await {
        Ok(tree) => stage.tell(format!("  {tree}")),
        Err(error) => stage.tell(format!("  no tree: {error}")),
    }
}

/// Messages of earlier conversations in this house.
async fn known_messages(house: &House) -> Result<BTreeSet<MessageId>, HarnessError> {
    let mut sql = house.sql().await?;
    let rows: Vec<(String,)> =
        sqlx::query_as("SELECT message_id FROM choir_control.inbox").fetch_all(&mut sql).await?;
    super::house::hang_up(sql).await;
    Ok(rows.iter().filter_map(|(id,)| id.parse().ok()).collect())
}

/// Sends the messages and waits for their answers.
async fn speak(
    house: &House,
    stage: &Stage,
    plan: &Plan,
    ids: &[MessageId],
    heard: &client::Heard,
) -> Result<(), HarnessError> {
    let answered = |ids: Vec<MessageId>| async move {
        let waiting = async {
            while !client::all_answered(heard, &ids) {
                sleep(limits::AGAIN).await;
            }
        };
        timeout(limits::CONVERSATION, waiting).await.map_err(|_| HarnessError::Deadline("the answers"))
    };
    for (number, (id, message)) in ids.iter().zip(&plan.messages).enumerate() {
        stage.mark(At::Sending(number));
        client::send(house, stage, *id, &message.text).await?;
        stage.mark(At::Accepted(number));
        if !plan.together {
            answered(vec![*id]).await?;
        }
    }
    answered(ids.to_vec()).await?;
    // The steps of a wounded delivery are the last of a conversation.
    sleep(limits::AGAIN).await;
    Ok(())
}

/// Waits for a step and deals its wound.
async fn wound(
    house: &House,
    stage: &Stage,
    model: &Handle,
    wounding: &Wounding,
    last_call: &Mutex<Option<InvocationId>>,
    dealt: &Mutex<Vec<Wound>>,
) {
    let at = wounding.at;
    if let At::Request(number) = at {
        let journal = model.journal();
        // Held, unless its client left first; either way it arrived.
        let arrived = journal.until(limits::CONVERSATION * 4, |entries| {
            entries.iter().find(|entry| entry.number == number && entry.outcome != Outcome::Open).map(|_| ())
        });
        tokio::select! {
            arrived = arrived => if arrived.is_ok() { stage.mark(at) },
            _ = stage.until(at) => {}
        }
    }
    if stage.until(at).await {
        let call = *last_call.lock().unwrap_or_else(PoisonError::into_inner);
        if surgeon::deal(house, stage, &wounding.wound, call).await {
            dealt.lock().unwrap_or_else(PoisonError::into_inner).push(wounding.wound.clone());
        }
        stage.dealt(at);
    }
    if let At::Request(number) = at {
        model.release(number);
    }
}

/// Follows the session's durable events, for as long as it is polled.
async fn follow(house: &House, stage: &Stage, session: SessionId, last_call: &Mutex<Option<InvocationId>>) {
    let mut after = 0;
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    loop {
        let _: Result<(), ClientError> = async {
            let client = Client::connect(&house.socket(), limits::REQUEST).await?;
            let mut stream = client.stream(Op::SessionEvents { session, after, follow: true }).await?;
            while let Some(item) = stream.item().await? {
                let line: EventLine = serde_json::from_value(item)
                    .map_err(|error| ClientError::Malformed(error.to_string()))?;
                after = line.rev;
                if let EventBody::ToolCallCommitted { invocation, .. } = &line.body {
                    *last_call.lock().unwrap_or_else(PoisonError::into_inner) = Some(*invocation);
                }
                let nth = seen.entry(line.kind.clone()).or_insert(0);
                *nth += 1;
                stage.mark(At::Durable { kind: line.body.kind(), nth: *nth });
            }
            Ok(())
        }
        .await;
        sleep(limits::AGAIN).await;
    }
}

/// Waits until choird and the agent are well again and everything said is recorded as delivered.
async fn settle(house: &House, session: SessionId, before: &BTreeSet<MessageId>) -> Result<(), HarnessError> {
    house.ready().await?;
    loop {
        let up = house.view().await.is_ok_and(|view| view.state == "up");
        if up {
            let tables = evidence::tables(house, session, before).await;
            let settled = |tables: &evidence::Tables| {
                tables.outbox.iter().all(|row| row.state == "delivered")
                    && tables.inbox.iter().all(|row| row.outcome.is_some())
            };
            if tables.is_ok_and(|tables| settled(&tables)) {
                return Ok(());
            }
        }
        sleep(limits::AGAIN).await;
    }
}

/// Stops the agent.
async fn stop(house: &House) -> Result<(), HarnessError> {
    let stopping = async {
        loop {
            let stop = Op::AgentStop { agent: house.agent().clone() };
            match house.ask::<AgentView>(stop).await {
                Ok(view) if view.state == "stopped" => return,
                _ => sleep(limits::AGAIN).await,
            }
        }
    };
    timeout(limits::SETTLED, stopping).await.map_err(|_| HarnessError::Deadline("the agent to stop"))
}
