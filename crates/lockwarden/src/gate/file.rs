//! The gate of a file: its contents are replaced as a whole, unless a newer fence has been seen.
//!
//! Beside the file `NAME` stands `.NAME.fence` with the newest fence. Writers lock it (`flock`), compare,
//! and replace first it, then the contents, each by a new file that is on the disk before it gets the
//! name. So a reader finds the old contents or the new ones, never a mixture. A crash between the two
//! leaves a fence that is newer than the contents: older holders are refused all the same. The other
//! order would let an older one overwrite what a newer one wrote.
//!
//! - Readers need nothing, they just open the file. It must not be changed past the gate.
//! - Mode, owner and group of the old file are kept (other attributes are not), and where that is not
//!   permitted the write is refused. A symbolic link is followed; a hard link parts from its others.
//! - A local file system of one machine, whose writers may write the directory.
//! - Whoever removes `.NAME.fence` makes the gate forget: the next fence passes, however old it is.
//! - These calls wait for the disk, and for another writer. In async code: `spawn_blocking`.

use super::{Error, MAX_FENCE, compare};
use crate::proc_locks;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{Read, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The gate of one file.
#[derive(Clone, Debug)]
pub struct Gate {
    path: PathBuf,
    wait: Duration,
}

impl Gate {
    /// The gate of the file at this path, which need not exist yet.
    #[must_use]
    pub fn at(path: impl AsRef<Path>) -> Gate {
        Gate { path: path.as_ref().to_owned(), wait: Duration::from_secs(10) }
    }

    /// How long [`Gate::replace`] waits for another writer that is inside: 10 s by default. A process
    /// that is stopped inside keeps the others out until it goes on or ends.
    #[must_use]
    pub fn wait_for(mut self, wait: Duration) -> Gate {
        self.wait = wait;
        self
    }

    /// Replaces the contents, and returns when they are on the disk.
    ///
    /// # Errors
    /// [`Error::Stale`], with nothing changed; [`Error::Unavailable`] if another writer stays inside, or
    /// for the system's own reasons: the file then has the old contents or the new.
    pub fn replace(&self, fence: u64, contents: &[u8]) -> Result<(), Error> {
        compare(fence, 0)?;
        let place = Place::find(&self.path)?;
        let inside = place.enter(self.wait)?;
        compare(fence, inside.newest)?;
        let old = place.contents()?;
        let _raised = if fence > inside.newest { Some(place.raise(fence, &inside)?) } else { None };
        // An equal fence, too: whoever put it there may have ended before this.
        place.sync()?;
        let how = How { temporary: &place.name("gated"), like: old.as_ref(), keep_owner: true };
        place.put(&place.file, contents, how)?;
        place.sync()
    }

    /// The newest fence that the gate has seen; none: it has seen none.
    ///
    /// # Errors
    /// [`Error::Unfit`] if what stands in its place is no fence; [`Error::Unavailable`].
    pub fn newest(&self) -> Result<Option<u64>, Error> {
        let place = Place::find(&self.path)?;
        match rustix::fs::openat(&place.dir, &place.sidecar, READ, Mode::empty()) {
            Ok(file) => Ok(Some(place.fence_in(&mut file.into())?).filter(|fence| *fence > 0)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(place.failed("open its fence", error)),
        }
    }
}

/// NONBLOCK: a pipe that someone put there must not stop us.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);
const NEW: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// Where a file is. Everything goes by the open directory, which may be renamed meanwhile.
struct Place {
    /// For messages.
    path: PathBuf,
    dir: OwnedFd,
    file: OsString,
    sidecar: OsString,
}

/// The right to write, until it is dropped.
struct Inside {
    sidecar: File,
    newest: u64,
}

/// How a file is put into its place.
struct How<'a> {
    temporary: &'a OsStr,
    /// Whose mode it gets.
    like: Option<&'a Stat>,
    keep_owner: bool,
}

impl Place {
    fn find(path: &Path) -> Result<Place, Error> {
        let unfit = |why: String| Error::Unfit { place: path.display().to_string(), why };
        let is_link = path.symlink_metadata().is_ok_and(|it| it.file_type().is_symlink());
        let path = if is_link {
            // Else the link would be replaced, and its file would have two gates.
            path.canonicalize()
                .map_err(|error| unfit(format!("the link leads nowhere: {error}")))?
        } else {
            path.to_owned()
        };
        let file = match path.file_name() {
            Some(file) => file.to_owned(),
            None => return Err(Error::invalid("path", format!("{path:?} names no file"))),
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty());
        let dir = dir.map_err(|error| failed(&path, "open its directory", error))?;
        let mut place = Place { path, dir, file, sidecar: OsString::new() };
        place.sidecar = place.name("fence");
        Ok(place)
    }

    /// `.NAME.kind`: no two files of a directory share one.
    fn name(&self, kind: &str) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.file);
        name.push(".");
        name.push(kind);
        name
    }

    /// Locks the sidecar.
    fn enter(&self, wait: Duration) -> Result<Inside, Error> {
        let until = Instant::now() + wait.min(Duration::from_secs(100 * 365 * 24 * 3_600));
        loop {
            let sidecar = rustix::fs::openat(
                &self.dir,
                &self.sidecar,
                READ | OFlags::CREATE,
                Mode::from(0o666),
            )
            .map_err(|error| self.failed("open its fence", error))?;
            self.lock(&sidecar, until)?;
            // Whoever was inside has put a new sidecar in its place, and locked that one, too.
            if identity(rustix::fs::fstat(&sidecar)) == identity(self.stat(&self.sidecar)) {
                let mut sidecar = File::from(sidecar);
                let newest = self.fence_in(&mut sidecar)?;
                return Ok(Inside { sidecar, newest });
            }
        }
    }

    fn lock(&self, sidecar: &OwnedFd, until: Instant) -> Result<(), Error> {
        let mut pause = Duration::from_micros(200);
        loop {
            match rustix::fs::flock(sidecar, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(self.failed("lock its fence", error)),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("another writer is inside{}", blocker(sidecar));
                return Err(Error::Unavailable { place: self.path.display().to_string(), why });
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }

    /// The fence in a sidecar; 0 if it is empty, as [`Place::enter`] makes it.
    fn fence_in(&self, sidecar: &mut File) -> Result<u64, Error> {
        let is_file = sidecar.metadata().is_ok_and(|it| it.is_file());
        let mut text = Vec::new();
        if is_file {
            let read = sidecar.take(64).read_to_end(&mut text);
            read.map_err(|error| self.failed("read its fence", errno(&error)))?;
            if text.is_empty() {
                return Ok(0);
            }
        }
        let digits = text.strip_suffix(b"\n").filter(|it| it.iter().all(u8::is_ascii_digit));
        let fence = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        fence.filter(|fence| (1..=MAX_FENCE).contains(fence)).ok_or_else(|| Error::Unfit {
            place: self.path.display().to_string(),
            why: format!("{} holds no fence", self.sidecar.display()),
        })
    }

    /// The old file, if there is one.
    fn contents(&self) -> Result<Option<Stat>, Error> {
        match self.stat(&self.file) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => Ok(Some(stat)),
            Ok(_) => Err(Error::Unfit {
                place: self.path.display().to_string(),
                why: "it is no regular file".into(),
            }),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("look at it", error)),
        }
    }

    /// Puts a newer fence into the sidecar's place. What is returned keeps it locked.
    fn raise(&self, fence: u64, inside: &Inside) -> Result<OwnedFd, Error> {
        let old = rustix::fs::fstat(&inside.sidecar).map_err(|error| self.failed("read", error))?;
        // The owner is whoever wrote last.
        let how = How { temporary: &self.name("fencing"), like: Some(&old), keep_owner: false };
        self.put(&self.sidecar, format!("{fence}\n").as_bytes(), how)
    }

    /// Writes a new file, and gives it the name once it is on the disk. It is locked from its beginning:
    /// of a sidecar nobody may get the lock before the writer is done.
    fn put(&self, name: &OsStr, bytes: &[u8], how: How<'_>) -> Result<OwnedFd, Error> {
        // Left by a writer that ended inside; under the lock it is nobody's.
        match self.step(|| rustix::fs::unlinkat(&self.dir, how.temporary, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(self.failed("remove what an earlier writer left", error)),
        }
        let put = || {
            // Nobody may read what the old file's mode does not let them.
            let mode = if how.like.is_some() { 0o600 } else { 0o666 };
            let file =
                self.step(|| rustix::fs::openat(&self.dir, how.temporary, NEW, Mode::from(mode)))?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            if let Some(old) = how.like {
                self.step(|| dress(&file, old, how.keep_owner))?;
            }
            let mut file = File::from(file);
            self.step(|| file.write_all(bytes).map_err(|error| errno(&error)))?;
            self.step(|| rustix::fs::fsync(&file))?;
            self.step(|| rustix::fs::renameat(&self.dir, how.temporary, &self.dir, name))?;
            Ok(OwnedFd::from(file))
        };
        put().map_err(|error| {
            // As far as it goes; the next writer removes it otherwise.
            let _ = self.step(|| rustix::fs::unlinkat(&self.dir, how.temporary, AtFlags::empty()));
            self.failed("write it", error)
        })
    }

    /// The names are on the disk.
    fn sync(&self) -> Result<(), Error> {
        self.step(|| rustix::fs::fsync(&self.dir)).map_err(|error| self.failed("sync", error))
    }

    fn stat(&self, name: &OsStr) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn failed(&self, what: &str, error: Errno) -> Error {
        failed(&self.path, what, error)
    }

    /// One step that can be the last before a crash; tests let it be.
    #[cfg(not(test))]
    fn step<T>(&self, act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        act()
    }

    #[cfg(test)]
    fn step<T>(&self, act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if tests::has_crashed() { Err(Errno::IO) } else { act() }
    }
}

/// Gives a file the mode, and the owner, of another.
fn dress(file: &OwnedFd, old: &Stat, keep_owner: bool) -> Result<(), Errno> {
    let new = rustix::fs::fstat(file)?;
    if keep_owner && (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) {
        let (uid, gid) =
            (rustix::fs::Uid::from_raw(old.st_uid), rustix::fs::Gid::from_raw(old.st_gid));
        rustix::fs::fchown(file, Some(uid), Some(gid))?;
    }
    // Afterwards: a change of the owner clears the bits of set-user-id.
    rustix::fs::fchmod(file, Mode::from_raw_mode(old.st_mode))
}

fn identity(stat: Result<Stat, Errno>) -> Option<(u64, u64)> {
    stat.ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn failed(path: &Path, what: &str, error: Errno) -> Error {
    let (place, why) = (path.display().to_string(), format!("cannot {what}: {error}"));
    match error {
        Errno::ACCESS
        | Errno::PERM
        | Errno::NOENT
        | Errno::NOTDIR
        | Errno::ISDIR
        | Errno::LOOP
        | Errno::NAMETOOLONG
        | Errno::INVAL => Error::Unfit { place, why },
        _ => Error::Unavailable { place, why },
    }
}

/// Who is inside, where the system tells.
fn blocker(sidecar: impl AsFd) -> String {
    let pid =
        proc_locks::open_file(sidecar).and_then(|file| proc_locks::writer(&[file], "FLOCK", None));
    pid.map_or_else(String::new, |pid| format!(": process {pid}"))
}

#[cfg(test)]
mod tests;
