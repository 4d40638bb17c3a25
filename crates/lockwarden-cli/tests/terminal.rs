//! `lockwarden run` on a terminal: who has it, ^C and ^Z, and the progress line; and the progress bar of `stress`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use lockwarden_testkit::process::{Process, eventually};
use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
    pty::OpenptFlags,
};
use std::{
    fs::File,
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Command, ExitStatus},
    sync::{Arc, Mutex},
};
use support::{SOON, Site, until};

/// A terminal with a program on it, which leads its session.
struct Terminal {
    keys: File,
    screen: Arc<Mutex<String>>,
    process: Process,
}

impl Terminal {
    fn new(mut command: Command) -> Terminal {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let open = || -> OwnedFd {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap()
        };
        command.stdin(open()).stdout(open()).stderr(open());
        let lead = || {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            Ok(())
        };
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; these are two system
        // calls, and neither allocates.
        #[expect(unsafe_code, reason = "the standard library has no safe way")]
        unsafe {
            command.pre_exec(lead);
        }
        support::with_default_signals(&mut command);
        let process = Process::spawn(command).unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let keys = File::from(master);
        let (mut output, shown) = (keys.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            // It ends with the last process on the terminal.
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        });
        Terminal { keys, screen, process }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is on the screen; what was before it is forgotten.
    #[track_caller]
    fn expect(&self, text: &str) {
        let found = lockwarden_testkit::process::poll_until(SOON, || {
            let mut screen = self.screen.lock().unwrap();
            let at = screen.find(text)?;
            screen.drain(..at + text.len());
            Some(())
        });
        assert!(found.is_some(), "{text:?} does not come; {:?}", self.screen.lock().unwrap());
    }

    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        match self.process.wait_exit(SOON) {
            Some(status) => status,
            None => panic!("it does not end; {:?}", self.screen.lock().unwrap()),
        }
    }
}

const ROUNDS: usize = 50;

/// Strings that stand in what is typed as two, so that the terminal's echo is not taken for output.
fn sh(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

#[test]
fn the_command_has_the_terminal() {
    let site = Site::new();
    for _ in 0..ROUNDS {
        let mut command = site.program(&["run", "x", "--"]);
        command.args(sh("read line; echo \"got:$line\"; exit 4"));
        let mut terminal = Terminal::new(command);
        terminal.types("hello\n");
        terminal.expect("got:hello");
        assert_eq!(terminal.end().code(), Some(4));
    }
}

#[test]
fn interrupt_reaches_the_command() {
    let site = Site::new();
    for _ in 0..ROUNDS {
        let mut command = site.program(&["run", "x", "--"]);
        command.args(sh("trap 'echo heard; exit 5' INT; echo ready; while :; do sleep 0.01; done"));
        let mut terminal = Terminal::new(command);
        terminal.expect("ready");
        terminal.types("\x03");
        terminal.expect("heard");
        assert_eq!(terminal.end().code(), Some(5));
    }
    assert!(site.is_free("x"));
}

fn shell(site: &Site) -> Terminal {
    let mut bash = Command::new("bash");
    bash.current_dir(site.path("")).args(["--norc", "--noprofile", "-i"]);
    bash.env("LOCKWARDEN", env!("CARGO_BIN_EXE_lockwarden")).env("LOCKWARDEN_URL", &site.url);
    bash.env("PS1", "prompt> ").env("TERM", "dumb");
    let terminal = Terminal::new(bash);
    terminal.expect("prompt> ");
    terminal
}

/// ^Z stops command and runner, and the shell has its prompt; `fg` continues both.
#[test]
fn a_job_can_be_stopped_and_continued() {
    let site = Site::new();
    let mut terminal = shell(&site);
    for _ in 0..ROUNDS {
        site.remove("ready");
        // One process: a shell that is stopped between vfork and exec of a child does not stop, with
        // or without us.
        terminal.types("$LOCKWARDEN run x -- sh -c 'echo $$ > ready; exec sleep 1000'\n");
        site.await_file("ready");
        let command = site.read("ready");
        let runner = site.show("x")["holder"]["pid"].to_string();
        terminal.types("\x1a");
        terminal.expect("Stopped");
        terminal.expect("prompt> ");
        assert_eq!(support::state(&command), Some('T'));
        assert_eq!(support::state(&runner), Some('T'));
        assert!(!site.is_free("x"));
        terminal.types("fg\n");
        for pid in [&command, &runner] {
            eventually(SOON, || support::state(pid).is_some_and(|state| state != 'T'));
        }
        terminal.types("\x03");
        terminal.expect("prompt> ");
        terminal.types("echo rc=$?\n");
        terminal.expect("rc=130");
        assert!(site.is_free("x"));
    }
    terminal.types("exit\n");
    terminal.end();
}

/// In a pipe the command gets the terminal when it asks for it, and not before.
#[test]
fn a_pipe_lends_the_terminal_on_demand() {
    let site = Site::new();
    let mut terminal = shell(&site);
    for _ in 0..ROUNDS {
        terminal.types(
            "$LOCKWARDEN run x -- sh -c 'read line </dev/tty; echo got\":\"$line' | cat; \
             echo \"rc=\"$PIPESTATUS\n",
        );
        terminal.types("hello\n");
        terminal.expect("got:hello");
        terminal.expect("rc=0");
        terminal.expect("prompt> ");
    }
    terminal.types("exit\n");
    terminal.end();
}

/// One line that is rewritten, and gone when the wait is over.
#[test]
fn progress_is_one_line() {
    let site = Site::new();
    let holder =
        site.running(&["x", "--label", "nightly"], &format!("echo > ready; {}", until("go")));
    let mut command = site.program(&["run", "x", "--"]);
    command.args(sh("echo mine"));
    let mut terminal = Terminal::new(command);
    terminal.expect("\rlockwarden: waiting for x (0 s): held by nightly");
    // The seconds are counted.
    terminal.expect("\rlockwarden: waiting for x (1 s): held by nightly");
    assert!(!terminal.screen.lock().unwrap().contains('\n'));
    site.write("go");
    terminal.expect("\r\x1b[K");
    terminal.expect("mine");
    assert_eq!(terminal.end().code(), Some(0));
    holder.end();
}

/// A bar with live figures, and ^C tidies up.
#[test]
fn stress_shows_its_progress() {
    let site = Site::new();
    let mut command = site.program(&["stress", "orders", "--orders", "150", "--work", "2s"]);
    command.args(["--style", "lockwarden"]).env("TERM", "xterm");
    let mut terminal = Terminal::new(command);
    terminal.expect("0/150 orders");
    terminal.expect("50 waiting");
    terminal.types("\x03");
    terminal.expect("interrupted; removed");
    assert_eq!(terminal.end().code(), Some(130));
}
