use std::fs;

use choir_messages::id::InvocationId;
use choir_messages::tool::{Lane, Replay, ToolStatus};
use choir_tools::Call;
use choir_tools::stop::Stop;
use choir_tools::workspace::Workspace;
use choir_tools::write::edit::{Edit, apply};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{DEADLINE, again, bench};

/// Where the first run was when the process died.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Died {
    BeforeAnything,
    BeforeRename,
    AfterRename,
}

/// What others did to the file in between.
#[derive(Debug, Clone, PartialEq)]
enum Others {
    Nothing,
    Wrote(String),
    Removed,
}

fn edits() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[a-c\n]{0,6}".prop_map(|content| json!({"path": "f", "content": content})),
        "[a-c\n]{0,6}".prop_map(|content| json!({"path": "f", "mode": "append", "content": content})),
        "[a-c]{1,3}"
            .prop_map(|content| json!({"path": "f", "mode": "insert", "line": 1, "content": content})),
        "[a-c]{0,3}"
            .prop_map(|content| json!({"path": "f", "mode": "replace", "from": 1, "content": content})),
    ]
}

fn others() -> impl Strategy<Value = Others> {
    prop_oneof![
        3 => Just(Others::Nothing),
        1 => "[a-d\n]{0,6}".prop_map(Others::Wrote),
        1 => Just(Others::Removed),
    ]
}

fn expected(old: Option<&str>, input: &Value) -> Option<String> {
    let edit = match input["mode"].as_str() {
        None => Edit::Overwrite,
        Some("append") => Edit::Append,
        Some("insert") => Edit::Insert { line: 1 },
        Some(_) => Edit::Lines { from: 1, to: 1 },
    };
    let new = apply(old.map(str::as_bytes), edit, input["content"].as_str().unwrap().as_bytes()).ok()?;
    Some(String::from_utf8(new).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_write_cut_short_anywhere_takes_effect_once_or_is_reported_unknown(
        old in prop::option::of("[a-c\n]{0,6}"),
        input in edits(),
        died in prop_oneof![Just(Died::BeforeAnything), Just(Died::BeforeRename), Just(Died::AfterRename)],
        others in others(),
        repeats in 1usize..4,
    ) {
        let bench = bench();
        if let Some(old) = &old {
            bench.file("f", old);
        }
        let file = bench.root().join("f");
        let stop = Stop::within(DEADLINE);
        let id = InvocationId::fresh();
        let valid = bench.registry.validate(&Lane::Edge, "choir.fs.write", &input.to_string()).unwrap();
        let tool = bench.registry.get("choir.fs.write").unwrap();
        let Some(after) = expected(old.as_deref(), &input) else {
            prop_assert!(tool.prepare(valid.input.value(), &stop).is_err());
            return Ok(());
        };
        let replay = tool.prepare(valid.input.value(), &stop).unwrap();
        let guards = matches!(&replay, Replay::FileChange { path, .. } if path == "f");
        prop_assert!(guards);

        match died {
            Died::BeforeAnything => {}
            Died::BeforeRename => {
                let workspace = Workspace::open(&bench.root()).unwrap();
                let path = workspace.resolve("f").unwrap();
                let stat = workspace.open_file(&path).ok().map(|(_, stat)| stat);
                let staged = workspace.stage(&path, after.as_bytes(), stat.as_ref(), id, &stop).unwrap();
                // The process is gone: nothing is tidied up.
                std::mem::forget(staged);
                prop_assert_eq!(bench.leftovers().len(), 1);
            }
            Died::AfterRename => {
                let call = Call { invocation: id, input: valid.input.value(), replay: &replay, again: false, stop: &stop };
                prop_assert_eq!(tool.run(&call).status, ToolStatus::Success);
            }
        }
        match &others {
            Others::Nothing => {}
            Others::Wrote(text) => fs::write(&file, text).unwrap(),
            Others::Removed => drop(fs::remove_file(&file)),
        }

        let found = fs::read_to_string(&file).ok();
        let known = found == old || found.as_ref() == Some(&after);
        for _ in 0..repeats {
            let outcome = again(&bench, "choir.fs.write", valid.input.value(), &replay, id);
            if known {
                prop_assert_eq!(outcome.status, ToolStatus::Success);
                prop_assert_eq!(fs::read_to_string(&file).unwrap(), after.clone());
            } else {
                prop_assert_eq!(outcome.status, ToolStatus::OutcomeUnknown);
                prop_assert_eq!(&fs::read_to_string(&file).ok(), &found);
            }
        }
        prop_assert!(bench.leftovers().is_empty());
    }
}

#[test]
fn a_file_that_changed_between_commit_and_run_is_not_overwritten() {
    let bench = bench();
    bench.file("f", "old");
    let stop = Stop::within(DEADLINE);
    let input = json!({"path": "f", "mode": "append", "content": "x"});
    let tool = bench.registry.get("choir.fs.write").unwrap();
    let replay = tool.prepare(&input, &stop).unwrap();
    bench.file("f", "somebody else's");
    let call =
        Call { invocation: InvocationId::fresh(), input: &input, replay: &replay, again: false, stop: &stop };
    let outcome = tool.run(&call);
    assert_eq!(outcome.status, ToolStatus::Error);
    assert!(outcome.output.value()["error"].as_str().unwrap().contains("look at it again"));
    assert_eq!(bench.content("f"), "somebody else's");
}

#[test]
fn a_command_is_never_run_again() {
    let bench = bench();
    let input = json!({"command": "echo x >> log", "cwd": "."});
    let outcome = again(&bench, "choir.exec", &input, &Replay::Unrepeatable, InvocationId::fresh());
    assert_eq!(outcome.status, ToolStatus::OutcomeUnknown);
    assert!(!bench.root().join("log").exists());
}
