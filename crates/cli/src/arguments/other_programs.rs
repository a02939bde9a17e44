//! Options of other programs and what they mean here. A command line of another program runs when it is pasted, or is
//! refused with the names of our options.
//!
//! One table has those of llama.cpp's llama-cli and llama-server, ik_llama.cpp, generate of transformers, `vllm serve`,
//! and ollama with the parameters of its model files. A name that means exactly the same as an option here is taken as
//! that option. One that is always in effect, or only says where and how fast to compute, is ignored with a note; so is
//! a value that has no effect. An option that would change the text or what is promised is refused: with the name of
//! our similar option, if there is one, else with the reason. Each name is followed by its values as help writes them,
//! so that a value is not taken for a model or a prompt. Options that have the same name here are not in the table, nor
//! clap's aliases.

use Meaning::{Escapes, Ignored, Refused, Same, Selects, Unless, Use};

/// What an option of another program means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The same as our long option of this name.
    Same(&'static str),
    /// Refused, with what to write instead.
    Use(&'static str),
    /// Refused for this reason; nothing here is like it.
    Refused(&'static str),
    /// Ignored for this reason: it is always in effect, or changes no text.
    Ignored(&'static str),
    /// Ignored if the value is one of these, which have no effect; else the second meaning applies. The empty string
    /// stands for no value.
    Unless(&'static [&'static str], &'static Meaning),
    /// Selects this command, and is ignored there.
    Selects(&'static str),
    /// Ignored on a line without a backslash, else refused.
    Escapes,
}

const CPU: &str = "models run on the CPU";
const ONE_MACHINE: &str = "a model runs on the CPUs of one machine, or of those that --backend mpi joins";
const EXPERTS: &str = "all experts run on the CPU";
const ATTENTION: &str = "there is one implementation of attention";
const PINNING: &str = "the system places the threads; use taskset or numactl";
const CHUNKS: &str = "prompts are prefilled in chunks whose size is chosen for the machine";
const PACKING: &str = "weights are packed into memory as they are loaded";
const CACHE: &str = "the KV cache is paged, and sequences that begin alike share pages";
const POSITIONS: &str = "positions are as the model's files say";
const CONTEXT_SHIFT: &str = "a text ends when the context is full; --context-shift of chat leaves out old turns";
const ADAPTERS: &str = "there are no adapters; merge them into the model";
const GRAMMAR: &str = "there is one implementation of grammars";
const SAMPLER: &str = "there is no such sampler";
const DEPENDENT: &str = "it belongs to an option that does not exist here";
const GROUPS: &str = "all beams of a search are one group";
const ALWAYS: &str = "it is always so";
const TEXT: &str = "models read and write text";
const THREADS: &str = "-t, --threads holds for prompts, passes and drafts";
const TEMPLATE: &str = "chat templates are always read as Jinja (--chat-template takes another one)";
const THOUGHTS: &str = "the template decides whether a model thinks; a request turns it off with chat_template_kwargs";
const TOOLS: &str = "the format of tool calls is always found from the model's template";
const QUANTIZE: &str = "--dtype, or foretoken quantize for a file";
const TLS: &str = "the server speaks plain HTTP; a reverse proxy adds TLS";
const SEVERAL_MODELS: &str =
    "-m may be repeated, --models serves the hub's cache; --memory-limit says how much stays loaded";
const KEEP_ALIVE: &str = "a model stays loaded until the program ends or another one needs its memory";
const LOG: &str = "-v says more and -q less; serve has --log-level and --log-json";
const SLOTS: &str = "all requests share the prefixes of their prompts; there are no slots";
const EMBEDDINGS: &str = "models only generate text here; there are no embeddings and no reranking";
const FILES: &str = "all files of a model are in its folder or file";
const TURNS: &str = "each line is a turn, formatted by the model's template";

/// Names with the values that follow them, and their meaning here.
#[rustfmt::skip]
pub const OPTIONS: &[(&[&str], Meaning)] = &[
    // Lengths and ends.
    (&["--max-new-tokens", "--max-tokens", "--max-completion-tokens", "--num-predict"], Same("n-predict")),
    (&["--max-length N"], Use("-n, --n-predict (new tokens) or -c, --ctx-size (all of them)")),
    (&["--min-new-tokens"], Same("min-tokens")),
    (&["--min-length N"], Use("--min-tokens, which counts new tokens")),
    (&["--max-model-len", "--max-seq-len", "--num-ctx", "--context-length"], Same("ctx-size")),
    (&["--num-return-sequences"], Same("n-best")),
    (&["--stop-strings", "--stop-string", "--stop-sequence", "-r"], Same("stop")),
    (&["--eos-token-id ID"], Use("--stop TEXT; the model's own end tokens are known")),
    (&["--keep N"], Unless(&["0", "-1"], &Refused(CONTEXT_SHIFT))),
    (&["--no-context-shift"], Ignored(CONTEXT_SHIFT)),
    (&["--grp-attn-n N", "-gan N"], Unless(&["1"], &Refused(POSITIONS))),
    (&["--grp-attn-w N", "-gaw N"], Ignored(DEPENDENT)),
    // Sampling.
    (&["--do-sample [true|false]", "--no-do-sample"], Use("--temp; 0 is greedy")),
    (&["--num-beam-groups N"], Unless(&["1"], &Refused(GROUPS))),
    (&["--best-of N"], Unless(&["1"], &Use("--num-beams N with --n-best K"))),
    (&["--diversity-penalty X"], Ignored(DEPENDENT)),
    (&["--typ"], Same("typical")),
    (&["-l"], Same("logit-bias")),
    (&["-sp", "--no-skip-special-tokens"], Same("special")),
    (&["--skip-special-tokens [true]"], Ignored("it is so without --special")),
    (&["--bad-words-ids IDS", "--suppress-tokens IDS"], Use("--ban-token ID,..")),
    (&["--mirostat N", "--no-repeat-ngram-size N", "--penalty-alpha X", "--epsilon-cutoff X", "--eta-cutoff X",
        "--xtc-probability X", "--dry-multiplier X", "--dynatemp-range X"], Unless(&["0"], &Refused(SAMPLER))),
    (&["--top-nsigma X", "--top-n-sigma X"], Unless(&["-1", "0"], &Refused(SAMPLER))),
    (&["--tfs X", "--tfs-z X", "--guidance-scale X", "--encoder-repetition-penalty X"],
        Unless(&["1"], &Refused(SAMPLER))),
    (&["--adaptive-target X"], Unless(&["-1"], &Refused(SAMPLER))),
    (&["--mirostat-lr X", "--mirostat-ent X", "--mirostat-eta X", "--mirostat-tau X", "--xtc-threshold X",
        "--dry-base X", "--dry-allowed-length N", "--dry-penalty-last-n N", "--dry-sequence-breaker TEXT",
        "--dynatemp-exp X", "--adaptive-decay X"], Ignored(DEPENDENT)),
    (&["--samplers LIST", "--sampling-seq LETTERS", "--sampler-seq LETTERS"],
        Refused("samplers are applied in transformers' order")),
    (&["-bs", "--backend-sampling"], Ignored(CPU)),
    (&["-j", "-jf", "--json-schema-file", "--guided-json"], Same("json-schema")),
    (&["--guided-regex"], Same("regex")),
    (&["--guided-grammar"], Same("grammar")),
    (&["--guided-choice TEXTS"], Use("--choice TEXT, once for each")),
    (&["--format FORMAT"], Use("--json-schema FILE; {} is any JSON")),
    (&["--guided-decoding-backend NAME", "--structured-outputs-config JSON"], Ignored(GRAMMAR)),
    (&["--generation-config FOLDER", "--override-generation-config JSON"], Unless(&["auto"],
        &Refused("generation_config.json of the model's folder is read, and each option is stronger than it"))),
    // The model, and where it is computed.
    (&["--model-name-or-path", "--model-path", "--pretrained-model-name-or-path"], Same("model")),
    (&["-ngl N", "--gpu-layers N", "--n-gpu-layers N", "--num-gpu N", "-ngld N", "--gpu-layers-draft N",
        "--n-gpu-layers-draft N", "--spec-draft-ngl N"], Ignored(CPU)),
    (&["-dev NAMES", "--device NAMES", "-devd NAMES", "--device-draft NAMES", "--device-map MAP", "-mg N",
        "--main-gpu N", "--main-gpu-id N", "-fit [on|off]", "--fit [on|off]", "-fitt N", "--fit-target N", "-fitc N",
        "--fit-ctx N"], Ignored(CPU)),
    (&["--list-devices"], Use("foretoken version, which says what it computes with")),
    (&["-sm MODE", "--split-mode MODE", "-ts LIST", "--tensor-split LIST", "-ot LIST", "--override-tensor LIST",
        "-otd LIST", "--override-tensor-draft LIST", "--no-op-offload", "--op-offload", "-nkvo", "--no-kv-offload",
        "-kvo", "--kv-offload", "--no-host", "--low-vram [true|false]", "-ncffn N", "--n-cpu-ffn N"], Ignored(CPU)),
    (&["-cmoe", "--cpu-moe", "-ncmoe N", "--n-cpu-moe N", "-cmoed", "--cpu-moe-draft", "-ncmoed N",
        "--n-cpu-moe-draft N", "--moe-cache-mib N", "-fmoe", "--fused-moe", "--enable-expert-parallel"],
        Ignored(EXPERTS)),
    (&["--gpu-memory-utilization X", "--swap-space X", "--cpu-offload-gb X", "--enforce-eager",
        "--num-gpu-blocks-override N", "--max-seq-len-to-capture N", "--disable-custom-all-reduce",
        "--compilation-config JSON"], Ignored(CPU)),
    (&["-tp N", "--tensor-parallel-size N", "-pp N", "--pipeline-parallel-size N", "-dp N", "--data-parallel-size N",
        "--distributed-executor-backend NAME", "--rpc SERVERS"], Ignored(ONE_MACHINE)),
    (&["-fa [on|off|auto|0|1]", "--flash-attn [on|off|auto|0|1]", "--flash-attention [on|off|auto|true|false]",
        "--no-flash-attn", "-no-fa", "--attn-implementation NAME", "--attention-backend NAME", "-mla N", "--mla-use N",
        "-amb N", "--attention-max-batch N"], Ignored(ATTENTION)),
    (&["-tb N", "--threads-batch N", "-td N", "--threads-draft N", "-tbd N", "--threads-batch-draft N",
        "--threads-http N"], Ignored(THREADS)),
    (&["--num-thread"], Same("threads")),
    (&["-C MASK", "--cpu-mask MASK", "-Cr RANGE", "--cpu-range RANGE", "--cpu-strict N", "-Cb MASK",
        "--cpu-mask-batch MASK", "-Crb RANGE", "--cpu-range-batch RANGE", "--cpu-strict-batch N", "--prio N",
        "--prio-batch N", "--poll N", "--poll-batch N", "--numa [distribute|isolate|numactl|mirror|true|false]"],
        Ignored(PINNING)),
    (&["-b N", "--batch-size N", "-ub N", "--ubatch-size N", "--num-batch N", "--max-num-batched-tokens N",
        "--prefill-chunk-size N", "--enable-chunked-prefill [true|false]", "--no-enable-chunked-prefill",
        "--async-scheduling"], Ignored(CHUNKS)),
    (&["--mlock", "--no-mmap", "--mmap", "--use-mmap [true|false|0|1]", "--use-mlock [true|false|0|1]", "-dio",
        "--direct-io", "-nr", "--no-repack", "--repack", "-rtr", "--run-time-repack", "-lm MODE", "--load-mode MODE",
        "-lzm MODE", "--lazy-mode MODE"], Ignored(PACKING)),
    (&["--check-tensors"], Ignored("weights are checked when they are loaded")),
    (&["--torch-dtype"], Same("dtype")),
    (&["--load-in-4bit [true|false]", "--load-in-8bit [true|false]", "--quantization NAME"], Use(QUANTIZE)),
    (&["--kv-cache-dtype TYPE"], Unless(&["auto"], &Use("-ctk, --cache-type-k and -ctv, --cache-type-v"))),
    (&["-dt X", "--defrag-thold X", "--swa-full", "-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified",
        "--use-cache [true|false]", "--block-size N", "--cache-reuse N", "-cram N", "--cache-ram N",
        "-ctxcp N", "--ctx-checkpoints N", "--swa-checkpoints N", "-cms N", "--checkpoint-min-step N",
        "--cache-prompt", "--no-cache-prompt", "--cache-idle-slots", "--no-cache-idle-slots"], Ignored(CACHE)),
    (&["--cache-implementation NAME"],
        Unless(&["static", "dynamic"], &Use("-ctk, --cache-type-k and -ctv, --cache-type-v"))),
    (&["--rope-scaling TYPE", "--rope-scale X"], Refused(POSITIONS)),
    (&["--rope-freq-base X", "--rope-freq-scale X", "--yarn-orig-ctx N"], Unless(&["0"], &Refused(POSITIONS))),
    (&["--yarn-ext-factor X", "--yarn-attn-factor X", "--yarn-beta-slow X", "--yarn-beta-fast X"],
        Unless(&["-1"], &Refused(POSITIONS))),
    (&["--override-kv LIST", "--hf-overrides JSON"], Refused("the model's files say what it is; change them")),
    (&["--lora FILE", "--lora-scaled LIST", "--enable-lora", "--lora-modules LIST", "--lora-init-without-apply",
        "--control-vector FILE", "--control-vector-scaled LIST", "--control-vector-layer-range START END"],
        Refused(ADAPTERS)),
    (&["--trust-remote-code"], Ignored("no code of a model is ever run; families are part of the program")),
    (&["--tokenizer NAME", "--tokenizer-mode MODE"], Unless(&["auto"], &Refused(FILES))),
    (&["--load-format NAME", "--config-format NAME"], Ignored(FILES)),
    (&["--no-warmup", "--warmup"], Ignored("nothing is computed before the first prompt")),
    (&["-mm FILE", "--mmproj FILE", "-mmu URL", "--mmproj-url URL", "--image FILE", "--audio FILE",
        "--media-path FOLDER", "--allowed-local-media-path FOLDER"], Refused(TEXT)),
    (&["--no-mmproj", "--mmproj-auto", "--no-mmproj-auto", "--mmproj-offload", "--no-mmproj-offload",
        "--limit-mm-per-prompt LIMITS", "--image-min-tokens N", "--image-max-tokens N"], Ignored(TEXT)),
    (&["-hft TOKEN", "--hf-token TOKEN"], Use("the variable HF_TOKEN, where no list of processes shows it")),
    (&["--offline", "--local-files-only"], Use("the variable HF_HUB_OFFLINE=1")),
    (&["--revision NAME", "--code-revision NAME"], Use("org/name@REVISION as the model")),
    (&["--download-dir FOLDER", "--cache-dir FOLDER"], Use("the variable HF_HUB_CACHE")),
    (&["-mu URL", "--model-url URL", "-dr NAME", "--docker-repo NAME"],
        Use("-m, --model FILE, once the file is downloaded")),
    (&["-cl", "--cache-list"], Use("foretoken list")),
    // Speculation.
    (&["--assistant-model", "--speculative-model", "--draft-model"], Same("model-draft")),
    (&["--num-assistant-tokens", "--num-speculative-tokens", "--draft-n"], Same("spec-draft-n-max")),
    (&["--draft-n-min"], Same("spec-draft-n-min")),
    (&["--assistant-confidence-threshold"], Same("spec-draft-p-min")),
    (&["--num-assistant-tokens-schedule NAME"], Ignored("--budget heuristic or fixed says how much is drafted")),
    (&["--assistant-early-exit N"], Ignored("drafts come from whole models and from texts")),
    (&["-sc JSON", "--speculative-config JSON", "--spec-config JSON"],
        Use("-md, --model-draft with --spec-type, --spec-draft-n-max and --verify")),
    (&["-cd N", "--ctx-size-draft N"], Ignored("a draft model has room for the target's context")),
    (&["--spec-replace TARGET DRAFT"],
        Ignored("drafts of another vocabulary are translated, see --spec-draft-translate")),
    // Prompts and conversations.
    (&["-bf FILE", "--binary-file FILE"], Use("-f, --file FILE, in UTF-8")),
    (&["-e", "--escape"], Escapes),
    (&["--no-escape"], Ignored("prompts are taken as they are")),
    (&["-sysf FILE", "--system-prompt-file FILE"], Use("--system \"$(cat FILE)\"")),
    (&["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first", "--interactive-only"],
        Selects("chat")),
    (&["-no-cnv", "--no-conversation"], Selects("generate")),
    (&["-mli", "--multiline-input", "--in-prefix TEXT", "--in-suffix TEXT", "--in-prefix-bos"], Refused(TURNS)),
    (&["--simple-io", "--nowordwrap"], Ignored("text is written as it comes")),
    (&["--jinja"], Ignored("chat templates are always read as Jinja")),
    (&["--no-jinja"], Refused(TEMPLATE)),
    (&["--chat-template-kwargs JSON"], Refused("a request has chat_template_kwargs, no command line")),
    (&["--chat-template-content-format FORMAT"], Unless(&["auto"], &Refused(TEMPLATE))),
    (&["--no-prefill-assistant", "--prefill-assistant"],
        Refused("a request says continue_final_message or add_generation_prompt")),
    (&["--reasoning-parser NAME"], Ignored("the marks around thoughts are found from the template")),
    (&["--reasoning-budget N"], Unless(&["-1"], &Refused(THOUGHTS))),
    (&["--think [true|false|high|medium|low|max]"], Unless(&["", "true"], &Refused(THOUGHTS))),
    (&["-rea MODE", "--reasoning MODE", "--reasoning-effort LEVEL"], Unless(&["auto", "default"], &Refused(THOUGHTS))),
    (&["--hidethinking"], Use("-q, --quiet, or 2> /dev/null: thoughts go to standard error")),
    (&["--prompt-cache-all"], Ignored("--prompt-cache keeps prompts alone")),
    (&["-ptc N", "--print-token-count N", "--verbose-prompt"], Ignored("--json has the tokens")),
    // Output and logs.
    (&["-lv N", "--verbosity N", "--log-verbosity N", "--log-verbose", "--log-colors [on|off|auto]", "--log-prefix",
        "--no-log-prefix", "--log-timestamps", "--no-log-timestamps", "--perf", "--no-perf"], Ignored(LOG)),
    (&["--disable-log-requests", "--enable-log-requests", "--disable-log-stats", "--disable-uvicorn-access-log"],
        Ignored("serve logs a line a request and nothing of its text, as --log-level says")),
    (&["--log-disable"], Same("quiet")),
    (&["--log-file FILE"], Use("2> FILE")),
    (&["--log-jsonl"], Use("--log-json of foretoken serve")),
    (&["--uvicorn-log-level LEVEL"], Use("--log-level LEVEL")),
    (&["--usage"], Use("--help")),
    (&["--completion-bash"], Use("foretoken completions bash")),
    // Servers.
    (&["--served-model-name"], Same("alias")),
    (&["--max-num-seqs", "--max-batch-size", "--max-concurrent-requests"], Same("parallel")),
    (&["--allowed-origins LIST", "--cors-allow-origins LIST", "--cors-origins LIST"], Use("--cors-origin ORIGIN")),
    (&["-cb", "--cont-batching", "-nocb", "--no-cont-batching", "--continuous-batching", "--enable-prefix-caching",
        "--no-enable-prefix-caching", "--metrics", "--webui", "--ui"], Ignored(ALWAYS)),
    (&["--no-ui"], Same("no-page")),
    (&["--props"], Refused("a server's settings cannot be changed; each request has its own")),
    (&["--slots", "--no-slots", "-sps X", "--slot-prompt-similarity X"], Ignored(SLOTS)),
    (&["--slot-save-path FOLDER"], Refused(SLOTS)),
    (&["--embedding", "--embeddings", "--reranking", "--rerank", "--pooling TYPE"], Refused(EMBEDDINGS)),
    (&["--task NAME", "--runner NAME"], Unless(&["auto", "generate"], &Refused(EMBEDDINGS))),
    (&["--ssl-key-file FILE", "--ssl-cert-file FILE", "--ssl-keyfile FILE", "--ssl-certfile FILE"], Refused(TLS)),
    (&["--path FOLDER", "--api-prefix PATH", "--root-path PATH"],
        Refused("paths are OpenAI's; a reverse proxy changes them")),
    (&["--enable-auto-tool-choice", "--tool-call-parser NAME"], Ignored(TOOLS)),
    (&["--tools LIST", "--tool-parser-plugin FILE"], Refused(TOOLS)),
    (&["--models-max N", "--models-dir FOLDER"], Refused(SEVERAL_MODELS)),
    (&["--keepalive TIME", "--keep-alive TIME", "--sleep-idle-seconds N"], Ignored(KEEP_ALIVE)),
    (&["--api-server-count N"], Ignored("one process answers all")),
];

/// Values of our own options that mean the default, by the option's name in clap, with the reason for the note.
pub const DEFAULTS: &[(&str, &[&str], &str)] = &[
    ("dtype", &["auto"], "weights stay as they are"),
    ("threads", &["-1"], "there is one a core"),
    ("parallel", &["-1"], "the number of texts at a time is chosen anyway"),
];

/// Commands of other programs, with what to write instead.
pub const COMMANDS: &[(&str, &str)] = &[
    ("complete", "foretoken generate"),
    ("completion", "foretoken generate, or foretoken completions for shells"),
    ("cli", "foretoken generate or foretoken chat"),
    ("download", "foretoken pull"),
    ("delete", "foretoken rm"),
    ("info", "foretoken inspect"),
    ("env", "foretoken version"),
    ("collect-env", "foretoken version"),
    ("convert", "foretoken quantize"),
    ("create", "a model's folder or file; there is no register of models"),
    ("cp", "a model's folder or file; there is no register of models"),
    ("ps", "foretoken serve, whose page shows what runs"),
    ("stop", "Ctrl-C where foretoken serve runs"),
];

/// An option of another program.
#[derive(Clone, Copy, Debug)]
pub struct OtherProgramOption {
    /// What it means here.
    pub meaning: Meaning,
    /// The values that follow it, as in the table.
    values: &'static str,
}

impl OtherProgramOption {
    /// The option of this name, which has its leading dashes, and dashes instead of underlines.
    pub fn named(name: &str) -> Option<Self> {
        OPTIONS.iter().find_map(|(entries, meaning)| {
            let entry = entries.iter().find(|entry| name_of(entry) == name)?;
            Some(Self { meaning: *meaning, values: entry[name.len()..].trim_start() })
        })
    }

    /// Whether a word is a value of it, after `values_before` others.
    pub fn takes(&self, word: &str, values_before: usize) -> bool {
        if let Some(known) = self.values.strip_prefix('[') {
            let word = word.to_lowercase();
            return values_before == 0 && known.trim_end_matches(']').split('|').any(|value| value == word);
        }
        let is_option = word.starts_with('-') && word != "-" && word.parse::<f64>().is_err();
        values_before < self.values.split(' ').filter(|value| !value.is_empty()).count() && !is_option
    }

    /// Whether the option is ignored or refused on a line of `command`: `Ok` with the reason, or `Err` with what was
    /// expected. `has_backslash`: some word of the line has a backslash.
    pub fn check(&self, values: &[String], command: &str, has_backslash: bool) -> Result<String, String> {
        let value = values.first().map_or("", String::as_str);
        let meaning = match self.meaning {
            Unless(without_effect, _) if without_effect.iter().any(|other| is_same(other, value)) => {
                Ignored("it has no effect")
            }
            Unless(_, meaning) => *meaning,
            other => other,
        };
        match meaning {
            Same(ours) => Err(format!("expected --{ours}")),
            Use(ours) => Err(format!("expected {ours}")),
            Refused(why) => Err(format!("expected no such option: {why}")),
            Ignored(why) => Ok(why.to_string()),
            Selects(ours) if ours == command => Ok(format!("{ours} does that")),
            Selects(ours) => Err(format!("expected foretoken {ours}")),
            Escapes if has_backslash => {
                Err("expected no such option: prompts are taken as they are; bash has $'one\\ntwo'".to_string())
            }
            Escapes => Ok("prompts are taken as they are, and no word has a backslash".to_string()),
            // The table has no `Unless` inside another.
            Unless(..) => Err("expected no such option".to_string()),
        }
    }
}

/// The name of an entry of the table.
pub fn name_of(entry: &str) -> &str {
    entry.split(' ').next().unwrap_or_default()
}

/// Whether two values are equal, as numbers if both are numbers.
pub fn is_same(one: &str, other: &str) -> bool {
    match (one.parse::<f64>(), other.parse::<f64>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one.eq_ignore_ascii_case(other),
    }
}
