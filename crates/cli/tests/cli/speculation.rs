//! Drafters by name: each gives the plain text and reports its statistics.

use serde_json::Value;

use crate::{demo, file, golden, run, run_with, words};

const STORY: &str = "the cat and the dog and the cat and the";

/// All values of `--spec-type`, for the demo pair.
const KINDS: [&str; 24] = [
    "draft",
    "draft:lookup",
    "draft:ngram,lookup --draft-p-split 0.2 --draft-max 9",
    "lookup",
    "lookup --prompt-lookup-candidates 1 --budget threshold",
    "llma",
    "llma --llma-match 2 --llma-copy 3 --budget fixed",
    "draft:llma,llma",
    "trie",
    "trie --decoding-mode par-output --branch-length 3 --decoding-length 5 --trie-capacity 9",
    "suffix",
    "suffix,trie --suffix-num-tokens 5 --suffix-max-tree-depth 3 --suffix-max-spec-factor 1 \
     --suffix-min-token-prob 0.1",
    "ngram",
    "ngram --ngram-branches 3 --ngram-order 3 --ngram-source text --draft-p-split 0.2",
    "ngram --ngram-order 1",
    "jacobi",
    "jacobi,lookup --lookahead-window 2 --lookahead-level 3 --lookahead-guesses 1",
    "random",
    "auto",
    "auto --budget confidence",
    "lookup,draft",
    "draft+ngram",
    "trie,lookup --decoding-mode one",
    "trie --trie-retrieval frequency --branch-length 4 --trie-capacity 20",
];

/// The text of STORY with these options.
fn story(options: &str) -> String {
    run(&[&["generate", STORY, "-n", "24"], words(options).as_slice()].concat()).ok()
}

#[test]
fn every_drafter_gives_the_plain_text() {
    for sampling in ["--temp 0", "--temp 0.8 -s 5"] {
        let plain = story(&format!("{sampling} --spec-type none"));
        for kind in KINDS {
            assert_eq!(story(&format!("{sampling} --spec-type {kind}")), plain, "{sampling} {kind}");
        }
    }
}

#[test]
fn names_of_llama_cpp_are_aliases() {
    let names = |kind: &str| {
        let words = ["generate", STORY, "-n", "2", "-s", "1", "--json", "--spec-type", kind];
        let object: Value = serde_json::from_str(&run(&words).ok()).expect("the line is JSON");
        object["speculation"]["drafters"].as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(",")
    };
    for (alias, name) in
        [("draft-simple", "draft"), ("ngram-simple", "lookup"), ("ngram-cache", "ngram"), ("ngram-mod", "suffix")]
    {
        assert_eq!(names(alias), name, "{alias}");
    }
}

#[test]
fn each_draft_in_spec_type_has_its_own_model() {
    let draft = demo("demo-draft");
    let two = ["generate", STORY, "-n", "24", "--temp", "0", "-v", "-md", &draft, "-md", &draft];
    let plain = story("--temp 0 --spec-type none");
    let both = run(&[&two[..], &["--spec-type", "draft,draft"]].concat());
    assert!(both.err.contains("draft accepted ") && both.err.contains("draft-2 accepted "), "{}", both.err);
    assert_eq!(both.ok(), plain);
    let nested = run(&[&two[..], &["--spec-type", "draft:draft:ngram"]].concat());
    assert!(nested.err.contains("draft:draft:ngram accepted "), "{}", nested.err);
    assert_eq!(nested.ok(), plain);
    let one = run(&[&two[..], &["--spec-type", "draft"]].concat());
    assert!(one.err.contains(&format!("note: --model-draft {draft}: --spec-type has no use for it")), "{}", one.err);
    assert_eq!(one.ok(), plain);
}

#[test]
fn json_has_the_origin_of_every_token() {
    let words = words("-n 40 -s 3 --temp 0.5 --json --budget fixed --spec-type draft,lookup");
    let object: Value =
        serde_json::from_str(&run(&[&["generate", STORY], words.as_slice()].concat()).ok()).expect("the line is JSON");
    let list = |field: &str| object[field].as_array().unwrap_or_else(|| panic!("{field} is a list")).clone();
    let (ids, origins, depths, passes) = (list("ids"), list("origins"), list("depths"), list("passes"));
    assert!([&origins, &depths, &passes, &list("p"), &list("q")].iter().all(|all| all.len() == ids.len()));
    let mut depth = 0;
    for (i, pass) in passes.iter().enumerate() {
        depth = if i > 0 && passes[i - 1] == *pass { depth + 1 } else { 1 };
        let (drafted, p) = (origins[i] != "target", list("p")[i].as_f64().expect("p is a number"));
        assert_eq!(depths[i].as_u64(), Some(if drafted { depth } else { 0 }), "token {i}");
        assert!(p > 0.0 && p <= 1.0 + 1e-6, "token {i}: {p}");
        assert_eq!(list("q")[i].is_f64(), origins[i] == "draft", "token {i}");
        // The target's own token ends a pass.
        assert!(drafted || passes.get(i + 1) != Some(pass), "token {i}");
    }
    let speculation = &object["speculation"];
    assert_eq!(passes.last(), Some(&speculation["passes"]));
    for name in ["draft", "lookup"] {
        let drafter = &speculation["drafters"][name];
        let accepted = origins.iter().filter(|origin| *origin == name).count();
        assert_eq!(drafter["accepted"].as_u64(), Some(accepted as u64), "{name}");
        assert!(drafter["drafting_ms"].as_f64().is_some_and(|time| time > 0.0) && drafter["failures"] == 0, "{name}");
        assert_eq!(drafter["alpha"].is_f64(), name == "draft", "{drafter}");
    }
    let first = speculation["drafters"]["draft"]["acceptance_rate_by_depth"][0].as_f64();
    assert!(first.is_some_and(|rate| rate > 0.0 && rate <= 1.0), "{first:?}");
}

#[test]
fn speed_is_shown_over_the_text_if_asked_for() {
    let found = run(&["generate", STORY, "-n", "64", "--temp", "0", "--spec-type", "none", "--sparkline"]);
    let last = found.err.lines().last().unwrap_or_default();
    assert!(last.starts_with("speed over the text ") && last.contains('█'), "{}", found.err);
    assert!(!run(&["generate", STORY, "-n", "64", "--temp", "0"]).err.contains("speed over the text"));
}

#[test]
fn check_compares_several_drafters_in_one_tree() {
    let (_folder, path) = file("prompts.txt", "the cat and the dog and the cat and\nonce upon a time\n");
    let line = format!("check --prompts {path} -n 16 -s 4 -np 2 --spec-type auto");
    assert!(run(&words(&line)).ok().contains("speculative equals plain"));
}

#[test]
fn phrases_of_a_file_are_completed() {
    let (_folder, path) = file("phrases.txt", "the dog and the cat\n\nonce upon a time\n");
    let plain = story("--temp 0 --spec-type none");
    let words = ["generate", STORY, "-n", "24", "--temp", "0", "--spec-type", "phrases", "-v", "--phrases", &path];
    let found = run(&words);
    assert!(found.err.contains("phrases accepted "), "{}", found.err);
    assert_eq!(found.ok(), plain);
    let missing = run(&["generate", "x", "--spec-type", "phrases"]).error(2);
    assert_eq!(missing, "--spec-type phrases: expected a file of them (--phrases), found none");
    let (_folder, empty) = file("phrases.txt", "\n");
    let error = run(&["generate", "x", "--spec-type", "phrases", "--phrases", &empty]).error(1);
    assert_eq!(error, format!("{empty}: expected phrases of several tokens, found none"));
}

#[test]
fn the_next_run_learns_from_saved_texts() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("texts.ftk").display().to_string();
    // A fixed budget: `auto` decides by measured times how much is drafted.
    let options = words("-n 32 --temp 0 --budget fixed --spec-type trie --json");
    let all = [&["generate", "once upon a time"], &options[..], &["-lcd", &path]].concat();
    let object = || serde_json::from_str::<Value>(&run(&all).ok()).expect("the line is JSON");
    let passes = |object: &Value| object["speculation"]["passes"].as_u64().expect("passes are counted");
    let (first, second) = (object(), object());
    assert_eq!(first["ids"], second["ids"]);
    // A known text is drafted in long chunks, after a few tokens to find it.
    assert!(2 * passes(&second) < passes(&first), "{} and {} passes", passes(&first), passes(&second));
    // The same file as a corpus, which is only read.
    let before = std::fs::read(&path).expect("the file is there");
    let corpus = [&all[..all.len() - 2], &["-lcs", &path]].concat();
    let third: Value = serde_json::from_str(&run(&corpus).ok()).expect("the line is JSON");
    assert_eq!(third["ids"], first["ids"]);
    // By now it has the text twice.
    assert!(passes(&third) <= passes(&second), "{} and {} passes", passes(&second), passes(&third));
    let (_prompts, prompts) = file("prompts.txt", "once upon a time\n");
    let line =
        format!("bench generate --prompts {prompts} -n 32 --temp 0 --budget fixed --spec-type trie --json -lcd {path}");
    let out = run(&words(&line)).ok();
    let row: Value = serde_json::from_str(out.lines().last().expect("a row")).expect("the line is JSON");
    assert!(row["passes"].as_u64().is_some_and(|found| 2 * found < passes(&first)), "{row}");
    assert_eq!(std::fs::read(&path).expect("the file is there"), before);
    // A conversation is saved after every answer.
    let line = format!("chat -n 4 --temp 0 -lcd {path}");
    run_with(&words(&line), &[], "hello\nhello\n").ok();
    assert!(std::fs::metadata(&path).expect("the file is there").len() > before.len() as u64);
}

#[test]
fn a_store_serves_all_drafters_and_is_never_cut() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("texts.ftk").display().to_string();
    let line = format!("-n 32 --temp 0 --ignore-eos --spec-type trie -lcd {path}");
    run(&[&["generate", "once upon a time"], words(&line).as_slice()].concat()).ok();
    let before = std::fs::read(&path).expect("the file is there");
    // Each row of a benchmark learns from the store.
    let (_prompts, prompts) = file("prompts.txt", "once upon a time\n");
    let passes = |texts: &str| {
        let line = format!(
            "bench generate --prompts {prompts} -n 32 --temp 0 --spec-type none,trie,suffix --budget fixed --json \
             {texts}"
        );
        let out = run(&words(&line)).ok();
        let rows = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("the line is JSON"));
        rows.map(|row| row["passes"].as_u64().expect("passes are counted")).collect::<Vec<_>>()
    };
    let (cold, fixed, dynamic) = (passes(""), passes(&format!("-lcs {path}")), passes(&format!("-lcd {path}")));
    assert_eq!(fixed, dynamic);
    assert!(cold[1] == fixed[1] && 2 * fixed[2] < cold[2] && 2 * fixed[3] < cold[3], "{cold:?} {fixed:?}");
    let line = format!("generate x -n 4 -s 1 --spec-type trie -lcd {path} --lookup-cache-tokens 35");
    let error = run(&words(&line)).error(1);
    let expected = format!("{path}: expected at most 35 tokens (--lookup-cache-tokens), found ");
    assert!(error.starts_with(&expected), "{error}");
    assert_eq!(std::fs::read(&path).expect("the file is there"), before);
}

#[test]
fn fixed_costs_make_a_seed_repeat_and_damaged_ones_are_named() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("costs.json").display().to_string();
    let generate =
        |options: &str| run(&[&["generate", STORY], words(&format!("{options} --costs {path}")).as_slice()].concat());
    let options = "-n 24 -s 1 --temp 1 --verify rejection --spec-type draft,suffix";
    let first = generate(options);
    assert!(first.err.contains("was not there and has been measured"), "{}", first.err);
    let first = first.ok();
    let before = std::fs::read_to_string(&path).expect("it was written");
    for _ in 0..2 {
        let found = generate(options);
        assert!(!found.err.contains("note: "), "{}", found.err);
        assert_eq!(found.ok(), first);
    }
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), before);
    // Costs of another machine or model are used with a note.
    std::fs::write(&path, before.replace("demo-target", "another")).expect("it can be written");
    let other = generate(options);
    assert!(other.err.contains(&format!("note: --costs {path}: measured for another")), "{}", other.err);
    assert_eq!(other.ok(), first);
    std::fs::write(&path, "{}").expect("it can be written");
    assert!(generate(options).error(1).starts_with(&format!("{path}: foretoken_costs: expected 2, found null")));
}

#[test]
fn costs_are_saved_and_damaged_ones_are_measured_again() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let cache = folder.path().display().to_string();
    let generate = || run_with(&["generate", STORY, "-n", "24", "--temp", "0"], &[("XDG_CACHE_HOME", &cache)], "");
    let first = generate();
    assert!(!first.err.contains("note: "), "{}", first.err);
    let kept: Vec<_> = std::fs::read_dir(folder.path().join("foretoken")).expect("it is there").flatten().collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    std::fs::write(kept[0].path(), "half a fi").expect("it can be written");
    let found = generate();
    assert!(found.err.contains("measured anew: expected JSON"), "{}", found.err);
    assert_eq!(found.ok(), first.ok());
    assert!(!generate().err.contains("note: "));
    let error = run(&["generate", STORY, "--spec-draft-n-min", "9", "--spec-draft-n-max", "8"]).error(2);
    assert_eq!(error, "--spec-draft-n-min: expected at most --spec-draft-n-max (8), found 9");
    let error = run(&["generate", STORY, "--budget", "fixed", "--spec-draft-n-min", "17"]).error(2);
    assert!(error.starts_with("--spec-draft-n-min: expected at most 16, which"), "{error}");
    let bench = ["bench", "generate", "--prompts", "none", "--budget", "auto,fixed:2", "--spec-draft-n-min", "4"];
    let expected = "--spec-draft-n-min: expected at most the nodes of --budget fixed:2 (2), found 4";
    assert_eq!(run(&bench).error(2), expected);
}

#[test]
fn under_rejection_every_request_has_its_own_random_numbers() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let prompts = folder.path().join("twice.jsonl").display().to_string();
    let lines = format!("{{\"prompt\": \"{STORY}\"}}\n").repeat(2);
    std::fs::write(&prompts, lines).expect("a file can be written");
    for (verify, repeats) in [("exact", true), ("rejection", false), ("block", false)] {
        let path = folder.path().join(verify).display().to_string();
        let base = format!("-n 16 -s 1 --temp 1 --spec-type suffix --budget fixed --verify {verify}");
        let text =
            |options: &str| run(&[&["generate", STORY], words(&format!("{base} {options}")).as_slice()].concat()).ok();
        let first = text("");
        assert_eq!(text(""), first, "{verify}: the same command writes the same text");
        let remembering = format!("-lcd {path}");
        assert_eq!(text(&remembering), first, "{verify}: the store is still empty");
        assert_eq!(text(&remembering) == first, repeats, "{verify}: the next run");
        let both = run(&words(&format!("generate --prompts {prompts} --output-ids {base}"))).ok();
        let both: Vec<&str> = both.lines().collect();
        assert_eq!(both.len(), 2, "{both:?}");
        assert_eq!(both[0] == both[1], repeats, "{verify}: one prompt twice");
    }
}

#[test]
fn files_without_a_drafter_that_uses_them_are_noted() {
    let (_folder, phrases) = file("phrases.txt", "the dog and the cat\n");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("texts.ftk").display().to_string();
    let stderr_of =
        |options: &str| run(&[&["generate", STORY, "-n", "2", "-s", "1"], words(options).as_slice()].concat()).err;
    let no_learner = "no drafter of --spec-type learns from texts of before";
    let texts = format!("note: --lookup-cache-dynamic {path}: {no_learner}");
    let unused = format!("note: --phrases {phrases}: --spec-type has no use for it");
    let files = format!("-lcd {path} --phrases {phrases} --spec-type");
    for (kind, expected) in [
        ("draft", [true, true]),
        ("lookup,phrases", [true, false]),
        ("draft:ngram", [false, true]),
        ("ngram --ngram-source text", [true, true]),
        ("auto", [false, false]),
        ("none", [false, false]),
    ] {
        let err = stderr_of(&format!("{files} {kind}"));
        assert_eq!([err.contains(&texts), err.contains(&unused)], expected, "{kind}: {err}");
    }
    let err = stderr_of(&format!("-lcs {path} --spec-type random"));
    assert!(err.contains(&format!("note: --lookup-cache-static {path}: {no_learner}")), "{err}");
}

#[test]
fn unusable_stores_are_named() {
    let (_folder, path) = file("texts.ftk", "not a store");
    for option in ["-lcs", "-lcd"] {
        let error = run(&["generate", "x", "--spec-type", "trie", option, &path]).error(1);
        assert!(error.starts_with(&format!("{path}: ")), "{error}");
    }
    let error = run(&["generate", "x", "-lcs", "nowhere.ftk"]).error(1);
    assert!(error.starts_with("nowhere.ftk: cannot be read: "), "{error}");
    let line = format!("generate -m {} --prompt-ids 1,2 --output-ids -n 2 -lcd nowhere.ftk", golden("llama"));
    let expected = "--lookup-cache-dynamic: expected a model with a tokenizer, found one without";
    assert_eq!(run(&words(&line)).error(2), expected);
}

#[test]
fn a_draft_model_with_another_vocabulary_is_translated() {
    let (target, other) = (demo("demo-target"), demo("demo-other-tokenizer"));
    let all = [
        "generate",
        STORY,
        "-n",
        "32",
        "-v",
        "--budget",
        "fixed",
        "--spec-type",
        "draft",
        "-m",
        &target,
        "-md",
        &other,
    ];
    for sampling in ["--temp 0", "--temp 0.8 -s 5"] {
        let plain =
            run(&[&["generate", STORY, "-n", "32", "-m", &target, "--spec-type", "none"], words(sampling).as_slice()]
                .concat())
            .ok();
        for options in ["", "--spec-draft-translate uag --target-lookbehind 3", "--spec-draft-translate tli"] {
            let found = run(&[&all[..], &words(sampling), &words(options)].concat());
            assert!(
                found.err.contains("draft accepted ") && !found.err.contains("accepted 0%"),
                "{options}: {}",
                found.err
            );
            assert_eq!(found.ok(), plain, "{sampling} {options}");
        }
    }
    let drawn = run(&[&all[..], &words("--verify rejection -s 5 --json")].concat()).ok();
    let object: Value = serde_json::from_str(&drawn).expect("the line is JSON");
    assert!(object["speculation"]["accepted"].as_u64().is_some_and(|accepted| accepted > 0), "{object}");
    // Only sampled drafts have a q.
    let q = |object: &Value| object["q"].as_array().is_some_and(|all| all.iter().any(Value::is_f64));
    assert!(q(&object), "{object}");
    // Under greedy decoding drafts are translated as text by default, whatever the promise.
    for (options, expected) in
        [("", false), ("--spec-draft-translate uag", false), ("--spec-draft-translate tli", true)]
    {
        let found =
            run(&[&all[..], &words(options), &["--temp", "0", "--verify", "rejection", "--json"]].concat()).ok();
        let object: Value = serde_json::from_str(&found).expect("the line is JSON");
        assert_eq!(q(&object), expected, "{options}: {object}");
    }
}

#[test]
fn a_draft_model_with_other_token_ids_is_translated() {
    // The vocabulary has the same size, but two ids are swapped.
    let folder = tempfile::tempdir().expect("a folder can be made");
    let draft = demo("demo-draft");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{draft}/{name}"), folder.path().join(name)).expect("a file can be copied");
    }
    let text = std::fs::read_to_string(format!("{draft}/tokenizer.json")).expect("the tokenizer is text");
    let mut tokenizer: Value = serde_json::from_str(&text).expect("and JSON");
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("with a vocabulary");
    let (a, b) = (vocabulary["a"].clone(), vocabulary["b"].clone());
    (vocabulary["a"], vocabulary["b"]) = (b, a);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("a file can be written");
    let path = folder.path().display().to_string();
    let words = ["generate", STORY, "-n", "24", "--temp", "0", "-md", &path, "--spec-type"];
    let plain = run(&[&words[..], &["none"]].concat()).ok();
    assert_eq!(run(&[&words[..], &["draft"]].concat()).ok(), plain);
    let error = run(&[&words[..], &["draft:lookup"]].concat()).error(2);
    assert!(error.ends_with(&format!("outside, found {path}")), "{error}");
}

#[test]
fn drafters_have_different_colours() {
    let words = words("-n 48 --temp 0.5 -s 3 --spec-type draft,lookup --budget fixed --show-drafts --color always -v");
    let found = run(&[&["generate", STORY], words.as_slice()].concat());
    let legend = found.err.lines().find(|line| line.starts_with("tokens: ")).unwrap_or_default();
    let colours = [
        "\x1b[38;5;27mthe target's own\x1b[0m",
        "\x1b[38;5;28mdraft, accepted\x1b[0m",
        "\x1b[38;5;130mlookup, accepted\x1b[0m",
    ];
    assert!(colours.iter().all(|colour| legend.contains(colour)), "{legend}");
    assert!(found.err.contains(", alpha "), "{}", found.err);
    let out = found.ok();
    assert!(["\x1b[38;5;28m", "\x1b[38;5;130m", "\x1b[38;5;27m"].iter().all(|colour| out.contains(colour)), "{out}");
}

#[test]
fn the_table_after_a_text_has_a_line_per_token() {
    let line = words("-n 24 --temp 0.5 -s 3 --spec-type draft,lookup --budget fixed");
    let all = [&["generate", STORY], line.as_slice()].concat();
    let plain = run(&all).ok();
    let object = run(&[&all[..], &["--json"]].concat()).ok();
    let object: Value = serde_json::from_str(&object).expect("the line is JSON");
    let out = run(&[&all[..], &["--show-drafts=table"]].concat()).ok();
    let table = out.strip_prefix(&format!("{plain}\n")).unwrap_or_else(|| panic!("{out}"));
    let (head, lines) = table.split_once('\n').expect("it has a head");
    assert_eq!(words(head), ["pass", "depth", "drafter", "p", "q", "token"]);
    let (reliable, lines): (Vec<&str>, Vec<&str>) = lines.lines().partition(|line| line.contains("guesses right, by"));
    assert!(reliable.len() == 2 && reliable[0].starts_with("draft: guesses right, by how many were expected to be:"));
    let lines: Vec<Vec<&str>> = lines.into_iter().map(words).collect();
    assert_eq!(lines.len(), 24);
    for (i, line) in lines.iter().enumerate() {
        let field = |name: &str| object[name][i].to_string().trim_matches('"').to_string();
        assert_eq!([line[0], line[1], line[2]], [field("passes"), field("depths"), field("origins")], "token {i}");
        let close = |shown: &str, field: &Value| match (shown.parse::<f64>(), field.as_f64()) {
            (Ok(shown), Some(exact)) => (shown - exact).abs() <= 6e-5_f64.max(0.5 * exact.min(1e-3)),
            (shown, exact) => shown.is_err() && exact.is_none(),
        };
        assert!(close(line[3], &object["p"][i]) && close(line[4], &object["q"][i]), "token {i}: {line:?}");
    }
    // In a list each text is followed by its table.
    let (_folder, path) = file("prompts.txt", "the cat and\nonce upon\n");
    let out = run(&words(&format!("generate --prompts {path} -n 3 -s 3 --show-drafts=table"))).ok();
    assert_eq!(out.matches("\n\npass  depth  drafter").count(), 2, "{out}");
    let error = run(&["generate", "x", "--show-drafts=tree"]).error(2);
    assert_eq!(error, "--show-drafts: expected one of colours, rejected, table, found \"tree\"");
}
