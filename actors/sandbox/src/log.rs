//! The agent's output: a pipe that the host empties into the log file. The agent never holds the file, so it can
//! neither read, truncate nor fill it; beyond the bound its output is read and thrown away, so that it never blocks.

use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use crate::SandboxError;
use crate::limits::{LAST_WORDS_BYTES, LOG_BYTES};

/// The end of the output, shared with whoever reports the agent's end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keep = &bytes[bytes.len().saturating_sub(LAST_WORDS_BYTES)..];
        let excess = (tail.len() + keep.len()).saturating_sub(LAST_WORDS_BYTES);
        let excess = excess.min(tail.len());
        tail.drain(..excess);
        tail.extend(keep);
    }

    /// As text for a person: invalid UTF-8 and control characters but line ends are replaced.
    pub(crate) fn text(&self) -> String {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(tail.make_contiguous())
            .trim()
            .chars()
            .map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c })
            .collect()
    }
}

/// Opens the log file for appending: mode 0600, folders 0700, and never through a symbolic link.
pub(crate) fn open(path: &Path) -> Result<File, SandboxError> {
    let open = || {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path)
    };
    open().map_err(|source| SandboxError::Log { path: path.to_owned(), source })
}

/// Empties the pipe into the file until every writer has closed it.
pub(crate) async fn pump(pipe: OwnedFd, mut file: File, tail: Tail) {
    let Ok(mut pipe) = Receiver::from_owned_fd(pipe) else { return };
    let mut buffer = vec![0u8; 16 * 1024];
    let mut room = LOG_BYTES;
    let mut warned = false;
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        let bytes = &buffer[..read];
        tail.push(bytes);
        if room >= read as u64 {
            room -= read as u64;
            // A write of 16 KiB into the page cache; a full disk loses the agent's log and nothing else.
            if let Err(error) = file.write_all(bytes)
                && !std::mem::replace(&mut warned, true)
            {
                tracing::warn!(%error, "the agent's log cannot be written; its output is lost until it can");
            }
        } else if room > 0 {
            room = 0;
            let _ = writeln!(file, "\n[the log has reached {LOG_BYTES} bytes; what follows is not kept]");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_tail_is_the_end_of_what_was_written(
            parts in proptest::collection::vec(proptest::collection::vec(b'a'..=b'z', 0..LAST_WORDS_BYTES * 2), 0..6)
        ) {
            let tail = Tail::default();
            let mut all = Vec::new();
            for part in &parts {
                tail.push(part);
                all.extend_from_slice(part);
            }
            let expected = &all[all.len().saturating_sub(LAST_WORDS_BYTES)..];
            prop_assert_eq!(tail.text().into_bytes(), expected);
        }
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let tail = Tail::default();
        tail.push(b"a\x1b[2Jb\nc\xff");
        assert_eq!(tail.text(), "a\u{fffd}[2Jb\nc\u{fffd}");
    }
}
