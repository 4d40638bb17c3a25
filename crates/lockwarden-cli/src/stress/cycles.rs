//! Deadlocks of the styles that do not notice them themselves, seen from outside: orders that wait for each other in a
//! circle.
//!
//! Who holds a lock is who acquired it last; whoever has ended waits for nothing, so no way leads on from there. What
//! several processes say arrives only roughly in order: with more than one of them this is an estimate.

use std::collections::HashMap;

/// Who waits for whom.
#[derive(Debug, Default)]
pub(super) struct Cycles {
    holders: HashMap<String, u32>,
    waits: HashMap<u32, String>,
}

impl Cycles {
    /// The order has acquired the lock.
    pub(super) fn holds(&mut self, order: u32, name: &str) {
        self.holders.insert(name.to_owned(), order);
        self.waits.remove(&order);
    }

    /// The order waits for nothing.
    pub(super) fn ends(&mut self, order: u32) {
        self.waits.remove(&order);
    }

    /// The order's process was killed: it will wait for its own dead past, and that is no circle.
    pub(super) fn forget(&mut self, order: u32) {
        self.ends(order);
        self.holders.retain(|_, holder| *holder != order);
    }

    /// The order waits for the lock. Does that close a circle?
    pub(super) fn waits(&mut self, order: u32, name: &str) -> bool {
        self.waits.insert(order, name.to_owned());
        let mut name = name;
        // Not for ever in a circle that it is not part of.
        for _ in 0..self.waits.len() {
            let Some(holder) = self.holders.get(name) else { return false };
            if *holder == order {
                return true;
            }
            let Some(next) = self.waits.get(holder) else { return false };
            name = next;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_when_it_closes() {
        let mut cycles = Cycles::default();
        for (order, name) in [(1, "a"), (2, "b"), (3, "c")] {
            assert!(!cycles.waits(order, name));
            cycles.holds(order, name);
        }
        assert!(!cycles.waits(1, "b"));
        assert!(!cycles.waits(2, "c"));
        assert!(cycles.waits(3, "a"));
        // Who comes to it is no part of it.
        assert!(!cycles.waits(4, "a"));
        cycles.ends(3);
        assert!(!cycles.waits(4, "a"));
        cycles.forget(4);
        cycles.holds(4, "d");
        cycles.forget(4);
        assert!(!cycles.waits(4, "d"));
        assert!(!cycles.waits(4, "a"));
    }
}
