//! Damaged tokenizers: how they are made, and the properties of any of them.
//!
//! Bytes choose a small tokenizer, components that it gets and places of its JSON that are changed, so that most
//! results still have the shape that the library reads. Each is refused in one line or works: texts become tokens or an
//! error, tokens become text, nothing panics. Shared by the fuzz target and the property test.

use foretoken_text::{ChatInput, ChatTemplate, Message, Tokenizer};
use serde_json::{Value, json};

const BASES: [&str; 5] = [
    r#"{"version":"1.0","added_tokens":[{"id":6,"content":"<|end|>","special":true,"single_word":false,"lstrip":false,
    "rstrip":false,"normalized":false}],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel",
    "add_prefix_space":false,
    "trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,
    "trim_offsets":true,"use_regex":true},"model":{"type":"BPE","dropout":null,"unk_token":null,
    "continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,
    "ignore_merges":false,"vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ġa":4,"abab":5},"merges":[["a","b"],["Ġ","a"],["ab",
    "ab"]]}}"#,
    r#"{"version":"1.0","added_tokens":[],"normalizer":{"type":"Prepend","prepend":"▁"},"pre_tokenizer":null,
    "post_processor":null,"decoder":{"type":"ByteFallback"},"model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,
    "byte_fallback":true,"continuing_subword_prefix":"","end_of_word_suffix":"</w>",
    "vocab":{"<unk>":0,"▁":1,"a":2,"<0x62>":3,"▁a":4},"merges":["▁ a"]}}"#,
    r#"{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Metaspace","replacement":"▁",
    "prepend_scheme":"always","split":true},"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always",
    "split":true},"post_processor":null,"model":{"type":"Unigram","unk_id":0,"byte_fallback":false,
    "vocab":[["<unk>",0.0],["▁",-2.0],["a",-3.0],["b",-3.5],["▁a",-1.0]]}}"#,
    r###"{"version":"1.0","added_tokens":[],"normalizer":{"type":"BertNormalizer","clean_text":true,
    "handle_chinese_chars":true,"strip_accents":null,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},
    "post_processor":null,"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece",
    "unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,
    "vocab":{"[UNK]":0,"a":1,"##b":2,"##a":3}}}"###,
    r#"{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},
    "post_processor":null,
    "decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"<unk>":2},"unk_token":"<unk>"}}"#,
];

/// Components of a tokenizer with their field names.
#[rustfmt::skip]
const PARTS: [(&str, &str); 36] = [
    ("decoder", r#"{"type":"BPEDecoder","suffix":"</w>"}"#),
    ("decoder", r#"{"type":"CTC","pad_token":"","word_delimiter_token":"","cleanup":true}"#),
    ("decoder", r#"{"type":"Strip","content":" ","start":1000000000,"stop":1000000000}"#),
    ("decoder", r#"{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":""},
    "content":" "}]}"#),
    ("decoder", r#"{"type":"Replace","pattern":{"Regex":"(a+)+$"},"content":" "}"#),
    ("normalizer", r#"{"type":"Precompiled","precompiled_charsmap":"AAAA"}"#),
    ("normalizer", r#"{"type":"Precompiled","precompiled_charsmap":"/////wAAAAAAAAAA"}"#),
    ("normalizer", r#"{"type":"Precompiled","precompiled_charsmap":"BAAAAAEAAIA="}"#),
    ("normalizer", r#"{"type":"Precompiled","precompiled_charsmap":""}"#),
    ("normalizer", r#"{"type":"Replace","pattern":{"String":""},"content":"aaaa"}"#),
    ("normalizer", r#"{"type":"Replace","pattern":{"Regex":"(a+)+$"},"content":"b"}"#),
    ("normalizer", r#"{"type":"Replace","pattern":{"Regex":""},"content":"b"}"#),
    ("normalizer", r#"{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"},
    {"type":"StripAccents"},{"type":"Nmt"}]}"#),
    ("normalizer", r#"{"type":"Prepend","prepend":""}"#),
    ("normalizer", r#"{"type":"Strip","strip_left":true,"strip_right":true}"#),
    ("normalizer", r#"{"type":"ByteLevel"}"#),
    ("pre_tokenizer", r#"{"type":"Split","pattern":{"Regex":"(a+)+$"},"behavior":"Isolated","invert":false}"#),
    ("pre_tokenizer", r#"{"type":"Split","pattern":{"Regex":"(?:a|aa|b?)*c"},"behavior":"MergedWithPrevious",
    "invert":true}"#),
    ("pre_tokenizer", r#"{"type":"Split","pattern":{"Regex":""},"behavior":"Contiguous","invert":false}"#),
    ("pre_tokenizer", r#"{"type":"Split","pattern":{"String":""},"behavior":"Removed","invert":true}"#),
    ("pre_tokenizer", r#"{"type":"Split","pattern":{"Regex":"(?=a)|(?<=b)"},"behavior":"MergedWithNext",
    "invert":false}"#),
    ("pre_tokenizer", r#"{"type":"Split","pattern":{"Regex":"(?<x>\\((?:\\g<x>)*\\))|\\g<x>"},
    "behavior":"Isolated","invert":false}"#),
    ("pre_tokenizer", r#"{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
    {"type":"Punctuation","behavior":"Isolated"}]}"#),
    ("pre_tokenizer", r#"{"type":"FixedLength","length":0}"#),
    ("pre_tokenizer", r#"{"type":"FixedLength","length":18446744073709551615}"#),
    ("pre_tokenizer", r#"{"type":"UnicodeScripts"}"#),
    ("pre_tokenizer", r#"{"type":"CharDelimiterSplit","delimiter":"a"}"#),
    ("pre_tokenizer", r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}"#),
    ("post_processor", r#"{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[X]","type_id":0}},
    {"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{}}"#),
    ("post_processor", r#"{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B","type_id":0}}],"pair":[],
    "special_tokens":{"a":{"id":"a","ids":[9],"tokens":[]}}}"#),
    ("post_processor", r#"{"type":"BertProcessing","sep":["b",1],"cls":["a",4000000000]}"#),
    ("post_processor", r#"{"type":"RobertaProcessing","sep":["b",1],"cls":["a",0],"trim_offsets":true,
    "add_prefix_space":true}"#),
    ("truncation", r#"{"direction":"Right","max_length":0,"strategy":"OnlyFirst","stride":9}"#),
    ("padding", r#"{"strategy":{"Fixed":4000000000},"direction":"Left","pad_to_multiple_of":0,"pad_id":0,
    "pad_type_id":0,"pad_token":"x"}"#),
    ("added_tokens", r#"[{"id":4000000000,"content":"a","special":true,"single_word":true,"lstrip":true,
    "rstrip":true,"normalized":true}]"#),
    ("added_tokens", r#"[{"id":7,"content":"","special":false,"single_word":true,"lstrip":true,"rstrip":true,
    "normalized":true}]"#),
];

const TEXTS: [&str; 7] = [
    "ab ab",
    "",
    "  a\u{301}é\u{0}ab<|end|>b ",
    "中文 \u{1F60A}\u{200D}",
    "((((a)))) 'll 12 345",
    "\n\r\t ",
    "[X]</w>##b▁",
];

/// Choices from bytes; zeros after their end.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn below(&mut self, count: usize) -> usize {
        let [high, low] = [self.byte(), self.byte()];
        usize::from(u16::from_be_bytes([high, low])) % count.max(1)
    }

    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }
}

/// A damaged tokenizer that these bytes choose.
pub fn damaged(data: &[u8]) -> Vec<u8> {
    let mut choices = Choices(data);
    let mut whole: Value = serde_json::from_str(BASES[choices.below(BASES.len())]).expect("the bases are JSON");
    for _ in 0..choices.below(3) {
        let (place, part) = PARTS[choices.below(PARTS.len())];
        whole[place] = serde_json::from_str(part).expect("the parts are JSON");
    }
    for _ in 0..choices.below(4) {
        let mut count = 0;
        walk(&mut whole, &mut |_| count += 1);
        let (chosen, other) = (choices.below(count), choices.below(count));
        let mut copied = Value::Null;
        let mut at = 0;
        walk(&mut whole, &mut |value| {
            if at == other {
                copied = value.clone();
            }
            at += 1;
        });
        let form = choices.byte();
        at = 0;
        walk(&mut whole, &mut |value| {
            if at == chosen {
                change(value, form, copied.clone());
            }
            at += 1;
        });
    }
    let mut bytes = serde_json::to_vec(&whole).expect("values are JSON");
    if choices.byte() > 250 {
        let at = choices.below(bytes.len());
        bytes[at] = choices.byte();
    }
    bytes
}

/// Visits every value, parents first.
fn walk(value: &mut Value, visit: &mut dyn FnMut(&mut Value)) {
    visit(value);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| walk(item, visit)),
        Value::Object(fields) => fields.values_mut().for_each(|item| walk(item, visit)),
        _ => {}
    }
}

fn change(value: &mut Value, form: u8, copied: Value) {
    *value = match (form % 16, &value) {
        (0, _) => Value::Null,
        (1, _) => json!(""),
        (2, _) => json!(4_294_967_295_u64),
        (3, _) => json!(-1),
        (4, _) => json!(0),
        (5, _) => json!([]),
        (6, _) => json!({}),
        (7, _) => json!(1e300),
        (8, _) => json!("(a+)+$"),
        (9, Value::String(text)) => json!(format!("{text}{text}")),
        (10, Value::String(text)) => json!(text.chars().skip(1).collect::<String>()),
        (11, Value::Number(number)) => json!(number.as_i64().unwrap_or(0).wrapping_add(1)),
        (12, Value::Array(items)) => Value::Array(items.iter().chain(items).cloned().collect()),
        (13, Value::Array(items)) => Value::Array(items.iter().skip(1).cloned().collect()),
        (14, Value::Object(fields)) => Value::Object(fields.clone().into_iter().skip(1).collect()),
        _ => copied,
    };
}

/// Reads a damaged tokenizer and uses it, if it is one.
pub fn tokenizers(data: &[u8]) {
    check(&damaged(data));
}

/// Checks the properties for any bytes; returns whether they are a tokenizer.
pub fn check(bytes: &[u8]) -> bool {
    let one_line = |error: &foretoken_text::TextError| {
        let error = error.to_string();
        assert!(error.lines().count() == 1 && error.len() < 3200, "{error}");
    };
    let tokenizer = match Tokenizer::from_json("damaged", bytes, None) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            one_line(&error);
            return false;
        }
    };
    let long = "a".repeat(300) + "!" + &"ab ".repeat(100);
    for text in TEXTS.into_iter().chain([long.as_str()]) {
        for tokens in [tokenizer.encode(text, false), tokenizer.encode(text, true), tokenizer.encode_plain(text)] {
            match tokens {
                Ok(tokens) => {
                    assert!(tokens.len() < 100_000, "{} tokens of {text:?}", tokens.len());
                    let _ = tokenizer.decode(&tokens, false);
                }
                Err(error) => {
                    one_line(&error);
                    // An expression that reaches the limit does so for most texts, and each takes long.
                    if error.to_string().contains("retry-limit") {
                        return true;
                    }
                }
            }
        }
    }
    let template =
        ChatTemplate::from_source("t", "<|end|>{{ messages[0].content }}", "<s>", "</s>").expect("it parses");
    if let Err(error) = template.encode(&tokenizer, &ChatInput::new(&[Message::new("user", "ab<|end|>")], true)) {
        one_line(&error);
    }
    true
}
