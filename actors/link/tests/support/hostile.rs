//! A peer that knows the secret, as everything inside the sandbox may, and speaks the wire by hand.

use std::path::Path;

use choir_link::LinkSecret;
use choir_messages::id::SessionId;
use hmac::{Hmac, KeyInit, Mac};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::soon;

/// A protobuf field that holds bytes.
pub fn bytes(field: u8, inside: &[u8]) -> Vec<u8> {
    let mut out = vec![(field << 3) | 2];
    out.extend(varint(inside.len() as u64));
    out.extend_from_slice(inside);
    out
}

/// A protobuf field that holds a number.
pub fn number(field: u8, value: u64) -> Vec<u8> {
    let mut out = vec![field << 3];
    out.extend(varint(value));
    out
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

pub fn auth(kind: u8, body: &[u8]) -> Vec<u8> {
    bytes(1, &bytes(kind, body))
}

pub fn node(kind: u8, body: &[u8]) -> Vec<u8> {
    bytes(2, &bytes(kind, body))
}

pub fn control(kind: u8, body: &[u8]) -> Vec<u8> {
    bytes(3, &bytes(kind, body))
}

pub fn cast(to: u64, what: &[u8]) -> Vec<u8> {
    node(1, &[number(1, to), bytes(2, what), bytes(3, b"choir.1")].concat())
}

pub fn call(to: u64, tag: u64, what: &[u8]) -> Vec<u8> {
    node(2, &[number(1, to), bytes(2, what), number(3, tag), bytes(5, b"choir.1")].concat())
}

pub fn reply(to: u64, tag: u64, what: &[u8]) -> Vec<u8> {
    node(3, &[number(1, to), number(2, tag), bytes(3, what)].concat())
}

pub fn actor(pid: u64, name: Option<&str>) -> Vec<u8> {
    let mut body = number(1, pid);
    if let Some(name) = name {
        body.extend(bytes(2, name.as_bytes()));
    }
    bytes(1, &body)
}

pub fn ping(seconds: u64) -> Vec<u8> {
    control(3, &bytes(1, &number(1, seconds)))
}

/// The inside of the one short field these bytes are, which must have this key.
pub fn inside(bytes: &[u8], key: u8) -> &[u8] {
    assert_eq!((bytes[0], usize::from(bytes[1])), (key, bytes.len() - 2));
    &bytes[2..]
}

/// A frame with its length.
pub fn framed(inside: &[u8]) -> Vec<u8> {
    let mut out = (inside.len() as u64).to_be_bytes().to_vec();
    out.extend_from_slice(inside);
    out
}

pub struct Hostile {
    pub stream: UnixStream,
}

impl Hostile {
    pub async fn dial(path: &Path) -> Self {
        Self { stream: UnixStream::connect(path).await.unwrap() }
    }

    /// Through the handshake, by the book.
    pub async fn enter(path: &Path, session: SessionId, secret: &LinkSecret) -> Self {
        let mut peer = Self::dial(path).await;
        let answer = peer.prove(session, secret).await;
        assert_eq!(answer, [0, 0, 1], "the host should have let it in");
        peer
    }

    /// The handshake's messages; gives the host's last word.
    pub async fn prove(&mut self, session: SessionId, secret: &LinkSecret) -> Vec<u8> {
        let own = [7u8; 32];
        let hello = [&b"CHOIRLNK"[..], &1u16.to_be_bytes(), &session.bits().to_be_bytes(), &own].concat();
        self.frame(&hello).await;
        let answer = self.read().await.expect("the host's answer");
        assert_eq!(answer.len(), 3 + 32 + 32);
        let mut key = [0; 32];
        hex::decode_to_slice(secret.to_hex().as_str(), &mut key).unwrap();
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
        for part in [
            &b"choir link agent"[..],
            &1u16.to_be_bytes(),
            &session.bits().to_be_bytes(),
            &own,
            &answer[3..35],
        ] {
            mac.update(part);
        }
        self.frame(&mac.finalize().into_bytes()).await;
        self.read().await.unwrap_or_default()
    }

    pub async fn frame(&mut self, inside: &[u8]) {
        self.raw(&framed(inside)).await;
    }

    /// Sends; the host may have hung up meanwhile.
    pub async fn raw(&mut self, bytes: &[u8]) -> bool {
        soon("a write", self.stream.write_all(bytes)).await.is_ok()
    }

    /// The next frame, `None` when the host has hung up.
    pub async fn read(&mut self) -> Option<Vec<u8>> {
        soon("a frame", async {
            let length = self.stream.read_u64().await.ok()?;
            let mut inside = vec![0; usize::try_from(length).unwrap()];
            self.stream.read_exact(&mut inside).await.ok()?;
            Some(inside)
        })
        .await
    }

    /// The next frame that is neither ping nor pong.
    pub async fn answer(&mut self) -> Option<Vec<u8>> {
        loop {
            let frame = self.read().await?;
            if frame.first() != Some(&0x1a) {
                return Some(frame);
            }
        }
    }

    /// Everything the host still says, up to its hanging up.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = soon("the host hanging up", self.stream.read_to_end(&mut rest)).await;
        rest
    }
}
