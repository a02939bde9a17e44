//! Whole jobs whose ranks are threads of this process: texts and log-probabilities have the bits of one process, faults
//! end a job in one line, and what is sent is what the shapes of the network say.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foretoken::generator::Choices;
use foretoken::models::{Opened, Options};
use foretoken::settings::Budget;
use foretoken::{Answer, CacheType, Error, Executor, Generator, ModelError, Prompt, Settings};
use foretoken_model::{Backend, Batch, ExecutorError, PageId, PageTable, Sent, Span};
use foretoken_ranks::in_process::connect;
use foretoken_ranks::{Communicator, Greeting, Leader, Role, Slow, follow, join};

const LIMIT: Duration = Duration::from_secs(60);

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)
}

fn golden(name: &str) -> String {
    format!("{}/../model/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs rank 0 of a job with these ends, whose other ranks follow it.
fn run_job<C: Communicator + 'static, T>(ends: Vec<C>, limit: Duration, run: impl FnOnce(&Leader) -> T) -> T {
    std::thread::scope(|scope| {
        let join = move |end| join(Box::new(end), limit, &Greeting::new(Vec::new())).expect("the ranks are alike");
        let mut ends = ends.into_iter();
        let first = ends.next().expect("a rank");
        for end in ends {
            scope.spawn(move || {
                let Role::Follower(group) = join(end) else { panic!("two leaders") };
                // Where rank 0 tests faults, followers fail, too.
                let _ = follow(&group);
            });
        }
        let Role::Leader(leader) = join(first) else { panic!("no leader") };
        let result = run(&leader);
        let _ = leader.stop();
        result
    })
}

/// Settings without files between runs.
fn settings(folder: &tempfile::TempDir, target: &str) -> Settings {
    let mut settings = Settings::default();
    settings.model.path = Some(model(target));
    settings.model.ctx_size = Some(128);
    settings.model.threads = Some(1);
    settings.speculation.costs = Some(folder.path().join("costs.json"));
    settings.speculation.spec_type = "none".parse().expect("it is well-formed");
    settings.sampling.seed = Some(7);
    settings.sampling.tokens_max = 20.into();
    settings
}

/// The answers to two prompts at a time, with log-probabilities, and then once more to the first, whose prefix is
/// cached.
fn answers(choices: &Choices<'_>) -> Vec<Answer> {
    let mut generator = Generator::with(choices, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let prompts = ["once upon a time, there was a little dog who lived in a big house with a boy", "the cat"];
    let mut run = |prompts: &[&str]| {
        let prompter = &generator.prompter;
        let request = |prompt: &&str| prompter.request_of_input(&Prompt::from(*prompt), &prompter.decided);
        let mut requests: Vec<_> = prompts.iter().map(|prompt| request(prompt).expect("it has a tokenizer")).collect();
        let searches = requests[0].beams.is_some();
        requests.iter_mut().for_each(|request| request.log_probabilities = !searches);
        let answers = generator.run::<Error>(requests, &mut |_, _| Ok(true)).expect("the requests are valid");
        generator.keep(&answers).expect("the prompt cache can be written");
        answers
    };
    let mut all = run(&prompts);
    all.extend(run(&prompts[..1]));
    all
}

/// Everything of answers that is the same on any number of ranks.
fn written(answers: &[Answer]) -> Vec<String> {
    let line = |answer: &Answer| {
        assert_eq!(answer.failure, None);
        let bits = answer.emitted.iter().map(|e| (e.token, e.log_probability.map(f32::to_bits)));
        let beams = answer.beams.iter().map(|beam| (beam.tokens.clone(), beam.log_probability.to_bits()));
        format!("{:?} {:?} {:?} {:?}", answer.text, answer.reason, bits.collect::<Vec<_>>(), beams.collect::<Vec<_>>())
    };
    answers.iter().map(line).collect()
}

/// One process and jobs of these sizes write the same.
#[track_caller]
fn assert_alike(settings: &Settings, sizes: &[usize]) {
    let expected = written(&answers(&Choices::new(settings)));
    assert!(expected.iter().all(|line| line.len() > 40), "{expected:?}");
    for size in sizes {
        let found = run_job(connect(*size), LIMIT, |leader| {
            let found = answers(&Choices { backend: leader, ..Choices::new(settings) });
            assert!(*size == 1 || leader.group().sent().messages > 0, "nothing was sent");
            found
        });
        assert_eq!(written(&found), expected, "{size} ranks");
    }
}

#[test]
fn texts_are_those_of_one_process_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder, "demo-target");
    settings.parallel = 2;
    assert_alike(&settings, &[1, 2, 4]);
    settings.model.dtype = "q4_k".parse().ok();
    settings.model.cache_type_k = CacheType::Q8_0;
    assert_alike(&settings, &[2, 3]);
}

/// More than a page of the cache.
const LONG: &str = "once upon a time, there was a little dog who lived in a big house with a boy, and they were happy. \
     one day the dog saw a bird in the tree. the bird said hello to the dog, and the dog said hello to the bird.";

/// Each rank saves and loads the heads that it has, and the file has all of them.
#[test]
fn saved_prefixes_are_those_of_one_process() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let with_file = |name: &str| {
        let mut settings = settings(&folder, "demo-target");
        settings.model.cache_type_v = CacheType::Q8_0;
        settings.model.prompt_cache = Some(folder.path().join(name));
        settings
    };
    let answer = |choices: &Choices<'_>| {
        let mut generator = Generator::with(choices, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
        let request = generator.request(LONG).expect("the model has a tokenizer");
        let answers = generator.run::<Error>(vec![request], &mut |_, _| Ok(true)).expect("the request is valid");
        generator.keep(&answers).expect("the file can be written");
        (written(&answers), answers[0].stats.prompt_tokens_shared)
    };
    let [of_one, of_ranks] = ["one", "ranks"].map(with_file);
    let (expected, shared) = answer(&Choices::new(&of_one));
    assert_eq!(shared, 0);
    for size in [2, 4] {
        let on_ranks = |settings: &Settings| {
            run_job(connect(size), LIMIT, |leader| answer(&Choices { backend: leader, ..Choices::new(settings) }))
        };
        let _ = std::fs::remove_file(folder.path().join("ranks"));
        assert_eq!(on_ranks(&of_ranks), (expected.clone(), 0), "{size} ranks");
        let bytes = |name: &str| std::fs::read(folder.path().join(name)).expect("it was written");
        assert_eq!(bytes("one"), bytes("ranks"), "{size} ranks");
        let (found, shared) = on_ranks(&of_one);
        assert!(found == expected && shared > 0, "{size} ranks: {shared} tokens of a file of one process");
    }
}

#[test]
fn texts_with_drafts_grammars_and_beams_are_those_of_one_process() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder, "demo-target");
    settings.parallel = 2;
    settings.speculation.model_draft = vec![model("demo-draft")];
    settings.speculation.spec_type = "draft+suffix".parse().expect("it is well-formed");
    settings.speculation.budget = Budget::Fixed;
    settings.speculation.draft.n_max = Some(4);
    assert_alike(&settings, &[2, 4]);
    settings.sampling.guided.regex = Some("[a-z ,.]+ and [a-z ,.]+\\.".to_string());
    assert_alike(&settings, &[2]);
    settings.sampling.guided.regex = None;
    (settings.sampling.num_beams, settings.sampling.n_best, settings.sampling.temperature) = (4, 2, Some(0.0));
    assert_alike(&settings, &[2]);
}

/// An early exit is a further executor over the target's weights, on all ranks.
#[test]
fn experts_and_early_exits_are_those_of_one_process() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder, "demo-experts");
    settings.parallel = 2;
    settings.speculation.spec_type = "exit:1".parse().expect("it is well-formed");
    settings.speculation.budget = Budget::Fixed;
    settings.speculation.draft.n_max = Some(3);
    assert_alike(&settings, &[2, 4]);
}

/// An encoder-decoder reads its source on all ranks.
#[test]
fn sources_are_read_on_all_ranks() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder, "encoder-decoder-target.gguf");
    settings.sampling.tokens_max = 30.into();
    assert_alike(&settings, &[2]);
}

/// A loaded model with one token a pass.
struct Passes(Box<dyn Executor>);

impl Passes {
    fn of(backend: &dyn Backend, name: &str) -> Self {
        Self::with(backend, name, None)
    }

    fn with(backend: &dyn Backend, name: &str, dtype: Option<&str>) -> Self {
        let weight_type = dtype.map(|name| name.parse().expect("a type"));
        let options = Options { weight_type, ..Options::for_positions(64, 1).with_cache(CacheType::F32) };
        let opened = Opened::named(name).expect("it is there");
        Self(opened.load(backend, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}")).executor)
    }

    fn run(&mut self, tokens: &[u32], wanted: &[u32]) -> Result<(), ExecutorError> {
        let tables: Vec<PageTable> = vec![vec![PageId(0)]];
        let span = Span { tables: &tables, tokens, wanted, ..Span::default() };
        self.0.forward(&Batch { spans: &[span], hidden_layers: &[] })
    }
}

/// What rank 0 sends for the exchanges of a pass of a dense network: for each layer the outputs of its heads, its part
/// of the output of attention, of the inner feed-forward network and of its output, and for wanted rows of the logits.
/// The first and the third are inputs of products alone, which in blocks of `rounding` are sent as a byte for each
/// element and four for each block.
fn expected_sent(name: &str, size: usize, [rows, wanted]: [usize; 2], rounding: Option<usize>) -> Sent {
    let spec = Opened::named(name).expect("it is there").spec;
    // Rank 0 has the first of `size` parts, in whole units.
    let own = |outputs: usize, unit: usize| (outputs.div_ceil(unit) / size * unit).min(outputs);
    let inputs = |elements: usize| rounding.map_or(4 * elements, |block| elements / block * (block + 4));
    let group = spec.heads / spec.kv_heads * spec.head_dim;
    let layer = [
        rows * if rounding.is_some_and(|block| !group.is_multiple_of(block)) {
            4 * own(spec.heads * spec.head_dim, group)
        } else {
            inputs(own(spec.heads * spec.head_dim, group))
        },
        rows * 4 * own(spec.width, 16),
        rows * inputs(own(spec.ffn_width, rounding.unwrap_or(16))),
        rows * 4 * own(spec.width, 16),
    ];
    let head = (wanted > 0).then(|| wanted * 4 * own(spec.vocabulary, 16));
    let exchanges: Vec<usize> = (0..spec.layers).flat_map(|_| layer).chain(head).collect();
    let (others, filled) = (size - 1, exchanges.iter().filter(|bytes| **bytes > 0).count());
    let bytes = others * exchanges.iter().sum::<usize>();
    Sent { messages: (others * filled) as u64, bytes: bytes as u64 }
}

#[test]
fn what_a_pass_sends_follows_from_the_shapes() {
    let demo = model("demo-target").display().to_string();
    for (name, size, dtype, rounding) in [
        (golden("llama"), 2, None, None),
        (golden("llama"), 3, None, None),
        (golden("qwen3"), 4, None, None),
        (demo, 2, Some("q8_0"), Some(32)),
    ] {
        run_job(connect(size), LIMIT, |leader| {
            let mut passes = Passes::with(leader, &name, dtype);
            for (tokens, wanted) in [(&[1, 2, 3, 4, 5][..], &[0, 4][..]), (&[1], &[]), (&[3], &[0])] {
                passes.run(tokens, wanted).expect("all ranks answer");
                let mut expected = expected_sent(&name, size, [tokens.len(), wanted.len()], rounding);
                let found = passes.0.sent();
                // The command goes to each of the others, too, with tens of bytes for a span.
                expected.messages += size as u64 - 1;
                assert_eq!(found.messages, expected.messages, "{name} on {size}");
                let command = (found.bytes - expected.bytes) / (size as u64 - 1);
                assert!((100..1000).contains(&command), "{name} on {size}: {found:?}, {expected:?}");
            }
        });
    }
}

/// The other rank is there until the model is loaded, and then it is not.
#[test]
fn a_rank_that_stops_answering_is_named_after_the_limit_and_never_waited_for_again() {
    let limit = Duration::from_millis(300);
    let mut ends = connect(2).into_iter();
    let (first, second) = (ends.next().expect("two"), ends.next().expect("two"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // It greets, opens and loads, and is silent from then on.
            let greeting = serde_json::to_vec(&Greeting::new(Vec::new())).expect("it is JSON");
            second.send(0, &greeting, limit).expect("it is sent");
            assert_eq!(second.receive(0, Some(LIMIT)).expect("a verdict"), b"welcome");
            for _ in ["open", "load"] {
                second.receive(0, Some(LIMIT)).expect("a command");
                second.send(0, b"\"Done\"", limit).expect("it is sent");
            }
        });
        let Ok(Role::Leader(leader)) = join(Box::new(first), limit, &Greeting::new(Vec::new())) else {
            panic!("no leader")
        };
        let mut passes = Passes::of(&leader, &golden("llama"));
        for is_first in [true, false] {
            let since = Instant::now();
            let error = passes.run(&[1], &[0]).expect_err("the other rank is silent").to_string();
            assert!(error.ends_with("rank 1 of 2: expected an answer within 0.3 s, found none"), "{error}");
            assert!(since.elapsed() < limit + Duration::from_secs(2));
            assert!(is_first == (since.elapsed() >= limit), "{:?}", since.elapsed());
        }
    });
}

/// A copy of a fixture with one weight changed.
fn changed(folder: &Path) {
    for entry in std::fs::read_dir(golden("llama")).expect("it is there") {
        let path = entry.expect("it is there").path();
        if path.is_file() {
            let mut bytes = std::fs::read(&path).expect("it can be read");
            if path.extension().is_some_and(|ending| ending == "safetensors") {
                let last = bytes.len() - 3;
                bytes[last] ^= 1;
            }
            std::fs::write(folder.join(path.file_name().expect("a name")), bytes).expect("it can be written");
        }
    }
}

#[test]
fn files_that_differ_are_told_apart_by_their_part() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    changed(folder.path());
    let sample = |name: &str| Opened::named(name).expect("it is there").checkpoint.sample();
    let (own, other) = (sample(&golden("llama")), sample(&folder.path().display().to_string()));
    assert_eq!((own.difference(&own), own.difference(&other)), (None, Some("weights")));
    assert_eq!(own.difference(&sample(&golden("qwen3"))), Some("configuration"));
}

/// The other rank cannot open the file, and rank 0 says so; then the job goes on with another model.
#[test]
fn a_model_that_a_rank_cannot_load_is_refused_by_rank() {
    let name = golden("llama");
    let (first, second) = {
        let mut ends = connect(2).into_iter();
        (ends.next().expect("two"), ends.next().expect("two"))
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let greeting = serde_json::to_vec(&Greeting::new(Vec::new())).expect("it is JSON");
            second.send(0, &greeting, LIMIT).expect("it is sent");
            second.receive(0, Some(LIMIT)).expect("a verdict");
            second.receive(0, Some(LIMIT)).expect("a command");
            let refusal = br#"{"Failed":"a: weights: expected those of rank 0, found others"}"#;
            second.send(0, refusal, LIMIT).expect("it is sent");
        });
        let Ok(Role::Leader(leader)) = join(Box::new(first), LIMIT, &Greeting::new(Vec::new())) else {
            panic!("no leader")
        };
        let options = Options::for_positions(64, 1);
        let loaded = Opened::named(&name).expect("it is there").load(&leader, options, &mut |_, _| ());
        let error = loaded.map(drop).expect_err("the other rank refuses").to_string();
        assert!(error.ends_with("llama: rank 1: a: weights: expected those of rank 0, found others"), "{error}");
    });
    let refused = ModelError::Ranks { place: "a".to_string(), message: "rank 1: b".to_string() };
    assert_eq!(refused.to_string(), "a: rank 1: b");
}

/// A slow link changes times and nothing else.
#[test]
fn a_slow_link_changes_no_bit() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder, "demo-target");
    settings.sampling.tokens_max = 4.into();
    let expected = written(&answers(&Choices::new(&settings)));
    let slow = |inner| Slow { inner, latency: Duration::from_micros(500), rate: 10e6 };
    let ends = connect(2).into_iter().map(slow).collect();
    let found = run_job(ends, LIMIT, |leader| answers(&Choices { backend: leader, ..Choices::new(&settings) }));
    assert_eq!(written(&found), expected);
}

/// Nothing is left when generators are closed: as many models and executors come and go as one likes.
#[test]
fn models_can_be_opened_again_and_again() {
    let name = golden("llama");
    run_job(connect(2), LIMIT, |leader| {
        let leader = Arc::new(leader.clone());
        let mut bytes = Vec::new();
        for _ in 0..20 {
            let mut passes = Passes::of(&*leader, &name);
            passes.run(&[1, 2], &[1]).expect("all ranks answer");
            bytes.push(passes.0.outputs().row(0).to_vec());
        }
        assert!(bytes.windows(2).all(|pair| pair[0] == pair[1]));
    });
}
