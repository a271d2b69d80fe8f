//! Sections of the seed's `config.json` that nothing uses yet. They are accepted and checked for shape, so that a file
//! written after the specification loads, and a mistake in it shows now rather than with the upgrade.

use std::collections::{BTreeMap, BTreeSet};

use super::reader::{At, Object, Problems};
use super::rules::{Known, named, url};

/// Reads all such sections; returns the names of those present.
pub(super) fn read(top: &mut Object<'_>, known: &mut Known, problems: &mut Problems) -> Vec<String> {
    let mut present = Vec::new();
    if let Some(at) = top.some("global_repo") {
        repo(&at, problems);
        present.push("global_repo".to_owned());
    }
    named(top, "tts", problems, tts, known);
    named(top, "voice_profiles", problems, voice, known);
    named(top, "git_identities", problems, git_identity, known);
    named(top, "notion_integrations", problems, secret_only, known);
    named(top, "email_accounts", problems, email, known);
    named(top, "search", problems, secret_only, known);
    if let Some(at) = top.some("embedding") {
        embedding(&at, known, problems);
        present.push("embedding".to_owned());
    }
    named(top, "gateways", problems, gateway, known);
    named(top, "dms", problems, dm, known);
    for kind in [
        "tts",
        "voice_profiles",
        "git_identities",
        "notion_integrations",
        "email_accounts",
        "search",
        "gateways",
        "dms",
    ] {
        if known.names.get(kind).is_some_and(|names: &BTreeSet<_>| !names.is_empty()) {
            present.push(kind.to_owned());
        }
    }
    present
}

/// `{ "url": ..., "ref": ... }`.
pub(super) fn repo(at: &At<'_>, problems: &mut Problems) {
    let Some(mut fields) = at.object(problems) else { return };
    for key in ["url", "ref"] {
        if let Some(at) = fields.must(key, problems) {
            at.text(problems);
        }
    }
    fields.finish(problems);
}

/// The references of an agent's `defaults` beside workspace and model. Returns the exclusive ones by kind.
pub(super) fn agent_defaults(
    defaults: &mut Object<'_>,
    known: &Known,
    problems: &mut Problems,
) -> BTreeMap<String, String> {
    let mut exclusive = BTreeMap::new();
    if let Some(at) = defaults.some("voice_profile") {
        known.check("voice_profiles", "voice profile", &at, problems);
    }
    for (key, kind, what) in [
        ("git_identity", "git_identities", "git identity"),
        ("notion", "notion_integrations", "notion integration"),
        ("dm", "dms", "DM"),
    ] {
        if let Some(name) = defaults.some(key).and_then(|at| known.check(kind, what, &at, problems)) {
            exclusive.insert(key.to_owned(), name);
        }
    }
    if let Some(at) = defaults.some("email")
        && let Some(name) = known.check("email_accounts", "email account", &at, problems)
        && known.names.get("exclusive emails").is_some_and(|names| names.contains(&name))
    {
        exclusive.insert("email".to_owned(), name);
    }
    exclusive
}

fn text(fields: &mut Object<'_>, key: &'static str, problems: &mut Problems) {
    if let Some(at) = fields.must(key, problems) {
        at.text(problems);
    }
}

fn secret(fields: &mut Object<'_>, known: &mut Known, problems: &mut Problems) {
    if let Some(at) = fields.must("secret", problems) {
        known.secret(&at, problems);
    }
}

fn tts(at: &At<'_>, known: &mut Known, problems: &mut Problems) -> Option<()> {
    let mut fields = at.object(problems)?;
    text(&mut fields, "provider", problems);
    text(&mut fields, "model_id", problems);
    if let Some(at) = fields.must("endpoint", problems) {
        url(&at, problems);
    }
    secret(&mut fields, known, problems);
    fields.finish(problems);
    Some(())
}

fn voice(at: &At<'_>, known: &mut Known, problems: &mut Problems) -> Option<()> {
    let mut fields = at.object(problems)?;
    if let Some(at) = fields.must("tts", problems) {
        known.check("tts", "TTS provider", &at, problems);
    }
    text(&mut fields, "voice_id", problems);
    if let Some(at) = fields.some("output_format") {
        at.text(problems);
    }
    if let Some(mut settings) = fields.some("voice_settings").and_then(|at| at.object(problems)) {
        for key in ["stability", "similarity_boost", "style"] {
            if let Some(at) = settings.some(key) {
                at.number(0.0..=1.0, problems);
            }
        }
        if let Some(at) = settings.some("use_speaker_boost") {
            at.boolean(problems);
        }
        if let Some(at) = settings.some("speed") {
            at.number(0.5..=2.0, problems);
        }
        settings.finish(problems);
    }
    fields.finish(problems);
    Some(())
}

fn git_identity(at: &At<'_>, known: &mut Known, problems: &mut Problems) -> Option<()> {
    let mut fields = at.object(problems)?;
    text(&mut fields, "name", problems);
    text(&mut fields, "email", problems);
    secret(&mut fields, known, problems);
    fields.finish(problems);
    Some(())
}

fn secret_only(at: &At<'_>, known: &mut Known, problems: &mut Problems) -> Option<()> {
    let mut fields = at.object(problems)?;
    secret(&mut fields, known, problems);
    fields.finish(problems);
    Some(())
}

fn email(at: &At<'_>, known: &mut Known, problems: &mut Problems) -> Option<()> {
    let mut fields = at.object(problems)?;
    for key in ["smtp_host", "imap_host"] {
        text(&mut fields, key, problems);
    }
    for key in ["smtp_port", "imap_port"] {
        if let Some(at) = fields.must(key, problems) {
            at.whole(1..=65_535, problems);
        }
    }
    if let Some(at) = fields.must("sharing", problems) {
        let exclusive = at.word(&[("exclusive", true), ("shared", false)], problems);
        if exclusive == Some(true) {
            // The account's name is the last part of its path, which `named` built from the key.
            let name = fields.path.rsplit('.').next().unwrap_or_default().to_owned();
            known.names.entry("exclusive emails").or_default().insert(name);
        }
    }
    secret(&mut fields, known, problems);
    fields.finish(problems);
    Some(())
}

fn embedding(at: &At<'_>, known: &mut Known, problems: &mut Problems) {
    let Some(mut fields) = at.object(problems) else { return };
    text(&mut fields, "provider", problems);
    text(&mut fields, "model", problems);
    if let Some(at) = fields.must("dimensions", problems) {
        at.whole(1..=16_000, problems);
    }
    if let Some(at) = fields.some("endpoint") {
        url(&at, problems);
    }
    if let Some(at) = fields.some("secret") {
        known.secret(&at, problems);
    }
    fields.finish(problems);
}

fn gateway(at: &At<'_>, known: &mut Known, problems: &mut Problems) -> Option<()> {
    let mut fields = at.object(problems)?;
    if let Some(at) = fields.must("type", problems) {
        at.word(&[("telegram", ())], problems);
    }
    secret(&mut fields, known, problems);
    fields.finish(problems);
    Some(())
}

fn dm(at: &At<'_>, known: &mut Known, problems: &mut Problems) -> Option<()> {
    let mut fields = at.object(problems)?;
    if let Some(at) = fields.must("gateway", problems) {
        known.check("gateways", "gateway", &at, problems);
    }
    text(&mut fields, "user_id", problems);
    if let Some(at) = fields.some("admin") {
        at.boolean(problems);
    }
    fields.finish(problems);
    Some(())
}
