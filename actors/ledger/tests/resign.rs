//! A writer that signs the sound golden traces again gives the very same bytes: Ed25519 is deterministic, so this holds the
//! canonical form, the signed bytes and the hashes against those of the original at once.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_ledger::event::{Event, SIGNED_MEMBERS, UnsignedEvent};
use choir_ledger::json::{self, Object, Value};
use choir_ledger::{canon, layout};
use choir_messages::chain::Digest;
use choir_messages::sign::SigningKey;
use std::collections::HashMap;
use support::{Case, cases, top};

fn keys() -> HashMap<String, SigningKey> {
    let keys = top("TEST-ONLY-keys.json");
    let key = |entry: &serde_json::Value| {
        let mut seed = [0; 32];
        hex::decode_to_slice(entry["seed_hex"].as_str().unwrap(), &mut seed).unwrap();
        (entry["key_id"].as_str().unwrap().to_owned(), SigningKey::from_seed(&seed))
    };
    keys["keys"].as_array().unwrap().iter().map(key).collect()
}

fn sound() -> Vec<Case> {
    let sound: Vec<Case> = cases().into_iter().filter(|case| case.id.starts_with("v-")).collect();
    assert!(sound.len() > 20);
    sound
}

fn lines(case: &Case) -> Vec<String> {
    let path = layout::events(case.trace);
    let (_, bytes) = case.home.files().find(|(name, _)| *name == path).unwrap();
    String::from_utf8(bytes.to_vec())
        .unwrap()
        .lines()
        .map(str::to_owned)
        .filter(|line| !line.trim().is_empty())
        .collect()
}

fn only<'a>(object: &Object<'a>, keep: impl Fn(&str) -> bool) -> Value<'a> {
    let members = object.members().iter().filter(|(name, _)| keep(name.as_str().unwrap()));
    Value::Object(Object::from_members(members.cloned().collect()))
}

#[test]
fn signing_any_sound_event_again_gives_the_same_signature_and_hashes() {
    let keys = keys();
    for case in sound() {
        for line in lines(&case) {
            let (value, _) = json::parse(&line).unwrap();
            let event = value.as_object().unwrap();
            let stated = |name: &str| event.get(name).unwrap().as_str().unwrap().to_owned();
            let signature = event.get("signature").unwrap();
            let signed = canon::to_text(&only(event, |name| SIGNED_MEMBERS.contains(&name))).unwrap();
            let key_id = event.get("actor").unwrap().get("key_id").unwrap().as_str().unwrap();
            let again = STANDARD.encode(keys[key_id].sign(signed.as_bytes()).bytes());
            assert_eq!(signature.get("signature_b64").unwrap().as_str(), Some(&*again), "{}", case.id);
            let hash = Digest::of(signed.as_bytes()).to_string();
            assert_eq!(signature.get("signed_bytes_hash").unwrap().as_str(), Some(&*hash));
            let payload = canon::digest(event.get("payload").unwrap()).unwrap();
            assert_eq!(stated("payload_hash"), payload.to_string());
            let event_hash = canon::digest(&only(event, |name| name != "event_hash")).unwrap();
            assert_eq!(stated("event_hash"), event_hash.to_string());
        }
    }
}

#[test]
fn building_any_sound_event_again_gives_the_same_line() {
    // Cases whose lines have members, an order or a spelling that a writer of ours would not choose.
    let foreign = ["v-raw-form", "v-extra-fields", "v-key-order", "v-numbers", "v-unicode-nfc"];
    let keys = keys();
    for case in sound().into_iter().filter(|case| !foreign.contains(&&*case.id)) {
        for line in lines(&case) {
            let event = Event::parse(&line).unwrap();
            let unsigned = UnsignedEvent {
                trace_id: event.trace_id(),
                event_id: event.event_id(),
                event_type: event.event_type(),
                created_at: event.created_at(),
                actor: event.actor().clone(),
                payload: event.payload().clone(),
                claims: event.claims().to_vec(),
                artifacts: event.artifacts().to_vec(),
            };
            let key = &keys[&event.actor().key_id];
            assert_eq!(event.verify(&key.public()), Ok(()));
            let again = unsigned.sign(key, event.prev_event_hash()).unwrap();
            assert_eq!(again.line(), line, "{}", case.id);
        }
    }
}
