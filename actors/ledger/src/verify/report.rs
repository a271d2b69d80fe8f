//! The report: the original's members, and a text for people.

use super::finding::{Check, Failure, Findings, Warning};
use super::{Profile, Reading};
use crate::id::{ReportId, TraceId};
use serde::Serialize;
use std::fmt::{self, Write as _};

/// What a verification comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing is wrong.
    Pass,
    /// Nothing is wrong, something is doubtful.
    PassWithWarnings,
    /// Something is wrong.
    Fail,
}

impl Verdict {
    /// As it stands in reports and in `verification_status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::PassWithWarnings => "pass-with-warnings",
            Self::Fail => "fail",
        }
    }
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// It found nothing.
    Pass,
    /// It found something doubtful only.
    Warning,
    /// It found something wrong.
    Fail,
}

/// One of the ten checks in a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckResult {
    /// Which.
    pub check_id: Check,
    /// Its name; the original repeats the id.
    pub name: Check,
    /// How it ended.
    pub status: CheckStatus,
    /// What it looked at: `events:12`.
    pub scope: String,
    /// Always empty, as the original leaves it.
    pub evidence: [(); 0],
    /// The checks run together in one pass over the ledger, so this is the time of that pass.
    pub elapsed_ms: f64,
}

/// Counts of a verification.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metrics {
    /// Events read.
    pub event_count: u64,
    /// Descriptors on them.
    pub artifact_reference_count: u64,
    /// Distinct artefacts found and hashed.
    pub artifact_count: u64,
    /// Claims issued.
    pub claim_count: u64,
    /// All failures, of which the report keeps at most [`super::MAX_FINDINGS`].
    pub failure_count: u64,
    /// All warnings, kept likewise.
    pub warning_count: u64,
    /// How long it took.
    pub verification_duration_ms: f64,
}

/// How a run stands, in the words of the trace's meta file. No signature covers them, so nothing is judged by them but what
/// the ledger contradicts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunSaid {
    /// `running`, `succeeded`, `failed`, `aborted` or `tampered`.
    pub status: String,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Why it ended so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl fmt::Display for RunSaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status.as_str() {
            "running" => f.write_str("still under way")?,
            status => f.write_str(status)?,
        }
        if let Some(at) = &self.ended_at {
            write!(f, " at {at}")?;
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// The result of verifying one trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// `1.0.0`.
    pub schema_version: &'static str,
    /// The report's own id.
    pub report_id: ReportId,
    /// The trace.
    pub trace_id: TraceId,
    /// When.
    pub verified_at: String,
    /// The verdict.
    pub verification_status: Verdict,
    /// The verdict as a sentence.
    pub summary: String,
    /// How the run stands; nothing in the compat reading, or if the meta file does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunSaid>,
    /// The ten checks.
    pub checks: Vec<CheckResult>,
    /// What is wrong, in the order of the checks.
    pub failures: Vec<Failure>,
    /// What is doubtful.
    pub warnings: Vec<Warning>,
    /// Counts.
    pub metrics: Metrics,
    /// The policy profile it was judged by.
    pub policy_profile: Profile,
    /// How the trace was read.
    pub reading: Reading,
}

impl Report {
    pub(super) fn new(
        trace: TraceId,
        reading: Reading,
        profile: Profile,
        run: Option<RunSaid>,
        mut findings: Findings,
        mut metrics: Metrics,
    ) -> Self {
        let elapsed_ms = metrics.verification_duration_ms;
        let (failed, warned) = findings.totals();
        metrics.failure_count = failed;
        metrics.warning_count = warned;
        let verdict = match (failed, warned) {
            (0, 0) => Verdict::Pass,
            (0, _) => Verdict::PassWithWarnings,
            _ => Verdict::Fail,
        };
        let mut summary = match verdict {
            Verdict::Pass => "All required checks passed.".to_owned(),
            Verdict::PassWithWarnings => format!("All required checks passed, with {warned} warnings."),
            Verdict::Fail => format!("Verification failed with {failed} findings."),
        };
        if run.as_ref().is_some_and(|run| run.status == "aborted") {
            // Then an end that is missing is no riddle.
            summary.push_str(" The run was aborted before its end.");
        }
        let checks = Check::ALL.iter().map(|check| CheckResult {
            check_id: *check,
            name: *check,
            status: match (findings.failed(*check), findings.warned(*check)) {
                (0, 0) => CheckStatus::Pass,
                (0, _) => CheckStatus::Warning,
                _ => CheckStatus::Fail,
            },
            scope: match check {
                Check::ArtifactHash => format!("artifacts:{}", metrics.artifact_count),
                Check::Claim => format!("claims:{}", metrics.claim_count),
                _ => format!("events:{}", metrics.event_count),
            },
            evidence: [],
            elapsed_ms,
        });
        let checks = checks.collect();
        findings.failures.sort_by_key(|failure| (failure.verification_step, failure.line));
        Self {
            schema_version: "1.0.0",
            report_id: ReportId::fresh(),
            trace_id: trace,
            verified_at: choir_messages::time::Timestamp::now().to_string(),
            verification_status: verdict,
            summary,
            run,
            checks,
            failures: findings.failures,
            warnings: findings.warnings,
            metrics,
            policy_profile: profile,
            reading,
        }
    }

    /// 0 for pass and pass-with-warnings, 1 for fail.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self.verification_status {
            Verdict::Pass | Verdict::PassWithWarnings => 0,
            Verdict::Fail => 1,
        }
    }

    /// The status of one check.
    #[must_use]
    pub fn check(&self, check: Check) -> CheckStatus {
        let result = self.checks.iter().find(|result| result.check_id == check);
        result.map_or(CheckStatus::Pass, |result| result.status)
    }

    /// The report as the original writes it to a file.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The report for a person to read.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "Trace {}: {}", self.trace_id, self.verification_status.as_str())?;
        writeln!(out, "{}", self.summary)?;
        if let Some(run) = &self.run {
            writeln!(out, "Run: {run} (says its meta file)")?;
        }
        writeln!(
            out,
            "{} events, {} artefacts, {} claims; reading {}, profile {}; {:.1} ms",
            self.metrics.event_count,
            self.metrics.artifact_count,
            self.metrics.claim_count,
            self.reading,
            self.policy_profile,
            self.metrics.verification_duration_ms,
        )?;
        if !self.failures.is_empty() {
            writeln!(out, "\nFailures")?;
        }
        for failure in &self.failures {
            let place = place(failure.line, failure.event_id.as_ref().map(super::EventName::as_str));
            let rule = failure.rule.map(|rule| format!(" {rule}")).unwrap_or_default();
            writeln!(
                out,
                "  {:8} {}{rule} {place}: {}",
                failure.severity, failure.failure_code, failure.message
            )?;
            if let Some(hash) = failure.artifact_hash {
                writeln!(out, "           artefact {hash}")?;
            }
        }
        beyond(out, self.metrics.failure_count, self.failures.len())?;
        if !self.warnings.is_empty() {
            writeln!(out, "\nWarnings")?;
        }
        for warning in &self.warnings {
            let place = place(warning.line, warning.event_id.as_ref().map(super::EventName::as_str));
            let rule = warning.rule.map(|rule| format!(" {rule}")).unwrap_or_default();
            writeln!(out, "  {}{rule} {place}: {}", warning.warning_code, warning.message)?;
        }
        beyond(out, self.metrics.warning_count, self.warnings.len())?;
        writeln!(out, "\nChecks")?;
        for check in &self.checks {
            let status = match check.status {
                CheckStatus::Pass => "pass",
                CheckStatus::Warning => "warning",
                CheckStatus::Fail => "fail",
            };
            writeln!(out, "  {:7} {} ({})", status, check.check_id, check.scope)?;
        }
        Ok(())
    }
}

fn place(line: Option<u64>, event: Option<&str>) -> String {
    match (line, event) {
        (Some(line), Some(event)) => format!("line {line}, event {event}"),
        (Some(line), None) => format!("line {line}"),
        (None, Some(event)) => format!("event {event}"),
        (None, None) => "the trace".to_owned(),
    }
}

fn beyond(out: &mut String, all: u64, kept: usize) -> std::fmt::Result {
    let more = all.saturating_sub(kept as u64);
    if more > 0 {
        writeln!(out, "  and {more} more")?;
    }
    Ok(())
}
