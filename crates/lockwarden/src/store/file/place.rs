//! The directory of a file store: made, or refused with the reason and the way out (R41).

use super::fail::{Place, from_io};
use crate::error::StoreError;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The database's name in the directory.
pub(super) const DATABASE: &str = "lockwarden.db";
/// The folder of the sessions' lock files and sockets.
pub(super) const SESSIONS: &str = "sessions";

/// A directory that passed every check.
#[derive(Debug)]
pub(super) struct Opened {
    /// The database's path.
    pub(super) database: PathBuf,
    /// The folder of the sessions, kept open: short paths to long places lead through it.
    pub(super) sessions: OwnedFd,
}

/// Checks the directory, and makes what is missing in it.
pub(super) fn open(dir: &Path, place: &Place) -> Result<Opened, StoreError> {
    let meta = match fs::metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .map_err(|error| from_io(place, "make the directory", dir, &error))?;
            fs::metadata(dir)
        }
        meta => meta,
    }
    .map_err(|error| from_io(place, "look at the directory", dir, &error))?;
    if !meta.is_dir() {
        let detail = format!("{} is not a directory", dir.display());
        return Err(StoreError::Invalid { detail });
    }
    ours(dir, &meta, place)?;
    local(dir, place)?;

    let sessions = dir.join(SESSIONS);
    match fs::DirBuilder::new().mode(0o700).create(&sessions) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(from_io(place, "make the directory", &sessions, &error));
        }
        _ => {}
    }
    let look = |error: io::Error| from_io(place, "look at", &sessions, &error);
    ours(&sessions, &fs::metadata(&sessions).map_err(look)?, place)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let sessions_fd = rustix::fs::open(&sessions, flags, Mode::empty())
        .map_err(|error| from_io(place, "open", &sessions, &error.into()))?;

    let database = dir.join(DATABASE);
    match fs::metadata(&database) {
        Ok(meta) => ours(&database, &meta, place)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_database(&database, place)?,
        Err(error) => return Err(from_io(place, "look at the database", &database, &error)),
    }
    Ok(Opened { database, sessions: sessions_fd })
}

/// Makes the database's file, empty: here, so that it is nobody else's to read. SQLite gives its
/// companions the same mode. A file that another process or thread has made meanwhile is left alone:
/// to close a file that SQLite has open would free its locks (R40).
pub(super) fn make_database(path: &Path, place: &Place) -> Result<(), StoreError> {
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(from_io(place, "make the database", path, &error))
        }
        _ => Ok(()),
    }
}

/// Which files the database consists of. Another one of the same name is another store, however
/// much it looks like this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

/// The file that stands at `path` now; none: there is none.
pub(super) fn identity(path: &Path) -> Option<Identity> {
    let stat = rustix::fs::stat(path).ok()?;
    present(&stat).then_some(Identity { device: stat.st_dev, inode: stat.st_ino })
}

/// Has the file a name still?
pub(super) fn present(stat: &Stat) -> bool {
    stat.st_nlink > 0
}

/// The file that has a name in an open directory now.
pub(super) fn identity_at(dir: &OwnedFd, name: &str) -> Option<Identity> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(Identity { device: stat.st_dev, inode: stat.st_ino })
}

/// The open file itself.
pub(super) fn identity_of(file: &OwnedFd) -> Option<Identity> {
    let stat = rustix::fs::fstat(file).ok()?;
    present(&stat).then_some(Identity { device: stat.st_dev, inode: stat.st_ino })
}

/// What belongs to another user, or is open to others, is refused: whoever may write there may hold
/// and free every lock.
fn ours(path: &Path, meta: &Metadata, place: &Place) -> Result<(), StoreError> {
    let mine = rustix::process::geteuid().as_raw();
    if meta.uid() != mine {
        let detail = format!(
            "{} belongs to {}, and this process runs as {}; choose another directory with --store \
             or LOCKWARDEN_URL",
            path.display(),
            user(meta.uid()),
            user(mine)
        );
        return Err(place.denied(detail));
    }
    if meta.mode() & 0o022 != 0 {
        let detail = format!(
            "others may write to {} (mode {:04o}): run `chmod go-w {0}`, or choose another \
             directory with --store or LOCKWARDEN_URL",
            path.display(),
            meta.mode() & 0o7777
        );
        return Err(place.denied(detail));
    }
    Ok(())
}

/// A user as people know it.
fn user(uid: u32) -> String {
    // Only for a message, so only from the file: a directory service may be slow, or down.
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    match name {
        Some(name) => format!("user {name} ({uid})"),
        None => format!("user {uid}"),
    }
}

/// File systems that other machines (or a virtual machine's host) may write to as well, by their
/// magic numbers (`statfs(2)` and the kernel's `magic.h`). Record locks and shared memory do not
/// reach across, so two machines would hold the same lock.
const SHARED: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x517b, "SMB"),
    (0x564c, "NCP"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0102_1997, "9P, a virtual machine's shared folder"),
    (0x786f_4256, "a VirtualBox shared folder"),
    (0xbacb_acbc, "a VMware shared folder"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x2003_0528, "OrangeFS"),
    // FUSE also carries local file systems; which one it is cannot be told from its number. Nearly
    // all that are found on servers are networked (sshfs, GlusterFS, object stores, virtiofs, the
    // shared folders of desktop virtualisation), and many lack what a database needs.
    (0x6573_5546, "FUSE (virtiofs, sshfs and the like)"),
];

fn local(dir: &Path, place: &Place) -> Result<(), StoreError> {
    #[cfg(target_os = "linux")]
    {
        let statfs = rustix::fs::statfs(dir)
            .map_err(|error| from_io(place, "look at the file system of", dir, &error.into()))?;
        // The type of the field differs between architectures; the numbers are of 32 bits.
        refuse_shared(dir, statfs.f_type as u32, place)?;
    }
    Ok(())
}

fn refuse_shared(dir: &Path, magic: u32, place: &Place) -> Result<(), StoreError> {
    let Some((_, kind)) = SHARED.iter().find(|(number, _)| *number == magic) else {
        return Ok(());
    };
    let detail = format!(
        "{} is on a file system that other machines can share ({kind}), where locks between \
         processes do not hold; choose a local directory with --store, or a Redis server with \
         LOCKWARDEN_URL",
        dir.display()
    );
    Err(place.denied(detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_file_systems_are_refused_by_name() {
        let place = Place::new(Path::new("/d"));
        for (magic, kind) in [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x6573_5546, "FUSE")] {
            let refused = refuse_shared(Path::new("/d"), magic, &place).unwrap_err().to_string();
            assert!(refused.contains(kind) && refused.contains("--store"), "{refused}");
        }
        for (magic, kind) in [(0xef53, "ext4"), (0x0102_1994, "tmpfs"), (0x9123_683e, "btrfs")] {
            assert_eq!(refuse_shared(Path::new("/d"), magic, &place), Ok(()), "{kind}");
        }
    }

    #[test]
    fn users_are_named() {
        assert_eq!(user(0), "user root (0)");
        assert_eq!(user(4_000_000_001), "user 4000000001");
    }
}
