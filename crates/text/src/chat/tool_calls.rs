//! Tool calls in a model's answer: the format that a model uses, and an incremental parser that separates text and
//! calls.
//!
//! Models were trained on very different formats, and only the chat template shows which one. So the format is found by
//! strings in the template's source ([`ToolFormat::of_template`]), as llama.cpp used to do. Each format is described as
//! data ([`formats`]) in a small grammar ([`grammar`]) that one [`reader`] follows; JSON, Python and Gemma's own
//! notation are read by scanners byte by byte ([`json`], [`literal`]).
//!
//! | format | what a call looks like | written by |
//! |---|---|---|
//! | `Hermes` | `<tool_call>{"name": "f", "arguments": {}}</tool_call>` | Qwen, Hermes, SmolLM 3 |
//! | `LlamaJson` | `{"name": "f", "parameters": {}}` as a beginning, or after `<\|python_tag\|>` | Llama 3 |
//! | `Pythonic` | `[f(a=1), g(b="x")]` as a beginning, or after `<\|python_start\|>` | Llama 3.2, Llama 4 |
//! | `Mistral` | `[TOOL_CALLS][{"name": "f", "arguments": {}}]`, `[TOOL_CALLS]f[CALL_ID]x[ARGS]{}` | Mistral |
//! | `Phi4Mini` | `<\|tool_call\|>[{"name": "f", "arguments": {}}]<\|/tool_call\|>` | Phi-4-mini |
//! | `Functools` | `functools[{"name": "f", "arguments": {}}]` | Phi-4-mini, FireFunction |
//! | `Granite` | `<\|tool_call\|>[{"name": "f", "arguments": {}}]` | Granite 3 |
//! | `CommandR` | ``Action: ```json [{"tool_name": "f", "parameters": {}}]``` `` | Command-R |
//! | `CommandR7b` | `<\|START_ACTION\|>[{"tool_name": "f", "parameters": {}}]<\|END_ACTION\|>` | Command-R7B |
//! | `DeepSeek` | `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>`, or with fenced JSON | DeepSeek |
//! | `Qwen3Coder` | `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>` | Qwen3-Coder |
//! | `SeedOss` | `<seed:tool_call><function=f><parameter=a>1</parameter></function></seed:tool_call>` | Seed-OSS |
//! | `Glm45` | `<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>` | GLM 4.5 |
//! | `InternLm` | `<\|action_start\|><\|plugin\|>{"name": "f", "parameters": {}}<\|action_end\|>` | InternLM 2.5 |
//! | `Gemma4` | `<\|tool_call>call:f{a:1,b:<\|"\|>x<\|"\|>}<tool_call\|>` | Gemma 4 |
//! | `FunctionGemma` | `<start_function_call>call:f{b:<escape>x<escape>}<end_function_call>` | FunctionGemma |
//! | `GemmaToolCode` | ```` ```tool_code f(a=1) ``` ````, also printed or in a list | Gemma 3 |
//! | `Olmo3` | `<function_calls>f(a=1)</function_calls>`, a call on each line | OLMo 3 |
//! | `Nemotron` | `<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>` | Nemotron |
//! | `ToolCallsList` | `<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>` | Hunyuan A13B, Apriel |
//! | `Generic` | as `Hermes`, or JSON with name and arguments as a beginning | the others |
//!
//! From the same description the grammar for guided decoding is made, if calls are forced or must match a schema
//! ([`writing`]).
//!
//! *As a beginning*: only at the beginning of an answer. `Qwen3Coder` also accepts JSON in place of the parameters, as
//! Functionary writes it. Wherever a format has JSON, an object and a list of objects are accepted, and the names
//! `name` and `tool_name`, `arguments` and `parameters`.
//!
//! Not supported: Llama's built-in tools (`brave_search.call(...)`), calls within thoughts, ids if the model writes
//! none, and streaming of partial arguments: a call is returned when it is complete, since text that was sent to a
//! client cannot be taken back if the last bracket is missing.

mod arguments;
mod call;
mod formats;
mod grammar;
mod json;
mod literal;
mod reader;
mod scan;
mod writing;

use super::ChatTemplate;
pub use call::ToolCall;
use grammar::Grammar;
pub use reader::{AnswerPiece, ToolCallReader};
pub use writing::{CallsWanted, ToolFunction};

/// The format in which a model writes tool calls. The table in this module's source shows an example of each; the
/// models named here are the best known ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// Qwen 2.5 and 3, Hermes and many others: JSON in `<tool_call>`.
    Hermes,
    /// Llama 3: an answer that begins with a JSON object.
    LlamaJson,
    /// Llama 3.2 and 4: an answer that begins with a list of calls in Python.
    Pythonic,
    /// Mistral: JSON, or name and JSON, after `[TOOL_CALLS]`.
    Mistral,
    /// Phi-4-mini: JSON in `<|tool_call|>`.
    Phi4Mini,
    /// Phi-4-mini in vLLM's template, FireFunction: `functools` and JSON.
    Functools,
    /// Granite 3: JSON after `<|tool_call|>`.
    Granite,
    /// Command-R: fenced JSON after `Action:`.
    CommandR,
    /// Command-R7B and later: JSON in `<|START_ACTION|>`.
    CommandR7b,
    /// DeepSeek R1, V3 and V3.1.
    DeepSeek,
    /// Qwen3-Coder: tags around each argument.
    Qwen3Coder,
    /// Seed-OSS: tags around each argument.
    SeedOss,
    /// GLM 4.5: tags around each argument's name and value.
    Glm45,
    /// InternLM 2.5: JSON after `<|action_start|><|plugin|>`.
    InternLm,
    /// Gemma 4: a notation of its own.
    Gemma4,
    /// FunctionGemma: the same with other tags.
    FunctionGemma,
    /// Gemma 3: Python in a fence of `tool_code`.
    GemmaToolCode,
    /// OLMo 3: Python in `<function_calls>`.
    Olmo3,
    /// Nemotron: JSON in `<TOOLCALL>`.
    Nemotron,
    /// Apriel, Hunyuan A13B: JSON in `<tool_calls>`.
    ToolCallsList,
    /// The usual format of models without one of their own.
    Generic,
}

/// Strings in a template's source that identify the format; the first match counts. More specific ones come first:
/// templates of Granite and Qwen3-Coder, for example, may also have those of Hermes.
const TEMPLATE_MARKERS: [(&str, ToolFormat); 26] = [
    ("<start_function_call>", ToolFormat::FunctionGemma),
    ("<tool_call|>", ToolFormat::Gemma4),
    ("[TOOL_CALLS]", ToolFormat::Mistral),
    ("<｜tool▁call▁begin｜>", ToolFormat::DeepSeek),
    ("<|START_ACTION|>", ToolFormat::CommandR7b),
    ("<|action_start|>", ToolFormat::InternLm),
    ("<TOOLCALL>", ToolFormat::Nemotron),
    ("functools[", ToolFormat::Functools),
    ("<|/tool_call|>", ToolFormat::Phi4Mini),
    // Phi-4-mini's own template has the delimiters of tools but not those of calls.
    ("<|/tool|>", ToolFormat::Phi4Mini),
    ("<|tool_call|>", ToolFormat::Granite),
    ("<seed:tool_call>", ToolFormat::SeedOss),
    ("<parameter=", ToolFormat::Qwen3Coder),
    ("<function=", ToolFormat::Qwen3Coder),
    ("<arg_key>", ToolFormat::Glm45),
    ("<function_calls>", ToolFormat::Olmo3),
    ("<tool_calls>", ToolFormat::ToolCallsList),
    ("<tool_call>", ToolFormat::Hermes),
    ("```tool_code", ToolFormat::GemmaToolCode),
    // The pseudo-tool by which Command-R answers directly.
    ("directly-answer", ToolFormat::CommandR),
    ("[func_name1(", ToolFormat::Pythonic),
    ("<|python_start|>", ToolFormat::Pythonic),
    // Llama's own: the delimiter, the role of results, and the instruction in the prompt.
    ("<|python_tag|>", ToolFormat::LlamaJson),
    ("<|start_header_id|>ipython", ToolFormat::LlamaJson),
    ("\"parameters\": dictionary of argument name", ToolFormat::LlamaJson),
    ("tools", ToolFormat::Generic),
];

impl ToolFormat {
    /// All formats.
    pub const ALL: [Self; 21] = [
        Self::Hermes,
        Self::LlamaJson,
        Self::Pythonic,
        Self::Mistral,
        Self::Phi4Mini,
        Self::Functools,
        Self::Granite,
        Self::CommandR,
        Self::CommandR7b,
        Self::DeepSeek,
        Self::Qwen3Coder,
        Self::SeedOss,
        Self::Glm45,
        Self::InternLm,
        Self::Gemma4,
        Self::FunctionGemma,
        Self::GemmaToolCode,
        Self::Olmo3,
        Self::Nemotron,
        Self::ToolCallsList,
        Self::Generic,
    ];

    /// The format of a model, by its template for conversations with tools. `None` if the template does not use tools;
    /// [`ToolFormat::Generic`] if it does and has no known format.
    pub fn of_template(template: &ChatTemplate) -> Option<Self> {
        Self::of_source(&template.tool_use.as_ref().unwrap_or(&template.default).source)
    }

    /// As [`ToolFormat::of_template`], for the source of a template.
    pub fn of_source(source: &str) -> Option<Self> {
        if !source.contains("tools") {
            return None;
        }
        TEMPLATE_MARKERS.iter().find(|(marker, _)| source.contains(marker)).map(|&(_, format)| format)
    }

    /// The delimiters of this format that may be special tokens of a vocabulary. The decoded text has to show them,
    /// since the parser needs them: [`crate::Tokenizer::special_tokens`] finds these tokens, and
    /// [`crate::TextStream::show_special`] shows them.
    pub fn delimiters(self) -> &'static [&'static str] {
        self.grammar().delimiters
    }

    fn grammar(self) -> &'static Grammar {
        match self {
            Self::Hermes => &formats::HERMES,
            Self::LlamaJson => &formats::LLAMA_JSON,
            Self::Pythonic => &formats::PYTHONIC,
            Self::Mistral => &formats::MISTRAL,
            Self::Phi4Mini => &formats::PHI_4_MINI,
            Self::Functools => &formats::FUNCTOOLS,
            Self::Granite => &formats::GRANITE,
            Self::CommandR => &formats::COMMAND_R,
            Self::CommandR7b => &formats::COMMAND_R7B,
            Self::DeepSeek => &formats::DEEPSEEK,
            Self::Qwen3Coder => &formats::QWEN_3_CODER,
            Self::SeedOss => &formats::SEED_OSS,
            Self::Glm45 => &formats::GLM_4_5,
            Self::InternLm => &formats::INTERN_LM,
            Self::Gemma4 => &formats::GEMMA_4_CALLS,
            Self::FunctionGemma => &formats::FUNCTION_GEMMA_CALLS,
            Self::GemmaToolCode => &formats::GEMMA_TOOL_CODE,
            Self::Olmo3 => &formats::OLMO_3,
            Self::Nemotron => &formats::NEMOTRON,
            Self::ToolCallsList => &formats::TOOL_CALLS_LIST,
            Self::Generic => &formats::GENERIC,
        }
    }
}
