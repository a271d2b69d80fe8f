//! Reading a model's answer: a call of the form it was offered, or the same as JSON in its text. What cannot be read is
//! said in one sentence, which the model gets to see.

use choir_messages::model::ModelAnswer;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::limits::TEXT_BYTES;

/// The arguments of the answer's first call of this form, or the JSON object in its text.
pub(crate) fn read<T: DeserializeOwned>(answer: &ModelAnswer, form: &str) -> Result<T, String> {
    let arguments = match answer.calls.iter().find(|call| call.tool == form) {
        Some(call) => call.arguments.clone(),
        None => match answer.text.as_deref().and_then(object) {
            Some(text) => text.to_owned(),
            None => return Err(format!("answer by calling {form}, with nothing else")),
        },
    };
    // Some models wrap the arguments once more.
    let value: Value = serde_json::from_str(&arguments)
        .map_err(|error| format!("the arguments of {form} are no JSON: {error}"))?;
    let value = match value.get("arguments") {
        Some(inner) if inner.is_object() && value.as_object().is_some_and(|o| o.len() <= 2) => inner.clone(),
        _ => value,
    };
    serde_json::from_value(value)
        .map_err(|error| format!("the arguments of {form} do not fit its schema: {error}"))
}

/// From the first brace to the last: models like to fence and to introduce their JSON.
fn object(text: &str) -> Option<&str> {
    let (from, to) = (text.find('{')?, text.rfind('}')?);
    text.get(from..=to)
}

/// A text of a model, without what no event should hold, cut to a bound.
pub(crate) fn words(text: &str, what: &str) -> Result<String, String> {
    let text: String =
        text.trim().chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { ' ' } else { c }).collect();
    if text.is_empty() {
        return Err(format!("{what} is empty"));
    }
    Ok(cut(&text, TEXT_BYTES))
}

/// A list of such texts.
pub(crate) fn list(texts: &[String], what: &str, most: usize) -> Result<Vec<String>, String> {
    if texts.len() > most {
        return Err(format!("{what} has {} entries; at most {most} are taken", texts.len()));
    }
    texts.iter().map(|text| words(text, what)).collect()
}

/// At most this many bytes, with the cut said.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{} [cut]", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use choir_messages::model::Usage;
    use choir_messages::tool::ToolCall;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Form {
        n: u32,
    }

    /// An answer with these calls.
    pub(crate) fn answer(text: Option<&str>, calls: &[(&str, &str)]) -> ModelAnswer {
        let call = |(i, (tool, arguments)): (usize, &(&str, &str))| ToolCall {
            provider_id: format!("p{i}"),
            tool: (*tool).to_owned(),
            arguments: (*arguments).to_owned(),
        };
        ModelAnswer {
            text: text.map(str::to_owned),
            calls: calls.iter().enumerate().map(call).collect(),
            usage: Usage::default(),
            model: "m".to_owned(),
        }
    }

    #[test]
    fn a_call_or_the_json_in_a_text_is_read() {
        for good in [
            answer(None, &[("other", "{}"), ("form", r#"{"n":3}"#)]),
            answer(Some("Here it is:\n```json\n{\"n\": 3}\n```"), &[]),
            answer(None, &[("form", r#"{"arguments":{"n":3}}"#)]),
        ] {
            assert_eq!(read::<Form>(&good, "form"), Ok(Form { n: 3 }));
        }
        for bad in [
            answer(Some("yes"), &[]),
            answer(None, &[]),
            answer(None, &[("form", "{")]),
            answer(None, &[("form", r#"{"n":"x"}"#)]),
            answer(Some("} {"), &[]),
        ] {
            assert!(read::<Form>(&bad, "form").unwrap_err().contains("form"));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,100}", bytes in 0usize..40) {
            let _ = read::<Form>(&answer(Some(&text), &[]), "form");
            prop_assert!(cut(&text, bytes).len() <= bytes + 6 || text.len() <= bytes);
        }
    }
}
