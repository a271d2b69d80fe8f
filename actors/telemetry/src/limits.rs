//! Every bound of this crate, with its reason.

use std::time::Duration;

/// Log lines waiting to be written. A burst of some milliseconds at full speed; beyond it lines are dropped and counted,
/// because an actor must never wait for a disk.
pub const QUEUE_LINES: usize = 8192;

/// Bytes kept of one text field or message; the cut is marked. Payloads do not belong into logs.
pub const FIELD_BYTES: usize = 8 * 1024;

/// Fields kept of one log line.
pub const LINE_FIELDS: usize = 32;

/// Lines of a log file before it is archived, unless configured (`choir §22.2`).
pub const ARCHIVE_LINES: u64 = 100_000;

/// Finished spans waiting for export; beyond it they are dropped.
pub const SPAN_QUEUE: usize = 4096;

/// Spans of one export request.
pub const SPAN_BATCH: usize = 512;

/// Attributes of one span, and events of one span.
pub const SPAN_ATTRIBUTES: u32 = 64;

/// How long finished spans wait for company.
pub const SPAN_DELAY: Duration = Duration::from_secs(2);

/// How often metrics are exported, unless configured.
pub const METRICS_INTERVAL: Duration = Duration::from_secs(15);

/// How long one export request may take. Short, because the end of the process waits for the last one.
pub const EXPORT_DEADLINE: Duration = Duration::from_secs(3);

/// Bytes read of a receiver's answer.
pub(crate) const RESPONSE_BYTES: usize = 64 * 1024;

/// Shorter secrets are not looked for: they would turn up in innocent texts.
pub const SECRET_BYTES: usize = 6;

/// Known secrets, counting each form of each. Every line is searched for each of them.
pub const SECRETS: usize = 256;
