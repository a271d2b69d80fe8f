//! Reading a request's body under its bound and deadline.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt as _;

use crate::accounts::Reserved;
use crate::front::{Front, only};
use crate::limits::{DRAIN_BYTES, SMALL_BODY_BYTES};
use crate::refusal::{INVALID_REQUEST, Refusal};

/// Whether the body is said to be one of these media types, whatever the parameters.
pub(crate) fn media_type_is(headers: &HeaderMap, wanted: &[&str]) -> bool {
    let Ok(Some(value)) = only(headers, &header::CONTENT_TYPE) else { return false };
    let Ok(value) = value.to_str() else { return false };
    let kind = value.split(';').next().unwrap_or_default().trim();
    wanted.iter().any(|wanted| wanted.eq_ignore_ascii_case(kind))
}

/// A body that has come whole.
pub(crate) struct Whole {
    pub(crate) bytes: Vec<u8>,
    /// Kept until the call is answered.
    pub(crate) reserved: Reserved,
}

/// The whole body, if it is not too long and comes in time.
pub(crate) async fn read(front: &Front, headers: &HeaderMap, body: Body) -> Result<Whole, Refusal> {
    match tokio::time::timeout(front.limits().body_within, collect(front, headers, body)).await {
        Ok(collected) => collected,
        Err(_) => {
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "The body did not come in time. Nothing was done."))
        }
    }
}

async fn collect(front: &Front, headers: &HeaderMap, body: Body) -> Result<Whole, Refusal> {
    let most = front.limits().body_bytes();
    let too_long = || {
        let message =
            format!("The request is longer than {most} bytes. Nothing was done; send less in one call.");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message).code(INVALID_REQUEST)
    };
    let said = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok())
        .map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let asks_first = headers.contains_key(header::EXPECT);
    if said.is_some_and(|length| length > most.saturating_add(DRAIN_BYTES) || (asks_first && length > most)) {
        return Err(too_long());
    }
    // What the sender claims takes no room; what it sends does.
    let mut bytes = Vec::with_capacity(said.unwrap_or(0).min(SMALL_BODY_BYTES));
    let mut reserved = Reserved::default();
    let mut refused = None;
    let mut length = 0_usize;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| {
            Refusal::new(StatusCode::BAD_REQUEST, "The body broke off. Nothing was done.")
                .code(INVALID_REQUEST)
        })?;
        length = length.saturating_add(chunk.len());
        if length > most.saturating_add(DRAIN_BYTES) {
            break;
        }
        if refused.is_none() {
            let grown =
                if length > most { Err(too_long()) } else { front.budget().grow(&mut reserved, length) };
            match grown {
                Ok(()) => bytes.extend_from_slice(&chunk),
                Err(refusal) => {
                    // The rest is read and thrown away.
                    refused = Some(refusal);
                    (bytes, reserved) = (Vec::new(), Reserved::default());
                }
            }
        }
    }
    match refused {
        Some(refusal) => Err(refusal),
        None if length > most => Err(too_long()),
        None => Ok(Whole { bytes, reserved }),
    }
}
