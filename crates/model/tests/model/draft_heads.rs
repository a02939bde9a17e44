//! Tests that compare draft heads with the programs of their authors and with themselves in other batches, and of files
//! that contradict themselves or the target.
//!
//! The goldens (`eagle3-*`, see the folder's README) hold the outputs of seven rows with hidden states of a target, and
//! of three more with the head's own. A head's embedding may be the target's: that of a golden network with these rows.

use std::collections::BTreeMap;
use std::path::Path;

use foretoken_model::{
    Backend, Batch, CacheType, Capacity, Checkpoint, Cpu, Executor, HiddenInput, HiddenStates, Loaded, Options, PageId,
    SharedEmbeddings, Span, family,
};
use foretoken_testkit::rows::first_difference;
use foretoken_weights::{Bytes, safetensors};
use serde_json::{Value, json};

use crate::files::{Form, config, read, safetensors_file};
use crate::fixture;

const GOLDENS: [&str; 5] = ["eagle3-speculators", "eagle3-llama3", "eagle3-authors", "eagle3-wide", "eagle3-gguf"];
/// Number of rows with hidden states of the target.
const TARGET_ROWS: usize = 7;
/// Number of rows with the head's own hidden states.
const OWN_ROWS: usize = 3;
/// Number of tokens of the target.
const TOKENS: usize = 96;
/// Number of tokens that the heads can draft.
const DRAFT_TOKENS: usize = 40;

/// The contents of a golden file.
struct Golden {
    tokens: Vec<u32>,
    hidden: Vec<f32>,
    logits: Vec<f32>,
    own: Vec<f32>,
    /// The target's token of each token of the head.
    draft_tokens: Vec<u32>,
    embeddings: Option<Vec<f32>>,
}

impl Golden {
    fn of(name: &str) -> Self {
        let golden = safetensors::open(fixture(name).join("golden.safetensors")).unwrap();
        let bytes = |name: &str| golden.get(name).map(|tensor| tensor.bytes.to_vec());
        let floats = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>();
        let all = |name: &str| floats(bytes(name).unwrap_or_else(|| panic!("{name}")));
        let tokens = bytes("tokens").unwrap().as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        // The GGUF file is made of the authors' file.
        let of_weights = fixture(if name == "eagle3-gguf" { "eagle3-authors" } else { name });
        let weights = safetensors::open(of_weights.join("model.safetensors")).unwrap();
        let offsets = weights.get("d2t").unwrap().bytes.to_vec();
        let offsets = offsets.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b));
        Golden {
            tokens,
            hidden: all("hidden"),
            logits: all("logits"),
            own: all("own"),
            draft_tokens: offsets.zip(0..).map(|(offset, own): (i64, i64)| (own + offset) as u32).collect(),
            embeddings: bytes("embeddings").map(floats),
        }
    }

    fn row(rows: &[f32], row: usize, count: usize) -> &[f32] {
        let width = rows.len() / count;
        &rows[row * width..][..width]
    }

    fn target_rows(&self, rows: std::ops::Range<usize>) -> &[f32] {
        let width = self.hidden.len() / TARGET_ROWS;
        &self.hidden[rows.start * width..rows.end * width]
    }
}

fn of_parts(config: &Value, weights: Vec<u8>) -> Checkpoint {
    let config = config.to_string();
    Checkpoint::from_parts("head", config.as_bytes(), Bytes::from_vec(weights)).unwrap_or_else(|e| panic!("{e}"))
}

/// The embedding and the output matrix of a golden network with this embedding.
fn target_embeddings(embeddings: Option<&[f32]>) -> SharedEmbeddings {
    let (folder, mut tensors) = (fixture("llama"), read(&fixture("llama")));
    if let Some(rows) = embeddings {
        tensors.get_mut("model.embed_tokens.weight").expect("it has one").elements = rows.to_vec();
    }
    let checkpoint = of_parts(&config(&folder), safetensors_file(&tensors, Form::F32, 0));
    let network = family::read(&checkpoint, None).unwrap_or_else(|error| panic!("{error}"));
    let loaded = Cpu.load(network, Options::for_positions(32, 1), &mut |_, _| ());
    loaded.unwrap_or_else(|error| panic!("{error}")).weights.shared_embeddings().expect("the CPU shares them")
}

fn target(width: usize) -> Capacity {
    Capacity {
        vocabulary: TOKENS,
        context_max: 256,
        rows_max: 64,
        groups: Vec::new(),
        sources: None,
        hidden: HiddenStates { layers: 8, width },
        hidden_in: None,
    }
}

fn open(checkpoint: &Checkpoint, shared: &SharedEmbeddings, tokens: Option<usize>) -> Result<Loaded, String> {
    let plan = family::plan(checkpoint).map_err(|error| error.to_string())?;
    let width = plan.spec.draft_head.as_ref().map_or(0, |head| head.target_width);
    let target = Capacity { vocabulary: tokens.unwrap_or(TOKENS), ..target(width) };
    let network = plan.read_head(checkpoint, (&target, shared), None).map_err(|error| error.to_string())?;
    let options = Options { tokens, ..Options::for_positions(128, 1).with_cache(CacheType::F32) };
    Cpu.load(network.with_tokens(tokens), options, &mut |_, _| ()).map_err(|error| error.to_string())
}

fn head(name: &str, golden: &Golden, tokens: Option<usize>) -> Box<dyn Executor> {
    let path = if name == "eagle3-gguf" { fixture(name).join("head.gguf") } else { fixture(name) };
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
    open(&checkpoint, &target_embeddings(golden.embeddings.as_deref()), tokens)
        .unwrap_or_else(|e| panic!("{name}: {e}"))
        .executor
}

/// A span of one sequence with its page, start, tokens, parents and hidden states.
#[derive(Clone, Copy)]
struct TestSpan<'a> {
    page: u32,
    start: usize,
    tokens: &'a [u32],
    parents: &'a [Option<u32>],
    hidden_in: HiddenInput<'a>,
}

/// A row of logits over the whole vocabulary, with minus infinity for tokens that a head cannot draft.
fn whole(head: &dyn Executor, row: usize) -> Vec<f32> {
    let outputs = head.outputs();
    let Some(tokens) = outputs.row_tokens() else { return outputs.row(row).to_vec() };
    assert!(tokens.is_sorted_by(|a, b| a < b) && outputs.row(row).len() == tokens.len());
    let mut whole = vec![f32::NEG_INFINITY; head.capacity().vocabulary];
    tokens.iter().zip(outputs.row(row)).for_each(|(token, logit)| whole[*token as usize] = *logit);
    whole
}

/// Runs spans in one pass; returns the logits of each row, and its own hidden state.
fn run(head: &mut dyn Executor, spans: &[TestSpan<'_>]) -> Vec<(Vec<f32>, Vec<f32>)> {
    let tables: Vec<_> = spans.iter().map(|span| [vec![PageId(span.page)]]).collect();
    let rows: Vec<Vec<u32>> = spans.iter().map(|span| (0..span.tokens.len() as u32).collect()).collect();
    let span = |i: usize| {
        let TestSpan { start, tokens, parents, hidden_in, .. } = spans[i];
        let (tables, wanted, hidden) = (&tables[i], &rows[i][..], &rows[i][..]);
        Span { sequence: i as u64, tables, start, tokens, parents, wanted, hidden, hidden_in, ..Span::default() }
    };
    let spans: Vec<Span<'_>> = (0..spans.len()).map(span).collect();
    head.forward(&Batch { spans: &spans, hidden_layers: &[0] }).unwrap_or_else(|error| panic!("{error}"));
    let outputs = head.outputs();
    let all = 0..rows.iter().map(Vec::len).sum();
    all.map(|row| (whole(head, row), outputs.hidden(0, row).to_vec())).collect()
}

/// All rows of a golden: those with the target's hidden states in one pass, then each with the head's own.
fn all_rows(head: &mut dyn Executor, golden: &Golden) -> Vec<(Vec<f32>, Vec<f32>)> {
    let tokens = &golden.tokens[..TARGET_ROWS];
    let hidden_in = HiddenInput::Target(&golden.hidden);
    let mut all = run(head, &[TestSpan { page: 0, start: 0, tokens, parents: &[], hidden_in }]);
    for start in TARGET_ROWS..TARGET_ROWS + OWN_ROWS {
        let (own, tokens) = (all[start - 1].1.clone(), &golden.tokens[start..=start]);
        all.extend(run(head, &[TestSpan { page: 0, start, tokens, parents: &[], hidden_in: HiddenInput::Own(&own) }]));
    }
    all
}

#[test]
fn heads_have_the_logits_of_their_authors_programs() {
    for name in GOLDENS {
        let golden = Golden::of(name);
        let mut head = head(name, &golden, None);
        let rows = TARGET_ROWS + OWN_ROWS;
        let largest = golden.logits.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
        let mut worst = 0f32;
        for (row, (logits, own)) in all_rows(&mut *head, &golden).into_iter().enumerate() {
            let found: BTreeMap<u32, f32> = logits.iter().zip(0..).map(|(logit, token)| (token, *logit)).collect();
            let expected = Golden::row(&golden.logits, row, rows);
            for (token, expected) in golden.draft_tokens.iter().zip(expected) {
                worst = worst.max((found[token] - expected).abs() / largest);
            }
            let others = found.iter().filter(|(token, _)| !golden.draft_tokens.contains(token));
            assert!(
                others.clone().all(|(_, logit)| *logit == f32::NEG_INFINITY),
                "{name}: a token outside its vocabulary"
            );
            assert_eq!((logits.len(), others.count()), (TOKENS, TOKENS - DRAFT_TOKENS), "{name}");
            let expected = Golden::row(&golden.own, row, rows);
            let of_own = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            let off = own.iter().zip(expected).fold(0f32, |off, (a, b)| off.max((a - b).abs()));
            assert!(off <= 1e-5 * of_own, "{name}: own hidden row {row} is off by {off}, the largest is {of_own}");
        }
        println!("{name}: largest difference {worst:.1e} of the largest logit");
        assert!(worst <= 1e-5, "{name}: off by {worst} of the largest logit");
    }
}

#[test]
fn rows_of_a_head_do_not_depend_on_other_rows() {
    for name in GOLDENS {
        let golden = Golden::of(name);
        let expected = all_rows(&mut *head(name, &golden, None), &golden);
        let mut other = head(name, &golden, None);
        // The rows are cut into several spans, together with another sequence that has hidden states first of the
        // target and then of its own.
        let mut found = Vec::new();
        let own = |row: usize| HiddenInput::Own(&expected[row].1);
        for (start, end) in [(0, 2), (2, 3), (3, TARGET_ROWS)] {
            let hidden_in = HiddenInput::Target(golden.target_rows(start..end));
            let span = TestSpan { page: 1, start, tokens: &golden.tokens[start..end], parents: &[], hidden_in };
            let hidden_of_other = match start {
                0 => HiddenInput::Target(golden.target_rows(5..6)),
                other => own(other),
            };
            let other_span =
                TestSpan { page: 2, start, tokens: &golden.tokens[5..6], parents: &[], hidden_in: hidden_of_other };
            let mut rows = run(&mut *other, &[other_span, span]);
            found.extend(rows.drain(1..));
        }
        // The rows with the head's own states are one tree: two that continue the sequence, and one that continues the
        // second of them.
        let tokens = [golden.tokens[3], golden.tokens[TARGET_ROWS], golden.tokens[TARGET_ROWS + 1]];
        let last = [&expected[TARGET_ROWS - 1].1[..], &expected[TARGET_ROWS - 1].1, &expected[TARGET_ROWS].1].concat();
        let (parents, hidden_in) = (&[None, None, Some(1)], HiddenInput::Own(&last));
        let tree = TestSpan { page: 1, start: TARGET_ROWS, tokens: &tokens, parents, hidden_in };
        found.extend(run(&mut *other, &[tree]).drain(1..));
        for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(first_difference(&found.0, &expected.0), None, "{name}: logits of row {row}");
            assert_eq!(first_difference(&found.1, &expected.1), None, "{name}: own hidden row {row}");
        }
    }
}

#[test]
fn cutting_the_vocabulary_cuts_the_draft_vocabulary() {
    let (mut golden, tokens) = (Golden::of("eagle3-wide"), 40);
    golden.tokens.iter_mut().for_each(|token| *token %= tokens as u32);
    let all = all_rows(&mut *head("eagle3-wide", &golden, None), &golden);
    assert!(golden.draft_tokens.iter().any(|token| *token as usize >= tokens), "nothing is cut");
    let few = all_rows(&mut *head("eagle3-wide", &golden, Some(tokens)), &golden);
    for (all, few) in all.iter().zip(&few) {
        assert_eq!((few.0.len(), first_difference(&few.0, &all.0[..tokens])), (tokens, None));
    }
}

#[test]
fn a_head_without_tokens_in_a_cut_vocabulary_drafts_token_0() {
    let mut golden = Golden::of("eagle3-wide");
    let tokens = golden.draft_tokens[0] as usize;
    assert!(tokens > 0 && golden.draft_tokens.is_sorted(), "{:?}", golden.draft_tokens);
    golden.tokens.iter_mut().for_each(|token| *token %= tokens as u32);
    for (logits, _) in all_rows(&mut *head("eagle3-wide", &golden, Some(tokens)), &golden) {
        let [first, others @ ..] = &logits[..] else { panic!("no logits") };
        assert!(first.is_finite() && others.iter().all(|logit| *logit == f32::NEG_INFINITY), "{logits:?}");
    }
}

/// The error for the wide golden with other fields and tensors.
fn refusal(fields: &Value, change: impl FnOnce(&mut Raw)) -> String {
    let folder = fixture("eagle3-wide");
    let mut config = config(&folder);
    for (field, value) in fields.as_object().unwrap() {
        config[field] = value.clone();
    }
    let mut raw = Raw::read(&folder);
    change(&mut raw);
    let golden = Golden::of("eagle3-authors");
    open(&of_parts(&config, raw.file()), &target_embeddings(golden.embeddings.as_deref()), None)
        .map(|_| ())
        .expect_err("refused")
}

/// A file's raw tensors: dtype, shape, bytes.
struct Raw(BTreeMap<String, (String, Vec<usize>, Vec<u8>)>);

impl Raw {
    fn read(folder: &Path) -> Self {
        let weights = safetensors::open(folder.join("model.safetensors")).unwrap();
        let raw_of = |t: &foretoken_weights::Tensor| (t.dtype.name().to_string(), t.shape.clone(), t.bytes.to_vec());
        Raw(weights.iter().map(|tensor| (tensor.name.clone(), raw_of(tensor))).collect())
    }

    fn set(&mut self, tensor: &str, at: usize, bytes: &[u8]) {
        self.0.get_mut(tensor).unwrap().2[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn file(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, (dtype, shape, bytes)) in &self.0 {
            let from = data.len();
            data.extend(bytes);
            header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [from, data.len()]}));
        }
        let mut header = Value::Object(header).to_string();
        header.extend(std::iter::repeat_n(' ', (header.len() + 8).next_multiple_of(64) - header.len() - 8));
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
    }
}

#[test]
fn heads_that_contradict_themselves_or_the_target_are_refused() {
    let none = json!({});
    let nothing = |_: &mut Raw| ();
    let layers = |layers: Value| json!({"eagle_aux_hidden_state_layer_ids": layers});
    let messages = [
        refusal(&none, |raw| raw.set("d2t", 8, &1000i64.to_le_bytes())),
        refusal(&none, |raw| raw.set("d2t", 8, &(-1000i64).to_le_bytes())),
        refusal(&none, |raw| raw.set("d2t", 16, &i64::MAX.to_le_bytes())),
        refusal(&none, |raw| {
            let first = i64::from_le_bytes(raw.0["d2t"].2[..8].try_into().unwrap());
            raw.set("d2t", 8, &(first - 1).to_le_bytes());
        }),
        // The first row has a larger token than the second.
        refusal(&none, |raw| raw.set("d2t", 0, &95i64.to_le_bytes())),
        refusal(&none, |raw| {
            raw.0.remove("d2t");
        }),
        refusal(&none, |raw| {
            let first = raw.0["t2d"].2.iter().position(|byte| *byte == 1).unwrap();
            raw.set("t2d", first, &[0]);
        }),
        refusal(&none, |raw| raw.set("lm_head.weight", 4, &f32::NAN.to_le_bytes())),
        refusal(&none, |raw| raw.set("midlayer.hidden_norm.weight", 0, &f32::INFINITY.to_le_bytes())),
        refusal(&none, |raw| {
            raw.0.remove("fc.weight");
        }),
        refusal(&json!({"target_hidden_size": 24}), nothing),
        refusal(&json!({"draft_vocab_size": 41}), nothing),
        refusal(&json!({"draft_vocab_size": 4000}), nothing),
        refusal(&layers(json!([0, 2, 3])), nothing),
        refusal(&layers(json!([2, 2, 3])), nothing),
        refusal(&layers(json!([2, 4, 9])), nothing),
        refusal(&layers(json!([2, 4])), nothing),
        refusal(&json!({"speculators_model_type": "dflash"}), nothing),
        refusal(&json!({"fc_norm": true}), nothing),
        refusal(&none, |raw| {
            // The target's embedding, which has another width, would be used instead.
            raw.0.remove("embed_tokens.weight");
        }),
        refusal(&none, |raw| {
            raw.0.remove("lm_head.weight");
        }),
    ];
    let expected = [
        "tensor d2t: expected tokens below 96, found 1001 of row 1",
        "tensor d2t: expected tokens below 96, found -999 of row 1",
        "tensor d2t: expected tokens below 96, found -9223372036854775807 of row 2",
        "tensor d2t: expected each token once",
        "tensor d2t: expected ascending tokens, found 6 of row 1",
        "tensor d2t: expected the tokens of 40 output rows, found nothing",
        "tensor t2d: expected true of token",
        "tensor lm_head.weight: expected finite numbers, found NaN",
        "tensor midlayer.hidden_norm.weight: expected finite numbers, found inf",
        "fc.weight",
        "tensor fc.weight: shape: expected [48, 72], found [48, 96]",
        "lm_head.weight: shape: expected [41, 48], found [40, 48]",
        "draft_vocab_size: expected at most the vocabulary, 96, found 4000",
        "eagle_aux_hidden_state_layer_ids: expected layers from 1 on (the embedding is behind none), found 0",
        "eagle_aux_hidden_state_layer_ids: expected each layer once, found 2 twice",
        "layers of the target: expected numbers up to 8 (it has so many), found [2, 4, 9]",
        "tensor fc.weight: shape: expected [48, 64], found [48, 96]",
        "speculators_model_type: expected eagle3, found \"dflash\"",
        "fc_norm: expected false, found true",
        "tensor embed_tokens.weight: expected rows of 48 elements, since the target's have 32, found nothing",
        "tensor lm_head.weight: expected rows of 48 elements, since the target's have 32, found nothing",
    ];
    for (message, expected) in messages.iter().zip(expected) {
        assert!(message.contains(expected), "expected {expected:?}, found {message:?}");
    }
}

#[test]
fn a_head_is_no_model_and_a_model_no_head() {
    let head = Checkpoint::open(&fixture("eagle3-wide")).unwrap();
    let refused = family::read(&head, None).map(|_| ()).unwrap_err().to_string();
    let expected = "architecture: expected a model, found a draft head of 40 tokens, which writes nothing without its";
    assert!(refused.contains(expected), "{refused}");
    let model = Checkpoint::open(&fixture("llama")).unwrap();
    let refused = open(&model, &target_embeddings(None), None).map(|_| ()).unwrap_err();
    assert!(refused.contains("architecture: expected a draft head, found llama"), "{refused}");
}
