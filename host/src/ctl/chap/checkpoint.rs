//! `choirctl workspace-log checkpoint`: the signed checkpoint of a workspace's transparency log, saved for a later day.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use choir_chap_client::Client;
use serde_json::{Value, json};

use super::super::{Outcome, Printer, print};
use super::told;
use crate::control::{ControlError, ErrorCode};

pub(super) async fn run(
    client: &Client,
    workspace: &str,
    participant: Option<&str>,
    output: &Path,
    printer: &Printer,
) -> Outcome {
    let mut params = json!({ "workspace": workspace, "range": { "from_seq": 0, "to_seq": 0 } });
    if let Some(participant) = participant {
        params["from"] = json!(participant);
    }
    let answer = client.call("audit.submit_to_scitt", params).await.map_err(|error| told(&error))?;
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    let (Some(checkpoint), Some(key)) = (text("checkpoint"), text("log_key")) else {
        let what = "this Coordinator keeps no transparency log of the workspace";
        return Err(ControlError::new(ErrorCode::Refused, what)
            .next("workspace.set_profiles with audit-scitt/1.0 among the profiles"));
    };
    if output.as_os_str() == "-" {
        print::raw_line(checkpoint.trim_end_matches('\n'));
        return Ok(true);
    }
    let failed = |error: std::io::Error| {
        ControlError::new(ErrorCode::Runtime, format!("{}: {error}", output.display()))
    };
    // An earlier checkpoint is what a later log is compared with: it is not overwritten.
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(output).map_err(failed)?;
    file.write_all(checkpoint.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    let done = json!({ "workspace": workspace, "file": output, "log_key": key });
    printer.show(&done, || {
        format!("checkpoint of {workspace} written to {}\nlog key {key}\n", output.display())
    });
    Ok(true)
}
