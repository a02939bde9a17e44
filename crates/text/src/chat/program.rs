//! Runs a template: Jinja with transformers' white space rules, filters and functions.
//!
//! Templates are untrusted: no files, no includes, a bounded depth ([`super::bounds`]), and a limit on all their work
//! ([`Program::render`], [`super::metered`]). The `generation` tag is accepted; its mask is not computed.

use std::collections::BTreeMap;

use minijinja::machinery::{eval, get_compiled_template, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::tests::is_iterable;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, escape_formatter};

use super::metered::{FUEL_BYTES, ValueSize, add_meters, charge, metered};
use super::{bounds, clock, json, python};
use crate::TextError;
use crate::caught::caught;

/// The fuel of one rendering, independent of its input: a quarter of a million steps, or 16 MiB of texts and lists,
/// which with overhead and temporary copies are less than 64 MiB.
const FUEL: u64 = 1 << 18;

/// The lists of a conversation. Templates go through the whole conversation for each of their items.
const LISTS: [&str; 3] = ["messages", "tools", "documents"];

/// Deepest nesting of macros and blocks, in the engine's own units: some twenty of them.
const RECURSION: usize = 120;

/// A parsed template.
pub(super) struct Program {
    /// As it came with the model.
    pub source: String,
    environment: Environment<'static>,
}

impl Program {
    /// Parses a template. `name` identifies it in messages.
    pub fn new(name: &str, source: &str) -> Result<Self, TextError> {
        caught("templates", || Self::parsed(name, source)).map_err(|words| TextError::template(name, words))?
    }

    fn parsed(name: &str, source: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let syntax = syntax.map_err(|error| TextError::template(name, error))?;
        environment.set_syntax(syntax.clone());
        environment.set_recursion_limit(RECURSION);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(python::method);
        environment.set_formatter(|output, state, value| {
            if value.as_object().is_some() {
                charge(state, std::slice::from_ref(value))?;
            }
            match json::as_float(value) {
                Some(text) => output.write_str(&text).map_err(Error::from),
                None => escape_formatter(output, state, value),
            }
        });
        environment.add_filter("tojson", |state: &State, value: &Value, options: Kwargs| {
            json::to_json(state, value, options, &[])
        });
        environment.add_filter("string", python::string);
        environment.add_filter("indent", python::indent);
        environment.add_filter("length", python::length);
        environment.add_filter("count", python::length);
        environment.add_test("iterable", |value: &Value| !value.is_none() && is_iterable(value));
        environment.add_function("strftime_now", |format: String| clock::format(clock::now(), &format));
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        add_meters(&mut environment);
        let source_run = without_generation_tags(source);
        bounds::check(&source_run, &syntax).map_err(|error| TextError::template(name, error))?;
        let refused = |error: Error| TextError::template(name, engine_message(&error));
        environment.add_template_owned("chat", source_run).map_err(refused)?;
        let template = environment.get_template("chat").map_err(refused)?;
        let compiled = get_compiled_template(&template);
        for part in compiled.blocks.values().chain([&compiled.instructions]) {
            metered(part).map_err(|words| TextError::template(name, words))?;
        }
        Ok(Self { source: source.to_owned(), environment })
    }

    /// This program for marked texts: `tojson` writes a backslash before these placeholders, since it does so before
    /// the characters that they replace.
    pub fn with_escapes(&self, placeholders: Vec<char>) -> Self {
        let mut environment = self.environment.clone();
        environment.add_filter("tojson", move |state: &State, value: &Value, options: Kwargs| {
            json::to_json(state, value, options, &placeholders)
        });
        Self { source: self.source.clone(), environment }
    }

    /// Runs the program with these variables.
    ///
    /// One unit of fuel is a step, 64 bytes, or four visited values. In addition to [`FUEL`] there is fuel for the
    /// conversation: four for each byte (a template reads a message a few times and writes it once) and 256 for each
    /// value; and each message may visit the whole conversation once, or copy it twice, since templates that append to
    /// a text message by message copy it as often.
    pub fn render(&self, name: &str, variables: Vec<(String, Value)>) -> Result<String, TextError> {
        caught("templates", || self.run(name, variables)).map_err(|words| TextError::template(name, words))?
    }

    fn run(&self, name: &str, variables: Vec<(String, Value)>) -> Result<String, TextError> {
        let refused = |error: Error| TextError::template(name, engine_message(&error));
        let mut input_size = ValueSize::default();
        let mut lists = 0;
        for (variable, value) in &variables {
            measure(value, &mut input_size);
            lists += if LISTS.contains(&variable.as_str()) { value.len().unwrap_or(0) as u64 } else { 0 };
        }
        let ValueSize { values, bytes } = input_size;
        let proportional = 4 * bytes + 256 * values;
        let fuel =
            FUEL.saturating_add(proportional).saturating_add(lists.saturating_mul(bytes / (FUEL_BYTES / 2) + values));
        let mut environment: Environment<'_> = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template("chat").map_err(refused)?;
        let compiled = get_compiled_template(&template);
        let refused_words = |words: String| TextError::template(name, words);
        let program = metered(&compiled.instructions).map_err(refused_words)?;
        let blocks = compiled.blocks.iter().map(|(name, block)| Ok((*name, metered(block)?)));
        let blocks: BTreeMap<_, _> = blocks.collect::<Result<_, String>>().map_err(refused_words)?;
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        let evaluated =
            eval(&environment, &program, Value::from_pairs(variables), &blocks, &mut output, AutoEscape::None);
        let outcome = evaluated.map(|_| ()).map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => {
                let limit = (fuel * FUEL_BYTES) >> 20;
                let most = format!("expected at most {fuel} steps or {limit} MiB for this conversation, found more");
                TextError::template(name, at_line(&error, most))
            }
            _ => refused(error),
        });
        drop(output);
        outcome.map(|()| text)
    }
}

/// The engine's error message, with its line.
fn engine_message(error: &Error) -> String {
    let words = error.detail().map_or(error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    at_line(error, words)
}

fn at_line(error: &Error, words: String) -> String {
    error.line().map_or(words.clone(), |line| format!("line {line}: {words}"))
}

/// Measures a variable of a template. It is JSON or made by this crate, so its depth is bounded.
fn measure(value: &Value, size: &mut ValueSize) {
    size.values += 1;
    size.bytes += value.as_str().map_or(0, str::len) as u64;
    match value.kind() {
        ValueKind::Seq => value.try_iter().into_iter().flatten().for_each(|item| measure(&item, size)),
        ValueKind::Map => {
            let pairs = value.as_object().and_then(|map| map.try_iter_pairs());
            pairs.into_iter().flatten().for_each(|(key, item)| {
                measure(&key, size);
                measure(&item, size);
            });
        }
        _ => {}
    }
}

/// Replaces `{% generation %}` tags, which mark the assistant's text for training and are unknown to the engine, by a
/// condition that is always true, with the same white space control.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut rest = source;
    let mut text = String::with_capacity(source.len());
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start + 2..].find("%}").map(|len| len + 2) else { break };
        let tag = &rest[start..start + len];
        let word = tag[2..].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        text.push_str(&rest[..start]);
        match word {
            "generation" => text.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => text.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => text.push_str(tag),
        }
        rest = &rest[start + len..];
    }
    text.push_str(rest);
    text
}
