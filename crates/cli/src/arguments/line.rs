//! A first reading of a command line, before clap parses it: which command it names, and which options it gives.
//!
//! clap stops at the first error, and knows neither short names of several letters nor options of other programs. Three
//! things must be known earlier: whether help or the version is asked for (both are printed whatever else is wrong),
//! which words are options of other programs, and whether the first word is a model. So words are classified here, by
//! clap's lexer and clap's description of the options. clap then parses a rewritten line ([`Line::words`]): the
//! command, then each option by its long name with its value attached, so that the two readings cannot take different
//! words for values. `--no-NAME` unsets a flag that was given before or in the configuration file. Options of other
//! programs that mean the same as ours become ours; the others are left out with their values, whether they are ignored
//! or refused. Values are not checked here ([`errors`](super::errors)).

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};
use clap_lex::{ArgCursor, OsStrExt as _, ParsedArg, RawArgs, ShortFlags};

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
    /// Its long name, without dashes before it.
    pub long: String,
    /// The index of the word that names it.
    pub at: usize,
    /// Its value, if the line has one.
    pub value: Option<OsString>,
    /// Whether it is a flag that the line unsets.
    pub is_unset: bool,
}

impl GivenOption {
    fn new(option: &Arg, at: usize, value: Option<OsString>) -> Self {
        let (id, long) = (option.get_id().to_string(), option.get_long().unwrap_or_default().to_string());
        Self { id, long, at, value, is_unset: false }
    }

    /// The option and its value in one word.
    fn word(&self) -> OsString {
        let mut word = OsString::from(format!("--{}", self.long));
        if let Some(value) = &self.value {
            word.push("=");
            word.push(value);
        }
        word
    }
}

/// A word that looks like an option and is not one of this command.
#[derive(Clone, Debug)]
pub struct UnknownOption {
    /// As it was written, without a value after an equals sign.
    pub name: String,
    /// The index of the word.
    pub at: usize,
    /// What was expected, if it is a refused option of another program.
    pub hint: Option<String>,
}

/// An option that is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredOption {
    /// The option with its values.
    pub option: String,
    /// Why it is ignored.
    pub reason: String,
}

/// A command line after its first reading.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The names of the command and its subcommand, as `bench` and `pass`.
    pub path: Vec<String>,
    /// The last of them as it was written, which may be an alias.
    pub called: String,
    /// The index of the first word after the command's name.
    pub args_start: usize,
    /// The options that are given, in their order.
    pub given: Vec<GivenOption>,
    /// Options that the command does not have.
    pub unknown: Vec<UnknownOption>,
    /// Options of other programs, and default values, that are ignored.
    pub ignored: Vec<IgnoredOption>,
    /// The words that are neither options nor their values, with their indexes.
    pub positionals: Vec<(usize, OsString)>,
    /// The index of the word `--`, after which no word is an option.
    escape_at: Option<usize>,
    /// The command that an option of another program implies.
    pub implied_command: Option<&'static str>,
    /// Whether `foretoken config` is to print JSON about this line.
    pub as_json: bool,
}

impl Line {
    /// Classifies the words of a command line, of which the first is the program.
    pub fn read(words: &[OsString], program: &Command) -> Self {
        let has_backslash = words.iter().any(|word| word.to_string_lossy().contains('\\'));
        let words = RawArgs::new(words);
        let mut cursor = words.cursor();
        words.next_os(&mut cursor);
        let line = Self { args_start: 1, ..Self::default() };
        let mut reader = Reader { program, command: program, words: &words, cursor, at: 0, has_backslash, line };
        while let Some(word) = reader.advance() {
            reader.word(&word);
        }
        reader.line
    }

    /// The words for clap: the program, the command, these defaults, and the line's own words in their order.
    pub fn words(&self, defaults: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        let options = self.given.iter().filter(|given| !given.is_unset).map(|given| (given.at, given.word()));
        let escape = self.escape_at.map(|at| (at, OsString::from("--")));
        let mut own: Vec<(usize, OsString)> = options.chain(escape).chain(self.positionals.iter().cloned()).collect();
        own.sort_by_key(|(at, _)| *at);
        let command = std::iter::once("foretoken").chain(self.path.iter().map(String::as_str)).map(OsString::from);
        command.chain(defaults).chain(own.into_iter().map(|(_, word)| word)).collect()
    }

    /// Adds an option before all others, by its long name.
    pub fn prepend(&mut self, long: &str, value: Option<OsString>) {
        let (id, long) = (long.replace('-', "_"), long.to_string());
        self.given.insert(0, GivenOption { id, long, at: 0, value, is_unset: false });
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
    pub fn value(&self, id: &str) -> Option<&OsStr> {
        self.given.iter().rev().find(|given| given.id == id)?.value.as_deref()
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
    option.get_action().takes_values()
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

/// Reads one word after another.
struct Reader<'a> {
    program: &'a Command,
    command: &'a Command,
    words: &'a RawArgs,
    cursor: ArgCursor,
    /// The index of the word that was read last.
    at: usize,
    /// Whether some word of the line has a backslash.
    has_backslash: bool,
    line: Line,
}

impl<'a> Reader<'a> {
    fn advance(&mut self) -> Option<ParsedArg<'a>> {
        self.at += 1;
        self.words.next(&mut self.cursor)
    }

    /// Reads a word that is not the program's name, and the words after it that are its values.
    fn word(&mut self, word: &ParsedArg<'_>) {
        if self.line.escape_at.is_some() {
            self.positional(word.to_value_os());
        } else if word.is_escape() {
            self.line.escape_at = Some(self.at);
        } else if let Some((name, value)) = word.to_long() {
            self.long(&name.map_or_else(OsStr::to_string_lossy, Cow::Borrowed), value);
        } else if let Some(letters) = word.to_short().filter(|_| !word.is_negative_number()) {
            self.short(word.to_value_os(), letters);
        } else {
            self.positional(word.to_value_os());
        }
    }

    /// A command's name, or a positional argument.
    fn positional(&mut self, word: &OsStr) {
        let may_be_command = self.line.escape_at.is_none() && self.line.positionals.is_empty();
        match self.command.find_subcommand(word).filter(|_| may_be_command) {
            Some(command) => {
                self.command = command;
                self.line.path.push(command.get_name().to_string());
                self.line.called = text_of(word);
                self.line.args_start = self.at + 1;
            }
            None => self.line.positionals.push((self.at, word.to_os_string())),
        }
    }

    /// Reads `--name` or `--name=value`, also with underlines for dashes.
    fn long(&mut self, name: &str, value: Option<&OsStr>) {
        let name = name.replace('_', "-");
        let named = |name: &str| self.option(|option| is_named(option, name));
        let same = || match OtherProgramOption::named(&format!("--{name}"))?.meaning {
            Meaning::Same(ours) => named(ours),
            _ => None,
        };
        let flag = || named(name.strip_prefix("no-")?).filter(|flag| value.is_none() && !takes_value(flag));
        if let Some(option) = named(&name).or_else(same) {
            self.give(option, value);
        } else if let Some(flag) = flag() {
            let unset = GivenOption { is_unset: true, ..GivenOption::new(flag, self.at, None) };
            self.line.given.retain(|given| given.id != unset.id);
            self.line.given.push(unset);
        } else {
            self.unknown(format!("--{name}"), value);
        }
    }

    /// Reads a word with one dash: a name of several letters, `-n`, `-n5`, `-n=5`, or several flags.
    fn short(&mut self, word: &OsStr, mut letters: ShortFlags<'_>) {
        let (name, value) = word.split_once("=").map_or((word, None), |(name, value)| (name, Some(value)));
        let name = text_of(name);
        if let Some(long) = long_name(&name) {
            return self.long(long, value);
        }
        if name.len() > 2 && OtherProgramOption::named(&name).is_some() {
            return self.unknown(name, value);
        }
        while let Some(letter) = letters.next_flag() {
            let option = letter.ok().and_then(|letter| self.option(|option| option.get_short() == Some(letter)));
            let Some(option) = option else { return self.unknown(name, value) };
            if takes_value(option) {
                let rest = letters.next_value_os();
                return self.give(option, rest.map(|rest| rest.strip_prefix("=").unwrap_or(rest)));
            }
            self.give(option, None);
        }
    }

    /// An option of ours. Its value is attached to its name, or the next word if that may be a value.
    fn give(&mut self, option: &Arg, attached: Option<&OsStr>) {
        let mut given = GivenOption::new(option, self.at, attached.map(OsStr::to_os_string));
        if attached.is_none() && takes_value(option) && !option.is_require_equals_set() {
            if let Some(next) = self.words.peek(&self.cursor).filter(|next| may_be_value(option, next)) {
                given.value = Some(next.to_value_os().to_os_string());
                self.advance();
            } else if given.id == "color" {
                // It was once a flag of llama.cpp.
                given.value = Some("auto".into());
            }
        }
        let value = given.value.as_deref().map(text_of).unwrap_or_default();
        let mut defaults = other_programs::DEFAULTS.iter();
        match defaults.find(|(id, values, _)| *id == given.id && values.contains(&value.as_str())) {
            Some((_, _, reason)) => {
                let option = format!("--{} {value}", given.long);
                self.line.ignored.push(IgnoredOption { option, reason: (*reason).to_string() });
            }
            None => self.line.given.push(given),
        }
    }

    /// An option that the command does not have. One of another program is followed by its values.
    fn unknown(&mut self, name: String, attached: Option<&OsStr>) {
        let mut unknown = UnknownOption { name, at: self.at, hint: None };
        if let Some(option) = OtherProgramOption::named(&unknown.name).filter(|_| self.line.has_command()) {
            let mut values: Vec<String> = attached.into_iter().map(text_of).collect();
            while attached.is_none()
                && let Some(next) = self.words.peek_os(&self.cursor).map(text_of)
                && option.takes(&next, values.len())
            {
                values.push(next);
                self.advance();
            }
            if let Meaning::Selects(command) = option.meaning {
                self.line.implied_command = Some(command);
            }
            match option.check(&values, &self.line.path.join(" "), self.has_backslash) {
                Ok(reason) => {
                    let option = [vec![unknown.name], values].concat().join(" ");
                    return self.line.ignored.push(IgnoredOption { option, reason });
                }
                Err(expected) => unknown.hint = Some(expected),
            }
        }
        self.line.unknown.push(unknown);
    }

    fn option(&self, predicate: impl Fn(&Arg) -> bool) -> Option<&'a Arg> {
        options(self.program, self.command).find(|option| predicate(option))
    }
}

/// A word as text, for comparisons and messages.
fn text_of(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

/// The long name, without dashes, of a short option of several letters, or of another program's option that means the
/// same as ours.
fn long_name(name: &str) -> Option<&'static str> {
    if let Some(Meaning::Same(ours)) = OtherProgramOption::named(name).map(|option| option.meaning) {
        return Some(ours);
    }
    let (_, long) = MULTI_LETTER_SHORTS.iter().find(|(short, _)| *short == name)?;
    long.strip_prefix("--")
}

/// Whether a word may be the value of the option before it. One that looks like an option needs the option's
/// permission.
fn may_be_value(option: &Arg, word: &ParsedArg<'_>) -> bool {
    let looks_like_option = word.is_long() || word.is_short() || word.is_escape();
    let negative = option.is_allow_negative_numbers_set() && word.is_negative_number();
    !looks_like_option || option.is_allow_hyphen_values_set() || negative
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    fn line(words: &str) -> Line {
        Line::read(&words.split(' ').map(OsString::from).collect::<Vec<_>>(), &Cli::command())
    }

    /// What clap parses of a line.
    fn rewritten(words: &str) -> String {
        line(words).words([]).join(OsStr::new(" ")).into_string().expect("the words are text")
    }

    #[test]
    fn short_options_of_several_letters_become_long_ones() {
        for (words, expected) in [
            ("x serve -md d -np 4", "foretoken serve --model-draft=d --parallel=4"),
            ("x serve -md=d -np=4 -n 5", "foretoken serve --model-draft=d --parallel=4 --n-predict=5"),
            ("x chat -ctkd f32 -ctk=f16", "foretoken chat --cache-type-k-draft=f32 --cache-type-k=f16"),
            ("x generate -p -md -- -np", "foretoken generate --prompt=-md -- -np"),
            ("x chat --system -sys -sys -md", "foretoken chat --system=-sys --system=-md"),
        ] {
            assert_eq!(rewritten(words), expected);
        }
    }

    #[test]
    fn options_before_the_command_come_behind_it() {
        let words = "x -q --color never bench -v pass --rows 1 a";
        assert_eq!(rewritten(words), "foretoken bench pass --quiet --color=never --verbose --rows=1 a");
    }

    #[test]
    #[cfg(unix)]
    fn values_keep_their_bytes() {
        use std::os::unix::ffi::OsStrExt;
        let model = |words: &[&[u8]]| {
            let words: Vec<OsString> = words.iter().map(|word| OsStr::from_bytes(word).to_os_string()).collect();
            Line::read(&words, &Cli::command()).words([]).pop()
        };
        let expected = Some(OsStr::from_bytes(b"--model=\xff").to_os_string());
        assert_eq!(model(&[b"x", b"chat", b"--model=\xff"]), expected);
        assert_eq!(model(&[b"x", b"chat", b"-m\xff"]), expected);
        assert_eq!(model(&[b"x", b"chat", b"-m", b"\xff"]), expected);
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
        let given: Vec<_> = line.given.iter().map(|given| (given.id.as_str(), given.value.clone())).collect();
        let expected = [
            ("n_predict", Some("-5")),
            ("verbose", None),
            ("n_predict", Some("7")),
            ("stop", Some("-h")),
            ("temp", Some("1")),
            ("quiet", None),
            ("seed", Some("3")),
        ];
        assert_eq!(given, expected.map(|(id, value)| (id, value.map(OsString::from))));
        assert_eq!(line.positionals, vec![(8, OsString::from("hello")), (12, OsString::from("-v"))]);
        assert_eq!(line.unknown.len(), 0);
        let unknown = tests::line("x generate --frob=1 -ngl 99 -fast --lora a -z");
        let names: Vec<&str> = unknown.unknown.iter().map(|unknown| unknown.name.as_str()).collect();
        assert_eq!(names, ["--frob", "--lora", "-z"]);
    }

    #[test]
    fn synonyms_become_our_long_names() {
        assert_eq!(
            rewritten("x generate --top_p 1 --max_new_tokens=3 --max-tokens 4"),
            "foretoken generate --top-p=1 --n-predict=3 --n-predict=4"
        );
        assert_eq!(rewritten("x generate -r a -l=5+1"), "foretoken generate --stop=a --logit-bias=5+1");
        assert_eq!(rewritten("x serve --max-num-seqs 4"), "foretoken serve --parallel=4");
    }

    #[test]
    fn ignored_options_are_removed_with_their_values_alone() {
        for (words, left, ignored) in [
            ("x chat -fa m", "x chat m", vec!["-fa"]),
            ("x chat -fa on m", "x chat m", vec!["-fa on"]),
            ("x chat -fa=off --jinja m -b 512", "x chat m", vec!["-fa off", "--jinja", "-b 512"]),
            ("x chat --numa distribute m --numa", "x chat m", vec!["--numa distribute", "--numa"]),
            ("x chat m -ngl -1 hello", "x chat m hello", vec!["-ngl -1"]),
            ("x chat -ngl -n 5", "x chat --n-predict=5", vec!["-ngl"]),
            ("x chat --spec-replace a b m", "x chat m", vec!["--spec-replace a b"]),
            ("x chat --no_mmap m", "x chat m", vec!["--no-mmap"]),
            ("x chat -t -1 m --dtype=auto", "x chat m", vec!["--threads -1", "--dtype auto"]),
            ("x chat m -- -fa on", "x chat m -- -fa on", vec![]),
            ("x generate -p -fa", "x generate --prompt=-fa", vec![]),
            ("x chat -e m", "x chat m", vec!["-e"]),
            ("x chat --mirostat 0 --mirostat-lr 0.1 m", "x chat m", vec!["--mirostat 0", "--mirostat-lr 0.1"]),
            ("x chat --xtc-probability 0.00 m", "x chat m", vec!["--xtc-probability 0.00"]),
            ("x chat --think m", "x chat m", vec!["--think"]),
            ("x chat -cnv m", "x chat m", vec!["-cnv"]),
        ] {
            let line = line(words);
            let found: Vec<&str> = line.ignored.iter().map(|passed| passed.option.as_str()).collect();
            assert_eq!((rewritten(words), found), (left.replacen('x', "foretoken", 1), ignored), "{words}");
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
                assert_eq!((line.words([]).len(), line.positionals.len()), (3, 1), "{words}");
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
        assert_eq!(rewritten("x chat --color -n 5"), "foretoken chat --color=auto --n-predict=5");
        assert_eq!(rewritten("x chat -co always --color"), "foretoken chat --color=always --color=auto");
    }

    #[test]
    fn flags_are_unset() {
        let words = "x -qv generate --json -n 3 --no-json --no-quiet hello";
        assert_eq!(rewritten(words), "foretoken generate --verbose --n-predict=3 hello");
        assert!(line(words).given.iter().any(|given| given.id == "json" && given.is_unset));
        assert_eq!(rewritten("x generate --json --no-json --json"), "foretoken generate --json");
    }
}
