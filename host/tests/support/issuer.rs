//! An issuer of tokens, keys, credentials and status lists, on loopback.

#![allow(clippy::unwrap_used, dead_code, reason = "shared by tests that fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use choir_messages::canonical;
use choir_messages::chain::Digest;
use choir_messages::sign::SigningKey;
use choir_messages::time::Timestamp;
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone)]
enum Says {
    Document(Vec<u8>),
    Fails(u16),
    Nothing,
}

#[derive(Default)]
struct State {
    says: BTreeMap<String, Says>,
    asked: BTreeSet<String>,
}

/// Serves a document a path, until it is dropped.
pub(crate) struct Issuer {
    address: std::net::SocketAddr,
    state: Arc<Mutex<State>>,
    heard: Arc<tokio::sync::Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Issuer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, heard) = (Arc::new(Mutex::new(State::default())), Arc::new(tokio::sync::Notify::new()));
        let (shared, tell) = (Arc::clone(&state), Arc::clone(&heard));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&shared), Arc::clone(&tell)));
            }
        });
        Self { address, state, heard, task }
    }

    pub(crate) fn at(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    fn says(&self, path: &str, says: Says) {
        self.state.lock().unwrap().says.insert(format!("/{path}"), says);
    }

    pub(crate) fn serve(&self, path: &str, document: Value) {
        self.says(path, Says::Document(document.to_string().into_bytes()));
    }

    pub(crate) fn fail(&self, path: &str, status: u16) {
        self.says(path, Says::Fails(status));
    }

    pub(crate) fn silence(&self, path: &str) {
        self.says(path, Says::Nothing);
    }

    /// Waits until somebody has asked for it.
    pub(crate) async fn asked(&self, path: &str) {
        let path = format!("/{path}");
        tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                let heard = self.heard.notified();
                tokio::pin!(heard);
                heard.as_mut().enable();
                if self.state.lock().unwrap().asked.contains(&path) {
                    return;
                }
                heard.await;
            }
        })
        .await
        .expect("somebody asks");
    }
}

async fn answer(mut stream: TcpStream, state: Arc<Mutex<State>>, heard: Arc<tokio::sync::Notify>) {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut chunk = [0; 1024];
        match stream.read(&mut chunk).await {
            Ok(count) if count > 0 => request.extend_from_slice(&chunk[..count]),
            _ => return,
        }
    }
    let path = String::from_utf8_lossy(&request).split(' ').nth(1).unwrap_or_default().to_owned();
    let says = {
        let mut state = state.lock().unwrap();
        state.asked.insert(path.clone());
        state.says.get(&path).cloned().unwrap_or(Says::Fails(404))
    };
    heard.notify_waiters();
    let (status, body) = match says {
        Says::Document(body) => (200, body),
        Says::Fails(status) => (status, Vec::new()),
        Says::Nothing => return std::future::pending().await,
    };
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    // Whoever hangs up early has seen enough.
    let _ = stream.write_all(&[head.into_bytes(), body].concat()).await;
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    Timestamp::now().millis() / 1000
}

fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn jwk(key: &SigningKey, kid: &str) -> Value {
    json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": base64url(key.public().bytes())})
}

/// A JWS of that key.
pub(crate) fn token(key: &SigningKey, header: Value, claims: &Value) -> String {
    let signed = format!("{}.{}", base64url(header.to_string()), base64url(claims.to_string()));
    format!("{signed}.{}", base64url(key.sign(signed.as_bytes()).bytes()))
}

/// What a DPoP proof says of the token it goes with (RFC 9449, section 4.2).
pub(crate) fn digest(token: &str) -> String {
    base64url(Digest::of(token.as_bytes()).bytes())
}

pub(crate) fn did(key: &SigningKey) -> String {
    choir_identity::vc::did_key(&key.public())
}

/// Signs a document by `eddsa-jcs-2022`.
fn signed(mut document: Value, key: &SigningKey, purpose: &str, more: Value) -> Value {
    let did = did(key);
    let fragment = did.strip_prefix("did:key:").unwrap().to_owned();
    let mut proof = json!({
        "type": "DataIntegrityProof", "cryptosuite": "eddsa-jcs-2022", "created": Timestamp::now().to_string(),
        "verificationMethod": format!("{did}#{fragment}"), "proofPurpose": purpose,
    });
    proof.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let hash = |value: &Value| *Digest::of(&canonical::to_vec(value).unwrap()).bytes();
    let hashes = [hash(&proof), hash(&document)].concat();
    proof["proofValue"] = json!(format!("z{}", bs58::encode(key.sign(&hashes).bytes()).into_string()));
    document["proof"] = proof;
    document
}

/// A presentation of one credential whose status stands at that place of the list.
pub(crate) fn presentation(
    holder: &SigningKey,
    issuer: &SigningKey,
    list: &str,
    index: u64,
    domain: &str,
) -> Value {
    let credential = json!({
        "@context": ["https://www.w3.org/ns/credentials/v2"],
        "type": ["VerifiableCredential"],
        "issuer": did(issuer),
        "credentialSubject": {"id": did(holder), "role": "reviewer"},
        "credentialStatus": {"type": "BitstringStatusListEntry", "statusPurpose": "revocation",
            "statusListIndex": index.to_string(), "statusListCredential": list},
    });
    let document = json!({
        "@context": ["https://www.w3.org/ns/credentials/v2"],
        "type": ["VerifiablePresentation"],
        "holder": did(holder),
        "verifiableCredential": [signed(credential, issuer, "assertionMethod", json!({}))],
    });
    signed(document, holder, "authentication", json!({"domain": domain}))
}

/// A status list of the smallest size with these places set.
pub(crate) fn status_list(issuer: &SigningKey, list: &str, set: &[usize]) -> Value {
    let mut bits = vec![0u8; 16 << 10];
    for place in set {
        bits[place / 8] |= 0x80 >> (place % 8);
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&bits).unwrap();
    let document = json!({
        "@context": ["https://www.w3.org/ns/credentials/v2"],
        "id": list,
        "type": ["VerifiableCredential", "BitstringStatusListCredential"],
        "issuer": did(issuer),
        "credentialSubject": {"type": "BitstringStatusList", "statusPurpose": "revocation",
            "encodedList": format!("u{}", base64url(encoder.finish().unwrap()))},
    });
    signed(document, issuer, "assertionMethod", json!({}))
}
