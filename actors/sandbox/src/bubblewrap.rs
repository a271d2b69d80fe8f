//! The isolating sandbox: `bwrap` builds the agent a file system, a process table and a user of its own
//! (`choir §15.3`). The network is shared by default (`choir §18.1`).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use choir_messages::wire::BoxFuture;
use rustix::fs::MemfdFlags;
use tokio::time::timeout;

use crate::limits::{PROBE_DEADLINE, TMPFS_BYTES};
use crate::running::{self, AgentAt, Launch};
use crate::spawner::Spawner;
use crate::{MARKER, Network, Running, Sandbox, SandboxError, SandboxPaths, SandboxSpec};

/// The agent's user in the sandbox. Whoever choird runs as, files of the workspace belong to it.
const USER: &str = "1000";

/// Sets the limit on processes inside, where only the sandbox's own are counted (util-linux).
const PRLIMIT: &str = "/usr/bin/prlimit";

/// Files of `/etc` that programs need and that hold no secrets. `/etc/ssl/private` is left out with reason: a host run
/// as root could read the machine's keys.
const ETC: [&str; 14] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/protocols",
    "/etc/services",
];

/// Parts of `/proc` that stay readable but not writable. bwrap does this by itself only for an ordinary user: it skips
/// folders that are not writable while the settings in them are, if the host runs as root.
const PROC_READ_ONLY: [&str; 6] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/sys", "/proc/sysrq-trigger"];

/// Parts of `/proc` that tell of the machine or steer it and that no agent needs.
const PROC_HIDDEN: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/mtrr",
    "/proc/scsi",
    "/proc/sched_debug",
    "/proc/timer_list",
];

/// Starts agents under bubblewrap.
#[derive(Debug)]
pub struct BubblewrapSandbox {
    program: PathBuf,
    /// Whether this bwrap can forbid further user namespaces inside (0.8 and newer).
    disable_userns: bool,
    /// Whether the agents' processes can be counted; the kernel exempts root.
    counts_processes: bool,
    spawner: Spawner,
}

impl BubblewrapSandbox {
    /// Finds `bwrap` and really tries it once.
    pub async fn probe() -> Result<Self, SandboxError> {
        let program = find_bwrap().ok_or(SandboxError::NotInstalled)?;
        let disable_userns = match trial(&program, true).await {
            Ok(()) => true,
            Err(_) => {
                trial(&program, false).await?;
                false
            }
        };
        let counts_processes = !rustix::process::geteuid().is_root() && Path::new(PRLIMIT).is_file();
        Ok(Self { program, disable_userns, counts_processes, spawner: Spawner::new()? })
    }

    /// Path of the `bwrap` in use.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    async fn launch(&self, spec: SandboxSpec) -> Result<Box<dyn Running>, SandboxError> {
        running::check(&spec)?;
        let marker = running::new_marker(&spec.label);
        let passwd = memory_file(
            "passwd",
            format!(
                "choir:x:{USER}:{USER}:Choir agent:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
            )
            .as_bytes(),
        )?;
        let group = memory_file("group", format!("choir:x:{USER}:\nnogroup:x:65534:\n").as_bytes())?;
        let options = self.options(&spec, &marker, &passwd, &group)?;
        // The options travel in memory: `/proc/1/cmdline` inside the sandbox would show the host's paths.
        let mut lines = Vec::new();
        for option in &options.0 {
            lines.extend_from_slice(option.as_bytes());
            lines.push(0);
        }
        let args = memory_file("options", &lines)?;
        let mut command = Command::new(&self.program);
        command.arg("--args").arg(args.as_raw_fd().to_string()).arg("--");
        if let (true, Some(processes)) = (self.counts_processes, spec.limits.processes) {
            command.arg(PRLIMIT).arg(format!("--nproc={processes}:{processes}")).arg("--");
        }
        command
            .arg(self.inside(&spec.paths).binary)
            .args(&spec.args)
            .env_clear()
            .env(MARKER, &marker)
            .current_dir("/");
        let inherit = vec![args, passwd, group];
        running::launch(
            &self.spawner,
            spec,
            Launch { command, inherit, marker, agent_at: AgentAt::Grandchild },
        )
        .await
    }

    fn options(
        &self,
        spec: &SandboxSpec,
        marker: &str,
        passwd: &OwnedFd,
        group: &OwnedFd,
    ) -> Result<Options, SandboxError> {
        let mut o = Options(Vec::new());
        o.isolate(self.disable_userns);
        if spec.network == Network::None {
            o.add(["--unshare-net"]);
        }
        o.add(["--uid", USER, "--gid", USER, "--hostname", "choir-agent"]);
        o.system();
        for path in ETC {
            o.add(["--ro-bind-try", path, path]);
        }
        for (fd, name) in [(passwd, "/etc/passwd"), (group, "/etc/group")] {
            o.add(["--perms", "0444", "--ro-bind-data", &fd.as_raw_fd().to_string(), name]);
        }
        let size = TMPFS_BYTES.to_string();
        o.add(["--perms", "1777", "--size", &size, "--tmpfs", "/tmp"]);
        o.add(["--size", &size, "--tmpfs", "/run"]);
        o.add(["--symlink", "../tmp", "/var/tmp"]);
        // Read-only still lets a socket be connected to, and keeps the agent from replacing it.
        o.add(["--ro-bind"]).path(&spec.paths.socket_dir).add(["/run/choir"]);
        o.add(["--bind"]).path(&spec.paths.workspace).add(["/workspace"]);
        if let Some(dir) = &spec.paths.choir_dir {
            o.choir_dir(dir)?;
        }
        o.add(["--ro-bind"]).path(&spec.paths.binary).add(["/choir/bin/choir-agent"]);
        // Last, when all mount points exist: the root itself.
        o.add(["--remount-ro", "/", "--chdir", "/workspace", "--clearenv"]);
        for (name, value) in [
            ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/choir/bin"),
            ("HOME", "/workspace"),
            ("LANG", "C.UTF-8"),
            (MARKER, marker),
        ] {
            o.add(["--setenv", name, value]);
        }
        Ok(o)
    }
}

/// bwrap's command line.
struct Options(Vec<OsString>);

impl Options {
    fn add<const N: usize>(&mut self, words: [&str; N]) -> &mut Self {
        self.0.extend(words.map(OsString::from));
        self
    }

    fn path(&mut self, path: &Path) -> &mut Self {
        self.0.push(path.into());
        self
    }

    fn isolate(&mut self, disable_userns: bool) {
        self.add(["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]);
        self.add(["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
        if disable_userns {
            self.add(["--disable-userns"]);
        }
    }

    /// The programs and libraries of the machine, read-only, and kernel file systems of the sandbox's own.
    fn system(&mut self) {
        self.add(["--ro-bind", "/usr", "/usr"]);
        for name in ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"] {
            match (fs::symlink_metadata(name), fs::read_link(name)) {
                (Ok(_), Ok(target)) => {
                    self.add(["--symlink"]).path(&target).add([name]);
                }
                (Ok(meta), Err(_)) if meta.is_dir() => {
                    self.add(["--ro-bind", name, name]);
                }
                _ => {}
            }
        }
        self.add(["--proc", "/proc", "--dev", "/dev"]);
        for path in PROC_READ_ONLY {
            self.add(["--ro-bind-try", path, path]);
        }
        for path in PROC_HIDDEN {
            match fs::metadata(path) {
                Ok(meta) if meta.is_dir() => {
                    self.add(["--size", "4096", "--tmpfs", path, "--remount-ro", path]);
                }
                Ok(_) => {
                    self.add(["--ro-bind", "/dev/null", path]);
                }
                Err(_) => {}
            }
        }
    }

    /// Mounts the entries of the identity directory under `/choir` one by one, because the agent's binary needs a place
    /// beside them in `/choir/bin`. A symbolic link stays a link: it must not reach out to the host's files.
    fn choir_dir(&mut self, dir: &Path) -> Result<(), SandboxError> {
        self.entries(dir, "/choir", &["bin"])?;
        let bin = dir.join("bin");
        if fs::symlink_metadata(&bin).is_ok_and(|meta| meta.is_dir()) {
            self.entries(&bin, "/choir/bin", &["choir-agent"])?;
        }
        Ok(())
    }

    fn entries(&mut self, dir: &Path, at: &str, except: &[&str]) -> Result<(), SandboxError> {
        let unreadable = |error: std::io::Error| SandboxError::Path {
            what: "choir directory",
            path: dir.to_owned(),
            problem: format!("cannot be read: {error}"),
        };
        let mut names: Vec<OsString> = fs::read_dir(dir)
            .map_err(unreadable)?
            .map(|entry| entry.map(|e| e.file_name()))
            .collect::<Result<_, _>>()
            .map_err(unreadable)?;
        names.sort();
        for name in names {
            if except.iter().any(|e| name == OsStr::new(e)) {
                continue;
            }
            let (source, target) = (dir.join(&name), Path::new(at).join(&name));
            match fs::read_link(&source) {
                Ok(link) => self.add(["--symlink"]).path(&link).path(&target),
                Err(_) => self.add(["--ro-bind"]).path(&source).path(&target),
            };
        }
        Ok(())
    }
}

/// A file without a name, at its beginning, closed on exec.
fn memory_file(name: &str, content: &[u8]) -> Result<OwnedFd, SandboxError> {
    let make = || {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        let mut file = fs::File::from(fd);
        std::io::Write::write_all(&mut file, content)?;
        std::io::Seek::rewind(&mut file)?;
        Ok(file.into())
    };
    make().map_err(SandboxError::system("a file in memory cannot be made"))
}

/// The first `bwrap` of the search path, or of the places where distributions put it.
fn find_bwrap() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/local/bin", "/bin"].map(PathBuf::from))
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join("bwrap"))
        .find(|candidate| candidate.is_file())
}

/// Runs `true` the way an agent would be run.
async fn trial(program: &Path, disable_userns: bool) -> Result<(), SandboxError> {
    let mut o = Options(Vec::new());
    o.isolate(disable_userns);
    o.system();
    o.add(["--size", "4096", "--tmpfs", "/tmp", "--remount-ro", "/", "--", "/usr/bin/true"]);
    let mut command = tokio::process::Command::new(program);
    command.args(&o.0).env_clear().stdin(Stdio::null()).kill_on_drop(true);
    let fails = |detail: String| SandboxError::BubblewrapFails { detail };
    let output = match timeout(PROBE_DEADLINE, command.output()).await {
        Err(_) => return Err(fails(format!("it did not end within {PROBE_DEADLINE:?}"))),
        Ok(Err(error)) => return Err(fails(error.to_string())),
        Ok(Ok(output)) if output.status.success() => return Ok(()),
        Ok(Ok(output)) => output,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    Err(explain(said.lines().next().unwrap_or("it said nothing")))
}

/// Tells a refusal of namespaces, which an administrator can lift, from other failures.
fn explain(said: &str) -> SandboxError {
    let detail = said.strip_prefix("bwrap: ").unwrap_or(said).trim().to_owned();
    let refused = ["namespace", "uid map", "RTM_NEWADDR", "Operation not permitted"];
    if refused.iter().any(|sign| detail.contains(sign)) {
        SandboxError::NamespacesRefused { detail }
    } else {
        SandboxError::BubblewrapFails { detail }
    }
}

impl Sandbox for BubblewrapSandbox {
    fn name(&self) -> &'static str {
        "bubblewrap"
    }

    fn isolates(&self) -> bool {
        true
    }

    fn caveats(&self) -> Vec<String> {
        let mut caveats = vec![
            "The agent shares the host's network, loopback and abstract sockets included (choir §18.1)."
                .to_owned(),
            "The limit on memory holds for each process by itself; the workspace's size is not limited."
                .to_owned(),
        ];
        if !self.counts_processes {
            caveats.push(if rustix::process::geteuid().is_root() {
                "The limit on processes is not enforced, because the kernel exempts root: run choird as an ordinary user."
                    .to_owned()
            } else {
                format!("The limit on processes is not enforced: {PRLIMIT} is missing (package util-linux).")
            });
        }
        if !self.disable_userns {
            caveats.push(
                "The agent can make user namespaces of its own: install bubblewrap 0.8 or newer.".to_owned(),
            );
        }
        caveats
    }

    fn inside(&self, paths: &SandboxPaths) -> SandboxPaths {
        SandboxPaths {
            binary: "/choir/bin/choir-agent".into(),
            workspace: "/workspace".into(),
            socket_dir: "/run/choir".into(),
            choir_dir: paths.choir_dir.as_ref().map(|_| "/choir".into()),
        }
    }

    fn start(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Box<dyn Running>, SandboxError>> {
        Box::pin(self.launch(spec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_namespace_names_the_setting_that_allows_it() {
        for said in [
            "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces.",
            "bwrap: setting up uid map: Permission denied",
            "bwrap: Creating new namespace failed: Operation not permitted",
        ] {
            let error = explain(said);
            assert!(matches!(error, SandboxError::NamespacesRefused { .. }), "{error}");
            assert!(error.to_string().contains("sysctl"), "{error}");
        }
        assert!(matches!(
            explain("bwrap: Can't find source path /usr: No such file"),
            SandboxError::BubblewrapFails { .. }
        ));
    }

    #[test]
    fn a_link_in_the_identity_directory_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/shadow", dir.path().join("leak")).unwrap();
        fs::write(dir.path().join("SOUL.md"), "x").unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        fs::write(dir.path().join("bin/choir-agent"), "another").unwrap();
        let mut o = Options(Vec::new());
        o.choir_dir(dir.path()).unwrap();
        let soul = dir.path().join("SOUL.md").into_os_string();
        let expected: Vec<OsString> = vec![
            "--ro-bind".into(),
            soul,
            "/choir/SOUL.md".into(),
            "--symlink".into(),
            "/etc/shadow".into(),
            "/choir/leak".into(),
        ];
        assert_eq!(o.0, expected);
    }
}
