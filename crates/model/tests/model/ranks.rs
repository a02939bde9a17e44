//! Tests of ranks in one process: each has its part of every matrix's outputs, and the logits of all have the bits of
//! one process.

use std::sync::{Arc, Barrier, Mutex};

use foretoken_model::{
    Backend, Batch, CacheType, Checkpoint, Cpu, Exchange, Executor, ExecutorError, ExpertNeed, Options, PageId,
    PageTable, Rank, Span, WeightType, family,
};
use foretoken_weights::Bytes;

use crate::files::{Form, config, read, safetensors_file};
use crate::golden::goldens;
use crate::{fixture, logits};

/// The exchange between threads of one process: each writes its part, and then all read all parts.
#[derive(Debug)]
struct InProcess {
    parts: Vec<Mutex<Vec<u8>>>,
    all_written: Barrier,
    all_read: Barrier,
}

impl InProcess {
    fn new(count: usize) -> Arc<Self> {
        let parts = (0..count).map(|_| Mutex::default()).collect();
        Arc::new(Self { parts, all_written: Barrier::new(count), all_read: Barrier::new(count) })
    }
}

/// The exchange as one rank uses it.
#[derive(Debug)]
struct InProcessEnd {
    number: usize,
    shared: Arc<InProcess>,
}

impl Exchange for InProcessEnd {
    fn gather(&self, part: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), ExecutorError> {
        assert_eq!(part.len(), lens[self.number]);
        *self.shared.parts[self.number].lock().unwrap() = part.to_vec();
        self.shared.all_written.wait();
        let parts: Vec<u8> = self.shared.parts.iter().flat_map(|part| part.lock().unwrap().clone()).collect();
        all.copy_from_slice(&parts);
        self.shared.all_read.wait();
        Ok(())
    }
}

fn options(weight_type: Option<WeightType>) -> Options {
    Options { weight_type, ..Options::for_positions(64, 1).with_cache(CacheType::F32) }
}

fn tokens(vocabulary: usize) -> Vec<u32> {
    (0..20u32).map(|i| (i * 37 + 5) % vocabulary as u32).collect()
}

/// The logits of each of `count` ranks for a folder's network, in passes of these lengths.
fn logits_of_ranks(name: &str, weight_type: Option<WeightType>, count: usize, lengths: &[usize]) -> Vec<Vec<f32>> {
    let options = |_| options(weight_type);
    logits_of_ranks_with(name, options, count, lengths)
}

/// The logits of each rank, for ranks with options of their own.
fn logits_of_ranks_with(
    name: &str,
    options: impl Fn(usize) -> Options + Sync,
    count: usize,
    lengths: &[usize],
) -> Vec<Vec<f32>> {
    let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    logits_of_ranks_of(&checkpoint, options, count, lengths)
}

/// The logits of each rank for a checkpoint.
fn logits_of_ranks_of(
    checkpoint: &Checkpoint,
    options: impl Fn(usize) -> Options + Sync,
    count: usize,
    lengths: &[usize],
) -> Vec<Vec<f32>> {
    let (shared, name) = (InProcess::new(count), &checkpoint.name);
    let run = |number: usize| {
        let exchange = Arc::new(InProcessEnd { number, shared: Arc::clone(&shared) });
        let rank = Rank { number, count, exchange };
        let network = family::read(checkpoint, None).unwrap();
        let vocabulary = network.spec.vocabulary;
        let mut loaded = rank.load(network, options(number), &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"));
        let own: usize = loaded.weights.matrices().iter().map(|matrix| matrix.elements).sum();
        (logits(&mut loaded.executor, &tokens(vocabulary), lengths), own)
    };
    std::thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = (0..count).map(|number| scope.spawn(move || run(number))).collect();
        let results: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect();
        // No rank has all weights.
        let all: usize = results.iter().map(|(_, own)| own).sum();
        let own = results.iter().map(|(_, own)| own);
        assert!(count == 1 || results.iter().all(|(_, own)| *own < all), "{name}: {own:?}");
        results.into_iter().map(|(logits, _)| logits).collect()
    })
}

/// The logits of one process.
fn logits_of_one_process(name: &str, weight_type: Option<WeightType>) -> Vec<f32> {
    let mut model = crate::load_with(&fixture(name), options(weight_type));
    let tokens = tokens(model.spec().vocabulary);
    logits(&mut model, &tokens, &[7, 1, 12])
}

#[track_caller]
fn assert_same(found: &[Vec<f32>], expected: &[f32], what: &str) {
    for (number, found) in found.iter().enumerate() {
        let at = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        assert!(found.len() == expected.len() && at.is_none(), "{what}: rank {number}: element {at:?} differs");
    }
}

#[test]
fn two_ranks_have_the_bits_of_one_process_for_every_network() {
    for name in &goldens() {
        assert_same(&logits_of_ranks(name, None, 2, &[7, 1, 12]), &logits_of_one_process(name, None), name);
    }
}

/// A Llama of one layer whose shares are unequal: three heads of keys and values, and 22 blocks of its inner width.
fn unequal() -> Checkpoint {
    let (width, ffn_width, heads, kv_heads, head_dim, vocabulary) = (256, 5632, 6, 3, 128, 100);
    let mut config = config(&fixture("llama"));
    for (field, value) in [
        ("hidden_size", width),
        ("intermediate_size", ffn_width),
        ("num_attention_heads", heads),
        ("num_key_value_heads", kv_heads),
        ("head_dim", head_dim),
        ("vocab_size", vocabulary),
        ("num_hidden_layers", 1),
    ] {
        config[field] = value.into();
    }
    let mut state = 1_u32;
    let mut tensors = read(&fixture("llama"));
    tensors.retain(|name, _| !name.contains(".layers.1."));
    for (name, tensor) in &mut tensors {
        let [q, kv] = [heads * head_dim, kv_heads * head_dim];
        tensor.shape = match name.rsplit('.').nth(1).unwrap() {
            "q_proj" => vec![q, width],
            "k_proj" | "v_proj" => vec![kv, width],
            "o_proj" => vec![width, q],
            "gate_proj" | "up_proj" => vec![ffn_width, width],
            "down_proj" => vec![width, ffn_width],
            "embed_tokens" | "lm_head" => vec![vocabulary, width],
            _ => vec![width],
        };
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 25) as f32 - 0.25
        };
        let is_norm = tensor.shape.len() == 1;
        let elements = (0..tensor.shape.iter().product()).map(|_| if is_norm { 1.0 } else { next() });
        tensor.elements = elements.collect();
    }
    let file = Bytes::from_vec(safetensors_file(&tensors, Form::F32, 0));
    Checkpoint::from_parts("unequal", config.to_string().as_bytes(), file).unwrap()
}

#[test]
fn unequal_shares_in_blocks_have_the_bits_of_one_process() {
    let checkpoint = unequal();
    for weight_type in [None, "q4_k".parse().ok(), "q8_0".parse().ok()] {
        let network = family::read(&checkpoint, None).unwrap();
        let mut alone = Cpu.load(network, options(weight_type), &mut |_, _| ()).unwrap().executor;
        let expected = logits(&mut alone, &tokens(100), &[7, 1, 12]);
        assert!(expected.iter().all(|logit| logit.is_finite()));
        for count in [2, 4] {
            let found = logits_of_ranks_of(&checkpoint, |_| options(weight_type), count, &[7, 1, 12]);
            assert_same(&found, &expected, &format!("{weight_type:?} on {count} ranks"));
        }
    }
}

/// Each rank has memory for a different number of experts, the last for all, and still they exchange in the same order.
#[test]
fn ranks_with_memory_for_few_experts_have_the_bits_of_one_process() {
    for name in ["mixtral", "qwen2_moe", "glm4_moe-groups"] {
        let network = family::read(&Checkpoint::open(&fixture(name)).unwrap(), None).unwrap();
        let ExpertNeed { all, least } = network.expert_need(None).unwrap();
        let few = |number: usize| match number {
            0 => Options { expert_bytes: Some(least), ..options(None) },
            1 => Options { expert_bytes: Some(all / 5), ..options(None) },
            _ => options(None),
        };
        assert_same(&logits_of_ranks_with(name, few, 3, &[7, 1, 12]), &logits_of_one_process(name, None), name);
    }
}

#[test]
fn any_number_of_ranks_has_the_bits_of_one_process_in_any_type() {
    for name in ["llama", "gpt2", "gemma4-per-layer", "quantized-gptq", "quantized-float8", "quantized-mxfp4"] {
        // No other type can be requested for quantized checkpoints.
        let types = [None, Some(WeightType::BF16), "q8_0".parse().ok()];
        for weight_type in types.into_iter().filter(|requested| requested.is_none() || !name.starts_with("quantized")) {
            let expected = logits_of_one_process(name, weight_type);
            // Twenty ranks are more than some matrices have outputs.
            for count in [1, 3, 20] {
                let found = logits_of_ranks(name, weight_type, count, &[7, 1, 12]);
                assert_same(&found, &expected, &format!("{name} in {weight_type:?} on {count} ranks"));
            }
        }
    }
}

/// Runs two ranks that compute the passes of all tokens; returns the error message of each rank for every pass, if it
/// fails.
fn passes_of_two_ranks(checkpoint: &Checkpoint, options: Options) -> Vec<[Option<String>; 2]> {
    let shared = InProcess::new(2);
    let run = |number: usize| {
        let rank = Rank { number, count: 2, exchange: Arc::new(InProcessEnd { number, shared: Arc::clone(&shared) }) };
        let network = family::read(checkpoint, None).unwrap();
        let vocabulary = network.spec.vocabulary as u32;
        let mut executor = rank.load(network, options, &mut |_, _| ()).unwrap().executor;
        let tables: Vec<PageTable> = vec![vec![PageId(0)]];
        let mut pass = |token: u32| {
            let span = Span { tables: &tables, tokens: &[token], wanted: &[0], ..Span::default() };
            executor.forward(&Batch { spans: &[span], hidden_layers: &[] }).err().map(|error| error.to_string())
        };
        (0..vocabulary).map(&mut pass).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let run = &run;
        let ranks = [0, 1].map(|number| scope.spawn(move || run(number)));
        let [first, second] = ranks.map(|rank| rank.join().expect("no rank panics"));
        first.into_iter().zip(second).map(|(first, second)| [first, second]).collect()
    })
}

/// Only the first rank has the outputs of an expert that cannot be packed, and the passes fail on both.
#[test]
fn an_expert_that_one_rank_cannot_pack_fails_the_pass_on_all() {
    let (config, mut tensors) = (config(&fixture("mixtral")), read(&fixture("mixtral")));
    let name = "model.layers.1.block_sparse_moe.experts.2.w1.weight";
    tensors.get_mut(name).unwrap().elements[7] = f32::INFINITY;
    let file = Bytes::from_vec(safetensors_file(&tensors, Form::F32, 0));
    let checkpoint = Checkpoint::from_parts("test", config.to_string().as_bytes(), file).unwrap();
    let weight_type = "q8_0".parse().ok();
    let ExpertNeed { least, .. } = family::read(&checkpoint, None).unwrap().expert_need(weight_type).unwrap();
    let options = Options { expert_bytes: Some(least), ..options(weight_type) };
    let (mut failed, mut succeeded) = (0, 0);
    for pass in passes_of_two_ranks(&checkpoint, options) {
        match pass {
            [Some(first), Some(second)] => {
                assert!(first.contains(name) && second.contains("on another rank"), "{first}, {second}");
                failed += 1;
            }
            [first, second] => {
                assert_eq!(first, second, "only one of them failed");
                succeeded += 1;
            }
        }
    }
    assert!(failed > 1 && succeeded > 1, "{failed} passes failed and {succeeded} did not");
}

/// The exchange of a rank whose peer does not answer.
#[derive(Debug)]
struct Disconnected;

impl Exchange for Disconnected {
    fn gather(&self, _: &[u8], lens: &[usize], _: &mut [u8]) -> Result<(), ExecutorError> {
        Err(ExecutorError::Failed { message: format!("rank 1 of {} does not answer", lens.len()) })
    }
}

#[test]
fn a_pass_fails_if_a_rank_does_not_answer() {
    let rank = Rank { number: 0, count: 2, exchange: Arc::new(Disconnected) };
    let network = family::read(&Checkpoint::open(&fixture("llama")).unwrap(), None).unwrap();
    let mut executor = rank.load(network, options(None), &mut |_, _| ()).unwrap().executor;
    let tables: Vec<PageTable> = vec![vec![PageId(0)]];
    let span = Span { tables: &tables, tokens: &[1, 2], wanted: &[1], ..Span::default() };
    for _ in 0..2 {
        let failed = executor.forward(&Batch { spans: &[span], hidden_layers: &[] });
        let message = "rank 1 of 2 does not answer".to_string();
        assert_eq!(failed, Err(ExecutorError::Failed { message }), "every time");
    }
}
