//! A session's log as the host stored it or a sandbox sent it, and the state that is folded from it (`choir §7.4`).

use choir_messages::chain::Digest;
use choir_messages::codec;
use choir_messages::event::{Event, EventBody, Head};
use choir_messages::id::SessionId;
use choir_messages::limits::{TURN_BYTES_HARD, USER_MESSAGE_BYTES, USER_QUEUE};
use choir_messages::session::{PENDING_INJECTIONS, REMEMBERED_MESSAGES, SessionView};

/// Lines looked at: enough to run turns and more than fill what is remembered of one; the rest of a long input costs
/// time only.
const LINES: usize = 96;

/// The input is lines, each the canonical text of one event. An event that is read has a text that reads back as the
/// same event, over the link and from the store; one whose text was canonical keeps its place in the chain. Folding is
/// total, and `permits` foretells it; a refused event changes nothing; the state stays within its bounds and is the
/// same after a snapshot.
pub fn event_log(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut view = SessionView::new(SessionId::from_bits(1));
    let mut folded = false;
    for line in text.lines().take(LINES) {
        let Ok(event) = Event::from_canonical(line, Digest::of(line.as_bytes())) else { continue };
        assert_text_is_the_event(line, &event);
        folded |= fold(&mut view, &event);
    }
    assert_snapshot_is_the_view(&view);
    folded
}

fn assert_text_is_the_event(line: &str, event: &Event) {
    let bytes = codec::encode(event, u64::MAX).expect("an event can be encoded");
    let linked: Event = codec::decode(&bytes, bytes.len() as u64).expect("what was encoded can be decoded");
    assert_eq!(linked, *event);
    // An event that has no text of its own is refused wherever it turns up.
    let Ok(text) = event.canonical() else { return };
    let stored = Event::from_canonical(&text, event.hash).expect("canonical text can be read");
    assert_eq!(stored.canonical().as_ref(), Ok(&text));
    let Event { session, rev, at, lane, body, prev, hash: _ } = event;
    assert_eq!((&stored.session, &stored.rev, &stored.at), (session, rev, at));
    assert_eq!((&stored.lane, &stored.prev), (lane, prev));
    if !holds_json(body) {
        assert_eq!(stored.body, *body);
    }
    if text == line && *rev > 0 {
        let before = Head { rev: rev - 1, hash: *prev };
        assert_eq!(event.check(*session, before), Ok(text));
    }
}

/// JSON inside an event may change its spelling (`1.0` and `1`), never its meaning.
const fn holds_json(body: &EventBody) -> bool {
    matches!(
        body,
        EventBody::ToolCallRequested { .. }
            | EventBody::ToolResultCommitted { .. }
            | EventBody::CoreStarted { .. }
            | EventBody::CoreStopped { .. }
    )
}

fn fold(view: &mut SessionView, event: &Event) -> bool {
    let before = view.clone();
    let foretold = view.permits(&event.body);
    let applied = view.apply(event);
    assert_eq!(applied.as_ref().map_err(|illegal| illegal.rule).copied(), foretold);
    if applied.is_err() {
        assert_eq!(*view, before, "a refused event left a trace");
        return false;
    }
    assert_eq!(view.head, event.head());
    assert!(view.queue.len() <= USER_QUEUE && view.injections.len() <= PENDING_INJECTIONS);
    assert!(view.recorded.len() <= REMEMBERED_MESSAGES);
    // A message is shown when its turn begins, without asking for room.
    assert!(view.transcript_bytes() <= TURN_BYTES_HARD + USER_MESSAGE_BYTES);
    assert_eq!(view.turn.is_some(), !view.queue.is_empty());
    let _ = view.next();
    true
}

fn assert_snapshot_is_the_view(view: &SessionView) {
    let bytes = codec::encode(view, u64::MAX).expect("a view can be encoded");
    let restored: SessionView = codec::decode(&bytes, bytes.len() as u64).expect("a snapshot can be read");
    assert_eq!(restored, *view);
    let text = serde_json::to_string(view).expect("a view is JSON");
    let restored: SessionView = serde_json::from_str(&text).expect("a snapshot can be read");
    assert_eq!(restored, *view);
}
