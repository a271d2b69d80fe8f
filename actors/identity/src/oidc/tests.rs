use super::*;
use crate::test_keys::SigningJwk;
use proptest::prelude::*;
use serde_json::json;

const NOW: u64 = 1_790_000_000;

fn provider() -> Provider {
    Provider {
        issuer: "https://idp.example".into(),
        audiences: vec!["chap".into()],
        authorised_parties: vec![],
        algorithms: Algorithm::ALL.to_vec(),
        max_age: None,
    }
}

fn keys_of(signers: &[&SigningJwk]) -> Jwks {
    let keys = signers.iter().enumerate().map(|(n, signer)| {
        let mut jwk = signer.public().to_json();
        jwk["kid"] = json!(format!("k{n}"));
        jwk
    });
    Jwks::parse(json!({"keys": keys.collect::<Vec<_>>()}).to_string().as_bytes()).unwrap()
}

fn claims(changes: Value) -> Value {
    let mut claims =
        json!({"iss": "https://idp.example", "sub": "u1", "aud": "chap", "iat": NOW, "exp": NOW + 300});
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        } else {
            claims[name] = value.clone();
        }
    }
    claims
}

fn judge_with(
    provider: &Provider,
    header: Value,
    changes: Value,
    nonce: Option<&str>,
) -> Result<Identity, OidcError> {
    let signer = SigningJwk::ed25519(1);
    let token = signer.sign(header, claims(changes));
    verify(&token, provider, &keys_of(&[&signer]), nonce, at_second(NOW))
}

fn judge(changes: Value) -> Result<Identity, OidcError> {
    judge_with(&provider(), json!({"kid": "k0"}), changes, None)
}

#[test]
fn a_good_token_of_each_algorithm_tells_who_it_is() {
    let cnf = SigningJwk::ed25519(7).public();
    let mut jwk = cnf.to_json();
    jwk["kid"] = json!("k-1");
    let changes = json!({"auth_time": NOW - 5, "acr": "mfa", "cnf": {"jwk": jwk},
        "chap_participant_uri": "human:a@example.org", "nonce": "n1"});
    for signer in SigningJwk::all() {
        let token = signer.sign(json!({"kid": "k0", "typ": "JWT"}), claims(changes.clone()));
        let keys = keys_of(&[&signer]);
        let found = verify(&token, &provider(), &keys, Some("n1"), at_second(NOW)).unwrap();
        assert_eq!((found.subject.as_str(), found.acr.as_deref()), ("u1", Some("mfa")));
        assert_eq!(found.auth_time, Some(NOW - 5));
        assert_eq!(found.participant.as_deref(), Some("human:a@example.org"));
        let bound = found.confirmation.unwrap();
        assert_eq!((bound.jkt, bound.jwk.unwrap()["kid"].as_str()), (cnf.thumbprint(), Some("k-1")));
        assert_eq!(found.digest, token_digest(&token));
        assert_eq!(hint(&token), Ok(Hint { issuer: "https://idp.example".into(), kid: Some("k0".into()) }));
    }
}

#[test]
fn times_are_judged_with_a_minute_of_skew() {
    for (changes, verdict) in [
        (json!({"exp": NOW - 59}), None),
        (json!({"exp": NOW - 60}), Some(OidcError::Expired)),
        (json!({"iat": NOW + 60}), None),
        (json!({"iat": NOW + 61}), Some(OidcError::NotYet)),
        (json!({"nbf": NOW + 60}), None),
        (json!({"nbf": NOW + 61}), Some(OidcError::NotYet)),
        (json!({"exp": null}), Some(OidcError::Claim("exp"))),
        (json!({"iat": null}), Some(OidcError::Claim("iat"))),
        (json!({"exp": "soon"}), Some(OidcError::Claim("exp"))),
        (json!({"nbf": -1}), Some(OidcError::Claim("nbf"))),
        (json!({"auth_time": "now"}), Some(OidcError::Claim("auth_time"))),
    ] {
        assert_eq!(judge(changes.clone()).err(), verdict, "{changes}");
    }
    let strict = Provider { max_age: Some(Duration::from_secs(100)), ..provider() };
    let old = judge_with(&strict, json!({"kid": "k0"}), json!({"iat": NOW - 160}), None);
    assert_eq!(old.err(), Some(OidcError::TooOld));
}

#[test]
fn a_token_for_others_is_refused() {
    for (changes, verdict) in [
        (json!({"aud": "other"}), Some(OidcError::Audience)),
        (json!({"aud": ["chap"]}), None),
        (json!({"aud": ["chap", "other"]}), Some(OidcError::AuthorisedParty)),
        (json!({"aud": ["chap", "other"], "azp": "chap"}), None),
        (json!({"azp": "other"}), Some(OidcError::AuthorisedParty)),
        (json!({"aud": []}), Some(OidcError::Claim("aud"))),
        (json!({"aud": ["chap", 1]}), Some(OidcError::Claim("aud"))),
        (json!({"aud": null}), Some(OidcError::Claim("aud"))),
        (json!({"iss": "https://idp.example/"}), Some(OidcError::Issuer)),
        (json!({"iss": null}), Some(OidcError::Claim("iss"))),
        (json!({"sub": null}), Some(OidcError::Claim("sub"))),
        (json!({"sub": ""}), Some(OidcError::Claim("sub"))),
        (json!({"sub": "x".repeat(256)}), Some(OidcError::Claim("sub"))),
        (json!({"acr": 1}), Some(OidcError::Claim("acr"))),
    ] {
        assert_eq!(judge(changes.clone()).err(), verdict, "{changes}");
    }
    let known = Provider { authorised_parties: vec!["app".into()], ..provider() };
    assert!(judge_with(&known, json!({}), json!({"azp": "app"}), None).is_ok());
    assert!(judge_with(&known, json!({}), json!({"azp": "chap"}), None).is_err());
}

#[test]
fn a_nonce_given_out_must_come_back() {
    for (changes, good) in [(json!({"nonce": "n"}), true), (json!({"nonce": "m"}), false), (json!({}), false)]
    {
        let verdict = judge_with(&provider(), json!({}), changes, Some("n"));
        assert_eq!(verdict.err(), (!good).then_some(OidcError::Nonce));
    }
}

#[test]
fn tokens_of_other_types_are_refused() {
    for typ in ["at+jwt", "dpop+jwt", "logout+jwt", "secevent+jwt"] {
        let verdict = judge_with(&provider(), json!({"typ": typ}), json!({}), None);
        assert_eq!(verdict.err(), Some(OidcError::Type), "{typ}");
    }
    assert!(judge_with(&provider(), json!({"typ": "application/JWT"}), json!({}), None).is_ok());
}

#[test]
fn another_key_does_not_speak_for_the_provider() {
    let (own, other) = (SigningJwk::ed25519(1), SigningJwk::ed25519(2));
    let keys = keys_of(&[&own]);
    let forged = other.sign(json!({"kid": "k0"}), claims(json!({})));
    assert_eq!(
        verify(&forged, &provider(), &keys, None, at_second(NOW)).err(),
        Some(JwsError::Signature.into())
    );
    let unknown = own.sign(json!({"kid": "k9"}), claims(json!({})));
    assert_eq!(verify(&unknown, &provider(), &keys, None, at_second(NOW)).err(), Some(OidcError::UnknownKey));
    let none = verify(&unknown, &provider(), &Jwks::default(), None, at_second(NOW));
    assert_eq!(none.err(), Some(OidcError::UnknownKey));
    let only_rsa = Provider { algorithms: vec![Algorithm::Rs256], ..provider() };
    let refused = verify(&unknown, &only_rsa, &keys, None, at_second(NOW));
    assert_eq!(refused.err(), Some(OidcError::Algorithm));
}

#[test]
fn a_confirmation_that_cannot_be_checked_is_a_refusal() {
    let key = SigningJwk::ed25519(7).public();
    let mut private = key.to_json();
    private["d"] = json!("AA");
    for (cnf, good) in [
        (json!({"jkt": key.thumbprint()}), true),
        (json!({"jkt": key.thumbprint(), "jwk": key.to_json()}), true),
        (json!({"jkt": SigningJwk::ed25519(8).public().thumbprint(), "jwk": key.to_json()}), false),
        (json!({"jkt": "short"}), false),
        (json!({"jwk": private}), false),
        (json!({"x5t#S256": "AA", "jwk": key.to_json()}), false),
        (json!({"kid": "k"}), false),
        (json!({}), false),
        (json!("jwk"), false),
    ] {
        let verdict = judge(json!({"cnf": cnf}));
        assert_eq!(verdict.err(), (!good).then_some(OidcError::Confirmation), "{cnf}");
    }
}

#[test]
fn neither_errors_nor_debug_output_quote_the_token() {
    let secret = "human:very-secret@example.org";
    let identity = judge(json!({"chap_participant_uri": secret, "sub": secret})).unwrap();
    assert!(!format!("{identity:?}").contains("very-secret"));
    let error = judge(json!({"sub": secret, "aud": secret, "iss": secret})).unwrap_err();
    assert!(!format!("{error:?} {error}").contains("very-secret"));
}

proptest! {
    #[test]
    fn wrong_types_in_any_claim_end_in_a_verdict(
        name in prop::sample::select(vec!["iss", "sub", "aud", "exp", "iat", "nbf", "azp", "nonce", "cnf", "acr",
            "auth_time", "chap_participant_uri"]),
        which in 0usize..7,
    ) {
        let value = [json!(null), json!(true), json!(-3), json!(1e18), json!([[]]), json!({"jwk": []}), json!("\u{0}")]
            .into_iter().nth(which).unwrap();
        let signer = SigningJwk::ed25519(1);
        let mut all = claims(json!({}));
        all[name] = value;
        let token = signer.sign(json!({}), all);
        let _ = verify(&token, &provider(), &keys_of(&[&signer]), Some("n"), at_second(NOW));
    }
}
