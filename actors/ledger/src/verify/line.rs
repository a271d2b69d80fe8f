//! What one line says, taken without knowledge of any other: the part of the work that is done by several threads. Whatever
//! depends on order is left to [`super::fold`].

use super::finding::{Check, EventName, Failure, FailureCode, Place, Warning, WarningCode};
use super::registry::Keys;
use super::rule::Rule;
use super::said::Said;
use super::says::Says;
use super::seal::{self, Seal};
use super::{Reading, lines};
use crate::event::{EventType, Role, schema};
use crate::json::{self, MAX_DEPTH, Object, Value};
use crate::payload::{self, read_hash};
use crate::{canon, time};
use choir_messages::chain::Digest;
use std::borrow::Cow;

/// What all lines are held against.
pub(super) struct Context {
    pub(super) reading: Reading,
    /// The trace's id as its folder spells it.
    pub(super) trace: String,
    pub(super) keys: Keys,
    pub(super) said: Said,
}

/// What a line came to.
pub(super) struct Looked {
    pub(super) number: u64,
    pub(super) failures: Vec<Failure>,
    pub(super) warnings: Vec<Warning>,
    pub(super) what: What,
}

/// What stood on a line.
pub(super) enum What {
    /// White space.
    Blank,
    /// No JSON, or no object.
    Unreadable {
        /// The beginning of a line that a crash cut off.
        leftover: bool,
    },
    /// An event, however bad.
    Event(Box<Seen>),
}

/// What an event says.
pub(super) struct Seen {
    pub(super) name: Option<EventName>,
    pub(super) schema_ok: bool,
    pub(super) own_trace: bool,
    pub(super) prev: Link,
    pub(super) hash: Link,
    pub(super) seal: Seal,
    pub(super) event_type: Option<EventType>,
    pub(super) role: Option<Role>,
    pub(super) created_at: Option<Box<str>>,
    pub(super) artifacts: Vec<Carried>,
    pub(super) says: Says,
}

/// A hash in `event_hash` or `prev_event_hash`, or whatever stands there instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Hash(Digest),
    /// The digest of the JSON that is no digest.
    Other(Digest),
    Absent,
}

/// What a descriptor says of its artefact.
pub(super) struct Carried {
    pub(super) hash: Option<Digest>,
    pub(super) size: Option<f64>,
}

impl Link {
    fn of(value: Option<&Value<'_>>) -> Self {
        match value {
            None => Self::Absent,
            Some(value) => match value.as_str().and_then(read_hash) {
                Some(digest) => Self::Hash(digest),
                None => Self::Other(Digest::of(value.to_json().as_bytes())),
            },
        }
    }
}

impl Looked {
    fn fail(&mut self, check: Check, code: FailureCode, place: Place, rule: Option<Rule>, message: String) {
        let failure = Failure::new(check, code, place, message);
        self.failures.push(Failure { rule, ..failure });
    }

    fn flaw(&mut self, place: Place, rule: Rule, message: String) {
        self.fail(Check::Schema, FailureCode::SchemaInvalid, place, Some(rule), message);
    }
}

/// Looks at one line. `bytes` is without the line end.
pub(super) fn look(line: &lines::Line, bytes: &[u8], context: &Context) -> Looked {
    let strict = context.reading == Reading::Strict;
    let mut looked = Looked {
        number: line.number,
        failures: Vec::new(),
        warnings: Vec::new(),
        what: What::Unreadable { leftover: false },
    };
    let place = Place { event: None, line: Some(line.number) };
    if line.too_long {
        let message = format!("the line is longer than {} bytes and was not read", lines::MAX_LINE);
        looked.flaw(place, Rule::AlwaysAReport, message);
        return looked;
    }
    let utf8 = std::str::from_utf8(bytes).map(Cow::Borrowed);
    let is_utf8 = utf8.is_ok();
    let text = utf8.unwrap_or_else(|_| String::from_utf8_lossy(bytes));
    // JavaScript counts the byte-order mark as white space.
    if text.chars().all(|c| c.is_whitespace() || c == '\u{feff}') {
        looked.what = What::Blank;
        return looked;
    }
    let bom = strict && text.starts_with('\u{feff}');
    let json = if bom { text.trim_start_matches('\u{feff}') } else { &text };
    let (value, flaws) = match json::parse(json) {
        Ok(parsed) => parsed,
        Err(error) => {
            let too_deep = error.is_too_deep();
            if too_deep {
                let message = format!("the line nests deeper than {MAX_DEPTH} levels and was not read");
                looked.flaw(place, Rule::AlwaysAReport, message);
            } else if strict && !line.ended {
                looked.what = What::Unreadable { leftover: true };
                looked.warnings.push(Warning {
                    warning_code: WarningCode::LedgerTailPartial,
                    verification_step: Check::Schema,
                    severity: super::Severity::Medium,
                    event_id: None,
                    line: Some(line.number),
                    rule: Some(Rule::SoundJson),
                    message: "the last line was cut off, probably by a crash; it is not part of the trace"
                        .into(),
                });
            } else if strict {
                looked.flaw(place, Rule::SoundJson, format!("the line is {error}"));
            }
            return looked;
        }
    };
    let Some(event) = value.as_object() else {
        looked.flaw(place, Rule::AlwaysAReport, "the line holds no object".to_owned());
        return looked;
    };
    let name = event.get("event_id").and_then(Value::as_str).and_then(EventName::of);
    let place = Place { event: name, line: Some(line.number) };
    if strict {
        if bom {
            looked.flaw(place, Rule::SoundJson, "the line begins with a byte-order mark".to_owned());
        }
        if !is_utf8 {
            looked.flaw(place, Rule::SoundJson, "the line is not UTF-8".to_owned());
        }
        for flaw in flaws.each() {
            looked.flaw(place, Rule::SoundJson, format!("the line is ambiguous: {flaw}"));
        }
    }
    look_at_event(event, place, context, &mut looked);
    looked
}

fn look_at_event(event: &Object<'_>, place: Place, context: &Context, looked: &mut Looked) {
    let strict = context.reading == Reading::Strict;
    let text = |name: &str| event.get(name).and_then(Value::as_str);
    let actor = |name: &str| event.get("actor").and_then(|actor| actor.get(name)).and_then(Value::as_str);
    let event_type: Option<EventType> = text("event_type").and_then(|name| name.parse().ok());
    let payload = event.get("payload");

    let schema = schema::check(event);
    if let Err(flaw) = schema {
        let message = format!("{} is not {}", flaw.member, flaw.form);
        looked.fail(Check::Schema, FailureCode::SchemaInvalid, place, None, message);
    }
    let seal = seal::examine(event, event_type, context, place, &mut looked.failures);
    let says = Says::read(event_type, event);
    if event_type == Some(EventType::ClaimIssued) && payload.is_none_or(Value::is_null) {
        let message = "a claim without a payload claims nothing".to_owned();
        looked.flaw(place, Rule::AlwaysAReport, message);
    }

    // Check 5: the key.
    let created_at = text("created_at");
    let entry = actor("key_id").and_then(|id| context.keys.get(id));
    let objection = match entry {
        None => Some(("the registry does not know the key", None)),
        Some(entry) => {
            let stricter = || entry.strict_objection(created_at).filter(|_| strict);
            entry
                .objection(actor("agent_id"), created_at)
                .map(|why| (why, None))
                .or_else(|| stricter().map(|why| (why, Some(Rule::KeyGoodThen))))
        }
    };
    if let Some((why, rule)) = objection {
        looked.fail(Check::Key, FailureCode::SchemaInvalid, place, rule, why.to_owned());
    }

    // Check 9: the role.
    let role: Option<Role> = actor("role").and_then(|name| name.parse().ok());
    if event_type.is_none_or(|event_type| role != Some(event_type.role())) {
        let message = match event_type {
            Some(event_type) => format!("only the {} may emit {event_type}", event_type.role()),
            None => "no role may emit an event of an unknown type".to_owned(),
        };
        looked.fail(Check::Role, FailureCode::RolePolicyViolation, place, None, message);
    }
    if strict {
        strictly(event, event_type, entry, place, context, looked);
    }

    let artifacts = event.get("artifacts").and_then(Value::as_array).unwrap_or_default();
    let carried = artifacts.iter().filter(|item| item.as_object().is_some()).map(|item| Carried {
        hash: item.get("artifact_hash").and_then(Value::as_str).and_then(read_hash),
        size: item.get("byte_size").and_then(Value::as_f64),
    });
    looked.what = What::Event(Box::new(Seen {
        name: place.event,
        schema_ok: schema.is_ok(),
        own_trace: text("trace_id") == Some(&context.trace),
        prev: Link::of(event.get("prev_event_hash")),
        hash: Link::of(event.get("event_hash")),
        seal,
        event_type,
        role,
        created_at: created_at.filter(|at| time::is_form(at)).map(Into::into),
        artifacts: carried.collect(),
        says,
    }));
}

/// What the strict reading asks of an event by itself: R05, R09, R11, R13 and R17.
fn strictly(
    event: &Object<'_>,
    event_type: Option<EventType>,
    entry: Option<&super::registry::Entry>,
    place: Place,
    context: &Context,
    looked: &mut Looked,
) {
    let text = |name: &str| event.get(name).and_then(Value::as_str);
    let actor = |name: &str| event.get("actor").and_then(|actor| actor.get(name)).and_then(Value::as_str);
    let who = [actor("agent_id"), actor("role"), actor("key_id")].map(Option::unwrap_or_default);
    let [agent_id, role, key_id] = who;
    if entry.is_some_and(|entry| !entry.may_act_as(role)) {
        let message = "the key may not act in this role".to_owned();
        looked.fail(Check::Role, FailureCode::RolePolicyViolation, place, Some(Rule::ActorBound), message);
    }
    if !context.said.takes_part(agent_id, role, key_id) {
        let message = "the actor is not among the trace's participants".to_owned();
        looked.fail(Check::Role, FailureCode::RolePolicyViolation, place, Some(Rule::ActorBound), message);
    }
    if let Some(at) = text("created_at").filter(|at| time::is_form(at)) {
        if !time::is_real(at) {
            looked.flaw(
                place,
                Rule::TimeRunsOn,
                "created_at is a day or an hour that does not exist".to_owned(),
            );
        } else if context.said.started_at.as_deref().is_some_and(|started| at < started) {
            looked.flaw(place, Rule::TimeRunsOn, "the event is older than its trace".to_owned());
        }
    }
    if text("schema_version").is_some_and(|version| !is_version_one(version)) {
        looked.flaw(place, Rule::PayloadForm, "schema_version is not 1.x.y".to_owned());
    }
    if let Some((member, form)) = event_type.and_then(|known| payload::flaw(known, event.get("payload"))) {
        looked.flaw(place, Rule::PayloadForm, format!("payload.{member} is not {form}"));
    }
    for item in event.get("artifacts").and_then(Value::as_array).unwrap_or_default() {
        let hash = item.get("artifact_hash").and_then(Value::as_str).and_then(read_hash);
        let uri = item.get("storage_uri").and_then(Value::as_str);
        if let (Some(hash), Some(uri)) = (hash, uri)
            && uri != crate::layout::storage_uri(&hash)
        {
            let message = "storage_uri is not the place of the artefact's hash".to_owned();
            let failure = Failure::new(Check::Schema, FailureCode::SchemaInvalid, place, message);
            looked.failures.push(failure.by(Rule::EvidenceCarried).about(hash));
        }
    }
    let members = event.members().iter();
    if canon::object_is_ambiguous(event) || members.map(|(_, value)| value).any(canon::order_is_ambiguous) {
        looked.warnings.push(Warning {
            warning_code: WarningCode::CanonicalOrderAmbiguous,
            verification_step: Check::EventHash,
            severity: super::Severity::Medium,
            event_id: place.event,
            line: place.line,
            rule: Some(Rule::OneOrder),
            message:
                "the members of an object sort differently in other languages; there its hash would not hold"
                    .into(),
        });
    }
}

fn is_version_one(version: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    version
        .strip_prefix("1.")
        .and_then(|rest| rest.split_once('.'))
        .is_some_and(|(minor, patch)| number(minor) && number(patch))
}
