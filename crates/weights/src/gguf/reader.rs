//! A cursor over the untrusted bytes of a GGUF file.
//!
//! Each method is told what it reads, so that an error can name the field and its position. Nothing is allocated before
//! the bytes for it are known to be there.

use std::fmt::Display;

use crate::WeightsError;

pub(crate) struct Reader<'a> {
    file: &'a str,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: &'a str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { file, bytes, position: 0 }
    }

    /// How many bytes have been read.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: u64, what: &dyn Display) -> Result<&'a [u8], WeightsError> {
        let rest = &self.bytes[self.position..];
        match usize::try_from(len).ok().and_then(|len| rest.get(..len)) {
            Some(bytes) => {
                self.position += bytes.len();
                Ok(bytes)
            }
            None => Err(self.error(what, format_args!("{len} bytes"), format_args!("{} bytes left", rest.len()))),
        }
    }

    fn array<const N: usize>(&mut self, what: &dyn Display) -> Result<[u8; N], WeightsError> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("take returns as many bytes as it is asked for"))
    }

    pub(crate) fn u32(&mut self, what: &dyn Display) -> Result<u32, WeightsError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &dyn Display) -> Result<u64, WeightsError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads the number of items that follow, each of at least `item_bytes_min` bytes.
    pub(super) fn count(&mut self, item_bytes_min: u64, what: &dyn Display) -> Result<usize, WeightsError> {
        let count = self.u64(what)?;
        let count_max = self.remaining() as u64 / item_bytes_min;
        if count > count_max {
            return Err(self.error(what, format_args!("at most {count_max}, for the bytes left"), count));
        }
        Ok(count as usize) // fits, as the remaining length does
    }

    /// Reads a length and that many bytes of UTF-8.
    pub(super) fn string(&mut self, what: &dyn Display) -> Result<String, WeightsError> {
        let len = self.u64(&format_args!("length of {what}"))?;
        let bytes = self.take(len, what)?;
        match str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_string()),
            Err(error) => Err(self.error(what, "UTF-8", error)),
        }
    }

    pub(crate) fn error(&self, what: &dyn Display, expected: impl Display, found: impl Display) -> WeightsError {
        WeightsError::format(self.file, format_args!("{what}, before byte {}", self.position), expected, found)
    }
}
