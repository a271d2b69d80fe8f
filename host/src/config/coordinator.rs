//! The section `coordinator`: how choird serves its CHAP Coordinator. Without it, on a private socket with the defaults.

use std::net::SocketAddr;

use serde_json::Value;

use super::identity;
use super::reader::{Object, Problems};
use super::types::{Coordinator, CoordinatorTls};

/// Smallest and largest envelope that make sense: a call with a key, and what one answer may hold.
const ENVELOPE_BYTES: std::ops::RangeInclusive<u64> = 1024..=64 * 1024 * 1024;

pub(super) fn read(top: &mut Object<'_>, problems: &mut Problems) -> Coordinator {
    let mut section = Coordinator::default();
    let Some(mut fields) = top.some("coordinator").and_then(|at| at.object(problems)) else { return section };
    if let Some(at) = fields.some("listen")
        && let Some(text) = at.text(problems)
    {
        match text.parse::<SocketAddr>() {
            Ok(address) => section.listen = Some(address),
            Err(_) => problems
                .add(at.path, format!("must be an address such as \"127.0.0.1:7717\", found \"{text}\"")),
        }
    }
    if let Some(at) = fields.some("default_profiles") {
        match at.free(problems) {
            Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
                section.default_profiles =
                    items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect();
            }
            _ => problems.add(at.path, "must be a list of profiles such as [\"core/1.0\", \"review/1.0\"]"),
        }
    }
    for (name, flag) in [
        ("enable_chain", &mut section.enable_chain),
        ("require_signatures", &mut section.require_signatures),
        ("enforce_step_up", &mut section.enforce_step_up),
        ("require_read_membership", &mut section.require_read_membership),
    ] {
        if let Some(value) = fields.some(name).and_then(|at| at.boolean(problems)) {
            *flag = value;
        }
    }
    if let Some(bytes) = fields.some("max_envelope_bytes").and_then(|at| at.whole(ENVELOPE_BYTES, problems)) {
        section.max_envelope_bytes = bytes;
    }
    section.tokens_file = fields.some("tokens_file").and_then(|at| at.text(problems)).map(Into::into);
    section.identity = fields.some("identity").and_then(|at| identity::read(&at, problems));
    let certificate = fields.some("tls_certificate");
    let key = fields.some("tls_key");
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            if let (Some(certificate), Some(key)) = (certificate.text(problems), key.text(problems)) {
                section.tls = Some(CoordinatorTls { certificate: certificate.into(), key: key.into() });
            }
        }
        (Some(alone), None) => problems.add(alone.path, "needs tls_key beside it"),
        (None, Some(alone)) => problems.add(alone.path, "needs tls_certificate beside it"),
        (None, None) => {}
    }
    if let Some(address) = section.listen
        && !address.ip().to_canonical().is_loopback()
        && (section.tls.is_none() || section.tokens_file.is_none())
    {
        let what = format!(
            "{address} can be reached from other machines; use 127.0.0.1, or give tls_certificate, tls_key and tokens_file"
        );
        problems.add("coordinator.listen", what);
    }
    fields.finish(problems);
    section
}
