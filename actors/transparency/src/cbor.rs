//! One scan over foreign CBOR before it is decoded. Only the deterministic encoding passes (RFC 8949 §4.2.1): definite
//! lengths, shortest heads, map keys in order and once each; and no more depth or items than our documents have. Of
//! such bytes no two encodings of one value exist, so a changed byte is a changed value, and the decoder behind
//! neither recurses deep nor allocates more than the bytes.

use coset::cbor::value::Value;

use crate::limits::{MAX_CBOR_DEPTH, MAX_CBOR_ITEMS};

/// The bytes are not CBOR of the kind read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not deterministic CBOR within bounds: {0}")]
pub struct CborError(&'static str);

/// The tag of a COSE_Sign1, the only tag that our documents have.
const COSE_SIGN1: u64 = 18;

/// Decodes one document of exactly these bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<Value, CborError> {
    let mut scan = Scan { bytes, at: 0, items: 0 };
    scan.item(0)?;
    if scan.at != bytes.len() {
        return Err(CborError("bytes after the end"));
    }
    coset::cbor::de::from_reader(bytes).map_err(|_| CborError("not decodable"))
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    items: usize,
}

impl<'a> Scan<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], CborError> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        let taken = end.and_then(|end| self.bytes.get(self.at..end)).ok_or(CborError("cut short"))?;
        self.at += taken.len();
        Ok(taken)
    }

    /// A head: major type and argument, in the shortest form.
    fn head(&mut self) -> Result<(u8, u64), CborError> {
        let first = self.take(1)?.first().copied().unwrap_or_default();
        let (major, short) = (first >> 5, first & 31);
        let argument = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| (sum << 8) | u64::from(*byte));
        let (argument, least) = match short {
            0..=23 => (u64::from(short), 0),
            24 => (argument(self.take(1)?), 24),
            25 => (argument(self.take(2)?), 1 << 8),
            26 => (argument(self.take(4)?), 1 << 16),
            27 => (argument(self.take(8)?), 1 << 32),
            _ => return Err(CborError("an indefinite length")),
        };
        if argument < least { Err(CborError("a head longer than needed")) } else { Ok((major, argument)) }
    }

    fn item(&mut self, depth: usize) -> Result<(), CborError> {
        self.items += 1;
        if depth > MAX_CBOR_DEPTH || self.items > MAX_CBOR_ITEMS {
            return Err(CborError("too deep or too many items"));
        }
        match self.head()? {
            (0 | 1, _) => Ok(()),
            (2, length) => self.take(length).map(|_| ()),
            (3, length) => match std::str::from_utf8(self.take(length)?) {
                Ok(_) => Ok(()),
                Err(_) => Err(CborError("text that is not UTF-8")),
            },
            (4, count) => (0..count).try_for_each(|_| self.item(depth + 1)),
            (5, count) => self.map(count, depth),
            (6, COSE_SIGN1) if depth == 0 => self.item(depth + 1),
            (7, 22) => Ok(()),
            _ => Err(CborError("a tag, float or simple value that has no place here")),
        }
    }

    fn map(&mut self, count: u64, depth: usize) -> Result<(), CborError> {
        let mut before: &[u8] = &[];
        for _ in 0..count {
            let start = self.at;
            let key = self.bytes.get(start).map(|first| first >> 5);
            if !matches!(key, Some(0 | 1 | 3)) {
                return Err(CborError("a map key that is neither integer nor text"));
            }
            self.item(depth + 1)?;
            let key = self.bytes.get(start..self.at).unwrap_or_default();
            if key <= before {
                return Err(CborError("map keys out of order"));
            }
            before = key;
            self.item(depth + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_deterministic_encoding_passes() {
        for (text, good) in [
            ("00", true),
            ("17", true),
            ("1818", true),
            ("1817", false),
            ("190100", true),
            ("1900ff", false),
            ("1a00010000", true),
            ("1b0000000100000000", true),
            ("1b00000000ffffffff", false),
            ("a201000300", true),
            ("a203000100", false),
            ("a201000100", false),
            ("a140f6", false),
            ("f6", true),
            ("f5", false),
            ("f90000", false),
            ("9fff", false),
            ("5fff", false),
            ("61ff", false),
            ("d2f6", true),
            ("81d2f6", false),
            ("d1f6", false),
            ("0000", false),
            ("", false),
            ("5b7fffffffffffffff00", false),
            ("9b7fffffffffffffff00", false),
            ("818181818181f6", true),
            ("81818181818181f6", false),
        ] {
            assert_eq!(decode(&hex::decode(text).unwrap()).is_ok(), good, "{text}");
        }
    }

    #[test]
    fn a_crowd_of_items_is_refused() {
        let mut bytes = vec![0x99, 0x02, 0x00];
        bytes.extend([0; 512]);
        assert!(decode(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = decode(&bytes) {
                let mut again = Vec::new();
                coset::cbor::ser::into_writer(&value, &mut again).unwrap();
                prop_assert_eq!(again, bytes, "what passes is the only encoding of its value");
            }
        }
    }
}
