//! What a new process does to itself between fork and exec.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit, Signal};

/// Settings of the new process.
pub(crate) struct ChildSetup {
    /// `RLIMIT_DATA` in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// `RLIMIT_NOFILE`.
    pub(crate) open_files: u64,
    /// Descriptors the program inherits, under the numbers they have here. All others close.
    pub(crate) inherit: Vec<OwnedFd>,
}

/// Arranges that the command starts in a session of its own, dies with the thread that spawns it, and has the limits.
pub(crate) fn prepare(command: &mut Command, setup: ChildSetup) {
    let host = rustix::process::getpid();
    let open = open_descriptors();
    let step = move || -> io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != Some(host) {
            // The host died before the line above took effect: nobody would ever end this process.
            return Err(io::ErrorKind::NotConnected.into());
        }
        // Core files would hold secrets.
        limit(Resource::Core, 0)?;
        limit(Resource::Nofile, setup.open_files)?;
        if let Some(bytes) = setup.memory_bytes {
            limit(Resource::Data, bytes)?;
        }
        // What the host itself inherited from whoever started it may lack close-on-exec.
        for fd in &open {
            // SAFETY: the number is used for one call only, and the call fails harmlessly if it is not open any more.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            let _ = rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC);
        }
        for fd in &setup.inherit {
            rustix::io::fcntl_setfd(fd.as_fd(), FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: the closure runs in the forked child, where only async-signal-safe work is allowed. It makes system calls
    // through rustix, which issues them directly; it allocates nothing, takes no lock and cannot panic.
    unsafe {
        command.pre_exec(step);
    }
}

/// Numbers of the host's open descriptors but the first three.
fn open_descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).filter(|fd| *fd > 2).collect()
}

/// Lowers a limit, never above what the host itself may have.
fn limit(resource: Resource, to: u64) -> io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    let to = now.maximum.map_or(to, |most| most.min(to));
    Ok(rustix::process::setrlimit(resource, Rlimit { current: Some(to), maximum: Some(to) })?)
}
