//! `audit.read`, `.verify_chain` (digest §3.3, §3.6).

use choir_messages::chap::EntryQuery;

use crate::Refusal;
use crate::limits::PAGE_ENTRIES;
use crate::method::{Floor, Handled, Method, Reply};
use crate::params::{Param, Params, Shape};
use crate::read::{Plan, ReadEntries, VerifyChain};
use crate::txn::Txn;

pub(crate) const METHODS: &[Method] = &[
    Method::new(
        "audit.read",
        "core/1.0",
        "Read entries of the log, at most 1,000 a page; go on at next_seq",
        read,
    )
    .floor(Floor::Reader)
    .ungated()
    .pause_exempt()
    .read()
    .params(&[
        Param::new("range", Shape::Object, "{from_seq, to_seq}: from the first on, up to before the second"),
        Param::new("filter", Shape::Any, "{method, from, task_id, outcome: accepted or refused}"),
    ]),
    Method::new(
        "audit.verify_chain",
        "audit-scitt/1.0",
        "Replay the log's chain and compare its head",
        verify_chain,
    )
    .ungated()
    .read()
    .params(&[
        Param::new("from_seq", Shape::Any, "Not implemented: leave it out"),
        Param::new("to_seq", Shape::Any, "Not implemented: leave it out"),
    ]),
];

const RANGE: [Param; 2] = [Param::new("from_seq", Shape::Count, ""), Param::new("to_seq", Shape::Count, "")];
const FILTER: [Param; 4] = [
    Param::new("method", Shape::Text, ""),
    Param::new("from", Shape::Text, ""),
    Param::new("task_id", Shape::Text, ""),
    Param::new("outcome", Shape::Text, ""),
];

fn read(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let meta = txn.here()?;
    let end = meta.entries;
    let range = params.object("range").unwrap_or(Params::of(None));
    range.check(&RANGE).map_err(|r| Refusal::params(format!("range.{}", r.message)))?;
    // A filter that is no object filters nothing, as clients may rely on.
    let filter = params.object("filter").unwrap_or(Params::of(None));
    filter.check(&FILTER).map_err(|r| Refusal::params(format!("filter.{}", r.message)))?;
    let refused = match filter.text("outcome") {
        None => None,
        Some("accepted") => Some(false),
        Some("refused") => Some(true),
        Some(_) => return Err(Refusal::params("filter.outcome must be 'accepted' or 'refused'").into()),
    };
    let to_seq = range.count("to_seq").unwrap_or(end).min(end);
    let text = |name: &str| filter.filled(name).map(str::to_owned);
    let from_seq = range.count("from_seq").unwrap_or(0);
    let query = EntryQuery {
        from_seq,
        to_seq: Some(to_seq),
        method: text("method"),
        from: text("from"),
        task: text("task_id"),
        refused,
        limit: PAGE_ENTRIES,
    };
    Ok(Reply::Read(Plan::new(ReadEntries::new(query, to_seq, meta.redacted.between(from_seq, to_seq)))))
}

fn verify_chain(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let meta = txn.here()?;
    if meta.head.is_none() && !txn.settings().enable_chain {
        return Err(Refusal::params("Chain not enabled for this workspace").into());
    }
    if params.get("from_seq").is_some() || params.get("to_seq").is_some() {
        let why = "Range verification is not implemented; omit from_seq and to_seq to verify the whole log.";
        return Err(Refusal::params(why).into());
    }
    let from = meta.chained_from.unwrap_or(meta.entries);
    Ok(Reply::Read(Plan::new(VerifyChain::new(from, meta.entries, meta.head.clone()))))
}
