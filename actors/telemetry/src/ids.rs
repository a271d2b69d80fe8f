//! The ids of spans: random, except for the one span that is begun under ids of its own.

use std::cell::Cell;

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

thread_local! {
    /// The ids of the span that is being started on this thread. Starting a span is synchronous, and the library lets
    /// no id be chosen but through the generator.
    static NEXT: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Runs `start`; a root span that it starts first gets these ids.
pub(crate) fn with(trace: TraceId, span: SpanId, start: impl FnOnce()) {
    NEXT.set(Some((trace, span)));
    start();
    NEXT.set(None);
}

/// Gives the chosen ids where there are any, and random ones else.
#[derive(Debug, Default)]
pub(crate) struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        NEXT.get().map_or_else(|| self.0.new_trace_id(), |(trace, _)| trace)
    }

    fn new_span_id(&self) -> SpanId {
        NEXT.get().map_or_else(|| self.0.new_span_id(), |(_, span)| span)
    }
}
