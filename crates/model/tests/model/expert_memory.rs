//! Tests of networks of experts that are not all in memory: the bits are those of a network with all experts packed,
//! however many fit, the least recently used expert is evicted, and an expert that cannot be packed is refused or fails
//! when it is chosen.

use foretoken_model::{
    Backend, Batch, CacheType, Checkpoint, Cpu, Executor, ExpertNeed, Loaded, Model, ModelError, Options, PageId,
    PageTable, Span, WeightType, WeightsRead, family,
};
use foretoken_weights::Bytes;

use crate::files::{Form, config, read, safetensors_file};
use crate::rows::{Subject, play_subject};
use crate::{fixture, logits};

const NETWORKS: [&str; 9] = [
    "mixtral",
    "qwen3_moe",
    "qwen2_moe",
    "olmoe",
    "glm4_moe-groups",
    "granitemoeshared",
    "gemma4-experts",
    "gpt_oss",
    "quantized-mxfp4",
];

fn need(checkpoint: &Checkpoint, weight_type: Option<WeightType>) -> ExpertNeed {
    let network = family::read(checkpoint, None).unwrap_or_else(|error| panic!("{error}"));
    network.expert_need(weight_type).unwrap_or_else(|error| panic!("{error}"))
}

fn load(checkpoint: &Checkpoint, options: Options) -> Model {
    Model::load(checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

fn options(expert_bytes: Option<usize>) -> Options {
    Options { expert_bytes, ..Options::for_positions(64, 2).with_cache(CacheType::F32) }
}

/// A fixed text within the vocabulary.
fn tokens(vocabulary: usize) -> Vec<u32> {
    (0..32u32).map(|i| (i * 37 + 5) % vocabulary as u32).collect()
}

/// The weights that each pass of one row reads.
fn readings(model: &mut Model, tokens: &[u32]) -> Vec<WeightsRead> {
    let pages = model.capacity().groups[0].pages_for(tokens.len()) as u32;
    let tables: Vec<PageTable> = vec![(0..pages).map(PageId).collect()];
    let one = |(start, token): (usize, &u32)| {
        let (tables, tokens) = (&tables[..], &[*token][..]);
        let span = Span { tables, start, tokens, wanted: &[0], ..Span::default() };
        model.forward(&Batch { spans: &[span], hidden_layers: &[] }).unwrap_or_else(|error| panic!("{error}"));
        model.weights_read()
    };
    tokens.iter().enumerate().map(one).collect()
}

/// Tries memory for one expert up to memory for all, in passes of several lengths: long ones choose more experts of a
/// layer than fit.
#[test]
fn room_for_any_number_of_experts_gives_the_bits_of_all() {
    for name in NETWORKS {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        for weight_type in [None, "bf16".parse().ok(), "q8_0".parse().ok()] {
            // No other type can be requested for blocks.
            if weight_type.is_some() && name.starts_with("quantized") {
                continue;
            }
            let options = |expert_bytes| Options { weight_type, ..options(expert_bytes) };
            let mut plain = load(&checkpoint, options(None));
            let tokens = tokens(plain.spec().vocabulary);
            let expected = logits(&mut plain, &tokens, &[1]);
            let ExpertNeed { all, least } = need(&checkpoint, weight_type);
            assert!(least > 0 && all.is_multiple_of(least), "{name}: experts of one shape");
            // All numbers of experts are tried for the small networks, some for the others.
            let count = all / least;
            for room in (1..=count).step_by(count.div_ceil(8)) {
                let mut model = load(&checkpoint, options(Some(room * least)));
                for lengths in [&[32][..], &[1], &[5, 1, 1, 17, 2]] {
                    let found = logits(&mut model, &tokens, lengths);
                    assert!(found == expected, "{name} in {weight_type:?}, room for {room}, passes of {lengths:?}");
                }
            }
        }
    }
}

/// Tries cuts, trees, other sequences, threads and pages, as in `rows.rs`, with memory for few experts and for most.
#[test]
fn rows_do_not_depend_on_evictions() {
    for name in ["mixtral", "qwen3_moe", "glm4_moe-groups", "gemma4-experts", "gpt_oss"] {
        let path = fixture(name);
        let ExpertNeed { all, least } = need(&Checkpoint::open(&path).unwrap(), None);
        for expert_bytes in [least, all / 3, all - 1] {
            let options = Options { expert_bytes: Some(expert_bytes), ..Options::for_positions(256, 1) };
            play_subject(&Subject::with(&path, options), 4);
        }
    }
}

/// For one text, no expert is packed late if all fit, and with more memory never more are packed.
#[test]
fn the_least_recently_used_expert_is_evicted() {
    for name in ["mixtral", "qwen3_moe"] {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let ExpertNeed { all, least } = need(&checkpoint, None);
        let count = all / least;
        let mut plain = load(&checkpoint, options(None));
        let tokens = tokens(plain.spec().vocabulary);
        let expected = readings(&mut plain, &tokens);
        let all_read: usize = expected.iter().map(|read| read.experts).sum();
        let mut before = usize::MAX;
        for room in 1..=count {
            let mut model = load(&checkpoint, options(Some(room * least)));
            let found = readings(&mut model, &tokens);
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(WeightsRead { packed: 0, ..*found }, *expected, "{name}: the chosen experts are read");
            }
            let packed: usize = found.iter().map(|read| read.packed).sum();
            let drops = packed.saturating_sub(room);
            println!("{name}: room for {room} of {count}: {packed} of {all_read} packed first, {drops} dropped");
            // More memory is never worse, since it holds all experts that less memory holds.
            assert!(packed <= before, "{name}: {packed} of {all_read} with room for {room}, {before} with less");
            assert_eq!(packed > 0, room < count, "{name}: all are packed at load if all fit");
            before = packed;
            // The same experts are chosen again, so they are in memory after the first time.
            let again = readings(&mut model, &[tokens[0]; 2]);
            let chosen = again[1].experts;
            assert!(again[0].packed <= chosen && (room < chosen || again[1].experts == again[0].experts), "{name}");
        }
    }
}

#[test]
fn less_than_one_expert_is_refused() {
    let checkpoint = Checkpoint::open(&fixture("mixtral")).unwrap();
    let ExpertNeed { least, .. } = need(&checkpoint, None);
    for bytes in [0, least - 1] {
        let refused = Model::load(&checkpoint, options(Some(bytes)), &mut |_, _| ()).map(drop).expect_err("too little");
        let rest = format!(": expert_bytes {bytes}: expected at least {least} bytes, room for an expert of each shape");
        assert!(matches!(refused, ModelError::Setting { .. }) && refused.to_string().contains(&rest), "{refused}");
    }
    // A network without experts needs no memory for them.
    let dense = Checkpoint::open(&fixture("llama")).unwrap();
    assert_eq!(need(&dense, None), ExpertNeed::default());
    drop(load(&dense, options(Some(0))));
}

/// A number that blocks cannot hold is found when its expert is first chosen; other passes succeed.
#[test]
fn an_expert_that_cannot_be_packed_fails_the_passes_that_choose_it() {
    let (config, mut tensors) = (config(&fixture("mixtral")), read(&fixture("mixtral")));
    let name = "model.layers.1.block_sparse_moe.experts.2.w1.weight";
    tensors.get_mut(name).unwrap().elements[7] = f32::INFINITY;
    let file = Bytes::from_vec(safetensors_file(&tensors, Form::F32, 0));
    let checkpoint = Checkpoint::from_parts("test", config.to_string().as_bytes(), file).unwrap();
    let weight_type = "q8_0".parse().ok();
    let ExpertNeed { least, .. } = need(&checkpoint, weight_type);
    let mut model = load(&checkpoint, Options { weight_type, ..options(Some(3 * least)) });
    let tables: Vec<PageTable> = vec![vec![PageId(0)]];
    let (mut failed, mut succeeded) = (0, 0);
    for token in 0..model.spec().vocabulary as u32 {
        let span = Span { tables: &tables, tokens: &[token], wanted: &[0], ..Span::default() };
        match model.forward(&Batch { spans: &[span], hidden_layers: &[] }) {
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(name) && error.contains("found inf"), "{error}");
                failed += 1;
            }
            Ok(()) => {
                assert!(model.outputs().row(0).iter().all(|logit| logit.is_finite()), "token {token}");
                succeeded += 1;
            }
        }
    }
    assert!(failed > 1 && succeeded > 1, "{failed} passes failed and {succeeded} did not");
}

/// Executors over the same weights share one memory of experts, and the logits of each are those that it has alone.
#[test]
fn executors_share_the_memory_of_experts() {
    let checkpoint = Checkpoint::open(&fixture("qwen3_moe")).unwrap();
    let ExpertNeed { all, least } = need(&checkpoint, None);
    let network = family::read(&checkpoint, None).unwrap();
    let Loaded { executor: mut first, weights, spec, .. } =
        Cpu.load(network, options(Some(all / 2)), &mut |_, _| ()).unwrap();
    let experts = weights.matrices().iter().filter(|matrix| matrix.is_chosen).map(|matrix| matrix.bytes).sum::<usize>();
    assert_eq!((experts, all.is_multiple_of(least)), (all, true), "experts that are not packed are listed");
    let tokens = tokens(spec.vocabulary);
    let expected = logits(&mut load(&checkpoint, options(None)), &tokens, &[1]);
    let mut second = weights.executor(options(None)).unwrap();
    std::thread::scope(|scope| {
        let both = [&mut first, &mut second].map(|executor| {
            let tokens = &tokens;
            scope.spawn(move || (0..4).map(|_| logits(executor, tokens, &[3, 1])).collect::<Vec<_>>())
        });
        for found in both.map(|one| one.join().expect("no thread panics")) {
            assert!(found.iter().all(|found| *found == expected));
        }
    });
}
