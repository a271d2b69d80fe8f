//! The client's end of the control socket: requests by id over one connection, streams beside them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::lines::{Line, read_line};
use super::protocol::{CONTROL_VERSION, ControlError, ErrorCode, Op, Reply, ReplyLine, RequestLine};

/// Longest answer line accepted, in bytes: a page of events, each up to its largest size, as JSON.
const ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// Answers buffered for one stream. A consumer that does not read stops the connection's reader, and with it choird's
/// writer, which is bounded too.
const STREAM_QUEUE: usize = 64;

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("choird is not running here (no answer at {socket}: {reason})")]
    NotRunning {
        /// The socket.
        socket: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The connection ended.
    #[error("choird closed the connection before it answered; what was asked may or may not have been done")]
    Lost,
    /// No answer in time.
    #[error("choird did not answer within {0:?}; what was asked may or may not have been done")]
    Deadline(Duration),
    /// choird said no.
    #[error(transparent)]
    Refused(#[from] ControlError),
    /// An answer of another shape than expected.
    #[error("choird's answer cannot be read: {0}")]
    Malformed(String),
}

impl ClientError {
    /// The error as `choirctl` reports it.
    #[must_use]
    pub fn to_control_error(&self) -> ControlError {
        match self {
            Self::Refused(error) => error.clone(),
            Self::NotRunning { .. } => ControlError::new(ErrorCode::Runtime, self.to_string()).next(
                "start it with `choird`, or name its folder with --state-dir; `choirctl doctor` looks closer",
            ),
            Self::Lost | Self::Deadline(_) => ControlError::new(ErrorCode::Runtime, self.to_string())
                .next("`choirctl status` shows how things stand"),
            Self::Malformed(_) => ControlError::new(ErrorCode::Internal, self.to_string()),
        }
    }
}

type Waiting = Arc<Mutex<HashMap<u64, mpsc::Sender<Reply>>>>;

/// One connection.
pub struct Client {
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    waiting: Waiting,
    next: AtomicU64,
    reader: AbortHandle,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reader.abort();
        // A stream that outlives its connection learns that it is over.
        lock(&self.waiting).clear();
    }
}

/// The answers to one request.
pub struct Stream {
    id: u64,
    answers: mpsc::Receiver<Reply>,
    waiting: Waiting,
    result: Option<serde_json::Value>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        lock(&self.waiting).remove(&self.id);
    }
}

fn lock(waiting: &Waiting) -> std::sync::MutexGuard<'_, HashMap<u64, mpsc::Sender<Reply>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Connects within `deadline`.
    pub async fn connect(socket: &Path, deadline: Duration) -> Result<Self, ClientError> {
        let not_running = |reason| ClientError::NotRunning { socket: socket.display().to_string(), reason };
        let stream = tokio::time::timeout(deadline, UnixStream::connect(socket))
            .await
            .map_err(|_| ClientError::Deadline(deadline))?
            .map_err(not_running)?;
        let (read, write) = stream.into_split();
        let waiting: Waiting = Arc::default();
        let answers = Arc::clone(&waiting);
        let reader = tokio::spawn(async move {
            let mut read = BufReader::new(read);
            while let Ok(Line::Text(line)) = read_line(&mut read, ANSWER_BYTES).await {
                let Ok(line) = serde_json::from_str::<ReplyLine>(&line) else { break };
                let to = lock(&answers).get(&line.id).cloned();
                if let Some(to) = to {
                    let last = !matches!(line.reply, Reply::Item(_));
                    if to.send(line.reply).await.is_err() || last {
                        lock(&answers).remove(&line.id);
                    }
                }
            }
            // Dropping the senders tells everyone who waits.
            lock(&answers).clear();
        })
        .abort_handle();
        Ok(Self { writer: tokio::sync::Mutex::new(write), waiting, next: AtomicU64::new(1), reader })
    }

    /// Sends a request; its answers come over the stream.
    pub async fn stream(&self, op: Op) -> Result<Stream, ClientError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let line = RequestLine { v: CONTROL_VERSION, id, op };
        let mut text = serde_json::to_string(&line).map_err(|e| ClientError::Malformed(e.to_string()))?;
        text.push('\n');
        let (to, answers) = mpsc::channel(STREAM_QUEUE);
        lock(&self.waiting).insert(id, to);
        let stream = Stream { id, answers, waiting: Arc::clone(&self.waiting), result: None };
        self.writer.lock().await.write_all(text.as_bytes()).await.map_err(|_| ClientError::Lost)?;
        if self.reader.is_finished() {
            return Err(ClientError::Lost);
        }
        Ok(stream)
    }

    /// Sends a request and waits for its one result. Items before it are dropped.
    pub async fn call<T: DeserializeOwned>(&self, op: Op, deadline: Duration) -> Result<T, ClientError> {
        let work = async {
            let mut stream = self.stream(op).await?;
            while stream.item().await?.is_some() {}
            stream.result()
        };
        tokio::time::timeout(deadline, work).await.map_err(|_| ClientError::Deadline(deadline))?
    }
}

impl Stream {
    /// The next item; none once the request is done. The result then waits for [`Stream::result`].
    pub async fn item(&mut self) -> Result<Option<serde_json::Value>, ClientError> {
        match self.answers.recv().await {
            Some(Reply::Item(item)) => Ok(Some(item)),
            Some(Reply::Done(result)) => {
                self.result = Some(result);
                Ok(None)
            }
            Some(Reply::Error(error)) => Err(error.into()),
            None => Err(ClientError::Lost),
        }
    }

    /// The result, after [`Stream::item`] said none.
    pub fn result<T: DeserializeOwned>(&mut self) -> Result<T, ClientError> {
        let result = self.result.take().ok_or(ClientError::Lost)?;
        serde_json::from_value(result).map_err(|e| ClientError::Malformed(e.to_string()))
    }
}
