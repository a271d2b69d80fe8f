//! Cutting a ledger into lines, in chunks small enough to hand to a worker and to forget afterwards.

use std::io::{self, Read};
use std::ops::Range;

/// The longest line that is looked at. Events of ours are a few kilobytes; 16 MiB leaves room for large payloads and
/// bounds what one line can make the verifier hold (about ten times that, for its parsed form).
pub const MAX_LINE: usize = 16 << 20;

/// A chunk is handed on when it holds this many bytes: some three milliseconds of work.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes asked of the file at a time.
const BLOCK: usize = 64 << 10;

/// One line of a chunk.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: u64,
    /// Where in the chunk's bytes, without the line end. Empty if it was too long.
    pub(super) bytes: Range<usize>,
    /// Whether a line end follows.
    pub(super) ended: bool,
    /// Whether it was longer than [`MAX_LINE`], and was passed over.
    pub(super) too_long: bool,
}

/// Some consecutive lines.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) lines: Vec<Line>,
}

/// Cuts what it reads into chunks.
pub(super) struct Lines<R> {
    reader: R,
    /// Read, but not yet a whole line.
    rest: Vec<u8>,
    number: u64,
    /// In the middle of a line that is too long.
    skipping: bool,
    done: bool,
    max_line: usize,
}

impl<R: Read> Lines<R> {
    pub(super) const fn new(reader: R) -> Self {
        Self { reader, rest: Vec::new(), number: 0, skipping: false, done: false, max_line: MAX_LINE }
    }

    /// The next lines; nothing at the end.
    pub(super) fn next_chunk(&mut self) -> io::Result<Option<Chunk>> {
        let mut chunk = Chunk { bytes: std::mem::take(&mut self.rest), lines: Vec::new() };
        // Where the unfinished line begins, and from where no line end was looked for yet.
        let (mut start, mut scanned) = (0, 0);
        while !self.done {
            while let Some(at) = memchr::memchr(b'\n', chunk.bytes.get(scanned..).unwrap_or_default()) {
                let end = scanned + at;
                self.push(&mut chunk, start..end, true);
                start = end + 1;
                scanned = start;
            }
            scanned = chunk.bytes.len();
            if scanned - start > self.max_line {
                // Nothing of this line is kept, so that its length costs nothing.
                self.skipping = true;
                chunk.bytes.truncate(start);
                scanned = start;
            }
            if start >= CHUNK_BYTES {
                break;
            }
            let more = (&mut self.reader).take(BLOCK as u64).read_to_end(&mut chunk.bytes)?;
            self.done = more == 0;
        }
        if self.done && (start < chunk.bytes.len() || self.skipping) {
            let end = chunk.bytes.len();
            self.push(&mut chunk, start..end, false);
        } else {
            self.rest = chunk.bytes.split_off(start);
        }
        Ok((!chunk.lines.is_empty()).then_some(chunk))
    }

    fn push(&mut self, chunk: &mut Chunk, bytes: Range<usize>, ended: bool) {
        self.number += 1;
        let too_long = std::mem::take(&mut self.skipping) || bytes.len() > self.max_line;
        let bytes = if too_long { bytes.start..bytes.start } else { bytes };
        chunk.lines.push(Line { number: self.number, bytes, ended, too_long });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(text: &[u8], max_line: usize) -> Vec<(u64, Vec<u8>, bool, bool)> {
        let mut lines = Lines { max_line, ..Lines::new(text) };
        let mut out = Vec::new();
        while let Some(chunk) = lines.next_chunk().unwrap() {
            for line in chunk.lines {
                out.push((line.number, chunk.bytes[line.bytes].to_vec(), line.ended, line.too_long));
            }
        }
        out
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_and_the_next_one_read() {
        let long = "x".repeat(3 * BLOCK);
        let text = format!("a\n{long}\nb\n{long}");
        let expected = [
            (1, b"a".to_vec(), true, false),
            (2, vec![], true, true),
            (3, b"b".to_vec(), true, false),
            (4, vec![], false, true),
        ];
        assert_eq!(cut(text.as_bytes(), 100), expected);
    }

    proptest! {
        #[test]
        fn the_lines_are_those_of_the_text(parts in proptest::collection::vec("[a-z]{0,9}", 0..9), ended: bool, big in 0usize..3) {
            let mut parts = parts;
            if let Some(first) = parts.first_mut() {
                first.push_str(&"y".repeat(big * CHUNK_BYTES));
            }
            let mut text = parts.join("\n");
            if ended {
                text.push('\n');
            }
            let expected: Vec<&str> = text.split_terminator('\n').collect();
            let got = cut(text.as_bytes(), MAX_LINE);
            prop_assert_eq!(got.iter().map(|line| String::from_utf8(line.1.clone()).unwrap()).collect::<Vec<_>>(), expected);
            prop_assert!(got.iter().enumerate().all(|(index, line)| line.0 == index as u64 + 1 && !line.3));
        }
    }
}
