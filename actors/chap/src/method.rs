//! The table of methods: everything about a method that is not its own handler. The checks of digest §3.2, the tools of
//! the MCP server and the property test of wrong types all read this one table.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use crate::methods;
use crate::params::{Param, Params, Shape};
use crate::read::Plan;
use crate::refusal::Stop;
use crate::txn::Txn;

/// Who may call a method, and when that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// Anybody; the handler may ask for more.
    Anyone,
    /// Members, asked before the pause (digest §3.2, step 6).
    Early,
    /// Members, asked with the method's own checks.
    Member,
    /// Anybody, or members only where reads are for members.
    Reader,
}

/// What a handler answers with.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A result.
    Result(Value),
    /// A read of the log, to be carried out page by page.
    Read(Plan),
}

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        Self::Result(value)
    }
}

pub(crate) type Handled = Result<Reply, Stop>;
pub(crate) type Handler = fn(&mut Txn<'_>, &Params<'_>) -> Handled;
pub(crate) type Replayed = fn(&Txn<'_>, &Params<'_>) -> Result<Option<Value>, Stop>;

/// One method.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// Its name on the wire.
    pub name: &'static str,
    /// The profile it belongs to, as `name/version`.
    pub profile: &'static str,
    /// One sentence for a person or a model.
    pub summary: &'static str,
    /// Refused unless its profile is advertised.
    pub gated: bool,
    /// Asks for step-up where that is enforced; its refusal by the gate is recorded.
    pub privileged: bool,
    /// Who may call it.
    pub floor: Floor,
    /// Works in a paused workspace.
    pub pause_exempt: bool,
    /// Goes on the log; a read does not.
    pub recorded: bool,
    /// Runs before anybody is known: no signature is asked for, and its refusals are never recorded.
    pub opening: bool,
    /// Works without an existing workspace.
    pub anywhere: bool,
    /// Params that must be there, in the order in which their absence is told.
    pub required: &'static [&'static str],
    /// Whether their absence is told before an unknown workspace.
    pub required_first: bool,
    /// Params whose shape is told before an unknown workspace.
    pub early: &'static [Param],
    /// Every param beyond `workspace`, `from`, `to` and `ts`.
    pub params: &'static [Param],
    pub(crate) run: Handler,
    pub(crate) replayed: Option<Replayed>,
}

impl Method {
    /// A recorded, ungated-by-pause method that anybody may call; the rest is said by the calls that follow.
    pub(crate) const fn new(
        name: &'static str,
        profile: &'static str,
        summary: &'static str,
        run: Handler,
    ) -> Self {
        Self {
            name,
            profile,
            summary,
            gated: true,
            privileged: false,
            floor: Floor::Anyone,
            pause_exempt: false,
            recorded: true,
            opening: false,
            anywhere: false,
            required: &[],
            required_first: false,
            early: &[],
            params: &[],
            run,
            replayed: None,
        }
    }

    pub(crate) const fn floor(mut self, floor: Floor) -> Self {
        self.floor = floor;
        self
    }

    pub(crate) const fn privileged(mut self) -> Self {
        self.privileged = true;
        self
    }

    /// Works whatever is advertised.
    pub(crate) const fn ungated(mut self) -> Self {
        self.gated = false;
        self
    }

    pub(crate) const fn pause_exempt(mut self) -> Self {
        self.pause_exempt = true;
        self
    }

    /// A read: never recorded, accepted or refused.
    pub(crate) const fn read(mut self) -> Self {
        self.recorded = false;
        self
    }

    pub(crate) const fn anywhere(mut self) -> Self {
        self.anywhere = true;
        self
    }

    pub(crate) const fn opening(mut self) -> Self {
        self.opening = true;
        self.anywhere = true;
        self
    }

    /// Params that must be there, told before an unknown workspace.
    pub(crate) const fn required(mut self, names: &'static [&'static str]) -> Self {
        self.required = names;
        self.required_first = true;
        self
    }

    /// Params that must be there, told after an unknown workspace.
    pub(crate) const fn required_later(mut self, names: &'static [&'static str]) -> Self {
        self.required = names;
        self
    }

    pub(crate) const fn early(mut self, params: &'static [Param]) -> Self {
        self.early = params;
        self
    }

    pub(crate) const fn params(mut self, params: &'static [Param]) -> Self {
        self.params = params;
        self
    }

    /// Looks for the answer to an earlier call of the same effect.
    pub(crate) const fn replayed(mut self, replayed: Replayed) -> Self {
        self.replayed = Some(replayed);
        self
    }

    /// The JSON Schema of its params, for MCP.
    #[must_use]
    pub fn input_schema(&self) -> Value {
        let mut properties = Map::new();
        for param in COMMON.iter().chain(self.params) {
            let mut schema = param.shape.schema();
            if let Some(map) = schema.as_object_mut() {
                map.insert("description".to_owned(), json!(param.doc));
            }
            properties.insert(param.name.to_owned(), schema);
        }
        let mut required: Vec<&str> = self.required.to_vec();
        for name in ["workspace", "from"] {
            let open = self.name == "workspace.create" || (name == "from" && self.floor == Floor::Reader);
            if !open && !required.contains(&name) {
                required.push(name);
            }
        }
        json!({"type": "object", "properties": properties, "required": required})
    }
}

/// What every call may carry.
pub const COMMON: &[Param] = &[
    Param::new("workspace", Shape::Text, "The workspace's id"),
    Param::new("from", Shape::Text, "The participant who calls"),
    Param::new("to", Shape::TextOrTexts, "Whom it is addressed to"),
    Param::new("ts", Shape::Text, "When it was sent, RFC 3339"),
];

/// Every method, in the order of the catalogue.
pub fn all() -> impl Iterator<Item = &'static Method> {
    methods::FAMILIES.iter().flat_map(|family| family.iter())
}

/// The method of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Method> {
    static BY_NAME: OnceLock<HashMap<&'static str, &'static Method>> = OnceLock::new();
    BY_NAME.get_or_init(|| all().map(|method| (method.name, method)).collect()).get(name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_stands_in_the_table_once_and_declares_what_it_requires() {
        let mut names = std::collections::BTreeSet::new();
        for method in all() {
            assert!(names.insert(method.name), "{} is there twice", method.name);
            assert!(method.profile.ends_with("/1.0"), "{}", method.name);
            for name in method.required {
                assert!(
                    COMMON.iter().chain(method.params).any(|param| param.name == *name),
                    "{} requires {name} without declaring it",
                    method.name
                );
            }
        }
    }
}
