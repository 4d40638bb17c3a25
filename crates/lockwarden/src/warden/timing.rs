//! What time brings: beats and renewals, rechecks, the end of waits.

use super::{acquisition::Ending, outbox::Purpose, state::State};
use crate::{
    clock,
    error::{Effect, Error, StoreError, Trouble},
    random,
};
use lockwarden_core::{
    Command,
    command::{self, Reason, Refusal},
    keeper::{Action, HandleId, Loss, Mend},
    limits::W_MS,
};
use std::collections::BTreeSet;

/// The pause before a command that met passing trouble is sent again.
pub(super) const RETRY_US: u64 = 100_000;
/// A wait that is shorter than this lasts until the store has answered once, or so long.
const FIRST_ANSWER_US: u64 = 50_000;
/// Fronts of a queue look again a little after the lease should have ended (R17).
pub(super) const FIRST_MARGIN_MS: u64 = 5;
const SECOND_MARGIN_MS: u64 = 20;
const FIRST_RECHECK_MS: u64 = 1_000;
const SECOND_RECHECK_MS: u64 = 3_000;
pub(super) const OTHER_RECHECK_MS: u64 = 10_000;

impl State {
    /// Does everything that is due; says what to wake, and when to come back at the latest.
    pub(super) fn tick(&mut self) -> Option<u64> {
        let now_us = clock::now_us();
        while let Some(action) = self.keeper.poll(now_us) {
            match action {
                Action::Beat => {
                    // Counted from now, not from when the link has room for it: belief is the
                    // shorter for that, never the longer (R20).
                    let beat = self.keeper.beat_sent(now_us);
                    self.outbox.push_front(Purpose::Beat(beat));
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
            if let Some(acquisition) = self.acquisitions.get_mut(&id) {
                acquisition.timer_us = 0;
            }
            self.timer(now_us, id);
        }
        self.tell();
        for (processes, holders) in self.watching.take_dead() {
            tracing::info!(?processes, "holders have died: taking over");
            // Whoever waits is not told of all holders, where they are many: the dead may be more than these.
            let names =
                holders.iter().filter_map(|holder| self.waiting.get(&holder.name)?.ours.first());
            let again: BTreeSet<HandleId> = names.copied().collect();
            for holder in holders {
                let command = Command::Revoke {
                    name: holder.name,
                    token: holder.token,
                    session: Some(holder.session),
                    delayed: false,
                };
                self.outbox.push_back(Purpose::TakeOver(command, None));
            }
            for id in again {
                self.outbox.push_back(Purpose::Acquire(id));
            }
        }
        let timer = self.timers.first().map(|(at_us, _)| *at_us);
        [self.keeper.deadline_us(), timer].into_iter().flatten().min()
    }

    /// When to look again after a refusal (R17). Only the front waiter of a name in this process
    /// does: the others' turn comes through it.
    pub(super) fn plan_recheck(&mut self, now_us: u64, id: HandleId, refusal: &Refusal) {
        let Some(acquisition) = self.acquisitions.get(&id) else { return };
        // The front of ours, and whoever looks after the holder by the store's order: the two differ
        // where commands were sent again.
        let looks_after = matches!(refusal.position, Some(0 | 1));
        if !looks_after && !self.is_front(id, &acquisition.ask) {
            // One that has an owner does look again: for deadlocks, and so that others find it in theirs (R37). So does
            // one for several locks: unlike a queue, its request is forgotten without its own rechecks, and with it its
            // place.
            let ask = &acquisition.ask;
            let looks_again = !ask.party.owner.is_empty() || !ask.also.is_empty();
            let after_us = (OTHER_RECHECK_MS - random::below(OTHER_RECHECK_MS / 2)) * 1_000;
            return self.recheck_at(id, if looks_again { now_us + after_us } else { 0 });
        }
        let ttl_ms = refusal.holder.as_ref().and_then(|holder| holder.ttl_ms).unwrap_or(u64::MAX);
        let after = |margin_ms: u64, most_ms: u64| ttl_ms.saturating_add(margin_ms).min(most_ms);
        let after_ms = match (refusal.reason, refusal.position) {
            (Reason::Guard { guard_ms }, _) => guard_ms.min(W_MS) + FIRST_MARGIN_MS,
            (_, Some(0)) | (_, None) => after(FIRST_MARGIN_MS, FIRST_RECHECK_MS),
            (_, Some(1)) => after(SECOND_MARGIN_MS, SECOND_RECHECK_MS),
            _ => after(SECOND_MARGIN_MS + random::below(1_000), OTHER_RECHECK_MS),
        };
        self.recheck_at(id, now_us + after_ms.max(1) * 1_000);
    }

    pub(super) fn recheck_at(&mut self, id: HandleId, at_us: u64) {
        if let Some(acquisition) = self.acquisitions.get_mut(&id)
            && let Some(wait) = &mut acquisition.wait
        {
            wait.recheck_us = at_us;
            self.set_timer(id);
        }
    }

    pub(super) fn set_timer(&mut self, id: HandleId) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        let at_us = acquisition.due_us();
        let old_us = std::mem::replace(&mut acquisition.timer_us, at_us);
        if old_us == at_us {
            return;
        }
        if old_us > 0 {
            self.timers.remove(&(old_us, id));
        }
        if at_us > 0 {
            self.timers.insert((at_us, id));
        }
    }

    pub(super) fn timer(&mut self, now_us: u64, id: HandleId) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        if let Some(leaving) = &mut acquisition.leaving {
            if now_us >= leaving.until_us {
                // The lease is over: nothing is left that could be released.
                let name = acquisition.ask.name.clone();
                let error = match (&leaving.how, leaving.lost) {
                    // It may have been carried out.
                    (Ending::HandOver { .. }, _) => Error::ReleasedOrLost { name },
                    (_, loss) => Error::Lost { name, loss: loss.unwrap_or(Loss::LeaseEnded) },
                };
                if let Ending::HandOver { to, .. } = &leaving.how
                    && leaving.unwanted
                {
                    let (to, also) = (to.clone(), acquisition.ask.also.clone());
                    let name = acquisition.ask.name.clone();
                    let command = Command::Release { name, also, token: to, lost: false };
                    self.outbox.push_back(Purpose::TakeOver(command, None));
                }
                self.left(id, Err(error));
                return;
            }
            let impatient = leaving.reply.take_if(|_| now_us >= leaving.patience_us);
            let again = leaving.again_us > 0 && now_us >= leaving.again_us;
            if again {
                leaving.again_us = 0;
            }
            self.set_timer(id);
            if again {
                self.push(Purpose::Leave(id));
            }
            if let Some(reply) = impatient {
                let _ = reply.send(Err(Error::Store(self.no_answer())));
            }
            return;
        }
        let Some(wait) = &mut acquisition.wait else { return };
        if wait.deadline_us.is_some_and(|at_us| now_us >= at_us) {
            let first_answer_us = wait.began_us + FIRST_ANSWER_US;
            let is_unanswered = wait.told.told.is_none() && wait.told.trouble.is_none();
            if is_unanswered && self.down.is_none() && now_us < first_answer_us {
                // The lock may be free: there is always one try, however short the wait.
                wait.deadline_us = Some(first_answer_us);
                return self.set_timer(id);
            }
            let told = wait.told.told.take();
            let name = acquisition.ask.name_at(told.as_ref().map_or(0, |told| told.at)).clone();
            let waited = std::time::Duration::from_micros(now_us - wait.began_us);
            let trouble = wait.told.trouble.take().or_else(|| self.down.clone());
            let error = match (trouble, acquisition.ask.wait) {
                (Some(error), _) => Error::Store(error),
                (None, command::Wait::No) => Error::Store(self.no_answer()),
                (None, _) => Error::TimedOut { name, waited, told: told.map(Box::new) },
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

    /// The error of a store that did not answer in time.
    pub(super) fn no_answer(&self) -> StoreError {
        let down = self.down.clone();
        down.unwrap_or_else(|| StoreError::Unavailable {
            place: self.watching.place.clone(),
            trouble: Trouble::Disconnected,
            detail: "no answer in time".into(),
            effect: Effect::Unknown,
        })
        .with_effect(Effect::Unknown)
    }
}

fn describe(mend: Mend) -> &'static str {
    match mend {
        Mend::BeatUnanswered => "a heartbeat stayed without an answer",
        Mend::Unsubscribed => "the subscription is gone",
        Mend::ClockJumped => "the server's clock jumped",
    }
}
