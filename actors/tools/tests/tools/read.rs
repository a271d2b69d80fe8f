use std::fmt::Write as _;

use choir_messages::limits::TOOL_OUTPUT_BYTES;
use choir_messages::tool::ToolStatus;
use proptest::prelude::*;
use serde_json::json;

use crate::support::bench;

#[test]
fn a_file_is_read_whole_or_in_the_part_asked_for() {
    let bench = bench();
    bench.file("f", "1\n2\n3\n4\n5");
    for (input, content, first, last, end) in [
        (json!({}), "1\n2\n3\n4\n5", 1, 5, true),
        (json!({"head": 2}), "1\n2\n", 1, 2, false),
        (json!({"head": 5}), "1\n2\n3\n4\n5", 1, 5, true),
        (json!({"tail": 2}), "4\n5", 4, 5, true),
        (json!({"tail": 9}), "1\n2\n3\n4\n5", 1, 5, true),
        (json!({"offset": 3}), "3\n4\n5", 3, 5, true),
        (json!({"offset": 2, "limit": 2}), "2\n3\n", 2, 3, false),
    ] {
        let mut call = input.clone();
        call["path"] = json!("f");
        let output = bench.ok("choir.fs.read", call);
        assert_eq!(output["content"], content, "{input}");
        assert_eq!((&output["first_line"], &output["last_line"]), (&json!(first), &json!(last)), "{input}");
        assert_eq!(output["end_of_file"], end, "{input}");
        assert_eq!(output.get("note").is_some(), !end, "{input}");
    }
    let beyond = bench.ok("choir.fs.read", json!({"path": "f", "offset": 9}));
    assert_eq!(beyond["content"], "");
    assert_eq!(beyond["note"], "the file has only 5 lines");
    bench.file("empty", "");
    assert_eq!(bench.ok("choir.fs.read", json!({"path": "empty"}))["content"], "");
    assert_eq!(bench.ok("choir.fs.read", json!({"path": "empty", "tail": 3}))["content"], "");
}

#[test]
fn a_long_file_is_read_in_parts_that_join_without_gap_or_repeat() {
    let bench = bench();
    let mut text = String::new();
    for n in 0..20_000 {
        writeln!(text, "line {n} \"quoted\" \u{1} é").unwrap();
    }
    bench.file("long", &text);
    let (mut joined, mut offset, mut parts) = (String::new(), 1, 0);
    loop {
        let outcome = bench.call("choir.fs.read", json!({"path": "long", "offset": offset}));
        let output = outcome.output.value();
        joined.push_str(output["content"].as_str().unwrap());
        parts += 1;
        if output["end_of_file"] == true {
            assert_eq!(outcome.cut_bytes, 0);
            break;
        }
        assert!(outcome.cut_bytes > 0);
        offset = output["last_line"].as_u64().unwrap() + 1;
        assert_eq!(output["note"], format!("the file goes on; read on with offset {offset}"));
    }
    assert_eq!(joined, text);
    assert!(parts > 5);
    let tail = bench.call("choir.fs.read", json!({"path": "long", "tail": 20_000}));
    assert!(text.ends_with(tail.output.value()["content"].as_str().unwrap()));
    assert!(tail.cut_bytes > 0);
}

#[test]
fn a_line_longer_than_an_output_is_cut_and_the_next_can_be_read() {
    let bench = bench();
    bench.file("min.js", format!("{}\nnext\n", "é".repeat(100_000)));
    let output = bench.ok("choir.fs.read", json!({"path": "min.js"}));
    assert!(output["note"].as_str().unwrap().contains("line 1 is too long"), "{}", output["note"]);
    assert!(output["note"].as_str().unwrap().contains("offset 2"));
    assert_eq!(bench.ok("choir.fs.read", json!({"path": "min.js", "offset": 2}))["content"], "next\n");
    let tail = bench.ok("choir.fs.read", json!({"path": "min.js", "tail": 2}));
    assert!(tail["content"].as_str().unwrap().ends_with("next\n"));
}

#[test]
fn a_file_that_is_no_text_is_reported_with_its_size_and_never_guessed() {
    let bench = bench();
    bench.file("latin", b"caf\xe9\n");
    bench.file("elf", b"\x7fELF\0\0\0");
    for (name, size, hex) in [("latin", 5, "636166e90a"), ("elf", 7, "7f454c46000000")] {
        let output = bench.ok("choir.fs.read", json!({"path": name}));
        assert_eq!((&output["binary"], &output["size"]), (&json!(true), &json!(size)));
        assert_eq!(output["sample_hex"], hex);
        assert!(output.get("content").is_none());
    }
    let lossy = bench.ok("choir.fs.read", json!({"path": "latin", "lossy": true}));
    assert_eq!(lossy["content"], "caf\u{fffd}\n");
}

#[test]
fn a_directory_is_listed_sorted_and_in_parts() {
    let bench = bench();
    bench.file("d/b", "");
    bench.file("d/a/x", "");
    bench.link("b", "d/c");
    let output = bench.ok("choir.fs.read", json!({"path": "d"}));
    assert_eq!(
        output["entries"],
        json!([{"name": "a", "kind": "directory"}, {"name": "b", "kind": "file"}, {"name": "c", "kind": "link"}])
    );
    for n in 0..1500 {
        bench.file(&format!("many/{n:04}"), "");
    }
    let first = bench.ok("choir.fs.read", json!({"path": "many"}));
    let shown = first["entries"].as_array().unwrap().len();
    assert!(first["note"].as_str().unwrap().contains(&format!("offset {}", shown + 1)));
    let next = bench.ok("choir.fs.read", json!({"path": "many", "offset": shown + 1, "limit": 1}));
    assert_eq!(next["entries"][0]["name"], format!("{shown:04}"));
}

#[test]
fn a_path_that_cannot_be_read_says_why() {
    let bench = bench();
    bench.file("f", "");
    assert!(bench.error("choir.fs.read", json!({"path": "no"})).contains("\"no\" does not exist"));
    assert!(bench.error("choir.fs.read", json!({"path": "f/x"})).contains("\"f\" is not a directory"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_file_and_any_range_give_an_output_that_fits(
        bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\\'), any::<u8>(), Just(b'x')], 0..300),
        times in 1usize..400, lossy in any::<bool>(), n in 1u64..500, kind in 0u8..4,
    ) {
        let bench = bench();
        bench.file("f", bytes.repeat(times));
        let mut input = json!({"path": "f", "lossy": lossy});
        match kind {
            0 => {}
            1 => input["head"] = json!(n),
            2 => input["tail"] = json!(n),
            _ => input["offset"] = json!(n),
        }
        let outcome = bench.call("choir.fs.read", input);
        prop_assert_eq!(outcome.status, ToolStatus::Success);
        prop_assert!(outcome.output.value().to_string().len() <= TOOL_OUTPUT_BYTES);
    }
}
