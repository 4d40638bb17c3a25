//! The signals that end a run early.

use crate::{failure::Failure, run::sys::Disposition};
use rustix::process::Signal;
use std::{future::poll_fn, task::Poll};
use tokio::signal::unix::{self, SignalKind};

/// INT, TERM and HUP, but for those that were ignored when we started (nohup).
pub(super) struct Interrupts(Vec<(Signal, unix::Signal)>);

impl Interrupts {
    /// Takes them from now on.
    pub(super) fn new() -> Result<Interrupts, Failure> {
        let mut taken = Vec::new();
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            if !Disposition::of(signal).is_some_and(|it| it.ignores()) {
                let kind = SignalKind::from_raw(signal.as_raw());
                taken.push((signal, unix::signal(kind).map_err(Failure::system("take signals"))?));
            }
        }
        Ok(Interrupts(taken))
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, taken) in &mut self.0 {
                if taken.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}
