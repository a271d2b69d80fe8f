//! `choirctl demo`: a whole Choir in a private folder, to chat with or to watch surviving kills.
//!
//! Used by `choirctl` alone. It promises that everything it starts is gone when it ends, and that the figures it prints are
//! counted from outside the parts under test: from the model endpoint's journal, the workspace, and the tables.

// The demo is built apart from the rest of this crate.

use std::path::PathBuf;

/// How to run the demo.
#[derive(Debug, Clone, Default)]
pub struct DemoOptions {
    /// Play a conversation instead of opening a chat. Implied when stdin is no terminal.
    pub script: bool,
    /// Print the figures as one JSON object, the last line on stdout.
    pub json: bool,
    /// Keep the state folder when the demo ends.
    pub keep: bool,
    /// Use this folder instead of a temporary one.
    pub state_dir: Option<PathBuf>,
}

/// How the demo ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemoExit {
    /// Nothing was lost, nothing duplicated, the chain verifies; or the chat was ended by its user.
    Clean,
    /// Something was lost or duplicated, the chain does not verify, or something stayed behind.
    Damaged,
    /// The demo could not run: nothing was proved.
    Failed,
    /// The user ended the play with Ctrl-C.
    Interrupted,
}

/// Runs the demo.
pub async fn run(_options: DemoOptions) -> DemoExit {
    DemoExit::Failed
}
