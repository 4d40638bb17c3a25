//! Who has locked a file, as `/proc/locks` tells. Only for messages: what cannot be found out is left out.
//!
//! A line is `12: POSIX  ADVISORY  WRITE 4711 fd:00:1234 120 120`. It names the file by its superblock's
//! device and the inode's own number. `stat` may tell others: on overlayfs and btrfs it makes up a device
//! that is no superblock's. So the device is the mount's, and `stat`'s only where the mount is hidden.

use rustix::fd::{AsFd, AsRawFd};
use std::{fs, path::Path};

/// What an open file is called there.
pub(crate) fn open_file(file: impl AsFd) -> Option<String> {
    let stat = rustix::fs::fstat(&file).ok()?;
    let info = read(&format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd()));
    let field =
        |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    // `ino` since Linux 5.14.
    Some(file_name(field("mnt_id:"), stat.st_dev, field("ino:").unwrap_or(stat.st_ino)))
}

/// What the file at a path is called there. It is not opened: to close one that SQLite has open would
/// free its locks (R40).
pub(crate) fn file_at(path: &Path) -> Option<String> {
    let stat = rustix::fs::stat(path).ok()?;
    Some(file_name(mount_of(path), stat.st_dev, stat.st_ino))
}

/// Which process has write-locked one of these files; `kind` is `FLOCK` or `POSIX`.
pub(crate) fn writer(files: &[String], kind: &str, except: Option<u32>) -> Option<u32> {
    find_writer(&read("/proc/locks"), files, kind, except)
}

fn find_writer(locks: &str, files: &[String], kind: &str, except: Option<u32>) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        // Who waits for a lock has an arrow before the kind.
        let (found, _, mode) = (fields.next()?, fields.next()?, fields.next()?);
        // 0: a process of another pid namespace.
        let pid = fields.next()?.parse().ok().filter(|pid| *pid != 0)?;
        let file = fields.next()?;
        let writes = found == kind && mode == "WRITE" && Some(pid) != except;
        (writes && files.iter().any(|known| known == file)).then_some(pid)
    })
}

fn file_name(mount: Option<u64>, stat_device: u64, inode: u64) -> String {
    let mounted = mount.and_then(|mount| mounted_device(&read("/proc/self/mountinfo"), mount));
    let (major, minor) =
        mounted.unwrap_or_else(|| (rustix::fs::major(stat_device), rustix::fs::minor(stat_device)));
    format!("{major:02x}:{minor:02x}:{inode}")
}

/// Lines begin with the mount, its parent, and the superblock's device: `36 35 98:0 / /mnt rw …`.
fn mounted_device(mountinfo: &str, mount: u64) -> Option<(u32, u32)> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let id: u64 = fields.next()?.parse().ok()?;
        let (major, minor) = fields.nth(1)?.split_once(':')?;
        (id == mount).then_some((major.parse().ok()?, minor.parse().ok()?))
    })
}

/// Since Linux 5.8.
#[cfg(target_os = "linux")]
fn mount_of(path: &Path) -> Option<u64> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let stat = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
}

#[cfg(not(target_os = "linux"))]
fn mount_of(_: &Path) -> Option<u64> {
    None
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writing_process_is_found_among_the_locks() {
        let locks = "1: POSIX  ADVISORY  READ 7 fd:00:12 123 123\n\
                     1: -> POSIX  ADVISORY  WRITE 9 fd:00:12 120 120\n\
                     2: FLOCK  ADVISORY  WRITE 8 fd:00:12 0 EOF\n\
                     3: POSIX  ADVISORY  WRITE 11 fd:00:13 120 120\n\
                     4: POSIX  ADVISORY  WRITE 0 fd:00:12 120 120\n\
                     5: OFDLCK ADVISORY  WRITE -1 fd:00:12 120 120\n\
                     6: POSIX  ADVISORY  WRITE 10 fd:00:12 120 120\n";
        let files = ["fd:00:12".to_owned()];
        assert_eq!(find_writer(locks, &files, "POSIX", Some(1)), Some(10));
        assert_eq!(find_writer(locks, &files, "POSIX", Some(10)), None);
        assert_eq!(find_writer(locks, &files, "FLOCK", None), Some(8));
        assert_eq!(find_writer(locks, &["fd:00:14".into()], "POSIX", None), None);
        assert_eq!(find_writer("", &files, "POSIX", None), None);
    }

    #[test]
    fn a_mount_has_the_device_of_its_superblock() {
        let mounts = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                      36 22 0:300 /a/b /a/b rw - overlay overlay rw,lowerdir=/l\n";
        assert_eq!(mounted_device(mounts, 36), Some((0, 300)));
        assert_eq!(mounted_device(mounts, 27), None);
        assert_eq!(mounted_device("", 36), None);
    }

    /// Both ways lead to one name, which is the kernel's where it tells its own.
    #[test]
    fn a_file_is_called_what_the_kernel_calls_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = open_file(file.as_file()).unwrap();
        assert_eq!(file_at(file.path()), Some(name.clone()));
        let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(file.as_file(), exclusive).unwrap();
        let info = read(&format!("/proc/self/fdinfo/{}", file.as_file().as_raw_fd()));
        for line in info.lines().filter(|line| line.starts_with("lock:")) {
            assert!(line.split_ascii_whitespace().any(|field| field == name), "{name}: {line}");
        }
    }
}
