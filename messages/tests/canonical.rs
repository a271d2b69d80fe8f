//! Canonical JSON against the vectors of RFC 8785 and of CHAP, and what hashing relies on: one value has one text, in
//! every codec.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use choir_messages::canonical::{self, check_safe_integers};
use choir_messages::chain::Digest;
use choir_messages::codec;
use choir_messages::event::{Event, EventBody, Head};
use choir_messages::id::{InvocationId, SessionId};
use choir_messages::json::Json;
use choir_messages::time::Timestamp;
use choir_messages::tool::Lane;
use proptest::prelude::*;
use serde_json::Value;

fn canonical_of(text: &str) -> String {
    canonical::to_string(&serde_json::from_str::<Value>(text).unwrap()).unwrap()
}

#[test]
fn numbers_print_as_in_appendix_b_of_the_rfc() {
    let vectors: Vec<(String, Option<String>)> =
        serde_json::from_str(include_str!("vectors/rfc8785-numbers.json")).unwrap();
    assert_eq!(vectors.len(), 27);
    for (bits, expected) in vectors {
        let number = f64::from_bits(u64::from_str_radix(&bits, 16).unwrap());
        assert_eq!(canonical::to_string(&number).ok(), expected, "{bits}");
        if let Some(expected) = expected {
            assert_eq!(canonical_of(&expected), expected, "{bits} read back");
        }
    }
}

#[test]
fn the_example_of_section_3_2_2_is_reproduced() {
    let input = r#"{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"#;
    let expected = r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#;
    assert_eq!(canonical_of(input), expected);
}

#[test]
fn keys_are_ordered_by_utf_16_code_units() {
    // By code point (or by UTF-8) the emoji would come after U+FB33; by UTF-16 its surrogate D83D comes before.
    let input = r#"{
        "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
        "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis"
    }"#;
    let expected = "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\
                    \"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\
                    \"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}";
    assert_eq!(canonical_of(input), expected);
}

#[test]
fn control_characters_are_escaped_in_their_shortest_form_and_nothing_else_is() {
    let all: String = (0u8..0x20).map(char::from).chain("\u{7f}\u{2028}/<é".chars()).collect();
    let expected = "\"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e\\u000f\
                    \\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001a\\u001b\\u001c\
                    \\u001d\\u001e\\u001f\u{7f}\u{2028}/<é\"";
    assert_eq!(canonical::to_string(&all).unwrap(), expected);
}

#[test]
fn chap_accepts_safe_integers_and_nothing_beyond() {
    #[derive(serde::Deserialize)]
    struct Vectors {
        accept: Vec<(String, String)>,
        reject: Vec<String>,
    }
    let Vectors { accept, reject } = serde_json::from_str(include_str!("vectors/chap-numbers.json")).unwrap();
    assert_eq!((accept.len(), reject.len()), (16, 8));
    for (text, expected) in accept {
        check_safe_integers(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(canonical_of(&text), expected);
    }
    for text in reject {
        assert!(check_safe_integers(&serde_json::from_str(&text).unwrap()).is_err(), "{text}");
    }
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<u64>().prop_map(|bits| Value::from(f64::from_bits(bits))), // not finite becomes null
        (-400i32..400).prop_map(|e| Value::from(10f64.powi(e))),
        (any::<i32>(), 0i32..25).prop_map(|(m, e)| Value::from(f64::from(m) * 10f64.powi(e))),
    ]
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number(),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_canonical_text_is_its_own_canonical_text(value in json()) {
        let text = canonical::to_string(&value).unwrap();
        prop_assert_eq!(canonical_of(&text), text.as_str());
        prop_assert_eq!(canonical::to_vec(&value).unwrap(), text.into_bytes());
    }

    #[test]
    fn the_order_in_which_keys_were_written_does_not_matter(
        pairs in proptest::collection::btree_map(any::<String>(), any::<u32>(), 0..8)
    ) {
        let written = |pairs: Vec<(&String, &u32)>| {
            let members: Vec<String> = pairs
                .iter()
                .map(|(k, v)| format!("{}:{v}", serde_json::to_string(k).unwrap()))
                .collect();
            format!("{{{}}}", members.join(","))
        };
        let forwards = written(pairs.iter().collect());
        let backwards = written(pairs.iter().rev().collect());
        prop_assert_eq!(canonical_of(&forwards), canonical_of(&backwards));
    }

    #[test]
    fn json_in_a_message_keeps_its_canonical_text_through_both_codecs(value in json()) {
        let text = canonical::to_string(&value).unwrap();
        let json = Json(value);
        let binary: Json = codec::decode(&codec::encode(&json, 1 << 20).unwrap(), 1 << 20).unwrap();
        prop_assert_eq!(canonical::to_string(&binary).unwrap(), text.as_str());
        let readable: Json = serde_json::from_str(&serde_json::to_string(&json).unwrap()).unwrap();
        prop_assert_eq!(canonical::to_string(&readable).unwrap(), text);
    }

    #[test]
    fn an_events_hash_holds_after_the_link_and_after_the_store(input in json()) {
        let session = SessionId::from_bits(1);
        let body = EventBody::ToolCallRequested {
            invocation: InvocationId::from_bits(2),
            tool: "choir.fs.read".into(),
            input: Json(input),
        };
        let (event, text) =
            Event::append(session, Head::START, Timestamp::from_millis(3), Lane::Edge, body).unwrap();
        prop_assert_eq!(Digest::of(text.as_bytes()), event.hash);
        let linked: Event = codec::decode(&codec::encode(&event, 1 << 20).unwrap(), 1 << 20).unwrap();
        prop_assert_eq!(linked.check(session, Head::START), Ok(text.clone()));
        let stored = Event::from_canonical(&text, event.hash).unwrap();
        prop_assert_eq!(stored.check(session, Head::START), Ok(text.clone()));
    }

    #[test]
    fn a_safe_integer_is_its_own_text(n in -((1i64 << 53) - 1)..(1i64 << 53)) {
        check_safe_integers(&Value::from(n)).unwrap();
        prop_assert_eq!(canonical::to_string(&n).unwrap(), n.to_string());
    }

    #[test]
    fn foreign_bytes_decode_to_an_error_or_a_value_and_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300)
    ) {
        let _ = codec::decode::<Event>(&bytes, 4096);
        let _ = codec::decode::<Json>(&bytes, 4096);
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let _ = Event::from_canonical(text, Digest::ZERO);
        }
    }
}
