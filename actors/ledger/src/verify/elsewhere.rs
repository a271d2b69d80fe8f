//! Whether this trace's event ids are used in other traces of the home (R08). Other ledgers are skimmed, not judged: only the
//! ids on their lines are read.

use super::home::Home;
use super::lines::Lines;
use crate::id::TraceId;
use crate::json::{self, Value};
use std::path::Path;

/// Calls `found` with every event id in the home's other traces. What cannot be read there is passed over: it is a matter for
/// that trace's own verification.
pub(super) fn each_event_id(home: &dyn Home, trace: TraceId, mut found: impl FnMut(&str)) {
    for name in home.traces().unwrap_or_default() {
        let Ok(other) = name.parse::<TraceId>() else { continue };
        if other == trace {
            continue;
        }
        let Ok(Some(ledger)) = home.open(Path::new(&crate::layout::events(other))) else { continue };
        let mut lines = Lines::new(ledger);
        while let Ok(Some(chunk)) = lines.next_chunk() {
            for line in chunk.lines {
                let bytes = chunk.bytes.get(line.bytes).unwrap_or_default();
                if let Some(id) = event_id(bytes) {
                    found(&id);
                }
            }
        }
    }
}

/// The event id on a line. Most lines are in the form in which they were written, where a search finds it; the others are
/// parsed.
fn event_id(line: &[u8]) -> Option<String> {
    const MEMBER: &str = "\"event_id\":\"";
    let text = std::str::from_utf8(line).ok()?;
    let head = text.split_once("\"payload\"").map_or(text, |(head, _)| head);
    // Before any nested object and without escapes, the first such text is the member itself.
    if let Some((before, after)) = head.split_once(MEMBER)
        && before.strip_prefix('{').is_some_and(|members| !members.contains(['{', '\\']))
        && text.matches("event_id").count() == 1
        && !text.contains("\\u")
    {
        return after.split_once('"').map(|(id, _)| id.to_owned());
    }
    let (value, _) = json::parse(text).ok()?;
    value.get("event_id").and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::event_id;

    #[test]
    fn the_id_of_a_line_is_found_however_it_is_written() {
        for (line, id) in [
            (r#"{"trace_id":"T","event_id":"E","payload":{"event_id":"X"}}"#, Some("E")),
            (r#"{"payload":{"event_id":"X"},"event_id":"E"}"#, Some("E")),
            (r#"{ "event_id" : "E" }"#, Some("E")),
            (r#"{"event\u005fid":"E"}"#, Some("E")),
            (r#"{"event_id":"X","event_id":"E"}"#, Some("E")),
            (r#"{"event_id":"X","event\u005fid":"E"}"#, Some("E")),
            (r#"{"note":"\"event_id\":\"X\"","event_id":"E"}"#, Some("E")),
            (r#"{"event_id":7}"#, None),
            ("garbage", None),
        ] {
            assert_eq!(event_id(line.as_bytes()).as_deref(), id, "{line}");
        }
    }
}
