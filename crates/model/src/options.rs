//! How a model is run: the caller's choices, the same for every backend.
//!
//! Left out: what the network itself says (`Spec`), and settings that change no pass.

use foretoken_kernels::attention::CacheType;

use crate::capacity::Group;
use crate::error::{ModelError, Setting};
use crate::spec::Spec;
use crate::weight_type::WeightType;

/// Most checkpoints that are kept: each is compared with every text that begins.
const CHECKPOINTS_MAX: usize = 64;

/// How a model is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads of the kernels.
    pub threads: usize,
    /// Positions a page of the cache.
    pub page_len: usize,
    /// Pages of the cache; its size in positions is the product.
    pub pages: usize,
    /// How many texts there are at a time, none of which goes back behind what was committed: layers that see a window
    /// of the text then have as many pages as that takes. None: they have as many as the others.
    pub texts: Option<usize>,
    /// Rows of one pass, at most.
    pub rows_max: usize,
    /// In what form keys are kept, and what they are rounded to.
    pub key_type: CacheType,
    /// The same of values.
    pub value_type: CacheType,
    /// What matrices of floats are brought to when they are loaded; none: they are used as they are.
    pub weight_type: Option<WeightType>,
    /// Bytes for the experts that rows choose, where there are any: if not all of them fit, they are packed when rows
    /// first choose them, and those that were not chosen for longest make room. It changes no result. None: all are
    /// packed when the network is loaded.
    pub expert_bytes: Option<usize>,
    /// The longest text that is meant to be run; none: as long as the network was made for. Some rotary embeddings
    /// (dynamic, longrope) have other frequencies for long texts than for short ones. They are chosen by this, once,
    /// and never by how long a text has become: or a row would depend on what follows it.
    pub context: Option<usize>,
    /// Bytes for checkpoints of recurrent states, beside the states of the texts that run.
    pub checkpoint_bytes: usize,
    /// How many first layers are run, of a further executor over weights that are loaded
    /// ([`Packed::executor`](crate::Packed::executor)): an early exit, whose rows go from the last of them to the norm
    /// and the head. None: all.
    pub layers: Option<usize>,
    /// How many first rows of the head there are tokens for; none: all. The others, with which vocabularies are padded,
    /// are not loaded, so no law gives them anything, and they take no time.
    pub tokens: Option<usize>,
}

impl Options {
    /// Room for `positions` positions in pages of 32, passes of up to 512 rows, and a cache in f16.
    pub fn for_positions(positions: usize, threads: usize) -> Self {
        let (key_type, value_type) = (CacheType::default(), CacheType::default());
        let (page_len, pages) = (32, positions.div_ceil(32));
        Self {
            threads,
            page_len,
            pages,
            texts: None,
            rows_max: 512,
            key_type,
            value_type,
            weight_type: None,
            expert_bytes: None,
            context: None,
            checkpoint_bytes: 512 << 20,
            layers: None,
            tokens: None,
        }
    }

    /// The same with both halves of the cache in one type.
    pub fn with_cache(self, kind: CacheType) -> Self {
        Self { key_type: kind, value_type: kind, ..self }
    }

    /// The cache group of recurrent states of so many bytes each: one of each of so many texts that run, and as many
    /// checkpoints as there is room for, at most 64.
    pub fn states(&self, texts: usize, state_bytes: usize) -> Group {
        Group::state(texts.max(1) + (self.checkpoint_bytes / state_bytes.max(1)).min(CHECKPOINTS_MAX))
    }

    /// The cache group of layers that see the last `window` positions, or all.
    pub(crate) fn group(&self, window: Option<usize>) -> Group {
        let (page_len, pages) = (self.page_len.max(1), self.pages.max(1));
        let Some(window) = window else { return Group::attention(page_len, pages) };
        let group = Group::window(window, page_len, pages);
        let held = group.pages_held(usize::MAX, self.rows_max.max(1));
        Group { pages: self.texts.map_or(pages, |texts| pages.min(texts.saturating_mul(held))), ..group }
    }

    /// Whether the types can hold the heads of all layers.
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
    fn states_of_texts_come_first_and_checkpoints_take_what_they_may() {
        let options = Options { checkpoint_bytes: 1000, ..Options::for_positions(9, 1) };
        let states = |bytes: usize| options.states(3, bytes).pages;
        assert_eq!([1, 100, 999, 1001].map(states), [3 + CHECKPOINTS_MAX, 13, 4, 3]);
        let alone = Options { checkpoint_bytes: 0, ..options };
        assert_eq!(alone.states(0, usize::MAX), Group::state(1));
    }
}
