//! Parsing and writing a store's file, which is not trusted.
//!
//! Everything is checked: the header against the file's real length, each length against what is left of the tokens in
//! the header, each token against the vocabulary, and all bytes against their checksum. Memory is allocated for what
//! was read, never for a length in the file. The format is documented in `store.rs`.

use std::fmt;
use std::io::{self, Read, Write};

use foretoken_speculation::{Tenant, Token};
use xxhash_rust::xxh3::Xxh3;

use crate::error::KeptFileError;
use crate::kept_file::Reader;

use super::{Document, NEXT_REQUEST_MAX, Store, TOKENS_MAX, Vocabulary};

const MAGIC: [u8; 8] = *b"ftktexts";
/// The version that is written. Version 1, without the number of the next request, is read as well.
const VERSION: u32 = 2;
const HEADER: u64 = 48;
const HEADER_V1: u64 = 40;
const DOCUMENT: u64 = 20;
const CHECKSUM: u64 = 8;
/// Tokens that are read at a time.
const CHUNK: usize = 4096;

/// What a file holds.
#[derive(Debug, PartialEq)]
pub(super) struct Contents {
    pub documents: Vec<Document>,
    pub next_request: u64,
    /// The file's checksum.
    pub sum: u64,
}

/// Bytes of a file with so many documents and tokens; `None` if no file can be so long.
pub(super) fn file_len(documents: u64, tokens: u64) -> Option<u64> {
    file_len_with_header(HEADER, documents, tokens)
}

/// Bytes of a file with a header of so many bytes.
fn file_len_with_header(header: u64, documents: u64, tokens: u64) -> Option<u64> {
    let documents = documents.checked_mul(DOCUMENT)?;
    tokens.checked_mul(4)?.checked_add(documents)?.checked_add(header + CHECKSUM)
}

/// Writes a whole file; returns its checksum.
pub(super) fn write(out: &mut impl Write, store: &Store) -> io::Result<u64> {
    let Store { vocabulary, documents, tokens, next_request, .. } = store;
    let mut hash = Xxh3::new();
    let mut put = |bytes: &[u8]| {
        hash.update(bytes);
        out.write_all(bytes)
    };
    put(&MAGIC)?;
    put(&VERSION.to_le_bytes())?;
    put(&vocabulary.len.to_le_bytes())?;
    put(&vocabulary.fingerprint.to_le_bytes())?;
    put(&(documents.len() as u64).to_le_bytes())?;
    put(&(*tokens as u64).to_le_bytes())?;
    put(&next_request.to_le_bytes())?;
    for document in documents {
        put(&(document.tokens.len() as u32).to_le_bytes())?;
        put(&(document.prompt_len as u32).to_le_bytes())?;
        put(&u32::from(document.tenant.is_some()).to_le_bytes())?;
        put(&document.tenant.unwrap_or_default().0.to_le_bytes())?;
        document.tokens.iter().try_for_each(|token| put(&token.to_le_bytes()))?;
    }
    let sum = hash.digest();
    out.write_all(&sum.to_le_bytes())?;
    Ok(sum)
}

/// Reads a whole file of `len` bytes. `name`: the file, for messages.
pub(super) fn read(name: &str, from: impl Read, len: u64, vocabulary: Vocabulary) -> Result<Contents, KeptFileError> {
    let mut reader = Reader { name, from, hash: Xxh3::new() };
    let Header { documents, tokens, next_request } = reader.header(len, vocabulary)?;
    let mut all = Vec::new();
    let mut left = tokens as usize;
    for number in 1..=documents {
        let document = reader.document(number, left, vocabulary)?;
        left -= document.tokens.len();
        all.push(document);
    }
    if left > 0 {
        return Err(reader.field("tokens", format!("{} (as the documents have)", tokens - left as u64), tokens));
    }
    let found = reader.hash.digest();
    let expected = u64::from_le_bytes(reader.bytes("checksum")?);
    match found == expected {
        true => Ok(Contents { documents: all, next_request, sum: found }),
        false => Err(reader.field("checksum", format!("{expected:016x}"), format!("{found:016x} of what was read"))),
    }
}

/// A field of a document, for messages. It is formatted only for an error, since there may be millions.
#[derive(Clone, Copy)]
struct Field {
    number: u64,
    field: &'static str,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "document {}: {}", self.number, self.field)
    }
}

/// A header whose numbers agree with the file's length.
struct Header {
    documents: u64,
    tokens: u64,
    next_request: u64,
}

impl<R: Read> Reader<'_, R> {
    fn header(&mut self, len: u64, vocabulary: Vocabulary) -> Result<Header, KeptFileError> {
        let magic: [u8; 8] = self.bytes("magic")?;
        if magic != MAGIC {
            return Err(self.field(
                "magic",
                format!("{:?}", MAGIC.escape_ascii().to_string()),
                format!("{:?}", magic.escape_ascii().to_string()),
            ));
        }
        let version = self.u32("version")?;
        if version != 1 && version != VERSION {
            return Err(self.field("version", format!("1 or {VERSION}"), version));
        }
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
        // Each document has a token, so this bounds the number of documents.
        if documents > tokens {
            return Err(self.field("documents", format!("at most one a token ({tokens})"), documents));
        }
        let header = if version == 1 { HEADER_V1 } else { HEADER };
        let expected = file_len_with_header(header, documents, tokens);
        if expected != Some(len) {
            let expected = expected.map_or("a length".to_string(), |expected| expected.to_string());
            let why = format!("{expected} bytes ({documents} documents with {tokens} tokens)");
            return Err(self.field("length", why, len));
        }
        // With version 1 all requests drew as number 0 does now. So any other number is new to its texts, and the
        // number of texts is what counting them would have given.
        let next_request = if version == 1 { documents } else { self.u64("next_request")? };
        if next_request > NEXT_REQUEST_MAX {
            let expected = format!("at most {NEXT_REQUEST_MAX} (2^32 requests are still to come)");
            return Err(self.field("next_request", expected, next_request));
        }
        Ok(Header { documents, tokens, next_request })
    }

    /// A document with at most `left` tokens.
    fn document(&mut self, number: u64, left: usize, vocabulary: Vocabulary) -> Result<Document, KeptFileError> {
        let of = |field| Field { number, field };
        let len = self.u32(of("tokens"))?;
        if len == 0 || len as usize > left {
            return Err(self.field(of("tokens"), format!("1 to {left} (what is left of the announced ones)"), len));
        }
        let prompt = self.u32(of("prompt"))?;
        if prompt > len {
            return Err(self.field(of("prompt"), format!("at most {len} (its tokens)"), prompt));
        }
        let owned = self.u32(of("owner"))?;
        let tenant = self.u64(of("tenant"))?;
        let tenant = match (owned, tenant) {
            (0, 0) => None,
            (1, tenant) => Some(Tenant(tenant)),
            (0, _) => return Err(self.field(of("tenant"), "0 (it is everybody's)", tenant)),
            _ => return Err(self.field(of("owner"), "0 (everybody) or 1 (a tenant)", owned)),
        };
        let tokens = self.tokens(of("token"), len as usize, vocabulary)?;
        Ok(Document { tokens, prompt_len: prompt as usize, tenant })
    }

    fn tokens(&mut self, field: Field, len: usize, vocabulary: Vocabulary) -> Result<Vec<Token>, KeptFileError> {
        let mut tokens = Vec::new();
        let mut bytes = vec![0; 4 * CHUNK.min(len)];
        while tokens.len() < len {
            let chunk = &mut bytes[..4 * CHUNK.min(len - tokens.len())];
            self.fill(field, chunk)?;
            tokens.reserve_exact(chunk.len() / 4);
            for four in chunk.chunks_exact(4) {
                let token = Token::from_le_bytes(four.try_into().expect("four bytes"));
                if token >= vocabulary.len {
                    let expected = format!("a number below {} (the vocabulary)", vocabulary.len);
                    return Err(self.field(format!("{field} {}", tokens.len() + 1), expected, token));
                }
                tokens.push(token);
            }
        }
        Ok(tokens)
    }
}
