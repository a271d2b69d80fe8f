//! Signals that tell choird to end, from its first moment on: the first one means "in order", one more means "now".

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// What was heard so far.
#[derive(Debug, Clone, Copy)]
struct Heard {
    count: usize,
    /// The first signal's name.
    first: &'static str,
}

/// Listens as long as it lives.
pub(crate) struct Signals {
    heard: watch::Receiver<Heard>,
    task: tokio::task::JoinHandle<()>,
}

impl Signals {
    /// Listens to SIGTERM, SIGINT and SIGHUP from now on.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        let mut hup = signal(SignalKind::hangup())?;
        let (tell, heard) = watch::channel(Heard { count: 0, first: "" });
        let task = tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    Some(()) = term.recv() => "SIGTERM",
                    Some(()) = int.recv() => "SIGINT",
                    Some(()) = hup.recv() => "SIGHUP",
                    else => return,
                };
                tell.send_modify(|heard| {
                    heard.count += 1;
                    if heard.first.is_empty() {
                        heard.first = name;
                    }
                });
            }
        });
        Ok(Self { heard, task })
    }

    /// How many there were.
    pub(crate) fn count(&self) -> usize {
        self.heard.borrow().count
    }

    /// Waits for the first and says which it was.
    pub(crate) async fn first(&self) -> &'static str {
        self.more_than(0).await;
        self.heard.borrow().first
    }

    /// Waits for the second.
    pub(crate) async fn second(&self) {
        self.more_than(1).await;
    }

    /// Waits until there were more than so many.
    pub(crate) async fn more_than(&self, count: usize) {
        if self.heard.clone().wait_for(|heard| heard.count > count).await.is_err() {
            // The runtime is going down; nobody will be told anything any more.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.task.abort();
    }
}
