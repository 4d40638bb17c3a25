//! A process that takes locks as it is told, to be killed, stopped and cut off by the tests. It
//! reads commands from its standard input and writes what happens to its standard output, a line
//! each; see [`lockwarden_testkit::taker`], which speaks with it.
#![allow(clippy::print_stdout, clippy::expect_used)]

use lockwarden::{Guard, Lock, Rules, Settings, State, Warden};
use lockwarden_testkit::{
    gates,
    recorder::{Recorder, now_us},
};
use std::{
    collections::HashMap,
    io::Write,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::io::{AsyncBufReadExt, BufReader};

#[derive(Clone)]
struct Taker {
    warden: Warden,
    guards: Arc<Mutex<HashMap<String, Arc<Guard>>>>,
    recorder: Option<Arc<Recorder>>,
    /// Cycles begin no further round.
    stopped: Arc<AtomicBool>,
}

/// Whole lines, at once, whatever the tasks do.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The test has gone: so should we, without a word.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut value = || arguments.next().expect("a value");
    let url = value();
    let (label, watch, record) = (value(), value(), value());
    let mut settings = Settings::new().label(&label);
    if watch == "unwatched" {
        settings = settings.without_process_watch();
    }
    if let Ok(rule) = std::env::var("TAKER_WITHOUT_RULE") {
        settings = settings.with_rules(Rules::ALL.without(rule.parse().expect("a rule")));
    }
    let recorder = (record != "-")
        .then(|| Arc::new(Recorder::open(&PathBuf::from(record)).expect("a record")));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let warden = match settings.connect(&url).await {
            Ok(warden) => warden,
            Err(error) => return say(&format!("failed connect {} {error}", error.code())),
        };
        say("connected");
        let taker = Taker { warden, guards: Arc::default(), recorder, stopped: Arc::default() };
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            if words[0] == "stop" {
                taker.stopped.store(true, Ordering::Relaxed);
                continue;
            }
            if words[0] == "close" {
                taker.warden.clone().close().await;
                return say("closed");
            }
            taker.obey(words);
        }
    });
    // As a process that ends without a thought for its locks.
    std::process::exit(0);
}

impl Taker {
    fn obey(&self, words: Vec<String>) {
        let taker = self.clone();
        let key = words.get(1).cloned().expect("a key");
        match words[0].as_str() {
            "acquire" => drop(tokio::spawn(taker.acquire(key, words))),
            "release" => drop(tokio::spawn(taker.release(key))),
            "hand_over" => drop(tokio::spawn(taker.hand_over(key, words))),
            "leave" => drop(tokio::spawn(taker.leave(key))),
            "check" => say(&format!("check {key} {} {}", taker.check(&key), now_us())),
            "state" => {
                let state = taker.guard(&key).map(|guard| guard.state());
                say(&format!("state {key} {state:?}"));
            }
            "drop" => drop(taker.guards.lock().expect("guards").remove(&key)),
            "clock" => say(&format!("clock {key} {}", wall_ms())),
            "fork" => say(&format!("forked {key} {}", fork_a_sleeper())),
            "add" => taker.add(&key, &words[2]),
            "put" => taker.put(&key, &words[2..]),
            "cycle" => drop(tokio::spawn(taker.cycle(key, words))),
            "orders" => drop(tokio::spawn(taker.orders(key, words))),
            other => panic!("unknown command {other:?}"),
        }
    }

    fn guard(&self, key: &str) -> Option<Arc<Guard>> {
        self.guards.lock().expect("guards").get(key).cloned()
    }

    fn check(&self, key: &str) -> bool {
        self.guard(key).is_some_and(|guard| self.checked(&guard))
    }

    fn checked(&self, guard: &Guard) -> bool {
        self.recorder.as_ref().map_or_else(|| guard.check(), |recorder| recorder.check(guard))
    }

    /// `acquire KEY NAME OPTION…`; several names with commas between them are acquired at once. In the place of a name:
    /// what was handed over.
    async fn acquire(self, key: String, words: Vec<String>) {
        let lock = match words[2].parse() {
            Ok(given) => self.warden.adopt(&given),
            Err(_) => self.warden.lock_all(words[2].split(',')),
        };
        let guard = match options(lock, &words[3..]).acquire().await {
            Ok(guard) => Arc::new(guard),
            Err(error) => return say(&format!("failed {key} {} {error}", error.code())),
        };
        let at_us = now_us();
        self.guards.lock().expect("guards").insert(key.clone(), guard.clone());
        say(&format!("acquired {key} {} {at_us} {}", guard.fence(), guard.token()));
        // Tells of the loss, and keeps the record, for as long as the guard is kept. It holds the
        // guard for moments only: a release must be able to have it.
        let watched = Arc::downgrade(&guard);
        drop(guard);
        let mut told = false;
        while let Some(guard) = watched.upgrade() {
            self.checked(&guard);
            if let (false, State::Lost(loss)) = (told, guard.state()) {
                told = true;
                say(&format!("lost {key} {loss:?} {}", now_us()));
            }
            drop(guard);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn take(&self, key: &str) -> Option<Guard> {
        let mut guard = self.guards.lock().expect("guards").remove(key)?;
        // The watch above holds it for a moment now and then.
        loop {
            match Arc::try_unwrap(guard) {
                Ok(guard) => return Some(guard),
                Err(shared) => guard = shared,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// `hand_over KEY MS`.
    async fn hand_over(self, key: String, words: Vec<String>) {
        let Some(guard) = self.take(&key).await else {
            return say(&format!("failed {key} none no such guard"));
        };
        let keep = Duration::from_millis(words[2].parse().expect("ms"));
        match guard.hand_over(keep).await {
            Ok(given) => say(&format!("handed {key} {given}")),
            Err(error) => say(&format!("failed {key} {} {error}", error.code())),
        }
    }

    async fn leave(self, key: String) {
        let Some(guard) = self.take(&key).await else {
            return say(&format!("failed {key} none no such guard"));
        };
        match guard.leave().await {
            Ok(()) => say(&format!("left {key}")),
            Err(error) => say(&format!("failed {key} {} {error}", error.code())),
        }
    }

    async fn release(self, key: String) {
        let Some(guard) = self.take(&key).await else {
            return say(&format!("failed {key} none no such guard"));
        };
        match guard.release().await {
            Ok(()) => say(&format!("released {key} {}", now_us())),
            Err(error) => say(&format!("failed {key} {} {error}", error.code())),
        }
    }

    /// `add KEY FILE`: adds one to the number in a file, with no other protection than the lock.
    fn add(&self, key: &str, file: &str) {
        let held = self.check(key);
        let number: u64 = std::fs::read_to_string(file).expect("a file").parse().expect("a number");
        std::thread::yield_now();
        std::fs::write(file, (number + 1).to_string()).expect("written");
        say(&format!("added {key} {} {held}", number + 1));
    }

    /// `put KEY GATE PLACE VALUE`: writes through a gate, without a look at the lock: as a program
    /// that was stopped between its check and its write.
    fn put(&self, key: &str, words: &[String]) {
        let fence = self.guard(key).expect("such a guard").fence();
        let [gate, place, value] = words else { panic!("put takes a gate, a place and a value") };
        let written = std::thread::scope(|scope| {
            // In a thread of its own: some clients bring a runtime along.
            let put = || gates::put(gate, place, fence, value).map_err(|error| error.to_string());
            scope.spawn(put).join().expect("it does not panic")
        });
        match written {
            Ok(()) => say(&format!("put {key}")),
            Err(error) => say(&format!("refused {key} {}", error.trim_end())),
        }
    }

    /// `cycle KEY NAME COUNT HOLD_US OPTION…`: acquire, check, release, again and again; failures
    /// are counted by their codes.
    async fn cycle(self, key: String, words: Vec<String>) {
        let number = |text: &String| text.parse::<u64>().expect("a number");
        let (count, hold_us) = (number(&words[3]), number(&words[4]));
        let lock = options(self.warden.lock(&words[2]), &words[5..]);
        let mut outcomes: HashMap<&'static str, u64> = HashMap::new();
        for _ in 0..count {
            if self.stopped.load(Ordering::Relaxed) {
                break;
            }
            let guard = match lock.acquire().await {
                Ok(guard) => guard,
                Err(error) => {
                    *outcomes.entry(error.code()).or_default() += 1;
                    continue;
                }
            };
            let began_us = now_us();
            self.checked(&guard);
            while now_us() < began_us + hold_us {
                tokio::time::sleep(Duration::from_micros(200)).await;
                self.checked(&guard);
            }
            let outcome = guard.release().await.map_or_else(|error| error.code(), |()| "released");
            *outcomes.entry(outcome).or_default() += 1;
        }
        let mut text: Vec<String> = outcomes.iter().map(|(it, n)| format!("{it}={n}")).collect();
        text.sort();
        say(&format!("cycled {key} {}", text.join(" ")));
    }
}

/// The four locks of an order, each of which it shares with nine others.
fn locks_of(order: usize) -> [String; 4] {
    let (b, m, a) = (order / 100 % 10, order / 10 % 10, order % 10);
    let (seq, next) = ((a + m + b) % 10, (a + 2 * b) % 10);
    [
        format!("user:{m}{a}"),
        format!("product:{b}{m}"),
        format!("coupon:{a}{b}"),
        format!("seq:{seq}{next}"),
    ]
}

/// What became of the orders of one process.
#[derive(Default)]
struct Orders {
    done: u64,
    deadlocks: u64,
    /// How long the slowest deadlock took to be told, in µs.
    slowest_us: u64,
}

impl Taker {
    /// `orders KEY FIRST COUNT WORK_US ORDER`: so many orders at the same time, each of which takes its four locks
    /// one inside the other, works, and gives them back; ORDER: `sorted`, or `random`. Whoever is told of a deadlock
    /// gives back what it has, and begins anew.
    async fn orders(self, key: String, words: Vec<String>) {
        let number = |text: &String| text.parse::<usize>().expect("a number");
        let (first, count, work_us) = (number(&words[2]), number(&words[3]), number(&words[4]));
        let sorted = words[5] == "sorted";
        let total = Arc::new(Mutex::new(Orders::default()));
        let tasks: Vec<_> = (first..first + count)
            .map(|order| {
                let (taker, total) = (self.clone(), total.clone());
                tokio::spawn(taker.order(order, work_us as u64, sorted, total))
            })
            .collect();
        for task in tasks {
            task.await.expect("an order panicked");
        }
        let Orders { done, deadlocks, slowest_us } =
            std::mem::take(&mut *total.lock().expect("all"));
        say(&format!("ordered {key} {done} {deadlocks} {slowest_us}"));
    }

    async fn order(self, order: usize, work_us: u64, sorted: bool, total: Arc<Mutex<Orders>>) {
        let mut names = locks_of(order);
        names.sort();
        // The same every time, and another for each order.
        let mut dice = order as u64 + 1;
        let mut next = |below: u64| {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) % below
        };
        if !sorted {
            for last in (1..names.len()).rev() {
                names.swap(last, next(last as u64 + 1) as usize);
            }
        }
        let owner = format!("order-{order}");
        'again: loop {
            let mut held = Vec::new();
            for name in &names {
                let asked_us = now_us();
                match self.warden.lock(name).owner(&owner).label(&owner).acquire().await {
                    Ok(guard) => held.push(guard),
                    Err(lockwarden::Error::Deadlock { .. }) => {
                        let took_us = now_us() - asked_us;
                        {
                            let mut total = total.lock().expect("all");
                            total.deadlocks += 1;
                            total.slowest_us = total.slowest_us.max(took_us);
                        }
                        for guard in held {
                            guard.release().await.expect("held until now");
                        }
                        tokio::time::sleep(Duration::from_micros(1_000 + next(20_000))).await;
                        continue 'again;
                    }
                    Err(error) => panic!("{order}: {error}"),
                }
            }
            let began_us = now_us();
            while now_us() < began_us + work_us {
                for guard in &held {
                    self.checked(guard);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            for guard in held {
                guard.release().await.expect("held until now");
            }
            total.lock().expect("all").done += 1;
            return;
        }
    }
}

/// What the wall clock shows, in ms.
fn wall_ms() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_millis()
}

/// Forks a child that does nothing but live for 20 s, and returns its pid.
#[expect(unsafe_code, reason = "there is no safe way to fork")]
fn fork_a_sleeper() -> i32 {
    // SAFETY: the child makes only calls that are allowed after a fork, and ends by `_exit`.
    unsafe {
        match libc::fork() {
            0 => {
                libc::sleep(20);
                libc::_exit(0)
            }
            pid => pid,
        }
    }
}

/// `wait=no`, `wait=MS`, `lease=MS`, `grace=MS`, `value=TEXT`, `endless`, `unrenewed`, `shared`, `permits=N/M`.
fn options(mut lock: Lock, words: &[String]) -> Lock {
    for word in words {
        let (option, value) = word.split_once('=').unwrap_or((word, ""));
        let ms = || Duration::from_millis(value.parse().expect("ms"));
        lock = match option {
            "wait" if value == "no" => lock.no_wait(),
            "wait" => lock.wait_for(ms()),
            "lease" => lock.lease(ms()),
            "grace" => lock.grace(ms()),
            "value" => lock.drop_in_value(value.as_bytes()),
            "endless" => lock.endless(),
            "unrenewed" => lock.without_renewal(),
            "shared" => lock.shared(),
            "permits" => {
                let (count, of) = value.split_once('/').expect("N/M");
                lock.permits(count.parse().expect("permits"), of.parse().expect("permits"))
            }
            other => panic!("unknown option {other:?}"),
        };
    }
    lock
}
