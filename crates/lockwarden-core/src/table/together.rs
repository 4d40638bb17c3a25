//! Those who hold a lock together: readers, or whoever has some of its permits.
//!
//! Their lock's key has a value that is nobody's token, so that foreign clients find it taken; it lives as long as the
//! longest of their leases. Each of them has a lease of its own.

use super::Record;
use crate::{command::Mode, name::Token};
use std::collections::{BTreeMap, BTreeSet};

/// What the key says: held together. (A foreign client that writes this has nobody beside it.)
#[must_use]
pub fn token() -> Token {
    Token::found(b"lockwarden:\x03")
}

/// The holders, by their tokens and by the ends of their leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Together {
    holders: BTreeMap<Token, (u64, Record)>,
    by_end: BTreeSet<(u64, Token)>,
    /// How many permits they have.
    used: u64,
}

/// How many permits a mode takes; readers take none.
fn count(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { count, .. } => u64::from(count),
        Mode::Exclusive | Mode::Shared => 0,
    }
}

impl Together {
    /// Is there nobody?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// How many permits they have, together.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The mode that they hold it in: of all of them the same, but for how many permits each has.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.by_end().next().map(|(_, record)| record.mode)
    }

    /// The holder with this token.
    #[must_use]
    pub fn get(&self, token: &Token) -> Option<&Record> {
        self.holders.get(token).map(|(_, record)| record)
    }

    /// When the last of their leases ends, in µs.
    #[must_use]
    pub fn last_end_us(&self) -> Option<u64> {
        self.by_end.last().map(|(end_us, _)| *end_us)
    }

    /// The holders with the ends of their leases (µs), whose ends first comes first.
    pub fn by_end(&self) -> impl Iterator<Item = (u64, &Record)> {
        self.by_end.iter().filter_map(|(end_us, token)| Some((*end_us, self.get(token)?)))
    }

    /// The same in the order of their tokens, which costs less.
    pub fn by_token(&self) -> impl Iterator<Item = (u64, &Record)> {
        self.holders.values().map(|(end_us, record)| (*end_us, record))
    }

    /// Puts a holder in, in place of the one of its token.
    pub fn put(&mut self, record: Record, end_us: u64) {
        let token = record.token.clone();
        self.remove(&token);
        self.used += count(record.mode);
        self.by_end.insert((end_us, token.clone()));
        self.holders.insert(token, (end_us, record));
    }

    /// Takes a holder out.
    pub fn remove(&mut self, token: &Token) -> Option<(u64, Record)> {
        let (end_us, record) = self.holders.remove(token)?;
        self.by_end.remove(&(end_us, token.clone()));
        self.used -= count(record.mode);
        Some((end_us, record))
    }

    /// Forgets those whose leases are over.
    pub fn expire(&mut self, now_us: u64) {
        while let Some((_, token)) = self.by_end.first().filter(|(end_us, _)| *end_us <= now_us) {
            let token = token.clone();
            self.remove(&token);
        }
    }
}

/// All of them at once, which costs less than one after the other; of several with one token the last counts.
impl FromIterator<(u64, Record)> for Together {
    fn from_iter<T: IntoIterator<Item = (u64, Record)>>(found: T) -> Together {
        let with_token = |(end_us, record): (u64, Record)| (record.token.clone(), (end_us, record));
        let holders: BTreeMap<_, _> = found.into_iter().map(with_token).collect();
        let by_end = holders.iter().map(|(token, (end_us, _))| (*end_us, token.clone())).collect();
        let used = holders.values().map(|(_, record)| count(record.mode)).sum();
        Together { holders, by_end, used }
    }
}
