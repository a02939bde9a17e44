//! Benchmarks grammars: milliseconds to compile, microseconds per mask and token, for the given vocabularies.
//!
//! ```text
//! cargo run --release -p foretoken-text --example masks -- models/demo-target x.gguf
//! cargo run --release -p foretoken-text --example masks -- x.gguf --schemas data
//! ```
//!
//! Some hundreds of the schemas (files in the given folder and below) are sampled evenly, and each is followed along a
//! text drawn from its own masks.
//!
//! Each grammar is followed along a matching text, in the vocabulary's tokens, ten times with a new matcher; at every
//! position the mask is computed, and each token is rolled back once, as drafts are, so that no mask is cached. The
//! first run builds the lexer's states, as a request does. The time for the vocabulary's tables is printed separately.

use std::path::Path;
use std::time::Instant;

use foretoken_text::{Grammar, GrammarSource, Tokenizer};

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string"}, "born": {"type": "string",
    "format": "date"}, "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    "size": {"type": "number", "minimum": 0}}, "required": ["name", "born", "tags", "size"],
    "additionalProperties": false}"#;
const OF_SCHEMA: &str =
    r#"{"name":"Ada King, Countess of Lovelace","born":"1815-12-10","tags":["red","blue"],"size":1.5}"#;
const GBNF: &str = r#"root ::= value
value ::= "{" (pair ("," pair)*)? "}" | "[" (value ("," value)*)? "]" | string | number | "true" | "false" | "null"
pair ::= string ":" value
string ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt])* "\""
number ::= "-"? [0-9]+ ("." [0-9]+)?
"#;

fn tokenizer(path: &str) -> Result<Tokenizer, Box<dyn std::error::Error>> {
    let path = Path::new(path);
    Ok(match path.is_dir() {
        true => Tokenizer::from_dir(path)?,
        false => Tokenizer::from_gguf(&path.display().to_string(), &foretoken_weights::gguf::open(path)?.metadata)?,
    })
}

/// The quantile of values.
fn quantile(values: &mut [f64], fraction: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * fraction) as usize]
}

/// Number of schemas that are sampled from a folder, and of tokens that are drawn for each.
const SCHEMAS: usize = 300;
const TOKENS: usize = 100;

/// Benchmarks third-party schemas.
fn schemas(tokenizer: &Tokenizer, folder: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (mut folders, mut files) = (vec![std::path::PathBuf::from(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() { &mut folders } else { &mut files }.push(path);
        }
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let (mut starts, mut again, mut masks) = (Vec::new(), Vec::new(), Vec::new());
    let (mut refused, mut random) = (0, 1u64);
    for file in files.iter().step_by(files.len().div_ceil(SCHEMAS).max(1)) {
        let source = GrammarSource::JsonSchema { schema: std::fs::read_to_string(file)?, flexible: false };
        let started = Instant::now();
        let Ok(grammar) = Grammar::compile(tokenizer, &source) else {
            refused += 1;
            continue;
        };
        starts.push(started.elapsed().as_secs_f64() * 1e3);
        let started = Instant::now();
        Grammar::compile(tokenizer, &source)?;
        again.push(started.elapsed().as_secs_f64() * 1e3);
        let mut matcher = grammar.matcher();
        for _ in 0..TOKENS {
            let started = Instant::now();
            let mask = matcher.allowed()?;
            masks.push(started.elapsed().as_secs_f64() * 1e6);
            let allowed: Vec<u32> = (0..tokenizer.vocabulary_len() as u32).filter(|token| mask.has(*token)).collect();
            if allowed.is_empty() {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let token = allowed[(random >> 33) as usize % allowed.len()];
            // As after a rejected draft, which invalidates the library's cached mask.
            assert!(matcher.accept(token), "a token of the mask");
            matcher.roll_back(1);
            assert!(matcher.accept(token), "a token of the mask");
        }
    }
    println!(
        "{} schemas, {refused} refused: start ms median {:.2}, p99 {:.2}, most {:.2}; again {:.3}; {} masks: us median \
         {:.0}, p90 {:.0}, p99 {:.0}, most {:.0}",
        starts.len(),
        quantile(&mut starts, 0.5),
        quantile(&mut starts, 0.99),
        quantile(&mut starts, 1.0),
        quantile(&mut again, 0.5),
        masks.len(),
        quantile(&mut masks, 0.5),
        quantile(&mut masks, 0.9),
        quantile(&mut masks, 0.99),
        quantile(&mut masks, 1.0),
    );
    Ok(())
}

/// Grammars, each with a matching text.
fn grammars() -> [(&'static str, GrammarSource, &'static str); 4] {
    let schema = GrammarSource::JsonSchema { schema: SCHEMA.into(), flexible: false };
    [
        ("schema", schema, OF_SCHEMA),
        ("any JSON", GrammarSource::JsonSchema { schema: "{}".into(), flexible: false }, OF_SCHEMA),
        (
            "regex",
            GrammarSource::Regex("([A-Za-z ,]+[.!?] )*".into()),
            "Once upon a time, there was a dog. It was red. ",
        ),
        ("GBNF", GrammarSource::Gbnf(GBNF.into()), OF_SCHEMA),
    ]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths: Vec<String> = std::env::args().skip(1).collect();
    let folder = match paths.iter().position(|path| path == "--schemas") {
        Some(at) => paths.split_off(at).into_iter().nth(1),
        None => None,
    };
    for path in paths {
        let tokenizer = tokenizer(&path)?;
        let started = Instant::now();
        Grammar::compile(&tokenizer, &GrammarSource::Choices(vec!["a".into()]))?;
        let tables = started.elapsed().as_secs_f64() * 1e3;
        println!("{path}: {} tokens, tables {tables:.0} ms", tokenizer.vocabulary_len());
        if let Some(folder) = &folder {
            schemas(&tokenizer, folder)?;
            continue;
        }
        println!(
            "{:<10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "form", "start ms", "again ms", "copy us", "mask us", "p99 us", "first us", "token us", "back us"
        );
        for (name, source, text) in &grammars() {
            let mut starts = Vec::new();
            for _ in 0..2 {
                let started = Instant::now();
                Grammar::compile(&tokenizer, source)?;
                starts.push(started.elapsed().as_secs_f64() * 1e3);
            }
            let grammar = Grammar::compile(&tokenizer, source)?;
            let tokens = tokenizer.encode_plain(text)?;
            let (mut copies, mut masks, mut steps, mut backs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for _ in 0..10 {
                let started = Instant::now();
                let mut matcher = grammar.matcher();
                copies.push(started.elapsed().as_secs_f64() * 1e6);
                for token in &tokens {
                    let started = Instant::now();
                    matcher.allowed()?;
                    masks.push(started.elapsed().as_secs_f64() * 1e6);
                    let started = Instant::now();
                    assert!(matcher.accept(*token), "{name}: token {token}");
                    steps.push(started.elapsed().as_secs_f64() * 1e6);
                    let started = Instant::now();
                    matcher.roll_back(1);
                    backs.push(started.elapsed().as_secs_f64() * 1e6);
                    assert!(matcher.accept(*token), "{name}: token {token} again");
                }
            }
            let first = masks[..tokens.len()].iter().copied().fold(0.0, f64::max);
            println!(
                "{name:<10} {:>8.2} {:>8.3} {:>8.0} {:>8.0} {:>8.0} {first:>8.0} {:>8.1} {:>8.1}",
                starts[0],
                starts[1],
                quantile(&mut copies, 0.5),
                quantile(&mut masks, 0.5),
                quantile(&mut masks, 0.99),
                quantile(&mut steps, 0.5),
                quantile(&mut backs, 0.5),
            );
        }
    }
    Ok(())
}
