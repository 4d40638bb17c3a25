//! Lengths of time as people write them: a number with a unit.

use crate::args::Parsed;
use lockwarden::limits::{self, OutOfRange};
use std::time::Duration;
use thiserror::Error;

/// Why a text is no length of time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum DurationError {
    /// It has no number, no unit, or something else.
    #[error(
        "{text:?} is no duration: it must be a number with a unit (ms, s, m, h or d), as in {EXAMPLES}"
    )]
    Form { text: String },
    /// It is below zero.
    #[error("{text:?} is negative; a duration is not")]
    Negative { text: String },
    /// It is longer than anything here may be.
    #[error("{text:?} is too long: the most is {} ms, a hundred years", limits::MAX_WAIT_MS)]
    TooLong { text: String },
    /// It is a length of time, but not one that this setting can have.
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

const EXAMPLES: &str = "300ms, 5s, 2m, 1h";

/// Any length of time.
pub(crate) fn any(text: &str) -> Parsed {
    let form = || DurationError::Form { text: text.to_owned() };
    if let Some(rest) = text.strip_prefix('-') {
        let negative = DurationError::Negative { text: text.to_owned() };
        return Err(if any(rest).is_ok() { negative } else { form() });
    }
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(form)?;
    let (number, unit) = text.split_at(unit_at);
    let unit_ns: u128 = match unit {
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return Err(form()),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return Err(form());
    }
    let too_long = || DurationError::TooLong { text: text.to_owned() };
    // What does not fit u128 is digits all the same.
    let whole: u128 = whole.parse().map_err(|_| too_long())?;
    // Nine places are more than any unit's nanoseconds need to be told apart by people.
    let part: u128 = format!("{part:0<9}")[..9].parse().map_err(|_| form())?;
    let ns = whole.checked_mul(unit_ns).ok_or_else(too_long)? + part * unit_ns / 1_000_000_000;
    if ns > u128::from(limits::MAX_WAIT_MS) * 1_000_000 {
        return Err(too_long());
    }
    let ns_per_s = 1_000_000_000;
    let too_long = |_| too_long();
    Ok(Duration::new(u64::try_from(ns / ns_per_s).map_err(too_long)?, (ns % ns_per_s) as u32))
}

/// How long to wait for a lock.
pub(crate) fn wait(text: &str) -> Parsed {
    any(text)
}

/// A lease.
pub(crate) fn lease(text: &str) -> Parsed {
    let lease = any(text)?;
    limits::lease(ms(lease), limits::MIN_LEASE_MS)?;
    Ok(lease)
}

/// How long a lock is held at least.
pub(crate) fn at_least(text: &str) -> Parsed {
    let least = any(text)?;
    limits::at_least(ms(least))?;
    Ok(least)
}

/// How long nobody gets a lock that was lost by a crash.
pub(crate) fn lock_delay(text: &str) -> Parsed {
    let delay = any(text)?;
    limits::delay(ms(delay))?;
    Ok(delay)
}

/// How long a lock is held at most.
pub(crate) fn at_most(text: &str) -> Parsed {
    let most = any(text)?;
    limits::at_most(ms(most), limits::MIN_LEASE_MS)?;
    Ok(most)
}

/// How long an order of `stress` works.
pub(crate) fn work(text: &str) -> Parsed {
    up_to_an_hour("work", text)
}

/// How long an order of `stress` waits.
pub(crate) fn patience(text: &str) -> Parsed {
    up_to_an_hour("wait", text)
}

/// A run of hours is a mistyped unit.
fn up_to_an_hour(what: &'static str, text: &str) -> Parsed {
    let given = any(text)?;
    let (given_ms, least_ms, most_ms) = (ms(given), 1, 3_600_000);
    if (least_ms..=most_ms).contains(&given_ms) {
        return Ok(given);
    }
    Err(OutOfRange { what, given_ms, least_ms, most_ms }.into())
}

/// A grace.
pub(crate) fn grace(text: &str) -> Parsed {
    let grace = any(text)?;
    limits::grace(ms(grace))?;
    Ok(grace)
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_unit() {
        for (text, ms) in [
            ("300ms", 300),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("0s", 0),
            ("1.5s", 1_500),
            ("0.25m", 15_000),
            ("1.2345678s", 1_234),
        ] {
            assert_eq!(any(text).unwrap().as_millis(), ms, "{text}");
        }
        assert_eq!(any("0.5ms").unwrap(), Duration::from_micros(500));
        assert_eq!(any("1.23456789012345s").unwrap().as_nanos(), 1_234_567_890);
    }

    /// C25, C26: everything else says what is wrong with it.
    #[test]
    fn c26_odd_durations_are_refused() {
        for text in
            ["", "5", "s", "5 s", "5S", "5sec", "1e3s", ".5s", "5.s", "1.2.3s", "٣s", "NaN", "inf"]
        {
            let refused = DurationError::Form { text: text.into() };
            assert_eq!(any(text), Err(refused), "{text}");
        }
        assert!(matches!(any("-1s"), Err(DurationError::Negative { .. })));
        assert!(matches!(any("--1s"), Err(DurationError::Form { .. })));
        assert!(matches!(any("--lease"), Err(DurationError::Form { .. })));
        for text in ["36501d", "99999999999999999999h", &format!("{}s", "9".repeat(60))] {
            assert!(matches!(any(text), Err(DurationError::TooLong { .. })), "{text}");
        }
    }

    #[test]
    fn c26_leases_have_limits() {
        assert!(lease("100ms").is_ok());
        for text in ["0s", "99.9ms", "31d"] {
            assert!(matches!(lease(text), Err(DurationError::Range(_))), "{text}");
        }
        assert!(grace("3s").is_ok());
        assert!(matches!(grace("2.9s"), Err(DurationError::Range(_))));
    }
}
