//! `choirctl chat`: a conversation over lines. Messages get their ids here, so a repeat after a lost connection is
//! recognised; answers are shown once and acknowledged once shown.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::time::Duration;

use choir_messages::id::{AgentId, MessageId, OutboundId};
use serde_json::Value;
use tokio::sync::mpsc;

use super::print::plain;
use super::{Outcome, Printer, told};
use crate::control::views::{AgentView, SaidView, SentView};
use crate::control::{Client, ClientError, ControlError, ErrorCode, Op};

/// Lines read ahead of what is sent.
const LINES: usize = 16;

/// Lines of standard input, read on a thread of their own: a terminal cannot be read otherwise. Ends with the input.
pub(crate) fn stdin_lines() -> mpsc::Receiver<std::io::Result<String>> {
    let (to, lines) = mpsc::channel(LINES);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if to.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Shows one thing an agent said.
pub(crate) fn show_said(said: &SaidView, printer: &Printer) {
    let label = if said.kind == "notice" { "note" } else { "agent" };
    let repeat = if said.repeat { " (may have been shown before)" } else { "" };
    printer.line(said, || format!("{label}{repeat}> {}", plain(&said.text)));
}

pub(super) async fn run(client: &Client, agent: &AgentId, timeout: Duration, printer: &Printer) -> Outcome {
    let now: AgentView =
        client.call(Op::AgentStatus { agent: agent.clone() }, timeout).await.map_err(told)?;
    if now.state == "stopped" || now.state == "failed" {
        let why = now.trouble.map(|t| format!(": {t}")).unwrap_or_default();
        let what = format!("agent \"{agent}\" is {}{why}", now.state);
        return Err(
            ControlError::new(ErrorCode::Negative, what).next(format!("`choirctl agent start {agent}`"))
        );
    }
    let terminal = std::io::stdin().is_terminal();
    if terminal {
        printer.say(&format!("talking with {agent}; one line is one message, Ctrl-D ends"));
    }
    let mut stream = client.stream(Op::Chat { agent: agent.clone(), redeliver: true }).await.map_err(told)?;
    let mut lines = stdin_lines();
    let mut reading = true;
    let mut open: HashSet<MessageId> = HashSet::new();
    let mut shown: HashSet<OutboundId> = HashSet::new();
    while reading || !open.is_empty() {
        tokio::select! {
            line = lines.recv(), if reading => match line {
                None => reading = false,
                Some(Err(error)) => {
                    return Err(ControlError::new(ErrorCode::Usage, format!("standard input is not text: {error}")));
                }
                Some(Ok(line)) if line.trim().is_empty() => {}
                Some(Ok(text)) => {
                    let message = MessageId::fresh();
                    let op = Op::Send { agent: agent.clone(), message, text };
                    match client.call::<SentView>(op, timeout).await {
                        Ok(_) => { open.insert(message); }
                        // The line is refused, not the conversation.
                        Err(ClientError::Refused(error)) if terminal => printer.error(&error),
                        Err(error) => return Err(told(error)),
                    }
                }
            },
            item = stream.item() => {
                let Some(item) = item.map_err(told)? else { break };
                let said: SaidView = parse(item)?;
                if shown.insert(said.outbound) {
                    show_said(&said, printer);
                }
                if said.kind == "answer" {
                    open.remove(&said.message);
                }
                let delivered = Op::Delivered { agent: agent.clone(), outbound: said.outbound };
                client.call::<Value>(delivered, timeout).await.map_err(told)?;
            }
        }
    }
    Ok(true)
}

pub(crate) fn parse(item: Value) -> Result<SaidView, ControlError> {
    serde_json::from_value(item).map_err(|e| told(ClientError::Malformed(e.to_string())))
}
