//! A held lock.

use super::{
    Shared,
    acquisition::{Ending, Grant},
    lock::least_lease_ms,
    state::ANSWER_US,
};
use crate::{
    clock,
    error::{Error, StoreError, Trouble},
    hand_over::HandOver,
    order::Hold,
    random,
};
use lockwarden_core::{
    Name, Reply, Token,
    command::Mode,
    keeper::{HandleId, Loss, State},
    limits,
    party::Party,
};
use std::{
    fmt,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio::{sync::oneshot, time::Instant};

/// How long [`Guard::extend`] waits for the store before it says that the outcome is unknown.
const EXTEND_PATIENCE: Duration = Duration::from_secs(5);

/// How long a conversion waits before it is sent again.
const CONVERT_AGAIN: Duration = Duration::from_millis(20);

/// A held lock. Dropping it releases in the background; [`Guard::release`] is better, for it tells
/// what happened.
///
/// It is renewed until then. Ask [`Guard::check`] before every step that must not happen twice, and
/// give [`Guard::fence`] to the protected resource where that can refuse older ones.
pub struct Guard {
    shared: Arc<Shared>,
    /// The acquisition, which several guards of one owner share.
    id: HandleId,
    /// This guard's own part in it.
    entry: HandleId,
    name: Name,
    /// The others, where several are held together.
    also: Arc<[Name]>,
    token: Token,
    fence: u64,
    drop_in: bool,
    released: bool,
    /// How many of the recalls were told.
    recalls_told: AtomicU32,
    /// What the order watch knows of it.
    pub(super) order: Option<Box<Hold>>,
}

impl Guard {
    pub(super) fn new(
        shared: Arc<Shared>,
        entry: HandleId,
        (name, also): (Name, Arc<[Name]>),
        grant: Grant,
        drop_in: bool,
    ) -> Guard {
        let Grant { id, token, fence, recalls } = grant;
        let recalls_told = AtomicU32::new(recalls);
        let (released, order) = (false, None);
        Guard {
            shared,
            id,
            entry,
            name,
            also,
            token,
            fence,
            drop_in,
            released,
            recalls_told,
            order,
        }
    }

    /// The lock's name; of several the first.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The names of all locks that are held by this guard, in order (see [`super::Warden::lock_all`]).
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        std::iter::once(&self.name).chain(&*self.also)
    }

    /// The value that proves this acquisition.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The number of this grant: larger than that of every grant of the name before it (G2). What a
    /// [gate](crate::gate) at the protected resource compares.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// The strict check (G1): true only while nobody else can have been granted the lock. It is
    /// local and cheap; ask it before each step, rather than remembering it.
    #[must_use]
    pub fn check(&self) -> bool {
        self.shared.ours().is_ok_and(|state| state.check(self.id))
    }

    /// What can be relied on now. `check()` may be false while the handle is at risk, and true
    /// again after the next renewal; lost is final (G8).
    #[must_use]
    pub fn state(&self) -> State {
        // Deadlines decide, not timers: the machine may have slept (R20).
        self.shared.ours().map_or(State::Lost(Loss::Forked), |state| state.handle_state(self.id))
    }

    /// How much is left of the last acknowledged lease, less the safety margin of 1 % and 10 ms.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let end_us = self.shared.ours().map_or(0, |state| state.keeper.lease_end_us(self.id));
        Duration::from_micros(end_us.saturating_sub(clock::now_us()))
    }

    /// How long work that cannot ask `check()` may go on, as far as anyone here can know: until the
    /// lease ends, or grace after the store's last answer, whichever is first. After that someone
    /// else may hold the lock.
    #[must_use]
    pub fn must_stop_in(&self) -> Duration {
        let stop_us = self.shared.ours().map_or(0, |state| state.keeper.stop_by_us(self.id));
        Duration::from_micros(stop_us.saturating_sub(clock::now_us()))
    }

    /// Ends when the lock is lost, and says why. Safe to drop and to call again. It does not borrow the guard, so that
    /// another task may wait for it; once the guard is released it says nothing of use any more.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let (shared, id) = (self.shared.clone(), self.id);
        let mut seen = self.state();
        async move {
            loop {
                if let State::Lost(loss) = seen {
                    return loss;
                }
                seen = changed(&shared, id, seen).await;
            }
        }
    }

    /// Ends when someone asks for the lock ([`super::Warden::recall`]), and says who; at once, if that was so since
    /// the guard exists and was not told yet. Nothing else happens: whoever listens decides, and may release. Called
    /// again it waits for the next one, however many came meanwhile. None: the lock is lost, so that nobody will ask.
    /// Safe to drop.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let guard = warden.lock("cache").acquire().await?;
    /// warden.recall("cache", guard.token()).await?;
    /// if let Some(by) = guard.recalled().await {
    ///     println!("process {:?} asks for it", by.pid());
    ///     guard.release().await?;
    /// }
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    pub async fn recalled(&self) -> Option<Arc<Party>> {
        // Each of those who wait at once is told.
        let told = self.recalls_told.load(Ordering::Relaxed);
        poll_fn(|cx| {
            let Ok(mut shared) = self.shared.ours() else { return Poll::Ready(None) };
            if let Some((count, by)) = shared.recall(self.id)
                && *count != told
            {
                self.recalls_told.store(*count, Ordering::Relaxed);
                return Poll::Ready(Some(by.clone()));
            }
            if matches!(shared.handle_state(self.id), State::Lost(_)) {
                return Poll::Ready(None);
            }
            shared.watch(self.id, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Ends when the state is another than `seen`, and says which.
    pub async fn changed(&self, seen: State) -> State {
        changed(&self.shared, self.id, seen).await
    }

    /// Ends when `check()` is true, or never will be again: false.
    pub(super) async fn sure(&self) -> bool {
        let mut seen = self.state();
        loop {
            match seen {
                State::Lost(_) => return false,
                _ if self.check() => return true,
                _ => seen = self.changed(seen).await,
            }
        }
    }

    /// Sets the lease to this length from now, for this and all later renewals. It sets, and never
    /// adds: however often it is called, the lock lives at most `lease` longer.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is not ours any more, [`Error::Invalid`] for a lease out of its
    /// range or an [endless](super::Lock::endless) lock, [`Error::Store`] if the store does not answer.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let given_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let lease_ms = limits::lease(given_ms, least_lease_ms(self.drop_in))?;
        let (reply, answer) = oneshot::channel();
        self.shared.ours()?.extend(self.id, lease_ms, reply);
        match tokio::time::timeout(EXTEND_PATIENCE, answer).await {
            Ok(answer) => answer.unwrap_or(Err(Error::Closed)),
            Err(_) => Err(Error::Store(self.shared.no_answer())),
        }
    }

    /// Goes on holding the lock, but shares it with readers from now on, those first who wait at the head of the queue
    /// (see [`super::Lock::shared`]). Nobody writes in between. The fence stays.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let mut guard = warden.lock("catalog").acquire().await?;
    /// guard.downgrade().await?;
    /// let reader = warden.lock("catalog").shared().no_wait().acquire().await?;
    /// assert!(guard.try_upgrade().await.is_err(), "beside a reader");
    /// reader.release().await?;
    /// guard.try_upgrade().await?;
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if it is not ours any more; [`Error::Invalid`] for a guard of several locks, or one of several
    /// guards of an owner; [`Error::OtherMode`] for permits. [`Error::Store`] if the store does not answer in 5 s: then
    /// take it for shared.
    pub async fn downgrade(&mut self) -> Result<(), Error> {
        self.convert(Mode::Shared).await
    }

    /// Holds a lock that is shared alone from now on, if nobody else shares it. It never waits for that: two readers
    /// who both wait for each other to end would for ever. (Who waits to write is passed: it could not write before this
    /// one ends in any case.) The fence is a new one, larger than that of every reader before (G2).
    ///
    /// # Errors
    /// [`Error::Busy`] beside other readers: release, and acquire it to write. Otherwise as [`Guard::downgrade`]. Without
    /// an answer in 5 s, or if the future is dropped, take it for shared still; it may turn out to be lost, for the token
    /// is another one where it was carried out (G1: an old snapshot must not be taken for it).
    pub async fn try_upgrade(&mut self) -> Result<(), Error> {
        self.convert(Mode::Exclusive).await
    }

    async fn convert(&mut self, to: Mode) -> Result<(), Error> {
        let until = Instant::now() + Duration::from_micros(ANSWER_US);
        // The same in every try (G6).
        let new_token = match to {
            Mode::Shared => self.token.clone(),
            _ => random::token()?,
        };
        let dropped = Unconverted { guard: self, token: new_token.clone() };
        let result = self.converted(to, &new_token, until).await;
        std::mem::forget(dropped);
        let mut shared = self.shared.ours()?;
        match result {
            Ok(fence) => {
                shared.converted(self.id, to, &new_token, fence);
                drop(shared);
                (self.fence, self.token) = (fence, new_token);
                Ok(())
            }
            Err(error) => {
                shared.not_converted(self.id, &new_token, Some(&error));
                Err(error)
            }
        }
    }

    /// Asks until it is answered, also on another link; says the fence.
    async fn converted(&self, to: Mode, new_token: &Token, until: Instant) -> Result<u64, Error> {
        let name = self.name.clone();
        loop {
            let answer = {
                let mut shared = self.shared.ours()?;
                let command = shared.convert(self.id, to, new_token)?;
                shared.ask(command)
            };
            let answer = match tokio::time::timeout_at(until, answer).await {
                Ok(answer) => answer.map_err(|_| Error::Closed)?,
                Err(_) => return Err(Error::Store(self.shared.no_answer())),
            };
            return match answer {
                Ok(Reply::Converted { fence }) => Ok(fence),
                Ok(Reply::Refused(refusal)) => {
                    Err(Error::Busy { name, told: Some(Box::new(refusal)) })
                }
                Ok(Reply::NotHeld(absence)) => {
                    Err(Error::Lost { name, loss: Loss::NotHeld(absence) })
                }
                Ok(Reply::Guarded { guard_ms, .. }) => {
                    Err(Error::Guarded { name, left: Duration::from_millis(guard_ms) })
                }
                Ok(Reply::OtherMode { in_use, .. }) => {
                    Err(Error::OtherMode { name, asked: to, in_use })
                }
                Ok(Reply::FloorAhead { now_us }) => {
                    let rule = "the fence floor must not be a day ahead of the store's clock";
                    Err(Error::Invalid(format!("{rule} ({now_us} µs)")))
                }
                // The link is mended, or made anew, and then it is sent again.
                Ok(Reply::Unsubscribed | Reply::Stale)
                | Err(StoreError::Unavailable {
                    trouble: Trouble::Disconnected | Trouble::Unreachable,
                    ..
                }) if Instant::now() < until => {
                    tokio::time::sleep(CONVERT_AGAIN).await;
                    continue;
                }
                Ok(other) => Err(self.shared.unexpected(&other)),
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Gives the lock to another task or process, in which [`Warden::adopt`](super::Warden::adopt) takes what this
    /// returns. Nobody else gets it in between; for `keep` it waits to be adopted, whatever becomes of this process, and
    /// then it is free. This guard ends: `check()` is false before the store hears of it.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use std::time::Duration;
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let guard = warden.lock("invoice:7").acquire().await?;
    /// let text = guard.hand_over(Duration::from_secs(60)).await?.to_string();
    /// // … in another process:
    /// let guard = warden.adopt(&text.parse()?).acquire().await?;
    /// assert!(guard.check());
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if it is not ours any more; [`Error::Invalid`] for a `keep` that is no lease, which releases it, for a
    /// drop-in value, or where the owner holds the lock by another guard, too, and goes on holding it by that. [`Error::Store`] if the store does not
    /// answer in 5 s. After an error, or if the future is dropped, it is given back, as far as the store can be told.
    pub async fn hand_over(mut self, keep: Duration) -> Result<HandOver, Error> {
        let given_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        let lease_ms = limits::lease(given_ms, limits::MIN_LEASE_MS)?;
        if self.drop_in {
            let rule = "a lock with a drop-in value is not handed over";
            return Err(Error::Invalid(format!("{rule}: {}", self.name)));
        }
        let token = random::token()?;
        let names = self.shared.ours()?.wants(self.id);
        let (reply, answer) = oneshot::channel();
        let how = Ending::HandOver { to: token.clone(), lease_ms };
        self.shared.request(|inbox| inbox.leave(self.entry, how, Some(reply)))?;
        self.released = true;
        // Whoever does not get to know the token cannot have it adopted.
        let unknown = Unknown { guard: &self, token: token.clone() };
        answer.await.unwrap_or(Err(Error::Closed))?;
        std::mem::forget(unknown);
        Ok(HandOver { names, token })
    }

    /// Ends this guard without freeing the lock: for the drop-ins, whose users may go on with it elsewhere, by its value.
    /// The key keeps its value and what is left of its lease. Until then whoever knows the value can extend or release
    /// it ([`Warden::extend_by_value`](super::Warden::extend_by_value),
    /// [`Warden::release_by_value`](super::Warden::release_by_value)); nobody renews it, and it no longer matters what
    /// becomes of this process. An [endless](super::Lock::endless) lock has no lease, and is released.
    ///
    /// It begins when it is called: whoever does not want to wait drops the future. `check()` is false from then on.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let guard = warden.lock("x").drop_in_value(b"their token").without_renewal().acquire().await?;
    /// guard.leave().await?;
    /// assert!(warden.lock("x").no_wait().acquire().await.is_err());
    /// warden.release_by_value("x", b"their token").await?;
    /// assert!(warden.lock("x").no_wait().acquire().await.is_ok());
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] without a [drop-in value](super::Lock::drop_in_value): then it is released. [`Error::Lost`] if
    /// it was lost before. [`Error::Store`] if the store did not answer within 5 s: it is tried on in the background while
    /// the lease lasts.
    pub fn leave(mut self) -> impl Future<Output = Result<(), Error>> + Send {
        let (reply, answer) = oneshot::channel();
        let begun = match self.drop_in {
            true => self.shared.request(|inbox| {
                inbox.leave(self.entry, Ending::Leave, Some(reply));
            }),
            false => {
                let rule = "only a lock with a drop-in value can be left";
                Err(Error::Invalid(format!("{rule}: {}", self.name)))
            }
        };
        self.released = begun.is_ok();
        drop(self);
        async move {
            begun?;
            answer.await.unwrap_or(Err(Error::Closed))
        }
    }

    /// Releases the lock and says what happened. Where its owner acquired it more than once (see
    /// [`super::Lock::owner`]), the last of the guards gives it back.
    ///
    /// # Errors
    /// [`Error::Lost`]: it was lost before, and another holder was not touched.
    /// [`Error::ReleasedOrLost`] where the store cannot tell. [`Error::Store`] if it did not answer
    /// within 5 s: the release is tried on in the background while the lease lasts.
    pub async fn release(mut self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.shared.request(|inbox| inbox.leave(self.entry, Ending::Release, Some(reply)))?;
        self.released = true;
        // The driver's own timers end the wait: a timer of the runtime for each release would cost
        // more than the rest of it.
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

/// Ends when the state of this acquisition is another than `seen`.
async fn changed(shared: &Shared, id: HandleId, seen: State) -> State {
    poll_fn(|cx| {
        let Ok(mut shared) = shared.ours() else {
            return Poll::Ready(State::Lost(Loss::Forked));
        };
        let state = shared.handle_state(id);
        if state != seen {
            return Poll::Ready(state);
        }
        shared.watch(id, cx.waker());
        Poll::Pending
    })
    .await
}

/// A conversion whose future may be dropped before it is answered.
struct Unconverted<'a> {
    guard: &'a Guard,
    token: Token,
}

impl Drop for Unconverted<'_> {
    fn drop(&mut self) {
        if let Ok(mut shared) = self.guard.shared.ours() {
            shared.not_converted(self.guard.id, &self.token, None);
        }
    }
}

/// A hand-over whose caller may go, or be told an error, before it knows what is to be adopted.
struct Unknown<'a> {
    guard: &'a Guard,
    token: Token,
}

impl Drop for Unknown<'_> {
    fn drop(&mut self) {
        let Guard { shared, id, name, also, .. } = self.guard;
        let names = (name.clone(), also.clone());
        let token = self.token.clone();
        let _ = shared.request(|inbox| inbox.take_back(*id, names, token));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            // In a forked child there is nothing to release.
            let _ = self.shared.request(|inbox| inbox.leave(self.entry, Ending::Release, None));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
