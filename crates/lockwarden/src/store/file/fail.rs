//! What goes wrong with files and SQLite, as errors of a store.

use crate::{
    error::{Effect, StoreError, Trouble},
    proc_locks,
};
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

/// Which process keeps the database locked, as far as the kernel tells.
pub(super) fn blocker(files: &[String]) -> String {
    match proc_locks::writer(files, "POSIX", Some(std::process::id())) {
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
