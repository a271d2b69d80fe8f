//! One model call as a state machine (`choir §7.7`): try, wait once after a 429, try again; nothing else is ever
//! repeated. It reads responses and decides; the client sends and waits.

use choir_messages::id::ModelCallId;
use choir_messages::model::{ModelAnswer, ModelFailure};
use choir_messages::time::Timestamp;
use serde_json::Value;
use std::time::Duration;

use crate::limits::RETRY_AFTER_MAX;
use crate::scrub::Scrubber;
use crate::wire::{Parsed, Reading, ToolNames, parse};

/// What a provider's response comes down to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// The Retry-After header, if there is one that is text.
    pub retry_after: Option<String>,
    /// The body, within the bounds of its kind.
    pub body: Vec<u8>,
}

/// What happened to the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was asked for.
    Begun,
    /// A response came.
    Responded(Response),
    /// The wait is over.
    Waited,
    /// There was no response.
    Failed(ModelFailure),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send the request.
    Send,
    /// Say that the provider limits the rate, wait this long, then report [`Event::Waited`].
    Wait {
        /// Milliseconds.
        millis: u64,
    },
    /// The call is over.
    Done(Result<ModelAnswer, ModelFailure>),
}

/// One call.
#[derive(Debug)]
pub struct Exchange<'a> {
    names: &'a ToolNames,
    model: &'a str,
    call: ModelCallId,
    scrubber: &'a Scrubber,
    default_wait_ms: u64,
    waited_ms: Option<u64>,
}

impl<'a> Exchange<'a> {
    /// A call that has not begun. `default_wait_ms` is the wait after a 429 that names no time.
    #[must_use]
    pub const fn new(
        names: &'a ToolNames,
        model: &'a str,
        call: ModelCallId,
        scrubber: &'a Scrubber,
        default_wait_ms: u64,
    ) -> Self {
        Self { names, model, call, scrubber, default_wait_ms, waited_ms: None }
    }

    /// Takes one event; `now` is the wall clock, against which a date in Retry-After is read.
    #[must_use]
    pub fn step(&mut self, event: Event, now: Timestamp) -> Action {
        match event {
            Event::Begun | Event::Waited => Action::Send,
            Event::Failed(failure) => Action::Done(Err(self.scrubber.failure(failure))),
            Event::Responded(response) => self.responded(response, now),
        }
    }

    fn responded(&mut self, response: Response, now: Timestamp) -> Action {
        let (status, reason) = match response.status {
            200..300 => {
                let reading = Reading { names: self.names, model: self.model, call: self.call };
                match parse(&response.body, &reading) {
                    Parsed::Answer(answer) => return Action::Done(Ok(self.scrubber.answer(answer))),
                    Parsed::Failure(failure) => return Action::Done(Err(self.scrubber.failure(failure))),
                    Parsed::Status { status, reason } => (status, reason),
                }
            }
            status => (status, words(&response.body)),
        };
        let failure = match status {
            429 => match self.waited_ms {
                Some(waited_ms) => ModelFailure::RateLimited { waited_ms },
                None => {
                    let millis = self.wait_ms(response.retry_after.as_deref(), now);
                    self.waited_ms = Some(millis);
                    return Action::Wait { millis };
                }
            },
            401 | 403 => ModelFailure::Unauthorised { status },
            300..400 => ModelFailure::Rejected {
                status,
                reason: "it points to another address, and a key is never sent on; set the endpoint to the final address"
                    .to_owned(),
            },
            400..500 if is_filter(&response.body) => ModelFailure::Filtered,
            400..500 => ModelFailure::Rejected { status, reason },
            500..600 => ModelFailure::ServerError { status },
            _ => ModelFailure::Malformed { reason: format!("HTTP status {status} means nothing here") },
        };
        Action::Done(Err(self.scrubber.failure(failure)))
    }

    fn wait_ms(&self, retry_after: Option<&str>, now: Timestamp) -> u64 {
        let asked = retry_after.and_then(|text| retry_after_ms(text, now)).unwrap_or(self.default_wait_ms);
        asked.min(u64::try_from(RETRY_AFTER_MAX.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Reads Retry-After: whole or decimal seconds, or an HTTP date. A date in the past is no wait.
fn retry_after_ms(text: &str, now: Timestamp) -> Option<u64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        // The cast saturates; what is negative or not a number is no time at all.
        return (seconds >= 0.0).then_some((seconds * 1000.0).ceil() as u64);
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let since_epoch = date.duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let date_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
    Some(date_ms.saturating_sub(now.millis()))
}

/// The sentence inside an error's body, in the shapes that providers use.
fn words(body: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        let text = String::from_utf8_lossy(body);
        let page = text.trim_start().starts_with('<');
        return if page {
            "the answer is a web page, not the model interface".to_owned()
        } else {
            text.into_owned()
        };
    };
    ["/error/message", "/error", "/message", "/detail", "/0/error/message"]
        .iter()
        .find_map(|at| value.pointer(at).and_then(Value::as_str))
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether a refusal is a content filter's, as some providers say it with status 400.
fn is_filter(body: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return false };
    ["/error/code", "/error/innererror/code", "/error/type"]
        .iter()
        .filter_map(|at| value.pointer(at).and_then(Value::as_str))
        .any(|code| {
            matches!(code, "content_filter" | "ResponsibleAIPolicyViolation" | "content_policy_violation")
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::secret::Secret;
    use proptest::prelude::*;
    use serde_json::json;

    const NOW: Timestamp = Timestamp::from_millis(784_111_777_000); // Sun, 06 Nov 1994 08:49:37 GMT

    fn run(responses: Vec<Event>) -> (Vec<u64>, Option<Result<ModelAnswer, ModelFailure>>) {
        let names = ToolNames::default();
        let scrubber = Scrubber::new([Secret::new("sk-canary-123456".into())]);
        let mut exchange = Exchange::new(&names, "m", ModelCallId::from_bits(1), &scrubber, 1500);
        let (mut waits, mut sent) = (Vec::new(), 0);
        let mut responses = responses.into_iter();
        let mut event = Event::Begun;
        loop {
            match exchange.step(event, NOW) {
                Action::Send => {
                    sent += 1;
                    assert!(sent <= 2, "a call is tried at most twice");
                    match responses.next() {
                        Some(response) => event = response,
                        None => return (waits, None),
                    }
                }
                Action::Wait { millis } => {
                    waits.push(millis);
                    event = Event::Waited;
                }
                Action::Done(result) => return (waits, Some(result)),
            }
        }
    }

    fn respond(status: u16, retry_after: Option<&str>, body: Value) -> Event {
        let retry_after = retry_after.map(str::to_owned);
        Event::Responded(Response { status, retry_after, body: body.to_string().into_bytes() })
    }

    fn hello() -> Event {
        respond(200, None, json!({ "choices": [{ "message": { "content": "hello" } }] }))
    }

    #[test]
    fn after_a_429_the_call_waits_as_long_as_it_is_told_and_tries_again() {
        for (header, expected) in [
            (None, 1500),
            (Some("2"), 2000),
            (Some("0.25"), 250),
            (Some("0"), 0),
            (Some("Sun, 06 Nov 1994 08:49:47 GMT"), 10_000),
            (Some("Sun, 06 Nov 1994 08:49:00 GMT"), 0),
            (Some("999999999999"), 120_000),
            (Some("1e300"), 120_000),
            (Some("-3"), 1500),
            (Some("NaN"), 1500),
            (Some("soon"), 1500),
        ] {
            let (waits, result) = run(vec![respond(429, header, json!({})), hello()]);
            assert_eq!(waits, [expected], "{header:?}");
            assert!(result.unwrap().is_ok());
        }
    }

    #[test]
    fn a_second_429_ends_the_call() {
        let limited = || respond(429, Some("1"), json!({}));
        let (_, result) = run(vec![limited(), limited()]);
        assert_eq!(result.unwrap(), Err(ModelFailure::RateLimited { waited_ms: 1000 }));
    }

    #[test]
    fn an_error_body_with_status_200_and_code_429_counts_as_a_429() {
        let (waits, result) = run(vec![respond(200, None, json!({ "error": { "code": 429 } })), hello()]);
        assert_eq!(waits.len(), 1);
        assert!(result.unwrap().is_ok());
    }

    #[test]
    fn no_other_status_is_tried_again() {
        for status in [300, 301, 307, 400, 401, 403, 404, 408, 422, 500, 502, 503, 504, 529, 100, 700] {
            let (waits, result) = run(vec![respond(status, Some("1"), json!({}))]);
            assert!(waits.is_empty() && result.unwrap().is_err(), "{status}");
        }
    }

    #[test]
    fn each_status_has_its_failure() {
        let failure = |status, body| run(vec![respond(status, None, body)]).1.unwrap().unwrap_err();
        assert_eq!(failure(401, json!({})), ModelFailure::Unauthorised { status: 401 });
        assert_eq!(failure(403, json!({})), ModelFailure::Unauthorised { status: 403 });
        assert_eq!(failure(503, json!({})), ModelFailure::ServerError { status: 503 });
        assert_eq!(failure(400, json!({ "error": { "code": "content_filter" } })), ModelFailure::Filtered);
        for body in [
            json!({ "error": { "message": "no such model" } }),
            json!({ "error": "no such model" }),
            json!({ "message": "no such model" }),
            json!({ "detail": "no such model" }),
            json!([{ "error": { "message": "no such model" } }]),
        ] {
            let expected = ModelFailure::Rejected { status: 404, reason: "no such model".into() };
            assert_eq!(failure(404, body), expected);
        }
        assert!(matches!(failure(302, json!({})), ModelFailure::Rejected { status: 302, .. }));
        assert!(matches!(failure(700, json!({})), ModelFailure::Malformed { .. }));
    }

    #[test]
    fn a_key_echoed_by_the_provider_is_not_repeated() {
        let body = json!({ "error": { "message": "bad header Bearer sk-canary-123456" } });
        let (_, result) = run(vec![respond(400, None, body)]);
        let failure = result.unwrap().unwrap_err();
        assert!(!failure.to_string().contains("sk-canary"), "{failure}");
    }

    proptest! {
        #[test]
        fn every_response_leads_somewhere(
            status in any::<u16>(), header in prop::option::of(".{0,12}"),
            body in prop::collection::vec(any::<u8>(), 0..60)
        ) {
            let event = Event::Responded(Response { status, retry_after: header, body });
            let (waits, result) = run(vec![event.clone(), event]);
            prop_assert!(waits.iter().all(|&wait| wait <= 120_000));
            prop_assert!(result.is_some());
        }
    }
}
