//! What callers ask most often, in order: acquisitions begun and ended.
//!
//! The driver has the state in hand while it takes in a batch of answers. Callers on other threads need not
//! wait for that: they leave their request here, and whoever locks the state next takes it in first
//! (`Shared::state`), so that to everyone it looks as if it had been done at once.

use super::{
    acquisition::{Ending, Grant, Waiting},
    state::State,
};
use crate::{clock, error::Error};
use lockwarden_core::{
    Name, Token,
    command::Acquire,
    keeper::{HandleId, Keeping},
};
use std::{sync::Arc, task::Waker};
use tokio::sync::{oneshot, watch};

/// An acquisition that a caller has begun.
pub(super) struct Begun {
    pub(super) id: HandleId,
    pub(super) ask: Acquire,
    pub(super) keeping: Keeping,
    pub(super) report: Option<watch::Sender<Waiting>>,
    pub(super) reply: oneshot::Sender<Result<Grant, Error>>,
    pub(super) began_us: u64,
}

enum Request {
    Begin(Begun),
    /// See [`State::leave`].
    Leave(HandleId, Ending, Option<oneshot::Sender<Result<(), Error>>>),
    /// See [`State::take_back`].
    TakeBack(HandleId, (Name, Arc<[Name]>), Token),
}

#[derive(Default)]
pub(super) struct Inbox {
    requests: Vec<Request>,
    last_id: HandleId,
    /// The driver's, until somebody has woken it.
    pub(super) waker: Option<Waker>,
    /// The driver has ended: nothing will be answered.
    pub(super) closed: bool,
}

/// The id of a new acquisition, and what comes of it.
pub(super) type Beginning = (HandleId, oneshot::Receiver<Result<Grant, Error>>);

impl Inbox {
    /// Begins an acquisition.
    pub(super) fn begin(
        &mut self,
        ask: Acquire,
        keeping: Keeping,
        report: Option<watch::Sender<Waiting>>,
    ) -> Result<Beginning, Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        self.last_id += 1;
        let (id, began_us) = (self.last_id, clock::now_us());
        let (reply, receiver) = oneshot::channel();
        self.requests.push(Request::Begin(Begun { id, ask, keeping, report, reply, began_us }));
        Ok((id, receiver))
    }

    /// Ends an acquisition, granted or not: see [`State::leave`].
    pub(super) fn leave(
        &mut self,
        id: HandleId,
        how: Ending,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        if !self.closed {
            self.requests.push(Request::Leave(id, how, reply));
        }
    }

    /// Nobody will adopt what was handed over: see [`State::take_back`].
    pub(super) fn take_back(&mut self, id: HandleId, names: (Name, Arc<[Name]>), token: Token) {
        if !self.closed {
            self.requests.push(Request::TakeBack(id, names, token));
        }
    }

    /// Tells the state of all requests so far.
    pub(super) fn take_in(&mut self, state: &mut State) {
        if self.requests.is_empty() {
            return;
        }
        // Whoever left a request has woken the driver for it; once is enough.
        let waker = state.waker.take();
        for request in self.requests.drain(..) {
            match request {
                Request::Begin(begun) => state.begin(begun),
                Request::Leave(id, how, reply) => state.leave(id, how, reply),
                Request::TakeBack(id, names, token) => state.take_back(id, names, token),
            }
        }
        state.waker = waker;
    }
}
