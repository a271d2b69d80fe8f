//! The node's own authentication and first exchange, spoken by the guard to the node in the same process. None of it
//! crosses the link: the guard plays the client whose cookie is right, announces the one actor that stands for the
//! peer's gate, and says that it has said everything.

use sha2::{Digest, Sha256};

use super::proto::{Fields, Value, put_bytes_head, put_varint};
use super::{GATE, Malformed, only_message};

/// What the node says while it authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeSays<'a> {
    /// Whether the handshake goes on; 0 and 1 mean yes.
    Status(u64),
    /// Prove that you know the cookie.
    Challenge(u32),
    /// The node's own proof.
    Ack(&'a [u8]),
    /// Anything else.
    Other,
}

/// Reads one frame of the node while it authenticates.
pub(crate) fn node_says(frame: &[u8]) -> Result<NodeSays<'_>, Malformed> {
    let (outer, inner) = only_message(frame)?;
    if outer != 1 {
        return Ok(NodeSays::Other);
    }
    let (kind, body) = only_message(inner)?;
    let mut fields = Fields::of(body);
    match kind {
        2 => {
            let mut status = 0;
            while let Some(field) = fields.next()? {
                if let (1, Value::Varint(value)) = field {
                    status = value;
                }
            }
            Ok(NodeSays::Status(status))
        }
        4 => {
            let mut challenge = 0;
            while let Some(field) = fields.next()? {
                if let (3, Value::Varint(value)) = field {
                    challenge = u32::try_from(value).map_err(|_| Malformed)?;
                }
            }
            Ok(NodeSays::Challenge(challenge))
        }
        6 => match fields.next()? {
            Some((1, Value::Bytes(digest))) => Ok(NodeSays::Ack(digest)),
            _ => Err(Malformed),
        },
        _ => Ok(NodeSays::Other),
    }
}

fn framed(path: &[u32], body: &[u8]) -> Vec<u8> {
    let mut message = body.to_vec();
    for number in path.iter().rev() {
        let mut outer = Vec::with_capacity(message.len() + 8);
        put_bytes_head(&mut outer, *number, message.len());
        outer.extend_from_slice(&message);
        message = outer;
    }
    let mut frame = (message.len() as u64).to_be_bytes().to_vec();
    frame.extend_from_slice(&message);
    frame
}

/// The client's first message: who connects. Name and address are the label the guard chose, unique in the process,
/// so the node's election between connections of one name never has two candidates.
pub(crate) fn name(label: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(2 * label.len() + 16);
    put_bytes_head(&mut body, 1, label.len());
    body.extend_from_slice(label.as_bytes());
    put_bytes_head(&mut body, 2, 2);
    put_varint(&mut body, 1, 1);
    put_bytes_head(&mut body, 3, label.len());
    body.extend_from_slice(label.as_bytes());
    put_varint(&mut body, 4, 1);
    framed(&[1, 1], &body)
}

/// The client's answer to the node's challenge, and a challenge of its own.
pub(crate) fn challenge_reply(cookie: &str, challenge: u32, own: u32) -> Vec<u8> {
    let digest = digest(cookie, challenge);
    let mut body = Vec::with_capacity(digest.len() + 16);
    put_varint(&mut body, 1, u64::from(own));
    put_bytes_head(&mut body, 2, digest.len());
    body.extend_from_slice(&digest);
    framed(&[1, 5], &body)
}

/// The node's digest of a challenge.
pub(crate) fn digest(cookie: &str, challenge: u32) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(challenge.to_be_bytes());
    hash.update(cookie.as_bytes());
    hash.finalize().into()
}

/// Announces the one actor behind the link, without a name, and the end of the announcements.
pub(crate) fn announce() -> Vec<u8> {
    let mut actor = Vec::new();
    put_varint(&mut actor, 1, GATE);
    let mut spawn = Vec::new();
    put_bytes_head(&mut spawn, 1, actor.len());
    spawn.extend_from_slice(&actor);
    let mut frames = framed(&[3, 1], &spawn);
    frames.extend_from_slice(&framed(&[3, 9], &[]));
    frames
}
