//! What decided a text: the note about settings of the model's own file, and the record of a run.

use foretoken::{Error, Event, Generator, Record};
use serde_json::Value;

use crate::{demo, run, words};

/// A copy of the demo target with this `generation_config.json`.
fn with_file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for entry in std::fs::read_dir(demo("demo-target")).expect("the demo is there") {
        let path = entry.expect("it can be listed").path();
        std::fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("a file can be copied");
    }
    std::fs::write(folder.path().join("generation_config.json"), text).expect("a file can be written");
    let model = folder.path().display().to_string();
    (folder, model)
}

#[test]
fn settings_of_the_models_file_are_noted_in_one_line() {
    let (_folder, model) = with_file(r#"{"temperature": 0.6, "top_k": 20, "min_p": 0.05, "eos_token_id": 0}"#);
    let note =
        format!("note: from {model}/generation_config.json: temperature 0.6, top_k 20; to change: --temp, --top-k");
    let (_prompts, prompts) = crate::file("prompts.txt", "once\n");
    let notes = |line: &str| {
        let ended = crate::run_with(&words(&line.replace("MODEL", &model).replace("PROMPTS", &prompts)), &[], "hi\n");
        assert_eq!(ended.code, 0, "{}", ended.err);
        ended.err.lines().filter(|line| line.contains("generation_config")).map(str::to_string).collect::<Vec<_>>()
    };
    for command in ["generate once -m MODEL", "chat -m MODEL", "check --prompts PROMPTS -m MODEL"] {
        let line = format!("{command} --spec-type none -n 2 -s 1");
        assert_eq!(notes(&line), [note.as_str()], "{line}");
        let one = notes(&format!("{line} --top-k 40"));
        assert!(matches!(one.as_slice(), [one] if one.ends_with("temperature 0.6; to change: --temp")), "{one:?}");
        assert!(notes(&format!("{line} --temp 0.6 --top-k 20")).is_empty());
    }
    assert!(notes("generate once -s 1 -n 2 --spec-type none").is_empty(), "the demo's file has no settings");
    let (_folder, model) = with_file(r#"{"do_sample": false, "repetition_penalty": 1.1}"#);
    let greedy = run(&["generate", "once", "-m", &model, "-n", "2", "-s", "1", "--spec-type", "none"]);
    let expected = "temperature 0 (do_sample false), repetition_penalty 1.1, penalty_window -1; \
        to change: --temp, --repeat-penalty, --repeat-last-n";
    assert!(greedy.err.lines().any(|line| line.ends_with(expected)), "{}", greedy.err);
}

#[test]
fn a_run_under_rejection_is_repeated_from_its_record() {
    let (_folder, model) = with_file(r#"{"temperature": 0.9}"#);
    let (_prompts, prompts) = crate::file("prompts.jsonl", "{\"prompt\": \"once upon\"}\n{\"prompt\": \"the dog\"}\n");
    let costs = tempfile::tempdir().expect("a folder can be made");
    let costs = costs.path().join("costs.json").display().to_string();
    let draft = demo("demo-draft");
    let line =
        ["generate", "-m", &model, "-md", &draft, "--costs", &costs, "--prompts", &prompts, "--json", "-np", "2"];
    let out = run(&[&line[..], &words("--verify rejection -n 20 -c 128 --top-k 30")].concat()).ok();
    let objects: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let record: Record = serde_json::from_value(objects[0]["record"].clone()).expect("a record can be read");
    let decided = &objects[0]["record"]["decided_by"];
    let by = ["sampling.temperature", "sampling.top_k", "sampling.top_p", "speculation.verify", "speculation.budget"];
    assert_eq!(
        by.map(|setting| decided[setting].as_str().unwrap_or("")),
        ["model", "user", "program", "user", "program"]
    );
    let sampling = &objects[0]["record"]["settings"]["sampling"];
    assert_eq!((sampling["temperature"].as_f64(), sampling["top_p"].as_f64()), (Some(0.9), Some(0.95)));
    assert_eq!((objects[0]["request"].as_u64(), objects[1]["request"].as_u64()), (Some(0), Some(1)));
    let mut generator = Generator::repeat(&record).expect("nothing has changed");
    let requests = objects.iter().map(|object| {
        let ids: Vec<u32> = serde_json::from_value(object["prompt_ids"].clone()).expect("token ids");
        generator.request(ids).expect("they are tokens")
    });
    let requests = requests.collect();
    let keep_going = &mut |_: usize, _: &Event| -> Result<bool, Error> { Ok(true) };
    let answers = generator.run(requests, keep_going).expect("they were answered before");
    for (object, answer) in objects.iter().zip(answers) {
        assert_eq!(object["ids"], serde_json::json!(answer.ids()));
    }
}
