//! What the command line's tests share: the program, stores, commands that tell what they see.

#![allow(dead_code, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use lockwarden_testkit::{
    process::{Process, eventually, poll_until},
    servers::{Server, ServerKind},
};
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    io::Read,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// Generous: how long anything that happens at once may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A directory for one test: an embedded store, and room for what its commands write.
pub(crate) struct Site {
    dir: TempDir,
    /// The store's URL: the embedded store, unless another was given.
    pub(crate) url: String,
}

/// An embedded store, one on each server, and what keeps them.
pub(crate) fn sites() -> Vec<(Option<Server>, Site)> {
    let on_server = |kind| {
        let server = Server::start(kind);
        server.without_guard();
        let site = Site::with(&server.url());
        (Some(server), site)
    };
    let servers = ServerKind::default_set().into_iter().map(on_server);
    std::iter::once((None, Site::new())).chain(servers).collect()
}

/// A command that holds what these options of `run` say until the file `go-LABEL` is there.
pub(crate) fn hold(site: &Site, label: &str, options: &[&str]) -> Started {
    let options = [options, &["--label", label]].concat();
    let started =
        site.run(&options, &format!("echo > ready-{label}; {}", until(&format!("go-{label}"))));
    site.await_file(&format!("ready-{label}"));
    started
}

/// Lets it end.
pub(crate) fn end(site: &Site, label: &str, started: Started) {
    site.write(&format!("go-{label}"));
    let ran = started.end();
    assert_eq!(ran.code(), 0, "{ran:?}");
}

/// What a program that ran has left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ran {
    /// The exit code as a shell sees it.
    pub(crate) fn code(&self) -> i32 {
        code(self.status)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code(), 0, "{self:?}");
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The exit code as a shell sees it.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// The program, with nothing of the environment that could choose a store.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwarden"));
    command.env_remove("LOCKWARDEN_URL").env_remove("XDG_STATE_HOME").env_remove("LOCKWARDEN_LOG");
    command.env_remove("LOCKWARDEN_OWNER");
    command.stdin(Stdio::null());
    command
}

/// Runs it to its end.
#[track_caller]
pub(crate) fn ran(command: Command) -> Ran {
    started(command).end()
}

/// Gives it the signals' defaults, even if the tests were started by `nohup` or in the background:
/// what is ignored stays so, by design.
pub(crate) fn with_default_signals(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let defaults = || {
        for signal in 1..32 {
            // SAFETY: sets a disposition, or fails for those that have none.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; signal is one.
    unsafe {
        command.pre_exec(defaults);
    }
}

/// Starts it.
#[track_caller]
pub(crate) fn started(mut command: Command) -> Started {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    with_default_signals(&mut command);
    Started { process: Process::spawn(command).unwrap() }
}

/// A program that runs.
pub(crate) struct Started {
    pub(crate) process: Process,
}

impl Started {
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.process.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// What it has written, once it has ended. (No test writes more than a pipe takes.)
    #[track_caller]
    pub(crate) fn end(mut self) -> Ran {
        let status = self.process.wait_exit(SOON).expect("it ends");
        let (mut stdout, mut stderr) = (Vec::new(), String::new());
        let child = self.process.child();
        child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Ran { status, stdout, stderr }
    }
}

impl Site {
    /// With an embedded store.
    pub(crate) fn new() -> Site {
        let dir = tempfile::Builder::new().prefix("lockwarden-cli-").tempdir().unwrap();
        let url = format!("file:{}", dir.path().join("store").display());
        Site { dir, url }
    }

    /// With another store.
    pub(crate) fn with(url: &str) -> Site {
        Site { url: url.to_owned(), ..Site::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `lockwarden --store … ARGS`, in the site's directory.
    pub(crate) fn program<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = program();
        command.current_dir(self.dir.path()).arg("--store").arg(&self.url).args(args);
        command
    }

    /// The same, run to its end.
    #[track_caller]
    pub(crate) fn ran<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        ran(self.program(args))
    }

    /// `lockwarden run OPTIONS… -- sh -c SCRIPT`, started.
    #[track_caller]
    pub(crate) fn run(&self, options: &[&str], script: &str) -> Started {
        let mut command = self.program(&["run"]);
        command.args(options).args(["--", "sh", "-c", script]);
        started(command)
    }

    /// The same, and it has written `ready`.
    #[track_caller]
    pub(crate) fn running(&self, options: &[&str], script: &str) -> Started {
        let started = self.run(options, script);
        self.await_file("ready");
        started
    }

    /// What `show --json` says about a lock.
    #[track_caller]
    pub(crate) fn show(&self, name: &str) -> Value {
        self.ran(&["show", "--json", "--", name]).json()
    }

    pub(crate) fn is_free(&self, name: &str) -> bool {
        self.show(name)["free"] == true
    }

    /// Waits until so many wait for the lock.
    #[track_caller]
    pub(crate) fn await_queue(&self, name: &str, len: usize) {
        eventually(SOON, || self.alive_in_queue(name) == len);
    }

    pub(crate) fn alive_in_queue(&self, name: &str) -> usize {
        let shown = self.show(name);
        shown["queue"].as_array().unwrap().iter().filter(|it| it["alive"] == true).count()
    }

    /// A file's text; empty while there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn write(&self, name: &str) {
        fs::write(self.path(name), "x\n").unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Waits until a file has text.
    #[track_caller]
    pub(crate) fn await_file(&self, name: &str) {
        eventually(SOON, || !self.read(name).is_empty());
    }
}

/// Has the process ended? A zombie has.
pub(crate) fn is_dead(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

/// The state letter of a process; none: there is no such process.
pub(crate) fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
    stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next())
}

/// A script that waits until the file is there, as the shell of a command.
pub(crate) fn until(file: &str) -> String {
    format!("until [ -e {file} ]; do sleep 0.01; done")
}

/// Polls until there is a value.
#[track_caller]
pub(crate) fn wait_for<T>(question: impl FnMut() -> Option<T>) -> T {
    poll_until(SOON, question).expect("it comes true")
}
