//! What the store says, and what follows from it.

use super::{
    acquisition::{Ending, Phase, Waiting},
    outbox::Purpose,
    state::State,
    timing::{FIRST_MARGIN_MS, RETRY_US},
};
use crate::{
    clock,
    error::{Error, StoreError},
    random,
};
use lockwarden_core::{
    Command, Epoch, Message, Name, Reply, Token,
    command::{self, Absence, HolderView, Reason, Refusal},
    keeper::{Acknowledged, HandleId, Loss, State as Belief},
    limits::{MOST_HOLDERS_TOLD, W_MS},
};
use std::time::Duration;

/// How often a caller that does not wait takes over from dead holders, who may be many.
const MOST_TAKEOVERS: usize = 64;

impl State {
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
            let Some(sent) = self.sent.take(call) else { continue };
            if matches!(answer, Ok(Reply::Stale)) {
                self.mend = Some("the server runs anew".into());
            }
            if matches!(answer, Ok(Reply::Unsubscribed)) {
                self.keeper.unsubscribed();
            }
            match sent.purpose {
                Purpose::Beat(beat) => self.beat_answered(now_us, beat, epoch, answer),
                Purpose::Acquire(id) => {
                    self.acquire_answered(now_us, id, sent.sent_us, epoch, answer)
                }
                Purpose::Renew(id, _) => {
                    self.renew_answered(now_us, id, sent.sent_us, epoch, answer)
                }
                Purpose::Leave(id) => self.leave_answered(now_us, id, answer),
                Purpose::Disown(_) => {}
                Purpose::TakeOver(_, Some(id)) => self.push(Purpose::Acquire(id)),
                Purpose::TakeOver(_, None) => {}
                Purpose::Ask(_, reply) => drop(reply.send(answer)),
                Purpose::ExtendByValue(command, reply) => {
                    self.extended_by_value(now_us, &command, sent.sent_us, epoch, &answer);
                    drop(reply.send(answer));
                }
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
                let id = self.id_of(&name, &token);
                let lost = id.is_some_and(|id| {
                    matches!(self.keeper.state_at(id, now_us), Some(Belief::Lost(_)))
                });
                let is_left = lost && id.is_some_and(|id| self.may_be_extended(id));
                if (id.is_none() || lost) && !is_left {
                    self.disown(&name, &token, lost);
                }
            }
            Message::Revoked { name, token, .. } => {
                let Some(id) = self.id_of(&name, &token) else { return };
                self.keeper.lost(id, Loss::Revoked);
                // With two connections it may overtake the grant that it is about.
                if let Some(wait) = self.acquisitions.get_mut(&id).and_then(|it| it.wait.as_mut()) {
                    wait.revoked = true;
                }
            }
            Message::Recall { name, token, by } => {
                if let Some(id) = self.id_of(&name, &token) {
                    self.recalled(id, by);
                }
            }
        }
    }

    /// We are a copy of another session: nothing here is ours (R24).
    pub(super) fn copied(&mut self) {
        self.keeper.all_lost(Loss::Cloned);
        self.cloned = true;
        self.mend = Some("another process runs with this session's identity".into());
    }

    pub(super) fn epoch_seen(&mut self, now_us: u64, epoch: &Epoch) {
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

    pub(super) fn beat_answered(
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

    pub(super) fn acquire_answered(
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
        // With two connections a grant may overtake the refusal before it. What became of the grant
        // is what the renewal under way will say.
        if acquisition.phase == Phase::Confirming
            && matches!(
                answer,
                Ok(Reply::Refused(_) | Reply::Deadlock(_) | Reply::OtherMode { .. })
            )
        {
            return;
        }
        match answer {
            Ok(Reply::Granted { fence, lease_ms }) => {
                let Some(epoch) = epoch.cloned() else { return };
                acquisition.fence = fence;
                if std::mem::take(&mut wait.revoked) {
                    // Is it still ours? The renewal will say.
                    acquisition.phase = Phase::Confirming;
                    let lease_ms = acquisition.ask.lease_ms;
                    return self.push(Purpose::Renew(id, lease_ms));
                }
                let said = Acknowledged { sent_us, lease_ms, epoch };
                self.keeper.granted(now_us, id, acquisition.keeping, said);
                self.deliver(id);
            }
            Ok(Reply::Refused(refusal)) => {
                wait.told = Waiting { told: Some(refusal.clone()), trouble: None };
                wait.report();
                if acquisition.ask.wait.is_one_try() {
                    self.refused(id, refusal);
                } else {
                    acquisition.phase = Phase::Queued;
                    wait.position = refusal.position;
                    if let command::Wait::For(ms) = acquisition.ask.wait {
                        // It may have been put off until this answer.
                        wait.deadline_us = Some(wait.began_us + ms * 1_000);
                    }
                    let names: Vec<Name> = acquisition.ask.names().cloned().collect();
                    self.line_up(id);
                    self.looked(now_us, id);
                    // Beyond the last that is told, if as many are told as can be, others may be held as well.
                    let told = refusal.holders().count();
                    let last = refusal.holders().map(|(number, _)| number).max();
                    let known = match last {
                        Some(last) if told >= MOST_HOLDERS_TOLD => last + 1,
                        _ => names.len(),
                    };
                    for (number, name) in names.iter().enumerate().take(known) {
                        self.watching.holders(name, refusal.holders_of(number));
                    }
                    self.plan_recheck(now_us, id, &refusal);
                }
            }
            Ok(Reply::NotHeld(absence)) if acquisition.ask.wait == command::Wait::Adopt => {
                let name = acquisition.ask.name.clone();
                self.finish(id, Err(Error::NotHandedOver { name, absence }));
                self.forget(id);
            }
            Ok(Reply::OtherMode { at, in_use }) => {
                let name = acquisition.ask.name_at(at).clone();
                let asked = acquisition.ask.mode_at(at);
                // The same acquire may be under way once more, and find the lock free: what it gets is given back.
                self.fail(id, Error::OtherMode { name, asked, in_use });
            }
            Ok(Reply::Deadlock(cycle)) => {
                let name = cycle.first().map_or(&acquisition.ask.name, |step| &step.name).clone();
                self.fail(id, Error::Deadlock { name, cycle });
            }
            Ok(Reply::Guarded { guard_ms, .. }) => {
                self.recheck_at(id, now_us + (guard_ms.min(W_MS) + FIRST_MARGIN_MS) * 1_000);
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
                let place = self.watching.place.clone();
                self.fail(id, Error::Store(StoreError::protocol(place, detail)));
            }
            Err(error @ StoreError::Unavailable { .. }) if !acquisition.ask.wait.is_one_try() => {
                // The trouble may pass within the wait: try again, and keep the last words.
                wait.told.trouble = Some(error);
                wait.report();
                let pause_us = RETRY_US + random::below(RETRY_US);
                self.recheck_at(id, now_us + pause_us);
            }
            Err(error) => {
                wait.told.trouble = Some(error.clone());
                wait.report();
                self.fail(id, Error::Store(error));
            }
        }
    }

    /// A caller that does not wait was refused. If the holder has died on this machine, the lock is
    /// taken over first, once.
    pub(super) fn refused(&mut self, id: HandleId, refusal: Refusal) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        if let Some(wait) = &mut acquisition.wait
            && wait.took_over < MOST_TAKEOVERS
        {
            // Once, or as often as it takes to be told of all holders: each time some of the dead are gone.
            wait.took_over += 1;
            let dead: Vec<Command> = refusal
                .holders()
                .filter_map(|(number, holder)| {
                    let session = Some(self.watching.died(holder)?);
                    let name = acquisition.ask.name_at(number).clone();
                    let token = holder.token.clone();
                    Some(Command::Revoke { name, token, session, delayed: false })
                })
                .collect();
            if let Some((last, before)) = dead.split_last() {
                for command in before {
                    self.push(Purpose::TakeOver(command.clone(), None));
                }
                // Asked again behind the last of them.
                return self.push(Purpose::TakeOver(last.clone(), Some(id)));
            }
        }
        let name = acquisition.ask.name_at(refusal.at).clone();
        let error = match refusal.reason {
            Reason::Held | Reason::Kept => Error::Busy { name, told: Some(Box::new(refusal)) },
            Reason::Guard { guard_ms } => {
                Error::Guarded { name, left: Duration::from_millis(guard_ms) }
            }
        };
        self.finish(id, Err(error));
        // It left no ticket, so there is nothing to cancel.
        self.forget(id);
    }

    pub(super) fn renew_answered(
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
                for (wanted_ms, reply) in acquisition.take_extends() {
                    if wanted_ms == lease_ms {
                        let _ = reply.send(Ok(()));
                    } else {
                        acquisition.listeners().extends.push((wanted_ms, reply));
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
                self.recheck_at(id, now_us + (guard_ms.min(W_MS) + FIRST_MARGIN_MS) * 1_000);
            }
            Ok(Reply::Guarded { lease_ms, guard_ms }) => {
                self.keeper.guarded(now_us, id, sent_us, lease_ms, guard_ms);
            }
            Ok(Reply::NotHeld(absence)) if confirming => {
                // The grant was over before we could believe in it: queue anew, as if refused.
                tracing::debug!(?absence, "a grant by message was over before it was confirmed");
                self.send_again(id);
            }
            // The key holds a value of another type: someone took it.
            Ok(Reply::NotALock) if !confirming => {
                self.keeper.lost(id, Loss::NotHeld(Absence::Taken));
                self.end_extends(id, Loss::NotHeld(Absence::Taken));
            }
            Ok(Reply::NotHeld(_)) if sent_us < acquisition.upgraded_us() => {
                self.keeper.renewal_failed(now_us, id);
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

    pub(super) fn leave_answered(
        &mut self,
        now_us: u64,
        id: HandleId,
        answer: Result<Reply, StoreError>,
    ) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        let Some(leaving) = &mut acquisition.leaving else { return };
        let (name, also) = (acquisition.ask.name.clone(), acquisition.ask.also.clone());
        let token = acquisition.ask.token.clone();
        let hand_over = match &leaving.how {
            Ending::HandOver { to, .. } => Some((to.clone(), leaving.unwanted)),
            _ => None,
        };
        let result = match answer {
            Ok(Reply::HandedOver) if let Some((to, true)) = hand_over => {
                let command = Command::Release { name, also, token: to, lost: false };
                self.push(Purpose::TakeOver(command, None));
                Ok(())
            }
            Ok(Reply::NotHeld(absence)) if hand_over.is_some() => {
                // All of several, or none: what is left is given back.
                let error = match leaving.repeated {
                    // It may have been carried out, and adopted and released since.
                    true => Error::ReleasedOrLost { name: name.clone() },
                    false => Error::Lost { name: name.clone(), loss: Loss::NotHeld(absence) },
                };
                let command = Command::Release { name, also, token, lost: true };
                self.push(Purpose::TakeOver(command, None));
                Err(error)
            }
            Ok(Reply::Released | Reply::Cancelled { .. } | Reply::HandedOver | Reply::Left) => {
                match leaving.lost {
                    Some(loss) => Err(Error::Lost { name, loss }),
                    None => Ok(()),
                }
            }
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
                leaving.again_us = now_us + RETRY_US;
                return self.set_timer(id);
            }
            Err(error) => Err(Error::Store(error)),
        };
        self.left(id, result);
    }

    pub(super) fn granted_by_message(
        &mut self,
        now_us: u64,
        name: &Name,
        token: Token,
        fence: u64,
        lease_ms: u64,
        epoch: &Epoch,
    ) {
        let Some(id) = self.id_of(name, &token) else {
            return self.disown(name, &token, false);
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
            let lease_ms = acquisition.ask.lease_ms;
            self.push(Purpose::Renew(id, lease_ms));
        }
    }

    /// A ticket of ours is the first of its queue now.
    pub(super) fn first(
        &mut self,
        now_us: u64,
        name: &Name,
        token: &Token,
        holder: Option<HolderView>,
    ) {
        let Some(id) = self.id_of(name, token) else { return };
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        if !matches!(acquisition.phase, Phase::Asking | Phase::Queued) {
            return;
        }
        let Some(wait) = &mut acquisition.wait else { return };
        wait.position = Some(0);
        let at = acquisition.ask.names().position(|it| it == name).unwrap_or_default();
        let (reason, others, position) = (Reason::Held, Vec::new(), Some(0));
        let refusal = Refusal { reason, at, holder: holder.clone(), others, position };
        wait.told = Waiting { told: Some(refusal.clone()), trouble: None };
        wait.report();
        self.line_up(id);
        self.watching.holders(name, holder.as_ref());
        self.plan_recheck(now_us, id, &refusal);
    }
}
