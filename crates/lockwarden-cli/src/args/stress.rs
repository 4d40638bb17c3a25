//! The arguments of `lockwarden stress`.

use crate::{
    duration,
    stress::{Locks, Sequence, Style},
};
use clap::{Args, Subcommand};
use std::{path::PathBuf, time::Duration};

/// Load a store with many lock users at the same time, and show what came of it.
#[derive(Debug, Args)]
pub(crate) struct StressArgs {
    /// What they do.
    #[command(subcommand)]
    pub(crate) scenario: Scenario,
}

/// What the lock users do.
#[derive(Debug, Subcommand)]
pub(crate) enum Scenario {
    // What it does stands at its arguments.
    Orders(OrdersArgs),
    /// One process of a run; the run starts it, and tells it what to do on its standard input.
    #[command(hide = true)]
    Worker,
}

/// Orders of a shop: each acquires its locks, works, and releases them, in several styles.
///
/// All orders come at the same time. The styles run one after the other on one store: `flawed` (SETNX, then EXPIRE;
/// looks every 0.1 s; a release that never matches), `backoff` (a Lua lock, looks after 10 ms and then ever more
/// seldom, sorted names), `lockwarden` (all locks at once) and `lockwarden-nested` (one inside the other). The first two
/// need a Redis server. All names begin with a text that only this run has, and all of them are removed at the end.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct OrdersArgs {
    /// How many orders.
    #[arg(long, value_name = "N", default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000), allow_negative_numbers = true)]
    pub(crate) orders: u32,
    /// How many locks each order needs.
    #[arg(long, value_name = "HOW MANY", default_value = "two")]
    pub(crate) locks: Locks,
    /// In which order locks are acquired one inside the other; random is another one for each order.
    ///
    /// It rules `flawed` and `lockwarden-nested`; the others always sort, or acquire all at once.
    #[arg(long, value_name = "HOW", default_value = "sorted")]
    pub(crate) order: Sequence,
    /// Only these styles, separated by commas; without it all that the store can do.
    #[arg(long, value_name = "STYLE", value_delimiter = ',')]
    pub(crate) style: Vec<Style>,
    /// How long each order works while it holds its locks: 1ms to 1h.
    #[arg(long, value_name = "DUR", value_parser = duration::work, default_value = "500ms")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) work: Duration,
    /// After how long an order gives up if it does not have its locks: 1ms to 1h.
    #[arg(long, value_name = "DUR", value_parser = duration::patience, default_value = "10s")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) wait: Duration,
    /// Deal the orders out to so many processes.
    #[arg(long, value_name = "P", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256), allow_negative_numbers = true)]
    pub(crate) processes: u32,
    /// Kill this share of the processes in the middle (SIGKILL): one at least, and never all of them.
    ///
    /// The others carry out what the killed ones had not finished.
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100), allow_negative_numbers = true)]
    pub(crate) kill: u8,
    /// Start a Redis server for this run, and restart it in the middle (SIGKILL, then the same data).
    #[arg(long)]
    pub(crate) restart_redis: bool,
    /// Start a Redis server for this run: the program redis-server, or this one.
    ///
    /// It listens on a socket in a directory of its own, which goes with it; nobody else can reach it.
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, default_missing_value = "redis-server")]
    pub(crate) redis_server: Option<PathBuf>,
    /// What all chance depends on: the same seed, the same random order and the same victims.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// One JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with plots into this file, too: HTML that loads nothing from anywhere.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  All styles on a Redis server of the run's own, with a page to look at:
    lockwarden stress orders --redis-server --report orders.html
  The embedded store, twice as many orders:
    lockwarden stress orders --store file:/tmp/locks --orders 1000
  Four locks each, one inside the other in random order, from four processes:
    lockwarden stress orders --redis-server --locks four --order random --style lockwarden-nested \\
      --orders 1000 --processes 4 --wait 60s
  A tenth of the processes killed, and Redis restarted:
    lockwarden stress orders --processes 10 --kill 10 --restart-redis --style lockwarden

Exit code 0 also where orders gave up: that is a result. 70 if two orders held one lock at the same time
in a style of ours.";
