//! A JSON reader for one call. It differs from a general one where CHAP does: a lone surrogate, a number beyond every
//! float and nesting beyond the limit are *read* and reported, so that they are refused with their own code and the
//! call's own id, and not as bytes that are no JSON. It never recurses, so no nesting harms it. Of a key that is there
//! twice the last counts (digest §3.4).

use serde_json::{Map, Number, Value};

use crate::limits::NESTING;

/// The bytes are not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not JSON at byte {0}")]
pub(crate) struct NotJson(usize);

/// What was read, with what cannot be carried further.
#[derive(Debug, PartialEq)]
pub(crate) struct Parsed {
    /// The value. What is too deep, and what has no value, is null in it.
    pub(crate) value: Value,
    /// Something nests deeper than [`NESTING`].
    pub(crate) too_deep: bool,
    /// A string holds half a surrogate pair.
    pub(crate) lone_surrogate: bool,
    /// A number is beyond every float.
    pub(crate) not_finite: bool,
}

/// An open array or object. Below the limit only its kind is kept.
enum Frame {
    Array(Vec<Value>),
    Object(Map<String, Value>, String),
    DeepArray,
    DeepObject,
}

/// Reads one JSON text.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, NotJson> {
    let text = std::str::from_utf8(bytes).map_err(|e| NotJson(e.valid_up_to()))?;
    let mut reader = Reader {
        text,
        bytes,
        at: 0,
        parsed: Parsed { value: Value::Null, too_deep: false, lone_surrogate: false, not_finite: false },
    };
    reader.read()?;
    Ok(reader.parsed)
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    parsed: Parsed,
}

impl Reader<'_> {
    fn fail<T>(&self) -> Result<T, NotJson> {
        Err(NotJson(self.at))
    }

    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let there = self.bytes.get(self.at) == Some(&byte);
        self.at += usize::from(there);
        there
    }

    fn read(&mut self) -> Result<(), NotJson> {
        let mut stack: Vec<Frame> = Vec::new();
        loop {
            // A value begins here.
            let deep = stack.len() >= NESTING;
            self.parsed.too_deep |= deep;
            self.space();
            let mut value = match self.bytes.get(self.at) {
                Some(b'[') => {
                    self.at += 1;
                    if self.take(b']') {
                        Value::Array(Vec::new())
                    } else {
                        stack.push(if deep { Frame::DeepArray } else { Frame::Array(Vec::new()) });
                        continue;
                    }
                }
                Some(b'{') => {
                    self.at += 1;
                    if self.take(b'}') {
                        Value::Object(Map::new())
                    } else {
                        let key = self.key()?;
                        stack.push(if deep { Frame::DeepObject } else { Frame::Object(Map::new(), key) });
                        continue;
                    }
                }
                Some(b'"') => Value::String(self.string()?),
                Some(b't') => self.word("true", Value::Bool(true))?,
                Some(b'f') => self.word("false", Value::Bool(false))?,
                Some(b'n') => self.word("null", Value::Null)?,
                _ => self.number()?,
            };
            // It has ended: it goes into what holds it, which may end with it.
            loop {
                let Some(frame) = stack.last_mut() else {
                    self.space();
                    if self.at != self.bytes.len() {
                        return self.fail();
                    }
                    self.parsed.value = value;
                    return Ok(());
                };
                let closing = match frame {
                    Frame::Array(items) => {
                        items.push(value);
                        b']'
                    }
                    Frame::DeepArray => b']',
                    Frame::Object(map, key) => {
                        map.insert(std::mem::take(key), value);
                        b'}'
                    }
                    Frame::DeepObject => b'}',
                };
                if self.take(b',') {
                    if closing == b'}' {
                        let next = self.key()?;
                        if let Some(Frame::Object(_, key)) = stack.last_mut() {
                            *key = next;
                        }
                    }
                    break;
                }
                if !self.take(closing) {
                    return self.fail();
                }
                value = match stack.pop() {
                    Some(Frame::Array(items)) => Value::Array(items),
                    Some(Frame::Object(map, _)) => Value::Object(map),
                    Some(Frame::DeepArray | Frame::DeepObject) | None => Value::Null,
                };
            }
        }
    }

    fn key(&mut self) -> Result<String, NotJson> {
        self.space();
        if self.bytes.get(self.at) != Some(&b'"') {
            return self.fail();
        }
        let key = self.string()?;
        if self.take(b':') { Ok(key) } else { self.fail() }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, NotJson> {
        if self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(word.as_bytes())) {
            self.at += word.len();
            Ok(value)
        } else {
            self.fail()
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Value, NotJson> {
        let start = self.at;
        self.at += usize::from(self.bytes.get(self.at) == Some(&b'-'));
        let first = self.at;
        let whole = self.digits();
        if whole == 0 || (whole > 1 && self.bytes.get(first) == Some(&b'0')) {
            return self.fail();
        }
        let mut integer = true;
        if self.bytes.get(self.at) == Some(&b'.') {
            integer = false;
            self.at += 1;
            if self.digits() == 0 {
                return self.fail();
            }
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            integer = false;
            self.at += 1;
            self.at += usize::from(matches!(self.bytes.get(self.at), Some(b'+' | b'-')));
            if self.digits() == 0 {
                return self.fail();
            }
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        if integer {
            if let Ok(n) = text.parse::<u64>() {
                return Ok(Value::from(n));
            }
            if let Ok(n) = text.parse::<i64>() {
                return Ok(Value::from(n));
            }
        }
        match text.parse::<f64>().ok().and_then(Number::from_f64) {
            Some(n) => Ok(Value::Number(n)),
            None => {
                self.parsed.not_finite = true;
                Ok(Value::Null)
            }
        }
    }

    fn string(&mut self) -> Result<String, NotJson> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let start = self.at;
            while self.bytes.get(self.at).is_some_and(|b| *b != b'"' && *b != b'\\' && *b >= 0x20) {
                self.at += 1;
            }
            out.push_str(self.text.get(start..self.at).unwrap_or_default());
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    let escape = self.bytes.get(self.at).copied();
                    self.at += 1;
                    out.push(match escape {
                        Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
                        Some(b'b') => '\u{8}',
                        Some(b'f') => '\u{c}',
                        Some(b'n') => '\n',
                        Some(b'r') => '\r',
                        Some(b't') => '\t',
                        Some(b'u') => self.unicode()?,
                        _ => return self.fail(),
                    });
                }
                _ => return self.fail(),
            }
        }
    }

    fn hex4(&mut self) -> Result<u32, NotJson> {
        let digits = self.bytes.get(self.at..self.at + 4).ok_or(NotJson(self.at))?;
        let mut unit = 0;
        for digit in digits {
            unit = unit * 16 + char::from(*digit).to_digit(16).ok_or(NotJson(self.at))?;
        }
        self.at += 4;
        Ok(unit)
    }

    fn unicode(&mut self) -> Result<char, NotJson> {
        let unit = self.hex4()?;
        if (0xD800..0xDC00).contains(&unit) && self.bytes.get(self.at..self.at + 2) == Some(br"\u") {
            let back = self.at;
            self.at += 2;
            let low = self.hex4()?;
            if (0xDC00..0xE000).contains(&low) {
                let code = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::from_u32(unit).unwrap_or_else(|| {
            self.parsed.lone_surrogate = true;
            char::REPLACEMENT_CHARACTER
        }))
    }
}

/// Whether a value nests deeper than [`NESTING`], counted from `level` for the value itself.
pub(crate) fn too_deep(value: &Value, level: usize) -> bool {
    level > NESTING
        || match value {
            Value::Array(items) => items.iter().any(|v| too_deep(v, level + 1)),
            Value::Object(map) => map.values().any(|v| too_deep(v, level + 1)),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nested(levels: usize) -> Vec<u8> {
        let mut text = "[".repeat(levels);
        text.push_str(&"]".repeat(levels));
        text.into_bytes()
    }

    #[test]
    fn the_sixty_fifth_level_is_reported_and_a_million_levels_do_no_harm() {
        assert!(!parse(&nested(64)).unwrap().too_deep);
        assert!(parse(&nested(65)).unwrap().too_deep);
        assert!(parse(&nested(1_000_000)).unwrap().too_deep);
        assert!(parse(format!("{}1{}", "[".repeat(64), "]".repeat(64)).as_bytes()).unwrap().too_deep);
        let mut object = "{\"a\":".repeat(1_000_000);
        object.push('1');
        object.push_str(&"}".repeat(1_000_000));
        assert!(parse(object.as_bytes()).unwrap().too_deep);
    }

    #[test]
    fn what_has_no_canonical_form_is_read_and_reported() {
        let lone = parse(br#"{"id":1,"a":"\ud800"}"#).unwrap();
        assert!(lone.lone_surrogate && lone.value["id"] == 1);
        assert!(parse(br#""\udc00\ud800""#).unwrap().lone_surrogate);
        assert!(!parse(br#""\ud83d\ude00""#).unwrap().lone_surrogate);
        assert!(parse(b"1e400").unwrap().not_finite);
    }

    #[test]
    fn of_a_key_that_is_there_twice_the_last_counts() {
        assert_eq!(parse(br#"{"a":1,"a":2}"#).unwrap().value, serde_json::json!({"a": 2}));
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for bad in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "-",
            "1.",
            "1e",
            "+1",
            "nul",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "[1] 2",
            "NaN",
            "{\"a\" 1}",
            "[1 2]",
            "\u{feff}1",
            ".5",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse(b"\"\xff\"").is_err());
    }

    proptest! {
        /// The general reader is the judge wherever it takes a text at all.
        #[test]
        fn it_reads_what_the_general_reader_reads(text in r#"[\[\]{}",:0-9a-z\\.eEu+\- \n]{0,40}"#) {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                prop_assert_eq!(parse(text.as_bytes()).unwrap().value, value);
            } else if let Ok(read) = parse(text.as_bytes()) {
                prop_assert!(read.lone_surrogate || read.not_finite || read.too_deep, "{}", text);
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
