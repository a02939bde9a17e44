//! What is asked of the engine, and why it may be refused.

use std::fmt;
use std::sync::Arc;

use foretoken_speculation::budget::{Budget, Confidence, Fixed, Heuristic, Threshold};
use foretoken_speculation::{Constrained, DraftSettings, Promise, Sampling, SamplingProblem, Tenant, Token};
use foretoken_text::Tokenizer;

/// One text to be generated.
#[derive(Clone)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt: Vec<Token>,
    /// What the text is about, for a network with an encoder: what its encoder reads. None for others.
    pub source: Option<Arc<[Token]>>,
    /// Tokens to generate, at most; `None` is until the context is full.
    pub tokens_max: Option<usize>,
    /// The sampling law, with the end tokens of the text.
    pub sampling: Sampling,
    /// What may be written at all, if not everything: a grammar, say, that has accepted nothing yet.
    pub constraint: Option<Constrained>,
    /// Whether forced tokens ([`Sampling::forced`]) are written without a pass. It changes no text; where
    /// log-probabilities are wanted they need their pass all the same.
    pub skip_forced: bool,
    /// What is expected to be written, as far as the user knows: drafters may look there. It changes no text.
    pub prediction: Vec<Token>,
    /// Seed of all chance of this request; under *rejection* and *block* together with the request's number, which the
    /// engine counts ([`crate::Engine::set_next_request`]).
    pub seed: u64,
    /// What speculation promises.
    pub promise: Promise,
    /// How much to draft.
    pub budget: BudgetKind,
    /// Which of the engine's drafters to ask, by number.
    pub drafters: Vec<u8>,
    /// In which order to ask them.
    pub order: Order,
    /// Settings of drafting; what it leaves open is up to the drafters.
    pub draft: DraftSettings,
    /// Whether the laws of drafters that have one are compared with the target's ([`crate::DrafterStats::alpha`]).
    pub measure: bool,
    /// On whose behalf.
    pub tenant: Tenant,
    /// So many leading tokens of the prompt may be known to everybody: what is computed for them is shared with the
    /// requests of other tenants, who could tell by the time that theirs take.
    pub public_prefix: usize,
    /// Where in the prompt the prompts of later requests are likely to part from it, ascending: before the beginning of
    /// an answer, say. Recurrent states, which cannot go back, are kept there for them.
    pub checkpoints: Vec<usize>,
    /// Who goes first where not all can: the higher, and of equals the one that came first.
    pub priority: i32,
    /// Whether log-probabilities of the emitted tokens under the model's raw law are wanted.
    pub log_probabilities: bool,
    /// Whether the drafts that were verified are reported ([`crate::Event::Drafts`]), refused ones included.
    pub report_drafts: bool,
    /// How many of the most probable tokens are told with each emitted token ([`crate::Emitted::top`]) and each scored
    /// one of the prompt, up to [`Request::TOP_LOG_PROBABILITIES_MAX`].
    pub top_log_probabilities: usize,
    /// Whether log-probabilities of the prompt's tokens under the model's raw law are wanted
    /// ([`crate::Event::PromptScored`]). All rows of the prompt are computed then, none is shared; a request for no
    /// tokens still has its prompt read.
    pub prompt_log_probabilities: bool,
    /// Turns tokens into text; without it events carry none, and stop strings are not looked for.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Strings that end the text, and are not part of it.
    pub stop: Vec<String>,
    /// Whether special tokens are shown in the text.
    pub special: bool,
    /// Special tokens that are shown even if others are not: the marks of calls of tools, say. Stop strings see them.
    /// End tokens are never part of the text.
    pub shown_special: Arc<[Token]>,
}

impl Request {
    /// Most tokens that are told beside each emitted one: as many as OpenAI's API allows.
    pub const TOP_LOG_PROBABILITIES_MAX: usize = 20;

    /// Plain greedy decoding of a prompt until the context is full; fields can be set from here.
    pub fn new(prompt: Vec<Token>) -> Self {
        Self {
            prompt,
            source: None,
            tokens_max: None,
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            constraint: None,
            skip_forced: true,
            prediction: Vec::new(),
            seed: 0,
            promise: Promise::Exact,
            budget: BudgetKind::default(),
            drafters: Vec::new(),
            order: Order::Given,
            draft: DraftSettings::default(),
            measure: false,
            tenant: Tenant::default(),
            public_prefix: 0,
            checkpoints: Vec::new(),
            priority: 0,
            log_probabilities: false,
            report_drafts: false,
            top_log_probabilities: 0,
            prompt_log_probabilities: false,
            tokenizer: None,
            stop: Vec::new(),
            special: false,
            shown_special: Arc::default(),
        }
    }
}

/// In which order the drafters of a request are asked. Who comes first sets the tone: of equal guesses its stands
/// first, and where a pass is shared it gets most of the room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As the request names them.
    #[default]
    Given,
    /// By what each was worth in earlier passes: right guesses for the time that it takes to draft. Who has not shown
    /// yet what it is worth comes first. It goes by measured costs: under *exact* the text cannot depend on it, under
    /// *rejection* the text of a seed can, its law cannot.
    Learned,
    /// The first as the request names it, always; the others as [`Order::Learned`].
    LearnedBehindFirst,
}

/// The budgets there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetKind {
    /// As much as pays, down to nothing, by what passes and drafts take and how often drafters are right. Under
    /// *rejection* the text of a seed then depends on costs; its law does not.
    Auto {
        /// Most nodes.
        nodes_max: usize,
    },
    /// Always the same number of nodes.
    Fixed {
        /// The number.
        nodes: usize,
    },
    /// Two more after a draft that was right, one less after another, from 5 up to a maximum.
    Heuristic {
        /// The maximum.
        nodes_max: usize,
    },
    /// A branch stops behind a token that looks wrong; how a wrong one looks is learned.
    Confidence {
        /// Most nodes.
        nodes_max: usize,
    },
    /// A branch stops where all of it together has become improbable; how improbable is learned.
    Threshold {
        /// Most nodes.
        nodes_max: usize,
    },
    /// Exactly those nodes that will be accepted: the most that any choice of nodes can gain, for measurements. Only
    /// where the text cannot depend on what is drafted: under *exact*, or at temperature 0.
    Oracle {
        /// What plain decoding wrote after the prompt. Where it is wrong or ends, nothing is drafted.
        text: Arc<[Token]>,
        /// Most nodes that drafters may offer.
        nodes_max: usize,
    },
}

impl Default for BudgetKind {
    /// What pays, of up to 32 nodes.
    fn default() -> Self {
        Self::Auto { nodes_max: Self::AUTO_NODES_MAX }
    }
}

impl BudgetKind {
    /// Most nodes of [`BudgetKind::Auto`] where nobody sets a limit: more than ever pays on a processor.
    pub const AUTO_NODES_MAX: usize = 32;

    /// Most nodes of a tree.
    pub fn nodes_max(&self) -> usize {
        match *self {
            Self::Auto { nodes_max }
            | Self::Fixed { nodes: nodes_max }
            | Self::Heuristic { nodes_max }
            | Self::Confidence { nodes_max }
            | Self::Threshold { nodes_max }
            | Self::Oracle { nodes_max, .. } => nodes_max,
        }
    }

    /// Whether drafts are weighed by what they cost.
    pub(crate) fn is_auto(&self) -> bool {
        matches!(self, Self::Auto { .. })
    }

    pub(crate) fn start(&self) -> Box<dyn Budget> {
        match *self {
            Self::Auto { nodes_max: nodes } | Self::Fixed { nodes } | Self::Oracle { nodes_max: nodes, .. } => {
                Box::new(Fixed(nodes))
            }
            Self::Heuristic { nodes_max } => Box::new(Heuristic::new(nodes_max)),
            Self::Confidence { nodes_max } => Box::new(Confidence::new(nodes_max)),
            Self::Threshold { nodes_max } => Box::new(Threshold::new(nodes_max)),
        }
    }
}

/// Why a request is refused before anything runs.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestError {
    /// A prompt without tokens: there is nothing to continue.
    EmptyPrompt,
    /// The prompt leaves no room for a token.
    PromptTooLong {
        /// Tokens of the prompt.
        found: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// A prompt token that the network does not have.
    Token {
        /// Its place in the prompt.
        index: usize,
        /// The token.
        found: Token,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// A source for a network without an encoder.
    SourceWithoutEncoder,
    /// None for a network with one.
    NoSource,
    /// A source of no tokens, or of more than the encoder reads or there is room for.
    SourceLength {
        /// Tokens of the source.
        found: usize,
        /// Tokens it may have.
        most: usize,
    },
    /// A token of the source that the encoder does not have.
    SourceToken {
        /// Its place in the source.
        index: usize,
        /// The token.
        found: Token,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// A token of the prediction that the network does not have.
    Prediction {
        /// Its place in the prediction.
        index: usize,
        /// The token.
        found: Token,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// A sampling setting out of its range.
    Sampling(SamplingProblem),
    /// A sampling setting that names a token the network does not have.
    SamplingToken {
        /// The setting.
        field: &'static str,
        /// The token.
        found: Token,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// A drafter that the engine does not have.
    Drafter {
        /// Its number.
        found: u8,
        /// Drafters there are.
        count: usize,
    },
    /// An oracle where the text depends on what is drafted.
    Oracle {
        /// The promise.
        promise: Promise,
        /// The temperature.
        temperature: f32,
    },
    /// More tokens are to be drafted at least than are allowed at most.
    Limits {
        /// The fewest, by `draft.n_min`.
        n_min: usize,
        /// The most, by the budget.
        nodes_max: usize,
    },
    /// A drafter that is named twice.
    DrafterTwice {
        /// Its number.
        found: u8,
    },
    /// More of the most probable tokens than are told.
    TopLogProbabilities {
        /// How many.
        found: usize,
    },
    /// As many requests wait as may.
    Queue {
        /// The bound ([`crate::Engine::set_waiting_max`]).
        waiting_max: usize,
    },
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyPrompt => write!(f, "prompt: expected at least one token, found none"),
            Self::PromptTooLong { found, context } => {
                write!(f, "prompt: expected at most {} tokens (the context is {context}), found {found}", context - 1)
            }
            Self::Token { index, found, vocabulary } => {
                write!(f, "prompt: token {index}: expected a number below {vocabulary} (the vocabulary), found {found}")
            }
            Self::SourceWithoutEncoder => {
                write!(f, "source: expected none, since the network has no encoder, found one")
            }
            Self::NoSource => write!(f, "source: expected what the network's encoder is to read, found none"),
            Self::SourceLength { found, most } => write!(f, "source: expected 1 to {most} tokens, found {found}"),
            Self::SourceToken { index, found, vocabulary } => {
                let expected = format!("expected a number below {vocabulary} (the encoder's vocabulary)");
                write!(f, "source: token {index}: {expected}, found {found}")
            }
            Self::Prediction { index, found, vocabulary } => {
                let expected = format!("expected a number below {vocabulary} (the vocabulary)");
                write!(f, "prediction: token {index}: {expected}, found {found}")
            }
            Self::Sampling(problem) => write!(f, "{problem}"),
            Self::SamplingToken { field, found, vocabulary } => {
                write!(f, "{field}: expected tokens below {vocabulary} (the vocabulary), found {found}")
            }
            Self::Oracle { promise, temperature } => {
                write!(f, "budget: an oracle expects exact or temperature 0, found {promise:?} at {temperature}")
            }
            Self::Limits { n_min, nodes_max } => {
                write!(f, "draft.n_min: expected at most the budget's nodes_max ({nodes_max}), found {n_min}")
            }
            Self::TopLogProbabilities { found } => {
                let most = Request::TOP_LOG_PROBABILITIES_MAX;
                write!(f, "top_log_probabilities: expected at most {most}, found {found}")
            }
            Self::DrafterTwice { found } => write!(f, "drafter: expected each number once, found {found} twice"),
            Self::Queue { waiting_max } => {
                write!(f, "queue: expected fewer than {waiting_max} requests that wait, found {waiting_max}")
            }
            Self::Drafter { found, count } => write!(f, "drafter: expected a number below {count}, found {found}"),
        }
    }
}

impl std::error::Error for RequestError {}
