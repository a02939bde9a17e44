//! A command line as its words are understood, before clap parses it: which command it is of, which options it gives.
//!
//! clap can be asked only once, and then refuses. Four things need to be known earlier: where defaults from elsewhere
//! are to be put, whether help or the version is asked for (both are given whatever else is wrong), which words are
//! options that other programs have, and whether the first word is a model. So words are told apart here by the same
//! rules as clap's, going by its own description of the options. Options are written out on the way: those of several
//! letters, those with underlines for dashes, and those of other programs that are the same as ours; `--no-NAME` takes
//! a flag back that was given before, or in the file of defaults. Left out: what values mean, and every complaint.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, Command};

use super::foreign::{self, Meaning};

/// Short options of more than one letter, with the long ones that they stand for.
pub const LONG_SHORTS: [(&str, &str); 17] = [
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// As it was written, without a value behind an equals sign.
    pub name: String,
    /// Which word it is.
    pub at: usize,
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
    /// Which words are neither options nor values of them.
    pub positionals: Vec<usize>,
    /// Of a line that `foretoken config` asks about: whether it wants JSON.
    pub as_json: bool,
}

impl Line {
    /// Tells the words apart. The first is the program.
    pub fn read(words: Vec<OsString>, program: &Command) -> Self {
        let reader = Reader { program, command: program, awaiting: None, only_positionals: false };
        let mut line = Self { own: words.len().min(1), ..Self::default() };
        reader.read(words, &mut line);
        line
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

/// Reads one word after another.
struct Reader<'a> {
    program: &'a Command,
    command: &'a Command,
    /// The option whose value the next word may be.
    awaiting: Option<&'a Arg>,
    only_positionals: bool,
}

impl<'a> Reader<'a> {
    fn read(mut self, words: Vec<OsString>, line: &mut Line) {
        for word in words {
            let word = if line.words.is_empty() { Some(word) } else { self.word(word, line) };
            line.words.extend(word);
        }
    }

    /// Reads a word that is not the program's name. Returns it as clap is to see it, if it is to see it.
    fn word(&mut self, word: OsString, line: &mut Line) -> Option<OsString> {
        if let Some(option) = self.awaiting.take()
            && can_be_value(option, &word)
        {
            if let Some(given) = line.given.last_mut() {
                given.value = Some(word.to_string_lossy().into_owned());
            }
            return Some(word);
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
            line.unknown.push(Unknown { name: name_of(&text).to_string(), at: line.words.len() });
        } else {
            self.shorts(&text, line);
        }
        Some(word)
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
            return None;
        }
        let dashed = name.replace('_', "-");
        let other = match foreign::meaning(&dashed) {
            Some(Meaning::Same(ours)) => named(ours),
            Some(_) => None,
            None => named(&dashed[2..]),
        };
        if let Some(option) = other {
            let value_behind = value.as_ref().map_or(String::new(), |value| format!("={value}"));
            let long = option.get_long().unwrap_or_default();
            self.give(option, value, line);
            return Some(Some(format!("--{long}{value_behind}")));
        }
        let flag = dashed.strip_prefix("--no-").and_then(named).filter(|option| !takes_value(option));
        if let Some(flag) = flag.filter(|_| value.is_none()) {
            line.take_back(flag);
            return Some(None);
        }
        line.unknown.push(Unknown { name: dashed, at: line.words.len() });
        None
    }

    /// `-n`, `-n5`, `-n=5` or several flags in one word.
    fn shorts(&mut self, text: &str, line: &mut Line) {
        for (start, letter) in text.char_indices().skip(1) {
            let rest = &text[start + letter.len_utf8()..];
            let Some(option) = self.option(|option| option.get_short() == Some(letter)) else {
                let name = name_of(text).to_string();
                return line.unknown.push(Unknown { name, at: line.words.len() });
            };
            if takes_value(option) {
                let value = (!rest.is_empty()).then(|| rest.trim_start_matches('=').to_string());
                return self.give(option, value, line);
            }
            self.give(option, None, line);
        }
    }

    fn give(&mut self, option: &'a Arg, value: Option<String>, line: &mut Line) {
        if value.is_none() && takes_value(option) && !option.is_require_equals_set() {
            self.awaiting = Some(option);
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
    if let Some(Meaning::Same(ours)) = foreign::meaning(name_of(text)) {
        return Some(format!("--{ours}{}", &text[name_of(text).len()..]));
    }
    LONG_SHORTS.iter().find_map(|(short, long)| {
        let rest = text.strip_prefix(short)?;
        (rest.is_empty() || rest.starts_with('=')).then(|| format!("{long}{rest}"))
    })
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
        assert_eq!((line.positionals, line.unknown), (vec![8, 12], vec![]));
        let unknown = tests::line("x generate --frob=1 -ngl 99 -fast -fa on -z");
        let names: Vec<&str> = unknown.unknown.iter().map(|unknown| unknown.name.as_str()).collect();
        assert_eq!(names, ["--frob", "-ngl", "-fa", "-z"]);
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
    fn flags_are_taken_back() {
        assert_eq!(out("x -q generate --json -n 3 --no-json --no-quiet hello"), "x generate -n 3 hello");
        let line = line("x -q generate --json -n 3 --no-json hello");
        assert_eq!((line.own, line.positionals.clone(), line.value("json")), (3, vec![5], Some("false")));
        assert_eq!(line.given.iter().find(|given| given.id == "n_predict").map(|given| given.at), Some(3));
        assert_eq!(out("x generate --json --no-json --json"), "x generate --json");
    }
}
