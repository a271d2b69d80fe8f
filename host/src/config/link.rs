//! The section `link`: what carries the links between choird and its agents (DESIGN §4).

use std::net::{Ipv4Addr, SocketAddr};

use super::reader::{Object, Problems};
use super::types::Link;

/// The field by which an operator says that a link may be reached from outside this machine.
const OPEN: &str = "reachable_from_other_machines";

pub(super) fn read(top: &mut Object<'_>, problems: &mut Problems) -> Link {
    let Some(mut fields) = top.some("link").and_then(|at| at.object(problems)) else { return Link::Unix };
    let carrier = fields.some("carrier").and_then(|at| at.word(&[("unix", false), ("tcp", true)], problems));
    let listen = fields.some("listen");
    let open = fields.some(OPEN);
    let reachable_from_other_machines = open.as_ref().and_then(|at| at.boolean(problems)).unwrap_or(false);
    fields.finish(problems);
    if carrier != Some(true) {
        for at in [listen, open].into_iter().flatten() {
            problems.add(
                at.path,
                "only the carrier \"tcp\" has an address; remove it or set \"carrier\": \"tcp\"",
            );
        }
        return Link::Unix;
    }
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    if let Some(at) = listen
        && let Some(text) = at.text(problems)
    {
        match text.parse::<SocketAddr>() {
            Err(_) => {
                problems.add(
                    at.path,
                    format!("must be an address such as \"127.0.0.1:0\" or \"[::1]:0\", found \"{text}\""),
                );
            }
            Ok(found) if found.port() != 0 => {
                let what =
                    "the port must be 0: every agent's link gets a free port of its own from the system";
                problems.add(at.path, what);
            }
            Ok(found) if !found.ip().to_canonical().is_loopback() && !reachable_from_other_machines => {
                let ip = found.ip();
                let what = format!(
                    "{ip} can be reached from other machines; use 127.0.0.1, or set link.{OPEN} to true if that is meant"
                );
                problems.add(at.path, what);
            }
            Ok(found) => address = found,
        }
    }
    Link::Tcp { listen: address, reachable_from_other_machines }
}
