//! What an edit makes of a file's content: pure, on bytes, so that everything outside the edited place stays exactly
//! as it was, whatever its encoding and line ends.

/// A change to a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit<'a> {
    /// The content replaces everything.
    Overwrite,
    /// The content follows what is there, byte for byte.
    Append,
    /// The content becomes lines before this line (1-based); one past the last line puts it at the end.
    Insert {
        /// The line.
        line: u64,
    },
    /// The content replaces these lines (1-based, both included); empty content removes them.
    Lines {
        /// First line replaced.
        from: u64,
        /// Last line replaced.
        to: u64,
    },
    /// The content replaces the one place where this text stands.
    Text {
        /// The text.
        find: &'a str,
    },
}

/// Why an edit does not fit a file. Each sentence is written for the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// Only overwrite and append make files.
    #[error("the file does not exist; use mode overwrite to create it")]
    Missing,
    /// A line outside the file.
    #[error("line {line} is outside the file, which has {lines} lines; read it again for the numbers")]
    NoSuchLine {
        /// The line asked for.
        line: u64,
        /// How many there are.
        lines: u64,
    },
    /// A range that ends before it begins.
    #[error("from ({from}) is after to ({to})")]
    Backwards {
        /// First line.
        from: u64,
        /// Last line.
        to: u64,
    },
    /// The text is not in the file.
    #[error("the text to find is not in the file{hint}; read the file and copy it exactly")]
    NotFound {
        /// What may be the matter.
        hint: &'static str,
    },
    /// The text is in the file more than once.
    #[error(
        "the text to find stands {times} times in the file; add lines around it until it stands there only once"
    )]
    Ambiguous {
        /// How often.
        times: usize,
    },
}

/// The content after the edit. `old` is `None` where there is no file yet.
pub fn apply(old: Option<&[u8]>, edit: Edit<'_>, content: &[u8]) -> Result<Vec<u8>, EditError> {
    match (edit, old) {
        (Edit::Overwrite, _) | (Edit::Append, None) => Ok(content.to_vec()),
        (Edit::Append, Some(old)) => Ok([old, content].concat()),
        (_, None) => Err(EditError::Missing),
        (Edit::Insert { line }, Some(old)) => {
            let lines = count_lines(old);
            let at = if line == lines + 1 { Some(old.len()) } else { line_start(old, line) };
            let at = at.ok_or(EditError::NoSuchLine { line, lines })?;
            Ok(splice_lines(old, at, at, content))
        }
        (Edit::Lines { from, to }, Some(old)) => {
            if from > to {
                return Err(EditError::Backwards { from, to });
            }
            let lines = count_lines(old);
            let begin = line_start(old, from).ok_or(EditError::NoSuchLine { line: from, lines })?;
            let end = if to == lines { Some(old.len()) } else { line_start(old, to.saturating_add(1)) };
            let end = end.ok_or(EditError::NoSuchLine { line: to, lines })?;
            Ok(splice_lines(old, begin, end, content))
        }
        (Edit::Text { find }, Some(old)) => {
            let mut places = occurrences(old, find.as_bytes());
            let Some(at) = places.next() else {
                let crlf = find.contains('\n')
                    && occurrences(old, find.replace('\n', "\r\n").as_bytes()).next().is_some();
                let hint = if crlf { " as written (its lines end with CR LF)" } else { "" };
                return Err(EditError::NotFound { hint });
            };
            match places.count() {
                0 => Ok(splice(old, at, at + find.len(), content)),
                more => Err(EditError::Ambiguous { times: more + 1 }),
            }
        }
    }
}

/// Lines in a text; a last line needs no line break, an empty file has none.
#[must_use]
pub fn count_lines(text: &[u8]) -> u64 {
    let breaks = text.iter().filter(|byte| **byte == b'\n').count() as u64;
    breaks + u64::from(text.last().is_some_and(|byte| *byte != b'\n'))
}

/// Where a line (1-based) begins.
fn line_start(text: &[u8], line: u64) -> Option<usize> {
    if line == 0 || line > count_lines(text) {
        return None;
    }
    if line == 1 {
        return Some(0);
    }
    let mut breaks = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    breaks.nth(usize::try_from(line - 2).ok()?)
}

fn splice(old: &[u8], begin: usize, end: usize, new: &[u8]) -> Vec<u8> {
    let (head, tail) = (old.get(..begin).unwrap_or_default(), old.get(end..).unwrap_or_default());
    [head, new, tail].concat()
}

/// As [`splice`], for whole lines: a line break is added where lines would otherwise run together.
fn splice_lines(old: &[u8], begin: usize, end: usize, new: &[u8]) -> Vec<u8> {
    let head = old.get(..begin).unwrap_or_default();
    let tail = old.get(end..).unwrap_or_default();
    let mut text = head.to_vec();
    if !new.is_empty() && head.last().is_some_and(|byte| *byte != b'\n') {
        text.push(b'\n');
    }
    text.extend_from_slice(new);
    // At the end of the file a break is added only if the file's last line had one.
    let had_break = !tail.is_empty() || old.ends_with(b"\n") || old.is_empty();
    if had_break && new.last().is_some_and(|byte| *byte != b'\n') {
        text.push(b'\n');
    }
    text.extend_from_slice(tail);
    text
}

/// Where `find` stands, without overlaps.
fn occurrences<'a>(text: &'a [u8], find: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let mut from = 0;
    std::iter::from_fn(move || {
        if find.is_empty() {
            return None;
        }
        let rest = text.get(from..)?;
        // Looks for the first byte before it compares, which keeps long files quick.
        let first = find.first()?;
        let mut at = 0;
        loop {
            at += rest.get(at..)?.iter().position(|byte| byte == first)?;
            if rest.get(at..)?.starts_with(find) {
                let found = from + at;
                from = found + find.len();
                return Some(found);
            }
            at += 1;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edited(old: &str, edit: Edit<'_>, content: &str) -> Result<String, EditError> {
        apply(Some(old.as_bytes()), edit, content.as_bytes()).map(|new| String::from_utf8(new).unwrap())
    }

    #[test]
    fn lines_are_inserted_and_replaced_as_whole_lines() {
        for (old, edit, content, new) in [
            ("a\nb\n", Edit::Insert { line: 1 }, "x", "x\na\nb\n"),
            ("a\nb\n", Edit::Insert { line: 2 }, "x\n", "a\nx\nb\n"),
            ("a\nb\n", Edit::Insert { line: 3 }, "x", "a\nb\nx\n"),
            ("a\nb", Edit::Insert { line: 3 }, "x", "a\nb\nx"),
            ("", Edit::Insert { line: 1 }, "x", "x\n"),
            ("a\nb\nc\n", Edit::Lines { from: 2, to: 2 }, "x", "a\nx\nc\n"),
            ("a\nb\nc\n", Edit::Lines { from: 1, to: 3 }, "", ""),
            ("a\nb\nc", Edit::Lines { from: 3, to: 3 }, "x", "a\nb\nx"),
            ("a\nb\nc", Edit::Lines { from: 1, to: 2 }, "x", "x\nc"),
            ("a\r\nb\r\n", Edit::Lines { from: 2, to: 2 }, "x\r\n", "a\r\nx\r\n"),
            ("one two", Edit::Text { find: "two" }, "three", "one three"),
            ("a", Edit::Append, "b", "ab"),
            ("a", Edit::Overwrite, "b", "b"),
        ] {
            assert_eq!(edited(old, edit, content).unwrap(), new, "{old:?} {edit:?}");
        }
    }

    #[test]
    fn an_edit_that_does_not_fit_says_what_to_do() {
        assert_eq!(apply(None, Edit::Insert { line: 1 }, b"x"), Err(EditError::Missing));
        assert_eq!(
            edited("a\nb\n", Edit::Insert { line: 4 }, "x"),
            Err(EditError::NoSuchLine { line: 4, lines: 2 })
        );
        assert_eq!(
            edited("a\n", Edit::Lines { from: 1, to: u64::MAX }, "x"),
            Err(EditError::NoSuchLine { line: u64::MAX, lines: 1 })
        );
        assert_eq!(edited("aXbX", Edit::Text { find: "X" }, "y"), Err(EditError::Ambiguous { times: 2 }));
        let crlf = edited("a\r\nb\r\n", Edit::Text { find: "a\nb" }, "y").unwrap_err();
        assert!(crlf.to_string().contains("CR LF"), "{crlf}");
    }

    proptest! {
        #[test]
        fn what_is_outside_the_edited_lines_stays(
            old in prop::collection::vec("[a-c\r]{0,4}", 1..12),
            new in prop::collection::vec("[x-z]{1,4}", 0..4),
            at in 0usize..12, len in 0usize..12,
        ) {
            let from = at % old.len();
            let to = (from + len % old.len()).min(old.len() - 1);
            let whole = format!("{}\n", old.join("\n"));
            let edit = Edit::Lines { from: from as u64 + 1, to: to as u64 + 1 };
            let content = new.join("\n");
            let mut model: Vec<&str> = old.iter().map(String::as_str).collect();
            model.splice(from..=to, new.iter().map(String::as_str));
            let model = model.iter().map(|line| format!("{line}\n")).collect::<String>();
            prop_assert_eq!(edited(&whole, edit, &content).unwrap(), model);
        }

        #[test]
        fn no_edit_panics(
            old in prop::collection::vec(any::<u8>(), 0..60), content in any::<String>(),
            find in ".{0,3}", a in any::<u64>(), b in any::<u64>(), small in 0u64..6,
        ) {
            for edit in [
                Edit::Insert { line: a }, Edit::Insert { line: small }, Edit::Lines { from: a, to: b },
                Edit::Lines { from: small, to: b }, Edit::Lines { from: small, to: small },
                Edit::Text { find: &find }, Edit::Append, Edit::Overwrite,
            ] {
                let _ = apply(Some(&old), edit, content.as_bytes());
                let _ = apply(None, edit, content.as_bytes());
            }
        }
    }
}
