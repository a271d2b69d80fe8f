//! Answers CHAP calls from standard input, one JSON a line, in memory; for playing the same calls against another
//! implementation. Clock and ids are given, so that two runs give the same bytes. Between calls, a line may be
//! `{"$now": milliseconds, "$salt": number}` (sets the clock and what the next call's ids are made of),
//! `{"$attested": {"oidc": claims or null, "vc": subject or null}}` (what the next join's hooks say; null refuses),
//! `{"$lapse": kind}` (timers of objects of that kind fire), `{"$reset": settings}` (a new, empty Coordinator), each answered with `{}`, or
//! `{"$dump": workspace}`, answered with everything stored of it as it would be given out, or
//! `{"$patch": {"document", "patch"}}`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a tool for tests that speaks on standard output"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{BufRead as _, Write as _};

use choir_chap::model::Task;
use choir_chap::{Attested, OidcClaims, Refusal, Settings, VcSubject, codes, entry_to_wire, patch};
use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde_json::{Value, json};
use support::{Commits, House};

fn main() -> std::io::Result<()> {
    let mut house = House::new(Settings::default());
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.starts_with("{\"$") {
            let line: Value = serde_json::from_str(&line)?;
            match (line["$dump"].as_str(), line.get("$patch")) {
                (Some(workspace), _) => writeln!(out, "{}", dump(&mut house, workspace))?,
                (None, Some(patch)) => writeln!(out, "{}", patched(patch))?,
                (None, None) => {
                    control(&mut house, &line);
                    writeln!(out, "{{}}")?;
                }
            }
        } else {
            out.write_all(&house.bytes(line.as_bytes()).to_bytes())?;
            writeln!(out)?;
            house.attested = Attested::default();
        }
        out.flush()?;
    }
    Ok(())
}

/// A document with a patch applied, or the words of the refusal.
fn patched(line: &Value) -> Value {
    match patch::apply(&line["document"], line["patch"].as_array().unwrap()) {
        Ok(patched) => json!({"patched": patched}),
        Err(why) => json!({"refused": why.to_string()}),
    }
}

/// Entries, descriptor and tasks of a workspace.
fn dump(house: &mut House, workspace: &str) -> Value {
    let entries: Vec<Value> = house
        .log(workspace)
        .iter()
        .map(|entry| serde_json::from_str(&entry_to_wire(entry)).unwrap())
        .collect();
    let relaxed = Settings { enable_chain: house.settings.enable_chain, ..Settings::default() };
    let strict = std::mem::replace(&mut house.settings, relaxed);
    let mut described = house.call("workspace.describe", json!({"workspace": workspace})).unwrap();
    house.settings = strict;
    described["max_envelope_bytes"] = json!(house.settings.max_envelope_bytes);
    let tasks: Vec<Value> = house
        .store
        .0
        .get(workspace)
        .into_iter()
        .flat_map(|stored| stored.objects.values())
        .filter(|object| object.key.kind == ObjectKind::Task)
        .map(|object| serde_json::from_str::<Task>(&object.body).unwrap().to_wire(false))
        .collect();
    json!({"entries": entries, "describe": described, "tasks": tasks})
}

fn control(house: &mut House, line: &Value) {
    if let Some(now) = line["$now"].as_u64() {
        house.now = Timestamp::from_millis(now);
    }
    if let Some(salt) = line["$salt"].as_u64() {
        // The call itself counts one on.
        house.salt = u128::from(salt).saturating_sub(1);
    }
    if let Some(attested) = line.get("$attested") {
        house.attested = Attested {
            oidc: attested.get("oidc").map(|claims| {
                if claims.is_null() {
                    Err(Refusal::new(codes::OIDC_TOKEN_INVALID, "OIDC token invalid"))
                } else {
                    Ok(OidcClaims {
                        sub: text(claims, "sub"),
                        auth_time: claims["auth_time"].as_i64(),
                        acr: text(claims, "acr"),
                        cnf_jwk: claims.pointer("/cnf/jwk").cloned(),
                        participant: text(claims, "chap_participant_uri"),
                    })
                }
            }),
            vc: attested.get("vc").map(|subject| {
                if subject.is_null() {
                    Err(Refusal::new(codes::VC_PRESENTATION_INVALID, "VC presentation invalid"))
                } else {
                    Ok(VcSubject {
                        holder: text(subject, "holder").or_else(|| text(subject, "id")),
                        cnf_jwk: subject.get("cnf_jwk").cloned(),
                    })
                }
            }),
        };
    }
    if let Some(kind) = line["$lapse"].as_str() {
        house.timers(ObjectKind::from_name(kind));
    }
    if let Some(wanted) = line.get("$reset") {
        let flag = |name: &str| wanted[name].as_bool().unwrap_or(false);
        let mut settings = Settings {
            require_signatures: flag("require_signatures"),
            enforce_step_up: flag("enforce_step_up"),
            require_read_membership: flag("require_read_membership"),
            enable_chain: flag("enable_chain"),
            verify_oidc: flag("verify_oidc"),
            verify_vc: flag("verify_vc"),
            ..Settings::default()
        };
        if let Some(limit) = wanted["max_envelope_bytes"].as_u64() {
            settings.max_envelope_bytes = usize::try_from(limit).unwrap();
        }
        *house = House::new(settings);
        house.commits = match wanted["commits"].as_str() {
            Some("reopen") => Commits::AndReopen,
            Some("lazily") => Commits::Lazily,
            _ => Commits::Always,
        };
    }
}

fn text(value: &Value, name: &str) -> Option<String> {
    value[name].as_str().map(str::to_owned)
}
