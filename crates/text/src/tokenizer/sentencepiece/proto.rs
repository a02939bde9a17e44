//! `tokenizer.model`, the file of SentencePiece: a protocol buffer of pieces and of two groups of settings.
//!
//! Only the fields needed to encode are read, by their numbers; others are skipped, as the format intends. The file is
//! untrusted: every length is checked against the remaining bytes, and no memory is reserved by a number in it.

use crate::TextError;

/// One piece of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub text: String,
    pub score: f32,
    /// The type as in GGUF: 1 is normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 a byte.
    pub kind: i32,
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proto {
    pub pieces: Vec<Piece>,
    /// The algorithm: 1 is Unigram, 2 BPE, 3 words, 4 characters.
    pub algorithm: i64,
    pub byte_fallback: bool,
    pub spaces_are_suffixes: bool,
    pub bos: i64,
    pub eos: i64,
    pub charsmap: Vec<u8>,
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub escape_whitespaces: bool,
}

impl Proto {
    /// Reads a file. `place` names it in messages.
    pub fn read(place: &str, bytes: &[u8]) -> Result<Self, TextError> {
        let malformed = |found: String| TextError::format(place, "a SentencePiece model", found);
        let mut proto = Self {
            pieces: Vec::new(),
            algorithm: 1,
            byte_fallback: false,
            spaces_are_suffixes: false,
            bos: 1,
            eos: 2,
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };
        fields(bytes, |number, value| {
            match (number, value) {
                (1, Value::Bytes(bytes)) => proto.pieces.push(piece(bytes)?),
                (2, Value::Bytes(bytes)) => fields(bytes, |number, value| proto.trainer(number, value))?,
                (3, Value::Bytes(bytes)) => fields(bytes, |number, value| proto.normalizer(number, value))?,
                _ => {}
            }
            Ok(())
        })
        .map_err(malformed)?;
        if proto.pieces.is_empty() { Err(malformed("no pieces".to_owned())) } else { Ok(proto) }
    }

    fn trainer(&mut self, number: u64, value: Value<'_>) -> Result<(), String> {
        match (number, value) {
            (3, Value::Number(number)) => self.algorithm = number,
            (24, Value::Number(number)) => self.spaces_are_suffixes = number != 0,
            (35, Value::Number(number)) => self.byte_fallback = number != 0,
            (41, Value::Number(number)) => self.bos = number,
            (42, Value::Number(number)) => self.eos = number,
            _ => {}
        }
        Ok(())
    }

    fn normalizer(&mut self, number: u64, value: Value<'_>) -> Result<(), String> {
        match (number, value) {
            (2, Value::Bytes(bytes)) => self.charsmap = bytes.to_vec(),
            (3, Value::Number(number)) => self.add_dummy_prefix = number != 0,
            (4, Value::Number(number)) => self.remove_extra_whitespaces = number != 0,
            (5, Value::Number(number)) => self.escape_whitespaces = number != 0,
            _ => {}
        }
        Ok(())
    }
}

fn piece(bytes: &[u8]) -> Result<Piece, String> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: 1 };
    fields(bytes, |number, value| {
        match (number, value) {
            (1, Value::Bytes(bytes)) => {
                piece.text =
                    std::str::from_utf8(bytes).map_err(|_| format!("a piece that is not UTF-8, {bytes:?}"))?.to_owned();
            }
            (2, Value::Float(score)) => piece.score = score,
            (3, Value::Number(kind)) => {
                piece.kind = i32::try_from(kind).map_err(|_| format!("a piece of type {kind}"))?;
            }
            _ => {}
        }
        Ok(())
    })?;
    if piece.score.is_nan() {
        return Err(format!("the piece {:?} without a score (NaN)", piece.text));
    }
    Ok(piece)
}

/// The value of a field.
enum Value<'a> {
    Number(i64),
    Float(f32),
    Bytes(&'a [u8]),
    Double,
}

/// Calls `each` with the number and the value of every field of a message.
fn fields<'a>(mut bytes: &'a [u8], mut each: impl FnMut(u64, Value<'a>) -> Result<(), String>) -> Result<(), String> {
    fn take<'a>(bytes: &mut &'a [u8], len: u64) -> Result<&'a [u8], String> {
        let fits = usize::try_from(len).ok().filter(|&len| len <= bytes.len());
        let len = fits.ok_or_else(|| format!("a field of {len} bytes where {} are left", bytes.len()))?;
        let (taken, rest) = bytes.split_at(len);
        *bytes = rest;
        Ok(taken)
    }
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)? as i64),
            1 => take(&mut bytes, 8).map(|_| Value::Double)?,
            2 => {
                let len = varint(&mut bytes)?;
                Value::Bytes(take(&mut bytes, len)?)
            }
            5 => {
                let four = take(&mut bytes, 4)?;
                Value::Float(f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            }
            other => return Err(format!("a field of wire type {other}")),
        };
        each(tag >> 3, value)?;
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for place in 0..10 {
        let (&byte, rest) = bytes.split_first().ok_or("an end in the midst of a number")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a number of more than ten bytes".to_owned())
}
