//! Who gets in: tokens, host names, origins, TLS, and a thousand who say nothing.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use choir_chap_http::{
    Auth, Config, ConfigError, FrontConfig, Grant, Listen, ServeError, TlsFiles, TokenDigest, serve,
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{self, RootCertStore, pki_types::ServerName};

use crate::client::{Client, Events};
use crate::peer::{SOON, Stage, coordinator};
use crate::sockets::{self, try_open};

const CHAP: (&str, &str) = ("sec-websocket-protocol", "chap.v1");
const JSON: (&str, &str) = ("content-type", "application/json");

fn tokens() -> Auth {
    let grant = |token: &str, participants: &[&str]| Grant {
        digest: TokenDigest::of(token.as_bytes()),
        participants: Some(participants.iter().map(|&uri| uri.to_owned()).collect()),
    };
    Auth::Bearer(vec![
        grant("alices-token", &["human:alice"]),
        grant("bobs-token", &["human:bob", "agent:bob"]),
    ])
}

fn guarded() -> Config {
    let mut config = Config::loopback(0);
    config.front.auth = tokens();
    config
}

fn echo(from: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "test.echo", "params": {"from": from}}).to_string()
}

#[tokio::test]
async fn every_route_to_the_coordinator_wants_a_token() {
    let stage = Stage::set(guarded()).await;
    let port = stage.port();
    let mut client = Client::connect(port).await;
    for authorization in
        [None, Some("Bearer wrong"), Some("Basic alices-token"), Some("Bearer alices-token2")]
    {
        let headers: Vec<_> =
            authorization.map(|value| ("authorization", value)).into_iter().chain([JSON]).collect();
        for (method, path) in [
            ("POST", "/chap"),
            ("POST", "/mcp"),
            ("GET", "/mcp?workspace=w&participant=human:alice"),
            ("GET", "/chap/inbox?workspace=w&participant=human:alice"),
            ("GET", "/chap/events?workspace=w&participant=human:alice"),
            ("GET", "/chap/ws"),
            ("GET", "/chap"),
        ] {
            let answer = client.ask(method, path, &headers, echo("human:alice")).await;
            assert_eq!((answer.status.as_u16(), answer.code()), (401, -32002), "{method} {path}");
            assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"chap\"");
        }
    }
    assert!(try_open(port, "/chap/ws", &[CHAP]).await.is_err());
    assert!(try_open(port, "/chap/ws", &[CHAP, ("authorization", "Bearer alices-token")]).await.is_ok());
    assert_eq!(client.get("/healthz").await.status, 200);
    assert_eq!(client.get("/.well-known/chap").await.json()["authentication"], "bearer");
    stage.strike().await;
}

#[tokio::test]
async fn a_token_speaks_and_reads_only_for_its_participants() {
    let stage = Stage::set(guarded()).await;
    let mut client = Client::connect(stage.port()).await;
    let alice = ("authorization", "Bearer alices-token");
    let bob = ("authorization", "Bearer bobs-token");
    assert_eq!(
        client.ask("POST", "/chap", &[JSON, alice], echo("human:alice")).await.json()["result"]["from"],
        "human:alice"
    );
    assert_eq!(client.ask("POST", "/chap", &[JSON, alice], echo("agent:bob")).await.code(), -32011);
    assert_eq!(client.ask("POST", "/chap", &[JSON, bob], echo("agent:bob")).await.status, 200);
    for path in ["/chap/inbox", "/chap/events", "/mcp"] {
        let path = format!("{path}?workspace=w&participant=human:alice");
        let headers = [bob, ("accept", "text/event-stream")];
        let refused = client.ask("GET", &path, &headers, Body::empty()).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (403, -32011), "{path}");
    }
    let refused = try_open(
        stage.port(),
        "/chap/ws?workspace=w&participant=human:alice",
        &[CHAP, ("authorization", "Bearer bobs-token")],
    );
    assert!(refused.await.is_err());
    // Who can only be one need not say who.
    stage.peer.post("w", "human:alice", &json!({"n": 1}));
    let page = client.ask("GET", "/chap/inbox?workspace=w", &[alice], Body::empty()).await.json();
    assert_eq!(page["participant"], "human:alice");
    let mut events =
        Events::of(client.send("GET", "/chap/events?workspace=w", &[alice], Body::empty()).await);
    assert_eq!(events.next().await.unwrap().id, Some(1));
    stage.strike().await;
}

#[tokio::test]
async fn a_rebound_name_and_a_foreign_page_are_refused_on_every_route() {
    let stage = Stage::open().await;
    let port = stage.port();
    let mut client = Client::connect(port).await;
    let evil = format!("evil.example:{port}");
    let routes = [
        ("POST", "/chap"),
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("GET", "/chap/inbox?workspace=w&participant=human:a"),
        ("GET", "/chap/events?workspace=w&participant=human:a"),
        ("GET", "/chap/ws"),
        ("GET", "/healthz"),
        ("GET", "/.well-known/chap"),
        ("OPTIONS", "/chap"),
    ];
    for (method, path) in routes {
        let rebound = client.ask(method, path, &[JSON, ("host", &evil)], echo("human:a")).await;
        assert_eq!(rebound.status, 421, "{method} {path}");
        for origin in ["https://evil.example", "null", "http://localhost:1"] {
            let foreign = client.ask(method, path, &[JSON, ("origin", origin)], echo("human:a")).await;
            assert_eq!(foreign.status, 403, "{method} {path} from {origin}");
            assert_eq!(foreign.header("access-control-allow-origin"), "");
        }
    }
    let socket = [CHAP, ("origin", "https://evil.example")];
    assert!(try_open(port, "/chap/ws", &socket).await.is_err());
    let own = format!("http://127.0.0.1:{port}");
    assert!(try_open(port, "/chap/ws", &[CHAP, ("origin", &own)]).await.is_ok());
    for host in ["localhost", "[::1]:9", "127.0.0.1"] {
        assert_eq!(
            client.ask("GET", "/healthz", &[("host", host)], Body::empty()).await.status,
            200,
            "{host}"
        );
    }
    stage.strike().await;
}

#[tokio::test]
async fn a_configured_name_and_page_are_let_in() {
    let mut config = Config::loopback(0);
    config.front.hosts = vec!["chap.example".to_owned()];
    config.front.origins = vec!["https://desk.example".to_owned()];
    let stage = Stage::set(config).await;
    let mut client = Client::connect(stage.port()).await;
    let headers = [("host", "chap.example"), ("origin", "https://desk.example"), JSON];
    let answer = client.ask("POST", "/chap", &headers, echo("human:a")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), "https://desk.example");
    assert!(answer.header("vary").contains("Origin"));
    let before = client.ask("OPTIONS", "/chap", &headers, Body::empty()).await;
    assert_eq!(before.status, 204);
    assert!(before.header("access-control-allow-headers").contains("authorization"));
    stage.strike().await;
}

#[tokio::test]
async fn a_thousand_silent_connections_do_not_keep_out_one_that_speaks() {
    let mut config = Config::loopback(0);
    config.front.limits.connections = 64;
    let stage = Stage::set(config).await;
    let port = stage.port();
    let mut regular = Client::connect(port).await;
    assert_eq!(regular.post(echo("human:a")).await.status, 200);
    let mut busy = Client::connect(port).await;
    let held = tokio::spawn(async move {
        busy.post(json!({"jsonrpc": "2.0", "id": 1, "method": "test.hold", "params": {}}).to_string()).await
    });
    stage.peer.until_held(1).await;
    let mut socket = sockets::open(port, "/chap/ws").await;
    let path = "/chap/events?workspace=w&participant=human:a";
    let mut events = Events::of(Client::connect(port).await.send("GET", path, &[], Body::empty()).await);
    let mut silent = Vec::new();
    for n in 0..1000 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        if n % 2 == 0 {
            let _ = stream.write_all(b"POST /chap HTTP/1.1\r\nHost: loc").await;
        }
        silent.push(stream);
    }
    let mut fresh = Client::connect(port).await;
    assert_eq!(fresh.post(echo("human:a")).await.status, 200);
    assert_eq!(regular.post(echo("human:a")).await.status, 200, "a connection of use outlasts silent ones");
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "test.echo", "params": {}});
    sockets::say(&mut socket, &call).await;
    assert_eq!(sockets::hear(&mut socket).await["id"], 7, "so does a socket");
    stage.peer.post("w", "human:a", &json!({"n": 1}));
    assert_eq!(events.next().await.unwrap().id, Some(1), "and a stream");
    assert!(*stage.serving.connections().borrow() <= 64);
    stage.peer.release();
    assert_eq!(held.await.unwrap().json()["result"], "released");
    drop(silent);
    stage.strike().await;
}

#[tokio::test]
async fn silence_has_a_deadline_before_the_first_request_in_a_head_and_between_requests() {
    let mut config = Config::loopback(0);
    config.front.limits.first_request_within = Duration::from_millis(50);
    config.front.limits.head_within = Duration::from_millis(100);
    let stage = Stage::set(config).await;
    let mut byte = [0; 1];
    let mut silent = TcpStream::connect(("127.0.0.1", stage.port())).await.unwrap();
    assert_eq!(tokio::time::timeout(SOON, silent.read(&mut byte)).await.unwrap().unwrap(), 0);
    let mut halting = TcpStream::connect(("127.0.0.1", stage.port())).await.unwrap();
    halting.write_all(b"GET /healthz HTTP/1.1\r\nHost: local").await.unwrap();
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(SOON, halting.read_to_end(&mut rest)).await.unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", stage.port())).await.unwrap();
    client.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(SOON, client.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    stage.strike().await;
}

#[tokio::test]
async fn bytes_that_are_no_http_end_their_connection_only() {
    let stage = Stage::open().await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"GET\r\n\r\n",
        b"POST /chap HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: abc\r\n\r\n",
        b"POST /chap HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: -1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", stage.port())).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.unwrap();
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(Client::connect(stage.port()).await.post(echo("human:a")).await.status, 200);
    stage.strike().await;
}

#[tokio::test]
async fn off_loopback_nothing_is_served_without_tls_and_a_token() {
    let (peer, tree) = coordinator().await;
    let mut config = guarded();
    config.listen = Listen::Tcp("0.0.0.0:0".parse().unwrap());
    let refused = serve(config.clone(), peer.address.clone(), &[]).await;
    assert!(matches!(refused, Err(ServeError::Config(ConfigError::ClearText(_)))));
    config.front.auth = Auth::None;
    config.tls = Some(TlsFiles { certificates: "c.pem".into(), key: "k.pem".into() });
    let refused = serve(config, peer.address.clone(), &[]).await.err().unwrap();
    assert!(refused.to_string().contains("configure tokens"), "{refused}");
    assert_eq!(tree.shutdown().await.left, 0);
}

#[tokio::test]
async fn tls_carries_calls_and_streams_and_a_client_that_never_shakes_hands_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles { certificates: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
    let made = rcgen::generate_simple_self_signed(vec!["chap.example".to_owned()]).unwrap();
    std::fs::write(&files.certificates, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let mut config = guarded();
    config.tls = Some(files);
    config.front.hosts = vec!["chap.example".to_owned()];
    config.front.limits.first_request_within = Duration::from_millis(500);
    let stage = Stage::set(config).await;
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let connect = async |versions: &[&'static rustls::SupportedProtocolVersion]| {
        let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let stream = TcpStream::connect(("127.0.0.1", stage.port())).await.unwrap();
        let name = ServerName::try_from("chap.example").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    assert!(connect(&[&rustls::version::TLS12]).await.is_err(), "TLS 1.3 is the least");
    let stream = connect(&[&rustls::version::TLS13]).await.unwrap();
    let mut client = Client::over(stream, "chap.example".to_owned()).await;
    let token = ("authorization", "Bearer alices-token");
    assert_eq!(client.ask("POST", "/chap", &[JSON, token], echo("human:alice")).await.status, 200);
    stage.peer.post("w", "human:alice", &json!({"n": 1}));
    let response = client.send("GET", "/chap/events?workspace=w", &[token], Body::empty()).await;
    assert_eq!(Events::of(response).next().await.unwrap().id, Some(1));
    let mut silent = TcpStream::connect(("127.0.0.1", stage.port())).await.unwrap();
    assert_eq!(tokio::time::timeout(SOON, silent.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
    let plain = TcpStream::connect(("127.0.0.1", stage.port())).await.unwrap();
    let mut plain = Client::over(plain, "chap.example".to_owned()).await;
    assert!(plain.try_send("GET", "/healthz", &[], Body::empty()).await.is_err());
    stage.strike().await;
}

#[tokio::test]
async fn a_unix_socket_serves_the_same() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let path = dir.path().join("chap.sock");
    let config = Config { listen: Listen::Unix(path.clone()), tls: None, front: FrontConfig::default() };
    let stage = Stage::set(config).await;
    let mut client = Client::over(UnixStream::connect(&path).await.unwrap(), "localhost".to_owned()).await;
    assert_eq!(client.post(echo("human:a")).await.status, 200);
    stage.strike().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn workspaces_are_listed_page_by_page_for_operators_only() {
    let listing = |auth, listing| {
        let mut config = Config::loopback(0);
        config.front = FrontConfig { auth, listing, ..FrontConfig::default() };
        config
    };
    let stage = Stage::set(listing(Auth::None, true)).await;
    for workspace in ["b", "a", "c"] {
        stage.peer.post(workspace, "human:a", &json!({}));
    }
    let mut client = Client::connect(stage.port()).await;
    let first = client.get("/chap/workspaces?limit=2").await.json();
    assert_eq!(
        first["workspaces"],
        json!([{"workspace": "a", "entries": 0}, {"workspace": "b", "entries": 0}])
    );
    let rest = client.get("/chap/workspaces?limit=2&after=b").await.json();
    assert_eq!((&rest["workspaces"][0]["workspace"], &rest["next"]), (&json!("c"), &json!("c")));
    assert_eq!(client.get("/chap/workspaces?after=c").await.json()["workspaces"], json!([]));
    for odd in ["limit=-1", "limit=x", "after=a&after=b"] {
        assert_eq!(client.get(&format!("/chap/workspaces?{odd}")).await.status, 400, "{odd}");
    }
    stage.strike().await;

    let grant = |token: &[u8], participants: Option<&str>| Grant {
        digest: TokenDigest::of(token),
        participants: participants.map(|uri| [uri.to_owned()].into()),
    };
    let auth = Auth::Bearer(vec![grant(b"alice", Some("human:a")), grant(b"operator", None)]);
    for (open, wanted) in [(true, 200), (false, 403)] {
        let stage = Stage::set(listing(auth.clone(), open)).await;
        let mut client = Client::connect(stage.port()).await;
        for (token, wanted) in [("alice", 403), ("operator", wanted), ("nobody", 401)] {
            let bearer = format!("Bearer {token}");
            let answer =
                client.ask("GET", "/chap/workspaces", &[("authorization", &bearer)], Body::empty()).await;
            assert_eq!(answer.status, wanted, "{token}: {}", answer.text);
        }
        stage.strike().await;
    }
}
