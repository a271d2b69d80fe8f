//! The small chat that a person gets who tries Choir without a key: five commands that show the tools at work, and an
//! honest sentence for everything else.

use serde_json::{Value, json};

use crate::limits::QUOTE_BYTES;

const HELP: &str = "I am Choir's scripted model: no language model, but I can drive the tools. Try one of these:\n\
    \n  read <path>\n  write <path>: <text>\n  append <path>: <text>\n  search <pattern> [in <path>]\n  run <command>\n\
    \nFor real conversations start Choir with OPENROUTER_API_KEY or OPENAI_API_KEY set.";

/// What the chat does next.
pub(crate) enum Says {
    /// Answers.
    Text(String),
    /// Calls a tool, by its canonical name.
    Call(&'static str, Value),
}

enum Command<'a> {
    Read(&'a str),
    Write { path: &'a str, text: &'a str, mode: &'static str },
    Search { pattern: &'a str, path: Option<&'a str> },
    Run(&'a str),
    Help,
    Other,
}

/// The answer to a message after `step` rounds of tool calls, the last of which gave `result`.
pub(crate) fn answer(message: &str, step: usize, result: Option<&str>) -> Says {
    let command = command(message);
    if step == 0 {
        return match command {
            Command::Read(path) => Says::Call("choir.fs.read", json!({ "path": path })),
            Command::Write { path, text, mode } => {
                Says::Call("choir.fs.write", json!({ "path": path, "mode": mode, "content": text }))
            }
            Command::Search { pattern, path: None } => {
                Says::Call("choir.fs.search", json!({ "pattern": pattern }))
            }
            Command::Search { pattern, path: Some(path) } => {
                Says::Call("choir.fs.search", json!({ "pattern": pattern, "path": path }))
            }
            Command::Run(line) => Says::Call("choir.exec", json!({ "command": line })),
            Command::Help => Says::Text(HELP.to_owned()),
            Command::Other => Says::Text(
                "I am Choir's scripted model and understand only a few commands; say `help` to see them."
                    .to_owned(),
            ),
        };
    }
    let result = result.and_then(|result| serde_json::from_str::<Value>(result).ok()).unwrap_or_default();
    let status = result.get("status").and_then(Value::as_str).unwrap_or("unknown");
    let output = result.get("output").unwrap_or(&result);
    let shown = shown(output);
    Says::Text(match (status, command) {
        ("success", Command::Read(path)) => format!("{path}:\n\n{shown}"),
        ("success", Command::Write { path, .. }) => format!("Done: {path} is written."),
        ("success", Command::Search { .. }) => format!("Found:\n\n{shown}"),
        ("success", Command::Run(line)) => format!("$ {line}\n{shown}"),
        ("outcome_unknown", Command::Read(_) | Command::Search { .. }) => {
            "I was interrupted before I saw the result. It changed nothing; please ask again.".to_owned()
        }
        ("outcome_unknown", _) => format!(
            "I was interrupted, and it is unknown whether that took effect; look before you repeat it.\n\n{shown}"
        ),
        (_, Command::Run(line)) => format!("$ {line}\n{shown}"),
        _ => format!("That did not work ({status}):\n\n{shown}"),
    })
}

fn command(message: &str) -> Command<'_> {
    let message = message.trim();
    let (word, rest) = message.split_once(char::is_whitespace).unwrap_or((message, ""));
    let rest = rest.trim();
    match (word.to_ascii_lowercase().as_str(), rest) {
        ("help" | "?" | "/help", _) => Command::Help,
        (_, "") => Command::Other,
        ("read", path) => Command::Read(path),
        ("search", rest) => match rest.rsplit_once(" in ") {
            Some((pattern, path)) if !pattern.trim().is_empty() && !path.trim().is_empty() => {
                Command::Search { pattern: pattern.trim(), path: Some(path.trim()) }
            }
            _ => Command::Search { pattern: rest, path: None },
        },
        ("run", line) => Command::Run(line),
        (word @ ("write" | "append"), rest) => match rest.split_once(':') {
            Some((path, text)) if !path.trim().is_empty() => {
                let mode = if word == "write" { "overwrite" } else { "append" };
                let text = text.strip_prefix(' ').unwrap_or(text);
                Command::Write { path: path.trim(), text, mode }
            }
            _ => Command::Other,
        },
        _ => Command::Other,
    }
}

/// What of a tool's output is for a person: the texts it carries by the names that tools use, or all of it.
fn shown(output: &Value) -> String {
    let field = |name| output.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(lines) = output.get("matches").and_then(Value::as_array) {
        return matches(lines);
    }
    let mut texts: Vec<&str> =
        ["content", "text", "stdout", "stderr", "error"].into_iter().filter_map(field).collect();
    let whole;
    if texts.is_empty() {
        whole = serde_json::to_string_pretty(output).unwrap_or_default();
        texts.push(&whole);
    }
    cut(texts.join("\n"))
}

/// What a search found, one line each.
fn matches(found: &[Value]) -> String {
    let field = |item: &Value, name: &str| match item.get(name) {
        Some(Value::String(text)) => text.trim_end().to_owned(),
        Some(value) => value.to_string(),
        None => String::new(),
    };
    let line =
        |item: &Value| format!("{}:{}: {}", field(item, "path"), field(item, "line"), field(item, "text"));
    let lines: Vec<String> = found.iter().map(line).collect();
    if lines.is_empty() { "nothing".to_owned() } else { cut(lines.join("\n")) }
}

fn cut(mut text: String) -> String {
    if text.len() > QUOTE_BYTES {
        while text.len() > QUOTE_BYTES {
            text.pop();
        }
        text.push_str("\n...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(message: &str) -> (&'static str, Value) {
        match answer(message, 0, None) {
            Says::Call(tool, arguments) => (tool, arguments),
            Says::Text(text) => panic!("{text}"),
        }
    }

    fn said(message: &str, step: usize, result: Value) -> String {
        match answer(message, step, Some(&result.to_string())) {
            Says::Text(text) => text,
            Says::Call(tool, _) => panic!("{tool}"),
        }
    }

    #[test]
    fn each_command_calls_its_tool() {
        assert_eq!(called("read notes.md"), ("choir.fs.read", json!({ "path": "notes.md" })));
        assert_eq!(
            called("Write a/b.txt: x: y"),
            ("choir.fs.write", json!({ "path": "a/b.txt", "mode": "overwrite", "content": "x: y" }))
        );
        assert_eq!(
            called("append a: z"),
            ("choir.fs.write", json!({ "path": "a", "mode": "append", "content": "z" }))
        );
        assert_eq!(called("search fn main"), ("choir.fs.search", json!({ "pattern": "fn main" })));
        assert_eq!(called("search x in src"), ("choir.fs.search", json!({ "pattern": "x", "path": "src" })));
        assert_eq!(called("run ls -l"), ("choir.exec", json!({ "command": "ls -l" })));
    }

    #[test]
    fn anything_else_gets_a_plain_sentence() {
        for message in ["hello", "", "read", "write", "write x", "run ", "é"] {
            assert!(said(message, 0, json!(null)).contains("scripted model"), "{message}");
        }
        assert!(said("help", 0, json!(null)).contains("search <pattern>"));
    }

    #[test]
    fn a_result_is_shown_and_a_failure_is_called_one() {
        let output = |status: &str, output: Value| json!({ "status": status, "output": output });
        assert!(said("read a", 1, output("success", json!({ "content": "hello" }))).contains("hello"));
        assert!(
            said("read a", 1, output("error", json!({ "error": "no such file" }))).contains("no such file")
        );
        assert!(said("run make", 1, output("outcome_unknown", json!({}))).contains("unknown"));
        let found = json!({ "matches": [{ "path": "a.rs", "line": 3, "text": "fn x" }] });
        assert!(said("search x", 1, output("success", found)).contains("a.rs:3: fn x"));
        assert!(said("search x", 1, output("success", json!({ "matches": [] }))).contains("nothing"));
        assert!(said("run make", 1, json!("odd")).contains("odd"));
    }
}
