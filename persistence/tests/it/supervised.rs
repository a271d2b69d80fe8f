use std::time::Duration;

use choir_persistence::postgres::{Origin, PostgresMsg, PostgresStatus, child_spec};
use choir_persistence::testing::{TestCluster, kill_9};
use choir_supervisors::{Address, MailboxSpec, Strategy, SupervisorSpec, Tree, WhenFull, mailbox};

/// Longest wait for something that is about to happen.
const SOON: Duration = Duration::from_secs(30);

async fn status(address: &Address<PostgresMsg>) -> PostgresStatus {
    let up = async {
        loop {
            // A restart in between answers nobody; the next call reaches the replacement.
            if let Ok(status) = address.call(SOON, |reply| PostgresMsg::Status { reply }).await {
                return status;
            }
        }
    };
    tokio::time::timeout(SOON, up).await.unwrap()
}

async fn tree(cluster: &TestCluster) -> (Tree, Address<PostgresMsg>) {
    let (address, slot) = mailbox("postgres", MailboxSpec { capacity: 8, when_full: WhenFull::Wait(SOON) });
    let spec =
        SupervisorSpec::new("choird", Strategy::OneForOne).child(child_spec(slot, cluster.config().clone()));
    (Tree::start(spec).await.unwrap(), address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_restarted_and_the_same_store_goes_on() {
    let cluster = TestCluster::stopped().await;
    let (tree, address) = tree(&cluster).await;
    let before = status(&address).await;
    let store = choir_persistence::Store::open(cluster.config().options().unwrap()).await.unwrap();
    let generation = address.generation();
    kill_9(before.pid);
    while address.generation() == generation {
        tokio::task::yield_now().await;
    }
    let after = status(&address).await;
    assert!(after.pid != before.pid && after.origin == Origin::Started);
    store.ping().await.unwrap();
    drop(store);
    tree.shutdown().await;
    assert!(!cluster.config().state.join("postgres/data/postmaster.pid").exists(), "stopped in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_actor_leaves_the_server_to_its_replacement() {
    let cluster = TestCluster::stopped().await;
    let (tree, address) = tree(&cluster).await;
    let before = status(&address).await;
    let generation = address.generation();
    assert!(tree.handle().kill("choird/postgres"));
    while address.generation() == generation {
        tokio::task::yield_now().await;
    }
    let after = status(&address).await;
    assert_eq!((after.pid, after.origin), (before.pid, Origin::Adopted));
    tree.shutdown().await;
}
