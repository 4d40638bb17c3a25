//! The driver: one task per warden that owns its link. It connects, moves calls and answers,
//! keeps time, and mends. What any of it means is decided in [`super::state`].

use super::{Shared, acquisition::Told, state::State};
use crate::{
    clock,
    error::StoreError,
    random,
    store::{Connecting, Link, LinkEvent, Page},
};
use lockwarden_core::SessionId;
use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::oneshot, time::Sleep};

/// Calls per batch: enough to share the cost of a round trip, few enough not to keep the server
/// from others.
const CALLS_AT_ONCE: usize = 64;
/// The longest pause between two tries to connect. The first follows at once.
const LONGEST_PAUSE_MS: u64 = 1_000;
const FIRST_PAUSE_MS: u64 = 20;
/// How long a warden that closes waits for the store to acknowledge its releases.
const CLOSING_US: u64 = 3_000_000;

/// The task of one warden.
pub(super) struct Driver {
    shared: Arc<Shared>,
    session: SessionId,
    line: Line,
    timer: Pin<Box<Sleep>>,
    failures: u32,
    closing_since_us: Option<u64>,
    pages: HashMap<u64, oneshot::Sender<Result<Page, StoreError>>>,
    next_page: u64,
    /// Callers were told something, and have not had their turn since; there are several of them.
    busy: bool,
}

/// The state of the connection.
enum Line {
    Up(Box<dyn Link>),
    Connecting(Connecting<'static>),
    Pausing(Pin<Box<Sleep>>),
}

impl Driver {
    /// A driver whose first link stands.
    pub(super) fn new(shared: Arc<Shared>, session: SessionId, link: Box<dyn Link>) -> Driver {
        shared.state().link_up();
        Driver {
            shared,
            session,
            line: Line::Up(link),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            failures: 0,
            closing_since_us: None,
            pages: HashMap::new(),
            next_page: 1,
            busy: false,
        }
    }

    fn connect(&mut self) {
        let (shared, session) = (self.shared.clone(), self.session.clone());
        let may_hold = shared.state().may_hold();
        self.line =
            Line::Connecting(Box::pin(
                async move { shared.store.connect(&session, may_hold).await },
            ));
    }

    /// The link is gone, or must go: it is closed before another is opened (R9).
    fn link_down(&mut self, error: StoreError) {
        tracing::warn!(%error, "the link to the store is down");
        for (_, page) in self.pages.drain() {
            let _ = page.send(Err(error.clone()));
        }
        let copied = {
            let mut state = self.shared.state();
            state.link_down(error);
            std::mem::take(&mut state.cloned)
        };
        if copied && let Ok(session) = random::session_id() {
            self.session = session;
        }
        // At once, unless links have been failing before they were of any use.
        if self.failures == 0 {
            self.connect();
        } else {
            self.pause();
        }
        self.failures += 1;
    }

    /// Backoff with jitter, so that a server that comes back is not met by everyone at the same
    /// moment.
    fn pause(&mut self) {
        let longest = (FIRST_PAUSE_MS << self.failures.min(10)).min(LONGEST_PAUSE_MS);
        let pause_ms = longest / 2 + random::below(longest / 2 + 1);
        self.line = Line::Pausing(Box::pin(tokio::time::sleep(Duration::from_millis(pause_ms))));
    }

    fn connected(&mut self, result: Result<Box<dyn Link>, StoreError>) {
        match result {
            Ok(link) => {
                self.line = Line::Up(link);
                self.shared.state().link_up();
            }
            Err(error) => {
                tracing::debug!(%error, "no link to the store yet");
                self.shared.state().no_link(error);
                self.pause();
                self.failures += 1;
            }
        }
    }

    /// Takes in what has happened; false: nothing had.
    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.line {
            Line::Up(link) => match link.poll_event(cx) {
                Poll::Pending => false,
                Poll::Ready(event) => {
                    self.happened(event);
                    true
                }
            },
            Line::Connecting(connecting) => match connecting.as_mut().poll(cx) {
                Poll::Pending => false,
                Poll::Ready(result) => {
                    self.connected(result);
                    true
                }
            },
            Line::Pausing(pause) => {
                let over = pause.as_mut().poll(cx).is_ready();
                if over {
                    self.connect();
                }
                over
            }
        }
    }

    fn happened(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Answers { epoch, answers } => {
                let ready = self.told(|state| {
                    state.answered(epoch.as_ref(), answers);
                    state.is_ready()
                });
                if ready {
                    self.failures = 0;
                }
            }
            LinkEvent::Message(message) => self.told(|state| state.message(message)),
            LinkEvent::Cloned => self.shared.state().copied(),
            LinkEvent::Page { id, page } => {
                if let Some(reply) = self.pages.remove(&id) {
                    let _ = reply.send(page);
                }
            }
            LinkEvent::Closed(error) => self.link_down(error),
        }
    }

    /// Changes the state, and tells callers what follows once it is unlocked again.
    fn told<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, told, others) = {
            let mut state = self.shared.state();
            let result = change(&mut state);
            (result, std::mem::take(&mut state.told), state.expects_answers())
        };
        self.busy |= told.len() > 1 || (others && !told.is_empty());
        told.into_iter().for_each(Told::send);
        result
    }

    /// Sends what is ready, as far as the link takes it.
    fn transmit(&mut self, cx: &mut Context<'_>) -> bool {
        let Line::Up(link) = &mut self.line else { return false };
        let mut sent = false;
        for (cursor, foreign, reply) in self.shared.state().take_listings() {
            self.pages.insert(self.next_page, reply);
            link.list(self.next_page, cursor, foreign);
            self.next_page += 1;
            sent = true;
        }
        loop {
            // Written while callers can go on: the state is locked for the taking only.
            let calls = {
                let mut state = self.shared.state();
                if !state.has_calls() || link.poll_ready(cx).is_pending() {
                    return sent;
                }
                state.take_calls(CALLS_AT_ONCE)
            };
            if !calls.is_empty() {
                link.send(calls);
                sent = true;
            }
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            // Bounded, so that a flood of answers does not keep calls and deadlines waiting.
            let mut received = 0;
            while received < 64 && this.receive(cx) {
                received += 1;
            }
            let (deadline_us, mend) = {
                // First, so that no request is missed.
                this.shared.inbox().waker = Some(cx.waker().clone());
                let mut state = this.shared.state();
                state.waker = Some(cx.waker().clone());
                (state.tick(), state.mend.take())
            };
            if let Some(reason) = mend
                && matches!(this.line, Line::Up(_))
            {
                let place = this.shared.store.place();
                this.link_down(StoreError::disconnected(place, reason));
                continue;
            }
            let sent = this.transmit(cx);
            {
                let state = this.shared.state();
                if state.closing {
                    this.closing_since_us.get_or_insert_with(clock::now_us);
                }
                let impatient =
                    this.closing_since_us.is_some_and(|it| clock::now_us() >= it + CLOSING_US);
                if state.is_done() || impatient {
                    return Poll::Ready(());
                }
            }
            if std::mem::take(&mut this.busy) {
                // What they ask for next shall travel together: all their turns, then ours. Else the first
                // of them would wake us before the others, and its command would go alone.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if sent || received > 0 {
                continue;
            }
            let now_us = clock::now_us();
            let closing_us = this.closing_since_us.map(|since_us| since_us + CLOSING_US);
            let Some(wake_us) = deadline_us.into_iter().chain(closing_us).min() else {
                return Poll::Pending;
            };
            let pause = Duration::from_micros(wake_us.saturating_sub(now_us));
            this.timer.as_mut().reset(tokio::time::Instant::now() + pause);
            if this.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Driver {
    /// The runtime ends, or the driver is done: nobody may wait for it any more. A forked child that
    /// drops its parent's runtime must not wait for the state either (R24).
    fn drop(&mut self) {
        if self.shared.is_ours() {
            self.shared.inbox().closed = true;
            self.shared.state().end();
        }
    }
}
