use super::*;
use crate::limits::MAX_STATUS_LIST_BYTES;
use crate::vc::status::verify_status_list;
use crate::vc::test_documents::{
    DOMAIN, LIST, credential, did, entry, good, issuers, key, now, packed, presentation, rules, status_list,
};
use proptest::prelude::*;

fn judge(document: &Value) -> Result<Holder, VcError> {
    let issuers = issuers();
    verify_presentation(document, &rules(&issuers))?.accept(&BTreeMap::new(), now())
}

fn presented(credential: Value) -> Result<Holder, VcError> {
    judge(&presentation(1, &[credential], &json!({}), &json!({})))
}

#[test]
fn a_good_presentation_tells_holder_key_and_issuer() {
    let document = good();
    let holder = judge(&document).unwrap();
    assert_eq!((holder.holder.as_str(), holder.key), (did(1).as_str(), key(1).public()));
    assert_eq!(holder.cnf_jwk["kid"], did(1).trim_start_matches("did:key:"));
    assert_eq!(holder.cnf_jwk["x"], to_base64url(key(1).public().bytes()));
    assert_eq!(holder.credentials.len(), 1);
    assert_eq!(holder.credentials[0].issuer, did(2));
    assert!(holder.credentials[0].types.contains(&"ProfessionalRoleCredential".into()));
    assert_eq!(Some(holder.digest), presentation_digest(&document));
    assert!(holder.credentials[0].claims_digest.starts_with("sha256:"));
}

#[test]
fn holder_proof_and_subject_are_one_or_the_presentation_is_refused() {
    let own = credential(2, &json!({}));
    let others = credential(2, &json!({"credentialSubject": {"id": did(9)}}));
    let nobodys = credential(2, &json!({"credentialSubject": {"role": "x"}}));
    let two = credential(2, &json!({"credentialSubject": [{"id": did(1)}, {"id": did(9)}]}));
    assert_eq!(presented(others).err(), Some(VcError::Holder));
    assert_eq!(presented(nobodys).err(), Some(VcError::Holder));
    assert_eq!(presented(two).err(), Some(VcError::Holder));
    // A thief who presents another's credential under the own key, or under the other's name.
    let thief = presentation(9, std::slice::from_ref(&own), &json!({}), &json!({}));
    assert_eq!(judge(&thief).err(), Some(VcError::Holder));
    let thief = presentation(9, &[own], &json!({"holder": did(1)}), &json!({}));
    assert_eq!(judge(&thief).err(), Some(VcError::Holder));
    assert_eq!(VcError::Holder.code(), -32411);
}

#[test]
fn only_trusted_issuers_are_believed_and_only_for_their_types() {
    assert_eq!(presented(credential(3, &json!({}))).err(), Some(VcError::Issuer));
    // One who signs in a trusted issuer's name.
    let forged = credential(3, &json!({"issuer": did(2)}));
    assert_eq!(presented(forged).err(), Some(VcError::CredentialProof(DataIntegrityError::Method)));
    let named = credential(2, &json!({"issuer": {"id": did(2), "name": "Board"}}));
    assert!(presented(named).is_ok());
    for (types, trusted) in
        [(vec![], true), (vec!["ProfessionalRoleCredential"], true), (vec!["OtherCredential"], false)]
    {
        let types = types.into_iter().map(str::to_owned).collect();
        let issuers = [TrustedIssuer { id: did(2), keys: vec![], types }];
        assert_eq!(verify_presentation(&good(), &rules(&issuers)).is_ok(), trusted);
    }
}

#[test]
fn an_issuer_that_is_no_did_key_is_believed_by_its_pinned_keys() {
    let method = format!("{0}#{1}", did(2), did(2).trim_start_matches("did:key:"));
    let document = presentation(
        1,
        &[credential(2, &json!({"issuer": "https://board.example"}))],
        &json!({}),
        &json!({}),
    );
    for (id, seed, good) in [(method.as_str(), 2, true), ("other", 2, false), (method.as_str(), 3, false)] {
        let keys = vec![(id.to_owned(), key(seed).public())];
        let issuers = [TrustedIssuer { id: "https://board.example".into(), keys, types: vec![] }];
        assert_eq!(verify_presentation(&document, &rules(&issuers)).is_ok(), good, "{id} {seed}");
    }
}

#[test]
fn a_presentation_for_others_or_from_before_is_refused() {
    let credentials = [credential(2, &json!({}))];
    for (options, verdict) in [
        (json!({"domain": "other.example"}), Some(VcError::Domain)),
        (json!({"domain": null}), Some(VcError::Domain)),
        (json!({"domain": ["other.example", DOMAIN]}), None),
        (json!({"challenge": "c2"}), Some(VcError::Freshness)),
        (json!({"challenge": null}), Some(VcError::Freshness)),
        (json!({"expires": "2026-06-01T11:58:59Z"}), Some(VcError::Validity)),
        (json!({"expires": "2026-06-01T11:59:01Z"}), None),
        (json!({"created": "2026-06-01T12:01:01Z"}), Some(VcError::Validity)),
        (
            json!({"created": "yesterday"}),
            Some(VcError::PresentationProof(DataIntegrityError::Member("created"))),
        ),
        (
            json!({"proofPurpose": "assertionMethod"}),
            Some(VcError::PresentationProof(DataIntegrityError::Kind)),
        ),
    ] {
        let document = presentation(1, &credentials, &json!({}), &options);
        assert_eq!(judge(&document).err(), verdict, "{options}");
    }
    let issuers = issuers();
    let recent = Rules { freshness: Freshness::Recent(Duration::from_secs(300)), ..rules(&issuers) };
    for (created, verdict) in [
        (json!("2026-06-01T11:54:01Z"), None),
        (json!("2026-06-01T11:54:00Z"), Some(VcError::Freshness)),
        (Value::Null, Some(VcError::Freshness)),
    ] {
        let options = json!({ "created": created });
        let document = presentation(1, &credentials, &json!({}), &options);
        assert_eq!(verify_presentation(&document, &recent).err(), verdict, "{options}");
    }
}

#[test]
fn validity_is_judged_with_a_minute_of_skew() {
    for (changes, good) in [
        (json!({"validFrom": "2026-06-01T12:01:00Z"}), true),
        (json!({"validFrom": "2026-06-01T12:01:01Z"}), false),
        (json!({"validFrom": null}), true),
        (json!({"validUntil": "2026-06-01T11:59:01Z"}), true),
        (json!({"validUntil": "2026-06-01T11:59:00Z"}), false),
    ] {
        let verdict = presented(credential(2, &changes)).err();
        assert_eq!(verdict, (!good).then_some(VcError::Validity), "{changes}");
    }
    let verdict = presented(credential(2, &json!({"validUntil": "2026-06-01"}))).err();
    assert_eq!(verdict, Some(VcError::Malformed("validUntil")));
}

#[test]
fn documents_that_are_no_presentations_are_refused() {
    let credentials = [credential(2, &json!({}))];
    for (changes, member) in [
        (json!({"@context": ["https://www.w3.org/2018/credentials/v1"]}), "@context"),
        (json!({"@context": null}), "@context"),
        (json!({"type": ["Other"]}), "type"),
        (json!({"type": null}), "type"),
        (json!({"holder": null}), "holder"),
        (json!({"holder": {"id": did(1)}}), "holder"),
        (json!({"verifiableCredential": []}), "verifiableCredential"),
        (json!({"verifiableCredential": null}), "verifiableCredential"),
        (json!({"verifiableCredential": ["eyJ"]}), "verifiableCredential"),
        (json!({"verifiableCredential": vec![json!({}); 9]}), "verifiableCredential"),
    ] {
        let document = presentation(1, &credentials, &changes, &json!({}));
        assert_eq!(judge(&document).err(), Some(VcError::Malformed(member)), "{changes}");
    }
    for document in [json!(null), json!([]), json!("x")] {
        assert_eq!(judge(&document).err(), Some(VcError::Malformed("presentation")));
    }
    let mut deep = json!(1);
    for _ in 0..40 {
        deep = json!([deep]);
    }
    assert_eq!(judge(&json!({"a": deep})).err(), Some(VcError::TooLarge));
    let large = json!({"a": "x".repeat(MAX_PRESENTATION_BYTES)});
    assert_eq!(judge(&large).err(), Some(VcError::TooLarge));
}

fn with_status(status: &Value, list: &Value) -> Result<Holder, VcError> {
    let issuers = issuers();
    let document =
        presentation(1, &[credential(2, &json!({"credentialStatus": status}))], &json!({}), &json!({}));
    let pending = verify_presentation(&document, &rules(&issuers))?;
    let mut lists = BTreeMap::new();
    for url in pending.status_lists() {
        lists.insert(url.to_owned(), verify_status_list(url, list, &rules(&issuers))?);
    }
    pending.accept(&lists, now())
}

#[test]
fn a_revoked_or_suspended_credential_is_refused() {
    let list = status_list(2, &[7, 131_071], &json!({}), &json!({}));
    for (index, verdict) in [
        ("0", None),
        ("6", None),
        ("7", Some(VcError::Revoked)),
        ("131071", Some(VcError::Revoked)),
        ("131072", Some(StatusError::OutOfRange.into())),
    ] {
        assert_eq!(with_status(&entry(index, "revocation"), &list).err(), verdict, "{index}");
    }
    let both = status_list(2, &[7], &json!({"statusPurpose": ["revocation", "suspension"]}), &json!({}));
    let entries = json!([entry("1", "revocation"), entry("7", "suspension")]);
    assert_eq!(with_status(&entries, &both).err(), Some(VcError::Revoked));
    assert_eq!(VcError::Revoked.code(), -32412);
}

#[test]
fn a_list_that_is_missing_is_a_refusal() {
    let issuers = issuers();
    let status = json!({"credentialStatus": entry("1", "revocation")});
    let document = presentation(1, &[credential(2, &status)], &json!({}), &json!({}));
    let pending = verify_presentation(&document, &rules(&issuers)).unwrap();
    assert_eq!(pending.status_lists(), [LIST]);
    assert_eq!(pending.accept(&BTreeMap::new(), now()).err(), Some(StatusError::Missing.into()));
}

#[test]
fn status_entries_that_are_not_understood_are_refused() {
    let list = status_list(2, &[], &json!({}), &json!({}));
    let change = |member: &str, value: Value| {
        let mut changed = entry("1", "revocation");
        changed[member] = value;
        changed
    };
    for status in [
        change("type", json!("StatusList2021Entry")),
        change("statusPurpose", json!("divination")),
        change("statusListIndex", json!(1)),
        change("statusListIndex", json!("-1")),
        change("statusListIndex", json!("+1")),
        change("statusListIndex", json!("01")),
        change("statusListIndex", json!("99999999999999999999999")),
        change("statusListCredential", json!("http://issuer.example/1")),
        change("statusListCredential", json!("file:///etc/passwd")),
        change("statusListCredential", json!(null)),
        change("statusSize", json!(2)),
        json!("x"),
        json!(vec![entry("1", "revocation"); 9]),
    ] {
        assert_eq!(with_status(&status, &list).err(), Some(StatusError::Entry.into()), "{status}");
    }
    assert!(with_status(&entry("1", "message"), &list).is_ok(), "a message takes nothing away");
}

#[test]
fn a_list_of_others_or_out_of_date_is_refused() {
    let judge = |list: &Value| with_status(&entry("1", "revocation"), list).err();
    let subject = |subject: Value| status_list(2, &[], &subject, &json!({}));
    let document = |changes: Value| status_list(2, &[], &json!({}), &changes);
    assert_eq!(judge(&subject(json!({"statusPurpose": "suspension"}))), Some(StatusError::OtherList.into()));
    assert_eq!(
        judge(&document(json!({"id": "https://issuer.example/2"}))),
        Some(StatusError::OtherList.into())
    );
    assert_eq!(judge(&document(json!({"validUntil": "2026-06-01T11:00:00Z"}))), Some(VcError::Validity));
    assert_eq!(judge(&document(json!({"type": "VerifiableCredential"}))), Some(StatusError::List.into()));
    assert_eq!(judge(&status_list(3, &[], &json!({}), &json!({}))), Some(VcError::Issuer));
    let mut tampered = status_list(2, &[1], &json!({}), &json!({}));
    tampered["credentialSubject"]["encodedList"] = json!(packed(&[0; 16 << 10]));
    assert_eq!(judge(&tampered), Some(VcError::CredentialProof(DataIntegrityError::Signature)));
    // Another trusted issuer's list says nothing about this one's credentials.
    let mut issuers = issuers();
    issuers.push(TrustedIssuer { id: did(3), keys: vec![], types: vec![] });
    let status = json!({"credentialStatus": entry("1", "revocation")});
    let document = presentation(1, &[credential(2, &status)], &json!({}), &json!({}));
    let foreign =
        verify_status_list(LIST, &status_list(3, &[], &json!({}), &json!({})), &rules(&issuers)).unwrap();
    let lists = BTreeMap::from([(LIST.to_owned(), foreign)]);
    let verdict = verify_presentation(&document, &rules(&issuers)).unwrap().accept(&lists, now());
    assert_eq!(verdict.err(), Some(StatusError::OtherList.into()));
}

#[test]
fn a_list_that_unpacks_beyond_its_bound_is_refused() {
    for (bits, good) in [
        (vec![0; MAX_STATUS_LIST_BYTES], true),
        (vec![0; MAX_STATUS_LIST_BYTES + 1], false),
        (vec![0; 64 << 20], false),
        (vec![0; (16 << 10) - 1], false),
    ] {
        let list = status_list(2, &[], &json!({"encodedList": packed(&bits)}), &json!({}));
        let verdict = with_status(&entry("1", "revocation"), &list).err();
        assert_eq!(verdict, (!good).then_some(StatusError::List.into()), "{}", bits.len());
    }
    for text in ["", "u", "uAAAA", "zAAAA"] {
        let list = status_list(2, &[], &json!({"encodedList": text}), &json!({}));
        assert_eq!(with_status(&entry("1", "revocation"), &list).err(), Some(StatusError::List.into()));
    }
}

/// Every place in a document that holds a text or number.
fn leaves(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            leaves(value, format!("{at}/{key}"), found);
        }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, value)| leaves(value, format!("{at}/{n}"), found));
        }
        _ => found.push(at),
    }
}

#[test]
fn no_changed_value_of_a_presentation_passes() {
    let document = good();
    let mut places = Vec::new();
    leaves(&document, String::new(), &mut places);
    assert!(places.len() > 20);
    for place in places {
        let mut changed = document.clone();
        let value = changed.pointer_mut(&place).unwrap();
        let text = value.as_str().unwrap();
        *value = json!(format!("{text}x"));
        assert!(judge(&changed).is_err(), "{place}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn wrong_types_anywhere_end_in_a_verdict(pick in any::<prop::sample::Index>(), which in 0usize..5) {
        let document = good();
        let mut places = Vec::new();
        leaves(&document, String::new(), &mut places);
        let mut changed = document;
        let wrong = [json!(null), json!(1e300), json!([[]]), json!({"id": {}}), json!("\u{0}")];
        *changed.pointer_mut(&places[pick.index(places.len())]).unwrap() = wrong[which].clone();
        prop_assert!(judge(&changed).is_err());
    }

    #[test]
    fn errors_never_quote_the_presentation(seed in 0usize..40) {
        let document = good();
        let mut places = Vec::new();
        leaves(&document, String::new(), &mut places);
        let mut changed = document;
        *changed.pointer_mut(&places[seed % places.len()]).unwrap() = json!("very-secret");
        let error = judge(&changed).unwrap_err();
        let text = format!("{error} {error:?}");
        prop_assert!(!text.contains("very-secret"));
    }
}
