//! The signed ledger: lines, registries and whole homes that anybody may hand to the verifier.

use std::path::Path;
use std::sync::OnceLock;

use choir_ledger::event::Event;
use choir_ledger::id::TraceId;
use choir_ledger::scale::{MIN_EVENTS, Recipe, blob};
use choir_ledger::verify::{
    Check, FailureCode, MAX_FINDINGS, Memory, Options, Reading, Report, Verdict, verify,
};
use choir_ledger::{canon, json, layout};
use choir_messages::chain::Digest;

use crate::{Input, assert_one_line};

/// Lines looked at, so that a long input is not a slow one.
const LINES: usize = 64;

/// Artefacts of an input for a whole home.
const BLOBS: usize = 4;

/// A sound home of eleven events, into which inputs are put.
struct Scene {
    trace: TraceId,
    home: Memory,
}

fn scene() -> &'static Scene {
    static SCENE: OnceLock<Scene> = OnceLock::new();
    SCENE.get_or_init(|| {
        let mut recipe = Recipe::new(MIN_EVENTS);
        let ledger: String = recipe.by_ref().map(|event| format!("{}\n", event.line())).collect();
        let (trace, mut home) = (recipe.trace_id(), Memory::new());
        let file = |value: serde_json::Result<Vec<u8>>| value.expect("the scene is JSON");
        home.insert(layout::events(trace), ledger.into_bytes());
        home.insert(layout::meta(trace), file(serde_json::to_vec(&recipe.meta())));
        home.insert(layout::REGISTRY, file(serde_json::to_vec(&recipe.registry())));
        for number in [0, 16] {
            let bytes = blob(number);
            home.insert(layout::storage_uri(&Digest::of(&bytes)), bytes);
        }
        Scene { trace, home }
    })
}

/// Verifies in both readings: reports are within their bounds, can be printed, agree when repeated, and what the strict
/// reading passes the compat reading passes, too.
fn verify_both(home: &Memory, trace: TraceId) -> Report {
    let read = |reading| verify(home, trace, Options { reading, ..Options::default() });
    let (strict, compat) = (read(Reading::Strict), read(Reading::Compat));
    for report in [&strict, &compat] {
        assert!(report.failures.len() <= MAX_FINDINGS && report.warnings.len() <= MAX_FINDINGS);
        assert_eq!(report.verification_status == Verdict::Fail, !report.failures.is_empty());
        assert!(serde_json::from_str::<serde_json::Value>(&report.to_json()).is_ok());
        for failure in &report.failures {
            assert_one_line(&failure.message);
        }
        report.to_text().lines().for_each(assert_one_line);
    }
    assert_eq!(read(Reading::Strict).failures, strict.failures);
    if strict.verification_status != Verdict::Fail {
        assert_ne!(compat.verification_status, Verdict::Fail, "strict passes what compat does not");
    }
    strict
}

/// The input is lines. JSON is what another parser takes for JSON; the canonical text of a value without flaws is its own
/// canonical text; a value that may be written reads back as itself; and what reads as a sound event is one to the verifier.
pub fn ledger_line(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut understood = false;
    for line in text.lines().take(LINES) {
        let Ok((value, flaws)) = json::parse(line) else {
            let _ = Event::parse(line).expect_err("no JSON is no event");
            continue;
        };
        if !flaws.lone_surrogate && !flaws.overflow {
            // Its own bound on nesting is lower than ours.
            let other = serde_json::from_str::<serde_json::Value>(line);
            assert!(other.is_ok() || other.is_err_and(|error| error.to_string().contains("recursion")));
        }
        if let (Ok(canonical), None) = (canon::to_text(&value), flaws.first()) {
            let (again, _) = json::parse(&canonical).expect("canonical text is JSON");
            assert_eq!(canon::to_text(&again).as_ref(), Ok(&canonical));
        }
        let mut writable = value;
        if canon::check_writable(&mut writable).is_ok() {
            assert!(!canon::order_is_ambiguous(&writable));
            let text = writable.to_json();
            assert_eq!(json::parse(&text).map(|(back, _)| back).as_ref(), Ok(&writable));
        }
        match Event::parse(line) {
            Ok(event) => {
                assert_is_sound(&event, line);
                understood = true;
            }
            Err(error) => assert_one_line(&error.to_string()),
        }
    }
    understood
}

fn assert_is_sound(event: &Event, line: &str) {
    assert_eq!(event.line(), line);
    let mut home = scene().home.clone();
    home.insert(layout::events(event.trace_id()), format!("{line}\n").into_bytes());
    let report = verify_both(&home, event.trace_id());
    let hash = |check: Check| check == Check::EventHash;
    assert!(!report.failures.iter().any(|failure| hash(failure.verification_step)), "{:?}", report.failures);
    assert_eq!(report.metrics.event_count, 1);
}

/// The input is the registry of a sound trace. True if the trace is still sound with it.
pub fn ledger_registry(data: &[u8]) -> bool {
    let scene = scene();
    let mut home = scene.home.clone();
    home.insert(layout::REGISTRY, data.to_vec());
    verify_both(&home, scene.trace).verification_status != Verdict::Fail
}

/// The input is the parts of a home: registry, meta file, ledger, the ledger of another trace, and artefacts, each with its
/// length; where one is empty the part of a sound home stands there. True if the first line is an event whose hash holds.
pub fn ledger_home(data: &[u8]) -> bool {
    let scene = scene();
    let mut home = scene.home.clone();
    let mut input = Input::new(data);
    let other = TraceId::from_bits(1);
    let paths = [
        layout::REGISTRY.into(),
        layout::meta(scene.trace),
        layout::events(scene.trace),
        layout::events(other),
    ];
    for path in paths {
        if let Some(bytes) = input.piece().filter(|bytes| !bytes.is_empty()) {
            home.insert(path, bytes.to_vec());
        }
    }
    for number in 0..BLOBS {
        let Some(bytes) = input.piece() else { break };
        // Half of them under their own hash, half in the place of another artefact.
        let hash = if number % 2 == 0 { Digest::of(bytes) } else { Digest::of(&blob(16)) };
        home.insert(Path::new(&layout::storage_uri(&hash)), bytes.to_vec());
    }
    let report = verify_both(&home, scene.trace);
    let first_fails = report.failures.iter().any(|failure| {
        failure.line == Some(1)
            && matches!(failure.failure_code, FailureCode::HashMismatch | FailureCode::SchemaInvalid)
    });
    report.metrics.event_count > 0 && !first_fails
}
