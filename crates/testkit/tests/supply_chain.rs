//! Tests of the dependencies: every package has a licence that `deny.toml` allows, comes from crates.io, and is used in
//! one version or in those that `deny.toml` lists with reasons; every dependency of a manifest is used; and programs
//! have no features of tests.
//!
//! `cargo deny check` reads the same file and checks more (known vulnerabilities, texts of licences); this needs only
//! cargo.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rules() -> toml::Table {
    std::fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap()
}

/// cargo's metadata of all packages of the lock file.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let arguments = ["metadata", "--offline", "--locked", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(root()).output().unwrap();
    // Without network, packages of other systems may be missing in the registry's cache.
    let output = if output.status.success() {
        output
    } else {
        let target = [&arguments[..], &["--filter-platform", "x86_64-unknown-linux-gnu"]].concat();
        Command::new(env!("CARGO")).args(target).current_dir(root()).output().unwrap()
    };
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    all["packages"].as_array().unwrap().clone()
}

fn words(text: &str) -> Vec<String> {
    text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ").split_whitespace().map(str::to_string).collect()
}

/// Whether an SPDX expression can be satisfied by licences that are allowed: `AND` binds before `OR`.
fn is_allowed(words: &mut std::iter::Peekable<impl Iterator<Item = String>>, allowed: &BTreeSet<String>) -> bool {
    let mut any = false;
    loop {
        let mut all = true;
        loop {
            let word = words.next().expect("a licence");
            all &= if word == "(" {
                let inner = is_allowed(words, allowed);
                assert_eq!(words.next().as_deref(), Some(")"));
                inner
            } else if words.next_if_eq("WITH").is_some() {
                let exception = words.next().expect("an exception");
                allowed.contains(&word) || allowed.contains(&format!("{word} WITH {exception}"))
            } else {
                allowed.contains(&word)
            };
            if words.next_if_eq("AND").is_none() {
                break;
            }
        }
        any |= all;
        if words.next_if_eq("OR").is_none() {
            return any;
        }
    }
}

fn allowed_licences() -> BTreeSet<String> {
    let rules = rules();
    let allowed = rules["licenses"]["allow"].as_array().unwrap().iter();
    allowed.map(|licence| licence.as_str().unwrap().to_string()).collect()
}

#[test]
fn licences_and_sources_are_allowed() {
    let allowed = allowed_licences();
    let mut offenders = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        match package["license"].as_str() {
            Some(licence) if is_allowed(&mut words(licence).into_iter().peekable(), &allowed) => {}
            licence => offenders.push(format!("{name}: licence {licence:?}")),
        }
        match package["source"].as_str() {
            None if name.starts_with("foretoken") => {}
            Some("registry+https://github.com/rust-lang/crates.io-index") => {}
            source => offenders.push(format!("{name}: source {source:?}")),
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

#[test]
fn licence_expressions_are_evaluated() {
    let allowed: BTreeSet<String> = ["MIT", "ISC", "A WITH e"].map(str::to_string).into();
    let is = |text: &str| is_allowed(&mut words(text).into_iter().peekable(), &allowed);
    assert!(is("MIT") && is("GPL OR MIT") && is("GPL/ISC") && is("A WITH e") && is("(GPL OR MIT) AND ISC"));
    assert!(!is("GPL") && !is("GPL AND MIT") && !is("A WITH f") && !is("A") && !is("(GPL OR X) AND ISC"));
}

/// The packages with several versions in the lock file are those that `deny.toml` explains.
#[test]
fn several_versions_have_a_reason() {
    let lock: toml::Table = std::fs::read_to_string(root().join("Cargo.lock")).unwrap().parse().unwrap();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in lock["package"].as_array().unwrap() {
        let [name, version] = ["name", "version"].map(|key| package[key].as_str().unwrap());
        versions.entry(name).or_default().insert(version);
    }
    let rules = rules();
    let mut explained = BTreeSet::new();
    for skip in rules["bans"]["skip"].as_array().unwrap() {
        assert!(!skip["reason"].as_str().unwrap().is_empty());
        let (name, version) = skip["crate"].as_str().unwrap().split_once('@').unwrap();
        assert!(versions.get(name).is_some_and(|all| all.contains(version) && all.len() > 1), "{name} {version}: gone");
        explained.insert((name, version));
    }
    let left = |(name, all): (&&str, &BTreeSet<&str>)| {
        let left: Vec<_> = all.iter().filter(|version| !explained.contains(&(*name, **version))).collect();
        (left.len() > 1).then(|| format!("{name}: {left:?}"))
    };
    let offenders: Vec<String> = versions.iter().filter_map(left).collect();
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let source = std::fs::read_to_string(&path).unwrap();
            // These are modules in another crate's folder.
            for shared in source.split("#[path = \"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
                text.push_str(&std::fs::read_to_string(folder.join(shared)).unwrap_or_default());
            }
            text.push_str(&source);
        }
    }
}

#[test]
fn every_dependency_of_a_manifest_is_used() {
    let mut offenders = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        let manifest: toml::Table = manifest.parse().unwrap();
        let mut text = String::new();
        sources(&folder, &mut text);
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for name in manifest
                .get(section)
                .and_then(|entries| entries.as_table())
                .into_iter()
                .flat_map(|entries| entries.keys())
            {
                if !text.contains(&name.replace('-', "_")) {
                    offenders.push(format!("{}: {name}", folder.display()));
                }
            }
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

/// The features of foretoken's crates in a build of this package, as cargo resolves them.
fn features(package: &str, edges: &str) -> BTreeSet<String> {
    let arguments =
        ["tree", "--offline", "--locked", "--prefix", "none", "--format", "{p}|{f}", "--package", package, "-e", edges];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("foretoken")).filter_map(|line| line.rsplit_once('|'));
    lines.flat_map(|(_, names)| names.split([',', ' '])).map(str::to_string).collect()
}

#[test]
fn programs_have_no_features_of_tests() {
    let found = features("foretoken-cli", "no-dev");
    assert!(found.contains("demo") && !found.contains("faults") && !found.contains("fuzzing"), "{found:?}");
    // Tests have them, so they would be found.
    assert!(features("foretoken-testkit", "normal,dev").contains("faults"));
    assert!(features("foretoken-server", "normal,dev").contains("fuzzing"));
}
