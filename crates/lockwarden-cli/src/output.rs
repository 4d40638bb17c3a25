//! Data on stdout, words on stderr.

use crate::failure::Failure;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt::Display,
    io::{self, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// One line of words for people, on stderr. Where that is closed nobody wants to read it.
pub(crate) fn say(words: impl Display) {
    let _ = writeln!(io::stderr().lock(), "lockwarden: {words}");
}

/// Writes data. A reader that has seen enough (`| head`) is no failure.
pub(crate) fn write(data: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(data).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::System { what: "write to stdout", source: error })
        }
        _ => Ok(()),
    }
}

/// Writes one JSON value on a line of its own.
pub(crate) fn write_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::System { what: "make JSON", source: error.into() })?;
    write(format!("{text}\n").as_bytes())
}

/// On one line, whatever someone called their host or their label.
pub(crate) fn escaped(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// Who holds or waits, in words: as the library's errors say it. `?`: not known.
pub(crate) fn party(label: Option<&str>, host: Option<&str>, pid: Option<u32>) -> String {
    let label = label.filter(|it| !it.is_empty()).map_or_else(String::new, |it| escaped(it) + " ");
    let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    format!("{label}(host {}, pid {pid})", escaped(host.unwrap_or("?")))
}

/// Tags in words: `attempt=2 job="a b"`. Empty: there are none. A value that is no plain word is quoted, so that it
/// cannot look like another tag.
pub(crate) fn tags(tags: &BTreeMap<String, String>) -> String {
    let is_word = |text: &str| {
        !text.is_empty()
            && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"')
    };
    let tag = |(key, value): (&String, &String)| {
        let value = if is_word(value) { value.clone() } else { format!("{value:?}") };
        // Another kind of program may have written a key that breaks its rule.
        format!("{}={value}", escaped(key))
    };
    tags.iter().map(tag).collect::<Vec<_>>().join(" ")
}

/// A length of time for people: 0.3 s, 2 m 5 s, 3 h 20 m.
pub(crate) fn span(ms: u64) -> String {
    let (s, m, h) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
    match () {
        () if s < 60 => format!("{}.{} s", s, ms % 1_000 / 100),
        () if m < 60 => format!("{m} m {} s", s % 60),
        () if h < 48 => format!("{h} h {} m", m % 60),
        () => format!("{} d {} h", h / 24, h % 24),
    }
}

/// The time `ms` ago, in ms after 1970.
pub(crate) fn unix_ms_ago(ms: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_sub(ms)
}

/// A time in ms after 1970, as RFC 3339 in UTC.
pub(crate) fn utc(unix_ms: u64) -> String {
    let (days, s) = (unix_ms / 86_400_000, unix_ms / 1_000 % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", s / 3_600, s / 60 % 60, s % 60)
}

/// The date so many days after 1970 (Gregorian). Years are counted from March, so that the leap day
/// comes last, in eras of 400 years, which all have the same number of days.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_767_225_599_999), "2025-12-31T23:59:59Z");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn spans() {
        assert_eq!(span(1_290), "1.2 s");
        assert_eq!(span(125_000), "2 m 5 s");
        assert_eq!(span(12_000_000), "3 h 20 m");
        assert_eq!(span(200_000_000), "2 d 7 h");
    }

    #[test]
    fn parties() {
        assert_eq!(party(Some("nightly\n1"), Some("a"), Some(7)), "nightly\\n1 (host a, pid 7)");
        assert_eq!(party(Some(""), Some("a\r"), None), "(host a\\r, pid ?)");
        assert_eq!(party(None, None, None), "(host ?, pid ?)");
    }

    #[test]
    fn tags_are_words() {
        let given = [("a", "x"), ("b", "two words"), ("c", ""), ("d", "new\nline"), ("e", "é")];
        let given = given.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(tags(&given), r#"a=x b="two words" c="" d="new\nline" e=é"#);
        assert_eq!(tags(&BTreeMap::new()), "");
    }

    #[test]
    fn one_line() {
        assert_eq!(escaped("a\nb\x1b[31m ü"), "a\\nb\\u{1b}[31m ü");
    }
}
