//! The terminal: lent to the command while it runs, so that it can be typed to and hears ^C and ^Z
//! itself, and taken back.

use super::sys::{self, Disposition};
use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
    process::{Pid, Signal},
};

/// The controlling terminal, if there is one.
pub(super) struct Terminal {
    tty: Option<OwnedFd>,
    /// Our process group; one outside our pid namespace cannot be given a terminal.
    own: Option<Pid>,
    lent: bool,
}

impl Terminal {
    /// Looks for it.
    pub(super) fn new() -> Terminal {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok();
        Terminal { tty, own: sys::own_group(), lent: false }
    }

    /// Lends it to a command that starts, if stdin and stdout are the terminal. If only stdin is,
    /// we may be part of a pipe whose other end (`| less`) needs the terminal more; then the command
    /// gets it when it asks for it.
    pub(super) fn lend_at_start(&mut self, group: Pid) {
        use rustix::{stdio, termios::isatty};
        if self.tty.is_some() && isatty(stdio::stdin()) && isatty(stdio::stdout()) {
            self.lend(group);
        }
    }

    /// The command was stopped by this signal. True: it may go on at once; false: leave it so.
    pub(super) fn stopped(&mut self, group: Pid, signal: i32) -> Stop {
        let asks = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        if asks && self.lend(group) {
            return Stop::GoOn;
        }
        if self.tty.is_some() && (asks || signal == Signal::TSTP.as_raw()) {
            return Stop::WithUs;
        }
        // Someone's SIGSTOP, or no job control here: its own business. We keep the lock for it.
        Stop::Alone
    }

    /// Stops us and our group, as the command was, so that the shell hears of it. Returns when we
    /// are continued; and lends the terminal again if the command had it.
    pub(super) fn stop_with(&mut self, group: Pid) {
        let was_lent = self.lent;
        self.take_back();
        // We take SIGTSTP ourselves; for this once it must have its default effect. Where nobody
        // could continue us (our group is orphaned) the kernel drops it, and we go on.
        let ours = Disposition::of(Signal::TSTP);
        Disposition::default().set(Signal::TSTP);
        let _ = rustix::process::kill_current_process_group(Signal::TSTP);
        if let Some(ours) = ours {
            ours.set(Signal::TSTP);
        }
        if was_lent {
            self.lend(group);
        }
    }

    /// Takes it back.
    pub(super) fn take_back(&mut self) {
        if let (Some(tty), Some(own), true) = (&self.tty, self.own, self.lent) {
            // SIGTTOU, which this earns a background process, is held back in `run`.
            let _ = rustix::termios::tcsetpgrp(tty, own);
            self.lent = false;
        }
    }

    /// Lends it, if it is ours to lend.
    fn lend(&mut self, group: Pid) -> bool {
        let Some(tty) = &self.tty else { return false };
        let ours = rustix::termios::tcgetpgrp(tty).is_ok_and(|front| Some(front) == self.own);
        if ours && rustix::termios::tcsetpgrp(tty, group).is_ok() {
            self.lent = true;
            return true;
        }
        false
    }
}

/// What is to be done about a command that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Continue it: it has what it asked for.
    GoOn,
    /// Stop as well, and continue it when we are continued.
    WithUs,
    /// Nothing.
    Alone,
}
