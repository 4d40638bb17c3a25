//! What a cycle costs, on the server and here. `cargo bench -p lockwarden --bench redis_cost`

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

#[path = "../tests/redis_support/mod.rs"]
mod redis_support;

use lockwarden_core::{Command, command::Wait};
use lockwarden_testkit::servers::{Server, ServerKind};
use redis_support::{Session, acquire, protocols, release, settings};
use std::time::Instant;

fn cpu_us(server: &Server) -> f64 {
    let field = |name| server.info("cpu", name).unwrap().parse::<f64>().unwrap();
    (field("used_cpu_user") + field("used_cpu_sys")) * 1e6
}

fn own_cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn main() {
    for kind in ServerKind::default_set() {
        let server = Server::start(kind);
        server.without_guard();
        for protocol in protocols(&server) {
            let mut settings = settings(&server);
            settings.protocol = Some(protocol);
            let mut session = Session::connect(&settings, "cost");
            for at_once in [1, 8, 32, 64, 128] {
                let cycles = if at_once == 1 { 20_000 } else { 200_000 };
                measure(&server, &mut session, at_once, cycles, &format!("{kind} {protocol:?}"));
            }
        }
    }
}

/// Tasks that each acquire and release a lock of their own, over and over; the commands that are
/// ready travel together, two calls on their way.
fn measure(server: &Server, session: &mut Session, at_once: usize, cycles: usize, what: &str) {
    let names: Vec<String> = (0..at_once).map(|i| format!("bench:{i}")).collect();
    let mut held = vec![false; at_once];
    let next = |held: &mut Vec<bool>, i: usize| -> Command {
        held[i] = !held[i];
        let (lock, token) = (&names[i], format!("0123456789abcdef{i:08}"));
        if held[i] { acquire(lock, &token, Wait::Forever) } else { release(lock, &token) }
    };
    let (cpu, own, start) = (cpu_us(server), own_cpu_us(), Instant::now());
    let mut done = 0;
    let halves: Vec<Vec<usize>> = if at_once == 1 {
        vec![vec![0]]
    } else {
        vec![(0..at_once / 2).collect(), (at_once / 2..at_once).collect()]
    };
    let mut flying: std::collections::VecDeque<(Vec<usize>, Vec<u64>)> = halves
        .into_iter()
        .map(|half| {
            let commands = half.iter().map(|i| next(&mut held, *i)).collect();
            (half, session.send(commands))
        })
        .collect();
    while let Some((half, ids)) = flying.pop_front() {
        for answer in session.answers_to(&ids) {
            answer.unwrap();
        }
        done += half.len();
        if done < cycles * 2 {
            let commands = half.iter().map(|i| next(&mut held, *i)).collect();
            flying.push_back((half, session.send(commands)));
        }
    }
    let cycles = done as f64 / 2.0;
    println!(
        "{what} {at_once:>3} at once: {:>7.0} cycles/s, server {:.2} µs, client {:.2} µs per cycle",
        cycles / start.elapsed().as_secs_f64(),
        (cpu_us(server) - cpu) / cycles,
        (own_cpu_us() - own) / cycles,
    );
}
