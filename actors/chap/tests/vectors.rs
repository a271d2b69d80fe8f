//! The shared vectors of CHAP: canonical numbers and JSON Patch.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's failure")]

use choir_chap::{Call, Settings, content_hash, patch};
use serde_json::Value;

fn vectors(name: &str) -> Value {
    let path = format!("{}/tests/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn every_patch_vector_gives_what_it_must() {
    let vectors = vectors("json-patch-vectors.json");
    let accept = vectors["accept"].as_array().unwrap();
    assert!(accept.len() >= 16);
    for case in accept {
        let patched = patch::apply(&case["doc"], case["patch"].as_array().unwrap());
        assert_eq!(patched.as_ref(), Ok(&case["expected"]), "{}", case["name"]);
    }
    let reject = vectors["reject"].as_array().unwrap();
    assert!(reject.len() >= 12);
    for case in reject {
        assert!(patch::apply(&case["doc"], case["patch"].as_array().unwrap()).is_err(), "{}", case["name"]);
    }
}

/// A number in a call that is otherwise fine.
fn call_with(number: &str) -> Result<Call, i64> {
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"task.create","params":{{"workspace":"w","input":{number}}}}}"#
    );
    Call::parse(text.as_bytes(), &Settings::default()).map_err(|a| a.refusal().unwrap().code)
}

#[test]
fn every_number_vector_is_taken_or_refused_as_it_must() {
    let vectors = vectors("canonical-number-vectors.json");
    for case in vectors["accept"].as_array().unwrap() {
        assert!(call_with(&case["value"].to_string()).is_ok(), "{case}");
        assert_eq!(choir_messages::canonical::to_string(&case["value"]).unwrap(), case["canonical"]);
    }
    for case in vectors["reject"].as_array().unwrap() {
        assert_eq!(call_with(case["json"].as_str().unwrap()).err(), Some(-32602), "{case}");
    }
    for (spelled, canonical) in [("2.0", "2"), ("-0", "0"), ("1e2", "100"), ("-0.0", "0")] {
        let value: Value = serde_json::from_str(spelled).unwrap();
        assert_eq!(choir_messages::canonical::to_string(&value).unwrap(), canonical);
        assert!(call_with(spelled).is_ok());
    }
}

#[test]
fn keys_are_sorted_by_utf_16_code_units() {
    let value: Value = serde_json::from_str("{\"\u{ffff}\":1,\"\u{1f600}\":2}").unwrap();
    assert_eq!(choir_messages::canonical::to_string(&value).unwrap(), "{\"\u{1f600}\":2,\"\u{ffff}\":1}");
    assert_eq!(
        content_hash(&serde_json::json!({})),
        "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    );
}
