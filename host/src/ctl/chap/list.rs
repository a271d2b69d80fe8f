//! `choirctl workspace-log list`: which workspaces a Coordinator has.

use choir_chap_client::{CallError, Client};
use choir_messages::mail::WorkspaceLine;

use super::super::print::plain;
use super::super::{Outcome, Printer};
use super::told;

/// Most workspaces listed: a Coordinator that never ends its list must not keep this for ever.
const MOST: usize = 1_000_000;

pub(super) async fn run(client: &Client, printer: &Printer) -> Outcome {
    let mut all: Vec<WorkspaceLine> = Vec::new();
    loop {
        let after = all.last().map(|line| line.workspace.as_str());
        let page = client.workspaces(after).await.map_err(|error| told(&error))?;
        if page.is_empty() || all.len() >= MOST {
            break;
        }
        if after == page.last().map(|line| line.workspace.as_str()) {
            return Err(told(&CallError::Malformed("the list of workspaces does not go on".into())));
        }
        all.extend(page);
    }
    printer.show(&all, || render(&all));
    Ok(true)
}

fn render(all: &[WorkspaceLine]) -> String {
    if all.is_empty() {
        return "no workspaces\n".to_owned();
    }
    let mut text = format!("{:>9}  workspace\n", "entries");
    for line in all {
        text.push_str(&format!("{:>9}  {}\n", line.entries, plain(&line.workspace).replace('\n', "?")));
    }
    text
}
