use choir_persistence::StoreError;
use choir_persistence::store::agents::Desired;
use choir_persistence::store::sessions::{Binding, OpenError, SessionStatus};
use choir_persistence::testing::TestCluster;

use crate::log::{agent, session, unknown_session};

fn workspace(name: &str) -> Binding {
    Binding { kind: "workspace".to_owned(), name: name.to_owned(), exclusive: true }
}

fn llm(name: &str) -> Binding {
    Binding { kind: "llm".to_owned(), name: name.to_owned(), exclusive: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_one_active_session_and_resumes_it_under_a_new_lease() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let a = agent("a");
    let log = session(&store, "a").await;
    let first = log.row.clone();
    let error = store.open_or_resume_session(&a, &[], false).await.unwrap_err();
    assert!(
        matches!(&error, OpenError::AlreadyActive { session, .. } if *session == first.session),
        "{error}"
    );
    assert!(!store.mark_crashed(first.session, first.generation + 1).await.unwrap(), "another generation");
    assert!(store.mark_crashed(first.session, first.generation).await.unwrap());
    assert!(!store.mark_stopped(first.session, first.generation).await.unwrap(), "it is over");
    let second = store.open_or_resume_session(&a, &[llm("m")], false).await.unwrap();
    assert_eq!((second.session, second.generation, second.head), (first.session, 2, log.head));
    assert_ne!(second.lease, first.lease);
    assert_eq!(second.bindings, [llm("m")]);
    assert!(
        !store.mark_crashed(first.session, first.generation).await.unwrap(),
        "a late report of the first"
    );
    assert_eq!(store.session(first.session).await.unwrap().unwrap().status, SessionStatus::Active);
    assert!(store.mark_ended(second.session).await.unwrap());
    let third = store.open_or_resume_session(&a, &[], false).await.unwrap();
    assert_ne!(third.session, first.session);
    assert_eq!(third.generation, 1);
    assert_eq!(store.sessions(Some(&a), 10).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn exclusive_resources_are_leased_all_or_none_and_released_with_the_session() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    for name in ["a", "b"] {
        store.register_agent(&agent(name)).await.unwrap();
    }
    let holder = store.open_or_resume_session(&agent("a"), &[workspace("w"), llm("m")], false).await.unwrap();
    let wanted = [workspace("free"), workspace("w"), llm("m")];
    let error = store.open_or_resume_session(&agent("b"), &wanted, false).await.unwrap_err();
    assert!(
        matches!(&error, OpenError::ResourceHeld { name, holder, .. } if name == "w" && *holder == agent("a")),
        "{error}"
    );
    assert!(error.to_string().contains("in use by agent \"a\""));
    let held: Vec<_> = store.leases().await.unwrap().into_iter().map(|l| (l.name, l.agent)).collect();
    assert_eq!(held, [("w".to_owned(), agent("a"))], "nothing of the refused start stays");
    assert!(store.sessions(Some(&agent("b")), 9).await.unwrap().is_empty());
    store.mark_crashed(holder.session, holder.generation).await.unwrap();
    store.open_or_resume_session(&agent("b"), &wanted, false).await.unwrap();
    assert_eq!(store.leases().await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_starts_at_once_exactly_one_wins() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    for n in 0..6 {
        store.register_agent(&agent(&format!("a{n}"))).await.unwrap();
    }
    let mut starts = tokio::task::JoinSet::new();
    for n in 0..12 {
        let store = store.clone();
        // Two starts of each agent, all wanting the same two workspaces.
        starts.spawn(async move {
            let bindings =
                if n % 2 == 0 { [workspace("x"), workspace("y")] } else { [workspace("y"), workspace("x")] };
            store.open_or_resume_session(&agent(&format!("a{}", n / 2)), &bindings, false).await
        });
    }
    let mut won = 0;
    while let Some(result) = starts.join_next().await {
        match result.unwrap() {
            Ok(_) => won += 1,
            Err(OpenError::ResourceHeld { .. } | OpenError::AlreadyActive { .. }) => {}
            Err(OpenError::Database(error)) => panic!("{error}"),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(store.leases().await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_choird_marks_what_the_last_one_left_running_as_crashed() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let a = agent("a");
    store.register_agent(&a).await.unwrap();
    let row = store.open_or_resume_session(&a, &[workspace("w")], false).await.unwrap();
    store.set_desired(&a, Desired::Running).await.unwrap();
    store.close().await;

    let next = cluster.store().await;
    let leftovers = next.clean_up_after_crash().await.unwrap();
    assert_eq!((leftovers.crashed, leftovers.ambiguous), (vec![(a.clone(), row.session)], 0));
    assert!(next.leases().await.unwrap().is_empty());
    assert_eq!(next.agents().await.unwrap()[0].desired, Desired::Running);
    let resumed = next.open_or_resume_session(&a, &[workspace("w")], false).await.unwrap();
    assert_eq!((resumed.session, resumed.generation), (row.session, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_agents_and_sessions_are_said_to_be_unknown() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let nobody = agent("nobody");
    assert!(matches!(
        store.open_or_resume_session(&nobody, &[], false).await,
        Err(OpenError::Database(StoreError::UnknownAgent(_)))
    ));
    assert!(matches!(store.set_desired(&nobody, Desired::Running).await, Err(StoreError::UnknownAgent(_))));
    assert!(matches!(store.mark_ended(unknown_session()).await, Err(StoreError::UnknownSession(_))));
    assert!(matches!(store.verify(unknown_session()).await, Err(StoreError::UnknownSession(_))));
    assert!(store.session(unknown_session()).await.unwrap().is_none());
    let many = vec![llm("m"); 65];
    store.register_agent(&nobody).await.unwrap();
    assert!(store.open_or_resume_session(&nobody, &many, false).await.is_err());
    assert!(store.open_or_resume_session(&nobody, &[llm("a\0")], false).await.is_err());
}
