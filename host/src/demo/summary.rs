//! The end of the play, for people and as JSON.

use std::collections::BTreeMap;
use std::io::Write as _;

use serde::Serialize;

use super::play::Verdict;
use super::words::Words;

/// The result; its fields and their order are what `--json` prints.
#[derive(Debug, Serialize)]
struct Figures<'a> {
    model: &'a str,
    turns: usize,
    tool_calls: usize,
    kills: Vec<&'static str>,
    recovered_ms: Vec<u64>,
    events: usize,
    lost: usize,
    duplicated: usize,
    chain: &'static str,
}

/// Prints the result.
pub(super) fn print(verdict: &Verdict, json: bool, words: Words) {
    let figures = figures(verdict);
    for (what, signs) in signs(verdict) {
        words.say(&format!("{what}: {signs}"));
    }
    let text = if json {
        serde_json::to_string(&figures).unwrap_or_default() + "\n"
    } else {
        people(&figures, verdict)
    };
    let mut out = std::io::stdout().lock();
    // Whoever closed the output does not want it; the exit code says the same.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn figures(verdict: &Verdict) -> Figures<'_> {
    let findings = &verdict.findings;
    Figures {
        model: &verdict.model,
        turns: findings.turns,
        tool_calls: findings.tool_calls,
        kills: verdict.kills.iter().map(|(victim, _)| victim.name()).collect(),
        recovered_ms: verdict.kills.iter().map(|(_, millis)| *millis).collect(),
        events: findings.events,
        lost: findings.lost.len(),
        duplicated: findings.duplicated.len(),
        chain: if findings.broken.is_none() { "verified" } else { "broken" },
    }
}

fn signs(verdict: &Verdict) -> Vec<(String, String)> {
    let all = |word: &str, found: &BTreeMap<String, Vec<String>>| {
        found.iter().map(|(what, signs)| (format!("{word}: {what}"), signs.join("; "))).collect::<Vec<_>>()
    };
    let mut lines = all("LOST", &verdict.findings.lost);
    lines.extend(all("DUPLICATED", &verdict.findings.duplicated));
    lines.extend(verdict.findings.broken.clone().map(|fault| ("CHAIN BROKEN".to_owned(), fault)));
    lines
}

fn people(figures: &Figures<'_>, verdict: &Verdict) -> String {
    let mut text = format!(
        "\n{} messages answered, {} tool calls, {} events in the log (model: {})\n",
        figures.turns, figures.tool_calls, figures.events, figures.model
    );
    for (victim, millis) in &verdict.kills {
        text.push_str(&format!("  killed {:<12} the turn went on after {millis} ms\n", victim.name()));
    }
    text.push_str(&format!(
        "counted from outside: {} lost, {} duplicated, hash chain {}\n",
        figures.lost, figures.duplicated, figures.chain
    ));
    if let Some(why) = &verdict.broke_off {
        text.push_str(&format!("the play broke off at {why}\n"));
    }
    text.push_str(if verdict.holds() {
        "No message was lost, none was answered twice, no command ran twice.\n"
    } else {
        "This is not what Choir promises; the state folder is kept for a closer look.\n"
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::check::Findings;
    use crate::demo::conversation::Victim;

    fn verdict() -> Verdict {
        Verdict {
            model: "scripted".into(),
            kills: vec![(Victim::Agent, 1), (Victim::Arbiter, 2), (Victim::Choird, 3)],
            findings: Findings { events: 60, turns: 7, tool_calls: 10, ..Findings::default() },
            broke_off: None,
        }
    }

    #[test]
    fn the_json_has_exactly_the_fields_that_are_promised() {
        let text = serde_json::to_string(&figures(&verdict())).unwrap();
        assert_eq!(
            text,
            r#"{"model":"scripted","turns":7,"tool_calls":10,"kills":["choir-agent","arbiter","choird"],"recovered_ms":[1,2,3],"events":60,"lost":0,"duplicated":0,"chain":"verified"}"#
        );
    }

    #[test]
    fn a_play_that_broke_off_or_lost_something_does_not_hold() {
        assert!(verdict().holds());
        let mut broken = verdict();
        broken.broke_off = Some("turn-3: no answer".into());
        assert!(!broken.holds());
        let mut lost = verdict();
        lost.findings.lost.insert("message turn-1".into(), vec!["x".into()]);
        assert!(!lost.holds());
        assert_eq!((figures(&lost).lost, figures(&lost).chain), (1, "verified"));
        assert!(people(&figures(&lost), &lost).contains("1 lost"));
    }
}
