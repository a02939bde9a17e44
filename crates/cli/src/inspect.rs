//! `foretoken inspect`: prints one page about a model.
//!
//! It reads configuration, tensor names and tokenizer and computes nothing, so it is fast for any size. The facts are
//! printed as a page or as JSON. Whether the tensors fit the configuration is only checked by loading.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use foretoken::line::one_line;
use foretoken::models::spec::{Activation, DraftHead, Experts, FeedForward, HeadKind, Norm, Positions};
use foretoken::models::{ActiveParameters, ExpertNeed, Opened, Spec};
use foretoken::{CacheType, Isa, Offload, Token, Tokenizer};
use foretoken_console::failure::{Failure, on_one_line};
use foretoken_console::options::{CacheOptions, HubOptions, ModelOptions};
use foretoken_console::terminal::standard_output;
use serde_json::{Value, json};

/// Options of `foretoken inspect`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub struct Inspect {
    /// The model: a directory, .gguf file or org/name [default: a demo]
    #[arg(help_heading = "Model", value_name = "MODEL", conflicts_with_all = ["model", "hf_repo"])]
    place: Option<PathBuf>,
    /// The same
    #[arg(help_heading = "Model", short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubOptions,
    /// Print one JSON object
    #[arg(help_heading = "Output", long)]
    json: bool,
    #[command(flatten)]
    cache: CacheOptions,
}

impl Inspect {
    /// Runs the command.
    ///
    /// # Errors
    /// The model's files cannot be understood.
    pub fn run(&self) -> Result<(), Failure> {
        let model = self.place.clone().or_else(|| self.model.clone());
        let opened = ModelOptions {
            model,
            hub: self.hub.clone(),
            ctx_size: None,
            checkpoints: None,
            expert_memory: None,
            offload: Offload::default(),
            threads: None,
            dtype: None,
            cache: self.cache,
        }
        .open()?;
        let facts = Facts::new(&opened, self.cache)?;
        let mut out = standard_output();
        match self.json {
            true => writeln!(out, "{:#}", facts.object(&opened))?,
            false => out.write_all(facts.page(&opened).as_bytes())?,
        }
        Ok(out.flush()?)
    }
}

/// Derived facts about a model; the others are in its `Spec`.
struct Facts {
    /// The numbers of tensors and of elements of each type.
    dtypes: BTreeMap<&'static str, (usize, usize)>,
    weights_bytes: usize,
    /// Only for mixtures of experts.
    active: Option<ActiveParameters>,
    /// Types of keys and values.
    cache_types: [CacheType; 2],
    /// Bytes of the cache for a thousand positions.
    cache_bytes: usize,
    tokenizer_len: Option<usize>,
    /// The token that begins a text (BOS).
    beginning: Option<(Token, String)>,
    /// Whether the tokenizer puts `beginning` before every text; if not, it only replaces an empty prompt.
    adds_beginning: bool,
    end_tokens: Vec<(Token, String)>,
    chat_template: Option<String>,
}

impl Facts {
    fn new(model: &Opened, cache: CacheOptions) -> Result<Self, Failure> {
        let cache_types = [cache.cache_type_k, cache.cache_type_v];
        let tokenizer = model.tokenizer()?;
        let with_text = |token: Token| {
            let bytes = tokenizer.as_ref().map(|tokenizer| tokenizer.token_bytes(token).escape_ascii().to_string());
            (token, bytes.unwrap_or_default())
        };
        let mut dtypes = BTreeMap::new();
        let mut weights_bytes = 0;
        for tensor in model.checkpoint.weights.iter() {
            let elements: usize = tensor.shape.iter().product();
            let (tensors, all) = dtypes.entry(tensor.dtype.name()).or_insert((0, 0));
            (*tensors, *all) = (*tensors + 1, *all + elements);
            weights_bytes += tensor.bytes.len();
        }
        let template = model.chat_template()?;
        Ok(Self {
            dtypes,
            weights_bytes,
            active: ActiveParameters::new(model),
            cache_types,
            cache_bytes: model.spec.cache_bytes_per_position(cache_types).saturating_mul(1000),
            tokenizer_len: tokenizer.as_deref().map(Tokenizer::vocabulary_len),
            beginning: model.beginning(tokenizer.as_deref()).map(with_text),
            adds_beginning: tokenizer.as_deref().is_some_and(Tokenizer::adds_bos),
            end_tokens: model.end_tokens(tokenizer.as_deref()).into_iter().map(with_text).collect(),
            chat_template: template.map(|template| template.source().to_string()),
        })
    }

    fn object(&self, model: &Opened) -> Value {
        let spec = &model.spec;
        let dtypes: BTreeMap<_, _> = self
            .dtypes
            .iter()
            .map(|(name, (tensors, elements))| (name, json!({ "tensors": tensors, "elements": elements })))
            .collect();
        let tokens = |tokens: &[(Token, String)]| tokens.iter().map(|(token, _)| *token).collect::<Vec<_>>();
        json!({
            "model": model.name,
            "format": model.format(),
            "family": spec.family,
            "parameters": model.checkpoint.parameters(),
            "dtypes": dtypes,
            "layers": spec.layers,
            "width": spec.width,
            "heads": spec.heads,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "ffn_width": spec.ffn_width,
            "norm": norm(spec.norm),
            "positions": positions(&spec.positions),
            "feed_forward": feed_forward(spec.feed_forward),
            "experts": spec.experts.as_ref().map(|experts| json!({
                "count": experts.count,
                "chosen": experts.chosen,
                "ffn_width": experts.ffn_width,
                "shared_ffn_width": experts.shared.map(|shared| shared.ffn_width),
                "layers": layers_with_experts(spec),
            })),
            "encoder": spec.encoder.map(|encoder| json!({ "layers": encoder.layers, "start_token": encoder.start })),
            "draft_head": spec.draft_head.as_ref().map(|head| json!({
                "target_layers": head.target_layers,
                "target_width": head.target_width,
                "vocabulary": head.draft_vocabulary,
                "positions_ahead": positions_ahead(head),
            })),
            "parameters_active": match spec.experts {
                Some(_) => self.active.as_ref().map(|token| token.parameters),
                None => Some(model.checkpoint.parameters()),
            },
            "tied_head": spec.tied_head,
            "vocabulary": spec.vocabulary,
            "tokenizer_vocabulary": self.tokenizer_len,
            "context": spec.context_max,
            "memory": {
                "weights_bytes": self.weights_bytes,
                "token_bytes": self.active.as_ref().map(|token| token.bytes),
                "experts_bytes": self.active.as_ref().map(|token| token.experts.all),
                "experts_bytes_least": self.active.as_ref().map(|token| token.experts.least),
                "cache_bytes_per_1000_positions": self.cache_bytes,
                "cache_types": self.cache_types.map(CacheType::name),
            },
            "instruction_set": Isa::chosen().name(),
            "beginning_token": self.beginning.as_ref().map(|(token, _)| token),
            "adds_beginning_token": self.adds_beginning,
            "end_tokens": tokens(&self.end_tokens),
            "chat_template": self.chat_template,
        })
    }

    /// What the input of the model begins with.
    fn begins_with(&self) -> String {
        let token = listed(self.beginning.as_slice());
        match (&self.beginning, self.adds_beginning, self.tokenizer_len) {
            (Some(_), false, Some(_)) => format!("nothing (an empty prompt becomes {token})"),
            (Some(_), false, None) => format!("nothing, without a tokenizer ({token} is named)"),
            _ => token,
        }
    }

    fn parameters(&self, model: &Opened) -> String {
        let all = grouped(model.checkpoint.parameters());
        match &self.active {
            Some(token) => format!("{all}, of which a token is computed with {}", grouped(token.parameters)),
            None => all,
        }
    }

    fn page(&self, model: &Opened) -> String {
        let spec = &model.spec;
        let [keys, values] = self.cache_types.map(CacheType::name);
        let cache = megabytes(self.cache_bytes);
        let dtypes = self
            .dtypes
            .iter()
            .map(|(name, (tensors, elements))| format!("{name}: {tensors} tensors, {} elements", grouped(*elements)));
        let head = if spec.tied_head { "the embedding (tied)" } else { "a matrix of its own" };
        let vocabulary = match self.tokenizer_len {
            Some(len) => format!("{} tokens, of which the tokenizer knows {}", grouped(spec.vocabulary), grouped(len)),
            None => format!("{} tokens, no tokenizer", grouped(spec.vocabulary)),
        };
        let active_note = match &self.active {
            Some(ActiveParameters { bytes, experts: ExpertNeed { all, .. }, .. }) => {
                format!(" (of which a token alone reads {}; experts {})", megabytes(*bytes), megabytes(*all))
            }
            None => String::new(),
        };
        let mut rows = vec![
            ("model", on_one_line(&model.name)),
            ("format", model.format().to_string()),
            ("family", spec.family.to_string()),
            ("parameters", self.parameters(model)),
            ("types", dtypes.collect::<Vec<_>>().join("; ")),
            ("layers", layers(spec)),
            ("width", format!("{}, feed-forward {} ({})", spec.width, spec.ffn_width, feed_forward(spec.feed_forward))),
            ("heads", format!("{} of {}, {} of keys and values", spec.heads, spec.head_dim, spec.kv_heads)),
            ("norm", norm(spec.norm)),
            ("positions", positions(&spec.positions).to_string()),
            ("head", head.to_string()),
            ("vocabulary", vocabulary),
            ("context", format!("{} tokens", grouped(spec.context_max))),
            (
                "memory",
                format!(
                    "weights {}{active_note}, cache {cache} per 1000 positions{} (keys {keys}, values {values})",
                    megabytes(self.weights_bytes),
                    if spec.encoder.is_some() { " and as much per 1000 of a source" } else { "" },
                ),
            ),
            ("computes", format!("{} (of {})", Isa::chosen().name(), instruction_sets())),
            ("begins with", spec.encoder.map_or_else(|| self.begins_with(), |encoder| encoder.start.to_string())),
            ("ends with", listed(&self.end_tokens)),
        ];
        if let Some(experts) = &spec.experts {
            let after_width = rows.iter().position(|(name, _)| *name == "width").map_or(rows.len(), |place| place + 1);
            rows.insert(after_width, ("experts", describe_experts(spec, experts)));
        }
        if let Some(head) = &spec.draft_head {
            // Begin and end tokens are the target's, and Medusa's heads have no layers.
            const TEXT_ROWS: [&str; 2] = ["begins with", "ends with"];
            const LAYER_ROWS: [&str; 7] = ["layers", "width", "heads", "norm", "positions", "head", "context"];
            let is_medusa = positions_ahead(head).is_some();
            rows.retain(|(name, _)| !(TEXT_ROWS.contains(name) || is_medusa && LAYER_ROWS.contains(name)));
            rows.insert(3, ("drafts", describe_draft_head(head)));
            return Self::lines(&rows);
        }
        rows.push(("chat template", self.chat_template.as_deref().map_or("none".to_string(), first_lines)));
        Self::lines(&rows)
    }

    fn lines(rows: &[(&str, String)]) -> String {
        rows.iter().map(|(name, value)| format!("{name:<15}{value}\n")).collect()
    }
}

/// How many positions ahead Medusa heads draft.
fn positions_ahead(head: &DraftHead) -> Option<usize> {
    match head.kind {
        HeadKind::Medusa { heads, .. } => Some(heads),
        HeadKind::Layers { .. } => None,
    }
}

fn describe_draft_head(head: &DraftHead) -> String {
    let DraftHead { target_layers, target_width, draft_vocabulary, kind } = head;
    let source = match (kind, &target_layers[..]) {
        (HeadKind::Medusa { heads, .. }, _) => format!("the last layer, {heads} positions ahead"),
        (HeadKind::Layers { .. }, []) => "layers 1, n / 2 - 1 and n - 4".to_string(),
        (HeadKind::Layers { .. }, layers) => {
            format!("layers {}", layers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
    };
    format!("for a target of width {target_width}, from behind {source}; says {} tokens", grouped(*draft_vocabulary))
}

fn layers_with_experts(spec: &Spec) -> usize {
    (0..spec.layers).filter(|layer| spec.experts_of(*layer).is_some()).count()
}

fn describe_experts(spec: &Spec, experts: &Experts) -> String {
    let Experts { count, chosen, ffn_width, shared, beside_dense, .. } = experts;
    let layers = layers_with_experts(spec);
    let shared =
        shared.map_or(String::new(), |shared| format!(", and one of {} that all tokens share", shared.ffn_width));
    let dense = if *beside_dense { ", beside a dense half" } else { "" };
    let layers_text = if layers == spec.layers { "each layer".to_string() } else { format!("each of {layers} layers") };
    format!("{count} of width {ffn_width} in {layers_text}, of which a token chooses {chosen}{shared}{dense}")
}

/// The layers of the network, or of both its halves.
fn layers(spec: &Spec) -> String {
    match spec.encoder {
        None => spec.layers.to_string(),
        Some(encoder) => format!("{} of the encoder, {} of the decoder", encoder.layers, spec.layers),
    }
}

/// The names of all instruction sets of this machine.
pub fn instruction_sets() -> String {
    Isa::available().into_iter().map(Isa::name).collect::<Vec<_>>().join(", ")
}

fn norm(norm: Norm) -> String {
    match norm {
        Norm::Rms { epsilon } => format!("RMSNorm, epsilon {epsilon:e}"),
        Norm::Layer { epsilon } => format!("LayerNorm, epsilon {epsilon:e}"),
    }
}

fn positions(positions: &Positions) -> &'static str {
    match positions {
        Positions::Rope(_) => "rotary (RoPE)",
        Positions::Learned => "learned",
        Positions::Alibi(_) => "ALiBi",
        Positions::Relative(_) => "biases by relative position",
    }
}

fn feed_forward(feed_forward: FeedForward) -> &'static str {
    match feed_forward {
        FeedForward::Gated(Activation::Silu) => "SwiGLU",
        FeedForward::Gated(Activation::GeluTanh) => "GeGLU, tanh",
        FeedForward::Gated(Activation::GeluErf) => "GeGLU",
        FeedForward::Gated(Activation::Relu) => "ReGLU",
        FeedForward::Gated(Activation::ReluSquared) => "ReGLU, squared",
        FeedForward::Gated(Activation::ClampedSwiglu { .. }) | FeedForward::Plain(Activation::ClampedSwiglu { .. }) => {
            "SwiGLU, clamped"
        }
        FeedForward::Plain(Activation::Silu) => "SiLU",
        FeedForward::Plain(Activation::GeluTanh) => "GELU, tanh",
        FeedForward::Plain(Activation::GeluErf) => "GELU",
        FeedForward::Plain(Activation::Relu) => "ReLU",
        FeedForward::Plain(Activation::ReluSquared) => "ReLU, squared",
    }
}

/// Tokens with their texts.
fn listed(tokens: &[(Token, String)]) -> String {
    let one = |(token, text): &(Token, String)| {
        if text.is_empty() { token.to_string() } else { format!("{token} {text}") }
    };
    let all: Vec<String> = tokens.iter().map(one).collect();
    if all.is_empty() { "nothing".to_string() } else { all.join(", ") }
}

/// The first lines of a template, indented, cut to the page, with control characters escaped.
fn first_lines(source: &str) -> String {
    const LINES: usize = 6;
    const COLUMNS: usize = 100;
    let mut lines: Vec<String> = source.lines().take(LINES).map(|text| one_line(text, COLUMNS)).collect();
    if source.lines().count() > LINES {
        lines.push(format!("... ({} lines)", source.lines().count()));
    }
    lines.join(&format!("\n{:<15}", ""))
}

/// 1234567 as 1 234 567.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

fn megabytes(bytes: usize) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_and_templates_are_cut() {
        assert_eq!((grouped(7), grouped(1234), grouped(123_456)), ("7".into(), "1 234".into(), "123 456".into()));
        let lines = first_lines(&"ä\n".repeat(9));
        assert!(lines.ends_with("... (9 lines)"), "{lines}");
        assert!(first_lines(&"ä".repeat(200)).ends_with("ä..."));
    }
}
