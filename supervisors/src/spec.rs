//! Child specs and supervisor specs, in OTP's words.

use crate::actor::{Actor, StartContext};
use crate::dynamic::{Door, DynamicHandle};
use crate::exit::Failure;
use crate::limits::{DYNAMIC_CHILDREN, SHUTDOWN_WITHIN, START_WITHIN};
use crate::mailbox::Slot;
use crate::shell::{Launch, Worker};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// When a child that ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    /// Always.
    Permanent,
    /// Unless it ended normally or was shut down. A kill is not normal.
    Transient,
    /// Never, not even when a sibling's end took it along.
    Temporary,
}

/// How a child is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Killed at once.
    Brutal,
    /// Asked to stop, and killed when it has not after this long.
    Within(Duration),
    /// Asked to stop, without a deadline. Right for supervisors, whose children have deadlines of their own.
    Infinity,
}

/// Whom a failing child takes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Nobody.
    OneForOne,
    /// All its siblings.
    OneForAll,
    /// The siblings started after it.
    RestForOne,
}

/// What the end of significant children (that are not restarted) means to their supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AutoShutdown {
    /// Nothing.
    #[default]
    Never,
    /// It shuts itself down when one ends.
    AnySignificant,
    /// It shuts itself down when the last one has ended.
    AllSignificant,
}

/// How many restarts a supervisor makes before it gives up and fails itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intensity {
    /// Restarts allowed.
    pub restarts: u32,
    /// Within any span of this length.
    pub within: Duration,
}

impl Default for Intensity {
    /// Five within ten seconds.
    fn default() -> Self {
        Self::new(5, Duration::from_secs(10))
    }
}

/// How long a child waits before it is restarted: at once for the first `immediate` times in a row, then `initial`,
/// growing by `factor` to `max`. A run of `stable_after` starts the count anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Restarts in a row without delay.
    pub immediate: u32,
    /// The first delay.
    pub initial: Duration,
    /// The longest delay.
    pub max: Duration,
    /// How much longer each delay is than the one before.
    pub factor: u32,
    /// A child that was up this long has recovered.
    pub stable_after: Duration,
}

impl Backoff {
    /// No delay ever: intensity alone limits restarts.
    pub const NONE: Self = Self {
        immediate: u32::MAX,
        initial: Duration::ZERO,
        max: Duration::ZERO,
        factor: 1,
        stable_after: Duration::ZERO,
    };

    /// Delays from the first restart on: `initial`, doubling to `max`, forgotten after a stable run of twice `max`.
    #[must_use]
    pub const fn doubling(initial: Duration, max: Duration) -> Self {
        Self { immediate: 0, initial, max, factor: 2, stable_after: max.saturating_mul(2) }
    }
}

impl Default for Backoff {
    /// The first restart at once, then 20 ms doubling to 5 s; forgotten after 10 s.
    fn default() -> Self {
        Self {
            immediate: 1,
            initial: Duration::from_millis(20),
            max: Duration::from_secs(5),
            factor: 2,
            stable_after: Duration::from_secs(10),
        }
    }
}

/// Why a spec cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Two children of one supervisor have the same name.
    #[error("the supervisor \"{supervisor}\" has two children named \"{name}\"; give each its own name")]
    Duplicate {
        /// The supervisor.
        supervisor: String,
        /// The name.
        name: String,
    },
    /// A name that cannot be part of a path.
    #[error("\"{0}\" cannot name a child: a name is not empty and has no '/'")]
    Name(String),
}

/// How to start, restart and stop one child.
pub struct ChildSpec {
    pub(crate) name: String,
    pub(crate) restart: Restart,
    pub(crate) shutdown: Shutdown,
    pub(crate) backoff: Backoff,
    pub(crate) significant: bool,
    pub(crate) stuck_after: Option<Duration>,
    pub(crate) start_within: Duration,
    pub(crate) body: Body,
}

/// What a child is.
pub(crate) enum Body {
    Worker(Arc<dyn Launch>),
    Supervisor(SupervisorSpec),
    Dynamic(DynamicSpec, Arc<Door>),
}

impl ChildSpec {
    /// An actor, named like its mailbox. Permanent, five seconds to stop, thirty to start.
    ///
    /// The factory is called for every incarnation. While it runs the child is `starting`; an error or a panic in it is
    /// a failed start.
    pub fn worker<A, F, Fut>(slot: Slot<A::Msg>, factory: F) -> Self
    where
        A: Actor,
        F: Fn(StartContext<A::Msg>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<A, Failure>> + Send + 'static,
    {
        let name = slot.name().to_owned();
        let worker: Worker<A> = Worker::new(slot, Box::new(move |cx| Box::pin(factory(cx))));
        Self {
            name,
            restart: Restart::Permanent,
            shutdown: Shutdown::Within(SHUTDOWN_WITHIN),
            backoff: Backoff::default(),
            significant: false,
            stuck_after: None,
            start_within: START_WITHIN,
            body: Body::Worker(Arc::new(worker)),
        }
    }

    /// A supervisor below a supervisor. Permanent, and given all the time it needs to stop its children.
    #[must_use]
    pub fn supervisor(spec: SupervisorSpec) -> Self {
        Self {
            name: spec.name.clone(),
            restart: Restart::Permanent,
            shutdown: Shutdown::Infinity,
            backoff: Backoff::default(),
            significant: false,
            stuck_after: None,
            // The children's own start deadlines bound it; this one is for a supervisor that hangs itself.
            start_within: Duration::from_secs(3600),
            body: Body::Supervisor(spec),
        }
    }

    /// A dynamic supervisor; its [`DynamicHandle`] came with the spec.
    #[must_use]
    pub(crate) fn dynamic(spec: DynamicSpec, handle: &DynamicHandle) -> Self {
        Self {
            name: spec.name.clone(),
            body: Body::Dynamic(spec, handle.door()),
            ..Self::supervisor(SupervisorSpec::new("", Strategy::OneForOne))
        }
    }

    /// When it is restarted.
    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// How it is stopped.
    #[must_use]
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// How long it waits before a restart.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Its end for good may shut down its supervisor, see [`SupervisorSpec::auto_shutdown`].
    #[must_use]
    pub fn significant(mut self) -> Self {
        self.significant = true;
        self
    }

    /// A handler without [`Context::progress`](crate::Context::progress) for this long is [`Exit::Stuck`](crate::Exit):
    /// the actor is killed and treated as failed. Without it a handler may take for ever. Ignored for supervisors.
    #[must_use]
    pub fn stuck_after(mut self, limit: Duration) -> Self {
        self.stuck_after = Some(limit);
        self
    }

    /// How long the factory and [`Actor::started`] may take.
    #[must_use]
    pub fn start_within(mut self, limit: Duration) -> Self {
        self.start_within = limit;
        self
    }

    /// The child's name: the last part of its path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn check(&self) -> Result<(), SpecError> {
        if self.name.is_empty() || self.name.contains('/') {
            return Err(SpecError::Name(self.name.clone()));
        }
        match &self.body {
            Body::Supervisor(spec) => spec.check(),
            Body::Worker(_) | Body::Dynamic(..) => Ok(()),
        }
    }
}

impl std::fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChildSpec")
            .field("name", &self.name)
            .field("restart", &self.restart)
            .finish_non_exhaustive()
    }
}

/// A supervisor with children that are known beforehand.
#[derive(Debug)]
pub struct SupervisorSpec {
    pub(crate) name: String,
    pub(crate) strategy: Strategy,
    pub(crate) intensity: Intensity,
    pub(crate) auto_shutdown: AutoShutdown,
    pub(crate) children: Vec<ChildSpec>,
}

impl SupervisorSpec {
    /// A supervisor without children yet; five restarts within ten seconds.
    #[must_use]
    pub fn new(name: impl Into<String>, strategy: Strategy) -> Self {
        Self {
            name: name.into(),
            strategy,
            intensity: Intensity::default(),
            auto_shutdown: AutoShutdown::Never,
            children: Vec::new(),
        }
    }

    /// How many restarts are too many.
    #[must_use]
    pub fn intensity(mut self, intensity: Intensity) -> Self {
        self.intensity = intensity;
        self
    }

    /// What the end of significant children means.
    #[must_use]
    pub fn auto_shutdown(mut self, auto_shutdown: AutoShutdown) -> Self {
        self.auto_shutdown = auto_shutdown;
        self
    }

    /// Adds a child after the others: children start in this order and stop in reverse.
    #[must_use]
    pub fn child(mut self, child: ChildSpec) -> Self {
        self.children.push(child);
        self
    }

    pub(crate) fn check(&self) -> Result<(), SpecError> {
        if self.name.is_empty() || self.name.contains('/') {
            return Err(SpecError::Name(self.name.clone()));
        }
        let mut names = HashSet::new();
        for child in &self.children {
            child.check()?;
            if !names.insert(&child.name) {
                return Err(SpecError::Duplicate { supervisor: self.name.clone(), name: child.name.clone() });
            }
        }
        Ok(())
    }
}

/// A supervisor whose children come and go at run time, each on its own (one_for_one).
#[derive(Debug)]
pub struct DynamicSpec {
    pub(crate) name: String,
    pub(crate) intensity: Intensity,
    pub(crate) max_children: usize,
}

impl DynamicSpec {
    /// The handle to start children with, and the spec of the supervisor itself with the default settings.
    #[must_use]
    #[expect(clippy::new_ret_no_self, reason = "the two halves are only useful together")]
    pub fn new(name: impl Into<String>) -> (DynamicHandle, ChildSpec) {
        Self::with(name, Intensity::default(), DYNAMIC_CHILDREN)
    }

    /// The same with its own intensity and bound on the number of children.
    #[must_use]
    pub fn with(
        name: impl Into<String>,
        intensity: Intensity,
        max_children: usize,
    ) -> (DynamicHandle, ChildSpec) {
        let spec = Self { name: name.into(), intensity, max_children };
        let handle = DynamicHandle::new(&spec.name);
        let child = ChildSpec::dynamic(spec, &handle);
        (handle, child)
    }
}
