//! One acquisition from its first command to its last answer.

use crate::error::{Error, StoreError};
use lockwarden_core::{
    Token,
    command::{Acquire, Refusal},
    keeper::{HandleId, Keeping, Loss},
    party::Party,
};
use std::{sync::Arc, task::Waker};
use tokio::sync::{oneshot, watch};

/// What a waiter can be told while it waits.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    /// What the store said last: who holds the lock, and the place in the queue.
    pub told: Option<Refusal>,
    /// Why the store could not be asked, if it could not.
    pub trouble: Option<StoreError>,
}

/// What a caller gets.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// The acquisition: an earlier one, where its owner holds the lock already.
    pub(super) id: HandleId,
    pub(super) token: Token,
    pub(super) fence: u64,
    /// How often it was recalled before the caller got it: that was asked of its other guards.
    pub(super) recalls: u32,
}

/// One acquisition, known by its token from before its first command leaves (R16).
pub(super) struct Acquisition {
    /// The acquire; the same is sent again whenever it must be (G6).
    pub(super) ask: Acquire,
    pub(super) keeping: Keeping,
    pub(super) phase: Phase,
    pub(super) fence: u64,
    /// What only a wait needs.
    pub(super) wait: Option<Box<Wait>>,
    /// What only the end needs.
    pub(super) leaving: Option<Box<Leaving>>,
    /// Who wants to hear of it while it is held; few do, so that it costs the others little memory.
    pub(super) listeners: Option<Box<Listeners>>,
    /// Its acquire left once: from then on it may be granted.
    pub(super) was_sent: bool,
    /// When its timer is due, in µs; 0: it has none.
    pub(super) timer_us: u64,
}

/// Who wants to hear of an acquisition that is held.
#[derive(Default)]
pub(super) struct Listeners {
    /// Wakes whoever watches the handle's state, or waits for a recall.
    pub(super) watchers: Vec<Waker>,
    /// Calls of `extend` that wait for their answer, each with its lease in ms.
    pub(super) extends: Vec<(u64, oneshot::Sender<Result<(), Error>>)>,
    /// How often it was recalled, and who asked last. Nobody need listen yet.
    pub(super) recall: Option<(u32, Arc<Party>)>,
    /// By which tokens the store may know it as well: those of upgrades whose outcome is not known.
    pub(super) perhaps: Vec<Token>,
    /// Of a renewal that was sent before this (µs) "not held" says nothing: it may have had the token from before an
    /// upgrade.
    pub(super) upgraded_us: u64,
}

/// Where an acquisition stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The acquire is on its way, or will be sent again.
    Asking,
    /// It was refused, and waits in the queue.
    Queued,
    /// It was granted by a message, and is renewed before the caller is told (R22).
    Confirming,
    /// The caller has it.
    Held,
    /// It is being released or cancelled, until the store has acknowledged that.
    Leaving,
}

pub(super) struct Wait {
    pub(super) reply: oneshot::Sender<Result<Grant, Error>>,
    pub(super) report: Option<watch::Sender<Waiting>>,
    pub(super) began_us: u64,
    pub(super) deadline_us: Option<u64>,
    /// When the same acquire is sent again (R17); 0: not planned.
    pub(super) recheck_us: u64,
    /// The place in the queue, as far as known.
    pub(super) position: Option<u64>,
    pub(super) told: Waiting,
    /// A revocation was heard before the grant that it is about.
    pub(super) revoked: bool,
    /// How often dead holders were already taken over from on behalf of a caller that does not wait.
    pub(super) took_over: usize,
}

/// What a caller is told.
pub(super) enum Told {
    Acquired(oneshot::Sender<Result<Grant, Error>>, Result<Grant, Error>),
    Left(oneshot::Sender<Result<(), Error>>, Result<(), Error>),
}

impl Told {
    /// A receiver that is gone has its own way out: dropping the future leaves (G6).
    pub(super) fn send(self) {
        match self {
            Told::Acquired(reply, result) => drop(reply.send(result)),
            Told::Left(reply, result) => drop(reply.send(result)),
        }
    }
}

/// How an acquisition ends.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// It was held.
    Release,
    /// It was not, as far as we know.
    Cancel,
    /// It was held, and is left to its value (see [`Command::Leave`](lockwarden_core::Command::Leave)).
    Leave,
    /// It waits to be adopted under another token, for so many ms (R32).
    HandOver { to: Token, lease_ms: u64 },
}

pub(super) struct Leaving {
    pub(super) reply: Option<oneshot::Sender<Result<(), Error>>>,
    pub(super) how: Ending,
    /// `check()` held when the release was first sent (R31).
    pub(super) checked: bool,
    /// It was sent before, and the answer was lost.
    pub(super) repeated: bool,
    /// Until when there is anything to release, in µs.
    pub(super) until_us: u64,
    /// Until when the caller waits for the answer, in µs.
    pub(super) patience_us: u64,
    /// When it is sent again, in µs; 0: not planned.
    pub(super) again_us: u64,
    /// It was lost before it was released.
    pub(super) lost: Option<Loss>,
    /// Nobody will adopt what is handed over.
    pub(super) unwanted: bool,
}

impl Wait {
    /// Tells the caller, who may show it to people.
    pub(super) fn report(&self) {
        if let Some(report) = &self.report {
            report.send_replace(self.told.clone());
        }
    }
}

impl Acquisition {
    pub(super) fn listeners(&mut self) -> &mut Listeners {
        self.listeners.get_or_insert_default()
    }

    /// Takes the calls of `extend`.
    pub(super) fn take_extends(&mut self) -> Vec<(u64, oneshot::Sender<Result<(), Error>>)> {
        self.listeners.as_mut().map_or_else(Vec::new, |it| std::mem::take(&mut it.extends))
    }

    /// See [`Listeners::upgraded_us`].
    pub(super) fn upgraded_us(&self) -> u64 {
        self.listeners.as_ref().map_or(0, |it| it.upgraded_us)
    }

    /// How often it was recalled, and who asked last.
    pub(super) fn recall(&self) -> Option<&(u32, Arc<Party>)> {
        self.listeners.as_ref()?.recall.as_ref()
    }

    /// Takes those who watch the state.
    pub(super) fn take_watchers(&mut self) -> Vec<Waker> {
        self.listeners.as_mut().map_or_else(Vec::new, |it| std::mem::take(&mut it.watchers))
    }

    /// When time must bring something for it next, in µs; 0: never.
    pub(super) fn due_us(&self) -> u64 {
        let times_us = match (&self.wait, &self.leaving) {
            (_, Some(leaving)) => {
                let patience_us = if leaving.reply.is_some() { leaving.patience_us } else { 0 };
                [leaving.until_us, patience_us, leaving.again_us]
            }
            (Some(wait), None) => [wait.deadline_us.unwrap_or(0), wait.recheck_us, 0],
            (None, None) => [0; 3],
        };
        times_us.into_iter().filter(|at_us| *at_us > 0).min().unwrap_or(0)
    }
}
