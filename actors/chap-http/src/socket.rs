//! `GET /chap/ws`: CHAP over a WebSocket with the subprotocol `chap.v1`.
//!
//! - A text frame is one JSON-RPC call; its answer comes back as one text frame with the same id. Calls reach the
//!   Coordinator in the order of their frames; answers come as they are ready.
//! - `notify.subscribe` {workspace, participant, since} is answered by the transport with {subscribed, workspace,
//!   participant, next}; from then on each notice after `since` comes as a JSON-RPC notification `notify.notice`
//!   {workspace, participant, number, notice}. `notify.unsubscribe` {workspace, participant} ends that. The query
//!   `?workspace=&participant=&since=` subscribes at once.
//! - When a subscription is ended by the Coordinator, the notification `notify.refused` {workspace, participant, error}
//!   says so.

mod own;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use choir_messages::chap::Notice;
use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable, Aborted, BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::Instrument as _;

use crate::accounts::{Place, Reserved};
use crate::auth::Identity;
use crate::connections::Held;
use crate::front::Front;
use crate::inbox::{NoticeQuery, Wanted, understood};
use crate::limits::{CALLS_PER_SOCKET, SUBSCRIPTIONS_PER_SOCKET};
use crate::refusal::{Refusal, id_of};
use crate::subscription::{Heard, Subscription};
use crate::trace;
use own::{Own, OwnCall};

/// The subprotocol a client must offer.
pub(crate) const SUBPROTOCOL: &str = "chap.v1";

/// Buffers of one socket: small, since frames are read and written one at a time.
const BUFFER_BYTES: usize = 8 * 1024;

pub(crate) async fn open(
    State(front): State<Front>,
    Extension(who): Extension<Identity>,
    held: Option<Extension<Arc<Held>>>,
    query: Result<Query<NoticeQuery>, QueryRejection>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    // The connection is in use for as long as the socket lives, not only until the answer to the upgrade is written.
    let in_use = held.map(|Extension(held)| held.begin());
    match prepare(&front, &who, query, upgrade).await {
        Ok(Prepared { upgrade, first, place }) => upgrade.on_upgrade(move |socket| async move {
            let _kept = (place, in_use);
            Conversation::new(front, who, socket).run(first).await;
        }),
        Err(refusal) => refusal.into_response(),
    }
}

/// A socket that may be opened.
struct Prepared {
    upgrade: WebSocketUpgrade,
    first: Option<Subscription>,
    place: Place<usize>,
}

async fn prepare(
    front: &Front,
    who: &Identity,
    query: Result<Query<NoticeQuery>, QueryRejection>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Prepared, Refusal> {
    let upgrade = upgrade.map_err(|_| {
        let message =
            "This address takes POST for single calls, or a WebSocket with the subprotocol chap.v1.";
        Refusal::new(StatusCode::UPGRADE_REQUIRED, message)
    })?;
    let most = front.limits().frame_bytes();
    let upgrade = upgrade
        .protocols([SUBPROTOCOL])
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(most)
        .max_frame_size(most);
    if upgrade.selected_protocol().is_none() {
        let message = "Offer the WebSocket subprotocol chap.v1 (Sec-WebSocket-Protocol).";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
    }
    let place = front.sockets().begin(who.account)?;
    let query = understood(query)?;
    let first = if query.names_anyone() {
        let wanted = query.wanted(who)?;
        Some(Subscription::open(front, who, wanted).await?)
    } else {
        None
    };
    Ok(Prepared { upgrade, first, place })
}

/// What names a subscription within a socket.
type Key = (String, String);

/// One socket's life.
struct Conversation {
    front: Front,
    who: Identity,
    socket: WebSocket,
    calls: FuturesUnordered<BoxFuture<'static, Bytes>>,
    subscriptions: FuturesUnordered<BoxFuture<'static, Result<(Subscription, Heard), Aborted>>>,
    /// How to end each subscription.
    open: HashMap<Key, AbortHandle>,
    last_frame: Instant,
    last_call: Instant,
}

/// Why a socket ends.
enum End {
    /// The client has gone, or does not take what it is owed.
    Gone,
    /// We close, with this code and reason.
    Close(u16, &'static str),
}

impl Conversation {
    fn new(front: Front, who: Identity, socket: WebSocket) -> Self {
        let now = Instant::now();
        Self {
            front,
            who,
            socket,
            calls: FuturesUnordered::new(),
            subscriptions: FuturesUnordered::new(),
            open: HashMap::new(),
            last_frame: now,
            last_call: now,
        }
    }

    async fn run(mut self, first: Option<Subscription>) {
        if let Some(first) = first {
            self.follow(first);
        }
        let End::Close(code, reason) = self.converse().await else { return };
        let close = Message::Close(Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) }));
        let _ = tokio::time::timeout(self.front.limits().write_within, self.socket.send(close)).await;
    }

    async fn converse(&mut self) -> End {
        let front = self.front.clone();
        let mut stopped = std::pin::pin!(front.stopped());
        let mut ticks = tokio::time::interval(front.limits().ping_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            let listening = self.calls.len() < CALLS_PER_SOCKET;
            let end = tokio::select! {
                biased;
                () = &mut stopped => Some(End::Close(close_code::AWAY, "the server is ending")),
                _ = ticks.tick() => self.tick(listening).await,
                Some(answer) = self.calls.next() => self.say(answer).await.err(),
                Some(heard) = self.subscriptions.next() => self.hear(heard).await.err(),
                frame = self.socket.recv(), if listening => self.take(frame).await.err(),
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Pings, and ends a socket that is dead or of no use.
    async fn tick(&mut self, listening: bool) -> Option<End> {
        let now = Instant::now();
        let limits = self.front.limits();
        if !listening {
            // Its frames wait in the network while so many calls are open; that is not its silence.
            self.last_frame = now;
        } else if now.saturating_duration_since(self.last_frame) > limits.socket_silent {
            return Some(End::Gone);
        }
        let in_use = !self.calls.is_empty() || !self.open.is_empty();
        if !in_use && now.saturating_duration_since(self.last_call) > limits.socket_idle {
            return Some(End::Close(close_code::NORMAL, "no call for a long time"));
        }
        self.send(Message::Ping(Bytes::new())).await.err()
    }

    async fn take(&mut self, frame: Option<Result<Message, axum::Error>>) -> Result<(), End> {
        let text = match frame {
            None | Some(Ok(Message::Close(_))) => return Err(End::Gone),
            Some(Err(_)) => {
                return Err(End::Close(close_code::SIZE, "a frame that is not valid, or too long"));
            }
            Some(Ok(Message::Binary(_))) => {
                return Err(End::Close(close_code::UNSUPPORTED, "calls are text frames"));
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {
                self.last_frame = Instant::now();
                return Ok(());
            }
            Some(Ok(Message::Text(text))) => text,
        };
        self.last_frame = Instant::now();
        self.last_call = self.last_frame;
        if let Some(own) = OwnCall::find(&text) {
            let answer = self.own_call(own).await;
            return self.say(answer.to_string().into()).await;
        }
        let mut reserved = Reserved::default();
        let admitted = self.front.budget().grow(&mut reserved, text.len());
        let permit = match admitted.and_then(|()| self.front.accounts().begin(self.who.account)) {
            Ok(permit) => permit,
            Err(refusal) => {
                return self.say(refusal.body(&id_of(text.as_bytes())).to_string().into()).await;
            }
        };
        let (front, who) = (self.front.clone(), self.who.clone());
        let mut call = async move {
            let _held = (permit, reserved);
            let bytes: Arc<[u8]> = text.as_bytes().into();
            match front.call(Arc::clone(&bytes), &who).await {
                Ok(answer) => Bytes::from_owner(answer),
                Err(failed) => failed.refusal().body(&id_of(&bytes)).to_string().into(),
            }
        }
        .instrument(trace::call("websocket"))
        .boxed();
        // Polled once here, so that calls stand in the Coordinator's mailbox in the order of their frames.
        match std::future::poll_fn(|cx| Poll::Ready(call.poll_unpin(cx))).await {
            Poll::Ready(answer) => self.say(answer).await,
            Poll::Pending => {
                self.calls.push(call);
                Ok(())
            }
        }
    }

    async fn own_call(&mut self, own: OwnCall) -> Value {
        let id = own.id.clone();
        let done = match own.method {
            Own::Subscribe => self.subscribe(&own).await,
            Own::Unsubscribe => self.unsubscribe(&own),
        };
        match done {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(refusal) => refusal.body(&id),
        }
    }

    async fn subscribe(&mut self, own: &OwnCall) -> Result<Value, Refusal> {
        let wanted = own.wanted(&self.who)?;
        let key = (wanted.workspace.clone(), wanted.participant.clone());
        if !self.open.contains_key(&key) && self.open.len() >= SUBSCRIPTIONS_PER_SOCKET {
            return Err(Refusal::too_many(
                "This socket has all its subscriptions; end one with notify.unsubscribe.",
            ));
        }
        // A repeat starts anew at its `since`.
        if let Some(old) = self.open.remove(&key) {
            old.abort();
        }
        let permit = self.front.accounts().begin(self.who.account)?;
        let subscription = Subscription::open(&self.front, &self.who, wanted).await?;
        drop(permit);
        let wanted = subscription.wanted();
        let result = json!({
            "subscribed": true,
            "workspace": wanted.workspace,
            "participant": wanted.participant,
            "next": wanted.after,
        });
        self.follow(subscription);
        Ok(result)
    }

    fn unsubscribe(&mut self, own: &OwnCall) -> Result<Value, Refusal> {
        let wanted = own.wanted(&self.who)?;
        let ended = self.open.remove(&(wanted.workspace, wanted.participant));
        if let Some(ended) = &ended {
            ended.abort();
        }
        Ok(json!({"unsubscribed": ended.is_some()}))
    }

    /// Waits for what this subscription has to say next.
    fn follow(&mut self, mut subscription: Subscription) {
        let key = key_of(subscription.wanted());
        let (handle, registration) = AbortHandle::new_pair();
        self.open.insert(key, handle);
        let next = async move {
            let heard = subscription.next().await;
            (subscription, heard)
        };
        self.subscriptions.push(Abortable::new(next, registration).boxed());
    }

    async fn hear(&mut self, heard: Result<(Subscription, Heard), Aborted>) -> Result<(), End> {
        // An aborted one has been taken off the list by whoever aborted it.
        let Ok((subscription, heard)) = heard else { return Ok(()) };
        let wanted = subscription.wanted().clone();
        match heard {
            Heard::Notices(notices) => {
                for notice in &notices {
                    self.say(pushed(&wanted, notice).into()).await?;
                }
                self.follow(subscription);
            }
            Heard::Quiet => self.follow(subscription),
            Heard::Refused(error) => {
                self.open.remove(&key_of(&wanted));
                let params =
                    json!({"workspace": wanted.workspace, "participant": wanted.participant, "error": error});
                let notification = json!({"jsonrpc": "2.0", "method": "notify.refused", "params": params});
                self.say(notification.to_string().into()).await?;
            }
            Heard::Over => return Err(End::Close(close_code::RESTART, "the notices cannot be had now")),
        }
        Ok(())
    }

    /// Sends JSON text.
    async fn say(&mut self, text: Bytes) -> Result<(), End> {
        match Utf8Bytes::try_from(text) {
            Ok(text) => self.send(Message::Text(text)).await,
            Err(_) => Err(End::Close(close_code::ERROR, "an answer was not text")),
        }
    }

    /// Sends; whoever does not take it in time is gone.
    async fn send(&mut self, message: Message) -> Result<(), End> {
        match tokio::time::timeout(self.front.limits().write_within, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(End::Gone),
        }
    }
}

fn key_of(wanted: &Wanted) -> Key {
    (wanted.workspace.clone(), wanted.participant.clone())
}

fn pushed(wanted: &Wanted, notice: &Notice) -> String {
    let (workspace, participant) =
        (Value::from(wanted.workspace.as_str()), Value::from(wanted.participant.as_str()));
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notify.notice\",\"params\":{{\"workspace\":{workspace},\
         \"participant\":{participant},\"number\":{},\"notice\":{}}}}}",
        notice.number, notice.body
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pushed_notice_carries_its_stored_text() {
        let wanted = Wanted { workspace: "w".into(), participant: "human:a".into(), after: 0 };
        let notice = Notice { number: 5, to: "human:a".into(), body: "{\"z\":1,\"a\":2}".into() };
        let text = pushed(&wanted, &notice);
        assert!(text.contains("{\"z\":1,\"a\":2}"));
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["params"]["number"], 5);
        assert_eq!(read.get("id"), None);
    }
}
