//! Texts that two tokenizers must encode to the same tokens.
//!
//! Words, spaces of all lengths, numbers, punctuation, other scripts, joined emoji; and the special tokens, side by
//! side and inside text. They are a sample: they cannot prove that two tokenizers are the same.

use crate::{TextError, Token, Tokenizer};

const TEXTS: [&str; 14] = [
    "",
    "Hello, world!",
    "It's what we'd do; I'LL see, they've gone (again).",
    " one space first",
    "two  and   three    spaces and a tab\tand lines\n\n\n  end ",
    "0 12 345 6789 01234567 3.14159 1e-5 50%",
    "fn main() { println!(\"{}\", a[0] + b->c); } // x_y camelCase",
    "naïve café, Übermaß, Ångström, ﬁ",
    "Привет, мир! Γειά σου Κόσμε",
    "你好,世界。こんにちは 안녕하세요",
    "مرحبا بالعالم שלום",
    "👍🏽 👩‍👩‍👧 🇪🇺 \u{2764}\u{fe0f}",
    "\u{a0}\u{200b}\u{3000}\r\n",
    "https://example.org/a?b=c&d=%20#e",
];

/// How many special tokens are tried inside text.
const SPECIAL_TOKENS_MAX: usize = 16;

/// Requires that `read` encodes texts as `original` does; texts with special tokens inside only if `special_tokens`.
pub(super) fn compare(
    place: &str,
    original: &Tokenizer,
    read: &Tokenizer,
    special_tokens: bool,
) -> Result<(), TextError> {
    let same = |text: &str, left: Vec<Token>, right: Vec<Token>| {
        if left == right {
            return Ok(());
        }
        let expected = format!("one that GGUF can say, where {text:?} is {left:?}");
        Err(TextError::field(place, "tokenizer", expected, format!("{right:?}")))
    };
    for text in TEXTS {
        same(text, original.encode_plain(text)?, read.encode_plain(text)?)?;
        same(text, original.encode(text, true)?, read.encode(text, true)?)?;
    }
    let special = (0..original.vocabulary_len() as Token).filter(|token| original.is_special(*token));
    for token in special.take(if special_tokens { SPECIAL_TOKENS_MAX } else { 0 }) {
        let Ok(spelling) = std::str::from_utf8(original.token_bytes(token)) else { continue };
        let text = format!("{spelling}Some text,{spelling} more{spelling}{spelling}");
        same(&text, original.encode(&text, false)?, read.encode(&text, false)?)?;
        same(&text, original.encode_plain(&text)?, read.encode_plain(&text)?)?;
    }
    Ok(())
}
