//! What happens to agents when the host dies without a word, and what an ordinary user may do.
//!
//! A test cannot kill itself, so this binary starts itself again as the host: `acts_as_the_host` is that part.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod common;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use choir_sandbox::{Limits, ProcessSandbox, Sandbox, end_orphans, find_orphans};
use common::{DEADLINE, Place, bubblewrap, end, label};
use tokio::time::timeout;

const ROLE: &str = "CHOIR_TEST_HOST_OF";
const KIND: &str = "CHOIR_TEST_KIND";
const LABEL: &str = "CHOIR_TEST_LABEL";

/// The agent ignores the end of its lifeline, so that only the kernel can end it. Under the process sandbox its
/// background job is not the kernel's business.
const STUBBORN: &str = "exec 3>alive; trap '' TERM HUP; sleep 1000 3>&- & echo up >&3; \
                        while :; do read -r x || sleep 1000 3>&-; done";

#[tokio::test]
#[ignore = "the other tests of this file start it as a process of its own"]
async fn acts_as_the_host() {
    let root = std::env::var(ROLE).expect("started by another test of this file");
    let place = Place::at(Path::new(&root));
    let label = std::env::var(LABEL).unwrap();
    match std::env::var(KIND).unwrap().as_str() {
        "limits" => {
            let sandbox = bubblewrap().await;
            assert!(
                sandbox.caveats().iter().all(|c| !c.contains("limit on processes")),
                "{:?}",
                sandbox.caveats()
            );
            let script =
                "i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done 2> errors; echo $i > out";
            let mut spec = place.spec(&label, script);
            spec.limits = Limits { memory_bytes: None, processes: Some(16) };
            let agent = sandbox.start(spec).await.unwrap();
            let status = end(&*agent).await;
            assert!(!status.is_success(), "a shell that cannot fork gives up: {status}");
            let errors = place.read("errors");
            assert!(errors.contains("fork"), "{errors}");
        }
        kind => {
            let sandbox: std::sync::Arc<dyn Sandbox> = match kind {
                "process" => std::sync::Arc::new(ProcessSandbox::new().unwrap()),
                _ => bubblewrap().await,
            };
            let agent = sandbox.start(place.spec(&label, STUBBORN)).await.unwrap();
            end(&*agent).await;
        }
    }
}

fn host(program: &Path, place: &Place, kind: &str, label: &str) -> tokio::process::Command {
    let mut command = std::process::Command::new(program);
    command
        .args(["--exact", "acts_as_the_host", "--ignored", "--nocapture"])
        .env(ROLE, &place.root)
        .env(KIND, kind)
        .env(LABEL, label)
        .stdin(Stdio::null());
    if kind == "limits" && rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true);
    command
}

fn this_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

#[tokio::test]
async fn under_bubblewrap_nothing_survives_kill_9_of_the_host() {
    let (place, label) = (Place::new(), label("death-bwrap"));
    let mut alive = place.pipe("alive");
    let mut host = host(&this_program(), &place, "bubblewrap", &label).spawn().unwrap();
    assert_eq!(alive.line().await, "up");
    assert!(!find_orphans(&label).is_empty());
    host.start_kill().unwrap();
    timeout(DEADLINE, host.wait()).await.unwrap().unwrap();
    alive.all_gone().await;
    // The background job held no pipe; its namespace took it down.
    end_orphans(&label).await.unwrap();
    assert_eq!(find_orphans(&label), []);
}

#[tokio::test]
async fn under_the_process_sandbox_the_agent_dies_with_the_host_and_its_jobs_are_found_after() {
    let (place, label) = (Place::new(), label("death-process"));
    let mut alive = place.pipe("alive");
    let mut host = host(&this_program(), &place, "process", &label).spawn().unwrap();
    assert_eq!(alive.line().await, "up");
    host.start_kill().unwrap();
    timeout(DEADLINE, host.wait()).await.unwrap().unwrap();
    alive.all_gone().await;
    assert!(end_orphans(&label).await.unwrap() >= 1, "the background job was still there");
    assert_eq!(find_orphans(&label), []);
}

#[tokio::test]
async fn an_ordinary_user_can_use_bubblewrap_and_limit_its_processes() {
    let (place, label) = (Place::new(), label("user"));
    place.open_to_all();
    // The test's own binary may lie where other users cannot go.
    let program = place.root.join("host");
    std::fs::copy(this_program(), &program).unwrap();
    let output = timeout(DEADLINE, host(&program, &place, "limits", &label).output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
