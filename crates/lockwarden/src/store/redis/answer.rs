//! What a call of the script answers, as the replies of the table.
//!
//! An answer is a code and as many values as the code has, all in one flat array: nested arrays cost
//! the server and us more than the rest of a reply.

use super::{keys::Keyspace, resp::Value, trouble::Context, wire};
use crate::{error::StoreError, store::Call};
use bytes::Bytes;
use lockwarden_core::{
    Command, Epoch, Name, Reply, Run, SessionId, Token,
    command::{
        Absence, CycleStep, HoldState, HolderView, LockView, Mode, Reason, RecordView, Refusal,
        TicketView,
    },
    party::Party,
};
use std::sync::Arc;

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// All of them.
            #[cfg(test)]
            pub(super) const ALL: &[$name] = &[$($name::$variant),*];

            fn of(number: i64) -> Option<$name> {
                match number {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// Its name in the scripts.
            #[cfg(test)]
            pub(super) fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }
    };
}

codes! {
    /// What a call or a command came to; the values that follow stand behind each.
    Code {
        /// Epoch, now (µs); then the answers.
        CarriedOut = 0 "CARRIED_OUT",
        /// Nothing was carried out (R4).
        Stale = 1 "STALE",
        /// Fence, lease.
        Granted = 10 "GRANTED",
        /// Rest of the guard (ms), position (-1: none), [`Holder`].
        Refused = 11 "REFUSED",
        /// Lease.
        Renewed = 12 "RENEWED",
        /// Lease, rest of the guard (ms).
        Guarded = 13 "GUARDED",
        /// [`Absent`].
        NotHeld = 14 "NOT_HELD",
        /// Nothing.
        Released = 15 "RELEASED",
        /// Was it granted, and released (0, 1)?
        Cancelled = 16 "CANCELLED",
        /// When it ends (ms).
        Revoked = 17 "REVOKED",
        /// Run, subscribers.
        Beat = 18 "BEAT",
        /// Nothing: what counts is the message.
        Published = 19 "PUBLISHED",
        /// [`Holder`], is it alive (-1: none of ours), the number of other holders; for each of them [`Holder`], is it
        /// alive; the number of tickets; for each of them token, session, is it alive, waited (ms), left (ms; -1: for
        /// ever), party, mode.
        Shown = 20 "SHOWN",
        /// Nothing.
        Unsubscribed = 21 "UNSUBSCRIBED",
        /// Nothing.
        More = 22 "MORE",
        /// Nothing.
        FloorAhead = 23 "FLOOR_AHEAD",
        /// The server's words.
        Failed = 24 "FAILED",
        /// Fence; the lease is the one that was asked for.
        GrantedAsAsked = 25 "GRANTED_AS_ASKED",
        /// How many steps; for each of them key, held (ms), party.
        Deadlock = 26 "DEADLOCK",
        /// Rest of the guard (ms), position (-1: none), which of the locks is kept for another, the number of
        /// holders; for each of them which lock, [`Holder`].
        RefusedSeveral = 27 "REFUSED_SEVERAL",
        /// Which of the locks, the mode that it is in use in.
        OtherMode = 28 "OTHER_MODE",
        /// Fence.
        Converted = 29 "CONVERTED",
        /// Nothing.
        HandedOver = 30 "HANDED_OVER",
        /// Nothing.
        Left = 31 "LEFT",
        /// Lease, does the caller hold it (0, 1), rest of the guard (ms).
        Extended = 32 "EXTENDED",
        /// Nothing.
        Endless = 33 "ENDLESS",
        /// Nothing.
        Recalled = 40 "RECALLED",
        /// Nothing.
        HeldByForeign = 41 "HELD_BY_FOREIGN",
    }
}

codes! {
    /// What stands about a holder.
    Holder {
        /// Nothing follows.
        Nobody = 0 "NOBODY",
        /// Token, TTL (ms; -1: none).
        Foreign = 1 "FOREIGN",
        /// Token, TTL, session, fence, lease, grace, held (ms), [`State`], party, mode, delay (ms), rest of the minimum (ms),
        /// endless (0, 1).
        Ours = 2 "OURS",
    }
}

codes! {
    /// What has become of a hold.
    State {
        /// [`HoldState::Held`].
        Held = 0 "IS_HELD",
        /// [`HoldState::Revoked`].
        Revoked = 1 "IS_REVOKED",
        /// [`HoldState::Cooling`].
        Cooling = 2 "IS_COOLING",
        /// [`HoldState::HandedOver`].
        HandedOver = 3 "IS_HANDED_OVER",
    }
}

/// The state of that number; none: it is not one.
pub(super) fn hold_state(number: i64) -> Option<HoldState> {
    Some(match State::of(number)? {
        State::Held => HoldState::Held,
        State::Revoked => HoldState::Revoked,
        State::Cooling => HoldState::Cooling,
        State::HandedOver => HoldState::HandedOver,
    })
}

codes! {
    /// Why there is nothing of a token.
    Absent {
        /// [`Absence::Free`].
        Free = 0 "FREE",
        /// [`Absence::Taken`].
        Taken = 1 "TAKEN",
        /// [`Absence::Revoked`].
        Revoked = 2 "WAS_REVOKED",
    }
}

/// The answers to the calls of a batch.
pub(super) struct Answers {
    /// The epoch; none: nothing was carried out.
    pub(super) epoch: Option<Epoch>,
    /// Each call's answer. A beat that is heard through the subscription has none here.
    pub(super) answers: Vec<(u64, Result<Reply, StoreError>)>,
    /// What stood behind them.
    pub(super) rest: Vec<Value>,
}

/// The answer is not what the protocol says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads answers; keeps what comes again and again, so that it is made once.
#[derive(Debug)]
pub(super) struct Reader {
    keyspace: Arc<Keyspace>,
    run: Run,
    epoch: Epoch,
    party: (Bytes, Arc<Party>),
}

impl Reader {
    /// A reader of a link to that run of the server.
    pub(super) fn new(keyspace: Arc<Keyspace>, run: Run) -> Reader {
        Reader { keyspace, run, epoch: Epoch::new(""), party: (Bytes::new(), Arc::default()) }
    }

    /// The epoch of that text.
    pub(super) fn epoch(&mut self, text: &str) -> Epoch {
        if self.epoch.as_str() != text {
            self.epoch = Epoch::new(text);
        }
        self.epoch.clone()
    }

    /// The run of that text.
    pub(super) fn run(&self, text: &str) -> Run {
        if self.run.as_str() == text { self.run.clone() } else { Run::new(text) }
    }

    /// The party of that text.
    pub(super) fn party(&mut self, text: &Bytes) -> Arc<Party> {
        if self.party.0 != *text {
            self.party = (text.clone(), Arc::new(wire::decode(text)));
        }
        self.party.1.clone()
    }

    /// The answers to these calls.
    pub(super) fn answers(
        &mut self,
        context: &Context,
        calls: &[Call],
        reply: Vec<Value>,
    ) -> Result<Answers, Malformed> {
        let mut fields = Fields(reply.into_iter());
        if fields.code()? == Code::Stale {
            let answers = calls.iter().map(|call| (call.id, Ok(Reply::Stale))).collect();
            return Ok(Answers { epoch: None, answers, rest: Vec::new() });
        }
        let epoch = self.epoch(fields.text()?.as_str()?);
        let now_us = fields.count()?;
        let mut answers = Vec::with_capacity(calls.len());
        for call in calls {
            if let Some(answer) = self.answer(context, call, &mut fields, now_us)? {
                answers.push((call.id, answer));
            }
        }
        Ok(Answers { epoch: Some(epoch), answers, rest: fields.0.collect() })
    }

    fn answer(
        &mut self,
        context: &Context,
        call: &Call,
        fields: &mut Fields,
        now_us: u64,
    ) -> Result<Option<Result<Reply, StoreError>>, Malformed> {
        let reply = match fields.code()? {
            Code::Granted => Reply::Granted { fence: fields.count()?, lease_ms: fields.count()? },
            Code::GrantedAsAsked => match &call.command {
                Command::Acquire(ask) => {
                    Reply::Granted { fence: fields.count()?, lease_ms: ask.lease_ms }
                }
                _ => return Err(Malformed),
            },
            Code::Refused => {
                let (guard_ms, position) = (fields.count()?, fields.maybe()?);
                let holder = self.holder(fields)?;
                let reason = reason(guard_ms, holder.as_ref());
                Reply::Refused(Refusal { reason, at: 0, holder, others: Vec::new(), position })
            }
            Code::RefusedSeveral => {
                let (guard_ms, position) = (fields.count()?, fields.maybe()?);
                let (kept_at, count) = (fields.index()?, fields.index()?);
                let mut holders = Vec::new();
                for _ in 0..count {
                    holders.push((fields.index()?, self.holder(fields)?.ok_or(Malformed)?));
                }
                let (at, holder) = match holders.is_empty() {
                    true => (kept_at, None),
                    false => {
                        let (at, holder) = holders.remove(0);
                        (at, Some(holder))
                    }
                };
                let reason = reason(guard_ms, holder.as_ref());
                Reply::Refused(Refusal { reason, at, holder, others: holders, position })
            }
            Code::OtherMode => Reply::OtherMode { at: fields.index()?, in_use: fields.mode()? },
            Code::Deadlock => {
                let asked = call.command.name().ok_or(Malformed)?;
                Reply::Deadlock(self.cycle(asked, fields)?)
            }
            Code::Renewed => Reply::Renewed { lease_ms: fields.count()? },
            Code::Guarded => {
                Reply::Guarded { lease_ms: fields.count()?, guard_ms: fields.count()? }
            }
            Code::NotHeld => Reply::NotHeld(match Absent::of(fields.int()?).ok_or(Malformed)? {
                Absent::Free => Absence::Free,
                Absent::Taken => Absence::Taken,
                Absent::Revoked => Absence::Revoked,
            }),
            Code::Released => Reply::Released,
            Code::Cancelled => Reply::Cancelled { released: fields.int()? != 0 },
            Code::Revoked => Reply::Revoked { after_ms: fields.count()? },
            Code::Beat => {
                let run = self.run(fields.text()?.as_str()?);
                Reply::Beat { run, now_us, subscribers: fields.count()? }
            }
            Code::Published => return Ok(None),
            Code::Shown => Reply::Shown(Box::new(self.shown(fields)?)),
            Code::Recalled => Reply::Recalled,
            Code::Converted => Reply::Converted { fence: fields.count()? },
            Code::HandedOver => Reply::HandedOver,
            Code::Extended => Reply::Extended {
                lease_ms: fields.count()?,
                own: fields.int()? != 0,
                guard_ms: fields.count()?,
            },
            Code::Endless => Reply::Endless,
            Code::Left => Reply::Left,
            Code::HeldByForeign => Reply::Foreign,
            Code::Unsubscribed => Reply::Unsubscribed,
            Code::More => Reply::More,
            Code::FloorAhead => Reply::FloorAhead { now_us },
            Code::Failed => return Ok(Some(context.command_failed(&fields.text()?.0))),
            Code::CarriedOut | Code::Stale => return Err(Malformed),
        };
        Ok(Some(Ok(reply)))
    }

    /// `asked`: the lock that the acquire is about.
    fn cycle(&mut self, asked: &Name, fields: &mut Fields) -> Result<Vec<CycleStep>, Malformed> {
        (0..fields.count()?)
            .map(|_| {
                // What a foreign client wrote is no reason to break the link.
                let name = self.keyspace.name(&fields.text()?.0).unwrap_or_else(|| asked.clone());
                let (held_ms, party) = (fields.count()?, self.party(&fields.text()?.0));
                Ok(CycleStep { name, held_ms, party })
            })
            .collect()
    }

    fn holder(&mut self, fields: &mut Fields) -> Result<Option<HolderView>, Malformed> {
        let kind = Holder::of(fields.int()?).ok_or(Malformed)?;
        if kind == Holder::Nobody {
            return Ok(None);
        }
        let token = fields.token()?;
        let ttl_ms = fields.maybe()?;
        let record = match kind {
            Holder::Ours => Some(RecordView {
                session: fields.session()?,
                fence: fields.count()?,
                lease_ms: fields.count()?,
                grace_ms: fields.count()?,
                held_ms: fields.count()?,
                state: hold_state(fields.int()?).ok_or(Malformed)?,
                party: self.party(&fields.text()?.0),
                mode: fields.mode()?,
                delay_ms: fields.count()?,
                least_left_ms: fields.count()?,
                endless: fields.int()? != 0,
            }),
            Holder::Foreign | Holder::Nobody => None,
        };
        Ok(Some(HolderView { token, ttl_ms, record }))
    }

    fn shown(&mut self, fields: &mut Fields) -> Result<LockView, Malformed> {
        let holder = self.holder(fields)?;
        let holder_alive = fields.maybe()?.map(|alive| alive != 0);
        let mut beside = Vec::new();
        for _ in 0..fields.count()? {
            beside.push((self.holder(fields)?.ok_or(Malformed)?, fields.int()? != 0));
        }
        let mut queue = Vec::new();
        for _ in 0..fields.count()? {
            queue.push(TicketView {
                token: fields.token()?,
                session: fields.session()?,
                alive: fields.int()? != 0,
                waited_ms: fields.count()?,
                left_ms: fields.maybe()?,
                several: fields.int()? != 0,
                party: self.party(&fields.text()?.0),
                mode: fields.mode()?,
            });
        }
        Ok(LockView { holder, holder_alive, beside, queue })
    }
}

/// Nobody holds it, and no guard runs: then it is kept for another.
fn reason(guard_ms: u64, holder: Option<&HolderView>) -> Reason {
    match (guard_ms, holder) {
        (0, Some(_)) => Reason::Held,
        (0, None) => Reason::Kept,
        (guard_ms, _) => Reason::Guard { guard_ms },
    }
}

/// The values of a reply, one after the other.
struct Fields(std::vec::IntoIter<Value>);

struct Text(Bytes);

impl Text {
    fn as_str(&self) -> Result<&str, Malformed> {
        std::str::from_utf8(&self.0).map_err(|_| Malformed)
    }
}

impl Fields {
    fn int(&mut self) -> Result<i64, Malformed> {
        self.0.next().and_then(|value| value.int()).ok_or(Malformed)
    }

    fn code(&mut self) -> Result<Code, Malformed> {
        Code::of(self.int()?).ok_or(Malformed)
    }

    /// A number that is not negative. The script hands some of them through as the text that they
    /// came as.
    fn count(&mut self) -> Result<u64, Malformed> {
        match self.0.next() {
            Some(Value::Int(number)) => u64::try_from(number).map_err(|_| Malformed),
            Some(value) => value.text().and_then(|text| text.parse().ok()).ok_or(Malformed),
            None => Err(Malformed),
        }
    }

    fn index(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.count()?).map_err(|_| Malformed)
    }

    /// A number; none: a negative one.
    fn maybe(&mut self) -> Result<Option<u64>, Malformed> {
        Ok(u64::try_from(self.int()?).ok())
    }

    fn text(&mut self) -> Result<Text, Malformed> {
        match self.0.next() {
            Some(Value::Text(bytes)) => Ok(Text(bytes)),
            _ => Err(Malformed),
        }
    }

    fn mode(&mut self) -> Result<Mode, Malformed> {
        wire::decode_mode(&self.text()?.0).ok_or(Malformed)
    }

    fn token(&mut self) -> Result<Token, Malformed> {
        Ok(Token::found(&self.text()?.0))
    }

    fn session(&mut self) -> Result<SessionId, Malformed> {
        // What a foreign client wrote is no reason to break the link.
        Ok(SessionId::new(&String::from_utf8_lossy(&self.text()?.0)))
    }
}

/// The names of the calls that are in both batches: their order counts.
pub(super) fn share_a_name(one: &[Call], other: &[Call]) -> bool {
    let names = |calls: &'_ [Call]| -> std::collections::HashSet<_> {
        calls.iter().flat_map(|call| call.command.names().cloned()).collect()
    };
    !names(one).is_disjoint(&names(other))
}
