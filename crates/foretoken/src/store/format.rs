//! Parses and writes the file of a store. Files are not trusted.
//!
//! Everything is checked: the header against the file's real length, each length against the rest of the header's
//! tokens, each token against the vocabulary, and all bytes against their checksum. Memory is allocated for bytes that
//! were read, never for a length in the file. The format is documented in `store.rs`.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use foretoken_speculation::Tenant;

use super::{Document, NEXT_REQUEST_MAX, Store, TOKENS_MAX, Vocabulary};
use crate::error::KeptFileError;
use crate::kept_file::{Kind, Reader, Writer};

/// Version 1 has no number of the next request.
const KIND: Kind = Kind { magic: *b"ftktexts", versions: &[1, 2] };
const HEADER: u64 = 48;
/// The part of the header that version 1 lacks.
const NEXT_REQUEST: u64 = 8;
const DOCUMENT: u64 = 20;
const CHECKSUM: u64 = 8;

/// Bytes of a file with these numbers of documents and tokens, at most [`TOKENS_MAX`] each.
pub(super) fn file_len(documents: u64, tokens: u64) -> u64 {
    HEADER + DOCUMENT * documents + 4 * tokens + CHECKSUM
}

/// Writes a whole file; returns its checksum.
pub(crate) fn write(out: &mut impl Write, store: &Store) -> io::Result<u64> {
    let Store { vocabulary, documents, tokens, next_request, .. } = store;
    let mut writer = Writer::begin(out, &KIND)?;
    writer.u32(vocabulary.len)?;
    writer.u64(vocabulary.fingerprint)?;
    writer.u64(documents.len() as u64)?;
    writer.u64(*tokens as u64)?;
    writer.u64(*next_request)?;
    for document in documents {
        writer.u32(document.tokens.len() as u32)?;
        writer.u32(document.prompt_len as u32)?;
        writer.u32(u32::from(document.tenant.is_some()))?;
        writer.u64(document.tenant.unwrap_or_default().0)?;
        writer.tokens(&document.tokens)?;
    }
    writer.checksum()
}

/// Reads a whole file of `len` bytes; returns all its texts and its checksum. `name`: the file, for messages.
pub(crate) fn read(
    name: &str,
    from: impl Read,
    len: u64,
    vocabulary: Vocabulary,
) -> Result<(Store, u64), KeptFileError> {
    let (mut reader, version) = Reader::begin(name, from, len, &KIND)?;
    let Header { documents: count, tokens, next_request } = reader.header(version, vocabulary)?;
    let (tokens, mut documents) = (tokens as usize, VecDeque::new());
    let mut left = tokens;
    for number in 1..=count {
        let document = reader.document(left, vocabulary).map_err(|mut error| {
            if let KeptFileError::Field { field, .. } = &mut error {
                *field = format!("document {number}: {field}");
            }
            error
        })?;
        left -= document.tokens.len();
        documents.push_back(document);
    }
    if left > 0 {
        return Err(reader.field("tokens", format!("{} (as the documents have)", tokens - left), tokens));
    }
    let checksum = reader.verify_checksum("checksum")?;
    Ok((Store { vocabulary, documents, tokens, tokens_max: TOKENS_MAX, next_request }, checksum))
}

/// A header whose numbers agree with the file's length.
struct Header {
    documents: u64,
    tokens: u64,
    next_request: u64,
}

impl<R: Read> Reader<'_, R> {
    fn header(&mut self, version: u32, vocabulary: Vocabulary) -> Result<Header, KeptFileError> {
        let (theirs, fingerprint) = (self.u32("vocabulary")?, self.u64("fingerprint")?);
        if theirs != vocabulary.len {
            let expected = format!("{} tokens (those of the model)", vocabulary.len);
            return Err(self.field("vocabulary", expected, theirs));
        }
        if fingerprint != vocabulary.fingerprint {
            let expected = format!("{:016x} (the model's vocabulary)", vocabulary.fingerprint);
            return Err(self.field("fingerprint", expected, format!("{fingerprint:016x}")));
        }
        let (documents, tokens) = (self.u64("documents")?, self.u64("tokens")?);
        if tokens > TOKENS_MAX as u64 {
            return Err(self.field("tokens", format!("at most {TOKENS_MAX}"), tokens));
        }
        // Each document has a token, so this limits the number of documents.
        if documents > tokens {
            return Err(self.field("documents", format!("at most one a token ({tokens})"), documents));
        }
        let missing = if version == 1 { NEXT_REQUEST } else { 0 };
        let expected = file_len(documents, tokens) - missing;
        self.check_len(expected, format_args!("{documents} documents with {tokens} tokens"))?;
        // When version 1 was written, all requests drew random numbers as number 0 does now. So any other number is new
        // to its texts; the number of texts is the one that counting requests would have given.
        let next_request = if version == 1 { documents } else { self.u64("next_request")? };
        if next_request > NEXT_REQUEST_MAX {
            let expected = format!("at most {NEXT_REQUEST_MAX} (2^32 requests are still to come)");
            return Err(self.field("next_request", expected, next_request));
        }
        Ok(Header { documents, tokens, next_request })
    }

    /// Reads a document with at most `left` tokens.
    fn document(&mut self, left: usize, vocabulary: Vocabulary) -> Result<Document, KeptFileError> {
        let len = self.u32("tokens")?;
        if len == 0 || len as usize > left {
            return Err(self.field("tokens", format!("1 to {left} (what is left of the announced ones)"), len));
        }
        let prompt = self.u32("prompt")?;
        if prompt > len {
            return Err(self.field("prompt", format!("at most {len} (its tokens)"), prompt));
        }
        let owned = self.u32("owner")?;
        let tenant = self.u64("tenant")?;
        let tenant = match (owned, tenant) {
            (0, 0) => None,
            (1, tenant) => Some(Tenant(tenant)),
            (0, _) => return Err(self.field("tenant", "0 (it is everybody's)", tenant)),
            _ => return Err(self.field("owner", "0 (everybody) or 1 (a tenant)", owned)),
        };
        let tokens = self.tokens("token", len as usize)?;
        self.check_tokens(&tokens, vocabulary.len as usize)?;
        Ok(Document { tokens, prompt_len: prompt as usize, tenant })
    }
}
