//! A held lock.

use crate::{
    errors,
    lock::duration,
    mailbox::{Address, Mailbox, Outcome, Started},
    views,
    wait::{block_on, run},
    warden::Warden,
};
use lockwarden::{Error, State, blocking};
use pyo3::{prelude::*, types::PyBytes};
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};
use tokio::sync::Notify;

#[pyclass(frozen, module = "lockwarden._native")]
pub(crate) struct Guard {
    /// None: released. Written without the interpreter lock; whoever has that only tries.
    held: RwLock<Option<lockwarden::Guard>>,
    /// As they are at the latest; a conversion changes them. Locked only with the interpreter lock.
    facts: Mutex<Facts>,
    /// Told when it is released, or gone.
    ended: Ended,
    /// Whose it is.
    process: u32,
    names: Vec<String>,
    warden: Py<Warden>,
}

/// Tells those who wait for a loss that there will be none.
#[derive(Clone, Default)]
struct Ended(Arc<(AtomicBool, Notify)>);

impl Ended {
    fn tell(&self) {
        self.0.0.store(true, Ordering::SeqCst);
        self.0.1.notify_waiters();
    }

    /// The loss, or none where the guard ended before.
    fn or<T, F: Future<Output = T>>(&self, lost: F) -> impl Future<Output = Option<T>> + use<T, F> {
        let ended = self.clone();
        async move {
            let (is_over, told) = &*ended.0;
            let told = told.notified();
            let (mut told, mut lost) = (pin!(told), pin!(lost));
            // From here on it hears.
            told.as_mut().enable();
            poll_fn(|cx| {
                if is_over.load(Ordering::SeqCst) || told.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                lost.as_mut().poll(cx).map(Some)
            })
            .await
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.ended.tell();
    }
}

#[derive(Clone)]
struct Facts {
    fence: u64,
    token: Vec<u8>,
}

impl Facts {
    fn of(guard: &lockwarden::Guard) -> Facts {
        Facts { fence: guard.fence(), token: guard.token().as_bytes().to_vec() }
    }
}

impl Guard {
    pub(crate) fn new(guard: lockwarden::Guard, warden: Py<Warden>) -> Guard {
        Guard {
            facts: Mutex::new(Facts::of(&guard)),
            names: guard.names().map(|name| name.as_str().to_owned()).collect(),
            held: RwLock::new(Some(guard)),
            ended: Ended::default(),
            process: std::process::id(),
            warden,
        }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        // Nothing panics while it is locked.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the guard; none: it is released, or is just being.
    fn ask<T>(&self, ask: impl FnOnce(&lockwarden::Guard) -> T) -> Option<T> {
        let held = self.held.try_read().ok()?;
        held.as_ref().map(ask)
    }

    /// Takes the guard out, to end it; called without the interpreter lock. None, too, in a forked child, which must not
    /// wait for a lock that another thread had in the moment of the fork.
    fn take(&self) -> Option<lockwarden::Guard> {
        if self.process != std::process::id() {
            return None;
        }
        self.ended.tell();
        self.held.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The same for a method.
    fn taken(&self, py: Python<'_>) -> PyResult<lockwarden::Guard> {
        py.detach(|| self.take()).ok_or_else(|| self.not_held(py))
    }

    /// The connection that it is held by. Closed: nothing is held any more.
    fn warden(&self, py: Python<'_>) -> PyResult<blocking::Warden> {
        self.warden.get().current(py)?.ok_or_else(|| self.not_held(py))
    }

    fn not_held(&self, py: Python<'_>) -> PyErr {
        errors::not_held(py, &self.names)
    }

    /// What came of a call; none: the guard was released already.
    fn told(&self, py: Python<'_>, result: Option<Result<(), Error>>) -> PyResult<()> {
        match result {
            Some(result) => result.map_err(|error| errors::raised(py, &error)),
            None => Err(self.not_held(py)),
        }
    }

    fn convert(
        &self,
        py: Python<'_>,
        convert: impl FnOnce(
            &blocking::Warden,
            &mut lockwarden::Guard,
        ) -> PyResult<Option<Result<(), Error>>>
        + Send,
    ) -> PyResult<()> {
        let warden = self.warden(py)?;
        let converted = py.detach(|| {
            let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
            let guard = held.as_mut();
            guard
                .map(|guard| Ok::<_, PyErr>((convert(&warden, guard)?, Facts::of(guard))))
                .transpose()
        });
        let Some((result, facts)) = converted? else { return Err(self.not_held(py)) };
        *self.facts() = facts;
        self.told(py, result)
    }
}

#[pymethods]
impl Guard {
    #[getter]
    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    #[getter]
    fn fence(&self) -> u64 {
        self.facts().fence
    }

    #[getter]
    fn token<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.facts().token)
    }

    /// True only while nobody else can have been granted the lock (G1).
    fn check(&self) -> bool {
        self.ask(lockwarden::Guard::check).unwrap_or(false)
    }

    /// Is it not released, and as far as is known not lost?
    #[getter]
    fn held(&self) -> bool {
        self.ask(|guard| !matches!(guard.state(), State::Lost(_))).unwrap_or(false)
    }

    /// Why it was lost, in words; none: it is not.
    #[getter]
    fn loss(&self) -> Option<&'static str> {
        match self.ask(lockwarden::Guard::state)? {
            State::Lost(loss) => Some(views::loss(loss)),
            _ => None,
        }
    }

    /// What is left of the last acknowledged lease, in s.
    #[getter]
    fn remaining(&self) -> f64 {
        self.ask(|guard| guard.remaining().as_secs_f64()).unwrap_or(0.0)
    }

    /// How long work that cannot ask `check` may go on, in s.
    #[getter]
    fn must_stop_in(&self) -> f64 {
        self.ask(|guard| guard.must_stop_in().as_secs_f64()).unwrap_or(0.0)
    }

    /// The future gets the reason when the lock is lost. None: it is released.
    fn start_lost(
        &self,
        py: Python<'_>,
        mailbox: &Mailbox,
        future: Py<PyAny>,
    ) -> PyResult<Option<Started>> {
        let Some(lost) = self.ask(lockwarden::Guard::lost) else { return Ok(None) };
        let address = Address::new(mailbox, future);
        let lost = self.ended.or(lost);
        Started::watch(py, &self.warden(py)?, address, async move { Outcome::Lost(lost.await) })
            .map(Some)
    }

    /// Waits until it is lost, and says why; none: it is released, or `wait` (s) is over.
    #[pyo3(signature = (wait=None))]
    fn wait_lost(&self, py: Python<'_>, wait: Option<f64>) -> PyResult<Option<&'static str>> {
        let Some(lost) = self.ask(lockwarden::Guard::lost) else { return Ok(None) };
        let wait = wait.map(|wait| duration(py, "a wait", wait)).transpose()?;
        let lost = self.ended.or(lost);
        let lost = async move {
            match wait {
                None => lost.await,
                Some(wait) => tokio::time::timeout(wait, lost).await.ok().flatten(),
            }
        };
        Ok(block_on(py, &self.warden(py)?, lost)?.flatten().map(views::loss))
    }

    /// Sets the lease to so many s from now, for this and all later renewals.
    fn extend(&self, py: Python<'_>, lease: f64) -> PyResult<()> {
        let lease = duration(py, "a lease", lease)?;
        let warden = self.warden(py)?;
        let extended = py.detach(|| {
            let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
            held.as_ref().map(|guard| run(&warden, guard.extend(lease))).transpose()
        });
        self.told(py, extended?.flatten())
    }

    /// Shares it from now on.
    fn downgrade(&self, py: Python<'_>) -> PyResult<()> {
        self.convert(py, |warden, guard| run(warden, guard.downgrade()))
    }

    /// Holds it alone from now on, if nobody else shares it.
    fn try_upgrade(&self, py: Python<'_>) -> PyResult<()> {
        self.convert(py, |warden, guard| run(warden, guard.try_upgrade()))
    }

    /// Gives it to whoever adopts what this returns within `keep` s.
    fn hand_over(&self, py: Python<'_>, keep: f64) -> PyResult<String> {
        let keep = duration(py, "a keep", keep)?;
        let warden = self.warden(py)?;
        let guard = self.taken(py)?;
        let given = block_on(py, &warden, guard.hand_over(keep))?.unwrap_or(Err(Error::Closed));
        Ok(given.map_err(|error| errors::raised(py, &error))?.to_string())
    }

    /// Gives it back.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let warden = self.warden(py)?;
        let guard = self.taken(py)?;
        let released = block_on(py, &warden, guard.release())?;
        self.told(py, released)
    }

    /// The same for an event loop. It goes on if the future is cancelled.
    fn start_release(&self, py: Python<'_>, mailbox: &Mailbox, future: Py<PyAny>) -> PyResult<()> {
        let warden = self.warden(py)?;
        let guard = self.taken(py)?;
        let address = Address::new(mailbox, future);
        let released = async move { Outcome::Done(guard.release().await) };
        Started::spawn(py, &warden, address, released).map(drop)
    }

    /// Ends the handle in the background, and leaves the key its value and what is left of its lease.
    fn leave(&self, py: Python<'_>) {
        py.detach(|| {
            if let Some(guard) = self.take() {
                // It has begun; nobody waits for it.
                drop(guard.leave());
            }
        });
    }

    /// Gives it back in the background.
    fn drop(&self, py: Python<'_>) {
        drop(py.detach(|| self.take()));
    }
}
