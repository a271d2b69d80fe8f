//! Lines of bounded length over any stream of bytes. A line that is too long is skipped to its end and reported, so one
//! bad request does not cost the connection.

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end.
    Text(String),
    /// Longer than the limit; skipped.
    TooLong,
    /// Not UTF-8; skipped.
    NotText,
    /// The stream is over. A last line without an end counts as cut off and is dropped.
    End,
}

/// Reads the next line of at most `limit` bytes.
///
/// Not cancel-safe in the middle of a line: whoever stops waiting must stop reading.
pub async fn read_line<R: AsyncBufRead + Unpin>(reader: &mut R, limit: usize) -> std::io::Result<Line> {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let available = reader.fill_buf().await?;
        if available.is_empty() {
            return Ok(Line::End);
        }
        let end = available.iter().position(|b| *b == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        if line.len() + part.len() > limit {
            too_long = true;
            line = Vec::new();
        }
        if !too_long {
            line.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        reader.consume(used);
        if end.is_some() {
            return Ok(if too_long {
                Line::TooLong
            } else {
                String::from_utf8(line).map_or(Line::NotText, Line::Text)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::BufReader;

    async fn all(bytes: &[u8], limit: usize, chunk: usize) -> Vec<Line> {
        let mut reader = BufReader::with_capacity(chunk, bytes);
        let mut lines = Vec::new();
        loop {
            match read_line(&mut reader, limit).await.unwrap() {
                Line::End => return lines,
                line => lines.push(line),
            }
        }
    }

    #[tokio::test]
    async fn a_long_line_and_a_broken_one_are_skipped_and_the_next_is_read() {
        let lines = all(b"short\nmuch too long\n\xff\nnext\ncut", 8, 3).await;
        assert_eq!(
            lines,
            [Line::Text("short".into()), Line::TooLong, Line::NotText, Line::Text("next".into())]
        );
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_bytes_arrive(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
            chunk in 1usize..40,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (a, b) = runtime.block_on(async { (all(&bytes, 16, chunk).await, all(&bytes, 16, 4096).await) });
            prop_assert_eq!(a, b);
        }
    }
}
