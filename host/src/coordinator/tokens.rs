//! The file that says whose bearer tokens are taken: digests only, so that reading it lets nobody in.

use std::path::{Path, PathBuf};

use choir_chap_http::{Auth, Grant, TokenDigest};
use serde::Deserialize;

/// Largest file read: ten thousand tokens and room to spare.
const FILE_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// `sha256:` and 64 hex digits of the token.
    digest: String,
    /// The participants its holder may speak for; absent: any.
    #[serde(default)]
    participants: Option<Vec<String>>,
}

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// It cannot be read.
    #[error("{path} cannot be read: {why}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It does not say what it should.
    #[error(
        "{path}: {why}; it is a JSON list of {{\"digest\": \"sha256:…\", \"participants\": [\"human:…\"]}}"
    )]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// Reads a token file.
pub fn read_tokens(path: &Path) -> Result<Auth, TokensError> {
    let unreadable = |why: String| TokensError::Unreadable { path: path.to_owned(), why };
    let malformed = |why: String| TokensError::Malformed { path: path.to_owned(), why };
    let size = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if size > FILE_BYTES {
        return Err(unreadable(format!("it is larger than {FILE_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    let lines: Vec<Line> = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    if lines.is_empty() {
        return Err(malformed("it lists no token".into()));
    }
    let grants = lines.into_iter().enumerate().map(|(number, line)| {
        let digest: TokenDigest =
            line.digest.parse().map_err(|error| malformed(format!("token {}: {error}", number + 1)))?;
        for uri in line.participants.iter().flatten() {
            if !choir_chap::uri::is_participant(uri) {
                return Err(malformed(format!("token {}: {uri:?} is no participant URI", number + 1)));
            }
        }
        Ok(Grant { digest, participants: line.participants.map(Into::into) })
    });
    Ok(Auth::Bearer(grants.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Auth, TokensError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        std::fs::write(&path, text).unwrap();
        read_tokens(&path)
    }

    #[test]
    fn digests_with_their_participants_are_read() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let auth = read(&format!(
            r#"[{{"digest":"{digest}","participants":["human:a@b"]}},{{"digest":"{digest}"}}]"#
        ));
        assert!(
            matches!(auth, Ok(Auth::Bearer(grants)) if grants.len() == 2 && grants[1].participants.is_none())
        );
    }

    #[test]
    fn a_file_that_would_let_in_nobody_or_the_wrong_one_is_refused() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        for text in [
            "[]".to_owned(),
            r#"[{"digest":"secret"}]"#.to_owned(),
            format!(r#"[{{"digest":"{digest}","participant":["human:a"]}}]"#),
            format!(r#"[{{"digest":"{digest}","participants":["a b"]}}]"#),
        ] {
            assert!(matches!(read(&text), Err(TokensError::Malformed { .. })), "{text}");
        }
    }
}
