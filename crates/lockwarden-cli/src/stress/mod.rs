//! `lockwarden stress`: a store under load, in several styles side by side.
//!
//! The command checks everything first ([`plan`]) and then runs one style after the other ([`run`]). Orders run in
//! processes of their own ([`worker`]), which tell by lines of JSON what becomes of them ([`pipe`]); the run keeps the
//! account ([`book`]), looks at the server from outside ([`observer`]), and makes figures of it all. Nothing here decides
//! anything about locks.

mod book;
mod clock;
mod cycles;
mod dice;
mod error;
mod exclusion;
mod figures;
mod interrupt;
mod ledger;
mod observer;
mod order;
mod pipe;
mod plan;
mod plots;
mod processes;
mod progress;
mod redis_client;
mod report;
mod run;
mod scenario;
mod server;
mod server_counts;
mod server_link;
mod styles;
mod table;
mod worker;

pub(crate) use error::StressError;
pub(crate) use scenario::{Locks, Sequence};
pub(crate) use styles::Style;

use crate::{
    args::{OrdersArgs, Scenario, StressArgs},
    exit::{self, Code},
    failure::{self, Failure},
    output,
    wire::{LeftOutJson, StressJson},
};
use interrupt::Interrupts;
use observer::Observer;
use plan::{Place, Plan};
use report::Report;
use run::{End, Outcome, Run};
use server::OwnServer;
use std::{ffi::OsStr, time::Duration};

/// Runs the command.
pub(crate) fn stress(store: Option<&OsStr>, args: StressArgs) -> Result<i32, Failure> {
    match args.scenario {
        Scenario::Orders(args) => failure::runtime()?.block_on(orders(store, args)),
        Scenario::Worker => worker::work().map(|()| Code::Ok.number()),
    }
}

async fn orders(store: Option<&OsStr>, args: OrdersArgs) -> Result<i32, Failure> {
    let plan = Plan::new(store, &args)?;
    // Before the run: nobody wants to hear after minutes that it cannot be written.
    let report = args.report.as_deref().map(Report::open).transpose()?;
    let mut interrupts = Interrupts::new()?;
    let mut server = None;
    let url = match &plan.place {
        Place::Store { url, .. } => url.clone(),
        Place::OwnServer { program } => server.insert(OwnServer::start(program).await?).url(),
    };
    let observer = Observer::new(&url).await?;
    if server.is_some() {
        output::say(format_args!("runs on a Redis server of its own, {}", observer.place));
    }
    for style in &plan.left_out {
        output::say(format_args!("{} is left out: {NEEDS_REDIS}", style.name()));
    }
    let mut outcomes = Vec::new();
    for &style in &plan.styles {
        let run = Run {
            plan: &plan,
            style,
            url: &url,
            observer: &observer,
            server: server.as_mut(),
            interrupts: &mut interrupts,
        };
        match run.finish().await? {
            End::Done(outcome) => outcomes.push(*outcome),
            End::Interrupted { signal, removed } => {
                output::say(format_args!("interrupted; removed what was left: {removed} keys"));
                return Ok(exit::by_signal(signal.as_raw()));
            }
        }
    }
    let json = json(&plan, observer.place.clone(), &outcomes);
    say_what_is_odd(&plan, &outcomes);
    if args.json {
        output::write_json(&json)?;
    } else {
        let words = plan.words();
        output::write(format!("{words}\n\n{}", table::text(&json.results)).as_bytes())?;
    }
    if let Some(report) = report {
        report.write(&report::page(&plan.words(), &json, &outcomes)?)?;
    }
    for outcome in outcomes.iter().filter(|it| it.style.is_ours()) {
        let violations = outcome.book.exclusion.violations();
        if let Some(first) = violations.first() {
            let (style, count, first) = (outcome.style, violations.len(), first.clone());
            return Err(StressError::Violated { style, count, first }.into());
        }
    }
    Ok(Code::Ok.number())
}

const NEEDS_REDIS: &str = "it needs Redis, and this store is embedded";

fn json(plan: &Plan, store: String, outcomes: &[Outcome]) -> StressJson {
    let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
    let left_out = |style: &Style| LeftOutJson { style: style.name(), reason: NEEDS_REDIS };
    StressJson {
        store,
        scenario: "orders",
        locks: plan.orders.locks.number(),
        order: plan.orders.sequence,
        work_ms: ms(plan.work),
        wait_ms: ms(plan.wait),
        seed: plan.orders.seed,
        results: outcomes.iter().map(|outcome| figures::of(plan, outcome)).collect(),
        left_out: plan.left_out.iter().map(left_out).collect(),
    }
}

/// What was to happen and did not, and what the store refused.
fn say_what_is_odd(plan: &Plan, outcomes: &[Outcome]) {
    for Outcome { style, book, killed, vanished, restarts, .. } in outcomes {
        let style = style.name();
        if *vanished > 0 {
            output::say(format_args!("{style}: processes that ended by themselves: {vanished}"));
        }
        if *killed < plan.victims {
            output::say(format_args!(
                "{style}: over before a process was killed; give more --work"
            ));
        }
        if plan.restart && *restarts == 0 {
            output::say(format_args!("{style}: over before Redis was restarted; give more --work"));
        }
        for words in &book.refusals {
            output::say(format_args!("{style}: {}", output::escaped(words)));
        }
    }
}
