//! What an operator is told by the real choirctl of a running choird: its checks, and what a new configuration changes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;

use choir_host::control::Op;
use choir_host::control::views::{AppliedView, Check, CheckStatus, StatusView};
use choir_scripted_model::Script;
use serde_json::{Value, json};
use support::{SOON, User, World};

/// Runs choirctl; returns its exit code, standard output and standard error.
async fn choirctl(world: &World, arguments: &[&str]) -> (i32, String, String) {
    let run = world.command(env!("CARGO_BIN_EXE_choirctl")).args(arguments).output();
    let output = tokio::time::timeout(SOON, run).await.expect("choirctl ends in time").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

async fn status(world: &World) -> StatusView {
    world.client().await.call(Op::Status, SOON).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_looks_at_clock_pgvector_migrations_and_disks_with_and_without_choird() {
    let mut world = World::new(Script::default(), |_| ()).await;
    // An answer is in the log before it is said: from here on there is a newest event.
    let mut user = User::of(&world);
    let message = user.send("hello").await;
    user.answer_to(message).await;
    let (_, out, err) = choirctl(&world, &["--json", "doctor"]).await;
    let checks: Vec<Check> = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    let of = |id: &str| {
        let mut found = checks.iter().filter(|check| check.id == id);
        let check = found.next().unwrap_or_else(|| panic!("no check {id}: {checks:#?}"));
        assert!(found.next().is_none(), "{id} twice: {checks:#?}");
        check
    };
    for (id, says) in [
        ("clock", "the newest event is of 2"),
        ("pgvector", "is installed"),
        ("migrations", "none pending"),
        ("database", "PostgreSQL 1"),
    ] {
        let check = of(id);
        assert!(check.status == CheckStatus::Ok && check.evidence.contains(says), "{check:?}");
    }
    assert!(of("disk").evidence.contains("MiB are free"));
    let (_, text, _) = choirctl(&world, &["doctor"]).await;
    for id in ["clock", "pgvector", "migrations", "disk"] {
        assert!(text.lines().any(|line| line.split_whitespace().nth(1) == Some(id)), "{id}: {text}");
    }
    // A migration of a newer choird, as a downgrade finds it.
    let mut sql = world.sql().await;
    let newer = "INSERT INTO choir_control.schema_migrations (version, description, success, checksum, execution_time)
                 VALUES (9999, 'from the future', true, '', 0)";
    sqlx::query(newer).execute(&mut sql).await.unwrap();
    let (code, out, _) = choirctl(&world, &["doctor"]).await;
    assert!(code == 1 && out.contains("FAIL  migrations") && out.contains("9999"), "{out}");
    sqlx::query("DELETE FROM choir_control.schema_migrations WHERE version = 9999")
        .execute(&mut sql)
        .await
        .unwrap();
    drop(sql);

    assert_eq!(world.stop_choird().await, Some(0));
    let (_, out, _) = choirctl(&world, &["--json", "doctor"]).await;
    let checks: Vec<Check> = serde_json::from_str(&out).unwrap();
    let ids: Vec<&str> = checks.iter().map(|check| check.id.as_str()).collect();
    assert!(ids.contains(&"clock") && ids.contains(&"disk") && !ids.contains(&"migrations"), "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_can_be_rehearsed_and_says_what_each_change_takes() {
    let world = World::new(Script::default(), |_| ()).await;
    let before = status(&world).await.config_version;
    let good = std::fs::read_to_string(world.state.config()).unwrap();
    let (code, out, _) = choirctl(&world, &["config", "reload", "--dry-run"]).await;
    assert!(code == 0 && out.starts_with("nothing is different"), "{out}");

    let mut config: Value = serde_json::from_str(&good).unwrap();
    config["heartbeat_interval_ms"] = json!(4000);
    config["models"]["default"]["temperature"] = json!(0.5);
    config["workspaces"]["main"]["path"] = json!(world.folder().join("elsewhere"));
    config["log_archive_threshold_lines"] = json!(5000);
    std::fs::write(world.state.config(), config.to_string()).unwrap();
    let (code, out, err) = choirctl(&world, &["--json", "config", "reload", "--dry-run"]).await;
    assert_eq!(code, 0, "{err}");
    let rehearsed: AppliedView = serde_json::from_str(&out).unwrap();
    assert!(!rehearsed.applied && rehearsed.config_version == before && rehearsed.told.is_empty());
    let said: Vec<(String, Value)> =
        rehearsed.changes.iter().map(|c| (c.path.clone(), serde_json::to_value(c.effect).unwrap())).collect();
    let expected = [
        ("heartbeat_interval_ms", "now"),
        ("log_archive_threshold_lines", "choird_restart"),
        ("models.default.temperature", "now"),
        ("workspaces.main.path", "agent_restart"),
    ];
    assert_eq!(said, expected.map(|(path, effect)| (path.to_owned(), json!(effect))));
    assert_eq!(rehearsed.needs_restart.len(), 2, "{:?}", rehearsed.needs_restart);
    let (_, out, _) = choirctl(&world, &["config", "reload", "--dry-run"]).await;
    for says in [
        "heartbeat_interval_ms: 5000 -> 4000 (at once)",
        "models.default.temperature: new: 0.5 (at once)",
        "(with a restart of assistant)",
        "(with a restart of choird)",
        "nothing was changed",
    ] {
        assert!(out.contains(says), "{says}: {out}");
    }
    assert_eq!(status(&world).await.config_version, before, "a rehearsal changes nothing");

    let (code, out, _) = choirctl(&world, &["--json", "config", "reload"]).await;
    let applied: AppliedView = serde_json::from_str(&out).unwrap();
    assert!(code == 0 && applied.applied && applied.config_version > before);
    assert_eq!(applied.changes, rehearsed.changes);
    assert_eq!(applied.told.as_slice(), std::slice::from_ref(&world.agent));

    std::fs::write(world.state.config(), good.replace("\"sandbox\":\"auto\"", "\"sandbox\":\"x\"")).unwrap();
    for arguments in [&["config", "reload", "--dry-run"][..], &["config", "reload"]] {
        let (code, out, err) = choirctl(&world, arguments).await;
        assert!(code == 5 && out.is_empty() && err.contains("nothing was changed: "), "{err}");
    }
    assert_eq!(status(&world).await.config_version, applied.config_version);
}
