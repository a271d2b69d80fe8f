//! Calls to language models over the OpenAI-compatible chat completions interface (`choir §7.7`, `choir §21`). Each
//! agent has one [`ModelsActor`]; its lanes send it [`ModelsMsg::Complete`](choir_messages::mail::ModelsMsg) and get
//! exactly one answer or one [`ModelFailure`](choir_messages::model::ModelFailure) that a person can be told.
//!
//! What it promises:
//!
//! - After a 429 a call waits as long as the provider asks, bounded, and is tried once more; nothing else is repeated.
//! - A key goes into one Authorization header and nowhere else: not into errors, logs, spans, prompts or the answers
//!   that go into the log, even if the endpoint echoes it. No redirect takes it to another address.
//! - Whatever a provider sends is read within bounds of size and time and ends in an answer or a failure.
//! - A call keeps the settings it began with; new settings are taken whole and outlive a crash of the actor.
//! - A call that is cancelled, or whose asker is gone, is dropped with its connection.
//!
//! [`wire`] and [`exchange`] hold the rules and know no sockets; [`client`] and [`actor`] carry them out.

pub mod actor;
pub mod client;
pub mod exchange;
pub mod limits;
pub mod scrub;
pub mod settings;
pub mod wire;

pub use actor::{ModelsActor, child_spec, child_spec_in};
pub use client::Client;
pub use settings::{Settings, SettingsError};
