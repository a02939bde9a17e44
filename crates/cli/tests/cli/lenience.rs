//! `--lossy-lenience`: refused beside the promises that it would break, and called lossy wherever it shows.

use foretoken::{Event, Generator, Record};
use serde_json::Value;

use crate::{file, run, words};

const STORY: &str = "the cat and the dog and the cat and the";
/// Costs of its own would make drafts depend on the clock.
const LINE: &str = "--spec-type draft --budget fixed --draft-max 4 -n 40";

/// The object of an answer with these options.
fn object(options: &str) -> Value {
    let out = run(&[&["generate", STORY, "--json"], &words(LINE)[..], &words(options)].concat()).ok();
    serde_json::from_str(&out).expect("the line is JSON")
}

#[test]
fn it_is_refused_out_of_its_range_and_beside_what_it_would_break() {
    let range = "--lossy-lenience: expected a number above 0 and up to 1, found \"0\"";
    let beside = "--lossy-lenience 0.5: expected --verify rejection beside it, or --temp 0, since it is lossy, found";
    let (_folder, prompts) = file("prompts.txt", "once\n");
    for (line, code, expected) in [
        ("generate x --lossy-lenience 0", 2, range.to_string()),
        ("generate x --lossy-lenience 1.5", 2, range.replace("\"0\"", "\"1.5\"")),
        ("generate x --lossy-lenience 0.5 --temp 0.8", 2, format!("{beside} exact")),
        ("generate x --lossy-lenience 0.5 --temp 0.8 --verify block", 2, format!("{beside} block")),
        ("serve --lossy-lenience 0.5 --temp 0.8", 2, format!("{beside} exact")),
        (
            "bench generate --prompts PROMPTS --lossy-lenience 0.5 --verify exact,rejection --temp 0,1",
            2,
            format!("{beside} exact"),
        ),
        (
            "bench generate --prompts PROMPTS --lossy-lenience 0.5 --temp 0 --budget oracle",
            2,
            "--budget oracle: expected --lossy-lenience 1, found 0.5".to_string(),
        ),
        (
            "check --prompts PROMPTS --lossy-lenience 0.5 --temp 0",
            2,
            "--lossy-lenience: expected 1, which is lossless, found 0.5".to_string(),
        ),
    ] {
        let found = run(&words(&line.replace("PROMPTS", &prompts))).error(code);
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn one_changes_nothing_and_less_is_lossy() {
    for law in ["--temp 0 --verify block", "--temp 0.9 -s 5 --verify rejection"] {
        let [plain, one, lossy] =
            ["", "--lossy-lenience 1", "--lossy-lenience 0.05"].map(|more| object(&format!("{law} {more}")));
        assert_eq!((&one["ids"], &one["p"], &one["origins"]), (&plain["ids"], &plain["p"], &plain["origins"]), "{law}");
        assert!(one["speculation"]["lossy_lenience"].is_null() && one["timings"]["lossy_lenience"].is_null(), "{law}");
        assert_ne!(lossy["ids"], plain["ids"], "{law}");
        let accepted = |object: &Value| object["speculation"]["mean_accepted_length"].as_f64().expect("a number");
        assert!(accepted(&lossy) > accepted(&plain), "{law}: {} for {}", accepted(&lossy), accepted(&plain));
        for field in ["speculation", "timings"] {
            assert_eq!(lossy[field]["lossy_lenience"], 0.05, "{law}");
        }
        let record = &lossy["record"];
        assert_eq!(record["settings"]["speculation"]["lossy_lenience"], 0.05, "{law}");
        assert_eq!(record["decided_by"]["speculation.lossy_lenience"], "user", "{law}");
    }
}

#[test]
fn it_is_called_lossy_by_notes_statistics_help_and_config() {
    let line = [&["generate", STORY, "-v"], &words(LINE)[..], &words("--temp 0 --lossy-lenience 0.25")].concat();
    let told = run(&line).err;
    assert!(
        told.lines().any(|line| line == "note: --lossy-lenience 0.25: lossy: drafts change the law of the text"),
        "{told}"
    );
    assert!(
        told.lines().any(|line| line.contains(" tokens, ") && line.contains(", lossy (lenience 0.25), ")),
        "{told}"
    );
    let help = run(&words("generate --help")).ok();
    let at = help.find("--lossy-lenience").expect("it is in the help");
    assert!(help[at..].split_whitespace().any(|word| word == "LOSSY:"), "{help}");
    let config: Value = serde_json::from_str(&run(&words("config --json")).ok()).expect("it is JSON");
    assert_eq!(config["settings"]["lossy-lenience"]["value"], "1");
    let plain = run(&words("generate x -v -n 2 --temp 0"));
    assert!(!plain.err.contains("lossy"), "{}", plain.err);
}

#[test]
fn a_lossy_text_is_repeated_from_its_record() {
    let costs = tempfile::tempdir().expect("a folder can be made");
    let costs = costs.path().join("costs.json").display().to_string();
    let first = object(&format!("--temp 0.9 -s 3 --verify rejection --lossy-lenience 0.2 --costs {costs}"));
    let record: Record = serde_json::from_value(first["record"].clone()).expect("a record can be read");
    assert_eq!(record.settings.speculation.lossy_lenience, 0.2);
    let mut generator = Generator::repeat(&record).expect("it opens again");
    let request = generator.request(STORY).expect("a text is a prompt");
    let go_on = &mut |_, _: &Event| Ok::<bool, foretoken::Error>(true);
    let answers = generator.run(vec![request], go_on).expect("it runs");
    assert_eq!(serde_json::json!(answers[0].ids()), first["ids"]);
}
