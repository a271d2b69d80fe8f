//! `POST /chap`: one JSON-RPC call in, its answer out. What the Coordinator refuses is an answer too (HTTP 200, as the
//! existing clients expect); another status means that the call never had one.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use choir_messages::mail::CallAnswer;

use crate::auth::Identity;
use crate::body::{self, Whole};
use crate::front::Front;
use crate::refusal::{Refusal, id_of, json_response};

pub(crate) async fn call(
    State(front): State<Front>,
    Extension(who): Extension<Identity>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    match answer(&front, &who, &head.headers, body).await {
        Ok(answer) => json_response(StatusCode::OK, Bytes::from_owner(answer)),
        Err(response) => response,
    }
}

async fn answer(
    front: &Front,
    who: &Identity,
    headers: &HeaderMap,
    body: Body,
) -> Result<CallAnswer, Response> {
    if !body::media_type_is(headers, &["application/chap+json", "application/json"]) {
        let message = "A call is sent as Content-Type: application/chap+json or application/json.";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).into_response());
    }
    let permit = front.accounts().begin(who.account).map_err(Refusal::into_response)?;
    let Whole { bytes, reserved } = body::read(front, headers, body).await.map_err(Refusal::into_response)?;
    let bytes: Arc<[u8]> = bytes.into();
    let answered = front.call(Arc::clone(&bytes), who).await;
    drop((permit, reserved));
    answered.map_err(|failed| {
        let refusal = failed.refusal();
        let text = refusal.body(&id_of(&bytes)).to_string();
        let mut response = refusal.into_response();
        *response.body_mut() = text.into();
        response
    })
}
