//! The sources of an encoder-decoder: the encoder runs when a sequence is opened, and what rows attend to is stored in
//! the pages that the engine gives.
//!
//! The encoder consists of the blocks of the decoder ([`Block`]), with two differences: every row sees all positions,
//! and there is neither a head nor a cache. The keys and values of one layer at a time are kept as f32 until all rows
//! of the layer are computed. Of the output each layer of the decoder makes the keys and values of its cross attention;
//! only these are kept. A source is read in one pass, so its rows depend on nothing but its tokens.

use std::collections::BTreeMap;

use foretoken_kernels::attention::{CacheType, RowSlots};

use crate::batch::{Batch, Token};
use crate::block::{AttentionMetadata, Block, Buffers, PassMetadata, SourceMetadata, normalized};
use crate::cache::Cache;
use crate::capacity::{Group, SourceCapacity};
use crate::error::ModelError;
use crate::executor::{ExecutorError, Source};
use crate::linear::Linear;
use crate::network::{Encoder, Network};
use crate::options::Options;
use crate::products::{Products, Share};

/// The sources that are open, and their rows.
pub(super) struct Sources {
    capacity: SourceCapacity,
    /// Keys and values of cross attention, for each layer of the decoder.
    rows: Cache,
    /// Keys and values of one layer of the encoder.
    layer: Cache,
    /// The slots of the source of each open sequence, in order of position.
    open: BTreeMap<u64, Vec<u32>>,
}

impl Sources {
    /// Makes room for the sources of a network of which `layers` are run; `None` if it has no encoder.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn new(
        network: &Network<Linear>,
        layers: usize,
        options: &Options,
        share: Share,
    ) -> Result<Option<Self>, ModelError> {
        let spec = &network.spec;
        if network.encoder.is_none() {
            return Ok(None);
        }
        let group = options.group(None);
        let len_max = options.context.unwrap_or(usize::MAX).min(spec.context_max);
        let (vocabulary, page_len, pages) = (network.head.outputs(), group.page_len, group.pages);
        let capacity = SourceCapacity { vocabulary, len_max, page_len, pages };
        let types = [options.key_type, options.value_type];
        let cached: Vec<_> = (0..layers).map(|layer| (0, share.heads(spec.kv_heads_of(layer)))).collect();
        let rows = Cache::new(vec![group], &cached, types);
        let layer = Group::attention(1, capacity.longest());
        let layer = Cache::new(vec![layer], &[(0, share.heads(spec.kv_heads_of(0)))], [CacheType::F32; 2]);
        let (rows, layer) = rows.zip(layer).ok_or_else(|| ModelError::Memory {
            file: network.name.clone(),
            positions: pages.saturating_mul(page_len),
            position_bytes: spec.source_bytes_per_position(types),
        })?;
        Ok(Some(Self { capacity, rows, layer, open: BTreeMap::new() }))
    }

    pub(super) fn capacity(&self) -> &SourceCapacity {
        &self.capacity
    }

    /// Opens a sequence with its source, whose rows are computed unless they are already.
    ///
    /// # Errors
    /// A token that there is not, a source that is too long, or the failure of another rank.
    ///
    /// # Panics
    /// If the source has no tokens or too few pages.
    pub(super) fn open(
        &mut self,
        (sequence, source): (u64, Source<'_>),
        (network, products): (&Network<Linear>, &Products),
        buffers: &mut Buffers,
    ) -> Result<(), ExecutorError> {
        let Source { tokens, table, is_computed } = source;
        let SourceCapacity { vocabulary, page_len, .. } = self.capacity;
        assert!(!tokens.is_empty() && table.len() * page_len >= tokens.len(), "a source and its pages: {source:?}");
        if tokens.len() > self.capacity.longest() {
            return Err(ExecutorError::Position { found: tokens.len() - 1, context_max: self.capacity.longest() });
        }
        if let Some(found) = tokens.iter().copied().find(|token| *token as usize >= vocabulary) {
            return Err(ExecutorError::Token { found, vocabulary });
        }
        let slot = |position| self.rows.slot(0, table, position).expect("pages of sources are not given back early");
        let slots: Vec<u32> = (0..tokens.len()).map(slot).collect();
        if !is_computed {
            self.read(tokens, &slots, (network, products), buffers)?;
        }
        self.open.insert(sequence, slots);
        Ok(())
    }

    pub(super) fn release(&mut self, sequence: u64) {
        self.open.remove(&sequence);
    }

    /// The sources of the rows of a batch.
    ///
    /// # Panics
    /// If a sequence is not open.
    pub(super) fn metadata(&self, batch: &Batch<'_>) -> SourceMetadata<'_> {
        let mut row_slots = Vec::new();
        for span in batch.spans {
            let slots = self.open.get(&span.sequence);
            let prefix = slots.unwrap_or_else(|| panic!("sequence {} was not opened", span.sequence));
            row_slots.extend(std::iter::repeat_n(RowSlots { prefix, tail: &[] }, span.tokens.len() - span.computed));
        }
        SourceMetadata { cache: &self.rows, row_slots }
    }

    /// Runs the encoder on these tokens, and stores the keys and values of cross attention in these slots.
    fn read(
        &mut self,
        tokens: &[Token],
        slots: &[u32],
        (network, products): (&Network<Linear>, &Products),
        buffers: &mut Buffers,
    ) -> Result<(), ExecutorError> {
        let Encoder { spec, layers, output_norm } = network.encoder.as_ref().expect("sources have an encoder");
        let mut x = vec![0.0; tokens.len() * spec.width];
        network.embedding.embed(tokens, &mut x);
        let positions: Vec<u32> = (0..tokens.len() as u32).collect();
        // In the cache of one layer, slots are positions.
        let row_slots = vec![RowSlots { prefix: &positions, tail: &[] }; tokens.len()];
        let attention = [AttentionMetadata { slots: &positions, row_slots }];
        let metadata = PassMetadata {
            positions: &positions,
            attention: &attention,
            rotations: &[],
            sources: None,
            inputs: &[],
            fused: None,
        };
        let block = Block { products, spec, memory: None, metadata };
        for layer in layers {
            // All layers are alike, and each overwrites the keys and values of the one before.
            block.run((0, layer), &mut self.layer, buffers, &mut x);
        }
        let mut normed = Vec::new();
        let output = normalized(products.compute.isa, spec, output_norm.as_ref(), &x, &mut normed);
        let width = products.share().of(spec.heads, 1).len() * spec.head_dim;
        let (mut keys, mut values) = (vec![0.0; tokens.len() * width], vec![0.0; tokens.len() * width]);
        for (number, layer) in network.layers[..self.rows.keys.len()].iter().enumerate() {
            let cross = layer.cross.as_ref().expect("every layer of the decoder reads the source");
            let [key, value] = &cross.key_value;
            let both = [key.product(&mut keys, false), value.product(&mut values, false)];
            products.own(output, tokens.len(), spec.width, both);
            let rows = keys.chunks_exact(width.max(1)).zip(values.chunks_exact(width.max(1)));
            slots.iter().zip(rows).for_each(|(slot, (key, value))| self.rows.store(number, *slot, key, value));
        }
        products.take_failure().map_or(Ok(()), Err)
    }
}
