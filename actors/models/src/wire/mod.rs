//! The chat completions wire format (`choir §21.1`): requests out, answers in. Pure functions over bytes and plain
//! types; nothing here knows of sockets or clocks.

mod answer;
mod names;
mod request;

pub use answer::{Parsed, Reading, parse};
pub use names::ToolNames;
pub use request::body;
