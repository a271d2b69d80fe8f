//! The demo's end of the conversation: requests that outlive a choird, the stream of what the agent says, and the chat.

use std::collections::HashSet;
use std::io::{BufRead as _, Read as _};
use std::path::{Path, PathBuf};

use choir_messages::id::{AgentId, MessageId, OutboundId};
use choir_messages::limits::USER_MESSAGE_BYTES;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::control::views::{SaidView, SentView};
use crate::control::{Client, ClientError, ControlError, ErrorCode, Op};

use super::house::{House, agent};
use super::limits;
use super::words::Words;

/// Lines read ahead of what is sent.
const LINES: usize = 4;

/// Asks choird, again and again while it is away. Only for requests that may be done twice.
pub(super) async fn ask<T: DeserializeOwned>(socket: &Path, op: &Op) -> Result<T, ControlError> {
    let until = Instant::now() + limits::ASK_WITHIN;
    loop {
        let attempt = async {
            let client = Client::connect(socket, limits::ATTEMPT).await?;
            client.call(op.clone(), limits::ATTEMPT).await
        };
        let error = match timeout_at(until, attempt).await {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) => error,
            Err(_) => ClientError::Deadline(limits::ASK_WITHIN),
        };
        let passes = match &error {
            ClientError::NotRunning { .. } | ClientError::Lost => true,
            ClientError::Refused(refused) => refused.code == ErrorCode::Runtime,
            ClientError::Deadline(_) | ClientError::Malformed(_) => false,
        };
        if !passes || Instant::now() >= until {
            return Err(error.to_control_error());
        }
        sleep(limits::LOOK_EVERY).await;
    }
}

/// Asks choird once, for what must not be done twice.
pub(super) async fn ask_once<T: DeserializeOwned>(socket: &Path, op: Op) -> Result<T, ControlError> {
    let asked = async {
        let client = Client::connect(socket, limits::ATTEMPT).await?;
        client.call(op, limits::ATTEMPT).await
    };
    asked.await.map_err(|e: ClientError| e.to_control_error())
}

/// What an agent says, over as many connections as it takes. Everything that arrives is handed on, repeats too;
/// confirmed once it is taken.
pub(super) struct Listening {
    said: mpsc::Receiver<SaidView>,
    task: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listening {
    pub(super) fn start(socket: PathBuf, agent: AgentId) -> Self {
        let (to, said) = mpsc::channel(limits::SAID_QUEUE);
        let task = tokio::spawn(async move {
            while !to.is_closed() {
                // Whatever ends a connection, the next one goes on where it was: choird keeps what is not confirmed.
                let _ = listen(&socket, &agent, &to).await;
                sleep(limits::LOOK_EVERY).await;
            }
        });
        Self { said, task }
    }

    /// The next thing said. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<SaidView> {
        self.said.recv().await
    }
}

async fn listen(socket: &Path, agent: &AgentId, to: &mpsc::Sender<SaidView>) -> Result<(), ClientError> {
    let client = Client::connect(socket, limits::ATTEMPT).await?;
    let mut stream = client.stream(Op::Chat { agent: agent.clone(), redeliver: true }).await?;
    while let Some(item) = stream.item().await? {
        let said: SaidView =
            serde_json::from_value(item).map_err(|e| ClientError::Malformed(e.to_string()))?;
        let delivered = Op::Delivered { agent: agent.clone(), outbound: said.outbound };
        if to.send(said).await.is_err() {
            return Ok(());
        }
        client.call::<Value>(delivered, limits::ATTEMPT).await?;
    }
    Ok(())
}

/// The chat in the terminal: a line is a message. Ends with `/quit` or the end of input.
pub(super) async fn chat(house: &House, words: Words) -> Result<(), ControlError> {
    let agent = agent()?;
    let socket = house.socket();
    let mut listening = Listening::start(socket.clone(), agent.clone());
    let mut lines = stdin_lines();
    let mut shown: HashSet<OutboundId> = HashSet::new();
    let mut open: HashSet<MessageId> = HashSet::new();
    words.say("one line is one message; /quit, Ctrl-D or Ctrl-C ends the demo and everything it started");
    if house.model.is_some() {
        words.say("the scripted model knows: read, write, append, search, run; say `help`");
    }
    let prompt = |waiting: usize| {
        if waiting == 0 {
            words.prompt();
        }
    };
    prompt(open.len());
    loop {
        tokio::select! {
            line = lines.recv() => {
                let Some(text) = line else { return Ok(()) };
                match text.trim() {
                    "/quit" | "/exit" => return Ok(()),
                    "" => prompt(open.len()),
                    _ => {
                        let message = MessageId::fresh();
                        let op = Op::Send { agent: agent.clone(), message, text };
                        // A line that is refused is its own loss, not the conversation's.
                        match ask::<SentView>(&socket, &op).await {
                            Ok(_) => { open.insert(message); }
                            Err(error) => { words.printer.error(&error); prompt(open.len()); }
                        }
                    }
                }
            }
            said = listening.next() => {
                let Some(said) = said else { return Ok(()) };
                if shown.insert(said.outbound) {
                    words.answer(if said.kind == "notice" { "note" } else { "agent" }, &said.text);
                    if said.kind == "answer" {
                        open.remove(&said.message);
                        prompt(open.len());
                    }
                }
            }
        }
    }
}

/// Lines of standard input, read on a thread of their own: a terminal cannot be read otherwise. A line longer than any
/// message comes through cut one byte beyond the limit, so that choird refuses it with its own words.
fn stdin_lines() -> mpsc::Receiver<String> {
    let (to, lines) = mpsc::channel(LINES);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        loop {
            let mut line = Vec::new();
            let most = USER_MESSAGE_BYTES as u64 + 1;
            match input.by_ref().take(most).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            } else if line.len() as u64 == most && input.skip_until(b'\n').is_err() {
                return;
            }
            if to.blocking_send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    lines
}
