//! RFC 3339 times, as deadlines and signed calls carry them.

use choir_messages::time::Timestamp;

/// Reads an RFC 3339 time with any offset and any fraction (cut to milliseconds); `None` for anything else, and for
/// times before 1970.
#[must_use]
pub fn parse(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    if bytes.len() > 64 {
        return None;
    }
    let number = |range: std::ops::Range<usize>| -> Option<u64> {
        let digits = bytes.get(range)?;
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')))
    };
    let at = |index: usize, wanted: &[u8]| bytes.get(index).is_some_and(|byte| wanted.contains(byte));
    if !(at(4, b"-") && at(7, b"-") && at(10, b"Tt ") && at(13, b":") && at(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u64::from(leap),
        _ => return None,
    };
    // Second 60 is a leap second, which counts as the next minute's first.
    if day == 0 || day > days_in_month || hour > 23 || minute > 59 || second > 60 || year < 1970 {
        return None;
    }
    let mut rest = 19;
    let mut millis = 0;
    if at(rest, b".") {
        let digits = bytes.get(20..)?.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        for place in 0..3 {
            millis = millis * 10 + if place < digits { number(20 + place..21 + place)? } else { 0 };
        }
        rest = 20 + digits;
    }
    let offset_minutes: i64 = match bytes.get(rest)? {
        b'Z' | b'z' if bytes.len() == rest + 1 => 0,
        sign @ (b'+' | b'-') if bytes.len() == rest + 6 && at(rest + 3, b":") => {
            let (hours, minutes) = (number(rest + 1..rest + 3)?, number(rest + 4..rest + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let minutes = i64::try_from(hours * 60 + minutes).ok()?;
            if *sign == b'-' { -minutes } else { minutes }
        }
        _ => return None,
    };
    // Days from a civil date, after the usual era arithmetic: the year begins in March.
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let (era, yoe) = (y / 400, y % 400);
    let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let local = i64::try_from(((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + millis).ok()?;
    u64::try_from(local - offset_minutes * 60_000).ok().map(Timestamp::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offsets_fractions_and_letters_are_read() {
        for (text, millis) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T00:00:00.000Z", 951_782_400_000),
            ("2026-01-02T05:04:05.6789+02:00", 1_767_323_045_678),
            ("2026-01-02t03:04:05.6z", 1_767_323_045_600),
            ("2026-01-01 23:34:05-03:30", 1_767_323_045_000),
        ] {
            assert_eq!(parse(text), Some(Timestamp::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for bad in [
            "",
            "soon",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+2",
            "1969-12-31T23:59:59Z",
            "2026-01-01T00:00:00Zx",
            "１９７０-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_time_reads_back(millis in 0u64..4_000_000_000_000) {
            let time = Timestamp::from_millis(millis);
            prop_assert_eq!(parse(&time.to_string()), Some(time));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
