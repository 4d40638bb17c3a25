//! The file store between processes that are killed, stopped and forked for real.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code")]

mod file_support;

use file_support::{Puppet, SOON, Session, leftovers, name, token};
use lockwarden::process::Watcher;
use lockwarden_core::{
    Command, Reply,
    command::{Reason, Wait},
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Is another process on the command line of [`Puppet`]; no test otherwise.
#[test]
fn puppet() {
    file_support::play();
}

/// Every process that the test starts counts in this file without any other protection.
#[tokio::test]
async fn processes_are_served_in_order_of_arrival() {
    let dir = tempfile::tempdir().unwrap();
    let mut me = Session::new(dir.path(), "me").await;
    let mut fences = vec![me.take("job", "me").await];
    let mut puppets: Vec<Puppet> = Vec::new();
    for i in 0..8 {
        let mut puppet = Puppet::connected(dir.path(), &format!("p{i}"));
        puppet.say("queue job");
        assert_eq!(puppet.read("queued"), format!("Some({i})"));
        puppets.push(puppet);
    }
    me.release("job", "me").await;
    for puppet in &mut puppets {
        fences.push(puppet.read("granted").parse().unwrap());
        puppet.say("release job");
        assert_eq!(puppet.read("released"), "Released");
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

/// G3: the death of a holder is seen at once; its lock is the next waiter's within 50 ms.
#[tokio::test]
async fn a_killed_holder_is_dead_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut me = Session::new(dir.path(), "me").await;
    let watcher = Watcher::new();
    let mut took = Vec::new();
    for round in 0..10 {
        let (of, mine) = (format!("job{round}"), format!("mine{round}"));
        let session = format!("p{round}");
        let mut puppet = Puppet::connected(dir.path(), &session);
        puppet.say(&format!("take {of}"));
        puppet.read("took");
        let holder = me.queue(&of, &mine).await.holder.unwrap();
        assert!(holder.ttl_ms.unwrap() > 20_000, "a living holder keeps its lease");
        let record = holder.record.unwrap();
        let watch = watcher.watch(&record.party.processes).unwrap();
        let killed = Instant::now();
        puppet.kill();
        tokio::time::timeout(SOON, watch.ended()).await.unwrap();
        let token = holder.token;
        let revoke = Command::Revoke {
            name: name(&of),
            token,
            session: Some(record.session),
            delayed: false,
        };
        assert_eq!(me.call(revoke).await, Reply::Revoked { after_ms: 0 });
        me.granted(&mine).await;
        took.push(killed.elapsed());
        me.release(&of, &mine).await;
    }
    took.sort();
    // With the whole test suite beside it; alone it is well under one.
    assert!(took[8] < Duration::from_millis(50), "{took:?}");
}

/// R14: without a process watch, the link's end starts the grace.
#[tokio::test]
async fn a_killed_holder_is_probed() {
    let dir = tempfile::tempdir().unwrap();
    let mut me = Session::new(dir.path(), "me").await;
    let mut puppet = Puppet::connected(dir.path(), "p");
    puppet.say("take job");
    puppet.read("took");
    puppet.kill();
    let ttl_ms = me.queue("job", "mine").await.holder.unwrap().ttl_ms.unwrap();
    assert!(ttl_ms <= 3_000, "{ttl_ms}");
}

/// G9: whoever notices a dead session removes what it left.
#[tokio::test]
async fn the_dead_are_buried() {
    let dir = tempfile::tempdir().unwrap();
    let mut me = Session::new(dir.path(), "me").await;
    me.take("job", "me").await;
    for i in 0..5 {
        let mut puppet = Puppet::connected(dir.path(), &format!("p{i}"));
        puppet.say("queue job");
        puppet.read("queued");
        puppet.kill();
    }
    let (files, _) = leftovers(dir.path());
    assert!(files.len() > 2, "{files:?}");
    // Hands on, and finds nobody alive.
    me.release("job", "me").await;
    let (files, rows) = leftovers(dir.path());
    assert_eq!(files, ["me", "me.sock"]);
    assert_eq!(rows[2], 0);
}

/// R40: a crash at any instruction leaves a state from which the next command continues.
#[tokio::test]
async fn killed_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let mut me = Session::new(dir.path(), "me").await;
    let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut fence = 0;
    for round in 0..rounds(100) {
        let mut puppets: Vec<Puppet> = (0..3)
            .map(|i| {
                let mut puppet = Puppet::start(dir.path(), &format!("r{round}p{i}"));
                puppet.say("churn job");
                puppet
            })
            .collect();
        for puppet in &mut puppets {
            puppet.read("connected");
        }
        for puppet in puppets {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Busy, for the moments of a timer would be none at random.
            let until = Instant::now() + Duration::from_micros((seed >> 33) % 3_000);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            puppet.kill();
        }
        // Whoever held it is dead: the next command goes on.
        let (of, mine) = ("job", format!("r{round}"));
        let next = match me.acquire(of, &mine, Wait::Forever).await {
            Reply::Granted { fence, .. } => fence,
            Reply::Refused(refusal) => {
                assert_eq!(refusal.reason, Reason::Held);
                let holder = refusal.holder.unwrap();
                let session = holder.record.unwrap().session;
                let token = holder.token;
                let revoke = Command::Revoke {
                    name: name(of),
                    token,
                    session: Some(session),
                    delayed: false,
                };
                assert_eq!(me.call(revoke).await, Reply::Revoked { after_ms: 0 });
                me.granted(&mine).await
            }
            other => panic!("{other:?}"),
        };
        assert!(next > fence, "round {round}: {next} after {fence}");
        fence = next;
        assert_eq!(me.release(of, &mine).await, Reply::Released);
    }
    intact(dir.path());
}

/// The same without anybody who stays: each time the database is opened anew, and recovered.
#[tokio::test]
async fn killed_at_any_moment_and_nobody_left() {
    let dir = tempfile::tempdir().unwrap();
    let mut seed: u64 = 42;
    let mut fence = 0;
    for round in 0..rounds(100) {
        let mut puppet = Puppet::start(dir.path(), &format!("r{round}"));
        puppet.say("churn job");
        if round % 2 == 0 {
            puppet.read("connected");
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Every other time while it starts, and makes its files.
        let until = Instant::now() + Duration::from_micros((seed >> 33) % 6_000);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        puppet.kill();
        let mut me = Session::new(dir.path(), "me").await;
        let mine = format!("m{round}");
        match me.acquire("job", &mine, Wait::No).await {
            Reply::Granted { fence: next, .. } => {
                assert!(next > fence);
                fence = next;
                me.release("job", &mine).await;
            }
            Reply::Refused(refusal) => {
                let holder = refusal.holder.unwrap();
                let record = holder.record.unwrap();
                assert_eq!(record.session.as_str(), format!("r{round}"));
                let revoke = Command::Revoke {
                    name: name("job"),
                    token: holder.token,
                    session: Some(record.session),
                    delayed: false,
                };
                assert_eq!(me.call(revoke).await, Reply::Revoked { after_ms: 0 });
            }
            other => panic!("{other:?}"),
        }
    }
    intact(dir.path());
}

/// R41: a store that another process keeps locked says which, where the system tells.
#[tokio::test]
async fn a_blocked_store_names_the_blocker() {
    let dir = tempfile::tempdir().unwrap();
    let mut me = Session::new(dir.path(), "me").await;
    let mut blocker = Puppet::blocker(dir.path());
    blocker.read("blocking");
    let pid = blocker.process.id();
    // Some containers hide the locks.
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let listed = locks.lines().any(|line| line.contains(&format!(" WRITE {pid} ")));
    let who = if listed { format!("process {pid} (") } else { "could not be found".to_owned() };
    let began = Instant::now();
    let error = me.try_call(Command::Beat).await.unwrap_err().to_string();
    assert!(error.contains("(blocked)") && error.contains(&who), "{error}\n{locks}");
    assert!(began.elapsed() < Duration::from_secs(8));
    // As soon as it ends, the store works.
    blocker.kill();
    drop(me);
    Session::new(dir.path(), "me").await.take("job", "me").await;
}

/// A store that is blocked for a while only makes its sessions wait.
#[tokio::test]
async fn a_busy_store_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut me = Session::new(dir.path(), "me").await;
    let mut blocker = Puppet::blocker(dir.path());
    blocker.read("blocking");
    let ending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        blocker.kill();
    });
    me.take("job", "me").await;
    ending.join().unwrap();
}

/// Is the blocker on the command line of [`Puppet::blocker`]; no test otherwise.
#[test]
fn blocking_puppet() {
    file_support::block();
}

/// R24, C14: a forked child owns nothing of its parent, and can begin anew.
#[test]
fn a_forked_child_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let parents = runtime();
    let mut me = parents.block_on(async {
        let mut me = Session::new(dir.path(), "parent").await;
        me.take("job", "parent").await;
        Some(me)
    });
    let child = file_support::fork(|| {
        // The inherited link is over; dropping it hurts nobody.
        let mut inherited = me.take().unwrap();
        let over = parents.block_on(inherited.try_call(Command::Beat)).unwrap_err().to_string();
        if !over.contains("forked") {
            return 3;
        }
        drop(inherited);
        runtime().block_on(async {
            let mut me = Session::new(dir.path(), "child").await;
            let refusal = me.queue("job", "child").await;
            // The parent is alive for the child, whose own memory knows of no such session.
            if refusal.holder.unwrap().ttl_ms.unwrap() < 20_000 {
                return 4;
            }
            me.take("other", "child").await;
            me.granted("child").await;
            me.release("job", "child").await;
            0
        })
    });
    parents.block_on(async {
        let me = me.as_mut().unwrap();
        // Queues behind the child, once that waits.
        let began = Instant::now();
        loop {
            let view = match me.call(Command::Show { name: name("job") }).await {
                Reply::Shown(view) => view,
                other => panic!("{other:?}"),
            };
            assert_eq!(view.holder.as_ref().unwrap().token, token("parent"));
            assert_eq!(view.holder_alive, Some(true));
            if view.queue.len() == 1 {
                break;
            }
            assert!(began.elapsed() < SOON);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        me.release("job", "parent").await;
        assert_eq!(file_support::wait(child), 0);
        me.take("job", "again").await;
    });
}

/// As a thread works, another forks: no child hangs on what the thread held at that moment.
#[test]
fn forks_amid_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let busy = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut me = Session::new(&path, "busy").await;
            let mut count = 0;
            while stopped.try_recv().is_err() {
                me.take("busy", "busy").await;
                me.release("busy", "busy").await;
                count += 1;
            }
            count
        })
    });
    for round in 0..rounds(50) {
        let child = file_support::fork(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut me = Session::new(dir.path(), &format!("child{round}")).await;
                me.take("child", "child").await;
                me.release("child", "child").await;
            });
            0
        });
        assert_eq!(file_support::wait(child), 0, "round {round}");
    }
    stop.send(()).unwrap();
    assert!(busy.join().unwrap() > 0);
    intact(dir.path());
}

/// `LOCKWARDEN_ROUNDS` makes the long tests longer.
fn rounds(usual: u64) -> u64 {
    std::env::var("LOCKWARDEN_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn intact(dir: &Path) {
    let database = rusqlite::Connection::open(dir.join("lockwarden.db")).unwrap();
    let verdict: String =
        database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}
