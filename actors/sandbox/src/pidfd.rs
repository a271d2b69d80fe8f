//! A handle to one process that a recycled pid cannot mislead, and its end as something to await.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process, as long as this exists the same one.
pub(crate) struct PidFd(OwnedFd);

impl PidFd {
    /// Takes hold of whoever has this pid now.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self(rustix::process::pidfd_open(raw, PidfdFlags::empty())?))
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.0, signal)?)
    }

    /// Starts to watch for the process's end; needs a tokio runtime with I/O.
    pub(crate) fn watch(self) -> io::Result<End> {
        // SAFETY: the descriptor must stay the same open file while it is registered. It is owned here, and `End` gives
        // it to nobody before it drops the registration.
        let fd = unsafe { AsyncFd::register_with_interest(self.0, Interest::READABLE) };
        Ok(End(fd.map_err(io::Error::from)?))
    }
}

/// A process's end.
pub(crate) struct End(AsyncFd<OwnedFd>);

impl End {
    /// Resolves once the process is dead; it may still have to be reaped.
    pub(crate) async fn reached(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }
}
