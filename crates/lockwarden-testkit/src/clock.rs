//! A wall clock that a test moves, for one child process, while that process runs.
//!
//! It works by preloading `.servers/clockshim.so`, which `tools/install-servers` compiles from
//! `tools/clockshim.c`. Monotonic clocks are left alone. Linux, and dynamically linked programs only.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use crate::servers::servers_dir;

/// The moved wall clock of the processes that it was applied to.
#[derive(Debug)]
pub struct ClockShim {
    file: File,
    path: std::path::PathBuf,
    offset_ms: Mutex<i64>,
}

impl ClockShim {
    /// A clock that shows the true time until it is stepped. Its file is put into `dir`, which must
    /// live as long as the processes do.
    ///
    /// # Errors
    /// If the file cannot be written.
    ///
    /// # Panics
    /// If the shim has not been compiled.
    pub fn new(dir: &Path) -> io::Result<ClockShim> {
        let shim = servers_dir().join("clockshim.so");
        assert!(shim.exists(), "{} is missing: run tools/install-servers", shim.display());
        let path = dir.join("clock-offset");
        let file = File::create(&path)?;
        file.write_all_at(&0_i64.to_ne_bytes(), 0)?;
        Ok(ClockShim { file, path, offset_ms: Mutex::new(0) })
    }

    /// Makes the command, once started, read this clock.
    pub fn apply(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", servers_dir().join("clockshim.so"))
            .env("LOCKWARDEN_CLOCK_FILE", &self.path);
    }

    /// Moves the clock by so many milliseconds, on top of what it was moved before. The process's next
    /// reading shows it; what the process has read before it may go on using.
    pub fn step(&self, ms: i64) {
        let mut offset_ms = self.offset_ms.lock().expect("no panic while it is held");
        *offset_ms += ms;
        // Eight aligned bytes inside one page of the page cache, which the process has mapped.
        self.file.write_all_at(&offset_ms.to_ne_bytes(), 0).expect("the offset can be rewritten");
    }

    /// How many milliseconds it is ahead of the true clock; negative if behind.
    pub fn offset_ms(&self) -> i64 {
        *self.offset_ms.lock().expect("no panic while it is held")
    }
}
