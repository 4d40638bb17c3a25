//! The gate of a file between processes, some of them killed.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod support;

use lockwarden::{
    blocking,
    gate::{Error, Stale, file::Gate},
};
use lockwarden_testkit::{process::Process, site::Site};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};
use support::{Dice, size};

const WRITER: &str = "LOCKWARDEN_GATE_WRITER";
const WRITERS: u64 = 8;

fn gate(path: &Path) -> Gate {
    Gate::at(path).wait_for(Duration::from_secs(60))
}

/// Long enough for many pages: a mixture would show.
fn contents(fence: u64) -> String {
    format!("{fence:016}\n").repeat(20_000)
}

/// Runs as a child of the other tests, which say what to write: `PATH`, and either the fence to count up
/// from for ever, or `shuffle I OF ROUNDS`.
#[test]
fn writer() {
    let Ok(task) = std::env::var(WRITER) else { return };
    let words: Vec<&str> = task.split(' ').collect();
    let gate = gate(Path::new(words[0]));
    let number = |word: &str| word.parse::<u64>().unwrap();
    if let ["shuffle", index, rounds] = words[1..] {
        for round in 0..number(rounds) {
            // Each fence once over all writers, up and down.
            let fence = 1 + (round * WRITERS + number(index)) * 37 % (number(rounds) * WRITERS);
            match gate.replace(fence, contents(fence).as_bytes()) {
                Ok(()) | Err(Error::Stale(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        return;
    }
    println!("\nwriting");
    for fence in number(words[1]).. {
        gate.replace(fence, contents(fence).as_bytes()).unwrap();
    }
}

fn spawn(task: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "writer"]).env(WRITER, task);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Process::spawn(command).unwrap()
}

/// SIGKILL at random moments: always one whole state, and never a fence behind the contents.
#[test]
fn killed_writers_leave_old_or_new() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let mut dice = Dice(7);
    let (mut next, mut between) = (1, 0);
    for round in 0..size(300, 40) {
        let mut writer = spawn(&format!("{} {next}", path.display()));
        let output = BufReader::new(writer.child().stdout.take().unwrap());
        assert!(output.lines().map_while(Result::ok).any(|line| line == "writing"));
        std::thread::sleep(Duration::from_micros(dice.below(30_000)));
        writer.kill9();
        let newest = gate(&path).newest().unwrap().unwrap_or(0);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let found = if text.is_empty() { 0 } else { text[..16].parse::<u64>().unwrap() };
        assert!(found == 0 || text == contents(found), "round {round}: a mixture");
        assert!(found == newest || found + 1 == newest, "round {round}: {found} under {newest}");
        assert!(newest >= next || newest == 0, "round {round}: the fence went back");
        between += u64::from(found != newest);
        if newest > 1 {
            let late = gate(&path).replace(newest - 1, b"late").unwrap_err();
            assert_eq!(late.code(), "stale");
        }
        // The same grant again: so that no more than one fence is ever ahead of its contents.
        next = newest.max(1);
    }
    println!("{between} were killed between the fence and the contents");
}

/// R34, G2: what a refusal advises, with a store that has lost its data while its clock is behind.
#[test]
fn the_next_grant_above_the_floor_passes() {
    let dir = tempfile::tempdir().unwrap();
    let gate = gate(&dir.path().join("r"));
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let ahead = u64::try_from((now + Duration::from_secs(3_600)).as_micros()).unwrap();
    gate.replace(ahead, b"before").unwrap();
    let site = Site::file();
    let warden = blocking::Warden::connect(site.url()).unwrap();
    let guard = warden.lock("x").acquire().unwrap();
    let Err(Error::Stale(Stale { newest, .. })) = gate.replace(guard.fence(), b"late") else {
        panic!("passed");
    };
    assert_eq!(newest, ahead);
    guard.release().unwrap();
    let guard = warden.lock("x").with(|it| it.fence_floor(newest)).acquire().unwrap();
    gate.replace(guard.fence(), b"after").unwrap();
    guard.release().unwrap();
}

#[test]
fn processes_with_shuffled_fences_end_with_the_highest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let rounds = size(50, 8);
    let task = |index| format!("{} shuffle {index} {rounds}", path.display());
    let mut writers: Vec<Process> = (0..WRITERS).map(|index| spawn(&task(index))).collect();
    for writer in &mut writers {
        let status = writer.wait_exit(Duration::from_secs(120)).unwrap();
        assert!(status.success());
    }
    let highest = rounds * WRITERS;
    assert_eq!(gate(&path).newest(), Ok(Some(highest)));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), contents(highest));
}
