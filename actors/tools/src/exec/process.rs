//! Starting the shell of a command and its guard, and making sure that neither outlives the call.
//!
//! The shell leads a session and process group of its own. Three things end the group: the call itself, a cancel
//! (through [`Stop`]), and the death of this process in any way: the kernel then kills the shell, and the *guard*, a
//! second small shell that does nothing but read from a pipe this process holds, sees the pipe close and kills the
//! rest of the group.
//!
//! The one place of this crate with unsafe code: what a child does between fork and exec has no safe interface.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{
    Pid, PidfdFlags, Signal, fchdir, getpid, getppid, kill_process_group, pidfd_open,
    set_parent_process_death_signal, setsid,
};
use rustix::thread::set_no_new_privs;

use super::stray;
use crate::limits::EXEC_DRAIN;
use crate::stop::{Stop, Stopped};

/// The shell that runs commands.
const SHELL: &str = "/bin/sh";

/// The first descriptor that is not a standard one.
const FIRST_PRIVATE: libc::c_uint = 3;

/// Reads the group's number, which the shell says before it begins, then waits for the pipe to close. A second line
/// would mean that all is over. Kills the group, and what left the group but still carries the call's mark; again as
/// long as there is any, for such a process may have started others meanwhile.
const GUARD: &str = r#"
read -r group || exit 0
read -r over && exit 0
kill -s KILL -- "-$group" 2>/dev/null
for round in 1 2 3 4 5; do
  files=$(grep -ls -e "$1" /proc/[0-9]*/environ 2>/dev/null)
  [ -n "$files" ] || break
  for file in $files; do
    pid=${file#/proc/}
    kill -s KILL "${pid%/environ}" 2>/dev/null
  done
done
"#;

/// A running command: its shell, its guard, its pipes.
#[derive(Debug)]
pub(super) struct Running<'a> {
    shell: Child,
    group: Pid,
    guard: Child,
    mark: String,
    stop: &'a Stop,
    /// Becomes readable when the shell has ended.
    ended: Option<OwnedFd>,
    /// Whether the shell's status was collected, after which its number may be another's.
    reaped: bool,
    /// Where its standard input is written to, if it has any.
    pub(super) stdin: Option<OwnedFd>,
    /// Its standard output and error.
    pub(super) outputs: [Option<OwnedFd>; 2],
}

/// Why a command could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Stopped(#[from] Stopped),
    #[error("the command could not be started: {0}")]
    Io(#[from] io::Error),
}

/// What to start.
pub(super) struct Start<'a> {
    pub(super) command: &'a str,
    pub(super) dir: OwnedFd,
    pub(super) env: &'a [(String, String)],
    pub(super) mark: String,
    pub(super) with_stdin: bool,
}

impl<'a> Running<'a> {
    /// Starts a command, unless the call has to end already. The calling thread must stay until the command has ended:
    /// the kernel takes the thread's end for the parent's.
    pub(super) fn start(start: Start<'_>, stop: &'a Stop) -> Result<Self, StartError> {
        let mut guard = Command::new(SHELL);
        guard
            .args(["-c", GUARD, "choir-guard", &start.mark])
            .env_clear()
            .env("PATH", super::DEFAULT_PATH)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: as for the shell, below.
        unsafe { guard.pre_exec(keep_no_descriptors) };
        let mut guard = guard.spawn()?;
        let tell = guard.stdin.as_ref().map(|pipe| pipe.as_fd().try_clone_to_owned()).transpose();
        let started = stop.commit_group(|| {
            let tell = tell?.ok_or(io::ErrorKind::BrokenPipe)?;
            let shell = Self::shell(&start, tell)?;
            // Its number is positive, or there would be no child.
            let group = Pid::from_raw(shell.id().try_into().unwrap_or(0)).ok_or(io::ErrorKind::Other)?;
            Ok::<_, io::Error>(((shell, group), group))
        });
        let (mut shell, group) = match started.map_err(StartError::from).and_then(|r| Ok(r?)) {
            Ok(started) => started,
            Err(error) => {
                end_guard(&mut guard);
                return Err(error);
            }
        };
        let stdin = shell.stdin.take().map(OwnedFd::from);
        let outputs = [shell.stdout.take().map(OwnedFd::from), shell.stderr.take().map(OwnedFd::from)];
        let mut running =
            Self { shell, group, guard, mark: start.mark, stop, ended: None, reaped: false, stdin, outputs };
        // Without its guard or a way to see its end it must not run; dropping it ends it.
        running.arm()?;
        Ok(running)
    }

    fn arm(&mut self) -> io::Result<()> {
        self.ended = Some(pidfd_open(self.group, PidfdFlags::empty())?);
        for fd in self.stdin.iter().chain(self.outputs.iter().flatten()) {
            fcntl_setfl(fd, OFlags::NONBLOCK)?;
        }
        Ok(())
    }

    /// Starts the shell, which tells the guard its number through `guard` before it becomes the command: from the
    /// command's first step on, the guard knows whom to kill.
    fn shell(start: &Start<'_>, guard: OwnedFd) -> io::Result<Child> {
        let mut command = Command::new(SHELL);
        command
            .args(["-c", start.command])
            .env_clear()
            .envs(start.env.iter().map(|(name, value)| (name, value)))
            .stdin(if start.with_stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let dir = start.dir.try_clone()?;
        let parent = getpid();
        let before_exec = move || {
            setsid()?;
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the kernel was told to mind it.
            if getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            set_no_new_privs(true)?;
            fchdir(&dir)?;
            tell_own_number(&guard)?;
            keep_no_descriptors()
        };
        // SAFETY: between fork and exec the closure makes plain system calls only, on values made before the fork and on
        // its stack; it allocates nothing and takes no lock (the errors it returns are codes).
        unsafe { command.pre_exec(before_exec) };
        command.spawn()
    }

    /// Kills everything the command started; returns how many processes that were. The shell stays a zombie, so that
    /// its group's number stays its own.
    pub(super) fn kill(&self) -> usize {
        let marked = stray::kill_marked(&self.mark);
        // Those of the group that wiped the mark.
        let _ = kill_process_group(self.group, Signal::KILL);
        marked
    }

    /// Collects the shell's exit status. `None` if it does not die although it was killed (a hung device).
    pub(super) fn reap(&mut self) -> Option<std::process::ExitStatus> {
        let ended = self.ended.as_ref().is_none_or(|ended| {
            let mut fds = [PollFd::new(ended, PollFlags::IN)];
            let limit = EXEC_DRAIN.try_into().ok();
            matches!(poll(&mut fds, limit.as_ref()), Ok(n) if n > 0)
        });
        self.reaped = true;
        self.stop.group_ended();
        if ended { self.shell.wait().ok() } else { None }
    }

    /// What becomes readable at the shell's end.
    pub(super) fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.ended.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            self.reap();
        }
        end_guard(&mut self.guard);
    }
}

/// Writes this process's number and a line break, without allocating.
fn tell_own_number(pipe: &OwnedFd) -> io::Result<()> {
    let mut text = *b"          \n";
    let mut number = getpid().as_raw_nonzero().get().unsigned_abs();
    // Ten digits hold every number; leading blanks are nothing to the shell that reads them.
    for digit in text.iter_mut().rev().skip(1) {
        if number == 0 {
            break;
        }
        // A remainder of ten is one byte.
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    // So few bytes go into a pipe whole or not at all.
    rustix::io::write(pipe, &text)?;
    Ok(())
}

/// Marks every descriptor but the three standard ones to be closed by the exec. This process opens its own that way,
/// but may itself have been started with others.
fn keep_no_descriptors() -> io::Result<()> {
    // SAFETY: plain numbers; the call changes flags of descriptors of the forked child only, and nothing it still needs
    // is to survive the exec.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_PRIVATE, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn end_guard(guard: &mut Child) {
    let _ = guard.kill();
    let _ = guard.wait();
}
