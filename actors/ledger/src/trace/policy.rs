//! What a run is allowed to do: thresholds for each risk class, drawn from the task's sensitivity and the policy
//! profile, and the task's limits. The policy is written into the session's first event and signed there, so that every
//! restart and every auditor judges by the same one.

use std::fmt;
use std::str::FromStr;

use super::refused::Refused;
use crate::json::{Owned, Value};
use crate::verify::Profile as PolicyProfile;

/// How dangerous a tool call is, as its intent's `safety_classification` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RiskClass {
    /// Reads what the run already has.
    Low,
    /// The usual: what the original calls `standard`.
    Standard,
    /// Changes something that can be put back.
    Elevated,
    /// Changes something that cannot be put back, or speaks to the outside.
    High,
    /// Must not go wrong.
    Critical,
}

impl RiskClass {
    /// Every class, the least dangerous first.
    pub const ALL: [Self; 5] = [Self::Low, Self::Standard, Self::Elevated, Self::High, Self::Critical];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Standard => "standard",
            Self::Elevated => "elevated",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// The class that a `safety_classification` means. A word that is not known here is judged as the worst: what nobody
    /// has classified must not pass for harmless.
    #[must_use]
    pub fn of(word: &str) -> Self {
        Self::ALL.into_iter().find(|class| class.as_str() == word).unwrap_or(match word {
            "medium" => Self::Elevated,
            _ => Self::Critical,
        })
    }

    const fn one_below(self) -> Self {
        match self {
            Self::Low | Self::Standard => Self::Low,
            Self::Elevated => Self::Standard,
            Self::High => Self::Elevated,
            Self::Critical => Self::High,
        }
    }
}

impl fmt::Display for RiskClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How much harm a task's data can do in the wrong place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Sensitivity {
    /// Anyone may see it.
    Public,
    /// The usual.
    #[default]
    Internal,
    /// For those who need it.
    Confidential,
    /// For those named.
    Restricted,
}

impl Sensitivity {
    /// Every level, the least sensitive first.
    pub const ALL: [Self; 4] = [Self::Public, Self::Internal, Self::Confidential, Self::Restricted];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Internal => "internal",
            Self::Confidential => "confidential",
            Self::Restricted => "restricted",
        }
    }
}

impl fmt::Display for Sensitivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Sensitivity {
    type Err = Refused;
    fn from_str(word: &str) -> Result<Self, Refused> {
        Self::ALL
            .into_iter()
            .find(|level| level.as_str() == word)
            .ok_or(Refused::Policy { member: "sensitivity_level" })
    }
}

/// Failed executions after which a run goes on to its claims, unless the task says otherwise: two retries.
pub const FAILURE_LIMIT: u32 = 3;

/// Proposals in one run, unless the task says otherwise: a plan, its revisions and a fallback or two.
pub const PROPOSAL_LIMIT: u32 = 16;

/// Tool intents in one run, unless the task says otherwise.
pub const TOOL_CALL_LIMIT: u32 = 64;

/// Challenges in one run, unless the task says otherwise: a critic that is never content must not keep a run open.
pub const CHALLENGE_LIMIT: u32 = 16;

/// What a run is allowed to do. A limit of `None` is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// By what its verification is judged.
    pub profile: PolicyProfile,
    /// How sensitive its data are.
    pub sensitivity: Sensitivity,
    /// Milliseconds after `session_initialized` in which tools may be started.
    pub time_budget_ms: Option<u64>,
    /// Most tool intents. Blocked ones count, or a critic and an executor could go on for ever.
    pub tool_calls: Option<u32>,
    /// Failed executions after which the run goes on to claiming as a bounded failure. `None`: after the first, and retries
    /// are not limited.
    pub failures: Option<u32>,
    /// Most proposals.
    pub proposals: Option<u32>,
    /// Most challenges.
    pub challenges: Option<u32>,
    /// Fewest distinct artefacts as evidence of a claim; one at least.
    pub minimum_evidence: u32,
    /// From this class on, each intent needs the critic's own approval.
    pub review_from: Option<RiskClass>,
    /// From this class on, an intent is refused whatever the critic says.
    pub refuse_from: Option<RiskClass>,
    /// Whether a failed execution may be answered with a fallback proposal.
    pub fallback: bool,
    /// Whether only tools that the approved proposal names may be meant.
    pub planned_tools_only: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self::of(PolicyProfile::Default, Sensitivity::Internal)
    }
}

impl Policy {
    /// The policy of a task of this sensitivity under this profile.
    ///
    /// | sensitivity | each intent reviewed from | refused from |
    /// |---|---|---|
    /// | public | high | never |
    /// | internal | elevated | never |
    /// | confidential | elevated | critical |
    /// | restricted | standard | high |
    ///
    /// `strict` begins to review one class earlier; `lenient` reviews from critical only, but refuses what `default`
    /// refuses.
    #[must_use]
    pub fn of(profile: PolicyProfile, sensitivity: Sensitivity) -> Self {
        let (review, refuse) = match sensitivity {
            Sensitivity::Public => (RiskClass::High, None),
            Sensitivity::Internal => (RiskClass::Elevated, None),
            Sensitivity::Confidential => (RiskClass::Elevated, Some(RiskClass::Critical)),
            Sensitivity::Restricted => (RiskClass::Standard, Some(RiskClass::High)),
        };
        let review = match profile {
            PolicyProfile::Strict => review.one_below(),
            PolicyProfile::Default => review,
            PolicyProfile::Lenient => RiskClass::Critical,
        };
        Self {
            profile,
            sensitivity,
            time_budget_ms: None,
            tool_calls: Some(TOOL_CALL_LIMIT),
            failures: Some(FAILURE_LIMIT),
            proposals: Some(PROPOSAL_LIMIT),
            challenges: Some(CHALLENGE_LIMIT),
            minimum_evidence: 1,
            review_from: Some(review),
            refuse_from: refuse,
            fallback: true,
            planned_tools_only: true,
        }
    }

    /// The bare protocol, without limits or thresholds: for traces that others wrote.
    #[must_use]
    pub fn protocol(profile: PolicyProfile) -> Self {
        Self {
            time_budget_ms: None,
            tool_calls: None,
            failures: None,
            proposals: None,
            challenges: None,
            review_from: None,
            refuse_from: None,
            planned_tools_only: false,
            ..Self::of(profile, Sensitivity::Internal)
        }
    }

    /// Whether an intent of this class needs the critic's own approval.
    #[must_use]
    pub fn reviews(&self, class: RiskClass) -> bool {
        self.review_from.is_some_and(|from| class >= from)
    }

    /// Whether an intent of this class is refused.
    #[must_use]
    pub fn refuses(&self, class: RiskClass) -> bool {
        self.refuse_from.is_some_and(|from| class >= from)
    }

    /// The member `policy` of the session's payload. A limit that is absent is no limit.
    #[must_use]
    pub fn to_value(&self) -> Owned {
        let mut value = Value::object([
            ("policy_profile", self.profile.as_str().into()),
            ("sensitivity_level", self.sensitivity.as_str().into()),
            ("minimum_evidence", self.minimum_evidence.into()),
            ("fallback_proposals", self.fallback.into()),
            ("planned_tools_only", self.planned_tools_only.into()),
        ]);
        if let Some(budget) = self.time_budget_ms {
            #[expect(
                clippy::cast_precision_loss,
                reason = "bounded where it is read, and 2^53 ms are 285,000 years"
            )]
            let budget = budget as f64;
            value = value.with("time_budget_ms", budget.into());
        }
        for (member, limit) in [
            ("tool_call_limit", self.tool_calls),
            ("failure_limit", self.failures),
            ("proposal_limit", self.proposals),
            ("challenge_limit", self.challenges),
        ] {
            if let Some(limit) = limit {
                value = value.with(member, limit.into());
            }
        }
        for (member, class) in [("review_from", self.review_from), ("refuse_from", self.refuse_from)] {
            if let Some(class) = class {
                value = value.with(member, class.as_str().into());
            }
        }
        value
    }

    /// The policy that a session's payload states, or `None` if it states none.
    pub fn of_session(payload: &Value<'_>) -> Result<Option<Self>, Refused> {
        match payload.get("policy") {
            None => Ok(None),
            Some(value) => Self::from_value(value).map(Some),
        }
    }

    /// Reads what [`Policy::to_value`] wrote.
    pub fn from_value(value: &Value<'_>) -> Result<Self, Refused> {
        Ok(Self {
            profile: word(value, "policy_profile")?
                .parse()
                .map_err(|_| Refused::Policy { member: "policy_profile" })?,
            sensitivity: word(value, "sensitivity_level")?.parse()?,
            time_budget_ms: number(value, "time_budget_ms")?,
            tool_calls: small(value, "tool_call_limit")?,
            failures: small(value, "failure_limit")?,
            proposals: small(value, "proposal_limit")?,
            challenges: small(value, "challenge_limit")?,
            minimum_evidence: small(value, "minimum_evidence")?
                .ok_or(Refused::Policy { member: "minimum_evidence" })?,
            review_from: class(value, "review_from")?,
            refuse_from: class(value, "refuse_from")?,
            fallback: flag(value, "fallback_proposals")?,
            planned_tools_only: flag(value, "planned_tools_only")?,
        })
    }
}

fn word<'a>(value: &'a Value<'_>, member: &'static str) -> Result<&'a str, Refused> {
    value.get(member).and_then(Value::as_str).ok_or(Refused::Policy { member })
}

fn flag(value: &Value<'_>, member: &'static str) -> Result<bool, Refused> {
    value.get(member).and_then(Value::as_bool).ok_or(Refused::Policy { member })
}

fn number(value: &Value<'_>, member: &'static str) -> Result<Option<u64>, Refused> {
    /// Beyond it doubles no longer hold every integer.
    const LARGEST: f64 = choir_messages::canonical::SAFE_INTEGER as f64;
    match value.get(member) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_f64().filter(|number| number.fract() == 0.0);
            let number = number.filter(|number| (0.0..=LARGEST).contains(number));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "whole, and from 0 to 2^53-1"
            )]
            number.map(|number| Some(number as u64)).ok_or(Refused::Policy { member })
        }
    }
}

fn small(value: &Value<'_>, member: &'static str) -> Result<Option<u32>, Refused> {
    let number = number(value, member)?;
    number.map(|number| u32::try_from(number).map_err(|_| Refused::Policy { member })).transpose()
}

fn class(value: &Value<'_>, member: &'static str) -> Result<Option<RiskClass>, Refused> {
    match value.get(member) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let word = value.as_str().ok_or(Refused::Policy { member })?;
            let known = RiskClass::ALL.into_iter().find(|class| class.as_str() == word);
            known.map(Some).ok_or(Refused::Policy { member })
        }
    }
}
