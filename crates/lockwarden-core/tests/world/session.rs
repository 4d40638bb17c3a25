//! A simulated session: a [`Keeper`] and the least driver around it, as the warden does it.
//!
//! Pure like the machines it drives: what arrives goes in, commands come out in `outbox`.

use lockwarden_core::{
    Command, Epoch, Message, Name, Reply, Rules, SessionId, Token,
    command::{Acquire, Mode, Reason, Refusal, Renew, Wait},
    keeper::{Acknowledged, Action, HandleId, Keeper, Keeping, Loss, State},
    limits::BEAT_MS,
    party::Party,
};
use std::sync::Arc;

/// Handles are numbered from here on, so that a fingerprint knows them from other numbers.
pub const FIRST_HANDLE: HandleId = 1 << 40;

/// What is asked for: one lock, or several at once (R29), and how each is to be held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    pub name: Name,
    pub also: Arc<[Name]>,
    /// As in [`Acquire::modes`].
    pub modes: Arc<[Mode]>,
}

impl Want {
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        std::iter::once(&self.name).chain(&*self.also)
    }

    pub fn wants(&self) -> impl Iterator<Item = (&Name, Mode)> {
        let mode = |number: usize| self.modes.get(number).copied().unwrap_or_default();
        self.names().enumerate().map(move |(number, name)| (name, mode(number)))
    }
}

/// One owner: what it wants at present.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Idle,
    /// It asked, and was not told that it holds the lock.
    Waiting {
        want: Arc<Want>,
        token: Token,
        patience: Patience,
        /// When to ask again (R17); none: an answer is under way.
        recheck_us: Option<u64>,
        /// It was sent once: a grant may be on its way.
        sent: bool,
    },
    /// `told`: its caller may act; else it renews first (R22).
    Holding {
        want: Arc<Want>,
        token: Token,
        handle: HandleId,
        told: bool,
        patience: Patience,
    },
    /// It gives the lock or the ticket back, and asks until it is answered (G6).
    Ending {
        want: Arc<Want>,
        token: Token,
        cancel: bool,
        /// `check()` held at the first send; the end of the lease (R31).
        sure_until_us: u64,
    },
}

/// How long an owner waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    None,
    Until(u64),
    Endless,
}

/// A command under way. `tag` is the beat's number or the handle's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub sent_us: u64,
    pub tag: u64,
    pub command: Command,
    /// See `Context::in_common`.
    pub may_hold: bool,
}

/// What an owner hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Granted(Token),
    Refused(Token),
    State(Token, State),
    /// `sure`: "released"; else "released or lost" (R31).
    Ended {
        token: Token,
        sure: bool,
    },
}

#[derive(Clone, Debug)]
pub struct Session {
    pub id: SessionId,
    pub keeper: Keeper,
    pub owners: Vec<Owner>,
    pub running: bool,
    pub linked: bool,
    rules: Rules,
    lease_ms: u64,
    grace_ms: u64,
    party: Arc<Party>,
    epoch: Option<Epoch>,
    /// Acquisitions so far.
    pub asked: u64,
    handles: u64,
    pub outbox: Vec<Call>,
    /// The link is to be closed.
    pub close: bool,
    pub events: Vec<Event>,
}

impl Session {
    pub fn new(id: &str, owners: usize, rules: Rules, lease_ms: u64, grace_ms: u64) -> Session {
        Session {
            id: SessionId::new(id),
            keeper: Keeper::new(rules),
            owners: vec![Owner::Idle; owners],
            running: true,
            linked: false,
            rules,
            lease_ms,
            grace_ms,
            party: Arc::default(),
            epoch: None,
            asked: 0,
            handles: 0,
            outbox: Vec::new(),
            close: false,
            events: Vec::new(),
        }
    }

    /// An idle owner asks. The token is registered before anything is sent (R16).
    pub fn ask(
        &mut self,
        now_us: u64,
        owner: usize,
        want: Arc<Want>,
        token: Token,
        patience: Patience,
    ) {
        assert_eq!(self.owners[owner], Owner::Idle);
        self.asked += 1;
        self.owners[owner] =
            Owner::Waiting { want, token, patience, recheck_us: Some(now_us), sent: false };
        self.tick(now_us);
    }

    /// The owner ends what it has: a release of a held lock, a cancel of a wait.
    pub fn end(&mut self, now_us: u64, owner: usize) {
        let (want, token, cancel, sure_until_us) = match self.owners[owner].clone() {
            Owner::Waiting { want, token, .. } => (want, token, true, 0),
            Owner::Holding { want, token, handle, told, .. } => {
                let sure = self.keeper.check(handle, now_us);
                let until = if sure { self.keeper.lease_end_us(handle) } else { 0 };
                self.keeper.forget(handle);
                (want, token, !told, until)
            }
            Owner::Idle | Owner::Ending { .. } => return,
        };
        self.owners[owner] = Owner::Ending { want, token, cancel, sure_until_us };
        self.send_ending(now_us, owner);
    }

    /// A new link stands (R7): beat, renew all held, re-send all pending.
    pub fn link_up(&mut self, now_us: u64) {
        self.linked = true;
        self.keeper.link_up(now_us);
        self.tick(now_us);
        self.resend(now_us);
        for owner in 0..self.owners.len() {
            self.send_ending(now_us, owner);
        }
    }

    pub fn link_down(&mut self, now_us: u64) {
        self.linked = false;
        self.close = false;
        self.outbox.clear();
        self.keeper.link_down();
        self.tick(now_us);
    }

    /// Is there anything to do by now?
    pub fn due(&self, now_us: u64) -> bool {
        self.deadline_us().is_some_and(|at| at <= now_us)
    }

    pub fn deadline_us(&self) -> Option<u64> {
        let owners = self.owners.iter().filter_map(|owner| match owner {
            Owner::Waiting { patience, recheck_us, .. } => {
                let until = if let Patience::Until(at) = patience { Some(*at) } else { None };
                [until, recheck_us.filter(|_| self.linked)].into_iter().flatten().min()
            }
            _ => None,
        });
        owners.chain(self.keeper.deadline_us()).min()
    }

    /// Does what is due: beats, renewals, rechecks, giving up.
    pub fn tick(&mut self, now_us: u64) {
        let mut spins = 0;
        while let Some(action) = self.keeper.poll(now_us) {
            spins += 1;
            assert!(spins < 1_000, "the keeper never comes to rest: {action:?}");
            match action {
                Action::Beat => {
                    let id = self.keeper.beat_sent(now_us);
                    self.send(now_us, id, Command::Beat);
                }
                Action::Renew(handles) => {
                    for (handle, lease_ms) in handles {
                        self.send_renewal(now_us, handle, lease_ms);
                    }
                }
                Action::Mend(_) => {
                    self.close = true;
                    return;
                }
                Action::Changed(handle, state) => self.changed(now_us, handle, state),
            }
        }
        self.tell(now_us);
        let next = self.keeper.deadline_us();
        assert!(next.is_none_or(|at| at > now_us), "poll rests, yet is due at once: {next:?}");
        for index in 0..self.owners.len() {
            let Owner::Waiting { patience, recheck_us, .. } = &self.owners[index] else { continue };
            if matches!(patience, Patience::Until(at) if *at <= now_us) {
                self.end(now_us, index);
            } else if self.linked && recheck_us.is_some_and(|at| at <= now_us) {
                self.send_acquire(now_us, index);
            }
        }
    }

    pub fn answered(&mut self, now_us: u64, call: &Call, epoch: Option<Epoch>, reply: &Reply) {
        if let Some(epoch) = &epoch {
            self.keeper.epoch_seen(now_us, epoch);
            // Another epoch: pending work is sent again at once (R23).
            if self.epoch.replace(epoch.clone()).is_some_and(|old| old != *epoch)
                && self.rules.on(23)
            {
                self.resend(now_us);
            }
        }
        let said = |lease_ms| Acknowledged {
            sent_us: call.sent_us,
            lease_ms,
            epoch: epoch.clone().expect("an answer of the table has an epoch"),
        };
        match (&call.command, reply) {
            (_, Reply::Stale) => self.close = true,
            (_, Reply::Unsubscribed) => {
                // Whatever it was, the next link sends it again.
                self.keeper.unsubscribed();
            }
            (Command::Beat, Reply::Beat { now_us: server_us, subscribers, .. }) => {
                let epoch = epoch.as_ref().expect("an answer of the table has an epoch");
                self.keeper.beat_heard(now_us, call.tag, epoch, *server_us, *subscribers);
            }
            (Command::Acquire(ask), Reply::Granted { lease_ms, .. }) => {
                self.granted(now_us, (&ask.name, &ask.also), &ask.token, said(*lease_ms));
            }
            (Command::Acquire(ask), Reply::Guarded { lease_ms, guard_ms }) => {
                match self.owner_of(&ask.token) {
                    Some(Owner::Waiting { recheck_us, .. }) => {
                        *recheck_us = Some(now_us + guard_ms * 1_000);
                    }
                    Some(Owner::Holding { handle, .. }) => {
                        let handle = *handle;
                        self.keeper.guarded(now_us, handle, call.sent_us, *lease_ms, *guard_ms);
                    }
                    _ => {}
                }
            }
            (Command::Acquire(ask), Reply::Refused(refusal)) => self.refused(now_us, ask, refusal),
            (Command::Acquire(ask), Reply::More) => self.again(now_us, &ask.token),
            // It fails, and what the same acquire may have got by now is given back.
            (Command::Acquire(ask), Reply::OtherMode { .. }) => {
                if let Some(owner) = self.waits_with(&ask.token) {
                    self.end(now_us, owner);
                }
            }
            (Command::Renew(renew), reply) if call.tag == 0 => match reply {
                Reply::Renewed { lease_ms } => {
                    self.granted(now_us, (&renew.name, &renew.also), &renew.token, said(*lease_ms));
                }
                _ => self.again(now_us, &renew.token),
            },
            (Command::Renew(_), Reply::Renewed { lease_ms }) => {
                self.keeper.renewed(now_us, call.tag, said(*lease_ms));
            }
            (Command::Renew(_), Reply::Guarded { lease_ms, guard_ms }) => {
                self.keeper.guarded(now_us, call.tag, call.sent_us, *lease_ms, *guard_ms);
            }
            (Command::Renew(_), Reply::NotHeld(absence)) => {
                self.keeper.lost(call.tag, Loss::NotHeld(*absence));
            }
            (Command::Release { token, .. } | Command::Cancel { token, .. }, reply) => {
                self.ended(now_us, token, matches!(reply, Reply::Released));
            }
            (command, reply) => panic!("{reply:?} is no answer to {command:?}"),
        }
        self.tick(now_us);
    }

    pub fn told(&mut self, now_us: u64, message: &Message) {
        match message {
            Message::Grant { name, token, lease_ms, epoch, first, .. } => {
                self.epoch.get_or_insert_with(|| epoch.clone());
                match self.owner_of(token) {
                    Some(Owner::Waiting { want, .. }) => {
                        let want = want.clone();
                        let (handle, keeping) = (self.new_handle(), self.keeping());
                        if self.keeper.granted_by_message(now_us, handle, keeping, *lease_ms, epoch)
                        {
                            self.hold(token, handle);
                        } else {
                            // Renew before telling; the answer is the grant (R22).
                            let renew = renewal(&want, token, self.lease_ms);
                            self.send(now_us, 0, renew);
                        }
                    }
                    Some(_) => {}
                    None => self.disown(now_us, (name, &Arc::default()), token),
                }
                if let Some(first) = first {
                    self.look_after(now_us, first, BEAT_MS);
                }
            }
            Message::First { token, holder, .. } => {
                let wait_ms = holder.ttl_ms.map_or(BEAT_MS, |ttl| (ttl + 5).min(BEAT_MS));
                self.look_after(now_us, token, wait_ms);
            }
            Message::Asking { name, token } => {
                if self.owner_of(token).is_none() {
                    self.disown(now_us, (name, &Arc::default()), token);
                }
            }
            Message::Revoked { token, .. } => {
                if let Some(Owner::Holding { handle, .. }) = self.owner_of(token) {
                    let handle = *handle;
                    self.keeper.lost(handle, Loss::Revoked);
                }
            }
            // Nothing follows from it but what a listener decides.
            Message::Recall { .. } => {}
        }
        self.tick(now_us);
    }

    /// The epoch of the last answer.
    pub fn epoch(&self) -> Option<&Epoch> {
        self.epoch.as_ref()
    }

    /// Which of its owners' handles pass the strict check now.
    pub fn believed(&self, now_us: u64) -> impl Iterator<Item = (&Want, &Token)> {
        self.owners.iter().filter_map(move |owner| match owner {
            Owner::Holding { want, token, handle, .. } if self.keeper.check(*handle, now_us) => {
                Some((&**want, token))
            }
            _ => None,
        })
    }

    fn granted(
        &mut self,
        now_us: u64,
        names: (&Name, &Arc<[Name]>),
        token: &Token,
        said: Acknowledged,
    ) {
        match self.owner_of(token) {
            Some(Owner::Waiting { .. }) => {
                let (handle, keeping) = (self.new_handle(), self.keeping());
                self.keeper.granted(now_us, handle, keeping, said);
                self.hold(token, handle);
            }
            // A recheck that crossed the grant, or the renewal before telling.
            Some(Owner::Holding { handle, .. }) => {
                let handle = *handle;
                self.keeper.renewed(now_us, handle, said);
            }
            // Its release or cancel is behind it on the same link.
            Some(_) => {}
            None => self.disown(now_us, names, token),
        }
    }

    fn refused(&mut self, now_us: u64, ask: &Acquire, refusal: &Refusal) {
        let Some(owner) = self.owner_of(&ask.token) else { return };
        let Owner::Waiting { patience, recheck_us, .. } = owner else { return };
        if *patience == Patience::None {
            *owner = Owner::Idle;
            self.events.push(Event::Refused(ask.token.clone()));
            return;
        }
        let ttl_ms = refusal.holder.as_ref().and_then(|holder| holder.ttl_ms);
        let free_ms = match refusal.reason {
            Reason::Held | Reason::Kept => ttl_ms,
            Reason::Guard { guard_ms } => Some(guard_ms),
        };
        let (margin_ms, most_ms) = match refusal.position {
            Some(0) => (5, 1_000),
            Some(1) => (20, 3_000),
            _ => (50, 10_000),
        };
        let wait_ms = free_ms.map_or(most_ms, |ms| (ms + margin_ms).min(most_ms));
        *recheck_us = Some(now_us + wait_ms * 1_000);
    }

    fn changed(&mut self, now_us: u64, handle: HandleId, state: State) {
        let held =
            |owner: &Owner| matches!(owner, Owner::Holding { handle: it, .. } if *it == handle);
        let Some(index) = self.owners.iter().position(held) else { return };
        let Owner::Holding { want, token, told, patience, .. } = self.owners[index].clone() else {
            return;
        };
        if told {
            self.events.push(Event::State(token.clone(), state));
        }
        if !matches!(state, State::Lost(_)) {
            return;
        }
        self.keeper.forget(handle);
        // It may still be ours at the store: then nobody should wait for its end. Who was not told
        // yet goes on waiting.
        self.owners[index] = if told {
            Owner::Ending { want, token, cancel: false, sure_until_us: 0 }
        } else {
            Owner::Waiting { want, token, patience, recheck_us: Some(now_us), sent: true }
        };
        self.send_ending(now_us, index);
    }

    /// Callers whose handle passes the check, and who do not know it yet, are told.
    fn tell(&mut self, now_us: u64) {
        for owner in &mut self.owners {
            if let Owner::Holding { handle, token, told, .. } = owner
                && !*told
                && self.keeper.check(*handle, now_us)
            {
                *told = true;
                self.events.push(Event::Granted(token.clone()));
            }
        }
    }

    fn ended(&mut self, now_us: u64, token: &Token, released: bool) {
        if let Some(owner) = self.owner_of(token)
            && let Owner::Ending { sure_until_us, .. } = owner
        {
            let sure = released || now_us < *sure_until_us;
            *owner = Owner::Idle;
            self.events.push(Event::Ended { token: token.clone(), sure });
        }
    }

    fn look_after(&mut self, now_us: u64, token: &Token, wait_ms: u64) {
        if let Some(Owner::Waiting { recheck_us: Some(at), .. }) = self.owner_of(token) {
            *at = (*at).min(now_us + wait_ms * 1_000);
        }
    }

    /// R16: a token that nobody here holds or waits for is given back at once.
    /// (A message is about one name, whatever else the token may hold.)
    fn disown(&mut self, now_us: u64, (name, also): (&Name, &Arc<[Name]>), token: &Token) {
        if self.rules.on(16) {
            let (name, also, token) = (name.clone(), also.clone(), token.clone());
            self.send(now_us, 0, Command::Release { name, also, token, lost: false });
        }
    }

    fn resend(&mut self, now_us: u64) {
        for index in 0..self.owners.len() {
            self.send_acquire(now_us, index);
        }
    }

    /// An answer that settled nothing: ask again.
    fn again(&mut self, now_us: u64, token: &Token) {
        if let Some(Owner::Waiting { recheck_us, .. }) = self.owner_of(token) {
            *recheck_us = Some(now_us);
        }
    }

    fn send_acquire(&mut self, now_us: u64, owner: usize) {
        let (lease_ms, grace_ms, party) = (self.lease_ms, self.grace_ms, self.party.clone());
        let Owner::Waiting { want, token, patience, recheck_us, .. } = &mut self.owners[owner]
        else {
            return;
        };
        if !self.linked {
            *recheck_us = Some(now_us);
            return;
        }
        *recheck_us = None;
        let wait = match *patience {
            Patience::None => Wait::No,
            Patience::Until(at) => Wait::For(at.saturating_sub(now_us) / 1_000),
            Patience::Endless => Wait::Forever,
        };
        let command = Command::Acquire(Acquire {
            at_least_ms: 0,
            delay_ms: 0,
            endless: false,
            name: want.name.clone(),
            also: want.also.clone(),
            modes: want.modes.clone(),
            token: token.clone(),
            proof: "".into(),
            wait,
            lease_ms,
            grace_ms,
            floor: 0,
            party,
        });
        self.send(now_us, 0, command);
        if let Owner::Waiting { sent, .. } = &mut self.owners[owner] {
            *sent = true;
        }
    }

    fn send_renewal(&mut self, now_us: u64, renewed: HandleId, lease_ms: u64) {
        let held = self.owners.iter().find_map(|owner| match owner {
            Owner::Holding { want, token, handle, .. } if *handle == renewed => {
                Some(renewal(want, token, lease_ms))
            }
            _ => None,
        });
        if let Some(renew) = held {
            self.send(now_us, renewed, renew);
        }
    }

    fn send_ending(&mut self, now_us: u64, owner: usize) {
        let Owner::Ending { want, token, cancel, .. } = self.owners[owner].clone() else { return };
        let (name, also) = (want.name.clone(), want.also.clone());
        let command = if cancel {
            Command::Cancel { name, also, token, proof: "".into() }
        } else {
            Command::Release { name, also, token, lost: false }
        };
        self.send(now_us, 0, command);
    }

    fn send(&mut self, now_us: u64, tag: u64, command: Command) {
        let may_hold = self.owners.iter().any(|owner| match owner {
            Owner::Idle => false,
            Owner::Waiting { sent, .. } => *sent,
            Owner::Holding { .. } | Owner::Ending { .. } => true,
        });
        if self.linked {
            self.outbox.push(Call { sent_us: now_us, tag, command, may_hold });
        }
    }

    fn owner_of(&mut self, wanted: &Token) -> Option<&mut Owner> {
        self.owners.iter_mut().find(|owner| match owner {
            Owner::Idle => false,
            Owner::Waiting { token, .. }
            | Owner::Holding { token, .. }
            | Owner::Ending { token, .. } => token == wanted,
        })
    }

    fn waits_with(&self, wanted: &Token) -> Option<usize> {
        let waits =
            |owner: &Owner| matches!(owner, Owner::Waiting { token, .. } if token == wanted);
        self.owners.iter().position(waits)
    }

    fn new_handle(&mut self) -> HandleId {
        self.handles += 1;
        FIRST_HANDLE + self.handles
    }

    fn hold(&mut self, token: &Token, handle: HandleId) {
        if let Some(owner) = self.owner_of(token)
            && let Owner::Waiting { want, token, patience, .. } = owner.clone()
        {
            *owner = Owner::Holding { want, token, handle, told: false, patience };
        }
    }

    pub fn keeping(&self) -> Keeping {
        Keeping { lease_ms: self.lease_ms, grace_ms: self.grace_ms, renew: true, most_ms: None }
    }
}

/// All of what was asked for is renewed, or none (R29).
fn renewal(want: &Want, token: &Token, lease_ms: u64) -> Command {
    let (name, also, token) = (want.name.clone(), want.also.clone(), token.clone());
    Command::Renew(Renew { name, also, token, lease_ms })
}
