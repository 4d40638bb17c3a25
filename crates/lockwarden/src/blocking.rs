//! The same for code without async: on a thread of its own.
//!
//! ```
//! use lockwarden::blocking::Warden;
//! use std::time::Duration;
//!
//! let warden = Warden::connect("memory:")?;
//! let guard = warden.lock("nightly-report").wait_for(Duration::from_secs(5)).acquire()?;
//! assert!(guard.check());
//! guard.release()?;
//! # Ok::<(), lockwarden::Error>(())
//! ```

use crate::{
    Error, Extension, HandOver, LockView, Loss, Party, Settings, State, Token, error::StoreError,
    process::Unforked, warden::Shared,
};
use std::{fmt, future::Future, ops::Deref, sync::Arc, time::Duration};
use tokio::{runtime::Builder, task::AbortHandle};
use turns::{LAST, Turns};

mod turns;

/// As [`crate::Warden`]. Heartbeat and renewal run on a thread of its own, whatever the caller's
/// threads do. Its methods block, so they must not be called from async code. In a forked child they
/// are refused at once, and what the child drops hurts nobody; it may connect a warden of its own.
#[derive(Clone, Debug)]
pub struct Warden {
    // Before the thread: what is held is released while there still is one.
    inner: crate::Warden,
    thread: Arc<Thread>,
}

/// As [`crate::Lock`].
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    inner: crate::Lock,
    thread: Arc<Thread>,
}

/// As [`crate::Guard`], which it dereferences to; what blocks is its own.
#[derive(Debug)]
pub struct Guard {
    inner: crate::Guard,
    thread: Arc<Thread>,
}

/// The runtime of a warden and its thread. A forked child has neither: it must not ask the runtime
/// for anything, nor wait for the thread's end (R24).
struct Thread {
    turns: Unforked<Arc<Turns>>,
    shared: Arc<Shared>,
}

impl Drop for Thread {
    /// What was dropped just before is released by the driver, which needs the thread for it.
    fn drop(&mut self) {
        let Some(turns) = self.turns.get() else { return };
        // In async code nothing may block; then the store finds out by the closed link.
        if tokio::runtime::Handle::try_current().is_err() {
            let shared = self.shared.clone();
            let _ = turns.block_on(async move { tokio::time::timeout(LAST, shared.ended()).await });
        }
        turns.end();
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Thread")
    }
}

impl Thread {
    /// None: this is a forked child.
    fn block_on<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        Some(self.turns.get()?.block_on(future))
    }

    fn block_on_call<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.block_on(call).unwrap_or(Err(Error::Closed))
    }
}

impl Warden {
    /// As [`crate::Warden::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: &str) -> Result<Warden, Error> {
        Warden::with(Settings::new(), url)
    }

    /// As [`Settings::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn with(settings: Settings, url: &str) -> Result<Warden, Error> {
        let no_thread =
            |error: std::io::Error| StoreError::Invalid { detail: format!("no thread: {error}") };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let inner = runtime.block_on(settings.connect(url))?;
        let shared = inner.shared();
        let turns = Turns::start(runtime).map_err(no_thread)?;
        let thread = Thread { turns: Unforked::new(turns), shared };
        Ok(Warden { inner, thread: Arc::new(thread) })
    }

    /// As [`crate::Warden::lock`].
    pub fn lock(&self, name: &str) -> Lock {
        Lock { inner: self.inner.lock(name), thread: self.thread.clone() }
    }

    /// As [`crate::Warden::lock_all`].
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        Lock { inner: self.inner.lock_all(names), thread: self.thread.clone() }
    }

    /// As [`crate::Warden::adopt`].
    pub fn adopt(&self, given: &HandOver) -> Lock {
        Lock { inner: self.inner.adopt(given), thread: self.thread.clone() }
    }

    /// As [`crate::Warden::show`].
    ///
    /// # Errors
    /// As there.
    pub fn show(&self, name: &str) -> Result<LockView, Error> {
        self.thread.block_on_call(self.inner.show(name))
    }

    /// As [`crate::Warden::revoke`].
    ///
    /// # Errors
    /// As there.
    pub fn revoke(&self, name: &str, token: &Token, delayed: bool) -> Result<Duration, Error> {
        self.thread.block_on_call(self.inner.revoke(name, token, delayed))
    }

    /// As [`crate::Warden::recall`].
    ///
    /// # Errors
    /// As there.
    pub fn recall(&self, name: &str, token: &Token) -> Result<(), Error> {
        self.thread.block_on_call(self.inner.recall(name, token))
    }

    /// Where the store is, without its password.
    #[must_use]
    pub fn place(&self) -> String {
        self.inner.place()
    }

    /// The same warden for async code, which may wait on any runtime.
    #[must_use]
    pub fn as_async(&self) -> &crate::Warden {
        &self.inner
    }

    /// Was it connected by this very process? A forked child cannot use it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.thread.turns.get().is_some()
    }

    /// Waits for something of [`Warden::as_async`], which may have timers; none: this is a forked child.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.thread.block_on(future)
    }

    /// Runs this beside heartbeat and renewal, which it must never block; none: this is a forked child.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        Some(self.thread.turns.get()?.spawn(future))
    }

    /// The same for what may wait for long, as for a lock to be lost: it goes on within 2 ms of its time, and costs the
    /// callers nothing until then.
    pub fn watch(&self, future: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        Some(self.thread.turns.get()?.watch(future))
    }

    /// As [`crate::Warden::extend_by_value`].
    ///
    /// # Errors
    /// As there.
    pub fn extend_by_value(
        &self,
        name: &str,
        value: &[u8],
        duration: Duration,
        how: Extension,
    ) -> Result<Duration, Error> {
        self.thread.block_on_call(self.inner.extend_by_value(name, value, duration, how))
    }

    /// As [`crate::Warden::release_by_value`].
    ///
    /// # Errors
    /// As there.
    pub fn release_by_value(&self, name: &str, value: &[u8]) -> Result<(), Error> {
        self.thread.block_on_call(self.inner.release_by_value(name, value))
    }

    /// As [`crate::Warden::close`].
    pub fn close(self) {
        let _ = self.thread.block_on(self.inner.close());
    }
}

impl Lock {
    /// Changes the lock's options: `lock.with(|it| it.no_wait())`.
    pub fn with(mut self, change: impl FnOnce(crate::Lock) -> crate::Lock) -> Lock {
        self.inner = change(self.inner);
        self
    }

    /// As [`crate::Lock::no_wait`].
    pub fn no_wait(self) -> Lock {
        self.with(crate::Lock::no_wait)
    }

    /// As [`crate::Lock::wait_for`].
    pub fn wait_for(self, wait: Duration) -> Lock {
        self.with(|lock| lock.wait_for(wait))
    }

    /// As [`crate::Lock::lease`].
    pub fn lease(self, lease: Duration) -> Lock {
        self.with(|lock| lock.lease(lease))
    }

    /// As [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn acquire(&self) -> Result<Guard, Error> {
        let inner = self.thread.block_on_call(self.inner.acquire())?;
        Ok(Guard { inner, thread: self.thread.clone() })
    }
}

impl Guard {
    /// As [`crate::Guard::lost`].
    #[must_use]
    pub fn lost(&self) -> Loss {
        self.thread.block_on(self.inner.lost()).unwrap_or(Loss::Forked)
    }

    /// As [`crate::Guard::changed`], waiting at most `wait`; none: it did not change.
    #[must_use]
    pub fn changed(&self, seen: State, wait: Duration) -> Option<State> {
        let changed = async { tokio::time::timeout(wait, self.inner.changed(seen)).await.ok() };
        self.thread
            .block_on(changed)
            .unwrap_or_else(|| Some(self.inner.state()).filter(|state| *state != seen))
    }

    /// As [`crate::Guard::recalled`], waiting at most `wait`; none: nobody asked, or the lock is lost.
    ///
    /// ```
    /// use lockwarden::blocking::Warden;
    /// use std::time::Duration;
    ///
    /// let warden = Warden::connect("memory:")?;
    /// let guard = warden.lock("cache").acquire()?;
    /// assert!(guard.recalled(Duration::ZERO).is_none());
    /// warden.recall("cache", guard.token())?;
    /// let by = guard.recalled(Duration::from_secs(5)).expect("asked");
    /// assert_eq!(by.pid(), Some(std::process::id()));
    /// # Ok::<(), lockwarden::Error>(())
    /// ```
    #[must_use]
    pub fn recalled(&self, wait: Duration) -> Option<Arc<Party>> {
        let recalled = async { tokio::time::timeout(wait, self.inner.recalled()).await };
        self.thread.block_on(recalled)?.ok()?
    }

    /// As [`crate::Guard::extend`].
    ///
    /// # Errors
    /// As there.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.thread.block_on_call(self.inner.extend(lease))
    }

    /// As [`crate::Guard::downgrade`].
    ///
    /// # Errors
    /// As there.
    pub fn downgrade(&mut self) -> Result<(), Error> {
        self.thread.block_on_call(self.inner.downgrade())
    }

    /// As [`crate::Guard::try_upgrade`].
    ///
    /// # Errors
    /// As there.
    pub fn try_upgrade(&mut self) -> Result<(), Error> {
        self.thread.block_on_call(self.inner.try_upgrade())
    }

    /// As [`crate::Guard::hand_over`].
    ///
    /// # Errors
    /// As there.
    pub fn hand_over(self, keep: Duration) -> Result<HandOver, Error> {
        self.thread.block_on_call(self.inner.hand_over(keep))
    }

    /// As [`crate::Guard::leave`].
    ///
    /// # Errors
    /// As there.
    pub fn leave(self) -> Result<(), Error> {
        self.thread.block_on_call(self.inner.leave())
    }

    /// As [`crate::Guard::leave`], without waiting for the store: where nothing may block, as when an interpreter ends.
    pub fn leave_in_background(self) {
        drop(self.inner.leave());
    }

    /// As [`crate::Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<(), Error> {
        self.thread.block_on_call(self.inner.release())
    }
}

impl Deref for Guard {
    type Target = crate::Guard;

    fn deref(&self) -> &crate::Guard {
        &self.inner
    }
}
