//! Tests of encoder-decoders: sources in any pages and beside any others, mistakes that show in logits, and the forms
//! of T5's files.

use foretoken_kernels::Isa;
use foretoken_model::{Batch, Checkpoint, Executor, ExecutorError, Model, Options, PageId, PageTable, Source, Span};
use foretoken_testkit::rows::first_difference;
use foretoken_weights::Bytes;
use serde_json::{Value, json};

use crate::bad_input::{refused, refused_tensors};
use crate::files::{Form, Gguf, Tensors, Wide, config, read, safetensors_file};
use crate::forms::logits_of_tensors;
use crate::{SOURCE, fixture, load, load_with, logits, open_source, score};

const NAMES: [&str; 5] = ["t5", "t5-long", "t5-v1_1", "mt5", "umt5"];

fn tokens(len: u32) -> Vec<u32> {
    (0..len).map(|i| i * 37 % 61).collect()
}

fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(first_difference(found, expected), None, "{what}");
}

/// A source of any length has the same rows with any pages, threads and instruction set, also beyond the split of
/// attention's positions.
#[test]
fn a_source_has_the_same_rows_in_any_pages() {
    for (name, len) in NAMES.into_iter().flat_map(|name| [(name, 1), (name, 40)]).chain([("t5", 1100)]) {
        let source = tokens(len);
        let run = |page_len: usize, threads, isa: Option<Isa>| {
            let options = Options { page_len, pages: 2 + 1200 / page_len, ..Options::for_positions(1, threads) };
            let model = load_with(&fixture(name), options);
            let mut model = if let Some(isa) = isa { model.with_isa(isa) } else { model };
            open_source(&mut model, 0, &source, 1);
            score(&mut model, &tokens(20), &[20])
        };
        let expected = run(1200, 1, None);
        for (page_len, threads) in [(1, 2), (16, 3), (7, 4)] {
            let what = format!("{name}: {len} tokens, pages of {page_len}, {threads} threads");
            assert_same(&run(page_len, threads, None), &expected, &what);
        }
        if len < 100 {
            Isa::available().iter().for_each(|isa| assert_same(&run(8, 2, Some(*isa)), &expected, isa.name()));
        }
    }
}

/// Sequences of different sources share a pass, some of them one source; all have the logits that they have alone.
#[test]
fn rows_see_the_source_of_their_own_sequence() {
    for name in NAMES {
        let sources = [tokens(40), tokens(39), SOURCE.to_vec(), tokens(40)];
        let mut model = load(&fixture(name), 512, 2);
        let alone = sources.each_ref().map(|source| {
            open_source(&mut model, 0, source, 0);
            score(&mut model, &[0, 5, 9], &[3])
        });
        // A token more of the source changes every row, as does another source.
        assert!([1, 2].iter().all(|other| first_difference(&alone[0], &alone[*other]).is_some()), "{name}");
        let pages = model.capacity().groups[0].page_len;
        for (sequence, source) in sources.iter().enumerate().take(3) {
            open_source(&mut model, sequence as u64, source, 3 * sequence as u32);
        }
        let (first, needed) = (0, sources[0].len().div_ceil(pages) as u32);
        let table: PageTable = (first..first + needed).rev().map(PageId).collect();
        let shared = Source { tokens: &sources[3], table: &table, is_computed: true };
        model.open(3, Some(shared)).unwrap();
        let tables: Vec<Vec<PageTable>> = (0..4).map(|sequence| vec![vec![PageId(sequence)]]).collect();
        let span =
            |(sequence, tables)| Span { sequence, tables, tokens: &[0, 5, 9], wanted: &[0, 1, 2], ..Span::default() };
        let spans: Vec<Span<'_>> = (0..).zip(tables.iter().map(Vec::as_slice)).map(span).collect();
        model.forward(&Batch { spans: &spans, hidden_layers: &[] }).unwrap();
        let rows: Vec<f32> = (0..12).flat_map(|row| model.outputs().row(row).to_vec()).collect();
        assert_same(&rows, &alone.concat(), name);
    }
}

#[test]
fn sources_that_cannot_be_read_are_errors() {
    let mut model = load_with(&fixture("t5"), Options { context: Some(40), ..Options::for_positions(64, 1) });
    let table: PageTable = vec![PageId(0), PageId(1)];
    let mut open = |tokens: &[u32]| model.open(0, Some(Source { tokens, table: &table, is_computed: false }));
    assert_eq!(open(&[3, 64]), Err(ExecutorError::Token { found: 64, vocabulary: 64 }));
    assert_eq!(open(&[3; 41]), Err(ExecutorError::Position { found: 40, context_max: 40 }));
    assert_eq!(open(&[3; 40]), Ok(()));
}

/// The largest difference of two lists of logits, relative to the largest logit.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    let largest = expected.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
    found.iter().zip(expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs())) / largest
}

/// Tests that the goldens detect mistakes: each changes logits by a hundred times what they allow.
#[test]
fn mistakes_of_biases_and_halves_show_in_logits() {
    let swap = |tensors: &mut Tensors, from: &str, to: &str| {
        let (one, other) = (tensors[from].clone(), tensors[to].clone());
        tensors.extend([(from.to_string(), other), (to.to_string(), one)]);
    };
    let bias = |half: &str| format!("{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    for name in NAMES {
        let (config, tensors) = (config(&fixture(name)), read(&fixture(name)));
        let expected = logits_of_tensors(&config, &tensors);
        let check = |what: &str, config: &Value, change: &dyn Fn(&mut Tensors)| {
            let mut changed = tensors.clone();
            change(&mut changed);
            let off = difference(&logits_of_tensors(config, &changed), &expected);
            assert!(off > 1e-3, "{name}: {what}: {off:e}");
        };
        for half in ["encoder", "decoder"] {
            check("off by one bucket", &config, &|tensors| {
                let Wide { shape, elements } = tensors.get_mut(&bias(half)).unwrap();
                elements.rotate_right(shape[1]);
            });
        }
        check("the halves' biases swapped", &config, &|tensors| swap(tensors, &bias("encoder"), &bias("decoder")));
        let cross = |part: &str| format!("decoder.block.1.layer.1.EncDecAttention.{part}.weight");
        check("keys for values", &config, &|tensors| swap(tensors, &cross("k"), &cross("v")));
        let mut other = config.clone();
        other["relative_attention_max_distance"] =
            json!(config["relative_attention_max_distance"].as_u64().unwrap() / 4 + 17);
        let long = |config: &Value| {
            let file = Bytes::from_vec(safetensors_file(&tensors, Form::F32, 0));
            let checkpoint = Checkpoint::from_parts("test", config.to_string().as_bytes(), file).unwrap();
            let mut model = Model::load(&checkpoint, Options::for_positions(256, 1), &mut |_, _| ()).unwrap();
            open_source(&mut model, 0, &tokens(100), 0);
            score(&mut model, &tokens(80), &[80])
        };
        let off = difference(&long(&other), &long(&config));
        assert!(off > 1e-3, "{name}: another distance of the last bucket: {off:e}");
    }
}

#[test]
fn tensors_that_files_have_besides() {
    let copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
    let (config, tensors) = (config(&fixture("t5")), read(&fixture("t5")));
    let mut more = tensors.clone();
    copies.iter().for_each(|copy| _ = more.insert((*copy).to_string(), tensors["shared.weight"].clone()));
    more.insert("lm_head.weight".to_string(), tensors["shared.weight"].clone());
    let unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
    more.insert(unused.to_string(), Wide { shape: vec![32, 4], elements: vec![1.0; 128] });
    assert_same(&logits_of_tensors(&config, &more), &logits_of_tensors(&config, &tensors), "copies");
    let other = |name: &'static str| {
        move |all: &mut Tensors| {
            let mut copy = all["shared.weight"].clone();
            copy.elements[7] += 1.0;
            all.insert(name.to_string(), copy);
        }
    };
    refused_tensors("t5", other(copies[0]), &["tensor encoder.embed_tokens.weight", "a copy of shared.weight"]);
    refused_tensors("t5", other("lm_head.weight"), &["tie_word_embeddings", "expected false", "lm_head.weight"]);
    // A bias in a later layer is another family's (UMT5).
    let later = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight";
    refused_tensors("t5", |all| _ = all.insert(later.to_string(), all[&later.replace("1", "0")].clone()), &[later]);
}

#[test]
fn configurations_that_are_refused() {
    refused("t5", json!({"is_encoder_decoder": false}), &["is_encoder_decoder", "expected true"]);
    refused("t5", json!({"feed_forward_proj": "gated-tanh"}), &["feed_forward_proj", "one of silu", "\"tanh\""]);
    refused("t5", json!({"decoder_start_token_id": 64}), &["decoder_start_token_id", "below 64", "found 64"]);
    refused("t5", json!({"relative_attention_num_buckets": 3}), &["relative_attention_num_buckets", "at least 4"]);
    let distance = "relative_attention_max_distance";
    refused("t5", json!({distance: 16}), &[distance, "more than half of", "found 16"]);
    refused("t5", json!({distance: 1 << 20}), &[distance, "at most 16384"]);
    refused("t5", json!({"num_decoder_layers": 1}), &["num_decoder_layers: expected 2", "decoder.block.1."]);
    refused("t5", json!({"num_layers": 1}), &["num_layers: expected 2", "encoder.block.1."]);
    refused("t5", json!({"num_layers": 3}), &["encoder.block.2."]);
    refused("t5-v1_1", json!({"tie_word_embeddings": true}), &["tie_word_embeddings", "expected false"]);
    let untied = json!({"tie_word_embeddings": false, "scale_decoder_outputs": null});
    refused("t5", untied, &["lm_head.weight"]);
}

/// transformers 5 writes that every head is tied, and in another field whether it is.
#[test]
fn an_untied_head_of_transformers_5_is_read() {
    let (config, tensors) = (config(&fixture("t5-v1_1")), read(&fixture("t5-v1_1")));
    let mut newer = config.clone();
    newer["tie_word_embeddings"] = json!(true);
    newer["scale_decoder_outputs"] = json!(false);
    assert_same(&logits_of_tensors(&newer, &tensors), &logits_of_tensors(&config, &tensors), "t5-v1_1");
}

/// The GGUF file that llama.cpp's converter writes of a network.
fn gguf(config: &Value, tensors: &Tensors) -> Gguf {
    let number = |field: &str| config[field].as_u64().unwrap() as usize;
    let epsilon = config["layer_norm_epsilon"].as_f64().unwrap() as f32;
    let mut file = Gguf::default()
        .str("general.architecture", "t5")
        .u32("t5.context_length", 512)
        .u32("t5.embedding_length", number("d_model"))
        .u32("t5.feed_forward_length", number("d_ff"))
        .u32("t5.block_count", number("num_layers"))
        .u32("t5.decoder_block_count", number("num_decoder_layers"))
        .u32("t5.attention.head_count", number("num_heads"))
        .u32("t5.attention.key_length", number("d_kv"))
        .u32("t5.attention.value_length", number("d_kv"))
        .f32("t5.attention.layer_norm_epsilon", epsilon)
        .u32("t5.attention.relative_buckets_count", number("relative_attention_num_buckets"))
        .f32("t5.attention.layer_norm_rms_epsilon", epsilon)
        .u32("t5.decoder_start_token_id", number("decoder_start_token_id"));
    for (name, tensor) in tensors {
        let mut new = name.clone();
        for (from, to) in [
            ("shared", "token_embd"),
            ("lm_head", "output"),
            ("encoder.block.", "enc.blk."),
            ("decoder.block.", "dec.blk."),
            ("encoder.final_layer_norm", "enc.output_norm"),
            ("decoder.final_layer_norm", "dec.output_norm"),
            ("layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"),
            ("layer.0.SelfAttention.", "attn_"),
            ("layer.1.EncDecAttention.", "cross_attn_"),
            ("layer.0.layer_norm", "attn_norm"),
            ("DenseReluDense.wi_0", "ffn_gate"),
            ("DenseReluDense.wi_1", "ffn_up"),
            ("DenseReluDense.wi", "ffn_up"),
            ("DenseReluDense.wo", "ffn_down"),
        ] {
            new = new.replace(from, to);
        }
        let cross_norm = if new.starts_with("enc") { "ffn_norm" } else { "cross_attn_norm" };
        new = new.replace("layer.1.layer_norm", cross_norm).replace("layer.2.layer_norm", "ffn_norm");
        file = file.tensor(&new.replace("layer.1.", "").replace("layer.2.", ""), tensor, Form::F32);
    }
    file
}

#[test]
fn gguf_files_have_the_logits_of_their_folders() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t5.gguf");
    for name in NAMES {
        let (mut config, tensors) = (config(&fixture(name)), read(&fixture(name)));
        // Files do not say this number.
        config["relative_attention_max_distance"] = json!(128);
        std::fs::write(&path, gguf(&config, &tensors).bytes()).unwrap();
        let found = logits(&mut load(&path, 64, 1), &tokens(30), &[30]);
        let file = Bytes::from_vec(safetensors_file(&tensors, Form::F32, 0));
        let checkpoint = Checkpoint::from_parts("test", config.to_string().as_bytes(), file).unwrap();
        let options = Options::for_positions(64, 1).with_cache(foretoken_model::CacheType::F32);
        let mut model = Model::load(&checkpoint, options, &mut |_, _| ()).unwrap();
        assert_same(&found, &logits(&mut model, &tokens(30), &[30]), name);
    }
}
