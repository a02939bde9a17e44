//! Tests of the code base's rules: dependencies of crates, unsafe code, sizes, module documentation, the one caller of
//! `verify`.
//!
//! Each test prints every offender, so that one run is enough. The dependencies are read from ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Maximum number of lines of a file without its tests.
const FILE_LINES_MAX: usize = 450;
const FUNCTION_LINES_MAX: usize = 70;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file of the repository with this ending, as its path from the root and its text.
fn files(ending: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            // Folders of generated files and of dependencies are skipped.
            if path.is_dir() && !["target", ".git", "corpus", "node_modules"].contains(&name.as_str()) {
                walk(&path, ending, found);
            } else if path.is_file() && name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), ending, &mut found);
    found.sort();
    let name = |path: &Path| path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
    found.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// The part of a source file before its unit tests.
fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

fn none(offenders: &[String]) {
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

/// The lines `a -> b, c` of the block named "arrows" in ARCHITECTURE.md.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let block = text.split("```arrows\n").nth(1).expect("a block of arrows").split("```").next().unwrap();
    let line = |line: &str| {
        let (from, to) = line.split_once("->").expect("from -> to, to");
        let to = to.split(',').map(|to| to.trim().to_string()).filter(|to| !to.is_empty());
        (from.trim().to_string(), to.collect())
    };
    block.lines().map(line).collect()
}

#[test]
fn crates_depend_on_each_other_as_drawn() {
    let mut offenders = Vec::new();
    let drawn = arrows();
    for (name, manifest) in files("Cargo.toml") {
        let Some(name) = name.strip_prefix("crates/").and_then(|name| name.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap();
        let names = dependencies.lines().map(|line| line.split(['.', ' ', '=']).next().unwrap());
        let ours = names.filter_map(|name| (name == "foretoken").then_some(name).or(name.strip_prefix("foretoken-")));
        let found: BTreeSet<String> = ours.map(str::to_string).collect();
        match drawn.get(name) {
            Some(drawn) if *drawn == found => {}
            drawn => offenders.push(format!("{name}: expected {drawn:?} as in ARCHITECTURE.md, found {found:?}")),
        }
        let allowed = match name {
            "speculation" => 0,
            "drafters" => 1,
            _ => usize::MAX,
        };
        if dependencies.lines().filter(|line| line.contains('=')).count() > allowed {
            offenders.push(format!("{name} depends on more than {allowed} crates"));
        }
    }
    none(&offenders);
}

#[test]
fn unsafe_code_is_in_three_places_and_has_reasons() {
    let mut offenders = Vec::new();
    for (name, text) in files(".rs") {
        let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
        let blocks = ["{", "fn", "impl", "extern"].map(|what| ["unsafe", what].join(" "));
        let uses = code.filter(|line| blocks.iter().any(|block| line.contains(block))).count();
        let places = ["crates/kernels/", "crates/weights/src/map", "crates/text/src/tokenizer/expressions.rs"];
        let allowed = places.iter().any(|place| name.starts_with(place));
        if uses > 0 && !allowed {
            offenders.push(format!("{name}: unsafe code"));
        }
        let reasons = text.matches("SAFETY").count() + text.matches("# Safety").count();
        if allowed && uses > 0 && reasons == 0 {
            offenders.push(format!("{name}: {uses} lines with unsafe, no reason"));
        }
        let library = name.starts_with("crates/") && name.ends_with("/src/lib.rs");
        let exempt = ["crates/kernels/", "crates/weights/", "crates/text/"].iter().any(|one| name.starts_with(one));
        if library && !exempt && !text.contains("#![forbid(unsafe_code)]") {
            offenders.push(format!("{name}: does not forbid unsafe code"));
        }
    }
    none(&offenders);
}

#[test]
fn files_begin_with_documentation_and_are_short() {
    let mut offenders = Vec::new();
    for (name, text) in files(".rs") {
        if !text.starts_with("//!") {
            offenders.push(format!("{name}: does not begin with a paragraph"));
        }
        let lines = without_tests(&text).lines().count();
        if lines > FILE_LINES_MAX {
            offenders.push(format!("{name}: {lines} lines"));
        }
        if ["utils", "util", "common", "helpers", "misc"].iter().any(|word| name.ends_with(&format!("/{word}.rs"))) {
            offenders.push(format!("{name}: a name that says nothing"));
        }
    }
    none(&offenders);
}

/// Maximum number of columns of a line.
const COLUMNS_MAX: usize = 120;

#[test]
fn lines_are_at_most_120_columns() {
    let mut offenders = Vec::new();
    for ending in [".rs", ".py", ".md"] {
        for (name, text) in files(ending) {
            let mut in_code = false;
            for (i, line) in text.lines().enumerate() {
                // Tables and commands of a document cannot be wrapped.
                in_code ^= ending == ".md" && line.trim_start().starts_with("```");
                let is_free = ending == ".md" && (in_code || line.starts_with('|'));
                let columns = line.chars().count();
                if columns > COLUMNS_MAX && !is_free {
                    offenders.push(format!("{name}:{}: {columns} columns", i + 1));
                }
            }
        }
    }
    none(&offenders);
}

#[test]
fn the_table_of_architecture_names_files_that_exist() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.split("## Where to put things").nth(1).expect("the table").split("\n## ").next().unwrap();
    // A path is relative to `crates` or to the root.
    let named: Vec<&str> =
        table.split('`').skip(1).step_by(2).filter(|name| name.contains('/') || name.ends_with(".rs")).collect();
    let is_there = |name: &&str| root().join("crates").join(name).exists() || root().join(name).exists();
    assert!(named.len() > 15, "{named:?}");
    let missing: Vec<String> = named.iter().filter(|name| !is_there(name)).map(|name| name.to_string()).collect();
    none(&missing);
}

/// Files of other projects that documents name.
const OTHER_PROJECTS: [&str; 4] =
    ["eagle/model/cnets.py", "gguf-py/gguf/constants.py", "src/llama-model.cpp", "conversion/base.py"];

#[test]
fn documents_name_files_that_exist() {
    let mut tree: Vec<String> = Vec::new();
    for ending in [".rs", ".py", ".toml", ".cpp", ".svg", ".jsonl", ".md"] {
        tree.extend(files(ending).into_iter().map(|(name, _)| format!("/{name}")));
    }
    let mut offenders = Vec::new();
    // The log also names files that no longer exist.
    for (document, text) in
        files(".md").into_iter().filter(|(name, _)| !["docs/log.md", "CHANGELOG.md"].contains(&&**name))
    {
        let folder = root().join(&document).parent().unwrap().to_path_buf();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("```")) {
            let is_name = |word: &&str| {
                let ends =
                    [".rs", ".py", ".toml", ".cpp", ".svg", ".jsonl"].iter().any(|ending| word.ends_with(ending));
                // Names in capitals are placeholders.
                ends && !word.starts_with('.')
                    && word.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
                    && !word
                        .split(['/', '.'])
                        .any(|part| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase()))
            };
            let named =
                line.split('`').skip(1).step_by(2).filter(is_name).filter(|word| !OTHER_PROJECTS.contains(word));
            let missing = named.filter(|name| !tree.iter().any(|file| file.ends_with(&format!("/{name}"))));
            offenders.extend(missing.map(|name| format!("{document}: {name}")));
            let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
            let links = links.filter(|link| !link.is_empty() && !link.contains(':') && !link.contains(' '));
            offenders
                .extend(links.filter(|link| !folder.join(link).exists()).map(|link| format!("{document}: {link}")));
        }
    }
    none(&offenders);
}

/// The places of a diff that do not fit the tree: hunks whose lines are not there in this order, or are miscounted.
fn misfits(diff: &str) -> Vec<String> {
    let mut found = Vec::new();
    for file in diff.split("--- ").filter(|file| !file.is_empty()) {
        let (head, hunks) = file.split_once("\n@@ ").expect("a hunk");
        let name = head.split_once("\n+++ b/").expect("the name of a file").1;
        let text = std::fs::read_to_string(root().join(name)).unwrap_or_default();
        if head.starts_with("/dev/null") != text.is_empty() {
            found.push(format!("{name}: expected a new file to be new, and another to be there"));
        }
        let (lines, mut at): (Vec<&str>, usize) = (text.lines().collect(), 0);
        for hunk in hunks.split("\n@@ ") {
            let (numbers, body) = hunk.split_once(" @@\n").expect("numbers of lines");
            let side = |without: char| {
                let lines = body.lines().filter(|line| !line.starts_with(without));
                lines.map(|line| line.get(1..).unwrap_or("")).collect::<Vec<_>>()
            };
            let (before, after) = (side('+'), side('-'));
            let counts: Vec<&str> = numbers.split([',', ' ']).collect();
            let is_counted = [counts[1], counts[3]] == [before.len().to_string(), after.len().to_string()];
            let place = (0..=lines.len() - at).find(|skipped| lines[at + skipped..].starts_with(&before));
            match place {
                Some(skipped) if is_counted => at += skipped + before.len(),
                _ => found.push(format!("{name}: @@ {numbers} @@ does not apply")),
            }
        }
    }
    found
}

#[test]
fn the_examples_of_contributing_apply_to_the_tree() {
    let text = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let diffs: Vec<&str> = text.split("```diff\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    assert_eq!(diffs.len(), 3, "a drafter, a sampling parameter, a family");
    none(&diffs.iter().flat_map(|diff| misfits(diff)).collect::<Vec<_>>());
    for (from, to) in
        [(" mod random;", " mod rand;"), ("@@ -43,2 +", "@@ -43,3 +"), ("drafters/src/repeat", "cli/src/main")]
    {
        assert!(!misfits(&diffs[0].replacen(from, to, 2)).is_empty(), "{from}");
    }
}

#[test]
fn functions_are_at_most_70_lines() {
    let mut offenders = Vec::new();
    for (name, text) in files(".rs") {
        let lines: Vec<&str> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let trimmed = line.trim_start();
            let prefixes = ["pub ", "pub(crate) ", "pub(super) ", "unsafe ", "const "];
            let head = prefixes.iter().fold(trimmed, |head, prefix| head.strip_prefix(prefix).unwrap_or(head));
            if !head.starts_with("fn ") {
                continue;
            }
            // rustfmt closes a function with a brace at the indentation of its head.
            let end = format!("{}}}", &line[..line.len() - trimmed.len()]);
            let len = lines[start..].iter().position(|line| *line == end).unwrap_or(0);
            if len > FUNCTION_LINES_MAX {
                offenders.push(format!("{name}:{}: {len} lines: {trimmed}", start + 1));
            }
        }
    }
    none(&offenders);
}

#[test]
fn verify_and_its_lossy_form_have_one_caller() {
    for call in [" verify(", " verify_leniently("] {
        let callers: Vec<String> = files(".rs")
            .into_iter()
            .filter(|(name, _)| name.contains("/src/") && !name.starts_with("crates/speculation/"))
            .flat_map(|(name, text)| {
                let calls = without_tests(&text).lines().filter(|line| line.contains(call)).count();
                std::iter::repeat_n(name, calls)
            })
            .collect();
        assert_eq!(callers, ["crates/engine/src/step.rs"], "{call}");
    }
}

#[test]
fn speculation_and_drafters_use_no_clock_no_files_and_no_results() {
    let mut offenders = Vec::new();
    for (name, text) in files(".rs") {
        let pure = ["crates/speculation/src/", "crates/drafters/src/"].iter().any(|folder| name.starts_with(folder));
        if pure && !name.ends_with("tests.rs") {
            for word in ["std::time", "std::fs", "std::io", "std::env", "-> Result"] {
                if without_tests(&text).lines().any(|line| !line.trim_start().starts_with("//") && line.contains(word))
                {
                    offenders.push(format!("{name}: {word}"));
                }
            }
        }
    }
    none(&offenders);
}

#[test]
fn every_third_party_dependency_has_a_reason() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let block = manifest.split("[workspace.dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let lines =
        block.lines().filter(|line| line.contains(" = ") && !line.starts_with("foretoken") && !line.starts_with('#'));
    none(&lines.filter(|line| !line.contains('#')).map(str::to_string).collect::<Vec<_>>());
}

/// The first names after `crate::` in a text without comments; all names of a list in braces.
fn crate_paths(text: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for rest in text.split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            found.extend(rest.split(|c| !is_word(c)).next().map(str::to_string));
            continue;
        };
        let (mut depth, mut is_first, mut name) = (1, true, String::new());
        for c in list.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => {
                    found.push(std::mem::take(&mut name));
                    is_first = true;
                }
                ':' => is_first = false,
                c if depth == 1 && is_first && is_word(c) => name.push(c),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        found.push(name);
    }
    found
}

/// The modules right below the root of a crate, and which of them each uses, without tests and comments.
fn module_uses(krate: &str) -> BTreeMap<String, BTreeSet<String>> {
    let prefix = format!("crates/{krate}/src/");
    let code = |text: &str| {
        let text = text.split("\nmod tests {").next().unwrap_or("");
        text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
    };
    let sources: Vec<(String, String)> = files(".rs")
        .into_iter()
        .filter_map(|(name, text)| Some((name.strip_prefix(&prefix)?.to_string(), code(&text))))
        .filter(|(name, _)| !name.ends_with("tests.rs") && !name.contains("tests/"))
        .collect();
    let module = |name: &str| name.split(['/', '.']).next().unwrap_or("").to_string();
    let modules: BTreeSet<String> = sources.iter().map(|(name, _)| module(name)).collect();
    // A name that the root re-exports belongs to its module.
    let is_root = |name: &str| name == "lib.rs" || name == "main.rs";
    let root = sources.iter().find(|(name, _)| is_root(name)).map_or("", |(_, text)| text);
    let mut exports: BTreeMap<String, String> = BTreeMap::new();
    for export in root.split("use ").skip(1).filter_map(|rest| rest.split(';').next()) {
        let Some((from, names)) = export.split_once("::").filter(|(from, _)| modules.contains(*from)) else { continue };
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
        exports.extend(names.map(|name| (name.to_string(), from.to_string())));
    }
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, text) in sources.iter().filter(|(name, _)| !is_root(name)) {
        let own = module(name);
        let module_of = |path: String| if modules.contains(&path) { Some(path) } else { exports.get(&path).cloned() };
        let used = crate_paths(text).into_iter().filter_map(module_of).filter(|other| *other != own);
        uses.entry(own.clone()).or_default().extend(used);
    }
    uses
}

/// All modules that a module uses, directly or through others.
fn reachable(uses: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_string()]);
    while let Some(at) = next.pop() {
        for other in uses.get(&at).into_iter().flatten() {
            if seen.insert(other.clone()) {
                next.push(other.clone());
            }
        }
    }
    seen
}

#[test]
fn modules_do_not_use_each_other_in_circles() {
    let mut circles: BTreeSet<(String, BTreeSet<String>)> = BTreeSet::new();
    for krate in arrows().keys() {
        let uses = module_uses(krate);
        for module in uses.keys() {
            let is_back = |other: &String| reachable(&uses, other).contains(module);
            let circle: BTreeSet<String> = reachable(&uses, module).into_iter().filter(is_back).collect();
            if circle.len() > 1 {
                circles.insert((krate.clone(), circle));
            }
        }
    }
    none(&circles.iter().map(|(krate, circle)| format!("{krate}: {circle:?}")).collect::<Vec<_>>());
}
