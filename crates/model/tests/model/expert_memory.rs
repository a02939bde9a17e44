//! Networks of experts that are not all in memory: the bits are those of all packed, whatever there is room for, what
//! was chosen longest ago makes room, and what cannot be is refused or fails where it is chosen.

use foretoken_model::{
    Backend, Batch, CacheType, Checkpoint, Cpu, Executor, ExpertNeed, Loaded, Model, ModelError, Options, PageId,
    PageTable, Reading, Span, WeightType, family,
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

/// A text that goes on by the network's choice, from its beginning.
fn tokens(vocabulary: usize) -> Vec<u32> {
    (0..32u32).map(|i| (i * 37 + 5) % vocabulary as u32).collect()
}

/// What passes of one row read, each.
fn readings(model: &mut Model, tokens: &[u32]) -> Vec<Reading> {
    let pages = model.capacity().groups[0].pages_for(tokens.len()) as u32;
    let tables: Vec<PageTable> = vec![(0..pages).map(PageId).collect()];
    let one = |(start, token): (usize, &u32)| {
        let (tables, tokens) = (&tables[..], &[*token][..]);
        let span = Span { tables, start, tokens, wanted: &[0], ..Span::default() };
        model.forward(&Batch { spans: &[span], hidden_layers: &[] }).unwrap_or_else(|error| panic!("{error}"));
        model.read()
    };
    tokens.iter().enumerate().map(one).collect()
}

/// From room for one expert to room for all, in passes of any length: long ones choose more experts a layer than there
/// is room for.
#[test]
fn room_for_any_number_of_experts_gives_the_bits_of_all() {
    for name in NETWORKS {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        for weight_type in [None, "bf16".parse().ok(), "q8_0".parse().ok()] {
            // Of blocks no other type can be asked for.
            if weight_type.is_some() && name.starts_with("quantized") {
                continue;
            }
            let options = |expert_bytes| Options { weight_type, ..options(expert_bytes) };
            let mut plain = load(&checkpoint, options(None));
            let tokens = tokens(plain.spec().vocabulary);
            let expected = logits(&mut plain, &tokens, &[1]);
            let ExpertNeed { all, least } = need(&checkpoint, weight_type);
            assert!(least > 0 && all.is_multiple_of(least), "{name}: experts of one shape");
            // All of them for the small networks, some for the others.
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

/// Cuts, trees, strangers, threads and pages, as `rows.rs` tries them, with room for few and for most.
#[test]
fn rows_do_not_know_who_made_room() {
    for name in ["mixtral", "qwen3_moe", "glm4_moe-groups", "gemma4-experts", "gpt_oss"] {
        let path = fixture(name);
        let ExpertNeed { all, least } = need(&Checkpoint::open(&path).unwrap(), None);
        for expert_bytes in [least, all / 3, all - 1] {
            let options = Options { expert_bytes: Some(expert_bytes), ..Options::for_positions(256, 1) };
            play_subject(&Subject::with(&path, options), 4);
        }
    }
}

/// Of the same text: a miss for each expert at first, none where there is room for all, and never more places than
/// there is room for.
#[test]
fn what_was_chosen_longest_ago_makes_room() {
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
                assert_eq!(Reading { packed: 0, ..*found }, *expected, "{name}: what is read is what was chosen");
            }
            let packed: usize = found.iter().map(|read| read.packed).sum();
            let drops = packed.saturating_sub(room);
            println!("{name}: room for {room} of {count}: {packed} of {all_read} packed first, {drops} dropped");
            // More room is never worse: what was chosen last is there, and more behind it.
            assert!(packed <= before, "{name}: {packed} of {all_read} with room for {room}, {before} with less");
            assert_eq!(packed > 0, room < count, "{name}: all are packed at once where all fit");
            before = packed;
            // The same expert again and again: it is there after the first time.
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
    // A network without experts needs no room for them.
    let dense = Checkpoint::open(&fixture("llama")).unwrap();
    assert_eq!(need(&dense, None), ExpertNeed::default());
    drop(load(&dense, options(Some(0))));
}

/// A number that blocks cannot hold is found where its expert is first chosen; what does not choose it goes on.
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
    let (mut failed, mut said) = (0, 0);
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
                said += 1;
            }
        }
    }
    assert!(failed > 1 && said > 1, "{failed} passes failed and {said} did not");
}

/// Executors over the same weights have one memory of experts, and each says what it says alone.
#[test]
fn executors_share_the_memory_of_experts() {
    let checkpoint = Checkpoint::open(&fixture("qwen3_moe")).unwrap();
    let ExpertNeed { all, least } = need(&checkpoint, None);
    let network = family::read(&checkpoint, None).unwrap();
    let Loaded { executor: mut first, weights, spec, .. } =
        Cpu.load(network, options(Some(all / 2)), &mut |_, _| ()).unwrap();
    let experts = weights.matrices().iter().filter(|matrix| matrix.is_chosen).map(|matrix| matrix.bytes).sum::<usize>();
    assert_eq!((experts, all.is_multiple_of(least)), (all, true), "those that are not packed are told");
    let tokens = tokens(spec.vocabulary);
    let expected = logits(&mut load(&checkpoint, options(None)), &tokens, &[1]);
    let mut second = weights.executor(options(None)).unwrap();
    std::thread::scope(|scope| {
        let both = [&mut first, &mut second].map(|executor| {
            let tokens = &tokens;
            scope.spawn(move || (0..4).map(|_| logits(executor, tokens, &[3, 1])).collect::<Vec<_>>())
        });
        for said in both.map(|one| one.join().expect("nobody panics")) {
            assert!(said.iter().all(|said| *said == expected));
        }
    });
}
