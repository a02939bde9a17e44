//! What `-h`, `--help` and `help` show: one screen of what most people need, or everything.
//!
//! The pages are made of clap's own descriptions, in groups whose order is the same for every command: what to work on
//! first, settings of single drafters last. clap's renderer knows no order of groups, puts each option on lines of its
//! own as soon as one has more to say, and has no names like `-md`; hence this one. Not on the one screen are options
//! with `hide_short_help` and the groups of experts; of those that are there it has the first paragraph.

pub mod examples;

use std::io::Write;

use clap::{Arg, ArgAction, Command};
use foretoken_console::failure::Failure;
use foretoken_console::loudness::coloured_output;

use crate::arguments::line::{LONG_SHORTS, command_of, options, takes_value};

/// Columns of a page.
const WIDTH: usize = 100;

/// Columns of names; longer ones stand on a line of their own.
const NAMES_WIDTH: usize = 27;

/// Groups that come first, in this order; those that are not named here follow as the command has them.
const FIRST: [&str; 4] = ["Commands", "Arguments", "Prompt", "Model"];

/// Groups that come last.
const LAST: [&str; 6] = ["Sampling", "Speculation", "General", "Draft models", "Texts for drafters", "Drafters"];

/// Those of them that only experts want.
const EXPERTS: [&str; 3] = ["Draft models", "Texts for drafters", "Drafters"];

/// Commands that are not on the one screen.
const RARE_COMMANDS: [&str; 4] = ["logits", "hidden", "completions", "man"];

/// Prints how the command of this path is used: `all` of it, or what most people need.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(program: &Command, path: &[String], all: bool) -> Result<(), Failure> {
    let text = page(program, path, all);
    let mut out = std::io::stdout();
    out.write_all(if coloured_output() { emphasized(&text) } else { text }.as_bytes())?;
    Ok(out.flush()?)
}

/// The page of a command, as text.
fn page(program: &Command, path: &[String], all: bool) -> String {
    let command = command_of(program, path).unwrap_or(program);
    let called = [&["foretoken".to_string()], path].concat().join(" ");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = format!("{about}\n\nUsage: {}\n", usage(command, &called));
    examples::examples(path).iter().for_each(|example| page += &format!("  {example}\n"));
    let (mut hidden, mut first) = (false, true);
    for (name, entries) in groups(program, command) {
        let in_short = |entry: &Entry| match name.as_str() {
            "General" => path.is_empty() && !entry.rare,
            group => !entry.rare && !EXPERTS.contains(&group),
        };
        let shown: Vec<&Entry> = entries.iter().filter(|entry| all || in_short(entry)).collect();
        hidden |= shown.len() < entries.len();
        if !shown.is_empty() {
            // The one screen has no room for empty lines but the first.
            let space = if all || first { "\n" } else { "" };
            first = false;
            page += &format!("{space}{name}:\n");
            shown.iter().for_each(|entry| page += &entry.lines(all));
        }
    }
    let behind = match all {
        true => command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string),
        false => hidden.then(|| format!("{called} --help shows all options and what they mean.")),
    };
    behind.iter().for_each(|text| page += &format!("\n{}", refitted(text.trim_end())));
    page
}

/// A text in the page's columns. Its paragraphs are filled anew, and so is what stands behind the names of a list.
fn refitted(text: &str) -> String {
    // Each block: how far its first line is indented, how far the others are, and its words.
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
                // A name, two blanks or more, and what it means.
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

/// Whether a line that is indented so far goes on with a block. One that is indented as a list's first line is its
/// next.
fn continues(first: usize, hang: usize, indent: usize) -> bool {
    match hang > first {
        true => indent == hang,
        false => indent == first && first == 0 || indent == first + 2 && first > 0,
    }
}

/// How the command is called.
pub fn usage(command: &Command, called: &str) -> String {
    // Some options all commands have.
    let mut parts = vec![called.to_string(), "[OPTIONS]".to_string()];
    parts.extend(command.get_opts().filter(|option| option.is_required_set()).map(|option| names(option, false)));
    for arg in command.get_positionals().filter(|arg| !arg.is_hide_set()) {
        let more = if matches!(arg.get_action(), ArgAction::Append) { ".." } else { "" };
        let value = value_of(arg);
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
    /// Not for the one screen.
    rare: bool,
    /// In a line, and in full.
    short: String,
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

/// What a command has, in groups.
fn groups(program: &Command, command: &Command) -> Vec<(String, Vec<Entry>)> {
    let mut groups: Vec<(String, Vec<Entry>)> = Vec::new();
    let mut add = |group: &str, entry| match groups.iter_mut().find(|(name, _)| name == group) {
        Some((_, entries)) => entries.push(entry),
        None => groups.push((group.to_string(), vec![entry])),
    };
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        let text = below.get_about().map(ToString::to_string).unwrap_or_default();
        let name = below.get_name().to_string();
        let rare = RARE_COMMANDS.contains(&name.as_str());
        add("Commands", Entry { name, rare, short: text.clone(), long: text });
    }
    for arg in command.get_positionals().chain(options(program, command)).filter(|arg| !arg.is_hide_set()) {
        add(group_of(arg), entry(arg));
    }
    let place = |name: &str| match (FIRST.iter().position(|first| *first == name), LAST.iter()) {
        (Some(place), _) => place,
        (None, mut last) => last.position(|last| *last == name).map_or(FIRST.len(), |place| FIRST.len() + 1 + place),
    };
    groups.sort_by_key(|(name, _)| place(name));
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
        // Paragraphs follow each other; the first of them has no full stop.
        let paragraphs = help.split("\n\n").map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
        let paragraphs: Vec<String> = paragraphs.map(|text| text.trim_end_matches('.').to_string()).collect();
        let help = paragraphs.join(". ");
        format!("{help}{}", notes(arg, &help, long))
    };
    Entry { name: names(arg, true), rare: arg.is_hide_short_help_set(), short: text(false), long: text(true) }
}

/// What stands behind the text of an argument: its values, its default, its other names.
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
        return value_of(arg);
    }
    let long = arg.get_long().map(|long| format!("--{long}"));
    let several = LONG_SHORTS.iter().find(|(_, stands_for)| long.as_deref() == Some(*stands_for));
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
        true if optional => format!("{names}[={}]", value_of(arg)),
        true => format!("{names} {}", value_of(arg)),
        false => names,
    }
}

fn value_of(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    if names.is_empty() { arg.get_id().as_str().to_uppercase() } else { names.join(" ") }
}

/// Lines of at most so many columns.
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

/// A page for a terminal: headings are bold, and names of options.
fn emphasized(page: &str) -> String {
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
