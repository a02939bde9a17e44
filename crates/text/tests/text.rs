//! Tests of the crate's public API with real vocabularies, real templates, and invalid input.
//!
//! The demo models are part of the repository. Third-party vocabularies and templates are not: tests that need them
//! read the folders `FORETOKEN_TEST_DATA`, `FORETOKEN_VOCABULARIES` (GGUF files with vectors, as in llama.cpp's
//! `models`), `FORETOKEN_TEMPLATES`, `FORETOKEN_SENTENCEPIECE` and `FORETOKEN_TIKTOKEN` (made by scripts in
//! `bench/peers`), and print a line when they are skipped; likewise for grammars in checkouts of other projects
//! (`FORETOKEN_JSON_SCHEMA_TEST_SUITE`, `FORETOKEN_JSON_SCHEMA_BENCH`, `FORETOKEN_LLAMA_CPP`).

#[path = "text/bad_input.rs"]
mod bad_input;
#[path = "text/chat.rs"]
mod chat;
#[path = "text/export.rs"]
mod export;
#[path = "text/grammar_probe.rs"]
mod grammar_probe;
#[path = "text/hostile_grammars.rs"]
mod hostile_grammars;
#[path = "text/hostile_templates.rs"]
mod hostile_templates;
#[path = "text/hostile_tokenizers.rs"]
mod hostile_tokenizers;
#[path = "text/llama_grammars.rs"]
mod llama_grammars;
#[path = "text/random_schemas.rs"]
mod random_schemas;
#[path = "text/round_trip.rs"]
mod round_trip;
#[path = "text/schema_bench.rs"]
mod schema_bench;
#[path = "text/schema_suite.rs"]
mod schema_suite;
#[path = "text/sentencepiece.rs"]
mod sentencepiece;
#[path = "text/template_probe.rs"]
mod template_probe;
#[path = "text/templates.rs"]
mod templates;
#[path = "text/tiktoken.rs"]
mod tiktoken;
#[path = "text/tokenizer_probe.rs"]
mod tokenizer_probe;
#[path = "text/tool_answers.rs"]
mod tool_answers;
#[path = "text/tool_calls.rs"]
mod tool_calls;
#[path = "text/tool_grammars.rs"]
mod tool_grammars;
#[path = "text/tool_probe.rs"]
mod tool_probe;
#[path = "text/transcript.rs"]
mod transcript;
#[path = "text/user_text.rs"]
mod user_text;
#[path = "text/vectors.rs"]
mod vectors;
#[path = "text/walks.rs"]
mod walks;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use foretoken_text::Tokenizer;

/// Byte-level BPE.
static TARGET: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| load("demo-target"));
/// Unigram with byte fallback.
static OTHER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| load("demo-other-tokenizer"));

fn model(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models")).join(name)
}

fn load(name: &str) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_dir(&model(name)).expect("the demo models are in the repository"))
}

/// A file of the test data; if they are not there it prints a line and returns `None`.
fn test_data(file: &str) -> Option<PathBuf> {
    match std::env::var_os("FORETOKEN_TEST_DATA") {
        Some(folder) => Some(Path::new(&folder).join(file)),
        None => {
            println!("skipped: {file} is looked for in FORETOKEN_TEST_DATA, which is not set");
            None
        }
    }
}

fn gguf(path: &Path) -> Tokenizer {
    let file = foretoken_weights::gguf::open(path).expect("the test data are good files");
    Tokenizer::from_gguf(&path.display().to_string(), &file.metadata).expect("the test data are good vocabularies")
}

#[test]
fn everything_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Tokenizer>();
    shared::<foretoken_text::ChatTemplate>();
    shared::<foretoken_text::TextStream>();
    shared::<foretoken_text::StopMatcher>();
    shared::<foretoken_text::TextError>();
}
