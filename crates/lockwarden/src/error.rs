//! What can go wrong, as types. One message never stands for several causes (G10).

use std::fmt;
use thiserror::Error;

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
