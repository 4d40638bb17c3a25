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

/// One watch per set of processes, however many locks they hold.
pub(super) struct Watching {
    /// Where the store is, for messages.
    pub(super) place: String,
    enabled: bool,
    own_session: SessionId,
    shared: Weak<Shared>,
    holders: HashMap<Name, (Holder, Arc<[Process]>)>,
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

    /// We wait for this lock, and this is its holder now; none: we do not know one, or do not wait
    /// any more. Runs in the driver's runtime.
    pub(super) fn holder(&mut self, name: &Name, holder: Option<&HolderView>) {
        let watched = holder.and_then(|view| self.watchable(name, view));
        if self.holders.get(name) == watched.as_ref() {
            return;
        }
        if let Some((_, processes)) = self.holders.remove(name)
            && let Some(watch) = self.watches.get_mut(&processes)
        {
            watch.names.remove(name);
            if watch.names.is_empty() {
                watch.task.abort();
                self.watches.remove(&processes);
            }
        }
        let Some((holder, processes)) = watched else { return };
        let names = match self.watches.get_mut(&processes) {
            Some(watch) => &mut watch.names,
            None => {
                let Some(task) = self.start(processes.clone()) else { return };
                let watch = Watch { task, names: HashSet::new() };
                &mut self.watches.entry(processes.clone()).or_insert(watch).names
            }
        };
        names.insert(name.clone());
        self.holders.insert(name.clone(), (holder, processes));
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
            let held = watch.names.iter().filter_map(|name| self.holders.remove(name));
            taken.push((processes, held.map(|(holder, _)| holder).collect()));
        }
        taken
    }

    fn watchable(&self, name: &Name, view: &HolderView) -> Option<(Holder, Arc<[Process]>)> {
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
