//! Keeps secrets out of everything that leaves this crate: a provider may echo a key in an error, and an endpoint's
//! address may carry one in its query (`choir §14.3`).

use choir_messages::model::{ModelAnswer, ModelFailure};
use choir_messages::secret::Secret;

use crate::limits::REASON_CHARS;

/// What stands in place of a secret.
const REDACTED: &str = "[secret]";

/// Shortest secret that is looked for inside answers. A shorter one would match ordinary words, and is guessed anyway;
/// and what stands in its place would make an answer longer, beyond the bounds that it was checked against.
const SECRET_IN_ANSWER_BYTES: usize = REDACTED.len();

/// Knows the secrets of one configuration.
#[derive(Debug, Clone, Default)]
pub struct Scrubber {
    secrets: Vec<Secret>,
}

impl Scrubber {
    /// A scrubber for these secrets, as they are and as JSON escapes them (a call's arguments are JSON); empty ones are
    /// left out.
    #[must_use]
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let mut secrets: Vec<Secret> = secrets.into_iter().filter(|s| !s.expose().is_empty()).collect();
        let escaped: Vec<Secret> = secrets.iter().filter_map(escaped).collect();
        secrets.extend(escaped);
        // The longest first, so that one that contains another is not left in pieces.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        Self { secrets }
    }

    /// A provider's or transport's words made fit to show: without secrets, on one line, cut to
    /// [`REASON_CHARS`] characters. Cleaned before it is cut, so that no half of a secret stays.
    #[must_use]
    pub fn reason(&self, text: &str) -> String {
        let line = self.clean(text, 1);
        let mut line: Vec<&str> = line.split(|c: char| c.is_whitespace() || c.is_control()).collect();
        line.retain(|word| !word.is_empty());
        // Joined, the words may read as a secret that has a space in it.
        let line = self.clean(&line.join(" "), 1);
        match line.char_indices().nth(REASON_CHARS) {
            Some((at, _)) => format!("{}...", line.get(..at).unwrap_or_default()),
            None if line.is_empty() => "no reason given".to_owned(),
            None => line,
        }
    }

    /// The failure with its reason scrubbed.
    #[must_use]
    pub fn failure(&self, failure: ModelFailure) -> ModelFailure {
        match failure {
            ModelFailure::Rejected { status, reason } => {
                ModelFailure::Rejected { status, reason: self.reason(&reason) }
            }
            ModelFailure::Unreachable { reason } => {
                ModelFailure::Unreachable { reason: self.reason(&reason) }
            }
            ModelFailure::Malformed { reason } => ModelFailure::Malformed { reason: self.reason(&reason) },
            other => other,
        }
    }

    /// The answer without secrets: it goes into the log, where a key must not be even if an endpoint sends it back.
    #[must_use]
    pub fn answer(&self, mut answer: ModelAnswer) -> ModelAnswer {
        let calls = answer.calls.iter_mut();
        let texts = calls.flat_map(|call| [&mut call.provider_id, &mut call.tool, &mut call.arguments]);
        for text in texts.chain(answer.text.as_mut()).chain(Some(&mut answer.model)) {
            if self.finds(text) {
                *text = self.clean(text, SECRET_IN_ANSWER_BYTES);
            }
        }
        answer
    }

    fn finds(&self, text: &str) -> bool {
        let mut secrets = self.secrets.iter().map(Secret::expose);
        secrets.any(|secret| secret.len() >= SECRET_IN_ANSWER_BYTES && text.contains(secret))
    }

    fn clean(&self, text: &str, shortest: usize) -> String {
        self.secrets
            .iter()
            .map(Secret::expose)
            .filter(|secret| secret.len() >= shortest)
            .fold(text.to_owned(), |text, secret| text.replace(secret, REDACTED))
    }
}

/// The secret inside a JSON string, where that is another text.
fn escaped(secret: &Secret) -> Option<Secret> {
    let quoted = serde_json::to_string(secret.expose()).ok()?;
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    (inner != secret.expose()).then(|| Secret::new(inner.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::tool::ToolCall;
    use proptest::prelude::*;

    fn scrubber() -> Scrubber {
        Scrubber::new(["sk-canary-123456", "", "canary"].map(|text| Secret::new(text.to_owned())))
    }

    #[test]
    fn a_reason_is_one_short_line() {
        let reason = scrubber().reason(&format!("a\n\tb\u{0}c {}", "x".repeat(1000)));
        assert!(reason.starts_with("a b c x") && reason.ends_with("x..."), "{reason}");
        assert!(reason.chars().count() <= REASON_CHARS + 3);
        assert_eq!(scrubber().reason(" \n"), "no reason given");
    }

    #[test]
    fn an_answer_that_echoes_the_key_is_cleaned() {
        let key = "sk-canary-123456";
        let answer = scrubber().answer(ModelAnswer {
            text: Some(format!("your key is {key}, a canary")),
            calls: vec![ToolCall {
                provider_id: key.into(),
                tool: key.into(),
                arguments: format!("{{\"k\":\"{key}\"}}"),
            }],
            usage: Default::default(),
            model: key.into(),
        });
        assert!(!format!("{answer:?}").contains(key));
        assert_eq!(answer.text.unwrap(), "your key is [secret], a canary");
    }

    #[test]
    fn cleaning_never_makes_an_answer_longer() {
        let scrubber = Scrubber::new([Secret::new("8 bytes!".to_owned())]);
        let text = "8 bytes!".repeat(100);
        let answer = ModelAnswer {
            text: Some(text.clone()),
            calls: vec![],
            usage: Default::default(),
            model: "m".into(),
        };
        assert!(scrubber.answer(answer).text.unwrap().len() <= text.len());
    }

    #[test]
    fn a_key_is_found_inside_json_and_across_a_line_end() {
        let scrubber = Scrubber::new([Secret::new("sk \"can\\ary".to_owned())]);
        let arguments = serde_json::json!({ "k": "sk \"can\\ary" }).to_string();
        let call = ToolCall { provider_id: "p".into(), tool: "t".into(), arguments };
        let answer =
            ModelAnswer { text: None, calls: vec![call], usage: Default::default(), model: "m".into() };
        assert_eq!(scrubber.answer(answer).calls[0].arguments, r#"{"k":"[secret]"}"#);
        assert_eq!(scrubber.reason("bad key sk\n\t\"can\\ary"), "bad key [secret]");
    }

    proptest! {
        #[test]
        fn no_cut_leaves_a_part_of_the_key(before in "[a-z ]{250,320}", after in "[a-z ]{0,50}") {
            let reason = scrubber().reason(&format!("{before}sk-canary-123456{after}"));
            prop_assert!(!reason.contains("sk-"), "{}", reason);
        }
    }
}
