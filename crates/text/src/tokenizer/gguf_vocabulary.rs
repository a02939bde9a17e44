//! The vocabulary of a GGUF file, and the kind of each token. The algorithms are in [`super::gguf`].

use foretoken_weights::gguf::Metadata;

use super::bytes::byte_token;
use super::special::TURN_ENDS;
use crate::{TextError, Token};

/// A key of foretoken's own: the scores as 64-bit floats.
pub(crate) const EXACT_SCORES: &str = "foretoken.tokenizer.scores";

/// The vocabulary that a GGUF file holds under `tokenizer.ggml`.
#[derive(Clone, Debug, Default)]
pub struct GgufVocabulary {
    /// `general.name`, by which models with special rules for spaces are recognized.
    pub name: Option<String>,
    /// The algorithm, `tokenizer.ggml.model`.
    pub model: String,
    /// The pre-tokenizer, `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// The tokens as the file writes them.
    pub tokens: Vec<String>,
    /// A score per token: the higher, the earlier it is merged (`llama`) or the more probable it is (`t5`).
    pub scores: Vec<f32>,
    /// The scores of `t5` before rounding, `foretoken.tokenizer.scores`; may be empty.
    pub exact_scores: Vec<f64>,
    /// `t5`: the compiled table of characters by which text is normalized, as SentencePiece writes it; may be empty.
    pub characters: Vec<u8>,
    /// `t5`: whether spaces at both ends of a text are dropped and several become one; false if the file does not say.
    pub removes_spaces: bool,
    /// A type per token; may be empty.
    pub token_types: Vec<i32>,
    /// Pairs that are merged, best first, each as two tokens with a space between. Only for `gpt2` and `gemma4`.
    pub merges: Vec<String>,
    /// The token that begins a text.
    pub bos: Option<Token>,
    /// The token that ends a text.
    pub eos: Option<Token>,
    /// The token that ends a turn.
    pub eot: Option<Token>,
    /// The token that ends a message.
    pub eom: Option<Token>,
    /// The token for text that no token has.
    pub unknown: Option<Token>,
    /// Whether a text begins with `bos`; the algorithm's default if the file does not say.
    pub add_bos: Option<bool>,
    /// Whether a text ends with `eos`.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text.
    pub add_space_prefix: Option<bool>,
    /// The chat template.
    pub chat_template: Option<String>,
}

/// The kind of a token, as in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    /// Whether the token is special and not text.
    pub fn is_special(self) -> bool {
        matches!(self, Self::Unknown | Self::Control)
    }
}

impl GgufVocabulary {
    /// Reads the vocabulary of a file. `name` identifies the file in messages.
    ///
    /// # Errors
    /// If a key that the algorithm needs is missing, a value has the wrong type, or a number is not a token.
    pub fn from_metadata(name: &str, metadata: &Metadata) -> Result<Self, TextError> {
        let key = |field: &str| format!("tokenizer.ggml.{field}");
        let flag = |field: &str| metadata.optional_bool(&key(field));
        let tokens = metadata.strings(&key("tokens"))?.to_vec();
        let special = |field: &str| match metadata.optional_u32(&key(field))? {
            // Writers encode "none" as the largest number.
            None | Some(u32::MAX) => Ok(None),
            Some(id) if (id as usize) < tokens.len() => Ok(Some(id)),
            Some(id) => Err(TextError::field(name, key(field), format!("a token below {}", tokens.len()), id)),
        };
        let model = metadata.str(&key("model"))?.to_owned();
        let text = |field: &str| metadata.optional_str(field).map(|text| text.map(str::to_owned));
        let merges = match model.as_str() {
            "gpt2" | "gemma4" => metadata.strings(&key("merges"))?.to_vec(),
            _ => Vec::new(),
        };
        let (mut exact_scores, mut characters, mut removes_spaces) = (Vec::new(), Vec::new(), false);
        let scores = match model.as_str() {
            "llama" => metadata.f32s(&key("scores"))?.to_vec(),
            "t5" => {
                characters = metadata.optional_bytes(&key("precompiled_charsmap"))?.unwrap_or_default();
                removes_spaces = flag("remove_extra_whitespaces")?.unwrap_or(false);
                exact_scores = metadata.optional_f64s(EXACT_SCORES)?.unwrap_or_default().to_vec();
                metadata.f32s(&key("scores"))?.to_vec()
            }
            _ => Vec::new(),
        };
        Ok(Self {
            name: text("general.name")?,
            model,
            pre: text(&key("pre"))?,
            scores,
            exact_scores,
            characters,
            removes_spaces,
            token_types: metadata.optional_i32s(&key("token_type"))?.unwrap_or_default(),
            merges,
            bos: special("bos_token_id")?,
            eos: special("eos_token_id")?,
            eot: special("eot_token_id")?,
            eom: special("eom_token_id")?,
            unknown: special("unknown_token_id")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?,
            tokens,
        })
    }

    /// The spelling of a special token, for chat templates.
    pub(crate) fn spelling(&self, token: Option<Token>) -> &str {
        token.and_then(|token| self.tokens.get(token as usize)).map_or("", String::as_str)
    }

    pub(super) fn kinds(&self, place: &str) -> Result<Vec<Kind>, TextError> {
        let count = self.tokens.len();
        if !self.token_types.is_empty() && self.token_types.len() != count {
            let expected = format!("{count} types, one for each token");
            return Err(TextError::field(place, "tokenizer.ggml.token_type", expected, self.token_types.len()));
        }
        (0..count).map(|index| self.kind(place, index)).collect()
    }

    fn kind(&self, place: &str, index: usize) -> Result<Kind, TextError> {
        let (spelling, token) = (self.tokens[index].as_str(), Some(index as Token));
        let kind = match self.token_types.get(index) {
            // Old files have no types: the kind follows from the id and the text.
            None if self.model == "llama" && byte_token(spelling).is_some() => Kind::Byte,
            None if token == self.bos || token == self.eos => Kind::Control,
            None if token == self.unknown => Kind::Unknown,
            // Type 0 is "undefined"; llama.cpp takes it for an ordinary token.
            None | Some(0 | 1) => Kind::Normal,
            Some(2) => Kind::Unknown,
            Some(3) => Kind::Control,
            Some(4) => Kind::UserDefined,
            Some(5) => Kind::Unused,
            Some(6) => Kind::Byte,
            Some(other) => {
                let field = format!("tokenizer.ggml.token_type[{index}]");
                return Err(TextError::field(place, field, "a number from 0 to 6", other));
            }
        };
        // Some converters do not mark these as control tokens.
        Ok(if TURN_ENDS.contains(&spelling) { Kind::Control } else { kind })
    }
}
