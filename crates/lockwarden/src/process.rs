//! Which process this is, and when others end (R38, R39).
//!
//! A pid alone names no process: pids are reused, and live in namespaces. What is told to others is
//! therefore the whole [`Process`]; what is concluded about others is only ever their death, and
//! that only on proof. Everything here that cannot be read is unknown, never dead.

use crate::fork;
use lockwarden_core::party::Process;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::OwnedFd,
    io::Errno,
    process::Pid,
};
use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};
use tokio::io::{Interest, unix::AsyncFd};

/// How often a process is asked about where the system has no pidfd (R41).
const POLL_EVERY: Duration = Duration::from_millis(20);

/// This very process. Read anew after a fork.
#[must_use]
pub fn current() -> Process {
    static CURRENT: Mutex<Option<Process>> = Mutex::new(None);
    let pid = std::process::id();
    // Only tried: in a forked child, a thread that exists no more may hold it for ever.
    match CURRENT.try_lock() {
        Ok(mut current) => match &*current {
            Some(process) if process.pid == pid => process.clone(),
            _ => current.insert(of(pid)).clone(),
        },
        Err(_) => of(pid),
    }
}

/// Something that belongs to the process that made it. A forked child's copy of it is never
/// dropped: what undoes a registration with the kernel, or a file, would undo the parent's (R24).
#[derive(Debug)]
pub(crate) struct Unforked<T> {
    value: Option<T>,
    generation: u32,
}

impl<T> Unforked<T> {
    /// Made here and now.
    pub(crate) fn new(value: T) -> Unforked<T> {
        Unforked { value: Some(value), generation: fork::generation() }
    }

    /// The value; none in a forked child.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.generation == fork::generation())
    }
}

impl<T> Drop for Unforked<T> {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            std::mem::forget(self.value.take());
        }
    }
}

/// Another process of this pid namespace, a child for instance. Its start time is 0 if it cannot be
/// read; so too if it has ended.
#[must_use]
pub fn of(pid: u32) -> Process {
    Process { namespace: namespace(), pid, start: start_of(pid).unwrap_or(0) }
}

/// The id of this boot of the machine; empty if it cannot be read.
#[must_use]
pub fn boot() -> Arc<str> {
    static BOOT: OnceLock<Arc<str>> = OnceLock::new();
    let read = || fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    BOOT.get_or_init(|| read().trim().into()).clone()
}

/// The name of this host.
#[must_use]
pub fn hostname() -> Arc<str> {
    rustix::system::uname().nodename().to_string_lossy().into()
}

/// Does the pid of `process` mean here what it means there? Only then can it be watched. A boot or
/// a namespace that could not be read is like none.
#[must_use]
pub fn same_namespace(process: &Process) -> bool {
    let here = current().namespace;
    !here.is_empty() && process.namespace == here
}

/// See [`Process::namespace`]. A digest, for it stands in the record of every lock.
fn namespace() -> Arc<str> {
    let (boot, Some(pid)) = (boot(), namespace_inode("pid")) else { return Arc::default() };
    if boot.is_empty() {
        return Arc::default();
    }
    // Kernels without time namespaces have no such file.
    let time = namespace_inode("time").unwrap_or(0);
    let digest = sha1_smol::Sha1::from(format!("{boot} {pid} {time}")).digest().to_string();
    digest[..16].into()
}

/// The number of this process's namespace of a kind; none: it cannot be read, or there are none of it.
pub(crate) fn namespace_inode(kind: &str) -> Option<u64> {
    fs::metadata(format!("/proc/self/ns/{kind}")).ok().map(|it| it.ino())
}

/// Field 22 of `/proc/PID/stat`, in clock ticks after boot. Unknown where /proc is that of another
/// pid namespace: the same number is another process there (R39).
fn start_of(pid: u32) -> Option<u64> {
    let own = fs::read_link("/proc/self").ok()?;
    if own.to_str() != Some(&std::process::id().to_string()) {
        return None;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may contain anything, parentheses included. Behind it
    // comes field 3.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Watches processes of this machine. However many watch the same process through one watcher, the
/// kernel is asked once.
#[derive(Debug, Default)]
pub struct Watcher {
    known: Mutex<HashMap<Process, Weak<Watched>>>,
}

/// A watch over some processes: tells when the last of them has ended.
#[derive(Debug)]
pub struct Watch {
    watched: Vec<Arc<Watched>>,
}

/// One process.
#[derive(Debug)]
enum Watched {
    /// It has ended: proven.
    Ended,
    /// A pidfd: readable once the process has ended, and for ever after.
    Pidfd(Unforked<AsyncFd<OwnedFd>>),
    /// It must be asked about (R41).
    Polled(Process),
}

impl Watcher {
    /// A watcher that watches nothing yet.
    #[must_use]
    pub fn new() -> Watcher {
        Watcher::default()
    }

    /// Watches all of `processes`. None: the death of at least one could never be proven from here
    /// (another machine, another namespace), or there are none.
    ///
    /// Must be called within a tokio runtime that drives I/O and time, and awaited in the same one.
    #[must_use]
    pub fn watch(&self, processes: &[Process]) -> Option<Watch> {
        if processes.is_empty() || !processes.iter().all(same_namespace) {
            return None;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= 64 && known.len() == known.capacity() {
            known.retain(|_, watched| watched.strong_count() > 0);
        }
        let mut watched = Vec::with_capacity(processes.len());
        for process in processes {
            let one = match known.get(process).and_then(Weak::upgrade) {
                Some(one) => one,
                None => {
                    let one = Arc::new(Watched::new(process));
                    known.insert(process.clone(), Arc::downgrade(&one));
                    one
                }
            };
            watched.push(one);
        }
        Some(Watch { watched })
    }
}

impl Watch {
    /// Returns once every process has ended. May be dropped and called again.
    pub async fn ended(&self) {
        // One after the other does: a process that has ended stays so.
        for watched in &self.watched {
            watched.ended().await;
        }
    }
}

/// Have all of these ended, proven now? For a caller that does not wait (R39).
#[must_use]
pub fn have_ended(processes: &[Process]) -> bool {
    let ended = |process: &Process| match open(process.pid) {
        Ok(pidfd) => readable(&pidfd) || differs(process),
        Err(Errno::SRCH) => true,
        Err(_) => gone(process),
    };
    !processes.is_empty() && processes.iter().all(|it| same_namespace(it) && ended(it))
}

impl Watched {
    fn new(process: &Process) -> Watched {
        // First the handle, then the start time: a pid that is reused between the two shows in the
        // start time; one that is reused before the handle was opened does as well (R39).
        match open(process.pid) {
            Ok(pidfd) => {
                if differs(process) {
                    return Watched::Ended;
                }
                match register(pidfd) {
                    Ok(pidfd) => Watched::Pidfd(Unforked::new(pidfd)),
                    Err(_) => Watched::Polled(process.clone()),
                }
            }
            Err(Errno::SRCH) => Watched::Ended,
            // No pidfd on this system, none allowed, or no descriptor left.
            Err(_) => Watched::Polled(process.clone()),
        }
    }

    async fn ended(&self) {
        match self {
            Watched::Ended => {}
            Watched::Pidfd(pidfd) => loop {
                // In a forked child nothing is known any more.
                let Some(pidfd) = pidfd.get() else { return std::future::pending().await };
                match pidfd.readable().await {
                    // The runtime may report readiness that is none; proof comes from the kernel.
                    Ok(_) if readable(pidfd.get_ref()) => return,
                    Ok(mut guard) => guard.clear_ready(),
                    // The runtime is shutting down: nothing is known any more.
                    Err(_) => std::future::pending::<()>().await,
                }
            },
            Watched::Polled(process) => {
                while !gone(process) {
                    tokio::time::sleep(POLL_EVERY).await;
                }
            }
        }
    }
}

/// Another process has the pid now: a start time was read, on both sides, and they differ.
fn differs(process: &Process) -> bool {
    process.start != 0 && start_of(process.pid).is_some_and(|start| start != process.start)
}

fn gone(process: &Process) -> bool {
    let Some(pid) = pid(process.pid) else { return false };
    rustix::process::test_kill_process(pid) == Err(Errno::SRCH) || differs(process)
}

fn pid(raw: u32) -> Option<Pid> {
    i32::try_from(raw).ok().filter(|raw| *raw > 0).and_then(Pid::from_raw)
}

#[cfg(target_os = "linux")]
fn open(raw: u32) -> Result<OwnedFd, Errno> {
    let pid = pid(raw).ok_or(Errno::INVAL)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
}

#[cfg(not(target_os = "linux"))]
fn open(_raw: u32) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

fn register(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names the same open descriptor for as long as it lives, and the `AsyncFd`
    // keeps it: nothing closes or replaces it before the registration ends.
    #[expect(unsafe_code, reason = "the safe way to register a descriptor is deprecated")]
    let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
    registered.map_err(io::Error::from)
}

fn readable(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match rustix::event::poll(&mut fds, Some(&now)).map_err(io::Error::from) {
            Ok(_) => return fds[0].revents().contains(PollFlags::IN),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        process::{Child, Command, Stdio},
        time::Instant,
    };
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(10);
    const A_MOMENT: Duration = Duration::from_millis(60);

    fn child() -> Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn end(child: &mut Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_knows_itself() {
        let me = current();
        assert_eq!(me.pid, std::process::id());
        assert_eq!((boot().len(), me.namespace.len()), (36, 16));
        assert!(me.start > 0);
        assert_eq!(me, current());
        assert!(same_namespace(&me));
        assert!(!hostname().is_empty());
    }

    #[test]
    fn another_boot_or_namespace_is_elsewhere() {
        let me = current();
        assert!(!same_namespace(&Process { namespace: "0123456789abcdef".into(), ..me.clone() }));
        assert!(!same_namespace(&Process { namespace: "".into(), ..me }));
    }

    #[tokio::test]
    async fn the_end_of_the_last_process_is_told() {
        let (mut first, mut second) = (child(), child());
        let watcher = Watcher::new();
        let watch = watcher.watch(&[of(first.id()), of(second.id())]).unwrap();
        assert!(timeout(A_MOMENT, watch.ended()).await.is_err());
        end(&mut second);
        assert!(timeout(A_MOMENT, watch.ended()).await.is_err());
        end(&mut first);
        timeout(SOON, watch.ended()).await.unwrap();
        timeout(SOON, watch.ended()).await.unwrap();
    }

    /// A process that nobody has waited for yet has ended all the same.
    #[tokio::test]
    async fn a_zombie_has_ended() {
        let mut child = child();
        let watch = Watcher::new().watch(&[of(child.id())]).unwrap();
        child.kill().unwrap();
        timeout(SOON, watch.ended()).await.unwrap();
        let again = Watcher::new().watch(&[of(child.id())]).unwrap();
        timeout(SOON, again.ended()).await.unwrap();
        child.wait().unwrap();
    }

    /// R39: a reused pid shows in its start time; a start time that was never read says nothing.
    #[tokio::test]
    async fn a_reused_pid_is_another_process() {
        let mut child = child();
        let here = of(child.id());
        let before = Process { start: here.start - 1, ..here.clone() };
        timeout(SOON, Watcher::new().watch(&[before]).unwrap().ended()).await.unwrap();
        let unread = Process { start: 0, ..here.clone() };
        let watch = Watcher::new().watch(&[unread]).unwrap();
        assert!(timeout(A_MOMENT, watch.ended()).await.is_err());
        end(&mut child);
        timeout(SOON, watch.ended()).await.unwrap();
        timeout(SOON, Watcher::new().watch(&[here]).unwrap().ended()).await.unwrap();
    }

    #[tokio::test]
    async fn what_cannot_be_proven_is_not_watched() {
        let elsewhere = Process { namespace: "another".into(), ..current() };
        let watcher = Watcher::new();
        assert!(watcher.watch(&[]).is_none());
        assert!(watcher.watch(&[current(), elsewhere]).is_none());
    }

    /// R41: where pidfds are missing, polling takes their place.
    #[tokio::test]
    async fn polling_proves_death_too() {
        let mut child = child();
        let polled = Watched::Polled(of(child.id()));
        assert!(timeout(A_MOMENT, polled.ended()).await.is_err());
        end(&mut child);
        timeout(SOON, polled.ended()).await.unwrap();
    }

    #[tokio::test]
    async fn many_watch_one_process_through_one_handle() {
        let mut child = child();
        let watcher = Arc::new(Watcher::new());
        let watches: Vec<_> = (0..100).map(|_| watcher.watch(&[of(child.id())]).unwrap()).collect();
        assert!(watches.iter().all(|watch| Arc::ptr_eq(&watch.watched[0], &watches[0].watched[0])));
        let tasks: Vec<_> =
            watches.into_iter().map(|w| tokio::spawn(async move { w.ended().await })).collect();
        let killed = Instant::now();
        end(&mut child);
        for task in tasks {
            timeout(SOON, task).await.unwrap().unwrap();
        }
        assert!(killed.elapsed() < SOON);
        assert_eq!(
            watcher.known.lock().unwrap().values().filter(|w| w.strong_count() > 0).count(),
            0
        );
    }
}
