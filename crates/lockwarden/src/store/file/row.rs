//! How locks and messages stand in the database: private mirrors of the core's types, as compact
//! bytes.
//!
//! The core's types are never serialised themselves: here each of their fields is named, so that a
//! field that is added there does not compile until its place here is decided, and with it
//! [`super::database::SCHEMA`]. Numbers are LEB128; texts are length-prefixed; whole parties and the
//! ids of sessions stand once per row, because the thousand tickets of one waiting process share
//! them.

use lockwarden_core::{
    Epoch, Message, Name, Run, SessionId, Token,
    command::{HoldState, HolderView, Mode, RecordView},
    party::{Party, Process, Tag},
    table::{Key, Lock, Record, Request, Ticket, Together},
};
use std::{collections::HashMap, hash::Hash, sync::Arc};

/// A row that is none of ours.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damaged;

type Read<T> = Result<T, Damaged>;

/// A lock as bytes.
pub(super) fn lock_to_bytes(lock: &Lock) -> Vec<u8> {
    let Lock { key, record, together, queue, queue_expires_us, asked } = lock;
    let mut out = Writer::default();
    out.option(key.as_ref(), |out, Key { token, expires_us }| {
        out.token(token);
        out.option(expires_us.as_ref(), |out, at| out.number(*at));
    });
    out.option(record.as_ref(), Writer::record);
    out.number(together.len() as u64);
    for (end_us, record) in together.by_token() {
        out.number(end_us);
        out.record(record);
    }
    out.number(queue.len() as u64);
    for ticket in queue {
        out.ticket(ticket);
    }
    out.number(*queue_expires_us);
    out.option(asked.as_ref(), |out, (token, until_us)| {
        out.token(token);
        out.number(*until_us);
    });
    out.bytes
}

/// The lock that [`lock_to_bytes`] wrote.
pub(super) fn lock_from_bytes(bytes: &[u8]) -> Read<Lock> {
    let mut input = Reader::new(bytes);
    let key = input.option(|input| {
        Ok(Key { token: input.token()?, expires_us: input.option(Reader::number)? })
    })?;
    let record = input.option(Reader::record)?;
    let holders = (0..input.count()?).map(|_| Ok((input.number()?, input.record()?)));
    let together: Together = holders.collect::<Read<_>>()?;
    let tickets = input.count()?;
    let mut queue = Vec::with_capacity(tickets);
    for _ in 0..tickets {
        queue.push(input.ticket()?);
    }
    let queue_expires_us = input.number()?;
    let asked = input.option(|input| Ok((input.token()?, input.number()?)))?;
    input.end()?;
    Ok(Lock { key, record, together, queue, queue_expires_us, asked })
}

/// When nothing of the lock is left, in µs on the store's clock; none: never by itself.
pub(super) fn lock_ends_us(lock: &Lock) -> Option<u64> {
    let key = match &lock.key {
        Some(key) => key.expires_us?,
        None => 0,
    };
    Some(key.max(lock.queue_expires_us).max(lock.asked.as_ref().map_or(0, |(_, until)| *until)))
}

/// A request for several names as bytes.
pub(super) fn request_to_bytes(request: &Request) -> Vec<u8> {
    let Request { token, session, names, modes, deadline_us, since_us, expires_us, party } =
        request;
    let mut out = Writer::default();
    out.token(token);
    out.session(session);
    out.number(names.len() as u64);
    names.iter().for_each(|name| out.text(name.as_str()));
    out.number(modes.len() as u64);
    modes.iter().for_each(|mode| out.mode(*mode));
    out.option(deadline_us.as_ref(), |out, at| out.number(*at));
    out.number(*since_us);
    out.number(*expires_us);
    out.party(party);
    out.bytes
}

/// The request that [`request_to_bytes`] wrote.
pub(super) fn request_from_bytes(bytes: &[u8]) -> Read<Request> {
    let mut input = Reader::new(bytes);
    let (token, session) = (input.token()?, input.session()?);
    let count = input.count()?;
    let name = |input: &mut Reader<'_>| Name::new(input.text()?).map_err(|_| Damaged);
    let names: Vec<Name> = (0..count).map(|_| name(&mut input)).collect::<Read<_>>()?;
    // A request has one, and so has all that looks at it.
    let names = if names.is_empty() { return Err(Damaged) } else { names.into() };
    let count = input.count()?;
    let modes = (0..count).map(|_| input.mode()).collect::<Read<_>>()?;
    let deadline_us = input.option(Reader::number)?;
    let (since_us, expires_us, party) = (input.number()?, input.number()?, input.party()?);
    input.end()?;
    Ok(Request { token, session, names, modes, deadline_us, since_us, expires_us, party })
}

const GRANT: u64 = 1;
const FIRST: u64 = 2;
const ASKING: u64 = 3;
const REVOKED: u64 = 4;
const RECALL: u64 = 5;

/// A message as bytes.
pub(super) fn message_to_bytes(message: &Message) -> Vec<u8> {
    let mut out = Writer::default();
    match message {
        Message::Grant { name, token, fence, lease_ms, epoch, first } => {
            out.number(GRANT);
            out.text(name.as_str());
            out.token(token);
            out.number(*fence);
            out.number(*lease_ms);
            out.text(epoch.as_str());
            out.option(first.as_ref(), Writer::token);
        }
        Message::First { name, token, holder } => {
            out.number(FIRST);
            out.text(name.as_str());
            out.token(token);
            out.holder(holder);
        }
        Message::Asking { name, token } => {
            out.number(ASKING);
            out.text(name.as_str());
            out.token(token);
        }
        Message::Revoked { name, token, after_ms } => {
            out.number(REVOKED);
            out.text(name.as_str());
            out.token(token);
            out.number(*after_ms);
        }
        Message::Recall { name, token, by } => {
            out.number(RECALL);
            out.text(name.as_str());
            out.token(token);
            out.party(by);
        }
    }
    out.bytes
}

/// The message that [`message_to_bytes`] wrote.
pub(super) fn message_from_bytes(bytes: &[u8]) -> Read<Message> {
    let mut input = Reader::new(bytes);
    let kind = input.number()?;
    let name = Name::new(input.text()?).map_err(|_| Damaged)?;
    let token = input.token()?;
    let message = match kind {
        GRANT => Message::Grant {
            name,
            token,
            fence: input.number()?,
            lease_ms: input.number()?,
            epoch: Epoch::new(input.text()?),
            first: input.option(Reader::token)?,
        },
        FIRST => Message::First { name, token, holder: Box::new(input.holder()?) },
        ASKING => Message::Asking { name, token },
        REVOKED => Message::Revoked { name, token, after_ms: input.number()? },
        RECALL => Message::Recall { name, token, by: input.party()? },
        _ => return Err(Damaged),
    };
    input.end()?;
    Ok(message)
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    sessions: Known<SessionId>,
    parties: Known<Arc<Party>>,
    runs: Known<Run>,
}

/// What stands in the row already, by its number.
struct Known<T> {
    /// The first of them, which are nearly all. What was read from one row is shared, so that comparing it compares
    /// addresses; to find it by its hash would cost more than all else.
    few: Vec<T>,
    /// The others.
    more: HashMap<T, u64>,
}

const FEW: usize = 8;

impl<T> Default for Known<T> {
    fn default() -> Known<T> {
        Known { few: Vec::new(), more: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Known<T> {
    /// The number of the value, from 1 on; none: it is noted only now.
    fn number(&mut self, value: &T) -> Option<u64> {
        let among_few = self.few.iter().position(|it| it == value);
        let known = among_few.map(|at| at as u64 + 1).or_else(|| self.more.get(value).copied());
        if known.is_none() && self.few.len() < FEW {
            self.few.push(value.clone());
        } else if known.is_none() {
            let number = (FEW + self.more.len()) as u64 + 1;
            self.more.insert(value.clone(), number);
        }
        known
    }
}

impl Writer {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn blob(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.blob(text.as_bytes());
    }

    fn token(&mut self, token: &Token) {
        self.blob(token.as_bytes());
    }

    fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Writer, &T)) {
        self.number(u64::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// 0 and the value where it comes first; from then on its number, from 1 on.
    fn once<T: Clone + Eq + Hash>(
        &mut self,
        known: fn(&mut Writer) -> &mut Known<T>,
        value: &T,
        write: impl FnOnce(&mut Writer, &T),
    ) {
        if let Some(number) = known(self).number(value) {
            return self.number(number);
        }
        self.number(0);
        write(self, value);
    }

    fn session(&mut self, session: &SessionId) {
        self.once(|out| &mut out.sessions, session, |out, session| out.text(session.as_str()));
    }

    fn run(&mut self, run: &Run) {
        self.once(|out| &mut out.runs, run, |out, run| out.text(run.as_str()));
    }

    fn party(&mut self, party: &Arc<Party>) {
        self.once(
            |out| &mut out.parties,
            party,
            |out, party| {
                let Party { owner, label, host, processes, site, tags } = &**party;
                out.text(owner);
                out.text(label);
                out.text(host);
                out.number(processes.len() as u64);
                for Process { namespace, pid, start } in &**processes {
                    out.text(namespace);
                    out.number(u64::from(*pid));
                    out.number(*start);
                }
                out.text(site);
                out.number(tags.len() as u64);
                for Tag { key, value } in &**tags {
                    out.text(key);
                    out.text(value);
                }
            },
        );
    }

    fn record(&mut self, record: &Record) {
        let Record {
            token,
            proof,
            session,
            fence,
            lease_ms,
            grace_ms,
            run,
            state,
            least_until_us,
            delay_ms,
            endless,
            mode,
            since_us,
            party,
        } = record;
        self.token(token);
        self.text(proof);
        self.session(session);
        self.number(*fence);
        self.number(*lease_ms);
        self.number(*grace_ms);
        self.run(run);
        self.state(*state);
        self.number(*least_until_us);
        self.number(*delay_ms);
        self.number(u64::from(*endless));
        self.mode(*mode);
        self.number(*since_us);
        self.party(party);
    }

    fn state(&mut self, state: HoldState) {
        self.number(match state {
            HoldState::Held => 0,
            HoldState::Revoked => 1,
            HoldState::Cooling => 2,
            HoldState::HandedOver => 3,
        });
    }

    fn mode(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.number(0),
            Mode::Shared => self.number(1),
            Mode::Permits { count, of } => {
                self.number(2);
                self.number(count.into());
                self.number(of.into());
            }
        }
    }

    fn ticket(&mut self, ticket: &Ticket) {
        let Ticket {
            token,
            proof,
            session,
            lease_ms,
            grace_ms,
            at_least_ms,
            delay_ms,
            endless,
            floor,
            deadline_us,
            since_us,
            several,
            mode,
            party,
        } = ticket;
        self.token(token);
        self.text(proof);
        self.session(session);
        self.number(*lease_ms);
        self.number(*grace_ms);
        self.number(*floor);
        self.option(deadline_us.as_ref(), |out, at| out.number(*at));
        self.number(*since_us);
        // Few have a minimum or a delay, or are endless, and a queue may be long.
        let keeps = *at_least_ms > 0 || *delay_ms > 0;
        self.number(u64::from(*several) | u64::from(keeps) << 1 | u64::from(*endless) << 2);
        if keeps {
            self.number(*at_least_ms);
            self.number(*delay_ms);
        }
        self.mode(*mode);
        self.party(party);
    }

    fn holder(&mut self, holder: &HolderView) {
        let HolderView { token, ttl_ms, record } = holder;
        self.token(token);
        self.option(ttl_ms.as_ref(), |out, ttl_ms| out.number(*ttl_ms));
        self.option(record.as_ref(), |out, record| {
            let RecordView {
                session,
                fence,
                lease_ms,
                grace_ms,
                held_ms,
                state,
                delay_ms,
                least_left_ms,
                endless,
                mode,
                party,
            } = record;
            out.session(session);
            out.number(*fence);
            out.number(*lease_ms);
            out.number(*grace_ms);
            out.number(*held_ms);
            out.state(*state);
            out.number(*delay_ms);
            out.number(*least_left_ms);
            out.number(u64::from(*endless));
            out.mode(*mode);
            out.party(party);
        });
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    sessions: Vec<SessionId>,
    parties: Vec<Arc<Party>>,
    runs: Vec<Run>,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, sessions: Vec::new(), parties: Vec::new(), runs: Vec::new() }
    }

    fn number(&mut self) -> Read<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.bytes.split_first().ok_or(Damaged)?;
            self.bytes = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Damaged)
    }

    /// A number of things that follow: each has a byte at least.
    fn count(&mut self) -> Read<usize> {
        let count = usize::try_from(self.number()?).map_err(|_| Damaged)?;
        if count > self.bytes.len() { Err(Damaged) } else { Ok(count) }
    }

    fn blob(&mut self) -> Read<&'a [u8]> {
        let length = self.count()?;
        let (blob, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Ok(blob)
    }

    fn text(&mut self) -> Read<&'a str> {
        std::str::from_utf8(self.blob()?).map_err(|_| Damaged)
    }

    fn token(&mut self) -> Read<Token> {
        Ok(Token::found(self.blob()?))
    }

    fn flag(&mut self) -> Read<bool> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damaged),
        }
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    fn once<T: Clone>(
        &mut self,
        known: fn(&mut Self) -> &mut Vec<T>,
        read: impl FnOnce(&mut Self) -> Read<T>,
    ) -> Read<T> {
        match self.number()? {
            0 => {
                let value = read(self)?;
                known(self).push(value.clone());
                Ok(value)
            }
            number => {
                let index = usize::try_from(number - 1).map_err(|_| Damaged)?;
                known(self).get(index).cloned().ok_or(Damaged)
            }
        }
    }

    fn session(&mut self) -> Read<SessionId> {
        self.once(|input| &mut input.sessions, |input| Ok(SessionId::new(input.text()?)))
    }

    fn run(&mut self) -> Read<Run> {
        self.once(|input| &mut input.runs, |input| Ok(Run::new(input.text()?)))
    }

    fn party(&mut self) -> Read<Arc<Party>> {
        self.once(
            |input| &mut input.parties,
            |input| {
                let owner = input.text()?.into();
                let label = input.text()?.into();
                let host = input.text()?.into();
                let count = input.count()?;
                let mut processes = Vec::with_capacity(count);
                for _ in 0..count {
                    processes.push(Process {
                        namespace: input.text()?.into(),
                        pid: u32::try_from(input.number()?).map_err(|_| Damaged)?,
                        start: input.number()?,
                    });
                }
                let processes = processes.into();
                let site = input.text()?.into();
                let count = input.count()?;
                let mut tags = Vec::with_capacity(count);
                for _ in 0..count {
                    tags.push(Tag { key: input.text()?.into(), value: input.text()?.into() });
                }
                let tags = tags.into();
                Ok(Arc::new(Party { owner, label, host, processes, site, tags }))
            },
        )
    }

    fn record(&mut self) -> Read<Record> {
        Ok(Record {
            token: self.token()?,
            proof: self.text()?.into(),
            session: self.session()?,
            fence: self.number()?,
            lease_ms: self.number()?,
            grace_ms: self.number()?,
            run: self.run()?,
            state: self.state()?,
            least_until_us: self.number()?,
            delay_ms: self.number()?,
            endless: self.flag()?,
            mode: self.mode()?,
            since_us: self.number()?,
            party: self.party()?,
        })
    }

    fn state(&mut self) -> Read<HoldState> {
        match self.number()? {
            0 => Ok(HoldState::Held),
            1 => Ok(HoldState::Revoked),
            2 => Ok(HoldState::Cooling),
            3 => Ok(HoldState::HandedOver),
            _ => Err(Damaged),
        }
    }

    fn mode(&mut self) -> Read<Mode> {
        let part = |input: &mut Self| u32::try_from(input.number()?).map_err(|_| Damaged);
        match self.number()? {
            0 => Ok(Mode::Exclusive),
            1 => Ok(Mode::Shared),
            2 => Ok(Mode::Permits { count: part(self)?, of: part(self)? }),
            _ => Err(Damaged),
        }
    }

    fn ticket(&mut self) -> Read<Ticket> {
        let (token, proof, session) = (self.token()?, self.text()?.into(), self.session()?);
        let (lease_ms, grace_ms, floor) = (self.number()?, self.number()?, self.number()?);
        let (deadline_us, since_us) = (self.option(Reader::number)?, self.number()?);
        let flags = self.number()?;
        let (at_least_ms, delay_ms) = match flags {
            0 | 1 | 4 | 5 => (0, 0),
            2 | 3 | 6 | 7 => (self.number()?, self.number()?),
            _ => return Err(Damaged),
        };
        Ok(Ticket {
            token,
            proof,
            session,
            lease_ms,
            grace_ms,
            at_least_ms,
            delay_ms,
            endless: flags & 4 == 4,
            floor,
            deadline_us,
            since_us,
            several: flags & 1 == 1,
            mode: self.mode()?,
            party: self.party()?,
        })
    }

    fn holder(&mut self) -> Read<HolderView> {
        let token = self.token()?;
        let ttl_ms = self.option(Reader::number)?;
        let record = self.option(|input| {
            Ok(RecordView {
                session: input.session()?,
                fence: input.number()?,
                lease_ms: input.number()?,
                grace_ms: input.number()?,
                held_ms: input.number()?,
                state: input.state()?,
                delay_ms: input.number()?,
                least_left_ms: input.number()?,
                endless: input.flag()?,
                mode: input.mode()?,
                party: input.party()?,
            })
        })?;
        Ok(HolderView { token, ttl_ms, record })
    }

    fn end(self) -> Read<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(Damaged) }
    }
}

#[cfg(test)]
mod tests;
