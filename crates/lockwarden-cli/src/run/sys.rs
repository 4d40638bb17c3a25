//! The few system calls that have no safe wrapper, each as thin as it can be.

use rustix::process::{Pid, Signal};
use std::{io, mem::MaybeUninit, ptr};

/// Which side of a fork we are.
pub(super) enum Fork {
    /// The parent, and its child.
    Parent(Pid),
    /// The child.
    Child,
}

/// Forks.
///
/// # Safety
/// The process must have one thread only: in the child a mutex that another thread held would stay
/// locked for ever, the allocator's included.
pub(super) unsafe fn fork() -> io::Result<Fork> {
    // SAFETY: the caller promises that there is one thread, so the child may do whatever it likes.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid).map(Fork::Parent).ok_or_else(|| io::ErrorKind::Other.into()),
    }
}

/// Ends a forked child at once: no destructors, no buffers of the parent's to be written twice.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process, whatever its state.
    unsafe { libc::_exit(code) }
}

/// Our process group; none: it lies outside our pid namespace.
pub(super) fn own_group() -> Option<Pid> {
    // SAFETY: takes nothing and cannot fail.
    Pid::from_raw(unsafe { libc::getpgrp() })
}

/// A set of signals.
#[derive(Clone, Copy)]
pub(super) struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// These signals.
    pub(super) fn of(signals: impl IntoIterator<Item = Signal>) -> SignalSet {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset makes the set whole, and never fails.
        let mut set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        for signal in signals {
            // SAFETY: the set is whole, and a `Signal` is in range.
            unsafe { libc::sigaddset(&mut set, signal.as_raw()) };
        }
        SignalSet(set)
    }

    /// Every signal.
    pub(super) fn all() -> SignalSet {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigfillset makes the set whole, and never fails.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            SignalSet(set.assume_init())
        }
    }

    /// The set without this signal.
    pub(super) fn without(mut self, signal: Signal) -> SignalSet {
        // SAFETY: the set is whole, and a `Signal` is in range.
        unsafe { libc::sigdelset(&mut self.0, signal.as_raw()) };
        self
    }

    /// The set with this signal.
    pub(super) fn with(mut self, signal: Signal) -> SignalSet {
        // SAFETY: the set is whole, and a `Signal` is in range.
        unsafe { libc::sigaddset(&mut self.0, signal.as_raw()) };
        self
    }
}

/// Blocks these signals, too; what was blocked before.
pub(super) fn block(signals: &SignalSet) -> SignalSet {
    let mut before = SignalSet::of([]);
    // SAFETY: both sets are whole. The call cannot fail: SIG_BLOCK is a valid way.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &signals.0, &mut before.0) };
    before
}

/// Blocks these signals and no others.
pub(super) fn set_blocked(signals: &SignalSet) {
    // SAFETY: the set is whole. The call cannot fail: SIG_SETMASK is a valid way.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &signals.0, ptr::null_mut()) };
}

/// What happens on a signal.
#[derive(Clone, Copy)]
pub(crate) struct Disposition(libc::sigaction);

impl Disposition {
    /// As it is now; none: the system does not say.
    pub(crate) fn of(signal: Signal) -> Option<Disposition> {
        let mut action = MaybeUninit::uninit();
        // SAFETY: a null action changes nothing; the present one is written on success, and only
        // then taken as written.
        unsafe {
            let result = libc::sigaction(signal.as_raw(), ptr::null(), action.as_mut_ptr());
            (result == 0).then(|| Disposition(action.assume_init()))
        }
    }

    /// The default.
    pub(super) fn default() -> Disposition {
        // SAFETY: all zeros are a valid `sigaction`: no flags, an empty mask, and SIG_DFL.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = libc::SIG_DFL;
        Disposition(action)
    }

    /// Is the signal ignored?
    pub(crate) fn ignores(&self) -> bool {
        self.0.sa_sigaction == libc::SIG_IGN
    }

    /// Sets it.
    pub(super) fn set(&self, signal: Signal) {
        // SAFETY: the action is the default or one that the system gave us in this very process (or
        // its parent before the fork, whose code we have): its handler, if any, is valid here.
        unsafe { libc::sigaction(signal.as_raw(), &self.0, ptr::null_mut()) };
    }
}

/// Closes every descriptor from `first` on.
pub(super) fn close_from(first: u32) {
    // SAFETY: closes descriptors of this process. Only the watcher calls it, which has just been
    // forked and uses none of them from here on.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if closed == 0 {
        return;
    }
    // Before Linux 5.9: one by one, as listed.
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> =
        open.flatten().filter_map(|it| it.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| u32::try_from(*fd).is_ok_and(|fd| fd >= first)) {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}
