//! The committer in a tree, killed at any moment: nothing acknowledged is lost, nobody is left without a verdict.

use std::time::Duration;

use choir_messages::event::{Event, Head};
use choir_persistence::store::changes::ChangesError;
use choir_persistence::testing::TestCluster;
use choir_persistence::{CommitterMsg, Store, StoreError, committer_mailbox, committer_spec};
use choir_supervisors::{Address, Intensity, Strategy, SupervisorSpec, Tree};
use tokio::sync::watch;

use crate::log::{Log, session};

/// Longest wait for anything.
const SOON: Duration = Duration::from_secs(60);

/// Where the committer is.
const PATH: &str = "store/committer";

async fn supervised(cluster: &TestCluster) -> (Tree, Store, Address<CommitterMsg>) {
    let (address, slot) = committer_mailbox();
    let store = Store::open_supervised(cluster.options(), address.clone()).await.unwrap();
    let (_, opened) = watch::channel(Some(store.clone()));
    let spec = SupervisorSpec::new("store", Strategy::OneForOne)
        .intensity(Intensity { restarts: u32::MAX, within: Duration::from_secs(1) })
        .child(committer_spec(slot, opened));
    (Tree::start(spec).await.unwrap(), store, address)
}

/// Appends until it is acknowledged; every verdict before that must be one that allows a repeat.
async fn insist(log: &Log, store: &Store, events: Vec<Event>) -> (Head, usize) {
    for tries in 0usize.. {
        let asked = log.append(store, events.clone());
        match tokio::time::timeout(SOON, asked).await.expect("a verdict in time") {
            Ok(ack) => return (ack.head, tries),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    unreachable!("the loop ends by returning")
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_it_loses_nothing_acknowledged_and_answers_everyone() {
    const SESSIONS: u64 = 4;
    const EACH: u64 = 60;
    let cluster = TestCluster::start().await;
    let (tree, store, address) = supervised(&cluster).await;
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..SESSIONS {
        let mut log = session(&store, &format!("a{n}")).await;
        let store = store.clone();
        writers.spawn(async move {
            let mut repeats = 0;
            for version in 1..=EACH {
                let event = log.config(version);
                let (head, tries) = insist(&log, &store, vec![event]).await;
                assert_eq!(head, log.head);
                repeats += tries;
            }
            (log, repeats)
        });
    }
    // A kill with every few commits, wherever the committer is in its work.
    let mut changes = store.changes();
    let (mut seen, mut kills) = (0u64, 0u64);
    let mut done = Vec::new();
    while let Some(ended) = loop {
        tokio::select! {
            ended = writers.join_next() => break ended,
            change = changes.next() => {
                assert!(!matches!(change, Err(ChangesError::Closed)));
                seen += 1;
                if seen.is_multiple_of(17) && tree.handle().kill(PATH) {
                    kills += 1;
                }
            }
        }
    } {
        done.push(ended.unwrap());
    }
    assert_eq!(done.len() as u64, SESSIONS);
    assert!(kills >= 5 && address.generation() > 5, "{kills} kills, generation {}", address.generation());
    for (log, _) in &done {
        let report = store.verify(log.row.session).await.unwrap();
        assert!(report.is_verified() && report.head == log.head, "{report:?}");
        assert_eq!(report.events, EACH + 1, "nothing twice");
    }
    assert!(done.iter().any(|(_, repeats)| *repeats > 0), "no append was ever in hand at a kill");
    tree.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_replacement_holds_the_claim_again_and_tells_everyone_to_look() {
    let cluster = TestCluster::start().await;
    let (tree, store, address) = supervised(&cluster).await;
    let mut changes = store.changes();
    let generation = address.generation();
    assert!(tree.handle().kill(PATH));
    let told = tokio::time::timeout(SOON, changes.next()).await.unwrap();
    assert_eq!(told, Err(ChangesError::Missed(1)));
    let mut states = tree.handle().changes();
    while address.generation() == generation {
        tokio::time::timeout(SOON, states.changed()).await.unwrap().unwrap();
    }
    assert!(matches!(Store::open(cluster.options()).await, Err(StoreError::InUse)));
    tree.shutdown().await;
    store.close().await;
    // And a shutdown in order lets go of it.
    Store::open(cluster.options()).await.unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_its_mailbox_is_for_the_replacement() {
    let cluster = TestCluster::start().await;
    let (tree, store, _) = supervised(&cluster).await;
    let mut log = session(&store, "a").await;
    // Nobody reads between the kill and the replacement's start.
    assert!(tree.handle().kill(PATH));
    let event = log.config(1);
    let appended = tokio::time::timeout(SOON, log.append(&store, vec![event.clone()])).await.unwrap();
    if let Err(error) = appended {
        // It was taken by the one that died.
        assert!(error.is_transient(), "{error}");
        insist(&log, &store, vec![event]).await;
    }
    assert_eq!(store.verify(log.row.session).await.unwrap().head, log.head);
    tree.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_says_so_although_its_committer_lives() {
    let cluster = TestCluster::start().await;
    let (tree, store, _) = supervised(&cluster).await;
    let mut log = session(&store, "a").await;
    store.close().await;
    let event = log.config(1);
    let refused = log.append(&store, vec![event]).await.unwrap_err();
    assert!(refused.to_string().contains("closed"), "{refused}");
    tree.shutdown().await;
}
