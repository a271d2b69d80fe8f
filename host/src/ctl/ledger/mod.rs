//! `choirctl ledger`: runs of the signed ledger, and what is on disk of them.

mod args;
mod home;
mod run;
mod story;
mod verify;

use std::path::Path;
use std::time::Duration;

pub use args::{HomeAt, KeyCommand, LedgerCommand};

use super::{Outcome, Printer};
use crate::state_dir::StateDir;

/// Verifies a ledger home or the folder of a trace, as `choirctl verify` does with a folder.
pub(super) fn verify_folder(place: &Path, log_key: Option<&str>, printer: &Printer) -> Outcome {
    let asked = verify::Asked {
        place: Some(place.to_owned()),
        trace: None,
        profile: None,
        compat: false,
        log_key: log_key.map(str::to_owned),
    };
    verify::run(&asked, || place.to_owned(), printer)
}

pub(super) async fn act(
    command: LedgerCommand,
    state: &StateDir,
    within: Duration,
    printer: &Printer,
) -> Outcome {
    match command {
        LedgerCommand::Run { task, agent } => run::run(&task, agent, state, within, printer).await,
        LedgerCommand::Follow { trace } => run::follow(&trace.to_string(), state, within, printer).await,
        LedgerCommand::Abort { trace, reason } => {
            run::abort(&trace.to_string(), reason, state, within, printer).await
        }
        LedgerCommand::Verify { place, trace, profile, compat, log_key } => {
            let asked = verify::Asked { place, trace, profile, compat, log_key };
            verify::run(&asked, || state.ledger(), printer)
        }
        LedgerCommand::List { home } => home::list(&home, state, printer),
        LedgerCommand::Show { trace, home } => home::show(trace, &home, state, printer),
        LedgerCommand::Export { trace, folder, home } => home::export(trace, &folder, &home, state, printer),
        LedgerCommand::Import { folder, trace, profile, accept_failing, home } => {
            home::import(&folder, home::options(trace, profile, accept_failing), &home, state, printer)
        }
        LedgerCommand::Key(command) => home::key(command, state, printer),
    }
}
