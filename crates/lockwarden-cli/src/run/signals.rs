//! Which signals we take, and how: as values, one after the other.

use super::sys::{Disposition, SignalSet};
use crate::failure::Failure;
use rustix::process::Signal;
use std::{future::poll_fn, task::Poll};
use tokio::signal::unix::{self, SignalKind};

/// What ends a wait, and is passed on to a command.
const ENDING: [Signal; 7] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::TERM,
];
/// What is passed on besides, once there is a command: the terminal's size, and job control.
const RUNNING: [Signal; 3] = [Signal::WINCH, Signal::TSTP, Signal::CONT];

/// What must not come before we are able to take it: a wait that is ended in its first moments must
/// end in our way, too (C45). And SIGTTOU, so that words on stderr do not stop us while the command
/// has the terminal.
pub(super) fn held_back() -> SignalSet {
    SignalSet::of(ENDING.into_iter().chain([Signal::CHILD, Signal::TTOU]))
}

/// What is blocked once we take them: what was blocked when we were started (that is our starter's
/// business), but for the end of children.
pub(super) fn let_through(inherited: SignalSet) -> SignalSet {
    inherited.without(Signal::CHILD).with(Signal::TTOU)
}

/// The signals that we take.
pub(super) struct Signals {
    taken: Vec<(Signal, unix::Signal)>,
    children: unix::Signal,
}

impl Signals {
    /// Takes those that end a wait. Needs the runtime.
    pub(super) fn new() -> Result<Signals, Failure> {
        let children = unix::signal(SignalKind::child()).map_err(Failure::system(WHAT))?;
        let mut signals = Signals { taken: Vec::new(), children };
        signals.take(&ENDING)?;
        Ok(signals)
    }

    /// Takes those that a command wants, too. Until then a wait can be stopped by ^Z as any program.
    /// One that cannot be taken has its default effect: no reason to give up a lock that is held.
    pub(super) fn take_running(&mut self) {
        let _ = self.take(&RUNNING);
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (number, signal) in &mut self.taken {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one, or something about a child (none).
    pub(super) async fn next_or_child(&mut self) -> Option<Signal> {
        let Signals { taken, children } = self;
        poll_fn(|cx| {
            for (number, signal) in taken.iter_mut() {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(Some(*number));
                }
            }
            children.poll_recv(cx).map(|_| None)
        })
        .await
    }

    fn take(&mut self, signals: &[Signal]) -> Result<(), Failure> {
        for &signal in signals {
            // Ignored when we were started (nohup, a background job of a script): stays so, for us
            // and for the command.
            if Disposition::of(signal).is_some_and(|it| it.ignores()) {
                continue;
            }
            let kind = SignalKind::from_raw(signal.as_raw());
            self.taken.push((signal, unix::signal(kind).map_err(Failure::system(WHAT))?));
        }
        Ok(())
    }
}

const WHAT: &str = "take signals";
