//! A tokenizer of a GGUF file: what all of its kinds have in common.
//!
//! GGUF has no `tokenizer.json`: it has a list of tokens with their types, scores or merges, the numbers of a few
//! special tokens, and the name of an algorithm. What the algorithms do is defined by llama.cpp, and we follow it, save
//! where it departs from the tokenizer that the checkpoint was trained with. Kinds: `llama` (SentencePiece, see
//! [`super::gguf_spm`]), `gpt2` (byte-level BPE, see [`super::gguf_bpe`]), `gemma4` (the same over characters) and `t5`
//! (Unigram, see [`super::gguf_unigram`]); any other is an error. Left out: reading the keys
//! ([`super::gguf_vocabulary`]).

use super::bytes::{Alphabet, Spellings, byte_token};
use super::gguf_vocabulary::{GgufVocabulary, Kind};
use super::parts::{Method, Parts};
use super::pre_tokenizer::{Letters, pre_tokenizer};
use super::special::turn_ends;
use super::{gguf_bpe, gguf_spm, gguf_unigram};
use crate::{TextError, Token};

/// Everything that a tokenizer is made of.
pub(super) fn parts(place: &str, vocabulary: &GgufVocabulary) -> Result<Parts, TextError> {
    if vocabulary.tokens.is_empty() {
        return Err(TextError::field(place, "tokenizer.ggml.tokens", "at least one token", 0));
    }
    let kinds = vocabulary.kinds(place)?;
    let (method, alphabet, habits) = match vocabulary.model.as_str() {
        "llama" => {
            let merger = gguf_spm::Merger::new(place, vocabulary, &kinds)?;
            let alphabet = Alphabet::Marked { space: '▁', bytes: false };
            let drops_first_space = merger.invents_space();
            (Method::Pieces(Box::new(merger)), alphabet, Habits { add_bos: true, drops_first_space })
        }
        "gpt2" | "gemma4" => {
            // Files of the model gemma4 need not name the cut, which goes with it.
            let named = if vocabulary.model == "gemma4" { Some("gemma4") } else { vocabulary.pre.as_deref() };
            let cuts = pre_tokenizer(place, named)?;
            let library = gguf_bpe::library(place, vocabulary, &kinds, &cuts)?;
            let alphabet = match cuts.letters {
                Letters::Bytes => Alphabet::ByteLevel,
                Letters::Characters => Alphabet::Marked { space: '▁', bytes: false },
            };
            let habits = Habits { add_bos: cuts.add_bos, drops_first_space: false };
            (Method::Library(Box::new(library)), alphabet, habits)
        }
        "t5" => {
            let (library, drops_first_space) = gguf_unigram::library(place, vocabulary, &kinds)?;
            let alphabet = Alphabet::Marked { space: '▁', bytes: false };
            (Method::Library(Box::new(library)), alphabet, Habits { add_bos: false, drops_first_space })
        }
        other => {
            let found = if other == "bert" { "bert (WordPiece, of encoders)" } else { other };
            return Err(TextError::field(place, "tokenizer.ggml.model", "llama, gpt2, gemma4 or t5", found));
        }
    };
    let around = |wanted: bool, token: Option<Token>| token.filter(|_| wanted).into_iter().collect();
    let spellings = spellings(vocabulary, &kinds, alphabet);
    Ok(Parts {
        method,
        prefix: around(vocabulary.add_bos.unwrap_or(habits.add_bos), vocabulary.bos),
        suffix: around(vocabulary.add_eos.unwrap_or(false), vocabulary.eos),
        bos: vocabulary.bos,
        end_tokens: end_tokens(vocabulary, &spellings),
        spellings,
        drops_first_space: habits.drops_first_space,
    })
}

/// What an algorithm does unless the file says otherwise.
struct Habits {
    add_bos: bool,
    drops_first_space: bool,
}

pub(super) fn spellings(vocabulary: &GgufVocabulary, kinds: &[Kind], alphabet: Alphabet) -> Spellings {
    let mut spellings = Spellings::new();
    for (spelling, &kind) in vocabulary.tokens.iter().zip(kinds) {
        match (kind, byte_token(spelling)) {
            (Kind::Byte, Some(byte)) => spellings.push(&[byte], false),
            (Kind::Normal | Kind::Unused | Kind::Byte, _) => spellings.push(&alphabet.bytes(spelling), false),
            // Found in the text as they are, so spelt as they are.
            _ => spellings.push(spelling.as_bytes(), kind.is_special()),
        }
    }
    spellings
}

/// What the file names, and what llama.cpp takes for the end whatever the file says.
fn end_tokens(vocabulary: &GgufVocabulary, spellings: &Spellings) -> Vec<Token> {
    let named = [vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().flatten();
    let is_end = |&token: &Token| spellings.is_special(token) && spellings.bytes(token) == b"<|endoftext|>";
    named.chain(turn_ends(spellings)).chain((0..spellings.len() as Token).filter(is_end)).collect()
}
