//! Side-by-side benchmarks of Lockwarden and its baselines: each figure stands beside a baseline that
//! was measured in the same run, interleaved with it, so that a noisy machine spoils both alike.
//!
//! docs/BENCHMARKS.md says what each measures, and how to read it.

// What is printed is what this program is for.
#![allow(clippy::print_stdout)]

mod baseline;
mod child;
mod commands;
mod ground;
mod handoff;
mod held;
mod measure;
mod report;
mod run;
mod several;
mod throughput;
mod turn;
mod waiters;

use clap::{Parser, ValueEnum};
use ground::{Ground, Outcome};
use lockwarden_testkit::servers::ServerKind;
use report::Report;
use std::process::ExitCode;

/// Benchmarks of Lockwarden, each figure beside its baseline of the same run.
#[derive(Debug, Parser)]
#[command(name = "lockwarden-bench")]
struct Arguments {
    /// Which to run.
    #[arg(value_enum, value_name = "NAME", required_unless_present_any = ["all", "child"])]
    names: Vec<Benchmark>,
    /// Run all of them.
    #[arg(long)]
    all: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// How long a benchmark that can be stretched measures, all its contenders together.
    #[arg(long, value_name = "S", default_value_t = 12)]
    seconds: u64,
    /// Exit with 1 if a figure that is required (not only aimed for) is missed.
    #[arg(long)]
    strict: bool,
    /// `held` with the default lease of 30 s for three leases, instead of 6 s.
    #[arg(long)]
    long: bool,
    /// The server to measure on.
    #[arg(long, value_name = "ID", default_value = "redis-7.0")]
    server: ServerKind,
    /// The part of a benchmark that needs a process of its own.
    #[arg(long, hide = true, num_args = 2.., value_names = ["ROLE", "ARGUMENT"], exclusive = true)]
    child: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Benchmark {
    /// Cycles of acquire and release: 64 tasks on distinct names, and one task.
    Throughput,
    /// From release called to the other process's acquire returned.
    Handoff,
    /// 1,000 waiters in one process, and 100 in each of four.
    Waiters,
    /// 100,000 locks held by one warden for several leases.
    Held,
    /// `lockwarden run` beside `flock`.
    Run,
    /// Commands and connections.
    Commands,
    /// 4, 100 and 1,000 free names at once beside one at a time.
    Several,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(words) = &arguments.child {
        return ended(child::run(words));
    }
    let mut report = Report::new(arguments.server);
    let mut outcome = Ok(());
    for benchmark in Benchmark::value_variants() {
        if outcome.is_ok() && (arguments.all || arguments.names.contains(benchmark)) {
            outcome = benchmark.run(&arguments, &mut report);
        }
    }
    if arguments.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    if outcome.is_err() {
        return ended(outcome);
    }
    if arguments.strict && !report.required_met() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Benchmark {
    fn run(self, arguments: &Arguments, report: &mut Report) -> Outcome<()> {
        // A server of its own each: none inherits the other's keys or its fragmented memory.
        let ground = || Ground::new(arguments.server, arguments.seconds);
        match self {
            Benchmark::Throughput => throughput::run(&ground()?, report),
            Benchmark::Handoff => handoff::run(&ground()?, report),
            Benchmark::Waiters => waiters::run(&ground()?, report),
            Benchmark::Held => held::run(&ground()?, arguments.long, report),
            Benchmark::Run => run::run(arguments.seconds, report),
            Benchmark::Commands => commands::run(&ground()?, report),
            Benchmark::Several => several::run(&ground()?, report),
        }
    }
}

fn ended(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockwarden-bench: {error}");
            ExitCode::from(2)
        }
    }
}
