//! The SQLite database of a file store: opened, made, checked, read and written.
//!
//! `synchronous = OFF`, because nothing here must outlive the machine: after a power failure the
//! boot is another one, every holder is gone, and all locks are void. A killed process loses
//! nothing, for what was written is with the kernel. Should a power failure damage the file, the
//! first session of the next boot notices ([`super::epoch`]) and makes a new one; fences keep
//! growing, for they start from the wall clock then (R34, G2).

use super::{
    fail::{Failure, Place, from_sqlite},
    own,
    place::{Identity, identity},
    session::{Folder, Hidden},
};
use crate::{
    error::{StoreError, Trouble},
    proc_locks,
    process::Unforked,
};
use lockwarden_core::{Epoch, Run, SessionId, table::Meta};
use rusqlite::{CachedStatement, Connection, OpenFlags, OptionalExtension, config::DbConfig};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// The number of what stands in the database. A higher number is refused, and nothing changed; so is a lower
/// one while somebody uses the store, else the database is made anew: what no living session holds is free.
pub(super) const SCHEMA: i64 = 9;
/// Pages in the log before they are written back: few, because the first process to open the
/// database after a pause reads the whole log. Nothing waits for a disk either way.
const CHECKPOINT_PAGES: u32 = 64;

const TABLES: &str = "
CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    epoch TEXT NOT NULL,
    run TEXT NOT NULL,
    guard_until_us INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    clock_us INTEGER NOT NULL,
    sweep_us INTEGER NOT NULL,
    sweep_from BLOB NOT NULL
);
CREATE TABLE locks (
    name BLOB PRIMARY KEY,
    ends_us INTEGER,
    body BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE waits (
    owner TEXT NOT NULL,
    name BLOB NOT NULL,
    token BLOB NOT NULL,
    until_us INTEGER NOT NULL,
    PRIMARY KEY (owner, name, token)
) WITHOUT ROWID;
CREATE TABLE requests (
    token BLOB PRIMARY KEY,
    since_us INTEGER NOT NULL,
    ends_us INTEGER NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX requests_by_age ON requests (since_us, token);
CREATE TABLE inbox (
    session TEXT NOT NULL,
    number INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
";

/// What is the same for all sessions of one [`super::FileStore`].
#[derive(Debug)]
pub(super) struct Site {
    pub(super) place: Place,
    pub(super) path: PathBuf,
    pub(super) folder: Folder,
    /// The boot that this process runs in.
    pub(super) run: Run,
    /// The session that connects may hold a lock of before (R5).
    pub(super) may_hold: bool,
}

/// Where a link keeps its database: closed before a fork, opened again at the next use.
#[derive(Debug)]
pub(super) struct Slot {
    site: Arc<Site>,
    file: Identity,
    database: Mutex<Option<Database>>,
}

/// An open database.
#[derive(Debug)]
pub(super) struct Database {
    site: Arc<Site>,
    connection: Unforked<Connection>,
    /// The file, the log and the index that SQLite has open, and where they were.
    files: Vec<(PathBuf, Identity)>,
}

/// The row of `meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetaRow {
    pub(super) meta: Meta,
    /// What the store's clock is ahead of the boot clock, in µs.
    pub(super) clock_us: i64,
    /// When to look for what is left over (G9), in µs on the store's clock.
    pub(super) sweep_us: u64,
    /// The name from which on to look.
    pub(super) sweep_from: Vec<u8>,
}

impl Slot {
    /// Opens the database, makes it if it is new, and takes it over if the machine has restarted.
    pub(super) fn open(site: &Arc<Site>, caller: &SessionId) -> Result<Arc<Slot>, Failure> {
        // The fork watch stands before the first descriptor does.
        drop(own::hold());
        let _unforked = own::unforked();
        let database = Database::open(site, caller)?;
        let Some((_, file)) = database.files.first().cloned() else {
            return Err(Failure::Fatal(site.replaced()));
        };
        let slot =
            Arc::new(Slot { site: site.clone(), file, database: Mutex::new(Some(database)) });
        own::hold().add_database(&slot);
        Ok(slot)
    }

    /// Does something with the database.
    pub(super) fn with<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let _unforked = own::unforked();
        let mut slot = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let database = match &mut *slot {
            Some(database) => database,
            None => {
                // A fork closed it. What stands there now must be what stood there then.
                let database = Database::reopen(&self.site)?;
                if database.files.first().is_none_or(|(_, file)| *file != self.file) {
                    return Err(Failure::Fatal(self.site.replaced()));
                }
                slot.insert(database)
            }
        };
        work(database)
    }

    /// Closes the database for now. The caller keeps forks away, or is about to fork.
    pub(super) fn close(&self) {
        *self.database.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let database = self.database.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A closed one needs no gate; and before a fork, the gate is shut.
        if database.is_some() {
            let _unforked = own::unforked();
            drop(database);
        }
    }
}

impl Site {
    /// Someone deleted or replaced what this process works on.
    pub(super) fn replaced(&self) -> StoreError {
        let detail = format!(
            "{} was deleted or replaced while it was in use; what was locked in it is lost",
            self.path.display()
        );
        self.place.unavailable(Trouble::Disconnected, detail)
    }

    /// A file beside the database.
    pub(super) fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(suffix);
        path.into()
    }

    /// The files of the database that exist, as `/proc/locks` calls them.
    pub(super) fn files(&self) -> Vec<String> {
        [self.path.clone(), self.beside("-wal"), self.beside("-shm")]
            .iter()
            .filter_map(|path| proc_locks::file_at(path))
            .collect()
    }
}

impl Database {
    /// Opens what is there, whatever it is.
    pub(super) fn reopen(site: &Arc<Site>) -> Result<Database, Failure> {
        let opening = |error| from_sqlite(&site.place, "open the database", &error);
        // SQLite does not tell which file it has open. Where the same file stands there before and
        // after, it is the one.
        let before = identity(&site.path).ok_or_else(|| Failure::Fatal(site.replaced()))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&site.path, flags).map_err(opening)?;
        // Never waits inside SQLite: the link waits, without a thread.
        connection.busy_timeout(std::time::Duration::ZERO).map_err(opening)?;
        // Deleting and making the log anew would cost every short-lived process more than all else.
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .map_err(opening)?;
        connection.set_prepared_statement_cache_capacity(32);
        let mut database = Database {
            site: site.clone(),
            connection: Unforked::new(connection),
            files: vec![(site.path.clone(), before)],
        };
        match database.schema()? {
            0 => database.make()?,
            SCHEMA => {}
            other => {
                let detail = format!(
                    "its database has schema {other}, and this version of Lockwarden knows {SCHEMA}; \
                     use the version that made it, end the programs of an earlier one, or use another \
                     directory with --store"
                );
                let error = site.place.denied(detail);
                return Err(if other < SCHEMA {
                    Failure::Outdated(error)
                } else {
                    Failure::Fatal(error)
                });
            }
        }
        database.batch(&format!(
            "PRAGMA synchronous=OFF; PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}"
        ))?;
        for suffix in ["-wal", "-shm"] {
            let path = site.beside(suffix);
            let file = identity(&path).ok_or_else(|| Failure::Fatal(site.replaced()))?;
            database.files.push((path, file));
        }
        database.check()?;
        Ok(database)
    }

    /// Do the files still stand where they stood (R41)? Asked of their names: to open them by hand
    /// would free SQLite's locks (R40).
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.files.iter().all(|(path, file)| identity(path) == Some(*file)) {
            true => Ok(()),
            false => Err(Failure::Fatal(self.site.replaced())),
        }
    }

    /// A statement, compiled once.
    pub(super) fn statement(&self, sql: &str) -> Result<CachedStatement<'_>, Failure> {
        let statement = self.connection()?.prepare_cached(sql);
        statement.map_err(|error| self.failed("use the database", &error))
    }

    /// Carries out a statement; says how many rows it changed.
    pub(super) fn execute(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
    ) -> Result<usize, Failure> {
        self.statement(sql)?
            .execute(values)
            .map_err(|error| self.failed("write to the database", &error))
    }

    /// One row, if there is one.
    pub(super) fn row<T>(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        read: impl FnOnce(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Failure> {
        self.statement(sql)?
            .query_row(values, read)
            .optional()
            .map_err(|error| self.failed("read the database", &error))
    }

    /// All rows.
    pub(super) fn rows<T>(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Failure> {
        self.statement(sql)?
            .query_map(values, read)
            .and_then(Iterator::collect)
            .map_err(|error| self.failed("read the database", &error))
    }

    /// All of `work`, or nothing of it.
    pub(super) fn transaction<T>(
        &self,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.execute("BEGIN IMMEDIATE", [])?;
        let done = work().and_then(|done| self.execute("COMMIT", []).map(|_| done));
        if done.is_err() && self.connection()?.is_autocommit() {
            // SQLite has rolled back already.
        } else if done.is_err() {
            self.execute("ROLLBACK", [])?;
        }
        done
    }

    /// The row of `meta`; none: the database was emptied by hand.
    pub(super) fn meta(&self) -> Result<Option<MetaRow>, Failure> {
        let sql = "SELECT epoch, run, guard_until_us, fence, clock_us, sweep_us, sweep_from \
                   FROM meta WHERE id = 1";
        self.row(sql, [], |row| {
            Ok(MetaRow {
                meta: Meta {
                    epoch: Epoch::new(row.get_ref(0)?.as_str()?),
                    run: Run::new(row.get_ref(1)?.as_str()?),
                    guard_until_us: from_sql(row.get(2)?),
                    fence: from_sql(row.get(3)?),
                },
                clock_us: row.get(4)?,
                sweep_us: from_sql(row.get(5)?),
                sweep_from: row.get(6)?,
            })
        })
    }

    /// Writes the row of `meta`.
    pub(super) fn set_meta(&self, row: &MetaRow) -> Result<(), Failure> {
        let MetaRow { meta, clock_us, sweep_us, sweep_from } = row;
        let Meta { epoch, run, guard_until_us, fence } = meta;
        let values = (
            epoch.as_str(),
            run.as_str(),
            to_sql(*guard_until_us),
            to_sql(*fence),
            clock_us,
            to_sql(*sweep_us),
            sweep_from,
        );
        self.execute("INSERT OR REPLACE INTO meta VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7)", values)?;
        Ok(())
    }

    fn schema(&self) -> Result<i64, Failure> {
        Ok(self.row("PRAGMA user_version", [], |row| row.get(0))?.unwrap_or(0))
    }

    fn make(&self) -> Result<(), Failure> {
        let tables = self.row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables != Some(0_i64) && self.schema()? == 0 {
            let detail = format!("{} is a database of something else", self.site.path.display());
            return Err(Failure::Fatal(self.site.place.denied(detail)));
        }
        // In this mode readers and writers do not wait for each other. It stays with the file.
        self.row("PRAGMA journal_mode=WAL", [], |_| Ok(()))?;
        self.transaction(|| match self.schema()? {
            0 => {
                self.batch(TABLES)?;
                self.batch(&format!("PRAGMA user_version={SCHEMA}"))
            }
            _ => Ok(()),
        })
    }

    fn batch(&self, sql: &str) -> Result<(), Failure> {
        let done = self.connection()?.execute_batch(sql);
        done.map_err(|error| self.failed("set up the database", &error))
    }

    fn connection(&self) -> Result<&Connection, Failure> {
        // A process that was forked without notice has SQLite's records of locks, and no locks.
        self.connection.get().ok_or_else(|| Failure::Fatal(self.site.forked()))
    }

    fn failed(&self, what: &str, error: &rusqlite::Error) -> Failure {
        from_sqlite(&self.site.place, what, error)
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }
}

impl Site {
    /// The session is not seen by others.
    pub(super) fn hidden(&self, why: Hidden) -> StoreError {
        match why {
            Hidden::Forked => self.forked(),
            Hidden::Deleted => self.replaced(),
        }
    }

    /// This process is a forked child, and the session its parent's (R24).
    fn forked(&self) -> StoreError {
        let detail = "this process was forked; the session is its parent's".to_owned();
        self.place.unavailable(Trouble::Disconnected, detail)
    }
}

/// SQLite's integers are signed; no time and no fence comes near the end of them (R34 bounds both).
pub(super) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
