//! What needs a process of its own: the test program runs itself again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use choir_tools::ToolRegistry;
use serde_json::{Value, json};

use crate::support::{Bench, bench, fifo, hear, wait_gone};

const WORKSPACE: &str = "CHOIR_TEST_WORKSPACE";
const INPUT: &str = "CHOIR_TEST_INPUT";
const CANARY: &str = "CHOIR_TEST_CANARY_SECRET";

/// The other process: runs one call in the given workspace and leaves its outcome in a file beside it.
#[test]
#[ignore = "run by the tests of this file, as a process of its own"]
fn the_other_process() {
    let (Ok(dir), Ok(input)) = (std::env::var(WORKSPACE), std::env::var(INPUT)) else { return };
    choir_tools::hide_process().unwrap();
    let dir = PathBuf::from(dir);
    let registry = std::sync::Arc::new(ToolRegistry::builtin(&dir.join("ws")).unwrap());
    let call: Value = serde_json::from_str(&input).unwrap();
    let place = tempfile::tempdir().unwrap();
    let bench = Bench { dir: place, registry };
    let outcome = bench.call(call["tool"].as_str().unwrap(), call["input"].clone());
    fs::write(dir.join("outcome"), serde_json::to_string(&outcome).unwrap()).unwrap();
}

fn other(bench: &Bench, tool: &str, input: &Value) -> Vec<(&'static str, String)> {
    let call = json!({"tool": tool, "input": input});
    vec![(WORKSPACE, bench.dir.path().to_str().unwrap().to_owned()), (INPUT, call.to_string())]
}

const ARGUMENTS: [&str; 4] = ["foreign::the_other_process", "--exact", "--ignored", "--nocapture"];

fn outcome(dir: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(dir.join("outcome")).unwrap()).unwrap()
}

#[test]
fn a_killed_agent_takes_its_commands_and_all_their_descendants_along() {
    let bench = bench();
    let ready = fifo(&bench);
    let script = format!(
        "echo $$ > pids; sleep 1000 & echo $! >> pids\n\
         (setsid sh -c 'echo $$ >> pids; echo up > {}; exec sleep 1000' &)\n\
         wait",
        ready.display()
    );
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args(ARGUMENTS)
        .envs(other(&bench, "choir.exec", &json!({ "command": script })))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(hear(&ready), "up\n");
    let pids = bench.content("pids");
    assert_eq!(pids.lines().count(), 3);
    agent.kill().unwrap();
    agent.wait().unwrap();
    for pid in pids.lines() {
        wait_gone(pid);
    }
    assert!(!bench.dir.path().join("outcome").exists());
}

#[test]
fn nothing_of_the_agents_environment_reaches_a_command() {
    let bench = bench();
    let script = "env; tr '\\0' '\\n' < /proc/$$/environ; set";
    let status = Command::new(std::env::current_exe().unwrap())
        .args(ARGUMENTS)
        .envs(other(&bench, "choir.exec", &json!({ "command": script })))
        .env(CANARY, "canary-value")
        .env("OPENROUTER_API_KEY", "canary-value")
        .env("LD_LIBRARY_PATH", "/canary-value")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let outcome = outcome(bench.dir.path());
    assert_eq!(outcome["status"], "success");
    assert!(!outcome.to_string().contains("canary-value"));
    let stdout = outcome["output"]["stdout"].as_str().unwrap();
    let mut names: Vec<_> = stdout
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .collect();
    names.sort_unstable();
    names.dedup();
    for name in ["CHOIR_CALL", "HOME", "LANG", "PATH", "TERM"] {
        assert!(names.contains(&name), "{name} is missing");
    }
    assert!(!names.contains(&WORKSPACE) && !names.contains(&"USER"));
}

#[test]
fn a_write_that_the_system_cannot_finish_leaves_the_old_content_and_no_rest() {
    let bench = bench();
    bench.file("f", "old content");
    let input = json!({"path": "f", "content": "x".repeat(100_000)});
    // Files of this process cannot grow beyond 32 KiB; the shell sees to it that it is told by an error.
    let status = Command::new("/bin/sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(ARGUMENTS)
        .envs(other(&bench, "choir.fs.write", &input))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let outcome = outcome(bench.dir.path());
    assert_eq!(outcome["status"], "error");
    let sentence = outcome["output"]["error"].as_str().unwrap();
    assert!(
        sentence.contains("larger than the system allows") && sentence.contains("not changed"),
        "{sentence}"
    );
    assert_eq!(bench.content("f"), "old content");
    assert_eq!(bench.leftovers(), [""; 0]);
}

#[test]
fn no_file_the_agent_has_open_is_open_in_a_command() {
    let bench = bench();
    let status = Command::new("/bin/sh")
        .args(["-c", "exec 9</etc/passwd; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(ARGUMENTS)
        .envs(other(&bench, "choir.exec", &json!({"command": "ls /proc/self/fd"})))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    // The fourth is the directory that ls itself reads.
    assert_eq!(outcome(bench.dir.path())["output"]["stdout"], "0\n1\n2\n3\n");
}
