//! A folder whose vocabulary is a file of tiktoken, without a `tokenizer.json`: Qwen 1 (`qwen.tiktoken`) and the first
//! GLM-4 (`tokenizer.model`, a name that SentencePiece's files have as well).
//!
//! Each line has the bytes of a token in base64, and its rank, which is also its number. tiktoken merges the pair of
//! lowest rank that is a token; so the merge that makes a token joins the two parts that earlier merges leave of it,
//! and these are the merges of a byte-level BPE, which the `tokenizers` library encodes. A word that is a token is
//! taken as it is. The expression that splits words and the special tokens are written in the code that comes with the
//! checkpoints, and therefore here; `added_tokens_decoder` of `tokenizer_config.json` adds to them. Other classes are
//! refused by name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use foretoken_weights::whole::{self, VOCABULARY_BYTES_MAX};
use serde_json::Value;
use tokenizers::AddedToken;
use tokenizers::normalizers::NFC;

use super::bytes::{Alphabet, byte_character};
use super::folder::{added_tokens_of, configuration, json_file};
use super::gguf_vocabulary::GgufVocabulary;
use super::library::Library;
use super::parts::{Method, Parts};
use super::pre_tokenizer::{PreTokenizer, pre_tokenizer};
use super::{build_limits, gguf, gguf_bpe};
use crate::{TextError, Token};

/// The file of Qwen 1, and that of GLM-4.
const FILES: [&str; 2] = ["qwen.tiktoken", "tokenizer.model"];

/// The greatest sum of the squares of the tokens' lengths in bytes, with which the time of finding merges grows.
/// Vocabularies of 150 000 tokens have some 2^23.
const SQUARES_MAX: usize = 1 << 26;

/// How far behind the known tokens those may be that `tokenizer_config.json` adds.
const FURTHER_MAX: usize = 1 << 16;

/// What the code of a family's checkpoints says.
struct Class {
    name: &'static str,
    /// GGUF's name of the expression that splits words.
    pre: &'static str,
    /// Whether texts are brought to the normal form NFC.
    is_normalized: bool,
    /// The special tokens, which follow the last rank.
    special: &'static [&'static str],
    /// The number of tokens `<|extra_N|>` behind them.
    extra: usize,
    /// The special tokens before a text.
    prefix: &'static [&'static str],
    end: &'static str,
}

const CLASSES: [Class; 2] = [
    Class {
        name: "QWenTokenizer",
        pre: "qwen2",
        is_normalized: true,
        special: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        extra: 205,
        prefix: &[],
        end: "<|endoftext|>",
    },
    Class {
        name: "ChatGLM4Tokenizer",
        pre: "glm4",
        is_normalized: false,
        special: &[
            "<|endoftext|>",
            "[MASK]",
            "[gMASK]",
            "[sMASK]",
            "<sop>",
            "<eop>",
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|observation|>",
            "<|begin_of_image|>",
            "<|end_of_image|>",
            "<|begin_of_video|>",
            "<|end_of_video|>",
        ],
        extra: 0,
        prefix: &["[gMASK]", "<sop>"],
        end: "<|endoftext|>",
    },
];

/// The file of tiktoken in a folder, if there is one.
pub(crate) fn file(dir: &Path) -> Option<PathBuf> {
    let [qwen, other] = FILES.map(|name| dir.join(name));
    if qwen.exists() { Some(qwen) } else { Some(other).filter(|path| begins_as_tiktoken(path)) }
}

/// Whether a file begins with base64 and not, as SentencePiece's do, with a field of a protocol buffer.
fn begins_as_tiktoken(path: &Path) -> bool {
    use std::io::Read as _;
    let mut first = [0; 1];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && (first[0].is_ascii_alphanumeric() || matches!(first[0], b'+' | b'/'))
}

pub(super) fn from_dir(dir: &Path) -> Result<Parts, TextError> {
    let Folder { place, vocabulary, class } = Folder::read(dir)?;
    let kinds = vocabulary.kinds(&place)?;
    let splits = pre_tokenizer(&place, Some(class.pre))?;
    let mut tokenizer =
        gguf_bpe::tokenizer(&place, &vocabulary, &kinds, &PreTokenizer { ignore_merges: true, ..splits })?;
    if class.is_normalized {
        tokenizer.with_normalizer(Some(NFC)).map_err(|error| TextError::format(&place, "a tokenizer", error))?;
    }
    let numbered = |text: &&str| vocabulary.tokens.iter().rposition(|token| token == text).map(|id| id as Token);
    Ok(Parts {
        prefix: class.prefix.iter().filter_map(numbered).collect(),
        suffix: Vec::new(),
        bos: None,
        end_tokens: vocabulary.eos.into_iter().collect(),
        drops_first_space: false,
        spellings: gguf::spellings(&vocabulary, &kinds, Alphabet::ByteLevel),
        method: Method::Library(Box::new(Library::new(tokenizer))),
    })
}

/// A folder's vocabulary as GGUF holds it, and whether texts are brought to the normal form NFC, which GGUF cannot say.
///
/// # Errors
/// A file cannot be understood, or the class is not known.
pub(crate) fn vocabulary(dir: &Path) -> Result<(GgufVocabulary, bool), TextError> {
    Folder::read(dir).map(|folder| (folder.vocabulary, folder.class.is_normalized))
}

/// What is read of a folder.
struct Folder {
    place: String,
    vocabulary: GgufVocabulary,
    class: &'static Class,
}

impl Folder {
    fn read(dir: &Path) -> Result<Self, TextError> {
        let config = configuration(dir)?;
        let path = file(dir).unwrap_or_else(|| dir.join(FILES[0]));
        let is_qwen = path.ends_with(FILES[0]);
        let place = path.display().to_string();
        let class = class(&place, &config, is_qwen)?;
        let text = whole::read_text(&path, VOCABULARY_BYTES_MAX).map_err(|source| TextError::read(&path, source))?;
        let further = json_file(&dir.join("added_tokens.json"))?.unwrap_or_default();
        let ranked = ranked(&place, &text)?;
        let spelled = |bytes: &Vec<u8>| (bytes.iter().map(|&byte| byte_character(byte)).collect(), NORMAL);
        let mut tokens: Vec<(String, i32)> = ranked.iter().map(spelled).collect();
        let extra = (0..class.extra).map(|number| format!("<|extra_{number}|>"));
        tokens.extend(class.special.iter().map(|text| text.to_string()).chain(extra).map(|text| (text, CONTROL)));
        let most = tokens.len() + FURTHER_MAX;
        let added_tokens = added_tokens_of(&place, &config, &further)?;
        let unnumbered: Vec<AddedToken> = added_tokens.iter().map(|added| added.token.clone()).collect();
        build_limits::check_added(&place, None, &unnumbered)?;
        for added in added_tokens {
            let id = added.id as usize;
            if id >= most {
                let field = format!("added_tokens_decoder.{id}");
                return Err(TextError::field(&place, field, format!("a number below {most}"), id));
            }
            while tokens.len() <= id {
                tokens.push((format!("[PAD{}]", tokens.len()), UNUSED));
            }
            if id >= ranked.len() {
                tokens[id] = (added.token.content, if added.token.special { CONTROL } else { USER_DEFINED });
            }
        }
        let eos = tokens.iter().rposition(|(text, _)| text == class.end).map(|id| id as Token);
        let (tokens, token_types) = tokens.into_iter().unzip();
        let merges = merges(&place, &ranked)?;
        let (model, pre) = ("gpt2".to_string(), Some(class.pre.to_string()));
        let vocabulary = GgufVocabulary { model, pre, tokens, token_types, merges, eos, ..GgufVocabulary::default() };
        Ok(Self { place, vocabulary, class })
    }
}

/// GGUF's token types.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

fn class(place: &str, config: &Value, is_qwen: bool) -> Result<&'static Class, TextError> {
    let named = config.get("tokenizer_class").and_then(Value::as_str);
    let found = named.unwrap_or(if is_qwen { CLASSES[0].name } else { "none" });
    CLASSES.iter().find(|class| class.name == found).ok_or_else(|| {
        let known = CLASSES.map(|class| class.name).join(" or ");
        TextError::field(place, "tokenizer_class", format!("{known} (or a tokenizer.json)"), found)
    })
}

/// The tokens' bytes in the order of their ranks, which count from 0.
fn ranked(place: &str, text: &str) -> Result<Vec<Vec<u8>>, TextError> {
    let read = |line: &str| {
        let (bytes, rank) = line.split_once(' ')?;
        let bytes = BASE64.decode(bytes).ok().filter(|bytes| !bytes.is_empty())?;
        Some((rank.trim().parse::<usize>().ok()?, bytes))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let tokens = lines.map(|(number, line)| {
        read(line).ok_or_else(|| {
            let shown: String = line.chars().take(80).collect();
            let expected = "the bytes of a token in base64, and its rank";
            TextError::field(place, format!("line {}", number + 1), expected, format!("{shown:?}"))
        })
    });
    let mut tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    tokens.sort_unstable_by_key(|(rank, _)| *rank);
    match tokens.iter().enumerate().find(|(i, (rank, _))| i != rank) {
        None => Ok(tokens.into_iter().map(|(_, bytes)| bytes).collect()),
        Some((i, (rank, _))) => Err(TextError::field(place, "ranks", format!("{i}, after those before it"), rank)),
    }
}

/// The merges of all tokens that a merge makes, best first, as GGUF writes them.
fn merges(place: &str, ranked: &[Vec<u8>]) -> Result<Vec<String>, TextError> {
    let squares = ranked.iter().map(|bytes| bytes.len().saturating_mul(bytes.len())).fold(0, usize::saturating_add);
    if squares > SQUARES_MAX {
        let longest = ranked.iter().map(Vec::len).max().unwrap_or(0);
        let found = format!("{} with up to {longest} bytes", ranked.len());
        return Err(TextError::field(place, "tokens", "as many and as long ones as vocabularies have", found));
    }
    let ranks: HashMap<&[u8], usize> =
        ranked.iter().enumerate().map(|(rank, bytes)| (bytes.as_slice(), rank)).collect();
    if let Some((rank, bytes)) = ranked.iter().enumerate().find(|(rank, bytes)| ranks[bytes.as_slice()] != *rank) {
        let found = format!("\"{}\" with {rank} and {}", bytes.escape_ascii(), ranks[bytes.as_slice()]);
        return Err(TextError::field(place, "tokens", "each with one rank", found));
    }
    let spelled = |bytes: &[u8]| bytes.iter().map(|&byte| byte_character(byte)).collect::<String>();
    let merge = |(rank, bytes): (usize, &Vec<u8>)| {
        let (left, right) = bytes.split_at(last_split(&ranks, bytes, rank)?);
        let known = ranks.contains_key(left) && ranks.contains_key(right);
        known.then(|| format!("{} {}", spelled(left), spelled(right)))
    };
    Ok(ranked.iter().enumerate().filter_map(merge).collect())
}

/// Where the last merge joins a token: between the two parts that the merges before its rank make of its bytes; `None`
/// if they make one or more than two.
fn last_split(ranks: &HashMap<&[u8], usize>, bytes: &[u8], rank: usize) -> Option<usize> {
    let mut bounds: Vec<usize> = (0..=bytes.len()).collect();
    while bounds.len() > 3 {
        let rank_over = |inner: usize| ranks.get(&bytes[bounds[inner - 1]..bounds[inner + 1]]).copied();
        let earlier = (1..bounds.len() - 1).filter_map(|inner| Some((rank_over(inner).filter(|r| *r < rank)?, inner)));
        let (_, inner) = earlier.min()?;
        bounds.remove(inner);
    }
    (bounds.len() == 3).then(|| bounds[1])
}

#[cfg(test)]
mod tests;
