//! Words in a row: which of them is the model, and which the prompt.
//!
//! `chat MODEL PROMPT` says both in their places. Where an option names the model already, a further word is the
//! prompt; and `generate`, whose one place is the prompt's, takes a model before it for what it is. What is understood
//! so is written out as options. Left out: the model in a command's place.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use foretoken_console::failure::Failure;
use foretoken_hub::Name;

use super::line::Line;

/// The line with options for words whose meaning their places alone do not say.
///
/// # Errors
/// Two models are named.
pub fn told_apart(line: Line, program: &Command) -> Result<Line, Failure> {
    let word = |place: usize| line.positionals.get(place).map(|at| line.words[*at].to_string_lossy().into_owned());
    let (first, count) = (word(0), line.positionals.len());
    let names_model = line.gives("model") || line.gives("hf_repo");
    let names_prompt = ["prompt", "file", "prompt_ids", "prompts"].iter().any(|id| line.gives(id));
    let meant = match (line.path.first().map(String::as_str), first) {
        (Some("chat"), Some(word)) if count == 1 => {
            let is_prompt = if names_model { !is_there(&word) } else { is_sentence(&word) };
            is_prompt.then_some("--prompt=")
        }
        (Some("generate"), Some(word)) if !names_model => {
            let is_model = is_there(&word) || (count > 1 || names_prompt) && is_name(&word);
            is_model.then_some("--model=")
        }
        _ => None,
    };
    let mut line = meant.map_or(line.clone(), |option| with_option(line, option, program));
    if line.path.first().is_some_and(|name| name == "serve") {
        line = with_further_models(line, program);
    }
    check_models(&line, program)?;
    let is_run = line.own.checked_sub(1).is_some_and(|at| line.words[at] == "run");
    if is_run && (line.gives("prompt") || line.positionals.len() > 1) {
        line.words.insert(line.own, "--single-turn".into());
        line.positionals.iter_mut().for_each(|at| *at += 1);
    }
    Ok(line)
}

/// The line with its first word behind an option.
fn with_option(line: Line, option: &str, program: &Command) -> Line {
    let mut words = line.words;
    let word = words.remove(line.positionals[0]);
    let mut named = OsString::from(option);
    named.push(word);
    words.insert(line.own, named);
    let read = Line::read(words, program);
    // What was taken out of the words is known from before.
    Line { passed_over: line.passed_over, unknown: line.unknown, ..read }
}

/// The line of a server, which may have several models: all but the first are further ones.
fn with_further_models(line: Line, program: &Command) -> Line {
    let first = usize::from(line.positionals.is_empty());
    let named: Vec<(usize, String)> = line
        .given
        .iter()
        .filter(|given| given.id == "model")
        .skip(first)
        .filter_map(|given| Some((given.at, given.value.clone()?)))
        .collect();
    if named.is_empty() {
        return line;
    }
    let mut words = line.words;
    for (at, value) in named.into_iter().rev() {
        // The value is a word of its own, or a part of the option's.
        let is_apart = ["-m", "--model"].iter().any(|option| words[at] == *option);
        let words_of = at..=at + usize::from(is_apart);
        words.splice(words_of, [OsString::from(format!("--further-model={value}"))]);
    }
    let read = Line::read(words, program);
    Line { passed_over: line.passed_over, unknown: line.unknown, ..read }
}

/// Refuses a second model.
fn check_models(line: &Line, program: &Command) -> Result<(), Failure> {
    let has_place = line.command(program).get_positionals().next().is_some_and(|arg| arg.get_id() == "place");
    let place = line.positionals.first().filter(|_| has_place).map(|at| line.words[*at].to_string_lossy());
    let named = |name: &str, id: &str| line.value(id).map(|value| format!("{name} {value}"));
    let models =
        [place.map(|word| format!("{word:?}")), named("-m, --model", "model"), named("-hf, --hf-repo", "hf_repo")];
    let found: Vec<String> = models.into_iter().flatten().collect();
    match found.len() > 1 {
        true => {
            Err(Failure::Usage(format!("expected one model, found {}; leave out all but one", found.join(" and "))))
        }
        false => Ok(()),
    }
}

/// Whether a model lies there: a file, or a folder with its configuration.
fn is_there(word: &str) -> bool {
    let path = Path::new(word);
    path.is_file() && word.ends_with(".gguf") || path.join("config.json").is_file()
}

/// Whether a word names a model by itself: one that lies there, a .gguf file or a name of the hub.
fn is_name(word: &str) -> bool {
    !word.contains(char::is_whitespace) && (word.ends_with(".gguf") || Name::is_like(word))
}

/// Whether a word says something to a model, and names none.
pub fn is_sentence(word: &str) -> bool {
    let is_path = word.starts_with(['/', '.', '~', '\\']) || word.ends_with(".gguf") || Path::new(word).exists();
    word.contains(char::is_whitespace) && !is_path
}
