//! Plays whole runs in one thread: four drivers, one trace, a model that answers by dice, kills at any step. Whatever the
//! dice say, the run ends, no tool is run twice under one id, and the trace's own rules took every event.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use choir_ledger::event::{EventType, Role};
use choir_ledger::trace::{Policy, PolicyProfile, Step, Trace};
use choir_ledger_roles::board::Board;
use choir_ledger_roles::book::{BookError, entry, is_read};
use choir_ledger_roles::claims::{CLAIM, CONCEDE, CONCLUDE, RESOLVE};
use choir_ledger_roles::critic::{REVIEW, REVIEW_CLAIMS};
use choir_ledger_roles::draft::Draft;
use choir_ledger_roles::driver::{Action, Driver, Input, NotAppended, Report};
use choir_ledger_roles::duty::Question;
use choir_ledger_roles::planner::PROPOSE;
use choir_ledger_roles::task::Task;
use choir_messages::id::InvocationId;
use choir_messages::json::Json;
use choir_messages::model::{ModelAnswer, Turn, Usage};
use choir_messages::tool::{ToolCall, ToolOutcome, ToolStatus};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{BEGAN, MemoryBook, Shelf, tools};

/// How the model and the world behave, in per cent.
#[derive(Debug, Clone)]
pub(crate) struct Dice {
    pub(crate) seed: u64,
    pub(crate) bad_answer: u64,
    pub(crate) model_fails: u64,
    pub(crate) rejects: u64,
    pub(crate) challenges: u64,
    pub(crate) concedes: u64,
    pub(crate) tool_fails: u64,
    pub(crate) kills: u64,
}

impl Dice {
    /// Nothing goes wrong.
    pub(crate) const GOOD: Self = Self {
        seed: 1,
        bad_answer: 0,
        model_fails: 0,
        rejects: 0,
        challenges: 0,
        concedes: 0,
        tool_fails: 0,
        kills: 0,
    };
}

/// A model that answers by dice.
pub(crate) struct Mind {
    dice: Dice,
    state: u64,
}

pub(crate) struct Play {
    mind: Mind,
    pub(crate) shelf: Arc<Mutex<Shelf>>,
    book: MemoryBook,
    pub(crate) board: Arc<Board>,
    drivers: Vec<(Role, Driver)>,
    /// What comes back to a driver, and to which life of it.
    coming: VecDeque<(usize, u32, Input)>,
    lives: Vec<u32>,
    now: u64,
    pub(crate) ended: Option<(String, bool)>,
    pub(crate) ran: BTreeMap<String, u32>,
    pub(crate) kills: usize,
}

pub(crate) const ROLES: [Role; 4] = [Role::Planner, Role::Critic, Role::Executor, Role::Auditor];

impl Mind {
    pub(crate) fn new(dice: Dice) -> Self {
        let state = dice.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self { dice, state }
    }

    fn roll(&mut self, of: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % of.max(1)
    }

    fn chance(&mut self, per_cent: u64) -> bool {
        self.roll(100) < per_cent
    }

    pub(crate) fn answer(&mut self, question: &Question) -> ModelAnswer {
        if self.chance(self.dice.bad_answer) {
            let offered = question.tools[0].name.clone();
            return match self.roll(3) {
                0 => said(Some("I would rather not."), &[]),
                1 => said(None, &[(&offered, json!({ "nonsense": true }))]),
                _ => said(None, &[("choir.fs.delete", json!({}))]),
            };
        }
        let offers = |name: &str| question.tools.iter().any(|tool| tool.name == name);
        let words = question.turns.iter().rev().find_map(|turn| match turn {
            Turn::User(text) => Some(text.clone()),
            _ => None,
        });
        let words = words.unwrap_or_default();
        if offers(PROPOSE) {
            let tool =
                ["choir.fs.read", "choir.fs.write", "choir.exec"][usize::try_from(self.roll(3)).unwrap()];
            let one = json!({ "objective": "do it", "assumptions": ["a file"], "required_tools": [tool],
                "expected_evidence": ["its output"] });
            let several = words.contains("Propose how to do the task") && self.roll(2) == 0;
            let proposals = if several { vec![one.clone(), one] } else { vec![one] };
            return said(None, &[(PROPOSE, json!({ "proposals": proposals }))]);
        }
        if offers(REVIEW) {
            let decision = match self.roll(100) {
                n if n < self.dice.rejects => "reject",
                n if n % 5 == 0 => "approve_with_conditions",
                _ => "approve",
            };
            let review =
                json!({ "decision": decision, "risk": "low", "rationale": "as it seems", "conditions": [] });
            return said(None, &[(REVIEW, review)]);
        }
        if offers(REVIEW_CLAIMS) {
            let mut reviews = Vec::new();
            for part in words.split("<claim id=\"").skip(1) {
                let id = part.split('"').next().unwrap();
                let decision = if self.chance(self.dice.challenges) { "challenge" } else { "accept" };
                reviews.push(json!({ "claim_id": id, "decision": decision, "reason": "it is thin" }));
            }
            return said(None, &[(REVIEW_CLAIMS, json!({ "reviews": reviews }))]);
        }
        if offers(CONCLUDE) {
            return said(None, &[(CONCLUDE, json!({ "verdict_text": "it is done" }))]);
        }
        self.execute(question)
    }

    fn execute(&mut self, question: &Question) -> ModelAnswer {
        let results: Vec<String> = question
            .turns
            .iter()
            .filter_map(|turn| match turn {
                Turn::ToolResult { content, .. } => {
                    serde_json::from_str::<Value>(content).ok()?["execution"].as_str().map(str::to_owned)
                }
                _ => None,
            })
            .collect();
        let tool =
            question.tools.iter().find(|tool| tool.name.starts_with("choir.fs") || tool.name == "choir.exec");
        let settling = question.tools.iter().any(|tool| tool.name == RESOLVE);
        if settling && self.chance(self.dice.concedes) {
            return said(None, &[(CONCEDE, json!({ "reason": "fair" }))]);
        }
        if let Some(tool) = tool
            && (results.is_empty()
                || !(settling || question.tools.iter().any(|t| t.name == CLAIM))
                || self.roll(3) == 0)
        {
            return said(Some("to see"), &[(&tool.name, json!({ "path": format!("f{}", self.roll(3)) }))]);
        }
        let one = json!({ "text": "it is so", "confidence": 0.9, "evidence": results });
        if settling {
            said(None, &[(RESOLVE, one)])
        } else {
            said(None, &[(CLAIM, json!({ "claims": [one] }))])
        }
    }
}

impl Play {
    pub(crate) fn new(task: &Task, dice: Dice) -> Self {
        let shelf = Arc::new(Mutex::new(Shelf::default()));
        let mut book = MemoryBook::open(&shelf);
        let draft = Draft::new(EventType::SessionInitialized, task.payload("assistant"));
        book.append_at(Role::Planner, &[draft], BEGAN).map_err(|(_, error)| error).unwrap();
        let mut play = Self {
            mind: Mind::new(dice),
            shelf,
            book,
            board: Arc::default(),
            drivers: ROLES.iter().map(|role| (*role, Driver::new(*role, tools()))).collect(),
            coming: VecDeque::new(),
            lives: vec![0; 4],
            now: BEGAN,
            ended: None,
            ran: BTreeMap::new(),
            kills: 0,
        };
        play.refold();
        play
    }

    fn chance_of(&mut self, of: fn(&Dice) -> u64) -> bool {
        let per_cent = of(&self.mind.dice);
        self.mind.chance(per_cent)
    }

    fn refold(&mut self) {
        let mut board = Board::default();
        let shelf = self.shelf.lock().unwrap();
        for event in &shelf.events {
            if is_read(event.event_type()) {
                for artefact in event.artifacts() {
                    let text = String::from_utf8(shelf.blobs[&artefact.artifact_hash].clone()).unwrap();
                    board.texts.insert(artefact.artifact_hash.to_string(), text.into());
                }
            }
            board.apply(Arc::new(entry(event)));
        }
        drop(shelf);
        self.board = Arc::new(board);
    }

    /// Plays until the run is over. The number of steps is bounded: a run that does not end is a deadlock.
    pub(crate) fn play_on(&mut self) {
        for _ in 0..20_000 {
            if self.ended.is_some() || self.board.verified.is_some() {
                return;
            }
            self.now += 50;
            if self.chance_of(|dice| dice.kills) {
                let who = usize::try_from(self.mind.roll(4)).unwrap();
                self.lives[who] += 1;
                self.kills += 1;
                self.drivers[who].1 = Driver::new(ROLES[who], tools());
            }
            let who = usize::try_from(self.mind.roll(4)).unwrap();
            match self.coming.pop_front() {
                Some((to, life, input)) if self.lives[to] == life => self.step(to, input),
                _ => self.step(who, Input::Look),
            }
        }
        panic!(
            "the run does not end: {:#?}",
            self.board.entries.iter().map(|e| (e.kind, &e.payload)).collect::<Vec<_>>()
        );
    }

    fn step(&mut self, who: usize, input: Input) {
        let board = Arc::clone(&self.board);
        let counter = std::cell::Cell::new(u128::from(self.mind.roll(u64::MAX)));
        let fresh = || {
            counter.set(counter.get() + 1);
            InvocationId::from_bits(counter.get() | (1 << 80)).to_string()
        };
        let actions = self.drivers[who].1.step(input, &board, self.now, &fresh);
        let life = self.lives[who];
        for action in actions {
            if let Some(input) = self.carry_out(who, action) {
                self.coming.push_back((who, life, input));
            }
        }
    }

    fn carry_out(&mut self, who: usize, action: Action) -> Option<Input> {
        Some(match action {
            Action::Ask(key, question) => {
                let answer = if self.chance_of(|dice| dice.model_fails) {
                    Err("the endpoint is away".to_owned())
                } else {
                    Ok(self.mind.answer(&question))
                };
                Input::Answered(key, answer)
            }
            Action::Pause(key, pause) => {
                self.now += u64::try_from(pause.as_millis()).unwrap();
                Input::Paused(key)
            }
            Action::Place(key) => Input::Placed(key, Ok(("01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(), 7))),
            Action::Run { key, execution, .. } => {
                *self.ran.entry(execution).or_default() += 1;
                let (status, output) = if self.chance_of(|dice| dice.tool_fails) {
                    (ToolStatus::OutcomeUnknown, json!({ "error": "it broke" }))
                } else {
                    (ToolStatus::Success, json!({ "content": "what was found" }))
                };
                Input::Ran(key, ToolOutcome { status, output: Json(output), cut_bytes: 0 })
            }
            Action::Verify(key) => {
                let report = Report {
                    status: "pass".to_owned(),
                    id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
                    json: "{}".to_owned(),
                    text: "all is well".to_owned(),
                };
                Input::Verified(key, Ok(report))
            }
            Action::Keep(_) | Action::Drop(_) => return None,
            Action::Submit { key, drafts, seen } => {
                let result = if seen != self.board.count {
                    Err(NotAppended::Behind)
                } else {
                    let result = self.book.append_at(ROLES[who], &drafts, self.now);
                    self.refold();
                    match result {
                        Ok(_) => Ok(()),
                        Err((_, BookError::Refused(why))) => Err(NotAppended::Refused(why)),
                        Err((_, BookError::Failed(why) | BookError::NoSigner(why))) => panic!("{why}"),
                    }
                };
                Input::Submitted(key, result)
            }
            Action::Fail { reason, refused } => {
                self.ended = Some((reason, refused));
                return None;
            }
        })
    }

    /// The kinds of the trace's events, in order.
    pub(crate) fn kinds(&self) -> Vec<EventType> {
        self.board.entries.iter().map(|entry| entry.kind).collect()
    }
}

fn said(text: Option<&str>, calls: &[(&str, Value)]) -> ModelAnswer {
    let call = |(i, (tool, arguments)): (usize, &(&str, Value))| ToolCall {
        provider_id: format!("p{i}"),
        tool: (*tool).to_owned(),
        arguments: arguments.to_string(),
    };
    ModelAnswer {
        text: text.map(str::to_owned),
        calls: calls.iter().enumerate().map(call).collect(),
        usage: Usage::default(),
        model: "dice".to_owned(),
    }
}

fn dice() -> impl Strategy<Value = Dice> {
    let odds = || prop_oneof![3 => Just(0u64), 2 => 1u64..30, 1 => 30u64..100];
    (
        any::<u64>(),
        odds(),
        prop_oneof![4 => Just(0u64), 1 => 1u64..40],
        odds(),
        odds(),
        odds(),
        odds(),
        0u64..20,
    )
        .prop_map(|(seed, bad_answer, model_fails, rejects, challenges, concedes, tool_fails, kills)| {
            Dice { seed, bad_answer, model_fails, rejects, challenges, concedes, tool_fails, kills }
        })
}

fn profile() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("default"), Just("strict"), Just("lenient")]
}

/// A task file's text.
pub(crate) fn task(profile: &str, sensitivity: &str, tool_calls: u32) -> Task {
    Task::read(
        &json!({ "task_id": "t", "objective": "find out", "input_artifacts": [], "constraints": [],
            "policy_profile": profile, "requested_roles": ["planner", "executor", "critic", "auditor"],
            "max_tool_calls": tool_calls, "sensitivity_level": sensitivity, "time_budget_seconds": 600 })
        .to_string(),
    )
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_models_tools_and_kills_do_a_run_ends_and_its_trace_is_legal(
        dice in dice(), profile in profile(), sensitivity in prop_oneof![Just("low"), Just("standard"), Just("restricted")],
        tool_calls in 1u32..8,
    ) {
        let mut play = Play::new(&task(profile, sensitivity, tool_calls), dice);
        play.play_on();
        let shelf = play.shelf.lock().unwrap();
        let steps = shelf.events.iter().map(|event| Step::of(event).unwrap());
        let trace = Trace::replay(Policy::protocol(PolicyProfile::Default), steps).unwrap();
        prop_assert_eq!(trace.standing().verified.is_some(), play.ended.is_none());
        if play.kills == 0 {
            prop_assert!(play.ran.values().all(|times| *times == 1), "each execution is run once: {:?}", play.ran);
        }
        prop_assert!(trace.intents().len() <= tool_calls as usize);
    }
}
