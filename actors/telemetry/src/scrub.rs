//! Keeps known secrets out of whatever leaves the process: log lines as text, exports as bytes.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError, RwLock};

use choir_messages::secret::Secret;

use crate::limits::{SECRET_BYTES, SECRETS};

/// What a log shows instead of a secret.
pub const MASK: &str = "[secret]";

/// Times a text is searched before it is given up and masked whole. A second search finds something only where a secret
/// holds a piece of [`MASK`].
const ROUNDS: usize = 8;

/// The known secrets. Clones share them; whoever receives a secret adds it before it uses it.
#[derive(Clone, Default)]
pub struct Scrubber(Arc<RwLock<Vec<Secret>>>);

impl std::fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrubber(..)")
    }
}

impl Scrubber {
    /// One that knows no secret yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns a secret, in the forms in which texts show it: as it is, escaped as in JSON or `Debug`, and
    /// percent-encoded. False if it is shorter than [`SECRET_BYTES`], if it is what stands in a secret's place (a part of
    /// [`MASK`], or nothing but asterisks), or if there are [`SECRETS`] forms already: it is then not looked for.
    #[must_use]
    pub fn add(&self, secret: &Secret) -> bool {
        learn(&mut self.0.write().unwrap_or_else(PoisonError::into_inner), secret)
    }

    /// Learns these secrets and forgets all others, in one step. Returns how many are not looked for.
    pub fn replace<'a>(&self, secrets: impl IntoIterator<Item = &'a Secret>) -> usize {
        let mut known = Vec::new();
        let refused = secrets.into_iter().filter(|secret| !learn(&mut known, secret)).count();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = known;
        refused
    }

    /// The text with every known secret replaced by [`MASK`].
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut out = Cow::Borrowed(text);
        // A mask and what stands beside it may together read as another secret; so what was masked is looked at again.
        for _ in 0..ROUNDS {
            let mut found = false;
            for secret in known.iter() {
                if out.contains(secret.expose()) {
                    out = Cow::Owned(out.replace(secret.expose(), MASK));
                    found = true;
                }
            }
            if !found {
                return out;
            }
        }
        Cow::Borrowed(MASK)
    }

    /// Overwrites every known secret with as many asterisks: encoded messages keep their length. Returns whether there
    /// was one.
    pub fn bytes(&self, bytes: &mut [u8]) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = false;
        // Asterisks and what stands beside them may read as another secret. Each round overwrites a byte that was none,
        // so there is a last one.
        while overwrite(&known, bytes) {
            found = true;
        }
        found
    }

    /// Whether these bytes hold a known secret.
    #[must_use]
    pub fn finds_in(&self, bytes: &[u8]) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().any(|secret| position(bytes, secret.expose().as_bytes()).is_some())
    }
}

/// One look for each secret; whether there was one.
fn overwrite(known: &[Secret], bytes: &mut [u8]) -> bool {
    let mut found = false;
    for secret in known {
        let needle = secret.expose().as_bytes();
        let mut from = 0;
        while let Some(at) = bytes.get(from..).and_then(|rest| position(rest, needle)) {
            let (start, end) = (from + at, from + at + needle.len());
            bytes[start..end].fill(b'*');
            from = end;
            found = true;
        }
    }
    found
}

fn learn(known: &mut Vec<Secret>, secret: &Secret) -> bool {
    let text = secret.expose();
    if text.len() < SECRET_BYTES || MASK.contains(text) || text.bytes().all(|byte| byte == b'*') {
        return false;
    }
    let json = serde_json::to_string(text).unwrap_or_default();
    let debug = format!("{text:?}");
    let inner =
        |quoted: &str| quoted.strip_prefix('"').and_then(|q| q.strip_suffix('"')).unwrap_or(text).to_owned();
    for form in [text.to_owned(), inner(&json), inner(&debug), percent_encoded(text)] {
        if known.iter().any(|k| k.expose() == form) {
            continue;
        }
        if known.len() >= SECRETS {
            return false;
        }
        known.push(Secret::new(form));
    }
    // Longest first, so that a secret that contains another one is masked whole.
    known.sort_by_key(|k| std::cmp::Reverse(k.expose().len()));
    true
}

fn position(hay: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    loop {
        from += hay.get(from..)?.iter().position(|b| *b == first)?;
        if hay.get(from..)?.starts_with(needle) {
            return Some(from);
        }
        from += 1;
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn knowing(secrets: &[&str]) -> Scrubber {
        let scrubber = Scrubber::new();
        for secret in secrets {
            assert!(scrubber.add(&Secret::new((*secret).to_owned())));
        }
        scrubber
    }

    #[test]
    fn a_secret_inside_another_does_not_leave_a_rest() {
        let scrubber = knowing(&["abcdef", "abcdef-longer"]);
        assert_eq!(scrubber.text("x abcdef-longer y abcdef z"), "x [secret] y [secret] z");
    }

    #[test]
    fn escaped_and_encoded_forms_are_found_too() {
        let scrubber = knowing(&["pa\"ss\\wo rd/é"]);
        for shown in [
            format!("{:?}", "pa\"ss\\wo rd/é"),
            serde_json::to_string("pa\"ss\\wo rd/é").unwrap(),
            "https://x/?k=pa%22ss%5Cwo%20rd%2F%C3%A9".to_owned(),
        ] {
            assert!(scrubber.text(&shown).contains(MASK), "{shown}");
        }
    }

    #[test]
    fn replacing_the_secrets_forgets_the_old_ones() {
        let scrubber = knowing(&["old-secret"]);
        let new = [Secret::new("new-secret".into()), Secret::new("tiny".into())];
        assert_eq!(scrubber.replace(&new), 1);
        assert_eq!(scrubber.text("old-secret new-secret"), "old-secret [secret]");
    }

    #[test]
    fn a_mask_does_not_complete_another_secret() {
        let scrubber = knowing(&["abcdef", "[secret]zzzz", "]yyyyy"]);
        for text in ["abcdefzzzz", "abcdefyyyyy", "abcdefyyyyyyyyyy"] {
            let shown = scrubber.text(text);
            assert!(!scrubber.finds_in(shown.as_bytes()), "{shown}");
        }
        let scrubber = knowing(&["abcdef", "**gh****"]);
        let mut bytes = *b"abcdefghabcdef";
        assert!(scrubber.bytes(&mut bytes));
        assert!(!scrubber.finds_in(&bytes));
    }

    #[test]
    fn what_stands_in_a_secrets_place_cannot_be_one() {
        for text in ["secret", "[secret]", "******"] {
            assert!(!Scrubber::new().add(&Secret::new(text.into())), "{text}");
        }
    }

    #[test]
    fn a_short_secret_is_not_looked_for() {
        let scrubber = Scrubber::new();
        assert!(!scrubber.add(&Secret::new("the".into())));
        assert_eq!(scrubber.text("the text"), "the text");
    }

    proptest! {
        #[test]
        fn no_known_secret_survives_in_text_or_bytes(
            secrets in proptest::collection::vec("[a-c]{6,10}", 1..5),
            parts in proptest::collection::vec("[a-d]{0,20}", 0..6),
        ) {
            let known: Vec<&str> = secrets.iter().map(String::as_str).collect();
            let scrubber = knowing(&known);
            let mut text = parts.join(" ");
            for secret in &secrets {
                text.push_str(secret);
                text.push_str(" and ");
            }
            let shown = scrubber.text(&text).into_owned();
            let mut bytes = text.clone().into_bytes();
            scrubber.bytes(&mut bytes);
            for secret in &secrets {
                prop_assert!(!shown.contains(secret.as_str()), "{shown}");
            }
            prop_assert!(!scrubber.finds_in(&bytes));
            prop_assert_eq!(bytes.len(), text.len());
        }
    }
}
