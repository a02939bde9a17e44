//! `foretoken config`: each setting of a command line, and what decided it.
//!
//! The sources, strongest first, are the command line, the environment, the configuration file, the model's
//! `generation_config.json` and the program. Nothing is run, and only the small files of the model are read. API keys
//! are not shown. For a value that the program only chooses when it runs, such as a seed, the description from the help
//! is shown.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use clap::{Arg, Args, Command, CommandFactory};
use foretoken::settings::{ModelSettings, SamplingSettings};
use foretoken_console::failure::Failure;
use foretoken_console::hub;
use foretoken_console::names;
use foretoken_console::progress::say;
use foretoken_console::terminal::standard_output;
use serde_json::{Value, json};

use crate::Cli;
use crate::arguments::defaults::{
    Defaults, HIDDEN, NOT_SETTINGS, OTHER_VARIABLES, RawValue, SECRETS, Source, user_file, words,
};
use crate::arguments::line::{Line, options, takes_value};

const AFTER_HELP: &str = "\
The file is ~/.config/foretoken/config.toml (below XDG_CONFIG_HOME, if that is set), or the one that
--config or the variable FORETOKEN_CONFIG names. Its names are those of options:

  model = \"~/models/qwen\"     for every command that has --model
  threads = 4

  [generate]
  temp = 0.7                  for `foretoken generate` alone; counts more
  stop = [\"END\", \"###\"]
  ignore-eos = true           a flag; --no-ignore-eos takes it back

  [bench.pass]
  rows = [1, 8]

Variables are named like options, too: FORETOKEN_TOP_P=0.9 is --top-p 0.9. The command line is stronger
than a variable, a variable than the file, the file than the model's generation_config.json.";

/// Options of `foretoken config`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Config {
    /// The command whose settings are shown, with any of its options [default: generate]
    #[arg(value_name = "COMMAND", num_args = 0.., allow_hyphen_values = true)]
    line: Vec<String>,
    /// Print one JSON object: the command, the file, and for each setting its value and where it comes from
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// What decided a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decider {
    CommandLine,
    Default(Source),
    /// The model's file of this name.
    Model(String),
    Program,
}

impl Decider {
    /// The fields "from" and "place" of the JSON.
    fn kind_and_location(&self) -> (&'static str, Option<String>) {
        match self {
            Self::CommandLine => ("command line", None),
            Self::Default(Source::File(path, line)) => ("file", Some(format!("{}: line {line}", path.display()))),
            Self::Default(Source::Environment(variable)) => ("environment", Some(variable.clone())),
            Self::Model(file) => ("model", Some(file.clone())),
            Self::Program => ("program", None),
        }
    }
}

/// A setting, its values and what decided them.
struct Setting {
    name: String,
    values: Vec<String>,
    /// What the help says of the default, if there is no value before the command runs.
    described: Option<String>,
    from: Decider,
}

impl Setting {
    fn display(&self) -> String {
        match (&self.values[..], &self.described) {
            ([], Some(text)) => format!("({text})"),
            ([], None) => "-".to_string(),
            (values, _) => values.join(","),
        }
    }

    fn object(&self) -> Value {
        let value = match &self.values[..] {
            [] => Value::Null,
            [one] => json!(one),
            several => json!(several),
        };
        let (kind, place) = self.from.kind_and_location();
        json!({ "value": value, "described": self.described, "from": kind, "place": place })
    }
}

/// Prints the settings of a command line.
///
/// # Errors
/// A value is none of its option's, or standard output cannot be written.
pub fn print(line: &Line, defaults: &Defaults) -> Result<(), Failure> {
    let mut program = Cli::command();
    program.build();
    let command = line.command(&program);
    let settings = settings(line, defaults, &program, command)?;
    let command_name = line.path.join(" ");
    let mut out = standard_output();
    if line.as_json {
        let settings: BTreeMap<&str, Value> =
            settings.iter().map(|setting| (setting.name.as_str(), setting.object())).collect();
        let object = json!({
            "command": command_name,
            "file": defaults.file,
            "settings": settings,
            "unknown_variables": defaults.unknown_variables,
        });
        writeln!(out, "{object:#}")?;
        return Ok(out.flush()?);
    }
    let file = match (&defaults.file, user_file()) {
        (Some(path), _) => format!("file {}", path.display()),
        (None, Some(path)) => format!("no file {}", path.display()),
        (None, None) => "no file".to_string(),
    };
    writeln!(out, "foretoken {command_name}; {file}\n")?;
    let width = settings.iter().map(|setting| setting.name.len()).max().unwrap_or(0);
    let (by_program, decided): (Vec<&Setting>, _) =
        settings.iter().partition(|setting| setting.from == Decider::Program);
    for setting in decided.into_iter().chain(by_program) {
        let from = match setting.from.kind_and_location() {
            (kind, None) => kind.to_string(),
            (_, Some(place)) => place,
        };
        writeln!(out, "{:<width$}  {:<28}  {from}", setting.name, setting.display())?;
    }
    out.flush()?;
    for variable in &defaults.unknown_variables {
        say(format_args!("note: {variable}: expected an option's name behind FORETOKEN_, found no such"));
    }
    Ok(())
}

fn settings(line: &Line, defaults: &Defaults, program: &Command, command: &Command) -> Result<Vec<Setting>, Failure> {
    let mut settings = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for option in options(program, command) {
        let id = option.get_id().as_str();
        if !NOT_SETTINGS.contains(&id) && !option.is_hide_set() && !seen.contains(&id) {
            seen.push(id);
            settings.push(setting(option, line, defaults, command)?);
        }
    }
    add_model_defaults(&mut settings);
    for variable in OTHER_VARIABLES {
        let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else { continue };
        let from = Decider::Default(Source::Environment(variable.to_string()));
        if variable == "FORETOKEN_ISA" {
            let values = vec![value.to_string_lossy().into_owned()];
            settings.push(Setting { name: "isa".into(), values, described: None, from });
        } else if let Some(keys) = settings.iter_mut().find(|setting| setting.name == "api-key") {
            (keys.values, keys.from) = (vec![HIDDEN.to_string()], from);
        }
    }
    Ok(settings)
}

/// A setting as decided by the line, the defaults of file and environment, and clap.
fn setting(option: &Arg, line: &Line, defaults: &Defaults, command: &Command) -> Result<Setting, Failure> {
    let id = option.get_id().as_str();
    let name = option.get_long().unwrap_or_default().to_string();
    let given = || line.given.iter().filter(|given| given.id == id);
    let mut values = Vec::new();
    for value in given().filter(|_| takes_value(option)).filter_map(|given| given.value.as_ref()) {
        let found = words(option, &RawValue::One(value.to_string_lossy().into_owned()));
        values.extend(found.map_err(|problem| Failure::Usage(format!("--{name}: {problem}")))?.0);
    }
    if let (Some(last), false) = (given().next_back(), takes_value(option)) {
        values = vec![(!last.is_unset).to_string()];
    }
    if !matches!(option.get_action(), clap::ArgAction::Append) {
        values.drain(..values.len().saturating_sub(1));
    }
    let place =
        command.get_positionals().zip(&line.positionals).find(|(arg, _)| id == "model" && arg.get_id() == "place");
    if let Some((_, (_, word))) = place {
        values = vec![word.to_string_lossy().into_owned()];
    }
    let elsewhere = defaults.values.iter().find(|default| default.id == id);
    let (mut values, from) = match (values.is_empty() && given().next().is_none(), elsewhere) {
        (false, _) => (values, Decider::CommandLine),
        (true, Some(default)) => (default.values.clone(), Decider::Default(default.source.clone())),
        (true, None) if !takes_value(option) => (vec!["false".to_string()], Decider::Program),
        (true, None) => {
            let values = option.get_default_values().iter();
            (values.map(|value| value.to_string_lossy().into_owned()).collect(), Decider::Program)
        }
    };
    if SECRETS.contains(&id) && !values.is_empty() {
        values = vec![HIDDEN.to_string()];
    }
    let described = if values.is_empty() { described_default(option) } else { None };
    Ok(Setting { name, values, described, from })
}

/// What the help of an option says about its default.
fn described_default(option: &Arg) -> Option<String> {
    let help = option.get_long_help().or(option.get_help())?.to_string();
    let (_, after) = help.split_once("[default: ")?;
    Some(after.split(']').next()?.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Fills in the sampling settings that the model's files decide, and the program's own where they say nothing.
fn add_model_defaults(settings: &mut [Setting]) {
    let value = |name: &str| settings.iter().find(|setting| setting.name == name)?.values.first();
    let text = |name: &str| value(name).map(String::as_str);
    if !settings.iter().any(|setting| setting.name == "top-k") {
        return;
    }
    // Nothing is downloaded to show settings.
    let path = match hub::in_cache(value("model").map(Path::new), text("hf-repo"), text("hf-file")) {
        Ok(path) => path,
        Err(failure) => {
            let why = failure.message().unwrap_or_default();
            return say(format_args!("note: what the model decides is left out: {why}"));
        }
    };
    let opened = ModelSettings { path, ..ModelSettings::default() }.open();
    // What the model's files say of beam searches is only decided for one.
    let beams = text("num-beams").and_then(|beams| beams.parse().ok()).unwrap_or(1);
    let asked = SamplingSettings { num_beams: beams, ..SamplingSettings::default() };
    let decided = opened.and_then(|opened| asked.decided(&opened, None));
    let decided = match decided {
        Ok(decided) => decided,
        Err(error) => return say(format_args!("note: what the model decides is left out: {error}")),
    };
    let all = serde_json::to_value(&decided.settings).unwrap_or_default();
    let open = serde_json::to_value(SamplingSettings::default()).unwrap_or_default();
    let is_decided = |(name, value): &(&String, &Value)| open[name.as_str()].is_null() && !value.is_null();
    for (name, value) in all.as_object().into_iter().flatten().filter(is_decided) {
        let long = names::option(name);
        let setting = settings.iter_mut().find(|setting| long.strip_prefix("--") == Some(&setting.name));
        // A missing seed is only drawn when a text begins.
        let Some(setting) = setting.filter(|setting| setting.from == Decider::Program && name != "seed") else {
            continue;
        };
        setting.values = vec![match value {
            Value::String(name) => name.clone(),
            value => value.as_f64().map_or(value.to_string(), |number| (number as f32).to_string()),
        }];
        setting.described = None;
        if decided.decided_by_model.contains(&name.as_str()) {
            setting.from = Decider::Model(decided.file.clone());
        }
    }
}
