//! The original's canonical form: the one text of a value that is hashed and signed. Strings and names are in NFC,
//! numbers as JavaScript prints them, members sorted by the Unicode root collation on their names *as written*.
//!
//! That order depends on language data, which RFC 8785's order (by code unit) does not. The two agree on names of
//! lower-case letters and underscores, or of letters and digits; [`order_is_ambiguous`] finds objects where they do not
//! (R17), and whatever is written here keeps clear of them ([`check_writable`]).

use crate::json::{Object, Piece, Text, Value, pieces};
use choir_messages::chain::Digest;
use icu_collator::options::CollatorOptions;
use icu_collator::{Collator, CollatorBorrowed, CollatorPreferences};
use icu_normalizer::ComposingNormalizer;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::LazyLock;

/// Objects up to this size are sorted in place on the stack.
const SMALL_OBJECT: usize = 32;

/// The root collation at tertiary strength, nothing ignored: what JavaScript's `localeCompare` does without a language.
static ROOT: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| {
    Collator::try_new(CollatorPreferences::default(), CollatorOptions::default())
        .expect("the root collation's data is compiled in")
});

/// A value has no canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a number is beyond the doubles, so the value has no canonical form")]
pub struct NotCanonical;

/// Why a value is not written although it could be hashed: others might hash it differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// See [`NotCanonical`].
    #[error("a number is not finite; leave it out or write it as a string")]
    Number,
    /// A name or string that is not in Unicode's normal form C.
    #[error("a member's name is not in Unicode normal form C; rename the member")]
    Name,
    /// A string with a lone surrogate.
    #[error("a string holds a lone surrogate, which UTF-8 cannot carry; replace it")]
    Surrogate,
    /// Two members of one name.
    #[error("two members of one object have the same name; rename one")]
    Duplicate,
    /// See [`order_is_ambiguous`].
    #[error(
        "the members of an object sort differently in different languages; use names of lower-case letters and \
         underscores only, or of lower-case letters and digits only"
    )]
    Order,
}

/// The canonical text.
pub fn to_text(value: &Value<'_>) -> Result<String, NotCanonical> {
    let mut out = String::new();
    write(value, &mut out)?;
    Ok(out)
}

/// The SHA-256 of the canonical text.
pub fn digest(value: &Value<'_>) -> Result<Digest, NotCanonical> {
    to_text(value).map(|text| Digest::of(text.as_bytes()))
}

/// Appends the canonical text.
pub fn write(value: &Value<'_>, out: &mut String) -> Result<(), NotCanonical> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) if number.is_finite() => {
            out.push_str(ryu_js::Buffer::new().format_finite(*number));
        }
        Value::Number(_) => return Err(NotCanonical),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(item, out)?;
            }
            out.push(']');
        }
        Value::Object(object) => {
            out.push('{');
            let mut first = true;
            each_sorted(object, |name, value| {
                if !first {
                    out.push(',');
                }
                first = false;
                write_string(name, out);
                out.push(':');
                write(value, out)
            })?;
            out.push('}');
        }
    }
    Ok(())
}

/// Appends a string or name: in NFC, quoted.
pub(crate) fn write_string(text: &Text<'_>, out: &mut String) {
    match text {
        Text::Str(plain) if plain.is_ascii() => text.write_quoted(out),
        _ => nfc(text).write_quoted(out),
    }
}

/// The text in Unicode's normal form C. Lone surrogates stay where they are; they combine with nothing.
#[must_use]
pub fn nfc<'t>(text: &'t Text<'_>) -> Text<'t> {
    let normalizer = ComposingNormalizer::new_nfc();
    match text {
        Text::Str(plain) if plain.is_ascii() => Text::Str(Cow::Borrowed(plain)),
        Text::Str(plain) => Text::Str(normalizer.normalize(plain)),
        // The normalizer would replace lone surrogates, so it sees only what lies between them.
        Text::Broken(units) => {
            let mut normal = Vec::with_capacity(units.len());
            for piece in pieces(units) {
                match piece {
                    Piece::Str(run) => normal.extend(normalizer.normalize(&run).encode_utf16()),
                    Piece::Lone(unit) => normal.push(unit),
                }
            }
            Text::Broken(normal)
        }
    }
}

/// Calls `each` with the members in canonical order and stops at its first error.
pub(crate) fn each_sorted<'v, 'a, E>(
    object: &'v Object<'a>,
    mut each: impl FnMut(&'v Text<'a>, &'v Value<'a>) -> Result<(), E>,
) -> Result<(), E> {
    let members = object.members();
    let simple = kinds(object) < OTHER;
    let compare = |a: &Text<'_>, b: &Text<'_>| if simple { compare_simple(a, b) } else { collate(a, b) };
    if members.len() <= SMALL_OBJECT {
        // Insertion sort of references: stable, and no allocation for the objects events are made of.
        let mut sorted: [Option<&'v (Text<'a>, Value<'a>)>; SMALL_OBJECT] = [None; SMALL_OBJECT];
        for (index, member) in members.iter().enumerate() {
            if let Some(place) = sorted.get_mut(index) {
                *place = Some(member);
            }
            for back in (1..=index).rev() {
                let out_of_order = match sorted.get(back - 1..=back) {
                    Some([Some(before), Some(after)]) => compare(&before.0, &after.0) == Ordering::Greater,
                    _ => false,
                };
                if !out_of_order {
                    break;
                }
                sorted.swap(back - 1, back);
            }
        }
        sorted.iter().flatten().try_for_each(|(name, value)| each(name, value))
    } else {
        let mut sorted: Vec<_> = members.iter().collect();
        sorted.sort_by(|a, b| compare(&a.0, &b.0));
        sorted.into_iter().try_for_each(|(name, value)| each(name, value))
    }
}

/// The kinds of characters in a name.
const LETTER: u8 = 0;
const DIGIT: u8 = 1;
const UNDERSCORE: u8 = 2;
const OTHER: u8 = 4;

/// The kind of each byte.
const KINDS: [u8; 256] = {
    let mut kinds = [OTHER; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            b'a'..=b'z' => LETTER,
            b'0'..=b'9' => DIGIT,
            b'_' => UNDERSCORE,
            _ => OTHER,
        };
        byte += 1;
    }
    kinds
};

/// The kinds of characters that the object's names hold, together.
fn kinds(object: &Object<'_>) -> u8 {
    object.members().iter().fold(LETTER, |all, (name, _)| match name.as_str() {
        Some(text) => text.bytes().fold(all, |all, byte| all | KINDS[usize::from(byte)]),
        None => all | OTHER,
    })
}

/// Root collation of names of lower-case letters, digits and underscores: underscore before digits before letters, a prefix first.
fn compare_simple(a: &Text<'_>, b: &Text<'_>) -> Ordering {
    let key = |byte: u8| if byte == b'_' { b'/' } else { byte };
    let (a, b) = (a.as_str().unwrap_or_default(), b.as_str().unwrap_or_default());
    match a.bytes().zip(b.bytes()).find(|(x, y)| x != y) {
        Some((x, y)) => key(x).cmp(&key(y)),
        None => a.len().cmp(&b.len()),
    }
}

/// Root collation of any two names.
fn collate(a: &Text<'_>, b: &Text<'_>) -> Ordering {
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => ROOT.compare(a, b),
        _ => ROOT.compare_utf16(&a.utf16(), &b.utf16()),
    }
}

/// Whether some object in the value has members that collation and RFC 8785 put into different orders (R17).
#[must_use]
pub fn order_is_ambiguous(value: &Value<'_>) -> bool {
    match value {
        Value::Array(items) => items.iter().any(order_is_ambiguous),
        Value::Object(object) => {
            object_is_ambiguous(object) || object.members().iter().any(|(_, value)| order_is_ambiguous(value))
        }
        _ => false,
    }
}

/// [`order_is_ambiguous`] of this object alone. The names `signature_b64` and its like, where an underscore meets a digit,
/// are ambiguous only if another member's name makes them so.
pub(crate) fn object_is_ambiguous(object: &Object<'_>) -> bool {
    // Without a digit, or without an underscore, simple names sort by their bytes.
    if kinds(object) < DIGIT | UNDERSCORE {
        return false;
    }
    let mut collated: Vec<&Text<'_>> = Vec::with_capacity(object.len());
    let _ = each_sorted(object, |name, _| {
        collated.push(name);
        Ok::<(), NotCanonical>(())
    });
    let greater = |pair: &[&Text<'_>]| match pair {
        [Text::Str(a), Text::Str(b)] if a.is_ascii() && b.is_ascii() => a > b,
        [a, b] => a.utf16() > b.utf16(),
        _ => false,
    };
    collated.windows(2).any(greater)
}

/// Brings every string of the value into NFC, and refuses what other readers might hash differently.
pub fn check_writable(value: &mut Value<'_>) -> Result<(), Unwritable> {
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::Number(number) => {
            if number.is_finite() {
                Ok(())
            } else {
                Err(Unwritable::Number)
            }
        }
        Value::String(Text::Broken(_)) => Err(Unwritable::Surrogate),
        Value::String(text) => {
            let normal = match nfc(text) {
                Text::Str(Cow::Owned(normal)) => Some(normal),
                _ => None,
            };
            if let Some(normal) = normal {
                *text = Text::Str(Cow::Owned(normal));
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(check_writable),
        Value::Object(object) => {
            let mut seen = std::collections::HashSet::with_capacity(object.len());
            for (name, _) in object.members() {
                if nfc(name) != *name || name.as_str().is_none() {
                    return Err(Unwritable::Name);
                }
                if !seen.insert(name) {
                    return Err(Unwritable::Duplicate);
                }
            }
            if object_is_ambiguous(object) {
                return Err(Unwritable::Order);
            }
            object.values_mut().try_for_each(check_writable)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parse;
    use proptest::prelude::*;

    fn canonical(json: &str) -> String {
        to_text(&parse(json).unwrap().0).unwrap()
    }

    fn sorted(names: &[&str]) -> Vec<String> {
        let mut object = Object::new();
        for name in names {
            object.set(name, Value::Null);
        }
        let mut out = Vec::new();
        each_sorted(&object, |name, _| {
            out.push(name.to_str_lossy().into_owned());
            Ok::<(), ()>(())
        })
        .unwrap();
        out
    }

    #[test]
    fn numbers_print_as_javascript_prints_them() {
        assert_eq!(
            canonical("[1e21,1E20,1e-7,0.000001,-0,0.1,5e-324,1.50,100,-1.5e300]"),
            "[1e+21,100000000000000000000,1e-7,0.000001,0,0.1,5e-324,1.5,100,-1.5e+300]"
        );
        assert_eq!(to_text(&parse("1e999").unwrap().0), Err(NotCanonical));
    }

    #[test]
    fn strings_are_in_nfc_and_escaped_no_further_than_needed() {
        assert_eq!(
            canonical("\"e\u{301}\u{7f}\u{2028}\\/\\u001f\\n\\u0041\""),
            "\"\u{e9}\u{7f}\u{2028}/\\u001f\\nA\""
        );
        assert_eq!(canonical(r#""\uDC00e\u0301\uD800""#), "\"\\udc00\u{e9}\\ud800\"");
    }

    #[test]
    fn printable_ascii_names_sort_by_the_root_collation() {
        let order = "_ - , ; : ! ? . ' \" ( ) [ ] { } @ * / \\ & # % ` ^ + < = > | ~ $ 0 1 9 a A b B z Z";
        let names: Vec<&str> = std::iter::once(" ").chain(order.split(' ')).collect();
        let mut shuffled = names.clone();
        shuffled.reverse();
        assert_eq!(sorted(&shuffled), names);
        assert_eq!(sorted(&["b1", "b_"]), ["b_", "b1"]);
        assert_eq!(sorted(&["b", "aB", "ab"]), ["ab", "aB", "b"]);
        assert_eq!(sorted(&["Z", "f", "\u{e9}", "e"]), ["e", "\u{e9}", "f", "Z"]);
    }

    #[test]
    fn only_orders_that_differ_are_ambiguous() {
        for (json, ambiguous) in [
            (r#"{"a_b":1,"aa":2,"b":3}"#, false),
            (r#"{"a1":1,"b2":2}"#, false),
            (r#"{"signature_b64":1,"algorithm":2,"signed_bytes_hash":3}"#, false),
            (r#"{"b_":1,"b1":2}"#, true),
            (r#"{"a":1,"B":2}"#, true),
            (r#"[{"x":{"a":1,"B":2}}]"#, true),
            (r#"{"A":1,"b":2}"#, false),
        ] {
            assert_eq!(order_is_ambiguous(&parse(json).unwrap().0), ambiguous, "{json}");
        }
    }

    #[test]
    fn what_others_might_hash_differently_is_not_written() {
        let check = |json: &str| check_writable(&mut parse(json).unwrap().0);
        assert_eq!(check(r#"{"a":1,"B":2}"#), Err(Unwritable::Order));
        assert_eq!(check("{\"e\u{301}\":1}"), Err(Unwritable::Name));
        assert_eq!(check(r#"["\ud800"]"#), Err(Unwritable::Surrogate));
        assert_eq!(check("[1e999]"), Err(Unwritable::Number));
        let mut value = Value::str("e\u{301}");
        assert_eq!(check_writable(&mut value), Ok(()));
        assert_eq!(value.as_str(), Some("\u{e9}"));
    }

    proptest! {
        #[test]
        fn simple_names_sort_as_the_collation_sorts_them(a in "[a-z0-9_]{0,6}", b in "[a-z0-9_]{0,6}") {
            let (a, b) = (Text::Str(a.into()), Text::Str(b.into()));
            prop_assert_eq!(compare_simple(&a, &b), collate(&a, &b));
        }

        #[test]
        fn safe_names_sort_as_rfc_8785_sorts_them(
            a in "[a-z_]{0,6}", b in "[a-z_]{0,6}", c in "[a-z0-9]{0,6}", d in "[a-z0-9]{0,6}",
        ) {
            for pair in [[&a, &b], [&c, &d]] {
                let mut object = Object::new();
                pair.iter().for_each(|name| object.set(name, Value::Null));
                prop_assert!(!object_is_ambiguous(&object));
            }
        }

        #[test]
        fn the_canonical_text_is_its_own_canonical_text(names in proptest::collection::vec("\\PC{0,4}", 0..40)) {
            let mut object = Object::new();
            names.iter().for_each(|name| object.set(name, Value::str(name)));
            let (Ok(once), Ok(_)) = (to_text(&Value::Object(object)), Ok::<(), ()>(())) else { return Ok(()) };
            let (value, flaws) = parse(&once).unwrap();
            // Names that NFC makes equal are the one thing that may not survive.
            if !flaws.duplicate_name {
                prop_assert_eq!(to_text(&value).unwrap(), once);
            }
        }
    }
}
