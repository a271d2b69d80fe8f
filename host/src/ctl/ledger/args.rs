//! The command line of `choirctl ledger`.

use std::path::PathBuf;

use choir_ledger::id::TraceId;
use choir_ledger::verify::Profile;
use choir_messages::id::AgentId;
use clap::{Args, Subcommand};

/// `ledger`.
#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Have planner, critic, executor and auditor work on a task, and follow them to the end
    #[command(
        after_help = "TASK is a task file, - for one on standard input, or a sentence. The tools run in an agent's sandbox; the agent is\nstarted if it is not up. Ctrl-C ends the following, not the run: `choirctl ledger follow` goes on,\n`choirctl ledger abort` ends it.\n\nExit codes: 0 completed and verified (pass or pass-with-warnings), 1 verified and failed, or aborted, 2 the task cannot be\nread, 3 the run could not be completed, 5 turned down by the critic's policy.\n\nExamples:\n  choirctl ledger run task.json\n  choirctl ledger run 'read notes.txt' --agent assistant\n  choirctl ledger run task.json --json | jq -r 'select(.kind == \"claim_issued\").payload.claim_text'"
    )]
    Run {
        /// A task file, or a sentence
        task: String,
        /// The agent whose tools are used [default: the only one]
        #[arg(long)]
        agent: Option<AgentId>,
    },
    /// Follow a run from its first event to its end
    #[command(after_help = "Exit codes as for `ledger run`.\n\nExamples:\n  choirctl ledger follow 01J...")]
    Follow {
        /// The trace
        trace: TraceId,
    },
    /// End a run; its trace says so and can be verified as far as it goes
    #[command(after_help = "Examples:\n  choirctl ledger abort 01J... --reason 'wrong file'")]
    Abort {
        /// The trace
        trace: TraceId,
        /// Why, for whoever reads the trace
        #[arg(long, default_value = "aborted by the operator")]
        reason: String,
    },
    /// Verify traces offline: every hash, signature, artefact, claim, and the order of the protocol. Changes nothing
    #[command(
        after_help = "PLACE is a ledger home, the folder of one trace in it, or an export. Without --trace every trace of a home is verified.\nA home that Choir wrote is also checked for a registry that its signed log does not bear out.\n\nExit codes: 0 pass or pass-with-warnings, 1 fail, 2 the place or an argument is malformed, 3 it cannot be read,\n4 a fault of Choir, 5 refused: nothing may be verified there (a trace id that leads out of the home).\n\nExamples:\n  choirctl ledger verify ~/.choir.d/ledger\n  choirctl ledger verify run.export --profile strict --json\n  choirctl ledger verify ~/.choir.d/ledger --trace 01J... --compat"
    )]
    Verify {
        /// A home, a trace's folder or an export [default: choird's own home]
        place: Option<PathBuf>,
        /// Only this trace
        #[arg(long, value_name = "ID")]
        trace: Option<String>,
        /// How open challenges count: strict, default or lenient [default: the trace's own]
        #[arg(long)]
        profile: Option<Profile>,
        /// Read as the original implementation reads, instead of by the protocol's own rules
        #[arg(long)]
        compat: bool,
        /// The home's log key, as `ledger key list` prints it: also check the registry and the proof of publication with it
        #[arg(long, value_name = "KEY")]
        log_key: Option<String>,
    },
    /// The traces of a home
    List {
        /// The home
        #[command(flatten)]
        home: HomeAt,
    },
    /// A trace as a timeline: what was said, by whom, signed with which key
    #[command(
        after_help = "Examples:\n  choirctl ledger show 01J...\n  choirctl ledger show 01J... --json | jq '.events[].kind'"
    )]
    Show {
        /// The trace
        trace: TraceId,
        /// The home
        #[command(flatten)]
        home: HomeAt,
    },
    /// Write one trace with its artefacts and the key registry into a new folder
    #[command(
        after_help = "The folder is a home in the original's layout; `ledger verify` and `ledger import` take it.\n\nExamples:\n  choirctl ledger export 01J... run.export"
    )]
    Export {
        /// The trace
        trace: TraceId,
        /// The folder to make
        folder: PathBuf,
        /// The home
        #[command(flatten)]
        home: HomeAt,
    },
    /// Take over a trace from an export or another home; it must verify strictly
    #[command(
        after_help = "Exit code 5 if the trace does not verify.\n\nExamples:\n  choirctl ledger import run.export"
    )]
    Import {
        /// The export or home
        folder: PathBuf,
        /// Which trace, if there are several
        #[arg(long, value_name = "ID")]
        trace: Option<TraceId>,
        /// How open challenges count
        #[arg(long)]
        profile: Option<Profile>,
        /// Take it although it does not verify
        #[arg(long)]
        accept_failing: bool,
        /// The home
        #[command(flatten)]
        home: HomeAt,
    },
    /// Keys that sign in traces
    #[command(subcommand)]
    Key(KeyCommand),
}

/// Which home.
#[derive(Debug, Clone, Args)]
pub struct HomeAt {
    /// The ledger home [default: choird's own, in the state directory]
    #[arg(long = "home", value_name = "DIR")]
    pub home: Option<PathBuf>,
}

/// `ledger key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key for an agent that has none
    #[command(after_help = "Examples:\n  choirctl ledger key new planner-agent --role planner")]
    New {
        /// The agent's name in events: a-z, 0-9, '.', '_' and '-'
        agent: String,
        /// What it may do; may be given more than once
        #[arg(long = "role", required = true)]
        roles: Vec<choir_ledger::event::Role>,
        /// Its name for people
        #[arg(long)]
        name: Option<String>,
        /// The home
        #[command(flatten)]
        home: HomeAt,
    },
    /// Replace a key; the old one signs the change, and stays good for what it signed before
    #[command(
        after_help = "Refused with exit code 5 while a run signs with the key: wait until it has ended, or abort it. A key that is\ncompromised is revoked instead, at any time.\n\nExamples:\n  choirctl ledger key rotate key_0123456789abcdef"
    )]
    Rotate {
        /// The key's id
        key: String,
        /// The home
        #[command(flatten)]
        home: HomeAt,
    },
    /// Withdraw a key: what it signs from now on is worth nothing
    #[command(
        after_help = "A run that needs the key ends as failed and says so; what the key signed before stays good. The next run gets a new\nkey.\n\nExamples:\n  choirctl ledger key revoke key_0123456789abcdef --reason 'the laptop was stolen'"
    )]
    Revoke {
        /// The key's id
        key: String,
        /// Why
        #[arg(long, default_value = "withdrawn by the operator")]
        reason: String,
        /// The home
        #[command(flatten)]
        home: HomeAt,
    },
    /// All keys that ever were, and the home's log key
    List {
        /// The home
        #[command(flatten)]
        home: HomeAt,
    },
}
