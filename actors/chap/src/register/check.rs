//! Receipts judged: by the Coordinator that gave them (`audit.verify_receipt`), and by anyone who has its public key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_transparency::{
    LogKey, Registered, Statement, attach_receipts, leaf_hash, verify_receipt, verify_transparent,
};
use serde_json::{Map, Value, json};

use super::{Log, names_a_workspace, workspace_key};
use crate::call::base64_standard;
use crate::uri::COORDINATOR;
use crate::verify::{Leaf, ReceiptCheck};

/// Whether this Coordinator's log gave the receipt: `{statement, receipt}`, each COSE in base64.
pub(crate) fn verify(log: &Log, receipt: &Map<String, Value>) -> Result<Value, String> {
    let bytes = |name: &str| {
        let text = receipt.get(name).and_then(Value::as_str).ok_or_else(|| format!("it has no {name}"))?;
        base64_standard(text).ok_or_else(|| format!("its {name} is not base64"))
    };
    let (statement, receipt) = (bytes("statement")?, bytes("receipt")?);
    let parsed = Statement::parse(&statement).map_err(|error| error.to_string())?;
    let key = key_for(&log.public(), &parsed)?;
    parsed.verify(&key.key).map_err(|error| error.to_string())?;
    let registered = verify_receipt(&statement, &receipt, &key).map_err(|error| error.to_string())?;
    let seq = place(&parsed, &registered)?;
    Ok(json!({
        "verified": true,
        "workspace": parsed.claims().subject,
        "seq": seq,
        "log": key.origin.as_str(),
        "tree_size": registered.head.size,
        "registered_at": registered.at,
    }))
}

/// The key of the log that a statement's workspace has.
fn key_for(coordinator: &LogKey, statement: &Statement) -> Result<LogKey, String> {
    let subject = &statement.claims().subject;
    let key = if names_a_workspace(subject) { workspace_key(coordinator, subject) } else { None };
    key.ok_or_else(|| "the statement is about no workspace".to_owned())
}

/// The entry that a verified statement is about.
fn place(statement: &Statement, registered: &Registered) -> Result<u64, String> {
    let claims = statement.claims();
    match &claims.position {
        Some(position) if claims.issuer == COORDINATOR && position.seq >= registered.index => {
            Ok(position.seq)
        }
        _ => Err("the statement is not a Coordinator's about an entry".to_owned()),
    }
}

/// Judges the receipts of an exported log, for [`crate::verify::Verifier`]: each is a transparent statement (RFC 9943)
/// in base64. `key` is what the Coordinator publishes as its log's key. All receipts must be of one workspace's log, in
/// which every entry has the place its number says.
#[must_use]
pub fn receipt_check(key: LogKey) -> ReceiptCheck<'static> {
    let mut one_log: Option<(String, u64)> = None;
    Box::new(move |seq, record, receipt| {
        let bytes = base64_standard(receipt).ok_or_else(|| "it is not base64".to_owned())?;
        let statement = Statement::parse(&bytes).map_err(|error| error.to_string())?;
        let log = key_for(&key, &statement)?;
        let (statement, registered) =
            verify_transparent(&bytes, &log.key, &log).map_err(|error| error.to_string())?;
        statement.speaks_of_digest(record).map_err(|error| error.to_string())?;
        if place(&statement, &registered)? != seq {
            return Err("it is another entry's".to_owned());
        }
        let of = (statement.claims().subject.clone(), seq - registered.index);
        match &one_log {
            Some(first) if *first != of => Err("it is of another log than the receipts before it".to_owned()),
            _ => {
                one_log = Some(of);
                Ok(Some(Leaf { index: registered.index, hash: leaf_hash(statement.registered_bytes()) }))
            }
        }
    })
}

/// The receipt of `audit.submit_to_scitt` as an exported log carries it, for [`receipt_check`]: the statement with the
/// receipt attached, in base64. `None` if it is no such receipt.
#[must_use]
pub fn portable_receipt(receipt: &Value) -> Option<String> {
    let bytes = |name: &str| base64_standard(receipt.get(name)?.as_str()?);
    let transparent = attach_receipts(&bytes("statement")?, &[bytes("receipt")?]).ok()?;
    Some(STANDARD.encode(transparent))
}
