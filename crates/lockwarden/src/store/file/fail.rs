//! What goes wrong with files and SQLite, as errors of a store.

use super::place::Identity;
use crate::error::{Effect, StoreError, Trouble};
use rusqlite::ErrorCode;
use std::{io, path::Path, sync::Arc};

/// Where the store is, for every message.
#[derive(Clone, Debug)]
pub(super) struct Place(Arc<str>);

impl Place {
    pub(super) fn new(dir: &Path) -> Place {
        Place(format!("file:{}", dir.display()).into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn denied(&self, detail: String) -> StoreError {
        StoreError::Denied { place: self.0.to_string(), detail }
    }

    pub(super) fn unavailable(&self, trouble: Trouble, detail: String) -> StoreError {
        let place = self.0.to_string();
        StoreError::Unavailable { place, trouble, detail, effect: Effect::NotApplied }
    }
}

/// The system refused to do something with a file.
pub(super) fn from_io(place: &Place, what: &str, path: &Path, error: &io::Error) -> StoreError {
    let detail = format!("cannot {what} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            place.denied(format!("{detail}; choose another directory with --store"))
        }
        io::ErrorKind::ReadOnlyFilesystem => place.unavailable(Trouble::ReadOnly, detail),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            place.unavailable(Trouble::OutOfMemory, detail)
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            StoreError::Invalid { detail }
        }
        _ => place.unavailable(Trouble::Unreachable, detail),
    }
}

/// Why a transaction did not happen.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another process is in one of its own: try again soon.
    Busy,
    /// The database's own structure is broken.
    Damaged(String),
    /// An earlier version made the database; what to say of that while somebody uses it.
    Outdated(StoreError),
    /// Nothing was applied; the link stays.
    Refused(StoreError),
    /// The link is over.
    Fatal(StoreError),
}

impl Failure {
    /// The error, where waiting is no way out any more.
    pub(super) fn into_error(self, place: &Place) -> StoreError {
        match self {
            Failure::Busy => place.unavailable(Trouble::Blocked, "the database is busy".into()),
            Failure::Damaged(detail) => place.unavailable(Trouble::Protocol, detail),
            Failure::Outdated(error) | Failure::Refused(error) | Failure::Fatal(error) => error,
        }
    }
}

/// SQLite refused to do something.
pub(super) fn from_sqlite(place: &Place, what: &str, error: &rusqlite::Error) -> Failure {
    let detail = format!("cannot {what}: {error}");
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed,
        ) => Failure::Busy,
        Some(ErrorCode::DiskFull) => {
            Failure::Refused(place.unavailable(Trouble::OutOfMemory, detail))
        }
        Some(ErrorCode::OutOfMemory | ErrorCode::TooBig) => {
            Failure::Refused(place.unavailable(Trouble::OutOfMemory, detail))
        }
        Some(ErrorCode::ReadOnly) => Failure::Refused(place.unavailable(Trouble::ReadOnly, detail)),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Failure::Damaged(detail),
        Some(ErrorCode::PermissionDenied) => Failure::Fatal(place.denied(detail)),
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => {
            Failure::Fatal(place.unavailable(Trouble::Disconnected, detail))
        }
        _ => Failure::Fatal(place.unavailable(Trouble::Protocol, detail)),
    }
}

/// Which process keeps the database locked, as far as the kernel tells. `/proc/locks` is asked, for
/// it needs no descriptor: to open and close one of the database's files by hand would free the
/// locks of this very process (R40).
pub(super) fn blocker(files: &[Identity]) -> String {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let files: Vec<String> = files.iter().map(|file| file.in_proc_locks()).collect();
    let me = std::process::id();
    match find_blocker(&locks, &files, me) {
        Some(pid) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            match name.trim() {
                "" => format!("process {pid} keeps the database locked"),
                name => format!("process {pid} ({name}) keeps the database locked"),
            }
        }
        None => "a process that could not be found keeps the database locked".into(),
    }
}

/// Lines look like `12: POSIX  ADVISORY  WRITE 4711 fd:00:1234 120 120`.
fn find_blocker(locks: &str, files: &[String], me: u32) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (kind, _, mode) = (fields.next()?, fields.next()?, fields.next()?);
        let pid: u32 = fields.next()?.parse().ok()?;
        let file = fields.next()?;
        let writes = kind == "POSIX" && mode == "WRITE" && pid != 0 && pid != me;
        (writes && files.iter().any(|known| known == file)).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocking_process_is_found_among_the_locks() {
        let locks = "1: POSIX  ADVISORY  READ 7 fd:00:12 123 123\n\
                     1: -> POSIX  ADVISORY  WRITE 9 fd:00:12 120 120\n\
                     2: FLOCK  ADVISORY  WRITE 8 fd:00:12 0 EOF\n\
                     3: POSIX  ADVISORY  WRITE 11 fd:00:13 120 120\n\
                     4: POSIX  ADVISORY  WRITE 10 fd:00:12 120 120\n";
        assert_eq!(find_blocker(locks, &["fd:00:12".into()], 1), Some(10));
        assert_eq!(find_blocker(locks, &["fd:00:12".into()], 10), None);
        assert_eq!(find_blocker(locks, &["fd:00:14".into()], 1), None);
    }
}
