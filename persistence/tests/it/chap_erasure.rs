//! Redactions in Postgres: the change that records one overwrites the redacted record where it is stored.

use choir_messages::chap::{Change, EntryQuery, ErasedRecord, Erasure, Object, ObjectKind};
use choir_persistence::chap::ChapStore;
use choir_persistence::testing::TestCluster;

use crate::chap::{change, entry, key};

const CANARY: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{\"name\":\"Zoë, who must go\"}}";

fn erasing(seq: u64, by_seq: u64) -> Object {
    let body = serde_json::to_string(&Erasure { by_seq }).unwrap();
    Object { key: key(ObjectKind::Erasure, &seq.to_string()), body, open: false, due: None }
}

/// Two entries of the canary's text, the first redacted in a later commit and the second in its own.
pub(crate) async fn a_redaction_overwrites_the_record_in_the_commit_that_stores_it(store: ChapStore) {
    let entries = |range: std::ops::Range<u64>| {
        let canary =
            |seq| choir_messages::chap::Entry { record: CANARY.into(), ..entry(seq, "x", None, &[]) };
        range.map(canary).collect()
    };
    store.commit(vec![Change { entries: entries(0..3), ..change("w", 0) }]).await.unwrap();
    store.commit(vec![Change { entries: entries(0..1), ..change("v", 0) }]).await.unwrap();
    let redaction = Change { puts: vec![erasing(1, 3)], entries: entries(3..4), ..change("w", 1) };
    store.commit(vec![redaction]).await.unwrap();
    let at_once = [
        Change { entries: entries(4..5), ..change("w", 2) },
        Change { puts: vec![erasing(4, 5)], entries: entries(5..6), ..change("w", 3) },
    ];
    store.commit(at_once.into()).await.unwrap();
    let query = EntryQuery { limit: 100, ..EntryQuery::default() };
    let page = store.entries("w", &query).await.unwrap();
    for entry in &page.entries {
        let wanted = match entry.seq {
            1 => ErasedRecord::of(CANARY, 3).to_string(),
            4 => ErasedRecord::of(CANARY, 5).to_string(),
            _ => CANARY.to_owned(),
        };
        assert_eq!(entry.record, wanted, "entry {}", entry.seq);
    }
    let beside = store.entries("v", &query).await.unwrap();
    assert_eq!(beside.entries[0].record, CANARY, "another workspace's entry of the same place");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_postgres_a_redacted_record_is_overwritten_and_gone_from_every_table() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let workspaces = ChapStore::postgres(&store);
    a_redaction_overwrites_the_record_in_the_commit_that_stores_it(workspaces.clone()).await;
    workspaces.close().await;
    store.close().await;
    let (left,): (i64,) = sqlx::query_as(
        "SELECT count(*) FROM choir_control.chap_entries e JOIN choir_control.chap_workspaces w USING (ws)
         WHERE w.name = 'w' AND e.seq IN (1, 4) AND e.record LIKE '%must go%'",
    )
    .fetch_one(&mut cluster.connect().await)
    .await
    .unwrap();
    assert_eq!(left, 0);
}
