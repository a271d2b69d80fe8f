//! Which tools there are, for the roles' questions: names, schemas and what they do to the world. Their code runs in the
//! agents' sandboxes; here they are only described.

use std::sync::Arc;

use choir_ledger_roles::duty::ToolInfo;
use choir_messages::tool::Lane;
use choir_tools::ToolRegistry;

use crate::state_dir::StateDir;

/// The tools of a core lane. Their descriptions are the same for every workspace, so the registry is made over one where
/// nothing is ever run.
pub(super) fn known(state: &StateDir) -> Result<Arc<[ToolInfo]>, String> {
    let lane: Lane =
        format!("core:{}", super::JOB).parse().map_err(|_| "the ledger's lane has no name".to_owned())?;
    let registry = ToolRegistry::builtin(&state.ledger()).map_err(|error| error.to_string())?;
    let info = |view: choir_messages::tool::ToolView| {
        let side_effect = registry.get(&view.name)?.runtime().side_effect;
        Some(ToolInfo { view, side_effect })
    };
    Ok(registry.views(&lane).into_iter().filter_map(info).collect())
}
