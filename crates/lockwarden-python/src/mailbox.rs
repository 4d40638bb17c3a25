//! Where the warden's thread leaves results for an event loop. It never asks for the interpreter lock, which Python code
//! may hold for as long as it likes (C15, C40).

use crate::{errors, guard::Guard, views, warden::Warden};
use lockwarden::{Error, Loss, blocking};
use pyo3::{intern, prelude::*, types::PyString};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::task::AbortHandle;

/// The letters for one event loop, whose descriptor is readable while there are some.
#[pyclass(frozen, module = "lockwarden._native")]
pub(crate) struct Mailbox {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    letters: Mutex<Letters>,
    bell: OwnedFd,
}

#[derive(Default)]
struct Letters {
    /// Nobody empties it any more.
    closed: bool,
    letters: Vec<Letter>,
}

/// What came of something that was started.
pub(crate) enum Outcome {
    Acquired(Result<(lockwarden::Guard, Py<Warden>), Error>),
    Done(Result<(), Error>),
    Extended(Result<Duration, Error>),
    /// Lost, and why; none: it cannot be lost any more, for it was released.
    Lost(Option<Loss>),
}

/// A result, and the future (any object with `done`, `set_result` and `set_exception`) that waits for it.
struct Letter {
    future: Py<PyAny>,
    outcome: Outcome,
}

/// Whom the outcome of something that was started is for. If it ends without one (its warden was closed), it says so:
/// nobody waits for ever.
pub(crate) struct Address {
    mailbox: Arc<Inner>,
    future: Option<Py<PyAny>>,
    given_up: Arc<AtomicBool>,
}

impl Address {
    pub(crate) fn new(mailbox: &Mailbox, future: Py<PyAny>) -> Address {
        let given_up = Arc::default();
        Address { mailbox: mailbox.inner.clone(), future: Some(future), given_up }
    }

    /// Waits for the outcome and leaves it in the box: on any thread, without the interpreter lock.
    async fn receive(mut self, outcome: impl Future<Output = Outcome>) {
        let outcome = outcome.await;
        self.deliver(outcome);
    }

    fn deliver(&mut self, outcome: Outcome) {
        let Some(future) = self.future.take() else { return };
        let mut its = self.mailbox.letters();
        // A guard that nobody waits for any more is dropped here, and releases (G6).
        if its.closed || self.given_up.load(Ordering::SeqCst) {
            drop(its);
            drop(outcome);
            return;
        }
        its.letters.push(Letter { future, outcome });
        // The bell rings once for all that is in the box.
        if its.letters.len() == 1 {
            // It can fail only if it rings already, 2^64 times.
            let _ = rustix::io::write(&self.mailbox.bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        self.deliver(Outcome::Done(Err(Error::Closed)));
    }
}

impl Inner {
    fn letters(&self) -> MutexGuard<'_, Letters> {
        // Nothing panics while it is locked.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Letter {
    fn deliver(self, py: Python<'_>) -> PyResult<()> {
        let Letter { future, outcome } = self;
        let future = future.bind(py);
        // Who waited was cancelled: a guard that nobody gets is dropped, and releases (G6).
        if future.call_method0(intern!(py, "done"))?.is_truthy()? {
            return Ok(());
        }
        let result = match outcome {
            Outcome::Acquired(Ok((guard, warden))) => {
                Ok(Py::new(py, Guard::new(guard, warden))?.into_any())
            }
            Outcome::Done(Ok(())) | Outcome::Lost(None) => Ok(py.None()),
            Outcome::Lost(Some(loss)) => {
                Ok(PyString::new(py, views::loss(loss)).unbind().into_any())
            }
            Outcome::Extended(Ok(left)) => {
                Ok(left.as_secs_f64().into_pyobject(py)?.into_any().unbind())
            }
            Outcome::Acquired(Err(error))
            | Outcome::Done(Err(error))
            | Outcome::Extended(Err(error)) => Err(errors::raised(py, &error)),
        };
        match result {
            Ok(value) => future.call_method1(intern!(py, "set_result"), (value,))?,
            Err(error) => future.call_method1(intern!(py, "set_exception"), (error,))?,
        };
        Ok(())
    }
}

#[pymethods]
impl Mailbox {
    #[new]
    fn new() -> PyResult<Mailbox> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        Ok(Mailbox { inner: Arc::new(Inner { letters: Mutex::default(), bell }) })
    }

    fn fileno(&self) -> i32 {
        self.inner.bell.as_raw_fd()
    }

    /// Gives what is in the box to those who wait for it; the event loop calls this. What one of them raises does not keep
    /// the others from theirs: the first error is raised in the end, the rest are reported.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let letters = {
            let mut letters = self.inner.letters();
            let mut rung = [0; 8];
            let _ = rustix::io::read(&self.inner.bell, &mut rung);
            std::mem::take(&mut letters.letters)
        };
        let mut first = Ok(());
        for letter in letters {
            match (letter.deliver(py), &first) {
                (Err(error), Ok(())) => first = Err(error),
                (Err(error), Err(_)) => error.write_unraisable(py, None),
                (Ok(()), _) => {}
            }
        }
        first
    }

    /// Its event loop is gone: what is in the box, and what would come into it, is for nobody.
    fn close(&self) {
        let letters = {
            let mut letters = self.inner.letters();
            letters.closed = true;
            std::mem::take(&mut letters.letters)
        };
        drop(letters);
    }
}

/// Something that runs on the warden's thread.
#[pyclass(frozen, module = "lockwarden._native")]
pub(crate) struct Started {
    task: AbortHandle,
    given_up: Arc<AtomicBool>,
}

impl Started {
    /// Begins it on the warden's thread, which goes on driving until it ends.
    pub(crate) fn spawn(
        py: Python<'_>,
        warden: &blocking::Warden,
        address: Address,
        outcome: impl Future<Output = Outcome> + Send + 'static,
    ) -> PyResult<Started> {
        let given_up = address.given_up.clone();
        Started::of(py, warden.spawn(address.receive(outcome)), given_up)
    }

    /// The same for what may take long.
    pub(crate) fn watch(
        py: Python<'_>,
        warden: &blocking::Warden,
        address: Address,
        outcome: impl Future<Output = Outcome> + Send + 'static,
    ) -> PyResult<Started> {
        let given_up = address.given_up.clone();
        Started::of(py, warden.watch(address.receive(outcome)), given_up)
    }

    fn of(
        py: Python<'_>,
        task: Option<AbortHandle>,
        given_up: Arc<AtomicBool>,
    ) -> PyResult<Started> {
        let task = task.ok_or_else(|| errors::raised(py, &Error::Closed))?;
        Ok(Started { task, given_up })
    }
}

#[pymethods]
impl Started {
    /// Gives it up: an acquire leaves neither a lock nor a ticket (G6), nor a letter.
    fn cancel(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        self.task.abort();
    }
}
