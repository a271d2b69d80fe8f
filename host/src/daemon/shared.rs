//! What all parts of choird know: where its state is, what is configured, the store once it is open. Values that change
//! are read through watches, so no actor holds a stale one.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use choir_link::Links;
use choir_messages::chain::Digest;
use choir_messages::mail::{CoordinatorMsg, LedgerMsg};
use choir_persistence::Store;
use choir_persistence::postgres::ClusterConfig;
use choir_sandbox::Sandbox;
use choir_supervisors::{Address, TreeHandle};
use choir_telemetry::{Metrics, Scrubber};
use tokio::sync::watch;

use super::links::Carrier;
use super::roster::Roster;
use super::settings::{Settings, SettingsMsg};
use crate::session::Now;
use crate::state_dir::StateDir;

/// What `status` says about the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatabaseHealth {
    pub(crate) up: bool,
    pub(crate) trouble: Option<String>,
}

/// The sandbox in use.
#[derive(Clone)]
pub(crate) struct SandboxInUse {
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) warning: Option<String>,
}

/// Shared by all actors of one choird.
pub(crate) struct Host {
    pub(crate) state: StateDir,
    pub(crate) started: Instant,
    pub(crate) agent_binary: PathBuf,
    pub(crate) settings: watch::Sender<Arc<Settings>>,
    pub(crate) store: watch::Sender<Option<Store>>,
    pub(crate) health: watch::Sender<DatabaseHealth>,
    pub(crate) links: watch::Sender<Option<Links>>,
    pub(crate) carrier: Carrier,
    pub(crate) sandbox: watch::Sender<SandboxInUse>,
    pub(crate) settings_actor: Address<SettingsMsg>,
    pub(crate) roster: Roster,
    /// The CHAP Coordinator's mailbox: what agents' sessions and approvals will speak to.
    pub(crate) coordinator: Address<CoordinatorMsg>,
    /// The signed ledger's desk.
    pub(crate) ledger: Address<LedgerMsg>,
    pub(crate) scrubber: Scrubber,
    pub(crate) metrics: Metrics,
    pub(crate) tree: OnceLock<TreeHandle>,
    /// Set to true to shut down; the reason is for the log.
    pub(crate) shutdown: watch::Sender<Option<String>>,
    /// Things an operator should know, found while starting.
    pub(crate) warnings: Vec<String>,
    /// The private cluster, where choird runs its own.
    pub(crate) cluster: Option<ClusterConfig>,
}

impl Host {
    /// The time since choird started.
    pub(crate) fn now(&self) -> Now {
        self.started.elapsed()
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.borrow())
    }

    /// The store, if it is open.
    pub(crate) fn store(&self) -> Option<Store> {
        self.store.borrow().clone()
    }

    /// The store, waiting at most `deadline` for it to be opened.
    pub(crate) async fn store_within(&self, deadline: Duration) -> Option<Store> {
        let mut watch = self.store.subscribe();
        let found = tokio::time::timeout(deadline, watch.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }

    /// Names this installation to the sandboxes: leftovers of an earlier choird on the same state directory, and of no
    /// other, are found by it.
    pub(crate) fn label(&self) -> String {
        label(&self.state)
    }
}

/// See [`Host::label`].
pub(crate) fn label(state: &StateDir) -> String {
    let digest = Digest::of(state.root().as_os_str().as_encoded_bytes()).to_string();
    digest.chars().take(16).collect()
}
