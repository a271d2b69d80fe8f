//! What a group commit writes, gathered column by column so that each table takes one statement whatever the group's
//! size.

use choir_messages::event::{EventBody, Head, MessageOutcome, Revision};
use choir_messages::id::{AgentId, MessageId, OutboundId, SessionId};
use choir_messages::tool::{SideEffect, ToolStatus};
use sqlx::PgConnection;

use super::keeper::Checked;
use crate::error::StoreError;
use crate::limits;
use crate::store::ids;

/// Longest tool name kept in the table of invocations, in bytes; a model may have written anything.
const TOOL_NAME_BYTES: usize = 200;

/// Something that is said to a user: an answer, which also closes its message, or a notice.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) message: MessageId,
    pub(crate) agent: AgentId,
    /// None for a notice.
    pub(crate) outcome: Option<MessageOutcome>,
    pub(crate) text: String,
    /// Revision of the event that says it; none when the host itself closes the message.
    pub(crate) rev: Option<Revision>,
}

/// The rows of one group. Texts are borrowed from the appends.
#[derive(Debug, Default)]
pub(crate) struct Rows<'a> {
    event_session: Vec<String>,
    event_rev: Vec<i64>,
    event_type: Vec<&'a str>,
    event_lane: Vec<String>,
    event_canonical: Vec<&'a str>,
    event_hash: Vec<String>,
    recorded_message: Vec<String>,
    recorded_agent: Vec<&'a str>,
    recorded_session: Vec<String>,
    recorded_rev: Vec<i64>,
    committed_session: Vec<String>,
    committed_invocation: Vec<String>,
    committed_tool: Vec<String>,
    committed_effect: Vec<&'a str>,
    committed_rev: Vec<i64>,
    result_session: Vec<String>,
    result_invocation: Vec<String>,
    result_status: Vec<&'a str>,
    result_rev: Vec<i64>,
    pub(crate) said: Vec<Said>,
    head_session: Vec<String>,
    head_rev: Vec<i64>,
    head_hash: Vec<String>,
    snapshot_session: Vec<String>,
    snapshot_rev: Vec<i64>,
    snapshot_hash: Vec<String>,
    snapshot_view: Vec<String>,
}

impl<'a> Rows<'a> {
    /// Takes one session's new events and its new head.
    pub(crate) fn session(
        &mut self,
        session: SessionId,
        agent: &'a AgentId,
        events: &'a [Checked],
        head: Head,
    ) -> Result<(), StoreError> {
        for checked in events {
            self.event(session, agent, checked)?;
        }
        self.head_session.push(session.to_string());
        self.head_rev.push(ids::column(head.rev)?);
        self.head_hash.push(head.hash.to_string());
        Ok(())
    }

    fn event(
        &mut self,
        session: SessionId,
        agent: &'a AgentId,
        checked: &'a Checked,
    ) -> Result<(), StoreError> {
        let Checked { event, text } = checked;
        let rev = ids::column(event.rev)?;
        self.event_session.push(session.to_string());
        self.event_rev.push(rev);
        self.event_type.push(event.body.kind());
        self.event_lane.push(event.lane.to_string());
        self.event_canonical.push(text);
        self.event_hash.push(event.hash.to_string());
        match &event.body {
            EventBody::UserMsg { message, .. } => {
                self.recorded_message.push(message.to_string());
                self.recorded_agent.push(agent.as_str());
                self.recorded_session.push(session.to_string());
                self.recorded_rev.push(rev);
            }
            EventBody::ToolCallCommitted { invocation, tool, side_effect, .. } => {
                self.committed_session.push(session.to_string());
                self.committed_invocation.push(invocation.to_string());
                self.committed_tool.push(ids::storable(tool, TOOL_NAME_BYTES));
                self.committed_effect.push(match side_effect {
                    SideEffect::Read => "read",
                    SideEffect::Write => "write",
                    SideEffect::External => "external",
                });
                self.committed_rev.push(rev);
            }
            EventBody::ToolResultCommitted { invocation, outcome } => {
                self.result_session.push(session.to_string());
                self.result_invocation.push(invocation.to_string());
                self.result_status.push(match outcome.status {
                    ToolStatus::Success => "success",
                    ToolStatus::Error => "error",
                    ToolStatus::Refused => "refused",
                    ToolStatus::Cancelled => "cancelled",
                    ToolStatus::OutcomeUnknown => "outcome_unknown",
                });
                self.result_rev.push(rev);
            }
            EventBody::Notice { message, text } => self.said.push(Said {
                message: *message,
                agent: agent.clone(),
                outcome: None,
                text: text.clone(),
                rev: Some(event.rev),
            }),
            EventBody::MessageClosed { message, outcome, text } => self.said.push(Said {
                message: *message,
                agent: agent.clone(),
                outcome: Some(*outcome),
                text: text.clone(),
                rev: Some(event.rev),
            }),
            _ => {}
        }
        Ok(())
    }

    /// Takes a snapshot as its JSON text.
    pub(crate) fn snapshot(
        &mut self,
        session: SessionId,
        head: Head,
        view: String,
    ) -> Result<(), StoreError> {
        self.snapshot_session.push(session.to_string());
        self.snapshot_rev.push(ids::column(head.rev)?);
        self.snapshot_hash.push(head.hash.to_string());
        self.snapshot_view.push(view);
        Ok(())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.event_rev.is_empty()
    }

    pub(crate) const fn records_messages(&self) -> bool {
        !self.recorded_rev.is_empty()
    }

    /// Writes everything. The caller holds the sessions' row locks and has checked that each continues its head.
    pub(crate) async fn write(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        self.write_events(connection).await?;
        if !self.recorded_rev.is_empty() {
            sqlx::query(
                "UPDATE choir_control.inbox i SET recorded_session = r.session_id, recorded_rev = r.rev
                 FROM UNNEST($1::text[], $2::text[], $3::text[], $4::bigint[]) AS r (message_id, agent_id, session_id, rev)
                 WHERE i.message_id = r.message_id AND i.agent_id = r.agent_id AND i.recorded_rev IS NULL",
            )
            .bind(&self.recorded_message)
            .bind(&self.recorded_agent)
            .bind(&self.recorded_session)
            .bind(&self.recorded_rev)
            .execute(&mut *connection)
            .await?;
        }
        if !self.committed_rev.is_empty() {
            sqlx::query(
                "INSERT INTO choir_control.invocations (session_id, invocation_id, tool, side_effect, committed_rev)
                 SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
                 ON CONFLICT DO NOTHING",
            )
            .bind(&self.committed_session)
            .bind(&self.committed_invocation)
            .bind(&self.committed_tool)
            .bind(&self.committed_effect)
            .bind(&self.committed_rev)
            .execute(&mut *connection)
            .await?;
        }
        if !self.result_rev.is_empty() {
            sqlx::query(
                "UPDATE choir_control.invocations i SET status = r.status, result_rev = r.rev
                 FROM UNNEST($1::text[], $2::text[], $3::text[], $4::bigint[]) AS r (session_id, invocation_id, status, rev)
                 WHERE i.session_id = r.session_id AND i.invocation_id = r.invocation_id AND i.result_rev IS NULL",
            )
            .bind(&self.result_session)
            .bind(&self.result_invocation)
            .bind(&self.result_status)
            .bind(&self.result_rev)
            .execute(&mut *connection)
            .await?;
        }
        settle(connection, &self.said).await?;
        self.write_snapshots(connection).await
    }

    async fn write_events(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        sqlx::query(
            "WITH events AS (
                 INSERT INTO choir_control.session_events (session_id, rev, event_type, lane, canonical, hash)
                 SELECT * FROM UNNEST($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[]))
             UPDATE choir_control.sessions s SET head_rev = h.rev, head_hash = h.hash
             FROM UNNEST($7::text[], $8::bigint[], $9::text[]) AS h (session_id, rev, hash)
             WHERE s.session_id = h.session_id",
        )
        .bind(&self.event_session)
        .bind(&self.event_rev)
        .bind(&self.event_type)
        .bind(&self.event_lane)
        .bind(&self.event_canonical)
        .bind(&self.event_hash)
        .bind(&self.head_session)
        .bind(&self.head_rev)
        .bind(&self.head_hash)
        .execute(connection)
        .await?;
        Ok(())
    }

    async fn write_snapshots(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        if self.snapshot_rev.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO choir_control.session_snapshots (session_id, rev, hash, view_json)
             SELECT * FROM UNNEST($1::text[], $2::bigint[], $3::text[], $4::text[]) ON CONFLICT DO NOTHING",
        )
        .bind(&self.snapshot_session)
        .bind(&self.snapshot_rev)
        .bind(&self.snapshot_hash)
        .bind(&self.snapshot_view)
        .execute(&mut *connection)
        .await?;
        sqlx::query(
            "DELETE FROM choir_control.session_snapshots s
             WHERE s.session_id = ANY($1) AND (SELECT count(*) FROM choir_control.session_snapshots n
                 WHERE n.session_id = s.session_id AND n.rev > s.rev) >= $2",
        )
        .bind(&self.snapshot_session)
        .bind(ids::column(limits::SNAPSHOTS_KEPT)?)
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// Closes messages and prepares what is said to users, in order, in the caller's transaction. A message that is closed
/// already stays as it is and nothing more is said for it; one that is not in the agent's inbox says nothing to anyone,
/// since there is nobody to say it to.
pub(crate) async fn settle(connection: &mut PgConnection, said: &[Said]) -> Result<u64, StoreError> {
    if said.is_empty() {
        return Ok(0);
    }
    let text: Vec<String> = said.iter().map(|s| ids::text_to_json(&s.text)).collect();
    let rev: Vec<Option<i64>> =
        said.iter().map(|s| s.rev.map(ids::column).transpose()).collect::<Result<_, _>>()?;
    let done = sqlx::query(
        "WITH said AS (
             SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])
                 WITH ORDINALITY AS s (message_id, agent_id, outbound_id, outcome, text_json, rev, ord)),
         closed AS (
             UPDATE choir_control.inbox i SET outcome = s.outcome, closed_rev = s.rev, closed_at = now()
             FROM said s WHERE i.message_id = s.message_id AND i.agent_id = s.agent_id
                 AND s.outcome IS NOT NULL AND i.closed_at IS NULL
             RETURNING i.message_id)
         INSERT INTO choir_control.outbox (outbound_id, message_id, agent_id, kind, text_json)
         SELECT s.outbound_id, s.message_id, s.agent_id,
                CASE WHEN s.outcome IS NULL THEN 'notice' ELSE 'answer' END, s.text_json
         FROM said s JOIN choir_control.inbox i ON i.message_id = s.message_id AND i.agent_id = s.agent_id
              LEFT JOIN closed c ON c.message_id = s.message_id
         WHERE s.outcome IS NULL OR c.message_id IS NOT NULL
         ORDER BY s.ord ON CONFLICT DO NOTHING",
    )
    .bind(said.iter().map(|s| s.message.to_string()).collect::<Vec<_>>())
    .bind(said.iter().map(|s| s.agent.as_str()).collect::<Vec<_>>())
    .bind(said.iter().map(|_| OutboundId::fresh().to_string()).collect::<Vec<_>>())
    .bind(said.iter().map(|s| s.outcome.map(ids::outcome_text)).collect::<Vec<_>>())
    .bind(&text)
    .bind(&rev)
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
