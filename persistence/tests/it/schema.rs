use choir_persistence::testing::TestCluster;
use choir_persistence::{Store, StoreError};
use sqlx::ConnectOptions;

#[tokio::test(flavor = "multi_thread")]
async fn migrating_twice_changes_nothing_the_second_time() {
    let cluster = TestCluster::start().await;
    let applied = || async {
        sqlx::query_as::<_, (i64, String)>(
            "SELECT version, installed_on::text FROM choir_control.schema_migrations",
        )
        .fetch_all(&mut cluster.connect().await)
        .await
        .unwrap()
    };
    cluster.store().await.close().await;
    let first = applied().await;
    assert!(!first.is_empty());
    cluster.store().await.close().await;
    assert_eq!(applied().await, first);
    let (vector,): (bool,) = sqlx::query_as("SELECT '[1,2]'::vector <-> '[1,3]'::vector = 1")
        .fetch_one(&mut cluster.connect().await)
        .await
        .unwrap();
    assert!(vector);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_or_a_changed_schema_is_refused_with_what_to_do() {
    let cluster = TestCluster::start().await;
    cluster.store().await.close().await;
    let mut outside = cluster.connect().await;
    sqlx::query(
        "INSERT INTO choir_control.schema_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'future', true, '', 0)",
    )
    .execute(&mut outside)
    .await
    .unwrap();
    let error = Store::open(cluster.options()).await.unwrap_err();
    assert!(matches!(error, StoreError::NewerDatabase { version: 9999, .. }), "{error}");
    assert!(error.to_string().contains("start the newer choird"));
    sqlx::query("DELETE FROM choir_control.schema_migrations WHERE version = 9999")
        .execute(&mut outside)
        .await
        .unwrap();
    sqlx::query("UPDATE choir_control.schema_migrations SET checksum = 'x'")
        .execute(&mut outside)
        .await
        .unwrap();
    let error = Store::open(cluster.options()).await.unwrap_err();
    assert!(matches!(error, StoreError::Schema(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_belongs_to_one_choird_at_a_time() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let error = Store::open(cluster.options()).await.unwrap_err();
    assert!(matches!(error, StoreError::InUse), "{error}");
    store.ping().await.unwrap();
    // Dropping all handles, without closing, lets go of it too.
    drop(store);
    cluster.store().await.ping().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_create_is_told_so() {
    let cluster = TestCluster::start().await;
    let mut outside = cluster.connect().await;
    for sql in ["CREATE EXTENSION vector", "CREATE ROLE guest LOGIN"] {
        sqlx::query(sql).execute(&mut outside).await.unwrap();
    }
    let error = Store::open(cluster.options().username("guest")).await.unwrap_err();
    assert!(matches!(error, StoreError::Forbidden(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_unavailable_and_says_so() {
    let mut cluster = TestCluster::start().await;
    let options = cluster.options();
    let store = cluster.store().await;
    cluster.kill().await;
    let error = store.ping().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let error = Store::open(options.clone()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    cluster.up().await;
    assert!(options.connect().await.is_ok());
    store.ping().await.unwrap();
}
