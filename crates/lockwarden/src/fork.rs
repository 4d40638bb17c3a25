//! Forks are noticed: a child holds nothing of its parent's (R24).

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

/// What runs around a fork.
pub(crate) type Handler = extern "C" fn();

/// Runs these around every fork from now on: before it, and after it in the parent and in the child. False:
/// the system has no room for them. What runs in the child may do only what is allowed there: another thread
/// may have held any lock.
#[expect(unsafe_code, reason = "there is no safe interface to pthread_atfork")]
pub(crate) fn watch(before: Option<Handler>, parent: Option<Handler>, child: Handler) -> bool {
    let plain = |handler: Handler| handler as unsafe extern "C" fn();
    // SAFETY: the handlers are functions of this program that live as long as it does, take and return
    // nothing, and do not unwind.
    unsafe { libc::pthread_atfork(before.map(plain), parent.map(plain), Some(plain(child))) == 0 }
}

/// Another number in each process that a fork made. Unlike a pid it costs no system call, so that it can be
/// asked whenever a caller touches a warden. A child that was made around the C library, by a bare `clone`, is
/// not told from its parent.
pub(crate) fn generation() -> u32 {
    static GENERATION: AtomicU32 = AtomicU32::new(0);
    static WATCHED: OnceLock<bool> = OnceLock::new();
    extern "C" fn count() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    if *WATCHED.get_or_init(|| watch(None, None, count)) {
        GENERATION.load(Ordering::Relaxed)
    } else {
        std::process::id()
    }
}
