//! The container of files that are kept between runs. It is checked when it is read and replaced atomically.
//!
//! All numbers are little-endian:
//!
//! ```text
//! 0   8   letters that name the kind ([`Kind`])
//! 8   4   the version of the kind's format
//! 12      the kind's header, which determines the length of the file, and its content
//! end 8   XXH3-64 of everything before
//! ```
//!
//! The kinds are texts (`store.rs`) and prompt caches (`prompt_cache.rs`). Measured costs are JSON, because records of
//! runs contain them (`costs.rs`). All are written as [`OutputFile`]s, so a reader, also after a crash, sees either the
//! old file or the new one. Of two concurrent writers the last one wins, unless they lock the file and each adds to
//! what the other wrote (`store/shared.rs`).

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use foretoken_speculation::Token;
use foretoken_weights::line::one_line;
use foretoken_weights::whole;
use xxhash_rust::xxh3::Xxh3;

use crate::error::KeptFileError;
use crate::output_file::OutputFile;

/// Tokens that are read at a time.
const CHUNK: usize = 4096;
/// The most characters of a file's content that an error quotes.
const EXCERPT_CHARS_MAX: usize = 200;

/// Whether a file exists; a dangling link does not.
///
/// # Errors
/// The system returns another error than "not found"; to treat that as a missing file could overwrite one.
pub(crate) fn exists(path: &Path) -> Result<bool, KeptFileError> {
    path.try_exists().map_err(|error| KeptFileError::io(path, "read", &error))
}

/// Opens a file for reading; also returns its length.
///
/// # Errors
/// The system refuses it, or it is no regular file: reading a pipe may block, and a device has no end.
pub(crate) fn open(path: &Path) -> Result<(BufReader<File>, u64), KeptFileError> {
    let opened = whole::open_checked(path, whole::regular);
    opened.map(|(file, len)| (BufReader::new(file), len)).map_err(|error| KeptFileError::io(path, "read", &error))
}

/// The beginning of an untrusted text, on one line, without terminal control sequences.
pub(crate) fn excerpt(text: &str) -> String {
    one_line(text, EXCERPT_CHARS_MAX)
}

/// A kind of file: how it begins.
pub(crate) struct Kind {
    /// The letters that name it.
    pub(crate) magic: [u8; 8],
    /// The versions of its format that can be read. The last is written.
    pub(crate) versions: &'static [u32],
}

/// Reads a file's bytes in order, and computes their checksum. Memory is allocated for bytes that were read, never for
/// a length in the file.
pub(crate) struct Reader<'a, R> {
    /// The file, for messages.
    name: &'a str,
    from: R,
    /// Bytes of the whole file.
    pub(crate) len: u64,
    hash: Xxh3,
}

impl<'a, R: Read> Reader<'a, R> {
    /// Begins to read a file of `len` bytes, which must be of this kind; also returns its version.
    pub(crate) fn begin(name: &'a str, from: R, len: u64, kind: &Kind) -> Result<(Self, u32), KeptFileError> {
        let mut reader = Self { name, from, len, hash: Xxh3::new() };
        let magic: [u8; 8] = reader.bytes("magic")?;
        if magic != kind.magic {
            let [expected, found] = [kind.magic, magic].map(|magic| format!("{:?}", magic.escape_ascii().to_string()));
            return Err(reader.field("magic", expected, found));
        }
        let version = reader.u32("version")?;
        if !kind.versions.contains(&version) {
            let versions: Vec<String> = kind.versions.iter().map(ToString::to_string).collect();
            return Err(reader.field("version", versions.join(" or "), version));
        }
        Ok((reader, version))
    }

    /// The error of an invalid field.
    pub(crate) fn field(&self, field: impl Display, expected: impl Display, found: impl Display) -> KeptFileError {
        KeptFileError::Field {
            file: self.name.to_string(),
            field: field.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Reads as many bytes as the slice has.
    pub(crate) fn fill(&mut self, field: impl Display, bytes: &mut [u8]) -> Result<(), KeptFileError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.field(field, format!("{} bytes", bytes.len()), "the end of the file"),
            _ => KeptFileError::Io { file: self.name.to_string(), tried: "read", found: error.to_string() },
        })?;
        self.hash.update(bytes);
        Ok(())
    }

    /// Reads `N` bytes.
    fn bytes<const N: usize>(&mut self, field: impl Display) -> Result<[u8; N], KeptFileError> {
        let mut bytes = [0; N];
        self.fill(field, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a number.
    pub(crate) fn u32(&mut self, field: impl Display) -> Result<u32, KeptFileError> {
        self.bytes(field).map(u32::from_le_bytes)
    }

    /// Reads a number.
    pub(crate) fn u64(&mut self, field: impl Display) -> Result<u64, KeptFileError> {
        self.bytes(field).map(u64::from_le_bytes)
    }

    /// Reads `len` tokens, which may be any numbers.
    pub(crate) fn tokens(&mut self, field: impl Display, len: usize) -> Result<Vec<Token>, KeptFileError> {
        let mut tokens = Vec::new();
        let mut bytes = vec![0; 4 * CHUNK.min(len)];
        while tokens.len() < len {
            let chunk = &mut bytes[..4 * CHUNK.min(len - tokens.len())];
            self.fill(&field, chunk)?;
            tokens.reserve_exact(chunk.len() / 4);
            tokens.extend(chunk.as_chunks().0.iter().map(|four| Token::from_le_bytes(*four)));
        }
        Ok(tokens)
    }

    /// Checks that tokens are below `vocabulary`.
    pub(crate) fn check_tokens(&self, tokens: &[Token], vocabulary: usize) -> Result<(), KeptFileError> {
        let Some(at) = tokens.iter().position(|token| *token as usize >= vocabulary) else { return Ok(()) };
        let expected = format!("a number below {vocabulary} (the vocabulary)");
        Err(self.field(format!("token {}", at + 1), expected, tokens[at]))
    }

    /// Checks the length of the file. `content`: the header's description of it, for messages.
    pub(crate) fn check_len(&self, expected: u64, content: impl Display) -> Result<(), KeptFileError> {
        match self.len == expected {
            true => Ok(()),
            false => Err(self.field("length", format!("{expected} bytes ({content})"), self.len)),
        }
    }

    /// Reads the checksum of everything before and compares it; returns it.
    pub(crate) fn verify_checksum(&mut self, field: &str) -> Result<u64, KeptFileError> {
        let found = self.hash.digest();
        let expected = self.u64(field)?;
        match found == expected {
            true => Ok(found),
            false => Err(self.field(field, format!("{expected:016x}"), format!("{found:016x} of what was read"))),
        }
    }
}

/// Writes a file's bytes in order, and computes their checksum.
pub(crate) struct Writer<W> {
    out: W,
    hash: Xxh3,
}

impl<W: Write> Writer<W> {
    /// Begins a file of this kind.
    pub(crate) fn begin(out: W, kind: &Kind) -> io::Result<Self> {
        let mut writer = Self { out, hash: Xxh3::new() };
        writer.bytes(&kind.magic)?;
        writer.u32(*kind.versions.last().expect("a kind has a version"))?;
        Ok(writer)
    }

    /// Writes bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }

    /// Writes a number.
    pub(crate) fn u32(&mut self, number: u32) -> io::Result<()> {
        self.bytes(&number.to_le_bytes())
    }

    /// Writes a number.
    pub(crate) fn u64(&mut self, number: u64) -> io::Result<()> {
        self.bytes(&number.to_le_bytes())
    }

    /// Writes tokens.
    pub(crate) fn tokens(&mut self, tokens: &[Token]) -> io::Result<()> {
        tokens.iter().try_for_each(|token| self.u32(*token))
    }

    /// Writes the checksum of everything before; returns it.
    pub(crate) fn checksum(&mut self) -> io::Result<u64> {
        let checksum = self.hash.digest();
        self.u64(checksum)?;
        Ok(checksum)
    }
}

/// Writes a file atomically. If the path is a link, its target is written, even if it does not exist yet. On Unix an
/// old file keeps its permissions (not its owner, if that is another user), and a new one is readable by its owner
/// alone, since it has users' texts.
///
/// # Errors
/// The folder or the file cannot be written, or links form a cycle; an old file is then unchanged.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&mut OutputFile) -> io::Result<()>) -> Result<(), KeptFileError> {
    let written = OutputFile::kept(path).and_then(|mut file| write(&mut file).and_then(|()| file.end()));
    written.map_err(|error| KeptFileError::io(path, "written", &error))
}

/// Checks that a file can be written, so that an error comes before the work and not after it. No file is left.
///
/// # Errors
/// As [`replace`].
pub(crate) fn check_writable(path: &Path) -> Result<(), KeptFileError> {
    OutputFile::kept(path).map(drop).map_err(|error| KeptFileError::io(path, "written", &error))
}
