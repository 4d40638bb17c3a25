//! Where the warden's thread leaves results for an event loop. It never asks for the interpreter lock, which Python code
//! may hold for as long as it likes (C15, C40).

use crate::{errors, guard::Guard, views, warden::Warden};
use lockwarden::{Error, Loss};
use pyo3::{intern, prelude::*, types::PyString};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::task::AbortHandle;

/// The letters for one event loop, whose descriptor is readable while there are some.
#[pyclass(frozen, module = "lockwarden._native")]
pub(crate) struct Mailbox {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    letters: Mutex<Vec<Letter>>,
    bell: OwnedFd,
}

/// What came of something that was started.
pub(crate) enum Outcome {
    Acquired(Result<(lockwarden::Guard, Py<Warden>), Error>),
    Done(Result<(), Error>),
    Extended(Result<Duration, Error>),
    Lost(Loss),
}

/// A result, and the future (any object with `done`, `set_result` and `set_exception`) that waits for it.
struct Letter {
    future: Py<PyAny>,
    outcome: Outcome,
}

impl Inner {
    fn letters(&self) -> MutexGuard<'_, Vec<Letter>> {
        // Nothing panics while it is locked.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called on any thread, without the interpreter lock.
    pub(crate) fn leave(&self, future: Py<PyAny>, outcome: Outcome) {
        let mut letters = self.letters();
        letters.push(Letter { future, outcome });
        // The bell rings once for all that is in the box.
        if letters.len() == 1 {
            // It can fail only if it rings already, 2^64 times.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
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

    /// Gives what is in the box to those who wait for it; the event loop calls this.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let letters = {
            let mut letters = self.inner.letters();
            let mut rung = [0; 8];
            let _ = rustix::io::read(&self.inner.bell, &mut rung);
            std::mem::take(&mut *letters)
        };
        for Letter { future, outcome } in letters {
            let future = future.bind(py);
            // Who waited was cancelled: a guard that nobody gets is dropped, and releases (G6).
            if future.call_method0(intern!(py, "done"))?.is_truthy()? {
                continue;
            }
            let result = match outcome {
                Outcome::Acquired(Ok((guard, warden))) => {
                    Ok(Py::new(py, Guard::new(guard, warden))?.into_any())
                }
                Outcome::Done(Ok(())) => Ok(py.None()),
                Outcome::Lost(loss) => Ok(PyString::new(py, views::loss(loss)).unbind().into_any()),
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
        }
        Ok(())
    }
}

/// Something that runs on the warden's thread.
#[pyclass(frozen, module = "lockwarden._native")]
pub(crate) struct Started(AbortHandle);

impl Started {
    /// What [`lockwarden::blocking::Warden::spawn`] or its sister began.
    pub(crate) fn of(py: Python<'_>, task: Option<AbortHandle>) -> PyResult<Started> {
        task.map(Started).ok_or_else(|| errors::raised(py, &Error::Closed))
    }
}

#[pymethods]
impl Started {
    /// Gives it up: an acquire leaves neither a lock nor a ticket (G6).
    fn cancel(&self) {
        self.0.abort();
    }
}
