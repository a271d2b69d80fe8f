//! The user's side: sends messages until they are confirmed, under the same id each time, and reads what the agent says
//! over a chat that it opens again whenever it breaks.

use std::sync::{Arc, Mutex, PoisonError};

use choir_host::control::views::{SaidView, SentView};
use choir_host::control::{Client, ClientError, ErrorCode, Op};
use choir_messages::id::{AgentId, MessageId};
use serde_json::Value;

use super::house::House;
use super::stage::Stage;
use super::{HarnessError, limits};
use crate::check::Answer;
use crate::plan::{At, Plan};

/// What reached the user, in order.
pub(super) type Heard = Arc<Mutex<Vec<Answer>>>;

/// Sends a message until it is confirmed.
pub(super) async fn send(
    house: &House,
    stage: &Stage,
    message: MessageId,
    text: &str,
) -> Result<(), HarnessError> {
    let mut refusals = 0u32;
    let sending = async {
        loop {
            let op = Op::Send { agent: house.agent().clone(), message, text: text.to_owned() };
            match house.ask::<SentView>(op).await {
                Ok(_) => return Ok(()),
                // A rule says no, which no wound explains.
                Err(ClientError::Refused(error)) if error.code != ErrorCode::Runtime => {
                    return Err(HarnessError::Control(ClientError::Refused(error)));
                }
                Err(error) => {
                    refusals += 1;
                    if refusals == 1 {
                        stage.tell(format!("a message is not confirmed yet: {error}"));
                    }
                    tokio::time::sleep(limits::AGAIN).await;
                }
            }
        }
    };
    tokio::time::timeout(limits::CONVERSATION, sending)
        .await
        .map_err(|_| HarnessError::Deadline("a message to be confirmed"))?
}

/// Reads what the agent says and confirms each item, for as long as it is polled.
pub(super) async fn listen(house: &House, stage: &Stage, plan: &Plan, ids: &[MessageId], heard: &Heard) {
    loop {
        // The connection broke, or choird is away: open it again.
        let _ = chat(house, stage, plan, ids, heard).await;
        tokio::time::sleep(limits::AGAIN).await;
    }
}

async fn chat(
    house: &House,
    stage: &Stage,
    plan: &Plan,
    ids: &[MessageId],
    heard: &Heard,
) -> Result<(), ClientError> {
    let client = Client::connect(&house.socket(), limits::REQUEST).await?;
    let agent: AgentId = house.agent().clone();
    let mut stream = client.stream(Op::Chat { agent: agent.clone(), redeliver: true }).await?;
    while let Some(item) = stream.item().await? {
        let said: SaidView =
            serde_json::from_value(item).map_err(|error| ClientError::Malformed(error.to_string()))?;
        let outbound = said.outbound;
        let answers = ids.iter().position(|id| *id == said.message).filter(|_| said.kind == "answer");
        let answer =
            Answer { outbound, message: said.message, kind: said.kind, text: said.text, repeat: said.repeat };
        heard.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        if let Some(number) = answers {
            let at = At::Shown(number);
            stage.mark(at);
            if plan.wounds.iter().any(|wounding| wounding.at == at) {
                stage.until_dealt(at, limits::HELD).await;
            }
        }
        let _: Value = client.call(Op::Delivered { agent: agent.clone(), outbound }, limits::REQUEST).await?;
        if let Some(number) = answers {
            stage.mark(At::Delivered(number));
        }
    }
    Ok(())
}

/// Whether every message was answered, as far as the user heard.
pub(super) fn all_answered(heard: &Heard, ids: &[MessageId]) -> bool {
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    ids.iter().all(|id| heard.iter().any(|answer| answer.message == *id && answer.kind == "answer"))
}
