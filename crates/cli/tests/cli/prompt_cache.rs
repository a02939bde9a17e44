//! `--prompt-cache`: the same bytes with and without, and unusable files are named.

use crate::{demo, golden, run, run_with};

const LONG: &str = "once upon a time, there was a little dog who lived in a big house with a boy, and they were happy. \
     one day the dog saw a bird in the tree. the bird said hello";

/// A folder, and the path of a file in it that does not exist yet.
fn cache() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("cache").display().to_string();
    (folder, path)
}

#[test]
fn generate_writes_the_same_with_a_prompt_cache() {
    let (_folder, path) = cache();
    for sampling in [&["--temp", "0"][..], &["-s", "7"], &["-s", "7", "--spec-type", "none"]] {
        let with = |more: &[&str]| {
            let base = ["generate", "-n", "24", "-m"];
            run(&[&base[..], &[&demo("demo-target"), LONG], sampling, more].concat()).ok()
        };
        let expected = with(&[]);
        for more in [&["--prompt-cache", &path][..], &["--prompt-cache", &path, "--prompt-cache-ro", "-c", "200"]] {
            assert_eq!(with(more), expected, "{sampling:?} {more:?}");
        }
    }
    assert!(std::fs::metadata(&path).is_ok_and(|file| file.len() > 10_000), "rows were written");
}

#[cfg(unix)]
#[test]
fn a_link_to_a_missing_cache_is_followed() {
    let (folder, path) = cache();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("a link can be made");
    run(&["generate", LONG, "-n", "2", "--prompt-cache", &link.to_string_lossy()]).ok();
    assert!(link.is_symlink() && std::fs::metadata(&path).is_ok_and(|file| file.len() > 10_000));
    run(&["generate", LONG, "-n", "2", "--prompt-cache", &link.to_string_lossy(), "--prompt-cache-ro"]).ok();
}

#[test]
fn lists_of_prompts_and_conversations_use_a_prompt_cache() {
    let (folder, path) = cache();
    let prompts = folder.path().join("prompts.txt").display().to_string();
    std::fs::write(&prompts, format!("{LONG}\n{LONG} to the dog\n")).expect("it can be written");
    let list = |more: &[&str]| {
        run(&[&["generate", "-n", "9", "-s", "3", "--prompts", &prompts, "--parallel", "2"], more].concat()).ok()
    };
    let expected = list(&[]);
    for _ in 0..2 {
        assert_eq!(list(&["--prompt-cache", &path]), expected);
    }
    let answers = |more: &[&str]| {
        let words = [&["chat", "-n", "9", "-s", "3", "--system", LONG], more].concat();
        run_with(&words, &[], "hello\nwho are you?\n").ok()
    };
    let (_folder, path) = cache();
    let expected = answers(&[]);
    for _ in 0..2 {
        assert_eq!(answers(&["--prompt-cache", &path]), expected);
    }
}

#[test]
fn caches_of_other_settings_are_refused() {
    let (_folder, path) = cache();
    let ids = |model: &str, more: &[&str]| {
        let base = ["generate", "--prompt-ids", "1,2,3,4,5,6,7,8", "-n", "4", "--temp", "0", "--output-ids", "-m"];
        run(&[&base[..], &[&golden(model), "--prompt-cache", &path], more].concat())
    };
    let expected = ids("longrope", &["-c", "32"]).ok();
    assert_eq!(ids("longrope", &["-c", "40"]).ok(), expected);
    let refused = |model: &str, more: &[&str]| ids(model, more).error(1);
    assert!(refused("longrope", &["-c", "300"]).starts_with(&format!("{path}: rope: expected ")));
    assert!(refused("llama", &["-c", "32"]).starts_with(&format!("{path}: model: expected ")));
    let types = refused("longrope", &["-c", "32", "-ctk", "f32"]);
    assert_eq!(types, format!("{path}: cache_type_k: expected f32, found f16"));
    std::fs::write(&path, "something else").expect("it can be written");
    assert!(refused("longrope", &["-c", "32"]).starts_with(&format!("{path}: magic: expected ")));
    let alone = run(&["generate", "x", "--prompt-cache-ro"]);
    assert!(alone.code == 2 && alone.err.contains("--prompt-cache <FILE>"), "{}", alone.err);
}
