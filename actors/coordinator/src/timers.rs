//! The timers: one actor that sleeps until the earliest deadline of any workspace and then has the workspace look at it.
//! It keeps nothing that matters: after a restart the store says what is due, overdue things too.

use std::collections::BTreeMap;

use choir_messages::chap::ObjectKey;
use choir_messages::mail::Mail;
use choir_messages::time::Timestamp;
use choir_persistence::StoreError;
use choir_persistence::chap::{ChapStore, Due};
use choir_supervisors::{
    Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Slot, TimerHandle, WhenFull,
};

use crate::alarm::Alarm;
use crate::dispatcher::DispatchMsg;
use crate::limits::{DUE_PAGE, LAPSE_RETRY};
use crate::settings::Clock;

/// What the timers are told.
#[derive(Debug)]
pub(crate) enum TimersMsg {
    /// Something is due then.
    Due(Timestamp),
    /// The alarm of this number rang.
    Ring(u64),
    /// What the store knows.
    Found {
        /// When it was asked.
        asked_at: Timestamp,
        /// Which workspaces were left out.
        except: Vec<String>,
        /// What is due, and what is due next.
        found: Result<(Vec<Due>, Option<Timestamp>), StoreError>,
    },
}

impl Mail for TimersMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Due(_) => "due",
            Self::Ring(_) => "ring",
            Self::Found { .. } => "found",
        }
    }
}

/// Hints only: the oldest may go.
pub(crate) const MAILBOX: MailboxSpec = MailboxSpec { capacity: 256, when_full: WhenFull::DropOldest };

pub(crate) struct Timers {
    store: ChapStore,
    clock: Clock,
    dispatcher: Address<DispatchMsg>,
    alarm: Alarm,
    set: Option<(Timestamp, TimerHandle)>,
    rings: u64,
    asking: bool,
    /// Something became due earlier while the store was being asked.
    hint: Option<Timestamp>,
}

pub(crate) fn child(
    slot: Slot<TimersMsg>,
    store: ChapStore,
    clock: Clock,
    dispatcher: Address<DispatchMsg>,
) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let (store, clock, dispatcher) = (store.clone(), clock.clone(), dispatcher.clone());
        async move {
            Ok(Timers {
                store,
                clock,
                dispatcher,
                alarm: Alarm::default(),
                set: None,
                rings: 0,
                asking: false,
                hint: None,
            })
        }
    })
}

impl Timers {
    fn ask(&mut self, cx: &mut Context<TimersMsg>) -> Result<(), Failure> {
        if self.asking {
            return Ok(());
        }
        let (store, now) = (self.store.clone(), (self.clock)());
        let except = self.alarm.except(now);
        let work = async move {
            let found = async {
                let due = store.due(now, &except, DUE_PAGE).await?;
                let next = store.next_due(Some(now)).await?;
                Ok((due, next))
            };
            let found = found.await;
            (except, found)
        };
        cx.pipe_to_self(work, move |(except, found)| TimersMsg::Found { asked_at: now, except, found })?;
        self.asking = true;
        Ok(())
    }

    fn ring_at(&mut self, at: Timestamp, cx: &mut Context<TimersMsg>) -> Result<(), Failure> {
        if let Some((_, old)) = self.set.take() {
            old.cancel();
        }
        self.rings = self.rings.wrapping_add(1);
        let delay = at.since((self.clock)());
        self.set = Some((at, cx.send_after(delay, TimersMsg::Ring(self.rings))?));
        Ok(())
    }
}

impl Actor for Timers {
    type Msg = TimersMsg;

    async fn started(&mut self, cx: &mut Context<TimersMsg>) -> Result<(), Failure> {
        self.ask(cx)
    }

    async fn handle(&mut self, msg: TimersMsg, cx: &mut Context<TimersMsg>) -> Result<(), Failure> {
        match msg {
            TimersMsg::Due(at) if self.asking => {
                self.hint = Some(self.hint.map_or(at, |hint| hint.min(at)));
                Ok(())
            }
            TimersMsg::Due(at) => match self.set {
                Some((set_for, _)) if set_for <= at => Ok(()),
                _ => self.ring_at(at, cx),
            },
            TimersMsg::Ring(ring) if ring == self.rings => self.ask(cx),
            // An alarm that was set anew after it had rung.
            TimersMsg::Ring(_) => Ok(()),
            TimersMsg::Found { asked_at, except, found } => {
                self.asking = false;
                let hint = self.hint.take();
                let now = (self.clock)();
                let next = match found {
                    Ok((due, next)) => {
                        let count = due.len();
                        let mut lapsed: BTreeMap<String, Vec<ObjectKey>> = BTreeMap::new();
                        for due in self.alarm.fire(due, &except, asked_at) {
                            lapsed.entry(due.workspace).or_default().push(due.key);
                        }
                        for (workspace, keys) in lapsed {
                            // Those that find no place stay due, and are tried again.
                            let _ = self.dispatcher.try_send(DispatchMsg::Lapse { workspace, keys });
                        }
                        self.alarm.next(count, next, asked_at)
                    }
                    Err(error) => {
                        tracing::warn!(%error, "what is due could not be read; asking again");
                        let pause = u64::try_from(LAPSE_RETRY.as_millis()).unwrap_or(u64::MAX);
                        Timestamp::from_millis(now.millis().saturating_add(pause))
                    }
                };
                self.ring_at(hint.map_or(next, |hint| hint.min(next)), cx)
            }
        }
    }
}
