//! Redis under load while connections are killed, scripts forgotten, servers restarted and the
//! network cut: never two valid holders, nobody stuck, nothing left.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

use lockwarden_testkit::{
    process::eventually,
    proxy::{Cut, Direction, NewConnections, Proxy},
    recorder::Verdict,
    servers::{Restart, Server, ServerKind},
    taker::{Options, SOON, Taker},
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

const TAKER: &str = env!("CARGO_BIN_EXE_taker");

/// A small seeded generator: the same seed gives the same order of faults.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn long() -> bool {
    std::env::var_os("LOCKWARDEN_TEST_LONG").is_some()
}

/// Takers, each behind a proxy of its own.
struct World {
    server: Server,
    proxies: Vec<Proxy>,
    takers: Vec<Taker>,
    record: tempfile::NamedTempFile,
}

impl World {
    fn new(server: Server, takers: usize) -> World {
        let record = tempfile::NamedTempFile::new().unwrap();
        let mut world = World { server, proxies: Vec::new(), takers: Vec::new(), record };
        for i in 0..takers {
            world.add(&format!("t{i}"), None);
        }
        world
    }

    fn add(&mut self, label: &str, without_rule: Option<u32>) {
        let proxy = Proxy::start(self.server.address()).unwrap();
        let url = self.server.url_at(proxy.address());
        let options = Options::new(TAKER, &url).label(label).record(self.record.path());
        let options = match without_rule {
            Some(rule) => options.without_rule(rule),
            None => options,
        };
        self.takers.push(options.start());
        self.proxies.push(proxy);
    }

    /// All cycle through two names, while `fault` happens again and again for `lasting`.
    fn load(&mut self, lasting: Duration, mut fault: impl FnMut(&mut World)) {
        let names = ["hot", "warm"];
        let takers = self.takers.len();
        for (i, taker) in self.takers.iter_mut().enumerate() {
            // So many that the faults end before the load does; then no more are begun.
            taker.tell(&format!(
                "cycle k {} 100000 1000 wait=2000 lease=2000",
                names[i * 2 / takers]
            ));
        }
        let began = Instant::now();
        while began.elapsed() < lasting {
            fault(self);
        }
        for proxy in &self.proxies {
            proxy.heal();
        }
        for taker in &mut self.takers {
            taker.tell("stop");
        }
        for taker in &mut self.takers {
            let words = taker.hear("cycled k");
            println!("{words:?}");
        }
    }

    /// G1, G2, G5, G9 at the end.
    fn judge(&mut self, least: usize) {
        // A newcomer gets every name at once: nobody is stuck, and nothing is in the way.
        self.add("last", None);
        let last = self.takers.last_mut().unwrap();
        for name in ["hot", "warm"] {
            last.acquire("k", name, "wait=15000");
            last.release("k").unwrap();
        }
        let verdict = Verdict::read(self.record.path());
        println!("{} checks of {} acquisitions", verdict.checks, verdict.acquisitions);
        assert!(verdict.violations.is_empty(), "{:#?}", verdict.violations);
        assert!(verdict.acquisitions >= least, "only {}", verdict.acquisitions);
        for taker in &mut self.takers {
            taker.tell("close");
            taker.hear("closed");
        }
        nothing_is_left(&self.server);
    }
}

/// G9: no key but `meta`.
fn nothing_is_left(server: &Server) {
    let mut raw = server.raw();
    eventually(SOON, || raw.cmd(&["DBSIZE"]).int() == Some(1));
    assert_eq!(raw.cmd(&["EXISTS", "lockwarden:meta"]).int(), Some(1));
}

fn lasting() -> Duration {
    Duration::from_secs(if long() { 40 } else { 6 })
}

fn pause(ms: u64) {
    // The time between two faults is what is tested, not a wait for anything.
    std::thread::sleep(Duration::from_millis(ms));
}

fn started(kind: ServerKind) -> Server {
    let server = Server::start(kind);
    server.without_guard();
    server
}

/// C31, C67: every connection killed, every script forgotten, again and again.
#[test]
fn c67_killed_connections_and_forgotten_scripts() {
    for kind in ServerKind::default_set() {
        let mut world = World::new(started(kind), 6);
        let mut dice = Dice(1);
        world.load(lasting(), |world| {
            let mut raw = world.server.raw();
            match dice.below(3) {
                0 => drop(raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])),
                1 => drop(raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"])),
                _ => drop(raw.cmd(&["SCRIPT", "FLUSH"])),
            }
            pause(100 + dice.below(200));
        });
        world.judge(100);
    }
}

/// C34: the server is killed and comes back without data, under load.
#[test]
fn c34_restarts_without_data_under_load() {
    for kind in ServerKind::default_set() {
        let mut world = World::new(started(kind), 6);
        world.load(lasting(), |world| {
            pause(1_000);
            world.server.kill9();
            world.server.restart(Restart::Empty);
            // Longer than the guard, so that something is granted in between.
            pause(4_000);
        });
        world.judge(50);
    }
}

/// C34: FLUSHALL under load.
#[test]
fn c34_flushall_under_load() {
    for kind in ServerKind::default_set() {
        let mut world = World::new(started(kind), 6);
        world.load(lasting(), |world| {
            pause(500);
            world.server.cmd(&["FLUSHALL"]);
            pause(3_500);
        });
        world.judge(50);
    }
}

/// The network delays, cuts and swallows, for each client on its own.
#[test]
fn networks_that_are_cut_under_load() {
    for kind in ServerKind::default_set() {
        let mut world = World::new(started(kind), 6);
        let mut dice = Dice(7);
        world.load(lasting() * 2, |world| {
            let proxies = world.proxies.len() as u64;
            let proxy = &world.proxies[dice.below(proxies) as usize];
            match dice.below(7) {
                0 => proxy.cut(Cut::Reset),
                1 => proxy.cut(Cut::Close),
                2 => drop(proxy.cut_subscribed(Cut::Reset)),
                3 => proxy.half_open(NewConnections::Refuse),
                4 => proxy.half_open(NewConnections::Ignore),
                5 => proxy.delay(Direction::ToServer, Duration::from_millis(dice.below(300))),
                _ => proxy.delay(Direction::ToClient, Duration::from_millis(dice.below(300))),
            }
            pause(dice.below(1_000));
            let healed = &world.proxies[dice.below(proxies) as usize];
            healed.heal();
            pause(dice.below(300));
        });
        world.judge(50);
    }
}

/// A holder that is cut off while the server restarts empty; another asks as soon as it is back.
/// Returns what the recorder made of it.
fn cut_off_holder(guard: bool, without_rule: Option<u32>) -> Verdict {
    let mut world = World::new(started(ServerKind::any()), 0);
    world.add("cut off", without_rule);
    world.takers[0].acquire("k", "x", "lease=30000");
    assert!(world.takers[0].check("k"));
    world.proxies[0].half_open(NewConnections::Refuse);
    world.server.kill9();
    world.server.restart(Restart::Empty);
    if !guard {
        world.server.without_guard();
    }
    world.add("newcomer", None);
    world.takers[1].acquire("k", "x", "wait=10000");
    // The recorder of the cut-off one goes on for as long as it believes; a moment is enough.
    eventually(SOON, || world.takers[1].check("k"));
    pause(100);
    world.takers[1].release("k").unwrap();
    Verdict::read(world.record.path())
}

/// The recorder catches what the rules prevent: without the guard, or with a belief of 30 s, two
/// hold at once. With all rules, nobody does.
#[test]
fn planted_faults_are_caught() {
    let sound = cut_off_holder(true, None);
    assert!(sound.violations.is_empty() && sound.acquisitions == 2, "{sound:?}");
    let no_guard = cut_off_holder(false, None);
    assert!(no_guard.violations.iter().any(|it| it.starts_with("G1")), "{no_guard:?}");
    let long_belief = cut_off_holder(true, Some(20));
    assert!(long_belief.violations.iter().any(|it| it.starts_with("G1")), "{long_belief:?}");
}

/// What was there is there: the record is written by the processes themselves.
#[test]
fn the_record_is_kept_by_the_takers() {
    let mut world = World::new(started(ServerKind::any()), 1);
    world.takers[0].acquire("k", "x", "");
    let path: &Path = world.record.path();
    eventually(SOON, || Verdict::read(path).checks > 2);
}
