//! A small HTTP client for these tests, which sends exactly what it is told to.

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use futures_util::StreamExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::peer::SOON;

/// One connection.
pub(crate) struct Client {
    send: http1::SendRequest<Body>,
    host: String,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// The code of the JSON-RPC error in it.
    pub(crate) fn code(&self) -> i64 {
        self.json()["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }
}

impl Client {
    pub(crate) async fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        Self::over(stream, format!("127.0.0.1:{port}")).await
    }

    pub(crate) async fn over(
        wire: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        host: String,
    ) -> Self {
        let (send, connection) = http1::handshake(TokioIo::new(wire)).await.unwrap();
        // Ends with the client or the server.
        tokio::spawn(connection);
        Self { send, host }
    }

    /// Sends a request; `Host` is this connection's unless given.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Response<Body> {
        self.try_send(method, path, headers, body).await.unwrap()
    }

    pub(crate) async fn try_send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> hyper::Result<Response<Body>> {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.header("host", &self.host);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let sent = self.send.send_request(request.body(body.into()).unwrap());
        Ok(tokio::time::timeout(SOON, sent).await.expect("an answer in time")?.map(Body::new))
    }

    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        read(self.send(method, path, headers, body).await).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, &[], Body::empty()).await
    }

    /// `POST /chap` with a JSON body.
    pub(crate) async fn post(&mut self, body: impl Into<Body>) -> Answer {
        self.ask("POST", "/chap", &[("content-type", "application/json")], body).await
    }
}

pub(crate) async fn read(response: Response<Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(SOON, axum::body::to_bytes(body, usize::MAX)).await.unwrap().unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    Answer { status: parts.status, headers: parts.headers, text }
}

/// The events of a stream.
pub(crate) struct Events {
    chunks: axum::body::BodyDataStream,
    read: String,
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<u64>,
    pub(crate) name: Option<String>,
    pub(crate) data: String,
    pub(crate) is_comment: bool,
}

impl Event {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap()
    }
}

impl Events {
    pub(crate) fn of(response: Response<Body>) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { chunks: response.into_body().into_data_stream(), read: String::new() }
    }

    /// The next event or comment; `None` when the stream is over.
    pub(crate) async fn any(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let fields = |name: &str| -> Vec<String> {
                    event.lines().filter_map(|line| line.strip_prefix(name)).map(str::to_owned).collect()
                };
                let event = Event {
                    id: fields("id: ").first().map(|id| id.parse().unwrap()),
                    name: fields("event: ").first().cloned(),
                    data: fields("data: ").join("\n"),
                    is_comment: event.starts_with(':'),
                };
                self.read = rest.to_owned();
                return Some(event);
            }
            match tokio::time::timeout(SOON, self.chunks.next()).await.expect("an event in time") {
                Some(Ok(chunk)) => self.read.push_str(std::str::from_utf8(&chunk).unwrap()),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// The next event that has data.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            let event = self.any().await?;
            if !event.data.is_empty() {
                return Some(event);
            }
        }
    }
}
