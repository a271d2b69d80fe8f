//! Private keys as files: PKCS #8 in PEM (RFC 8410), readable by their owner only.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_messages::sign::SigningKey;
use zeroize::Zeroizing;

use crate::disk;
use crate::error::StoreError;

/// The DER of an Ed25519 private key without attributes is this and its 32-byte seed.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";

/// Largest private key file: a key has 119 bytes, white space aside.
const MAX_PEM_BYTES: u64 = 4096;

/// The key as PKCS #8 in PEM; wiped when dropped.
#[must_use]
pub fn to_pem(key: &SigningKey) -> Zeroizing<String> {
    let der = Zeroizing::new([&PKCS8_PREFIX[..], &key.seed()[..]].concat());
    let base64 = Zeroizing::new(STANDARD.encode(&*der));
    Zeroizing::new(format!("{BEGIN}\n{}\n{END}\n", *base64))
}

/// The key in a PEM text, or nothing if it is no Ed25519 key in the form that [`to_pem`] and OpenSSL write.
#[must_use]
pub fn from_pem(text: &str) -> Option<SigningKey> {
    let inner = text.trim().strip_prefix(BEGIN)?.strip_suffix(END)?;
    let base64: Zeroizing<String> = Zeroizing::new(inner.split_ascii_whitespace().collect());
    let der = Zeroizing::new(STANDARD.decode(base64.as_bytes()).ok()?);
    let seed: Zeroizing<[u8; 32]> = Zeroizing::new(der.strip_prefix(&PKCS8_PREFIX)?.try_into().ok()?);
    Some(SigningKey::from_seed(&seed))
}

/// Writes a new private key; an existing file is never overwritten.
pub(crate) fn write(path: &Path, key: &SigningKey) -> Result<(), StoreError> {
    if path.exists() {
        return Err(StoreError::Exists(path.to_owned()));
    }
    disk::write_whole(path, to_pem(key).as_bytes())
}

/// Reads a private key that nobody else can read; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<SigningKey>, StoreError> {
    let Some(text) = disk::read_text(path, MAX_PEM_BYTES)?.map(Zeroizing::new) else { return Ok(None) };
    let mode = fs::metadata(path).map_err(|error| StoreError::io("read", path, error))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(StoreError::KeyExposed(path.to_owned()));
    }
    let key = from_pem(&text)
        .ok_or_else(|| StoreError::unreadable(path, "it holds no Ed25519 key (PKCS #8 PEM)"))?;
    Ok(Some(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8410 §10.3.
    #[test]
    fn the_published_key_reads_and_is_written_alike() {
        let published = "-----BEGIN PRIVATE KEY-----\n\
            MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
            -----END PRIVATE KEY-----\n";
        let key = from_pem(published).unwrap();
        assert_eq!(*to_pem(&key), published);
        assert!(key.seed().starts_with(&[0xd4, 0xee, 0x72, 0xdb]));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in
            ["", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"]
        {
            assert!(from_pem(text).is_none());
        }
    }

    #[test]
    fn a_key_that_others_can_read_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k.pem");
        write(&path, &SigningKey::from_seed(&[1; 32])).unwrap();
        assert!(read(&path).unwrap().is_some());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(write(&path, &SigningKey::from_seed(&[2; 32])), Err(StoreError::Exists(_))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(read(&path), Err(StoreError::KeyExposed(_))));
    }
}
