//! `lockwarden completions`: for each shell, from the same definition as the parser.

use crate::{
    args::{Cli, CompletionsArgs},
    failure::Failure,
    output,
};
use clap::CommandFactory;

/// Runs the command.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lockwarden", &mut text);
    output::write(&text)
}
