//! Bitstring Status List (W3C): one bit a credential, in a list that its issuer signs as a credential of its own.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use choir_messages::canonical;
use choir_messages::time::Timestamp;
use flate2::read::GzDecoder;
use serde_json::{Map, Value};
use std::io::Read as _;

use crate::limits::{
    MAX_JSON_DEPTH, MAX_STATUS_DOCUMENT_BYTES, MAX_STATUS_LIST_BYTES, MIN_STATUS_LIST_BYTES,
};
use crate::strict_json::depth_within;
use crate::vc::presentation::{Rules, VcError, verify_credential};

/// What is wrong with a status list, or with an entry that points to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// An entry that is malformed or of a kind not known here.
    #[error("a credential's status entry is malformed or of a kind not known here")]
    Entry,
    /// The list that an entry names was not passed in.
    #[error("a status list that a credential depends on could not be had; try again later")]
    Missing,
    /// The list's document is malformed, too large or of another kind.
    #[error("the status list is malformed, too large or of another kind")]
    List,
    /// Another issuer's list, from another address, or for another purpose.
    #[error("the status list is another issuer's, from another address, or for another purpose")]
    OtherList,
    /// The list is not valid now.
    #[error("the status list is not valid at this time")]
    Ended,
    /// The index lies behind the list's end.
    #[error("the credential's place lies outside its status list")]
    OutOfRange,
}

/// Where a credential's status stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusEntry {
    pub(crate) list: String,
    pub(crate) purpose: String,
    pub(crate) index: usize,
    pub(crate) issuer: String,
}

impl StatusEntry {
    /// Reads one entry; none for purposes that take nothing away.
    pub(crate) fn read(entry: &Value, issuer: &str) -> Result<Option<Self>, StatusError> {
        let entry = entry.as_object().ok_or(StatusError::Entry)?;
        let text = |member| entry.get(member).and_then(Value::as_str).ok_or(StatusError::Entry);
        if text("type")? != "BitstringStatusListEntry"
            || entry.get("statusSize").is_some_and(|size| *size != 1)
        {
            return Err(StatusError::Entry);
        }
        let purpose = text("statusPurpose")?;
        match purpose {
            "revocation" | "suspension" => {}
            "refresh" | "message" => return Ok(None),
            _ => return Err(StatusError::Entry),
        }
        let index = text("statusListIndex")?;
        let canonical = index == "0" || !index.starts_with(['0', '+']);
        let index = index.parse().ok().filter(|_| canonical).ok_or(StatusError::Entry)?;
        let list = text("statusListCredential")?;
        // The address will be fetched, so nothing but HTTPS gets through.
        if !url::Url::parse(list).is_ok_and(|url| url.scheme() == "https") {
            return Err(StatusError::Entry);
        }
        Ok(Some(Self {
            list: list.to_owned(),
            purpose: purpose.to_owned(),
            index,
            issuer: issuer.to_owned(),
        }))
    }

    /// Whether the bit is set: the credential was revoked or suspended.
    pub(crate) fn is_set(&self, list: &StatusList, now: Timestamp) -> Result<bool, StatusError> {
        if list.issuer != self.issuer || list.url != self.list || !list.purposes.contains(&self.purpose) {
            return Err(StatusError::OtherList);
        }
        if list.until.is_some_and(|until| now >= until) {
            return Err(StatusError::Ended);
        }
        let byte = list.bits.get(self.index / 8).ok_or(StatusError::OutOfRange)?;
        Ok(byte & (0x80 >> (self.index % 8)) != 0)
    }
}

/// A status list whose proof and issuer were checked. May be kept until its time is up.
#[derive(Debug, Clone)]
pub struct StatusList {
    url: String,
    issuer: String,
    purposes: Vec<String>,
    until: Option<Timestamp>,
    bits: Vec<u8>,
}

impl StatusList {
    /// When it must be fetched anew, if it says.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }
}

/// The status list in this document, fetched from `url`, if an issuer trusted by the rules signed it.
pub fn verify_status_list(url: &str, document: &Value, rules: &Rules<'_>) -> Result<StatusList, VcError> {
    let fits = |bytes: Vec<u8>| bytes.len() <= MAX_STATUS_DOCUMENT_BYTES;
    // Depth first: the canonical form is made by recursion.
    if !depth_within(document, MAX_JSON_DEPTH) || !canonical::to_vec(document).is_ok_and(fits) {
        return Err(StatusError::List.into());
    }
    let document = document.as_object().ok_or(StatusError::List)?;
    let (credential, subjects) = verify_credential(document, rules)?;
    if !credential.types.iter().any(|kind| kind == "BitstringStatusListCredential") {
        return Err(StatusError::List.into());
    }
    if document.get("id").is_some_and(|id| id.as_str() != Some(url)) {
        return Err(StatusError::OtherList.into());
    }
    let subject = match subjects.as_slice() {
        [subject] if subject.get("type").and_then(Value::as_str) == Some("BitstringStatusList") => *subject,
        _ => return Err(StatusError::List.into()),
    };
    let purposes = match subject.get("statusPurpose") {
        Some(Value::String(purpose)) => vec![purpose.clone()],
        Some(Value::Array(list)) => {
            let texts = list.iter().map(|purpose| purpose.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().ok_or(StatusError::List)?
        }
        _ => return Err(StatusError::List.into()),
    };
    let bits = unpack(subject)?;
    let url = url.to_owned();
    Ok(StatusList { url, issuer: credential.issuer, purposes, until: credential.valid_until, bits })
}

/// The list's bits: multibase base64url, gzip, and never more than the bound however well they were packed.
fn unpack(subject: &Map<String, Value>) -> Result<Vec<u8>, StatusError> {
    let text = subject.get("encodedList").and_then(Value::as_str).and_then(|text| text.strip_prefix('u'));
    let packed = text.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok()).ok_or(StatusError::List)?;
    let mut bits = Vec::new();
    let most = u64::try_from(MAX_STATUS_LIST_BYTES).unwrap_or(u64::MAX) + 1;
    GzDecoder::new(packed.as_slice()).take(most).read_to_end(&mut bits).map_err(|_| StatusError::List)?;
    if (MIN_STATUS_LIST_BYTES..=MAX_STATUS_LIST_BYTES).contains(&bits.len()) {
        Ok(bits)
    } else {
        Err(StatusError::List)
    }
}
