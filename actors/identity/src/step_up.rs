//! Step-up (digest §3.11): a privileged call needs an authentication that is fresh and, where the workspace says so, of
//! one particular strength.

use choir_messages::time::Timestamp;
use std::time::Duration;

use crate::instant::{at_second, later};
use crate::limits::CLOCK_SKEW;

/// What a workspace asks of an authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepUp<'a> {
    /// How old it may be.
    pub window: Duration,
    /// The `acr` that it must have, to the letter: there is no order among them that all providers share.
    pub acr: Option<&'a str>,
}

/// Why an authentication is not enough.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepUpError {
    /// Nothing is known of when the member authenticated.
    #[error(
        "step-up required: when the member authenticated is not known; sign in again within {window_sec} s"
    )]
    Unknown {
        /// The window in seconds.
        window_sec: u64,
    },
    /// Too long ago, or in the future.
    #[error(
        "step-up required: the member authenticated {age_sec} s ago, at most {window_sec} s are allowed; sign in again"
    )]
    Stale {
        /// The window in seconds.
        window_sec: u64,
        /// The authentication's age in seconds.
        age_sec: u64,
    },
    /// Of another strength.
    #[error("step-up required: sign in again with the authentication that the workspace asks for")]
    Acr {
        /// The `acr` asked for.
        required: String,
        /// The one that the member has.
        have: Option<String>,
    },
}

/// Whether an authentication at `auth_time` (seconds since 1970) of strength `acr` is enough now.
pub fn check(
    auth_time: Option<u64>,
    acr: Option<&str>,
    asked: &StepUp<'_>,
    now: Timestamp,
) -> Result<(), StepUpError> {
    let window_sec = asked.window.as_secs();
    let at = at_second(auth_time.ok_or(StepUpError::Unknown { window_sec })?);
    let age = now.since(at);
    if age > asked.window || at > later(now, CLOCK_SKEW) {
        return Err(StepUpError::Stale { window_sec, age_sec: age.as_secs() });
    }
    match asked.acr {
        Some(required) if acr != Some(required) => {
            Err(StepUpError::Acr { required: required.to_owned(), have: acr.map(str::to_owned) })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_and_strength_are_both_needed() {
        let now = at_second(1000);
        let asked = StepUp { window: Duration::from_secs(300), acr: Some("mfa") };
        for (auth_time, acr, verdict) in [
            (Some(700), Some("mfa"), Ok(())),
            (Some(1060), Some("mfa"), Ok(())),
            (None, Some("mfa"), Err(StepUpError::Unknown { window_sec: 300 })),
            (Some(699), Some("mfa"), Err(StepUpError::Stale { window_sec: 300, age_sec: 301 })),
            (Some(1061), Some("mfa"), Err(StepUpError::Stale { window_sec: 300, age_sec: 0 })),
            (
                Some(900),
                Some("pwd"),
                Err(StepUpError::Acr { required: "mfa".into(), have: Some("pwd".into()) }),
            ),
            (Some(900), None, Err(StepUpError::Acr { required: "mfa".into(), have: None })),
        ] {
            assert_eq!(check(auth_time, acr, &asked, now), verdict);
        }
        let any = StepUp { acr: None, ..asked };
        assert_eq!(check(Some(900), None, &any, now), Ok(()));
    }
}
