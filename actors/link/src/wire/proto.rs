//! Just enough protobuf: varints and length-delimited fields. A cursor over borrowed bytes that never panics.

use super::Malformed;

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 2.
    Bytes(&'a [u8]),
}

/// The fields of one message, in order.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) const fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next field, `None` at the end. Wire types other than 0 and 2 do not occur in this protocol.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| Malformed)?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
                self.0 = rest;
                Value::Bytes(taken)
            }
            _ => return Err(Malformed),
        };
        Ok(Some((number, value)))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit only.
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

/// Bytes of a varint.
pub(super) const fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn put_raw(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a number.
pub(super) fn put_varint(out: &mut Vec<u8>, field: u32, value: u64) {
    put_raw(out, u64::from(field) << 3);
    put_raw(out, value);
}

/// Appends the tag and length of a field of bytes; the bytes follow.
pub(super) fn put_bytes_head(out: &mut Vec<u8>, field: u32, length: usize) {
    put_raw(out, (u64::from(field) << 3) | 2);
    put_raw(out, length as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_reads_back_and_its_length_is_foretold(value: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, 3, value);
            prop_assert_eq!(out.len(), 1 + varint_len(value));
            prop_assert_eq!(Fields::of(&out).next(), Ok(Some((3, Value::Varint(value)))));
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_refused() {
        let mut bytes = vec![0x08];
        bytes.extend_from_slice(&[0xff; 9]);
        bytes.push(0x02);
        assert_eq!(Fields::of(&bytes).next(), Err(Malformed));
        assert_eq!(Fields::of(&[0x08, 0x80]).next(), Err(Malformed));
    }
}
