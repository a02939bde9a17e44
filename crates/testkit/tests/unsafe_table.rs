//! Tests that the table in `docs/unsafe.md` lists every file with unsafe code, with the number of its uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Collects the sources below a folder, without build outputs.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The number of unsafe blocks, functions, implementations and function types, outside comments.
fn uses(text: &str) -> usize {
    let whats = ["{", "fn", "impl", "extern", "trait"].map(|what| ["unsafe", what].join(" "));
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    code.map(|line| whats.iter().map(|what| line.matches(what.as_str()).count()).sum::<usize>()).sum()
}

#[test]
fn the_table_has_every_use() {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let relative = |path: &Path| path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
    let count = |path: &PathBuf| (relative(path), uses(&std::fs::read_to_string(path).unwrap()));
    let found: BTreeMap<String, usize> = files.iter().map(count).filter(|(_, uses)| *uses > 0).collect();
    let table = std::fs::read_to_string(root().join("docs/unsafe.md")).unwrap();
    let rows = table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let file = cells.next()?.trim_end_matches('`').to_string();
        Some((file, cells.next()?.trim().parse().expect("the number of uses")))
    });
    assert_eq!(rows.collect::<BTreeMap<String, usize>>(), found, "docs/unsafe.md (left) and the sources (right)");
}

#[test]
fn uses_are_counted_outside_comments() {
    let word = "unsafe";
    let text = format!("{word} impl A for B {{}} // {word} {{\nlet x = {word} {{ f() }};\n{word} fn f() {{}}\n");
    assert_eq!(uses(&text), 3);
}
