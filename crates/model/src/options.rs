//! How a model is run: the caller's choices, the same for every backend.

use foretoken_kernels::attention::CacheType;

use crate::capacity::Group;
use crate::error::{ModelError, Setting};
use crate::spec::Spec;
use crate::weight_type::WeightType;

/// Maximum number of checkpoints that are kept, since each is compared with every new sequence.
const CHECKPOINTS_MAX: usize = 64;

/// How a model is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of threads of the kernels.
    pub threads: usize,
    /// Number of positions per page of the cache.
    pub page_len: usize,
    /// Number of pages of the cache; its size in positions is the product of both.
    pub pages: usize,
    /// Maximum number of sequences at a time, if none is ever rolled back before its committed positions: layers with a
    /// sliding window then have only as many pages as these need. If it is `None` they have as many as the others.
    pub sequences_max: Option<usize>,
    /// Maximum number of rows of one pass.
    pub rows_max: usize,
    /// The type in which keys are stored, and to which they are rounded.
    pub key_type: CacheType,
    /// The type in which values are stored, and to which they are rounded.
    pub value_type: CacheType,
    /// The type to which matrices of floats are converted when they are loaded; `None` if they are not converted.
    pub weight_type: Option<WeightType>,
    /// Bytes for the experts that rows choose: if not all of them fit, they are packed when rows first choose them, and
    /// the least recently used ones are evicted. This changes no result. If it is `None`, all are packed when the
    /// network is loaded.
    pub expert_bytes: Option<usize>,
    /// Bytes for the layers, if not all of them fit and the backend reads them from a file for every pass
    /// ([`Offloading`](crate::Offloading)); other backends have all layers in memory. This changes no result.
    pub layer_bytes: Option<usize>,
    /// The length of the longest sequence that will be run; `None` for the length that the network was trained for.
    /// Some rotary embeddings (dynamic, longrope) have other frequencies for long sequences than for short ones. They
    /// are chosen once, by this and not by the current length of a sequence, because a row would otherwise depend on
    /// what follows it.
    pub context: Option<usize>,
    /// Bytes for checkpoints of recurrent states, in addition to the states of the running sequences.
    pub checkpoint_bytes: usize,
    /// Number of layers that are run, from the first on, by a further executor over loaded weights
    /// ([`Packed::executor`](crate::Packed::executor)): an early exit, whose rows go from the last of them to the norm
    /// and the output head. `None` for all layers.
    pub layers: Option<usize>,
    /// Number of rows of the output head, from the first on, that have a token; `None` for all rows. The others, with
    /// which vocabularies are padded, are not loaded, so they get no probability and take no time.
    pub tokens: Option<usize>,
}

impl Options {
    /// Options for `positions` positions in pages of 32, passes of up to 512 rows, and a cache in f16.
    pub fn for_positions(positions: usize, threads: usize) -> Self {
        let (key_type, value_type) = (CacheType::default(), CacheType::default());
        let (page_len, pages) = (32, positions.div_ceil(32));
        Self {
            threads,
            page_len,
            pages,
            sequences_max: None,
            rows_max: 512,
            key_type,
            value_type,
            weight_type: None,
            expert_bytes: None,
            layer_bytes: None,
            context: None,
            checkpoint_bytes: 512 << 20,
            layers: None,
            tokens: None,
        }
    }

    /// Sets the type of both keys and values.
    pub fn with_cache(self, kind: CacheType) -> Self {
        Self { key_type: kind, value_type: kind, ..self }
    }

    /// The cache group of recurrent states of `state_bytes` each: one for each running sequence, and as many
    /// checkpoints as fit, at most 64.
    pub fn states(&self, sequences: usize, state_bytes: usize) -> Group {
        Group::state(sequences.max(1) + (self.checkpoint_bytes / state_bytes.max(1)).min(CHECKPOINTS_MAX))
    }

    /// The cache group of layers that see the last `window` positions, or all positions.
    pub(crate) fn group(&self, window: Option<usize>) -> Group {
        let (page_len, pages) = (self.page_len.max(1), self.pages.max(1));
        let Some(window) = window else { return Group::attention(page_len, pages) };
        let group = Group::window(window, page_len, pages);
        let held = group.pages_held(usize::MAX, self.rows_max.max(1));
        Group {
            pages: self.sequences_max.map_or(pages, |sequences| pages.min(sequences.saturating_mul(held))),
            ..group
        }
    }

    /// Checks that the cache types can hold the heads of all layers.
    pub(crate) fn check_types(&self, file: &str, spec: &Spec) -> Result<(), ModelError> {
        let others = spec.attention.iter().filter_map(|layer| layer.heads).map(|heads| heads.head_dim);
        let widths: Vec<usize> = others.chain([spec.head_dim]).collect();
        for (setting, kind) in [(Setting::KeyType, self.key_type), (Setting::ValueType, self.value_type)] {
            if let Some(head_dim) = widths.iter().find(|head_dim| !head_dim.is_multiple_of(kind.block())) {
                return Err(ModelError::Setting {
                    place: file.to_string(),
                    setting,
                    value: kind.name().to_string(),
                    expected: format!("heads whose width is a multiple of {}", kind.block()),
                    found: format!("a width of {head_dim}"),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_take_the_bytes_beside_the_running_states() {
        let options = Options { checkpoint_bytes: 1000, ..Options::for_positions(9, 1) };
        let states = |bytes: usize| options.states(3, bytes).pages;
        assert_eq!([1, 100, 999, 1001].map(states), [3 + CHECKPOINTS_MAX, 13, 4, 3]);
        let alone = Options { checkpoint_bytes: 0, ..options };
        assert_eq!(alone.states(0, usize::MAX), Group::state(1));
    }
}
