//! `deliberation/1.0`: a decision by several, its votes, its rules, and its deadline (digest §3.6).

use choir_messages::chap::ObjectKind;
use serde_json::{Map, Number, Value, json};

use super::note;
use super::task::TASK_ID;
use crate::limits::{ADDRESSEES, HISTORY};
use crate::method::{Floor, Handled, Method};
use crate::model::{Comment, Deliberation, Vote};
use crate::params::{Param, Params, Shape};
use crate::refusal::Stop;
use crate::txn::Txn;
use crate::{Refusal, codes, moment};

const ID: Param = Param::new("deliberation_id", Shape::Ref(ObjectKind::Deliberation), "The deliberation");
const COMMENT: Param = Param::new("comment", Shape::Any, "Words");

pub(crate) const METHODS: &[Method] = &[
    Method::new("deliberate.open", "deliberation/1.0", "Open a decision by several, under a rule", open)
        .floor(Floor::Early)
        .required_later(&["from", "rule"])
        .params(&[
            TASK_ID,
            Param::new(
                "rule",
                Shape::Text,
                "any_one_approves, all_approve, quorum:<n>, weighted_vote:<t> or weighted_vote_with_veto:<t>",
            ),
            Param::new("participants", Shape::TextOrTexts, "Who may vote, where `to` does not say"),
            Param::new("question", Shape::Any, "What is to be decided"),
            Param::new("weights", Shape::Object, "Weights by URI; 1 for who is not named"),
            Param::new("veto", Shape::Object, "true for each URI that may veto"),
            Param::new("deadline", Shape::Time, "When it closes by itself, RFC 3339"),
            Param::new("deliberation_id", Shape::NewId, "An id of the caller's choice"),
        ]),
    Method::new("deliberate.comment", "deliberation/1.0", "Say something about an open decision", comment)
        .floor(Floor::Early)
        .params(&[ID, COMMENT, Param::new("text", Shape::Any, "Words, by their other name")]),
    Method::new("deliberate.vote", "deliberation/1.0", "Vote, once", vote).floor(Floor::Early).params(&[
        ID,
        Param::new("vote", Shape::Any, "yea, nay or abstain"),
        Param::new("veto_invoked", Shape::Bool, "Veto, where you may"),
        Param::new("weight", Shape::Any, "Kept, never counted"),
        COMMENT,
    ]),
    Method::new("deliberate.close", "deliberation/1.0", "Close a decision and say what came of it", close)
        .floor(Floor::Early)
        .params(&[ID]),
];

/// How votes are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    AnyOne,
    All,
    Quorum(u64),
    Weighted { threshold: f64, veto: bool },
}

impl Rule {
    fn parse(text: &str) -> Option<Self> {
        let threshold = |text: &str| text.trim().parse::<f64>().ok().filter(|t| t.is_finite());
        match text.split_once(':') {
            None if text == "any_one_approves" => Some(Self::AnyOne),
            None if text == "all_approve" => Some(Self::All),
            Some(("quorum", n)) if n.bytes().all(|b| b.is_ascii_digit()) => {
                n.parse().ok().filter(|n| *n >= 1).map(Self::Quorum)
            }
            Some(("weighted_vote", t)) => Some(Self::Weighted { threshold: threshold(t)?, veto: false }),
            Some(("weighted_vote_with_veto", t)) => {
                Some(Self::Weighted { threshold: threshold(t)?, veto: true })
            }
            _ => None,
        }
    }
}

fn open(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let named = params.texts("to").filter(|to| !to.is_empty()).or_else(|| params.texts("participants"));
    let mut participants: Vec<String> = Vec::new();
    for uri in named.unwrap_or_default() {
        // Named twice is one voter: otherwise nobody could ever make it unanimous.
        if !uri.is_empty() && !participants.contains(&uri) {
            participants.push(uri);
        }
    }
    if participants.is_empty() {
        return Err(Refusal::params("deliberate.open needs 'to' (participants list)").into());
    }
    if participants.len() > ADDRESSEES {
        return Err(Refusal::params(format!("A deliberation has at most {ADDRESSEES} participants")).into());
    }
    let rule = params.text("rule").unwrap_or_default();
    if Rule::parse(rule).is_none() {
        return Err(Refusal::new(codes::DELIBERATION_UNKNOWN_RULE, format!("Unknown rule: {rule}")).into());
    }
    let weights = params.map("weights").cloned().unwrap_or_default();
    if let Some((uri, _)) = weights.iter().find(|(_, weight)| !weight.as_f64().is_some_and(|w| w >= 0.0)) {
        return Err(Refusal::params(format!("The weight of {uri} must be a number from 0 on")).into());
    }
    let id = match params.text("deliberation_id") {
        Some(id) if txn.get::<Deliberation>(id)?.is_some() => {
            return Err(Refusal::params(format!("Deliberation id in use: {id}")).into());
        }
        Some(id) => id.to_owned(),
        None => txn.fresh("dlb_"),
    };
    let deadline = note(params.text("deadline"));
    let deliberation = Deliberation {
        id,
        task_id: note(params.text("task_id")),
        opener: txn.from().to_owned(),
        participants,
        rule: rule.to_owned(),
        question: params.any("question"),
        weights,
        veto: params.map("veto").cloned().unwrap_or_default(),
        due: deadline.as_deref().and_then(moment::parse),
        deadline,
        opened_at: txn.now(),
        votes: Vec::new(),
        comments: Vec::new(),
        outcome: None,
    };
    txn.put(&deliberation);
    let mut more = json!({
        "deliberation_id": deliberation.id, "rule": deliberation.rule, "question": deliberation.question,
        "opener": deliberation.opener,
    });
    for (name, value) in [("task_id", &deliberation.task_id), ("deadline", &deliberation.deadline)] {
        if let Some(value) = value {
            more[name] = json!(value);
        }
    }
    txn.notify(deliberation.participants.iter().map(String::as_str), "deliberation_opened", more);
    Ok(json!({"deliberation_id": deliberation.id, "state": "open"}).into())
}

fn named(txn: &Txn<'_>, params: &Params<'_>) -> Result<Deliberation, Stop> {
    let found = match params.text("deliberation_id") {
        Some(id) => txn.get::<Deliberation>(id)?,
        None => None,
    };
    found.ok_or_else(|| Refusal::params("Unknown deliberation").into())
}

/// The deliberation named, while it takes votes.
fn still_open(txn: &Txn<'_>, params: &Params<'_>) -> Result<Deliberation, Stop> {
    let deliberation = named(txn, params)?;
    if deliberation.takes_votes(txn.now()) {
        return Ok(deliberation);
    }
    Err(Refusal::new(codes::DELIBERATION_NOT_OPEN, "Deliberation not open").into())
}

fn concern(txn: &mut Txn<'_>, deliberation: &Deliberation) {
    if let Some(task) = deliberation.task_id.as_deref().filter(|id| crate::uri::is_id(id)) {
        txn.concerns(task);
    }
}

fn comment(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut deliberation = still_open(txn, params)?;
    let text = params.get("comment").or_else(|| params.get("text")).cloned().unwrap_or_else(|| json!(""));
    deliberation.comments.push(Comment { ts: txn.now(), from: txn.from().to_owned(), text });
    // The log has them all; the object keeps the newest.
    let surplus = deliberation.comments.len().saturating_sub(HISTORY);
    deliberation.comments.drain(..surplus);
    txn.put(&deliberation);
    concern(txn, &deliberation);
    Ok(json!({"accepted": true}).into())
}

fn vote(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut deliberation = still_open(txn, params)?;
    params.require(&["from", "vote"])?;
    let Some(vote) = params.text("vote").filter(|vote| matches!(*vote, "yea" | "nay" | "abstain")) else {
        return Err(Refusal::params("vote must be yea/nay/abstain").into());
    };
    let voter = txn.from();
    if !deliberation.participants.iter().any(|uri| uri == voter) {
        let why = format!("Voter {voter} not in participant list");
        return Err(Refusal::new(codes::DELIBERATION_VOTER_NOT_IN_LIST, why).into());
    }
    if deliberation.votes.iter().any(|vote| vote.voter == voter) {
        let why = format!("Voter {voter} has already voted");
        return Err(Refusal::new(codes::DELIBERATION_ALREADY_VOTED, why).into());
    }
    deliberation.votes.push(Vote {
        ts: txn.now(),
        voter: voter.to_owned(),
        vote: vote.to_owned(),
        veto_invoked: params.flag("veto_invoked") == Some(true),
        weight: params.any("weight"),
        comment: params.any("comment"),
    });
    txn.put(&deliberation);
    concern(txn, &deliberation);
    Ok(json!({"recorded": true}).into())
}

fn close(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut deliberation = named(txn, params)?;
    concern(txn, &deliberation);
    let outcome = match &deliberation.outcome {
        Some(outcome) => outcome.clone(),
        None => settle(txn, &mut deliberation),
    };
    Ok(outcome.into())
}

/// Counts, closes and tells.
fn settle(txn: &mut Txn<'_>, deliberation: &mut Deliberation) -> Value {
    let outcome = count(deliberation);
    deliberation.outcome = Some(outcome.clone());
    txn.put(deliberation);
    let mut more =
        json!({"deliberation_id": deliberation.id, "outcome": outcome["outcome"], "tally": outcome["tally"]});
    if let Some(task) = &deliberation.task_id {
        more["task_id"] = json!(task);
    }
    let mut to = deliberation.participants.clone();
    to.push(deliberation.opener.clone());
    txn.notify(to.iter().map(String::as_str), "deliberation_closed", more);
    outcome
}

/// What the votes amount to under the rule.
fn count(deliberation: &Deliberation) -> Value {
    let voted = |what: &'static str| deliberation.votes.iter().filter(move |vote| vote.vote == what);
    let (yea, nay) = (voted("yea").count() as u64, voted("nay").count() as u64);
    let holds = |uri: &str| {
        deliberation.veto.get(uri).is_some_and(|v| !matches!(v, Value::Null | Value::Bool(false)))
    };
    let vetoes: Vec<&str> = deliberation
        .votes
        .iter()
        .filter(|vote| vote.veto_invoked && holds(&vote.voter))
        .map(|vote| vote.voter.as_str())
        .collect();
    let weight = |uri: &str| deliberation.weights.get(uri).and_then(Value::as_f64).unwrap_or(1.0);
    let weigh = |what: &'static str| voted(what).map(|vote| weight(&vote.voter)).sum::<f64>();
    let answer = |passed: bool, yea: Value, nay: Value, vetoes: &[&str], reason: Option<&str>| {
        let outcome = if passed { "approved" } else { "rejected" };
        let mut answer = Map::new();
        answer.insert("outcome".into(), json!(outcome));
        if let Some(reason) = reason {
            answer.insert("reason".into(), json!(reason));
        }
        answer.insert("rule".into(), json!(deliberation.rule));
        answer.insert("tally".into(), json!({"yea": yea, "nay": nay}));
        answer.insert("vetoes".into(), json!(vetoes));
        Value::Object(answer)
    };
    match Rule::parse(&deliberation.rule) {
        Some(Rule::AnyOne) => answer(yea >= 1, json!(yea), json!(nay), &vetoes, None),
        Some(Rule::All) => {
            let all = yea == deliberation.participants.len() as u64 && nay == 0;
            answer(all, json!(yea), json!(nay), &vetoes, None)
        }
        Some(Rule::Quorum(n)) if yea + nay < n => {
            answer(false, json!(yea), json!(nay), &[], Some("quorum not met"))
        }
        Some(Rule::Quorum(_)) => answer(yea > nay, json!(yea), json!(nay), &[], None),
        Some(Rule::Weighted { veto: true, .. }) if !vetoes.is_empty() => {
            answer(false, json!(0), json!(0), &vetoes, None)
        }
        Some(Rule::Weighted { threshold, .. }) => {
            let (yea, nay) = (weigh("yea"), weigh("nay"));
            answer(yea >= threshold, plain(yea), plain(nay), &[], None)
        }
        // Opening has read the rule already.
        None => answer(false, json!(yea), json!(nay), &[], Some("the rule cannot be read")),
    }
}

/// A sum as JSON: whole where it is whole.
fn plain(sum: f64) -> Value {
    if sum.fract() == 0.0 && sum.abs() < 9e15 {
        return json!(sum as i64);
    }
    Number::from_f64(sum).map_or(Value::Null, Value::Number)
}

/// A deliberation's deadline has come: it closes with the votes it has, on the log.
pub(crate) fn lapse(txn: &mut Txn<'_>, id: &str) -> Result<bool, Stop> {
    let Some(mut deliberation) = txn.get::<Deliberation>(id)? else { return Ok(false) };
    if deliberation.outcome.is_some() || deliberation.takes_votes(txn.now()) {
        return Ok(false);
    }
    let outcome = settle(txn, &mut deliberation);
    let mut params = Map::new();
    params.insert("kind".into(), json!("deliberation_lapsed"));
    params.insert("deliberation_id".into(), json!(deliberation.id));
    params.insert("outcome".into(), outcome["outcome"].clone());
    let mut to = vec![deliberation.opener.clone()];
    to.extend(deliberation.participants.iter().filter(|uri| **uri != deliberation.opener).cloned());
    params.insert("to".into(), json!(to));
    if let Some(task) = &deliberation.task_id {
        params.insert("task_id".into(), json!(task));
    }
    txn.own_entry(params);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::time::Timestamp;
    use proptest::prelude::*;

    fn deliberation(rule: &str, votes: &[(&str, &str, bool)]) -> Deliberation {
        Deliberation {
            id: "dlb_1".into(),
            task_id: None,
            opener: "human:o".into(),
            participants: ["human:a", "human:b", "human:c"].map(str::to_owned).to_vec(),
            rule: rule.into(),
            question: Value::Null,
            weights: Map::from_iter([("human:a".to_owned(), json!(3))]),
            veto: Map::from_iter([("human:c".to_owned(), json!(true))]),
            deadline: None,
            due: None,
            opened_at: Timestamp::from_millis(0),
            votes: votes
                .iter()
                .map(|(voter, vote, veto_invoked)| Vote {
                    ts: Timestamp::from_millis(0),
                    voter: (*voter).to_owned(),
                    vote: (*vote).to_owned(),
                    veto_invoked: *veto_invoked,
                    weight: Value::Null,
                    comment: Value::Null,
                })
                .collect(),
            comments: Vec::new(),
            outcome: None,
        }
    }

    fn outcome(rule: &str, votes: &[(&str, &str, bool)]) -> String {
        count(&deliberation(rule, votes))["outcome"].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn each_rule_counts_as_it_says() {
        let (a, b, c) = (("human:a", "yea", false), ("human:b", "nay", false), ("human:c", "yea", false));
        assert_eq!(outcome("any_one_approves", &[b]), "rejected");
        assert_eq!(outcome("any_one_approves", &[b, a]), "approved");
        assert_eq!(outcome("all_approve", &[a, c]), "rejected");
        assert_eq!(outcome("all_approve", &[a, ("human:b", "yea", false), c]), "approved");
        assert_eq!(outcome("quorum:3", &[a, c]), "rejected");
        assert_eq!(count(&deliberation("quorum:3", &[a, c]))["reason"], "quorum not met");
        assert_eq!(outcome("quorum:2", &[a, b, c]), "approved");
        assert_eq!(outcome("weighted_vote:3", &[a, b]), "approved");
        assert_eq!(outcome("weighted_vote:3.5", &[a, b]), "rejected");
        assert_eq!(count(&deliberation("weighted_vote:3", &[a, b]))["tally"], json!({"yea": 3, "nay": 1}));
    }

    #[test]
    fn a_veto_counts_only_from_who_holds_it_and_only_under_its_rule() {
        let (a, b) = (("human:a", "yea", false), ("human:b", "yea", true));
        let c = ("human:c", "nay", true);
        assert_eq!(outcome("weighted_vote_with_veto:1", &[a, b]), "approved");
        assert_eq!(outcome("weighted_vote_with_veto:1", &[a, c]), "rejected");
        assert_eq!(outcome("weighted_vote:1", &[a, c]), "approved");
    }

    #[test]
    fn a_rule_that_cannot_be_met_or_read_is_none() {
        for rule in [
            "quorum:0",
            "quorum:",
            "quorum:abc",
            "quorum:-1",
            "majority",
            "weighted_vote:x",
            "weighted_vote:inf",
        ] {
            assert_eq!(Rule::parse(rule), None, "{rule}");
        }
    }

    proptest! {
        #[test]
        fn counting_never_panics_and_always_decides(rule in ".{0,24}", n in 0usize..4) {
            let votes = [("human:a", "yea", false), ("human:b", "nay", true), ("human:c", "abstain", true)];
            let answer = count(&deliberation(&rule, &votes[..n.min(3)]));
            prop_assert!(answer["outcome"] == "approved" || answer["outcome"] == "rejected");
        }
    }
}
