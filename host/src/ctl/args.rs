//! The command line of `choirctl`.

use std::path::PathBuf;
use std::time::Duration;

use choir_messages::id::{AgentId, MessageId, SessionId};
use clap::{Args, Parser, Subcommand};

use super::chap::{CoordinatorCommand, OverridesCommand, WorkspaceLogCommand};
use super::ledger::LedgerCommand;
use crate::state_dir::STATE_DIR_ENV;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the answer is no (not running, not found, not verified, a check failed)
  2  wrong usage
  3  something that is needed does not work (choird is not running, the database is away)
  4  a fault of Choir
  5  refused by a rule (a resource is in use, a message is too large, files are open to others)

Standard output is data, standard error is talk; --json prints one JSON value (streams: one a line).";

/// Operate Choir: agents that propose, a control plane that decides.
#[derive(Debug, Parser)]
#[command(name = "choirctl", version, about, after_help = EXIT_CODES, propagate_version = true)]
pub struct Arguments {
    /// The state directory [default: ~/.choir.d]
    #[arg(long, env = STATE_DIR_ENV, value_name = "DIR", global = true)]
    pub state_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Seconds to wait for an answer
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, global = true)]
    pub timeout: Duration,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.001..=86_400.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("a number of seconds from 0.001 to 86400".into()),
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create the state directory with a first configuration
    #[command(
        after_help = "Examples:\n  choirctl init\n  choirctl init --endpoint https://openrouter.ai/api/v1 --model anthropic/claude-sonnet-4\n  choirctl init --endpoint http://127.0.0.1:11434/v1 --model llama3 --no-key"
    )]
    Init(InitArgs),
    /// Show Choir at work: a private choird, an agent, and a conversation that survives kill -9
    #[command(
        after_help = "Examples:\n  choirctl demo\n  choirctl demo --script --json\n\nWith OPENROUTER_API_KEY or OPENAI_API_KEY the agent talks to that provider's model (CHOIR_MODEL names it,\nOPENROUTER_BASE_URL or OPENAI_BASE_URL the endpoint), otherwise to a built-in scripted one.\n\nCtrl-C ends everything the demo started. Its state directory is a temporary one unless --state-dir is given, and is\nremoved at the end unless it was there before, something went wrong, or --keep is given.\n\nWithout a terminal on standard input, or with --script or --json, it plays the conversation by itself. Exit code 0\nmeans: nothing lost, nothing duplicated, the hash chain verified."
    )]
    Demo(DemoArgs),
    /// Talk with an agent
    #[command(
        after_help = "Reads lines from standard input; each line is one message. End with Ctrl-D.\n\nExamples:\n  choirctl chat assistant\n  echo 'what is in notes.txt?' | choirctl chat assistant"
    )]
    Chat {
        /// The agent
        agent: AgentId,
    },
    /// Hand one message to an agent and return once it is stored
    #[command(
        after_help = "Examples:\n  choirctl send assistant 'summarise the logs'\n  choirctl send assistant --id 01J... 'again, harmlessly' "
    )]
    Send {
        /// The agent
        agent: AgentId,
        /// The text; - reads standard input
        text: String,
        /// The message's id; the same id twice is one message
        #[arg(long)]
        id: Option<MessageId>,
    },
    /// Start, stop and look at agents
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Sessions and their event logs
    #[command(subcommand)]
    Session(SessionCommand),
    /// Messages of users and what became of them
    #[command(after_help = "Examples:\n  choirctl messages --unanswered")]
    Messages {
        /// Of one agent only
        agent: Option<AgentId>,
        /// Only those without an outcome
        #[arg(long)]
        unanswered: bool,
    },
    /// The live actor trees of choird and of every agent
    Tree,
    /// One screen about everything
    Status,
    /// Lines of a log
    #[command(after_help = "Examples:\n  choirctl logs choird -f\n  choirctl logs assistant -n 50")]
    Logs {
        /// `choird` or an agent
        #[arg(default_value = "choird")]
        source: String,
        /// Go on with new lines
        #[arg(short, long)]
        follow: bool,
        /// How many of the last lines
        #[arg(short = 'n', long, default_value_t = 200)]
        lines: u32,
    },
    /// Check the installation
    Doctor,
    /// Secrets: values come from standard input or a hidden prompt, never from the command line
    #[command(subcommand)]
    Secret(SecretCommand),
    /// The configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Actors
    #[command(subcommand)]
    Actor(ActorCommand),
    /// Check an exported log offline: chain, signatures, receipts; says what it checked and what it could not
    #[command(
        after_help = "Takes files of `choirctl workspace-log export` and `choirctl session export`, and folders of the signed ledger: a home, an export, or one trace (`choirctl ledger verify` has more to choose). Exit code 1 if something is wrong.\n\nExamples:\n  choirctl verify support.log\n  choirctl verify support.log --log-key \"$LOG_KEY\" --checkpoint support.checkpoint\n  choirctl session export 01J... | choirctl verify -\n  choirctl verify run.export --log-key \"$LEDGER_KEY\""
    )]
    Verify {
        /// The file or folder; - reads standard input
        file: PathBuf,
        /// The Coordinator's log key, as name+hash+key: check the entries' receipts with it. Have it from the operator or
        /// an earlier day, not from the file's bearer
        #[arg(long, value_name = "KEY")]
        log_key: Option<String>,
        /// A checkpoint saved earlier with `choirctl workspace-log checkpoint`: check that the file is that log, or one that
        /// grew from it
        #[arg(long, value_name = "FILE", requires = "log_key")]
        checkpoint: Option<PathBuf>,
    },
    /// Evidence logs of CHAP workspaces
    #[command(subcommand)]
    WorkspaceLog(WorkspaceLogCommand),
    /// What people changed in what agents made
    #[command(subcommand)]
    Overrides(OverridesCommand),
    /// A live CHAP Coordinator
    #[command(subcommand)]
    Coordinator(CoordinatorCommand),
    /// The signed ledger: runs of four roles over one signed trace, and their verification
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Shut choird down in order
    Shutdown,
}

/// `init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Name of the agent
    #[arg(long, default_value = "assistant")]
    pub agent: AgentId,
    /// Base URL of an OpenAI-compatible endpoint
    #[arg(long, default_value = "https://openrouter.ai/api/v1")]
    pub endpoint: String,
    /// The provider's model id
    #[arg(long, default_value = "anthropic/claude-sonnet-4")]
    pub model: String,
    /// Name of the secret that will hold the key
    #[arg(long, default_value = "model-key", conflicts_with = "no_key")]
    pub secret: String,
    /// The endpoint needs no key
    #[arg(long)]
    pub no_key: bool,
    /// The agent's working directory [default: workspaces/main in the state directory]
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
}

/// `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Play the conversation instead of asking for it
    #[arg(long)]
    pub script: bool,
    /// Keep the demo's state directory
    #[arg(long)]
    pub keep: bool,
}

/// `agent`.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Start an agent; returns once it is up
    #[command(
        after_help = "Examples:\n  choirctl agent start assistant\n  choirctl agent start assistant --new-session --llm o3"
    )]
    Start {
        /// The agent
        agent: AgentId,
        /// Open a new session instead of resuming the last
        #[arg(long)]
        new_session: bool,
        /// Another workspace than its default
        #[arg(long)]
        workspace: Option<String>,
        /// Another model than its default
        #[arg(long)]
        llm: Option<String>,
    },
    /// Stop an agent; returns once it is stopped
    Stop {
        /// The agent
        agent: AgentId,
    },
    /// Stop and start an agent
    Restart {
        /// The agent
        agent: AgentId,
        /// Open a new session instead of resuming the last
        #[arg(long)]
        new_session: bool,
    },
    /// All agents
    List,
    /// One agent in detail
    Status {
        /// The agent
        agent: AgentId,
    },
}

/// `session`.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Sessions, newest first
    List {
        /// Of one agent only
        agent: Option<AgentId>,
    },
    /// A session's event log
    #[command(
        after_help = "Examples:\n  choirctl session events 01J... --json | jq .kind\n  choirctl session events 01J... -f"
    )]
    Events {
        /// The session
        session: SessionId,
        /// Only events after this revision
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// Go on with new events
        #[arg(short, long)]
        follow: bool,
    },
    /// Write a session's event log to a portable file that `choirctl verify` checks offline
    #[command(
        after_help = "Examples:\n  choirctl session export 01J... > session.log\n  choirctl verify session.log"
    )]
    Export {
        /// The session
        session: SessionId,
    },
    /// Verify a session's hash chain from its first event; exit code 1 if it does not hold
    Verify {
        /// The session
        session: SessionId,
    },
}

/// `secret`.
#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Set a secret; the value is read from standard input or a hidden prompt
    #[command(
        after_help = "Examples:\n  choirctl secret set model-key\n  printf %s \"$KEY\" | choirctl secret set model-key"
    )]
    Set {
        /// Its name
        name: String,
    },
    /// The names
    List,
    /// Delete a secret
    Delete {
        /// Its name
        name: String,
    },
    /// Put changed secrets into force at the running choird and its agents
    Apply,
}

/// `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check config.json without putting it into force
    Check,
    /// Print config.json as it is understood, defaults included
    Show,
    /// Check a changed config.json and put it into force at the running choird and its agents
    #[command(
        after_help = "Shows every field that is different and when that takes effect. A file with mistakes changes nothing.\n\nExamples:\n  choirctl config reload --dry-run\n  choirctl config reload\n  choirctl --json config reload --dry-run | jq '.changes[] | select(.effect != \"now\")'"
    )]
    Reload {
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
    },
}

/// `actor`.
#[derive(Debug, Subcommand)]
pub enum ActorCommand {
    /// Kill one actor, to see it recover
    #[command(
        after_help = "Examples:\n  choirctl actor kill choird/agents/assistant/inbox\n  choirctl actor kill assistant/choir-agent/session/arbiter"
    )]
    Kill {
        /// Its path, as `choirctl tree` shows it; an agent's actors are prefixed with the agent's name
        path: String,
    },
}
