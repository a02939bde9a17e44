//! The tensors that draft heads have besides those of an ordinary layer.
//!
//! EAGLE-3's heads (Li et al. 2025) come with three sets of names: the authors' (`midlayer.`), those of the
//! `speculators` package (`layers.0.`), and GGUF's. If the embedding or the output matrix is missing, the target's is
//! used. The tokens of the draft vocabulary have numbers of their own: one tensor (`d2t`) maps them to tokens of the
//! target, as an offset in the first two formats and as the token's number in the third; another (`t2d`) has for each
//! token of the target whether it is in the draft vocabulary. `fusion.rs` computes the input of a head.

use super::{Layout, Reader};
use crate::batch::Token;
use crate::error::ModelError;
use crate::family::tensors::Bias;
use crate::linear::{Table, Unpacked};
use crate::network::Fusion;
use crate::shared_embeddings::SharedEmbeddings;
use crate::spec::{DraftHead, HeadKind};

/// The names of the tensors that only draft heads have.
#[derive(Clone, Copy)]
pub(in crate::family) struct DraftHeadNames {
    /// The prefix of the only layer, if it has no number.
    pub(in crate::family) only_layer: &'static str,
    /// The matrix that projects the target's hidden states to one of the head's width.
    pub(in crate::family) projection: &'static str,
    /// The norm before that matrix.
    pub(in crate::family) target_norm: &'static str,
    /// The norm of the hidden states in the first layer.
    pub(in crate::family) hidden_norm: &'static str,
    /// The whole name of the map from draft to target tokens.
    pub(in crate::family) tokens: &'static str,
    /// The whole name of the mask of target tokens that are in the draft vocabulary.
    pub(in crate::family) token_mask: &'static str,
    pub(in crate::family) token_ids: TokenIds,
}

/// How the map from draft to target tokens is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::family) enum TokenIds {
    /// As the number of the target's token minus that of the draft token.
    Offsets,
    /// As the number of the target's token.
    Absolute,
}

/// The names of EAGLE-3's authors and the `speculators` package.
pub(super) const HUGGING_FACE: DraftHeadNames = DraftHeadNames {
    only_layer: "midlayer",
    projection: "fc",
    target_norm: "input_norm",
    hidden_norm: "hidden_norm",
    tokens: "d2t",
    token_mask: "t2d",
    token_ids: TokenIds::Offsets,
};

/// The names in GGUF files.
pub(super) const GGUF: DraftHeadNames =
    DraftHeadNames { hidden_norm: "attn_norm_2", token_ids: TokenIds::Absolute, only_layer: "", ..HUGGING_FACE };

impl Reader<'_> {
    /// The prefix of a layer's names.
    pub(super) fn layer_prefix(&self, prefix: &str, layer: usize) -> String {
        let Layout { layers, draft_head, .. } = self.layout;
        let only = format!("{prefix}{}.", draft_head.only_layer);
        let is_only = self.spec.draft_head.is_some()
            && self.spec.layers == 1
            && self.tensors.has(&format!("{only}{}.weight", draft_head.hidden_norm));
        if is_only { only } else { format!("{prefix}{layers}.{layer}.") }
    }

    /// The input of a draft head. `at` is the prefix of its first layer.
    pub(super) fn fusion(&self, at: &str) -> Result<Option<Fusion<Unpacked>>, ModelError> {
        let Self { spec, tensors, layout, .. } = *self;
        let Some(head) = &spec.draft_head else { return Ok(None) };
        let DraftHeadNames { projection, target_norm, hidden_norm, .. } = layout.draft_head;
        let inputs = head.layers() * head.target_width;
        let norms_target = matches!(head.kind, HeadKind::Layers { norms_target: true, .. });
        let norm = norms_target.then(|| self.norm(target_norm, inputs));
        Ok(Some(Fusion {
            target_norm: norm.transpose()?,
            projection: tensors.linear(projection, inputs, spec.width, Bias::IfThere)?,
            hidden_norm: self.norm(&format!("{at}{hidden_norm}"), spec.width)?,
        }))
    }

    /// The target token of each token of a draft head; empty if the numbers are equal.
    pub(super) fn head_tokens(&self) -> Result<Vec<Token>, ModelError> {
        let Some(DraftHead { draft_vocabulary, .. }) = self.spec.draft_head else { return Ok(Vec::new()) };
        let DraftHeadNames { tokens: name, token_mask: mask_name, token_ids, .. } = self.layout.draft_head;
        let vocabulary = self.spec.vocabulary;
        let refuse = |name: &str, expected: String, found: String| {
            Err(ModelError::config(self.tensors.weights.source(), format!("tensor {name}"), expected, found))
        };
        let mask = self.tensors.booleans(mask_name, vocabulary)?;
        let Some(mut tokens) = self.tensors.integers(name, draft_vocabulary)? else {
            return match draft_vocabulary == vocabulary {
                true => Ok(Vec::new()),
                false => refuse(name, format!("the tokens of {draft_vocabulary} output rows"), "nothing".to_string()),
            };
        };
        if token_ids == TokenIds::Offsets {
            tokens.iter_mut().zip(0..).for_each(|(token, own)| *token = token.wrapping_add(own));
        }
        let mut present = vec![false; vocabulary];
        for (own, token) in tokens.iter().enumerate() {
            let seen = usize::try_from(*token).ok().and_then(|token| present.get_mut(token));
            match seen {
                None => return refuse(name, format!("tokens below {vocabulary}"), format!("{token} of row {own}")),
                Some(true) => {
                    return refuse(name, "each token once".to_string(), format!("{token} again, of row {own}"));
                }
                // All programs that make heads write the tokens in ascending order.
                Some(_) if own > 0 && tokens[own - 1] > *token => {
                    return refuse(name, "ascending tokens".to_string(), format!("{token} of row {own}"));
                }
                Some(seen) => *seen = true,
            }
        }
        let differs = mask.and_then(|mask| mask.iter().zip(&present).position(|(mask, present)| mask != present));
        if let Some(token) = differs {
            let expected = format!("{} of token {token}, as tensor {name} has it", present[token]);
            return refuse(mask_name, expected, (!present[token]).to_string());
        }
        Ok(tokens.into_iter().map(|token| token as Token).collect())
    }

    /// The target's embedding, for a head without its own.
    pub(super) fn shared_embedding(&self, shared: &SharedEmbeddings) -> Result<Table, ModelError> {
        self.check_shared(self.layout.embedding, shared.embedding_width())?;
        Ok(shared.parts().0.clone())
    }

    /// The target's output matrix, for a head without its own.
    pub(super) fn shared_output_rows(&self, shared: &SharedEmbeddings) -> Result<Unpacked, ModelError> {
        let name = self.layout.heads[0];
        self.check_shared(name, shared.output_width())?;
        let Some(DraftHead { draft_vocabulary, .. }) = self.spec.draft_head else { unreachable!("no draft head") };
        if draft_vocabulary != self.spec.vocabulary {
            let expected = format!("output rows of {draft_vocabulary} tokens");
            let file = self.tensors.weights.source();
            return Err(ModelError::config(file, format!("tensor {name}.weight"), expected, "nothing"));
        }
        Ok(Unpacked::shared(shared.parts().1.clone()))
    }

    /// Checks that rows of the target and the head have the same width.
    fn check_shared(&self, name: &str, width: usize) -> Result<(), ModelError> {
        let own = self.spec.width;
        if own == width {
            return Ok(());
        }
        let expected = format!("rows of {own} elements, since the target's have {width}");
        Err(ModelError::config(self.tensors.weights.source(), format!("tensor {name}.weight"), expected, "nothing"))
    }
}
