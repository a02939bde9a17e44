//! Hostile and damaged tokenizers: each is refused or works, without panics, hangs or unbounded memory.

use foretoken_text::TextError;
use proptest::prelude::*;

use crate::tokenizer_probe::{check, damaged, tokenizers};

/// Peak memory of this process in kilobytes, if the system reports it.
fn peak_kilobytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn damaged_tokenizers_are_refused_or_work(data in prop::collection::vec(any::<u8>(), 0..40)) {
        let begun = std::time::Instant::now();
        tokenizers(&data);
        let took = begun.elapsed();
        prop_assert!(took.as_secs() < 10, "{took:?}: {}", String::from_utf8_lossy(&damaged(&data)));
        let peak = peak_kilobytes().unwrap_or(0);
        prop_assert!(peak < 2 << 20, "{peak} kB: {}", String::from_utf8_lossy(&damaged(&data)));
    }
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: cases(), max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() }
}

/// The number of cases, by default or from `FORETOKEN_HOSTILE_CASES`.
fn cases() -> u32 {
    std::env::var("FORETOKEN_HOSTILE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

#[test]
fn enough_damaged_tokenizers_work() {
    // Otherwise only refusals would be tested.
    let works = (0..=255_u8).filter(|&byte| check(&damaged(&[byte, byte, 0, 1, byte, byte, 0, 1, byte]))).count();
    assert!(works > 30, "{works} of 256");
}

#[test]
fn cases_that_were_found_by_hand() {
    let library = |error: String| error.contains("the library of tokenizers failed");
    let base = String::from_utf8(damaged(&[])).unwrap();
    let with = |from: &str, to: &str| {
        assert!(base.contains(from), "{base}");
        foretoken_text::Tokenizer::from_json("x", base.replace(from, to).as_bytes(), None)
    };
    let error = with("\"id\":6", "\"id\":4000000000").unwrap_err().to_string();
    assert_eq!(error, "x/tokenizer.json: added_tokens: expected numbers of tokens below 16777216, found 4000000000");
    let error = with("\"a\":0", "\"a\":4000000000").unwrap_err().to_string();
    assert_eq!(error, "x/tokenizer.json: model.vocab: expected numbers of tokens below 16777216, found 4000000000");
    let table = r#"{"type":"Sequence","normalizers":[{"type":"Precompiled","precompiled_charsmap":"/////wAA"}]}"#;
    let error = foretoken_text::Tokenizer::from_json("x", with_field(&base, "normalizer", table).as_bytes(), None);
    assert_eq!(
        error.unwrap_err().to_string(),
        "x/tokenizer.json: precompiled_charsmap: expected a trie of at most 6 bytes, as long as the table, found \
         4294967295"
    );
    let catastrophic = r#"{"type":"Split","pattern":{"Regex":"(a+)+$"},"behavior":"Isolated","invert":false}"#;
    let found = with_field(&base, "pre_tokenizer", catastrophic);
    let tokenizer = foretoken_text::Tokenizer::from_json("x", found.as_bytes(), None).unwrap();
    let error = tokenizer.encode(&("a".repeat(60) + "!"), false).unwrap_err().to_string();
    assert!(library(error.clone()), "{error}");
}

#[test]
fn the_backtracking_of_a_whole_search_is_limited() {
    // Each position of a run of a stays below its limit, and nothing is found: minutes without the limit of a search.
    let base = String::from_utf8(damaged(&[])).unwrap();
    let splits = r#"{"type":"Split","pattern":{"Regex":"(a+)+$"},"behavior":"Isolated","invert":false}"#;
    let found = with_field(&base, "pre_tokenizer", splits);
    let tokenizer = foretoken_text::Tokenizer::from_json("x", found.as_bytes(), None).unwrap();
    let begin = std::time::Instant::now();
    let error = tokenizer.encode(&("a".repeat(20) + "!").repeat(10_000), false).unwrap_err().to_string();
    assert!(error.contains("the library of tokenizers failed"), "{error}");
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}

#[test]
fn components_that_make_a_text_too_long_are_refused() {
    let base = String::from_utf8(damaged(&[])).unwrap();
    let refused = |field: &str, part: &str| {
        let found = with_field(&base, field, part);
        foretoken_text::Tokenizer::from_json("x", found.as_bytes(), None).unwrap_err().to_string()
    };
    let tens = r#"{"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaa"}"#;
    let seven = format!(r#"{{"type":"Sequence","normalizers":[{}]}}"#, [tens; 7].join(","));
    assert_eq!(
        refused("normalizer", &seven),
        "x/tokenizer.json: normalizer: expected at most 4096 bytes for one, found 10000000"
    );
    let ids = vec!["0"; 5000].join(",");
    let frame = format!(
        r#"{{"type":"TemplateProcessing","single":[{{"SpecialToken":{{"id":"a","type_id":0}}}},
        {{"Sequence":{{"id":"A","type_id":0}}}}],"pair":[],"special_tokens":{{"a":{{"id":"a","ids":[{ids}],
        "tokens":[{}]}}}}}}"#,
        vec!["\"a\""; 5000].join(",")
    );
    assert_eq!(
        refused("post_processor", &frame),
        "x/tokenizer.json: post_processor: expected at most 4096 tokens around a text, found 5000"
    );
    let before = format!(r#"{{"type":"Prepend","prepend":"{}"}}"#, "a".repeat(5000));
    assert_eq!(
        refused("normalizer", &before),
        "x/tokenizer.json: normalizer: expected at most 4096 bytes for one, found 5001"
    );
    let doubles = r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}"#;
    let thirty = format!(r#"{{"type":"Sequence","pretokenizers":[{}]}}"#, [doubles; 30].join(","));
    assert_eq!(
        refused("pre_tokenizer", &thirty),
        "x/tokenizer.json: pre_tokenizer: expected at most 24 bytes for one, found 1073741824"
    );
    let text = r#"{"Sequence":{"id":"A","type_id":0}}"#;
    let twice = [text; 2].join(",");
    for (single, pair) in [(twice.as_str(), text), (text, twice.as_str())] {
        let frame =
            format!(r#"{{"type":"TemplateProcessing","single":[{single}],"pair":[{pair}],"special_tokens":{{}}}}"#);
        assert_eq!(
            refused("post_processor", &frame),
            "x/tokenizer.json: post_processor: expected the text once, found it several times"
        );
    }
    for (field, found) in [("continuing_subword_prefix", "a"), ("end_of_word_suffix", "a")] {
        let model = format!(r#"{{"type":"BPE","vocab":{{}},"merges":[],"{field}":"{}"}}"#, found.repeat(100));
        let expected = format!("x/tokenizer.json: model.{field}: expected at most 16 bytes, found 100");
        assert_eq!(refused("model", &model), expected);
    }
    let words = r###"{"type":"WordPiece","unk_token":"a","continuing_subword_prefix":"##",
        "max_input_chars_per_word":100000,"vocab":{"a":0}}"###;
    assert_eq!(
        refused("model", words),
        "x/tokenizer.json: model.max_input_chars_per_word: expected at most 200 letters, found 100000"
    );
}

#[test]
fn expressions_of_known_models_handle_long_runs() {
    let base = String::from_utf8(damaged(&[])).unwrap();
    // The expressions of Llama 3 and of GPT-2.
    let long = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+\
        |\s+(?!\S)|\s+";
    let short = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    for expression in [long, short] {
        let expression = serde_json::Value::from(expression.replace("\\\n        ", ""));
        let splits = format!(
            r#"{{"type":"Sequence","pretokenizers":[{{"type":"Split","pattern":{{"Regex":{expression}}},
            "behavior":"Isolated","invert":false}},{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,
            "use_regex":false}}]}}"#
        );
        let found = with_field(&base, "pre_tokenizer", &splits);
        let tokenizer = foretoken_text::Tokenizer::from_json("x", found.as_bytes(), None).unwrap();
        for run in [" ", "a", "\n", "7", "\t ", "!", "é"] {
            let tokens = tokenizer.encode(&(run.repeat(500_000) + "b"), false);
            assert!(tokens.is_ok(), "{run:?}: {tokens:?}");
        }
    }
}

#[test]
fn token_ids_are_checked_in_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("vocab.json", r#"{"a": 0, "b": 4000000000}"#);
    write("merges.txt", "");
    let error = foretoken_text::Tokenizer::from_dir(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("b: expected the number of a token, below 16777216, found 4000000000"), "{error}");
    // Also in repeated fields, and in fields with escaped names.
    let base = String::from_utf8(damaged(&[])).unwrap();
    for (from, to) in [
        ("\"a\":0", "\"a\":4000000000,\"a\":0"),
        ("\"id\":6", "\"\\u0069d\":4000000000,\"id\":6"),
        ("\"vocab\":{", "\"vocab\":{\"x\":4000000000},\"vocab\":{"),
    ] {
        assert!(base.contains(from), "{base}");
        let error = foretoken_text::Tokenizer::from_json("x", base.replace(from, to).as_bytes(), None).unwrap_err();
        assert!(error.to_string().contains("expected numbers of tokens below 16777216"), "{error}");
    }
}

/// The same JSON with another value of a field.
fn with_field(whole: &str, field: &str, value: &str) -> String {
    let mut whole: serde_json::Value = serde_json::from_str(whole).unwrap();
    whole[field] = serde_json::from_str(value).unwrap();
    whole.to_string()
}

fn load(json: &str) -> Result<(), TextError> {
    foretoken_text::Tokenizer::from_json("x", json.as_bytes(), None).map(|_| ())
}

/// A normalizer, or a decoder.
fn replace(from: &str, to: &str) -> String {
    format!(r#"{{"type":"Replace","pattern":{{"String":"{from}"}},"content":"{to}"}}"#)
}

/// A pre-tokenizer with an expression.
fn words(pattern: &str) -> String {
    format!(r#"{{"type":"Split","pattern":{{"Regex":"{pattern}"}},"behavior":"Isolated","invert":false}}"#)
}

/// Components that the library would build without limit are checked in the file.
#[test]
fn components_without_limit_are_refused() {
    let base = String::from_utf8(damaged(&[])).unwrap();
    let row = |name: &str, parts: &[String]| format!(r#"{{"type":"Sequence","{name}":[{}]}}"#, parts.join(","));
    let added = |content: &str, flags: [bool; 3]| {
        let [lstrip, rstrip, normalized] = flags;
        format!(
            r#"[{{"id":9,"content":"{content}","single_word":false,"lstrip":{lstrip},"rstrip":{rstrip},
            "normalized":{normalized},"special":false}}]"#
        )
    };
    let tens = row("normalizers", &vec![replace("a", "aaaaaaaaaa"); 10]);
    let many = |part: &str| vec![part.to_string(); 100];
    let strip = row("normalizers", &many(r#"{"type":"StripAccents"}"#));
    let digits = row("pretokenizers", &many(r#"{"type":"Digits","individual_digits":true}"#));
    let frames = row("processors", &many(r#"{"type":"BertProcessing","sep":["a",0],"cls":["a",0]}"#));
    let pieces = |piece: String| format!(r#"{{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["{piece}",-1]]}}"#);
    let dropout = r#"{"type":"BPE","dropout":0.9,"vocab":{"a":0},"merges":[]}"#;
    let merges = r##"{"type":"BPE","continuing_subword_prefix":"#","vocab":{"a":0,"é":1},"merges":[["a","é"]]}"##;
    let cases = [
        ("added_tokens", added(&"a".repeat(600), [false; 3]), "at most 512 bytes, found 600"),
        ("added_tokens", added(" ", [false, true, false]), "expected no white space"),
        ("added_tokens", added("a\\t", [true, false, false]), "expected no white space"),
        ("normalizer", strip, "normalizer: expected at most 64 parts, found 101"),
        ("pre_tokenizer", digits, "pre_tokenizer: expected at most 64 parts, found 101"),
        ("post_processor", frames, "post_processor: expected at most 64 parts, found 101"),
        ("pre_tokenizer", words(&"[\\\\w]".repeat(100_000)), "expected at most 8192 bytes of expressions and texts"),
        ("decoder", replace("a", &"a".repeat(20_000)), "expected at most 8192 bytes of expressions and texts"),
        ("pre_tokenizer", words(&("(".repeat(1000) + "a" + &")".repeat(1000))), "depth limit"),
        ("model", pieces("a".repeat(100_000)), "model.vocab: expected pieces of at most 256 bytes, found 100000"),
        ("model", dropout.to_string(), "model.dropout: expected none"),
        ("model", merges.to_string(), "model.merges: expected second parts that begin with"),
    ];
    for (field, part, expected) in cases {
        let begin = std::time::Instant::now();
        let error = load(&with_field(&base, field, &part)).unwrap_err().to_string();
        assert!(error.contains(expected) && error.len() < 500, "{field}: {error}");
        assert!(begin.elapsed().as_secs() < 5, "{field}: {:?}", begin.elapsed());
    }
    // One field makes the other large.
    let both = |normalizer: &str, content: &str, flags: [bool; 3]| {
        let found = with_field(&base, "normalizer", normalizer);
        load(&with_field(&found, "added_tokens", &added(content, flags))).unwrap_err().to_string()
    };
    assert!(both(&tens, "aaaa", [false, false, true]).contains("at most 4096 bytes for one"));
    assert!(both(&replace("x", " "), "x", [false, true, true]).contains("expected no white space"));
    assert!(both(&replace("x", &"y".repeat(400)), "xx", [false, false, true]).contains("when it is normalized"));
    // The library may use the other value of a repeated field.
    let twice = tens.replacen("\"type\":\"Sequence\"", "\"type\":\"NFC\",\"type\":\"Lowercase\"", 1);
    let found = with_field(&base, "normalizer", "\"HERE\"").replace("\"HERE\"", &twice);
    assert!(load(&found).unwrap_err().to_string().contains("expected \"type\" once, found it twice"));
    // Tokens that the configuration adds have the same limits.
    let count = foretoken_text::Tokenizer::from_json("x", base.as_bytes(), None).unwrap().vocabulary_len();
    let config = format!(r#"{{"added_tokens_decoder":{{"{count}":{{"content":"  ","rstrip":true}}}}}}"#);
    let error = foretoken_text::Tokenizer::from_json("x", base.as_bytes(), Some(config.as_bytes())).unwrap_err();
    assert!(error.to_string().contains("expected no white space"), "{error}");
    // A long run of digits is scanned once.
    let begin = std::time::Instant::now();
    load(&with_field(&base, "version", &format!("\"{}\"", "1".repeat(4_000_000)))).unwrap_err();
    assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
}

/// The length of a normalized text is measured if its bound is high.
#[test]
fn a_text_that_would_become_too_long_is_refused() {
    let base = String::from_utf8(damaged(&[])).unwrap();
    let found = with_field(&base, "normalizer", &replace("x", &"y".repeat(400)));
    let tokenizer = foretoken_text::Tokenizer::from_json("x", found.as_bytes(), None).unwrap();
    let (harmless, error) =
        (tokenizer.encode(&"a ".repeat(500_000), false), tokenizer.encode(&"x".repeat(1_000_000), false));
    assert!(!harmless.unwrap().is_empty());
    assert!(error.unwrap_err().to_string().contains("makes at most 268435456 bytes"));
    // It is added to each segment between added tokens.
    let before = format!(r#"{{"type":"Prepend","prepend":"{}"}}"#, "y".repeat(399));
    let found = with_field(&base, "normalizer", &before);
    let mark = r#"[{"id":9,"content":"b","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,
        "special":false}]"#;
    let found = with_field(&found, "added_tokens", mark);
    let tokenizer = foretoken_text::Tokenizer::from_json("x", found.as_bytes(), None).unwrap();
    let error = tokenizer.encode(&"ab".repeat(1_000_000), false).unwrap_err();
    assert!(error.to_string().contains("makes at most 268435456 bytes"), "{error}");
}

/// Expressions that are deep by repetitions, which do not count as groups.
#[test]
fn nested_repetitions_do_not_overflow_the_stack() {
    let base = String::from_utf8(damaged(&[])).unwrap();
    for repetitions in ["{1,2}".repeat(1600), "?+".repeat(4000)] {
        load(&with_field(&base, "pre_tokenizer", &words(&format!("a{repetitions}")))).ok();
    }
}
