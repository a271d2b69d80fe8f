//! The cluster as a supervised actor: a start brings it up (or adopts it), its death is the actor's failure, and an
//! orderly shutdown stops it. When only the actor dies, the server goes on and the replacement adopts it.

use std::time::Duration;

use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Shutdown, Slot, StartContext};

use super::cluster::{Cluster, ClusterConfig, Origin};

/// Longest start: `initdb` on a slow disk, then recovery. Above the cluster's own deadlines, which give better errors.
const START_WITHIN: Duration = Duration::from_secs(240);

/// Room for the supervisor's own work on top of the cluster's patience.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(5);

/// What the cluster's actor is told.
#[derive(Debug)]
pub enum PostgresMsg {
    /// The server ended by itself.
    Ended,
    /// How is it?
    Status {
        /// The answer.
        reply: ReplyTo<PostgresStatus>,
    },
}

impl Mail for PostgresMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Status { .. } => "status",
        }
    }
}

/// The cluster, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresStatus {
    /// The postmaster's process id.
    pub pid: u32,
    /// Whether it was made, started or adopted.
    pub origin: Origin,
    /// For `psql`.
    pub url: String,
    /// Its log file.
    pub log: std::path::PathBuf,
}

struct PostgresActor {
    /// None only after it was stopped or found dead.
    cluster: Option<Cluster>,
}

impl Actor for PostgresActor {
    type Msg = PostgresMsg;

    async fn started(&mut self, cx: &mut Context<PostgresMsg>) -> Result<(), Failure> {
        if let Some(cluster) = &self.cluster {
            let gone = cluster.watch().map_err(|e| Failure::new(e.to_string()))?;
            cx.pipe_to_self(gone, |()| PostgresMsg::Ended).map_err(|e| Failure::new(e.to_string()))?;
        }
        Ok(())
    }

    async fn handle(&mut self, msg: PostgresMsg, _: &mut Context<PostgresMsg>) -> Result<(), Failure> {
        match msg {
            PostgresMsg::Ended => {
                let Some(mut cluster) = self.cluster.take() else { return Ok(()) };
                Err(Failure::new(cluster.ended().await.to_string()))
            }
            PostgresMsg::Status { reply } => {
                // Without a cluster the port drops, and the asker knows.
                if let Some(cluster) = &self.cluster {
                    reply.send(PostgresStatus {
                        pid: cluster.pid(),
                        origin: cluster.origin(),
                        url: cluster.url(),
                        log: cluster.log().to_owned(),
                    });
                }
                Ok(())
            }
        }
    }

    async fn stopping(&mut self, _: &mut Context<PostgresMsg>) {
        if let Some(cluster) = self.cluster.take() {
            let ended = cluster.stop().await;
            tracing::info!(how = ended.how, "the database server is stopped");
        }
    }
}

/// The cluster's place in choird's tree: permanent, and given the time that an orderly stop of a database takes.
#[must_use]
pub fn child_spec(slot: Slot<PostgresMsg>, config: ClusterConfig) -> ChildSpec {
    let patience = config.patience.fast + config.patience.immediate + SHUTDOWN_MARGIN;
    ChildSpec::worker(slot, move |_: StartContext<PostgresMsg>| {
        let config = config.clone();
        async move {
            let cluster = Cluster::start(&config).await.map_err(|e| Failure::new(e.to_string()))?;
            tracing::info!(pid = cluster.pid(), origin = ?cluster.origin(), "the database server is up");
            Ok(PostgresActor { cluster: Some(cluster) })
        }
    })
    .shutdown(Shutdown::Within(patience))
    .start_within(START_WITHIN)
}
