//! A command line as its words are understood, before clap parses it: which command it is of, which options it gives.
//!
//! clap can be asked only once, and then refuses. Four things need to be known earlier: where defaults from elsewhere
//! are to be put, whether help or the version is asked for (both are given whatever else is wrong), which words are
//! options that other programs have, and whether the first word is a model. So words are told apart here by the same
//! rules as clap's, going by its own description of the options. Options are written out on the way: those of several
//! letters, those with underlines for dashes, and those of other programs that are the same as ours; `--no-NAME` takes
//! a flag back that was given before, or in the file of defaults. Other options of other programs are taken out with
//! their values, be they passed over or refused. Left out: what our own values mean, and every complaint.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, Command};

use super::foreign::{self, Foreign, Meaning};

/// Short options of more than one letter, with the long ones that they stand for.
pub const LONG_SHORTS: [(&str, &str); 19] = [
    ("-md", "--model-draft"),
    ("-np", "--parallel"),
    ("-to", "--timeout"),
    ("-sys", "--system"),
    ("-npp", "--prompt-tokens"),
    ("-ntg", "--n-predict"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ctkd", "--cache-type-k-draft"),
    ("-ctvd", "--cache-type-v-draft"),
    ("-lcs", "--lookup-cache-static"),
    ("-lcd", "--lookup-cache-dynamic"),
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hfd", "--hf-repo-draft"),
    ("-hfrd", "--hf-repo-draft"),
    ("-st", "--single-turn"),
    ("-co", "--color"),
];

/// An option as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Its name in clap: underlines for dashes.
    pub id: String,
    /// Which word names it; of a flag that was taken back, the next one.
    pub at: usize,
    /// Its value, if it has one and the line does; of a flag that was taken back, "false".
    pub value: Option<String>,
}

/// A word that looks like an option and is none of this command's.
#[derive(Clone, Debug)]
pub struct Unknown {
    /// As it was written, without a value behind an equals sign.
    pub name: String,
    /// Which word it is, or before which one it stood.
    pub at: usize,
    /// What it is if another program has it and the command is known.
    foreign: Option<Foreign>,
    /// Its values, if another program has it.
    pub values: Vec<String>,
    /// What was expected, of an option of another program that is refused.
    pub hint: Option<String>,
}

/// An option that is passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// With its values.
    pub option: String,
    /// Why.
    pub reason: String,
}

/// A command line, understood as far as it can be.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The words, with options of several letters written out.
    pub words: Vec<OsString>,
    /// The command's name, of `bench pass` both.
    pub path: Vec<String>,
    /// Where the words of the command begin: behind its name.
    pub own: usize,
    /// The options that are given, in their order.
    pub given: Vec<Given>,
    /// Options that the command does not have.
    pub unknown: Vec<Unknown>,
    /// Options of other programs, and values, that need not be seen.
    pub passed_over: Vec<PassedOver>,
    /// Which words are neither options nor values of them.
    pub positionals: Vec<usize>,
    /// The command that an option of another program names.
    pub names_command: Option<&'static str>,
    /// Of a line that `foretoken config` asks about: whether it wants JSON.
    pub as_json: bool,
}

impl Line {
    /// Tells the words apart. The first is the program.
    pub fn read(words: Vec<OsString>, program: &Command) -> Self {
        let reader = Reader { program, command: program, awaiting: Awaiting::Nothing, only_positionals: false };
        let mut line = Self { own: words.len().min(1), ..Self::default() };
        let has_backslash = words.iter().any(|word| word.to_string_lossy().contains('\\'));
        reader.read(words, &mut line);
        line.judge(has_backslash);
        line
    }

    /// Tells what is passed over of other programs' options from what is refused.
    fn judge(&mut self, has_backslash: bool) {
        let command = self.path.join(" ");
        for mut unknown in std::mem::take(&mut self.unknown) {
            if let Some(Meaning::Of(command)) = unknown.foreign.map(|foreign| foreign.meaning) {
                self.names_command = Some(command);
            }
            match unknown.foreign.map(|foreign| foreign.judge(&unknown.values, &command, has_backslash)) {
                Some(Ok(reason)) if self.has_command() => {
                    let option = [&[unknown.name][..], &unknown.values].concat().join(" ");
                    self.passed_over.push(PassedOver { option, reason });
                    continue;
                }
                judged => unknown.hint = judged.and_then(Result::err),
            }
            self.unknown.push(unknown);
        }
    }

    /// Whether the words are a command's own, and no others are to be told apart by them.
    fn has_command(&self) -> bool {
        self.path.first().is_some_and(|name| name != "config")
    }

    /// What is to be said of what was passed over, in one line.
    pub fn note(&self) -> Option<String> {
        let told = self.passed_over.iter().map(|PassedOver { option, reason }| (option.clone(), reason.clone()));
        let told: Vec<String> =
            by_reason(told).into_iter().map(|(options, why)| format!("{} ({why})", options.join(", "))).collect();
        let changes = if self.passed_over.len() == 1 { "it changes" } else { "they change" };
        (!told.is_empty()).then(|| format!("note: passed over, since {changes} no text here: {}", told.join(", ")))
    }

    /// Whether the option is given, by its name in clap.
    pub fn gives(&self, id: &str) -> bool {
        self.given.iter().any(|given| given.id == id)
    }

    /// The last value that an option is given.
    pub fn value(&self, id: &str) -> Option<&str> {
        self.given.iter().rev().find(|given| given.id == id)?.value.as_deref()
    }

    /// Takes a flag back: no word before this one gives it, and no default does.
    fn take_back(&mut self, flag: &Arg) {
        let (long, short) = (flag.get_long().unwrap_or_default(), flag.get_short());
        let names = [Some(format!("--{long}")), short.map(|letter| format!("-{letter}"))];
        let id = flag.get_id().as_str();
        let given = self.given.iter().filter(|given| given.id == id).map(|given| given.at);
        let own =
            |at: &usize| names.iter().flatten().any(|name| self.words.get(*at).is_some_and(|word| *word == **name));
        let mut words: Vec<usize> = given.filter(own).collect();
        words.dedup();
        self.given.retain(|given| given.id != id);
        for at in words.into_iter().rev() {
            self.words.remove(at);
            let later = self.given.iter_mut().map(|given| &mut given.at);
            let later = later.chain(self.unknown.iter_mut().map(|unknown| &mut unknown.at));
            let later = later.chain(&mut self.positionals).chain([&mut self.own]);
            later.filter(|index| **index > at).for_each(|index| *index -= 1);
        }
        self.given.push(Given { id: id.to_string(), at: self.words.len(), value: Some("false".to_string()) });
    }

    /// The command's description.
    pub fn command<'a>(&self, program: &'a Command) -> &'a Command {
        command_of(program, &self.path).unwrap_or(program)
    }
}

/// The command of this path.
pub fn command_of<'a, S: AsRef<str>>(program: &'a Command, path: &[S]) -> Option<&'a Command> {
    path.iter().try_fold(program, |command, name| command.find_subcommand(name.as_ref()))
}

/// The options of a command: its own and those of all commands.
pub fn options<'a>(program: &'a Command, command: &'a Command) -> impl Iterator<Item = &'a Arg> {
    let of_all = program.get_arguments().filter(|arg| arg.is_global_set());
    let own = command.get_arguments().filter(|arg| !arg.is_positional());
    own.chain(of_all.filter(move |_| !std::ptr::eq(program, command)))
}

/// Whether an option's name is followed by a value.
pub fn takes_value(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Whether an option has this long name, without dashes.
pub fn is_named(option: &Arg, name: &str) -> bool {
    option.get_long() == Some(name) || option.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
}

/// Names with the same reason beside each other, in the order in which reasons come, each name once.
pub fn by_reason(told: impl IntoIterator<Item = (String, String)>) -> Vec<(Vec<String>, String)> {
    let mut all: Vec<(Vec<String>, String)> = Vec::new();
    for (name, reason) in told {
        match all.iter_mut().find(|(_, other)| *other == reason) {
            Some((names, _)) if names.contains(&name) => {}
            Some((names, _)) => names.push(name),
            None => all.push((vec![name], reason)),
        }
    }
    all
}

/// Whose value the next word may be.
enum Awaiting<'a> {
    Nothing,
    /// An option of ours.
    Own(&'a Arg),
    /// The last unknown option, which another program has.
    Foreign(Foreign),
}

/// Reads one word after another.
struct Reader<'a> {
    program: &'a Command,
    command: &'a Command,
    awaiting: Awaiting<'a>,
    only_positionals: bool,
}

impl<'a> Reader<'a> {
    fn read(mut self, words: Vec<OsString>, line: &mut Line) {
        for word in words {
            let word = if line.words.is_empty() { Some(word) } else { self.word(word, line) };
            line.words.extend(word);
        }
        if let Awaiting::Own(option) = self.awaiting {
            self.end_without_value(option, line);
        }
    }

    /// Reads a word that is not the program's name. Returns it as clap is to see it, if it is to see it.
    fn word(&mut self, word: OsString, line: &mut Line) -> Option<OsString> {
        match std::mem::replace(&mut self.awaiting, Awaiting::Nothing) {
            Awaiting::Own(option) if can_be_value(option, &word) => {
                if let Some(given) = line.given.last_mut() {
                    given.value = Some(word.to_string_lossy().into_owned());
                }
                // The option's name goes with it.
                let is_default = passes_over_default(line);
                return if is_default { line.words.pop().and(None) } else { Some(word) };
            }
            Awaiting::Own(option) => self.end_without_value(option, line),
            Awaiting::Foreign(foreign) => {
                if let Some(unknown) = line.unknown.last_mut()
                    && foreign.takes(&word.to_string_lossy(), unknown.values.len())
                {
                    unknown.values.push(word.to_string_lossy().into_owned());
                    self.awaiting = Awaiting::Foreign(foreign);
                    return None;
                }
            }
            Awaiting::Nothing => {}
        }
        let text = word.to_string_lossy().into_owned();
        if !self.only_positionals && text == "--" {
            self.only_positionals = true;
        } else if self.only_positionals || text == "-" || !text.starts_with('-') || self.is_negative_number(&text) {
            self.positional(&text, line);
        } else if text.starts_with("--") {
            return self.long(&text, line).map_or(Some(word), |other| other.map(OsString::from));
        } else if let Some(long) = written_out(&text) {
            return self.long(&long, line).unwrap_or(Some(long)).map(OsString::from);
        } else if foreign::is_short(&text) {
            return self.unknown(name_of(&text), &text, line).then_some(word);
        } else {
            return self.shorts(&text, line).then_some(word);
        }
        Some(word)
    }

    /// An option that nobody gave a value where it takes one: colours were once a flag of llama.cpp's.
    fn end_without_value(&self, option: &Arg, line: &mut Line) {
        if let (true, Some(given), Some(word)) =
            (option.get_id() == "color", line.given.last_mut(), line.words.last_mut())
        {
            given.value = Some("auto".to_string());
            *word = "--color=auto".into();
        }
    }

    /// A command, or something for it to do.
    fn positional(&mut self, text: &str, line: &mut Line) {
        let at = line.words.len();
        match self.command.find_subcommand(text).filter(|_| !self.only_positionals) {
            Some(command) if line.positionals.is_empty() => {
                self.command = command;
                line.path.push(command.get_name().to_string());
                line.own = at + 1;
            }
            _ => line.positionals.push(at),
        }
    }

    /// `--name` or `--name=value`. Returns how else it is to be written, if it is: as another word, or not at all.
    fn long(&mut self, text: &str, line: &mut Line) -> Option<Option<String>> {
        let name = name_of(text);
        let value = text.get(name.len() + 1..).map(str::to_string);
        let named = |name: &str| self.option(|option| is_named(option, name));
        if let Some(option) = named(&name[2..]) {
            self.give(option, value, line);
            return passes_over_default(line).then_some(None);
        }
        let dashed = name.replace('_', "-");
        let other = match Foreign::named(&dashed).map(|foreign| foreign.meaning) {
            Some(Meaning::Same(ours)) => named(ours),
            Some(_) => None,
            None => named(&dashed[2..]),
        };
        if let Some(option) = other {
            let value_behind = value.as_ref().map_or(String::new(), |value| format!("={value}"));
            let long = option.get_long().unwrap_or_default();
            self.give(option, value, line);
            return Some((!passes_over_default(line)).then(|| format!("--{long}{value_behind}")));
        }
        let flag = dashed.strip_prefix("--no-").and_then(named).filter(|option| !takes_value(option));
        if let Some(flag) = flag.filter(|_| value.is_none()) {
            line.take_back(flag);
            return Some(None);
        }
        if self.unknown(&dashed, text, line) { None } else { Some(None) }
    }

    /// An option that the command does not have: whether its word stays where it is, for it is nobody's.
    fn unknown(&mut self, name: &str, text: &str, line: &mut Line) -> bool {
        let foreign = Foreign::named(name).filter(|_| line.has_command());
        let value = text.split_once('=').map(|(_, value)| value.to_string());
        if let (Some(foreign), None) = (foreign, &value) {
            self.awaiting = Awaiting::Foreign(foreign);
        }
        let (name, values) = (name.to_string(), value.into_iter().collect());
        line.unknown.push(Unknown { name, at: line.words.len(), foreign, values, hint: None });
        foreign.is_none()
    }

    /// `-n`, `-n5`, `-n=5` or several flags in one word: whether it stays.
    fn shorts(&mut self, text: &str, line: &mut Line) -> bool {
        for (start, letter) in text.char_indices().skip(1) {
            let rest = &text[start + letter.len_utf8()..];
            let Some(option) = self.option(|option| option.get_short() == Some(letter)) else {
                return self.unknown(name_of(text), text, line);
            };
            let takes_value = takes_value(option);
            let value = (takes_value && !rest.is_empty()).then(|| rest.trim_start_matches('=').to_string());
            self.give(option, value, line);
            if takes_value {
                break;
            }
        }
        true
    }

    fn give(&mut self, option: &'a Arg, value: Option<String>, line: &mut Line) {
        if value.is_none() && takes_value(option) && !option.is_require_equals_set() {
            self.awaiting = Awaiting::Own(option);
        }
        line.given.push(Given { id: option.get_id().to_string(), at: line.words.len(), value });
    }

    fn option(&self, wanted: impl Fn(&Arg) -> bool) -> Option<&'a Arg> {
        options(self.program, self.command).find(|option| wanted(option))
    }

    /// Some positionals may be negative numbers; no option is called like one.
    fn is_negative_number(&self, text: &str) -> bool {
        text.parse::<f64>().is_ok() && self.option(|option| option.get_short() == text[1..].chars().next()).is_none()
    }
}

/// The name of an option, without a value behind an equals sign.
fn name_of(text: &str) -> &str {
    text.split('=').next().unwrap_or(text)
}

/// An option of several letters behind one dash, by its long name; or of another program, if it is the same as ours.
fn written_out(text: &str) -> Option<String> {
    if let Some(Meaning::Same(ours)) = Foreign::named(name_of(text)).map(|foreign| foreign.meaning) {
        return Some(format!("--{ours}{}", &text[name_of(text).len()..]));
    }
    LONG_SHORTS.iter().find_map(|(short, long)| {
        let rest = text.strip_prefix(short)?;
        (rest.is_empty() || rest.starts_with('=')).then(|| format!("{long}{rest}"))
    })
}

/// Takes the last option that is given out of what is given, if its value asks for what is so without it.
fn passes_over_default(line: &mut Line) -> bool {
    let Some(Given { id, value: Some(value), .. }) = line.given.last() else { return false };
    let mut defaults = foreign::DEFAULTS.iter();
    let found = defaults.find(|(option, values, _)| option == id && values.contains(&value.as_str()));
    let Some((_, _, reason)) = found else { return false };
    let option = format!("--{} {value}", id.replace('_', "-"));
    line.passed_over.push(PassedOver { option, reason: (*reason).to_string() });
    line.given.pop();
    true
}

/// Whether a word can be the value of the option before it: what looks like an option only if that was said.
fn can_be_value(option: &Arg, word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    let negative = option.is_allow_negative_numbers_set() && text.parse::<f64>().is_ok();
    !text.starts_with('-') || text == "-" || option.is_allow_hyphen_values_set() || negative
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    fn line(words: &str) -> Line {
        Line::read(words.split(' ').map(OsString::from).collect(), &Cli::command())
    }

    fn out(words: &str) -> String {
        line(words).words.join(OsStr::new(" ")).into_string().expect("the words are text")
    }

    #[test]
    fn options_of_several_letters_are_written_out_where_they_are_options() {
        assert_eq!(out("x generate -md d -np 4"), "x generate --model-draft d --parallel 4");
        assert_eq!(out("x generate -md=d -np=4 -n 5"), "x generate --model-draft=d --parallel=4 -n 5");
        assert_eq!(out("x generate -ctkd f32 -ctk=f16"), "x generate --cache-type-k-draft f32 --cache-type-k=f16");
        assert_eq!(out("x generate -p -md -- -np"), "x generate -p -md -- -np");
        assert_eq!(out("x chat --system -sys -sys -md"), "x chat --system -sys --system -md");
    }

    #[test]
    fn a_line_knows_its_command_and_where_its_words_begin() {
        for (words, path, own) in [
            ("x", "", 1),
            ("x -q generate generate", "generate", 3),
            ("x --color never bench -v pass --rows 1", "bench pass", 6),
            ("x nothing generate", "", 1),
        ] {
            let line = line(words);
            assert_eq!((line.path.join(" ").as_str(), line.own), (path, own), "{words}");
        }
    }

    #[test]
    fn values_are_no_options_and_positionals_are_neither() {
        let line = line("x generate -n -5 -vn7 --stop -h --temp=1 hello -qs 3 -- -v");
        let given: Vec<_> = line.given.iter().map(|given| (given.id.as_str(), given.value.as_deref())).collect();
        let expected = [
            ("n_predict", Some("-5")),
            ("verbose", None),
            ("n_predict", Some("7")),
            ("stop", Some("-h")),
            ("temp", Some("1")),
            ("quiet", None),
            ("seed", Some("3")),
        ];
        assert_eq!(given, expected);
        assert_eq!((line.positionals, line.unknown.len()), (vec![8, 12], 0));
        let unknown = tests::line("x generate --frob=1 -ngl 99 -fast --lora a -z");
        let names: Vec<&str> = unknown.unknown.iter().map(|unknown| unknown.name.as_str()).collect();
        assert_eq!(names, ["--frob", "--lora", "-z"]);
    }

    #[test]
    fn other_spellings_and_names_that_mean_the_same_are_written_out() {
        assert_eq!(
            out("x generate --top_p 1 --max_new_tokens=3 --max-tokens 4"),
            "x generate --top-p 1 --n-predict=3 --n-predict 4"
        );
        assert_eq!(out("x generate -r a -l=5+1"), "x generate --stop a --logit-bias=5+1");
        assert_eq!(out("x serve --max-num-seqs 4"), "x serve --parallel 4");
    }

    #[test]
    fn other_programs_options_go_with_their_values_and_with_nothing_else() {
        for (words, left, passed_over) in [
            ("x chat -fa m", "x chat m", vec!["-fa"]),
            ("x chat -fa on m", "x chat m", vec!["-fa on"]),
            ("x chat -fa=off --jinja m -b 512", "x chat m", vec!["-fa off", "--jinja", "-b 512"]),
            ("x chat --numa distribute m --numa", "x chat m", vec!["--numa distribute", "--numa"]),
            ("x chat m -ngl -1 hello", "x chat m hello", vec!["-ngl -1"]),
            ("x chat -ngl -n 5", "x chat -n 5", vec!["-ngl"]),
            ("x chat --spec-replace a b m", "x chat m", vec!["--spec-replace a b"]),
            ("x chat --no_mmap m", "x chat m", vec!["--no-mmap"]),
            ("x chat -t -1 m --dtype=auto", "x chat m", vec!["--threads -1", "--dtype auto"]),
            ("x chat m -- -fa on", "x chat m -- -fa on", vec![]),
            ("x generate -p -fa", "x generate -p -fa", vec![]),
            ("x chat -e m", "x chat m", vec!["-e"]),
            ("x chat --mirostat 0 --mirostat-lr 0.1 m", "x chat m", vec!["--mirostat 0", "--mirostat-lr 0.1"]),
            ("x chat --xtc-probability 0.00 m", "x chat m", vec!["--xtc-probability 0.00"]),
            ("x chat --think m", "x chat m", vec!["--think"]),
            ("x chat -cnv m", "x chat m", vec!["-cnv"]),
        ] {
            let line = line(words);
            let found: Vec<&str> = line.passed_over.iter().map(|passed| passed.option.as_str()).collect();
            assert_eq!((out(words).as_str(), found), (left, passed_over), "{words}");
            assert_eq!(line.unknown.len(), 0, "{words}");
        }
        for refused in ["--mirostat 2", "--lora m", "--think=false", "-no-cnv", "--yarn-orig-ctx 5", "-e a\\n"] {
            let line = line(&format!("x chat -ngl 0 {refused}"));
            assert_eq!((line.unknown.len(), line.passed_over.len()), (1, 1), "{refused}");
        }
    }

    #[test]
    fn every_row_says_which_values_it_takes() {
        for (entries, meaning) in foreign::OPTIONS {
            for entry in *entries {
                let name = foreign::name_of(entry);
                let values: Vec<&str> = entry.split(' ').skip(1).collect();
                let optional = values.first().is_some_and(|value| value.starts_with('['));
                assert_eq!(optional, entry.contains('['), "{entry}");
                assert!(!matches!(meaning, Meaning::Same(_)) || values.is_empty(), "{entry}: ours says its values");
                let Meaning::Holds(reason) = meaning else { continue };
                let given = match optional {
                    true => vec![values[0].trim_matches(['[', ']']).split('|').next().unwrap_or_default()],
                    false => vec!["1"; values.len()],
                };
                let words = [&["x", "generate", name][..], &given, &["m"]].concat().join(" ");
                let line = line(&words);
                assert_eq!((line.words.len(), line.positionals.len()), (3, 1), "{words}");
                assert_eq!(line.passed_over.iter().map(|one| one.reason.as_str()).collect::<Vec<_>>(), [*reason]);
            }
        }
    }

    #[test]
    fn a_note_tells_each_reason_once() {
        let note = line("x chat -ngl 0 --mlock -mg 0").note().expect("something is passed over");
        let end = "no text here: -ngl 0, -mg 0 (models run on the CPU), --mlock (weights are packed into memory as \
                   they are loaded)";
        assert_eq!(note, format!("note: passed over, since they change {end}"));
        assert_eq!(line("x chat m").note(), None);
    }

    #[test]
    fn colours_may_be_a_flag() {
        assert_eq!(out("x chat --color -n 5"), "x chat --color=auto -n 5");
        assert_eq!(out("x chat -co always --color"), "x chat --color always --color=auto");
    }

    #[test]
    fn flags_are_taken_back() {
        assert_eq!(out("x -q generate --json -n 3 --no-json --no-quiet hello"), "x generate -n 3 hello");
        let line = line("x -q generate --json -n 3 --no-json hello");
        assert_eq!((line.own, line.positionals.clone(), line.value("json")), (3, vec![5], Some("false")));
        assert_eq!(line.given.iter().find(|given| given.id == "n_predict").map(|given| given.at), Some(3));
        assert_eq!(out("x generate --json --no-json --json"), "x generate --json");
    }
}
