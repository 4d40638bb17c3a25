//! The process watch: whose death would free a lock that we wait for (R38, R39).

use super::Shared;
use crate::process::{self, Watcher};
use lockwarden_core::{
    Name, SessionId, Token,
    command::{HoldState, HolderView, RecordView},
    party::Process,
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};
use tokio::task::AbortHandle;

/// The holder of a lock that we wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) name: Name,
    pub(super) token: Token,
    pub(super) session: SessionId,
}

/// A holder, and the processes whose life keeps its lock.
type Watched = (Holder, Arc<[Process]>);

/// One watch per set of processes, however many locks they hold.
pub(super) struct Watching {
    /// Where the store is, for messages.
    pub(super) place: String,
    enabled: bool,
    own_session: SessionId,
    shared: Weak<Shared>,
    /// Of each lock that we wait for.
    holders: HashMap<Name, Vec<Watched>>,
    watches: HashMap<Arc<[Process]>, Watch>,
    dead: HashSet<Arc<[Process]>>,
    watcher: Watcher,
}

struct Watch {
    task: AbortHandle,
    names: HashSet<Name>,
}

impl Watching {
    pub(super) fn new(
        place: String,
        enabled: bool,
        own_session: SessionId,
        shared: Weak<Shared>,
    ) -> Watching {
        Watching {
            place,
            enabled,
            own_session,
            shared,
            holders: HashMap::new(),
            watches: HashMap::new(),
            dead: HashSet::new(),
            watcher: Watcher::new(),
        }
    }

    /// We wait for this lock, and these hold it now, as far as we know; none: nobody does, or we do not wait any
    /// more. Runs in the driver's runtime.
    pub(super) fn holders<'a>(
        &mut self,
        name: &Name,
        holders: impl IntoIterator<Item = &'a HolderView>,
    ) {
        let watched: Vec<_> =
            holders.into_iter().filter_map(|view| self.watchable(name, view)).collect();
        if self.holders.get(name).map_or(&[][..], |known| known) == watched {
            return;
        }
        // First the new ones, so that a process that stays is watched without a gap.
        let watched: Vec<_> =
            watched.into_iter().filter(|(_, processes)| self.watch(name, processes)).collect();
        let before = self.holders.remove(name).unwrap_or_default();
        for (_, processes) in before {
            if watched.iter().any(|(_, still)| *still == processes) {
                continue;
            }
            if let Some(watch) = self.watches.get_mut(&processes) {
                watch.names.remove(name);
                if watch.names.is_empty() {
                    watch.task.abort();
                    self.watches.remove(&processes);
                }
            }
        }
        if !watched.is_empty() {
            self.holders.insert(name.clone(), watched);
        }
    }

    /// Watches these processes for the sake of this lock; false: it cannot.
    fn watch(&mut self, name: &Name, processes: &Arc<[Process]>) -> bool {
        let names = match self.watches.get_mut(processes) {
            Some(watch) => &mut watch.names,
            None => {
                let Some(task) = self.start(processes.clone()) else { return false };
                let watch = Watch { task, names: HashSet::new() };
                &mut self.watches.entry(processes.clone()).or_insert(watch).names
            }
        };
        names.insert(name.clone());
        true
    }

    /// The holder's session, if all its processes are proven dead now (R39).
    pub(super) fn died(&self, holder: &HolderView) -> Option<SessionId> {
        let record = holder.record.as_ref().filter(|record| self.is_somebodys(record))?;
        let dead =
            record.session != self.own_session && process::have_ended(&record.party.processes);
        dead.then(|| record.session.clone())
    }

    /// The holders whose processes have ended since.
    pub(super) fn take_dead(&mut self) -> Vec<(Arc<[Process]>, Vec<Holder>)> {
        let mut taken = Vec::new();
        for processes in std::mem::take(&mut self.dead) {
            let Some(watch) = self.watches.remove(&processes) else { continue };
            let mut held = Vec::new();
            for name in &watch.names {
                let Some(holders) = self.holders.get_mut(name) else { continue };
                held.extend(holders.extract_if(.., |(_, its)| *its == processes));
                if holders.is_empty() {
                    self.holders.remove(name);
                }
            }
            taken.push((processes, held.into_iter().map(|(holder, _)| holder).collect()));
        }
        taken
    }

    fn watchable(&self, name: &Name, view: &HolderView) -> Option<Watched> {
        let record = view.record.as_ref().filter(|record| self.is_somebodys(record))?;
        if record.session == self.own_session || self.is_own(&record.party.processes) {
            return None;
        }
        let (token, session) = (view.token.clone(), record.session.clone());
        Some((Holder { name: name.clone(), token, session }, record.party.processes.clone()))
    }

    /// May it end by somebody's death? What cools or was handed over is nobody's (R32, R33).
    fn is_somebodys(&self, record: &RecordView) -> bool {
        self.enabled && matches!(record.state, HoldState::Held | HoldState::Revoked)
    }

    /// This very process keeps it: another warden of ours, whose death would be ours.
    fn is_own(&self, processes: &[Process]) -> bool {
        processes.contains(&process::current())
    }

    fn start(&self, processes: Arc<[Process]>) -> Option<AbortHandle> {
        let shared = self.shared.clone();
        // Only the driver learns of holders, and it runs in a runtime.
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let watch = self.watcher.watch(&processes)?;
        let task = runtime.spawn(async move {
            watch.ended().await;
            if let Some(shared) = shared.upgrade() {
                let mut state = shared.state();
                state.watching.dead.insert(processes);
                state.wake();
            }
        });
        Some(task.abort_handle())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        for watch in self.watches.values() {
            watch.task.abort();
        }
    }
}
