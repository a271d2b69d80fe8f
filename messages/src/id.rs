//! Identifiers. Everything Choir names by itself is a ULID (128 bits, sorts by time) in its own type, so that a
//! message id can never be passed for an invocation id. What an operator names (agents, core jobs) is a checked name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use ulid::Ulid;

/// Why a text is not the identifier it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not 26 characters of Crockford base 32.
    #[error("{0:?} is not a ULID (26 characters, 0-9 and A-Z without I, L, O, U)")]
    NotUlid(String),
    /// Not a name.
    #[error(
        "{0:?} is not a name (1 to 63 characters: a-z, 0-9, '-' and '_', starting with a letter or digit)"
    )]
    NotName(String),
}

/// Keeps error texts short when the offending text came from a stranger.
fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

macro_rules! ulid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Ulid);

        impl $name {
            /// A fresh id: the current wall clock in milliseconds and 80 random bits.
            #[must_use]
            pub fn fresh() -> Self {
                let mut random = [0u8; 16];
                // The system's generator fails only before the kernel is seeded; the id is then still unique by time.
                let _ = getrandom::fill(&mut random);
                Self(Ulid::from_parts(crate::time::Timestamp::now().millis(), u128::from_be_bytes(random)))
            }

            /// The id with these 128 bits; for tests and for ids derived from a hash.
            #[must_use]
            pub const fn from_bits(bits: u128) -> Self {
                Self(Ulid(bits))
            }

            /// The 128 bits.
            #[must_use]
            pub const fn bits(self) -> u128 {
                self.0.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Ulid::from_string(text).map(Self).map_err(|_| IdError::NotUlid(excerpt(text)))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

ulid_id!(
    /// One life of one agent's conversation; survives restarts of every process (`choir §6.4`).
    SessionId
);
ulid_id!(
    /// One grant of a session to one sandbox; a restart gets a new one (`choir §12.4`).
    LeaseId
);
ulid_id!(
    /// One message of a user. Chosen by whoever received it first, so that a repeat is recognised.
    MessageId
);
ulid_id!(
    /// One call of a model.
    ModelCallId
);
ulid_id!(
    /// One call of a tool: the key by which a repeated side effect is recognised (`choir §13.3`).
    InvocationId
);
ulid_id!(
    /// One request over the link or the control socket (`choir §12.3`).
    RequestId
);
ulid_id!(
    /// One message on its way to a user.
    OutboundId
);
ulid_id!(
    /// One request for a person's approval (`choir §8.10`).
    ApprovalId
);

macro_rules! name_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                if is_name(text) { Ok(Self(text.into())) } else { Err(IdError::NotName(excerpt(text))) }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

name_id!(
    /// An agent, as config.json names it.
    AgentId
);
name_id!(
    /// A core job, as edge or the user names it (`choir §7.3`).
    JobName
);

/// Whether a text is a name: 1 to 63 of `a-z 0-9 - _`, starting with a letter or digit. Names become schema, file and
/// socket names, which is why they are this narrow.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes[0] != b'-'
        && bytes[0] != b'_'
        && bytes.iter().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_what_it_prints() {
        let id = MessageId::fresh();
        assert_eq!(id.to_string().parse::<MessageId>(), Ok(id));
        assert_eq!(serde_json::from_str::<MessageId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
    }

    #[test]
    fn fresh_ids_differ() {
        assert_ne!(MessageId::fresh(), MessageId::fresh());
    }

    #[test]
    fn a_text_that_is_no_id_is_quoted_on_one_line() {
        let error = "a\n\u{1b}[2J".parse::<AgentId>().unwrap_err().to_string();
        assert!(error.starts_with("\"a\\n\\u{1b}[2J\" is not a name"), "{error}");
        assert!(!"\r".parse::<MessageId>().unwrap_err().to_string().contains(char::is_control));
    }

    #[test]
    fn a_name_is_narrow() {
        for good in ["a", "agent-1", "9lives", "a_b"] {
            assert!(good.parse::<AgentId>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a b", "a/b", "../x", "é", &"a".repeat(64)] {
            assert!(bad.parse::<AgentId>().is_err(), "{bad}");
        }
    }
}
