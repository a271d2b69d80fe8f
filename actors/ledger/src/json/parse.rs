//! The parser: RFC 8259 to the letter, one pass, recursion bounded by [`MAX_DEPTH`].

use super::{MAX_DEPTH, Object, Text, Value};
use std::collections::HashMap;

/// Objects up to this size are searched for duplicate names pair by pair, larger ones through a hash map, so that an
/// object of a million members costs no million squared.
const SMALL_OBJECT: usize = 24;

/// Integer literals of at most this many digits are exact in a double.
const EXACT_DIGITS: usize = 15;

/// What a lenient reader accepts in JSON and a careful one must not (R03).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flaws {
    /// Some object has two members of one name, compared after unescaping and NFC. Of exactly equal names the last
    /// value counted.
    pub duplicate_name: bool,
    /// Some string or name holds a lone surrogate.
    pub lone_surrogate: bool,
    /// Some number is beyond the doubles and became infinite.
    pub overflow: bool,
    /// Some integer literal changed its value when it became a double.
    pub inexact_integer: bool,
}

impl Flaws {
    /// The flaws, each as part of a sentence.
    pub fn each(&self) -> impl Iterator<Item = &'static str> {
        [
            (self.duplicate_name, "two members of one object have the same name"),
            (self.lone_surrogate, "a string holds a lone surrogate, which no UTF-8 text can carry"),
            (self.overflow, "a number is beyond the doubles"),
            (self.inexact_integer, "an integer changes its value when it is read as a double"),
        ]
        .into_iter()
        .filter_map(|(there, what)| there.then_some(what))
    }

    /// The first flaw as part of a sentence.
    #[must_use]
    pub fn first(&self) -> Option<&'static str> {
        self.each().next()
    }
}

/// What a [`JsonError`] says of a text that may be JSON, but nests too deeply to be read here.
const TOO_DEEP: &str = "nested too deeply";

/// Where and why a text is no JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not JSON at byte {at}: {what}")]
pub struct JsonError {
    /// The offset in bytes.
    pub at: usize,
    /// What was expected there.
    pub what: &'static str,
}

impl JsonError {
    /// Whether the text was given up at [`MAX_DEPTH`] and might be JSON all the same.
    #[must_use]
    pub fn is_too_deep(&self) -> bool {
        self.what == TOO_DEEP
    }
}

/// Reads one JSON value that fills the whole text, white space around it apart.
pub fn parse(text: &str) -> Result<(Value<'_>, Flaws), JsonError> {
    let mut parser = Parser { text, bytes: text.as_bytes(), at: 0, flaws: Flaws::default() };
    parser.space();
    let value = parser.value(0)?;
    parser.space();
    if parser.at < parser.bytes.len() {
        return Err(parser.error("the text goes on after its value"));
    }
    Ok((value, parser.flaws))
}

pub(super) struct Parser<'a> {
    text: &'a str,
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    pub(super) flaws: Flaws,
}

impl<'a> Parser<'a> {
    pub(super) const fn error(&self, what: &'static str) -> JsonError {
        JsonError { at: self.at, what }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn literal(&mut self, word: &'static [u8], value: Value<'a>) -> Result<Value<'a>, JsonError> {
        if self.bytes.get(self.at..self.at + word.len()) == Some(word) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(self.error("expected a value"))
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, JsonError> {
        match self.peek() {
            Some(b'"') => self.string().map(Value::String),
            Some(b'{') if depth < MAX_DEPTH => self.object(depth),
            Some(b'[') if depth < MAX_DEPTH => self.array(depth),
            Some(b'{' | b'[') => Err(self.error(TOO_DEEP)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal(b"true", Value::Bool(true)),
            Some(b'f') => self.literal(b"false", Value::Bool(false)),
            Some(b'n') => self.literal(b"null", Value::Null),
            Some(_) => Err(self.error("expected a value")),
            None => Err(self.error("the text ends where a value should be")),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value<'a>, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            self.space();
            items.push(self.value(depth + 1)?);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                _ => return Err(self.error("expected ',' or ']'")),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value<'a>, JsonError> {
        self.at += 1;
        let mut members: Vec<(Text<'a>, Value<'a>)> = Vec::new();
        let mut ascii = true;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(Object::from_members(members)));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a member's name"));
            }
            let name = self.string()?;
            ascii &= name.as_str().is_some_and(str::is_ascii);
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.error("expected ':'"));
            }
            self.at += 1;
            self.space();
            let value = self.value(depth + 1)?;
            if members.is_empty() {
                members.reserve(8);
            }
            members.push((name, value));
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(Object::from_members(self.unique(members, ascii))));
                }
                _ => return Err(self.error("expected ',' or '}'")),
            }
        }
    }

    /// Of members with equal names the first place and the last value; notes whether there were any.
    fn unique(&mut self, members: Vec<(Text<'a>, Value<'a>)>, ascii: bool) -> Vec<(Text<'a>, Value<'a>)> {
        let repeated = if members.len() <= SMALL_OBJECT {
            members
                .iter()
                .enumerate()
                .any(|(index, (name, _))| members.iter().take(index).any(|(earlier, _)| earlier == name))
        } else {
            let mut seen = std::collections::HashSet::with_capacity(members.len());
            !members.iter().all(|(name, _)| seen.insert(name))
        };
        if !ascii && !repeated {
            // Only names beyond ASCII can be equal after NFC without being equal before.
            let mut seen = std::collections::HashSet::with_capacity(members.len());
            if !members.iter().all(|(name, _)| seen.insert(crate::canon::nfc(name))) {
                self.flaws.duplicate_name = true;
            }
        }
        if !repeated {
            return members;
        }
        self.flaws.duplicate_name = true;
        let mut places: HashMap<Text<'a>, usize> = HashMap::with_capacity(members.len());
        let mut kept: Vec<(Text<'a>, Value<'a>)> = Vec::with_capacity(members.len());
        for (name, value) in members {
            match places.get(&name).and_then(|place| kept.get_mut(*place)) {
                Some((_, old)) => *old = value,
                None => {
                    places.insert(name.clone(), kept.len());
                    kept.push((name, value));
                }
            }
        }
        kept
    }

    pub(super) fn slice(&self, from: usize, to: usize) -> &'a str {
        // Cuts are at ASCII bytes, so always between characters.
        self.text.get(from..to).unwrap_or_default()
    }

    fn digits(&mut self) -> usize {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - from
    }

    fn number(&mut self) -> Result<Value<'a>, JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole_from = self.at;
        let leading_zero = self.peek() == Some(b'0');
        let whole = self.digits();
        if whole == 0 || (leading_zero && whole > 1) {
            return Err(self.error("expected a number"));
        }
        let mut integer = true;
        if self.peek() == Some(b'.') {
            integer = false;
            self.at += 1;
            if self.digits() == 0 {
                return Err(self.error("expected a digit after the point"));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            integer = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.error("expected a digit in the exponent"));
            }
        }
        let number: f64 = self.slice(start, self.at).parse().map_err(|_| self.error("expected a number"))?;
        if number.is_infinite() {
            self.flaws.overflow = true;
        } else if integer && whole > EXACT_DIGITS {
            // Exact, or the shortest digits that read back as the same double, which is how JavaScript writes it.
            let literal = self.slice(whole_from, self.at);
            let exact = format!("{:.0}", number.abs());
            let shortest = exact == literal || ryu_js::Buffer::new().format_finite(number.abs()) == literal;
            self.flaws.inexact_integer |= !shortest;
        }
        Ok(Value::Number(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flaws(text: &str) -> Flaws {
        parse(text).unwrap().1
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in [
            "",
            " ",
            "nul",
            "+1",
            "01",
            "1.",
            ".5",
            "1e",
            "--1",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "[1,]",
            "[,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{\"a\":1,}",
            "1 2",
            "\u{feff}1",
            "[",
            "{",
            "NaN",
            "Infinity",
            "[1 2]",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn nesting_past_the_bound_is_an_error_and_no_overflow() {
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(parse(&deep(MAX_DEPTH)).is_ok());
        assert!(parse(&deep(MAX_DEPTH + 1)).is_err());
        assert!(parse(&"[{\"a\":".repeat(100_000)).is_err());
    }

    #[test]
    fn flaws_are_noted_and_the_last_duplicate_counts() {
        let (value, found) = parse(r#"{"a":1,"b":2,"\u0061":3}"#).unwrap();
        assert!(found.duplicate_name);
        assert_eq!(value.to_json(), r#"{"a":3,"b":2}"#);
        assert!(flaws("{\"\u{e9}\":1,\"e\u{301}\":2}").duplicate_name);
        assert!(flaws(r#"["\ud800"]"#).lone_surrogate);
        assert!(!flaws(r#"["\ud83d\ude00"]"#).lone_surrogate);
        assert!(flaws("1e400").overflow);
        assert!(flaws("9007199254740993").inexact_integer);
        assert!(!flaws("9007199254740992").inexact_integer);
        assert!(!flaws("-100000000000000000000").inexact_integer);
        assert!(!flaws("123456789012345680000").inexact_integer);
        assert!(!flaws("123456789012345683968").inexact_integer);
        assert!(flaws("123456789012345680001").inexact_integer);
        assert_eq!(flaws(r#"{"a":[{"b":1.50},-0,1E5]}"#), Flaws::default());
    }

    #[test]
    fn large_objects_find_their_duplicates_too() {
        let names: Vec<String> = (0..100).map(|n| format!("\"k{n}\":{n}")).collect();
        assert!(!flaws(&format!("{{{}}}", names.join(","))).duplicate_name);
        let repeated = format!("{{{},\"k7\":true}}", names.join(","));
        let (value, found) = parse(&repeated).unwrap();
        assert!(found.duplicate_name);
        assert_eq!(value.get("k7"), Some(&Value::Bool(true)));
    }

    proptest! {
        #[test]
        fn any_text_is_judged_as_serde_json_judges_it(text in r#"[\[\]{}:,"\\0-9eE.\-+ a-fu\n]{0,24}"#) {
            let ours = parse(&text);
            // Two differences that are meant: lone surrogates and overflowing numbers are read and noted.
            let flawed = ours.as_ref().is_ok_and(|(_, f)| f.lone_surrogate || f.overflow);
            prop_assert_eq!(ours.is_ok() && !flawed, serde_json::from_str::<serde_json::Value>(&text).is_ok());
        }

        #[test]
        fn written_text_reads_back(text in "\\PC{0,20}", number in any::<f64>()) {
            let value = Value::object([("s", Value::str(&text)), ("n", Value::Number(number))]);
            let json = value.to_json();
            let (back, _) = parse(&json).unwrap();
            prop_assert_eq!(back.get("s").and_then(Value::as_str), Some(&*text));
            if number.is_finite() {
                prop_assert_eq!(back.get("n").and_then(Value::as_f64), Some(number));
            }
        }
    }
}
