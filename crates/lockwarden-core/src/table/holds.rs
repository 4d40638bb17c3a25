//! Holds that change: their mode, and their holder (R32, R42). Whatever takes a hold from its holder gives it another token,
//! so that nothing that one still sends can touch it.

use super::{Record, Turn, US_PER_MS, Whole, lock::over};
use crate::{
    command::{Acquire, Command, HoldState, Mode, Reason, Refusal, Reply},
    name::{Name, Token},
};

impl Turn<'_> {
    pub(super) fn convert(
        &mut self,
        name: &Name,
        (token, new_token): (&Token, &Token),
        to: Mode,
        floor: u64,
    ) -> Reply {
        let at = self.at;
        if at.rules.on(11) && !self.alive(at.caller) {
            return Reply::Unsubscribed;
        }
        if self.is_ahead(floor) {
            return Reply::FloorAhead { now_us: at.now_us };
        }
        let guard_ms = self.guard_ms();
        let lock = self.lock(name);
        // What was asked for again (G6).
        let done = lock.held_by(new_token).filter(|it| it.mode == to && over(it).is_none());
        if let Some(record) = done.filter(|_| to != Mode::Exclusive || new_token != token)
            && lock.is_owned(new_token, at)
        {
            return Reply::Converted { fence: record.fence };
        }
        let Some(record) = lock.held_by(token).filter(|_| lock.is_owned(token, at)) else {
            return Reply::NotHeld(lock.absence());
        };
        if let Some(absence) = over(record) {
            return Reply::NotHeld(absence);
        }
        let mut fence = record.fence;
        match (record.mode, to) {
            (Mode::Exclusive, Mode::Shared) => {
                // Its end with its lease: what a foreign client did to the key ends here (R15).
                lock.change_holder(token, |record, end_us| {
                    (record.mode, record.endless) = (to, false);
                    *end_us = (*end_us).min(record.end_us(at.now_us, record.lease_ms));
                });
                if guard_ms == 0 {
                    // The readers at the head enter at once (G4).
                    self.promote(name, None);
                }
            }
            // Also where an old snapshot says that it is held alone already: others have read since (G2).
            (Mode::Shared | Mode::Exclusive, Mode::Exclusive) => {
                if guard_ms > 0 {
                    return Reply::Guarded { lease_ms: 0, guard_ms };
                }
                if let Some(other) = lock.another_view(token, at.now_us) {
                    let (reason, others, position) = (Reason::Held, Vec::new(), None);
                    let holder = Some(other);
                    return Reply::Refused(Refusal { reason, at: 0, holder, others, position });
                }
                // What other readers were given meanwhile is smaller (G2).
                fence = self.next_fence(floor);
                self.lock(name).change_holder(token, |record, end_us| {
                    (record.mode, record.fence, record.token) = (to, fence, new_token.clone());
                    record.endless = false;
                    *end_us = (*end_us).min(record.end_us(at.now_us, record.lease_ms));
                });
            }
            (in_use, _) => return Reply::OtherMode { at: 0, in_use },
        }
        Reply::Converted { fence }
    }

    pub(super) fn hand_over(
        &mut self,
        command: &Command,
        token: &Token,
        to: &Token,
        lease_ms: u64,
    ) -> Reply {
        let at = self.at;
        let mut mine: Vec<&Name> = Vec::new();
        for name in command.names() {
            let lock = self.lock(name);
            // It was carried out before this, or the lock was adopted since (G6).
            if lock.held_by(to).is_some() {
                continue;
            }
            let Some(record) = lock.held_by(token).filter(|_| lock.is_owned(token, at)) else {
                return Reply::NotHeld(lock.absence());
            };
            if let Some(absence) = over(record) {
                return Reply::NotHeld(absence);
            }
            mine.push(name);
        }
        for name in mine {
            self.lock(name).change_holder(token, |record, end_us| {
                (record.token, record.state) = (to.clone(), HoldState::HandedOver);
                record.endless = false;
                // Since when and for how long it may be adopted.
                (record.since_us, record.lease_ms) = (at.now_us, lease_ms);
                *end_us = record.end_us(at.now_us, lease_ms);
            });
        }
        Reply::HandedOver
    }

    /// Takes over what was handed over under the asker's token: all of it, or nothing (R32).
    pub(super) fn adopt(&mut self, ask: &Acquire) -> Reply {
        if self.guard_ms() > 0 {
            // What an old snapshot brought back may have been adopted since (R6).
            return self.refuse(ask);
        }
        let mut adopted = Vec::new();
        let now_us = self.at.now_us;
        // Not in the rest of a minimum or a delay that is longer.
        let in_time = |it: &&Record| it.since_us + it.lease_ms * US_PER_MS > now_us;
        for name in ask.names() {
            let lock = self.lock(name);
            let record = lock.held_by(&ask.token).filter(|it| it.state == HoldState::HandedOver);
            let Some(record) = record.filter(in_time) else {
                return Reply::NotHeld(lock.absence());
            };
            adopted.push((name, record.clone()));
        }
        for (name, _) in &adopted {
            self.lock(name).drop_holder(&ask.token);
        }
        let wants = adopted.iter().map(|(name, record)| (*name, record.mode));
        self.grant(wants, &ask.ticket(self.at, None), ask.lease_ms, Whole::Yes);
        for (name, before) in &adopted {
            // The minimum is that of the work, whoever does it.
            self.lock(name).change_holder(&ask.token, |record, end_us| {
                record.least_until_us = record.least_until_us.max(before.least_until_us);
                *end_us = (*end_us).max(record.least_until_us);
            });
        }
        self.granted(ask)
    }
}
