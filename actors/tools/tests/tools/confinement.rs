use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use choir_messages::tool::ToolStatus;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use crate::support::{Bench, bench, fifo};

#[test]
fn no_tool_follows_a_link_out_of_the_workspace() {
    let bench = bench();
    bench.link(bench.outside(), "dir");
    bench.link("../outside/secret", "file");
    bench.link("/dev/zero", "zero");
    bench.link("/proc/self/fd", "fd");
    for (tool, input) in [
        ("choir.fs.read", json!({"path": "file"})),
        ("choir.fs.read", json!({"path": "dir/secret"})),
        ("choir.fs.read", json!({"path": "dir"})),
        ("choir.fs.read", json!({"path": "zero"})),
        ("choir.fs.read", json!({"path": "fd/0"})),
        ("choir.fs.write", json!({"path": "file", "content": "x"})),
        ("choir.fs.write", json!({"path": "dir/new", "content": "x"})),
        ("choir.fs.search", json!({"pattern": "secret", "path": "dir"})),
        ("choir.exec", json!({"command": "cat secret", "cwd": "dir"})),
    ] {
        let outcome = bench.call(tool, input.clone());
        assert_eq!(outcome.status, ToolStatus::Refused, "{tool} {input}");
        let sentence = outcome.output.value()["error"].as_str().unwrap();
        assert!(sentence.contains("out of the workspace"), "{sentence}");
    }
    assert!(!bench.outside().join("new").exists());
    // A search of everything passes links by.
    let output = bench.ok("choir.fs.search", json!({"pattern": "secret", "all": true}));
    assert_eq!(output["matches"], json!([]));
}

#[test]
fn a_fifo_or_socket_is_refused_at_once_by_every_file_tool() {
    let bench = bench();
    fs::rename(fifo(&bench), bench.root().join("pipe")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(bench.root().join("sock")).unwrap();
    for (name, kind) in [("pipe", "FIFO"), ("sock", "socket")] {
        for (tool, input) in [
            ("choir.fs.read", json!({"path": name})),
            ("choir.fs.write", json!({"path": name, "content": "x"})),
            ("choir.fs.write", json!({"path": name, "content": "x", "mode": "append"})),
            ("choir.fs.search", json!({"path": name, "pattern": "x"})),
        ] {
            let sentence = bench.error(tool, input);
            assert!(sentence.contains(kind), "{tool}: {sentence}");
        }
    }
}

/// Exchanges the directory `d` and a link to the outside, as fast as it can, while `work` runs.
fn while_swapping(bench: &Bench, work: impl FnOnce()) {
    fs::create_dir(bench.root().join("d")).unwrap();
    bench.link(bench.outside(), "l");
    let (d, l) = (bench.root().join("d"), bench.root().join("l"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0u64;
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &d, CWD, &l, RenameFlags::EXCHANGE).unwrap();
                swaps += 1;
            }
            swaps
        });
        work();
        over.store(true, Ordering::Relaxed);
        assert!(swapper.join().unwrap() > 0);
    });
}

#[test]
fn a_directory_swapped_with_a_link_midway_never_leads_a_write_outside() {
    let bench = bench();
    let (mut inside, mut turned_away) = (0, 0);
    while_swapping(&bench, || {
        let until = std::time::Instant::now() + crate::support::DEADLINE;
        // At least so many, and on until one has met the real directory, so that not all were merely turned away.
        for n in 0.. {
            if (n >= 400 && inside > 0) || std::time::Instant::now() > until {
                break;
            }
            let path = format!("d/{}f{n}", if n % 2 == 0 { "sub/" } else { "" });
            let outcome = bench.call("choir.fs.write", json!({"path": path, "content": "x"}));
            match outcome.status {
                ToolStatus::Success => inside += 1,
                _ => turned_away += 1,
            }
        }
    });
    assert!(inside > 0, "no write met the real directory ({turned_away} were turned away)");
    let outside: Vec<_> = fs::read_dir(bench.outside()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(outside, ["secret"]);
    assert_eq!(fs::read_to_string(bench.outside().join("secret")).unwrap(), "the secret\n");
}

#[test]
fn a_directory_swapped_with_a_link_midway_never_shows_what_is_outside() {
    let bench = bench();
    while_swapping(&bench, || {
        for _ in 0..200 {
            for (tool, input) in [
                ("choir.fs.read", json!({"path": "d/secret"})),
                ("choir.fs.read", json!({"path": "d"})),
                ("choir.fs.search", json!({"pattern": "secret", "all": true})),
                ("choir.fs.search", json!({"pattern": "secret", "path": "d"})),
            ] {
                let outcome = bench.call(tool, input);
                let text = outcome.output.value().to_string();
                assert!(!text.contains("the secret"), "{tool}: {text}");
                assert!(!text.contains("\"name\":\"secret\""), "{tool}: {text}");
            }
        }
    });
}
