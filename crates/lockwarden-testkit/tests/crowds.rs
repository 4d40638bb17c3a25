//! Crowds at one name: readers beside writers, and many who wait for few permits. The order of service is that of
//! arrival (G4), nobody starves, and what one acquisition costs does not grow with the crowd.
//!
//! Whoever asks stands in the queue before the next one does, so that the order of arrival is known; fences grow with
//! each grant, so that the order of service is known as well, whoever was scheduled first.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

use lockwarden::{Error, Guard, Lock, Loss, Mode, State, Waiting, Warden};
use lockwarden_testkit::{
    conformance::{names, until},
    recorder::{Recorder, Verdict},
    servers::{Server, ServerKind},
    site::Site,
};
use std::{
    future::{Future, poll_fn},
    ops::AddAssign,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Barrier, watch},
    task::JoinHandle,
};

mod support;
use support::{MS, calls, every_site, join, nothing_is_left, runtime, size};

/// Sessions that the crowd comes from.
const SESSIONS: usize = 4;
/// Whoever is not served by then never will be.
const LONG: Duration = Duration::from_secs(1_200);
/// Longer than the test: renewals would make a slow run look dear.
const LEASE: Duration = Duration::from_secs(3_600);

/// What a crowd needs.
struct Crowd<'a> {
    site: &'a Site,
    wardens: Vec<Warden>,
    recorder: Arc<Recorder>,
    record: tempfile::NamedTempFile,
}

/// Whoever was served: which place it had in the order of arrival, the fence, and how long it held the lock.
struct Served {
    place: usize,
    fence: u64,
    held: Duration,
    is_lost: bool,
}

/// What a stretch of a run took.
#[derive(Clone, Copy, Default)]
struct Cost {
    acquisitions: u64,
    took: Duration,
    /// Calls of scripts, and the server's processor time; 0 where there is no server.
    calls: u64,
    cpu_us: f64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.acquisitions += other.acquisitions;
        self.took += other.took;
        self.calls += other.calls;
        self.cpu_us += other.cpu_us;
    }
}

impl Cost {
    fn each(&self, what: f64) -> f64 {
        what / self.acquisitions as f64
    }

    fn calls_each(&self) -> f64 {
        self.each(self.calls as f64)
    }

    fn cpu_us_each(&self) -> f64 {
        self.each(self.cpu_us)
    }

    fn tell(&self, what: &str) {
        print!("  {what}: {} in {:.2?}", self.acquisitions, self.took);
        println!(
            ", each {:.0} µs, {:.3} script calls, {:.1} µs of the server",
            self.each(self.took.as_secs_f64() * 1e6),
            self.calls_each(),
            self.cpu_us_each()
        );
    }
}

/// What the server has spent so far: processor time, which says the same however busy the machine is.
fn cpu_us(server: &Server) -> f64 {
    let field = |name| server.info("cpu", name).unwrap().parse::<f64>().unwrap();
    (field("used_cpu_user") + field("used_cpu_sys")) * 1e6
}

impl<'a> Crowd<'a> {
    async fn new(site: &'a Site) -> Crowd<'a> {
        let mut wardens = Vec::new();
        for _ in 0..SESSIONS {
            wardens.push(join(site).await);
        }
        let record = tempfile::NamedTempFile::new().unwrap();
        let recorder = Arc::new(Recorder::open(record.path()).unwrap());
        Crowd { site, wardens, recorder, record }
    }

    /// The lock in this mode, as the session asks for it whose turn it is.
    fn lock(&self, number: usize, mode: Mode) -> Lock {
        let lock = self.wardens[number % SESSIONS].lock("crowd").lease(LEASE);
        match mode {
            Mode::Exclusive => lock,
            Mode::Shared => lock.shared(),
            Mode::Permits { count, of } => lock.permits(count, of),
        }
    }

    /// Queues for the lock, behind all that did so before. Once served it is held until `work` is done.
    async fn queue_up<W: Future<Output = ()> + Send + 'static>(
        &self,
        place: usize,
        mode: Mode,
        work: impl FnOnce() -> W + Send + 'static,
    ) -> JoinHandle<Served> {
        let (report, mut told) = watch::channel(Waiting::default());
        let (lock, recorder) = (self.lock(place, mode).report_to(report), self.recorder.clone());
        let task = tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let since = Instant::now();
            checked(&recorder, &guard, mode).await;
            work().await;
            checked(&recorder, &guard, mode).await;
            let (fence, held) = (guard.fence(), since.elapsed());
            let is_lost = match guard.release().await {
                Err(Error::Lost { loss: Loss::LeaseEnded, .. }) => true,
                released => {
                    released.unwrap();
                    false
                }
            };
            Served { place, fence, held, is_lost }
        });
        let in_queue = |it: &Waiting| it.told.as_ref().is_some_and(|it| it.position.is_some());
        told.wait_for(in_queue).await.expect("it waits");
        progress("queued", place + 1);
        task
    }

    /// What a stretch of the run costs in which so many acquire the lock.
    async fn measured<T>(&self, acquisitions: usize, run: impl Future<Output = T>) -> (T, Cost) {
        let server = self.site.server.as_ref();
        let calls = || {
            let raw = &mut server?.raw();
            Some(calls(raw, "evalsha") + calls(raw, "eval"))
        };
        let (calls_before, cpu_before) = (calls(), server.map(cpu_us));
        let began = Instant::now();
        let done = run.await;
        let (took, cpu_after) = (began.elapsed(), server.map(cpu_us));
        let cost = Cost {
            acquisitions: acquisitions as u64,
            took,
            calls: calls().unwrap_or(0) - calls_before.unwrap_or(0),
            cpu_us: cpu_after.unwrap_or(0.0) - cpu_before.unwrap_or(0.0),
        };
        (done, cost)
    }

    /// Nobody was beside anybody beside whom it may not be, and nothing is left. Says how many were inside at once.
    async fn ends(self) -> usize {
        let verdict = Verdict::read(self.record.path());
        assert!(verdict.violations.is_empty(), "{:#?}", verdict.violations);
        until("nothing is left", || async { names(&self.wardens[0]).await.is_empty() }).await;
        if let Some(server) = &self.site.server {
            nothing_is_left(server);
        }
        verdict.most_inside
    }
}

/// A quarter of a size for the embedded store. There a lock is one row, which each command reads and writes as a whole:
/// the sizes that the project promises need an optimised build, or hours.
fn embedded(long: u64, short: u64) -> usize {
    let long = if cfg!(debug_assertions) { long / 5 } else { long };
    size(long, short) as usize / 4
}

/// Records that it is held. On a starved machine no heartbeat may be heard for seconds: then it is asked until one is.
/// Or it is lost, for whoever was served by a message has 3 s to show itself (R27).
async fn checked(recorder: &Recorder, guard: &Guard, mode: Mode) {
    while !recorder.check_in(guard, mode) && !matches!(guard.state(), State::Lost(_)) {
        tokio::time::sleep(MS(5)).await;
    }
}

fn servers() -> impl Iterator<Item = Site> {
    ServerKind::default_set().into_iter().map(Site::redis)
}

/// All of them, in the order in which they were served. Who starves ends the test.
async fn all_served(tasks: Vec<JoinHandle<Served>>) -> Vec<Served> {
    let all = async {
        let mut served = Vec::new();
        for task in tasks {
            served.push(task.await.unwrap());
            progress("served", served.len());
        }
        served
    };
    let mut served = tokio::time::timeout(LONG, all).await.expect("somebody starves");
    served.sort_by_key(|it| it.fence);
    let lost = served.iter().filter(|it| it.is_lost).count();
    assert!(lost * 10 <= served.len(), "{lost} of {} have lost it", served.len());
    served
}

fn in_order(served: &[Served]) -> bool {
    served.is_sorted_by(|one, other| one.place < other.place && one.fence < other.fence)
}

/// What a long test does meanwhile.
fn progress(what: &str, count: usize) {
    if count.is_multiple_of(1_000) {
        println!("  … {what}: {count}");
    }
}

/// Heartbeats of all sessions, one a second each; and rechecks, of the first, of the second, and one of each session.
fn by_time(took: Duration) -> u64 {
    let (s, sessions) = (took.as_secs(), SESSIONS as u64);
    sessions * (s + 2) + (s + 1) + (s / 3 + 1) + sessions * (s / 10 + 1)
}

/// Runs a quarter of the crowd, then all of it: nothing that one acquisition costs the server grows.
fn at_two_sizes<F: Future<Output = Cost>>(site: &Site, run: impl Fn(usize) -> F) {
    let runtime = runtime();
    let [small, large] = [1, 4].map(|times| runtime.block_on(run(times)));
    let each = |cost: &Cost| cost.each(cost.took.as_secs_f64());
    println!(
        "{}: four times the crowd: {:.2} times the time of each",
        site.url(),
        each(&large) / each(&small)
    );
    if site.server.is_none() {
        return;
    }
    let calls = large.calls_each() / small.calls_each();
    let cpu = large.cpu_us_each() / small.cpu_us_each();
    println!("  {calls:.3} times the script calls, {cpu:.2} times the server's time");
    // Fewer there may be, for some travel together; and what goes by time counts for nobody (R17, R19).
    let most = small.calls_each() * 1.05 * large.acquisitions as f64 + by_time(large.took) as f64;
    assert!(large.calls as f64 <= most, "{} calls, and {most} at most", large.calls);
    assert!(cpu < 3.0, "{} µs and {} µs", small.cpu_us_each(), large.cpu_us_each());
}

/// Half of the readers hold the lock together. Then writers come, each with some readers behind it.
async fn take_turns(site: &Site, readers: usize, writers: usize) -> Cost {
    let crowd = Crowd::new(site).await;
    println!("{}: {readers} readers and {writers} writers", site.url());
    let (first, behind) = (readers / 2, readers / 2 / writers);
    let mut total = Cost::default();

    let (mut held, cost) = crowd
        .measured(first, async {
            let mut held: Vec<Guard> = Vec::new();
            for number in 0..first {
                let guard = crowd.lock(number, Mode::Shared).no_wait().acquire().await.unwrap();
                checked(&crowd.recorder, &guard, Mode::Shared).await;
                held.push(guard);
            }
            held
        })
        .await;
    cost.tell("readers enter");
    total += cost;

    let (_, cost) = crowd
        .measured(first, async {
            let mut extends: Vec<_> = held.iter().map(|it| Box::pin(it.extend(LEASE))).collect();
            // All at once, as renewals are.
            poll_fn(|cx| {
                extends.retain_mut(|extend| match extend.as_mut().poll(cx) {
                    Poll::Ready(result) => {
                        result.unwrap();
                        false
                    }
                    Poll::Pending => true,
                });
                if extends.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        })
        .await;
    cost.tell("and are renewed");

    let (tasks, cost) = crowd
        .measured(writers * (behind + 1), async {
            let mut tasks = Vec::new();
            for _ in 0..writers {
                tasks.push(
                    crowd
                        .queue_up(tasks.len(), Mode::Exclusive, || tokio::time::sleep(MS(5)))
                        .await,
                );
                // All of them hold it at the same time, or none gets any further.
                let together = Arc::new(Barrier::new(behind));
                for _ in 0..behind {
                    let together = together.clone();
                    let work = || async move {
                        together.wait().await;
                    };
                    tasks.push(crowd.queue_up(tasks.len(), Mode::Shared, work).await);
                }
            }
            tasks
        })
        .await;
    cost.tell("others queue");
    let mut serving = cost;

    let queued = tasks.len();
    let (served, cost) = crowd
        .measured(0, async {
            for guard in &held {
                checked(&crowd.recorder, guard, Mode::Shared).await;
            }
            // Whoever waits is not served before the last of them is gone.
            let last = held.pop().unwrap();
            let mut releases = Vec::new();
            for guard in held {
                releases.push(tokio::spawn(guard.release()));
            }
            for release in releases {
                release.await.unwrap().unwrap();
            }
            assert!(tasks.iter().all(|task| !task.is_finished()));
            last.release().await.unwrap();
            all_served(tasks).await
        })
        .await;
    serving += cost;
    Cost { acquisitions: queued as u64, ..cost }.tell("and are served");
    total += serving;
    total.tell("in all");

    assert_eq!(served.len(), queued);
    assert!(in_order(&served), "not in order of arrival");
    let most_inside = crowd.ends().await;
    assert!(most_inside >= first, "{most_inside} of {first} at once");
    total
}

#[test]
fn readers_and_writers_on_a_server() {
    for site in servers() {
        let (readers, writers) = (size(10_000, 500) as usize / 4, size(100, 20) as usize / 4);
        at_two_sizes(&site, |times| take_turns(&site, times * readers, times * writers));
    }
}

#[test]
fn readers_and_writers_embedded() {
    let (readers, writers) = (embedded(10_000, 500), embedded(100, 20));
    let site = Site::file();
    at_two_sizes(&site, |times| take_turns(&site, times * readers, times * writers));
}

/// How many permits there are.
const PERMITS: u32 = 8;

/// Many who wait for few permits, one each.
async fn wait_for_permits(site: &Site, waiters: usize) -> Cost {
    let crowd = Crowd::new(site).await;
    println!("{}: {waiters} wait for {PERMITS} permits", site.url());
    let mode = Mode::Permits { count: 1, of: PERMITS };
    let mut held = Vec::new();
    for number in 0..PERMITS as usize {
        held.push(crowd.lock(number, mode).no_wait().acquire().await.unwrap());
    }
    let (tasks, mut total) = crowd
        .measured(waiters, async {
            let mut tasks = Vec::new();
            for place in 0..waiters {
                tasks.push(crowd.queue_up(place, mode, || tokio::time::sleep(MS(20))).await);
            }
            tasks
        })
        .await;
    total.tell("they queue");
    let (served, cost) = crowd
        .measured(0, async {
            for guard in &held {
                checked(&crowd.recorder, guard, mode).await;
            }
            held.into_iter().for_each(drop);
            all_served(tasks).await
        })
        .await;
    Cost { acquisitions: waiters as u64, ..cost }.tell("and are served");
    total += cost;
    total.tell("in all");
    assert_eq!(served.len(), waiters);
    assert!(in_order(&served), "not in order of arrival");
    // As long as anybody waits all permits are in use, but for the moments in which they change hands.
    let held: Duration = served.iter().map(|it| it.held).sum();
    let ratio = cost.took.as_secs_f64() * f64::from(PERMITS) / held.as_secs_f64();
    println!("  {ratio:.2} times the time for which they were held, by all permits at once");
    assert!(ratio < 10.0, "{ratio}: permits lie idle");
    assert_eq!(crowd.ends().await, PERMITS as usize);
    total
}

#[test]
fn a_semaphore_on_a_server() {
    for site in servers() {
        let waiters = size(5_000, 400) as usize / 4;
        at_two_sizes(&site, |times| wait_for_permits(&site, times * waiters));
    }
}

#[test]
fn a_semaphore_embedded() {
    let (site, waiters) = (Site::file(), embedded(5_000, 400));
    at_two_sizes(&site, |times| wait_for_permits(&site, times * waiters));
}

/// R28: a queue is forgotten 60 s after anybody looked at it. Where each of those in front is served within a second,
/// none of them looks again; somebody must, or a queue that takes longer than that to serve is lost on the way.
#[test]
fn a_queue_that_moves_quickly_is_not_forgotten() {
    std::thread::scope(|scope| {
        for site in every_site() {
            scope.spawn(move || runtime().block_on(moves_quickly(&site)));
        }
    });
}

async fn moves_quickly(site: &Site) {
    let crowd = Crowd::new(site).await;
    let waiters = size(700, 160) as usize;
    println!("{}: {waiters} wait, for 100 ms each", site.url());
    let held = crowd.lock(0, Mode::Exclusive).no_wait().acquire().await.unwrap();
    let mut tasks = Vec::new();
    for place in 0..waiters {
        let work = || tokio::time::sleep(MS(100));
        tasks.push(crowd.queue_up(place, Mode::Exclusive, work).await);
    }
    held.release().await.unwrap();
    let served = tokio::spawn(all_served(tasks));
    let mut least_ms = i64::MAX;
    while !served.is_finished() {
        if let Some(server) = &site.server
            && let Some(left_ms @ 0..) = server.cmd(&["PTTL", "lockwarden:queue:{crowd}"]).int()
        {
            least_ms = least_ms.min(left_ms);
        }
        tokio::time::sleep(MS(20)).await;
    }
    // Every 10 s, and as much again for whoever is in front by then.
    assert!(
        least_ms > 60_000 - 15_000,
        "nobody has looked for so long that {least_ms} ms are left"
    );
    assert!(in_order(&served.await.unwrap()), "not in order of arrival");
    crowd.ends().await;
}
