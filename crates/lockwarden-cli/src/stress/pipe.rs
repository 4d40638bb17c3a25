//! What a run and its processes say to each other: one line of JSON each. A process hears on its standard input, and
//! speaks on its standard output.

use super::{scenario::Orders, styles::Style};
use serde::{Deserialize, Serialize};

/// To a process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Instruction {
    /// First of all: what to do. It answers [`Event::Ready`].
    Begin(Box<Setup>),
    /// Carry out these orders, all at the same time.
    CarryOut(Vec<u32>),
    /// Give up whatever is not finished, and release all.
    Stop,
    /// No more orders will come. The end of the input without this is as `Stop`: the run is gone.
    End,
}

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Of the store; with its password, which is why it travels here and not as an argument.
    pub(super) url: String,
    pub(super) style: Style,
    pub(super) orders: Orders,
    pub(super) work_us: u64,
    pub(super) wait_us: u64,
    /// Which process this is.
    pub(super) process: u32,
    /// Of how many; they share what connections there may be.
    pub(super) processes: u32,
}

/// From a process. All times are those of [`super::clock`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// It is connected.
    Ready,
    /// The order asks for its locks. Once more, where it lost one and begins anew.
    Asked { order: u32, at_us: u64 },
    /// The order waits for one of its locks, by its place among them. Only of styles that cannot tell of
    /// deadlocks themselves.
    Waits { order: u32, place: usize },
    /// The order has all its locks.
    Had { order: u32, at_us: u64 },
    /// The order believed all this while that it held these locks.
    Believed { order: u32, spans: Vec<Span> },
    /// The order was told of a deadlock so long after it had asked: it rolls back, and asks again.
    Deadlock { order: u32, told_us: u64 },
    /// The order does not hold a lock any more that it should hold.
    Lost { order: u32 },
    /// The order is done.
    Done { order: u32, at_us: u64 },
    /// The order has waited long enough.
    GaveUp { order: u32, at_us: u64 },
    /// The store refused the order something.
    Failed { order: u32, at_us: u64, words: String },
}

/// For how long at least one acquisition of a lock was believed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Span {
    /// The lock, by its place among the names of the order.
    pub(super) place: usize,
    /// The acquisition; the process counts them.
    pub(super) acquisition: u64,
    /// When the first look that said yes had ended.
    pub(super) from_us: u64,
    /// When the last look that said yes began.
    pub(super) until_us: u64,
}
