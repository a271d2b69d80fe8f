//! What the demo says. Narration goes to standard error as plain lines with the seconds since the start; standard output
//! is for answers and results.

use std::io::Write as _;
use std::time::Instant;

use crate::ctl::Printer;

/// Says things.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    pub(super) printer: Printer,
    started: Instant,
}

impl Words {
    pub(super) fn new(printer: Printer) -> Self {
        Self { printer, started: Instant::now() }
    }

    /// One line of narration.
    pub(super) fn say(&self, text: &str) {
        self.printer.say(&format!("[{:6.2} s] {text}", self.started.elapsed().as_secs_f64()));
    }

    /// One line of the played conversation, with its further lines under it.
    pub(super) fn line(&self, who: &str, text: &str) {
        let text = plain(text);
        let mut lines = text.lines();
        self.say(&format!("{who:>10}: {}", lines.next().unwrap_or_default()));
        for line in lines {
            self.printer.say(&format!("{:23}{line}", ""));
        }
    }

    /// Asks for a line of the chat. Only where a person types.
    pub(super) fn prompt(&self) {
        let mut out = std::io::stdout().lock();
        // A prompt that cannot be shown stops nothing.
        let _ = write!(out, "> ").and_then(|()| out.flush());
    }

    /// Ends a line that a person left unfinished.
    pub(super) fn end_line(&self) {
        let _ = writeln!(std::io::stdout().lock());
    }

    /// An answer in the chat.
    pub(super) fn answer(&self, label: &str, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{label}> {}", plain(text)).and_then(|()| out.flush());
    }
}

/// What a model wrote, made safe for a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '?' } else { c }).collect()
}
