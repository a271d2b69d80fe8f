use choir_persistence::testing::TestCluster;
use sqlx::PgConnection;

use crate::log::{Log, id, session};

async fn tamper(connection: &mut PgConnection, sql: &'static str) {
    sqlx::query(sql).execute(connection).await.unwrap();
}

async fn filled(store: &choir_persistence::Store, name: &str) -> Log {
    let mut log = session(store, name).await;
    for n in 1..=10 {
        let events = log.exchange(id(n), "an \0 answer");
        log.append(store, events).await.unwrap();
    }
    log
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_log_verifies_and_any_change_to_it_is_found() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let log = filled(&store, "a").await;
    let report = store.verify(log.row.session).await.unwrap();
    assert!(report.is_verified());
    assert_eq!((report.events, report.head), (31, log.head));

    let mut outside = cluster.connect().await;
    tamper(&mut outside, "CREATE TABLE saved AS SELECT * FROM choir_control.session_events").await;
    tamper(&mut outside, "CREATE TABLE saved_sessions AS SELECT * FROM choir_control.sessions").await;
    for (sql, rev, what) in [
        (
            "UPDATE choir_control.session_events SET canonical = replace(canonical, 'answer', 'ANSWER') WHERE rev = 3",
            3,
            "does not match its hash",
        ),
        ("DELETE FROM choir_control.session_events WHERE rev = 7", 8, "revision 7 is missing"),
        ("DELETE FROM choir_control.session_events WHERE rev > 29", 29, "head says revision 31"),
        (
            "UPDATE choir_control.session_events SET canonical = '{}', hash = encode(sha256('{}'), 'hex') WHERE rev = 5",
            5,
            "no event",
        ),
        (
            "UPDATE choir_control.session_events e SET canonical = o.canonical, hash = o.hash
             FROM choir_control.session_events o WHERE e.rev = 9 AND o.rev = 6",
            9,
            "says revision 6",
        ),
        ("UPDATE choir_control.sessions SET head_hash = repeat('1', 64)", 31, "head says"),
        ("UPDATE choir_control.session_events SET hash = repeat('z', 64) WHERE rev = 2", 2, "not a digest"),
    ] {
        tamper(&mut outside, sql).await;
        let report = store.verify(log.row.session).await.unwrap();
        let fault = report.fault.unwrap();
        assert!(fault.rev == rev && fault.what.contains(what), "{sql}: {fault:?}");
        for restore in [
            "DELETE FROM choir_control.session_events",
            "INSERT INTO choir_control.session_events SELECT * FROM saved",
            "UPDATE choir_control.sessions s SET head_hash = o.head_hash FROM saved_sessions o
             WHERE s.session_id = o.session_id",
        ] {
            tamper(&mut outside, restore).await;
        }
        assert!(store.verify(log.row.session).await.unwrap().is_verified());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stored_text_is_byte_for_byte_what_was_hashed() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let log = filled(&store, "a").await;
    let rows: Vec<(String, String)> =
        sqlx::query_as("SELECT canonical, encode(sha256(convert_to(canonical, 'UTF8')), 'hex') FROM choir_control.session_events ORDER BY rev")
            .fetch_all(&mut cluster.connect().await)
            .await
            .unwrap();
    let events = store.events(log.row.session, 0, 1000).await.unwrap();
    assert_eq!(rows.len(), events.len());
    for ((text, hash), stored) in rows.iter().zip(&events) {
        assert_eq!(text, &stored.event.canonical().unwrap());
        assert_eq!(hash, &stored.event.hash.to_string());
    }
    let page = store.events(log.row.session, 28, 2).await.unwrap();
    assert_eq!(page.iter().map(|s| s.event.rev).collect::<Vec<_>>(), [29, 30]);
    assert!(store.events(log.row.session, u64::MAX, 2).await.unwrap().is_empty());
}
