//! Disks that are really full or read-only: said clearly, the ledger as it was, and with room the run goes on. The small
//! disks are tmpfs, mounted in a user namespace of the test's own: each test runs itself again inside one.

use crate::kit::{Cast, assert_sound};
use choir_ledger::event::EventType;
use choir_ledger::payload;
use choir_ledger_store::{Home, StoreError, TraceWriter};
use choir_messages::chain::Digest;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set for the run inside the namespace: a folder of the test's own.
const INSIDE: &str = "CHOIR_TEST_LEDGER_DISK";

/// Runs the test of this name again in a namespace where it may mount. Returns the folder to work in, if this is the
/// inner run; the outer one has nothing to do but to see that the inner one passed.
fn inside(test: &str) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(INSIDE) {
        return Some(folder.into());
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["-U", "-r", "-m"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, folder.path())
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    None
}

fn mount(options: &str, at: &Path) {
    std::fs::create_dir_all(at).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", options, "choir-test"]).arg(at).output().unwrap();
    let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
    assert!(mounted.status.success(), "this test needs user namespaces in which to mount: {why}");
}

/// Leaves so many bytes free on the disk that this folder is.
fn fill(disk: &Path, leave: u64) {
    let stat = rustix::fs::statvfs(disk).unwrap();
    let bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(leave);
    std::fs::write(disk.join("ballast"), vec![0u8; usize::try_from(bytes).unwrap()]).unwrap();
}

fn intent(cast: &Cast, writer: &mut TraceWriter) -> Result<Digest, StoreError> {
    let why = "x".repeat(700);
    let intent = payload::intent(crate::kit::TOOL, &Digest::of(b""), "low", &why);
    let appended = cast.try_say(writer, EventType::ToolIntentSigned, intent, vec![], vec![], None)?;
    appended.ticket.wait()?;
    Ok(appended.event.event_hash())
}

#[test]
fn a_disk_that_fills_in_the_middle_of_an_append_leaves_the_ledger_as_it_was() {
    let name = "disk::a_disk_that_fills_in_the_middle_of_an_append_leaves_the_ledger_as_it_was";
    let Some(folder) = inside(name) else { return };
    let disk = folder.join("disk");
    mount("size=1024k,mode=0700", &disk);
    let cast = Cast::at(&disk.join("home"));
    let mut writer = cast.begin();
    cast.open(&mut writer);
    writer.checkpoint().unwrap().wait().unwrap();
    fill(&disk, 12 << 10);
    let mut acknowledged = Vec::new();
    let error = loop {
        match intent(&cast, &mut writer) {
            Ok(hash) => acknowledged.push(hash),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 64, "the disk must fill");
    };
    assert!(matches!(error, StoreError::NoRoom { .. }), "{error}");
    assert!(matches!(intent(&cast, &mut writer), Err(StoreError::Stopped(_))));
    let trace = writer.trace_id();
    drop(writer);
    let ledger = std::fs::read(disk.join("home").join(choir_ledger::layout::events(trace))).unwrap();
    assert!(ledger.ends_with(b"\n"), "no half a line is left");
    // Storing an artefact says the same, and leaves nothing behind.
    let big = vec![1u8; 64 << 10];
    let at = cast.home.now();
    let stored =
        cast.home.put_artifact(&big, "text/plain", "utf-8", trace, choir_ledger::id::EventId::fresh(), at);
    assert!(matches!(stored, Err(StoreError::NoRoom { .. })), "{stored:?}");

    std::fs::remove_file(disk.join("ballast")).unwrap();
    let resumed = cast.home.resume(trace).unwrap();
    assert_eq!(resumed.torn, None);
    let mut writer = resumed.writer;
    let events = cast.home.events(trace).unwrap();
    let hashes: Vec<_> = events.iter().skip(3).map(choir_ledger::event::Event::event_hash).collect();
    assert_eq!(hashes, acknowledged, "exactly what was acknowledged");
    let claim = cast.cycle(&mut writer, 0);
    cast.close(&mut writer, &[claim]);
    assert_sound(&disk.join("home"), trace);
}

#[test]
fn a_read_only_home_can_be_read_and_says_why_it_cannot_be_written() {
    let name = "disk::a_read_only_home_can_be_read_and_says_why_it_cannot_be_written";
    let Some(folder) = inside(name) else { return };
    let disk = folder.join("disk");
    mount("size=4096k,mode=0700", &disk);
    let home = disk.join("home");
    let trace = Cast::at(&home).run(1);
    let cast = Cast::at(&home);
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk).status().unwrap();
    assert!(remounted.success());
    let read = Home::open(&home).unwrap();
    assert_eq!(read.list().unwrap().len(), 1);
    assert_eq!(read.events(trace).unwrap().len(), 10);
    assert_eq!(read.check_registry(), vec![]);
    assert_sound(&home, trace);
    for error in [
        read.begin(cast.new_trace(choir_ledger::trace::Policy::default())).unwrap_err(),
        read.ensure_agent("new-agent", "New", &[choir_ledger::event::Role::Critic]).unwrap_err(),
        read.publish(trace).unwrap_err(),
        read.export(trace, &disk.join("out")).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    }
}
