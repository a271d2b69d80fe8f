//! The client over TLS, against a server whose certificate is made for the test.
//!
//! Root certificates come from where the system keeps them; `SSL_CERT_FILE` names another place, and a process's
//! environment can only be set from outside it. So each test here starts its own binary again with that variable set;
//! the child makes the call and prints what came of it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of a test may fail it, and a child says what it saw"
)]

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};

use common::{CANARY, WITHIN, client, complete};
use rcgen::{CertifiedKey, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Set in the child: where the call goes.
const ENDPOINT: &str = "CHOIR_TEST_ENDPOINT";

const HELLO: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-length: 45\r\n\r\n{\"choices\":[{\"message\":{\"content\":\"hello\"}}]}";

fn certificate() -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap()
}

/// A TLS server on loopback; returns its endpoint and what it was sent.
async fn serve(certified: &CertifiedKey<KeyPair>) -> (String, Arc<Mutex<String>>) {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://{}/v1", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(String::new()));
    let record = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut piece = [0; 64 * 1024];
            let count = stream.read(&mut piece).await.unwrap_or(0);
            record.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..count]));
            let _ = stream.write_all(HELLO).await;
            let _ = stream.shutdown().await;
        }
    });
    (endpoint, seen)
}

/// Makes the call in a child that trusts this certificate and no other, behind a proxy that does not exist.
async fn call_in_child(test: &str, endpoint: &str, trusted: &CertifiedKey<KeyPair>, folder: &Path) -> String {
    let file = folder.join("roots.pem");
    std::fs::write(&file, trusted.cert.pem()).unwrap();
    let (exe, endpoint) = (std::env::current_exe().unwrap(), endpoint.to_owned());
    let mut command = std::process::Command::new(exe);
    command
        .args(["--exact", test, "--nocapture"])
        .env(ENDPOINT, endpoint)
        .env("SSL_CERT_FILE", file)
        .env_remove("SSL_CERT_DIR")
        .env("HTTPS_PROXY", "http://127.0.0.1:1");
    let child = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = tokio::time::timeout(WITHIN, child).await.unwrap().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// In the child: makes the call and says what came of it.
async fn in_child() -> bool {
    let Ok(endpoint) = std::env::var(ENDPOINT) else { return false };
    println!("{:?}", complete(&client(&endpoint, CANARY), "go").await);
    true
}

#[tokio::test]
async fn a_provider_with_a_trusted_certificate_answers_and_loopback_goes_through_no_proxy() {
    if in_child().await {
        return;
    }
    let certified = certificate();
    let (endpoint, seen) = serve(&certified).await;
    let folder = tempfile::tempdir().unwrap();
    let test = "a_provider_with_a_trusted_certificate_answers_and_loopback_goes_through_no_proxy";
    let said = call_in_child(test, &endpoint, &certified, folder.path()).await;
    assert!(said.contains("Some(\"hello\")"), "{said}");
    assert!(seen.lock().unwrap().contains(CANARY));
}

#[tokio::test]
async fn a_provider_with_an_unknown_certificate_never_sees_the_key() {
    if in_child().await {
        return;
    }
    let (endpoint, seen) = serve(&certificate()).await;
    let folder = tempfile::tempdir().unwrap();
    let test = "a_provider_with_an_unknown_certificate_never_sees_the_key";
    let said = call_in_child(test, &endpoint, &certificate(), folder.path()).await;
    assert!(said.contains("Unreachable") && said.to_lowercase().contains("certificate"), "{said}");
    assert_eq!(*seen.lock().unwrap(), "");
}

#[tokio::test]
async fn plain_text_where_tls_was_expected_is_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://{}/v1", listener.local_addr().unwrap());
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 x\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        rest
    };
    let client = client(&endpoint, CANARY);
    let (received, result) = tokio::join!(server, complete(&client, "go"));
    let failure = result.unwrap_err();
    assert!(format!("{failure:?}").starts_with("Unreachable"), "{failure:?}");
    assert!(!String::from_utf8_lossy(&received).contains(CANARY));
}
