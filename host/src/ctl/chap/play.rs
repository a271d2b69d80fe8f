//! `choirctl coordinator play`.

use std::path::{Path, PathBuf};

use choir_chap_client::{Client, Scenario, play};
use choir_messages::id::MessageId;
use serde::Serialize;

use super::super::{Outcome, Printer};
use crate::control::{ControlError, ErrorCode};

/// What became of one scenario.
#[derive(Serialize)]
struct Line {
    file: String,
    title: String,
    source: String,
    workspace: String,
    steps: usize,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

pub(super) async fn run(client: &Client, files: &[PathBuf], printer: &Printer) -> Outcome {
    let mut all_good = true;
    for file in files {
        let scenario = read(file)?;
        // A fresh workspace each time: a log is never begun twice.
        let workspace = format!("wsp_{}", MessageId::fresh());
        let result = play(client, &scenario, &workspace, |number, step| {
            let what = step.say.clone().or_else(|| step.method.clone()).unwrap_or_default();
            printer.say(&format!("  {number:>2}. {what}"));
        })
        .await;
        let line = Line {
            file: file.display().to_string(),
            title: scenario.title.clone(),
            source: scenario.source.clone(),
            workspace,
            steps: scenario.steps.len(),
            ok: result.is_ok(),
            why: result.err().map(|error| error.to_string()),
        };
        all_good &= line.ok;
        printer.line(&line, || match &line.why {
            None => format!("ok    {} ({} steps, {})", line.title, line.steps, line.source),
            Some(why) => format!("FAIL  {} ({}): {why}", line.title, line.file),
        });
    }
    Ok(all_good)
}

fn read(file: &Path) -> Result<Scenario, ControlError> {
    let failed = |code, why: String| ControlError::new(code, format!("{}: {why}", file.display()));
    let text =
        std::fs::read_to_string(file).map_err(|error| failed(ErrorCode::Runtime, error.to_string()))?;
    Scenario::parse(&text).map_err(|error| failed(ErrorCode::Usage, error.to_string()))
}
