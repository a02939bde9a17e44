//! Calls of tools in what a model writes: which form a model has for them, and text and calls apart while it writes.
//!
//! Models were trained on forms that have little in common, and only the chat template shows which. So the form is
//! found from marks in the template's source ([`ToolFormat::of_template`]), as llama.cpp long did it. Each form is
//! described as data ([`forms`]) in a small grammar ([`grammar`]) that one [`reader`] follows; what JSON, Python and
//! Gemma's own notation say is read by scanners that take a byte at a time ([`json`], [`literal`]).
//!
//! | form | what a call looks like | written by |
//! |---|---|---|
//! | `Hermes` | `<tool_call>{"name": "f", "arguments": {}}</tool_call>` | Qwen, Hermes, SmolLM 3 |
//! | `LlamaJson` | `{"name": "f", "parameters": {}}` as a beginning, or behind `<\|python_tag\|>` | Llama 3 |
//! | `Pythonic` | `[f(a=1), g(b="x")]` as a beginning, or behind `<\|python_start\|>` | Llama 3.2, Llama 4 |
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
//! The same description says what a model may write where calls are forced or have to fit a schema ([`writing`]).
//!
//! *As a beginning*: only where an answer begins. `Qwen3Coder` also has JSON in place of the parameters, as Functionary
//! writes it. Wherever a form has JSON, an object and a list of objects are read, and the names `name` and `tool_name`,
//! `arguments` and `parameters`.
//!
//! Left out: Llama's built-in tools (`brave_search.call(...)`), calls in what a model thinks aloud, ids where the model
//! writes none, and arguments piece by piece: a call is told when it is certain, since what was sent to a client cannot
//! be taken back when its last bracket turns out to be missing.

mod arguments;
mod call;
mod forms;
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

/// The form in which a model writes calls of tools. What they look like is in the source of this module, in a table;
/// the models named here are those that the form is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// Qwen 2.5 and 3, Hermes and many others: JSON in `<tool_call>`.
    Hermes,
    /// Llama 3: an answer that begins with a JSON object.
    LlamaJson,
    /// Llama 3.2 and 4: an answer that begins with a list of calls in Python.
    Pythonic,
    /// Mistral: JSON, or name and JSON, behind `[TOOL_CALLS]`.
    Mistral,
    /// Phi-4-mini: JSON in `<|tool_call|>`.
    Phi4Mini,
    /// Phi-4-mini in vLLM's template, FireFunction: `functools` and JSON.
    Functools,
    /// Granite 3: JSON behind `<|tool_call|>`.
    Granite,
    /// Command-R: fenced JSON behind `Action:`.
    CommandR,
    /// Command-R7B and later: JSON in `<|START_ACTION|>`.
    CommandR7b,
    /// DeepSeek R1, V3 and V3.1.
    DeepSeek,
    /// Qwen3-Coder: marks around each argument.
    Qwen3Coder,
    /// Seed-OSS: marks around each argument.
    SeedOss,
    /// GLM 4.5: marks around each argument's name and value.
    Glm45,
    /// InternLM 2.5: JSON behind `<|action_start|><|plugin|>`.
    InternLm,
    /// Gemma 4: a notation of its own.
    Gemma4,
    /// FunctionGemma: the same with other marks.
    FunctionGemma,
    /// Gemma 3: Python in a fence of `tool_code`.
    GemmaToolCode,
    /// OLMo 3: Python in `<function_calls>`.
    Olmo3,
    /// Nemotron: JSON in `<TOOLCALL>`.
    Nemotron,
    /// Apriel, Hunyuan A13B: JSON in `<tool_calls>`.
    ToolCallsList,
    /// What models without a form of their own usually write.
    Generic,
}

/// What a template has in its source if it has the form; the first that fits counts. The more special marks come first:
/// templates of Granite and Qwen3-Coder, say, may have those of Hermes, too.
const SIGNS: [(&str, ToolFormat); 26] = [
    ("<start_function_call>", ToolFormat::FunctionGemma),
    ("<tool_call|>", ToolFormat::Gemma4),
    ("[TOOL_CALLS]", ToolFormat::Mistral),
    ("<｜tool▁call▁begin｜>", ToolFormat::DeepSeek),
    ("<|START_ACTION|>", ToolFormat::CommandR7b),
    ("<|action_start|>", ToolFormat::InternLm),
    ("<TOOLCALL>", ToolFormat::Nemotron),
    ("functools[", ToolFormat::Functools),
    ("<|/tool_call|>", ToolFormat::Phi4Mini),
    // Phi-4-mini's own template shows the marks of tools, and those of calls only in its description.
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
    // The tool by which Command-R answers without one.
    ("directly-answer", ToolFormat::CommandR),
    ("[func_name1(", ToolFormat::Pythonic),
    ("<|python_start|>", ToolFormat::Pythonic),
    // Llama's own: the mark, the role of results, and what the model is told to write.
    ("<|python_tag|>", ToolFormat::LlamaJson),
    ("<|start_header_id|>ipython", ToolFormat::LlamaJson),
    ("\"parameters\": dictionary of argument name", ToolFormat::LlamaJson),
    ("tools", ToolFormat::Generic),
];

impl ToolFormat {
    /// All there are.
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

    /// The form that a model writes, by its template for conversations with tools. `None` if the template has no place
    /// for tools; [`ToolFormat::Generic`] if it has one and shows none of the other forms.
    pub fn of_template(template: &ChatTemplate) -> Option<Self> {
        Self::of_source(&template.tool_use.as_ref().unwrap_or(&template.default).source)
    }

    /// The same for the source of a template.
    pub fn of_source(source: &str) -> Option<Self> {
        if !source.contains("tools") {
            return None;
        }
        SIGNS.iter().find(|(sign, _)| source.contains(sign)).map(|&(_, format)| format)
    }

    /// The marks of this form that may be special tokens of a vocabulary. A text has to show them, or the calls in it
    /// cannot be told from the rest: [`crate::Tokenizer::special_tokens`] says which tokens they are, and
    /// [`crate::TextStream::show_special`] shows them.
    pub fn marks(self) -> &'static [&'static str] {
        self.grammar().marks
    }

    fn grammar(self) -> &'static Grammar {
        match self {
            Self::Hermes => &forms::HERMES,
            Self::LlamaJson => &forms::LLAMA_JSON,
            Self::Pythonic => &forms::PYTHONIC,
            Self::Mistral => &forms::MISTRAL,
            Self::Phi4Mini => &forms::PHI_4_MINI,
            Self::Functools => &forms::FUNCTOOLS,
            Self::Granite => &forms::GRANITE,
            Self::CommandR => &forms::COMMAND_R,
            Self::CommandR7b => &forms::COMMAND_R7B,
            Self::DeepSeek => &forms::DEEPSEEK,
            Self::Qwen3Coder => &forms::QWEN_3_CODER,
            Self::SeedOss => &forms::SEED_OSS,
            Self::Glm45 => &forms::GLM_4_5,
            Self::InternLm => &forms::INTERN_LM,
            Self::Gemma4 => &forms::GEMMA_4_CALLS,
            Self::FunctionGemma => &forms::FUNCTION_GEMMA_CALLS,
            Self::GemmaToolCode => &forms::GEMMA_TOOL_CODE,
            Self::Olmo3 => &forms::OLMO_3,
            Self::Nemotron => &forms::NEMOTRON,
            Self::ToolCallsList => &forms::TOOL_CALLS_LIST,
            Self::Generic => &forms::GENERIC,
        }
    }
}
