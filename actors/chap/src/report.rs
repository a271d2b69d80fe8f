//! What a log says about how people and agents work together (paper §7.3, §7.4): overrides by tag, category, intent,
//! agent version, task kind, policy and reviewer, and the measures a promotion from one mode to the next is judged by.
//! The records show what reviewers did, not what is true; what follows from them is for people to decide.
//!
//! What is counted is what reviews came to: where several must approve, their approvals together are one decision. Only by
//! reviewer everybody's own answers count.

use std::collections::{BTreeMap, BTreeSet};

use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::moment;
use crate::verify::{LogEntry, TaskFacts};

/// What stands where a log does not say.
pub const UNKNOWN: &str = "(unknown)";

/// Decisions counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Decisions {
    /// `decide.approve`.
    pub approved: u64,
    /// `decide.reject`.
    pub rejected: u64,
    /// `decide.override`.
    pub overridden: u64,
    /// `abstain.declare`.
    pub abstained: u64,
    /// `escalate.raise`.
    pub escalated: u64,
    /// Overrides that say the intent stayed.
    pub intent_preserved: u64,
    /// Overrides that say another decision took its place.
    pub intent_substituted: u64,
}

impl Decisions {
    /// Approvals, rejections and overrides: reviews that came to something.
    #[must_use]
    pub const fn decided(&self) -> u64 {
        self.approved + self.rejected + self.overridden
    }

    /// Overrides among those.
    #[must_use]
    pub fn override_rate(&self) -> Rate {
        Rate::of(self.overridden, self.decided())
    }

    /// Rejections among those.
    #[must_use]
    pub fn rejection_rate(&self) -> Rate {
        Rate::of(self.rejected, self.decided())
    }

    /// Abstentions among everything a reviewer answered.
    #[must_use]
    pub fn abstention_rate(&self) -> Rate {
        Rate::of(self.abstained, self.decided() + self.abstained)
    }

    fn add(&mut self, what: &Deed) {
        match what {
            Deed::Approved => self.approved += 1,
            Deed::Rejected => self.rejected += 1,
            Deed::Abstained => self.abstained += 1,
            Deed::Escalated => self.escalated += 1,
            Deed::Overridden { intent_preserved, .. } => {
                self.overridden += 1;
                self.intent_preserved += u64::from(*intent_preserved == Some(true));
                self.intent_substituted += u64::from(*intent_preserved == Some(false));
            }
        }
    }
}

/// A share, with the 95% interval of Wilson's score: a rate of few cases says little.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Cases that count.
    pub count: u64,
    /// All cases.
    pub of: u64,
    /// Their quotient; none of no cases.
    pub rate: Option<f64>,
    /// The interval's lower end.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
}

impl Rate {
    /// The share of `count` in `of`.
    #[must_use]
    pub fn of(count: u64, of: u64) -> Self {
        if of == 0 {
            return Self { count, of, rate: None, low: None, high: None };
        }
        // The normal distribution's 97.5% point.
        const Z: f64 = 1.959_964;
        let (n, p) = (of as f64, count as f64 / of as f64);
        let centre = p + Z * Z / (2.0 * n);
        let spread = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + Z * Z / n;
        let end = |value: f64| Some((value / scale).clamp(0.0, 1.0));
        Self { count, of, rate: Some(p), low: end(centre - spread), high: end(centre + spread) }
    }
}

/// One group of a breakdown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// What they have in common.
    pub name: String,
    /// What was decided.
    pub decisions: Decisions,
    /// Overrides among the decided.
    pub override_rate: Rate,
    /// Who answered, counted once each.
    pub reviewers: u64,
}

/// How often something was named in overrides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// What was named.
    pub name: String,
    /// In how many.
    pub count: u64,
}

/// What a promotion is judged by: one agent version in one mode (paper §7.3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Promotion {
    /// The agent, with its version.
    pub agent: String,
    /// The mode it works in.
    pub mode: String,
    /// Tasks it handed something in for.
    pub tasks: u64,
    /// What was decided of it.
    pub decisions: Decisions,
    /// Overrides among the decided.
    pub override_rate: Rate,
    /// Rejections among the decided.
    pub rejection_rate: Rate,
    /// Abstentions among the answered.
    pub abstention_rate: Rate,
    /// Half of the reviews were decided within this time, in milliseconds.
    pub review_median_ms: Option<u64>,
}

/// What an operator asks of a promotion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromotionPolicy {
    /// At least so many tasks.
    pub minimum_tasks: u64,
    /// The override rate's upper end is at most this.
    pub max_override_rate: f64,
    /// The rejection rate's upper end is at most this.
    pub max_rejection_rate: f64,
    /// The abstention rate is at most this.
    pub max_abstention_rate: f64,
}

impl Promotion {
    /// What of the policy is not met, each in one sentence; a person still has to sign (paper §7.3).
    #[must_use]
    pub fn unmet(&self, policy: &PromotionPolicy) -> Vec<String> {
        let mut unmet = Vec::new();
        if self.tasks < policy.minimum_tasks {
            unmet.push(format!("{} tasks of at least {}", self.tasks, policy.minimum_tasks));
        }
        let rates = [
            ("override", self.override_rate.high, policy.max_override_rate),
            ("rejection", self.rejection_rate.high, policy.max_rejection_rate),
            ("abstention", self.abstention_rate.rate, policy.max_abstention_rate),
        ];
        for (name, is, most) in rates {
            match is {
                None => unmet.push(format!("no review says anything about the {name} rate")),
                Some(is) if is > most => {
                    unmet.push(format!(
                        "the {name} rate may be {:.1}%, {:.1}% is asked",
                        is * 100.0,
                        most * 100.0
                    ));
                }
                Some(_) => {}
            }
        }
        unmet
    }
}

/// One override, for lists and for data sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverrideRow {
    /// Its entry.
    pub seq: u64,
    /// When it arrived.
    pub arrived: String,
    /// The task.
    pub task_id: String,
    /// What sort of work.
    pub task_kind: String,
    /// Who had made what was overridden.
    pub agent: String,
    /// Who overrode.
    pub reviewer: String,
    /// Why.
    pub rationale: String,
    /// The reviewer's tags.
    pub tags: Vec<String>,
    /// Policies named.
    pub policy_refs: Vec<String>,
    /// Whether the intent stayed.
    pub intent_preserved: Option<bool>,
    /// Operations of the patch.
    pub operations: u64,
}

/// Everything the report says, for a table, JSON or a page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overrides {
    /// Entries read.
    pub entries: u64,
    /// Refused calls among them, which count nowhere else.
    pub refused: u64,
    /// The first and the last arrival.
    pub window: Option<(String, String)>,
    /// What reviews came to.
    pub total: Decisions,
    /// Answers of reviewers, each counted by itself.
    pub answers: u64,
    /// Who gave them, counted once each.
    pub reviewers: u64,
    /// Overrides among the decided.
    pub override_rate: Rate,
    /// By agent version.
    pub by_agent: Vec<Group>,
    /// By sort of work.
    pub by_task_kind: Vec<Group>,
    /// By mode.
    pub by_mode: Vec<Group>,
    /// By reviewer.
    pub by_reviewer: Vec<Group>,
    /// Tags of overrides, the most frequent first.
    pub tags: Vec<Named>,
    /// Policies named in overrides.
    pub policies: Vec<Named>,
    /// Categories of abstentions.
    pub abstain_categories: Vec<Named>,
    /// For each agent version and mode.
    pub promotion: Vec<Promotion>,
    /// Every override, in order.
    pub overrides: Vec<OverrideRow>,
}

/// What somebody decided.
enum Deed {
    Approved,
    Rejected,
    Abstained,
    Escalated,
    Overridden { intent_preserved: Option<bool> },
}

/// A decision, as far as its entry tells.
struct Done {
    deed: Deed,
    /// Whether it ended its review; an approval of several that are asked for may not.
    concludes: bool,
    task: String,
    agent: Option<String>,
    reviewer: String,
    waited_ms: Option<u64>,
}

/// What is known of a task so far.
#[derive(Default)]
struct Known {
    producer: Option<String>,
    asked: Option<Timestamp>,
    /// The review that was asked for, until it is decided.
    review: Option<Review>,
}

/// A review under way, as far as the log tells.
#[derive(Default)]
struct Review {
    /// Distinct approvals that it takes; none: all who are addressed.
    approvals: Option<u64>,
    addressed: BTreeSet<String>,
    approved: BTreeSet<String>,
}

impl Review {
    /// A request for it, the first or one that widens it.
    fn asked(&mut self, params: &crate::Params<'_>) {
        match params.text("rule") {
            Some("all_approve") => self.approvals = None,
            Some(rule) => {
                let quorum = rule.strip_prefix("quorum:").and_then(|n| n.parse().ok());
                self.approvals = Some(quorum.unwrap_or(1));
            }
            None if self.addressed.is_empty() => self.approvals = Some(1),
            // Leaving the rule out of an amendment changes nothing.
            None => {}
        }
        self.addressed.extend(params.texts("to").unwrap_or_default());
    }

    /// One more approval; whether the rule holds now.
    fn approve(&mut self, by: &str) -> bool {
        self.approved.insert(by.to_owned());
        let wanted = self.approvals.unwrap_or(self.addressed.len() as u64);
        self.approved.len() as u64 >= wanted
    }
}

/// An analysis under way: hand it every entry in order, and what is known of tasks, then ask for the report.
#[derive(Default)]
pub struct Analysis {
    entries: u64,
    refused: u64,
    first: Option<String>,
    last: Option<String>,
    tasks: BTreeMap<String, Known>,
    facts: BTreeMap<String, TaskFacts>,
    handed_in: BTreeSet<(String, String)>,
    done: Vec<Done>,
    tags: BTreeMap<String, u64>,
    policies: BTreeMap<String, u64>,
    categories: BTreeMap<String, u64>,
    rows: Vec<OverrideRow>,
}

impl Analysis {
    /// A new one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a task's facts, at any time before the end.
    pub fn task(&mut self, facts: TaskFacts) {
        self.facts.insert(facts.id.clone(), facts);
    }

    /// Takes the next entry.
    pub fn entry(&mut self, entry: &LogEntry) {
        self.entries += 1;
        self.first.get_or_insert_with(|| entry.arrived.clone());
        self.last = Some(entry.arrived.clone());
        if entry.refused.is_some() || entry.malformed {
            self.refused += u64::from(entry.refused.is_some());
            return;
        }
        let params = entry.params();
        let from = params.text("from").unwrap_or(UNKNOWN).to_owned();
        let task = params.text("task_id").unwrap_or_default().to_owned();
        let deed = match entry.method() {
            "task.complete" | "review.request" => {
                let known = self.tasks.entry(task.clone()).or_default();
                // An agent's work is asked for review by a person sometimes; it stays the agent's.
                if entry.method() == "task.complete" || known.producer.is_none() {
                    known.producer = Some(from.clone());
                }
                known.asked = moment::parse(&entry.arrived);
                if entry.method() == "task.complete" {
                    known.review = None;
                } else {
                    known.review.get_or_insert_default().asked(&params);
                }
                self.handed_in.insert((task, from));
                return;
            }
            "decide.approve" => Deed::Approved,
            "decide.reject" => Deed::Rejected,
            "abstain.declare" => {
                count(&mut self.categories, params.filled("category").unwrap_or("other"));
                Deed::Abstained
            }
            "decide.override" => {
                self.note_override(entry, &from, &task);
                Deed::Overridden { intent_preserved: params.flag("intent_preserved") }
            }
            "escalate.raise" => Deed::Escalated,
            _ => return,
        };
        let task = if task.is_empty() {
            params.text("original_task_id").unwrap_or_default().to_owned()
        } else {
            task
        };
        let known = self.tasks.get_mut(&task);
        let asked = known.as_ref().and_then(|known| known.asked);
        let waited = moment::parse(&entry.arrived).zip(asked).map(|(at, asked)| at.since(asked));
        let (mut concludes, mut agent) = (true, None);
        if let Some(known) = known {
            agent.clone_from(&known.producer);
            if let (Deed::Approved, Some(review)) = (&deed, &mut known.review) {
                concludes = review.approve(&from);
            }
            if concludes {
                known.review = None;
            }
        }
        self.done.push(Done {
            deed,
            concludes,
            agent,
            task,
            reviewer: from,
            waited_ms: waited.and_then(|waited| u64::try_from(waited.as_millis()).ok()),
        });
    }

    fn note_override(&mut self, entry: &LogEntry, from: &str, task: &str) {
        let params = entry.params();
        let tags = params.texts("tags").unwrap_or_default();
        let policy_refs = params.texts("policy_refs").unwrap_or_default();
        for tag in &tags {
            count(&mut self.tags, tag);
        }
        for policy in &policy_refs {
            count(&mut self.policies, policy);
        }
        let rationale = match params.any("rationale") {
            Value::String(text) => text,
            other => other.to_string(),
        };
        self.rows.push(OverrideRow {
            seq: entry.seq,
            arrived: entry.arrived.clone(),
            task_id: task.to_owned(),
            task_kind: String::new(),
            agent: self.tasks.get(task).and_then(|known| known.producer.clone()).unwrap_or_default(),
            reviewer: from.to_owned(),
            rationale,
            tags,
            policy_refs,
            intent_preserved: params.flag("intent_preserved"),
            operations: params.list("diff").map_or(0, |diff| diff.len() as u64),
        });
    }

    /// The report.
    #[must_use]
    pub fn finish(mut self) -> Overrides {
        let facts = std::mem::take(&mut self.facts);
        let fact = |task: &str, of: fn(&TaskFacts) -> &String| {
            facts.get(task).map_or_else(|| UNKNOWN.to_owned(), |facts| of(facts).clone())
        };
        let agent_of = |task: &str, known: Option<&String>| {
            known
                .cloned()
                .or_else(|| facts.get(task).map(|f| f.assignee.clone()))
                .unwrap_or_else(|| UNKNOWN.to_owned())
        };
        let mut total = Decisions::default();
        let mut groups: [BTreeMap<String, Tally<'_>>; 4] = Default::default();
        let reviewers: BTreeSet<&str> = self.done.iter().map(|done| done.reviewer.as_str()).collect();
        let mut promotion: BTreeMap<(String, String), (Decisions, Vec<u64>)> = BTreeMap::new();
        for done in &self.done {
            if done.concludes {
                total.add(&done.deed);
            }
            let agent = agent_of(&done.task, done.agent.as_ref());
            let mode = fact(&done.task, |facts| &facts.mode);
            let kind = fact(&done.task, |facts| &facts.kind);
            let of_their_own = [done.concludes, done.concludes, done.concludes, true];
            let names = [&agent, &kind, &mode, &done.reviewer];
            for ((group, name), counts) in groups.iter_mut().zip(names).zip(of_their_own) {
                let tally = group.entry(name.clone()).or_default();
                tally.reviewers.insert(&done.reviewer);
                if counts {
                    tally.decisions.add(&done.deed);
                }
            }
            if !done.concludes {
                continue;
            }
            let (decisions, waits) = promotion.entry((agent, mode)).or_default();
            decisions.add(&done.deed);
            waits.extend(done.waited_ms);
        }
        let mut tasks: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (task, agent) in &self.handed_in {
            *tasks.entry((agent.clone(), fact(task, |facts| &facts.mode))).or_default() += 1;
        }
        for key in tasks.keys() {
            promotion.entry(key.clone()).or_default();
        }
        for row in &mut self.rows {
            row.task_kind = fact(&row.task_id, |facts| &facts.kind);
            if row.agent.is_empty() {
                row.agent = agent_of(&row.task_id, None);
            }
        }
        let [by_agent, by_task_kind, by_mode, by_reviewer] = groups.map(grouped);
        Overrides {
            entries: self.entries,
            refused: self.refused,
            window: self.first.zip(self.last),
            override_rate: total.override_rate(),
            total,
            answers: self.done.len() as u64,
            reviewers: reviewers.len() as u64,
            by_agent,
            by_task_kind,
            by_mode,
            by_reviewer,
            tags: named(self.tags),
            policies: named(self.policies),
            abstain_categories: named(self.categories),
            promotion: promotion
                .into_iter()
                .map(|((agent, mode), (decisions, waits))| Promotion {
                    tasks: tasks.get(&(agent.clone(), mode.clone())).copied().unwrap_or(0),
                    override_rate: decisions.override_rate(),
                    rejection_rate: decisions.rejection_rate(),
                    abstention_rate: decisions.abstention_rate(),
                    review_median_ms: median(waits),
                    agent,
                    mode,
                    decisions,
                })
                .collect(),
            overrides: self.rows,
        }
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    *counts.entry(name.to_owned()).or_default() += 1;
}

fn named(counts: BTreeMap<String, u64>) -> Vec<Named> {
    let mut named: Vec<Named> = counts.into_iter().map(|(name, count)| Named { name, count }).collect();
    named.sort_by_key(|named| std::cmp::Reverse(named.count));
    named
}

/// One group in the making.
#[derive(Default)]
struct Tally<'a> {
    decisions: Decisions,
    reviewers: BTreeSet<&'a str>,
}

fn grouped(groups: BTreeMap<String, Tally<'_>>) -> Vec<Group> {
    let group = |(name, tally): (String, Tally<'_>)| Group {
        name,
        override_rate: tally.decisions.override_rate(),
        decisions: tally.decisions,
        reviewers: tally.reviewers.len() as u64,
    };
    let mut groups: Vec<Group> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.decisions.overridden));
    groups
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}
