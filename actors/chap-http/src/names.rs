//! Which `Host` and `Origin` a request may carry. A page of a foreign site can make a browser send requests to a
//! loopback address, and with a name of its own that it has pointed there (DNS rebinding) even read the answers. Its
//! requests then carry the foreign name.

use std::net::IpAddr;

/// Whether a `Host` value names this server: an IP address (which nobody can rebind), `localhost`, or a configured
/// name, each with any port.
pub(crate) fn host_allowed(host: &str, configured: &[String]) -> bool {
    let Some(name) = name_of(host) else { return false };
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    if address.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || configured.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether a page of this origin may call: one served under the very name and port it calls, or a configured one.
pub(crate) fn origin_allowed(origin: &str, host: &str, configured: &[String]) -> bool {
    let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    own.is_some_and(|authority| !authority.is_empty() && authority.eq_ignore_ascii_case(host))
        || configured.iter().any(|known| known.trim_end_matches('/').eq_ignore_ascii_case(origin))
}

/// The name in `name[:port]`, brackets of an IPv6 address included; `None` if it is neither.
fn name_of(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, port) = host.split_at_checked(end)?;
    let port_is_one = match port.strip_prefix(':') {
        Some(port) => port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    (port_is_one && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_localhost_and_configured_names_are_ours() {
        let ours = ["chap.example".to_owned()];
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "127.0.0.1:1",
            "[::1]:8080",
            "[::1]",
            "10.0.0.7",
            "chap.example",
            "Chap.Example:443",
        ] {
            assert!(host_allowed(host, &ours), "{host}");
        }
    }

    #[test]
    fn a_rebound_name_is_refused_in_every_disguise() {
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "localhost:80@evil.example",
            "[::1].evil.example",
            "[evil.example]",
            "[::1",
            "localhost:",
            "localhost:x",
            "localhost:99999",
            ":80",
        ] {
            assert!(!host_allowed(host, &["chap.example".to_owned()]), "{host}");
        }
    }

    #[test]
    fn only_pages_of_our_own_or_configured_ones_may_call() {
        let known = ["https://desk.example".to_owned()];
        assert!(origin_allowed("http://localhost:8080", "localhost:8080", &known));
        assert!(origin_allowed("https://desk.example", "localhost:8080", &known));
        for origin in [
            "null",
            "",
            "http://",
            "http://localhost:3000",
            "http://localhost",
            "https://evil.example",
            "https://desk.example.evil.example",
            "file://localhost:8080",
        ] {
            assert!(!origin_allowed(origin, "localhost:8080", &known), "{origin}");
        }
    }

    proptest! {
        #[test]
        fn a_name_under_a_foreign_domain_is_never_ours(prefix in "[a-z0-9.:@\\[\\]-]{0,20}", port in 0_u16..) {
            let host = format!("{prefix}.evil.example:{port}");
            prop_assert!(!host_allowed(&host, &["chap.example".to_owned()]));
        }
    }
}
