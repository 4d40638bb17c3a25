//! The memory store: the table behind a mutex. For tests, for tools, and for locks between the
//! tasks of one process that shall behave as they will on a server.

use crate::{
    clock,
    error::StoreError,
    fork,
    store::{Call, Connecting, Link, LinkEvent, Page, Store},
};
use lockwarden_core::{
    Rules, Run, SessionId,
    table::{Context as Moment, Table},
};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Poll, Waker},
};

/// A store in the memory of one process.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    table: Table,
    /// The sessions whose links are up, with what they have not heard yet.
    sessions: BTreeMap<SessionId, Inbox>,
    /// When all locks were last looked through for expired ones, in µs.
    swept_us: u64,
}

/// How often that is done: often enough for G9, rarely enough to cost nothing.
const SWEEP_US: u64 = 1_000_000;

#[derive(Default)]
struct Inbox {
    /// Which link of the session it is: an old link that is dropped late must not close a new one.
    link: u64,
    events: VecDeque<LinkEvent>,
    waker: Option<Waker>,
}

impl MemoryStore {
    /// A store of its own, empty.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// The store that `memory:` means: one for the whole process.
    #[must_use]
    pub fn of_process() -> MemoryStore {
        /// Where in a line of forked processes a store belongs, and that of the next one in the line that has any.
        struct OfProcess {
            generation: u32,
            store: MemoryStore,
            child: OnceLock<Box<OfProcess>>,
        }
        static FIRST: OnceLock<OfProcess> = OnceLock::new();
        // A forked child has one of its own: nothing of the parent's may be waited for (R24).
        let generation = fork::generation();
        let made = || OfProcess { generation, store: MemoryStore::new(), child: OnceLock::new() };
        let mut known = FIRST.get_or_init(made);
        while known.generation != generation {
            known = known.child.get_or_init(|| Box::new(made()));
        }
        known.store.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // The table is changed by pure functions that do not panic halfway; what a panicking
        // thread left is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn sweep(&mut self) {
        let now_us = clock::now_us();
        if now_us >= self.swept_us + SWEEP_US {
            self.table.expire(now_us);
            self.swept_us = now_us;
        }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl Store for MemoryStore {
    fn connect<'a>(&'a self, session: &'a SessionId, _may_hold: bool) -> Connecting<'a> {
        Box::pin(async move {
            let mut inner = self.inner();
            let link = inner.sessions.get(session).map_or(0, |inbox| inbox.link) + 1;
            inner.sessions.insert(session.clone(), Inbox { link, ..Inbox::default() });
            let link: Box<dyn Link> =
                Box::new(MemoryLink { store: self.clone(), session: session.clone(), link });
            Ok(link)
        })
    }

    fn place(&self) -> String {
        "memory:".into()
    }

    fn watches_processes(&self) -> bool {
        false
    }
}

struct MemoryLink {
    store: MemoryStore,
    session: SessionId,
    link: u64,
}

impl Link for MemoryLink {
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn send(&mut self, calls: Vec<Call>) {
        let mut inner = self.store.inner();
        inner.sweep();
        let Inner { table, sessions, .. } = &mut *inner;
        let run = Run::new("memory");
        let mut answers = Vec::with_capacity(calls.len());
        let mut messages = Vec::new();
        for Call { id, command, .. } in calls {
            let at = Moment {
                now_us: clock::now_us(),
                run: &run,
                // The store is as old as the process, and nothing can be lost from it: no guard.
                uptime_s: i64::MAX,
                in_common: 1,
                caller: &self.session,
                caller_run: &run,
                subscribers: &|session| u64::from(sessions.contains_key(session)),
                rules: Rules::ALL,
            };
            let (reply, told) = table.apply(&at, &command);
            answers.push((id, Ok(reply)));
            messages.extend(told);
        }
        let epoch = table.meta.as_ref().map(|meta| meta.epoch.clone());
        if let Some(inbox) = sessions.get_mut(&self.session).filter(|inbox| inbox.link == self.link)
        {
            inbox.push(LinkEvent::Answers { epoch, answers });
        }
        for (session, message) in messages {
            if let Some(inbox) = sessions.get_mut(&session) {
                inbox.push(LinkEvent::Message(message));
            }
        }
    }

    fn list(&mut self, id: u64, _cursor: u64, _foreign: bool) {
        let mut inner = self.store.inner();
        inner.swept_us = 0;
        inner.sweep();
        let locks = inner.table.locks.iter().filter(|(_, lock)| !lock.is_idle());
        let names = locks.map(|(name, _)| name.clone()).collect();
        let page = Ok(Page { names, cursor: 0, foreign: 0 });
        if let Some(inbox) = inner.sessions.get_mut(&self.session) {
            inbox.push(LinkEvent::Page { id, page });
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<LinkEvent> {
        let mut inner = self.store.inner();
        let inbox = inner.sessions.get_mut(&self.session).filter(|inbox| inbox.link == self.link);
        let Some(inbox) = inbox else {
            let detail = "the session connected anew".to_owned();
            return Poll::Ready(LinkEvent::Closed(StoreError::Invalid { detail }));
        };
        match inbox.events.pop_front() {
            Some(event) => Poll::Ready(event),
            None => {
                inbox.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Inbox {
    fn push(&mut self, event: LinkEvent) {
        self.events.push_back(event);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        let mut inner = self.store.inner();
        if inner.sessions.get(&self.session).is_some_and(|inbox| inbox.link == self.link) {
            inner.sessions.remove(&self.session);
        }
    }
}
