//! The warden: one connected client of a store, with everything that needs time and I/O.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use lockwarden::Warden;
//! use std::time::Duration;
//!
//! let warden = Warden::connect("memory:").await?;
//! let guard = warden.lock("stock:order_7").wait_for(Duration::from_secs(5)).acquire().await?;
//! assert!(guard.check());
//! guard.release().await?;
//! # Ok::<(), lockwarden::Error>(()) }).unwrap();
//! ```

mod acquisition;
mod answers;
mod by_value;
mod changes;
mod driver;
mod guard;
mod inbox;
mod lock;
mod outbox;
mod owners;
mod state;
mod timing;
mod watching;

pub use acquisition::Waiting;
pub use guard::Guard;
pub use lock::Lock;

use crate::{
    error::{Error, StoreError},
    fork,
    hand_over::HandOver,
    order::OrderWatch,
    process, random,
    store::{Page, Store, url::StoreUrl},
};
use driver::Driver;
use inbox::Inbox;
use lockwarden_core::{
    Command, Name, Reply, Rules, Token,
    command::{Extension, LockView, Mode},
    name,
    party::{self, Party, Process},
};
use state::State;
use std::{
    collections::HashMap,
    fmt,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};
use tokio::sync::oneshot;
use watching::Watching;

/// One connected client of a store. Cheap to clone; one per process is the normal case, and
/// thousands of locks and waiters share its one link.
///
/// It lives on the tokio runtime that connected it, and needs that runtime to keep running for its
/// heartbeat; if the runtime stalls, `check()` turns false in time by itself. Where async code may
/// block its runtime, use [`crate::blocking::Warden`], which has a thread of its own.
///
/// When the last clone and the last guard are gone, what is held is released and the link closed.
#[derive(Clone)]
pub struct Warden {
    shared: Arc<Shared>,
    _alive: Arc<Alive>,
}

/// Settings of a warden, each with its default.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    label: String,
    owner: String,
    processes: Option<Vec<Process>>,
    no_process_watch: bool,
    order_watch: Option<OrderWatch>,
    rules: Rules,
}

/// What the driver, the callers and the guards share.
pub(crate) struct Shared {
    /// Locked by [`Shared::state`] only.
    state: Mutex<State>,
    /// Locked behind the state, where both are.
    inbox: Mutex<Inbox>,
    store: Arc<dyn Store>,
    party: Arc<Party>,
    /// The party of each place that acquires, by the address of its location. A program has so many of them and no
    /// more; all that is acquired at one place shares its party, in memory and in each call of the store.
    parties: RwLock<HashMap<usize, Arc<Party>>>,
    order_watch: Option<OrderWatch>,
    /// Of the process that connected ([`fork::generation`]): a forked child holds nothing (R24).
    generation: u32,
}

/// Closes the warden when its last clone goes.
struct Alive(Arc<Shared>);

impl Settings {
    /// The defaults.
    #[must_use]
    pub fn new() -> Settings {
        Settings::default()
    }

    /// What people read about this client everywhere: at most 256 bytes. Each lock may have its
    /// own.
    #[must_use]
    pub fn label(mut self, label: &str) -> Settings {
        self.label = label.to_owned();
        self
    }

    /// The owner of this client's acquisitions, unless a lock names its own: see [`Lock::owner`]. Only for a client
    /// that is one line of execution: tasks that share it would all have what one of them holds.
    #[must_use]
    pub fn owner(mut self, owner: &str) -> Settings {
        self.owner = owner.to_owned();
        self
    }

    /// Processes whose life keeps the locks, beside the calling one (R38): `lockwarden run` names its
    /// command.
    #[must_use]
    pub fn processes(mut self, processes: Vec<Process>) -> Settings {
        self.processes = Some(processes);
        self
    }

    /// Do not watch the processes of holders on this machine: behave as if all were elsewhere.
    /// Takeover from a killed holder then takes its grace instead of milliseconds.
    #[must_use]
    pub fn without_process_watch(mut self) -> Settings {
        self.no_process_watch = true;
        self
    }

    /// Watch the order in which owners take locks, and tell of two that disagree: see [`crate::order`].
    #[must_use]
    pub fn order_watch(mut self, watch: &OrderWatch) -> Settings {
        self.order_watch = Some(watch.clone());
        self
    }

    /// Believes without some rules of the protocol: only to show that a test can fail.
    #[doc(hidden)]
    #[must_use]
    pub fn with_rules(mut self, rules: Rules) -> Settings {
        self.rules = rules;
        self
    }

    /// Connects to the store that a URL names: `memory:`, `file:DIR`, `redis://…`, `rediss://…`,
    /// `unix://…`.
    pub async fn connect(self, url: &str) -> Result<Warden, Error> {
        let store = url.parse::<StoreUrl>()?.open()?;
        self.connect_to(store).await
    }

    /// Connects to a store.
    pub async fn connect_to(self, store: Arc<dyn Store>) -> Result<Warden, Error> {
        let label = name::label(&self.label)?.into();
        let owner = match &*self.owner {
            "" => "",
            owner => name::owner(owner)?,
        };
        // Our own is always among them: while it lives, it may believe.
        let own = process::current();
        let mut processes = self.processes.unwrap_or_default();
        if !processes.contains(&own) {
            processes.insert(0, own);
        }
        let host = process::hostname();
        let (owner, processes) = (owner.into(), processes.into());
        let (site, tags) = (Arc::default(), Arc::default());
        let party = Arc::new(Party { owner, label, host, processes, site, tags });
        let session = random::session_id()?;
        let link = store.connect(&session, false).await?;
        let watches = store.watches_processes() && !self.no_process_watch;
        let shared = Arc::new_cyclic(|weak| Shared {
            state: Mutex::new(State::new(
                self.rules,
                Watching::new(store.place(), watches, session.clone(), weak.clone()),
            )),
            inbox: Mutex::default(),
            store,
            party,
            parties: RwLock::default(),
            order_watch: self.order_watch,
            generation: fork::generation(),
        });
        tokio::spawn(Driver::new(shared.clone(), session, link));
        Ok(Warden { _alive: Arc::new(Alive(shared.clone())), shared })
    }
}

impl Warden {
    /// Connects with the default [`Settings`].
    pub async fn connect(url: &str) -> Result<Warden, Error> {
        Settings::new().connect(url).await
    }

    /// A lock by its name. Nothing is checked or sent before it is acquired.
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.shared.clone(), vec![(name.to_owned(), Mode::Exclusive)])
    }

    /// Several locks at once, 1,000 at most: they are granted together and released together, with one guard and one
    /// fence. While it waits it holds none of them, so that no order has to be kept. A name that comes twice is one.
    /// If one of them is lost, all are: what is left is released with the guard.
    ///
    /// Others may take a free lock of these while the rest is not free; but for the request that has waited for
    /// longest what is free is kept, so that it does not starve (R29).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let order = warden.lock_all(["user:7", "stock:12", "coupon:3"]).acquire().await?;
    /// assert!(order.check());
    /// assert_eq!(order.names().count(), 3);
    /// order.release().await?;
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        let named = |name: N| (name.as_ref().to_owned(), Mode::Exclusive);
        let names = names.into_iter().map(named).collect();
        Lock::new(self.shared.clone(), names)
    }

    /// Locks that another task or process has handed over ([`Guard::hand_over`]), to be acquired as any: with the
    /// options that are set here, but in the modes that they had. It does not wait: they are there, or it is
    /// [`Error::NotHandedOver`], for they can be adopted once, and only for as long as the giver said. The fence is a new
    /// one (G2).
    pub fn adopt(&self, given: &HandOver) -> Lock {
        Lock::new(self.shared.clone(), Vec::new()).adopting(given)
    }

    /// What stands about a name: its holder and its queue.
    pub async fn show(&self, name: &str) -> Result<LockView, Error> {
        match self.ask(Command::Show { name: Name::new(name)? }).await? {
            Reply::Shown(view) => Ok(*view),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Takes a lock away from the holder with this token (R32). Delayed: its renewals are refused
    /// and it ends within W (3 s), so that the holder stops believing before anyone else is
    /// granted; otherwise it ends at once, and only the fence protects what it guards. Returns how
    /// long until it ends.
    pub async fn revoke(
        &self,
        name: &str,
        token: &Token,
        delayed: bool,
    ) -> Result<Duration, Error> {
        let name = Name::new(name)?;
        let command =
            Command::Revoke { name: name.clone(), token: token.clone(), session: None, delayed };
        match self.ask(command).await? {
            Reply::Revoked { after_ms } => Ok(Duration::from_millis(after_ms)),
            Reply::NotHeld(absence) => {
                let loss = lockwarden_core::keeper::Loss::NotHeld(absence);
                Err(Error::Lost { name, loss })
            }
            Reply::Guarded { guard_ms, .. } => {
                Err(Error::Guarded { name, left: Duration::from_millis(guard_ms) })
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Asks the holder with this token to give the lock up. It hears who asks ([`Guard::recalled`]), and decides;
    /// nothing else changes. That it was asked does not say that it heard it, for what is told may be lost: whoever
    /// still wants the lock asks again.
    ///
    /// # Errors
    /// [`Error::Lost`] if nobody holds it with this token; [`Error::Foreign`] if the holder is another kind of client,
    /// which cannot be asked.
    pub async fn recall(&self, name: &str, token: &Token) -> Result<(), Error> {
        let name = Name::new(name)?;
        let (token, by) = (token.clone(), self.shared.party.clone());
        match self.ask(Command::Recall { name: name.clone(), token, by }).await? {
            Reply::Recalled => Ok(()),
            Reply::Foreign => Err(Error::Foreign { name }),
            Reply::NotHeld(absence) => {
                let loss = lockwarden_core::keeper::Loss::NotHeld(absence);
                Err(Error::Lost { name, loss })
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Changes when a lock ends, whoever holds it: only the key's value is compared, as redis-py does it. It may be held
    /// by another process, by one that [left](Guard::leave) it, or by a client of another library. Says how long the
    /// lock lives from now on. [`Extension`] has what the duration means; what another process believes in never gets
    /// shorter by this (R18), and a lock that is renewed goes on being renewed, with a lease of its own. The caller holds
    /// nothing by it; but if a guard of this very warden holds the lock, that guard believes in the new lease.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use std::time::Duration;
    /// use lockwarden::Extension;
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let lock = warden.lock("x").drop_in_value(b"their token").lease(Duration::from_secs(10));
    /// let guard = lock.without_renewal().acquire().await?;
    /// let more = Duration::from_secs(5);
    /// let left = warden.extend_by_value("x", b"their token", more, Extension::Add).await?;
    /// assert!(left > Duration::from_secs(14) && guard.remaining() > Duration::from_secs(14));
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the key has another value, or none, or the lock was revoked or handed over; [`Error::Endless`]
    /// if it has no expiry, but for [`Extension::Set`]; [`Error::Invalid`] for a value or a duration out of its range, or
    /// one of several locks of one guard. [`Error::Store`] if the store does not answer in 5 s. With [`Extension::Add`]
    /// an unknown [effect](Error::effect) means that it may have been added: it is never sent twice.
    pub async fn extend_by_value(
        &self,
        name: &str,
        value: &[u8],
        duration: Duration,
        how: Extension,
    ) -> Result<Duration, Error> {
        let (name, token) = (Name::new(name)?, Token::new(value)?);
        by_value::extend(&self.shared, name, token, duration, how).await
    }

    /// Releases a lock, whoever holds it: only the key's value is compared, as redis-py does it. The first in the queue
    /// has it then; a holder of ours is told. Also what was [left](Guard::leave), and what a client of another library
    /// holds.
    ///
    /// # Errors
    /// [`Error::Lost`] if the key has another value, or none: nothing was changed. [`Error::Invalid`] for a value out of
    /// its range. [`Error::Store`] if the store does not answer in 5 s.
    pub async fn release_by_value(&self, name: &str, value: &[u8]) -> Result<(), Error> {
        let (name, token) = (Name::new(name)?, Token::new(value)?);
        by_value::release(&self.shared, name, token).await
    }

    /// One page of the names that hold anything, from `cursor` on (0: the first page).
    pub async fn page(&self, cursor: u64, foreign: bool) -> Result<Page, Error> {
        let receiver = self.shared.ours()?.list(cursor, foreign);
        answer(&self.shared, receiver).await
    }

    /// Releases everything, gives up all waiting, and ends. Waits for the store's acknowledgement,
    /// 3 s at most.
    pub async fn close(self) {
        match self.shared.ours() {
            Ok(mut state) => state.close(),
            Err(_) => return,
        }
        self.shared.ended().await;
    }

    /// Where the store is, without its password.
    #[must_use]
    pub fn place(&self) -> String {
        self.shared.store.place()
    }

    /// What the driver shares, for a thread that must not end before it.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    fn unexpected(&self, reply: &Reply) -> Error {
        self.shared.unexpected(reply)
    }

    async fn ask(&self, command: Command) -> Result<Reply, Error> {
        let receiver = self.shared.ours()?.ask(command);
        answer(&self.shared, receiver).await
    }
}

/// Waits for an answer, but not for ever.
async fn answer<T>(
    shared: &Shared,
    receiver: oneshot::Receiver<Result<T, StoreError>>,
) -> Result<T, Error> {
    match tokio::time::timeout(Duration::from_micros(state::ANSWER_US), receiver).await {
        Ok(Ok(answer)) => Ok(answer?),
        Ok(Err(_)) => Err(Error::Closed),
        Err(_) => Err(Error::Store(shared.no_answer())),
    }
}

impl Shared {
    /// The state, with all requests so far taken in.
    fn state(&self) -> MutexGuard<'_, State> {
        // State is changed in small steps that do not panic; what a panicking thread left is whole.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox().take_in(&mut state);
        state
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a request, and has the driver look at it.
    fn request<T>(&self, request: impl FnOnce(&mut Inbox) -> T) -> Result<T, Error> {
        if !self.is_ours() {
            return Err(Error::Closed);
        }
        let (result, waker) = {
            let mut inbox = self.inbox();
            (request(&mut inbox), inbox.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(result)
    }

    /// Our party, as it acquires at this place.
    fn party_at(&self, site: &'static Location<'static>) -> Result<Arc<Party>, Error> {
        if !self.is_ours() {
            return Err(Error::Closed);
        }
        let key = std::ptr::from_ref(site).addr();
        // Nothing panics while they are locked.
        let known = self.parties.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(party) = known.get(&key) {
            return Ok(party.clone());
        }
        drop(known);
        let site = party::site(&format!("{}:{}", site.file(), site.line()));
        let party = Arc::new(Party { site, ..(*self.party).clone() });
        let mut known = self.parties.write().unwrap_or_else(PoisonError::into_inner);
        Ok(known.entry(key).or_insert(party).clone())
    }

    /// The state, for a call of a user: refused in a forked child.
    fn ours(&self) -> Result<MutexGuard<'_, State>, Error> {
        if self.is_ours() { Ok(self.state()) } else { Err(Error::Closed) }
    }

    /// Is this the process that connected? A forked child holds nothing, and must not even wait for
    /// the mutex, which a thread that it does not have may have locked (R24).
    fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Ends when the driver has ended.
    pub(crate) async fn ended(&self) {
        std::future::poll_fn(|cx| {
            let mut state = self.state();
            if state.ended {
                return std::task::Poll::Ready(());
            }
            state.watch_end(cx.waker());
            std::task::Poll::Pending
        })
        .await;
    }

    fn unexpected(&self, reply: &Reply) -> Error {
        StoreError::protocol(self.store.place(), format!("it answered {reply:?}")).into()
    }

    /// The error of a store that did not answer in time.
    fn no_answer(&self) -> StoreError {
        self.state().no_answer()
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if self.0.is_ours() {
            self.0.state().abandon();
        }
    }
}

impl fmt::Debug for Warden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warden").field("place", &self.place()).finish_non_exhaustive()
    }
}
