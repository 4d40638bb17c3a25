//! The warden of one store: a connection per process, which a forked child makes anew (R24, C14).

use crate::{
    errors,
    guard::Guard,
    lock::{Ask, Options},
    mailbox::{Address, Mailbox, Outcome, Started},
    views,
    wait::{block_on, rest_if_exiting},
};
use lockwarden::{Error, Settings, Token, blocking};
use pyo3::{prelude::*, types::PyDict};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[pyclass(frozen, module = "lockwarden._native")]
pub(crate) struct Warden {
    url: String,
    label: String,
    process_watch: bool,
    /// Locked only while the interpreter lock is held, and for a moment: so it is free in a forked child.
    connection: Mutex<Connection>,
}

enum Connection {
    None,
    Open(blocking::Warden),
    Closed,
}

impl Warden {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        // Nothing panics while it is locked.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection of this process; none: there is none yet.
    pub(crate) fn current(&self, py: Python<'_>) -> PyResult<Option<blocking::Warden>> {
        match &*self.connection() {
            Connection::Open(warden) if warden.is_ours() => return Ok(Some(warden.clone())),
            // A forked child begins anew.
            Connection::Open(_) | Connection::None => return Ok(None),
            Connection::Closed => {}
        }
        py.detach(rest_if_exiting);
        Err(errors::raised(py, &Error::Closed))
    }

    /// The connection of this process, made now if there is none.
    pub(crate) fn connected(&self, py: Python<'_>) -> PyResult<blocking::Warden> {
        match self.current(py)? {
            Some(warden) => Ok(warden),
            None => self.connect(py),
        }
    }

    /// Asks the store something.
    pub(crate) fn ask<T: Send>(
        py: Python<'_>,
        warden: &blocking::Warden,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> PyResult<T> {
        let answer = block_on(py, warden, call)?.unwrap_or(Err(Error::Closed));
        answer.map_err(|error| errors::raised(py, &error))
    }

    fn connect(&self, py: Python<'_>) -> PyResult<blocking::Warden> {
        let mut settings = Settings::new().label(&self.label);
        if !self.process_watch {
            settings = settings.without_process_watch();
        }
        let made = py
            .detach(|| blocking::Warden::with(settings, &self.url))
            .map_err(|error| errors::raised(py, &error))?;
        // Another thread may have been quicker: a process needs one connection.
        let theirs = self.current(py);
        if matches!(theirs, Ok(None)) {
            let before = std::mem::replace(&mut *self.connection(), Connection::Open(made.clone()));
            drop(before);
            return Ok(made);
        }
        py.detach(|| made.close());
        match theirs? {
            Some(theirs) => Ok(theirs),
            None => Err(errors::raised(py, &Error::Closed)),
        }
    }
}

#[pymethods]
impl Warden {
    /// Nothing is connected before it is needed.
    #[new]
    #[pyo3(signature = (url, *, label=String::new(), process_watch=true))]
    fn new(url: String, label: String, process_watch: bool) -> Warden {
        Warden { url, label, process_watch, connection: Mutex::new(Connection::None) }
    }

    /// Connects now, so that what is wrong with the store is told here.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        self.connected(py).map(drop)
    }

    /// Where the store is, without its password.
    fn place(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.connected(py)?.place())
    }

    #[pyo3(signature = (options, *, wait, owner=None, site=None, value=None))]
    fn acquire(
        slf: &Bound<'_, Warden>,
        options: &Options,
        wait: Option<f64>,
        owner: Option<String>,
        site: Option<String>,
        value: Option<Vec<u8>>,
    ) -> PyResult<Guard> {
        let py = slf.py();
        let warden = slf.get().connected(py)?;
        let lock = options.lock(py, warden.as_async(), &Ask { wait, owner, site, value })?;
        let guard = Warden::ask(py, &warden, lock.acquire())?;
        Ok(Guard::new(guard, slf.clone().unbind()))
    }

    /// The same for an event loop: the future gets the guard, or the exception.
    #[pyo3(signature = (options, mailbox, future, *, wait, owner=None, site=None, value=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn start_acquire(
        slf: &Bound<'_, Warden>,
        options: &Options,
        mailbox: &Mailbox,
        future: Py<PyAny>,
        wait: Option<f64>,
        owner: Option<String>,
        site: Option<String>,
        value: Option<Vec<u8>>,
    ) -> PyResult<Started> {
        let py = slf.py();
        let warden = slf.get().connected(py)?;
        let lock = options.lock(py, warden.as_async(), &Ask { wait, owner, site, value })?;
        let (address, keep) = (Address::new(mailbox, future), slf.clone().unbind());
        let acquired =
            async move { Outcome::Acquired(lock.acquire().await.map(|guard| (guard, keep))) };
        Started::spawn(py, &warden, address, acquired)
    }

    /// What stands about a name.
    fn show<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyDict>> {
        let warden = self.connected(py)?;
        views::lock(py, name, &Warden::ask(py, &warden, warden.as_async().show(name))?)
    }

    /// The names that hold anything.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let warden = self.connected(py)?;
        let (mut names, mut cursor) = (Vec::new(), 0);
        loop {
            let page = Warden::ask(py, &warden, warden.as_async().page(cursor, false))?;
            names.extend(page.names.iter().map(|name| name.as_str().to_owned()));
            cursor = page.cursor;
            if cursor == 0 {
                break;
            }
        }
        // A scan may tell a name twice.
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Takes a lock away from the holder with this token; how long until it ends, in s.
    fn revoke(&self, py: Python<'_>, name: &str, token: &[u8], delayed: bool) -> PyResult<f64> {
        let token = Token::new(token).map_err(|error| errors::invalid(py, error.to_string()))?;
        let warden = self.connected(py)?;
        let call = warden.as_async().revoke(name, &token, delayed);
        Ok(Warden::ask(py, &warden, call)?.as_secs_f64())
    }

    /// Asks the holder with this token to give the lock up.
    fn recall(&self, py: Python<'_>, name: &str, token: &[u8]) -> PyResult<()> {
        let token = Token::new(token).map_err(|error| errors::invalid(py, error.to_string()))?;
        let warden = self.connected(py)?;
        Warden::ask(py, &warden, warden.as_async().recall(name, &token))
    }

    /// Releases everything and ends. Again: nothing.
    fn close(&self, py: Python<'_>) {
        let before = std::mem::replace(&mut *self.connection(), Connection::Closed);
        if let Connection::Open(warden) = before {
            py.detach(|| warden.close());
        }
    }
}
