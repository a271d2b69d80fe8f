//! What carries the links to agents, and the node behind them as an actor: one per process, started anew when it has
//! died.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use choir_link::{Certificate, Links, ListenAt, UnusableCertificate};
use choir_messages::mail::Mail;
use choir_messages::wire::LinkAddress;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, WhenFull, mailbox};
use zeroize::Zeroizing;

use super::shared::Host;
use crate::config::Link;

/// How often the node is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The name in the certificate, for people: nobody checks it.
const NAME: &str = "choird";

/// The carrier of every link of this choird, chosen once at its start (DESIGN §4).
#[derive(Debug)]
pub(crate) enum Carrier {
    /// A socket for each agent.
    Unix,
    /// A port for each agent, all under one certificate that lives as long as this process and is written nowhere.
    Tcp { listen: SocketAddr, certificate: Certificate },
}

/// Why there is no carrier.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    /// The certificate could not be made.
    #[error(
        "a certificate for the link cannot be made: {0}; `\"link\": {{\"carrier\": \"unix\"}}` needs none"
    )]
    Made(String),
    /// It cannot be used.
    #[error(transparent)]
    Used(#[from] UnusableCertificate),
}

impl Carrier {
    /// What `config.json` asks for.
    pub(crate) fn choose(link: Link) -> Result<Self, CarrierError> {
        let Link::Tcp { listen, .. } = link else { return Ok(Self::Unix) };
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])
            .map_err(|error| CarrierError::Made(error.to_string()))?;
        let key = Zeroizing::new(made.signing_key.serialize_der());
        Ok(Self::Tcp { listen, certificate: Certificate::new(made.cert.der(), &key)? })
    }

    /// What an operator must know of it.
    pub(crate) fn warning(&self) -> Option<String> {
        match self {
            Self::Tcp { listen, .. } if !listen.ip().to_canonical().is_loopback() => Some(format!(
                "other machines can reach the links of agents (link.listen is {}); only the secret of each link keeps them out",
                listen.ip()
            )),
            Self::Tcp { .. } | Self::Unix => None,
        }
    }

    /// Where the link of one agent listens; `socket` is used by Unix alone.
    pub(crate) fn listen_at(&self, socket: PathBuf) -> ListenAt {
        match self {
            Self::Unix => ListenAt::Unix(socket),
            Self::Tcp { listen, certificate } => {
                ListenAt::Tcp { addr: *listen, certificate: certificate.clone() }
            }
        }
    }

    /// What the agent is told: `socket` as it sees it, or the address at which its link was found to listen.
    pub(crate) fn address(
        &self,
        socket: PathBuf,
        listening: Option<SocketAddr>,
    ) -> Result<LinkAddress, String> {
        match (self, listening) {
            (Self::Unix, _) => Ok(LinkAddress::Unix { socket }),
            (Self::Tcp { certificate, .. }, Some(at)) => {
                let address = SocketAddr::new(from_here(at.ip()), at.port());
                Ok(LinkAddress::Tcp { address, certificate: certificate.digest() })
            }
            (Self::Tcp { .. }, None) => Err("the address of the agent's link is not known".into()),
        }
    }
}

/// Agents run on this machine, where a link that listens everywhere is found on loopback.
fn from_here(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    }
}

struct Look;

impl Mail for Look {
    fn label(&self) -> &'static str {
        "look"
    }
}

struct LinksActor {
    links: Links,
}

pub(crate) fn child_spec(host: Arc<Host>) -> ChildSpec {
    let (_, slot) = mailbox("links", MailboxSpec { capacity: 4, when_full: WhenFull::DropOldest });
    ChildSpec::worker(slot, move |_| {
        let host = Arc::clone(&host);
        async move {
            let current = host.links.borrow().clone().filter(Links::is_alive);
            let links = match current {
                Some(links) => links,
                None => Links::start().await?,
            };
            host.links.send_replace(Some(links.clone()));
            Ok(LinksActor { links })
        }
    })
}

impl Actor for LinksActor {
    type Msg = Look;

    async fn started(&mut self, cx: &mut Context<Look>) -> Result<(), Failure> {
        cx.send_interval(LOOK_EVERY, || Look)?;
        Ok(())
    }

    async fn handle(&mut self, Look: Look, _cx: &mut Context<Look>) -> Result<(), Failure> {
        if self.links.is_alive() { Ok(()) } else { Err(Failure::new("the link's node has ended")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(listen: &str) -> Carrier {
        let listen = listen.parse().unwrap();
        Carrier::choose(Link::Tcp { listen, reachable_from_other_machines: true }).unwrap()
    }

    #[test]
    fn an_agent_is_told_its_socket_or_its_port_and_the_one_certificate_of_this_run() {
        let socket = PathBuf::from("/run/choir/link.sock");
        let unix = Carrier::choose(Link::Unix).unwrap();
        assert_eq!(unix.address(socket.clone(), None), Ok(LinkAddress::Unix { socket: socket.clone() }));
        let (one, other) = (tcp("127.0.0.1:0"), tcp("127.0.0.1:0"));
        let listening = "127.0.0.1:4711".parse().ok();
        let told = one.address(socket.clone(), listening).unwrap();
        let Carrier::Tcp { certificate, .. } = &one else { panic!("{one:?}") };
        let address = "127.0.0.1:4711".parse().unwrap();
        assert_eq!(told, LinkAddress::Tcp { address, certificate: certificate.digest() });
        assert_ne!(Ok(told), other.address(socket.clone(), listening), "each run has its own");
        assert!(one.address(socket, None).is_err());
    }

    #[test]
    fn a_link_that_listens_everywhere_is_found_on_loopback_and_said_to_be_open() {
        for (listen, bound, told) in
            [("0.0.0.0:0", "0.0.0.0:7", "127.0.0.1:7"), ("[::]:0", "[::]:7", "[::1]:7")]
        {
            let carrier = tcp(listen);
            let address = carrier.address(PathBuf::new(), bound.parse().ok()).unwrap();
            let LinkAddress::Tcp { address, .. } = address else { panic!("{address:?}") };
            assert_eq!(address.to_string(), told);
            assert!(carrier.warning().unwrap().contains("other machines"));
        }
        assert_eq!(tcp("[::1]:0").warning(), None);
        assert_eq!(Carrier::Unix.warning(), None);
    }
}
