//! What the meta file says about a trace, read leniently, and how it is held against the ledger (R07, R16).

use super::finding::{Check, Failure, FailureCode, Findings, Place};
use super::home::{Home, read_bounded};
use super::report::RunSaid;
use super::rule::Rule;
use crate::id::TraceId;
use crate::json::{self, Value};
use crate::time;
use choir_messages::chain::Digest;
use std::collections::HashSet;

/// The largest meta file that is read. It names participants, not events; 4 MiB is a thousand times the usual size.
pub const MAX_META: u64 = 4 << 20;

/// Characters of a status, a time or a reason that a report repeats.
const MAX_SAID: usize = 500;

/// Roles that must take part at least: planner, executor and critic.
const MIN_ROLES: usize = 3;

/// The meta file.
#[derive(Default)]
pub(super) struct Said {
    trace_id: Option<String>,
    pub(super) started_at: Option<String>,
    /// How the run stands.
    pub(super) run: Option<RunSaid>,
    /// Agent, role, key. Nothing if there is no list to hold actors against.
    participants: Option<HashSet<[String; 3]>>,
    head: Option<Digest>,
    event_count: Option<f64>,
    artifact_count: Option<f64>,
    policy_profile: Option<String>,
    /// Why nothing could be read, if so.
    unreadable: Option<String>,
}

/// What the ledger turned out to hold.
pub(super) struct Found {
    /// Lines that are no leftover, readable or not.
    pub(super) lines: u64,
    /// Events.
    pub(super) events: u64,
    /// Descriptors.
    pub(super) artifacts: u64,
    /// The last event's hash as it states it; zero without events; nothing if it is no digest.
    pub(super) head: Option<Digest>,
    /// Whether the last line could not be read, so that the head is not known.
    pub(super) tail_unread: bool,
    /// The profile in `verification_run_started`, if there is such an event.
    pub(super) profile: Option<Option<String>>,
    /// Where the ledger records that verification failed, if so.
    pub(super) recorded_fail: Option<Place>,
}

impl Said {
    pub(super) fn read(home: &dyn Home, trace: TraceId) -> Self {
        let bytes = match read_bounded(home, &crate::layout::meta(trace), MAX_META) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Self::unreadable("there is none"),
            Err(error) => return Self::unreadable(&error.to_string()),
        };
        let Ok(text) = String::from_utf8(bytes) else { return Self::unreadable("it is not UTF-8") };
        match json::parse(&text) {
            Ok((Value::Object(object), flaws)) => {
                let mut said = Self::take(&Value::Object(object));
                said.unreadable = flaws.first().map(str::to_owned);
                said
            }
            Ok(_) => Self::unreadable("it holds no object"),
            Err(error) => Self::unreadable(&error.to_string()),
        }
    }

    fn unreadable(why: &str) -> Self {
        Self { unreadable: Some(why.to_owned()), ..Self::default() }
    }

    fn take(meta: &Value<'_>) -> Self {
        let text = |name: &str| meta.get(name).and_then(Value::as_str).map(str::to_owned);
        let short = |name: &str| text(name).map(|said| said.chars().take(MAX_SAID).collect::<String>());
        let participant = |value: &Value<'_>| {
            let part = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
            Some([part("agent_id")?, part("role")?, part("key_id")?])
        };
        let participants = meta.get("participants").and_then(Value::as_array);
        Self {
            trace_id: text("trace_id"),
            started_at: text("started_at").filter(|at| time::is_real(at)),
            run: short("status").map(|status| RunSaid {
                status,
                ended_at: short("ended_at"),
                reason: short("status_reason"),
            }),
            participants: participants.map(|list| list.iter().filter_map(participant).collect()),
            head: text("head_event_hash").and_then(|hash| hash.parse().ok()),
            event_count: meta.get("event_count").and_then(Value::as_f64),
            artifact_count: meta.get("artifact_count").and_then(Value::as_f64),
            policy_profile: text("policy_profile"),
            unreadable: None,
        }
    }

    /// Whether this actor takes part. Without a list nobody can be missing from it.
    pub(super) fn takes_part(&self, agent_id: &str, role: &str, key_id: &str) -> bool {
        self.participants.as_ref().is_none_or(|list| {
            list.iter().any(|[agent, part, key]| agent == agent_id && part == role && key == key_id)
        })
    }

    /// Holds the meta file against the ledger.
    pub(super) fn check(&self, trace: TraceId, found: &Found, findings: &mut Findings) {
        let mut fail = |check: Check, code: FailureCode, rule: Rule, message: String| {
            findings.fail(Failure::new(check, code, Place::default(), message).by(rule));
        };
        let mut misfit = |message: String| {
            fail(Check::Schema, FailureCode::SchemaInvalid, Rule::MetaFits, message);
        };
        if let Some(why) = &self.unreadable {
            misfit(format!("the trace's meta file cannot be relied on: {why}"));
        }
        if self.participants.is_none() && self.unreadable.is_some() && self.trace_id.is_none() {
            return;
        }
        if self.trace_id.as_deref() != Some(&trace.to_string()) {
            misfit("the meta file is about another trace".to_owned());
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of lines stay far below 2^53")]
        let is = |said: Option<f64>, count: u64| said == Some(count as f64);
        if !is(self.event_count, found.events) && !is(self.event_count, found.lines) {
            misfit(format!("the meta file counts other events than the {} there are", found.events));
        }
        let whole = found.events == found.lines;
        if whole && !is(self.artifact_count, found.artifacts) {
            misfit(format!(
                "the meta file counts other artefact references than the {} there are",
                found.artifacts
            ));
        }
        let roles: HashSet<&String> = self.participants.iter().flatten().map(|[_, role, _]| role).collect();
        if roles.len() < MIN_ROLES {
            misfit(format!("the meta file names {} roles; a trace needs three", roles.len()));
        }
        if found.profile.as_ref().is_some_and(|profile| *profile != self.policy_profile) {
            misfit("the meta file names another policy profile than the verification ran under".to_owned());
        }
        if !found.tail_unread && (self.head.is_none() || self.head != found.head) {
            let message =
                "the meta file's head is not the last event's hash: events are missing or were added";
            fail(Check::Chain, FailureCode::ChainBreak, Rule::MetaFits, message.to_owned());
        }
        let succeeded = self.run.as_ref().is_some_and(|run| run.status == "succeeded");
        if succeeded && found.recorded_fail.is_some() {
            let message = "the meta file says succeeded, but the verification in the ledger failed";
            fail(Check::Finalization, FailureCode::SchemaInvalid, Rule::StatusHonest, message.to_owned());
        }
    }
}
