//! Signed notes (C2SP signed-note): a few lines of text, a blank line, and a signature line for each signer. Names and
//! keys travel together as one line, `name+hash+key`, which an auditor pins.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use choir_messages::sign::{PublicKey, Signature, SigningKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

use crate::limits::{MAX_NOTE_BYTES, MAX_NOTE_SIGNATURES, MAX_ORIGIN_BYTES};

/// The byte that stands for Ed25519 before a key and in its hash.
const ED25519: u8 = 1;
/// What a signature line begins with: an em dash and a space.
const MARK: &str = "\u{2014} ";

/// What is wrong with a note, a name or a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// Not a name that a note can carry.
    #[error("a log's name has 1 to {MAX_ORIGIN_BYTES} bytes, no spaces, control characters or plus signs")]
    BadName,
    /// Not a key line.
    #[error("not a log key of the form name+hash+key; ask the log's operator for it")]
    BadKey,
    /// Not a signed note.
    #[error("not a signed note: {0}")]
    Malformed(&'static str),
    /// No signature line of the expected key.
    #[error("the note has no signature of the expected log")]
    Unsigned,
    /// The key's signature does not match the text.
    #[error("the note's signature does not match its text")]
    BadSignature,
    /// A signed text that is no checkpoint, or another log's.
    #[error("not a checkpoint of this log: {0}")]
    NotACheckpoint(&'static str),
}

/// The name of a log, as it stands in checkpoints and receipts: usually a host name with a path, without a scheme.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Origin(String);

impl Origin {
    /// The name with this text.
    pub fn new(text: impl Into<String>) -> Result<Self, NoteError> {
        let text = text.into();
        let legal = |c: char| !c.is_whitespace() && !c.is_control() && c != '+';
        if text.is_empty() || text.len() > MAX_ORIGIN_BYTES || !text.chars().all(legal) {
            return Err(NoteError::BadName);
        }
        Ok(Self(text))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Origin {
    type Error = NoteError;
    fn try_from(text: String) -> Result<Self, NoteError> {
        Self::new(text)
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.0
    }
}

/// A log's name and public key: all that an auditor must know beforehand. Prints as `name+hash+key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogKey {
    /// The log's name.
    pub origin: Origin,
    /// Its Ed25519 key.
    pub key: PublicKey,
}

impl LogKey {
    /// The four bytes that name the key in a signature line.
    fn hash(&self) -> [u8; 4] {
        let hash = Sha256::new()
            .chain_update(self.origin.as_str())
            .chain_update([b'\n', ED25519])
            .chain_update(self.key.bytes())
            .finalize();
        [hash[0], hash[1], hash[2], hash[3]]
    }
}

impl fmt::Display for LogKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = vec![ED25519];
        key.extend_from_slice(self.key.bytes());
        write!(f, "{}+{}+{}", self.origin.as_str(), hex::encode(self.hash()), STANDARD.encode(key))
    }
}

impl FromStr for LogKey {
    type Err = NoteError;
    fn from_str(text: &str) -> Result<Self, NoteError> {
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(hash), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::BadKey);
        };
        let key = STANDARD.decode(key).map_err(|_| NoteError::BadKey)?;
        let Some((&ED25519, key)) = key.split_first() else { return Err(NoteError::BadKey) };
        let key = PublicKey::from_bytes(key.try_into().map_err(|_| NoteError::BadKey)?);
        let this = Self { origin: Origin::new(name)?, key };
        if hex::encode(this.hash()) == hash { Ok(this) } else { Err(NoteError::BadKey) }
    }
}

/// Whether a note can carry the text: lines without control characters, the last one ended.
fn check_text(text: &str) -> Result<(), NoteError> {
    if !text.ends_with('\n') {
        return Err(NoteError::Malformed("its text does not end with a line feed"));
    }
    if text.chars().any(|c| c < ' ' && c != '\n') {
        return Err(NoteError::Malformed("it has control characters"));
    }
    Ok(())
}

/// Signs the text under the log's name. The text ends with a line feed.
pub fn sign_note(text: &str, origin: &Origin, key: &SigningKey) -> Result<String, NoteError> {
    check_text(text)?;
    let log = LogKey { origin: origin.clone(), key: key.public() };
    let mut signature = log.hash().to_vec();
    signature.extend_from_slice(key.sign(text.as_bytes()).bytes());
    let note = format!("{text}\n{MARK}{} {}\n", origin.as_str(), STANDARD.encode(signature));
    if note.len() > MAX_NOTE_BYTES { Err(NoteError::Malformed("it is too long")) } else { Ok(note) }
}

/// The text of a note that the log signed. Signatures of others, such as witnesses, are passed over.
pub fn verify_note<'a>(note: &'a str, log: &LogKey) -> Result<&'a str, NoteError> {
    if note.len() > MAX_NOTE_BYTES {
        return Err(NoteError::Malformed("it is too long"));
    }
    let Some(end) = note.rfind("\n\n") else {
        return Err(NoteError::Malformed("it has no blank line before its signatures"));
    };
    let (text, rest) = note.split_at(end + 1);
    check_text(text)?;
    let Some(lines) = rest.strip_prefix('\n').and_then(|lines| lines.strip_suffix('\n')) else {
        return Err(NoteError::Malformed("its last line is not ended"));
    };
    let mut own = None;
    for (number, line) in lines.split('\n').enumerate() {
        if number >= MAX_NOTE_SIGNATURES {
            return Err(NoteError::Malformed("it has too many signatures"));
        }
        let Some((name, signature)) = line.strip_prefix(MARK).and_then(|line| line.split_once(' ')) else {
            return Err(NoteError::Malformed("a signature line is broken"));
        };
        let signature =
            STANDARD.decode(signature).map_err(|_| NoteError::Malformed("a signature is not base64"))?;
        let Some((hash, signature)) = signature.split_first_chunk::<4>() else {
            return Err(NoteError::Malformed("a signature is too short"));
        };
        if name == log.origin.as_str() && *hash == log.hash() {
            if own.is_some() {
                return Err(NoteError::Malformed("the log signed it twice"));
            }
            let bytes = signature.try_into().map_err(|_| NoteError::BadSignature)?;
            own = Some(Signature::from_bytes(bytes));
        }
    }
    let own = own.ok_or(NoteError::Unsigned)?;
    log.key.verify(text.as_bytes(), &own).map_err(|_| NoteError::BadSignature)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Go's note package, which the C2SP document took over.
    const KEY: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
    const NOTE: &str = "If you think cryptography is the answer to your problem,\n\
        then you don't know what your problem is.\n\n\
        \u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";

    #[test]
    fn the_published_note_verifies() {
        let log: LogKey = KEY.parse().unwrap();
        assert_eq!(log.to_string(), KEY);
        assert!(verify_note(NOTE, &log).unwrap().ends_with("your problem is.\n"));
    }

    #[test]
    fn a_key_line_with_another_hash_is_refused() {
        assert_eq!(KEY.replace("c74f", "c74e").parse::<LogKey>(), Err(NoteError::BadKey));
        assert!(KEY.replace("ARpc", "ARpd").parse::<LogKey>().is_err());
        assert!("a+b".parse::<LogKey>().is_err());
    }

    #[test]
    fn signatures_of_witnesses_are_passed_over() {
        let log: LogKey = KEY.parse().unwrap();
        let witnessed = format!("{NOTE}{MARK}witness.example AAAAAAAA\n");
        assert!(verify_note(&witnessed, &log).is_ok());
        let crowd = format!("{NOTE}{}", format!("{MARK}w AAAAAAAA\n").repeat(MAX_NOTE_SIGNATURES));
        assert!(verify_note(&crowd, &log).is_err());
    }

    #[test]
    fn names_that_would_break_a_line_are_refused() {
        for name in ["", "a b", "a+b", "a\nb", "a\u{a0}b", &"x".repeat(256)] {
            assert_eq!(Origin::new(name), Err(NoteError::BadName));
        }
    }
}
