//! The golden traces: what is sound is admitted, what is out of order is refused.

use crate::support::{Case, cases};
use choir_ledger::event::Event;
use choir_ledger::layout;
use choir_ledger::trace::{Guard, Policy, PolicyProfile, Refused, Step, Trace};

fn replay(case: &Case) -> Result<Trace, Refused> {
    let path = layout::events(case.trace);
    let ledger = case.home.files().find(|(file, _)| *file == path).map(|(_, bytes)| bytes.to_vec()).unwrap();
    let steps = String::from_utf8(ledger).unwrap();
    let steps = steps.lines().map(|line| Step::of(&Event::parse(line).unwrap()));
    let mut trace = Trace::new(Policy::protocol(PolicyProfile::Default));
    for step in steps {
        match trace.apply(&step?) {
            // The recorded profile is the verifier's to compare (R07).
            Err(Refused::OtherProfile { .. }) => return Ok(trace),
            applied => applied?,
        }
    }
    Ok(trace)
}

#[test]
fn every_sound_trace_is_admitted_whole() {
    let mut seen = 0;
    for case in cases().iter().filter(|case| case.id.starts_with("v-") && case.id != "v-key-order") {
        let replayed = replay(case);
        assert!(replayed.is_ok(), "{}: {replayed:?}", case.id);
        seen += 1;
    }
    assert!(seen >= 20);
}

#[test]
fn every_trace_that_is_out_of_order_is_refused() {
    let ordered = [
        "h-blocked-intent",
        "h-challenge-after-final",
        "h-challenge-unknown",
        "h-claim-after-end",
        "h-claim-first",
        "h-contradiction",
        "h-evidence-final-only",
        "h-evidence-later",
        "h-final-unknown-claim",
        "h-intent-other-tool",
        "h-intent-reused",
        "h-no-artifact",
        "h-no-claim",
        "h-no-intent",
        "h-no-prefix",
        "h-no-review",
        "h-rejected-executed",
        "h-time-back",
        "h-two-sessions",
        "h-claim-confidence",
        "h-final-no-text",
        "h-intent-no-hash",
        "t-final-after-vdone",
        "t-no-vstart",
    ];
    for case in cases().iter().filter(|case| ordered.contains(&case.id.as_str())) {
        let refused = replay(case).expect_err(&case.id);
        assert_ne!(refused.guard(), Guard::Integrity, "{}", case.id);
    }
}
