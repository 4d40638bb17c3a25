//! A small world: one server with a [`Table`], sessions with their [`Keeper`]s, and a network that
//! may delay, lose and repeat. The model checker goes through every order of its actions; the
//! property tests go through random histories of them.
//!
//! Whatever a scheduler, a network or an operator could do is an [`Action`]. A paused session is one
//! whose actions are not chosen for a while.
#![allow(
    dead_code,
    unreachable_pub,
    unused_must_use,
    reason = "each test program uses a part of it"
)]

pub mod checks;
pub mod fingerprint;
pub mod order;
pub mod search;
pub mod session;

use checks::{Planted, Violation};
use lockwarden_core::{
    Command, Epoch, Message, Name, Reply, Rules, Run, SessionId, Token,
    command::Mode,
    table::{Context, Meta, Table},
};
use session::{Call, Event, Owner, Patience, Session, Want};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// Where time begins: a server's clock is far from 0 (and the fingerprint knows a time by its size).
pub const EPOCH_US: u64 = 1_700_000_000_000_000;
pub const SECOND_US: u64 = 1_000_000;

/// See [`Scope::wants`].
pub type Wanted = &'static [(usize, Mode)];
/// See [`Scope::menu`].
pub type Menu = &'static [&'static [usize]];

/// What may happen, how often, and under which rules.
#[derive(Clone, Debug)]
pub struct Scope {
    pub rules: Rules,
    pub sessions: usize,
    pub owners: usize,
    pub lease_ms: u64,
    pub grace_ms: u64,
    /// Acquisitions per session.
    pub asks: u64,
    /// What may be asked for: names by their numbers, all at once, and how each is to be held.
    pub wants: &'static [Wanted],
    /// Which of these each session asks for in the search; beyond its end: the first.
    pub menu: Menu,
    /// All sessions ask with the same value, as a redelivered task does (R25).
    pub same_token: bool,
    /// No message arrives that may be lost (G5).
    pub lossy: bool,
    /// Sessions whose link delays nothing and who do everything in time: the model then has the
    /// orders of the others only.
    pub prompt: &'static [usize],
    pub may_release: bool,
    pub may_cancel: bool,
    /// How often each fault may strike.
    pub faults: Faults,
    pub planted: Option<Planted>,
    /// The store has a copy of its data from before anyone held anything; else its replica (or its
    /// disk) is empty.
    pub copied: bool,
    /// What has happened before the search begins.
    pub given: &'static [Action],
}

impl Scope {
    /// All rules, nobody prompt, no faults.
    pub fn new(sessions: usize) -> Scope {
        Scope {
            rules: Rules::ALL,
            sessions,
            owners: 1,
            lease_ms: 4_000,
            grace_ms: 3_000,
            asks: 1,
            wants: &[&[(0, Mode::Exclusive)], &[(1, Mode::Exclusive)]],
            menu: &[],
            same_token: false,
            lossy: false,
            prompt: &[],
            may_release: true,
            may_cancel: true,
            faults: Faults::default(),
            planted: None,
            copied: true,
            given: &[],
        }
    }
}

/// How often each kind of fault may strike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A client closes its link.
    pub client_cuts: u8,
    /// The server closes a link; the client may notice late or never.
    pub server_cuts: u8,
    /// The subscription of a link goes, and its commands still run (R11, R19).
    pub unsubscribes: u8,
    pub crashes: u8,
    /// A message is lost although its link stands (a datagram of the embedded store).
    pub lost_messages: u8,
    /// A command that is under way is sent once more.
    pub repeats: u8,
    /// A copy of the data is made: a snapshot, or what a replica has.
    pub copies: u8,
    /// The server's process dies and comes back with the copy.
    pub restarts: u8,
    /// The same without any data.
    pub empty_restarts: u8,
    /// A replica that has the copy takes over.
    pub failovers: u8,
    pub flushes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// So much time passes for everyone.
    Advance(u64),
    /// Session, owner, how long it waits, and what it asks for: a number of [`Scope::wants`].
    Ask(usize, usize, Patience, usize),
    /// The owner releases or cancels.
    End(usize, usize),
    /// The session does what is due.
    Tick(usize),
    Connect(usize),
    ClientCut(usize),
    Crash(usize),
    /// The server reads the next thing of a connection.
    ToServer(usize),
    /// The client reads the next thing of a connection.
    ToClient(usize),
    ServerCut(usize),
    Unsubscribe(usize),
    LoseMessage(usize),
    /// The last command of the connection is sent twice.
    Repeat(usize),
    Copy,
    Restart,
    EmptyRestart,
    Failover,
    Flush,
}

/// A connection with its subscription, seen from both ends.
#[derive(Clone, Debug)]
pub struct Conn {
    pub session: usize,
    pub client_open: bool,
    pub server_open: bool,
    pub subscribed: bool,
    /// The server's run as the session read it at connect (R4).
    pub run: Run,
    pub to_server: VecDeque<Up>,
    pub to_client: VecDeque<Down>,
}

#[derive(Clone, Debug)]
pub enum Up {
    Call(Arc<Call>),
    Close,
}

#[derive(Clone, Debug)]
pub enum Down {
    Answer(Arc<Call>, Option<Epoch>, Reply),
    Message(Message),
    Closed,
}

#[derive(Clone, Debug)]
pub struct World {
    pub now_us: u64,
    pub sessions: Vec<Session>,
    pub conns: Vec<Conn>,
    pub table: Table,
    pub run: Run,
    pub runs: u64,
    pub started_us: u64,
    /// A replica that took over (see `Context::uptime_s`).
    pub promoted: bool,
    pub copy: Option<Table>,
    pub faults: Faults,
    /// The server's clock against the world's, in µs.
    pub server_skew_us: i64,
    /// Each session's clock: ahead by so many µs, fast by so many millionths.
    pub clocks: Vec<(u64, i64)>,
    pub names: Arc<[Name]>,
    /// [`Scope::wants`], with names.
    pub wants: Arc<[Arc<Want>]>,
    /// What a release or a cancel has ended, at which lock: nothing of it may come back (G6).
    pub done: BTreeSet<(Name, Token)>,
    /// The highest fence granted, per name (G2).
    pub fences: BTreeMap<Name, u64>,
    /// What the owners heard in this action.
    pub events: Vec<(usize, Event)>,
    /// Grants carried out in this action: name, token.
    pub grants: Vec<(Name, Token)>,
}

impl World {
    /// All sessions are connected and have beaten once; nobody holds anything.
    pub fn new(scope: &Scope) -> World {
        let session = |index: usize| {
            let id = format!("s{index}");
            Session::new(&id, scope.owners, scope.rules, scope.lease_ms, scope.grace_ms)
        };
        let names = [Name::new("x").unwrap(), Name::new("y").unwrap()];
        let want = |want: &Wanted| {
            let mut all = want.iter().map(|(number, _)| names[*number].clone());
            let modes = want.iter().map(|(_, mode)| *mode);
            Arc::new(Want {
                name: all.next().unwrap(),
                also: all.collect(),
                modes: modes.collect(),
            })
        };
        let wants = scope.wants.iter().map(want).collect();
        let mut world = World {
            now_us: EPOCH_US,
            sessions: (0..scope.sessions).map(session).collect(),
            conns: Vec::new(),
            table: Table {
                meta: Some(Meta {
                    epoch: Epoch::new("0.first"),
                    run: Run::new("r0"),
                    guard_until_us: 0,
                    fence: 0,
                }),
                ..Table::default()
            },
            run: Run::new("r0"),
            runs: 0,
            started_us: EPOCH_US - 3_600 * SECOND_US,
            promoted: false,
            copy: None,
            faults: scope.faults,
            server_skew_us: 0,
            clocks: vec![(0, 0); scope.sessions],
            names: names.into(),
            wants,
            done: BTreeSet::new(),
            fences: BTreeMap::new(),
            events: Vec::new(),
            grants: Vec::new(),
        };
        for session in 0..scope.sessions {
            world.act(scope, Action::Connect(session)).unwrap();
            while let Some(action) = world.deliverable() {
                world.act(scope, action).unwrap();
            }
        }
        world.copy = scope.copied.then(|| world.table.clone());
        for action in scope.given {
            world.apply(scope, *action).unwrap();
        }
        world
    }

    /// The session's own clock (it counts suspend).
    pub fn clock(&self, session: usize) -> u64 {
        let (ahead_us, ppm) = self.clocks[session];
        let passed_us = (self.now_us - EPOCH_US) as i64;
        (self.now_us + ahead_us).saturating_add_signed(passed_us * ppm / 1_000_000)
    }

    /// As `Context::uptime_s` wants it.
    pub fn uptime_s(&self) -> i64 {
        if self.promoted { 0 } else { ((self.now_us - self.started_us) / SECOND_US) as i64 }
    }

    pub fn server_us(&self) -> u64 {
        self.now_us.saturating_add_signed(self.server_skew_us)
    }

    /// The connection over which the session speaks.
    pub fn conn_of(&self, session: usize) -> Option<usize> {
        self.conns.iter().position(|conn| conn.session == session && conn.client_open)
    }

    /// The next delivery, if anything is under way.
    pub fn deliverable(&self) -> Option<Action> {
        let up = (0..self.conns.len()).position(|at| self.may_arrive(at));
        let down =
            self.conns.iter().position(|conn| conn.client_open && !conn.to_client.is_empty());
        up.map(Action::ToServer).or(down.map(Action::ToClient))
    }

    /// Does one action, and whatever follows at once; checks what must hold after each.
    pub fn apply(&mut self, scope: &Scope, action: Action) -> Result<(), Violation> {
        self.events.clear();
        self.grants.clear();
        self.act(scope, action)?;
        while let Some(next) = self.prompted(scope) {
            self.act(scope, next)?;
        }
        Ok(())
    }

    fn prompted(&self, scope: &Scope) -> Option<Action> {
        scope.prompt.iter().find_map(|index| {
            let session = &self.sessions[*index];
            let up = (0..self.conns.len())
                .position(|at| self.conns[at].session == *index && self.may_arrive(at));
            if let Some(conn) = up {
                return Some(Action::ToServer(conn));
            }
            if !session.running {
                return None;
            }
            match self.conn_of(*index) {
                None => Some(Action::Connect(*index)),
                Some(at) if !self.conns[at].to_client.is_empty() => Some(Action::ToClient(at)),
                Some(_) if session.due(self.clock(*index)) => Some(Action::Tick(*index)),
                Some(_) => None,
            }
        })
    }

    fn act(&mut self, scope: &Scope, action: Action) -> Result<(), Violation> {
        match action {
            Action::Advance(us) => {
                self.now_us += us;
                self.table.expire(self.server_us());
            }
            Action::Ask(index, owner, patience, want) => {
                let now_us = self.clock(index);
                let want = self.wants[want].clone();
                let session = &mut self.sessions[index];
                let token = if scope.same_token {
                    "task".to_owned()
                } else {
                    format!("t{index}.{}", session.asked)
                };
                let token = Token::new(token.as_bytes()).unwrap();
                session.ask(now_us, owner, want, token, patience);
            }
            Action::End(index, owner) => {
                let now_us = self.clock(index);
                self.sessions[index].end(now_us, owner);
            }
            Action::Tick(index) => {
                let now_us = self.clock(index);
                self.sessions[index].tick(now_us);
            }
            Action::Connect(index) => {
                self.conns.push(Conn {
                    session: index,
                    client_open: true,
                    server_open: true,
                    subscribed: true,
                    run: self.run.clone(),
                    to_server: VecDeque::new(),
                    to_client: VecDeque::new(),
                });
                let now_us = self.clock(index);
                self.sessions[index].link_up(now_us);
            }
            Action::ClientCut(index) => {
                self.spend(|faults| &mut faults.client_cuts);
                self.close_by_client(scope, index);
            }
            Action::Crash(index) => {
                self.spend(|faults| &mut faults.crashes);
                let session = &mut self.sessions[index];
                session.running = false;
                session.owners.fill(Owner::Idle);
                session.linked = false;
                // The kernel still delivers what was written, then the end: no reset here.
                if let Some(conn) = self.conn_of(index) {
                    self.conns[conn].to_server.push_back(Up::Close);
                    self.conns[conn].to_client.clear();
                    self.conns[conn].client_open = false;
                }
            }
            Action::ToServer(conn) => self.server_reads(scope, conn)?,
            Action::ToClient(conn) => self.client_reads(scope, conn),
            Action::ServerCut(conn) => {
                self.spend(|faults| &mut faults.server_cuts);
                self.close_by_server(conn);
            }
            Action::Unsubscribe(conn) => {
                self.spend(|faults| &mut faults.unsubscribes);
                self.conns[conn].subscribed = false;
            }
            Action::LoseMessage(conn) => {
                self.spend(|faults| &mut faults.lost_messages);
                let losable = |down: &Down| Self::is_losable(down);
                let down = &mut self.conns[conn].to_client;
                if let Some(at) = down.iter().position(losable) {
                    down.remove(at);
                }
            }
            Action::Repeat(conn) => {
                self.spend(|faults| &mut faults.repeats);
                let last = self.conns[conn].to_server.iter().rev().find_map(|up| match up {
                    Up::Call(call) if call.command != Command::Beat => Some(call.clone()),
                    _ => None,
                });
                if let Some(call) = last {
                    self.conns[conn].to_server.push_back(Up::Call(call));
                }
            }
            Action::Copy => {
                self.spend(|faults| &mut faults.copies);
                self.copy = Some(self.table.clone());
            }
            Action::Restart => {
                self.spend(|faults| &mut faults.restarts);
                self.restart(self.copy.clone().unwrap_or_default(), false);
            }
            Action::EmptyRestart => {
                self.spend(|faults| &mut faults.empty_restarts);
                self.restart(Table::default(), false);
            }
            Action::Failover => {
                self.spend(|faults| &mut faults.failovers);
                self.restart(self.copy.clone().unwrap_or_default(), true);
                if scope.planted == Some(Planted::ReplicaLooksOld) {
                    self.started_us = self.now_us - 3_600 * SECOND_US;
                    self.promoted = false;
                }
            }
            Action::Flush => {
                self.spend(|faults| &mut faults.flushes);
                self.data_lost(Table::default());
            }
        }
        self.flush_outboxes(scope);
        self.conns.retain(|conn| conn.client_open || conn.server_open);
        self.check(scope)
    }

    /// Revoked tells the end of a belief and travels in order with the beats: it may be lost only
    /// with its link (see the decision record).
    pub fn is_losable(down: &Down) -> bool {
        matches!(down, Down::Message(message) if !matches!(message, Message::Revoked { .. }))
    }

    /// How many listen on a session's channel (R13).
    pub fn subscribers(&self, id: &SessionId) -> u64 {
        let on = |conn: &&Conn| {
            conn.server_open && conn.subscribed && self.sessions[conn.session].id == *id
        };
        self.conns.iter().filter(on).count() as u64
    }

    /// Carries out a command as a session of that connection would.
    pub fn execute(
        &mut self,
        scope: &Scope,
        conn: usize,
        command: &Command,
        may_hold: bool,
    ) -> Result<(Option<Epoch>, Reply), Violation> {
        let now_us = self.server_us();
        self.table.expire(now_us);
        let before = command.name().map(|_| self.table.clone());
        let mut table = std::mem::take(&mut self.table);
        let (reply, messages) = {
            let conn = &self.conns[conn];
            let at = Context {
                now_us,
                run: &self.run,
                uptime_s: self.uptime_s(),
                caller: &self.sessions[conn.session].id,
                caller_run: &conn.run,
                subscribers: &|id| self.subscribers(id),
                in_common: self
                    .conns
                    .iter()
                    .filter(|conn| conn.server_open && conn.subscribed)
                    .count() as u64
                    + u64::from(may_hold && scope.planted != Some(Planted::SilentHolder)),
                rules: scope.rules,
            };
            table.apply(&at, &Planted::instead(scope.planted, command))
        };
        self.table = table;
        if scope.planted == Some(Planted::KeyEndsWithTheFirst) {
            Planted::end_with_the_first(&mut self.table);
        }
        if let Some(before) = before {
            let caller = self.conns[conn].session;
            self.check_step(scope, caller, command, &reply, &before)?;
        }
        for (id, message) in messages {
            let message = Down::Message(message);
            if scope.lossy && Self::is_losable(&message) {
                continue;
            }
            for conn in &mut self.conns {
                if conn.server_open && conn.subscribed && self.sessions[conn.session].id == id {
                    conn.to_client.push_back(message.clone());
                }
            }
        }
        let epoch = self.table.meta.as_ref().map(|meta| meta.epoch.clone());
        Ok((epoch.filter(|_| reply != Reply::Stale), reply))
    }

    fn server_reads(&mut self, scope: &Scope, index: usize) -> Result<(), Violation> {
        match self.conns[index].to_server.pop_front() {
            Some(Up::Call(call)) => {
                let (epoch, reply) = self.execute(scope, index, &call.command, call.may_hold)?;
                if let Command::Release { token, .. } | Command::Cancel { token, .. } =
                    &call.command
                    && reply != Reply::Stale
                    && !scope.same_token
                {
                    let names = call.command.names();
                    self.done.extend(names.map(|name| (name.clone(), token.clone())));
                }
                if self.conns[index].client_open {
                    self.conns[index].to_client.push_back(Down::Answer(call, epoch, reply));
                }
            }
            Some(Up::Close) => self.close_by_server(index),
            None => {}
        }
        Ok(())
    }

    fn client_reads(&mut self, scope: &Scope, index: usize) {
        let session = self.conns[index].session;
        let now_us = self.clock(session);
        match self.conns[index].to_client.pop_front() {
            Some(Down::Answer(call, epoch, reply)) => {
                self.sessions[session].answered(now_us, &call, epoch, &reply);
            }
            Some(Down::Message(message)) => self.sessions[session].told(now_us, &message),
            Some(Down::Closed) => self.close_by_client(scope, session),
            None => {}
        }
    }

    fn close_by_client(&mut self, scope: &Scope, index: usize) {
        let now_us = self.clock(index);
        if let Some(conn) = self.conn_of(index) {
            let conn = &mut self.conns[conn];
            conn.client_open = false;
            conn.to_client.clear();
            // R9: closed by reset, nothing of it runs any more.
            if scope.rules.on(9) {
                conn.to_server.clear();
            }
            if conn.server_open {
                conn.to_server.push_back(Up::Close);
            }
        }
        self.sessions[index].link_down(now_us);
    }

    fn close_by_server(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        conn.server_open = false;
        conn.subscribed = false;
        conn.to_server.clear();
        if conn.client_open {
            conn.to_client.push_back(Down::Closed);
        }
    }

    fn restart(&mut self, data: Table, promoted: bool) {
        for index in 0..self.conns.len() {
            self.close_by_server(index);
        }
        self.runs += 1;
        self.run = Run::new(&format!("r{}", self.runs));
        self.started_us = self.now_us;
        self.promoted = promoted;
        self.data_lost(data);
    }

    fn data_lost(&mut self, data: Table) {
        self.table = data;
        let server_us = self.server_us();
        self.table.expire(server_us);
        // What was given back may be held again in old data; R16 and the lease end that.
        self.done.clear();
        // Fences that this very instant gave count as given just before it: no real server loses
        // its data within the microsecond of a grant.
        for fence in self.fences.values_mut() {
            *fence = (*fence).min(server_us - 1);
        }
    }

    fn flush_outboxes(&mut self, scope: &Scope) {
        for index in 0..self.sessions.len() {
            let events = std::mem::take(&mut self.sessions[index].events);
            self.events.extend(events.into_iter().map(|event| (index, event)));
            if self.sessions[index].close {
                self.close_by_client(scope, index);
            }
            let calls = std::mem::take(&mut self.sessions[index].outbox);
            if let Some(conn) = self.conn_of(index).filter(|at| self.conns[*at].server_open) {
                let calls = calls.into_iter().map(|call| Up::Call(call.into()));
                self.conns[conn].to_server.extend(calls);
            }
        }
    }

    fn spend(&mut self, fault: impl Fn(&mut Faults) -> &mut u8) {
        let left = fault(&mut self.faults);
        *left = left.saturating_sub(1);
    }
}
