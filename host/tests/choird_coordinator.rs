//! The Coordinator inside a real choird, as config.json says: on its private socket, with identity providers.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use choir_chap_client::{CallError, Client, Endpoint};
use choir_scripted_model::Script;
use serde_json::{Value, json};
use support::{SOON, World};

fn provider(audience: &str) -> Value {
    // Nobody answers there, so no token can be verified.
    json!({"oidc": [{"issuer": "https://id.example", "audiences": [audience], "jwks_uri": "http://127.0.0.1:9/jwks"}]})
}

async fn choirctl(world: &World, arguments: &[&str]) -> (i32, String, String) {
    let output = world.command(env!("CARGO_BIN_EXE_choirctl")).args(arguments).output();
    let output = tokio::time::timeout(SOON, output).await.expect("choirctl ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_identity_section_of_config_json_is_in_force_and_a_change_of_it_waits_for_the_next_start() {
    let tweak = |config: &mut Value| config["coordinator"] = json!({"identity": provider("chap")});
    let mut world = World::stopped(Script::default(), tweak).await;
    world.start().await;
    let client = Client::new(Endpoint::Socket(world.state.coordinator_socket()), None, SOON).unwrap();
    client.call("workspace.create", json!({"workspace": "wsp_a"})).await.unwrap();
    let told = client.call("workspace.describe", json!({"workspace": "wsp_a"})).await.unwrap();
    assert!(told["profiles"].as_array().unwrap().contains(&json!("identity-oidc/1.0")), "{told}");
    let join = json!({"workspace": "wsp_a", "from": "human:a@e.org", "type": "human", "oidc_token": "x.y.z"});
    match client.call("participant.join", join).await {
        Err(CallError::Refused(error)) => assert_eq!(error.code, -32403, "{error}"),
        other => panic!("a token that cannot be verified lets nobody in: {other:?}"),
    }
    // The private socket is the operator's.
    let (code, listed, err) = choirctl(&world, &["--json", "workspace-log", "list"]).await;
    assert_eq!(code, 0, "{err}");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed, json!([{"workspace": "wsp_a", "entries": 1}]));

    let file = world.state.config();
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    config["coordinator"]["identity"] = provider("another");
    std::fs::write(&file, config.to_string()).unwrap();
    let (code, out, err) = choirctl(&world, &["--json", "config", "reload", "--dry-run"]).await;
    assert_eq!(code, 0, "{err}");
    let diff: Value = serde_json::from_str(&out).unwrap();
    let changes = diff["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 1, "{out}");
    assert_eq!(
        (&changes[0]["path"], &changes[0]["effect"]),
        (&json!("coordinator.identity.oidc"), &json!("choird_restart"))
    );
    config["coordinator"]["identity"]["oidc"][0]["audience"] = json!("x");
    std::fs::write(&file, config.to_string()).unwrap();
    let (code, out, err) = choirctl(&world, &["config", "check"]).await;
    assert_ne!(code, 0);
    assert!(
        format!("{out}{err}").contains("coordinator.identity.oidc[0].audience: unknown field"),
        "{out}{err}"
    );
    assert_eq!(world.stop_choird().await, Some(0));
}
