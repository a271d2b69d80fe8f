use std::fs;

use serde_json::{Value, json};

use crate::support::{bench, fifo};

fn hits(output: &Value) -> Vec<String> {
    let matches = output["matches"].as_array().unwrap();
    matches
        .iter()
        .map(|m| format!("{}:{}:{}", m["path"].as_str().unwrap(), m["line"], m["text"].as_str().unwrap()))
        .collect()
}

#[test]
fn lines_are_found_in_order_with_path_and_number() {
    let bench = bench();
    bench.file("b.rs", "fn one() {}\nfn two() {}\n");
    bench.file("a/c.rs", "x\nFN ONE\n");
    bench.file("a/d.txt", "fn one");
    let output = bench.ok("choir.fs.search", json!({"pattern": "fn o\\w+"}));
    assert_eq!(hits(&output), ["a/d.txt:1:fn one", "b.rs:1:fn one() {}"]);
    assert_eq!((&output["complete"], &output["files_searched"]), (&json!(true), &json!(3)));
    let output =
        bench.ok("choir.fs.search", json!({"pattern": "FN ONE", "case_insensitive": true, "glob": "*.rs"}));
    assert_eq!(hits(&output), ["a/c.rs:2:FN ONE", "b.rs:1:fn one() {}"]);
    let output = bench.ok("choir.fs.search", json!({"pattern": "fn", "glob": "!a/**"}));
    assert_eq!(hits(&output), ["b.rs:1:fn one() {}", "b.rs:2:fn two() {}"]);
    let output = bench.ok("choir.fs.search", json!({"pattern": "one() {", "literal": true, "path": "b.rs"}));
    assert_eq!(hits(&output), ["b.rs:1:fn one() {}"]);
    let output = bench.ok("choir.fs.search", json!({"pattern": "one", "path": "a"}));
    assert_eq!(hits(&output), ["a/d.txt:1:fn one"]);
}

#[test]
fn hidden_and_ignored_files_are_searched_only_when_asked() {
    let bench = bench();
    bench.file(".gitignore", "target/\n*.log\n!keep.log\n/sub/gen\n");
    for path in ["target/x", "a.log", "keep.log", "sub/gen/y", "sub/z", ".hidden", ".choirtmp/recv/upload"] {
        bench.file(path, "needle\n");
    }
    let paths = |input: Value| -> Vec<String> {
        let output = bench.ok("choir.fs.search", input);
        hits(&output).iter().map(|hit| hit.split(':').next().unwrap().to_owned()).collect()
    };
    assert_eq!(paths(json!({"pattern": "needle"})), ["keep.log", "sub/z"]);
    // The rules above a directory count in it, too.
    assert_eq!(paths(json!({"pattern": "needle", "path": "sub"})), ["sub/z"]);
    assert_eq!(paths(json!({"pattern": "needle", "path": "target"})), ["target/x"]);
    assert_eq!(
        paths(json!({"pattern": "needle", "all": true})),
        [".hidden", "a.log", "keep.log", "sub/gen/y", "sub/z", "target/x"]
    );
    // The staging area has a lock of its own and is searched by its own name.
    assert_eq!(paths(json!({"pattern": "needle", "path": ".choirtmp"})), [".choirtmp/recv/upload"]);
}

#[test]
fn what_is_left_out_is_counted_and_said() {
    let bench = bench();
    bench.file("binary", b"needle\n\0\nneedle\n");
    bench.file("latin", b"needle \xe9\n");
    bench.file("text", "needle\n");
    fs::rename(fifo(&bench), bench.root().join("pipe")).unwrap();
    bench.link(bench.outside(), "out");
    let output = bench.ok("choir.fs.search", json!({"pattern": "needle"}));
    assert_eq!(hits(&output), ["latin:1:needle \u{fffd}", "text:1:needle"]);
    assert_eq!(output["files_skipped"], json!({"binary": 1, "special": 1}));
    assert!(bench.error("choir.fs.search", json!({"pattern": "x", "path": "pipe"})).contains("FIFO"));
    assert!(bench.error("choir.fs.search", json!({"pattern": "x", "path": "no"})).contains("does not exist"));
}

#[test]
fn an_ignore_file_that_is_a_pipe_or_endless_does_not_hold_the_search_up() {
    let bench = bench();
    fs::create_dir_all(bench.root().join("a")).unwrap();
    fs::rename(fifo(&bench), bench.root().join(".gitignore")).unwrap();
    bench.link("/dev/zero", "a/.gitignore");
    bench.file("a/x", "needle\n");
    assert_eq!(hits(&bench.ok("choir.fs.search", json!({"pattern": "needle"}))), ["a/x:1:needle"]);
}

#[test]
fn many_and_long_lines_are_bounded_and_the_search_says_how_to_narrow() {
    let bench = bench();
    bench.file("many", "needle\n".repeat(5000));
    let output = bench.ok("choir.fs.search", json!({"pattern": "needle", "max_results": 3}));
    assert_eq!(hits(&output).len(), 3);
    assert_eq!(output["complete"], false);
    assert!(output["note"].as_str().unwrap().contains("max_results"));
    bench.file("long", format!("{}needle\n", "x\u{1}".repeat(50_000)).repeat(300));
    let output =
        bench.ok("choir.fs.search", json!({"pattern": "needle", "path": "long", "max_results": 1000}));
    assert!(output["note"].as_str().unwrap().contains("narrow the search"));
    assert_eq!(output["matches"][0]["line_bytes"], 100_007);
    bench.file("endless", "x".repeat(5 * 1024 * 1024));
    let output = bench.ok("choir.fs.search", json!({"pattern": "y", "path": "endless"}));
    assert_eq!(output["files_skipped"], json!({"with_too_long_lines": 1}));
}

#[test]
fn a_pattern_that_would_need_too_much_memory_is_refused() {
    let bench = bench();
    let sentence = bench.error("choir.fs.search", json!({"pattern": "(\\w{100}){100}{100}"}));
    assert!(sentence.contains("regular expression"), "{sentence}");
    let deep = format!("{}x{}", "(".repeat(200), ")".repeat(200));
    assert!(bench.error("choir.fs.search", json!({"pattern": deep})).contains("regular expression"));
    assert!(bench.error("choir.fs.search", json!({"pattern": "a\nb"})).contains("one line at a time"));
}
