//! `choird`: the host's daemon. Everything is in the library; this reads the arguments and says how it ended.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use choir_chap_http::{Auth, Listen, TlsFiles};
use choir_host::coordinator::{self, Alone, AloneError, StoreChoice};
use choir_host::daemon::{self, BootError, Options};
use choir_host::state_dir::{STATE_DIR_ENV, StateDir, StateDirError};
use choir_messages::mail::Caller;
use clap::{Args, Parser, Subcommand, ValueEnum};

const AFTER: &str = "\
Runs in the foreground until SIGTERM, SIGINT or `choirctl shutdown`. Writes one line to standard output once it accepts
commands; log lines (JSON) go to standard error and to logs/choird.log in the state directory.

Examples:
  choirctl init && choird
  choird --state-dir /var/lib/choir --quiet

Environment:
  CHOIR_STATE_DIR    the state directory
  CHOIR_AGENT_BIN    the choir-agent executable, if not beside choird
  CHOIR_POSTGRES_BIN the folder of PostgreSQL's programs, for the embedded database
  DATABASE_URL       an external database
  CHOIR_LOG          what is logged, such as info,choir_link=debug

Exit codes: 0 stopped as asked; 2 wrong arguments; 3 something it needs does not work; 4 its own fault;
5 refused by a rule (another choird runs here, files open to others).";

/// Calls, messages and events are many short-lived allocations on several threads, on which it saves a tenth of the time.
/// Without huge pages, which would double what an idle choird occupies.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(name = "choird", version, about = "Choir's daemon: owns what is durable, runs and watches agents", after_help = AFTER)]
struct Arguments {
    /// The state directory [default: ~/.choir.d]
    #[arg(long, env = STATE_DIR_ENV, value_name = "DIR", global = true)]
    state_dir: Option<PathBuf>,
    /// Keep log lines off standard error
    #[arg(long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a CHAP Coordinator by itself, without agents
    #[command(after_help = COORDINATOR_AFTER)]
    Coordinator(CoordinatorArgs),
}

const COORDINATOR_AFTER: &str = "\
Answers POST /chap (application/chap+json and application/json), GET /chap/events (server-sent events), GET /chap/inbox,
WebSocket (subprotocol chap.v1) on /chap/ws, and MCP on /mcp. Writes one line to standard output once it listens.

With --mcp-stdio it is the MCP server that an MCP client starts: one message a line on standard input and output, which
then carry nothing else (the line that says where it listens goes to standard error), until the client closes its end.
It listens on an address as well only if --listen is given.

Examples:
  choird coordinator
  choird coordinator --mcp-stdio --store sqlite --mcp-as agent:writer@example.org
  choird coordinator --store sqlite --enable-chain
  choird coordinator --listen 127.0.0.1:7717 --store postgres --enable-chain
  choird coordinator --listen 0.0.0.0:7717 --tls-certificate chain.pem --tls-key key.pem --tokens tokens.json

--tokens names a JSON list of {\"digest\": \"sha256:...\", \"participants\": [\"human:...\"]}; make a digest with
  printf %s \"$TOKEN\" | sha256sum

--identity names a JSON file:
  {\"url\": \"https://chap.example/chap\",
   \"oidc\": [{\"issuer\": \"https://id.example\", \"audiences\": [\"chap\"], \"jwks_uri\": \"https://id.example/jwks\"}],
   \"vc\": {\"domain\": \"chap.example\", \"issuers\": [{\"id\": \"did:key:z6Mk...\"}]}}
  url          where clients post calls; DPoP proofs are made for it
  oidc[]       issuer, audiences, and jwks_uri (https, or http on loopback) or jwks_file; optional: clients (azp),
               algorithms (RS256, ES256, EdDSA), max_age_sec, require_dpop, require_participant (tokens must carry
               chap_participant_uri). Members keep the plain `sub` of the first provider; the others' stand as issuer#sub
  vc           domain that presentations are made for; issuers with id, keys {method: JWK} unless a did:key, and types;
               optional: max_age_sec of a presentation (300), mirrors {status list URL: URL to fetch it from}
Profile identity-oidc/1.0 is then advertised by every workspace; --enforce-step-up looks at auth_time and acr of tokens.

Where audit-scitt/1.0 is advertised, every entry is registered in a Merkle tree signed with the log key: keys/log.key in
the state directory, or one for each run with --store memory. workspace.describe publishes it.

Exit codes: as choird's.";

#[derive(Debug, Args)]
struct CoordinatorArgs {
    /// Address to listen on; port 0 for any free one [default: 127.0.0.1:7717, or none with --mcp-stdio]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Serve MCP on standard input and output, and end when the client closes them
    #[arg(long)]
    mcp_stdio: bool,
    /// A participant the client on standard input may speak for; may be given more than once [default: all]
    #[arg(long = "mcp-as", value_name = "PARTICIPANT", requires = "mcp_stdio")]
    mcp_as: Vec<String>,
    /// Where workspaces are kept
    #[arg(long, value_enum, default_value_t = StoreKind::Memory)]
    store: StoreKind,
    /// Profiles of workspaces whose creator names none
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    default_profiles: Vec<String>,
    /// Chain every log, whatever its workspace advertises
    #[arg(long)]
    enable_chain: bool,
    /// Take only signed calls (but for workspace.create and participant.join)
    #[arg(long)]
    require_signatures: bool,
    /// Ask people for a fresh login at privileged methods
    #[arg(long)]
    enforce_step_up: bool,
    /// Let only members read
    #[arg(long)]
    require_read_membership: bool,
    /// Largest envelope taken, in bytes of its canonical form
    #[arg(long, value_name = "N", value_parser = envelope_bytes)]
    max_envelope_bytes: Option<usize>,
    /// File with the digests of bearer tokens; without it everybody who reaches the address may call
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// File that says whose ID tokens and credentials are believed; without it none are looked at
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Certificate chain (PEM) for TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key (PEM) for TLS
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Another host name under which clients reach it; may be given more than once
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// An origin whose web pages may call, such as https://desk.example; may be given more than once
    #[arg(long = "origin", value_name = "URL")]
    origins: Vec<String>,
    /// Send traces and metrics to this OTLP receiver (HTTP), such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreKind {
    /// In memory: everything ends with the process
    Memory,
    /// In the folder `coordinator` of the state directory: durable, fast, and needs no server
    Sqlite,
    /// In Postgres: `DATABASE_URL`, else a private cluster in the state directory
    Postgres,
}

/// Where it listens unless told otherwise.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7717);

/// Smallest and largest envelope that make sense: a call with a key, and what one answer may hold.
const ENVELOPE_BYTES: std::ops::RangeInclusive<usize> = 1024..=64 * 1024 * 1024;

fn envelope_bytes(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|bytes| ENVELOPE_BYTES.contains(bytes)).ok_or_else(|| {
        format!("a number of bytes from {} to {}", ENVELOPE_BYTES.start(), ENVELOPE_BYTES.end())
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Coordinator(wanted)) = arguments.command {
        return run_coordinator(wanted, arguments.state_dir, arguments.quiet);
    }
    let state = match StateDir::locate(arguments.state_dir.as_deref()) {
        Ok(state) => state,
        Err(error) => return fail(&error, 3),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, 4),
    };
    let socket = state.control_socket();
    let ready = move || {
        let line = serde_json::json!({ "ready": true, "pid": std::process::id(), "socket": socket });
        let mut out = std::io::stdout().lock();
        // Nobody may be reading; choird does not depend on it.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    };
    let result = runtime.block_on(daemon::run(Options { state, quiet: arguments.quiet }, ready));
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = match &error {
                BootError::State(StateDirError::Missing(_) | StateDirError::Io { .. }) => 3,
                BootError::State(_) => 5,
                BootError::GaveUp(_) => 4,
                _ => 3,
            };
            fail(&error, code)
        }
    }
}

fn run_coordinator(wanted: CoordinatorArgs, state_dir: Option<PathBuf>, quiet: bool) -> ExitCode {
    let located = || StateDir::locate(state_dir.as_deref());
    let store = match wanted.store {
        StoreKind::Memory => Ok(StoreChoice::Memory),
        StoreKind::Sqlite => located().map(StoreChoice::Sqlite),
        StoreKind::Postgres => located().map(StoreChoice::Postgres),
    };
    let store = match store {
        Ok(store) => store,
        Err(error) => return fail(&error, 3),
    };
    let auth = match wanted.tokens.as_deref().map(coordinator::read_tokens) {
        None => Auth::None,
        Some(Ok(auth)) => auth,
        Some(Err(error)) => return fail(&error, 3),
    };
    let identity = match wanted.identity.as_deref().map(coordinator::read_identity).transpose() {
        Ok(identity) => identity,
        Err(error) => return fail(&error, 3),
    };
    let mut rules = choir_chap::Settings {
        enable_chain: wanted.enable_chain,
        require_signatures: wanted.require_signatures,
        enforce_step_up: wanted.enforce_step_up,
        require_read_membership: wanted.require_read_membership,
        ..choir_chap::Settings::default()
    };
    if let Some(bytes) = wanted.max_envelope_bytes {
        rules.max_envelope_bytes = bytes;
    }
    if !wanted.default_profiles.is_empty() {
        rules.default_profiles = wanted.default_profiles;
    }
    let tls =
        wanted.tls_certificate.zip(wanted.tls_key).map(|(certificates, key)| TlsFiles { certificates, key });
    let stdio = wanted.mcp_stdio;
    let participants = (!wanted.mcp_as.is_empty()).then(|| wanted.mcp_as.into());
    let options = Alone {
        listen: wanted.listen.or_else(|| (!stdio).then_some(LISTEN)),
        mcp_stdio: stdio.then_some(Caller { participants }),
        store,
        rules,
        auth,
        identity,
        tls,
        hosts: wanted.hosts,
        origins: wanted.origins,
        otlp_endpoint: wanted.otlp_endpoint,
        quiet,
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, 4),
    };
    let ready = move |listen: &Listen| {
        let at = match listen {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix(path) => format!("unix:{}", path.display()),
        };
        let line = serde_json::json!({ "ready": true, "pid": std::process::id(), "listen": at });
        // Standard output may be an MCP client's.
        let _ = if stdio {
            writeln!(std::io::stderr().lock(), "{line}")
        } else {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{line}").and_then(|()| out.flush())
        };
    };
    let result = runtime.block_on(coordinator::run(options, ready));
    if stdio {
        // Whatever waits for a line on standard input cannot be told to end.
        runtime.shutdown_background();
    } else {
        runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = match &error {
                AloneError::Refused(_) | AloneError::State(_) => 5,
                AloneError::GaveUp(_) => 4,
                _ => 3,
            };
            fail(&error, code)
        }
    }
}

fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    let mut err = std::io::stderr().lock();
    let _ = writeln!(err, "choird: {error}");
    ExitCode::from(code)
}
