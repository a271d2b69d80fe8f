//! The statement about one evidence entry of a workspace (digest §3.3, `audit-scitt/1.0`). The record's chain hash and
//! place travel as claims, so the statement also fixes what the chain leaves unhashed: `seq` and `arrived`.

use choir_messages::chain::Digest;
use choir_messages::chap::{Entry, ErasedRecord};
use choir_messages::sign::SigningKey;

use crate::statement::{Claims, Payload, Position, StatementError, sign_statement};

/// The media type of an evidence record.
pub const RECORD_CONTENT_TYPE: &str = "application/chap+json";

/// How much of the record a statement discloses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// All of it.
    Record,
    /// Its hash. Of an erased record ([`ErasedRecord`]) it is the hash of what was there, so that the statement is still
    /// the one that was registered.
    Hash,
}

/// The signed statement about the entry. The issuer is the Coordinator's URI, the subject the workspace's id, the time
/// that of the entry's arrival; a call repeated with the same key gives the same bytes.
pub fn evidence_statement(
    workspace: &str,
    entry: &Entry,
    issuer: &str,
    form: Form,
    key: &SigningKey,
) -> Result<Vec<u8>, StatementError> {
    let content_type = RECORD_CONTENT_TYPE.to_owned();
    let record = entry.record.as_bytes();
    let payload = match form {
        Form::Record => Payload::Record { content_type, bytes: record.to_vec() },
        Form::Hash => {
            let erased = ErasedRecord::read(&entry.record);
            let digest = erased.map_or_else(|| Digest::of(record), |erased| erased.digest);
            Payload::Hash { content_type, digest }
        }
    };
    let claims = Claims {
        issuer: issuer.to_owned(),
        subject: workspace.to_owned(),
        issued_at: Some(entry.arrived.millis() / 1000),
        position: Some(Position { seq: entry.seq, prev_hash: entry.prev_hash.clone() }),
    };
    sign_statement(&claims, &payload, key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::Statement;
    use choir_messages::time::Timestamp;

    #[test]
    fn an_entrys_statement_names_its_workspace_place_and_record() {
        let entry = Entry {
            seq: 41,
            arrived: Timestamp::from_millis(1_790_000_000_999),
            record: r#"{"method":"task.create"}"#.into(),
            refused: None,
            prev_hash: Some("sha256:00".into()),
            method: "task.create".into(),
            from: Some("human:a".into()),
            tasks: vec![],
        };
        let key = SigningKey::from_seed(&[1; 32]);
        for form in [Form::Record, Form::Hash] {
            let bytes = evidence_statement("wsp_a", &entry, "service:coordinator", form, &key).unwrap();
            let statement = Statement::parse(&bytes).unwrap();
            statement.verify(&key.public()).unwrap();
            statement.speaks_of(entry.record.as_bytes()).unwrap();
            let claims = statement.claims();
            assert_eq!((claims.issuer.as_str(), claims.subject.as_str()), ("service:coordinator", "wsp_a"));
            assert_eq!(claims.issued_at, Some(1_790_000_000));
            let position = Position { seq: 41, prev_hash: Some("sha256:00".into()) };
            assert_eq!(claims.position, Some(position));
        }
    }
}
