//! Points in time as tokens and credentials write them: seconds since 1970, and `dateTimeStamp` texts.

use choir_messages::canonical::SAFE_INTEGER;
use choir_messages::time::Timestamp;
use serde_json::Value;
use std::time::Duration;

/// A JWT `NumericDate` (RFC 7519 §2): seconds, whose fraction is dropped.
pub(crate) fn numeric_date(value: &Value) -> Option<u64> {
    let seconds = match value.as_u64() {
        Some(seconds) => seconds,
        None => {
            let seconds = value.as_f64().filter(|seconds| (0.0..=SAFE_INTEGER as f64).contains(seconds))?;
            seconds as u64
        }
    };
    (seconds <= SAFE_INTEGER / 1000).then_some(seconds)
}

/// That many seconds after 1970.
pub(crate) fn at_second(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds.saturating_mul(1000))
}

/// That much later.
pub(crate) fn later(time: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_millis(time.millis().saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
}

/// An XML Schema `dateTimeStamp`: a date and time of day with a time zone, from 1970 to 9999. Fractions beyond the
/// millisecond are dropped.
pub(crate) fn date_time(text: &str) -> Option<Timestamp> {
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = text.get(from..to).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?;
        digits.parse().ok()
    };
    let mark = |at: usize, mark: u8| (text.as_bytes().get(at) == Some(&mark)).then_some(());
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    mark(4, b'-')?;
    mark(7, b'-')?;
    mark(10, b'T')?;
    mark(13, b':')?;
    mark(16, b':')?;
    let rest = text.get(19..)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.bytes().position(|b| !b.is_ascii_digit()).filter(|end| (1..=9).contains(end))?;
            rest.split_at_checked(end)?
        }
        None => ("0", rest),
    };
    let millis: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if year < 1970 || !(1..=month_days).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Days since 1970 in years that begin in March, so that the leap day is the last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = (365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1).checked_sub(719_468)?;
    let local = ((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + millis;
    let offset = |zone: &str| -> Option<u64> {
        let (hours, minutes) = zone.split_once(':')?;
        let two =
            |text: &str| (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse());
        let (hours, minutes): (u64, u64) = (two(hours)?.ok()?, two(minutes)?.ok()?);
        (hours <= 14 && minutes <= 59).then_some((hours * 60 + minutes) * 60_000)
    };
    let utc = match zone.split_at_checked(1)? {
        ("Z", "") => local,
        ("+", zone) => local.checked_sub(offset(zone)?)?,
        ("-", zone) => local + offset(zone)?,
        _ => return None,
    };
    Some(Timestamp::from_millis(utc))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn date_times_with_zones_and_fractions_are_read() {
        for (text, utc) in [
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z"),
            ("2024-02-29T23:59:59.9999Z", "2024-02-29T23:59:59.999Z"),
            ("2026-01-01T01:30:00.5+02:00", "2025-12-31T23:30:00.500Z"),
            ("2026-01-01T00:00:00-05:30", "2026-01-01T05:30:00.000Z"),
        ] {
            assert_eq!(date_time(text).unwrap().to_string(), utc);
        }
    }

    #[test]
    fn what_is_no_date_time_with_a_zone_is_refused() {
        for text in [
            "",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2023-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-32T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01t00:00:00Z",
            "2026-01-01T00:00:00z",
            "2026-01-01T00:00:00+2:00",
            "2026-01-01T00:00:00+15:00",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "+026-01-01T00:00:00Z",
            "2026-01-01T00:00:00Z ",
            "2026-01-0\u{661}T00:00:00Z",
        ] {
            assert_eq!(date_time(text), None, "{text}");
        }
    }

    #[test]
    fn numeric_dates_may_have_a_fraction_but_not_a_sign() {
        assert_eq!(numeric_date(&serde_json::json!(1.9)), Some(1));
        for value in [serde_json::json!(-1), serde_json::json!("1"), serde_json::json!(1e300), Value::Null] {
            assert_eq!(numeric_date(&value), None);
        }
    }

    proptest! {
        #[test]
        fn what_a_timestamp_prints_is_read_back(millis in 0u64..253_402_300_800_000) {
            let time = Timestamp::from_millis(millis);
            prop_assert_eq!(date_time(&time.to_string()), Some(time));
        }

        #[test]
        fn any_text_is_judged_without_a_panic(text in "\\PC{0,40}") {
            let _ = date_time(&text);
        }
    }
}
