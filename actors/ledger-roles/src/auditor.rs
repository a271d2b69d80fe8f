//! The auditor: begins the verification once the final statement is signed, and has the verifier's report recorded. Its
//! model may comment on the report; the verdict is the verifier's alone.

use choir_ledger::event::EventType;
use choir_messages::model::{ModelAnswer, Turn};
use serde::Deserialize;
use serde_json::json;

use crate::answer::{read, words};
use crate::draft::{Draft, Piece};
use crate::duty::{Key, Question, Scene, Work, form};
use crate::words::{AUDITOR, system, task};

/// The form for the auditor's comment.
pub const NOTE: &str = "choir.ledger.note";

#[derive(Deserialize)]
struct Note {
    note: String,
}

pub(crate) fn needs(scene: &Scene<'_>) -> Vec<(Key, Work)> {
    let board = scene.board;
    let Some((task, _)) = board.task.as_ref().filter(|_| board.finale.is_some()) else { return Vec::new() };
    if !board.auditing {
        let payload = json!({ "policy_profile": task.policy_profile.name() });
        let begin = Draft::new(EventType::VerificationRunStarted, payload);
        return vec![(Key::BeginAudit, Work::Say(vec![begin]))];
    }
    vec![(Key::Audit, Work::Verify)]
}

/// Asks for a comment on a report.
#[must_use]
pub fn ask_note(scene: &Scene<'_>, report: &str) -> Question {
    let schema =
        json!({ "type": "object", "properties": { "note": { "type": "string" } }, "required": ["note"] });
    let words = format!("{}\n<report>\n{report}\n</report>\nWhat does this report mean?", task(scene));
    Question {
        turns: vec![system(AUDITOR), Turn::User(words)],
        tools: [form(NOTE, "Comment on the report.", schema)].into(),
    }
}

/// The comment, if the answer holds one.
#[must_use]
pub fn note(answer: &ModelAnswer) -> Option<String> {
    words(&read::<Note>(answer, NOTE).ok()?.note, "note").ok()
}

/// The event that records a report.
#[must_use]
pub fn recorded(status: &str, report_id: &str, report: String, note: Option<String>) -> Draft {
    let mut payload = json!({ "verification_status": status, "report_id": report_id });
    if let (Some(note), Some(fields)) = (note, payload.as_object_mut()) {
        fields.insert("auditor_note".to_owned(), json!(note));
    }
    Draft::new(EventType::VerificationRunCompleted, payload)
        .with([Piece::New { text: report, media_type: "application/json" }])
}
