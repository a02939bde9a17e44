//! Draft heads against the programs of those who make them, against themselves in other company, and against files
//! that contradict themselves or the target.
//!
//! The goldens (`eagle3-*`, see the folder's README) hold what seven rows beside hidden rows of a target say, and three
//! more beside the head's own. A head's embedding may be the target's: that of a golden network with these rows.

use std::collections::BTreeMap;
use std::path::Path;

use foretoken_model::{
    Backend, Batch, CacheType, Capacity, Checkpoint, Cpu, Executor, HiddenInput, HiddenStates, Lent, Loaded, Options,
    PageId, Span, family,
};
use foretoken_testkit::rows::first_difference;
use foretoken_weights::{Bytes, safetensors};
use serde_json::{Value, json};

use crate::files::{Form, config, read, safetensors_file};
use crate::fixture;

const GOLDENS: [&str; 5] = ["eagle3-speculators", "eagle3-llama3", "eagle3-authors", "eagle3-wide", "eagle3-gguf"];
/// Rows beside the target's, and beside the head's own.
const TARGET_ROWS: usize = 7;
const OWN_ROWS: usize = 3;
/// Tokens of the target, and of the heads.
const TOKENS: usize = 96;
const DRAFT_TOKENS: usize = 40;

/// What a golden file holds.
struct Golden {
    tokens: Vec<u32>,
    hidden: Vec<f32>,
    logits: Vec<f32>,
    own: Vec<f32>,
    /// Which token each of the head's is.
    said: Vec<u32>,
    embeddings: Option<Vec<f32>>,
}

impl Golden {
    fn of(name: &str) -> Self {
        let golden = safetensors::open(fixture(name).join("golden.safetensors")).unwrap();
        let bytes = |name: &str| golden.get(name).map(|tensor| tensor.bytes.to_vec());
        let floats = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>();
        let all = |name: &str| floats(bytes(name).unwrap_or_else(|| panic!("{name}")));
        let tokens = bytes("tokens").unwrap().as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        // The file in GGUF is made of the authors'.
        let of_weights = fixture(if name == "eagle3-gguf" { "eagle3-authors" } else { name });
        let weights = safetensors::open(of_weights.join("model.safetensors")).unwrap();
        let distances = weights.get("d2t").unwrap().bytes.to_vec();
        let distances = distances.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b));
        Golden {
            tokens,
            hidden: all("hidden"),
            logits: all("logits"),
            own: all("own"),
            said: distances.zip(0..).map(|(distance, own): (i64, i64)| (own + distance) as u32).collect(),
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

/// Embedding and output rows of a golden network whose embedding is this one.
fn lent(embeddings: Option<&[f32]>) -> Lent {
    let (folder, mut tensors) = (fixture("llama"), read(&fixture("llama")));
    if let Some(rows) = embeddings {
        tensors.get_mut("model.embed_tokens.weight").expect("it has one").elements = rows.to_vec();
    }
    let checkpoint = of_parts(&config(&folder), safetensors_file(&tensors, Form::F32, 0));
    let network = family::read(&checkpoint, None).unwrap_or_else(|error| panic!("{error}"));
    let loaded = Cpu.load(network, Options::for_positions(32, 1), &mut |_, _| ());
    loaded.unwrap_or_else(|error| panic!("{error}")).weights.lend().expect("the processor lends")
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

fn open(checkpoint: &Checkpoint, lent: &Lent, tokens: Option<usize>) -> Result<Loaded, String> {
    let plan = family::plan(checkpoint).map_err(|error| error.to_string())?;
    let width = plan.spec.draft_head.as_ref().map_or(0, |head| head.target_width);
    let target = Capacity { vocabulary: tokens.unwrap_or(TOKENS), ..target(width) };
    let network = plan.read_head(checkpoint, (&target, lent), None).map_err(|error| error.to_string())?;
    let options = Options { tokens, ..Options::for_positions(128, 1).with_cache(CacheType::F32) };
    Cpu.load(network.with_tokens(tokens), options, &mut |_, _| ()).map_err(|error| error.to_string())
}

fn head(name: &str, golden: &Golden, tokens: Option<usize>) -> Box<dyn Executor> {
    let path = if name == "eagle3-gguf" { fixture(name).join("head.gguf") } else { fixture(name) };
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
    open(&checkpoint, &lent(golden.embeddings.as_deref()), tokens).unwrap_or_else(|e| panic!("{name}: {e}")).executor
}

/// Rows of one text: where they begin, their tokens, whom each continues, and the hidden rows beside them.
#[derive(Clone, Copy)]
struct Piece<'a> {
    page: u32,
    start: usize,
    tokens: &'a [u32],
    parents: &'a [Option<u32>],
    hidden_in: HiddenInput<'a>,
}

/// A row of logits with minus infinity for what a head cannot say.
fn whole(head: &dyn Executor, row: usize) -> Vec<f32> {
    let outputs = head.outputs();
    let Some(said) = outputs.said() else { return outputs.row(row).to_vec() };
    assert!(said.is_sorted_by(|a, b| a < b) && outputs.row(row).len() == said.len());
    let mut whole = vec![f32::NEG_INFINITY; head.capacity().vocabulary];
    said.iter().zip(outputs.row(row)).for_each(|(token, logit)| whole[*token as usize] = *logit);
    whole
}

/// Runs pieces in one pass: what each row says, and its own hidden row.
fn run(head: &mut dyn Executor, pieces: &[Piece<'_>]) -> Vec<(Vec<f32>, Vec<f32>)> {
    let tables: Vec<_> = pieces.iter().map(|piece| [vec![PageId(piece.page)]]).collect();
    let rows: Vec<Vec<u32>> = pieces.iter().map(|piece| (0..piece.tokens.len() as u32).collect()).collect();
    let span = |i: usize| {
        let Piece { start, tokens, parents, hidden_in, .. } = pieces[i];
        let (tables, wanted, hidden) = (&tables[i], &rows[i][..], &rows[i][..]);
        Span { sequence: i as u64, tables, start, tokens, parents, wanted, hidden, hidden_in, ..Span::default() }
    };
    let spans: Vec<Span<'_>> = (0..pieces.len()).map(span).collect();
    head.forward(&Batch { spans: &spans, hidden_layers: &[0] }).unwrap_or_else(|error| panic!("{error}"));
    let outputs = head.outputs();
    let all = 0..rows.iter().map(Vec::len).sum();
    all.map(|row| (whole(head, row), outputs.hidden(0, row).to_vec())).collect()
}

/// All rows of a golden, row by row beside its own hidden rows at the end.
fn plainly(head: &mut dyn Executor, golden: &Golden) -> Vec<(Vec<f32>, Vec<f32>)> {
    let tokens = &golden.tokens[..TARGET_ROWS];
    let hidden_in = HiddenInput::Target(&golden.hidden);
    let mut all = run(head, &[Piece { page: 0, start: 0, tokens, parents: &[], hidden_in }]);
    for start in TARGET_ROWS..TARGET_ROWS + OWN_ROWS {
        let (own, tokens) = (all[start - 1].1.clone(), &golden.tokens[start..=start]);
        all.extend(run(head, &[Piece { page: 0, start, tokens, parents: &[], hidden_in: HiddenInput::Own(&own) }]));
    }
    all
}

#[test]
fn heads_say_what_the_programs_of_their_makers_say() {
    for name in GOLDENS {
        let golden = Golden::of(name);
        let mut head = head(name, &golden, None);
        let rows = TARGET_ROWS + OWN_ROWS;
        let largest = golden.logits.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
        let mut worst = 0f32;
        for (row, (logits, own)) in plainly(&mut *head, &golden).into_iter().enumerate() {
            let said: BTreeMap<u32, f32> = logits.iter().zip(0..).map(|(logit, token)| (token, *logit)).collect();
            let expected = Golden::row(&golden.logits, row, rows);
            for (token, expected) in golden.said.iter().zip(expected) {
                worst = worst.max((said[token] - expected).abs() / largest);
            }
            let others = said.iter().filter(|(token, _)| !golden.said.contains(token));
            assert!(others.clone().all(|(_, logit)| *logit == f32::NEG_INFINITY), "{name}: a token that it has not");
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
fn rows_of_a_head_do_not_know_their_neighbours() {
    for name in GOLDENS {
        let golden = Golden::of(name);
        let expected = plainly(&mut *head(name, &golden, None), &golden);
        let mut other = head(name, &golden, None);
        // In pieces, beside another text, of which first the target's rows and then its own are read.
        let mut found = Vec::new();
        let own = |row: usize| HiddenInput::Own(&expected[row].1);
        for (start, end) in [(0, 2), (2, 3), (3, TARGET_ROWS)] {
            let hidden_in = HiddenInput::Target(golden.target_rows(start..end));
            let piece = Piece { page: 1, start, tokens: &golden.tokens[start..end], parents: &[], hidden_in };
            let stranger = match start {
                0 => HiddenInput::Target(golden.target_rows(5..6)),
                other => own(other),
            };
            let stranger = Piece { page: 2, start, tokens: &golden.tokens[5..6], parents: &[], hidden_in: stranger };
            let mut said = run(&mut *other, &[stranger, piece]);
            found.extend(said.drain(1..));
        }
        // Its own rows as one tree: two that continue the text, and one behind the second of them.
        let tokens = [golden.tokens[3], golden.tokens[TARGET_ROWS], golden.tokens[TARGET_ROWS + 1]];
        let last = [&expected[TARGET_ROWS - 1].1[..], &expected[TARGET_ROWS - 1].1, &expected[TARGET_ROWS].1].concat();
        let (parents, hidden_in) = (&[None, None, Some(1)], HiddenInput::Own(&last));
        let tree = Piece { page: 1, start: TARGET_ROWS, tokens: &tokens, parents, hidden_in };
        found.extend(run(&mut *other, &[tree]).drain(1..));
        for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(first_difference(&found.0, &expected.0), None, "{name}: logits of row {row}");
            assert_eq!(first_difference(&found.1, &expected.1), None, "{name}: own hidden row {row}");
        }
    }
}

#[test]
fn a_vocabulary_that_is_cut_takes_the_heads_tokens_along() {
    let (mut golden, tokens) = (Golden::of("eagle3-wide"), 40);
    golden.tokens.iter_mut().for_each(|token| *token %= tokens as u32);
    let all = plainly(&mut *head("eagle3-wide", &golden, None), &golden);
    assert!(golden.said.iter().any(|token| *token as usize >= tokens), "nothing is cut");
    let few = plainly(&mut *head("eagle3-wide", &golden, Some(tokens)), &golden);
    for (all, few) in all.iter().zip(&few) {
        assert_eq!((few.0.len(), first_difference(&few.0, &all.0[..tokens])), (tokens, None));
    }
}

#[test]
fn a_head_that_can_say_none_of_a_cut_vocabulary_says_its_first_token() {
    let mut golden = Golden::of("eagle3-wide");
    let tokens = golden.said[0] as usize;
    assert!(tokens > 0 && golden.said.is_sorted(), "{:?}", golden.said);
    golden.tokens.iter_mut().for_each(|token| *token %= tokens as u32);
    for (logits, _) in plainly(&mut *head("eagle3-wide", &golden, Some(tokens)), &golden) {
        let [first, others @ ..] = &logits[..] else { panic!("no logits") };
        assert!(first.is_finite() && others.iter().all(|logit| *logit == f32::NEG_INFINITY), "{logits:?}");
    }
}

/// What is said of the wide golden with other fields and tensors: dtype, shape, bytes.
fn refusal(fields: &Value, change: impl FnOnce(&mut Raw)) -> String {
    let folder = fixture("eagle3-wide");
    let mut config = config(&folder);
    for (field, value) in fields.as_object().unwrap() {
        config[field] = value.clone();
    }
    let mut raw = Raw::read(&folder);
    change(&mut raw);
    let golden = Golden::of("eagle3-authors");
    open(&of_parts(&config, raw.file()), &lent(golden.embeddings.as_deref()), None).map(|_| ()).expect_err("refused")
}

/// A file's tensors as they are.
struct Raw(BTreeMap<String, (String, Vec<usize>, Vec<u8>)>);

impl Raw {
    fn read(folder: &Path) -> Self {
        let weights = safetensors::open(folder.join("model.safetensors")).unwrap();
        let of = |t: &foretoken_weights::Tensor| (t.dtype.name().to_string(), t.shape.clone(), t.bytes.to_vec());
        Raw(weights.iter().map(|tensor| (tensor.name.clone(), of(tensor))).collect())
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
    let said = [
        refusal(&none, |raw| raw.set("d2t", 8, &1000i64.to_le_bytes())),
        refusal(&none, |raw| raw.set("d2t", 8, &(-1000i64).to_le_bytes())),
        refusal(&none, |raw| raw.set("d2t", 16, &i64::MAX.to_le_bytes())),
        refusal(&none, |raw| {
            let first = i64::from_le_bytes(raw.0["d2t"].2[..8].try_into().unwrap());
            raw.set("d2t", 8, &(first - 1).to_le_bytes());
        }),
        // The first row a token that the second is before.
        refusal(&none, |raw| raw.set("d2t", 0, &95i64.to_le_bytes())),
        refusal(&none, |raw| {
            raw.0.remove("d2t");
        }),
        refusal(&none, |raw| {
            let said = raw.0["t2d"].2.iter().position(|byte| *byte == 1).unwrap();
            raw.set("t2d", said, &[0]);
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
            // Then the target's rows of another width would be its embedding.
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
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected), "expected {expected:?}, said {said:?}");
    }
}

#[test]
fn a_head_is_no_model_and_a_model_no_head() {
    let head = Checkpoint::open(&fixture("eagle3-wide")).unwrap();
    let refused = family::read(&head, None).map(|_| ()).unwrap_err().to_string();
    let expected = "architecture: expected a model, found a draft head of 40 tokens, which writes nothing without its";
    assert!(refused.contains(expected), "{refused}");
    let model = Checkpoint::open(&fixture("llama")).unwrap();
    let refused = open(&model, &lent(None), None).map(|_| ()).unwrap_err();
    assert!(refused.contains("architecture: expected a draft head, found llama"), "{refused}");
}
