//! The exclusion recorder: takes every `check()` of every process, and finds the instants at which
//! parties passed it for one name that may not hold it at the same time (G1), and fences that did not
//! grow (G2).
//!
//! A check that says true held at some moment between the two clock readings around it. An
//! acquisition whose first true check ended before its last true check began held all the while
//! between: it cannot have been lost in between and be held again. So acquisitions of a name
//! break G1 if those spans overlap and their modes cannot stand beside each other.

use lockwarden::{Guard, Mode};
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::{BTreeMap, BTreeSet},
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
    /// The most of them that held one name at the same instant.
    pub most_inside: usize,
    /// Each violation, in words.
    pub violations: Vec<String>,
}

#[derive(Debug)]
struct Span {
    token: String,
    fence: u64,
    /// How many permits it took, of how many: 1 of 1 is exclusive, and readers take none of none.
    count: u64,
    of: u64,
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

impl Span {
    /// May nobody hold it at the same time?
    fn is_alone(&self) -> bool {
        self.of == 1
    }
}

impl Recorder {
    /// Opens the file, and makes it if need be.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Recorder> {
        Ok(Recorder { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Checks the guard of a lock that is held exclusively, and records it if it says true.
    ///
    /// # Panics
    /// If the record cannot be written: a violation must not be missed.
    pub fn check(&self, guard: &Guard) -> bool {
        self.check_in(guard, Mode::Exclusive)
    }

    /// The same of a lock that was acquired in this mode.
    ///
    /// # Panics
    /// If the record cannot be written: a violation must not be missed.
    pub fn check_in(&self, guard: &Guard, mode: Mode) -> bool {
        let before_us = now_us();
        let held = guard.check();
        let after_us = now_us();
        if held {
            let (name, token, fence) = (guard.name(), guard.token(), guard.fence());
            let (count, of) = match mode {
                Mode::Exclusive => (1, 1),
                Mode::Shared => (0, 0),
                Mode::Permits { count, of } => (count, of),
            };
            let line =
                format!("{name}\t{token}\t{fence}\t{before_us}\t{after_us}\t{count}\t{of}\n");
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
            let [name, token, fence, before, after, count, of] = fields[..] else {
                panic!("no record: {line:?}")
            };
            let number = |text: &str| text.parse::<u64>().expect("a number");
            let (fence, before_us, after_us) = (number(fence), number(before), number(after));
            let (count, of) = (number(count), number(of));
            verdict.checks += 1;
            let span = names.entry(name).or_default().entry(token).or_insert_with(|| {
                let token = token.to_owned();
                Span { token, fence, count, of, first_us: after_us, last_us: before_us }
            });
            span.first_us = span.first_us.min(after_us);
            span.last_us = span.last_us.max(before_us);
        }
        for (name, spans) in names {
            let mut spans: Vec<Span> = spans.into_values().collect();
            verdict.acquisitions += spans.len();
            spans.sort_by_key(|span| span.first_us);
            // Those that are not over when the next begins, by their ends.
            let mut inside: BTreeSet<(u64, usize)> = BTreeSet::new();
            let (mut newest, mut newest_alone): (Option<&Span>, Option<&Span>) = (None, None);
            for (number, span) in spans.iter().enumerate() {
                while let Some(over) =
                    inside.first().filter(|(last_us, _)| *last_us <= span.first_us)
                {
                    let over = *over;
                    inside.remove(&over);
                }
                let beside = || inside.iter().rev().map(|(_, number)| &spans[*number]);
                let before = if span.is_alone() { newest } else { newest_alone };
                let used: u64 = beside().map(|it| it.count).sum();
                if let Some(before) = beside().find(|it| it.of != span.of || it.is_alone()) {
                    verdict.violations.push(format!(
                        "G1 {name}: {} was true until {} and {} from {} on",
                        before.token, before.last_us, span.token, span.first_us
                    ));
                } else if used + span.count > span.of && span.of > 0 {
                    verdict.violations.push(format!(
                        "G1 {name}: {} is true from {} on with {} of {} permits, beside others with {used}",
                        span.token, span.first_us, span.count, span.of
                    ));
                } else if let Some(before) = before.filter(|it| it.fence >= span.fence) {
                    verdict.violations.push(format!(
                        "G2 {name}: fence {} of {} after {} of {}",
                        span.fence, span.token, before.fence, before.token
                    ));
                }
                inside.insert((span.last_us, number));
                verdict.most_inside = verdict.most_inside.max(inside.len());
                let is_newer = |it: Option<&Span>| it.is_none_or(|it| it.fence < span.fence);
                if is_newer(newest) {
                    newest = Some(span);
                }
                if span.is_alone() && is_newer(newest_alone) {
                    newest_alone = Some(span);
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
        std::fs::write(file.path(), lines.replace(' ', "\t")).unwrap();
        Verdict::read(file.path())
    }

    /// A recorder that cannot fail proves nothing.
    #[test]
    fn overlaps_and_falling_fences_are_found() {
        let one_after_the_other = "x a 1 10 11 1 1\nx a 1 20 21 1 1\nx b 2 30 31 1 1\n";
        assert_eq!(verdict(one_after_the_other).violations.len(), 0);
        let overlap = "x a 1 10 11 1 1\nx b 2 20 21 1 1\nx a 1 30 31 1 1\n";
        assert!(verdict(overlap).violations[0].starts_with("G1 x"));
        let other_names = "x a 1 10 11 1 1\ny b 2 20 21 1 1\nx a 1 30 31 1 1\n";
        assert_eq!(verdict(other_names).violations.len(), 0);
        let fences = "x a 2 10 11 1 1\nx b 2 20 21 1 1\n";
        assert!(verdict(fences).violations[0].starts_with("G2 x"));
    }

    #[test]
    fn modes_stand_beside_each_other_as_they_may() {
        // Three at once, whose first checks need not come in the order of their grants.
        let three = |mode: &str| {
            let checks =
                ["b 2 10 11", "a 1 12 13", "c 3 14 15", "a 1 30 31", "b 2 30 31", "c 3 30 31"];
            checks.map(|check| format!("x {check} {mode}\n")).concat()
        };
        for (mode, count) in [("0 0", 0), ("1 3", 0), ("1 2", 1), ("2 3", 2)] {
            let verdict = verdict(&three(mode));
            assert_eq!(verdict.violations.len(), count, "{mode}: {:?}", verdict.violations);
            assert_eq!(verdict.most_inside, 3);
        }
        for (one, other) in [("0 0", "1 1"), ("1 1", "0 0"), ("0 0", "1 9"), ("1 8", "1 9")] {
            let overlap = format!("x a 1 10 11 {one}\nx b 2 20 21 {other}\nx a 1 30 31 {one}\n");
            assert!(verdict(&overlap).violations[0].starts_with("G1 x"), "{one} beside {other}");
        }
        // Of a writer and whoever is before or after it the order is known.
        for (one, other) in [("0 0", "1 1"), ("1 1", "0 0"), ("1 1", "2 3")] {
            let fences = format!("x a 2 10 11 {one}\nx b 1 20 21 {other}\n");
            assert!(verdict(&fences).violations[0].starts_with("G2 x"), "{one} before {other}");
        }
    }
}
