//! Chat templates: a conversation as the text that the model was trained on.
//!
//! A template is a Jinja program that comes with the model, so it is run the way transformers runs it (the same white
//! space rules, functions and variables) and trusted no further than that: no files, no includes, and a budget of
//! steps.
//!
//! What the template writes may be special tokens; what messages say is only text, so that nobody ends a turn or
//! begins a system's by typing its marks ([`ChatTemplate::encode`]). Who wrote what is found out in [`marking`].
//!
//! What it leaves out: tools and documents (templates see `none`), content that is not text, and the mask that the
//! `generation` tag computes; the tag itself is understood. Memory is not bounded, only steps are.

mod clock;
mod json;
mod marking;

use std::fmt;
use std::path::Path;

use foretoken_weights::gguf::Metadata;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, context};
use serde::{Deserialize, Serialize};

use crate::tokenizer::{GgufVocabulary, SpecialSpan, json_file, special_spelling};
use crate::{TextError, Token, Tokenizer};
use marking::{Marking, spelt_out};

/// Steps that one rendering may take. A conversation of a thousand messages takes some hundred thousand.
const FUEL: u64 = 20_000_000;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// The chat template of one model.
pub struct ChatTemplate {
    name: String,
    source: String,
    bos: String,
    eos: String,
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Reads the template of a model folder: `chat_template.jinja`, or else what `tokenizer_config.json` holds.
    /// `None` if there is neither.
    ///
    /// # Errors
    /// If a file cannot be read or understood, or the template does not parse.
    pub fn from_dir(dir: &Path) -> Result<Option<Self>, TextError> {
        let config_path = dir.join("tokenizer_config.json");
        let config = json_file(&config_path)?.unwrap_or_default();
        let mark = |key| special_spelling(&config, key).unwrap_or("");
        let path = dir.join("chat_template.jinja");
        match std::fs::read_to_string(&path) {
            Ok(source) => {
                return Self::from_source(&path.display().to_string(), &source, mark("bos_token"), mark("eos_token"))
                    .map(Some);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(TextError::read(&path, error)),
        }
        let place = config_path.display().to_string();
        let Some(source) = template_of(&place, config.get("chat_template"))? else { return Ok(None) };
        Self::from_source(&place, source, mark("bos_token"), mark("eos_token")).map(Some)
    }

    /// Makes a template from its source. `bos` and `eos` are what the template sees as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// If it does not parse. `name` stands in messages where a file would.
    pub fn from_source(name: &str, source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TextError::template(name, error))?);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", json::to_json);
        environment.add_function("strftime_now", |format: String| clock::format(clock::now(), &format));
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        let source_run = without_generation_tags(source);
        environment.add_template_owned("chat", source_run).map_err(|error| TextError::template(name, error))?;
        Ok(Self {
            name: name.to_owned(),
            source: source.to_owned(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            environment,
        })
    }

    /// The template of a GGUF file, if it has one. `name` stands in messages where a file would.
    ///
    /// # Errors
    /// If the vocabulary is malformed or the template does not parse.
    pub fn from_gguf(name: &str, metadata: &Metadata) -> Result<Option<Self>, TextError> {
        let Some(source) = metadata.optional_str("tokenizer.chat_template")? else { return Ok(None) };
        let vocabulary = GgufVocabulary::from_metadata(name, metadata)?;
        let (bos, eos) = (vocabulary.spelling(vocabulary.bos), vocabulary.spelling(vocabulary.eos));
        Self::from_source(name, source, bos, eos).map(Some)
    }

    /// Writes a conversation as the model expects it, ending, if wanted, where the assistant's answer begins.
    /// To be shown: for a model, [`ChatTemplate::encode`] knows which special tokens in it are the template's.
    ///
    /// # Errors
    /// If the template raises an exception, fails, or takes too many steps.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, TextError> {
        let message = |message: &Message| {
            Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())])
        };
        let conversation: Vec<Value> = messages.iter().map(message).collect();
        let template = self.environment.get_template("chat").map_err(|error| TextError::template(&self.name, error))?;
        template
            .render(context! {
                messages => conversation,
                tools => (),
                documents => (),
                add_generation_prompt => add_generation_prompt,
                bos_token => self.bos.as_str(),
                eos_token => self.eos.as_str(),
            })
            .map_err(|error| TextError::template(&self.name, error))
    }

    /// The tokens of a conversation as the model expects it, ending, if wanted, where the assistant's answer begins.
    ///
    /// Special tokens are the template's alone: one that a message spells is encoded as text, also if only the template
    /// completes it or makes it (by taking out what stands between its halves, or by other letters). Letters, digits
    /// and underscores alone may complete one of the template's, as in `'<|' + message.role + '|>'`. Tokens that were
    /// added to the vocabulary and are not special, often `</think>`, are words like others and found everywhere.
    /// Where messages take no part in a special token, the tokens are those of the whole text of
    /// [`ChatTemplate::render`], as transformers has them, whatever the template does with the messages.
    ///
    /// Where a message spells a special token and the template compares its signs in a way that cannot be followed
    /// (with the value of `eos_token`, say), the template is not shown these signs, and writes what it writes then.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`] and [`Tokenizer::encode`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<Token>, TextError> {
        let (text, specials) = self.render_with_specials(tokenizer, messages, add_generation_prompt)?;
        tokenizer.encode_with(&text, &specials)
    }

    /// The text of a conversation, and where the template has written special tokens in it.
    fn render_with_specials(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<(String, Vec<SpecialSpan>), TextError> {
        let text = self.render(messages, add_generation_prompt)?;
        let found = spelt_out(tokenizer, &text, tokenizer.specials(&text));
        let strings: Vec<&str> = messages.iter().flat_map(|message| [&*message.role, &*message.content]).collect();
        let texts = [strings.as_slice(), &[&text, &self.source, &self.bos, &self.eos]].concat();
        let marking = Marking::new(tokenizer, &texts)
            .ok_or_else(|| TextError::template(&self.name, "expected characters that the text lacks, found none"))?;
        let mark = |message: &Message| Message::new(marking.mark(&message.role), marking.mark(&message.content));
        let marked: Vec<Message> = messages.iter().map(mark).collect();
        if found.is_empty() || marked == messages {
            return Ok((text, found));
        }

        let agrees = |rendered: &Result<String, _>| rendered.as_ref().is_ok_and(|it| marking.unmark(it) == text);
        let mut rendered = self.render(&marked, add_generation_prompt);
        if !agrees(&rendered) {
            // The template looks into the messages: let it find there what it looks for.
            let twin = Self::from_source(&self.name, &marking.mark_tests(&self.source), &self.bos, &self.eos);
            rendered = twin.and_then(|twin| twin.render(&marked, add_generation_prompt));
        }
        let own = rendered.as_ref().map(|it| marking.own_specials(tokenizer, it)).unwrap_or_default();
        if agrees(&rendered) {
            return Ok((text, own));
        }

        // What it looks for cannot be followed. Its own text is safe if the messages spell nothing and it has written
        // the same special tokens as into the marked text.
        let tokens = |spans: &[SpecialSpan]| spans.iter().map(|span| span.token).collect::<Vec<_>>();
        let is_spelt = strings.iter().any(|text| !tokenizer.specials(text).is_empty());
        if !is_spelt && (rendered.is_err() || tokens(&own) == tokens(&found)) {
            return Ok((text, found));
        }
        Ok((marking.unmark(&rendered?), own))
    }

    /// The template as it came with the model.
    pub fn source(&self) -> &str {
        &self.source
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("name", &self.name).field("source", &self.source).finish_non_exhaustive()
    }
}

/// `chat_template` of a configuration: a string, or a list of templates with names, of which `default` counts.
fn template_of<'a>(place: &str, value: Option<&'a serde_json::Value>) -> Result<Option<&'a str>, TextError> {
    use serde_json::Value as Json;
    let text = |entry: &'a Json, key: &str| entry.get(key).and_then(Json::as_str);
    match value {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(source)) => Ok(Some(source)),
        Some(Json::Array(list)) => {
            let default = list.iter().find(|entry| text(entry, "name") == Some("default"));
            let source = default.and_then(|entry| text(entry, "template"));
            let names = || list.iter().filter_map(|entry| text(entry, "name")).collect::<Vec<_>>().join(", ");
            let missing =
                || TextError::field(place, "chat_template", "a template named default", format!("[{}]", names()));
            source.map(Some).ok_or_else(missing)
        }
        Some(other) => Err(TextError::field(place, "chat_template", "a string or a list of templates", other)),
    }
}

/// `{% generation %}` marks the assistant's words for training. Here it means nothing, but the engine does not know it,
/// so the tags become a condition that holds, with the same control of white space.
fn without_generation_tags(source: &str) -> String {
    let mut rest = source;
    let mut text = String::with_capacity(source.len());
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
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

#[cfg(test)]
#[path = "chat/tests.rs"]
mod tests;
