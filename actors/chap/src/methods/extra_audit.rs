//! The log beyond reading it: a range's check, checkpoints, redactions, exports (specification §10.4, §10.6, §12.11), and
//! the transparency service of `audit-scitt/1.0` (digest §3.6).

use serde_json::json;

use super::workspace::require_admin;
use crate::limits::REDACTIONS;
use crate::method::{Floor, Handled, Method, Reply};
use crate::params::{Param, Params, Shape};
use crate::ranges::{About, Export, Range, VerifyRange};
use crate::read::Plan;
use crate::redaction::Order;
use crate::refusal::Stop;
use crate::statements::Statements;
use crate::txn::Txn;
use crate::{Refusal, codes, register};

const RANGE: Param =
    Param::new("range", Shape::Object, "{from_seq, to_seq}: from the first on, up to before the second");

pub(crate) const METHODS: &[Method] = &[
    Method::new(
        "audit.verify",
        "core/1.0",
        "Replay the links of a range of the log: the chain, nothing else",
        verify,
    )
    .floor(Floor::Reader)
    .pause_exempt()
    .read()
    .params(&[
        RANGE,
        Param::new("from_seq", Shape::Count, "The first entry, instead of range; 0 if left out"),
        Param::new("to_seq", Shape::Count, "The entry to end before; the log's end if left out"),
    ]),
    Method::new("audit.checkpoint", "core/1.0", "Put the log's length and head on the log", checkpoint)
        .floor(Floor::Member)
        .required_later(&["from"])
        .params(&[Param::new("note", Shape::Text, "Words")]),
    Method::new(
        "audit.redact",
        "core/1.0",
        "Erase an entry's content from the log, for good; its hash and its place stay",
        redact,
    )
    .floor(Floor::Member)
    .privileged()
    .required_later(&["from", "seq", "reason"])
    .params(&[
        Param::new("seq", Shape::Count, "The entry"),
        Param::new("reason", Shape::Text, "Why; it stays readable"),
    ]),
    Method::new(
        "audit.export",
        "core/1.0",
        "Export the log as a file that is verified offline, page by page",
        export,
    )
    .floor(Floor::Member)
    .privileged()
    .pause_exempt()
    .read()
    .required_later(&["from"])
    .params(&[RANGE]),
    Method::new(
        "audit.submit_to_scitt",
        "audit-scitt/1.0",
        "Register entries with the transparency service, for a receipt each",
        submit,
    )
    .read()
    .params(&[
        RANGE,
        Param::new(
            "issuer",
            Shape::Text,
            "Who is to vouch for them; the service decides whose name it signs with",
        ),
        Param::new(
            "from_size",
            Shape::Count,
            "A tree size of an earlier checkpoint: prove that the log only grew since",
        ),
    ]),
    Method::new(
        "audit.verify_receipt",
        "audit-scitt/1.0",
        "Ask the transparency service whether a receipt holds",
        receipt,
    )
    .ungated()
    .read()
    .anywhere()
    .params(&[Param::new("receipt", Shape::Object, "The receipt, as it was given")]),
];

const ENDS: [Param; 2] = [Param::new("from_seq", Shape::Count, ""), Param::new("to_seq", Shape::Count, "")];

/// The range asked for, within the log.
fn range(txn: &Txn<'_>, params: &Params<'_>) -> Result<Range, Stop> {
    let end = txn.here()?.entries;
    let range = params.object("range").unwrap_or(Params::of(None));
    range.check(&ENDS).map_err(|r| Refusal::params(format!("range.{}", r.message)))?;
    let named = |name: &str| range.count(name).or_else(|| params.count(name));
    let (from, to) = (named("from_seq").unwrap_or(0), named("to_seq").unwrap_or(end));
    if from > to {
        return Err(Refusal::params("from_seq must not be after to_seq").into());
    }
    Ok(Range { from: from.min(end), to: to.min(end) })
}

fn verify(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let meta = txn.here()?;
    if meta.head.is_none() && !txn.settings().enable_chain {
        return Err(Refusal::params("Chain not enabled for this workspace").into());
    }
    let chained_from = meta.chained_from.unwrap_or(meta.entries);
    let range = range(txn, params)?;
    Ok(Reply::Read(Plan::new(VerifyRange::new(range, chained_from, meta.entries, meta.head.clone()))))
}

fn checkpoint(txn: &mut Txn<'_>, _params: &Params<'_>) -> Handled {
    let meta = txn.here()?;
    // The log before this call's own entry, whose `prev_hash` says the same for good.
    let mut checkpoint = json!({
        "workspace": txn.workspace(), "entries": meta.entries, "head": meta.head, "at": txn.now().to_string(),
    });
    if let Some(log) = &txn.settings().log
        && let Some(note) = register::checkpoint(meta, log, txn.workspace())
    {
        checkpoint["note"] = json!(note);
        checkpoint["log_key"] = json!(log.public().to_string());
    }
    Ok(json!({"checkpoint": checkpoint}).into())
}

fn redact(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    require_admin(txn, "audit.redact")?;
    let reason = params.filled("reason").ok_or_else(|| Refusal::params("reason must not be empty"))?;
    let seq = params.count("seq").unwrap_or(u64::MAX);
    let by_seq = txn.next_seq();
    if seq >= by_seq {
        return Err(Refusal::params(format!("There is no entry {seq}: the log has {by_seq}")).into());
    }
    let redacted = &mut txn.here_mut()?.redacted;
    if let Some(before) = redacted.of(seq) {
        return Err(
            Refusal::params(format!("Entry {seq} is redacted already, by entry {}", before.by_seq)).into()
        );
    }
    // That something was redacted, by whom and why stays known.
    if redacted.is_by(seq) {
        return Err(Refusal::params(format!("Entry {seq} is itself a redaction, and stays readable")).into());
    }
    if redacted.is_full() {
        return Err(
            Refusal::params(format!("At most {REDACTIONS} entries of a workspace can be redacted")).into()
        );
    }
    redacted.add(seq, by_seq, reason);
    txn.put(&Order::new(seq, by_seq));
    let kept = "the record's SHA-256; the entry's place, time, method, sender, outcome and tasks; what the call did to the \
                workspace; notices given out";
    Ok(json!({
        "redacted": true, "seq": seq, "by_seq": by_seq, "erased": "the entry's stored record", "kept": kept,
    })
    .into())
}

fn export(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let range = range(txn, params)?;
    let meta = txn.here()?;
    let about = About {
        workspace: txn.workspace(),
        now: txn.now(),
        signatures_required: txn.settings().require_signatures,
        head: meta.head.clone().filter(|_| range.to == meta.entries),
    };
    Ok(Reply::Read(Plan::new(Export::new(range, meta.redacted.between(range.from, range.to), about))))
}

fn submit(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let range = range(txn, params)?;
    if let Some(log) = &txn.settings().log {
        return register::submit(txn, log, range, params.count("from_size"));
    }
    let redactions = txn.here()?.redacted.between(range.from, range.to);
    let issuer = params.filled("issuer");
    Ok(Reply::Read(Plan::new(Statements::new(txn.workspace(), issuer, range, redactions))))
}

fn receipt(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let receipt = params.map("receipt").ok_or_else(|| Refusal::params("receipt must be an object"))?;
    let invalid = |why: String| Refusal::new(codes::SCITT_RECEIPT_INVALID, why);
    let Some(log) = &txn.settings().log else {
        return Err(invalid(
            "This Coordinator keeps no transparency log; the receipt was not verified".to_owned(),
        )
        .into());
    };
    let verified = register::verify(log, receipt);
    Ok(verified.map_err(|why| invalid(format!("Receipt did not verify: {why}")))?.into())
}
