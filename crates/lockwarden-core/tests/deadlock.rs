//! G7: a request that would close a cycle of waits is refused at once, and no other is.
#![allow(clippy::unwrap_used, reason = "tests")]

mod store;

use lockwarden_core::{
    Command, Name, Reply, SessionId, Token,
    command::{Acquire, HoldState, Renew, Wait},
    deadlock::is_part_of,
    limits::LONGEST_CYCLE,
    name,
    party::Party,
    table::{Lock, Request, Ticket},
};
use proptest::prelude::*;
use std::{collections::BTreeSet, sync::Arc};
use store::Store;

fn named(number: usize) -> Name {
    Name::new(&format!("n{number}")).unwrap()
}

/// One of three sessions.
fn session(number: usize) -> SessionId {
    SessionId::new(["a", "b", "c"][number % 3])
}

/// Owners 4 and 5 are parts of 0 and of 4.
fn of(owner: usize) -> Arc<str> {
    match owner {
        4 => "o0/4".into(),
        5 => "o0/4/5".into(),
        owner => format!("o{owner}").into(),
    }
}

fn ask(owner: usize, number: usize, token: &str, wait: Wait) -> Acquire {
    let party = Party { owner: of(owner), ..Party::default() };
    Acquire {
        at_least_ms: 0,
        delay_ms: 0,
        endless: false,
        modes: Default::default(),
        also: Default::default(),
        name: named(number),
        token: Token::new(token.as_bytes()).unwrap(),
        proof: "".into(),
        wait,
        lease_ms: 30_000,
        grace_ms: 3_000,
        floor: 0,
        party: Arc::new(party),
    }
}

/// Of all names whose bits are set, at once.
fn ask_all(owner: usize, set: usize, token: &str, wait: Wait) -> Acquire {
    let numbers: Vec<usize> = (0..4).filter(|number| set >> number & 1 == 1).collect();
    let also = numbers[1..].iter().map(|number| named(*number)).collect();
    Acquire { also, ..ask(owner, numbers[0], token, wait) }
}

impl Store {
    fn run(&mut self, caller: usize, command: &Command) -> Reply {
        self.now_us += 1_000;
        self.apply(&session(caller), command).0
    }

    fn acquire(&mut self, owner: usize, number: usize, token: &str) -> Reply {
        self.run(owner, &Command::Acquire(ask(owner, number, token, Wait::Forever)))
    }

    fn lives(&self, ticket: &Ticket) -> bool {
        let request = self.table.requests.get(&ticket.token);
        (!ticket.several || request.is_some_and(|it| it.expires_us > self.now_us))
            && self.alive.contains(&ticket.session)
            && ticket.deadline_us.is_none_or(|at| at > self.now_us)
    }

    /// A lock that is free goes to whoever waits for it first, as it does when anyone asks for it.
    fn settle(&mut self, caller: usize, name: &Name) {
        let nobodys =
            Acquire { name: name.clone(), party: Arc::default(), ..ask(0, 0, "nobody", Wait::No) };
        if matches!(self.run(caller, &Command::Acquire(nobodys)), Reply::Granted { .. }) {
            let token = Token::new(b"nobody").unwrap();
            self.run(
                caller,
                &Command::Release {
                    also: Default::default(),
                    name: name.clone(),
                    token,
                    lost: false,
                },
            );
        }
        self.table.expire(self.now_us + 1_000);
    }

    /// The owner of the holder.
    fn holder(&self, lock: &Lock) -> Option<Arc<str>> {
        let record = lock
            .record()
            .filter(|it| it.state == HoldState::Held && self.alive.contains(&it.session));
        record.map(|record| record.party.owner.clone())
    }

    /// The request for several that names are kept for (R29).
    fn oldest(&self) -> Option<&Request> {
        let lives = |it: &&Request| {
            it.expires_us > self.now_us
                && self.alive.contains(&it.session)
                && it.deadline_us.is_none_or(|at| at > self.now_us)
        };
        let age = |it: &&Request| (it.since_us, it.token.clone());
        self.table.requests.values().filter(lives).min_by_key(age)
    }

    /// Whom a request waits for: the holder, and with `queue` whoever is ahead; and the holders of whatever the request
    /// waits for that the lock is kept for.
    fn blockers(&self, lock: &Lock, token: &Token, queue: bool) -> Vec<Arc<str>> {
        let mut owners: Vec<Arc<str>> = self.holder(lock).into_iter().collect();
        if let Some(oldest) = self.oldest() {
            let mut ahead = lock.queue.iter().take_while(|ticket| ticket.token != *token);
            if ahead.any(|ticket| ticket.token == oldest.token) {
                let locks = oldest.names.iter().filter_map(|name| self.table.locks.get(name));
                owners.extend(locks.filter_map(|lock| self.holder(lock)));
            }
        }
        let ahead = lock.queue.iter().take_while(|ticket| ticket.token != *token);
        if queue {
            owners.extend(ahead.filter(|it| self.lives(it)).map(|it| it.party.owner.clone()));
        }
        owners
    }

    /// A plain search of the graph of all waits: does whoever asks for this lock wait for itself?
    fn closes_a_cycle(&self, ask: &Acquire, queue: bool) -> bool {
        let at = |name: &Name| self.table.locks.get(name).cloned().unwrap_or_default();
        let of = |name| self.blockers(&at(name), &ask.token, queue);
        let mut next: Vec<Arc<str>> = ask.names().flat_map(of).collect();
        let mut seen = BTreeSet::new();
        while let Some(owner) = next.pop() {
            if is_part_of(&ask.party.owner, &owner) {
                return true;
            }
            if !seen.insert(owner.clone()) {
                continue;
            }
            for lock in self.table.locks.values() {
                let tickets = lock
                    .queue
                    .iter()
                    .filter(|it| is_part_of(&it.party.owner, &owner) && self.lives(it));
                next.extend(tickets.flat_map(|ticket| self.blockers(lock, &ticket.token, queue)));
            }
        }
        false
    }
}

fn names(reply: &Reply) -> Vec<&str> {
    let Reply::Deadlock(cycle) = reply else { panic!("{reply:?}") };
    cycle.iter().map(|step| step.name.as_str()).collect()
}

#[test]
fn two_locks_in_two_orders() {
    let mut store = Store::new();
    store.acquire(0, 0, "a0");
    store.acquire(1, 1, "b1");
    assert!(matches!(store.acquire(0, 1, "a1"), Reply::Refused(_)));
    let reply = store.acquire(1, 0, "b0");
    assert_eq!(names(&reply), ["n0", "n1"]);
    let Reply::Deadlock(cycle) = reply else { panic!() };
    assert_eq!(cycle[0].party.owner.as_ref(), "o0");
    assert_eq!(cycle[1].party.owner.as_ref(), "o1");
    assert_eq!(cycle[0].held_ms, 3);
    // Nothing is left of the refused request, and the other goes on when its way is free.
    assert!(store.table.locks[&named(0)].queue.is_empty());
    assert_eq!(store.table.waits.len(), 1);
    let release = Command::Release {
        name: named(1),
        also: Default::default(),
        token: Token::new(b"b1").unwrap(),
        lost: false,
    };
    assert_eq!(store.run(1, &release), Reply::Released);
    assert!(store.table.waits.is_empty());
    assert!(matches!(store.acquire(0, 1, "a1"), Reply::Granted { .. }), "its own, told again");
}

#[test]
fn one_owner_twice() {
    let mut store = Store::new();
    store.acquire(0, 0, "a0");
    // Owner 3 lives in the same session, owner 0 asks from it again under another token.
    assert_eq!(names(&store.acquire(0, 0, "again")), ["n0"]);
    assert!(matches!(store.acquire(3, 0, "other"), Reply::Refused(_)));
    // Not to wait is no wait, and an owner without a name is nobody's.
    let no_wait = Command::Acquire(ask(0, 0, "once", Wait::No));
    assert!(matches!(store.run(0, &no_wait), Reply::Refused(_)));
    let nobody = Acquire { party: Arc::default(), ..ask(0, 0, "nobody", Wait::Forever) };
    assert!(matches!(store.run(0, &Command::Acquire(nobody)), Reply::Refused(_)));
}

/// A cycle that came about while one of its holders was cut off is found when someone looks again; then the
/// youngest ticket is refused, and only that.
#[test]
fn found_again_and_the_youngest_gives_way() {
    let mut store = Store::new();
    for owner in 0..3 {
        store.acquire(owner, owner, &format!("h{owner}"));
    }
    assert!(matches!(store.acquire(0, 1, "w0"), Reply::Refused(_)));
    assert!(matches!(store.acquire(1, 2, "w1"), Reply::Refused(_)));
    store.alive.remove(&session(0));
    assert!(matches!(store.acquire(2, 0, "w2"), Reply::Refused(_)), "owner 0 is cut off");
    store.alive.insert(session(0));
    assert!(matches!(store.acquire(0, 1, "w0"), Reply::Refused(_)), "the oldest waits on");
    assert!(matches!(store.acquire(1, 2, "w1"), Reply::Refused(_)));
    assert_eq!(names(&store.acquire(2, 0, "w2")), ["n0", "n1", "n2"]);
    assert!(matches!(store.acquire(0, 1, "w0"), Reply::Refused(_)));
}

#[test]
fn as_long_as_the_bound() {
    let mut store = Store::new();
    // Beyond those who are parts of others.
    let (first, last) = (6, 5 + LONGEST_CYCLE);
    for owner in first..=last {
        store.acquire(owner, owner, &format!("h{owner}"));
    }
    for owner in first..last {
        assert!(matches!(store.acquire(owner, owner + 1, &format!("w{owner}")), Reply::Refused(_)));
    }
    assert_eq!(names(&store.acquire(last, first, "w")).len(), LONGEST_CYCLE);
}

#[test]
fn parts_and_wholes() {
    let mut store = Store::new();
    store.acquire(0, 0, "whole");
    assert_eq!(names(&store.acquire(4, 0, "part")), ["n0"]);
    assert_eq!(names(&store.acquire(5, 0, "part of the part")), ["n0"]);
    store.acquire(4, 1, "held by a part");
    assert!(matches!(store.acquire(0, 1, "the whole waits"), Reply::Refused(_)));
    let cancel = |number, token: &[u8]| Command::Cancel {
        also: Default::default(),
        name: named(number),
        token: Token::new(token).unwrap(),
        proof: "".into(),
    };
    store.run(0, &cancel(1, b"the whole waits"));
    store.acquire(1, 2, "a stranger's");
    assert!(matches!(store.acquire(5, 2, "deep"), Reply::Refused(_)));
    // The stranger would wait for the whole, and for the part in between.
    assert_eq!(names(&store.acquire(1, 0, "s0")), ["n0", "n2"]);
    assert_eq!(names(&store.acquire(1, 1, "s1")), ["n1", "n2"]);
    // Also while another part waits elsewhere, which came later, and left.
    store.acquire(2, 3, "another stranger's");
    assert!(matches!(store.acquire(4, 3, "side"), Reply::Refused(_)));
    assert_eq!(names(&store.acquire(1, 0, "s0")), ["n0", "n2"]);
    assert_eq!(names(&store.acquire(2, 0, "s2")), ["n0", "n3"]);
    store.run(4, &cancel(3, b"side"));
    assert_eq!(names(&store.acquire(1, 0, "s0")), ["n0", "n2"]);
    store.run(5, &cancel(2, b"deep"));
    assert!(store.table.waits.is_empty());
    assert!(!is_part_of("o00", "o0") && !is_part_of("o0", "o0/4"));
}

/// C59: the search ends where others wait in a circle that the asker is no part of, and where there is a long chain
/// and no circle; nobody is blamed.
#[test]
fn c59_nobody_outside_is_blamed() {
    let mut store = Store::new();
    for owner in 1..3 {
        store.acquire(owner, owner, &format!("h{owner}"));
    }
    assert!(matches!(store.acquire(1, 2, "w1"), Reply::Refused(_)));
    // The circle closes unseen, because one of its holders is cut off for the moment.
    store.alive.remove(&session(1));
    assert!(matches!(store.acquire(2, 1, "w2"), Reply::Refused(_)));
    store.alive.insert(session(1));
    assert!(matches!(store.acquire(3, 1, "outside"), Reply::Refused(_)));
    assert_eq!(names(&store.acquire(2, 1, "w2")), ["n1", "n2"]);

    let mut store = Store::new();
    for owner in 10..1_010 {
        store.acquire(owner, owner, &format!("h{owner}"));
        // Each waits for the one before.
        if owner > 10 {
            let waits = store.acquire(owner, owner - 1, &format!("w{owner}"));
            assert!(matches!(waits, Reply::Refused(_)));
        }
    }
}

#[test]
fn owner_ids_have_rules() {
    for good in ["a", "celery@host:0190/1/2", "3f2e=+-._"] {
        assert_eq!(name::owner(good), Ok(good));
    }
    for bad in ["", "a b", "ä", "\"", "a\\", "x\n", "/", "a/", "/a", "a//b", &"x".repeat(513)] {
        assert!(name::owner(bad).is_err(), "{bad:?}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Acquire(usize, usize),
    AskAgain(usize),
    Cancel(usize),
    Release(usize, usize),
    Revoke(usize),
    Cut(usize),
    Back(usize),
    Pass(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (owner, number) = (0..6_usize, 0..4_usize);
    let set = prop_oneof![3 => number.clone().prop_map(|number| 1 << number), 2 => 1..16_usize];
    let op = prop_oneof![
        8 => (owner.clone(), set).prop_map(|(o, set)| Op::Acquire(o, set)),
        3 => owner.clone().prop_map(Op::AskAgain),
        1 => owner.clone().prop_map(Op::Cancel),
        3 => (owner, number.clone()).prop_map(|(o, n)| Op::Release(o, n)),
        1 => number.prop_map(Op::Revoke),
        1 => (0..3_usize).prop_map(Op::Cut),
        1 => (0..3_usize).prop_map(Op::Back),
        1 => prop_oneof![Just(500_u64), Just(4_000), Just(61_000)].prop_map(Op::Pass),
    ];
    prop::collection::vec(op, 1..60)
}

/// What an owner does: one thing after the other, each through one of the sessions.
#[derive(Default)]
struct Owner {
    waits: Option<(usize, Acquire)>,
    holds: Vec<(usize, Acquire)>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against the plain search of the whole graph of waits, queues included: a new request is refused exactly if
    /// it closes a cycle; one that waits already exactly if it is the youngest in one.
    #[test]
    fn a_plain_search_says_the_same(ops in ops()) {
        let mut store = Store::new();
        let mut owners: Vec<Owner> = (0..6).map(|_| Owner::default()).collect();
        let mut tokens = 0;
        for op in ops {
            match op {
                Op::Acquire(owner, set) => {
                    tokens += 1;
                    let caller = owner + tokens;
                    if owners[owner].waits.is_some() || !store.alive.contains(&session(caller)) {
                        continue;
                    }
                    let wait = if tokens % 4 == 0 { Wait::For(5_000) } else { Wait::Forever };
                    let ask = ask_all(owner, set, &format!("t{tokens}"), wait);
                    ask.names().for_each(|name| store.settle(caller, name));
                    let expected = store.closes_a_cycle(&ask, false);
                    // Whoever is ahead waits for the same holder, so the queues add nothing; unless it does
                    // something else at the same time, as only those with parts do, or may be passed.
                    let waiting = [0, 4, 5].iter().filter(|it| owners[**it].waits.is_some()).count();
                    let no_several = store.table.requests.is_empty() && ask.also.is_empty();
                    if no_several && waiting + usize::from([0, 4, 5].contains(&owner)) < 2 {
                        prop_assert_eq!(store.closes_a_cycle(&ask, true), expected);
                    }
                    match store.run(caller, &Command::Acquire(ask.clone())) {
                        Reply::Granted { .. } => owners[owner].holds.push((caller, ask)),
                        Reply::Refused(_) => {
                            prop_assert!(!expected, "a cycle was not found");
                            owners[owner].waits = Some((caller, ask));
                        }
                        Reply::Deadlock(cycle) => {
                            prop_assert!(expected, "a false alarm: {cycle:?}");
                            let last = &cycle[cycle.len() - 1].party.owner;
                            prop_assert!(is_part_of(&ask.party.owner, last), "{}", last);
                        }
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
                Op::AskAgain(owner) => {
                    let Some((caller, ask)) = owners[owner].waits.clone() else { continue };
                    if !store.alive.contains(&session(caller)) {
                        continue;
                    }
                    ask.names().for_each(|name| store.settle(caller, name));
                    let expected = store.closes_a_cycle(&ask, false);
                    match store.run(caller, &Command::Acquire(ask.clone())) {
                        Reply::Granted { .. } => {
                            owners[owner].waits = None;
                            owners[owner].holds.push((caller, ask));
                        }
                        Reply::Deadlock(_) => {
                            prop_assert!(expected, "a false alarm");
                            owners[owner].waits = None;
                        }
                        Reply::Refused(_) => {}
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
                Op::Cancel(owner) => {
                    if let Some((caller, ask)) = owners[owner].waits.take() {
                        let cancel = Command::Cancel { also: ask.also, name: ask.name, token: ask.token, proof: "".into() };
                        store.run(caller, &cancel);
                    }
                }
                Op::Release(owner, at) => {
                    if at < owners[owner].holds.len() {
                        let (caller, Acquire { name, also, token, .. }) = owners[owner].holds.remove(at);
                        store.run(caller, &Command::Release { name, also, token, lost: false });
                    }
                }
                Op::Revoke(number) => {
                    let token = store.table.locks.get(&named(number)).and_then(|lock| lock.key.clone());
                    if let Some(key) = token {
                        let revoke = Command::Revoke {
                            name: named(number), token: key.token, session: None, delayed: true,
                        };
                        store.run(0, &revoke);
                    }
                }
                Op::Cut(which) => drop(store.alive.remove(&session(which))),
                Op::Back(which) => {
                    store.alive.insert(session(which));
                    // Some of its tickets may have been dropped: a session that is back asks again for all of it.
                    for owner in &mut owners {
                        if let Some((caller, ask)) = owner.waits.clone()
                            && session(caller) == session(which)
                        {
                            match store.run(caller, &Command::Acquire(ask.clone())) {
                                Reply::Granted { .. } => owner.holds.extend(owner.waits.take()),
                                Reply::Refused(_) => {}
                                _ => owner.waits = None,
                            }
                        }
                    }
                }
                Op::Pass(ms) => store.now_us += ms * 1_000,
            }
            // Whoever holds keeps its locks; whoever was granted while it waited has stopped waiting.
            for owner in &mut owners {
                for (caller, ask) in owner.holds.clone() {
                    let renew = Renew { also: ask.also, name: ask.name, token: ask.token, lease_ms: 30_000 };
                    store.run(caller, &Command::Renew(renew));
                }
                let granted = owner.waits.take_if(|(_, ask)| {
                    let lock = store.table.locks.get(&ask.name);
                    lock.is_some_and(|lock| lock.record().is_some_and(|it| it.token == ask.token))
                });
                owner.holds.extend(granted);
            }
        }
        // In the end everyone asks again, twice; and once more for each who is the oldest then: no cycle is left.
        store.alive = (0..3).map(session).collect();
        for _ in 0..8 {
            for owner in &mut owners {
                if let Some((caller, ask)) = owner.waits.clone()
                    && !matches!(store.run(caller, &Command::Acquire(ask)), Reply::Refused(_))
                {
                    owner.waits = None;
                }
            }
        }
        for owner in owners {
            if let Some((_, ask)) = owner.waits {
                prop_assert!(!store.closes_a_cycle(&ask, false), "{:?} waits for itself", ask);
            }
        }
    }
}
