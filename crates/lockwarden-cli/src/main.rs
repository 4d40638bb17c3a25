//! The command `lockwarden`: run a command while holding a lock, look at locks, repair them, load a store.
//!
//! Parsing never acts: [`args`] turns the command line into values, [`settings`] chooses the store,
//! and each command has a file of its own. Data goes to stdout, words go to stderr.

mod args;
mod completions;
mod duration;
mod exit;
mod failure;
mod glob;
mod graph;
mod listing;
mod ls;
mod man;
mod output;
mod recall;
mod revoke;
mod run;
mod settings;
mod show;
mod stress;
mod wait;
mod wire;

use args::{Cli, Command};
use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};
use exit::Code;
use failure::Failure;
use std::future::Future;

fn main() -> ! {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            say_where_the_command_stands(&mut error);
            // Help and version are answers, and go to stdout; all else is a usage error.
            let code = if error.use_stderr() { Code::Usage } else { Code::Ok };
            let _ = error.print();
            code.exit()
        }
    };
    log_if_asked();
    match dispatch(cli) {
        Ok(code) => std::process::exit(code),
        Err(failure) => {
            output::say(&failure);
            failure.code().exit()
        }
    }
}

fn dispatch(cli: Cli) -> Result<i32, Failure> {
    let store = cli.store;
    let done = |()| Code::Ok.number();
    match cli.command {
        // First, and apart: it forks, so nothing may have started a thread before it.
        Command::Run(args) => run::run(store.as_deref(), args),
        Command::Ls(args) => block_on(ls::ls(store.as_deref(), args)).map(done),
        Command::Show(args) => block_on(show::show(store.as_deref(), args)).map(done),
        Command::Graph(args) => block_on(graph::graph(store.as_deref(), args)).map(done),
        Command::Revoke(args) => block_on(revoke::revoke(store.as_deref(), args)).map(done),
        Command::Recall(args) => block_on(recall::recall(store.as_deref(), args)).map(done),
        Command::Wait(args) => block_on(wait::wait(store.as_deref(), args)).map(done),
        Command::Stress(args) => stress::stress(store.as_deref(), args),
        Command::Completions(args) => completions::completions(&args).map(done),
        Command::Man(args) => man::man(&args).map(done),
    }
}

/// `run x y touch z`: all of these are names, as far as anyone can know.
fn say_where_the_command_stands(error: &mut clap::Error) {
    let missing = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    if error.kind() == ErrorKind::MissingRequiredArgument && missing.contains("<COMMAND>") {
        let tip = "the command stands behind --, as in: lockwarden run NAME -- COMMAND";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    failure::runtime()?.block_on(work)
}

/// Diagnostics of the library on stderr, where `LOCKWARDEN_LOG` asks for them (`debug`, say).
fn log_if_asked() {
    let Ok(filter) = std::env::var("LOCKWARDEN_LOG") else { return };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(std::io::stderr);
    // Refused only where one is set already, and nobody else sets one.
    let _ = subscriber.try_init();
}
