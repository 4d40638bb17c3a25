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
    let mut page = &program;
    for name in &args.command {
        let command = page.find_subcommand(name);
        page = command.ok_or_else(|| Failure::NoSuchCommand(args.command.join(" ")))?;
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(page.clone())
        .render(&mut text)
        .map_err(Failure::system("make the man page"))?;
    output::write(&text)
}
