//! The tool-call formats, each as a grammar. The table of [`super`] has examples.

use super::grammar::{COMPLETE, Field, Grammar, Mark, Node, begins, mark};
use super::literal::{FUNCTION_GEMMA, GEMMA_4, PYTHON};

/// One of these marks must come next.
const fn only(marks: &'static [Mark]) -> Node {
    Node::Marks { marks, otherwise: None, may_end: false }
}

/// The marks that close calls; the text may end before.
const fn closes(marks: &'static [Mark]) -> Node {
    Node::Marks { marks, otherwise: None, may_end: true }
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

/// Calls between an opening and a closing mark.
const fn between(opens: &'static [Mark], marks: &'static [&'static str]) -> Grammar {
    Grammar { opens, first: &[], after_calls: &[], marks }
}

// Hermes, Qwen.
static HERMES_END: Node = closes(&[mark("</tool_call>", &COMPLETE)]);
static HERMES_JSON: Node = calls(&HERMES_END);
pub(super) static HERMES: Grammar = between(&[mark("<tool_call>", &HERMES_JSON)], &["<tool_call>", "</tool_call>"]);

// Phi-4-mini.
static PHI_END: Node = closes(&[mark("<|/tool_call|>", &COMPLETE)]);
static PHI_JSON: Node = calls(&PHI_END);
pub(super) static PHI_4_MINI: Grammar =
    between(&[mark("<|tool_call|>", &PHI_JSON)], &["<|tool_call|>", "<|/tool_call|>"]);

// Granite 3: one mark, of either spelling, and none at the end.
static GRANITE_END: Node =
    Node::Marks { marks: &[mark("</tool_call>", &COMPLETE)], otherwise: Some(&COMPLETE), may_end: true };
static GRANITE_JSON: Node = calls(&GRANITE_END);
pub(super) static GRANITE: Grammar = between(
    &[mark("<|tool_call|>", &GRANITE_JSON), mark("<tool_call>", &GRANITE_JSON)],
    &["<|tool_call|>", "<tool_call>", "</tool_call>"],
);

// functools[...], of Phi-4-mini and FireFunction.
static FUNCTOOLS_JSON: Node = calls(&COMPLETE);
static FUNCTOOLS_LIST: Node = only(&[begins("[", &FUNCTOOLS_JSON)]);
pub(super) static FUNCTOOLS: Grammar = between(&[mark("functools", &FUNCTOOLS_LIST)], &[]);

// Command-R7B and later.
static COMMAND_R7B_END: Node = closes(&[mark("<|END_ACTION|>", &COMPLETE)]);
static COMMAND_R7B_JSON: Node = calls(&COMMAND_R7B_END);
pub(super) static COMMAND_R7B: Grammar =
    between(&[mark("<|START_ACTION|>", &COMMAND_R7B_JSON)], &["<|START_ACTION|>", "<|END_ACTION|>"]);

// Command-R.
static COMMAND_R_END: Node = closes(&[mark("```", &COMPLETE)]);
static COMMAND_R_JSON: Node = calls(&COMMAND_R_END);
static COMMAND_R_BEGIN: Node = only(&[mark("```json", &COMMAND_R_JSON)]);
pub(super) static COMMAND_R: Grammar = between(&[mark("Action:", &COMMAND_R_BEGIN)], &[]);

// InternLM 2.5.
static INTERN_END: Node = closes(&[mark("<|action_end|>", &COMPLETE)]);
static INTERN_JSON: Node = calls(&INTERN_END);
static INTERN_PLUGIN: Node = only(&[mark("<|plugin|>", &INTERN_JSON)]);
pub(super) static INTERN_LM: Grammar =
    between(&[mark("<|action_start|>", &INTERN_PLUGIN)], &["<|action_start|>", "<|plugin|>", "<|action_end|>"]);

// Nemotron.
static NEMOTRON_END: Node = closes(&[mark("</TOOLCALL>", &COMPLETE)]);
static NEMOTRON_JSON: Node = calls(&NEMOTRON_END);
pub(super) static NEMOTRON: Grammar = between(&[mark("<TOOLCALL>", &NEMOTRON_JSON)], &["<TOOLCALL>", "</TOOLCALL>"]);

// A list of calls, of Apriel and Hunyuan.
static LIST_END: Node = closes(&[mark("</tool_calls>", &COMPLETE)]);
static LIST_JSON: Node = calls(&LIST_END);
pub(super) static TOOL_CALLS_LIST: Grammar =
    between(&[mark("<tool_calls>", &LIST_JSON)], &["<tool_calls>", "</tool_calls>"]);

// Mistral: a list, or since 2025 a name with its arguments.
static MISTRAL_LIST: Node = calls(&COMPLETE);
static MISTRAL_CALL: Node = call(&COMPLETE);
static MISTRAL_ARGUMENTS: Node = Node::Arguments { then: &MISTRAL_CALL };
static MISTRAL_BEHIND_ID: Node = only(&[mark("[ARGS]", &MISTRAL_ARGUMENTS)]);
static MISTRAL_ID: Node = Node::Word { field: Field::Id, ends: b"[", then: &MISTRAL_BEHIND_ID };
static MISTRAL_BEHIND_NAME: Node =
    only(&[mark("[ARGS]", &MISTRAL_ARGUMENTS), mark("[CALL_ID]", &MISTRAL_ID), begins("{", &MISTRAL_ARGUMENTS)]);
static MISTRAL_NAME: Node = name(b"[{", &MISTRAL_BEHIND_NAME);
static MISTRAL_BEGIN: Node = Node::Marks {
    marks: &[begins("[", &MISTRAL_LIST), begins("{", &MISTRAL_LIST)],
    otherwise: Some(&MISTRAL_NAME),
    may_end: false,
};
pub(super) static MISTRAL: Grammar =
    between(&[mark("[TOOL_CALLS]", &MISTRAL_BEGIN)], &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]);

// DeepSeek: R1 and V3 write `function`, the mark, the name and fenced JSON, V3.1 the name, the mark and JSON.
static DEEPSEEK_CALL: Node = call(&COMPLETE);
static DEEPSEEK_END: Node = only(&[mark("<｜tool▁call▁end｜>", &DEEPSEEK_CALL)]);
static DEEPSEEK_JSON: Node = Node::Arguments { then: &DEEPSEEK_END };
static DEEPSEEK_FENCE_END: Node = only(&[mark("```", &DEEPSEEK_END)]);
static DEEPSEEK_FENCED: Node = Node::Arguments { then: &DEEPSEEK_FENCE_END };
static DEEPSEEK_FENCE: Node = only(&[mark("```json", &DEEPSEEK_FENCED)]);
static DEEPSEEK_NAME: Node = name(b"\n`", &DEEPSEEK_FENCE);
static DEEPSEEK_BEHIND: Node =
    Node::Marks { marks: &[begins("{", &DEEPSEEK_JSON)], otherwise: Some(&DEEPSEEK_NAME), may_end: false };
static DEEPSEEK_MARK: Node = only(&[mark("<｜tool▁sep｜>", &DEEPSEEK_BEHIND)]);
static DEEPSEEK_KIND: Node = Node::Word { field: Field::Kind, ends: b"<", then: &DEEPSEEK_MARK };
static DEEPSEEK_BEGIN: Node = only(&[mark("<｜tool▁call▁begin｜>", &DEEPSEEK_KIND)]);
pub(super) static DEEPSEEK: Grammar = Grammar {
    opens: &[mark("<｜tool▁calls▁begin｜>", &DEEPSEEK_BEGIN), mark("<｜tool▁call▁begin｜>", &DEEPSEEK_KIND)],
    first: &[],
    after_calls: &[mark("<｜tool▁calls▁end｜>", &COMPLETE)],
    marks: &[
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ],
};

// Qwen3-Coder and Seed-OSS: tags around every argument, or JSON between the tags of the function.
static FUNCTION_END: Node = Node::Marks {
    marks: &[mark("</tool_call>", &COMPLETE), mark("</seed:tool_call>", &COMPLETE)],
    otherwise: Some(&COMPLETE),
    may_end: true,
};
static FUNCTION_CALL: Node = call(&FUNCTION_END);
static FUNCTION_JSON_END: Node = only(&[mark("</function>", &FUNCTION_CALL)]);
static FUNCTION_JSON: Node = Node::Arguments { then: &FUNCTION_JSON_END };
static FUNCTION_ARGUMENTS: Node =
    only(&[mark("<parameter=", &PARAMETER_KEY), mark("</function>", &FUNCTION_CALL), begins("{", &FUNCTION_JSON)]);
static PARAMETER_VALUE: Node =
    Node::Text { field: Field::Value { has_lines: true }, end: "</parameter>", then: &FUNCTION_ARGUMENTS };
static PARAMETER_OPEN: Node = only(&[mark(">", &PARAMETER_VALUE)]);
static PARAMETER_KEY: Node = Node::Word { field: Field::Key, ends: b">", then: &PARAMETER_OPEN };
static FUNCTION_OPEN: Node = only(&[mark(">", &FUNCTION_ARGUMENTS)]);
static FUNCTION_NAME: Node = name(b">", &FUNCTION_OPEN);
static FUNCTION_BEGIN: Node = only(&[mark("<function=", &FUNCTION_NAME)]);
pub(super) static QWEN_3_CODER: Grammar = between(
    &[mark("<tool_call>", &FUNCTION_BEGIN), mark("<function=", &FUNCTION_NAME)],
    &["<tool_call>", "</tool_call>"],
);
pub(super) static SEED_OSS: Grammar = between(
    &[mark("<seed:tool_call>", &FUNCTION_BEGIN), mark("<function=", &FUNCTION_NAME)],
    &["<seed:tool_call>", "</seed:tool_call>"],
);

// GLM 4.5.
static GLM_CALL: Node = call(&COMPLETE);
static GLM_ARGUMENTS: Node = only(&[mark("<arg_key>", &GLM_KEY), mark("</tool_call>", &GLM_CALL)]);
static GLM_VALUE: Node =
    Node::Text { field: Field::Value { has_lines: false }, end: "</arg_value>", then: &GLM_ARGUMENTS };
static GLM_VALUE_MARK: Node = only(&[mark("<arg_value>", &GLM_VALUE)]);
static GLM_KEY: Node = Node::Text { field: Field::Key, end: "</arg_key>", then: &GLM_VALUE_MARK };
static GLM_NAME: Node = name(b"\r\n <", &GLM_ARGUMENTS);
pub(super) static GLM_4_5: Grammar = between(
    &[mark("<tool_call>", &GLM_NAME)],
    &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
);

// Gemma 4 and FunctionGemma.
static GEMMA_4_END: Node = closes(&[mark("<tool_call|>", &COMPLETE)]);
static GEMMA_4_CALL: Node = call(&GEMMA_4_END);
static GEMMA_4_ARGUMENTS: Node = Node::Literal { syntax: &GEMMA_4, then: &GEMMA_4_CALL };
static GEMMA_4_OPEN: Node = only(&[mark("{", &GEMMA_4_ARGUMENTS)]);
static GEMMA_4_NAME: Node = name(b"{", &GEMMA_4_OPEN);
static GEMMA_4_BEGIN: Node = only(&[mark("call:", &GEMMA_4_NAME)]);
pub(super) static GEMMA_4_CALLS: Grammar =
    between(&[mark("<|tool_call>", &GEMMA_4_BEGIN)], &["<|tool_call>", "<tool_call|>", "<|\"|>"]);

static FUNCTION_GEMMA_END: Node = closes(&[mark("<end_function_call>", &COMPLETE)]);
static FUNCTION_GEMMA_CALL: Node = call(&FUNCTION_GEMMA_END);
static FUNCTION_GEMMA_ARGUMENTS: Node = Node::Literal { syntax: &FUNCTION_GEMMA, then: &FUNCTION_GEMMA_CALL };
static FUNCTION_GEMMA_OPEN: Node = only(&[mark("{", &FUNCTION_GEMMA_ARGUMENTS)]);
static FUNCTION_GEMMA_NAME: Node = name(b"{", &FUNCTION_GEMMA_OPEN);
static FUNCTION_GEMMA_BEGIN: Node = only(&[mark("call:", &FUNCTION_GEMMA_NAME)]);
pub(super) static FUNCTION_GEMMA_CALLS: Grammar = between(
    &[mark("<start_function_call>", &FUNCTION_GEMMA_BEGIN)],
    &["<start_function_call>", "<end_function_call>", "<escape>"],
);

// Python: a list of calls at the beginning of an answer.
static LIST_NEXT: Node = only(&[mark(",", &LIST_NAME), mark("]", &COMPLETE)]);
static LIST_CALL: Node = call(&LIST_NEXT);
static LIST_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &LIST_CALL };
static LIST_OPEN: Node = only(&[mark("(", &LIST_ARGUMENTS)]);
static LIST_NAME: Node = name(b"(", &LIST_OPEN);
static LIST_BEGIN: Node = only(&[mark("[", &LIST_NAME)]);
pub(super) static PYTHONIC: Grammar = Grammar {
    opens: &[mark("<|python_start|>", &LIST_BEGIN)],
    first: &[mark("[", &LIST_NAME)],
    after_calls: &[mark("<|python_end|>", &COMPLETE)],
    marks: &["<|python_start|>", "<|python_end|>"],
};

// Python between marks, of OLMo 3: one call on each line.
static OLMO_NEXT: Node =
    Node::Marks { marks: &[mark("</function_calls>", &COMPLETE)], otherwise: Some(&OLMO_NAME), may_end: true };
static OLMO_CALL: Node = call(&OLMO_NEXT);
static OLMO_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &OLMO_CALL };
static OLMO_OPEN: Node = only(&[mark("(", &OLMO_ARGUMENTS)]);
static OLMO_NAME: Node = name(b"(", &OLMO_OPEN);
pub(super) static OLMO_3: Grammar =
    between(&[mark("<function_calls>", &OLMO_NAME)], &["<function_calls>", "</function_calls>"]);

// Python in a fence, of Gemma 3: one call on each line, or printed, or a list of them.
static FENCE_END: Node = closes(&[mark("```", &COMPLETE)]);
static FENCE_NEXT: Node = Node::Marks { marks: &[mark("```", &COMPLETE)], otherwise: Some(&FENCE_NAME), may_end: true };
static FENCE_CALL: Node = call(&FENCE_NEXT);
static FENCE_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &FENCE_CALL };
static FENCE_OPEN: Node = only(&[mark("(", &FENCE_ARGUMENTS)]);
static FENCE_NAME: Node = name(b"(", &FENCE_OPEN);
static FENCED_LIST_NEXT: Node = only(&[mark(",", &FENCED_LIST_NAME), mark("]", &FENCE_END)]);
static FENCED_LIST_CALL: Node = call(&FENCED_LIST_NEXT);
static FENCED_LIST_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &FENCED_LIST_CALL };
static FENCED_LIST_OPEN: Node = only(&[mark("(", &FENCED_LIST_ARGUMENTS)]);
static FENCED_LIST_NAME: Node = name(b"(", &FENCED_LIST_OPEN);
static PRINTED_END: Node = only(&[mark(")", &FENCE_END)]);
static PRINTED_CALL: Node = call(&PRINTED_END);
static PRINTED_ARGUMENTS: Node = Node::Literal { syntax: &PYTHON, then: &PRINTED_CALL };
static PRINTED_OPEN: Node = only(&[mark("(", &PRINTED_ARGUMENTS)]);
static PRINTED_NAME: Node = name(b"(", &PRINTED_OPEN);
static FENCE_BEGIN: Node = Node::Marks {
    marks: &[mark("[", &FENCED_LIST_NAME), mark("print(", &PRINTED_NAME)],
    otherwise: Some(&FENCE_NAME),
    may_end: false,
};
pub(super) static GEMMA_TOOL_CODE: Grammar = between(&[mark("```tool_code", &FENCE_BEGIN)], &[]);

// Llama 3: an object at the beginning of an answer, or behind a mark. Some write several.
static BARE_JSON: Node = Node::Calls { is_bare: true, then: &COMPLETE };
static BARE_NEXT: Node = only(&[begins("{", &BARE_JSON)]);
static LLAMA_JSON_MARKED: Node = calls(&COMPLETE);
static LLAMA_BEGIN: Node = only(&[begins("{", &LLAMA_JSON_MARKED)]);
pub(super) static LLAMA_JSON: Grammar = Grammar {
    opens: &[mark("<|python_tag|>", &LLAMA_BEGIN)],
    first: &[begins("{", &BARE_JSON)],
    after_calls: &[mark(";", &BARE_NEXT), begins("{", &BARE_JSON)],
    marks: &["<|python_tag|>"],
};

// Models without a format of their own.
pub(super) static GENERIC: Grammar = Grammar {
    opens: &[mark("<tool_call>", &HERMES_JSON)],
    first: &[begins("{", &BARE_JSON), begins("[", &BARE_JSON)],
    after_calls: &[],
    marks: &["<tool_call>", "</tool_call>"],
};
