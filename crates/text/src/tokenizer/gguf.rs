//! The tokenizer of a GGUF file: the parts that all algorithms have in common.
//!
//! GGUF has no `tokenizer.json`: it has a list of tokens with their types, scores or merges, the ids of a few special
//! tokens, and the name of an algorithm. llama.cpp defines the algorithms; foretoken follows it except where it differs
//! from the tokenizer that the checkpoint was trained with. Algorithms: `llama` (SentencePiece, see
//! [`super::gguf_spm`]), `gpt2` (byte-level BPE, see [`super::gguf_bpe`]), `gemma4` (the same over characters) and `t5`
//! (Unigram, see [`super::gguf_unigram`]); any other is an error. The keys are read in [`super::gguf_vocabulary`].

use super::bytes::{Alphabet, Spellings, byte_token};
use super::gguf_vocabulary::{GgufVocabulary, Kind};
use super::parts::{Method, Parts};
use super::pre_tokenizer::{Symbols, pre_tokenizer};
use super::special::turn_ends;
use super::{gguf_bpe, gguf_spm, gguf_unigram};
use crate::{TextError, Token};

/// Builds the parts of a tokenizer.
pub(super) fn parts(place: &str, vocabulary: &GgufVocabulary) -> Result<Parts, TextError> {
    if vocabulary.tokens.is_empty() {
        return Err(TextError::field(place, "tokenizer.ggml.tokens", "at least one token", 0));
    }
    let kinds = vocabulary.kinds(place)?;
    let (method, alphabet, defaults) = match vocabulary.model.as_str() {
        "llama" => {
            let encoder = gguf_spm::SentencePieceEncoder::new(place, vocabulary, &kinds)?;
            let alphabet = Alphabet::SentencePiece { space: '▁', bytes: false };
            let drops_first_space = encoder.adds_prefix_space();
            (Method::SentencePiece(Box::new(encoder)), alphabet, Defaults { add_bos: true, drops_first_space })
        }
        "gpt2" | "gemma4" => {
            // Files of the model gemma4 need not name the pre-tokenizer, which is part of it.
            let named = if vocabulary.model == "gemma4" { Some("gemma4") } else { vocabulary.pre.as_deref() };
            let pre_tokenizer = pre_tokenizer(place, named)?;
            let library = gguf_bpe::library(place, vocabulary, &kinds, &pre_tokenizer)?;
            let alphabet = match pre_tokenizer.symbols {
                Symbols::Bytes => Alphabet::ByteLevel,
                Symbols::Characters => Alphabet::SentencePiece { space: '▁', bytes: false },
            };
            let defaults = Defaults { add_bos: pre_tokenizer.add_bos, drops_first_space: false };
            (Method::Library(Box::new(library)), alphabet, defaults)
        }
        "t5" if gguf_unigram::is_of_model_file(vocabulary) => {
            let encoder = gguf_unigram::model_file(place, vocabulary, &kinds)?;
            let alphabet = Alphabet::SentencePiece { space: '▁', bytes: false };
            let drops_first_space = encoder.adds_prefix_space();
            (Method::SentencePiece(Box::new(encoder)), alphabet, Defaults { add_bos: false, drops_first_space })
        }
        "t5" => {
            let (library, drops_first_space) = gguf_unigram::library(place, vocabulary, &kinds)?;
            let alphabet = Alphabet::SentencePiece { space: '▁', bytes: false };
            (Method::Library(Box::new(library)), alphabet, Defaults { add_bos: false, drops_first_space })
        }
        other => {
            let found = if other == "bert" { "bert (WordPiece, of encoders)" } else { other };
            return Err(TextError::field(place, "tokenizer.ggml.model", "llama, gpt2, gemma4 or t5", found));
        }
    };
    let token_if = |wanted: bool, token: Option<Token>| token.filter(|_| wanted).into_iter().collect();
    let spellings = spellings(vocabulary, &kinds, alphabet);
    Ok(Parts {
        method,
        prefix: token_if(vocabulary.add_bos.unwrap_or(defaults.add_bos), vocabulary.bos),
        suffix: token_if(vocabulary.add_eos.unwrap_or(false), vocabulary.eos),
        bos: vocabulary.bos,
        end_tokens: end_tokens(vocabulary, &spellings),
        spellings,
        drops_first_space: defaults.drops_first_space,
    })
}

/// An algorithm's defaults for what the file may set.
struct Defaults {
    add_bos: bool,
    drops_first_space: bool,
}

pub(super) fn spellings(vocabulary: &GgufVocabulary, kinds: &[Kind], alphabet: Alphabet) -> Spellings {
    let mut spellings = Spellings::new();
    for (spelling, &kind) in vocabulary.tokens.iter().zip(kinds) {
        match (kind, byte_token(spelling)) {
            (Kind::Byte, Some(byte)) => spellings.push(&[byte], false),
            (Kind::Normal | Kind::Unused | Kind::Byte, _) => spellings.push(&alphabet.bytes(spelling), false),
            // Added tokens are matched in the text as they are written.
            _ => spellings.push(spelling.as_bytes(), kind.is_special()),
        }
    }
    spellings
}

/// The end tokens that the file names, and those that llama.cpp adds.
fn end_tokens(vocabulary: &GgufVocabulary, spellings: &Spellings) -> Vec<Token> {
    let named = [vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().flatten();
    let is_end = |&token: &Token| spellings.is_special(token) && spellings.bytes(token) == b"<|endoftext|>";
    named.chain(turn_ends(spellings)).chain((0..spellings.len() as Token).filter(is_end)).collect()
}
