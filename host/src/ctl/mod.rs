//! `choirctl`: reads the command line, asks choird, prints.

mod args;
mod chap;
mod chat;
mod doctor;
mod init;
mod ledger;
mod local;
mod print;
mod render;
mod session_log;
mod tree;

use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;

pub use args::{
    ActorCommand, AgentCommand, Arguments, Command, ConfigCommand, DemoArgs, InitArgs, SecretCommand,
    SessionCommand,
};
pub use chap::{CoordinatorAt, CoordinatorCommand, OverridesCommand, WorkspaceLogCommand};
pub use ledger::{HomeAt, KeyCommand, LedgerCommand};
pub(crate) use print::Printer;

use crate::control::views::{
    AgentView, AppliedView, EventLine, MessageLine, SentView, SessionLine, StatusView, TreeView, VerifyView,
};
use crate::control::{Client, ClientError, ControlError, ErrorCode, Op};
use crate::state_dir::{StateDir, StateDirError};

/// How a command ended: whether the answer was yes, or why there is none.
pub(crate) type Outcome = Result<bool, ControlError>;

/// Runs one command and says its exit code.
#[must_use]
pub fn run(arguments: Arguments) -> ExitCode {
    let printer = Printer::new(arguments.json);
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            printer.error(&ControlError::new(ErrorCode::Internal, error.to_string()));
            return ExitCode::from(4);
        }
    };
    let outcome = runtime.block_on(act(arguments, &printer));
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            printer.error(&error);
            ExitCode::from(error.code.exit_code())
        }
    }
}

impl From<StateDirError> for ControlError {
    fn from(error: StateDirError) -> Self {
        let code = match &error {
            StateDirError::Exposed { .. } | StateDirError::Busy { .. } => ErrorCode::Refused,
            StateDirError::TooLong { .. } | StateDirError::NoHome => ErrorCode::Usage,
            StateDirError::Missing(_) | StateDirError::Io { .. } => ErrorCode::Runtime,
        };
        Self::new(code, error.to_string())
    }
}

async fn act(arguments: Arguments, printer: &Printer) -> Outcome {
    let Arguments { state_dir, timeout, command, json } = arguments;
    if let Command::Demo(demo) = &command {
        return crate::demo::run(demo, state_dir.as_deref(), json, printer).await;
    }
    if let Command::Verify { file, log_key, checkpoint } = &command {
        if file.is_dir() && checkpoint.is_none() {
            return ledger::verify_folder(file, log_key.as_deref(), printer);
        }
        return chap::verify(file, log_key.as_deref(), checkpoint.as_deref(), printer);
    }
    let state = StateDir::locate(state_dir.as_deref())?;
    match command {
        Command::WorkspaceLog(command) => {
            return chap::workspace_log(command, &state, timeout, printer).await;
        }
        Command::Overrides(command) => return chap::overrides(command, &state, timeout, printer).await,
        Command::Coordinator(command) => return chap::coordinator(command, &state, timeout, printer).await,
        Command::Ledger(command) => return ledger::act(command, &state, timeout, printer).await,
        Command::Init(init) => return init::run(&init, &state, printer),
        Command::Doctor => return doctor::run(&state, timeout, printer).await,
        Command::Secret(command) if !matches!(command, SecretCommand::Apply) => {
            return local::secret(command, &state, printer);
        }
        Command::Config(ConfigCommand::Check) => return local::config_check(&state, printer),
        Command::Config(ConfigCommand::Show) => return local::config_show(&state, printer),
        _ => {}
    }
    state.check()?;
    let client = Client::connect(&state.control_socket(), timeout).await.map_err(told)?;
    let asked = Asked { client: &client, timeout, printer };
    match command {
        Command::Chat { agent } => chat::run(&client, &agent, timeout, printer).await,
        Command::Send { agent, text, id } => {
            let text = if text == "-" { local::read_stdin()? } else { text };
            let message = id.unwrap_or_else(choir_messages::id::MessageId::fresh);
            asked.show(Op::Send { agent, message, text }, render::sent as fn(&SentView) -> String).await
        }
        Command::Agent(command) => {
            let one = render::agent as fn(&AgentView) -> String;
            match command {
                AgentCommand::Start { agent, new_session, workspace, llm } => {
                    asked.show(Op::AgentStart { agent, fresh: new_session, workspace, llm }, one).await
                }
                AgentCommand::Stop { agent } => asked.show(Op::AgentStop { agent }, one).await,
                AgentCommand::Restart { agent, new_session } => {
                    asked.show(Op::AgentRestart { agent, fresh: new_session }, one).await
                }
                AgentCommand::List => {
                    asked.show(Op::AgentList, |list: &Vec<AgentView>| render::agents(list)).await
                }
                AgentCommand::Status { agent } => asked.show(Op::AgentStatus { agent }, one).await,
            }
        }
        Command::Session(SessionCommand::List { agent }) => {
            asked.show(Op::SessionList { agent }, |list: &Vec<SessionLine>| render::sessions(list)).await
        }
        Command::Session(SessionCommand::Events { session, after, follow }) => {
            asked
                .stream(
                    Op::SessionEvents { session, after, follow },
                    render::event as fn(&EventLine) -> String,
                )
                .await
        }
        Command::Session(SessionCommand::Export { session }) => export_session(&client, session).await,
        Command::Session(SessionCommand::Verify { session }) => {
            let view: VerifyView = client.call(Op::SessionVerify { session }, timeout).await.map_err(told)?;
            printer.show(&view, || render::verify(&view));
            Ok(view.verified)
        }
        Command::Messages { agent, unanswered } => {
            let view: Vec<MessageLine> =
                client.call(Op::Messages { agent, unanswered }, timeout).await.map_err(told)?;
            printer.show(&view, || render::messages(&view));
            Ok(true)
        }
        Command::Tree => asked.show(Op::Tree, tree::draw as fn(&TreeView) -> String).await,
        Command::Status => asked.show(Op::Status, render::status as fn(&StatusView) -> String).await,
        Command::Logs { source, follow, lines } => {
            asked.stream(Op::Logs { source, lines, follow }, Clone::clone as fn(&String) -> String).await
        }
        Command::Secret(_) => {
            asked.show(Op::SecretApply, render::applied as fn(&AppliedView) -> String).await
        }
        Command::Config(command) => {
            let dry_run = matches!(command, ConfigCommand::Reload { dry_run: true });
            let op = if dry_run { Op::ConfigDiff } else { Op::ConfigReload };
            asked.show(op, render::applied as fn(&AppliedView) -> String).await
        }
        Command::Actor(ActorCommand::Kill { path }) => {
            asked
                .show(Op::ActorKill { path }, |killed: &Value| {
                    format!("killed {}\n", killed["killed"].as_str().unwrap_or("?"))
                })
                .await
        }
        Command::Shutdown => {
            let () = client.call(Op::Shutdown, timeout).await.map_err(told)?;
            local::wait_for_end(&state, timeout).await?;
            printer.show(&serde_json::json!({ "stopped": true }), || "choird is stopped\n".into());
            Ok(true)
        }
        Command::Init(_)
        | Command::Demo(_)
        | Command::Doctor
        | Command::Verify { .. }
        | Command::WorkspaceLog(_)
        | Command::Overrides(_)
        | Command::Coordinator(_)
        | Command::Ledger(_) => Ok(true),
    }
}

/// Writes a session's log to standard output, line by line.
async fn export_session(client: &Client, session: choir_messages::id::SessionId) -> Outcome {
    let (mut writer, header) = session_log::Writer::new(session);
    let broken = |what: String| ControlError::new(ErrorCode::Internal, what);
    let mut stream =
        client.stream(Op::SessionEvents { session, after: 0, follow: false }).await.map_err(told)?;
    if !print::raw_line(&header) {
        return Ok(true);
    }
    while let Some(item) = stream.item().await.map_err(told)? {
        let line: EventLine =
            serde_json::from_value(item).map_err(|e| told(ClientError::Malformed(e.to_string())))?;
        if !print::raw_line(&writer.event(line).map_err(broken)?) {
            return Ok(true);
        }
    }
    print::raw_line(&writer.end());
    Ok(true)
}

pub(crate) fn told(error: ClientError) -> ControlError {
    error.to_control_error()
}

/// A connection and how to show what it says.
struct Asked<'a> {
    client: &'a Client,
    timeout: std::time::Duration,
    printer: &'a Printer,
}

impl Asked<'_> {
    async fn show<T: Serialize + serde::de::DeserializeOwned>(
        &self,
        op: Op,
        human: impl Fn(&T) -> String,
    ) -> Outcome {
        let view: T = self.client.call(op, self.timeout).await.map_err(told)?;
        self.printer.show(&view, || human(&view));
        Ok(true)
    }

    async fn stream<T: Serialize + serde::de::DeserializeOwned>(
        &self,
        op: Op,
        human: impl Fn(&T) -> String,
    ) -> Outcome {
        let mut stream = self.client.stream(op).await.map_err(told)?;
        while let Some(item) = stream.item().await.map_err(told)? {
            let line: T =
                serde_json::from_value(item).map_err(|e| told(ClientError::Malformed(e.to_string())))?;
            let shown = self.printer.line(&line, || human(&line));
            if !shown {
                // Whoever read this has enough, as in `| head`.
                break;
            }
        }
        Ok(true)
    }
}
