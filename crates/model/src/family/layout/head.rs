//! What a draft head has in its files beside the layer that it shares with other networks.
//!
//! EAGLE-3's heads (Li et al. 2025) come in three spellings: the authors' (`midlayer.`), that of the `speculators`
//! package (`layers.0.`), and GGUF's. Embedding and output rows may be missing, which means the target's. Tokens that a
//! head can say are numbered by themselves: a tensor says for each which of the target's it is, as a distance in the
//! first two spellings and as its number in the third; another one, for each of the target's whether it is among them.
//! Left out: what is computed (`fusion.rs`).

use super::{Layout, Reader};
use crate::batch::Token;
use crate::error::ModelError;
use crate::family::tensors::Bias;
use crate::lent::Lent;
use crate::linear::{Table, Unpacked};
use crate::network::Fusion;
use crate::spec::{DraftHead, HeadKind};

/// What only draft heads have.
#[derive(Clone, Copy)]
pub(in crate::family) struct HeadNames {
    /// What the names of the one layer begin with where it has no number.
    pub(in crate::family) only_layer: &'static str,
    /// The matrix from the target's rows to one of the head, and the norm before it.
    pub(in crate::family) projection: &'static str,
    pub(in crate::family) target_norm: &'static str,
    /// Of the first layer: the norm of its hidden rows.
    pub(in crate::family) hidden_norm: &'static str,
    /// Which tokens of the target its own are, and whether each of the target's is among them: whole names.
    pub(in crate::family) tokens: &'static str,
    pub(in crate::family) is_said: &'static str,
    pub(in crate::family) numbers: Numbers,
}

/// How tokens of a draft head are told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::family) enum Numbers {
    /// As the token's number less that of the head's own.
    Distances,
    /// As the token's number.
    Tokens,
}

/// As EAGLE-3's authors and the `speculators` package have them.
pub(super) const HUGGING: HeadNames = HeadNames {
    only_layer: "midlayer",
    projection: "fc",
    target_norm: "input_norm",
    hidden_norm: "hidden_norm",
    tokens: "d2t",
    is_said: "t2d",
    numbers: Numbers::Distances,
};

/// Those of GGUF files.
pub(super) const GGUF: HeadNames =
    HeadNames { hidden_norm: "attn_norm_2", numbers: Numbers::Tokens, only_layer: "", ..HUGGING };

impl Reader<'_> {
    /// What the names of a layer begin with.
    pub(super) fn layer_prefix(&self, prefix: &str, layer: usize) -> String {
        let Layout { layers, draft_head, .. } = self.layout;
        let only = format!("{prefix}{}.", draft_head.only_layer);
        let is_only = self.spec.draft_head.is_some()
            && self.spec.layers == 1
            && self.tensors.has(&format!("{only}{}.weight", draft_head.hidden_norm));
        if is_only { only } else { format!("{prefix}{layers}.{layer}.") }
    }

    /// How a draft head begins. `at`: what the names of its first layer begin with.
    pub(super) fn fusion(&self, at: &str) -> Result<Option<Fusion<Unpacked>>, ModelError> {
        let Self { spec, tensors, layout, .. } = *self;
        let Some(head) = &spec.draft_head else { return Ok(None) };
        let HeadNames { projection, target_norm, hidden_norm, .. } = layout.draft_head;
        let inputs = head.layers() * head.target_width;
        let norms_target = matches!(head.kind, HeadKind::Layers { norms_target: true, .. });
        let norm = norms_target.then(|| self.norm(target_norm, inputs));
        Ok(Some(Fusion {
            target_norm: norm.transpose()?,
            projection: tensors.linear(projection, inputs, spec.width, Bias::IfThere)?,
            hidden_norm: self.norm(&format!("{at}{hidden_norm}"), spec.width)?,
        }))
    }

    /// Which token of the target each of a draft head is; empty: the same.
    pub(super) fn head_tokens(&self) -> Result<Vec<Token>, ModelError> {
        let Some(DraftHead { draft_vocabulary, .. }) = self.spec.draft_head else { return Ok(Vec::new()) };
        let HeadNames { tokens: name, is_said: said_name, numbers, .. } = self.layout.draft_head;
        let vocabulary = self.spec.vocabulary;
        let refuse = |name: &str, expected: String, found: String| {
            Err(ModelError::config(self.tensors.weights.source(), format!("tensor {name}"), expected, found))
        };
        let is_said = self.tensors.truth_values(said_name, vocabulary)?;
        let Some(mut tokens) = self.tensors.integers(name, draft_vocabulary)? else {
            return match draft_vocabulary == vocabulary {
                true => Ok(Vec::new()),
                false => refuse(name, format!("the tokens of {draft_vocabulary} output rows"), "nothing".to_string()),
            };
        };
        if numbers == Numbers::Distances {
            tokens.iter_mut().zip(0..).for_each(|(token, own)| *token = token.wrapping_add(own));
        }
        let mut there = vec![false; vocabulary];
        for (own, token) in tokens.iter().enumerate() {
            let place = usize::try_from(*token).ok().and_then(|token| there.get_mut(token));
            match place {
                None => return refuse(name, format!("tokens below {vocabulary}"), format!("{token} of row {own}")),
                Some(true) => {
                    return refuse(name, "each token once".to_string(), format!("{token} again, of row {own}"));
                }
                // All programs that make heads take the tokens in this order.
                Some(_) if own > 0 && tokens[own - 1] > *token => {
                    return refuse(name, "ascending tokens".to_string(), format!("{token} of row {own}"));
                }
                Some(place) => *place = true,
            }
        }
        let differs = is_said.and_then(|said| said.iter().zip(&there).position(|(said, there)| said != there));
        if let Some(token) = differs {
            let expected = format!("{} of token {token}, as tensor {name} has it", there[token]);
            return refuse(said_name, expected, (!there[token]).to_string());
        }
        Ok(tokens.into_iter().map(|token| token as Token).collect())
    }

    /// The target's embedding, for a head that has none.
    pub(super) fn lent_embedding(&self, lent: &Lent) -> Result<Table, ModelError> {
        self.check_lent(self.layout.embedding, lent.embedding_width())?;
        Ok(lent.parts().0.clone())
    }

    /// The target's output rows, for a head that has none.
    pub(super) fn lent_output(&self, lent: &Lent) -> Result<Unpacked, ModelError> {
        let name = self.layout.heads[0];
        self.check_lent(name, lent.output_width())?;
        let Some(DraftHead { draft_vocabulary, .. }) = self.spec.draft_head else { unreachable!("no draft head") };
        if draft_vocabulary != self.spec.vocabulary {
            let expected = format!("output rows of {draft_vocabulary} tokens");
            let file = self.tensors.weights.source();
            return Err(ModelError::config(file, format!("tensor {name}.weight"), expected, "nothing"));
        }
        Ok(Unpacked::lent(lent.parts().1.clone()))
    }

    /// Rows of the target have to be as wide as the head's own would be.
    fn check_lent(&self, name: &str, width: usize) -> Result<(), ModelError> {
        let own = self.spec.width;
        if own == width {
            return Ok(());
        }
        let expected = format!("rows of {own} elements, since the target's have {width}");
        Err(ModelError::config(self.tensors.weights.source(), format!("tensor {name}.weight"), expected, "nothing"))
    }
}
