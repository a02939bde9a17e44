//! Parses and writes the file of a prompt cache. Files are not trusted.
//!
//! Every field is checked, and nothing is allocated for a length before the file is known to be that long. What comes
//! before the rows has its own checksum, so that damage is not reported as a key that differs: only an undamaged key is
//! compared with this run's. The format is documented in `prompt_cache.rs`.

use std::io::{self, Read, Write};

use foretoken_engine::{SavedPrefix, SavedRows};
use foretoken_kernels::allocator::fallibly;
use foretoken_model::SavedBytes;
use foretoken_speculation::Token;

use super::key::Part;
use crate::error::KeptFileError;
use crate::kept_file::{Kind, Reader, Writer, excerpt};

const KIND: Kind = Kind { magic: *b"ftkprefx", versions: &[1] };
const HEADER: u64 = 32;
const GROUP: u64 = 16;
const CHECKSUM: u64 = 8;
const KEY_MAX: u32 = 1 << 12;
const TOKENS_MAX: u64 = 1 << 24;
const GROUPS_MAX: u64 = 64;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 16;

/// The values of this run that a file is compared with.
pub(crate) struct Expected<'a> {
    /// The key of a prefix of this length in tokens.
    pub(crate) key: &'a dyn Fn(usize) -> Vec<Part>,
    /// The number of tokens in the vocabulary.
    pub(crate) vocabulary: usize,
    /// Bytes of a state and of a row of each cache group.
    pub(crate) sizes: &'a [SavedBytes],
}

/// Writes a whole file.
pub(crate) fn write(out: &mut impl Write, key: &[Part], sizes: &[SavedBytes], saved: &SavedPrefix) -> io::Result<()> {
    let key: String = key.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    let mut writer = Writer::begin(out, &KIND)?;
    writer.u32(key.len() as u32)?;
    writer.u64(saved.tokens.len() as u64)?;
    writer.u64(saved.groups.len() as u64)?;
    writer.bytes(key.as_bytes())?;
    writer.tokens(&saved.tokens)?;
    for (SavedRows { first, .. }, size) in saved.groups.iter().zip(sizes) {
        writer.u64(*first as u64)?;
        writer.u64(size.row as u64)?;
    }
    writer.checksum()?;
    saved.groups.iter().try_for_each(|rows| writer.bytes(&rows.bytes))?;
    writer.checksum().map(drop)
}

/// Reads a whole file of `len` bytes. `name`: the file, for messages.
pub(crate) fn read(
    name: &str,
    from: impl Read,
    len: u64,
    expected: &Expected<'_>,
) -> Result<SavedPrefix, KeptFileError> {
    let (mut reader, _) = Reader::begin(name, from, len, &KIND)?;
    let head = reader.head()?;
    reader.check_key(&head.key, &(expected.key)(head.tokens.len()))?;
    reader.check_tokens(&head.tokens, expected.vocabulary)?;
    let sizes = reader.check_groups(&head, expected.sizes)?;
    let mut saved = SavedPrefix { tokens: head.tokens, groups: Vec::new() };
    for ((number, (first, _)), size) in (1..).zip(head.groups).zip(sizes) {
        let mut bytes = Vec::new();
        let field = format!("group {number}: rows");
        if fallibly(|| bytes.try_reserve_exact(size)).is_err() {
            return Err(reader.field(field, format!("memory for {size} bytes"), "less"));
        }
        while bytes.len() < size {
            let at = bytes.len();
            bytes.resize(size.min(at + CHUNK), 0);
            reader.fill(&field, &mut bytes[at..])?;
        }
        saved.groups.push(SavedRows { first: first as usize, bytes });
    }
    reader.verify_checksum("checksum")?;
    Ok(saved)
}

/// The part of a file before the rows.
struct Head {
    key: String,
    tokens: Vec<Token>,
    /// For each group the position of its first row, and the bytes of a row.
    groups: Vec<(u64, u64)>,
    /// Bytes of the file without the rows.
    bytes: u64,
}

impl<R: Read> Reader<'_, R> {
    fn head(&mut self) -> Result<Head, KeptFileError> {
        let key_len = self.u32("length of the key")?;
        if key_len > KEY_MAX {
            return Err(self.field("length of the key", format!("at most {KEY_MAX}"), key_len));
        }
        let tokens = self.within("tokens", TOKENS_MAX)?;
        let groups = self.within("cache groups", GROUPS_MAX)?;
        let bytes = HEADER + u64::from(key_len) + 4 * tokens + GROUP * groups + 2 * CHECKSUM;
        if self.len < bytes {
            return Err(self.field("length", format!("at least {bytes} bytes ({tokens} tokens)"), self.len));
        }
        let mut key = vec![0_u8; key_len as usize];
        self.fill("key", &mut key)?;
        let tokens = self.tokens("tokens", tokens as usize)?;
        let group = |_| Ok((self.u64("first row of a group")?, self.u64("bytes of a row")?));
        let groups = (0..groups).map(group).collect::<Result<_, _>>()?;
        self.verify_checksum("checksum of the head")?;
        let key = String::from_utf8(key).map_err(|error| self.field("key", "UTF-8", error))?;
        Ok(Head { key, tokens, groups, bytes })
    }

    /// Reads a number from 1 to `most`.
    fn within(&mut self, field: &str, most: u64) -> Result<u64, KeptFileError> {
        let found = self.u64(field)?;
        match (1..=most).contains(&found) {
            true => Ok(found),
            false => Err(self.field(field, format!("1 to {most}"), found)),
        }
    }

    /// Compares the key with this run's.
    fn check_key(&self, key: &str, expected: &[Part]) -> Result<(), KeptFileError> {
        let found: Vec<(&str, &str)> = key.lines().filter_map(|line| line.split_once(": ")).collect();
        for (name, value) in expected {
            match found.iter().find(|(other, _)| other == name) {
                Some((_, other)) if other == value => {}
                Some((_, other)) => return Err(self.field(name, value, excerpt(other))),
                None => return Err(self.field(name, value, "none")),
            }
        }
        let known: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
        match found.iter().find(|(name, _)| !known.contains(name)) {
            Some((name, _)) => Err(self.field("key", known.join(", "), excerpt(name))),
            None => Ok(()),
        }
    }

    /// Checks that the file has this run's groups and the right length; returns the bytes of each group.
    fn check_groups(&self, head: &Head, expected: &[SavedBytes]) -> Result<Vec<usize>, KeptFileError> {
        let Head { tokens, groups, .. } = head;
        if groups.len() != expected.len() {
            return Err(self.field("cache groups", expected.len(), groups.len()));
        }
        let (tokens, mut len, mut sizes) = (tokens.len() as u64, head.bytes, Vec::new());
        for ((number, (first, found)), expected) in (1..).zip(groups).zip(expected) {
            if *first > tokens {
                return Err(self.field(format!("group {number}: first row"), format!("at most {tokens}"), first));
            }
            if *found != expected.row as u64 {
                return Err(self.field(format!("group {number}: bytes of a row"), expected.row, found));
            }
            let size = (tokens - first).saturating_mul(*found).saturating_add(expected.state as u64);
            len = len.saturating_add(size);
            sizes.push(usize::try_from(size).unwrap_or(usize::MAX));
        }
        self.check_len(len, format_args!("{tokens} tokens"))?;
        Ok(sizes)
    }
}
