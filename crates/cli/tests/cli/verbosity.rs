//! `--quiet`, `-v` and `--color`, which every command has, and `version`.

use crate::{run, run_with, words};

#[test]
fn quiet_leaves_warnings_and_errors() {
    let line = words("generate hello -n 4 --temp 0.5");
    assert!(run(&line).err.contains("seed: "));
    for quiet in ["--quiet", "-q"] {
        let found = run(&[&line[..], &[quiet]].concat());
        assert_eq!((found.code, found.err.as_str()), (0, ""));
        let error = run(&["generate", quiet, "-m", "nowhere.gguf", "x"]).error(1);
        assert!(error.starts_with("nowhere.gguf: "), "{error}");
    }
    let before = run(&[&["-q"][..], &line].concat());
    assert_eq!((before.code, before.err.as_str()), (0, ""));
    // The last one counts.
    let more = run(&[&line[..], &["-q", "-v"]].concat()).err;
    assert!(more.contains("seed: ") && more.contains("drafters: "), "{more}");
    assert!(run(&[&["-q"][..], &line, &["-v"]].concat()).err.contains("drafters: "));
}

#[test]
fn the_version_has_a_short_and_a_long_form() {
    let short = run(&["--version"]).ok();
    assert_eq!(short, format!("foretoken {}\n", env!("CARGO_PKG_VERSION")));
    let long = run(&["version"]).ok();
    assert!(long.starts_with(&short) && long.contains("instruction set  "), "{long}");
    assert!(long.contains("demo-target, demo-draft"), "{long}");
    for line in ["--version -v", "-v --version", "-Vv"] {
        assert_eq!(run(&words(line)).ok(), long, "{line}");
    }
    let portable = run_with(&["version"], &[("FORETOKEN_ISA", "portable")], "").ok();
    assert!(portable.contains("instruction set  portable "), "{portable}");
}

#[test]
fn colours_are_for_terminals_unless_they_are_asked_for() {
    let has_colours = |more: &str, variables: &[(&str, &str)]| {
        let line = "generate hello -n 8 -s 1 --show-drafts ";
        run_with(&words(&format!("{line}{more}")), variables, "").ok().contains('\x1b')
    };
    assert!(!has_colours("", &[]) && !has_colours("--color auto", &[]) && !has_colours("--color never", &[]));
    assert!(has_colours("--color always", &[]) && has_colours("--color=always", &[("NO_COLOR", "1")]));
    let error = run(&words("version --color sometimes")).error(2);
    assert_eq!(error, "--color: expected one of auto, always, never, found \"sometimes\"");
}
