//! Tests that compare Medusa heads with their definition, in both formats of their files, and of files that are
//! refused.

use foretoken_model::{
    Batch, Capacity, Checkpoint, Cpu, Executor, HiddenInput, HiddenStates, Options, PageId, SharedEmbeddings, Span,
    backend, family,
};
use foretoken_testkit::rows::{Numbers, first_difference};
use foretoken_weights::{Bytes, safetensors};
use serde_json::{Value, json};

use crate::files::{Form, Tensors, Wide, config, read, safetensors_file};
use crate::fixture;

const HEADS: usize = 3;
const BLOCKS: usize = 2;

/// Heads of random numbers for the golden Llama, with the authors' names or with vLLM's.
fn tensors(of_vllm: bool) -> Tensors {
    let target = config(&fixture("llama"));
    let [width, vocabulary] = ["hidden_size", "vocab_size"].map(|field| target[field].as_u64().unwrap() as usize);
    let mut numbers = Numbers::new(5);
    let mut wide = |shape: &[usize]| {
        let elements = (0..shape.iter().product()).map(|_| numbers.below(2001) as f32 / 4000.0 - 0.25).collect();
        Wide { shape: shape.to_vec(), elements }
    };
    let mut all = Tensors::new();
    for head in 0..HEADS {
        for block in 0..BLOCKS {
            let name = if of_vllm { format!("blocks.{head}.layers.{block}") } else { format!("{head}.{block}.linear") };
            all.insert(format!("{name}.weight"), wide(&[width, width]));
            if !of_vllm {
                all.insert(format!("{name}.bias"), wide(&[width]));
            }
        }
        let name = if of_vllm { format!("lm_heads.{head}") } else { format!("{head}.{BLOCKS}") };
        all.insert(format!("{name}.weight"), wide(&[vocabulary, width]));
    }
    all
}

fn fields(of_vllm: bool) -> Value {
    match of_vllm {
        true => json!({"model_type": "medusa", "num_heads": HEADS, "num_hidden_layers": BLOCKS}),
        false => json!({"medusa_num_heads": HEADS, "medusa_num_layers": BLOCKS, "base_model_name_or_path": "llama"}),
    }
}

/// The golden Llama as a target: its capacity, and its embedding and output matrix.
fn target() -> (Capacity, SharedEmbeddings) {
    let network = family::read(&Checkpoint::open(&fixture("llama")).unwrap(), None).unwrap();
    let loaded = backend::Backend::load(&Cpu, network, Options::for_positions(32, 1), &mut |_, _| ()).unwrap();
    (loaded.executor.capacity().clone(), loaded.weights.shared_embeddings().unwrap())
}

fn open(fields: &Value, tensors: &Tensors) -> Result<Box<dyn Executor>, String> {
    let bytes = Bytes::from_vec(safetensors_file(tensors, Form::F32, 0));
    let checkpoint = Checkpoint::from_parts("medusa", fields.to_string().as_bytes(), bytes).unwrap();
    let plan = family::plan(&checkpoint).map_err(|error| error.to_string())?;
    let (capacity, shared) = target();
    let loaded = plan.load_head(&checkpoint, (&capacity, &shared), &Cpu, Options::for_positions(64, 1), &mut |_, _| ());
    loaded.map(|loaded| loaded.executor).map_err(|error| error.to_string())
}

/// The logits of head `number` for a hidden state, by definition: output(x + silu(block(x))), in f64.
fn naive(tensors: &Tensors, of_vllm: bool, number: usize, row: &[f32]) -> Vec<f64> {
    let folder = fixture("llama");
    let epsilon = config(&folder)["rms_norm_eps"].as_f64().unwrap();
    let norm = &read(&folder)["model.norm.weight"].elements;
    let square = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (square + epsilon).sqrt();
    let mut x: Vec<f64> = row.iter().zip(norm).map(|(x, weight)| f64::from(*x) * scale * f64::from(*weight)).collect();
    let product = |name: &str, x: &[f64]| -> Vec<f64> {
        let rows = tensors[&format!("{name}.weight")].elements.chunks_exact(x.len());
        let product = rows.map(|row| row.iter().zip(x).map(|(a, b)| f64::from(*a) * b).sum::<f64>());
        match tensors.get(&format!("{name}.bias")) {
            None => product.collect(),
            Some(bias) => product.zip(&bias.elements).map(|(x, bias)| x + f64::from(*bias)).collect(),
        }
    };
    for block in 0..BLOCKS {
        let name = if of_vllm { format!("blocks.{number}.layers.{block}") } else { format!("{number}.{block}.linear") };
        let added = product(&name, &x);
        x.iter_mut().zip(added).for_each(|(x, added)| *x += added / (1.0 + (-added).exp()));
    }
    let output = if of_vllm { format!("lm_heads.{number}") } else { format!("{number}.{BLOCKS}") };
    product(&output, &x)
}

/// Runs spans in one pass; returns the logits and the own hidden state of each row.
fn run(executor: &mut dyn Executor, spans: &[(usize, &[u32], HiddenInput<'_>)]) -> Vec<(Vec<f32>, Vec<f32>)> {
    let tables: Vec<_> = (0..spans.len()).map(|page| [vec![PageId(page as u32)]]).collect();
    let rows: Vec<Vec<u32>> = spans.iter().map(|(_, tokens, _)| (0..tokens.len() as u32).collect()).collect();
    let span = |i: usize| {
        let (start, tokens, hidden_in) = spans[i];
        let (tables, wanted, hidden) = (&tables[i], &rows[i][..], &rows[i][..]);
        Span { sequence: i as u64, tables, start, tokens, wanted, hidden, hidden_in, ..Span::default() }
    };
    let all: Vec<Span<'_>> = (0..spans.len()).map(span).collect();
    executor.forward(&Batch { spans: &all, hidden_layers: &[0] }).unwrap();
    let outputs = executor.outputs();
    let count = rows.iter().map(Vec::len).sum();
    (0..count).map(|row| (outputs.row(row).to_vec(), outputs.hidden(0, row).to_vec())).collect()
}

#[test]
fn each_position_ahead_has_the_logits_of_its_head_in_any_batch() {
    for of_vllm in [false, true] {
        let tensors = tensors(of_vllm);
        let mut heads = open(&fields(of_vllm), &tensors).unwrap();
        let width = heads.capacity().hidden_in.as_ref().unwrap().target_width;
        let mut numbers = Numbers::new(9);
        let hidden: Vec<f32> = (0..2 * width).map(|_| numbers.below(4001) as f32 / 500.0 - 4.0).collect();
        let mut alone = run(&mut *heads, &[(0, &[3, 5], HiddenInput::Target(&hidden))]).split_off(1);
        for step in 1..HEADS {
            let own = alone[step - 1].1.clone();
            alone.extend(run(&mut *heads, &[(1 + step, &[7], HiddenInput::Own(&own))]));
        }
        for (number, (logits, _)) in alone.iter().enumerate() {
            let expected = naive(&tensors, of_vllm, number, &hidden[width..]);
            let largest = expected.iter().fold(0f64, |largest, x| largest.max(x.abs()));
            let off = logits.iter().zip(&expected).fold(0f64, |off, (a, b)| off.max((f64::from(*a) - b).abs()));
            assert!(off <= 1e-5 * largest, "head {number}: off by {off} of {largest}");
        }
        // Rows for three heads are in one pass, and each goes through its own head.
        let second = [&alone[1].1[..], &alone[0].1].concat();
        let spans = [(0, &[3, 5][..], HiddenInput::Target(&hidden)), (2, &[9, 1], HiddenInput::Own(&second))];
        let together = run(&mut *heads, &spans);
        for (row, number) in [(1, 0), (2, 2), (3, 1)] {
            assert_eq!(first_difference(&together[row].0, &alone[number].0), None, "head {number}");
            assert_eq!(first_difference(&together[row].1, &alone[number].1), None, "head {number}");
        }
    }
}

#[test]
fn heads_have_the_logits_of_the_authors_program() {
    let folder = fixture("medusa-authors");
    let golden = safetensors::open(folder.join("golden.safetensors")).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        golden.get(name).unwrap().bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let (hidden, golden_logits) = (floats("hidden"), floats("logits"));
    let (capacity, shared) = target();
    let (width, vocabulary) = (capacity.hidden.width, capacity.vocabulary);
    let rows = hidden.len() / width;
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let plan = family::plan(&checkpoint).unwrap();
    let options = Options::for_positions(64, 1);
    let mut heads = plan.load_head(&checkpoint, (&capacity, &shared), &Cpu, options, &mut |_, _| ()).unwrap().executor;
    let largest = golden_logits.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    for row in 0..rows {
        // The first head reads the target's hidden state; each further one reads the own hidden state of the head
        // before.
        let mut own = hidden[row * width..][..width].to_vec();
        for head in 0..HEADS {
            let hidden_in = if head == 0 { HiddenInput::Target(&own) } else { HiddenInput::Own(&own) };
            let (logits, kept) = run(&mut *heads, &[(head, &[5], hidden_in)]).remove(0);
            let expected = &golden_logits[(head * rows + row) * vocabulary..][..vocabulary];
            let off = logits.iter().zip(expected).fold(0f32, |off, (a, b)| off.max((a - b).abs()));
            assert!(off <= 1e-5 * largest, "head {head}, row {row}: off by {off} of {largest}");
            own = kept;
        }
    }
}

#[test]
fn files_that_contradict_themselves_or_the_target_are_refused() {
    let refusal = |fields: &Value, change: &dyn Fn(&mut Tensors)| {
        let mut tensors = tensors(false);
        change(&mut tensors);
        open(fields, &tensors).map(|_| ()).expect_err("refused")
    };
    let with = |field: &str, value: Value| {
        let mut fields = fields(false);
        fields[field] = value;
        fields
    };
    let cut = |shape: &[usize]| Wide { shape: shape.to_vec(), elements: vec![0.5; shape.iter().product()] };
    let own = fields(false);
    for (found, expected) in [
        (refusal(&with("medusa_num_heads", json!(4)), &|_| ()), "expected tensor `3.0.linear.weight`"),
        (refusal(&with("medusa_num_heads", json!(0)), &|_| ()), "medusa_num_heads: expected a number from 1 to"),
        (refusal(&with("medusa_num_layers", json!(65)), &|_| ()), "medusa_num_layers: expected a number from 1 to 64"),
        (refusal(&with("original_lm_head", json!(true)), &|_| ()), "original_lm_head: expected false, found true"),
        (
            refusal(&own, &|tensors| {
                tensors.insert("1.2.weight".to_string(), cut(&[95, 32]));
            }),
            "tensor 1.2.weight: shape: expected [96, 32], found [95, 32]",
        ),
        (
            refusal(&own, &|tensors| {
                (0..3).for_each(|head| drop(tensors.insert(format!("{head}.2.weight"), cut(&[90, 32]))));
            }),
            "vocabulary: expected at least 96 (the target's), found 90",
        ),
        (
            refusal(&own, &|tensors| drop(tensors.insert("0.2.weight".to_string(), cut(&[96, 24])))),
            "target_hidden_size: expected 32 (the target's width), found 24",
        ),
        (
            refusal(&own, &|tensors| tensors.get_mut("2.1.linear.bias").unwrap().elements[3] = f32::NAN),
            "tensor 2.1.linear.bias: expected finite numbers, found NaN",
        ),
    ] {
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    }
}

#[test]
fn heads_read_the_last_layer_of_their_target() {
    let (capacity, _) = target();
    let heads = open(&fields(false), &tensors(false)).unwrap();
    let reads = heads.capacity().hidden_in.clone().unwrap();
    let HiddenStates { layers, width } = capacity.hidden;
    assert_eq!((reads.target_layers, reads.target_width), (vec![layers - 1], width));
    assert_eq!(heads.capacity().head_problem(&capacity), None);
}
