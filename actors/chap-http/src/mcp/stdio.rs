//! MCP over lines: one message a line each way, as on the standard input and output of a process that an MCP client
//! starts.

use std::io;
use std::sync::Arc;

use choir_messages::mail::Caller;
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tracing::Instrument as _;

use super::{Incoming, Reply, Step};
use crate::auth::Identity;
use crate::front::Front;
use crate::limits::CALLS_PER_SOCKET;
use crate::mcp_http;
use crate::trace;

/// How a connection over lines ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnd {
    /// The client closed its end, and has had every answer.
    Closed,
    /// The server was told to stop.
    Stopped,
}

/// Serves one MCP client over lines until it closes its end or the front is stopped. `caller` is whom the process acts
/// for. A line that is longer than a call may be is skipped and answered with an error.
pub async fn serve_lines(
    front: &Front,
    caller: Caller,
    reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) -> io::Result<LineEnd> {
    let who = Arc::new(Identity { caller, account: 0 });
    let mut lines = Lines::new(reader, front.limits().body_bytes());
    let mut calls: FuturesUnordered<BoxFuture<'_, Reply>> = FuturesUnordered::new();
    let mut stopped = std::pin::pin!(front.stopped());
    let mut closed = false;
    loop {
        if closed && calls.is_empty() {
            return Ok(LineEnd::Closed);
        }
        let reply = tokio::select! {
            biased;
            () = &mut stopped => return Ok(LineEnd::Stopped),
            Some(reply) = calls.next() => Some(reply),
            line = lines.next(), if !closed && calls.len() < CALLS_PER_SOCKET => match line? {
                Line::End => {
                    closed = true;
                    None
                }
                Line::TooLong => Some(too_long(front.limits().body_bytes())),
                Line::Text(line) if line.trim_ascii().is_empty() => None,
                Line::Text(line) => {
                    match front.mcp().step(Incoming { bytes: &line, routing: None, notices: false }) {
                        Step::Silent => None,
                        Step::Reply(reply) => Some(reply),
                        Step::Call(call) => {
                            let who = Arc::clone(&who);
                            let call = async move { mcp_http::carry_out(front, &who, call).await };
                            calls.push(call.instrument(trace::call("stdio")).boxed());
                            None
                        }
                    }
                }
            },
        };
        if let Some(reply) = reply {
            let mut line = reply.body.into_bytes();
            line.push(b'\n');
            let sent = async {
                writer.write_all(&line).await?;
                writer.flush().await
            };
            tokio::time::timeout(front.limits().write_within, sent).await.map_err(io::Error::from)??;
        }
    }
}

fn too_long(most: usize) -> Reply {
    let message = format!("A message is longer than {most} bytes; it was skipped");
    let error = serde_json::json!({"code": super::INVALID_REQUEST, "message": message});
    let body = serde_json::json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
    Reply { body, status: 413, opens: false }
}

/// Lines of bounded length. Nothing is lost when [`Lines::next`] is dropped half way.
struct Lines<R> {
    reader: R,
    most: usize,
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that hold no line end.
    searched: usize,
    /// The line under way is too long: its rest is thrown away.
    skipping: bool,
    ended: bool,
}

enum Line {
    Text(Vec<u8>),
    TooLong,
    End,
}

/// Bytes read at once.
const CHUNK: usize = 16 * 1024;

impl<R: AsyncRead + Unpin> Lines<R> {
    const fn new(reader: R, most: usize) -> Self {
        Self { reader, most, buffer: Vec::new(), searched: 0, skipping: false, ended: false }
    }

    async fn next(&mut self) -> io::Result<Line> {
        loop {
            if let Some(line) = self.ready() {
                return Ok(line);
            }
            let mut chunk = [0; CHUNK];
            let read = self.reader.read(&mut chunk).await?;
            self.ended = read == 0;
            self.buffer.extend_from_slice(chunk.get(..read).unwrap_or_default());
        }
    }

    fn ready(&mut self) -> Option<Line> {
        let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
        if let Some(found) = unsearched.iter().position(|byte| *byte == b'\n') {
            let rest = self.buffer.split_off(self.searched + found + 1);
            let mut line = std::mem::replace(&mut self.buffer, rest);
            line.pop();
            self.searched = 0;
            let too_long = std::mem::take(&mut self.skipping) || line.len() > self.most;
            return Some(if too_long { Line::TooLong } else { Line::Text(line) });
        }
        if self.ended {
            self.searched = 0;
            let line = std::mem::take(&mut self.buffer);
            return Some(match (std::mem::take(&mut self.skipping), line.is_empty()) {
                (true, _) => Line::TooLong,
                (false, true) => Line::End,
                (false, false) => Line::Text(line),
            });
        }
        if self.skipping || self.buffer.len() > self.most {
            self.skipping = true;
            self.buffer = Vec::new();
        }
        self.searched = self.buffer.len();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    async fn all(input: Vec<u8>, most: usize, step: usize) -> Vec<Option<Vec<u8>>> {
        let (mut theirs, ours) = tokio::io::duplex(step);
        let writer = tokio::spawn(async move {
            let _ = theirs.write_all(&input).await;
        });
        let mut lines = Lines::new(ours, most);
        let mut found = Vec::new();
        loop {
            match lines.next().await.unwrap() {
                Line::Text(line) => found.push(Some(line)),
                Line::TooLong => found.push(None),
                Line::End => break,
            }
        }
        writer.await.unwrap();
        found
    }

    proptest! {
        #[test]
        fn lines_come_whole_however_they_are_cut_and_long_ones_are_skipped(
            sent in proptest::collection::vec(proptest::collection::vec(97_u8..=99, 0..30), 0..8),
            step in 1_usize..40,
            last_ended in any::<bool>(),
        ) {
            const MOST: usize = 20;
            let mut input = sent.join(&b'\n');
            let mut expected: Vec<Option<Vec<u8>>> =
                sent.iter().map(|line| (line.len() <= MOST).then(|| line.clone())).collect();
            if last_ended && !sent.is_empty() {
                input.push(b'\n');
            } else if expected.last().is_some_and(|last| last.as_ref().is_some_and(Vec::is_empty)) {
                // Nothing after the last line end is no line.
                expected.pop();
            }
            // The last line without its end may be longer than allowed by what one read brought.
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = runtime.block_on(all(input, MOST, step));
            prop_assert_eq!(found, expected);
        }
    }
}
