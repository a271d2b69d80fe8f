//! A disk that is really full: a small tmpfs, mounted in a user namespace of the test's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use choir_messages::chap::{Change, EntryQuery};
use choir_persistence::chap::{ChapStore, CommitError};
use choir_persistence::postgres::{Cluster, ClusterConfig, ClusterError};
use choir_persistence::testing::{Watchdog, binaries, template};
use choir_persistence::{AppendError, Store, StoreError};

use crate::chap::{change, entry};
use crate::log::{id, session};

/// Set for the run inside the namespace: the mounted folder, and the template.
const INSIDE: &str = "CHOIR_TEST_FULL_DISK";

/// What fills the disk.
const BALLAST: &str = "ballast";

/// Mounts the small disk and goes on as the test itself.
const MOUNT: &str = r#"mount -t tmpfs -o size=160m,mode=0700 choir-test "$1" || exit 97
shift; exec "$@""#;

/// Runs a test of this crate again, inside a namespace with a small disk. `CHOIR_TEST_FULL_DISK` is then its folder, and
/// below it what else the test wants to know.
fn again_on_a_small_disk(test: &str, also: &str) {
    let disk = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["-U", "-r", "-m", "sh", "-c", MOUNT, "mount"])
        .arg(disk.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, format!("{}\n{also}", disk.path().display()))
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_ne!(output.status.code(), Some(97), "this test needs unprivileged user namespaces: {said}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Leaves this many bytes of a disk free.
fn fill(disk: &Path, keep: u64) {
    let free = rustix::fs::statvfs(disk).unwrap();
    let bytes = (free.f_bavail * free.f_frsize).saturating_sub(keep);
    std::fs::write(disk.join(BALLAST), vec![0u8; usize::try_from(bytes).unwrap()]).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_costs_nothing_that_was_acknowledged() {
    if let Some(inside) = std::env::var_os(INSIDE) {
        let inside = inside.into_string().unwrap();
        let (disk, template) = inside.split_once('\n').unwrap();
        return on_the_small_disk(Path::new(disk), PathBuf::from(template)).await;
    }
    let template = template(&binaries().await).await;
    let test = "full_disk::a_full_disk_is_said_and_costs_nothing_that_was_acknowledged";
    again_on_a_small_disk(test, template.to_str().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_workspaces_on_a_full_disk_refuses_and_goes_on_when_there_is_space() {
    if let Some(inside) = std::env::var_os(INSIDE) {
        let inside = inside.into_string().unwrap();
        let (disk, _) = inside.split_once('\n').unwrap();
        return workspaces_on_the_small_disk(Path::new(disk)).await;
    }
    let test = "full_disk::a_file_of_workspaces_on_a_full_disk_refuses_and_goes_on_when_there_is_space";
    again_on_a_small_disk(test, "");
}

async fn workspaces_on_the_small_disk(disk: &Path) {
    let folder = disk.join("coordinator");
    let store = ChapStore::sqlite(&folder).unwrap();
    let step = |version: u64| {
        let mut entry = entry(version, "m", None, &[]);
        entry.record = format!("{version}{}", "x".repeat(20_000));
        vec![Change { entries: vec![entry], ..change("w", version) }]
    };
    store.commit(vec![change("other", 0)]).await.unwrap();
    store.commit(step(0)).await.unwrap();
    assert_eq!(store.open("w").await.unwrap().unwrap().version, 1);
    fill(disk, 500_000);
    let mut version = 1;
    let refused = loop {
        match store.commit(step(version)).await {
            Ok(()) => version += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, CommitError::NotWritten(StoreError::DiskFull)), "{refused:?}");
    assert!(refused.to_string().contains("free some space"), "{refused}");
    // A full disk stays a full disk. What the tables have can be read; what they lack is not passed over.
    assert!(store.commit(step(version)).await.is_err());
    assert_eq!(store.open("other").await.unwrap().unwrap().version, 1);
    assert!(matches!(store.open("w").await, Err(StoreError::DiskFull)));
    std::fs::remove_file(disk.join(BALLAST)).unwrap();
    assert_eq!(store.open("w").await.unwrap().unwrap().version, version);
    store.commit(step(version)).await.unwrap();
    store.close().await;
    let store = ChapStore::sqlite(&folder).unwrap();
    let mut query = EntryQuery { limit: 1000, ..EntryQuery::default() };
    let mut found = 0;
    while let Some(last) = store.entries("w", &query).await.unwrap().entries.last() {
        found = last.seq + 1;
        query.from_seq = found;
    }
    assert_eq!(found, version + 1, "all that was acknowledged, and nothing that was refused");
    store.close().await;
}

async fn on_the_small_disk(disk: &Path, template: PathBuf) {
    let mut config = ClusterConfig::new(binaries().await, &disk.join("state"));
    let _watchdog = Watchdog::over(&config.state);
    config.template = Some(template);
    let cluster = Cluster::start(&config).await.unwrap();
    let store = Store::open(cluster.options()).await.unwrap();
    let mut log = session(&store, "a").await;
    fill(disk, 3 * 1024 * 1024);
    let mut durable = log.head;
    // Incompressible enough to fill what is left.
    let noise: String =
        (0..25_000u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11).to_string()).collect();
    let error = loop {
        let message = id(u128::from(log.head.rev));
        let events = vec![log.user(message), log.says(message, &noise)];
        let closed = log.close(message, choir_messages::event::MessageOutcome::Failed, "");
        match log.append(&store, [events, vec![closed]].concat()).await {
            Ok(ack) => durable = ack.head,
            Err(error) => break error,
        }
    };
    assert!(error.is_transient(), "{error}");
    assert!(matches!(
        error,
        AppendError::Database(StoreError::DiskFull | StoreError::Unavailable(_) | StoreError::Unconfirmed)
    ));
    // Postgres stops when it cannot write its log; it is not started again on a full disk, and says why.
    cluster.stop().await;
    let refused = Cluster::start(&config).await.unwrap_err();
    assert!(matches!(refused, ClusterError::DiskFull { .. }), "{refused}");
    assert!(refused.to_string().contains("free some space"), "{refused}");

    std::fs::remove_file(disk.join(BALLAST)).unwrap();
    let cluster = Cluster::start(&config).await.unwrap();
    let report = store.verify(log.row.session).await.unwrap();
    assert!(report.is_verified() && report.head.rev >= durable.rev, "{report:?} {durable:?}");
    log.head = report.head;
    let more = log.config(1);
    assert_eq!(log.append(&store, vec![more]).await.unwrap().head, log.head);
    store.close().await;
    cluster.stop().await;
}
