//! A disk that is really full: a small tmpfs, mounted in a user namespace of the test's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use choir_persistence::postgres::{Cluster, ClusterConfig, ClusterError};
use choir_persistence::testing::{Watchdog, binaries, template};
use choir_persistence::{AppendError, Store, StoreError};

use crate::log::{id, session};

/// Set for the run inside the namespace: the mounted folder, and the template.
const INSIDE: &str = "CHOIR_TEST_FULL_DISK";

/// Mounts the small disk and goes on as the test itself.
const MOUNT: &str = r#"mount -t tmpfs -o size=160m,mode=0700 choir-test "$1" || exit 97
shift; exec "$@""#;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_costs_nothing_that_was_acknowledged() {
    if let Some(inside) = std::env::var_os(INSIDE) {
        let inside = inside.into_string().unwrap();
        let (disk, template) = inside.split_once('\n').unwrap();
        return on_the_small_disk(Path::new(disk), PathBuf::from(template)).await;
    }
    let disk = tempfile::tempdir().unwrap();
    let template = template(&binaries().await).await;
    let me = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["-U", "-r", "-m", "sh", "-c", MOUNT, "mount"])
        .arg(disk.path())
        .arg(me)
        .args([
            "--exact",
            "full_disk::a_full_disk_is_said_and_costs_nothing_that_was_acknowledged",
            "--nocapture",
        ])
        .env(INSIDE, format!("{}\n{}", disk.path().display(), template.display()))
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_ne!(output.status.code(), Some(97), "this test needs unprivileged user namespaces: {said}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

async fn on_the_small_disk(disk: &Path, template: PathBuf) {
    let mut config = ClusterConfig::new(binaries().await, &disk.join("state"));
    let _watchdog = Watchdog::over(&config.state);
    config.template = Some(template);
    let cluster = Cluster::start(&config).await.unwrap();
    let store = Store::open(cluster.options()).await.unwrap();
    let mut log = session(&store, "a").await;
    let ballast = disk.join("ballast");
    let fill = |keep: u64| {
        let free = rustix::fs::statvfs(disk).unwrap();
        let bytes = (free.f_bavail * free.f_frsize).saturating_sub(keep);
        std::fs::write(&ballast, vec![0u8; usize::try_from(bytes).unwrap()]).unwrap();
    };
    fill(3 * 1024 * 1024);
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

    std::fs::remove_file(&ballast).unwrap();
    let cluster = Cluster::start(&config).await.unwrap();
    let report = store.verify(log.row.session).await.unwrap();
    assert!(report.is_verified() && report.head.rev >= durable.rev, "{report:?} {durable:?}");
    log.head = report.head;
    let more = log.config(1);
    assert_eq!(log.append(&store, vec![more]).await.unwrap().head, log.head);
    store.close().await;
    cluster.stop().await;
}
