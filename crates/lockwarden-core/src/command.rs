//! What a session asks of a store, and what it hears back.

use crate::{
    limits::RESERVED,
    name::{Epoch, Name, Run, SessionId, Token},
    party::Party,
};
use std::{fmt, sync::Arc};

/// One command of a session. Every one may be sent again after an unknown outcome: nothing happens
/// twice (G6). The only exception is [`Extension::Add`], which is sent once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Take the lock, or queue for it.
    Acquire(Acquire),
    /// Set the lease of a held lock anew; also how a holder extends.
    Renew(Renew),
    /// Give the lock back and hand it to the first living waiter.
    Release {
        /// The lock.
        name: Name,
        /// As in [`Acquire::also`].
        also: Arc<[Name]>,
        /// The acquisition that ends.
        token: Token,
        /// Its holder had lost it before, and so may others have come too late (R43).
        lost: bool,
    },
    /// Leave the queue; if the lock was granted meanwhile, give it back (R30).
    Cancel {
        /// The lock.
        name: Name,
        /// As in [`Acquire::also`].
        also: Arc<[Name]>,
        /// The acquisition that ends.
        token: Token,
        /// As in [`Acquire::proof`].
        proof: Arc<str>,
    },
    /// Take the lock away from its holder, on proof of death or by an operator's order (R32).
    Revoke {
        /// The lock.
        name: Name,
        /// The holder's token: another holder is never hurt.
        token: Token,
        /// The holder's session, where the proof is about a session: the same value may be held by
        /// another one by now.
        session: Option<SessionId>,
        /// Refuse renewals and let the lock end within W, so that the holder stops believing first.
        delayed: bool,
    },
    /// Ask the holder to give the lock up; it decides (R32). Changes nothing.
    Recall {
        /// The lock.
        name: Name,
        /// The holder's token: another holder is never asked.
        token: Token,
        /// Who asks.
        by: Arc<Party>,
    },
    /// Hold a lock in another mode from now on: share one that is held exclusively, or have one that is shared for
    /// oneself, if nobody else shares it. Nobody waits for that, so that two readers who both want to write do not wait
    /// for each other for ever.
    Convert {
        /// The lock.
        name: Name,
        /// The acquisition.
        token: Token,
        /// How it is held from now on.
        to: Mode,
        /// Its token from now on, where it is held alone: an old snapshot in which it is shared must not be taken for it
        /// (G1). Otherwise the same.
        new_token: Token,
        /// As in [`Acquire::floor`].
        floor: u64,
    },
    /// Let a lock be adopted by whoever knows the new token (R32). Until then nobody holds it, and nobody else gets it.
    HandOver {
        /// The lock.
        name: Name,
        /// As in [`Acquire::also`].
        also: Arc<[Name]>,
        /// The acquisition that ends.
        token: Token,
        /// The token by which it is adopted: see [`Wait::Adopt`].
        to: Token,
        /// How long it waits to be adopted, in ms; then it is free.
        lease_ms: u64,
    },
    /// Change when a lock ends, whoever holds it: only the key's value is compared, as the libraries do that the
    /// drop-ins stand in for. A foreign client's lock, too. What another session believes in never gets shorter (R18).
    ExtendByValue {
        /// The lock.
        name: Name,
        /// The key's value.
        token: Token,
        /// For how long, in ms.
        ms: u64,
        /// What that length is.
        how: Extension,
    },
    /// Give a lock up without freeing it: it is nobody's, and ends with its lease, unless somebody who knows its value
    /// extends or releases it before. What nobody else can know, or has no lease, is released instead.
    Leave {
        /// The lock.
        name: Name,
        /// The acquisition that ends.
        token: Token,
    },
    /// The heartbeat of a session (R19).
    Beat,
    /// What stands about a name. Changes nothing.
    Show {
        /// The lock.
        name: Name,
    },
}

impl Wait {
    /// Is it refused at once where it is not granted?
    #[must_use]
    pub fn is_one_try(self) -> bool {
        matches!(self, Wait::No | Wait::Adopt)
    }
}

/// Take the lock, or queue for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    /// The lock.
    pub name: Name,
    /// The other locks, where several are asked for at once: all are granted together, or none (R29). Each name
    /// stands here once, and `name` does not.
    pub also: Arc<[Name]>,
    /// How each of them is to be held, in the order of [`Acquire::names`]; empty: all exclusively.
    pub modes: Arc<[Mode]>,
    /// Unique per acquisition; the same again is the same acquisition.
    pub token: Token,
    /// The random part, where the token is the caller's choice and may come twice (drop-ins, R25);
    /// else empty.
    pub proof: Arc<str>,
    /// Not to wait, or how long.
    pub wait: Wait,
    /// The lease, in ms.
    pub lease_ms: u64,
    /// The grace, in ms.
    pub grace_ms: u64,
    /// Hold it at least this long from the grant on, in ms, whatever becomes of its holder (R33); 0: no longer than it
    /// is held.
    pub at_least_ms: u64,
    /// If it is lost by a crash, it is not granted again for this long, in ms (R43); 0: at once.
    pub delay_ms: u64,
    /// Its key has no expiry while it is held, as that of a redis-py lock without a timeout; `lease_ms` is then how
    /// long the holder believes without a renewal. Only where there is a `proof`, and exclusively; else it says nothing.
    pub endless: bool,
    /// The highest fence that the caller knows (R34); 0: none.
    pub floor: u64,
    /// Who asks.
    pub party: Arc<Party>,
}

/// What the length of an [`Command::ExtendByValue`] means, as redis-py has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extension {
    /// So much more than what is left (redis-py's `extend`). A lock without an end has nothing to add to.
    Add,
    /// So much from now on (redis-py's `extend` with `replace_ttl`), but not for a lock without an end.
    Replace,
    /// So much from now on, also for a lock without an end, which has one from then on (redis-py's `reacquire`).
    Set,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// By one alone.
    #[default]
    Exclusive,
    /// By any number of readers at the same time.
    Shared,
    /// By as many as there is room for: a semaphore.
    Permits {
        /// How many of the permits it takes; 1 at least, `of` at most.
        count: u32,
        /// How many there are. Whoever uses the name must say the same.
        of: u32,
    },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusively"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permits { count, of } => write!(f, "by {count} of {of} permits"),
        }
    }
}

/// What has become of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldState {
    /// Its holder has it.
    Held,
    /// An operator has revoked it; it ends soon (R32).
    Revoked,
    /// Nobody has it any more, but it is not granted again before its end: for the rest of its minimum, or for the
    /// delay after a crash (R33, R43); or it was left, see [`Command::Leave`].
    Cooling,
    /// Its holder has handed it over, and nobody has adopted it yet (R32).
    HandedOver,
}

/// Set the lease of a held lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Renew {
    /// The lock.
    pub name: Name,
    /// As in [`Acquire::also`]: all are renewed, or none.
    pub also: Arc<[Name]>,
    /// The acquisition that is renewed.
    pub token: Token,
    /// The lease that it has from now on, in ms.
    pub lease_ms: u64,
}

/// How long an acquire may stand in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// One try, no ticket.
    No,
    /// At most this long from now, in ms.
    For(u64),
    /// Until it is granted or cancelled.
    Forever,
    /// One try, and only for what was handed over under this very token (R32).
    Adopt,
}

impl Command {
    /// The lock that the command is about; a beat is about none.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        match self {
            Command::Acquire(Acquire { name, .. }) | Command::Renew(Renew { name, .. }) => {
                Some(name)
            }
            Command::Release { name, .. }
            | Command::Cancel { name, .. }
            | Command::Revoke { name, .. }
            | Command::Recall { name, .. }
            | Command::Convert { name, .. }
            | Command::HandOver { name, .. }
            | Command::ExtendByValue { name, .. }
            | Command::Leave { name, .. }
            | Command::Show { name } => Some(name),
            Command::Beat => None,
        }
    }

    /// The other locks of a command that is about several (R29).
    #[must_use]
    pub fn also(&self) -> &[Name] {
        match self {
            Command::Acquire(Acquire { also, .. })
            | Command::Renew(Renew { also, .. })
            | Command::Release { also, .. }
            | Command::Cancel { also, .. }
            | Command::HandOver { also, .. } => also,
            Command::Revoke { .. }
            | Command::Recall { .. }
            | Command::Convert { .. }
            | Command::ExtendByValue { .. }
            | Command::Leave { .. }
            | Command::Show { .. }
            | Command::Beat => &[],
        }
    }

    /// All locks that the command is about.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.name().into_iter().chain(self.also())
    }
}

impl Acquire {
    /// All locks that are asked for.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        std::iter::once(&self.name).chain(&*self.also)
    }

    /// All locks that are asked for, and how.
    pub fn wants(&self) -> impl Iterator<Item = (&Name, Mode)> {
        self.names().enumerate().map(|(number, name)| (name, self.mode_at(number)))
    }

    /// How the lock of this number is asked for.
    #[must_use]
    pub fn mode_at(&self, number: usize) -> Mode {
        self.modes.get(number).copied().unwrap_or_default()
    }

    /// The lock of this number, counted from 0; the first, if there are fewer.
    #[must_use]
    pub fn name_at(&self, number: usize) -> &Name {
        self.names().nth(number).unwrap_or(&self.name)
    }
}

impl HolderView {
    /// Has its lease ended without a release, so that only the delay after a crash keeps the lock (R43)?
    #[must_use]
    pub fn is_delayed(&self) -> bool {
        let delay_ms = self.record.as_ref().map_or(0, |record| record.delay_ms);
        delay_ms > 0 && self.ttl_ms.is_some_and(|ttl_ms| ttl_ms <= delay_ms)
    }

    /// Has its holder left it to whoever knows its value (see [`Command::Leave`])?
    #[must_use]
    pub fn is_left(&self) -> bool {
        let is_cooling = |record: &RecordView| record.state == HoldState::Cooling;
        // Any other that cools has lost its value.
        self.record.as_ref().is_some_and(is_cooling)
            && !self.token.as_bytes().starts_with(RESERVED.as_bytes())
    }
}

impl Refusal {
    /// The holders that are told, each with the number of its lock.
    pub fn holders(&self) -> impl Iterator<Item = (usize, &HolderView)> {
        let first = self.holder.iter().map(|holder| (self.at, holder));
        first.chain(self.others.iter().map(|(number, holder)| (*number, holder)))
    }

    /// The holders of the lock of this number, as far as they are told.
    pub fn holders_of(&self, number: usize) -> impl Iterator<Item = &HolderView> {
        self.holders().filter(move |(its, _)| *its == number).map(|(_, holder)| holder)
    }
}

/// What a store answers. A busy lock or a lost one is an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The caller holds the lock, for the whole lease from when it sent the command.
    Granted {
        /// The fence of the grant; the same again for the same acquisition.
        fence: u64,
        /// The lease, in ms.
        lease_ms: u64,
    },
    /// The caller does not hold the lock.
    Refused(Refusal),
    /// The caller would wait for its own owner: it does not wait (G7).
    Deadlock(Vec<CycleStep>),
    /// The lease is set.
    Renewed {
        /// The lease, in ms.
        lease_ms: u64,
    },
    /// The lease is set, but the guard runs: no belief follows; repeat it afterwards (R6).
    Guarded {
        /// The lease, in ms.
        lease_ms: u64,
        /// When the guard ends, in ms from now.
        guard_ms: u64,
    },
    /// The token is not the holder's.
    NotHeld(Absence),
    /// The lock is given back.
    Released,
    /// The ticket, if there was one, is gone.
    Cancelled {
        /// The lock had been granted, and is given back.
        released: bool,
    },
    /// The lock is taken away from its holder.
    Revoked {
        /// When it ends, in ms from now; 0: it has.
        after_ms: u64,
    },
    /// The holder is asked. (What it is told may be lost, as any message.)
    Recalled,
    /// The lock is held in the mode that was asked for.
    Converted {
        /// The fence, which is a new one where the lock is held exclusively from now on.
        fence: u64,
    },
    /// The lock waits to be adopted, or was adopted by now.
    HandedOver,
    /// A foreign client holds the lock: it has no session that could be told.
    Foreign,
    /// The lock ends later.
    Extended {
        /// In how many ms, from now on.
        lease_ms: u64,
        /// It is held by the asking session, which may believe in that.
        own: bool,
        /// When the guard ends, in ms from now; 0: it does not run. Before that no belief follows (R6).
        guard_ms: u64,
    },
    /// The lock has no end that could be put off.
    Endless,
    /// The lock is nobody's any more, and ends with its lease.
    Left,
    /// The heartbeat's answer.
    Beat {
        /// The server's run.
        run: Run,
        /// The server's clock, in µs.
        now_us: u64,
        /// How many listen on the session's own channel; 0: it would miss its grants.
        subscribers: u64,
    },
    /// What stands about the name.
    Shown(Box<LockView>),
    /// The session's own channel has no subscriber: mend the link first (R11).
    Unsubscribed,
    /// The caller speaks of a run of the server that is over: open a new link (R4).
    Stale,
    /// Dead tickets were dropped up to the bound; ask again (R26).
    More,
    /// A lock is in use in a mode that this one cannot be beside, however long it waits: permits beside another mode,
    /// or beside permits that are another number.
    OtherMode {
        /// Which of the locks that were asked for, counted from 0.
        at: usize,
        /// The mode that it is in use in.
        in_use: Mode,
    },
    /// The floor is over a day ahead of the store's clock (R34): the fence would be poisoned.
    FloorAhead {
        /// The store's clock, in µs.
        now_us: u64,
    },
    /// The name's key holds something that is no lock (Redis: a key of another type).
    NotALock,
}

/// Why there is nothing of that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Absence {
    /// Nobody holds the lock.
    Free,
    /// Another acquisition does.
    Taken,
    /// An operator has revoked it; it ends soon.
    Revoked,
}

/// Why an acquire was refused, and when to look again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// Which of the locks that were asked for it is about, counted from 0.
    pub at: usize,
    /// Who holds it, where someone does.
    pub holder: Option<HolderView>,
    /// Who else holds the locks that were asked for, each with the lock's number: first one of each lock, then the others
    /// of those that several hold together; [`MOST_HOLDERS_TOLD`](crate::limits::MOST_HOLDERS_TOLD) with that one.
    pub others: Vec<(usize, HolderView)>,
    /// The caller's place in the queue, if it has a ticket: how many stand ahead. 0 and 1 count
    /// the living only; from 2 on the number may be too high. Of several queues the shortest.
    pub position: Option<u64>,
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Someone holds the lock.
    Held,
    /// Nobody holds the lock. It is kept for the request for several locks that has waited for longest, so that
    /// it does not starve (R29).
    Kept,
    /// Nothing is granted for so many ms, because a holder of the epoch before may still believe.
    Guard {
        /// When the guard ends, in ms from now.
        guard_ms: u64,
    },
}

/// One step of a cycle of waits: this lock is held by this party, whose owner waits for the lock of the next step.
/// The last step's party is of the owner that asked. (A lock that is kept, see [`Reason::Kept`], is not held, but
/// in everybody's way all the same.)
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CycleStep {
    /// The lock.
    pub name: Name,
    /// How long it has been held, in ms.
    pub held_ms: u64,
    /// Who holds it.
    pub party: Arc<Party>,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HolderView {
    /// The key's value.
    pub token: Token,
    /// When the key expires, in ms from now; none: it does not.
    pub ttl_ms: Option<u64>,
    /// What is known of it; none: a foreign client wrote the key (R3).
    pub record: Option<RecordView>,
}

/// What a record tells of its holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordView {
    /// Its session.
    pub session: SessionId,
    /// Its fence.
    pub fence: u64,
    /// Its lease, in ms.
    pub lease_ms: u64,
    /// Its grace, in ms.
    pub grace_ms: u64,
    /// How long it has held the lock, in ms.
    pub held_ms: u64,
    /// What has become of it.
    pub state: HoldState,
    /// For how long before its end the lock is granted to nobody, because its holder has crashed, in ms (R43).
    pub delay_ms: u64,
    /// How much is left of its minimum, in ms (R33).
    pub least_left_ms: u64,
    /// It has no end of its own while it is held: its key expires only as far as somebody has to show himself first
    /// (R14, R15, R27).
    pub endless: bool,
    /// How it holds the lock.
    pub mode: Mode,
    /// Who it is.
    pub party: Arc<Party>,
}

/// One place in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketView {
    /// Its token.
    pub token: Token,
    /// Its session.
    pub session: SessionId,
    /// Is the session's link up?
    pub alive: bool,
    /// How long it has waited, in ms.
    pub waited_ms: u64,
    /// How long it will still wait, in ms; none: for ever.
    pub left_ms: Option<u64>,
    /// How it wants to hold the lock.
    pub mode: Mode,
    /// It waits for other locks, too, to have all of them at once (R29).
    pub several: bool,
    /// Who it is.
    pub party: Arc<Party>,
}

/// All that stands about a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockView {
    /// Who holds it; of several the one whose lease ends first.
    pub holder: Option<HolderView>,
    /// Is the holder's link up? (None: nobody holds it, or a foreign client.)
    pub holder_alive: Option<bool>,
    /// The others that hold it beside that one, by the ends of their leases, and whether their links are up.
    pub beside: Vec<(HolderView, bool)>,
    /// The queue, in order.
    pub queue: Vec<TicketView>,
}

/// What a session is told without having asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// The lock was handed to one of the session's tickets.
    Grant {
        /// The lock.
        name: Name,
        /// The ticket's token.
        token: Token,
        /// The fence.
        fence: u64,
        /// The lease until the first renewal, in ms: at most W (R27).
        lease_ms: u64,
        /// The epoch of the grant.
        epoch: Epoch,
        /// The next ticket in the queue, where it is the same session's: it is the first now.
        first: Option<Token>,
    },
    /// A ticket of the session is the first of its queue now: it looks after the holder from here
    /// on, for nobody ahead does any more (G5).
    First {
        /// The lock.
        name: Name,
        /// The ticket's token.
        token: Token,
        /// The holder, to be watched from here on.
        holder: Box<HolderView>,
    },
    /// Someone is refused because of this token: release it, if nobody here wants it (R16).
    Asking {
        /// The lock.
        name: Name,
        /// The holder's token.
        token: Token,
    },
    /// A lock of the session was taken away.
    Revoked {
        /// The lock.
        name: Name,
        /// The holder's token.
        token: Token,
        /// When it ends, in ms from then; 0: it had.
        after_ms: u64,
    },
    /// The session is asked to give a lock of its up, if it wants to (R32).
    Recall {
        /// The lock.
        name: Name,
        /// The holder's token.
        token: Token,
        /// Who asks.
        by: Arc<Party>,
    },
}
