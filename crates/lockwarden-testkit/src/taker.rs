//! Speaks with the `taker`, a process of its own that takes locks as it is told.

use crate::{clock::ClockShim, process::Process};
use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

/// How long a taker may take for anything that should not take long.
pub const SOON: Duration = Duration::from_secs(20);

/// How a taker is started.
#[derive(Clone, Debug)]
pub struct Options {
    program: PathBuf,
    url: String,
    label: String,
    watched: bool,
    record: Option<PathBuf>,
    without_rule: Option<u32>,
    environment: Vec<(OsString, OsString)>,
}

/// A running taker. Dropping it kills it.
#[derive(Debug)]
pub struct Taker {
    process: Process,
    lines: Receiver<String>,
    /// Lines that were read while waiting for others.
    seen: VecDeque<String>,
    label: String,
}

impl Options {
    /// A taker (the `program`: `env!("CARGO_BIN_EXE_taker")`) on the store of a URL.
    #[must_use]
    pub fn new(program: &str, url: &str) -> Options {
        let (program, url) = (program.into(), url.to_owned());
        Options {
            program,
            url,
            label: "taker".into(),
            watched: true,
            record: None,
            without_rule: None,
            environment: Vec::new(),
        }
    }

    /// Its label.
    #[must_use]
    pub fn label(mut self, label: &str) -> Options {
        self.label = label.to_owned();
        self
    }

    /// It does not watch the processes of holders, as if they were on other machines.
    #[must_use]
    pub fn unwatched(mut self) -> Options {
        self.watched = false;
        self
    }

    /// It records its checks in this file.
    #[must_use]
    pub fn record(mut self, path: &Path) -> Options {
        self.record = Some(path.to_owned());
        self
    }

    /// It believes without this rule of the protocol: a planted fault, to show that a test can fail.
    #[must_use]
    pub fn without_rule(mut self, rule: u32) -> Options {
        self.without_rule = Some(rule);
        self
    }

    /// Its wall clock is this one.
    #[must_use]
    pub fn clock(mut self, clock: &ClockShim) -> Options {
        let mut command = Command::new(&self.program);
        clock.apply(&mut command);
        let set = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
            Some((name.to_owned(), value?.to_owned()))
        };
        self.environment.extend(command.get_envs().filter_map(set));
        self
    }

    /// Starts it; it connects meanwhile.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(&self) -> Taker {
        let mut command = Command::new(&self.program);
        command.arg(&self.url).arg(&self.label);
        command.arg(if self.watched { "watched" } else { "unwatched" });
        command.arg(self.record.as_deref().unwrap_or(Path::new("-")));
        if let Some(rule) = self.without_rule {
            command.env("TAKER_WITHOUT_RULE", rule.to_string());
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(command).expect("the taker starts");
        let stdout = process.child().stdout.take().expect("its output");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Taker { process, lines, seen: VecDeque::new(), label: self.label.clone() }
    }

    /// Starts it, and waits until it has connected.
    ///
    /// # Panics
    /// If it does not connect.
    #[must_use]
    pub fn start(&self) -> Taker {
        let mut taker = self.spawn();
        taker.hear("connected");
        taker
    }
}

impl Taker {
    /// The process, to be killed, stopped, continued.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Tells it a command.
    ///
    /// # Panics
    /// If it does not listen any more.
    pub fn tell(&mut self, command: &str) {
        let stdin = self.process.child().stdin.as_mut().expect("its input");
        writeln!(stdin, "{command}").expect("the taker listens");
    }

    /// Waits for a line that begins so, and returns its words. Other lines are kept for later.
    ///
    /// # Panics
    /// If there is none within [`SOON`].
    pub fn hear(&mut self, begins: &str) -> Vec<String> {
        let heard = self.hear_within(begins, SOON);
        heard.unwrap_or_else(|| panic!("{}: no {begins:?}, but {:?}", self.label, self.seen))
    }

    /// As [`Taker::hear`], with another limit; none: there was none.
    pub fn hear_within(&mut self, begins: &str, limit: Duration) -> Option<Vec<String>> {
        let until = Instant::now() + limit;
        let mut next = 0;
        loop {
            while let Some(line) = self.seen.get(next) {
                let matches = line
                    .strip_prefix(begins)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
                if matches {
                    let line = self.seen.remove(next)?;
                    return Some(line.split(' ').map(str::to_owned).collect());
                }
                next += 1;
            }
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push_back(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Acquires as `key`; returns the fence, and when, in µs of the recorder's clock.
    ///
    /// # Panics
    /// If it is not granted.
    pub fn acquire(&mut self, key: &str, name: &str, options: &str) -> (u64, u64) {
        self.tell(format!("acquire {key} {name} {options}").trim_end());
        self.acquired(key)
    }

    /// Waits until an acquire that was told is granted.
    ///
    /// # Panics
    /// If it is not.
    pub fn acquired(&mut self, key: &str) -> (u64, u64) {
        let words = self.hear(&format!("acquired {key}"));
        let number = |i: usize| words[i].parse().expect("a number");
        (number(2), number(3))
    }

    /// Asks for `check()`.
    pub fn check(&mut self, key: &str) -> bool {
        self.tell(&format!("check {key}"));
        self.hear(&format!("check {key}"))[2] == "true"
    }

    /// Releases; the error's code if it was not as it should be.
    ///
    /// # Errors
    /// The code.
    pub fn release(&mut self, key: &str) -> Result<(), String> {
        self.tell(&format!("release {key}"));
        let until = Instant::now() + SOON;
        while Instant::now() < until {
            let brief = Duration::from_millis(5);
            if self.hear_within(&format!("released {key}"), brief).is_some() {
                return Ok(());
            }
            if let Some(words) = self.hear_within(&format!("failed {key}"), brief) {
                return Err(words[2].clone());
            }
        }
        panic!("{}: the release of {key} was not answered", self.label);
    }
}
