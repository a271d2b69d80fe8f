use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use choir_messages::tool::ToolStatus;
use choir_tools::ToolRegistry;
use choir_tools::stop::Stop;
use serde_json::json;

use crate::support::{Bench, DEADLINE, alive, bench, fifo, hear, wait_gone};

#[test]
fn a_command_runs_in_the_workspace_and_its_streams_stay_apart() {
    let bench = bench();
    bench.file("sub/f", "");
    let output = bench.ok("choir.exec", json!({"command": "pwd; ls; echo oops >&2; cat", "stdin": "given"}));
    let root = bench.root().canonicalize().unwrap();
    assert_eq!(output["stdout"], format!("{}\nsub\ngiven", root.display()));
    assert_eq!(output["stderr"], "oops\n");
    assert_eq!(output["exit_code"], 0);
    assert_eq!(bench.ok("choir.exec", json!({"command": "ls", "cwd": "sub"}))["stdout"], "f\n");
    // With no input there is none, rather than a wait for some.
    assert_eq!(bench.ok("choir.exec", json!({"command": "cat; echo end"}))["stdout"], "end\n");
}

#[test]
fn a_command_that_fails_is_an_error_with_its_output() {
    let bench = bench();
    let outcome = bench.call("choir.exec", json!({"command": "echo partial; exit 3"}));
    assert_eq!(outcome.status, ToolStatus::Error);
    let output = outcome.output.value();
    assert_eq!((&output["exit_code"], &output["stdout"]), (&json!(3), &json!("partial\n")));
    assert_eq!(output["error"], "the command ended with exit code 3");
    let outcome = bench.call("choir.exec", json!({"command": "kill -TERM $$"}));
    assert_eq!(outcome.output.value()["signal"], 15);
    let missing = bench.call("choir.exec", json!({"command": "no-such-command-anywhere"}));
    assert_eq!(missing.output.value()["exit_code"], 127);
}

#[test]
fn ten_megabytes_of_output_keep_their_head_and_tail_and_say_what_was_cut() {
    let bench = bench();
    let script = "echo first; head -c 10485760 /dev/zero | tr '\\0' 'x'; echo; echo last; head -c 1048576 /dev/zero >&2";
    let outcome = bench.call("choir.exec", json!({ "command": script }));
    assert_eq!(outcome.status, ToolStatus::Success);
    let output = outcome.output.value();
    let stdout = output["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("first\nxxx") && stdout.ends_with("xxx\nlast\n"));
    assert!(stdout.contains("bytes cut"));
    assert_eq!((&output["stdout_bytes"], &output["stderr_bytes"]), (&json!(10_485_772), &json!(1_048_576)));
    assert!(outcome.cut_bytes > 11_000_000);
}

#[test]
fn output_that_is_not_utf8_is_shown_with_replacement_characters() {
    let bench = bench();
    let output = bench.ok("choir.exec", json!({"command": "printf 'a\\377b'"}));
    assert_eq!(output["stdout"], "a\u{fffd}b");
}

#[test]
fn a_command_that_never_reads_its_input_or_closes_it_early_is_fine() {
    let bench = bench();
    let big = "x".repeat(500_000);
    assert_eq!(bench.ok("choir.exec", json!({"command": "true", "stdin": big}))["exit_code"], 0);
    assert_eq!(
        bench.ok("choir.exec", json!({"command": "wc -c", "stdin": big}))["stdout"].as_str().unwrap().trim(),
        "500000"
    );
}

#[test]
fn a_command_past_its_time_is_ended_with_all_its_descendants() {
    let bench = bench();
    // A plain child, a grandchild in a session of its own, and one that lets its parents end.
    let script = "sleep 1000 & echo $! >> pids\n\
                  setsid sh -c 'echo $$ >> pids; sleep 1000' &\n\
                  (setsid sh -c 'echo $$ >> pids; exec sleep 1000' &)\n\
                  while [ \"$(wc -l < pids)\" -lt 3 ]; do :; done\n\
                  echo ready; wait";
    let stop = Stop::within(Duration::from_millis(500));
    let outcome = bench.call_with("choir.exec", &json!({ "command": script }), &stop);
    assert_eq!(outcome.status, ToolStatus::Error);
    assert!(outcome.output.value()["error"].as_str().unwrap().contains("took longer"));
    // However many had come up by then.
    for pid in fs::read_to_string(bench.root().join("pids")).unwrap_or_default().lines() {
        wait_gone(pid);
        assert!(!alive(pid), "{pid} is alive");
    }
}

#[test]
fn a_cancelled_command_is_ended_with_all_its_descendants() {
    let bench = Arc::new(bench());
    let ready = fifo(&bench);
    let stop = Arc::new(Stop::within(DEADLINE));
    let script = format!(
        "echo begun; sleep 1000 & echo $! > pids; setsid sh -c 'echo $$ >> pids; echo up > {0}; exec sleep 1000' & wait",
        ready.display()
    );
    let call = thread::spawn({
        let (bench, stop) = (Arc::clone(&bench), Arc::clone(&stop));
        move || bench.call_with("choir.exec", &json!({ "command": script }), &stop)
    });
    assert_eq!(hear(&ready), "up\n");
    stop.cancel();
    let outcome = call.join().unwrap();
    assert_eq!(outcome.status, ToolStatus::Cancelled);
    assert_eq!(outcome.output.value()["stdout"], "begun\n");
    for pid in bench.content("pids").lines() {
        wait_gone(pid);
    }
}

#[test]
fn a_background_process_that_holds_the_output_open_does_not_hold_the_call() {
    let bench = bench();
    let output = bench.ok("choir.exec", json!({"command": "sleep 1000 & echo $! > pid; echo done"}));
    assert_eq!(output["stdout"], "done\n");
    assert!(output["note"].as_str().unwrap().contains("background"));
    wait_gone(&bench.content("pid"));
    // One that wrote its output away is ended as well: the lock on the workspace is gone with the call.
    let output =
        bench.ok("choir.exec", json!({"command": "setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid"}));
    assert!(output["note"].as_str().unwrap().contains("background"));
    wait_gone(&bench.content("pid"));
}

#[test]
fn nothing_of_a_call_is_left_when_it_is_over() {
    let bench = bench();
    let output = bench.ok("choir.exec", json!({"command": "echo $$ > pid; echo $CHOIR_CALL"}));
    // Neither the shell nor its guard, which has the call's name among its arguments, not even as zombies.
    assert!(!fs::exists(format!("/proc/{}", bench.content("pid").trim())).unwrap());
    let call = output["stdout"].as_str().unwrap().trim();
    assert_eq!(call.len(), 26);
    let named = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let arguments = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&arguments).contains(call).then_some(arguments)
    });
    assert_eq!(named.count(), 0);
}

#[test]
fn a_command_inherits_the_search_path_and_the_mark_of_its_sandbox_and_nothing_else() {
    let bench = bench();
    let names = json!({"command": "env | cut -d= -f1 | grep -vx -e PWD -e SHLVL -e OLDPWD -e _ | sort | tr '\\n' ' '"});
    let path = "/usr/bin:/bin";
    let marked = Bench {
        registry: Arc::new(ToolRegistry::builtin_with(&bench.root(), path, Some("label/01")).unwrap()),
        ..bench
    };
    assert_eq!(
        marked.ok("choir.exec", names.clone())["stdout"],
        "CHOIR_CALL CHOIR_SANDBOX HOME LANG PATH TERM "
    );
    let shown = marked.ok("choir.exec", json!({"command": "echo $CHOIR_SANDBOX $PATH"}));
    assert_eq!(shown["stdout"], "label/01 /usr/bin:/bin\n");
    let bare = Bench {
        registry: Arc::new(ToolRegistry::builtin_with(&marked.root(), path, None).unwrap()),
        ..marked
    };
    assert_eq!(bare.ok("choir.exec", names)["stdout"], "CHOIR_CALL HOME LANG PATH TERM ");
}

#[test]
fn a_command_has_no_privilege_to_gain() {
    let bench = bench();
    let output = bench.ok("choir.exec", json!({"command": "grep NoNewPrivs /proc/self/status"}));
    assert_eq!(output["stdout"], "NoNewPrivs:\t1\n");
}

#[test]
fn a_cancel_before_the_start_starts_nothing() {
    let bench = bench();
    let stop = Stop::within(Duration::from_secs(60));
    stop.cancel();
    let outcome = bench.call_with("choir.exec", &json!({"command": "touch ran"}), &stop);
    assert_eq!(outcome.status, ToolStatus::Cancelled);
    assert!(!bench.root().join("ran").exists());
}
