//! Every golden trace, in both readings and all profiles.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod support;

use choir_ledger::verify::{Options, Profile, Reading, Report, verify};
use serde_json::Value;
use support::{Case, cases};

fn report(case: &Case, reading: Reading, profile: Profile) -> Report {
    verify(&case.home, case.trace, Options { reading, profile, awaiting_verdict: false })
}

fn text<'v>(value: &'v Value, name: &str) -> Option<&'v str> {
    value.get(name).and_then(Value::as_str)
}

/// A multiset of the given members of some findings.
fn bag(findings: &Value, members: &[&str]) -> Vec<Vec<Option<String>>> {
    let list = findings.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut bag: Vec<Vec<Option<String>>> = list
        .iter()
        .map(|finding| members.iter().map(|name| text(finding, name).map(str::to_owned)).collect())
        .collect();
    bag.sort();
    bag
}

#[test]
fn the_compat_reading_says_what_the_original_says_of_every_case_and_profile() {
    const FAILURE: [&str; 4] = ["failure_code", "verification_step", "event_id", "artifact_hash"];
    const WARNING: [&str; 2] = ["warning_code", "event_id"];
    let mut wrong = Vec::new();
    let cases = cases();
    assert_eq!(cases.len(), 133);
    for case in &cases {
        for profile in Profile::ALL {
            let expected = &case.expected["profiles"][profile.as_str()];
            let report = report(case, Reading::Compat, profile);
            let got = serde_json::to_value(&report).unwrap();
            let verdict = report.verification_status.as_str();
            if expected["verdict"] == "error" {
                if verdict != "fail" {
                    wrong.push(format!("{} {profile}: the original breaks off, we say {verdict}", case.id));
                }
                continue;
            }
            let mut checks = serde_json::Map::new();
            for check in got["checks"].as_array().unwrap() {
                checks.insert(check["check_id"].as_str().unwrap().to_owned(), check["status"].clone());
            }
            if expected["verdict"] != verdict
                || bag(&expected["failures"], &FAILURE) != bag(&got["failures"], &FAILURE)
                || bag(&expected["warnings"], &WARNING) != bag(&got["warnings"], &WARNING)
                || expected["checks"] != Value::Object(checks)
                || expected["exit_code"] != report.exit_code()
            {
                let (want, have) = (bag(&expected["failures"], &FAILURE), bag(&got["failures"], &FAILURE));
                let missing: Vec<_> = want.iter().filter(|item| !have.contains(item)).collect();
                let extra: Vec<_> = have.iter().filter(|item| !want.contains(item)).collect();
                wrong.push(format!(
                    "{} {profile}: want {} with {} failures, have {verdict} with {}; missing {missing:?}; extra {extra:?}; {}",
                    case.id, expected["verdict"], want.len(), have.len(), report.to_text(),
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Whether a failure of a report is the one that is required.
fn matches(failure: &Value, required: &Value) -> bool {
    let any = |list: &str, value: Option<&str>| {
        required[list].as_array().is_some_and(|names| names.iter().any(|name| name.as_str() == value))
    };
    let code = text(failure, "failure_code");
    let code_fits = text(required, "failure_code") == code || any("code_any_of", code);
    let event = text(failure, "event_id");
    // The same event, or (an id that is no ULID is not repeated in a report) the same line.
    let line_fits = required.get("line").is_some_and(|line| failure.get("line") == Some(line));
    let place_fits = if let Some(required) = text(required, "event_id") {
        event == Some(required) || event.is_none() && line_fits
    } else if required.get("event_id_any_of").is_some() {
        any("event_id_any_of", event)
    } else if required.get("line").is_some() {
        line_fits
    } else {
        event.is_none()
    };
    let step =
        required.get("verification_step").is_none_or(|step| failure.get("verification_step") == Some(step));
    code_fits && place_fits && step
}

#[test]
fn the_strict_reading_says_what_is_right_of_every_case_and_profile() {
    let mut wrong = Vec::new();
    for case in cases() {
        for profile in Profile::ALL {
            let strict = &case.strict["profiles"][profile.as_str()];
            let report = report(&case, Reading::Strict, profile);
            let got = serde_json::to_value(&report).unwrap();
            let failures = got["failures"].as_array().unwrap();
            let warnings = got["warnings"].as_array().unwrap();
            let mut problems = Vec::new();
            let verdict = report.verification_status.as_str();
            let accepted = match &strict["verdict"] {
                Value::Array(list) => list.iter().any(|accepted| accepted == verdict),
                one => one == verdict,
            };
            if !accepted {
                problems.push(format!("verdict {verdict} instead of {}", strict["verdict"]));
            }
            for required in strict["required"].as_array().unwrap() {
                if !failures.iter().any(|failure| matches(failure, required)) {
                    problems.push(format!("missing {required}"));
                }
            }
            let warned = strict["required_warnings"].as_array().map(Vec::as_slice).unwrap_or_default();
            for required in warned {
                let found = warnings.iter().any(|warning| {
                    warning["warning_code"] == required["warning_code"]
                        && (required.get("event_id").is_none() || warning["event_id"] == required["event_id"])
                });
                if !found {
                    problems.push(format!("missing warning {required}"));
                }
            }
            let innocent = strict["innocent"].as_array().map(Vec::as_slice).unwrap_or_default();
            for failure in failures {
                if failure.get("event_id").is_some_and(|event| innocent.contains(event)) {
                    problems.push(format!("accuses an innocent: {failure}"));
                }
            }
            if !problems.is_empty() {
                wrong.push(format!("{} {profile}: {}\n{}", case.id, problems.join("\n  "), report.to_text()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn each_rule_that_a_case_is_about_is_named_by_a_finding_of_its_report() {
    // Rules without a finding of their own: R04 shows in there being a report, and where the original finds a thing too its
    // check is named alone.
    let silent = ["R04"];
    let mut wrong = Vec::new();
    for case in cases().into_iter().filter(|case| case.id.starts_with("h-")) {
        let report = report(&case, Reading::Strict, Profile::Default);
        let named: Vec<String> = report
            .failures
            .iter()
            .map(|failure| failure.rule)
            .chain(report.warnings.iter().map(|warning| warning.rule))
            .flatten()
            .map(|rule| rule.to_string())
            .collect();
        for rule in case.strict["rules"].as_array().unwrap() {
            let rule = rule.as_str().unwrap();
            if !silent.contains(&rule) && !named.iter().any(|name| name == rule) {
                wrong.push(format!("{}: {rule} is not among {named:?}", case.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
