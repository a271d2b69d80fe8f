//! No two incarnations at once, nor a replacement beside the descendants, pipes or state of the one before.

use crate::kit::*;
use choir_supervisors::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const MANY: Intensity = Intensity::new(100_000, Duration::from_secs(1));

/// Something only one may hold, like a socket path or a lock file.
#[derive(Clone, Default)]
struct Single {
    held: Arc<AtomicBool>,
    clashes: Arc<AtomicUsize>,
}

struct Hold(Single);

impl Single {
    fn take(&self) -> Hold {
        if self.held.swap(true, Ordering::SeqCst) {
            self.clashes.fetch_add(1, Ordering::SeqCst);
        }
        Hold(self.clone())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Widens the window in which an impatient supervisor would be caught.
        for _ in 0..2_000 {
            std::hint::spin_loop();
        }
        self.0.held.store(false, Ordering::SeqCst);
    }
}

/// Holds one thing itself and another in a pipe.
struct Holder {
    _mine: Hold,
    piped: Single,
}

impl Actor for Holder {
    type Msg = Msg;

    async fn started(&mut self, cx: &mut Context<Msg>) -> Result<(), Failure> {
        let held = self.piped.take();
        cx.pipe_to_self(
            async move {
                let _held = held;
                std::future::pending::<u32>().await
            },
            Msg::Note,
        )?;
        Ok(())
    }

    async fn handle(&mut self, msg: Msg, cx: &mut Context<Msg>) -> Result<(), Failure> {
        match msg {
            Msg::Ask(reply) => reply.send(cx.generation()),
            Msg::Panic => panic!("told to panic"),
            Msg::Fail => return Err(Failure::new("told to fail")),
            Msg::Stop => cx.stop(),
            _ => std::future::pending().await,
        }
        Ok(())
    }
}

fn holder(name: &str, all: &mut Vec<Single>) -> (Address<Msg>, ChildSpec) {
    let (address, slot) = mailbox(name, ROOMY);
    let (mine, piped) = (Single::default(), Single::default());
    all.extend([mine.clone(), piped.clone()]);
    let spec = ChildSpec::worker(slot, move |_| {
        let (mine, piped) = (mine.clone(), piped.clone());
        async move { Ok(Holder { _mine: mine.take(), piped }) }
    });
    (address, spec.backoff(Backoff::NONE))
}

/// Waits until the holder has this message in hand.
async fn in_hand(tree: &TreeHandle, label: &str) {
    let wait = async {
        while tree.snapshot().children[0].current.as_ref().is_none_or(|current| current.message != label) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("the message is taken up");
}

fn clashes(all: &[Single]) -> usize {
    all.iter().map(|single| single.clashes.load(Ordering::SeqCst)).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replacement_never_meets_what_the_old_incarnation_held() {
    let mut all = Vec::new();
    let (address, spec) = holder("holder", &mut all);
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).intensity(MANY).child(spec))
        .await
        .unwrap();
    let handle = tree.handle();
    for round in 1..=600 {
        running(&handle, "top/holder", round).await;
        match round % 6 {
            0 => assert!(handle.kill("top/holder")),
            1 => assert!(handle.crash("top/holder")),
            2 => address.try_send(Msg::Panic).unwrap(),
            3 => address.try_send(Msg::Fail).unwrap(),
            4 => address.try_send(Msg::Stop).unwrap(),
            _ => {
                address.try_send(Msg::Hang).unwrap();
                in_hand(&handle, "hang").await;
                assert!(handle.kill("top/holder"));
            }
        }
    }
    running(&handle, "top/holder", 601).await;
    assert_eq!(clashes(&all), 0);
    end(tree).await;
    assert!(all.iter().all(|single| !single.held.load(Ordering::SeqCst)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restarted_supervisor_never_meets_a_descendant_of_the_one_before() {
    let mut all = Vec::new();
    let (_, a) = holder("a", &mut all);
    let (_, b) = holder("b", &mut all);
    let (leaf, c) = holder("c", &mut all);
    let low = SupervisorSpec::new("low", Strategy::OneForAll).intensity(MANY).child(b).child(c);
    let mid = SupervisorSpec::new("mid", Strategy::OneForOne)
        .intensity(MANY)
        .child(a)
        .child(ChildSpec::supervisor(low).backoff(Backoff::NONE));
    let top = SupervisorSpec::new("top", Strategy::OneForOne)
        .intensity(MANY)
        .child(ChildSpec::supervisor(mid).backoff(Backoff::NONE));
    let tree = Tree::start(top).await.unwrap();
    let handle = tree.handle();
    for round in 1..=300 {
        running(&handle, "top/mid", round).await;
        match round % 4 {
            0 => assert!(handle.kill("top/mid")),
            1 => assert!(handle.crash("top/mid")),
            2 => {
                let _ = leaf.try_send(Msg::Hang);
                assert!(handle.kill("top/mid"));
            }
            _ => {
                // Strikes while children are being restarted.
                handle.kill("top/mid/low");
                assert!(handle.kill("top/mid"));
            }
        }
    }
    running(&handle, "top/mid", 301).await;
    assert_eq!(clashes(&all), 0);
    end(tree).await;
    assert!(all.iter().all(|single| !single.held.load(Ordering::SeqCst)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flood_of_messages_over_many_crashes_loses_only_the_message_in_hand() {
    let kit = Kit::default();
    let (address, spec) =
        kit.probe_with("worker", MailboxSpec { capacity: 32, when_full: WhenFull::Wait(LONG) }, None);
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).intensity(MANY).child(spec))
        .await
        .unwrap();
    let senders: Vec<_> = (0..4u32)
        .map(|sender| {
            let address = address.clone();
            tokio::spawn(async move {
                for n in 0..500 {
                    address.send(Msg::Note(sender * 1000 + n)).await.unwrap();
                    if n % 50 == 25 {
                        address.send(Msg::Panic).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    ask(&address).await;
    let notes: Vec<u32> =
        kit.log.all().iter().filter_map(|entry| entry.strip_prefix("worker:")?.parse().ok()).collect();
    assert_eq!(notes.len(), 2000, "every note was handled once: only panics were in hand at a crash");
    for sender in 0..4 {
        let mine: Vec<_> = notes.iter().filter(|n| **n / 1000 == sender).collect();
        assert!(mine.is_sorted(), "each sender's notes arrive in order");
    }
    running(&tree.handle(), "top/worker", 41).await;
    end(tree).await;
}
