//! `choirctl demo`: a whole Choir in a private folder, to chat with, or to watch surviving kills.
//!
//! It starts choird as a child process, one agent under it, and, where no key of a real model is given, a scripted model
//! inside its own process, which no kill of the play reaches. It promises two things: whatever it started is gone when it
//! ends, however it ends; and the figures it prints are counted from outside the parts under test, in the model
//! endpoint's journal, the workspace, the tables and what the chat received.

mod check;
mod choird;
mod conversation;
mod evidence;
mod folder;
mod house;
mod limits;
mod model;
mod play;
mod processes;
mod stale;
mod summary;
mod talk;
mod words;

#[cfg(test)]
mod check_tests;

use std::io::IsTerminal;
use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::control::{ControlError, ErrorCode};
use crate::ctl::{DemoArgs, Printer};
use house::{Cleared, House};
use words::Words;

/// The demo's one agent.
const AGENT: &str = "assistant";

/// How the part between start and end went.
enum Shown {
    /// The user ended the chat.
    Chat,
    /// The conversation was played and counted; whether nothing was lost, doubled or altered.
    Play(bool),
    /// Ended from the keyboard or by a signal.
    Interrupted,
}

/// Runs the demo. The answer is whether everything held: for a chat, that nothing stayed behind; for the play, that
/// nothing was lost, nothing duplicated and the chain verified as well.
pub(crate) async fn run(
    arguments: &DemoArgs,
    state_dir: Option<&Path>,
    json: bool,
    printer: &Printer,
) -> Result<bool, ControlError> {
    let words = Words::new(*printer);
    let script = arguments.script || json || !std::io::stdin().is_terminal();
    let mut signals = Signals::new()?;
    let mut house = House::new(state_dir, arguments.keep, script, words).await?;
    let shown = tokio::select! {
        shown = show(&mut house, script, json, words) => shown,
        () = signals.next() => {
            if !script {
                words.end_line();
            }
            words.say("interrupted; ending everything that was started");
            Ok(Shown::Interrupted)
        }
    };
    let damaged = matches!(shown, Err(_) | Ok(Shown::Play(false)));
    let cleared = house.clear(damaged, signals.next()).await;
    if let Cleared::Forced(what) = &cleared {
        words.say(&format!("these did not end by themselves and were killed: {}", what.join(", ")));
    }
    let orderly = matches!(cleared, Cleared::Orderly);
    match shown? {
        Shown::Chat => Ok(orderly),
        Shown::Interrupted if !script => Ok(orderly),
        Shown::Interrupted => {
            Err(ControlError::new(ErrorCode::Negative, "the demo was interrupted, so it proves nothing"))
        }
        Shown::Play(held) => Ok(held && orderly),
    }
}

async fn show(house: &mut House, script: bool, json: bool, words: Words) -> Result<Shown, ControlError> {
    house.open(script).await?;
    if !script {
        talk::chat(house, words).await?;
        return Ok(Shown::Chat);
    }
    let verdict = play::play(house, words).await?;
    summary::print(&verdict, json, words);
    Ok(Shown::Play(verdict.holds()))
}

/// What ends the demo from outside: Ctrl-C, a request to end, a terminal that was closed.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self, ControlError> {
        let of = |kind| {
            signal(kind).map_err(|e| {
                ControlError::new(ErrorCode::Runtime, format!("signals cannot be received: {e}"))
            })
        };
        Ok(Self([of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?]))
    }

    async fn next(&mut self) {
        let [int, term, hup] = &mut self.0;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
    }
}
