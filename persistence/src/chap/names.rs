//! Names that strangers chose, as an indexed column can hold them.

use std::borrow::Cow;

use choir_messages::chain::Digest;

use crate::error::StoreError;
use crate::limits::CHAP_NAME_BYTES;
use crate::store::ids;

/// Begins what stands for a name that cannot be its own key; a name that begins so is never its own key.
const MARK: char = '\u{1}';

/// The key of a name: itself, or a digest when it is long or has what a column cannot hold. Two names never share one.
pub(crate) fn key(name: &str) -> Cow<'_, str> {
    if name.len() <= CHAP_NAME_BYTES && !name.contains('\0') && !name.starts_with(MARK) {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(format!("{MARK}{}", Digest::of(name.as_bytes())))
    }
}

/// What must be kept beside the key so that the name can be had back.
pub(crate) fn beside(name: &str, key: &str) -> Option<String> {
    (name != key).then(|| ids::text_to_json(name))
}

/// The name of a stored key.
pub(crate) fn name(key: String, beside: Option<&str>) -> Result<String, StoreError> {
    match beside {
        Some(json) => ids::text_from_json(json),
        None => Ok(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_name_has_a_short_key_without_nul_and_comes_back(
            text in prop_oneof![any::<String>(), "\u{1}?[a-c]{0,300}", "[\u{0}-\u{2}]{0,4}"]
        ) {
            let key = key(&text);
            prop_assert!(key.len() <= CHAP_NAME_BYTES && !key.contains('\0'));
            let beside = beside(&text, &key);
            prop_assert_eq!(name(key.into_owned(), beside.as_deref()).unwrap(), text);
        }

        #[test]
        fn different_names_have_different_keys(a in "\u{1}?[ab\u{0}]{0,4}", b in "\u{1}?[ab\u{0}]{0,4}") {
            prop_assert_eq!(a == b, key(&a) == key(&b));
        }
    }
}
