//! The prompt cache: rows of the target's KV cache that are kept between runs, so that a long prefix is computed once.
//!
//! A file has the rows of one prefix. When a generator is opened, they are loaded into the engine's prefix cache, and
//! every prompt reuses the rows of the tokens that it has in common with the prefix. The rows are bit-identical to
//! computed ones, so the text is the same with and without the file, provided that everything that rows depend on is
//! the same: the file's key ([`key`]) must equal this run's. A file with another key is refused with the part that
//! differs, and so is a damaged one. A file that could not be read is never overwritten.
//!
//! The longest common prefix of all prompts of a run is written: of one prompt all of it, of a conversation its first
//! prompt, of several conversations their common prefix. Nothing is written if the file's prefix begins with these
//! tokens already. Only prompts of the default tenant are saved and reuse loaded rows: for other tenants the time of a
//! request would reveal the prefix.
//!
//! All numbers are little-endian:
//!
//! ```text
//! 0   8   the letters "ftkprefx"
//! 8   4   version: 1
//! 12  4   bytes of the key
//! 16  8   tokens
//! 24  8   cache groups
//! 32      the key, UTF-8: a line "name: value" for each part
//!         the tokens, 4 each
//!         each group: the position of its first row (8), bytes of a row (8)
//!         XXH3-64 of everything before (8)
//!         each group: its state, if it holds states, then its rows, up to that of the last token
//! end 8   XXH3-64 of everything before
//! ```
//!
//! A state has consumed the tokens before the group's first row; the network gives its number of bytes.
//!
//! A group with a sliding window has the rows of the last window and earlier ones that were still cached when the file
//! was written. A prompt that diverges from the prefix before these rows cannot use the file.
//!
//! The KV caches of draft models and hidden states are not saved; computing them again costs little.

pub(crate) mod format;
mod key;

use std::path::PathBuf;

use foretoken_engine::{Engine, Request};
use foretoken_speculation::{Tenant, Token};

use crate::Error;
use crate::error::Message;
use crate::kept_file;
use crate::settings::ModelSettings;
use format::Expected;
pub(crate) use key::Key;

/// The prompt cache of a generator, if it has one.
#[derive(Default)]
pub struct PromptCache {
    file: Option<PrefixFile>,
}

struct PrefixFile {
    path: PathBuf,
    read_only: bool,
    key: Key,
    /// The tokens whose rows are in the file.
    saved_tokens: Vec<Token>,
    /// The common prefix of all prompts so far.
    common: Option<Vec<Token>>,
}

impl PromptCache {
    /// Loads the file that the settings name, if it exists, into an engine's cache. `key`: this run's key; `notes`:
    /// receives notes for users.
    ///
    /// # Errors
    /// The file cannot be used, could not be written later, or is read-only and does not exist.
    pub(crate) fn open(
        settings: &ModelSettings,
        key: Option<Key>,
        engine: &mut Engine,
        notes: &mut Vec<Message>,
    ) -> Result<Self, Error> {
        let (Some(path), Some(key)) = (settings.prompt_cache.clone(), key) else { return Ok(Self::default()) };
        let read_only = settings.prompt_cache_ro;
        let mut file = PrefixFile { path, read_only, key, saved_tokens: Vec::new(), common: None };
        if read_only || kept_file::exists(&file.path)? {
            file.load(engine, notes)?;
        }
        if !read_only {
            kept_file::check_writable(&file.path)?;
        }
        Ok(Self { file: Some(file) })
    }

    /// Registers prompts that are about to be computed: the common prefix of these and all earlier ones will be saved,
    /// unless the file has it.
    pub(crate) fn register(&mut self, engine: &mut Engine, requests: &[Request]) {
        let Some(file) = self.file.as_mut().filter(|file| !file.read_only) else { return };
        for request in requests.iter().filter(|request| request.tenant == Tenant::default()) {
            let common = file.common.get_or_insert_with(|| request.prompt.clone());
            let len = common.iter().zip(&request.prompt).take_while(|(a, b)| a == b).count();
            common.truncate(len);
        }
        let wanted = file.common.clone().filter(|common| !file.saved_tokens.starts_with(common));
        engine.save_prefix(Tenant::default(), wanted.unwrap_or_default());
    }

    /// Writes the file, if there is a new prefix.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save(&mut self, engine: &mut Engine) -> Result<(), Error> {
        let (Some(file), Some(saved)) = (&mut self.file, engine.take_saved_prefix()) else { return Ok(()) };
        let parts = file.key.parts(saved.tokens.len());
        let sizes = engine.saved_bytes().unwrap_or_default();
        kept_file::replace(&file.path, |out| format::write(out, &parts, &sizes, &saved))?;
        file.saved_tokens = saved.tokens;
        Ok(())
    }

    /// Whether the file may be written.
    pub(crate) fn keeps(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.read_only)
    }
}

impl PrefixFile {
    fn load(&mut self, engine: &mut Engine, notes: &mut Vec<Message>) -> Result<(), Error> {
        let name = self.path.display().to_string();
        let (file, len) = kept_file::open(&self.path)?;
        let sizes = engine.saved_bytes().unwrap_or_default();
        let vocabulary = self.key.vocabulary();
        let expected = Expected { key: &|len| self.key.parts(len), vocabulary, sizes: &sizes };
        let saved = format::read(&name, file, len, &expected)?;
        let (len, loaded) = (saved.tokens.len(), engine.load_prefix(Some(Tenant::default()), &saved));
        if loaded < len {
            let room = format!(" {name}: there is room for {loaded} of its {len} tokens");
            notes.push(Message::setting("prompt_cache").and(room));
        }
        self.saved_tokens = saved.tokens;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
