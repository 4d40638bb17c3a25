//! The account of one style's run: what each order has come to, and when. Kept from what the processes say.

use super::{cycles::Cycles, exclusion::Exclusion, pipe::Event, scenario::Orders};

/// The account.
pub(super) struct Book {
    names: Vec<Vec<String>>,
    entries: Vec<Entry>,
    pub(super) exclusion: Exclusion,
    cycles: Cycles,
    /// How many wait: changes, in the order in which they were heard of.
    pub(super) waiting: Vec<(u64, i32)>,
    pub(super) deadlocks: u64,
    /// How long the slowest deadlock took to be told.
    pub(super) told_us: u64,
    pub(super) lost: u64,
    pub(super) redone: u64,
    /// What the store refused, each once, the first few.
    pub(super) refusals: Vec<String>,
    ended: usize,
    waits: i64,
}

/// What one order has come to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub(super) asked_us: u64,
    pub(super) had_us: Option<u64>,
    pub(super) ended: Option<(u64, Ending)>,
}

/// How an order ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Done,
    GaveUp,
    Failed,
}

/// As many different refusals as people want to read.
const MOST_REFUSALS: usize = 5;

impl Book {
    pub(super) fn new(orders: &Orders) -> Book {
        Book {
            names: (0..orders.count).map(|order| orders.names(order)).collect(),
            entries: vec![Entry::default(); orders.count as usize],
            exclusion: Exclusion::default(),
            cycles: Cycles::default(),
            waiting: Vec::new(),
            deadlocks: 0,
            told_us: 0,
            lost: 0,
            redone: 0,
            refusals: Vec::new(),
            ended: 0,
            waits: 0,
        }
    }

    /// A process said something. What it says of orders that do not exist is nothing.
    pub(super) fn note(&mut self, process: u32, event: Event) {
        match event {
            Event::Ready => {}
            Event::Asked { order, at_us } => {
                if let Some(entry) = self.entry(order) {
                    *entry = Entry { asked_us: at_us, ..Entry::default() };
                    self.wait(at_us, 1);
                }
            }
            Event::Waits { order, place } => {
                if let Some(name) = self.names.get(order as usize).and_then(|it| it.get(place))
                    && self.cycles.waits(order, name)
                {
                    self.deadlocks += 1;
                }
            }
            Event::Had { order, at_us } => {
                if let Some(entry) = self.entry(order) {
                    entry.had_us = Some(at_us);
                    self.wait(at_us, -1);
                }
            }
            Event::Believed { order, spans } => {
                let Some(names) = self.names.get(order as usize) else { return };
                for span in spans {
                    let Some(name) = names.get(span.place) else { continue };
                    self.exclusion.note(process, order, name, span);
                    if span.from_us == span.until_us {
                        // The first word about it.
                        self.cycles.holds(order, name);
                    }
                }
            }
            Event::Deadlock { told_us, .. } => {
                self.deadlocks += 1;
                self.told_us = self.told_us.max(told_us);
            }
            Event::Lost { .. } => self.lost += 1,
            Event::Done { order, at_us } => self.end(order, at_us, Ending::Done),
            Event::GaveUp { order, at_us } => self.end(order, at_us, Ending::GaveUp),
            Event::Failed { order, at_us, words } => {
                if self.refusals.len() < MOST_REFUSALS && !self.refusals.contains(&words) {
                    self.refusals.push(words);
                }
                self.end(order, at_us, Ending::Failed);
            }
        }
    }

    /// The process that carried out these orders has ended: which of them are to be done again?
    pub(super) fn orphans(&mut self, orders: &[u32], at_us: u64) -> Vec<u32> {
        let mut orphans = Vec::new();
        for &order in orders {
            let Some(entry) = self.entry(order).filter(|it| it.ended.is_none()) else { continue };
            let waited = entry.asked_us > 0 && entry.had_us.is_none();
            *entry = Entry::default();
            if waited {
                self.wait(at_us, -1);
            }
            self.cycles.forget(order);
            orphans.push(order);
        }
        self.redone += orphans.len() as u64;
        orphans
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn ended(&self) -> usize {
        self.ended
    }

    pub(super) fn left(&self) -> usize {
        self.entries.len() - self.ended
    }

    /// How many wait for their locks now.
    pub(super) fn waits(&self) -> i64 {
        self.waits
    }

    /// How many ended so.
    pub(super) fn count(&self, ending: Ending) -> usize {
        self.entries.iter().filter(|it| it.ended.is_some_and(|(_, it)| it == ending)).count()
    }

    fn entry(&mut self, order: u32) -> Option<&mut Entry> {
        self.entries.get_mut(order as usize)
    }

    fn end(&mut self, order: u32, at_us: u64, ending: Ending) {
        self.cycles.ends(order);
        let Some(entry) = self.entry(order).filter(|it| it.ended.is_none()) else { return };
        entry.ended = Some((at_us, ending));
        let waited = entry.had_us.is_none();
        self.ended += 1;
        if waited {
            self.wait(at_us, -1);
        }
    }

    fn wait(&mut self, at_us: u64, change: i32) {
        self.waits += i64::from(change);
        self.waiting.push((at_us, change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stress::scenario::{Locks, Sequence};

    fn book(count: u32) -> Book {
        let (locks, sequence) = (Locks::Two, Sequence::Sorted);
        Book::new(&Orders { count, locks, sequence, seed: 1, prefix: String::new() })
    }

    #[test]
    fn orders_of_a_killed_process_are_done_again() {
        let mut book = book(3);
        for order in 0..3 {
            book.note(0, Event::Asked { order, at_us: 10 });
        }
        book.note(0, Event::Had { order: 0, at_us: 11 });
        book.note(0, Event::Done { order: 0, at_us: 12 });
        book.note(0, Event::Had { order: 1, at_us: 13 });
        assert_eq!((book.waits(), book.left()), (1, 2));
        assert_eq!(book.orphans(&[0, 1, 2], 20), [1, 2]);
        assert_eq!((book.waits(), book.left(), book.redone), (0, 2, 2));
        for order in [1, 2] {
            book.note(1, Event::Asked { order, at_us: 21 });
        }
        book.note(1, Event::GaveUp { order: 1, at_us: 30 });
        book.note(1, Event::Failed { order: 2, at_us: 31, words: "no".into() });
        assert_eq!((book.waits(), book.left()), (0, 0));
        let counts = [Ending::Done, Ending::GaveUp, Ending::Failed].map(|it| book.count(it));
        assert_eq!(counts, [1, 1, 1]);
        // Of an order that is not there.
        book.note(1, Event::Done { order: 7, at_us: 31 });
        assert_eq!(book.ended(), 3);
    }
}
