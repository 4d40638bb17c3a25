//! The command: a child that was forked before anything else and waits for the lock.
//!
//! It starts as a copy of us in a process group of its own and reads a pipe. When the lock is
//! granted the fence and the token come through it, and the child becomes the command. When the pipe
//! ends without them, however that came about, the child ends: the command never starts without
//! the lock.

use super::sys::{self, Disposition, Fork, SignalSet};
use crate::{exit, failure::Failure};
use lockwarden::{Name, process};
use rustix::{
    io::Errno,
    pipe::PipeFlags,
    process::{Pid, Signal, WaitId, WaitIdOptions},
};
use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    time::Duration,
};

/// What the command is, and what it gets.
pub(super) struct Plan<'a> {
    pub(super) command: &'a [OsString],
    /// The lock; of several the one that was given first.
    pub(super) name: &'a Name,
    /// All of them.
    pub(super) names_json: Option<String>,
    pub(super) url: &'a str,
    pub(super) owner: &'a str,
    /// What was blocked when we were started, and is to be blocked in the command.
    pub(super) blocked: SignalSet,
    /// What becomes of SIGCHLD, as when we were started.
    pub(super) on_child: Option<Disposition>,
}

/// All names of the locks, in the command's environment.
pub(super) const NAMES_VARIABLE: &str = "LOCKWARDEN_NAMES";

/// The command, as the runner sees it.
pub(super) struct Command {
    pid: Pid,
    identity: lockwarden::Process,
    go: Option<File>,
    errno: File,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself, with this code.
    Exited(i32),
    /// By a signal.
    Signalled(i32),
}

impl End {
    /// The exit code that says so.
    pub(super) fn code(self) -> i32 {
        match self {
            End::Exited(code) => code,
            End::Signalled(signal) => exit::by_signal(signal),
        }
    }
}

/// What job control did to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It was stopped by this signal.
    Stopped(i32),
    /// It was continued.
    Continued,
}

/// The order to start: the fence, the token's length, the token.
const HEAD: usize = 8 + 4;

impl Command {
    /// Forks the child. Must be called while the process has one thread only.
    pub(super) fn fork(plan: &Plan<'_>) -> Result<Command, Failure> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
        let (go_reader, go) = pipe().map_err(Failure::system("make a pipe"))?;
        let (errno, errno_writer) = pipe().map_err(Failure::system("make a pipe"))?;
        let runner = Some(rustix::process::getpid());
        // SAFETY: `run` calls this before it builds the runtime, and nothing else starts threads.
        match unsafe { sys::fork() }.map_err(Failure::system("fork"))? {
            Fork::Child => {
                drop((go, errno));
                become_command(plan, runner, go_reader.into(), errno_writer.into())
            }
            Fork::Parent(pid) => {
                // Both sides do it: whoever comes first, it is done before either goes on.
                let _ = rustix::process::setpgid(Some(pid), Some(pid));
                let identity = process::of(pid.as_raw_nonzero().get().unsigned_abs());
                let (go, errno) = (Some(go.into()), errno.into());
                Ok(Command { pid, identity, go, errno })
            }
        }
    }

    /// Which process it is; it stays the same one when it becomes the command.
    pub(super) fn identity(&self) -> &lockwarden::Process {
        &self.identity
    }

    /// Its process group.
    pub(super) fn group(&self) -> Pid {
        self.pid
    }

    /// The lock is held: become the command. An error means that the child has ended, which
    /// [`Command::ended`] tells.
    pub(super) fn start(&mut self, fence: u64, token: &[u8]) {
        let Some(mut go) = self.go.take() else { return };
        let mut order = Vec::with_capacity(HEAD + token.len());
        order.extend(fence.to_le_bytes());
        order.extend(u32::try_from(token.len()).unwrap_or(0).to_le_bytes());
        order.extend(token);
        let _ = go.write_all(&order);
    }

    /// How it ended, if it has. It stays a zombie until [`Command::reap`], so that its pid and its
    /// group's are nobody else's.
    pub(super) fn ended(&self) -> Option<End> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = wait(self.pid, options)?;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(End::Exited(code)),
            (_, Some(signal)) => Some(End::Signalled(signal)),
            _ => None,
        }
    }

    /// Whether it was stopped or continued since we last asked: the newest of it.
    pub(super) fn changed(&self) -> Option<Change> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        let status = wait(self.pid, options)?;
        match status.stopping_signal() {
            Some(signal) => Some(Change::Stopped(signal)),
            None => status.continued().then_some(Change::Continued),
        }
    }

    /// Sends a signal to the whole group. Only for as long as it has not been reaped.
    pub(super) fn signal(&self, signal: Signal) {
        // Gone already is as good.
        let _ = rustix::process::kill_process_group(self.pid, signal);
    }

    /// Why it could not be executed; none: it was.
    pub(super) fn exec_error(&mut self) -> Option<io::Error> {
        let mut errno = [0; 4];
        // The child has ended, so the pipe has what it wrote, or ends. A process that the command
        // left behind cannot have it: it closed with exec.
        self.errno.read_exact(&mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_le_bytes(errno)))
    }

    /// Takes its pid out of the kernel's books: from here on its number may be another's.
    pub(super) fn reap(self) {
        let _ = rustix::process::waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED);
    }

    /// The command is not to start: ends the child and waits for that.
    pub(super) fn give_up(mut self) {
        self.go = None;
        // It would end by itself, but not while someone has stopped it.
        self.signal(Signal::KILL);
        self.reap();
    }
}

/// Who is left in a process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Nobody that could still do anything: zombies cannot.
    Nobody,
    /// Someone.
    Some,
    /// Only processes that we may not signal (setuid programs).
    Untouchable,
}

/// Who is left in this group?
pub(super) fn left_in(group: Pid) -> Left {
    let left = match rustix::process::test_kill_process_group(group) {
        Err(Errno::SRCH) => return Left::Nobody,
        Err(Errno::PERM) => Left::Untouchable,
        Ok(()) | Err(_) => Left::Some,
    };
    // Only zombies that nobody collects? A container's first process often does not.
    let Ok(processes) = std::fs::read_dir("/proc") else { return left };
    let group = group.as_raw_nonzero().get().to_string();
    let lives = processes.flatten().any(|process| {
        let stat = std::fs::read(process.path().join("stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        // Behind the name, which may contain anything: state, parent, group.
        let mut fields = stat.rsplit_once(')').map_or("", |(_, it)| it).split_ascii_whitespace();
        let (state, _, of) = (fields.next(), fields.next(), fields.next());
        of == Some(&group) && !matches!(state, Some("Z" | "X"))
    });
    if lives { left } else { Left::Nobody }
}

/// How often a group that was killed is looked at until it is gone.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);

fn wait(pid: Pid, options: WaitIdOptions) -> Option<rustix::process::WaitIdStatus> {
    rustix::process::waitid(WaitId::Pid(pid), options).ok().flatten()
}

/// In the child: waits for the order, then becomes the command.
fn become_command(plan: &Plan<'_>, runner: Option<Pid>, mut go: File, mut errno: File) -> ! {
    let _ = rustix::process::setpgid(None, None);
    die_with(runner);
    let Some((fence, token)) = order(&mut go) else { sys::exit_now(0) };
    let mut command = std::process::Command::new(&plan.command[0]);
    command
        .args(&plan.command[1..])
        .env("LOCKWARDEN_NAME", plan.name.as_str())
        .env("LOCKWARDEN_FENCE", fence.to_string())
        .env("LOCKWARDEN_TOKEN", token.to_string())
        .env(crate::settings::OWNER_VARIABLE, plan.owner)
        .env(crate::settings::URL_VARIABLE, plan.url);
    match &plan.names_json {
        Some(names) => command.env(NAMES_VARIABLE, names),
        // Not that of a `run` around us.
        None => command.env_remove(NAMES_VARIABLE),
    };
    if let Some(on_child) = plan.on_child {
        on_child.set(Signal::CHILD);
    }
    // From here on a signal that was sent to us meanwhile takes effect: the command never ran, and
    // the lock is released. (SIGPIPE, which Rust's start-up ignores, `exec` sets back itself.)
    sys::set_blocked(&plan.blocked);
    let error = command.exec();
    let number = error.raw_os_error().unwrap_or(libc::EINVAL);
    let _ = errno.write_all(&number.to_le_bytes());
    sys::exit_now(exec_code(number).number())
}

/// The shells' codes.
pub(super) fn exec_code(errno: i32) -> exit::Code {
    if errno == libc::ENOENT { exit::Code::NotFound } else { exit::Code::NotExecutable }
}

/// Has the kernel kill us when the runner dies. The watcher does this for the whole group; this is
/// faster, and there even if the watcher was killed first.
fn die_with(runner: Option<Pid>) {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // It may have died before; then no signal would ever come.
    if rustix::process::getppid() != runner {
        sys::exit_now(0);
    }
}

fn order(go: &mut File) -> Option<(u64, lockwarden::Token)> {
    let mut head = [0; HEAD];
    go.read_exact(&mut head).ok()?;
    let (fence, len) = head.split_at(8);
    let fence = u64::from_le_bytes(fence.try_into().ok()?);
    let mut token = vec![0; u32::from_le_bytes(len.try_into().ok()?) as usize];
    go.read_exact(&mut token).ok()?;
    Some((fence, lockwarden::Token::found(&token)))
}
