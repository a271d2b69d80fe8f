//! Data Integrity proofs of the suite `eddsa-jcs-2022` (W3C VC-DI-EdDSA §3.3): Ed25519 over SHA-256 of the canonical
//! proof options, followed by SHA-256 of the canonical document.

use choir_messages::canonical;
use choir_messages::chain::Digest;
use choir_messages::sign::{PublicKey, Signature};
use choir_messages::time::Timestamp;
use serde_json::{Map, Value};

use crate::instant::date_time;
use crate::vc::did::base58;

/// Why a document's proof does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DataIntegrityError {
    /// None, or more than one.
    #[error("the document must carry exactly one proof")]
    NotOneProof,
    /// Of another kind.
    #[error("the proof is not an eddsa-jcs-2022 Data Integrity proof for this purpose")]
    Kind,
    /// A member that is missing or malformed.
    #[error("the proof's member `{0}` is missing or malformed")]
    Member(&'static str),
    /// An integer that the canonical form would round.
    #[error("the document has an integer beyond 2^53-1, which its signature cannot cover exactly")]
    Number,
    /// The proof's contexts are not the first ones of the document.
    #[error("the proof was made for a document with other contexts")]
    Context,
    /// A verification method that belongs to nobody trusted here.
    #[error("the proof's verification method is not known or not trusted")]
    Method,
    /// The signature does not match.
    #[error("the proof does not match the document: it was changed, or signed by another key")]
    Signature,
}

/// What a document was signed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An issuer's statement.
    Assertion,
    /// A holder's proof of its key.
    Authentication,
}

impl Purpose {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Assertion => "assertionMethod",
            Self::Authentication => "authentication",
        }
    }
}

/// A proof that holds.
pub(crate) struct Proven<'a> {
    /// Its members, all of them signed.
    pub(crate) options: &'a Map<String, Value>,
    /// The key that made it.
    pub(crate) key: PublicKey,
    /// When it was made, if it says.
    pub(crate) created: Option<Timestamp>,
    /// When it ends, if it does.
    pub(crate) expires: Option<Timestamp>,
}

/// Verifies the document's one proof; `resolve` gives the key of a verification method.
pub(crate) fn verify<'a>(
    document: &'a Map<String, Value>,
    purpose: Purpose,
    resolve: impl FnOnce(&str) -> Option<PublicKey>,
) -> Result<Proven<'a>, DataIntegrityError> {
    let options = match document.get("proof") {
        Some(Value::Object(proof)) => proof,
        Some(Value::Array(proofs)) => match proofs.as_slice() {
            [Value::Object(proof)] => proof,
            _ => return Err(DataIntegrityError::NotOneProof),
        },
        _ => return Err(DataIntegrityError::NotOneProof),
    };
    let text = |member: &'static str| {
        options.get(member).and_then(Value::as_str).ok_or(DataIntegrityError::Member(member))
    };
    let time = |member: &'static str| match options.get(member) {
        None => Ok(None),
        Some(time) => time.as_str().and_then(date_time).map(Some).ok_or(DataIntegrityError::Member(member)),
    };
    let kind = (text("type")?, text("cryptosuite")?, text("proofPurpose")?);
    if kind != ("DataIntegrityProof", "eddsa-jcs-2022", purpose.as_str())
        || options.contains_key("previousProof")
    {
        return Err(DataIntegrityError::Kind);
    }
    let signature: [u8; 64] = base58(text("proofValue")?)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(DataIntegrityError::Member("proofValue"))?;
    let (created, expires) = (time("created")?, time("expires")?);
    let key = resolve(text("verificationMethod")?).ok_or(DataIntegrityError::Method)?;
    let signed = hash_data(document, options)?;
    key.verify(&signed, &Signature::from_bytes(signature)).map_err(|_| DataIntegrityError::Signature)?;
    Ok(Proven { options, key, created, expires })
}

/// What is signed: 64 bytes.
pub(crate) fn hash_data(
    document: &Map<String, Value>,
    options: &Map<String, Value>,
) -> Result<Vec<u8>, DataIntegrityError> {
    let mut unsecured = document.clone();
    unsecured.remove("proof");
    if !unsecured.values().chain(options.values()).all(is_exact) {
        return Err(DataIntegrityError::Number);
    }
    if let Some(wanted) = options.get("@context") {
        // The proof names the contexts that it was made under; later parties may only have added some behind them.
        let of = |value: &Value| match value {
            Value::Array(items) => items.clone(),
            one => vec![one.clone()],
        };
        let present = unsecured.get("@context").map(of).unwrap_or_default();
        if !present.starts_with(&of(wanted)) {
            return Err(DataIntegrityError::Context);
        }
        unsecured.insert("@context".into(), wanted.clone());
    }
    let mut config = options.clone();
    config.remove("proofValue");
    let hash = |map: &Map<String, Value>| {
        canonical::to_vec(map)
            .map(|bytes| Digest::of(&bytes))
            .map_err(|_| DataIntegrityError::Member("proof"))
    };
    Ok([*hash(&config)?.bytes(), *hash(&unsecured)?.bytes()].concat())
}

/// Whether the canonical form tells every integer apart from its neighbours, which it does up to 2^53-1.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            let size = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            size.is_none_or(|size| size <= canonical::SAFE_INTEGER)
        }
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(map) => map.values().all(is_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vc::did::method_key;
    use serde_json::json;

    /// The credential of W3C VC-DI-EdDSA, appendix B (`eddsa-jcs-2022`).
    fn published() -> Map<String, Value> {
        let method = "did:key:z6MkrJVnaZkeFzdQyMZu1cgjg7k1pZZ6pvBQ7XJPt4swbTQ2#z6MkrJVnaZkeFzdQyMZu1cgjg7k1pZZ6pvBQ7XJPt4swbTQ2";
        let contexts =
            json!(["https://www.w3.org/ns/credentials/v2", "https://www.w3.org/ns/credentials/examples/v2"]);
        let document = json!({
            "@context": contexts,
            "id": "urn:uuid:58172aac-d8ba-11ed-83dd-0b3aef56cc33",
            "type": ["VerifiableCredential", "AlumniCredential"],
            "name": "Alumni Credential",
            "description": "A minimum viable example of an Alumni Credential.",
            "issuer": "https://vc.example/issuers/5678",
            "validFrom": "2023-01-01T00:00:00Z",
            "credentialSubject": {"id": "did:example:abcdefgh", "alumniOf": "The School of Examples"},
            "proof": {
                "type": "DataIntegrityProof",
                "cryptosuite": "eddsa-jcs-2022",
                "created": "2023-02-24T23:36:38Z",
                "verificationMethod": method,
                "proofPurpose": "assertionMethod",
                "@context": contexts,
                "proofValue": "z2HnFSSPPBzR36zdDgK8PbEHeXbR56YF24jwMpt3R1eHXQzJDMWS93FCzpvJpwTWd3GAVFuUfjoJdcnTMuVor51aX"
            }
        });
        document.as_object().unwrap().clone()
    }

    fn judge(document: &Map<String, Value>) -> Result<(), DataIntegrityError> {
        verify(document, Purpose::Assertion, |method| Some(method_key(method)?.1)).map(|_| ())
    }

    #[test]
    fn the_published_credential_verifies_with_the_published_hashes() {
        let document = published();
        let proven = verify(&document, Purpose::Assertion, |method| Some(method_key(method)?.1)).unwrap();
        assert_eq!(proven.created.unwrap().to_string(), "2023-02-24T23:36:38.000Z");
        let hashes = hash_data(&document, proven.options).unwrap();
        let hex = hashes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex,
            "66ab154f5c2890a140cb8388a22a160454f80575f6eae09e5a097cabe539a1db\
             59b7cb6251b8991add1ce0bc83107e3db9dbbab5bd2c28f687db1a03abc92f19"
        );
    }

    #[test]
    fn no_changed_or_added_member_passes() {
        let good = published();
        for member in good.keys().filter(|member| *member != "proof") {
            let mut changed = good.clone();
            changed[member] = json!("changed");
            assert!(judge(&changed).is_err(), "{member}");
            changed.remove(member);
            assert!(judge(&changed).is_err(), "{member}");
        }
        let mut added = good.clone();
        added.insert("more".into(), json!(1));
        assert_eq!(judge(&added), Err(DataIntegrityError::Signature));
        for member in good["proof"].as_object().unwrap().keys() {
            let mut changed = good.clone();
            changed["proof"][member] = json!("changed");
            assert!(judge(&changed).is_err(), "proof.{member}");
            changed["proof"].as_object_mut().unwrap().remove(member);
            assert!(judge(&changed).is_err(), "proof.{member}");
        }
        let mut added = good;
        added["proof"]["nonce"] = json!("x");
        assert_eq!(judge(&added), Err(DataIntegrityError::Signature));
    }

    #[test]
    fn contexts_may_be_added_behind_those_signed_but_not_before() {
        let mut behind = published();
        behind["@context"].as_array_mut().unwrap().push(json!("https://example.org/more"));
        assert_eq!(judge(&behind), Ok(()));
        let mut before = published();
        before["@context"].as_array_mut().unwrap().insert(0, json!("https://example.org/more"));
        assert_eq!(judge(&before), Err(DataIntegrityError::Context));
    }

    #[test]
    fn integers_that_the_signature_would_round_are_refused() {
        for (number, verdict) in [
            (json!(9_007_199_254_740_993u64), DataIntegrityError::Number),
            (json!(-9_007_199_254_740_993i64), DataIntegrityError::Number),
            (json!(9_007_199_254_740_991u64), DataIntegrityError::Signature),
            (json!(0.5), DataIntegrityError::Signature),
        ] {
            let mut document = published();
            document["credentialSubject"]["n"] = json!([number]);
            assert_eq!(judge(&document), Err(verdict));
        }
    }

    #[test]
    fn proofs_of_other_kinds_and_numbers_are_refused() {
        let mut chain = published();
        chain["proof"]["previousProof"] = json!("urn:x");
        assert_eq!(judge(&chain), Err(DataIntegrityError::Kind));
        let mut two = published();
        two["proof"] = json!([two["proof"], two["proof"]]);
        assert_eq!(judge(&two), Err(DataIntegrityError::NotOneProof));
        let mut one = published();
        one["proof"] = json!([one["proof"]]);
        assert_eq!(judge(&one), Ok(()));
        let mut other = published();
        other["proof"]["cryptosuite"] = json!("eddsa-rdfc-2022");
        assert_eq!(judge(&other), Err(DataIntegrityError::Kind));
        let wrong =
            verify(&published(), Purpose::Authentication, |method| Some(method_key(method)?.1)).map(|_| ());
        assert_eq!(wrong, Err(DataIntegrityError::Kind));
        let unknown = verify(&published(), Purpose::Assertion, |_| None).map(|_| ());
        assert_eq!(unknown, Err(DataIntegrityError::Method));
    }
}
