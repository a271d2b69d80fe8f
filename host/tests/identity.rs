//! Who joins: the real `choird coordinator` with an identity provider and a credential issuer that the test plays, on
//! loopback. And the receipts of the same Coordinator, checked by the real `choirctl`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "support/coordinator.rs"]
mod coordinator;
#[path = "support/issuer.rs"]
mod issuer;

use choir_chap_client::{CallError, Client};
use choir_messages::sign::SigningKey;
use coordinator::{Coordinator, choirctl, fresh};
use issuer::{Issuer, did, jwk, now, presentation, status_list, token};
use serde_json::{Value, json};

const AUDIENCE: &str = "chap.test";
/// Where clients are told to send calls.
const ADDRESS: &str = "https://chap.test/chap";
const LIST: &str = "https://issuer.example/status/1";

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// The identity file for that issuer: one provider a path, since each has its own keys and its own faults.
fn identity(issuer: &Issuer, folder: &std::path::Path) -> String {
    let provider = |name: &str| json!({"issuer": format!("https://{name}.example"), "audiences": [AUDIENCE], "jwks_uri": issuer.at(name)});
    let providers = ["good", "rotating", "broken", "huge", "strange"].map(provider);
    let file = json!({
        "url": ADDRESS,
        "oidc": providers,
        "vc": {"domain": AUDIENCE, "issuers": [{"id": did(&key(2))}], "mirrors": {LIST: issuer.at("list")}},
    });
    let path = folder.join("identity.json");
    std::fs::write(&path, file.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn claims(issuer: &str, subject: &str, changes: Value) -> Value {
    let mut claims = json!({
        "iss": format!("https://{issuer}.example"), "sub": subject, "aud": AUDIENCE, "iat": now(), "exp": now() + 300,
        "auth_time": now(), "acr": "2fa",
    });
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        } else {
            claims[name] = value.clone();
        }
    }
    claims
}

async fn call(client: &Client, method: &str, params: Value) -> Result<Value, i64> {
    match client.call(method, params).await {
        Ok(result) => Ok(result),
        Err(CallError::Refused(error)) => Err(error.code),
        Err(error) => panic!("{method}: {error}"),
    }
}

async fn join(client: &Client, workspace: &str, who: &str, shown: Value) -> Result<Value, i64> {
    let mut params = json!({"workspace": workspace, "from": who, "type": "human", "role": "admin"});
    params.as_object_mut().unwrap().extend(shown.as_object().unwrap().clone());
    call(client, "participant.join", params).await
}

fn files(folder: &std::path::Path, all: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path(), all),
            Ok(kind) if kind.is_file() => all.push(entry.path()),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn good_tokens_let_in_bad_ones_do_not_and_no_token_is_anywhere_on_disk() {
    let issuer = Issuer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = identity(&issuer, folder.path());
    issuer.serve("good", json!({"keys": [jwk(&key(11), "k1")]}));
    issuer.serve("rotating", json!({"keys": [jwk(&key(12), "old")]}));
    issuer.fail("broken", 500);
    issuer.serve("huge", json!({"keys": [], "padding": "x".repeat(300_000)}));
    issuer.serve("strange", json!({"keys": "none"}));
    let profiles = "core/1.0,review/1.0,control/1.0,audit-scitt/1.0";
    let server =
        Coordinator::durable(&["--identity", &file, "--enforce-step-up", "--default-profiles", profiles])
            .await;
    let (client, workspace) = (server.client(), fresh("wsp"));
    let w = workspace.as_str();
    let good =
        |changes| token(&key(11), json!({"alg": "EdDSA", "kid": "k1"}), &claims("good", "s-ann", changes));

    // A key in the token becomes the member's key, whatever it says of itself.
    let bound = good(json!({"cnf": {"jwk": jwk(&key(20), "device")}, "chap_participant_uri": "human:ann"}));
    join(&client, w, "human:ann", json!({"oidc_token": bound, "jwks": {"keys": [jwk(&key(21), "own")]}}))
        .await
        .unwrap();
    let described = call(&client, "workspace.describe", json!({"workspace": w})).await.unwrap();
    assert!(described["profiles"].as_array().unwrap().contains(&json!("identity-oidc/1.0")));

    let signed = |header: Value, claims: &Value| token(&key(11), header, claims);
    let header = json!({"alg": "EdDSA", "kid": "k1"});
    let mut tampered = good(json!({}));
    tampered.replace_range(60..61, if &tampered[60..61] == "A" { "B" } else { "A" });
    let bad = [
        ("algorithm none", signed(json!({"alg": "none"}), &claims("good", "s", json!({})))),
        ("another key", token(&key(13), header.clone(), &claims("good", "s", json!({})))),
        ("another audience", good(json!({"aud": "elsewhere"}))),
        ("another issuer", good(json!({"iss": "https://evil.example"}))),
        ("ended", good(json!({"exp": now() - 3600}))),
        ("without an end", good(json!({"exp": null}))),
        ("from the future", good(json!({"iat": now() + 3600, "nbf": now() + 3600}))),
        ("an unknown key", signed(json!({"alg": "EdDSA", "kid": "k9"}), &claims("good", "s", json!({})))),
        ("tampered", tampered),
        ("nonsense", "canary.canary.canary".to_owned()),
        ("a provider that fails", signed(header.clone(), &claims("broken", "s", json!({})))),
        ("a provider with too much", signed(header.clone(), &claims("huge", "s", json!({})))),
        ("a provider that serves no keys", signed(header.clone(), &claims("strange", "s", json!({})))),
    ];
    for (what, token) in &bad {
        assert_eq!(join(&client, w, "human:eve", json!({"oidc_token": token})).await, Err(-32403), "{what}");
    }
    // Somebody else's token, and another person's.
    assert_eq!(join(&client, w, "human:bob", json!({"oidc_token": bound})).await, Err(-32404));
    let other =
        signed(header.clone(), &claims("good", "s-other", json!({"chap_participant_uri": "human:ann"})));
    assert_eq!(join(&client, w, "human:ann", json!({"oidc_token": other})).await, Err(-32404));

    // Keys change: the new one is fetched, and the old one is good no more.
    let old = token(&key(12), json!({"alg": "EdDSA", "kid": "old"}), &claims("rotating", "s-r", json!({})));
    join(&client, w, "human:r1", json!({"oidc_token": old})).await.unwrap();
    issuer.serve("rotating", json!({"keys": [jwk(&key(14), "new")]}));
    let new = token(&key(14), json!({"alg": "EdDSA", "kid": "new"}), &claims("rotating", "s-r2", json!({})));
    join(&client, w, "human:r2", json!({"oidc_token": new})).await.unwrap();
    assert_eq!(join(&client, w, "human:r3", json!({"oidc_token": old})).await, Err(-32403));

    // A login of long ago is asked for again before a privileged call.
    let pause = json!({"workspace": w, "from": "human:ann", "scope": "workspace"});
    let stale = good(json!({"auth_time": now() - 100_000, "chap_participant_uri": "human:ann"}));
    join(&client, w, "human:ann", json!({"oidc_token": stale})).await.unwrap();
    assert_eq!(call(&client, "control.pause", pause.clone()).await, Err(-32402));
    let again = good(json!({"chap_participant_uri": "human:ann", "jti": "again"}));
    join(&client, w, "human:ann", json!({"oidc_token": again})).await.unwrap();
    call(&client, "control.pause", pause).await.unwrap();

    // None of what was shown is in the log, in the database's files or in the log lines; its digest is.
    let log = call(&client, "audit.read", json!({"workspace": w})).await.unwrap().to_string();
    assert!(log.contains("sha256:"));
    let shown: Vec<String> = bad
        .iter()
        .map(|(_, token)| token.clone())
        .chain([bound, old, new, stale, again, other])
        .map(|token| token.rsplit('.').next().unwrap().to_owned())
        .filter(|signature| signature.len() > 6)
        .collect();
    let mut all = Vec::new();
    files(server.folder(), &mut all);
    assert!(all.iter().any(|file| file.ends_with("coordinator.log")), "the log lines are among them");
    for secret in &shown {
        assert!(!log.contains(secret));
    }
    for file in all {
        let Ok(bytes) = std::fs::read(&file) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            shown.iter().all(|secret| !text.contains(secret.as_str())),
            "{} holds a token",
            file.display()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_never_answers_refuses_its_own_tokens_and_nobody_elses() {
    let issuer = Issuer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = identity(&issuer, folder.path());
    issuer.serve("good", json!({"keys": [jwk(&key(11), "k1")]}));
    issuer.silence("broken");
    let server = Coordinator::start(&["--identity", &file]).await;
    let (client, workspace) = (server.client(), fresh("wsp"));
    let header = json!({"alg": "EdDSA", "kid": "k1"});
    let slow = token(&key(11), header.clone(), &claims("broken", "s", json!({})));
    let waiting = {
        let (client, workspace) = (client.clone(), workspace.clone());
        tokio::spawn(
            async move { join(&client, &workspace, "human:slow", json!({"oidc_token": slow})).await },
        )
    };
    issuer.asked("broken").await;
    let good = token(&key(11), header, &claims("good", "s", json!({})));
    join(&client, &workspace, "human:a", json!({"oidc_token": good})).await.unwrap();
    assert!(!waiting.is_finished());
    assert_eq!(waiting.await.unwrap(), Err(-32403));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_of_possession_is_believed_once_and_only_from_the_key_that_the_token_names() {
    let issuer = Issuer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = identity(&issuer, folder.path());
    issuer.serve("good", json!({"keys": [jwk(&key(11), "k1")]}));
    let server = Coordinator::start(&["--identity", &file]).await;
    let (client, workspace) = (server.client(), fresh("wsp"));
    let device = jwk(&key(20), "device");
    let bound = claims("good", "s", json!({"cnf": {"jwk": device}}));
    let bound = token(&key(11), json!({"alg": "EdDSA", "kid": "k1"}), &bound);
    let ath = issuer::digest(&bound);
    let proof = |by: u8, id: &str, url: &str| {
        let mut public = jwk(&key(by), "p");
        public.as_object_mut().unwrap().remove("kid");
        let header = json!({"typ": "dpop+jwt", "alg": "EdDSA", "jwk": public});
        token(&key(by), header, &json!({"jti": id, "htm": "POST", "htu": url, "iat": now(), "ath": ath}))
    };
    let good = json!({"oidc_token": bound, "dpop_proof": proof(20, "first-proof-0001", ADDRESS)});
    join(&client, &workspace, "human:a", good.clone()).await.unwrap();
    let with = |proof: String| json!({"oidc_token": bound, "dpop_proof": proof});
    for (what, shown) in [
        ("used before", good),
        ("another key", with(proof(21, "second-proof-001", ADDRESS))),
        ("another address", with(proof(20, "third-proof-0001", "https://elsewhere.test/chap"))),
    ] {
        assert_eq!(join(&client, &workspace, "human:b", shown).await, Err(-32403), "{what}");
    }
    let log = call(&client, "audit.read", json!({"workspace": workspace})).await.unwrap().to_string();
    assert!(!log.contains("eyJ"), "neither the token nor the proof is on the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_lets_its_holder_in_once_until_its_issuer_revokes_it() {
    let issuer = Issuer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = identity(&issuer, folder.path());
    issuer.serve("list", status_list(&key(2), LIST, &[7]));
    let server = Coordinator::start(&["--identity", &file]).await;
    let (client, workspace) = (server.client(), fresh("wsp"));
    // The profile is advertised everywhere, but joining asks for no token.
    join(&client, &workspace, "human:admin", json!({})).await.unwrap();
    let shown = |holder: u8, by: u8, index: u64, domain: &str| json!({"vc_presentation": presentation(&key(holder), &key(by), LIST, index, domain)});
    let good = shown(1, 2, 3, AUDIENCE);
    join(&client, &workspace, "human:holder", good.clone()).await.unwrap();
    for (what, presentation, code) in [
        ("shown before", good, -32410),
        ("revoked", shown(4, 2, 7, AUDIENCE), -32412),
        ("for another verifier", shown(4, 2, 3, "elsewhere"), -32410),
        ("by an issuer nobody trusts", shown(4, 3, 3, AUDIENCE), -32410),
        ("outside its list", shown(4, 2, 10_000_000, AUDIENCE), -32410),
    ] {
        assert_eq!(join(&client, &workspace, "human:other", presentation).await, Err(code), "{what}");
    }
    let other = shown(5, 2, 3, AUDIENCE);
    assert_eq!(join(&client, &workspace, "human:holder", other).await, Err(-32411), "another holder");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_log_with_receipts_verifies_with_the_key_the_coordinator_keeps_and_a_tampered_one_does_not()
 {
    let mut server = Coordinator::durable(&["--default-profiles", "core/1.0,audit-scitt/1.0"]).await;
    let workspace = fresh("wsp");
    server.tasks(&workspace, 300).await;
    let told = call(&server.client(), "workspace.describe", json!({"workspace": workspace})).await.unwrap();
    let key = told["log"]["key"].as_str().unwrap().to_owned();
    server.kill_9().await;
    server.start_again().await;
    let again = call(&server.client(), "workspace.describe", json!({"workspace": workspace})).await.unwrap();
    assert_eq!(again["log"], told["log"], "the log and its key come back");

    let file = server.folder().join("log");
    let path = file.to_str().unwrap();
    let export = ["workspace-log", "export", &workspace, "--url", &server.url(), "--receipts", "-o", path];
    let exported = choirctl(&export);
    assert_eq!(exported.code, 0, "{}", exported.err);
    assert!(exported.err.contains(&key), "{}", exported.err);
    let verify = || {
        let ended = choirctl(&["--json", "verify", path, "--log-key", &key]);
        let report: Value = serde_json::from_str(&ended.out).unwrap_or_default();
        (ended.code, report["receipts"]["good"].as_u64(), report["receipts"]["bad"].as_u64())
    };
    let entries = told["audit_count"].as_u64();
    assert_eq!(verify(), (0, entries, Some(0)));

    // The receipts of two entries, exchanged.
    let text = std::fs::read_to_string(&file).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let moved = lines[5]["receipt"].take();
    lines[5]["receipt"] = lines[6]["receipt"].take();
    lines[6]["receipt"] = moved;
    let changed: Vec<String> = lines.iter().map(Value::to_string).collect();
    std::fs::write(&file, changed.join("\n") + "\n").unwrap();
    assert_eq!(verify(), (1, entries.map(|count| count - 2), Some(2)));
    std::fs::write(&file, text).unwrap();
    let stranger = choirctl(&["verify", path, "--log-key", "nonsense"]);
    assert_eq!(stranger.code, 2, "{}", stranger.err);
}
