//! The journal's files: two segments of fixed size, written in turn. They are made full of zeroes once and then only
//! overwritten in place, so that making a record durable changes no file's size and moves no block, which is half of what
//! a sync costs otherwise; and a disk that is full cannot refuse it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use super::record::{self, Key, Record};

/// Bytes of a segment: two thousand records of busy workspaces, so that making the tables safe is seldom, and a tenth of a
/// second's work after a crash.
pub(super) const SEGMENT: u64 = 8 * 1024 * 1024;

/// Names of the segments' files.
const NAMES: [&str; 2] = ["journal.0", "journal.1"];

/// How a segment is written where the file system can: past the page cache, and durable when the write returns.
const DIRECT: OFlags = OFlags::DIRECT.union(OFlags::DSYNC);

/// How it is written elsewhere.
const BUFFERED: OFlags = OFlags::DSYNC;

/// What a segment is filled with at a time.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

/// Where the next record goes.
#[derive(Debug)]
pub(super) struct Journal {
    current: Segment,
    /// The segment that is not written to, and the newest record in it.
    other: Segment,
    other_newest: u64,
    /// Where in the current segment the next record goes.
    at: u64,
    /// The number of the next record.
    next: u64,
    /// A record whose write failed lies at `at`, and may or may not be read after a crash.
    doubtful: bool,
    /// Room for a record that begins at a block's boundary, as writing past the page cache wants it.
    aligned: Vec<u8>,
}

#[derive(Debug)]
struct Segment {
    /// For records: what is written is durable.
    records: File,
    /// For everything else.
    whole: File,
}

impl Journal {
    /// Opens the journal of a folder, which is made if it is not there, and reads what is in it.
    pub(super) fn open(folder: &Path, key: &Key) -> io::Result<(Self, Vec<Record>)> {
        let mut found = Vec::new();
        let mut segment = |name| {
            let segment = Segment::open(&folder.join(name))?;
            found.extend(record::scan(key, SEGMENT, |into, at| segment.whole.read_exact_at(into, at))?);
            io::Result::Ok(segment)
        };
        let [current, other] = [segment(NAMES[0])?, segment(NAMES[1])?];
        let (other_newest, at, next, doubtful, aligned) = (0, 0, 1, false, Vec::new());
        Ok((Self { current, other, other_newest, at, next, doubtful, aligned }, found))
    }

    /// Begins anew with this record, at the start. Whatever else is in the journal must be safe in the tables.
    pub(super) const fn restart(&mut self, next: u64) {
        self.at = 0;
        self.other_newest = 0;
        self.next = next;
    }

    /// The number of the next record.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Whether the current segment has room for so many bytes.
    pub(super) const fn has_room(&self, bytes: usize) -> bool {
        self.at.saturating_add(bytes as u64) <= SEGMENT
    }

    /// The newest record that is lost when the segments change places.
    pub(super) const fn overwritten_by_turning(&self) -> u64 {
        self.other_newest
    }

    /// The newest record there is.
    pub(super) const fn newest(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    /// Goes on in the other segment, over what is in it.
    pub(super) fn turn(&mut self) {
        std::mem::swap(&mut self.current, &mut self.other);
        self.other_newest = self.newest();
        self.at = 0;
    }

    /// Writes the next record, for which there is room, and makes it durable.
    ///
    /// # Errors
    /// It may be there or not; see [`Journal::clear`].
    pub(super) fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.doubtful = true;
        self.write(record)?;
        self.doubtful = false;
        self.at += record.len() as u64;
        self.next += 1;
        Ok(())
    }

    /// Makes sure that a record whose write failed is not there.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        if self.doubtful {
            self.write(&ZEROES[..record::BLOCK])?;
            self.doubtful = false;
        }
        Ok(())
    }

    /// Writes whole blocks where the next record goes, and makes them durable.
    fn write(&mut self, blocks: &[u8]) -> io::Result<()> {
        self.aligned.resize(self.aligned.len().max(blocks.len() + record::BLOCK), 0);
        let start = self.aligned.as_ptr().align_offset(record::BLOCK);
        let Some(place) = self.aligned.get_mut(start..start + blocks.len()) else {
            return Err(io::Error::other("no room at a block's boundary"));
        };
        place.copy_from_slice(blocks);
        self.current.records.write_all_at(place, self.at)
    }

    /// Overwrites everything, since something in it was erased. All of it must be safe in the tables.
    pub(super) fn wipe(&mut self) -> io::Result<()> {
        for segment in [&self.current, &self.other] {
            zero(&segment.whole)?;
        }
        self.doubtful = false;
        self.restart(self.next);
        Ok(())
    }
}

impl Segment {
    /// A segment's file, of its full size.
    fn open(path: &Path) -> io::Result<Self> {
        let options = || OpenOptions::new().read(true).write(true).clone();
        let whole = options().create(true).truncate(false).mode(0o600).open(path)?;
        if whole.metadata()?.len() < SEGMENT {
            // New, or the making of it was interrupted: then nothing was ever written to it.
            zero(&whole)?;
        }
        let records = |how: OFlags| options().custom_flags(how.bits().cast_signed()).open(path);
        let records = match records(DIRECT) {
            Ok(direct) if takes_blocks(&direct) => direct,
            // tmpfs, for one.
            _ => records(BUFFERED)?,
        };
        Ok(Self { records, whole })
    }
}

/// Whether a file opened past the page cache is content with blocks of our size: reading wants what writing wants.
fn takes_blocks(file: &File) -> bool {
    let mut room = vec![0; 2 * record::BLOCK];
    let start = room.as_ptr().align_offset(record::BLOCK);
    room.get_mut(start..start + record::BLOCK).is_some_and(|block| file.read_exact_at(block, 0).is_ok())
}

fn zero(file: &File) -> io::Result<()> {
    for at in (0..SEGMENT).step_by(ZEROES.len()) {
        file.write_all_at(&ZEROES, at)?;
    }
    (&*file).flush()?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A_KEY: Key = [3; 32];

    fn numbers(folder: &Path) -> Vec<u64> {
        let (_, mut found) = Journal::open(folder, &A_KEY).unwrap();
        found.sort_unstable_by_key(|record| record.number);
        found.iter().map(|record| record.number).collect()
    }

    #[test]
    fn a_record_whose_write_failed_is_not_there_once_it_was_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(folder.path(), &A_KEY).unwrap();
        let record = |number| record::encode(&A_KEY, number, &[]).unwrap();
        journal.append(&record(1)).unwrap();
        // The disk refuses, though what was written may be there.
        let refusing = File::open(folder.path().join(NAMES[0])).unwrap();
        let good = std::mem::replace(&mut journal.current.records, refusing);
        journal.current.whole.write_all_at(&record(2), journal.at).unwrap();
        assert!(journal.append(&record(2)).is_err() && journal.clear().is_err());
        assert_eq!(numbers(folder.path()), [1, 2]);
        journal.current.records = good;
        journal.clear().unwrap();
        assert_eq!(numbers(folder.path()), [1]);
        assert_eq!(journal.next(), 2);
        journal.append(&record(2)).unwrap();
        assert_eq!(numbers(folder.path()), [1, 2]);
    }

    #[test]
    fn segments_take_turns_and_a_wiped_journal_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(folder.path(), &A_KEY).unwrap();
        let mut turns = 0;
        let each = SEGMENT / record::BLOCK as u64;
        for number in 1..=each * 5 / 2 {
            let record = record::encode(&A_KEY, number, &[]).unwrap();
            if !journal.has_room(record.len()) {
                assert_eq!(journal.overwritten_by_turning(), each * turns);
                journal.turn();
                turns += 1;
                assert_eq!(journal.newest(), each * turns);
            }
            // Not through the disk's cache each time: what counts is where it goes.
            journal.current.whole.write_all_at(&record, journal.at).unwrap();
            journal.at += record.len() as u64;
            journal.next += 1;
        }
        assert_eq!(turns, 2);
        // The first segment's second half is of its first turn still.
        let found = numbers(folder.path());
        assert_eq!((found.len() as u64, found.last()), (each * 2, Some(&(each * 5 / 2))));
        journal.wipe().unwrap();
        assert!(numbers(folder.path()).is_empty());
    }
}
