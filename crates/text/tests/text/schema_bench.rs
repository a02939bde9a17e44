//! Real-world schemas from JSONSchemaBench (a checkout that `FORETOKEN_JSON_SCHEMA_BENCH` names): an independent
//! validator accepts the texts of all schemas that are accepted.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::walks::{Random, compile, fault, judge, random_text};

/// Number of evenly sampled schemas of each collection, and of random texts for each.
const SCHEMAS: usize = 80;
const TEXTS: usize = 3;
const FREE: usize = 30;
const BOUND: usize = 400;

#[test]
fn random_texts_of_real_schemas_are_valid() {
    let Some(bench) = std::env::var_os("FORETOKEN_JSON_SCHEMA_BENCH") else {
        println!("skipped: schemas are looked for in FORETOKEN_JSON_SCHEMA_BENCH, which is not set");
        return;
    };
    let data = Path::new(&bench).join("data");
    let mut faults = Vec::new();
    let (mut accepted, mut finished, mut truncated, mut judged) = (0, 0, 0, 0);
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    let collections = std::fs::read_dir(&data).unwrap_or_else(|error| panic!("{}: {error}", data.display()));
    for collection in collections.map(|entry| entry.expect("a readable folder").path()).filter(|path| path.is_dir()) {
        let files = std::fs::read_dir(&collection).expect("a readable folder");
        let mut files: Vec<_> = files.map(|file| file.expect("a readable folder").path()).collect();
        files.sort();
        for file in files.iter().step_by(files.len().div_ceil(SCHEMAS)) {
            let text = std::fs::read_to_string(file).expect("a schema can be read");
            let Ok(schema) = serde_json::from_str::<Value>(&text) else { continue };
            let grammar = match compile(&schema) {
                Ok(grammar) => grammar,
                Err(error) => {
                    let why = error.split("expected").skip(1).collect::<Vec<_>>().join("expected");
                    *refused.entry(why.chars().take(80).collect()).or_default() += 1;
                    continue;
                }
            };
            accepted += 1;
            let Some(judge) = judge(&schema) else { continue };
            judged += 1;
            let mut random = Random(accepted);
            for _ in 0..TEXTS {
                let Some(text) = random_text(&grammar, &mut random, FREE, BOUND) else {
                    truncated += 1;
                    continue;
                };
                finished += 1;
                if let Some(error) = fault(&judge, &text) {
                    faults.push(format!("{}: {text}: {error}", file.display()));
                    break;
                }
            }
        }
    }
    println!("{accepted} schemas accepted, {judged} of them by the validator; {finished} texts, {truncated} truncated");
    let mut refused: Vec<(usize, String)> = refused.into_iter().map(|(why, count)| (count, why)).collect();
    refused.sort();
    println!("{} refused:", refused.iter().map(|(count, _)| count).sum::<usize>());
    refused.iter().rev().take(25).for_each(|(count, why)| println!("{count:6} {why}"));
    assert!(faults.is_empty(), "{} texts that are not valid:\n{}", faults.len(), faults.join("\n"));
    assert!(accepted >= 100 && finished >= 100, "expected a checkout of the bench, found {accepted} schemas");
}
