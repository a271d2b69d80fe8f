//! The one form of a time in a ledger: `YYYY-MM-DDTHH:MM:SS.mmmZ`, UTC, exactly three digits of milliseconds. Times of
//! this form compare as their texts do.

use choir_messages::time::Timestamp;

/// Whether the text has the form; it may still be a 31 February.
#[must_use]
pub fn is_form(text: &str) -> bool {
    const FORM: &[u8; 24] = b"0000-00-00T00:00:00.000Z";
    text.len() == FORM.len()
        && text
            .bytes()
            .zip(FORM)
            .all(|(byte, form)| if *form == b'0' { byte.is_ascii_digit() } else { byte == *form })
}

/// Whether the text is a moment that exists: the form, a day of that month, and an hour below 24.
#[must_use]
pub fn is_real(text: &str) -> bool {
    fields(text).is_some()
}

/// The moment. Nothing if it does not exist or lies before 1970.
#[must_use]
pub fn parse(text: &str) -> Option<Timestamp> {
    let [year, month, day, hour, minute, second, milli] = fields(text)?;
    // Days since 1970 after the usual era arithmetic (400 years = 146,097 days), years beginning in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let era_days = year / 400 * 146_097;
    let of_era = year % 400;
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 + day - 1;
    let days = (era_days + day_of_era).checked_sub(719_468)?;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(Timestamp::from_millis(seconds * 1_000 + milli))
}

fn fields(text: &str) -> Option<[u64; 7]> {
    if !is_form(text) {
        return None;
    }
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return None,
    };
    let real = (1..=days).contains(&day) && hour < 24 && minute < 60 && second < 60;
    real.then_some([year, month, day, hour, minute, second, number(20, 23)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn days_that_do_not_exist_have_the_form_and_are_not_real() {
        for text in ["2026-02-30T00:00:00.000Z", "2026-13-01T00:00:00.000Z", "2026-01-01T24:00:00.000Z"] {
            assert!(is_form(text) && !is_real(text), "{text}");
        }
        for text in ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.0000Z", "2026-01-01 00:00:00.000Z", ""] {
            assert!(!is_form(text), "{text}");
        }
        assert!(is_real("2000-02-29T23:59:59.999Z") && !is_real("1900-02-29T00:00:00.000Z"));
        assert!(is_real("0000-01-01T00:00:00.000Z") && parse("0000-01-01T00:00:00.000Z").is_none());
    }

    proptest! {
        #[test]
        fn what_a_timestamp_prints_reads_back(millis in 0u64..253_402_300_800_000) {
            let moment = Timestamp::from_millis(millis);
            prop_assert_eq!(parse(&moment.to_string()), Some(moment));
        }
    }
}
