//! What drafters know from before: texts of a corpus, and those of earlier runs.
//!
//! `lookup_cache_static` is read; `lookup_cache_dynamic` is read if it is there, and written with this run's texts
//! behind the old ones. The texts of the first are everybody's, whoever wrote them. Every drafter that learns across
//! texts learns all of them; what it makes of them is its own business. Requests are numbered on behind those that
//! wrote the texts: under *rejection* a request must not have the number of one that the drafters remember. Left out:
//! the format ([`crate::store`]).

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
    /// Reads the files and lets an engine's drafters learn them.
    ///
    /// # Errors
    /// A file cannot be used or, where it is to be written, could not be; or there is no tokenizer to say whose tokens
    /// they are.
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
        let mut seen = None;
        if kept_file::is_there(path)? {
            let (found, sum) = Store::load_with_sum(path, vocabulary, TOKENS_MAX)?;
            seen = Some(sum);
            fits(path, found.tokens(), settings.lookup_cache_tokens)?;
            // They are many, and kept as they were read: no text is there twice.
            store = found.keeping(settings.lookup_cache_tokens);
            for text in store.documents() {
                let whose = text.tenant.filter(|_| !settings.shared);
                engine.warm_up(&text.tokens, text.prompt_len, whose);
            }
            engine.set_next_request(engine.next_request().max(store.next_request()));
        }
        // Before any text is written that could then not be kept: a file is begun beside it, and dropped.
        kept_file::try_place(path)?;
        Ok(Self { kept: Some(SharedStore::new(path.clone(), store, seen)) })
    }

    /// Adds a prompt and what was written behind it on behalf of `tenant`.
    pub fn add(&mut self, tenant: Tenant, prompt: &[Token], output: &[Token]) {
        if let Some(store) = &mut self.kept {
            let tokens = [prompt, output].concat();
            store.add(Document { tokens, prompt_len: prompt.len(), tenant: Some(tenant) });
        }
    }

    /// Writes the file, if there is one, with the number that the engine's next request will have. What other processes
    /// wrote to it meanwhile stays.
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
