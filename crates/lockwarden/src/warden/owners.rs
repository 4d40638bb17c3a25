//! What owners hold more than once (see [`super::Lock::owner`]): counted here, for an owner's acquisitions
//! through one warden are one acquisition to the store.

use lockwarden_core::{Name, keeper::HandleId};
use std::{collections::HashMap, sync::Arc};

/// How often one owner may hold a lock at once: more is a loop that forgot to release.
pub(super) const MOST_ENTRIES: usize = 1_000;

/// The acquisitions that have an owner and are held.
#[derive(Default)]
pub(super) struct Owners {
    held: HashMap<(Arc<str>, Name), HandleId>,
    /// For each guard, the acquisition that it is a part of.
    entries: HashMap<HandleId, HandleId>,
    /// How many guards each of these acquisitions has.
    counts: HashMap<HandleId, usize>,
}

/// What it means that a guard goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The acquisition ends: this one.
    Last(HandleId),
    /// Other guards of its owner still hold it.
    More(HandleId),
}

impl Owners {
    /// The owner holds these locks by that acquisition, with one guard so far.
    pub(super) fn acquired<'a>(
        &mut self,
        owner: &Arc<str>,
        names: impl Iterator<Item = &'a Name>,
        id: HandleId,
    ) {
        self.held.extend(names.map(|name| ((owner.clone(), name.clone()), id)));
        self.entries.insert(id, id);
        self.counts.insert(id, 1);
    }

    /// By which one acquisition the owner holds all these locks.
    pub(super) fn held<'a>(
        &self,
        owner: &Arc<str>,
        mut names: impl Iterator<Item = &'a Name>,
    ) -> Option<HandleId> {
        if self.held.is_empty() {
            return None;
        }
        let mut id_of = |name: &Name| self.held.get(&(owner.clone(), name.clone())).copied();
        let id = names.next().and_then(&mut id_of)?;
        names.all(|name| id_of(name) == Some(id)).then_some(id)
    }

    /// One guard more of an acquisition; false: there are too many.
    pub(super) fn enter(&mut self, entry: HandleId, id: HandleId) -> bool {
        let count = self.counts.entry(id).or_default();
        if *count >= MOST_ENTRIES {
            return false;
        }
        *count += 1;
        self.entries.insert(entry, id);
        true
    }

    /// Has an acquisition more than one guard?
    pub(super) fn is_shared(&self, id: HandleId) -> bool {
        self.counts.get(&id).is_some_and(|count| *count > 1)
    }

    /// A guard goes. One that is not counted here is its acquisition's only one.
    pub(super) fn leave(&mut self, entry: HandleId) -> Left {
        let Some(id) = self.entries.remove(&entry) else { return Left::Last(entry) };
        let Some(count) = self.counts.get_mut(&id) else { return Left::Last(id) };
        *count -= 1;
        if *count == 0 { Left::Last(id) } else { Left::More(id) }
    }

    /// An acquisition is over, whatever guards it still has.
    pub(super) fn ended<'a>(
        &mut self,
        owner: &Arc<str>,
        names: impl Iterator<Item = &'a Name>,
        id: HandleId,
    ) {
        let Some(left) = self.counts.remove(&id) else { return };
        // Seldom: the guards go before their acquisition does.
        if left > 0 {
            self.entries.retain(|_, of| *of != id);
        }
        for name in names {
            let key = (owner.clone(), name.clone());
            if self.held.get(&key) == Some(&id) {
                self.held.remove(&key);
            }
        }
    }
}
