//! What stands about one name, but for its queue: who holds it, until when, and whether there is room for one more.

use super::{Context, Ticket, Together, US_PER_MS, together};
use crate::{
    command::{Absence, HoldState, HolderView, Mode, RecordView},
    name::{Run, SessionId, Token},
    party::Party,
};
use std::sync::Arc;

/// What stands about one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lock {
    /// Whoever wrote the key holds the lock.
    pub key: Option<Key>,
    /// The holder's description; see [`Lock::record`].
    pub record: Option<Record>,
    /// The holders, where there may be several; see [`Lock::together`].
    pub together: Together,
    /// The tickets, in order of arrival.
    pub queue: Vec<Ticket>,
    /// When the queue is forgotten for want of rechecks, in µs (R28).
    pub queue_expires_us: u64,
    /// Whom we asked last whether it still wants the lock, and until when not to ask again (R16).
    pub asked: Option<(Token, u64)>,
}

/// The lock's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its value.
    pub token: Token,
    /// When it expires, in µs; none: never (an endless lock, or a foreign client's).
    pub expires_us: Option<u64>,
}

/// The holder's description.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The key's value, or the record does not count (R3).
    pub token: Token,
    /// See [`Acquire::proof`].
    pub proof: Arc<str>,
    /// The holder's session.
    pub session: SessionId,
    /// The fence of the grant.
    pub fence: u64,
    /// The lease that the last grant or extension resulted in, in ms (R15).
    pub lease_ms: u64,
    /// The grace, in ms.
    pub grace_ms: u64,
    /// The run in which the holder last showed itself (R14).
    pub run: Run,
    /// What has become of it. Only who has it renews it.
    pub state: HoldState,
    /// It is kept until then at least, in µs; 0: no longer than it is held (R33).
    pub least_until_us: u64,
    /// See [`Acquire::delay_ms`](crate::command::Acquire::delay_ms).
    pub delay_ms: u64,
    /// See [`Acquire::endless`](crate::command::Acquire::endless). Whatever takes the lock from its holder, or gives it
    /// an end, takes this away.
    pub endless: bool,
    /// How it holds the lock.
    pub mode: Mode,
    /// When it was granted, in µs.
    pub since_us: u64,
    /// Who holds it.
    pub party: Arc<Party>,
}

/// The end of a lease that has none, in µs.
pub(super) const NEVER: u64 = u64::MAX;

impl Record {
    /// When the lock is free again if nobody is heard of for so many ms from now on, in µs: not before its minimum is
    /// over, and the delay of a crash (R33, R43).
    pub(super) fn end_us(&self, now_us: u64, ms: u64) -> u64 {
        (now_us + (ms + self.delay_ms) * US_PER_MS).max(self.least_until_us)
    }

    /// The same after a renewal.
    pub(super) fn renewed_end_us(&self, now_us: u64, lease_ms: u64) -> u64 {
        if self.endless { NEVER } else { self.end_us(now_us, lease_ms) }
    }
}

/// The token of a hold that cools: whoever knows that of the hold cannot touch it any more (R33).
#[must_use]
pub(super) fn cooling_token(token: &Token) -> Token {
    Token::found(&[b"lockwarden:cooling:", token.as_bytes()].concat())
}

impl Lock {
    /// The record of the one who holds it alone, if it counts (R3).
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        let key = self.key.as_ref()?;
        self.record.as_ref().filter(|record| record.token == key.token)
    }

    /// Those who hold it together, while the key says so.
    #[must_use]
    pub fn together(&self) -> Option<&Together> {
        let key = self.key.as_ref()?;
        (key.token == together::token() && !self.together.is_empty()).then_some(&self.together)
    }

    /// The record of the holder with this token, if it counts.
    #[must_use]
    pub fn held_by(&self, token: &Token) -> Option<&Record> {
        match self.together() {
            Some(together) => together.get(token),
            None => self.record().filter(|record| record.token == *token),
        }
    }

    /// The records of all holders that count, whose lease ends first comes first.
    pub fn holders(&self) -> impl Iterator<Item = &Record> {
        let together = self.together().into_iter().flat_map(Together::by_end);
        self.record().into_iter().chain(together.map(|(_, record)| record))
    }

    /// The mode that it is held in by holders of ours.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.together().map_or_else(|| self.record().map(|it| it.mode), Together::mode)
    }

    /// Forgets what has expired.
    pub fn expire(&mut self, now_us: u64) {
        self.key.take_if(|key| key.expires_us.is_some_and(|at| at <= now_us));
        self.together.expire(now_us);
        // A key that says "together" without anybody holds nothing.
        self.key.take_if(|key| key.token == together::token() && self.together.is_empty());
        if self.record().is_none() {
            self.record = None;
        }
        if self.together().is_none() {
            self.together = Together::default();
        }
        if self.queue_expires_us <= now_us {
            self.queue.clear();
        }
        if self.queue.is_empty() {
            self.queue_expires_us = 0;
        }
        self.asked.take_if(|(_, until_us)| *until_us <= now_us);
    }

    /// Does nobody hold it or wait for it? (It may still remember whom it asked.)
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.key.is_none() && self.queue.is_empty()
    }

    pub(super) fn absence(&self) -> Absence {
        if self.key.is_some() { Absence::Taken } else { Absence::Free }
    }

    /// Does somebody hold it by this token? A foreign client does by its value.
    pub(super) fn holds(&self, token: &Token) -> bool {
        match self.together() {
            Some(together) => together.get(token).is_some(),
            None => self.key.as_ref().is_some_and(|key| key.token == *token),
        }
    }

    /// May this session renew or release by this token? Not if the record says that another one holds it: where
    /// the value is the caller's choice (R25), a holder that was passed over would renew or release its successor.
    /// A key without a record is anyone's who knows its value.
    pub(super) fn is_owned(&self, token: &Token, at: &Context<'_>) -> bool {
        let others = |record: &Record| record.session != *at.caller;
        self.holds(token) && !(at.rules.on(25) && self.held_by(token).is_some_and(others))
    }

    /// May it be granted to anybody: is it free, or held together?
    pub(super) fn may_grant(&self) -> bool {
        self.key.is_none() || self.together().is_some()
    }

    /// Is there room for one more in this mode? The error: there never is beside the mode that it is in use in.
    ///
    /// # Errors
    /// The mode that it is in use in.
    pub fn has_room(&self, mode: Mode) -> Result<bool, Mode> {
        let Some(in_use) = self.mode() else { return Ok(self.key.is_none()) };
        check_beside(mode, in_use)?;
        Ok(match (mode, self.together()) {
            (Mode::Permits { count, of }, Some(together)) => {
                together.used() + u64::from(count) <= u64::from(of)
            }
            (Mode::Shared, Some(_)) => true,
            _ => false,
        })
    }

    /// Those who hold it beside the one whose lease ends first, as they stand now.
    pub(super) fn views_beside(&self, now_us: u64) -> impl Iterator<Item = HolderView> {
        let ends = self.together().into_iter().flat_map(Together::by_end).skip(1);
        ends.map(move |(end_us, record)| view(record, Some(end_us), now_us))
    }

    /// A holder beside the one of this token, if there is another.
    pub(super) fn another_view(&self, token: &Token, now_us: u64) -> Option<HolderView> {
        let mut ends = self.together()?.by_end();
        let (end_us, other) = ends.find(|(_, record)| record.token != *token)?;
        Some(view(other, Some(end_us), now_us))
    }

    /// Puts a holder in, until `end_us`; [`NEVER`]: without an end.
    pub(super) fn hold(&mut self, record: Record, end_us: u64) {
        if record.mode == Mode::Exclusive {
            let expires_us = Some(end_us).filter(|end_us| *end_us < NEVER);
            self.key = Some(Key { token: record.token.clone(), expires_us });
            self.record = Some(record);
            return;
        }
        if self.together().is_none() {
            (self.record, self.together) = (None, Together::default());
        }
        self.together.put(record, end_us);
        self.key = Some(Key { token: together::token(), expires_us: self.together.last_end_us() });
    }

    /// Takes the holder of this token away, if a record says who it is; and when its lease ends (µs).
    fn take_holder(&mut self, token: &Token) -> Option<(Record, u64)> {
        if self.together().is_some() {
            let (end_us, record) = self.together.remove(token)?;
            let expires_us = self.together.last_end_us();
            self.key = expires_us.map(|_| Key { token: together::token(), expires_us });
            return Some((record, end_us));
        }
        if self.record()?.token != *token {
            return None;
        }
        let end_us = self.key.take()?.expires_us.unwrap_or(NEVER);
        Some((self.record.take()?, end_us))
    }

    /// Takes the holder of this token away.
    pub(super) fn drop_holder(&mut self, token: &Token) {
        if self.take_holder(token).is_none() && self.together().is_none() {
            (self.key, self.record) = (None, None);
        }
    }

    /// Changes what stands about the holder of this token, and when its lease ends (µs): `change` gets both.
    pub(super) fn change_holder(
        &mut self,
        token: &Token,
        change: impl FnOnce(&mut Record, &mut u64),
    ) {
        if let Some((mut record, mut end_us)) = self.take_holder(token) {
            change(&mut record, &mut end_us);
            self.hold(record, end_us);
        }
    }

    /// Lets a hold cool until `end_us`: by its token nobody can touch it any more (R33).
    pub(super) fn cool(&mut self, token: &Token, now_us: u64, end_us: u64) {
        self.change_holder(token, |record, its_end_us| {
            (record.token, record.state) = (cooling_token(token), HoldState::Cooling);
            (record.least_until_us, record.delay_ms, record.endless) = (0, 0, false);
            // So that a repair of the lease is none (R15).
            record.lease_ms = (end_us - now_us).div_ceil(US_PER_MS);
            *its_end_us = end_us;
        });
    }

    /// Lets the holder of this token end at `most_us` at the latest; says in how many ms it will.
    pub(super) fn shorten(&mut self, token: &Token, now_us: u64, most_us: u64) -> u64 {
        if self.held_by(token).is_none()
            && let Some(key) = &mut self.key
        {
            // A foreign one.
            let end_us = key.expires_us.map_or(most_us, |at| at.min(most_us));
            key.expires_us = Some(end_us);
            return (end_us - now_us).div_ceil(US_PER_MS);
        }
        let mut end_us = most_us;
        self.change_holder(token, |_, end| {
            *end = most_us.min(*end);
            end_us = *end;
        });
        (end_us - now_us).div_ceil(US_PER_MS)
    }
}

/// Has its holder lost it or given it away already?
pub(super) fn over(record: &Record) -> Option<Absence> {
    match record.state {
        HoldState::Held => None,
        HoldState::Revoked => Some(Absence::Revoked),
        HoldState::Cooling | HoldState::HandedOver => Some(Absence::Taken),
    }
}

/// Is the lock not free, and yet nobody's?
pub(super) fn is_nobodys(record: &Record) -> bool {
    matches!(record.state, HoldState::Cooling | HoldState::HandedOver)
}

/// May a lock be asked for in one mode while it is in use in another? Permits stand beside permits of the same number
/// only. The error is the mode that is in use.
pub(super) fn check_beside(mode: Mode, in_use: Mode) -> Result<(), Mode> {
    let number = |mode| match mode {
        Mode::Permits { of, .. } => Some(of),
        Mode::Exclusive | Mode::Shared => None,
    };
    if number(mode) == number(in_use) { Ok(()) } else { Err(in_use) }
}

/// The holder; of several the one whose lease ends first.
pub(super) fn holder_of(lock: &Lock, now_us: u64) -> Option<HolderView> {
    let key = lock.key.as_ref()?;
    if let Some((end_us, record)) = lock.together().and_then(|together| together.by_end().next()) {
        return Some(view(record, Some(end_us), now_us));
    }
    Some(match lock.record() {
        Some(record) => view(record, key.expires_us, now_us),
        None => HolderView {
            token: key.token.clone(),
            ttl_ms: left_ms(key.expires_us, now_us),
            record: None,
        },
    })
}

pub(super) fn view(record: &Record, end_us: Option<u64>, now_us: u64) -> HolderView {
    let its = RecordView {
        session: record.session.clone(),
        fence: record.fence,
        lease_ms: record.lease_ms,
        grace_ms: record.grace_ms,
        held_ms: now_us.saturating_sub(record.since_us) / US_PER_MS,
        state: record.state,
        delay_ms: record.delay_ms,
        least_left_ms: record.least_until_us.saturating_sub(now_us).div_ceil(US_PER_MS),
        endless: record.endless,
        mode: record.mode,
        party: record.party.clone(),
    };
    HolderView { token: record.token.clone(), ttl_ms: left_ms(end_us, now_us), record: Some(its) }
}

fn left_ms(end_us: Option<u64>, now_us: u64) -> Option<u64> {
    end_us.map(|at| at.saturating_sub(now_us).div_ceil(US_PER_MS))
}
