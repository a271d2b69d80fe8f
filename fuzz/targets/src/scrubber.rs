//! The scrubber between everything that is logged or exported and the world (`choir §14.3`, DESIGN §7).

use choir_messages::secret::Secret;
use choir_telemetry::Scrubber;

use crate::Input;

/// Bytes of a template from here to here stand for the secrets, in their forms.
const FIRST_MARK: u8 = 0x01;

/// Forms in which texts show a secret.
const FORMS: usize = 4;

/// Secrets of one input.
const MOST: usize = 4;

/// The input is up to four secrets (pieces; an empty one ends them) and a template, in which each byte 0x01 to 0x08 or
/// 0x0e to 0x15 is replaced by one of the secrets as it is, as in JSON, as in `Debug` or percent-encoded. Whatever
/// surrounds them, no secret that was learned is in what comes out, in any of those forms, as text or as bytes; bytes
/// keep their length; what holds no secret comes out as it was.
pub fn scrubber(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let scrubber = Scrubber::new();
    let mut secrets: Vec<[String; FORMS]> = Vec::new();
    while secrets.len() < MOST
        && let Some(piece) = input.piece().filter(|piece| !piece.is_empty())
    {
        let secret = String::from_utf8_lossy(piece).into_owned();
        if scrubber.add(&Secret::new(secret.clone())) {
            secrets.push(forms(&secret));
        }
    }
    let mut planted = Vec::new();
    for byte in input.rest() {
        match mark(*byte).and_then(|(which, form)| secrets.get(which)?.get(form)) {
            Some(secret) => planted.extend_from_slice(secret.as_bytes()),
            None => planted.push(*byte),
        }
    }
    let text = String::from_utf8_lossy(&planted).into_owned();
    let all: Vec<&str> = secrets.iter().flatten().map(String::as_str).collect();

    let shown = scrubber.text(&text);
    for secret in &all {
        assert!(!shown.contains(secret), "{secret:?} survived in {shown:?}");
    }
    assert_eq!(shown.into_owned() == text, !all.iter().any(|secret| text.contains(secret)));
    assert_eq!(scrubber.finds_in(text.as_bytes()), all.iter().any(|secret| text.contains(secret)));

    let mut bytes = planted.clone();
    let held = scrubber.finds_in(&planted);
    assert_eq!(scrubber.bytes(&mut bytes), held);
    assert_eq!(bytes.len(), planted.len());
    assert!(held || bytes == planted);
    for secret in &all {
        let secret = secret.as_bytes();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{secret:?} survived in bytes");
    }
    !all.is_empty() && held
}

/// Which secret and which form a byte of the template stands for.
fn mark(byte: u8) -> Option<(usize, usize)> {
    // Tab, line feed and the like stay what they are.
    let at = match byte {
        FIRST_MARK..=0x08 => byte - FIRST_MARK,
        0x0e..=0x15 => byte - 0x0e + 8,
        _ => return None,
    };
    let at = usize::from(at);
    Some((at / FORMS, at % FORMS))
}

fn forms(secret: &str) -> [String; FORMS] {
    let unquoted = |quoted: String| quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned();
    let percent = secret.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    [
        secret.to_owned(),
        unquoted(serde_json::to_string(secret).expect("a text is JSON")),
        unquoted(format!("{secret:?}")),
        percent.collect(),
    ]
}
