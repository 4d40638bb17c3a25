//! Deadlocks: would a request wait for its own owner (G7, R37)?
//!
//! An owner is one line of execution: a thread, a task, a command. Whom it waits for is the holder of the lock that it
//! waits for, and whom that one waits for, and so on. (Whoever is ahead in a queue waits for the same holder, except the
//! request for several locks that this one is kept for, see `table::queue`: that waits for its other locks, too.) A request
//! from which a way leads back to its owner would close a cycle, and is refused in its own round trip. No clock is
//! involved, and no suspicion: each step is read from what stands in the table at that moment.
//!
//! An owner may have parts: `a/b` is a part of `a`, as a command is that runs inside another. The whole waits for its
//! parts: while `a/b` waits, `a` does, and `a/b` must not wait for what `a` holds. Parts do not wait for each other.

use crate::{
    command::{Acquire, CycleStep, HoldState, Mode},
    limits::{LONGEST_CYCLE, MOST_PLACES},
    name::{Name, SessionId, Token},
    party::Party,
    table::{Context, Lock, Locks, Record, Request, Ticket},
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
    /// With which ticket. A request for several locks stands here once, at the first of its names.
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

/// Can this request be part of a cycle? It has an owner, and waits.
#[must_use]
pub fn is_possible(ask: &Acquire) -> bool {
    !ask.party.owner.is_empty() && !ask.wait.is_one_try()
}

/// The cycle that this request would close, beginning with a lock that it asks for and ending with the one
/// that its own owner holds. `kept_for`: whose names are kept for it.
///
/// Dead holders, dead and overdue waiters are no part of a cycle: what they block comes free without anybody's
/// doing. A request that waits already is refused only if its ticket is the youngest of the cycle, so that one
/// is refused and not all.
#[must_use]
pub fn cycle(
    at: &Context<'_>,
    locks: &mut dyn Locks,
    kept_for: Option<&Request>,
    ask: &Acquire,
) -> Option<Vec<CycleStep>> {
    if !is_possible(ask) {
        return None;
    }
    let own = |ticket: &&Ticket| ticket.token == ask.token && ticket.session == *at.caller;
    let own_age = locks.lock(&ask.name).queue.iter().find(own).map(age);
    let back = BTreeMap::new();
    let mut walk =
        Walk { at, locks, kept_for, ask, own_age, seen: BTreeSet::new(), back, steps: Vec::new() };
    let found = ask.wants().any(|(name, mode)| walk.leads_back(name, &ask.token, mode));
    found.then_some(walk.steps)
}

/// Which of two tickets came first.
fn age(ticket: &Ticket) -> (u64, Token) {
    (ticket.since_us, ticket.token.clone())
}

/// A way from lock to lock.
struct Walk<'a> {
    at: &'a Context<'a>,
    locks: &'a mut dyn Locks,
    /// None, too, once it was found that no way leads on from it.
    kept_for: Option<&'a Request>,
    ask: &'a Acquire,
    /// Of the asker's ticket, if it waits already.
    own_age: Option<(u64, Token)>,
    /// The owners that were looked at.
    seen: BTreeSet<Arc<str>>,
    /// The steps back, from the owners from which a way leads back.
    back: BTreeMap<Arc<str>, Vec<CycleStep>>,
    steps: Vec<CycleStep>,
}

impl Walk<'_> {
    /// Does a way lead from this lock back to the asker, for whoever waits there with that token in that mode? Then
    /// its steps are what is left in `steps`.
    fn leads_back(&mut self, name: &Name, token: &Token, mode: Mode) -> bool {
        self.by_its_holders(name, token, mode) || self.by_whom_it_is_kept_for(name, token)
    }

    /// By the holders, where there is no room beside them: one is enough to wait for, or with permits as many as have
    /// what is missing.
    fn by_its_holders(&mut self, name: &Name, token: &Token, mode: Mode) -> bool {
        let Some(mode) = self.lacks_room(name, token, mode) else { return false };
        let lock = self.expired(name);
        let records: Vec<Record> = lock.holders().take(LONGEST_CYCLE).cloned().collect();
        // Those who can finish give back what they have; it is too little if the others have more than this.
        let spare = match mode {
            Mode::Permits { count, of } => u64::from(of - count.min(of)),
            Mode::Exclusive | Mode::Shared => 0,
        };
        let mut stuck = 0;
        let from = self.steps.len();
        for record in records {
            self.steps.truncate(from);
            if self.by_holder(name, &record) {
                stuck += match record.mode {
                    Mode::Permits { count, .. } => u64::from(count),
                    Mode::Exclusive | Mode::Shared => 1,
                };
                if stuck > spare {
                    return true;
                }
            }
        }
        self.steps.truncate(from);
        false
    }

    /// The mode for which there is no room: its own, or that of the first who must be served before it. None: it
    /// need not wait for the holders.
    fn lacks_room(&mut self, name: &Name, token: &Token, mode: Mode) -> Option<Mode> {
        let lock = self.expired(name);
        if lock.key.is_none() || lock.has_room(mode) != Ok(true) {
            return Some(mode);
        }
        let ahead = lock.queue.iter().take_while(|it| it.token != *token);
        let ahead = ahead.filter(|it| !it.several && lock.has_room(it.mode) != Ok(true));
        let ahead: Vec<Ticket> = ahead.cloned().collect();
        let blocks = ahead.into_iter().find(|ticket| self.waits(ticket));
        blocks.map(|ticket| ticket.mode)
    }

    fn by_holder(&mut self, name: &Name, record: &Record) -> bool {
        // One that nobody has any more, or whose link is closed, ends soon by itself. The asker's own acquisition under
        // the same token is one that was revoked (G6).
        let is_same = record.token == self.ask.token && record.session == *self.at.caller;
        let owner = &record.party.owner;
        let is_held = record.state == HoldState::Held && self.alive(&record.session);
        if !is_held || is_same || owner.is_empty() {
            return false;
        }
        self.step(name, record.since_us, &record.party);
        if is_part_of(&self.ask.party.owner, owner) || self.goes_on(owner) {
            return true;
        }
        self.steps.pop();
        false
    }

    /// The same by the request that the lock is kept for, if that came before the token.
    fn by_whom_it_is_kept_for(&mut self, name: &Name, token: &Token) -> bool {
        let Some(request) = self.kept_for else { return false };
        let mut ahead = self.expired(name).queue.iter().take_while(|it| it.token != *token);
        if !ahead.any(|ticket| ticket.token == request.token) {
            return false;
        }
        self.kept_for = None;
        self.step(name, request.since_us, &request.party);
        if request.wants().any(|(name, mode)| self.by_its_holders(name, &request.token, mode)) {
            return true;
        }
        self.steps.pop();
        false
    }

    fn step(&mut self, name: &Name, since_us: u64, party: &Arc<Party>) {
        let held_ms = self.at.now_us.saturating_sub(since_us) / 1_000;
        self.steps.push(CycleStep { name: name.clone(), held_ms, party: party.clone() });
    }

    /// The same from an owner, wherever it waits.
    fn goes_on(&mut self, owner: &Arc<str>) -> bool {
        if let Some(steps) = self.back.get(owner) {
            self.steps.extend_from_slice(steps);
            return true;
        }
        if self.seen.len() + 1 >= LONGEST_CYCLE || !self.seen.insert(owner.clone()) {
            return false;
        }
        let from = self.steps.len();
        let places = self.locks.places(owner).filter(|it| it.until_us > self.at.now_us);
        let leads_back =
            places.is_some_and(|places| places.all.iter().any(|place| self.through(owner, place)));
        if leads_back {
            self.back.insert(owner.clone(), self.steps[from..].to_vec());
        }
        leads_back
    }

    fn through(&mut self, owner: &str, place: &Place) -> bool {
        let queue = &self.expired(&place.name).queue;
        let Some(ticket) = queue.iter().find(|it| it.token == place.token).cloned() else {
            return false;
        };
        let waits = is_part_of(&ticket.party.owner, owner) && self.waits(&ticket);
        // Of those who wait already, only the youngest is refused.
        let is_younger = self.own_age.as_ref().is_some_and(|own| *own < age(&ticket));
        if !waits || is_younger {
            return false;
        }
        if !ticket.several {
            return self.leads_back(&place.name, &place.token, ticket.mode);
        }
        let now_us = self.at.now_us;
        let request = self.locks.request(&place.token).filter(|it| it.expires_us > now_us);
        request.is_some_and(|it| {
            it.wants().any(|(name, mode)| self.leads_back(name, &place.token, mode))
        })
    }

    fn expired(&mut self, name: &Name) -> &Lock {
        let lock = self.locks.lock(name);
        lock.expire(self.at.now_us);
        lock
    }

    fn waits(&self, ticket: &Ticket) -> bool {
        ticket.deadline_us.is_none_or(|at_us| at_us > self.at.now_us) && self.alive(&ticket.session)
    }

    fn alive(&self, session: &SessionId) -> bool {
        (self.at.subscribers)(session) > 0
    }
}
