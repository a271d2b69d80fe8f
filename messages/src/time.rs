//! Wall-clock time as the logs carry it: whole milliseconds since 1970 UTC.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The wall clock now. A clock before 1970 reads as 1970.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// The moment that many milliseconds after 1970.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if the clock went back.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl std::fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds: `2026-01-02T03:04:05.678Z`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (days, rest) = (self.0 / 86_400_000, self.0 % 86_400_000);
        let (hour, minute, second, milli) =
            (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60, rest % 1000);
        // Civil date from a day count, after the usual era arithmetic (400 years = 146,097 days).
        let z = days + 719_468;
        let era = z / 146_097;
        let doe = z - era * 146_097;
        let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let day = doy - (153 * mp + 2) / 5 + 1;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        let year = yoe + era * 400 + u64::from(month <= 2);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_prints_as_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), text);
        }
    }
}
