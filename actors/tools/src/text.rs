//! Fitting text into bounds: how long a text is as JSON, where to cut it, and keeping the head and the tail of a
//! stream that may be far longer than memory.

use std::collections::VecDeque;

/// Bytes this character takes inside a JSON string, as serde_json and RFC 8785 write it.
const fn json_width(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => c.len_utf8(),
    }
}

/// Bytes of this text inside a JSON string, without the quotes.
#[must_use]
pub fn json_len(text: &str) -> usize {
    text.chars().map(json_width).sum()
}

/// The longest beginning of the text that takes at most `budget` bytes inside a JSON string.
#[must_use]
pub fn cut(text: &str, budget: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += json_width(c);
        if used > budget {
            return text.get(..at).unwrap_or_default();
        }
    }
    text
}

/// The longest end of the text that takes at most `budget` bytes inside a JSON string.
#[must_use]
pub fn cut_start(text: &str, budget: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices().rev() {
        used += json_width(c);
        if used > budget {
            return text.get(at + c.len_utf8()..).unwrap_or_default();
        }
    }
    text
}

/// A foreign text as it may be quoted in a sentence: short, on one line.
#[must_use]
pub fn quote(text: &str) -> String {
    let short = cut(text, crate::limits::QUOTE_BYTES);
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", short.escape_debug())
}

/// The head and the tail of a stream: at most `keep` bytes of each, and how many fell out between them.
#[derive(Debug)]
pub struct HeadTail {
    keep: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl HeadTail {
    /// Keeps `keep` bytes from the beginning and as many from the end.
    #[must_use]
    pub fn new(keep: usize) -> Self {
        Self { keep, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    /// The stream goes on.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = self.keep.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        // Of a chunk larger than the tail only its end can stay.
        let rest = rest.get(rest.len().saturating_sub(self.keep)..).unwrap_or_default();
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.keep);
        self.tail.drain(..over);
    }

    /// Bytes that have passed.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The stream as text of at most `budget` bytes inside a JSON string, and how many of its bytes are not shown.
    /// Bytes that are not UTF-8 show as U+FFFD. Where something is missing, a line says so.
    #[must_use]
    pub fn render(&self, budget: usize) -> (String, u64) {
        let mut bytes = self.head.clone();
        let (front, back) = self.tail.as_slices();
        let whole = self.total == (self.head.len() + self.tail.len()) as u64;
        if whole {
            bytes.extend_from_slice(front);
            bytes.extend_from_slice(back);
            let text = String::from_utf8_lossy(&bytes);
            if json_len(&text) <= budget {
                return (text.into_owned(), 0);
            }
            let (head, tail) = halves(&text, budget);
            return self.joined(head, tail);
        }
        let head = String::from_utf8_lossy(&self.head);
        let tail: Vec<u8> = front.iter().chain(back).copied().collect();
        let tail = String::from_utf8_lossy(&tail);
        let half = budget.saturating_sub(MARK_BYTES) / 2;
        self.joined(cut(&head, half), cut_start(&tail, half))
    }

    fn joined(&self, head: &str, tail: &str) -> (String, u64) {
        // Replacement characters make the shown text longer than its bytes; the count is then the lower bound.
        let missing = self.total.saturating_sub((head.len() + tail.len()) as u64);
        (format!("{head}\n[… {missing} bytes cut …]\n{tail}"), missing)
    }
}

/// Room for the line that says how much was cut.
const MARK_BYTES: usize = 64;

fn halves(text: &str, budget: usize) -> (&str, &str) {
    let half = budget.saturating_sub(MARK_BYTES) / 2;
    (cut(text, half), cut_start(text, half))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_length_of_a_text_as_json_is_what_the_encoder_writes(text in any::<String>()) {
            prop_assert_eq!(json_len(&text) + 2, serde_json::to_string(&text).unwrap().len());
        }

        #[test]
        fn a_cut_text_fits_and_one_more_character_would_not(text in any::<String>(), budget in 0usize..200) {
            let head = cut(&text, budget);
            prop_assert!(text.starts_with(head) && json_len(head) <= budget);
            if let Some(next) = text[head.len()..].chars().next() {
                prop_assert!(json_len(head) + json_width(next) > budget);
            }
            let tail = cut_start(&text, budget);
            prop_assert!(text.ends_with(tail) && json_len(tail) <= budget);
        }

        #[test]
        fn a_stream_keeps_its_head_and_tail_however_it_is_chunked(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
            keep in 1usize..30,
        ) {
            let mut kept = HeadTail::new(keep);
            for chunk in &chunks {
                kept.push(chunk);
            }
            let all: Vec<u8> = chunks.concat();
            prop_assert_eq!(kept.total(), all.len() as u64);
            prop_assert_eq!(&kept.head[..], &all[..keep.min(all.len())]);
            let rest = &all[kept.head.len()..];
            let tail: Vec<u8> = kept.tail.iter().copied().collect();
            prop_assert_eq!(&tail[..], &rest[rest.len().saturating_sub(keep)..]);
            let (text, _) = kept.render(400);
            prop_assert!(json_len(&text) <= 400);
        }
    }

    #[test]
    fn a_stream_that_fits_is_shown_whole() {
        let mut kept = HeadTail::new(4);
        kept.push(b"abcdefgh");
        assert_eq!(kept.render(100), ("abcdefgh".to_owned(), 0));
        kept.push(b"i");
        assert_eq!(kept.render(200), ("abcd\n[… 1 bytes cut …]\nfghi".to_owned(), 1));
    }
}
