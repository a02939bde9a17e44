//! Networks with more or fewer rows than their vocabulary has tokens: rows without a token are never generated, and
//! nothing else changes.

use std::path::{Path, PathBuf};

use foretoken::settings::Budget;
use foretoken::{Generator, Promise, Request, Settings};
use foretoken_weights::safetensors;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::generators::run;

const VOCABULARY: usize = 8192;
const EMBEDDING: &str = "model.embed_tokens.weight";

fn demo() -> PathBuf {
    PathBuf::from(format!("{}/../../models/demo-draft", env!("CARGO_MANIFEST_DIR")))
}

/// The small demo model with an embedding of `rows` rows: those after its vocabulary are its first ones doubled, so
/// they would usually be the most probable.
fn with_rows(folder: &Path, rows: usize) -> PathBuf {
    let (from, to) = (demo(), folder.join(format!("rows-{rows}")));
    std::fs::create_dir(&to).expect("a folder can be made");
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        std::fs::copy(from.join(file), to.join(file)).expect("a file can be copied");
    }
    let config = std::fs::read(from.join("config.json")).expect("a file can be read");
    let mut config: Value = serde_json::from_slice(&config).expect("it is JSON");
    config["vocab_size"] = json!(rows);
    std::fs::write(to.join("config.json"), config.to_string()).expect("a file can be written");
    let weights = safetensors::open(from.join("model.safetensors")).expect("ours");
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in weights.iter() {
        let (mut shape, mut bytes) = (tensor.shape.clone(), tensor.bytes.to_vec());
        assert_eq!(tensor.dtype.name(), "BF16");
        if tensor.name == EMBEDDING {
            let row = bytes.len() / VOCABULARY;
            // The exponent of a bf16 begins at bit 7: one more doubles it.
            let double = |half: &[u8]| {
                let bits = u16::from_le_bytes([half[0], half[1]]);
                (if bits & 0x7f80 == 0 { bits } else { bits + 0x80 }).to_le_bytes()
            };
            let doubled: Vec<u8> = bytes.chunks_exact(2).flat_map(double).collect();
            bytes.extend(doubled);
            bytes.truncate(rows * row);
            shape[0] = rows;
        }
        let from = data.len();
        data.extend(bytes);
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [from, data.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(to.join("model.safetensors"), file).expect("a file can be written");
    to
}

/// A target and a draft model, with a budget that does not depend on the clock.
fn settings(folder: &TempDir, model: &Path, draft: &Path, temperature: f32) -> Settings {
    let mut settings = Settings::default();
    settings.model.path = Some(model.to_owned());
    settings.model.ctx_size = Some(128);
    settings.speculation.model_draft = vec![draft.to_owned()];
    settings.speculation.spec_type = "draft,random".parse().expect("it is well-formed");
    settings.speculation.budget = Budget::Fixed;
    settings.speculation.verify = Promise::Rejection;
    settings.speculation.costs = Some(folder.path().join("costs.json"));
    settings.sampling.tokens_max = 24.into();
    settings.sampling.temperature = Some(temperature);
    settings.sampling.seed = Some(3);
    settings
}

/// Tokens with the bits of their log-probabilities, how many drafted tokens were accepted, and the notes.
fn text(settings: &Settings, drafters: bool) -> (Vec<(u32, u32)>, usize, Vec<String>) {
    let mut generator = Generator::open(settings).expect("the models open");
    let mut request = generator.request("once upon a time, there was a").expect("there is a tokenizer");
    request = Request { log_probabilities: true, ..request };
    if !drafters {
        request.drafters.clear();
    }
    let answers = run(&mut generator, &[request]);
    assert_eq!(answers[0].failure, None);
    let bits = answers[0].emitted.iter().map(|e| (e.token, e.log_probability.expect("asked for").to_bits()));
    let accepted = answers[0].stats.drafters.first().map_or(0, |drafter| drafter.accepted);
    // Notes about measured costs are ignored.
    let notes = generator.notes.iter().map(ToString::to_string).filter(|note| !note.starts_with("costs "));
    (bits.collect(), accepted, notes.collect())
}

#[test]
fn rows_without_a_token_are_never_generated_nor_drafted() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let padded = [4096, 100].map(|further| with_rows(folder.path(), VOCABULARY + further));
    for temperature in [0.0, 1.0] {
        for drafters in [false, true] {
            let (expected, _, notes) = text(&settings(&folder, &demo(), &demo(), temperature), drafters);
            assert!(expected.len() > 3 && notes.is_empty(), "{notes:?}");
            for (target, draft) in [(&padded[0], &padded[0]), (&padded[0], &padded[1]), (&padded[1], &demo())] {
                let (found, accepted, notes) = text(&settings(&folder, target, draft, temperature), drafters);
                assert_eq!(found, expected, "{} with {}", target.display(), draft.display());
                // Padding does not change the draft model's probabilities, which equal the target's.
                assert!(!drafters || accepted > 3, "{} with {}: {accepted}", target.display(), draft.display());
                let line = format!(
                    "{}: the network has 12288 tokens and its tokenizer 8192; the others are never written",
                    padded[0].display()
                );
                assert_eq!(notes, if target == &padded[0] { vec![line] } else { Vec::new() });
            }
        }
    }
}

#[test]
fn a_vocabulary_larger_than_the_network_is_refused_where_it_is_used() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let model = with_rows(folder.path(), 8000);
    let mut generator = Generator::open(&settings(&folder, &model, &model, 0.0)).expect("it can be used");
    let tokenizer = generator.prompter.tokenizer.clone().expect("it has one");
    let (good, beyond) = ("the dog", tokenizer.decode(&[8100], false));
    assert!(tokenizer.encode(&beyond, false).expect("it is text").contains(&8100), "{beyond:?}");
    let requests = [good, &beyond].map(|prompt| generator.request(prompt).expect("there is a tokenizer"));
    let answers = run(&mut generator, &requests);
    assert_eq!(answers[0].failure, None);
    let failure = answers[1].failure.as_deref().expect("it has no row");
    assert!(failure.contains("expected a number below 8000 (the vocabulary), found 8100"), "{failure}");
}
