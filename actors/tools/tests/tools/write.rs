use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use choir_messages::chain::Digest;
use choir_messages::tool::ToolStatus;
use choir_tools::stop::Stop;
use serde_json::json;

use crate::support::{DEADLINE, bench};

#[test]
fn every_mode_writes_what_it_says_and_reports_it() {
    let bench = bench();
    let output = bench.ok("choir.fs.write", json!({"path": "new/deep/f", "content": "1\n2\n"}));
    assert_eq!(output["created"], true);
    assert_eq!((&output["bytes"], &output["lines"]), (&json!(4), &json!(2)));
    assert_eq!(output["sha256"], Digest::of(b"1\n2\n").to_string());
    for (input, content) in [
        (json!({"mode": "append", "content": "3\n"}), "1\n2\n3\n"),
        (json!({"mode": "insert", "line": 2, "content": "x"}), "1\nx\n2\n3\n"),
        (json!({"mode": "replace", "from": 1, "to": 2, "content": "y"}), "y\n2\n3\n"),
        (json!({"mode": "replace", "from": 3, "content": ""}), "y\n2\n"),
        (json!({"mode": "replace", "find": "y\n2", "content": "z"}), "z\n"),
        (json!({"content": "over"}), "over"),
    ] {
        let mut call = input.clone();
        call["path"] = json!("new/deep/f");
        bench.ok("choir.fs.write", call);
        assert_eq!(bench.content("new/deep/f"), content, "{input}");
    }
    bench.ok("choir.fs.write", json!({"path": "log", "mode": "append", "content": "first\n"}));
    assert_eq!(bench.content("log"), "first\n");
}

#[test]
fn an_edit_that_does_not_fit_changes_nothing_and_says_why() {
    let bench = bench();
    bench.file("f", "a\na\n");
    for (input, says) in [
        (json!({"mode": "replace", "find": "a", "content": ""}), "stands 2 times"),
        (json!({"mode": "replace", "find": "b", "content": ""}), "not in the file"),
        (json!({"mode": "replace", "from": 3, "content": ""}), "has 2 lines"),
        (json!({"mode": "insert", "line": 4, "content": "x"}), "has 2 lines"),
        (json!({"path": "none", "mode": "insert", "line": 1, "content": "x"}), "does not exist"),
        (json!({"path": "f/x", "content": "x"}), "\"f\" is not a directory"),
    ] {
        let mut call = json!({"path": "f"});
        call.as_object_mut().unwrap().extend(input.as_object().unwrap().clone());
        let sentence = bench.error("choir.fs.write", call);
        assert!(sentence.contains(says), "{input}: {sentence}");
    }
    assert_eq!(bench.content("f"), "a\na\n");
    fs::create_dir(bench.root().join("d")).unwrap();
    assert!(bench.error("choir.fs.write", json!({"path": "d", "content": "x"})).contains("is a directory"));
}

#[test]
fn an_existing_file_keeps_its_mode_and_the_old_content_is_never_half_there() {
    let bench = bench();
    bench.file("script", "#!/bin/sh\n");
    let path = bench.root().join("script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
    // Whoever has the old file open keeps reading the old content.
    let before = fs::metadata(&path).unwrap().ino();
    let mut reader = fs::File::open(&path).unwrap();
    bench.ok("choir.fs.write", json!({"path": "script", "content": "new\n"}));
    let after = fs::metadata(&path).unwrap();
    assert_eq!(after.permissions().mode() & 0o7777, 0o750);
    assert_ne!(after.ino(), before);
    let mut old = String::new();
    std::io::Read::read_to_string(&mut reader, &mut old).unwrap();
    assert_eq!(old, "#!/bin/sh\n");
    assert_eq!(bench.leftovers(), [""; 0]);
}

#[test]
fn a_link_inside_the_workspace_stays_a_link_and_its_target_is_written() {
    let bench = bench();
    bench.file("real/f", "old");
    bench.link("real/f", "link");
    let output = bench.ok("choir.fs.write", json!({"path": "link", "content": "new"}));
    assert_eq!(output["path"], "real/f");
    assert_eq!(bench.content("real/f"), "new");
    assert!(fs::symlink_metadata(bench.root().join("link")).unwrap().is_symlink());
}

#[test]
fn bytes_outside_the_edited_place_survive_whatever_they_are() {
    let bench = bench();
    bench.file("f", b"\xff\r\nmiddle\r\n\0\xfe");
    bench.ok("choir.fs.write", json!({"path": "f", "mode": "replace", "find": "middle", "content": "é"}));
    assert_eq!(fs::read(bench.root().join("f")).unwrap(), b"\xff\r\n\xc3\xa9\r\n\0\xfe");
}

#[test]
fn a_cancelled_write_changes_nothing() {
    let bench = bench();
    bench.file("f", "old");
    let stop = Stop::within(DEADLINE);
    stop.cancel();
    let outcome = bench.call_with("choir.fs.write", &json!({"path": "f", "content": "new"}), &stop);
    assert_eq!(outcome.status, ToolStatus::Cancelled);
    assert_eq!(bench.content("f"), "old");
}

#[test]
fn a_file_too_large_to_edit_in_place_is_left_alone() {
    let bench = bench();
    let file = fs::File::create(bench.root().join("big")).unwrap();
    file.set_len(17 * 1024 * 1024).unwrap();
    let sentence = bench.error("choir.fs.write", json!({"path": "big", "mode": "append", "content": "x"}));
    assert!(sentence.contains("use choir.exec"), "{sentence}");
    // Replacing it whole needs no old content in memory.
    bench.ok("choir.fs.write", json!({"path": "big", "content": "small"}));
    assert_eq!(bench.content("big"), "small");
}
