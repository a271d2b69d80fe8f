//! Tokens and presentations are verified before the step, by somebody else, in bounded time.

use std::sync::Arc;
use std::time::Duration;

use choir_chap::{Attested, OidcClaims, Refusal};
use choir_coordinator::{Attest, HookFuture, Hooks, Presentation, Settings};
use choir_persistence::chap::ChapStore;
use serde_json::json;

use crate::support::{Running, Said, log, run};

/// Takes a token for the subject it names, refuses "bad", and never comes back from "slow".
struct Verifier;

impl Attest for Verifier {
    fn attest(&self, presentation: Presentation) -> HookFuture<'_, Attested> {
        Box::pin(async move {
            assert!(!format!("{presentation:?}").contains(presentation.oidc_token.as_deref().unwrap_or("-")));
            let oidc = match presentation.oidc_token.as_deref() {
                Some("token-bad") => Some(Err(Refusal::new(-32403, "The token is not good"))),
                Some("token-slow") => std::future::pending().await,
                Some(sub) => Some(Ok(OidcClaims { sub: Some(sub.to_owned()), ..OidcClaims::default() })),
                None => None,
            };
            Attested { oidc, vc: None }
        })
    }
}

async fn verifying(store: &ChapStore) -> Running {
    let mut settings = Settings::default();
    settings.rules.verify_oidc = true;
    let running = run(store, settings, Hooks { attest: Some(Arc::new(Verifier)), ..Hooks::default() }).await;
    running.client.workspace("w", &["core/1.0", "identity-oidc/1.0"], &[]).await;
    running
}

async fn join(running: &Running, who: &str, token: &str) -> Said {
    let params = json!({"workspace": "w", "from": who, "type": "human", "oidc_token": token});
    running.client.call("participant.join", params).await
}

#[tokio::test]
async fn a_verified_token_lets_in_a_bad_one_does_not_and_neither_is_on_the_log() {
    let store = ChapStore::memory();
    let running = verifying(&store).await;
    join(&running, "human:a", "token-of-a").await.ok();
    assert!(matches!(join(&running, "human:b", "token-bad").await, Said::Refused(-32403, _)));
    let members = running.client.call("workspace.describe", json!({"workspace": "w"})).await.ok();
    assert_eq!(members["members"].as_array().unwrap().len(), 1);
    let log = log(&store, "w").await;
    assert!(log.iter().any(|e| e.method == "participant.join"));
    assert!(log.iter().all(|e| !e.record.contains("token-of-a") && !e.record.contains("token-bad")));
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_verifier_that_does_not_come_back_refuses_the_call_and_holds_nobody_up() {
    let store = ChapStore::memory();
    let running = verifying(&store).await;
    let began = tokio::time::Instant::now();
    let slow = {
        let client = running.client.clone();
        tokio::spawn(async move {
            let params =
                json!({"workspace": "w", "from": "human:s", "type": "human", "oidc_token": "token-slow"});
            client.call("participant.join", params).await
        })
    };
    join(&running, "human:a", "token-of-a").await.ok();
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(matches!(slow.await.unwrap(), Said::Refused(-32403, _)));
    assert!(began.elapsed() >= choir_coordinator::limits::ATTEST_WITHIN);
    running.end().await;
}
