//! Reading a ledger line by line, and what a crash may have left at its end.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use choir_ledger::event::Event;
use choir_ledger::id::TraceId;
use choir_messages::chain::Digest;

use crate::bounds::{MAX_LINE_BYTES, MAX_TORN};
use crate::disk;
use crate::error::StoreError;

/// A last line that a crash cut, set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// Where its bytes are now.
    pub path: PathBuf,
    /// How many.
    pub bytes: u64,
}

/// What was read of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Complete lines, blank ones not counted.
    pub(crate) events: u64,
    /// Bytes of the complete lines.
    pub(crate) complete: u64,
    /// Bytes after the last line end.
    pub(crate) torn: u64,
    /// The last event's hash.
    pub(crate) head: Digest,
}

/// How the end of a ledger is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By a writer to be: what has no line end was never acknowledged, and is torn.
    Writing,
    /// By a reader: an event that only misses its line end is an event, as the verifier has it.
    Reading,
}

/// Reads every complete line as an event that follows the one before it, and hands it over with its number, from 1.
pub(crate) fn each(
    path: &Path,
    trace: TraceId,
    end: End,
    mut take: impl FnMut(u64, Event) -> Result<(), StoreError>,
) -> Result<Extent, StoreError> {
    let failed = |error| StoreError::io("read", path, error);
    let mut extent = Extent { events: 0, complete: 0, torn: 0, head: Digest::ZERO };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(extent),
        Err(error) => return Err(failed(error)),
    };
    let length = file.metadata().map_err(failed)?.len();
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut line, mut number) = (Vec::new(), 0u64);
    loop {
        line.clear();
        let read =
            reader.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line).map_err(failed)?;
        number += 1;
        let damaged = |why: String| StoreError::Damaged { trace, line: number, why };
        let ended = line.last() == Some(&b'\n');
        if !ended && line.len() > MAX_LINE_BYTES {
            return Err(damaged(format!("it is longer than {MAX_LINE_BYTES} bytes")));
        }
        if !line.iter().all(u8::is_ascii_whitespace) {
            match follows(&line, trace, extent.head) {
                Ok(event) if ended || end == End::Reading => {
                    extent.head = event.event_hash();
                    extent.events += 1;
                    take(number, event)?;
                }
                Err(why) if ended => return Err(damaged(why)),
                _ => {
                    extent.torn = length.saturating_sub(extent.complete);
                    return Ok(extent);
                }
            }
        } else if !ended {
            // The ledger's end, or white space behind it.
            extent.torn = length.saturating_sub(extent.complete);
            return Ok(extent);
        }
        extent.complete += read as u64;
    }
}

/// The event of a line, if it is one of this trace and follows the one with this hash.
fn follows(line: &[u8], trace: TraceId, head: Digest) -> Result<Event, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8")?;
    let event = Event::parse(text.trim_end_matches(['\n', '\r'])).map_err(|why| why.to_string())?;
    if event.trace_id() != trace {
        return Err("it belongs to another trace".into());
    }
    if event.prev_event_hash() != head {
        return Err("it does not follow the line before".into());
    }
    Ok(event)
}

/// Moves what is behind the last line end into a file of its own, `events.torn-<n>.jsonl`, and only then cuts it off.
pub(crate) fn set_aside(path: &Path, extent: &Extent) -> Result<Option<Torn>, StoreError> {
    if extent.torn == 0 {
        return Ok(None);
    }
    let failed = |error| StoreError::io("set aside the torn end of", path, error);
    let mut file = File::open(path).map_err(failed)?;
    file.seek(SeekFrom::Start(extent.complete)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(extent.torn).read_to_end(&mut bytes).map_err(failed)?;
    let free = (1..=MAX_TORN).map(|n| path.with_file_name(format!("events.torn-{n}.jsonl")));
    let aside = free.into_iter().find(|path| !path.exists());
    let aside = aside.ok_or_else(|| StoreError::Exists(path.with_file_name("events.torn-*.jsonl")))?;
    disk::write_whole(&aside, &bytes)?;
    let ledger = disk::open_tail(path)?;
    ledger.set_len(extent.complete).and_then(|()| ledger.sync_all()).map_err(failed)?;
    Ok(Some(Torn { path: aside, bytes: extent.torn }))
}
