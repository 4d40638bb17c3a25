//! What can go wrong, as types. One message never stands for several causes (G10).

use crate::hand_over::InvalidHandOver;
use lockwarden_core::{
    Name,
    command::{Absence, CycleStep, HoldState, HolderView, Mode, Reason, Refusal},
    keeper::Loss,
    limits::{OutOfRange, PermitsOutOfRange, TooManyNames},
    name::InvalidName,
    party::{InvalidTag, Party},
};
use std::{fmt, time::Duration};
use thiserror::Error;

/// Why a call of the library did not do what it promised.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The lock is not free, and the caller did not want to wait.
    #[error("the lock {name} is busy: {}", Told(.told.as_deref()))]
    Busy {
        /// The lock.
        name: Name,
        /// Who holds it, and why it was refused.
        told: Option<Box<Refusal>>,
    },
    /// The wait ended before the lock was granted.
    #[error("the lock {name} was not granted within {waited:?}: {}", Told(.told.as_deref()))]
    TimedOut {
        /// The lock.
        name: Name,
        /// How long the caller waited.
        waited: Duration,
        /// What the store said last.
        told: Option<Box<Refusal>>,
    },
    /// The caller would wait for its own owner (G7): nothing was queued, and what it holds it still holds.
    #[error("deadlock: {}", Cycle(.cycle))]
    Deadlock {
        /// The lock that it asked for.
        name: Name,
        /// Who holds what and waits for the next; it begins with `name`, and ends with what the caller's own
        /// owner holds.
        cycle: Vec<CycleStep>,
    },
    /// The lock is in use in a mode that this one cannot be beside, however long it waits: permits beside another
    /// mode, or beside permits of another number.
    #[error(
        "the lock {name} cannot be had {asked}: it is in use {in_use}; everybody must use it in the same way"
    )]
    OtherMode {
        /// The lock.
        name: Name,
        /// How it was asked for.
        asked: Mode,
        /// How it is held, or waited for.
        in_use: Mode,
    },
    /// The owner holds the lock so often already that this can only be a loop.
    #[error("the lock {name} is held {most} times by one owner: it was not acquired once more")]
    TooDeep {
        /// The lock.
        name: Name,
        /// The most.
        most: usize,
    },
    /// The guard runs: the store began a new epoch, and for W (3 s) it grants nothing, because a
    /// holder from before may still believe (R6).
    #[error(
        "the lock {name} is guarded: the store began anew, and grants nothing for another {:.1} s, \
         because a holder from before may still believe",
        left.as_secs_f64()
    )]
    Guarded {
        /// The lock.
        name: Name,
        /// How long the guard still runs.
        left: Duration,
    },
    /// The lock was held, and is not any more.
    #[error("the lock {name} was lost: {}", why_lost(*.loss))]
    Lost {
        /// The lock.
        name: Name,
        /// What happened.
        loss: Loss,
    },
    /// Nobody has handed the lock over under this token; or somebody has adopted it by now, or the time for that is
    /// over.
    #[error("the lock {name} cannot be adopted: {}", why_not_handed_over(*.absence))]
    NotHandedOver {
        /// The lock.
        name: Name,
        /// What stands in its place.
        absence: Absence,
    },
    /// A foreign client holds the lock: it has no session that could be asked.
    #[error("the lock {name} is held by another kind of client, which cannot be asked for it")]
    Foreign {
        /// The lock.
        name: Name,
    },
    /// The lock is held without an end, so that there is no lease that could be extended.
    #[error("the lock {name} is held without an end: it has no lease that could be extended")]
    Endless {
        /// The lock.
        name: Name,
    },
    /// A release was sent more than once, and the lock is not there: an earlier one may have
    /// worked, or the lock was lost before it (R31).
    #[error("the lock {name} was released or lost: the store does not have it any more")]
    ReleasedOrLost {
        /// The lock.
        name: Name,
    },
    /// The store cannot serve, or refuses us.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An argument breaks its rule.
    #[error("{0}")]
    Invalid(String),
    /// The warden was closed.
    #[error("the warden is closed")]
    Closed,
}

impl Error {
    /// The stable code of the error, as in `docs/ERRORS.md`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::Busy { .. } => "busy",
            Error::TimedOut { .. } => "timed_out",
            Error::Deadlock { .. } => "deadlock",
            Error::TooDeep { .. } => "too_deep",
            Error::OtherMode { .. } => "other_mode",
            Error::Guarded { .. } => "guarded",
            Error::Lost { .. } => "lost",
            Error::NotHandedOver { .. } => "not_handed_over",
            Error::Foreign { .. } => "foreign",
            Error::Endless { .. } => "endless",
            Error::ReleasedOrLost { .. } => "released_or_lost",
            Error::Store(StoreError::Unavailable { .. }) => "unavailable",
            Error::Store(StoreError::Denied { .. }) => "denied",
            Error::Store(StoreError::Invalid { .. }) | Error::Invalid(_) => "invalid",
            Error::Closed => "closed",
        }
    }

    /// May the same call succeed later, with nothing changed by the caller?
    #[must_use]
    pub fn retry_helps(&self) -> bool {
        matches!(
            self,
            Error::Busy { .. }
                | Error::TimedOut { .. }
                | Error::Guarded { .. }
                | Error::Store(StoreError::Unavailable { .. })
        )
    }

    /// What the failed call did to the lock. Of an acquire nothing stays behind either way: the
    /// warden releases by token before anything else (G6).
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Error::Store(StoreError::Unavailable { effect, .. }) => *effect,
            Error::ReleasedOrLost { .. } => Effect::Unknown,
            _ => Effect::NotApplied,
        }
    }
}

impl StoreError {
    /// The store answered something that no one expects of it.
    pub(crate) fn protocol(place: String, detail: String) -> StoreError {
        let (trouble, effect) = (Trouble::Protocol, Effect::Unknown);
        StoreError::Unavailable { place, trouble, detail, effect }
    }

    /// The connection broke, and what had not been answered may or may not have happened.
    pub(crate) fn disconnected(place: String, detail: String) -> StoreError {
        let (trouble, effect) = (Trouble::Disconnected, Effect::Unknown);
        StoreError::Unavailable { place, trouble, detail, effect }
    }

    /// The same error, with what became of the command.
    #[must_use]
    pub fn with_effect(mut self, became: Effect) -> StoreError {
        if let StoreError::Unavailable { effect, .. } = &mut self {
            *effect = became;
        }
        self
    }
}

impl From<InvalidName> for Error {
    fn from(invalid: InvalidName) -> Error {
        Error::Invalid(invalid.to_string())
    }
}

impl From<PermitsOutOfRange> for Error {
    fn from(range: PermitsOutOfRange) -> Error {
        Error::Invalid(range.to_string())
    }
}

impl From<InvalidTag> for Error {
    fn from(invalid: InvalidTag) -> Error {
        Error::Invalid(invalid.to_string())
    }
}

impl From<OutOfRange> for Error {
    fn from(range: OutOfRange) -> Error {
        Error::Invalid(range.to_string())
    }
}

impl From<InvalidHandOver> for Error {
    fn from(invalid: InvalidHandOver) -> Error {
        Error::Invalid(invalid.to_string())
    }
}

impl From<TooManyNames> for Error {
    fn from(many: TooManyNames) -> Error {
        Error::Invalid(many.to_string())
    }
}

/// A refusal in words.
struct Told<'a>(Option<&'a Refusal>);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(refusal) = self.0 else { return f.write_str("the store did not say why") };
        if let Reason::Guard { guard_ms } = refusal.reason {
            let s = guard_ms as f64 / 1_000.0;
            write!(f, "the store began anew, and grants nothing for another {s:.1} s, ")?;
            return f.write_str("because a holder from before may still believe");
        }
        match &refusal.holder {
            Some(holder) => write!(f, "{}", describe(holder)),
            None => {
                f.write_str("it is kept for others, who asked for several locks at once before")
            }
        }
    }
}

/// A cycle in words, as its victim sees it.
struct Cycle<'a>(&'a [CycleStep]);

impl fmt::Display for Cycle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, CycleStep { name, held_ms, party }) in self.0.iter().enumerate() {
            let s = *held_ms as f64 / 1_000.0;
            if number > 0 {
                f.write_str(", who waits for ")?;
            }
            write!(f, "{name} is held by {}for {s:.1} s", who(party))?;
        }
        f.write_str(
            ", who asked; release something first, or take all of it in one order everywhere",
        )
    }
}

/// Sites up to this length are told in errors, which are one line.
const SHORT_SITE_BYTES: usize = 80;

/// A party in words, and a space.
fn who(party: &Party) -> String {
    let pid = party.pid().map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let mut text = String::new();
    if !party.label.is_empty() {
        text += &format!("{} ", party.label.escape_debug());
    }
    text += &format!("(host {}, pid {pid}) ", party.host.escape_debug());
    if (1..=SHORT_SITE_BYTES).contains(&party.site.len()) {
        text += &format!("at {} ", party.site.escape_debug());
    }
    text
}

/// A holder in words: who, where, since when, how long still.
#[must_use]
pub fn describe(holder: &HolderView) -> String {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1_000.0);
    if let Some(text) = kept_for_whom(holder) {
        return text;
    }
    let mut text = String::from("held by ");
    match &holder.record {
        None => {
            let token: String = holder.token.to_string().chars().take(60).collect();
            text += &format!("another kind of client (value {token})");
        }
        Some(record) => {
            text += &who(&record.party);
            text += &format!("for {}", seconds(record.held_ms));
        }
    }
    let is_endless = holder.record.as_ref().is_some_and(|record| record.endless);
    match holder.ttl_ms {
        None if is_endless => text += ", without an end",
        Some(ttl_ms) if is_endless => {
            let rule = "until its holder is heard of";
            text += &format!(", without an end but for {rule}, {} at most", seconds(ttl_ms));
        }
        Some(ttl_ms) => text += &format!(", lease ends in {}", seconds(ttl_ms)),
        None => text += ", and it never expires",
    }
    text
}

/// Why a lock is not free though nobody holds it, in words: whoever had it, and why it is not granted yet. None: it is
/// held.
fn kept_for_whom(holder: &HolderView) -> Option<String> {
    let record = holder.record.as_ref()?;
    let left = format!("{:.1} s", holder.ttl_ms? as f64 / 1_000.0);
    let whose = who(&record.party);
    let whose = whose.trim_end();
    Some(match record.state {
        HoldState::Held if holder.is_delayed() => format!(
            "nobody holds it: {whose} was lost with it, and it is granted again after a delay, in {left}"
        ),
        HoldState::Held | HoldState::Revoked => return None,
        HoldState::Cooling if holder.is_left() => {
            format!(
                "nobody renews it: {whose} has left it, and unless somebody extends it, it ends in {left}"
            )
        }
        HoldState::Cooling => format!(
            "nobody holds it: {whose} had it last, and for its minimum, or the delay after a crash, it is granted \
             again in {left}"
        ),
        HoldState::HandedOver => {
            format!("{whose} has handed it over, and it waits to be adopted, for {left} at most")
        }
    })
}

/// Why there is nothing to adopt, in words.
fn why_not_handed_over(absence: Absence) -> &'static str {
    match absence {
        Absence::Free => "nobody has handed it over, or the time to adopt it is over",
        Absence::Taken | Absence::Revoked => {
            "somebody else has it: it was adopted already, or the time for that is over"
        }
    }
}

/// Why a lock was lost, in words.
#[must_use]
pub fn why_lost(loss: Loss) -> &'static str {
    match loss {
        Loss::LeaseEnded => "its lease ended before it could be renewed",
        Loss::NotHeld(Absence::Free) => "the store does not have it any more",
        Loss::NotHeld(Absence::Taken) => "someone else holds it now",
        Loss::NotHeld(Absence::Revoked) | Loss::Revoked => "an operator revoked it",
        Loss::HeldAtMost => "it was held for as long as it may be (hold at most)",
        Loss::Forked => "a forked child does not hold what its parent does",
        Loss::Cloned => "another process runs with this session's identity",
    }
}

/// What a failed call did to the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing.
    NotApplied,
    /// Unknown: the answer was lost. The warden releases by token before anything else (G6).
    Unknown,
}

/// Why a store cannot serve now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// No connection could be made (refused, no such host, timed out, no such socket).
    Unreachable,
    /// The connection broke, or went silent.
    Disconnected,
    /// It is a replica, or was made read-only (READONLY), or has too few replicas (NOREPLICAS).
    ReadOnly,
    /// It is out of memory (OOM), or its disk is full (MISCONF).
    OutOfMemory,
    /// It is loading its data, or busy with a script (LOADING, BUSY, MASTERDOWN, TRYAGAIN …).
    Loading,
    /// Another process keeps the embedded store's database locked.
    Blocked,
    /// It answered something that the protocol does not know.
    Protocol,
}

/// What a store refuses or fails at.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// It cannot serve now; a later try may succeed.
    #[error("the store {place} is unavailable ({trouble}): {detail}")]
    Unavailable {
        /// Where the store is.
        place: String,
        /// What kind of trouble.
        trouble: Trouble,
        /// The store's or the system's own words.
        detail: String,
        /// What became of the command.
        effect: Effect,
    },
    /// It refuses us: password, permissions, someone else's directory. Trying again does not help.
    #[error("the store {place} refuses us: {detail}")]
    Denied {
        /// Where the store is.
        place: String,
        /// What is missing, and how to get it.
        detail: String,
    },
    /// The name or the settings cannot be served by this store. Trying again does not help.
    #[error("{detail}")]
    Invalid {
        /// The value and the rule that it breaks.
        detail: String,
    },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trouble::Unreachable => "unreachable",
            Trouble::Disconnected => "disconnected",
            Trouble::ReadOnly => "read-only",
            Trouble::OutOfMemory => "out of memory",
            Trouble::Loading => "loading or busy",
            Trouble::Blocked => "blocked",
            Trouble::Protocol => "protocol",
        })
    }
}
