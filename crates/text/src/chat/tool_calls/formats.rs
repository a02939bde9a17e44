//! The tool-call formats, each as a grammar. The table of [`super`] has examples.

use super::grammar::{COMPLETE, Delimiter, Field, Grammar, Node, begins, delimiter};
use super::literal::{FUNCTION_GEMMA, GEMMA_4, PYTHON};

/// One of these delimiters must come next.
const fn only(delimiters: &'static [Delimiter]) -> Node {
    Node::Delimiters { delimiters, otherwise: None, may_end: false }
}

/// The delimiters that close calls; the text may end before.
const fn closes(delimiters: &'static [Delimiter]) -> Node {
    Node::Delimiters { delimiters, otherwise: None, may_end: true }
}

const fn calls(then: &'static Node) -> Node {
    Node::Calls { is_bare: false, then }
}

const fn name(ends: &'static [u8], then: &'static Node) -> Node {
    Node::Word { field: Field::Name, ends, then }
}

const fn call(then: &'static Node) -> Node {
    Node::Call { then }
}

/// Calls between an opening and a closing delimiter.
const fn between(opens: &'static [Delimiter], delimiters: &'static [&'static str]) -> Grammar {
    Grammar { opens, first: &[], after_calls: &[], delimiters }
}

// Hermes, Qwen.
static HERMES_END: Node = closes(&[delimiter("</tool_call>", &COMPLETE)]);
static HERMES_JSON: Node = calls(&HERMES_END);
pub(super) static HERMES: Grammar =
    between(&[delimiter("<tool_call>", &HERMES_JSON)], &["<tool_call>", "</tool_call>"]);

// Phi-4-mini.
static PHI_END: Node = closes(&[delimiter("<|/tool_call|>", &COMPLETE)]);
static PHI_JSON: Node = calls(&PHI_END);
pub(super) static PHI_4_MINI: Grammar =
    between(&[delimiter("<|tool_call|>", &PHI_JSON)], &["<|tool_call|>", "<|/tool_call|>"]);

// Granite 3: one delimiter, of either spelling, and none at the end.
static GRANITE_END: Node =
    Node::Delimiters { delimiters: &[delimiter("</tool_call>", &COMPLETE)], otherwise: Some(&COMPLETE), may_end: true };
static GRANITE_JSON: Node = calls(&GRANITE_END);
pub(super) static GRANITE: Grammar = between(
    &[delimiter("<|tool_call|>", &GRANITE_JSON), delimiter("<tool_call>", &GRANITE_JSON)],
    &["<|tool_call|>", "<tool_call>", "</tool_call>"],
);

// functools[...], of Phi-4-mini and FireFunction.
static FUNCTOOLS_JSON: Node = calls(&COMPLETE);
static FUNCTOOLS_LIST: Node = only(&[begins("[", &FUNCTOOLS_JSON)]);
pub(super) static FUNCTOOLS: Grammar = between(&[delimiter("functools", &FUNCTOOLS_LIST)], &[]);

// Command-R7B and later.
static COMMAND_R7B_END: Node = closes(&[delimiter("<|END_ACTION|>", &COMPLETE)]);
static COMMAND_R7B_JSON: Node = calls(&COMMAND_R7B_END);
pub(super) static COMMAND_R7B: Grammar =
    between(&[delimiter("<|START_ACTION|>", &COMMAND_R7B_JSON)], &["<|START_ACTION|>", "<|END_ACTION|>"]);

// Command-R.
static COMMAND_R_END: Node = closes(&[delimiter("```", &COMPLETE)]);
static COMMAND_R_JSON: Node = calls(&COMMAND_R_END);
static COMMAND_R_BEGIN: Node = only(&[delimiter("```json", &COMMAND_R_JSON)]);
pub(super) static COMMAND_R: Grammar = between(&[delimiter("Action:", &COMMAND_R_BEGIN)], &[]);

// InternLM 2.5.
static INTERN_END: Node = closes(&[delimiter("<|action_end|>", &COMPLETE)]);
static INTERN_JSON: Node = calls(&INTERN_END);
static INTERN_PLUGIN: Node = only(&[delimiter("<|plugin|>", &INTERN_JSON)]);
pub(super) static INTERN_LM: Grammar =
    between(&[delimiter("<|action_start|>", &INTERN_PLUGIN)], &["<|action_start|>", "<|plugin|>", "<|action_end|>"]);

// Nemotron.
static NEMOTRON_END: Node = closes(&[delimiter("</TOOLCALL>", &COMPLETE)]);
static NEMOTRON_JSON: Node = calls(&NEMOTRON_END);
pub(super) static NEMOTRON: Grammar =
    between(&[delimiter("<TOOLCALL>", &NEMOTRON_JSON)], &["<TOOLCALL>", "</TOOLCALL>"]);

// A list of calls, of Apriel and Hunyuan.
static LIST_END: Node = closes(&[delimiter("</tool_calls>", &COMPLETE)]);
static LIST_JSON: Node = calls(&LIST_END);
pub(super) static TOOL_CALLS_LIST: Grammar =
    between(&[delimiter("<tool_calls>", &LIST_JSON)], &["<tool_calls>", "</tool_calls>"]);

// Mistral: a list, or since 2025 a name with its arguments.
static MISTRAL_LIST: Node = calls(&COMPLETE);
static MISTRAL_CALL: Node = call(&COMPLETE);
static MISTRAL_ARGUMENTS: Node = Node::Arguments { then: &MISTRAL_CALL };
static MISTRAL_AFTER_ID: Node = only(&[delimiter("[ARGS]", &MISTRAL_ARGUMENTS)]);
static MISTRAL_ID: Node = Node::Word { field: Field::Id, ends: b"[", then: &MISTRAL_AFTER_ID };
static MISTRAL_AFTER_NAME: Node = only(&[
    delimiter("[ARGS]", &MISTRAL_ARGUMENTS),
    delimiter("[CALL_ID]", &MISTRAL_ID),
    begins("{", &MISTRAL_ARGUMENTS),
]);
static MISTRAL_NAME: Node = name(b"[{", &MISTRAL_AFTER_NAME);
static MISTRAL_BEGIN: Node = Node::Delimiters {
    delimiters: &[begins("[", &MISTRAL_LIST), begins("{", &MISTRAL_LIST)],
    otherwise: Some(&MISTRAL_NAME),
    may_end: false,
};
pub(super) static MISTRAL: Grammar =
    between(&[delimiter("[TOOL_CALLS]", &MISTRAL_BEGIN)], &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]);

// DeepSeek: R1 and V3 write `function`, the separator, the name and fenced JSON, V3.1 the name, the separator and JSON.
static DEEPSEEK_CALL: Node = call(&COMPLETE);
static DEEPSEEK_END: Node = only(&[delimiter("<｜tool▁call▁end｜>", &DEEPSEEK_CALL)]);
static DEEPSEEK_JSON: Node = Node::Arguments { then: &DEEPSEEK_END };
static DEEPSEEK_FENCE_END: Node = only(&[delimiter("```", &DEEPSEEK_END)]);
static DEEPSEEK_FENCED: Node = Node::Arguments { then: &DEEPSEEK_FENCE_END };
static DEEPSEEK_FENCE: Node = only(&[delimiter("```json", &DEEPSEEK_FENCED)]);
static DEEPSEEK_NAME: Node = name(b"\n`", &DEEPSEEK_FENCE);
static DEEPSEEK_AFTER_SEPARATOR: Node =
    Node::Delimiters { delimiters: &[begins("{", &DEEPSEEK_JSON)], otherwise: Some(&DEEPSEEK_NAME), may_end: false };
static DEEPSEEK_SEPARATOR: Node = only(&[delimiter("<｜tool▁sep｜>", &DEEPSEEK_AFTER_SEPARATOR)]);
static DEEPSEEK_KIND: Node = Node::Word { field: Field::Kind, ends: b"<", then: &DEEPSEEK_SEPARATOR };
static DEEPSEEK_BEGIN: Node = only(&[delimiter("<｜tool▁call▁begin｜>", &DEEPSEEK_KIND)]);
pub(super) static DEEPSEEK: Grammar = Grammar {
    opens: &[delimiter("<｜tool▁calls▁begin｜>", &DEEPSEEK_BEGIN), delimiter("<｜tool▁call▁begin｜>", &DEEPSEEK_KIND)],
    first: &[],
    after_calls: &[delimiter("<｜tool▁calls▁end｜>", &COMPLETE)],
    delimiters: &[
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ],
};

// Qwen3-Coder and Seed-OSS: tags around every argument, or JSON between the tags of the function.
static FUNCTION_END: Node = Node::Delimiters {
    delimiters: &[delimiter("</tool_call>", &COMPLETE), delimiter("</seed:tool_call>", &COMPLETE)],
    otherwise: Some(&COMPLETE),
    may_end: true,
};
static FUNCTION_CALL: Node = call(&FUNCTION_END);
static FUNCTION_JSON_END: Node = only(&[delimiter("</function>", &FUNCTION_CALL)]);
static FUNCTION_JSON: Node = Node::Arguments { then: &FUNCTION_JSON_END };
static FUNCTION_ARGUMENTS: Node = only(&[
    delimiter("<parameter=", &PARAMETER_KEY),
    delimiter("</function>", &FUNCTION_CALL),
    begins("{", &FUNCTION_JSON),
]);
static PARAMETER_VALUE: Node =
    Node::Text { field: Field::Value { has_lines: true }, end: "</parameter>", then: &FUNCTION_ARGUMENTS };
static PARAMETER_OPEN: Node = only(&[delimiter(">", &PARAMETER_VALUE)]);
static PARAMETER_KEY: Node = Node::Word { field: Field::Key, ends: b">", then: &PARAMETER_OPEN };
static FUNCTION_OPEN: Node = only(&[delimiter(">", &FUNCTION_ARGUMENTS)]);
static FUNCTION_NAME: Node = name(b">", &FUNCTION_OPEN);
static FUNCTION_BEGIN: Node = only(&[delimiter("<function=", &FUNCTION_NAME)]);
pub(super) static QWEN_3_CODER: Grammar = between(
    &[delimiter("<tool_call>", &FUNCTION_BEGIN), delimiter("<function=", &FUNCTION_NAME)],
    &["<tool_call>", "</tool_call>"],
);
pub(super) static SEED_OSS: Grammar = between(
    &[delimiter("<seed:tool_call>", &FUNCTION_BEGIN), delimiter("<function=", &FUNCTION_NAME)],
    &["<seed:tool_call>", "</seed:tool_call>"],
);

// GLM 4.5.
static GLM_CALL: Node = call(&COMPLETE);
static GLM_ARGUMENTS: Node = only(&[delimiter("<arg_key>", &GLM_KEY), delimiter("</tool_call>", &GLM_CALL)]);
static GLM_VALUE: Node =
    Node::Text { field: Field::Value { has_lines: false }, end: "</arg_value>", then: &GLM_ARGUMENTS };
static GLM_VALUE_OPEN: Node = only(&[delimiter("<arg_value>", &GLM_VALUE)]);
static GLM_KEY: Node = Node::Text { field: Field::Key, end: "</arg_key>", then: &GLM_VALUE_OPEN };
static GLM_NAME: Node = name(b"\r\n <", &GLM_ARGUMENTS);
pub(super) static GLM_4_5: Grammar = between(
    &[delimiter("<tool_call>", &GLM_NAME)],
    &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
);

// Gemma 4 and FunctionGemma.
static GEMMA_4_END: Node = closes(&[delimiter("<tool_call|>", &COMPLETE)]);
static GEMMA_4_CALL: Node = call(&GEMMA_4_END);
static GEMMA_4_ARGUMENTS: Node = Node::Literal { syntax: &GEMMA_4, then: &GEMMA_4_CALL };
static GEMMA_4_OPEN: Node = only(&[delimiter("{", &GEMMA_4_ARGUMENTS)]);
static GEMMA_4_NAME: Node = name(b"{", &GEMMA_4_OPEN);
static GEMMA_4_BEGIN: Node = only(&[delimiter("call:", &GEMMA_4_NAME)]);
pub(super) static GEMMA_4_CALLS: Grammar =
    between(&[delimiter("<|tool_call>", &GEMMA_4_BEGIN)], &["<|tool_call>", "<tool_call|>", "<|\"|>"]);

static FUNCTION_GEMMA_END: Node = closes(&[delimiter("<end_function_call>", &COMPLETE)]);
static FUNCTION_GEMMA_CALL: Node = call(&FUNCTION_GEMMA_END);
static FUNCTION_GEMMA_ARGUMENTS: Node = Node::Literal { syntax: &FUNCTION_GEMMA, then: &FUNCTION_GEMMA_CALL };
static FUNCTION_GEMMA_OPEN: Node = only(&[delimiter("{", &FUNCTION_GEMMA_ARGUMENTS)]);
static FUNCTION_GEMMA_NAME: Node = name(b"{", &FUNCTION_GEMMA_OPEN);
static FUNCTION_GEMMA_BEGIN: Node = only(&[delimiter("call:", &FUNCTION_GEMMA_NAME)]);
pub(super) static FUNCTION_GEMMA_CALLS: Grammar = between(
    &[delimiter("<start_function_call>", &FUNCTION_GEMMA_BEGIN)],
    &["<start_function_call>", "<end_function_call>", "<escape>"],
);

// Python: a list of calls at the beginning of an answer.
static LIST_NEXT: Node = only(&[delimiter(",", &LIST_NAME), delimiter("]", &COMPLETE)]);
static LIST_CALL: Node = call(&LIST_NEXT);
static LIST_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &LIST_CALL };
static LIST_OPEN: Node = only(&[delimiter("(", &LIST_ARGUMENTS)]);
static LIST_NAME: Node = name(b"(", &LIST_OPEN);
static LIST_BEGIN: Node = only(&[delimiter("[", &LIST_NAME)]);
pub(super) static PYTHONIC: Grammar = Grammar {
    opens: &[delimiter("<|python_start|>", &LIST_BEGIN)],
    first: &[delimiter("[", &LIST_NAME)],
    after_calls: &[delimiter("<|python_end|>", &COMPLETE)],
    delimiters: &["<|python_start|>", "<|python_end|>"],
};

// Python between delimiters, of OLMo 3: one call on each line.
static OLMO_NEXT: Node = Node::Delimiters {
    delimiters: &[delimiter("</function_calls>", &COMPLETE)],
    otherwise: Some(&OLMO_NAME),
    may_end: true,
};
static OLMO_CALL: Node = call(&OLMO_NEXT);
static OLMO_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &OLMO_CALL };
static OLMO_OPEN: Node = only(&[delimiter("(", &OLMO_ARGUMENTS)]);
static OLMO_NAME: Node = name(b"(", &OLMO_OPEN);
pub(super) static OLMO_3: Grammar =
    between(&[delimiter("<function_calls>", &OLMO_NAME)], &["<function_calls>", "</function_calls>"]);

// Python in a fence, of Gemma 3: one call on each line, or printed, or a list of them.
static FENCE_END: Node = closes(&[delimiter("```", &COMPLETE)]);
static FENCE_NEXT: Node =
    Node::Delimiters { delimiters: &[delimiter("```", &COMPLETE)], otherwise: Some(&FENCE_NAME), may_end: true };
static FENCE_CALL: Node = call(&FENCE_NEXT);
static FENCE_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &FENCE_CALL };
static FENCE_OPEN: Node = only(&[delimiter("(", &FENCE_ARGUMENTS)]);
static FENCE_NAME: Node = name(b"(", &FENCE_OPEN);
static FENCED_LIST_NEXT: Node = only(&[delimiter(",", &FENCED_LIST_NAME), delimiter("]", &FENCE_END)]);
static FENCED_LIST_CALL: Node = call(&FENCED_LIST_NEXT);
static FENCED_LIST_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &FENCED_LIST_CALL };
static FENCED_LIST_OPEN: Node = only(&[delimiter("(", &FENCED_LIST_ARGUMENTS)]);
static FENCED_LIST_NAME: Node = name(b"(", &FENCED_LIST_OPEN);
static PRINTED_END: Node = only(&[delimiter(")", &FENCE_END)]);
static PRINTED_CALL: Node = call(&PRINTED_END);
static PRINTED_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &PRINTED_CALL };
static PRINTED_OPEN: Node = only(&[delimiter("(", &PRINTED_ARGUMENTS)]);
static PRINTED_NAME: Node = name(b"(", &PRINTED_OPEN);
static FENCE_BEGIN: Node = Node::Delimiters {
    delimiters: &[delimiter("[", &FENCED_LIST_NAME), delimiter("print(", &PRINTED_NAME)],
    otherwise: Some(&FENCE_NAME),
    may_end: false,
};
pub(super) static GEMMA_TOOL_CODE: Grammar = between(&[delimiter("```tool_code", &FENCE_BEGIN)], &[]);

// Llama 3: an object at the beginning of an answer, or after a delimiter. Some write several.
static BARE_JSON: Node = Node::Calls { is_bare: true, then: &COMPLETE };
static BARE_NEXT: Node = only(&[begins("{", &BARE_JSON)]);
static LLAMA_JSON_MARKED: Node = calls(&COMPLETE);
static LLAMA_BEGIN: Node = only(&[begins("{", &LLAMA_JSON_MARKED)]);
pub(super) static LLAMA_JSON: Grammar = Grammar {
    opens: &[delimiter("<|python_tag|>", &LLAMA_BEGIN)],
    first: &[begins("{", &BARE_JSON)],
    after_calls: &[delimiter(";", &BARE_NEXT), begins("{", &BARE_JSON)],
    delimiters: &["<|python_tag|>"],
};

// Models without a format of their own.
pub(super) static GENERIC: Grammar = Grammar {
    opens: &[delimiter("<tool_call>", &HERMES_JSON)],
    first: &[begins("{", &BARE_JSON), begins("[", &BARE_JSON)],
    after_calls: &[],
    delimiters: &["<tool_call>", "</tool_call>"],
};
