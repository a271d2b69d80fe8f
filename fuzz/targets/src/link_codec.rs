//! The payloads of the link: verbs and signals and their answers, in the binary codec (`choir §12.5`).

use choir_link::limits::{ACK_BYTES, SIGNAL_BYTES};
use choir_messages::codec;
use choir_messages::event::Head;
use choir_messages::limits::FRAME_BYTES;
use choir_messages::session::SessionView;
use choir_messages::wire::{Envelope, Reply, Request, SignalAck, SignalRequest, Verdict};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Input;

/// The input is one byte that says which message follows, then its bytes. Decoding is total and never takes more memory
/// than the message could fill (libFuzzer's allocation limit watches); what was decoded is written as bytes that decode
/// to the same; every event in it can be checked.
pub fn link_codec(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let kind = input.byte().unwrap_or_default();
    let bytes = input.rest();
    match kind % 5 {
        0 => decoded::<Envelope>(bytes, FRAME_BYTES).is_some_and(|envelope| {
            let _ = envelope.body.verb();
            if let Request::Heartbeat(heartbeat) = &envelope.body {
                let mut head = Head::START;
                for event in &heartbeat.events {
                    let _ = event.check(envelope.session, head);
                    head = event.head();
                }
            }
            true
        }),
        1 => decoded::<Result<Reply, Verdict>>(bytes, FRAME_BYTES).is_some(),
        2 => decoded::<SignalRequest>(bytes, SIGNAL_BYTES as u64).is_some(),
        3 => decoded::<SignalAck>(bytes, ACK_BYTES as u64).is_some(),
        _ => decoded::<SessionView>(bytes, FRAME_BYTES).is_some(),
    }
}

fn decoded<T: Serialize + DeserializeOwned>(bytes: &[u8], limit: u64) -> Option<T> {
    let value: T = codec::decode(bytes, limit).ok()?;
    let written = codec::encode(&value, u64::MAX).expect("what was decoded can be encoded");
    assert_eq!(codec::encoded_len(&value), Ok(written.len() as u64));
    let again: T = codec::decode(&written, written.len() as u64).expect("what was encoded can be decoded");
    assert_eq!(codec::encode(&again, u64::MAX).as_ref(), Ok(&written));
    Some(value)
}
