//! The help pages: `-h` has one screen with what most people need, `--help` everything.
//!
//! The pages are made from clap's descriptions, in groups whose order is the same for every command: the inputs first,
//! settings of single drafters last. clap's own renderer cannot order groups, puts every option on several lines as
//! soon as one has a long help, and does not know names like `-md`. The one screen leaves out options with
//! `hide_short_help` and the groups of experts, and has the first paragraph of the others.

pub mod examples;

use std::io::Write;

use clap::{Arg, ArgAction, Command};
use foretoken_console::failure::Failure;
use foretoken_console::verbosity::coloured_output;

use crate::arguments::line::{MULTI_LETTER_SHORTS, command_of, options, takes_value};

/// Columns of a page.
const WIDTH: usize = 100;

/// Columns of names; longer ones have a line of their own.
const NAMES_WIDTH: usize = 27;

/// Groups that come first, in this order; unnamed groups follow in the order of the command.
const FIRST_GROUPS: [&str; 4] = ["Commands", "Arguments", "Prompt", "Model"];

/// Groups that come last.
const LAST_GROUPS: [&str; 6] = ["Sampling", "Speculation", "General", "Draft models", "Texts for drafters", "Drafters"];

/// The last groups that only experts need.
const EXPERT_GROUPS: [&str; 3] = ["Draft models", "Texts for drafters", "Drafters"];

/// Commands that are not on the one screen.
const RARE_COMMANDS: [&str; 4] = ["logits", "hidden", "completions", "man"];

/// Prints the help of the command of this path: `all` of it, or one screen.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(program: &Command, path: &[String], all: bool) -> Result<(), Failure> {
    let text = page(program, path, all);
    let mut out = std::io::stdout();
    out.write_all(if coloured_output() { with_bold(&text) } else { text }.as_bytes())?;
    Ok(out.flush()?)
}

/// The page of a command, as text.
fn page(program: &Command, path: &[String], all: bool) -> String {
    let command = command_of(program, path).unwrap_or(program);
    let command_name = [&["foretoken".to_string()], path].concat().join(" ");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = format!("{about}\n\nUsage: {}\n", usage(command, &command_name));
    examples::examples(path).iter().for_each(|example| page += &format!("  {example}\n"));
    let (mut hidden, mut first) = (false, true);
    for (name, entries) in groups(program, command) {
        let in_short = |entry: &Entry| match name.as_str() {
            "General" => path.is_empty() && !entry.rare,
            group => !entry.rare && !EXPERT_GROUPS.contains(&group),
        };
        let shown: Vec<&Entry> = entries.iter().filter(|entry| all || in_short(entry)).collect();
        hidden |= shown.len() < entries.len();
        if !shown.is_empty() {
            // The one screen has only room for the first empty line.
            let space = if all || first { "\n" } else { "" };
            first = false;
            page += &format!("{space}{name}:\n");
            shown.iter().for_each(|entry| page += &entry.lines(all));
        }
    }
    let footer = match all {
        true => command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string),
        false => hidden.then(|| format!("{command_name} --help shows all options and what they mean.")),
    };
    footer.iter().for_each(|text| page += &format!("\n{}", rewrapped(text.trim_end())));
    page
}

/// Rewraps a text to the page's width: its paragraphs, and the descriptions in its lists of names.
fn rewrapped(text: &str) -> String {
    // Each block has the indents of its first line and of the others, and its words.
    let mut blocks: Vec<(usize, usize, String)> = Vec::new();
    for line in text.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        match blocks.last_mut() {
            Some((first, hang, block))
                if !words.is_empty() && !block.is_empty() && continues(*first, *hang, indent) =>
            {
                *block += &format!(" {words}");
            }
            _ => {
                // A name, two spaces or more, and its description.
                let name = words.find("  ").map(|end| end + words[end..].len() - words[end..].trim_start().len());
                blocks.push((indent, name.map_or(indent, |name| indent + name), words.to_string()));
            }
        }
    }
    let mut out = String::new();
    for (first, hang, words) in blocks {
        let (name, words) = words.split_at(hang.saturating_sub(first));
        let mut lines = wrapped(words, WIDTH - hang).into_iter();
        out += format!("{:first$}{name}{}", "", lines.next().unwrap_or_default()).trim_end();
        out.push('\n');
        lines.for_each(|line| out += &format!("{:hang$}{line}\n", ""));
    }
    out
}

/// Whether a line with this indent continues a block. In a list, a line with the indent of the first one begins the
/// next item.
fn continues(first: usize, hang: usize, indent: usize) -> bool {
    match hang > first {
        true => indent == hang,
        false => indent == first && first == 0 || indent == first + 2 && first > 0,
    }
}

/// The usage of a command.
pub fn usage(command: &Command, command_name: &str) -> String {
    // All commands have some options.
    let mut parts = vec![command_name.to_string(), "[OPTIONS]".to_string()];
    parts.extend(command.get_opts().filter(|option| option.is_required_set()).map(|option| names(option, false)));
    for arg in command.get_positionals().filter(|arg| !arg.is_hide_set()) {
        let more = if matches!(arg.get_action(), ArgAction::Append) { ".." } else { "" };
        let value = value_name(arg);
        parts.push(if arg.is_required_set() { format!("{value}{more}") } else { format!("[{value}{more}]") });
    }
    if command.has_subcommands() {
        parts.push("COMMAND".into());
    }
    parts.join(" ")
}

/// An argument or a command on a page.
struct Entry {
    name: String,
    /// Not on the one screen.
    rare: bool,
    /// The first paragraph.
    short: String,
    /// The full text.
    long: String,
}

impl Entry {
    fn lines(&self, all: bool) -> String {
        let text = if all { &self.long } else { &self.short };
        let mut lines = wrapped(text, WIDTH - NAMES_WIDTH).into_iter();
        let room = NAMES_WIDTH - 2;
        let mut out = match self.name.chars().count() < room {
            true => format!("  {:<room$}{}\n", self.name, lines.next().unwrap_or_default()),
            false => format!("  {}\n", self.name),
        };
        lines.for_each(|line| out += &format!("{:NAMES_WIDTH$}{line}\n", ""));
        out
    }
}

/// The subcommands and arguments of a command, in groups.
fn groups(program: &Command, command: &Command) -> Vec<(String, Vec<Entry>)> {
    let mut groups: Vec<(String, Vec<Entry>)> = Vec::new();
    let mut add = |group: &str, entry| match groups.iter_mut().find(|(name, _)| name == group) {
        Some((_, entries)) => entries.push(entry),
        None => groups.push((group.to_string(), vec![entry])),
    };
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        let text = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
        let name = subcommand.get_name().to_string();
        let rare = RARE_COMMANDS.contains(&name.as_str());
        add("Commands", Entry { name, rare, short: text.clone(), long: text });
    }
    for arg in command.get_positionals().chain(options(program, command)).filter(|arg| !arg.is_hide_set()) {
        add(group_of(arg), entry(arg));
    }
    let rank = |name: &str| match (FIRST_GROUPS.iter().position(|first| *first == name), LAST_GROUPS.iter()) {
        (Some(rank), _) => rank,
        (None, mut last) => {
            last.position(|last| *last == name).map_or(FIRST_GROUPS.len(), |rank| FIRST_GROUPS.len() + 1 + rank)
        }
    };
    groups.sort_by_key(|(name, _)| rank(name));
    groups
}

/// The group of an argument.
pub fn group_of(arg: &Arg) -> &str {
    arg.get_help_heading().unwrap_or(if arg.is_positional() { "Arguments" } else { "Options" })
}

fn entry(arg: &Arg) -> Entry {
    let text = |long: bool| {
        let help = arg.get_long_help().filter(|_| long).or(arg.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        // Paragraphs are joined; in clap's text the first has no full stop.
        let paragraphs = help.split("\n\n").map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
        let paragraphs: Vec<String> = paragraphs.map(|text| text.trim_end_matches('.').to_string()).collect();
        let help = paragraphs.join(". ");
        format!("{help}{}", notes(arg, &help, long))
    };
    Entry { name: names(arg, true), rare: arg.is_hide_short_help_set(), short: text(false), long: text(true) }
}

/// What follows the text of an argument: its values, its default, its aliases.
fn notes(arg: &Arg, help: &str, long: bool) -> String {
    let mut notes = String::new();
    let values: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_string()).collect();
    if takes_value(arg) && values.len() > 1 && !arg.is_hide_possible_values_set() {
        notes += &format!(": {}", values.join(", "));
    }
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_value(arg) && !default.is_empty() && !help.contains("[default") {
        notes += &format!(" [default: {}]", default.join(","));
    }
    if let (Some(others), true) = (arg.get_visible_aliases().filter(|others| !others.is_empty()), long) {
        notes += &format!(" (also --{})", others.join(", --"));
    }
    notes
}

/// The names of an argument and of its value.
fn names(arg: &Arg, indented: bool) -> String {
    if arg.is_positional() {
        return value_name(arg);
    }
    let long = arg.get_long().map(|long| format!("--{long}"));
    let several = MULTI_LETTER_SHORTS.iter().find(|(_, stands_for)| long.as_deref() == Some(*stands_for));
    let several = several.map(|(short, _)| (*short).to_string());
    let short = arg.get_short().map(|short| format!("-{short}")).or(several);
    let names = match (short, long, indented) {
        (Some(short), Some(long), true) => format!("{short}, {long}"),
        (None, Some(long), true) => format!("    {long}"),
        (Some(short), None, _) => short,
        (_, long, _) => long.unwrap_or_default(),
    };
    let optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    match takes_value(arg) {
        true if optional => format!("{names}[={}]", value_name(arg)),
        true => format!("{names} {}", value_name(arg)),
        false => names,
    }
}

fn value_name(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    if names.is_empty() { arg.get_id().as_str().to_uppercase() } else { names.join(" ") }
}

/// Wraps a text into lines of at most `width` columns.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => *line += &format!(" {word}"),
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

/// The page for a terminal: headings and names of options are bold.
fn with_bold(page: &str) -> String {
    let bold = |text: &str| format!("\x1b[1m{text}\x1b[0m");
    let line = |line: &str| -> String {
        let names = line.trim_start();
        let indent = line.len() - names.len();
        if indent == 0 && line.ends_with(':') && !line.contains(' ') || line == "Draft models:" {
            return bold(line);
        }
        match line.strip_prefix("Usage: ") {
            Some(rest) => format!("{} {rest}", bold("Usage:")),
            None if (2..=6).contains(&indent) && names.starts_with('-') => {
                let end = names.find("  ").unwrap_or(names.len());
                format!("{}{}{}", &line[..indent], bold(&names[..end]), &names[end..])
            }
            None => line.to_string(),
        }
    };
    page.lines().map(|text| line(text) + "\n").collect()
}
