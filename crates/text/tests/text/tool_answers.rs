//! Answers of models in each tool-call format, written for these tests: calls, near misses, truncated calls.

use foretoken_text::ToolFormat;

/// Names and arguments.
pub type Calls<'a> = &'a [(&'a str, &'a str)];

/// Answers with their calls and the remaining text; `*` is the whole answer without calls at its beginning.
pub const ANSWERS: [(ToolFormat, &str, Calls, &str); 45] = [
    (
        ToolFormat::Hermes,
        "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}\n</tool_call>\n\
         <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call> Done.",
        &[("f", r#"{"a": "</tool_call>"}"#), ("g", "{}")],
        "I look.\n Done.",
    ),
    (ToolFormat::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n", &[("f", "{}")], ""),
    (ToolFormat::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool", &[("f", "{}")], ""),
    (
        ToolFormat::Hermes,
        "<tool_call><tool_call>{\"name\": \"f\"}</tool_call></tool_call>",
        &[("f", "{}")],
        "<tool_call></tool_call>",
    ),
    (
        ToolFormat::Hermes,
        "<tool_call>{\"name\": <tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1e999}}</tool_call>",
        &[("f", "{\"n\": 1e999}")],
        "<tool_call>{\"name\": ",
    ),
    (
        ToolFormat::LlamaJson,
        "\n{\"name\": \"f\", \"parameters\": {\"a\": 1.0}}; {\"name\": \"g\", \"parameters\": {}}",
        &[("f", "{\"a\": 1.0}"), ("g", "{}")],
        "",
    ),
    (
        ToolFormat::LlamaJson,
        "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}",
        &[("f", "{}")],
        "",
    ),
    (ToolFormat::LlamaJson, "Say <|python_tag|> {\"name\": \"f\"}; and", &[("f", "{}")], "Say ; and"),
    (ToolFormat::LlamaJson, "It is {\"name\": \"f\", \"parameters\": {}}", &[], "*"),
    (ToolFormat::LlamaJson, "{\"name\": \"Ann\", \"age\": 5}", &[], "*"),
    (ToolFormat::LlamaJson, "{\"name\": \"Ann\"}", &[], "*"),
    (ToolFormat::LlamaJson, "<|python_tag|>print(1)", &[], "*"),
    (ToolFormat::Pythonic, "[f(a=1, b=\"x\"), get-g.h()]", &[("f", "{\"a\": 1, \"b\": \"x\"}"), ("get-g.h", "{}")], ""),
    (ToolFormat::Pythonic, "So: <|python_start|>[f(a=[True])]<|python_end|>.", &[("f", "{\"a\": [true]}")], "So: ."),
    (ToolFormat::Pythonic, "[a link](https://b.c/)", &[], "*"),
    (ToolFormat::Pythonic, "[1, 2]", &[], "*"),
    (ToolFormat::Pythonic, "[f(a=1), g(2)]", &[], "*"),
    (
        ToolFormat::Mistral,
        "Yes.[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}]",
        &[("f", "{\"a\": 1}")],
        "Yes.",
    ),
    (
        ToolFormat::Mistral,
        "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]h{}",
        &[("f", "{\"a\": 1}"), ("g", "{}"), ("h", "{}")],
        "",
    ),
    (ToolFormat::Mistral, "[TOOL_CALLS] are calls [TOOL_CALLS][]", &[], "*"),
    (
        ToolFormat::Phi4Mini,
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]<|/tool_call|>",
        &[("f", "{}"), ("g", "{}")],
        "",
    ),
    (ToolFormat::Phi4Mini, "<|tool_call|>[{\"name\": \"f\", \"arguments\": []}]<|/tool_call|>", &[], "*"),
    (ToolFormat::Functools, "functools[{\"name\": \"f\", \"arguments\": {}}] or", &[("f", "{}")], " or"),
    (ToolFormat::Functools, "import functools\nfunctools[0]", &[], "*"),
    (
        ToolFormat::Granite,
        "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}] <tool_call>{\"name\": \"g\"}</tool_call>.",
        &[("f", "{}"), ("g", "{}")],
        ".",
    ),
    (
        ToolFormat::CommandR,
        "Action: ```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {\"a\": 1}\n    }\n]```",
        &[("f", "{\"a\": 1}")],
        "",
    ),
    (
        ToolFormat::CommandR7b,
        "<|START_ACTION|>[\n{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {}}\n]<|END_ACTION|>",
        &[("f", "{}")],
        "",
    ),
    (
        ToolFormat::DeepSeek,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &[("f", "{\"a\": 1}"), ("g", "{}")],
        "",
    ),
    (
        ToolFormat::DeepSeek,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>g<｜tool▁sep｜>{",
        &[("f", "{\"a\": 1}")],
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{",
    ),
    (
        ToolFormat::Qwen3Coder,
        "<tool_call>\n<function=f>\n<parameter=a>\nline\n<b>\n\n</parameter>\n<parameter=n>\n5\n</parameter>\n\
         </function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        &[("f", "{\"a\": \"line\\n<b>\\n\", \"n\": 5}"), ("g", "{}")],
        "",
    ),
    (ToolFormat::Qwen3Coder, "<function=f>{\"a\": 1}</function> so", &[("f", "{\"a\": 1}")], "so"),
    (ToolFormat::Qwen3Coder, "<tool_call><function=f><parameter=a>1</function></tool_call>", &[], "*"),
    (
        ToolFormat::SeedOss,
        "<seed:tool_call>\n<function=f>\n<parameter=a>x</parameter>\n</function>\n</seed:tool_call>",
        &[("f", "{\"a\": \"x\"}")],
        "",
    ),
    (
        ToolFormat::Glm45,
        "\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x y</arg_value>\n<arg_key>n</arg_key>\n\
         <arg_value>[1]</arg_value>\n</tool_call>",
        &[("f", "{\"a\": \"x y\", \"n\": [1]}")],
        "\n",
    ),
    (ToolFormat::Glm45, "<tool_call>f</tool_call><tool_call>two words</tool_call>", &[("f", "{}")], "*"),
    (
        ToolFormat::InternLm,
        "Well,<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {\"a\": \"é\"}}<|action_end|>",
        &[("f", "{\"a\": \"é\"}")],
        "Well,",
    ),
    (
        ToolFormat::Gemma4,
        "<|tool_call>call:f{a:1,b:<|\"|>x, {y}<|\"|>}<tool_call|><|tool_call>call:g{}<tool_call|>",
        &[("f", "{\"a\": 1, \"b\": \"x, {y}\"}"), ("g", "{}")],
        "",
    ),
    (ToolFormat::Gemma4, "<|tool_call>call:f{a:word}<tool_call|>", &[], "*"),
    (
        ToolFormat::FunctionGemma,
        "<start_function_call>call:f{b:<escape>x<escape>,n:2}<end_function_call>",
        &[("f", "{\"b\": \"x\", \"n\": 2}")],
        "",
    ),
    (
        ToolFormat::GemmaToolCode,
        "```tool_code\nf(a='x')\ng()\n``` ```tool_code\nprint(h(b=2))\n``` ```tool_code\n[i(), j()]\n```",
        &[("f", "{\"a\": \"x\"}"), ("g", "{}"), ("h", "{\"b\": 2}"), ("i", "{}"), ("j", "{}")],
        "",
    ),
    (ToolFormat::GemmaToolCode, "```tool_code\nx = 1\n```", &[], "*"),
    (
        ToolFormat::Olmo3,
        "<function_calls>\nf(a='x', n=null)\ng(b={\"c\": [1]})\n</function_calls>",
        &[("f", "{\"a\": \"x\", \"n\": null}"), ("g", "{\"b\": {\"c\": [1]}}")],
        "",
    ),
    (
        ToolFormat::Nemotron,
        "<TOOLCALL>[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}]</TOOLCALL>",
        &[("f", "{\"a\": 1}")],
        "",
    ),
    (
        ToolFormat::ToolCallsList,
        "<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>!",
        &[("f", "{}")],
        "!",
    ),
    (
        ToolFormat::Generic,
        "[{\"name\": \"f\", \"arguments\": {}}]<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
        &[("f", "{}"), ("g", "{}")],
        "",
    ),
];
