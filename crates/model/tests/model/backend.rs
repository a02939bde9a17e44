//! Tests of a second backend, made of public items alone: the smallest one that runs a described network.
//!
//! It runs the networks of Llama's golden folders, computes with the naive functions that specify the kernels, and
//! stores tokens instead of keys and values, so every row computes its whole sequence again. It refuses other networks.

use std::sync::Arc;

use crate::forms::assert_within;
use crate::{fixture, logits};
use foretoken_kernels::dtype::Matrix;
use foretoken_kernels::naive::{self, ScoreOptions};
use foretoken_kernels::rope::{angles, rotate};
use foretoken_kernels::{Isa, Pool};
use foretoken_model::network::{Dense, Ffn, Inner, Layer, NormWeights};
use foretoken_model::spec::{Activation, Norm, Residual};
use foretoken_model::{
    Backend, Batch, CacheEdit, CacheType, Capacity, CapacityProblem, Checkpoint, Cpu, Executor, ExecutorError, Group,
    HostOutputs, Loaded, ModelError, Network, Options, Outputs, Packed, PackedMatrix, PageId, PageTable, Progress,
    Source, Span, Spec, Table, Unpacked, WeightsRead, backend, family,
};

/// A matrix `[outputs, inputs]` as plain floats.
struct Plain {
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
    inputs: usize,
}

impl Plain {
    fn read(matrix: &Unpacked, pool: &Pool) -> Result<Self, ModelError> {
        let elements = matrix.read(pool)?;
        let [outputs, inputs] = matrix.shape();
        assert_eq!((elements.dtype(), elements.bytes().len()), ("F32", 4 * outputs * inputs), "{}", matrix.name());
        Ok(Self { weights: elements.floats(), bias: matrix.bias().map(<[f32]>::to_vec), inputs })
    }

    fn times(&self, x: &[f32]) -> Vec<f32> {
        let mut out = naive::product(x, Matrix::F32(&self.weights), self.inputs);
        if let Some(bias) = &self.bias {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
        out
    }
}

/// A block: norms, then query, key, value, output, gate, up, down.
struct PlainLayer {
    norms: [NormWeights; 2],
    matrices: [Plain; 7],
}

struct PlainNetwork {
    spec: Spec,
    embedding: Table,
    layers: Vec<PlainLayer>,
    norm: NormWeights,
    head: Plain,
}

#[derive(Debug)]
struct Naive;

impl Backend for Naive {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        let Network { spec, embedding, layers, output_norm, head, left_out, .. } = network;
        assert_eq!((spec.residual, embedding.rows()), (Residual::Sequential, spec.vocabulary));
        let (pool, count) = (Pool::new(1), layers.len());
        let mut plain = Vec::new();
        for layer in &layers {
            plain.push(PlainLayer::read(layer, &pool)?);
            progress(plain.len(), count);
        }
        let (norm, head) = (output_norm.expect("there is one"), Plain::read(&head, &pool)?);
        let network = Arc::new(PlainNetwork { spec: spec.clone(), embedding, layers: plain, norm, head });
        let weights = Box::new(Shared(Arc::clone(&network)));
        Ok(Loaded { executor: Box::new(Runner::new(network, options)), spec, left_out, threads: 1, weights })
    }
}

impl PlainLayer {
    fn read(layer: &Layer<Unpacked>, pool: &Pool) -> Result<Self, ModelError> {
        let Ffn::Dense(Dense { inner: Inner::Gated { activation: Activation::Silu, gate, up }, down }) = &layer.ffn
        else {
            panic!("not like Llama")
        };
        let key_value = layer.key_value.as_ref().expect("of its own");
        let value = key_value.value.as_ref().expect("of its own");
        let all = [&layer.query, &key_value.key, value, &layer.attention_output, gate, up, down];
        let read = |matrix: &&Unpacked| Plain::read(matrix, pool);
        let matrices: Vec<Plain> = all.iter().map(read).collect::<Result<_, _>>()?;
        let norm = |norm: &Option<NormWeights>| {
            let norm = norm.as_ref().expect("there is one");
            NormWeights { weight: norm.weight.clone(), bias: norm.bias.clone() }
        };
        let norms = [norm(&layer.attention_norm), norm(&layer.ffn_norm)];
        Ok(Self { norms, matrices: matrices.try_into().ok().expect("seven") })
    }

    /// Runs this block on the stream `x` `[positions][width]` of a sequence.
    fn run(&self, number: usize, spec: &Spec, x: &mut [Vec<f32>]) {
        let [query, key, value, output, gate, up, down] = &self.matrices;
        let (dim, group) = (spec.head_dim, spec.heads / spec.kv_heads);
        let rotation = &spec.positions.rotations()[spec.attention_of(number).rotation.expect("it rotates")];
        let rotate_row = |mut row: Vec<f32>, position: usize| {
            let mut by = vec![0.0; 2 * rotation.frequencies.len()];
            angles(position, &rotation.frequencies, rotation.magnitude, &mut by);
            rotate(Isa::chosen(), &mut row, dim, &by, rotation.pairing);
            row
        };
        let read: Vec<Vec<f32>> = x.iter().map(|x| normed(spec, &self.norms[0], x)).collect();
        let all = |matrix: &Plain| read.iter().map(|row| matrix.times(row)).collect::<Vec<_>>();
        let rotated = |rows: Vec<Vec<f32>>| (0..).zip(rows).map(|(at, row)| rotate_row(row, at)).collect::<Vec<_>>();
        let (queries, keys, values) = (rotated(all(query)), rotated(all(key)), all(value));
        let how = ScoreOptions {
            scale: spec.attention_scale,
            soft_cap: None,
            slope: 0.0,
            bias: Vec::new(),
            window: None,
            sink: None,
        };
        for (position, x) in x.iter_mut().enumerate() {
            let heads = (0..spec.heads).flat_map(|head| {
                let seen = |row: &'_ Vec<f32>| -> Vec<f32> { row[head / group * dim..][..dim].to_vec() };
                let [keys, values] =
                    [&keys, &values].map(|rows| rows[..=position].iter().map(seen).collect::<Vec<_>>());
                let [keys, values] = [&keys, &values].map(|rows| rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
                naive::attention(&queries[position][head * dim..][..dim], &keys, &values, &how)
            });
            let heads: Vec<f32> = heads.collect();
            x.iter_mut().zip(output.times(&heads)).for_each(|(x, out)| *x += out);
            let read = normed(spec, &self.norms[1], x);
            let gated = gate.times(&read).into_iter().zip(up.times(&read));
            let inner: Vec<f32> = gated.map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
            x.iter_mut().zip(down.times(&inner)).for_each(|(x, out)| *x += out);
        }
    }
}

fn normed(spec: &Spec, norm: &NormWeights, x: &[f32]) -> Vec<f32> {
    let Norm::Rms { epsilon } = spec.norm else { panic!("not like Llama") };
    naive::rms_norm(x, &norm.weight, epsilon)
}

impl PlainNetwork {
    /// Logits after the last of these tokens.
    fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        let width = self.spec.width;
        let mut embedded = vec![0.0; tokens.len() * width];
        self.embedding.embed(tokens, &mut embedded);
        let mut x: Vec<Vec<f32>> = embedded.chunks_exact(width).map(<[f32]>::to_vec).collect();
        for (number, layer) in self.layers.iter().enumerate() {
            layer.run(number, &self.spec, &mut x);
        }
        self.head.times(&normed(&self.spec, &self.norm, x.last().expect("a token")))
    }
}

struct Shared(Arc<PlainNetwork>);

impl Packed for Shared {
    fn executor(&self, options: Options) -> Result<Box<dyn Executor>, ModelError> {
        Ok(Box::new(Runner::new(Arc::clone(&self.0), options)))
    }

    fn matrices(&self) -> Vec<PackedMatrix> {
        let all = self.0.layers.iter().flat_map(|layer| &layer.matrices).chain([&self.0.head]);
        let size_of = |matrix: &Plain| (matrix.weights.len(), 4 * matrix.weights.len());
        all.map(size_of)
            .map(|(elements, bytes)| PackedMatrix { form: "F32", elements, bytes, is_chosen: false })
            .collect()
    }
}

/// The executor: the tokens of the slots, and the network.
struct Runner {
    network: Arc<PlainNetwork>,
    slots: Vec<u32>,
    capacity: Capacity,
    outputs: HostOutputs,
}

impl Runner {
    fn new(network: Arc<PlainNetwork>, options: Options) -> Self {
        let Options { page_len, pages, rows_max, .. } = options;
        let vocabulary = network.head.weights.len() / network.head.inputs;
        let capacity = Capacity {
            vocabulary,
            context_max: network.spec.context_max,
            rows_max,
            groups: vec![Group::attention(page_len, pages)],
            ..Capacity::default()
        };
        let outputs = HostOutputs { vocabulary, ..HostOutputs::default() };
        Self { network, slots: vec![0; page_len * pages], capacity, outputs }
    }

    fn slot(&self, table: &PageTable, position: usize) -> usize {
        let page_len = self.capacity.groups[0].page_len;
        table[position / page_len].0 as usize * page_len + position % page_len
    }

    /// The tokens that a row of a span sees.
    fn text(&self, span: &Span<'_>, row: usize) -> Vec<u32> {
        let mut path = Vec::new();
        let mut at = Some(row);
        while let Some(row) = at {
            path.push(span.start + row);
            at = span.parent(row);
        }
        let positions = (0..span.start).chain(path.into_iter().rev());
        positions.map(|position| self.slots[self.slot(&span.tables[0], position)]).collect()
    }
}

impl Executor for Runner {
    fn open(&mut self, _sequence: u64, _source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn release(&mut self, _sequence: u64) {}

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        foretoken_model::executor::check(batch, &self.capacity)?;
        self.outputs.logits.clear();
        for span in batch.spans {
            for (row, token) in span.tokens.iter().enumerate().skip(span.computed) {
                let slot = self.slot(&span.tables[0], span.start + row);
                self.slots[slot] = *token;
            }
            for row in span.wanted {
                self.outputs.logits.extend(self.network.logits(&self.text(span, *row as usize)));
            }
        }
        Ok(())
    }

    fn outputs(&self) -> &dyn Outputs {
        &self.outputs
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        let pairs: Vec<[usize; 2]> = match edit {
            CacheEdit::Move { tables, from, to } => {
                let moves = from.iter().zip(to..);
                moves.map(|(from, to)| [self.slot(&tables[0], *from), self.slot(&tables[0], to)]).collect()
            }
            CacheEdit::Copy { from, to, positions } => {
                positions.map(|position| [self.slot(&from[0], position), self.slot(&to[0], position)]).collect()
            }
        };
        pairs.into_iter().for_each(|[from, to]| self.slots[to] = self.slots[from]);
        Ok(())
    }

    fn capacity(&self) -> &Capacity {
        &self.capacity
    }
}

#[test]
fn a_backend_of_public_items_has_the_logits_of_the_cpu() {
    let options = Options::for_positions(64, 1).with_cache(CacheType::F32);
    let tokens: Vec<u32> = (0..12u32).map(|i| (i * 37 + 5) % 90).collect();
    for name in ["llama", "llama-tied", "llama-biased", "llama3-rope"] {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let mut results = Vec::new();
        for backend in [&Naive as &dyn Backend, &Cpu] {
            let network = family::read(&checkpoint, None).unwrap().with_tokens(Some(90));
            let mut reports = Vec::new();
            let mut loaded = backend.load(network, options, &mut |done, all| reports.push((done, all))).unwrap();
            backend::check(backend, name, &*loaded.executor).unwrap();
            assert_eq!((reports, loaded.executor.capacity().vocabulary), (vec![(1, 2), (2, 2)], 90));
            let first = logits(&mut loaded.executor, &tokens, &[5, 1, 6]);
            // The executors share weights, but not caches.
            let mut second = loaded.weights.executor(options).unwrap();
            drop(loaded.executor);
            assert_eq!(logits(&mut second, &tokens, &[12]), first, "{name} on {}", backend.name());
            let elements: Vec<_> = loaded.weights.matrices().iter().map(|matrix| matrix.elements).collect();
            results.push((first, elements));
        }
        let [(naive, matrices), (cpu, same)] = &results[..] else { panic!("two backends") };
        assert_eq!(matrices, same, "{name}");
        assert_within(1e-5, cpu, naive, name);
    }
}

#[test]
fn a_described_network_has_names_shapes_and_parts() {
    let network = family::read(&Checkpoint::open(&fixture("falcon-new")).unwrap(), None).unwrap();
    let (Spec { width, heads, head_dim, .. }, pool) = (network.spec.clone(), Pool::new(1));
    assert!(network.name.ends_with("falcon-new") && network.source.ends_with("model.safetensors"), "{}", network.name);
    // The matrix is fused with keys and values head by head, so the queries are ranges of its rows.
    let query = &network.layers[1].query;
    assert_eq!(query.shape(), [heads * head_dim, width]);
    assert!(query.name().contains("h.1.self_attention.query_key_value"), "{}", query.name());
    let all = query.read(&pool).unwrap().floats();
    for range in [0..3, 5..heads * head_dim, 1..heads * head_dim - 1, 7..7] {
        let part = query.outputs(range.clone());
        assert_eq!(part.read(&pool).unwrap().floats(), all[range.start * width..range.end * width], "{range:?}");
    }
}

/// A backend whose executor has a cache without pages.
#[derive(Debug)]
struct NoPages;

impl Backend for NoPages {
    fn name(&self) -> &'static str {
        "no-pages"
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        Naive.load(network, Options { pages: 0, ..options }, progress)
    }
}

#[test]
fn an_inconsistent_capacity_is_refused_by_field() {
    let network = family::read(&Checkpoint::open(&fixture("llama")).unwrap(), None).unwrap();
    let loaded = NoPages.load(network, Options::for_positions(64, 1), &mut |_, _| ()).unwrap();
    let error = backend::check(&NoPages, "llama", &*loaded.executor).expect_err("it has no pages");
    let line = "llama: backend no-pages: capacity: groups: group 0: pages: expected at least 1, found 0";
    assert_eq!(error.to_string(), line);
    let ModelError::Capacity { problem: CapacityProblem { field, .. }, .. } = error else { panic!("{error}") };
    assert_eq!(field, "groups: group 0: pages");
}

#[test]
fn a_pass_reads_every_matrix_and_the_head_if_logits_are_wanted() {
    let network = family::read(&Checkpoint::open(&fixture("llama")).unwrap(), None).unwrap();
    let mut loaded = Cpu.load(network, Options::for_positions(64, 1), &mut |_, _| ()).unwrap();
    let matrices = loaded.weights.matrices();
    let (all, head) = (matrices.iter().map(|matrix| matrix.bytes).sum::<usize>(), matrices[matrices.len() - 1].bytes);
    assert_eq!(loaded.executor.weights_read(), WeightsRead::default(), "there was no pass");
    let tables: Vec<PageTable> = vec![vec![PageId(0)]];
    for (tokens, wanted, bytes) in [(3, &[2][..], all), (9, &[0, 4, 8], all), (1, &[0], all), (5, &[], all - head)] {
        let tokens = vec![1; tokens];
        let span = Span { tables: &tables, tokens: &tokens, wanted, ..Span::default() };
        loaded.executor.forward(&Batch { spans: &[span], hidden_layers: &[] }).unwrap();
        assert_eq!(
            loaded.executor.weights_read(),
            WeightsRead { bytes, experts: 0, packed: 0 },
            "{} rows",
            tokens.len()
        );
    }
}
