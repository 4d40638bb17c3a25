//! A session's link to a file store: transactions in the calling thread while nobody is in the way,
//! and waiting without a thread where somebody is.

use super::{
    database::{Database, Site, Slot},
    fail::{Failure, blocker},
    session::Session,
    turn::{self, Done},
};
use crate::{
    error::{StoreError, Trouble},
    random,
    store::{Call, Link, LinkEvent, Page},
};
use lockwarden_core::SessionId;
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};
use tokio::time::{Sleep, sleep};

/// Calls in one transaction: more would keep other processes, and the runtime, waiting.
const CALLS: usize = 256;
/// Names on a page.
const PAGE: usize = 500;
/// Pages that a caller may have begun and not gone on with.
const CURSORS: usize = 64;
/// How often a transaction is tried again at once, with a turn for others in between: one lasts
/// some tens of µs, a timer a ms.
const TRIES_AT_ONCE: u32 = 6;
/// How long a blocked store is waited for. Its holders do not believe for longer either.
const BLOCKED: Duration = Duration::from_secs(4);

/// The link.
pub(super) struct FileLink {
    site: Arc<Site>,
    slot: Arc<Slot>,
    session: Session,
    /// The number of the last message that was read and stands in the inbox still.
    delivered: u64,
    /// There may be messages.
    hinted: bool,
    jobs: VecDeque<Job>,
    patience: Patience,
    events: VecDeque<LinkEvent>,
    /// Where pages go on: the number that was given out, and the last name before.
    cursors: VecDeque<(u64, Vec<u8>)>,
    last_cursor: u64,
    closed: bool,
    waker: Option<Waker>,
}

enum Job {
    Calls(Vec<Call>),
    List { id: u64, cursor: u64 },
}

/// How a busy store is waited for.
#[derive(Default)]
pub(super) struct Patience {
    since: Option<Instant>,
    tries: u32,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    /// How long to wait now. None: it has lasted too long.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        if self.since.get_or_insert_with(Instant::now).elapsed() >= BLOCKED {
            return None;
        }
        self.tries += 1;
        // Many wait for one: they spread out, or they would meet again each time.
        let most_us = 1_000 * u64::from(self.tries.min(8));
        Some(Duration::from_micros(200 + random::below(most_us)))
    }
}

impl FileLink {
    pub(super) fn new(site: Arc<Site>, slot: Arc<Slot>, session: Session) -> FileLink {
        FileLink {
            site,
            slot,
            session,
            delivered: 0,
            // Between the begin of the session and now there may have been some.
            hinted: true,
            jobs: VecDeque::new(),
            patience: Patience::default(),
            events: VecDeque::new(),
            cursors: VecDeque::new(),
            last_cursor: 0,
            closed: false,
            waker: None,
        }
    }

    /// Does one job, or notes when to try again.
    fn work(&mut self) {
        let Some(job) = self.jobs.pop_front() else { return };
        let done = match job {
            Job::List { id, cursor } => {
                let done = self.page(cursor);
                self.settle(Job::List { id, cursor }, done, |link, page| {
                    link.events.push_back(LinkEvent::Page { id, page });
                })
            }
            Job::Calls(mut calls) => {
                if calls.len() > CALLS {
                    let rest = calls.split_off(CALLS);
                    self.jobs.push_front(Job::Calls(rest));
                }
                self.calls(calls)
            }
        };
        if let Err(error) = done {
            self.close(error);
        }
    }

    fn calls(&mut self, calls: Vec<Call>) -> Result<(), StoreError> {
        let (session, delivered) = (&self.session, self.delivered);
        let done = patient(&self.slot, |database| turn::run(database, session, delivered, &calls));
        // One of them may be too much for a full disk, and the others may not: each stands for
        // itself (R12).
        if matches!(done, Err(Failure::Refused(_))) && calls.len() > 1 {
            for call in calls.into_iter().rev() {
                self.jobs.push_front(Job::Calls(vec![call]));
            }
            return Ok(());
        }
        let ids: Vec<u64> = calls.iter().map(|call| call.id).collect();
        self.settle(Job::Calls(calls), done, move |link, done| match done {
            Ok(done) => link.tell(done),
            Err(error) => {
                let answers = ids.into_iter().map(|id| (id, Err(error.clone()))).collect();
                link.events.push_back(LinkEvent::Answers { epoch: None, answers });
            }
        })
    }

    /// A job that found the store busy is put back; one that is done, or refused, is told of.
    fn settle<T>(
        &mut self,
        job: Job,
        done: Result<T, Failure>,
        tell: impl FnOnce(&mut FileLink, Result<T, StoreError>),
    ) -> Result<(), StoreError> {
        let done = match done {
            Err(Failure::Busy) => {
                let Some(pause) = self.patience.pause() else { return Err(self.blocked()) };
                self.patience.sleep = Some(Box::pin(sleep(pause)));
                self.jobs.push_front(job);
                return Ok(());
            }
            Err(Failure::Refused(error)) => Err(error),
            Err(failure) => return Err(failure.into_error(&self.site.place)),
            Ok(done) => Ok(done),
        };
        self.patience = Patience::default();
        tell(self, done);
        Ok(())
    }

    fn tell(&mut self, done: Done) {
        let Done { epoch, before, answers, after, hints } = done;
        self.delivered = 0;
        for session in &hints {
            self.session.hint(session);
        }
        self.events.extend(before.into_iter().map(LinkEvent::Message));
        let answers = answers.into_iter().map(|(id, reply)| (id, Ok(reply))).collect();
        self.events.push_back(LinkEvent::Answers { epoch: Some(epoch), answers });
        self.events.extend(after.into_iter().map(LinkEvent::Message));
    }

    fn page(&mut self, cursor: u64) -> Result<Page, Failure> {
        let after = match cursor {
            0 => Vec::new(),
            _ => match self.cursors.iter().find(|(number, _)| *number == cursor) {
                Some((_, after)) => after.clone(),
                None => {
                    let detail = format!("no page of this link goes on at {cursor}; begin at 0");
                    return Err(Failure::Refused(StoreError::Invalid { detail }));
                }
            },
        };
        let (names, next) = self.slot.with(|database| {
            database.check()?;
            turn::names(database, &after, PAGE)
        })?;
        let cursor = match next {
            None => 0,
            Some(last) => {
                self.last_cursor += 1;
                self.cursors.truncate(CURSORS - 1);
                self.cursors.push_front((self.last_cursor, last));
                self.last_cursor
            }
        };
        Ok(Page { names, cursor, foreign: 0 })
    }

    /// Reads the messages at once, even where another process writes.
    fn read_inbox(&mut self) {
        let (session, delivered) = (&self.session, self.delivered);
        if let Err(why) = session.visible() {
            return self.close(self.site.hidden(why));
        }
        let read = self.slot.with(|database| {
            database.check()?;
            turn::read_inbox(database, session.id(), delivered)
        });
        match read {
            Ok((messages, last)) => {
                self.hinted = false;
                self.delivered = last;
                self.events.extend(messages.into_iter().map(LinkEvent::Message));
            }
            // Only while the log is being recovered.
            Err(Failure::Busy) => match self.patience.pause() {
                Some(pause) => self.patience.sleep = Some(Box::pin(sleep(pause))),
                None => self.close(self.blocked()),
            },
            Err(failure) => self.close(failure.into_error(&self.site.place)),
        }
    }

    fn blocked(&self) -> StoreError {
        let who = blocker(&self.site.files());
        let detail = format!("{who}, for {} s by now", BLOCKED.as_secs());
        self.site.place.unavailable(Trouble::Blocked, detail)
    }

    fn close(&mut self, error: StoreError) {
        if !self.closed {
            self.closed = true;
            self.jobs.clear();
            self.session.close();
            self.events.push_back(LinkEvent::Closed(error));
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn accept(&mut self, job: Job) {
        if self.closed {
            return;
        }
        let first = self.jobs.is_empty();
        self.jobs.push_back(job);
        if first {
            self.work();
        }
        self.wake();
    }
}

impl Link for FileLink {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.closed || self.jobs.is_empty() {
            return Poll::Ready(());
        }
        // Whoever waits for events wakes this task, too: it is the one that drives the jobs.
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn send(&mut self, calls: Vec<Call>) {
        if !calls.is_empty() {
            self.accept(Job::Calls(calls));
        }
    }

    fn list(&mut self, id: u64, cursor: u64, _foreign: bool) {
        self.accept(Job::List { id, cursor });
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<LinkEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(event);
            }
            if self.closed {
                return Poll::Pending;
            }
            match self.session.poll_hints(cx) {
                Poll::Ready(Ok(())) => self.hinted = true,
                Poll::Ready(Err(error)) => {
                    let detail = format!("cannot read the socket of the session: {error}");
                    self.close(self.site.place.unavailable(Trouble::Disconnected, detail));
                    continue;
                }
                Poll::Pending => {}
            }
            if let Some(sleep) = &mut self.patience.sleep {
                if sleep.as_mut().poll(cx).is_pending() {
                    self.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                self.patience.sleep = None;
            }
            if self.hinted {
                self.read_inbox();
            } else if self.jobs.is_empty() {
                self.waker = Some(cx.waker().clone());
                return Poll::Pending;
            } else {
                self.work();
            }
        }
    }
}

impl Drop for FileLink {
    fn drop(&mut self) {
        if self.session.visible().is_ok() {
            let id: &SessionId = self.session.id();
            // Best effort: whoever comes by removes it otherwise.
            let _ = self.slot.with(|database| turn::empty_inbox(database, id));
        }
        self.session.close();
    }
}

/// Tries a few times where others are in the way for a moment.
fn patient<T>(
    slot: &Slot,
    mut work: impl FnMut(&Database) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut tries = 0;
    loop {
        match slot.with(&mut work) {
            Err(Failure::Busy) if tries < TRIES_AT_ONCE => {
                tries += 1;
                std::thread::yield_now();
            }
            done => return done,
        }
    }
}

impl std::fmt::Debug for FileLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileLink").field("session", self.session.id()).finish_non_exhaustive()
    }
}
