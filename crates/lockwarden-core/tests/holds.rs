//! What may become of a hold beside being renewed and released: the minimum and the delay after a crash (R33, R43), other
//! modes, hand-over (R32).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests, though not in functions of one"
)]

mod store;

use lockwarden_core::{
    Command, Message, Name, Reply, SessionId, Token,
    command::{Absence, Acquire, HoldState, LockView, Mode, Reason, Renew, Wait},
    limits::W_MS,
    table::Messages,
};
use store::Store;

const LEASE_MS: u64 = 30_000;
const GRACE_MS: u64 = 5_000;
const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 2, of: 3 }];

fn name() -> Name {
    Name::new("x").unwrap()
}

fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).unwrap()
}

fn ask(text: &str, wait: Wait) -> Acquire {
    Acquire {
        name: name(),
        also: Default::default(),
        modes: Default::default(),
        token: token(text),
        proof: "".into(),
        wait,
        lease_ms: LEASE_MS,
        grace_ms: GRACE_MS,
        at_least_ms: 0,
        delay_ms: 0,
        endless: false,
        floor: 0,
        party: Default::default(),
    }
}

/// For which there is no room beside a holder of that one.
fn against(mode: Mode) -> Mode {
    match mode {
        Mode::Permits { of, .. } => Mode::Permits { count: of, of },
        Mode::Exclusive | Mode::Shared => Mode::Exclusive,
    }
}

fn of(mode: Mode, ask: Acquire) -> Acquire {
    Acquire { modes: [mode].into(), ..ask }
}

fn release(text: &str) -> Command {
    Command::Release { name: name(), also: Default::default(), token: token(text), lost: false }
}

fn renew(text: &str) -> Command {
    let (name, also, token) = (name(), Default::default(), token(text));
    Command::Renew(Renew { name, also, token, lease_ms: LEASE_MS })
}

/// By the same token; alone by a new one.
fn convert(text: &str, to: Mode) -> Command {
    let new_token = match to {
        Mode::Exclusive => token(&format!("{text}w")),
        _ => token(text),
    };
    Command::Convert { name: name(), token: token(text), to, new_token, floor: 0 }
}

fn hand_over(text: &str, to: &str, lease_ms: u64) -> Command {
    let (name, also) = (name(), Default::default());
    Command::HandOver { name, also, token: token(text), to: token(to), lease_ms }
}

/// By proof of its session's death.
fn died(text: &str, session: &str) -> Command {
    let session = Some(SessionId::new(session));
    Command::Revoke { name: name(), token: token(text), session, delayed: false }
}

fn revoke(text: &str, delayed: bool) -> Command {
    Command::Revoke { name: name(), token: token(text), session: None, delayed }
}

impl Store {
    fn run(&mut self, caller: &str, command: &Command) -> (Reply, Messages) {
        self.apply(&SessionId::new(caller), command)
    }

    fn reply(&mut self, caller: &str, command: &Command) -> Reply {
        self.run(caller, command).0
    }

    /// Acquires, and says the fence.
    fn acquire(&mut self, caller: &str, ask: Acquire) -> u64 {
        match self.reply(caller, &Command::Acquire(ask)) {
            Reply::Granted { fence, .. } => fence,
            other => panic!("{other:?}"),
        }
    }

    fn is_refused(&mut self, caller: &str, ask: Acquire) -> bool {
        match self.reply(caller, &Command::Acquire(ask)) {
            Reply::Granted { .. } => false,
            Reply::Refused(_) => true,
            other => panic!("{other:?}"),
        }
    }

    fn after_ms(&mut self, ms: u64) {
        self.now_us += ms * 1_000;
    }

    fn show(&mut self) -> LockView {
        match self.reply("c", &Command::Show { name: name() }) {
            Reply::Shown(view) => *view,
            other => panic!("{other:?}"),
        }
    }

    /// How the first holder holds it, and for how long still, in ms.
    fn hold(&mut self) -> Option<(HoldState, u64)> {
        let holder = self.show().holder?;
        Some((holder.record?.state, holder.ttl_ms?))
    }
}

/// R33: a release before the minimum is over leaves the lock to nobody until then, in every mode; nothing that its
/// holder still sends changes that.
#[test]
fn an_early_release_cools() {
    for mode in MODES {
        let mut store = Store::new();
        store.acquire("a", of(mode, Acquire { at_least_ms: 10_000, ..ask("1", Wait::No) }));
        store.after_ms(4_000);
        assert_eq!(store.reply("a", &release("1")), Reply::Released);
        assert_eq!(store.hold(), Some((HoldState::Cooling, 6_000)));
        // Once more, as after a lost answer (G6).
        assert_eq!(store.reply("a", &release("1")), Reply::Released);
        assert_eq!(store.reply("a", &renew("1")), Reply::NotHeld(Absence::Taken));
        assert!(store.is_refused("a", of(against(mode), ask("3", Wait::No))));
        assert_eq!(store.reply("b", &died("1", "a")), Reply::NotHeld(Absence::Taken));
        store.alive.remove(&SessionId::new("a"));
        // Neither probed nor asked for nor repaired.
        let (reply, messages) =
            store.run("b", &Command::Acquire(of(against(mode), ask("2", Wait::For(60_000)))));
        let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
        assert_eq!(refusal.reason, Reason::Held);
        assert_eq!((messages, store.hold()), (vec![], Some((HoldState::Cooling, 6_000))));
        store.after_ms(6_000);
        store.acquire("b", of(against(mode), ask("2", Wait::For(60_000))));
    }
}

/// R33: when it is over already, a release is one.
#[test]
fn a_late_release_frees() {
    let mut store = Store::new();
    store.acquire("a", Acquire { at_least_ms: 10_000, ..ask("1", Wait::No) });
    store.reply("b", &Command::Acquire(ask("2", Wait::Forever)));
    store.after_ms(10_000);
    let (reply, messages) = store.run("a", &release("1"));
    assert_eq!(reply, Reply::Released);
    assert!(matches!(&messages[..], [(_, Message::Grant { .. })]), "{messages:?}");
}

/// A cancelled acquire never was a job: no minimum holds.
#[test]
fn what_was_given_up_does_not_cool() {
    let mut store = Store::new();
    store.acquire("a", Acquire { at_least_ms: 10_000, ..ask("1", Wait::No) });
    let (name, also, token) = (name(), Default::default(), token("1"));
    let cancel = Command::Cancel { name, also, token, proof: "".into() };
    assert_eq!(store.reply("a", &cancel), Reply::Cancelled { released: true });
    assert_eq!(store.hold(), None);
}

/// R33, R43: after a crash the lock is granted after max(grace, rest of the minimum) where its link is closed, after
/// the rest of the minimum where its death is proven, after the lease where it is only silent; the delay on top.
#[test]
fn a_crash_waits_for_the_minimum_and_the_delay() {
    for mode in MODES {
        for (at_least_ms, delay_ms) in
            [(0, 0), (20_000, 0), (0, 7_000), (4_000, 7_000), (60_000, 1)]
        {
            let begun = || {
                let mut store = Store::new();
                let ask = Acquire { at_least_ms, delay_ms, ..ask("1", Wait::No) };
                store.acquire("a", of(mode, ask));
                store.after_ms(1_000);
                store.alive.remove(&SessionId::new("a"));
                store
            };
            // Closed.
            let mut store = begun();
            assert!(store.is_refused("b", of(against(mode), ask("2", Wait::No))));
            let ends_ms = (GRACE_MS + delay_ms).max(at_least_ms.saturating_sub(1_000));
            assert_eq!(store.hold(), Some((HoldState::Held, ends_ms)));
            store.after_ms(ends_ms - 1);
            assert_eq!(store.show().holder.unwrap().is_delayed(), delay_ms > 0);
            store.after_ms(1);
            assert_eq!(store.hold(), None);
            // Proven dead.
            let mut store = begun();
            let after_ms = delay_ms.max(at_least_ms.saturating_sub(1_000));
            assert_eq!(store.reply("b", &died("1", "a")), Reply::Revoked { after_ms });
            let cooling = (after_ms > 0).then_some((HoldState::Cooling, after_ms));
            assert_eq!(store.hold(), cooling);
            // Silent.
            let mut store = begun();
            let ends_ms = (LEASE_MS + delay_ms).max(at_least_ms) - 1_000;
            assert_eq!(store.hold(), Some((HoldState::Held, ends_ms)));
        }
    }
}

/// R43: whoever gives back what it has lost already does not make it free.
#[test]
fn what_was_lost_waits_for_the_delay() {
    for mode in MODES {
        let mut store = Store::new();
        store.acquire("a", of(mode, Acquire { delay_ms: 7_000, ..ask("1", Wait::No) }));
        store.after_ms(1_000);
        let (name, also) = (name(), Default::default());
        let lost = Command::Release { name, also, token: token("1"), lost: true };
        assert_eq!(store.reply("a", &lost), Reply::Released);
        assert_eq!(store.hold(), Some((HoldState::Cooling, 7_000)));
        assert_eq!(store.reply("a", &lost), Reply::Released);
        store.after_ms(7_000);
        store.acquire("b", of(mode, Acquire { delay_ms: 7_000, ..ask("2", Wait::No) }));
        assert_eq!(store.reply("b", &release("2")), Reply::Released);
        assert_eq!(store.hold(), None, "not lost");
    }
}

/// R27, R43: a hand-off has them, too, and a renewal keeps them.
#[test]
fn who_waited_has_a_minimum_and_a_delay() {
    let mut store = Store::new();
    store.acquire("a", ask("1", Wait::No));
    let second = Acquire { at_least_ms: 20_000, delay_ms: 2_000, ..ask("2", Wait::Forever) };
    store.reply("b", &Command::Acquire(second));
    store.reply("a", &release("1"));
    assert_eq!(store.hold(), Some((HoldState::Held, 20_000)));
    store.after_ms(19_000);
    assert_eq!(store.reply("b", &renew("2")), Reply::Renewed { lease_ms: LEASE_MS });
    assert_eq!(store.hold(), Some((HoldState::Held, LEASE_MS + 2_000)));
    store.after_ms(2_000);
    assert_eq!(store.reply("b", &release("2")), Reply::Released);
    assert_eq!(store.hold(), None);
}

/// R32: an operator waits for neither.
#[test]
fn an_operator_revokes_what_cools() {
    let mut store = Store::new();
    store.acquire("a", Acquire { at_least_ms: 10_000, delay_ms: 9_000, ..ask("1", Wait::No) });
    assert_eq!(store.reply("c", &revoke("1", true)), Reply::Revoked { after_ms: W_MS });
    assert_eq!(store.reply("a", &release("1")), Reply::Released);
    assert_eq!(store.hold(), None);
    store.acquire("a", Acquire { at_least_ms: 10_000, delay_ms: 9_000, ..ask("3", Wait::No) });
    store.reply("a", &release("3"));
    let shown = store.show().holder.unwrap().token;
    let revoke = Command::Revoke { name: name(), token: shown, session: None, delayed: false };
    assert_eq!(store.reply("c", &revoke), Reply::Revoked { after_ms: 0 });
    assert_eq!(store.hold(), None);
}

/// A writer that reads on lets the readers at the head in, in the same step.
#[test]
fn a_downgrade_lets_readers_in() {
    let mut store = Store::new();
    let fence = store.acquire("a", ask("1", Wait::No));
    for (caller, text, mode) in
        [("b", "2", Mode::Shared), ("c", "3", Mode::Exclusive), ("b", "4", Mode::Shared)]
    {
        assert!(store.is_refused(caller, of(mode, ask(text, Wait::Forever))));
    }
    store.after_ms(5_000);
    let (reply, messages) = store.run("a", &convert("1", Mode::Shared));
    assert_eq!(reply, Reply::Converted { fence });
    let granted = |(_, message): &_| match message {
        Message::Grant { token, .. } => Some(token.to_string()),
        _ => None,
    };
    assert_eq!(messages.iter().filter_map(granted).collect::<Vec<_>>(), ["2"], "up to the writer");
    let view = store.show();
    assert_eq!((view.beside.len(), view.queue.len()), (1, 2));
    // Once more (G6), and it is renewed and released as a reader.
    assert_eq!(store.reply("a", &convert("1", Mode::Shared)), Reply::Converted { fence });
    assert_eq!(store.reply("a", &renew("1")), Reply::Renewed { lease_ms: LEASE_MS });
    assert_eq!(store.reply("a", &release("1")), Reply::Released);
    assert_eq!(store.hold().unwrap().0, HoldState::Held);
}

/// A reader becomes the writer if it is the only one; two who both want to are refused both, and none waits.
#[test]
fn an_upgrade_is_refused_beside_others() {
    let mut store = Store::new();
    let one = store.acquire("a", of(Mode::Shared, ask("1", Wait::No)));
    let two = store.acquire("b", of(Mode::Shared, ask("2", Wait::No)));
    for (caller, text, other) in [("a", "1", "2"), ("b", "2", "1")] {
        let reply = store.reply(caller, &convert(text, Mode::Exclusive));
        let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
        assert_eq!(refusal.holder.unwrap().token, token(other));
    }
    assert_eq!(store.reply("b", &release("2")), Reply::Released);
    store.after_ms(4_000);
    let Reply::Converted { fence } = store.reply("a", &convert("1", Mode::Exclusive)) else {
        panic!("alone")
    };
    assert!(fence > one.max(two), "G2");
    assert_eq!(store.hold(), Some((HoldState::Held, LEASE_MS - 4_000)), "the lease is the same");
    assert_eq!(store.reply("a", &convert("1", Mode::Exclusive)), Reply::Converted { fence });
    assert!(store.is_refused("b", of(Mode::Shared, ask("2", Wait::No))));
    assert_eq!(store.reply("a", &renew("1")), Reply::NotHeld(Absence::Taken), "as a reader");
    assert_eq!(store.reply("a", &release("1w")), Reply::Released);
    assert_eq!(store.hold(), None);
}

/// G1: after a restart from a snapshot that is older than an upgrade, the writer that believes finds nothing to renew.
#[test]
fn an_old_snapshot_does_not_take_a_writer_for_a_reader() {
    let mut store = Store::new();
    store.acquire("a", of(Mode::Shared, ask("1", Wait::No)));
    let snapshot = store.table.clone();
    assert!(matches!(store.reply("a", &convert("1", Mode::Exclusive)), Reply::Converted { .. }));
    store.table = snapshot;
    assert_eq!(store.reply("a", &renew("1w")), Reply::NotHeld(Absence::Taken));
}

/// G2: where an old snapshot has the lock exclusive that was shared since, an upgrade has a new fence all the same.
#[test]
fn an_old_snapshot_gives_no_old_fence() {
    let mut store = Store::new();
    let one = store.acquire("a", ask("1", Wait::No));
    let snapshot = store.table.clone();
    store.reply("a", &convert("1", Mode::Shared));
    store.after_ms(10);
    let two = store.acquire("b", of(Mode::Shared, ask("2", Wait::No)));
    store.table = snapshot;
    let (name, token, new_token) = (name(), token("1"), token("1w"));
    let upgrade = Command::Convert { name, token, to: Mode::Exclusive, new_token, floor: two };
    let Reply::Converted { fence } = store.reply("a", &upgrade) else { panic!("alone") };
    assert!(fence > two && two > one);
}

/// R34: a conversion believes no absurd floor.
#[test]
fn a_conversion_takes_no_absurd_floor() {
    let mut store = Store::new();
    store.acquire("a", of(Mode::Shared, ask("1", Wait::No)));
    let (name, token, new_token) = (name(), token("1"), token("1w"));
    let floor = u64::MAX - 1;
    let upgrade = Command::Convert { name, token, to: Mode::Exclusive, new_token, floor };
    assert!(matches!(store.reply("a", &upgrade), Reply::FloorAhead { .. }));
}

/// R32: in the rest of a minimum or of a delay nothing is adopted any more; and whoever gives up adopting takes nothing.
#[test]
fn the_time_to_adopt_ends() {
    let mut store = Store::new();
    let ask_long = Acquire { at_least_ms: 60_000, delay_ms: 60_000, ..ask("1", Wait::No) };
    store.acquire("a", ask_long);
    store.reply("a", &hand_over("1", "new", 1_000));
    let (name, also, token) = (name(), Default::default(), token("new"));
    let cancel = Command::Cancel { name, also, token, proof: "".into() };
    assert_eq!(store.reply("a", &cancel), Reply::Cancelled { released: false });
    store.after_ms(1_000);
    let adopt = Command::Acquire(ask("new", Wait::Adopt));
    assert_eq!(store.reply("b", &adopt), Reply::NotHeld(Absence::Taken));
    assert_eq!(store.hold().unwrap().0, HoldState::HandedOver);
}

/// Only who has it converts it, and never to or from permits.
#[test]
fn others_do_not_convert() {
    let mut store = Store::new();
    assert_eq!(store.reply("a", &convert("1", Mode::Shared)), Reply::NotHeld(Absence::Free));
    store.acquire("a", ask("1", Wait::No));
    assert_eq!(store.reply("b", &convert("1", Mode::Shared)), Reply::NotHeld(Absence::Taken));
    let in_use = Mode::Exclusive;
    assert_eq!(store.reply("a", &convert("1", MODES[2])), Reply::OtherMode { at: 0, in_use });
    store.reply("c", &revoke("1", true));
    assert_eq!(store.reply("a", &convert("1", Mode::Shared)), Reply::NotHeld(Absence::Revoked));
    store.alive.remove(&SessionId::new("a"));
    assert_eq!(store.reply("a", &convert("1", Mode::Shared)), Reply::Unsubscribed);
}

/// R32: from the giver to whoever knows the token, and to nobody in between; the fence grows; the giver can do nothing.
#[test]
fn a_hand_over_is_adopted_once() {
    for mode in MODES {
        let mut store = Store::new();
        let fence = store.acquire("a", of(mode, ask("1", Wait::No)));
        assert_eq!(
            store.reply("b", &hand_over("1", "new", 60_000)),
            Reply::NotHeld(Absence::Taken)
        );
        assert_eq!(store.reply("a", &hand_over("1", "new", 60_000)), Reply::HandedOver);
        assert_eq!(store.hold(), Some((HoldState::HandedOver, 60_000)));
        assert_eq!(store.reply("a", &hand_over("1", "new", 60_000)), Reply::HandedOver, "G6");
        // Whatever becomes of the giver.
        store.alive.remove(&SessionId::new("a"));
        assert!(store.is_refused("b", of(against(mode), ask("2", Wait::No))));
        for text in ["1", "new"] {
            assert_eq!(store.reply("b", &died(text, "a")), Reply::NotHeld(Absence::Taken));
            assert_eq!(store.reply("b", &renew(text)), Reply::NotHeld(Absence::Taken));
        }
        assert_eq!(store.hold(), Some((HoldState::HandedOver, 60_000)));
        // The wrong token.
        let adopt = |text| Command::Acquire(ask(text, Wait::Adopt));
        assert_eq!(store.reply("b", &adopt("1")), Reply::NotHeld(Absence::Taken));
        store.after_ms(50_000);
        let Reply::Granted { fence: newer, lease_ms } = store.reply("b", &adopt("new")) else {
            panic!("adopted")
        };
        assert!(newer > fence && lease_ms == LEASE_MS);
        let record = store.show().holder.unwrap().record.unwrap();
        assert_eq!((record.mode, record.state), (mode, HoldState::Held));
        // Again by the same, as after a lost answer; and not by another.
        assert!(
            matches!(store.reply("b", &adopt("new")), Reply::Granted { fence, .. } if fence == newer)
        );
        assert_eq!(store.reply("c", &adopt("new")), Reply::NotHeld(Absence::Taken));
        store.alive.insert(SessionId::new("a"));
        assert_eq!(store.reply("a", &hand_over("1", "new", 60_000)), Reply::HandedOver, "it was");
        assert_eq!(store.reply("a", &release("1")), Reply::NotHeld(Absence::Taken));
        assert_eq!(store.reply("b", &release("new")), Reply::Released);
        assert_eq!(store.hold(), None);
    }
}

/// What nobody adopts in time is free, and then an adoption takes nothing.
#[test]
fn a_hand_over_ends() {
    let mut store = Store::new();
    store.acquire("a", ask("1", Wait::No));
    store.reply("a", &hand_over("1", "new", 1_000));
    store.after_ms(1_000);
    let adopt = Command::Acquire(ask("new", Wait::Adopt));
    assert_eq!(store.reply("b", &adopt), Reply::NotHeld(Absence::Free));
    assert_eq!(store.hold(), None);
    // The giver may take it back before.
    store.acquire("a", ask("2", Wait::No));
    store.reply("a", &hand_over("2", "new", 1_000));
    assert_eq!(store.reply("a", &release("new")), Reply::Released);
    assert_eq!(store.hold(), None);
}

/// R33: the minimum is that of the work, whoever does it.
#[test]
fn a_minimum_is_handed_over() {
    let mut store = Store::new();
    store.acquire("a", Acquire { at_least_ms: 20_000, ..ask("1", Wait::No) });
    store.reply("a", &hand_over("1", "new", 1_000));
    assert_eq!(store.hold(), Some((HoldState::HandedOver, 20_000)));
    store.acquire("b", ask("new", Wait::Adopt));
    store.after_ms(1_000);
    assert_eq!(store.reply("b", &release("new")), Reply::Released);
    assert_eq!(store.hold(), Some((HoldState::Cooling, 19_000)));
}

/// Several locks are handed over together, and adopted together, or not at all.
#[test]
fn several_are_handed_over_together() {
    let mut store = Store::new();
    let also: std::sync::Arc<[Name]> = ["y", "z"].map(|text| Name::new(text).unwrap()).into();
    let all = |text, wait| Acquire { also: also.clone(), ..ask(text, wait) };
    store.acquire("a", all("1", Wait::No));
    let (name, also, to) = (name(), also.clone(), token("new"));
    let give =
        Command::HandOver { name, also: also.clone(), token: token("1"), to, lease_ms: 9_000 };
    assert_eq!(store.reply("a", &give), Reply::HandedOver);
    assert!(matches!(
        store.reply("b", &Command::Acquire(Acquire { also: [].into(), ..ask("2", Wait::No) })),
        Reply::Refused(_)
    ));
    store.acquire("b", all("new", Wait::Adopt));
    let release = Command::Release { name: self::name(), also, token: token("new"), lost: false };
    assert_eq!(store.reply("b", &release), Reply::Released);
    store.table.expire(store.now_us);
    assert!(store.table.locks.is_empty());
}

/// R6: during the guard nothing is adopted, and no reader becomes a writer.
#[test]
fn the_guard_holds() {
    let mut store = Store::new();
    store.acquire("a", of(Mode::Shared, ask("1", Wait::No)));
    store.table.meta.as_mut().unwrap().guard_until_us = store.now_us + 2_000_000;
    let guarded = Reply::Guarded { lease_ms: 0, guard_ms: 2_000 };
    assert_eq!(store.reply("a", &convert("1", Mode::Exclusive)), guarded);
    assert_eq!(store.reply("a", &hand_over("1", "new", 9_000)), Reply::HandedOver);
    let Reply::Refused(refusal) = store.reply("b", &Command::Acquire(ask("new", Wait::Adopt)))
    else {
        panic!("guarded")
    };
    assert_eq!(refusal.reason, Reason::Guard { guard_ms: 2_000 });
    store.after_ms(2_000);
    store.acquire("b", ask("new", Wait::Adopt));
}

/// Whoever asks for one lock is not taken for whoever waits for another by the same value: that one is told by message.
#[test]
fn a_value_that_comes_twice_is_two_acquisitions() {
    let mut store = Store::new();
    let y = || Name::new("y").unwrap();
    let at_y = |text, wait, mode| of(mode, Acquire { name: y(), ..ask(text, wait) });
    store.acquire("a", ask("1", Wait::No));
    store.acquire("b", at_y("2", Wait::No, Mode::Exclusive));
    // A request for x, and for y to read; behind it at y a reader, by a value that asks for x, too.
    let request = Acquire {
        also: [y()].into(),
        modes: [Mode::Exclusive, Mode::Shared].into(),
        ..ask("3", Wait::Forever)
    };
    assert!(store.is_refused("a", request));
    assert!(store.is_refused("c", at_y("4", Wait::Forever, Mode::Shared)));
    let release_y = |text| {
        let (name, also, token) = (y(), Default::default(), token(text));
        Command::Release { name, also, token, lost: false }
    };
    assert_eq!(store.reply("b", &release_y("2")), Reply::Released);
    // x is free, and whoever asks for it serves those before it first.
    store.table.locks.get_mut(&name()).unwrap().key = None;
    let (reply, messages) = store.run("c", &Command::Acquire(ask("4", Wait::No)));
    assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
    let granted: Vec<String> = messages
        .iter()
        .filter_map(|(_, message)| match message {
            Message::Grant { name, token, .. } => Some(format!("{name} {token}")),
            _ => None,
        })
        .collect();
    assert_eq!(granted, ["x 3", "y 4"]);
}
