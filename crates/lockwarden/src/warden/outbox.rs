//! What must be sent, in order, and what was sent and not yet answered.

use super::acquisition::{Ending, Phase};
use super::state::{Listing, State};
use crate::{
    clock,
    error::{Effect, Error, StoreError},
    store::Call,
};
use lockwarden_core::{
    Command, Reply,
    command::{self, Renew},
    keeper::HandleId,
};
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// What a command on its way is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// A heartbeat, by its number.
    Beat(u64),
    Acquire(HandleId),
    Renew(HandleId, u64),
    Leave(HandleId),
    /// Someone asked about a token that nobody here wants (R16).
    Disown(Command),
    /// Proof of death (R32), and for whom it was found out.
    TakeOver(Command, Option<HandleId>),
    /// A question of the caller.
    Ask(Command, oneshot::Sender<Result<Reply, StoreError>>),
    /// The same, where what the store says may be about a lock of ours: it ends at another time.
    ExtendByValue(Command, oneshot::Sender<Result<Reply, StoreError>>),
}

/// A call on the link.
pub(super) struct Sent {
    pub(super) purpose: Purpose,
    pub(super) sent_us: u64,
}

/// The calls on the link that are not answered, by their numbers. Nearly all are answered in the order
/// in which they were sent.
pub(super) struct Flight {
    calls: VecDeque<Option<Sent>>,
    /// The number of the first of them.
    first: u64,
}

impl Default for Flight {
    fn default() -> Flight {
        Flight { calls: VecDeque::new(), first: 1 }
    }
}

impl Flight {
    /// A call leaves; says its number.
    pub(super) fn push(&mut self, sent: Sent) -> u64 {
        self.calls.push_back(Some(sent));
        self.first + self.calls.len() as u64 - 1
    }

    /// The call of this number was answered; none: it is not on the link, or not any more.
    pub(super) fn take(&mut self, call: u64) -> Option<Sent> {
        let index = usize::try_from(call.checked_sub(self.first)?).ok()?;
        let sent = self.calls.get_mut(index)?.take();
        while let Some(None) = self.calls.front() {
            self.calls.pop_front();
            self.first += 1;
        }
        sent
    }

    /// All of them: the link is gone. Their numbers are not used again.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Sent> + use<> {
        self.first += self.calls.len() as u64;
        std::mem::take(&mut self.calls).into_iter().flatten()
    }
}

impl State {
    /// The pages that were asked for, once the link is ready.
    pub(super) fn take_listings(&mut self) -> Vec<Listing> {
        if !self.ready {
            return Vec::new();
        }
        let mut listings = std::mem::take(&mut self.listings);
        listings.retain(|(_, _, reply)| !reply.is_closed());
        listings
    }

    /// A link stands. Beat, renew, then send again what was not answered (R7).
    pub(super) fn link_up(&mut self) {
        self.down = None;
        self.mend = None;
        self.ready = false;
        self.keeper.link_up(clock::now_us());
        // Questions that were not sent keep their turn; all else is asked for anew, in the order
        // in which it came.
        self.outbox.retain(|purpose| {
            matches!(purpose, Purpose::Ask(..) | Purpose::ExtendByValue(..) | Purpose::TakeOver(..))
        });
        let ids: Vec<HandleId> = self.acquisitions.keys().copied().collect();
        for id in ids {
            self.send_again(id);
        }
    }

    /// The link is gone; what it had not answered may or may not have happened.
    pub(super) fn link_down(&mut self, error: StoreError) {
        self.keeper.link_down();
        self.ready = false;
        for sent in self.sent.take_all() {
            match sent.purpose {
                Purpose::Ask(_, reply) | Purpose::ExtendByValue(_, reply) => {
                    let _ = reply.send(Err(error.clone().with_effect(Effect::Unknown)));
                }
                // Nobody else sends it again.
                it @ Purpose::TakeOver(..) => self.outbox.push_back(it),
                _ => {}
            }
        }
        self.no_link(error);
    }

    /// There is no link, and why: every waiter is told. What trying again cannot mend ends its wait
    /// (G10).
    pub(super) fn no_link(&mut self, error: StoreError) {
        let hopeless = !matches!(error, StoreError::Unavailable { .. });
        let ids: Vec<HandleId> = self.acquisitions.keys().copied().collect();
        for id in ids {
            let Some(acquisition) = self.acquisitions.get_mut(&id) else { continue };
            let Some(wait) = &mut acquisition.wait else { continue };
            wait.told.trouble = Some(error.clone());
            wait.report();
            if hopeless {
                self.fail(id, Error::Store(error.clone()));
            }
        }
        self.down = Some(error);
    }

    /// Takes what may be sent now, at most `most` calls, and counts it as sent at this moment.
    pub(super) fn take_calls(&mut self, most: usize) -> Vec<Call> {
        let now_us = clock::now_us();
        // Before any of these was carried out: an epoch begins before the first of them.
        let may_hold = self.may_hold();
        let mut calls = Vec::new();
        let mut later = VecDeque::new();
        while calls.len() < most
            && let Some(purpose) = self.outbox.pop_front()
        {
            if !self.ready && !matches!(purpose, Purpose::Beat(_) | Purpose::Renew(..)) {
                later.push_back(purpose);
                continue;
            }
            let Some(command) = self.command(&purpose, now_us) else { continue };
            if let Purpose::Acquire(id) = purpose
                && let Some(acquisition) = self.acquisitions.get_mut(&id)
                && !std::mem::replace(&mut acquisition.was_sent, true)
            {
                self.acquisitions_sent += 1;
            }
            let id = self.sent.push(Sent { purpose, sent_us: now_us });
            calls.push(Call { id, command, may_hold });
        }
        while let Some(purpose) = later.pop_back() {
            self.outbox.push_front(purpose);
        }
        calls
    }

    /// Is a call on the link that is not answered?
    pub(super) fn expects_answers(&self) -> bool {
        !self.sent.calls.is_empty()
    }

    /// May we hold a lock, or have been granted one (R5)?
    pub(super) fn may_hold(&self) -> bool {
        self.acquisitions_sent > 0
    }

    /// Has the link been of use: was its first beat heard?
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Is anything waiting to be sent that may be sent now?
    pub(super) fn has_calls(&self) -> bool {
        self.outbox
            .iter()
            .any(|it| self.ready || matches!(it, Purpose::Beat(_) | Purpose::Renew(..)))
    }

    /// Sends whatever an acquisition needs again: the same commands, with the same token (G6).
    pub(super) fn send_again(&mut self, id: HandleId) {
        if !self.is_known_to_store(id) {
            return;
        }
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        match acquisition.phase {
            // Renewed by the keeper.
            Phase::Held => self.give_up_endless(id),
            Phase::Leaving => {
                if let Some(leaving) = &mut acquisition.leaving {
                    leaving.repeated = true;
                }
                self.push(Purpose::Leave(id));
            }
            Phase::Asking | Phase::Queued | Phase::Confirming => {
                acquisition.phase = Phase::Asking;
                self.push(Purpose::Acquire(id));
            }
        }
    }

    pub(super) fn push(&mut self, purpose: Purpose) {
        self.outbox.push_back(purpose);
        self.wake();
    }

    /// The command of a purpose, as of now; none: it is moot.
    pub(super) fn command(&self, purpose: &Purpose, now_us: u64) -> Option<Command> {
        match purpose {
            Purpose::Beat(_) => Some(Command::Beat),
            Purpose::Acquire(id) => {
                let acquisition = self.acquisitions.get(id)?;
                let wait = acquisition.wait.as_ref()?;
                let mut ask = acquisition.ask.clone();
                ask.floor = ask.floor.max(self.floor);
                if let (command::Wait::For(_), Some(deadline_us)) = (ask.wait, wait.deadline_us) {
                    ask.wait = command::Wait::For(deadline_us.saturating_sub(now_us) / 1_000);
                }
                Some(Command::Acquire(ask))
            }
            Purpose::Renew(id, lease_ms) => {
                let acquisition = self.acquisitions.get(id)?;
                if acquisition.phase == Phase::Leaving {
                    return None;
                }
                let (name, token) = (acquisition.ask.name.clone(), acquisition.ask.token.clone());
                let also = acquisition.ask.also.clone();
                Some(Command::Renew(Renew { name, also, token, lease_ms: *lease_ms }))
            }
            Purpose::Leave(id) => {
                let acquisition = self.acquisitions.get(id)?;
                let ask = &acquisition.ask;
                let (name, also, token) = (ask.name.clone(), ask.also.clone(), ask.token.clone());
                let leaving = acquisition.leaving.as_ref()?;
                Some(match &leaving.how {
                    Ending::Release => {
                        Command::Release { name, also, token, lost: leaving.lost.is_some() }
                    }
                    Ending::Cancel => {
                        Command::Cancel { name, also, token, proof: ask.proof.clone() }
                    }
                    Ending::Leave => Command::Leave { name, token },
                    Ending::HandOver { to, lease_ms } => {
                        let (to, lease_ms) = (to.clone(), *lease_ms);
                        Command::HandOver { name, also, token, to, lease_ms }
                    }
                })
            }
            // Whoever asked has given up: what was to change must not change later.
            Purpose::Ask(_, reply) | Purpose::ExtendByValue(_, reply) if reply.is_closed() => None,
            Purpose::TakeOver(command, _)
            | Purpose::Ask(command, _)
            | Purpose::ExtendByValue(command, _)
            | Purpose::Disown(command) => Some(command.clone()),
        }
    }
}
