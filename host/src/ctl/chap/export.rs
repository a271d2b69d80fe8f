//! `choirctl workspace-log export`: a whole log, page by page, from any Coordinator that answers `audit.read`.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use choir_chap::verify::{self, Header, Line, TaskFacts, Trailer};
use choir_chap_client::{CallError, Client, LogReader};
use choir_messages::time::Timestamp;
use serde_json::{Value, json};

use super::super::{Outcome, Printer};
use super::{receipts, told};
use crate::control::{ControlError, ErrorCode};

/// Entries between two lines about how far it is.
const TELL_EVERY: u64 = 10_000;

/// Where the lines go: standard output, or a file that takes its place when it is complete.
enum Sink {
    Out(BufWriter<std::io::Stdout>),
    File { to: PathBuf, beside: PathBuf, file: BufWriter<File> },
}

impl Sink {
    fn open(path: &Path) -> Result<Self, ControlError> {
        if path.as_os_str() == "-" {
            return Ok(Self::Out(BufWriter::new(std::io::stdout())));
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.part", std::process::id()));
        let beside = PathBuf::from(beside);
        // What people wrote in a workspace is for whoever exports it, not for everybody on the machine.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside);
        let file = file.map_err(|error| failed(&beside, &error))?;
        Ok(Self::File { to: path.to_owned(), beside, file: BufWriter::new(file) })
    }

    fn line(&mut self, line: &str) -> Result<(), ControlError> {
        let (path, writer): (&Path, &mut dyn Write) = match self {
            Self::Out(out) => (Path::new("-"), out),
            Self::File { beside, file, .. } => (beside, file),
        };
        writeln!(writer, "{line}").map_err(|error| failed(path, &error))
    }

    fn finish(self) -> Result<(), ControlError> {
        match self {
            Self::Out(mut out) => out.flush().map_err(|error| failed(Path::new("-"), &error)),
            Self::File { to, beside, file } => {
                let file = file.into_inner().map_err(|error| failed(&beside, error.error()))?;
                file.sync_all().map_err(|error| failed(&beside, &error))?;
                std::fs::rename(&beside, &to).map_err(|error| failed(&to, &error))
            }
        }
    }

    fn give_up(self) {
        if let Self::File { beside, .. } = self {
            // Half a log helps nobody; if it cannot be removed, its name says what it is.
            let _ = std::fs::remove_file(beside);
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> ControlError {
    ControlError::new(ErrorCode::Runtime, format!("{}: {error}", path.display()))
}

/// What the file is to say beyond the entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// The Coordinator took signed calls only.
    pub(super) signatures_required: bool,
    /// Each entry's receipt.
    pub(super) receipts: bool,
}

pub(super) async fn run(
    client: Client,
    workspace: &str,
    participant: Option<String>,
    output: &Path,
    wanted: Wanted,
    printer: &Printer,
) -> Outcome {
    let mut sink = Sink::open(output)?;
    match write(client, workspace, participant, wanted, &mut sink, printer).await {
        Ok(trailer) => {
            sink.finish()?;
            if output.as_os_str() != "-" {
                let done = json!({
                    "workspace": workspace, "file": output, "entries": trailer.entries, "head": trailer.head,
                });
                printer.show(&done, || {
                    format!("{} entries of {workspace} written to {}\n", trailer.entries, output.display())
                });
            }
            Ok(true)
        }
        Err(error) => {
            sink.give_up();
            Err(error)
        }
    }
}

async fn write(
    client: Client,
    workspace: &str,
    participant: Option<String>,
    wanted: Wanted,
    sink: &mut Sink,
    printer: &Printer,
) -> Result<Trailer, ControlError> {
    let mut reader = LogReader::new(client.clone(), workspace, participant.clone());
    // First the descriptor: an unknown workspace is an error, not an empty log.
    reader.describe().await.map_err(|error| told(&error))?;
    let header = Header {
        format: verify::FORMAT.to_owned(),
        workspace: workspace.to_owned(),
        exported_at: Timestamp::now().to_string(),
        first_seq: 0,
        signatures_required: wanted.signatures_required,
    };
    sink.line(&verify::header_line(&header))?;
    let mut trailer = Trailer { entries: 0, head: None };
    let mut tasks = BTreeSet::new();
    let mut chain = Chain::default();
    let mut log_key = None;
    while let Some(page) = reader.page().await.map_err(|error| told(&error))? {
        let (mut given, key) = if wanted.receipts {
            receipts::of_page(&client, workspace, participant.as_deref(), &page.entries).await?
        } else {
            Default::default()
        };
        if let (None, Some(key)) = (&log_key, key) {
            printer.say(&format!("log key {key}"));
            log_key = Some(key);
        }
        for mut entry in page.entries {
            collect(&entry, &mut tasks);
            let seq = entry.get("seq").and_then(Value::as_u64);
            if let Some(receipt) = seq.and_then(|seq| given.remove(&seq)) {
                entry["receipt"] = json!(receipt);
            }
            let line = entry.to_string();
            chain.link(&line)?;
            sink.line(&line)?;
            trailer.entries += 1;
            if trailer.entries.is_multiple_of(TELL_EVERY) {
                printer.say(&format!("{} entries", trailer.entries));
            }
        }
    }
    for task in tasks {
        if let Some(facts) = facts(&client, workspace, participant.as_deref(), &task).await? {
            sink.line(&verify::task_line(&facts))?;
        }
    }
    trailer.head = chain.head;
    sink.line(&verify::trailer_line(&trailer))?;
    Ok(trailer)
}

/// The head after the last entry, computed here: what the Coordinator says of its head may already be about later ones.
#[derive(Default)]
struct Chain {
    head: Option<String>,
    lines: u64,
}

impl Chain {
    fn link(&mut self, line: &str) -> Result<(), ControlError> {
        self.lines += 1;
        let entry = match verify::read_line(line, self.lines + 1) {
            Ok(Line::Entry(entry)) => entry,
            Ok(_) => return Err(strange("something else than an entry")),
            Err(error) => return Err(strange(&error.to_string())),
        };
        // What a redacted entry comes to is known to the next one alone.
        if entry.redacted_by.is_some() {
            self.head = None;
        } else if let (Some(previous), Some(record)) = (&entry.prev_hash, entry.record()) {
            self.head = Some(choir_chap::evidence::link(&record, previous));
        }
        Ok(())
    }
}

fn strange(what: &str) -> ControlError {
    ControlError::new(ErrorCode::Runtime, format!("the Coordinator's log has {what}"))
}

/// Tasks that an entry names.
pub(super) fn collect(entry: &Value, tasks: &mut BTreeSet<String>) {
    let call = entry.get("envelope").or_else(|| entry.get("request"));
    let Some(params) = call.and_then(|call| call.get("params")) else { return };
    for name in ["task_id", "original_task_id"] {
        if let Some(id) = params.get(name).and_then(Value::as_str) {
            tasks.insert(id.to_owned());
        }
    }
}

/// What the Coordinator says of a task; none where it does not describe tasks.
pub(super) async fn facts(
    client: &Client,
    workspace: &str,
    participant: Option<&str>,
    task: &str,
) -> Result<Option<TaskFacts>, ControlError> {
    let mut params = json!({ "workspace": workspace, "task_id": task });
    if let Some(participant) = participant {
        params["from"] = json!(participant);
    }
    match client.call("task.describe", params).await {
        Ok(mut described) => Ok(serde_json::from_value(described["task"].take()).ok()),
        Err(CallError::Refused(_)) => Ok(None),
        Err(error) => Err(told(&error)),
    }
}
