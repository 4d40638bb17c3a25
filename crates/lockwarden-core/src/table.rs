//! The table: the store side of every lock, and the specification that the Redis scripts mirror.
//!
//! [`step`] takes one lock, one command and the moment, and gives a reply and messages. It must not
//! do I/O, read a clock or draw random bytes. Who is alive is an input, too: each store knows that
//! in its own way (R13, R40).
//!
//! A Redis server keeps keys, not structures, so the table thinks in keys as well: the *key* holds
//! a token and expires; the *record* describes the holder and counts only while its token is the
//! key's value (R3); the *queue* holds tickets. A foreign client may write the key at any time.

use crate::{
    command::{
        Absence, Acquire, Command, HolderView, LockView, Message, Reason, RecordView, Refusal,
        Renew, Reply, TicketView, Wait,
    },
    deadlock::{self, Others, Place, Places, WaitChange, Waits},
    limits::{ASK_EVERY_MS, DROPS_PER_COMMAND, MAX_FLOOR_AHEAD_US, QUEUE_TTL_MS, W_MS},
    name::{Epoch, Name, Run, SessionId, Token},
    party::Party,
    rules::Rules,
};
use std::{collections::BTreeMap, sync::Arc};

/// Everything a store holds: one per database and key prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Table {
    /// Epoch, run, guard and fence; none: the store is new, or was emptied.
    pub meta: Option<Meta>,
    /// The locks that hold anything.
    pub locks: BTreeMap<Name, Lock>,
    /// Where owners wait (R37).
    pub waits: Waits,
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
    /// Carries out one command: [`enter`], then [`step`] on the lock that it names.
    pub fn apply(&mut self, at: &Context<'_>, command: &Command) -> (Reply, Messages) {
        let mut effects = Effects::default();
        let Some(mut meta) = enter(self.meta.clone(), at) else {
            return (Reply::Stale, effects.messages);
        };
        let reply = match command.name() {
            Some(name) => {
                let mut lock = self.locks.remove(name).unwrap_or_default();
                let reply = step(&mut meta, &mut lock, self, at, command, &mut effects);
                if lock != Lock::default() {
                    self.locks.insert(name.clone(), lock);
                }
                reply
            }
            None => beat(at),
        };
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
    }
}

impl Others for Table {
    fn places(&self, owner: &str) -> Option<Places> {
        self.waits.get(owner).cloned()
    }

    fn lock(&self, name: &Name) -> Option<Lock> {
        self.locks.get(name).cloned()
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

/// Carries out one command that names this lock.
pub fn step(
    meta: &mut Meta,
    lock: &mut Lock,
    others: &dyn Others,
    at: &Context<'_>,
    command: &Command,
    effects: &mut Effects,
) -> Reply {
    lock.expire(at.now_us);
    let mut turn = Turn { meta, lock, others, at, effects };
    let reply = match command {
        Command::Acquire(acquire) => turn.acquire(acquire),
        Command::Renew(renew) => turn.renew(renew),
        Command::Release { name, token } => turn.release(name, token),
        Command::Cancel { name, token, proof } => turn.cancel(name, token, proof),
        Command::Revoke { name, token, session, delayed } => {
            turn.revoke(name, token, session.as_ref(), *delayed)
        }
        Command::Show { .. } => Reply::Shown(Box::new(turn.show())),
        Command::Beat => beat(at),
    };
    // A queue whose last ticket went is no queue, and a record without its key describes nobody (G9).
    lock.expire(at.now_us);
    reply
}

impl Lock {
    /// The record, if it counts (R3).
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        let key = self.key.as_ref()?;
        self.record.as_ref().filter(|record| record.token == key.token)
    }

    /// Forgets what has expired.
    pub fn expire(&mut self, now_us: u64) {
        self.key.take_if(|key| key.expires_us.is_some_and(|at| at <= now_us));
        if self.record().is_none() {
            self.record = None;
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

    fn holds(&self, token: &Token) -> bool {
        self.key.as_ref().is_some_and(|key| key.token == *token)
    }

    fn absence(&self) -> Absence {
        if self.key.is_some() { Absence::Taken } else { Absence::Free }
    }
}

/// One command's turn at one lock.
struct Turn<'a> {
    meta: &'a mut Meta,
    lock: &'a mut Lock,
    others: &'a dyn Others,
    at: &'a Context<'a>,
    effects: &'a mut Effects,
}

/// What a promotion came to.
enum Promoted {
    /// Nobody living waits.
    Nobody,
    /// The lock was granted to a ticket of the token that asked (if any), or to another.
    Granted { to_asker: bool },
    /// The bound on dropped tickets was met (R26).
    More,
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
        if self.is_own(ask) {
            return match self.extend(ask.lease_ms) {
                0 => self.granted(),
                guard_ms => Reply::Guarded { lease_ms: ask.lease_ms, guard_ms },
            };
        }
        if self.lock.key.is_none() && self.guard_ms() == 0 {
            // First those who came before (R26). Without this rule a newcomer takes a lock that
            // others wait for, and a dead ticket is in nobody's way either.
            if at.rules.on(26) {
                match self.promote(&ask.name, Some(&ask.token)) {
                    Promoted::More => return Reply::More,
                    Promoted::Granted { to_asker: true } => return self.granted(),
                    Promoted::Granted { to_asker: false } => {}
                    Promoted::Nobody => {
                        self.grant(ask.ticket(at, None), ask.lease_ms);
                        return self.granted();
                    }
                }
            } else {
                self.grant(ask.ticket(at, None), ask.lease_ms);
                return self.granted();
            }
        }
        self.probe(&ask.name);
        if let Some(cycle) = deadlock::cycle(at, self.others, self.lock, ask) {
            let own = |it: &Ticket| it.token == ask.token && it.session == *at.caller;
            self.leave_queue(&ask.name, own);
            return Reply::Deadlock(cycle);
        }
        let position = self.queue_up(ask);
        let reason = match self.guard_ms() {
            0 => Reason::Held,
            guard_ms => Reason::Guard { guard_ms },
        };
        Reply::Refused(Refusal { reason, holder: self.holder(), position })
    }

    /// The caller's own acquisition, asked for again (R25). A redelivered task brings the same
    /// value from another session, and must be refused.
    fn is_own(&self, ask: &Acquire) -> bool {
        if !self.at.rules.on(25) {
            return self.lock.holds(&ask.token);
        }
        self.lock.record().is_some_and(|record| {
            record.token == ask.token
                && record.session == *self.at.caller
                && record.proof == ask.proof
                && !record.revoked
        })
    }

    /// May the caller renew or release by this token? Not if the record says that another session
    /// holds it: where the value is the caller's choice (R25), a holder that was passed over would
    /// renew or release its successor. A key without a record is anyone's who knows its value.
    fn owns(&self, token: &Token) -> bool {
        let others = |record: &Record| record.session != *self.at.caller;
        self.lock.holds(token) && !(self.at.rules.on(25) && self.lock.record().is_some_and(others))
    }

    fn renew(&mut self, renew: &Renew) -> Reply {
        if self.at.rules.on(11) && !self.alive(self.at.caller) {
            return Reply::Unsubscribed;
        }
        if !self.owns(&renew.token) {
            return Reply::NotHeld(self.lock.absence());
        }
        if self.lock.record().is_some_and(|record| record.revoked) {
            return Reply::NotHeld(Absence::Revoked);
        }
        let lease_ms = renew.lease_ms;
        match self.extend(lease_ms) {
            0 => Reply::Renewed { lease_ms },
            guard_ms => Reply::Guarded { lease_ms, guard_ms },
        }
    }

    /// Sets the whole lease of the present holder, and writes what it results in (R15). Says how
    /// long the guard still runs: then no belief follows (R6).
    fn extend(&mut self, lease_ms: u64) -> u64 {
        if let Some(key) = &mut self.lock.key {
            key.expires_us = Some(self.at.now_us + lease_ms * US_PER_MS);
        }
        if self.lock.record().is_some()
            && let Some(record) = &mut self.lock.record
        {
            record.lease_ms = lease_ms;
            record.run = self.meta.run.clone();
        }
        self.guard_ms()
    }

    /// The grant that stands in the record.
    fn granted(&self) -> Reply {
        let record = self.lock.record();
        Reply::Granted {
            fence: record.map_or(0, |record| record.fence),
            lease_ms: record.map_or(0, |record| record.lease_ms),
        }
    }

    fn release(&mut self, name: &Name, token: &Token) -> Reply {
        if !self.owns(token) {
            // An acquire that was sent again before this release may have found the lock gone, and
            // queued: nothing of the token is left behind (G6).
            let caller = self.at.caller;
            self.leave_queue(name, |it| it.token == *token && it.session == *caller);
            return Reply::NotHeld(self.lock.absence());
        }
        self.free(name);
        Reply::Released
    }

    fn cancel(&mut self, name: &Name, token: &Token, proof: &str) -> Reply {
        // By session and proof as well: in the drop-ins the same value may be another's by now.
        let caller = self.at.caller;
        self.leave_queue(name, |ticket| {
            ticket.token == *token && ticket.session == *caller && &*ticket.proof == proof
        });
        let granted = self.lock.record().is_some_and(|record| {
            record.token == *token && record.session == *caller && &*record.proof == proof
        });
        if granted {
            self.free(name);
        }
        Reply::Cancelled { released: granted }
    }

    fn revoke(
        &mut self,
        name: &Name,
        token: &Token,
        session: Option<&SessionId>,
        delayed: bool,
    ) -> Reply {
        let record = self.lock.record();
        let meant = session.is_none_or(|id| record.is_some_and(|record| record.session == *id));
        if !self.lock.holds(token) || !meant {
            return Reply::NotHeld(self.lock.absence());
        }
        let holder = record.map(|record| record.session.clone());
        let guard_ms = self.guard_ms();
        let after_ms = if !delayed {
            0
        } else if guard_ms > 0 {
            // Nothing is shortened during the guard (R6).
            return Reply::Guarded { lease_ms: 0, guard_ms };
        } else {
            if let Some(record) = &mut self.lock.record {
                record.revoked = true;
            }
            self.shorten(W_MS)
        };
        if let Some(session) = holder {
            let (name, token) = (name.clone(), token.clone());
            self.effects.messages.push((session, Message::Revoked { name, token, after_ms }));
        }
        if !delayed {
            self.free(name);
        }
        Reply::Revoked { after_ms }
    }

    /// Takes tickets out of the queue. (Those of the dead are dropped without a word about their waits, which
    /// count no more without the ticket.)
    fn leave_queue(&mut self, name: &Name, whose: impl Fn(&Ticket) -> bool) {
        for ticket in self.lock.queue.extract_if(.., |ticket| whose(ticket)) {
            self.effects.waits.extend(ticket.wait_ends(name));
        }
    }

    /// Deletes the holder, then hands on in the same step (G3, G4).
    fn free(&mut self, name: &Name) {
        self.lock.key = None;
        self.lock.record = None;
        if self.guard_ms() == 0 {
            self.promote(name, None);
        }
    }

    /// Grants a free lock to the first ticket that is alive and in time (R26). A ticket of `asker`
    /// gets the whole lease, for its reply says so; another is told by message (R27).
    fn promote(&mut self, name: &Name, asker: Option<&Token>) -> Promoted {
        for _ in 0..DROPS_PER_COMMAND {
            if self.lock.queue.is_empty() {
                return Promoted::Nobody;
            }
            let ticket = self.lock.queue.remove(0);
            let overdue = ticket.deadline_us.is_some_and(|at| at <= self.at.now_us);
            if overdue || !self.alive(&ticket.session) {
                continue;
            }
            self.effects.waits.extend(ticket.wait_ends(name));
            let to_asker = asker == Some(&ticket.token) && ticket.session == *self.at.caller;
            let (token, session) = (ticket.token.clone(), ticket.session.clone());
            let lease_ms = if to_asker { ticket.lease_ms } else { ticket.lease_ms.min(W_MS) };
            let fence = self.grant(ticket, lease_ms);
            let first = self.lock.queue.first();
            let same = first.filter(|first| first.session == session);
            let same = same.map(|first| first.token.clone());
            // Whoever is first now looks after the new holder. One message does for both where
            // both are the same session's.
            if let Some(first) = first
                && (to_asker || same.is_none())
                && let Some(holder) = self.holder()
            {
                let (name, token) = (name.clone(), first.token.clone());
                let message = Message::First { name, token, holder: Box::new(holder) };
                self.effects.messages.push((first.session.clone(), message));
            }
            if !to_asker {
                let (name, epoch) = (name.clone(), self.meta.epoch.clone());
                let message = Message::Grant { name, token, fence, lease_ms, epoch, first: same };
                self.effects.messages.push((session, message));
            }
            return Promoted::Granted { to_asker };
        }
        if self.lock.queue.is_empty() { Promoted::Nobody } else { Promoted::More }
    }

    /// Writes a grant; the fence grows with every one of them, per name and in all (R34).
    fn grant(&mut self, ticket: Ticket, lease_ms: u64) -> u64 {
        let fence = (self.meta.fence + 1).max(self.at.now_us).max(ticket.floor + 1);
        self.meta.fence = fence;
        let expires_us = Some(self.at.now_us + lease_ms * US_PER_MS);
        self.lock.key = Some(Key { token: ticket.token.clone(), expires_us });
        self.lock.record = Some(Record {
            token: ticket.token,
            proof: ticket.proof,
            session: ticket.session,
            fence,
            lease_ms,
            grace_ms: ticket.grace_ms,
            run: self.meta.run.clone(),
            revoked: false,
            since_us: self.at.now_us,
            party: ticket.party,
        });
        fence
    }

    /// What every refused acquire does for the lock (R14 to R16).
    fn probe(&mut self, name: &Name) {
        let guarded = self.guard_ms() > 0;
        let now_us = self.at.now_us;
        let Some(record) = self.lock.record().cloned() else { return };
        let Some(key) = &mut self.lock.key else { return };
        // A foreign client took the expiry away or made it longer: the lease is put back (R15).
        let lease_end_us = now_us + record.lease_ms * US_PER_MS;
        if key.expires_us.is_none_or(|at| at > lease_end_us) {
            key.expires_us = Some(lease_end_us);
        }
        if self.alive(&record.session) {
            // It is connected; does it know of this token? It releases what it does not (R16).
            let asked = self.lock.asked.as_ref().is_some_and(|(token, _)| *token == record.token);
            if !asked {
                let until_us = now_us + ASK_EVERY_MS * US_PER_MS;
                self.lock.asked = Some((record.token.clone(), until_us));
                let (name, token) = (name.clone(), record.token);
                self.effects.messages.push((record.session, Message::Asking { name, token }));
            }
        } else if !guarded && !record.revoked && record.run == self.meta.run {
            // Its link is closed: grace, then it is over (R14). A record of another run says
            // nothing about a link to this one.
            self.shorten(record.grace_ms);
        }
    }

    /// Lets the key end in at most `most_ms`; says in how many ms it will.
    fn shorten(&mut self, most_ms: u64) -> u64 {
        let Some(key) = &mut self.lock.key else { return 0 };
        let end_us = self.at.now_us + most_ms * US_PER_MS;
        let expires_us = key.expires_us.map_or(end_us, |at| at.min(end_us));
        key.expires_us = Some(expires_us);
        (expires_us - self.at.now_us).div_ceil(US_PER_MS)
    }

    /// Gives a waiting caller its ticket, or refreshes it; its place stays (R28, G6).
    fn queue_up(&mut self, ask: &Acquire) -> Option<u64> {
        let at = self.at;
        let deadline_us = match ask.wait {
            Wait::No => return None,
            Wait::For(left_ms) => Some(at.now_us + left_ms * US_PER_MS),
            Wait::Forever => None,
        };
        // An acquisition that was revoked, and has not ended yet, does not wait behind itself: its
        // release would hand the lock to it again (G6).
        if self.lock.record().is_some_and(|record| {
            record.token == ask.token && record.session == *at.caller && record.proof == ask.proof
        }) {
            return None;
        }
        self.lock.queue_expires_us = at.now_us + QUEUE_TTL_MS * US_PER_MS;
        let queue = &mut self.lock.queue;
        let own = |ticket: &Ticket| ticket.token == ask.token;
        let index = match queue.iter().position(own) {
            // Another session's ticket of the same value is in the way of ours (R25).
            Some(index)
                if queue[index].session != *at.caller || queue[index].proof != ask.proof =>
            {
                return None;
            }
            Some(index) => {
                queue[index].deadline_us = deadline_us;
                index
            }
            None => {
                queue.push(ask.ticket(at, deadline_us));
                queue.len() - 1
            }
        };
        for owner in deadlock::wholes(&ask.party.owner) {
            let place = Place { name: ask.name.clone(), token: ask.token.clone() };
            let until_us = self.lock.queue_expires_us;
            self.effects.waits.push(WaitChange::Begins(owner, place, until_us));
        }
        // Only the first two living look after the holder, so only they must know their place
        // exactly; counting further, or past many dead ones, would cost one probe per ticket.
        let mut living = 0;
        for ticket in self.lock.queue[..index].iter().take(DROPS_PER_COMMAND) {
            living += u64::from(self.alive(&ticket.session));
            if living == 2 {
                return Some(index as u64);
            }
        }
        Some(if index > DROPS_PER_COMMAND { index as u64 } else { living })
    }

    fn show(&self) -> LockView {
        let now_us = self.at.now_us;
        let ticket = |ticket: &Ticket| TicketView {
            token: ticket.token.clone(),
            session: ticket.session.clone(),
            alive: self.alive(&ticket.session),
            waited_ms: now_us.saturating_sub(ticket.since_us) / US_PER_MS,
            left_ms: ticket.deadline_us.map(|at| at.saturating_sub(now_us) / US_PER_MS),
            party: ticket.party.clone(),
        };
        LockView {
            holder: self.holder(),
            holder_alive: self.lock.record().map(|record| self.alive(&record.session)),
            queue: self.lock.queue.iter().map(ticket).collect(),
        }
    }

    fn holder(&self) -> Option<HolderView> {
        let key = self.lock.key.as_ref()?;
        let now_us = self.at.now_us;
        Some(HolderView {
            token: key.token.clone(),
            ttl_ms: key.expires_us.map(|at| at.saturating_sub(now_us).div_ceil(US_PER_MS)),
            record: self.lock.record().map(|record| RecordView {
                session: record.session.clone(),
                fence: record.fence,
                lease_ms: record.lease_ms,
                grace_ms: record.grace_ms,
                held_ms: now_us.saturating_sub(record.since_us) / US_PER_MS,
                revoked: record.revoked,
                party: record.party.clone(),
            }),
        })
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

impl Ticket {
    /// Its owner does not wait with it any more.
    fn wait_ends(&self, name: &Name) -> impl Iterator<Item = WaitChange> {
        let place = Place { name: name.clone(), token: self.token.clone() };
        deadlock::wholes(&self.party.owner).map(move |owner| WaitChange::Ends(owner, place.clone()))
    }
}

impl Acquire {
    fn ticket(&self, at: &Context<'_>, deadline_us: Option<u64>) -> Ticket {
        Ticket {
            token: self.token.clone(),
            proof: self.proof.clone(),
            session: at.caller.clone(),
            lease_ms: self.lease_ms,
            grace_ms: self.grace_ms,
            floor: self.floor,
            deadline_us,
            since_us: at.now_us,
            party: self.party.clone(),
        }
    }
}
