//! What this process has open of file stores: its sessions, and its databases.
//!
//! Two things make that a matter of the whole process. Record locks belong to the process, and
//! closing any descriptor of a file frees them: so the process must know its own sessions from
//! memory, and never touch their files (R40). And SQLite keeps records of the process's locks that a
//! forked child would inherit without the locks: so every database is closed before a fork, and
//! opened again where it is next used (R24).

use super::{database::Slot, place::Identity};
use crate::fork;
use lockwarden_core::SessionId;
use std::{
    cell::RefCell,
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
    },
};

static OWN: Mutex<Option<Own>> = Mutex::new(None);
/// Read by whoever is inside SQLite, written by whoever forks. Taken before all else.
static GATE: RwLock<()> = RwLock::new(());

/// Keeps forks away while it is held. SQLite must be opened, used and closed only so.
pub(super) fn unforked() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// What this process has open.
#[derive(Default)]
pub(super) struct Own {
    /// Folder and id of each session that is, or is about to be, alive here.
    sessions: HashSet<(Identity, SessionId)>,
    /// The databases of the links.
    slots: Vec<Weak<Slot>>,
    /// Whose this is: the copy of a process that was forked without notice owns nothing.
    pid: u32,
}

/// The process's own list. While it is held no other thread opens or closes a session.
pub(super) struct Held(MutexGuard<'static, Option<Own>>);

/// Looks at what this process has open.
pub(super) fn hold() -> Held {
    static WATCH_FORKS: Once = Once::new();
    WATCH_FORKS.call_once(watch_forks);
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if own.as_ref().is_none_or(|own| own.pid != pid) {
        *own = Some(Own { pid, ..Own::default() });
    }
    Held(own)
}

impl Held {
    /// Is the session one of this process?
    pub(super) fn has(&self, folder: Identity, session: &SessionId) -> bool {
        self.0.as_ref().is_some_and(|own| own.sessions.contains(&(folder, session.clone())))
    }

    /// Notes a session, before its file is opened. False: it is there already.
    pub(super) fn add(&mut self, folder: Identity, session: &SessionId) -> bool {
        self.0.as_mut().is_some_and(|own| own.sessions.insert((folder, session.clone())))
    }

    /// Forgets a session, after its file was closed.
    pub(super) fn remove(&mut self, folder: Identity, session: &SessionId) {
        if let Some(own) = self.0.as_mut() {
            own.sessions.remove(&(folder, session.clone()));
        }
    }

    /// Notes a database, so that a fork closes it.
    pub(super) fn add_database(&mut self, slot: &Arc<Slot>) {
        if let Some(own) = self.0.as_mut() {
            own.slots.retain(|slot| slot.strong_count() > 0);
            own.slots.push(Arc::downgrade(slot));
        }
    }
}

/// What the forking thread holds during the fork, so that the child finds every lock free.
struct Forking {
    own: MutexGuard<'static, Option<Own>>,
    _gate: RwLockWriteGuard<'static, ()>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    // A transaction of another thread is waited for; none lasts longer than its own work.
    let gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    for slot in own.iter().flat_map(|own| &own.slots) {
        if let Some(slot) = slot.upgrade() {
            slot.close();
        }
    }
    // Held until after the fork: none is opened again before.
    let _ = FORKING.try_with(|forking| forking.replace(Some(Forking { own, _gate: gate })));
}

extern "C" fn after_fork_in_parent() {
    let _ = FORKING.try_with(|forking| forking.replace(None));
}

extern "C" fn after_fork_in_child() {
    let _ = FORKING.try_with(|forking| {
        if let Some(mut forking) = forking.replace(None) {
            // The sessions are the parent's; so are the links, which notice by themselves.
            *forking.own = None;
        }
    });
}

fn watch_forks() {
    // They lock, close, and free memory: in the parent before the fork, or in the thread that forked, with
    // every lock that it needs in hand.
    if !fork::watch(Some(before_fork), Some(after_fork_in_parent), after_fork_in_child) {
        tracing::warn!("forks go unnoticed: the file store must not be used in forked children");
    }
}
