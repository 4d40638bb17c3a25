//! Random histories: several sessions, owners and names, clocks of other rates, times of any
//! length, faults without number. After every action G1, G2, G4, G6 and G8 are checked, and at the
//! end of each history G3, G5 and G9 on its fair future (`world/checks.rs` says how).
//!
//! `LOCKWARDEN_TEST_LONG=1` runs a hundred times as many.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests, though not in functions of one"
)]

mod world;

use lockwarden_core::{
    Command, Rules,
    command::Mode,
    limits::{DEFAULT_GRACE_MS, W_MS},
};
use proptest::{
    prelude::*,
    test_runner::{RngSeed, TestRunner},
};
use world::{
    Action, EPOCH_US, Faults, Scope, Wanted, World,
    checks::Violation,
    session::{Event, Owner, Patience},
};

/// One step of a history. Who and how much are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    /// Time passes and nobody does anything: a pause of everyone.
    Pause(u64),
    /// So much time in which everything works.
    Calm(u64),
    Ask(u8, u8, Option<u64>, u8),
    TryOnce(u8, u8, u8),
    End(u8, u8),
    Tick(u8),
    Up(u8),
    Down(u8),
    ClientCut(u8),
    ServerCut(u8),
    Crash(u8),
    Lose(u8),
    Repeat(u8),
    Copy,
    Restart,
    EmptyRestart,
    Failover,
    Flush,
    /// An operator takes a lock away, with the delay that G1 wants (R32).
    Revoke(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let who = any::<u8>;
    let ms = prop_oneof![0..20_u64, 0..1_200_u64, 0..12_000_u64];
    prop_oneof![
        4 => ms.clone().prop_map(|ms| Step::Pause(ms * 1_000)),
        8 => ms.prop_map(|ms| Step::Calm(ms * 1_000 + 7)),
        8 => (who(), who(), prop::option::weighted(0.3, 0..20_000_000_u64), who())
            .prop_map(|(a, b, until, name)| Step::Ask(a, b, until, name)),
        1 => (who(), who(), who()).prop_map(|(a, b, name)| Step::TryOnce(a, b, name)),
        5 => (who(), who()).prop_map(|(a, b)| Step::End(a, b)),
        4 => who().prop_map(Step::Tick),
        14 => who().prop_map(Step::Up),
        12 => who().prop_map(Step::Down),
        2 => who().prop_map(Step::ClientCut),
        2 => who().prop_map(Step::ServerCut),
        1 => who().prop_map(Step::Crash),
        2 => who().prop_map(Step::Lose),
        2 => who().prop_map(Step::Repeat),
        1 => Just(Step::Copy),
        1 => Just(Step::Restart),
        1 => Just(Step::EmptyRestart),
        1 => Just(Step::Failover),
        1 => Just(Step::Flush),
        1 => who().prop_map(Step::Revoke),
    ]
}

/// Clocks: where they stand, and how fast they run; the margins of R20 are 1 %.
fn clocks(sessions: usize) -> impl Strategy<Value = Vec<(u64, i64)>> {
    prop::collection::vec((0..1_000_000_000_000_u64, -4_000..4_000_i64), sessions)
}

/// One name or the other, also to read; and both at once.
const WANTS: &[Wanted] = &[
    &[(0, Mode::Exclusive)],
    &[(1, Mode::Exclusive)],
    &[(0, Mode::Shared)],
    &[(0, Mode::Exclusive), (1, Mode::Exclusive)],
    &[(0, Mode::Shared), (1, Mode::Exclusive)],
    &[(1, Mode::Shared)],
];

fn scope() -> impl Strategy<Value = Scope> {
    (2..5_usize, 1..3_usize, 1_000..12_000_u64, W_MS..2 * W_MS).prop_map(
        |(sessions, owners, lease_ms, grace_ms)| Scope {
            owners,
            lease_ms,
            grace_ms,
            wants: WANTS,
            faults: Faults::default(),
            ..Scope::new(sessions)
        },
    )
}

fn config(cases: u32) -> ProptestConfig {
    let long = std::env::var_os("LOCKWARDEN_TEST_LONG").is_some_and(|value| value != "0");
    let cases = match (long, cfg!(debug_assertions)) {
        (true, _) => cases * 100,
        (false, true) => cases.div_ceil(8),
        (false, false) => cases,
    };
    // The same histories in every run; a failure prints its shrunk history.
    let rng_seed = RngSeed::Fixed(0x10c4);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

/// What the step means in this world; none: nothing.
fn meant(world: &World, step: &Step) -> Option<Action> {
    let session = |who: u8| {
        let running = |index: &usize| world.sessions[*index].running;
        let all: Vec<usize> = (0..world.sessions.len()).filter(running).collect();
        (!all.is_empty()).then(|| all[usize::from(who) % all.len()])
    };
    let owner = |index: usize, who: u8| usize::from(who) % world.sessions[index].owners.len();
    let idle = |index: usize, owner: usize| world.sessions[index].owners[owner] == Owner::Idle;
    let conn = |who: u8, useful: fn(&world::Conn) -> bool| {
        let all = world.conns.iter().enumerate().filter(|(_, conn)| useful(conn));
        let all: Vec<usize> = all.map(|(index, _)| index).collect();
        (!all.is_empty()).then(|| all[usize::from(who) % all.len()])
    };
    let wants = world.wants.len();
    Some(match *step {
        Step::Pause(us) => Action::Advance(us),
        Step::Calm(_) | Step::Revoke(_) | Step::Flush => return None,
        Step::Ask(who, which, wait_us, name) => {
            let (index, name) = (session(who)?, usize::from(name) % wants);
            let owner = owner(index, which);
            let until = wait_us.map(|us| Patience::Until(world.clock(index) + us));
            let patience = until.unwrap_or(Patience::Endless);
            return idle(index, owner).then_some(Action::Ask(index, owner, patience, name));
        }
        Step::TryOnce(who, which, name) => {
            let (index, name) = (session(who)?, usize::from(name) % wants);
            let owner = owner(index, which);
            return idle(index, owner).then_some(Action::Ask(index, owner, Patience::None, name));
        }
        Step::End(who, which) => {
            let index = session(who)?;
            Action::End(index, owner(index, which))
        }
        Step::Tick(who) => {
            let index = session(who)?;
            if world.sessions[index].linked { Action::Tick(index) } else { Action::Connect(index) }
        }
        Step::Up(who) => Action::ToServer(conn(who, |conn| !conn.to_server.is_empty())?),
        Step::Down(who) => {
            Action::ToClient(conn(who, |conn| conn.client_open && !conn.to_client.is_empty())?)
        }
        Step::ClientCut(who) => {
            let index = session(who)?;
            return world.sessions[index].linked.then_some(Action::ClientCut(index));
        }
        Step::ServerCut(who) => Action::ServerCut(conn(who, |it| it.server_open)?),
        Step::Crash(who) => {
            let running = world.sessions.iter().filter(|it| it.running).count();
            return (running > 2).then_some(Action::Crash(session(who)?));
        }
        Step::Lose(who) => {
            Action::LoseMessage(conn(who, |it| it.to_client.iter().any(World::is_losable))?)
        }
        Step::Repeat(who) => Action::Repeat(conn(who, |it| it.client_open && it.server_open)?),
        Step::Copy => Action::Copy,
        Step::Restart => Action::Restart,
        Step::EmptyRestart => Action::EmptyRestart,
        Step::Failover => Action::Failover,
    })
}

fn play(scope: &Scope, clocks: Vec<(u64, i64)>, steps: &[Step]) -> Result<World, Violation> {
    let mut world = World::new(&Scope { sessions: scope.sessions, ..scope.clone() });
    // The clocks part before anything is held: nothing in a keeper spans the change but its link.
    world.clocks = clocks;
    for index in 0..scope.sessions {
        world.apply(scope, Action::ClientCut(index))?;
    }
    let start_us = world.now_us + 1;
    world.run_fairly(scope, start_us, false)?;
    for step in steps {
        take(&mut world, scope, step)?;
        // A server takes its time between two commands; fences and epochs count on that.
        world.apply(scope, Action::Advance(1))?;
    }
    Ok(world)
}

/// Does one step.
fn take(world: &mut World, scope: &Scope, step: &Step) -> Result<(), Violation> {
    match step {
        Step::Calm(us) => {
            let end_us = world.now_us + us;
            world.run_fairly(scope, end_us, false)
        }
        Step::Revoke(who) => revoke(world, scope, usize::from(*who)),
        Step::Flush => flush(world, scope),
        step => meant(world, step).map_or(Ok(()), |action| world.apply(scope, action)),
    }
}

/// FLUSHALL as G1 promises it: with sessions connected, until the next command of anyone.
fn flush(world: &mut World, scope: &Scope) -> Result<(), Violation> {
    let hears = world.conns.iter().position(|conn| conn.server_open && conn.subscribed);
    let Some(conn) = hears.filter(|_| world.may_flush()) else { return Ok(()) };
    world.apply(scope, Action::Flush)?;
    world.execute(scope, conn, &Command::Beat, true)?;
    Ok(())
}

/// Revokes what is held of a name, over whatever connection is open.
fn revoke(world: &mut World, scope: &Scope, who: usize) -> Result<(), Violation> {
    let name = world.names[who % world.names.len()].clone();
    let lock = world.table.locks.get(&name);
    let held = lock.and_then(|lock| lock.holders().nth(who / world.names.len() % 2).cloned());
    let open = world.conns.iter().position(|conn| conn.server_open);
    if let (Some(record), Some(conn)) = (held, open)
        && world.table.meta.is_some()
    {
        let (token, session) = (record.token, None);
        world.execute(
            scope,
            conn,
            &Command::Revoke { name, token, session, delayed: true },
            true,
        )?;
    }
    Ok(())
}

/// The histories are no decoration: each of these rules, taken away, is missed by them. (With locks that are held alone:
/// where most can be held together, an order that is broken is rare.)
#[test]
fn histories_miss_a_missing_rule() {
    const ALONE: &[Wanted] = &[&[(0, Mode::Exclusive)], &[(1, Mode::Exclusive)]];
    for rule in [4, 5, 6, 20, 21, 26] {
        let quick = ProptestConfig { cases: 20_000, max_shrink_iters: 0, ..config(1) };
        let found = TestRunner::new(quick).run(
            &(scope(), prop::collection::vec(step(), 20..160)),
            |(scope, steps)| {
                let scope = Scope { rules: Rules::ALL.without(rule), wants: ALONE, ..scope };
                let clocks = vec![(0, 0); scope.sessions];
                prop_assert!(play(&scope, clocks, &steps).is_ok());
                Ok(())
            },
        );
        assert!(found.is_err(), "nothing was found without R{rule}");
    }
}

proptest! {
    #![proptest_config(config(1_500))]

    #[test]
    fn histories(
        (scope, clocks) in scope().prop_flat_map(|it| { let n = it.sessions; (Just(it), clocks(n)) }),
        steps in prop::collection::vec(step(), 20..160),
    ) {
        let outcome = play(&scope, clocks, &steps).and_then(|world| world.check_future(&scope));
        prop_assert_eq!(outcome, Ok(()));
    }

    /// G1 and G2 also where the server's clock is set back now and then: leases last longer then.
    #[test]
    fn histories_with_a_clock_set_back(
        steps in prop::collection::vec((step(), 0..40_u8), 20..120),
    ) {
        let scope = Scope { lease_ms: 5_000, wants: WANTS, ..Scope::new(3) };
        let mut world = World::new(&scope);
        let mut lost = false;
        for (step, back) in &steps {
            // Fences are not promised where data are lost and the clock is set back, both (G2).
            let loses = matches!(
                step, Step::Flush | Step::Restart | Step::EmptyRestart | Step::Failover
            );
            if loses && world.server_skew_us < 0 {
                continue;
            }
            lost |= loses;
            prop_assert_eq!(take(&mut world, &scope, step), Ok(()));
            if *back == 0 && !lost {
                world.server_skew_us -= 20_000_000;
            }
            world.apply(&scope, Action::Advance(1)).unwrap();
        }
    }

    /// G3: the death of a holder whose link is seen closed costs its grace, of one whose link hangs
    /// its lease; then the first waiter has it within one recheck of a second.
    #[test]
    fn g3_dead_holder(
        lease_ms in 100..40_000_u64,
        grace_ms in DEFAULT_GRACE_MS..20_000,
        dies_ms in 0..30_000_u64,
        hangs: bool,
    ) {
        let scope = Scope { lease_ms, grace_ms, ..Scope::new(2) };
        let mut world = World::new(&scope);
        world.apply(&scope, Action::Ask(0, 0, Patience::Endless, 0)).unwrap();
        let end_us = world.now_us + dies_ms * 1_000;
        world.run_fairly(&scope, end_us, false).unwrap();
        let held = matches!(world.sessions[0].owners[0], Owner::Holding { told: true, .. });
        prop_assert!(held);
        world.apply(&scope, Action::Ask(1, 0, Patience::Endless, 0)).unwrap();
        world.run_fairly(&scope, end_us, false).unwrap();
        world.apply(&scope, Action::Crash(0)).unwrap();
        if hangs {
            // The server never hears of the end.
            let conn = world.conns.iter().position(|conn| conn.session == 0).unwrap();
            world.conns[conn].to_server.clear();
        }
        let bound_ms = 1_000 + if hangs { lease_ms } else { grace_ms + 1_000 };
        let bound_us = world.now_us + bound_ms * 1_000 + 20_000;
        world.run_fairly(&scope, bound_us, false).unwrap();
        let held = matches!(world.sessions[1].owners[0], Owner::Holding { told: true, .. });
        prop_assert!(held, "after {bound_ms} ms: {:?}", world.table.locks);
    }

    /// G5: though no message ever arrives, the lock is never free for longer than the longest
    /// recheck while someone waits, and everyone is served. (Who does not hear of its grant within
    /// W has lost it, and its place: so order is not asked for here.)
    #[test]
    fn g5_all_messages_lost(waiters in 1..6_usize, lease_ms in 4_000..60_000_u64) {
        let scope = Scope { lease_ms, lossy: true, ..Scope::new(waiters + 1) };
        let mut world = World::new(&scope);
        for index in 0..=waiters {
            world.apply(&scope, Action::Ask(index, 0, Patience::Endless, 0)).unwrap();
            let end_us = world.now_us + 1_000;
            world.run_fairly(&scope, end_us, false).unwrap();
        }
        let (mut served, mut held_us) = (0, world.now_us);
        let start_us = world.now_us;
        while served <= waiters {
            let told = |owner: &Owner| matches!(owner, Owner::Holding { told: true, .. });
            let holder = world.sessions.iter().position(|session| told(&session.owners[0]));
            if let Some(holder) = holder {
                world.apply(&scope, Action::End(holder, 0)).unwrap();
                served += 1;
            }
            let end_us = world.now_us + 20_000;
            world.run_fairly(&scope, end_us, false).unwrap();
            if world.table.locks.values().any(|lock| lock.key.is_some()) {
                held_us = world.now_us;
            }
            prop_assert!(served > waiters || world.now_us <= held_us + 10_100_000, "left free");
            prop_assert!(world.now_us < start_us + 300_000_000, "served {served} only");
        }
    }
}

/// G4, exactly: whoever arrived first is served first, though all are slow to hear of it.
#[test]
fn g4_order_of_arrival() {
    let scope = Scope::new(5);
    let mut world = World::new(&scope);
    let arrival = [3, 0, 4, 1, 2];
    for index in arrival {
        world.apply(&scope, Action::Ask(index, 0, Patience::Endless, 0)).unwrap();
        let conn = world.conn_of(index).unwrap();
        world.apply(&scope, Action::ToServer(conn)).unwrap();
    }
    let mut served = Vec::new();
    while served.len() < 5 {
        assert!(world.now_us < EPOCH_US + 60_000_000, "only {served:?} were served");
        for (index, event) in world.events.clone() {
            if matches!(event, Event::Granted(_)) {
                served.push(index);
                world.apply(&scope, Action::End(index, 0)).unwrap();
            }
        }
        let next = world.deliverable().unwrap_or(Action::Advance(1_000));
        world.apply(&scope, next).unwrap();
    }
    assert_eq!(served, arrival);
}
