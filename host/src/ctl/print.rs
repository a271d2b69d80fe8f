//! Printing: data on standard output, talk on standard error, colour only where a person looks and wants it.

use std::io::{IsTerminal, Write};

use serde::Serialize;
use serde_json::json;

use crate::control::ControlError;

/// How this run prints.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    json: bool,
    colour: bool,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Self { json, colour: wanted && std::io::stderr().is_terminal() }
    }

    /// One result: pretty JSON, or a text that ends its own lines.
    pub(crate) fn show<T: Serialize>(self, view: &T, human: impl FnOnce() -> String) {
        let text = if self.json {
            let mut text = serde_json::to_string_pretty(view).unwrap_or_else(|_| "null".into());
            text.push('\n');
            text
        } else {
            human()
        };
        out(&text);
    }

    /// One line of a stream. False when nobody reads any more.
    pub(crate) fn line<T: Serialize>(self, item: &T, human: impl FnOnce() -> String) -> bool {
        let mut text =
            if self.json { serde_json::to_string(item).unwrap_or_else(|_| "null".into()) } else { human() };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        out(&text)
    }

    /// Talk.
    pub(crate) fn say(self, text: &str) {
        let mut err = std::io::stderr().lock();
        let _ = writeln!(err, "{text}");
    }

    /// Why there is no result: what, why, the next command.
    pub(crate) fn error(self, error: &ControlError) {
        if self.json {
            let view = json!({ "error": error, "exit_code": error.code.exit_code() });
            self.say(&view.to_string());
            return;
        }
        self.say(&format!("{} {}", self.paint("31", "error:"), error.what));
        if let Some(next) = &error.next {
            self.say(&format!("  next: {next}"));
        }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// One line of a file, whatever way of printing was asked for. False when nobody reads any more.
pub(crate) fn raw_line(line: &str) -> bool {
    out(&format!("{line}\n"))
}

fn out(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// What a stranger wrote, made safe for a terminal: control characters but line breaks and tabs are shown as `?`.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '?' } else { c }).collect()
}
