//! Entries in the making: each gets its place, its link and its leaf, and at every [`CHECKPOINT_EVERY`]th the Coordinator
//! signs a checkpoint of the log.

use std::collections::BTreeSet;

use choir_messages::chap::Entry;
use choir_messages::time::Timestamp;
use serde_json::{Map, Value, json};

use crate::Settings;
use crate::evidence::{self, GENESIS};
use crate::limits::CHECKPOINT_EVERY;
use crate::register::{self, TreeNode};
use crate::uri::{COORDINATOR, is_id};
use crate::workspace::Meta;

/// An entry that is about to be appended.
pub(crate) struct Draft {
    pub(crate) record: String,
    pub(crate) refused: Option<i64>,
    pub(crate) method: String,
    pub(crate) from: Option<String>,
    pub(crate) tasks: BTreeSet<String>,
}

impl Draft {
    /// An entry of the Coordinator's own: a notification without an id.
    pub(crate) fn own(workspace: &str, now: Timestamp, method: &str, params: Map<String, Value>) -> Self {
        let mut params = params;
        params.insert("workspace".to_owned(), json!(workspace));
        params.insert("from".to_owned(), json!(COORDINATOR));
        params.insert("ts".to_owned(), json!(now.to_string()));
        let task = params.get("task_id").and_then(Value::as_str).filter(|id| is_id(id)).map(str::to_owned);
        let envelope = json!({"jsonrpc": "2.0", "method": method, "params": params});
        let record =
            choir_messages::canonical::to_string(&envelope).expect("an entry of our own is plain data");
        Self {
            record,
            refused: None,
            method: method.to_owned(),
            from: Some(COORDINATOR.to_owned()),
            tasks: task.into_iter().collect(),
        }
    }
}

/// What is appended in one step.
pub(crate) struct Appending<'a> {
    settings: &'a Settings,
    workspace: &'a str,
    now: Timestamp,
    pub(crate) entries: Vec<Entry>,
    pub(crate) nodes: Vec<TreeNode>,
}

impl<'a> Appending<'a> {
    pub(crate) const fn new(settings: &'a Settings, workspace: &'a str, now: Timestamp) -> Self {
        Self { settings, workspace, now, entries: Vec::new(), nodes: Vec::new() }
    }

    /// Appends them all and, where a checkpoint is due after them, that.
    pub(crate) fn all(&mut self, meta: &mut Meta, drafts: Vec<Draft>) {
        let before = meta.entries;
        drafts.into_iter().for_each(|draft| self.one(meta, draft));
        if before / CHECKPOINT_EVERY < meta.entries / CHECKPOINT_EVERY
            && let Some(checkpoint) = self.checkpoint(meta)
        {
            self.one(meta, checkpoint);
        }
    }

    fn one(&mut self, meta: &mut Meta, draft: Draft) {
        let chaining = meta.head.is_some() || self.settings.enable_chain;
        let prev_hash = chaining.then(|| meta.head.clone().unwrap_or_else(|| GENESIS.to_owned()));
        if let Some(previous) = &prev_hash {
            meta.head = Some(evidence::link(&draft.record, previous));
            meta.chained_from.get_or_insert(meta.entries);
        }
        // A clock that goes back does not make the log do so.
        let arrived = self.now.max(meta.last_arrival);
        let entry = Entry {
            seq: meta.entries,
            arrived,
            record: draft.record,
            refused: draft.refused,
            prev_hash,
            method: draft.method,
            from: draft.from,
            tasks: draft.tasks.into_iter().collect(),
        };
        if let Some(log) = &self.settings.log {
            self.nodes.extend(register::enter(meta, log, self.workspace, &entry));
        }
        self.entries.push(entry);
        meta.entries += 1;
        meta.last_arrival = arrived;
    }

    /// The Coordinator's signed word about the log so far; none where it keeps no tree of it.
    fn checkpoint(&self, meta: &Meta) -> Option<Draft> {
        let note = register::checkpoint(meta, self.settings.log.as_ref()?, self.workspace)?;
        let mut params = Map::new();
        params.insert("entries".to_owned(), json!(meta.entries));
        params.insert("head".to_owned(), json!(meta.head));
        params.insert("note".to_owned(), json!(note));
        Some(Draft::own(self.workspace, self.now, "audit.checkpoint", params))
    }
}
