//! The exclusion recorder: who believed when that it held which lock, and where two did at the same time.
//!
//! A look that says yes held at some moment between the two clock readings around it. An acquisition held all the while
//! between the end of its first such look and the begin of its last: it cannot have been lost in between and be held
//! again. So two acquisitions of a name exclude each other only if those spans do not overlap.

use super::pipe::Span;
use std::collections::HashMap;

/// What was believed, by lock.
#[derive(Debug, Default)]
pub(super) struct Exclusion {
    /// By process and its number of the acquisition.
    spans: HashMap<(u32, u64), Believed>,
}

#[derive(Clone, Debug)]
struct Believed {
    name: String,
    order: u32,
    process: u32,
    from_us: u64,
    until_us: u64,
}

impl Exclusion {
    /// A process says that one of its orders believed all this while that it held the lock; a later word about the
    /// same acquisition replaces the earlier.
    pub(super) fn note(&mut self, process: u32, order: u32, name: &str, span: Span) {
        let Span { acquisition, from_us, until_us, .. } = span;
        let new = || Believed { name: name.to_owned(), order, process, from_us, until_us };
        self.spans.entry((process, acquisition)).or_insert_with(new).until_us = until_us;
    }

    /// Where two held one lock at the same time, in words.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut spans: Vec<&Believed> = self.spans.values().collect();
        spans.sort_unstable_by(|a, b| (&a.name, a.from_us).cmp(&(&b.name, b.from_us)));
        let mut violations = Vec::new();
        // Of those before it the one that lasted longest.
        let mut longest: Option<&Believed> = None;
        for span in spans {
            match longest.filter(|before| before.name == span.name) {
                Some(before) if before.until_us > span.from_us => violations.push(format!(
                    "{}: order {} of process {} until {} us, order {} of process {} from {} us",
                    span.name,
                    before.order,
                    before.process,
                    before.until_us,
                    span.order,
                    span.process,
                    span.from_us
                )),
                _ => {}
            }
            if longest.is_none_or(|it| it.name != span.name || it.until_us < span.until_us) {
                longest = Some(span);
            }
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(spans: &[(u32, u64, &str, u64, u64)]) -> usize {
        let mut exclusion = Exclusion::default();
        for &(process, acquisition, name, from_us, until_us) in spans {
            let span = Span { place: 0, acquisition, from_us, until_us };
            exclusion.note(process, 0, name, span);
        }
        exclusion.violations().len()
    }

    /// A recorder that cannot fail proves nothing.
    #[test]
    fn overlaps_are_found() {
        assert_eq!(violations(&[(0, 0, "x", 10, 20), (1, 0, "x", 21, 30)]), 0);
        assert_eq!(violations(&[(0, 0, "x", 10, 20), (1, 0, "x", 20, 30)]), 0);
        assert_eq!(violations(&[(0, 0, "x", 10, 20), (1, 0, "x", 15, 30)]), 1);
        assert_eq!(violations(&[(0, 0, "x", 10, 20), (1, 0, "y", 15, 30)]), 0);
        // One that lasts longer than the next.
        let long = [(0, 0, "x", 10, 90), (0, 1, "x", 20, 30), (1, 0, "x", 40, 50)];
        assert_eq!(violations(&long), 2);
        // A later word about the same one.
        let grown = [(0, 0, "x", 10, 11), (1, 0, "x", 15, 16), (0, 0, "x", 10, 20)];
        assert_eq!(violations(&grown), 1);
    }
}
