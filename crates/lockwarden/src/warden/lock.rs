//! A lock by its name, and how it is acquired.

use super::{
    Guard, Shared,
    acquisition::{Ending, Waiting},
};
use crate::{error::Error, hand_over::HandOver, order::Hold, random};
use lockwarden_core::{
    Name, Token,
    command::{Acquire, Mode, Wait},
    keeper::{HandleId, Keeping},
    limits, name, party,
};
use std::{collections::BTreeMap, num::NonZeroU64, panic::Location, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

/// How one lock, or several at once, are to be acquired. Made by [`super::Warden::lock`] and
/// [`super::Warden::lock_all`]; may be used again.
///
/// | option | default | range |
/// |---|---|---|
/// | wait | for ever | none, up to 100 years |
/// | lease | 30 s | 100 ms to 30 days |
/// | grace | 3 s | 3 s to 30 days |
/// | hold at least | no minimum | up to 30 days |
/// | hold at most | for ever | 100 ms to 100 years |
/// | lock delay | none | up to 30 days |
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    shared: Arc<Shared>,
    names: Vec<(String, Mode)>,
    wait: Result<Wait, Duration>,
    lease: Duration,
    grace: Duration,
    floor: u64,
    label: Option<String>,
    tags: Vec<(String, String)>,
    site: Option<String>,
    owner: Option<String>,
    class: Option<String>,
    drop_in: Option<Vec<u8>>,
    renew: bool,
    endless: bool,
    at_least: Duration,
    at_most: Option<Duration>,
    delay: Duration,
    /// The token by which they were handed over.
    handed_over: Option<Token>,
    report: Option<watch::Sender<Waiting>>,
}

impl Lock {
    pub(super) fn new(shared: Arc<Shared>, names: Vec<(String, Mode)>) -> Lock {
        Lock {
            shared,
            names,
            wait: Ok(Wait::Forever),
            lease: Duration::from_millis(limits::DEFAULT_LEASE_MS),
            grace: Duration::from_millis(limits::DEFAULT_GRACE_MS),
            floor: 0,
            label: None,
            tags: Vec::new(),
            site: None,
            owner: None,
            class: None,
            drop_in: None,
            renew: true,
            endless: false,
            at_least: Duration::ZERO,
            at_most: None,
            delay: Duration::ZERO,
            handed_over: None,
            report: None,
        }
    }

    /// Adopt what was handed over.
    pub(super) fn adopting(mut self, given: &HandOver) -> Lock {
        self.names = given.names.iter().map(|(name, mode)| (name.as_str().into(), *mode)).collect();
        self.handed_over = Some(given.token.clone());
        self
    }

    /// Hold it together with other readers: whoever asks for it shared, while nobody holds it exclusively. First come,
    /// first served all the same: readers who stand behind a writer wait for it, and enter together after it. (Of
    /// several locks, all that were named so far.)
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let (one, two) = (warden.lock("catalog").shared(), warden.lock("catalog").shared());
    /// let (one, two) = (one.acquire().await?, two.acquire().await?);
    /// assert!(one.check() && two.check() && one.fence() < two.fence());
    /// assert!(warden.lock("catalog").no_wait().acquire().await.is_err());
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    pub fn shared(mut self) -> Lock {
        self.names.iter_mut().for_each(|(_, mode)| *mode = Mode::Shared);
        self
    }

    /// Hold so many of the lock's permits, 1 at least: a semaphore. `of` is how many there are, 1,000,000 at most, and
    /// whoever uses the name must say the same: another number, or another mode, is [`Error::OtherMode`] as long as
    /// anybody holds it or waits. (Of several locks, all that were named so far.)
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let printers = |count| warden.lock("printers").permits(count, 3).no_wait();
    /// let two = printers(2).acquire().await?;
    /// assert!(printers(2).acquire().await.is_err());
    /// let one = printers(1).acquire().await?;
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    pub fn permits(mut self, count: u32, of: u32) -> Lock {
        self.names.iter_mut().for_each(|(_, mode)| *mode = Mode::Permits { count, of });
        self
    }

    /// One lock more, exclusively; see [`super::Warden::lock_all`].
    pub fn and(self, name: &str) -> Lock {
        self.and_as(name, Mode::Exclusive)
    }

    /// One lock more, in this mode: some may be held exclusively and some shared, together.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use lockwarden::Mode;
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let import = warden.lock("orders").and_as("catalog", Mode::Shared).acquire().await?;
    /// assert_eq!(import.names().count(), 2);
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    pub fn and_as(mut self, name: &str, mode: Mode) -> Lock {
        self.names.push((name.to_owned(), mode));
        self
    }

    /// One try; busy is an error at once.
    pub fn no_wait(mut self) -> Lock {
        self.wait = Ok(Wait::No);
        self
    }

    /// Wait at most this long.
    pub fn wait_for(mut self, wait: Duration) -> Lock {
        // A wait of under 1 ms is one that can end: rounding it to 0 would make it another mode.
        let ms = u64::try_from(wait.as_micros().div_ceil(1_000)).map_err(|_| wait);
        self.wait = ms.map(|ms| if ms == 0 { Wait::No } else { Wait::For(ms) });
        self
    }

    /// Wait until it is granted (the default).
    pub fn wait_forever(mut self) -> Lock {
        self.wait = Ok(Wait::Forever);
        self
    }

    /// How long a grant lives without renewal. A longer lease rides out longer outages of the
    /// store; a machine that vanishes keeps the lock for that long.
    pub fn lease(mut self, lease: Duration) -> Lock {
        self.lease = lease;
        self
    }

    /// How long after the link is seen closed the lock is kept: what a crash on another machine
    /// costs the next holder.
    pub fn grace(mut self, grace: Duration) -> Lock {
        self.grace = grace;
        self
    }

    /// The caller's own id of this acquisition, a task id say: shown to people, never a proof. The
    /// same id again is another acquisition (R25).
    pub fn label(mut self, label: &str) -> Lock {
        self.label = Some(label.to_owned());
        self
    }

    /// Tells people something more about this acquisition, whether it holds or waits: `lockwarden show` and
    /// [`Warden::show`](super::Warden::show) say it. 16 tags at most; a key of 1 to 64 letters of ASCII, digits and
    /// `._-`, a value of up to 256 bytes, 1 KiB in all. The same key again replaces its value.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let report = warden.lock("report").tag("job", "nightly").tag("attempt", "2").acquire().await?;
    /// let holder = warden.show("report").await?.holder.and_then(|it| it.record).unwrap();
    /// assert_eq!(&*holder.party.tags[0].key, "attempt");
    /// assert!(holder.party.site.contains(".rs:"));
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    pub fn tag(mut self, key: &str, value: &str) -> Lock {
        self.tags.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Where the acquire stands, for people, in place of the file and line that call [`Lock::acquire`]: for programs
    /// that acquire for others. Empty: nowhere in particular. Of more than 200 bytes the front is cut.
    pub fn site(mut self, site: &str) -> Lock {
        self.site = Some(site.to_owned());
        self
    }

    /// The owner: the one line of execution that acquires this lock, as a task, a thread or a command is one; 1 to
    /// 512 letters of ASCII, digits and `._:@+=-`, unique among everybody who uses the store. (Without it each
    /// acquisition stands for itself.) `a/b` is a part of `a`, which waits for it: a step inside a task, say. An
    /// owner does one thing after the other, and so
    ///
    /// * it may acquire a lock that it holds through the same warden once more, up to 1,000 times: each guard ends
    ///   one of them, the last gives the lock back. It is the same grant, with the fence, the lease, the grace and the
    ///   label of the first; [`Guard::extend`] changes all of them. While that one is at risk, the next waits until it
    ///   is sure again;
    /// * an acquire that would wait for its own owner, however many others wait in between and wherever they run,
    ///   fails at once with [`Error::Deadlock`] and the whole cycle (G7).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let task = |name| warden.lock(name).owner("task-17");
    /// let outer = task("ledger").acquire().await?;
    /// let inner = task("ledger").acquire().await?;
    /// assert_eq!(outer.fence(), inner.fence());
    /// outer.release().await?;
    /// assert!(inner.check());
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    pub fn owner(mut self, owner: &str) -> Lock {
        self.owner = Some(owner.to_owned());
        self
    }

    /// What kind of lock it is to the [order watch](crate::order), `user` or `stock` say. Without one each name is a
    /// class of its own.
    pub fn class(mut self, class: &str) -> Lock {
        self.class = Some(class.to_owned());
        self
    }

    /// Grant a fence above this one: the newest that a protected resource has seen, say (R34).
    pub fn fence_floor(mut self, floor: u64) -> Lock {
        self.floor = floor;
        self
    }

    /// For the drop-in replacements of other libraries only: the value of the key, as their users
    /// see it. The proof of ownership then stands in the record, and the least lease is 1 ms (with
    /// a lease under 100 ms `check()` may never be true).
    pub fn drop_in_value(mut self, value: &[u8]) -> Lock {
        self.drop_in = Some(value.to_owned());
        self
    }

    /// Do not renew it in the background: it ends with its lease unless it is extended. After the
    /// link was made anew, `check()` is false until then, for nothing has confirmed it (R21).
    pub fn without_renewal(mut self) -> Lock {
        self.renew = false;
        self
    }

    /// Write no expiry to the key, as redis-py does for a lock without a timeout; only with
    /// [`Lock::drop_in_value`]. The lock is renewed all the same, so that `check()` can be true: [`Lock::lease`] is how
    /// long this process believes without an answer. Whoever asks for the lock through Lockwarden finds out if the holder
    /// has died, and has it after the grace; a client of another library never does. If the holder's machine vanishes
    /// without closing its connection, the server has to notice that first (Redis: `tcp-keepalive`, 300 s by default).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let guard = warden.lock("x").drop_in_value(b"their token").endless().acquire().await?;
    /// let holder = warden.show("x").await?.holder.unwrap();
    /// assert!(guard.check() && holder.ttl_ms.is_none() && holder.record.unwrap().endless);
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    pub fn endless(mut self) -> Lock {
        self.endless = true;
        self
    }

    /// Hold it for this long at most, from the grant on: no renewal and no [`Guard::extend`] reaches beyond that, and
    /// then it is lost, whoever forgot it. At two thirds of the last lease the state is
    /// [`Risk::CeilingNear`](crate::Risk::CeilingNear), at its end
    /// [`Loss::HeldAtMost`](crate::Loss::HeldAtMost).
    pub fn hold_at_most(mut self, most: Duration) -> Lock {
        self.at_most = Some(most);
        self
    }

    /// Hold it for this long at least, from the grant on: a scheduled job that is short must not run twice in its
    /// period because the machines' clocks differ. A release before that leaves the lock to nobody until then; so does
    /// a crash, with the grace if that is longer. Only [`Warden::revoke`](super::Warden::revoke) frees it earlier, or an
    /// acquire that was given up.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use std::time::Duration;
    /// let warden = lockwarden::Warden::connect("memory:").await?;
    /// let nightly = warden.lock("nightly").hold_at_least(Duration::from_secs(60));
    /// nightly.acquire().await?.release().await?;
    /// assert!(warden.lock("nightly").no_wait().acquire().await.is_err());
    /// # Ok::<(), lockwarden::Error>(()) }).unwrap();
    /// ```
    pub fn hold_at_least(mut self, least: Duration) -> Lock {
        self.at_least = least;
        self
    }

    /// If the lock is lost by a crash, nobody gets it for this long: for a resource without a
    /// [gate](crate::gate), so that what the lost holder has sent has arrived by then, or failed. (Chubby's lock-delay;
    /// Burrows, "The Chubby lock service", OSDI 2006, section 2.4.) Whoever waits is told so. After a release the lock is
    /// free at once.
    pub fn lock_delay(mut self, delay: Duration) -> Lock {
        self.delay = delay;
        self
    }

    /// Tell this channel what the store says while we wait: who holds the lock, our place, or why
    /// the store cannot be asked.
    pub fn report_to(mut self, report: watch::Sender<Waiting>) -> Lock {
        self.report = Some(report);
        self
    }

    /// Acquires the lock.
    ///
    /// Dropping the future leaves nothing behind: no ticket, no lock (G6).
    ///
    /// # Errors
    /// [`Error::Busy`] without a wait, [`Error::TimedOut`] with one; [`Error::Deadlock`] if it would wait for its
    /// own owner; [`Error::TooDeep`] if the owner holds it 1,000 times; [`Error::Store`] if the store could not
    /// be asked; [`Error::Invalid`] for a value out of its range.
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<Guard, Error>> + Send {
        self.acquire_at(Location::caller())
    }

    async fn acquire_at(&self, site: &'static Location<'static>) -> Result<Guard, Error> {
        let began = Instant::now();
        let (mut ask, keeping) = self.ask(site)?;
        let order = self.watch_order(&ask, site);
        let wait = ask.wait;
        let over = |name, told| match wait {
            Wait::For(_) => Error::TimedOut { name, waited: began.elapsed(), told },
            _ => Error::Busy { name, told },
        };
        loop {
            let (mut guard, again) = match self.acquire_once(ask, keeping).await {
                // Of all tries, not of the last one.
                Err(Error::TimedOut { name, told, .. }) => return Err(over(name, told)),
                other => other?,
            };
            // Its owner's earlier grant is at risk, and may be another's by now: that is no success.
            let is_sure = match wait {
                _ if !again || guard.check() => Some(true),
                Wait::Forever => Some(guard.sure().await),
                Wait::For(wait_ms) => {
                    let until = began + Duration::from_millis(wait_ms);
                    tokio::time::timeout_at(until, guard.sure()).await.ok()
                }
                Wait::No | Wait::Adopt => None,
            };
            match is_sure {
                Some(true) => {
                    guard.order = order.map(Box::new);
                    return Ok(guard);
                }
                None => return Err(over(guard.name().clone(), None)),
                // Lost: now it is acquired anew, in what is left of the wait.
                Some(false) => (ask, _) = self.ask(site)?,
            }
            if let Wait::For(wait_ms) = wait {
                let left_ms = wait_ms.saturating_sub(ms(began.elapsed()));
                if left_ms == 0 {
                    return Err(over(guard.name().clone(), None));
                }
                ask.wait = Wait::For(left_ms);
            }
        }
    }

    /// And whether it is one more of a grant that its owner had.
    async fn acquire_once(&self, ask: Acquire, keeping: Keeping) -> Result<(Guard, bool), Error> {
        let (name, also) = (ask.name.clone(), ask.also.clone());
        let (id, answer) =
            self.shared.request(|inbox| inbox.begin(ask, keeping, self.report.clone()))??;
        let unfinished = Unfinished { shared: &self.shared, id };
        let result = answer.await;
        std::mem::forget(unfinished);
        let grant = result.map_err(|_| Error::Closed)??;
        let again = grant.id != id;
        let drop_in = self.drop_in.is_some();
        let guard = Guard::new(self.shared.clone(), id, (name, also), grant, drop_in);
        Ok((guard, again))
    }

    fn watch_order<'a>(
        &'a self,
        ask: &'a Acquire,
        site: &'static Location<'static>,
    ) -> Option<Hold> {
        let watch = self.shared.order_watch.as_ref()?;
        let owner = &ask.party.owner;
        let lock = |name: &'a Name| (self.class.as_deref().unwrap_or(name.as_str()), name.as_str());
        let locks: Vec<_> = ask.names().map(lock).collect();
        (!owner.is_empty()).then(|| watch.asked(owner, &locks, site))
    }

    fn least_lease_ms(&self) -> u64 {
        least_lease_ms(self.drop_in.is_some())
    }

    /// The names, each once and in order, so that whoever asks for the same ones asks for the same.
    fn names(&self) -> Result<Names, Error> {
        // Nearly always: an acquire of one lock need not sort.
        if let [(name, Mode::Exclusive)] = &*self.names {
            return Ok((Name::new(name)?, Arc::default(), Arc::default()));
        }
        let mut names: BTreeMap<Name, Mode> = BTreeMap::new();
        for (name, mode) in &self.names {
            let name = Name::new(name)?;
            if let Mode::Permits { count, of } = *mode {
                limits::permits(count, of)?;
            }
            if let Some(other) = names.insert(name.clone(), *mode)
                && other != *mode
            {
                let text = format!("the lock {name} was asked for {other} and {mode} at once");
                return Err(Error::Invalid(text));
            }
        }
        limits::names(names.len())?;
        let modes: Arc<[Mode]> = match names.values().any(|mode| *mode != Mode::Exclusive) {
            true => names.values().copied().collect(),
            false => Arc::default(),
        };
        let Some((first, _)) = names.pop_first() else {
            return Err(Error::Invalid("no lock was named: at least one must be".into()));
        };
        Ok((first, names.into_keys().collect(), modes))
    }

    /// Checks all values.
    fn ask(&self, site: &'static Location<'static>) -> Result<(Acquire, Keeping), Error> {
        let (name, also, modes) = self.names()?;
        let (token, proof) = match &self.drop_in {
            Some(_) if !modes.is_empty() => {
                let rule = "is held exclusively";
                return Err(Error::Invalid(format!("a lock with a drop-in value {rule}: {name}")));
            }
            Some(_) if !also.is_empty() => {
                let rule = "a drop-in value is that of one lock, and";
                let text = format!("{rule} {} were asked for at once", 1 + also.len());
                return Err(Error::Invalid(text));
            }
            None if let Some(token) = &self.handed_over => (token.clone(), Arc::default()),
            None => (random::token()?, Arc::default()),
            Some(value) => (Token::new(value)?, random::text()?.into()),
        };
        self.check_endless(&name)?;
        let lease_ms = limits::lease(ms(self.lease), self.least_lease_ms())?;
        let grace_ms = limits::grace(ms(self.grace))?;
        let at_most = |most| limits::at_most(ms(most), self.least_lease_ms());
        let most_ms = self.at_most.map(at_most).transpose()?;
        let (at_least_ms, delay_ms) = self.keep()?;
        let wait = match self.wait {
            _ if self.handed_over.is_some() => Wait::Adopt,
            Ok(Wait::For(ms)) => Wait::For(limits::wait(ms)?),
            Ok(wait) => wait,
            Err(wait) => {
                return Err(limits::wait(ms(wait)).err().map_or(Error::Closed, Error::from));
            }
        };
        let mut party = match self.site.as_deref() {
            None => self.shared.party_at(site)?,
            Some("") => self.shared.party.clone(),
            Some(site) => {
                let mut party = self.shared.party.clone();
                Arc::make_mut(&mut party).site = party::site(site);
                party
            }
        };
        if !self.tags.is_empty() {
            let given = self.tags.iter().map(|(key, value)| (&**key, &**value));
            Arc::make_mut(&mut party).tags = party::tags(given)?;
        }
        if let Some(label) = &self.label {
            Arc::make_mut(&mut party).label = name::label(label)?.into();
        }
        if let Some(owner) = &self.owner {
            Arc::make_mut(&mut party).owner = name::owner(owner)?.into();
        }
        let floor = self.floor;
        let most = most_ms.and_then(NonZeroU64::new);
        let keeping = Keeping { lease_ms, grace_ms, renew: self.renew, most_ms: most };
        let lease_ms = lease_ms.min(most_ms.unwrap_or(lease_ms));
        let ask = Acquire {
            modes,
            name,
            also,
            token,
            proof,
            wait,
            lease_ms,
            grace_ms,
            at_least_ms,
            delay_ms,
            endless: self.endless,
            floor,
            party,
        };
        Ok((ask, keeping))
    }

    /// An endless lock is one that somebody sees to as long as it is held.
    fn check_endless(&self, name: &Name) -> Result<(), Error> {
        let rule = match self {
            Lock { endless: false, .. } => return Ok(()),
            Lock { drop_in: None, .. } => "only a lock with a drop-in value can be",
            Lock { renew: false, .. } => "a lock that is not renewed cannot be",
            Lock { at_most: Some(_), .. } => "a lock that is held for a time at most cannot be",
            _ => return Ok(()),
        };
        Err(Error::Invalid(format!("{rule} endless: {name}")))
    }

    /// The minimum and the delay, in ms.
    fn keep(&self) -> Result<(u64, u64), Error> {
        let up = |duration: Duration| ms(duration.saturating_add(Duration::from_nanos(999_999)));
        let at_least_ms = limits::at_least(up(self.at_least))?;
        if let Some(most) = self.at_most.filter(|most| *most < self.at_least) {
            let rule = format!("held for {:?} at least", self.at_least);
            return Err(Error::Invalid(format!("a lock is {rule}, but for {most:?} at most")));
        }
        Ok((at_least_ms, limits::delay(up(self.delay))?))
    }
}

/// As in [`Acquire`]: name, also, modes.
type Names = (Name, Arc<[Name]>, Arc<[Mode]>);

/// The least lease, in ms.
pub(super) fn least_lease_ms(drop_in: bool) -> u64 {
    if drop_in { limits::MIN_DROP_IN_LEASE_MS } else { limits::MIN_LEASE_MS }
}

/// Whole ms; what does not fit is out of every range, and refused as such.
fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// An acquire whose future may be dropped before it ends.
struct Unfinished<'a> {
    shared: &'a Shared,
    id: HandleId,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // In a forked child there is nothing to give up.
        let _ = self.shared.request(|inbox| inbox.leave(self.id, Ending::Cancel, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Warden;

    /// What is acquired at one place costs memory once, and is one term of a call; what a lock says of itself is its own.
    #[tokio::test]
    async fn acquires_of_one_place_have_one_party() {
        let warden = Warden::connect("memory:").await.unwrap();
        let (here, there) = (Location::caller(), Location::caller());
        let party = |lock: &Lock, site| lock.ask(site).unwrap().0.party;
        let (a, b) = (warden.lock("a"), warden.lock("b"));
        assert!(Arc::ptr_eq(&party(&a, here), &party(&b, here)));
        let (here_party, there_party) = (party(&a, here), party(&a, there));
        assert_eq!(here_party, there_party, "both stand on one line");
        let tagged = a.clone().tag("k", "v");
        assert_ne!(party(&tagged, here), here_party);
        assert_eq!(party(&tagged, here).site, here_party.site);
        let unknown = [a.site(""), b.site("")].map(|lock| party(&lock, here));
        assert!(Arc::ptr_eq(&unknown[0], &unknown[1]) && unknown[0].site.is_empty());
    }
}
