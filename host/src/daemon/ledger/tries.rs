//! How often a run was taken up again without having come further: kept beside the ledger, because the ledger itself says
//! only what the roles did.

use std::path::PathBuf;

use choir_ledger::id::TraceId;
use choir_ledger_roles::limits::RESUMES;
use choir_ledger_store::Home;
use serde::{Deserialize, Serialize};

/// What is kept of one run.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Tries {
    /// Events when it was last taken up.
    events: u64,
    /// Times it was taken up at that number.
    tries: u32,
}

fn path(home: &Home, trace: TraceId) -> PathBuf {
    home.root().join("runs").join(format!("{trace}.json"))
}

/// Counts one more try; whether there is one.
pub(super) fn another(home: &Home, trace: TraceId, events: u64) -> bool {
    let path = path(home, trace);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut tries: Tries = serde_json::from_str(&text).unwrap_or_default();
    if tries.events != events {
        tries = Tries { events, tries: 0 };
    }
    tries.tries = tries.tries.saturating_add(1);
    let beside = path.with_extension("new");
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(&beside, serde_json::to_string(&tries).unwrap_or_default()))
        .and_then(|()| std::fs::rename(&beside, &path));
    if let Err(error) = written {
        tracing::warn!(%trace, %error, "the number of tries could not be written down");
    }
    tries.tries <= RESUMES
}

/// Forgets a run that has ended.
pub(super) fn forget(home: &Home, trace: TraceId) {
    let _ = std::fs::remove_file(path(home, trace));
}
