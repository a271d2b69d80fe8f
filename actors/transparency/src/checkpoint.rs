//! Checkpoints (C2SP tlog-checkpoint): a tree head as a signed note of three lines, the log's name, the size in
//! decimal, and the root in base64.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use choir_messages::chain::Digest;

use crate::limits::MAX_TREE_SIZE;
use crate::note::{LogKey, NoteError, sign_note, verify_note};
use crate::receipt::LogSigner;
use crate::tree::TreeHead;

/// The signed checkpoint of this tree head; `more` are extension lines, signed with it. No line may be empty.
pub fn sign_checkpoint(log: &LogSigner<'_>, head: &TreeHead, more: &[String]) -> Result<String, NoteError> {
    let root = STANDARD.encode(head.root.bytes());
    let mut text = format!("{}\n{}\n{root}\n", log.origin.as_str(), head.size);
    for line in more {
        if line.is_empty() || line.contains('\n') {
            return Err(NoteError::NotACheckpoint("an extension is one line that is not empty"));
        }
        text.push_str(line);
        text.push('\n');
    }
    sign_note(&text, log.origin, log.key)
}

/// The tree head of a checkpoint that this log signed, and its extension lines.
pub fn verify_checkpoint<'a>(
    checkpoint: &'a str,
    log: &LogKey,
) -> Result<(TreeHead, Vec<&'a str>), NoteError> {
    let text = verify_note(checkpoint, log)?;
    let mut lines = text.split('\n');
    if lines.next() != Some(log.origin.as_str()) {
        return Err(NoteError::NotACheckpoint("its first line is another log's name"));
    }
    let size = lines.next().filter(|line| *line == "0" || !line.starts_with(['0', '+']));
    let size = size.and_then(|line| line.parse().ok()).filter(|size| *size <= MAX_TREE_SIZE);
    let Some(size) = size else {
        return Err(NoteError::NotACheckpoint("its second line is not a tree size"));
    };
    let root = lines.next().and_then(|line| STANDARD.decode(line).ok()).and_then(|root| root.try_into().ok());
    let Some(root) = root else {
        return Err(NoteError::NotACheckpoint("its third line is not a root"));
    };
    let more = lines.filter(|line| !line.is_empty()).collect();
    Ok((TreeHead { size, root: Digest::from_bytes(root) }, more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::Origin;
    use choir_messages::sign::SigningKey;
    use proptest::prelude::*;

    fn log() -> (Origin, SigningKey) {
        (Origin::new("coordinator.example/evidence").unwrap(), SigningKey::from_seed(&[3; 32]))
    }

    fn signed(head: &TreeHead) -> (String, LogKey) {
        let (origin, key) = log();
        let text =
            sign_checkpoint(&LogSigner { origin: &origin, key: &key }, head, &["chain 7 x".to_owned()])
                .unwrap();
        (text, LogKey { origin, key: key.public() })
    }

    #[test]
    fn a_checkpoint_tells_size_and_root() {
        let head = TreeHead { size: 20, root: Digest::of(b"root") };
        let (text, key) = signed(&head);
        assert!(text.starts_with("coordinator.example/evidence\n20\n"));
        assert_eq!(verify_checkpoint(&text, &key), Ok((head, vec!["chain 7 x"])));
        let (origin, key) = log();
        for odd in ["", "a\nb"] {
            let signer = LogSigner { origin: &origin, key: &key };
            assert!(sign_checkpoint(&signer, &head, &[odd.to_owned()]).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn no_changed_byte_of_a_checkpoint_passes() {
        let (text, log) = signed(&TreeHead { size: 20, root: Digest::of(b"root") });
        for at in 0..text.len() {
            let bit = at % 7;
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert!(verify_checkpoint(&changed, &log).is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn another_logs_checkpoint_is_refused() {
        let (text, log) = signed(&TreeHead { size: 0, root: Digest::of(b"") });
        let other = LogKey { origin: Origin::new("other.example").unwrap(), key: log.key };
        assert_eq!(verify_checkpoint(&text, &other), Err(NoteError::Unsigned));
    }

    #[test]
    fn a_signed_note_that_is_no_checkpoint_is_refused() {
        let (origin, key) = log();
        let name = origin.as_str();
        let log = LogKey { origin: origin.clone(), key: key.public() };
        for text in [
            "other\n1\nAAAA\n".to_owned(),
            format!("{name}\n01\n{}\n", STANDARD.encode([0; 32])),
            format!("{name}\n+1\n{}\n", STANDARD.encode([0; 32])),
            format!("{name}\n9007199254740992\n{}\n", STANDARD.encode([0; 32])),
            format!("{name}\n1\n{}\n", STANDARD.encode([0; 31])),
            format!("{name}\n1\n"),
        ] {
            let note = sign_note(&text, &origin, &key).unwrap();
            assert!(matches!(verify_checkpoint(&note, &log), Err(NoteError::NotACheckpoint(_))), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_judged_without_a_panic(text in "\\PC*(\n\\PC*){0,4}\n\n\u{2014} \\PC*\n?") {
            let (origin, key) = log();
            let log = LogKey { origin, key: key.public() };
            prop_assert!(verify_checkpoint(&text, &log).is_err());
        }
    }
}
