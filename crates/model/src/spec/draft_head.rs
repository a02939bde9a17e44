//! What a configuration says about a draft head: what it reads of a target, and of which kind it is.
//!
//! Left out: the layers of such a head, which are described as those of any network.

/// What makes a network a draft head: it drafts for a target whose hidden states it reads beside its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftHead {
    /// Layers of the target *behind* which it reads the residual stream, numbered from 0, in this order. EAGLE-3's
    /// files name the layers that this stream *enters*, each one more. Empty: the file does not say it, which means
    /// three by how many layers the target has ([`DraftHead::layers_of`]).
    pub target_layers: Vec<usize>,
    /// Width of the target.
    pub target_width: usize,
    /// Tokens that it can say: rows of its output matrix.
    pub draft_vocabulary: usize,
    /// What it does with them.
    pub kind: HeadKind,
}

/// Kinds of draft heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Layers of a network (Li et al. 2025, EAGLE-3). The first attends by the embedding of a token and the hidden row
    /// of the position before, each normalized, one behind the other; the residual stream begins with the hidden row.
    Layers {
        /// Whether rows of the target are normalized before the matrix that brings them to the head's width.
        norms_target: bool,
        /// Whether the residual stream begins with the hidden row behind its norm, not before it.
        residual_is_normed: bool,
    },
    /// For each position ahead a few residual blocks and output rows of their own, which all read the target's last
    /// hidden row and no token (Cai et al. 2024, Medusa).
    Medusa {
        /// Positions ahead.
        heads: usize,
        /// Residual blocks of each.
        blocks: usize,
    },
}

impl DraftHead {
    /// Layers that are read of the target where no file says which.
    pub const LAYERS: usize = 3;

    /// The layers that it reads of a target that has so many: those of its file, or behind layers 1, n / 2 - 1 and
    /// n - 4, which is what EAGLE-3's authors read. A target of too few layers has no such. Medusa reads the last.
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

    /// Tokens that it can guess one behind the other.
    pub fn depth_max(&self) -> usize {
        if let HeadKind::Medusa { heads, .. } = self.kind { heads } else { usize::MAX }
    }

    /// How many layers it reads.
    pub fn layers(&self) -> usize {
        if self.target_layers.is_empty() { Self::LAYERS } else { self.target_layers.len() }
    }
}
