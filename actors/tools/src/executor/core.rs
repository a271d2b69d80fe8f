//! One running call as a state machine: wait until the commit is durable, run, answer once (`choir §8.9`, DESIGN §5).

use choir_messages::event::Revision;
use choir_messages::tool::{ToolOutcome, ToolStatus};

/// What happens to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It shall run.
    Run,
    /// The host has its commit.
    Durable,
    /// The host does not have its commit in time, or nobody can say.
    NotDurable,
    /// Its tool has ended.
    Finished(ToolOutcome),
    /// It shall end.
    Cancel,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Wait for this revision to be durable; answer with [`Event::Durable`] or [`Event::NotDurable`].
    AwaitDurable(Revision),
    /// Run the tool; answer with [`Event::Finished`].
    Start,
    /// Stop the tool; it still answers with [`Event::Finished`].
    Interrupt,
    /// Give the outcome to whoever asked, and end.
    Answer(ToolOutcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Waiting,
    Running,
    Answered,
}

/// The call.
#[derive(Debug)]
pub struct CallCore {
    durable_first: Option<Revision>,
    state: State,
    /// Cancelled before it was told to run.
    cancelled: bool,
}

impl CallCore {
    /// A call that may run once this revision is durable; at once for none.
    #[must_use]
    pub const fn new(durable_first: Option<Revision>) -> Self {
        Self { durable_first, state: State::Idle, cancelled: false }
    }

    /// One step. Events that come too late or too early change nothing.
    pub fn step(&mut self, event: Event) -> Vec<Action> {
        match (self.state, event) {
            (State::Idle, Event::Run) if self.cancelled => self.answer(cancelled()),
            (State::Idle, Event::Run) => match self.durable_first {
                Some(revision) => {
                    self.state = State::Waiting;
                    vec![Action::AwaitDurable(revision)]
                }
                None => self.start(),
            },
            (State::Idle, Event::Cancel) => {
                self.cancelled = true;
                Vec::new()
            }
            (State::Waiting, Event::Durable) => self.start(),
            (State::Waiting, Event::NotDurable) => self.answer(ToolOutcome::says(
                ToolStatus::Error,
                "the call was not run: the host did not confirm its record in time; try again when the link is back",
            )),
            (State::Waiting, Event::Cancel) => self.answer(cancelled()),
            (State::Running, Event::Cancel) => vec![Action::Interrupt],
            (State::Running, Event::Finished(outcome)) => self.answer(outcome),
            (State::Idle | State::Waiting | State::Running | State::Answered, _) => Vec::new(),
        }
    }

    fn start(&mut self) -> Vec<Action> {
        self.state = State::Running;
        vec![Action::Start]
    }

    fn answer(&mut self, outcome: ToolOutcome) -> Vec<Action> {
        self.state = State::Answered;
        vec![Action::Answer(outcome)]
    }
}

fn cancelled() -> ToolOutcome {
    ToolOutcome::says(ToolStatus::Cancelled, "the call was cancelled before it ran")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            Just(Event::Run),
            Just(Event::Durable),
            Just(Event::NotDurable),
            Just(Event::Cancel),
            Just(Event::Finished(ToolOutcome::says(ToolStatus::Success, "done"))),
        ];
        prop::collection::vec(event, 0..12)
    }

    proptest! {
        #[test]
        fn a_call_answers_at_most_once_and_starts_only_after_its_commit_is_durable(
            durable in prop::option::of(1u64..9), events in events(),
        ) {
            let mut core = CallCore::new(durable);
            let (mut answers, mut starts, mut is_durable, mut ran) = (0, 0, durable.is_none(), false);
            for event in events {
                is_durable |= event == Event::Durable && ran;
                ran |= event == Event::Run;
                for action in core.step(event) {
                    prop_assert_eq!(answers, 0, "nothing happens after the answer");
                    match action {
                        Action::Start => {
                            starts += 1;
                            prop_assert!(is_durable && ran);
                        }
                        Action::Answer(_) => answers += 1,
                        Action::AwaitDurable(revision) => prop_assert_eq!(Some(revision), durable),
                        Action::Interrupt => prop_assert_eq!(starts, 1),
                    }
                }
            }
            prop_assert!(answers <= 1 && starts <= 1);
            // Whatever has happened, what is still owed brings the answer.
            if ran && answers == 0 {
                let outcome = ToolOutcome::says(ToolStatus::Success, "done");
                let last: Vec<_> = [Event::Durable, Event::Finished(outcome)]
                    .into_iter().flat_map(|event| core.step(event)).collect();
                prop_assert_eq!(last.iter().filter(|action| matches!(action, Action::Answer(_))).count(), 1);
            }
        }
    }
}
