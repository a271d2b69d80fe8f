//! Gathers what can be seen from outside once a conversation is over: the tables by a connection of its own, and the
//! workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

use choir_messages::chain::Digest;
use choir_messages::event::{Head, MessageOutcome};
use choir_messages::id::{MessageId, SessionId};
use sqlx::postgres::PgConnection;

use super::HarnessError;
use super::house::{House, hang_up};
use crate::check::{InboxRow, InvocationRow, LoggedEvent, OutboxRow};
use crate::plan::{HEAD, OWN, Plan, RAN, WROTE};

/// What the tables say of one session.
pub(super) struct Tables {
    pub(super) head: Head,
    pub(super) inbox: Vec<InboxRow>,
    pub(super) outbox: Vec<OutboxRow>,
    pub(super) log: Vec<LoggedEvent>,
    pub(super) invocations: Vec<InvocationRow>,
    pub(super) leases: i64,
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, HarnessError> {
    text.parse().map_err(|error: T::Err| HarnessError::Unreadable(error.to_string()))
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, HarnessError> {
    serde_json::from_str(text).map_err(|error| HarnessError::Unreadable(error.to_string()))
}

/// Reads the tables. `before` are messages of earlier conversations.
pub(super) async fn tables(
    house: &House,
    session: SessionId,
    before: &BTreeSet<MessageId>,
) -> Result<Tables, HarnessError> {
    let mut sql = house.sql().await?;
    let tables = read(&mut sql, session, before).await;
    hang_up(sql).await;
    tables
}

async fn read(
    sql: &mut PgConnection,
    session: SessionId,
    before: &BTreeSet<MessageId>,
) -> Result<Tables, HarnessError> {
    let id = session.to_string();
    let (rev, hash): (i64, String) =
        sqlx::query_as("SELECT head_rev, head_hash FROM choir_control.sessions WHERE session_id = $1")
            .bind(&id)
            .fetch_one(&mut *sql)
            .await?;
    let head = Head { rev: u64::try_from(rev).unwrap_or_default(), hash: parsed(&hash)? };
    let rows: Vec<(String, Option<String>)> =
        sqlx::query_as("SELECT message_id, outcome FROM choir_control.inbox ORDER BY seq")
            .fetch_all(&mut *sql)
            .await?;
    let mut inbox = Vec::new();
    for (message, outcome) in rows {
        let outcome = outcome.map(|word| json::<MessageOutcome>(&format!("\"{word}\""))).transpose()?;
        inbox.push(InboxRow { message: parsed(&message)?, outcome });
    }
    inbox.retain(|row| !before.contains(&row.message));
    let rows: Vec<(String, String, String, String, String)> = sqlx::query_as(
        "SELECT outbound_id, message_id, kind, text_json, state FROM choir_control.outbox ORDER BY seq",
    )
    .fetch_all(&mut *sql)
    .await?;
    let mut outbox = Vec::new();
    for (outbound, message, kind, text, state) in rows {
        let (outbound, message, text) = (parsed(&outbound)?, parsed(&message)?, json(&text)?);
        outbox.push(OutboxRow { outbound, message, kind, text, state });
    }
    outbox.retain(|row| !before.contains(&row.message));
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT canonical, hash FROM choir_control.session_events WHERE session_id = $1 ORDER BY rev",
    )
    .bind(&id)
    .fetch_all(&mut *sql)
    .await?;
    let mut log = Vec::new();
    for (canonical, hash) in rows {
        log.push(LoggedEvent { canonical, hash: parsed::<Digest>(&hash)? });
    }
    let rows: Vec<(String, String)> =
        sqlx::query_as("SELECT invocation_id, status FROM choir_control.invocations WHERE session_id = $1")
            .bind(&id)
            .fetch_all(&mut *sql)
            .await?;
    let mut invocations = Vec::new();
    for (invocation, status) in rows {
        invocations.push(InvocationRow { invocation: parsed(&invocation)?, status });
    }
    let (leases,): (i64,) =
        sqlx::query_as("SELECT count(*) FROM choir_control.leases").fetch_one(&mut *sql).await?;
    Ok(Tables { head, inbox, outbox, log, invocations, leases })
}

/// Makes the folder of a conversation.
pub(super) fn prepare(house: &House, plan: &Plan) -> std::io::Result<()> {
    let dir = house.workspace().join(plan.folder());
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join(RAN), format!("{HEAD}\n"))?;
    std::fs::write(dir.join(WROTE), format!("{HEAD}\n"))
}

/// The lines that the conversation left in its folder, and how often each is there. Files that nobody was to make count
/// as lines of their own.
pub(super) fn lines(house: &House, plan: &Plan) -> std::io::Result<BTreeMap<String, u32>> {
    let dir = house.workspace().join(plan.folder());
    let mut lines = BTreeMap::new();
    for entry in std::fs::read_dir(&dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let shared = name == RAN || name == WROTE;
        if !shared && !name.starts_with(OWN) {
            lines.insert(format!("the file {name}"), 1);
            continue;
        }
        let mut text = read_text(&dir.join(&name))?;
        if shared {
            // The first line, wherever it stands by now.
            text = text.replacen(&format!("{HEAD}\n"), "", 1);
        }
        for line in text.lines() {
            *lines.entry(line.to_owned()).or_insert(0) += 1;
        }
    }
    Ok(lines)
}

fn read_text(path: &Path) -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}
