//! A first reading of a command line, before clap parses it: which command it names, and which options it gives.
//!
//! clap stops at the first error. Four things must be known earlier: where defaults from file and environment are to be
//! inserted, whether help or the version is asked for (both are printed whatever else is wrong), which words are
//! options of other programs, and whether the first word is a model. So words are classified here by clap's rules and
//! clap's description of the options. On the way options are rewritten to their long names: short ones of several
//! letters, names with underlines for dashes, and options of other programs that mean the same as ours. `--no-NAME`
//! unsets a flag that was given before or in the configuration file. The remaining options of other programs are
//! removed with their values, whether they are ignored or refused. Values are not checked here
//! ([`errors`](super::errors)).

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, Command};

use super::other_programs::{self, Meaning, OtherProgramOption};

/// Short options of more than one letter, with the long ones that they stand for.
pub const MULTI_LETTER_SHORTS: [(&str, &str); 19] = [
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
pub struct GivenOption {
    /// Its name in clap: underlines for dashes.
    pub id: String,
    /// The index of the word that names it; for an unset flag, of the next word.
    pub at: usize,
    /// Its value, if the line has one; "false" for an unset flag.
    pub value: Option<String>,
}

/// A word that looks like an option and is not one of this command.
#[derive(Clone, Debug)]
pub struct UnknownOption {
    /// As it was written, without a value after an equals sign.
    pub name: String,
    /// The index of the word, or of the one after it if it was removed.
    pub at: usize,
    /// The option of another program, if there is one of this name and the command is known.
    other_program: Option<OtherProgramOption>,
    /// Its values, if it is an option of another program.
    pub values: Vec<String>,
    /// What was expected, if it is a refused option of another program.
    pub hint: Option<String>,
}

/// An option that is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredOption {
    /// The option with its values.
    pub option: String,
    /// Why.
    pub reason: String,
}

/// A command line after its first reading.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The words, with options rewritten to their long names.
    pub words: Vec<OsString>,
    /// The names of the command and its subcommand, as `bench` and `pass`.
    pub path: Vec<String>,
    /// The index of the first word after the command's name.
    pub args_start: usize,
    /// The options that are given, in their order.
    pub given: Vec<GivenOption>,
    /// Options that the command does not have.
    pub unknown: Vec<UnknownOption>,
    /// Options of other programs, and default values, that are ignored.
    pub ignored: Vec<IgnoredOption>,
    /// The indexes of words that are neither options nor their values.
    pub positionals: Vec<usize>,
    /// The command that an option of another program implies.
    pub implied_command: Option<&'static str>,
    /// Whether `foretoken config` is to print JSON about this line.
    pub as_json: bool,
}

impl Line {
    /// Classifies the words, of which the first is the program.
    pub fn read(words: Vec<OsString>, program: &Command) -> Self {
        let reader = Reader { program, command: program, awaiting: Awaiting::Nothing, only_positionals: false };
        let mut line = Self { args_start: words.len().min(1), ..Self::default() };
        let has_backslash = words.iter().any(|word| word.to_string_lossy().contains('\\'));
        reader.read(words, &mut line);
        line.ignore_or_refuse(has_backslash);
        line
    }

    /// Decides which options of other programs are ignored and which are refused.
    fn ignore_or_refuse(&mut self, has_backslash: bool) {
        let command = self.path.join(" ");
        for mut unknown in std::mem::take(&mut self.unknown) {
            if let Some(Meaning::Selects(command)) = unknown.other_program.map(|option| option.meaning) {
                self.implied_command = Some(command);
            }
            match unknown.other_program.map(|option| option.check(&unknown.values, &command, has_backslash)) {
                Some(Ok(reason)) if self.has_command() => {
                    let option = [&[unknown.name][..], &unknown.values].concat().join(" ");
                    self.ignored.push(IgnoredOption { option, reason });
                    continue;
                }
                judged => unknown.hint = judged.and_then(Result::err),
            }
            self.unknown.push(unknown);
        }
    }

    /// Whether the line has a command other than `config`, whose words are another command's line.
    fn has_command(&self) -> bool {
        self.path.first().is_some_and(|name| name != "config")
    }

    /// A note about the ignored options, in one line.
    pub fn note(&self) -> Option<String> {
        let pairs = self.ignored.iter().map(|IgnoredOption { option, reason }| (option.clone(), reason.clone()));
        let notes: Vec<String> = group_by_reason(pairs)
            .into_iter()
            .map(|(options, why)| format!("{} ({why})", options.join(", ")))
            .collect();
        let changes = if self.ignored.len() == 1 { "it changes" } else { "they change" };
        (!notes.is_empty()).then(|| format!("note: passed over, since {changes} no text here: {}", notes.join(", ")))
    }

    /// Whether the option is given, by its name in clap.
    pub fn gives(&self, id: &str) -> bool {
        self.given.iter().any(|given| given.id == id)
    }

    /// The last value that an option is given.
    pub fn value(&self, id: &str) -> Option<&str> {
        self.given.iter().rev().find(|given| given.id == id)?.value.as_deref()
    }

    /// Unsets a flag: removes the words before this one that give it, and keeps defaults from giving it.
    fn unset_flag(&mut self, flag: &Arg) {
        let (long, short) = (flag.get_long().unwrap_or_default(), flag.get_short());
        let names = [Some(format!("--{long}")), short.map(|letter| format!("-{letter}"))];
        let id = flag.get_id().as_str();
        let given = self.given.iter().filter(|given| given.id == id).map(|given| given.at);
        let is_flag_word =
            |at: &usize| names.iter().flatten().any(|name| self.words.get(*at).is_some_and(|word| *word == **name));
        let mut words: Vec<usize> = given.filter(is_flag_word).collect();
        words.dedup();
        self.given.retain(|given| given.id != id);
        for at in words.into_iter().rev() {
            self.words.remove(at);
            let later = self.given.iter_mut().map(|given| &mut given.at);
            let later = later.chain(self.unknown.iter_mut().map(|unknown| &mut unknown.at));
            let later = later.chain(&mut self.positionals).chain([&mut self.args_start]);
            later.filter(|index| **index > at).for_each(|index| *index -= 1);
        }
        self.given.push(GivenOption { id: id.to_string(), at: self.words.len(), value: Some("false".to_string()) });
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

/// Groups names by their reasons, in the order of the reasons, each name once.
pub fn group_by_reason(pairs: impl IntoIterator<Item = (String, String)>) -> Vec<(Vec<String>, String)> {
    let mut all: Vec<(Vec<String>, String)> = Vec::new();
    for (name, reason) in pairs {
        match all.iter_mut().find(|(_, other)| *other == reason) {
            Some((names, _)) if names.contains(&name) => {}
            Some((names, _)) => names.push(name),
            None => all.push((vec![name], reason)),
        }
    }
    all
}

/// The option whose value the next word may be.
enum Awaiting<'a> {
    Nothing,
    /// One of our options.
    Own(&'a Arg),
    /// The last unknown option, which is one of another program.
    OtherProgram(OtherProgramOption),
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

    /// Reads a word that is not the program's name. Returns the word for clap, or `None` if it is removed.
    fn word(&mut self, word: OsString, line: &mut Line) -> Option<OsString> {
        match std::mem::replace(&mut self.awaiting, Awaiting::Nothing) {
            Awaiting::Own(option) if may_be_value(option, &word) => {
                if let Some(given) = line.given.last_mut() {
                    given.value = Some(word.to_string_lossy().into_owned());
                }
                // The option's name is removed with its value.
                let is_default = ignore_if_default(line);
                return if is_default { line.words.pop().and(None) } else { Some(word) };
            }
            Awaiting::Own(option) => self.end_without_value(option, line),
            Awaiting::OtherProgram(other_program) => {
                if let Some(unknown) = line.unknown.last_mut()
                    && other_program.takes(&word.to_string_lossy(), unknown.values.len())
                {
                    unknown.values.push(word.to_string_lossy().into_owned());
                    self.awaiting = Awaiting::OtherProgram(other_program);
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
        } else if let Some(long) = long_option(&text) {
            return self.long(&long, line).unwrap_or(Some(long)).map(OsString::from);
        } else if other_programs::is_short(&text) {
            return self.unknown(name_of(&text), &text, line).then_some(word);
        } else {
            return self.shorts(&text, line).then_some(word);
        }
        Some(word)
    }

    /// An option without its value: `--color` becomes `--color=auto`, since it was once a flag of llama.cpp.
    fn end_without_value(&self, option: &Arg, line: &mut Line) {
        if let (true, Some(given), Some(word)) =
            (option.get_id() == "color", line.given.last_mut(), line.words.last_mut())
        {
            given.value = Some("auto".to_string());
            *word = "--color=auto".into();
        }
    }

    /// A command's name, or a positional argument.
    fn positional(&mut self, text: &str, line: &mut Line) {
        let at = line.words.len();
        match self.command.find_subcommand(text).filter(|_| !self.only_positionals) {
            Some(command) if line.positionals.is_empty() => {
                self.command = command;
                line.path.push(command.get_name().to_string());
                line.args_start = at + 1;
            }
            _ => line.positionals.push(at),
        }
    }

    /// Reads `--name` or `--name=value`. Returns `None` if the word stays, else what replaces it, if anything does.
    fn long(&mut self, text: &str, line: &mut Line) -> Option<Option<String>> {
        let name = name_of(text);
        let value = text.get(name.len() + 1..).map(str::to_string);
        let named = |name: &str| self.option(|option| is_named(option, name));
        if let Some(option) = named(&name[2..]) {
            self.give(option, value, line);
            return ignore_if_default(line).then_some(None);
        }
        let dashed = name.replace('_', "-");
        let other = match OtherProgramOption::named(&dashed).map(|option| option.meaning) {
            Some(Meaning::Same(ours)) => named(ours),
            Some(_) => None,
            None => named(&dashed[2..]),
        };
        if let Some(option) = other {
            let value_suffix = value.as_ref().map_or(String::new(), |value| format!("={value}"));
            let long = option.get_long().unwrap_or_default();
            self.give(option, value, line);
            return Some((!ignore_if_default(line)).then(|| format!("--{long}{value_suffix}")));
        }
        let flag = dashed.strip_prefix("--no-").and_then(named).filter(|option| !takes_value(option));
        if let Some(flag) = flag.filter(|_| value.is_none()) {
            line.unset_flag(flag);
            return Some(None);
        }
        if self.unknown(&dashed, text, line) { None } else { Some(None) }
    }

    /// Reads an option that the command does not have. Returns whether its word stays: no other program has it either.
    fn unknown(&mut self, name: &str, text: &str, line: &mut Line) -> bool {
        let other_program = OtherProgramOption::named(name).filter(|_| line.has_command());
        let value = text.split_once('=').map(|(_, value)| value.to_string());
        if let (Some(other_program), None) = (other_program, &value) {
            self.awaiting = Awaiting::OtherProgram(other_program);
        }
        let (name, values) = (name.to_string(), value.into_iter().collect());
        line.unknown.push(UnknownOption { name, at: line.words.len(), other_program, values, hint: None });
        other_program.is_none()
    }

    /// Reads `-n`, `-n5`, `-n=5` or several flags in one word. Returns whether the word stays.
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
        line.given.push(GivenOption { id: option.get_id().to_string(), at: line.words.len(), value });
    }

    fn option(&self, predicate: impl Fn(&Arg) -> bool) -> Option<&'a Arg> {
        options(self.program, self.command).find(|option| predicate(option))
    }

    /// Whether a word is a negative number and not a short option. Some positionals may be negative.
    fn is_negative_number(&self, text: &str) -> bool {
        text.parse::<f64>().is_ok() && self.option(|option| option.get_short() == text[1..].chars().next()).is_none()
    }
}

/// The name of an option, without a value after an equals sign.
fn name_of(text: &str) -> &str {
    text.split('=').next().unwrap_or(text)
}

/// The long form of a short option of several letters, or of another program's option that means the same as ours.
fn long_option(text: &str) -> Option<String> {
    if let Some(Meaning::Same(ours)) = OtherProgramOption::named(name_of(text)).map(|option| option.meaning) {
        return Some(format!("--{ours}{}", &text[name_of(text).len()..]));
    }
    MULTI_LETTER_SHORTS.iter().find_map(|(short, long)| {
        let rest = text.strip_prefix(short)?;
        (rest.is_empty() || rest.starts_with('=')).then(|| format!("{long}{rest}"))
    })
}

/// Removes the last given option if its value is the default.
fn ignore_if_default(line: &mut Line) -> bool {
    let Some(GivenOption { id, value: Some(value), .. }) = line.given.last() else { return false };
    let mut defaults = other_programs::DEFAULTS.iter();
    let found = defaults.find(|(option, values, _)| option == id && values.contains(&value.as_str()));
    let Some((_, _, reason)) = found else { return false };
    let option = format!("--{} {value}", id.replace('_', "-"));
    line.ignored.push(IgnoredOption { option, reason: (*reason).to_string() });
    line.given.pop();
    true
}

/// Whether a word may be the value of the option before it. One that looks like an option needs the option's
/// permission.
fn may_be_value(option: &Arg, word: &OsStr) -> bool {
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

    fn rewritten(words: &str) -> String {
        line(words).words.join(OsStr::new(" ")).into_string().expect("the words are text")
    }

    #[test]
    fn short_options_of_several_letters_become_long_ones() {
        assert_eq!(rewritten("x generate -md d -np 4"), "x generate --model-draft d --parallel 4");
        assert_eq!(rewritten("x generate -md=d -np=4 -n 5"), "x generate --model-draft=d --parallel=4 -n 5");
        assert_eq!(
            rewritten("x generate -ctkd f32 -ctk=f16"),
            "x generate --cache-type-k-draft f32 --cache-type-k=f16"
        );
        assert_eq!(rewritten("x generate -p -md -- -np"), "x generate -p -md -- -np");
        assert_eq!(rewritten("x chat --system -sys -sys -md"), "x chat --system -sys --system -md");
    }

    #[test]
    fn the_command_and_the_start_of_its_words_are_found() {
        for (words, path, own) in [
            ("x", "", 1),
            ("x -q generate generate", "generate", 3),
            ("x --color never bench -v pass --rows 1", "bench pass", 6),
            ("x nothing generate", "", 1),
        ] {
            let line = line(words);
            assert_eq!((line.path.join(" ").as_str(), line.args_start), (path, own), "{words}");
        }
    }

    #[test]
    fn options_values_and_positionals_are_told_apart() {
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
    fn synonyms_become_our_long_names() {
        assert_eq!(
            rewritten("x generate --top_p 1 --max_new_tokens=3 --max-tokens 4"),
            "x generate --top-p 1 --n-predict=3 --n-predict 4"
        );
        assert_eq!(rewritten("x generate -r a -l=5+1"), "x generate --stop a --logit-bias=5+1");
        assert_eq!(rewritten("x serve --max-num-seqs 4"), "x serve --parallel 4");
    }

    #[test]
    fn ignored_options_are_removed_with_their_values_alone() {
        for (words, left, ignored) in [
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
            let found: Vec<&str> = line.ignored.iter().map(|passed| passed.option.as_str()).collect();
            assert_eq!((rewritten(words).as_str(), found), (left, ignored), "{words}");
            assert_eq!(line.unknown.len(), 0, "{words}");
        }
        for refused in ["--mirostat 2", "--lora m", "--think=false", "-no-cnv", "--yarn-orig-ctx 5", "-e a\\n"] {
            let line = line(&format!("x chat -ngl 0 {refused}"));
            assert_eq!((line.unknown.len(), line.ignored.len()), (1, 1), "{refused}");
        }
    }

    #[test]
    fn each_row_of_the_table_takes_its_values() {
        for (entries, meaning) in other_programs::OPTIONS {
            for entry in *entries {
                let name = other_programs::name_of(entry);
                let values: Vec<&str> = entry.split(' ').skip(1).collect();
                let optional = values.first().is_some_and(|value| value.starts_with('['));
                assert_eq!(optional, entry.contains('['), "{entry}");
                assert!(
                    !matches!(meaning, Meaning::Same(_)) || values.is_empty(),
                    "{entry}: our option has its own values"
                );
                let Meaning::Ignored(reason) = meaning else { continue };
                let given = match optional {
                    true => vec![values[0].trim_matches(['[', ']']).split('|').next().unwrap_or_default()],
                    false => vec!["1"; values.len()],
                };
                let words = [&["x", "generate", name][..], &given, &["m"]].concat().join(" ");
                let line = line(&words);
                assert_eq!((line.words.len(), line.positionals.len()), (3, 1), "{words}");
                assert_eq!(line.ignored.iter().map(|one| one.reason.as_str()).collect::<Vec<_>>(), [*reason]);
            }
        }
    }

    #[test]
    fn the_note_has_each_reason_once() {
        let note = line("x chat -ngl 0 --mlock -mg 0").note().expect("something is passed over");
        let end = "no text here: -ngl 0, -mg 0 (models run on the CPU), --mlock (weights are packed into memory as \
                   they are loaded)";
        assert_eq!(note, format!("note: passed over, since they change {end}"));
        assert_eq!(line("x chat m").note(), None);
    }

    #[test]
    fn color_may_be_a_flag() {
        assert_eq!(rewritten("x chat --color -n 5"), "x chat --color=auto -n 5");
        assert_eq!(rewritten("x chat -co always --color"), "x chat --color always --color=auto");
    }

    #[test]
    fn flags_are_unset() {
        assert_eq!(rewritten("x -q generate --json -n 3 --no-json --no-quiet hello"), "x generate -n 3 hello");
        let line = line("x -q generate --json -n 3 --no-json hello");
        assert_eq!((line.args_start, line.positionals.clone(), line.value("json")), (3, vec![5], Some("false")));
        assert_eq!(line.given.iter().find(|given| given.id == "n_predict").map(|given| given.at), Some(3));
        assert_eq!(rewritten("x generate --json --no-json --json"), "x generate --json");
    }
}
