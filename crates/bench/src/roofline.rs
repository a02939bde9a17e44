//! The least bytes and operations of a pass, and the least time that they take on a machine with given ceilings.
//!
//! They are counted from the packed matrices of the loaded model. Activations, norms, rows of the embedding and other
//! small parts are not counted.

use std::collections::BTreeMap;

use foretoken_kernels::Ceilings;
use foretoken_model::{CacheType, Loaded, PackedMatrix, WeightsRead};

/// Matrices of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matrices {
    /// Number of weights.
    pub elements: usize,
    /// Number of bytes of the packed weights.
    pub bytes: usize,
}

impl Matrices {
    fn add(&mut self, elements: usize, bytes: usize) {
        self.elements += elements;
        self.bytes += bytes;
    }
}

/// The work of attention for each position attended to, in layers with the same window.
#[derive(Clone, Copy, Debug, Default)]
struct AttentionWork {
    /// Bytes of the cache, which are read once for all rows.
    bytes: usize,
    /// Operations for each row.
    operations: usize,
}

/// What a network's passes compute and read, from which the roofline of each follows.
pub struct PassWork {
    /// By type, the matrices of the layers, except those of routed experts.
    layers: BTreeMap<&'static str, Matrices>,
    /// By type, the matrices of routed experts.
    experts: BTreeMap<&'static str, Matrices>,
    /// The fraction of the routed experts that a row chooses.
    chosen_part: f64,
    /// Type and matrix of the output head.
    head: (&'static str, Matrices),
    /// The work of attention, by sliding window: that of the layers with this window; `None` is full attention.
    attention: Vec<(Option<usize>, AttentionWork)>,
    /// The work of sources, if there is an encoder.
    sources: Option<SourceWork>,
}

/// What an encoder computes and reads for a source, and the decoder's rows of the result.
#[derive(Clone, Debug, Default)]
struct SourceWork {
    /// By type, the matrices with which sources are read.
    matrices: BTreeMap<&'static str, Matrices>,
    /// Operations of the encoder's attention for each row and position.
    operations: usize,
    /// Cross attention of a decoder's rows.
    cross: AttentionWork,
}

/// The roofline of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Roofline {
    /// Bytes to be read.
    pub bytes: f64,
    /// Operations of products and attention.
    pub operations: f64,
    /// Seconds that the bytes take.
    pub memory_seconds: f64,
    /// Seconds that the operations take, each kind at its rate.
    pub operation_seconds: f64,
}

impl Roofline {
    /// The roofline in milliseconds: memory and arithmetic work at the same time.
    pub fn ms(&self) -> f64 {
        1e3 * self.memory_seconds.max(self.operation_seconds)
    }

    /// Adds operations at a rate of so many 10^9 a second.
    fn add_operations(&mut self, count: f64, rate: f64) {
        self.operations += count;
        self.operation_seconds += count / (1e9 * rate);
    }
}

impl PassWork {
    /// Counts a model's matrices, and its cache of these types of keys and values.
    pub fn of(loaded: &Loaded, cache_types: [CacheType; 2]) -> Self {
        let spec = &loaded.spec;
        let mut layers: BTreeMap<&'static str, Matrices> = BTreeMap::new();
        let mut head = ("F32", Matrices::default());
        let mut experts: BTreeMap<&'static str, Matrices> = BTreeMap::new();
        let mut matrices = loaded.weights.matrices().into_iter().peekable();
        while let Some(PackedMatrix { form, elements, bytes, is_chosen }) = matrices.next() {
            if matrices.peek().is_none() {
                head = (form, Matrices { elements, bytes });
            } else {
                let all = if is_chosen { &mut experts } else { &mut layers };
                all.entry(form).or_default().add(elements, bytes);
            }
        }
        let seen = |window: Option<usize>| {
            let layers = || (0..spec.layers).filter(move |layer| spec.window_of(*layer) == window);
            AttentionWork {
                bytes: layers().map(|layer| spec.cache_bytes_of(layer, cache_types)).sum(),
                operations: layers().map(|layer| 4 * spec.heads * spec.kv_heads_of(layer).head_dim).sum(),
            }
        };
        let attention = spec.windows().into_iter().map(|window| (window, seen(window)));
        let chosen_part = spec.experts.as_ref().map_or(0.0, |experts| experts.chosen as f64 / experts.count as f64);
        let sources = spec.encoder.map(|encoder| {
            let mut matrices: BTreeMap<&'static str, Matrices> = BTreeMap::new();
            for PackedMatrix { form, elements, bytes, .. } in loaded.weights.source_matrices() {
                matrices.entry(form).or_default().add(elements, bytes);
            }
            let of_layer = 4 * spec.heads * spec.head_dim;
            let bytes = spec.source_bytes_per_position(cache_types);
            let cross = AttentionWork { bytes, operations: spec.layers * of_layer };
            SourceWork { matrices, operations: encoder.layers * of_layer, cross }
        });
        Self { layers, experts, chosen_part, head, attention: attention.collect(), sources }
    }

    /// Whether there are routed experts.
    pub fn has_experts(&self) -> bool {
        !self.experts.is_empty()
    }

    /// All matrices that a pass may read, the output head included, by type.
    pub fn products(&self) -> BTreeMap<&'static str, Matrices> {
        let mut all = self.layers.clone();
        self.experts.iter().for_each(|(name, own)| all.entry(*name).or_default().add(own.elements, own.bytes));
        let entry = all.entry(self.head.0).or_default();
        entry.add(self.head.1.elements, self.head.1.bytes);
        all
    }

    /// The roofline of reading a source of `len` tokens: the encoder, and the keys and values of cross attention. Keys
    /// and values of the encoder's own layers are not counted as bytes, since they can stay in the caches.
    pub fn reading(&self, len: usize, ceilings: &Ceilings) -> Roofline {
        let Some(SourceWork { matrices, operations: of_attention, .. }) = &self.sources else {
            return Roofline::default();
        };
        let mut roofline = Roofline::default();
        for (name, matrices) in matrices {
            roofline.add_operations(2.0 * len as f64 * matrices.elements as f64, rate(name, ceilings));
            roofline.bytes += matrices.bytes as f64;
        }
        roofline.add_operations((len * len) as f64 * *of_attention as f64, ceilings.fma_gflop_s);
        roofline.memory_seconds = roofline.bytes / (1e9 * ceilings.bandwidth_gb_s);
        roofline
    }

    /// The roofline of a pass over `rows` rows, `logits` of them with logits, after `context` positions and a source of
    /// `source` tokens (0 without an encoder). `read`: what the pass reported to have read of the network, which is
    /// used if there are experts.
    pub fn pass(
        &self,
        [context, source]: [usize; 2],
        [rows, logits]: [usize; 2],
        read: WeightsRead,
        ceilings: &Ceilings,
    ) -> Roofline {
        let head = [(&self.head.0, &self.head.1, logits as f64)];
        let layers = self.layers.iter().map(|(name, matrices)| (name, matrices, rows as f64));
        let products = || layers.clone().chain(head);
        let of_rows = rows as f64 * self.chosen_part;
        let experts = self.experts.iter().map(|(name, matrices)| (name, matrices, of_rows));
        let bytes = match self.experts.is_empty() {
            true => products().map(|(_, matrices, _)| matrices.bytes as f64).sum(),
            false => read.bytes as f64,
        };
        let mut roofline = Roofline { bytes, ..Roofline::default() };
        for (name, matrices, rows) in products().chain(experts) {
            roofline.add_operations(2.0 * rows * matrices.elements as f64, rate(name, ceilings));
        }
        for (window, AttentionWork { bytes: bytes_seen, operations: operations_seen }) in &self.attention {
            // Row i attends to the context, the rows before it and itself, within the window.
            let sees = |row: usize| window.unwrap_or(usize::MAX).min(context + row);
            let attention = (1..=rows).map(sees).sum::<usize>() as f64 * *operations_seen as f64;
            roofline.add_operations(attention, ceilings.fma_gflop_s);
            let all = (context + rows).min(window.map_or(usize::MAX, |window| window - 1 + rows));
            roofline.bytes += all as f64 * *bytes_seen as f64;
        }
        if let Some(SourceWork { cross, .. }) = &self.sources {
            roofline.add_operations((rows * source) as f64 * cross.operations as f64, ceilings.fma_gflop_s);
            roofline.bytes += source as f64 * cross.bytes as f64;
        }
        roofline.memory_seconds = roofline.bytes / (1e9 * ceilings.bandwidth_gb_s);
        roofline
    }
}

/// 10^9 operations a second of the dot instruction for weights of a type.
fn rate(dtype: &str, ceilings: &Ceilings) -> f64 {
    match dtype {
        "F32" | "F16" => ceilings.fma_gflop_s,
        // On some machines the bf16 instruction is slower than widening to f32.
        "BF16" => ceilings.bf16_gflop_s.map_or(ceilings.fma_gflop_s, |rate| rate.max(ceilings.fma_gflop_s)),
        _ => ceilings.int8_gop_s,
    }
}

#[cfg(test)]
mod tests {
    use foretoken_model::{Backend, Checkpoint, Cpu, Options, family};

    use super::*;

    const CEILINGS: Ceilings = Ceilings {
        bandwidth_gb_s: 10.0,
        bandwidth_median_gb_s: 9.0,
        fma_gflop_s: 100.0,
        int8_gop_s: 400.0,
        bf16_gflop_s: Some(200.0),
        threads: 2,
    };

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden");

    #[test]
    fn the_matrices_are_those_of_the_network_s_shape() {
        for name in ["llama", "gpt2"] {
            let checkpoint = Checkpoint::open(format!("{GOLDEN}/{name}").as_ref()).expect("the fixture is a model");
            let network = family::read(&checkpoint, None).expect("its tensors are there");
            let loaded = Cpu.load(network, Options::for_positions(1, 1), &mut |_, _| ()).expect("it loads");
            let spec = &loaded.spec;
            let (queries, keys) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
            let feed_forward = if spec.family == "llama" { 3 } else { 2 };
            let layer = 2 * spec.width * (queries + keys) + feed_forward * spec.width * spec.ffn_width;
            let work = PassWork::of(&loaded, [CacheType::F16; 2]);
            let found: usize = work.layers.values().map(|matrices| matrices.elements).sum();
            assert_eq!(found, spec.layers * layer, "{name}");
            assert_eq!(work.head.1.elements, spec.vocabulary * spec.width, "{name}");
        }
    }

    #[test]
    fn a_pass_takes_the_longer_of_bytes_and_operations() {
        let work = PassWork {
            layers: [
                ("Q8_0", Matrices { elements: 4_000_000, bytes: 4_250_000 }),
                ("BF16", Matrices { elements: 1_000_000, bytes: 2_000_000 }),
            ]
            .into(),
            head: ("F32", Matrices { elements: 500_000, bytes: 2_000_000 }),
            experts: BTreeMap::new(),
            chosen_part: 0.0,
            attention: vec![(None, AttentionWork { bytes: 2000, operations: 5000 })],
            sources: None,
        };
        let one = work.pass([9, 0], [1, 1], WeightsRead::default(), &CEILINGS);
        assert_eq!(one.bytes, 8_250_000.0 + 10.0 * 2000.0);
        assert_eq!(one.operations, 2.0 * 5_500_000.0 + 5000.0 * 10.0);
        let expected = 8e6 / 400e9 + 2e6 / 200e9 + 1e6 / 100e9 + 5e4 / 100e9;
        assert!((one.operation_seconds - expected).abs() < 1e-12, "{one:?}");
        assert!((one.ms() - 0.827).abs() < 1e-9, "{one:?}");
        // Sixty-four rows of which one has logits: the output head's operations are those of one row.
        let many = work.pass([9, 0], [64, 1], WeightsRead::default(), &CEILINGS);
        let seen: f64 = (1..=64).map(|i| 9.0 + f64::from(i)).sum();
        assert_eq!(many.operations, 128.0 * 5_000_000.0 + 1e6 + 5000.0 * seen);
        assert_eq!(many.ms(), 1e3 * many.operation_seconds);
        assert_eq!(work.products()["F32"].elements, 500_000);
        // With a window of four positions each row attends to four, and four rows together to seven.
        let narrow = PassWork { attention: vec![(Some(4), AttentionWork { bytes: 2000, operations: 5000 })], ..work };
        let four = narrow.pass([9, 0], [4, 4], WeightsRead::default(), &CEILINGS);
        assert_eq!(four.bytes, 8_250_000.0 + 7.0 * 2000.0);
        assert_eq!(four.operations, 8.0 * 5_500_000.0 + 5000.0 * 16.0);
        // Experts, of which a row chooses an eighth: the bytes are those that the pass reported.
        let experts = [("Q8_0", Matrices { elements: 16_000_000, bytes: 17_000_000 })].into();
        let sparse = PassWork { experts, chosen_part: 0.125, ..narrow };
        let read = WeightsRead { bytes: 12_500_000, experts: 3, packed: 0 };
        let four = sparse.pass([9, 0], [4, 4], read, &CEILINGS);
        assert_eq!(four.bytes, 12_500_000.0 + 7.0 * 2000.0);
        assert_eq!(four.operations, 8.0 * (5_500_000.0 + 2_000_000.0) + 5000.0 * 16.0);
        assert_eq!(sparse.products()["Q8_0"].elements, 20_000_000);
    }

    #[test]
    fn sources_are_read_once_and_every_row_sees_them() {
        let checkpoint = Checkpoint::open(format!("{GOLDEN}/t5-v1_1").as_ref()).expect("the fixture is a model");
        let network = family::read(&checkpoint, None).expect("its tensors are there");
        let loaded = Cpu.load(network, Options::for_positions(1, 1), &mut |_, _| ()).expect("it loads");
        let work = PassWork::of(&loaded, [CacheType::F16; 2]);
        // Width 32, 3 heads of 8, inner width 48 with a gate; 2 layers in the encoder, 3 in the decoder.
        let (attention, feed_forward, inner) = (4 * 32 * 24, 3 * 32 * 48, 24);
        let cross_key_value = 3 * 2 * 32 * inner;
        let read = 2 * (attention + feed_forward) + cross_key_value;
        // In memory outputs are a multiple of 16: those of queries, keys and values are 32.
        let (own, cross, wide) = (3 * 32 * 32 + 32 * 24, 32 * 32 + 32 * 24, 3 * 2 * 32 * 32);
        let reading = work.reading(7, &CEILINGS);
        assert_eq!(reading.bytes, (4 * (2 * (own + feed_forward) + wide)) as f64);
        assert_eq!(reading.operations, (2 * 7 * read + 7 * 7 * 2 * 4 * inner) as f64);
        // Two rows after three positions of the output, with sources of 7 tokens and of none.
        let of_source = |source| work.pass([3, source], [2, 2], WeightsRead::default(), &CEILINGS);
        let (seven, none) = (of_source(7), of_source(0));
        let layers = 3 * (own + cross + feed_forward) + 64 * 32;
        assert_eq!(none.bytes, (4 * layers + 3 * (3 + 2) * 2 * 2 * inner) as f64);
        assert_eq!(seven.bytes - none.bytes, (3 * 7 * 2 * 2 * inner) as f64);
        assert_eq!(seven.operations - none.operations, (2 * 7 * 3 * 4 * inner) as f64);
    }

    #[test]
    fn a_type_uses_the_faster_instruction_that_it_can() {
        let slow = Ceilings { bf16_gflop_s: Some(50.0), ..CEILINGS };
        let none = Ceilings { bf16_gflop_s: None, ..CEILINGS };
        let rates = [rate("BF16", &CEILINGS), rate("BF16", &slow), rate("BF16", &none), rate("Q4_K", &none)];
        assert_eq!(rates, [200.0, 100.0, 100.0, 400.0]);
    }
}
