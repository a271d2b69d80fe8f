//! Running a workspace (specification §11.2, §12.1): invitations, evictions, its mode and the gate before it, pause, end.

use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::workspace::require_admin;
use super::{control, note, participant};
use crate::method::{Floor, Handled, Method};
use crate::model::{Member, Mode, Stored};
use crate::params::{Param, Params, Shape};
use crate::txn::Txn;
use crate::uri::is_participant;
use crate::workspace::{Decided, WorkspaceState};
use crate::{Refusal, codes};

const WHO: Param = Param::new("participant_uri", Shape::Text, "Whom");
const WHO_TOO: Param = Param::new("uri", Shape::Text, "Another name of participant_uri");
const REASON: Param = Param::new("reason", Shape::Text, "Why");

pub(crate) const METHODS: &[Method] = &[
    Method::new("workspace.invite", "core/1.0", "Invite a participant", invite)
        .floor(Floor::Member)
        .privileged()
        .required_later(&["from"])
        .params(&[
            WHO,
            WHO_TOO,
            Param::new("role", Shape::Text, "In which role"),
            Param::new("message", Shape::Text, "Words"),
        ]),
    Method::new("workspace.evict", "core/1.0", "Remove a participant", evict)
        .floor(Floor::Member)
        .privileged()
        .required_later(&["from"])
        .params(&[WHO, WHO_TOO, REASON]),
    Method::new(
        "workspace.set_mode",
        "modes/1.0",
        "Change the mode of new tasks, through the promotion gate",
        set_mode,
    )
    .floor(Floor::Member)
    .privileged()
    .required_later(&["from", "mode"])
    .params(&[Param::new("mode", Shape::Text, "shadow, trial or production"), REASON]),
    Method::new("workspace.pause", "control/1.0", "Suspend the workspace", pause)
        .floor(Floor::Early)
        .privileged()
        .params(&[REASON]),
    Method::new("workspace.resume", "control/1.0", "End the workspace's suspension", resume)
        .floor(Floor::Early)
        .privileged()
        .pause_exempt()
        .params(&[REASON]),
    Method::new("workspace.close", "core/1.0", "Seal the workspace: only reads from then on", close)
        .floor(Floor::Member)
        .privileged()
        .pause_exempt()
        .required_later(&["from"])
        .params(&[REASON]),
];

/// An invitation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Invitation {
    id: String,
    uri: String,
    by: String,
    ts: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Stored for Invitation {
    const KIND: ObjectKind = ObjectKind::Record;
    fn id(&self) -> &str {
        &self.id
    }
}

fn named<'a>(params: &Params<'a>) -> Result<&'a str, Refusal> {
    let uri = params.filled("participant_uri").or_else(|| params.filled("uri"));
    uri.filter(|uri| is_participant(uri))
        .ok_or_else(|| Refusal::params("participant_uri must be a participant URI"))
}

fn invite(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    require_admin(txn, "workspace.invite")?;
    let uri = named(params)?;
    if txn.member(uri).is_some() {
        return Err(Refusal::params(format!("{uri} is a member already")).into());
    }
    let invitation = Invitation {
        id: txn.fresh("inv_"),
        uri: uri.to_owned(),
        by: txn.from().to_owned(),
        ts: txn.now(),
        role: note(params.text("role")),
        message: note(params.text("message")),
    };
    txn.put(&invitation);
    let mut more = json!({"invitation_id": invitation.id, "by": invitation.by});
    for (name, text) in [("role", &invitation.role), ("message", &invitation.message)] {
        if let Some(text) = text {
            more[name] = json!(text);
        }
    }
    txn.notify([uri], "workspace_invitation", more);
    Ok(json!({"invited": true, "invitation_id": invitation.id, "uri": uri}).into())
}

fn evict(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    require_admin(txn, "workspace.evict")?;
    let uri = named(params)?;
    if txn.member(uri).is_none() {
        return Err(Refusal::params(format!("Unknown participant: {uri}")).into());
    }
    if uri == txn.from() {
        return Err(Refusal::params("Nobody evicts themselves: use participant.leave").into());
    }
    participant::depart(txn, uri)?;
    txn.notify([uri], "workspace_evicted", json!({"by": txn.from(), "reason": params.text("reason")}));
    Ok(json!({"evicted": true, "uri": uri}).into())
}

/// What must have happened in a mode before the next one (paper §7.3): set at creation, counted since the mode last
/// changed. Shares are whole percents of all decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// Fewest decisions of reviewers.
    pub minimum_decisions: u64,
    /// Largest share of overrides.
    pub max_override_percent: u64,
    /// Largest share of rejections.
    pub max_rejection_percent: u64,
    /// Largest share of abstentions.
    pub max_abstention_percent: u64,
}

impl Gate {
    /// Reads a gate; a bound that is left out does not bind.
    pub(crate) fn read(map: &Map<String, Value>) -> Result<Self, Refusal> {
        let known =
            ["minimum_decisions", "max_override_percent", "max_rejection_percent", "max_abstention_percent"];
        if let Some(name) = map.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(Refusal::params(format!("promotion_gate.{name} is not known")));
        }
        let params = Params::of(Some(map));
        let bound = |name: &'static str, otherwise: u64| match (params.get(name), params.count(name)) {
            (None, _) => Ok(otherwise),
            (Some(_), Some(bound)) => Ok(bound),
            (Some(_), None) => Err(Refusal::params(format!("promotion_gate.{name} must be a whole number"))),
        };
        Ok(Self {
            minimum_decisions: bound("minimum_decisions", 0)?,
            max_override_percent: bound("max_override_percent", 100)?,
            max_rejection_percent: bound("max_rejection_percent", 100)?,
            max_abstention_percent: bound("max_abstention_percent", 100)?,
        })
    }

    /// The first bound that is not met.
    #[must_use]
    pub fn unmet(&self, decided: &Decided) -> Option<String> {
        let all = decided.all();
        if all < self.minimum_decisions {
            return Some(format!("{all} decisions, at least {} are asked for", self.minimum_decisions));
        }
        [
            ("overrides", decided.overridden, self.max_override_percent),
            ("rejections", decided.rejected, self.max_rejection_percent),
            ("abstentions", decided.abstained, self.max_abstention_percent),
        ]
        .into_iter()
        .find(|(_, count, bound)| count.saturating_mul(100) > bound.saturating_mul(all))
        .map(|(what, count, bound)| {
            format!("{count} {what} among {all} decisions, at most {bound} % are allowed")
        })
    }
}

fn set_mode(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    require_admin(txn, "workspace.set_mode")?;
    let Some(mode) = params.text("mode").and_then(Mode::from_name) else {
        return Err(Refusal::params("mode must be shadow, trial or production").into());
    };
    let meta = txn.here()?;
    let (before, ceiling) = (meta.mode, meta.mode_ceiling);
    if mode > ceiling {
        let why = format!("Requested mode {} exceeds ceiling {}", mode.as_str(), ceiling.as_str());
        return Err(Refusal::new(codes::MODE_CEILING_EXCEEDED, why).into());
    }
    if mode > before {
        let gated = |why: String| Refusal::new(codes::MODE_STEP_UP_REQUIRED, why);
        // Evidence may speak for a promotion; a person signs it off.
        if !txn.member(txn.from()).is_some_and(Member::is_human) {
            return Err(gated("A promotion is signed off by a person".into()).into());
        }
        if before == Mode::Shadow && mode == Mode::Production {
            return Err(gated("A promotion goes one step at a time: shadow, trial, production".into()).into());
        }
        let meta = txn.here()?;
        if let Some(why) = meta.promotion_gate.as_ref().and_then(|gate| gate.unmet(&meta.decided)) {
            return Err(gated(format!("The promotion gate is closed: {why}"))
                .with(json!({"gate": meta.promotion_gate, "decided": meta.decided}))
                .into());
        }
    }
    let meta = txn.here_mut()?;
    let decided = meta.decided;
    if mode != before {
        meta.mode = mode;
        meta.decided = Decided::default();
        let everybody = format!("workspace:{}", txn.workspace());
        let more =
            json!({"mode": mode.as_str(), "previous": before.as_str(), "reason": params.text("reason")});
        txn.notify([everybody.as_str()], "workspace_mode", more);
    }
    Ok(json!({"mode": mode.as_str(), "previous": before.as_str(), "decided": decided}).into())
}

fn pause(txn: &mut Txn<'_>, _params: &Params<'_>) -> Handled {
    control::set_state(txn, WorkspaceState::Paused)
}

fn resume(txn: &mut Txn<'_>, _params: &Params<'_>) -> Handled {
    control::set_state(txn, WorkspaceState::Active)
}

fn close(txn: &mut Txn<'_>, _params: &Params<'_>) -> Handled {
    require_admin(txn, "workspace.close")?;
    control::set_state(txn, WorkspaceState::Closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_opens_only_when_every_bound_is_met() {
        let gate = Gate {
            minimum_decisions: 10,
            max_override_percent: 20,
            max_rejection_percent: 10,
            max_abstention_percent: 100,
        };
        let decided =
            |approved, overridden, rejected| Decided { approved, overridden, rejected, abstained: 0 };
        assert!(gate.unmet(&decided(9, 0, 0)).is_some_and(|why| why.starts_with("9 decisions")));
        assert_eq!(gate.unmet(&decided(7, 2, 1)), None);
        assert!(gate.unmet(&decided(7, 3, 0)).is_some_and(|why| why.starts_with("3 overrides")));
        assert!(gate.unmet(&decided(8, 0, 2)).is_some_and(|why| why.starts_with("2 rejections")));
    }

    #[test]
    fn a_gate_with_an_unknown_or_wrong_bound_is_refused() {
        let read = |value: Value| Gate::read(value.as_object().expect("an object"));
        assert!(read(json!({"minimum_decisions": "many"})).is_err());
        assert!(read(json!({"max_overrides": 1})).is_err());
        assert_eq!(read(json!({})).map(|gate| gate.unmet(&Decided::default())), Ok(None));
    }
}
