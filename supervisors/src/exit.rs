//! How an incarnation ended. Every end is a variant, because restart decisions and operators need the difference.

use crate::limits::REASON_BYTES;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How one incarnation of an actor or supervisor ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "detail", rename_all = "snake_case")]
pub enum Exit {
    /// It stopped itself because its work was done.
    Normal,
    /// Its supervisor stopped it.
    Shutdown,
    /// It was killed: by a chaos test, by a shutdown deadline, or with its supervisor. Not a normal end.
    Killed,
    /// Its code panicked.
    Panicked {
        /// The panic's text, cut to [`REASON_BYTES`].
        message: String,
        /// `file:line:column`, where known.
        location: Option<String>,
    },
    /// A handler or the factory returned an error, or a supervisor gave up.
    Failed(String),
    /// A handler made no progress within the deadline of the child spec.
    Stuck {
        /// The label of the message it was handling.
        message: String,
        /// How long it had been without progress, in milliseconds.
        for_ms: u64,
    },
}

impl Exit {
    /// Whether a transient child is left ended after this exit. OTP counts `normal` and `shutdown`, nothing else.
    #[must_use]
    pub const fn is_normal(&self) -> bool {
        matches!(self, Self::Normal | Self::Shutdown)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Normal => f.write_str("ended normally"),
            Self::Shutdown => f.write_str("was shut down"),
            Self::Killed => f.write_str("was killed"),
            Self::Panicked { message, location: Some(place) } => write!(f, "panicked at {place}: {message}"),
            Self::Panicked { message, location: None } => write!(f, "panicked: {message}"),
            Self::Failed(reason) => write!(f, "failed: {reason}"),
            Self::Stuck { message, for_ms } => write!(f, "was stuck for {for_ms} ms handling {message}"),
        }
    }
}

/// Why a handler, a factory or a start gave up: one line of text, with the sources of the error it was made from.
///
/// Made by `?` from any error, or from text with [`Failure::new`]. It is deliberately not an error itself, so that the
/// conversion can be from every error.
pub struct Failure(String);

impl Failure {
    /// A failure with this reason.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self(cut(reason.into()))
    }

    /// The reason.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.0
    }

    pub(crate) fn into_exit(self) -> Exit {
        Exit::Failed(self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({:?})", self.0)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            let more = inner.to_string();
            // Many errors already print their source; saying it twice helps nobody.
            if !text.contains(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            source = inner.source();
        }
        Self(cut(text))
    }
}

/// Cuts a text to [`REASON_BYTES`] at a character boundary.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > REASON_BYTES {
        text.truncate(text.floor_char_boundary(REASON_BYTES));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the outer part broke")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn a_failure_tells_the_error_and_its_sources() {
        let error = Outer("x".parse::<u8>().unwrap_err());
        assert_eq!(Failure::from(error).reason(), "the outer part broke: invalid digit found in string");
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let text = cut("é".repeat(REASON_BYTES));
        assert!(text.len() <= REASON_BYTES + '…'.len_utf8());
        assert!(text.ends_with('…'));
    }

    #[test]
    fn killed_and_stuck_are_not_normal() {
        assert!(Exit::Normal.is_normal() && Exit::Shutdown.is_normal());
        for exit in [
            Exit::Killed,
            Exit::Failed(String::new()),
            Exit::Stuck { message: String::new(), for_ms: 1 },
            Exit::Panicked { message: String::new(), location: None },
        ] {
            assert!(!exit.is_normal(), "{exit}");
        }
    }
}
