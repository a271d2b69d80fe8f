//! What a hostile container can do to a host that runs a stock cluster node, one test each, against the guard. The
//! attacker knows its own link's secret and speaks the wire by hand. After each attack the host's names, groups, other
//! sessions and memory are as they were, and the link has ended for the expected reason.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use choir_link::{CloseReason, FrameKind, LinkLimits, LinkSecret, Links, Uplink};
use choir_messages::codec;
use choir_messages::id::SessionId;
use choir_messages::limits::FRAME_BYTES;
use choir_messages::wire::{LinkError, Reply, Request, Verdict};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef};
use ractor_cluster::{BoxRead, BoxWrite, ClusterBidiStream, NodeServer, NodeServerMessage};
use sha2::Digest;
use support::hostile::{
    Hostile, actor, auth, bytes, call, cast, control, framed, inside, node, number, ping, reply,
};
use support::{Carrier, PATIENCE, Place, ended, links, message, peak, soon};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

/// Room for what the runtime, the test and one honest frame take: far below what any of the attacks takes from a
/// stock node (200 MiB to 3 GiB).
const LITTLE: usize = 12 << 20;

/// What one link may hold at most: its calls in three shapes (frame, payload, decoded) and its replies.
const ONE_LINK: usize = 96 << 20;

/// An actor of the host's that a stock node would export: its messages are serialisable.
struct Arbiter(Arc<AtomicUsize>);

impl Actor for Arbiter {
    type Msg = String;
    type State = ();
    type Arguments = ();
    async fn pre_start(&self, _: ActorRef<String>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
    async fn handle(&self, _: ActorRef<String>, _: String, (): &mut ()) -> Result<(), ActorProcessingErr> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

type Groups = Vec<(String, String, Vec<ActorId>)>;

fn groups() -> Groups {
    let mut groups: Groups = ractor::pg::which_scopes_and_groups()
        .into_iter()
        .map(|key| {
            let mut members: Vec<ActorId> =
                ractor::pg::get_scoped_members(&key.get_scope(), &key.get_group())
                    .iter()
                    .map(ractor::ActorCell::get_id)
                    .collect();
            members.sort_by_key(ToString::to_string);
            (key.get_scope(), key.get_group(), members)
        })
        .collect();
    groups.sort();
    groups
}

fn names() -> Vec<String> {
    let mut names = ractor::registry::registered();
    names.sort();
    names
}

/// A host with an arbiter, a lock manager's group, an honest agent in one session, and an attacker in another.
struct Scene {
    _links: Links,
    place: Place,
    other: Place,
    bystander: Uplink,
    arbiter: ActorRef<String>,
    reached: Arc<AtomicUsize>,
    names: Vec<String>,
    groups: Groups,
    peak: usize,
}

impl Scene {
    async fn set() -> Self {
        Self::with(LinkLimits::default()).await
    }

    async fn with(limits: LinkLimits) -> Self {
        let links = links().await;
        let reached = Arc::new(AtomicUsize::new(0));
        let (arbiter, _) =
            Actor::spawn(Some("arbiter".to_owned()), Arbiter(reached.clone()), ()).await.unwrap();
        ractor::pg::join("locks".to_owned(), vec![arbiter.get_cell()]);
        let place = Place::with(&links, Carrier::Unix, limits).await;
        let mut other = Place::open(&links, Carrier::Unix).await;
        let bystander = other.connect().await.unwrap();
        let _ = other.up().await;
        other.works(&bystander).await;
        let (names, groups, peak) = (names(), groups(), peak());
        Self { _links: links, place, other, bystander, arbiter, reached, names, groups, peak }
    }

    /// An attacker inside the handshake's end.
    async fn enter(&mut self) -> Hostile {
        let peer = Hostile::enter(&self.place.path(), self.place.session, &self.place.secret).await;
        let _ = self.place.up().await;
        self.peak = peak();
        peer
    }

    fn hang(&self) -> Vec<u8> {
        codec::encode(&self.place.ask(ended("hang")), FRAME_BYTES).unwrap()
    }

    /// One attack by one frame: it ends the link for this reason and changes nothing.
    async fn survives(frame: Vec<u8>, reason: CloseReason, memory: usize) {
        let mut scene = Self::set().await;
        let frame = framed(&frame);
        let mut peer = scene.enter().await;
        peer.raw(&frame).await;
        assert_eq!(scene.place.down().await, reason);
        let said = peer.rest().await;
        assert!(said.len() < 64, "the host said {} bytes to it", said.len());
        scene.unharmed(memory).await;
    }

    async fn unharmed(self, memory: usize) {
        let grown = peak().saturating_sub(self.peak);
        assert!(grown < memory, "the host's memory grew by {} KiB", grown >> 10);
        assert_eq!(names(), self.names);
        assert_eq!(groups(), self.groups);
        let found = ractor::registry::where_is("arbiter").map(|cell| cell.get_id());
        assert_eq!(found, Some(self.arbiter.get_id()));
        assert_eq!(self.reached.load(Ordering::SeqCst), 0, "the arbiter got a message");
        assert_eq!(self.place.host.running.load(Ordering::SeqCst), 0);
        self.other.works(&self.bystander).await;
        let sessions = self.other.host.seen.lock().unwrap().clone();
        assert!(sessions.iter().all(|s| *s == self.other.session), "somebody else reached the other session");
        // The same socket still serves its honest agent.
        let uplink = self.place.connect().await.unwrap();
        self.place.works(&uplink).await;
    }
}

// ---- announcing actors -------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn one_frame_that_announces_300_000_actors_makes_none() {
    let actors: Vec<u8> = (1000..301_000).flat_map(|pid| actor(pid, None)).collect();
    assert!(actors.len() > 1_600_000);
    Scene::survives(control(1, &actors), CloseReason::Forbidden(FrameKind::Spawn), LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn announcing_an_actor_of_a_hosts_name_does_not_touch_that_name() {
    let spawn = control(1, &actor(5, Some("arbiter")));
    Scene::survives(spawn, CloseReason::Forbidden(FrameKind::Spawn), LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ending_an_announced_actor_does_not_touch_the_hosts() {
    // The gate's own id, which the node knows, and everybody else's.
    let terminate = control(2, &(0..200).flat_map(|pid| number(1, pid)).collect::<Vec<u8>>());
    Scene::survives(terminate, CloseReason::Forbidden(FrameKind::Terminate), LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_drops_takes_no_name_of_the_host_with_it() {
    let mut scene = Scene::set().await;
    let peer = scene.enter().await;
    drop(peer);
    assert_eq!(scene.place.down().await, CloseReason::PeerClosed);
    scene.unharmed(LITTLE).await;
}

// ---- process groups ----------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn no_process_group_of_the_host_can_be_joined() {
    let join =
        control(5, &[bytes(1, b"locks"), bytes(2, &number(1, 1)), bytes(3, b"__default_scope__")].concat());
    Scene::survives(join, CloseReason::Forbidden(FrameKind::PgJoin), LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_group_of_the_host_can_be_left() {
    let leave =
        control(6, &[bytes(1, b"locks"), bytes(2, &number(1, 1)), bytes(3, b"__default_scope__")].concat());
    Scene::survives(leave, CloseReason::Forbidden(FrameKind::PgLeave), LITTLE).await;
}

// ---- calling others ----------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn no_other_actor_can_be_called_neither_the_arbiter_nor_another_sessions_gate() {
    let mut scene = Scene::set().await;
    let exported: Vec<u64> = ractor::registry::get_all_pids()
        .iter()
        .filter(|cell| cell.supports_remoting())
        .map(|cell| cell.get_id().pid())
        .collect();
    assert!(exported.contains(&scene.arbiter.get_id().pid()) && exported.len() >= 2);
    for pid in exported.into_iter().chain([0, 2, u64::MAX]).filter(|pid| *pid != 1) {
        let mut peer = scene.enter().await;
        peer.frame(&call(pid, 1, &scene.hang())).await;
        assert_eq!(scene.place.down().await, CloseReason::WrongTarget);
    }
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_names_of_other_peers_are_not_told() {
    let enumerate = control(7, &bytes(1, b"me@here"));
    Scene::survives(enumerate, CloseReason::Forbidden(FrameKind::EnumerateNodeSessions), LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_names_of_other_peers_cannot_be_told_to_the_host() {
    let sessions = control(8, &bytes(1, &[bytes(1, b"x@y"), bytes(3, b"127.0.0.1:1")].concat()));
    Scene::survives(sessions, CloseReason::Forbidden(FrameKind::NodeSessions), LITTLE).await;
}

// ---- taking another's place --------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn no_name_can_be_claimed_inside_a_link() {
    let name = auth(1, &[bytes(1, b"link-1"), bytes(3, b"link-1"), number(4, 1)].concat());
    Scene::survives(name, CloseReason::Forbidden(FrameKind::Auth), LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_own_handshake_is_not_spoken_on_the_socket() {
    let mut scene = Scene::set().await;
    let mut peer = Hostile::dial(&scene.place.path()).await;
    peer.frame(&auth(1, &[bytes(1, b"link-1"), bytes(3, b"link-1"), number(4, 1)].concat())).await;
    assert_eq!(scene.place.refused().await.0, CloseReason::NotAHandshake);
    assert!(peer.rest().await.is_empty());
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_connection_does_not_evict_the_first() {
    let mut scene = Scene::set().await;
    let uplink = scene.place.connect().await.unwrap();
    let _ = scene.place.up().await;
    let mut peer = Hostile::dial(&scene.place.path()).await;
    let code = peer.prove(scene.place.session, &scene.place.secret).await;
    assert_eq!(code, [1, 0, 1], "busy");
    assert_eq!(scene.place.refused().await.0, CloseReason::Busy);
    scene.place.works(&uplink).await;
    uplink.close();
    assert_eq!(scene.place.down().await, CloseReason::PeerClosed);
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sessions_secret_opens_no_other_socket() {
    let mut scene = Scene::set().await;
    let other = (scene.other.session, scene.other.secret.clone());
    // With its own session it is denied at once, before the host proves anything.
    let mut peer = Hostile::dial(&scene.place.path()).await;
    let hello = [&b"CHOIRLNK"[..], &1u16.to_be_bytes(), &other.0.bits().to_be_bytes(), &[0; 32]].concat();
    peer.frame(&hello).await;
    assert_eq!(peer.read().await, Some(vec![3, 0, 1]));
    assert_eq!(scene.place.refused().await.0, CloseReason::WrongSession);
    // With the socket's session and the other's secret after its proof.
    let mut peer = Hostile::dial(&scene.place.path()).await;
    assert_eq!(peer.prove(scene.place.session, &other.1).await, [3, 0, 1]);
    assert_eq!(scene.place.refused().await.0, CloseReason::WrongSecret);
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_own_proof_sent_back_is_no_proof() {
    let mut scene = Scene::set().await;
    let mut peer = Hostile::dial(&scene.place.path()).await;
    let session = scene.place.session.bits().to_be_bytes();
    peer.frame(&[&b"CHOIRLNK"[..], &1u16.to_be_bytes(), &session, &[0; 32]].concat()).await;
    let answer = peer.read().await.unwrap();
    peer.frame(&answer[35..]).await;
    assert_eq!(peer.read().await, Some(vec![3, 0, 1]));
    assert_eq!(scene.place.refused().await.0, CloseReason::WrongSecret);
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_told_apart_from_a_stranger() {
    let mut scene = Scene::set().await;
    let mut peer = Hostile::dial(&scene.place.path()).await;
    peer.frame(&[&b"CHOIRLNK"[..], &9u16.to_be_bytes(), &[0; 16], &[0; 32]].concat()).await;
    assert_eq!(peer.read().await, Some(vec![2, 0, 1]));
    assert_eq!(scene.place.refused().await.0, CloseReason::Version(9));
    scene.unharmed(LITTLE).await;
}

// ---- floods ------------------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn casts_are_not_spoken() {
    let mut scene = Scene::set().await;
    let frame = framed(&cast(1, &[0; 65536]));
    let mut peer = scene.enter().await;
    // 500 MiB, or as much as the host takes.
    for _ in 0..8000 {
        if !peer.raw(&frame).await {
            break;
        }
    }
    assert_eq!(scene.place.down().await, CloseReason::Forbidden(FrameKind::Cast));
    scene.unharmed(LITTLE).await;
}

/// Writes copies of what `next` gives until the socket takes nothing for a while; gives how many went.
async fn until_it_stalls(peer: &mut Hostile, mut next: impl FnMut(u64) -> Vec<u8>, most: u64) -> u64 {
    for sent in 0..most {
        let frame = framed(&next(sent));
        // Not a wait for something to happen but for it not to: a host that reads would take it at once.
        let taken = tokio::time::timeout(Duration::from_millis(700), peer.stream.write_all(&frame)).await;
        if !matches!(taken, Ok(Ok(()))) {
            return sent;
        }
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_never_answered_stall_the_caller_and_not_the_host() {
    let mut scene = Scene::set().await;
    let body = scene.hang();
    let mut peer = scene.enter().await;
    let sent = until_it_stalls(&mut peer, |tag| call(1, tag, &body), 200_000).await;
    assert!((32..20_000).contains(&sent), "the socket took {sent} calls");
    scene.place.host.running(32).await;
    assert_eq!(scene.place.host.started.load(Ordering::SeqCst), 32);
    drop(peer);
    let end = scene.place.down().await;
    assert!(matches!(end, CloseReason::PeerClosed), "{end:?}");
    scene.place.host.running(0).await;
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_calls_that_are_never_answered_stay_within_the_links_bytes() {
    let mut scene = Scene::set().await;
    let kind = "x".repeat(4 << 20);
    let slow =
        Request::RequestApproval { kind, payload: choir_messages::json::Json(serde_json::Value::Null) };
    let body = codec::encode(&scene.place.ask(slow), FRAME_BYTES).unwrap();
    let frame = call(1, 0, &body);
    let mut peer = scene.enter().await;
    // The tag is a one-byte number right behind the payload.
    let at = frame.len() - (2 + "choir.1".len()) - 1;
    let sent = until_it_stalls(
        &mut peer,
        |tag| {
            let mut frame = frame.clone();
            frame[at] = tag as u8;
            frame
        },
        100,
    )
    .await;
    assert!(sent < 8, "the host took {sent} calls of 4 MiB");
    assert!(scene.place.host.started.load(Ordering::SeqCst) <= 4);
    drop((peer, frame, body));
    scene.place.down().await;
    scene.unharmed(ONE_LINK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_million_pings_end_the_link_after_the_first_few() {
    let mut scene = Scene::set().await;
    let pings: Vec<u8> = (0..1000).flat_map(|n| framed(&ping(n))).collect();
    let mut peer = scene.enter().await;
    for _ in 0..2000 {
        if !peer.raw(&pings).await {
            break;
        }
    }
    assert_eq!(scene.place.down().await, CloseReason::PingFlood);
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_are_closed_and_hold_neither_memory_nor_the_place() {
    let mut scene = Scene::set().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(Hostile::dial(&scene.place.path()).await);
    }
    while scene.place.refused().await.0 != CloseReason::TooManyConnections {}
    // The crowd is still there, and its honest agent gets through.
    let uplink = scene.place.connect().await.unwrap();
    let _signals = scene.place.up().await;
    scene.place.works(&uplink).await;
    while scene.place.refused().await.0 != CloseReason::HandshakeDeadline {}
    drop(uplink);
    let _ = scene.place.down().await;
    drop(silent);
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_its_answers_is_cut_off() {
    let limits = LinkLimits { write: Duration::from_millis(300), ..LinkLimits::default() };
    let mut scene = Scene::with(limits).await;
    let names = vec![(1 << 20).to_string()];
    let body = codec::encode(&scene.place.ask(Request::GetSecrets { names }), FRAME_BYTES).unwrap();
    let mut peer = scene.enter().await;
    let _ = until_it_stalls(&mut peer, |tag| call(1, tag, &body), 10_000).await;
    assert_eq!(scene.place.down().await, CloseReason::WriteDeadline);
    scene.unharmed(ONE_LINK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_agent_costs_the_host_neither_time_nor_memory() {
    let limits = LinkLimits { write: Duration::from_millis(500), ..LinkLimits::default() };
    let mut scene = Scene::with(limits).await;
    let _frozen = Hostile::enter(&scene.place.path(), scene.place.session, &scene.place.secret).await;
    let signals = scene.place.up().await;
    scene.peak = peak();
    let text = "x".repeat(250 << 10);
    let mut late = 0;
    for _ in 0..1000 {
        match soon("the deadline", signals.signal(message(&text), Duration::from_millis(5))).await {
            Err(LinkError::Deadline(_)) => late += 1,
            Err(LinkError::Down) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(late > 0);
    assert_eq!(scene.place.down().await, CloseReason::WriteDeadline);
    drop(text);
    scene.unharmed(ONE_LINK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_reads_signals_and_answers_none_is_given_up() {
    let mut scene = Scene::set().await;
    let mut peer = Hostile::enter(&scene.place.path(), scene.place.session, &scene.place.secret).await;
    let signals = scene.place.up().await;
    let reading = tokio::spawn(async move { peer.rest().await });
    loop {
        match signals.signal(message("x"), Duration::from_millis(1)).await {
            Err(LinkError::Deadline(_)) => {}
            Err(LinkError::Down) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(scene.place.down().await, CloseReason::Unanswered);
    reading.await.unwrap();
    scene.unharmed(LITTLE).await;
}

// ---- bytes that mean nothing -------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_cannot_be_decoded_is_answered_and_harms_nobody() {
    let mut scene = Scene::set().await;
    let mut peer = scene.enter().await;
    for (tag, body) in [(1u64, &b""[..]), (2, &[0xff; 64]), (3, b"hello")] {
        peer.frame(&call(1, tag, body)).await;
        let answer = peer.answer().await.expect("an answer");
        // node { reply { to, tag, what } }, where to and tag take two bytes each.
        let reply = inside(inside(&answer, 0x12), 0x1a);
        assert_eq!(reply[..4], [0x08, 1, 0x10, tag as u8]);
        let decoded: Result<Reply, Verdict> = codec::decode(inside(&reply[4..], 0x1a), FRAME_BYTES).unwrap();
        assert!(matches!(decoded, Err(Verdict::Rejected(_))), "{decoded:?}");
    }
    assert_eq!(scene.place.host.started.load(Ordering::SeqCst), 0);
    drop(peer);
    assert_eq!(scene.place.down().await, CloseReason::PeerClosed);
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_calls_that_were_not_made_end_the_link() {
    Scene::survives(reply(1, 1, b"forged"), CloseReason::UnknownReply, LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pongs_without_a_ping_end_the_link() {
    // The host's node pings for the first time after a second.
    Scene::survives(control(4, &[]), CloseReason::UnknownPong, LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_larger_than_allowed_ends_the_link_at_its_length() {
    let mut scene = Scene::set().await;
    let mut peer = scene.enter().await;
    peer.raw(&u64::MAX.to_be_bytes()).await;
    assert_eq!(scene.place.down().await, CloseReason::FrameTooLarge(u64::MAX));
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_never_ends_holds_only_what_has_arrived() {
    let limits = LinkLimits { frame: Duration::from_millis(300), ..LinkLimits::default() };
    let mut scene = Scene::with(limits).await;
    let mut peer = scene.enter().await;
    peer.raw(&(8u64 << 20).to_be_bytes()).await;
    peer.raw(&[0x12; 1000]).await;
    assert_eq!(scene.place.down().await, CloseReason::FrameDeadline);
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_cannot_be_read_ends_the_link() {
    let mut scene = Scene::set().await;
    let mut truncated = call(1, 1, b"a");
    truncated.pop();
    for frame in [
        vec![],
        vec![0xff; 40],
        bytes(9, b"x"),
        node(9, b"x"),
        truncated,
        [call(1, 1, b"a"), call(1, 2, b"b")].concat(),
        node(2, &[number(1, 1), number(1, 9), number(3, 1), bytes(5, b"choir.1")].concat()),
    ] {
        let mut peer = scene.enter().await;
        peer.frame(&frame).await;
        assert_eq!(scene.place.down().await, CloseReason::MalformedFrame, "{frame:?}");
    }
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_an_unknown_method_or_with_metadata_end_the_link() {
    let stop = node(2, &[number(1, 1), number(3, 1), bytes(5, b"Stop")].concat());
    Scene::survives(stop, CloseReason::UnknownCall, LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_with_metadata_end_the_link() {
    let loaded = node(2, &[number(1, 1), number(3, 1), bytes(5, b"choir.1"), bytes(6, b"x")].concat());
    Scene::survives(loaded, CloseReason::UnknownCall, LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_running_calls_with_one_tag_end_the_link() {
    let mut scene = Scene::set().await;
    let hang = scene.hang();
    let mut peer = scene.enter().await;
    peer.frame(&call(1, 7, &hang)).await;
    scene.place.host.running(1).await;
    peer.frame(&call(1, 7, &hang)).await;
    assert_eq!(scene.place.down().await, CloseReason::DuplicateTag);
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_timeout_or_with_an_endless_one_is_clamped() {
    let limits = LinkLimits { call: Duration::from_millis(200), ..LinkLimits::default() };
    let mut scene = Scene::with(limits).await;
    let hang = scene.hang();
    let mut peer = scene.enter().await;
    peer.frame(&call(1, 1, &hang)).await;
    let endless = node(
        2,
        &[number(1, 1), bytes(2, &hang), number(3, 2), number(4, u64::MAX), bytes(5, b"choir.1")].concat(),
    );
    peer.frame(&endless).await;
    for _ in 0..2 {
        assert!(peer.answer().await.is_some(), "an explicit answer");
    }
    scene.place.host.running(0).await;
    drop(peer);
    scene.place.down().await;
    scene.unharmed(LITTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_host_cannot_make_an_agent_call_or_learn_anything_else() {
    // The same guard stands on the agent's side: a false host on a socket, without the secret.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("false.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let heard = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut host = Hostile { stream };
        let hello = host.read().await.unwrap();
        // Goes on with a proof of zeros.
        host.frame(&[&[0, 0, 1][..], &[9; 32], &[0; 32]].concat()).await;
        (hello, host.rest().await)
    });
    let secret = LinkSecret::fresh().unwrap();
    let target = choir_link::Target::Unix(path);
    let agent = Arc::new(support::Agent);
    let refused = choir_link::connect(&target, &secret, SessionId::fresh(), agent, PATIENCE).await;
    assert!(matches!(refused, Err(choir_link::ConnectError::NotOurHost)), "{refused:?}");
    let (hello, rest) = soon("the false host", heard).await.unwrap();
    assert_eq!(hello.len(), 58);
    assert!(rest.is_empty(), "the agent gave a stranger {} bytes", rest.len());
}

/// The check of the checks: the same frames, sent to a node without a guard, do what the scene looks for.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_guard_the_same_frames_do_harm() {
    let scene = Scene::set().await;
    let server = NodeServer::new(0, "cookie".into(), "stock".into(), "stock".into(), None, None)
        .with_listen_addr([127, 0, 0, 1].into());
    let (server, _) = Actor::spawn(None, server, ()).await.unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let stream = Box::new(Stream(near));
    server.cast(NodeServerMessage::ConnectionOpenedExternal { stream, is_server: true }).unwrap();
    let mut peer = Hostile { stream: far };
    peer.frame(&auth(1, &[bytes(1, b"me@here"), bytes(3, b"me"), number(4, 1)].concat())).await;
    let _status = peer.read().await.unwrap();
    let challenge = peer.read().await.unwrap();
    // Its third field, the last number of the message before the address.
    let body = inside(inside(&challenge, 0x0a), 0x22);
    let (name, flags) = (usize::from(body[1]), usize::from(body[2 + usize::from(body[1]) + 1]));
    let mut asked = 0u32;
    for (at, byte) in body[2 + name + 2 + flags + 1..].iter().take(5).enumerate() {
        asked |= u32::from(byte & 127) << (7 * at);
        if byte & 128 == 0 {
            break;
        }
    }
    let mut hash = sha2::Sha256::new();
    hash.update(asked.to_be_bytes());
    hash.update(b"cookie");
    peer.frame(&auth(5, &[number(1, 1), bytes(2, &hash.finalize())].concat())).await;

    peer.frame(&control(
        5,
        &[bytes(1, b"locks"), bytes(2, &number(1, 9)), bytes(3, b"__default_scope__")].concat(),
    ))
    .await;
    peer.frame(&control(1, &actor(5, Some("arbiter")))).await;
    peer.frame(&control(2, &number(1, 5))).await;
    peer.frame(&cast(scene.arbiter.get_id().pid(), b"hello")).await;
    soon("the harm", async {
        while groups() == scene.groups || names() == scene.names || scene.reached.load(Ordering::SeqCst) == 0
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

struct Stream(UnixStream);

impl ClusterBidiStream for Stream {
    fn split(self: Box<Self>) -> (BoxRead, BoxWrite) {
        let (reader, writer) = self.0.into_split();
        (Box::new(reader), Box::new(writer))
    }
}
