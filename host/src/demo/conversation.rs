//! The conversation that is played, and the scripted model's part in it. Every command leaves a line of its own in a
//! file, so that one which did not run, or ran twice, can be counted afterwards.

use choir_scripted_model::{Condition, Match, Script, Step};
use serde_json::json;

/// The file that commands leave their lines in; nothing else may be in it.
pub(super) const LOG: &str = "ran.log";

/// The file the conversation is about.
const NOTES: &str = "notes/trip.md";

/// Milliseconds the scripted model takes for an answer, so that the play can be followed.
const THINKING_MS: u64 = 40;

/// What is killed in the middle of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    /// The agent's process, with `kill -9`.
    Agent,
    /// The arbiter inside it.
    Arbiter,
    /// choird's process, with `kill -9`.
    Choird,
}

impl Victim {
    /// Its name in the result.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Agent => "choir-agent",
            Self::Arbiter => "arbiter",
            Self::Choird => "choird",
        }
    }
}

/// A line that a turn must leave in a file exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) file: &'static str,
    pub(super) line: &'static str,
}

/// One message, and what belongs to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Stands in brackets in the text, so that the model's part can be found.
    pub(super) tag: &'static str,
    pub(super) text: &'static str,
    /// What is killed once the turn's first tool call is committed and the model is asked again.
    pub(super) victim: Option<Victim>,
    pub(super) effects: &'static [Effect],
}

const fn ran(line: &'static str) -> Effect {
    Effect { file: LOG, line }
}

const fn noted(line: &'static str) -> Effect {
    Effect { file: NOTES, line }
}

/// The conversation.
pub(super) const TURNS: [Turn; 7] = [
    Turn {
        tag: "turn-1",
        text: "[turn-1] We plan a weekend in Lisbon. Write the file notes/trip.md with exactly these three lines:\n\
               # Lisbon\n- see the castle\n- eat at the market",
        victim: None,
        effects: &[noted("# Lisbon"), noted("- see the castle"), noted("- eat at the market")],
    },
    Turn { tag: "turn-2", text: "[turn-2] Read notes/trip.md back to me.", victim: None, effects: &[] },
    Turn {
        tag: "turn-3",
        text: "[turn-3] Run these two commands, one after the other, each once:\n\
               echo 'turn-3 first' >> ran.log\necho 'turn-3 second' >> ran.log; wc -l < notes/trip.md\n\
               What does the second one print?",
        victim: Some(Victim::Agent),
        effects: &[ran("turn-3 first"), ran("turn-3 second")],
    },
    Turn {
        tag: "turn-4",
        text: "[turn-4] Search the workspace for the word castle: which file, which line?",
        victim: None,
        effects: &[],
    },
    Turn {
        tag: "turn-5",
        text: "[turn-5] Append this line to notes/trip.md:\n- take tram 28\nand then run this command once:\n\
               echo 'turn-5 done' >> ran.log",
        victim: Some(Victim::Arbiter),
        effects: &[noted("- take tram 28"), ran("turn-5 done")],
    },
    Turn {
        tag: "turn-6",
        text: "[turn-6] Run these two commands, one after the other, each once:\n\
               echo 'turn-6 first' >> ran.log\necho 'turn-6 second' >> ran.log",
        victim: Some(Victim::Choird),
        effects: &[ran("turn-6 first"), ran("turn-6 second")],
    },
    Turn { tag: "turn-7", text: "[turn-7] Read ran.log: what has run so far?", victim: None, effects: &[] },
];

/// How often the model has been asked in a turn when its victim is killed: the call after the first tool call.
pub(super) const OPEN_STEP: usize = 1;

/// The scripted model's part.
pub(super) fn script() -> Script {
    let read = |path: &str| Step::call("choir.fs.read", json!({ "path": path }));
    let tag = |tag: &str| Match::Tag(tag.to_owned());
    let mut script = Script::default()
        .rule(
            tag("turn-1"),
            [
                Step::call(
                    "choir.fs.write",
                    json!({
                        "path": NOTES, "mode": "overwrite",
                        "content": "# Lisbon\n- see the castle\n- eat at the market\n",
                    }),
                ),
                Step::text("The plan is in notes/trip.md."),
            ],
        )
        .rule(tag("turn-2"), [read(NOTES), Step::text("It says:\n{{last:/output/content}}")])
        .rule(
            tag("turn-3"),
            [
                run("echo 'turn-3 first' >> ran.log", "turn-3 first"),
                run("echo 'turn-3 second' >> ran.log; wc -l < notes/trip.md", "turn-3 second"),
                Step::text("Both commands ran. The second printed: {{last:/output/stdout}}"),
            ],
        )
        .rule(
            tag("turn-4"),
            [
                Step::call("choir.fs.search", json!({ "pattern": "castle" })),
                Step::text("It is in {{last:/output/matches/0/path}}, line {{last:/output/matches/0/line}}."),
            ],
        )
        .rule(
            tag("turn-5"),
            [
                unless_there(
                    Step::call(
                        "choir.fs.write",
                        json!({ "path": NOTES, "mode": "append", "content": "- take tram 28\n" }),
                    ),
                    NOTES,
                    "- take tram 28",
                ),
                run("echo 'turn-5 done' >> ran.log", "turn-5 done"),
                Step::text("The tram is in the plan, and the command ran."),
            ],
        )
        .rule(
            tag("turn-6"),
            [
                run("echo 'turn-6 first' >> ran.log", "turn-6 first"),
                run("echo 'turn-6 second' >> ran.log", "turn-6 second"),
                Step::text("Both commands ran."),
            ],
        )
        .rule(tag("turn-7"), [read(LOG), Step::text("These have run, each once:\n{{last:/output/content}}")]);
    script.thinking_ms = THINKING_MS;
    script
}

fn run(command: &str, line: &str) -> Step {
    unless_there(Step::call("choir.exec", json!({ "command": command })), LOG, line)
}

/// After a call whose outcome is unknown, a model looks first and repeats it only if it left no trace.
fn unless_there(call: Step, file: &str, line: &str) -> Step {
    let look = Step::call("choir.fs.read", json!({ "path": file }));
    let look = look.branch(Condition::ResultLacks(line.to_owned()), [call.clone()]);
    call.on_outcome_unknown([look])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_is_answered_by_its_own_rule_and_every_kill_has_a_call_to_interrupt() {
        let script = script();
        script.check().unwrap();
        for turn in TURNS {
            let mut rules = script.rules.iter().filter(|rule| rule.when.recognises(turn.text));
            let rule = rules.next().unwrap();
            assert!(rules.next().is_none() && rule.when == Match::Tag(turn.tag.into()));
            // The held call must itself still have something to do, so that a repeat of what came before would show.
            assert!(turn.victim.is_none() || rule.steps.len() > OPEN_STEP + 1, "{}", turn.tag);
        }
        let victims: Vec<_> = TURNS.iter().filter_map(|turn| turn.victim).map(Victim::name).collect();
        assert_eq!(victims, ["choir-agent", "arbiter", "choird"]);
    }

    #[test]
    fn every_line_to_be_counted_is_asked_for_once_in_the_whole_conversation() {
        let effects: Vec<Effect> = TURNS.iter().flat_map(|turn| turn.effects).copied().collect();
        for effect in &effects {
            assert_eq!(effects.iter().filter(|other| *other == effect).count(), 1, "{effect:?}");
        }
    }
}
