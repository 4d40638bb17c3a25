//! The scripts are the table: random commands of three sessions, foreign clients and steps of the
//! server's clock run on a real server and on `Table::apply`, with the server's own time. Every reply,
//! every message and what stands at the end must be equal, but for a few milliseconds.
//!
//! Time passes by stepping the clock of the server (`clock_shim`), never by waiting. A case in which a
//! deadline lies too near to a command's moment to tell who is right is left out, and counted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod alike;
mod ops;
#[path = "../redis_support/mod.rs"]
mod redis_support;
mod stories;

use alike::{TOLERANCE_MS, alike_message, alike_reply};
use lockwarden::store::redis::RedisStore;
use lockwarden_core::{
    Command, Epoch, Message, Reply, Rules, Run, SessionId, Token,
    command::{Acquire, HoldState, Renew, Wait},
    table::{self, Context, Key, Table},
};
use lockwarden_testkit::{
    process::eventually,
    raw::{Raw, Value},
    servers::{Server, ServerKind},
};
use ops::{Foreign, NAMES, Op, PLAIN, SESSIONS, command, ops};
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use redis_support::{SOON, Session, name, runtime, settings, token};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::runtime::Runtime;

/// A deadline nearer than this to a command's moment decides nothing.
const MARGIN_US: u64 = 25_000;
/// Steps that would come so near to a deadline go on beyond it.
const STEP_MARGIN_US: u64 = 150_000;

/// The session that says of itself that it may hold a lock (R5), whether it does or not.
const MAY_HOLD: usize = 2;

/// A server and what speaks to it, over many cases.
struct World {
    server: Server,
    runtime: Arc<Runtime>,
    stores: Vec<RedisStore>,
    run: Run,
    raw: std::cell::RefCell<Raw>,
    unclear: Cell<u32>,
    cases: Cell<u32>,
    /// How often each kind of answer came.
    seen: std::cell::RefCell<BTreeMap<String, u32>>,
}

/// One case.
struct Case<'a> {
    world: &'a World,
    store: &'a RedisStore,
    model: Table,
    sessions: [Option<Session>; 3],
    /// Names whose expiry a foreign client made longer: their record ends before the key.
    stretched: BTreeSet<usize>,
    /// A deadline was too near; nothing more can be said.
    unclear: bool,
}

type Outcome = Result<(), TestCaseError>;

impl World {
    fn new(kind: ServerKind) -> World {
        let server = Server::builder(kind).clock_shim().start();
        let run = Run::new(&server.info("server", "run_id").unwrap());
        let store = |protocol| {
            let mut settings = settings(&server);
            settings.protocol = Some(protocol);
            RedisStore::new(settings).unwrap()
        };
        let stores = redis_support::protocols(&server).into_iter().map(store).collect();
        let raw = std::cell::RefCell::new(server.raw());
        // So that an epoch may begin without a guard: beyond W from the start.
        server.step_clock(10_000);
        let (unclear, cases) = (Cell::new(0), Cell::new(0));
        let seen = std::cell::RefCell::default();
        World { server, runtime: runtime(), stores, run, raw, unclear, cases, seen }
    }

    fn cmd<A: AsRef<[u8]>>(&self, command: &[A]) -> Value {
        self.raw.borrow_mut().cmd(command)
    }

    fn now_us(&self) -> u64 {
        let time = self.cmd(&["TIME"]);
        let part = |i: usize| time.items()[i].text().unwrap().parse::<u64>().unwrap();
        part(0) * 1_000_000 + part(1)
    }

    fn subscribers(&self, session: &str) -> i64 {
        let reply = self.cmd(&["PUBSUB", "NUMSUB", &format!("lockwarden:session:{session}")]);
        reply.items()[1].int().unwrap()
    }

    fn uptime_s(&self) -> i64 {
        self.server.info("server", "uptime_in_seconds").unwrap().parse().unwrap()
    }

    fn try_case(&self, store: usize, ops: &[Op]) -> Outcome {
        self.cases.set(self.cases.get() + 1);
        self.cmd(&["FLUSHALL"]);
        for session in SESSIONS {
            eventually(SOON, || self.subscribers(session) == 0);
        }
        self.server.without_guard();
        let meta = table::Meta {
            epoch: Epoch::new(&self.cmd(&["HGET", "lockwarden:meta", "epoch"]).text().unwrap()),
            run: self.run.clone(),
            guard_until_us: 0,
            fence: 0,
        };
        let mut case = Case {
            world: self,
            store: &self.stores[store % self.stores.len()],
            model: Table { meta: Some(meta), ..Table::default() },
            sessions: [None, None, None],
            stretched: BTreeSet::new(),
            unclear: false,
        };
        for who in 0..3 {
            case.join(who);
        }
        for op in ops {
            case.step(op)?;
            if case.unclear {
                self.unclear.set(self.unclear.get() + 1);
                return Ok(());
            }
        }
        case.finish()
    }
}

impl Case<'_> {
    fn join(&mut self, who: usize) {
        let mut session = Session::on(&self.world.runtime, self.store, SESSIONS[who]).unwrap();
        session.may_hold = who == MAY_HOLD;
        self.sessions[who] = Some(session);
    }

    fn step(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Batch(who, asks) => {
                let now_us = self.world.now_us();
                let commands = asks.iter().map(|ask| command(ask, *who, now_us)).collect();
                self.batch(*who, commands)?;
                self.others_hear(*who)?;
            }
            Op::Alone(who, ask) => {
                let now_us = self.world.now_us();
                self.alone(*who, command(ask, *who, now_us))?;
                self.others_hear(*who)?;
            }
            Op::StepMs(ms) => {
                self.world.server.step_clock(*ms as i64);
                self.pass_near_deadlines();
                self.forget_records();
            }
            Op::Cut(who) => {
                if self.sessions[*who].take().is_some() {
                    let session = SESSIONS[*who];
                    eventually(SOON, || self.world.subscribers(session) == 0);
                }
            }
            Op::Join(who) => {
                if self.sessions[*who].is_none() {
                    self.join(*who);
                }
            }
            Op::Foreign(lock, foreign) => self.foreign(*lock, foreign),
            Op::Flush => {
                self.world.cmd(&["FLUSHALL"]);
                self.model = Table::default();
            }
            Op::OtherRun => {
                if let Some(meta) = &mut self.model.meta {
                    self.world.cmd(&["HSET", "lockwarden:meta", "run", "another"]);
                    meta.run = Run::new("another");
                }
            }
        }
        Ok(())
    }

    /// Behind a beat of its own, a session has heard all that was said before.
    fn others_hear(&mut self, who: usize) -> Outcome {
        for other in (0..3).filter(|other| *other != who) {
            self.batch(other, Vec::new())?;
        }
        Ok(())
    }

    /// A batch of a session, a beat behind it, and everything that comes of it.
    fn batch(&mut self, who: usize, mut commands: Vec<Command>) -> Outcome {
        if self.sessions[who].is_none() {
            return Ok(());
        }
        self.pass_near_deadlines();
        let uptime_s = self.world.uptime_s();
        commands.push(Command::Beat);
        let session = self.sessions[who].as_mut().unwrap();
        let replies = session.batch(commands.clone());
        let Some(Ok(Reply::Beat { now_us, .. })) = replies.last().cloned() else {
            return Err(TestCaseError::fail(format!("no beat: {replies:?}")));
        };
        let told = self.compare_replies(who, uptime_s, now_us, commands, replies)?;
        if self.unclear {
            return Ok(());
        }
        self.compare_messages(who, told)
    }

    /// A command in a call of its own, between two beats, which tell its moment nearly enough.
    fn alone(&mut self, who: usize, command: Command) -> Outcome {
        if self.sessions[who].is_none() {
            return Ok(());
        }
        self.pass_near_deadlines();
        let uptime_s = self.world.uptime_s();
        let session = self.sessions[who].as_mut().unwrap();
        let commands = [Command::Beat, command, Command::Beat];
        let calls = commands.clone().map(|command| session.send(vec![command])[0]);
        let replies = session.answers_to(&calls);
        let (
            Some(Ok(Reply::Beat { now_us: before_us, .. })),
            Some(Ok(Reply::Beat { now_us: after_us, .. })),
        ) = (replies.first(), replies.last())
        else {
            return Err(TestCaseError::fail(format!("no beats: {replies:?}")));
        };
        let (before_us, after_us) = (*before_us, *after_us);
        // The machine's wall clock may be set meanwhile.
        if !(before_us..=before_us + TOLERANCE_MS * 500).contains(&after_us) {
            self.unclear = true;
            return Ok(());
        }
        let fence = self.world.cmd(&["HGET", "lockwarden:meta", "fence"]).text();
        let fence: u64 = fence.and_then(|fence| fence.parse().ok()).unwrap_or_default();
        // Of several grants at once, one of them by a floor that lies ahead, the fences do not tell the moment.
        let mut model = self.model.clone();
        self.predict(&mut model, who, uptime_s, before_us, &commands[0]);
        let (reply, told) = self.predict(&mut model, who, uptime_s, after_us, &commands[1]);
        let granted = told.iter().filter(|(_, it)| matches!(it, Message::Grant { .. })).count()
            + usize::from(matches!(reply, Reply::Granted { .. } | Reply::Converted { .. }));
        if granted > 1 && fence > after_us {
            self.unclear = true;
            return Ok(());
        }
        let now_us = match &replies[1] {
            Ok(Reply::FloorAhead { now_us } | Reply::Beat { now_us, .. }) => *now_us,
            // A grant, to whomever, for which nothing but the clock decided.
            _ if (before_us..=after_us).contains(&fence) => {
                // The first of as many as the command made.
                let mut model = self.model.clone();
                self.predict(&mut model, who, uptime_s, before_us, &commands[0]);
                self.predict(&mut model, who, uptime_s, fence, &commands[1]);
                2 * fence - model.meta.map_or(fence, |meta| meta.fence).max(fence)
            }
            _ => after_us,
        };
        if let Some(way) = self.shorter_way(who, before_us, &commands[1]) {
            *self.world.seen.borrow_mut().entry(way).or_default() += 1;
        }
        let mut told = Vec::new();
        let moments = [before_us, now_us, after_us];
        for ((command, reply), now_us) in commands.into_iter().zip(replies).zip(moments) {
            told.extend(self.compare_replies(who, uptime_s, now_us, vec![command], vec![reply])?);
            if self.unclear {
                return Ok(());
            }
        }
        self.compare_messages(who, told)
    }

    /// Has the script a shorter way for this command about several names (`alone_several.lua`)? Then which, and whether
    /// anybody waits elsewhere, so that it must look for queues.
    fn shorter_way(&self, who: usize, now_us: u64, command: &Command) -> Option<String> {
        let mut model = self.model.clone();
        model.expire(now_us);
        let meta = model.meta.as_ref()?;
        let is_settled = meta.run == self.world.run && meta.guard_until_us <= now_us;
        let lock_of = |name| model.locks.get(name).cloned().unwrap_or_default();
        let is_plain = command.names().all(|name| PLAIN.contains(&name.as_str()));
        if !is_settled || !is_plain || command.also().is_empty() {
            return None;
        }
        let has_no_queue = command.names().all(|name| lock_of(name).queue.is_empty());
        let is_free = command.names().all(|name| lock_of(name).key.is_none());
        let holds = |token: &Token| {
            command.names().all(|name| {
                lock_of(name).record().is_some_and(|it| {
                    it.token == *token
                        && it.session.as_str() == SESSIONS[who]
                        && it.state == HoldState::Held
                        && (it.least_until_us, it.delay_ms) == (0, 0)
                })
            })
        };
        let what = match command {
            Command::Acquire(Acquire { wait, modes, at_least_ms: 0, delay_ms: 0, .. })
                if *wait != Wait::Adopt && modes.is_empty() && is_free && has_no_queue =>
            {
                "Acquire"
            }
            Command::Release { token, lost: false, .. } if holds(token) && has_no_queue => {
                "Release"
            }
            Command::Renew(Renew { token, lease_ms, .. }) if holds(token) => {
                let is_changed = lock_of(command.names().next()?).record()?.lease_ms != *lease_ms;
                if is_changed { "Renewal with another lease" } else { "Renewal" }
            }
            _ => return None,
        };
        let others_wait = model.locks.values().any(|lock| !lock.queue.is_empty());
        Some(format!("{what} of several in short, others wait: {others_wait}"))
    }

    /// What the table says to a command.
    fn predict(
        &self,
        model: &mut Table,
        who: usize,
        uptime_s: i64,
        now_us: u64,
        command: &Command,
    ) -> (Reply, table::Messages) {
        let alive: Vec<SessionId> =
            self.sessions.iter().flatten().map(|session| session.id.clone()).collect();
        let subscribers = |id: &SessionId| u64::from(alive.contains(id));
        let caller = SessionId::new(SESSIONS[who]);
        let at = Context {
            now_us,
            run: &self.world.run,
            uptime_s,
            caller: &caller,
            caller_run: &self.world.run,
            subscribers: &subscribers,
            in_common: alive.len() as u64 + u64::from(who == MAY_HOLD),
            rules: Rules::ALL,
        };
        model.apply(&at, command)
    }

    /// Holds what a session was answered against the table; gives what sessions must have been told.
    fn compare_replies(
        &mut self,
        who: usize,
        uptime_s: i64,
        now_us: u64,
        commands: Vec<Command>,
        replies: Vec<Result<Reply, lockwarden::error::StoreError>>,
    ) -> Result<table::Messages, TestCaseError> {
        let mut told = Vec::new();
        if self.is_near(now_us, MARGIN_US) {
            self.unclear = true;
            return Ok(told);
        }
        for (command, reply) in commands.iter().zip(replies) {
            let mut model = std::mem::take(&mut self.model);
            let (expected, messages) = self.predict(&mut model, who, uptime_s, now_us, command);
            self.model = model;
            told.extend(messages);
            let failed = |error| TestCaseError::fail(format!("{command:?}: {error}"));
            let reply = reply.map_err(failed)?;
            self.know_lease(command, &reply, &expected);
            let reply = alike_reply(reply, &expected);
            *self.world.seen.borrow_mut().entry(kind_of(command, &reply)).or_default() += 1;
            prop_assert_eq!(reply, expected, "{:?} by {}", command, SESSIONS[who]);
        }
        Ok(told)
    }

    /// What was added to what is left of a lease is a few ms more or less: the record has the server's count.
    fn know_lease(&mut self, command: &Command, reply: &Reply, expected: &Reply) {
        if let Command::ExtendByValue { name, token, .. } = command
            && let (Reply::Extended { lease_ms, .. }, Reply::Extended { lease_ms: near_ms, .. }) =
                (reply, expected)
            && lease_ms.abs_diff(*near_ms) <= TOLERANCE_MS
            && let Some(record) =
                self.model.locks.get_mut(name).and_then(|lock| lock.record.as_mut())
            && record.token == *token
        {
            record.lease_ms = *lease_ms;
        }
    }

    /// Holds what sessions heard against what they must have been told.
    fn compare_messages(&mut self, who: usize, told: Vec<(SessionId, Message)>) -> Outcome {
        let epoch = self.sessions[who].as_ref().and_then(|session| session.epoch.as_ref());
        prop_assert_eq!(epoch, self.model.meta.as_ref().map(|meta| &meta.epoch));
        for session in self.sessions.iter_mut().flatten() {
            let mine = told.iter().filter(|(id, _)| *id == session.id);
            let expected: Vec<Message> = mine.map(|(_, message)| message.clone()).collect();
            let mut heard = Vec::new();
            // What does not come is seen in the comparison, so that a case can be made smaller.
            session.within(Duration::from_secs(2), |session| {
                (session.messages.len() >= expected.len()).then_some(())
            });
            heard.append(&mut session.messages);
            let heard: Vec<Message> = heard
                .into_iter()
                .enumerate()
                .map(|(i, message)| match expected.get(i) {
                    Some(expected) => alike_message(message, expected),
                    None => message,
                })
                .collect();
            prop_assert_eq!(heard, expected, "heard by {}", session.id);
            prop_assert_eq!(session.cloned, 0);
        }
        Ok(())
    }

    fn foreign(&mut self, lock: usize, foreign: &Foreign) {
        self.pass_near_deadlines();
        let key = NAMES[lock];
        let now_us = self.world.now_us();
        if self.is_near(now_us, MARGIN_US) {
            self.unclear = true;
            return;
        }
        let in_us = |ms: u64| Some(now_us + ms * 1_000);
        let state = self.model.locks.entry(name(key)).or_default();
        state.expire(now_us);
        match foreign {
            Foreign::Set { px } => {
                let reply = match px {
                    Some(px) => self.world.cmd(&["SET", key, "foreign", "PX", &px.to_string()]),
                    None => self.world.cmd(&["SET", key, "foreign"]),
                };
                assert!(reply.is_ok());
                let expires_us = px.and_then(in_us);
                state.key = Some(Key { token: token("foreign"), expires_us });
            }
            Foreign::Del => {
                self.world.cmd(&["DEL", key]);
                state.key = None;
            }
            Foreign::Pexpire(ms) => {
                self.world.cmd(&["PEXPIRE", key, &ms.to_string()]);
                if let Some(key) = &mut state.key {
                    key.expires_us = in_us(*ms);
                    self.stretched.insert(lock);
                }
            }
            Foreign::Persist => {
                self.world.cmd(&["PERSIST", key]);
                if let Some(key) = &mut state.key {
                    key.expires_us = None;
                    self.stretched.insert(lock);
                }
            }
        }
        state.expire(now_us);
    }

    /// A record beside its key has the expiry that we gave the key. If a foreign client makes the key live
    /// longer and nobody is refused meanwhile, the record goes first, and the lock counts as foreign (R3).
    /// The table keeps a record as long as its key.
    fn forget_records(&mut self) {
        for lock in &self.stretched {
            let companion = companion("record", NAMES[*lock]);
            if self.world.cmd(&["EXISTS", &companion]).int() == Some(0)
                && let Some(state) = self.model.locks.get_mut(&name(NAMES[*lock]))
                && state.record().is_some_and(|record| !record.proof.is_empty())
            {
                state.record = None;
            }
        }
    }

    /// Lets time pass until no deadline is near.
    fn pass_near_deadlines(&mut self) {
        for _ in 0..200 {
            if !self.is_near(self.world.now_us(), STEP_MARGIN_US) {
                return;
            }
            self.world.server.step_clock(50);
        }
        self.unclear = true;
    }

    fn is_near(&self, now_us: u64, margin_us: u64) -> bool {
        let near = |at: u64| at.abs_diff(now_us) < margin_us;
        let guard_us = self.model.meta.as_ref().map_or(0, |meta| meta.guard_until_us);
        let requests = self.model.requests.values();
        near(guard_us)
            || requests.clone().any(|it| near(it.expires_us))
            || requests.filter_map(|it| it.deadline_us).any(near)
            || self.model.locks.values().any(|lock| {
                lock.key.as_ref().and_then(|key| key.expires_us).is_some_and(near)
                    || lock.together.by_end().any(|(end_us, _)| near(end_us))
                    || lock.holders().any(|record| near(record.least_until_us))
                    || lock.key.as_ref().and_then(|key| key.expires_us).is_some_and(|at_us| {
                        let delay_ms = lock.record().map_or(0, |record| record.delay_ms);
                        near(at_us.saturating_sub(delay_ms * 1_000))
                    })
                    || lock.holders().any(|record| {
                        let is_given = record.state == HoldState::HandedOver;
                        is_given && near(record.since_us + record.lease_ms * 1_000)
                    })
                    || near(lock.queue_expires_us)
                    || lock.asked.as_ref().is_some_and(|(_, until_us)| near(*until_us))
                    || lock.queue.iter().filter_map(|ticket| ticket.deadline_us).any(near)
            })
    }

    /// What stands at the end: by the eyes of a session, and the keys themselves.
    fn finish(&mut self) -> Outcome {
        if self.sessions[0].is_none() {
            self.join(0);
        }
        let shows = NAMES.iter().map(|lock| Command::Show { name: name(lock) }).collect();
        self.batch(0, shows)?;
        if self.unclear {
            return Ok(());
        }
        let now_us = self.world.now_us();
        self.model.expire(now_us);
        if self.is_near(now_us, MARGIN_US) {
            return Ok(());
        }
        let field =
            |field| self.world.cmd(&["HGET", "lockwarden:meta", field]).text().unwrap_or_default();
        let meta = self.model.meta.clone().unwrap();
        prop_assert_eq!(field("epoch"), meta.epoch.as_str());
        prop_assert_eq!(field("run"), meta.run.as_str());
        prop_assert_eq!(field("guard"), meta.guard_until_us.to_string());
        prop_assert_eq!(field("fence"), meta.fence.to_string());
        // Those of the dead may be there until they are met.
        let there = self.world.cmd(&["ZRANGE", "lockwarden:requests", "0", "-1"]);
        let there: Vec<String> = there.items().iter().filter_map(Value::text).collect();
        let expected = self.model.requests.keys().map(ToString::to_string);
        prop_assert!(expected.into_iter().all(|it| there.contains(&it)), "{:?}", there);
        for lock in NAMES {
            let state = self.model.locks.get(&name(lock)).cloned().unwrap_or_default();
            let exists = |key: &str| self.world.cmd(&["EXISTS", key]).int() == Some(1);
            let value = self.world.cmd(&["GET", lock]);
            match (&state.key, state.record()) {
                (Some(_), None) if state.together().is_some() => {
                    prop_assert_eq!(value, Value::Bulk(b"lockwarden:\x03".to_vec()));
                }
                // The record is in the key.
                (Some(key), Some(record)) if record.proof.is_empty() => {
                    let Value::Bulk(value) = value else { panic!("{value:?}") };
                    let is_long = record.least_until_us > 0 || record.delay_ms > 0;
                    let begins = [
                        if is_long { b"lockwarden:\x04" } else { b"lockwarden:\x01" },
                        packed(record.session.as_str().as_bytes()).as_slice(),
                        &packed(key.token.as_bytes()),
                    ]
                    .concat();
                    prop_assert!(value.starts_with(&begins), "{:?}", value);
                }
                (key, record) => {
                    let expected = key.as_ref().map(|key| key.token.as_bytes().to_vec());
                    prop_assert_eq!(value, expected.map_or(Value::Nil, Value::Bulk));
                    // A record that does not count may be there until its expiry.
                    prop_assert!(record.is_none() || exists(&companion("record", lock)));
                }
            }
            prop_assert_eq!(exists(&companion("queue", lock)), !state.queue.is_empty(), "queue");
            prop_assert_eq!(
                exists(&companion("tickets", lock)),
                !state.queue.is_empty(),
                "tickets"
            );
            prop_assert_eq!(exists(&companion("asked", lock)), state.asked.is_some(), "asked");
        }
        Ok(())
    }
}

/// The names of the companions, written down once more: a change of theirs would strand what stands
/// on people's servers.
fn companion(kind: &str, lock: &str) -> String {
    match lock {
        "plain" => format!("lockwarden:{kind}:{{plain}}"),
        "second" => format!("lockwarden:{kind}:{{second}}"),
        "x{tag}y" => format!("lockwarden:{kind}=x{{tag}}y"),
        "}{" => format!("lockwarden:{kind}~{{{}}}}}{{", odd_tag()),
        other => panic!("{other}"),
    }
}

/// A short text as MessagePack writes it (fixraw, <https://github.com/msgpack/msgpack/blob/master/spec.md>).
fn packed(text: &[u8]) -> Vec<u8> {
    [&[0xa0 | text.len() as u8], text].concat()
}

/// The tag with the slot of `}{`.
fn odd_tag() -> &'static str {
    "06js"
}

/// The command and its answer in a word each; and of what is shown what has become of it.
fn kind_of(command: &Command, reply: &Reply) -> String {
    let word = |text: String| text.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
    let asked = match command {
        Command::Acquire(ask) if ask.wait == Wait::Adopt => "Adopt".to_owned(),
        command => word(format!("{command:?}")),
    };
    let state = match reply {
        Reply::Shown(view) => {
            let record = view.holder.as_ref().and_then(|holder| holder.record.as_ref());
            record.map_or_else(String::new, |record| {
                let endless = if record.endless { " endless" } else { "" };
                format!(" {:?}{endless}", record.state)
            })
        }
        Reply::Extended { guard_ms, .. } if *guard_ms > 0 => " in the guard".to_owned(),
        Reply::Extended { own: true, .. } => " own".to_owned(),
        Reply::Revoked { after_ms } => format!(" later: {}", *after_ms > 0),
        _ => String::new(),
    };
    format!("{asked}: {}{state}", word(format!("{reply:?}")))
}

/// What a run of all cases must have met.
const MUST_BE_SEEN: [&str; 38] = [
    "Acquire of several in short, others wait: false",
    "Acquire of several in short, others wait: true",
    "Renewal of several in short, others wait: false",
    "Renewal of several in short, others wait: true",
    "Renewal with another lease of several in short, others wait: false",
    "Release of several in short, others wait: false",
    "Release of several in short, others wait: true",
    "Acquire: Granted",
    "Acquire: Refused",
    "Acquire: Deadlock",
    "Acquire: OtherMode",
    "Acquire: Guarded",
    "Acquire: FloorAhead",
    "Adopt: Granted",
    "Adopt: NotHeld",
    "Convert: Converted",
    "Convert: Refused",
    "Convert: OtherMode",
    "Convert: NotHeld",
    "ExtendByValue: Extended",
    "ExtendByValue: Extended own",
    "ExtendByValue: Endless",
    "ExtendByValue: NotHeld",
    "HandOver: HandedOver",
    "Leave: Left",
    "Leave: NotHeld",
    "Leave: Released",
    "Show: Shown Held endless",
    "HandOver: NotHeld",
    "Recall: Recalled",
    "Release: Released",
    "Renew: Renewed",
    "Renew: Guarded",
    "Revoke: Revoked later: true",
    "Revoke: Revoked later: false",
    "ExtendByValue: Extended in the guard",
    "Show: Shown Cooling",
    "Show: Shown HandedOver",
];

fn cases() -> u32 {
    if std::env::var_os("LOCKWARDEN_TEST_LONG").is_some_and(|long| long == "1") {
        1_500
    } else {
        400
    }
}

#[test]
fn the_scripts_are_the_table() {
    for kind in ServerKind::default_set() {
        let world = World::new(kind);
        let config = Config {
            cases: cases(),
            max_shrink_iters: 2_000,
            failure_persistence: None,
            ..Config::default()
        };
        let mut runner = TestRunner::new(config);
        let strategy = (0..2_usize, ops());
        let result = runner.run(&strategy, |(store, ops)| world.try_case(store, &ops));
        if let Err(failure) = result {
            panic!("{kind}: {failure}");
        }
        let (unclear, cases) = (world.unclear.get(), world.cases.get());
        let seen = world.seen.borrow();
        println!("{kind}: {seen:#?}");
        for kind_of in MUST_BE_SEEN {
            assert!(seen.contains_key(kind_of), "{kind}: {kind_of}");
        }
        assert!(unclear * 5 <= cases, "{kind}: {unclear} of {cases} cases say nothing");
    }
}
