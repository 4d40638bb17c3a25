//! What must hold in every state of the [`World`], and after every fair future of one.

use super::{
    Action, SECOND_US, Scope, Up, World,
    session::{Owner, Patience},
};
use lockwarden_core::{Command, Name, Token, limits::W_MS, table::Lock};

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
}

fn broken<T>(guarantee: &'static str, what: String) -> Result<T, Violation> {
    Err(Violation { guarantee, what })
}

impl World {
    /// Whose locks the session would act on now.
    fn believed<'a>(
        &'a self,
        scope: &Scope,
        index: usize,
    ) -> Box<dyn Iterator<Item = (&'a Name, &'a Token)> + 'a> {
        let (session, now_us) = (&self.sessions[index], self.clock(index));
        match scope.planted {
            None | Some(Planted::ReplicaLooksOld | Planted::SilentHolder) => {
                Box::new(session.believed(now_us))
            }
            Some(Planted::BeliefOf30s) => {
                Box::new(session.owners.iter().filter_map(move |owner| {
                    let Owner::Holding { name, token, handle, told: true, .. } = owner else {
                        return None;
                    };
                    let rest_us = 30 * SECOND_US - session.keeping().lease_ms * 1_000;
                    let believed = now_us < session.keeper.lease_end_us(*handle) + rest_us;
                    believed.then_some((name, token))
                }))
            }
        }
    }

    /// Holds in every state.
    pub fn check(&self, scope: &Scope) -> Result<(), Violation> {
        // G1: at no instant do two parties pass the check for one name.
        let mut holders: Vec<(&Name, usize)> = Vec::new();
        let running = |index: &usize| self.sessions[*index].running;
        for index in (0..self.sessions.len()).filter(running) {
            for (name, token) in self.believed(scope, index) {
                if let Some((_, other)) = holders.iter().find(|(held, _)| *held == name) {
                    return broken("G1", format!("s{other} and s{index} ({token}) both believe"));
                }
                holders.push((name, index));
            }
        }
        for (name, lock) in &self.table.locks {
            let tokens = lock.queue.iter().map(|ticket| &ticket.token);
            // G6: what was acknowledged as ended is gone for good.
            let mut all = tokens.clone().chain(lock.key.iter().map(|key| &key.token));
            if let Some(token) = all.find(|token| self.done.contains(*token)) {
                return broken("G6", format!("{token} was ended, and stands in {name}"));
            }
            let mut seen: Vec<_> = tokens.collect();
            seen.sort();
            if seen.windows(2).any(|pair| pair[0] == pair[1]) {
                return broken("table", format!("two tickets of one token in {name}"));
            }
            if let Some(record) = lock.record()
                && self.table.meta.as_ref().is_none_or(|meta| record.fence > meta.fence)
            {
                return broken("table", format!("the fence of {name} is ahead of meta"));
            }
        }
        Ok(())
    }

    /// Holds at every command that the table carries out: `before` is the lock as it was.
    pub fn check_step(
        &mut self,
        scope: &Scope,
        name: &Name,
        before: &Lock,
    ) -> Result<(), Violation> {
        let Some(after) = self.table.locks.get(name) else { return Ok(()) };
        let Some(record) = after.record() else { return Ok(()) };
        let unchanged = before.record().is_some_and(|old| {
            old.fence == record.fence && old.token == record.token && old.session == record.session
        });
        if unchanged {
            return Ok(());
        }
        let (token, fence) = (&record.token, record.fence);
        // G2: strictly, per name, whatever the server lost.
        let highest = self.fences.entry(name.clone()).or_default();
        if fence <= *highest {
            return broken("G2", format!("{token} got fence {fence} after {highest}"));
        }
        *highest = fence;
        self.grants.push((name.clone(), token.clone()));
        // G8: no other session believes any more at the moment of the grant. (Within one session the
        // keeper hears of the grant before its owner does: that is G1's matter.)
        let others = |index: &usize| {
            let session = &self.sessions[*index];
            session.running && session.id != record.session
        };
        for index in (0..self.sessions.len()).filter(others) {
            if self.believed(scope, index).any(|(held, _)| held == name) {
                return broken("G8", format!("{token} was granted while s{index} believes"));
            }
        }
        // G4: first come, first served, among those who live and still wait.
        let now_us = self.server_us();
        let first = before.queue.iter().find(|ticket| {
            let in_time = ticket.deadline_us.is_none_or(|at| at > now_us);
            in_time && self.subscribers(&ticket.session) > 0
        });
        if let Some(first) = first
            && (first.token != *token || first.session != record.session)
        {
            return broken("G4", format!("{token} was granted before {}", first.token));
        }
        // G3: nothing is granted to a session whose link is gone.
        if self.subscribers(&record.session) == 0 {
            return broken(
                "G3",
                format!("{token} was granted to {}, which is gone", record.session),
            );
        }
        Ok(())
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
                    out.push(Action::Ask(index, at, Patience::Endless, 0));
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
