//! Lines of a file or of standard input, each within a bound.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::control::{ControlError, ErrorCode};

/// Reads one line after another.
pub(super) struct Lines {
    reader: Box<dyn BufRead + Send>,
    limit: usize,
    number: u64,
}

impl Lines {
    /// Lines of this file; `-` for standard input. No line may be longer than `limit` bytes.
    pub(super) fn open(path: &Path, limit: usize) -> Result<Self, ControlError> {
        let reader: Box<dyn BufRead + Send> = if path.as_os_str() == "-" {
            Box::new(BufReader::new(std::io::stdin()))
        } else {
            let file = File::open(path).map_err(|error| {
                ControlError::new(ErrorCode::Runtime, format!("{}: {error}", path.display()))
            })?;
            Box::new(BufReader::new(file))
        };
        Ok(Self { reader, limit, number: 0 })
    }

    /// The next line without its break, or none at the end.
    pub(super) fn next(&mut self) -> Result<Option<String>, ControlError> {
        let mut line = Vec::new();
        let most = u64::try_from(self.limit).unwrap_or(u64::MAX).saturating_add(1);
        let failed = |why: String| ControlError::new(ErrorCode::Runtime, why);
        (&mut self.reader)
            .take(most)
            .read_until(b'\n', &mut line)
            .map_err(|error| failed(error.to_string()))?;
        if line.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() > self.limit {
            return Err(failed(format!(
                "line {} is longer than {} bytes: this is no log",
                self.number, self.limit
            )));
        }
        let number = self.number;
        String::from_utf8(line)
            .map(Some)
            .map_err(|_| failed(format!("line {number} is not UTF-8: this is no log")))
    }
}
