//! The memory that a model will need, computed before it is loaded from its tensors, its shape and its options.

use foretoken_model::{Backend, ExpertNeed, LayerNeed, Options, WeightType};
use foretoken_weights::Tensor;

use super::Opened;
use crate::Error;
use crate::memory::MemoryNeed;

impl MemoryNeed {
    /// The need of a model with these options.
    ///
    /// # Errors
    /// As [`Opened::expert_need`].
    pub(crate) fn of_target(model: &Opened, options: &Options) -> Result<Self, Error> {
        let floats = |tensor: &Tensor| is_matrix_of_floats(tensor).then_some(tensor.bytes.len());
        let floats = model.checkpoint.weights.iter().filter_map(floats).sum();
        let floats = if options.weight_type.is_some() { 0 } else { floats };
        let weights = model.checkpoint.weights.iter().map(|tensor| packed_bytes(tensor, options.weight_type)).sum();
        let cache = cache_bytes(model, options, 1);
        let ExpertNeed { all: experts, least: experts_least } = model.expert_need(options.weight_type)?;
        let passes = pass_bytes(model, options);
        Ok(Self { weights, floats, experts, experts_least, cache, passes, ..Self::default() })
    }

    /// This need of a target for a backend, which may be one of several ranks, and may be able to read layers for every
    /// pass. Only for a target are layers looked at: those of draft models stay in memory.
    ///
    /// # Errors
    /// As [`Opened::layer_need`].
    pub(crate) fn of_backend(self, model: &Opened, options: &Options, backend: &dyn Backend) -> Result<Self, Error> {
        let cache = cache_bytes(model, options, backend.ranks());
        let own = Self { cache, ..self.of_rank(backend.ranks()) };
        if !backend.reads_layers() {
            return Ok(own);
        }
        let LayerNeed { all: layers, least: layers_least } = model.layer_need(options.weight_type)?;
        Ok(Self { layers, layers_least, ..own })
    }

    /// Bytes that an early exit of a target needs besides the target's weights.
    pub(crate) fn of_exit(model: &Opened, options: &Options, layers: usize) -> usize {
        let types = [options.key_type, options.value_type];
        let layers = (0..layers.min(model.spec.kv_layers())).map(|layer| model.spec.cache_bytes_of(layer, types));
        // As many bytes of a source.
        let halves = if model.spec.encoder.is_some() { 2 } else { 1 };
        let cache = layers.fold(0, usize::saturating_add).saturating_mul(halves);
        cache.saturating_mul(cache_positions(options)).saturating_add(pass_bytes(model, options))
    }
}

/// Positions of the KV cache.
fn cache_positions(options: &Options) -> usize {
    options.page_len.saturating_mul(options.pages)
}

/// Bytes of a packed tensor, with a matrix of floats converted to `wanted`. Floats of 8 bits are packed as f32.
fn packed_bytes(tensor: &Tensor, wanted: Option<WeightType>) -> usize {
    match wanted.filter(|_| is_matrix_of_floats(tensor)) {
        None if tensor.dtype.name() == "F8_E4M3" => tensor.bytes.len().saturating_mul(4),
        None => tensor.bytes.len(),
        Some(wanted) => {
            let elements: usize = tensor.shape.iter().product();
            match wanted.fitting(tensor.shape.last().copied().unwrap_or(1)) {
                WeightType::F32 => 4 * elements,
                WeightType::F16 | WeightType::BF16 => 2 * elements,
                WeightType::Blocks(format) => elements / format.elements() * format.bytes(),
            }
        }
    }
}

fn is_matrix_of_floats(tensor: &Tensor) -> bool {
    tensor.shape.len() > 1 && ["F32", "F16", "BF16"].contains(&tensor.dtype.name())
}

/// Bytes of a model's keys and values, with those of sources, of the one of several ranks that has most heads; and
/// those of one layer of an encoder, in floats.
fn cache_bytes(model: &Opened, options: &Options, ranks: usize) -> usize {
    let types = [options.key_type, options.value_type];
    let (spec, positions) = (&model.spec, cache_positions(options));
    let own = spec.cache_bytes_of_rank(types, ranks);
    // As many of a source.
    let position = if spec.encoder.is_some() { own.saturating_mul(2) } else { own };
    let of_layer =
        spec.heads.saturating_mul(spec.head_dim).saturating_mul(8).saturating_mul(source_rows(model, options));
    position.saturating_mul(positions).saturating_add(of_layer)
}

/// Rows of the longest source, which is read in one pass; 0 without an encoder.
fn source_rows(model: &Opened, options: &Options) -> usize {
    let longest = options.context.unwrap_or(usize::MAX).min(cache_positions(options));
    model.spec.encoder.map_or(0, |_| longest.min(model.spec.context_max))
}

/// An estimate of the rows of a pass whose logits are computed: those of a draft tree.
const LOGIT_ROWS: usize = 64;

/// Bytes of buffers for a pass with as many rows as possible: for each row about eight vectors of the hidden size, and
/// two of the feed-forward width or four for each chosen expert, all in 32-bit floats; and the logits. A source may
/// have more rows than a pass, and four vectors of its heads.
fn pass_bytes(model: &Opened, options: &Options) -> usize {
    let spec = &model.spec;
    let routed = spec.experts.as_ref().map_or(0, |experts| {
        let shared = experts.shared.map_or(0, |shared| shared.ffn_width);
        // Each vector is counted twice: every expert keeps a packed copy for its products.
        let each = spec.width.saturating_add(experts.ffn_width).saturating_mul(4);
        each.saturating_mul(experts.chosen).saturating_add(experts.count).saturating_add(shared.saturating_mul(2))
    });
    let dense = spec.ffn_width.saturating_mul(2);
    let feed_forward = match &spec.experts {
        Some(experts) if experts.beside_dense => dense.saturating_add(routed),
        _ => dense.max(routed),
    };
    let row = spec.width.saturating_mul(8).saturating_add(feed_forward);
    let of_source = source_rows(model, options);
    let heads = spec.heads.saturating_mul(spec.head_dim).saturating_mul(4).saturating_mul(of_source);
    let rows = options.rows_max.min(cache_positions(options)).max(of_source);
    let rows = row.saturating_mul(rows).saturating_add(heads);
    rows.saturating_add(spec.vocabulary.saturating_mul(LOGIT_ROWS)).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use foretoken_model::{Cpu, Exchange, ExecutorError, Rank};
    use foretoken_weights::{Bytes, Dtype, Layout};

    use super::*;

    #[derive(Debug)]
    struct NoExchange;

    impl Exchange for NoExchange {
        fn gather(&self, _: &[u8], _: &[usize], _: &mut [u8]) -> Result<(), ExecutorError> {
            unreachable!("nothing is loaded")
        }
    }

    #[test]
    fn a_rank_needs_the_cache_of_its_heads() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-target");
        let model = Opened::at(&folder).expect("it can be opened");
        let options = Options::for_positions(100, 1);
        let whole = MemoryNeed::of_target(&model, &options).expect("its shape is known");
        let cache =
            |backend: &dyn Backend| whole.of_backend(&model, &options, backend).expect("its shape is known").cache;
        assert_eq!(cache(&Cpu), whole.cache);
        // 3 heads on 1 to 4 ranks.
        for (count, heads) in [(1, 3), (2, 2), (3, 1), (4, 1)] {
            let rank = Rank { number: 0, count, exchange: Arc::new(NoExchange) };
            assert_eq!(cache(&rank), whole.cache / 3 * heads, "{count} ranks");
        }
    }

    #[test]
    fn weights_are_counted_as_they_are_packed() {
        let tensor = |dtype: Dtype, shape: &[usize]| {
            let bytes = Bytes::from_vec(vec![0; dtype.size_of(shape).expect("a size")]);
            Tensor { name: "a".to_string(), dtype, shape: shape.to_vec(), bytes }
        };
        let float8 = Dtype::Other(Layout { name: "F8_E4M3", elements: 1, bytes: 1 });
        let all = [tensor(Dtype::BF16, &[32, 64]), tensor(float8, &[32, 64]), tensor(Dtype::F32, &[64])];
        let found = |wanted| all.each_ref().map(|tensor| packed_bytes(tensor, wanted));
        assert_eq!(found(None), [4096, 8192, 256]);
        assert_eq!(found("q8_0".parse().ok()), [64 * 34, 8192, 256]);
    }
}
