//! What a lock store can do: one trait, three stores.
//!
//! A store connects a session and gives it a [`Link`]. Everything that changes state goes over
//! that one link, in order (R8); answers and messages come back in order as [`LinkEvent`]s. A store
//! must not reconnect, retry or renew by itself: what an interruption means is decided in one
//! place, the warden's driver.

use crate::error::StoreError;
use lockwarden_core::{Command, Epoch, Message, Name, Reply, SessionId};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

pub mod file;
pub mod memory;
pub mod redis;
pub mod url;

/// A store of locks, to which sessions connect.
pub trait Store: Send + Sync + fmt::Debug {
    /// Opens a link for a session: subscribed, tested, and able to hear its own messages (R7, R10).
    /// Fails rather than waits; the caller decides about trying again.
    ///
    /// `may_hold`: as in [`Call::may_hold`]; a store may begin an epoch while it connects.
    fn connect<'a>(&'a self, session: &'a SessionId, may_hold: bool) -> Connecting<'a>;

    /// Where the store is, without its password: for messages to people.
    fn place(&self) -> String;

    /// Does a session's death show at once on its own machine (process watch), so that a warden
    /// should watch holders on the same machine? The memory store lives in one process and says no.
    fn watches_processes(&self) -> bool;
}

/// The future of [`Store::connect`].
pub type Connecting<'a> =
    Pin<Box<dyn Future<Output = Result<Box<dyn Link>, StoreError>> + Send + 'a>>;

/// One command on its way, with the number that its answer comes back with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Chosen by the caller; unique on the link.
    pub id: u64,
    /// What to do.
    pub command: Command,
    /// The session may hold a lock, or have been granted one, beside what this very command asks for: it may
    /// believe in what a flush has deleted (R5).
    pub may_hold: bool,
}

/// A session's connection together with its subscription; one falls, both fall. Dropping it closes
/// it, and no command that was not answered by then may run later (R9).
pub trait Link: Send {
    /// Is there room for another batch? Calls that become ready meanwhile travel together in the
    /// next one.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Sends calls together; they are carried out in order, each with its own answer. Never blocks.
    fn send(&mut self, calls: Vec<Call>);

    /// Asks for one page of the names that hold anything, from `cursor` on (0: the first page).
    /// Answered by [`LinkEvent::Page`].
    fn list(&mut self, id: u64, cursor: u64, foreign: bool);

    /// The next thing that happened. After [`LinkEvent::Closed`] nothing happens any more.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<LinkEvent>;
}

/// What happens on a link.
#[derive(Debug)]
pub enum LinkEvent {
    /// Calls were answered, in their order. A beat is answered when it counts: where it comes back
    /// through the subscription, only then (R19).
    Answers {
        /// The epoch in which they were carried out (R23); none: none of them was.
        epoch: Option<Epoch>,
        /// Call and answer. An error here concerns this call only, and it was not applied.
        answers: Vec<(u64, Result<Reply, StoreError>)>,
    },
    /// The session is told something.
    Message(Message),
    /// Something was heard on the session's own channel that the session did not send: someone
    /// else runs with its identity (R24).
    Cloned,
    /// One page of names.
    Page {
        /// The number of the [`Link::list`].
        id: u64,
        /// The page, or why there is none.
        page: Result<Page, StoreError>,
    },
    /// The link is gone; what was not answered may or may not have been carried out.
    Closed(StoreError),
}

/// One page of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Names that hold anything; a name may come twice.
    pub names: Vec<Name>,
    /// Where the next page begins; 0: this was the last.
    pub cursor: u64,
    /// Keys of other clients that look like no lock of ours (counted only where asked for).
    pub foreign: u64,
}
