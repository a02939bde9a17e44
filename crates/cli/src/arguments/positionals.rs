//! Positional arguments: which of them is the model, and which the prompt.
//!
//! `chat MODEL PROMPT` has both. Where an option names the model already, a single word is the prompt; and `generate`,
//! whose positional argument is the prompt, also takes a model before it. What clap would misread is rewritten as
//! options.

use std::path::Path;

use clap::Command;
use foretoken_console::failure::Failure;
use foretoken_hub::Name;

use super::line::Line;

/// Rewrites positional words as options where clap would take them for something else.
///
/// # Errors
/// Two models are named.
pub fn assign(mut line: Line, program: &Command) -> Result<Line, Failure> {
    let first = line.positionals.first().map(|(_, word)| word.to_string_lossy());
    let count = line.positionals.len();
    let names_model = line.gives("model") || line.gives("hf_repo");
    let names_prompt = ["prompt", "file", "prompt_ids", "prompts"].iter().any(|id| line.gives(id));
    let option = match (line.path.first().map(String::as_str), first) {
        (Some("chat"), Some(word)) if count == 1 => {
            let is_prompt = if names_model { !is_model_path(&word) } else { looks_like_prompt(&word) };
            is_prompt.then_some("prompt")
        }
        (Some("generate"), Some(word)) if !names_model => {
            let is_model = is_model_path(&word) || (count > 1 || names_prompt) && is_model_name(&word);
            is_model.then_some("model")
        }
        _ => None,
    };
    if let Some(option) = option {
        let (_, word) = line.positionals.remove(0);
        line.prepend(option, Some(word));
    }
    if line.path.first().is_some_and(|name| name == "serve") {
        name_further_models(&mut line);
    }
    check_models(&line, program)?;
    if line.called == "run" && (line.gives("prompt") || line.positionals.len() > 1) {
        line.prepend("single-turn", None);
    }
    Ok(line)
}

/// Turns every `--model` of a server but the first into `--further-model`.
fn name_further_models(line: &mut Line) {
    let first = usize::from(line.positionals.is_empty());
    for given in line.given.iter_mut().filter(|given| given.id == "model" && given.value.is_some()).skip(first) {
        (given.id, given.long) = ("further_model".to_string(), "further-model".to_string());
    }
}

/// Refuses a second model.
fn check_models(line: &Line, program: &Command) -> Result<(), Failure> {
    let has_model = line.command(program).get_positionals().next().is_some_and(|arg| arg.get_id() == "place");
    let positional = line.positionals.first().filter(|_| has_model).map(|(_, word)| word.to_string_lossy());
    let named = |name: &str, id: &str| line.value(id).map(|value| format!("{name} {}", value.display()));
    let models =
        [positional.map(|word| format!("{word:?}")), named("-m, --model", "model"), named("-hf, --hf-repo", "hf_repo")];
    let found: Vec<String> = models.into_iter().flatten().collect();
    match found.len() > 1 {
        true => {
            Err(Failure::Usage(format!("expected one model, found {}; leave out all but one", found.join(" and "))))
        }
        false => Ok(()),
    }
}

/// Whether a word is the path of a model: a file, or a folder with its configuration.
fn is_model_path(word: &str) -> bool {
    let path = Path::new(word);
    path.is_file() && word.ends_with(".gguf") || path.join("config.json").is_file()
}

/// Whether a word can only be a model: a .gguf file or a name on the hub.
fn is_model_name(word: &str) -> bool {
    !word.contains(char::is_whitespace) && (word.ends_with(".gguf") || Name::is_like(word))
}

/// Whether a word is a prompt and not a model: it has white space and is no path.
pub fn looks_like_prompt(word: &str) -> bool {
    let is_path = word.starts_with(['/', '.', '~', '\\']) || word.ends_with(".gguf") || Path::new(word).exists();
    word.contains(char::is_whitespace) && !is_path
}
