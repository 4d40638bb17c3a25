//! What is done to a lock by whoever knows its value, holder or not: what the users of other libraries do to each other's
//! locks, and the drop-ins for them.

use super::{
    Turn, US_PER_MS,
    lock::{NEVER, over},
};
use crate::{
    command::{Absence, Command, Extension, HoldState, Reply},
    name::{Name, Token},
};

impl Turn<'_> {
    pub(super) fn extend_by_value(
        &mut self,
        name: &Name,
        token: &Token,
        ms: u64,
        how: Extension,
    ) -> Reply {
        let at = self.at;
        // It may give belief, as a renewal does.
        if at.rules.on(11) && !self.alive(at.caller) {
            return Reply::Unsubscribed;
        }
        let (now_us, guard_ms, run) = (at.now_us, self.guard_ms(), self.meta.run.clone());
        let lock = self.lock(name);
        let record = lock.held_by(token);
        let Some(key) = lock.key.as_ref().filter(|key| key.token == *token) else {
            return Reply::NotHeld(lock.absence());
        };
        // What was left is nobody's, and anybody's who knows its value.
        if let Some(absence) = record.filter(|it| it.state != HoldState::Cooling).and_then(over) {
            return Reply::NotHeld(absence);
        }
        let delay_ms = record.map_or(0, |record| record.delay_ms);
        let left_ms = match key.expires_us {
            None if how != Extension::Set => return Reply::Endless,
            None => None,
            Some(at_us) => match (at_us - now_us).div_ceil(US_PER_MS).checked_sub(delay_ms) {
                // Only the delay after a crash keeps it (R43).
                None | Some(0) => return Reply::NotHeld(Absence::Taken),
                left_ms => left_ms,
            },
        };
        let own = record.is_some_and(|it| it.session == *at.caller && it.state == HoldState::Held);
        // Another one's belief: it hears of nothing, and must not end early (R18).
        let least_ms = match record.filter(|it| it.state == HoldState::Held && !own) {
            Some(record) => left_ms.unwrap_or(record.lease_ms),
            None => 0,
        };
        let wanted_ms = match how {
            Extension::Add => left_ms.unwrap_or(0).saturating_add(ms),
            Extension::Replace | Extension::Set => ms,
        };
        let lease_ms = wanted_ms.max(least_ms);
        if record.is_none()
            && let Some(key) = &mut lock.key
        {
            key.expires_us = Some(now_us + lease_ms * US_PER_MS);
        }
        lock.change_holder(token, |record, end_us| {
            // What it results in (R15).
            (record.lease_ms, record.endless) = (lease_ms, false);
            if own {
                record.run = run;
            }
            *end_us = record.end_us(now_us, lease_ms);
        });
        Reply::Extended { lease_ms, own, guard_ms }
    }

    pub(super) fn leave(&mut self, command: &Command, name: &Name, token: &Token) -> Reply {
        let at = self.at;
        let lock = self.lock(name);
        if !lock.is_owned(token, at) {
            return Reply::NotHeld(lock.absence());
        }
        // Without a record it is nobody's already.
        let Some(record) = lock.held_by(token) else { return Reply::Left };
        match (record.state, over(record)) {
            // It was carried out before this (G6).
            (HoldState::Cooling, _) => return Reply::Left,
            (_, Some(absence)) => return Reply::NotHeld(absence),
            _ if record.endless || record.proof.is_empty() => {
                return self.release(command, token, false);
            }
            _ => {}
        }
        lock.change_holder(token, |record, end_us| {
            // What a foreign client did to its end, if it was put off, ends here (R15).
            let latest_us = record.end_us(at.now_us, record.lease_ms);
            *end_us = if *end_us == NEVER { latest_us } else { latest_us.min(*end_us) };
            // As whatever cools, but for the value.
            record.state = HoldState::Cooling;
            (record.least_until_us, record.delay_ms) = (0, 0);
            record.lease_ms = (*end_us - at.now_us).div_ceil(US_PER_MS);
        });
        Reply::Left
    }
}
