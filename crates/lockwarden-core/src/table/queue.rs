//! The queues: who waits for what, and who is served next (G4, R26 to R29).
//!
//! Of one name, whoever came first is served first. A request for several names holds nothing while it waits: its
//! tickets stand in all its queues, and it is served when all its names are free at once. Until then others may pass
//! it, except the request that came first of all of them: its names are kept for it (R29).

use super::{Context, Lock, Turn, US_PER_MS, Whole};
use crate::{
    command::{Acquire, Message, Mode, Wait},
    deadlock::{self, Place, WaitChange},
    limits::{DROPS_PER_COMMAND, QUEUE_TTL_MS, W_MS},
    name::{Name, SessionId, Token},
    party::Party,
};
use std::sync::Arc;

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
    /// See [`Acquire::at_least_ms`].
    pub at_least_ms: u64,
    /// See [`Acquire::delay_ms`].
    pub delay_ms: u64,
    /// See [`Acquire::endless`].
    pub endless: bool,
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

/// Who must be served before a newcomer.
pub(super) enum Ahead {
    /// Nobody.
    Nobody,
    /// Nobody, and those behind the asker's own ticket were not looked at.
    Asker,
    /// Somebody for whom there is no room yet; a request for several names that it is kept for; or more than one
    /// command looks at.
    Somebody,
    /// Not known: the bound on dropped tickets was met (R26).
    More,
}

impl Turn<'_> {
    /// Grants a lock that has room to those who wait for it, as long as there is room, in order: to each ticket that
    /// is alive, in time and can be served (R26). It is told by message (R27). A ticket of `asker` is not served here, but
    /// ends the search: who stands before it at another of its locks comes first (R29), and its reply says that it is
    /// granted.
    pub(super) fn promote(&mut self, name: &Name, asker: Option<&Acquire>) -> Ahead {
        let (mut passed, mut dropped, mut served, mut kept_for) = (0, 0, 0, None);
        let mut entered = Vec::new();
        let ahead = loop {
            if passed + dropped + served == DROPS_PER_COMMAND {
                break match self.lock(name).queue.len() > passed {
                    true if dropped > 0 && served == 0 => Ahead::More,
                    true => Ahead::Somebody,
                    false => Ahead::Nobody,
                };
            }
            let Some(ticket) = self.lock(name).queue.get(passed).cloned() else {
                break Ahead::Nobody;
            };
            let request = match ticket.several {
                true => self.request(&ticket.token),
                false => None,
            };
            if !self.waits(&ticket) || (ticket.several && request.is_none()) {
                self.lock(name).queue.remove(passed);
                dropped += 1;
                continue;
            }
            let can_serve = match &request {
                Some(request) => self.can_serve(request, name),
                None => self.lock(name).has_room(ticket.mode) == Ok(true),
            };
            if can_serve {
                // (A caller's value may be that of another acquisition, of another name.)
                let is_its =
                    |ask: &Acquire| ask.token == ticket.token && ask.names().any(|its| its == name);
                if asker.is_some_and(is_its) && ticket.session == *self.at.caller {
                    break Ahead::Asker;
                }
                if let Some(request) = &request {
                    let others = request.wants().filter(|(it, _)| *it != name);
                    let shared = others.filter(|(_, mode)| *mode != Mode::Exclusive);
                    entered.extend(shared.map(|(name, _)| name.clone()));
                }
                self.hand(name, &ticket, request);
                if ticket.mode == Mode::Exclusive {
                    break Ahead::Somebody;
                }
                served += 1;
                continue;
            }
            // Who has no room is passed by nobody, in whatever mode (R42).
            if request.is_none() && self.at.rules.on(42) {
                break Ahead::Somebody;
            }
            // Asked for once, and only where it matters.
            let kept_for = kept_for.get_or_insert_with(|| self.kept_for());
            if kept_for.as_ref().is_some_and(|it| it.token == ticket.token) {
                break Ahead::Somebody;
            }
            passed += 1;
        };
        if served > 0 {
            self.tell_first(name);
        }
        // Where somebody has entered whom the name was kept for, those behind enter, too (R42).
        for name in entered {
            self.promote(&name, asker);
        }
        ahead
    }

    /// Whoever is first now looks after the lock (G5).
    pub(super) fn tell_first(&mut self, name: &Name) {
        if let Some(first) = self.lock(name).queue.first().cloned()
            && let Some(holder) = self.holder(name)
        {
            let (name, token) = (name.clone(), first.token);
            let message = Message::First { name, token, holder: Box::new(holder) };
            self.effects.messages.push((first.session, message));
        }
    }

    /// The first ticket of a queue that is not of this token, and whose waiter lives and waits still.
    pub(super) fn first_waiting(&mut self, name: &Name, token: &Token) -> Option<Ticket> {
        let queue = self.lock(name).queue.iter().take(DROPS_PER_COMMAND);
        let others: Vec<Ticket> = queue.filter(|it| it.token != *token).cloned().collect();
        others.into_iter().find(|ticket| self.waits(ticket))
    }

    /// The request of this token, if it is not forgotten by now.
    fn request(&mut self, token: &Token) -> Option<Request> {
        self.locks.request(token).filter(|it| it.expires_us > self.at.now_us)
    }

    /// Hands the lock to a ticket, and with it the others of its request; for W at most, until it is renewed (R27).
    fn hand(&mut self, name: &Name, ticket: &Ticket, request: Option<Request>) {
        let wants: Vec<(Name, Mode)> = match &request {
            Some(request) => request.wants().map(|(name, mode)| (name.clone(), mode)).collect(),
            None => vec![(name.clone(), ticket.mode)],
        };
        let names = || wants.iter().map(|(name, _)| name);
        self.leave_queues(names(), (&ticket.token, &ticket.session), |_| true);
        let lease_ms = ticket.lease_ms.min(W_MS);
        let wants_of = wants.iter().map(|(name, mode)| (name, *mode));
        let fence = self.grant(wants_of, ticket, lease_ms, Whole::OnceRenewed);
        let mut same = None;
        if request.is_some() {
            names().for_each(|name| self.tell_first(name));
        } else if ticket.mode == Mode::Exclusive {
            // One message does for both where both are the same session's.
            let first = self.lock(name).queue.first();
            let first = first.filter(|first| first.session == ticket.session);
            same = first.map(|first| first.token.clone());
            if same.is_none() {
                self.tell_first(name);
            }
        }
        let (name, token) = (wants[0].0.clone(), ticket.token.clone());
        let epoch = self.meta.epoch.clone();
        let message = Message::Grant { name, token, fence, lease_ms, epoch, first: same };
        self.effects.messages.push((ticket.session.clone(), message));
    }

    /// Have all names of a request room for it, and is nobody in its way there? (At `here` there is not.)
    fn can_serve(&mut self, request: &Request, here: &Name) -> bool {
        request.wants().all(|(name, mode)| {
            let lock = self.lock(name);
            if lock.has_room(mode) != Ok(true) {
                return false;
            }
            if name == here {
                return true;
            }
            let queue = &lock.queue;
            let own = queue.iter().position(|it| it.token == request.token);
            let ahead = queue[..own.unwrap_or(queue.len())].to_vec();
            // More than are looked at are too many.
            ahead.len() < DROPS_PER_COMMAND && !ahead.iter().any(|it| self.is_in_the_way(it))
        })
    }

    /// Must whoever stands behind this ticket wait for it?
    fn is_in_the_way(&mut self, ticket: &Ticket) -> bool {
        let is_kept = |turn: &mut Self| turn.kept_for().is_some_and(|it| it.token == ticket.token);
        self.waits(ticket) && (!ticket.several || is_kept(self))
    }

    /// The request whose names are kept for it: of those that live and are in time, the one that came first (R29).
    pub(super) fn kept_for(&mut self) -> Option<Request> {
        if !self.at.rules.on(29) {
            return None;
        }
        for _ in 0..DROPS_PER_COMMAND {
            let oldest = self.locks.oldest_request()?;
            let in_time = |at_us: u64| at_us > self.at.now_us;
            if self.alive(&oldest.session)
                && oldest.deadline_us.is_none_or(in_time)
                && in_time(oldest.expires_us)
            {
                return Some(oldest);
            }
            // Its tickets are dropped where they are met.
            self.locks.forget_request(&oldest.token);
        }
        None
    }

    /// Is this name kept for another request than that of the token, and came that before it?
    pub(super) fn is_kept(&mut self, name: &Name, token: &Token) -> bool {
        let Some(kept_for) = self.kept_for() else { return false };
        let ahead = self.lock(name).queue.iter().take_while(|it| it.token != *token);
        ahead.into_iter().any(|it| it.token == kept_for.token)
    }

    /// Takes the tickets of a token and a session out of queues. True: others may have waited for their sake only, for
    /// they were a request's, or stood before others where a lock is held together. (Those of the dead are dropped
    /// without a word about their waits, which count no more without the ticket.)
    pub(super) fn leave_queues<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n Name>,
        (token, session): (&Token, &SessionId),
        whose: impl Fn(&Ticket) -> bool,
    ) -> bool {
        let is_its = |it: &Ticket| it.token == *token && it.session == *session && whose(it);
        let (mut count, mut had_several, mut had_together) = (0, false, false);
        for name in names {
            count += 1;
            let is_together = self.lock(name).together().is_some();
            for ticket in self.lock(name).queue.extract_if(.., |it| is_its(it)).collect::<Vec<_>>()
            {
                // An owner waits with a request, not with each of its tickets.
                had_several |= ticket.several;
                had_together |= is_together;
                if !ticket.several {
                    self.effects.waits.extend(wait_ends(name, token, &ticket.party));
                }
            }
        }
        // Its tickets may have been dropped while its session was cut off. What is left of it would have names kept
        // for nobody.
        if (had_several || count > 1)
            && let Some(request) = self.request(token).filter(|it| it.session == *session)
        {
            self.effects.waits.extend(wait_ends(&request.names[0], token, &request.party));
            self.locks.forget_request(token);
        }
        had_several || had_together
    }

    /// Gives up waiting. Where a request for several names goes, or a writer for whom readers wait, others may have
    /// waited for it only.
    pub(super) fn stand_down<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n Name>,
        token: &Token,
        whose: impl Fn(&Ticket) -> bool,
    ) {
        let names: Vec<&Name> = names.into_iter().collect();
        let whom = (token, self.at.caller);
        if !self.leave_queues(names.iter().copied(), whom, whose) || self.guard_ms() > 0 {
            return;
        }
        for name in names {
            if self.lock(name).may_grant() {
                self.promote(name, None);
            }
        }
    }

    /// Gives a waiting caller its tickets, or refreshes them; its place stays (R28, G6). Says the place.
    pub(super) fn queue_up(&mut self, ask: &Acquire) -> Option<u64> {
        let at = self.at;
        let deadline_us = match ask.wait {
            Wait::No | Wait::Adopt => return None,
            Wait::For(left_ms) => Some(at.now_us + left_ms * US_PER_MS),
            Wait::Forever => None,
        };
        // An acquisition that was revoked, and has not ended yet, does not wait behind itself: its
        // release would hand the lock to it again (G6).
        for name in ask.names() {
            if self
                .lock(name)
                .held_by(&ask.token)
                .is_some_and(|record| record.session == *at.caller && record.proof == ask.proof)
            {
                return None;
            }
        }
        let expires_us = at.now_us + QUEUE_TTL_MS * US_PER_MS;
        let mut ticket = ask.ticket(at, deadline_us);
        if ticket.several {
            let names = ask.names().cloned().collect();
            let known = self.request(&ask.token);
            // Another session's of the same token is in the way of ours (R25).
            if known.as_ref().is_some_and(|known| known.session != *at.caller) {
                return None;
            }
            ticket.since_us = known.map_or(at.now_us, |known| known.since_us);
            self.locks.keep_request(Request {
                token: ask.token.clone(),
                session: at.caller.clone(),
                names,
                modes: ask.modes.clone(),
                deadline_us,
                since_us: ticket.since_us,
                expires_us,
                party: ask.party.clone(),
            });
        }
        let mut position: Option<u64> = None;
        for (name, mode) in ask.wants() {
            ticket.mode = mode;
            let lock = self.lock(name);
            lock.queue_expires_us = expires_us;
            let index = lock.enqueue(&ticket)?;
            // Of several queues only those count in which it waits.
            if !ticket.several || lock.key.is_some() || self.is_kept(name, &ask.token) {
                let ahead = self.living_ahead(name, index);
                position = Some(position.map_or(ahead, |shortest| shortest.min(ahead)));
            }
        }
        for owner in deadlock::wholes(&ask.party.owner) {
            let place = Place { name: ask.name.clone(), token: ask.token.clone() };
            self.effects.waits.push(WaitChange::Begins(owner, place, expires_us));
        }
        Some(position.unwrap_or(0))
    }

    /// How many of the first `index` tickets are alive. Only the first two living look after the holder, so only they
    /// must know their place exactly; counting further, or past many dead ones, would cost one probe per ticket.
    fn living_ahead(&mut self, name: &Name, index: usize) -> u64 {
        let ahead: Vec<_> = {
            let queue = &self.lock(name).queue;
            queue[..index].iter().take(DROPS_PER_COMMAND).map(|it| it.session.clone()).collect()
        };
        let mut living = 0;
        for session in &ahead {
            living += u64::from(self.alive(session));
            if living == 2 {
                return index as u64;
            }
        }
        if index > DROPS_PER_COMMAND { index as u64 } else { living }
    }

    /// Does whoever has this ticket live, and wait still?
    fn waits(&self, ticket: &Ticket) -> bool {
        ticket.deadline_us.is_none_or(|at_us| at_us > self.at.now_us) && self.alive(&ticket.session)
    }
}

impl Lock {
    /// Puts a ticket at the end of the queue; where the same stands there already, a repeated request changes its
    /// deadline and nothing else. None: another session's ticket of the same value is in its way (R25).
    fn enqueue(&mut self, ticket: &Ticket) -> Option<usize> {
        match self.queue.iter().position(|it| it.token == ticket.token) {
            Some(index) => {
                let known = &mut self.queue[index];
                if known.session != ticket.session || known.proof != ticket.proof {
                    return None;
                }
                known.deadline_us = ticket.deadline_us;
                Some(index)
            }
            None => {
                self.queue.push(ticket.clone());
                Some(self.queue.len() - 1)
            }
        }
    }
}

/// An owner does not wait here with this token any more.
fn wait_ends(
    name: &Name,
    token: &Token,
    party: &Party,
) -> impl Iterator<Item = WaitChange> + use<> {
    let place = Place { name: name.clone(), token: token.clone() };
    let wholes: Vec<_> = deadlock::wholes(&party.owner).collect();
    wholes.into_iter().map(move |owner| WaitChange::Ends(owner, place.clone()))
}

impl Acquire {
    pub(super) fn ticket(&self, at: &Context<'_>, deadline_us: Option<u64>) -> Ticket {
        Ticket {
            token: self.token.clone(),
            proof: self.proof.clone(),
            session: at.caller.clone(),
            lease_ms: self.lease_ms,
            grace_ms: self.grace_ms,
            at_least_ms: self.at_least_ms,
            delay_ms: self.delay_ms,
            // What has no proof is not the caller's choice, and nobody else would know its value.
            endless: self.endless && !self.proof.is_empty(),
            floor: self.floor,
            deadline_us,
            since_us: at.now_us,
            several: !self.also.is_empty(),
            mode: self.mode_at(0),
            party: self.party.clone(),
        }
    }
}

impl Request {
    /// All its names, and how it wants to hold them.
    pub fn wants(&self) -> impl Iterator<Item = (&Name, Mode)> {
        let mode = |number: usize| self.modes.get(number).copied().unwrap_or_default();
        self.names.iter().enumerate().map(move |(number, name)| (name, mode(number)))
    }
}
