//! What is wounded, and when: a step is a point that can be observed from outside.

use std::fmt;

use super::talk::Message;
use crate::seed::Seed;

/// Every place of an agent's tree that is always there. A test holds it against the tree that the agent reports.
pub const AGENT_PATHS: [&str; 12] = [
    "choir-agent",
    "choir-agent/uplink",
    "choir-agent/session",
    "choir-agent/session/journal",
    "choir-agent/session/replicator",
    "choir-agent/session/locks",
    "choir-agent/session/arbiter",
    "choir-agent/session/executors",
    "choir-agent/session/models",
    "choir-agent/session/edge",
    "choir-agent/reporter",
    // Stands for whichever call was committed last.
    "choir-agent/session/executors/*",
];

/// Kinds of events that are waited for.
const KINDS: [&str; 7] = [
    "UserMsg",
    "ModelOutput",
    "ToolCallRequested",
    "ToolCallCommitted",
    "ToolResultCommitted",
    "MessageClosed",
    "TurnResumed",
];

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// The model's endpoint got its n-th request, from 1. It is held until the wound is dealt.
    Request(u64),
    /// The n-th event of a kind is durable on the host.
    Durable {
        /// The event's kind.
        kind: &'static str,
        /// Which, from 1.
        nth: u32,
    },
    /// A message is about to be sent; the wound is dealt while it is on its way.
    Sending(usize),
    /// A message is confirmed to its sender.
    Accepted(usize),
    /// The answer to a message reached the client, which confirms it only after the wound.
    Shown(usize),
    /// The client confirmed the answer to a message.
    Delivered(usize),
}

impl At {
    /// The kinds of steps.
    pub const KINDS: [&str; 6] = ["request", "durable", "sending", "accepted", "shown", "delivered"];

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Request(_) => "request",
            Self::Durable { .. } => "durable",
            Self::Sending(_) => "sending",
            Self::Accepted(_) => "accepted",
            Self::Shown(_) => "shown",
            Self::Delivered(_) => "delivered",
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(number) => write!(f, "model request {number} arrived"),
            Self::Durable { kind, nth } => write!(f, "{kind} no. {nth} durable"),
            Self::Sending(message) => write!(f, "message {message} on its way"),
            Self::Accepted(message) => write!(f, "message {message} accepted"),
            Self::Shown(message) => write!(f, "answer to message {message} arrived"),
            Self::Delivered(message) => write!(f, "answer to message {message} confirmed"),
        }
    }
}

/// A process, or a group of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// choir-agent.
    Agent,
    /// choird.
    Choird,
    /// Postgres' postmaster and its children.
    Postgres,
}

/// A wound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wound {
    /// Kill an actor of the agent; one of [`AGENT_PATHS`].
    AgentActor(&'static str),
    /// Kill an actor of choird: the draw chooses among the paths of the live tree.
    HostActor {
        /// Modulo the number of paths.
        draw: u64,
    },
    /// kill -9.
    Kill(Target),
    /// SIGSTOP, then SIGCONT.
    Freeze {
        /// Whom.
        target: Target,
        /// For how long, in milliseconds.
        millis: u64,
    },
    /// SIGSTOP of choir-agent for longer than the crash threshold.
    Stun,
}

impl Wound {
    /// The kinds of wounds.
    pub const KINDS: [&str; 9] = [
        "agent actor",
        "host actor",
        "kill choir-agent",
        "kill choird",
        "kill postgres",
        "freeze choir-agent",
        "freeze choird",
        "freeze postgres",
        "stun choir-agent",
    ];

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::AgentActor(_) => "agent actor",
            Self::HostActor { .. } => "host actor",
            Self::Kill(Target::Agent) => "kill choir-agent",
            Self::Kill(Target::Choird) => "kill choird",
            Self::Kill(Target::Postgres) => "kill postgres",
            Self::Freeze { target: Target::Agent, .. } => "freeze choir-agent",
            Self::Freeze { target: Target::Choird, .. } => "freeze choird",
            Self::Freeze { target: Target::Postgres, .. } => "freeze postgres",
            Self::Stun => "stun choir-agent",
        }
    }

    fn draw(draw: &mut Seed) -> Self {
        let short = |draw: &mut Seed| 20 + draw.below(280);
        match draw.below(100) {
            0..35 => Self::AgentActor(pick(&AGENT_PATHS, draw)),
            35..55 => Self::HostActor { draw: draw.draw() },
            55..70 => Self::Kill(Target::Agent),
            70..79 => Self::Kill(Target::Choird),
            79..87 => Self::Kill(Target::Postgres),
            87..90 => Self::Freeze { target: Target::Agent, millis: short(draw) },
            90..93 => Self::Freeze { target: Target::Choird, millis: short(draw) },
            93..96 => Self::Freeze { target: Target::Postgres, millis: short(draw) },
            _ => Self::Stun,
        }
    }
}

/// A wound and its step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wounding {
    /// When.
    pub at: At,
    /// What.
    pub wound: Wound,
}

fn pick<T: Copy>(all: &[T], draw: &mut Seed) -> T {
    all[usize::try_from(draw.below(all.len() as u64)).unwrap_or(0)]
}

/// How long a long freeze lasts: past the five seconds that neighbours wait for each other, short of the ten after which
/// an agent is taken for crashed by default.
const LONG_MS: u64 = 6500;

/// One long freeze, of each target in turn.
pub(super) fn long(seed: u64, messages: &[Message], draw: &mut Seed) -> Wounding {
    let requests: u64 = messages.iter().map(|message| message.steps.len() as u64).sum();
    let nth = u32::try_from(1 + draw.below(requests)).unwrap_or(1);
    let at = match draw.below(4) {
        0 => At::Request(u64::from(nth)),
        1 => At::Durable { kind: "UserMsg", nth: 1 },
        2 => At::Durable { kind: "ToolCallCommitted", nth },
        _ => At::Durable { kind: "ModelOutput", nth },
    };
    let target = [Target::Agent, Target::Agent, Target::Choird, Target::Postgres];
    let target = target[usize::try_from(seed % 4).unwrap_or(0)];
    Wounding { at, wound: Wound::Freeze { target, millis: LONG_MS } }
}

/// One to three wounds at different steps; or, now and then, so many in one turn that it must be set aside.
pub(super) fn draw(messages: &[Message], draw: &mut Seed) -> Vec<Wounding> {
    let requests: u64 = messages.iter().map(|message| message.steps.len() as u64).sum();
    if draw.once_in(16) {
        let edge = "choir-agent/session/edge";
        return (1..=6)
            .map(|number| {
                let wound =
                    if draw.once_in(2) { Wound::Kill(Target::Agent) } else { Wound::AgentActor(edge) };
                Wounding { at: At::Request(number), wound }
            })
            .collect();
    }
    let mut wounds: Vec<Wounding> = Vec::new();
    for _ in 0..=draw.below(3) {
        let message = usize::try_from(draw.below(messages.len() as u64)).unwrap_or(0);
        let at = match draw.below(100) {
            0..35 => At::Request(1 + draw.below(requests)),
            35..70 => {
                let kind = pick(&KINDS, draw);
                let most = match kind {
                    "UserMsg" | "MessageClosed" => messages.len() as u64,
                    "ModelOutput" => requests,
                    "TurnResumed" => 2,
                    _ => requests + 2,
                };
                At::Durable { kind, nth: u32::try_from(1 + draw.below(most)).unwrap_or(1) }
            }
            70..80 => At::Sending(message),
            80..88 => At::Accepted(message),
            88..95 => At::Shown(message),
            _ => At::Delivered(message),
        };
        let wound = Wound::draw(draw);
        if wounds.iter().all(|other| other.at != at) {
            wounds.push(Wounding { at, wound });
        }
    }
    wounds
}
