//! The lock-order watch: two code paths that take locks in disagreeing orders will deadlock one day; this tells of
//! them on the first day that both have run, however quiet that day was.
//!
//! It is an opt-in check of one process, for tests and for development; it asks the store nothing. It sees the
//! acquisitions of owners ([`crate::Lock::owner`]), for only they belong together. The idea is that of the Linux
//! kernel's lockdep (<https://docs.kernel.org/locking/lockdep-design.html>): orders are kept by class, so that one run
//! with two orders of stock and user stands for all stocks and all users.
//!
//! It remembers 10,000 pairs of classes: programs have dozens. Where locks have no class each name is one, and there
//! may be more; then it says so, once, and tells from then on of pairs that it knows only.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use lockwarden::{OrderWatch, Settings};
//! use std::sync::{Arc, Mutex};
//!
//! let heard = Arc::new(Mutex::new(Vec::new()));
//! let told = heard.clone();
//! let watch = OrderWatch::telling(move |it| told.lock().unwrap().push(it.to_string()));
//! let warden = Settings::new().order_watch(&watch).connect("memory:").await?;
//! let lock = |name: &str, class, owner| warden.lock(name).class(class).owner(owner);
//!
//! let user = lock("user:7", "user", "a").acquire().await?;
//! let stock = lock("stock:1", "stock", "a").acquire().await?;
//! drop((user, stock));
//! let stock = lock("stock:2", "stock", "b").acquire().await?;
//! let user = lock("user:8", "user", "b").acquire().await?;
//! assert!(heard.lock().unwrap()[0].starts_with("locks are taken in two orders: "));
//! # Ok::<(), lockwarden::Error>(()) }).unwrap();
//! ```

use lockwarden_core::deadlock;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// How many pairs of classes are remembered: some MB. A search goes through all of them at worst.
const MOST_PAIRS: usize = 10_000;

/// Watches the order in which owners take locks. Cheap to clone; several wardens may share one.
#[derive(Clone)]
pub struct OrderWatch(Arc<Watch>);

struct Watch {
    orders: Mutex<Orders>,
    tell: Box<dyn Fn(&Disagreement) + Send + Sync>,
}

/// One lock taken while another was held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The class of the lock that was held.
    pub held: Arc<str>,
    /// Where it was acquired: file and line.
    pub held_at: &'static Location<'static>,
    /// The class of the lock that was asked for then.
    pub asked: Arc<str>,
    /// Where.
    pub asked_at: &'static Location<'static>,
}

/// Two orders that can deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The step that was taken just now.
    pub now: Step,
    /// The steps of before that lead the other way, each from where the one before it leads: one, if two paths
    /// take the same two classes; more, if it takes several to close the circle.
    pub before: Vec<Step>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "locks are taken in two orders: here {}", self.now)?;
        for step in &self.before {
            write!(f, "; elsewhere {step}")?;
        }
        f.write_str(". Whoever does both at the same time waits for ever: take them in one order")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { held, held_at, asked, asked_at } = self;
        let place = |it: &Location<'_>| format!("{}:{}", it.file(), it.line());
        write!(f, "{held} ({}) before {asked} ({})", place(held_at), place(asked_at))
    }
}

/// What has been seen so far.
#[derive(Default)]
struct Orders {
    /// What each owner holds.
    held: HashMap<Arc<str>, Vec<Taken>>,
    /// The steps, the first of each kind. Within one class the order is that of the names.
    steps: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Step>>,
    /// How many steps.
    pairs: usize,
    /// There was one more.
    full: bool,
    /// What was told already, once for each pair.
    told: BTreeSet<(Arc<str>, Arc<str>)>,
    last_id: u64,
}

/// A lock that an owner holds.
struct Taken {
    id: u64,
    class: Arc<str>,
    name: Arc<str>,
    at: &'static Location<'static>,
}

/// What comes of asking for a lock.
struct Asked {
    id: u64,
    disagreements: Vec<Disagreement>,
    /// Just now there were more pairs than are remembered.
    full_now: bool,
}

/// A lock that is being taken or held: forgotten when this is dropped.
pub(crate) struct Hold {
    watch: OrderWatch,
    owner: Arc<str>,
    id: u64,
}

impl Default for OrderWatch {
    fn default() -> OrderWatch {
        OrderWatch::new()
    }
}

impl OrderWatch {
    /// One that warns through `tracing`.
    #[must_use]
    pub fn new() -> OrderWatch {
        OrderWatch::telling(|disagreement| tracing::warn!("{disagreement}"))
    }

    /// One that tells somebody: a test may panic at its end, say. Called by the task that asks for the lock, before
    /// the lock is asked for; each pair of classes is told once.
    #[must_use]
    pub fn telling(tell: impl Fn(&Disagreement) + Send + Sync + 'static) -> OrderWatch {
        OrderWatch(Arc::new(Watch { orders: Mutex::default(), tell: Box::new(tell) }))
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        // Nothing in here panics halfway.
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An owner asks for these locks, each a class and a name. Several at once have no order among themselves: it
    /// holds none of them while it waits.
    pub(crate) fn asked(
        &self,
        owner: &Arc<str>,
        locks: &[(&str, &str)],
        at: &'static Location<'static>,
    ) -> Hold {
        let Asked { id, disagreements, full_now } = self.orders().asked(owner, locks, at);
        if full_now {
            tracing::warn!(
                "the lock-order watch knows {MOST_PAIRS} pairs of locks and learns no more: give locks of one kind \
                 one class (Lock::class)"
            );
        }
        disagreements.iter().for_each(|disagreement| (self.0.tell)(disagreement));
        Hold { watch: self.clone(), owner: owner.clone(), id }
    }
}

impl fmt::Debug for OrderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OrderWatch")
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut orders = self.watch.orders();
        if let Some(held) = orders.held.get_mut(&self.owner) {
            held.retain(|taken| taken.id != self.id);
            if held.is_empty() {
                orders.held.remove(&self.owner);
            }
        }
    }
}

impl Orders {
    fn asked(
        &mut self,
        owner: &Arc<str>,
        locks: &[(&str, &str)],
        at: &'static Location<'static>,
    ) -> Asked {
        let was_full = self.full;
        let steps: Vec<Step> =
            locks.iter().flat_map(|(class, name)| self.steps_to(owner, class, name, at)).collect();
        let disagreements = steps.into_iter().filter_map(|now| self.stepped(now)).collect();
        self.last_id += 1;
        let id = self.last_id;
        let taken = |(class, name): &(&str, &str)| Taken {
            id,
            class: (*class).into(),
            name: (*name).into(),
            at,
        };
        self.held.entry(owner.clone()).or_default().extend(locks.iter().map(taken));
        Asked { id, disagreements, full_now: self.full && !was_full }
    }

    /// The steps from what the owner holds to this lock.
    fn steps_to(
        &self,
        owner: &str,
        class: &str,
        name: &str,
        at: &'static Location<'static>,
    ) -> Vec<Step> {
        let (class, name): (Arc<str>, Arc<str>) = (class.into(), name.into());
        // What the whole holds, its part goes through with.
        let held: Vec<_> =
            deadlock::wholes(owner).filter_map(|owner| self.held.get(&owner)).flatten().collect();
        // Its own lock once more is no second lock.
        let again = held.iter().any(|taken| taken.name == name);
        let mut steps = Vec::new();
        for taken in held.iter().filter(|_| !again) {
            let (earlier, later) = (format!("an earlier {class}"), format!("a later {class}"));
            // Within one class the order of the names decides.
            let (held, asked) = match () {
                () if taken.class != class => (taken.class.clone(), class.clone()),
                () if taken.name < name => (earlier.into(), later.into()),
                () => (later.into(), earlier.into()),
            };
            steps.push(Step { held, held_at: taken.at, asked, asked_at: at });
        }
        steps
    }

    /// A step was taken: does it disagree with those of before?
    fn stepped(&mut self, now: Step) -> Option<Disagreement> {
        // What is not remembered would be told again and again.
        let pair = (now.held.clone(), now.asked.clone());
        if !self.learn(&now) || self.told.contains(&pair) {
            return None;
        }
        let before = self.way(&now.asked, &now.held)?;
        self.told.insert((pair.1.clone(), pair.0.clone()));
        self.told.insert(pair);
        Some(Disagreement { now, before })
    }

    /// Remembers a step, the first of each kind; false: there is no room.
    fn learn(&mut self, step: &Step) -> bool {
        if self.steps.get(&step.held).is_some_and(|asked| asked.contains_key(&step.asked)) {
            return true;
        }
        if self.pairs == MOST_PAIRS {
            self.full = true;
            return false;
        }
        self.pairs += 1;
        self.steps.entry(step.held.clone()).or_default().insert(step.asked.clone(), step.clone());
        true
    }

    /// The shortest way of steps from one class to another.
    fn way(&self, from: &Arc<str>, to: &Arc<str>) -> Option<Vec<Step>> {
        let mut ways = vec![vec![]];
        let mut at = vec![from.clone()];
        let mut seen = BTreeSet::from([from.clone()]);
        while !at.is_empty() {
            let (mut next_at, mut next_ways) = (Vec::new(), Vec::new());
            for (class, way) in at.iter().zip(&ways) {
                for (next, step) in self.steps.get(class).into_iter().flatten() {
                    let mut way: Vec<Step> = way.clone();
                    way.push(step.clone());
                    if next == to {
                        return Some(way);
                    }
                    if seen.insert(next.clone()) {
                        next_at.push(next.clone());
                        next_ways.push(way);
                    }
                }
            }
            (at, ways) = (next_at, next_ways);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was told, in words, from what owners took: each word takes a lock of that name, `-` gives all back.
    fn told(paths: &[&str]) -> Vec<(String, String, usize)> {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let tell = heard.clone();
        let watch = OrderWatch::telling(move |it| tell.lock().unwrap().push(it.clone()));
        for (number, path) in paths.iter().enumerate() {
            let owner: Arc<str> = format!("o{number}").into();
            let mut held = Vec::new();
            for word in path.split(' ') {
                if word == "-" {
                    held.clear();
                    continue;
                }
                let class = word.split(':').next().unwrap();
                held.push(watch.asked(&owner, &[(class, word)], Location::caller()));
            }
        }
        assert!(watch.orders().held.is_empty());
        let heard = heard.lock().unwrap();
        let short = |it: &Disagreement| {
            (it.now.held.to_string(), it.now.asked.to_string(), it.before.len())
        };
        heard.iter().map(short).collect()
    }

    fn pair(held: &str, asked: &str, steps: usize) -> (String, String, usize) {
        (held.into(), asked.into(), steps)
    }

    #[test]
    fn one_order_is_no_disagreement() {
        assert_eq!(told(&["a b c", "a c", "b c", "a - c - b", "c"]), []);
        // Again what it holds already, whatever else it holds.
        assert_eq!(told(&["a b a", "a b"]), []);
    }

    #[test]
    fn two_orders_are_told_once() {
        assert_eq!(told(&["a b", "b a", "b a", "a b"]), [pair("b", "a", 1)]);
        assert_eq!(told(&["user:1 stock:1", "stock:7 user:9"]), [pair("stock", "user", 1)]);
    }

    #[test]
    fn a_longer_circle() {
        assert_eq!(told(&["a b", "b c", "c d", "d a"]), [pair("d", "a", 3)]);
    }

    #[test]
    fn within_a_class_the_names_decide() {
        assert_eq!(told(&["user:1 user:2", "user:3 user:9", "user:1 user:2 user:3"]), []);
        let paths = ["user:1 user:2", "user:9 user:3"];
        assert_eq!(told(&paths), [pair("a later user", "an earlier user", 1)]);
    }

    /// The whole waits while its part takes a lock.
    #[test]
    fn parts_go_on_with_what_the_whole_holds() {
        let watch = OrderWatch::telling(|it| panic!("{it}"));
        let [whole, part] = ["a".into(), "a/b".into()];
        let take =
            |owner: &Arc<str>, name: &str| watch.asked(owner, &[(name, name)], Location::caller());
        let held = take(&whole, "x");
        drop(take(&part, "y"));
        drop(held);
        assert_eq!(watch.orders().steps.len(), 1);
        let _part = take(&part, "z");
        drop(take(&whole, "y"));
        assert_eq!(watch.orders().steps.len(), 1, "the whole has nothing of its part's");
    }

    /// Names without a class could be any number.
    #[test]
    fn so_many_pairs_are_remembered_and_no_more() {
        let mut orders = Orders::default();
        let owner: Arc<str> = "o".into();
        let take = |orders: &mut Orders, held: &str, asked: &str| {
            orders.asked(&owner, &[(held, held)], Location::caller());
            let Asked { disagreements, full_now, .. } =
                orders.asked(&owner, &[(asked, asked)], Location::caller());
            orders.held.clear();
            (disagreements.len(), full_now)
        };
        for number in 0..MOST_PAIRS {
            assert_eq!(take(&mut orders, &format!("a{number}"), "b"), (0, false));
        }
        let known = |orders: &Orders| orders.steps.values().map(BTreeMap::len).sum::<usize>();
        assert_eq!(take(&mut orders, "c", "d"), (0, true), "told");
        assert_eq!(take(&mut orders, "e", "f"), (0, false), "once");
        assert_eq!(take(&mut orders, "d", "c"), (0, false), "nothing is known of these");
        assert_eq!(take(&mut orders, "b", "a7"), (0, false), "nor is a new one told");
        assert_eq!(take(&mut orders, "a7", "b"), (0, false));
        assert_eq!((known(&orders), orders.pairs, orders.told.len()), (MOST_PAIRS, MOST_PAIRS, 0));
    }

    #[test]
    fn what_was_given_back_counts_no_more() {
        assert_eq!(told(&["a b", "b - a"]), []);
    }
}
