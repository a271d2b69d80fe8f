use super::*;
use crate::limits::CALLS_IN_FLIGHT;
use proptest::prelude::*;

const PORT: u64 = 77;

fn guard(side: Side, now: Instant) -> Guard {
    Guard::new(side, PORT, &LinkLimits::default(), now)
}

fn call(to: u64, tag: u64, what: &[u8]) -> Frame<'_> {
    Frame::Call(Call { to, tag, timeout_ms: Some(1000), method: METHOD, has_metadata: false, what })
}

fn reply(to: u64, tag: u64, what: &[u8]) -> Frame<'_> {
    Frame::Reply(Reply { to, tag, what })
}

#[test]
fn a_call_reaches_the_one_gate_under_its_local_id_with_a_clamped_timeout() {
    let now = Instant::now();
    let mut guard = guard(Side::Host, now);
    let asked = Call {
        to: GATE,
        tag: 5,
        timeout_ms: Some(u64::MAX),
        method: METHOD,
        has_metadata: false,
        what: b"x",
    };
    let Ok(FromPeer::Forward(Frame::Call(passed))) = guard.from_peer(&Frame::Call(asked), now) else {
        panic!("not passed")
    };
    assert_eq!((passed.to, passed.tag, passed.what), (PORT, 5, &b"x"[..]));
    let most = (crate::limits::CALL_DEADLINE + REPLY_GRACE).as_millis() as u64;
    assert_eq!(passed.timeout_ms, Some(most));
}

#[test]
fn a_call_to_any_other_actor_ends_the_link() {
    let now = Instant::now();
    for to in [0, 2, PORT, u64::MAX] {
        assert_eq!(guard(Side::Host, now).from_peer(&call(to, 1, b""), now), Err(CloseReason::WrongTarget));
    }
}

#[test]
fn a_call_of_another_method_or_with_metadata_ends_the_link() {
    let now = Instant::now();
    let other = Call { to: GATE, tag: 1, timeout_ms: None, method: "Stop", has_metadata: false, what: b"" };
    let loaded = Call { method: METHOD, has_metadata: true, ..other };
    for call in [other, loaded] {
        assert_eq!(guard(Side::Host, now).from_peer(&Frame::Call(call), now), Err(CloseReason::UnknownCall));
    }
}

#[test]
fn at_the_most_calls_nothing_is_read_until_an_answer_is_written() {
    let now = Instant::now();
    let mut guard = guard(Side::Host, now);
    for tag in 0..CALLS_IN_FLIGHT as u64 {
        assert!(matches!(guard.from_peer(&call(GATE, tag, b"abc"), now), Ok(FromPeer::Forward(_))));
    }
    assert_eq!(guard.from_peer(&call(GATE, 99, b"abc"), now), Ok(FromPeer::Wait));
    let Ok(FromNode::Send(frame, written)) = guard.from_node(&reply(PORT, 3, b"done")) else { panic!() };
    assert_eq!(frame, reply(GATE, 3, b"done"));
    assert_eq!(guard.from_peer(&call(GATE, 99, b"abc"), now), Ok(FromPeer::Wait), "not before it is written");
    guard.written(written);
    assert!(matches!(guard.from_peer(&call(GATE, 99, b"abc"), now), Ok(FromPeer::Forward(_))));
}

#[test]
fn the_tag_of_a_running_call_cannot_be_used_again() {
    let now = Instant::now();
    let mut guard = guard(Side::Host, now);
    assert!(guard.from_peer(&call(GATE, 1, b""), now).is_ok());
    assert_eq!(guard.from_peer(&call(GATE, 1, b""), now), Err(CloseReason::DuplicateTag));
}

#[test]
fn only_a_call_that_was_made_can_be_answered_and_only_once() {
    let now = Instant::now();
    let mut guard = guard(Side::Host, now);
    assert_eq!(guard.from_peer(&reply(GATE, 1, b""), now), Err(CloseReason::UnknownReply));
    let Ok(FromNode::Send(..)) = guard.from_node(&call(GATE, 1, b"hi")) else { panic!() };
    assert!(guard.from_peer(&reply(GATE, 1, b"ok"), now).is_ok());
    assert_eq!(guard.from_peer(&reply(GATE, 1, b"ok"), now), Err(CloseReason::UnknownReply));
}

#[test]
fn a_peer_that_never_answers_ends_the_link_after_so_many_calls() {
    let now = Instant::now();
    let mut guard = guard(Side::Host, now);
    for tag in 0..UNANSWERED as u64 {
        assert!(matches!(guard.from_node(&call(GATE, tag, b"")), Ok(FromNode::Send(..))));
    }
    assert_eq!(guard.from_node(&call(GATE, 9999, b"")), Err(CloseReason::Unanswered));
}

#[test]
fn each_side_bounds_what_the_other_may_say() {
    let now = Instant::now();
    let large = vec![0; SIGNAL_BYTES + 1];
    assert!(guard(Side::Host, now).from_peer(&call(GATE, 1, &large), now).is_ok());
    let end = guard(Side::Agent, now).from_peer(&call(GATE, 1, &large), now);
    assert_eq!(end, Err(CloseReason::FrameTooLarge(large.len() as u64)));
    let mut host = guard(Side::Host, now);
    let _ = host.from_node(&call(GATE, 1, b""));
    let end = host.from_peer(&reply(GATE, 1, &large), now);
    assert_eq!(end, Err(CloseReason::FrameTooLarge(large.len() as u64)));
}

#[test]
fn pings_pass_at_a_nodes_rate_and_pongs_only_when_due() {
    let now = Instant::now();
    let mut guard = guard(Side::Host, now);
    for _ in 0..PINGS_BURST {
        assert!(guard.from_peer(&Frame::Ping(None), now).is_ok());
    }
    assert_eq!(guard.from_peer(&Frame::Ping(None), now), Err(CloseReason::PingFlood));
    assert!(guard.from_peer(&Frame::Ping(None), now + Duration::from_secs(1)).is_ok());
    assert_eq!(guard.from_peer(&Frame::Pong(None), now), Err(CloseReason::UnknownPong));
    assert!(guard.from_node(&Frame::Ping(None)).is_ok());
    assert!(guard.from_peer(&Frame::Pong(None), now).is_ok());
}

#[test]
fn everything_else_of_the_protocol_ends_the_link_inwards_and_is_hidden_outwards() {
    use crate::reason::FrameKind as Kind;
    let now = Instant::now();
    for kind in [
        Kind::Auth,
        Kind::Cast,
        Kind::Spawn,
        Kind::Terminate,
        Kind::PgJoin,
        Kind::PgLeave,
        Kind::EnumerateNodeSessions,
        Kind::NodeSessions,
        Kind::Ready,
    ] {
        let end = guard(Side::Host, now).from_peer(&Frame::Other(kind), now);
        assert_eq!(end, Err(CloseReason::Forbidden(kind)));
        assert_eq!(guard(Side::Host, now).from_node(&Frame::Other(kind)), Ok(FromNode::Drop));
    }
    // Nor does the node's word to anybody else get out.
    assert_eq!(guard(Side::Host, now).from_node(&call(2, 1, b"")), Ok(FromNode::Drop));
    assert_eq!(guard(Side::Host, now).from_node(&reply(PORT, 1, b"")), Ok(FromNode::Drop));
}

#[derive(Debug, Clone)]
enum Step {
    Call(u64, usize),
    Reply(u64),
    Ask(u64),
    Answer(u64),
    Ping,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..40u64, prop_oneof![0..100usize, Just(PAYLOAD_BYTES / 2), Just(PAYLOAD_BYTES)])
            .prop_map(|(tag, size)| Step::Call(tag, size)),
        4 => (0..40u64).prop_map(Step::Reply),
        2 => (0..40u64).prop_map(Step::Ask),
        2 => (0..40u64).prop_map(Step::Answer),
        1 => Just(Step::Ping),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Whatever a peer does, what is held stays within the bounds and balances to nothing.
    #[test]
    fn the_accounts_stay_within_their_bounds_and_balance(steps in steps()) {
        let now = Instant::now();
        let mut guard = guard(Side::Host, now);
        let payload = vec![0; PAYLOAD_BYTES];
        let mut open = std::collections::BTreeSet::new();
        for step in steps {
            match step {
                Step::Call(tag, size) => {
                    match guard.from_peer(&call(GATE, tag, &payload[..size]), now) {
                        Ok(FromPeer::Forward(_)) => prop_assert!(open.insert(tag)),
                        Ok(FromPeer::Wait) => prop_assert!(!open.is_empty(), "an idle link always has room"),
                        Err(end) => prop_assert_eq!((end, open.contains(&tag)), (CloseReason::DuplicateTag, true)),
                    }
                }
                Step::Reply(tag) => match guard.from_node(&reply(PORT, tag, b"x")) {
                    Ok(FromNode::Send(_, written)) => {
                        prop_assert!(open.remove(&tag));
                        guard.written(written);
                    }
                    other => prop_assert!(other == Ok(FromNode::Drop) && !open.contains(&tag)),
                },
                Step::Ask(tag) => drop(guard.from_node(&call(GATE, tag, b""))),
                Step::Answer(tag) => drop(guard.from_peer(&reply(GATE, tag, b""), now)),
                Step::Ping => drop(guard.from_peer(&Frame::Ping(None), now)),
            }
            let (calls, bytes) = guard.in_flight();
            prop_assert_eq!(calls, open.len());
            prop_assert!(calls <= CALLS_IN_FLIGHT && bytes <= INBOUND_BYTES);
        }
        for tag in open {
            if let Ok(FromNode::Send(_, written)) = guard.from_node(&reply(PORT, tag, b"")) {
                guard.written(written);
            }
        }
        prop_assert_eq!(guard.in_flight(), (0, 0));
    }

    #[test]
    fn no_bytes_make_the_guard_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let now = Instant::now();
        let _ = judge(&mut guard(Side::Host, now), &bytes, now);
    }

    /// A valid frame with a few bytes changed or cut off: judged without a panic, and what passes reads the same anew.
    #[test]
    fn no_mutation_of_a_frame_makes_the_guard_panic_or_means_two_things(
        tag: u64,
        what in prop::collection::vec(any::<u8>(), 0..100),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let now = Instant::now();
        let mut bytes = call(GATE, tag, &what).bytes().split_off(8);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(FromPeer::Forward(passed)) = judge(&mut guard(Side::Host, now), &bytes, now) {
            let written = passed.bytes();
            prop_assert_eq!(Frame::parse(&written[8..]), Ok(passed));
        }
    }
}
