//! The database as actors: the private Postgres, where choird runs its own, the store on top of it, and its committer,
//! through which every event becomes durable.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::mail::Mail;
use choir_persistence::postgres::{self, ClusterError, Source};
use choir_persistence::{CommitterMsg, Store, StoreError, committer_mailbox, committer_spec};
use choir_supervisors::{
    Actor, Address, Backoff, ChildSpec, Context, Failure, Intensity, MailboxSpec, Shutdown, Strategy,
    SupervisorSpec, WhenFull, mailbox,
};
use sqlx::postgres::PgConnectOptions;

use super::shared::{DatabaseHealth, Host};
use crate::config::{Config, Postgres};
use crate::secrets::Secrets;
use crate::state_dir::StateDir;

/// How often the database is asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Time the store may take to open: the claim of a choird that was just killed, then migrations.
const START: Duration = Duration::from_secs(120);

/// Time the store has to commit what is queued and to let go of its connections.
const STOP: Duration = Duration::from_secs(40);

/// Finds out which database to use (DESIGN §6): `DATABASE_URL`, the configuration's server, the private cluster.
pub(crate) async fn find(
    config: &Config,
    secrets: &Secrets,
    state: &StateDir,
) -> Result<Source, DatabaseError> {
    let named_by_env =
        std::env::var_os(choir_persistence::postgres::DATABASE_URL_VAR).is_some_and(|v| !v.is_empty());
    match &config.postgres {
        Postgres::External { host, port, database, user, secret } if !named_by_env => {
            let mut options = PgConnectOptions::new_without_pgpass()
                .host(host)
                .port(*port)
                .database(database)
                .username(user);
            if let Some(name) = secret {
                let value = secrets.get(name).ok_or_else(|| DatabaseError::NoSecret(name.clone()))?.expose();
                options = match value.split_once(':') {
                    Some((user, password)) => options.username(user).password(password),
                    None => options.password(value),
                };
            }
            Ok(Source::External(Box::new(options)))
        }
        Postgres::External { .. } => Ok(Source::find(None, None, state.root()).await?),
        Postgres::Embedded { binaries } => Ok(Source::find(None, binaries.as_deref(), state.root()).await?),
    }
}

/// Why there is no database to use.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// No programs, no server, a bad URL.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The password is not there.
    #[error(
        "config.json names the secret \"{0}\" for the database, which is not set; run `choirctl secret set {0}`"
    )]
    NoSecret(String),
}

/// The supervisor of all three, each after what it stands on: the cluster, the pool, the committer.
pub(crate) fn child_spec(source: &Source, host: Arc<Host>) -> Result<ChildSpec, ClusterError> {
    // A database that does not come up is tried for ever: agents and operators are told meanwhile, and choird's end
    // would help nobody.
    let patient = Intensity { restarts: u32::MAX, within: Duration::from_secs(1) };
    let spec = SupervisorSpec::new("store", Strategy::OneForOne).intensity(patient);
    // A server that was up for a while has recovered, so the next crash is mended at once again.
    let back_off = Backoff {
        immediate: 1,
        initial: Duration::from_millis(200),
        max: Duration::from_secs(10),
        factor: 2,
        stable_after: Duration::from_secs(2),
    };
    let (spec, options) = match source {
        Source::External(options) => (spec, options.as_ref().clone()),
        Source::Embedded(config) => {
            let (_, slot) = mailbox("postgres", MailboxSpec { capacity: 16, when_full: WhenFull::Refuse });
            let cluster = postgres::child_spec(slot, config.clone()).backoff(back_off);
            (spec.child(cluster), config.options()?)
        }
    };
    let (committer, slot) = committer_mailbox();
    let commits = committer_spec(slot, host.store.subscribe());
    Ok(ChildSpec::supervisor(spec.child(pool(options, committer, host, back_off)).child(commits)))
}

/// The pool actor's only message.
struct Ping;

impl Mail for Ping {
    fn label(&self) -> &'static str {
        "ping"
    }
}

struct PoolActor {
    store: Store,
    host: Arc<Host>,
}

fn pool(
    options: PgConnectOptions,
    committer: Address<CommitterMsg>,
    host: Arc<Host>,
    back_off: Backoff,
) -> ChildSpec {
    let (_, slot) = mailbox("pool", MailboxSpec { capacity: 4, when_full: WhenFull::DropOldest });
    ChildSpec::worker(slot, move |_| {
        let (options, committer, host) = (options.clone(), committer.clone(), Arc::clone(&host));
        async move {
            // The handle outlives this actor: its connections mend themselves, and every other actor has a clone.
            if let Some(store) = host.store() {
                return Ok(PoolActor { store, host });
            }
            let store = open(options, committer).await.map_err(|error| {
                host.health.send_replace(DatabaseHealth { up: false, trouble: Some(trouble(&host, &error)) });
                Failure::from(error)
            })?;
            host.health.send_replace(DatabaseHealth { up: true, trouble: None });
            host.store.send_replace(Some(store.clone()));
            Ok(PoolActor { store, host })
        }
    })
    .start_within(START)
    .shutdown(Shutdown::Within(STOP))
    .backoff(back_off)
}

/// Opens the store on a thread of its own: its future borrows across awaits in a way that the compiler cannot prove to
/// be `Send`, and an actor's must be.
async fn open(options: PgConnectOptions, committer: Address<CommitterMsg>) -> Result<Store, StoreError> {
    let runtime = tokio::runtime::Handle::current();
    let open = move || runtime.block_on(Store::open_supervised(options, committer));
    let opened = tokio::task::spawn_blocking(open).await;
    opened.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string().into())))
}

/// What is wrong, in the words that help most: a private server that is away because its disk is full comes back by
/// itself once there is room.
pub(super) fn trouble(host: &Host, error: &StoreError) -> String {
    let full = host.cluster.as_ref().and_then(|cluster| cluster.check_room().err());
    match full {
        Some(full @ ClusterError::DiskFull { .. }) => full.to_string(),
        _ => error.to_string(),
    }
}

impl Actor for PoolActor {
    type Msg = Ping;

    async fn started(&mut self, cx: &mut Context<Ping>) -> Result<(), Failure> {
        cx.send_interval(PING_EVERY, || Ping)?;
        Ok(())
    }

    async fn handle(&mut self, Ping: Ping, _cx: &mut Context<Ping>) -> Result<(), Failure> {
        let trouble = self.store.ping().await.err().map(|error| trouble(&self.host, &error));
        let health = DatabaseHealth { up: trouble.is_none(), trouble };
        self.host.health.send_if_modified(|was| {
            let changed = *was != health;
            if changed && !health.up {
                tracing::error!(trouble = health.trouble, "the database does not answer");
            } else if changed {
                tracing::info!("the database answers again");
            }
            *was = health;
            changed
        });
        Ok(())
    }

    async fn stopping(&mut self, _cx: &mut Context<Ping>) {
        self.host.store.send_replace(None);
        self.store.close().await;
    }
}
