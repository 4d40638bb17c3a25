//! `lockwarden man`: the man pages, from the same definition as the parser.

use crate::{
    args::{Cli, ManArgs},
    failure::Failure,
    output,
};
use clap::CommandFactory;

/// Runs the command.
pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    let mut program = Cli::command();
    // Gives the commands' pages their whole names and the options of all.
    program.build();
    let page = match &args.command {
        None => program,
        Some(name) => {
            let command = program.find_subcommand(name);
            command.ok_or_else(|| Failure::NoSuchCommand(name.clone()))?.clone()
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).map_err(Failure::system("make the man page"))?;
    output::write(&text)
}
