//! `foretoken completions` and `foretoken man`: completion scripts and manual pages, made from the descriptions that
//! the command line is parsed by.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use foretoken_console::failure::Failure;

use crate::Cli;
use crate::arguments::{line::command_of, unknown_command};
use crate::help::{examples::examples, usage};

/// Options of `foretoken completions`.
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    /// Runs the command.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "foretoken", &mut script);
        print(&script)
    }
}

/// Options of `foretoken man`.
#[derive(Args, Debug)]
pub struct Man {
    /// The command, as in `foretoken man bench pass` [default: all of the program]
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

impl Man {
    /// Runs the command.
    ///
    /// # Errors
    /// There is no such command, or standard output cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        let mut program = Cli::command();
        program.build();
        let Some(command) = command_of(&program, &self.command) else {
            return Err(unknown_command(&self.command.join(" "), &program));
        };
        let examples = examples(&self.command).join("\n\n");
        let more = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
        let extra = [examples, more.unwrap_or_default()].join("\n\n").trim().to_string();
        let command_name = [&["foretoken".to_string()], self.command.as_slice()].concat();
        let usage = usage(command, &command_name.join(" ")).replace('-', "\\-");
        let all = command.clone().mut_args(|arg| arg.hide_short_help(false));
        let manual = clap_mangen::Man::new(all.after_long_help(extra).display_name(command_name.join("-")));
        let manual = manual.manual("foretoken").source(concat!("foretoken ", env!("CARGO_PKG_VERSION")));
        let mut page = Vec::new();
        manual.render_title(&mut page)?;
        manual.render_name_section(&mut page)?;
        // clap_mangen's own synopsis lists all options, of which a command may have a hundred.
        writeln!(page, ".SH SYNOPSIS\n{usage}")?;
        manual.render_description_section(&mut page)?;
        manual.render_options_section(&mut page)?;
        if command.has_subcommands() {
            manual.render_subcommands_section(&mut page)?;
        }
        manual.render_extra_section(&mut page)?;
        print(&page)
    }
}

fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}
