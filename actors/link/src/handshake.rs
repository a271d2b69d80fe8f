//! How the two ends of a link recognise each other before the node hears of either. Four frames of fixed size:
//!
//! 1. agent: magic, version, session, nonce
//! 2. host: go on (or a refusal), version, nonce, the host's proof
//! 3. agent: the agent's proof
//! 4. host: welcome (or a refusal), version
//!
//! A proof is HMAC-SHA256 under the link's secret over role, version, session and both nonces. The host proves itself
//! first, so an agent that was pointed at the wrong socket gives nothing away; roles differ, so no proof can be sent
//! back. There is no name to claim: who the peer is follows from the socket and the secret alone.

use std::time::Duration;

use choir_messages::id::SessionId;
use choir_messages::wire::WIRE_VERSION;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::frames::{FrameReader, send};
use crate::reason::CloseReason;
use crate::secret::{LinkSecret, SECRET_BYTES, nonce};

const MAGIC: &[u8; 8] = b"CHOIRLNK";

/// Largest frame of the handshake, in bytes.
pub(crate) const HANDSHAKE_FRAME: usize = 8 + 2 + 16 + SECRET_BYTES + 16;

const HOST: &[u8] = b"choir link host ";
const AGENT: &[u8] = b"choir link agent";

/// What the host answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Welcome,
    Busy,
    Version,
    Denied,
}

impl Code {
    const fn byte(self) -> u8 {
        match self {
            Self::Welcome => 0,
            Self::Busy => 1,
            Self::Version => 2,
            Self::Denied => 3,
        }
    }
}

/// Why the agent's side of the handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Busy,
    Version(u16),
    Denied,
    /// The host does not know the secret.
    Stranger,
    NotAHost,
    Closed(CloseReason),
}

impl From<CloseReason> for Refused {
    fn from(reason: CloseReason) -> Self {
        match reason {
            CloseReason::FrameTooLarge(_) => Self::NotAHost,
            other => Self::Closed(other),
        }
    }
}

fn hello(session: SessionId, nonce: &[u8; SECRET_BYTES]) -> Vec<u8> {
    let mut frame = MAGIC.to_vec();
    frame.extend_from_slice(&WIRE_VERSION.to_be_bytes());
    frame.extend_from_slice(&session.bits().to_be_bytes());
    frame.extend_from_slice(nonce);
    frame
}

fn parse_hello(frame: &[u8]) -> Option<(u16, u128, [u8; SECRET_BYTES])> {
    let rest = frame.strip_prefix(MAGIC)?;
    let (version, rest) = rest.split_first_chunk::<2>()?;
    let (session, rest) = rest.split_first_chunk::<16>()?;
    let nonce = rest.try_into().ok()?;
    Some((u16::from_be_bytes(*version), u128::from_be_bytes(*session), nonce))
}

fn answer(code: Code) -> Vec<u8> {
    let mut frame = vec![code.byte()];
    frame.extend_from_slice(&WIRE_VERSION.to_be_bytes());
    frame
}

/// Reads a host's code; a host of another version is told apart by the number that follows.
fn parse_answer(frame: &[u8]) -> Result<&[u8], Refused> {
    let (&[code, high, low], rest) = frame.split_first_chunk::<3>().ok_or(Refused::NotAHost)?;
    match code {
        0 => Ok(rest),
        1 => Err(Refused::Busy),
        2 => Err(Refused::Version(u16::from_be_bytes([high, low]))),
        3 => Err(Refused::Denied),
        _ => Err(Refused::NotAHost),
    }
}

/// What a proof is over. All parts are of fixed length.
struct Transcript {
    version: [u8; 2],
    session: [u8; 16],
    agent: [u8; SECRET_BYTES],
    host: [u8; SECRET_BYTES],
}

impl Transcript {
    fn new(session: SessionId, agent: [u8; SECRET_BYTES], host: [u8; SECRET_BYTES]) -> Self {
        Self { version: WIRE_VERSION.to_be_bytes(), session: session.bits().to_be_bytes(), agent, host }
    }

    fn parts<'a>(&'a self, role: &'a [u8]) -> [&'a [u8]; 5] {
        [role, &self.version, &self.session, &self.agent, &self.host]
    }
}

/// The host's side up to the agent's proof. The caller decides what follows and says it with [`say`].
pub(crate) async fn admit<R, W>(
    reader: &mut FrameReader<R>,
    writer: &mut W,
    session: SessionId,
    secret: &LinkSecret,
    deadline: Duration,
) -> Result<(), CloseReason>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let frame = reader.take(deadline).await.map_err(not_a_handshake)?;
    let (version, asked, agent) = parse_hello(&frame).ok_or(CloseReason::NotAHandshake)?;
    if version != WIRE_VERSION {
        send(writer, &answer(Code::Version), deadline).await?;
        return Err(CloseReason::Version(version));
    }
    if asked != session.bits() {
        send(writer, &answer(Code::Denied), deadline).await?;
        return Err(CloseReason::WrongSession);
    }
    let host = nonce().map_err(|_| CloseReason::Io(std::io::ErrorKind::Other))?;
    let transcript = Transcript::new(session, agent, host);
    let mut frame = answer(Code::Welcome);
    frame.extend_from_slice(&host);
    frame.extend_from_slice(&secret.proof(&transcript.parts(HOST)));
    send(writer, &frame, deadline).await?;
    let proof = reader.take(deadline).await.map_err(not_a_handshake)?;
    if !secret.proves(&transcript.parts(AGENT), &proof) {
        send(writer, &answer(Code::Denied), deadline).await?;
        return Err(CloseReason::WrongSecret);
    }
    Ok(())
}

fn not_a_handshake(reason: CloseReason) -> CloseReason {
    match reason {
        CloseReason::FrameTooLarge(_) => CloseReason::NotAHandshake,
        other => other,
    }
}

/// The host's last word.
pub(crate) async fn say<W: AsyncWrite + Unpin>(
    writer: &mut W,
    code: Code,
    deadline: Duration,
) -> Result<(), CloseReason> {
    send(writer, &answer(code), deadline).await
}

/// The agent's side.
pub(crate) async fn introduce<R, W>(
    reader: &mut FrameReader<R>,
    writer: &mut W,
    session: SessionId,
    secret: &LinkSecret,
    deadline: Duration,
) -> Result<(), Refused>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let own = nonce().map_err(|_| CloseReason::Io(std::io::ErrorKind::Other))?;
    send(writer, &hello(session, &own), deadline).await?;
    let frame = reader.take(deadline).await?;
    let (host, proof) = parse_answer(&frame)?.split_first_chunk::<SECRET_BYTES>().ok_or(Refused::NotAHost)?;
    let transcript = Transcript::new(session, own, *host);
    if !secret.proves(&transcript.parts(HOST), proof) {
        return Err(Refused::Stranger);
    }
    send(writer, &secret.proof(&transcript.parts(AGENT)), deadline).await?;
    let frame = reader.take(deadline).await?;
    parse_answer(&frame).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG: Duration = Duration::from_secs(5);

    type Ends = (Result<(), CloseReason>, Result<(), Refused>);

    async fn meet(host: (SessionId, &LinkSecret), agent: (SessionId, &LinkSecret), last: Code) -> Ends {
        let (near, far) = tokio::io::duplex(1024);
        let (near_read, mut near_write) = tokio::io::split(near);
        let (far_read, mut far_write) = tokio::io::split(far);
        let mut near_read = FrameReader::new(near_read, HANDSHAKE_FRAME);
        let mut far_read = FrameReader::new(far_read, HANDSHAKE_FRAME);
        tokio::join!(
            async {
                let admitted = admit(&mut near_read, &mut near_write, host.0, host.1, LONG).await;
                if admitted.is_ok() {
                    say(&mut near_write, last, LONG).await.unwrap();
                }
                drop((near_read, near_write));
                admitted
            },
            async {
                let done = introduce(&mut far_read, &mut far_write, agent.0, agent.1, LONG).await;
                drop((far_read, far_write));
                done
            }
        )
    }

    #[tokio::test]
    async fn two_that_know_the_secret_recognise_each_other() {
        let (session, secret) = (SessionId::fresh(), LinkSecret::fresh().unwrap());
        let ends = meet((session, &secret), (session, &secret), Code::Welcome).await;
        assert_eq!(ends, (Ok(()), Ok(())));
        let ends = meet((session, &secret), (session, &secret), Code::Busy).await;
        assert_eq!(ends, (Ok(()), Err(Refused::Busy)));
    }

    #[tokio::test]
    async fn an_agent_gives_nothing_to_a_host_that_does_not_know_the_secret() {
        let session = SessionId::fresh();
        let (one, other) = (LinkSecret::fresh().unwrap(), LinkSecret::fresh().unwrap());
        let (host, agent) = meet((session, &one), (session, &other), Code::Welcome).await;
        assert_eq!(agent, Err(Refused::Stranger));
        assert_eq!(host, Err(CloseReason::PeerClosed));
    }

    #[tokio::test]
    async fn an_agent_of_another_session_is_denied() {
        let secret = LinkSecret::fresh().unwrap();
        let ends = meet((SessionId::fresh(), &secret), (SessionId::fresh(), &secret), Code::Welcome).await;
        assert_eq!(ends, (Err(CloseReason::WrongSession), Err(Refused::Denied)));
    }

    proptest! {
        #[test]
        fn no_bytes_but_a_hello_are_a_hello(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(parse_hello(&bytes).is_none() || bytes.starts_with(MAGIC));
            let _ = parse_answer(&bytes);
        }
    }
}
