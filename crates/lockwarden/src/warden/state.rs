//! What a warden knows and decides: its acquisitions, its keeper, what must be sent next.
//!
//! Everything here happens under one mutex, in memory, at once; the driver does the waiting and
//! the I/O. Callers' threads come in through [`State::begin`], [`State::leave`] and the like, the
//! driver through [`State::answered`], [`State::message`] and [`State::tick`].

use super::acquisition::{Acquisition, Leaving, Phase, Wait, Waiting};
use super::watching::Watching;
use crate::{
    clock,
    error::{Effect, Error, StoreError, Trouble},
    random,
    store::Page,
};
use lockwarden_core::{
    Command, Epoch, Message, Name, Reply, Rules, Token,
    command::{self, Absence, Acquire, HolderView, Reason, Refusal, Renew},
    keeper::{Acknowledged, Action, HandleId, Keeper, Keeping, Loss, Mend, State as Belief},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    task::Waker,
};
use tokio::sync::{oneshot, watch};

/// How long a call that does not wait for a lock waits for the store's answer, in µs.
pub(super) const ANSWER_US: u64 = 5_000_000;
/// The first and the longest pause before a command that met passing trouble is sent again.
const RETRY_US: u64 = 100_000;
/// Fronts of a queue look again a little after the lease should have ended (R17).
const FIRST_MARGIN_MS: u64 = 5;
const SECOND_MARGIN_MS: u64 = 20;
const FIRST_RECHECK_MS: u64 = 1_000;
const SECOND_RECHECK_MS: u64 = 3_000;
const OTHER_RECHECK_MS: u64 = 10_000;

/// What a command on its way is for.
#[derive(Debug)]
pub(super) enum Purpose {
    Beat,
    Acquire(HandleId),
    Renew(HandleId, u64),
    Leave(HandleId),
    /// Someone asked about a token that nobody here wants (R16).
    Disown(Name, Token),
    /// Proof of death (R32), and for whom it was found out.
    TakeOver(Command, Option<HandleId>),
    /// A question of the caller.
    Ask(Command, oneshot::Sender<Result<Reply, StoreError>>),
}

/// A call on the link.
pub(super) struct Sent {
    purpose: Purpose,
    sent_us: u64,
    /// The number of the beat, if it is one.
    beat: u64,
}

pub(super) struct State {
    pub(super) keeper: Keeper,
    acquisitions: BTreeMap<HandleId, Acquisition>,
    /// By token, where the token is ours alone.
    ids: HashMap<Token, HandleId>,
    /// By name and value, where the value is the caller's choice and may come twice (drop-ins): in
    /// order. Only the first of each is known to the store, so that its grant is no other's (R25).
    values: HashMap<(Name, Token), VecDeque<HandleId>>,
    /// Our waiters of each name, in order of arrival.
    waiting: HashMap<Name, BTreeSet<HandleId>>,
    timers: BTreeSet<(u64, HandleId)>,
    timer_of: HashMap<HandleId, u64>,
    /// What must be sent, in order.
    outbox: VecDeque<Purpose>,
    sent: HashMap<u64, Sent>,
    next_id: u64,
    next_call: u64,
    /// The highest fence we have seen (R34).
    floor: u64,
    /// The first beat of the link was heard: new work may go (R7).
    ready: bool,
    /// Why there is no link; none: there is one.
    pub(super) down: Option<StoreError>,
    /// Give up the link, and why.
    pub(super) mend: Option<String>,
    /// We are a copy: all is lost, and a new session is needed (R24).
    pub(super) cloned: bool,
    pub(super) watching: Watching,
    pub(super) waker: Option<Waker>,
    /// Release everything, then end.
    pub(super) closing: bool,
    /// The last clone of the warden is gone.
    abandoned: bool,
    /// The driver is gone: nothing will ever be answered.
    pub(super) ended: bool,
    end_watchers: Vec<Waker>,
    listings: Vec<Listing>,
}

/// A page of names that was asked for: from which cursor on, foreign keys too, and by whom.
pub(super) type Listing = (u64, bool, oneshot::Sender<Result<Page, StoreError>>);

impl State {
    pub(super) fn new(rules: Rules, watching: Watching) -> State {
        State {
            keeper: Keeper::new(rules),
            acquisitions: BTreeMap::new(),
            ids: HashMap::new(),
            values: HashMap::new(),
            waiting: HashMap::new(),
            timers: BTreeSet::new(),
            timer_of: HashMap::new(),
            outbox: VecDeque::new(),
            sent: HashMap::new(),
            next_id: 1,
            next_call: 1,
            floor: 0,
            ready: false,
            down: None,
            mend: None,
            cloned: false,
            watching,
            waker: None,
            closing: false,
            abandoned: false,
            ended: false,
            end_watchers: Vec::new(),
            listings: Vec::new(),
        }
    }

    // ---- what callers ask for ----

    /// Begins an acquisition; the receiver hears how it ends.
    pub(super) fn begin(
        &mut self,
        ask: Acquire,
        keeping: Keeping,
        report: Option<watch::Sender<Waiting>>,
    ) -> Result<(HandleId, oneshot::Receiver<Result<HandleId, Error>>), Error> {
        if self.closing || self.ended {
            return Err(Error::Closed);
        }
        let in_use = self.id_of(&ask.name, &ask.token).and_then(|id| self.acquisitions.get(&id));
        if ask.wait == command::Wait::No && in_use.is_some_and(|it| it.phase != Phase::Leaving) {
            return Err(Error::Busy { name: ask.name, told: None });
        }
        let id = self.next_id;
        self.next_id += 1;
        let began_us = clock::now_us();
        let deadline_us = match ask.wait {
            command::Wait::No => Some(began_us + ANSWER_US),
            command::Wait::For(ms) => Some(began_us + ms * 1_000),
            command::Wait::Forever => None,
        };
        let (reply, receiver) = oneshot::channel();
        let wait = Wait {
            reply,
            report,
            began_us,
            deadline_us,
            recheck_us: 0,
            position: None,
            told: Waiting::default(),
            took_over: false,
        };
        if ask.wait != command::Wait::No {
            self.waiting.entry(ask.name.clone()).or_default().insert(id);
        }
        // Registered before it is sent: an asking or a grant may come before the answer (R16).
        let first = if ask.proof.is_empty() {
            self.ids.insert(ask.token.clone(), id).is_none()
        } else {
            let line = self.values.entry((ask.name.clone(), ask.token.clone())).or_default();
            line.push_back(id);
            line.len() == 1
        };
        let acquisition = Acquisition {
            ask,
            keeping,
            phase: Phase::Asking,
            watchers: Vec::new(),
            fence: 0,
            wait: Some(Box::new(wait)),
            leaving: None,
            extends: Vec::new(),
        };
        self.acquisitions.insert(id, acquisition);
        self.set_timer(id);
        if first {
            self.push(Purpose::Acquire(id));
        }
        Ok((id, receiver))
    }

    /// Ends an acquisition, granted or not. The reply hears what became of a release.
    pub(super) fn leave(
        &mut self,
        id: HandleId,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        let now_us = clock::now_us();
        let Some(acquisition) = self.acquisitions.get_mut(&id) else {
            return;
        };
        let release = acquisition.phase == Phase::Held;
        if acquisition.phase == Phase::Leaving {
            return;
        }
        if !self.is_known_to_store(id) {
            self.stop_waiting(id);
            return self.forget(id);
        }
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        acquisition.phase = Phase::Leaving;
        let checked = self.keeper.check(id, now_us);
        let lease_us = acquisition.ask.lease_ms * 1_000;
        let until_us = if release { self.keeper.lease_end_us(id) } else { now_us + lease_us };
        let lost = match self.keeper.state(id) {
            Some(Belief::Lost(loss)) => Some(loss),
            _ => None,
        };
        // From here on it is never renewed again (G8).
        self.keeper.forget(id);
        acquisition.wait = None;
        let leaving = Leaving { reply, release, checked, repeated: false, until_us, lost };
        acquisition.leaving = Some(Box::new(leaving));
        self.stop_waiting(id);
        self.set_timer(id);
        self.push(Purpose::Leave(id));
    }

    /// Sets another lease, from now on.
    pub(super) fn extend(
        &mut self,
        id: HandleId,
        lease_ms: u64,
        reply: oneshot::Sender<Result<(), Error>>,
    ) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else {
            let _ = reply.send(Err(Error::Closed));
            return;
        };
        if let Some(Belief::Lost(loss)) = self.keeper.state(id) {
            let name = acquisition.ask.name.clone();
            let _ = reply.send(Err(Error::Lost { name, loss }));
            return;
        }
        acquisition.extends.push((lease_ms, reply));
        self.keeper.set_lease(id, lease_ms);
        self.push(Purpose::Renew(id, lease_ms));
    }

    /// Asks the store a question that belongs to no acquisition.
    pub(super) fn ask(&mut self, command: Command) -> oneshot::Receiver<Result<Reply, StoreError>> {
        let (reply, receiver) = oneshot::channel();
        if !self.ended {
            self.push(Purpose::Ask(command, reply));
        }
        receiver
    }

    /// Releases and cancels everything; the driver ends when all of it is acknowledged.
    pub(super) fn close(&mut self) {
        self.closing = true;
        let ids: Vec<HandleId> = self.acquisitions.keys().copied().collect();
        for id in ids {
            self.fail(id, Error::Closed);
            self.leave(id, None);
        }
        self.wake();
    }

    /// The caller's future was dropped before it ended: nothing stays behind (G6).
    pub(super) fn give_up(&mut self, id: HandleId) {
        self.leave(id, None);
    }

    /// The last clone of the warden is gone: end as soon as nothing is held or waited for.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
        self.wake();
    }

    /// Asks for one page of names.
    pub(super) fn list(
        &mut self,
        cursor: u64,
        foreign: bool,
    ) -> oneshot::Receiver<Result<Page, StoreError>> {
        let (reply, receiver) = oneshot::channel();
        if !self.ended {
            self.listings.push((cursor, foreign, reply));
            self.wake();
        }
        receiver
    }

    /// The pages that were asked for, once the link is ready.
    pub(super) fn take_listings(&mut self) -> Vec<Listing> {
        if self.ready { std::mem::take(&mut self.listings) } else { Vec::new() }
    }

    /// What a handle can rely on at this moment.
    pub(super) fn handle_state(&self, id: HandleId) -> Belief {
        let state = self.keeper.state_at(id, clock::now_us()).filter(|_| !self.ended);
        state.unwrap_or(Belief::Lost(Loss::LeaseEnded))
    }

    /// Wakes this waker when the driver has ended.
    pub(super) fn watch_end(&mut self, waker: &Waker) {
        self.end_watchers.push(waker.clone());
    }

    /// The acquisition's name and fence, while it is known.
    pub(super) fn acquisition(&self, id: HandleId) -> Option<&Acquisition> {
        self.acquisitions.get(&id)
    }

    /// Wakes this waker when the handle's state changes.
    pub(super) fn watch(&mut self, id: HandleId, waker: &Waker) {
        if let Some(acquisition) = self.acquisitions.get_mut(&id)
            && !acquisition.watchers.iter().any(|known| known.will_wake(waker))
        {
            acquisition.watchers.push(waker.clone());
        }
    }

    /// Should the driver end: is it asked to, and is nothing left that the store must hear about?
    pub(super) fn is_done(&self) -> bool {
        (self.closing || self.abandoned) && self.acquisitions.is_empty() && self.outbox.is_empty()
    }

    // ---- what the driver tells ----

    /// A link stands. Beat, renew, then send again what was not answered (R7).
    pub(super) fn link_up(&mut self) {
        self.down = None;
        self.mend = None;
        self.ready = false;
        self.keeper.link_up(clock::now_us());
        // Questions that were not sent keep their turn; all else is asked for anew, in the order
        // in which it came.
        self.outbox.retain(|purpose| matches!(purpose, Purpose::Ask(..) | Purpose::TakeOver(..)));
        let ids: Vec<HandleId> = self.acquisitions.keys().copied().collect();
        for id in ids {
            self.send_again(id);
        }
    }

    /// The link is gone; what it had not answered may or may not have happened.
    pub(super) fn link_down(&mut self, error: StoreError) {
        self.keeper.link_down();
        self.ready = false;
        for (_, sent) in std::mem::take(&mut self.sent) {
            if let Purpose::Ask(_, reply) = sent.purpose {
                let _ = reply.send(Err(error.clone().with_effect(Effect::Unknown)));
            }
        }
        for acquisition in self.acquisitions.values_mut() {
            if let Some(wait) = &mut acquisition.wait {
                wait.told.trouble = Some(error.clone());
                wait.report();
            }
        }
        self.down = Some(error);
    }

    /// Takes what may be sent now, at most `most` calls, and counts it as sent at this moment.
    pub(super) fn take_calls(&mut self, most: usize) -> Vec<(u64, Command)> {
        let now_us = clock::now_us();
        let mut calls = Vec::new();
        let mut later = VecDeque::new();
        while calls.len() < most
            && let Some(purpose) = self.outbox.pop_front()
        {
            if !self.ready && !matches!(purpose, Purpose::Beat | Purpose::Renew(..)) {
                later.push_back(purpose);
                continue;
            }
            let Some(command) = self.command(&purpose, now_us) else { continue };
            let beat = match purpose {
                Purpose::Beat => self.keeper.beat_sent(now_us),
                _ => 0,
            };
            let call = self.next_call;
            self.next_call += 1;
            self.sent.insert(call, Sent { purpose, sent_us: now_us, beat });
            calls.push((call, command));
        }
        while let Some(purpose) = later.pop_back() {
            self.outbox.push_front(purpose);
        }
        calls
    }

    /// Is anything waiting to be sent that may be sent now?
    pub(super) fn has_calls(&self) -> bool {
        self.outbox.iter().any(|it| self.ready || matches!(it, Purpose::Beat | Purpose::Renew(..)))
    }

    /// Calls were answered, all in one epoch.
    pub(super) fn answered(
        &mut self,
        epoch: Option<&Epoch>,
        answers: Vec<(u64, Result<Reply, StoreError>)>,
    ) {
        let now_us = clock::now_us();
        if let Some(epoch) = epoch {
            self.epoch_seen(now_us, epoch);
        }
        for (call, answer) in answers {
            let Some(sent) = self.sent.remove(&call) else { continue };
            if matches!(answer, Ok(Reply::Stale)) {
                self.mend = Some("the server runs anew".into());
            }
            if matches!(answer, Ok(Reply::Unsubscribed)) {
                self.keeper.unsubscribed();
            }
            match sent.purpose {
                Purpose::Beat => self.beat_answered(now_us, sent.beat, epoch, answer),
                Purpose::Acquire(id) => {
                    self.acquire_answered(now_us, id, sent.sent_us, epoch, answer)
                }
                Purpose::Renew(id, _) => {
                    self.renew_answered(now_us, id, sent.sent_us, epoch, answer)
                }
                Purpose::Leave(id) => self.leave_answered(now_us, id, answer),
                Purpose::Disown(..) => {}
                Purpose::TakeOver(_, Some(id)) => self.push(Purpose::Acquire(id)),
                Purpose::TakeOver(_, None) => {}
                Purpose::Ask(_, reply) => drop(reply.send(answer)),
            }
        }
    }

    /// The store told us something that we had not asked for.
    pub(super) fn message(&mut self, message: Message) {
        let now_us = clock::now_us();
        match message {
            Message::Grant { name, token, fence, lease_ms, epoch, first } => {
                self.epoch_seen(now_us, &epoch);
                self.granted_by_message(now_us, &name, token, fence, lease_ms, &epoch);
                if let Some(first) = first {
                    self.first(now_us, &name, &first, None);
                }
            }
            Message::First { name, token, holder } => {
                self.first(now_us, &name, &token, Some(*holder));
            }
            Message::Asking { name, token } => {
                let wanted = self
                    .id_of(&name, &token)
                    .is_some_and(|id| !matches!(self.keeper.state(id), Some(Belief::Lost(_))));
                if !wanted {
                    self.push(Purpose::Disown(name, token));
                }
            }
            Message::Revoked { name, token, .. } => {
                if let Some(id) = self.id_of(&name, &token) {
                    self.keeper.lost(id, Loss::Revoked);
                }
            }
        }
    }

    /// Does everything that is due; says what to wake, and when to come back at the latest.
    pub(super) fn tick(&mut self) -> Option<u64> {
        let now_us = clock::now_us();
        while let Some(action) = self.keeper.poll(now_us) {
            match action {
                Action::Beat => {
                    self.outbox.push_front(Purpose::Beat);
                    // Counted as sent when it is taken; until then do not ask for another.
                    break;
                }
                Action::Renew(ids) => {
                    for (id, lease_ms) in ids {
                        self.outbox.push_back(Purpose::Renew(id, lease_ms));
                    }
                }
                Action::Mend(mend) => self.mend = Some(describe(mend).into()),
                Action::Changed(id, state) => self.changed(id, state),
            }
        }
        while let Some(&(at_us, id)) = self.timers.first().filter(|(at_us, _)| *at_us <= now_us) {
            self.timers.remove(&(at_us, id));
            self.timer_of.remove(&id);
            self.timer(now_us, id);
        }
        for (processes, holders) in self.watching.take_dead() {
            tracing::info!(?processes, "holders have died: taking over");
            for holder in holders {
                let command = Command::Revoke {
                    name: holder.name,
                    token: holder.token,
                    session: Some(holder.session),
                    delayed: false,
                };
                self.outbox.push_back(Purpose::TakeOver(command, None));
            }
        }
        let timer = self.timers.first().map(|(at_us, _)| *at_us);
        [self.keeper.deadline_us(), timer].into_iter().flatten().min()
    }

    /// The driver ends; whoever still waits must not wait for ever.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.keeper.link_down();
        self.outbox.clear();
        self.sent.clear();
        for (_, acquisition) in std::mem::take(&mut self.acquisitions) {
            for waker in acquisition.watchers {
                waker.wake();
            }
        }
        self.listings.clear();
        for waker in self.end_watchers.drain(..) {
            waker.wake();
        }
    }

    /// We are a copy of another session: nothing here is ours (R24).
    pub(super) fn copied(&mut self) {
        self.keeper.all_lost(Loss::Cloned);
        self.cloned = true;
        self.mend = Some("another process runs with this session's identity".into());
    }

    // ---- answers ----

    fn epoch_seen(&mut self, now_us: u64, epoch: &Epoch) {
        if self.keeper.epoch_seen(now_us, epoch) && self.ready {
            // Tickets went with the epoch before: ask for all of it again, at once (R23).
            let ids: Vec<HandleId> = self.acquisitions.keys().copied().collect();
            for id in ids {
                if self.acquisitions[&id].phase != Phase::Leaving {
                    self.send_again(id);
                }
            }
        }
    }

    fn beat_answered(
        &mut self,
        now_us: u64,
        beat: u64,
        epoch: Option<&Epoch>,
        answer: Result<Reply, StoreError>,
    ) {
        match (answer, epoch) {
            (Ok(Reply::Beat { now_us: server_us, subscribers, .. }), Some(epoch)) => {
                self.keeper.beat_heard(now_us, beat, epoch, server_us, subscribers);
                self.ready |= subscribers > 0;
            }
            (Err(error), _) => {
                // A read-only or overloaded server answers, but nothing follows from it: the beat
                // counts as unanswered, belief ends by itself, and after W the link is made anew.
                // New work goes all the same, and hears the trouble in the server's own words.
                tracing::debug!(%error, "the store refuses the beat");
                self.ready = true;
            }
            _ => {}
        }
    }

    fn acquire_answered(
        &mut self,
        now_us: u64,
        id: HandleId,
        sent_us: u64,
        epoch: Option<&Epoch>,
        answer: Result<Reply, StoreError>,
    ) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        // Held: a recheck crossed the grant. Leaving: what follows on the link undoes it.
        if matches!(acquisition.phase, Phase::Held | Phase::Leaving) {
            return;
        }
        let Some(wait) = &mut acquisition.wait else { return };
        match answer {
            Ok(Reply::Granted { fence, lease_ms }) => {
                let Some(epoch) = epoch.cloned() else { return };
                acquisition.fence = fence;
                let said = Acknowledged { sent_us, lease_ms, epoch };
                self.keeper.granted(now_us, id, acquisition.keeping, said);
                self.deliver(id);
            }
            Ok(Reply::Refused(refusal)) => {
                wait.told = Waiting { told: Some(refusal.clone()), trouble: None };
                wait.report();
                if acquisition.ask.wait == command::Wait::No {
                    self.refused(id, refusal);
                } else {
                    acquisition.phase = Phase::Queued;
                    wait.position = refusal.position;
                    let name = acquisition.ask.name.clone();
                    self.watching.holder(&name, refusal.holder.as_ref());
                    self.plan_recheck(now_us, id, &refusal);
                }
            }
            Ok(Reply::Guarded { guard_ms, .. }) => {
                self.recheck_at(id, now_us + (guard_ms + FIRST_MARGIN_MS) * 1_000);
            }
            Ok(Reply::More) => self.push(Purpose::Acquire(id)),
            // The link is mended, and then it is sent again.
            Ok(Reply::Unsubscribed | Reply::Stale) => {}
            Ok(Reply::FloorAhead { now_us: server_us }) => {
                let floor = acquisition.ask.floor.max(self.floor);
                let rule = "must not be a day ahead of the store's clock";
                self.fail(id, Error::Invalid(format!("the fence {floor} {rule} ({server_us} µs)")));
            }
            Ok(Reply::NotALock) => {
                let name = acquisition.ask.name.clone();
                let rule = "is no lock: it holds a value of another type";
                self.fail(id, Error::Invalid(format!("the key of the lock {name} {rule}")));
            }
            Ok(other) => {
                let detail = format!("an acquire was answered {other:?}");
                self.fail(id, Error::Store(StoreError::Invalid { detail }));
            }
            Err(error @ StoreError::Unavailable { .. })
                if acquisition.ask.wait != command::Wait::No =>
            {
                // The trouble may pass within the wait: try again, and keep the last words.
                wait.told.trouble = Some(error);
                wait.report();
                let pause_us = RETRY_US + random::below(RETRY_US);
                self.recheck_at(id, now_us + pause_us);
            }
            Err(error) => self.fail(id, Error::Store(error)),
        }
    }

    /// A caller that does not wait was refused. If the holder has died on this machine, the lock is
    /// taken over first, once.
    fn refused(&mut self, id: HandleId, refusal: Refusal) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        let name = acquisition.ask.name.clone();
        if let Some(wait) = &mut acquisition.wait
            && !std::mem::replace(&mut wait.took_over, true)
            && let Some(holder) = refusal.holder.as_ref()
            && let Some(session) = self.watching.died(holder)
        {
            let token = holder.token.clone();
            let command = Command::Revoke { name, token, session: Some(session), delayed: false };
            self.push(Purpose::TakeOver(command, Some(id)));
            return;
        }
        self.finish(id, Err(Error::Busy { name, told: Some(Box::new(refusal)) }));
        // It left no ticket, so there is nothing to cancel.
        self.forget(id);
    }

    fn renew_answered(
        &mut self,
        now_us: u64,
        id: HandleId,
        sent_us: u64,
        epoch: Option<&Epoch>,
        answer: Result<Reply, StoreError>,
    ) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        if acquisition.phase == Phase::Leaving {
            return;
        }
        let confirming = acquisition.phase == Phase::Confirming;
        match answer {
            Ok(Reply::Renewed { lease_ms }) => {
                let Some(epoch) = epoch.cloned() else { return };
                for (wanted_ms, reply) in std::mem::take(&mut acquisition.extends) {
                    if wanted_ms == lease_ms {
                        let _ = reply.send(Ok(()));
                    } else {
                        acquisition.extends.push((wanted_ms, reply));
                    }
                }
                let said = Acknowledged { sent_us, lease_ms, epoch };
                if confirming {
                    self.keeper.granted(now_us, id, acquisition.keeping, said);
                    self.deliver(id);
                } else {
                    self.keeper.renewed(now_us, id, said);
                }
            }
            Ok(Reply::Guarded { guard_ms, .. }) if confirming => {
                self.recheck_at(id, now_us + (guard_ms + FIRST_MARGIN_MS) * 1_000);
            }
            Ok(Reply::Guarded { lease_ms, guard_ms }) => {
                self.keeper.guarded(now_us, id, sent_us, lease_ms, guard_ms);
            }
            Ok(Reply::NotHeld(absence)) if confirming => {
                // The grant was over before we could believe in it: queue anew, as if refused.
                tracing::debug!(?absence, "a grant by message was over before it was confirmed");
                self.send_again(id);
            }
            Ok(Reply::NotHeld(absence)) => {
                self.keeper.lost(id, Loss::NotHeld(absence));
                self.end_extends(id, Loss::NotHeld(absence));
            }
            // Trouble: soon again.
            _ if confirming => self.recheck_at(id, now_us + RETRY_US),
            _ => self.keeper.renewal_failed(now_us, id),
        }
    }

    fn leave_answered(&mut self, now_us: u64, id: HandleId, answer: Result<Reply, StoreError>) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        let Some(leaving) = &mut acquisition.leaving else { return };
        let name = acquisition.ask.name.clone();
        let result = match answer {
            Ok(Reply::Released | Reply::Cancelled { .. }) => match leaving.lost {
                Some(loss) => Err(Error::Lost { name, loss }),
                None => Ok(()),
            },
            Ok(Reply::NotHeld(absence)) => match leaving.lost {
                Some(loss) => Err(Error::Lost { name, loss }),
                // An earlier one did it (R31).
                None if leaving.repeated && leaving.checked && now_us < leaving.until_us => Ok(()),
                None if leaving.repeated => Err(Error::ReleasedOrLost { name }),
                None => Err(Error::Lost { name, loss: Loss::NotHeld(absence) }),
            },
            Ok(Reply::NotALock) => Err(Error::Lost { name, loss: Loss::NotHeld(Absence::Taken) }),
            // Sent again with the next link, or after the trouble, while there is something left.
            Ok(_) | Err(StoreError::Unavailable { .. }) => {
                leaving.repeated = true;
                let again_us = now_us + RETRY_US;
                if again_us < leaving.until_us {
                    self.timers.insert((again_us, id));
                    if let Some(old_us) = self.timer_of.insert(id, again_us) {
                        self.timers.remove(&(old_us, id));
                    }
                }
                return;
            }
            Err(error) => Err(Error::Store(error)),
        };
        self.left(id, result);
    }

    fn granted_by_message(
        &mut self,
        now_us: u64,
        name: &Name,
        token: Token,
        fence: u64,
        lease_ms: u64,
        epoch: &Epoch,
    ) {
        let Some(id) = self.id_of(name, &token) else {
            return self.push(Purpose::Disown(name.clone(), token));
        };
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        if !matches!(acquisition.phase, Phase::Asking | Phase::Queued) {
            return;
        }
        acquisition.fence = fence;
        let keeping = acquisition.keeping;
        if self.keeper.granted_by_message(now_us, id, keeping, lease_ms, epoch) {
            self.deliver(id);
        } else {
            acquisition.phase = Phase::Confirming;
            let lease_ms = keeping.lease_ms;
            self.push(Purpose::Renew(id, lease_ms));
        }
    }

    /// A ticket of ours is the first of its queue now.
    fn first(&mut self, now_us: u64, name: &Name, token: &Token, holder: Option<HolderView>) {
        let Some(id) = self.id_of(name, token) else { return };
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        if !matches!(acquisition.phase, Phase::Asking | Phase::Queued) {
            return;
        }
        let Some(wait) = &mut acquisition.wait else { return };
        wait.position = Some(0);
        let reason = Reason::Held;
        let refusal = Refusal { reason, holder: holder.clone(), position: Some(0) };
        wait.told = Waiting { told: Some(refusal.clone()), trouble: None };
        wait.report();
        self.watching.holder(name, holder.as_ref());
        self.plan_recheck(now_us, id, &refusal);
    }

    // ---- timers ----

    /// When to look again after a refusal (R17). Only the front waiter of a name in this process
    /// does: the others' turn comes through it.
    fn plan_recheck(&mut self, now_us: u64, id: HandleId, refusal: &Refusal) {
        let Some(acquisition) = self.acquisitions.get(&id) else { return };
        let ours = self.waiting.get(&acquisition.ask.name);
        if ours.and_then(BTreeSet::first) != Some(&id) {
            return self.recheck_at(id, 0);
        }
        let ttl_ms = refusal.holder.as_ref().and_then(|holder| holder.ttl_ms).unwrap_or(u64::MAX);
        let after = |margin_ms: u64, most_ms: u64| ttl_ms.saturating_add(margin_ms).min(most_ms);
        let after_ms = match (refusal.reason, refusal.position) {
            (Reason::Guard { guard_ms }, _) => guard_ms + FIRST_MARGIN_MS,
            (_, Some(0)) | (_, None) => after(FIRST_MARGIN_MS, FIRST_RECHECK_MS),
            (_, Some(1)) => after(SECOND_MARGIN_MS, SECOND_RECHECK_MS),
            _ => after(SECOND_MARGIN_MS + random::below(1_000), OTHER_RECHECK_MS),
        };
        self.recheck_at(id, now_us + after_ms.max(1) * 1_000);
    }

    fn recheck_at(&mut self, id: HandleId, at_us: u64) {
        if let Some(acquisition) = self.acquisitions.get_mut(&id)
            && let Some(wait) = &mut acquisition.wait
        {
            wait.recheck_us = at_us;
            self.set_timer(id);
        }
    }

    fn set_timer(&mut self, id: HandleId) {
        let at_us = self.acquisitions.get(&id).and_then(|acquisition| {
            match (&acquisition.wait, &acquisition.leaving) {
                (_, Some(leaving)) => Some(leaving.until_us),
                (Some(wait), None) => {
                    let recheck_us = Some(wait.recheck_us).filter(|at_us| *at_us > 0);
                    wait.deadline_us.into_iter().chain(recheck_us).min()
                }
                (None, None) => None,
            }
        });
        let old_us = match at_us {
            Some(at_us) => self.timer_of.insert(id, at_us),
            None => self.timer_of.remove(&id),
        };
        if old_us == at_us {
            return;
        }
        if let Some(old_us) = old_us {
            self.timers.remove(&(old_us, id));
        }
        if let Some(at_us) = at_us {
            self.timers.insert((at_us, id));
        }
    }

    fn timer(&mut self, now_us: u64, id: HandleId) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        if let Some(leaving) = &acquisition.leaving {
            if now_us >= leaving.until_us {
                // The lease is over: nothing is left that could be released.
                let name = acquisition.ask.name.clone();
                let loss = leaving.lost.unwrap_or(Loss::LeaseEnded);
                self.left(id, Err(Error::Lost { name, loss }));
            } else {
                self.set_timer(id);
                self.push(Purpose::Leave(id));
            }
            return;
        }
        let Some(wait) = &mut acquisition.wait else { return };
        if wait.deadline_us.is_some_and(|at_us| now_us >= at_us) {
            let name = acquisition.ask.name.clone();
            let waited = std::time::Duration::from_micros(now_us - wait.began_us);
            let trouble = wait.told.trouble.take().or_else(|| self.down.clone());
            let error = match (trouble, acquisition.ask.wait) {
                (Some(error), _) => Error::Store(error),
                (None, command::Wait::No) => Error::Store(StoreError::Unavailable {
                    place: self.watching.place.clone(),
                    trouble: Trouble::Disconnected,
                    detail: format!("no answer within {waited:?}"),
                    effect: Effect::Unknown,
                }),
                (None, _) => {
                    Error::TimedOut { name, waited, told: wait.told.told.take().map(Box::new) }
                }
            };
            self.fail(id, error);
        } else {
            wait.recheck_us = 0;
            self.set_timer(id);
            if self.ready {
                self.push(Purpose::Acquire(id));
            }
        }
    }

    // ---- transitions ----

    /// The caller gets the lock.
    fn deliver(&mut self, id: HandleId) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        acquisition.phase = Phase::Held;
        self.floor = self.floor.max(acquisition.fence);
        self.finish(id, Ok(id));
    }

    /// The caller gives up, or must: what it may have left at the store is cancelled (G6).
    fn fail(&mut self, id: HandleId, error: Error) {
        if self.acquisitions.get(&id).is_some_and(|it| it.wait.is_some()) {
            self.finish(id, Err(error));
            self.leave(id, None);
        }
    }

    fn finish(&mut self, id: HandleId, result: Result<HandleId, Error>) {
        self.stop_waiting(id);
        if let Some(acquisition) = self.acquisitions.get_mut(&id)
            && let Some(wait) = acquisition.wait.take()
        {
            // A receiver that is gone has its own way out: dropping the future leaves (G6).
            let _ = wait.reply.send(result);
        }
        self.set_timer(id);
    }

    /// Takes a waiter out of its line, and has the next of ours look after the lock.
    fn stop_waiting(&mut self, id: HandleId) {
        let Some(acquisition) = self.acquisitions.get(&id) else { return };
        let name = acquisition.ask.name.clone();
        let Some(ours) = self.waiting.get_mut(&name) else { return };
        let was_first = ours.first() == Some(&id);
        if !ours.remove(&id) {
            return;
        }
        let Some(&next) = ours.first() else {
            self.waiting.remove(&name);
            self.watching.holder(&name, None);
            return;
        };
        if was_first {
            let position = self.acquisitions.get(&next).and_then(|it| it.wait.as_ref()?.position);
            let refusal =
                Refusal { reason: Reason::Held, holder: None, position: position.or(Some(2)) };
            self.plan_recheck(clock::now_us(), next, &refusal);
        }
    }

    fn left(&mut self, id: HandleId, result: Result<(), Error>) {
        if let Some(acquisition) = self.acquisitions.get_mut(&id)
            && let Some(leaving) = acquisition.leaving.take()
        {
            match leaving.reply {
                Some(reply) => drop(reply.send(result)),
                None => {
                    if let (true, Err(error)) = (leaving.release, result) {
                        tracing::warn!(%error, "a lock was not released as it should be");
                    }
                }
            }
        }
        self.forget(id);
    }

    fn forget(&mut self, id: HandleId) {
        self.keeper.forget(id);
        if let Some(old_us) = self.timer_of.remove(&id) {
            self.timers.remove(&(old_us, id));
        }
        let Some(Acquisition { ask, .. }) = self.acquisitions.remove(&id) else { return };
        if ask.proof.is_empty() {
            self.ids.remove(&ask.token);
            return;
        }
        let value = (ask.name, ask.token);
        let Some(line) = self.values.get_mut(&value) else { return };
        let was_first = line.front() == Some(&id);
        line.retain(|other| *other != id);
        match line.front().copied() {
            None => drop(self.values.remove(&value)),
            Some(next) if was_first => self.push(Purpose::Acquire(next)),
            Some(_) => {}
        }
    }

    /// The acquisition that the store means by this token.
    fn id_of(&self, name: &Name, token: &Token) -> Option<HandleId> {
        let value = || self.values.get(&(name.clone(), token.clone()))?.front();
        self.ids.get(token).or_else(value).copied()
    }

    /// Has it been told to the store, or is another of the same value before it?
    fn is_known_to_store(&self, id: HandleId) -> bool {
        let ask = self.acquisitions.get(&id).map(|it| &it.ask);
        ask.is_some_and(|ask| self.id_of(&ask.name, &ask.token) == Some(id))
    }

    /// Sends whatever an acquisition needs again: the same commands, with the same token (G6).
    fn send_again(&mut self, id: HandleId) {
        if !self.is_known_to_store(id) {
            return;
        }
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        match acquisition.phase {
            // Renewed by the keeper.
            Phase::Held => {}
            Phase::Leaving => {
                if let Some(leaving) = &mut acquisition.leaving {
                    leaving.repeated = true;
                }
                self.push(Purpose::Leave(id));
            }
            Phase::Asking | Phase::Queued | Phase::Confirming => {
                acquisition.phase = Phase::Asking;
                self.push(Purpose::Acquire(id));
            }
        }
    }

    fn changed(&mut self, id: HandleId, state: Belief) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        tracing::debug!(name = %acquisition.ask.name, ?state, "a handle's state changed");
        for waker in acquisition.watchers.drain(..) {
            waker.wake();
        }
        if let Belief::Lost(loss) = state {
            self.end_extends(id, loss);
        }
    }

    fn end_extends(&mut self, id: HandleId, loss: Loss) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        for (_, reply) in std::mem::take(&mut acquisition.extends) {
            let name = acquisition.ask.name.clone();
            let _ = reply.send(Err(Error::Lost { name, loss }));
        }
    }

    fn push(&mut self, purpose: Purpose) {
        self.outbox.push_back(purpose);
        self.wake();
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The command of a purpose, as of now; none: it is moot.
    fn command(&self, purpose: &Purpose, now_us: u64) -> Option<Command> {
        match purpose {
            Purpose::Beat => Some(Command::Beat),
            Purpose::Acquire(id) => {
                let acquisition = self.acquisitions.get(id)?;
                let wait = acquisition.wait.as_ref()?;
                let mut ask = acquisition.ask.clone();
                ask.floor = ask.floor.max(self.floor);
                if let (command::Wait::For(_), Some(deadline_us)) = (ask.wait, wait.deadline_us) {
                    ask.wait = command::Wait::For(deadline_us.saturating_sub(now_us) / 1_000);
                }
                Some(Command::Acquire(ask))
            }
            Purpose::Renew(id, lease_ms) => {
                let acquisition = self.acquisitions.get(id)?;
                if acquisition.phase == Phase::Leaving {
                    return None;
                }
                let (name, token) = (acquisition.ask.name.clone(), acquisition.ask.token.clone());
                Some(Command::Renew(Renew { name, token, lease_ms: *lease_ms }))
            }
            Purpose::Leave(id) => {
                let acquisition = self.acquisitions.get(id)?;
                let (name, token) = (acquisition.ask.name.clone(), acquisition.ask.token.clone());
                Some(if acquisition.leaving.as_ref()?.release {
                    Command::Release { name, token }
                } else {
                    Command::Cancel { name, token, proof: acquisition.ask.proof.clone() }
                })
            }
            Purpose::Disown(name, token) => {
                Some(Command::Release { name: name.clone(), token: token.clone() })
            }
            Purpose::TakeOver(command, _) | Purpose::Ask(command, _) => Some(command.clone()),
        }
    }
}

impl Wait {
    fn report(&self) {
        if let Some(report) = &self.report {
            report.send_replace(self.told.clone());
        }
    }
}

fn describe(mend: Mend) -> &'static str {
    match mend {
        Mend::BeatUnanswered => "a heartbeat stayed without an answer",
        Mend::Unsubscribed => "the subscription is gone",
        Mend::ClockJumped => "the server's clock jumped",
    }
}
