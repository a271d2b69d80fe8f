//! The ledger's identifiers: ULIDs in upper case, and claim ids made of them.

use std::fmt;
use std::str::FromStr;

use choir_messages::id::MessageId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The ULID alphabet: digits and capital letters without I, L, O and U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Characters of a ULID.
pub(crate) const ULID_LEN: usize = 26;

/// What stands before the ULID of a claim id.
const CLAIM_PREFIX: &str = "claim_";

/// A text is not the identifier it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not a ULID of 128 bits in capitals.
    #[error("not a ULID: 26 of 0-9 and A-Z without I, L, O and U, the first one 0-7")]
    NotUlid,
    /// Not `claim_` and a ULID.
    #[error("not a claim id: `claim_` and a ULID in capitals")]
    NotClaim,
}

/// Whether the text has the form the original's schema asks of a ULID. The first character may be beyond `7`, where the
/// number no longer fits 128 bits.
#[must_use]
pub fn is_ulid_form(text: &str) -> bool {
    text.len() == ULID_LEN && text.bytes().all(|byte| digit(byte).is_some())
}

/// Whether the text is `claim_` and [`is_ulid_form`].
#[must_use]
pub fn is_claim_form(text: &str) -> bool {
    text.strip_prefix(CLAIM_PREFIX).is_some_and(is_ulid_form)
}

const fn digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'0'..=b'9' => byte - b'0',
        b'A'..=b'H' => byte - b'A' + 10,
        b'J' | b'K' => byte - b'J' + 18,
        b'M' | b'N' => byte - b'M' + 20,
        b'P'..=b'T' => byte - b'P' + 22,
        b'V'..=b'Z' => byte - b'V' + 27,
        _ => return None,
    })
}

/// The 128 bits of a ULID, or nothing if the text is none or does not fit.
pub(crate) fn ulid_bits(text: &str) -> Option<u128> {
    if text.len() != ULID_LEN || text.as_bytes().first().is_none_or(|first| *first > b'7') {
        return None;
    }
    text.bytes().try_fold(0u128, |bits, byte| Some(bits << 5 | u128::from(digit(byte)?)))
}

fn write_ulid(bits: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = [0u8; ULID_LEN];
    for (index, place) in text.iter_mut().rev().enumerate() {
        let digit = usize::try_from(bits >> (5 * index) & 0x1f).unwrap_or_default();
        *place = ALPHABET.get(digit).copied().unwrap_or(b'0');
    }
    f.write_str(std::str::from_utf8(&text).unwrap_or_default())
}

macro_rules! ulid_text {
    ($(#[$doc:meta])* $name:ident, $prefix:expr, $error:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// A fresh id: the wall clock's milliseconds and 80 random bits.
            #[must_use]
            pub fn fresh() -> Self {
                Self(MessageId::fresh().bits())
            }

            /// The id of these milliseconds since 1970 (48 bits count) and this number (80 bits count).
            #[must_use]
            pub const fn from_parts(millis: u64, number: u128) -> Self {
                Self((millis as u128 & ((1 << 48) - 1)) << 80 | (number & ((1 << 80) - 1)))
            }

            /// The id with these 128 bits.
            #[must_use]
            pub const fn from_bits(bits: u128) -> Self {
                Self(bits)
            }

            /// The 128 bits.
            #[must_use]
            pub const fn bits(self) -> u128 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($prefix)?;
                write_ulid(self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix($prefix).and_then(ulid_bits).map(Self).ok_or($error)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
ulid_text!(
    /// A trace: one run and its ledger.
    TraceId, "", IdError::NotUlid
);
ulid_text!(
    /// An event: one line of a ledger.
    EventId, "", IdError::NotUlid
);
ulid_text!(
    /// A verification report.
    ReportId, "", IdError::NotUlid
);
ulid_text!(
    /// A claim; printed `claim_` and a ULID.
    ClaimId, CLAIM_PREFIX, IdError::NotClaim
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_capitals_of_the_alphabet_that_fit_128_bits_are_ulids() {
        assert!("7ZZZZZZZZZZZZZZZZZZZZZZZZZ".parse::<EventId>().is_ok());
        for text in [
            "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "01arz3ndektsv4rrffq69g5fav",
            "../../etc/passwd",
            "",
            "01ARZ3NDEKTSV4RRFFQ69G5FAI",
        ] {
            assert_eq!(text.parse::<TraceId>(), Err(IdError::NotUlid), "{text}");
        }
        assert!(is_ulid_form("8ZZZZZZZZZZZZZZZZZZZZZZZZZ"));
        assert_eq!("01ARZ3NDEKTSV4RRFFQ69G5FAV".parse::<ClaimId>(), Err(IdError::NotClaim));
    }

    proptest! {
        #[test]
        fn ids_print_and_read_back(bits: u128) {
            let id = ClaimId::from_bits(bits);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            let same: choir_messages::id::MessageId = EventId::from_bits(bits).to_string().parse().unwrap();
            prop_assert_eq!(same.bits(), bits);
        }
    }
}
