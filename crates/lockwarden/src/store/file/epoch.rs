//! The machine restarts, and with it the store: nothing of an earlier boot counts but the fence.
//!
//! The store's clock is the kernel's boot clock, which counts suspend and which nobody can set, plus
//! a distance that is chosen once per boot so that it starts at the wall clock's time and never
//! behind the last fence (R34, G2).

use super::{
    database::{Database, MetaRow, Site, to_sql},
    fail::{Failure, from_io},
    place::make_database,
};
use crate::{
    error::{StoreError, Trouble},
    process,
};
use lockwarden_core::{
    Rules, SessionId,
    table::{Context, enter},
};
use std::{
    fs,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

/// Sessions that one sweep looks at.
pub(super) const SWEPT_SESSIONS: usize = 1_000;

impl Site {
    /// The file that names the boot in which the database was last taken over.
    fn marker(&self) -> PathBuf {
        self.path.with_extension("boot")
    }
}

impl Database {
    /// Opens the database, and makes sure that it is one of this boot.
    pub(super) fn open(site: &Arc<Site>, caller: &SessionId) -> Result<Database, Failure> {
        match Database::reopen(site).and_then(|database| database.adopt(caller)) {
            Err(Failure::Damaged(detail)) => {
                Database::discard_damaged(site, &detail)?;
                Database::reopen(site)?.adopt(caller)
            }
            Err(Failure::Outdated(error)) => {
                Database::discard_outdated(site, error)?;
                Database::reopen(site)?.adopt(caller)
            }
            opened => opened,
        }
    }

    /// What stands in `meta`, within a transaction. Where it is missing, or of another boot, a new
    /// epoch begins: nobody who held a lock in another boot is left.
    pub(super) fn meta_or_new(
        &self,
        caller: &SessionId,
        may_hold: bool,
    ) -> Result<MetaRow, Failure> {
        let old = self.meta()?;
        match old {
            Some(row) if row.meta.run == self.site().run => Ok(row),
            old => self.begin_epoch(old, caller, may_hold),
        }
    }

    fn begin_epoch(
        &self,
        old: Option<MetaRow>,
        caller: &SessionId,
        may_hold: bool,
    ) -> Result<MetaRow, Failure> {
        let site = self.site();
        // Whoever is connected without a `meta` may hold a lock of a database that was deleted. The
        // caller of a new database has no session yet (R5).
        let mut in_common = 1 + u64::from(may_hold);
        let fence = match &old {
            Some(row) => row.meta.fence,
            None => {
                for id in site.folder.sessions(SWEPT_SESSIONS).unwrap_or_default() {
                    in_common += u64::from(id != *caller && site.folder.alive(&id));
                }
                0
            }
        };
        self.execute("DELETE FROM locks", [])?;
        self.execute("DELETE FROM waits", [])?;
        self.execute("DELETE FROM requests", [])?;
        self.execute("DELETE FROM inbox", [])?;
        let start_us = wall_us().max(fence);
        let clock_us = to_sql(start_us) - to_sql(boot_us());
        let now_us = start_us;
        let at = Context {
            now_us,
            run: &site.run,
            // No belief outlives the machine, so the boot's own age matters to nobody.
            uptime_s: i64::MAX,
            caller,
            caller_run: &site.run,
            subscribers: &|_| 1,
            in_common,
            rules: Rules::ALL,
        };
        let Some(mut meta) = enter(None, &at) else {
            return Err(Failure::Fatal(site.replaced()));
        };
        meta.fence = fence;
        let row = MetaRow { meta, clock_us, sweep_us: 0, sweep_from: Vec::new() };
        self.set_meta(&row)?;
        // From here on, nobody discards the database any more in this boot.
        let new = site.marker().with_extension("boot-new");
        fs::write(&new, site.run.as_str())
            .and_then(|()| fs::rename(&new, site.marker()))
            .map_err(|error| Failure::Fatal(from_io(&site.place, "write", &new, &error)))?;
        Ok(row)
    }

    /// Makes sure that the database is one of this boot.
    fn adopt(self, caller: &SessionId) -> Result<Database, Failure> {
        if self.meta()?.is_some_and(|row| row.meta.run == self.site().run) {
            return Ok(self);
        }
        self.transaction(|| {
            // A power failure may have left it damaged in places that were not read yet.
            let verdict: Option<String> =
                self.row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            match verdict.as_deref() {
                Some("ok") => self.meta_or_new(caller, self.site().may_hold).map(|_| ()),
                other => Err(Failure::Damaged(other.unwrap_or("no verdict").to_owned())),
            }
        })?;
        Ok(self)
    }

    /// Deletes a damaged database, if it is one of an earlier boot: then nothing in it counts.
    fn discard_damaged(site: &Site, damage: &str) -> Result<(), Failure> {
        let damaged = |why: &str| {
            let detail = format!(
                "{} is damaged ({damage}){why}; once nobody uses the store, delete its directory",
                site.path.display()
            );
            Failure::Fatal(site.place.unavailable(Trouble::Protocol, detail))
        };
        let marker = site.marker();
        let _alone = site.lock_marker().map_err(|failure| {
            failure.unwrap_or_else(|| {
                damaged(", and there is no mark that it was ever a store of locks")
            })
        })?;
        let boot = fs::read_to_string(&marker)
            .map_err(|error| Failure::Fatal(from_io(&site.place, "read", &marker, &error)))?;
        if boot == site.run.as_str() {
            return Err(damaged(""));
        }
        let store = site.place.as_str();
        tracing::warn!(store, damage, "a database of an earlier boot is damaged; it is made anew");
        site.make_anew()
    }

    /// Deletes the database of an earlier version, if no session of the store is alive: what dead sessions
    /// held is free. Who connects with the earlier version meanwhile is seen by the epoch that then begins,
    /// which has its guard (R5), and finds its file gone (R41).
    fn discard_outdated(site: &Arc<Site>, error: StoreError) -> Result<(), Failure> {
        let _alone = match site.lock_marker() {
            Ok(file) => file,
            Err(failure) => return Err(failure.unwrap_or(Failure::Fatal(error))),
        };
        match Database::reopen(site) {
            Err(Failure::Outdated(_)) => {}
            // Another has made it anew.
            reopened => return reopened.map(|_| ()),
        }
        // Silence is no proof, and too many to ask are too many (R18).
        let in_use = site.folder.sessions(SWEPT_SESSIONS).map_or(true, |sessions| {
            sessions.len() >= SWEPT_SESSIONS || sessions.iter().any(|id| site.folder.alive(id))
        });
        if in_use {
            return Err(Failure::Fatal(error));
        }
        let store = site.place.as_str();
        tracing::warn!(store, "a database of an earlier version is not in use; it is made anew");
        site.make_anew()
    }
}

impl Site {
    /// Lets one at a time discard the database; whoever comes after must look again, for it may be another's
    /// new one by then. No failure: there is no marker, so that it was never taken over by anyone.
    fn lock_marker(&self) -> Result<fs::File, Option<Failure>> {
        let file = fs::File::open(self.marker()).map_err(|_| None)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(_) => Err(Some(Failure::Busy)),
        }
    }

    fn make_anew(&self) -> Result<(), Failure> {
        for path in [self.beside("-wal"), self.beside("-shm"), self.path.clone()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::Fatal(from_io(&self.place, "remove", &path, &error)));
                }
                _ => {}
            }
        }
        make_database(&self.path, &self.place).map_err(Failure::Fatal)
    }
}

/// µs on the boot clock of the machine, whatever this process's time namespace adds to it.
pub(super) fn boot_us() -> u64 {
    static OFFSET: OnceLock<i64> = OnceLock::new();
    let offset = *OFFSET.get_or_init(|| {
        match process::namespace_inode("time") {
            None | Some(FIRST_TIME_NAMESPACE) => return 0,
            Some(_) => {}
        }
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        time_offset_us(&offsets).unwrap_or(0)
    });
    crate::clock::now_us().saturating_add_signed(-offset)
}

/// The inode of the machine's first time namespace, fixed in the kernel (`PROC_TIME_INIT_INO`).
const FIRST_TIME_NAMESPACE: u64 = 0xEFFF_FFFA;

/// From `/proc/self/timens_offsets`: a clock, seconds and nanoseconds on each line.
fn time_offset_us(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?;
    let mut fields = line.split_ascii_whitespace();
    let seconds: i64 = fields.next()?.parse().ok()?;
    let nanos: i64 = fields.next()?.parse().ok()?;
    Some(seconds * 1_000_000 + nanos / 1_000)
}

fn wall_us() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        let offsets = "monotonic           0         0\nboottime      604800   1000000\n";
        assert_eq!(time_offset_us(offsets), Some(604_800_001_000));
        assert_eq!(time_offset_us("boottime -5 0\n"), Some(-5_000_000));
        assert_eq!(time_offset_us(""), None);
    }
}
