//! `chat` through a pipe: turns of one or more lines, commands, saved conversations, templates, a full context.

use serde_json::Value;

use crate::{Run, demo, file, run, run_with, words};

/// Chats with these options and these lines.
fn chat(options: &str, input: &str) -> Run {
    run_with(&words(&format!("chat --temp 0 -n 16 {options}")), &[], input)
}

/// The messages of a file that was saved.
fn messages(path: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).expect("it was saved");
    let object: Value = serde_json::from_str(&text).expect("it is JSON");
    let text = |message: &Value, field: &str| message[field].as_str().expect("a text").to_string();
    let list = object["messages"].as_array().expect("a list");
    list.iter().map(|message| (text(message, "role"), text(message, "content"))).collect()
}

#[test]
fn standard_output_has_only_answers() {
    let once = chat("-s 1", "hi\n");
    assert_eq!((once.code, once.err.as_str(), once.out.lines().count()), (0, "", 1), "{}", once.out);
    assert!(!once.out.contains('>') && once.out.trim().len() > 3, "{}", once.out);
    let with_commands = chat("-s 1", "/help\n/system\n/stats\nhi\n/stats\n/nothing\n");
    assert_eq!(with_commands.out, once.out);
    for said in [
        "/save [--force] FILE",
        "told nothing before",
        "/stats: expected an answer before it",
        " tokens of the context",
    ] {
        assert!(with_commands.err.contains(said), "{said}: {}", with_commands.err);
    }
}

#[test]
fn bytes_that_are_no_utf_8_end_no_conversation() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("c.json").display().to_string();
    let mut input = b"hello\ncaf\xe9 \\\nau lait\xff\r\nbye\n/save ".to_vec();
    input.extend_from_slice(format!("{path}\n").as_bytes());
    let found = run_with(&words("chat --temp 0 -n 16 -s 1"), &[], input);
    let replaced =
        found.err.lines().filter(|line| line.starts_with("standard input: expected UTF-8, found other bytes"));
    assert_eq!((found.code, replaced.count()), (0, 2), "{}", found.err);
    assert_eq!(found.out.lines().count(), 3, "{}", found.out);
    let turns: Vec<String> =
        messages(&path).into_iter().filter(|(role, _)| role == "user").map(|(_, text)| text).collect();
    assert_eq!(turns, ["hello", "caf\u{fffd} \nau lait\u{fffd}", "bye"]);
}

#[test]
fn a_turn_may_have_several_lines() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let saved = |input: &str| {
        let path = folder.path().join("c.json").display().to_string();
        chat("-s 1 --force", &format!("{input}\n/save {path}\n")).ok();
        messages(&path).into_iter().next().expect("a turn").1
    };
    assert_eq!(saved("one \\\ntwo\\\n three"), "one \ntwo\n three");
    assert_eq!(saved("\"\"\"one\n/help\n\ntwo\"\"\""), "one\n/help\n\ntwo");
    assert_eq!(saved("\"\"\"\none\n\"\"\""), "one");
    assert_eq!(saved("\"\"\"one\"\"\""), "one");
}

#[test]
fn a_saved_conversation_is_continued() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (half, whole) = (at("half.json"), at("whole.json"));
    let straight = chat("-s 1 --system nice", &format!("hello\n/save {half}\ni want a taxi\n/save {whole}\n")).ok();
    let answers: Vec<&str> = straight.lines().collect();
    assert_eq!(answers.len(), 2, "{straight}");
    assert_eq!(chat("-s 1", &format!("/load {half}\ni want a taxi\n")).ok(), format!("{}\n", answers[1]));
    let roles: Vec<String> = messages(&whole).into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(messages(&whole)[4].1, answers[1]);
    // `generate` answers the last turn of a saved file again, alone and among other prompts.
    let generated = run(&words(&format!("generate --temp 0 -n 16 -s 1 --prompts {whole}"))).ok();
    assert_eq!(generated, format!("{}\n", answers[1]));
    let object: Value =
        serde_json::from_str(&std::fs::read_to_string(&half).expect("it was saved")).expect("it is JSON");
    std::fs::write(at("both.jsonl"), format!("{object}\n{{\"prompt\": \"once\"}}\n")).expect("it can be written");
    let both = run(&words(&format!("generate --temp 0 -n 16 -s 1 --json --prompts {}", at("both.jsonl")))).ok();
    let first: Value = serde_json::from_str(both.lines().next().expect("a line")).expect("it is JSON");
    assert_eq!((first["text"].as_str(), both.lines().count()), (Some(answers[0]), 2));
    // Only files of this conversation are overwritten, or others with --force.
    let refused = chat("-s 1", &format!("hello\n/save {half}\n/save --force {half}\n/save {half}\n"));
    let expected = format!("{half}: expected no such file (--force writes over it), found one");
    assert_eq!(refused.err.lines().filter(|line| **line == expected).count(), 1, "{}", refused.err);
    assert_eq!(messages(&half).len(), 2);
    let (_folder, odd) = file("odd.json", "{\"messages\": [{\"role\": \"user\"}]}");
    let error = chat("-s 1", &format!("/load {odd}\n")).err;
    assert_eq!(error, format!("{odd}: messages[0].content: expected a string or a list of parts, found none\n"));
}

#[test]
fn the_system_message_can_be_set() {
    let with_option = chat("-s 1 --system you.sell.tickets", "hello\n").ok();
    let with_command = chat("-s 1", "/system you.sell.tickets\nhello\n").ok();
    assert_eq!(with_option, with_command);
}

#[test]
fn a_template_can_be_given() {
    let own = chat("-s 1", "hello\n").ok();
    let model = demo("demo-target");
    let source = format!("{model}/chat_template.jinja");
    assert_eq!(chat(&format!("-s 1 --chat-template {source}"), "hello\n").ok(), own);
    assert_eq!(chat(&format!("-s 1 --chat-template-file {source}"), "hello\n").ok(), own);
    assert_ne!(chat("-s 1 --chat-template llama3", "hello\n").ok(), own);
    let (_folder, conversation) = file("c.json", "[{\"role\": \"user\", \"content\": \"hello\"}]");
    let line = ["generate", "--prompts", &conversation, "--temp", "0", "-n", "4", "-s", "1", "--json"];
    let ids = |more: &[&str]| {
        let object: Value = serde_json::from_str(&run(&[&line[..], more].concat()).ok()).expect("it is JSON");
        (object["prompt_ids"].to_string(), object["record"]["settings"]["model"]["chat_template"].clone())
    };
    let jinja = "{{ messages[0].content }}";
    let plain = run(&["generate", "hello", "--temp", "0", "-n", "4", "-s", "1", "--json"]).ok();
    let plain: Value = serde_json::from_str(&plain).expect("it is JSON");
    assert_eq!(ids(&["--chat-template", jinja]), (plain["prompt_ids"].to_string(), jinja.into()));
    assert_eq!(ids(&[]).1, Value::Null);
    let error = run(&["chat", "--chat-template", "nowhere.jinja"]).error(2);
    assert!(error.starts_with("--chat-template: expected Jinja, one of chatml, "), "{error}");
    let error = run(&["chat", "--chat-template", "{% if %}"]).error(2);
    assert!(error.starts_with("--chat-template: line 1: syntax error: "), "{error}");
    let (_folder, empty) = file("empty.jinja", "\n");
    let error = run(&["chat", "--chat-template", &empty]).error(1);
    assert!(error.contains("chat template: expected one to chat with, found an empty one; --chat-template"), "{error}");
    let mute = run_with(&["chat", "--chat-template", "{{ '' }}"], &[], "hello\n");
    assert!(mute.err.contains("chat template: expected text for a conversation, found none\n"), "{}", mute.err);
    assert!(mute.code == 1 && mute.err.ends_with("error: 1 of 1 turns got no answer\n"), "{}", mute.err);
}

#[test]
fn a_turn_that_the_template_refuses_is_dropped() {
    let picky = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}\
                 {% for m in messages %}{{ m.content }} {% endfor %}";
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("saved.json").display().to_string();
    let said = format!("hello\n/system be nice\none more\n/system -\n/save {path}\n");
    let line = ["chat", "--chat-template", picky, "-n", "4", "-s", "1"];
    let found = run_with(&line, &[], &said);
    assert!(found.code == 1 && found.err.contains("no system here"), "{}", found.err);
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("it is saved")).expect("JSON");
    let roles: Vec<&str> =
        saved["messages"].as_array().expect("a list").iter().filter_map(|message| message["role"].as_str()).collect();
    assert_eq!(roles, ["user", "assistant"], "{saved}");
}

#[test]
fn context_shift_leaves_out_the_oldest_turns() {
    let turns: String = (1..=8).map(|turn| format!("please tell me about train number {turn}\n")).collect();
    let without = chat("-s 1 -c 96", &turns);
    assert!(
        without.code == 1 && without.err.contains("--context-shift leaves out the oldest turns"),
        "{}",
        without.err
    );
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("c.json").display().to_string();
    let with = chat("-s 1 -c 96 --context-shift --system nice", &format!("{turns}/save {path}\n"));
    let notes = with.err.lines().filter(|line| line.starts_with("note: the first 2 messages are left out; "));
    assert!(notes.count() >= 2, "{}", with.err);
    assert_eq!(with.ok().lines().count(), 8);
    let remaining = messages(&path);
    assert_eq!((remaining[0].0.as_str(), remaining[1].0.as_str()), ("system", "user"), "{remaining:?}");
    assert!(remaining.len() < 9 && remaining[remaining.len() - 2].1.ends_with('8'), "{remaining:?}");
    // The remaining conversation is as if it had begun there.
    let again = folder.path().join("again.json").display().to_string();
    let value = serde_json::json!({ "messages": remaining[..remaining.len() - 1].iter()
        .map(|(role, content)| serde_json::json!({ "role": role, "content": content })).collect::<Vec<_>>() });
    std::fs::write(&again, value.to_string()).expect("it can be written");
    let answer = run(&words(&format!("generate --temp 0 -n 16 -s 1 -c 96 --prompts {again}"))).ok();
    assert_eq!(answer.trim_end(), remaining[remaining.len() - 1].1);
}

#[test]
fn thoughts_are_separated_from_the_answer() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = |name: &str| folder.path().join(name).display().to_string();
    // The template ends thinking before the answer, so the regex constrains it from the start; the next turn has the
    // thoughts.
    let template = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}\
        {% if m['reasoning_content'] is defined %}{{ 'thought: ' + m['reasoning_content'] }}{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|assistant|><think></think>{% endif %}";
    std::fs::write(at("template"), template).expect("a file can be written");
    let think = |more: &str, input: &str| {
        let regex = "<think>\n[ab]{2,9}\n</think>\n\n(yes|no)";
        let line = format!("chat -s 1 -n 40 --chat-template {} {more}", at("template"));
        run_with(&[words(&line), vec!["--regex", regex]].concat(), &[], input)
    };
    let saved = at("saved");
    let run = think("", &format!("hi\n/save {saved}\nhi\n"));
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.out.lines().count() == 2 && run.out.lines().all(|line| line == "yes" || line == "no"), "{}", run.out);
    let thoughts = run.err.lines().next().expect("thoughts").to_string();
    assert!(thoughts.len() >= 2 && thoughts.bytes().all(|byte| b"ab".contains(&byte)), "{}", run.err);
    let object: Value = serde_json::from_str(&std::fs::read_to_string(&saved).expect("saved")).expect("JSON");
    assert_eq!(object["messages"][1]["reasoning_content"], thoughts.as_str());
    let coloured = think("--color always", "hi\n");
    let answer = run.out.lines().next().expect("an answer");
    assert!(coloured.out.ends_with(&format!("\x1b[0m\n\n{answer}\n")), "{:?}", coloured.out);
    assert_eq!(coloured.out.replace("\x1b[2m", "").replace("\x1b[0m", ""), format!("{thoughts}\n\n{answer}\n"));
    assert_eq!(think("--quiet", "hi\n").err, "");
}

#[test]
fn a_conversation_remembers_until_it_is_cleared() {
    let chat = |input: &str| {
        let run = chat("-s 3", input);
        assert_eq!(run.err, "");
        run.ok()
    };
    let hello = chat("hello\n");
    assert!(hello.trim().len() > 3, "{hello}");
    let twice = chat("hello\nhello\n");
    assert!(twice.starts_with(&hello), "{twice}");
    assert_eq!(chat("hello\n/clear\nhello\n"), format!("{hello}{hello}"));
    assert_eq!(chat("hello\n/exit\nhello\n"), hello);
    assert_eq!(chat("\n"), "");
}

#[test]
fn a_turn_that_does_not_fit_is_reported_and_dropped() {
    let long = "many words ".repeat(40);
    let found = run_with(&words("chat -s 3 -n 8 -c 64"), &[], format!("{long}\nhello\n"));
    assert!(found.err.contains("the context 64: /clear begins a new one"), "{}", found.err);
    assert_eq!((found.code, found.err.lines().last()), (1, Some("error: 1 of 2 turns got no answer")));
    assert_eq!(found.out, run_with(&words("chat -s 3 -n 8 -c 64"), &[], "hello\n").ok());
}

#[test]
fn regen_answers_again() {
    let chat = |input: &str| run_with(&words("chat -s 3 -n 16 --temp 1.2 --show-drafts=table"), &[], input);
    let texts = |out: &str| -> Vec<String> {
        let rows = |line: &&str| line.split_whitespace().next().is_some_and(|word| word.parse::<usize>().is_ok());
        out.lines().filter(|line| !rows(line) && !line.trim().starts_with("pass")).map(str::to_string).collect()
    };
    let question = "tell me a story about the little girl who had a red ball and a brown dog in the forest";
    let found = chat(&format!("{question}\n/regen\n/regen\n"));
    let lines: Vec<&str> = found.err.lines().filter(|line| line.contains("passes of the target")).collect();
    assert_eq!(lines.len(), 3, "{}", found.err);
    // The first answer has computed the prompt but its last token.
    assert!(!lines[0].contains("from the cache") && lines[1].contains(" prompt tokens from the cache"), "{lines:?}");
    let first = texts(&chat(&format!("{question}\n")).ok());
    let all = texts(&found.ok());
    assert!(all.starts_with(&first[..1]) && all.iter().filter(|line| **line == first[0]).count() == 1, "{all:?}");
    let nothing = chat("/regen\n");
    assert_eq!(nothing.err.lines().last(), Some("/regen: expected an answer before it, found none"));
    let other = chat("/again\n");
    assert_eq!(other.err.lines().last(), Some("/again: expected one of the commands that /help lists"));
}
