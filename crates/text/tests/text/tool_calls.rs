//! Tool calls in models' answers: an example of each format, random and hostile answers, and the time they take.
//!
//! Third-party templates, in which formats are recognized, are in the folder that `FORETOKEN_TEMPLATES` names.

use std::time::{Duration, Instant};

use foretoken_text::{AnswerPiece, ChatTemplate, TextStream, ToolCallReader, ToolFormat};
use proptest::prelude::*;

use crate::TARGET;
use crate::tool_answers::ANSWERS;
use crate::tool_probe::{Answer, check, split};

/// Whether the remaining text of an answer is the expected one; `*` is the whole answer without calls at its beginning.
fn left(answer: &Answer, expected: &str) -> bool {
    match expected {
        "*" => answer.pieces.last() == Some(&AnswerPiece::Text(answer.text())),
        text => answer.text() == text,
    }
}

#[test]
fn every_format_is_parsed_in_any_pieces() {
    for (format, text, expected, rest) in ANSWERS {
        let bytes: Vec<u8> = (1..=text.len().min(255) as u8).collect();
        for length in bytes {
            let answer = check(format, text, &[length]);
            let calls: Vec<_> = answer.calls().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
            assert_eq!(calls, expected, "{format:?}: {text}");
            assert!(left(&answer, rest), "{format:?}: {text}: {answer:?}");
        }
    }
    for format in ToolFormat::ALL {
        let of_format = || ANSWERS.iter().filter(|answer| answer.0 == format);
        assert!(of_format().any(|answer| !answer.2.is_empty()), "{format:?} has no example");
    }
}

/// Writes the seeds of the fuzz target: all examples, with the byte that selects their format.
#[test]
#[ignore = "writes files of the repository"]
fn write_the_seeds() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tool_calls");
    std::fs::create_dir_all(&folder).unwrap();
    for (number, (format, text, ..)) in ANSWERS.iter().enumerate() {
        let form = ToolFormat::ALL.iter().position(|other| other == format).unwrap() as u8;
        let seed = [&[form, 0x73], text.as_bytes()].concat();
        std::fs::write(folder.join(format!("{number:02}-{format:?}.txt")), seed).unwrap();
    }
}

#[test]
fn the_model_s_own_ids_are_kept() {
    for text in [
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefghi\"}]",
        "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}",
    ] {
        let answer = check(ToolFormat::Mistral, text, &[1]);
        assert_eq!(answer.calls().next().unwrap().id.as_deref(), Some("abcdefghi"));
    }
    let answer = check(ToolFormat::Mistral, "[TOOL_CALLS]f[CALL_ID]x[ARGS]{}[TOOL_CALLS]g[ARGS]{}", &[3]);
    assert_eq!(answer.calls().map(|call| call.id.as_deref()).collect::<Vec<_>>(), [Some("x"), None]);
}

#[test]
fn a_truncated_call_is_text() {
    // In these formats the text after the last value is not needed.
    for (format, text, expected, _) in ANSWERS.iter().filter(|answer| !answer.2.is_empty()) {
        for end in text.char_indices().map(|(at, _)| at) {
            let answer = check(*format, &text[..end], &[1]);
            let calls: Vec<_> = answer.calls().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
            assert!(expected.starts_with(&calls), "{format:?}: {:?}: {calls:?}", &text[..end]);
        }
    }
}

#[test]
fn text_is_held_back_only_while_it_may_begin_a_call() {
    let mut reader = ToolCallReader::new(ToolFormat::Hermes, &[]);
    let mut push = |text: &str| match reader.push(text).as_slice() {
        [] => String::new(),
        [AnswerPiece::Text(text)] => text.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(push("a < b <"), "a < b ");
    assert_eq!(push("tool_"), "");
    assert_eq!(push("box> <tool_call>"), "<tool_box> ");
    assert_eq!(push(" {\"name\":"), "");
    assert_eq!(push(" x"), "<tool_call> {\"name\": x");
    assert_eq!(push("<tool_call>{\"name\": \"f\", \"arguments\": 5, \"more\": {"), "");
    assert_eq!(push("}}"), "<tool_call>{\"name\": \"f\", \"arguments\": 5, \"more\": {}}");
    assert_eq!(push("<tool_call>{\"name\": \"f\"} "), "");
    assert_eq!(push("x"), "<tool_call>{\"name\": \"f\"} x");
    // An answer in JSON is released at its first field that no call has.
    let mut reader = ToolCallReader::new(ToolFormat::LlamaJson, &[]);
    assert_eq!(reader.push("{\"city\": "), [AnswerPiece::Text("{\"city\": ".into())]);
    assert_eq!(reader.push("{\"name\": \"f\""), [AnswerPiece::Text("{\"name\": \"f\"".into())]);
}

#[test]
fn a_call_is_returned_with_its_last_byte() {
    let mut reader = ToolCallReader::new(ToolFormat::Qwen3Coder, &[]);
    assert_eq!(reader.push("<tool_call><function=f><parameter=a>1</parameter></function></tool_call"), []);
    let pieces = reader.push(">");
    assert!(matches!(pieces.as_slice(), [AnswerPiece::Calls { calls, .. }] if calls[0].arguments == "{\"a\": 1}"));
}

#[test]
fn schemas_decide_what_is_a_string() {
    let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"zip": {"type": "string"}, "count": {"type": "integer"}}}}}]"#;
    let tools: Vec<foretoken_text::Json> = serde_json::from_str(tools).unwrap();
    let mut reader = ToolCallReader::new(ToolFormat::Glm45, &tools);
    let text = "<tool_call>f<arg_key>zip</arg_key><arg_value>00501</arg_value><arg_key>count</arg_key>\
                <arg_value>5</arg_value></tool_call>";
    // Twice, since the reader keeps the tools.
    for _ in 0..2 {
        let answer = Answer::read(&mut reader, std::iter::once(text));
        assert_eq!(answer.calls().next().unwrap().arguments, "{\"zip\": \"00501\", \"count\": 5}");
    }
}

/// Fragments of texts that look like calls.
fn fragment() -> impl Strategy<Value = String> {
    let delimiters: Vec<&str> = ToolFormat::ALL.iter().flat_map(|format| format.delimiters()).copied().collect();
    let others = [
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "\"",
        "'",
        "\\",
        ":",
        ",",
        "=",
        "<",
        ">",
        "\n",
        " ",
        "`",
        "é",
        "<function=f>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "```tool_code\n",
        "```json\n",
        "```",
        "functools",
        "Action:",
        "{\"name\": \"f\", \"arguments\": {}}",
        "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
        "{\"a\": [1, true]}",
        "f(a=1)",
        "f",
        "[f(a='x')]",
        "\"name\"",
        "\"arguments\": ",
        "call:f{a:1}",
        "<｜tool",
        "1e5",
        "-",
        "null",
        ";",
        "print(",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n",
        "<tool_call>f",
        "\\u12",
        "True",
    ];
    let known: Vec<String> = delimiters.into_iter().chain(others).map(str::to_owned).collect();
    let examples: Vec<String> = ANSWERS.iter().map(|answer| answer.1.to_owned()).collect();
    prop_oneof![
        20 => prop::sample::select(known),
        2 => prop::sample::select(examples),
        1 => "\\PC{0,4}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_byte_is_lost_and_pieces_do_not_matter(
        fragments in prop::collection::vec(fragment(), 0..24),
        lengths in prop::collection::vec(0_u8..12, 1..5),
    ) {
        let text = fragments.concat();
        for format in ToolFormat::ALL {
            check(format, &text, &lengths);
        }
    }

    /// An example with one change, which is nearly a call.
    #[test]
    fn changed_calls_lose_no_byte(
        example in prop::sample::select(ANSWERS.to_vec()),
        place in any::<prop::sample::Index>(),
        removed in 0_usize..4,
        put in fragment(),
        lengths in prop::collection::vec(0_u8..12, 1..5),
    ) {
        let (format, text, ..) = example;
        let from = text.floor_char_boundary(place.index(text.len()));
        let to = text.ceil_char_boundary((from + removed).min(text.len()));
        check(format, &format!("{}{put}{}", &text[..from], &text[to..]), &lengths);
    }
}

/// Hostile texts, some of about a million bytes.
fn hostile() -> Vec<(ToolFormat, String)> {
    let mut texts = Vec::new();
    for format in ToolFormat::ALL {
        let example = ANSWERS.iter().find(|answer| answer.0 == format && !answer.2.is_empty()).unwrap().1;
        for repeated in ["<", "[", "{\"a\":\"", "\n", "é", "f(a=["] {
            texts.push((format, repeated.repeat(1_000_000 / repeated.len())));
        }
        // Calls that break off at every position, followed by something that never ends.
        let breaks = example.match_indices(['>', '{', '(', '[', '"', '=', ':', '`']).step_by(2).take(8);
        for (at, _) in breaks {
            texts.push((format, format!("{}{}", &example[..=at], "x<".repeat(500_000))));
        }
        for part in [example, &example[..example.floor_char_boundary(example.len() - 2)]] {
            texts.push((format, part.repeat(1_000_000 / part.len())));
        }
        for delimiter in format.delimiters() {
            texts.push((format, delimiter.repeat(1_000_000 / delimiter.len())));
            texts.push((
                format,
                format!("{example}{}", delimiter[..delimiter.len() - 1].repeat(1_000_000 / delimiter.len())),
            ));
        }
    }
    texts
}

/// A text of a million bytes, in pieces of a few tokens, takes about a tenth of a second; if held text were parsed
/// again with each piece, it would take minutes.
#[test]
fn hostile_texts_take_linear_time() {
    const LIMIT: Duration = Duration::from_secs(5);
    let mut slowest = Duration::ZERO;
    for (format, text) in hostile() {
        let start = Instant::now();
        let begins = || &text[..text.floor_char_boundary(80)];
        let pieces = split(&text, &[16]).inspect(|_| {
            assert!(start.elapsed() < LIMIT, "{format:?}: {}... takes more than {LIMIT:?}", begins());
        });
        let answer = Answer::read(&mut ToolCallReader::new(format, &[]), pieces);
        let time = start.elapsed();
        assert!(answer.written() == text, "{format:?}: {}...: bytes were lost or invented", begins());
        slowest = slowest.max(time);
    }
    println!("slowest: {slowest:?} for a million bytes");
}

#[test]
fn the_depth_of_arguments_is_limited() {
    for (depth, is_call) in [(126, true), (127, false), (100_000, false)] {
        let deep = format!("{}{}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        let text = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"a\": {deep}}}}}</tool_call>");
        let answer = check(ToolFormat::Hermes, &text, &[200]);
        assert_eq!(answer.calls().count() == 1, is_call, "{depth}");
        if let Some(call) = answer.calls().next() {
            assert!(serde_json::from_str::<serde_json::Value>(&call.arguments).is_ok());
        }
    }
}

#[test]
fn formats_are_found_in_templates() {
    let cases = [
        ("{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>", Some(ToolFormat::Hermes)),
        ("<tool_call>{{ messages }}", None),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", Some(ToolFormat::Mistral)),
        ("{% if tools %}<tool_call><function=f><parameter=a>{% endif %}", Some(ToolFormat::Qwen3Coder)),
        ("{% if tools %}<tool_call>f<arg_key>{% endif %}", Some(ToolFormat::Glm45)),
        ("{% if tools %}<|tool_call|>{% endif %}", Some(ToolFormat::Granite)),
        ("{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}", Some(ToolFormat::Phi4Mini)),
        ("{{ tools }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", Some(ToolFormat::DeepSeek)),
        ("{{ tools }}Environment: ipython<|python_tag|>", Some(ToolFormat::LlamaJson)),
        ("{{ tools }}", Some(ToolFormat::Generic)),
        ("{{ messages }}", None),
    ];
    for (source, expected) in cases {
        assert_eq!(ToolFormat::of_source(source), expected, "{source}");
        let template = ChatTemplate::from_source("own", source, "", "").unwrap();
        assert_eq!(ToolFormat::of_template(&template), expected, "{source}");
    }
    // If there are two templates, the one for tools is used.
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"chat_template": [{"name": "default", "template": "{{ messages }}"},
        {"name": "tool_use", "template": "{{ tools }}<tool_call>"}]}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    let template = ChatTemplate::from_dir(folder.path()).unwrap().unwrap();
    assert_eq!(ToolFormat::of_template(&template), Some(ToolFormat::Hermes));
}

#[test]
fn formats_are_found_in_third_party_templates() {
    let Some(folder) = std::env::var_os("FORETOKEN_TEMPLATES") else {
        return println!("skipped: FORETOKEN_TEMPLATES, which names a folder of templates, is not set");
    };
    let known = [
        ("ByteDance-Seed-OSS", Some(ToolFormat::SeedOss)),
        ("CohereForAI-c4ai-command-r-plus-tool_use", Some(ToolFormat::CommandR)),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", Some(ToolFormat::CommandR7b)),
        ("Mistral-Small-3.2-24B-Instruct-2506", Some(ToolFormat::Mistral)),
        ("NVIDIA-Nemotron-Nano-v2", Some(ToolFormat::Nemotron)),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", Some(ToolFormat::Hermes)),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", Some(ToolFormat::Hermes)),
        ("Qwen-QwQ-32B", Some(ToolFormat::Hermes)),
        ("Qwen-Qwen2.5-7B-Instruct", Some(ToolFormat::Hermes)),
        ("Qwen-Qwen3-0.6B", Some(ToolFormat::Hermes)),
        ("Qwen3-Coder", Some(ToolFormat::Qwen3Coder)),
        // These render calls, but no tools.
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", None),
        ("deepseek-ai-DeepSeek-V3.1", None),
        ("fireworks-ai-llama-3-firefunction-v2", Some(ToolFormat::Functools)),
        ("google-gemma-2-2b-it", None),
        ("ibm-granite-granite-3.3-2B-Instruct", Some(ToolFormat::Granite)),
        ("llama-cpp-deepseek-r1", Some(ToolFormat::DeepSeek)),
        ("meetkai-functionary-medium-v3.1", Some(ToolFormat::Qwen3Coder)),
        ("meta-llama-Llama-3.1-8B-Instruct", Some(ToolFormat::LlamaJson)),
        ("meta-llama-Llama-3.2-3B-Instruct", Some(ToolFormat::LlamaJson)),
        ("meta-llama-Llama-3.3-70B-Instruct", Some(ToolFormat::LlamaJson)),
        ("microsoft-Phi-3.5-mini-instruct", None),
        ("mistralai-Mistral-Nemo-Instruct-2407", Some(ToolFormat::Mistral)),
        ("unsloth-mistral-Devstral-Small-2507", Some(ToolFormat::Mistral)),
    ];
    let folder = std::path::PathBuf::from(folder);
    let mut seen = 0;
    for (name, expected) in known {
        if let Ok(source) = std::fs::read_to_string(folder.join(format!("{name}.jinja"))) {
            assert_eq!(ToolFormat::of_source(&source), expected, "{name}");
            seen += 1;
        }
    }
    println!("{seen} of {} templates seen", known.len());
    assert!(seen > 0, "none of the known templates is in the folder");
}

#[test]
fn special_tokens_of_the_format_are_shown() {
    let special = |name: &str| TARGET.special_tokens(&[name]);
    let shown = TARGET.special_tokens(&["<|call|>", "<|end|>", "<|endoftext|>", "<|none|>", "the"]);
    assert_eq!(shown, special("<|call|>"), "no end tokens, no ordinary tokens");
    let text = TARGET.encode("<|user|>a<|call|>b<|end|>", false).unwrap();
    assert_eq!(text.iter().filter(|&&token| TARGET.is_special(token)).count(), 3);
    let read = |mut stream: TextStream| text.iter().map(|&token| stream.push(token)).collect::<String>();
    let stream = || TextStream::new(TARGET.clone(), &[]);
    assert_eq!(read(stream()), "ab");
    assert_eq!(read(stream().show_special(shown.into())), "a<|call|>b");
    assert_eq!(read(stream().skip_special(false)), "<|user|>a<|call|>b<|end|>");
}
