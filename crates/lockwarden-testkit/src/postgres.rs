//! A real PostgreSQL server in a directory of its own, reached by a unix socket.
//!
//! `tools/install-servers` puts the programs into place. PostgreSQL refuses to run as root: then it
//! runs as the user `nobody`.

use crate::{
    process::{Process, poll_until},
    servers::servers_dir,
};
use rustix::process::{Pid, Signal};
use std::{
    fs::File,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);
/// `nobody` and `nogroup` on Debian; any that own nothing will do.
const NOBODY: u32 = 65_534;

/// A running server. Dropping it ends it and removes its directory; it also ends with the test's own
/// process, however that ends.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    dir: TempDir,
}

impl Postgres {
    /// Starts a server without data and waits until it answers.
    ///
    /// # Panics
    /// If it is not installed, or does not start.
    #[must_use]
    pub fn start() -> Postgres {
        let dir = tempfile::Builder::new().prefix("lockwarden-postgres-").tempdir();
        let dir = dir.expect("a directory");
        let data = dir.path().join("data");
        std::fs::create_dir(&data).expect("a directory for its data");
        if rustix::process::geteuid().is_root() {
            for path in [dir.path(), &data] {
                chown(path, Some(NOBODY), Some(NOBODY)).expect("root may give directories away");
            }
        }
        let programs = programs(dir.path());
        let mut command = unprivileged(&programs.join("initdb"));
        command.args(["--username=postgres", "--auth=trust", "--no-locale", "--encoding=UTF8"]);
        let made = command.args(["--no-sync", "-D"]).arg(&data).output().expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));

        let log = dir.path().join("server.log");
        let output = File::create(&log).expect("a log");
        let mut command = unprivileged(&programs.join("postgres"));
        command.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-c", "fsync=off", "-c"]);
        command.arg(format!("unix_socket_directories={}", dir.path().display()));
        command.stdin(Stdio::null()).stdout(output.try_clone().expect("a log")).stderr(output);
        let process = Process::spawn(command).expect("postgres starts");
        let mut server = Postgres { process, dir };
        let up = poll_until(DEADLINE, || {
            let ended = !server.process.is_running();
            (ended || server.try_client().is_ok()).then_some(!ended)
        });
        let wrote = || std::fs::read_to_string(&log).unwrap_or_default();
        assert_eq!(up, Some(true), "PostgreSQL did not come up; it wrote:\n{}", wrote());
        server
    }

    /// How clients reach it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("host={} user=postgres", self.dir.path().display())
    }

    /// A new connection.
    ///
    /// # Panics
    /// If it cannot be reached.
    #[must_use]
    pub fn client(&self) -> postgres::Client {
        self.try_client().expect("PostgreSQL answers")
    }

    fn try_client(&self) -> Result<postgres::Client, postgres::Error> {
        postgres::Client::connect(&self.url(), postgres::NoTls)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A fast shutdown: it takes its processes and its shared memory with it. Killed, it would leave
        // them to themselves for a moment, in a directory that is about to go.
        if self.process.is_running() {
            let pid = Pid::from_child(self.process.child());
            let _ = rustix::process::kill_process(pid, Signal::INT);
            let _ = self.process.wait_exit(DEADLINE);
        }
    }
}

/// A command that runs as somebody who is not root, and is told to end when this process does: the
/// kernel forgets what [`Process`] has told it when the user changes.
fn unprivileged(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let nobody = NOBODY.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups", "--inh-caps=-all"]);
    command.args(["--pdeathsig", "QUIT", "--"]).arg(program);
    // Not root's own directory, which it may not enter.
    command.current_dir("/");
    command
}

/// Where the programs are, for whoever runs them.
fn programs(scratch: &Path) -> PathBuf {
    let place = servers_dir().join("postgres");
    let place = place.canonicalize().unwrap_or(place);
    let bin = place.join("bin");
    assert!(
        bin.join("postgres").exists(),
        "PostgreSQL is not installed: run tools/install-servers"
    );
    // Asked by a program that has become the user: the one that becomes it still has root's rights.
    let reached = unprivileged(Path::new("test")).arg("-x").arg(bin.join("postgres")).status();
    if reached.is_ok_and(|it| it.success()) {
        return bin;
    }
    // A checkout in root's home: nobody may go there.
    let copy = scratch.join("programs");
    let copied = Command::new("cp").arg("-r").arg(&place).arg(&copy).status();
    assert!(copied.is_ok_and(|it| it.success()), "cp {}", place.display());
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&copy, mode).expect("it is ours");
    copy.join("bin")
}
