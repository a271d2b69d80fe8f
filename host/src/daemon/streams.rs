//! Requests with many answers: what an agent says, a session's events, a log's lines.

use std::collections::VecDeque;
use std::io::SeekFrom;
use std::path::Path;
use std::time::Duration;

use choir_messages::event::Revision;
use choir_messages::id::{AgentId, SessionId};
use choir_persistence::store::changes::{ChangeKind, ChangesError};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

use super::front::Out;
use super::ops::{store, stored};
use super::shared::Host;
use crate::control::views::EventLine;
use crate::control::{ControlError, ErrorCode};
use crate::session::{AgentHandle, OutboxMsg};

/// Events read at a time.
const PAGE: u32 = 200;

/// Messages on their way to one chat; the outbox sends one at a time.
const CHAT_QUEUE: usize = 4;

/// How often a followed log is looked at.
const LOG_LOOK: Duration = Duration::from_millis(200);

/// Bytes of a log read at a time, and the most kept of a line that is not finished.
const LOG_CHUNK: usize = 64 * 1024;

/// Most lines given of a log's past.
const LOG_LINES: u32 = 10_000;

type Answer = Result<Value, ControlError>;

pub(super) async fn chat(handle: &AgentHandle, redeliver: bool, out: &Out) -> Answer {
    let (to, mut said) = mpsc::channel(CHAT_QUEUE);
    let attach = |reply| OutboxMsg::Attach { redeliver, to, reply };
    let channel = handle.outbox.call(Duration::from_secs(5), attach).await;
    let channel = channel.map_err(|e| ControlError::new(ErrorCode::Runtime, e.to_string()))?;
    let detach = Detach { handle, channel };
    loop {
        tokio::select! {
            () = out.closed() => break,
            next = said.recv() => match next {
                Some(view) => if out.item(&view).await.is_err() { break },
                None => {
                    drop(detach);
                    return Err(ControlError::new(ErrorCode::Negative, "another chat took over, or this one did not confirm what it showed")
                        .next(format!("`choirctl chat {}` takes over again", handle.agent)));
                }
            }
        }
    }
    drop(detach);
    Ok(Value::Null)
}

/// Detaches however the stream ends, also when its task is aborted.
struct Detach<'a> {
    handle: &'a AgentHandle,
    channel: u64,
}

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        let _ = self.handle.outbox.try_send(OutboxMsg::Detach { channel: self.channel });
    }
}

pub(super) async fn events(
    host: &Host,
    session: SessionId,
    mut after: Revision,
    follow: bool,
    out: &Out,
) -> Answer {
    let store = store(host)?;
    if store.session(session).await.map_err(stored)?.is_none() {
        return Err(stored(choir_persistence::StoreError::UnknownSession(session)));
    }
    let mut changes = store.changes();
    loop {
        loop {
            let page = store.events(session, after, PAGE).await.map_err(stored)?;
            let Some(last) = page.last() else { break };
            after = last.event.rev;
            for stored in page {
                let event = stored.event;
                let line = EventLine {
                    rev: event.rev,
                    at: event.at,
                    lane: event.lane.to_string(),
                    kind: event.body.kind().into(),
                    hash: event.hash.to_string(),
                    body: event.body,
                };
                if out.item(&line).await.is_err() {
                    return Ok(Value::Null);
                }
            }
        }
        if !follow {
            return Ok(json!({ "last": after }));
        }
        loop {
            let change = tokio::select! {
                () = out.closed() => return Ok(Value::Null),
                change = changes.next() => change,
            };
            match change {
                Ok(change) => {
                    if matches!(change.kind, ChangeKind::Journal { session: s, .. } if s == session) {
                        break;
                    }
                }
                Err(ChangesError::Missed(_)) => break,
                Err(ChangesError::Closed) => return Ok(json!({ "last": after })),
            }
        }
    }
}

pub(super) async fn logs(host: &Host, source: &str, lines: u32, follow: bool, out: &Out) -> Answer {
    // The source becomes a file's name: only what is one of ours.
    let known = source == "choird" || source.parse::<AgentId>().is_ok();
    let path = host.state.log_file(source);
    if !known || !path.exists() {
        let names = host.roster.all();
        let names = names.iter().map(|handle| handle.agent.as_str()).chain(["choird"]);
        let what = format!(
            "there is no log of \"{}\"; {}",
            source.chars().take(63).collect::<String>(),
            crate::config::known_list(names)
        );
        return Err(ControlError::new(ErrorCode::Negative, what));
    }
    let unreadable = |e: std::io::Error| {
        ControlError::new(ErrorCode::Runtime, format!("cannot read {}: {e}", path.display()))
    };
    let (past, mut at) = tail(&path, lines.min(LOG_LINES) as usize).await.map_err(unreadable)?;
    for line in past {
        if out.item(&line).await.is_err() {
            return Ok(Value::Null);
        }
    }
    if !follow {
        return Ok(Value::Null);
    }
    let mut rest = Vec::new();
    loop {
        tokio::select! {
            () = out.closed() => return Ok(Value::Null),
            () = tokio::time::sleep(LOG_LOOK) => {}
        }
        // A file that was archived meanwhile begins anew.
        let Ok(mut file) = tokio::fs::File::open(&path).await else { continue };
        let length = file.metadata().await.map_err(unreadable)?.len();
        if length < at {
            at = 0;
            rest.clear();
        }
        file.seek(SeekFrom::Start(at)).await.map_err(unreadable)?;
        let mut chunk = vec![0; LOG_CHUNK];
        loop {
            let read = file.read(&mut chunk).await.map_err(unreadable)?;
            if read == 0 {
                break;
            }
            at += read as u64;
            for line in split(&mut rest, chunk.get(..read).unwrap_or_default()) {
                if out.item(&line).await.is_err() {
                    return Ok(Value::Null);
                }
            }
        }
    }
}

/// The last lines of a file, and where it ended.
async fn tail(path: &Path, lines: usize) -> std::io::Result<(VecDeque<String>, u64)> {
    let mut file = tokio::fs::File::open(path).await?;
    let (mut last, mut rest, mut at) = (VecDeque::new(), Vec::new(), 0u64);
    let mut chunk = vec![0; LOG_CHUNK];
    loop {
        let read = file.read(&mut chunk).await?;
        if read == 0 {
            return Ok((last, at - rest.len() as u64));
        }
        at += read as u64;
        for line in split(&mut rest, chunk.get(..read).unwrap_or_default()) {
            last.push_back(line);
            if last.len() > lines {
                last.pop_front();
            }
        }
    }
}

/// Takes whole lines out of what was read; keeps what is not finished for the next time.
fn split(rest: &mut Vec<u8>, chunk: &[u8]) -> Vec<String> {
    rest.extend_from_slice(chunk);
    let mut lines = Vec::new();
    let mut from = 0;
    while let Some(end) = rest.iter().skip(from).position(|b| *b == b'\n') {
        let line = rest.get(from..from + end).unwrap_or_default();
        lines.push(String::from_utf8_lossy(line).into_owned());
        from += end + 1;
    }
    rest.drain(..from);
    if rest.len() > LOG_CHUNK {
        lines.push(String::from_utf8_lossy(rest).into_owned());
        rest.clear();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_the_bytes_came_in() {
        let mut rest = Vec::new();
        assert_eq!(split(&mut rest, b"one\ntw"), ["one"]);
        assert_eq!(split(&mut rest, b"o\n\nthree"), ["two", ""]);
        assert_eq!(rest, b"three");
        assert_eq!(split(&mut rest, &vec![b'x'; LOG_CHUNK]).len(), 1);
    }

    #[tokio::test]
    async fn the_tail_is_the_last_whole_lines_and_where_to_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::fs::write(&path, "1\n2\n3\nunfinished").unwrap();
        let (lines, at) = tail(&path, 2).await.unwrap();
        assert_eq!((lines, at), (VecDeque::from(["2".to_owned(), "3".to_owned()]), 6));
    }
}
