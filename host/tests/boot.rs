//! choird told to end while it starts: whatever had been started is ended in order, and nothing is left.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use choir_scripted_model::Script;
use rustix::process::Signal;
use support::{SOON, World, signal};
use tokio::io::AsyncReadExt as _;
use tokio::process::Child;

/// Pause between two looks at files.
const LOOK: Duration = Duration::from_millis(2);

/// A choird that will have to make its database first.
async fn new_world() -> World {
    let world = World::stopped(Script::default(), |_| ()).await;
    std::fs::remove_dir_all(world.state.root().join("postgres/data")).unwrap();
    world
}

fn begin(world: &World) -> Child {
    let mut command = world.command(env!("CARGO_BIN_EXE_choird"));
    command.arg("--quiet").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < until, "never came true: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

fn entries(folder: &Path, with: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|p| p.file_name().unwrap().to_string_lossy().contains(with)).collect()
}

/// Waits for the end; returns what was said on standard output. Nothing may be left of it.
async fn ends_in_order(world: &World, mut child: Child, at: &str) -> String {
    let mut said = String::new();
    let mut out = child.stdout.take().unwrap();
    let ended = async {
        out.read_to_string(&mut said).await.unwrap();
        child.wait_with_output().await.unwrap()
    };
    let ended = tokio::time::timeout(SOON, ended).await.unwrap_or_else(|_| panic!("{at}: it does not end"));
    assert_eq!(ended.status.code(), Some(0), "{at}: {}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(world.processes(), [], "{at}");
    let state = world.state.root();
    let sockets = [entries(&state.join("postgres/sock"), "PGSQL"), entries(&state.join("socks"), ".sock")];
    assert!(sockets.iter().all(Vec::is_empty), "{at}: {sockets:?}");
    assert!(entries(&state.join("postgres"), "data.new").is_empty(), "{at}: a half-made cluster is left");
    assert!(
        !state.join("postgres/data/postmaster.pid").exists(),
        "{at}: the server was not stopped in order"
    );
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_database_is_made_ends_choird_at_once_and_the_next_start_makes_it() {
    let mut world = new_world().await;
    for told in [Signal::TERM, Signal::INT] {
        let child = begin(&world);
        let folder = world.state.root().join("postgres");
        until("initdb has begun", || {
            entries(&folder, "data.new").iter().any(|new| new.join("PG_VERSION").exists())
        })
        .await;
        signal(child.id().unwrap(), told);
        let said = ends_in_order(&world, child, "initdb").await;
        assert_eq!(said, "", "it ended instead of finishing its start");
        assert!(!folder.join("data").exists());
    }
    world.start().await;
    assert_eq!(world.stop_choird().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_server_starts_stops_it_in_order() {
    let world = World::stopped(Script::default(), |_| ()).await;
    for _ in 0..3 {
        let child = begin(&world);
        let pid = world.state.root().join("postgres/data/postmaster.pid");
        until("the server has begun to start", || pid.exists()).await;
        signal(child.id().unwrap(), Signal::TERM);
        ends_in_order(&world, child, "the server's start").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_at_any_step_of_the_start_ends_it_with_nothing_left() {
    let world = World::stopped(Script::default(), |_| ()).await;
    let log = world.state.log_file("choird");
    let steps =
        ["step 1", "step 2", "step 3", "steps 4 to 7", "the database server is up", "orphaned agents"];
    for step in steps {
        let before = std::fs::read_to_string(&log).unwrap_or_default().len();
        let child = begin(&world);
        until(step, || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.get(before..).unwrap_or("").contains(step))
        })
        .await;
        signal(child.id().unwrap(), Signal::TERM);
        ends_in_order(&world, child, step).await;
    }
}
