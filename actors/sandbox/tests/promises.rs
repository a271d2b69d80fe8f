//! What every sandbox promises, whether it isolates or not.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod common;

use std::time::Duration;

use choir_messages::secret::Secret;
use choir_sandbox::{
    Limits, MARKER, Network, Preference, ProcessIdentity, ProcessSandbox, Sandbox, SandboxError, detect,
    end_orphans, find_orphans, kill_orphan,
};
use common::{Place, both, end, label};

#[tokio::test]
async fn an_agent_reads_its_bootstrap_line_and_works_in_the_workspace() {
    for sandbox in both().await {
        let place = Place::new();
        std::fs::write(place.workspace().join("in"), "from the host\n").unwrap();
        let spec =
            place.spec(&label("work"), "read -r line; echo \"$line\" > out; cat in >> out; pwd >> out");
        let inside = sandbox.inside(&spec.paths);
        let agent = sandbox.start(spec).await.unwrap();
        assert!(end(&*agent).await.is_success(), "{}", sandbox.name());
        let expected =
            format!("{{\"bootstrap\":\"canary-7f3a\"}}\nfrom the host\n{}\n", inside.workspace.display());
        assert_eq!(place.read("out"), expected, "{}", sandbox.name());
    }
}

#[tokio::test]
async fn the_environment_holds_four_names_and_nothing_of_the_hosts() {
    for sandbox in both().await {
        let place = Place::new();
        let spec = place.spec(&label("env"), "tr '\\0' '\\n' < /proc/$$/environ | cut -d= -f1 | sort > out");
        let agent = sandbox.start(spec).await.unwrap();
        assert!(end(&*agent).await.is_success());
        let names = place.read("out");
        // bwrap adds PWD; nothing else may be there.
        let names: Vec<&str> = names.lines().filter(|name| *name != "PWD").collect();
        assert_eq!(names, [MARKER, "HOME", "LANG", "PATH"], "{}", sandbox.name());
    }
}

#[tokio::test]
async fn the_bootstrap_secret_is_in_no_command_line_and_no_environment() {
    for sandbox in both().await {
        let place = Place::new();
        let mut alive = place.pipe("alive");
        let spec = place.spec(&label("canary"), "exec 3>alive; read -r line; echo up >&3; read -r never");
        let agent = sandbox.start(spec).await.unwrap();
        assert_eq!(alive.line().await, "up");
        let own = std::process::id();
        for process in std::fs::read_dir("/proc").unwrap() {
            let process = process.unwrap();
            if process.file_name() == own.to_string().as_str() {
                continue;
            }
            for file in ["cmdline", "environ"] {
                let text = std::fs::read(process.path().join(file)).unwrap_or_default();
                assert!(!String::from_utf8_lossy(&text).contains("canary-7f3a"), "{:?}", process.path());
            }
        }
        agent.kill().await.unwrap();
    }
}

#[tokio::test]
async fn kill_ends_everything_the_agent_started_even_what_hid_in_a_session_of_its_own() {
    for sandbox in both().await {
        let place = Place::new();
        let mut alive = place.pipe("alive");
        let script = "exec 3>alive; trap '' TERM HUP; \
                      setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; sleep 1000 & \
                      echo up >&3; wait; sleep 1000";
        let agent = sandbox.start(place.spec(&label("kill"), script)).await.unwrap();
        assert_eq!(alive.line().await, "up");
        assert!(agent.agent_pid().is_some());
        let status = agent.kill().await.unwrap();
        assert_eq!(status.signal, Some(9), "{}", sandbox.name());
        assert_eq!(find_orphans(&label("kill")), [], "{}", sandbox.name());
        assert_eq!(agent.agent_pid(), None);
        alive.all_gone().await;
        assert_eq!(agent.kill().await.unwrap(), status, "a second kill changes nothing");
    }
}

#[tokio::test]
async fn an_agent_that_ends_by_itself_leaves_nothing_behind() {
    for sandbox in both().await {
        let place = Place::new();
        let mut alive = place.pipe("alive");
        let script = "exec 3>alive; (setsid sleep 1000 &); sleep 1000 & echo up >&3; exit 3";
        let agent = sandbox.start(place.spec(&label("exit"), script)).await.unwrap();
        assert_eq!(alive.line().await, "up");
        assert_eq!(end(&*agent).await.code, Some(3), "{}", sandbox.name());
        alive.all_gone().await;
    }
}

#[tokio::test]
async fn dropping_the_handle_kills_the_agent() {
    for sandbox in both().await {
        let place = Place::new();
        let mut alive = place.pipe("alive");
        let agent =
            sandbox.start(place.spec(&label("drop"), "exec 3>alive; echo up >&3; sleep 1000")).await.unwrap();
        assert_eq!(alive.line().await, "up");
        drop(agent);
        alive.all_gone().await;
    }
}

#[tokio::test]
async fn the_lifelines_end_of_file_reaches_the_agent() {
    for sandbox in both().await {
        let place = Place::new();
        let mut alive = place.pipe("alive");
        let script = "exec 3>alive; read -r line; echo up >&3; read -r more || { echo alone > out; exit 7; }";
        let agent = sandbox.start(place.spec(&label("life"), script)).await.unwrap();
        assert_eq!(alive.line().await, "up");
        agent.cut_lifeline();
        assert_eq!(end(&*agent).await.code, Some(7), "{}", sandbox.name());
        assert_eq!(place.read("out"), "alone\n");
    }
}

#[tokio::test]
async fn terminate_reaches_the_agent_itself() {
    for sandbox in both().await {
        let place = Place::new();
        let mut alive = place.pipe("alive");
        let script = "exec 3>alive; trap 'echo asked > out; exit 5' TERM; echo up >&3; \
                      while :; do read -r x || sleep 0.05; done";
        let agent = sandbox.start(place.spec(&label("term"), script)).await.unwrap();
        assert_eq!(alive.line().await, "up");
        agent.cut_lifeline();
        agent.terminate().unwrap();
        assert_eq!(end(&*agent).await.code, Some(5), "{}", sandbox.name());
        assert_eq!(place.read("out"), "asked\n");
        assert!(matches!(agent.terminate(), Err(SandboxError::Gone)));
    }
}

#[tokio::test]
async fn a_fatal_signal_and_the_last_words_are_reported() {
    for sandbox in both().await {
        let place = Place::new();
        let spec = place.spec(&label("words"), "echo 'it \u{1b}[31mburns' >&2; kill -SEGV $$");
        let agent = sandbox.start(spec).await.unwrap();
        let status = end(&*agent).await;
        assert_eq!((status.code, status.signal), (None, Some(11)), "{}", sandbox.name());
        assert!(status.last_words.contains("it \u{fffd}[31mburns"), "{status:?}");
        assert!(std::fs::read_to_string(place.log()).unwrap().contains("burns"));
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(place.log()).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[tokio::test]
async fn a_process_that_needs_more_memory_than_allowed_fails_alone() {
    for sandbox in both().await {
        let place = Place::new();
        let script =
            "perl -e '$x = \"x\" x (400 * 1024 * 1024); print length $x' > out 2>&1; echo \"end $?\" >> out";
        let mut spec = place.spec(&label("memory"), script);
        spec.limits = Limits { memory_bytes: Some(128 * 1024 * 1024), processes: None };
        let agent = sandbox.start(spec).await.unwrap();
        assert!(end(&*agent).await.is_success(), "the shell itself goes on");
        let out = place.read("out");
        assert!(out.contains("ut of memory") && !out.contains("end 0"), "{}: {out}", sandbox.name());
    }
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_starts() {
    let place = Place::new();
    for sandbox in both().await {
        let good = place.spec(&label("bad"), "true");
        let mut spec = good.clone();
        spec.paths.workspace = place.root.join("nowhere");
        let error = sandbox.start(spec).await.err().unwrap();
        assert!(error.to_string().contains("workspace") && error.to_string().contains("nowhere"), "{error}");

        let mut spec = good.clone();
        spec.paths.binary = place.workspace();
        assert!(matches!(sandbox.start(spec).await, Err(SandboxError::Path { what: "agent binary", .. })));

        let mut spec = good.clone();
        spec.bootstrap = Secret::new("two\nlines".into());
        assert!(matches!(sandbox.start(spec).await, Err(SandboxError::Bootstrap { .. })));

        for bad in ["", "a/b", "a b", &"x".repeat(65)] {
            let mut spec = good.clone();
            spec.label = bad.to_owned();
            assert!(matches!(sandbox.start(spec).await, Err(SandboxError::Label { .. })), "{bad}");
        }
        assert!(!place.log().exists());
    }
    let mut spec = place.spec(&label("bad"), "true");
    spec.network = Network::None;
    let error = ProcessSandbox::new().unwrap().start(spec).await.err().unwrap();
    assert!(matches!(error, SandboxError::Unsupported { .. }));
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_is_an_error_that_names_it() {
    let place = Place::new();
    let mut spec = place.spec(&label("noexec"), "");
    spec.paths.binary = place.root.join("choir/SOUL.md");
    let error = ProcessSandbox::new().unwrap().start(spec).await.err().unwrap();
    assert!(error.to_string().contains("SOUL.md"), "{error}");
}

#[tokio::test]
async fn the_process_sandbox_says_that_it_does_not_isolate() {
    let detected = detect(Preference::Process).await.unwrap();
    assert!(!detected.sandbox.isolates());
    assert!(detected.warning.unwrap().contains("not isolated"));
    let detected = detect(Preference::Auto).await.unwrap();
    assert_eq!((detected.sandbox.name(), detected.warning), ("bubblewrap", None));
}

#[tokio::test]
async fn a_leftover_is_found_by_its_label_and_killed_only_as_the_process_it_was() {
    let ours = label("left");
    let place = Place::new();
    let mut alive = place.pipe("alive");
    // What a crash of a host leaves: processes with a marker, and nobody in charge.
    let mut command = std::process::Command::new("/bin/sh");
    command
        .args(["-c", "exec 3>alive; sleep 1000 & echo up >&3; sleep 1000"])
        .current_dir(place.workspace())
        .env(MARKER, format!("{ours}/01"));
    let mut child = command.spawn().unwrap();
    assert_eq!(alive.line().await, "up");
    assert_eq!(find_orphans(&ours[..ours.len() - 1]), [], "a label is not a prefix");
    let found = find_orphans(&ours);
    assert!(found.len() >= 2, "{found:?}");

    let real = ProcessIdentity::of(child.id()).unwrap();
    let other = ProcessIdentity { started: real.started + 1, ..real.clone() };
    let deadline = Duration::from_secs(10);
    assert!(matches!(kill_orphan(&other, deadline).await, Err(SandboxError::NotTheSame { .. })));
    assert!(real.is_alive());
    kill_orphan(&real, deadline).await.unwrap();
    assert!(matches!(kill_orphan(&real, deadline).await, Err(SandboxError::Gone)));
    assert!(end_orphans(&ours).await.unwrap() >= 1);
    alive.all_gone().await;
    child.wait().unwrap();
}
