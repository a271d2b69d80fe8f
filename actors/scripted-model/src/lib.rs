//! A model that follows a script: an OpenAI-compatible endpoint on loopback for the demo (where no key is given), for
//! tests and for chaos tests. Whoever starts it keeps it in a process that the kills do not reach, so what it saw is
//! evidence from outside the parts under test.
//!
//! What it promises:
//!
//! - An answer is a function of the request's transcript alone, so a request that is repeated after a crash gets the
//!   same answer, and the script needs no memory of its own.
//! - It is as strict as the real thing: a wrong key is refused, and so is a transcript in which a tool call lacks its
//!   result, has two, or a result lacks its call.
//! - Faults come when they are asked for: by request, by message and step, or drawn from a seed.
//! - Every request and what came of it is in the [`Journal`], in memory and, if wanted, as JSON lines in a file.
//!
//! A [`Script`] is data; [`engine`] turns it and a transcript into an answer and knows no sockets.

mod chat;
pub mod engine;
pub mod faults;
pub mod journal;
mod ledger;
pub mod limits;
pub mod script;
mod server;
pub mod transcript;

pub use faults::{Fault, FaultRule, SeededFaults, When};
pub use journal::{Entry, Journal, JournalSink, Outcome};
pub use script::{Branch, Call, Condition, Match, Otherwise, Rule, Script, Step};
pub use server::{Handle, Options, ScriptedModel, StartError};
