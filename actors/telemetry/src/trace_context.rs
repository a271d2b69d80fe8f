//! The sender's span on its way through mailboxes and over the link: W3C `traceparent`, version 00.

use choir_messages::id::MessageId;
use choir_messages::wire::TraceContext;
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::ids;

/// The current span, for a message about to be sent; empty when nothing is traced.
#[must_use]
pub fn current() -> TraceContext {
    of(&Span::current())
}

/// A span as a message carries it; empty when it is not traced.
#[must_use]
pub fn of(span: &Span) -> TraceContext {
    let context = span.context();
    let context = context.span().span_context().clone();
    if !context.is_valid() {
        return TraceContext::default();
    }
    TraceContext(format!(
        "00-{}-{}-{:02x}",
        context.trace_id(),
        context.span_id(),
        context.trace_flags().to_u8() & 1
    ))
}

/// Makes a span the child of the one a message came from. Call it before the span is entered. A text that is no
/// traceparent leaves the span as it is: it comes from a stranger.
pub fn set_parent(span: &Span, parent: &TraceContext) {
    if let Some(parent) = parse(&parent.0) {
        // Fails only if the span is not exported, or was entered before: then there is nothing to link.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// Starts the root of a user message's trace under the ids that follow from the message
/// ([`TraceContext::of_message`]), so that whoever knows the message can continue its trace. Call it once for a
/// message, before the span is entered or has children.
pub fn begin(span: &Span, message: MessageId) {
    let (trace, root) = TraceContext::ids_of(message);
    ids::with(TraceId::from(trace), SpanId::from(root), || {
        // A span gets its ids when its context is first asked for, unless it has them already.
        let _ = span.context();
    });
}

/// Reads a `traceparent`: `version-trace-parent-flags`, all lower-case hex. Total; unknown versions are read as far as
/// version 00 goes, as the recommendation asks.
#[must_use]
pub fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let version = hex(parts.next()?, 2)?;
    let trace = hex(parts.next()?, 32)?;
    let span = hex(parts.next()?, 16)?;
    let flags = hex(parts.next()?, 2)?;
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let trace = TraceId::from_hex(trace).ok()?;
    let span = SpanId::from_hex(span).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & 1);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

fn hex(part: &str, digits: usize) -> Option<&str> {
    let ok = part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    ok.then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read() {
        let context = parse(GOOD).unwrap();
        assert_eq!(context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id().to_string(), "00f067aa0ba902b7");
        assert!(context.is_sampled() && context.is_remote());
        assert!(parse(&GOOD.replace("-01", "-00")).is_some_and(|c| !c.is_sampled()));
        assert!(parse(&format!("{}-later", GOOD.replacen("00", "01", 1))).is_some());
    }

    #[test]
    fn what_is_no_traceparent_is_none() {
        let zero_trace = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let zero_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        let upper = GOOD.to_uppercase();
        let more = format!("{GOOD}-x");
        let never = GOOD.replacen("00", "ff", 1);
        for bad in ["", "00", "---", zero_trace, zero_span, &upper, &more, &never, &GOOD[..54]] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn without_tracing_the_context_is_empty_and_a_parent_is_ignored() {
        assert_eq!(current(), TraceContext::default());
        set_parent(&Span::none(), &TraceContext(GOOD.into()));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,80}|[0-9a-f-]{0,60}") {
            let _ = parse(&text);
        }
    }
}
