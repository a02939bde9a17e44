//! How much is printed and in which colours: `--quiet`, `-v` and `--color`.
//!
//! Every command has these options, so they are global: set once when the command line has been parsed, and read
//! wherever something is printed.

use std::io::IsTerminal;
use std::sync::{PoisonError, RwLock};

use clap::{Args, ValueEnum};

/// Whether output has colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set or TERM is "dumb".
    #[default]
    Auto,
    /// Also in files and pipes.
    #[value(alias = "on")]
    Always,
    /// Never.
    #[value(alias = "off")]
    Never,
}

/// Options of every command.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "General")]
pub struct Verbosity {
    /// Say nothing on standard error but warnings and errors
    #[arg(short, long, global = true, overrides_with = "verbose")]
    pub quiet: bool,
    /// Say more on standard error
    #[arg(short, long, global = true, overrides_with = "quiet")]
    pub verbose: bool,
    /// Colours: auto, always or never
    ///
    /// auto has colours on a terminal, unless the variable NO_COLOR is set or TERM is "dumb".
    #[arg(
        long,
        alias = "colour",
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        global = true,
        hide_short_help = true
    )]
    pub color: Color,
}

static CHOSEN: RwLock<Verbosity> = RwLock::new(Verbosity { quiet: false, verbose: false, color: Color::Auto });

impl Verbosity {
    /// Sets the options for the whole program.
    pub fn choose(self) {
        *CHOSEN.write().unwrap_or_else(PoisonError::into_inner) = self;
    }

    /// The options of the program.
    fn chosen() -> Self {
        *CHOSEN.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether only warnings and errors are printed (`--quiet`): no notes, no statistics, no progress bars.
pub fn quiet() -> bool {
    Verbosity::chosen().quiet
}

/// Whether more than usual is printed (`-v`).
pub fn verbose() -> bool {
    Verbosity::chosen().verbose
}

/// Whether standard output has colours.
pub fn coloured_output() -> bool {
    coloured(Verbosity::chosen().color, std::io::stdout().is_terminal(), &|name| std::env::var(name).ok())
}

/// Whether standard error has colours.
pub fn coloured_errors() -> bool {
    coloured(Verbosity::chosen().color, std::io::stderr().is_terminal(), &|name| std::env::var(name).ok())
}

/// Whether a stream has colours, given the environment variables.
fn coloured(color: Color, terminal: bool, variable: &dyn Fn(&str) -> Option<String>) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
            terminal && !refused && variable("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_has_colours_on_terminals_that_support_them() {
        let none = |_: &str| None;
        let no_color = |name: &str| (name == "NO_COLOR").then(|| "1".to_string());
        let dumb = |name: &str| (name == "TERM").then(|| "dumb".to_string());
        let unset = |name: &str| (name == "NO_COLOR").then(String::new);
        assert!(coloured(Color::Auto, true, &none) && coloured(Color::Auto, true, &unset));
        assert!(!coloured(Color::Auto, false, &none));
        assert!(!coloured(Color::Auto, true, &no_color) && !coloured(Color::Auto, true, &dumb));
        assert!(coloured(Color::Always, false, &no_color) && coloured(Color::Always, true, &dumb));
        assert!(!coloured(Color::Never, true, &none));
    }
}
