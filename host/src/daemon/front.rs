//! The front: the control socket's server. Only this user (and root) may connect; every line, request and write is
//! bounded; a client that misbehaves costs itself.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use choir_messages::mail::Mail;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, Slot, WhenFull, mailbox};
use serde::Serialize;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::ops;
use super::shared::Host;
use crate::control::lines::{Line, read_line};
use crate::control::{CONTROL_VERSION, ControlError, ErrorCode, Reply, ReplyLine, RequestLine};
use crate::limits;

/// Pause after an accept that failed, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The front's only message: accepting ended.
pub(crate) struct Ended;

impl Mail for Ended {
    fn label(&self) -> &'static str {
        "ended"
    }
}

struct Front {
    host: Arc<Host>,
    listener: Option<UnixListener>,
}

pub(crate) fn slot() -> Slot<Ended> {
    mailbox("front", MailboxSpec { capacity: 4, when_full: WhenFull::Refuse }).1
}

pub(crate) fn child_spec(slot: Slot<Ended>, host: Arc<Host>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let host = Arc::clone(&host);
        async move {
            let path = host.state.control_socket();
            // This process holds the state directory, so a socket that is there was left by an earlier one.
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            Ok(Front { host, listener: Some(listener) })
        }
    })
}

impl Actor for Front {
    type Msg = Ended;

    async fn started(&mut self, cx: &mut Context<Ended>) -> Result<(), Failure> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        cx.pipe_to_self(accept(listener, Arc::clone(&self.host)), |()| Ended)?;
        Ok(())
    }

    async fn handle(&mut self, Ended: Ended, _cx: &mut Context<Ended>) -> Result<(), Failure> {
        Err(Failure::new("the control socket is gone"))
    }

    async fn stopping(&mut self, _cx: &mut Context<Ended>) {
        let _ = std::fs::remove_file(self.host.state.control_socket());
    }
}

async fn accept(listener: UnixListener, host: Arc<Host>) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = clients.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if let Some(error) = not_welcome(&stream, clients.len()) {
                        tracing::warn!("{}", error.what);
                        clients.spawn(turn_away(stream, error));
                    } else {
                        clients.spawn(serve(stream, Arc::clone(&host)));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a client could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

fn not_welcome(stream: &UnixStream, clients: usize) -> Option<ControlError> {
    let me = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == me || peer.uid() == 0 => {}
        Ok(peer) => {
            let what = format!("user {} may not control the choird of user {me}", peer.uid());
            return Some(ControlError::new(ErrorCode::Refused, what));
        }
        Err(error) => {
            return Some(ControlError::new(ErrorCode::Refused, format!("who connects is unknown: {error}")));
        }
    }
    (clients >= limits::CONTROL_CLIENTS).then(|| {
        let what = format!("choird already has {} clients; close one", limits::CONTROL_CLIENTS);
        ControlError::new(ErrorCode::Refused, what)
    })
}

async fn turn_away(mut stream: UnixStream, error: ControlError) {
    if let Some(text) = to_line(0, Reply::Error(error)) {
        let _ = tokio::time::timeout(limits::CONTROL_WRITE, stream.write_all(text.as_bytes())).await;
    }
}

fn to_line(id: u64, reply: Reply) -> Option<String> {
    let mut text = serde_json::to_string(&ReplyLine { v: CONTROL_VERSION, id, reply }).ok()?;
    text.push('\n');
    Some(text)
}

/// Where one request's answers go.
#[derive(Clone)]
pub(super) struct Out {
    id: u64,
    lines: mpsc::Sender<String>,
    ended: watch::Receiver<bool>,
}

/// The client is gone.
pub(super) struct ClientGone;

impl Out {
    async fn say(&self, reply: Reply) -> Result<(), ClientGone> {
        let line = to_line(self.id, reply).ok_or(ClientGone)?;
        self.lines.send(line).await.map_err(|_| ClientGone)
    }

    /// One of many answers.
    pub(super) async fn item<T: Serialize>(&self, item: &T) -> Result<(), ClientGone> {
        let value = serde_json::to_value(item).map_err(|_| ClientGone)?;
        self.say(Reply::Item(value)).await
    }

    /// Resolves once the client has ended its side of the connection, or no longer reads: streams end then.
    pub(super) async fn closed(&self) {
        let mut ended = self.ended.clone();
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => {}
            () = self.lines.closed() => {}
        }
    }
}

async fn serve(stream: UnixStream, host: Arc<Host>) {
    let (read, mut write) = stream.into_split();
    let (lines, mut waiting) = mpsc::channel::<String>(limits::CONTROL_WRITE_QUEUE);
    let writer = async move {
        while let Some(line) = waiting.recv().await {
            let written = tokio::time::timeout(limits::CONTROL_WRITE, write.write_all(line.as_bytes())).await;
            if !matches!(written, Ok(Ok(()))) {
                break;
            }
        }
    };
    let reader = async move {
        let mut read = BufReader::new(read);
        let mut requests = JoinSet::new();
        let (end, ended) = watch::channel(false);
        loop {
            while requests.try_join_next().is_some() {}
            let out = |id| Out { id, lines: lines.clone(), ended: ended.clone() };
            let usage = |what: String| Reply::Error(ControlError::new(ErrorCode::Usage, what));
            let line = match read_line(&mut read, limits::CONTROL_LINE_BYTES).await {
                Ok(Line::Text(line)) => line,
                Ok(Line::TooLong) => {
                    let what = format!("a request has at most {} bytes", limits::CONTROL_LINE_BYTES);
                    if out(0).say(usage(what)).await.is_err() {
                        break;
                    }
                    continue;
                }
                Ok(Line::NotText) => {
                    if out(0).say(usage("a request is UTF-8 text".into())).await.is_err() {
                        break;
                    }
                    continue;
                }
                Ok(Line::End) | Err(_) => break,
            };
            match RequestLine::read(&line) {
                Err((id, error)) => {
                    if out(id).say(Reply::Error(error)).await.is_err() {
                        break;
                    }
                }
                Ok(request) if requests.len() >= limits::CONTROL_REQUESTS => {
                    let what = format!("at most {} requests at once", limits::CONTROL_REQUESTS);
                    let error = ControlError::new(ErrorCode::Refused, what);
                    if out(request.id).say(Reply::Error(error)).await.is_err() {
                        break;
                    }
                }
                Ok(request) => {
                    let (out, host) = (out(request.id), Arc::clone(&host));
                    requests.spawn(async move {
                        let reply = match ops::run(&host, request.op, &out).await {
                            Ok(value) => Reply::Done(value),
                            Err(error) => Reply::Error(error),
                        };
                        let _ = out.say(reply).await;
                    });
                }
            }
        }
        // A client that closed its writing half still hears what it asked for; streams end.
        end.send_replace(true);
        while requests.join_next().await.is_some() {}
    };
    // Either end of the connection ends it: the writer when the client no longer reads, the reader when all is answered.
    tokio::select! {
        () = writer => {}
        () = reader => {}
    }
}
