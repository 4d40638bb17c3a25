//! What seldom comes by chance: who holds and who waits, and what happens to them, in an order that says something.

use crate::ops::{
    Ask, Floor, Foreign, NAMES, Op, PLAIN_SETS, SETS, What, Whose, how, lock, several,
};
use lockwarden_core::command::{Extension, Mode, Wait};
use proptest::prelude::*;

/// An acquire as most are, by its session's owner.
struct Plain {
    lock: usize,
    by: usize,
    wait: Wait,
    lease_ms: u64,
    alone: bool,
    keep: (u64, u64),
}

impl Plain {
    fn at(lock: usize, wait: Wait) -> Plain {
        Plain { lock, by: 0, wait, lease_ms: 30_000, alone: true, keep: (0, 0) }
    }

    fn ask(self) -> Ask {
        let Plain { lock, by, wait, lease_ms, alone, keep } = self;
        let (proof, grace_ms, floor, owner) = (false, 3_000, Floor::None, Whose::Own);
        let endless = false;
        Ask::Acquire {
            lock,
            by,
            proof,
            wait,
            lease_ms,
            grace_ms,
            floor,
            owner,
            alone,
            keep,
            endless,
        }
    }
}

/// Requests for several locks and for one in each other's way, and what gives them free again.
pub(crate) fn crowd() -> impl Strategy<Value = Vec<Op>> {
    let single = (0..3_usize, 0..NAMES.len(), prop::bool::ANY, prop::bool::ANY).prop_map(
        |(who, lock, releases, alone)| {
            let ask = Plain { alone, ..Plain::at(lock, Wait::Forever) }.ask();
            Op::Alone(who, if releases { Ask::Release { lock, by: 5, lost: false } } else { ask })
        },
    );
    let other = prop_oneof![
        2 => (0..3_usize).prop_map(Op::Cut),
        4 => (0..3_usize).prop_map(Op::Join),
        1 => prop::sample::select(vec![2_600, 3_300, 31_000]).prop_map(Op::StepMs),
        1 => (0..NAMES.len()).prop_map(|lock| Op::Foreign(lock, Foreign::Del)),
    ];
    let op = prop_oneof![10 => several(), 8 => single, 2 => other];
    prop::collection::vec(op, 4..24).prop_map(|mut ops| {
        ops.splice(0..0, (0..3).map(Op::Join));
        ops.push(Op::Join(0));
        ops.push(Op::Batch(0, (0..NAMES.len()).map(|lock| Ask::Show { lock }).collect()));
        ops
    })
}

/// One holds, others wait; links end, the epoch or the clock changes; one gives back or asks again.
pub(crate) fn story() -> impl Strategy<Value = Vec<Op>> {
    let turn = prop::sample::select(vec![0, 1, 2, 2, 2, 3, 4, 5]);
    let end = prop::sample::select(vec![0, 0, 0, 1, 2, 3, 4, 5]);
    let step_ms = prop::sample::select(vec![300, 2_600, 3_300, 6_000]);
    let delayed = prop::bool::ANY;
    // How the first waits, and whether it queues twice, by two tokens.
    let wait = prop_oneof![2 => Just(Wait::Forever), 1 => Just(Wait::For(2_000))];
    let twice = prop::bool::weighted(0.3);
    let keep = prop::sample::select(vec![(0, 0), (0, 0), (4_000, 0), (0, 2_500), (9_000, 4_000)]);
    (
        lock(),
        0..3_usize,
        prop::collection::vec(turn, 0..4),
        step_ms,
        end,
        delayed,
        (wait, twice, keep),
    )
        .prop_map(|(lock, holder, turns, step_ms, end, delayed, (wait, twice, keep))| {
            let (first, second) = ((holder + 1) % 3, (holder + 2) % 3);
            let ask_by =
                |by, wait, lease_ms| Plain { by, lease_ms, keep, ..Plain::at(lock, wait) }.ask();
            let ask = |wait, lease_ms| ask_by(0, wait, lease_ms);
            let renews = Op::Alone(holder, Ask::Renew { lock, by: 0, lease_ms: 30_000 });
            let mut ops = vec![Op::Join(0), Op::Join(1), Op::Join(2)];
            ops.push(Op::Alone(holder, ask(Wait::No, 30_000)));
            ops.push(Op::Alone(first, ask(wait, 30_000)));
            if twice {
                ops.push(Op::Alone(first, ask_by(3, Wait::Forever, 30_000)));
            }
            ops.push(Op::Alone(second, ask(Wait::Forever, 5_000)));
            ops.extend(turns.into_iter().map(|turn| match turn {
                0 => Op::Cut(holder),
                1 => Op::Cut(first),
                2 => Op::StepMs(step_ms),
                3 => Op::OtherRun,
                4 => Op::Alone(second, Ask::Revoke { lock, by: 2, session: None, delayed }),
                _ => renews.clone(),
            }));
            ops.extend(match end {
                0 => vec![Op::Alone(holder, Ask::Release { lock, by: 0, lost: false })],
                1 => {
                    vec![Op::Batch(
                        holder,
                        vec![Ask::Release { lock, by: 0, lost: false }, Ask::Show { lock }],
                    )]
                }
                2 => vec![Op::Alone(second, ask(Wait::Forever, 5_000))],
                // A new epoch, in which the holder shows itself or does not before its link ends
                // (R14).
                3 | 4 => {
                    let shows_itself = if end == 3 { vec![renews] } else { Vec::new() };
                    let mut ops = vec![Op::OtherRun, Op::Alone(second, Ask::Beat)];
                    ops.extend(shows_itself);
                    ops.extend([Op::Cut(holder), Op::StepMs(3_300)]);
                    ops.push(Op::Alone(second, ask(Wait::Forever, 5_000)));
                    ops
                }
                _ => vec![Op::StepMs(3_300), Op::Alone(second, ask(Wait::No, 5_000))],
            });
            ops.push(Op::Batch(second, vec![Ask::Show { lock }]));
            ops
        })
}

/// One holds, perhaps others beside it, some wait; what is held changes its mode, changes hands, is given back early, or
/// is lost with its holder.
pub(crate) fn hold() -> impl Strategy<Value = Vec<Op>> {
    let keep =
        prop::sample::select(vec![(0, 0), (4_000, 0), (0, 2_500), (9_000, 4_000), (40_000, 1_000)]);
    let turns = prop::collection::vec(0..19_usize, 1..8);
    let step_ms = prop::sample::select(vec![300, 2_600, 6_000]);
    let rest = (prop::bool::ANY, prop::bool::ANY, prop::bool::ANY);
    (0..3_usize, 0..3_usize, keep, rest, turns, step_ms).prop_map(
        |(lock, holder, keep, (alone, beside, waits), turns, step_ms)| {
            let (first, second) = ((holder + 1) % 3, (holder + 2) % 3);
            let ask =
                |by, alone, wait, keep| Plain { by, alone, keep, ..Plain::at(lock, wait) }.ask();
            let own = if alone { 0 } else { 5 };
            // Or whoever waits from before is in the way.
            let mut ops = vec![Op::Join(0), Op::Join(1), Op::Join(2), Op::Flush];
            ops.extend([Op::Alone(holder, Ask::Beat), Op::StepMs(3_300)]);
            // What is asked for by 6 is held by 5.
            ops.push(Op::Alone(holder, ask(if alone { 0 } else { 6 }, alone, Wait::No, keep)));
            if beside {
                ops.push(Op::Alone(second, ask(6, false, Wait::Forever, (0, 0))));
            }
            if waits {
                ops.push(Op::Alone(first, ask(0, true, Wait::Forever, (3_000, 500))));
                ops.push(Op::Alone(second, ask(6, false, Wait::Forever, (0, 500))));
            }
            let convert = |by, to| Ask::Convert { lock, by, to, floor: Floor::None };
            if beside {
                ops.push(Op::Alone(holder, convert(own, Mode::Exclusive)));
            }
            ops.extend(turns.into_iter().map(|turn| match turn {
                0 => Op::Alone(holder, convert(own, Mode::Shared)),
                1 | 14 | 15 | 16 => {
                    Op::Batch(holder, vec![convert(own, Mode::Exclusive), Ask::Show { lock }])
                }
                // To the first, who alone knows it as its own.
                2 | 3 => Op::Alone(holder, Ask::HandOver { lock, by: own, to: 8, lease_ms: 5_000 }),
                4 | 5 => Op::Alone(first, Ask::Adopt { lock, by: 7 }),
                6 => Op::Alone(first, Ask::Release { lock, by: 7, lost: false }),
                7 => Op::Alone(first, Ask::Renew { lock, by: 7, lease_ms: 30_000 }),
                8 => Op::Alone(first, convert(7, Mode::Exclusive)),
                9 | 17 => Op::Alone(
                    second,
                    Ask::Revoke { lock, by: 2, session: Some(holder), delayed: false },
                ),
                10 => Op::Cut(holder),
                11 => Op::StepMs(step_ms),
                12 => Op::Alone(second, Ask::Release { lock, by: 5, lost: false }),
                turn => {
                    let lost = turn == 18;
                    Op::Batch(
                        holder,
                        vec![Ask::Release { lock, by: own, lost }, Ask::Show { lock }],
                    )
                }
            }));
            let release = Ask::Release { lock, by: own, lost: keep.1 == 4_000 };
            ops.extend([Op::Join(holder), Op::Alone(holder, release)]);
            ops.push(Op::Batch(second, vec![Ask::Show { lock }]));
            ops
        },
    )
}

/// A lock under a value that its user chose, with an end or without, and what is done to it by whoever knows that: some
/// wait, links end, foreign clients meddle.
pub(crate) fn drop_in() -> impl Strategy<Value = Vec<Op>> {
    let asks = |lock, by, wait, (lease_ms, endless, keep)| {
        let plain = Plain { by, lease_ms, keep, ..Plain::at(lock, wait) };
        match plain.ask() {
            Ask::Acquire { floor, owner, grace_ms, .. } => Ask::Acquire {
                lock,
                by,
                proof: true,
                wait,
                lease_ms,
                grace_ms,
                floor,
                owner,
                alone: true,
                keep,
                endless,
            },
            other => other,
        }
    };
    let keep = prop::sample::select(vec![(0, 0), (0, 0), (0, 0), (4_000, 0), (0, 2_500)]);
    let terms = (prop::sample::select(vec![5_000, 30_000]), prop::bool::weighted(0.6), keep);
    let turn = (0..22_usize, prop::sample::select(vec![1_000, 9_000, 60_000]), how());
    let turns = prop::collection::vec(turn, 1..9);
    (lock(), 0..3_usize, terms, prop::bool::ANY, turns).prop_map(
        move |(lock, holder, terms, waits, turns)| {
            let (first, second) = ((holder + 1) % 3, (holder + 2) % 3);
            let ask = |wait| asks(lock, 0, wait, terms);
            // Or whoever waits from before is in the way.
            let mut ops = vec![Op::Join(0), Op::Join(1), Op::Join(2), Op::Flush];
            ops.extend([Op::Alone(holder, Ask::Beat), Op::StepMs(3_300)]);
            ops.push(Op::Alone(holder, ask(Wait::No)));
            if waits {
                ops.push(Op::Alone(first, ask(Wait::Forever)));
            }
            // The holder's value, whoever says it.
            let its = 10 + holder;
            ops.extend(turns.into_iter().map(|(turn, ms, how)| match turn {
                0 | 1 => Op::Alone(holder, Ask::ExtendByValue { lock, by: its, ms, how }),
                2 | 3 => {
                    let extend = Ask::ExtendByValue { lock, by: its, ms, how };
                    Op::Batch(second, vec![extend, Ask::Show { lock }])
                }
                4 | 5 => Op::Alone(holder, Ask::Leave { lock, by: 0 }),
                6 | 7 => Op::Alone(holder, Ask::Renew { lock, by: 0, lease_ms: terms.0 }),
                8 => {
                    Op::Alone(second, Ask::Revoke { lock, by: its, session: None, delayed: false })
                }
                9 => Op::Alone(second, Ask::Revoke { lock, by: its, session: None, delayed: true }),
                10 | 11 => Op::Cut(holder),
                12 => Op::Join(holder),
                13 | 14 => Op::Alone(second, ask(Wait::No)),
                15 | 16 => Op::StepMs(if ms == 1_000 { 2_600 } else { 6_000 }),
                17 => Op::OtherRun,
                18 => Op::Foreign(lock, Foreign::Persist),
                19 => Op::Foreign(lock, Foreign::Del),
                20 => Op::Alone(first, Ask::Renew { lock, by: 0, lease_ms: terms.0 }),
                _ => Op::Alone(first, Ask::Release { lock, by: 0, lost: false }),
            }));
            ops.push(Op::Batch(second, vec![ask(Wait::No), Ask::Show { lock }]));
            ops.extend([
                Op::Join(holder),
                Op::Alone(holder, Ask::Release { lock, by: 0, lost: false }),
            ]);
            ops.push(Op::Batch(second, vec![Ask::Show { lock }]));
            // A foreign client's, by its value.
            let px = (terms.0 == 5_000).then_some(90_000);
            ops.push(Op::Foreign(lock, Foreign::Set { px }));
            let (ms, how) = (9_000, if terms.1 { Extension::Add } else { Extension::Set });
            ops.push(Op::Alone(first, Ask::ExtendByValue { lock, by: 9, ms, how }));
            ops.push(Op::Batch(
                second,
                vec![
                    Ask::Show { lock },
                    Ask::Revoke { lock, by: 9, session: None, delayed: false },
                    Ask::Show { lock },
                ],
            ));
            ops
        },
    )
}

/// Several plain names that are all free are acquired and given back, which has a shorter way in the script, while
/// others wait elsewhere or not; and what may come between, so that it is the other way.
pub(crate) fn several_in_short() -> impl Strategy<Value = Vec<Op>> {
    let turn = prop::sample::select(vec![0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let turns = (turn.clone(), turn);
    (0..3_usize, PLAIN_SETS..SETS.len(), turns, prop::bool::ANY, prop::bool::ANY).prop_map(
        |(who, set, turns, others_wait, owned)| {
            let (first, second) = ((who + 1) % 3, (who + 2) % 3);
            let single = |lock, wait| Plain::at(lock, wait).ask();
            let several =
                |what, who| Ask::Several { what, set, by: (who, 0), wait: Wait::Forever, owned };
            let between = |turn| match turn {
                1 => Op::Alone(who, several(What::Renew, who)),
                2 => Op::Alone(second, single(3, Wait::Forever)),
                3 => Op::Alone(second, several(What::Acquire, second)),
                4 => Op::Foreign(0, Foreign::Del),
                5 => Op::Foreign(3, Foreign::Set { px: Some(90_000) }),
                6 => Op::Cut(who),
                7 => Op::OtherRun,
                8 => Op::StepMs(2_600),
                9 => Op::Alone(second, several(What::Release, who)),
                _ => Op::Alone(who, Ask::Beat),
            };
            // Or what stands there from before is in the way.
            let mut ops = vec![Op::Join(0), Op::Join(1), Op::Join(2), Op::Flush];
            ops.extend([Op::Alone(who, Ask::Beat), Op::StepMs(3_300)]);
            if others_wait {
                ops.push(Op::Alone(first, single(1, Wait::No)));
                ops.push(Op::Alone(second, single(1, Wait::Forever)));
            }
            ops.extend([
                between(turns.0),
                Op::Join(who),
                Op::Alone(who, several(What::Acquire, who)),
            ]);
            ops.extend([between(turns.1), Op::Join(who)]);
            // To give them back needs no owner: here `owned` says that they were not lost.
            let release = Ask::Several {
                what: What::Release,
                set,
                by: (who, 0),
                wait: Wait::No,
                owned: turns.1 != 8,
            };
            // Whom they were handed to makes the lease whole (R27).
            ops.extend([
                Op::Alone(who, several(What::Renew, who)),
                Op::Alone(who, release),
                Op::Alone(second, several(What::Renew, second)),
                Op::Alone(who, several(What::Acquire, who)),
            ]);
            ops.push(Op::Batch(second, (0..NAMES.len()).map(|lock| Ask::Show { lock }).collect()));
            ops
        },
    )
}

/// Each holds a lock and asks for the next one's, which closes a cycle, unless something happens on the way; then
/// all of them ask again.
pub(crate) fn cycle() -> impl Strategy<Value = Vec<Op>> {
    let between = prop::sample::select(vec![0, 0, 0, 1, 2, 3, 4, 5]);
    let order = prop::sample::select(vec![[0, 1, 2], [2, 1, 0], [1, 0, 2]]);
    let wait = prop_oneof![3 => Just(Wait::Forever), 1 => Just(Wait::For(2_000))];
    (between, order, 2..4_usize, wait).prop_map(|(between, order, sessions, wait)| {
        let ask = |lock, by, wait| Plain { by, ..Plain::at(lock, wait) }.ask();
        let mut ops = vec![Op::Join(0), Op::Join(1), Op::Join(2)];
        ops.extend((0..sessions).map(|who| Op::Alone(who, ask(who, 0, Wait::No))));
        let asks = |who: &usize| Op::Alone(*who, ask((who + 1) % sessions, 3, wait));
        let waiting = order.iter().filter(|who| **who < sessions);
        let mut waits: Vec<Op> = waiting.clone().map(asks).collect();
        let something = match between {
            0 => Op::Alone(0, Ask::Beat),
            1 => Op::Cut(order[0]),
            2 => Op::StepMs(2_600),
            3 => Op::Alone(
                order[0],
                Ask::Revoke { lock: order[0], by: 0, session: None, delayed: true },
            ),
            4 => Op::Batch(
                order[1],
                vec![Ask::Release { lock: order[1], by: 0, lost: false }, Ask::Beat],
            ),
            _ => Op::Alone(
                order[0],
                Ask::Cancel { lock: (order[0] + 1) % sessions, by: 3, proof: false },
            ),
        };
        waits.insert(waits.len() - 1, something);
        ops.extend(waits);
        ops.push(Op::Join(order[0]));
        ops.extend(waiting.map(asks));
        ops.extend((0..3).map(|lock| Op::Alone(0, Ask::Show { lock })));
        ops
    })
}
