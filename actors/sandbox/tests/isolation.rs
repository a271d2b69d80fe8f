//! What an agent under bubblewrap cannot see and cannot do.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod common;

use choir_sandbox::Network;
use common::{DEADLINE, Place, bubblewrap, end, label};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// Runs a script and returns what it wrote to `out`.
async fn run(place: &Place, script: &str) -> String {
    let sandbox = bubblewrap().await;
    let agent = sandbox.start(place.spec(&label("iso"), script)).await.unwrap();
    let status = end(&*agent).await;
    assert!(status.is_success(), "{status}: {}", status.last_words);
    place.read("out")
}

#[tokio::test]
async fn files_of_the_host_are_not_there() {
    let place = Place::new();
    let private = place.root.join("elsewhere/private");
    let script = format!(
        "for f in {} /etc/shadow /etc/ssl/private /root /home /var/lib /sys/kernel /boot; do \
         [ -e $f ] && echo \"$f is there\"; done; ls / | tr '\\n' ' ' > out",
        private.display()
    );
    let sandbox = bubblewrap().await;
    let agent = sandbox.start(place.spec(&label("iso"), &script)).await.unwrap();
    let status = end(&*agent).await;
    assert_eq!(status.last_words, "");
    for name in place.read("out").split_whitespace() {
        let known =
            ["bin", "choir", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "tmp"];
        assert!(known.contains(&name) || ["usr", "var", "workspace"].contains(&name), "/{name}");
    }
}

#[tokio::test]
async fn everything_but_the_workspace_and_scratch_space_is_read_only() {
    let place = Place::new();
    let script = "for f in /x /usr/x /etc/x /etc/passwd /choir/x /choir/SOUL.md /choir/bin/choir-agent /run/choir/x; do \
                  (echo x >> $f) 2>/dev/null && echo \"$f was written\" >> out; done; \
                  echo x > /tmp/x && echo x > /run/x && echo x > mine && echo done >> out";
    assert_eq!(run(&place, script).await, "done\n");
    assert_eq!(std::fs::read_to_string(place.root.join("choir/SOUL.md")).unwrap(), "be kind\n");
}

#[tokio::test]
async fn no_setting_of_the_kernel_is_writable() {
    let place = Place::new();
    // Asks for permission only: a hole must not change the machine that runs the test.
    let script = "find /proc -path '/proc/[0-9]*' -prune -o -writable -print 2>/dev/null | \
                  while read -r f; do [ -f $f ] && echo $f; done > out; \
                  cat /proc/sys/kernel/ostype >> out; head -c1 /proc/kcore | wc -c >> out";
    assert_eq!(run(&place, script).await, "Linux\n0\n");
}

#[tokio::test]
async fn the_identity_files_lie_beside_the_agents_binary() {
    let place = Place::new();
    let script =
        "cat /choir/SOUL.md /choir/bin/git-cred-helper > out; [ -x /choir/bin/choir-agent ] && id -un >> out";
    assert_eq!(run(&place, script).await, "be kind\nhelper\nchoir\n");
}

#[tokio::test]
async fn the_hosts_processes_are_not_visible_and_no_path_of_the_host_shows() {
    let place = Place::new();
    let script = "ls /proc | grep -c '^[0-9]' > out; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' >> out";
    let out = run(&place, script).await;
    let (count, lines) = out.split_once('\n').unwrap();
    assert!(count.parse::<u32>().unwrap() < 10, "{out}");
    assert!(!lines.contains(place.root.to_str().unwrap()), "{out}");
}

#[tokio::test]
async fn the_agent_has_no_privilege_and_cannot_get_any() {
    let place = Place::new();
    let script = "grep -E '^(Cap|NoNewPrivs)' /proc/self/status > out; \
                  unshare -U true 2>/dev/null && echo 'made a user namespace' >> out; \
                  mount -t tmpfs none /tmp 2>/dev/null && echo mounted >> out; \
                  ls /proc/self/fd | tr '\\n' ' ' >> out";
    let out = run(&place, script).await;
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(out.contains(&format!("{name}:\t0000000000000000\n")), "{out}");
    }
    assert!(out.contains("NoNewPrivs:\t1\n") && !out.contains("made") && !out.contains("mounted"), "{out}");
    // Standard input and output, standard error, and the directory that `ls` reads.
    assert!(out.ends_with("0 1 2 3 "), "{out}");
}

#[tokio::test]
async fn the_links_socket_can_be_connected_to_and_not_replaced() {
    let place = Place::new();
    let listener = tokio::net::UnixListener::bind(place.root.join("socket/link")).unwrap();
    let script = "rm -f /run/choir/link 2>/dev/null; perl -MIO::Socket::UNIX -e \
                  '$s = IO::Socket::UNIX->new(\"/run/choir/link\") or die $!; print $s \"hello\\n\"; $s->flush; print <$s>' > out";
    let sandbox = bubblewrap().await;
    let agent = sandbox.start(place.spec(&label("iso"), script)).await.unwrap();
    let (mut stream, _) = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
    let mut hello = [0u8; 6];
    timeout(DEADLINE, stream.read_exact(&mut hello)).await.unwrap().unwrap();
    stream.write_all(b"welcome\n").await.unwrap();
    drop(stream);
    assert!(end(&*agent).await.is_success());
    assert_eq!((&hello[..], place.read("out").as_str()), (&b"hello\n"[..], "welcome\n"));
}

#[tokio::test]
async fn the_network_can_be_cut_off() {
    let place = Place::new();
    let sandbox = bubblewrap().await;
    for (network, expected) in [(Network::None, 1), (Network::Shared, host_interfaces())] {
        let mut spec = place.spec(&label("net"), "tail -n +3 /proc/net/dev | wc -l > out");
        spec.network = network;
        let agent = sandbox.start(spec).await.unwrap();
        assert!(end(&*agent).await.is_success());
        assert_eq!(place.read("out").trim(), expected.to_string(), "{network:?}");
    }
}

fn host_interfaces() -> usize {
    std::fs::read_to_string("/proc/net/dev").unwrap().lines().skip(2).count()
}
