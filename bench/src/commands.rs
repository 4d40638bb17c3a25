//! What goes over the wire: commands per cycle and per hand-off, and connections.

use crate::{
    baseline::{Contender, Ours},
    ground::{Ground, Outcome},
    report::{Report, Row},
    turn::Line,
    waiters::{self, HOLD, ONE_PROCESS},
};

const CYCLES: usize = 5_000;

pub(crate) fn run(ground: &Ground, report: &mut Report) -> Outcome<()> {
    let row = |figure: &str, value: f64| Row::new("commands", figure, value, "");
    let ours = |_: ()| ground.calls("evalsha");
    let theirs = |_: ()| ground.calls("evalsha") + ground.calls("set");
    // Ours first: the scripts of ours call SET, those of rslock do not.
    let before = theirs(());
    let turns = ground.block_on(waiters::rslock(ground, ONE_PROCESS))?;
    let rslock = (theirs(()) - before) / turns.turns.len() as f64;

    let connections = || ground.cmd(&["CLIENT", "LIST"]).text().map_or(0, |it| it.lines().count());
    let connections_before = connections();
    ground.block_on(async {
        let warden = ground.warden().await?;
        let contender = Ours(warden.clone());
        contender.cycle("commands").await?;
        let before = ours(());
        for _ in 0..CYCLES {
            contender.cycle("commands").await?;
        }
        // A few heartbeats, one a second, are among them.
        let each = (ours(()) - before) / CYCLES as f64;
        report.push(row("script calls per uncontended cycle", each).value_at_most(2.01));

        let before = ours(());
        let line = Line::form(&warden, "commands:line", ONE_PROCESS, HOLD).await?;
        let waiters = ONE_PROCESS as f64;
        let each = (ours(()) - before) / waiters;
        report.push(row("script calls per waiter that queues", each).value_at_most(1.05));
        let open = connections().saturating_sub(connections_before) as f64;
        report.push(row("connections of a process with 1,000 waiters", open).value_at_most(2.0));
        let before = ours(());
        line.run().await?;
        let each = (ours(()) - before) / waiters;
        // The first holder's release, rechecks of the two who are first, and heartbeats are among them.
        report.push(
            row("commands per hand-off, 1,000 waiters", each)
                .beside("rslock", rslock)
                .value_at_most(1.05),
        );
        warden.close().await;
        Ok(())
    })
}
