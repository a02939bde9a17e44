//! The description of a draft head by its configuration: what it reads of a target, and its kind.
//!
//! The layers of such a head are described like those of any network.

/// The properties of a draft head, a network that drafts for a target whose hidden states it reads besides its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftHead {
    /// Layers of the target whose *output* (the residual stream) it reads, numbered from 0, in this order. EAGLE-3's
    /// files name the layers whose *input* this is, each one more. Empty if the file does not have them: then three
    /// layers are chosen by the number of the target's layers ([`DraftHead::layers_of`]).
    pub target_layers: Vec<usize>,
    /// Width of the target.
    pub target_width: usize,
    /// Number of tokens that it can draft, which is that of the rows of its output matrix.
    pub draft_vocabulary: usize,
    /// What it computes from the hidden states.
    pub kind: HeadKind,
}

/// Kinds of draft heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Layers of a network (Li et al. 2025, EAGLE-3). The attention of the first layer reads the embedding of a token
    /// and the hidden state of the position before, each normalized, concatenated; the residual stream begins with the
    /// hidden state.
    Layers {
        /// Whether the target's hidden states are normalized before they are projected to the head's width.
        norms_target: bool,
        /// Whether the residual stream begins with the normalized hidden state.
        residual_is_normed: bool,
    },
    /// For each position ahead a few residual blocks and an output matrix, which all read the target's last hidden
    /// state and no token (Cai et al. 2024, Medusa).
    Medusa {
        /// Number of positions ahead.
        heads: usize,
        /// Number of residual blocks of each head.
        blocks: usize,
    },
}

impl DraftHead {
    /// Number of the target's layers that are read if the file does not name them.
    pub const LAYERS: usize = 3;

    /// The layers whose output it reads, of a target with `target` layers: those of its file, or layers 1, n / 2 - 1
    /// and n - 4, as EAGLE-3's authors do; Medusa reads the last. `None` if the target has too few layers.
    pub fn layers_of(&self, target: usize) -> Option<Vec<usize>> {
        if let HeadKind::Medusa { .. } = self.kind {
            return Some(vec![target.checked_sub(1)?]);
        }
        if !self.target_layers.is_empty() {
            return Some(self.target_layers.clone());
        }
        let layers = vec![1, (target / 2).checked_sub(1)?, target.checked_sub(4)?];
        layers.is_sorted_by(|a, b| a < b).then_some(layers)
    }

    /// Length of the longest chain of tokens that it can draft.
    pub fn depth_max(&self) -> usize {
        if let HeadKind::Medusa { heads, .. } = self.kind { heads } else { usize::MAX }
    }

    /// Number of the target's layers that it reads.
    pub fn layers(&self) -> usize {
        if self.target_layers.is_empty() { Self::LAYERS } else { self.target_layers.len() }
    }
}
