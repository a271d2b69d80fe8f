//! What a verification finds: failures and warnings, the checks they belong to, and the bounded lists they are kept in.

use super::rule::Rule;
use crate::id::{ULID_LEN, is_ulid_form};
use choir_messages::chain::Digest;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// Findings kept of each kind. A ledger of a million bad lines would otherwise become a report of gigabytes; what is
/// beyond is counted.
pub const MAX_FINDINGS: usize = 1_000;

/// Of these, kept for findings about the trace as a whole. Most of them come last, and must not be lost behind a thousand bad
/// lines.
const WHOLE_TRACE: usize = 100;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident: $($variant:ident = $text:literal,)+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum $name { $(#[doc = concat!("`", $text, "`")] #[serde(rename = $text)] $variant,)+ }

        impl $name {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name as it stands in reports.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names! {
    /// The ten checks, in the order in which reports list them.
    Check:
    Schema = "CHK_SCHEMA_CONFORMANCE",
    EventHash = "CHK_EVENT_HASH_INTEGRITY",
    Chain = "CHK_CHAIN_CONTINUITY",
    Signature = "CHK_SIGNATURE_VALIDITY",
    Key = "CHK_KEY_STATUS",
    ArtifactExistence = "CHK_ARTIFACT_EXISTENCE",
    ArtifactHash = "CHK_ARTIFACT_HASH_MATCH",
    Claim = "CHK_CLAIM_EVIDENCE_SUFFICIENCY",
    Role = "CHK_ROLE_POLICY_CONFORMANCE",
    Finalization = "CHK_FINALIZATION_INTEGRITY",
}

names! {
    /// What is wrong.
    FailureCode:
    SchemaInvalid = "SCHEMA_INVALID",
    HashMismatch = "HASH_MISMATCH",
    ChainBreak = "CHAIN_BREAK",
    SigMissing = "SIG_MISSING",
    SigInvalid = "SIG_INVALID",
    ArtifactMissing = "ARTIFACT_MISSING",
    ArtifactHashMismatch = "ARTIFACT_HASH_MISMATCH",
    ClaimUnproven = "CLAIM_UNPROVEN",
    RolePolicyViolation = "ROLE_POLICY_VIOLATION",
}

names! {
    /// What is doubtful.
    WarningCode:
    ClaimDisputed = "CLAIM_DISPUTED",
    LedgerTailPartial = "LEDGER_TAIL_PARTIAL",
    CanonicalOrderAmbiguous = "CANONICAL_ORDER_AMBIGUOUS",
}

names! {
    /// How grave it is; follows from the code.
    Severity:
    Medium = "medium",
    High = "high",
    Critical = "critical",
}

impl FailureCode {
    /// How grave it is.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::SigInvalid | Self::SigMissing | Self::ChainBreak | Self::HashMismatch => Severity::Critical,
            Self::ArtifactMissing | Self::ArtifactHashMismatch | Self::ClaimUnproven => Severity::High,
            Self::RolePolicyViolation | Self::SchemaInvalid => Severity::Medium,
        }
    }
}

/// The id of an event as a ledger writes it: a text of [`is_ulid_form`], which need not fit 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventName([u8; ULID_LEN]);

impl EventName {
    /// The name, if the text has the form.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        if is_ulid_form(text) { text.as_bytes().try_into().ok().map(Self) } else { None }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // All bytes are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for EventName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Where in the trace: an event, a line of the ledger, both, or neither (the trace as a whole).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The event's id, if it has the form of one.
    pub event: Option<EventName>,
    /// The line of `events.jsonl`, counted from 1.
    pub line: Option<u64>,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// What is wrong.
    pub failure_code: FailureCode,
    /// The check that found it.
    pub verification_step: Check,
    /// How grave it is.
    pub severity: Severity,
    /// The event it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<EventName>,
    /// The artefact it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_hash: Option<Digest>,
    /// The line of `events.jsonl`, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The rule of the strict reading, where the finding goes beyond the original's checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// One sentence for a person.
    pub message: Cow<'static, str>,
}

/// One thing that is doubtful.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// What is doubtful.
    pub warning_code: WarningCode,
    /// The check that found it.
    pub verification_step: Check,
    /// Always medium.
    pub severity: Severity,
    /// The event it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<EventName>,
    /// The line of `events.jsonl`, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The rule of the strict reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// One sentence for a person.
    pub message: Cow<'static, str>,
}

impl Failure {
    /// A failure at this place.
    pub(super) fn new(
        check: Check,
        code: FailureCode,
        place: Place,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            failure_code: code,
            verification_step: check,
            severity: code.severity(),
            event_id: place.event,
            artifact_hash: None,
            line: place.line,
            rule: None,
            message: message.into(),
        }
    }

    /// The same failure, found by this rule.
    pub(super) const fn by(mut self, rule: Rule) -> Self {
        self.rule = Some(rule);
        self
    }

    /// The same failure, about this artefact.
    pub(super) const fn about(mut self, hash: Digest) -> Self {
        self.artifact_hash = Some(hash);
        self
    }
}

/// Bounded lists of findings.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) failures: Vec<Failure>,
    pub(super) warnings: Vec<Warning>,
    /// Failures kept: of lines, and of the trace as a whole.
    lines: usize,
    whole: usize,
    /// Failures and warnings of each check, kept or not.
    failed: [u64; Check::ALL.len()],
    warned: [u64; Check::ALL.len()],
}

impl Findings {
    pub(super) fn fail(&mut self, failure: Failure) {
        if let Some(count) = self.failed.get_mut(failure.verification_step as usize) {
            *count += 1;
        }
        let whole = failure.line.is_none();
        let (kept, room) = match whole {
            true => (&mut self.whole, WHOLE_TRACE),
            false => (&mut self.lines, MAX_FINDINGS - WHOLE_TRACE),
        };
        if *kept < room {
            *kept += 1;
            self.failures.push(failure);
        }
    }

    pub(super) fn warn(&mut self, warning: Warning) {
        if let Some(count) = self.warned.get_mut(warning.verification_step as usize) {
            *count += 1;
        }
        if self.warnings.len() < MAX_FINDINGS {
            self.warnings.push(warning);
        }
    }

    /// How many failures this check found.
    pub(super) fn failed(&self, check: Check) -> u64 {
        self.failed.get(check as usize).copied().unwrap_or(0)
    }

    /// How many warnings this check gave.
    pub(super) fn warned(&self, check: Check) -> u64 {
        self.warned.get(check as usize).copied().unwrap_or(0)
    }

    /// All failures, all warnings.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.failed.iter().sum(), self.warned.iter().sum())
    }
}
