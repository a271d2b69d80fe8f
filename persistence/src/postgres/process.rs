//! The postmaster's process, whether it is a child of this process or was left by an earlier one.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;
use tokio::process::Child;

/// How long the stages of a stop may take: first an orderly one, then an immediate one, then none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a fast shutdown: transactions are rolled back, and a checkpoint is written.
    pub fast: Duration,
    /// For an immediate one, which needs recovery at the next start. Then the process is killed.
    pub immediate: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { fast: Duration::from_secs(15), immediate: Duration::from_secs(5) }
    }
}

/// How the postmaster ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// In words, such as `exit status: 0` or `signal: 9 (SIGKILL)`; for an adopted process only that it is gone.
    pub how: String,
}

/// A running postmaster. Dropping this leaves it running.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    /// Readable once the process is gone; its number cannot pass to another process while this is held.
    handle: AsyncFd<OwnedFd>,
    /// For a child of ours: its exit status, and nobody else will reap it.
    child: Option<Child>,
}

impl Process {
    /// Takes hold of a child just started.
    pub(super) fn child(child: Child) -> std::io::Result<Self> {
        let gone = || std::io::Error::other("it ended at once");
        let pid = child.id().ok_or_else(gone)?;
        // A child that was not waited for keeps its number, even dead.
        let handle = open(pid)?.ok_or_else(gone)?;
        Ok(Self { pid, handle, child: Some(child) })
    }

    /// Takes hold of a process that somebody else started; none if it is gone.
    pub(super) fn adopt(pid: u32) -> std::io::Result<Option<Self>> {
        Ok(open(pid)?.map(|handle| Self { pid, handle, child: None }))
    }

    /// The process id.
    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the end. Owns what it needs, so it can be waited for beside everything else.
    pub(super) fn watch(&self) -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
        let handle = register(self.handle.get_ref().try_clone()?)?;
        Ok(async move {
            // An error would be the runtime going away, and this future with it.
            let _ = handle.readable().await;
        })
    }

    /// Waits for the end.
    pub(super) async fn ended(&mut self) -> Ended {
        let how = match &mut self.child {
            Some(child) => match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => format!("its end could not be observed: {error}"),
            },
            None => match self.handle.readable().await {
                Ok(_) => "it is gone".to_owned(),
                Err(error) => format!("its end could not be observed: {error}"),
            },
        };
        Ended { how }
    }

    fn signal(&self, signal: Signal) {
        // The only failure is that the process is gone, which is what the waiting that follows finds out.
        let _ = pidfd_send_signal(self.handle.get_ref(), signal);
    }

    /// Stops it, ever less politely, and returns when it is gone.
    pub(super) async fn stop(&mut self, patience: Patience) -> Ended {
        for (signal, within) in [(Signal::INT, patience.fast), (Signal::QUIT, patience.immediate)] {
            self.signal(signal);
            if let Ok(ended) = tokio::time::timeout(within, self.ended()).await {
                return ended;
            }
            tracing::warn!(?signal, "the database server does not stop");
        }
        self.signal(Signal::KILL);
        self.ended().await
    }
}

fn open(pid: u32) -> std::io::Result<Option<AsyncFd<OwnedFd>>> {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    match pidfd_open(raw, PidfdFlags::NONBLOCK) {
        Ok(fd) => Ok(Some(register(fd)?)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[expect(
    deprecated,
    reason = "its replacement is unsafe for descriptors that their owner may close early; an OwnedFd that is never taken \
              out of the AsyncFd is not such a one"
)]
fn register(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}
