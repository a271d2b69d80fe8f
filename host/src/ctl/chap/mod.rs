//! Commands about CHAP workspaces: playing scenarios, exporting logs, verifying files, reporting overrides.

mod checkpoint;
mod export;
mod html;
mod lines;
mod list;
mod play;
mod receipts;
mod report;
mod verify;

use std::path::PathBuf;
use std::time::Duration;

use choir_chap_client::{CallError, Client, Endpoint, EndpointError, Signer};
use clap::{Args, Subcommand};
use zeroize::Zeroizing;

use super::{Outcome, Printer};
use crate::control::{ControlError, ErrorCode};
use crate::state_dir::StateDir;

/// Where a Coordinator is when nothing says so and no choird serves one in the state directory.
const USUAL: &str = "http://127.0.0.1:7717";

/// Longest file with a token or a key read, in bytes.
const SECRET_BYTES: u64 = 4096;

/// How to reach a Coordinator.
#[derive(Debug, Clone, Args)]
pub struct CoordinatorAt {
    /// Its address: http://127.0.0.1:PORT, https://HOST or unix:/path [default: choird's, else http://127.0.0.1:7717]
    #[arg(long, value_name = "URL", env = "CHOIR_COORDINATOR")]
    pub url: Option<String>,
    /// File with the bearer token to show
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Read as this participant, where reading is for members only
    #[arg(long = "as", value_name = "URI")]
    pub participant: Option<String>,
    /// Sign as that participant with the private key in this file (a JWK), where only signed calls are taken
    #[arg(long, value_name = "FILE", requires = "participant")]
    pub key_file: Option<PathBuf>,
}

/// `workspace-log`.
#[derive(Debug, Subcommand)]
pub enum WorkspaceLogCommand {
    /// Write a workspace's evidence log to a portable file that `choirctl verify` checks offline
    #[command(
        after_help = "The file is written beside its place and moved there when it is complete; - writes to standard output.\n\nExamples:\n  choirctl workspace-log export wsp_support -o support.log\n  choirctl workspace-log export wsp_support --url https://chap.example --token-file token -o - | choirctl verify -"
    )]
    Export {
        /// The workspace
        workspace: String,
        /// Where to write; - for standard output
        #[arg(short, long, default_value = "-")]
        output: PathBuf,
        /// Say in the file that the Coordinator took signed calls only, so that a missing signature is a fault
        #[arg(long)]
        signatures_required: bool,
        /// Fetch each entry's receipt from the Coordinator's transparency log, for `choirctl verify --log-key`
        #[arg(long)]
        receipts: bool,
        /// Where the Coordinator is
        #[command(flatten)]
        at: CoordinatorAt,
    },
    /// Save the signed checkpoint of a workspace's transparency log, to compare later exports with
    #[command(
        after_help = "The workspace must advertise audit-scitt/1.0. An existing file is not overwritten. Keep it, and the log key, somewhere\nelse than the Coordinator.\n\nExamples:\n  choirctl workspace-log checkpoint wsp_support -o support.checkpoint\n  choirctl verify support.log --log-key \"$LOG_KEY\" --checkpoint support.checkpoint"
    )]
    Checkpoint {
        /// The workspace
        workspace: String,
        /// Where to write; - for standard output
        #[arg(short, long, default_value = "-")]
        output: PathBuf,
        /// Where the Coordinator is
        #[command(flatten)]
        at: CoordinatorAt,
    },
    /// List the workspaces of a Coordinator
    #[command(
        after_help = "For operators: on choird's own socket, and where the Coordinator does not ask for read membership.\n\nExamples:\n  choirctl workspace-log list\n  choirctl --json workspace-log list | jq -r '.[].workspace'"
    )]
    List {
        /// Where the Coordinator is
        #[command(flatten)]
        at: CoordinatorAt,
    },
}

/// `overrides`.
#[derive(Debug, Subcommand)]
pub enum OverridesCommand {
    /// Report overrides by tag, agent version, task kind, policy and reviewer, and what a promotion is judged by
    #[command(
        after_help = "Examples:\n  choirctl overrides report wsp_support\n  choirctl overrides report --file support.log --html report.html\n  choirctl --json overrides report wsp_support | jq '.by_agent'\n  choirctl overrides report wsp_support --max-override-rate 0.05 --minimum-tasks 50"
    )]
    Report {
        /// The workspace
        #[arg(required_unless_present = "file", conflicts_with = "file")]
        workspace: Option<String>,
        /// Report an exported log instead
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Also write one self-contained HTML page
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// For the promotion check: fewest tasks an agent has handed in
        #[arg(long, value_name = "N", default_value_t = 30)]
        minimum_tasks: u64,
        /// For the promotion check: highest override rate, 0 to 1
        #[arg(long, value_name = "RATE", default_value_t = 0.05, value_parser = share)]
        max_override_rate: f64,
        /// For the promotion check: highest rejection rate, 0 to 1
        #[arg(long, value_name = "RATE", default_value_t = 0.05, value_parser = share)]
        max_rejection_rate: f64,
        /// For the promotion check: highest abstention rate, 0 to 1
        #[arg(long, value_name = "RATE", default_value_t = 0.2, value_parser = share)]
        max_abstention_rate: f64,
        /// Where the Coordinator is
        #[command(flatten)]
        at: CoordinatorAt,
    },
}

/// `coordinator`.
#[derive(Debug, Subcommand)]
pub enum CoordinatorCommand {
    /// Play scenarios against a live Coordinator: lists of calls with what must come back
    #[command(
        after_help = "Each scenario gets a workspace of its own. Exit code 1 if one does not go as its file says.\n\nExamples:\n  choirctl coordinator play examples/chap/d02-marketing-copy.json\n  choirctl coordinator play examples/chap/*.json --url http://127.0.0.1:7717"
    )]
    Play {
        /// The scenarios
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where the Coordinator is
        #[command(flatten)]
        at: CoordinatorAt,
    },
}

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|rate| (0.0..=1.0).contains(rate)).ok_or_else(|| "a number from 0 to 1".into())
}

impl CoordinatorAt {
    fn client(&self, state: &StateDir, within: Duration) -> Result<Client, ControlError> {
        let endpoint: Endpoint = match &self.url {
            Some(url) => url.parse().map_err(|error: EndpointError| usage(&error))?,
            None if state.coordinator_socket().exists() => Endpoint::Socket(state.coordinator_socket()),
            None => USUAL.parse().map_err(|error: EndpointError| usage(&error))?,
        };
        let token = self.token_file.as_deref().map(read_secret).transpose()?;
        let client = Client::new(endpoint, token, within).map_err(|error| told(&error))?;
        match (&self.participant, &self.key_file) {
            (Some(participant), Some(file)) => {
                let signer = Signer::from_jwk(&read_secret(file)?).map_err(|error| {
                    ControlError::new(ErrorCode::Usage, format!("{}: {error}", file.display()))
                })?;
                Ok(client.signing_as(participant, signer))
            }
            _ => Ok(client),
        }
    }
}

fn read_secret(path: &std::path::Path) -> Result<Zeroizing<String>, ControlError> {
    let failed = |why: String| ControlError::new(ErrorCode::Runtime, format!("{}: {why}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > SECRET_BYTES {
        return Err(failed(format!("it is larger than {SECRET_BYTES} bytes, which no token and no key is")));
    }
    let text = Zeroizing::new(std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?);
    Ok(Zeroizing::new(text.trim().to_owned()))
}

fn usage(error: &dyn std::fmt::Display) -> ControlError {
    ControlError::new(ErrorCode::Usage, error.to_string())
}

/// What a call's failure is to whoever typed the command.
fn told(error: &CallError) -> ControlError {
    match error {
        CallError::Unreachable { .. } => {
            let error = ControlError::new(ErrorCode::Runtime, error.to_string());
            error.next("choird coordinator, or name another with --url")
        }
        // Nothing else of a read is refused in these words.
        CallError::Refused(refusal) if refusal.message.starts_with("Unknown workspace") => {
            let what = format!("{}; ids are exact", super::print::plain(&refusal.message));
            ControlError::new(ErrorCode::Negative, what).next("choirctl workspace-log list")
        }
        CallError::Refused(refusal) => {
            ControlError::new(ErrorCode::Refused, format!("the Coordinator refuses: {refusal}"))
        }
        _ => ControlError::new(ErrorCode::Runtime, error.to_string()),
    }
}

pub(super) async fn workspace_log(
    command: WorkspaceLogCommand,
    state: &StateDir,
    within: Duration,
    printer: &Printer,
) -> Outcome {
    match command {
        WorkspaceLogCommand::Export { workspace, output, signatures_required, receipts, at } => {
            let client = at.client(state, within)?;
            let wanted = export::Wanted { signatures_required, receipts };
            export::run(client, &workspace, at.participant, &output, wanted, printer).await
        }
        WorkspaceLogCommand::Checkpoint { workspace, output, at } => {
            let client = at.client(state, within)?;
            checkpoint::run(&client, &workspace, at.participant.as_deref(), &output, printer).await
        }
        WorkspaceLogCommand::List { at } => list::run(&at.client(state, within)?, printer).await,
    }
}

pub(super) async fn overrides(
    command: OverridesCommand,
    state: &StateDir,
    within: Duration,
    printer: &Printer,
) -> Outcome {
    let OverridesCommand::Report {
        workspace,
        file,
        html,
        minimum_tasks,
        max_override_rate,
        max_rejection_rate,
        max_abstention_rate,
        at,
    } = command;
    let policy = choir_chap::report::PromotionPolicy {
        minimum_tasks,
        max_override_rate,
        max_rejection_rate,
        max_abstention_rate,
    };
    let overrides = match (&file, &workspace) {
        (Some(file), _) => report::of_file(file)?,
        (None, Some(workspace)) => {
            report::of_workspace(at.client(state, within)?, workspace, at.participant.clone()).await?
        }
        (None, None) => return Err(usage(&"name a workspace or a --file")),
    };
    report::show(&overrides, &policy, html.as_deref(), workspace.as_deref(), printer)
}

pub(super) async fn coordinator(
    command: CoordinatorCommand,
    state: &StateDir,
    within: Duration,
    printer: &Printer,
) -> Outcome {
    let CoordinatorCommand::Play { files, at } = command;
    play::run(&at.client(state, within)?, &files, printer).await
}

pub(super) use verify::run as verify;
