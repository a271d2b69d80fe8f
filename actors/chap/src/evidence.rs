//! Evidence: the chain's link, what a refusal's record looks like, and which refusals are recorded (digest §3.3).

use choir_messages::chain::Digest;

use crate::method::Method;
use crate::{Refusal, codes};

/// What stands before the first entry of a chain.
pub const GENESIS: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// The head after an entry: SHA-256 over the record's canonical text and the text of the head before it.
#[must_use]
pub fn link(record: &str, previous: &str) -> String {
    let mut bytes = Vec::with_capacity(record.len() + previous.len());
    bytes.extend_from_slice(record.as_bytes());
    bytes.extend_from_slice(previous.as_bytes());
    format!("sha256:{}", Digest::of(&bytes))
}

const REFUSAL_OPENS: &str = r#"{"outcome":{"code":"#;
const REFUSAL_GOES_ON: &str = r#","status":"refused"},"request":"#;

/// The canonical record of a refused call.
pub(crate) fn refusal_record(request: &str, code: i64) -> String {
    format!("{REFUSAL_OPENS}{code}{REFUSAL_GOES_ON}{request}}}")
}

/// A record taken apart: the call, and the code if it was refused. `None` if it is neither an accepted call nor a
/// refused one. An accepted call's text never begins like a refusal's, since `id` and `jsonrpc` sort before `outcome`.
#[must_use]
pub fn take_apart(record: &str) -> Option<(&str, Option<i64>)> {
    if let Some(rest) = record.strip_prefix(REFUSAL_OPENS) {
        let (code, rest) = rest.split_once(',')?;
        let request = rest.strip_prefix(REFUSAL_GOES_ON.get(1..)?)?.strip_suffix('}')?;
        return (request.starts_with('{') && request.ends_with('}'))
            .then_some((request, Some(code.parse().ok()?)));
    }
    (record.starts_with('{')
        && record.ends_with('}')
        && record.contains(r#""jsonrpc":"2.0""#)
        && record.contains(r#""method":""#))
    .then_some((record, None))
}

/// Whether a refusal of this method goes on the log, given that a member of an existing workspace made the call.
#[must_use]
pub(crate) fn is_recorded(method: &Method, refusal: &Refusal) -> bool {
    if !method.recorded || method.opening {
        return false;
    }
    match refusal.code {
        codes::PARSE
        | codes::REQUEST
        | codes::PARAMS
        | codes::INTERNAL
        | codes::SIGNATURE_FAILED
        | codes::SIGNATURE_KEY_NOT_FOUND
        | codes::SIGNATURE_KEY_REVOKED
        | codes::SIGNATURE_ROTATION_MISMATCH => false,
        // Only the profile gate carries this detail: somebody reached for a brake that is switched off.
        codes::METHOD => {
            method.privileged
                && refusal.data.as_ref().is_some_and(|d| d.get("profile").is_some_and(|p| p.is_string()))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_apart_into_what_it_was_made_of() {
        let call = r#"{"id":1,"jsonrpc":"2.0","method":"task.create","params":{}}"#;
        assert_eq!(take_apart(call), Some((call, None)));
        assert_eq!(take_apart(&refusal_record(call, -32011)), Some((call, Some(-32011))));
        for bad in
            ["", "[]", "{}", r#"{"outcome":{"code":x,"status":"refused"},"request":{}}"#, r#"{"outcome":1}"#]
        {
            assert_eq!(take_apart(bad), None, "{bad}");
        }
    }
}
