//! Deadlocks: would a request wait for its own owner (G7, R37)?
//!
//! An owner is one line of execution: a thread, a task, a command. Whom it waits for is the holder of the lock that it
//! waits for, and whom that one waits for, and so on. (Whoever is ahead in a queue waits for the same holder.) A request
//! from which a way leads back to its owner would close a cycle, and is refused in its own round trip. No clock is
//! involved, and no suspicion: each step is read from what stands in the table at that moment.
//!
//! An owner may have parts: `a/b` is a part of `a`, as a command is that runs inside another. The whole waits for its
//! parts: while `a/b` waits, `a` does, and `a/b` must not wait for what `a` holds. Parts do not wait for each other.

use crate::{
    command::{Acquire, CycleStep, Wait},
    limits::{LONGEST_CYCLE, MOST_PLACES},
    name::{Name, SessionId, Token},
    table::{Context, Lock, Ticket},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Where an owner waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// For which lock.
    pub name: Name,
    /// With which ticket.
    pub token: Token,
}

/// Where an owner and its parts wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Places {
    /// The places: one, or as many as parts wait at the same time.
    pub all: BTreeSet<Place>,
    /// When they are forgotten, in µs, if none of their tickets is refreshed (R28).
    pub until_us: u64,
}

/// The owners that wait, and where. What stands here counts only while the ticket stands in its queue.
pub type Waits = BTreeMap<Arc<str>, Places>;

/// What a command does to [`Waits`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitChange {
    /// The owner waits here, which is remembered until then (µs).
    Begins(Arc<str>, Place, u64),
    /// The owner does not wait here any more.
    Ends(Arc<str>, Place),
}

/// Is this owner the other one, or a part of it?
#[must_use]
pub fn is_part_of(part: &str, whole: &str) -> bool {
    part.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The owner, and every one that it is a part of.
pub fn wholes(owner: &str) -> impl Iterator<Item = Arc<str>> {
    let ends = owner.match_indices('/').map(|(at, _)| at).chain([owner.len()]);
    ends.filter(|end| *end > 0).map(|end| owner[..end].into())
}

impl WaitChange {
    /// Carries it out.
    pub fn apply(self, waits: &mut Waits) {
        match self {
            WaitChange::Begins(owner, place, until_us) => {
                let places = waits.entry(owner).or_default();
                // Places of the dead are not removed one by one: those who live come back at their next recheck.
                if places.all.len() >= MOST_PLACES && !places.all.contains(&place) {
                    places.all.clear();
                }
                places.all.insert(place);
                places.until_us = until_us;
            }
            WaitChange::Ends(owner, place) => {
                let Some(places) = waits.get_mut(&owner) else { return };
                places.all.remove(&place);
                if places.all.is_empty() {
                    waits.remove(&owner);
                }
            }
        }
    }
}

/// The rest of the table, which a command that names one lock may have to look at.
pub trait Others {
    /// Where this owner and its parts wait.
    fn places(&self, owner: &str) -> Option<Places>;
    /// Another lock than the command's.
    fn lock(&self, name: &Name) -> Option<Lock>;
}

/// The cycle that this request would close, beginning with the lock that it asks for and ending with the one
/// that its own owner holds. `lock` is what stands about the name.
///
/// Dead holders, dead and overdue waiters are no part of a cycle: what they block comes free without anybody's
/// doing. A request that waits already is refused only if its ticket is the youngest of the cycle, so that one
/// is refused and not all.
#[must_use]
pub fn cycle(
    at: &Context<'_>,
    others: &dyn Others,
    lock: &Lock,
    ask: &Acquire,
) -> Option<Vec<CycleStep>> {
    if ask.party.owner.is_empty() || ask.wait == Wait::No {
        return None;
    }
    let own = |ticket: &&Ticket| ticket.token == ask.token && ticket.session == *at.caller;
    let own_age = lock.queue.iter().find(own).map(age);
    let mut walk =
        Walk { at, others, lock, ask, own_age, seen: BTreeSet::new(), steps: Vec::new() };
    walk.leads_back(&ask.name, lock).then_some(walk.steps)
}

/// Which of two tickets came first.
fn age(ticket: &Ticket) -> (u64, Token) {
    (ticket.since_us, ticket.token.clone())
}

/// A way from lock to lock.
struct Walk<'a> {
    at: &'a Context<'a>,
    others: &'a dyn Others,
    /// The lock that was asked for.
    lock: &'a Lock,
    ask: &'a Acquire,
    /// Of the asker's ticket, if it waits already.
    own_age: Option<(u64, Token)>,
    /// The owners from which no way leads back.
    seen: BTreeSet<Arc<str>>,
    steps: Vec<CycleStep>,
}

impl Walk<'_> {
    /// Does a way lead from this lock's holder back to the asker? Then its steps are what is left in `steps`.
    fn leads_back(&mut self, name: &Name, here: &Lock) -> bool {
        let Some(record) = here.record() else { return false };
        // One that was revoked, or whose link is closed, ends soon by itself. The asker's own acquisition under the
        // same token is one that was revoked (G6).
        let is_same = record.token == self.ask.token && record.session == *self.at.caller;
        let owner = &record.party.owner;
        if record.revoked || !self.alive(&record.session) || is_same || owner.is_empty() {
            return false;
        }
        let held_ms = self.at.now_us.saturating_sub(record.since_us) / 1_000;
        let step = CycleStep { name: name.clone(), held_ms, party: record.party.clone() };
        self.steps.push(step);
        if is_part_of(&self.ask.party.owner, owner) || self.goes_on(owner) {
            return true;
        }
        self.steps.pop();
        false
    }

    /// The same from an owner, wherever it waits.
    fn goes_on(&mut self, owner: &Arc<str>) -> bool {
        if self.seen.len() + 1 >= LONGEST_CYCLE || !self.seen.insert(owner.clone()) {
            return false;
        }
        let places = self.others.places(owner).filter(|it| it.until_us > self.at.now_us);
        places.is_some_and(|places| places.all.iter().any(|place| self.through(owner, place)))
    }

    fn through(&mut self, owner: &str, place: &Place) -> bool {
        let next = match place.name == self.ask.name {
            true => Some(self.lock.clone()),
            false => self.others.lock(&place.name),
        };
        let Some(mut next) = next else { return false };
        next.expire(self.at.now_us);
        let waits = |ticket: &&Ticket| {
            ticket.token == place.token
                && is_part_of(&ticket.party.owner, owner)
                && ticket.deadline_us.is_none_or(|deadline_us| deadline_us > self.at.now_us)
                && self.alive(&ticket.session)
        };
        let Some(ticket) = next.queue.iter().find(waits) else { return false };
        // Of those who wait already, only the youngest is refused.
        let is_younger = self.own_age.as_ref().is_some_and(|own| *own < age(ticket));
        !is_younger && self.leads_back(&place.name, &next)
    }

    fn alive(&self, session: &SessionId) -> bool {
        (self.at.subscribers)(session) > 0
    }
}
