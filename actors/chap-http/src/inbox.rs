//! `GET /chap/inbox`: a participant's notices after a number, for clients that poll; with `wait` the answer is held
//! back until there is one.

use std::fmt::Write as _;
use std::time::Duration;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use choir_messages::chap::Notice;
use choir_messages::mail::NoticePage;
use serde::Deserialize;
use serde_json::Value;

use crate::auth::Identity;
use crate::front::{Front, NoticeAsk};
use crate::limits::{INBOX_PAGE, INBOX_PAGE_MOST, INBOX_WAIT_SECONDS};
use crate::refusal::{NOT_AUTHORISED, Refusal, json_response};

/// The query as sent. Numbers are read by hand, so that a bad one is named.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct NoticeQuery {
    workspace: Option<String>,
    participant: Option<String>,
    since: Option<String>,
    limit: Option<String>,
    wait: Option<String>,
}

/// Whose notices are wanted, from where on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) workspace: String,
    pub(crate) participant: String,
    pub(crate) after: u64,
}

impl NoticeQuery {
    /// The same question from another source than a URL.
    pub(crate) const fn new(
        workspace: Option<String>,
        participant: Option<String>,
        since: Option<String>,
    ) -> Self {
        Self { workspace, participant, since, limit: None, wait: None }
    }

    /// Whether a stream of notices is asked for at all.
    pub(crate) const fn names_anyone(&self) -> bool {
        self.workspace.is_some() || self.participant.is_some()
    }

    /// Whose notices, if the caller may read them.
    pub(crate) fn wanted(&self, who: &Identity) -> Result<Wanted, Refusal> {
        let workspace = self
            .workspace
            .as_deref()
            .filter(|id| !id.is_empty())
            .ok_or_else(|| Refusal::params("Missing field: workspace"))?;
        // Who can only be one participant need not say which.
        let participant = self
            .participant
            .as_deref()
            .filter(|uri| !uri.is_empty())
            .or_else(|| who.only())
            .ok_or_else(|| Refusal::params("Missing field: participant"))?;
        if !who.may_be(participant) {
            let message = "The token does not speak for this participant.";
            return Err(Refusal::new(StatusCode::FORBIDDEN, message).code(NOT_AUTHORISED));
        }
        let after = number(self.since.as_deref(), "since", 0, u64::MAX)?;
        Ok(Wanted { workspace: workspace.to_owned(), participant: participant.to_owned(), after })
    }
}

/// A whole number of a query: `otherwise` if it is left out, at most `most`.
pub(crate) fn number(text: Option<&str>, name: &str, otherwise: u64, most: u64) -> Result<u64, Refusal> {
    let Some(text) = text else { return Ok(otherwise) };
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(number) if all_digits => Ok(number.min(most)),
        _ => Err(Refusal::params(format!("{name} is a whole number, at least 0"))),
    }
}

pub(crate) async fn read(
    State(front): State<Front>,
    Extension(who): Extension<Identity>,
    query: Result<Query<NoticeQuery>, QueryRejection>,
) -> Response {
    match page(&front, &who, query).await {
        Ok(body) => json_response(StatusCode::OK, body),
        Err(refusal) => refusal.into_response(),
    }
}

async fn page(
    front: &Front,
    who: &Identity,
    query: Result<Query<NoticeQuery>, QueryRejection>,
) -> Result<String, Refusal> {
    let query = understood(query)?;
    let wanted = query.wanted(who)?;
    let most = INBOX_PAGE_MOST as u64;
    let limit = number(query.limit.as_deref(), "limit", INBOX_PAGE as u64, most)?.max(1);
    let wait = number(query.wait.as_deref(), "wait", 0, INBOX_WAIT_SECONDS)?;
    let permit = front.accounts().begin(who.account)?;
    // A held answer occupies the Coordinator as a stream does, and counts as one.
    let slot = if wait > 0 {
        drop(permit);
        Some(front.slots().begin((wanted.workspace.clone(), wanted.participant.clone()))?)
    } else {
        None
    };
    let ask = NoticeAsk {
        who,
        workspace: &wanted.workspace,
        participant: &wanted.participant,
        after: wanted.after,
        limit: usize::try_from(limit).unwrap_or(INBOX_PAGE),
        wait: (wait > 0).then(|| Duration::from_secs(wait)),
    };
    let found = tokio::select! {
        found = front.notices(ask) => found?,
        // A held answer says "nothing yet" when the server ends; its client comes back.
        () = front.stopped(), if wait > 0 => None,
    };
    drop(slot);
    let found = found.unwrap_or(NoticePage { notices: Vec::new(), next: wanted.after });
    Ok(render(&wanted, &found))
}

/// The query, or what is wrong with it.
pub(crate) fn understood(query: Result<Query<NoticeQuery>, QueryRejection>) -> Result<NoticeQuery, Refusal> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(_) => Err(Refusal::params(
            "The query is not valid: give each name once, and percent-encode the values.",
        )),
    }
}

fn render(wanted: &Wanted, page: &NoticePage) -> String {
    let (workspace, participant) =
        (Value::from(wanted.workspace.as_str()), Value::from(wanted.participant.as_str()));
    let mut text = format!("{{\"workspace\":{workspace},\"participant\":{participant},\"notices\":[");
    for (place, notice) in page.notices.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        text.push_str(&numbered(notice));
    }
    let _ = write!(text, "],\"next\":{}}}", page.next);
    text
}

/// `{"number":…,"notice":…}`. The notice is JSON text already and stays exactly as it was stored.
pub(crate) fn numbered(notice: &Notice) -> String {
    format!("{{\"number\":{},\"notice\":{}}}", notice.number, notice.body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::mail::Caller;
    use serde_json::json;

    fn who(participants: Option<&[&str]>) -> Identity {
        let participants = participants.map(|uris| uris.iter().map(|&uri| uri.to_owned()).collect());
        Identity { caller: Caller { participants }, account: 0 }
    }

    fn query(workspace: &str, participant: &str, since: &str) -> NoticeQuery {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        NoticeQuery {
            workspace: given(workspace),
            participant: given(participant),
            since: given(since),
            ..NoticeQuery::default()
        }
    }

    #[test]
    fn a_query_names_workspace_and_participant_unless_the_token_can_only_be_one() {
        let wanted = query("w", "human:a", "7").wanted(&who(None)).unwrap();
        assert_eq!(wanted, Wanted { workspace: "w".into(), participant: "human:a".into(), after: 7 });
        assert_eq!(query("w", "", "").wanted(&who(Some(&["human:b"]))).unwrap().participant, "human:b");
        for (query, who) in [
            (query("", "human:a", ""), who(None)),
            (query("w", "", ""), who(None)),
            (query("w", "", ""), who(Some(&["a", "b"]))),
        ] {
            assert!(query.wanted(&who).unwrap_err().message.starts_with("Missing field: "));
        }
    }

    #[test]
    fn a_token_reads_only_its_own_notices() {
        let refused = query("w", "human:a", "").wanted(&who(Some(&["human:b"]))).unwrap_err();
        assert_eq!((refused.status, refused.code), (StatusCode::FORBIDDEN, NOT_AUTHORISED));
    }

    #[test]
    fn a_number_that_is_none_is_refused_and_a_large_one_is_cut() {
        for odd in ["-1", "+1", "1.0", "abc", "", "99999999999999999999"] {
            assert!(number(Some(odd), "since", 0, u64::MAX).is_err(), "{odd}");
        }
        assert_eq!(number(Some("5000"), "limit", 100, 1000), Ok(1000));
        assert_eq!(number(None, "limit", 100, 1000), Ok(100));
    }

    #[test]
    fn a_page_is_json_with_the_notices_as_stored() {
        let wanted = Wanted { workspace: "w\"1".into(), participant: "human:ü".into(), after: 0 };
        let notice = |number, body: &str| Notice { number, to: "human:ü".into(), body: body.into() };
        let page = NoticePage { notices: vec![notice(3, "{\"b\":1,\"a\":2}"), notice(9, "{}")], next: 9 };
        let text = render(&wanted, &page);
        assert!(text.contains("{\"number\":3,\"notice\":{\"b\":1,\"a\":2}}"));
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["workspace"], "w\"1");
        assert_eq!(read["notices"][1], json!({"number": 9, "notice": {}}));
        assert_eq!(read["next"], 9);
    }
}
