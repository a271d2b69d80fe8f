//! The one place that names the binary codec of the link: bincode 1.3, little-endian, variable-length integers, no
//! trailing bytes. Decoding is total: an announced length beyond `limit` is an error before anything is allocated.

use bincode::Options;
use serde::{Serialize, de::DeserializeOwned};

use crate::{json, limits};

/// Why bytes could not be encoded or decoded. Says nothing of the payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The value is larger than the caller allows, in bytes.
    #[error("the message is larger than {limit} bytes")]
    TooLarge {
        /// The most the caller allowed.
        limit: u64,
    },
    /// Not the expected shape.
    #[error("the bytes are not a message of this version")]
    Malformed,
}

fn options(limit: u64) -> impl Options {
    bincode::DefaultOptions::new().with_limit(limit).with_varint_encoding().reject_trailing_bytes()
}

fn explain(error: &bincode::Error, limit: u64) -> CodecError {
    match **error {
        bincode::ErrorKind::SizeLimit => CodecError::TooLarge { limit },
        _ => CodecError::Malformed,
    }
}

/// The bytes of a value, at most `limit` of them.
pub fn encode<T: Serialize>(value: &T, limit: u64) -> Result<Vec<u8>, CodecError> {
    options(limit).serialize(value).map_err(|e| explain(&e, limit))
}

/// How many bytes a value takes when encoded.
pub fn encoded_len<T: Serialize>(value: &T) -> Result<u64, CodecError> {
    options(u64::MAX).serialized_size(value).map_err(|_| CodecError::Malformed)
}

/// The value of these bytes, which must be used up to the last. The JSON in it may take at most
/// [`limits::MESSAGE_JSON_MEMORY`] bytes of memory.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: u64) -> Result<T, CodecError> {
    if bytes.len() as u64 > limit {
        return Err(CodecError::TooLarge { limit });
    }
    json::within(limits::MESSAGE_JSON_MEMORY, || options(limit).deserialize(bytes))
        .map_err(|e| explain(&e, limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    #[test]
    fn a_value_survives_the_trip_and_json_rides_along() {
        let value = (7u64, Json(serde_json::json!({"b": [1, 2.5, null], "a": "é"})));
        let bytes = encode(&value, 1024).unwrap();
        assert_eq!(decode::<(u64, Json)>(&bytes, 1024).unwrap(), value);
    }

    #[test]
    fn an_announced_length_beyond_the_limit_is_refused_without_allocating() {
        // A string that claims 2^60 bytes.
        let mut bytes = vec![253];
        bytes.extend_from_slice(&(1u64 << 60).to_le_bytes());
        assert!(decode::<String>(&bytes, 1024).is_err());
    }

    #[test]
    fn json_that_would_fill_the_memory_is_refused_however_it_is_spread() {
        let object = serde_json::json!({ "": 0 });
        let dense = |objects| Json(serde_json::Value::Array(vec![object.clone(); objects]));
        let fits = encode(&vec![dense(10_000); 2], u64::MAX).unwrap();
        assert!(decode::<Vec<Json>>(&fits, u64::MAX).is_ok());
        for spread in [vec![dense(250_000)], vec![dense(25_000); 10]] {
            let bytes = encode(&spread, u64::MAX).unwrap();
            assert!(bytes.len() < 2_000_000);
            assert_eq!(decode::<Vec<Json>>(&bytes, u64::MAX), Err(CodecError::Malformed));
        }
        assert!(decode::<Vec<Json>>(&fits, u64::MAX).is_ok(), "a refusal leaves nothing behind");
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let mut bytes = encode(&1u8, 64).unwrap();
        bytes.push(0);
        assert_eq!(decode::<u8>(&bytes, 64), Err(CodecError::Malformed));
    }
}
