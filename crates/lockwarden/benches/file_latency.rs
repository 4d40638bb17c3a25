//! How long the file store's steps take. Prints, and checks only what is far off:
//! `cargo bench -p lockwarden --bench file_latency`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code")]

#[path = "../tests/file_support/mod.rs"]
mod file_support;

use file_support::{Puppet, Session, acquire, release};
use lockwarden_core::command::Wait;
use std::time::{Duration, Instant};

fn main() {
    // The other process of a hand-off is this program again.
    if std::env::var_os("LOCKWARDEN_TEST_SESSION").is_some() {
        return file_support::play();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        steps().await;
        hand_off_between_processes().await;
        a_long_queue().await;
    });
}

fn told(what: &str, mut took: Vec<Duration>) -> Duration {
    took.sort();
    let at = |part: usize| took[(took.len() * part / 100).min(took.len() - 1)];
    println!("{what}: median {:?}, p99 {:?}, most {:?}", at(50), at(99), at(100));
    at(50)
}

async fn steps() {
    let dir = tempfile::tempdir().unwrap();
    let mut connects = Vec::new();
    let mut alone = Vec::new();
    for _ in 0..500 {
        let began = Instant::now();
        let mut me = Session::new(dir.path(), "me").await;
        connects.push(began.elapsed());
        me.take("job", "me").await;
        me.release("job", "me").await;
        drop(me);
        alone.push(began.elapsed());
    }
    told("connect, alone", connects);
    told("connect, acquire, release, close, alone", alone);

    let mut me = Session::new(dir.path(), "me").await;
    let mut cycles = Vec::new();
    for _ in 0..20_000 {
        let began = Instant::now();
        me.take("job", "me").await;
        me.release("job", "me").await;
        cycles.push(began.elapsed());
    }
    let cycle = told("acquire and release", cycles);
    assert!(cycle < Duration::from_millis(5));

    let mut batches = Vec::new();
    for _ in 0..500 {
        let began = Instant::now();
        let names: Vec<String> = (0..64).map(|i| format!("n{i}")).collect();
        me.batch(names.iter().map(|of| acquire(of, "t", Wait::No)).collect()).await.unwrap();
        me.batch(names.iter().map(|of| release(of, "t")).collect()).await.unwrap();
        batches.push(began.elapsed() / 64);
    }
    told("acquire and release, 64 at once, each", batches);

    let mut others = Vec::new();
    let mut connects = Vec::new();
    for i in 0..200 {
        let began = Instant::now();
        others.push(Session::new(dir.path(), &format!("o{i}")).await);
        connects.push(began.elapsed());
    }
    told("connect, beside others", connects);
}

/// Two processes hand one lock to and fro.
async fn hand_off_between_processes() {
    let dir = tempfile::tempdir().unwrap();
    let mut me = Session::new(dir.path(), "me").await;
    let mut other = Puppet::connected(dir.path(), "other");
    me.take("job", "m0").await;
    other.say("ping-pong job");
    let mut rounds = Vec::new();
    for round in 0..5_000 {
        // The other queues before it releases, and so do we: each release is a hand-off.
        let next = format!("m{}", round + 1);
        loop {
            let refusal = me.queue("job", &next).await;
            if refusal.position == Some(1) {
                break;
            }
            let cancel = lockwarden_core::Command::Cancel {
                also: Default::default(),
                name: file_support::name("job"),
                token: file_support::token(&next),
                proof: "".into(),
            };
            me.call(cancel).await;
        }
        let began = Instant::now();
        me.release("job", &format!("m{round}")).await;
        me.granted(&next).await;
        rounds.push(began.elapsed() / 2);
    }
    told("release here to granted there (half a round)", rounds);
}

/// A thousand waiters in one session.
async fn a_long_queue() {
    let dir = tempfile::tempdir().unwrap();
    let mut me = Session::new(dir.path(), "me").await;
    let mut waiter = Session::new(dir.path(), "waiter").await;
    me.take("job", "me").await;
    let began = Instant::now();
    for i in 0..1_000 {
        waiter.queue("job", &format!("w{i}")).await;
    }
    println!("queue up, each: {:?}", began.elapsed() / 1_000);
    me.release("job", "me").await;
    let mut hand_offs = Vec::new();
    for i in 0..1_000 {
        let began = Instant::now();
        waiter.granted(&format!("w{i}")).await;
        waiter.release("job", &format!("w{i}")).await;
        hand_offs.push(began.elapsed());
    }
    told("hand-off in a long queue", hand_offs);
}
