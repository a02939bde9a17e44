//! What grammars cost: milliseconds to start, microseconds a mask and a token, for the vocabularies that are named.
//!
//! ```text
//! cargo run --release -p foretoken-text --example masks -- models/demo-target x.gguf
//! ```
//!
//! Each form is walked along a text that it has, in the vocabulary's own tokens, with a matcher that is new each time;
//! at every place the mask is made and laid on a row of logits. The first walk of a form meets all that its lexer has
//! not seen yet, as a request does; ten walks are taken. The tables of the vocabulary are printed for themselves.

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

/// The value below which this part of all lies.
fn part(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = GrammarSource::JsonSchema { schema: SCHEMA.into(), flexible: false };
    let forms = [
        ("schema", schema, OF_SCHEMA),
        ("any JSON", GrammarSource::JsonSchema { schema: "{}".into(), flexible: false }, OF_SCHEMA),
        (
            "regex",
            GrammarSource::Regex("([A-Za-z ,]+[.!?] )*".into()),
            "Once upon a time, there was a dog. It was red. ",
        ),
        ("GBNF", GrammarSource::Gbnf(GBNF.into()), OF_SCHEMA),
    ];
    for path in std::env::args().skip(1) {
        let tokenizer = tokenizer(&path)?;
        let started = Instant::now();
        Grammar::compile(&tokenizer, &GrammarSource::Choices(vec!["a".into()]))?;
        let tables = started.elapsed().as_secs_f64() * 1e3;
        println!("{path}: {} tokens, tables {tables:.0} ms", tokenizer.vocabulary_len());
        println!(
            "{:<10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "form", "start ms", "again ms", "copy us", "mask us", "p99 us", "first us", "token us"
        );
        for (name, source, text) in &forms {
            let mut starts = Vec::new();
            for _ in 0..2 {
                let started = Instant::now();
                Grammar::compile(&tokenizer, source)?;
                starts.push(started.elapsed().as_secs_f64() * 1e3);
            }
            let grammar = Grammar::compile(&tokenizer, source)?;
            let tokens = tokenizer.encode_plain(text)?;
            let mut row = vec![0.0f32; tokenizer.vocabulary_len()];
            let (mut copies, mut masks, mut steps) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..10 {
                let started = Instant::now();
                let mut matcher = grammar.matcher();
                copies.push(started.elapsed().as_secs_f64() * 1e6);
                for token in &tokens {
                    let started = Instant::now();
                    matcher.allowed()?.mask(&mut row);
                    masks.push(started.elapsed().as_secs_f64() * 1e6);
                    let started = Instant::now();
                    assert!(matcher.accept(*token), "{name}: token {token}");
                    steps.push(started.elapsed().as_secs_f64() * 1e6);
                }
            }
            let first = masks[..tokens.len()].iter().copied().fold(0.0, f64::max);
            println!(
                "{name:<10} {:>8.2} {:>8.3} {:>8.0} {:>8.0} {:>8.0} {first:>8.0} {:>8.1}",
                starts[0],
                starts[1],
                part(&mut copies, 0.5),
                part(&mut masks, 0.5),
                part(&mut masks, 0.99),
                part(&mut steps, 0.5),
            );
        }
    }
    Ok(())
}
