//! Locks by their values, as the users of other libraries know them: whoever knows the value may extend or release.

use super::{
    Shared,
    acquisition::{Ending, Phase},
    answer,
    outbox::Purpose,
    state::{ANSWER_US, State},
};
use crate::{
    clock,
    error::{Error, StoreError},
};
use lockwarden_core::{
    Command, Epoch, Name, Reply, Token,
    command::{Absence, Extension},
    keeper::{Acknowledged, HandleId, Loss, State as Belief},
    limits,
};
use std::time::Duration;
use tokio::{sync::oneshot, time::Instant};

/// How long an extension waits before it is sent again.
const AGAIN: Duration = Duration::from_millis(20);

/// See [`super::Warden::extend_by_value`].
pub(super) async fn extend(
    shared: &Shared,
    name: Name,
    token: Token,
    duration: Duration,
    how: Extension,
) -> Result<Duration, Error> {
    let given_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let ms = limits::lease(given_ms, limits::MIN_DROP_IN_LEASE_MS)?;
    let until = Instant::now() + Duration::from_micros(ANSWER_US);
    loop {
        let command = Command::ExtendByValue { name: name.clone(), token: token.clone(), ms, how };
        let receiver = shared.ours()?.extend_by_value(command)?;
        return match answer(shared, receiver).await? {
            Reply::Extended { lease_ms, .. } => Ok(Duration::from_millis(lease_ms)),
            Reply::Endless => Err(Error::Endless { name }),
            // Nothing was carried out. The link is mended, or made anew, and then it is sent again.
            Reply::Unsubscribed | Reply::Stale if Instant::now() < until => {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            other => Err(not_its(shared, name, &other)),
        };
    }
}

/// See [`super::Warden::release_by_value`].
pub(super) async fn release(shared: &Shared, name: Name, token: Token) -> Result<(), Error> {
    // A guard of our own releases as it always does, and believes no more before the store hears of it.
    let own = shared.ours()?.release_own(&name, &token);
    if let Some(own) = own {
        match own.await.unwrap_or(Err(Error::Closed)) {
            // It was another's by now, of the same value.
            Err(Error::Lost { .. } | Error::ReleasedOrLost { .. }) => {}
            other => return other,
        }
    }
    let command = Command::Revoke { name: name.clone(), token, session: None, delayed: false };
    let receiver = shared.ours()?.ask(command);
    match answer(shared, receiver).await? {
        Reply::Revoked { .. } => Ok(()),
        other => Err(not_its(shared, name, &other)),
    }
}

/// Why there was nothing of that value.
fn not_its(shared: &Shared, name: Name, reply: &Reply) -> Error {
    let absence = match reply {
        Reply::NotHeld(absence) => *absence,
        // A value of another type.
        Reply::NotALock => Absence::Taken,
        other => return shared.unexpected(other),
    };
    Error::Lost { name, loss: Loss::NotHeld(absence) }
}

impl State {
    /// The acquisition of ours that holds a lock by this value.
    fn holder_by(&self, name: &Name, token: &Token) -> Option<HandleId> {
        let id = self.id_of(name, token)?;
        self.acquisitions.get(&id).filter(|it| it.phase == Phase::Held).map(|_| id)
    }

    /// Asks the store to extend by a value.
    fn extend_by_value(
        &mut self,
        command: Command,
    ) -> Result<oneshot::Receiver<Result<Reply, StoreError>>, Error> {
        let (reply, receiver) = oneshot::channel();
        let now_us = clock::now_us();
        if let Command::ExtendByValue { name, token, ms, how } = &command
            && let Some(id) = self.holder_by(name, token)
            && let Some(acquisition) = self.acquisitions.get(&id)
        {
            if !acquisition.ask.also.is_empty() {
                let rule = "is held together with others, which end together";
                return Err(Error::Invalid(format!("the lock {name} {rule}")));
            }
            if let Some(rest_ms) = self.keeper.rest_ms(id, now_us)
                && (*how == Extension::Add || rest_ms < *ms)
            {
                let rule = format!("it may be held for {rest_ms} ms more");
                let text = format!("the lock {name} cannot be extended: {rule} (hold at most)");
                return Err(Error::Invalid(text));
            }
            if *how != Extension::Add {
                // It may be shorter than what we believe in (G1).
                self.keeper.may_shorten(now_us, id, *ms);
            }
        }
        if !self.ended {
            self.push(Purpose::ExtendByValue(command, reply));
        }
        Ok(receiver)
    }

    /// The store has extended by a value: if it says that this session holds the lock, then so does our guard, for as long.
    pub(super) fn extended_by_value(
        &mut self,
        now_us: u64,
        command: &Command,
        sent_us: u64,
        epoch: Option<&Epoch>,
        answer: &Result<Reply, StoreError>,
    ) {
        let Command::ExtendByValue { name, token, .. } = command else { return };
        let (Ok(Reply::Extended { lease_ms, own: true, guard_ms }), Some(epoch)) = (answer, epoch)
        else {
            return;
        };
        let Some(id) = self.holder_by(name, token) else { return };
        if *guard_ms > 0 {
            return self.keeper.guarded(now_us, id, sent_us, *lease_ms, *guard_ms);
        }
        let (lease_ms, epoch) = (*lease_ms, epoch.clone());
        self.keeper.renewed(now_us, id, Acknowledged { sent_us, lease_ms, epoch });
    }

    /// Releases what a guard of ours holds by a value that its caller chose.
    fn release_own(
        &mut self,
        name: &Name,
        token: &Token,
    ) -> Option<oneshot::Receiver<Result<(), Error>>> {
        let id = self.holder_by(name, token)?;
        if self.acquisitions.get(&id)?.ask.proof.is_empty() {
            // Other guards of its owner may hold it, too, or other locks with it: they hear that it was taken away.
            self.keeper.lost(id, Loss::Revoked);
            self.wake();
            return None;
        }
        let (reply, receiver) = oneshot::channel();
        self.leave(id, Ending::Release, Some(reply));
        Some(receiver)
    }

    /// May somebody who knows its value have extended it, so that it is not over where our belief is? It is not renewed,
    /// and ends by itself.
    pub(super) fn may_be_extended(&self, id: HandleId) -> bool {
        self.acquisitions.get(&id).is_some_and(|it| {
            it.phase == Phase::Held && !it.ask.proof.is_empty() && !it.keeping.renew
        })
    }

    /// Gives back an endless lock that we have lost: nothing else ends it, and clients of other libraries do not ask for
    /// it (G3).
    pub(super) fn give_up_endless(&mut self, id: HandleId) {
        let Some(acquisition) = self.acquisitions.get(&id) else { return };
        let state = self.keeper.state_at(id, clock::now_us());
        if acquisition.phase == Phase::Held
            && acquisition.ask.endless
            && matches!(state, Some(Belief::Lost(_)))
        {
            let (name, token) = (acquisition.ask.name.clone(), acquisition.ask.token.clone());
            self.disown(&name, &token, true);
        }
    }
}
