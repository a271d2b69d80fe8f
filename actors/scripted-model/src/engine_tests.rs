use super::*;
use proptest::prelude::*;
use serde_json::json;

use crate::transcript::read;

/// Plays a turn: asks, answers every call with what `tool` makes of it, and asks again until there are no calls.
struct Play<'a> {
    script: &'a Script,
    messages: Vec<Value>,
    said: Vec<Reply>,
}

impl<'a> Play<'a> {
    fn new(script: &'a Script) -> Self {
        Self { script, messages: vec![json!({ "role": "system", "content": "s" })], said: Vec::new() }
    }

    fn user(&mut self, text: &str) {
        self.messages.push(json!({ "role": "user", "content": text }));
    }

    fn ask(&self) -> Reply {
        let tools = ["choir_fs_read", "choir_fs_write", "choir_fs_search", "choir_exec"]
            .map(|name| json!({ "type": "function", "function": { "name": name } }));
        let request = json!({ "model": "m", "messages": self.messages, "tools": tools });
        reply(self.script, &read(request.to_string().as_bytes()).unwrap())
    }

    /// Takes the next answer into the transcript, with these results for its calls.
    fn go(&mut self, results: &[Value]) -> Reply {
        let reply = self.ask();
        assert_eq!(reply.calls.len(), results.len(), "{reply:?}");
        let id = |at: usize| format!("c{}_{at}", self.messages.len());
        let calls: Vec<Value> = reply
            .calls
            .iter()
            .enumerate()
            .map(|(at, (tool, arguments))| {
                json!({ "id": id(at), "type": "function", "function": { "name": tool, "arguments": arguments } })
            })
            .collect();
        let results: Vec<Value> = results
            .iter()
            .enumerate()
            .map(|(at, result)| json!({ "role": "tool", "tool_call_id": id(at), "content": result.to_string() }))
            .collect();
        let mut message = json!({ "role": "assistant", "content": reply.text });
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.messages.push(message);
        self.messages.extend(results);
        self.said.push(reply.clone());
        reply
    }
}

fn output(output: Value) -> Value {
    json!({ "status": "success", "output": output })
}

fn script() -> Script {
    let write =
        || Step::call("choir.fs.write", json!({ "path": "a", "content": "{{last:/output/content}}" }));
    Script::interactive().rule(
        Match::Tag("t1".into()),
        [
            Step::call("choir.fs.read", json!({ "path": "a" })),
            write().on_outcome_unknown([Step::call("choir.fs.read", json!({ "path": "a", "head": 1 }))
                .branch(Condition::ResultLacks("{{result:0:/output/content}}".into()), [write()])]),
            Step::text("Done: {{result:0:/output/content}}"),
        ],
    )
}

#[test]
fn a_turn_goes_through_its_steps_and_quotes_results() {
    let script = script();
    let mut play = Play::new(&script);
    play.user("copy [t1]");
    assert_eq!(play.go(&[output(json!({ "content": "x\"y" }))]).calls[0].0, "choir_fs_read");
    let write = play.go(&[output(json!({}))]);
    assert_eq!(serde_json::from_str::<Value>(&write.calls[0].1).unwrap()["content"], "x\"y");
    let last = play.go(&[]);
    assert_eq!((last.text.as_deref(), last.step, last.rule.as_str()), (Some("Done: x\"y"), 2, "t1"));
}

#[test]
fn an_unknown_outcome_is_looked_into_and_repeated_only_if_it_had_no_effect() {
    let script = script();
    for (found, repeated) in [("x", false), ("old", true)] {
        let mut play = Play::new(&script);
        play.user("copy [t1]");
        play.go(&[output(json!({ "content": "x" }))]);
        play.go(&[json!({ "status": "outcome_unknown", "output": {} })]);
        assert!(play.go(&[output(json!({ "content": found }))]).calls[0].1.contains("head"));
        if repeated {
            assert_eq!(play.go(&[output(json!({}))]).calls[0].0, "choir_fs_write");
        }
        assert!(play.go(&[]).text.unwrap().starts_with("Done"));
    }
}

#[test]
fn a_new_message_begins_at_the_first_step_again() {
    let script = script();
    let mut play = Play::new(&script);
    for _ in 0..2 {
        play.user("copy [t1]");
        assert_eq!(play.go(&[output(json!({ "content": "x" }))]).step, 0);
        play.go(&[output(json!({}))]);
        assert_eq!(play.go(&[]).step, 2);
    }
}

#[test]
fn a_turn_that_was_cut_short_does_not_count_towards_the_next() {
    let script = script();
    let mut play = Play::new(&script);
    play.user("copy [t1]");
    play.go(&[output(json!({ "content": "x" }))]);
    play.messages.push(json!({ "role": "assistant", "content": "[the model did not answer]" }));
    play.user("copy again [t1]");
    assert_eq!(play.ask().step, 0);
}

#[test]
fn a_message_added_in_the_middle_of_a_turn_does_not_restart_it() {
    let script = script();
    let mut play = Play::new(&script);
    play.user("copy [t1]");
    play.go(&[output(json!({ "content": "x" }))]);
    play.user("and be quick");
    assert_eq!((play.ask().step, play.ask().user.as_str()), (1, "copy [t1]"));
    let mut play = Play::new(&script);
    play.user("read a");
    play.go(&[output(json!({ "content": "x" }))]);
    play.user("read b");
    assert!(play.ask().text.unwrap().contains('x'));
}

#[test]
fn a_step_beyond_the_script_is_said_to_be_one() {
    let script = Script::interactive().rule(Match::Any, [Step::call("choir.exec", json!({}))]);
    let mut play = Play::new(&script);
    play.user("go");
    play.go(&[json!({})]);
    let reply = play.ask();
    assert!(reply.off_script && reply.text.is_some() && reply.calls.is_empty());
}

#[test]
fn a_tool_that_is_not_offered_is_not_called_by_the_chat() {
    let script = Script::interactive();
    let request = json!({ "model": "m", "messages": [{ "role": "user", "content": "run ls" }] });
    let reply = reply(&script, &read(request.to_string().as_bytes()).unwrap());
    assert!(reply.calls.is_empty() && reply.text.unwrap().contains("choir.exec"));
}

#[test]
fn a_placeholder_for_nothing_says_so() {
    let turn = Turn { user: "u", steps: Vec::new() };
    assert_eq!(
        fill("{{user}} {{last:/a}} {{result:9:/a}} {{x}} {{open", &turn),
        "u (nothing) (nothing) (nothing) {{open"
    );
    assert_eq!(fill_value(&json!(["{{user}}", "{{last:}}"]), &turn), json!(["u", "(nothing)"]));
}

proptest! {
    #[test]
    fn filling_in_is_total(text in "[{}a-z:/0-9]{0,24}", result in ".{0,12}") {
        let results = [result];
        let turn = Turn { user: "u", steps: vec![&results] };
        let _ = fill(&text, &turn);
        let _ = fill_value(&Value::from(text), &turn);
    }

    #[test]
    fn the_same_transcript_gets_the_same_answer(contents in prop::collection::vec(".{0,8}", 2)) {
        let script = script();
        let mut play = Play::new(&script);
        play.user("copy [t1]");
        for content in contents {
            prop_assert_eq!(play.ask(), play.ask());
            play.go(&[output(json!({ "content": content }))]);
        }
        prop_assert_eq!(play.ask(), play.ask());
    }
}
