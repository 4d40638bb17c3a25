//! A table with its clock, and who is connected to it.

use lockwarden_core::{
    Command, Epoch, Reply, Rules, Run, SessionId,
    table::{Context, Messages, Meta, Table},
};
use std::collections::BTreeSet;

/// When every store begins, in µs.
pub(crate) const T0: u64 = 1_700_000_000_000_000;

/// A store, who is connected to it, and its clock.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) table: Table,
    pub(crate) now_us: u64,
    pub(crate) alive: BTreeSet<SessionId>,
    pub(crate) uptime_s: i64,
}

impl Store {
    /// `a`, `b` and `c` are connected; the guard is over.
    pub(crate) fn new() -> Store {
        let meta =
            Meta { epoch: Epoch::new("0.first"), run: Run::new("r"), guard_until_us: 0, fence: 0 };
        Store {
            table: Table { meta: Some(meta), ..Table::default() },
            now_us: T0,
            alive: ["a", "b", "c"].map(SessionId::new).into(),
            uptime_s: 100,
        }
    }

    /// Carries out a command of a session.
    pub(crate) fn apply(&mut self, caller: &SessionId, command: &Command) -> (Reply, Messages) {
        let alive = self.alive.clone();
        let at = Context {
            now_us: self.now_us,
            run: &Run::new("r"),
            uptime_s: self.uptime_s,
            caller,
            caller_run: &Run::new("r"),
            subscribers: &|id| u64::from(alive.contains(id)),
            in_common: alive.len() as u64,
            rules: Rules::ALL,
        };
        self.table.apply(&at, command)
    }
}
