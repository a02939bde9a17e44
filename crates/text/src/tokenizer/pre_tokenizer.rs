//! The pre-tokenizers of byte-level vocabularies (how text is split into words before merging), by GGUF's names.
//!
//! A name stands for a list of regular expressions. Each splits the pieces that the ones before it left: every match
//! becomes a piece of its own, and so does the text between two matches. The expressions are those of the tokenizers
//! that the checkpoints were trained with, which the library supports; llama.cpp approximates some.
//!
//! With two names (gemma4, sarvam-moe) the BPE symbols are characters instead of bytes, with spaces written as "▁".
//! Where llama.cpp splits by code (kimi-k2, afmoe, tiny_aya), this table has the original expression.
//!
//! `whitespace`, which drops the spaces of a text, is not supported: it belongs to an encoder. An unknown name is an
//! error, since nobody would notice a wrong split.

use crate::TextError;

/// The pre-tokenizer that a name of `tokenizer.ggml.pre` stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    pub patterns: &'static [&'static str],
    /// Whether a word that is a token is taken as it is, without merging.
    pub ignore_merges: bool,
    /// Whether a text begins with bos, unless the file says otherwise.
    pub add_bos: bool,
    /// The symbols that are merged.
    pub symbols: Symbols,
}

/// The symbols that a BPE vocabulary merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbols {
    /// A printable character for each byte, as in GPT-2.
    Bytes,
    /// The characters of the text, "▁" for a space, and `<0xNN>` for the bytes of characters without a token.
    Characters,
}

pub(crate) const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
pub(crate) const DIGIT: &str = r"\p{N}";
pub(crate) const DIGITS: &str = r"\p{N}+";
const THREE_DIGITS: &str = "[0-9][0-9][0-9]";
const UP_TO_THREE_DIGITS: &str = r"\p{N}{1,3}";
const LINE_END: &str = r"[\r\n]";
const LLAMA_3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|",
    r"\s+(?!\S)|\s+",
);
const JAIS_2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|",
    r"\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|",
    r"\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
);
const MINICPM_5: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(super) const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|",
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const GPT_4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|",
    r"'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|",
    r"'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// As [`GPT_4O`], with Han characters in words of their own.
const KIMI_2: &str = concat!(
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const YOUTU_SCRIPTS: &str = concat!(
    "[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|",
    "[\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\u{3001}-\u{303f}",
    "\u{fe30}-\u{fe4f}]+|",
    "[\u{3105}-\u{312f}]+|[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
);
const YOUTU: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|",
    r"'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|",
    r"'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// As [`QWEN_2`], without English contractions.
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LINES: &str = r"[^\n]+|[\n]+";
/// Splits before every third digit, counted from the end of a number.
const THOUSANDS: &str = r"(?=(\d{3})+(?!\d))";
/// One to three digits, such that groups of three follow to the end of the number.
const AFMOE_DIGITS: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
const AFMOE_SCRIPTS: &str = concat!(
    "[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{f900}-\u{faff}\u{3040}-\u{309f}\u{30a0}-\u{30ff}\u{ff65}-\u{ff9f}",
    "\u{2f00}-\u{2fdf}\u{e00}-\u{e7f}\u{e80}-\u{eff}\u{1780}-\u{17ff}\u{1000}-\u{109f}\u{aa60}-\u{aa7f}",
    "\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]+",
);
const TINY_AYA_DIGITS: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
);
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";
pub(crate) const FALCON_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const CHAMELEON_PUNCTUATION: &str = r"[\p{P}!-/:-@\[-`{-~]";
const CJK: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
const CJK_AND_HANGUL: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";
const DEEPSEEK_3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const SPARK_25: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
    r" ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
);
const DEEPSEEK_PUNCTUATION: &str = "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+";
/// Symbols with case, as an old version of Unicode listed them.
const DEEPSEEK_LETTERS: &str = concat!(
    "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}",
    "\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}",
    "\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}",
    "\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}",
    "\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}",
    "\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}",
    "\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}",
    "\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}",
    "\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}",
    "\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}",
    "\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}",
    "\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+",
);

/// A pre-tokenizer and its names.
struct Preset {
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    ignore_merges: bool,
    add_bos: bool,
    symbols: Symbols,
}

impl Preset {
    const fn new(names: &'static [&'static str], patterns: &'static [&'static str]) -> Self {
        Self { names, patterns, ignore_merges: false, add_bos: false, symbols: Symbols::Bytes }
    }

    const fn ignoring_merges(self) -> Self {
        Self { ignore_merges: true, ..self }
    }

    const fn adding_bos(self) -> Self {
        Self { add_bos: true, ..self }
    }

    const fn of_characters(self) -> Self {
        Self { symbols: Symbols::Characters, ..self }
    }
}

/// Families are sorted by age, names as in llama.cpp.
#[rustfmt::skip]
const PRESETS: &[Preset] = &[
    Preset::new(&["default"], &[PUNCTUATION, GPT_2, DIGITS, THREE_DIGITS]),
    Preset::new(&[
        "gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4", "trillion",
        "granite-docling", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code",
        "roberta-bpe",
    ], &[GPT_2]),
    Preset::new(&[
        "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2",
    ], &[DIGIT, GPT_2]),
    Preset::new(&[
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
    ], &[LLAMA_3]).ignoring_merges().adding_bos(),
    Preset::new(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA_3]),
    Preset::new(&["glm4", "glm5"], &[LLAMA_3]).ignoring_merges(),
    Preset::new(&[
        "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2",
    ], &[QWEN_2]),
    Preset::new(&["qwen35"], &[QWEN_35]),
    Preset::new(&["ufakzeka"], &[UFAKZEKA]),
    Preset::new(&["laguna"], &[LINES, QWEN_2]),
    Preset::new(&["deepseek-llm"], &[
        LINE_END, DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, r"\s+$", CJK_AND_HANGUL, DIGITS,
    ]),
    Preset::new(&["deepseek-coder"], &[LINE_END, r"\s?\p{L}+", r"\s?\p{P}+", CJK_AND_HANGUL, DIGIT]),
    Preset::new(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[UP_TO_THREE_DIGITS, CJK, DEEPSEEK_3]),
    Preset::new(&["spark2_5"], &[UP_TO_THREE_DIGITS, CJK, SPARK_25, DIGIT]),
    Preset::new(&["afmoe"], &[AFMOE_DIGITS, AFMOE_SCRIPTS, DEEPSEEK_3]),
    Preset::new(&["falcon"], &[FALCON_PUNCTUATION, GPT_2, THREE_DIGITS]),
    Preset::new(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    Preset::new(&["viking"], &[BLOOM, DIGIT]),
    Preset::new(&["tekken"], &[TEKKEN]).ignoring_merges().adding_bos(),
    Preset::new(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT_4O]),
    Preset::new(&["granite-embed-multi-97m"], &[GPT_4O]).ignoring_merges(),
    Preset::new(&["kimi-k2"], &[KIMI_2]),
    Preset::new(&["youtu"], &[YOUTU_SCRIPTS, YOUTU]).ignoring_merges(),
    Preset::new(&["superbpe"], &[DIGITS, THOUSANDS]),
    Preset::new(&["tiny_aya", "cohere2moe"], &[TINY_AYA_DIGITS, GPT_4O]),
    Preset::new(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    Preset::new(&["seed-coder"], &[SEED_CODER]),
    Preset::new(&["exaone-moe"], &[EXAONE_MOE]),
    Preset::new(&["jais-2"], &[JAIS_2]),
    Preset::new(&["minicpm5"], &[UP_TO_THREE_DIGITS, MINICPM_5]).ignoring_merges(),
    Preset::new(&["gemma4", "granite-embed-multi-311m"], &[]).of_characters().adding_bos(),
    Preset::new(&["sarvam-moe"], &[LINES]).of_characters(),
    Preset::new(&["chameleon"], &[
        "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", DIGIT, CHAMELEON_PUNCTUATION,
        GPT_2,
    ]).adding_bos(),
];

/// Looks up a name. Old files without a name mean `default`.
pub(super) fn pre_tokenizer(place: &str, name: Option<&str>) -> Result<PreTokenizer, TextError> {
    let name = name.filter(|name| !name.is_empty()).unwrap_or("default");
    let Some(preset) = PRESETS.iter().find(|preset| preset.names.contains(&name)) else {
        let known = PRESETS.iter().flat_map(|preset| preset.names.iter().copied()).collect::<Vec<_>>().join(", ");
        return Err(TextError::field(place, "tokenizer.ggml.pre", format!("one of {known}"), name));
    };
    let Preset { patterns, ignore_merges, add_bos, symbols, .. } = *preset;
    Ok(PreTokenizer { patterns, ignore_merges, add_bos, symbols })
}

/// Expressions of folders that llama.cpp replaces by others, with the name of the replacement. For the vocabularies
/// trained with them both split alike: Falcon's has no token of a space and digits.
const REPLACED: &[(&[&str], &str)] =
    &[(&[FALCON_PUNCTUATION, GPT_2, DIGITS, THREE_DIGITS], "falcon"), (&[r" ?[^(\s|[.,!?…。，、।۔،])]+"], "bloom")];

/// The first name of these expressions.
pub(crate) fn name_of(patterns: &[String], ignore_merges: bool) -> Option<&'static str> {
    let matches = |preset: &&Preset| {
        preset.symbols == Symbols::Bytes && preset.ignore_merges == ignore_merges && preset.patterns == patterns
    };
    let replaced =
        || REPLACED.iter().find(|(replaced, _)| !ignore_merges && *replaced == patterns).map(|(_, name)| *name);
    PRESETS.iter().find(matches).and_then(|preset| preset.names.first().copied()).or_else(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::gguf_bpe::split_pre_tokenizer;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    fn split(name: &str, text: &str) -> Vec<String> {
        let pre_tokenizer =
            split_pre_tokenizer(name, pre_tokenizer(name, Some(name)).unwrap().patterns, false).unwrap();
        let mut pieces = PreTokenizedString::from(text);
        pre_tokenizer.pre_tokenize(&mut pieces).unwrap();
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|split| split.0.to_owned()).collect()
    }

    #[test]
    fn every_name_compiles_and_keeps_all_text() {
        let text = "Hi, I'LL  pay 12345.67€ for 我 and\r\n\n it's\tover  \u{301}a  IMGIMGABZ (ok) ";
        for name in PRESETS.iter().flat_map(|preset| preset.names) {
            assert_eq!(split(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn names_split_as_expected() {
        assert_eq!(split("gpt-2", "a 123 IT'S  b"), ["a", " 123", " IT", "'", "S", " ", " b"]);
        assert_eq!(split("starcoder", "a 123"), ["a", " ", "1", "2", "3"]);
        assert_eq!(split("llama-bpe", "IT'S 12345\n\n x"), ["IT", "'S", " ", "123", "45", "\n\n", " x"]);
        assert_eq!(split("qwen2", "12.a"), ["1", "2", ".a"]);
        assert_eq!(split("default", "a,b1234"), ["a", ",", "b", "123", "4"]);
        assert_eq!(split("deepseek-llm", "ab, 我12  "), ["ab", ",", " ", "我", "12", "  "]);
        assert_eq!(split("deepseek-v3", "a 1234我"), ["a", " ", "123", "4", "我"]);
        assert_eq!(split("tekken", "HelloWorld"), ["Hello", "World"]);
        assert_eq!(split("gpt-4o", "it's"), ["it's"]);
        assert_eq!(split("bloom", "a b.c"), ["a", " b", ".", "c"]);
        assert_eq!(split("kimi-k2", "ab我的c1234 it's"), ["ab", "我的", "c", "123", "4", " it's"]);
        assert_eq!(split("superbpe", "a b 1234567, 12"), ["a b ", "1", "234", "567", ", ", "12"]);
        assert_eq!(split("afmoe", "a1234567 12我b"), ["a", "1", "234", "567", " ", "12", "我", "b"]);
        assert_eq!(split("tiny_aya", "1234567 12"), ["1", "234", "567", " ", "12"]);
        assert_eq!(split("laguna", "a b\n\n c"), ["a", " b", "\n\n", " c"]);
        assert_eq!(split("ufakzeka", "IT'S"), ["IT", "'S"]);
        assert_eq!(split("qwen35", "a\u{301}b"), ["a\u{301}b"]);
    }

    #[test]
    fn expressions_have_names() {
        for preset in PRESETS.iter().filter(|preset| preset.symbols == Symbols::Bytes) {
            let patterns: Vec<String> = preset.patterns.iter().map(|pattern| pattern.to_string()).collect();
            let name = name_of(&patterns, preset.ignore_merges).unwrap();
            let found = pre_tokenizer(name, Some(name)).unwrap();
            assert_eq!((found.patterns, found.ignore_merges), (preset.patterns, preset.ignore_merges));
        }
        assert_eq!(name_of(&[GPT_2.to_string()], false), Some("gpt-2"));
        assert_eq!(name_of(&[GPT_2.to_string()], true), None);
    }

    #[test]
    fn an_unknown_name_is_refused_with_a_list_of_the_known_ones() {
        let message = pre_tokenizer("a.gguf", Some("whitespace")).unwrap_err().to_string();
        assert!(message.starts_with("a.gguf: tokenizer.ggml.pre: expected one of default, gpt-2"), "{message}");
        assert!(message.ends_with("found whitespace"), "{message}");
        assert_eq!(pre_tokenizer("a.gguf", None).unwrap().patterns.len(), 4);
    }
}
