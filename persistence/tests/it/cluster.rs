use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use choir_persistence::postgres::{Binaries, Cluster, ClusterConfig, ClusterError, Origin, Source};
use choir_persistence::testing::{TestCluster, Watchdog, binaries, kill_9};
use sqlx::ConnectOptions;

/// Longest wait for something that is about to happen.
const SOON: Duration = Duration::from_secs(30);

fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
}

/// Every process whose command line names this folder.
fn processes_in(folder: &Path) -> Vec<u32> {
    let needle = folder.as_os_str().as_encoded_bytes();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                line.starts_with(b"/") && line.windows(needle.len()).any(|window| window == needle)
            })
        })
        .filter(|pid| is_running(*pid))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_made_private_without_tcp_and_stopped_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let config = ClusterConfig::new(binaries().await, dir.path());
    let _watchdog = Watchdog::over(dir.path());
    let cluster = Cluster::start(&config).await.unwrap();
    assert_eq!(cluster.origin(), Origin::Made);
    let root = dir.path().join("postgres");
    for folder in [root.clone(), root.join("data"), root.join("sock")] {
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700, "{}", folder.display());
    }
    let mut connection = cluster.options().connect().await.unwrap();
    for (setting, value) in [("listen_addresses", ""), ("fsync", "on"), ("synchronous_commit", "on")] {
        let (found,): (String,) = sqlx::query_as("SELECT current_setting($1)")
            .bind(setting)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(found, value, "{setting}");
    }
    drop(connection);
    // In a process group of its own, a Ctrl-C in the terminal does not reach it.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", cluster.pid())).unwrap();
    let group: u32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert_eq!(group, cluster.pid());
    let url: sqlx::postgres::PgConnectOptions = cluster.url().parse().unwrap();
    assert!(url.connect().await.is_ok());
    let ended = cluster.stop().await;
    assert!(ended.how.contains("0"), "{ended:?}");
    assert_eq!(processes_in(dir.path()), [] as [u32; 0]);
    let again = Cluster::start(&config).await.unwrap();
    assert_eq!(again.origin(), Origin::Started);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_left_by_a_killed_choird_is_adopted_and_can_be_stopped() {
    let mut cluster = TestCluster::start().await;
    let manager = cluster.take();
    let pid = manager.pid();
    let second = Cluster::start(cluster.config()).await.unwrap_err();
    assert!(matches!(second, ClusterError::Managed { .. }), "{second}");
    drop(manager);
    assert!(is_running(pid));
    cluster.up().await;
    assert_eq!((cluster.cluster().origin(), cluster.cluster().pid()), (Origin::Adopted, pid));
    cluster.store().await.ping().await.unwrap();
    cluster.take().stop().await;
    assert!(!is_running(pid));
    cluster.up().await;
    assert_eq!(cluster.cluster().origin(), Origin::Started);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_server_is_seen_whether_it_was_started_or_adopted() {
    let mut cluster = TestCluster::start().await;
    for _ in 0..2 {
        let mut manager = cluster.take();
        let watch = manager.watch().unwrap();
        kill_9(manager.pid());
        tokio::time::timeout(SOON, watch).await.unwrap();
        let reason = tokio::time::timeout(SOON, manager.ended()).await.unwrap();
        assert!(matches!(reason, ClusterError::Failed { program: "postgres", .. }), "{reason}");
        drop(manager);
        cluster.up().await;
        // The second time it is somebody else's child.
        drop(cluster.take());
        cluster.up().await;
        assert_eq!(cluster.cluster().origin(), Origin::Adopted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_lock_of_a_killed_server_does_not_keep_the_cluster_from_starting() {
    let mut cluster = TestCluster::start().await;
    cluster.kill().await;
    // The dead server's number has passed to a living process, or has not been given back yet.
    let mut holder = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let lock = cluster.config().state.join("postgres/sock/.s.PGSQL.5432.lock");
    let text = std::fs::read_to_string(&lock).unwrap();
    let rest = text.split_once('\n').unwrap().1;
    std::fs::write(&lock, format!("{}\n{rest}", holder.id())).unwrap();
    cluster.up().await;
    assert_eq!(cluster.cluster().origin(), Origin::Started);
    drop(holder.stdin.take());
    holder.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_pid_file_does_not_keep_the_cluster_from_starting() {
    let mut cluster = TestCluster::start().await;
    let file = cluster.config().state.join("postgres/data/postmaster.pid");
    // A dead process; and a living one that is not Postgres, whatever its number was before.
    for stale in [None, Some(std::process::id())] {
        cluster.kill().await;
        let text = std::fs::read_to_string(&file).unwrap();
        if let Some(pid) = stale {
            let rest = text.split_once('\n').unwrap().1;
            std::fs::write(&file, format!("{pid}\n{rest}")).unwrap();
        }
        cluster.up().await;
        assert_eq!(cluster.cluster().origin(), Origin::Started);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_major_version_is_named_and_nothing_is_touched() {
    let cluster = TestCluster::stopped().await;
    let mut config = cluster.config().clone();
    Cluster::start(&config).await.unwrap().stop().await;
    let version = config.state.join("postgres/data/PG_VERSION");
    std::fs::write(&version, "16\n").unwrap();
    let error = Cluster::start(&config).await.unwrap_err();
    assert!(matches!(&error, ClusterError::WrongVersion { found, .. } if found == "16"), "{error}");
    let text = error.to_string();
    assert!(text.contains("PostgreSQL 16") && text.contains(&config.binaries.major().to_string()), "{text}");
    std::fs::write(&version, format!("{}\n", config.binaries.major())).unwrap();
    config.template = None;
    Cluster::start(&config).await.unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_made_cluster_is_thrown_away_and_made_anew() {
    let cluster = TestCluster::stopped().await;
    let unfinished = cluster.config().state.join("postgres/data.new-1");
    std::fs::create_dir_all(&unfinished).unwrap();
    std::fs::write(unfinished.join("PG_VERSION"), "1").unwrap();
    let running = Cluster::start(cluster.config()).await.unwrap();
    assert_eq!(running.origin(), Origin::Made);
    assert!(!unfinished.exists());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_start_says_why_and_where_its_log_is() {
    let cluster = TestCluster::stopped().await;
    let config = cluster.config();
    Cluster::start(config).await.unwrap().stop().await;
    let data = config.state.join("postgres/data");
    std::fs::write(data.join("postgresql.auto.conf"), "no_such_setting = 1\n").unwrap();
    let error = Cluster::start(config).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ClusterError::Failed { program: "postgres", .. }), "{text}");
    assert!(text.contains("postgres.log"), "{text}");
    assert_eq!(processes_in(&data), [] as [u32; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_folder_with_a_long_name_works_through_a_short_socket_folder() {
    let cluster = TestCluster::stopped().await;
    let mut config = cluster.config().clone();
    config.state = config.state.join("a long name with spaces & signs ".repeat(4).trim_end());
    let running = Cluster::start(&config).await.unwrap();
    let url: sqlx::postgres::PgConnectOptions = running.url().parse().unwrap();
    let connected = url.connect().await;
    let sockets = running.options().get_socket().unwrap().clone();
    running.stop().await;
    std::fs::remove_dir_all(sockets).unwrap();
    connected.unwrap();
}

#[tokio::test]
async fn without_programs_one_error_names_the_command_that_fetches_them() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("bin");
    std::fs::create_dir(&empty).unwrap();
    let error = Binaries::at(&empty).await.unwrap_err();
    assert!(matches!(error, ClusterError::BadBinaries { .. }), "{error}");
    std::fs::write(empty.join("postgres"), "#!/bin/sh\necho 'postgres (PostgreSQL) 9.6.1'\n").unwrap();
    std::fs::write(empty.join("initdb"), "").unwrap();
    std::fs::set_permissions(empty.join("postgres"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = Binaries::at(&empty).await.unwrap_err().to_string();
    assert!(error.contains("version 9 is too old"), "{error}");
    let text = ClusterError::NoBinaries { looked: vec![empty] }.to_string();
    assert!(text.contains("scripts/fetch-postgres") && text.contains("DATABASE_URL"), "{text}");
    let source = Source::find(Some("postgres://localhost/x"), None, dir.path()).await.unwrap();
    assert!(matches!(source, Source::External(_)));
}
