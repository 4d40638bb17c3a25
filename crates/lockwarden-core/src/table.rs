//! The table: the store side of every lock, and the specification that the Redis scripts mirror.
//!
//! [`step`] takes the locks, one command and the moment, and gives a reply and messages. It must not
//! do I/O, read a clock or draw random bytes. Who is alive is an input, too: each store knows that
//! in its own way (R13, R40). What concerns the holder is here, what concerns the queue in `queue`.
//!
//! A Redis server keeps keys, not structures, so the table thinks in keys as well: the *key* holds
//! a token and expires; the *record* describes the holder and counts only while its token is the
//! key's value (R3); the *queue* holds tickets. A foreign client may write the key at any time.

use crate::{
    command::{
        Absence, Acquire, Command, HolderView, LockView, Message, Mode, Reason, RecordView,
        Refusal, Renew, Reply, TicketView,
    },
    deadlock::{self, Places, WaitChange, Waits},
    limits::{ASK_EVERY_MS, DROPS_PER_COMMAND, MAX_FLOOR_AHEAD_US, MOST_HOLDERS_TOLD, W_MS},
    name::{Epoch, Name, Run, SessionId, Token},
    party::Party,
    rules::Rules,
};
use queue::Ahead;
use std::{collections::BTreeMap, sync::Arc};

mod queue;
pub mod together;

pub use together::Together;

/// Everything a store holds: one per database and key prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Table {
    /// Epoch, run, guard and fence; none: the store is new, or was emptied.
    pub meta: Option<Meta>,
    /// The locks that hold anything.
    pub locks: BTreeMap<Name, Lock>,
    /// Where owners wait (R37).
    pub waits: Waits,
    /// The requests for several names that wait, by their tokens (R29).
    pub requests: BTreeMap<Token, Request>,
}

/// A request for several names that waits: its tickets stand in the queues of all of them (R29).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The token of all its tickets.
    pub token: Token,
    /// The waiter's session.
    pub session: SessionId,
    /// All its names, in the order in which it gave them.
    pub names: Arc<[Name]>,
    /// As in [`Acquire::modes`].
    pub modes: Arc<[Mode]>,
    /// As in [`Ticket::deadline_us`].
    pub deadline_us: Option<u64>,
    /// When it came, in µs. The one that came first has its names kept for it.
    pub since_us: u64,
    /// When it is forgotten for want of rechecks, in µs, as its queues are.
    pub expires_us: u64,
    /// Who waits.
    pub party: Arc<Party>,
}

/// What a command may look at and change.
pub trait Locks {
    /// What stands about a name. Where nothing does it is an empty lock, which the store forgets again.
    fn lock(&mut self, name: &Name) -> &mut Lock;
    /// Where this owner and its parts wait.
    fn places(&mut self, owner: &str) -> Option<Places>;
    /// The request of this token.
    fn request(&mut self, token: &Token) -> Option<Request>;
    /// The request that came first, by time, then by token.
    fn oldest_request(&mut self) -> Option<Request>;
    /// Keeps a request, in place of the one of its token.
    fn keep_request(&mut self, request: Request);
    /// Forgets the request of this token.
    fn forget_request(&mut self, token: &Token);
}

/// What a store remembers beside its locks. It never expires (R2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Meta {
    /// The stretch in which no acknowledged lock was lost.
    pub epoch: Epoch,
    /// The run of the server that this epoch began in.
    pub run: Run,
    /// Nothing is granted before this, on the store's clock, in µs (R6).
    pub guard_until_us: u64,
    /// The highest fence given (R34).
    pub fence: u64,
}

/// What stands about one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lock {
    /// Whoever wrote the key holds the lock.
    pub key: Option<Key>,
    /// The holder's description; see [`Lock::record`].
    pub record: Option<Record>,
    /// The holders, where there may be several; see [`Lock::together`].
    pub together: Together,
    /// The tickets, in order of arrival.
    pub queue: Vec<Ticket>,
    /// When the queue is forgotten for want of rechecks, in µs (R28).
    pub queue_expires_us: u64,
    /// Whom we asked last whether it still wants the lock, and until when not to ask again (R16).
    pub asked: Option<(Token, u64)>,
}

/// The lock's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its value.
    pub token: Token,
    /// When it expires, in µs; none: never (only a foreign client writes that).
    pub expires_us: Option<u64>,
}

/// The holder's description.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The key's value, or the record does not count (R3).
    pub token: Token,
    /// See [`Acquire::proof`].
    pub proof: Arc<str>,
    /// The holder's session.
    pub session: SessionId,
    /// The fence of the grant.
    pub fence: u64,
    /// The lease that the last grant or extension resulted in, in ms (R15).
    pub lease_ms: u64,
    /// The grace, in ms.
    pub grace_ms: u64,
    /// The run in which the holder last showed itself (R14).
    pub run: Run,
    /// Revoked with a delay: no renewals any more (R32).
    pub revoked: bool,
    /// How it holds the lock.
    pub mode: Mode,
    /// When it was granted, in µs.
    pub since_us: u64,
    /// Who holds it.
    pub party: Arc<Party>,
}

/// A place in the queue (R28).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Unique per acquisition.
    pub token: Token,
    /// See [`Acquire::proof`].
    pub proof: Arc<str>,
    /// The waiter's session.
    pub session: SessionId,
    /// The lease it asked for, in ms.
    pub lease_ms: u64,
    /// Its grace, in ms.
    pub grace_ms: u64,
    /// The highest fence it knows (R34).
    pub floor: u64,
    /// When it stops waiting, in µs; none: never.
    pub deadline_us: Option<u64>,
    /// When it came, in µs.
    pub since_us: u64,
    /// It is one of the tickets of a [`Request`].
    pub several: bool,
    /// How it wants to hold the lock.
    pub mode: Mode,
    /// Who waits.
    pub party: Arc<Party>,
}

/// The moment of a command, as the store sees it.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The store's clock, in µs.
    pub now_us: u64,
    /// The run of the server.
    pub run: &'a Run,
    /// How long the server has served its present data, in whole seconds; may be negative (R5).
    /// A promoted replica says 0, however long its process has run: locks that it never heard of
    /// may have been granted a moment ago. (Redis: `second_repl_offset` is not -1.)
    pub uptime_s: i64,
    /// The session that asks.
    pub caller: &'a SessionId,
    /// The run that the caller read when it connected (R4).
    pub caller_run: &'a Run,
    /// How many listen on a session's own channel; at least 1: its link is up (R13).
    pub subscribers: &'a dyn Fn(&SessionId) -> u64,
    /// How many listen on the common channel, the caller included (R5); one more if the caller itself may
    /// hold a lock, or have been granted one, beside what this very command asks for: it may believe in what
    /// was flushed.
    pub in_common: u64,
    /// The rules in force.
    pub rules: Rules,
}

/// What sessions are to be told. None of it needs to arrive.
pub type Messages = Vec<(SessionId, Message)>;

/// What a command has a store do beside answering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// What to tell whom.
    pub messages: Messages,
    /// Who waits where from now on, in this order.
    pub waits: Vec<WaitChange>,
}

const US_PER_MS: u64 = 1_000;

impl Table {
    /// Carries out one command: [`enter`], then [`step`].
    pub fn apply(&mut self, at: &Context<'_>, command: &Command) -> (Reply, Messages) {
        let mut effects = Effects::default();
        let Some(mut meta) = enter(self.meta.clone(), at) else {
            return (Reply::Stale, effects.messages);
        };
        let mut opened = Opened { table: self, names: Vec::new() };
        let reply = step(&mut meta, &mut opened, at, command, &mut effects);
        for name in opened.names {
            let Some(lock) = self.locks.get_mut(&name) else { continue };
            lock.expire(at.now_us);
            if *lock == Lock::default() {
                self.locks.remove(&name);
            }
        }
        self.meta = Some(meta);
        effects.waits.into_iter().for_each(|change| change.apply(&mut self.waits));
        (reply, effects.messages)
    }

    /// Forgets what has expired. Stores differ in when they do that; what they answer does not.
    pub fn expire(&mut self, now_us: u64) {
        self.locks.retain(|_, lock| {
            lock.expire(now_us);
            *lock != Lock::default()
        });
        self.waits.retain(|_, places| places.until_us > now_us);
        self.requests.retain(|_, request| request.expires_us > now_us);
    }
}

/// A table while a command is carried out on it.
struct Opened<'a> {
    table: &'a mut Table,
    /// The locks that were looked at.
    names: Vec<Name>,
}

impl Locks for Opened<'_> {
    fn lock(&mut self, name: &Name) -> &mut Lock {
        // A command opens the same lock again and again.
        if self.names.last() != Some(name) {
            self.names.push(name.clone());
        }
        self.table.locks.entry(name.clone()).or_default()
    }

    fn places(&mut self, owner: &str) -> Option<Places> {
        self.table.waits.get(owner).cloned()
    }

    fn request(&mut self, token: &Token) -> Option<Request> {
        self.table.requests.get(token).cloned()
    }

    fn oldest_request(&mut self) -> Option<Request> {
        let age = |it: &&Request| (it.since_us, it.token.clone());
        self.table.requests.values().min_by_key(age).cloned()
    }

    fn keep_request(&mut self, request: Request) {
        self.table.requests.insert(request.token.clone(), request);
    }

    fn forget_request(&mut self, token: &Token) {
        self.table.requests.remove(token);
    }
}

/// The answer to [`Command::Beat`].
#[must_use]
pub fn beat(at: &Context<'_>) -> Reply {
    Reply::Beat { run: at.run.clone(), now_us: at.now_us, subscribers: (at.subscribers)(at.caller) }
}

/// What comes before every command (R4, R5): is this still the epoch that the caller knows? A new
/// epoch begins here, with its guard. None: the caller speaks of a run that is over.
#[must_use]
pub fn enter(meta: Option<Meta>, at: &Context<'_>) -> Option<Meta> {
    // No guard is longer than W: one that seems so began before the clock was set back.
    let meta = meta.map(|mut meta| {
        meta.guard_until_us = meta.guard_until_us.min(at.now_us + W_MS * US_PER_MS);
        meta
    });
    let known = meta.as_ref().is_some_and(|meta| meta.run == *at.caller_run);
    // A run that the caller and meta agree on is the server's own: the caller read it from this
    // very server. Only in doubt is the server asked itself. (Without R4 only a lost meta counts,
    // and an old snapshot, which brings meta back, passes for the truth.)
    if known || (!at.rules.on(4) && meta.is_some()) {
        return meta;
    }
    if at.caller_run != at.run {
        return None;
    }
    // No guard only where nobody can believe: the server has been up for longer than any belief of
    // its run before, and nobody else is connected who might hold a lock that was flushed (R5).
    // A caller whose own subscription is gone is not among those counted: the one there is another.
    let own = (at.subscribers)(at.caller).min(1);
    let alone = at.uptime_s > (W_MS / 1_000) as i64 && at.in_common <= own;
    let unguarded = meta.is_none() && (alone || !at.rules.on(5));
    let guard_until_us = if unguarded { 0 } else { at.now_us + W_MS * US_PER_MS };
    Some(Meta {
        epoch: Epoch::new(&format!("{}.{}", at.now_us, at.caller)),
        run: at.run.clone(),
        guard_until_us,
        fence: meta.map_or(0, |meta| meta.fence),
    })
}

/// Carries out one command.
pub fn step(
    meta: &mut Meta,
    locks: &mut dyn Locks,
    at: &Context<'_>,
    command: &Command,
    effects: &mut Effects,
) -> Reply {
    let mut turn = Turn { meta, locks, at, effects };
    match command {
        Command::Acquire(acquire) => turn.acquire(acquire),
        Command::Renew(renew) => turn.renew(renew),
        Command::Release { token, .. } => turn.release(command, token),
        Command::Cancel { token, proof, .. } => turn.cancel(command, token, proof),
        Command::Revoke { name, token, session, delayed } => {
            turn.revoke(name, token, session.as_ref(), *delayed)
        }
        Command::Recall { name, token, by } => turn.recall(name, token, by),
        Command::Show { name } => Reply::Shown(Box::new(turn.show(name))),
        Command::Beat => beat(at),
    }
}

impl Lock {
    /// The record of the one who holds it alone, if it counts (R3).
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        let key = self.key.as_ref()?;
        self.record.as_ref().filter(|record| record.token == key.token)
    }

    /// Those who hold it together, while the key says so.
    #[must_use]
    pub fn together(&self) -> Option<&Together> {
        let key = self.key.as_ref()?;
        (key.token == together::token() && !self.together.is_empty()).then_some(&self.together)
    }

    /// The record of the holder with this token, if it counts.
    #[must_use]
    pub fn held_by(&self, token: &Token) -> Option<&Record> {
        match self.together() {
            Some(together) => together.get(token),
            None => self.record().filter(|record| record.token == *token),
        }
    }

    /// The records of all holders that count, whose lease ends first comes first.
    pub fn holders(&self) -> impl Iterator<Item = &Record> {
        let together = self.together().into_iter().flat_map(Together::by_end);
        self.record().into_iter().chain(together.map(|(_, record)| record))
    }

    /// The mode that it is held in by holders of ours.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.together().map_or_else(|| self.record().map(|it| it.mode), Together::mode)
    }

    /// Forgets what has expired.
    pub fn expire(&mut self, now_us: u64) {
        self.key.take_if(|key| key.expires_us.is_some_and(|at| at <= now_us));
        self.together.expire(now_us);
        // A key that says "together" without anybody holds nothing.
        self.key.take_if(|key| key.token == together::token() && self.together.is_empty());
        if self.record().is_none() {
            self.record = None;
        }
        if self.together().is_none() {
            self.together = Together::default();
        }
        if self.queue_expires_us <= now_us {
            self.queue.clear();
        }
        if self.queue.is_empty() {
            self.queue_expires_us = 0;
        }
        self.asked.take_if(|(_, until_us)| *until_us <= now_us);
    }

    /// Does nobody hold it or wait for it? (It may still remember whom it asked.)
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.key.is_none() && self.queue.is_empty()
    }

    fn absence(&self) -> Absence {
        if self.key.is_some() { Absence::Taken } else { Absence::Free }
    }

    /// Does somebody hold it by this token? A foreign client does by its value.
    fn holds(&self, token: &Token) -> bool {
        match self.together() {
            Some(together) => together.get(token).is_some(),
            None => self.key.as_ref().is_some_and(|key| key.token == *token),
        }
    }

    /// May this session renew or release by this token? Not if the record says that another one holds it: where
    /// the value is the caller's choice (R25), a holder that was passed over would renew or release its successor.
    /// A key without a record is anyone's who knows its value.
    fn is_owned(&self, token: &Token, at: &Context<'_>) -> bool {
        let others = |record: &Record| record.session != *at.caller;
        self.holds(token) && !(at.rules.on(25) && self.held_by(token).is_some_and(others))
    }

    /// May it be granted to anybody: is it free, or held together?
    fn may_grant(&self) -> bool {
        self.key.is_none() || self.together().is_some()
    }

    /// Is there room for one more in this mode? The error: there never is beside the mode that it is in use in.
    ///
    /// # Errors
    /// The mode that it is in use in.
    pub fn has_room(&self, mode: Mode) -> Result<bool, Mode> {
        let Some(in_use) = self.mode() else { return Ok(self.key.is_none()) };
        check_beside(mode, in_use)?;
        Ok(match (mode, self.together()) {
            (Mode::Permits { count, of }, Some(together)) => {
                together.used() + u64::from(count) <= u64::from(of)
            }
            (Mode::Shared, Some(_)) => true,
            _ => false,
        })
    }

    /// Puts a holder in.
    fn hold(&mut self, record: Record, end_us: u64) {
        if record.mode == Mode::Exclusive {
            self.key = Some(Key { token: record.token.clone(), expires_us: Some(end_us) });
            self.record = Some(record);
            return;
        }
        if self.together().is_none() {
            (self.record, self.together) = (None, Together::default());
        }
        self.together.put(record, end_us);
        self.key = Some(Key { token: together::token(), expires_us: self.together.last_end_us() });
    }

    /// Takes the holder of this token away.
    fn drop_holder(&mut self, token: &Token) {
        if self.together().is_none() {
            (self.key, self.record) = (None, None);
            return;
        }
        self.together.remove(token);
        let expires_us = self.together.last_end_us();
        self.key = expires_us.map(|_| Key { token: together::token(), expires_us });
    }

    /// Changes what stands about the holder of this token, and when its lease ends (µs): `change` gets both.
    fn change_holder(&mut self, token: &Token, change: impl FnOnce(&mut Record, &mut u64)) {
        if self.together().is_some() {
            let Some((mut end_us, mut record)) = self.together.remove(token) else { return };
            change(&mut record, &mut end_us);
            self.together.put(record, end_us);
            if let Some(key) = &mut self.key {
                key.expires_us = self.together.last_end_us();
            }
        } else if self.record().is_some_and(|record| record.token == *token)
            && let (Some(record), Some(key)) = (&mut self.record, &mut self.key)
        {
            let mut end_us = key.expires_us.unwrap_or(u64::MAX);
            change(record, &mut end_us);
            key.expires_us = Some(end_us).filter(|end_us| *end_us < u64::MAX);
        }
    }

    /// Lets the holder of this token end in at most `most_ms`; says in how many ms it will.
    fn shorten(&mut self, token: &Token, now_us: u64, most_ms: u64) -> u64 {
        let most_us = now_us + most_ms * US_PER_MS;
        if self.held_by(token).is_none()
            && let Some(key) = &mut self.key
        {
            // A foreign one.
            let end_us = key.expires_us.map_or(most_us, |at| at.min(most_us));
            key.expires_us = Some(end_us);
            return (end_us - now_us).div_ceil(US_PER_MS);
        }
        let mut end_us = most_us;
        self.change_holder(token, |_, end| {
            *end = most_us.min(*end);
            end_us = *end;
        });
        (end_us - now_us).div_ceil(US_PER_MS)
    }
}

/// May a lock be asked for in one mode while it is in use in another? Permits stand beside permits of the same number
/// only. The error is the mode that is in use.
fn check_beside(mode: Mode, in_use: Mode) -> Result<(), Mode> {
    let number = |mode| match mode {
        Mode::Permits { of, .. } => Some(of),
        Mode::Exclusive | Mode::Shared => None,
    };
    if number(mode) == number(in_use) { Ok(()) } else { Err(in_use) }
}

/// One command's turn.
struct Turn<'a> {
    meta: &'a mut Meta,
    locks: &'a mut dyn Locks,
    at: &'a Context<'a>,
    effects: &'a mut Effects,
}

impl Turn<'_> {
    fn acquire(&mut self, ask: &Acquire) -> Reply {
        let at = self.at;
        if at.rules.on(11) && !self.alive(at.caller) {
            return Reply::Unsubscribed;
        }
        // Where the clock was set back, the fences that were given are the measure.
        let measure = at.now_us.max(self.meta.fence);
        if ask.floor > measure.saturating_add(MAX_FLOOR_AHEAD_US) {
            return Reply::FloorAhead { now_us: at.now_us };
        }
        let own: Vec<&Name> = ask.names().filter(|name| self.is_own(name, ask)).collect();
        if own.len() == 1 + ask.also.len() {
            own.iter().for_each(|name| self.extend(name, &ask.token, ask.lease_ms));
            return match self.guard_ms() {
                0 => self.granted(ask),
                guard_ms => Reply::Guarded { lease_ms: ask.lease_ms, guard_ms },
            };
        }
        // Of several that were granted together some are lost: the rest is given back, to be asked for anew (R29).
        if at.rules.on(29) {
            self.free(&own, &ask.token);
        }
        if let Some((number, in_use)) = self.other_mode(ask) {
            self.stand_down(ask.names(), &ask.token, |_| true);
            return Reply::OtherMode { at: number, in_use };
        }
        if self.guard_ms() == 0 {
            let mut open = true;
            for (name, mode) in ask.wants() {
                if !self.lock(name).may_grant() {
                    open = false;
                    continue;
                }
                // First those who came before (R26). Without this rule a newcomer takes a lock that
                // others wait for, and a dead ticket is in nobody's way either.
                if !at.rules.on(26) {
                    continue;
                }
                let promoted = self.promote(name, Some(&ask.token));
                if promoted.to_asker {
                    return self.granted(ask);
                }
                match promoted.ahead {
                    Ahead::More => return Reply::More,
                    Ahead::Somebody => open = false,
                    // Its own that was revoked, and has not ended yet, is in its way (G6).
                    Ahead::Nobody => {
                        let lock = self.lock(name);
                        open &=
                            lock.has_room(mode) == Ok(true) && lock.held_by(&ask.token).is_none();
                    }
                }
            }
            if open {
                self.leave_queues(ask.names(), (&ask.token, at.caller), |_| true);
                self.grant(ask.wants(), &ask.ticket(at, None), ask.lease_ms);
                // It may have passed others.
                ask.names().for_each(|name| self.tell_first(name));
                return self.granted(ask);
            }
        }
        self.refuse(ask)
    }

    fn refuse(&mut self, ask: &Acquire) -> Reply {
        let at = self.at;
        let kept_for = match deadlock::is_possible(ask) {
            true => self.kept_for(),
            false => None,
        };
        if let Some(cycle) = deadlock::cycle(at, self.locks, kept_for.as_ref(), ask) {
            self.stand_down(ask.names(), &ask.token, |_| true);
            ask.names().for_each(|name| self.probe(name));
            return Reply::Deadlock(cycle);
        }
        ask.names().for_each(|name| self.probe(name));
        let position = self.queue_up(ask);
        // Where there is room it is not the holders who are in the way.
        let is_full = |turn: &mut Self, name, mode| turn.lock(name).has_room(mode) != Ok(true);
        let mut tell: Vec<usize> = Vec::new();
        for (number, (name, mode)) in ask.wants().enumerate() {
            if is_full(self, name, mode) {
                tell.push(number);
            }
        }
        if tell.is_empty() {
            tell.extend(0..=ask.also.len());
        }
        let holder = |number: usize| Some((number, self.holder(ask.name_at(number))?));
        let mut holders: Vec<(usize, HolderView)> = tell.into_iter().filter_map(holder).collect();
        holders.truncate(MOST_HOLDERS_TOLD);
        let guard_ms = self.guard_ms();
        let (at, holder) = if !holders.is_empty() {
            let (at, holder) = holders.remove(0);
            (at, Some(holder))
        } else if ask.also.is_empty() {
            (0, None)
        } else {
            let kept = ask.names().position(|name| self.is_kept(name, &ask.token));
            (kept.unwrap_or(0), None)
        };
        let reason = match guard_ms {
            0 if holder.is_none() => Reason::Kept,
            0 => Reason::Held,
            guard_ms => Reason::Guard { guard_ms },
        };
        Reply::Refused(Refusal { reason, at, holder, others: holders, position })
    }

    /// The first of the locks that is in use in a mode that the one asked for cannot be beside: by its holders, or by
    /// those who wait for it.
    fn other_mode(&mut self, ask: &Acquire) -> Option<(usize, Mode)> {
        for (number, (name, mode)) in ask.wants().enumerate() {
            let in_use = match self.lock(name).mode() {
                None => self.first_waiting(name, &ask.token).map(|ticket| ticket.mode),
                in_use => in_use,
            };
            if let Some(Err(in_use)) = in_use.map(|in_use| check_beside(mode, in_use)) {
                return Some((number, in_use));
            }
        }
        None
    }

    /// The caller's own acquisition, asked for again (R25). A redelivered task brings the same
    /// value from another session, and must be refused.
    fn is_own(&mut self, name: &Name, ask: &Acquire) -> bool {
        let at = self.at;
        let lock = self.lock(name);
        if !at.rules.on(25) {
            return lock.holds(&ask.token);
        }
        lock.held_by(&ask.token).is_some_and(|record| {
            record.session == *at.caller && record.proof == ask.proof && !record.revoked
        })
    }

    fn renew(&mut self, renew: &Renew) -> Reply {
        let at = self.at;
        if at.rules.on(11) && !self.alive(at.caller) {
            return Reply::Unsubscribed;
        }
        let names = || std::iter::once(&renew.name).chain(&*renew.also);
        for name in names() {
            let lock = self.lock(name);
            if !lock.is_owned(&renew.token, at) {
                return Reply::NotHeld(lock.absence());
            }
            if lock.held_by(&renew.token).is_some_and(|record| record.revoked) {
                return Reply::NotHeld(Absence::Revoked);
            }
        }
        let lease_ms = renew.lease_ms;
        names().for_each(|name| self.extend(name, &renew.token, lease_ms));
        let guard_ms = self.guard_ms();
        if guard_ms > 0 {
            return Reply::Guarded { lease_ms, guard_ms };
        }
        for name in names() {
            // One command serves so many at most: those whom it served see to the rest.
            if self.lock(name).together().is_some() {
                self.promote(name, None);
            }
        }
        Reply::Renewed { lease_ms }
    }

    /// Sets the whole lease of the present holder, and writes what it results in (R15). While the guard runs no
    /// belief follows (R6).
    fn extend(&mut self, name: &Name, token: &Token, lease_ms: u64) {
        let (now_us, run) = (self.at.now_us, self.meta.run.clone());
        let lock = self.lock(name);
        let expires_us = now_us + lease_ms * US_PER_MS;
        if lock.held_by(token).is_none()
            && let Some(key) = &mut lock.key
        {
            key.expires_us = Some(expires_us);
        }
        lock.change_holder(token, |record, end_us| {
            (record.lease_ms, record.run, *end_us) = (lease_ms, run, expires_us);
        });
    }

    /// The grant that stands in the record.
    fn granted(&mut self, ask: &Acquire) -> Reply {
        let record = self.lock(&ask.name).held_by(&ask.token);
        Reply::Granted {
            fence: record.map_or(0, |record| record.fence),
            lease_ms: record.map_or(0, |record| record.lease_ms),
        }
    }

    fn release(&mut self, command: &Command, token: &Token) -> Reply {
        let at = self.at;
        let (owned, others): (Vec<&Name>, Vec<&Name>) =
            command.names().partition(|name| self.lock(name).is_owned(token, at));
        let absence = others.first().map(|name| self.lock(name).absence());
        // An acquire that was sent again before this release may have found a lock gone, and
        // queued: nothing of the token is left behind (G6).
        self.stand_down(others, token, |_| true);
        self.free(&owned, token);
        absence.map_or(Reply::Released, Reply::NotHeld)
    }

    fn cancel(&mut self, command: &Command, token: &Token, proof: &str) -> Reply {
        // By session and proof as well: in the drop-ins the same value may be another's by now.
        let caller = self.at.caller;
        self.stand_down(command.names(), token, |ticket| &*ticket.proof == proof);
        let is_granted = |record: &Record| record.session == *caller && &*record.proof == proof;
        let mut granted: Vec<&Name> = command.names().collect();
        granted.retain(|name| self.lock(name).held_by(token).is_some_and(is_granted));
        self.free(&granted, token);
        Reply::Cancelled { released: !granted.is_empty() }
    }

    fn revoke(
        &mut self,
        name: &Name,
        token: &Token,
        session: Option<&SessionId>,
        delayed: bool,
    ) -> Reply {
        let (now_us, guard_ms) = (self.at.now_us, self.guard_ms());
        let lock = self.lock(name);
        let record = lock.held_by(token);
        let meant = session.is_none_or(|id| record.is_some_and(|record| record.session == *id));
        if !lock.holds(token) || !meant {
            return Reply::NotHeld(lock.absence());
        }
        let holder = record.map(|record| record.session.clone());
        let after_ms = if !delayed {
            0
        } else if guard_ms > 0 {
            // Nothing is shortened during the guard (R6).
            return Reply::Guarded { lease_ms: 0, guard_ms };
        } else {
            lock.change_holder(token, |record, _| record.revoked = true);
            lock.shorten(token, now_us, W_MS)
        };
        if let Some(session) = holder {
            let (name, token) = (name.clone(), token.clone());
            self.effects.messages.push((session, Message::Revoked { name, token, after_ms }));
        }
        if !delayed {
            self.free(&[name], token);
        }
        Reply::Revoked { after_ms }
    }

    fn recall(&mut self, name: &Name, token: &Token, by: &Arc<Party>) -> Reply {
        let lock = self.lock(name);
        if !lock.holds(token) {
            return Reply::NotHeld(lock.absence());
        }
        let Some(record) = lock.held_by(token) else { return Reply::Foreign };
        let session = record.session.clone();
        let (name, token, by) = (name.clone(), token.clone(), by.clone());
        self.effects.messages.push((session, Message::Recall { name, token, by }));
        Reply::Recalled
    }

    /// Takes the holders of this token away, all of them first, then hands on in the same step (G3, G4).
    fn free(&mut self, names: &[&Name], token: &Token) {
        for name in names {
            self.lock(name).drop_holder(token);
        }
        if self.guard_ms() == 0 {
            for name in names {
                // The one before may have gone to a request for several that has this one now.
                if self.lock(name).may_grant() {
                    self.promote(name, None);
                }
            }
        }
    }

    /// Writes a grant; the fence grows with every one of them, per name and in all (R34). Locks that are granted
    /// together have one fence.
    fn grant<'n>(
        &mut self,
        wants: impl Iterator<Item = (&'n Name, Mode)>,
        ticket: &Ticket,
        lease_ms: u64,
    ) -> u64 {
        let fence = (self.meta.fence + 1).max(self.at.now_us).max(ticket.floor + 1);
        self.meta.fence = fence;
        let record = Record {
            token: ticket.token.clone(),
            proof: ticket.proof.clone(),
            session: ticket.session.clone(),
            fence,
            lease_ms,
            grace_ms: ticket.grace_ms,
            run: self.meta.run.clone(),
            revoked: false,
            mode: Mode::Exclusive,
            since_us: self.at.now_us,
            party: ticket.party.clone(),
        };
        let end_us = self.at.now_us + lease_ms * US_PER_MS;
        for (name, mode) in wants {
            self.lock(name).hold(Record { mode, ..record.clone() }, end_us);
        }
        fence
    }

    /// What every refused acquire does for the lock (R14 to R16): for each holder, of many for those whose leases end
    /// first. (Who is dead renews no more, and is among them soon.)
    fn probe(&mut self, name: &Name) {
        let (guarded, now_us) = (self.guard_ms() > 0, self.at.now_us);
        let lock = self.lock(name);
        let records: Vec<Record> = lock.holders().take(DROPS_PER_COMMAND).cloned().collect();
        // A foreign client took the expiry away or made it longer: the lease is put back (R15).
        let Some(first) = records.first() else { return };
        let lease_end_us = now_us + first.lease_ms * US_PER_MS;
        let together_us = lock.together().and_then(Together::last_end_us);
        if let Some(key) = &mut lock.key {
            key.expires_us = match together_us {
                None => Some(key.expires_us.map_or(lease_end_us, |at| at.min(lease_end_us))),
                last_end_us => last_end_us,
            };
        }
        let mut asked = false;
        for record in records {
            if !self.alive(&record.session) {
                if !guarded && !record.revoked && record.run == self.meta.run {
                    // Its link is closed: grace, then it is over (R14). A record of another run says
                    // nothing about a link to this one.
                    self.lock(name).shorten(&record.token, now_us, record.grace_ms);
                }
                continue;
            }
            // It is connected; does it know of this token? It releases what it does not (R16). Of many the first is
            // asked.
            if std::mem::replace(&mut asked, true) {
                continue;
            }
            let lock = self.lock(name);
            if lock.asked.as_ref().is_none_or(|(token, _)| *token != record.token) {
                let until_us = now_us + ASK_EVERY_MS * US_PER_MS;
                lock.asked = Some((record.token.clone(), until_us));
                let (name, token) = (name.clone(), record.token);
                self.effects.messages.push((record.session, Message::Asking { name, token }));
            }
        }
    }

    fn show(&mut self, name: &Name) -> LockView {
        let now_us = self.at.now_us;
        let lock = self.lock(name).clone();
        let ticket = |ticket: &Ticket| TicketView {
            token: ticket.token.clone(),
            session: ticket.session.clone(),
            alive: self.alive(&ticket.session),
            waited_ms: now_us.saturating_sub(ticket.since_us) / US_PER_MS,
            left_ms: ticket.deadline_us.map(|at| at.saturating_sub(now_us) / US_PER_MS),
            mode: ticket.mode,
            several: ticket.several,
            party: ticket.party.clone(),
        };
        let queue = lock.queue.iter().map(ticket).collect();
        let holder_alive = lock.holders().next().map(|record| self.alive(&record.session));
        let ends = lock.together().into_iter().flat_map(Together::by_end).skip(1);
        let beside = ends.map(|(end_us, record)| {
            (view(record, Some(end_us), now_us), self.alive(&record.session))
        });
        LockView { holder: holder_of(&lock, now_us), holder_alive, beside: beside.collect(), queue }
    }

    fn holder(&mut self, name: &Name) -> Option<HolderView> {
        let now_us = self.at.now_us;
        holder_of(self.lock(name), now_us)
    }

    /// What stands about a name at this moment.
    fn lock(&mut self, name: &Name) -> &mut Lock {
        let lock = self.locks.lock(name);
        lock.expire(self.at.now_us);
        lock
    }

    fn alive(&self, session: &SessionId) -> bool {
        (self.at.subscribers)(session) > 0
    }

    /// How long the guard still runs, in ms, rounded up; 0: it does not (R6).
    fn guard_ms(&self) -> u64 {
        if !self.at.rules.on(6) {
            return 0;
        }
        self.meta.guard_until_us.saturating_sub(self.at.now_us).div_ceil(US_PER_MS)
    }
}

/// The holder; of several the one whose lease ends first.
fn holder_of(lock: &Lock, now_us: u64) -> Option<HolderView> {
    let key = lock.key.as_ref()?;
    if let Some((end_us, record)) = lock.together().and_then(|together| together.by_end().next()) {
        return Some(view(record, Some(end_us), now_us));
    }
    Some(match lock.record() {
        Some(record) => view(record, key.expires_us, now_us),
        None => HolderView {
            token: key.token.clone(),
            ttl_ms: left_ms(key.expires_us, now_us),
            record: None,
        },
    })
}

fn view(record: &Record, end_us: Option<u64>, now_us: u64) -> HolderView {
    let its = RecordView {
        session: record.session.clone(),
        fence: record.fence,
        lease_ms: record.lease_ms,
        grace_ms: record.grace_ms,
        held_ms: now_us.saturating_sub(record.since_us) / US_PER_MS,
        revoked: record.revoked,
        mode: record.mode,
        party: record.party.clone(),
    };
    HolderView { token: record.token.clone(), ttl_ms: left_ms(end_us, now_us), record: Some(its) }
}

fn left_ms(end_us: Option<u64>, now_us: u64) -> Option<u64> {
    end_us.map(|at| at.saturating_sub(now_us).div_ceil(US_PER_MS))
}
