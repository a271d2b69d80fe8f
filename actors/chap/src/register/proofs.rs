//! `audit.submit_to_scitt` with a log of our own: receipts for entries that are leaves already, a signed checkpoint, and
//! a proof that the tree only grew since an earlier one. The stored nodes come with the step; what is below them is
//! recomputed from pages of entries.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_messages::chain::Digest;
use choir_messages::chap::{EntryPage, EntryQuery};
use choir_transparency::{
    ConsistencyPlan, Frontier, InclusionPlan, NodeId, Origin, TreeError, leaf_hash, sign_checkpoint,
};
use serde_json::{Value, json};

use super::{BLOCK, BLOCK_LEVEL, Log, Register, TreeNode, chain_lines};
use crate::call::Body;
use crate::limits::{PAGE_ENTRIES, RECEIPTS};
use crate::method::{Handled, Reply};
use crate::ranges::Range;
use crate::read::{Plan, Reading};
use crate::txn::Txn;
use crate::{Refusal, codes};

/// Receipts for a range, in at most [`RECEIPTS`] steps; with `from_size`, also the proof that the tree of that size was
/// the beginning of this one.
pub(crate) fn submit(txn: &Txn<'_>, log: &Log, range: Range, from_size: Option<u64>) -> Handled {
    let workspace = txn.workspace();
    let nothing = || {
        Refusal::new(
            codes::SCITT_UNREACHABLE,
            "The workspace's log has no entries of this Coordinator's key yet",
        )
    };
    let register = txn.here()?.register.clone().filter(|register| register.is_of(log)).ok_or_else(nothing)?;
    let origin = log.origin(workspace).ok_or_else(nothing)?;
    let size = register.frontier.size();
    if from_size.is_some_and(|old| old > size) {
        return Err(Refusal::params(format!("from_size must be at most the log's size, {size}")).into());
    }
    // Leaves count from the first registered entry.
    let leaf = |seq: u64| seq.max(register.from).min(register.next()) - register.from;
    let (begin, wanted) = (leaf(range.from), leaf(range.to));
    let end = wanted.min(begin.saturating_add(RECEIPTS));
    let next_seq = (end < wanted).then_some(register.from + end);
    let broken = |error: TreeError| altered(&error.to_string());
    let plans: Vec<InclusionPlan> = (begin..end)
        .map(|index| InclusionPlan::new(index, size))
        .collect::<Result<_, _>>()
        .map_err(broken)?;
    let growth = from_size.map(|old| ConsistencyPlan::new(old, size)).transpose().map_err(broken)?;
    let mut needs: BTreeSet<NodeId> = plans.iter().flat_map(InclusionPlan::needs).collect();
    needs.extend(growth.iter().flat_map(ConsistencyPlan::needs));
    needs.extend(from_size.map(Frontier::needs).unwrap_or_default());

    let stored: Vec<NodeId> = needs.iter().copied().filter(|id| id.level >= BLOCK_LEVEL).collect();
    let names: Vec<String> = stored.iter().map(|id| TreeNode::name(*id)).collect();
    txn.expect::<TreeNode>(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut nodes = BTreeMap::new();
    for (id, name) in stored.into_iter().zip(&names) {
        let node = txn.get::<TreeNode>(name)?.ok_or_else(|| altered("a part of its tree is not there"))?;
        nodes.insert(id, node.hash);
    }
    let below = needs.into_iter().filter(|id| id.level < BLOCK_LEVEL);
    let mut blocks: BTreeSet<u64> = below.map(|id| (id.index << id.level) / BLOCK).collect();
    blocks.extend((begin..end).map(|index| index / BLOCK));
    let proofs = Proofs {
        log: log.clone(),
        workspace: workspace.to_owned(),
        origin,
        at: txn.now().millis() / 1000,
        register,
        chain: chain_lines(txn.here()?),
        begin,
        end,
        next_seq,
        plans,
        growth: growth.zip(from_size),
        nodes,
        statements: BTreeMap::new(),
        blocks,
        open: Frontier::new(),
        failed: None,
    };
    Ok(Reply::Read(Plan::new(proofs)))
}

/// What is stored is not what was registered. No receipt is given then, and nothing but a backup mends it.
fn altered(why: &str) -> Refusal {
    Refusal::new(
        codes::SCITT_UNREACHABLE,
        format!(
            "The stored log is not the one that was registered ({why}); compare it with an export or a backup"
        ),
    )
}

#[derive(Debug)]
struct Proofs {
    log: Log,
    workspace: String,
    origin: Origin,
    at: u64,
    register: Register,
    /// What the checkpoint says of the chain.
    chain: Vec<String>,
    begin: u64,
    end: u64,
    next_seq: Option<u64>,
    plans: Vec<InclusionPlan>,
    growth: Option<(ConsistencyPlan, u64)>,
    nodes: BTreeMap<NodeId, Digest>,
    /// Of the leaves from `begin` to `end`.
    statements: BTreeMap<u64, Vec<u8>>,
    /// To be recomputed still, the one under way among them.
    blocks: BTreeSet<u64>,
    /// The leaves of the one under way.
    open: Frontier,
    failed: Option<Refusal>,
}

impl Proofs {
    fn size(&self) -> u64 {
        self.register.frontier.size()
    }

    /// The leaves of the block under way that are still to come.
    fn next_leaves(&self) -> Option<std::ops::Range<u64>> {
        let first = self.blocks.first()? * BLOCK;
        Some(first + self.open.size()..(first + BLOCK).min(self.size()))
    }

    fn fail(&mut self, why: &str) {
        self.failed = Some(altered(why));
        self.blocks.clear();
    }

    fn take(&mut self, page: &EntryPage) -> Result<(), String> {
        let Some(leaves) = self.next_leaves() else { return Ok(()) };
        if page.entries.is_empty() {
            return Err("entries are missing".to_owned());
        }
        for (index, entry) in leaves.clone().zip(&page.entries) {
            if entry.seq != self.register.from + index {
                return Err("entries are missing".to_owned());
            }
            let statement = self.log.statement(&self.workspace, entry).map_err(|error| error.to_string())?;
            let completed = self.open.append(leaf_hash(&statement)).map_err(|error| error.to_string())?;
            let block = index / BLOCK;
            for node in completed.into_iter().filter(|node| node.id.level < BLOCK_LEVEL) {
                let index = (block << (BLOCK_LEVEL - node.id.level)) + node.id.index;
                self.nodes.insert(NodeId { level: node.id.level, index }, node.hash);
            }
            if (self.begin..self.end).contains(&index) {
                self.statements.insert(index, statement);
            }
            if index + 1 == leaves.end {
                self.blocks.pop_first();
                self.open = Frontier::new();
            }
        }
        Ok(())
    }

    fn result(&self) -> Result<Value, String> {
        let fault = |error: &dyn std::error::Error| error.to_string();
        let signer = self.log.signer(&self.origin);
        let head = self.register.frontier.head();
        let nodes = |id: NodeId| self.nodes.get(&id).copied();
        let mut receipts = Vec::with_capacity(self.plans.len());
        for (plan, (index, statement)) in self.plans.iter().zip(&self.statements) {
            let proof = plan.finish(&nodes).map_err(|e| fault(&e))?;
            let seq = self.register.from + index;
            let receipt = signer
                .inclusion_receipt(statement, &proof, &head, self.at)
                .map_err(|error| format!("entry {seq}: {error}"))?;
            let (statement, receipt) = (STANDARD.encode(statement), STANDARD.encode(receipt));
            receipts.push(json!({"seq": seq, "receipt": {"statement": statement, "receipt": receipt}}));
        }
        if receipts.len() != self.plans.len() {
            return Err("entries are missing".to_owned());
        }
        let mut result = json!({
            "receipts": receipts,
            "checkpoint": sign_checkpoint(&signer, &head, &self.chain).map_err(|e| fault(&e))?,
            "log_key": self.log.public().to_string(),
            "from_seq": self.register.from,
        });
        if let Some((plan, old)) = &self.growth {
            let old = Frontier::from_nodes(*old, &nodes).map_err(|e| fault(&e))?.head();
            let proof = plan.finish(&nodes).map_err(|e| fault(&e))?;
            let receipt = signer.consistency_receipt(&old, &head, &proof, self.at).map_err(|e| fault(&e))?;
            result["consistency"] = json!(STANDARD.encode(receipt));
        }
        if let Some(next) = self.next_seq {
            result["next_seq"] = json!(next);
        }
        Ok(result)
    }
}

impl Reading for Proofs {
    fn wants(&self) -> Option<EntryQuery> {
        let leaves = self.next_leaves()?;
        Some(EntryQuery {
            from_seq: self.register.from + leaves.start,
            to_seq: Some(self.register.from + leaves.end),
            limit: PAGE_ENTRIES,
            ..EntryQuery::default()
        })
    }

    fn page(&mut self, page: EntryPage) {
        if let Err(why) = self.take(&page) {
            self.fail(&why);
        }
    }

    fn finish(mut self: Box<Self>) -> Body {
        match self.failed.take().map_or_else(|| self.result().map_err(|why| altered(&why)), Err) {
            Ok(result) => Body::Result(result),
            Err(refusal) => Body::Refused(refusal),
        }
    }
}
