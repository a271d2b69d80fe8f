//! The critic's policy: what [`Policy`](choir_ledger::trace::Policy) refuses by a task's sensitivity, and the
//! constraints that are rules. A model's opinion comes on top of it, never instead of it: what the policy forbids stays
//! forbidden.
//!
//! Constraints that are rules, whatever their case: `read-only` and `no-writes` (nothing that changes anything),
//! `local-only` and `no-network` (nothing that can reach outside, commands among them), `no-commands` (not `choir.exec`),
//! `no-tool:<name>`. All others are the model's to judge.

use choir_ledger::trace::RiskClass;

use crate::board::{Board, Intent};
use crate::duty::ToolInfo;
use crate::task::Task;

/// Whether an intent needs the critic's own word.
pub(crate) fn needs_approval(board: &Board, intent: &Intent) -> bool {
    let Some((task, _)) = &board.task else { return true };
    let conditional = board.proposal(&intent.proposal).is_none_or(|proposal| proposal.conditional);
    conditional || task.policy().reviews(RiskClass::of(&intent.class))
}

/// Whether the task lets a tool be used at all; if not, why.
pub fn permits(task: &Task, tool: &ToolInfo) -> Result<(), String> {
    let (name, class) = (tool.view.name.as_str(), tool.class());
    if task.policy().refuses(class) {
        return Err(format!(
            "{name} is of risk class {class}, which sensitivity {} does not permit",
            task.sensitivity()
        ));
    }
    for constraint in &task.constraints {
        let rule = constraint.trim().to_ascii_lowercase().replace(' ', "-");
        let forbids = match rule.as_str() {
            "read-only" | "no-writes" => class >= RiskClass::Elevated,
            "local-only" | "no-network" => class >= RiskClass::High,
            "no-commands" => name == "choir.exec",
            other => other.strip_prefix("no-tool:").is_some_and(|tool| tool.trim_matches('-') == name),
        };
        if forbids {
            return Err(format!("the constraint \"{}\" does not permit {name} ({class})", constraint.trim()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duty::form;
    use choir_messages::tool::SideEffect;
    use serde_json::json;

    fn allowed(sensitivity: &str, constraints: &[&str], name: &str, side_effect: SideEffect) -> bool {
        let mut task = Task::of_sentence("x", "t").unwrap();
        task.sensitivity_level = Some(sensitivity.to_owned());
        task.constraints = constraints.iter().map(|c| (*c).to_owned()).collect();
        permits(&task, &ToolInfo { view: form(name, "", json!({})), side_effect }).is_ok()
    }

    #[test]
    fn what_reaches_outside_is_not_for_restricted_data_and_unknown_levels_are_restricted() {
        use SideEffect::{External, Read, Write};
        for (level, effects) in [
            ("low", [true, true, true]),
            ("standard", [true, true, true]),
            ("high", [true, true, true]),
            ("restricted", [true, true, false]),
            ("never heard of", [true, true, false]),
        ] {
            for (effect, permitted) in [Read, Write, External].into_iter().zip(effects) {
                assert_eq!(allowed(level, &[], "t", effect), permitted, "{level} {effect:?}");
            }
        }
        assert!(!allowed("restricted", &[], "choir.exec", Write), "a command can reach anything");
    }

    #[test]
    fn constraints_that_are_rules_bind_whatever_the_level() {
        use SideEffect::{External, Read, Write};
        assert!(!allowed("low", &["Read only"], "choir.fs.write", Write));
        assert!(allowed("low", &["read-only"], "choir.fs.read", Read));
        assert!(
            !allowed("low", &["local-only"], "x", External) && allowed("low", &["local-only"], "x", Write)
        );
        assert!(!allowed("low", &["local-only"], "choir.exec", Write));
        assert!(!allowed("low", &["no commands"], "choir.exec", Write));
        assert!(!allowed("low", &["no-tool: choir.fs.read"], "choir.fs.read", Read));
        assert!(allowed("low", &["be nice"], "choir.exec", Write));
    }
}
