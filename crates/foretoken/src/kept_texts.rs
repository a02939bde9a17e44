//! The texts that drafters learn before a run: those of a corpus, and those of earlier runs.
//!
//! `lookup_cache_static` is only read, and all tenants may use its texts. `lookup_cache_dynamic` is read if it exists,
//! and written with this run's texts appended to the old ones. Every drafter that learns across sequences learns all
//! texts. Request numbers continue after those of the requests that generated the texts: under *rejection* verification
//! a request must not have the number of one whose text the drafters have learned. The format is in [`crate::store`].

use std::path::Path;

use foretoken_engine::Engine;
use foretoken_speculation::{Tenant, Token};
use foretoken_text::Tokenizer;

use crate::Error;
use crate::error::Message;
use crate::kept_file;
use crate::settings::MemorySettings;
use crate::store::{Document, SharedStore, Store, TOKENS_MAX, Vocabulary};

/// The texts that are kept for the next run.
pub struct KeptTexts {
    store: Option<SharedStore>,
}

impl KeptTexts {
    /// Reads the files and gives their texts to an engine's drafters to learn.
    ///
    /// # Errors
    /// A file cannot be used, or could not be written later; or there is no tokenizer to identify the vocabulary.
    pub fn load(settings: &MemorySettings, tokenizer: Option<&Tokenizer>, engine: &mut Engine) -> Result<Self, Error> {
        let vocabulary =
            |setting: &'static str| tokenizer.map(Vocabulary::from).ok_or_else(|| Error::needs_tokenizer(setting));
        if let Some(path) = &settings.lookup_cache_static {
            let store = Store::load(path, vocabulary("lookup_cache_static")?, TOKENS_MAX)?;
            store.documents().for_each(|text| engine.warm_up(&text.tokens, text.prompt_len, None));
            // A file of earlier runs can be given here as well; in a file of a corpus the number is 0.
            engine.set_next_request(engine.next_request().max(store.next_request()));
        }
        let Some(path) = &settings.lookup_cache_dynamic else { return Ok(Self { store: None }) };
        let vocabulary = vocabulary("lookup_cache_dynamic")?;
        let mut store = Store::new(vocabulary, settings.lookup_cache_tokens);
        let mut last_checksum = None;
        if kept_file::exists(path)? {
            let (found, checksum) = Store::load_with_checksum(path, vocabulary)?;
            last_checksum = Some(checksum);
            check_size(path, found.tokens(), settings.lookup_cache_tokens)?;
            store = found.keeping(settings.lookup_cache_tokens);
            for text in store.documents() {
                let tenant = text.tenant.filter(|_| !settings.shared);
                engine.warm_up(&text.tokens, text.prompt_len, tenant);
            }
            engine.set_next_request(engine.next_request().max(store.next_request()));
        }
        kept_file::check_writable(path)?;
        Ok(Self { store: Some(SharedStore::new(path.clone(), store, last_checksum)) })
    }

    /// Adds a prompt and the answer to it on behalf of `tenant`.
    pub fn add(&mut self, tenant: Tenant, prompt: &[Token], output: &[Token]) {
        if let Some(store) = &mut self.store {
            let tokens = [prompt, output].concat();
            store.add(Document { tokens, prompt_len: prompt.len(), tenant: Some(tenant) });
        }
    }

    /// Writes the file, if there is one, with the texts that other processes added meanwhile and the number of the
    /// engine's next request.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&mut self, next_request: u64) -> Result<(), Error> {
        self.store.as_mut().map_or(Ok(()), |store| Ok(store.save(next_request)?))
    }

    /// Whether texts are kept.
    pub fn keeps(&self) -> bool {
        self.store.is_some()
    }
}

/// Refuses a file with more tokens than the settings keep: writing it would lose its oldest texts.
fn check_size(path: &Path, found: usize, most: usize) -> Result<(), Error> {
    if found <= most {
        return Ok(());
    }
    let expected = Message::words(format!("{}: expected at most {most} tokens (", path.display()));
    let expected = expected.and_setting("lookup_cache_tokens");
    Err(Error::Input(expected.and(format!("), found {found}, the oldest of which would be lost"))))
}
