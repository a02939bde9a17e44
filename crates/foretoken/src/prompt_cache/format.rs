//! Parsing and writing a prompt cache's file, which is not trusted.
//!
//! Every field is checked, and nothing is allocated for a length before the file is known to be that long. The head has
//! a checksum of its own, so that an error about a key that differs is true: only an undamaged head is compared with
//! this run. The format is documented in `prompt_cache.rs`.

use std::io::{self, Read, Write};

use foretoken_engine::{SavedPrefix, SavedRows};
use foretoken_kernels::allocator::fallibly;
use foretoken_model::SavedBytes;
use foretoken_speculation::Token;
use xxhash_rust::xxh3::Xxh3;

use super::key::Part;
use crate::costs::excerpt;
use crate::error::KeptFileError;
use crate::kept_file::Reader;

const MAGIC: [u8; 8] = *b"ftkprefx";
const VERSION: u32 = 1;
const HEADER: u64 = 32;
const GROUP: u64 = 16;
const CHECKSUM: u64 = 8;
const KEY_MAX: u32 = 1 << 12;
const TOKENS_MAX: u64 = 1 << 24;
const GROUPS_MAX: u64 = 64;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 16;

/// What a file is compared with.
pub(super) struct Expected<'a> {
    /// The key of a prefix of so many tokens.
    pub key: &'a dyn Fn(usize) -> Vec<Part>,
    /// The number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Bytes of a state and of a row of each cache group.
    pub sizes: &'a [SavedBytes],
}

/// Writes a whole file.
pub(super) fn write(out: &mut impl Write, key: &[Part], sizes: &[SavedBytes], saved: &SavedPrefix) -> io::Result<()> {
    let mut hash = Xxh3::new();
    let mut put = |bytes: &[u8]| {
        hash.update(bytes);
        out.write_all(bytes)?;
        Ok::<u64, io::Error>(hash.digest())
    };
    let key: String = key.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    put(&MAGIC)?;
    put(&VERSION.to_le_bytes())?;
    put(&(key.len() as u32).to_le_bytes())?;
    put(&(saved.tokens.len() as u64).to_le_bytes())?;
    put(&(saved.groups.len() as u64).to_le_bytes())?;
    let mut head = put(key.as_bytes())?;
    let tokens: Vec<u8> = saved.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    put(&tokens)?;
    for (SavedRows { first, .. }, size) in saved.groups.iter().zip(sizes) {
        put(&(*first as u64).to_le_bytes())?;
        head = put(&(size.row as u64).to_le_bytes())?;
    }
    let mut checksum = put(&head.to_le_bytes())?;
    for SavedRows { bytes, .. } in &saved.groups {
        checksum = put(bytes)?;
    }
    out.write_all(&checksum.to_le_bytes())
}

/// Reads a whole file of `len` bytes. `name`: the file, for messages.
pub(super) fn read(
    name: &str,
    from: impl Read,
    len: u64,
    expected: &Expected<'_>,
) -> Result<SavedPrefix, KeptFileError> {
    let mut reader = Reader { name, from, hash: Xxh3::new() };
    let Head { key, tokens, groups } = reader.head(len)?;
    reader.check_key(&key, &(expected.key)(tokens.len()))?;
    if let Some(at) = tokens.iter().position(|token| *token as usize >= expected.vocabulary) {
        let below = format!("a number below {} (the vocabulary)", expected.vocabulary);
        return Err(reader.field(format!("token {}", at + 1), below, tokens[at]));
    }
    let mut saved = SavedPrefix { tokens, groups: Vec::new() };
    let sizes = reader.check_groups(len, &key, saved.tokens.len(), &groups, expected.sizes)?;
    for ((number, (first, _)), size) in (1..).zip(groups).zip(sizes) {
        let mut bytes = Vec::new();
        let field = format!("group {number}: rows");
        if fallibly(|| bytes.try_reserve_exact(size)).is_err() {
            return Err(reader.field(field, format!("memory for {size} bytes"), "less"));
        }
        reader.append(&field, &mut bytes, size)?;
        saved.groups.push(SavedRows { first: first as usize, bytes });
    }
    reader.check_sum("checksum")?;
    Ok(saved)
}

/// Where the checksum of the head begins, in a file that is as long as its head says.
pub(super) fn head_end(bytes: &[u8]) -> Option<usize> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let key = number(8)? >> 32;
    let end = number(16)?.checked_mul(4)?.checked_add(number(24)?.checked_mul(GROUP)?)?;
    let end = usize::try_from(end.checked_add(HEADER + key)?).ok()?;
    (bytes.starts_with(&MAGIC) && bytes.len().checked_sub(end)? >= 2 * CHECKSUM as usize).then_some(end)
}

/// The part of a file before the rows.
struct Head {
    key: String,
    tokens: Vec<Token>,
    /// For each group the position of its first row, and the bytes of a row.
    groups: Vec<(u64, u64)>,
}

impl<R: Read> Reader<'_, R> {
    fn head(&mut self, len: u64) -> Result<Head, KeptFileError> {
        let magic: [u8; 8] = self.bytes("magic")?;
        if magic != MAGIC {
            let [expected, found] = [MAGIC, magic].map(|magic| format!("{:?}", magic.escape_ascii().to_string()));
            return Err(self.field("magic", expected, found));
        }
        let version = self.u32("version")?;
        if version != VERSION {
            return Err(self.field("version", VERSION, version));
        }
        let key_len = self.u32("length of the key")?;
        if key_len > KEY_MAX {
            return Err(self.field("length of the key", format!("at most {KEY_MAX}"), key_len));
        }
        let tokens = self.within("tokens", TOKENS_MAX)?;
        let groups = self.within("cache groups", GROUPS_MAX)?;
        let least = HEADER + u64::from(key_len) + 4 * tokens + GROUP * groups + 2 * CHECKSUM;
        if len < least {
            return Err(self.field("length", format!("at least {least} bytes ({tokens} tokens)"), len));
        }
        let (mut key, mut bytes) = (Vec::new(), Vec::new());
        self.append("key", &mut key, key_len as usize)?;
        self.append("tokens", &mut bytes, 4 * tokens as usize)?;
        let tokens = bytes.as_chunks().0.iter().map(|four| Token::from_le_bytes(*four)).collect();
        let group = |_| Ok((self.u64("first row of a group")?, self.u64("bytes of a row")?));
        let groups = (0..groups).map(group).collect::<Result<_, _>>()?;
        self.check_sum("checksum of the head")?;
        let key = String::from_utf8(key).map_err(|error| self.field("key", "UTF-8", error))?;
        Ok(Head { key, tokens, groups })
    }

    /// Reads a number from 1 to `most`.
    fn within(&mut self, field: &str, most: u64) -> Result<u64, KeptFileError> {
        let found = self.u64(field)?;
        match (1..=most).contains(&found) {
            true => Ok(found),
            false => Err(self.field(field, format!("1 to {most}"), found)),
        }
    }

    /// Reads until there are `len` bytes; the file is known to be that long.
    fn append(&mut self, field: &str, bytes: &mut Vec<u8>, len: usize) -> Result<(), KeptFileError> {
        while bytes.len() < len {
            let at = bytes.len();
            bytes.resize(len.min(at + CHUNK), 0);
            self.fill(field, &mut bytes[at..])?;
        }
        Ok(())
    }

    fn check_sum(&mut self, field: &str) -> Result<(), KeptFileError> {
        let found = self.hash.digest();
        let expected = u64::from_le_bytes(self.bytes(field)?);
        match found == expected {
            true => Ok(()),
            false => Err(self.field(field, format!("{expected:016x}"), format!("{found:016x} of what was read"))),
        }
    }

    /// Checks that the rows were made from what this run has.
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

    /// Checks that the file has the groups of this run and the right length; returns the bytes of each group.
    fn check_groups(
        &self,
        len: u64,
        key: &str,
        tokens: usize,
        groups: &[(u64, u64)],
        expected: &[SavedBytes],
    ) -> Result<Vec<usize>, KeptFileError> {
        if groups.len() != expected.len() {
            return Err(self.field("cache groups", expected.len(), groups.len()));
        }
        let all = tokens as u64;
        let mut expected_len = HEADER + key.len() as u64 + 4 * all + GROUP * groups.len() as u64 + 2 * CHECKSUM;
        let mut sizes = Vec::new();
        for ((number, (first, found)), expected) in (1..).zip(groups).zip(expected) {
            if *first > all {
                return Err(self.field(format!("group {number}: first row"), format!("at most {all}"), first));
            }
            if *found != expected.row as u64 {
                return Err(self.field(format!("group {number}: bytes of a row"), expected.row, found));
            }
            let size = (all - first).saturating_mul(*found).saturating_add(expected.state as u64);
            expected_len = expected_len.saturating_add(size);
            sizes.push(usize::try_from(size).unwrap_or(usize::MAX));
        }
        match len == expected_len {
            true => Ok(sizes),
            false => Err(self.field("length", format!("{expected_len} bytes ({tokens} tokens)"), len)),
        }
    }
}
