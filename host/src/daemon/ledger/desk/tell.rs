//! Telling followers what a run's trace says, page by page.

use std::sync::Arc;

use choir_ledger::id::TraceId;
use choir_ledger_roles::board::Entry;
use choir_ledger_roles::book::Ending;
use choir_ledger_roles::run::RunEnd;
use choir_messages::json::Json;
use choir_messages::mail::{LedgerEnd, LedgerEvent, LedgerPage, LedgerRefused};
use choir_messages::reply::ReplyTo;
use choir_messages::time::Timestamp;
use choir_supervisors::Failure;

use super::{Desk, blocking};
use crate::daemon::ledger::book;

/// Events of one page.
const PAGE: usize = 256;

impl Desk {
    /// Answers those who wait for more, if there is more.
    pub(super) fn serve(&mut self, trace: TraceId, end: Option<&LedgerEnd>) {
        let Some(run) = self.runs.get_mut(&trace) else { return };
        let board = Arc::clone(&run.handle.board.borrow());
        for (after, reply) in std::mem::take(&mut run.followers) {
            match page(&board.entries, after, end) {
                Some(page) => reply.send(Ok(page)),
                None if reply.is_abandoned() => {}
                None => run.followers.push((after, reply)),
            }
        }
    }

    pub(super) async fn follow(
        &mut self,
        trace: &str,
        after: u64,
        reply: ReplyTo<Result<LedgerPage, LedgerRefused>>,
    ) -> Result<(), Failure> {
        let Ok(id) = trace.parse::<TraceId>() else {
            reply.send(Err(LedgerRefused::NoRun(trace.chars().take(40).collect())));
            return Ok(());
        };
        if let Some(run) = self.runs.get_mut(&id) {
            run.followers.push((after, reply));
            self.serve(id, None);
            return Ok(());
        }
        // One that has ended is in the ledger.
        if !self.host.state.ledger().exists() {
            reply.send(Err(LedgerRefused::NoRun(id.to_string())));
            return Ok(());
        }
        let home = self.home().await.map_err(Failure::new)?;
        let remembered = self.ended.iter().find(|(ended, _)| *ended == id).map(|(_, end)| end.clone());
        let found = blocking(move || {
            let end = remembered.or_else(|| book::ended(&home, id).as_ref().map(view))?;
            let events = home.events(id).ok()?;
            Some((end, events))
        });
        let page = found.await?.and_then(|(end, events)| {
            let entries: Vec<Arc<Entry>> =
                events.iter().map(|event| Arc::new(choir_ledger_roles::book::entry(event))).collect();
            page(&entries, after, Some(&end))
        });
        reply.send(page.ok_or_else(|| LedgerRefused::NoRun(id.to_string())));
        Ok(())
    }
}

pub(super) fn view(end: &RunEnd) -> LedgerEnd {
    let status = match end.ending {
        Ending::Completed => "completed",
        Ending::Failed => "failed",
        Ending::Aborted => "aborted",
    };
    LedgerEnd {
        status: status.to_owned(),
        reason: end.reason.clone(),
        refused: end.refused,
        verdict: end.verdict.clone(),
    }
}

/// What is told after so many events; nothing if there is nothing more yet.
fn page(entries: &[Arc<Entry>], after: u64, end: Option<&LedgerEnd>) -> Option<LedgerPage> {
    let from = usize::try_from(after).unwrap_or(usize::MAX).min(entries.len());
    let rest = entries.get(from..).unwrap_or_default();
    if rest.is_empty() && end.is_none() {
        return None;
    }
    let last = rest.len() <= PAGE;
    let events = rest
        .iter()
        .take(PAGE)
        .enumerate()
        .map(|(at, entry)| LedgerEvent {
            place: (from + at + 1) as u64,
            event_id: entry.event_id.clone(),
            at: Timestamp::from_millis(entry.at),
            role: entry.role.as_str().to_owned(),
            kind: entry.kind.as_str().to_owned(),
            payload: Json(entry.payload.clone()),
        })
        .collect();
    Some(LedgerPage { events, end: end.filter(|_| last).cloned() })
}
