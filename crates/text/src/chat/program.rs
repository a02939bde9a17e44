//! A template as a program: Jinja as transformers sets it up, with the same white space rules, filters and functions.
//!
//! It is trusted no further than that: no files, no includes, and a budget of steps. Left out: the mask that the
//! `generation` tag computes (the tag itself is understood), and a bound on memory.

use minijinja::syntax::SyntaxConfig;
use minijinja::tests::is_iterable;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, escape_formatter};

use super::{clock, json, python};
use crate::TextError;

/// Steps that one rendering may take. A conversation of a thousand messages takes some hundred thousand.
const FUEL: u64 = 20_000_000;

/// A template that parses.
pub(super) struct Program {
    /// As it came with the model.
    pub source: String,
    environment: Environment<'static>,
}

impl Program {
    /// `name` stands in messages where a file would.
    pub fn new(name: &str, source: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TextError::template(name, error))?);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(python::method);
        environment.set_formatter(|output, state, value| match json::as_float(value) {
            Some(text) => output.write_str(&text).map_err(Error::from),
            None => escape_formatter(output, state, value),
        });
        environment.add_filter("tojson", |value: &Value, options: Kwargs| json::to_json(value, options, &[]));
        environment.add_filter("string", python::string);
        environment.add_filter("indent", python::indent);
        environment.add_filter("length", python::length);
        environment.add_filter("count", python::length);
        environment.add_test("iterable", |value: &Value| !value.is_none() && is_iterable(value));
        environment.add_function("strftime_now", |format: String| clock::format(clock::now(), &format));
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        let source_run = without_generation_tags(source);
        environment.add_template_owned("chat", source_run).map_err(|error| TextError::template(name, error))?;
        Ok(Self { source: source.to_owned(), environment })
    }

    /// The same program for texts in which these characters stand for others: where JSON writes a backslash before the
    /// one, it is written before the other.
    pub fn with_escapes(&self, stand_ins: Vec<char>) -> Self {
        let mut environment = self.environment.clone();
        environment
            .add_filter("tojson", move |value: &Value, options: Kwargs| json::to_json(value, options, &stand_ins));
        Self { source: self.source.clone(), environment }
    }

    pub fn render(&self, name: &str, variables: Vec<(String, Value)>) -> Result<String, TextError> {
        let template = self.environment.get_template("chat").map_err(|error| TextError::template(name, error))?;
        template.render(Value::from_pairs(variables)).map_err(|error| TextError::template(name, error))
    }
}

/// `{% generation %}` marks the assistant's words for training. Here it means nothing, but the engine does not know it,
/// so the tags become a condition that holds, with the same control of white space.
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
