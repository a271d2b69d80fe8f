//! The two methods of the WebSocket itself, by which a client says whose notices it wants.

use serde_json::Value;

use crate::auth::Identity;
use crate::inbox::{NoticeQuery, Wanted};
use crate::refusal::{Refusal, id_of};

const SUBSCRIBE: &str = "notify.subscribe";
const UNSUBSCRIBE: &str = "notify.unsubscribe";

/// A call to the transport itself.
pub(super) struct OwnCall {
    pub(super) method: Own,
    /// `null` where it has none.
    pub(super) id: Value,
    params: Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// Start a subscription, or start it anew.
    Subscribe,
    /// End one.
    Unsubscribe,
}

impl OwnCall {
    /// The transport's own call in this text, if it is one. All else is the Coordinator's, unread.
    pub(super) fn find(text: &str) -> Option<Self> {
        if !text.contains("notify.") {
            return None;
        }
        let mut call: Value = serde_json::from_str(text).ok()?;
        let method = match call.get("method")?.as_str()? {
            SUBSCRIBE => Own::Subscribe,
            UNSUBSCRIBE => Own::Unsubscribe,
            _ => return None,
        };
        let params = call.get_mut("params").map(Value::take).unwrap_or_default();
        Some(Self { method, id: id_of(text.as_bytes()), params })
    }

    /// Whose notices it is about, if the caller may read them.
    pub(super) fn wanted(&self, who: &Identity) -> Result<Wanted, Refusal> {
        let text = |name: &str| match self.params.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) if name == "since" => Ok(Some(number.to_string())),
            Some(_) => Err(Refusal::params(format!("{name} has the wrong type"))),
        };
        NoticeQuery::new(text("workspace")?, text("participant")?, text("since")?).wanted(who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_two_methods_are_the_transports() {
        assert!(OwnCall::find(r#"{"id":1,"method":"notify.subscribe","params":{}}"#).is_some());
        assert!(OwnCall::find(r#"{"method":"notify.unsubscribe"}"#).is_some());
        for others in [
            r#"{"id":1,"method":"notify.message","params":{}}"#,
            r#"{"id":1,"method":"task.create","params":{"kind":"notify.subscribe"}}"#,
            r#"{"id":1,"params":{"method":"notify.subscribe"}}"#,
            r#"["notify.subscribe"]"#,
            r#"{"method":"notify.subscribe""#,
        ] {
            assert!(OwnCall::find(others).is_none(), "{others}");
        }
    }
}
