//! The line a sandbox is told its place by; it holds the link's secret (`choir §14.1`).

use choir_agent::bootstrap::read;
use choir_agent::end::End;
use choir_link::LinkSecret;
use choir_messages::wire::{Bootstrap, WIRE_VERSION};
use tokio::io::BufReader;

use crate::{CANARY, assert_one_line, block_on};

/// The input is what stands on standard input. What is read writes itself as a line that reads back the same; `Debug`
/// hides the secret; an error is one short sentence that repeats nothing of a line that may hold one.
pub fn bootstrap(data: &[u8]) -> bool {
    match block_on(read(&mut BufReader::new(data))) {
        Ok(bootstrap) => {
            assert_eq!(bootstrap.version, WIRE_VERSION);
            let shown = format!("{bootstrap:?}");
            if !bootstrap.agent.as_str().contains(CANARY) {
                assert!(!shown.contains(CANARY), "{shown}");
            }
            let line = to_line(&bootstrap);
            let again = block_on(read(&mut BufReader::new(&*line))).expect("what is written can be read");
            assert_eq!(to_line(&again), line);
            if let Ok(secret) = LinkSecret::from_hex(&bootstrap.link_secret) {
                assert_eq!(secret.to_hex().as_str(), bootstrap.link_secret.to_ascii_lowercase());
                assert!(!format!("{secret:?}").contains(&*secret.to_hex()));
            }
            true
        }
        Err(end) => {
            assert!(matches!(end, End::Bootstrap(_)), "{end:?}");
            let sentence = end.to_string();
            assert!(sentence.len() < 200 && !sentence.contains(CANARY), "{sentence}");
            assert_one_line(&sentence);
            false
        }
    }
}

fn to_line(bootstrap: &Bootstrap) -> Vec<u8> {
    let mut line = serde_json::to_vec(bootstrap).expect("a bootstrap that was read is text");
    line.push(b'\n');
    line
}
