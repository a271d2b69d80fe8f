//! From a seed to a run: what is said, what the model does, what goes wrong there, and which wound is dealt at which
//! step. Plain data; the same seed always gives the same plan.

mod talk;
mod wounds;

pub(crate) use talk::{HEAD, OWN, RAN, WROTE};
pub use talk::{Message, ModelFault};
pub use wounds::{AGENT_PATHS, At, Target, Wound, Wounding};

use choir_scripted_model::{FaultRule, Script};

use crate::seed::Seed;

/// Most messages of one conversation.
const MESSAGES: u64 = 4;

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Where it came from.
    pub seed: u64,
    /// The conversation, in order.
    pub messages: Vec<Message>,
    /// Whether all messages are sent at once, or each after the answer to the one before.
    pub together: bool,
    /// What is wounded, and when.
    pub wounds: Vec<Wounding>,
    /// Whether it is one of [`Plan::long`].
    pub long: bool,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut draw = Seed::new(seed);
        let count = 2 + draw.below(MESSAGES - 1);
        let messages: Vec<Message> =
            (0..count).map(|number| Message::draw(seed, number, &mut draw)).collect();
        let together = draw.once_in(3);
        let wounds = wounds::draw(&messages, &mut draw);
        Self { seed, messages, together, wounds, long: false }
    }

    /// The same conversation with one wound: a process is frozen for longer than the deadlines inside choir-agent and
    /// choird, though not for longer than the usual crash threshold. Everything that was waited for comes, but late.
    #[must_use]
    pub fn long(seed: u64) -> Self {
        let plan = Self::of(seed);
        let mut draw = Seed::new(!seed);
        let wounds = vec![wounds::long(seed, &plan.messages, &mut draw)];
        Self { wounds, long: true, ..plan }
    }

    /// What the model does, its faults included.
    #[must_use]
    pub fn script(&self) -> Script {
        let mut script = Script::default();
        // Faults of a request by its number come first: a held request is held whatever else it would meet.
        for wounding in &self.wounds {
            if let At::Request(number) = wounding.at {
                let when = choir_scripted_model::When::Request(number);
                script = script.fault(FaultRule::once(when, choir_scripted_model::Fault::Hold));
            }
        }
        for message in &self.messages {
            script =
                script.rule(choir_scripted_model::Match::Tag(message.tag.clone()), message.steps.clone());
            if let Some(fault) = &message.fault {
                script = script.fault(fault.rule(&message.tag));
            }
        }
        script
    }

    /// The folder of the workspace in which this conversation happens.
    #[must_use]
    pub fn folder(&self) -> String {
        folder(self.seed)
    }

    /// Every effect there may be.
    pub fn effects(&self) -> impl Iterator<Item = &String> {
        self.messages.iter().flat_map(|message| &message.effects)
    }
}

/// The folder of a seed's conversation.
fn folder(seed: u64) -> String {
    format!("s{seed}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_always_gives_the_same_plan_and_others_give_others() {
        let plans: Vec<Plan> = (0..50).map(Plan::of).collect();
        for (seed, plan) in (0..).zip(&plans) {
            assert_eq!(&Plan::of(seed), plan);
            assert!((2..=4).contains(&plan.messages.len()) && !plan.wounds.is_empty(), "{plan:?}");
            plan.script().check().unwrap();
        }
        assert!(plans.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn no_tag_is_part_of_another() {
        let tags: Vec<String> =
            (0..30).flat_map(|seed| Plan::of(seed).effects().cloned().collect::<Vec<_>>()).collect();
        assert_eq!(tags.iter().collect::<BTreeSet<_>>().len(), tags.len());
        for tag in &tags {
            assert_eq!(tags.iter().filter(|other| other.contains(tag.as_str())).count(), 1, "{tag}");
        }
    }

    #[test]
    fn two_hundred_seeds_draw_every_wound_at_every_kind_of_step() {
        let mut wounds = BTreeSet::new();
        let mut steps = BTreeSet::new();
        for seed in 0..200 {
            for Wounding { at, wound } in Plan::of(seed).wounds {
                wounds.insert(wound.kind());
                steps.insert(at.kind());
            }
        }
        assert_eq!(wounds.len(), Wound::KINDS.len(), "{wounds:?}");
        assert_eq!(steps.len(), At::KINDS.len(), "{steps:?}");
    }
}
