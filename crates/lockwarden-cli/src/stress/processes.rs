//! The processes of a run: started, dealt orders, heard, killed, ended.

use super::{
    StressError,
    pipe::{Event, Instruction, Setup},
};
use crate::failure::Failure;
use std::{
    collections::VecDeque,
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
};

/// How long they may take to release everything at the end.
const FAREWELL: Duration = Duration::from_secs(10);

/// All processes of a run.
pub(super) struct Processes {
    each: Vec<Process>,
    heard: mpsc::UnboundedReceiver<(u32, Heard)>,
    /// Heard while something else was waited for.
    kept: VecDeque<(u32, Heard)>,
}

struct Process {
    child: Child,
    /// None: it has ended, or will.
    input: Option<ChildStdin>,
    dealt: Vec<u32>,
}

/// What is heard of a process.
#[derive(Debug)]
pub(super) enum Heard {
    Said(Event),
    /// It has ended, and all that it said has been heard.
    Gone,
}

impl Processes {
    /// Starts so many, and waits until all are connected.
    pub(super) async fn start(setup: &Setup) -> Result<Processes, Failure> {
        let (say, heard) = mpsc::unbounded_channel();
        let mut processes = Processes { each: Vec::new(), heard, kept: VecDeque::new() };
        for process in 0..setup.processes {
            let mut child = spawn().map_err(Failure::system("start a process of the run"))?;
            let input = child.stdin.take();
            if let Some(output) = child.stdout.take() {
                let say = say.clone();
                let mut lines = BufReader::new(output).lines();
                tokio::spawn(async move {
                    while let Ok(Some(line)) = lines.next_line().await {
                        // Killed in the middle of a line: that is the end.
                        let Ok(event) = serde_json::from_str(&line) else { break };
                        let _ = say.send((process, Heard::Said(event)));
                    }
                    let _ = say.send((process, Heard::Gone));
                });
            }
            processes.each.push(Process { child, input, dealt: Vec::new() });
            let setup = Box::new(Setup { process, ..setup.clone() });
            processes.tell(process, &Instruction::Begin(setup)).await;
        }
        for _ in 0..setup.processes {
            match processes.next().await {
                Some((_, Heard::Said(_))) => {}
                Some((process, Heard::Gone)) => {
                    let status = processes.each[process as usize].child.wait().await;
                    let status = status.map_err(Failure::system("wait for a process"))?;
                    return Err(StressError::WorkerNotReady { status }.into());
                }
                None => break,
            }
        }
        Ok(processes)
    }

    /// Deals these orders out, round robin, to those that live. Are there any?
    pub(super) async fn deal(&mut self, orders: &[u32]) -> bool {
        let living: Vec<u32> = self.living();
        if living.is_empty() {
            return false;
        }
        let mut hands = vec![Vec::new(); living.len()];
        for (turn, order) in orders.iter().enumerate() {
            hands[turn % living.len()].push(*order);
        }
        for (process, hand) in living.into_iter().zip(hands) {
            self.each[process as usize].dealt.extend(&hand);
            self.tell(process, &Instruction::CarryOut(hand)).await;
        }
        true
    }

    /// What is heard next of any of them; none: nobody is left.
    pub(super) async fn next(&mut self) -> Option<(u32, Heard)> {
        match self.kept.pop_front() {
            Some(heard) => Some(heard),
            None => self.heard.recv().await,
        }
    }

    /// What was heard of any of them already.
    pub(super) fn try_next(&mut self) -> Option<(u32, Heard)> {
        self.kept.pop_front().or_else(|| self.heard.try_recv().ok())
    }

    /// Kills one (SIGKILL).
    pub(super) fn kill(&mut self, process: u32) {
        let process = &mut self.each[process as usize];
        process.input = None;
        // It may have ended by itself.
        let _ = process.child.start_kill();
    }

    /// Of a process that has ended: what it was dealt.
    pub(super) fn bury(&mut self, process: u32) -> Vec<u32> {
        let process = &mut self.each[process as usize];
        process.input = None;
        std::mem::take(&mut process.dealt)
    }

    /// Those that live, as far as known.
    pub(super) fn living(&self) -> Vec<u32> {
        let all = 0_u32..;
        all.zip(&self.each).filter(|(_, it)| it.input.is_some()).map(|(index, _)| index).collect()
    }

    /// Has all of them end: after their orders, or at once.
    pub(super) async fn end(mut self, instruction: Instruction) -> Vec<(u32, Event)> {
        for process in self.living() {
            self.tell(process, &instruction).await;
            self.each[process as usize].input = None;
        }
        let mut said = Vec::new();
        let farewell = async {
            while let Some((process, heard)) = self.next().await {
                if let Heard::Said(event) = heard {
                    said.push((process, event));
                }
            }
        };
        // Who does not end by itself is killed when it is dropped.
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
        for process in &mut self.each {
            let _ = process.child.start_kill();
            let _: io::Result<ExitStatus> = process.child.wait().await;
        }
        said
    }

    async fn tell(&mut self, process: u32, instruction: &Instruction) {
        let Ok(mut line) = serde_json::to_vec(instruction) else { return };
        line.push(b'\n');
        let process = &mut self.each[process as usize];
        // One that has ended hears nothing; that it has is heard soon.
        if let Some(input) = &mut process.input
            && input.write_all(&line).await.is_err()
        {
            process.input = None;
        }
    }
}

fn spawn() -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["stress", "worker"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // ^C is for the run, which tells them to stop.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}
