use super::*;
use proptest::prelude::*;

fn id(n: u128) -> MessageId {
    MessageId::from_bits(n)
}

fn pending(n: u128) -> Pending {
    Pending { message: id(n), text: format!("m{n}"), age: Duration::ZERO }
}

fn up_with(messages: &[u128]) -> (Pusher, Vec<Action>) {
    let mut pusher = Pusher::new(Duration::from_secs(60));
    assert_eq!(pusher.step(Input::Up, Now::ZERO), [Action::Load]);
    let out = pusher.step(Input::Loaded(messages.iter().map(|n| pending(*n)).collect()), Now::ZERO);
    (pusher, out)
}

fn push(n: u128) -> Action {
    Action::Push { message: id(n), text: format!("m{n}") }
}

fn recorded(n: u128) -> Input {
    Input::Pushed { message: id(n), result: Ok(SignalAck::Recorded { rev: 1 }) }
}

#[test]
fn messages_go_in_order_one_at_a_time() {
    let (mut pusher, out) = up_with(&[1, 2]);
    assert_eq!(out, [push(1)]);
    assert_eq!(pusher.step(recorded(1), Now::ZERO), [push(2)]);
    assert_eq!(pusher.step(recorded(2), Now::ZERO), []);
}

#[test]
fn a_full_queue_keeps_the_message_for_later() {
    let (mut pusher, _) = up_with(&[1, 2]);
    let refused = Ok(SignalAck::Refused(SignalRefused::QueueFull { waiting: 64 }));
    assert_eq!(pusher.step(Input::Pushed { message: id(1), result: refused }, Now::ZERO), []);
    assert_eq!(pusher.step(Input::Tick, limits::QUEUE_FULL_RETRY), [push(1)]);
}

#[test]
fn a_used_up_budget_closes_the_message_with_the_reason() {
    let (mut pusher, _) = up_with(&[1]);
    let refused = Ok(SignalAck::Refused(SignalRefused::Budget { which: "total_session_tokens".into() }));
    let out = pusher.step(Input::Pushed { message: id(1), result: refused }, Now::ZERO);
    assert!(matches!(&out[0], Action::Close { outcome: MessageOutcome::Refused, text, .. }
        if text.contains("total_session_tokens")));
}

#[test]
fn after_a_new_link_what_is_not_durable_is_pushed_again() {
    let (mut pusher, _) = up_with(&[1]);
    pusher.step(recorded(1), Now::ZERO);
    pusher.step(Input::Down, Now::ZERO);
    assert_eq!(pusher.step(Input::Up, Now::ZERO), [Action::Load]);
    assert_eq!(pusher.step(Input::Loaded(vec![pending(1)]), Now::ZERO), [push(1)]);
}

#[test]
fn a_message_that_nobody_was_offered_expires_and_one_that_was_does_not() {
    let old = Pending { age: Duration::from_secs(61), ..pending(1) };
    let mut pusher = Pusher::new(Duration::from_secs(60));
    pusher.step(Input::Changed, Now::ZERO);
    let out = pusher.step(Input::Loaded(vec![old.clone()]), Now::ZERO);
    assert!(matches!(&out[..], [Action::Close { outcome: MessageOutcome::Expired, .. }]));
    let (mut pusher, _) = up_with(&[1]);
    pusher.step(Input::Pushed { message: id(1), result: Err(LinkError::Down) }, Now::ZERO);
    assert_eq!(pusher.step(Input::Loaded(vec![old]), Now::ZERO), []);
}

#[derive(Debug, Clone)]
enum World {
    Arrives,
    Loads(bool),
    Answers(u8),
    Replicates,
    Crashes,
    Passes(u16),
}

fn world() -> impl Strategy<Value = World> {
    prop_oneof![
        3 => Just(World::Arrives),
        6 => prop::bool::weighted(0.9).prop_map(World::Loads),
        6 => any::<u8>().prop_map(World::Answers),
        2 => Just(World::Replicates),
        1 => Just(World::Crashes),
        3 => any::<u16>().prop_map(World::Passes),
    ]
}

/// A store, a link and an agent as simple as they can be: what the agent recorded is lost in a crash unless replicated.
#[derive(Default)]
struct Sim {
    now: Now,
    arrived: u128,
    unrecorded: Vec<u128>,
    agent: Vec<u128>,
    log: Vec<u128>,
    loads: u32,
    pushes: VecDeque<u128>,
}

impl Sim {
    fn act(&mut self, actions: Vec<Action>) -> Result<(), TestCaseError> {
        for action in actions {
            match action {
                Action::Load => self.loads += 1,
                Action::Push { message, .. } => {
                    prop_assert!(self.pushes.is_empty(), "two pushes at once");
                    self.pushes.push_back(message.bits());
                }
                Action::Close { .. } => prop_assert!(false, "nothing here may be closed"),
            }
        }
        prop_assert!(self.loads <= 1, "two loads at once");
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_message_is_recorded_exactly_once_whatever_the_link_does(script in proptest::collection::vec(world(), 0..150)) {
        let mut pusher = Pusher::new(Duration::MAX);
        let mut sim = Sim::default();
        let mut script = script;
        script.push(World::Crashes);
        for _ in 0..200 {
            script.extend([World::Loads(true), World::Answers(0), World::Replicates, World::Passes(u16::MAX)]);
        }
        for step in script {
            let input = match step {
                World::Arrives => {
                    sim.arrived += 1;
                    sim.unrecorded.push(sim.arrived);
                    Some(Input::Changed)
                }
                World::Loads(works) => (sim.loads > 0).then(|| {
                    sim.loads = 0;
                    if works {
                        Input::Loaded(sim.unrecorded.iter().map(|n| pending(*n)).collect())
                    } else {
                        Input::LoadFailed
                    }
                }),
                World::Answers(how) => sim.pushes.pop_front().map(|n| {
                    let mut record = || if !sim.log.contains(&n) && !sim.agent.contains(&n) { sim.agent.push(n) };
                    let result = match how % 5 {
                        0 => { record(); Ok(SignalAck::Recorded { rev: 1 }) }
                        1 => { record(); Err(LinkError::Deadline(Duration::from_secs(1))) }
                        2 => Ok(SignalAck::Refused(SignalRefused::QueueFull { waiting: 64 })),
                        3 => Ok(SignalAck::Refused(SignalRefused::NotReady)),
                        _ => Err(LinkError::Malformed),
                    };
                    Input::Pushed { message: id(n), result }
                }),
                World::Replicates => {
                    sim.log.append(&mut sim.agent);
                    sim.unrecorded.retain(|n| !sim.log.contains(n));
                    Some(Input::Changed)
                }
                World::Crashes => {
                    sim.agent.clear();
                    sim.pushes.clear();
                    let actions = pusher.step(Input::Down, sim.now);
                    sim.act(actions)?;
                    Some(Input::Up)
                }
                World::Passes(ms) => { sim.now += Duration::from_millis(u64::from(ms)); Some(Input::Tick) }
            };
            if let Some(input) = input {
                let actions = pusher.step(input, sim.now);
                sim.act(actions)?;
            }
        }
        let all: Vec<u128> = (1..=sim.arrived).collect();
        let mut sorted = sim.log.clone();
        sorted.sort_unstable();
        prop_assert_eq!(&sorted, &all, "each exactly once");
    }
}
