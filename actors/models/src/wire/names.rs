//! Tool names on the wire. Providers accept `[a-zA-Z0-9_-]{1,64}` only; canonical names have dots (`choir §8.2`).

use std::collections::{BTreeMap, BTreeSet};

use choir_messages::chain::Digest;
use choir_messages::tool::ToolView;

/// Longest name that providers accept.
const WIRE_NAME_CHARS: usize = 64;

/// Hexadecimal digits of a hash that tell two names apart that would read the same on the wire.
const TELLING_DIGITS: usize = 8;

/// The two-way mapping for one set of tools. Names that providers accept stay as they are; in others every foreign
/// character becomes `_`, and where that would make two tools look alike, one gets a suffix from its name's hash. The
/// mapping depends on the set alone, not on its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolNames {
    to_wire: BTreeMap<String, String>,
    to_canonical: BTreeMap<String, String>,
}

impl ToolNames {
    /// The mapping for these tools.
    #[must_use]
    pub fn new(tools: &[ToolView]) -> Self {
        Self::for_names(tools.iter().map(|tool| tool.name.as_str()))
    }

    /// The mapping for these canonical names.
    #[must_use]
    pub fn for_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let (accepted, foreign): (BTreeSet<&str>, BTreeSet<&str>) =
            names.into_iter().partition(|name| is_wire_name(name));
        let mut mapping = Self::default();
        // Names that need no change come first, so that no other tool can take their place.
        for name in accepted {
            mapping.pair(name, name.to_owned());
        }
        for name in foreign {
            let plain = plain(name);
            let wire = if mapping.to_canonical.contains_key(&plain) {
                (0u32..)
                    .map(|salt| told_apart(&plain, name, salt))
                    .find(|wire| !mapping.to_canonical.contains_key(wire))
                    .unwrap_or(plain)
            } else {
                plain
            };
            mapping.pair(name, wire);
        }
        mapping
    }

    fn pair(&mut self, canonical: &str, wire: String) {
        self.to_canonical.insert(wire.clone(), canonical.to_owned());
        self.to_wire.insert(canonical.to_owned(), wire);
    }

    /// The name a provider is given. A name outside the set (a call of a tool that does not exist, kept in the
    /// transcript) is made acceptable in the same way.
    #[must_use]
    pub fn wire(&self, canonical: &str) -> String {
        self.to_wire.get(canonical).cloned().unwrap_or_else(|| plain(canonical))
    }

    /// The canonical name behind a model's. One outside the set passes through unchanged, so that the arbiter refuses
    /// it by the name the model used.
    #[must_use]
    pub fn canonical<'a>(&'a self, wire: &'a str) -> &'a str {
        self.to_canonical.get(wire).map_or(wire, String::as_str)
    }
}

fn is_wire_name(name: &str) -> bool {
    (1..=WIRE_NAME_CHARS).contains(&name.len()) && name.bytes().all(is_wire_byte)
}

const fn is_wire_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn plain(name: &str) -> String {
    let plain: String = name
        .chars()
        .take(WIRE_NAME_CHARS)
        .map(|c| if u8::try_from(c).is_ok_and(is_wire_byte) { c } else { '_' })
        .collect();
    if plain.is_empty() { "_".to_owned() } else { plain }
}

fn told_apart(plain: &str, name: &str, salt: u32) -> String {
    let digest = Digest::of(format!("{salt}:{name}").as_bytes()).to_string();
    let stem: String = plain.chars().take(WIRE_NAME_CHARS - TELLING_DIGITS - 1).collect();
    let suffix: String = digest.chars().filter(char::is_ascii_hexdigit).take(TELLING_DIGITS).collect();
    format!("{stem}_{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn canonical_names_lose_their_dots_and_get_them_back() {
        let names = ToolNames::for_names(["choir.fs.read", "choir.exec"]);
        assert_eq!(names.wire("choir.fs.read"), "choir_fs_read");
        assert_eq!(names.canonical("choir_fs_read"), "choir.fs.read");
        assert_eq!(names.canonical("choir.fs.read"), "choir.fs.read");
        assert_eq!(names.canonical("rm -rf"), "rm -rf");
        assert_eq!(names.wire("rm -rf"), "rm_-rf");
    }

    #[test]
    fn tools_that_would_look_alike_are_told_apart_whatever_their_order() {
        let there = ToolNames::for_names(["a.b", "a_b", "a/b"]);
        let back = ToolNames::for_names(["a/b", "a_b", "a.b"]);
        assert_eq!(there, back);
        assert_eq!(there.wire("a_b"), "a_b");
        assert_ne!(there.wire("a.b"), there.wire("a/b"));
    }

    proptest! {
        #[test]
        fn any_set_of_names_maps_to_acceptable_names_and_back(
            names in prop::collection::vec(
                prop_oneof!["[a-c._/]{0,4}", "[a._]{60,70}", any::<String>()], 0..40)
        ) {
            let mapping = ToolNames::for_names(names.iter().map(String::as_str));
            for name in &names {
                let wire = mapping.wire(name);
                prop_assert!(is_wire_name(&wire), "{wire:?}");
                prop_assert_eq!(mapping.canonical(&wire), name);
            }
        }
    }
}
