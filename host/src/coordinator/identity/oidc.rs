//! ID tokens: whose keys, fetched when the cache says so, and what a good token says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use choir_chap::{OidcClaims, Refusal, codes};
use choir_identity::limits::MAX_JWKS_BYTES;
use choir_identity::{Expected, Identity, Jwks, JwksCache, Lookup, OidcError, ReplayCache, dpop, oidc};
use choir_messages::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Notify;
use url::Url;

use super::fetch::Web;
use super::file::{IdentityFile, KeySource, OidcIssuer};
use super::locked;

/// How often one token may have to ask for keys again: a fetch under way, its own, and one to spare.
const ROUNDS: usize = 3;

/// The method that DPoP proofs are made for: calls are posted.
const POST: &str = "POST";

pub(super) struct Oidc {
    issuers: HashMap<String, Arc<Issuer>>,
    /// Whose subjects stand alone; those of the others are told apart by their issuer.
    first: Option<String>,
    url: Option<Url>,
    web: Web,
    proofs: Mutex<ReplayCache>,
}

struct Issuer {
    says: OidcIssuer,
    cache: Mutex<JwksCache>,
    /// A fetch was reported.
    reported: Notify,
}

fn invalid(why: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(codes::OIDC_TOKEN_INVALID, format!("OIDC token invalid: {why}"))
}

impl Oidc {
    pub(super) fn new(file: &IdentityFile, web: Web) -> Self {
        let issuer = |says: &OidcIssuer| {
            let (cache, reported) = (Mutex::new(JwksCache::new()), Notify::new());
            (says.provider.issuer.clone(), Arc::new(Issuer { says: says.clone(), cache, reported }))
        };
        Self {
            issuers: file.oidc.iter().map(issuer).collect(),
            first: file.oidc.first().map(|first| first.provider.issuer.clone()),
            url: file.url.clone(),
            web,
            proofs: Mutex::new(ReplayCache::new()),
        }
    }

    /// What the token says, if it is good, and made out to whoever made the proof.
    pub(super) async fn claims(
        &self,
        token: &str,
        proof: Option<&str>,
        now: Timestamp,
    ) -> Result<OidcClaims, Refusal> {
        let hint = oidc::hint(token).map_err(|error| invalid(&error))?;
        let issuer = self.issuers.get(&hint.issuer).ok_or_else(|| invalid(&OidcError::Issuer))?;
        let identity = issuer.verified(token, hint.kid.as_deref(), now, &self.web).await?;
        if issuer.says.require_participant && identity.participant.is_none() {
            return Err(invalid(
                &"this provider's tokens must name their participant in chap_participant_uri",
            ));
        }
        self.possession(token, proof, &identity, issuer.says.require_dpop, now)?;
        Ok(self.mapped(identity))
    }

    /// A proof is checked wherever one is shown, and asked for where the operator says so.
    fn possession(
        &self,
        token: &str,
        proof: Option<&str>,
        identity: &Identity,
        required: bool,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let bound = identity.confirmation.as_ref().map(|bound| bound.jkt.as_str());
        match (proof, &self.url) {
            (None, _) if required => {
                Err(invalid(&"this provider's tokens need a DPoP proof, in the param dpop_proof"))
            }
            (None, _) => Ok(()),
            (Some(_), _) if bound.is_none() => {
                Err(invalid(&"a proof was shown for a token that is bound to no key"))
            }
            (Some(_), None) => {
                Err(invalid(&"this Coordinator takes no DPoP proofs: it was not told its own address"))
            }
            (Some(proof), Some(url)) => {
                let token = Some(token);
                let expected = Expected { method: POST, url: url.as_str(), token, jkt: bound, nonce: None };
                let proven = dpop::verify(proof, &expected, now, &mut locked(&self.proofs));
                proven.map(|_| ()).map_err(|error| invalid(&error))
            }
        }
    }

    fn mapped(&self, identity: Identity) -> OidcClaims {
        // Two providers may give two people the same subject.
        let sub = if self.first.as_ref() == Some(&identity.issuer) {
            identity.subject
        } else {
            format!("{}#{}", identity.issuer, identity.subject)
        };
        let cnf_jwk = identity.confirmation.and_then(|bound| {
            let mut jwk = bound.jwk?;
            // A key without a name could not be asked for; its thumbprint names it.
            jwk.entry("kid").or_insert_with(|| json!(bound.jkt));
            Some(Value::Object(jwk))
        });
        OidcClaims {
            sub: Some(sub),
            auth_time: identity.auth_time.and_then(|time| i64::try_from(time).ok()),
            acr: identity.acr,
            cnf_jwk,
            participant: identity.participant,
        }
    }
}

impl Issuer {
    async fn verified(
        self: &Arc<Self>,
        token: &str,
        kid: Option<&str>,
        now: Timestamp,
        web: &Web,
    ) -> Result<Identity, Refusal> {
        let verify = |keys: &Jwks| {
            oidc::verify(token, &self.says.provider, keys, None, now).map_err(|error| invalid(&error))
        };
        let url = match &self.says.keys {
            KeySource::File(keys) => return verify(keys),
            KeySource::Web(url) => url,
        };
        for _ in 0..ROUNDS {
            let reported = self.reported.notified();
            tokio::pin!(reported);
            // From here on a report is not missed.
            reported.as_mut().enable();
            let fetch = match locked(&self.cache).lookup(kid, Timestamp::now()) {
                Lookup::Use(keys) => return verify(keys),
                Lookup::Unavailable { .. } => break,
                Lookup::Fetch => true,
                Lookup::Wait { .. } => false,
            };
            if fetch {
                // On its own, so that it reports whatever becomes of this call. One at a time, by the cache's rule.
                tokio::spawn(Arc::clone(self).fetch(url.clone(), web.clone()));
            }
            // A fetch ends within its deadline; whoever waits for this call waits no longer than that either.
            let _ = tokio::time::timeout(super::fetch::FETCH_WITHIN, reported).await;
        }
        Err(invalid(&"the provider has no such key, or its keys cannot be had now; try again in a minute"))
    }

    async fn fetch(self: Arc<Self>, url: Url, web: Web) {
        let fetched = match web.get(&url, MAX_JWKS_BYTES).await {
            Ok(document) => Jwks::parse(&document.bytes)
                .map(|keys| (keys, document.max_age))
                .map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        match fetched {
            Ok((keys, max_age)) => locked(&self.cache).fetched(keys, max_age, Timestamp::now()),
            Err(why) => {
                tracing::warn!(
                    issuer = self.says.provider.issuer,
                    why,
                    "an identity provider's keys were not had"
                );
                locked(&self.cache).failed(Timestamp::now());
            }
        }
        self.reported.notify_waiters();
    }
}
