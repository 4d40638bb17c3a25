//! The table alone: what its commands do to a lock, and that doing them twice does no more (G6).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests, though not in functions of one"
)]

mod store;

use lockwarden_core::{
    Command, Message, Name, Reply, Rules, Run, SessionId, Token,
    command::{Absence, Acquire, Mode, Reason, Renew, Wait},
    limits::{DROPS_PER_COMMAND, MAX_FLOOR_AHEAD_US, W_MS},
    party::Party,
    table::{Context, Key, Lock, Messages, Table},
};
use proptest::{prelude::*, test_runner::RngSeed};
use std::sync::Arc;
use store::{Store, T0};

fn name() -> Name {
    Name::new("x").unwrap()
}

fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).unwrap()
}

fn session(text: &str) -> SessionId {
    SessionId::new(text)
}

fn acquire(text: &str, wait: Wait) -> Command {
    Command::Acquire(ask(text, wait))
}

fn ask(text: &str, wait: Wait) -> Acquire {
    Acquire {
        at_least_ms: 0,
        delay_ms: 0,
        endless: false,
        modes: Default::default(),
        also: Default::default(),
        name: name(),
        token: token(text),
        proof: "".into(),
        wait,
        lease_ms: 30_000,
        grace_ms: 5_000,
        floor: 0,
        party: Default::default(),
    }
}

fn release(text: &str) -> Command {
    Command::Release { name: name(), also: Default::default(), token: token(text), lost: false }
}

fn renew(text: &str, lease_ms: u64) -> Command {
    Command::Renew(Renew { also: Default::default(), name: name(), token: token(text), lease_ms })
}

fn cancel(text: &str) -> Command {
    Command::Cancel { also: Default::default(), name: name(), token: token(text), proof: "".into() }
}

impl Store {
    fn run(&mut self, caller: &str, command: &Command) -> (Reply, Messages) {
        self.apply(&session(caller), command)
    }

    fn reply(&mut self, caller: &str, command: &Command) -> Reply {
        self.run(caller, command).0
    }

    fn after_ms(&mut self, ms: u64) -> &mut Store {
        self.now_us += ms * 1_000;
        self.table.expire(self.now_us);
        self
    }

    fn lock(&mut self) -> &mut Lock {
        self.table.locks.get_mut(&name()).unwrap()
    }

    fn holder(&self) -> Option<String> {
        let key = self.table.locks.get(&name())?.key.as_ref()?;
        Some(key.token.to_string())
    }

    fn ttl_ms(&self) -> Option<u64> {
        let key = self.table.locks.get(&name())?.key.as_ref()?;
        Some((key.expires_us? - self.now_us) / 1_000)
    }
}

fn position(reply: &Reply) -> Option<u64> {
    let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
    refusal.position
}

#[test]
fn hands_over_in_order_of_arrival() {
    let mut store = Store::new();
    assert!(matches!(store.reply("a", &acquire("1", Wait::No)), Reply::Granted { .. }));
    assert_eq!(position(&store.reply("b", &acquire("2", Wait::Forever))), Some(0));
    assert_eq!(position(&store.reply("c", &acquire("3", Wait::Forever))), Some(1));
    assert_eq!(position(&store.reply("b", &acquire("2", Wait::Forever))), Some(0));
    let (reply, messages) = store.run("a", &release("1"));
    assert_eq!(reply, Reply::Released);
    // One command hands over and tells the next first (G4, G5).
    let [(c, Message::First { .. }), (b, Message::Grant { lease_ms, .. })] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!((b.as_str(), c.as_str(), *lease_ms), ("b", "c", W_MS));
    assert_eq!(store.reply("b", &renew("2", 30_000)), Reply::Renewed { lease_ms: 30_000 });
    assert_eq!(store.ttl_ms(), Some(30_000));
}

/// R25: one value in two sessions. The passed-over holder neither renews nor releases the other's
/// lock, nor may it be granted.
#[test]
fn same_value_in_two_sessions() {
    let mut store = Store::new();
    store.reply("a", &acquire("task", Wait::No));
    let fence = store.lock().record().unwrap().fence;
    let again = store.reply("a", &acquire("task", Wait::No));
    assert_eq!(again, Reply::Granted { fence, lease_ms: 30_000 });
    assert!(matches!(store.reply("b", &acquire("task", Wait::No)), Reply::Refused(_)));
    store.after_ms(30_000);
    assert!(matches!(store.reply("b", &acquire("task", Wait::No)), Reply::Granted { .. }));
    store.after_ms(1_000);
    for command in [renew("task", 60_000), release("task")] {
        assert_eq!(store.reply("a", &command), Reply::NotHeld(Absence::Taken));
    }
    assert_eq!(store.reply("a", &cancel("task")), Reply::Cancelled { released: false });
    assert_eq!(store.ttl_ms(), Some(29_000));
    assert_eq!(store.reply("b", &release("task")), Reply::Released);
}

/// G6, found by the model: an acquire that was sent again queues, because the lock was lost
/// meanwhile; the release behind it must leave nothing.
#[test]
fn a_release_that_finds_nothing_drops_the_ticket() {
    let mut store = Store::new();
    store.reply("a", &acquire("1", Wait::Forever));
    store.table = Table::default();
    assert!(matches!(store.reply("a", &acquire("1", Wait::Forever)), Reply::Refused(_)));
    assert_eq!(store.lock().queue.len(), 1);
    assert_eq!(store.reply("b", &release("1")), Reply::NotHeld(Absence::Free));
    assert_eq!(store.lock().queue.len(), 1, "another session's release drops nothing");
    assert_eq!(store.reply("a", &release("1")), Reply::NotHeld(Absence::Free));
    assert!(store.table.locks.is_empty());
}

/// R14, R15, R3: what a refused acquire does to the holder's expiry.
#[test]
fn probes() {
    // A closed link: grace, and only once.
    let mut store = Store::new();
    store.reply("a", &acquire("1", Wait::No));
    store.alive.remove(&session("a"));
    store.reply("b", &acquire("2", Wait::No));
    assert_eq!(store.ttl_ms(), Some(5_000));
    store.after_ms(1_000).reply("b", &acquire("2", Wait::No));
    assert_eq!(store.ttl_ms(), Some(4_000));
    // A foreign client took the expiry away.
    let mut store = Store::new();
    store.reply("a", &acquire("1", Wait::No));
    store.lock().key.as_mut().unwrap().expires_us = None;
    store.reply("b", &acquire("2", Wait::No));
    assert_eq!(store.ttl_ms(), Some(30_000));
    // A foreign client's key is left alone, whatever the record beside it says.
    let foreign = Key { token: token("foreign"), expires_us: None };
    store.lock().key = Some(foreign.clone());
    store.alive.remove(&session("a"));
    store.reply("b", &acquire("2", Wait::No));
    assert_eq!(store.lock().key, Some(foreign));
}

/// R16: an alive holder is asked once a second.
#[test]
fn asks_the_holder() {
    let mut store = Store::new();
    store.reply("a", &acquire("1", Wait::No));
    let asked =
        |messages: Messages| messages.iter().any(|(_, it)| matches!(it, Message::Asking { .. }));
    assert!(asked(store.run("b", &acquire("2", Wait::No)).1));
    assert!(!asked(store.run("c", &acquire("3", Wait::No)).1));
    assert!(asked(store.after_ms(1_000).run("c", &acquire("3", Wait::No)).1));
}

/// R26: dead and overdue tickets are in nobody's way, 64 at a time.
#[test]
fn dead_tickets() {
    let mut store = Store::new();
    store.reply("a", &acquire("1", Wait::No));
    store.reply("b", &acquire("overdue", Wait::For(500)));
    for index in 0..DROPS_PER_COMMAND + 5 {
        store.reply("c", &acquire(&format!("c{index}"), Wait::Forever));
    }
    store.reply("b", &acquire("2", Wait::Forever));
    store.alive.remove(&session("c"));
    store.after_ms(600);
    let (reply, messages) = store.run("a", &release("1"));
    assert!(reply == Reply::Released && messages.is_empty() && store.holder().is_none());
    assert!(matches!(store.reply("a", &acquire("3", Wait::No)), Reply::Refused(_)));
    assert_eq!(store.holder().as_deref(), Some("2"), "the living one comes first");
}

/// R5, R6: during the guard nothing is granted, handed on or shortened; releases only delete.
#[test]
fn guard() {
    let mut store = Store::new();
    store.reply("a", &acquire("1", Wait::No));
    store.reply("b", &acquire("2", Wait::Forever));
    store.table.meta.as_mut().unwrap().run = Run::new("before");
    let Reply::Guarded { guard_ms, .. } = store.reply("a", &renew("1", 30_000)) else { panic!() };
    assert_eq!(guard_ms, W_MS);
    store.alive.remove(&session("a"));
    let Reply::Refused(refusal) = store.reply("c", &acquire("3", Wait::No)) else { panic!() };
    assert_eq!(refusal.reason, Reason::Guard { guard_ms: W_MS });
    assert_eq!(store.ttl_ms(), Some(30_000));
    let (reply, messages) = store.run("a", &release("1"));
    assert!(reply == Reply::Released && messages.is_empty() && store.holder().is_none());
    assert!(matches!(store.reply("b", &acquire("2", Wait::Forever)), Reply::Refused(_)));
    store.after_ms(W_MS);
    assert!(matches!(store.reply("b", &acquire("2", Wait::Forever)), Reply::Granted { .. }));
    // No guard where nobody can believe; a promoted replica (uptime 0) is not such a place.
    for (connected, uptime_s, guarded) in [(1, 4, false), (1, 3, true), (1, 0, true), (2, 4, true)]
    {
        let mut fresh = Store { table: Table::default(), uptime_s, ..Store::new() };
        fresh.alive = ["a", "b"].into_iter().take(connected).map(session).collect();
        let refused = matches!(fresh.reply("a", &acquire("1", Wait::No)), Reply::Refused(_));
        assert_eq!(refused, guarded, "{connected} connected, up {uptime_s} s");
    }
}

#[test]
fn stale_unsubscribed_and_floor() {
    let mut store = Store::new();
    store.table.meta = None;
    let alive = store.alive.clone();
    let at = Context {
        now_us: T0,
        run: &Run::new("r2"),
        uptime_s: 9,
        caller: &session("a"),
        caller_run: &Run::new("r"),
        subscribers: &|id| u64::from(alive.contains(id)),
        in_common: 1,
        rules: Rules::ALL,
    };
    let before = store.table.clone();
    assert_eq!(store.table.apply(&at, &acquire("1", Wait::Forever)).0, Reply::Stale);
    assert_eq!(store.table, before, "stale changes nothing");
    let mut store = Store::new();
    for command in [acquire("1", Wait::Forever), renew("1", 1_000)] {
        assert_eq!(store.reply("gone", &command), Reply::Unsubscribed);
    }
    let ahead = |floor| Command::Acquire(Acquire { floor, ..ask("1", Wait::No) });
    let too_far = store.reply("a", &ahead(T0 + MAX_FLOOR_AHEAD_US + 1));
    assert_eq!(too_far, Reply::FloorAhead { now_us: T0 });
    assert!(store.table.locks.is_empty());
    let fence = T0 + MAX_FLOOR_AHEAD_US + 1;
    let granted = store.reply("a", &ahead(T0 + MAX_FLOOR_AHEAD_US));
    assert_eq!(granted, Reply::Granted { fence, lease_ms: 30_000 });
}

/// R5, found by the model: a caller whose own subscription is gone takes the other's for its own, and
/// itself for alone. Its beat would begin an epoch without a guard while the other still believes.
#[test]
fn alone_without_a_subscription_is_not_alone() {
    let mut store = Store { table: Table::default(), ..Store::new() };
    store.alive = [session("a")].into();
    store.reply("b", &Command::Beat);
    assert!(store.table.meta.as_ref().unwrap().guard_until_us > T0);
    let mut store = Store { table: Table::default(), ..Store::new() };
    store.alive.clear();
    store.reply("b", &Command::Beat);
    assert_eq!(store.table.meta.as_ref().unwrap().guard_until_us, 0);
}

/// R32: at once, or delayed by W so that the holder stops first.
#[test]
fn revoke() {
    let revoke =
        |delayed| Command::Revoke { name: name(), token: token("1"), session: None, delayed };
    let mut store = Store::new();
    store.reply("a", &acquire("1", Wait::No));
    store.reply("b", &acquire("2", Wait::Forever));
    assert_eq!(store.reply("c", &revoke(true)), Reply::Revoked { after_ms: W_MS });
    assert_eq!(store.reply("a", &renew("1", 9_000)), Reply::NotHeld(Absence::Revoked));
    assert_eq!(store.ttl_ms(), Some(W_MS));
    let (reply, messages) = store.run("c", &revoke(false));
    assert_eq!(reply, Reply::Revoked { after_ms: 0 });
    assert!(matches!(messages[0].1, Message::Revoked { after_ms: 0, .. }));
    assert_eq!(store.holder().as_deref(), Some("2"));
    assert_eq!(store.reply("c", &revoke(false)), Reply::NotHeld(Absence::Taken));
}

/// R32: a recall tells the holder, by token, and changes nothing.
#[test]
fn recall() {
    let by = || Arc::new(Party { label: "operator".into(), ..Party::default() });
    let recall = |by_token| Command::Recall { name: name(), token: token(by_token), by: by() };
    let mut store = Store::new();
    assert_eq!(store.reply("c", &recall("1")), Reply::NotHeld(Absence::Free));
    store.reply("a", &acquire("1", Wait::No));
    store.reply("b", &acquire("2", Wait::Forever));
    let before = store.table.clone();
    assert_eq!(store.reply("c", &recall("2")), Reply::NotHeld(Absence::Taken));
    for _ in 0..2 {
        let (reply, messages) = store.run("c", &recall("1"));
        let told = Message::Recall { name: name(), token: token("1"), by: by() };
        assert_eq!((reply, messages), (Reply::Recalled, vec![(session("a"), told)]));
    }
    assert_eq!(store.table, before);
    store.lock().key = Some(Key { token: token("theirs"), expires_us: None });
    assert_eq!(store.run("c", &recall("theirs")), (Reply::Foreign, Messages::new()));
}

/// G6, found by the histories: an acquire that is sent again after a delayed revoke must not queue
/// behind its own lock, or the release would grant it again.
#[test]
fn a_revoked_acquisition_does_not_queue() {
    let mut store = Store::new();
    store.reply("a", &acquire("1", Wait::Forever));
    let (token, session) = (token("1"), None);
    store.reply("b", &Command::Revoke { name: name(), token, session, delayed: true });
    assert_eq!(position(&store.reply("a", &acquire("1", Wait::Forever))), None);
    assert_eq!(position(&store.reply("c", &acquire("2", Wait::Forever))), Some(0));
    assert_eq!(store.reply("a", &release("1")), Reply::Released);
    assert_eq!(store.holder().as_deref(), Some("2"));
}

/// The same where there is room for it beside itself: lost is final (G8).
#[test]
fn a_revoked_share_is_not_granted_again() {
    for mode in [Mode::Shared, Mode::Permits { count: 1, of: 3 }] {
        let share =
            |text| Command::Acquire(Acquire { modes: [mode].into(), ..ask(text, Wait::Forever) });
        let mut store = Store::new();
        store.reply("a", &share("1"));
        store.reply("b", &share("2"));
        let (token, session) = (token("1"), None);
        store.reply("b", &Command::Revoke { name: name(), token, session, delayed: true });
        let refused = store.reply("a", &share("1"));
        assert!(matches!(refused, Reply::Refused(_)), "{refused:?}");
        assert_eq!(position(&refused), None);
        // Another acquisition of the same session is another matter.
        assert!(matches!(store.reply("a", &share("3")), Reply::Granted { .. }));
        assert_eq!(store.reply("a", &release("1")), Reply::Released);
    }
}

/// R42, found by the model: whoever waits only because somebody for whom there is no room stands before it, enters when
/// that one gives up, and not at the next recheck.
#[test]
fn those_behind_enter_when_whoever_has_no_room_gives_up() {
    let permits = |count| Mode::Permits { count, of: 2 };
    for (small, large) in [(Mode::Shared, Mode::Exclusive), (permits(1), permits(2))] {
        let asks = |text, mode| {
            Command::Acquire(Acquire { modes: [mode].into(), ..ask(text, Wait::Forever) })
        };
        let mut store = Store::new();
        store.reply("a", &asks("1", small));
        store.reply("b", &asks("2", large));
        assert_eq!(position(&store.reply("c", &asks("3", small))), Some(1));
        let (_, messages) = store.run("b", &cancel("2"));
        let [(to, Message::Grant { token: its, .. })] = &messages[..] else {
            panic!("{messages:?}")
        };
        assert_eq!((to, its), (&session("c"), &token("3")));
    }
}

/// G9, R28: a forgotten queue, an expired key and a lone record leave nothing.
#[test]
fn nothing_is_left() {
    let mut store = Store::new();
    store.reply("a", &acquire("1", Wait::No));
    store.reply("b", &acquire("2", Wait::Forever));
    store.after_ms(59_999);
    assert_eq!(store.lock().queue.len(), 1);
    store.after_ms(1);
    assert!(store.table.locks.is_empty());
}

const CALLERS: [&str; 3] = ["a", "b", "c"];

/// A caller and a command about a token of its own, or a revoke of anyone's. (A value that two
/// sessions use is for [`same_value_in_two_sessions`]; who revokes one names the session.)
fn command() -> impl Strategy<Value = (&'static str, Command)> {
    let wait = prop_oneof![Just(Wait::No), (0..3_000_u64).prop_map(Wait::For), Just(Wait::Forever)];
    let caller = || prop::sample::select(CALLERS.to_vec());
    (caller(), caller(), 1..4_u8, wait, 0..9_u8, 100..20_000_u64).prop_map(
        |(caller, owner, number, wait, kind, lease_ms)| {
            let own = format!("{caller}{number}");
            let command = match kind {
                0..4 => acquire(&own, wait),
                4 => renew(&own, lease_ms),
                5..7 => release(&own),
                7 => cancel(&own),
                _ => Command::Revoke {
                    name: name(),
                    token: token(&format!("{owner}{number}")),
                    session: None,
                    delayed: lease_ms < 10_000,
                },
            };
            (caller, command)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3_000, rng_seed: RngSeed::Fixed(0x10c4), failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// G6: a command that is carried out twice has done what it did once: the same state, the same
    /// grant, and nobody is told twice of a grant.
    #[test]
    fn twice_is_once(
        steps in prop::collection::vec((command(), 0..3_000_u64, any::<bool>()), 1..40),
    ) {
        let mut store = Store::new();
        for ((caller, command), wait_ms, cut) in steps {
            store.after_ms(wait_ms);
            let id = session(caller);
            // A session whose link comes and goes; who asks has one.
            if cut && !store.alive.remove(&id) {
                store.alive.insert(id.clone());
            }
            let reply = store.reply(caller, &command);
            let once = store.table.clone();
            let (again, messages) = store.run(caller, &command);
            prop_assert_eq!(&once, &store.table, "{:?}", command);
            let grants = messages.iter().any(|(_, it)| matches!(it, Message::Grant { .. }));
            prop_assert!(!grants, "{command:?} granted again");
            match (&reply, &again) {
                (Reply::Released, Reply::NotHeld(_)) | (Reply::Cancelled { .. }, Reply::Cancelled { released: false }) => {}
                (Reply::Revoked { after_ms: 0 }, Reply::NotHeld(_)) => {}
                _ => prop_assert_eq!(&reply, &again),
            }
        }
    }
}
