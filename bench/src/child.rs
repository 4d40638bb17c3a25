//! The processes that a benchmark needs beside its own: the same program in another role.
//!
//! A child reads commands from its standard input and answers on its standard output, a line each.

use crate::{
    baseline::Ours,
    ground::{Outcome, connect, runtime},
    held,
    measure::own_cpu_us,
    throughput,
    turn::{self, Turn},
};
use lockwarden_testkit::process::Process;
use std::{
    io::{BufRead, BufReader, Write},
    process::{ChildStdout, Command, Stdio},
    time::Duration,
};

/// A running child. Dropping it kills it.
pub(crate) struct Child {
    process: Process,
    lines: BufReader<ChildStdout>,
}

impl Child {
    /// Starts one in a role, and waits until it is ready.
    pub(crate) fn start(role: &str, arguments: &[&str]) -> Outcome<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--child").arg(role).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(command)?;
        let stdout = process.child().stdout.take().ok_or("a child without output")?;
        let mut child = Child { process, lines: BufReader::new(stdout) };
        child.hear("ready")?;
        Ok(child)
    }

    pub(crate) fn tell(&mut self, line: &str) -> Outcome<()> {
        let stdin = self.process.child().stdin.as_mut().ok_or("a child without input")?;
        Ok(writeln!(stdin, "{line}")?)
    }

    /// The numbers behind the word that the next line must begin with.
    pub(crate) fn hear(&mut self, word: &str) -> Outcome<Vec<u64>> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        if words.next() != Some(word) {
            return Err(format!("a child said {line:?} instead of {word}").into());
        }
        words.map(|word| Ok(word.parse()?)).collect()
    }

    /// Has it queue a waiter, and waits until the store has said that it waits.
    pub(crate) fn queue(&mut self, name: &str, length: Duration) -> Outcome<()> {
        self.tell(&format!("queue {name} {}", length.as_micros()))?;
        self.hear("queued")?;
        Ok(())
    }

    /// Waits for the turns of all its waiters, in the order in which they queued.
    pub(crate) fn drain(&mut self) -> Outcome<Vec<Turn>> {
        self.tell("drain")?;
        let count = self.hear("drained")?[0];
        let mut turns = Vec::new();
        for _ in 0..count {
            let numbers = self.hear("turn")?;
            let [acquired_ns, released_ns, fence] = numbers[..] else {
                return Err("a turn has three numbers".into());
            };
            turns.push(Turn { acquired_ns, released_ns, fence });
        }
        Ok(turns)
    }
}

/// Plays a role.
pub(crate) fn run(words: &[String]) -> Outcome<()> {
    match words {
        [role, url] if role == "line" => line(url),
        [role, url, count, lease_ms] if role == "held" => {
            held::child(url, count.parse()?, Duration::from_millis(lease_ms.parse()?))
        }
        [role, url, tasks, seconds] if role == "cycle" => cycle(url, tasks, seconds),
        _ => Err(format!("no such role: {words:?}").into()),
    }
}

/// No part of a benchmark: ours alone, for a profiler.
fn cycle(url: &str, tasks: &str, seconds: &str) -> Outcome<()> {
    let length = Duration::from_secs(seconds.parse()?);
    runtime()?.block_on(async {
        let ours = Ours(connect(url).await?);
        let (cycles, cpu_us) =
            (throughput::cycles(&ours, tasks.parse()?, length).await? as f64, own_cpu_us());
        let rate = cycles / length.as_secs_f64();
        say(&format!("{rate:.0} cycles/s, {:.2} µs of this process each", cpu_us / cycles))?;
        ours.0.close().await;
        Ok(())
    })
}

/// A child says something, at once.
pub(crate) fn say(line: &str) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Waiters of one process in a line that all processes form.
fn line(url: &str) -> Outcome<()> {
    let runtime = runtime()?;
    let warden = runtime.block_on(connect(url))?;
    let mut turns = Vec::new();
    say("ready")?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["queue", name, hold_us] => {
                let (warden, name) = (warden.clone(), name.to_owned());
                let length = Duration::from_micros(hold_us.parse()?);
                turns.push(runtime.spawn(async move {
                    // The parent hears it, or is gone.
                    turn::take(&warden, &name, length, || drop(say("queued"))).await
                }));
            }
            ["drain"] => {
                let mut taken = Vec::new();
                for turn in turns.drain(..) {
                    taken.push(runtime.block_on(turn)??);
                }
                say(&format!("drained {}", taken.len()))?;
                for Turn { acquired_ns, released_ns, fence } in taken {
                    say(&format!("turn {acquired_ns} {released_ns} {fence}"))?;
                }
            }
            _ => return Err(format!("no such command: {line:?}").into()),
        }
    }
    runtime.block_on(warden.close());
    Ok(())
}
