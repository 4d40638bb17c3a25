//! The constants of the protocol and the limits of its values, each once.

use thiserror::Error;

/// W, in ms: how long one counting beat is believed, and how long the guard lasts after a new
/// epoch. A constant of the protocol, no setting (R1): a holder and a store that disagreed about
/// it would break G1 in silence.
pub const W_MS: u64 = 3_000;
/// How often a session beats, in ms (R19).
pub const BEAT_MS: u64 = W_MS / 3;
/// The lease of a lock when the caller names none, in ms.
pub const DEFAULT_LEASE_MS: u64 = 30_000;
/// The grace of a lock when the caller names none, in ms: W, which is also the least (R1).
pub const DEFAULT_GRACE_MS: u64 = W_MS;
/// The shortest lease, in ms. Under it, `check()` could hardly ever be true.
pub const MIN_LEASE_MS: u64 = 100;
/// The shortest lease of the drop-ins, whose models allow it; `check()` may never be true then.
pub const MIN_DROP_IN_LEASE_MS: u64 = 1;
/// The longest lease and the longest grace: thirty days, in ms. A longer one is a mistyped unit
/// (seconds given as milliseconds reach it in a working day), and would outlive its operators.
pub const MAX_LEASE_MS: u64 = 30 * 24 * 3_600 * 1_000;
/// The longest wait: a hundred years, in ms. More is refused rather than wrapped.
pub const MAX_WAIT_MS: u64 = 100 * 365 * 24 * 3_600 * 1_000;
/// How far ahead of the store's clock a caller's fence floor may be, in µs: one day (R34).
pub const MAX_FLOOR_AHEAD_US: u64 = 24 * 3_600 * 1_000_000;
/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 4_096;
/// The longest token, in bytes: the drop-ins take the caller's value as the token.
pub const MAX_TOKEN_BYTES: usize = 4_096;
/// The longest label, in bytes.
pub const MAX_LABEL_BYTES: usize = 256;
/// What the companions and channels of the locks begin with; no name may (R2).
pub const RESERVED: &str = "lockwarden:";
/// How long an endless lock is kept whose holder has not shown itself since the server began anew, in ms (R15).
pub const UNSEEN_ENDLESS_MS: u64 = 30_000;
/// How long a queue lives without a recheck, in ms (R28).
pub const QUEUE_TTL_MS: u64 = 60_000;
/// A holder is asked at most this often whether it still wants its lock, in ms (R16).
pub const ASK_EVERY_MS: u64 = 1_000;
/// Tickets that one command looks at: drops before it answers [`crate::Reply::More`], passes, or serves (R26); and how
/// many of those who hold a lock together it looks after.
pub const DROPS_PER_COMMAND: usize = 64;
/// The most names that one request may ask for at once (R29).
pub const MOST_NAMES: usize = 1_000;
/// The most permits that a lock may have.
pub const MOST_PERMITS: u32 = 1_000_000;
/// Of how many holders that are in its way a refused request is told.
pub const MOST_HOLDERS_TOLD: usize = 16;

/// The longest site of an acquire, in bytes; of a longer one the front is cut.
pub const MAX_SITE_BYTES: usize = 200;
/// The most tags of one acquisition.
pub const MOST_TAGS: usize = 16;
/// The longest key of a tag, in bytes.
pub const MAX_TAG_KEY_BYTES: usize = 64;
/// The longest value of a tag, in bytes.
pub const MAX_TAG_VALUE_BYTES: usize = 256;
/// The most of all keys and values of one acquisition's tags, in bytes: they stand in each record and ticket.
pub const MAX_TAGS_BYTES: usize = 1_024;

/// The longest owner id, in bytes.
pub const MAX_OWNER_BYTES: usize = 512;
/// The most places where the parts of one owner wait, before those of the dead are forgotten (R37).
pub const MOST_PLACES: usize = 64;
/// The most owners in one cycle that is found, and that one search looks at (G7).
pub const LONGEST_CYCLE: usize = 256;

/// A length of time that breaks its rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what} of {given_ms} ms is out of range: {least_ms} ms to {most_ms} ms")]
pub struct OutOfRange {
    /// Which length: `lease`, `grace`, `wait`, `hold at most`, `hold at least`, `lock delay`.
    pub what: &'static str,
    /// The value that was given, in ms.
    pub given_ms: u64,
    /// The least allowed, in ms.
    pub least_ms: u64,
    /// The most allowed, in ms.
    pub most_ms: u64,
}

/// More names than one request may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{given} locks were asked for at once: at most {MOST_NAMES} may be")]
pub struct TooManyNames {
    /// How many were given, each counted once.
    pub given: usize,
}

/// Checks how many names one request asks for: [`MOST_NAMES`] at most.
pub fn names(given: usize) -> Result<usize, TooManyNames> {
    if given > MOST_NAMES { Err(TooManyNames { given }) } else { Ok(given) }
}

/// Checks that a lease is at least `least_ms` and at most [`MAX_LEASE_MS`].
pub fn lease(given_ms: u64, least_ms: u64) -> Result<u64, OutOfRange> {
    within("lease", given_ms, least_ms, MAX_LEASE_MS)
}

/// Checks a grace: W at least (R1), [`MAX_LEASE_MS`] at most.
pub fn grace(given_ms: u64) -> Result<u64, OutOfRange> {
    within("grace", given_ms, W_MS, MAX_LEASE_MS)
}

/// Checks a wait: [`MAX_WAIT_MS`] at most. 0 is one try.
pub fn wait(given_ms: u64) -> Result<u64, OutOfRange> {
    within("wait", given_ms, 0, MAX_WAIT_MS)
}

/// Checks how long a lock may be held at most: at least `least_ms`, as a lease; a wait's length at most.
pub fn at_most(given_ms: u64, least_ms: u64) -> Result<u64, OutOfRange> {
    within("hold at most", given_ms, least_ms, MAX_WAIT_MS)
}

/// Checks how long a lock is held at least: as long as a lease may be at most; 0: no minimum.
pub fn at_least(given_ms: u64) -> Result<u64, OutOfRange> {
    within("hold at least", given_ms, 0, MAX_LEASE_MS)
}

/// Checks the delay after a crash: as long as a lease may be at most; 0: none.
pub fn delay(given_ms: u64) -> Result<u64, OutOfRange> {
    within("lock delay", given_ms, 0, MAX_LEASE_MS)
}

/// How many permits were asked for, of how many.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{count} of {of} permits are out of range: 1 at least, no more than there are, which are {MOST_PERMITS} at most"
)]
pub struct PermitsOutOfRange {
    /// How many were asked for.
    pub count: u32,
    /// How many there are said to be.
    pub of: u32,
}

/// Checks permits: one of one at least, [`MOST_PERMITS`] at most.
pub fn permits(count: u32, of: u32) -> Result<(), PermitsOutOfRange> {
    match (1..=of).contains(&count) && of <= MOST_PERMITS {
        true => Ok(()),
        false => Err(PermitsOutOfRange { count, of }),
    }
}

fn within(
    what: &'static str,
    given_ms: u64,
    least_ms: u64,
    most_ms: u64,
) -> Result<u64, OutOfRange> {
    if (least_ms..=most_ms).contains(&given_ms) {
        Ok(given_ms)
    } else {
        Err(OutOfRange { what, given_ms, least_ms, most_ms })
    }
}
