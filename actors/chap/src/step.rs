//! The order of checks (digest §3.2, N): which refusal a call gets decides whether it is recorded, so the order is part
//! of the protocol. [`Workspace::step`] is the only way a call changes anything.

use std::collections::BTreeMap;

use choir_messages::chap::{Change, Object, ObjectKey, ObjectKind};
use choir_messages::mail::Caller;
use choir_messages::time::Timestamp;
use serde_json::{Value, json};

use crate::call::{Answer, Body, Call};
use crate::method::{COMMON, Floor, Reply};
use crate::model::{SignedCall, Whisper};
use crate::params::Shape;
use crate::read::Plan;
use crate::refusal::Stop;
use crate::txn::Txn;
use crate::uri::is_id;
use crate::workspace::{Workspace, WorkspaceState};
use crate::{Refusal, Settings, codes, evidence, methods, signature};

/// What verified claims say of a joining participant (`identity-oidc/1.0`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OidcClaims {
    /// The subject.
    pub sub: Option<String>,
    /// When the person logged in, in seconds since 1970.
    pub auth_time: Option<i64>,
    /// How.
    pub acr: Option<String>,
    /// The key bound to the token, as a JWK.
    pub cnf_jwk: Option<Value>,
    /// The participant the token is for, if it says so.
    pub participant: Option<String>,
}

/// What a verified presentation says of a joining participant (`identity-vc/1.0`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VcSubject {
    /// Who holds the credential.
    pub holder: Option<String>,
    /// The holder's key, as a JWK.
    pub cnf_jwk: Option<Value>,
}

/// What somebody outside has verified before the step ([`Call::presented`]): claims, or the refusal to answer with.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Attested {
    /// Of the ID token; `None` if there was none to verify.
    pub oidc: Option<Result<OidcClaims, Refusal>>,
    /// Of the presentation; `None` if there was none to verify.
    pub vc: Option<Result<VcSubject, Refusal>>,
}

/// What a step is given from outside.
pub struct Context<'a> {
    /// The operator's settings.
    pub settings: &'a Settings,
    /// The clock.
    pub now: Timestamp,
    /// Who carries the call.
    pub caller: Caller,
    /// What was verified of it.
    pub attested: Attested,
    /// Fresh random bits; ids are made of them and the clock.
    pub fresh: &'a mut dyn FnMut() -> u128,
}

/// What a step came to.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and the large one is the usual one")]
pub enum Outcome {
    /// Objects are wanted first: load them, [`Workspace::supply`] them, and step again with the same call. Nothing has
    /// happened.
    Needs {
        /// These objects.
        keys: Vec<ObjectKey>,
        /// All open objects of these kinds ([`Workspace::supply_open`]).
        open: Vec<ObjectKind>,
    },
    /// An answer, to be given once the change is stored.
    Done {
        /// The answer.
        answer: Answer,
        /// What to store; none if nothing changed.
        change: Option<Change>,
    },
    /// A read of the log, to be carried out once everything before is stored.
    Read(Plan),
}

impl Workspace {
    /// The objects that a call will surely look at, so that they can be loaded before its step. A step that wants more
    /// says so itself.
    #[must_use]
    pub fn needs(&self, call: &Call) -> Vec<ObjectKey> {
        let mut keys = Vec::new();
        if self.version == 0 {
            return keys;
        }
        let params = call.params();
        for param in call.method().params {
            if let (Shape::Ref(kind), Some(id)) = (param.shape, params.text(param.name)) {
                keys.push(ObjectKey { kind, id: id.to_owned() });
            }
        }
        if let Some(digest) = call.signed() {
            keys.push(ObjectKey { kind: ObjectKind::SignedCall, id: digest.to_string() });
        }
        keys.retain(|key| is_id(&key.id) && self.cached(key).is_none());
        keys.dedup();
        keys
    }

    /// Applies one call: answers it, and says what to store. The workspace is then ahead of the store until
    /// [`Workspace::committed`].
    pub fn step(&mut self, call: &Call, mut context: Context<'_>) -> Outcome {
        self.begin(&referred(call));
        let mut txn = Txn::new(self, &mut context, call.from());
        let answer = |body| Answer { id: call.id(), body };
        match evaluate(&mut txn, call) {
            Ok(Verdict::Accepted(Reply::Read(plan))) => {
                self.end_step(false);
                Outcome::Read(plan.answering(call.id()))
            }
            Ok(Verdict::Accepted(Reply::Result(result))) => {
                let recorded = call.method().recorded;
                let change =
                    if recorded { record(&mut txn, call, None).map(|()| txn.finish()) } else { Ok(None) };
                match change {
                    Ok(finished) => self.done(answer(Body::Result(result)), finished),
                    Err(stop) => self.stopped(stop, call),
                }
            }
            Ok(Verdict::Repeated(result)) => self.done(answer(Body::Result(result)), None),
            Ok(Verdict::Unrecorded(refusal)) => self.done(answer(Body::Refused(refusal)), None),
            Err(Stop::Refused(refusal)) => {
                // What the handler did before it refused is dropped with its view of the workspace.
                let mut txn = Txn::new(self, &mut context, call.from());
                let finished = match is_recorded(&txn, call, &refusal) {
                    Ok(true) => record(&mut txn, call, Some(refusal.code)).map(|()| txn.finish()),
                    Ok(false) => Ok(None),
                    Err(stop) => Err(stop),
                };
                match finished {
                    Ok(finished) => self.done(answer(Body::Refused(refusal)), finished),
                    Err(stop) => self.stopped(stop, call),
                }
            }
            Err(stop) => self.stopped(stop, call),
        }
    }

    /// Looks at an object whose time has come, and does what its deadline asks. Nothing happens if it is not due.
    pub fn lapse(&mut self, key: &ObjectKey, mut context: Context<'_>) -> Outcome {
        self.begin(std::slice::from_ref(key));
        let mut txn = Txn::new(self, &mut context, None);
        let answer = Answer { id: Value::Null, body: Body::Result(Value::Null) };
        if txn.meta().is_none() {
            return self.done(answer, None);
        }
        let closed = txn.meta().is_some_and(|meta| meta.state == WorkspaceState::Closed);
        match methods::lapse(&mut txn, key) {
            Ok(true) => {
                if closed {
                    txn.silence();
                }
                let finished = txn.finish();
                self.done(answer, finished)
            }
            Ok(false) => self.done(answer, None),
            Err(Stop::Refused(refusal)) => self.done(Answer::refused(Value::Null, refusal), None),
            Err(Stop::Needs(keys)) => self.wanting(keys, Vec::new()),
            Err(Stop::NeedsOpen(kind)) => self.wanting(Vec::new(), vec![kind]),
        }
    }

    /// Whether this caller may read that participant's notices.
    pub fn may_read_inbox(
        &self,
        participant: &str,
        caller: &Caller,
        settings: &Settings,
    ) -> Result<(), Refusal> {
        if self.meta.is_none() {
            return Err(Refusal::params("Unknown workspace"));
        }
        bound(Some(participant), caller)?;
        let closed_to = settings.require_read_membership || caller.participants.is_some();
        if closed_to && self.member(participant).is_none() {
            return Err(Refusal::not_a_member(Some(participant)));
        }
        Ok(())
    }

    fn done(
        &mut self,
        answer: Answer,
        finished: Option<(Change, crate::workspace::Meta, Vec<crate::model::Member>)>,
    ) -> Outcome {
        let change = finished.map(|(change, meta, members)| {
            self.advance(&change, meta, members);
            change
        });
        self.end_step(false);
        Outcome::Done { answer, change }
    }

    fn stopped(&mut self, stop: Stop, call: &Call) -> Outcome {
        match stop {
            Stop::Refused(refusal) => self.done(Answer::refused(call.id(), refusal), None),
            Stop::Needs(keys) => self.wanting(keys, Vec::new()),
            Stop::NeedsOpen(kind) => self.wanting(Vec::new(), vec![kind]),
        }
    }

    fn wanting(&mut self, keys: Vec<ObjectKey>, open: Vec<ObjectKind>) -> Outcome {
        self.end_step(true);
        Outcome::Needs { keys, open }
    }
}

/// The objects a call's params refer to.
fn referred(call: &Call) -> Vec<ObjectKey> {
    let params = call.params();
    let refers = |param: &crate::Param| match (param.shape, params.text(param.name)) {
        (Shape::Ref(kind), Some(id)) => Some(ObjectKey { kind, id: id.to_owned() }),
        _ => None,
    };
    call.method().params.iter().filter_map(refers).collect()
}

/// What the checks and the handler came to, short of a refusal.
enum Verdict {
    Accepted(Reply),
    /// The answer to an earlier call, given again.
    Repeated(Value),
    /// A refusal that is not this sender's attempt, and so is never recorded.
    Unrecorded(Refusal),
}

/// The checks from the second on; the first are [`Call::parse`].
fn evaluate(txn: &mut Txn<'_>, call: &Call) -> Result<Verdict, Stop> {
    let method = call.method();
    let params = call.params();
    let settings = txn.settings();
    if let Err(refusal) = bound(call.from(), txn.caller()) {
        return Ok(Verdict::Unrecorded(refusal));
    }
    // Whoever can read the log can send a refused call again once its reason is gone; it must not take effect in its
    // signer's name.
    if let Some(SignedCall { seq, refused: Some(code), .. }) = signed_before(txn, call)? {
        let message = format!("Refused at seq {seq}; a refused request is not evaluated again");
        return Ok(Verdict::Unrecorded(Refusal::new(code, message).with(json!({"refused_at_seq": seq}))));
    }
    if settings.require_signatures && !method.opening {
        signature::check(txn, call)?;
    }
    if settings.enforce_step_up && method.privileged {
        step_up(txn, call.from())?;
    }
    if let Some(meta) = txn.meta() {
        let owner = method.profile.split('/').next().unwrap_or_default();
        if method.gated && owner != "core" && !meta.has_profile(owner) {
            return Err(Refusal::new(codes::METHOD, format!("Unknown method: {}", method.name))
                .with(json!({"profile": method.profile, "advertised": meta.profiles}))
                .into());
        }
        if method.floor == Floor::Early {
            member(txn, call)?;
        }
        match meta.state {
            WorkspaceState::Paused if !method.pause_exempt => {
                return Err(Refusal::new(
                    codes::CONTROL_PAUSED,
                    format!("Workspace {} is paused", txn.workspace()),
                )
                .into());
            }
            WorkspaceState::Closed if method.recorded => {
                let refusal =
                    Refusal::new(codes::CONTROL_PAUSED, format!("Workspace {} is closed", txn.workspace()));
                // A sealed log stays as it is.
                return Ok(Verdict::Unrecorded(refusal));
            }
            _ => {}
        }
        if let Some(replayed) = method.replayed
            && let Some(result) = replayed(txn, &params)?
        {
            return Ok(Verdict::Repeated(result));
        }
    }
    if method.required_first {
        params.require(method.required)?;
    }
    params.check(method.early)?;
    if txn.meta().is_none() && !method.anywhere {
        let named = if method.name == "workspace.describe" { call.workspace() } else { None };
        return Err(Refusal::params(
            named.map_or_else(|| "Unknown workspace".to_owned(), |id| format!("Unknown workspace: {id}")),
        )
        .into());
    }
    if !method.required_first {
        params.require(method.required)?;
    }
    if method.floor == Floor::Member || (method.floor == Floor::Reader && settings.require_read_membership) {
        member(txn, call)?;
    }
    params.check(COMMON)?;
    params.check(method.params)?;
    params.not_null(method)?;
    (method.run)(txn, &params).map(Verdict::Accepted)
}

/// The carrier knows who calls: `from` must be one of its participants.
fn bound(from: Option<&str>, caller: &Caller) -> Result<(), Refusal> {
    match (from, &caller.participants) {
        (Some(from), Some(participants)) if !participants.iter().any(|p| p == from) => Err(Refusal::new(
            codes::NOT_AUTHORISED,
            format!("The caller is not this participant: {from}; call as the one you are logged in as"),
        )),
        _ => Ok(()),
    }
}

fn member(txn: &Txn<'_>, call: &Call) -> Result<(), Refusal> {
    match call.from() {
        Some(from) if txn.member(from).is_some() => Ok(()),
        from => Err(Refusal::not_a_member(from)),
    }
}

/// A login must be fresh and strong enough; agents and services log in elsewhere.
fn step_up(txn: &Txn<'_>, from: Option<&str>) -> Result<(), Refusal> {
    let (Some(meta), Some(member)) = (txn.meta(), from.and_then(|uri| txn.member(uri))) else {
        return Ok(());
    };
    if !member.is_human() && member.oidc_sub.is_none() {
        return Ok(());
    }
    let window = meta.step_up_window_sec;
    let required =
        |data| Err(Refusal::new(codes::OIDC_STEP_UP_REQUIRED, "Step-up authentication required").with(data));
    let Some(auth_time) = member.oidc_auth_time else {
        return required(json!({"window_sec": window}));
    };
    let now = i64::try_from(txn.now().millis() / 1000).unwrap_or(i64::MAX);
    let age = now.saturating_sub(auth_time);
    if age > i64::try_from(window).unwrap_or(i64::MAX) {
        return required(json!({"window_sec": window, "age_sec": age}));
    }
    if meta.min_acr.is_some() && member.oidc_acr != meta.min_acr {
        return Err(Refusal::new(
            codes::OIDC_STEP_UP_REQUIRED,
            "Step-up required: acr below the workspace minimum",
        )
        .with(json!({"required_acr": meta.min_acr, "acr": member.oidc_acr})));
    }
    Ok(())
}

/// The earlier entry of the same signed call.
fn signed_before(txn: &Txn<'_>, call: &Call) -> Result<Option<SignedCall>, Stop> {
    match call.signed() {
        Some(digest) if txn.meta().is_some() => txn.get::<SignedCall>(&digest.to_string()),
        _ => Ok(None),
    }
}

/// Whether this refusal goes on the log: a member's attempt in an existing workspace, and no copy of an earlier one.
fn is_recorded(txn: &Txn<'_>, call: &Call, refusal: &Refusal) -> Result<bool, Stop> {
    let is_member = txn.meta().is_some() && call.from().is_some_and(|from| txn.member(from).is_some());
    Ok(is_member && evidence::is_recorded(call.method(), refusal) && signed_before(txn, call)?.is_none())
}

fn record(txn: &mut Txn<'_>, call: &Call, refused: Option<i64>) -> Result<(), Stop> {
    if let Some(digest) = call.signed() {
        txn.put(&SignedCall { id: digest.to_string(), seq: txn.next_seq(), refused });
    }
    // An answer to a whisper, taken or refused, is about the whisper's task, whatever it says itself.
    if call.method().name == "whisper.answer"
        && let Some(whisper) = call.params().text("whisper_id")
        && let Some(whisper) = txn.get::<Whisper>(whisper)?
    {
        txn.concerns(&whisper.task_id);
    }
    txn.entry(call, refused);
    Ok(())
}

/// Joins two changes of one workspace that follow each other, so that they are stored as one.
pub fn merge(first: &mut Change, second: Change) {
    debug_assert_eq!(first.version_after, second.version_before, "changes that do not follow each other");
    let mut puts: BTreeMap<ObjectKey, Object> = first.puts.drain(..).map(|o| (o.key.clone(), o)).collect();
    for key in &second.removes {
        puts.remove(key);
    }
    first.removes.retain(|key| !second.puts.iter().any(|put| put.key == *key));
    first.removes.extend(second.removes);
    puts.extend(second.puts.into_iter().map(|o| (o.key.clone(), o)));
    first.puts = puts.into_values().collect();
    first.version_after = second.version_after;
    first.meta = second.meta;
    first.entries.extend(second.entries);
    first.notices.extend(second.notices);
}
