//! The least that a pass has to read and to compute, and the least time that this takes on a machine of given ceilings.
//!
//! Counted from the tensors of the checkpoint, in the form of the file, since that is the form in which weights are
//! worth computing with: whoever widens them pays for it, and the ratio to the roofline shows it. Left out:
//! activations, norms and everything else that is small.

use std::collections::BTreeMap;

use foretoken_kernels::Ceilings;
use foretoken_model::Spec;
use foretoken_weights::Tensor;

use crate::models::Opened;

/// Matrices of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matrices {
    /// Weights.
    pub elements: usize,
    /// Their bytes in the file.
    pub bytes: usize,
}

impl Matrices {
    fn add(&mut self, tensor: &Tensor) {
        self.elements += tensor.shape.iter().product::<usize>();
        self.bytes += tensor.bytes.len();
    }
}

/// What there is to do in passes of one network.
pub struct Work {
    /// Type to matrices of the layers.
    layers: BTreeMap<&'static str, Matrices>,
    /// Type and matrix of the head.
    head: (&'static str, Matrices),
    embedding_row_bytes: usize,
    cache_bytes_per_position: usize,
    /// Operations of attention for a row and a position that it sees.
    attention_operations: usize,
}

/// What a tensor is there for, as its name tells; of all families and both formats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Embedding,
    Positions,
    Head,
    Layer,
}

fn role(name: &str) -> Role {
    let part = name.strip_suffix(".weight").unwrap_or(name).rsplit('.').next();
    match part.unwrap_or(name) {
        "embed_tokens" | "token_embd" | "wte" => Role::Embedding,
        "position_embd" | "wpe" => Role::Positions,
        "lm_head" | "output" => Role::Head,
        _ => Role::Layer,
    }
}

/// What one pass has to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    /// Bytes to be read.
    pub bytes: f64,
    /// Operations of products and attention.
    pub operations: f64,
    /// Seconds that the bytes take.
    pub memory_seconds: f64,
    /// Seconds that the operations take, each kind at its rate.
    pub operation_seconds: f64,
}

impl Least {
    /// The roofline in milliseconds: memory and arithmetic work at the same time.
    pub fn ms(&self) -> f64 {
        1e3 * self.memory_seconds.max(self.operation_seconds)
    }
}

impl Work {
    /// Counts a model's matrices; a position of its cache takes `cache_bytes_per_position`.
    pub fn of(model: &Opened, cache_bytes_per_position: usize) -> Self {
        let spec = &model.spec;
        let mut layers: BTreeMap<&'static str, Matrices> = BTreeMap::new();
        let (mut head, mut embedding_row_bytes) = (("F32", Matrices::default()), 0);
        let head_role = if spec.tied_head { Role::Embedding } else { Role::Head };
        for tensor in model.checkpoint.weights.iter().filter(|tensor| tensor.shape.len() == 2) {
            let role = role(&tensor.name);
            if role == Role::Embedding {
                embedding_row_bytes = tensor.bytes.len() / tensor.shape[0].max(1);
            }
            if role == head_role {
                head.0 = tensor.dtype.name();
                head.1.add(tensor);
            } else if role == Role::Layer {
                layers.entry(tensor.dtype.name()).or_default().add(tensor);
            }
        }
        let Spec { layers: blocks, heads, head_dim, .. } = spec;
        Self {
            layers,
            head,
            embedding_row_bytes,
            cache_bytes_per_position,
            attention_operations: 4 * blocks * heads * head_dim,
        }
    }

    /// All matrices that a pass reads, the head included, by type.
    pub fn products(&self) -> BTreeMap<&'static str, Matrices> {
        let mut all = self.layers.clone();
        let entry = all.entry(self.head.0).or_default();
        entry.elements += self.head.1.elements;
        entry.bytes += self.head.1.bytes;
        all
    }

    /// What a pass over `rows` rows behind `context` positions has to do, `logits` of them with logits.
    pub fn pass(&self, context: usize, rows: usize, logits: usize, ceilings: &Ceilings) -> Least {
        let head = [(&self.head.0, &self.head.1, logits)];
        let layers = self.layers.iter().map(|(name, matrices)| (name, matrices, rows));
        let (mut bytes, mut operations, mut operation_seconds) = (0.0, 0.0, 0.0);
        for (name, matrices, rows) in layers.chain(head) {
            let count = 2.0 * rows as f64 * matrices.elements as f64;
            bytes += matrices.bytes as f64;
            operations += count;
            operation_seconds += count / (1e9 * rate(name, ceilings));
        }
        // Row i sees the context, the rows before it and itself.
        let seen = rows as f64 * (context as f64 + (rows as f64 + 1.0) / 2.0);
        let attention = self.attention_operations as f64 * seen;
        operations += attention;
        operation_seconds += attention / (1e9 * ceilings.fma_gflop_s);
        bytes += (rows * self.embedding_row_bytes) as f64;
        bytes += (context + rows) as f64 * self.cache_bytes_per_position as f64;
        let memory_seconds = bytes / (1e9 * ceilings.bandwidth_gb_s);
        Least { bytes, operations, memory_seconds, operation_seconds }
    }
}

/// 10^9 operations a second of the dot instruction for weights of a type.
fn rate(dtype: &str, ceilings: &Ceilings) -> f64 {
    match dtype {
        "F32" | "F16" => ceilings.fma_gflop_s,
        // There are machines whose bf16 instruction is the slower one; widening is always possible.
        "BF16" => ceilings.bf16_gflop_s.map_or(ceilings.fma_gflop_s, |rate| rate.max(ceilings.fma_gflop_s)),
        _ => ceilings.int8_gop_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CEILINGS: Ceilings = Ceilings {
        bandwidth_gb_s: 10.0,
        bandwidth_median_gb_s: 9.0,
        fma_gflop_s: 100.0,
        int8_gop_s: 400.0,
        bf16_gflop_s: Some(200.0),
        threads: 2,
    };

    fn golden(name: &str) -> Opened {
        let path = format!("{}/../model/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        Opened::at(path.as_ref()).expect("the fixture is a model")
    }

    #[test]
    fn the_matrices_are_those_of_the_network_s_shape() {
        for name in ["llama", "gpt2"] {
            let model = golden(name);
            let spec = &model.spec;
            let (queries, keys) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
            let feed_forward = if spec.family == "llama" { 3 } else { 2 };
            let layer = 2 * spec.width * (queries + keys) + feed_forward * spec.width * spec.ffn_width;
            let work = Work::of(&model, 0);
            let found: usize = work.layers.values().map(|matrices| matrices.elements).sum();
            assert_eq!(found, spec.layers * layer, "{name}");
            assert_eq!(work.head.1.elements, spec.vocabulary * spec.width, "{name}");
            assert!(work.embedding_row_bytes >= 2 * spec.width, "{name}");
        }
    }

    #[test]
    fn names_of_both_formats_are_told_apart() {
        let roles = |names: &[&str], expected: Role| names.iter().all(|name| role(name) == expected);
        assert!(roles(&["model.embed_tokens.weight", "token_embd.weight", "transformer.wte.weight"], Role::Embedding));
        assert!(roles(&["lm_head.weight", "output.weight"], Role::Head));
        assert!(roles(&["wpe.weight", "position_embd.weight"], Role::Positions));
        assert!(roles(&["blk.0.attn_output.weight", "h.1.mlp.c_proj.weight"], Role::Layer));
    }

    #[test]
    fn a_pass_takes_the_longer_of_bytes_and_operations() {
        let work = Work {
            layers: [
                ("Q8_0", Matrices { elements: 4_000_000, bytes: 4_250_000 }),
                ("BF16", Matrices { elements: 1_000_000, bytes: 2_000_000 }),
            ]
            .into(),
            head: ("F32", Matrices { elements: 500_000, bytes: 2_000_000 }),
            embedding_row_bytes: 1000,
            cache_bytes_per_position: 2000,
            attention_operations: 5000,
        };
        let one = work.pass(9, 1, 1, &CEILINGS);
        assert_eq!(one.bytes, 8_250_000.0 + 1000.0 + 10.0 * 2000.0);
        assert_eq!(one.operations, 2.0 * 5_500_000.0 + 5000.0 * 10.0);
        let expected = 8e6 / 400e9 + 2e6 / 200e9 + 1e6 / 100e9 + 5e4 / 100e9;
        assert!((one.operation_seconds - expected).abs() < 1e-12, "{one:?}");
        assert!((one.ms() - 0.8271).abs() < 1e-9, "{one:?}");
        // Sixty-four rows of which one has logits: the head's operations are those of one row.
        let many = work.pass(9, 64, 1, &CEILINGS);
        let seen: f64 = (1..=64).map(|i| 9.0 + f64::from(i)).sum();
        assert_eq!(many.operations, 128.0 * 5_000_000.0 + 1e6 + 5000.0 * seen);
        assert_eq!(many.ms(), 1e3 * many.operation_seconds);
        assert_eq!(work.products()["F32"].elements, 500_000);
    }

    #[test]
    fn a_type_uses_the_faster_instruction_that_it_can() {
        let slow = Ceilings { bf16_gflop_s: Some(50.0), ..CEILINGS };
        let none = Ceilings { bf16_gflop_s: None, ..CEILINGS };
        let rates = [rate("BF16", &CEILINGS), rate("BF16", &slow), rate("BF16", &none), rate("Q4_K", &none)];
        assert_eq!(rates, [200.0, 100.0, 100.0, 400.0]);
    }
}
