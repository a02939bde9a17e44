//! Requests to the engine, and the errors of those that it refuses.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use foretoken_speculation::budget::{Budget, Confidence, Fixed, Heuristic, Threshold};
use foretoken_speculation::{Constrained, DraftSettings, Lenience, Promise, Sampling, SamplingProblem, Tenant, Token};
use foretoken_text::Tokenizer;

use crate::beams::BeamSearch;

/// One output to be generated.
#[derive(Clone)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt: Vec<Token>,
    /// The tokens that the encoder reads, for a network with an encoder; `None` for others.
    pub source: Option<Arc<[Token]>>,
    /// Maximum number of tokens to generate; `None`: until the context is full.
    pub tokens_max: Option<usize>,
    /// The sampling settings, with the end tokens.
    pub sampling: Sampling,
    /// A beam search instead of one output; the temperature has to be 0. Tokens are reported at the end only
    /// ([`crate::Event::Beams`]).
    pub beams: Option<BeamSearch>,
    /// A constraint on the output, such as a grammar, that has accepted nothing yet.
    pub constraint: Option<Constrained>,
    /// Whether forced tokens ([`Sampling::forced`]) are written without a pass. It does not change the output; if
    /// log-probabilities are wanted, forced tokens need their pass anyway.
    pub skip_forced: bool,
    /// What the user expects to be written; drafters may draft from it. It does not change the output.
    pub prediction: Vec<Token>,
    /// Seed of all random numbers of this request; under *rejection* and *block* together with the request's number,
    /// which the engine counts ([`crate::Engine::set_next_request`]).
    pub seed: u64,
    /// What speculation promises.
    pub promise: Promise,
    /// The lenience, above 0 and at most 1, with which drafts are verified. 1 is off. Below 1 verification is
    /// **lossy**, and the promise is not kept ([`foretoken_speculation::verify_leniently`]); it is allowed under
    /// *rejection*, and under every promise at temperature 0.
    pub lossy_lenience: f32,
    /// How much to draft.
    pub budget: BudgetKind,
    /// Which of the engine's drafters to ask, by number.
    pub drafters: Vec<u8>,
    /// In which order to ask them.
    pub order: Order,
    /// Settings of drafting; the drafters choose what is not set.
    pub draft: DraftSettings,
    /// Whether the laws of drafters that have one are compared with the target's ([`crate::DrafterStats::alpha`]).
    pub measure: bool,
    /// The tenant that the request belongs to.
    pub tenant: Tenant,
    /// How many leading tokens of the prompt are public: what is computed for them is shared with the requests of other
    /// tenants, who could learn from the times of their requests that it was cached.
    pub public_prefix: usize,
    /// Positions in the prompt after which the prompts of later requests are likely to differ, ascending: the beginning
    /// of an answer, for example. Recurrent states cannot be rolled back, so they are kept there for later requests.
    pub checkpoints: Vec<usize>,
    /// Which request runs first if not all can: the one with the higher priority, of ties the earlier one.
    pub priority: i32,
    /// Whether log-probabilities of the emitted tokens under the model's raw law are wanted.
    pub log_probabilities: bool,
    /// Whether the drafts that were verified are reported ([`crate::Event::Drafts`]), rejected ones included.
    pub report_drafts: bool,
    /// How many of the most probable tokens are reported with each emitted token ([`crate::Emitted::top`]) and each
    /// scored token of the prompt, up to [`Request::TOP_LOG_PROBABILITIES_MAX`].
    pub top_log_probabilities: usize,
    /// Whether log-probabilities of the prompt's tokens under the model's raw law are wanted
    /// ([`crate::Event::PromptScored`]). All rows of the prompt are computed then, none is shared, even if the request
    /// asks for no tokens.
    pub prompt_log_probabilities: bool,
    /// Turns tokens into text; without it events carry no text, and stop strings are ignored.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Strings that end the output, and are not part of it.
    pub stop: Vec<String>,
    /// Whether special tokens are shown in the text.
    pub special: bool,
    /// Special tokens that are shown even if others are not, such as the marks of tool calls. Stop strings may contain
    /// them. End tokens are never part of the text.
    pub shown_special: Arc<[Token]>,
}

impl Request {
    /// Maximum number of tokens that are reported with each emitted one: as many as OpenAI's API allows.
    pub const TOP_LOG_PROBABILITIES_MAX: usize = 20;

    /// Plain greedy decoding of a prompt until the context is full; fields can be set from here.
    pub fn new(prompt: Vec<Token>) -> Self {
        Self {
            prompt,
            source: None,
            tokens_max: None,
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            beams: None,
            constraint: None,
            skip_forced: true,
            prediction: Vec::new(),
            seed: 0,
            promise: Promise::Exact,
            lossy_lenience: 1.0,
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

    /// What a user calls the prompt: for a network with an encoder the source, else the prompt.
    pub fn input(&self) -> &[Token] {
        self.source.as_deref().unwrap_or(&self.prompt)
    }

    /// How leniently drafts are verified; `None`: without loss.
    pub(crate) fn lenience(&self) -> Option<Lenience> {
        let form = if self.sampling.temperature == 0.0 { Lenience::Greedy } else { Lenience::Drawn };
        (self.lossy_lenience < 1.0).then(|| form(f64::from(self.lossy_lenience)))
    }

    /// The settings of the laws that drafts are verified by.
    pub(crate) fn verified_by(&self) -> Cow<'_, Sampling> {
        match self.lenience() {
            Some(Lenience::Greedy(_)) => Cow::Owned(self.sampling.before_greedy()),
            _ => Cow::Borrowed(&self.sampling),
        }
    }
}

/// In which order the drafters of a request are asked. The first has an advantage: a node that several draft counts as
/// its node, and if the budget is shared its drafts get most of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As the request names them.
    #[default]
    Given,
    /// By their value in earlier passes: accepted tokens against the time that drafting them took. A drafter that has
    /// not been measured yet comes first. The order depends on measured times: under *exact* the output cannot depend
    /// on it, under *rejection* the output of a seed can, its law cannot.
    Learned,
    /// The first drafter that the request names is always first; the others are ordered as by [`Order::Learned`].
    LearnedBehindFirst,
}

/// How many nodes to draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetKind {
    /// As many as pay, down to none, by the times of passes and drafts and the drafters' acceptance rates. Under
    /// *rejection* the output of a seed then depends on measured times; its law does not.
    Auto {
        /// Maximum number of nodes.
        nodes_max: usize,
    },
    /// Always the same number of nodes.
    Fixed {
        /// The number.
        nodes: usize,
    },
    /// Two more after a draft that was accepted in full, one less after any other, from 5 up to a maximum.
    Heuristic {
        /// The maximum.
        nodes_max: usize,
    },
    /// A branch stops after a token with a low confidence; the limit is learned.
    Confidence {
        /// Maximum number of nodes.
        nodes_max: usize,
    },
    /// A branch stops when the product of its confidences is low; the limit is learned.
    Threshold {
        /// Maximum number of nodes.
        nodes_max: usize,
    },
    /// Exactly the nodes that will be accepted, an upper bound for measurements. Only allowed if the output cannot
    /// depend on what is drafted: under *exact*, or at temperature 0.
    Oracle {
        /// The tokens that plain decoding wrote after the prompt. After the first wrong one, or their end, nothing is
        /// drafted.
        text: Arc<[Token]>,
        /// Maximum number of nodes that drafters may offer.
        nodes_max: usize,
    },
}

impl Default for BudgetKind {
    /// [`BudgetKind::Auto`] with up to 32 nodes.
    fn default() -> Self {
        Self::Auto { nodes_max: Self::AUTO_NODES_MAX }
    }
}

impl BudgetKind {
    /// The default limit of [`BudgetKind::Auto`]: more nodes than ever pay on a CPU.
    pub const AUTO_NODES_MAX: usize = 32;

    /// Maximum number of nodes of a tree.
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

    /// Whether the number of nodes depends on measured times.
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

/// Why a request is refused before it runs.
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
        /// Its index in the prompt.
        index: usize,
        /// The token.
        found: Token,
        /// The size of the vocabulary.
        vocabulary: usize,
    },
    /// A source for a network without an encoder.
    SourceWithoutEncoder,
    /// No source for a network with an encoder.
    NoSource,
    /// A source without tokens, or with more than the encoder reads or the cache holds.
    SourceLength {
        /// Tokens of the source.
        found: usize,
        /// Tokens it may have.
        most: usize,
    },
    /// A token of the source that the encoder does not have.
    SourceToken {
        /// Its index in the source.
        index: usize,
        /// The token.
        found: Token,
        /// The size of the vocabulary.
        vocabulary: usize,
    },
    /// A token of the prediction that the network does not have.
    Prediction {
        /// Its index in the prediction.
        index: usize,
        /// The token.
        found: Token,
        /// The size of the vocabulary.
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
        /// The size of the vocabulary.
        vocabulary: usize,
    },
    /// A drafter that the engine does not have.
    Drafter {
        /// Its number.
        found: u8,
        /// The number of the engine's drafters.
        count: usize,
    },
    /// An oracle, although the output depends on what is drafted.
    Oracle {
        /// The promise.
        promise: Promise,
        /// The temperature.
        temperature: f32,
    },
    /// A lenience that is not above 0 and at most 1.
    Lenience {
        /// The number.
        found: f32,
    },
    /// A lenience below 1 above temperature 0 under another promise than *rejection*.
    LenientPromise {
        /// The promise.
        promise: Promise,
    },
    /// A lenience below 1 beside an oracle, although the output depends on what is drafted.
    LenientOracle {
        /// The lenience.
        found: f32,
    },
    /// The minimum number of tokens to draft is above the maximum.
    Limits {
        /// The minimum, by `draft.n_min`.
        n_min: usize,
        /// The maximum, by the budget.
        nodes_max: usize,
    },
    /// A drafter that is named twice.
    DrafterTwice {
        /// Its number.
        found: u8,
    },
    /// More of the most probable tokens than are reported.
    TopLogProbabilities {
        /// How many were requested.
        found: usize,
    },
    /// A beam search with a setting that it cannot have, or one that could never run.
    Beams {
        /// The field of the request.
        field: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The queue of waiting requests is full.
    Queue {
        /// Its limit ([`crate::Engine::set_waiting_max`]).
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
            Self::Lenience { found } => {
                write!(f, "lossy_lenience: expected a number above 0 and up to 1, found {found}")
            }
            Self::LenientPromise { promise } => {
                write!(f, "lossy_lenience: expected verify rejection beside it above temperature 0, found {promise:?}")
            }
            Self::LenientOracle { found } => {
                write!(f, "budget: an oracle expects lossy_lenience 1, found {found}")
            }
            Self::Limits { n_min, nodes_max } => {
                write!(f, "draft.n_min: expected at most the budget's nodes_max ({nodes_max}), found {n_min}")
            }
            Self::TopLogProbabilities { found } => {
                let most = Request::TOP_LOG_PROBABILITIES_MAX;
                write!(f, "top_log_probabilities: expected at most {most}, found {found}")
            }
            Self::Beams { field, expected, found } => {
                write!(f, "{field}: expected {expected} with beams, found {found}")
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
