//! A forked child must not keep its parent's connections (R24): while a copy of a socket is open
//! anywhere, the server does not see the parent's end, and the dead parent's sessions look alive.
//!
//! So a child that is forked replaces its copies at once, before any code of its own runs. They
//! become `/dev/null` under the same numbers: whatever in the child still believes to own them may
//! go on to, and if it closes them, it closes nothing of the parent's.

use crate::fork;
use std::{
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    sync::{
        Once, OnceLock,
        atomic::{AtomicI32, Ordering},
    },
};

/// A socket that a forked child does not keep. Dropped before the socket is closed.
#[derive(Debug)]
pub(super) struct Kept(&'static Slot);

/// A place for the number of a socket. Places are never freed, but used again: there are as many as
/// there ever were connections at once. A list without locks, for a child may find any lock taken.
#[derive(Debug)]
struct Slot {
    socket: AtomicI32,
    next: OnceLock<Box<Slot>>,
}

const NONE: RawFd = -1;

static FIRST: Slot = Slot::new();

impl Slot {
    const fn new() -> Slot {
        Slot { socket: AtomicI32::new(NONE), next: OnceLock::new() }
    }
}

impl Kept {
    /// Keeps the socket from children that are forked from now on.
    pub(super) fn from_children(socket: BorrowedFd<'_>) -> Kept {
        static WATCH_FORKS: Once = Once::new();
        WATCH_FORKS.call_once(watch_forks);
        let (mut slot, number) = (&FIRST, socket.as_raw_fd());
        let take = |slot: &Slot| {
            let (free, taken) = (Ordering::AcqRel, Ordering::Relaxed);
            slot.socket.compare_exchange(NONE, number, free, taken).is_ok()
        };
        while !take(slot) {
            slot = slot.next.get_or_init(|| Box::new(Slot::new()));
        }
        Kept(slot)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.socket.store(NONE, Ordering::Release);
    }
}

fn watch_forks() {
    #[expect(
        unsafe_code,
        reason = "there is no safe interface that replaces a descriptor of unknown owner"
    )]
    extern "C" fn after_fork_in_child() {
        // SAFETY: only calls that are allowed after a fork, on numbers that are the child's own.
        unsafe {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            let mut slot = Some(&FIRST);
            while let Some(Slot { socket, next }) = slot {
                let number = socket.load(Ordering::Acquire);
                if number != NONE && libc::dup3(null, number, libc::O_CLOEXEC) < 0 {
                    // No descriptor was left for the device: better a closed number than a socket
                    // that keeps a dead parent's session alive.
                    libc::close(number);
                }
                slot = next.get().map(|next| &**next);
            }
            libc::close(null);
        }
    }
    if !fork::watch(None, None, after_fork_in_child) {
        tracing::warn!("forks go unnoticed: children keep copies of connections to the store");
    }
}
