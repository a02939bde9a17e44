//! Encoder-decoders: a source as text, file or token ids, what is refused, and draft models that read the same source.

use std::path::Path;

use serde_json::{Value, json};

use crate::{demo, file, golden, run, words};

/// A source of the golden networks, whose vocabulary has 64 tokens.
const SOURCE: &str = "9,44,3,17,60,1";

fn output_ids(model: &str, options: &str) -> String {
    let line = format!("generate -m {model} --temp 0 -n 30 --output-ids {options}");
    run(&words(&line)).ok()
}

#[test]
fn drafts_change_no_text_and_prompts_continue_the_output() {
    let model = golden("t5-v1_1");
    let plain = output_ids(&model, &format!("--source-ids {SOURCE} --spec-type none"));
    assert_eq!(plain.trim().split(',').count(), 30);
    let other = output_ids(&model, "--source-ids 9,44,3,17,1 --spec-type none");
    assert_ne!(plain, other);
    let draft = golden("mt5");
    for method in ["lookup", "suffix", &format!("draft -md {draft}"), &format!("draft,suffix -md {draft}")] {
        let found = output_ids(&model, &format!("--source-ids {SOURCE} --spec-type {method}"));
        assert_eq!(found, plain, "{method}");
    }
    // The beginning of the output as a prompt, with and without the token that begins outputs.
    let ids: Vec<&str> = plain.trim().split(',').collect();
    for before in ["", "0,"] {
        let prompt = format!("{before}{}", ids[..10].join(","));
        let line = format!("--source-ids {SOURCE} --spec-type none --prompt-ids {prompt}");
        assert!(output_ids(&model, &line).starts_with(&ids[10..].join(",")), "{before}");
    }
}

/// A golden network in a new folder, with a tokenizer of 64 tokens that adds `</s>` as T5's does: the special tokens,
/// a space and characters.
pub fn with_tokenizer(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let network = Path::new(&golden(name)).to_owned();
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/unigram/tokenizer.json");
    for file in [network.join("config.json"), network.join("model.safetensors"), tokenizer] {
        let to = folder.path().join(file.file_name().expect("a file's name"));
        std::fs::copy(file, to).expect("it can be copied");
    }
    folder
}

#[test]
fn a_text_is_read_with_its_end_and_a_prompt_begins_the_output() {
    let folder = with_tokenizer("t5-v1_1");
    let model = folder.path().display().to_string();
    let ids = |options: &[&str]| {
        let fixed = ["generate", "-m", &model, "--temp", "0", "-n", "12", "--output-ids", "--spec-type", "none"];
        run(&[&fixed[..], options].concat()).ok()
    };
    // A space, "b", "a", a space, "c" and the end.
    let by_ids = ids(&["--source-ids", "3,5,4,3,6,1"]);
    assert_eq!(ids(&["--source", "ba c"]), by_ids);
    let (_folder, path) = file("source.txt", "ba c\n");
    assert_eq!(ids(&["--source-file", &path]), by_ids);
    let begun = ids(&["--source", "ba c", "de"]);
    assert_eq!(begun, ids(&["--source", "ba c", "--prompt-ids", "0,3,7,8"]));
    assert_ne!(begun, by_ids);
    // The prompts of a file are sources, or begin outputs of the source that is given.
    let (_folder, prompts) = file("prompts.txt", "ba c\nab\n");
    let both = ids(&["--prompts", &prompts]);
    assert!(both.starts_with(&by_ids) && both.lines().count() == 2, "{both}");
    let begun = ids(&["--prompts", &prompts, "--source", "ba c"]);
    assert!(begun.ends_with(&ids(&["--source", "ba c", "ab"])), "{begun}");
    let empty = run(&["generate", "-m", &model, "--source", ""]).error(1);
    assert_eq!(empty, "--source: expected a text or tokens, found none");
    let chat = run(&["chat", "-m", &model, "-p", "hello"]).error(1);
    assert!(chat.contains("an encoder-decoder, which reads a source and has no turns"), "{chat}");
}

#[test]
fn sources_that_do_not_fit_are_refused_in_one_line() {
    let model = golden("t5");
    let refused = |options: &str, code: i32| {
        run(&words(&format!("generate -m {model} --output-ids -n 4 --spec-type none {options}"))).error(code)
    };
    assert!(refused("--prompt-ids 0,5", 2).contains("--source: expected what the encoder of"));
    let text = refused("--source abc", 1);
    assert!(text.contains("tokenizer.json: expected a tokenizer"), "{text}");
    assert!(refused("--source-ids 3,64", 1).contains("source: token 1: expected a number below 64"));
    let long = vec!["5"; 41].join(",");
    let too_long = refused(&format!("-c 40 --source-ids {long}"), 1);
    assert!(too_long.contains("source: expected 1 to 40 tokens, found 41"), "{too_long}");
    let empty = run(&["generate", "-m", &model, "--output-ids", "--source", "", "--spec-type", "none"]).error(1);
    assert_eq!(empty, "--source: expected a text or tokens, found none");
    let decoder = golden("llama");
    let with_source =
        run(&words(&format!("generate -m {decoder} --output-ids --source-ids 3 --prompt-ids 5"))).error(2);
    assert!(with_source.starts_with("--source: expected none, since ") && with_source.contains("has no encoder"));
    let cached = refused("--source-ids 3 --prompt-cache /tmp/none", 2);
    assert!(cached.starts_with("--prompt-cache: expected none, since the rows of"), "{cached}");
    let draft =
        run(&words(&format!("generate -m {decoder} --output-ids --prompt-ids 5 --spec-type draft -md {model}")));
    assert!(
        draft.err.contains("has no source for it") || draft.err.contains("expected the vocabulary"),
        "{}",
        draft.err
    );
    let hidden = run(&words(&format!("hidden -m {model} -o /tmp/none --texts /dev/null")));
    assert!(hidden.code != 0, "{}", hidden.out);
}

/// The file has the folder's texts and tokens: of all types in f32, and otherwise those that it has in any form.
#[test]
fn a_written_gguf_file_writes_what_its_folder_writes() {
    let folder = with_tokenizer("t5");
    let model = folder.path().display().to_string();
    let file = |kind: &str| folder.path().join(format!("{kind}.gguf")).display().to_string();
    for kind in ["f32", "bf16", "q8_0"] {
        run(&["quantize", &model, &file(kind), "--type", kind]).ok();
    }
    // As text, as tokens, and with the tokens of the output.
    let of = |model: &str, source: &[&str], more: &str| {
        let fixed = format!("generate -m {model} --temp 0 -n 20 {more}");
        run(&[&words(&fixed)[..], source].concat()).ok()
    };
    let [text, ids] = [["--source", "  ba c\tHi! "], ["--source-ids", SOURCE]];
    for more in ["--spec-type none", "--spec-type none --output-ids", "--spec-type suffix,ngram,trie --output-ids"] {
        assert_eq!(of(&file("f32"), &text, more), of(&model, &text, more), "{more}");
        assert_eq!(of(&file("f32"), &ids, more), of(&model, &ids, more), "{more}");
    }
    for kind in ["bf16", "q8_0"] {
        let plain = of(&file(kind), &text, "--spec-type none --output-ids");
        assert_eq!(of(&file(kind), &text, &format!("--spec-type draft -md {model} --output-ids")), plain, "{kind}");
        assert_eq!(plain.trim().split(',').count(), 20, "{kind}");
    }
    // What files cannot say is refused by its field.
    let other = run(&["quantize", &golden("mt5"), &file("mt5"), "--type", "f32"]).error(1);
    assert!(other.contains("relative_attention_max_distance: expected 128"), "{other}");
}

/// The trained pair, with the first sources of each task of `bench/`: drafts are accepted, and change nothing.
#[test]
fn a_trained_pair_writes_the_text_of_its_target_on_each_task() {
    let [model, draft] = ["target", "draft"].map(|name| demo(&format!("encoder-decoder-{name}.gguf")));
    for task in ["copy", "edit", "summarize", "translate"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../bench/sources-{task}.txt"));
        let sources = std::fs::read_to_string(&path).expect("the sources can be read");
        let first: String = sources.split_inclusive('\n').take(2).collect();
        let (_folder, prompts) = file("sources.txt", &first);
        let answers = |more: &str| -> Vec<Value> {
            let line = format!("generate -m {model} --prompts {prompts} -n 20 --seed 5 --json {more}");
            let out = run(&words(&line)).ok();
            out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
        };
        let ids = |answers: &[Value]| answers.iter().map(|answer| answer["ids"].clone()).collect::<Vec<_>>();
        for law in ["--temp 0", "--temp 1 --top-k 0 --top-p 1 --min-p 0", "--num-beams 3"] {
            let plain = answers(&format!("{law} --spec-type none"));
            assert_eq!(plain.len(), 2, "{task}, {law}");
            // Only draft models draft for beams.
            let methods = if law.contains("beams") { &["draft"][..] } else { &["draft", "lookup", "draft,suffix"] };
            for method in methods {
                let drafted = answers(&format!("{law} --spec-type {method} -md {draft} --budget fixed"));
                assert_eq!(ids(&drafted), ids(&plain), "{task}, {law}, {method}");
                let accepted = |answer: &Value| answer["speculation"]["accepted"].as_u64().unwrap_or(0);
                let all: u64 = drafted.iter().map(accepted).sum();
                assert!(all > 10 || *method == "lookup" || law.contains("beams"), "{task}, {law}, {method}: {all}");
            }
        }
    }
}

#[test]
fn beams_read_a_source() {
    let (model, draft) = (golden("t5-v1_1"), golden("mt5"));
    let search = |more: &str| output_ids(&model, &format!("--source-ids {SOURCE} --num-beams 4 --n-best 3 {more}"));
    let plain = search("--spec-type none");
    assert_eq!(plain.lines().count(), 3, "{plain}");
    assert_eq!(search(&format!("--spec-type draft -md {draft}")), plain);
    assert_ne!(output_ids(&model, "--source-ids 9,44,1 --num-beams 4 --n-best 3 --spec-type none"), plain);
}

/// `--json` has the source where other models have the prompt: its text or its tokens.
#[test]
fn json_has_the_source() {
    let folder = with_tokenizer("t5-v1_1");
    let model = folder.path().display().to_string();
    let (_folder, prompts) = file("prompts.txt", "ba c\nab\n");
    let lines = |options: &[&str]| -> Vec<Value> {
        let fixed = ["generate", "-m", &model, "--temp", "0", "-n", "4", "--json", "--spec-type", "none"];
        let out = run(&[&fixed[..], options].concat()).ok();
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
    };
    let of = |line: &Value| [line["source"].clone(), line["source_ids"].clone(), line["prompt"].clone()];
    let ids = json!([3, 5, 4, 3, 6, 1]);
    let text = &lines(&["--source", "ba c", "de"])[0];
    assert_eq!((of(text), &text["prompt_ids"]), ([json!("ba c"), ids.clone(), json!("de")], &json!([0, 3, 7, 8])));
    assert_eq!(of(&lines(&["--source-ids", "9,1"])[0]), [Value::Null, json!([9, 1]), json!("")]);
    let both = lines(&["--prompts", &prompts]);
    assert_eq!(of(&both[0]), [json!("ba c"), ids, Value::Null]);
    assert_eq!(of(&both[1]), [json!("ab"), json!([3, 4, 5, 1]), Value::Null]);
    let hypotheses = lines(&["--source", "ba c", "--num-beams", "3", "--n-best", "2"]);
    assert_eq!((of(&hypotheses[1])[0].clone(), hypotheses.len()), (json!("ba c"), 2));
    // A file of answers is continued with the same sources, and with no others.
    let answers = folder.path().join("answers.jsonl").display().to_string();
    let resumed = |prompts: &str| {
        let fixed = ["generate", "-m", &model, "--temp", "0", "-n", "4", "--json", "--resume", &answers];
        run(&[&fixed[..], &["--prompts", prompts]].concat())
    };
    resumed(&prompts).ok();
    let whole = std::fs::read_to_string(&answers).expect("answers were written");
    assert_eq!(whole.lines().count(), 2);
    std::fs::write(&answers, &whole[..=whole.find('\n').expect("two lines")]).expect("it can be written");
    resumed(&prompts).ok();
    let again = std::fs::read_to_string(&answers).expect("answers were written");
    let ids = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str::<Value>(line).expect("it is JSON")["ids"].clone()).collect()
    };
    assert_eq!(ids(&again), ids(&whole));
    let (_folder, others) = file("others.txt", "ab\nba c\n");
    let error = resumed(&others).error(1);
    assert!(error.contains("source_ids: expected those that prompt 1 is written for"), "{error}");
}

/// Each prompt of a file is a source; plain and speculative texts are compared.
#[test]
fn check_reads_the_prompts_of_a_file_as_sources() {
    let (_folder, prompts) = file("prompts.jsonl", "{\"prompt\": [9, 44, 3, 1]}\n{\"prompt\": [60, 2, 2, 17, 1]}\n");
    let line = format!(
        "check -m {} --prompts {prompts} -n 20 --temp 0.7 --seed 3 --parallel 2 --spec-type draft,suffix -md {}",
        golden("t5-v1_1"),
        golden("t5")
    );
    let out = run(&words(&line)).ok();
    assert!(out.contains("2 prompts, 40 tokens: speculative equals plain"), "{out}");
}

#[test]
fn inspect_shows_both_halves() {
    let model = golden("t5-v1_1");
    let page = run(&["inspect", &model]).ok();
    for part in ["2 of the encoder, 3 of the decoder", "biases by relative position", "per 1000 of a source"] {
        assert!(page.contains(part), "{page}");
    }
    let object: Value = serde_json::from_str(&run(&["inspect", &model, "--json"]).ok()).expect("it is JSON");
    assert_eq!(object["encoder"], json!({ "layers": 2, "start_token": 0 }));
    let demo: Value = serde_json::from_str(&run(&["inspect", &demo("demo-draft"), "--json"]).ok()).expect("it is JSON");
    assert!(demo["encoder"].is_null());
}

#[test]
fn logits_depend_on_the_source() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("out.safetensors").display().to_string();
    let of = |options: &str| {
        let line = format!("logits -m {} --tokens 0,5,9 -o {path} --force {options}", golden("t5"));
        run(&words(&line)).ok();
        std::fs::read(&path).expect("the file was written")
    };
    let whole = of("--source-ids 9,44,3,1");
    assert!(of("--source-ids 9,44,3,1 --one-by-one") == whole && of("--source-ids 9,44,3,1 -t 1") == whole);
    assert!(of("--source-ids 9,44,4,1") != whole);
    let without = run(&words(&format!("logits -m {} --tokens 0 -o {path} --force", golden("t5")))).error(2);
    assert!(without.starts_with("--source: expected what the encoder of"), "{without}");
}
