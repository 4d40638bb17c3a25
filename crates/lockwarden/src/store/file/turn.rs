//! One transaction: a batch of commands, carried out as the table says, and what it tells whom.

use super::{
    database::{Database, MetaRow, from_sql, to_sql},
    epoch::{SWEPT_SESSIONS, boot_us},
    fail::Failure,
    row,
    session::Session,
};
use crate::{error::Trouble, store::Call};
use lockwarden_core::{
    Epoch, Message, Name, Reply, Rules, SessionId, Token,
    deadlock::{Place, Places, WaitChange},
    limits::MOST_PLACES,
    table::{Context, Effects, Lock, Locks, Messages, Request, enter, step},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

/// How often what is left over is looked for, in µs (G9: within 60 s).
const SWEEP_EVERY_US: u64 = 20_000_000;
/// Locks that one sweep looks at; where there are more, the next part follows soon.
const SWEPT_LOCKS: usize = 1_000;
/// How soon, in µs.
const SWEEP_ON_US: u64 = 50_000;

/// What a transaction came to.
#[derive(Debug)]
pub(super) struct Done {
    /// The epoch that it was in.
    pub(super) epoch: Epoch,
    /// What was said to the session before this transaction: older than every answer.
    pub(super) before: Vec<Message>,
    /// The answers, in order.
    pub(super) answers: Vec<(u64, Reply)>,
    /// What the session said to itself.
    pub(super) after: Vec<Message>,
    /// Who has new messages.
    pub(super) hints: BTreeSet<SessionId>,
}

/// Carries out the calls in one transaction: all of them, or none.
///
/// Messages to the session that came before are taken out first and stand before the answers: a
/// grant that was older than a beat's answer, and came after it, would be believed from that beat on
/// for longer than its lease lasts (R22).
pub(super) fn run(
    database: &Database,
    session: &Session,
    delivered: u64,
    calls: &[Call],
) -> Result<Done, Failure> {
    database.transaction(|| {
        database.check()?;
        session.visible().map_err(|why| Failure::Fatal(database.site().hidden(why)))?;
        let caller = session.id();
        let may_hold = calls.iter().any(|call| call.may_hold);
        let stored = database.meta_or_new(caller, may_hold)?;
        let mut turn = Turn::new(database, session, stored.clone());
        let before = turn.inbox(delivered)?;
        let mut messages = Messages::new();
        let mut answers = Vec::with_capacity(calls.len());
        let mut opened = Opened { database, locks: BTreeMap::new(), failure: None };
        for call in calls {
            answers.push((call.id, turn.carry_out(call, &mut opened, &mut messages)?));
        }
        for (name, (stored, lock)) in &mut opened.locks {
            lock.expire(turn.now_us);
            turn.store(name.as_str().as_bytes(), stored.as_deref(), lock)?;
        }
        let (after, hints) = turn.post(messages)?;
        turn.sweep()?;
        turn.bury()?;
        if turn.row != stored {
            database.set_meta(&turn.row)?;
        }
        Ok(Done { epoch: turn.row.meta.epoch, before, answers, after, hints })
    })
}

/// Reads the messages after number `delivered`, without a transaction: nothing is removed, and no
/// writer is in the way. Says the number of the last one.
pub(super) fn read_inbox(
    database: &Database,
    session: &SessionId,
    delivered: u64,
) -> Result<(Vec<Message>, u64), Failure> {
    let sql = "SELECT number, body FROM inbox WHERE session = ?1 AND number > ?2 ORDER BY number";
    let rows = database.rows(sql, (session.as_str(), to_sql(delivered)), |row| {
        Ok((from_sql(row.get(0)?), row::message_from_bytes(row.get_ref(1)?.as_blob()?)))
    })?;
    let last = rows.last().map_or(delivered, |(number, _)| *number);
    let messages = rows.into_iter().map(|(_, message)| message);
    let messages: Result<_, _> = messages.collect();
    Ok((messages.map_err(|_| damaged(database, "a message"))?, last))
}

/// One page of the names that hold anything, after `after`.
pub(super) fn names(
    database: &Database,
    after: &[u8],
    most: usize,
) -> Result<(Vec<Name>, Option<Vec<u8>>), Failure> {
    let Some(meta) = database.meta()? else { return Ok((Vec::new(), None)) };
    let now_us = now_us(&meta);
    let sql = "SELECT name, ends_us FROM locks WHERE name > ?1 ORDER BY name LIMIT ?2";
    let rows: Vec<(Vec<u8>, Option<i64>)> =
        database.rows(sql, (after, to_sql(most as u64)), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let next = rows.last().filter(|_| rows.len() == most).map(|(name, _)| name.clone());
    let living = rows.iter().filter(|(_, ends_us)| ends_us.is_none_or(|at| from_sql(at) > now_us));
    let names: Result<_, _> = living.map(|(name, _)| Name::from_bytes(name)).collect();
    Ok((names.map_err(|_| damaged(database, "a name"))?, next))
}

/// Removes what a session that ends was told and will not read (G9).
pub(super) fn empty_inbox(database: &Database, session: &SessionId) -> Result<(), Failure> {
    let sql = "SELECT EXISTS (SELECT 1 FROM inbox WHERE session = ?1)";
    let some: Option<bool> = database.row(sql, [session.as_str()], |row| row.get(0))?;
    if some != Some(true) {
        return Ok(());
    }
    database.transaction(|| {
        database.check()?;
        database.execute("DELETE FROM inbox WHERE session = ?1", [session.as_str()])?;
        Ok(())
    })
}

/// The store's clock, in µs.
fn now_us(row: &MetaRow) -> u64 {
    boot_us().saturating_add_signed(row.clock_us)
}

fn damaged(database: &Database, what: &str) -> Failure {
    let detail = format!("{what} in the database cannot be read");
    Failure::Fatal(database.site().place.unavailable(Trouble::Protocol, detail))
}

/// What stands about a lock: the bytes of its row, and what they say.
fn read_lock(database: &Database, key: &[u8]) -> Result<(Option<Vec<u8>>, Lock), Failure> {
    let sql = "SELECT body FROM locks WHERE name = ?1";
    let stored: Option<Vec<u8>> = database.row(sql, [key], |row| row.get(0))?;
    let lock = match &stored {
        Some(bytes) => row::lock_from_bytes(bytes).map_err(|_| damaged(database, "a lock"))?,
        None => Lock::default(),
    };
    Ok((stored, lock))
}

/// The locks that the commands of a transaction look at, as they stand in the database: each is read once and written once,
/// for a row is as long as many hold the lock or wait for it. A failure ends the transaction.
struct Opened<'a> {
    database: &'a Database,
    /// With the bytes of their rows.
    locks: BTreeMap<Name, (Option<Vec<u8>>, Lock)>,
    failure: Option<Failure>,
}

impl Opened<'_> {
    fn found<T>(&mut self, result: Result<Option<T>, Failure>) -> Option<T> {
        result.unwrap_or_else(|failure| {
            self.failure = Some(failure);
            None
        })
    }

    /// The first of these requests.
    fn first_request(&mut self, sql: &str, parameters: impl rusqlite::Params) -> Option<Request> {
        let row = self.database.row(sql, parameters, |row| row.get::<_, Vec<u8>>(0));
        let bytes = self.found(row)?;
        let request = row::request_from_bytes(&bytes);
        self.found(request.map(Some).map_err(|_| damaged(self.database, "a request")))
    }

    fn change(&mut self, sql: &str, parameters: impl rusqlite::Params) {
        let done = self.database.execute(sql, parameters);
        self.found(done.map(|_| None::<()>));
    }
}

impl Locks for Opened<'_> {
    fn lock(&mut self, name: &Name) -> &mut Lock {
        if !self.locks.contains_key(name) {
            let read = read_lock(self.database, name.as_str().as_bytes());
            let opened = self.found(read.map(Some)).unwrap_or_default();
            self.locks.insert(name.clone(), opened);
        }
        &mut self.locks.entry(name.clone()).or_default().1
    }

    fn places(&mut self, owner: &str) -> Option<Places> {
        let sql = "SELECT name, token, until_us FROM waits WHERE owner = ?1";
        let rows = self.database.rows(sql, [owner], |row| {
            let (name, token): (Vec<u8>, Vec<u8>) = (row.get(0)?, row.get(1)?);
            Ok((name, token, from_sql(row.get(2)?)))
        });
        let mut places = Places::default();
        for (name, token, until_us) in self.found(rows.map(Some))? {
            let name = Name::from_bytes(&name).map_err(|_| damaged(self.database, "a name"));
            let name = self.found(name.map(Some))?;
            places.all.insert(Place { name, token: Token::found(&token) });
            places.until_us = until_us;
        }
        Some(places)
    }

    fn request(&mut self, token: &Token) -> Option<Request> {
        self.first_request("SELECT body FROM requests WHERE token = ?1", [token.as_bytes()])
    }

    fn oldest_request(&mut self) -> Option<Request> {
        self.first_request("SELECT body FROM requests ORDER BY since_us, token LIMIT 1", [])
    }

    fn keep_request(&mut self, request: Request) {
        let sql = "INSERT OR REPLACE INTO requests (token, since_us, ends_us, body) VALUES (?1, ?2, ?3, ?4)";
        let (since_us, ends_us) = (to_sql(request.since_us), to_sql(request.expires_us));
        let body = row::request_to_bytes(&request);
        self.change(sql, (request.token.as_bytes(), since_us, ends_us, body));
    }

    fn forget_request(&mut self, token: &Token) {
        self.change("DELETE FROM requests WHERE token = ?1", [token.as_bytes()]);
    }
}

struct Turn<'a> {
    database: &'a Database,
    session: &'a Session,
    row: MetaRow,
    now_us: u64,
    /// What was found out about sessions in this transaction, asked once each.
    living: RefCell<BTreeMap<SessionId, bool>>,
}

impl<'a> Turn<'a> {
    fn new(database: &'a Database, session: &'a Session, row: MetaRow) -> Turn<'a> {
        let now_us = now_us(&row);
        Turn { database, session, row, now_us, living: RefCell::default() }
    }

    fn alive(&self, id: &SessionId) -> bool {
        if id == self.session.id() {
            return true;
        }
        if let Some(known) = self.living.borrow().get(id) {
            return *known;
        }
        let alive = self.session.folder().alive(id);
        self.living.borrow_mut().insert(id.clone(), alive);
        alive
    }

    fn carry_out(
        &mut self,
        call: &Call,
        opened: &mut Opened<'_>,
        messages: &mut Messages,
    ) -> Result<Reply, Failure> {
        let run = &self.database.site().run;
        let subscribers = |id: &SessionId| u64::from(self.alive(id));
        let at = Context {
            now_us: self.now_us,
            run,
            // Only for a new epoch, which has begun by now.
            uptime_s: i64::MAX,
            caller: self.session.id(),
            caller_run: run,
            subscribers: &subscribers,
            in_common: 1,
            rules: Rules::ALL,
        };
        let Some(mut meta) = enter(Some(self.row.meta.clone()), &at) else {
            return Ok(Reply::Stale);
        };
        let mut effects = Effects::default();
        let reply = step(&mut meta, opened, &at, &call.command, &mut effects);
        if let Some(failure) = opened.failure.take() {
            return Err(failure);
        }
        self.change_waits(effects.waits)?;
        messages.extend(effects.messages);
        self.row.meta = meta;
        Ok(reply)
    }

    /// Writes what has changed; a lock that nobody holds or waits for has no row (G9). Whom it asked
    /// last (R16) is not worth one: at worst a holder is asked again.
    fn store(&self, key: &[u8], stored: Option<&[u8]>, lock: &Lock) -> Result<(), Failure> {
        if lock.is_idle() {
            if stored.is_some() {
                self.database.execute("DELETE FROM locks WHERE name = ?1", [key])?;
            }
            return Ok(());
        }
        let body = row::lock_to_bytes(lock);
        if stored != Some(&body[..]) {
            let ends_us = row::lock_ends_us(lock).map(to_sql);
            let sql = "INSERT OR REPLACE INTO locks (name, ends_us, body) VALUES (?1, ?2, ?3)";
            self.database.execute(sql, (key, ends_us, body))?;
        }
        Ok(())
    }

    /// Writes who waits where (R37), as [`WaitChange::apply`] does.
    fn change_waits(&self, changes: Vec<WaitChange>) -> Result<(), Failure> {
        for change in changes {
            let (owner, Place { name, token }, until_us) = match change {
                WaitChange::Begins(owner, place, until_us) => (owner, place, Some(until_us)),
                WaitChange::Ends(owner, place) => (owner, place, None),
            };
            let (owner, name, token) = (&*owner, name.as_str().as_bytes(), token.as_bytes());
            let Some(until_us) = until_us else {
                let sql = "DELETE FROM waits WHERE owner = ?1 AND name = ?2 AND token = ?3";
                self.database.execute(sql, (owner, name, token))?;
                continue;
            };
            let sql = "DELETE FROM waits WHERE owner = ?1 \
                       AND (SELECT count(*) FROM waits WHERE owner = ?1) >= ?4 \
                       AND NOT EXISTS (SELECT 1 FROM waits WHERE owner = ?1 AND name = ?2 AND token = ?3)";
            self.database.execute(sql, (owner, name, token, to_sql(MOST_PLACES as u64)))?;
            let sql = "INSERT OR REPLACE INTO waits VALUES (?1, ?2, ?3, ?4)";
            self.database.execute(sql, (owner, name, token, to_sql(until_us)))?;
            let sql = "UPDATE waits SET until_us = ?2 WHERE owner = ?1";
            self.database.execute(sql, (owner, to_sql(until_us)))?;
        }
        Ok(())
    }

    /// Takes the session's messages out.
    fn inbox(&self, delivered: u64) -> Result<Vec<Message>, Failure> {
        let id = self.session.id();
        let (messages, last) = read_inbox(self.database, id, delivered)?;
        // Those that were read before stand there, too.
        if last > 0 {
            self.database.execute("DELETE FROM inbox WHERE session = ?1", [id.as_str()])?;
        }
        Ok(messages)
    }

    /// Leaves each message with its session. A dead one is told nothing, and need not be.
    fn post(&self, messages: Messages) -> Result<(Vec<Message>, BTreeSet<SessionId>), Failure> {
        let (mut after, mut hints) = (Vec::new(), BTreeSet::new());
        // A session that sleeps for hours is asked the same question every second, but reads once.
        let sql = "INSERT INTO inbox (session, number, body) \
                   SELECT ?1, (SELECT coalesce(max(number), 0) + 1 FROM inbox WHERE session = ?1), ?2 \
                   WHERE NOT ?3 OR NOT EXISTS \
                   (SELECT 1 FROM inbox WHERE session = ?1 AND body = ?2)";
        for (id, message) in messages {
            if id == *self.session.id() {
                after.push(message);
            } else if self.alive(&id) {
                let asking = matches!(message, Message::Asking { .. });
                let body = row::message_to_bytes(&message);
                self.database.execute(sql, (id.as_str(), body, asking))?;
                hints.insert(id);
            }
        }
        Ok((after, hints))
    }

    /// From time to time, whoever comes by removes what nobody else will: locks that have expired,
    /// and the files and messages of sessions that have died (G9).
    fn sweep(&mut self) -> Result<(), Failure> {
        if self.now_us < self.row.sweep_us {
            return Ok(());
        }
        let sql = "SELECT name, ends_us FROM locks WHERE name > ?1 ORDER BY name LIMIT ?2";
        let rows: Vec<(Vec<u8>, Option<i64>)> =
            self.database.rows(sql, (&self.row.sweep_from, to_sql(SWEPT_LOCKS as u64)), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        for (name, ends_us) in &rows {
            if ends_us.is_some_and(|at| from_sql(at) <= self.now_us) {
                self.database.execute("DELETE FROM locks WHERE name = ?1", [name])?;
            }
        }
        if rows.len() == SWEPT_LOCKS
            && let Some((last, _)) = rows.into_iter().next_back()
        {
            self.row.sweep_from = last;
            self.row.sweep_us = self.now_us + SWEEP_ON_US;
            return Ok(());
        }
        let sql = "DELETE FROM waits WHERE until_us <= ?1";
        self.database.execute(sql, [to_sql(self.now_us)])?;
        let sql = "DELETE FROM requests WHERE ends_us <= ?1";
        self.database.execute(sql, [to_sql(self.now_us)])?;
        self.row.sweep_from.clear();
        self.row.sweep_us = self.now_us + SWEEP_EVERY_US;
        let written: Vec<String> =
            self.database.rows("SELECT DISTINCT session FROM inbox", [], |row| row.get(0))?;
        let found = self.session.folder().sessions(SWEPT_SESSIONS).unwrap_or_default();
        for id in found.into_iter().chain(written.iter().map(|id| SessionId::new(id))) {
            // Asking notes the dead, whom `bury` removes.
            self.alive(&id);
        }
        Ok(())
    }

    /// Removes what the dead sessions that were noticed have left.
    fn bury(&self) -> Result<(), Failure> {
        let living = self.living.borrow();
        for (id, _) in living.iter().filter(|(_, alive)| !**alive) {
            self.session.folder().remove_dead(id);
            self.database.execute("DELETE FROM inbox WHERE session = ?1", [id.as_str()])?;
        }
        Ok(())
    }
}
