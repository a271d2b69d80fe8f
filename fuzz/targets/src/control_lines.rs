//! The control socket, in both directions: what choird reads of any client of its user, and what `choirctl` reads of
//! whatever answers there.

use choir_host::control::lines::{Line, read_line};
use choir_host::control::{CONTROL_VERSION, ErrorCode, ReplyLine, RequestLine};
use tokio::io::BufReader;

use crate::{Input, assert_one_line, block_on};

/// Longest line here; choird's own bound is only larger.
const LINE_BYTES: usize = 4096;

/// Longest sentence that a request gets back which cannot be read: it is said, not the request repeated.
const SENTENCE_BYTES: usize = 2500;

/// The input is the size of each read (one byte), then what comes over the socket. The lines are those that a plain
/// split gives. A request or an answer that is read writes itself as one line that reads back the same; any other
/// request gets one short sentence under its id.
pub fn control_lines(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let chunk = 1 + usize::from(input.byte().unwrap_or_default());
    let bytes = input.rest();
    let mut expected = bytes.split(|byte| *byte == b'\n').collect::<Vec<_>>();
    // What follows the last line end is cut off.
    expected.pop();
    let lines = block_on(lines(BufReader::with_capacity(chunk, bytes)));
    assert_eq!(lines.len(), expected.len());
    let mut understood = false;
    for (raw, line) in expected.into_iter().zip(lines) {
        if raw.len() > LINE_BYTES {
            assert_eq!(line, Line::TooLong);
        } else if let Ok(text) = std::str::from_utf8(raw) {
            understood |= request(text) | answer(text);
            assert_eq!(line, Line::Text(text.to_owned()));
        } else {
            assert_eq!(line, Line::NotText);
        }
    }
    understood
}

async fn lines(mut reader: BufReader<&[u8]>) -> Vec<Line> {
    let mut lines = Vec::new();
    loop {
        match read_line(&mut reader, LINE_BYTES).await.expect("memory can be read") {
            Line::End => return lines,
            line => lines.push(line),
        }
    }
}

fn request(text: &str) -> bool {
    match RequestLine::read(text) {
        Ok(request) => {
            assert_eq!(request.v, CONTROL_VERSION);
            let line = serde_json::to_string(&request).expect("a request is text");
            assert!(!line.contains('\n'));
            assert_eq!(RequestLine::read(&line).as_ref(), Ok(&request));
            true
        }
        Err((_, error)) => {
            assert_eq!(error.code, ErrorCode::Usage);
            assert!(error.what.len() <= SENTENCE_BYTES, "{} bytes", error.what.len());
            assert_one_line(&error.what);
            false
        }
    }
}

fn answer(text: &str) -> bool {
    let Ok(answer) = serde_json::from_str::<ReplyLine>(text) else { return false };
    let line = serde_json::to_string(&answer).expect("an answer is text");
    assert!(!line.contains('\n'));
    assert_eq!(serde_json::from_str::<ReplyLine>(&line).ok().as_ref(), Some(&answer));
    true
}
