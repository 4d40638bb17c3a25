//! The watcher: a small process that outlives the runner by as long as it takes to kill the
//! command's process group.
//!
//! The kernel tells only the direct child of the runner's death, and only SIGKILL gives the runner
//! no time to tell anyone. So the watcher holds the other end of a pipe that only the runner writes
//! to: when it ends without a farewell, the group is killed. The runner also writes by when the
//! command must have ended; if that passes because the runner is frozen (stopped, say), the watcher
//! kills the group, too. It is one of the processes whose life keeps the lock (R38), so the next
//! holder on this machine is let in only when it is done.

use super::{
    command::{self, Command, Left},
    sys::{self, Fork, SignalSet},
};
use crate::failure::Failure;
use lockwarden::{Process, process};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    pipe::PipeFlags,
    process::{Pid, Signal},
    time::ClockId,
};
use std::{
    io,
    time::{Duration, Instant},
};

/// The farewell: the group has been killed or has ended, its number may be another's from here on.
const DONE: u64 = 0;
/// There is no time by which the command must have ended.
const NEVER: u64 = u64::MAX;
/// A change of that time is worth an order if it is larger than this.
const WORTH_TELLING_US: u64 = 50_000;
/// How long a timeout of ours may be: those of poll do not count the time that a machine sleeps.
const LOOK_EVERY_US: u64 = 1_000_000;

/// The watcher, as the runner sees it.
pub(super) struct Watcher {
    pipe: OwnedFd,
    identity: Process,
    told_us: u64,
    ended: bool,
    pid: Pid,
}

impl Watcher {
    /// Forks it. Must be called while the process has one thread only, and after the command was
    /// forked, so that the command has no copy of the pipe.
    pub(super) fn fork(command: &Command) -> Result<Watcher, Failure> {
        let (reader, pipe) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
            .map_err(io::Error::from)
            .map_err(Failure::system("make a pipe"))?;
        // SAFETY: `run` calls this before it builds the runtime, and nothing else starts threads.
        match unsafe { sys::fork() }.map_err(Failure::system("fork"))? {
            Fork::Child => watch(reader, command),
            Fork::Parent(pid) => {
                // What the watcher misses because it is stopped must not stop us.
                let _ = rustix::io::ioctl_fionbio(&pipe, true);
                let identity = process::of(pid.as_raw_nonzero().get().unsigned_abs());
                Ok(Watcher { pipe, identity, told_us: NEVER, ended: false, pid })
            }
        }
    }

    /// Which process it is.
    pub(super) fn identity(&self) -> &Process {
        &self.identity
    }

    /// The command must have ended by then.
    pub(super) fn must_end_in(&mut self, left: Duration) {
        let left_us = u64::try_from(left.as_micros()).unwrap_or(NEVER);
        let at_us = now_us().saturating_add(left_us);
        // Earlier than told is told in any case.
        if at_us < self.told_us || at_us - self.told_us > WORTH_TELLING_US.min(left_us / 4) {
            self.told_us = at_us;
            self.write(at_us);
        }
    }

    /// The group is dead, and its number may be another's from here on.
    pub(super) fn done(&mut self) {
        self.write(DONE);
    }

    /// Ends it, and takes it out of the kernel's books: where the first process collects no orphans
    /// (containers), each run would leave a zombie. After [`Watcher::done`] there is nothing that it
    /// could still have to do.
    pub(super) fn end(self) {
        if !self.ended {
            use rustix::process::{WaitId, WaitIdOptions};
            // It ends by itself, but not while someone has stopped it.
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            let _ = rustix::process::waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED);
        }
    }

    /// Has it died? Told once.
    pub(super) fn has_died(&mut self) -> bool {
        use rustix::process::{WaitId, WaitIdOptions};
        if self.ended {
            return false;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = rustix::process::waitid(WaitId::Pid(self.pid), options);
        self.ended = matches!(status, Ok(Some(_)));
        self.ended
    }

    fn write(&self, order: u64) {
        // A full pipe: the watcher is stopped. A broken one: it was killed. Neither can be helped.
        let _ = rustix::io::write(&self.pipe, &order.to_le_bytes());
    }
}

/// The clock that counts the time a machine sleeps, as leases do (R20).
fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}

/// In the watcher: waits for the runner's farewell or end.
fn watch(pipe: OwnedFd, command: &Command) -> ! {
    // Out of the reach of terminals and of signals to the runner's or the command's group; what is
    // sent to all processes of a service or a session is ignored. SIGKILL remains.
    let _ = rustix::process::setsid();
    sys::set_blocked(&SignalSet::all());
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"lw-watcher");
    let Ok(pipe) = keep_only(pipe) else { sys::exit_now(0) };
    let (group, leader) = (command.group(), command.identity());
    let mut deadline_us = NEVER;
    loop {
        let left_us = deadline_us.saturating_sub(now_us());
        if left_us == 0 {
            deadline_us = NEVER;
            kill(group, leader);
            continue;
        }
        let wait_us = (deadline_us != NEVER).then_some(left_us.min(LOOK_EVERY_US));
        match read(&pipe, wait_us) {
            Heard::Nothing => {}
            Heard::Order(DONE) => sys::exit_now(0),
            Heard::Order(at_us) => deadline_us = at_us,
            Heard::End => break,
        }
    }
    let began = Instant::now();
    while command::left_in(group) != Left::Nobody {
        kill(group, leader);
        // At first at once, for a next holder may be waiting; what does not die then is stuck in
        // the kernel.
        let slow = began.elapsed() > Duration::from_secs(1);
        std::thread::sleep(if slow { command::LOOK_AGAIN * 100 } else { command::LOOK_AGAIN });
    }
    sys::exit_now(0)
}

/// Kills the group, unless its number is another's by now: the group is what the runner started
/// only while its leader is that very process, or has been reaped (a number whose group still has
/// members is not given again).
fn kill(group: Pid, leader: &Process) {
    let now = process::of(leader.pid);
    if now.start == 0 || leader.start == 0 || now.start == leader.start {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// Closes all descriptors but the pipe's, which becomes the lowest: the watcher must keep no file, pipe
/// or terminal of anyone open.
fn keep_only(pipe: OwnedFd) -> Result<BorrowedFd<'static>, Errno> {
    rustix::stdio::dup2_stdin(&pipe)?;
    // Its own number is closed below, and may be another's then.
    std::mem::forget(pipe);
    sys::close_from(1);
    Ok(rustix::stdio::stdin())
}

enum Heard {
    Order(u64),
    Nothing,
    End,
}

fn read(pipe: &impl AsFd, wait_us: Option<u64>) -> Heard {
    let timeout = wait_us.map(|us| Timespec {
        tv_sec: i64::try_from(us / 1_000_000).unwrap_or(i64::MAX),
        tv_nsec: (us % 1_000_000) as i64 * 1_000,
    });
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(0) | Err(_) => return Heard::Nothing,
        Ok(_) => {}
    }
    // Orders are written whole, as all that is shorter than a page.
    let mut order = [0; 8];
    match rustix::io::read(pipe, &mut order) {
        Ok(8) => Heard::Order(u64::from_le_bytes(order)),
        Err(Errno::INTR | Errno::AGAIN) => Heard::Nothing,
        Ok(_) | Err(_) => Heard::End,
    }
}
