//! Deadlocks: would a request wait for its own owner (G7, R37)?
//!
//! An owner is one line of execution: a thread, a task, a command. It waits for one lock at a time, so whom it
//! waits for is a chain: the holder of that lock, the holder of the lock which that one waits for, and so on.
//! (Whoever is ahead in a queue waits for the same holder.) A request whose chain comes back to its owner would
//! close a cycle, and is refused in its own round trip. No clock is involved, and no suspicion: each step of
//! the chain is read from what stands in the table at that moment.
//!
//! An owner may have parts: `a/b` is a part of `a`, as a command is that runs inside another. The whole waits for
//! its parts: while `a/b` waits, `a` does, and `a/b` must not wait for what `a` holds. Parts do not wait for each
//! other. (Of several parts that wait at the same time the one that asked last stands for the whole; the next
//! rechecks find what that may hide.)

use crate::{
    command::{Acquire, CycleStep, Wait},
    limits::LONGEST_CYCLE,
    name::{Name, SessionId, Token},
    table::{Context, Lock, Ticket},
};
use std::{collections::BTreeMap, sync::Arc};

/// Where an owner waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// For which lock.
    pub name: Name,
    /// With which ticket.
    pub token: Token,
    /// When this is forgotten, in µs, if the ticket is not refreshed (R28).
    pub until_us: u64,
}

/// The owners that wait, and where: each in one place, the one where it asked last. What stands here counts only
/// while the ticket stands in its queue.
pub type Waits = BTreeMap<Arc<str>, Place>;

/// What a command does to [`Waits`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitChange {
    /// The owner waits here.
    Begins(Arc<str>, Place),
    /// The owner does not wait for this lock with this ticket any more.
    Ends(Arc<str>, Name, Token),
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
            WaitChange::Begins(owner, place) => drop(waits.insert(owner, place)),
            WaitChange::Ends(owner, name, token) => {
                let same = |place: &Place| place.name == name && place.token == token;
                if waits.get(&owner).is_some_and(same) {
                    waits.remove(&owner);
                }
            }
        }
    }
}

/// The rest of the table, which a command that names one lock may have to look at.
pub trait Others {
    /// Where this owner waits.
    fn place(&self, owner: &str) -> Option<Place>;
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
    let asker = &ask.party.owner;
    if asker.is_empty() || ask.wait == Wait::No {
        return None;
    }
    let alive = |session: &SessionId| (at.subscribers)(session) > 0;
    let age = |ticket: &Ticket| (ticket.since_us, ticket.token.clone());
    let own = |ticket: &&Ticket| ticket.token == ask.token && ticket.session == *at.caller;
    let own_age = lock.queue.iter().find(own).map(age);
    let mut steps = Vec::new();
    let mut name = ask.name.clone();
    let mut here = lock.clone();
    for _ in 0..LONGEST_CYCLE {
        let record = here.record()?;
        // One that was revoked, or whose link is closed, ends soon by itself. The asker's own acquisition
        // under the same token is one that was revoked (G6).
        let is_same = record.token == ask.token && record.session == *at.caller;
        if record.revoked || !alive(&record.session) || is_same {
            return None;
        }
        let held_ms = at.now_us.saturating_sub(record.since_us) / 1_000;
        steps.push(CycleStep { name, held_ms, party: record.party.clone() });
        let owner = &record.party.owner;
        if owner.is_empty() {
            return None;
        }
        if is_part_of(asker, owner) {
            return Some(steps);
        }
        let place = others.place(owner).filter(|place| place.until_us > at.now_us)?;
        let mut next = match place.name == ask.name {
            true => lock.clone(),
            false => others.lock(&place.name)?,
        };
        next.expire(at.now_us);
        let waits = |ticket: &&Ticket| {
            ticket.token == place.token
                && is_part_of(&ticket.party.owner, owner)
                && ticket.deadline_us.is_none_or(|deadline_us| deadline_us > at.now_us)
                && alive(&ticket.session)
        };
        let ticket = next.queue.iter().find(waits)?;
        if own_age.as_ref().is_some_and(|own| *own < age(ticket)) {
            return None;
        }
        name = place.name;
        here = next;
    }
    None
}
