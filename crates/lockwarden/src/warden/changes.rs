//! What a held lock becomes beside being renewed and released: converted, handed over, given back for others.

use super::{
    acquisition::{Acquisition, Ending},
    outbox::Purpose,
    state::State,
};
use crate::{
    clock,
    error::{Effect, Error},
};
use lockwarden_core::{
    Command, Name, Token,
    command::Mode,
    keeper::{HandleId, State as Belief},
};
use std::sync::Arc;

/// A guard that is not the only one of its acquisition can do less.
pub(super) const MORE_GUARDS: &str = "the lock's owner holds it by more than one guard: only the last can hand it over or change \
                           its mode";

impl State {
    /// Gives back a token of the store's that nobody here holds or waits for (R16): any more, if it is lost.
    pub(super) fn disown(&mut self, name: &Name, token: &Token, lost: bool) {
        let names = || (name.clone(), Arc::default(), token.clone());
        if !lost {
            // What nobody had has no minimum. (Under a caller's value this finds nothing.)
            let (name, also, token) = names();
            let proof = Arc::default();
            self.push(Purpose::Disown(Command::Cancel { name, also, token, proof }));
        }
        let (name, also, token) = names();
        self.push(Purpose::Disown(Command::Release { name, also, token, lost }));
    }

    /// Nobody will adopt what was handed over under this token, or is being: the caller does not know it.
    pub(super) fn take_back(&mut self, id: HandleId, (name, also): (Name, Arc<[Name]>), to: Token) {
        if self.ended {
            return;
        }
        if let Some(leaving) = self.acquisitions.get_mut(&id).and_then(|it| it.leaving.as_mut())
            && matches!(leaving.how, Ending::HandOver { .. })
        {
            // It may be carried out yet.
            leaving.unwanted = true;
            return;
        }
        let command = Command::Release { name, also, token: to, lost: false };
        self.push(Purpose::TakeOver(command, None));
    }

    /// The command that has it held in another mode, by that token if it is held alone.
    pub(super) fn convert(
        &mut self,
        id: HandleId,
        to: Mode,
        new_token: &Token,
    ) -> Result<Command, Error> {
        let acquisition = self.acquisitions.get_mut(&id).ok_or(Error::Closed)?;
        let ask = &mut acquisition.ask;
        if !ask.also.is_empty() {
            let rule = "only a lock that is held alone can change its mode";
            return Err(Error::Invalid(format!("{rule}, and {} are held", 1 + ask.also.len())));
        }
        if self.owners.is_shared(id) {
            return Err(Error::Invalid(MORE_GUARDS.into()));
        }
        if let Some(Belief::Lost(loss)) = self.keeper.state_at(id, clock::now_us()) {
            return Err(Error::Lost { name: ask.name.clone(), loss });
        }
        let (name, token) = (ask.name.clone(), ask.token.clone());
        if !ask.proof.is_empty() {
            let rule = "a lock with a drop-in value is held exclusively, and stays so";
            return Err(Error::Invalid(format!("{rule}: {name}")));
        }
        let in_use = ask.mode_at(0);
        if matches!(in_use, Mode::Permits { .. }) {
            return Err(Error::OtherMode { name, asked: to, in_use });
        }
        let floor = ask.floor.max(self.floor);
        if to == Mode::Shared {
            // Whatever becomes of it, its owner does not write any more.
            ask.modes = [to].into();
        } else if !acquisition.listeners().perhaps.contains(new_token) {
            // Registered before it leaves: what somebody asks about is not disowned while we may believe in it (R16).
            acquisition.listeners().perhaps.push(new_token.clone());
            acquisition.listeners().upgraded_us = u64::MAX;
            self.ids.insert(new_token.clone(), id);
        }
        let new_token = new_token.clone();
        Ok(Command::Convert { name, token, to, new_token, floor })
    }

    /// It is held in that mode now, by that token.
    pub(super) fn converted(&mut self, id: HandleId, to: Mode, token: &Token, fence: u64) {
        self.floor = self.floor.max(fence);
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        acquisition.fence = fence;
        acquisition.ask.modes = [to].into();
        if acquisition.ask.token != *token {
            let before = std::mem::replace(&mut acquisition.ask.token, token.clone());
            acquisition.listeners().perhaps.retain(|it| it != token);
            acquisition.listeners().upgraded_us = clock::now_us();
            self.ids.remove(&before);
        }
    }

    /// A conversion failed, or its outcome is not known: then the store may know the lock by the new token. Our renewals
    /// find that out.
    pub(super) fn not_converted(&mut self, id: HandleId, new_token: &Token, error: Option<&Error>) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        if acquisition.ask.token == *new_token {
            // A downgrade.
        } else if error.is_some_and(|error| error.effect() == Effect::NotApplied) {
            acquisition.listeners().perhaps.retain(|it| it != new_token);
            acquisition.listeners().upgraded_us = 0;
            self.ids.remove(new_token);
        } else {
            acquisition.listeners().upgraded_us = clock::now_us();
        }
        if let Some(Error::Lost { loss, .. }) = error {
            self.keeper.lost(id, *loss);
            self.wake();
        }
    }

    /// The locks of an acquisition, and how they are held.
    pub(super) fn wants(&self, id: HandleId) -> Vec<(Name, Mode)> {
        let wants = |it: &Acquisition| {
            it.ask.wants().map(|(name, mode)| (name.clone(), mode)).collect::<Vec<_>>()
        };
        self.acquisitions.get(&id).map(|it| wants(it)).unwrap_or_default()
    }
}
