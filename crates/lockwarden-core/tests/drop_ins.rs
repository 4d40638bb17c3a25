//! What the drop-ins need of the table: locks without an end, extensions by a value, and holds that are left to it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests, though not in functions of one"
)]

mod store;

use lockwarden_core::{
    Command, Message, Name, Reply, Run, SessionId, Token,
    command::{Absence, Acquire, Extension, HoldState, HolderView, Reason, Refusal, Renew, Wait},
    limits::{UNSEEN_ENDLESS_MS, W_MS},
    table::{Key, Messages},
};
use store::Store;

const LEASE_MS: u64 = 30_000;
const GRACE_MS: u64 = 5_000;

fn name() -> Name {
    Name::new("x").unwrap()
}

fn value() -> Token {
    Token::new(b"theirs").unwrap()
}

fn ask(proof: &str, endless: bool, wait: Wait) -> Acquire {
    Acquire {
        name: name(),
        also: Default::default(),
        modes: Default::default(),
        token: value(),
        proof: proof.into(),
        wait,
        lease_ms: LEASE_MS,
        grace_ms: GRACE_MS,
        at_least_ms: 0,
        delay_ms: 0,
        endless,
        floor: 0,
        party: Default::default(),
    }
}

fn extend(ms: u64, how: Extension) -> Command {
    Command::ExtendByValue { name: name(), token: value(), ms, how }
}

fn leave() -> Command {
    Command::Leave { name: name(), token: value() }
}

fn release() -> Command {
    Command::Release { name: name(), also: Default::default(), token: value(), lost: false }
}

fn renew() -> Command {
    let (name, also, token) = (name(), Default::default(), value());
    Command::Renew(Renew { name, also, token, lease_ms: LEASE_MS })
}

fn revoke(session: Option<&str>, delayed: bool) -> Command {
    let session = session.map(SessionId::new);
    Command::Revoke { name: name(), token: value(), session, delayed }
}

impl Store {
    fn run(&mut self, caller: &str, command: &Command) -> (Reply, Messages) {
        self.apply(&SessionId::new(caller), command)
    }

    fn reply(&mut self, caller: &str, command: &Command) -> Reply {
        self.run(caller, command).0
    }

    fn hold(&mut self, endless: bool) {
        let reply = self.reply("a", &Command::Acquire(ask("a", endless, Wait::No)));
        assert!(matches!(reply, Reply::Granted { lease_ms: LEASE_MS, .. }), "{reply:?}");
    }

    /// Somebody asks for it, in vain.
    fn refused(&mut self) -> Refusal {
        match self.reply("b", &Command::Acquire(ask("b", false, Wait::No))) {
            Reply::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    /// The server was restarted with all its data, and the guard runs: what it holds is of another run.
    fn begin_anew(&mut self) {
        self.table.meta.as_mut().unwrap().guard_until_us = self.now_us + W_MS * 1_000;
        let lock = self.table.locks.get_mut(&name()).unwrap();
        lock.record.as_mut().unwrap().run = Run::new("before");
    }

    fn after_ms(&mut self, ms: u64) {
        self.now_us += ms * 1_000;
    }

    fn holder(&mut self) -> Option<HolderView> {
        match self.reply("c", &Command::Show { name: name() }) {
            Reply::Shown(view) => view.holder,
            other => panic!("{other:?}"),
        }
    }

    fn ttl_ms(&mut self) -> Option<u64> {
        self.holder().expect("held").ttl_ms
    }

    fn is_endless(&mut self) -> bool {
        let holder = self.holder().expect("held");
        assert!(holder.ttl_ms.is_some() || holder.record.is_some());
        holder.record.is_some_and(|it| it.endless)
    }
}

/// R15: it has no end, and nobody gives it one; R14: but a dead holder does.
#[test]
fn r14_r15_an_endless_lock_ends_with_its_holder() {
    let mut store = Store::new();
    store.hold(true);
    assert_eq!((store.ttl_ms(), store.is_endless()), (None, true));
    store.after_ms(10 * LEASE_MS);
    assert_eq!(store.refused().holder.unwrap().ttl_ms, None);
    assert_eq!(store.reply("a", &renew()), Reply::Renewed { lease_ms: LEASE_MS });
    assert_eq!(store.ttl_ms(), None);
    store.alive.remove(&SessionId::new("a"));
    assert_eq!(store.refused().holder.unwrap().ttl_ms, Some(GRACE_MS));
    // It was cut off only, and shows itself.
    store.alive.insert(SessionId::new("a"));
    store.reply("a", &renew());
    assert_eq!(store.ttl_ms(), None);
    store.alive.remove(&SessionId::new("a"));
    store.refused();
    store.after_ms(GRACE_MS);
    assert_eq!(store.holder(), None);
}

/// Only a value that is the caller's choice may be held without an end.
#[test]
fn without_a_proof_nothing_is_endless() {
    let mut store = Store::new();
    store.hold(false);
    store.reply("a", &release());
    let plain = Command::Acquire(ask("", true, Wait::No));
    assert!(matches!(store.reply("a", &plain), Reply::Granted { .. }));
    assert_eq!((store.ttl_ms(), store.is_endless()), (Some(LEASE_MS), false));
}

/// R27: handed on it is for W, and endless once it is renewed.
#[test]
fn r27_an_endless_lock_is_handed_on_for_w() {
    let mut store = Store::new();
    store.hold(true);
    let waits = Command::Acquire(Acquire {
        token: Token::new(b"next").unwrap(),
        ..ask("b", true, Wait::Forever)
    });
    assert!(matches!(store.reply("b", &waits), Reply::Refused(_)));
    let (reply, messages) = store.run("a", &release());
    assert_eq!(reply, Reply::Released);
    assert!(matches!(messages[..], [(_, Message::Grant { lease_ms: W_MS, .. })]), "{messages:?}");
    assert_eq!((store.ttl_ms(), store.is_endless()), (Some(W_MS), true));
    let renew = Command::Renew(Renew {
        name: name(),
        also: Default::default(),
        token: Token::new(b"next").unwrap(),
        lease_ms: LEASE_MS,
    });
    assert_eq!(store.reply("b", &renew), Reply::Renewed { lease_ms: LEASE_MS });
    assert_eq!(store.ttl_ms(), None);
}

/// R15: after a restart its holder must show itself.
#[test]
fn r15_an_endless_lock_of_another_run() {
    for shows_itself in [false, true] {
        let mut store = Store::new();
        store.hold(true);
        store.begin_anew();
        // R6: not while the guard runs.
        assert!(matches!(store.refused().reason, Reason::Guard { .. }));
        assert_eq!(store.ttl_ms(), None);
        store.after_ms(W_MS);
        assert_eq!(store.refused().holder.unwrap().ttl_ms, Some(UNSEEN_ENDLESS_MS));
        store.after_ms(1_000);
        assert_eq!(store.refused().holder.unwrap().ttl_ms, Some(UNSEEN_ENDLESS_MS - 1_000));
        if shows_itself {
            store.reply("a", &renew());
            store.refused();
            assert_eq!((store.ttl_ms(), store.is_endless()), (None, true));
        } else {
            store.after_ms(UNSEEN_ENDLESS_MS);
            assert_eq!(store.holder(), None);
        }
    }
}

/// Whatever takes it from its holder gives it an end.
#[test]
fn a_revoked_endless_lock_ends() {
    let mut store = Store::new();
    store.hold(true);
    assert_eq!(store.reply("b", &revoke(None, true)), Reply::Revoked { after_ms: W_MS });
    assert_eq!((store.ttl_ms(), store.is_endless()), (Some(W_MS), false));
    assert_eq!(store.reply("a", &renew()), Reply::NotHeld(Absence::Revoked));
    assert_eq!(store.reply("b", &extend(9, Extension::Set)), Reply::NotHeld(Absence::Revoked));
    assert_eq!(store.reply("a", &leave()), Reply::NotHeld(Absence::Revoked));
}

/// As redis-py has it, whoever asks.
#[test]
fn extensions_by_value() {
    let extended = |lease_ms, own| Reply::Extended { lease_ms, own, guard_ms: 0 };
    let mut store = Store::new();
    for how in [Extension::Add, Extension::Replace, Extension::Set] {
        assert_eq!(store.reply("b", &extend(9, how)), Reply::NotHeld(Absence::Free));
    }
    store.hold(false);
    store.after_ms(10_000);
    assert_eq!(store.reply("b", &extend(1_000, Extension::Add)), extended(21_000, false));
    assert_eq!(store.holder().unwrap().record.unwrap().lease_ms, 21_000, "R15");
    assert_eq!(store.reply("b", &extend(90_000, Extension::Replace)), extended(90_000, false));
    // R18: another one's belief ends no sooner; its own it knows.
    assert_eq!(store.reply("b", &extend(1_000, Extension::Set)), extended(90_000, false));
    assert_eq!(store.reply("a", &extend(1_000, Extension::Replace)), extended(1_000, true));
    assert_eq!(store.refused().holder.unwrap().ttl_ms, Some(1_000));
    store.reply("a", &release());
    // One without an end.
    store.hold(true);
    for how in [Extension::Add, Extension::Replace] {
        assert_eq!(store.reply("b", &extend(9, how)), Reply::Endless);
    }
    assert_eq!(store.reply("b", &extend(9, Extension::Set)), extended(LEASE_MS, false));
    assert_eq!((store.ttl_ms(), store.is_endless()), (Some(LEASE_MS), false));
    store.reply("a", &release());
    // A foreign one.
    let key = |expires_us| Some(Key { token: value(), expires_us });
    let now_us = store.now_us;
    store.table.locks.entry(name()).or_default().key = key(None);
    assert_eq!(store.reply("b", &extend(9, Extension::Replace)), Reply::Endless);
    assert_eq!(store.reply("b", &extend(9, Extension::Set)), extended(9, false));
    store.table.locks.entry(name()).or_default().key = key(Some(now_us + 5_000_000));
    assert_eq!(store.reply("b", &extend(9_000, Extension::Add)), extended(14_000, false));
    assert_eq!(store.reply("b", &extend(20, Extension::Replace)), extended(20, false));
    assert_eq!(store.ttl_ms(), Some(20));
}

/// R6: it extends, and no belief follows. R11: nor without a link.
#[test]
fn r6_r11_extensions_that_give_no_belief() {
    let mut store = Store::new();
    store.hold(false);
    store.begin_anew();
    let reply = store.reply("a", &extend(60_000, Extension::Set));
    assert_eq!(reply, Reply::Extended { lease_ms: 60_000, own: true, guard_ms: W_MS });
    store.alive.remove(&SessionId::new("a"));
    assert_eq!(store.reply("a", &extend(9, Extension::Set)), Reply::Unsubscribed);
    assert_eq!(store.ttl_ms(), Some(60_000));
}

/// R43: what only the delay keeps is lost.
#[test]
fn r43_the_delay_is_not_extended() {
    let mut store = Store::new();
    let ask = Acquire { delay_ms: 7_000, ..ask("a", false, Wait::No) };
    store.reply("a", &Command::Acquire(ask));
    let reply = store.reply("b", &extend(1_000, Extension::Add));
    assert_eq!(reply, Reply::Extended { lease_ms: LEASE_MS + 1_000, own: false, guard_ms: 0 });
    assert_eq!(store.ttl_ms(), Some(LEASE_MS + 8_000));
    store.after_ms(LEASE_MS + 1_000);
    assert_eq!(store.reply("b", &extend(9, Extension::Add)), Reply::NotHeld(Absence::Taken));
}

/// It is nobody's, and anybody's who knows the value, until it ends.
#[test]
fn what_is_left_keeps_its_value_and_its_end() {
    let mut store = Store::new();
    store.hold(false);
    store.after_ms(10_000);
    assert_eq!(store.reply("b", &leave()), Reply::NotHeld(Absence::Taken), "another session");
    for _ in 0..2 {
        assert_eq!(store.reply("a", &leave()), Reply::Left, "G6");
    }
    store.alive.remove(&SessionId::new("a"));
    let (_, messages) = store.run("b", &Command::Acquire(ask("b", false, Wait::No)));
    assert!(messages.is_empty(), "nobody is asked: {messages:?}");
    let holder = store.holder().unwrap();
    assert!(holder.is_left() && holder.token == value());
    assert_eq!(holder.record.unwrap().state, HoldState::Cooling);
    assert_eq!(store.ttl_ms(), Some(20_000), "it is not shortened");
    store.alive.insert(SessionId::new("a"));
    // No proof of death ends it, its session does not renew it, and the same acquisition is refused.
    assert_eq!(store.reply("b", &revoke(Some("a"), false)), Reply::NotHeld(Absence::Taken));
    assert_eq!(store.reply("a", &renew()), Reply::NotHeld(Absence::Taken));
    let again = store.reply("a", &Command::Acquire(ask("a", false, Wait::No)));
    assert!(matches!(again, Reply::Refused(_)), "{again:?}");
    // Whoever knows the value goes on with it.
    let reply = store.reply("b", &extend(5_000, Extension::Add));
    assert_eq!(reply, Reply::Extended { lease_ms: 25_000, own: false, guard_ms: 0 });
    let reply = store.reply("b", &extend(50, Extension::Set));
    assert_eq!(reply, Reply::Extended { lease_ms: 50, own: false, guard_ms: 0 });
    store.after_ms(50);
    assert_eq!(store.holder(), None);
    // Or ends it, for whoever waits.
    store.hold(false);
    store.reply("a", &leave());
    let waits = Command::Acquire(Acquire {
        token: Token::new(b"next").unwrap(),
        ..ask("b", false, Wait::Forever)
    });
    assert!(matches!(store.reply("b", &waits), Reply::Refused(_)));
    let (reply, messages) = store.run("c", &revoke(None, false));
    assert_eq!(reply, Reply::Revoked { after_ms: 0 });
    let granted = |message: &Message| matches!(message, Message::Grant { .. });
    assert!(messages.iter().any(|(_, message)| granted(message)), "{messages:?}");
}

/// What nobody else can know, or has no lease, is released.
#[test]
fn what_cannot_be_left_is_released() {
    let mut store = Store::new();
    store.hold(true);
    assert_eq!(store.reply("a", &leave()), Reply::Released);
    store.reply("a", &Command::Acquire(ask("", false, Wait::No)));
    assert_eq!(store.reply("a", &leave()), Reply::Released);
    assert_eq!(store.holder(), None);
    assert_eq!(store.reply("a", &leave()), Reply::NotHeld(Absence::Free));
}
