//! The conversation: what each message makes the model do, and which effects that has.

use choir_scripted_model::{Condition, Fault, FaultRule, Step, When};
use serde_json::{Value, json};

use super::folder;
use crate::seed::Seed;

/// Files that hold the effects of a conversation, one line each: of commands, and of writes.
pub(crate) const RAN: &str = "ran.txt";
pub(crate) const WROTE: &str = "wrote.txt";

/// Prefix of files that are an effect each.
pub(crate) const OWN: &str = "own-";

/// The first line of both, there from the beginning.
pub(crate) const HEAD: &str = "head";

/// Most steps with calls of one message.
const STEPS: u64 = 4;

/// Most calls of one answer.
const CALLS: u64 = 3;

/// One message and everything about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// By which the script recognises it: `s<seed>m<number>`.
    pub tag: String,
    /// What the user writes.
    pub text: String,
    /// What the model says to it.
    pub steps: Vec<Step>,
    /// Lines that its calls may leave in the workspace, each at most once and in no other conversation.
    pub effects: Vec<String>,
    /// What goes wrong at the model.
    pub fault: Option<ModelFault>,
}

/// A fault at one step of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFault {
    /// At which step of the turn.
    pub step: usize,
    /// What happens.
    pub fault: Fault,
    /// How often.
    pub times: u64,
}

impl ModelFault {
    pub(super) fn rule(&self, tag: &str) -> FaultRule {
        let when = When::Message { contains: format!("[{tag}]"), step: Some(self.step) };
        FaultRule { when, fault: self.fault.clone(), times: Some(self.times) }
    }

    fn draw(steps: usize, draw: &mut Seed) -> Option<Self> {
        if !draw.once_in(3) {
            return None;
        }
        let step = usize::try_from(draw.below(steps as u64)).unwrap_or(0);
        let limited = Fault::RateLimited { retry_after: Some("0".into()) };
        let (fault, times) = match draw.below(11) {
            0 | 1 => (Fault::Slow { millis: 50 + draw.below(250) }, 1),
            2 | 3 => (limited, 1),
            4 => (limited, 2),
            5 => (Fault::Status { status: 500 }, 1),
            6 => (Fault::CutBody, 1),
            7 => (Fault::MalformedJson, 1),
            8 => (Fault::Empty, 1),
            9 => (Fault::InvalidArguments, 1),
            _ => (Fault::UnknownTool, 1),
        };
        Some(Self { step, fault, times })
    }
}

/// Makes the calls of one message.
struct Maker<'a> {
    folder: String,
    prefix: String,
    effects: Vec<String>,
    draw: &'a mut Seed,
}

impl Message {
    pub(super) fn draw(seed: u64, number: u64, draw: &mut Seed) -> Self {
        let tag = format!("s{seed}m{number}");
        let mut maker =
            Maker { folder: folder(seed), prefix: format!("e{seed}.{number}"), effects: Vec::new(), draw };
        let with_calls = 1 + maker.draw.below(STEPS);
        let mut steps: Vec<Step> = (0..with_calls).map(|_| maker.step()).collect();
        steps.push(Step::text(format!("done {tag}")));
        let effects = maker.effects;
        let fault = ModelFault::draw(steps.len(), draw);
        Self { text: format!("Please do the work of [{tag}]."), tag, steps, effects, fault }
    }
}

impl Maker<'_> {
    fn step(&mut self) -> Step {
        if self.draw.once_in(3) {
            return self.careful();
        }
        let calls = 1 + self.draw.below(CALLS);
        Step::calls((0..calls).map(|_| self.call()))
    }

    fn tag(&mut self) -> String {
        let tag = format!("{}.{}.", self.prefix, self.effects.len());
        self.effects.push(tag.clone());
        tag
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// A command that cannot be recognised when it is repeated, by a model that looks before it repeats it.
    fn careful(&mut self) -> Step {
        let tag = self.tag();
        let command = self.command(&tag);
        let run = || Step::call("choir.exec", json!({ "command": command }));
        let path = self.path(RAN);
        let look = || Step::call("choir.fs.read", json!({ "path": path }));
        let lacking = || Condition::ResultLacks(tag.clone());
        let failed = || Condition::StatusIs("error".into());
        // A look that fails shows nothing, least of all that the line is missing.
        let again = look().branch(failed(), []).branch(lacking(), [run()]);
        run().on_outcome_unknown([look().branch(failed(), [again]).branch(lacking(), [run()])])
    }

    /// A command that leaves a line, quick or slow before or after it.
    fn command(&mut self, tag: &str) -> String {
        let line = format!("echo '{tag}' >> {}", self.path(RAN));
        match self.draw.below(4) {
            0 => format!("sleep 0.1; {line}"),
            1 => format!("{line}; sleep 0.1"),
            _ => line,
        }
    }

    fn call(&mut self) -> (&'static str, Value) {
        match self.draw.below(12) {
            0..=2 => {
                let tag = self.tag();
                let command = self.command(&tag);
                ("choir.exec", json!({ "command": command }))
            }
            3 | 4 => {
                let content = format!("{}\n", self.tag());
                ("choir.fs.write", json!({ "path": self.path(WROTE), "mode": "append", "content": content }))
            }
            5 => {
                let tag = self.tag();
                let path = self.path(WROTE);
                ("choir.fs.write", json!({ "path": path, "mode": "insert", "line": 1, "content": tag }))
            }
            6 => {
                let tag = self.tag();
                let path = self.path(&format!("{OWN}{tag}txt"));
                ("choir.fs.write", json!({ "path": path, "content": format!("{tag}\n") }))
            }
            7 => ("choir.fs.read", json!({ "path": self.path(WROTE) })),
            8 => ("choir.fs.search", json!({ "pattern": HEAD, "path": self.folder })),
            9 => ("choir.fs.read", json!({ "path": 7 })),
            10 => ("choir.no.such", json!({ "path": "../../etc/passwd" })),
            _ => ("choir.exec", json!({ "command": "head -c 300000 /dev/zero | tr '\\0' x" })),
        }
    }
}
