//! `bench generate --report`: the folder is complete, needs no network, and never replaces other files.

use serde_json::Value;

use crate::{file, run, words};

const PROMPTS: &str = r#"{"category": "story", "prompt": "once upon a time there was"}
{"category": "sum", "prompt": "a robe takes 2 bolts of blue fiber and half that much"}
"#;

#[test]
fn a_report_is_complete_and_self_contained() {
    let (folder, prompts) = file("prompts.jsonl", PROMPTS);
    let report = folder.path().join("report");
    let line = format!(
        "bench generate --prompts {prompts} -s 5 -n 16 --temp 0 --repeat 2 --budget fixed --spec-type draft,lookup \
         --report {}",
        report.display()
    );
    run(&words(&line)).ok();
    let read = |name: &str| std::fs::read(report.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let text = |name: &str| String::from_utf8(read(name)).expect("text is UTF-8");
    let page = text("index.html");
    for name in ["speedup", "timeline", "depth", "cost", "first"] {
        assert!(text(&format!("{name}.svg")).contains("<text"), "{name}");
        assert!(page.contains(&format!("{name}.png")), "{name}");
        let png = read(&format!("{name}.png"));
        // An image of one colour would have far fewer bytes.
        assert!(png.starts_with(b"\x89PNG") && png.len() > 8000, "{name}: {} bytes", png.len());
    }
    let loads = ["src=", "url(", "@import", "<script", "<link"];
    assert!(loads.iter().all(|load| !page.contains(load)) && page.contains("</svg>"), "{page}");
    let record: Value = serde_json::from_str(&text("record.json")).expect("the record is JSON");
    let rows = record["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3 * 3, "all prompts and two kinds, for plain decoding and two methods");
    let share = |value: &Value| value.as_f64().is_some_and(|share| share > 0.0 && share < 0.5);
    assert!(share(&record["bench_share"]) && rows.iter().all(|row| share(&row["bench_share"])), "{record}");
    assert!(rows.iter().any(|row| row["kind"] == "sum" && row["method"] == "lookup"), "{record}");
    // The record compared with itself.
    let same = run(&["bench", "compare", &report.display().to_string(), &report.display().to_string()]).ok();
    assert!(same.lines().count() == rows.len() && same.lines().all(|line| line.ends_with("no difference")), "{same}");
    // If plain decoding is slower too, the machine or the program is; otherwise the method is.
    let slow = slowed(&record, &|_| true);
    let (_slow, slow) = file("slow.json", &slow.to_string());
    let slower = run(&["bench", "compare", &report.display().to_string(), &slow]).ok();
    let is_plain = |line: &&str| line.contains("plain: speed 0.01");
    assert_eq!(slower.lines().filter(is_plain).count(), 3, "{slower}");
    for line in slower.lines() {
        let expected = if is_plain(&line) { "slower, machine or program" } else { "no difference" };
        assert!(line.ends_with(expected), "{slower}");
    }
    let mut slow = slowed(&record, &|row| row["method"] != "plain");
    (slow["machine"], slow["version"]) = ("another".into(), "0.0.0".into());
    let (_slow, slow) = file("slow.json", &slow.to_string());
    let report_path = report.display().to_string();
    let compare = ["bench", "compare", &report_path, &slow];
    let slower = run(&compare).ok();
    assert_eq!(slower.lines().filter(|line| line.ends_with(" slower")).count(), 6, "{slower}");
    assert!(slower.contains("and \"another\"\n") && slower.contains("different version: "), "{slower}");
    let objects = run(&[&compare[..], &["--json"]].concat());
    assert!(objects.err.contains("different machine: "), "{}", objects.err);
    assert!(objects.ok().lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    // A second report into the same folder needs --force.
    let error = run(&words(&line)).error(1);
    assert!(error.contains("report: is there already") && error.contains("--force"), "{error}");
    run(&words(&format!("{line} --force"))).ok();
}

/// A copy of the record in which some rows took a hundred times as long.
fn slowed(record: &Value, which: &dyn Fn(&Value) -> bool) -> Value {
    let mut slow = record.clone();
    for row in slow["rows"].as_array_mut().expect("rows").iter_mut().filter(|row| which(row)) {
        for group in row["seconds_behind_first_token_by_group"].as_array_mut().expect("groups") {
            for seconds in group.as_array_mut().expect("repetitions") {
                *seconds = (seconds.as_f64().expect("seconds") * 100.0).into();
            }
        }
    }
    slow
}

#[test]
fn an_unwritable_folder_is_found_before_anything_is_read() {
    let (folder, path) = file("a-file", "");
    let line = format!("bench generate --prompts {}/none.txt --report {path}/report", folder.path().display());
    let error = run(&words(&line)).error(1);
    assert!(error.contains("a-file/report") && error.contains("cannot be written"), "{error}");
    assert!(run(&words("bench generate --prompts P --force")).error(2).contains("--report"));
}

#[test]
fn a_run_that_fails_keeps_the_old_report() {
    let (folder, prompts) = file("prompts.jsonl", PROMPTS);
    let (report, none) = (folder.path().join("new/report"), folder.path().join("none.jsonl").display().to_string());
    let line = format!("bench generate -n 4 --temp 0 --repeat 1 --report {}", report.display());
    let failed = |options: &str| run(&words(&format!("{line} {options}"))).error(1);
    assert!(failed(&format!("--prompts {none}")).contains("none.jsonl: cannot be read"));
    assert!(!folder.path().join("new").exists(), "nothing was written");
    // An empty folder is accepted.
    std::fs::create_dir_all(&report).expect("a folder can be made");
    run(&words(&format!("{line} --spec-type lookup --prompts {prompts}"))).ok();
    let record = std::fs::read(report.join("record.json")).expect("a record");
    failed(&format!("--force --prompts {none}"));
    assert_eq!(std::fs::read(report.join("record.json")).expect("a record"), record);
    // Charts without data in the next report are removed: one token has no timeline.
    assert!(report.join("timeline.svg").exists());
    run(&words(&format!("{line} -n 1 --force --spec-type lookup --prompts {prompts}"))).ok();
    assert!(!report.join("timeline.svg").exists() && report.join("index.html").exists());
}

#[test]
fn rows_that_differ_only_in_their_budget_are_labelled_with_it() {
    let (folder, prompts) = file("prompts.txt", "once upon a time there was\na robe takes\n");
    let report = folder.path().join("report");
    let line = format!(
        "bench generate -n 8 --temp 0 --repeat 1 --n-best 3 --spec-type draft --budget fixed:2,fixed:4 \
         --prompts {prompts} --report {}",
        report.display()
    );
    run(&words(&line)).ok();
    let read = |name: &str| std::fs::read_to_string(report.join(name)).unwrap_or_default();
    let record: Value = serde_json::from_str(&read("record.json")).expect("the record is JSON");
    assert_eq!(record["rows"].as_array().map(Vec::len), Some(3), "a file without kinds has no rows of kinds");
    for name in ["speedup.svg", "timeline.svg", "depth.svg"] {
        let svg = read(name);
        assert!(svg.contains("draft, fixed:2") && svg.contains("draft, fixed:4"), "{name}: {svg}");
    }
    assert!(read("speedup.svg").contains("all prompts"));
    let page = read("index.html");
    assert!(page.contains("<th>budget") && page.contains("<td>fixed:2"), "{page}");
    // Six texts of two prompts are named by their prompts.
    assert!(
        ["prompt 1", "prompt 2"].iter().any(|name| page.contains(&format!("How one text grows ({name}"))),
        "{page}"
    );
}

#[test]
fn only_reports_are_overwritten() {
    let (folder, path) = file("notes.txt", "mine");
    let refused = |report_path: &str| {
        let error = run(&words(&format!("bench generate --prompts P --force --report {report_path}"))).error(1);
        assert_eq!(std::fs::read_to_string(&path).expect("the file is there"), "mine");
        error
    };
    assert!(refused(&path).ends_with("notes.txt: expected a folder, found a file"));
    let report_path = folder.path().display().to_string();
    assert!(refused(&report_path).contains("expected an empty folder, or a report's, found files"));
    std::fs::write(folder.path().join("record.json"), "{\"rows\": 1}").expect("a file can be written");
    assert!(refused(&report_path).contains("expected an empty folder, or a report's, found files"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&path, folder.path().join("index.html")).expect("a link can be made");
        assert!(refused(&report_path).ends_with("index.html: expected a file of a report, found a link or a folder"));
    }
}

#[cfg(unix)]
#[test]
fn a_command_line_that_is_not_utf_8_is_accepted() {
    use std::os::unix::ffi::OsStringExt;
    let (folder, prompts) = file("prompts.jsonl", PROMPTS);
    let name = std::ffi::OsString::from_vec(b"report-\xff".to_vec());
    let report = folder.path().join(name);
    let line = format!("bench generate -n 2 --temp 0 --repeat 1 --spec-type lookup --prompts {prompts} --report");
    let mut command = crate::program(folder.path());
    let output = command.args(words(&line)).arg(&report).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(report.join("record.json").exists());
}

#[test]
fn invalid_records_are_named_with_their_line_or_field() {
    let error = |text: &str| {
        let (_folder, path) = file("rows.jsonl", text);
        run(&["bench", "compare", &path, &path]).error(1)
    };
    assert!(error("{\"method\": \"plain\"}\nx\n").contains("rows.jsonl: line 2: expected JSON"));
    assert!(error("{\"method\": 1}").contains("row 1: method: expected a name, found 1"));
    assert!(error("{\"rows\": 7}").contains("rows: expected a list"));
    assert!(error("{\"method\": \"plain\", \"tokens\": 1}").contains("by_group: expected lists of seconds"));
    assert!(error("").contains("expected rows"));
}
