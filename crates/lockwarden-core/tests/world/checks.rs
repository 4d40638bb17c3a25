//! What must hold in every state of the [`World`], and after every fair future of one.

use super::{
    Action, SECOND_US, Scope, Up, World,
    order::{Moment, fit},
    session::{Owner, Patience, Want},
};
use lockwarden_core::{
    Command, Name, Reply, SessionId, Token,
    command::{Acquire, HoldState, Mode, Renew},
    limits::W_MS,
    table::{Record, Table, Ticket},
};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// A guarantee that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub guarantee: &'static str,
    pub what: String,
}

/// Faults put in on purpose: what cannot catch them proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Every holder believes for 30 s from its grant, beats or not.
    BeliefOf30s,
    /// A promoted replica gives its process's age as its uptime (see `Context::uptime_s`).
    ReplicaLooksOld,
    /// Nobody says that it may hold something (R5).
    SilentHolder,
    /// The key of a lock that is held together ends with the first of the leases, not with the last (R42).
    KeyEndsWithTheFirst,
    /// Of several names only the first is renewed.
    RenewsTheFirst,
    /// Of several names only the first is given back.
    ReleasesTheFirst,
}

impl Planted {
    /// What leaves in place of this command.
    pub fn instead(planted: Option<Planted>, command: &Command) -> Cow<'_, Command> {
        let also: Arc<[Name]> = Arc::default();
        match (planted, command) {
            (Some(Planted::RenewsTheFirst), Command::Renew(renew)) => {
                Cow::Owned(Command::Renew(Renew { also, ..renew.clone() }))
            }
            (Some(Planted::ReleasesTheFirst), Command::Release { name, token, .. }) => {
                let (name, token) = (name.clone(), token.clone());
                Cow::Owned(Command::Release { name, also, token, lost: false })
            }
            _ => Cow::Borrowed(command),
        }
    }

    pub fn end_with_the_first(table: &mut Table) {
        for lock in table.locks.values_mut() {
            let first_us = lock.together().and_then(|it| it.by_end().next()).map(|it| it.0);
            if let (Some(first_us), Some(key)) = (first_us, &mut lock.key) {
                key.expires_us = Some(first_us);
            }
        }
    }
}

/// One grant that a command brought about, of one name or of several.
struct Granted {
    token: Token,
    session: SessionId,
    wants: Vec<(Name, Mode)>,
}

fn broken<T>(guarantee: &'static str, what: String) -> Result<T, Violation> {
    Err(Violation { guarantee, what })
}

impl World {
    /// Which locks the session would act on now, and how.
    fn believed<'a>(
        &'a self,
        scope: &Scope,
        index: usize,
    ) -> Box<dyn Iterator<Item = (&'a Name, Mode, &'a Token)> + 'a> {
        let (session, now_us) = (&self.sessions[index], self.clock(index));
        let each = |(want, token): (&'a Want, &'a Token)| {
            want.wants().map(move |(name, mode)| (name, mode, token))
        };
        match scope.planted {
            Some(Planted::BeliefOf30s) => {
                let believed = session.owners.iter().filter_map(move |owner| {
                    let Owner::Holding { want, token, handle, told: true, .. } = owner else {
                        return None;
                    };
                    let rest_us = 30 * SECOND_US - session.keeping().lease_ms * 1_000;
                    let believed = now_us < session.keeper.lease_end_us(*handle) + rest_us;
                    believed.then_some((&**want, token))
                });
                Box::new(believed.flat_map(each))
            }
            _ => Box::new(session.believed(now_us).flat_map(each)),
        }
    }

    /// Holds in every state.
    pub fn check(&self, scope: &Scope) -> Result<(), Violation> {
        // G1: at no instant do two parties pass the check for conflicting modes of one name.
        let mut holders: Vec<(&Name, Mode, usize)> = Vec::new();
        let running = |index: &usize| self.sessions[*index].running;
        for index in (0..self.sessions.len()).filter(running) {
            for (name, mode, token) in self.believed(scope, index) {
                let others = holders.iter().filter(|(held, ..)| *held == name);
                let modes: Vec<Mode> = others.clone().map(|it| it.1).chain([mode]).collect();
                if !fit(&modes) {
                    let others: Vec<_> = others.map(|it| format!("s{}", it.2)).collect();
                    let others = others.join(", ");
                    return broken("G1", format!("{others} and s{index} ({token}) both believe"));
                }
                holders.push((name, mode, index));
            }
        }
        for (name, lock) in &self.table.locks {
            let tokens = lock.queue.iter().map(|ticket| &ticket.token);
            // G6: what was acknowledged as ended is gone for good.
            let held = lock.holders().map(|record| &record.token);
            let mut all = tokens.clone().chain(lock.key.iter().map(|key| &key.token)).chain(held);
            let is_done = |token: &Token| self.done.contains(&(name.clone(), token.clone()));
            if let Some(token) = all.find(|token| is_done(token)) {
                return broken("G6", format!("{token} was ended, and stands in {name}"));
            }
            let mut seen: Vec<_> = tokens.collect();
            seen.sort();
            if seen.windows(2).any(|pair| pair[0] == pair[1]) {
                return broken("table", format!("two tickets of one token in {name}"));
            }
            if let Some(meta) = &self.table.meta
                && lock.holders().any(|record| record.fence > meta.fence)
            {
                return broken("table", format!("the fence of {name} is ahead of meta"));
            }
            if self.table.meta.is_none() && lock.holders().next().is_some() {
                return broken("table", format!("{name} is held without meta"));
            }
            // R42: the holders have room beside each other, and the key ends with the last of them.
            let modes: Vec<Mode> = lock.holders().map(|record| record.mode).collect();
            if !fit(&modes) {
                return broken("R42", format!("{name} is held {modes:?}"));
            }
            let ends = lock.key.as_ref().map(|key| key.expires_us);
            if lock.together().is_some_and(|it| Some(it.last_end_us()) != ends)
                && scope.planted != Some(Planted::KeyEndsWithTheFirst)
            {
                return broken("R42", format!("the key of {name} ends at {ends:?}"));
            }
            // R29: who waits holds nothing, neither of one name nor of several, but for what ends soon.
            for ticket in &lock.queue {
                let holds = self.table.locks.iter().find(|(_, other)| {
                    other.held_by(&ticket.token).is_some_and(|record| {
                        record.session == ticket.session && record.state == HoldState::Held
                    })
                });
                if let Some((held, _)) = holds {
                    let token = &ticket.token;
                    return broken("R29", format!("{token} waits for {name}, and holds {held}"));
                }
            }
        }
        for request in self.table.requests.values() {
            let is_done = |name: &Name| self.done.contains(&(name.clone(), request.token.clone()));
            if request.names.iter().any(is_done) {
                let token = &request.token;
                return broken("G6", format!("{token} was ended, and names are kept for it"));
            }
        }
        Ok(())
    }

    /// Holds at every command that the table carries out: `before` is what stood there then.
    pub fn check_step(
        &mut self,
        scope: &Scope,
        caller: usize,
        command: &Command,
        reply: &Reply,
        before: &Table,
    ) -> Result<(), Violation> {
        if let (Command::Acquire(ask), Reply::Refused(_) | Reply::OtherMode { .. }) =
            (command, reply)
        {
            self.check_refused(caller, ask)?;
        }
        if self.table.locks == before.locks {
            return Ok(());
        }
        let granted = self.granted_since(before);
        for (fence, grant) in &granted {
            self.check_grant(scope, *fence, grant)?;
        }
        let caller = &self.sessions[caller].id;
        self.check_order(caller, command, before, &granted)?;
        for grant in granted.values() {
            // G3: nothing is granted to a session whose link is gone.
            if self.subscribers(&grant.session) == 0 {
                let Granted { token, session, .. } = grant;
                return broken("G3", format!("{token} was granted to {session}, which is gone"));
            }
        }
        Ok(())
    }

    /// R29: whoever was refused holds nothing of what it asked for, but for what was revoked and ends soon.
    fn check_refused(&self, caller: usize, ask: &Acquire) -> Result<(), Violation> {
        let caller = &self.sessions[caller].id;
        let holds = ask.names().find(|name| {
            let record = self.table.locks.get(name).and_then(|lock| lock.held_by(&ask.token));
            record
                .is_some_and(|record| record.session == *caller && record.state == HoldState::Held)
        });
        match holds {
            Some(name) => broken("R29", format!("{} was refused, and holds {name}", ask.token)),
            None => Ok(()),
        }
    }

    /// The grants that a command brought about, by their fences, which is the order in which they were made.
    fn granted_since(&self, before: &Table) -> BTreeMap<u64, Granted> {
        let mut granted: BTreeMap<u64, Granted> = BTreeMap::new();
        for (name, lock) in &self.table.locks {
            let old = before.locks.get(name);
            for record in lock.holders() {
                let is_same = |old: &Record| {
                    old.fence == record.fence
                        && old.token == record.token
                        && old.session == record.session
                };
                if old.is_some_and(|old| old.holders().any(is_same)) {
                    continue;
                }
                let (token, session) = (record.token.clone(), record.session.clone());
                let grant = Granted { token, session, wants: Vec::new() };
                let grant = granted.entry(record.fence).or_insert(grant);
                grant.wants.push((name.clone(), record.mode));
            }
        }
        granted
    }

    fn check_grant(&mut self, scope: &Scope, fence: u64, grant: &Granted) -> Result<(), Violation> {
        let Granted { token, session, wants } = grant;
        for (name, mode) in wants {
            // G2: strictly, per name, whatever the server lost.
            let highest = self.fences.entry(name.clone()).or_default();
            if fence <= *highest {
                return broken("G2", format!("{token} got fence {fence} after {highest}"));
            }
            *highest = fence;
            self.grants.push((name.clone(), token.clone()));
            // G8: no other session believes any more, in a mode that this one cannot be beside, at the moment of the
            // grant. (Within one session the keeper hears of the grant before its owner does: that is G1's matter.)
            let others = |index: &usize| {
                let other = &self.sessions[*index];
                other.running && other.id != *session
            };
            let mut modes = vec![*mode];
            for index in (0..self.sessions.len()).filter(others) {
                let believed = self.believed(scope, index).filter(|(held, ..)| *held == name);
                modes.extend(believed.map(|it| it.1));
                if !fit(&modes) {
                    return broken("G8", format!("{token} was granted while s{index} believes"));
                }
            }
        }
        Ok(())
    }

    /// Does this ticket count: does its session live, and wait still, and is its request there, if it is one's?
    fn counts(&self, table: &Table, ticket: &Ticket) -> bool {
        let in_time = |at_us: u64| at_us > self.server_us();
        let request = table.requests.get(&ticket.token);
        ticket.deadline_us.is_none_or(in_time)
            && self.subscribers(&ticket.session) > 0
            && (!ticket.several || request.is_some_and(|it| in_time(it.expires_us)))
    }

    /// G4: first come, first served, among those who live and still wait; and what comes with it.
    fn check_order(
        &self,
        caller: &SessionId,
        command: &Command,
        before: &Table,
        granted: &BTreeMap<u64, Granted>,
    ) -> Result<(), Violation> {
        let stands = |name: &Name, ticket: &Ticket| {
            let lock = self.table.locks.get(name);
            let same = |it: &Ticket| it.token == ticket.token && it.session == ticket.session;
            lock.is_some_and(|lock| lock.queue.iter().any(same))
        };
        let got = |grant: &Granted, name: &Name, token: &Token, session: &SessionId| {
            grant.token == *token
                && grant.session == *session
                && grant.wants.iter().any(|(it, _)| it == name)
        };
        // Nobody loses its place but by a grant, or by what it says itself.
        for (name, lock) in &before.locks {
            let lost = lock.queue.iter().find(|ticket| {
                let says = *caller == ticket.session && is_about(command, &ticket.token);
                let mut grants = granted.values();
                !stands(name, ticket)
                    && self.counts(before, ticket)
                    && !says
                    && !grants.any(|it| got(it, name, &ticket.token, &ticket.session))
            });
            if let Some(ticket) = lost {
                return broken("G4", format!("{} lost its place in {name}", ticket.token));
            }
        }
        for (fence, grant) in granted {
            // The moment of this grant: what was granted by it, and after it, was not held yet.
            let later = || granted.range(fence..).map(|(_, it)| it);
            let moment = Moment::new(
                before,
                &self.table,
                |name, it| !later().any(|grant| got(grant, name, &it.token, &it.session)),
                |name, it| {
                    self.counts(before, it)
                        && (stands(name, it)
                            || later().any(|grant| got(grant, name, &it.token, &it.session)))
                },
            );
            let wants: Vec<(&Name, Mode)> = grant.wants.iter().map(|it| (&it.0, it.1)).collect();
            let asked = asked(command, caller, before, grant);
            if asked.as_ref().is_some_and(|asked| !is_same(asked, &wants)) {
                let (token, asked) = (&grant.token, asked.unwrap());
                return broken("R29", format!("{token} asked for {asked:?} and got {wants:?}"));
            }
            if let Some(why) = moment.hinders(&grant.token, &wants) {
                return broken("G4", format!("{} was granted, but {why}", grant.token));
            }
            if let Some(passed) = moment.passes(&grant.token, &wants) {
                let token = &grant.token;
                return broken("G4", format!("{token} passed {passed}, which was ready"));
            }
        }
        // G5: nobody became ready by this command and was left standing. (What comes free by time alone, or with the
        // end of the guard, is found by those who look again.)
        let guard_us = self.table.meta.as_ref().map_or(0, |meta| meta.guard_until_us);
        if guard_us > self.server_us() {
            return Ok(());
        }
        // Of two requests of one microsecond the later may pass for the older, by its token, and have the names kept for
        // it instead. Only here do commands take no time.
        let ages =
            |table: &Table| table.requests.values().map(|it| it.since_us).collect::<Vec<_>>();
        let new =
            self.table.requests.values().filter(|it| !before.requests.contains_key(&it.token));
        if new.into_iter().any(|it| ages(before).contains(&it.since_us)) {
            return Ok(());
        }
        let ready = |table| {
            let moment = Moment::new(table, table, |_, _| true, |_, it| self.counts(table, it));
            moment.ready().cloned()
        };
        match ready(&self.table) {
            Some(token) if ready(before).is_none() => {
                broken("G5", format!("{token} could be served, and was forgotten"))
            }
            _ => Ok(()),
        }
    }

    /// From here on nothing fails any more: what is sent arrives, everyone does what is due,
    /// holders release as soon as they are told. Then everyone who waits must be served within a
    /// stated time (G3, G5), and nothing may be left (G9). Consumes the world.
    pub fn check_future(mut self, scope: &Scope) -> Result<(), Violation> {
        // A lease or a guard and grace must end first; then one longest recheck for whoever is
        // neither first nor second in the queue.
        let bound_us =
            (W_MS + scope.grace_ms.max(W_MS) + scope.lease_ms + 10_000) * 1_000 + SECOND_US;
        let end_us = self.now_us + bound_us;
        self.run_fairly(scope, end_us, true)?;
        for (index, session) in self.sessions.iter().enumerate().filter(|(_, it)| it.running) {
            for owner in &session.owners {
                if *owner != Owner::Idle {
                    let guarantee =
                        if matches!(owner, Owner::Waiting { .. }) { "G5" } else { "G6" };
                    return broken(guarantee, format!("s{index} is left with {owner:?}"));
                }
            }
        }
        let end_us = self.now_us + 60 * SECOND_US;
        self.run_fairly(scope, end_us, true)?;
        if let Some(request) = self.table.requests.values().next() {
            return broken("G9", format!("a request is left: {request:?}"));
        }
        match self.table.locks.first_key_value() {
            Some((name, lock)) => broken("G9", format!("{name} is left: {lock:?}")),
            None => Ok(()),
        }
    }

    /// Runs on without faults until a time; with `release`, told holders release at once.
    pub fn run_fairly(
        &mut self,
        scope: &Scope,
        end_us: u64,
        release: bool,
    ) -> Result<(), Violation> {
        loop {
            let mut rounds = 0;
            while let Some(action) = self.pending(release) {
                self.apply(scope, action)?;
                rounds += 1;
                if rounds > 2_000 {
                    return broken("G5", "sessions and server never come to rest".to_owned());
                }
            }
            if self.now_us >= end_us {
                return Ok(());
            }
            // To the next deadline; no less than a millisecond, for clocks of other rates.
            let due = (0..self.sessions.len()).filter(|index| self.sessions[*index].running);
            let wait_us = due
                .filter_map(|index| {
                    Some(self.sessions[index].deadline_us()?.saturating_sub(self.clock(index)))
                })
                .min()
                .unwrap_or(SECOND_US)
                .clamp(1_000, SECOND_US)
                .min(end_us - self.now_us);
            self.apply(scope, Action::Advance(wait_us))?;
        }
    }

    /// What a world without faults does next, at once.
    fn pending(&self, release: bool) -> Option<Action> {
        if let Some(action) = self.deliverable() {
            return Some(action);
        }
        for (index, session) in self.sessions.iter().enumerate().filter(|(_, it)| it.running) {
            if !session.linked {
                return Some(Action::Connect(index));
            }
            if session.due(self.clock(index)) {
                return Some(Action::Tick(index));
            }
            let told = |owner: &Owner| matches!(owner, Owner::Holding { told: true, .. });
            if let Some(owner) = session.owners.iter().position(told).filter(|_| release) {
                return Some(Action::End(index, owner));
            }
        }
        None
    }
}

/// Is this command about the acquisition with this token?
fn is_about(command: &Command, token: &Token) -> bool {
    match command {
        Command::Acquire(Acquire { token: it, .. })
        | Command::Renew(Renew { token: it, .. })
        | Command::Release { token: it, .. }
        | Command::Cancel { token: it, .. }
        | Command::Revoke { token: it, .. }
        | Command::Recall { token: it, .. }
        | Command::Convert { token: it, .. }
        | Command::HandOver { token: it, .. }
        | Command::ExtendByValue { token: it, .. }
        | Command::Leave { token: it, .. } => it == token,
        Command::Beat | Command::Show { .. } => false,
    }
}

/// What was asked for by whoever got this grant.
fn asked<'a>(
    command: &'a Command,
    caller: &SessionId,
    before: &'a Table,
    grant: &Granted,
) -> Option<Vec<(&'a Name, Mode)>> {
    if let Command::Acquire(ask) = command
        && ask.token == grant.token
        && *caller == grant.session
    {
        return Some(ask.wants().collect());
    }
    if let Some(request) = before.requests.get(&grant.token) {
        return Some(request.wants().collect());
    }
    let (name, _) = grant.wants.first()?;
    let (name, lock) = before.locks.get_key_value(name)?;
    let ticket = lock.queue.iter().find(|it| it.token == grant.token)?;
    Some(vec![(name, ticket.mode)])
}

fn is_same(asked: &[(&Name, Mode)], got: &[(&Name, Mode)]) -> bool {
    asked.len() == got.len() && asked.iter().all(|it| got.contains(it))
}

/// What the model lets happen next: everything that the scope allows and that would do anything.
pub fn actions(world: &World, scope: &Scope, out: &mut Vec<Action>) {
    out.clear();
    let faults = &world.faults;
    out.push(Action::Advance(SECOND_US));
    for (index, session) in world.sessions.iter().enumerate().filter(|(_, it)| it.running) {
        if session.due(world.clock(index)) {
            out.push(Action::Tick(index));
        }
        for (at, owner) in session.owners.iter().enumerate() {
            match owner {
                Owner::Idle if session.asked < scope.asks && session.linked => {
                    let menu = scope.menu.get(index).copied().unwrap_or(&[0]);
                    let ask = |want: &usize| Action::Ask(index, at, Patience::Endless, *want);
                    out.extend(menu.iter().map(ask));
                }
                Owner::Holding { told: true, .. } if scope.may_release => {
                    out.push(Action::End(index, at));
                }
                Owner::Waiting { .. } if scope.may_cancel => out.push(Action::End(index, at)),
                _ => {}
            }
        }
        if !session.linked {
            out.push(Action::Connect(index));
        } else if faults.client_cuts > 0 && !world.must_stay() {
            out.push(Action::ClientCut(index));
        }
        if faults.crashes > 0 {
            out.push(Action::Crash(index));
        }
    }
    for (index, conn) in world.conns.iter().enumerate() {
        let stays = world.must_stay();
        if world.may_arrive(index) {
            out.push(Action::ToServer(index));
        }
        if conn.client_open && !conn.to_client.is_empty() {
            out.push(Action::ToClient(index));
        }
        if faults.lost_messages > 0
            && conn.client_open
            && conn.to_client.iter().any(World::is_losable)
        {
            out.push(Action::LoseMessage(index));
        }
        let repeatable = |up: &Up| matches!(up, Up::Call(call) if call.command != Command::Beat);
        if faults.repeats > 0 && conn.client_open && conn.to_server.iter().any(repeatable) {
            out.push(Action::Repeat(index));
        }
        if faults.server_cuts > 0 && conn.server_open && !stays {
            out.push(Action::ServerCut(index));
        }
        if faults.unsubscribes > 0 && conn.subscribed && !stays {
            out.push(Action::Unsubscribe(index));
        }
    }
    if faults.copies > 0 && world.copy.as_ref() != Some(&world.table) {
        out.push(Action::Copy);
    }
    // An epoch is named by the microsecond of its first command, and a second of the model has but
    // one: data are not lost in the one that an epoch began in.
    let just_begun = world.table.meta.as_ref().is_some_and(|meta| {
        let began = meta.epoch.as_str().split('.').next().and_then(|text| text.parse().ok());
        began == Some(world.server_us())
    });
    if just_begun {
        return;
    }
    for (left, action) in [
        (faults.restarts, Action::Restart),
        (faults.empty_restarts, Action::EmptyRestart),
        (faults.failovers, Action::Failover),
    ] {
        if left > 0 {
            out.push(action);
        }
    }
    if faults.flushes > 0 && world.may_flush() {
        out.push(Action::Flush);
    }
}

impl World {
    /// What G1 promises of FLUSHALL, and no more (see the decision record and the limits in
    /// `variants.rs`): whoever believes, or may on an answer that is under way, is heard of on the
    /// common channel, or says so itself; else the server passes for a fresh one (R5).
    pub fn may_flush(&self) -> bool {
        let known = |index: usize| match self.conn_of(index) {
            Some(conn) => self.conns[conn].server_open && self.conns[conn].subscribed,
            None => self.subscribers(&self.sessions[index].id) > 0,
        };
        let all = || 0..self.sessions.len();
        self.table.meta.is_some() && all().all(|it| known(it) || !self.wants(it))
    }

    /// And until the flush is noticed, by the next command of anyone, all stay so.
    pub fn must_stay(&self) -> bool {
        let unnoticed = self.table.meta.is_none() && self.uptime_s() > 3;
        unnoticed && (0..self.sessions.len()).any(|it| self.wants(it))
    }

    /// May the server read the next thing on this link now?
    pub fn may_arrive(&self, conn: usize) -> bool {
        match self.conns[conn].to_server.front() {
            Some(Up::Close) => !self.must_stay(),
            next => next.is_some(),
        }
    }

    /// Does it hold anything, or may it soon?
    fn wants(&self, index: usize) -> bool {
        let session = &self.sessions[index];
        session.running && session.owners.iter().any(|owner| *owner != Owner::Idle)
    }
}
