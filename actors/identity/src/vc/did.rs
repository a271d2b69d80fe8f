//! `did:key` identifiers of Ed25519 keys: the identifier is the key, so nothing has to be looked up.

use choir_messages::sign::PublicKey;

/// The multicodec prefix of an Ed25519 public key.
const ED25519: [u8; 2] = [0xed, 0x01];
/// Longest multibase text read here. A key has 48 characters, a signature 89.
const MAX_MULTIBASE: usize = 128;

/// Bytes from multibase base58-btc.
pub(crate) fn base58(text: &str) -> Option<Vec<u8>> {
    let text = text.strip_prefix('z').filter(|text| text.len() <= MAX_MULTIBASE)?;
    bs58::decode(text).into_vec().ok()
}

/// The key that a `did:key` names, without a fragment.
#[must_use]
pub fn parse_did_key(did: &str) -> Option<PublicKey> {
    let bytes = base58(did.strip_prefix("did:key:")?)?;
    let key = bytes.strip_prefix(&ED25519)?;
    Some(PublicKey::from_bytes(key.try_into().ok()?))
}

/// The multibase text of a key: its name within `did:key`.
pub(crate) fn key_text(key: &PublicKey) -> String {
    let bytes = [ED25519.as_slice(), key.bytes()].concat();
    format!("z{}", bs58::encode(bytes).into_string())
}

/// The `did:key` of a key.
#[must_use]
pub fn did_key(key: &PublicKey) -> String {
    format!("did:key:{}", key_text(key))
}

/// The key of a `did:key` verification method, which repeats the key as its fragment.
pub(crate) fn method_key(method: &str) -> Option<(&str, PublicKey)> {
    let (did, fragment) = method.split_once('#')?;
    let key = parse_did_key(did)?;
    (did.strip_prefix("did:key:") == Some(fragment)).then_some((did, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_key_is_read_and_written() {
        let did = "did:key:z6MkrJVnaZkeFzdQyMZu1cgjg7k1pZZ6pvBQ7XJPt4swbTQ2";
        let key = parse_did_key(did).unwrap();
        assert_eq!(did_key(&key), did);
        assert!(method_key(&format!("{did}#{}", key_text(&key))).is_some());
    }

    #[test]
    fn what_is_no_ed25519_did_key_is_refused() {
        for did in [
            "",
            "did:key:",
            "did:key:z",
            "did:web:example.org",
            "did:key:6MkrJVnaZkeFzdQyMZu1cgjg7k1pZZ6pvBQ7XJPt4swbTQ2",
            "did:key:z6MkrJVnaZkeFzdQyMZu1cgjg7k1pZZ6pvBQ7XJPt4swbTQ",
            // A P-256 key.
            "did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169",
        ] {
            assert_eq!(parse_did_key(did), None, "{did}");
        }
        let did = "did:key:z6MkrJVnaZkeFzdQyMZu1cgjg7k1pZZ6pvBQ7XJPt4swbTQ2";
        assert_eq!(method_key(&format!("{did}#key-1")), None);
        assert_eq!(method_key(did), None);
    }

    proptest! {
        #[test]
        fn every_key_has_one_identifier(bytes in any::<[u8; 32]>(), text in "did:key:z[1-9A-Za-z]{0,60}") {
            let key = PublicKey::from_bytes(bytes);
            prop_assert_eq!(parse_did_key(&did_key(&key)), Some(key));
            if let Some(key) = parse_did_key(&text) {
                prop_assert_eq!(did_key(&key), text);
            }
        }
    }
}
