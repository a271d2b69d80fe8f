//! Documents for tests: issuers, holders and status lists that sign.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use choir_messages::sign::SigningKey;
use choir_messages::time::Timestamp;
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use std::io::Write as _;

use crate::instant::date_time;
use crate::vc::data_integrity::hash_data;
use crate::vc::did::{did_key, key_text};
use crate::vc::presentation::{Freshness, Rules, TrustedIssuer};

pub(crate) const DOMAIN: &str = "chap.example";
pub(crate) const LIST: &str = "https://issuer.example/status/1";

pub(crate) fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

pub(crate) fn did(seed: u8) -> String {
    did_key(&key(seed).public())
}

pub(crate) fn now() -> Timestamp {
    date_time("2026-06-01T12:00:00Z").unwrap()
}

/// Seed 1 is the holder, 2 a trusted issuer, 3 one that is trusted for nothing.
pub(crate) fn issuers() -> Vec<TrustedIssuer> {
    vec![TrustedIssuer { id: did(2), keys: vec![], types: vec![] }]
}

pub(crate) fn rules(issuers: &[TrustedIssuer]) -> Rules<'_> {
    Rules { issuers, domain: DOMAIN, freshness: Freshness::Challenge("c1"), now: now() }
}

/// Signs the document with a proof of these options.
pub(crate) fn signed(mut document: Value, seed: u8, options: Value) -> Value {
    let method = format!("{}#{}", did(seed), key_text(&key(seed).public()));
    let mut proof = json!({"type": "DataIntegrityProof", "cryptosuite": "eddsa-jcs-2022",
        "created": "2026-06-01T11:59:30Z", "verificationMethod": method});
    proof = changed(proof, &options);
    let hashes = hash_data(document.as_object().unwrap(), proof.as_object().unwrap()).unwrap();
    let signature = bs58::encode(key(seed).sign(&hashes).bytes()).into_string();
    proof["proofValue"] = json!(format!("z{signature}"));
    document["proof"] = proof;
    document
}

pub(crate) fn changed(mut document: Value, changes: &Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            document.as_object_mut().unwrap().remove(name);
        } else {
            document[name] = value.clone();
        }
    }
    document
}

/// A credential by `issuer` about the holder.
pub(crate) fn credential(issuer: u8, changes: &Value) -> Value {
    let document = json!({
        "@context": ["https://www.w3.org/ns/credentials/v2"],
        "type": ["VerifiableCredential", "ProfessionalRoleCredential"],
        "issuer": did(issuer),
        "validFrom": "2025-01-01T00:00:00Z",
        "credentialSubject": {"id": did(1), "role": "registered-clinician"},
    });
    signed(changed(document, changes), issuer, json!({"proofPurpose": "assertionMethod"}))
}

/// A presentation by `holder` of these credentials.
pub(crate) fn presentation(holder: u8, credentials: &[Value], changes: &Value, options: &Value) -> Value {
    let document = json!({
        "@context": ["https://www.w3.org/ns/credentials/v2"],
        "type": ["VerifiablePresentation"],
        "holder": did(holder),
        "verifiableCredential": credentials,
    });
    let mut proof = json!({"proofPurpose": "authentication", "challenge": "c1", "domain": DOMAIN});
    proof.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    signed(changed(document, changes), holder, proof)
}

pub(crate) fn good() -> Value {
    presentation(1, &[credential(2, &json!({}))], &json!({}), &json!({}))
}

pub(crate) fn entry(index: &str, purpose: &str) -> Value {
    json!({"type": "BitstringStatusListEntry", "statusPurpose": purpose, "statusListIndex": index,
        "statusListCredential": LIST})
}

pub(crate) fn packed(bits: &[u8]) -> String {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bits).unwrap();
    format!("u{}", URL_SAFE_NO_PAD.encode(encoder.finish().unwrap()))
}

/// A list of the smallest size with these places set.
pub(crate) fn status_list(issuer: u8, set: &[usize], subject: &Value, changes: &Value) -> Value {
    let mut bits = vec![0u8; 16 << 10];
    for place in set {
        bits[place / 8] |= 0x80 >> (place % 8);
    }
    let claims =
        json!({"type": "BitstringStatusList", "statusPurpose": "revocation", "encodedList": packed(&bits)});
    let document = json!({
        "@context": ["https://www.w3.org/ns/credentials/v2"],
        "id": LIST,
        "type": ["VerifiableCredential", "BitstringStatusListCredential"],
        "issuer": did(issuer),
        "credentialSubject": changed(claims, subject),
    });
    signed(changed(document, changes), issuer, json!({"proofPurpose": "assertionMethod"}))
}
