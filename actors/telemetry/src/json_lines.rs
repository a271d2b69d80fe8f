//! Events as JSON lines (`choir §22.2`): `timestamp, level, source, target, session, lane, trace, span, message,
//! fields`; the ids only where they are known.

use std::fmt;
use std::sync::OnceLock;

use choir_messages::time::Timestamp;
use opentelemetry::trace::TraceContextExt as _;
use serde_json::{Map, Value};
use tracing::dispatcher::WeakDispatch;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::filter::{LANE_FIELDS, SESSION_FIELDS, tells};
use crate::limits::{FIELD_BYTES, LINE_FIELDS};
use crate::scrub::Scrubber;
use crate::writer::LogWriter;

/// Turns events into lines.
pub(crate) struct JsonLines {
    pub(crate) source: String,
    /// What stands where no span says another.
    pub(crate) session: Option<String>,
    pub(crate) scrubber: Scrubber,
    pub(crate) writer: LogWriter,
    /// The subscriber this layer is part of: it knows a span's trace. Weak, because it owns this layer.
    pub(crate) whole: OnceLock<WeakDispatch>,
}

impl JsonLines {
    /// Trace and span id of a span that is exported.
    fn trace_of(&self, span: &Id) -> Option<(String, String)> {
        let whole = self.whole.get()?.upgrade()?;
        let context = tracing_opentelemetry::get_otel_context(span, &whole)?;
        let span = context.span();
        let ids = span.span_context();
        ids.is_valid().then(|| (ids.trace_id().to_string(), ids.span_id().to_string()))
    }
}

/// What a span says of every line inside it.
#[derive(Default)]
struct Correlation {
    session: Option<String>,
    lane: Option<String>,
}

/// Collects fields. Secrets are taken out before anything is escaped.
struct Fields<'a> {
    scrubber: &'a Scrubber,
    message: String,
    session: Option<String>,
    lane: Option<String>,
    rest: Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn new(scrubber: &'a Scrubber) -> Self {
        Self { scrubber, message: String::new(), session: None, lane: None, rest: Map::new() }
    }

    fn text(&mut self, field: &Field, text: &str) {
        // Scrubbed before it is cut: half a secret is not recognised any more.
        let scrubbed = self.scrubber.text(text);
        let shown = cut(&scrubbed);
        match field.name() {
            "message" => self.message = shown,
            name if SESSION_FIELDS.contains(&name) => self.session = Some(shown),
            name if LANE_FIELDS.contains(&name) => self.lane = Some(shown),
            _ => self.put(field, Value::String(shown)),
        }
    }

    fn put(&mut self, field: &Field, value: Value) {
        if self.rest.len() < LINE_FIELDS {
            self.rest.insert(field.name().to_owned(), value);
        }
    }
}

fn cut(text: &str) -> String {
    if text.len() <= FIELD_BYTES {
        return text.to_owned();
    }
    let kept = text.floor_char_boundary(FIELD_BYTES);
    format!("{} [{} bytes cut]", text.get(..kept).unwrap_or_default(), text.len() - kept)
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
}

impl<S> Layer<S> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_register_dispatch(&self, whole: &Dispatch) {
        let _ = self.whole.set(whole.downgrade());
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        if !tells(attributes.metadata()) {
            return;
        }
        let mut fields = Fields::new(&self.scrubber);
        attributes.record(&mut fields);
        if let (Some(span), true) = (ctx.span(id), fields.session.is_some() || fields.lane.is_some()) {
            span.extensions_mut().insert(Correlation { session: fields.session, lane: fields.lane });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id).filter(|span| tells(span.metadata())) else { return };
        let mut fields = Fields::new(&self.scrubber);
        values.record(&mut fields);
        let mut extensions = span.extensions_mut();
        if extensions.get_mut::<Correlation>().is_none() {
            extensions.insert(Correlation::default());
        }
        if let Some(known) = extensions.get_mut::<Correlation>() {
            known.session = fields.session.or(known.session.take());
            known.lane = fields.lane.or(known.lane.take());
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut fields = Fields::new(&self.scrubber);
        event.record(&mut fields);
        // The nearest span that knows wins.
        for span in ctx.event_scope(event).into_iter().flatten() {
            if fields.session.is_some() && fields.lane.is_some() {
                break;
            }
            if let Some(known) = span.extensions().get::<Correlation>() {
                fields.session = fields.session.or_else(|| known.session.clone());
                fields.lane = fields.lane.or_else(|| known.lane.clone());
            }
        }
        let meta = event.metadata();
        let mut line = Map::new();
        line.insert("timestamp".into(), Timestamp::now().to_string().into());
        line.insert("level".into(), meta.level().as_str().into());
        line.insert("source".into(), self.source.as_str().into());
        line.insert("target".into(), meta.target().into());
        if let Some(session) = fields.session.or_else(|| self.session.clone()) {
            line.insert("session".into(), session.into());
        }
        if let Some(lane) = fields.lane {
            line.insert("lane".into(), lane.into());
        }
        if let Some((trace, span)) = ctx.event_span(event).and_then(|span| self.trace_of(&span.id())) {
            line.insert("trace".into(), trace.into());
            line.insert("span".into(), span.into());
        }
        line.insert("message".into(), fields.message.into());
        line.insert("fields".into(), Value::Object(fields.rest));
        self.writer.line(Value::Object(line).to_string());
    }
}
