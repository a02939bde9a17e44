//! The texts that drafters learn before a run: those of a corpus, and those of earlier runs.
//!
//! `lookup_cache_static` is only read, and its texts are everybody's. `lookup_cache_dynamic` is read if it exists, and
//! written with this run's texts appended to the old ones. Every drafter that learns across sequences learns all texts.
//! Request numbers continue after those of the requests that generated the texts: under *rejection* a request must not
//! have the number of one whose text the drafters have learned. The format is in [`crate::store`].

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
    kept: Option<SharedStore>,
}

impl KeptTexts {
    /// Reads the files and makes an engine's drafters learn them.
    ///
    /// # Errors
    /// A file cannot be used or, where it is to be written, could not be; or there is no tokenizer to identify the
    /// vocabulary.
    pub fn load(settings: &MemorySettings, tokenizer: Option<&Tokenizer>, engine: &mut Engine) -> Result<Self, Error> {
        let (fixed, kept) = (&settings.lookup_cache_static, &settings.lookup_cache_dynamic);
        let vocabulary = |setting: &'static str| {
            let missing = || Message::setting(setting).and(": expected a model with a tokenizer, found one without");
            tokenizer.map(Vocabulary::from).ok_or_else(|| Error::Setting(missing()))
        };
        if let Some(path) = fixed {
            let store = Store::load(path, vocabulary("lookup_cache_static")?, TOKENS_MAX)?;
            store.documents().for_each(|text| engine.warm_up(&text.tokens, text.prompt_len, None));
            // 0 in a file that was made of a corpus; a file of earlier runs can be given here as well.
            engine.set_next_request(engine.next_request().max(store.next_request()));
        }
        let Some(path) = kept else { return Ok(Self { kept: None }) };
        let vocabulary = vocabulary("lookup_cache_dynamic")?;
        let mut store = Store::new(vocabulary, settings.lookup_cache_tokens);
        let mut sum_seen = None;
        if kept_file::is_there(path)? {
            let (found, sum) = Store::load_with_sum(path, vocabulary)?;
            sum_seen = Some(sum);
            fits(path, found.tokens(), settings.lookup_cache_tokens)?;
            // The store that was read is used itself, since a copy of its texts may be large.
            store = found.keeping(settings.lookup_cache_tokens);
            for text in store.documents() {
                let whose = text.tenant.filter(|_| !settings.shared);
                engine.warm_up(&text.tokens, text.prompt_len, whose);
            }
            engine.set_next_request(engine.next_request().max(store.next_request()));
        }
        // Checked before any text is generated that could then not be saved.
        kept_file::check_writable(path)?;
        Ok(Self { kept: Some(SharedStore::new(path.clone(), store, sum_seen)) })
    }

    /// Adds a prompt and the answer to it on behalf of `tenant`.
    pub fn add(&mut self, tenant: Tenant, prompt: &[Token], output: &[Token]) {
        if let Some(store) = &mut self.kept {
            let tokens = [prompt, output].concat();
            store.add(Document { tokens, prompt_len: prompt.len(), tenant: Some(tenant) });
        }
    }

    /// Writes the file, if there is one, with the number that the engine's next request will have. What other processes
    /// wrote to it meanwhile is kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&mut self, next_request: u64) -> Result<(), Error> {
        self.kept.as_mut().map_or(Ok(()), |kept| Ok(kept.save(next_request)?))
    }

    /// Whether anything is kept.
    pub fn keeps(&self) -> bool {
        self.kept.is_some()
    }
}

/// Refuses a file of more tokens than are kept, whose oldest texts would be lost when it is written.
fn fits(path: &Path, found: usize, kept: usize) -> Result<(), Error> {
    if found <= kept {
        return Ok(());
    }
    let expected = Message::words(format!("{}: expected at most {kept} tokens (", path.display()));
    let expected = expected.and_setting("lookup_cache_tokens");
    Err(Error::Input(expected.and(format!("), found {found}, the oldest of which would be lost"))))
}
