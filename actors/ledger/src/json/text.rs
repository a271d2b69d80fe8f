//! A JSON string: nearly always Unicode text, sometimes (JSON allows it) with lone surrogates.

use std::borrow::Cow;

/// The content of a JSON string or the name of a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Text<'a> {
    /// Unicode text.
    Str(Cow<'a, str>),
    /// UTF-16 code units with at least one lone surrogate: no text, but JavaScript carries it.
    Broken(Vec<u16>),
}

/// One piece of a [`Text::Broken`].
pub(crate) enum Piece {
    /// Unicode text between surrogates.
    Str(String),
    /// A lone surrogate.
    Lone(u16),
}

impl Text<'_> {
    /// The text, unless it holds a lone surrogate.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            Self::Broken(_) => None,
        }
    }

    /// The text with U+FFFD for lone surrogates.
    #[must_use]
    pub fn to_str_lossy(&self) -> Cow<'_, str> {
        match self {
            Self::Str(text) => Cow::Borrowed(text),
            Self::Broken(units) => Cow::Owned(String::from_utf16_lossy(units)),
        }
    }

    /// The same text, owned.
    #[must_use]
    pub fn into_owned(self) -> Text<'static> {
        match self {
            Self::Str(text) => Text::Str(Cow::Owned(text.into_owned())),
            Self::Broken(units) => Text::Broken(units),
        }
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Str(text) => text.is_empty(),
            Self::Broken(units) => units.is_empty(),
        }
    }

    /// The UTF-16 code units.
    pub(crate) fn utf16(&self) -> Cow<'_, [u16]> {
        match self {
            Self::Str(text) => Cow::Owned(text.encode_utf16().collect()),
            Self::Broken(units) => Cow::Borrowed(units),
        }
    }

    /// Appends the quoted JSON form, escaped as JavaScript's `JSON.stringify` does.
    pub(crate) fn write_quoted(&self, out: &mut String) {
        out.push('"');
        match self {
            Self::Str(text) => write_escaped(text, out),
            Self::Broken(units) => {
                for piece in pieces(units) {
                    match piece {
                        Piece::Str(text) => write_escaped(&text, out),
                        Piece::Lone(unit) => write_unit(unit, out),
                    }
                }
            }
        }
        out.push('"');
    }
}

/// Splits code units at lone surrogates.
pub(crate) fn pieces(units: &[u16]) -> impl Iterator<Item = Piece> {
    let mut decoded = char::decode_utf16(units.iter().copied()).peekable();
    std::iter::from_fn(move || {
        let mut run = match decoded.next()? {
            Err(lone) => return Some(Piece::Lone(lone.unpaired_surrogate())),
            Ok(first) => String::from(first),
        };
        while let Some(Ok(next)) = decoded.next_if(Result::is_ok) {
            run.push(next);
        }
        Some(Piece::Str(run))
    })
}

/// `\u` and four lower-case hex digits.
pub(crate) fn write_unit(unit: u16, out: &mut String) {
    out.push_str("\\u");
    for shift in [12, 8, 4, 0] {
        let digit = u32::from(unit >> shift & 0xf);
        out.push(char::from_digit(digit, 16).unwrap_or('0'));
    }
}

/// How many bytes stand before the first that cannot be in a JSON string as it is: a quote, a backslash, a control
/// character. Looks at eight bytes at a time; every string of every event passes here twice.
pub(super) fn plain_run(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    /// Sets the high bit of the first byte below `n` (and perhaps of later ones).
    const fn below(word: u64, n: u64) -> u64 {
        word.wrapping_sub(ONES * n) & !word & (ONES * 0x80)
    }
    const fn equal(word: u64, byte: u8) -> u64 {
        below(word ^ (ONES * byte as u64), 1)
    }
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = below(word, 0x20) | equal(word, b'"') | equal(word, b'\\');
        if found != 0 {
            return index * 8 + (found.trailing_zeros() / 8) as usize;
        }
    }
    let special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    words.len() * 8 + rest.iter().position(special).unwrap_or(rest.len())
}

/// Appends the text with quotes, backslashes and control characters escaped.
pub(crate) fn write_escaped(text: &str, out: &mut String) {
    let mut rest = text;
    loop {
        // What ends the run is ASCII, so the cut is between characters.
        let (plain, tail) = rest.split_at(plain_run(rest.as_bytes()));
        if tail.is_empty() {
            break;
        }
        out.push_str(plain);
        let mut chars = tail.chars();
        match chars.next().unwrap_or_default() {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control => write_unit(u16::try_from(u32::from(control)).unwrap_or_default(), out),
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::plain_run;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_plain_run_ends_at_the_first_special_byte(bytes in proptest::collection::vec(prop_oneof![
            8 => any::<u8>(), 1 => Just(b'"'), 1 => Just(b'\\'), 1 => 0x1eu8..0x23,
        ], 0..40), plain in 0usize..20) {
            let bytes = [vec![b'a'; plain], bytes].concat();
            let first = bytes.iter().position(|b| *b < 0x20 || *b == b'"' || *b == b'\\');
            prop_assert_eq!(plain_run(&bytes), first.unwrap_or(bytes.len()));
        }
    }
}
