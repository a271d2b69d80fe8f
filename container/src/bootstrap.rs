//! Reading the bootstrap line, then watching the lifeline it came over.

use std::time::Duration;

use choir_messages::wire::{BOOTSTRAP_BYTES, Bootstrap, WIRE_VERSION};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use crate::end::End;

/// How long the host may take to write the line.
const WITHIN: Duration = Duration::from_secs(10);

/// Reads the one line. Errors say what is wrong with it and never repeat it, for it holds a secret.
pub async fn read<R: AsyncRead + Unpin>(input: &mut BufReader<R>) -> Result<Bootstrap, End> {
    let wrong = |why: &str| End::Bootstrap(why.to_owned());
    let mut line = Vec::new();
    let mut limited = input.take(BOOTSTRAP_BYTES as u64);
    let read = tokio::time::timeout(WITHIN, limited.read_until(b'\n', &mut line)).await;
    match read {
        Err(_) => return Err(wrong("nothing was written within 10 s")),
        Ok(Err(error)) => return Err(wrong(&error.to_string())),
        Ok(Ok(0)) => return Err(wrong("it is closed; choir-agent is started by choird, not by hand")),
        Ok(Ok(_)) if line.last() != Some(&b'\n') => return Err(wrong("the line is too long or cut")),
        Ok(Ok(_)) => {}
    }
    let bootstrap: Bootstrap = serde_json::from_slice(&line).map_err(|error| {
        wrong(&format!("not a bootstrap ({:?} at column {})", error.classify(), error.column()))
    })?;
    if bootstrap.version != WIRE_VERSION {
        return Err(wrong(&format!(
            "the host speaks wire version {}, this agent {WIRE_VERSION}; rebuild the older one",
            bootstrap.version
        )));
    }
    Ok(bootstrap)
}

/// Resolves when the lifeline ends. What is still written to it is read and dropped.
pub async fn lifeline<R: AsyncRead + Unpin>(mut input: R) {
    let mut sink = [0u8; 256];
    while matches!(input.read(&mut sink).await, Ok(n) if n > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    async fn of(text: &str) -> Result<Bootstrap, End> {
        read(&mut BufReader::new(Cursor::new(text.to_owned()))).await
    }

    fn line(version: u16) -> String {
        format!(
            "{{\"version\":{version},\"agent\":\"a\",\"session\":\"{0}\",\"lease\":\"{0}\",\"generation\":1,\"link\":{{\"unix\":{{\"socket\":\"/s\"}}}},\
             \"link_secret\":\"canary\",\"workspace\":\"/w\",\"choir_dir\":null,\"otlp_endpoint\":null}}\n",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV"
        )
    }

    #[tokio::test]
    async fn a_bootstrap_is_read_and_its_secret_is_not_shown() {
        let bootstrap = of(&line(WIRE_VERSION)).await.unwrap();
        assert_eq!(bootstrap.agent.as_str(), "a");
        assert!(!format!("{bootstrap:?}").contains("canary"));
    }

    #[tokio::test]
    async fn what_is_no_bootstrap_is_refused_without_being_repeated() {
        for text in [
            "",
            "canary",
            "canary\n",
            "{\"canary\":1}\n",
            &line(WIRE_VERSION + 1),
            &"x".repeat(BOOTSTRAP_BYTES + 5),
        ] {
            let error = of(text).await.unwrap_err().to_string();
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
