//! Help: short help of one screen and full help in groups, for every command; manuals and completions.

use crate::{run, words};

/// The words of all commands.
pub const COMMANDS: [&str; 29] = [
    "",
    "generate",
    "batch",
    "chat",
    "serve",
    "inspect",
    "check",
    "logits",
    "hidden",
    "quantize",
    "lookup",
    "lookup build",
    "pull",
    "list",
    "rm",
    "bench",
    "bench pass",
    "bench replay",
    "bench trie",
    "bench compare",
    "bench generate",
    "bench batch",
    "bench serve",
    "analyze",
    "config",
    "completions",
    "man",
    "version",
    "-q generate --temp 1",
];

/// Columns and lines of a small screen.
const COLUMNS: usize = 100;
const LINES: usize = 32;

fn help(command: &str, how: &str) -> String {
    run(&words(&format!("{command} {how}"))).ok()
}

#[test]
fn the_list_of_commands_is_complete() {
    for (command, path) in [("", 0), ("bench", 1), ("lookup", 1)] {
        let page = help(command, "-h");
        let listed =
            page.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| line.starts_with(' '));
        for name in listed.filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
            let name = words(name)[0];
            let whole = if path == 0 { name.to_string() } else { format!("{command} {name}") };
            assert!(COMMANDS.contains(&whole.as_str()), "{whole}");
        }
    }
}

#[test]
fn short_help_is_one_screen() {
    for command in COMMANDS {
        let page = help(command, "-h");
        let (lines, columns) = (page.lines().count(), page.lines().map(|line| line.chars().count()).max());
        assert!(lines <= LINES && columns <= Some(COLUMNS), "{command}: {lines} lines, {columns:?} columns\n{page}");
        assert!(page.contains("\nUsage: foretoken"), "{command}");
    }
}

#[test]
fn long_help_has_every_option_in_a_group_and_those_of_experts_last() {
    for command in COMMANDS {
        let page = help(command, "--help");
        assert!(!page.contains("\nOptions:\n"), "{command}: options without a group\n{page}");
        assert!(page.lines().all(|line| line.chars().count() <= COLUMNS), "{command}");
        assert!(page.contains("      --help "), "{command}");
    }
    let page = help("generate", "--help");
    let position = |text: &str| page.find(&format!("\n{text}:\n")).unwrap_or_else(|| panic!("{text}"));
    let groups = ["Prompt", "Model", "Output", "Sampling", "Speculation", "General", "Draft models", "Drafters"];
    assert!(groups.map(position).is_sorted(), "{page}");
    for name in
        ["-md, --model-draft MODEL", "-ctk, --cache-type-k", "--lookahead-guesses N", "-lcs, --lookup-cache-static"]
    {
        assert!(page.contains(name), "{name}");
    }
}

#[test]
fn help_is_printed_despite_other_errors() {
    let short = help("generate", "-h");
    for line in ["generate --frobnicate -h", "generate -ngl 99 -h", "generate --temp hot -h", "-h generate"] {
        assert_eq!(run(&words(line)).ok(), short, "{line}");
    }
    assert_eq!(help("check", "-h"), run(&words("check -vh")).ok());
    let long = help("bench pass", "--help");
    assert_eq!(run(&words("help bench pass")).ok(), long);
    assert_eq!(run(&["help"]).ok(), help("", "--help"));
    assert!(long.contains("The roofline of a pass is"), "{long}");
    // The value of an option is not a request for help.
    assert_ne!(run(&words("generate hello -n 1 -s 1 --stop -h")).ok(), short);
    let error = run(&words("help nothing")).error(2);
    assert!(error.starts_with("nothing: expected a command"), "{error}");
}

#[test]
fn the_version_option_works_anywhere() {
    let version = run(&["--version"]).ok();
    for line in ["generate --version", "check -V", "bench --version --frobnicate", "generate hello -n 3 --version"] {
        assert_eq!(run(&words(line)).ok(), version, "{line}");
    }
}

#[test]
fn shells_have_completion_scripts() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).ok();
        assert!(script.contains("foretoken") && script.contains("spec-type"), "{shell}");
    }
    let error = run(&["completions", "tcsh"]).error(2);
    assert_eq!(error, "SHELL: expected one of bash, elvish, fish, powershell, zsh, found \"tcsh\"");
}

#[test]
fn commands_have_manuals() {
    let page = run(&["man"]).ok();
    assert!(page.contains(".TH foretoken 1") && page.contains("serve"), "{page}");
    let page = run(&words("man bench pass")).ok();
    assert!(page.contains(".TH foretoken\\-bench\\-pass 1") || page.contains(".TH foretoken-bench-pass 1"), "{page}");
    assert!(page.contains("roofline"), "{page}");
    let page = run(&words("man generate")).ok();
    assert!(page.contains(".SH SYNOPSIS\nforetoken generate [OPTIONS] [PROMPT]\n"), "{page}");
    // Every option is explained, also those that -h does not show.
    let unexplained = page.split(".TP\n").skip(1).find(|option| option.trim_end().lines().count() < 2);
    assert!(unexplained.is_none(), "{unexplained:?}");
    assert!(run(&words("man nothing")).error(2).starts_with("nothing: expected a command"));
}

#[test]
fn help_has_colours_on_request() {
    assert!(!help("generate", "-h").contains('\x1b'));
    let coloured = help("generate --color always", "-h");
    assert!(coloured.contains("\x1b[1mSampling:\x1b[0m"), "{coloured}");
    assert_eq!(coloured.replace("\x1b[1m", "").replace("\x1b[0m", ""), help("generate", "-h"));
    let error = run(&words("generate x --temp hot --color always")).err;
    assert!(error.starts_with("\x1b[1;31merror:\x1b[0m --temp"), "{error}");
}
