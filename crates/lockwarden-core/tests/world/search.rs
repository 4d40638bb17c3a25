//! Goes through a [`World`]: every order of its actions up to a depth, and random walks beyond.
//!
//! A state is stored as the path that leads to it, one byte per action, and as a fingerprint of 64
//! bits among those seen: some ten bytes a state where the state itself takes kilobytes. Paths stand
//! in order, so that one is replayed from where it leaves its neighbour, and a violation comes with
//! its shortest trace.

use super::{
    Action, SECOND_US, Scope, World,
    checks::{Violation, actions},
    fingerprint::fingerprint,
    session::Patience,
};
use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub depth: usize,
    /// Stop after the level that passes this many states.
    pub states: u64,
    /// Every how many-th state must have a good future.
    pub futures: u64,
}

/// What a search came to.
#[derive(Debug)]
pub struct Report {
    pub states: u64,
    pub transitions: u64,
    /// Every path of so many actions was tried.
    pub depth: usize,
    /// There is nothing beyond: the whole scope was searched.
    pub whole: bool,
    pub futures: u64,
    pub seconds: f64,
    pub found: Option<Found>,
}

/// A violation and the way to it.
#[derive(Clone, Debug)]
pub struct Found {
    pub violation: Violation,
    pub trace: Vec<Action>,
    /// It shows only in the fair future of the trace's end.
    pub later: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { states, transitions, depth, futures, seconds, .. } = self;
        let whole = if self.whole { " (the whole scope)" } else { "" };
        write!(
            f,
            "{states} states, {transitions} transitions, depth {depth}{whole}, {futures} futures, {seconds:.1} s"
        )?;
        match &self.found {
            Some(found) => write!(f, "; {found}"),
            None => write!(f, "; no violation"),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let later = if self.later { ", later" } else { "" };
        let Violation { guarantee, what } = &self.violation;
        writeln!(f, "{guarantee}{later} after {} actions: {what}", self.trace.len())?;
        for action in &self.trace {
            writeln!(f, "    {action:?}")?;
        }
        Ok(())
    }
}

const SHARDS: usize = 256;
const BLOCK: usize = 512;

/// A violation in the order in which they are preferred: guarantee, later or at once, path.
type Least = (&'static str, bool, Vec<u8>, Violation);

type Seen = Vec<Mutex<HashSet<u64, BuildHasherDefault<Identity>>>>;

/// Fingerprints are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are stored")
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Breadth first, level by level, on two threads.
pub fn search(scope: &Scope, bounds: Bounds) -> Report {
    let begin = Instant::now();
    let seen: Seen = (0..SHARDS).map(|_| Mutex::default()).collect();
    let root = World::new(scope);
    is_new(&seen, fingerprint(&root));
    let (states, transitions) = (AtomicU64::new(1), AtomicU64::new(0));
    let futures = AtomicU64::new(0);
    let found: Mutex<Option<Least>> = Mutex::default();
    let (mut frontier, mut depth, mut whole) = (vec![], 0, false);
    let mut count = 1;
    while depth < bounds.depth && states.load(Relaxed) < bounds.states {
        let next_block = AtomicUsize::new(0);
        let blocks: Mutex<Vec<(usize, Vec<u8>)>> = Mutex::default();
        let worker = || {
            let mut walker = Walker { scope, stack: vec![World::new(scope)], path: Vec::new() };
            let mut choices = Vec::new();
            loop {
                let block = next_block.fetch_add(1, Relaxed);
                let range = block * BLOCK..((block + 1) * BLOCK).min(count);
                if range.start >= count {
                    return;
                }
                let mut out = Vec::new();
                for index in range {
                    let path = &frontier[index * depth..(index + 1) * depth];
                    let world = walker.goto(path);
                    actions(world, scope, &mut choices);
                    for action in &choices {
                        let mut next = world.clone();
                        transitions.fetch_add(1, Relaxed);
                        let mut outcome = next.apply(scope, *action).map_err(|it| (it, false));
                        let print = fingerprint(&next);
                        if outcome.is_ok() {
                            if !is_new(&seen, print) {
                                continue;
                            }
                            states.fetch_add(1, Relaxed);
                            if print.is_multiple_of(bounds.futures) {
                                futures.fetch_add(1, Relaxed);
                                outcome = next.check_future(scope).map_err(|it| (it, true));
                            }
                        }
                        let byte = encode(*action);
                        if let Err((violation, later)) = outcome {
                            let trace = path.iter().chain([&byte]).copied().collect();
                            let new = (violation.guarantee, later, trace, violation);
                            // The level is ended, and its least violation kept: the same in each run,
                            // whichever thread came first.
                            let mut found = found.lock().unwrap();
                            if found.as_ref().is_none_or(|old| new < *old) {
                                *found = Some(new);
                            }
                            continue;
                        }
                        out.extend_from_slice(path);
                        out.push(byte);
                    }
                }
                blocks.lock().unwrap().push((block, out));
            }
        };
        std::thread::scope(|threads| {
            threads.spawn(worker);
            threads.spawn(worker);
        });
        if found.lock().unwrap().is_some() {
            break;
        }
        depth += 1;
        let mut blocks = blocks.into_inner().unwrap();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        frontier = blocks.into_iter().flat_map(|(_, paths)| paths).collect();
        count = frontier.len() / depth;
        if count == 0 {
            whole = true;
            break;
        }
    }
    Report {
        states: states.into_inner(),
        transitions: transitions.into_inner(),
        depth,
        whole,
        futures: futures.into_inner(),
        seconds: begin.elapsed().as_secs_f64(),
        found: found.into_inner().unwrap().map(|(_, later, trace, violation)| {
            let trace = trace.iter().map(|byte| decode(*byte)).collect();
            Found { violation, trace, later }
        }),
    }
}

/// Random walks of `steps` actions, each ended by its fair future. The same seed, the same walks.
pub fn walk(scope: &Scope, seed: u64, walks: u64, steps: usize) -> Option<Found> {
    let root = World::new(scope);
    let mut choices = Vec::new();
    for walk in 0..walks {
        let mut random = Random(seed.wrapping_add(walk.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let (mut world, mut trace) = (root.clone(), Vec::new());
        for _ in 0..steps {
            actions(&world, scope, &mut choices);
            // Cuts and crashes are many: half of the steps leave them out.
            if random.below(2) == 0 {
                choices.retain(|action| !is_fault(*action));
            }
            let action = choices[random.below(choices.len() as u64) as usize];
            trace.push(action);
            if let Err(violation) = world.apply(scope, action) {
                return Some(Found { violation, trace, later: false });
            }
        }
        if let Err(violation) = world.check_future(scope) {
            return Some(Found { violation, trace, later: true });
        }
    }
    None
}

/// SplitMix64: small, seeded, the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// The trace again, with what each action brought about: for reading a violation.
pub fn explain(scope: &Scope, trace: &[Action]) -> String {
    use fmt::Write;
    let (mut world, mut text) = (World::new(scope), String::new());
    for action in trace {
        let outcome = world.apply(scope, *action);
        let at_ms = (world.now_us - super::EPOCH_US) / 1_000;
        writeln!(text, "{at_ms:>6} ms {action:?} {outcome:?}").unwrap();
        for (name, lock) in &world.table.locks {
            let key = lock.key.as_ref().map(|key| {
                (&key.token, key.expires_us.map(|at| at.saturating_sub(world.now_us) / 1_000))
            });
            let held = lock.holders().map(|it| format!("{} {} {}", it.token, it.mode, it.fence));
            let held: Vec<_> = held.collect();
            let queue = lock.queue.iter().map(|it| format!("{} {}", it.token, it.mode));
            let queue: Vec<_> = queue.collect();
            writeln!(text, "        {name}: {key:?} held by {held:?}, queue {queue:?}").unwrap();
        }
        for (index, session) in world.sessions.iter().enumerate() {
            let believed: Vec<_> = session.believed(world.clock(index)).collect();
            writeln!(text, "        s{index}: {:?} believes {believed:?}", session.owners).unwrap();
        }
        for conn in &world.conns {
            let up = conn.to_server.iter().map(|up| match up {
                super::Up::Call(call) => format!("{:?}", call.command).chars().take(30).collect(),
                super::Up::Close => "Close".to_owned(),
            });
            let up: Vec<String> = up.collect();
            let down = conn.to_client.iter().map(|down| match down {
                super::Down::Answer(_, _, reply) => format!("{reply:?}").chars().take(60).collect(),
                super::Down::Message(message) => format!("{message:?}").chars().take(60).collect(),
                super::Down::Closed => "Closed".to_owned(),
            });
            let down: Vec<String> = down.collect();
            let open = (conn.client_open, conn.server_open, conn.subscribed);
            writeln!(text, "        conn s{} {open:?} up {up:?} down {down:?}", conn.session)
                .unwrap();
        }
    }
    text
}

struct Walker<'a> {
    scope: &'a Scope,
    /// The world after each action of `path`.
    stack: Vec<World>,
    path: Vec<u8>,
}

impl Walker<'_> {
    fn goto(&mut self, path: &[u8]) -> &World {
        let common = self.path.iter().zip(path).take_while(|(a, b)| a == b).count();
        self.stack.truncate(common + 1);
        self.path.truncate(common);
        for byte in &path[common..] {
            let mut world = self.stack[self.stack.len() - 1].clone();
            world.apply(self.scope, decode(*byte)).expect("a stored path has no violation");
            self.stack.push(world);
            self.path.push(*byte);
        }
        &self.stack[self.stack.len() - 1]
    }
}

fn is_new(seen: &Seen, print: u64) -> bool {
    seen[(print >> 56) as usize].lock().unwrap().insert(print)
}

fn is_fault(action: Action) -> bool {
    use Action::*;
    matches!(
        action,
        ClientCut(_)
            | ServerCut(_)
            | Crash(_)
            | Unsubscribe(_)
            | LoseMessage(_)
            | Restart
            | EmptyRestart
            | Failover
            | Flush
    )
}

/// The model's actions as one byte: kind times eight, and the index (session and owner as one).
fn encode(action: Action) -> u8 {
    use Action::*;
    let (kind, index) = match action {
        Advance(_) => (0, 0),
        Ask(session, owner, _, 0) => (1, session * 2 + owner),
        Ask(session, owner, _, want) => (13 + want, session * 2 + owner),
        End(session, owner) => (2, session * 2 + owner),
        Tick(at) => (3, at),
        Connect(at) => (4, at),
        ClientCut(at) => (5, at),
        Crash(at) => (6, at),
        ToServer(at) => (7, at),
        ToClient(at) => (8, at),
        ServerCut(at) => (9, at),
        Unsubscribe(at) => (10, at),
        LoseMessage(at) => (11, at),
        Copy => (12, 0),
        Restart => (12, 1),
        EmptyRestart => (12, 2),
        Failover => (12, 3),
        Flush => (12, 4),
        Repeat(at) => (13, at),
    };
    assert!(index < 8, "no more than eight connections at a time");
    assert!(kind < 32, "no more than eighteen things to ask for");
    (kind * 8 + index) as u8
}

fn decode(byte: u8) -> Action {
    use Action::*;
    let at = usize::from(byte % 8);
    match (byte / 8, at) {
        (0, _) => Advance(SECOND_US),
        (1, _) => Ask(at / 2, at % 2, Patience::Endless, 0),
        (2, _) => End(at / 2, at % 2),
        (3, _) => Tick(at),
        (4, _) => Connect(at),
        (5, _) => ClientCut(at),
        (6, _) => Crash(at),
        (7, _) => ToServer(at),
        (8, _) => ToClient(at),
        (9, _) => ServerCut(at),
        (10, _) => Unsubscribe(at),
        (11, _) => LoseMessage(at),
        (12, 0) => Copy,
        (12, 1) => Restart,
        (12, 2) => EmptyRestart,
        (12, 3) => Failover,
        (12, _) => Flush,
        (13, _) => Repeat(at),
        (kind, _) => Ask(at / 2, at % 2, Patience::Endless, usize::from(kind) - 13),
    }
}
