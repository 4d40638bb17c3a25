//! The run of one style, from the start of its processes to what they have left behind.

use super::{
    StressError,
    book::Book,
    clock::now_us,
    dice::Dice,
    interrupt::Interrupts,
    observer::Observer,
    pipe::{Instruction, Setup},
    plan::Plan,
    processes::{Heard, Processes},
    progress::Progress,
    server::OwnServer,
    server_counts::{Counted, Watch},
    styles::Style,
};
use crate::failure::Failure;
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::Instant;

/// How often the progress is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// When processes are killed and the server is restarted: these parts of the best possible time.
const KILL_AT: f64 = 1.0 / 3.0;
const RESTART_AT: f64 = 1.0 / 2.0;

/// What came of a style.
pub(super) struct Outcome {
    pub(super) style: Style,
    pub(super) book: Book,
    pub(super) counted: Counted,
    pub(super) began_us: u64,
    pub(super) best: Duration,
    pub(super) killed: u32,
    /// Processes that ended, and nobody had killed them.
    pub(super) vanished: u32,
    pub(super) restarts: u32,
    pub(super) keys_left: usize,
}

/// How a style's run ended.
pub(super) enum End {
    Done(Box<Outcome>),
    /// A signal ended it; so many keys were removed.
    Interrupted {
        signal: Signal,
        removed: usize,
    },
}

/// One style's run.
pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    pub(super) style: Style,
    pub(super) url: &'a str,
    pub(super) observer: &'a Observer,
    pub(super) server: Option<&'a mut OwnServer>,
    pub(super) interrupts: &'a mut Interrupts,
}

/// What is done to the processes and the server on the way.
struct Chaos {
    victims: Vec<u32>,
    kill_at: Instant,
    restart: bool,
    restart_at: Instant,
}

impl Run<'_> {
    /// Runs it, and leaves nothing in the store.
    pub(super) async fn finish(mut self) -> Result<End, Failure> {
        let prefix = &self.plan.orders.prefix;
        let carried_out = self.carry_out().await;
        let left = match self.observer.left(prefix).await {
            Ok(left) => left,
            // What it failed at first says more.
            Err(failure) => return Err(carried_out.err().unwrap_or(failure)),
        };
        self.observer.remove(prefix).await?;
        Ok(match carried_out? {
            Ok(outcome) => End::Done(Box::new(Outcome { keys_left: left, ..outcome })),
            Err(signal) => End::Interrupted { signal, removed: left },
        })
    }

    /// Carries all orders out, or as many as there are until a signal comes.
    async fn carry_out(&mut self) -> Result<Result<Outcome, Signal>, Failure> {
        let progress = Progress::new(self.style, self.plan.orders.count);
        let (watch, mut processes) = {
            let starting = start(self.plan, self.style, self.url, self.observer);
            tokio::select! {
                started = starting => started?,
                signal = self.interrupts.next() => return Ok(Err(signal)),
            }
        };
        let mut book = Book::new(&self.plan.orders);
        let began_us = now_us();
        let mut chaos = Chaos::new(self.plan);
        let (mut killed, mut vanished, mut restarts) = (Vec::new(), 0, 0);
        let all: Vec<u32> = (0..self.plan.orders.count).collect();
        processes.deal(&all).await;
        let mut draw = tokio::time::interval(DRAW_EVERY);
        let signal = loop {
            tokio::select! {
                signal = self.interrupts.next() => break Some(signal),
                heard = processes.next() => {
                    let mut next = heard;
                    while let Some((process, heard)) = next {
                        if matches!(heard, Heard::Gone) && !killed.contains(&process) {
                            vanished += 1;
                        }
                        hear(&mut book, &mut processes, process, heard).await?;
                        next = processes.try_next();
                    }
                }
                _ = draw.tick() => {
                    progress.draw(&book, watch.as_ref().map(Watch::connections));
                }
                () = tokio::time::sleep_until(chaos.kill_at), if !chaos.victims.is_empty() => {
                    for victim in std::mem::take(&mut chaos.victims) {
                        processes.kill(victim);
                        killed.push(victim);
                    }
                }
                () = tokio::time::sleep_until(chaos.restart_at), if chaos.restart => {
                    chaos.restart = false;
                    if let Some(server) = &mut self.server {
                        if let Some(watch) = &watch {
                            watch.look().await;
                        }
                        server.restart().await?;
                        restarts += 1;
                    }
                }
            }
            if book.left() == 0 {
                break None;
            }
        };
        progress.end();
        let instruction = if signal.is_some() { Instruction::Stop } else { Instruction::End };
        for (process, event) in processes.end(instruction).await {
            book.note(process, event);
        }
        let counted = match watch {
            Some(watch) => watch.end().await,
            None => Counted::default(),
        };
        if let Some(signal) = signal {
            return Ok(Err(signal));
        }
        Ok(Ok(Outcome {
            style: self.style,
            book,
            counted,
            began_us,
            best: self.plan.orders.best(self.plan.work),
            // There are 256 processes at most.
            killed: killed.len() as u32,
            vanished,
            restarts,
            keys_left: 0,
        }))
    }
}

impl Chaos {
    fn new(plan: &Plan) -> Chaos {
        let mut victims: Vec<u32> = (0..plan.processes).collect();
        // No order has this number.
        Dice::new(plan.orders.seed, u64::MAX).shuffle(&mut victims);
        victims.truncate(plan.victims as usize);
        let (now, best) = (Instant::now(), plan.orders.best(plan.work));
        Chaos {
            victims,
            kill_at: now + best.mul_f64(KILL_AT),
            restart: plan.restart,
            restart_at: now + best.mul_f64(RESTART_AT),
        }
    }
}

/// Waits until the store grants locks, begins to count, and starts the processes.
async fn start(
    plan: &Plan,
    style: Style,
    url: &str,
    observer: &Observer,
) -> Result<(Option<Watch>, Processes), Failure> {
    if style.is_ours() {
        observer.await_grants(&plan.orders.prefix).await?;
    }
    let watch = observer.watch().await?;
    // Both are an hour at most.
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let setup = Setup {
        url: url.to_owned(),
        style,
        orders: plan.orders.clone(),
        work_us: us(plan.work),
        wait_us: us(plan.wait),
        process: 0,
        processes: plan.processes,
    };
    Ok((watch, Processes::start(&setup).await?))
}

/// Takes down what a process says; whatever one leaves undone that is gone is dealt to the others.
async fn hear(
    book: &mut Book,
    processes: &mut Processes,
    process: u32,
    heard: Heard,
) -> Result<(), Failure> {
    match heard {
        Heard::Said(event) => book.note(process, event),
        Heard::Gone => {
            let orphans = book.orphans(&processes.bury(process), now_us());
            if !orphans.is_empty() && !processes.deal(&orphans).await {
                return Err(StressError::NobodyLeft { left: book.left() }.into());
            }
        }
    }
    Ok(())
}
