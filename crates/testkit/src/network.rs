//! A real network as a target of the conformance suite: it is an executor for the engine, and a function for the
//! oracle.
//!
//! The function reads tokens one row per pass, in a cache of its own in which no row is ever moved. The network has
//! only the first tokens of its vocabulary, and the rows of the others are not loaded, so that the words of toys
//! suffice. Draft heads of random numbers can be generated for any network, in the file format of real heads.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use foretoken_drafters::HeadDrafter;
use foretoken_engine::ExecutorScorer;
use foretoken_model::{
    Backend, Batch, Checkpoint, Cpu, Executor, Loaded, Model, Options, PageId, PageTable, Span, family,
};
use foretoken_speculation::Token;
use foretoken_weights::Bytes;

use crate::rows::Numbers;
use crate::table::Table;

/// Number of positions of every cache.
const POSITIONS: usize = 640;

/// A folder with a network, and the number of first tokens of its vocabulary that are used.
#[derive(Clone, Debug)]
pub struct Network {
    path: PathBuf,
    tokens: usize,
}

impl Network {
    /// The network of a folder, with its first `tokens` tokens.
    pub fn new(path: impl Into<PathBuf>, tokens: usize) -> Self {
        Self { path: path.into(), tokens }
    }

    /// The network with pages and passes of these sizes.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn load(&self, page_len: usize, rows_max: usize) -> Model {
        let checkpoint = Checkpoint::open(&self.path).unwrap_or_else(|error| panic!("{error}"));
        let options = self.options(page_len, rows_max);
        Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn options(&self, page_len: usize, rows_max: usize) -> Options {
        let (pages, tokens) = (POSITIONS.div_ceil(page_len), Some(self.tokens));
        Options { page_len, pages, rows_max, tokens, ..Options::for_positions(POSITIONS, 1) }
    }

    fn loaded(&self) -> Loaded {
        let checkpoint = Checkpoint::open(&self.path).unwrap_or_else(|error| panic!("{error}"));
        let network = family::read(&checkpoint, None).map(|network| network.with_tokens(Some(self.tokens)));
        let network = network.unwrap_or_else(|error| panic!("{error}"));
        Cpu.load(network, self.options(POSITIONS, 1), &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The network's first layers as a draft model (an early exit).
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn exit(&self, layers: usize, page_len: usize, rows_max: usize) -> ExecutorScorer {
        let options = Options { layers: Some(layers), ..self.options(page_len, rows_max) };
        let executor = self.loaded().weights.executor(options);
        ExecutorScorer::new(executor.unwrap_or_else(|error| panic!("{error}")))
    }

    /// A draft head of random numbers for the network.
    ///
    /// # Panics
    /// If the network cannot be read.
    pub fn head(&self, kind: Head, page_len: usize, rows_max: usize) -> HeadDrafter<ExecutorScorer> {
        let target = self.loaded();
        let (capacity, shared) =
            (target.executor.capacity(), target.weights.shared_embeddings().expect("the CPU shares them"));
        let checkpoint = match kind {
            Head::Layers => layers(capacity.hidden.width, capacity.hidden.layers, self.tokens),
            Head::Medusa => medusa(capacity.hidden.width, self.tokens),
        };
        let plan = family::plan(&checkpoint).unwrap_or_else(|error| panic!("{error}"));
        let options = self.options(page_len, rows_max);
        let head = plan.load_head(&checkpoint, (capacity, &shared), &Cpu, options, &mut |_, _| ());
        let head = head.unwrap_or_else(|error| panic!("{error}")).executor;
        HeadDrafter::new(ExecutorScorer::for_head(head, capacity).unwrap_or_else(|problem| panic!("{problem}")))
    }

    /// A table of the network's logits after any tokens.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn table(&self) -> Table {
        let plain = Plain { model: self.load(POSITIONS, 1), read: Vec::new(), known: HashMap::new() };
        let plain = Mutex::new(plain);
        Table::new(self.tokens, move |tokens| plain.lock().unwrap_or_else(PoisonError::into_inner).logits(tokens))
    }
}

/// Kinds of draft heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// An EAGLE-3 head: one layer, without an embedding, with a draft vocabulary of all tokens but two.
    Layers,
    /// Medusa heads for three positions.
    Medusa,
}

/// An EAGLE-3 head for a target of this width, which reads the hidden states after its first and its last layer.
fn layers(width: usize, layers: usize, tokens: usize) -> Checkpoint {
    let draft_tokens = tokens - 2;
    let config = format!(
        r#"{{"speculators_model_type": "eagle3", "draft_vocab_size": {draft_tokens}, "target_hidden_size": {width},
        "eagle_aux_hidden_state_layer_ids": [1, {layers}], "norm_before_residual": true,
        "transformer_layer_config": {{"model_type": "llama", "hidden_size": {width}, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 16,
        "vocab_size": {tokens}, "max_position_embeddings": {POSITIONS}}}}}"#
    );
    let mut file = File::default();
    file.matrix("fc.weight", width, 2 * width);
    for (name, outputs, inputs) in [
        ("self_attn.q_proj", 16, 2 * width),
        ("self_attn.k_proj", 8, 2 * width),
        ("self_attn.v_proj", 8, 2 * width),
        ("self_attn.o_proj", width, 16),
        ("mlp.gate_proj", 16, width),
        ("mlp.up_proj", 16, width),
        ("mlp.down_proj", width, 16),
    ] {
        file.matrix(&format!("layers.0.{name}.weight"), outputs, inputs);
    }
    for name in ["layers.0.input_layernorm", "layers.0.hidden_norm", "layers.0.post_attention_layernorm", "norm"] {
        file.vector(&format!("{name}.weight"), width);
    }
    file.matrix("lm_head.weight", draft_tokens, width);
    // The tokens of the head are the target's from the third on.
    let distances = std::iter::repeat_n(2i64.to_le_bytes(), draft_tokens).flatten().collect();
    file.add("d2t", "I64", &[draft_tokens], distances);
    file.checkpoint(&config)
}

/// Medusa heads for a target of this width.
fn medusa(width: usize, tokens: usize) -> Checkpoint {
    let mut file = File::default();
    for head in 0..3 {
        file.matrix(&format!("{head}.0.linear.weight"), width, width);
        file.vector(&format!("{head}.0.linear.bias"), width);
        file.matrix(&format!("{head}.1.weight"), tokens, width);
    }
    file.checkpoint(r#"{"medusa_num_heads": 3, "medusa_num_layers": 1}"#)
}

/// A safetensors file of random numbers that is being written.
#[derive(Default)]
struct File {
    header: Vec<String>,
    data: Vec<u8>,
}

impl File {
    fn add(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>) {
        let (from, end) = (self.data.len(), self.data.len() + bytes.len());
        self.header
            .push(format!(r#""{name}": {{"dtype": "{dtype}", "shape": {shape:?}, "data_offsets": [{from}, {end}]}}"#));
        self.data.extend(bytes);
    }

    fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) {
        let scale = 3.0 / (inputs as f32).sqrt();
        self.floats(name, &[outputs, inputs], |random| random * scale);
    }

    fn vector(&mut self, name: &str, len: usize) {
        self.floats(name, &[len], |random| 1.0 + 0.4 * random);
    }

    /// Adds floats that `make` computes from random numbers between -1 and 1, which depend on the name.
    fn floats(&mut self, name: &str, shape: &[usize], make: impl Fn(f32) -> f32) {
        let mut numbers = Numbers::new(name.bytes().fold(7, |seed, byte| crate::table::mix(seed ^ u64::from(byte))));
        let mut one = || make(numbers.below(2001) as f32 / 1000.0 - 1.0).to_le_bytes();
        let bytes = (0..shape.iter().product()).flat_map(|_| one()).collect();
        self.add(name, "F32", shape, bytes);
    }

    fn checkpoint(self, config: &str) -> Checkpoint {
        let header = format!("{{{}}}", self.header.join(", "));
        let padded = header.len().next_multiple_of(8);
        let header = format!("{header:padded$}");
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &self.data].concat();
        let checkpoint = Checkpoint::from_parts("head", config.as_bytes(), Bytes::from_vec(file));
        checkpoint.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A network that reads one sequence, row by row.
struct Plain {
    model: Model,
    /// The tokens whose rows are in the cache.
    read: Vec<Token>,
    known: HashMap<Vec<Token>, Vec<f32>>,
}

impl Plain {
    fn logits(&mut self, tokens: &[Token]) -> Vec<f32> {
        if let Some(known) = self.known.get(tokens) {
            return known.clone();
        }
        let shared = self.read.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.read.truncate(shared.min(tokens.len() - 1));
        let tables: Vec<PageTable> = vec![vec![PageId(0)]; self.model.capacity().groups.len()];
        while self.read.len() < tokens.len() {
            let start = self.read.len();
            let tokens = &tokens[start..=start];
            let span = Span { tables: &tables, start, tokens, wanted: &[0], ..Span::default() };
            let pass = self.model.forward(&Batch { spans: &[span], hidden_layers: &[] });
            pass.unwrap_or_else(|error| panic!("{error}"));
            self.read.push(tokens[0]);
            self.known.insert(self.read.clone(), self.model.outputs().row(0).to_vec());
        }
        self.known[tokens].clone()
    }
}
