//! The keeper: the holder side of every lock of one session.
//!
//! It decides when to beat and renew, when to stop believing, and when a handle is at risk or
//! lost. Everything is derived from deadlines that were set when a command *left* (never when its
//! answer came), so nothing has to happen for belief to end. It must not do I/O or read a clock.
//!
//! Drive it so: tell it what arrived ([`Keeper::beat_heard`], [`Keeper::renewed`], …), then call
//! [`Keeper::poll`] until it returns nothing, then come back by [`Keeper::deadline_us`]. Late and
//! repeated calls do no harm. Times are µs of one clock that counts suspend (R20).

use crate::{
    command::Absence,
    limits::{BEAT_MS, MAX_LEASE_MS, W_MS},
    name::Epoch,
    rules::Rules,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    num::NonZeroU64,
};

/// One held lock, numbered by the caller; never reused.
pub type HandleId = u64;

/// What a holder can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Renewed in time.
    Held,
    /// Still the owner as far as anyone knows, but `check()` is false or soon will be (G8).
    AtRisk(Risk),
    /// Final.
    Lost(Loss),
}

/// Why a handle is at risk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Risk {
    /// No renewal was acknowledged for two thirds of the lease.
    RenewalOverdue,
    /// No beat was heard for two thirds of W.
    BeatOverdue,
    /// The store began a new epoch; the lock must be renewed in it first (R23).
    NewEpoch,
    /// It has been held for nearly as long as it may be, and is renewed no more (R33).
    CeilingNear,
}

/// Why a handle is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The lease ended without a renewal.
    LeaseEnded,
    /// The store says that the token is not the holder's (any more).
    NotHeld(Absence),
    /// An operator took it away.
    Revoked,
    /// It was held for as long as it may be (R33).
    HeldAtMost,
    /// The handle was inherited by a forked child, which holds nothing (R24).
    Forked,
    /// Another process speaks with this session's identity: a copy of a machine or of a process
    /// image (R24).
    Cloned,
}

/// Why a link must be given up and made anew (R23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mend {
    /// A beat stayed unanswered for W.
    BeatUnanswered,
    /// Nobody listens on the session's channel: grants would be missed.
    Unsubscribed,
    /// The server's clock jumped.
    ClockJumped,
}

/// What the driver must do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a beat, and say so with [`Keeper::beat_sent`].
    Beat,
    /// Renew these, together, each with the lease that stands beside it, in ms.
    Renew(Vec<(HandleId, u64)>),
    /// Close the link and open a new one.
    Mend(Mend),
    /// Tell the holder.
    Changed(HandleId, State),
}

/// What a grant or a renewal said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// When the command left, in µs.
    pub sent_us: u64,
    /// The lease that the answer states, in ms.
    pub lease_ms: u64,
    /// The epoch of the answer.
    pub epoch: Epoch,
}

/// How a handle wants to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keeping {
    /// The lease of each renewal, in ms.
    pub lease_ms: u64,
    /// The grace, in ms; see [`Keeper::stop_by_us`].
    pub grace_ms: u64,
    /// Renew it until it is forgotten; otherwise it ends with its lease.
    pub renew: bool,
    /// For how long it is held at most, from its grant on, in ms: no renewal reaches beyond that (R33). None: for
    /// as long as it is renewed.
    pub most_ms: Option<NonZeroU64>,
}

/// The belief of one session in all its locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keeper {
    rules: Rules,
    /// Counts links; a handle remembers on which one it was acknowledged last (R21).
    generation: u64,
    link: Option<Link>,
    /// The last counting beat of each link that a belief may still rest on.
    beats: BTreeMap<u64, CountingBeat>,
    epoch: Option<Epoch>,
    handles: BTreeMap<HandleId, Handle>,
    /// When to look at which handle next.
    due: BTreeSet<(u64, HandleId)>,
    changes: VecDeque<(HandleId, State)>,
    mend: Option<Mend>,
    /// All handles of the present link were marked at risk for want of a beat.
    overdue: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link {
    /// Beats without an answer: id, when sent.
    unanswered: VecDeque<(u64, u64)>,
    next_beat_us: u64,
    next_beat_id: u64,
    /// The least and the most that the server's clock was ahead of ours, by the last beat.
    ahead_us: Option<(i64, i64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CountingBeat {
    sent_us: u64,
    epoch: Epoch,
}

/// A lease, counted from when the command left that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    sent_us: u64,
    ms: u64,
}

impl Lease {
    /// What a store says is kept within what the protocol allows, so that no answer can make a
    /// deadline overflow.
    fn new(sent_us: u64, ms: u64) -> Lease {
        Lease { sent_us, ms: ms.min(MAX_LEASE_MS) }
    }

    fn end_us(self) -> u64 {
        self.sent_us + believed_us(self.ms)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Handle {
    /// As in [`Keeping`]. A process may keep a hundred thousand of these, so that each field counts.
    lease_ms: u64,
    grace_ms: u64,
    renew: bool,
    /// When it must end, in µs (R33).
    ceiling_us: Option<NonZeroU64>,
    /// The last acknowledged grant or renewal; `guarded` answers included.
    lease: Lease,
    /// The epoch of the last acknowledgement that gave belief.
    epoch: Epoch,
    /// The link of the last acknowledgement.
    generation: u64,
    /// A renewal under way that would end sooner than what is acknowledged, the shorter lease of an
    /// `extend`: it may have been carried out long before its answer is heard. And on which link.
    shorter: Option<(u64, Lease)>,
    /// When to renew; none: a renewal is under way, or none is wanted.
    renew_at_us: Option<u64>,
    state: State,
    /// Its entry in `due`; 0: none.
    due_us: u64,
}

const US_PER_MS: u64 = 1_000;
const W_US: u64 = W_MS * US_PER_MS;
const BEAT_US: u64 = BEAT_MS * US_PER_MS;
/// Renewals due this soon travel with those that are due: cost per process, not per lock.
const SLACK_US: u64 = 50_000;
/// Renewals per command, so that no batch keeps the server from others for long.
const RENEWALS_AT_ONCE: usize = 256;
/// A jump of the server's clock worth a new link: expiries moved with it.
const JUMP_US: i64 = 500_000;

/// How long something sent at a time and granted for `ms` is believed: 1 % and 10 ms less, for
/// clocks that run at different rates (R20).
fn believed_us(ms: u64) -> u64 {
    (ms * US_PER_MS).saturating_sub(ms * 10 + 10 * US_PER_MS)
}

impl Default for Keeper {
    fn default() -> Self {
        Keeper::new(Rules::ALL)
    }
}

impl Keeper {
    /// A keeper that holds nothing and has no link.
    #[must_use]
    pub fn new(rules: Rules) -> Keeper {
        Keeper {
            rules,
            generation: 0,
            link: None,
            beats: BTreeMap::new(),
            epoch: None,
            handles: BTreeMap::new(),
            due: BTreeSet::new(),
            changes: VecDeque::new(),
            mend: None,
            overdue: false,
        }
    }

    /// The strict local check (G1): may the holder act now? True only while no store could have
    /// granted the lock to anyone else (R20).
    #[must_use]
    pub fn check(&self, id: HandleId, now_us: u64) -> bool {
        self.handles.get(&id).is_some_and(|handle| self.believes(handle, now_us))
    }

    /// What the holder can rely on; none: no such handle.
    #[must_use]
    pub fn state(&self, id: HandleId) -> Option<State> {
        self.handles.get(&id).map(|handle| handle.state)
    }

    /// The same as of this moment, whether or not [`Keeper::poll`] has been called since: deadlines
    /// decide, not timers (R20).
    #[must_use]
    pub fn state_at(&self, id: HandleId, now_us: u64) -> Option<State> {
        self.handles.get(&id).map(|handle| self.judge(handle, now_us))
    }

    /// The end of the last acknowledged lease, less the margin, in µs; 0: no such handle.
    #[must_use]
    pub fn lease_end_us(&self, id: HandleId) -> u64 {
        self.handles.get(&id).map_or(0, Handle::lease_end_us)
    }

    /// When work under the lock must have stopped, in µs, as far as the holder can know: the end
    /// of the lease, or grace after the last answer of the store (`guarded` ones included), for by
    /// then the store may have seen the link closed. Later than `check()` turns false.
    #[must_use]
    pub fn stop_by_us(&self, id: HandleId) -> u64 {
        let Some(handle) = self.handles.get(&id) else { return 0 };
        let beat_us = self.beats.get(&handle.generation).map_or(0, |b| b.sent_us);
        let answered_us = handle.lease.sent_us.max(beat_us);
        handle.lease_end_us().min(answered_us + believed_us(handle.grace_ms))
    }

    /// How long a renewal that leaves now may make the lease, in ms (R33); none: as long as it wants to.
    #[must_use]
    pub fn rest_ms(&self, id: HandleId, now_us: u64) -> Option<u64> {
        let ceiling_us = self.handles.get(&id)?.ceiling_us?;
        Some(ceiling_us.get().saturating_sub(now_us) / US_PER_MS)
    }

    /// How many handles it keeps, lost ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Does it keep none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// A new link stands, subscribed and tested (R7): beat, then renew everything on it.
    pub fn link_up(&mut self, now_us: u64) {
        self.generation += 1;
        self.mend = None;
        self.overdue = false;
        self.link = Some(Link {
            unanswered: VecDeque::new(),
            next_beat_us: now_us,
            next_beat_id: self.generation << 32,
            ahead_us: None,
        });
        // Beliefs on links before the last have ended, but for the beat that is still within W.
        self.beats.retain(|_, beat| beat.sent_us + W_US > now_us);
        self.renew_all(now_us);
    }

    /// The link is closed. Belief goes on until its deadlines.
    pub fn link_down(&mut self) {
        self.link = None;
        self.mend = None;
        for id in self.ids() {
            self.schedule(id);
        }
    }

    /// A beat leaves; its number comes back with [`Keeper::beat_heard`]. Call it before the beat is
    /// handed to the link. 0: there is no link.
    pub fn beat_sent(&mut self, now_us: u64) -> u64 {
        let Some(link) = &mut self.link else { return 0 };
        let id = link.next_beat_id;
        link.next_beat_id += 1;
        link.unanswered.push_back((id, now_us));
        link.next_beat_us = now_us + BEAT_US;
        id
    }

    /// The answer to a beat (R19, R21). An answer of an earlier link is none.
    pub fn beat_heard(
        &mut self,
        now_us: u64,
        id: u64,
        epoch: &Epoch,
        server_us: u64,
        subscribers: u64,
    ) {
        let Some(link) = &mut self.link else { return };
        let Some(index) = link.unanswered.iter().position(|(sent, _)| *sent == id) else { return };
        let (_, sent_us) = link.unanswered[index];
        // Answers come in order: what was sent before is answered by this one, too.
        link.unanswered.drain(..=index);
        let ahead = |ours_us: u64| (server_us as i64).wrapping_sub(ours_us as i64);
        let (least, most) = (ahead(now_us), ahead(sent_us));
        let jumped = link.ahead_us.is_some_and(|(low, high)| {
            least.saturating_sub(JUMP_US) > high || most.saturating_add(JUMP_US) < low
        });
        link.ahead_us = Some((least, most));
        self.epoch_seen(now_us, epoch);
        if let Some(link) = &mut self.link {
            // Whatever wanted one at once has it.
            link.next_beat_us = link.next_beat_us.max(sent_us + BEAT_US);
        }
        if jumped && self.rules.on(23) {
            self.mend = Some(Mend::ClockJumped);
        }
        if subscribers == 0 && self.rules.on(19) {
            if self.rules.on(23) {
                self.mend = Some(Mend::Unsubscribed);
            }
            return;
        }
        let beat = CountingBeat { sent_us, epoch: epoch.clone() };
        let before = self.beats.insert(self.generation, beat);
        // A handle may have been renewed on this link, or in this epoch, before its first beat was
        // heard: that beat makes it held.
        let first = before.is_none_or(|before| before.epoch != *epoch);
        if std::mem::take(&mut self.overdue) || first {
            for id in self.ids() {
                self.settle(id, now_us);
            }
        }
    }

    /// The store said that nobody listens on our channel (R11): the link is no link.
    pub fn unsubscribed(&mut self) {
        if self.link.is_some() {
            self.mend = Some(Mend::Unsubscribed);
        }
    }

    /// An answer of the store came from this epoch. Another one than before makes `check()` of all
    /// older handles false at once, until they are renewed (R23); a beat is due at once, for no handle is believed in
    /// before one of its own epoch (R21). True: it was another one.
    pub fn epoch_seen(&mut self, now_us: u64, epoch: &Epoch) -> bool {
        if self.epoch.as_ref() == Some(epoch) {
            return false;
        }
        self.epoch = Some(epoch.clone());
        if self.rules.on(23) {
            if let Some(link) = &mut self.link {
                link.next_beat_us = now_us;
            }
            self.renew_all(now_us);
            for id in self.ids() {
                self.settle(id, now_us);
            }
        }
        true
    }

    /// A grant was acknowledged by the reply to an acquire.
    pub fn granted(&mut self, now_us: u64, id: HandleId, keeping: Keeping, said: Acknowledged) {
        self.epoch_seen(now_us, &said.epoch);
        self.insert(now_us, id, keeping, said, self.generation);
    }

    /// A grant came by message. It was made after the last counting beat before it on this link was
    /// sent, so that beat is when it counts from (R22). False: too little of that is left, or there
    /// was no beat of that epoch on this link. Then nothing is kept: renew the lock before telling
    /// the caller, and say [`Keeper::granted`] with what that renewal says.
    #[must_use]
    pub fn granted_by_message(
        &mut self,
        now_us: u64,
        id: HandleId,
        keeping: Keeping,
        lease_ms: u64,
        epoch: &Epoch,
    ) -> bool {
        self.epoch_seen(now_us, epoch);
        let beat = self.beats.get(&self.generation).filter(|_| self.link.is_some());
        let beat_us = beat.filter(|beat| beat.epoch == *epoch).map(|beat| beat.sent_us);
        let sent_us = if self.rules.on(22) { beat_us } else { Some(now_us) };
        let Some(sent_us) = sent_us else { return false };
        let believed_us = believed_us(lease_ms.min(W_MS));
        if sent_us + believed_us < now_us + BEAT_US {
            return false;
        }
        // A hand-off is for W at most, and the next renewal makes it whole (R27). Where none would
        // follow, this one must.
        if !keeping.renew && lease_ms < keeping.lease_ms {
            return false;
        }
        let said = Acknowledged { sent_us, lease_ms, epoch: epoch.clone() };
        self.insert(now_us, id, keeping, said, self.generation);
        true
    }

    /// A renewal was acknowledged. An answer that comes after the loss changes nothing: lost is
    /// final (G8).
    pub fn renewed(&mut self, now_us: u64, id: HandleId, said: Acknowledged) {
        self.epoch_seen(now_us, &said.epoch);
        let generation = self.generation;
        self.acknowledge(now_us, id, said.sent_us, said.lease_ms, |handle| {
            handle.epoch = said.epoch;
            handle.generation = generation;
            now_us.max(said.sent_us) + handle.lease.ms * US_PER_MS / 3
        });
    }

    /// A renewal was answered `guarded`: the store keeps the lock, but no belief follows (R6): not
    /// even that of the beats of this link (R21), which a caller without the right to ask for the
    /// server's run would otherwise count at once (R5).
    pub fn guarded(
        &mut self,
        now_us: u64,
        id: HandleId,
        sent_us: u64,
        lease_ms: u64,
        guard_ms: u64,
    ) {
        self.acknowledge(now_us, id, sent_us, lease_ms, |_| {
            // No guard is longer than W, whatever a server says whose clock was set back.
            now_us + guard_ms.min(W_MS) * US_PER_MS
        });
    }

    /// A renewal failed for a reason that may pass (out of memory, read-only): soon again.
    pub fn renewal_failed(&mut self, now_us: u64, id: HandleId) {
        if let Some(handle) = self.handles.get_mut(&id) {
            let pause_ms = (handle.lease.ms / 12).clamp(20, 500);
            handle.renew_at_us = Some(now_us + pause_ms * US_PER_MS);
            self.schedule(id);
        }
    }

    /// The store said "not yours", or an operator took it: lost, for good.
    pub fn lost(&mut self, id: HandleId, loss: Loss) {
        self.set_state(id, State::Lost(loss));
        self.schedule(id);
    }

    /// Everything is lost at once (R24).
    pub fn all_lost(&mut self, loss: Loss) {
        for id in self.ids() {
            self.lost(id, loss);
        }
    }

    /// From now on renew with another lease, and do so at once, even where nothing is renewed by
    /// itself.
    pub fn extend(&mut self, now_us: u64, id: HandleId, lease_ms: u64) {
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.lease_ms = lease_ms;
            handle.renew_at_us = Some(now_us);
            self.schedule(id);
        }
    }

    /// A command leaves that makes the lease this long, without being a renewal of ours. From here on no more than that is
    /// sure, until the store says that it was carried out, with [`Keeper::renewed`].
    pub fn may_shorten(&mut self, now_us: u64, id: HandleId, lease_ms: u64) {
        let generation = self.generation;
        if let Some(handle) = self.handles.get_mut(&id) {
            let asked = Lease::new(now_us, lease_ms);
            if asked.end_us() < handle.lease_end_us() {
                handle.shorter = Some((generation, asked));
            }
            self.settle(id, now_us);
        }
    }

    /// The handle is released or given up: never renewed again, `check()` is false.
    pub fn forget(&mut self, id: HandleId) {
        if let Some(handle) = self.handles.remove(&id) {
            self.due.remove(&(handle.due_us, id));
        }
    }

    /// What to do now; call it until it returns nothing.
    pub fn poll(&mut self, now_us: u64) -> Option<Action> {
        if let Some(action) = self.next_change() {
            return Some(action);
        }
        if let Some(mend) = self.mend.take() {
            // The driver answers with `link_down`; until then there is nothing to send.
            self.link = None;
            return Some(Action::Mend(mend));
        }
        if let Some(link) = &self.link {
            if link.unanswered.front().is_some_and(|(_, sent_us)| now_us >= sent_us + W_US) {
                self.link = None;
                return Some(Action::Mend(Mend::BeatUnanswered));
            }
            if now_us >= link.next_beat_us {
                return Some(Action::Beat);
            }
        }
        if !self.overdue && self.beat_risk_us().is_some_and(|at| now_us >= at) {
            self.overdue = true;
            for id in self.ids() {
                self.settle(id, now_us);
            }
        }
        let mut renew = Vec::new();
        while renew.len() < RENEWALS_AT_ONCE
            && let Some(&(due_us, id)) = self.due.first()
        {
            let Some(handle) = self.handles.get(&id) else {
                self.due.pop_first();
                continue;
            };
            let renewable = |until_us| handle.renew_at_us.is_some_and(|at| at <= until_us);
            if due_us > now_us && (renew.is_empty() || !renewable(now_us + SLACK_US)) {
                break;
            }
            let lease_ms = handle.renewal_ms(now_us);
            let renews = self.link.is_some()
                && renewable(now_us + if renew.is_empty() { 0 } else { SLACK_US })
                && now_us < handle.lease_end_us()
                && lease_ms > 0;
            if renews {
                renew.push((id, lease_ms));
            }
            let generation = self.generation;
            if let Some(handle) = self.handles.get_mut(&id).filter(|_| renews) {
                handle.renew_at_us = None;
                // From here on only the shorter one is sure, until the store says that it carried
                // it out: an answer to an earlier renewal says nothing about that.
                let asked = Lease::new(now_us, lease_ms);
                if asked.end_us() < handle.lease_end_us() {
                    handle.shorter = Some((generation, asked));
                }
            }
            self.settle(id, now_us);
        }
        if !renew.is_empty() {
            return Some(Action::Renew(renew));
        }
        self.next_change()
    }

    /// When to call [`Keeper::poll`] again at the latest, in µs; none: when something arrives.
    #[must_use]
    pub fn deadline_us(&self) -> Option<u64> {
        if !self.changes.is_empty() || self.mend.is_some() {
            return Some(0);
        }
        let link = self.link.as_ref();
        let beat_us = link.map(|link| link.next_beat_us);
        let mend_us = link.and_then(|link| link.unanswered.front()).map(|(_, sent)| sent + W_US);
        let risk_us = self.beat_risk_us().filter(|_| !self.overdue);
        let due_us = self.due.first().map(|(at, _)| *at);
        [beat_us, mend_us, risk_us, due_us].into_iter().flatten().min()
    }

    /// The next change that concerns anyone: who forgot a handle wants to hear no more of it.
    fn next_change(&mut self) -> Option<Action> {
        loop {
            let (id, state) = self.changes.pop_front()?;
            if self.handles.contains_key(&id) {
                return Some(Action::Changed(id, state));
            }
        }
    }

    fn believes(&self, handle: &Handle, now_us: u64) -> bool {
        let in_lease = now_us < handle.lease_end_us() && !matches!(handle.state, State::Lost(_));
        let in_epoch = self.epoch.as_ref() == Some(&handle.epoch) || !self.rules.on(23);
        in_lease && in_epoch && (now_us < self.beat_end_us(handle) || !self.rules.on(20))
    }

    /// Until when the beats carry this handle, in µs (R21).
    fn beat_end_us(&self, handle: &Handle) -> u64 {
        let beat = if self.rules.on(21) {
            let beat = self.beats.get(&handle.generation);
            beat.filter(|beat| beat.epoch == handle.epoch)
        } else {
            self.beats.values().max_by_key(|beat| beat.sent_us)
        };
        beat.map_or(0, |beat| beat.sent_us + believed_us(W_MS))
    }

    /// When a handle is at risk for want of a beat: one beat of three may be late.
    fn beat_overdue_us(&self, handle: &Handle) -> u64 {
        self.beat_end_us(handle).saturating_sub(believed_us(W_MS)) + 2 * BEAT_US
    }

    /// The same for all handles of the present link.
    fn beat_risk_us(&self) -> Option<u64> {
        self.beats.get(&self.generation).map(|beat| beat.sent_us + 2 * BEAT_US)
    }

    fn insert(
        &mut self,
        now_us: u64,
        id: HandleId,
        keeping: Keeping,
        said: Acknowledged,
        generation: u64,
    ) {
        // Told again, it is the same grant.
        let known = self.handles.get(&id).and_then(|handle| handle.ceiling_us);
        let ceiling_us =
            keeping.most_ms.and_then(|ms| NonZeroU64::new(said.sent_us + ms.get() * US_PER_MS));
        self.forget(id);
        let lease_ms = said.lease_ms.min(MAX_LEASE_MS);
        let renew_at_us = said.sent_us.max(now_us) + lease_ms * US_PER_MS / 3;
        let mut handle = Handle {
            lease_ms: keeping.lease_ms,
            grace_ms: keeping.grace_ms,
            renew: keeping.renew,
            ceiling_us: known.or(ceiling_us),
            lease: Lease::new(said.sent_us, said.lease_ms),
            epoch: said.epoch,
            generation,
            shorter: None,
            renew_at_us: None,
            state: State::Held,
            due_us: 0,
        };
        handle.renew_at(renew_at_us);
        self.handles.insert(id, handle);
        self.settle(id, now_us);
    }

    fn acknowledge(
        &mut self,
        now_us: u64,
        id: HandleId,
        sent_us: u64,
        lease_ms: u64,
        update: impl FnOnce(&mut Handle) -> u64,
    ) {
        let Some(handle) = self.handles.get_mut(&id) else { return };
        if now_us >= handle.lease_end_us() {
            self.settle(id, now_us);
            return;
        }
        handle.lease = Lease::new(sent_us, lease_ms);
        let generation = self.generation;
        handle.shorter.take_if(|(on_link, shorter)| {
            // That one was answered; or a later link was, and the link that it was sent on is closed,
            // so that it will not be carried out any more (R9).
            *on_link != generation || (sent_us >= shorter.sent_us && lease_ms == shorter.ms)
        });
        let renew_at_us = update(handle);
        handle.renew_at(renew_at_us);
        self.settle(id, now_us);
    }

    fn renew_all(&mut self, now_us: u64) {
        for id in self.ids() {
            if let Some(handle) = self.handles.get_mut(&id).filter(|it| it.renew) {
                handle.renew_at_us = Some(now_us);
                self.schedule(id);
            }
        }
    }

    /// Brings a handle's state up to now, and notes when to look again.
    fn settle(&mut self, id: HandleId, now_us: u64) {
        if let Some(state) = self.state_at(id, now_us) {
            self.set_state(id, state);
            self.schedule(id);
        }
    }

    fn judge(&self, handle: &Handle, now_us: u64) -> State {
        if matches!(handle.state, State::Lost(_)) {
            handle.state
        } else if now_us >= handle.lease_end_us() {
            let at_most = handle.is_last_lease();
            State::Lost(if at_most { Loss::HeldAtMost } else { Loss::LeaseEnded })
        } else if now_us >= handle.renewal_risk_us() {
            let at_most = handle.is_last_lease();
            State::AtRisk(if at_most { Risk::CeilingNear } else { Risk::RenewalOverdue })
        } else if self.epoch.as_ref() != Some(&handle.epoch) && self.rules.on(23) {
            State::AtRisk(Risk::NewEpoch)
        } else if now_us >= self.beat_overdue_us(handle) {
            State::AtRisk(Risk::BeatOverdue)
        } else {
            State::Held
        }
    }

    fn set_state(&mut self, id: HandleId, state: State) {
        let Some(handle) = self.handles.get_mut(&id) else { return };
        if handle.state != state && !matches!(handle.state, State::Lost(_)) {
            handle.state = state;
            self.changes.push_back((id, state));
        }
    }

    fn schedule(&mut self, id: HandleId) {
        let Some(handle) = self.handles.get(&id) else { return };
        let beat_overdue_us = self.beat_overdue_us(handle);
        let Some(handle) = self.handles.get_mut(&id) else { return };
        self.due.remove(&(handle.due_us, id));
        handle.due_us = 0;
        if matches!(handle.state, State::Lost(_)) {
            return;
        }
        let mut due_us = handle.lease_end_us();
        if handle.state == State::Held {
            due_us = due_us.min(handle.renewal_risk_us());
            // The beats of the present link are watched for all handles at once.
            if handle.generation != self.generation || self.link.is_none() {
                due_us = due_us.min(beat_overdue_us);
            }
        }
        if self.link.is_some()
            && let Some(renew_at_us) = handle.renew_at_us
        {
            due_us = due_us.min(renew_at_us);
        }
        handle.due_us = due_us.max(1);
        self.due.insert((handle.due_us, id));
    }

    fn ids(&self) -> Vec<HandleId> {
        self.handles.keys().copied().collect()
    }
}

impl Handle {
    /// The lease of a renewal that leaves now, in ms; 0: there must be none.
    fn renewal_ms(&self, now_us: u64) -> u64 {
        let rest_ms = |ceiling_us: NonZeroU64| ceiling_us.get().saturating_sub(now_us) / US_PER_MS;
        self.ceiling_us.map_or(self.lease_ms, |ceiling_us| self.lease_ms.min(rest_ms(ceiling_us)))
    }

    /// Does the acknowledged lease reach to the ceiling? Times are cut to ms on their way.
    fn is_last_lease(&self) -> bool {
        let end_us = self.lease.sent_us + (self.lease.ms + 1) * US_PER_MS;
        self.ceiling_us.is_some_and(|ceiling_us| end_us >= ceiling_us.get())
    }

    /// Plans the next renewal, if there is to be one.
    fn renew_at(&mut self, at_us: u64) {
        self.renew_at_us = (self.renew && !self.is_last_lease()).then_some(at_us);
    }

    /// What is sure: the acknowledged lease, or a shorter one that may have been set since.
    fn sure(&self) -> impl Iterator<Item = Lease> {
        [Some(self.lease), self.shorter.map(|(_, lease)| lease)].into_iter().flatten()
    }

    fn lease_end_us(&self) -> u64 {
        self.sure().map(Lease::end_us).fold(u64::MAX, u64::min)
    }

    /// Two thirds of the lease gone: a renewal that was due at a third is overdue.
    fn renewal_risk_us(&self) -> u64 {
        let risk_us = |lease: Lease| lease.sent_us + lease.ms * US_PER_MS * 2 / 3;
        self.sure().map(risk_us).fold(u64::MAX, u64::min)
    }
}
