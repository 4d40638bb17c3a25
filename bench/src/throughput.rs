//! Cycles of acquire and release without contention: 64 tasks on distinct names, and one task.

use crate::{
    baseline::{Contender, Ours, Plain, Rslock},
    ground::{Ground, Outcome},
    measure::{median, median_ratio, own_cpu_us},
    report::{Report, Row},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const MANY: usize = 64;
/// Rounds of all contenders, one after the other.
const ROUNDS: u32 = 8;

/// What one contender did in all rounds.
#[derive(Default)]
struct Series {
    rates: Vec<f64>,
    /// Client plus server, per cycle, in µs.
    cpu_us: Vec<f64>,
    server_cpu_us: Vec<f64>,
    /// Commands of ours in one call of the script.
    batches: Vec<f64>,
}

impl Series {
    async fn round(
        &mut self,
        ground: &Ground,
        contender: &impl Contender,
        tasks: usize,
        length: Duration,
    ) -> Outcome<()> {
        let calls = ground.calls("evalsha");
        let (client_us, server_us) = (own_cpu_us(), ground.server_cpu_us());
        let began = Instant::now();
        let cycles = cycles(contender, tasks, length).await? as f64;
        let seconds = began.elapsed().as_secs_f64();
        let server_us = ground.server_cpu_us() - server_us;
        self.rates.push(cycles / seconds);
        self.cpu_us.push((own_cpu_us() - client_us + server_us) / cycles);
        self.server_cpu_us.push(server_us / cycles);
        self.batches.push(2.0 * cycles / (ground.calls("evalsha") - calls));
        Ok(())
    }
}

pub(crate) fn run(ground: &Ground, report: &mut Report) -> Outcome<()> {
    ground.block_on(async {
        let ours = Ours(ground.warden().await?);
        let plain = Plain::connect(&ground.url()).await?;
        let rslock = Rslock::connect(&ground.url());
        for tasks in [MANY, 1] {
            let mut series: [Series; 3] = Default::default();
            // What the first round would pay: connections, scripts, memory.
            let warm_up = Duration::from_millis(100);
            cycles(&ours, tasks, warm_up).await?;
            cycles(&plain, tasks, warm_up).await?;
            cycles(&rslock, tasks, warm_up).await?;
            let length = ground.length / (2 * 3 * ROUNDS);
            for _ in 0..ROUNDS {
                series[0].round(ground, &ours, tasks, length).await?;
                series[1].round(ground, &plain, tasks, length).await?;
                series[2].round(ground, &rslock, tasks, length).await?;
            }
            describe(tasks, &series, report);
        }
        ours.0.close().await;
        Ok(())
    })
}

fn describe(tasks: usize, [ours, plain, rslock]: &[Series; 3], report: &mut Report) {
    let what = if tasks == 1 { "1 task".to_owned() } else { format!("{tasks} tasks") };
    let rate = |of: &Series, name: &'static str, beside: &Series| {
        Row::new("throughput", what.clone(), median(&of.rates), "cycles/s").beside_paired(
            name,
            median(&beside.rates),
            median_ratio(&of.rates, &beside.rates),
        )
    };
    if tasks == 1 {
        report.push(rate(ours, "plain", plain).ratio_at_least(0.9));
        return;
    }
    report.push(rate(ours, "plain", plain).ratio_at_least(0.8));
    report.push(rate(ours, "plain", plain).ratio_at_least(1.5).aim());
    report.push(rate(ours, "rslock", rslock).ratio_at_least(1.0));
    let cpu =
        |figure: &str, of: &[f64], name: &'static str, beside: &[f64]| {
            Row::new("throughput", format!("{what}: {figure}"), median(of), "µs/cycle")
                .beside_paired(name, median(beside), median_ratio(of, beside))
        };
    let both = "processor time, client and server";
    report.push(cpu(both, &ours.cpu_us, "rslock", &rslock.cpu_us).ratio_at_most(1.0));
    report.push(cpu(both, &ours.cpu_us, "plain", &plain.cpu_us));
    let server = "of which server";
    report.push(cpu(server, &ours.server_cpu_us, "rslock", &rslock.server_cpu_us));
    report.push(cpu(server, &ours.server_cpu_us, "plain", &plain.server_cpu_us));
    let figure = format!("{what}: commands in one call");
    report.push(Row::new("throughput", figure, median(&ours.batches), ""));
    // If plain is not the fastest, the baseline is at fault and the other rows say nothing.
    let figure = format!("{what}: the baseline itself, plain");
    report.push(
        Row::new("throughput", figure, median(&plain.rates), "cycles/s")
            .beside_paired(
                "rslock",
                median(&rslock.rates),
                median_ratio(&plain.rates, &rslock.rates),
            )
            .ratio_at_least(1.0),
    );
}

/// How many cycles all tasks together did.
pub(crate) async fn cycles<C: Contender>(
    contender: &C,
    tasks: usize,
    length: Duration,
) -> Outcome<u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let running: Vec<_> = (0..tasks)
        .map(|number| {
            let (contender, stop) = (contender.clone(), stop.clone());
            let name = format!("{}:{number}", C::NAME);
            tokio::spawn(async move {
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    contender.cycle(&name).await?;
                    done += 1;
                }
                Outcome::Ok(done)
            })
        })
        .collect();
    tokio::time::sleep(length).await;
    stop.store(true, Ordering::Relaxed);
    let mut all = 0;
    for task in running {
        all += task.await??;
    }
    Ok(all)
}
