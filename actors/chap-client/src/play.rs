//! Plays a scenario against a live Coordinator.

use std::collections::BTreeMap;
use std::time::Duration;

use choir_messages::time::Timestamp;
use serde_json::{Map, Value, json};

use crate::client::{CallError, Client, result_of};
use crate::scenario::{Scenario, ScenarioError, Step, differs, fill, pointers_differ};
use crate::signer::{Signer, SignerError};

/// How long a step with `until` is repeated before it has failed.
const UNTIL: Duration = Duration::from_secs(20);

/// Pause between two repetitions.
const AGAIN: Duration = Duration::from_millis(50);

/// What was played.
#[derive(Debug, Clone)]
pub struct Played {
    /// The workspace it was played in.
    pub workspace: String,
    /// Steps played.
    pub steps: usize,
    /// The keys that were made, by name.
    pub keys: BTreeMap<String, Signer>,
}

/// Why a scenario did not come to its end.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlayError {
    /// The file.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A key.
    #[error(transparent)]
    Key(#[from] SignerError),
    /// A step did not go as it should.
    #[error("step {number} ({what}): {why}")]
    Step {
        /// Which, from 1.
        number: usize,
        /// Its method.
        what: String,
        /// Why.
        why: String,
    },
}

struct Player<'a> {
    client: &'a Client,
    workspace: &'a str,
    kept: BTreeMap<String, Value>,
    keys: BTreeMap<String, Signer>,
}

/// Plays every step in `workspace`, which should not exist yet; `told` hears of each step before it is played.
pub async fn play(
    client: &Client,
    scenario: &Scenario,
    workspace: &str,
    mut told: impl FnMut(usize, &Step),
) -> Result<Played, PlayError> {
    let kept = BTreeMap::from([("workspace".to_owned(), Value::String(workspace.to_owned()))]);
    let mut player = Player { client, workspace, kept, keys: BTreeMap::new() };
    for (index, step) in scenario.steps.iter().enumerate() {
        told(index + 1, step);
        if let Some(why) = player.step(step).await? {
            let what = step.method.clone().unwrap_or_else(|| "inbox".into());
            return Err(PlayError::Step { number: index + 1, what, why });
        }
    }
    Ok(Played { workspace: workspace.to_owned(), steps: scenario.steps.len(), keys: player.keys })
}

impl Player<'_> {
    /// One step: why it failed, if it did.
    async fn step(&mut self, step: &Step) -> Result<Option<String>, PlayError> {
        if step.inbox {
            return self.inbox(step).await;
        }
        let deadline = tokio::time::Instant::now() + UNTIL;
        loop {
            let envelope = self.envelope(step)?;
            let result = match self.client.send(&envelope).await.and_then(result_of) {
                Ok(result) => result,
                Err(CallError::Refused(error)) if step.refused == Some(error.code) => return Ok(None),
                Err(error) => return Ok(Some(error.to_string())),
            };
            if let Some(code) = step.refused {
                return Ok(Some(format!("it should have been refused with {code}, and was not")));
            }
            match pointers_differ(&step.until, &result, &self.kept)? {
                Some(_) if tokio::time::Instant::now() < deadline => tokio::time::sleep(AGAIN).await,
                Some(why) => return Ok(Some(why)),
                None => return self.judge(step, &result),
            }
        }
    }

    fn judge(&mut self, step: &Step, result: &Value) -> Result<Option<String>, PlayError> {
        if let Some(expected) = &step.expect
            && let Some(why) = differs(&fill(expected, &self.kept)?, result, "")
        {
            return Ok(Some(why));
        }
        for (pointer, count) in &step.expect_count {
            let found = result.pointer(pointer).and_then(Value::as_array).map(Vec::len);
            if found != Some(*count) {
                return Ok(Some(format!("{pointer} has {found:?} items, expected {count}")));
            }
        }
        for (name, pointer) in &step.keep {
            let Some(value) = result.pointer(pointer) else {
                return Ok(Some(format!("{pointer} is missing")));
            };
            self.kept.insert(name.clone(), value.clone());
        }
        Ok(None)
    }

    async fn inbox(&mut self, step: &Step) -> Result<Option<String>, PlayError> {
        let participant = step.caller.as_deref().unwrap_or_default();
        let page = match self.client.inbox(self.workspace, participant, 0).await {
            Ok(page) => page,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let notices = page.get("notices").and_then(Value::as_array).cloned().unwrap_or_default();
        for notice in &notices {
            let body = notice.get("notice").unwrap_or(notice);
            if pointers_differ(&step.expect_any, body, &self.kept)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(format!("none of {} notices is what was expected", notices.len())))
    }

    fn envelope(&mut self, step: &Step) -> Result<Value, PlayError> {
        let mut params: Map<String, Value> = Map::new();
        for (name, value) in &step.params {
            params.insert(name.clone(), fill(value, &self.kept)?);
        }
        params.entry("workspace").or_insert_with(|| self.workspace.into());
        if let Some(caller) = &step.caller {
            params.entry("from").or_insert_with(|| caller.as_str().into());
        }
        let now = Timestamp::now().to_string();
        params.entry("ts").or_insert_with(|| now.into());
        if let Some(name) = &step.key {
            params.insert("jwks".into(), json!({ "keys": [self.make_key(name)?] }));
        }
        if let Some(name) = &step.new_key {
            params.insert("new_jwk".into(), self.make_key(name)?);
        }
        let id = choir_messages::id::MessageId::fresh().to_string();
        let mut envelope = json!({ "jsonrpc": "2.0", "id": id, "method": step.method, "params": params });
        if let Some(name) = &step.signed_by {
            let signer = self.keys.get(name).ok_or_else(|| ScenarioError::NoKey(name.clone()))?;
            signer.sign(&mut envelope)?;
        }
        Ok(envelope)
    }

    /// The public key as a JWK whose `kid` is its name here.
    fn make_key(&mut self, name: &str) -> Result<Value, PlayError> {
        let signer = Signer::generate(name)?;
        let jwk = signer.public_jwk();
        self.keys.insert(name.to_owned(), signer);
        Ok(jwk)
    }
}
