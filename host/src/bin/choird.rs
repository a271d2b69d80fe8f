//! `choird`: the host's daemon. Everything is in the library; this reads the arguments and says how it ended.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use choir_host::daemon::{self, BootError, Options};
use choir_host::state_dir::{STATE_DIR_ENV, StateDir};
use clap::Parser;

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

#[derive(Debug, Parser)]
#[command(name = "choird", version, about = "Choir's daemon: owns what is durable, runs and watches agents", after_help = AFTER)]
struct Arguments {
    /// The state directory [default: ~/.choir.d]
    #[arg(long, env = STATE_DIR_ENV, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Keep log lines off standard error
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
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
                BootError::State(choir_host::state_dir::StateDirError::Missing(_)) => 3,
                BootError::State(_) => 5,
                BootError::GaveUp(_) => 4,
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
