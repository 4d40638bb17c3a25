//! What becomes of the orders of a process, told to the run as it happens.

use super::pipe::Event;
use std::{
    io::{self, BufWriter, Write},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::JoinHandle,
};

/// Where the orders write what happens to them.
pub(super) struct Ledger {
    lines: Sender<Event>,
    acquisitions: AtomicU64,
}

impl Ledger {
    /// Writes to the standard output, on a thread of its own: a run that reads slowly must not stop the orders.
    pub(super) fn open() -> (Ledger, JoinHandle<()>) {
        let (lines, written) = mpsc::channel();
        let writer = std::thread::spawn(move || {
            // The run is gone: it hears nothing, and the end of the input says so, too.
            let _ = write(&written);
        });
        (Ledger { lines, acquisitions: AtomicU64::new(0) }, writer)
    }

    /// Something happened.
    pub(super) fn note(&self, event: Event) {
        // As above.
        let _ = self.lines.send(event);
    }

    /// A number for an acquisition.
    pub(super) fn next_acquisition(&self) -> u64 {
        self.acquisitions.fetch_add(1, Ordering::Relaxed)
    }
}

fn write(events: &Receiver<Event>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    while let Ok(event) = events.recv() {
        line(&mut out, &event)?;
        while let Ok(event) = events.try_recv() {
            line(&mut out, &event)?;
        }
        // What happened must be known even if we are killed.
        out.flush()?;
    }
    Ok(())
}

fn line(out: &mut impl Write, event: &Event) -> io::Result<()> {
    serde_json::to_writer(&mut *out, event)?;
    out.write_all(b"\n")
}
