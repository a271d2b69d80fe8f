//! Receipts of the Coordinator's transparency log, fetched for an export.

use std::collections::BTreeMap;

use choir_chap::portable_receipt;
use choir_chap_client::Client;
use serde_json::{Value, json};

use super::told;
use crate::control::{ControlError, ErrorCode};

/// The receipts of a page of entries, each as the file carries it; entries that were never registered have none. Also the
/// key of the Coordinator's log, by its own word.
pub(super) async fn of_page(
    client: &Client,
    workspace: &str,
    participant: Option<&str>,
    entries: &[Value],
) -> Result<(BTreeMap<u64, String>, Option<String>), ControlError> {
    let seq = |entry: Option<&Value>| entry.and_then(|entry| entry.get("seq")).and_then(Value::as_u64);
    let (Some(mut next), Some(last)) = (seq(entries.first()), seq(entries.last())) else {
        return Ok((BTreeMap::new(), None));
    };
    let end = last.saturating_add(1);
    let (mut found, mut key) = (BTreeMap::new(), None);
    while next < end {
        let mut params = json!({ "workspace": workspace, "range": { "from_seq": next, "to_seq": end } });
        if let Some(participant) = participant {
            params["from"] = json!(participant);
        }
        let answer = client.call("audit.submit_to_scitt", params).await.map_err(|error| told(&error))?;
        let Some(receipts) = answer.get("receipts").and_then(Value::as_array) else {
            let error =
                ControlError::new(ErrorCode::Refused, "this Coordinator gives no receipts of its own");
            return Err(error.next("choirctl workspace-log export without --receipts"));
        };
        for given in receipts {
            let receipt = given.get("receipt").and_then(portable_receipt);
            let (Some(seq), Some(receipt)) = (seq(Some(given)), receipt) else {
                return Err(ControlError::new(
                    ErrorCode::Runtime,
                    "the Coordinator gave something that is no receipt",
                ));
            };
            found.insert(seq, receipt);
        }
        key = answer.get("log_key").and_then(Value::as_str).map(str::to_owned);
        // A server that does not go on must not keep this for ever.
        next = answer.get("next_seq").and_then(Value::as_u64).filter(|seq| *seq > next).unwrap_or(end);
    }
    Ok((found, key))
}
