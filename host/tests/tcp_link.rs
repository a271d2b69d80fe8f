//! Links over TCP with the real processes: the same promises as over Unix sockets, and a port that every process of the
//! machine can dial gives nothing away and is kept from nobody.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use choir_host::control::Op;
use choir_link::{ConnectError, LinkSecret, Target, Uplink, connect};
use choir_messages::chain::Digest;
use choir_messages::event::Head;
use choir_messages::id::{RequestId, SessionId};
use choir_messages::wire::{
    Bootstrap, BoxFuture, ControlPlane, Envelope, Hello, LinkAddress, Reply, Request, SignalAck,
    SignalHandler, SignalRequest, TraceContext, WIRE_VERSION,
};
use choir_scripted_model::Script;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{SOON, User, World, held, is_whole, signal, work};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// More connections at once than one port has places for.
const CROWD: usize = 200;

fn tcp(sandbox: &'static str) -> impl FnOnce(&mut Value) {
    move |config| {
        config["sandbox"] = json!(sandbox);
        config["link"] = json!({ "carrier": "tcp", "listen": "127.0.0.1:0" });
    }
}

/// The TCP ports on which a process listens.
fn listening(pid: u32) -> Vec<SocketAddr> {
    let sockets: HashSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let address = |text: &str| {
        let (ip, port) = text.split_once(':').unwrap();
        let ip = u32::from_str_radix(ip, 16).unwrap().swap_bytes();
        SocketAddr::from((std::net::Ipv4Addr::from(ip), u16::from_str_radix(port, 16).unwrap()))
    };
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines
        .filter(|columns| columns[3] == "0A" && sockets.contains(&format!("socket:[{}]", columns[9])))
        .map(|columns| address(columns[1]))
        .collect()
}

/// The one port of the one agent.
fn port_of(world: &World) -> SocketAddr {
    let ports = listening(world.choird_pid());
    let [port] = ports[..] else { panic!("not one port, but {ports:?}") };
    assert!(port.ip().is_loopback(), "{port}");
    assert!(!world.state.link_dir(&world.agent).join("link.sock").exists(), "there is a Unix socket as well");
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tcp_a_conversation_survives_the_death_of_its_agent_and_then_of_choird() {
    let mut world = World::new(work(), tcp("process")).await;
    let mut user = User::of(&world);
    let first = held(&world, &user, "work-1").await;
    let before = world.view().await;
    port_of(&world);
    signal(before.agent_pid.unwrap(), Signal::KILL);
    world.until("a new agent", |view| view.state == "up" && view.generation > before.generation).await;
    world.model.release_all();
    user.answer_to(first).await;

    let second = held(&world, &user, "work-2").await;
    // Stored, and not yet with the agent.
    let third = user.send("work-3").await;
    world.kill_choird().await;
    world.start().await;
    world.until("the agent is back by itself", |view| view.state == "up").await;
    port_of(&world);
    world.model.release_all();
    is_whole(&world, &mut user, &[(first, "work-1"), (second, "work-2"), (third, "work-3")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tcp_an_agent_inside_bubblewrap_reaches_its_host() {
    let world = World::new(work(), tcp("bubblewrap")).await;
    let mut user = User::of(&world);
    port_of(&world);
    let message = user.send("work-1").await;
    is_whole(&world, &mut user, &[(message, "work-1")]).await;
}

/// Connects, says nothing, and comes again as soon as it is turned away.
async fn pester(port: SocketAddr) {
    loop {
        let Ok(mut stream) = TcpStream::connect(port).await else { return };
        let mut sink = [0; 64];
        while matches!(stream.read(&mut sink).await, Ok(n) if n > 0) {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_silent_strangers_keeps_no_agent_from_its_host() {
    let world = World::new(work(), tcp("process")).await;
    let mut user = User::of(&world);
    let port = port_of(&world);
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..CROWD {
        crowd.spawn(pester(port));
    }
    let first = held(&world, &user, "work-1").await;
    // Without its uplink the agent must come in through the crowd; where that takes longer than choird waits for a lost
    // link, a fresh one comes in its stead. Either way the conversation goes on.
    let path = format!("{}/choir-agent/uplink", world.agent);
    // The answer travels over the very link that dies of it, so it may not arrive.
    let _ = world.client().await.call::<Value>(Op::ActorKill { path }, SOON).await;
    world.model.release_all();
    user.answer_to(first).await;
    let second = user.send("work-2").await;
    is_whole(&world, &mut user, &[(first, "work-1"), (second, "work-2")]).await;
    let log = world.state.log_file(world.agent.as_str());
    assert!(mentions(&log, "an actor is killed on request"), "the uplink was not killed");
    crowd.shutdown().await;
}

/// Takes note of nothing.
struct Deaf;

impl SignalHandler for Deaf {
    fn handle(&self, _: SignalRequest) -> BoxFuture<'_, SignalAck> {
        Box::pin(std::future::ready(SignalAck::Noted))
    }
}

async fn dial(target: &Target, secret: &LinkSecret, session: SessionId) -> Result<Uplink, ConnectError> {
    connect(target, secret, session, Arc::new(Deaf), SOON).await
}

/// A world whose agent is a program that writes its bootstrap line to a file and waits; and what the line says.
async fn bootstrapped() -> (World, Bootstrap) {
    let mut world = World::stopped(Script::default(), tcp("process")).await;
    let program = world.folder().join("agent.sh");
    let script = "#!/bin/sh\nread -r line\nprintf '%s\\n' \"$line\" > \"$0.new\"\nmv \"$0.new\" \"$0.line\"\nexec cat > /dev/null\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    world.agent_program = Some(program);
    world.start().await;
    let op = Op::AgentStart { agent: world.agent.clone(), fresh: false, workspace: None, llm: None };
    let client = world.client().await;
    // Its answer comes once the agent is up, which is the test's doing.
    let _stream = client.stream(op).await.unwrap();
    let line = world.folder().join("agent.sh.line");
    let until = Instant::now() + SOON;
    let text = loop {
        if let Ok(text) = std::fs::read_to_string(&line) {
            break text;
        }
        assert!(Instant::now() < until, "the agent was not started in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let bootstrap = serde_json::from_str(&text).unwrap();
    (world, bootstrap)
}

fn mentions(file: &Path, word: &str) -> bool {
    String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).contains(word)
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_lacks_the_secret_or_meets_another_certificate_gets_nothing_and_blocks_nobody() {
    let (world, bootstrap) = bootstrapped().await;
    let LinkAddress::Tcp { address, certificate } = bootstrap.link else { panic!("{:?}", bootstrap.link) };
    assert_eq!(address, port_of(&world));
    let target = Target::from(bootstrap.link.clone());
    let secret = LinkSecret::from_hex(&bootstrap.link_secret).unwrap();
    let session = bootstrap.session;

    // Silence: more of it than there are places.
    let mut silent = Vec::new();
    for _ in 0..CROWD {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // What is no TLS gets an alert of TLS at most, and the end.
    for noise in [&b"GET / HTTP/1.1\r\nHost: choird\r\n\r\n"[..], b"CHOIRLNK\0\x01", &[0xff; 4096]] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut said = Vec::new();
        let _ = stream.write_all(noise).await;
        let _ = stream.shutdown().await;
        let _ = timeout(SOON, stream.read_to_end(&mut said)).await.expect("choird hangs up");
        assert!(said.len() <= 7, "{said:?}");
    }
    // An agent that was told of another certificate leaves before it has said a word.
    let other = Target::Tcp { addr: address, certificate: Digest::of(b"another") };
    let refused = dial(&other, &secret, session).await;
    assert!(matches!(refused, Err(ConnectError::Tls(_))), "{refused:?}");
    // The certificate is no secret; without the secret it opens nothing, and without the session neither.
    let refused = dial(&target, &LinkSecret::fresh().unwrap(), session).await;
    assert!(matches!(refused, Err(ConnectError::NotOurHost)), "{refused:?}");
    let refused = dial(&target, &secret, SessionId::fresh()).await;
    assert!(matches!(refused, Err(ConnectError::Denied)), "{refused:?}");

    // The one that has all three is let in, past the crowd, and is the agent.
    let uplink = dial(&target, &secret, session).await.unwrap();
    let hello = Request::InitHello(Hello {
        agent: bootstrap.agent.clone(),
        image_version: "test".into(),
        tool_manifest: Digest::ZERO,
        skill_manifest: Digest::ZERO,
        head: Head::START,
    });
    let envelope = Envelope {
        version: WIRE_VERSION,
        request: RequestId::fresh(),
        session,
        lease: bootstrap.lease,
        generation: bootstrap.generation,
        trace: TraceContext::default(),
        body: hello,
    };
    let answer = uplink.call(envelope, SOON).await;
    assert!(matches!(answer, Ok(Reply::Hello(_))), "{answer:?}");
    world.until("up", |view| view.state == "up").await;
    // It has the one place there is.
    let second = dial(&target, &secret, session).await;
    assert!(matches!(second, Err(ConnectError::Busy)), "{second:?}");
    drop(silent);

    // What keeps the port closed is nowhere that others can read.
    let secret = bootstrap.link_secret.as_str();
    for pid in [world.choird_pid(), world.view().await.pid.unwrap()] {
        for file in ["cmdline", "environ"] {
            assert!(!mentions(Path::new(&format!("/proc/{pid}/{file}")), secret), "{file} of {pid}");
        }
    }
    for log in std::fs::read_dir(world.state.logs()).unwrap().flatten() {
        assert!(!mentions(&log.path(), secret), "{}", log.path().display());
    }
    // And the certificate in the agent's hands is that of this run alone.
    assert!(mentions(&world.state.log_file("choird"), &certificate.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_other_machines_could_reach_is_refused_at_the_start_and_the_field_is_named() {
    let open = |config: &mut Value| config["link"] = json!({ "carrier": "tcp", "listen": "0.0.0.0:0" });
    let world = World::stopped(Script::default(), open).await;
    let refused = world.command(env!("CARGO_BIN_EXE_choird")).output().await.unwrap();
    assert_eq!(refused.status.code(), Some(3));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("link.listen: 0.0.0.0 can be reached from other machines"), "{said}");
    assert!(said.contains("link.reachable_from_other_machines"), "{said}");
    assert_eq!(world.processes(), []);
}
