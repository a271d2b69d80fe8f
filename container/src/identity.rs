//! The identity files of `/choir` (`choir §15.1`): read once at the start, bounded, absent ones empty.

use std::io::Read as _;
use std::path::Path;

use choir_lanes::Identity;

/// Longest identity file read, in bytes: it stands in every request to a model.
const FILE_BYTES: u64 = 16 * 1024;

/// Reads `USER.md` and `SOUL.md`.
#[must_use]
pub(crate) fn read(choir_dir: Option<&Path>) -> Identity {
    let file = |name: &str| {
        let mut text = String::new();
        if let Some(dir) = choir_dir
            && let Ok(file) = std::fs::File::open(dir.join(name))
            && let Err(error) = file.take(FILE_BYTES).read_to_string(&mut text)
        {
            tracing::warn!(name, %error, "an identity file is left out");
            text.clear();
        }
        text
    };
    Identity { user: file("USER.md"), soul: file("SOUL.md") }
}
