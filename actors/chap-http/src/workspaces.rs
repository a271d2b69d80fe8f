//! `GET /chap/workspaces`: which workspaces there are, for operators. A workspace's id lets anyone read its log where
//! reading is open, so the list is given only where the configuration says that whoever comes is an operator, and never
//! to a token that speaks for named participants.

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use choir_messages::mail::{CoordinatorMsg, WorkspaceLine};
use serde::Deserialize;
use serde_json::json;

use crate::auth::Identity;
use crate::front::{Front, NoNotices};
use crate::inbox::number;
use crate::limits::{WORKSPACES_PAGE, WORKSPACES_PAGE_MOST};
use crate::refusal::{Failed, NOT_AUTHORISED, Refusal, json_response};

#[derive(Debug, Default, Deserialize)]
pub(crate) struct ListQuery {
    after: Option<String>,
    limit: Option<String>,
}

pub(crate) async fn list(
    State(front): State<Front>,
    Extension(who): Extension<Identity>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Response {
    match page(&front, &who, query).await {
        Ok(lines) => {
            let next = lines.last().map(|line| line.workspace.clone());
            json_response(StatusCode::OK, json!({"workspaces": lines, "next": next}).to_string())
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn page(
    front: &Front,
    who: &Identity,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Vec<WorkspaceLine>, Refusal> {
    if !front.config().listing || who.caller.participants.is_some() {
        let message = "Workspaces are listed for operators only; ask on choird's own socket.";
        return Err(Refusal::new(StatusCode::FORBIDDEN, message).code(NOT_AUTHORISED));
    }
    let Ok(Query(query)) = query else {
        return Err(Refusal::params(
            "The query is not valid: give each name once, and percent-encode the values.",
        ));
    };
    let limit =
        number(query.limit.as_deref(), "limit", WORKSPACES_PAGE as u64, WORKSPACES_PAGE_MOST as u64)?.max(1);
    let limit = usize::try_from(limit).unwrap_or(WORKSPACES_PAGE);
    let _permit = front.accounts().begin(who.account)?;
    let after = query.after;
    let ask = |reply| CoordinatorMsg::Workspaces { after, limit, reply };
    let failed = |why: Failed| Refusal::from(NoNotices::Failed(why));
    match front.coordinator().call(front.limits().call_within, ask).await {
        Ok(Ok(lines)) => Ok(lines),
        Ok(Err(why)) => Err(failed(why.into())),
        Err(why) => Err(failed(why.into())),
    }
}
