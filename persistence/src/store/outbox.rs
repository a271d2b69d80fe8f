//! The outbox: what is said to users, on its way through prepared, sending, delivered and ambiguous (DESIGN §5). Nothing
//! is ever resent blindly: after a crash the unknown is called ambiguous, and only a channel that recognises a repeat by
//! its id may ask for it again.

use choir_messages::id::{AgentId, MessageId, OutboundId};
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::changes::ChangeKind;
use super::{Store, ids};
use crate::error::StoreError;
use crate::limits;

/// Where an outbound message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxState {
    /// Born; nobody has tried to send it.
    Prepared,
    /// A channel is sending it.
    Sending,
    /// The user's side has it.
    Delivered,
    /// It may or may not have arrived.
    Ambiguous,
    /// Given up.
    Expired,
}

/// What happens to an outbound message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutboxStep {
    /// A channel takes it to send it.
    Claim,
    /// The channel knows that it arrived.
    Delivered,
    /// The channel knows that it did not leave.
    NotSent,
    /// The channel does not know.
    Lost,
    /// A channel that recognises repeats takes it to send it again under the same id.
    Redeliver,
    /// It is too old to be said.
    Expire,
}

impl OutboxState {
    /// All states.
    pub const ALL: [Self; 5] =
        [Self::Prepared, Self::Sending, Self::Delivered, Self::Ambiguous, Self::Expired];

    /// The state after a step, or none if the step may not happen in this state. `uncertain` says whether an earlier
    /// attempt ended without anyone knowing. This is the one definition: the SQL of every change is built from it.
    #[must_use]
    pub const fn after(self, step: OutboxStep, uncertain: bool) -> Option<Self> {
        use OutboxState as S;
        use OutboxStep as T;
        match (self, step) {
            (S::Prepared, T::Claim) | (S::Ambiguous, T::Redeliver) => Some(S::Sending),
            // A late confirmation of an ambiguous one is welcome, and a repeated confirmation changes nothing.
            (S::Sending | S::Ambiguous | S::Delivered, T::Delivered) => Some(S::Delivered),
            // That this attempt did not leave says nothing of an earlier one.
            (S::Sending, T::NotSent) if uncertain => Some(S::Ambiguous),
            (S::Sending, T::NotSent) => Some(S::Prepared),
            (S::Sending | S::Ambiguous, T::Lost) => Some(S::Ambiguous),
            (S::Prepared | S::Ambiguous, T::Expire) => Some(S::Expired),
            _ => None,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
            Self::Sending => "sending",
            Self::Delivered => "delivered",
            Self::Ambiguous => "ambiguous",
            Self::Expired => "expired",
        }
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
        Self::ALL
            .into_iter()
            .find(|state| state.text() == text)
            .ok_or_else(|| StoreError::corrupt(format!("outbox state \"{text}\"")))
    }
}

impl OutboxStep {
    /// All steps.
    pub const ALL: [Self; 6] =
        [Self::Claim, Self::Delivered, Self::NotSent, Self::Lost, Self::Redeliver, Self::Expire];

    /// The states in which the step may happen, and where it leads: when no earlier attempt is uncertain, and when one is.
    pub(crate) fn edges(self) -> Edges {
        let mut edges = Edges { from: Vec::new(), to: "", to_uncertain: "" };
        for state in OutboxState::ALL {
            if let (Some(to), Some(to_uncertain)) = (state.after(self, false), state.after(self, true)) {
                edges.from.push(state.text());
                edges.to = to.text();
                edges.to_uncertain = to_uncertain.text();
            }
        }
        edges
    }

    const fn counts_as_attempt(self) -> bool {
        matches!(self, Self::Claim | Self::Redeliver)
    }
}

/// One step as the parameters of a statement.
#[derive(Debug)]
pub(crate) struct Edges {
    pub(crate) from: Vec<&'static str>,
    pub(crate) to: &'static str,
    pub(crate) to_uncertain: &'static str,
}

/// What an outbound message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboundKind {
    /// The one answer to a message (also when it says why there is none).
    Answer,
    /// Something on the way, such as a rate limit.
    Notice,
}

/// One outbound message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutboxRow {
    /// Its id, which channels that recognise repeats hand on.
    pub outbound: OutboundId,
    /// The message it is about.
    pub message: MessageId,
    /// Whose agent says it.
    pub agent: AgentId,
    /// The channel of the message it is about.
    pub source: String,
    /// Answer or notice.
    pub kind: OutboundKind,
    /// What is said.
    pub text: String,
    /// Where it stands.
    pub state: OutboxState,
    /// Times a channel took it.
    pub attempts: u32,
    /// When it was born.
    pub created_at: Timestamp,
    /// When its state last changed.
    pub updated_at: Timestamp,
}

type Columns = (String, String, String, String, String, String, String, i32, i64, i64);

/// The columns of an [`OutboxRow`], for `choir_control.outbox o JOIN choir_control.inbox i`.
macro_rules! columns {
    () => {
        "o.outbound_id, o.message_id, o.agent_id, i.source, o.kind, o.text_json, o.state, o.attempts,
         choir_control.to_ms(o.created_at), choir_control.to_ms(o.updated_at)"
    };
}

fn row(columns: Columns) -> Result<OutboxRow, StoreError> {
    let (outbound, message, agent, source, kind, text, state, attempts, created, updated) = columns;
    Ok(OutboxRow {
        outbound: ids::parse(&outbound)?,
        message: ids::parse(&message)?,
        agent: ids::parse(&agent)?,
        source,
        kind: if kind == "answer" { OutboundKind::Answer } else { OutboundKind::Notice },
        text: ids::text_from_json(&text)?,
        state: OutboxState::parse(&state)?,
        attempts: u32::try_from(attempts).unwrap_or(0),
        created_at: ids::at(created),
        updated_at: ids::at(updated),
    })
}

impl Store {
    /// Takes the oldest prepared message of an agent to send it, or none. With `source`, only of that channel.
    ///
    /// The caller must end its sending with [`Store::outbound_step`]; if it crashes, the message becomes ambiguous.
    pub async fn claim_next(
        &self,
        agent: &AgentId,
        source: Option<&str>,
    ) -> Result<Option<OutboxRow>, StoreError> {
        let edges = OutboxStep::Claim.edges();
        let columns: Option<Columns> = sqlx::query_as(concat!(
            "UPDATE choir_control.outbox o SET state = $4, attempts = o.attempts + 1, updated_at = now()
             FROM choir_control.inbox i
             WHERE i.message_id = o.message_id AND o.outbound_id = (
                 SELECT n.outbound_id FROM choir_control.outbox n JOIN choir_control.inbox m USING (message_id)
                 WHERE n.agent_id = $1 AND ($2::text IS NULL OR m.source = $2) AND n.state = ANY($3)
                 ORDER BY n.seq LIMIT 1 FOR UPDATE OF n SKIP LOCKED)
             RETURNING ",
            columns!()
        ))
        .bind(agent.as_str())
        .bind(source)
        .bind(edges.from)
        .bind(edges.to)
        .fetch_optional(self.pool())
        .await?;
        if columns.is_some() {
            self.changed(agent, ChangeKind::Outbox);
        }
        columns.map(row).transpose()
    }

    /// Records one step of one outbound message. Returns the message as it is now, or none when there is no such
    /// message or the step may not happen in its state (nothing was changed then).
    pub async fn outbound_step(
        &self,
        outbound: OutboundId,
        step: OutboxStep,
    ) -> Result<Option<OutboxRow>, StoreError> {
        let edges = step.edges();
        let columns: Option<Columns> = sqlx::query_as(concat!(
            "UPDATE choir_control.outbox o SET state = CASE WHEN o.uncertain THEN $4 ELSE $3 END,
                 attempts = o.attempts + $5, uncertain = o.uncertain OR $6, updated_at = now()
             FROM choir_control.inbox i
             WHERE i.message_id = o.message_id AND o.outbound_id = $1 AND o.state = ANY($2)
             RETURNING ",
            columns!()
        ))
        .bind(outbound.to_string())
        .bind(edges.from)
        .bind(edges.to)
        .bind(edges.to_uncertain)
        .bind(i32::from(step.counts_as_attempt()))
        .bind(step == OutboxStep::Lost)
        .fetch_optional(self.pool())
        .await?;
        let row = columns.map(row).transpose()?;
        if let Some(row) = &row {
            self.changed(&row.agent, ChangeKind::Outbox);
        }
        Ok(row)
    }

    /// The channel knows that the message arrived. False if there is none in a state where that can be.
    pub async fn delivered(&self, outbound: OutboundId) -> Result<bool, StoreError> {
        Ok(self.outbound_step(outbound, OutboxStep::Delivered).await?.is_some())
    }

    /// The channel does not know whether the message arrived.
    pub async fn ambiguous(&self, outbound: OutboundId) -> Result<bool, StoreError> {
        Ok(self.outbound_step(outbound, OutboxStep::Lost).await?.is_some())
    }

    /// The channel knows that the message did not leave; it is prepared again.
    pub async fn not_sent(&self, outbound: OutboundId) -> Result<bool, StoreError> {
        Ok(self.outbound_step(outbound, OutboxStep::NotSent).await?.is_some())
    }

    /// Ambiguous messages of an agent, oldest first: what a channel that recognises repeats may send again, each after
    /// [`OutboxStep::Redeliver`]. At most [`limits::LIST_ROWS`].
    pub async fn redeliverable(
        &self,
        agent: &AgentId,
        source: Option<&str>,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        let rows: Vec<Columns> = sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM choir_control.outbox o JOIN choir_control.inbox i USING (message_id)
              WHERE o.agent_id = $1 AND ($2::text IS NULL OR i.source = $2) AND o.state = ANY($3)
              ORDER BY o.seq LIMIT $4"
        ))
        .bind(agent.as_str())
        .bind(source)
        .bind(OutboxStep::Redeliver.edges().from)
        .bind(i64::from(limits::LIST_ROWS))
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(row).collect()
    }

    /// The newest outbound messages, of one agent or of all, newest first; at most `limit`, itself at most
    /// [`limits::LIST_ROWS`].
    pub async fn outbox(&self, agent: Option<&AgentId>, limit: u32) -> Result<Vec<OutboxRow>, StoreError> {
        let rows: Vec<Columns> = sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM choir_control.outbox o JOIN choir_control.inbox i USING (message_id)
              WHERE $1::text IS NULL OR o.agent_id = $1 ORDER BY o.seq DESC LIMIT $2"
        ))
        .bind(agent.map(AgentId::as_str))
        .bind(i64::from(limit.min(limits::LIST_ROWS)))
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_step_leads_to_one_state_whether_or_not_an_attempt_is_uncertain() {
        for step in OutboxStep::ALL {
            for uncertain in [false, true] {
                let targets: std::collections::HashSet<_> =
                    OutboxState::ALL.into_iter().filter_map(|s| s.after(step, uncertain)).collect();
                assert_eq!(targets.len(), 1, "{step:?} {uncertain}");
                for state in OutboxState::ALL {
                    assert_eq!(state.after(step, false).is_some(), state.after(step, true).is_some());
                }
            }
        }
    }

    proptest! {
        /// Whatever happens to a message: nobody sends it while somebody may have sent it, unless a repeat was asked
        /// for by name; and once delivered or expired it stays so.
        #[test]
        fn nothing_is_resent_blindly(steps in prop::collection::vec(prop::sample::select(&OutboxStep::ALL[..]), 0..40)) {
            let mut state = OutboxState::Prepared;
            let mut may_have_arrived = false;
            for step in steps {
                let Some(next) = state.after(step, may_have_arrived) else { continue };
                if step == OutboxStep::Claim {
                    prop_assert!(!may_have_arrived, "claimed though it may have arrived");
                }
                may_have_arrived |= matches!(step, OutboxStep::Lost | OutboxStep::Delivered);
                if matches!(state, OutboxState::Delivered | OutboxState::Expired) {
                    prop_assert_eq!(next, state);
                }
                state = next;
            }
        }
    }
}
