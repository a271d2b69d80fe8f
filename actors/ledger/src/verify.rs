//! The verifier: reads a home offline, changes nothing, and answers with a [`Report`] whatever it finds there.
//!
//! Two readings. [`Reading::Compat`] says exactly what the original's verifier says: its ten checks, and nothing where it
//! looks away. [`Reading::Strict`], the default, says what the protocol demands: everything compat reports, and the rules
//! [`Rule`] R01 to R17. Where the original breaks off without a report, both answer fail with one.
//!
//! The ledger is streamed. What grows with a trace: about 60 bytes an event (its id), 60 a claim, 50 a distinct artefact, and
//! what is open at a time (executions, unused intents, challenges). Everything else is bounded: a line by [`MAX_LINE`], its
//! nesting by [`crate::json::MAX_DEPTH`], the registry, the meta file, the lines under way, and the findings that are kept by
//! [`MAX_FINDINGS`].

mod blobs;
mod claims;
mod comb;
mod elsewhere;
mod finding;
mod fold;
mod home;
mod line;
mod lines;
mod order;
mod pool;
mod registry;
mod report;
mod rule;
mod said;
mod says;
mod seal;

pub use finding::{
    Check, EventName, Failure, FailureCode, MAX_FINDINGS, Place, Severity, Warning, WarningCode,
};
pub use home::{Folder, Home, Memory};
pub use lines::MAX_LINE;
pub use registry::MAX_REGISTRY;
pub use report::{CheckResult, CheckStatus, Metrics, Report, RunSaid, Verdict};
pub use rule::Rule;
pub use said::MAX_META;

use crate::id::TraceId;
use fold::Fold;
use line::Context;
use registry::Keys;
use said::Said;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Instant;

/// How a trace is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading {
    /// By the protocol's own rules.
    #[default]
    Strict,
    /// As the original reads it.
    Compat,
}

/// The policy profile: how open challenges count. Not to be confused with the [`Reading`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// An open challenge is a failure.
    Strict,
    /// An open challenge is a warning.
    #[default]
    Default,
    /// Equal to `default`.
    Lenient,
}

/// No such profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no such policy profile; there are strict, default and lenient")]
pub struct UnknownProfile;

impl Profile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Strict, Self::Default, Self::Lenient];

    /// The name, as it stands in meta files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Default => "default",
            Self::Lenient => "lenient",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;
    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == text).ok_or(UnknownProfile)
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Strict => "strict",
            Self::Compat => "compat",
        })
    }
}

/// How to verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// How the trace is read.
    pub reading: Reading,
    /// How open challenges count.
    pub profile: Profile,
    /// The auditor is about to record the verdict, so a missing `verification_run_completed` is no failure.
    pub awaiting_verdict: bool,
}

/// Verifies one trace of a home. Always answers; what cannot be read is a failure.
#[must_use]
pub fn verify(home: &dyn Home, trace: TraceId, options: Options) -> Report {
    let begun = Instant::now();
    let context = Context {
        reading: options.reading,
        trace: trace.to_string(),
        keys: Keys::read(home),
        said: Said::read(home, trace),
    };
    let mut fold = Fold::new(home, &context, options);
    if let Some(why) = &context.keys.unreadable {
        let message = format!("the registry cannot be read: {why}");
        fold.findings.fail(Failure::new(Check::Key, FailureCode::SchemaInvalid, Place::default(), message));
    }
    let read = match home.open(&crate::layout::events(trace)) {
        Ok(Some(ledger)) => pool::run(ledger, &context, &mut fold),
        // A missing ledger is an empty one.
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = read {
        let message = format!("the ledger cannot be read: {error}");
        let failure = Failure::new(Check::Schema, FailureCode::SchemaInvalid, Place::default(), message);
        fold.findings.fail(failure.by(Rule::AlwaysAReport));
    }
    let (findings, mut metrics) = fold.end(home, trace);
    metrics.verification_duration_ms = begun.elapsed().as_secs_f64() * 1_000.0;
    // The original does not look at it.
    let run = context.said.run.filter(|_| options.reading == Reading::Strict);
    Report::new(trace, options.reading, options.profile, run, findings, metrics)
}

/// [`verify`] for a home in a folder.
#[must_use]
pub fn verify_folder(home: &std::path::Path, trace: TraceId, options: Options) -> Report {
    verify(&Folder::new(home), trace, options)
}
