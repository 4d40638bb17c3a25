//! Waiting in Python code that blocks: without the interpreter lock, and with an ear for signals.

use lockwarden::blocking;
use pyo3::prelude::*;
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Poll, Waker},
    thread::{self, Thread},
    time::Duration,
};

/// How long a signal may stay unheard. Only the main thread looks, and only while it waits: Python runs handlers nowhere
/// else, and nothing says which thread the system will interrupt.
const HEAR: Duration = Duration::from_millis(20);

/// Waits for the future. What a signal handler raises (Ctrl-C) ends the wait: the future is dropped, and so leaves
/// nothing behind (G6).
///
/// # Errors
/// What the handler raised. `Ok(None)`: this is a forked child.
pub(crate) fn block_on<T: Send>(
    py: Python<'_>,
    warden: &blocking::Warden,
    future: impl Future<Output = T> + Send,
) -> PyResult<Option<T>> {
    py.detach(|| run(warden, future))
}

/// The same for whoever has let go of the interpreter lock already.
///
/// # Errors
/// As there.
pub(crate) fn run<T>(
    warden: &blocking::Warden,
    future: impl Future<Output = T>,
) -> PyResult<Option<T>> {
    if !is_main_thread() {
        let result = warden.block_on(future);
        rest_if_exiting();
        return Ok(result);
    }
    let mut future = pin!(future);
    loop {
        let heard = EAR.ticks();
        let waited = poll_fn(|cx| {
            if let Poll::Ready(result) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            if EAR.ticks() != heard {
                return Poll::Ready(None);
            }
            EAR.listen(cx.waker());
            Poll::Pending
        });
        match warden.block_on(waited) {
            Some(Some(result)) => return Ok(Some(result)),
            // A forked child.
            None => return Ok(None),
            Some(None) => Python::attach(|py| py.check_signals())?,
        }
    }
}

static EXITING: AtomicBool = AtomicBool::new(false);

/// The interpreter ends, and all threads that it waits for have ended.
#[pyfunction]
pub(crate) fn exiting() {
    EXITING.store(true, Ordering::Relaxed);
}

/// How long a daemon thread rests: the interpreter is gone by then, or somebody waits for the thread.
const EXIT_LASTS: Duration = Duration::from_secs(1);

/// A daemon thread, at the interpreter's end: nobody takes notice of it any more, and what is closed under its hands now is
/// no error of its own. But other handlers of the exit may wait for it: so it is told in the end. Called without the
/// interpreter lock.
pub(crate) fn rest_if_exiting() {
    if EXITING.load(Ordering::Relaxed) && !is_main_thread() {
        thread::sleep(EXIT_LASTS);
    }
}

/// Python's main thread is the process's first one.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Wakes the main thread now and then while it waits: a timer of the runtime for each wait would cost more than most
/// waits do.
struct Ear {
    ticks: AtomicU32,
    listening: Mutex<Listening>,
    /// The process whose ear it is.
    process: AtomicU32,
}

struct Listening {
    /// The main thread, while it waits.
    main: Option<Waker>,
    /// The ear's own thread, while it sleeps because nobody waits.
    asleep: Option<Thread>,
}

static EAR: Ear = Ear {
    ticks: AtomicU32::new(0),
    listening: Mutex::new(Listening { main: None, asleep: None }),
    process: AtomicU32::new(0),
};

/// After so many ticks without anybody who waits the ear sleeps.
const IDLE_TICKS: u32 = 50;

impl Ear {
    fn ticks(&self) -> u32 {
        self.ticks.load(Ordering::Relaxed)
    }

    fn listen(&'static self, waker: &Waker) {
        let own = std::process::id();
        if self.process.swap(own, Ordering::Relaxed) != own {
            // Without a thread signals are heard when the wait ends.
            let _ = thread::Builder::new().name("lockwarden-ear".into()).spawn(|| self.tick());
        }
        // The ear holds it for a moment only. In a process that was forked in that moment it is locked for ever: then
        // signals are heard when the wait ends.
        for _ in 0..10_000 {
            if let Ok(mut listening) = self.listening.try_lock() {
                listening.main = Some(waker.clone());
                if let Some(ear) = listening.asleep.take() {
                    ear.unpark();
                }
                return;
            }
            std::hint::spin_loop();
        }
    }

    fn tick(&self) {
        let mut idle = 0;
        loop {
            thread::sleep(HEAR);
            // Nothing panics while it is locked.
            let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(waker) = listening.main.take() {
                drop(listening);
                idle = 0;
                self.ticks.fetch_add(1, Ordering::Relaxed);
                waker.wake();
            } else if idle < IDLE_TICKS {
                idle += 1;
            } else {
                listening.asleep = Some(thread::current());
                drop(listening);
                thread::park();
                idle = 0;
            }
        }
    }
}
