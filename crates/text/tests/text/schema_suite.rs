//! JSON Schema's official test suite, in a checkout that `FORETOKEN_JSON_SCHEMA_TEST_SUITE` names.
//!
//! A schema may be refused. One that is accepted matches its valid instances and no others, in any order of properties;
//! and an independent validator accepts texts drawn from its masks. Known exceptions are listed in a file beside this
//! one with their reason. A listed case that passes fails the test, so the list only shrinks.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::walks::{Random, compile, fault, judge, matches, random_text};

const KNOWN: &str = include_str!("../schema_suite/known.txt");
/// The drafts, with the value of `$schema`.
const DRAFTS: [(&str, &str); 2] = [
    ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
    ("draft7", "http://json-schema.org/draft-07/schema#"),
];
/// Number of random texts for each schema, of unconstrained tokens, and maximum number of tokens.
const TEXTS: usize = 3;
const FREE: usize = 12;
const BOUND: usize = 120;

/// Files of cases below a folder, sorted.
fn files(folder: &Path, into: &mut Vec<std::path::PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "json") {
            into.push(path);
        }
    }
}

/// Names of properties in the schema's order.
fn names(schema: &Value, into: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Object(properties)) = fields.get("properties") {
                into.extend(properties.keys().cloned());
            }
            fields.values().for_each(|value| names(value, into));
            if let Some(Value::Array(required)) = fields.get("required") {
                into.extend(required.iter().filter_map(Value::as_str).map(str::to_string));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, into)),
        _ => {}
    }
}

/// The same value with its properties in the order of these names and others after them, and integers without a point.
fn ordered(value: &Value, order: &[String]) -> Value {
    match value {
        Value::Object(fields) => {
            let place = |name: &String| order.iter().position(|other| other == name).unwrap_or(order.len());
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| place(name));
            Value::Object(Map::from_iter(fields.into_iter().map(|(name, value)| (name.clone(), ordered(value, order)))))
        }
        Value::Array(items) => items.iter().map(|item| ordered(item, order)).collect(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => (float as i64).into(),
            _ => value.clone(),
        },
        _ => value.clone(),
    }
}

/// The differences to the suite for one schema, each with the reason.
fn differences(schema: &Value, tests: &[Value], seed: u64) -> Option<Vec<(String, &'static str)>> {
    let grammar = compile(schema).ok()?;
    let mut found = Vec::new();
    let mut order = Vec::new();
    names(schema, &mut order);
    for test in tests {
        let (data, is_valid) = (&test["data"], test["valid"].as_bool().expect("a case says it"));
        let accepted = [data.to_string(), ordered(data, &order).to_string()].iter().any(|text| matches(&grammar, text));
        if accepted != is_valid {
            let what = if accepted { "accepted" } else { "refused" };
            found.push((test["description"].as_str().expect("a case has a name").to_string(), what));
        }
    }
    if let Some(judge) = judge(schema) {
        let mut random = Random(seed);
        for _ in 0..TEXTS {
            let Some(text) = random_text(&grammar, &mut random, FREE, BOUND) else { continue };
            if let Some(error) = fault(&judge, &text) {
                println!("{schema}: {text}: {error}");
                found.push(("a random text".to_string(), "written"));
                break;
            }
        }
    }
    Some(found)
}

#[test]
fn schemas_of_the_test_suite_match_its_instances_and_no_others() {
    let Some(suite) = std::env::var_os("FORETOKEN_JSON_SCHEMA_TEST_SUITE") else {
        println!("skipped: cases are looked for in FORETOKEN_JSON_SCHEMA_TEST_SUITE, which is not set");
        return;
    };
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for line in KNOWN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (case, why) = line.rsplit_once(" -- ").unwrap_or_else(|| panic!("{line}: expected a reason"));
        assert!(known.insert(case, why).is_none(), "{case}: expected one line, found another");
    }
    let (mut accepted, mut refused, mut cases, mut new) = (0, 0, 0, Vec::new());
    for (draft, name) in DRAFTS {
        let folder = Path::new(&suite).join("tests").join(draft);
        let mut paths = Vec::new();
        files(&folder, &mut paths);
        assert!(!paths.is_empty(), "{}: expected files of cases, found none", folder.display());
        for path in paths {
            let text = std::fs::read_to_string(&path).expect("a file of the suite can be read");
            let groups: Vec<Value> = serde_json::from_str(&text).expect("a file of the suite is JSON");
            let file = path.strip_prefix(suite.to_string_lossy().as_ref()).unwrap_or(&path).display().to_string();
            let file = file.trim_start_matches('/').trim_start_matches("tests/");
            for (place, group) in groups.iter().enumerate() {
                let mut schema = group["schema"].clone();
                if let Some(fields) = schema.as_object_mut() {
                    fields.entry("$schema").or_insert_with(|| name.into());
                }
                let tests = group["tests"].as_array().expect("a group has cases");
                let Some(found) = differences(&schema, tests, place as u64) else {
                    refused += 1;
                    continue;
                };
                (accepted, cases) = (accepted + 1, cases + tests.len());
                for (test, what) in found {
                    let group = group["description"].as_str().expect("a group has a name");
                    let case = format!("{what}: {file}: {group}: {test}");
                    if known.remove(case.as_str()).is_none() {
                        new.push(case);
                    }
                }
            }
        }
    }
    println!("{accepted} schemas accepted with {cases} cases, {refused} refused");
    assert!(new.is_empty(), "{} differences that are not known:\n{}", new.len(), new.join("\n"));
    let gone: Vec<&str> = known.into_keys().collect();
    assert!(gone.is_empty(), "no difference any more, remove it from the list:\n{}", gone.join("\n"));
    assert!(accepted > 300, "expected most schemas to be accepted, found {accepted}");
}
