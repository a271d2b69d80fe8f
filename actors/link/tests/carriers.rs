//! One suite for every carrier: what a link promises to two honest ends.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use choir_link::limits::{PENDING_HANDSHAKES, SLOW_CALLS};
use choir_link::{CloseReason, ConnectError, LinkEvent, LinkLimits, LinkSecret};
use choir_messages::json::Json;
use choir_messages::limits::USER_MESSAGE_BYTES;
use choir_messages::wire::{ControlPlane, LinkError, Reply, Request, SignalAck, SignalRefused, Verdict};
use support::{Carrier, PATIENCE, Place, ended, is_down, links, message, soon};

macro_rules! on_every_carrier {
    ($($(#[$meta:meta])* async fn $name:ident($carrier:ident: Carrier) $body:block)*) => {
        mod unix { $( #[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Carrier::Unix).await } )* }
        mod tls { $( #[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Carrier::Tls).await } )* }
        $( $(#[$meta])* async fn $name($carrier: Carrier) $body )*
    };
}

on_every_carrier! {
    async fn verbs_go_up_and_signals_go_down(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let signals = place.up().await;
        place.works(&uplink).await;
        let ack = signals.signal(message("hello"), PATIENCE).await;
        assert_eq!(ack, Ok(SignalAck::Recorded { rev: 5 }));
        let refused = uplink.call(place.ask(ended("revoke")), PATIENCE).await;
        assert!(matches!(refused, Err(LinkError::Refused(Verdict::LeaseRevoked))), "{refused:?}");
    }

    async fn the_largest_messages_pass_and_larger_ones_are_refused_at_home(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let signals = place.up().await;
        let size = 8 * 1024 * 1024 - 1000;
        let up = uplink.call(place.ask(ended(&"x".repeat(size))), PATIENCE).await;
        assert!(matches!(up, Ok(Reply::Done)), "{up:?}");
        let down = uplink.call(place.ask(Request::GetSecrets { names: vec![size.to_string()] }), PATIENCE).await;
        match down {
            Ok(Reply::Secrets { values }) => assert_eq!(values["big"].expose().len(), size),
            other => panic!("{other:?}"),
        }
        let too_large = uplink.call(place.ask(ended(&"x".repeat(size + 2000))), PATIENCE).await;
        assert!(matches!(too_large, Err(LinkError::TooLarge)));
        let names = vec![(size + 2000).to_string()];
        let too_large = uplink.call(place.ask(Request::GetSecrets { names }), PATIENCE).await;
        assert!(matches!(too_large, Err(LinkError::Refused(Verdict::Unavailable(_)))), "{too_large:?}");
        let text = "é".repeat(USER_MESSAGE_BYTES / 2);
        let ack = signals.signal(message(&text), PATIENCE).await;
        assert_eq!(ack, Ok(SignalAck::Recorded { rev: USER_MESSAGE_BYTES as u64 }));
        place.works(&uplink).await;
    }

    async fn calls_are_answered_side_by_side(carrier: Carrier) {
        let links = links().await;
        let place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let many = (0..500u64).map(|current| {
            let call = uplink.call(place.ask(Request::FetchDynamicConfig { current }), PATIENCE);
            async move { (current, call.await) }
        });
        for (current, answer) in futures_util::future::join_all(many).await {
            assert!(matches!(answer, Ok(Reply::Config { version, .. }) if version == current + 1), "{answer:?}");
        }
    }

    async fn slow_host_tools_leave_room_for_heartbeats(carrier: Carrier) {
        let links = links().await;
        let place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let slow = || Request::RequestApproval { kind: "x".into(), payload: Json(serde_json::Value::Null) };
        // Far more than there are places; those beyond wait at the agent.
        for _ in 0..100 {
            let (uplink, slow) = (uplink.clone(), place.ask(slow()));
            tokio::spawn(async move { uplink.call(slow, PATIENCE * 10).await });
        }
        place.host.running(SLOW_CALLS).await;
        for _ in 0..20 {
            place.works(&uplink).await;
        }
    }

    async fn an_agent_can_come_back_as_often_as_it_likes(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        for _ in 0..5 {
            let uplink = soon("a place", async {
                loop {
                    match place.connect().await {
                        Ok(uplink) => return uplink,
                        Err(ConnectError::Busy) => tokio::task::yield_now().await,
                        Err(other) => panic!("{other}"),
                    }
                }
            }).await;
            let signals = place.up().await;
            place.works(&uplink).await;
            drop(uplink);
            assert_eq!(place.down().await, CloseReason::PeerClosed);
            assert!(is_down(&signals.signal(message("late"), PATIENCE).await));
        }
        assert!(links.is_alive());
    }

    async fn when_the_agent_dies_the_host_hears_of_it_at_once(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let signals = place.up().await;
        let waiting = tokio::spawn(async move { signals.signal(message("hang"), PATIENCE * 10).await });
        place.works(&uplink).await;
        let call = { let (uplink, hang) = (uplink.clone(), place.ask(ended("hang"))); tokio::spawn(async move { uplink.call(hang, PATIENCE * 10).await }) };
        place.host.running(1).await;
        uplink.close();
        assert_eq!(place.down().await, CloseReason::PeerClosed);
        assert!(is_down(&soon("the host's caller", waiting).await.unwrap()));
        assert!(is_down(&soon("the agent's caller", call).await.unwrap()));
        // Its verbs are no longer being handled.
        place.host.running(0).await;
    }

    async fn when_the_host_dies_the_agent_hears_of_it_at_once(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let _signals = place.up().await;
        let call = { let (uplink, hang) = (uplink.clone(), place.ask(ended("hang"))); tokio::spawn(async move { uplink.call(hang, PATIENCE * 10).await }) };
        place.host.running(1).await;
        // Without the node nothing answers, although the socket is still there.
        drop(place.listener.take());
        assert!(is_down(&soon("the caller", call).await.unwrap()));
        soon("the end", uplink.closed()).await;
        assert_eq!(uplink.close_reason(), Some(CloseReason::PeerClosed));
    }

    async fn a_peer_that_does_not_answer_costs_the_deadline_and_nothing_more(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let signals = place.up().await;
        let short = Duration::from_millis(50);
        let late = uplink.call(place.ask(ended("hang")), short).await;
        assert!(matches!(late, Err(LinkError::Deadline(d)) if d == short) || matches!(late, Err(LinkError::Refused(Verdict::Unavailable(_)))), "{late:?}");
        let late = signals.signal(message("hang"), short).await;
        assert!(matches!(late, Err(LinkError::Deadline(_)) | Ok(SignalAck::Refused(SignalRefused::NotReady))), "{late:?}");
        // The handlers were dropped with their callers' patience.
        place.host.running(0).await;
        place.works(&uplink).await;
        assert_eq!(signals.signal(message("x"), PATIENCE).await, Ok(SignalAck::Recorded { rev: 1 }));
    }

    async fn a_handler_that_panics_is_an_answer(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let signals = place.up().await;
        let answer = uplink.call(place.ask(ended("panic")), PATIENCE).await;
        assert!(matches!(answer, Err(LinkError::Refused(Verdict::Unavailable(_)))), "{answer:?}");
        let answer = signals.signal(message("panic"), PATIENCE).await;
        assert_eq!(answer, Ok(SignalAck::Refused(SignalRefused::NotReady)));
        place.works(&uplink).await;
    }

    async fn a_wrong_secret_is_recognised_by_the_agent_before_it_gives_its_proof(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let refused = place.connect_as(&LinkSecret::fresh().unwrap()).await;
        assert!(matches!(refused, Err(ConnectError::NotOurHost)), "{refused:?}");
        assert_eq!(place.refused().await.0, CloseReason::PeerClosed);
        let uplink = place.connect().await.unwrap();
        place.works(&uplink).await;
    }

    async fn a_second_agent_is_told_that_the_place_is_taken(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let _signals = place.up().await;
        let second = place.connect().await;
        assert!(matches!(second, Err(ConnectError::Busy)), "{second:?}");
        assert_eq!(place.refused().await.0, CloseReason::Busy);
        place.works(&uplink).await;
    }

    async fn a_request_that_names_another_session_or_version_is_not_handled(carrier: Carrier) {
        let links = links().await;
        let place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let mut other = place.ask(Request::FetchDynamicConfig { current: 1 });
        other.session = choir_messages::id::SessionId::fresh();
        let answer = uplink.call(other, PATIENCE).await;
        assert!(matches!(answer, Err(LinkError::Refused(Verdict::Rejected(_)))), "{answer:?}");
        let mut other = place.ask(Request::FetchDynamicConfig { current: 1 });
        other.version = 99;
        let answer = uplink.call(other, PATIENCE).await;
        assert!(matches!(answer, Err(LinkError::Refused(Verdict::Version(1)))), "{answer:?}");
        assert_eq!(place.host.started.load(std::sync::atomic::Ordering::SeqCst), 0);
    }

    async fn an_overdue_agent_is_disconnected_and_may_come_back(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let uplink = place.connect().await.unwrap();
        let _signals = place.up().await;
        place.listener.as_ref().unwrap().disconnect();
        assert_eq!(place.down().await, CloseReason::Disconnected);
        soon("the end", uplink.closed()).await;
        let again = place.connect().await.unwrap();
        place.works(&again).await;
    }

    async fn a_revoked_session_is_gone_with_its_socket(carrier: Carrier) {
        let links = links().await;
        let mut place = Place::open(&links, carrier).await;
        let other = Place::open(&links, carrier).await;
        let bystander = other.connect().await.unwrap();
        let uplink = place.connect().await.unwrap();
        let _signals = place.up().await;
        soon("the close", place.listener.take().unwrap().close()).await;
        assert_eq!(place.down().await, CloseReason::Revoked);
        soon("the end", uplink.closed()).await;
        let again = place.connect().await;
        assert!(matches!(again, Err(ConnectError::Unreachable(_))), "{again:?}");
        other.works(&bystander).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_knows_who_connected_to_a_unix_socket() {
    let links = links().await;
    let mut place = Place::open(&links, Carrier::Unix).await;
    let _uplink = place.connect().await.unwrap();
    let LinkEvent::Up { peer, .. } = place.event().await else { panic!("not up") };
    assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
    assert!(peer.uid.is_some() && peer.addr.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_told_of_another_certificate_does_not_connect() {
    let links = links().await;
    let mut place = Place::open(&links, Carrier::Tls).await;
    let choir_link::Target::Tcp { certificate, .. } = &mut place.target else { panic!("not TCP") };
    let right = std::mem::replace(certificate, support::certificate().digest());
    let refused = place.connect().await;
    assert!(matches!(refused, Err(ConnectError::Tls(_))), "{refused:?}");
    assert_eq!(place.refused().await.0, CloseReason::Tls);
    let choir_link::Target::Tcp { certificate, .. } = &mut place.target else { panic!("not TCP") };
    *certificate = right;
    let uplink = place.connect().await.unwrap();
    place.works(&uplink).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_that_keep_a_port_busy_with_silence_do_not_keep_the_agent_out() {
    let links = links().await;
    let mut place = Place::open(&links, Carrier::Tls).await;
    let choir_link::Target::Tcp { addr, .. } = place.target else { panic!("not TCP") };
    let mut silent = Vec::new();
    for _ in 0..2 * PENDING_HANDSHAKES {
        silent.push(tokio::net::TcpStream::connect(addr).await.unwrap());
    }
    // More than there are places: those that came first were closed to let others in.
    while place.refused().await.0 != CloseReason::TooManyConnections {}
    let uplink = place.connect().await.unwrap();
    let _signals = place.up().await;
    place.works(&uplink).await;
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_listens_but_the_sockets_that_were_asked_for() {
    let mine = || {
        let sockets: Vec<String> = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
            .map(|target| target.to_string_lossy().into_owned())
            .collect();
        ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
            .iter()
            .flat_map(|table| {
                let table = std::fs::read_to_string(table).unwrap_or_default();
                table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
            })
            .filter(|line| {
                let columns: Vec<&str> = line.split_whitespace().collect();
                columns[3] == "0A" && sockets.contains(&format!("socket:[{}]", columns[9]))
            })
            .count()
    };
    let links = links().await;
    let place = Place::open(&links, Carrier::Unix).await;
    let uplink = place.connect().await.unwrap();
    place.works(&uplink).await;
    assert_eq!(mine(), 0, "the cluster node's own TCP listener is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_does_not_listen_loses_the_link_and_nothing_hangs() {
    let links = links().await;
    let limits = LinkLimits::default();
    let mut place = Place::with(&links, Carrier::Unix, limits).await;
    place.events.close();
    let refused = place.connect().await;
    assert!(matches!(refused, Err(ConnectError::Ended(_))), "{refused:?}");
    soon("the close", place.listener.take().unwrap().close()).await;
}
