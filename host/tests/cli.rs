//! `choirctl` and `choird` as a person or a script meets them, where no choird runs.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn choirctl(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_choirctl"));
    command.arg("--state-dir").arg(state).args(arguments).stdin(Stdio::null());
    // Usage errors are no crashes, whatever the environment wishes.
    command
        .env("RUST_BACKTRACE", "1")
        .env_remove("NO_COLOR")
        .env_remove("OPENROUTER_API_KEY")
        .env_remove("OPENAI_API_KEY");
    command
}

fn run(state: &Path, arguments: &[&str]) -> (i32, String, String) {
    done(choirctl(state, arguments).output().unwrap())
}

fn done(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::Builder::new().prefix("choir-").tempdir_in("/tmp").unwrap();
    let state = dir.path().join("s");
    (dir, state)
}

#[test]
fn the_exit_codes_are_documented_in_the_help() {
    let (_dir, state) = folder();
    let (code, help, _) = run(&state, &["--help"]);
    assert_eq!(code, 0);
    for line in [
        "0  done",
        "1  the answer is no",
        "2  wrong usage",
        "3  something",
        "4  a fault",
        "5  refused by a rule",
    ] {
        assert!(help.contains(line), "{line}");
    }
    for (command, example) in [
        ("init", "choirctl init --endpoint"),
        ("secret set", "printf %s"),
        ("actor kill", "session/arbiter"),
        ("logs", "-n 50"),
    ] {
        let arguments: Vec<_> = command.split(' ').chain(["--help"]).collect();
        let (code, help, _) = run(&state, &arguments);
        assert!(code == 0 && help.contains("Examples:") && help.contains(example), "{command}: {help}");
    }
    let choird = Command::new(env!("CARGO_BIN_EXE_choird")).arg("--help").output().unwrap();
    let (code, help, _) = done(choird);
    assert!(code == 0 && help.contains("Exit codes:") && help.contains("CHOIR_AGENT_BIN"), "{help}");
}

#[test]
fn each_kind_of_failure_has_its_exit_code_and_keeps_standard_output_clean() {
    let (_dir, state) = folder();
    let table: &[(&[&str], i32, &str)] = &[
        (&["status"], 3, "choirctl init"),
        (&["no-such-command"], 2, "unrecognized subcommand"),
        (&["agent", "start", "Not A Name"], 2, "is not a name"),
        (&["session", "verify", "123"], 2, "is not a ULID"),
        (&["secret", "set", "name", "value"], 2, "unexpected argument"),
        (&["--timeout", "0", "status"], 2, "a number of seconds"),
        (&["init", "--endpoint", "nonsense"], 2, "must be a URL"),
    ];
    for (arguments, expected, says) in table {
        let (code, out, err) = run(&state, arguments);
        assert_eq!(code, *expected, "{arguments:?}: {err}");
        assert!(out.is_empty() && err.contains(says), "{arguments:?}: {out}{err}");
        assert!(!err.contains("stack backtrace") && !err.contains('\u{1b}'), "{err}");
    }
    assert!(!state.exists(), "nothing was made");
}

#[test]
fn init_makes_a_private_folder_with_a_good_configuration_and_touches_nothing_twice() {
    let (_dir, state) = folder();
    let (code, out, _) = run(&state, &["init"]);
    assert_eq!(code, 0);
    assert!(
        out.contains("choirctl secret set model-key") && out.contains("choirctl chat assistant"),
        "{out}"
    );
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&state.join("secrets.json"))), (0o700, 0o600));
    let before = std::fs::read(state.join("config.json")).unwrap();
    let (code, _, err) = run(&state, &["init"]);
    assert!(code == 5 && err.contains("nothing was changed"), "{err}");
    assert_eq!(std::fs::read(state.join("config.json")).unwrap(), before);
    let (code, out, _) = run(&state, &["--json", "config", "check"]);
    assert_eq!(code, 0);
    let checked: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(checked["valid"], true);
    assert!(checked["missing"][0].as_str().unwrap().contains("choirctl secret set model-key"));
}

#[test]
fn init_points_at_a_key_in_the_environment_and_copies_it_nowhere() {
    let (_dir, state) = folder();
    let (code, out, err) =
        done(choirctl(&state, &["init"]).env("OPENROUTER_API_KEY", "canary-key").output().unwrap());
    assert_eq!(code, 0);
    assert!(out.contains("\"$OPENROUTER_API_KEY\" | choirctl secret set model-key"), "{out}");
    let files = [out, err, read(&state, "config.json"), read(&state, "secrets.json")].concat();
    assert!(!files.contains("canary-key"));
}

fn read(state: &Path, name: &str) -> String {
    std::fs::read_to_string(state.join(name)).unwrap()
}

#[test]
fn a_secret_comes_from_standard_input_and_is_never_shown() {
    use std::io::Write as _;
    let (_dir, state) = folder();
    run(&state, &["init"]);
    let mut child = choirctl(&state, &["secret", "set", "model-key"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"canary-key\n").unwrap();
    let (code, out, err) = done(child.wait_with_output().unwrap());
    assert_eq!(code, 0, "{err}");
    let (_, list, _) = run(&state, &["secret", "list"]);
    assert_eq!(list, "model-key\n");
    assert!(![out, err, list].concat().contains("canary-key"));
    assert!(read(&state, "secrets.json").contains("\"canary-key\""));
    let (code, _, err) = run(&state, &["secret", "delete", "model-kye"]);
    assert!(code == 1 && err.contains("did you mean \"model-key\"?"), "{err}");
    assert_eq!(run(&state, &["secret", "delete", "model-key"]).0, 0);
}

#[test]
fn a_configuration_with_mistakes_names_them_all() {
    let (_dir, state) = folder();
    run(&state, &["init"]);
    let broken = read(&state, "config.json")
        .replace("\"llm\"", "\"lm\"")
        .replace("\"sandbox\": \"auto\"", "\"sandbox\": \"x\"");
    std::fs::write(state.join("config.json"), broken).unwrap();
    let (code, _, err) = run(&state, &["config", "check"]);
    assert_eq!(code, 1);
    for says in [
        "3 problems",
        "agents.assistant.defaults.lm: unknown field; did you mean \"llm\"?",
        "sandbox: must be one of",
    ] {
        assert!(err.contains(says), "{says}: {err}");
    }
    let choird = Command::new(env!("CARGO_BIN_EXE_choird")).arg("--state-dir").arg(&state).output().unwrap();
    let (code, out, err) = done(choird);
    assert!(code == 3 && out.is_empty() && err.contains("3 problems"), "{err}");
}

#[test]
fn doctor_says_what_fails_and_how_to_mend_it() {
    let (_dir, state) = folder();
    let (code, out, _) = run(&state, &["--json", "doctor"]);
    assert_eq!(code, 1);
    let checks: Value = serde_json::from_str(&out).unwrap();
    let config = checks.as_array().unwrap().iter().find(|check| check["id"] == "config").unwrap();
    assert_eq!(config["status"], "fail");
    assert!(config["evidence"].as_str().unwrap().contains("choirctl init"), "{config}");
    run(&state, &["init"]);
    std::fs::set_permissions(state.join("secrets.json"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, out, _) = run(&state, &["doctor"]);
    assert!(code == 1 && out.contains("FAIL  secrets") && out.contains("chmod 600"), "{out}");
}
