//! Who holds or waits, as a person and a process watch need to know it.

use std::sync::Arc;

/// The description of a holder or a waiter. Shown and watched, never a proof of ownership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Party {
    /// The owner: which line of execution it is, among all sessions. Acquisitions of one owner can be part of a
    /// deadlock together (G7). Empty: each stands for itself. See [`crate::name::owner`].
    pub owner: Arc<str>,
    /// What a person reads: a task id, a name. May be empty.
    pub label: Arc<str>,
    /// The name of the host.
    pub host: Arc<str>,
    /// The processes that keep the lock wanted: while one of them lives, the lock is not stale
    /// (R38). Each as [`Process`] writes it; the first is the session's own.
    pub processes: Arc<[Process]>,
}

impl Party {
    /// The pid of the session's own process, if it is known.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.processes.first().map(|process| process.pid)
    }
}

/// One process, for ever: pids are reused and live in namespaces, so a pid alone is none (R38).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Where its pid and start mean something: a digest of the machine's boot id, the pid namespace and the
    /// time namespace (which shifts start times). Empty: unknown.
    pub namespace: Arc<str>,
    /// The pid inside its namespace.
    pub pid: u32,
    /// When it started, in clock ticks after boot (`/proc/PID/stat`, field 22); 0: unreadable.
    pub start: u64,
}
