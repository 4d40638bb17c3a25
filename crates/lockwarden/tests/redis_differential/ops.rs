//! What may happen in a case.

use crate::redis_support::{name, party_of, token};
use crate::stories::{crowd, cycle, drop_in, hold, several_in_short, story};
use lockwarden_core::{
    Command, Name, SessionId, Token,
    command::{Acquire, Extension, Mode, Renew, Wait},
};
use proptest::prelude::*;
use std::sync::Arc;

pub(crate) const NAMES: [&str; 4] = ["plain", "x{tag}y", "}{", "second"];
/// Those whose companions' names have the plain form: only they have shorter ways in the script, if several are asked for.
pub(crate) const PLAIN: [&str; 2] = ["plain", "second"];
pub(crate) const TOKENS: [&str; 5] = ["a", "b", "c", "d", "1:\u{e9}\n"];
pub(crate) const SESSIONS: [&str; 3] = ["A", "B", "C"];

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Several commands in one call.
    Batch(usize, Vec<Ask>),
    /// One command in a call of its own: the scripts have a shorter way for some.
    Alone(usize, Ask),
    StepMs(u64),
    Cut(usize),
    Join(usize),
    Foreign(usize, Foreign),
    Flush,
    /// An old snapshot, or another primary: meta speaks of another run.
    OtherRun,
}

#[derive(Clone, Debug)]
pub(crate) enum Foreign {
    Set { px: Option<u64> },
    Del,
    Pexpire(u64),
    Persist,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Floor {
    None,
    Low,
    HourAhead,
    TwoDaysAhead,
}

/// Whose acquisition it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    Nobodys,
    Own,
    /// The next session's owner.
    Neighbours,
    /// A part of the next session's owner.
    Part,
}

#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Acquire {
        lock: usize,
        by: usize,
        proof: bool,
        wait: Wait,
        lease_ms: u64,
        grace_ms: u64,
        floor: Floor,
        owner: Whose,
        /// Exclusively; else by a token of its own alone, as [`OWN_MODES`] has it.
        alone: bool,
        /// The minimum and the delay, in ms.
        keep: (u64, u64),
        endless: bool,
    },
    /// By the key's value; 9: the foreign client's.
    ExtendByValue {
        lock: usize,
        by: usize,
        ms: u64,
        how: Extension,
    },
    Leave {
        lock: usize,
        by: usize,
    },
    /// Take what was handed over.
    Adopt {
        lock: usize,
        by: usize,
    },
    Convert {
        lock: usize,
        by: usize,
        to: Mode,
        floor: Floor,
    },
    HandOver {
        lock: usize,
        by: usize,
        to: usize,
        lease_ms: u64,
    },
    Renew {
        lock: usize,
        by: usize,
        lease_ms: u64,
    },
    Release {
        lock: usize,
        by: usize,
        lost: bool,
    },
    Cancel {
        lock: usize,
        by: usize,
        proof: bool,
    },
    Revoke {
        lock: usize,
        by: usize,
        session: Option<usize>,
        delayed: bool,
    },
    Recall {
        lock: usize,
        by: usize,
    },
    Show {
        lock: usize,
    },
    Beat,
    /// About several locks at once (R29).
    Several {
        what: What,
        /// One of [`SETS`].
        set: usize,
        /// Whose token, and which of three.
        by: (usize, usize),
        wait: Wait,
        owned: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Acquire,
    Renew,
    Release,
    Cancel,
    HandOver,
    Adopt,
}

/// The names of a request for several, in order; from [`PLAIN_SETS`] on all of them are plain. Two have the same names,
/// by tokens of their own.
pub(crate) const SETS: [&[usize]; 6] = [&[0, 1], &[0, 2], &[1, 2], &[0, 1, 2], &[0, 3], &[0, 3]];
pub(crate) const PLAIN_SETS: usize = 4;

fn set() -> impl Strategy<Value = usize> {
    prop_oneof![1 => 0..PLAIN_SETS, 1 => PLAIN_SETS..SETS.len()]
}

pub(crate) fn lock() -> impl Strategy<Value = usize> {
    prop_oneof![6 => Just(0_usize), 2 => Just(1), 1 => Just(2), 1 => Just(3)]
}

/// How the tokens of a session that are its own alone are used: the same token is the same acquisition. Most uses of
/// one lock can be beside each other.
const OWN_MODES: [[Mode; 4]; 2] = [
    [Mode::Shared, Mode::Shared, Mode::Permits { count: 1, of: 2 }, Mode::Shared],
    [
        Mode::Permits { count: 1, of: 3 },
        Mode::Shared,
        Mode::Permits { count: 2, of: 2 },
        Mode::Shared,
    ],
];

/// How its requests for several are.
const MODES: [[Mode; 4]; 3] = [
    [Mode::Exclusive; 4],
    [Mode::Shared, Mode::Exclusive, Mode::Permits { count: 1, of: 2 }, Mode::Exclusive],
    [Mode::Shared, Mode::Shared, Mode::Permits { count: 2, of: 2 }, Mode::Shared],
];

fn lease_ms() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1_000, 5_000, 30_000])
}

pub(crate) fn how() -> impl Strategy<Value = Extension> {
    prop::sample::select(vec![Extension::Add, Extension::Replace, Extension::Set])
}

fn ask() -> impl Strategy<Value = Ask> {
    let by = || prop_oneof![6 => 0..3_usize, 2 => 3..TOKENS.len(), 4 => 5..7_usize];
    let any = || prop_oneof![4 => by(), 1 => 7..9_usize];
    let keep = prop_oneof![3 => Just((0, 0)),
        1 => prop::sample::select(vec![(4_000, 0), (0, 2_500), (7_000, 1_000), (40_000, 5_000)])];
    let to = prop::sample::select(vec![
        Mode::Shared,
        Mode::Shared,
        Mode::Exclusive,
        Mode::Permits { count: 1, of: 2 },
    ]);
    let wait = prop_oneof![
        2 => Just(Wait::No),
        1 => prop::sample::select(vec![0, 2_000, 50_000]).prop_map(Wait::For),
        4 => Just(Wait::Forever),
    ];
    let floor = prop_oneof![
        8 => Just(Floor::None),
        1 => Just(Floor::Low),
        1 => Just(Floor::HourAhead),
        1 => Just(Floor::TwoDaysAhead),
    ];
    let proof = || prop::bool::weighted(0.15);
    let owner = prop_oneof![2 => Just(Whose::Nobodys), 4 => Just(Whose::Own), 1 => Just(Whose::Neighbours),
        1 => Just(Whose::Part)];
    let alone = prop::bool::weighted(0.7);
    let terms = (prop::bool::ANY, floor.clone(), owner, alone, keep, prop::bool::ANY);
    prop_oneof![
        8 => (lock(), by(), proof(), wait, lease_ms(), terms).prop_map(
            |(lock, by, proof, wait, lease_ms, (long, floor, owner, alone, keep, endless))| Ask::Acquire {
                lock, by, proof, wait, lease_ms, floor, owner, alone: alone || proof, grace_ms: if long { 4_000 } else { 3_000 },
                // Without a proof it says nothing.
                endless: endless && (proof || keep != (0, 0)),
                keep,
            }
        ),
        1 => (lock(), 7..9_usize).prop_map(|(lock, by)| Ask::Adopt { lock, by }),
        1 => (lock(), any(), 7..9_usize, lease_ms()).prop_map(
            |(lock, by, to, lease_ms)| Ask::HandOver { lock, by, to, lease_ms }
        ),
        2 => (lock(), any(), to, floor).prop_map(|(lock, by, to, floor)| Ask::Convert { lock, by, to, floor }),
        2 => (lock(), any(), lease_ms()).prop_map(|(lock, by, lease_ms)| Ask::Renew { lock, by, lease_ms }),
        4 => (lock(), any(), prop::bool::weighted(0.2)).prop_map(
            |(lock, by, lost)| Ask::Release { lock, by, lost }
        ),
        2 => (lock(), by(), proof()).prop_map(|(lock, by, proof)| Ask::Cancel { lock, by, proof }),
        2 => (lock(), any(), prop::option::of(0..3_usize), prop::bool::ANY).prop_map(
            |(lock, by, session, delayed)| Ask::Revoke { lock, by, session, delayed }
        ),
        1 => (lock(), by()).prop_map(|(lock, by)| Ask::Recall { lock, by }),
        3 => (lock(), prop_oneof![6 => any(), 1 => Just(9_usize)], lease_ms(), how()).prop_map(
            |(lock, by, ms, how)| Ask::ExtendByValue { lock, by, ms, how }
        ),
        2 => (lock(), any()).prop_map(|(lock, by)| Ask::Leave { lock, by }),
        1 => lock().prop_map(|lock| Ask::Show { lock }),
        1 => Just(Ask::Beat),
    ]
}

pub(crate) fn several() -> impl Strategy<Value = Op> {
    let what = prop_oneof![6 => Just(What::Acquire), 1 => Just(What::Renew), 4 => Just(What::Release),
        1 => Just(What::Cancel), 1 => Just(What::HandOver), 1 => Just(What::Adopt)];
    let wait = prop_oneof![
        1 => Just(Wait::No),
        1 => prop::sample::select(vec![2_000, 50_000]).prop_map(Wait::For),
        5 => Just(Wait::Forever),
    ];
    // Seldom another's token.
    let whose = prop_oneof![12 => Just(0_usize), 1 => Just(1)];
    let rest = (wait, prop::bool::ANY);
    let which = prop_oneof![2 => Just(0_usize), 3 => 1..4_usize];
    (0..3_usize, what, set(), (whose, which), rest).prop_map(
        |(who, what, set, (whose, which), (wait, owned))| {
            // Only a session's own token asks for several, and only what was handed over has the last of them.
            let (whose, which) = match what {
                What::Acquire => (0, which % 3),
                _ => (whose, which),
            };
            let by = ((who + whose) % 3, which);
            Op::Alone(who, Ask::Several { what, set, by, wait, owned })
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let foreign = prop_oneof![
        prop::option::of(prop::sample::select(vec![2_000_u64, 90_000]))
            .prop_map(|px| Foreign::Set { px }),
        Just(Foreign::Del),
        prop::sample::select(vec![1_500_u64, 90_000]).prop_map(Foreign::Pexpire),
        Just(Foreign::Persist),
    ];
    prop_oneof![
        8 => several(),
        25 => (0..3_usize, prop::collection::vec(ask(), 1..5)).prop_map(|(who, asks)| Op::Batch(who, asks)),
        5 => (0..3_usize, prop::collection::vec(ask(), 5..14)).prop_map(|(who, asks)| Op::Batch(who, asks)),
        20 => (0..3_usize, ask()).prop_map(|(who, ask)| Op::Alone(who, ask)),
        12 => prop::sample::select(vec![300, 1_400, 2_600, 3_300, 6_000, 31_000, 61_000]).prop_map(Op::StepMs),
        4 => (0..3_usize).prop_map(Op::Cut),
        4 => (0..3_usize).prop_map(Op::Join),
        4 => (lock(), foreign).prop_map(|(lock, foreign)| Op::Foreign(lock, foreign)),
        1 => Just(Op::Flush),
        2 => Just(Op::OtherRun),
    ]
}

/// What may happen in a whole case: anything, and now and then a story that seldom comes by chance.
pub(crate) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let one_or_more = prop_oneof![12 => op().prop_map(|op| vec![op]), 1 => story(), 1 => cycle(), 2 => crowd(),
        2 => hold(), 3 => drop_in(), 2 => several_in_short()];
    prop::collection::vec(one_or_more, 1..35).prop_map(|parts| parts.concat())
}

fn floor_of(floor: Floor, now_us: u64) -> u64 {
    match floor {
        Floor::None => 0,
        Floor::Low => 5,
        Floor::HourAhead => now_us + 3_600_000_000,
        Floor::TwoDaysAhead => now_us + 2 * 86_400_000_000,
    }
}

/// The command itself.
pub(crate) fn command(ask: &Ask, who: usize, now_us: u64) -> Command {
    let proof = |proof: bool| if proof { "proof".into() } else { "".into() };
    let lock = |lock: usize| -> Name { name(NAMES[lock]) };
    // Mostly a session's own token, so that holders release and waiters come back; else another's,
    // which two sessions may then use at once (R25).
    let by = |by: usize| -> Token {
        token(match by {
            0 | 1 => TOKENS[who],
            2 => TOKENS[(who + 1) % 3],
            5 => ["as", "bs", "cs"][who],
            6 => ["at", "bt", "ct"][who],
            // What is handed over has a token that nobody ever asked by.
            7 => ["ah", "bh", "ch"][who],
            8 => ["bh", "ch", "ah"][who],
            9 => "foreign",
            // That of a session, whoever says it.
            10..=12 => TOKENS[by - 10],
            by => TOKENS[by],
        })
    };
    match *ask {
        Ask::Acquire {
            lock: at,
            by: it,
            proof: has_proof,
            wait,
            lease_ms,
            grace_ms,
            floor,
            owner,
            alone,
            keep: (at_least_ms, delay_ms),
            endless,
        } => {
            let owner = match owner {
                Whose::Nobodys => "",
                Whose::Own => SESSIONS[who],
                Whose::Neighbours => SESSIONS[(who + 1) % 3],
                Whose::Part => ["B/part/1", "C/part/1", "A/part/1"][who],
            };
            // Two sessions have one token only where it is the caller's choice, and then the lock is exclusive.
            let it = if has_proof { it % 5 } else { it };
            let (token, modes): (_, Arc<[Mode]>) = match it {
                it if (alone || has_proof) && it < 5 => (by(it), Arc::default()),
                it => (by(5 + it % 2), [OWN_MODES[it % 2][at]].into()),
            };
            Command::Acquire(Acquire {
                also: Default::default(),
                modes,
                name: lock(at),
                token,
                proof: proof(has_proof),
                wait,
                lease_ms,
                grace_ms,
                at_least_ms,
                delay_ms,
                endless,
                floor: floor_of(floor, now_us),
                party: party_of(owner, SESSIONS[who]),
            })
        }
        Ask::Adopt { lock: at, by: it } => Command::Acquire(Acquire {
            also: Default::default(),
            modes: Default::default(),
            name: lock(at),
            token: by(it),
            proof: "".into(),
            wait: Wait::Adopt,
            lease_ms: 5_000,
            grace_ms: 3_000,
            at_least_ms: if it == 7 { 2_000 } else { 0 },
            delay_ms: 0,
            endless: false,
            floor: 0,
            party: party_of(SESSIONS[who], SESSIONS[who]),
        }),
        Ask::Convert { lock: at, by: it, to, floor } => Command::Convert {
            name: lock(at),
            token: by(it),
            to,
            // Sometimes the same, as after a lost answer; sometimes another's is in the way.
            new_token: if to == Mode::Exclusive { by(5 + it % 4) } else { by(it) },
            floor: floor_of(floor, now_us),
        },
        Ask::HandOver { lock: at, by: it, to, lease_ms } => Command::HandOver {
            name: lock(at),
            also: Default::default(),
            token: by(it),
            to: by(to),
            lease_ms,
        },
        Ask::Renew { lock: at, by: it, lease_ms } => Command::Renew(Renew {
            also: Default::default(),
            name: lock(at),
            token: by(it),
            lease_ms,
        }),
        Ask::Release { lock: at, by: it, lost } => {
            Command::Release { also: Default::default(), name: lock(at), token: by(it), lost }
        }
        Ask::Cancel { lock: at, by: it, proof: has_proof } => Command::Cancel {
            also: Default::default(),
            name: lock(at),
            token: by(it),
            proof: proof(has_proof),
        },
        Ask::Revoke { lock: at, by: it, session, delayed } => Command::Revoke {
            name: lock(at),
            token: by(it),
            session: session.map(|it| SessionId::new(SESSIONS[it])),
            delayed,
        },
        Ask::Recall { lock: at, by: it } => {
            Command::Recall { name: lock(at), token: by(it), by: party_of(SESSIONS[who], "a") }
        }
        Ask::ExtendByValue { lock: at, by: it, ms, how } => {
            Command::ExtendByValue { name: lock(at), token: by(it), ms, how }
        }
        Ask::Leave { lock: at, by: it } => Command::Leave { name: lock(at), token: by(it) },
        Ask::Show { lock: at } => Command::Show { name: lock(at) },
        Ask::Beat => Command::Beat,
        Ask::Several { what, set, by: (whose, which), wait, owned } => {
            let (at, others) = SETS[set].split_first().expect("none is empty");
            let (name, also) = (lock(*at), others.iter().map(|at| lock(*at)).collect());
            // The same token is the same acquisition, of the same locks.
            let own = token(&format!("{}{which}{set}", TOKENS[whose]));
            match what {
                What::Acquire | What::Adopt => Command::Acquire(Acquire {
                    name,
                    also,
                    modes: match which {
                        0 | 3 => Arc::default(),
                        which => SETS[set].iter().map(|at| MODES[which][*at]).collect(),
                    },
                    token: own,
                    proof: "".into(),
                    wait: if matches!(what, What::Adopt) { Wait::Adopt } else { wait },
                    lease_ms: 30_000,
                    grace_ms: 3_000,
                    // The same token is one acquisition: always the same.
                    at_least_ms: if which == 2 { 4_000 } else { 0 },
                    delay_ms: if which == 1 { 2_500 } else { 0 },
                    endless: false,
                    floor: 0,
                    party: party_of(if owned { SESSIONS[who] } else { "" }, SESSIONS[who]),
                }),
                What::Renew => Command::Renew(Renew { name, also, token: own, lease_ms: 30_000 }),
                What::Release => Command::Release { name, also, token: own, lost: !owned },
                What::Cancel => Command::Cancel { name, also, token: own, proof: "".into() },
                What::HandOver => {
                    let to = token(&format!("{}3{set}", TOKENS[(who + 1) % 3]));
                    Command::HandOver { name, also, token: own, to, lease_ms: 5_000 }
                }
            }
        }
    }
}
