//! Output on a pseudo-terminal, which `script` of util-linux provides. Without it these tests are skipped.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::{at_home, file, words};

/// The program on a terminal.
struct Terminal {
    child: Child,
    output: Receiver<Vec<u8>>,
    seen: String,
    _cache: tempfile::TempDir,
}

impl Terminal {
    /// Runs the program with these words; `None` if there is no `script`.
    fn open(words: &[&str]) -> Option<Self> {
        Self::open_as(words, "xterm")
    }

    /// The same on a terminal of this kind.
    fn open_as(words: &[&str], term: &str) -> Option<Self> {
        if !Command::new("script").arg("--version").output().is_ok_and(|found| found.status.success()) {
            println!("skipped: no script of util-linux");
            return None;
        }
        let quoted = |word: &str| format!("'{}'", word.replace('\'', "'\\''"));
        let program = env!("CARGO_BIN_EXE_foretoken");
        let line = std::iter::once(program).chain(words.iter().copied()).map(quoted).collect::<Vec<_>>().join(" ");
        let cache = tempfile::tempdir().expect("a folder can be made");
        let mut command = Command::new("script");
        // The shell sets up the terminal before the program reads a key.
        command.args(["-qefc", &format!("stty -echo cols 120; exec {line}"), "/dev/null"]);
        at_home(&mut command, cache.path());
        command.env("TERM", term);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script can be started");
        let mut out = child.stdout.take().expect("it is piped");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(len @ 1..) = out.read(&mut some) {
                if sender.send(some[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Some(Self { child, output, seen: String::new(), _cache: cache })
    }

    /// Waits until this text appears after the text of the last wait.
    #[track_caller]
    fn wait_for(&mut self, text: &str) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.seen.find(text) {
                let tail = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, tail);
            }
            let timeout = end.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(timeout) {
                Ok(more) => self.seen.push_str(&String::from_utf8_lossy(&more)),
                Err(_) => panic!("expected {text:?}, found {:?}", self.seen),
            }
        }
    }

    /// Presses keys.
    fn press(&mut self, keys: impl AsRef<[u8]>) {
        let to = self.child.stdin.as_mut().expect("it is piped");
        to.write_all(keys.as_ref()).and_then(|()| to.flush()).expect("it listens");
    }

    /// The remaining output, and the exit code.
    fn end(mut self) -> (String, i32) {
        while let Ok(more) = self.output.recv_timeout(Duration::from_secs(60)) {
            self.seen.push_str(&String::from_utf8_lossy(&more));
        }
        let code = self.child.wait().expect("it ends").code().expect("a code");
        (self.seen, code)
    }
}

#[test]
fn a_terminal_gets_one_line_of_statistics_unless_quiet() {
    let line = ["generate", "once upon a time", "-n", "24", "-s", "1"];
    let Some(terminal) = Terminal::open(&line) else { return };
    let (seen, code) = terminal.end();
    let statistics: Vec<&str> = seen.lines().filter(|line| line.contains(" tokens/s, load ")).collect();
    assert!(code == 0 && statistics.len() == 1 && statistics[0].chars().count() <= 100, "{seen}");
    assert!(!seen.contains("passes of the target"), "{seen}");
    let (quiet, code) = Terminal::open(&[&line[..], &["-q"]].concat()).expect("there is one").end();
    assert!(code == 0 && !quiet.contains("load ") && !quiet.contains("seed"), "{quiet}");
}

#[test]
fn ctrl_c_ends_generate_with_its_statistics() {
    let line = ["generate", "once upon a time", "-n", "100000", "--ignore-eos", "-s", "1", "-c", "2048"];
    let Some(mut terminal) = Terminal::open(&line) else { return };
    terminal.wait_for(", there was");
    terminal.press("\x03");
    let (seen, code) = terminal.end();
    assert!(code == 130 && seen.contains(" tokens/s, load "), "{code}: {seen}");
}

#[test]
fn ctrl_c_ends_lists_checks_and_measurements_with_complete_results() {
    let prompts: String = (0..400).map(|i| format!("{{\"prompt\": \"once upon a time {i}\"}}\n")).collect();
    let (_folder, path) = file("prompts.jsonl", &prompts);
    let cases: [(&[&str], &str, &str); 4] = [
        (&["generate", "-n", "32", "-s", "1", "-np", "2"], "prompt 2 of 400:", " texts, "),
        (&["check", "-n", "16", "--temp", "0"], "prompt 2: ok", "speculative equals plain"),
        (&["bench", "generate", "-n", "8", "--repeat", "100", "--temp", "0"], ", 1 at a time", "speed-up"),
        (&["generate", "--json", "-n", "32", "-s", "1"], "\"finish_reason\"", " texts, "),
    ];
    for (words, sign_of_progress, expected) in cases {
        let Some(mut terminal) = Terminal::open(&[words, &["--prompts", &path]].concat()) else { return };
        terminal.wait_for(sign_of_progress);
        // Some more results.
        std::thread::sleep(Duration::from_millis(700));
        terminal.press("\x03");
        let (seen, code) = terminal.end();
        assert!(code == 130 && seen.contains(expected), "{words:?}: {code}: {seen}");
        assert!(!seen.contains("error: "), "{words:?}: {seen}");
    }
}

#[test]
fn a_batch_shows_how_much_time_is_left_and_ctrl_c_keeps_complete_lines() {
    let (folder, path) = file("prompts.txt", &"once upon a time\n".repeat(400));
    let answers = folder.path().join("answers.jsonl").display().to_string();
    let line = ["batch", &path, "-o", &answers, "-n", "32", "-s", "1", "-np", "2"];
    let Some(mut terminal) = Terminal::open(&line) else { return };
    terminal.wait_for(" left");
    // Some more lines.
    std::thread::sleep(Duration::from_millis(700));
    terminal.press("\x03");
    let (seen, code) = terminal.end();
    assert!(code == 130 && seen.contains(" lines, ") && seen.contains(" tokens/s"), "{code}: {seen}");
    let text = std::fs::read_to_string(&answers).expect("it was begun");
    assert!(text.ends_with("}\n") && text.lines().count() < 400, "{text}");
}

#[test]
fn a_long_prompt_has_a_progress_bar() {
    let prompt = "many words and more of them ".repeat(180);
    let line = ["generate", "-p", &prompt, "-n", "2", "-s", "1", "-t", "1", "-c", "2048"];
    let Some(mut terminal) = Terminal::open(&line) else { return };
    // In a test build a pass of 512 rows takes about a second; a fast machine shows no bar.
    let (seen, code) = (terminal.wait_for("tokens/s"), terminal.end().1);
    assert_eq!(code, 0, "{seen}");
    let took = seen.split("prompt (").nth(1).and_then(|rest| rest.split(") ").nth(1)).unwrap_or_default().to_string();
    let long = took.contains(" s,") || took.starts_with(|digit: char| digit > '5') && took.contains("ms");
    assert!(!long || seen.contains("prompt ") && seen.contains("/1"), "{seen}");
}

#[test]
fn a_conversation_on_a_terminal_can_be_edited_stopped_and_left() {
    let line = ["chat", "--temp", "0", "-s", "1", "-n", "100000", "--ignore-eos"];
    let Some(mut terminal) = Terminal::open(&line) else { return };
    terminal.wait_for("/help lists");
    terminal.wait_for("> ");
    terminal.press("hello \\\r");
    terminal.wait_for(". ");
    terminal.press("my friend\r");
    // A part of the answer, which would continue until the context is full.
    terminal.wait_for("\n");
    std::thread::sleep(Duration::from_millis(800));
    terminal.press("\x03");
    terminal.wait_for("> ");
    terminal.press("/stats\r");
    terminal.wait_for(" tokens of the context");
    terminal.wait_for("> ");
    terminal.press("\x03");
    terminal.wait_for("Ctrl-D leaves");
    terminal.wait_for("> ");
    terminal.press("/exit\r");
    assert_eq!(terminal.end().1, 0);
}

#[test]
fn a_byte_that_is_no_utf_8_does_not_end_a_conversation() {
    for term in ["xterm", "dumb"] {
        let line = ["chat", "--temp", "0", "-s", "1", "-n", "3"];
        let Some(mut terminal) = Terminal::open_as(&line, term) else { return };
        terminal.wait_for("> ");
        terminal.press("hello\r");
        terminal.wait_for("> ");
        terminal.press(b"caf\xe9 au lait\r");
        terminal.wait_for("terminal: expected UTF-8, found other bytes: the line is dropped");
        terminal.wait_for("> ");
        // What was said before is still there.
        terminal.press("/stats\r");
        terminal.wait_for(" messages, ");
        terminal.wait_for("> ");
        terminal.press("/exit\r");
        assert_eq!(terminal.end().1, 0);
    }
}

/// A model may write anything, also what clears a screen or answers for the user.
#[test]
fn what_a_terminal_would_interpret_is_shown_escaped() {
    // Tokens of the demo model: the byte of Escape, that of a carriage return, and both of U+009B.
    let cases: [(&[&str], &str); 3] = [
        (&["--logit-bias", "222+100"], "\\u{1b}\\u{1b}\\u{1b}"),
        (&["--logit-bias", "208+100"], "\\r\\r\\r"),
        (&["--regex", "\u{9b}\u{9b}\u{9b}"], "\\u{9b}\\u{9b}\\u{9b}"),
    ];
    for (bias, expected) in cases {
        for more in ["", "--n-best 2", "--show-drafts --color never", "--display-prompt"] {
            let line = [words("generate x -n 9 --temp 0 -s 1 -q"), bias.to_vec(), words(more)].concat();
            let Some(terminal) = Terminal::open(&line) else { return };
            let (seen, code) = terminal.end();
            let shown = seen.replace(['[', ']', '<', '>'], "");
            assert!(code == 0 && shown.contains(expected), "{line:?}: {code}: {seen:?}");
            let wrong = |c: char| c.is_control() && !matches!(c, '\n' | '\r');
            assert!(!seen.contains(wrong) && !seen.replace("\r\n", "\n").contains('\r'), "{line:?}: {seen:?}");
            // Pipes get the bytes as they are.
            let piped = crate::run(&line).ok();
            let raw = expected.replace("\\u{1b}", "\x1b").replace("\\r", "\r").replace("\\u{9b}", "\u{9b}");
            let plain = piped.replace(['[', ']', '<', '>'], "");
            assert!(plain.contains(&raw), "{line:?}: {piped:?}");
        }
    }
    // Colours are the program's own, and the text between them is escaped.
    let line = words("generate x -n 3 --temp 0 -s 1 -q --logit-bias 222+100 --show-drafts --color always");
    let Some(terminal) = Terminal::open(&line) else { return };
    let (seen, _) = terminal.end();
    assert!(seen.contains("m\\u{1b}\x1b[0m") && !seen.contains("m\x1b\x1b"), "{seen:?}");
    let Some(mut terminal) = Terminal::open(&words("chat --temp 0 -s 1 -n 3 --logit-bias 222+100")) else { return };
    terminal.wait_for("> ");
    terminal.press("hello\r");
    terminal.wait_for("\\u{1b}\\u{1b}\\u{1b}");
    terminal.wait_for("> ");
    terminal.press("/exit\r");
    assert_eq!(terminal.end().1, 0);
}

#[test]
fn lines_typed_ahead_are_not_lost() {
    let Some(mut terminal) = Terminal::open(&["chat", "--temp", "0", "-n", "3"]) else { return };
    terminal.wait_for("> ");
    terminal.press("hello\rone more\r/stats\r/exit\r");
    terminal.wait_for(" tokens of the context");
    assert_eq!(terminal.end().1, 0);
}

#[test]
fn a_measurement_shows_the_remaining_time() {
    let (_folder, path) = file("prompts.txt", &"once upon a time there was\n".repeat(6));
    let words = ["bench", "generate", "--prompts", &path, "-n", "32", "--temp", "0", "-np", "1,2", "--repeat", "3"];
    let Some(mut terminal) = Terminal::open(&words) else { return };
    terminal.wait_for("1 of 2: temperature 0, 1 at a time, at most ");
    terminal.wait_for(" left");
    terminal.wait_for("2 of 2: temperature 0, 2 at a time, at most ");
    terminal.wait_for("repetitions: ");
}
