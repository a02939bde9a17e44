//! Opens a model: a directory, a `.gguf` file, or one that is part of the library (feature `demo`).
//!
//! The three sources differ only in where their files are. An opened model has a checkpoint, the network's shape, the
//! defaults of its files, and, on demand, tokenizer and chat template. The crate `hub` fetches models of a hub and
//! gives their paths.

mod active_parameters;
pub mod defaults;
pub(crate) mod demo;
mod memory_need;
mod offload;
mod path_check;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foretoken_model::checkpoint::Config;
use foretoken_model::family::{self, Layout, Plan};
pub use foretoken_model::{Backend, Checkpoint, Cpu, ExpertNeed, LayerNeed, Loaded, Options, Spec, WeightType, spec};
use foretoken_model::{Capacity, Network, SharedEmbeddings, Unpacked, backend};
use foretoken_speculation::Token;
use foretoken_text::{ChatTemplate, Tokenizer};
use foretoken_weights::gguf::{Metadata, Value};
use foretoken_weights::whole::{self, SETTINGS_BYTES_MAX, VOCABULARY_BYTES_MAX};
use foretoken_weights::{Bytes, gguf};

use crate::Error;
use crate::error::Message;
use crate::memory::MemoryNeed;
pub use active_parameters::ActiveParameters;
use defaults::Defaults;
use demo::Embedded;
pub use offload::Offload;

/// One in this many rows of the vocabulary may be padding without a note.
const PADDING_PART: usize = 16;

/// An empty safetensors file.
const NO_TENSORS: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

/// Whether the network of a configuration (`config.json`) is supported.
pub fn is_known(config: &[u8]) -> bool {
    let checkpoint = Checkpoint::from_parts("config", config, Bytes::from_static(NO_TENSORS));
    checkpoint.is_ok_and(|checkpoint| family::plan(&checkpoint).is_ok())
}

/// The location of a model's files.
enum Location {
    Embedded(&'static Embedded),
    Directory(PathBuf),
    Gguf,
}

/// A model whose files are open, before it is loaded.
pub struct Opened {
    /// The directory, the file or the demo model's name.
    pub name: String,
    /// Configuration and tensors.
    pub checkpoint: Checkpoint,
    /// The network's shape. Loading sets the values that depend on the context length ([`Options::context`]).
    pub spec: Spec,
    /// The names of its tensors.
    layout: Layout,
    /// The defaults in its files: sampling parameters, the beginning-of-text token and the end tokens.
    pub defaults: Defaults,
    location: Location,
}

impl Opened {
    /// Opens a directory or file.
    ///
    /// # Errors
    /// A file is missing, malformed, or of an unknown family.
    pub fn at(path: &Path) -> Result<Self, Error> {
        path_check::check(path)?;
        let checkpoint = Checkpoint::open(path)?;
        let Plan { spec, layout } = family::plan(&checkpoint)?;
        let name = path.display().to_string();
        if matches!(checkpoint.config, Config::Gguf(_)) {
            let (defaults, location) = (Defaults::default(), Location::Gguf);
            return Ok(Self { name, checkpoint, spec, layout, defaults, location });
        }
        let (generation, config) = (path.join("generation_config.json"), path.join("config.json"));
        let (generation_bytes, config_bytes) = (read_if_exists(&generation)?, read_if_exists(&config)?);
        let defaults = Defaults::read(
            (&generation.display().to_string(), generation_bytes.as_deref()),
            (&config.display().to_string(), config_bytes.as_deref()),
        )?;
        Ok(Self { name, checkpoint, spec, layout, defaults, location: Location::Directory(path.to_owned()) })
    }

    /// Opens a model by the name that it has when it is open: that of a built-in model, a directory or a file.
    ///
    /// # Errors
    /// As [`Opened::at`].
    pub fn named(name: &str) -> Result<Self, Error> {
        match [demo::target(), demo::draft()].into_iter().flatten().find(|files| files.name == name) {
            Some(files) => Self::embedded(files),
            None => Self::at(Path::new(name)),
        }
    }

    /// Opens a model that is part of the program.
    ///
    /// # Errors
    /// None, unless the program was built from damaged files.
    pub(crate) fn embedded(files: &'static Embedded) -> Result<Self, Error> {
        let checkpoint = Checkpoint::from_parts(files.name, files.config, Bytes::from_static(files.weights))?;
        let Plan { spec, layout } = family::plan(&checkpoint)?;
        let path = |file: &str| format!("{}/{file}", files.name);
        let defaults = Defaults::read(
            (&path("generation_config.json"), Some(files.generation_config)),
            (&path("config.json"), Some(files.config)),
        )?;
        let (name, location) = (files.name.to_string(), Location::Embedded(files));
        Ok(Self { name, checkpoint, spec, layout, defaults, location })
    }

    /// Its canonical path, or the demo model's name.
    pub fn place(&self) -> String {
        match self.location {
            Location::Embedded(_) => self.name.clone(),
            Location::Directory(_) | Location::Gguf => {
                std::fs::canonicalize(&self.name).map_or(self.name.clone(), |path| path.display().to_string())
            }
        }
    }

    /// Bytes of all tensors.
    pub fn weights_bytes(&self) -> usize {
        self.checkpoint.weights.iter().map(|tensor| tensor.bytes.len()).sum()
    }

    /// Bytes of the routed experts, with matrices of floats converted to `weight_type`.
    ///
    /// # Errors
    /// A tensor is missing or contradicts the configuration, or there is a `weight_type` and the weights are not
    /// floats.
    pub fn expert_need(&self, weight_type: Option<WeightType>) -> Result<ExpertNeed, Error> {
        if self.spec.experts.is_none() {
            return Ok(ExpertNeed::default());
        }
        let plan = Plan { spec: self.spec.clone(), layout: self.layout.clone() };
        Ok(plan.read(&self.checkpoint, None)?.expert_need(weight_type)?)
    }

    /// Bytes of the layers that can be read from a file for every pass, with matrices of floats converted to
    /// `weight_type`.
    ///
    /// # Errors
    /// As [`Opened::expert_need`].
    pub fn layer_need(&self, weight_type: Option<WeightType>) -> Result<LayerNeed, Error> {
        // Networks with these have no such layers, and need not be read to know it.
        let Spec { draft_head, experts, encoder, .. } = &self.spec;
        if draft_head.is_some() || experts.is_some() || encoder.is_some() {
            return Ok(LayerNeed::default());
        }
        let plan = Plan { spec: self.spec.clone(), layout: self.layout.clone() };
        Ok(plan.read(&self.checkpoint, None)?.layer_need(weight_type)?)
    }

    /// The described network, for loading it with these options.
    ///
    /// # Errors
    /// A tensor is missing or contradicts the configuration.
    pub(crate) fn network(&self, options: &Options) -> Result<Network<Unpacked>, Error> {
        let plan = Plan { spec: self.spec.clone(), layout: self.layout.clone() };
        Ok(plan.read(&self.checkpoint, options.context)?.with_tokens(options.tokens))
    }

    /// The files of its weights and its configuration; none if it is part of the program.
    ///
    /// # Errors
    /// The system's, for its folder.
    pub(crate) fn files(&self) -> std::io::Result<Vec<PathBuf>> {
        match &self.location {
            Location::Embedded(_) => Ok(Vec::new()),
            Location::Gguf => Ok(vec![PathBuf::from(&self.name)]),
            Location::Directory(folder) => {
                let entries = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
                let is_wanted = |path: &PathBuf| {
                    path.file_name().is_some_and(|name| name == "config.json")
                        || path.extension().is_some_and(|extension| extension == "safetensors")
                };
                let mut all: Vec<PathBuf> = entries.collect::<Result<_, _>>()?;
                all.retain(is_wanted);
                all.sort();
                Ok(all)
            }
        }
    }

    /// The format of its files, in words.
    pub fn format(&self) -> &'static str {
        match self.location {
            Location::Embedded(_) => "safetensors, part of this program",
            Location::Directory(_) => "safetensors (Hugging Face directory)",
            Location::Gguf => "GGUF",
        }
    }

    /// The tokenizer; `None` if the model comes without one.
    ///
    /// # Errors
    /// Its files cannot be parsed.
    pub fn tokenizer(&self) -> Result<Option<Arc<Tokenizer>>, Error> {
        let tokenizer = match (&self.location, &self.checkpoint.config) {
            (Location::Embedded(files), _) => {
                Some(Tokenizer::from_json(files.name, files.tokenizer, Some(files.tokenizer_config))?)
            }
            (Location::Directory(dir), _) if Tokenizer::is_in(dir) => Some(Tokenizer::from_dir(dir)?),
            (Location::Gguf, Config::Gguf(metadata)) if has_vocabulary(metadata) => {
                Some(Tokenizer::from_gguf(&self.name, metadata)?)
            }
            _ => None,
        };
        Ok(tokenizer.map(Arc::new))
    }

    /// Whether another model has the same tokenizer files; the tokenizers then need not be loaded to be compared.
    pub(crate) fn has_same_tokenizer_files(&self, other: &Self) -> bool {
        let files = ["tokenizer.json", "tokenizer_config.json"];
        let read = |dir: &Path| files.map(|name| whole::read(&dir.join(name), VOCABULARY_BYTES_MAX).ok());
        match (&self.location, &other.location) {
            (Location::Embedded(own), Location::Embedded(other)) => {
                own.tokenizer == other.tokenizer && own.tokenizer_config == other.tokenizer_config
            }
            (Location::Directory(own), Location::Directory(other)) => {
                let own = read(own);
                own[0].is_some() && own == read(other)
            }
            _ => false,
        }
    }

    /// The error of a model without a tokenizer.
    pub fn missing_tokenizer(&self) -> String {
        match self.location {
            Location::Gguf => format!("{}: tokenizer.ggml.model: expected a vocabulary, found none", self.name),
            _ => {
                let others = "tokenizer.model, vocab.json with merges.txt, or qwen.tiktoken";
                format!("{}/tokenizer.json: expected a tokenizer (or {others}), found no such file", self.name)
            }
        }
    }

    /// The chat template; `None` if the model comes without one.
    ///
    /// # Errors
    /// It cannot be parsed.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, Error> {
        Ok(match (&self.location, &self.checkpoint.config) {
            (Location::Embedded(files), _) => {
                let name = format!("{}/chat_template.jinja", files.name);
                Some(ChatTemplate::from_source(&name, files.chat_template, "", "<|endoftext|>")?)
            }
            (Location::Directory(dir), _) => ChatTemplate::from_dir(dir)?,
            (Location::Gguf, Config::Gguf(metadata)) => ChatTemplate::from_gguf(&self.name, metadata)?,
            (Location::Gguf, Config::Json(_)) => None,
        })
    }

    /// The beginning-of-text token.
    pub fn beginning(&self, tokenizer: Option<&Tokenizer>) -> Option<Token> {
        tokenizer.and_then(Tokenizer::bos).or(self.defaults.bos)
    }

    /// The tokens that end a text, ascending: those of `generation_config.json`, else of `config.json`, else of the
    /// tokenizer, as in transformers. For conversations the caller adds [end-of-turn
    /// tokens](Tokenizer::turn_end_tokens), which the files of some models do not name.
    pub fn end_tokens(&self, tokenizer: Option<&Tokenizer>) -> Vec<Token> {
        let mut all = match tokenizer {
            Some(tokenizer) if self.defaults.end_tokens.is_empty() => tokenizer.end_tokens().to_vec(),
            _ => self.defaults.end_tokens.clone(),
        };
        all.retain(|token| (*token as usize) < self.spec.vocabulary);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The number of tokens that can be read and written: those of the tokenizer and the special ones that the files
    /// name, as far as the network has rows for them; without a tokenizer all rows. The rows after them are padding.
    pub fn tokens(&self, tokenizer: Option<&Tokenizer>) -> usize {
        let rows = self.spec.vocabulary;
        let Some(known) = tokenizer else { return rows };
        // An end token counts even if the tokenizer's files lack it.
        let named = self.end_tokens(tokenizer).into_iter().chain(self.beginning(tokenizer));
        let named = named.map(|token| token as usize + 1).max().unwrap_or(1);
        known.vocabulary_len().max(named).min(rows)
    }

    /// A note for users if more rows of the network have no token than padding explains: the tokenizer is then likely
    /// to be another model's. In all published models that we know, padding is less than a fortieth of the vocabulary
    /// (DeepSeek LLM: 2385 of 102400).
    pub(crate) fn note_tokens(&self, tokens: usize) -> Option<Message> {
        let rows = self.spec.vocabulary;
        let line = format!(
            "{}: the network has {rows} tokens and its tokenizer {tokens}; the others are never written",
            self.name
        );
        (rows - tokens > rows / PADDING_PART).then(|| Message::words(line))
    }

    /// A note for users about tensors that a loaded network does not use.
    pub(crate) fn note_unused_tensors(&self, tensors: &[String]) -> Option<Message> {
        let (first, name) = (tensors.first()?, &self.name);
        let line = match tensors.len() {
            1 => format!("{name}: tensor {first} is no part of the text's network and is not used"),
            count => format!("{name}: {count} tensors are no part of the text's network and are not used, as {first}"),
        };
        Some(Message::words(line))
    }

    /// Loads the network with a backend. `progress` is called for each layer: how many are loaded, of how many.
    ///
    /// # Errors
    /// A tensor is missing or contradicts the configuration, more memory is needed than may be taken
    /// ([`MemoryLimit`](crate::MemoryLimit)), or the backend's executor reports an impossible capacity.
    pub fn load(
        &self,
        backend: &dyn Backend,
        mut options: Options,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Loaded, Error> {
        MemoryNeed::of_target(self, &options)?.of_backend(self, &options, backend)?.check(&mut options)?;
        self.load_within(backend, options, progress, &mut Vec::new())
    }

    /// As [`Opened::load`], for callers that have checked the memory. `notes` receives notes for users.
    ///
    /// # Errors
    /// As [`Opened::load`], except for memory.
    pub(crate) fn load_within(
        &self,
        backend: &dyn Backend,
        options: Options,
        progress: &mut dyn FnMut(usize, usize),
        notes: &mut Vec<Message>,
    ) -> Result<Loaded, Error> {
        let reads_layers = backend.reads_layers();
        let offloading = if reads_layers { offload::backend(self, &options, progress, notes)? } else { None };
        let loaded = match &offloading {
            None => backend.load(self.network(&options)?, options, progress)?,
            Some(offloading) => match offloading.load(self.network(&options)?, options, progress) {
                Err(damage) if offloading.is_file_of(&damage) => {
                    notes.push(Message::words(format!("{damage}: made anew")));
                    let made = offload::backend_of_new_file(self, &options, progress)?;
                    made.load(self.network(&options)?, options, progress)?
                }
                loaded => loaded?,
            },
        };
        backend::check(backend, &self.name, &*loaded.executor)?;
        Ok(loaded)
    }

    /// Loads a draft head for a loaded target, given as its capacity and its embedding and output rows.
    ///
    /// # Errors
    /// As [`Opened::load`], except for memory; or it is no draft head for this target.
    pub(crate) fn load_head(
        &self,
        target: (&Capacity, &SharedEmbeddings),
        backend: &dyn Backend,
        options: Options,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Loaded, Error> {
        let plan = Plan { spec: self.spec.clone(), layout: self.layout.clone() };
        let loaded = plan.load_head(&self.checkpoint, target, backend, options, progress)?;
        backend::check(backend, &self.name, &*loaded.executor)?;
        Ok(loaded)
    }
}

/// Names of the built-in models: a target and its draft model, or none.
pub fn built_in() -> Vec<&'static str> {
    [demo::target(), demo::draft()].into_iter().flatten().map(|files| files.name).collect()
}

/// The tokenizer of a folder (`tokenizer.json`, else `tokenizer.model`, else `vocab.json` with `merges.txt`, else
/// `qwen.tiktoken`), or of a GGUF file; the network is neither read nor checked.
///
/// # Errors
/// There is none, or it cannot be parsed.
pub fn tokenizer_at(path: &Path) -> Result<Arc<Tokenizer>, Error> {
    if path.is_dir() {
        return Ok(Arc::new(Tokenizer::from_dir(path)?));
    }
    let file = gguf::open(path)?;
    Ok(Arc::new(Tokenizer::from_gguf(&path.display().to_string(), &file.metadata)?))
}

/// Whether a GGUF file has a tokenizer. A file without the key, or with `none` as its value, has only a network.
fn has_vocabulary(metadata: &Metadata) -> bool {
    match metadata.get("tokenizer.ggml.model") {
        None => false,
        Some(Value::String(model)) => !["none", "no_vocab"].contains(&model.as_str()),
        Some(_) => true,
    }
}

fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match whole::read(path, SETTINGS_BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::unreadable(path, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gguf_file_without_a_tokenizer_is_recognised() {
        let found = |value: Option<&str>| {
            let key = "tokenizer.ggml.model".to_string();
            let value = value.map(|value| (key, Value::String(value.to_string())));
            has_vocabulary(&Metadata::new("a.gguf", value))
        };
        assert_eq!([None, Some("none"), Some("no_vocab"), Some("gpt2")].map(found), [false, false, false, true]);
    }

    #[test]
    fn a_configuration_of_an_unknown_network_is_not_known() {
        assert!(!is_known(b"{\"model_type\": \"mamba9\"}") && !is_known(b"") && !is_known(b"[]"));
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo-target/config.json");
        assert!(is_known(&std::fs::read(demo).expect("it is there")));
    }
}
