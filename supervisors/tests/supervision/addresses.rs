//! Mailboxes and addresses: the three policies, order, calls, and what a restart keeps.

use crate::kit::*;
use choir_supervisors::*;
use std::time::Duration;
use tokio::sync::oneshot;

fn spec(capacity: usize, when_full: WhenFull) -> MailboxSpec {
    MailboxSpec { capacity, when_full }
}

async fn tree_of(worker: ChildSpec) -> Tree {
    Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(worker)).await.unwrap()
}

/// Closes the gate: the probe is handling a message until the returned sender is used.
async fn closed_gate(tree: &Tree, address: &Address<Msg>) -> oneshot::Sender<()> {
    let (open, gate) = oneshot::channel();
    address.send(Msg::Gate(gate)).await.unwrap();
    while tree.handle().snapshot().children[0].current.as_ref().is_none_or(|c| c.message != "gate") {
        tokio::task::yield_now().await;
    }
    open
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_before_the_actor_exists_waits_for_it() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    assert_eq!((address.path().as_str(), address.generation()), ("worker", 0));
    address.send(Msg::Note(1)).await.unwrap();
    assert_eq!(address.depth(), 1);
    let tree = tree_of(worker).await;
    assert_eq!(ask(&address).await, 1);
    assert_eq!((address.path().as_str(), address.generation(), address.depth()), ("top/worker", 1, 0));
    assert_eq!(kit.log.all(), ["worker+1", "worker:1"]);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_one_sender_are_handled_in_order_whatever_the_batch() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(10, WhenFull::Wait(LONG)), None);
    let tree = tree_of(worker).await;
    for n in 0..500 {
        address.send(Msg::Note(n)).await.unwrap();
    }
    ask(&address).await;
    let expected: Vec<_> = (0..500).map(|n| format!("worker:{n}")).collect();
    assert_eq!(kit.log.all()[1..], expected);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_mailbox_that_refuses_says_so_at_once() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(2, WhenFull::Refuse), None);
    let tree = tree_of(worker).await;
    let open = closed_gate(&tree, &address).await;
    assert_eq!(address.send(Msg::Note(1)).await, Ok(()));
    assert_eq!(address.send(Msg::Note(2)).await, Ok(()));
    assert_eq!(address.send(Msg::Note(3)).await, Err(SendError::Full));
    assert_eq!(address.call(LONG, Msg::Ask).await, Err(CallError::Send(SendError::Full)));
    drop(open);
    eventually_empty(&address).await;
    assert_eq!(ask(&address).await, 1);
    assert_eq!(kit.log.all(), ["worker+1", "worker:1", "worker:2"]);
    end(tree).await;
}

async fn eventually_empty(address: &Address<Msg>) {
    let wait = async {
        while address.depth() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("the mailbox empties");
}

#[tokio::test(start_paused = true)]
async fn a_full_mailbox_that_drops_the_oldest_tells_whoever_asked_there() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(2, WhenFull::DropOldest), None);
    let tree = tree_of(worker).await;
    let open = closed_gate(&tree, &address).await;
    let asking = tokio::spawn({
        let address = address.clone();
        async move { address.call(LONG, Msg::Ask).await }
    });
    while address.depth() == 0 {
        tokio::task::yield_now().await;
    }
    for n in 1..=3 {
        address.send(Msg::Note(n)).await.unwrap();
        assert!(address.depth() <= 2);
    }
    assert_eq!(asking.await.unwrap(), Err(CallError::Unanswered));
    drop(open);
    eventually_empty(&address).await;
    ask(&address).await;
    assert_eq!(kit.log.all(), ["worker+1", "worker:2", "worker:3"]);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn senders_that_wait_are_served_in_order_until_their_deadline() {
    let kit = Kit::default();
    let limit = Duration::from_secs(5);
    let (address, worker) = kit.probe_with("worker", spec(1, WhenFull::Wait(limit)), None);
    let tree = tree_of(worker).await;
    let open = closed_gate(&tree, &address).await;
    address.send(Msg::Note(0)).await.unwrap();
    assert_eq!(address.try_send(Msg::Note(9)), Err(SendError::Full));

    let before = tokio::time::Instant::now();
    assert_eq!(address.send(Msg::Note(8)).await, Err(SendError::Deadline));
    assert_eq!(before.elapsed(), limit);

    let senders: Vec<_> = (1..=4)
        .map(|n| {
            let address = address.clone();
            tokio::spawn(async move { address.send(Msg::Note(n)).await })
        })
        .collect();
    eventually_waiting(&tree, 4).await;
    // A sender that gives up leaves the line; the others move up.
    senders[1].abort();
    eventually_waiting(&tree, 3).await;
    drop(open);
    for sender in senders {
        let _ = sender.await;
    }
    ask(&address).await;
    assert_eq!(kit.log.all(), ["worker+1", "worker:0", "worker:1", "worker:3", "worker:4"]);
    end(tree).await;
}

async fn eventually_waiting(tree: &Tree, count: usize) {
    let wait = async {
        while tree.handle().snapshot().children[0].mailbox.as_ref().unwrap().waiting_senders != count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("the senders wait");
}

#[tokio::test(start_paused = true)]
async fn the_line_of_waiting_senders_is_bounded_too() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(1, WhenFull::Wait(LONG)), None);
    let tree = tree_of(worker).await;
    let open = closed_gate(&tree, &address).await;
    address.send(Msg::Note(0)).await.unwrap();
    let senders: Vec<_> = (0..choir_supervisors::limits::PARKED_SENDERS)
        .map(|_| {
            let address = address.clone();
            tokio::spawn(async move { address.send(Msg::Note(1)).await })
        })
        .collect();
    eventually_waiting(&tree, choir_supervisors::limits::PARKED_SENDERS).await;
    assert_eq!(address.send(Msg::Note(2)).await, Err(SendError::Full));
    drop(open);
    for sender in senders {
        assert_eq!(sender.await.unwrap(), Ok(()));
    }
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_deadline_and_covers_the_wait_for_room() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(1, WhenFull::Wait(LONG)), None);
    let tree = tree_of(worker).await;
    let open = closed_gate(&tree, &address).await;
    let before = tokio::time::Instant::now();
    let second = Duration::from_secs(1);
    assert_eq!(address.call(second, Msg::Ask).await, Err(CallError::Deadline), "taken, not answered");
    assert_eq!(
        address.call(second, Msg::Ask).await,
        Err(CallError::Send(SendError::Deadline)),
        "never taken"
    );
    assert_eq!(before.elapsed(), 2 * second);
    drop(open);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn the_mailbox_survives_a_crash_except_for_the_message_in_hand() {
    for blow in ["panic", "fail", "kill"] {
        let kit = Kit::default();
        let (address, worker) = kit.probe("worker");
        let tree = tree_of(worker).await;
        let in_hand = tokio::spawn({
            let address = address.clone();
            async move { address.call(LONG, Msg::HangAsk).await }
        });
        while tree.handle().snapshot().children[0].current.is_none() {
            tokio::task::yield_now().await;
        }
        for n in 1..=3 {
            address.send(Msg::Note(n)).await.unwrap();
        }
        let waiting = tokio::spawn({
            let address = address.clone();
            async move { address.call(LONG, Msg::Ask).await }
        });
        while address.depth() < 4 {
            tokio::task::yield_now().await;
        }
        match blow {
            "kill" => assert!(tree.handle().kill("top/worker")),
            _ => assert!(tree.handle().crash("top/worker")),
        }
        assert_eq!(in_hand.await.unwrap(), Err(CallError::Unanswered), "{blow}");
        assert_eq!(waiting.await.unwrap(), Ok(2), "{blow}: the replacement answers");
        assert_eq!(kit.log.all()[2..], ["worker+2", "worker:1", "worker:2", "worker:3"], "{blow}");
        end(tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_normal_stop_leaves_the_queue_to_the_replacement() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let tree = tree_of(worker).await;
    let open = closed_gate(&tree, &address).await;
    address.send(Msg::Stop).await.unwrap();
    address.send(Msg::Note(1)).await.unwrap();
    drop(open);
    assert_eq!(ask(&address).await, 2);
    assert_eq!(kit.log.all(), ["worker+1", "worker~1", "worker-1", "worker+2", "worker:1"]);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn whoever_asked_learns_of_the_final_stop_and_later_senders_are_refused() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(1, WhenFull::Wait(LONG)), None);
    let tree = tree_of(worker).await;
    let open = closed_gate(&tree, &address).await;
    let asking = tokio::spawn({
        let address = address.clone();
        async move { address.call(LONG, Msg::Ask).await }
    });
    while address.depth() == 0 {
        tokio::task::yield_now().await;
    }
    let parked = tokio::spawn({
        let address = address.clone();
        async move { address.send(Msg::Note(1)).await }
    });
    eventually_waiting(&tree, 1).await;
    let ending = tokio::spawn(tree.shutdown());
    assert_eq!(asking.await.unwrap(), Err(CallError::Unanswered));
    assert_eq!(parked.await.unwrap(), Err(SendError::Closed));
    assert_eq!(address.try_send(Msg::Note(2)), Err(SendError::Closed));
    drop(open);
    assert_eq!(ending.await.unwrap().left, 0);
    assert_eq!(kit.log.all(), ["worker+1", "worker~1", "worker-1"]);
}

#[tokio::test(start_paused = true)]
async fn an_address_whose_slot_was_never_used_is_closed_when_the_slot_goes() {
    let (address, slot) = mailbox::<Msg>("nobody", ROOMY);
    address.send(Msg::Note(1)).await.unwrap();
    drop(slot);
    assert!(address.is_closed());
    assert_eq!(address.call(LONG, Msg::Ask).await, Err(CallError::Send(SendError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn pipes_and_timers_reach_the_actor_beyond_a_full_mailbox() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(1, WhenFull::Refuse), None);
    let tree = tree_of(worker).await;
    address.send(Msg::Pipe(1)).await.unwrap();
    eventually_empty(&address).await;
    address.send(Msg::After(Duration::from_secs(1), 2)).await.unwrap();
    eventually_empty(&address).await;
    let open = closed_gate(&tree, &address).await;
    address.send(Msg::Note(3)).await.unwrap();
    tokio::time::advance(Duration::from_secs(2)).await;
    while address.depth() < 2 {
        tokio::task::yield_now().await;
    }
    drop(open);
    eventually_empty(&address).await;
    ask(&address).await;
    let mut log = kit.log.all();
    log.sort();
    assert_eq!(log, ["worker+1", "worker:1", "worker:2", "worker:3"]);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_actors_own_pipe_sent_is_never_the_oldest_that_is_dropped() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(1, WhenFull::DropOldest), None);
    let tree = tree_of(worker).await;
    address.send(Msg::After(Duration::from_secs(1), 1)).await.unwrap();
    eventually_empty(&address).await;
    let open = closed_gate(&tree, &address).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for n in 2..=5 {
        address.send(Msg::Note(n)).await.unwrap();
        assert!(address.depth() <= 2);
    }
    drop(open);
    eventually_empty(&address).await;
    ask(&address).await;
    assert_eq!(kit.log.all(), ["worker+1", "worker:1", "worker:5"]);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn an_interval_ticks_and_leaves_out_what_a_full_mailbox_cannot_hold() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(2, WhenFull::Refuse), None);
    let tree = tree_of(worker).await;
    address.send(Msg::Every(Duration::from_secs(1), 7)).await.unwrap();
    eventually_empty(&address).await;
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert_eq!(kit.log.all(), ["worker+1", "worker:7", "worker:7", "worker:7"]);
    let open = closed_gate(&tree, &address).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(address.depth(), 2);
    drop(open);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_never_gets_what_a_dead_incarnation_left_running() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let tree = tree_of(worker).await;
    address.send(Msg::After(Duration::from_secs(5), 5)).await.unwrap();
    address.send(Msg::After(Duration::from_secs(1), 1)).await.unwrap();
    ask(&address).await;
    // The first timer has fired into the mailbox, the second is still running, when the incarnation dies.
    let _open = closed_gate(&tree, &address).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    while address.depth() < 1 {
        tokio::task::yield_now().await;
    }
    tree.handle().kill("top/worker");
    assert_eq!(ask(&address).await, 2);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(ask(&address).await, 2);
    assert_eq!(kit.log.all(), ["worker+1", "worker-1", "worker+2"]);
    end(tree).await;
}

async fn port(address: &Address<Msg>) -> ReplyToSelf<u32> {
    let (give, given) = oneshot::channel();
    address.send(Msg::Port(give)).await.unwrap();
    given.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_port_brings_its_answer_or_the_word_that_there_is_none_beyond_a_full_mailbox() {
    let kit = Kit::default();
    let (address, worker) = kit.probe_with("worker", spec(1, WhenFull::Refuse), None);
    let tree = tree_of(worker).await;
    let (answered, dropped) = (port(&address).await, port(&address).await);
    let open = closed_gate(&tree, &address).await;
    address.send(Msg::Note(3)).await.unwrap();
    answered.send(1);
    drop(dropped);
    assert_eq!(address.depth(), 3);
    drop(open);
    eventually_empty(&address).await;
    ask(&address).await;
    assert_eq!(kit.log.all(), ["worker+1", "worker:3", "worker:1", "worker:99"]);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_gets_neither_an_answer_nor_what_ran_beside_the_one_before() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let tree = tree_of(worker).await;
    let (early, late) = (port(&address).await, port(&address).await);
    let (go, gate) = oneshot::channel();
    address.send(Msg::Beside(gate, 1)).await.unwrap();
    let _open = closed_gate(&tree, &address).await;
    early.send(1);
    tree.handle().kill("top/worker");
    assert_eq!(ask(&address).await, 2);
    late.send(2);
    assert!(go.send(()).is_err(), "it ended with its actor");
    let (go, gate) = oneshot::channel();
    address.send(Msg::Beside(gate, 3)).await.unwrap();
    assert_eq!(ask(&address).await, 2);
    go.send(()).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(kit.log.all(), ["worker+1", "worker-1", "worker+2", "worker beside:3"]);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_pipe_that_panics_has_panicked_its_actor() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let tree = tree_of(worker).await;
    address.send(Msg::PipePanic).await.unwrap();
    let root = running(&tree.handle(), "top/worker", 2).await;
    let exit = root.children[0].last_exit.clone();
    assert!(matches!(&exit, Some(Exit::Panicked { message, .. }) if message == "the pipe burst"), "{exit:?}");
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn pipes_are_bounded() {
    let kit = Kit::default();
    let (address, worker) =
        kit.probe_with("worker", spec(limits::TASKS_PER_ACTOR + 1, WhenFull::Refuse), None);
    let tree = tree_of(worker).await;
    for _ in 0..limits::TASKS_PER_ACTOR {
        address.send(Msg::PipeHolding(Box::new(()))).await.unwrap();
    }
    assert_eq!(ask(&address).await, 1);
    assert_eq!(
        tree.handle().living(),
        limits::TASKS_PER_ACTOR + 2,
        "the pipes, the worker and the supervisor"
    );
    address.send(Msg::PipeHolding(Box::new(()))).await.unwrap();
    let root = running(&tree.handle(), "top/worker", 2).await;
    assert_eq!(
        root.children[0].last_exit,
        Some(Exit::Failed("the actor has 1024 pipes and timers running already".into()))
    );
    assert_eq!(tree.handle().living(), 2);
    end(tree).await;
}

/// Pipes to itself while it starts, and goes on only when the pipe has ended.
struct Early(ReplyTo<u32>);

impl Actor for Early {
    type Msg = Msg;

    async fn started(&mut self, cx: &mut Context<Msg>) -> Result<(), Failure> {
        let (ended, end) = oneshot::channel::<()>();
        cx.pipe_to_self(async {}, move |()| {
            drop(ended);
            Msg::Note(1)
        })?;
        let _ = end.await;
        // The pipe's task pushes its message in the same poll in which it drops its end.
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn handle(&mut self, msg: Msg, cx: &mut Context<Msg>) -> Result<(), Failure> {
        if let Msg::Note(n) = msg {
            let (unused, _) = reply_port();
            std::mem::replace(&mut self.0, unused).send(n);
            cx.stop();
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_pipe_that_ends_before_its_actor_has_started_is_not_lost() {
    let (_address, slot) = mailbox("early", spec(4, WhenFull::Refuse));
    let (heard, hears) = reply_port();
    let heard = std::sync::Mutex::new(Some(heard));
    let worker = ChildSpec::worker(slot, move |_| {
        let heard = heard.lock().unwrap().take();
        async move { heard.map(Early).ok_or_else(|| Failure::new("started twice")) }
    });
    let tree = tree_of(worker.restart(Restart::Temporary)).await;
    assert_eq!(tokio::time::timeout(LONG, hears).await.expect("the message arrives").unwrap(), 1);
    end(tree).await;
}
