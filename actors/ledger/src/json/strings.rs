//! The part of the parser that reads strings: escapes, surrogate pairs, and surrogates that stand alone.

use super::Text;
use super::parse::{JsonError, Parser};
use super::text::plain_run;
use std::borrow::Cow;

impl<'a> Parser<'a> {
    /// Reads the string that begins here.
    pub(super) fn string(&mut self) -> Result<Text<'a>, JsonError> {
        self.at += 1;
        let start = self.at;
        let end = self.plain_run();
        if self.peek() == Some(b'"') {
            self.at += 1;
            return Ok(Text::Str(Cow::Borrowed(self.slice(start, end))));
        }
        let mut out = Builder::Str(self.slice(start, end).to_owned());
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(match out {
                        Builder::Str(text) => Text::Str(Cow::Owned(text)),
                        Builder::Units(units) => {
                            self.flaws.lone_surrogate = true;
                            Text::Broken(units)
                        }
                    });
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape(&mut out)?;
                }
                Some(_) => return Err(self.error("a control character stands in a string unescaped")),
                None => return Err(self.error("a string does not end")),
            }
            let from = self.at;
            let to = self.plain_run();
            out.push_str(self.slice(from, to));
        }
    }

    /// Moves to the next quote, backslash, control character or the end, and says where that is.
    fn plain_run(&mut self) -> usize {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        self.at += plain_run(rest);
        self.at
    }

    fn escape(&mut self, out: &mut Builder) -> Result<(), JsonError> {
        let escaped = self.peek().ok_or_else(|| self.error("a string does not end"))?;
        let plain = match escaped {
            b'"' | b'\\' | b'/' => char::from(escaped),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode(out);
            }
            _ => return Err(self.error("no such escape")),
        };
        self.at += 1;
        out.push(plain);
        Ok(())
    }

    fn unicode(&mut self, out: &mut Builder) -> Result<(), JsonError> {
        let first = self.hex4()?;
        if (0xd800..0xdc00).contains(&first) && self.bytes.get(self.at..self.at + 2) == Some(b"\\u") {
            let back = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let pair = char::decode_utf16([first, second]).next();
                out.push(pair.and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER));
                return Ok(());
            }
            // No pair: the second escape is read again on its own.
            self.at = back;
        }
        match char::from_u32(u32::from(first)) {
            Some(character) => out.push(character),
            None => out.push_lone(first),
        }
        Ok(())
    }

    fn hex4(&mut self) -> Result<u16, JsonError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|b| char::from(b).to_digit(16));
            let digit = digit.ok_or_else(|| self.error("expected four hex digits"))?;
            unit = unit << 4 | digit;
            self.at += 1;
        }
        Ok(u16::try_from(unit).unwrap_or_default())
    }
}

/// A string under construction; becomes code units at its first lone surrogate.
enum Builder {
    Str(String),
    Units(Vec<u16>),
}

impl Builder {
    fn push(&mut self, character: char) {
        match self {
            Self::Str(text) => text.push(character),
            Self::Units(units) => units.extend_from_slice(character.encode_utf16(&mut [0; 2])),
        }
    }

    fn push_str(&mut self, more: &str) {
        match self {
            Self::Str(text) => text.push_str(more),
            Self::Units(units) => units.extend(more.encode_utf16()),
        }
    }

    fn push_lone(&mut self, surrogate: u16) {
        match self {
            Self::Str(text) => {
                let mut units: Vec<u16> = text.encode_utf16().collect();
                units.push(surrogate);
                *self = Self::Units(units);
            }
            Self::Units(units) => units.push(surrogate),
        }
    }
}
