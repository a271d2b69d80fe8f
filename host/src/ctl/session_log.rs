//! A session's log as a portable file, and its offline verification. Sans-IO: lines in, lines or a verdict out.
//!
//! Format `choir-session-log/1`, one JSON value a line: a header `{"format","session"}`, then `{"event","hash"}` for each
//! event in order, then a trailer `{"events","head"}`. `event` is the hashed part of the event; its canonical form hashes
//! to `hash`, and it names the hash of the event before.

use choir_messages::canonical;
use choir_messages::chain::Digest;
use choir_messages::event::{Event, Head};
use choir_messages::id::SessionId;
use choir_messages::session::SessionView;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::views::EventLine;

/// What the header calls the format.
pub(crate) const FORMAT: &str = "choir-session-log/1";

/// Longest line read: the largest event with room for its escapes and the hash.
pub(crate) const LINE_BYTES: usize = 2 * choir_messages::limits::EVENT_BYTES;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    session: SessionId,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    event: Value,
    hash: Digest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trailer {
    events: u64,
    head: Digest,
}

/// Writes a log line by line.
pub(crate) struct Writer {
    session: SessionId,
    head: Head,
}

impl Writer {
    /// A writer, and the header line.
    pub(crate) fn new(session: SessionId) -> (Self, String) {
        let header = Header { format: FORMAT.into(), session };
        (Self { session, head: Head::START }, to_line(&header))
    }

    /// The line of the next event; an error if choird's answer does not hold together.
    pub(crate) fn event(&mut self, line: EventLine) -> Result<String, String> {
        let hash: Digest =
            line.hash.parse().map_err(|_| "choird sent a hash that is no digest".to_owned())?;
        let lane = line.lane.parse().map_err(|_| format!("choird sent an unknown lane {:?}", line.lane))?;
        let event = Event {
            session: self.session,
            rev: line.rev,
            at: line.at,
            lane,
            body: line.body,
            prev: self.head.hash,
            hash,
        };
        let text = event.check(self.session, self.head).map_err(|error| error.to_string())?;
        self.head = event.head();
        Ok(event_line(&text, hash))
    }

    /// The trailer line.
    pub(crate) fn end(self) -> String {
        to_line(&Trailer { events: self.head.rev, head: self.head.hash })
    }
}

fn event_line(text: &str, hash: Digest) -> String {
    format!("{{\"event\":{text},\"hash\":\"{hash}\"}}")
}

fn to_line(value: &impl Serialize) -> String {
    // Plain structures of texts and numbers: they always have a JSON form.
    serde_json::to_string(value).unwrap_or_default()
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SessionVerdict {
    /// The session.
    pub(crate) session: SessionId,
    /// Whether everything holds.
    pub(crate) verified: bool,
    /// Events found good, from the first on.
    pub(crate) events: u64,
    /// Hash of the last good one.
    pub(crate) head: String,
    /// What was checked.
    pub(crate) checked: Vec<&'static str>,
    /// What could not be checked, and why.
    pub(crate) not_checked: Vec<&'static str>,
    /// The first fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<String>,
}

/// Reads a log line by line.
pub(crate) struct Verifier {
    view: SessionView,
    ended: bool,
    fault: Option<String>,
}

impl Verifier {
    /// A verifier, if this first line is the header of such a log.
    pub(crate) fn open(line: &str) -> Option<Self> {
        let header: Header = serde_json::from_str(line).ok()?;
        let (view, ended, fault) = (SessionView::new(header.session), false, None);
        (header.format == FORMAT).then_some(Self { view, ended, fault })
    }

    /// The next line. False when nothing further can be said.
    pub(crate) fn line(&mut self, number: u64, line: &str) -> bool {
        if self.fault.is_none()
            && let Err(what) = self.take(line)
        {
            self.fault = Some(format!("line {number}: {what}"));
        }
        self.fault.is_none()
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        if self.ended {
            return Err("there is something after the trailer".into());
        }
        if let Ok(trailer) = serde_json::from_str::<Trailer>(line) {
            self.ended = true;
            return if trailer.events == self.view.head.rev && trailer.head == self.view.head.hash {
                Ok(())
            } else {
                Err(format!(
                    "the trailer says {} events, the log holds {}",
                    trailer.events, self.view.head.rev
                ))
            };
        }
        let Line { event, hash } =
            serde_json::from_str(line).map_err(|_| "neither an event nor a trailer".to_owned())?;
        let text = canonical::to_string(&event).map_err(|error| error.to_string())?;
        if Digest::of(text.as_bytes()) != hash {
            return Err("the content does not match its hash".into());
        }
        // A member given twice, or spaces, would not show in the hash.
        if line != event_line(&text, hash) {
            return Err("the line is not in canonical form".into());
        }
        let event = Event::from_canonical(&text, hash).map_err(|error| format!("no event: {error}"))?;
        event.check(self.view.session, self.view.head).map_err(|error| error.to_string())?;
        self.view.apply(&event).map_err(|error| error.rule.to_string())
    }

    /// The verdict.
    pub(crate) fn end(self) -> SessionVerdict {
        let cut = (!self.ended).then(|| "the log has no trailer: its end is missing".to_owned());
        let fault = self.fault.or(cut);
        SessionVerdict {
            session: self.view.session,
            verified: fault.is_none(),
            events: self.view.head.rev,
            head: self.view.head.hash.to_string(),
            checked: vec![
                "every event against its hash",
                "every link of the chain from the first event to the trailer",
                "every rule of a legal log (who may follow whom)",
            ],
            not_checked: vec![
                "who wrote it: session events carry no signature",
                "whether later events were cut off together with the trailer",
            ],
            fault,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::event::EventBody;
    use choir_messages::id::MessageId;
    use choir_messages::time::Timestamp;
    use choir_messages::tool::Lane;
    use proptest::prelude::*;

    /// A short legal log as a file's lines.
    fn lines(messages: usize) -> Vec<String> {
        let session = SessionId::fresh();
        let (mut writer, header) = Writer::new(session);
        let (mut head, mut lines) = (Head::START, vec![header]);
        let opened =
            EventBody::SessionOpened { agent: "assistant".parse().unwrap(), tool_manifest: Digest::ZERO };
        for body in std::iter::once(opened).chain(
            (0..messages)
                .map(|n| EventBody::UserMsg { message: MessageId::fresh(), text: format!("no. {n}") }),
        ) {
            let (event, _) =
                Event::append(session, head, Timestamp::from_millis(1), Lane::Edge, body).unwrap();
            head = event.head();
            let line = EventLine {
                rev: event.rev,
                at: event.at,
                lane: event.lane.to_string(),
                kind: event.body.kind().into(),
                body: event.body,
                hash: event.hash.to_string(),
            };
            lines.push(writer.event(line).unwrap());
        }
        lines.push(writer.end());
        lines
    }

    fn verdict(lines: &[String]) -> SessionVerdict {
        let mut verifier = Verifier::open(&lines[0]).unwrap();
        for (number, line) in lines.iter().enumerate().skip(1) {
            verifier.line(number as u64 + 1, line);
        }
        verifier.end()
    }

    #[test]
    fn what_was_written_verifies() {
        let verdict = verdict(&lines(4));
        assert_eq!(verdict.fault, None);
        assert!(verdict.verified && verdict.events == 5);
    }

    #[test]
    fn a_log_that_lost_a_line_does_not_verify() {
        let good = lines(4);
        for missing in 1..good.len() {
            let mut cut = good.clone();
            cut.remove(missing);
            assert!(!verdict(&cut).verified, "without line {missing}");
        }
    }

    #[test]
    fn other_files_are_not_taken_for_one() {
        assert!(Verifier::open("{}").is_none());
        assert!(Verifier::open(r#"{"format":"choir-workspace-log/1","session":"x"}"#).is_none());
    }

    proptest! {
        #[test]
        fn any_changed_character_shows(at in any::<prop::sample::Index>(), to in "[ -~]") {
            let good = lines(3);
            let mut text = good.join("\n");
            let start = good[0].len() + 1;
            let place = start + at.index(text.len() - start);
            prop_assume!(text.is_char_boundary(place) && text.as_bytes()[place] != to.as_bytes()[0]);
            text.replace_range(place..=place, &to);
            let changed: Vec<String> = text.split('\n').map(str::to_owned).collect();
            prop_assert!(!verdict(&changed).verified, "{}", text);
        }

        #[test]
        fn no_line_makes_the_verifier_panic(line in ".{0,200}") {
            let mut verifier = Verifier::open(&lines(0)[0]).unwrap();
            verifier.line(2, &line);
            verifier.end();
        }
    }
}
