//! What every store of workspaces promises: each test runs on the one in memory, on the one in Postgres and on the one in a
//! folder.

use std::collections::BTreeSet;

use choir_messages::chap::{Change, Entry, EntryQuery, Notice, Object, ObjectKey, ObjectKind, Opened};
use choir_messages::time::Timestamp;
use choir_persistence::StoreError;
use choir_persistence::chap::{ChapStore, CommitError, Due, WorkspaceSummary};
use choir_persistence::limits::{CHAP_PAGE, CHAP_PAGE_BYTES};
use choir_persistence::testing::TestCluster;

/// Makes three tests of one: in memory, in Postgres and in a folder.
macro_rules! on_every_store {
    ($($test:ident)*) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(super::ChapStore::memory()).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let cluster = super::TestCluster::start().await;
                let store = cluster.store().await;
                let workspaces = super::ChapStore::postgres(&store);
                super::$test(workspaces.clone()).await;
                workspaces.close().await;
                store.close().await;
            })*
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let folder = tempfile::tempdir().unwrap();
                let workspaces = super::ChapStore::sqlite(&folder.path().join("coordinator")).unwrap();
                super::$test(workspaces.clone()).await;
                workspaces.close().await;
            })*
        }
    };
}

on_every_store! {
    a_workspace_opens_as_it_was_committed_and_an_unknown_one_is_none
    a_change_that_does_not_continue_the_workspace_conflicts_and_changes_nothing
    of_many_writers_on_one_version_exactly_one_wins
    consecutive_changes_commit_as_one
    objects_are_replaced_removed_and_listed_while_open
    what_is_due_is_found_earliest_first_across_workspaces
    strange_names_come_back_unchanged_and_do_not_meet
    every_filter_followed_page_by_page_finds_exactly_its_entries
    a_page_is_bounded_in_rows_and_bytes_but_a_large_entry_comes_alone
    notices_are_each_participants_own_and_in_order
    read_notices_are_pruned_by_count_and_age_and_unread_ones_never
    a_redaction_overwrites_the_record_in_the_commit_that_stores_it
    ten_thousand_workspaces_are_listed_and_opened_one_by_one
    what_is_submitted_is_stored_when_its_submitter_is_told_and_each_is_told_once
    a_closed_store_says_so
}

pub(crate) fn key(kind: ObjectKind, id: &str) -> ObjectKey {
    ObjectKey { kind, id: id.to_owned() }
}

fn object(kind: ObjectKind, id: &str, body: &str, open: bool, due: Option<u64>) -> Object {
    let due = due.map(Timestamp::from_millis);
    Object { key: key(kind, id), body: body.to_owned(), open, due }
}

pub(crate) fn entry(seq: u64, method: &str, from: Option<&str>, tasks: &[&str]) -> Entry {
    Entry {
        seq,
        arrived: Timestamp::from_millis(1_700_000_000_000 + seq),
        record: format!("{{\"n\":{seq},\"text\":\"\\u0000\"}}"),
        refused: None,
        prev_hash: seq.is_multiple_of(2).then(|| format!("sha256:{seq:064}")),
        method: method.to_owned(),
        from: from.map(str::to_owned),
        tasks: tasks.iter().map(|&t| t.to_owned()).collect(),
    }
}

pub(crate) fn change(workspace: &str, version_before: u64) -> Change {
    Change {
        workspace: workspace.to_owned(),
        version_before,
        version_after: version_before + 1,
        meta: format!("{{\"version\":{}}}", version_before + 1),
        puts: Vec::new(),
        removes: Vec::new(),
        entries: Vec::new(),
        notices: Vec::new(),
    }
}

async fn all_entries(store: &ChapStore, workspace: &str) -> Vec<Entry> {
    let query = EntryQuery { limit: CHAP_PAGE, ..EntryQuery::default() };
    store.entries(workspace, &query).await.unwrap().entries
}

async fn a_workspace_opens_as_it_was_committed_and_an_unknown_one_is_none(store: ChapStore) {
    assert_eq!(store.open("w").await.unwrap(), None);
    assert_eq!(all_entries(&store, "w").await, []);
    let member = object(ObjectKind::Member, "human:a", "{\"a\":\"\\u0000\"}", true, None);
    let task = object(ObjectKind::Task, "human:a", "{}", true, None);
    let first = Change {
        puts: vec![member.clone(), task.clone()],
        entries: vec![
            entry(0, "workspace.create", None, &[]),
            entry(1, "task.create", Some("human:a"), &["t"]),
        ],
        ..change("w", 0)
    };
    store.commit(vec![first.clone()]).await.unwrap();
    let opened = store.open("w").await.unwrap().unwrap();
    assert_eq!(opened, Opened { version: 1, meta: first.meta, members: vec![member] });
    assert_eq!(all_entries(&store, "w").await, first.entries);
    store.commit(vec![change("w", 1)]).await.unwrap();
    assert_eq!(store.open("w").await.unwrap().unwrap().version, 2, "a change without entries");
    assert_eq!(store.open("v").await.unwrap(), None);
    store.commit(Vec::new()).await.unwrap();
}

async fn a_change_that_does_not_continue_the_workspace_conflicts_and_changes_nothing(store: ChapStore) {
    let conflict = |r: Result<(), CommitError>| matches!(r, Err(CommitError::Conflict));
    assert!(conflict(store.commit(vec![change("w", 3)]).await), "there is none yet");
    let unborn = Change { entries: vec![entry(1, "m", None, &[])], ..change("w", 0) };
    assert!(conflict(store.commit(vec![unborn]).await), "a log begins at 0");
    assert_eq!(store.open("w").await.unwrap(), None);
    let first = Change { entries: vec![entry(0, "m", None, &[])], ..change("w", 0) };
    store.commit(vec![first.clone()]).await.unwrap();
    let bad = [
        Change { puts: vec![object(ObjectKind::Task, "t", "{}", true, None)], ..first.clone() },
        Change { entries: vec![entry(0, "again", None, &[])], ..change("w", 1) },
        Change { entries: vec![entry(2, "gap", None, &[])], ..change("w", 1) },
        Change { notices: vec![Notice { number: 1, to: "a".into(), body: "{}".into() }], ..change("w", 2) },
    ];
    for change in bad {
        assert!(conflict(store.commit(vec![change]).await));
    }
    assert_eq!(store.open("w").await.unwrap().unwrap().version, 1);
    assert_eq!(all_entries(&store, "w").await, first.entries);
    assert_eq!(store.load("w", &[key(ObjectKind::Task, "t")]).await.unwrap(), []);
    assert_eq!(store.notices("w", "a", 0, 10).await.unwrap(), []);
    let torn = vec![change("w", 1), change("v", 2)];
    assert!(matches!(store.commit(torn).await, Err(CommitError::NotWritten(StoreError::Invalid(_)))));
}

async fn of_many_writers_on_one_version_exactly_one_wins(store: ChapStore) {
    for version in 0..10 {
        let mut writers = tokio::task::JoinSet::new();
        for n in 0..8u64 {
            let store = store.clone();
            let meta = format!("{{\"by\":{n}}}");
            let entries = vec![entry(version, &n.to_string(), None, &[])];
            let change = Change { meta, entries, ..change("w", version) };
            writers.spawn(async move { (n, store.commit(vec![change]).await) });
        }
        let mut winners = Vec::new();
        while let Some(done) = writers.join_next().await {
            match done.unwrap() {
                (n, Ok(())) => winners.push(n),
                (_, Err(CommitError::Conflict)) => {}
                (_, Err(error)) => panic!("{error}"),
            }
        }
        let [winner] = winners[..] else { panic!("{winners:?}") };
        assert_eq!(store.open("w").await.unwrap().unwrap().meta, format!("{{\"by\":{winner}}}"));
        assert_eq!(all_entries(&store, "w").await.last().unwrap().method, winner.to_string());
    }
}

async fn consecutive_changes_commit_as_one(store: ChapStore) {
    let task = |body: &str| object(ObjectKind::Task, "t", body, true, None);
    let changes = vec![
        Change { puts: vec![task("1")], entries: vec![entry(0, "a", None, &[])], ..change("w", 0) },
        Change { puts: vec![task("2")], entries: vec![entry(1, "b", None, &[])], ..change("w", 1) },
        Change { removes: vec![key(ObjectKind::Task, "gone")], ..change("w", 2) },
    ];
    store.commit(changes).await.unwrap();
    let opened = store.open("w").await.unwrap().unwrap();
    assert_eq!((opened.version, opened.meta.as_str()), (3, "{\"version\":3}"));
    assert_eq!(all_entries(&store, "w").await.len(), 2);
    assert_eq!(store.load("w", &[key(ObjectKind::Task, "t")]).await.unwrap(), [task("2")]);
}

async fn objects_are_replaced_removed_and_listed_while_open(store: ChapStore) {
    let task = |n: u32, body: &str, open| object(ObjectKind::Task, &format!("t{n:03}"), body, open, None);
    let puts = (0..20).map(|n| task(n, "first", true)).collect();
    store.commit(vec![Change { puts, ..change("w", 0) }]).await.unwrap();
    let second = Change {
        puts: (0..20).step_by(2).map(|n| task(n, "second", n % 4 == 0)).collect(),
        removes: vec![key(ObjectKind::Task, "t001"), key(ObjectKind::Task, "t404")],
        ..change("w", 1)
    };
    store.commit(vec![second]).await.unwrap();
    let wanted = ["t000", "t001", "t002", "t003", "t003", "nowhere"].map(|id| key(ObjectKind::Task, id));
    let mut found = store.load("w", &wanted).await.unwrap();
    found.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(found, [task(0, "second", true), task(2, "second", false), task(3, "first", true)]);
    assert_eq!(store.load("w", &[key(ObjectKind::Whisper, "t000")]).await.unwrap(), []);
    assert_eq!(store.load("nowhere", &wanted).await.unwrap(), []);
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = store.open_objects("w", ObjectKind::Task, after.as_deref(), 4).await.unwrap();
        assert!(page.len() <= 4);
        let Some(last) = page.last() else { break };
        after = Some(last.key.id.clone());
        listed.extend(page.into_iter().map(|o| o.key.id));
    }
    let expected: Vec<String> =
        (0..20).filter(|n| n % 4 != 2 && *n != 1).map(|n| format!("t{n:03}")).collect();
    assert_eq!(listed, expected);
}

async fn what_is_due_is_found_earliest_first_across_workspaces(store: ChapStore) {
    assert_eq!(store.next_due(None).await.unwrap(), None);
    for (n, workspace) in ["v", "w"].iter().enumerate() {
        let puts = (0..5u64)
            .map(|i| object(ObjectKind::Whisper, &i.to_string(), "{}", true, Some(10 * i + n as u64)))
            .chain([object(ObjectKind::Whisper, "never", "{}", true, None)])
            .collect();
        store.commit(vec![Change { puts, ..change(workspace, 0) }]).await.unwrap();
    }
    let at = Timestamp::from_millis;
    let whisper = |workspace: &str, i: u64, due: u64| Due {
        workspace: workspace.to_owned(),
        key: key(ObjectKind::Whisper, &i.to_string()),
        at: at(due),
    };
    let due = store.due(at(11), &[], 10).await.unwrap();
    assert_eq!(due, [whisper("v", 0, 0), whisper("w", 0, 1), whisper("v", 1, 10), whisper("w", 1, 11)]);
    assert_eq!(store.due(at(11), &[], 1).await.unwrap(), [whisper("v", 0, 0)]);
    let but_v = store.due(at(11), &["v".to_owned(), "x".to_owned()], 10).await.unwrap();
    assert_eq!(but_v, [whisper("w", 0, 1), whisper("w", 1, 11)]);
    assert_eq!(store.next_due(None).await.unwrap(), Some(at(0)));
    assert_eq!(store.next_due(Some(at(11))).await.unwrap(), Some(at(20)));
    assert_eq!(store.next_due(Some(at(41))).await.unwrap(), None);
    let done = Change {
        puts: vec![
            object(ObjectKind::Whisper, "0", "{}", false, None),
            object(ObjectKind::Whisper, "1", "{}", true, Some(99)),
        ],
        removes: vec![key(ObjectKind::Whisper, "2")],
        ..change("v", 1)
    };
    store.commit(vec![done]).await.unwrap();
    let due = store.due(at(u64::MAX), &[], 10).await.unwrap();
    let expected = [("w", 0, 1), ("w", 1, 11), ("w", 2, 21), ("v", 3, 30), ("w", 3, 31), ("v", 4, 40)];
    assert_eq!(due[..6], expected.map(|(w, i, due)| whisper(w, i, due)));
    assert_eq!(due[6..], [whisper("w", 4, 41), whisper("v", 1, 99)]);
}

async fn strange_names_come_back_unchanged_and_do_not_meet(store: ChapStore) {
    let long = "n".repeat(5000);
    let longer = "n".repeat(5001);
    let names =
        ["", " ", "a\0b", "a\0c", "\0", "\u{1}", "\u{1}x", "Ünïcode 🎼", "'; --", &long, &longer, "%_"];
    for workspace in names {
        let puts = names.map(|id| object(ObjectKind::Task, id, &format!("{id:?}"), true, Some(7))).to_vec();
        let members = names.map(|id| object(ObjectKind::Member, id, "{}", true, None));
        let first = Change {
            puts: puts.iter().cloned().chain(members).collect(),
            entries: (0..)
                .zip(names)
                .map(|(seq, name)| entry(seq, "m", Some(name), &[name, "all", name]))
                .collect(),
            notices: (1..)
                .zip(names)
                .map(|(number, to)| Notice { number, to: to.into(), body: "{}".into() })
                .collect(),
            ..change(workspace, 0)
        };
        store.commit(vec![first.clone()]).await.unwrap();
        let opened = store.open(workspace).await.unwrap().unwrap();
        let ids = |objects: &[Object]| objects.iter().map(|o| o.key.id.clone()).collect::<BTreeSet<_>>();
        let expected: BTreeSet<String> = names.iter().map(|&n| n.to_owned()).collect();
        assert_eq!(ids(&opened.members), expected);
        let keys = names.map(|id| key(ObjectKind::Task, id));
        assert_eq!(ids(&store.load(workspace, &keys).await.unwrap()), expected);
        assert_eq!(ids(&store.open_objects(workspace, ObjectKind::Task, None, 100).await.unwrap()), expected);
        assert_eq!(all_entries(&store, workspace).await, first.entries);
        for (n, name) in names.iter().enumerate() {
            let wanted = Some((*name).to_owned());
            let base = EntryQuery { limit: 100, ..EntryQuery::default() };
            for query in [
                EntryQuery { from: wanted.clone(), ..base.clone() },
                EntryQuery { task: wanted.clone(), ..base.clone() },
            ] {
                assert_eq!(store.entries(workspace, &query).await.unwrap().entries, first.entries[n..=n]);
            }
            let notices = store.notices(workspace, name, 0, 100).await.unwrap();
            assert_eq!(notices, first.notices[n..=n]);
        }
    }
    let listed = store.workspaces(None, 100).await.unwrap();
    let listed: BTreeSet<&str> = listed.iter().map(|w| w.workspace.as_str()).collect();
    assert_eq!(listed, names.into_iter().collect());
    let due = store.due(Timestamp::from_millis(7), &[], CHAP_PAGE).await.unwrap();
    let due: BTreeSet<(String, String)> = due.into_iter().map(|d| (d.workspace, d.key.id)).collect();
    assert_eq!(due.len(), names.len() * names.len());
}

/// A generator whose numbers are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

async fn every_filter_followed_page_by_page_finds_exactly_its_entries(store: ChapStore) {
    const ENTRIES: u64 = 300;
    let mut dice = Dice(7);
    let mut log = Vec::new();
    for seq in 0..ENTRIES {
        let (method, from) =
            (["a", "b", "rare"][(dice.roll(20) / 9) as usize], ["x", "y"][dice.roll(2) as usize]);
        let tasks: Vec<String> = (0..dice.roll(3)).map(|_| dice.roll(12).to_string()).collect();
        let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
        let mut made = entry(seq, method, (dice.roll(9) > 0).then_some(from), &tasks);
        made.refused = (dice.roll(5) == 0).then_some(-32011);
        log.push(made);
    }
    // A neighbour whose rows must not be seen.
    let other = (0..50).map(|seq| entry(seq, "a", Some("x"), &["1"])).collect();
    store.commit(vec![Change { entries: other, ..change("other", 0) }]).await.unwrap();
    for (version, part) in (0..).zip(log.chunks(47)) {
        store.commit(vec![Change { entries: part.to_vec(), ..change("w", version) }]).await.unwrap();
    }
    let pick = |n: u64, some: &[&str]| some.get(n as usize).map(|&s| s.to_owned());
    for _ in 0..150 {
        let query = EntryQuery {
            from_seq: dice.roll(ENTRIES + 20).saturating_sub(20),
            to_seq: (dice.roll(3) == 0).then(|| dice.roll(ENTRIES + 50)),
            method: pick(dice.roll(6), &["a", "b", "rare", "none"]),
            from: pick(dice.roll(5), &["x", "y", "z"]),
            task: pick(dice.roll(6), &["1", "2", "404"]),
            refused: [None, Some(true), Some(false)][dice.roll(3) as usize],
            limit: 1 + dice.roll(40) as usize,
        };
        let expected: Vec<&Entry> = log
            .iter()
            .filter(|e| e.seq >= query.from_seq && query.to_seq.is_none_or(|to| e.seq < to))
            .filter(|e| query.method.as_ref().is_none_or(|m| *m == e.method))
            .filter(|e| query.from.is_none() || query.from == e.from)
            .filter(|e| query.task.as_ref().is_none_or(|t| e.tasks.contains(t)))
            .filter(|e| query.refused.is_none_or(|r| r == e.refused.is_some()))
            .collect();
        let (mut found, mut next) = (Vec::new(), query.clone());
        loop {
            let page = store.entries("w", &next).await.unwrap();
            assert!(page.entries.len() <= query.limit, "{query:?}");
            assert!(page.next_seq <= ENTRIES, "never past the log: {query:?}");
            let full = page.entries.len() == query.limit;
            found.extend(page.entries);
            if !full {
                let end = query.to_seq.unwrap_or(ENTRIES).min(ENTRIES);
                assert_eq!(page.next_seq, next.from_seq.max(end).min(ENTRIES), "{query:?}");
                break;
            }
            assert!(page.next_seq > next.from_seq, "{query:?}");
            next.from_seq = page.next_seq;
        }
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{query:?}");
    }
}

async fn a_page_is_bounded_in_rows_and_bytes_but_a_large_entry_comes_alone(store: ChapStore) {
    let entries: Vec<Entry> = (0..2500).map(|seq| entry(seq, "m", None, &[])).collect();
    store.commit(vec![Change { entries, ..change("rows", 0) }]).await.unwrap();
    let mut query = EntryQuery { limit: usize::MAX, ..EntryQuery::default() };
    for (count, next_seq) in [(1000, 1000), (1000, 2000), (500, 2500), (0, 2500)] {
        let page = store.entries("rows", &query).await.unwrap();
        assert_eq!((page.entries.len(), page.next_seq), (count, next_seq));
        query.from_seq = page.next_seq;
    }
    let sized = |seq: u64, bytes: usize| Entry { record: "x".repeat(bytes), ..entry(seq, "m", None, &[]) };
    let sizes = [CHAP_PAGE_BYTES + 1, 10, 10, CHAP_PAGE_BYTES / 2, CHAP_PAGE_BYTES / 2 + 1, 10];
    for (seq, bytes) in (0..).zip(sizes) {
        let change = Change { entries: vec![sized(seq, bytes)], ..change("bytes", seq) };
        store.commit(vec![change]).await.unwrap();
    }
    let (mut query, mut pages) = (EntryQuery { limit: 100, ..EntryQuery::default() }, Vec::new());
    while query.from_seq < 6 {
        let page = store.entries("bytes", &query).await.unwrap();
        pages.push(page.entries.len());
        query.from_seq = page.next_seq;
    }
    assert_eq!(pages, [1, 3, 2]);
}

async fn read_notices_are_pruned_by_count_and_age_and_unread_ones_never(store: ChapStore) {
    let at = |number: u64| Timestamp::from_millis(1_700_000_000_000 + number * 1000);
    let notice = |number: u64| Notice {
        number,
        to: if number.is_multiple_of(10) { "b" } else { "a" }.to_owned(),
        body: format!("{{\"params\":{{\"ts\":\"{}\",\"text\":\"\\u0000\"}}}}", at(number)),
    };
    store.commit(vec![Change { notices: (1..=40).map(notice).collect(), ..change("w", 0) }]).await.unwrap();
    let left = async |who: &str| -> Vec<u64> {
        store.notices("w", who, 0, 100).await.unwrap().iter().map(|notice| notice.number).collect()
    };
    let all = left("a").await;
    assert_eq!(store.prune_notices("w", "a", 20, 100, at(0)).await.unwrap(), 0, "few and young");
    assert_eq!(store.prune_notices("v", "a", 20, 0, at(99)).await.unwrap(), 0);
    assert_eq!(left("a").await, all);
    // Of 18 read ones the newest five stay.
    assert_eq!(store.prune_notices("w", "a", 20, 5, at(0)).await.unwrap(), 13);
    assert_eq!(left("a").await[..6], [15, 16, 17, 18, 19, 21]);
    // And of these only the young ones; what is unread stays however old it is.
    assert_eq!(store.prune_notices("w", "a", 20, 5, at(17)).await.unwrap(), 2);
    assert_eq!(left("a").await[..4], [17, 18, 19, 21]);
    assert_eq!(store.prune_notices("w", "a", 20, 0, at(99)).await.unwrap(), 3);
    assert_eq!(left("a").await.first(), Some(&21));
    assert_eq!(left("b").await, [10, 20, 30, 40], "another's are another's");
}

use crate::chap_erasure::a_redaction_overwrites_the_record_in_the_commit_that_stores_it;

async fn notices_are_each_participants_own_and_in_order(store: ChapStore) {
    let notice = |number: u64| Notice {
        number,
        to: if number.is_multiple_of(3) { "b" } else { "a" }.to_owned(),
        body: format!("{{\"n\":{number}}}"),
    };
    let first = Change { notices: (1..=10).map(notice).collect(), ..change("w", 0) };
    let second = Change { notices: (11..=20).map(notice).collect(), ..change("w", 1) };
    store.commit(vec![first]).await.unwrap();
    store.commit(vec![second]).await.unwrap();
    let all: Vec<Notice> = (1..=20).map(notice).collect();
    let of_a: Vec<Notice> = all.iter().filter(|n| n.to == "a").cloned().collect();
    assert_eq!(store.notices("w", "a", 0, 100).await.unwrap(), of_a);
    assert_eq!(store.notices("w", "a", 4, 3).await.unwrap(), of_a[3..6]);
    assert_eq!(store.notices("w", "b", 18, 100).await.unwrap(), []);
    assert_eq!(store.notices("w", "c", 0, 100).await.unwrap(), []);
    assert_eq!(store.notices("v", "a", 0, 100).await.unwrap(), []);
}

async fn ten_thousand_workspaces_are_listed_and_opened_one_by_one(store: ChapStore) {
    const WORKSPACES: usize = 10_000;
    let name = |n: usize| format!("wsp_{n:05}");
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..64 {
        let store = store.clone();
        writers.spawn(async move {
            for n in (writer..WORKSPACES).step_by(64) {
                let entries = vec![entry(0, "workspace.create", None, &[])];
                store.commit(vec![Change { entries, ..change(&name(n), 0) }]).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = store.workspaces(after.as_deref(), usize::MAX).await.unwrap();
        assert!(page.len() <= CHAP_PAGE);
        let Some(last) = page.last() else { break };
        after = Some(last.workspace.clone());
        listed.extend(page);
    }
    let expected: Vec<WorkspaceSummary> =
        (0..WORKSPACES).map(|n| WorkspaceSummary { workspace: name(n), version: 1, entries: 1 }).collect();
    assert_eq!(listed, expected);
    for n in (0..WORKSPACES).step_by(97) {
        assert_eq!(store.open(&name(n)).await.unwrap().unwrap().version, 1);
    }
}

async fn what_is_submitted_is_stored_when_its_submitter_is_told_and_each_is_told_once(store: ChapStore) {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let submit = |name: String, changes: Vec<Change>| {
        let tell = tell.clone();
        store.submit(changes, Box::new(move |verdict| drop(tell.send((name, verdict)))));
    };
    for n in 0..200 {
        let name = format!("w{n}");
        submit(name.clone(), vec![change(&name, 0), change(&name, 1)]);
    }
    let mut names = BTreeSet::new();
    for _ in 0..200 {
        let (name, verdict) = told.recv().await.unwrap();
        verdict.unwrap();
        assert_eq!(store.open(&name).await.unwrap().unwrap().version, 2);
        assert!(names.insert(name));
    }
    submit("behind".to_owned(), vec![change("w0", 1)]);
    assert!(matches!(told.recv().await.unwrap().1, Err(CommitError::Conflict)));
    submit("torn".to_owned(), vec![change("w0", 2), change("w0", 5)]);
    assert!(matches!(told.recv().await.unwrap().1, Err(CommitError::NotWritten(StoreError::Invalid(_)))));
    submit("nothing".to_owned(), Vec::new());
    told.recv().await.unwrap().1.unwrap();
    store.close().await;
    submit("late".to_owned(), vec![change("w0", 2)]);
    assert!(matches!(told.recv().await.unwrap().1, Err(CommitError::NotWritten(StoreError::Closed))));
    assert!(told.try_recv().is_err(), "one word each");
}

async fn a_closed_store_says_so(store: ChapStore) {
    store.commit(vec![change("w", 0)]).await.unwrap();
    store.close().await;
    let refused = store.commit(vec![change("w", 1)]).await;
    assert!(matches!(refused, Err(CommitError::NotWritten(StoreError::Closed))), "{refused:?}");
}
