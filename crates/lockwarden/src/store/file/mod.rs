//! The file store: locks between the processes of one user on one machine, in a directory, without
//! a server (R38 to R41).
//!
//! * `lockwarden.db` is an SQLite database that holds the table, a row per lock, and an inbox per
//!   session. Each batch of commands is one transaction, carried out by [`lockwarden_core::table`]
//!   itself.
//! * `sessions/ID` is kept locked by its session while it lives, so that the others see its end at
//!   once, however it came; `sessions/ID.sock` receives hints that there are messages. A hint may be
//!   lost: messages stand in the database, and whoever finds no room for a hint knows that one is
//!   there already.
//! * `lockwarden.boot` names the boot of the machine in which the database was last taken over.
//!
//! Nothing is asked of a disk: a lock need not outlive the machine that its holder runs on.

mod database;
mod epoch;
mod fail;
mod link;
mod own;
mod place;
mod row;
mod session;
mod turn;

#[cfg(test)]
mod tests;

use crate::{
    error::{StoreError, Trouble},
    process,
    store::{Connecting, Link, Store},
};
use database::{Site, Slot};
use fail::{Failure, Place, blocker};
use link::{FileLink, Patience};
use lockwarden_core::{Run, SessionId};
use session::{Folder, Session};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// A store of locks in a directory of this machine, for the processes of one user.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use lockwarden::store::{Store, file::FileStore};
/// use lockwarden_core::SessionId;
///
/// # let dir = tempfile::tempdir().unwrap();
/// let store = FileStore::new(dir.path().join("locks"));
/// let link = store.connect(&SessionId::new("a-random-id"), false).await?;
/// # drop(link);
/// # Ok::<(), lockwarden::StoreError>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct FileStore {
    dir: PathBuf,
    place: Place,
    boot: Arc<str>,
}

impl FileStore {
    /// The store in `dir`. Nothing is touched before the first session connects; then a directory
    /// that is missing is made, for its user alone (mode 0700).
    #[must_use]
    pub fn new(dir: PathBuf) -> FileStore {
        FileStore::in_boot(&dir, process::boot())
    }

    fn in_boot(dir: &Path, boot: Arc<str>) -> FileStore {
        // A change of the working directory must not make it another store. Without a working
        // directory there is nothing to add.
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        FileStore { place: Place::new(&dir), dir, boot }
    }

    async fn open(&self, session: &SessionId, may_hold: bool) -> Result<FileLink, StoreError> {
        if self.boot.is_empty() {
            let detail = "/proc/sys/kernel/random/boot_id cannot be read: without it, nobody knows \
                          which holders outlived a restart of the machine";
            return Err(self.place.denied(detail.into()));
        }
        let opened = place::open(&self.dir, &self.place)?;
        let Some(folder) = Folder::new(opened.sessions) else {
            let detail = "its directory was deleted just now".to_owned();
            return Err(self.place.unavailable(Trouble::Disconnected, detail));
        };
        let site = Arc::new(Site {
            place: self.place.clone(),
            path: opened.database,
            folder: folder.clone(),
            run: Run::new(&self.boot),
            may_hold,
        });
        let mut patience = Patience::default();
        let slot = loop {
            // What was said to an earlier link of the session is void: it would be believed from a
            // beat on that it is older than (R22).
            let slot = Slot::open(&site, session).and_then(|slot| {
                slot.with(|database| turn::empty_inbox(database, session)).map(|()| slot)
            });
            match slot {
                Err(Failure::Busy) => {}
                slot => break slot.map_err(|failure| failure.into_error(&self.place))?,
            }
            match patience.pause() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => {
                    let detail = blocker(&site.files());
                    return Err(self.place.unavailable(Trouble::Blocked, detail));
                }
            }
        };
        let session = Session::open(session, &folder, &self.place).await?;
        Ok(FileLink::new(site, slot, session))
    }
}

impl Store for FileStore {
    fn connect<'a>(&'a self, session: &'a SessionId, may_hold: bool) -> Connecting<'a> {
        Box::pin(async move { Ok(Box::new(self.open(session, may_hold).await?) as Box<dyn Link>) })
    }

    fn place(&self) -> String {
        self.place.as_str().to_owned()
    }

    fn watches_processes(&self) -> bool {
        true
    }
}
