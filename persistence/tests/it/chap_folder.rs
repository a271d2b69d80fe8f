//! Workspaces in a folder: what that store promises beyond what all stores do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use choir_messages::chap::{Change, EntryQuery, Object, ObjectKind};
use choir_persistence::StoreError;
use choir_persistence::chap::ChapStore;
use choir_persistence::limits::CHAP_LOG_PAGES;
use proptest::prelude::*;
use tokio::task::JoinSet;

use crate::chap::{change, entry, key};

const TABLES: &str = "workspaces.sqlite";
const JOURNALS: [&str; 2] = ["journal.0", "journal.1"];
const BLOCK: usize = 4096;

fn step(workspace: &str, version: u64, record: &str) -> Change {
    let mut entry = entry(version, "m", None, &[]);
    record.clone_into(&mut entry.record);
    Change { entries: vec![entry], ..change(workspace, version) }
}

/// What a crash leaves: the folder's files as they are now.
async fn crashed(store: &ChapStore, folder: &Path) -> tempfile::TempDir {
    // Files are copied one after the other, so nothing may be written to the tables meanwhile.
    store.workspaces(None, 1).await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    // The tables before their log: at most, what is in the log is being moved. The log's index is made anew.
    for name in [TABLES, "workspaces.sqlite-wal", JOURNALS[0], JOURNALS[1]] {
        let _ = std::fs::copy(folder.join(name), copy.path().join(name));
    }
    copy
}

/// What a power failure leaves when nothing that was not synced has reached the disk: the journal, and the tables as they
/// were.
fn without_power(folder: &Path, tables: &[u8]) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in JOURNALS {
        std::fs::copy(folder.join(name), copy.path().join(name)).unwrap();
    }
    std::fs::write(copy.path().join(TABLES), tables).unwrap();
    copy
}

fn tables(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join(TABLES)).unwrap()
}

/// The records of a workspace's log.
async fn records(store: &ChapStore, workspace: &str) -> Vec<String> {
    let (mut found, mut query) = (Vec::new(), EntryQuery { limit: 1000, ..EntryQuery::default() });
    loop {
        let page = store.entries(workspace, &query).await.unwrap();
        if page.entries.is_empty() {
            return found;
        }
        query.from_seq = page.next_seq;
        found.extend(page.entries.into_iter().map(|entry| entry.record));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_is_there_after_a_crash_and_after_a_power_failure() {
    let folder = tempfile::tempdir().unwrap();
    let store = ChapStore::sqlite(folder.path()).unwrap();
    let before = tables(folder.path());
    for version in 0..20 {
        store.commit(vec![step("w", version, "{}")]).await.unwrap();
    }
    let copies = [crashed(&store, folder.path()).await, without_power(folder.path(), &before)];
    store.close().await;
    for folder in copies.iter().chain([&folder]) {
        let store = ChapStore::sqlite(folder.path()).unwrap();
        assert_eq!(store.open("w").await.unwrap().unwrap().version, 20);
        assert_eq!(records(&store, "w").await.len(), 20);
        store.commit(vec![step("w", 20, "{}")]).await.unwrap();
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_end_of_the_journal_costs_nothing_and_a_hole_in_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = ChapStore::sqlite(folder.path()).unwrap();
    let before = tables(folder.path());
    for version in 0..10 {
        store.commit(vec![step("w", version, "{}")]).await.unwrap();
    }
    let after_crash = || without_power(folder.path(), &before);
    let damage = |at: &Path, block: usize| {
        let file = at.join(JOURNALS[0]);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[block * BLOCK + 30] ^= 1;
        std::fs::write(file, bytes).unwrap();
    };
    // The tenth record is the last: torn, it was never acknowledged as far as the journal can tell.
    let torn = after_crash();
    damage(torn.path(), 9);
    let opened = ChapStore::sqlite(torn.path()).unwrap();
    assert_eq!(records(&opened, "w").await.len(), 9);
    opened.commit(vec![step("w", 9, "{}")]).await.unwrap();
    opened.close().await;
    let opened = ChapStore::sqlite(torn.path()).unwrap();
    assert_eq!(records(&opened, "w").await.len(), 10);
    opened.close().await;
    for block in 0..9 {
        let holed = after_crash();
        damage(holed.path(), block);
        let refused = ChapStore::sqlite(holed.path()).unwrap_err();
        assert!(matches!(refused, StoreError::Corrupt(_)), "{refused}");
        assert!(refused.to_string().contains("restore a backup"), "{refused}");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_can_be_read_at_once_by_everyone() {
    let folder = tempfile::tempdir().unwrap();
    let store = ChapStore::sqlite(folder.path()).unwrap();
    let mut writers = JoinSet::new();
    for n in 0..8u64 {
        let store = store.clone();
        writers.spawn(async move {
            let name = format!("w{n}");
            for version in 0..200 {
                let mut next = step(&name, version, "{}");
                let due = Some(choir_messages::time::Timestamp::from_millis(1_000_000 - version));
                next.puts = vec![Object {
                    key: key(ObjectKind::Task, &version.to_string()),
                    body: version.to_string(),
                    open: true,
                    due,
                }];
                store.commit(vec![next]).await.unwrap();
                match version % 4 {
                    0 => assert_eq!(store.open(&name).await.unwrap().unwrap().version, version + 1),
                    1 => {
                        let task = key(ObjectKind::Task, &version.to_string());
                        assert_eq!(store.load(&name, &[task]).await.unwrap().len(), 1);
                    }
                    2 => {
                        let query = EntryQuery { from_seq: version, limit: 10, ..EntryQuery::default() };
                        assert_eq!(store.entries(&name, &query).await.unwrap().entries.len(), 1);
                    }
                    _ => assert!(store.next_due(None).await.unwrap() <= due),
                }
            }
        });
    }
    writers.join_all().await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folder_and_all_in_it_are_their_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("coordinator");
    let store = ChapStore::sqlite(&folder).unwrap();
    store.commit(vec![step("w", 0, "{}")]).await.unwrap();
    store.open("w").await.unwrap();
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let mut seen: Vec<PathBuf> = Vec::new();
    for file in std::fs::read_dir(&folder).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", file.path());
        seen.push(file.path());
    }
    assert_eq!(seen.len(), 6, "tables, their log and its index, two journals, the lock: {seen:?}");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redacted_record_is_in_no_byte_of_the_folder() {
    const CANARY: &str = "this must go, 2f1c9e";
    let has = |folder: &Path| {
        std::fs::read_dir(folder).unwrap().any(|file| {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes())
        })
    };
    // Small enough for the journal, and so large that it goes beside it.
    for large in [100, 2_000_000] {
        let folder = tempfile::tempdir().unwrap();
        let store = ChapStore::sqlite(folder.path()).unwrap();
        for version in 0..50 {
            // One that fits its page, and one that has pages of its own.
            let text = match version {
                7 => format!("{{\"text\":\"{CANARY}\"}}"),
                8 => format!("{{\"text\":\"{}{CANARY}\"}}", "x".repeat(30_000)),
                _ => "{}".to_owned(),
            };
            store.commit(vec![step("w", version, &text)]).await.unwrap();
        }
        assert!(has(folder.path()), "it is there to begin with");
        let erased = ["7", "8"].map(|seq| Object {
            key: key(ObjectKind::Erasure, seq),
            body: r#"{"by_seq":50}"#.to_owned(),
            open: false,
            due: None,
        });
        let puts = erased.to_vec();
        let last = step("w", 50, &format!("{{\"why\":\"{}\"}}", "y".repeat(large)));
        store.commit(vec![Change { puts, ..last }]).await.unwrap();
        // What crashed before it could forget forgets when it is opened.
        let copy = crashed(&store, folder.path()).await;
        store.close().await;
        assert!(!has(folder.path()));
        let store = ChapStore::sqlite(copy.path()).unwrap();
        assert_eq!(records(&store, "w").await.len(), 51);
        store.close().await;
        assert!(!has(copy.path()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_but_the_tables_grows_with_the_number_of_commits() {
    let folder = tempfile::tempdir().unwrap();
    let store = ChapStore::sqlite(folder.path()).unwrap();
    let text = format!("{{\"text\":\"{}\"}}", "x".repeat(5_000));
    let size = |name: &str| std::fs::metadata(folder.path().join(name)).map_or(0, |file| file.len());
    let journals = JOURNALS.map(size);
    let mut longest = 0;
    for version in 0..2_000 {
        store.commit(vec![step("w", version, &text)]).await.unwrap();
        longest = longest.max(size("workspaces.sqlite-wal"));
    }
    let bound = CHAP_LOG_PAGES as u64 * 4096 * 3 / 2;
    assert!(longest <= bound, "{longest} bytes");
    assert_eq!(JOURNALS.map(size), journals);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_serves_one_store_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = ChapStore::sqlite(folder.path()).unwrap();
    assert!(matches!(ChapStore::sqlite(folder.path()), Err(StoreError::InUse)));
    store.commit(vec![step("w", 0, "{}")]).await.unwrap();
    store.close().await;
    let next = ChapStore::sqlite(folder.path()).unwrap();
    assert_eq!(records(&next, "w").await.len(), 1);
    next.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_coordinators_file_is_refused_and_left_as_it_is() {
    let made = |write: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join(TABLES));
        folder
    };
    let foreign = made(&|file| {
        let other = rusqlite::Connection::open(file).unwrap();
        other.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
    });
    let noise = made(&|file| std::fs::write(file, vec![7u8; 10_000]).unwrap());
    let newer = tempfile::tempdir().unwrap();
    ChapStore::sqlite(newer.path()).unwrap().close().await;
    let later = rusqlite::Connection::open(newer.path().join(TABLES)).unwrap();
    later.pragma_update(None, "user_version", 2).unwrap();
    drop(later);
    let bytes =
        || [&foreign, &newer, &noise].map(|folder| std::fs::read(folder.path().join(TABLES)).unwrap());
    let before = bytes();

    let said = |folder: &tempfile::TempDir| ChapStore::sqlite(folder.path()).unwrap_err();
    assert!(matches!(said(&foreign), StoreError::Schema(_)), "{}", said(&foreign));
    let newest = said(&newer);
    assert!(matches!(newest, StoreError::NewerDatabase { version: 2, newest: 1 }), "{newest}");
    assert!(matches!(said(&noise), StoreError::Corrupt(_)), "{}", said(&noise));
    assert!(bytes() == before, "not a byte of theirs is changed");
    let file = noise.path().join(TABLES);
    assert!(ChapStore::sqlite(&file).is_err(), "a file is no folder");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_page_of_the_tables_is_an_error_and_never_a_wrong_answer_or_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let store = ChapStore::sqlite(folder.path()).unwrap();
    for version in 0..200 {
        store.commit(vec![step("w", version, "{\"text\":\"an ordinary record\"}")]).await.unwrap();
    }
    store.close().await;
    let whole = tables(folder.path());
    let all = EntryQuery { limit: 1000, ..EntryQuery::default() };
    let (mut errors, mut same) = (0, 0);
    for page in 1..whole.len() / 4096 {
        let mut damaged = whole.clone();
        damaged[page * 4096..page * 4096 + 100].fill(0xff);
        let copy = without_power(folder.path(), &damaged);
        let looked = async {
            let store = ChapStore::sqlite(copy.path())?;
            let opened = store.open("w").await?;
            let page = store.entries("w", &all).await?;
            let due = store.next_due(None).await?;
            store.close().await;
            Ok::<_, StoreError>((opened.map(|w| w.version), page.entries.len(), due))
        };
        match looked.await {
            Ok(found) => {
                assert_eq!(found, (Some(200), 200, None), "page {page}");
                same += 1;
            }
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 0 && same > 0, "{errors} {same}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever was written, in whatever sizes and however it was interrupted and opened again, the log is what was
    /// answered.
    #[test]
    fn any_run_of_commits_crashes_and_reopenings_keeps_what_was_answered(
        steps in prop::collection::vec(
            (0usize..3, prop_oneof![9 => 0usize..9_000, 1 => 1_100_000usize..1_200_000], 0u8..16), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut folder = tempfile::tempdir().unwrap();
            let mut store = ChapStore::sqlite(folder.path()).unwrap();
            // The tables as they were safe when they were opened; what is too large for the journal goes there.
            let mut safe = Some(tables(folder.path()));
            let mut wanted: [Vec<String>; 3] = Default::default();
            for (workspace, size, then) in steps {
                let name = format!("w{workspace}");
                let log = &mut wanted[workspace];
                let text = format!("{{\"n\":{},\"x\":\"{}\"}}", log.len(), "x".repeat(size));
                store.commit(vec![step(&name, log.len() as u64, &text)]).await.unwrap();
                log.push(text);
                safe = safe.filter(|_| size < 1_000_000);
                let next = match (then, &safe) {
                    (0, _) => Some(crashed(&store, folder.path()).await),
                    (1, Some(safe)) => Some(without_power(folder.path(), safe)),
                    _ => None,
                };
                if let Some(next) = next {
                    store.close().await;
                    folder = next;
                    store = ChapStore::sqlite(folder.path()).unwrap();
                    safe = Some(tables(folder.path()));
                } else if then == 2 {
                    store.close().await;
                    store = ChapStore::sqlite(folder.path()).unwrap();
                    safe = Some(tables(folder.path()));
                } else if then == 3 {
                    assert_eq!(&records(&store, &name).await, log);
                }
            }
            for (workspace, log) in wanted.iter().enumerate() {
                assert_eq!(&records(&store, &format!("w{workspace}")).await, log);
            }
            store.close().await;
        });
    }
}
