//! What other programs call their options, so that who comes from them is answered by our names.
//!
//! One table: llama.cpp's llama-cli and llama-server, generate of transformers, `vllm serve`, ollama with the
//! parameters of its model files. A name that means exactly what an option here means is taken as that option. One that
//! means something like it is answered with our name, and one without a meaning with the reason. Options of the same
//! name are not here, nor those that clap knows as aliases.

use Meaning::{Like, Nothing, Same};

/// What an option of another program is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The same as this long option.
    Same(&'static str),
    /// What to write instead.
    Like(&'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

const CPU: &str = "models run on the CPU";
const ONE_MACHINE: &str = "a model runs on one machine's CPU";
const ATTENTION: &str = "attention is always computed this way, block by block";
const PIECES: &str = "prompts are read in pieces of a size that is chosen for the machine";
const FILE_MEMORY: &str = "weights are packed into memory as they are loaded, and the file is given back";
const CACHE: &str = "the cache grows and shrinks by pages, which texts that begin alike share";
const POSITIONS: &str = "positions are as the model's files say";
const SHIFT: &str = "a text ends where the context is full; --context-shift of chat leaves out old turns";
const ADAPTERS: &str = "there are no adapters; merge them into the model";
const GRAMMAR: &str = "grammars are compiled in one way, whoever asks";
const SAMPLER: &str = "this sampler is not there";
const BEAMS: &str = "texts are sampled and not searched for";
const ALWAYS: &str = "it is always so";
const TEXT: &str = "models read and write text";
const THREADS: &str = "-t, --threads, which holds for prompts, passes and drafts";
const TEMPLATE: &str = "chat templates are always read as Jinja (--chat-template takes another one)";
const TOOLS: &str = "the form of tool calls is found from the model's template, always";
const QUANTIZE: &str = "--dtype, or foretoken quantize for a file";
const TLS: &str = "a reverse proxy has TLS; the server speaks plain HTTP";
const ONE_MODEL: &str = "a server has one model";

/// Names with what they mean here.
#[rustfmt::skip]
pub const OPTIONS: &[(&[&str], Meaning)] = &[
    // How much, and when to end.
    (&["--max-new-tokens", "--max-tokens", "--max-completion-tokens", "--num-predict"], Same("n-predict")),
    (&["--max-length"], Like("-n, --n-predict (new tokens) or -c, --ctx-size (all of them)")),
    (&["--min-new-tokens"], Same("min-tokens")),
    (&["--min-length"], Like("--min-tokens, which counts new tokens")),
    (&["--max-model-len", "--max-seq-len", "--num-ctx", "--context-length"], Same("ctx-size")),
    (&["--num-return-sequences"], Same("n-best")),
    (&["--stop-strings", "--stop-string", "--stop-sequence", "-r"], Same("stop")),
    (&["--eos-token-id"], Like("--stop TEXT; the model's own end tokens are known")),
    (&["--keep"], Nothing(SHIFT)),
    (&["--no-context-shift"], Nothing(SHIFT)),
    (&["--grp-attn-n", "-gan", "--grp-attn-w", "-gaw"], Nothing(POSITIONS)),
    // The law.
    (&["--do-sample", "--no-do-sample"], Like("--temp; 0 is greedy")),
    (&["--num-beams", "--num-beam-groups", "--length-penalty", "--early-stopping", "--diversity-penalty", "--best-of"],
        Nothing(BEAMS)),
    (&["--typ"], Same("typical")),
    (&["-l"], Same("logit-bias")),
    (&["-sp", "--skip-special-tokens", "--no-skip-special-tokens"], Like("--special")),
    (&["--bad-words-ids", "--suppress-tokens"], Like("--ban-token ID,..")),
    (&["--mirostat", "--mirostat-lr", "--mirostat-ent", "--mirostat-eta", "--mirostat-tau"], Nothing(SAMPLER)),
    (&["--top-nsigma", "--top-n-sigma", "--xtc-probability", "--xtc-threshold", "--tfs", "--tfs-z"], Nothing(SAMPLER)),
    (&["--dry-multiplier", "--dry-base", "--dry-allowed-length", "--dry-penalty-last-n", "--dry-sequence-breaker"],
        Nothing(SAMPLER)),
    (&["--dynatemp-range", "--dynatemp-exp", "--adaptive-target", "--adaptive-decay"], Nothing(SAMPLER)),
    (&["--epsilon-cutoff", "--eta-cutoff", "--penalty-alpha", "--no-repeat-ngram-size"], Nothing(SAMPLER)),
    (&["--guidance-scale", "--encoder-repetition-penalty"], Nothing(SAMPLER)),
    (&["--samplers", "--sampling-seq", "--sampler-seq"], Nothing("samplers are applied in transformers' order")),
    (&["-j", "-jf", "--json-schema-file", "--guided-json"], Same("json-schema")),
    (&["--guided-regex"], Same("regex")),
    (&["--guided-grammar"], Same("grammar")),
    (&["--guided-choice"], Like("--choice TEXT, once for each")),
    (&["--format"], Like("--json-schema FILE; {} is any JSON")),
    (&["--guided-decoding-backend", "--structured-outputs-config"], Nothing(GRAMMAR)),
    (&["--generation-config", "--override-generation-config"],
        Nothing("generation_config.json of the model's folder is read, and each option is stronger than it")),
    // The model, and where it is computed.
    (&["--model-name-or-path", "--model-path", "--pretrained-model-name-or-path"], Same("model")),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers", "--num-gpu", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"],
        Nothing(CPU)),
    (&["-dev", "--device", "--list-devices", "-devd", "--device-draft", "--device-map", "-mg", "--main-gpu",
        "--main-gpu-id"], Nothing(CPU)),
    (&["-sm", "--split-mode", "-ts", "--tensor-split", "-ot", "--override-tensor", "-otd", "--override-tensor-draft",
        "--no-op-offload", "-nkvo", "--no-kv-offload", "--no-host", "--low-vram"], Nothing(CPU)),
    (&["-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-cmoed", "--cpu-moe-draft", "-ncmoed", "--n-cpu-moe-draft"],
        Nothing("all experts run on the CPU")),
    (&["--gpu-memory-utilization", "--swap-space", "--cpu-offload-gb", "--enforce-eager", "--num-gpu-blocks-override"],
        Nothing(CPU)),
    (&["-tp", "--tensor-parallel-size", "-pp", "--pipeline-parallel-size", "-dp", "--data-parallel-size",
        "--distributed-executor-backend", "--rpc"], Nothing(ONE_MACHINE)),
    (&["-fa", "--flash-attn", "--flash-attention", "--attn-implementation", "--attention-backend", "--no-flash-attn"],
        Nothing(ATTENTION)),
    (&["-tb", "--threads-batch", "-td", "--threads-draft", "-tbd", "--threads-batch-draft", "--threads-http"],
        Like(THREADS)),
    (&["--num-thread"], Same("threads")),
    (&["-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "-Cb", "--cpu-mask-batch", "-Crb",
        "--cpu-range-batch", "--cpu-strict-batch", "--prio", "--prio-batch", "--poll", "--poll-batch", "--numa"],
        Nothing("threads stay where the system puts them; taskset and numactl decide that from outside")),
    (&["-b", "--batch-size", "-ub", "--ubatch-size", "--num-batch", "--max-num-batched-tokens", "--prefill-chunk-size",
        "--enable-chunked-prefill", "--no-enable-chunked-prefill"], Nothing(PIECES)),
    (&["--mlock", "--no-mmap", "--mmap", "--use-mmap", "--use-mlock", "-dio", "--direct-io", "-nr", "--no-repack",
        "--check-tensors"], Nothing(FILE_MEMORY)),
    (&["--torch-dtype"], Like("--dtype f32, f16, bf16, q8_0, q4_0, q4_k or q6_k")),
    (&["--load-in-4bit", "--load-in-8bit", "--quantization"], Like(QUANTIZE)),
    (&["--kv-cache-dtype"], Like("-ctk, --cache-type-k and -ctv, --cache-type-v")),
    (&["-dt", "--defrag-thold", "--swa-full", "-kvu", "--kv-unified", "--use-cache", "--cache-implementation",
        "--block-size", "--cache-reuse", "-cram", "--cache-ram", "--ctx-checkpoints"], Nothing(CACHE)),
    (&["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx",
        "--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast"], Nothing(POSITIONS)),
    (&["--override-kv", "--hf-overrides"], Nothing("the model's files say what it is; change them")),
    (&["--lora", "--lora-scaled", "--enable-lora", "--lora-modules", "--lora-init-without-apply", "--control-vector",
        "--control-vector-scaled", "--control-vector-layer-range"], Nothing(ADAPTERS)),
    (&["--trust-remote-code"], Nothing("no code of a model is ever run; families are part of the program")),
    (&["--tokenizer", "--tokenizer-mode", "--load-format", "--config-format"],
        Nothing("all files of a model are found in its folder or file")),
    (&["--no-warmup", "--warmup"], Nothing("nothing is computed before the first prompt")),
    (&["--mmproj", "--mmproj-url", "--no-mmproj", "--no-mmproj-offload", "--image", "--audio",
        "--limit-mm-per-prompt", "--media-path"], Nothing(TEXT)),
    (&["-hft", "--hf-token"], Like("the variable HF_TOKEN, where no list of processes shows it")),
    (&["--offline", "--local-files-only"], Like("the variable HF_HUB_OFFLINE=1")),
    (&["--revision", "--code-revision"], Like("org/name@REVISION as the model")),
    (&["--download-dir", "--cache-dir"], Like("the variable HF_HUB_CACHE")),
    (&["-mu", "--model-url"], Like("-m, --model FILE, once the file is downloaded")),
    // Speculation.
    (&["--assistant-model", "--speculative-model", "--draft-model"], Same("model-draft")),
    (&["--num-assistant-tokens", "--num-speculative-tokens", "--draft-n"], Same("spec-draft-n-max")),
    (&["--draft-n-min"], Same("spec-draft-n-min")),
    (&["--assistant-confidence-threshold"], Same("spec-draft-p-min")),
    (&["--num-assistant-tokens-schedule"], Like("--budget heuristic or --budget fixed")),
    (&["--assistant-early-exit"], Nothing("drafts come from whole models and from texts")),
    (&["-sc", "--speculative-config", "--spec-config"],
        Like("-md, --model-draft with --spec-type, --spec-draft-n-max and --verify")),
    (&["-cd", "--ctx-size-draft"], Nothing("a draft model has room for the target's context")),
    (&["--spec-replace"], Nothing("drafts of another vocabulary are translated, see --spec-draft-translate")),
    // Prompts and conversations.
    (&["-bf", "--binary-file"], Like("-f, --file FILE, in UTF-8")),
    (&["-e", "--escape", "--no-escape"], Nothing("prompts are taken as they are; bash has $'one\\ntwo'")),
    (&["-sysf", "--system-prompt-file"], Like("--system \"$(cat FILE)\"")),
    (&["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first", "--interactive-only"],
        Like("foretoken chat")),
    (&["-no-cnv", "--no-conversation"], Like("foretoken generate")),
    (&["-st", "--single-turn"], Like("a pipe: echo question | foretoken chat")),
    (&["-mli", "--multiline-input", "--in-prefix", "--in-suffix", "--in-prefix-bos", "--simple-io", "--nowordwrap"],
        Nothing("a line is a turn, in the model's own form")),
    (&["--jinja", "--no-jinja", "--chat-template-kwargs",
        "--chat-template-content-format", "--no-prefill-assistant", "--prefill-assistant"], Nothing(TEMPLATE)),
    (&["--reasoning-parser"], Like("--reasoning-format of foretoken serve; marks are found from the template")),
    (&["--reasoning-budget", "--think", "--hidethinking"],
        Nothing("a model thinks as its template has it; a request turns it off with chat_template_kwargs")),
    (&["--prompt-cache-all"], Like("--prompt-cache FILE, which keeps prompts alone")),
    (&["-ptc", "--print-token-count", "--verbose-prompt"], Like("--json, which has the tokens")),
    // What is said.
    (&["-lv", "--verbosity", "--log-verbosity", "--log-verbose"], Like("-v, --verbose or -q, --quiet")),
    (&["--log-disable", "--no-perf", "--disable-log-requests", "--disable-log-stats"], Like("-q, --quiet")),
    (&["--log-file"], Like("2> FILE")),
    (&["-co"], Like("--color always")),
    (&["--log-colors"], Like("--color WHEN")),
    (&["--log-prefix", "--log-timestamps"], Like("--log-json of foretoken serve")),
    (&["--uvicorn-log-level"], Like("--log-level LEVEL")),
    (&["--usage"], Like("--help")),
    (&["--completion-bash"], Like("foretoken completions bash")),
    // Servers.
    (&["--served-model-name"], Same("alias")),
    (&["--max-num-seqs", "--max-batch-size", "--max-concurrent-requests"], Same("parallel")),
    (&["--allowed-origins", "--cors-allow-origins"], Like("--cors-origin ORIGIN")),
    (&["-cb", "--cont-batching", "-nocb", "--no-cont-batching", "--continuous-batching", "--enable-prefix-caching",
        "--no-enable-prefix-caching", "--metrics", "--props", "--webui"], Nothing(ALWAYS)),
    (&["--slots", "--no-slots", "--slot-save-path", "-sps", "--slot-prompt-similarity"],
        Nothing("texts share what they begin with, whoever asks; there are no slots")),
    (&["--embedding", "--embeddings", "--reranking", "--rerank", "--pooling", "--task", "--runner"],
        Nothing("models write text here; they embed and rank none")),
    (&["--ssl-key-file", "--ssl-cert-file", "--ssl-keyfile", "--ssl-certfile"], Nothing(TLS)),
    (&["--path", "--api-prefix", "--root-path"], Nothing("paths are OpenAI's; a reverse proxy changes them")),
    (&["--enable-auto-tool-choice", "--tool-call-parser", "--tools", "--tool-parser-plugin"], Nothing(TOOLS)),
    (&["--keepalive", "--keep-alive", "--models-max", "--models-dir", "--sleep-idle-seconds"], Nothing(ONE_MODEL)),
    (&["--api-server-count"], Nothing("one process answers all")),
];

/// Commands of other programs, with what to write instead.
pub const COMMANDS: &[(&str, &str)] = &[
    ("run", "foretoken chat MODEL, or foretoken generate -m MODEL PROMPT"),
    ("complete", "foretoken generate"),
    ("completion", "foretoken generate, or foretoken completions for shells"),
    ("cli", "foretoken generate or foretoken chat"),
    ("server", "foretoken serve"),
    ("ls", "foretoken list"),
    ("download", "foretoken pull"),
    ("delete", "foretoken rm"),
    ("show", "foretoken inspect"),
    ("info", "foretoken inspect"),
    ("env", "foretoken version"),
    ("collect-env", "foretoken version"),
    ("convert", "foretoken quantize"),
    ("create", "a model's folder or file; there is no register of models"),
    ("ps", "foretoken serve, whose page shows what runs"),
    ("stop", "Ctrl-C where foretoken serve runs"),
];

/// What an option of another program is here; with its dashes, and dashes for underlines.
pub fn meaning(name: &str) -> Option<Meaning> {
    OPTIONS.iter().find(|(names, _)| names.contains(&name)).map(|(_, meaning)| *meaning)
}

/// The line for whoever wrote this name, if it is another program's and not taken as ours.
pub fn hint(name: &str) -> Option<String> {
    Some(match meaning(name)? {
        Same(ours) => format!("{name}: expected --{ours}"),
        Like(ours) => format!("{name}: expected {ours}"),
        Nothing(why) => format!("{name}: expected no such option: {why}"),
    })
}

/// Whether several letters behind one dash are another program's option, and not our short one with a value.
pub fn is_short(word: &str) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    name.len() > 2 && !name.starts_with("--") && meaning(name).is_some()
}
