//! A faulty wire between two honest ends: it delays, delivers in pieces and is cut after any byte, in either
//! direction. Whatever it does, both ends end cleanly, nothing hangs, and the next link works.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use choir_link::{ConnectError, LinkEvent, Target};
use choir_messages::wire::{ControlPlane, LinkError, Reply, Request};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::{Carrier, PATIENCE, Place, links, message, soon};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// What the wire does to the bytes of one direction.
#[derive(Debug, Clone)]
struct Fault {
    /// Largest piece delivered at once.
    piece: usize,
    /// Milliseconds before each piece.
    delay: u64,
    /// The wire is cut after so many bytes.
    cut: usize,
}

fn fault() -> impl Strategy<Value = Fault> {
    // The handshake is some 200 bytes, a small call about the same; pings come after a second.
    let cut = prop_oneof![0..400usize, 400..4000usize];
    (1..200usize, 0..3u64, cut).prop_map(|(piece, delay, cut)| Fault { piece, delay, cut })
}

async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, fault: Fault) {
    let mut left = fault.cut;
    let mut piece = vec![0; fault.piece];
    while left > 0 {
        let room = fault.piece.min(left);
        let Ok(got @ 1..) = from.read(&mut piece[..room]).await else { return };
        if fault.delay > 0 {
            tokio::time::sleep(Duration::from_millis(fault.delay)).await;
        }
        if to.write_all(&piece[..got]).await.is_err() {
            return;
        }
        left -= got;
    }
}

/// A wire in front of a socket: one connection, cut in both directions when either is.
async fn wire(folder: &Path, to: PathBuf, up: Fault, down: Fault) -> PathBuf {
    let path = folder.join("faulty.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.unwrap();
        let far = UnixStream::connect(to).await.unwrap();
        let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
        tokio::select! {
            () = carry(near_read, far_write, up) => {}
            () = carry(far_read, near_write, down) => {}
        }
    });
    path
}

async fn conversation(up: Fault, down: Fault) {
    let links = links().await;
    let mut place = Place::open(&links, Carrier::Unix).await;
    let honest = place.target.clone();
    let folder = tempfile::tempdir().unwrap();
    place.target = Target::Unix(wire(folder.path(), place.path(), up, down).await);
    match soon("an end of connecting", place.connect()).await {
        Ok(uplink) => {
            // Until the wire is cut every answer is right; then the link is down, at once.
            loop {
                let ask = place.ask(Request::FetchDynamicConfig { current: 1 });
                match soon("an end of the call", uplink.call(ask, PATIENCE)).await {
                    Ok(Reply::Config { version: 2, .. }) => {}
                    Err(LinkError::Down) => break,
                    other => panic!("{other:?}"),
                }
            }
            soon("the agent's end", uplink.closed()).await;
        }
        Err(ConnectError::Ended(_) | ConnectError::NotAHost) => {}
        Err(other) => panic!("{other}"),
    }
    // The host has let go too: what went up came down.
    place.target = honest;
    let uplink = soon("the next link", async {
        loop {
            match place.connect().await {
                Ok(uplink) => return uplink,
                Err(ConnectError::Busy) => tokio::task::yield_now().await,
                Err(other) => panic!("{other}"),
            }
        }
    })
    .await;
    place.works(&uplink).await;
    let mut ups = 0i32;
    while let Ok(event) = place.events.try_recv() {
        match event {
            LinkEvent::Up { .. } => ups += 1,
            LinkEvent::Down { .. } => ups -= 1,
            LinkEvent::Refused { .. } => {}
        }
        assert!((0..=1).contains(&ups), "up and down alternate");
    }
    assert_eq!(ups, 1, "only the last link is up");
}

#[test]
fn a_wire_that_is_cut_at_any_byte_ends_the_link_cleanly() {
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    runner
        .run(&(fault(), fault()), |(up, down)| {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(conversation(up, down));
            Ok(())
        })
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_wire_in_pieces_of_one_byte_changes_nothing() {
    let links = links().await;
    let mut place = Place::open(&links, Carrier::Unix).await;
    let folder = tempfile::tempdir().unwrap();
    let endless = Fault { piece: 1, delay: 0, cut: usize::MAX };
    place.target = Target::Unix(wire(folder.path(), place.path(), endless.clone(), endless).await);
    let uplink = place.connect().await.unwrap();
    let signals = place.up().await;
    for _ in 0..20 {
        place.works(&uplink).await;
        assert!(signals.signal(message("hello"), PATIENCE).await.is_ok());
    }
}
