//! Watching a running command: feeding its input, keeping the head and tail of its output, and deciding when it is
//! over.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::process::Running;
use crate::limits::{CHUNK_BYTES, EXEC_DRAIN, EXEC_GRACE, STREAM_KEEP_BYTES};
use crate::stop::{Stop, Stopped};
use crate::text::HeadTail;

/// How often a cancel is looked for where no bell can ring.
const NO_BELL: Duration = Duration::from_millis(50);

/// What a command gave.
#[derive(Debug)]
pub(super) struct Captured {
    /// Its exit status; `None` if it could not be collected.
    pub(super) status: Option<std::process::ExitStatus>,
    /// Standard output and error.
    pub(super) streams: [HeadTail; 2],
    /// Whether it had to be ended.
    pub(super) stopped: Option<Stopped>,
    /// Whether something it had started still ran after it had ended by itself.
    pub(super) left_running: bool,
}

/// Runs a started command to its end: its own, or the call's.
pub(super) fn watch(mut running: Running<'_>, stdin: &[u8], stop: &Stop) -> Captured {
    let mut streams = [HeadTail::new(STREAM_KEEP_BYTES), HeadTail::new(STREAM_KEEP_BYTES)];
    let mut stdin = stdin;
    let stopped = loop {
        if let Err(why) = stop.check() {
            break Some(why);
        }
        if step(&mut running, &mut streams, &mut stdin, Some(stop), stop.deadline()) {
            // A cancel kills the group before this thread hears of it.
            break stop.check().err().filter(|why| *why == Stopped::Cancelled);
        }
    };
    running.stdin = None;
    if stopped.is_none() {
        drain(&mut running, &mut streams, EXEC_GRACE);
    }
    let killed = running.kill();
    let left_running = stopped.is_none() && killed > 0;
    drain(&mut running, &mut streams, EXEC_DRAIN);
    Captured { status: running.reap(), streams, stopped, left_running }
}

/// Reads what is left until both streams are closed, but no longer than this.
fn drain(running: &mut Running<'_>, streams: &mut [HeadTail; 2], limit: Duration) {
    let until = Instant::now() + limit;
    while running.outputs.iter().any(Option::is_some) && Instant::now() < until {
        step(running, streams, &mut &[][..], None, until);
    }
}

/// Waits for something to happen and deals with it. True once the shell has ended; with no `stop` the shell's end and
/// the bell are not waited for.
fn step(
    running: &mut Running<'_>,
    streams: &mut [HeadTail; 2],
    stdin: &mut &[u8],
    stop: Option<&Stop>,
    until: Instant,
) -> bool {
    if stdin.is_empty() {
        // Closing it tells the command that there is no more.
        running.stdin = None;
    }
    let bell = stop.and_then(Stop::bell);
    let mut wait = until.saturating_duration_since(Instant::now());
    if stop.is_some() && bell.is_none() {
        wait = wait.min(NO_BELL);
    }
    let (mut ended, mut readable, mut writable) = (false, [false; 2], false);
    {
        let shell = running.ended();
        let mut fds = Vec::with_capacity(5);
        let mut who = Vec::with_capacity(5);
        for (index, output) in running.outputs.iter().enumerate() {
            if let Some(fd) = output {
                fds.push(PollFd::new(fd, PollFlags::IN));
                who.push(Source::Output(index));
            }
        }
        if let Some(fd) = &running.stdin {
            fds.push(PollFd::new(fd, PollFlags::OUT));
            who.push(Source::Input);
        }
        if let (Some(shell), Some(_)) = (&shell, stop) {
            fds.push(PollFd::new(shell, PollFlags::IN));
            who.push(Source::Shell);
        }
        if let Some(bell) = &bell {
            fds.push(PollFd::new(bell, PollFlags::IN));
            who.push(Source::Bell);
        }
        // Rounded up, so that it does not spin through the last millisecond.
        let limit = Timespec::try_from(wait + Duration::from_millis(1)).ok();
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // No memory for the call: look again a little later.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        for (fd, who) in fds.iter().zip(who) {
            if fd.revents().is_empty() {
                continue;
            }
            match who {
                Source::Output(index) => {
                    if let Some(flag) = readable.get_mut(index) {
                        *flag = true;
                    }
                }
                Source::Input => writable = true,
                Source::Shell => ended = true,
                Source::Bell => {}
            }
        }
    }
    for ((readable, output), stream) in readable.into_iter().zip(&mut running.outputs).zip(streams) {
        if readable {
            read(output, stream);
        }
    }
    if writable {
        write(&mut running.stdin, stdin);
    }
    ended
}

enum Source {
    Output(usize),
    Input,
    Shell,
    Bell,
}

/// Reads one chunk; closes the stream at its end.
fn read(output: &mut Option<OwnedFd>, stream: &mut HeadTail) {
    let Some(fd) = output else { return };
    let mut chunk = [0u8; CHUNK_BYTES];
    match rustix::io::read(fd.as_fd(), &mut chunk) {
        Ok(0) => *output = None,
        Ok(n) => stream.push(chunk.get(..n).unwrap_or_default()),
        Err(Errno::AGAIN | Errno::INTR) => {}
        Err(_) => *output = None,
    }
}

/// Writes what fits; a command that does not read its input is no error.
fn write(input: &mut Option<OwnedFd>, rest: &mut &[u8]) {
    let Some(fd) = input else { return };
    match rustix::io::write(fd.as_fd(), rest) {
        Ok(n) => *rest = rest.get(n..).unwrap_or_default(),
        Err(Errno::AGAIN | Errno::INTR) => {}
        Err(_) => *input = None,
    }
}
