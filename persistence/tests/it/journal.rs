use std::collections::HashSet;
use std::time::Duration;

use choir_messages::event::{ChainError, Head, MessageOutcome};
use choir_messages::id::LeaseId;
use choir_messages::limits::BATCH_EVENTS;
use choir_messages::session::{Rule, SessionView};
use choir_persistence::limits::{REMEMBERED_HASHES, SNAPSHOT_EVERY};
use choir_persistence::store::changes::ChangeKind;
use choir_persistence::store::inbox::Accepted;
use choir_persistence::store::outbox::OutboundKind;
use choir_persistence::store::resume::ResumeError;
use choir_persistence::testing::{TestCluster, kill_9};
use choir_persistence::{AppendError, StoreError};
use sqlx::Connection;

use crate::log::{Log, agent, call, id, session, unknown_session};

/// Longest wait for something that is about to happen.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn what_was_appended_is_there_and_a_repeat_changes_nothing() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let batch: Vec<_> = (1..=5).map(|v| log.config(v)).collect();
    let ack = log.append(&store, batch.clone()).await.unwrap();
    assert_eq!(ack.head, log.head);
    assert_eq!(log.append(&store, batch.clone()).await.unwrap(), ack, "all of it again");
    let mut overlapping = batch[3..].to_vec();
    overlapping.push(log.config(6));
    assert_eq!(log.append(&store, overlapping).await.unwrap().head, log.head, "some of it again");
    assert_eq!(log.append(&store, batch[..2].to_vec()).await.unwrap().head, log.head, "an old part again");
    assert_eq!(log.append(&store, vec![]).await.unwrap().head, log.head, "nothing");
    let stored = store.events(log.row.session, 0, 100).await.unwrap();
    assert_eq!(stored.len(), 7);
    assert_eq!(stored[1..6].iter().map(|s| s.event.clone()).collect::<Vec<_>>(), batch);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_history_has_diverged_and_leaves_the_durable_one_alone() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let mut other = log.clone();
    let one = log.config(1);
    log.append(&store, vec![one]).await.unwrap();
    let fork = vec![other.config(2), other.config(3)];
    for events in [fork.clone(), fork[1..].to_vec()] {
        let error = other.append(&store, events).await.unwrap_err();
        assert!(matches!(error, AppendError::Diverged { durable } if durable == log.head), "{error}");
    }
    let mut ahead = log.clone();
    ahead.config(2);
    let gap = ahead.config(3);
    assert!(matches!(ahead.append(&store, vec![gap]).await, Err(AppendError::Diverged { .. })));
    let two = log.config(2);
    assert_eq!(log.append(&store, vec![two]).await.unwrap().head, log.head);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_or_illegal_batch_is_refused_whole_and_the_session_goes_on() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let good = log.clone();

    let mut bad = good.clone();
    let mut tampered = bad.config(1);
    tampered.at = choir_messages::time::Timestamp::from_millis(0);
    let error = bad.append(&store, vec![tampered]).await.unwrap_err();
    assert!(matches!(error, AppendError::Chain(ChainError::WrongHash { rev: 2 })), "{error}");

    let mut holed = good.clone();
    let events = [holed.config(1), holed.config(2), holed.config(3)];
    let error = holed.append(&store, vec![events[0].clone(), events[2].clone()]).await.unwrap_err();
    assert!(
        matches!(error, AppendError::Chain(ChainError::WrongRevision { expected: 3, found: 4 })),
        "{error}"
    );

    let mut illegal = good.clone();
    let events = vec![illegal.config(1), illegal.says(id(5), "nobody asked")];
    let error = illegal.append(&store, events).await.unwrap_err();
    assert!(
        matches!(&error, AppendError::Illegal(i) if i.rev == 3 && i.rule == Rule::HeadOfQueue),
        "{error}"
    );

    let mut long = good.clone();
    let events = (0..=BATCH_EVENTS as u64).map(|v| long.config(v)).collect();
    assert!(matches!(long.append(&store, events).await, Err(AppendError::TooLarge)));

    let next = log.config(1);
    assert_eq!(log.append(&store, vec![next]).await.unwrap().head.rev, 2);
    assert!(store.verify(log.row.session).await.unwrap().is_verified());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_opens_for_another_agent_is_refused() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    store.register_agent(&agent("a")).await.unwrap();
    let mut log = Log::of(store.open_or_resume_session(&agent("a"), &[], false).await.unwrap());
    let mut liar = log.clone();
    liar.row.agent = agent("b");
    let opened = liar.open();
    assert!(matches!(liar.append(&store, vec![opened]).await, Err(AppendError::WrongAgent)));
    let opened = log.open();
    log.append(&store, vec![opened]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_newest_lease_of_an_active_session_may_append() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let event = log.config(1);
    let revoked = |r: Result<_, AppendError>| matches!(r, Err(AppendError::LeaseRevoked));
    let row = log.row.clone();
    for events in [vec![], vec![event.clone()]] {
        assert!(revoked(
            store.append(row.session, LeaseId::from_bits(1), row.generation, events.clone()).await
        ));
        assert!(revoked(store.append(row.session, row.lease, row.generation + 1, events.clone()).await));
        assert!(revoked(store.append(row.session, row.lease, u64::MAX, events).await));
    }
    assert!(revoked(store.append(unknown_session(), row.lease, 1, vec![]).await));
    assert!(store.mark_crashed(row.session, row.generation).await.unwrap());
    assert!(revoked(log.append(&store, vec![event.clone()]).await));
    let resumed = store.open_or_resume_session(&agent("a"), &[], false).await.unwrap();
    assert!(revoked(log.append(&store, vec![event.clone()]).await), "the old sandbox is still refused");
    let newer = Log { row: resumed, head: log.head };
    assert_eq!(newer.append(&store, vec![event]).await.unwrap().head, log.head);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_events_say_reaches_the_inbox_the_outbox_and_the_invocations() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let name = agent("a");
    let mut changes = store.changes();
    assert_eq!(store.accept_message(&name, id(1), "chat", "hello \0 there").await.unwrap(), Accepted::New);
    let taken = vec![log.user(id(1)), log.calls(id(1), call(7)), log.request(call(7)), log.commit(call(7))];
    log.append(&store, taken).await.unwrap();
    assert!(store.unrecorded(&name).await.unwrap().is_empty());
    assert_eq!(store.unanswered(&name).await.unwrap()[0].recorded, Some((log.row.session, 2)));
    let open = store.invocation(log.row.session, call(7)).await.unwrap().unwrap();
    assert_eq!((open.status.as_str(), open.committed_rev, open.result_rev), ("committed", 5, None));

    let notice =
        log.add(choir_messages::event::EventBody::Notice { message: id(1), text: "wait \0".to_owned() });
    let ending = vec![
        notice,
        log.result(call(7)),
        log.says(id(1), "bye"),
        log.close(id(1), MessageOutcome::Answered, "bye"),
    ];
    log.append(&store, ending.clone()).await.unwrap();
    log.append(&store, ending).await.unwrap();
    let done = store.invocation(log.row.session, call(7)).await.unwrap().unwrap();
    assert_eq!((done.status.as_str(), done.result_rev), ("success", Some(7)));
    let message = store.message(id(1)).await.unwrap().unwrap();
    assert_eq!((message.outcome, message.text.as_str()), (Some(MessageOutcome::Answered), "hello \0 there"));
    let mut said = store.outbox(Some(&name), 10).await.unwrap();
    said.reverse();
    let said: Vec<_> = said.iter().map(|o| (o.kind, o.text.as_str(), o.source.as_str())).collect();
    assert_eq!(said, [(OutboundKind::Notice, "wait \0", "chat"), (OutboundKind::Answer, "bye", "chat")]);

    let mut kinds = HashSet::new();
    while kinds.len() < 3 {
        let change = tokio::time::timeout(SOON, changes.next()).await.unwrap().unwrap();
        assert_eq!(change.agent, name);
        kinds.insert(std::mem::discriminant(&change.kind));
        if let ChangeKind::Journal { session, head } = change.kind {
            assert_eq!(session, log.row.session);
            assert!(head.rev <= log.head.rev);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_cannot_answer_for_messages_that_are_not_its_own() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let _victim = session(&store, "b").await;
    store.accept_message(&agent("b"), id(1), "chat", "for b").await.unwrap();
    let mut log = session(&store, "a").await;
    let mut events = log.exchange(id(1), "stolen");
    events.extend(log.exchange(id(2), "invented"));
    log.append(&store, events).await.unwrap();
    assert!(store.outbox(None, 10).await.unwrap().is_empty());
    assert_eq!(store.unrecorded(&agent("b")).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sessions_fault_does_not_touch_the_others_of_its_group() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut logs = Vec::new();
    for n in 0..8 {
        logs.push(session(&store, &format!("a{n}")).await);
    }
    // A row that the tables refuse though the log is legal: its revision is there already.
    let spoiled = logs[3].row.session.to_string();
    let mut outside = cluster.connect().await;
    sqlx::query(
        "INSERT INTO choir_control.session_events (session_id, rev, event_type, lane, canonical, hash)
         VALUES ($1, 2, 'x', 'edge', '{}', repeat('0', 64))",
    )
    .bind(&spoiled)
    .execute(&mut outside)
    .await
    .unwrap();
    // All wait behind one lock, so that they end up in few groups.
    let mut hold = outside.begin().await.unwrap();
    sqlx::query("SELECT FROM choir_control.sessions FOR UPDATE").execute(&mut *hold).await.unwrap();
    let appends: Vec<_> = logs
        .iter_mut()
        .map(|log| {
            let event = log.config(1);
            let (log, store) = (log.clone(), store.clone());
            tokio::spawn(async move { log.append(&store, vec![event]).await })
        })
        .collect();
    tokio::task::yield_now().await;
    hold.rollback().await.unwrap();
    for (n, append) in appends.into_iter().enumerate() {
        let result = append.await.unwrap();
        assert_eq!(result.is_ok(), n != 3, "{n}: {result:?}");
    }
    for (n, log) in logs.iter().enumerate() {
        let head = store.session(log.row.session).await.unwrap().unwrap().head.rev;
        assert_eq!(head, if n == 3 { 1 } else { 2 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_that_wait_together_share_one_transaction() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut logs = Vec::new();
    for n in 0..9 {
        logs.push(session(&store, &format!("a{n}")).await);
    }
    let mut outside = cluster.connect().await;
    let mut hold = outside.begin().await.unwrap();
    sqlx::query("SELECT FROM choir_control.sessions FOR UPDATE").execute(&mut *hold).await.unwrap();
    let mut appends: Vec<_> = logs
        .iter_mut()
        .map(|log| {
            let event = log.config(1);
            let (log, store) = (log.clone(), store.clone());
            Box::pin(async move { log.append(&store, vec![event]).await })
        })
        .collect();
    // Each is polled once, so each is in the queue before the first can commit.
    for append in &mut appends {
        assert!(futures_util::poll!(append).is_pending());
    }
    hold.rollback().await.unwrap();
    for append in appends {
        append.await.unwrap();
    }
    let (transactions,): (i64,) =
        sqlx::query_as("SELECT count(DISTINCT xmin::text) FROM choir_control.session_events WHERE rev = 2")
            .fetch_one(&mut outside)
            .await
            .unwrap();
    assert!(transactions <= 2, "the first may go alone, the others gather behind it: {transactions}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_log_resumes_from_a_snapshot_and_a_bounded_tail() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let mut all = Vec::new();
    while log.head.rev < 5 * SNAPSHOT_EVERY + 30 {
        let batch: Vec<_> = (0..90).map(|v| log.config(v)).collect();
        all.extend(batch.clone());
        log.append(&store, batch).await.unwrap();
    }
    let snapshots: (i64,) = sqlx::query_as("SELECT count(*) FROM choir_control.session_snapshots")
        .fetch_one(&mut cluster.connect().await)
        .await
        .unwrap();
    assert_eq!(snapshots.0, 2);

    let fresh = store.resume_point(log.row.session, Head::START).await.unwrap();
    assert_eq!(fresh.durable, log.head);
    let mut view = fresh.snapshot.unwrap();
    let view_rev = view.head.rev;
    assert!(view.head.rev + SNAPSHOT_EVERY + 90 > log.head.rev);
    for event in &fresh.tail {
        view.apply(event).unwrap();
    }
    assert_eq!(view.head, log.head);

    let current = store.resume_point(log.row.session, log.head).await.unwrap();
    assert_eq!((current.snapshot, current.tail.len()), (None, 0));
    let mid = all[all.len() - 4].head();
    let near = store.resume_point(log.row.session, mid).await.unwrap();
    assert_eq!(near.snapshot.is_some(), view_rev > mid.rev);
    assert_eq!(near.snapshot.map_or(mid.rev, |v| v.head.rev) + near.tail.len() as u64, log.head.rev);

    // An unreadable snapshot is only a slower start.
    sqlx::query("UPDATE choir_control.session_snapshots SET view_json = '{}'")
        .execute(&mut cluster.connect().await)
        .await
        .unwrap();
    let mut view = SessionView::new(log.row.session);
    let mut pages = 0;
    while view.head != log.head {
        let point = store.resume_point(log.row.session, view.head).await.unwrap();
        assert!(point.snapshot.is_none() && point.tail.len() <= BATCH_EVENTS);
        point.tail.iter().for_each(|event| view.apply(event).unwrap());
        pages += 1;
    }
    assert_eq!(pages, log.head.rev.div_ceil(BATCH_EVENTS as u64));

    // Repeats from before what is kept in memory are recognised too, and so is a fork there.
    assert!(all.len() > REMEMBERED_HASHES);
    assert_eq!(log.append(&store, all[..50].to_vec()).await.unwrap().head, log.head);
    let mut lies = all[..50].to_vec();
    lies.swap_remove(0);
    assert!(log.append(&store, lies).await.is_err());
    let wrong = Head { rev: 10, hash: log.head.hash };
    for head in [wrong, Head { rev: u64::MAX, ..wrong }, Head { rev: 0, ..wrong }] {
        let error = store.resume_point(log.row.session, head).await.unwrap_err();
        assert!(matches!(error, ResumeError::Diverged { durable } if durable == log.head), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_events_is_bounded_in_bytes_but_one_large_event_comes_alone() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let big = "x".repeat(400 * 1024);
    for n in 0..4u128 {
        let message = id(n + 1);
        let events =
            vec![log.user(message), log.says(message, &big), log.close(message, MessageOutcome::Failed, "")];
        log.append(&store, events).await.unwrap();
    }
    let mut head = Head::START;
    let mut pages = 0;
    while head != log.head {
        let page = store.resume_point(log.row.session, head).await.unwrap().tail;
        let bytes: usize = page.iter().map(|e| e.canonical().unwrap().len()).sum();
        assert!(bytes <= choir_messages::limits::BATCH_BYTES);
        head = page.last().unwrap().head();
        pages += 1;
    }
    assert_eq!(pages, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_events_survive_a_kill_of_postgres_in_mid_commit() {
    let mut cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut writers = Vec::new();
    let (progress, mut acked) = tokio::sync::mpsc::channel::<()>(1000);
    for n in 0..4 {
        let mut log = session(&store, &format!("a{n}")).await;
        let (store, progress) = (store.clone(), progress.clone());
        writers.push(tokio::spawn(async move {
            let mut durable = log.head;
            loop {
                let event = log.config(1);
                match log.append(&store, vec![event]).await {
                    Ok(ack) => {
                        assert_eq!(ack.head, log.head);
                        durable = ack.head;
                        let _ = progress.try_send(());
                    }
                    Err(error) => {
                        assert!(error.is_transient(), "{error}");
                        return (log, durable);
                    }
                }
            }
        }));
    }
    for _ in 0..40 {
        tokio::time::timeout(SOON, acked.recv()).await.unwrap().unwrap();
    }
    cluster.kill().await;
    let mut ends = Vec::new();
    for writer in writers {
        ends.push(writer.await.unwrap());
    }
    cluster.up().await;
    for (mut log, durable) in ends {
        // The same store goes on, on a new connection.
        let head = store.session(log.row.session).await.unwrap().unwrap().head;
        assert!(
            head == durable || head == log.head,
            "acknowledged {durable:?}, sent {:?}, found {head:?}",
            log.head
        );
        assert!(store.verify(log.row.session).await.unwrap().is_verified());
        // What was in flight is sent again: whether it had been durable or not, the log goes on.
        let mut again = Log { row: log.row.clone(), head: durable };
        let events = vec![again.config(1), again.config(2)];
        assert_eq!(events[0].head(), log.head);
        log.head = again.head;
        assert_eq!(log.append(&store, events).await.unwrap().head, log.head);
    }
    store.close().await;
    assert!(matches!(store.ping().await, Err(StoreError::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_killed_under_the_committer_costs_one_append_at_most() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let (backend,): (i32,) = sqlx::query_as(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND database =
             (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1",
    )
    .fetch_one(&mut cluster.connect().await)
    .await
    .unwrap();
    kill_9(u32::try_from(backend).unwrap());
    let event = log.config(1);
    let done = async {
        loop {
            match log.append(&store, vec![event.clone()]).await {
                Ok(ack) => break ack,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    let ack = tokio::time::timeout(SOON, done).await.unwrap();
    assert_eq!(ack.head, log.head);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_commits_what_was_queued_and_refuses_the_rest() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut logs = Vec::new();
    for n in 0..4 {
        logs.push(session(&store, &format!("a{n}")).await);
    }
    let mut appends: Vec<_> = logs
        .iter_mut()
        .map(|log| {
            let event = log.config(1);
            let (log, store) = (log.clone(), store.clone());
            Box::pin(async move { log.append(&store, vec![event]).await })
        })
        .collect();
    // Each is polled once, so each is in the queue.
    for append in &mut appends {
        assert!(futures_util::poll!(append).is_pending());
    }
    store.close().await;
    for append in appends {
        append.await.unwrap();
    }
    let event = logs[0].config(2);
    assert!(matches!(
        logs[0].append(&store, vec![event]).await,
        Err(AppendError::Database(StoreError::Closed))
    ));
    let next = cluster.store().await;
    assert!(next.verify(logs[0].row.session).await.unwrap().is_verified());
}
