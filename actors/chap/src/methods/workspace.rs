//! `workspace.create`, `.describe`, `.set_profiles` (digest §3.6, core).

use serde_json::{Value, json};

use crate::evidence::GENESIS;
use crate::limits::{PROFILES, STEP_UP_SECONDS};
use crate::method::{Floor, Handled, Method};
use crate::model::Mode;
use crate::params::{Param, Params, Shape};
use crate::refusal::Stop;
use crate::register;
use crate::txn::Txn;
use crate::uri::{is_id, is_participant};
use crate::workspace::{Meta, WorkspaceState};
use crate::{Refusal, codes};

pub(crate) const METHODS: &[Method] = &[
    Method::new("workspace.create", "core/1.0", "Create a workspace", create)
        .opening()
        .pause_exempt()
        .params(&[
            Param::new("profiles", Shape::Texts, "Profiles it advertises; core and review if left out"),
            Param::new("mode", Shape::Text, "Mode of new tasks: shadow, trial or production"),
            Param::new("mode_ceiling", Shape::Text, "Highest mode a task may have"),
            Param::new("routing_policy_uri", Shape::Text, "Where its routing policy is described"),
            Param::new(
                "step_up_window_sec",
                Shape::Count,
                "How fresh a login must be for privileged methods, in seconds",
            ),
            Param::new("min_acr", Shape::Text, "How strong that login must be"),
            Param::new(
                "promotion_gate",
                Shape::Object,
                "Bounds before a promotion: minimum_decisions, max_override_percent, …",
            ),
        ]),
    Method::new("workspace.describe", "core/1.0", "Describe a workspace", describe)
        .floor(Floor::Reader)
        .ungated()
        .pause_exempt()
        .read()
        .required(&["workspace"]),
    Method::new(
        "workspace.set_profiles",
        "core/1.0",
        "Change the profiles a workspace advertises",
        set_profiles,
    )
    .floor(Floor::Member)
    .privileged()
    .required(&["workspace", "from", "profiles"])
    .params(&[Param::new("profiles", Shape::Texts, "The profiles from now on")]),
];

/// What a workspace says when neither its creator nor the operator says otherwise.
const STEP_UP_WINDOW: u64 = 300;

fn create(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    if let Some(from) = params.get("from").filter(|from| !from.as_str().is_some_and(is_participant)) {
        let _ = from;
        return Err(Refusal::params("from must be a participant URI").into());
    }
    if txn.meta().is_some() {
        return Err(Refusal::params(format!("workspace already exists: {}", txn.workspace())).into());
    }
    let profiles = params.texts("profiles").filter(|list| !list.is_empty());
    let created = open(txn, params, profiles)?;
    Ok(json!({"workspace": txn.workspace(), "created": created}).into())
}

/// Makes the workspace of this step exist, and says when it was created. A joining participant does the same.
pub(crate) fn open(
    txn: &mut Txn<'_>,
    params: &Params<'_>,
    profiles: Option<Vec<String>>,
) -> Result<String, Stop> {
    if !is_id(txn.workspace()) {
        return Err(Refusal::params("workspace must be a string id of 1 to 256 bytes").into());
    }
    let settings = txn.settings();
    let mut profiles = profiles.unwrap_or_else(|| settings.default_profiles.clone());
    check_profiles(&profiles)?;
    // What is enforced is advertised, and what is advertised is enforced.
    for (profile, enforced, option) in [
        ("security-signed/1.0", settings.require_signatures, "require_signatures"),
        ("identity-oidc/1.0", settings.verify_oidc, "verify_oidc_token"),
    ] {
        let name = profile.trim_end_matches("/1.0");
        let advertised = profiles
            .iter()
            .any(|p| p.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
        if enforced && !advertised {
            profiles.push(profile.to_owned());
        } else if advertised && !enforced {
            let message = format!(
                "{profile} cannot be advertised: {option} is off, so nothing would enforce it. Leave the profile out or \
                 turn {option} on"
            );
            return Err(Refusal::params(message).into());
        }
    }
    let mode = |name: &str, otherwise| match params.filled(name) {
        None => Ok(otherwise),
        Some(text) => Mode::from_name(text)
            .ok_or_else(|| Refusal::params(format!("{name} must be shadow, trial or production"))),
    };
    let window = params.count("step_up_window_sec").filter(|window| *window > 0).unwrap_or(STEP_UP_WINDOW);
    if window > STEP_UP_SECONDS {
        return Err(Refusal::params(format!("step_up_window_sec must be at most {STEP_UP_SECONDS}")).into());
    }
    let chained = settings.enable_chain || profiles.iter().any(|p| p == "audit-scitt/1.0");
    let meta = Meta {
        created: txn.now(),
        state: WorkspaceState::Active,
        profiles,
        mode: mode("mode", Mode::Trial)?,
        mode_ceiling: mode("mode_ceiling", Mode::Production)?,
        routing_policy_uri: params.owned("routing_policy_uri"),
        step_up_window_sec: window,
        min_acr: params.owned("min_acr"),
        register: None,
        entries: 0,
        head: chained.then(|| GENESIS.to_owned()),
        chained_from: None,
        last_arrival: txn.now(),
        tasks: 0,
        overrides: 0,
        notices: 0,
        joins: 0,
        promotion_gate: params.map("promotion_gate").map(super::Gate::read).transpose()?,
        decided: crate::workspace::Decided::default(),
        redacted: crate::Redactions::default(),
    };
    let created = meta.created.to_string();
    txn.create(meta);
    Ok(created)
}

fn check_profiles(profiles: &[String]) -> Result<(), Refusal> {
    if profiles.len() > PROFILES {
        return Err(Refusal::params(format!("profiles must be at most {PROFILES}")));
    }
    if profiles.iter().any(|profile| !is_id(profile)) {
        return Err(Refusal::params("profiles must be names of 1 to 256 bytes"));
    }
    Ok(())
}

/// Profiles that change how methods of others behave and have none of their own.
const WITHOUT_METHODS: [&str; 4] = ["modes", "security-signed", "identity-oidc", "identity-vc"];

/// Whether this Coordinator does what a profile of that name asks, whatever its version.
fn serves(profile: &str) -> bool {
    let name = |profile: &str| profile.split('/').next().unwrap_or_default().to_owned();
    let wanted = name(profile);
    WITHOUT_METHODS.contains(&wanted.as_str())
        || crate::methods().any(|method| name(method.profile) == wanted)
}

fn describe(txn: &mut Txn<'_>, _params: &Params<'_>) -> Handled {
    let meta = txn.here()?;
    // A creator may name what this version does not know: it is kept, and never advertised as if it worked.
    let (served, unserved): (Vec<&String>, Vec<&String>) =
        meta.profiles.iter().partition(|profile| serves(profile));
    let mut out = json!({
        "id": txn.workspace(),
        "created": meta.created.to_string(),
        "state": meta.state.as_str(),
        "mode": meta.mode.as_str(),
        "mode_ceiling": meta.mode_ceiling.as_str(),
        "max_envelope_bytes": txn.settings().max_envelope_bytes,
        "step_up_window_sec": meta.step_up_window_sec,
        "profiles": served,
        "members": txn.members().into_iter().map(crate::model::Member::to_wire).collect::<Vec<Value>>(),
        "audit_count": meta.entries,
        "task_count": meta.tasks,
        "override_count": meta.overrides,
    });
    if let Some(map) = out.as_object_mut() {
        if !unserved.is_empty() {
            map.insert("unserved_profiles".to_owned(), json!(unserved));
        }
        if let Some(head) = &meta.head {
            map.insert("evidence_head".to_owned(), json!(head));
        }
        if let Some(log) =
            txn.settings().log.as_ref().and_then(|log| register::describe(meta, log, txn.workspace()))
        {
            map.insert("log".to_owned(), log);
        }
        if let Some(uri) = meta.routing_policy_uri.as_ref().filter(|uri| !uri.is_empty()) {
            map.insert("routing_policy_uri".to_owned(), json!(uri));
        }
    }
    Ok(out.into())
}

fn set_profiles(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    require_admin(txn, "workspace.set_profiles")?;
    let Some(mut profiles) = params.texts("profiles") else {
        return Err(Refusal::params("profiles must be a list of strings").into());
    };
    check_profiles(&profiles)?;
    if !profiles.iter().any(|profile| profile.starts_with("core/")) {
        profiles.push("core/1.0".to_owned());
    }
    let chained = profiles.iter().any(|profile| profile == "audit-scitt/1.0");
    let meta = txn.here_mut()?;
    meta.profiles.clone_from(&profiles);
    if chained && meta.head.is_none() {
        // This very call is the first chained entry.
        meta.head = Some(GENESIS.to_owned());
    }
    Ok(json!({"profiles": profiles}).into())
}

/// Refuses whoever is not an admin of the workspace.
pub(crate) fn require_admin(txn: &Txn<'_>, method: &str) -> Result<(), Refusal> {
    if txn.member(txn.from()).is_some_and(|member| member.role == "admin") {
        Ok(())
    } else {
        Err(Refusal::new(codes::NOT_AUTHORISED, format!("{method} requires the admin role")))
    }
}
