//! Draws the live trees.

use std::fmt::Write as _;

use serde_json::Value;

use super::print::plain;
use crate::control::views::TreeView;

/// Deepest tree that is drawn: an agent's tree is a stranger's word.
const DEPTH: usize = 16;

pub(super) fn draw(view: &TreeView) -> String {
    let mut text = String::new();
    node(&view.choird, "", "", 0, &mut text);
    for (agent, tree) in &view.agents {
        let _ = writeln!(text, "\n{agent} (as it last reported)");
        node(tree, "", "", 0, &mut text);
    }
    text
}

fn node(node_value: &Value, lead: &str, below: &str, depth: usize, text: &mut String) {
    let word = |key: &str| plain(node_value.get(key).and_then(Value::as_str).unwrap_or("?"));
    let number = |at: &str| node_value.pointer(at).and_then(Value::as_u64);
    let mut line = format!("{lead}{}  {}", word("name"), word("state"));
    if let (Some(depth), Some(capacity)) = (number("/mailbox/depth"), number("/mailbox/capacity")) {
        let _ = write!(line, "  {depth}/{capacity}");
        if let Some(oldest) = number("/mailbox/oldest_ms").filter(|ms| *ms > 0) {
            let _ = write!(line, " oldest {oldest} ms");
        }
    }
    if let Some(message) = node_value.pointer("/current/message").and_then(Value::as_str) {
        let _ =
            write!(line, "  handling {} for {} ms", plain(message), number("/current/for_ms").unwrap_or(0));
    }
    if let Some(restarts) = number("/restarts").filter(|n| *n > 0) {
        let _ = write!(line, "  restarts {restarts}");
    }
    let _ = writeln!(text, "{line}");
    if depth >= DEPTH {
        return;
    }
    let children = node_value.get("children").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (at, child) in children.iter().enumerate() {
        let last = at + 1 == children.len();
        let (branch, stem) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        node(child, &format!("{below}{branch}"), &format!("{below}{stem}"), depth + 1, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tree_is_drawn_with_what_matters() {
        let choird = json!({ "name": "choird", "state": "running", "children": [
            { "name": "store", "state": "running", "mailbox": { "depth": 2, "capacity": 4, "oldest_ms": 7 }, "restarts": 1 },
            { "name": "agents", "state": "running", "children": [
                { "name": "a", "state": "running", "current": { "message": "append", "for_ms": 3 } } ] } ] });
        let text = draw(&TreeView { choird, agents: Default::default() });
        assert_eq!(
            text,
            "choird  running\n├─ store  running  2/4 oldest 7 ms  restarts 1\n└─ agents  running\n   └─ a  running  handling append for 3 ms\n"
        );
    }

    #[test]
    fn a_tree_of_another_shape_does_not_hurt() {
        for odd in [json!(null), json!([1]), json!({ "children": 7, "name": "\u{1b}[2J" })] {
            let text = draw(&TreeView { choird: odd, agents: Default::default() });
            assert!(!text.contains('\u{1b}'));
        }
    }
}
