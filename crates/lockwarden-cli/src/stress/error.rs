//! What only `stress` fails at.

use super::styles::Style;
use crate::exit::Code;
use std::{io, path::PathBuf, process::ExitStatus};
use thiserror::Error;

/// Why a run could not be made, or what is wrong with what it found.
#[derive(Debug, Error)]
pub(crate) enum StressError {
    /// Killing one of one leaves nobody.
    #[error("--kill {percent} needs survivors: give --processes 2 or more")]
    KillNeedsProcesses { percent: u8 },
    /// All of them.
    #[error("--kill 100 leaves no survivors to finish the orders: 99 is the most")]
    NoSurvivors,
    /// Some would have nothing to do.
    #[error("{processes} processes are more than the {orders} orders that they share")]
    MoreProcessesThanOrders { processes: u32, orders: u32 },
    /// `--restart-redis` with a store that was chosen.
    #[error(
        "--restart-redis restarts a server that the run has started itself, and cannot restart {store}: leave \
         --store out"
    )]
    NotOursToRestart { store: String },
    /// `--redis-server` with a store that was chosen.
    #[error(
        "--redis-server starts a server of the run's own, and --store chooses {store}: leave one out"
    )]
    TwoStores { store: String },
    /// The memory of another process.
    #[error(
        "memory: is a store inside one process, and the orders run in others: choose another --store"
    )]
    InMemory,
    /// Nothing is left to run.
    #[error("the style {} needs Redis, and the store is {store}", .style.name())]
    NeedsRedis { style: Style, store: String },
    /// The page could not be written; or, before the run, could never be.
    #[error("cannot write the report {}: {source}", .path.display())]
    Report { path: PathBuf, source: io::Error },
    /// The server of the run's own.
    #[error("cannot start the Redis server {}: {source}", .program.display())]
    NoServer { program: PathBuf, source: io::Error },
    /// It started, and does not answer.
    #[error("the Redis server {} does not come up; it wrote: {log}", .program.display())]
    ServerNotReady { program: PathBuf, log: String },
    /// What the figures and the tidying need.
    #[error("the store {store} refuses what stress needs ({what}): {source}")]
    Redis { store: String, what: &'static str, source: redis::RedisError },
    /// A process of ours ended before it had begun.
    #[error("a process of the run could not begin ({status})")]
    WorkerNotReady { status: ExitStatus },
    /// All of them ended.
    #[error("all processes of the run have ended, and {left} orders are not finished")]
    NobodyLeft { left: usize },
    /// What must never happen.
    #[error(
        "{style}: two orders held one lock at the same time, {count} times; {first}",
        style = .style.name()
    )]
    Violated { style: Style, count: usize, first: String },
}

impl StressError {
    /// The exit code.
    pub(crate) fn code(&self) -> Code {
        match self {
            StressError::KillNeedsProcesses { .. }
            | StressError::NoSurvivors
            | StressError::MoreProcessesThanOrders { .. }
            | StressError::NotOursToRestart { .. }
            | StressError::TwoStores { .. }
            | StressError::InMemory
            | StressError::NeedsRedis { .. } => Code::Usage,
            StressError::Report { .. }
            | StressError::NoServer { .. }
            | StressError::ServerNotReady { .. }
            | StressError::NobodyLeft { .. } => Code::System,
            StressError::Redis { .. } => Code::Unavailable,
            // It has said why, and its code is one of ours.
            StressError::WorkerNotReady { status } => match status.code() {
                Some(64) => Code::Usage,
                Some(69) => Code::Unavailable,
                _ => Code::System,
            },
            StressError::Violated { .. } => Code::Violated,
        }
    }
}
