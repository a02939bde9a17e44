//! Examples of each command, for `-h` and the manual.

const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "foretoken MODEL                             talk with it: a directory, .gguf file or org/name",
            "foretoken run MODEL \"Why is the sky blue?\"  ask it once",
            "foretoken generate MODEL \"Once upon a time\" -n 64",
            "foretoken serve MODEL --port 8000           OpenAI's API, and a page to look at it",
        ],
    ),
    (
        "generate",
        &[
            "foretoken generate \"Once upon a time\" -n 64",
            "foretoken generate -m model.gguf -md small.gguf -f prompt.txt --temp 0",
            "cat notes.txt | foretoken generate -m model/ --json",
        ],
    ),
    (
        "batch",
        &[
            "foretoken batch -m model.gguf requests.jsonl -o answers.jsonl",
            "foretoken batch -m model/ -md small/ --chat prompts.txt -o answers.jsonl -n 64",
        ],
    ),
    ("pull", &["foretoken pull Qwen/Qwen2.5-1.5B-Instruct"]),
    (
        "chat",
        &[
            "foretoken chat model.gguf",
            "foretoken chat model.gguf \"Hello!\"",
            "foretoken chat model/ -md small/ --system \"Answer in one sentence.\"",
        ],
    ),
    (
        "serve",
        &["foretoken serve model.gguf", "foretoken serve model/ -md small/ --host 0.0.0.0 --api-key-file keys.txt"],
    ),
    ("inspect", &["foretoken inspect model.gguf"]),
    ("check", &["foretoken check -m model/ -md small/ --prompts prompts.txt -n 64"]),
    (
        "hidden",
        &[
            "foretoken hidden -m model.gguf --texts texts.jsonl -o rows/",
            "foretoken hidden -m model/ --texts texts.jsonl --layers 1,3,6 -o - | wc -c",
        ],
    ),
    ("quantize", &["foretoken quantize model/ model-q4.gguf --type q4_k_m"]),
    ("lookup build", &["foretoken lookup build corpus/ -m model/ -o texts.bin"]),
    ("bench pass", &["foretoken bench pass -m model.gguf --rows 1,4,16"]),
    ("analyze", &["foretoken analyze -m model/ -md small/ --prompts prompts.jsonl --gamma 1,3,5 -n 64"]),
    ("bench generate", &["foretoken bench generate --prompts prompts.jsonl --spec-type suffix,draft --temp 0 -n 64"]),
    (
        "bench replay",
        &[
            "foretoken bench replay records.jsonl -m model/ --spec-type lookup,suffix",
            "foretoken bench replay records.jsonl --on model/ -n 64",
        ],
    ),
    ("completions", &["foretoken completions bash > ~/.local/share/bash-completion/completions/foretoken"]),
    ("man", &["foretoken man generate | man -l -"]),
    ("config", &["foretoken config", "foretoken config chat -m model/ --temp 0.5"]),
];

/// The examples of the command of this path, one a line.
pub fn examples(path: &[String]) -> &'static [&'static str] {
    let name = path.join(" ");
    EXAMPLES.iter().find(|(command, _)| *command == name).map_or(&[], |(_, examples)| *examples)
}
