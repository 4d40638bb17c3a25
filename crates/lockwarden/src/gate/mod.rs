//! Gates: the protected resource itself refuses a fence that is smaller than the newest it has seen.
//!
//! A lock alone cannot keep a holder from writing late that was stopped between its last `check()` and
//! its write: a paused process, a full network queue. The fence of its grant can, where the resource
//! compares: fences grow with every grant of a name (G2), so a smaller one than the newest comes from a
//! holder that has been followed. An equal one is the same grant and passes; it may write many times.
//! The idea and the name "fencing token" are Martin Kleppmann's, *How to do distributed locking*, 2016
//! (<https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>).
//!
//! | resource | gate |
//! |---|---|
//! | a Redis key | [`redis`]: one script compares and writes |
//! | a row, or anything in a database | [`sql`]: one statement compares and writes |
//! | a file | [`file`]: replaced atomically |
//! | an HTTP service | `http`, with the feature `tower`: a layer before the handlers |
//! | your own | [`compare`], in the same atomic step as the write |
//!
//! Which gate for which resource, and what a gate cannot do: `docs/GATES.md`. A gate must not ask the
//! lock's store anything: it works where the store cannot be reached, and after it lost its data.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use lockwarden::{Warden, gate};
//!
//! let dir = tempfile::tempdir()?;
//! let report = gate::file::Gate::at(dir.path().join("report.csv"));
//! let warden = Warden::connect("memory:").await?;
//!
//! let guard = warden.lock("report").acquire().await?;
//! report.replace(guard.fence(), b"day,sum\n")?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

pub mod file;
#[cfg(feature = "tower")]
pub mod http;
pub mod redis;
pub mod sql;

use crate::error::Effect;
use thiserror::Error;

/// The largest fence that a gate takes: 2^53 - 1. Up to it a double, which is all that Lua and
/// JavaScript have, is exact. Fences are µs since 1970 (R34), so this is the year 2255.
pub const MAX_FENCE: u64 = (1 << 53) - 1;

/// The fence is older than the newest that the resource has seen: its holder has lost the lock, and
/// another has written since. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error(
    "fence {fence} is stale: the resource has seen {newest}. The lock was lost and granted again: stop; to go on, \
     acquire it anew with fence_floor({newest})"
)]
pub struct Stale {
    /// The fence that was refused.
    pub fence: u64,
    /// The newest that the resource has seen.
    pub newest: u64,
}

/// Why a gate let nothing through.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The fence is stale.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// An argument breaks its rule.
    #[error("{argument}: {why}")]
    Invalid {
        /// Which.
        argument: &'static str,
        /// The rule.
        why: String,
    },
    /// The resource, or what stands beside it in the place of its fence, is nothing that this gate can
    /// keep. Trying again does not help.
    #[error("{place} cannot be gated: {why}")]
    Unfit {
        /// The resource.
        place: String,
        /// What is in the way, and what to do.
        why: String,
    },
    /// The gate cannot answer now. Whether the write happened is unknown; the same write with the same
    /// fence may be tried again, for an equal fence passes.
    #[error("the gate of {place} cannot answer now: {why}")]
    Unavailable {
        /// The resource.
        place: String,
        /// What is in the way.
        why: String,
    },
}

impl Error {
    /// The stable code of the error, as in `docs/ERRORS.md`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::Stale(_) => "stale",
            Error::Invalid { .. } => "invalid",
            Error::Unfit { .. } => "unfit",
            Error::Unavailable { .. } => "unavailable",
        }
    }

    /// May the same write succeed later, with nothing changed by the caller?
    #[must_use]
    pub fn retry_helps(&self) -> bool {
        matches!(self, Error::Unavailable { .. })
    }

    /// What became of the write.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Error::Unavailable { .. } => Effect::Unknown,
            _ => Effect::NotApplied,
        }
    }

    pub(crate) fn invalid(argument: &'static str, why: impl Into<String>) -> Error {
        Error::Invalid { argument, why: why.into() }
    }
}

/// The comparison that every gate makes; `newest` is 0 where the resource has seen none. For a gate of
/// your own: compare, keep the larger fence and write, all in one atomic step of the resource.
///
/// ```
/// use lockwarden::gate::{compare, Error, Stale};
///
/// assert_eq!(compare(7, 0), Ok(()));
/// assert_eq!(compare(7, 7), Ok(())); // the same grant
/// assert_eq!(compare(7, 8), Err(Error::Stale(Stale { fence: 7, newest: 8 })));
/// ```
///
/// # Errors
/// [`Error::Stale`]; [`Error::Invalid`] for a fence that no grant has: 0, or above [`MAX_FENCE`].
pub fn compare(fence: u64, newest: u64) -> Result<(), Error> {
    valid(fence)?;
    if fence < newest { Err(Stale { fence, newest }.into()) } else { Ok(()) }
}

/// A fence that a grant can have.
fn valid(fence: u64) -> Result<(), Error> {
    match fence {
        0 => Err(Error::invalid("fence", "0 is no grant's fence: take Guard::fence")),
        1..=MAX_FENCE => Ok(()),
        _ => Err(Error::invalid("fence", format!("{fence} is above {MAX_FENCE} (2^53 - 1)"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bad_fences_are_typed_errors() {
        for fence in [0, MAX_FENCE + 1, u64::MAX] {
            let error = compare(fence, 0).unwrap_err();
            assert!(matches!(error, Error::Invalid { argument: "fence", .. }), "{error}");
        }
        assert_eq!(compare(MAX_FENCE, MAX_FENCE), Ok(()));
    }

    #[test]
    fn a_refusal_says_what_happened_and_what_to_do() {
        let text = compare(5, 7).unwrap_err().to_string();
        for part in ["fence 5", "seen 7", "stop", "fence_floor(7)"] {
            assert!(text.contains(part), "{text}");
        }
    }

    proptest! {
        /// G2 at the resource: whatever comes in whatever order, the newest never goes back.
        #[test]
        fn the_newest_never_goes_back(fences in prop::collection::vec(1..=MAX_FENCE, 1..40)) {
            let mut newest = 0;
            for fence in fences {
                match compare(fence, newest) {
                    Ok(()) => {
                        prop_assert!(fence >= newest);
                        newest = fence;
                    }
                    Err(error) => prop_assert_eq!(error, Stale { fence, newest }.into()),
                }
                prop_assert_eq!(compare(newest, newest), Ok(()));
            }
        }
    }
}
