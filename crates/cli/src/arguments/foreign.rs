//! What other programs call their options, so that who comes from them can paste a command line, or is answered by our
//! names.
//!
//! One table: llama.cpp's llama-cli and llama-server, ik_llama.cpp's, generate of transformers, `vllm serve`, ollama
//! with the parameters of its model files. A name that means exactly what an option here means is taken as that option.
//! One that holds anyway, or says only where and how fast to compute, is passed over with a note; so is a value that
//! asks for nothing. What would change what is written or promised is refused: with our name where something here is
//! like it, else with the reason. Each name stands with the values that follow it, as help writes them, since a value
//! must not be taken for a model or a prompt. Options of the same name are not here, nor those that clap knows as
//! aliases.

use Meaning::{Escapes, Holds, Like, Nothing, Of, Same, Unless};

/// What an option of another program is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The same as this long option.
    Same(&'static str),
    /// What to write instead.
    Like(&'static str),
    /// Nothing that can be had, for this reason.
    Nothing(&'static str),
    /// Passed over, for this reason: it is so anyway, or changes no text.
    Holds(&'static str),
    /// Passed over with one of these values, which ask for nothing; else what stands behind them. The empty value is
    /// none at all.
    Unless(&'static [&'static str], &'static Meaning),
    /// What this command does, passed over there.
    Of(&'static str),
    /// Passed over where no word has a backslash.
    Escapes,
}

const CPU: &str = "models run on the CPU";
const ONE_MACHINE: &str = "a model runs on one machine's CPU";
const EXPERTS: &str = "all experts run on the CPU";
const ATTENTION: &str = "attention is always computed in one way, block by block";
const PLACES: &str = "threads stay where the system puts them; taskset and numactl decide that from outside";
const PIECES: &str = "prompts are read in pieces of a size that is chosen for the machine";
const FILE_MEMORY: &str = "weights are packed into memory as they are loaded";
const CACHE: &str = "the cache grows and shrinks by pages, which texts that begin alike share";
const POSITIONS: &str = "positions are as the model's files say";
const SHIFT: &str = "a text ends where the context is full; --context-shift of chat leaves out old turns";
const ADAPTERS: &str = "there are no adapters; merge them into the model";
const GRAMMAR: &str = "grammars are compiled in one way, whoever asks";
const SAMPLER: &str = "this sampler is not there";
const BELONGS: &str = "it says how something works that is not there";
const BEAMS: &str = "texts are sampled and not searched for";
const ALWAYS: &str = "it is always so";
const TEXT: &str = "models read and write text";
const THREADS: &str = "-t, --threads holds for prompts, passes and drafts";
const TEMPLATE: &str = "chat templates are always read as Jinja (--chat-template takes another one)";
const THOUGHTS: &str = "a model thinks as its template has it; a request turns it off with chat_template_kwargs";
const TOOLS: &str = "the form of tool calls is found from the model's template, always";
const QUANTIZE: &str = "--dtype, or foretoken quantize for a file";
const TLS: &str = "a reverse proxy has TLS; the server speaks plain HTTP";
const ONE_MODEL: &str = "a server has one model";
const STAYS: &str = "the model stays as long as the program runs";
const LOG: &str = "-v says more and -q less; serve has --log-level and --log-json";
const SLOTS: &str = "texts share what they begin with, whoever asks; there are no slots";
const EMBEDDINGS: &str = "models write text here; they embed and rank none";
const FILES: &str = "all files of a model are found in its folder or file";
const LINES: &str = "a line is a turn, in the model's own form";

/// Names with the values that follow them, and what they mean here.
#[rustfmt::skip]
pub const OPTIONS: &[(&[&str], Meaning)] = &[
    // How much, and when to end.
    (&["--max-new-tokens", "--max-tokens", "--max-completion-tokens", "--num-predict"], Same("n-predict")),
    (&["--max-length N"], Like("-n, --n-predict (new tokens) or -c, --ctx-size (all of them)")),
    (&["--min-new-tokens"], Same("min-tokens")),
    (&["--min-length N"], Like("--min-tokens, which counts new tokens")),
    (&["--max-model-len", "--max-seq-len", "--num-ctx", "--context-length"], Same("ctx-size")),
    (&["--num-return-sequences"], Same("n-best")),
    (&["--stop-strings", "--stop-string", "--stop-sequence", "-r"], Same("stop")),
    (&["--eos-token-id ID"], Like("--stop TEXT; the model's own end tokens are known")),
    (&["--keep N"], Unless(&["0", "-1"], &Nothing(SHIFT))),
    (&["--no-context-shift"], Holds(SHIFT)),
    (&["--grp-attn-n N", "-gan N"], Unless(&["1"], &Nothing(POSITIONS))),
    (&["--grp-attn-w N", "-gaw N"], Holds(BELONGS)),
    // The law.
    (&["--do-sample [true|false]", "--no-do-sample"], Like("--temp; 0 is greedy")),
    (&["--num-beams N", "--num-beam-groups N", "--best-of N"], Unless(&["1"], &Nothing(BEAMS))),
    (&["--length-penalty X", "--early-stopping [true|false|never]", "--diversity-penalty X"], Holds(BELONGS)),
    (&["--typ"], Same("typical")),
    (&["-l"], Same("logit-bias")),
    (&["-sp", "--no-skip-special-tokens"], Same("special")),
    (&["--skip-special-tokens [true]"], Holds("it is so without --special")),
    (&["--bad-words-ids IDS", "--suppress-tokens IDS"], Like("--ban-token ID,..")),
    (&["--mirostat N", "--no-repeat-ngram-size N", "--penalty-alpha X", "--epsilon-cutoff X", "--eta-cutoff X",
        "--xtc-probability X", "--dry-multiplier X", "--dynatemp-range X"], Unless(&["0"], &Nothing(SAMPLER))),
    (&["--top-nsigma X", "--top-n-sigma X"], Unless(&["-1", "0"], &Nothing(SAMPLER))),
    (&["--tfs X", "--tfs-z X", "--guidance-scale X", "--encoder-repetition-penalty X"],
        Unless(&["1"], &Nothing(SAMPLER))),
    (&["--adaptive-target X"], Unless(&["-1"], &Nothing(SAMPLER))),
    (&["--mirostat-lr X", "--mirostat-ent X", "--mirostat-eta X", "--mirostat-tau X", "--xtc-threshold X",
        "--dry-base X", "--dry-allowed-length N", "--dry-penalty-last-n N", "--dry-sequence-breaker TEXT",
        "--dynatemp-exp X", "--adaptive-decay X"], Holds(BELONGS)),
    (&["--samplers LIST", "--sampling-seq LETTERS", "--sampler-seq LETTERS"],
        Nothing("samplers are applied in transformers' order")),
    (&["-bs", "--backend-sampling"], Holds(CPU)),
    (&["-j", "-jf", "--json-schema-file", "--guided-json"], Same("json-schema")),
    (&["--guided-regex"], Same("regex")),
    (&["--guided-grammar"], Same("grammar")),
    (&["--guided-choice TEXTS"], Like("--choice TEXT, once for each")),
    (&["--format FORMAT"], Like("--json-schema FILE; {} is any JSON")),
    (&["--guided-decoding-backend NAME", "--structured-outputs-config JSON"], Holds(GRAMMAR)),
    (&["--generation-config FOLDER", "--override-generation-config JSON"], Unless(&["auto"],
        &Nothing("generation_config.json of the model's folder is read, and each option is stronger than it"))),
    // The model, and where it is computed.
    (&["--model-name-or-path", "--model-path", "--pretrained-model-name-or-path"], Same("model")),
    (&["-ngl N", "--gpu-layers N", "--n-gpu-layers N", "--num-gpu N", "-ngld N", "--gpu-layers-draft N",
        "--n-gpu-layers-draft N", "--spec-draft-ngl N"], Holds(CPU)),
    (&["-dev NAMES", "--device NAMES", "-devd NAMES", "--device-draft NAMES", "--device-map MAP", "-mg N",
        "--main-gpu N", "--main-gpu-id N", "-fit [on|off]", "--fit [on|off]", "-fitt N", "--fit-target N", "-fitc N",
        "--fit-ctx N"], Holds(CPU)),
    (&["--list-devices"], Like("foretoken version, which says what it computes with")),
    (&["-sm MODE", "--split-mode MODE", "-ts LIST", "--tensor-split LIST", "-ot LIST", "--override-tensor LIST",
        "-otd LIST", "--override-tensor-draft LIST", "--no-op-offload", "--op-offload", "-nkvo", "--no-kv-offload",
        "-kvo", "--kv-offload", "--no-host", "--low-vram [true|false]", "-ncffn N", "--n-cpu-ffn N"], Holds(CPU)),
    (&["-cmoe", "--cpu-moe", "-ncmoe N", "--n-cpu-moe N", "-cmoed", "--cpu-moe-draft", "-ncmoed N",
        "--n-cpu-moe-draft N", "--moe-cache-mib N", "-fmoe", "--fused-moe", "--enable-expert-parallel"],
        Holds(EXPERTS)),
    (&["--gpu-memory-utilization X", "--swap-space X", "--cpu-offload-gb X", "--enforce-eager",
        "--num-gpu-blocks-override N", "--max-seq-len-to-capture N", "--disable-custom-all-reduce",
        "--compilation-config JSON"], Holds(CPU)),
    (&["-tp N", "--tensor-parallel-size N", "-pp N", "--pipeline-parallel-size N", "-dp N", "--data-parallel-size N",
        "--distributed-executor-backend NAME", "--rpc SERVERS"], Holds(ONE_MACHINE)),
    (&["-fa [on|off|auto|0|1]", "--flash-attn [on|off|auto|0|1]", "--flash-attention [on|off|auto|true|false]",
        "--no-flash-attn", "-no-fa", "--attn-implementation NAME", "--attention-backend NAME", "-mla N", "--mla-use N",
        "-amb N", "--attention-max-batch N"], Holds(ATTENTION)),
    (&["-tb N", "--threads-batch N", "-td N", "--threads-draft N", "-tbd N", "--threads-batch-draft N",
        "--threads-http N"], Holds(THREADS)),
    (&["--num-thread"], Same("threads")),
    (&["-C MASK", "--cpu-mask MASK", "-Cr RANGE", "--cpu-range RANGE", "--cpu-strict N", "-Cb MASK",
        "--cpu-mask-batch MASK", "-Crb RANGE", "--cpu-range-batch RANGE", "--cpu-strict-batch N", "--prio N",
        "--prio-batch N", "--poll N", "--poll-batch N", "--numa [distribute|isolate|numactl|mirror|true|false]"],
        Holds(PLACES)),
    (&["-b N", "--batch-size N", "-ub N", "--ubatch-size N", "--num-batch N", "--max-num-batched-tokens N",
        "--prefill-chunk-size N", "--enable-chunked-prefill [true|false]", "--no-enable-chunked-prefill",
        "--async-scheduling"], Holds(PIECES)),
    (&["--mlock", "--no-mmap", "--mmap", "--use-mmap [true|false|0|1]", "--use-mlock [true|false|0|1]", "-dio",
        "--direct-io", "-nr", "--no-repack", "--repack", "-rtr", "--run-time-repack", "-lm MODE", "--load-mode MODE",
        "-lzm MODE", "--lazy-mode MODE"], Holds(FILE_MEMORY)),
    (&["--check-tensors"], Holds("what cannot be used is found as it is loaded")),
    (&["--torch-dtype"], Same("dtype")),
    (&["--load-in-4bit [true|false]", "--load-in-8bit [true|false]", "--quantization NAME"], Like(QUANTIZE)),
    (&["--kv-cache-dtype TYPE"], Unless(&["auto"], &Like("-ctk, --cache-type-k and -ctv, --cache-type-v"))),
    (&["-dt X", "--defrag-thold X", "--swa-full", "-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified",
        "--use-cache [true|false]", "--block-size N", "--cache-reuse N", "-cram N", "--cache-ram N",
        "-ctxcp N", "--ctx-checkpoints N", "--swa-checkpoints N", "-cms N", "--checkpoint-min-step N",
        "--cache-prompt", "--no-cache-prompt", "--cache-idle-slots", "--no-cache-idle-slots"], Holds(CACHE)),
    (&["--cache-implementation NAME"],
        Unless(&["static", "dynamic"], &Like("-ctk, --cache-type-k and -ctv, --cache-type-v"))),
    (&["--rope-scaling TYPE", "--rope-scale X"], Nothing(POSITIONS)),
    (&["--rope-freq-base X", "--rope-freq-scale X", "--yarn-orig-ctx N"], Unless(&["0"], &Nothing(POSITIONS))),
    (&["--yarn-ext-factor X", "--yarn-attn-factor X", "--yarn-beta-slow X", "--yarn-beta-fast X"],
        Unless(&["-1"], &Nothing(POSITIONS))),
    (&["--override-kv LIST", "--hf-overrides JSON"], Nothing("the model's files say what it is; change them")),
    (&["--lora FILE", "--lora-scaled LIST", "--enable-lora", "--lora-modules LIST", "--lora-init-without-apply",
        "--control-vector FILE", "--control-vector-scaled LIST", "--control-vector-layer-range START END"],
        Nothing(ADAPTERS)),
    (&["--trust-remote-code"], Holds("no code of a model is ever run; families are part of the program")),
    (&["--tokenizer NAME", "--tokenizer-mode MODE"], Unless(&["auto"], &Nothing(FILES))),
    (&["--load-format NAME", "--config-format NAME"], Holds(FILES)),
    (&["--no-warmup", "--warmup"], Holds("nothing is computed before the first prompt")),
    (&["-mm FILE", "--mmproj FILE", "-mmu URL", "--mmproj-url URL", "--image FILE", "--audio FILE",
        "--media-path FOLDER", "--allowed-local-media-path FOLDER"], Nothing(TEXT)),
    (&["--no-mmproj", "--mmproj-auto", "--no-mmproj-auto", "--mmproj-offload", "--no-mmproj-offload",
        "--limit-mm-per-prompt LIMITS", "--image-min-tokens N", "--image-max-tokens N"], Holds(TEXT)),
    (&["-hft TOKEN", "--hf-token TOKEN"], Like("the variable HF_TOKEN, where no list of processes shows it")),
    (&["--offline", "--local-files-only"], Like("the variable HF_HUB_OFFLINE=1")),
    (&["--revision NAME", "--code-revision NAME"], Like("org/name@REVISION as the model")),
    (&["--download-dir FOLDER", "--cache-dir FOLDER"], Like("the variable HF_HUB_CACHE")),
    (&["-mu URL", "--model-url URL", "-dr NAME", "--docker-repo NAME"],
        Like("-m, --model FILE, once the file is downloaded")),
    (&["-cl", "--cache-list"], Like("foretoken list")),
    // Speculation.
    (&["--assistant-model", "--speculative-model", "--draft-model"], Same("model-draft")),
    (&["--num-assistant-tokens", "--num-speculative-tokens", "--draft-n"], Same("spec-draft-n-max")),
    (&["--draft-n-min"], Same("spec-draft-n-min")),
    (&["--assistant-confidence-threshold"], Same("spec-draft-p-min")),
    (&["--num-assistant-tokens-schedule NAME"], Holds("--budget heuristic or fixed says how much is drafted")),
    (&["--assistant-early-exit N"], Holds("drafts come from whole models and from texts")),
    (&["-sc JSON", "--speculative-config JSON", "--spec-config JSON"],
        Like("-md, --model-draft with --spec-type, --spec-draft-n-max and --verify")),
    (&["-cd N", "--ctx-size-draft N"], Holds("a draft model has room for the target's context")),
    (&["--spec-replace TARGET DRAFT"],
        Holds("drafts of another vocabulary are translated, see --spec-draft-translate")),
    // Prompts and conversations.
    (&["-bf FILE", "--binary-file FILE"], Like("-f, --file FILE, in UTF-8")),
    (&["-e", "--escape"], Escapes),
    (&["--no-escape"], Holds("prompts are taken as they are")),
    (&["-sysf FILE", "--system-prompt-file FILE"], Like("--system \"$(cat FILE)\"")),
    (&["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first", "--interactive-only"],
        Of("chat")),
    (&["-no-cnv", "--no-conversation"], Of("generate")),
    (&["-mli", "--multiline-input", "--in-prefix TEXT", "--in-suffix TEXT", "--in-prefix-bos"], Nothing(LINES)),
    (&["--simple-io", "--nowordwrap"], Holds("text is written as it comes")),
    (&["--jinja"], Holds("chat templates are always read as Jinja")),
    (&["--no-jinja"], Nothing(TEMPLATE)),
    (&["--chat-template-kwargs JSON"], Nothing("a request has chat_template_kwargs, no command line")),
    (&["--chat-template-content-format FORMAT"], Unless(&["auto"], &Nothing(TEMPLATE))),
    (&["--no-prefill-assistant", "--prefill-assistant"],
        Nothing("a request says continue_final_message or add_generation_prompt")),
    (&["--reasoning-parser NAME"], Holds("marks of thoughts are found from the template")),
    (&["--reasoning-budget N"], Unless(&["-1"], &Nothing(THOUGHTS))),
    (&["--think [true|false|high|medium|low|max]"], Unless(&["", "true"], &Nothing(THOUGHTS))),
    (&["-rea MODE", "--reasoning MODE", "--reasoning-effort LEVEL"], Unless(&["auto", "default"], &Nothing(THOUGHTS))),
    (&["--hidethinking"], Like("-q, --quiet, or 2> /dev/null: thoughts go to standard error")),
    (&["--prompt-cache-all"], Holds("--prompt-cache keeps prompts alone")),
    (&["-ptc N", "--print-token-count N", "--verbose-prompt"], Holds("--json has the tokens")),
    // What is said.
    (&["-lv N", "--verbosity N", "--log-verbosity N", "--log-verbose", "--log-colors [on|off|auto]", "--log-prefix",
        "--no-log-prefix", "--log-timestamps", "--no-log-timestamps", "--perf", "--no-perf"], Holds(LOG)),
    (&["--disable-log-requests", "--enable-log-requests", "--disable-log-stats", "--disable-uvicorn-access-log"],
        Holds("serve logs a line a request and nothing of its text, as --log-level says")),
    (&["--log-disable"], Same("quiet")),
    (&["--log-file FILE"], Like("2> FILE")),
    (&["--log-jsonl"], Like("--log-json of foretoken serve")),
    (&["--uvicorn-log-level LEVEL"], Like("--log-level LEVEL")),
    (&["--usage"], Like("--help")),
    (&["--completion-bash"], Like("foretoken completions bash")),
    // Servers.
    (&["--served-model-name"], Same("alias")),
    (&["--max-num-seqs", "--max-batch-size", "--max-concurrent-requests"], Same("parallel")),
    (&["--allowed-origins LIST", "--cors-allow-origins LIST", "--cors-origins LIST"], Like("--cors-origin ORIGIN")),
    (&["-cb", "--cont-batching", "-nocb", "--no-cont-batching", "--continuous-batching", "--enable-prefix-caching",
        "--no-enable-prefix-caching", "--metrics", "--webui", "--ui"], Holds(ALWAYS)),
    (&["--no-ui"], Same("no-page")),
    (&["--props"], Nothing("settings of a server are its own; each request says what it wants")),
    (&["--slots", "--no-slots", "-sps X", "--slot-prompt-similarity X"], Holds(SLOTS)),
    (&["--slot-save-path FOLDER"], Nothing(SLOTS)),
    (&["--embedding", "--embeddings", "--reranking", "--rerank", "--pooling TYPE"], Nothing(EMBEDDINGS)),
    (&["--task NAME", "--runner NAME"], Unless(&["auto", "generate"], &Nothing(EMBEDDINGS))),
    (&["--ssl-key-file FILE", "--ssl-cert-file FILE", "--ssl-keyfile FILE", "--ssl-certfile FILE"], Nothing(TLS)),
    (&["--path FOLDER", "--api-prefix PATH", "--root-path PATH"],
        Nothing("paths are OpenAI's; a reverse proxy changes them")),
    (&["--enable-auto-tool-choice", "--tool-call-parser NAME"], Holds(TOOLS)),
    (&["--tools LIST", "--tool-parser-plugin FILE"], Nothing(TOOLS)),
    (&["--models-max N", "--models-dir FOLDER"], Nothing(ONE_MODEL)),
    (&["--keepalive TIME", "--keep-alive TIME", "--sleep-idle-seconds N"], Holds(STAYS)),
    (&["--api-server-count N"], Holds("one process answers all")),
];

/// Values of our own options that ask for what is so without them, by the option's name in clap, with the reason.
pub const DEFAULTS: &[(&str, &[&str], &str)] = &[
    ("dtype", &["auto"], "weights stay as they are"),
    ("threads", &["-1"], "there is one a core"),
    ("parallel", &["-1"], "how many texts are written at a time is chosen"),
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
pub struct Foreign {
    /// What it is here.
    pub meaning: Meaning,
    /// The values that follow it, as the table has them.
    values: &'static str,
}

impl Foreign {
    /// The option of this name, with its dashes, and dashes for underlines.
    pub fn named(name: &str) -> Option<Self> {
        OPTIONS.iter().find_map(|(entries, meaning)| {
            let entry = entries.iter().find(|entry| name_of(entry) == name)?;
            Some(Self { meaning: *meaning, values: entry[name.len()..].trim_start() })
        })
    }

    /// Whether a word is a value of it, behind so many others.
    pub fn takes(&self, word: &str, behind: usize) -> bool {
        if let Some(known) = self.values.strip_prefix('[') {
            let word = word.to_lowercase();
            return behind == 0 && known.trim_end_matches(']').split('|').any(|value| value == word);
        }
        let is_option = word.starts_with('-') && word != "-" && word.parse::<f64>().is_err();
        behind < self.values.split(' ').filter(|value| !value.is_empty()).count() && !is_option
    }

    /// What is done with it on a line of a command, where some word has a backslash or none: it is passed over for a
    /// reason, or refused with what was expected.
    pub fn judge(&self, values: &[String], command: &str, has_backslash: bool) -> Result<String, String> {
        let value = values.first().map_or("", String::as_str);
        let meaning = match self.meaning {
            Unless(nothing, _) if nothing.iter().any(|other| is_same(other, value)) => Holds("it asks for nothing"),
            Unless(_, meaning) => *meaning,
            other => other,
        };
        match meaning {
            Same(ours) => Err(format!("expected --{ours}")),
            Like(ours) => Err(format!("expected {ours}")),
            Nothing(why) => Err(format!("expected no such option: {why}")),
            Holds(why) => Ok(why.to_string()),
            Of(ours) if ours == command => Ok(format!("{ours} does that")),
            Of(ours) => Err(format!("expected foretoken {ours}")),
            Escapes if has_backslash => {
                Err("expected no such option: prompts are taken as they are; bash has $'one\\ntwo'".to_string())
            }
            Escapes => Ok("prompts are taken as they are, and no word has a backslash".to_string()),
            // One of these does not stand in another.
            Unless(..) => Err("expected no such option".to_string()),
        }
    }
}

/// The name of an entry of the table.
pub fn name_of(entry: &str) -> &str {
    entry.split(' ').next().unwrap_or_default()
}

/// Whether two values are the same: as numbers, if both are.
pub fn is_same(one: &str, other: &str) -> bool {
    match (one.parse::<f64>(), other.parse::<f64>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one.eq_ignore_ascii_case(other),
    }
}

/// Whether several letters behind one dash are another program's option, and not our short one with a value.
pub fn is_short(word: &str) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    name.len() > 2 && !name.starts_with("--") && Foreign::named(name).is_some()
}
