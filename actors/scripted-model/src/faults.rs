//! Faults on demand: what a provider can do to a client, and when.

use serde::{Deserialize, Serialize};

use choir_messages::chain::Digest;

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Status 429, with this Retry-After if any.
    RateLimited {
        /// The header's value: seconds or an HTTP date.
        retry_after: Option<String>,
    },
    /// An error with this status.
    Status {
        /// From 300 to 599.
        status: u16,
    },
    /// The answer, late.
    Slow {
        /// Milliseconds.
        millis: u64,
    },
    /// The answer, when the controller releases it: the call stays open.
    Hold,
    /// No answer, ever.
    NeverAnswers,
    /// Half an answer, then the connection is cut.
    CutBody,
    /// An answer that is no JSON.
    MalformedJson,
    /// JSON that is no answer.
    WrongShape,
    /// An answer with neither text nor calls.
    Empty,
    /// A tool call whose arguments are no JSON.
    InvalidArguments,
    /// A call of a tool that does not exist.
    UnknownTool,
    /// A text of this size in a well-formed answer.
    HugeText {
        /// Bytes, at most [`crate::limits::HUGE_BYTES`].
        bytes: usize,
    },
    /// A body of this size, made while it is sent.
    HugeBody {
        /// Bytes, at most [`crate::limits::HUGE_BYTES`].
        bytes: usize,
    },
    /// The provider's filter.
    ContentFilter,
}

/// When it goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At the request with this number in the journal, from 1.
    Request(u64),
    /// At any request for a message that contains this text, at this step of its turn or at any.
    Message {
        /// Text of the message.
        contains: String,
        /// Step from 0.
        step: Option<usize>,
    },
    /// At any request.
    Always,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// When.
    pub when: When,
    /// What.
    pub fault: Fault,
    /// How often; absent for every time.
    pub times: Option<u64>,
}

impl FaultRule {
    /// A fault that happens once.
    #[must_use]
    pub const fn once(when: When, fault: Fault) -> Self {
        Self { when, fault, times: Some(1) }
    }

    /// A fault that happens every time.
    #[must_use]
    pub const fn always(when: When, fault: Fault) -> Self {
        Self { when, fault, times: None }
    }
}

/// Faults drawn from a seed: the same seed gives the same faults at the same request numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeededFaults {
    /// The seed.
    pub seed: u64,
    /// Requests of a thousand that go wrong.
    pub per_mille: u16,
    /// What can go wrong.
    pub faults: Vec<Fault>,
}

impl SeededFaults {
    /// The fault of one request.
    #[must_use]
    pub fn draw(&self, request: u64) -> Option<&Fault> {
        let digest = Digest::of(format!("{}:{request}", self.seed).as_bytes());
        let (chance, choice) = digest.bytes().split_at(16);
        if number(chance) % 1000 >= u64::from(self.per_mille) {
            return None;
        }
        let faults = u64::try_from(self.faults.len()).ok().filter(|&count| count > 0)?;
        self.faults.get(usize::try_from(number(choice) % faults).ok()?)
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The faults still to come.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) rules: Vec<FaultRule>,
    pub(crate) seeded: Option<SeededFaults>,
}

impl Faults {
    /// The fault of this request, used up: rules in order, then the seed.
    pub(crate) fn take(&mut self, request: u64, message: &str, step: usize) -> Option<Fault> {
        let applies = |rule: &FaultRule| {
            rule.times != Some(0)
                && match &rule.when {
                    When::Request(number) => *number == request,
                    When::Message { contains, step: at } => {
                        message.contains(contains) && at.is_none_or(|at| at == step)
                    }
                    When::Always => true,
                }
        };
        if let Some(rule) = self.rules.iter_mut().find(|rule| applies(rule)) {
            rule.times = rule.times.map(|times| times - 1);
            return Some(rule.fault.clone());
        }
        self.seeded.as_ref()?.draw(request).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_used_up_and_the_next_takes_over() {
        let at = When::Message { contains: "[a]".into(), step: Some(1) };
        let mut faults = Faults {
            rules: vec![
                FaultRule::once(at.clone(), Fault::Empty),
                FaultRule { when: at, fault: Fault::Hold, times: Some(2) },
            ],
            seeded: None,
        };
        assert_eq!(faults.take(1, "[a]", 0), None);
        assert_eq!(faults.take(2, "[b]", 1), None);
        let drawn: Vec<_> = (3..7).map(|request| faults.take(request, "go [a]", 1)).collect();
        assert_eq!(drawn, [Some(Fault::Empty), Some(Fault::Hold), Some(Fault::Hold), None]);
    }

    #[test]
    fn a_seed_draws_the_same_faults_again_about_as_often_as_asked() {
        let faults = SeededFaults { seed: 7, per_mille: 300, faults: vec![Fault::Empty, Fault::CutBody] };
        let draw = |seeded: &SeededFaults| (0..1000).map(|n| seeded.draw(n).cloned()).collect::<Vec<_>>();
        let drawn = draw(&faults);
        assert_eq!(drawn, draw(&faults));
        assert_ne!(drawn, draw(&SeededFaults { seed: 8, ..faults.clone() }));
        let count = drawn.iter().flatten().count();
        assert!((200..400).contains(&count), "{count}");
        assert!(faults.faults.iter().all(|fault| drawn.iter().flatten().any(|drawn| drawn == fault)));
        assert_eq!(SeededFaults { faults: Vec::new(), ..faults }.draw(1), None);
    }
}
