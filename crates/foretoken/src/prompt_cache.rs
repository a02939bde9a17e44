//! The prompt cache: rows of the target's cache that are kept between runs, so that a long beginning is computed once.
//!
//! A file holds the rows of one prefix. When a generator is opened, they are put into the engine's cache, where every
//! prompt finds as much of them as it begins with; the rest is computed. Rows are what would have been computed again,
//! to the bit, so the text is the same with and without. That holds only where nothing differs that rows depend on. So
//! the file says what its rows were made from ([`key`]), and one that does not fit is refused by the name of what
//! differs, as is one that is damaged. It is never overwritten because it could not be read.
//!
//! What is written is the longest common beginning of all prompts of a run: of one prompt all of it; of several what
//! they have in common; of a conversation its first prompt or, if it was begun anew, how all conversations begin.
//! Nothing is written where the file begins with these tokens already. Only prompts of the default tenant count, and
//! only they find what was read: time would tell others.
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
//! A state has passed the tokens before the group's first row; how many bytes it has is known of the network.
//!
//! A group that keeps a window of the text has the rows of the last window and those before it that were still cached
//! when it was written. A prompt that leaves the prefix before these cannot use it.
//!
//! Left out: draft models' caches, which are computed again at a small cost, and hidden states.

mod format;
mod key;

use std::io::BufReader;
use std::path::PathBuf;

use foretoken_engine::{Engine, Request};
use foretoken_model::SavedBytes;
use foretoken_speculation::{Tenant, Token};

use crate::Error;
use crate::error::Message;
use crate::kept_file::{self, KeptFileError};
use crate::settings::ModelSettings;
use format::Expected;
pub(crate) use key::Key;

/// The prompt cache of a generator, if it has one.
#[derive(Default)]
pub struct PromptCache {
    kept: Option<Kept>,
}

struct Kept {
    path: PathBuf,
    read_only: bool,
    key: Key,
    /// The tokens whose rows the file holds.
    held: Vec<Token>,
    /// What all prompts so far begin with.
    common: Option<Vec<Token>>,
}

impl PromptCache {
    /// Reads the file that the settings name, if it is there, into an engine's cache. `key`: what its rows must have
    /// been made from; `notes`: what a user should know.
    ///
    /// # Errors
    /// The file cannot be used, or could not be written, or is not there and is only to be read.
    pub(crate) fn open(
        settings: &ModelSettings,
        key: Option<Key>,
        engine: &mut Engine,
        notes: &mut Vec<Message>,
    ) -> Result<Self, Error> {
        let (Some(path), Some(key)) = (settings.prompt_cache.clone(), key) else { return Ok(Self::default()) };
        let read_only = settings.prompt_cache_ro;
        let mut kept = Kept { path, read_only, key, held: Vec::new(), common: None };
        if read_only || kept_file::is_there(&kept.path)? {
            kept.load(engine, notes)?;
        }
        if !read_only {
            kept_file::try_place(&kept.path)?;
        }
        Ok(Self { kept: Some(kept) })
    }

    /// Notes prompts that are about to be computed: what they and those before them have in common is to be kept,
    /// unless the file has it.
    pub(crate) fn expect(&mut self, engine: &mut Engine, requests: &[Request]) {
        let Some(kept) = self.kept.as_mut().filter(|kept| !kept.read_only) else { return };
        for request in requests.iter().filter(|request| request.tenant == Tenant::default()) {
            let common = kept.common.get_or_insert_with(|| request.prompt.clone());
            let len = common.iter().zip(&request.prompt).take_while(|(a, b)| a == b).count();
            common.truncate(len);
        }
        let wanted = kept.common.clone().filter(|common| !kept.held.starts_with(common));
        engine.save_prefix(Tenant::default(), wanted.unwrap_or_default());
    }

    /// Writes the file, if there is something new for it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save(&mut self, engine: &mut Engine) -> Result<(), Error> {
        let (Some(kept), Some(saved)) = (&mut self.kept, engine.take_saved_prefix()) else { return Ok(()) };
        let parts = kept.key.parts(saved.tokens.len());
        let sizes = engine.saved_bytes().unwrap_or_default();
        kept_file::replace(&kept.path, &mut |out| format::write(out, &parts, &sizes, &saved))?;
        kept.held = saved.tokens;
        Ok(())
    }

    /// Whether anything is to be written.
    pub(crate) fn keeps(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| !kept.read_only)
    }
}

impl Kept {
    fn load(&mut self, engine: &mut Engine, notes: &mut Vec<Message>) -> Result<(), Error> {
        let name = self.path.display().to_string();
        let (file, len) = kept_file::open(&self.path)?;
        let sizes = engine.saved_bytes().unwrap_or_default();
        let vocabulary = self.key.vocabulary();
        let expected = Expected { key: &|len| self.key.parts(len), vocabulary, sizes: &sizes };
        let saved = format::read(&name, BufReader::new(file), len, &expected)?;
        let (all, loaded) = (saved.tokens.len(), engine.load_prefix(Some(Tenant::default()), &saved));
        if loaded < all {
            let room = format!(" {name}: there is room for {loaded} of its {all} tokens");
            notes.push(Message::setting("prompt_cache").and(room));
        }
        self.held = saved.tokens;
        Ok(())
    }
}

/// Reads the bytes of a file whatever they were made from, and writes what was read: for `probe.rs`.
pub(crate) fn reread(name: &str, bytes: &[u8]) -> Result<Vec<u8>, KeptFileError> {
    let key = |len: usize| vec![("model", "00ff".to_string()), ("rope", format!("{len:04x}"))];
    let sizes = [SavedBytes { state: 0, row: 6 }, SavedBytes { state: 3, row: 4 }];
    let expected = Expected { key: &key, vocabulary: 100, sizes: &sizes };
    let saved = format::read(name, bytes, bytes.len() as u64, &expected)?;
    let mut written = Vec::new();
    format::write(&mut written, &key(saved.tokens.len()), &sizes, &saved).expect("memory takes everything");
    Ok(written)
}

/// Where the checksum of the head begins, in a file that has one.
pub(crate) fn head_end(bytes: &[u8]) -> Option<usize> {
    format::head_end(bytes)
}

#[cfg(test)]
mod tests;
