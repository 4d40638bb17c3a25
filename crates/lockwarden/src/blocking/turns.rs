//! Whose turn it is to drive a blocking warden's runtime: that of a caller who waits, or that of the warden's own thread.
//!
//! A caller who waits for an answer drives the runtime meanwhile, so that the answer wakes nobody else first: a thread that
//! has to be woken to write, and another that is to read, would cost more than the rest of a call. (Leader and followers:
//! Schmidt and others, "Leader/Followers", PLoP 2000; tokio's current-thread runtime has it built in.) The warden's own
//! thread drives whenever no caller does, for heartbeat and renewal; and when many wait at once, for then somebody must be
//! woken for each answer anyway, and passing the turn on would be one more.

use std::{
    future::Future,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, sync::Notify, task::AbortHandle};

/// How long the runtime may stand still between two calls before the warden's own thread drives it. Heartbeat and messages
/// can be late by that much while callers come and go.
const REST: Duration = Duration::from_millis(2);

/// How long the thread goes on at most after the last handle is gone.
pub(super) const LAST: Duration = Duration::from_secs(3);

/// So many callers at once are a crowd, for which the warden's own thread drives …
const CROWD: usize = 3;

/// … for this long after there was one last.
const CROWD_LASTS: Duration = Duration::from_millis(50);

pub(super) struct Turns {
    runtime: Runtime,
    /// How many callers wait.
    waiting: Arc<AtomicUsize>,
    /// How many of them may drive.
    callers: AtomicUsize,
    /// For how many the warden's own thread must drive, since they cannot.
    tasks: Arc<AtomicUsize>,
    /// When the last caller left, in µs after `began`.
    left_us: AtomicU64,
    /// Until when there is a crowd, likewise.
    crowd_until_us: AtomicU64,
    began: Instant,
    /// Does the warden's own thread drive?
    drives: AtomicBool,
    /// A caller has come: it is to let callers drive.
    callers_came: Notify,
    own: Thread,
    over: AtomicBool,
}

impl Turns {
    /// With a thread that keeps the runtime going.
    pub(super) fn start(runtime: Runtime) -> io::Result<Arc<Turns>> {
        let (send, receive) = std::sync::mpsc::sync_channel::<Arc<Turns>>(1);
        let own = thread::Builder::new().name("lockwarden".into()).spawn(move || {
            if let Ok(turns) = receive.recv() {
                turns.keep_going();
                turns.finish();
                // The runtime ends here, where it may wait for that, and not in somebody's async code.
                while Arc::strong_count(&turns) > 1 {
                    thread::park_timeout(REST);
                }
            }
        })?;
        let turns = Arc::new(Turns {
            runtime,
            waiting: Arc::default(),
            callers: AtomicUsize::new(0),
            tasks: Arc::default(),
            left_us: AtomicU64::new(0),
            crowd_until_us: AtomicU64::new(0),
            began: Instant::now(),
            drives: AtomicBool::new(true),
            callers_came: Notify::new(),
            own: own.thread().clone(),
            over: AtomicBool::new(false),
        });
        // The thread waits for it.
        let _ = send.send(turns.clone());
        Ok(turns)
    }

    /// Waits for the future, and drives the runtime meanwhile if nobody else does.
    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let waiting = Counted::one_more(&self.waiting);
        if self.waiting.load(Ordering::SeqCst) >= CROWD {
            let until_us = self.now_us() + us(CROWD_LASTS);
            self.crowd_until_us.store(until_us, Ordering::SeqCst);
        }
        if self.now_us() < self.crowd_until_us.load(Ordering::SeqCst) {
            return self.in_crowd(future);
        }
        self.callers.fetch_add(1, Ordering::SeqCst);
        let _left = Left(self);
        let _waiting = waiting;
        self.runtime.block_on(future)
    }

    /// Waits for the future while the warden's own thread drives.
    fn in_crowd<T>(&self, future: impl Future<Output = T>) -> T {
        let _task = self.needed();
        let _timers = self.runtime.enter();
        let mut future = pin!(future);
        let waker = UNPARK.with(Waker::clone);
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                return result;
            }
            thread::park();
        }
    }

    /// Has the warden's own thread drive until this is dropped.
    fn needed(&self) -> Counted {
        let task = Counted::one_more(&self.tasks);
        if !self.drives.load(Ordering::SeqCst) {
            self.own.unpark();
        }
        task
    }

    /// Runs a task for whoever does not wait here: until it ends somebody drives.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let needed = self.needed();
        self.watch(async move {
            let _needed = needed;
            future.await;
        })
    }

    /// Runs a task that may wait for long, and go on late by [`REST`].
    pub(super) fn watch(&self, future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.runtime.spawn(future).abort_handle()
    }

    /// The warden's own thread ends soon.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.callers_came.notify_one();
        self.own.unpark();
    }

    fn keep_going(&self) {
        while !self.over.load(Ordering::SeqCst) {
            self.runtime.block_on(self.callers_came.notified());
            self.drives.store(false, Ordering::SeqCst);
            while self.callers_are_there() {
                thread::park_timeout(REST);
            }
            self.drives.store(true, Ordering::SeqCst);
        }
    }

    /// Tasks that somebody waits for come to their ends, which the end of the warden has brought about.
    fn finish(&self) {
        let all_done = async {
            while self.tasks.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(REST).await;
            }
        };
        let _ = self.runtime.block_on(async { tokio::time::timeout(LAST, all_done).await });
    }

    /// Do callers drive, or will again in a moment?
    fn callers_are_there(&self) -> bool {
        if self.over.load(Ordering::SeqCst) || self.is_needed() {
            return false;
        }
        let rest_us = self.now_us().saturating_sub(self.left_us.load(Ordering::SeqCst));
        self.callers.load(Ordering::SeqCst) > 0 || rest_us < us(REST)
    }

    /// Must the warden's own thread drive, whatever callers do?
    fn is_needed(&self) -> bool {
        self.tasks.load(Ordering::SeqCst) > 0
            || self.now_us() < self.crowd_until_us.load(Ordering::SeqCst)
    }

    fn now_us(&self) -> u64 {
        us(self.began.elapsed())
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static UNPARK: Waker = Arc::new(Unpark(thread::current())).into();
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A caller who leaves, even by a panic.
struct Left<'a>(&'a Turns);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let turns = self.0;
        turns.left_us.store(turns.now_us(), Ordering::SeqCst);
        turns.callers.fetch_sub(1, Ordering::SeqCst);
        // The next one is to find the runtime free.
        if turns.drives.load(Ordering::SeqCst) && !turns.is_needed() {
            turns.callers_came.notify_one();
        }
    }
}

/// One of those that are counted, until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn one_more(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
