//! Random trees under random blows, against a plain reference of OTP's rules.

use crate::kit::*;
use choir_supervisors::*;
use proptest::prelude::*;
use proptest::strategy::Strategy as Generate;
use std::time::Duration;

/// A tree to build.
#[derive(Debug, Clone)]
struct Plan {
    restart: Restart,
    below: Option<(choir_supervisors::Strategy, u32, Vec<Plan>)>,
}

/// What OTP says the tree looks like: plain data, no actors.
#[derive(Debug, Clone)]
struct Model {
    path: String,
    restart: Restart,
    alive: bool,
    generation: u64,
    below: Option<Below>,
}

#[derive(Debug, Clone)]
struct Below {
    strategy: choir_supervisors::Strategy,
    limit: u32,
    recent: u32,
    children: Vec<Model>,
}

#[derive(Debug, Clone, Copy)]
enum Blow {
    Kill,
    Crash,
    Fail,
    Stop,
}

impl Model {
    fn of(plan: &Plan, path: String) -> Self {
        let below = plan.below.as_ref().map(|(strategy, limit, plans)| Below {
            strategy: *strategy,
            limit: *limit,
            recent: 0,
            children: plans
                .iter()
                .enumerate()
                .map(|(n, plan)| Self::of(plan, format!("{path}/c{n}")))
                .collect(),
        });
        Self { path, restart: plan.restart, alive: false, generation: 0, below }
    }

    fn start(&mut self) {
        self.alive = true;
        self.generation += 1;
        if let Some(below) = &mut self.below {
            below.recent = 0;
            below.children.iter_mut().for_each(Self::start);
        }
    }

    fn stop(&mut self) {
        self.alive = false;
        if let Some(below) = &mut self.below {
            below.children.iter_mut().for_each(Self::stop);
        }
    }

    /// Strikes the place at `path`, which ends normally or not. Tells whether this node failed thereby.
    fn strike(&mut self, path: &str, normal: bool) -> bool {
        if self.path == path {
            self.stop();
            return true;
        }
        let Some(below) = &mut self.below else { return false };
        let Some(at) =
            below.children.iter().position(|c| path == c.path || path.starts_with(&format!("{}/", c.path)))
        else {
            return false;
        };
        let is_target = below.children[at].path == path;
        if !below.children[at].strike(path, normal) {
            return false;
        }
        let restarts = match below.children[at].restart {
            Restart::Permanent => true,
            Restart::Transient => !(is_target && normal),
            Restart::Temporary => false,
        };
        if !restarts {
            return false;
        }
        below.recent += 1;
        if below.recent > below.limit {
            self.stop();
            return true;
        }
        let group = match below.strategy {
            choir_supervisors::Strategy::OneForOne => at..at + 1,
            choir_supervisors::Strategy::OneForAll => 0..below.children.len(),
            choir_supervisors::Strategy::RestForOne => at..below.children.len(),
        };
        for child in &mut below.children[group] {
            child.stop();
            if child.restart != Restart::Temporary {
                child.start();
            }
        }
        false
    }

    fn walk(&self) -> Vec<&Self> {
        let mut all = vec![self];
        for child in self.below.iter().flat_map(|below| &below.children) {
            all.extend(child.walk());
        }
        all
    }

    fn agrees(&self, node: &TreeNode) -> bool {
        self.walk().iter().all(|place| {
            node.find(&place.path).is_some_and(|node| {
                let settled = matches!(node.state, NodeState::Running | NodeState::Ended | NodeState::Down);
                settled
                    && (node.state == NodeState::Running) == place.alive
                    && node.generation == place.generation
            })
        })
    }
}

fn restart() -> impl Generate<Value = Restart> {
    prop_oneof![3 => Just(Restart::Permanent), 2 => Just(Restart::Transient), 1 => Just(Restart::Temporary)]
}

fn supervisor(children: impl Generate<Value = Plan> + 'static) -> impl Generate<Value = Plan> {
    let strategy = prop::sample::select(vec![
        choir_supervisors::Strategy::OneForOne,
        choir_supervisors::Strategy::OneForAll,
        choir_supervisors::Strategy::RestForOne,
    ]);
    let limit = prop_oneof![Just(1000u32), 0..3u32];
    (restart(), strategy, limit, prop::collection::vec(children, 1..4)).prop_map(
        |(restart, strategy, limit, children)| Plan { restart, below: Some((strategy, limit, children)) },
    )
}

fn plan() -> impl Generate<Value = Plan> {
    let leaf = restart().prop_map(|restart| Plan { restart, below: None }).boxed();
    let low = prop_oneof![2 => leaf.clone(), 1 => supervisor(leaf.clone())].boxed();
    let mid = prop_oneof![1 => leaf, 1 => supervisor(low)].boxed();
    supervisor(mid)
}

/// The spec of a plan, and the addresses of its workers by path.
fn build(
    kit: &Kit,
    plan: &Plan,
    path: &str,
    name: &str,
    addresses: &mut Vec<(String, Address<Msg>)>,
) -> ChildSpec {
    let spec = match &plan.below {
        None => {
            let (address, spec) = kit.probe(name);
            addresses.push((path.to_owned(), address));
            spec
        }
        Some(below) => ChildSpec::supervisor(build_supervisor(kit, below, path, name, addresses)),
    };
    spec.restart(plan.restart).backoff(Backoff::NONE)
}

fn build_supervisor(
    kit: &Kit,
    (strategy, limit, plans): &(choir_supervisors::Strategy, u32, Vec<Plan>),
    path: &str,
    name: &str,
    addresses: &mut Vec<(String, Address<Msg>)>,
) -> SupervisorSpec {
    let mut spec =
        SupervisorSpec::new(name, *strategy).intensity(Intensity::new(*limit, Duration::from_secs(100_000)));
    for (n, plan) in plans.iter().enumerate() {
        spec = spec.child(build(kit, plan, &format!("{path}/c{n}"), &format!("c{n}"), addresses));
    }
    spec
}

async fn play(plan: Plan, blows: Vec<(usize, Blow)>) -> Result<(), TestCaseError> {
    let kit = Kit::default();
    let mut addresses = Vec::new();
    let below = plan.below.clone().expect("the root is a supervisor");
    let spec = build_supervisor(&kit, &below, "top", "top", &mut addresses);
    let mut model = Model::of(&plan, "top".to_owned());
    let tree = Tree::start(spec).await.expect("every probe starts");
    let handle = tree.handle();
    model.start();
    for (n, blow) in blows {
        let alive: Vec<_> =
            model.walk().into_iter().filter(|place| place.alive).map(|p| p.path.clone()).collect();
        let path = alive[n % alive.len()].clone();
        let address = addresses.iter().find(|(at, _)| *at == path).map(|(_, address)| address);
        match (blow, address) {
            (Blow::Kill, _) => prop_assert!(handle.kill(&path)),
            (Blow::Crash, _) | (_, None) => prop_assert!(handle.crash(&path)),
            (Blow::Fail, Some(address)) => prop_assert_eq!(address.try_send(Msg::Fail), Ok(())),
            (Blow::Stop, Some(address)) => prop_assert_eq!(address.try_send(Msg::Stop), Ok(())),
        }
        let normal = matches!(blow, Blow::Stop) && address.is_some();
        if model.strike(&path, normal) {
            // The root itself ended.
            tokio::time::timeout(LONG, handle.ended()).await.expect("the tree ends");
            prop_assert_eq!(handle.living(), 0);
            return Ok(());
        }
        eventually(&handle, &format!("{blow:?} {path} leads to {model:#?}"), |root| model.agrees(root)).await;
    }
    let report = tree.shutdown().await;
    prop_assert_eq!(report.left, 0);
    // Whatever was made was dropped, and whatever was alive at the end said goodbye.
    let log = kit.log.all();
    let count = |sign: char| log.iter().filter(|entry| entry.contains(sign)).count();
    prop_assert_eq!(count('+'), count('-'));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_under_any_blows_is_what_otp_says_it_is(
        plan in plan(),
        threads in 1..4usize,
        blows in prop::collection::vec(
            (any::<usize>(), prop_oneof![Just(Blow::Kill), Just(Blow::Crash), Just(Blow::Fail), Just(Blow::Stop)]),
            1..15,
        ),
    ) {
        let runtime = if threads == 1 {
            tokio::runtime::Builder::new_current_thread().enable_all().build()
        } else {
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
        };
        runtime.expect("a runtime").block_on(play(plan, blows))?;
    }
}
