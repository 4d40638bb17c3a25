//! The table: the store side of every lock, and the specification that the Redis scripts mirror.
//!
//! [`step`] takes the locks, one command and the moment, and gives a reply and messages. It must not
//! do I/O, read a clock or draw random bytes. Who is alive is an input, too: each store knows that
//! in its own way (R13, R40). The commands are here; who holds a lock is in `lock` and `together`, who waits for it in
//! `queue`, how a hold changes its mode or its holder in `holds`, what is done to it by its value alone in `by_value`.
//!
//! A Redis server keeps keys, not structures, so the table thinks in keys as well: the *key* holds
//! a token and expires; the *record* describes the holder and counts only while its token is the
//! key's value (R3); the *queue* holds tickets. A foreign client may write the key at any time.

use crate::{
    command::{
        Acquire, Command, HoldState, HolderView, LockView, Message, Mode, Reason, Refusal, Renew,
        Reply, TicketView, Wait,
    },
    deadlock::{self, Places, WaitChange, Waits},
    limits::{
        ASK_EVERY_MS, DROPS_PER_COMMAND, MAX_FLOOR_AHEAD_US, MOST_HOLDERS_TOLD, UNSEEN_ENDLESS_MS,
        W_MS,
    },
    name::{Epoch, Name, Run, SessionId, Token},
    party::Party,
    rules::Rules,
};
use lock::{check_beside, holder_of, is_nobodys, over};
use queue::Ahead;
use std::{collections::BTreeMap, sync::Arc};

mod by_value;
mod holds;
mod lock;
mod queue;
pub mod together;

pub use lock::{Key, Lock, Record};
pub use queue::{Request, Ticket};
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
        Command::Release { token, lost, .. } => turn.release(command, token, *lost),
        Command::Cancel { token, proof, .. } => turn.cancel(command, token, proof),
        Command::Revoke { name, token, session, delayed } => {
            turn.revoke(name, token, session.as_ref(), *delayed)
        }
        Command::Recall { name, token, by } => turn.recall(name, token, by),
        Command::Convert { name, token, to, new_token, floor } => {
            turn.convert(name, (token, new_token), *to, *floor)
        }
        Command::HandOver { token, to, lease_ms, .. } => {
            turn.hand_over(command, token, to, *lease_ms)
        }
        Command::ExtendByValue { name, token, ms, how } => {
            turn.extend_by_value(name, token, *ms, *how)
        }
        Command::Leave { name, token } => turn.leave(command, name, token),
        Command::Show { name } => Reply::Shown(Box::new(turn.show(name))),
        Command::Beat => beat(at),
    }
}

/// Is a grant for the whole lease, or does its receiver have to renew it first (R27)?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whole {
    Yes,
    OnceRenewed,
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
        if self.is_ahead(ask.floor) {
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
        if ask.wait == Wait::Adopt {
            return self.adopt(ask);
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
            let (mut open, mut is_stopped) = (true, false);
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
                let ahead = self.promote(name, Some(ask));
                is_stopped |= matches!(ahead, Ahead::Asker);
                match ahead {
                    Ahead::More => return Reply::More,
                    Ahead::Somebody => open = false,
                    // Its own that was revoked, and has not ended yet, is in its way (G6).
                    Ahead::Nobody | Ahead::Asker => {
                        let lock = self.lock(name);
                        open &=
                            lock.has_room(mode) == Ok(true) && lock.held_by(&ask.token).is_none();
                    }
                }
            }
            if open {
                self.leave_queues(ask.names(), (&ask.token, at.caller), |_| true);
                self.grant(ask.wants(), &ask.ticket(at, None), ask.lease_ms, Whole::Yes);
                for (name, mode) in ask.wants() {
                    if is_stopped && mode != Mode::Exclusive {
                        // Those behind it enter with it (G4).
                        self.promote(name, None);
                    }
                    // It may have passed others.
                    self.tell_first(name);
                }
                return self.granted(ask);
            }
            if is_stopped && !ask.also.is_empty() {
                // Somebody came first at another of its locks: those behind it are not kept from these.
                for name in ask.names() {
                    if self.lock(name).may_grant() {
                        self.promote(name, None);
                    }
                }
                if ask.names().all(|name| self.is_own(name, ask)) {
                    return self.granted(ask);
                }
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
        // One of each lock, then those beside them: their processes are watched, too (G3).
        let mut holders: Vec<(usize, HolderView)> = Vec::new();
        let mut beside: Vec<(usize, HolderView)> = Vec::new();
        for number in tell {
            if holders.len() == MOST_HOLDERS_TOLD {
                break;
            }
            let lock = self.lock(ask.name_at(number));
            holders.extend(holder_of(lock, at.now_us).map(|holder| (number, holder)));
            let others = lock.views_beside(at.now_us).take(MOST_HOLDERS_TOLD);
            beside.extend(others.map(|holder| (number, holder)));
        }
        holders.extend(beside);
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
            record.session == *at.caller
                && record.proof == ask.proof
                && record.state == HoldState::Held
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
            if let Some(absence) = lock.held_by(&renew.token).and_then(over) {
                return Reply::NotHeld(absence);
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
        if lock.held_by(token).is_none()
            && let Some(key) = &mut lock.key
        {
            key.expires_us = Some(now_us + lease_ms * US_PER_MS);
        }
        lock.change_holder(token, |record, end_us| {
            (record.lease_ms, record.run) = (lease_ms, run);
            *end_us = record.renewed_end_us(now_us, lease_ms);
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

    fn release(&mut self, command: &Command, token: &Token, lost: bool) -> Reply {
        let at = self.at;
        let (mut owned, mut others): (Vec<&Name>, Vec<&Name>) =
            command.names().partition(|name| self.lock(name).is_owned(token, at));
        // What a release before this one left to cool is released (G6).
        let cooling = lock::cooling_token(token);
        others.retain(|name| !self.lock(name).is_owned(&cooling, at));
        let absence = others.first().map(|name| self.lock(name).absence());
        // An acquire that was sent again before this release may have found a lock gone, and
        // queued: nothing of the token is left behind (G6).
        self.stand_down(others, token, |_| true);
        // Whose minimum is not over is not free (R33), nor what was lost before for its delay (R43).
        owned.retain(|name| {
            let record = self.lock(name).held_by(token);
            let end_us = match record.filter(|record| record.state == HoldState::Held) {
                Some(record) if lost => record.end_us(at.now_us, 0),
                record => record.map_or(0, |record| record.least_until_us),
            };
            if end_us > at.now_us {
                self.lock(name).cool(token, at.now_us, end_us);
            }
            end_us <= at.now_us
        });
        self.free(&owned, token);
        absence.map_or(Reply::Released, Reply::NotHeld)
    }

    fn cancel(&mut self, command: &Command, token: &Token, proof: &str) -> Reply {
        // By session and proof as well: in the drop-ins the same value may be another's by now.
        let caller = self.at.caller;
        self.stand_down(command.names(), token, |ticket| &*ticket.proof == proof);
        // What waits to be adopted was not granted to whoever gives up adopting it.
        let is_granted = |record: &Record| {
            record.session == *caller
                && &*record.proof == proof
                && record.state != HoldState::HandedOver
        };
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
        // A dead session is no proof about what is nobody's.
        let meant = session.is_none_or(|id| {
            record.is_some_and(|record| record.session == *id && !is_nobodys(record))
        });
        if !lock.holds(token) || !meant {
            return Reply::NotHeld(lock.absence());
        }
        let holder = record.map(|record| record.session.clone());
        let crash_end_us = match (record, session) {
            // What died may have to be waited for all the same (R33, R43).
            (Some(record), Some(_)) if record.state == HoldState::Held => record.end_us(now_us, 0),
            _ => 0,
        };
        let after_ms = if delayed && guard_ms > 0 {
            // Nothing is shortened during the guard (R6).
            return Reply::Guarded { lease_ms: 0, guard_ms };
        } else if delayed {
            lock.change_holder(token, |record, _| {
                (record.state, record.endless) = (HoldState::Revoked, false);
            });
            lock.shorten(token, now_us, now_us + W_MS * US_PER_MS)
        } else if crash_end_us > now_us {
            lock.cool(token, now_us, crash_end_us);
            (crash_end_us - now_us).div_ceil(US_PER_MS)
        } else {
            0
        };
        if let Some(session) = holder {
            let (name, token) = (name.clone(), token.clone());
            self.effects.messages.push((session, Message::Revoked { name, token, after_ms }));
        }
        if after_ms == 0 {
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
        if is_nobodys(record) {
            return Reply::NotHeld(lock.absence());
        }
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
        whole: Whole,
    ) -> u64 {
        let now_us = self.at.now_us;
        let fence = self.next_fence(ticket.floor);
        let record = Record {
            token: ticket.token.clone(),
            proof: ticket.proof.clone(),
            session: ticket.session.clone(),
            fence,
            lease_ms,
            grace_ms: ticket.grace_ms,
            run: self.meta.run.clone(),
            state: HoldState::Held,
            least_until_us: match ticket.at_least_ms {
                0 => 0,
                at_least_ms => now_us + at_least_ms * US_PER_MS,
            },
            delay_ms: ticket.delay_ms,
            endless: false,
            mode: Mode::Exclusive,
            since_us: now_us,
            party: ticket.party.clone(),
        };
        for (name, mode) in wants {
            let endless = ticket.endless && mode == Mode::Exclusive;
            let record = Record { mode, endless, ..record.clone() };
            let end_us = match whole {
                Whole::Yes => record.renewed_end_us(now_us, lease_ms),
                Whole::OnceRenewed => record.end_us(now_us, lease_ms),
            };
            self.lock(name).hold(record, end_us);
        }
        fence
    }

    /// Is this floor absurd (R34)? Where the clock was set back, the fences that were given are the measure.
    fn is_ahead(&self, floor: u64) -> bool {
        floor > self.at.now_us.max(self.meta.fence).saturating_add(MAX_FLOOR_AHEAD_US)
    }

    /// The fence of a new grant.
    fn next_fence(&mut self, floor: u64) -> u64 {
        self.meta.fence = (self.meta.fence + 1).max(self.at.now_us).max(floor + 1);
        self.meta.fence
    }

    /// What every refused acquire does for the lock (R14 to R16): for each holder, of many for those whose leases end
    /// first. (Who is dead renews no more, and is among them soon.)
    fn probe(&mut self, name: &Name) {
        let (guarded, now_us) = (self.guard_ms() > 0, self.at.now_us);
        let run = self.meta.run.clone();
        let lock = self.lock(name);
        let records: Vec<Record> = lock.holders().take(DROPS_PER_COMMAND).cloned().collect();
        // A foreign client took the expiry away or made it longer: the lease is put back (R15).
        let Some(first) = records.first() else { return };
        let lease_end_us = first.end_us(now_us, first.lease_ms);
        let unseen_end_us = first.end_us(now_us, UNSEEN_ENDLESS_MS);
        let together_us = lock.together().and_then(Together::last_end_us);
        if let Some(key) = &mut lock.key {
            key.expires_us = match together_us {
                // Endless locks alone may have none: but for one whose holder has not shown itself in this run.
                None if first.endless => match key.expires_us {
                    None if !guarded && first.run != run => Some(unseen_end_us),
                    expires_us => expires_us,
                },
                None => Some(key.expires_us.map_or(lease_end_us, |at| at.min(lease_end_us))),
                last_end_us => last_end_us,
            };
        }
        let mut asked = false;
        for record in records {
            // What is nobody's has no link, and nobody to be asked (R32, R33).
            if is_nobodys(&record) {
                continue;
            }
            if !self.alive(&record.session) {
                let is_held = record.state == HoldState::Held;
                if !guarded && is_held && record.run == self.meta.run {
                    // Its link is closed: grace, then it is over (R14). A record of another run says
                    // nothing about a link to this one.
                    let end_us = record.end_us(now_us, record.grace_ms);
                    self.lock(name).shorten(&record.token, now_us, end_us);
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
        let records = lock.holders().skip(1).map(|record| self.alive(&record.session));
        let beside = lock.views_beside(now_us).zip(records);
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
