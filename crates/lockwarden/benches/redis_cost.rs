//! What a cycle costs and what a renewal, on the server and here, by how many commands travel in one call:
//! the best of many short rounds, for whatever else the machine does only adds to it.
//! `cargo bench -p lockwarden --bench redis_cost`

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

#[path = "../tests/redis_support/mod.rs"]
mod redis_support;

use lockwarden_core::command::Wait;
use lockwarden_testkit::servers::{Server, ServerKind};
use redis_support::{Session, acquire, protocols, release, renew, settings};

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
            for in_a_call in [1, 8, 21, 64] {
                measure(&server, &mut session, in_a_call, &format!("{kind} {protocol:?}"));
            }
        }
    }
}

/// Rounds, of which the best counts.
const ROUNDS: usize = 25;
/// Cycles in a round.
const CYCLES: usize = 4_000;

/// Locks that are acquired in one call, renewed in one, and released in one, over and over.
fn measure(server: &Server, session: &mut Session, in_a_call: usize, what: &str) {
    let names: Vec<String> = (0..in_a_call).map(|i| format!("bench:{i}")).collect();
    let (mut cycle, mut renewal) = (Cost::default(), Cost::default());
    let mut acquired = 0;
    for _ in 0..ROUNDS {
        let calls = CYCLES / in_a_call;
        cycle.round(server, calls * in_a_call, || {
            for _ in 0..calls {
                let tokens: Vec<String> =
                    (acquired..acquired + in_a_call).map(|i| format!("{i:022}")).collect();
                acquired += in_a_call;
                let both = || names.iter().zip(&tokens);
                let acquires = both().map(|(lock, token)| acquire(lock, token, Wait::Forever));
                session.all(acquires.collect());
                session.all(both().map(|(lock, token)| release(lock, token)).collect());
            }
        });
        session.all(names.iter().map(|lock| acquire(lock, "held", Wait::Forever)).collect());
        renewal.round(server, calls * in_a_call, || {
            for _ in 0..calls {
                session.all(names.iter().map(|lock| renew(lock, "held", 30_000)).collect());
            }
        });
        session.all(names.iter().map(|lock| release(lock, "held")).collect());
    }
    println!("{what} {in_a_call:>2} in a call: a cycle {cycle}; a renewal {renewal}");
}

/// Processor time of one operation, in µs.
struct Cost {
    server: f64,
    client: f64,
}

impl Default for Cost {
    fn default() -> Cost {
        Cost { server: f64::INFINITY, client: f64::INFINITY }
    }
}

impl Cost {
    fn round(&mut self, server: &Server, operations: usize, run: impl FnOnce()) {
        let (theirs, ours) = (cpu_us(server), own_cpu_us());
        run();
        self.client = self.client.min((own_cpu_us() - ours) / operations as f64);
        self.server = self.server.min((cpu_us(server) - theirs) / operations as f64);
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} µs on the server, {:.2} here", self.server, self.client)
    }
}
