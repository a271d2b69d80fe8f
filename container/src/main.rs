//! The `choir-agent` binary; see the library for what it does.

use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use choir_agent::end::End;
use choir_agent::{Agent, AgentSpec, bootstrap};
use choir_link::LinkSecret;
use choir_messages::mail::{EdgeMsg, ReplicatorMsg, UplinkMsg};
use choir_messages::secret::Secret;
use choir_messages::wire::{Bootstrap, Request};
use choir_telemetry::{Metrics, Scrubber, Telemetry, TelemetryConfig};
use clap::Parser;
use tokio::io::BufReader;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

/// The agent's process. choird starts it inside a sandbox and writes one line of JSON to its standard input; it is not
/// started by hand.
#[derive(Debug, Parser)]
#[command(name = "choir-agent", version, after_help = EXIT_CODES)]
struct Arguments {}

const EXIT_CODES: &str = "Exit codes:
   0  shut down in order
   2  no usable bootstrap on standard input
   4  the actor tree gave up
  10  the lease was revoked
  11  this agent's log differs from the host's
  12  the host was out of reach for too long
  13  the host speaks another version
  14  the host is gone (standard input ended)";

/// How long an ordered end may take once nobody waits for it.
const LAST_WORDS: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let Arguments {} = Arguments::parse();
    // Commands of an ordinary user's agent must not read its memory or environment. Where the kernel refuses, the
    // sandbox is what is left, and the agent says so.
    if let Err(error) = choir_tools::hide_process() {
        say(&format!("this process cannot be hidden from the commands it runs: {error}"));
    }
    // Two threads: the work is waiting, and an agent must fit into 15 MB.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let end = match runtime {
        Ok(runtime) => {
            let end = runtime.block_on(run());
            runtime.shutdown_timeout(LAST_WORDS);
            end
        }
        Err(error) => End::Tree(error.to_string()),
    };
    if end != End::ShutDown {
        say(&end.to_string());
    }
    ExitCode::from(end.exit_code())
}

/// Standard error is the sandbox's log; standard output is unused.
#[expect(clippy::print_stderr, reason = "the process's last words, after telemetry has ended")]
fn say(words: &str) {
    eprintln!("choir-agent: {words}");
}

async fn run() -> End {
    let mut input = match lifeline_pipe() {
        Ok(pipe) => BufReader::new(pipe),
        Err(error) => {
            return End::Bootstrap(format!("{error}; choir-agent is started by choird, not by hand"));
        }
    };
    let bootstrap = match bootstrap::read(&mut input).await {
        Ok(bootstrap) => bootstrap,
        Err(end) => return end,
    };
    let secret = match LinkSecret::from_hex(&bootstrap.link_secret) {
        Ok(secret) => secret,
        Err(error) => return End::Bootstrap(error.to_string()),
    };
    let scrubber = Scrubber::new();
    // A link secret is long enough to be looked for.
    let _ = scrubber.add(&Secret::new(bootstrap.link_secret.clone()));
    let telemetry = telemetry(&bootstrap, scrubber.clone());
    let metrics = telemetry.as_ref().map(|telemetry| telemetry.metrics().clone());
    let end = live(bootstrap, secret, scrubber, metrics, input).await;
    tracing::info!(%end, "choir-agent ends");
    if let Some(telemetry) = telemetry
        && let Err(error) = telemetry.shutdown(LAST_WORDS).await
    {
        say(&error.to_string());
    }
    end
}

/// Standard input as a pipe that can be awaited without a thread of its own.
fn lifeline_pipe() -> std::io::Result<Receiver> {
    Receiver::from_owned_fd(std::io::stdin().as_fd().try_clone_to_owned()?)
}

async fn live(
    bootstrap: Bootstrap,
    secret: LinkSecret,
    scrubber: Scrubber,
    metrics: Option<Metrics>,
    input: BufReader<Receiver>,
) -> End {
    let (ends, mut ended) = mpsc::channel(4);
    let (shut_down, mut shutting_down) = mpsc::channel(1);
    let uplink_ends = ends.clone();
    let verdict = Arc::new(move |end| {
        // One end is enough; a full channel already holds one.
        let _ = uplink_ends.try_send(End::Uplink(end));
    });
    let spec = AgentSpec {
        agent: bootstrap.agent,
        session: bootstrap.session,
        lease: bootstrap.lease,
        generation: bootstrap.generation,
        link: bootstrap.link,
        secret,
        workspace: bootstrap.workspace,
        choir_dir: bootstrap.choir_dir,
        scrubber,
    };
    let lifeline = bootstrap::lifeline(input);
    tokio::pin!(lifeline);
    let starting = choir_agent::start(spec, shut_down, verdict);
    let agent = tokio::select! {
        started = starting => match started {
            Ok(agent) => agent,
            Err(error) => return End::Tree(error.to_string()),
        },
        () = &mut lifeline => return End::Lifeline,
        Some(end) = ended.recv() => return end,
    };
    tracing::info!("choir-agent ready");
    let tree = agent.tree.handle();
    if let Some(metrics) = metrics {
        let observed = tree.clone();
        metrics.observe_tree(move || choir_telemetry::samples(&observed.snapshot()));
    }
    let end = tokio::select! {
        Some(within) = shutting_down.recv() => {
            // The host still holds the other end; if it goes, so does the reason to be orderly.
            tokio::select! {
                () = drain(&agent, within) => {}
                () = &mut lifeline => {}
            }
            End::ShutDown
        }
        () = &mut lifeline => End::Lifeline,
        Some(end) = ended.recv() => end,
        exit = tree.ended() => End::Tree(exit.to_string()),
    };
    // Commands that run are ended by their executors' own ends.
    let report = tokio::time::timeout(LAST_WORDS, agent.tree.shutdown()).await;
    if let Ok(report) = report {
        tracing::info!(?report, "tree ended");
    }
    end
}

/// `choir §17.2`: a safe point, everything durable, goodbye.
async fn drain(agent: &Agent, within: Duration) {
    let deadline = tokio::time::Instant::now() + within;
    let left = || deadline.saturating_duration_since(tokio::time::Instant::now());
    if agent.edge.call(left(), |reply| EdgeMsg::Drain { reply }).await.is_err() {
        tracing::warn!("no safe point was reached in time; the turn is taken up again at the next start");
    }
    if agent.replicator.call(left(), |reply| ReplicatorMsg::Flush { reply }).await.is_err() {
        tracing::warn!("the last events may not have reached the host");
    }
    let request = Request::TerminateSelf { reason: "told to shut down".to_owned() };
    let deadline_ms = u64::try_from(left().as_millis()).unwrap_or(u64::MAX);
    let _ = agent.uplink.call(left(), |reply| UplinkMsg::Call { request, deadline_ms, reply }).await;
}

/// Logs go to standard error as JSON lines, which the host files; traces and metrics go to OTLP if it says where.
fn telemetry(bootstrap: &Bootstrap, scrubber: Scrubber) -> Option<Telemetry> {
    let config = TelemetryConfig {
        scrubber,
        session: Some(bootstrap.session.to_string()),
        otlp_endpoint: bootstrap.otlp_endpoint.clone(),
        log_to_stderr: true,
        ..TelemetryConfig::new("choir-agent", bootstrap.agent.as_str())
    };
    match choir_telemetry::init(config) {
        Ok(telemetry) => Some(telemetry),
        Err(error) => {
            say(&format!("no telemetry: {error}"));
            None
        }
    }
}
