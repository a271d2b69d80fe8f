//! What the tests of this crate share: configurations, and servers that misbehave by hand.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of a test may fail it, and no test uses all of them"
)]

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use choir_messages::id::ModelCallId;
use choir_messages::json::Json;
use choir_messages::model::{ModelAnswer, ModelConfig, ModelFailure, ModelRequest, Turn};
use choir_messages::secret::Secret;
use choir_messages::tool::ToolView;
use choir_models::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The longest any test waits for what must happen.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// A key that must never be seen outside an Authorization header.
pub(crate) const CANARY: &str = "sk-canary-5f2d9c01";

pub(crate) fn config(endpoint: &str) -> ModelConfig {
    ModelConfig {
        name: "main".into(),
        model: "vendor/model".into(),
        endpoint: endpoint.into(),
        temperature: Some(0.2),
        reasoning_effort: None,
        secret: Some("key".into()),
        timeout_ms: 20_000,
        rate_limit_retry_ms: 1,
        extra: Json(Value::Null),
    }
}

pub(crate) fn request(text: &str) -> ModelRequest {
    let tools = ["choir.fs.read", "choir.fs.write", "choir.fs.search", "choir.exec"].map(|name| ToolView {
        name: name.into(),
        description: name.into(),
        input_schema: Json(json!({ "type": "object" })),
    });
    let turns = vec![Turn::System("be brief".into()), Turn::User(text.into())];
    ModelRequest { turns, tools: tools.into_iter().collect() }
}

pub(crate) fn client(endpoint: &str, key: &str) -> Client {
    Client::new(config(endpoint), Some(Secret::new(key.into()))).unwrap()
}

pub(crate) async fn complete(client: &Client, text: &str) -> Result<ModelAnswer, ModelFailure> {
    complete_request(client, &request(text)).await
}

pub(crate) async fn complete_request(
    client: &Client,
    request: &ModelRequest,
) -> Result<ModelAnswer, ModelFailure> {
    let call = client.complete(ModelCallId::fresh(), request, |_| {});
    tokio::time::timeout(WITHIN, call).await.expect("a call ends by its own deadline")
}

/// A server on loopback that does one thing to every connection, after it has read a request. Ends with the test.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    /// Everything that was sent to it.
    pub(crate) seen: Arc<Mutex<String>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start<F>(act: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/v1", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(String::new()));
        let record = Arc::clone(&seen);
        let act = Arc::new(act);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let (record, act) = (Arc::clone(&record), Arc::clone(&act));
                connections.spawn(async move {
                    let request = read_request(&mut stream).await;
                    record.lock().unwrap().push_str(&request);
                    act(stream).await;
                });
            }
        });
        Self { endpoint, seen, task }
    }

    /// Sends these bytes to everyone and closes.
    pub(crate) async fn says(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes: Arc<[u8]> = bytes.into().into();
        Self::start(move |mut stream| {
            let bytes = Arc::clone(&bytes);
            async move {
                let _ = stream.write_all(&bytes).await;
                let _ = stream.shutdown().await;
            }
        })
        .await
    }

    /// Answers with this status, these headers and this body.
    pub(crate) async fn responds(status: u16, headers: &str, body: &str) -> Self {
        let length = body.len();
        Self::says(format!("HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\n\r\n{body}")).await
    }

    pub(crate) fn seen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .filter_map(|line| line.split_once(": "))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .map_or(0, |(_, length)| length.trim().parse().unwrap());
            if body.len() >= length {
                return text.into_owned();
            }
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return String::from_utf8_lossy(&bytes).into_owned(),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
        }
    }
}
