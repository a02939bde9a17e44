//! Bad input: one line that names what is wrong, and the exit code: 2 for the command line, 1 for other errors.

use std::path::Path;

use crate::{demo, file, golden, run, run_with, words};

/// The command line must fail with this error.
#[track_caller]
fn refused(code: i32, line: &str, expected: &str) {
    assert_eq!(run(&words(line)).error(code), expected, "{line}");
}

#[test]
fn values_out_of_range_name_the_option() {
    for (options, expected) in [
        ("--temp -1", "--temp: expected a number from 0 up, found \"-1\""),
        ("--temp warm", "--temp: expected a number from 0 up, found \"warm\""),
        ("--top-p 2", "--top-p: expected a number from 0 to 1, found \"2\""),
        ("--top-k -1", "--top-k: expected a whole number from 0 up, found \"-1\""),
        ("--min-p nan", "--min-p: expected a number from 0 to 1, found \"nan\""),
        ("--typical 0", "--typical: expected a number above 0 and up to 1, found \"0\""),
        ("--repeat-penalty 0", "--repeat-penalty: expected a number above 0, found \"0\""),
        ("--logit-bias 5", "--logit-bias: expected TOKEN_ID+BIAS or TOKEN_ID-BIAS, found \"5\""),
        ("-n -2", "--n-predict: expected a whole number from 0 up, or -1 for no limit, found \"-2\""),
        ("-t 0", "--threads: expected a whole number from 1 to 1024, found \"0\""),
        ("-c -1", "--ctx-size: expected a whole number from 1 up, or 0 for the model's own, found \"-1\""),
        ("-s x", "--seed: expected a whole number from 0 to 2^64 - 1, or -1 for a random one, found \"x\""),
        ("--verify maybe", "--verify: expected one of exact, rejection, block, found \"maybe\""),
        ("--spec-type none,draft", "--spec-type: expected none alone, found \"none,draft\""),
        ("--spec-type lookup,lookup", "--spec-type: expected lookup once, found \"lookup,lookup\""),
        (
            "--spec-type lookup:draft",
            "--spec-type: expected a drafter with a model before the colon (not lookup), found \"lookup:draft\"",
        ),
        (
            "--spec-type draft:jacobi",
            "--spec-type: expected no jacobi behind a colon: it reads guesses from rows of the target's passes, \
             and passes of a draft model have none for it, found \"draft:jacobi\"",
        ),
        ("--spec-type draft,draft", "--spec-type draft+draft: expected 2 draft models (-md, --model-draft), found 1"),
        ("--spec-type draft:draft", "--spec-type draft:draft: expected 2 draft models (-md, --model-draft), found 1"),
        ("--branch-length 0", "--branch-length: expected a whole number from 1 to 256, found \"0\""),
        ("--trie-retrieval newest", "--trie-retrieval: expected one of interpolated, frequency, found \"newest\""),
        (
            "--decoding-mode tree",
            "--decoding-mode: expected hier, par or one, with -input, -output or -mix behind it, found \"tree\"",
        ),
        ("--lookahead-level 2", "--lookahead-level: expected a whole number from 3 to 16, found \"2\""),
        ("--ngram-order 9", "--ngram-order: expected a whole number from 1 to 8, found \"9\""),
        ("--llma-match 65", "--llma-match: expected a whole number from 1 to 64, found \"65\""),
        ("--llma-copy 0", "--llma-copy: expected a whole number from 1 up, found \"0\""),
        ("--draft-p-split 2", "--spec-draft-p-split: expected a number from 0 to 1, found \"2\""),
        (
            "--max-matching-ngram-size 1000000000",
            "--max-matching-ngram-size: expected a whole number from 1 to 64, found \"1000000000\"",
        ),
        ("-ctk q4_0", "--cache-type-k: expected one of f32, f16, bf16, q8_0, found \"q4_0\""),
        ("-ctvd=half", "--cache-type-v-draft: expected one of f32, f16, bf16, q8_0, found \"half\""),
        ("--draft-p-min 1.5", "--spec-draft-p-min: expected a number from 0 to 1, found \"1.5\""),
    ] {
        refused(2, &format!("generate hello {options}"), expected);
    }
    let error = run(&words("generate hello --spec-type magic")).error(2);
    assert!(error.starts_with("--spec-type: expected one of none, auto, draft, exit, lookup"), "{error}");
    assert!(error.ends_with(", found \"magic\""), "{error}");
    refused(2, "generate --prompt-ids 1,x", "--prompt-ids: expected token ids, as 1,2,3, found \"x\"");
    refused(2, "generate hello -p", "--prompt: expected a value, found none");
}

#[test]
fn unknown_and_missing_words_are_usage_errors() {
    for line in ["", "--frobnicate", "generate x --frobnicate", "generate a b", "generate a -p b", "check", "logits"] {
        run(&words(line)).error(2);
    }
    let expected = "--spec-type draft: expected a draft model (-md, --model-draft), found none";
    refused(2, &format!("generate -m {} --spec-type draft x", golden("llama")), expected);
    let error = run_with(&["version"], &[("FORETOKEN_ISA", "sse9")], "").error(2);
    assert!(error.starts_with("FORETOKEN_ISA: expected one of portable") && error.ends_with("\"sse9\""), "{error}");
}

#[test]
fn a_cache_type_that_does_not_fit_the_heads_names_both() {
    let path = golden("llama");
    let expected =
        format!("{path}: --cache-type-v q8_0: expected heads whose width is a multiple of 32, found a width of 8");
    refused(1, &format!("generate -m {path} --prompt-ids 1,2 -n 1 -ctv q8_0"), &expected);
}

#[test]
fn missing_and_invalid_models_are_named() {
    let error = run(&["generate", "-m", "nowhere.gguf", "x"]).error(1);
    assert!(error.starts_with("nowhere.gguf: "), "{error}");
    let (_folder, path) = file("broken.gguf", "GGUF\u{3}\0\0\0");
    assert!(run(&["inspect", &path]).error(1).starts_with(&format!("{path}: ")));
    let (folder, config) = file("config.json", r#"{"model_type": "elman"}"#);
    std::fs::copy(format!("{}/model.safetensors", golden("llama")), folder.path().join("model.safetensors"))
        .expect("a file can be copied");
    let path = folder.path().display().to_string();
    let start = format!("{config}: model_type: expected one of llama, gpt2, qwen2, ");
    for command in [vec!["generate", "x", "-m"], vec!["inspect"], vec!["chat", "-m"]] {
        let error = run(&[command, vec![path.as_str()]].concat()).error(1);
        assert!(error.starts_with(&start) && error.ends_with(", found \"elman\""), "{error}");
    }
}

#[test]
fn a_model_with_invalid_settings_is_refused() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(Path::new(&golden("llama")).join(name), folder.path().join(name)).expect("a file can be copied");
    }
    let generation = folder.path().join("generation_config.json");
    let path = folder.path().display().to_string();
    let line = ["generate", "-m", &path, "--prompt-ids", "1", "--output-ids", "-n", "1", "-s", "1"];
    for (text, expected) in [
        (r#"{"temperature": -0.5}"#, "temperature: expected a number from 0 up, found -0.5"),
        (r#"{"top_k": "many"}"#, "top_k: expected a whole number, found \"many\""),
        (r#"{"eos_token_id": [1, "x"]}"#, "eos_token_id: expected a token or a list of tokens, found [1,\"x\"]"),
    ] {
        std::fs::write(&generation, text).expect("a file can be written");
        assert_eq!(run(&line).error(1), format!("{}: {expected}", generation.display()));
    }
    std::fs::write(&generation, r#"{"temperature": 0.7, "do_sample": false, "eos_token_id": null}"#).expect("written");
    assert!(run(&line).ok().trim().parse::<u32>().is_ok());
}

#[test]
fn a_missing_tokenizer_hints_at_token_ids() {
    let folder = golden("llama");
    const OTHERS: &str = "tokenizer.model, vocab.json with merges.txt, or qwen.tiktoken";
    let missing = format!("{folder}/tokenizer.json: expected a tokenizer (or {OTHERS}), found no such file");
    let hint = format!("{missing}; without one, give --prompt-ids and --output-ids");
    assert_eq!(run(&["generate", "-m", &folder, "hello"]).error(1), hint);
    assert_eq!(run(&["generate", "-m", &folder, "hello", "--output-ids"]).error(1), hint);
    assert_eq!(run(&["generate", "-m", &folder, "--prompt-ids", "1"]).error(1), hint);
    assert_eq!(run(&["chat", "-m", &folder]).error(1), missing);
    let stop = ["generate", "-m", &folder, "--prompt-ids", "1", "--output-ids", "--stop", "x"];
    assert_eq!(run(&stop).error(2), "--stop: expected a model with a tokenizer, found one without");
}

#[test]
fn a_model_without_a_template_cannot_chat() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(Path::new(&demo("demo-draft")).join(name), folder.path().join(name))
            .expect("a file can be copied");
    }
    let path = folder.path().display().to_string();
    let error = run(&["chat", "-m", &path]).error(1);
    assert!(error.starts_with(&format!("{path}: chat template: expected one")), "{error}");
}

#[test]
fn draft_models_of_other_vocabularies_need_tokenizers() {
    let (target, other) = (golden("llama"), demo("demo-draft"));
    let found = "found 8192, and no tokenizers to translate by";
    let error = run(&["generate", "-m", &target, "-md", &other, "--prompt-ids", "1,2", "--output-ids"]).error(1);
    assert!(error.starts_with(&format!("draft model {other}: expected the vocabulary of {target}, ")), "{error}");
    assert!(error.ends_with(found), "{error}");
    let (target, other) = (demo("demo-target"), demo("demo-other-tokenizer"));
    let line = format!("generate -m {target} -md {other} --spec-type draft:lookup x");
    let expected = "--spec-type draft:lookup: expected a draft model with the target's vocabulary outside, found ";
    assert_eq!(run(&words(&line)).error(2), format!("{expected}{other}"));
}

#[test]
fn prompts_that_do_not_fit_are_refused() {
    let error = run(&["generate", "-c", "4", "a prompt of rather many words"]).error(1);
    assert!(error.starts_with("prompt: expected at most 3 tokens (the context is 4), found "), "{error}");
    let folder = golden("llama");
    let line = ["generate", "-m", &folder, "--output-ids", "--prompt-ids"];
    let expected = "prompt: token 1: expected a number below 96 (the vocabulary), found 96";
    assert_eq!(run(&[&line[..], &["3,96"]].concat()).error(1), expected);
    assert_eq!(run(&[&line[..], &["3,96", "-n", "0"]].concat()).error(1), expected);
    let expected = "--logit-bias: expected tokens below 96 (the vocabulary), found 96";
    assert_eq!(run(&[&line[..], &["3", "--logit-bias", "96+1"]].concat()).error(1), expected);
    let expected = "token: expected a number below 96 (the vocabulary), found 96";
    assert_eq!(run(&["logits", "-m", &folder, "--tokens", "1,96", "-o", "never-written"]).error(1), expected);
    let expected = "--tokens: expected at most 2 (the context), found 3";
    assert_eq!(
        run(&["logits", "-m", &folder, "--tokens", "1,2,3", "-c", "2", "-o", "never-written"]).error(1),
        expected
    );
}

#[test]
fn files_of_prompts_name_the_line() {
    for (text, expected) in [
        ("{\"prompt\": \"a\"}\n{\"title\": \"b\"}\n", "line 2: prompt: expected a text or token ids, found none"),
        ("{\"prompt\": [1.5]}\n", "line 1: prompt: expected a text or token ids, found [1.5]"),
        ("", "expected prompts, found none"),
    ] {
        let (_folder, path) = file("prompts.jsonl", text);
        let error = run(&["check", "--prompts", &path, "-n", "1"]).error(1);
        assert_eq!(error, format!("{path}: {expected}"));
    }
    let (_folder, path) = file("prompts.jsonl", "{\"prompt\"\n");
    assert!(
        run(&["check", "--prompts", &path]).error(1).starts_with(&format!("{path}: line 1: expected JSON, found: "))
    );
    assert!(run(&["check", "--prompts", "nowhere"]).error(1).starts_with("nowhere: cannot be read: "));
}

#[test]
fn one_bad_prompt_of_a_list_is_named_and_the_others_are_answered() {
    let (_folder, path) = file("mixed.jsonl", "{\"prompt\": [5, 6]}\n{\"prompt\": [5, 99999]}\n{\"prompt\": [7]}\n");
    for parallel in ["1", "3"] {
        let line =
            ["generate", "--prompts", &path, "-n", "3", "--ignore-eos", "--temp", "0", "--output-ids", "-np", parallel];
        let ended = run(&line);
        let message = "error: prompt 2: prompt: token 1: expected a number below 8192 (the vocabulary), found 99999";
        assert_eq!((ended.code, ended.err.lines().last()), (1, Some(message)), "{}", ended.err);
        let lines: Vec<&str> = ended.out.lines().collect();
        assert_eq!(lines.iter().map(|ids| ids.split(',').count()).collect::<Vec<_>>(), [3, 1, 3], "{lines:?}");
        assert_eq!(lines[1], "");
    }
    let checked = run(&["check", "--prompts", &path, "-n", "3", "-s", "1"]);
    assert_eq!(checked.code, 1);
    assert!(checked.out.contains("prompt 1: ok") && checked.out.contains("prompt 3: ok"), "{}", checked.out);
    assert!(checked.err.ends_with("error: 1 of 3 prompts could not be continued\n"), "{}", checked.err);
}

#[test]
fn a_law_without_a_possible_token_is_an_error() {
    let all: Vec<String> = (0..8192).map(|token: u32| token.to_string()).collect();
    let ended =
        run(&["generate", "--prompt-ids", "5", "--output-ids", "-n", "3", "-s", "1", "--ban-token", &all.join(",")]);
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    assert!(ended.err.contains("error: token 1: expected a possible one, found none"), "{}", ended.err);
}

#[test]
fn invalid_dtypes_and_quantized_files_are_refused() {
    let expected = "expected one of f32, f16, bf16, q8_0, q4_0, q4_k, q6_k, found \"q5_9\"";
    for option in ["--dtype", "--dtype-draft"] {
        refused(2, &format!("generate hello {option} q5_9"), &format!("{option}: {expected}"));
    }
    let (_folder, path) = quantized("q8_0");
    for kind in ["q4_k", "q8_0", "f32"] {
        let expected = format!(
            "{path}: tensor blk.0.attn_q.weight: --dtype {kind}: expected weights in F32, F16 or BF16, found Q8_0"
        );
        refused(1, &format!("generate -m {path} --prompt-ids 1,2 --output-ids -n 1 --dtype {kind}"), &expected);
    }
}

/// Rows of 32 are whole blocks of Q8_0, rows of 72 are not.
#[test]
fn rows_that_fit_no_block_of_a_type_have_another_type() {
    let line = format!("bench pass --json --rows 1 --context 0 --repeat 1 -m {} --dtype q4_k", golden("llama"));
    let found: serde_json::Value = serde_json::from_str(&run(&words(&line)).ok()).expect("it is JSON");
    let products = found[0]["products"].as_object().expect("an object");
    assert_eq!(products.keys().collect::<Vec<_>>(), ["F16", "Q8_0"]);
    assert_eq!(products["F16"]["weights"], 2 * 32 * 72);
}

/// The fixture as a GGUF file of this type.
pub fn quantized(kind: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("model.gguf").display().to_string();
    run(&["quantize", &golden("llama"), &path, "--type", kind]).ok();
    (folder, path)
}

/// Changes the bytes of a tensor in a file.
pub fn change(path: &str, tensor: &str, change: impl FnOnce(&mut [u8])) {
    let mut file = std::fs::read(path).expect("a file can be read");
    let weights = foretoken_weights::gguf::open(path).expect("ours").weights;
    let bytes = &weights.require(tensor).expect("it is there").bytes;
    let at = file.windows(bytes.len()).position(|window| window == &bytes[..]).expect("its bytes are in the file");
    change(&mut file[at..at + bytes.len()]);
    std::fs::write(path, file).expect("a file can be written");
}

/// NaN, infinite or denormal scales give a text, or one line with the failing token.
#[test]
fn invalid_scales_give_a_text_or_one_line() {
    let failure = "token 2: expected logits that are numbers, found NaN";
    for (bits, tensor, all, ends_well) in [
        (0x7e00_u16, "output.weight", true, false),
        (0x7e00, "output.weight", false, false),
        (0x7e00, "blk.0.attn_q.weight", false, false),
        (0x7c00, "blk.1.attn_v.weight", false, false),
        (0x0001, "blk.0.attn_q.weight", true, true),
        (0x0001, "output.weight", true, true),
        (0x7bff, "output.weight", true, true),
    ] {
        let (_folder, path) = quantized("q8_0");
        change(&path, tensor, |bytes| {
            let blocks = bytes.chunks_exact_mut(34);
            let count = if all { blocks.len() } else { 1 };
            blocks.take(count).for_each(|block| block[..2].copy_from_slice(&bits.to_le_bytes()));
        });
        for sampling in ["--temp 0", "--temp 1", "--temp 1 --spec-type lookup"] {
            let line = format!("generate -m {path} --prompt-ids 1,2 --output-ids -n 5 --ignore-eos -s 1 {sampling}");
            let ended = run(&words(&line));
            let what = format!("{bits:x} in {tensor}, {sampling}: {} {}", ended.out, ended.err);
            if ends_well {
                assert_eq!((ended.code, ended.out.trim().split(',').count()), (0, 5), "{what}");
            } else {
                assert_eq!((ended.code, ended.out.trim()), (1, ""), "{what}");
                assert_eq!(ended.err.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{what}");
                assert!(ended.err.contains(failure), "{what}");
            }
        }
    }
}

#[test]
fn truncated_quantized_files_name_the_tensor() {
    let (_folder, path) = quantized("q8_0");
    let file = std::fs::read(&path).expect("a file can be read");
    for missing in [1, 34, 1000] {
        std::fs::write(&path, &file[..file.len() - missing]).expect("a file can be written");
        let error = run(&["generate", "-m", &path, "--prompt-ids", "1", "--output-ids"]).error(1);
        assert!(error.starts_with(&format!("{path}: tensor `")) && error.contains(" bytes inside the "), "{error}");
    }
}
