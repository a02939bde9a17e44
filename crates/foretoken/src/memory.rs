//! What drafters know from before: texts of a corpus, and those of earlier runs.
//!
//! `--lookup-cache-static` is read; `--lookup-cache-dynamic` is read if it is there, and written with this run's texts
//! behind the old ones. The texts of the first are everybody's, whoever wrote them. Every drafter that learns across
//! texts learns all of them; what it makes of them is its own business. Requests are numbered on behind those that
//! wrote the texts: under *rejection* a request must not have the number of one that the drafters remember. Left out: the
//! format (`store` of the engine) and making such a file of a corpus (`lookup`).

use std::path::{Path, PathBuf};

use foretoken_engine::store::TOKENS_MAX;
use foretoken_engine::{Document, Engine, Store, Vocabulary};
use foretoken_speculation::Tenant;
use foretoken_text::Tokenizer;

use crate::answers::Answer;
use crate::failure::Failure;
use crate::options::MemoryOptions;

/// The texts that are kept for the next run.
pub struct Memory {
    kept: Option<(PathBuf, Store)>,
    /// Whose texts this run writes.
    tenant: Tenant,
}

impl Memory {
    /// Reads the files and lets an engine's drafters learn them. `shared`: what was kept is for whoever asks, and not only
    /// for `tenant`, whose it is.
    ///
    /// # Errors
    /// A file cannot be used, or there is no tokenizer to say whose tokens they are.
    pub fn load(
        options: &MemoryOptions,
        tokenizer: Option<&Tokenizer>,
        engine: &mut Engine,
        tenant: Tenant,
        shared: bool,
    ) -> Result<Self, Failure> {
        let (fixed, kept) = (&options.lookup_cache_static, &options.lookup_cache_dynamic);
        let vocabulary = |option: &str| {
            let missing = || format!("{option}: expected a model with a tokenizer, found one without");
            tokenizer.map(Vocabulary::from).ok_or_else(|| Failure::Usage(missing()))
        };
        if let Some(path) = fixed {
            let store = Store::load(path, vocabulary("--lookup-cache-static")?, TOKENS_MAX)?;
            store.documents().for_each(|text| engine.warm_up(&text.tokens, text.prompt_len, None));
            // 0 in a file that was made of a corpus; a file of earlier runs can be given here as well.
            engine.set_next_request(engine.next_request().max(store.next_request()));
        }
        let Some(path) = kept else { return Ok(Self { kept: None, tenant }) };
        let vocabulary = vocabulary("--lookup-cache-dynamic")?;
        let mut store = Store::new(vocabulary, options.lookup_cache_tokens);
        if path.exists() {
            let found = Store::load(path, vocabulary, TOKENS_MAX)?;
            fits(path, found.tokens(), options.lookup_cache_tokens)?;
            for text in found.documents() {
                let whose = text.tenant.filter(|whose| !shared || *whose != tenant);
                engine.warm_up(&text.tokens, text.prompt_len, whose);
                store.add(text.clone());
            }
            engine.set_next_request(engine.next_request().max(found.next_request()));
        }
        Ok(Self { kept: Some((path.clone(), store)), tenant })
    }

    /// Adds what was written, and writes the file if there is one, with the number that the engine's next request will have.
    /// What could not be answered is not kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&mut self, answers: &[Answer], engine: &Engine) -> Result<(), Failure> {
        let Some((path, store)) = &mut self.kept else { return Ok(()) };
        for answer in answers.iter().filter(|answer| !answer.emitted.is_empty()) {
            let tokens = [answer.prompt.as_slice(), &answer.ids()].concat();
            store.add(Document { tokens, prompt_len: answer.prompt.len(), tenant: Some(self.tenant) });
        }
        store.set_next_request(engine.next_request());
        Ok(store.save(path)?)
    }

    /// Whether anything is kept.
    pub fn keeps(&self) -> bool {
        self.kept.is_some()
    }
}

/// Refuses a file of more tokens than are kept, whose oldest texts would be lost when it is written.
fn fits(path: &Path, found: usize, kept: usize) -> Result<(), Failure> {
    if found <= kept {
        return Ok(());
    }
    let expected = format!("expected at most {kept} tokens (--lookup-cache-tokens)");
    Err(Failure::Other(format!("{}: {expected}, found {found}, the oldest of which would be lost", path.display())))
}
