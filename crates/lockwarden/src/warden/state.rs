//! What a warden knows and decides: its acquisitions, its keeper, what must be sent next.
//!
//! Everything here happens under one mutex, in memory, at once; the driver does the waiting and
//! the I/O. Here is what callers' threads ask for and how an acquisition ends; `outbox` is what must be
//! sent, `answers` what the store says, `timing` what time brings.

use super::acquisition::{Acquisition, Ending, Grant, Leaving, Phase, Told, Wait, Waiting};
use super::{
    changes::MORE_GUARDS,
    inbox::Begun,
    outbox::{Flight, Purpose},
    owners::{Left, MOST_ENTRIES, Owners},
    timing::OTHER_RECHECK_MS,
    watching::Watching,
};
use crate::{
    clock,
    error::{Error, StoreError},
    store::Page,
};
use lockwarden_core::{
    Command, Name, Reply, Rules, Token,
    command::{self, Absence, Reason, Refusal},
    keeper::{HandleId, Keeper, Loss, State as Belief},
    party::Party,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    task::Waker,
};
use tokio::sync::oneshot;

/// How long a call that does not wait for a lock waits for the store's answer, in µs. A release is
/// tried on after that in the background, until the lease is over.
pub(super) const ANSWER_US: u64 = 5_000_000;

/// For how long at least a release is tried, in µs.
const LAST_TRY_US: u64 = 1_000_000;

pub(super) struct State {
    pub(super) keeper: Keeper,
    /// Boxed: the nodes of the map are half empty where numbers only grow.
    pub(super) acquisitions: BTreeMap<HandleId, Box<Acquisition>>,
    /// By token, where the token is ours alone.
    pub(super) ids: HashMap<Token, HandleId>,
    /// By name and value, where the value is the caller's choice and may come twice (drop-ins): in
    /// order. Only the first of each is known to the store, so that its grant is no other's (R25).
    pub(super) values: HashMap<(Name, Token), VecDeque<HandleId>>,
    /// Our waiters of each name that the store has queued, in order of arrival.
    pub(super) waiting: HashMap<Name, Line>,
    /// What owners hold more than once.
    pub(super) owners: Owners,
    /// The timers of acquisitions, by when they are due, in µs.
    pub(super) timers: BTreeSet<(u64, HandleId)>,
    /// What must be sent, in order.
    pub(super) outbox: VecDeque<Purpose>,
    pub(super) sent: Flight,
    /// How many acquisitions were sent once, and have not ended.
    pub(super) acquisitions_sent: usize,
    /// The highest fence we have seen (R34).
    pub(super) floor: u64,
    /// The first beat of the link was heard: new work may go (R7).
    pub(super) ready: bool,
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
    pub(super) abandoned: bool,
    /// The driver is gone: nothing will ever be answered.
    pub(super) ended: bool,
    pub(super) end_watchers: Vec<Waker>,
    pub(super) listings: Vec<Listing>,
    /// What callers must be told once the state is not locked any more: they wake up on other
    /// threads, and would wait for the lock at once.
    pub(super) told: Vec<Told>,
}

/// Our waiters of one name.
#[derive(Default)]
pub(super) struct Line {
    /// In order of arrival.
    pub(super) ours: BTreeSet<HandleId>,
    /// When one of them was last seen to look at the queue, or to join it, in µs.
    pub(super) looked_us: u64,
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
            owners: Owners::default(),
            waiting: HashMap::new(),
            timers: BTreeSet::new(),
            outbox: VecDeque::new(),
            sent: Flight::default(),
            acquisitions_sent: 0,
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
            told: Vec::new(),
        }
    }

    /// Begins an acquisition.
    pub(super) fn begin(&mut self, begun: Begun) {
        let Begun { id, ask, keeping, report, reply, began_us } = begun;
        if self.closing || self.ended {
            let _ = reply.send(Err(Error::Closed));
            return;
        }
        if ask.wait == command::Wait::Adopt {
            // Adopted here already; the store would take the second for the first, sent again.
            if self.ids.contains_key(&ask.token) {
                let error = Error::NotHandedOver { name: ask.name, absence: Absence::Taken };
                let _ = reply.send(Err(error));
                return;
            }
        } else if let Some(grant) = self.enter(id, &ask) {
            let _ = reply.send(grant);
            return;
        }
        // A token of ours is new; only a caller's value can be in use.
        if ask.wait == command::Wait::No && !ask.proof.is_empty() {
            let in_use = self.id_of(&ask.name, &ask.token);
            let in_use = in_use.and_then(|id| self.acquisitions.get(&id));
            if in_use.is_some_and(|it| it.phase != Phase::Leaving) {
                let _ = reply.send(Err(Error::Busy { name: ask.name, told: None }));
                return;
            }
        }
        let deadline_us = match ask.wait {
            command::Wait::No | command::Wait::Adopt => Some(began_us + ANSWER_US),
            command::Wait::For(ms) => Some(began_us + ms * 1_000),
            command::Wait::Forever => None,
        };
        let wait = Wait {
            reply,
            report,
            began_us,
            deadline_us,
            recheck_us: 0,
            position: None,
            told: Waiting { told: None, trouble: self.down.clone() },
            revoked: false,
            took_over: 0,
        };
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
            fence: 0,
            wait: Some(Box::new(wait)),
            leaving: None,
            listeners: None,
            was_sent: false,
            timer_us: 0,
        };
        self.acquisitions.insert(id, Box::new(acquisition));
        self.set_timer(id);
        if first {
            self.push(Purpose::Acquire(id));
        }
    }

    /// Where the owner holds the lock already, one guard more of the same acquisition. One that was lost is no
    /// help: then the lock is acquired anew, and the store, which may have it still, is told first.
    fn enter(&mut self, entry: HandleId, ask: &command::Acquire) -> Option<Result<Grant, Error>> {
        let id = self.owners.held(&ask.party.owner, ask.names())?;
        let acquisition = self.acquisitions.get(&id)?;
        if acquisition.phase != Phase::Held || !ask.proof.is_empty() {
            return None;
        }
        // A reader that wants to write asks the store, which tells it that it would wait for itself.
        let covers = |(name, mode): (&Name, command::Mode)| {
            let held = acquisition.ask.wants().find(|(its, _)| *its == name).map(|(_, mode)| mode);
            matches!((held, mode), (Some(command::Mode::Exclusive), _))
                || matches!((held, mode), (Some(command::Mode::Shared), command::Mode::Shared))
        };
        if !ask.wants().all(covers) {
            return None;
        }
        let (token, fence) = (acquisition.ask.token.clone(), acquisition.fence);
        // Deadlines decide, not timers: the machine may have slept (R20).
        if matches!(self.keeper.state_at(id, clock::now_us()), Some(Belief::Lost(_))) {
            for name in ask.names() {
                self.disown(name, &token, true);
            }
            return None;
        }
        if ask.floor >= fence {
            let text = format!("its owner holds the lock {} by the fence {fence}", ask.name);
            let rule = format!("{text}; acquired once more it has no fence above {}", ask.floor);
            return Some(Err(Error::Invalid(rule)));
        }
        Some(match self.owners.enter(entry, id) {
            true => {
                let recalls = acquisition.recall().map_or(0, |(count, _)| *count);
                Ok(Grant { id, token, fence, recalls })
            }
            false => Err(Error::TooDeep { name: ask.name.clone(), most: MOST_ENTRIES }),
        })
    }

    /// Ends an acquisition, granted or not; or one guard of several. The reply hears what became of it.
    pub(super) fn leave(
        &mut self,
        entry: HandleId,
        wanted: Ending,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        let now_us = clock::now_us();
        let id = match self.owners.leave(entry) {
            Left::Last(id) => id,
            Left::More(id) => {
                let state = self.keeper.state_at(id, now_us);
                let lost = match (state, self.acquisitions.get(&id)) {
                    (Some(Belief::Lost(loss)), Some(acquisition)) => {
                        Err(Error::Lost { name: acquisition.ask.name.clone(), loss })
                    }
                    _ if matches!(wanted, Ending::HandOver { .. }) => {
                        Err(Error::Invalid(MORE_GUARDS.into()))
                    }
                    _ => Ok(()),
                };
                if let Some(reply) = reply {
                    let _ = reply.send(lost);
                }
                return;
            }
        };
        let Some(acquisition) = self.acquisitions.get_mut(&id) else {
            return;
        };
        let is_held = acquisition.phase == Phase::Held;
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
        // At least long enough to be sent once, also where the lease seems over from here: a renewal
        // whose answer was lost may have made it longer.
        let until_us = match is_held {
            true => self.keeper.lease_end_us(id).max(now_us + LAST_TRY_US),
            false => now_us + lease_us,
        };
        // Deadlines decide, not timers (R20): what is lost has a delay (R43).
        let lost = match self.keeper.state_at(id, now_us) {
            Some(Belief::Lost(loss)) => Some(loss),
            _ => None,
        };
        let how = match wanted {
            // The caller never had it, and so there is no minimum (R33).
            Ending::Cancel if entry == id => Ending::Cancel,
            Ending::HandOver { .. } if lost.is_none() => wanted,
            // Whoever knows its value may have extended it beyond what we know.
            Ending::Leave if is_held => wanted,
            _ if is_held => Ending::Release,
            _ => Ending::Cancel,
        };
        // From here on it is never renewed again (G8), and `check()` is false before anybody adopts it (R32).
        self.keeper.forget(id);
        acquisition.wait = None;
        acquisition.leaving = Some(Box::new(Leaving {
            reply,
            how,
            checked,
            repeated: false,
            until_us,
            patience_us: now_us + ANSWER_US,
            again_us: 0,
            lost,
            unwanted: false,
        }));
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
        if let Some(Belief::Lost(loss)) = self.keeper.state_at(id, clock::now_us()) {
            let name = acquisition.ask.name.clone();
            let _ = reply.send(Err(Error::Lost { name, loss }));
            return;
        }
        if acquisition.ask.endless {
            let rule = "is held without an end, and has no lease to be set";
            let text = format!("the lock {} {rule}", acquisition.ask.name);
            let _ = reply.send(Err(Error::Invalid(text)));
            return;
        }
        if let Some(rest_ms) = self.keeper.rest_ms(id, clock::now_us())
            && rest_ms < lease_ms
        {
            let rule = format!("it may be held for {rest_ms} ms more");
            let text = format!("a lease of {lease_ms} ms is too long: {rule} (hold at most)");
            let _ = reply.send(Err(Error::Invalid(text)));
            return;
        }
        acquisition.listeners().extends.push((lease_ms, reply));
        // By the keeper, which from then on believes in no more than the shorter lease (G1).
        self.keeper.extend(clock::now_us(), id, lease_ms);
        self.wake();
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
        self.owners = Owners::default();
        let ids: Vec<HandleId> = self.acquisitions.keys().copied().collect();
        for id in ids {
            self.fail(id, Error::Closed);
            self.leave(id, Ending::Release, None);
        }
        self.tell();
        self.wake();
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

    /// The strict check (G1).
    pub(super) fn check(&self, id: HandleId) -> bool {
        !self.ended && self.keeper.check(id, clock::now_us())
    }

    /// What a handle can rely on at this moment.
    pub(super) fn handle_state(&self, id: HandleId) -> Belief {
        let state = self.keeper.state_at(id, clock::now_us()).filter(|_| !self.ended);
        state.unwrap_or(Belief::Lost(Loss::LeaseEnded))
    }

    /// Someone asks for it; whoever listens decides.
    pub(super) fn recalled(&mut self, id: HandleId, by: Arc<Party>) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        let count = acquisition.recall().map_or(0, |(count, _)| *count);
        acquisition.listeners().recall = Some((count.wrapping_add(1), by));
        for waker in acquisition.take_watchers() {
            waker.wake();
        }
    }

    /// How often it was recalled, and who asked last.
    pub(super) fn recall(&self, id: HandleId) -> Option<&(u32, Arc<Party>)> {
        self.acquisitions.get(&id)?.recall()
    }

    /// Wakes this waker when the driver has ended.
    pub(super) fn watch_end(&mut self, waker: &Waker) {
        self.end_watchers.push(waker.clone());
    }

    /// Wakes this waker when the handle's state changes.
    pub(super) fn watch(&mut self, id: HandleId, waker: &Waker) {
        if let Some(acquisition) = self.acquisitions.get_mut(&id)
            && let watchers = &mut acquisition.listeners().watchers
            && !watchers.iter().any(|known| known.will_wake(waker))
        {
            watchers.push(waker.clone());
        }
    }

    /// Should the driver end: is it asked to, and is nothing left that the store must hear about?
    pub(super) fn is_done(&self) -> bool {
        let heard =
            |purpose: &Purpose| matches!(purpose, Purpose::Disown(_) | Purpose::TakeOver(..));
        (self.closing || self.abandoned)
            && self.acquisitions.is_empty()
            && !(self.down.is_none() && self.outbox.iter().any(heard))
    }

    /// The driver ends; whoever still waits must not wait for ever.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.tell();
        self.keeper.link_down();
        self.outbox.clear();
        self.sent = Flight::default();
        self.acquisitions_sent = 0;
        for (_, mut acquisition) in std::mem::take(&mut self.acquisitions) {
            for waker in acquisition.take_watchers() {
                waker.wake();
            }
        }
        self.listings.clear();
        for waker in self.end_watchers.drain(..) {
            waker.wake();
        }
    }

    /// The caller gets the lock.
    pub(super) fn deliver(&mut self, id: HandleId) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        acquisition.phase = Phase::Held;
        let (ask, fence) = (&acquisition.ask, acquisition.fence);
        let token = ask.token.clone();
        // Each permit is one more.
        let is_permit = |mode: &command::Mode| matches!(mode, command::Mode::Permits { .. });
        if !ask.party.owner.is_empty() && ask.proof.is_empty() && !ask.modes.iter().any(is_permit) {
            self.owners.acquired(&ask.party.owner, ask.names(), id);
        }
        self.floor = self.floor.max(fence);
        // A recall that came before is about this very grant: the caller hears of it (two connections).
        self.finish(id, Ok(Grant { id, token, fence, recalls: 0 }));
    }

    /// The caller gives up, or must: what it may have left at the store is cancelled (G6).
    pub(super) fn fail(&mut self, id: HandleId, error: Error) {
        if self.acquisitions.get(&id).is_some_and(|it| it.wait.is_some()) {
            self.finish(id, Err(error));
            self.leave(id, Ending::Cancel, None);
        }
    }

    pub(super) fn finish(&mut self, id: HandleId, result: Result<Grant, Error>) {
        self.stop_waiting(id);
        if let Some(acquisition) = self.acquisitions.get_mut(&id)
            && let Some(wait) = acquisition.wait.take()
        {
            self.told.push(Told::Acquired(wait.reply, result));
        }
        self.set_timer(id);
    }

    /// The store has queued a waiter: it stands in our own line of the name, too.
    pub(super) fn line_up(&mut self, id: HandleId) {
        let Some(acquisition) = self.acquisitions.get(&id) else { return };
        for name in acquisition.ask.names() {
            match self.waiting.get_mut(name) {
                Some(line) => drop(line.ours.insert(id)),
                None => {
                    let line = Line { ours: BTreeSet::from([id]), looked_us: clock::now_us() };
                    self.waiting.insert(name.clone(), line);
                }
            }
        }
    }

    /// The store has found a waiter of ours in its queues, which are not forgotten for a while (R28).
    pub(super) fn looked(&mut self, now_us: u64, id: HandleId) {
        let Some(acquisition) = self.acquisitions.get(&id) else { return };
        for name in acquisition.ask.names() {
            if let Some(line) = self.waiting.get_mut(name) {
                line.looked_us = now_us;
            }
        }
    }

    /// Is it the first of ours that waits for one of its locks?
    pub(super) fn is_front(&self, id: HandleId, ask: &command::Acquire) -> bool {
        let first = |name| self.waiting.get(name).and_then(|line| line.ours.first());
        ask.names().any(|name| first(name) == Some(&id))
    }

    /// Takes a waiter out of its lines, and has the next of ours look after each lock.
    pub(super) fn stop_waiting(&mut self, id: HandleId) {
        if self.waiting.is_empty() {
            return;
        }
        let Some(acquisition) = self.acquisitions.get(&id) else { return };
        let names: Vec<Name> = acquisition.ask.names().cloned().collect();
        for name in &names {
            self.leave_line(id, name);
        }
    }

    fn leave_line(&mut self, id: HandleId, name: &Name) {
        let Some(line) = self.waiting.get_mut(name) else { return };
        let was_first = line.ours.first() == Some(&id);
        if !line.ours.remove(&id) {
            return;
        }
        let (Some(&next), Some(&last)) = (line.ours.first(), line.ours.last()) else {
            self.waiting.remove(name);
            self.watching.holders(name, None);
            return;
        };
        if was_first {
            let now_us = clock::now_us();
            if now_us >= line.looked_us + OTHER_RECHECK_MS * 1_000 {
                // Each that came to be the first was served before its own recheck. The last looks: it is the one
                // that is not served before its command arrives, and it keeps the queue for all (R28).
                line.looked_us = now_us;
                self.push(Purpose::Acquire(last));
            }
            let position = self.acquisitions.get(&next).and_then(|it| it.wait.as_ref()?.position);
            let position = position.or(Some(2));
            let (reason, others) = (Reason::Held, Vec::new());
            let refusal = Refusal { reason, at: 0, holder: None, others, position };
            self.plan_recheck(now_us, next, &refusal);
        }
    }

    pub(super) fn left(&mut self, id: HandleId, result: Result<(), Error>) {
        if let Some(acquisition) = self.acquisitions.get_mut(&id)
            && let Some(leaving) = acquisition.leaving.take()
        {
            match leaving.reply {
                Some(reply) => self.told.push(Told::Left(reply, result)),
                None => {
                    if let (Ending::Release, Err(error)) = (leaving.how, result) {
                        tracing::warn!(%error, "a lock was not released as it should be");
                    }
                }
            }
        }
        self.forget(id);
    }

    pub(super) fn forget(&mut self, id: HandleId) {
        self.keeper.forget(id);
        let Some(acquisition) = self.acquisitions.remove(&id) else { return };
        let Acquisition { ask, timer_us, was_sent, listeners, .. } = *acquisition;
        for token in listeners.map_or_else(Vec::new, |it| it.perhaps) {
            // Nobody has it any more, if it was ever known.
            self.ids.remove(&token);
            self.disown(&ask.name, &token, true);
        }
        self.acquisitions_sent -= usize::from(was_sent);
        self.timers.remove(&(timer_us, id));
        self.owners.ended(&ask.party.owner, ask.names(), id);
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
    pub(super) fn id_of(&self, name: &Name, token: &Token) -> Option<HandleId> {
        let value = || self.values.get(&(name.clone(), token.clone()))?.front();
        let ours = self.ids.get(token);
        if self.values.is_empty() { ours } else { ours.or_else(value) }.copied()
    }

    /// Has it been told to the store, or is another of the same value before it?
    pub(super) fn is_known_to_store(&self, id: HandleId) -> bool {
        let ask = self.acquisitions.get(&id).map(|it| &it.ask);
        ask.is_some_and(|ask| ask.proof.is_empty() || self.id_of(&ask.name, &ask.token) == Some(id))
    }

    pub(super) fn changed(&mut self, id: HandleId, state: Belief) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        tracing::debug!(name = %acquisition.ask.name, ?state, "a handle's state changed");
        for waker in acquisition.take_watchers() {
            waker.wake();
        }
        if let Belief::Lost(loss) = state {
            self.end_extends(id, loss);
            self.give_up_endless(id);
        }
    }

    pub(super) fn end_extends(&mut self, id: HandleId, loss: Loss) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        for (_, reply) in acquisition.take_extends() {
            let name = acquisition.ask.name.clone();
            let _ = reply.send(Err(Error::Lost { name, loss }));
        }
    }

    /// Tells callers what there is to tell, where it is rare enough to do so under the lock.
    pub(super) fn tell(&mut self) {
        self.told.drain(..).for_each(Told::send);
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
