//! The exclusion recorder: takes every `check()` of every process, and finds the instants at which
//! two parties passed it for one name (G1), and fences that did not grow (G2).
//!
//! A check that says true held at some moment between the two clock readings around it. An
//! acquisition whose first true check ended before its last true check began held all the while
//! between: it cannot have been lost in between and be held again. So two acquisitions of a name
//! break G1 if those spans overlap.

use lockwarden::Guard;
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
};

/// Appends to one file, which many processes may share.
#[derive(Debug)]
pub struct Recorder {
    file: File,
}

/// What the recorder saw.
#[derive(Debug, Default)]
pub struct Verdict {
    /// True checks in all.
    pub checks: usize,
    /// Acquisitions with at least one true check.
    pub acquisitions: usize,
    /// Each violation, in words.
    pub violations: Vec<String>,
}

#[derive(Debug)]
struct Span {
    token: String,
    fence: u64,
    /// When the first true check had ended, in µs.
    first_us: u64,
    /// When the last true check began, in µs.
    last_us: u64,
}

/// Now, in µs, on the clock that all processes of this machine share.
#[must_use]
pub fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}

impl Recorder {
    /// Opens the file, and makes it if need be.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Recorder> {
        Ok(Recorder { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Checks the guard, and records it if it says true.
    ///
    /// # Panics
    /// If the record cannot be written: a violation must not be missed.
    pub fn check(&self, guard: &Guard) -> bool {
        let before_us = now_us();
        let held = guard.check();
        let after_us = now_us();
        if held {
            let (name, token, fence) = (guard.name(), guard.token(), guard.fence());
            let line = format!("{name}\t{token}\t{fence}\t{before_us}\t{after_us}\n");
            // One write to a file in append mode: lines of many processes do not mix.
            (&self.file).write_all(line.as_bytes()).expect("the record can be written");
        }
        held
    }
}

impl Verdict {
    /// Reads what all processes recorded.
    ///
    /// # Panics
    /// If the file is no record.
    #[must_use]
    pub fn read(path: &Path) -> Verdict {
        let text = std::fs::read_to_string(path).expect("a record");
        let mut names: BTreeMap<&str, BTreeMap<&str, Span>> = BTreeMap::new();
        let mut verdict = Verdict::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, token, fence, before, after] = fields[..] else {
                panic!("no record: {line:?}")
            };
            let number = |text: &str| text.parse::<u64>().expect("a number");
            let (fence, before_us, after_us) = (number(fence), number(before), number(after));
            verdict.checks += 1;
            let span = names.entry(name).or_default().entry(token).or_insert_with(|| {
                let token = token.to_owned();
                Span { token, fence, first_us: after_us, last_us: before_us }
            });
            span.first_us = span.first_us.min(after_us);
            span.last_us = span.last_us.max(before_us);
        }
        for (name, spans) in names {
            let mut spans: Vec<Span> = spans.into_values().collect();
            verdict.acquisitions += spans.len();
            spans.sort_by_key(|span| span.first_us);
            // The one among those before that lasted longest, and the highest fence.
            let mut longest: Option<&Span> = None;
            for span in &spans {
                if let Some(before) = longest {
                    if before.last_us > span.first_us {
                        verdict.violations.push(format!(
                            "G1 {name}: {} was true until {} and {} from {} on",
                            before.token, before.last_us, span.token, span.first_us
                        ));
                    } else if before.fence >= span.fence {
                        verdict.violations.push(format!(
                            "G2 {name}: fence {} of {} after {} of {}",
                            span.fence, span.token, before.fence, before.token
                        ));
                    }
                }
                if longest.is_none_or(|before| before.last_us < span.last_us) {
                    longest = Some(span);
                }
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lines: &str) -> Verdict {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        Verdict::read(file.path())
    }

    /// A recorder that cannot fail proves nothing.
    #[test]
    fn overlaps_and_falling_fences_are_found() {
        let one_after_the_other = "x\ta\t1\t10\t11\nx\ta\t1\t20\t21\nx\tb\t2\t30\t31\n";
        assert_eq!(verdict(one_after_the_other).violations.len(), 0);
        let overlap = "x\ta\t1\t10\t11\nx\tb\t2\t20\t21\nx\ta\t1\t30\t31\n";
        assert!(verdict(overlap).violations[0].starts_with("G1 x"));
        let other_names = "x\ta\t1\t10\t11\ny\tb\t2\t20\t21\nx\ta\t1\t30\t31\n";
        assert_eq!(verdict(other_names).violations.len(), 0);
        let fences = "x\ta\t2\t10\t11\nx\tb\t2\t20\t21\n";
        assert!(verdict(fences).violations[0].starts_with("G2 x"));
    }
}
