//! A Redis server of the run's own: on a socket in a directory of its own, which nobody else can reach and which goes with
//! it. Its data are appended to a file, so that it has them again after a restart.

use super::{StressError, redis_client};
use crate::failure::Failure;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::{
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::Instant;

/// How long it may take until it answers.
const SOON: Duration = Duration::from_secs(30);
/// How often it is asked whether it answers.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// What stands in a path of a URL as it is.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');

/// A server that ends with this.
pub(super) struct OwnServer {
    program: PathBuf,
    // Before `dir`: it must have ended before its directory goes.
    running: Running,
    dir: TempDir,
}

struct Running(Child);

impl OwnServer {
    /// Starts it, and waits until it answers.
    pub(super) async fn start(program: &Path) -> Result<OwnServer, Failure> {
        let no_server = |source| StressError::NoServer { program: program.to_owned(), source };
        // It starts in another directory. Without a slash the name is looked up in PATH.
        let program = match program.components().count() {
            1 => program.to_owned(),
            _ => std::path::absolute(program).map_err(no_server)?,
        };
        let dir = tempfile::Builder::new().prefix("lockwarden-stress-").tempdir();
        let dir = dir.map_err(no_server)?;
        let running = launch(&program, dir.path()).map_err(no_server)?;
        let mut server = OwnServer { program, running, dir };
        server.await_answer().await?;
        Ok(server)
    }

    /// Its URL. The same after a restart.
    pub(super) fn url(&self) -> String {
        let socket = self.dir.path().join("redis.sock");
        format!("unix://{}", utf8_percent_encode(&socket.to_string_lossy(), PATH))
    }

    /// Kills it (SIGKILL), and starts it again with what it had written.
    pub(super) async fn restart(&mut self) -> Result<(), Failure> {
        self.running.end();
        let launched = launch(&self.program, self.dir.path());
        self.running = launched
            .map_err(|source| StressError::NoServer { program: self.program.clone(), source })?;
        self.await_answer().await
    }

    async fn await_answer(&mut self) -> Result<(), Failure> {
        let client = redis_client::of_url(&self.url())?;
        let until = Instant::now() + SOON;
        loop {
            // While it loads its data it answers, but not this.
            let answer = async {
                let mut connection = redis_client::connect(&client).await?;
                redis::cmd("PING").query_async::<()>(&mut connection).await
            };
            if answer.await.is_ok() {
                return Ok(());
            }
            let has_ended = !matches!(self.running.0.try_wait(), Ok(None));
            if has_ended || Instant::now() > until {
                let log = std::fs::read(self.dir.path().join("log")).unwrap_or_default();
                let log = String::from_utf8_lossy(&log);
                // Its last words say why.
                let last = log.lines().rev().take(3).collect::<Vec<_>>();
                let log = last.into_iter().rev().collect::<Vec<_>>().join("; ");
                let program = self.program.clone();
                return Err(StressError::ServerNotReady { program, log }.into());
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

fn launch(program: &Path, dir: &Path) -> io::Result<Running> {
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    let mut command = Command::new(program);
    command
        .args(["--port", "0", "--unixsocket", "redis.sock", "--unixsocketperm", "700"])
        .args(["--save", "", "--appendonly", "yes", "--daemonize", "no"])
        .arg("--dir")
        .arg(dir)
        // The socket's path is relative to it: a long TMPDIR does not matter to the server.
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // ^C is for us: we need it until all is tidy.
        .process_group(0);
    let parent = rustix::process::getpid();
    let die_with_us = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // Before the line above it may have been too late.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; these are two system calls, and
    // neither allocates.
    unsafe { command.pre_exec(die_with_us) };
    command.spawn().map(Running)
}

impl Running {
    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
