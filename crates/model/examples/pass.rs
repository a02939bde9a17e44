//! Compares the time of a pass with the time of reading the weights: `cargo run --release -p foretoken-model --example
//! pass`.
//!
//! A Llama of 134 million parameters with random bf16 weights is written to a temporary folder, loaded, and timed for
//! passes of several widths. A pass reads every weight but the embedding once, so the time of one row is bounded by the
//! memory's speed, which is measured in the same run by adding up a large buffer. It leaves out long contexts, in which
//! the cache is read as well, and any text.
//!
//! Its arguments are threads (2), cached positions (64) and rows (all of a list). The variable `FORETOKEN_ISA` chooses
//! another instruction set than the best.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use foretoken_kernels::{Isa, Pool};
use foretoken_model::{Batch, Checkpoint, Executor, Model, Options, PageId, Span};

const WIDTH: usize = 768;
const LAYERS: usize = 12;
const FFN: usize = 2048;
const VOCABULARY: usize = 32_000;
/// Number of timed passes of each width.
const PASSES: usize = 30;

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
"num_key_value_heads": 12, "intermediate_size": 2048, "vocab_size": 32000, "max_position_embeddings": 4096,
"rms_norm_eps": 1e-6, "tie_word_embeddings": false}"#;

/// The names and shapes of the network's tensors.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut all = Vec::new();
    let mut add = |name: &str, shape: &[usize]| all.push((format!("{name}.weight"), shape.to_vec()));
    for layer in 0..LAYERS {
        let mut part = |name: &str, shape: &[usize]| add(&format!("model.layers.{layer}.{name}"), shape);
        part("input_layernorm", &[WIDTH]);
        part("post_attention_layernorm", &[WIDTH]);
        for name in ["q", "k", "v", "o"] {
            part(&format!("self_attn.{name}_proj"), &[WIDTH, WIDTH]);
        }
        part("mlp.gate_proj", &[FFN, WIDTH]);
        part("mlp.up_proj", &[FFN, WIDTH]);
        part("mlp.down_proj", &[WIDTH, FFN]);
    }
    add("model.embed_tokens", &[VOCABULARY, WIDTH]);
    add("model.norm", &[WIDTH]);
    add("lm_head", &[VOCABULARY, WIDTH]);
    all
}

/// Writes the network, with weights between -1/32 and 1/32.
fn write_model(folder: &Path) -> std::io::Result<()> {
    std::fs::write(folder.join("config.json"), CONFIG)?;
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors() {
        let bytes = 2 * shape.iter().product::<usize>();
        let info = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [end, end + bytes]});
        header.insert(name, info);
        end += bytes;
    }
    let mut header = serde_json::Value::Object(header).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(64) - header.len() + 56));
    let mut file = BufWriter::new(std::fs::File::create(folder.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut state = 1u64;
    for _ in 0..end / 2 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) / 32.0;
        file.write_all(&((value.to_bits() >> 16) as u16).to_le_bytes())?;
    }
    file.flush()
}

/// Bytes per second at which `threads` threads read a buffer of 1 GiB, in the best of a few runs.
fn memory_speed(threads: usize) -> f64 {
    const CHUNK: usize = 1 << 17;
    let buffer = vec![1u64; 1 << 27];
    let pool = Pool::new(threads);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        pool.run(buffer.len() / CHUNK, &|task| {
            let mut lanes = [0u64; 16];
            for words in buffer[task * CHUNK..][..CHUNK].as_chunks::<16>().0 {
                for l in 0..16 {
                    lanes[l] = lanes[l].wrapping_add(words[l]);
                }
            }
            std::hint::black_box(lanes);
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    8.0 * buffer.len() as f64 / best
}

/// Median and minimum seconds of a pass of `rows` rows after `cached` positions.
fn time_passes(model: &mut Model, cached: usize, rows: usize) -> (f64, f64) {
    let tables: Vec<Vec<PageId>> =
        model.capacity().groups.iter().map(|group| (0..group.pages as u32).map(PageId).collect()).collect();
    let mut forward = |start: usize, len: usize, wanted: &[u32]| {
        let tokens: Vec<u32> = (0..len).map(|i| ((start + i) * 7919 % VOCABULARY) as u32).collect();
        let span = Span { sequence: 0, tables: &tables, start, tokens: &tokens, wanted, ..Span::default() };
        model.forward(&Batch { spans: &[span], hidden_layers: &[] }).expect("the batch fits");
    };
    if cached > 0 {
        forward(0, cached, &[]);
    }
    let wanted: Vec<u32> = (0..rows as u32).collect();
    let mut times: Vec<f64> = (0..PASSES + 3)
        .map(|_| {
            let start = Instant::now();
            forward(cached, rows, &wanted);
            start.elapsed().as_secs_f64()
        })
        .skip(3)
        .collect();
    times.sort_by(f64::total_cmp);
    (times[PASSES / 2], times[0])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Ok(name) = std::env::var("FORETOKEN_ISA") {
        Isa::named(&name)?.choose();
    }
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let threads = arguments.next().transpose()?.unwrap_or(2);
    let cached = arguments.next().transpose()?.unwrap_or(64);
    let only = arguments.next().transpose()?;
    let folder = tempfile::tempdir()?;
    write_model(folder.path())?;
    let checkpoint = Checkpoint::open(folder.path())?;
    let mut model = Model::load(
        &checkpoint,
        Options { rows_max: 4096, ..Options::for_positions(cached + 64, threads) },
        &mut |_, _| (),
    )?;
    let read = 2.0 * (checkpoint.parameters() - VOCABULARY * WIDTH) as f64;
    let speed = memory_speed(threads);
    println!("{threads} threads, {cached} cached positions, memory {:.1} GB/s", speed / 1e9);
    let mut single = 0.0;
    let widths = only.map_or(vec![1, 2, 3, 4, 5, 6, 8, 12, 16, 32], |rows| vec![rows; 20]);
    for rows in widths {
        let (time, least) = time_passes(&mut model, cached, rows);
        single = if single == 0.0 { time } else { single };
        println!(
            "{rows:3} rows: {:6.2} ms (least {:6.2}), {:5.1} GB/s of weights, {:4.0} % of the memory's, \
             {:.2} x the first line",
            time * 1e3,
            least * 1e3,
            read / time / 1e9,
            100.0 * read / time / speed,
            time / single
        );
    }
    Ok(())
}
