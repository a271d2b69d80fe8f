//! Checkpoints against a file: those that stand on the log itself, and one that the reader saved on an earlier day. A
//! saved one fixes how many entries there were, the chain's head after them, and the root of the transparency log's tree:
//! the file must come to the same head at that place, and, where its receipts let the tree be rebuilt, to the same root.

use choir_transparency::{Frontier, LogKey};
use serde_json::Value;

use super::Leaf;
use super::file::LogEntry;
use super::outcome::{CheckpointReport, SavedReport};
use crate::register::Checkpoint;
use crate::uri::COORDINATOR;

pub(super) struct Checkpoints {
    key: LogKey,
    workspace: String,
    note: Option<String>,
    saved: Option<Checkpoint>,
    /// The tree as the receipts so far make it, until one is missing.
    tree: Option<Frontier>,
    report: CheckpointReport,
}

impl Checkpoints {
    pub(super) fn new(key: LogKey, note: Option<String>) -> Self {
        Self {
            key,
            workspace: String::new(),
            note,
            saved: None,
            tree: Some(Frontier::new()),
            report: CheckpointReport::default(),
        }
    }

    /// The file is about this workspace.
    pub(super) fn open(&mut self, workspace: &str) -> Result<(), String> {
        workspace.clone_into(&mut self.workspace);
        let Some(note) = self.note.take() else { return Ok(()) };
        let saved = Checkpoint::read(&note, &self.key, workspace)
            .map_err(|why| format!("the saved checkpoint is not one of this workspace's log: {why}"))?;
        self.report.saved = Some(SavedReport {
            entries: saved.entries,
            head: saved.head.clone(),
            tree_size: saved.tree.size,
            chain: None,
            root: None,
        });
        self.saved = Some(saved);
        Ok(())
    }

    /// The next entry, and the head after it where that is known. Gives what is wrong.
    pub(super) fn entry(&mut self, entry: &LogEntry, after: Option<&str>) -> Vec<String> {
        let mut faults = Vec::new();
        faults.extend(self.against_saved(entry.seq, entry.prev_hash.as_deref()));
        faults.extend(self.against_saved(entry.seq.saturating_add(1), after));
        if entry.refused.is_none()
            && entry.method() == "audit.checkpoint"
            && entry.params().text("from") == Some(COORDINATOR)
        {
            self.report.present += 1;
            match self.judge(entry) {
                Ok(()) => self.report.good += 1,
                Err(why) => {
                    self.report.bad += 1;
                    faults.push(format!("its checkpoint does not hold: {why}"));
                }
            }
        }
        faults
    }

    /// The head at a place, compared with the saved one once.
    fn against_saved(&mut self, entries: u64, head: Option<&str>) -> Option<String> {
        let (saved, report) = (self.saved.as_ref()?, self.report.saved.as_mut()?);
        let head = head.filter(|_| saved.entries == entries && report.chain.is_none())?;
        let holds = head == saved.head;
        report.chain = Some(holds);
        (!holds).then(|| {
            format!("the chain's head at {entries} entries is not the one of the saved checkpoint: the log was rewritten")
        })
    }

    fn judge(&self, entry: &LogEntry) -> Result<(), String> {
        let note = entry.params().get("note").and_then(Value::as_str).ok_or("it carries no note")?;
        let checkpoint = Checkpoint::read(note, &self.key, &self.workspace)?;
        if checkpoint.entries != entry.seq || Some(&checkpoint.head) != entry.prev_hash.as_ref() {
            return Err("it is about another log than the entries before it".to_owned());
        }
        Ok(())
    }

    /// A leaf whose receipt holds. Gives what is wrong.
    pub(super) fn leaf(&mut self, leaf: Leaf) -> Option<String> {
        let tree = self.tree.as_mut()?;
        if tree.size() != leaf.index || tree.append(leaf.hash).is_err() {
            self.tree = None;
            return None;
        }
        let (saved, report) = (self.saved.as_ref()?, self.report.saved.as_mut()?);
        if saved.tree.size != tree.size() {
            return None;
        }
        let holds = tree.head().root == saved.tree.root;
        report.root = Some(holds);
        (!holds).then(|| {
            format!(
                "the tree of the first {} receipts is not the one of the saved checkpoint",
                saved.tree.size
            )
        })
    }

    /// The report for a file from `first` to before `end`; and a fault, or a note about what could not be compared.
    pub(super) fn finish(
        mut self,
        first: u64,
        end: u64,
    ) -> (CheckpointReport, Result<Option<String>, String>) {
        let Some(saved) = self.report.saved.as_mut().filter(|saved| saved.chain.is_none()) else {
            return (self.report, Ok(None));
        };
        let entries = saved.entries;
        let judged = if entries == 0 {
            saved.chain = Some(true);
            Ok(None)
        } else if entries > end {
            saved.chain = Some(false);
            Err(format!(
                "the log had {entries} entries when the checkpoint was made, and the file ends at {end}: entries are missing \
                 at its end"
            ))
        } else if entries < first {
            Ok(Some(format!(
                "the saved checkpoint is about the first {entries} entries, before the file begins"
            )))
        } else {
            Ok(Some("the file shows no head at the place of the saved checkpoint".to_owned()))
        };
        (self.report, judged)
    }
}
