//! `choirctl verify`: the one offline verifier, of workspaces' logs and of sessions' logs. Nothing but the file is read.

use std::io::Read as _;
use std::path::Path;

use choir_chap::receipt_check;
use choir_chap::verify::{self, Prepared, Report, Verdict};
use choir_transparency::LogKey;

use super::super::session_log::{self, SessionVerdict};
use super::super::{Outcome, Printer};
use super::lines::Lines;
use crate::control::{ControlError, ErrorCode};

/// Longest checkpoint read: a few lines, and room for witnesses' signatures.
const CHECKPOINT_BYTES: u64 = 64 * 1024;

/// Verifies a file; `-` for standard input.
pub(in crate::ctl) fn run(
    file: &Path,
    log_key: Option<&str>,
    checkpoint: Option<&Path>,
    printer: &Printer,
) -> Outcome {
    let log_key = log_key
        .map(str::parse::<LogKey>)
        .transpose()
        .map_err(|error| ControlError::new(ErrorCode::Usage, format!("--log-key: {error}")))?;
    let saved = checkpoint.map(read_checkpoint).transpose()?;
    let mut lines = Lines::open(file, verify::LINE_BYTES.max(session_log::LINE_BYTES))?;
    let first = lines.next()?.unwrap_or_default();
    if let Some(session) = session_log::Verifier::open(&first) {
        if saved.is_some() {
            let what = "--checkpoint is for workspaces' logs; this is a session's";
            return Err(ControlError::new(ErrorCode::Usage, what));
        }
        let verdict = session_verdict(session, &mut lines)?;
        printer.show(&verdict, || render_session(&verdict));
        return Ok(verdict.verified);
    }
    let mut verifier = verify::Verifier::new(log_key.clone().map(receipt_check));
    if let Some(key) = log_key {
        verifier = verifier.with_checkpoints(key, saved);
    }
    feed(&mut verifier, first, lines, file)?;
    let report = verifier.finish();
    printer.show(&report, || render(&report));
    Ok(report.verdict != Verdict::Broken)
}

/// Lines prepared at a time, unless they are long.
const BATCH_LINES: usize = 256;

/// Bytes of text after which a batch is given on.
const BATCH_BYTES: usize = 256 * 1024;

/// Batches that may wait: the thread that reads is no further ahead than this.
const BATCHES_AHEAD: usize = 4;

/// Gives the verifier every line. Another thread reads and prepares them, so that two cores work: preparing a line takes
/// about as long as verifying it.
fn feed(
    verifier: &mut verify::Verifier<'_>,
    first: String,
    mut lines: Lines,
    file: &Path,
) -> Result<(), ControlError> {
    let (send, batches) = std::sync::mpsc::sync_channel(BATCHES_AHEAD);
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let (mut text, mut number) = (Some(first), 1u64);
            while text.is_some() {
                let (mut batch, mut bytes, mut end) = (Vec::new(), 0usize, None);
                while let Some(line) = text.take() {
                    bytes = bytes.saturating_add(line.len());
                    batch.push(Prepared::of(&line, number));
                    number += 1;
                    match lines.next() {
                        Ok(next) => text = next,
                        Err(error) => end = Some(error),
                    }
                    if batch.len() >= BATCH_LINES || bytes >= BATCH_BYTES {
                        break;
                    }
                }
                // Nobody listens any more once the verifier has given up.
                if send.send((batch, end)).is_err() {
                    return;
                }
            }
        });
        for (batch, end) in batches {
            for line in batch {
                verifier.prepared(line).map_err(|error| no_log(file, &error))?;
            }
            if let Some(error) = end {
                return Err(error);
            }
        }
        Ok(())
    })
}

fn read_checkpoint(path: &Path) -> Result<String, ControlError> {
    let failed = |why: String| {
        ControlError::new(ErrorCode::Runtime, format!("{}: {why}", path.display()))
            .next("choirctl workspace-log checkpoint <workspace> -o <file>")
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    file.take(CHECKPOINT_BYTES).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    Ok(text)
}

fn no_log(file: &Path, error: &dyn std::fmt::Display) -> ControlError {
    let what = format!("{}: {error}", file.display());
    ControlError::new(ErrorCode::Runtime, what)
        .next("choirctl workspace-log export <workspace>, or choirctl session export <session>")
}

fn session_verdict(
    mut verifier: session_log::Verifier,
    lines: &mut Lines,
) -> Result<SessionVerdict, ControlError> {
    let mut number = 1;
    while let Some(line) = lines.next()? {
        number += 1;
        if !verifier.line(number, &line) {
            break;
        }
    }
    Ok(verifier.end())
}

fn render_session(verdict: &SessionVerdict) -> String {
    let mut text = match &verdict.fault {
        None => format!("verified: {} events of session {}\n", verdict.events, verdict.session),
        Some(fault) => format!(
            "NOT VERIFIED: session {}: {fault}\n  {} events before that are good\n",
            verdict.session, verdict.events
        ),
    };
    text.push_str(&format!("head      {}\n", verdict.head));
    for what in &verdict.checked {
        text.push_str(&format!("checked   {what}\n"));
    }
    for what in &verdict.not_checked {
        text.push_str(&format!("not       {what}\n"));
    }
    text
}

fn render(report: &Report) -> String {
    let mut text = match report.verdict {
        Verdict::Verified => {
            format!("verified: {} entries of workspace {}\n", report.entries, report.workspace)
        }
        Verdict::Incomplete => format!(
            "incomplete: nothing is wrong with what could be checked of {} entries of workspace {}\n",
            report.entries, report.workspace
        ),
        Verdict::Broken => format!(
            "NOT VERIFIED: workspace {}: {} faults in {} entries\n",
            report.workspace, report.fault_count, report.entries
        ),
    };
    let chain = &report.chain;
    text.push_str(&format!(
        "chain       {} links checked, {} entries unchained\n",
        chain.checked, chain.unchecked
    ));
    if let Some(head) = &chain.head {
        text.push_str(&format!("head        {head}\n"));
    }
    let signatures = &report.signatures;
    text.push_str(&format!(
        "signatures  {} signed: {} good, {} bad\n",
        signatures.signed, signatures.good, signatures.bad
    ));
    for (why, count) in &signatures.unchecked {
        text.push_str(&format!("            {count} not checked: {why}\n"));
    }
    let receipts = &report.receipts;
    if receipts.present > 0 {
        text.push_str(&format!(
            "receipts    {} present: {} good, {} bad\n",
            receipts.present, receipts.good, receipts.bad
        ));
    }
    let checkpoints = &report.checkpoints;
    if checkpoints.present > 0 {
        text.push_str(&format!(
            "checkpoints {} on the log: {} good, {} bad\n",
            checkpoints.present, checkpoints.good, checkpoints.bad
        ));
    }
    if let Some(saved) = &checkpoints.saved {
        let said = |holds: Option<bool>| match holds {
            Some(true) => "the same",
            Some(false) => "ANOTHER",
            None => "not seen",
        };
        text.push_str(&format!(
            "saved       checkpoint of {} entries: head {}, root of the tree {}\n",
            saved.entries,
            said(saved.chain),
            said(saved.root)
        ));
    }
    text.push_str(&format!("refusals    {} refused calls are on the log\n", report.refused));
    if report.redacted > 0 {
        text.push_str(&format!("redacted    {}; their hashes were taken as given\n", report.redacted));
    }
    for fault in &report.faults {
        let place = fault.seq.map_or_else(String::new, |seq| format!("seq {seq}: "));
        text.push_str(&format!("fault       {place}{}\n", super::super::print::plain(&fault.what)));
    }
    for note in &report.notes {
        text.push_str(&format!("note        {note}\n"));
    }
    text
}
