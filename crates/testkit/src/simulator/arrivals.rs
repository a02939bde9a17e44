//! The random choices of a run, drawn from its seed.
//!
//! Sizes are small, so that limits are reached often: pages of one position, pools that hold two sequences, passes of
//! two rows, prompts with common prefixes.

use foretoken_engine::{BeamSearch, BudgetKind, EarlyStopping, Request};
use foretoken_speculation::{Constrained, Sampling, Tenant, Token};

use super::{Run, TOP};
use crate::conform::drafters;
use crate::forbidding::Forbidding;
use crate::oracle::decode;
use crate::table::{Table, mix};
use crate::toy::Fault;
use crate::vocabulary;

/// A request, with the steps at which it arrives and is cancelled.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The step before which it arrives.
    pub step: usize,
    /// The number of steps after which it is cancelled, if it is.
    pub cancel_after: Option<usize>,
    /// The prompt.
    pub prompt: Vec<Token>,
    /// The encoder source, if the executor has an encoder.
    pub source: Vec<Token>,
    /// Maximum number of tokens to generate.
    pub tokens_max: usize,
    /// The sampling parameters.
    pub sampling: Sampling,
    /// Whether it has a constraint, a [`crate::forbidding::Forbidding`].
    pub constrained: bool,
    /// Whether log-probabilities are wanted, for which forced tokens need logits like others.
    pub log_probabilities: bool,
    /// A stop string.
    pub stop: Option<String>,
    /// The seed of the request.
    pub seed: u64,
    /// The drafters of the request.
    pub drafters: Vec<u8>,
    /// How much is drafted.
    pub budget: BudgetKind,
    /// Its tenant.
    pub tenant: Tenant,
    /// The number of leading tokens of the prompt that every tenant may share.
    pub public_prefix: usize,
    /// The position of the prompt at which a checkpoint is requested.
    pub checkpoint: Option<usize>,
    /// The scheduling priority.
    pub priority: i32,
    /// Whether the tokens of its prompt are scored.
    pub scores_prompt: bool,
    /// The beam search that it is, if it is one.
    pub beams: Option<BeamSearch>,
}

impl Arrival {
    /// The request for the engine.
    pub(super) fn request(&self, run: &Run) -> Request {
        let vocabulary = run.target.1;
        Request {
            source: run.source(self).map(Into::into),
            tokens_max: Some(self.tokens_max),
            sampling: self.sampling.clone(),
            constraint: self.constrained.then(|| Constrained::new(Box::new(Forbidding::new(vocabulary)))),
            prediction: if self.beams.is_some() { Vec::new() } else { self.prompt[self.prompt.len() / 2..].to_vec() },
            beams: self.beams,
            seed: self.seed,
            budget: self.budget.clone(),
            drafters: self.drafters.clone(),
            tenant: self.tenant,
            public_prefix: self.public_prefix,
            checkpoints: self.checkpoint.into_iter().collect(),
            priority: self.priority,
            log_probabilities: self.log_probabilities,
            top_log_probabilities: if self.scores_prompt { TOP } else { 0 },
            prompt_log_probabilities: self.scores_prompt,
            tokenizer: Some(vocabulary::target(vocabulary)),
            stop: self.stop.iter().cloned().collect(),
            special: true,
            ..Request::new(self.prompt.clone())
        }
    }
}

/// A source of random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 >> 20) as usize % bound
    }

    /// Returns true once in `times` times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn tokens(&mut self, len: usize, vocabulary: usize) -> Vec<Token> {
        (0..len).map(|_| self.below(vocabulary) as Token).collect()
    }
}

impl Run {
    /// The run of a seed.
    pub fn of(seed: u64) -> Run {
        let random = &mut Random(mix(seed ^ 0x5eed));
        let vocabulary = random.one_of(&[4, 6, 9, 11]);
        // If each token depends on all before it, every wrong row changes the output.
        let window = random.once_in(3).then(|| [1 + random.below(11), random.one_of(&[1, 2, 3, 4, 8])]);
        let order = match window {
            Some([window, _]) => 1 + random.below(window),
            None => random.one_of(&[1, 2, 3, 60, 60]),
        };
        let (page_len, rows_max) = (random.one_of(&[1, 2, 3, 4, 8]), random.one_of(&[2, 3, 5, 9, 17, 40]));
        let sequences_max = 1 + random.below(6);
        // There is room for one sequence of some length, and sometimes for many.
        let positions = random.one_of(&[40, 60, 90, 200, 400]);
        let drafters: Vec<usize> = (0..random.below(4)).map(|_| random.below(drafters().len() + 2)).collect();
        let beginnings: Vec<Vec<Token>> = (0..3)
            .map(|_| {
                let len = random.below(30);
                random.tokens(len, vocabulary)
            })
            .collect();
        let table = Table::seeded(vocabulary, order, seed);
        let (mut step, mut arrivals) = (0, Vec::new());
        for _ in 0..1 + random.below(12) {
            step += random.one_of(&[0, 0, 1, 2, 7]);
            let mut next = arrival(random, step, vocabulary, &beginnings, drafters.len());
            match random.below(6) {
                0 if !arrivals.is_empty() => again(&mut next, random.one_of(&arrivals)),
                1 if !arrivals.is_empty() => next_turn(&mut next, &random.one_of(&arrivals), &table),
                _ => {}
            }
            arrivals.push(next);
        }
        let remote_logits = random.once_in(4);
        let encoder = random.once_in(3).then(|| encoder(random, sequences_max));
        let sources: Vec<Vec<Token>> = (0..3).map(|_| source(random, vocabulary)).collect();
        for arrival in &mut arrivals {
            arrival.source = if random.once_in(4) { source(random, vocabulary) } else { random.one_of(&sources) };
        }
        for arrival in &mut arrivals {
            if random.once_in(5) {
                make_beams(random, arrival);
            }
        }
        let states = random.once_in(3).then(|| [1 + random.below(sequences_max + 4), 2 + random.below(5)]);
        // Two ranks are not combined with states, an encoder or remote logits.
        let ranks = states.is_none() && encoder.is_none() && !remote_logits && random.once_in(2);
        let experts = !ranks && !remote_logits && random.once_in(4);
        Run {
            states,
            states_alone: random.once_in(3),
            encoder,
            target: (seed, vocabulary, order),
            executor: [page_len, positions / page_len, rows_max],
            window,
            remote_logits,
            ranks,
            experts,
            sequences_max,
            drafters,
            arrivals,
            fault: Fault::None,
            pages_are_checked: true,
        }
    }
}

/// An encoder with room for one source of the maximum length, or for several.
fn encoder(random: &mut Random, sequences_max: usize) -> [usize; 3] {
    let (len_max, page_len) = (1 + random.below(9), random.one_of(&[1, 2, 5]));
    [len_max, page_len, len_max.div_ceil(page_len) * (1 + random.below(sequences_max + 1))]
}

fn source(random: &mut Random, vocabulary: usize) -> Vec<Token> {
    let len = 1 + random.below(9);
    random.tokens(len, vocabulary)
}

fn arrival(random: &mut Random, step: usize, vocabulary: usize, beginnings: &[Vec<Token>], drafters: usize) -> Arrival {
    let mut prompt = random.one_of(beginnings);
    let own = usize::from(prompt.is_empty()) + random.below(6);
    prompt.extend(random.tokens(own, vocabulary));
    let all: Vec<u8> = (0..drafters as u8).collect();
    let nodes_max = 1 + random.below(12);
    let checkpoint = random.once_in(3).then(|| random.below(prompt.len() + 1));
    let public_prefix = if random.once_in(3) { random.below(prompt.len() + 1) } else { 0 };
    Arrival {
        step,
        cancel_after: random.once_in(5).then(|| random.below(12)),
        prompt,
        source: Vec::new(),
        tokens_max: random.below(30),
        sampling: sampling(random, vocabulary),
        constrained: random.once_in(4),
        log_probabilities: random.once_in(2),
        stop: random.once_in(4).then(|| random.one_of(&["ab", "b", "cab", "aac", "bbb"]).to_string()),
        seed: random.below(1000) as u64,
        drafters: if random.once_in(5) { Vec::new() } else { all },
        budget: match random.below(4) {
            0 => BudgetKind::Auto { nodes_max },
            1 => BudgetKind::Fixed { nodes: nodes_max },
            2 => BudgetKind::Threshold { nodes_max },
            _ => BudgetKind::Heuristic { nodes_max },
        },
        tenant: Tenant(random.below(2) as u64),
        public_prefix,
        checkpoint,
        priority: if random.once_in(4) { random.below(3) as i32 - 1 } else { 0 },
        scores_prompt: random.once_in(5),
        beams: None,
    }
}

/// Makes a beam search of a request, without the settings that it cannot have or that the naive search does not know.
fn make_beams(random: &mut Random, one: &mut Arrival) {
    let beams = 2 + random.below(3);
    one.beams = Some(BeamSearch {
        beams,
        length_penalty: random.one_of(&[-1.0, 0.0, 1.0]),
        early_stopping: random.one_of(&[EarlyStopping::True, EarlyStopping::False, EarlyStopping::Never]),
        returned: 1 + random.below(beams),
    });
    (one.sampling.temperature, one.sampling.penalty_window) = (0.0, None);
    (one.constrained, one.log_probabilities, one.scores_prompt, one.stop) = (false, false, false, None);
    one.tokens_max = one.tokens_max.max(1);
}

/// Repeats a request, perhaps for another tenant.
fn again(next: &mut Arrival, before: Arrival) {
    let Arrival { prompt, sampling, constrained, seed, .. } = before;
    (next.prompt, next.sampling, next.constrained, next.seed) = (prompt, sampling, constrained, seed);
    next.public_prefix = next.public_prefix.min(next.prompt.len());
}

/// The next turn of a conversation: the prompt, the (probable) answer, and more tokens.
fn next_turn(next: &mut Arrival, before: &Arrival, table: &Table) {
    let Arrival { prompt, sampling, seed, tokens_max, tenant, .. } = before;
    let answer = decode(table, sampling, *seed, prompt, *tokens_max);
    let answer = answer.iter().map(|(token, _)| *token);
    next.prompt = prompt.iter().copied().chain(answer).chain(next.prompt.iter().copied().take(4)).collect();
    next.tenant = *tenant;
}

fn sampling(random: &mut Random, vocabulary: usize) -> Sampling {
    let plain = Sampling::default();
    let mut sampling = match random.below(7) {
        0 | 1 => Sampling { temperature: 0.0, ..plain },
        2 => Sampling { temperature: 0.7, top_k: 3, ..plain },
        3 => Sampling { top_p: 0.8, min_p: 0.05, ..plain },
        4 => Sampling { temperature: 0.0, repetition_penalty: 1.4, penalty_window: Some(5), ..plain },
        5 => Sampling { presence_penalty: 0.5, frequency_penalty: 0.3, ..plain },
        _ => plain,
    };
    if random.once_in(3) {
        sampling.end_tokens = vec![random.below(vocabulary) as Token];
        sampling.tokens_min = random.below(4);
    }
    sampling
}
