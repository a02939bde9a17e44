//! Checksums: the hub's etags, which are the names of blobs in the cache.
//!
//! Large files (LFS) have the sha256 of their content. Small ones are stored in git and have git's object id: the sha1
//! of `blob LEN`, a zero, and the content.

use std::fmt;
use std::io::Read;
use std::path::Path;

use sha1::{Digest, Sha1};
use sha2::Sha256;

/// The hash of a file, in lower-case hexadecimal digits: 40 of git's sha1, or 64 of sha256.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Etag(String);

impl Etag {
    /// Parses a hash, or an etag of a header; `None` if it is not a checksum.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix("W/").unwrap_or(text).trim_matches('"');
        let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (is_hex && matches!(text.len(), 40 | 64)).then(|| Self(text.to_string()))
    }

    /// Whether it is a sha256.
    pub(crate) fn is_sha256(&self) -> bool {
        self.0.len() == 64
    }

    /// Starts a checksum of this kind over `size` bytes.
    pub(crate) fn begin(&self, size: u64) -> Checksum {
        match self.0.len() {
            40 => Checksum::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
            _ => Checksum::Sha256(Sha256::new()),
        }
    }

    /// Whether a file has `size` bytes and this checksum.
    pub(crate) fn is_of(&self, path: &Path, size: u64) -> std::io::Result<bool> {
        let is_it = |found: std::fs::Metadata| found.is_file() && found.len() == size;
        // Checked before opening: opening a named pipe would wait for its writer.
        if !is_it(std::fs::metadata(path)?) {
            return Ok(false);
        }
        let mut file = std::fs::File::open(path)?;
        if !is_it(file.metadata()?) {
            return Ok(false);
        }
        let mut checksum = self.begin(size);
        checksum.read(&mut file, size)?;
        Ok(checksum.end() == self.0)
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A checksum that is being computed.
pub(crate) enum Checksum {
    Git(Sha1),
    Sha256(Sha256),
}

impl Checksum {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Git(sha) => sha.update(bytes),
            Self::Sha256(sha) => sha.update(bytes),
        }
    }

    /// Adds the next `len` bytes of a reader.
    pub(crate) fn read(&mut self, from: &mut impl Read, len: u64) -> std::io::Result<()> {
        let mut buffer = vec![0; 1 << 18];
        let mut left = len;
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match from.read(&mut buffer[..most])? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                len => {
                    self.update(&buffer[..len]);
                    left -= len as u64;
                }
            }
        }
        Ok(())
    }

    /// The checksum in hexadecimal digits.
    pub(crate) fn end(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Git(sha) => hex(&sha.finalize()),
            Self::Sha256(sha) => hex(&sha.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_equal_those_of_git_and_sha256sum() {
        // `git hash-object` and `sha256sum` of "hello\n".
        let git = Etag::parse("\"ce013625030ba8dba906f756967f9e9ca394464a\"").expect("a checksum");
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let sha256 = Etag::parse(&format!("W/\"{sha256}\"")).expect("a checksum");
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("hello");
        std::fs::write(&path, "hello\n").expect("a file can be written");
        for etag in [git, sha256] {
            assert!(etag.is_of(&path, 6).expect("it can be read"));
            assert!(!etag.is_of(&path, 7).expect("it can be read"));
            std::fs::write(&path, "hellO\n").expect("a file can be written");
            assert!(!etag.is_of(&path, 6).expect("it can be read"));
            std::fs::write(&path, "hello\n").expect("a file can be written");
        }
        let others = ["", "../../x", "ABCDEF", "d41d8cd98f00b204e9800998ecf8427e", &"g".repeat(40), &"A".repeat(64)];
        assert!(others.iter().all(|text| Etag::parse(text).is_none()));
    }
}
