//! The orders, and the locks that each of them needs.

use super::dice::Dice;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, time::Duration};

/// One lock that an order needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Its place among those of the order: what it is called in the account.
    pub(super) place: usize,
    pub(super) name: String,
}

/// How many locks each order needs, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Locks {
    /// Its stock, which is its own, and its user, whom it shares with every hundredth order.
    Two,
    /// User, product, coupon and order sequence; of a thousand orders ten share each.
    Four,
}

/// In which order locks are acquired one inside the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sequence {
    /// By their names, everywhere.
    Sorted,
    /// Another one for each order.
    Random,
}

/// All orders of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) count: u32,
    pub(super) locks: Locks,
    pub(super) sequence: Sequence,
    pub(super) seed: u64,
    /// What all names begin with: no lock of anyone else does.
    pub(super) prefix: String,
}

impl Locks {
    /// As a number.
    pub(super) const fn number(self) -> u32 {
        match self {
            Locks::Two => 2,
            Locks::Four => 4,
        }
    }
}

impl Orders {
    /// The names of the locks of an order, in the order in which they are acquired one inside the other.
    pub(super) fn names(&self, order: u32) -> Vec<String> {
        let mut names: Vec<String> = match self.locks {
            Locks::Two => {
                vec![format!("stock:order_{order}"), format!("user:user_{}", order % 100)]
            }
            Locks::Four => four(order).into(),
        };
        names.sort_unstable();
        if self.sequence == Sequence::Random {
            Dice::new(self.seed, u64::from(order)).shuffle(&mut names);
        }
        names.iter().map(|name| format!("{}{name}", self.prefix)).collect()
    }

    /// The same with their places.
    pub(super) fn wanted(&self, order: u32) -> Vec<Wanted> {
        let names = self.names(order).into_iter().enumerate();
        names.map(|(place, name)| Wanted { place, name }).collect()
    }

    /// The least time that all of them can take, however many work side by side: the orders that share a lock
    /// work one after the other.
    pub(super) fn best(&self, work: Duration) -> Duration {
        let mut sharers: HashMap<String, u32> = HashMap::new();
        for name in (0..self.count).flat_map(|order| self.names(order)) {
            *sharers.entry(name).or_default() += 1;
        }
        work * sharers.into_values().max().unwrap_or(0)
    }
}

/// Order 100b + 10m + a; from 1,000 on they begin anew.
fn four(order: u32) -> [String; 4] {
    let (b, m, a) = (order / 100 % 10, order / 10 % 10, order % 10);
    let (sequence, next) = ((a + m + b) % 10, (a + 2 * b) % 10);
    [
        format!("user:{m}{a}"),
        format!("product:{b}{m}"),
        format!("coupon:{a}{b}"),
        format!("seq:{sequence}{next}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(count: u32, locks: Locks, sequence: Sequence) -> Orders {
        Orders { count, locks, sequence, seed: 7, prefix: "stress:x:".into() }
    }

    #[test]
    fn each_order_has_its_names() {
        let two = orders(500, Locks::Two, Sequence::Sorted);
        assert_eq!(two.names(205), ["stress:x:stock:order_205", "stress:x:user:user_5"]);
        let four = orders(1_000, Locks::Four, Sequence::Sorted);
        let names = ["coupon:91", "product:15", "seq:51", "user:59"];
        assert_eq!(four.names(159), names.map(|name| format!("stress:x:{name}")));
        let random = orders(1_000, Locks::Four, Sequence::Random);
        assert!((0..50).any(|order| random.names(order) != four.names(order)));
        for order in 0..1_000 {
            let mut names = random.names(order);
            names.sort_unstable();
            assert_eq!(names, four.names(order));
        }
    }

    #[test]
    fn the_best_time_is_that_of_the_most_shared_lock() {
        let work = Duration::from_millis(500);
        let best = |count, locks| orders(count, locks, Sequence::Random).best(work).as_millis();
        assert_eq!(best(500, Locks::Two), 2_500);
        assert_eq!(best(1_000, Locks::Two), 5_000);
        assert_eq!(best(1_000, Locks::Four), 5_000);
        assert_eq!(best(60, Locks::Two), 500);
        assert_eq!(best(1, Locks::Four), 500);
    }
}
