//! The conformance suite, which compares every drafter, promise, budget and batch with the oracle.
//!
//! [`drafters`] is the register: a drafter that is added there is tested by everything here. The suite runs all
//! drafters together, then without each of them, then each alone, then none. Under *exact*, and under any promise if
//! the law is a point mass, tokens and the bits of their log-probabilities must be the oracle's. Under *rejection* the
//! law of the output is computed by enumeration, through the engine's own step, and must be the target's. Every check
//! returns an error instead of panicking, so that tests can show that faults are detected.

mod forms;
mod register;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use foretoken_engine::{BudgetKind, Emitted, Engine, Event, Race, Request, SequenceId};
use foretoken_model::Executor;
use foretoken_speculation::costs::Curve;
use foretoken_speculation::{Chance, Costs, DrafterCosts, Promise, Sampling, Token, log_probability};

use crate::enumerator::{enumerate, enumerate_coupled};
use crate::experts::{Experts, ExpertsExecutor, ManualClock};
use crate::oracle::{self, decode};
use crate::ranks::RanksExecutor;
use crate::table::{Joint, Table, distance, mix};
use crate::toy::{Fault, ToyExecutor};
use forms::{constraint, specified};

pub use register::{Registered, drafters};

/// One request, as data.
#[derive(Clone, Debug)]
pub struct Case {
    /// The seed of the target's table, its vocabulary, and the number of last tokens that its rows depend on.
    pub target: (u64, usize, usize),
    /// The prompt.
    pub prompt: Vec<Token>,
    /// The sampling parameters.
    pub sampling: Sampling,
    /// Seed of the request.
    pub seed: u64,
    /// Number of tokens to generate.
    pub tokens_max: usize,
    /// The constraint on the output.
    pub form: Form,
}

/// The constraint on the output of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// No constraint.
    Free,
    /// The constraint [`Forbidding`](crate::forbidding::Forbidding).
    Forbidding,
    /// Texts that this regular expression matches as a whole, over the words of toy targets ([`crate::vocabulary`]).
    Grammar(&'static str),
    /// Texts like those of [`Form::Grammar`] after optional thoughts, which are between two tags of ordinary words.
    AfterThoughts(&'static str),
}

/// How the cases of one table are run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The promise of all requests.
    pub promise: Promise,
    /// How much is drafted.
    pub budget: BudgetKind,
    /// Maximum number of sequences that run at a time.
    pub batch: usize,
    /// Number of positions per page.
    pub page_len: usize,
    /// Maximum number of rows per pass.
    pub rows_max: usize,
    /// The sliding window of the executor, if it has one: at least as many tokens as the table depends on. Pages before
    /// it are freed.
    pub window: Option<usize>,
    /// Whether the executor has recurrent states, one per sequence and some checkpoints.
    pub states: bool,
    /// Whether the executor has an encoder, and requests have sources.
    pub has_encoder: bool,
    /// Whether the executor's logits are remote.
    pub remote_logits: bool,
    /// Whether the executor is two ranks. Such an executor has neither states nor an encoder, and local logits.
    pub ranks: bool,
    /// Whether the executor has experts, and local logits.
    pub experts: bool,
    /// Whether log-probabilities are wanted, for which forced tokens need logits like others.
    pub log_probabilities: bool,
    /// The fault of the executor.
    pub fault: Fault,
}

impl Setting {
    /// The plain setting: *exact*, the heuristic budget, one sequence at a time.
    pub fn plain() -> Self {
        Self {
            promise: Promise::Exact,
            budget: BudgetKind::Heuristic { nodes_max: 9 },
            batch: 1,
            page_len: 4,
            rows_max: 64,
            window: None,
            states: false,
            has_encoder: false,
            remote_logits: false,
            ranks: false,
            experts: false,
            log_probabilities: true,
            fault: Fault::None,
        }
    }
}

/// How many of the most probable tokens are requested with each token.
const TOP: usize = 3;

/// Tokens with the bits of their log-probabilities.
pub(crate) fn bits(top: &[(Token, f32)]) -> Vec<(Token, u32)> {
    top.iter().map(|(token, value)| (*token, value.to_bits())).collect()
}

/// Cases with samplers of every kind, all of one target so that they can share a batch.
pub fn cases(target: (u64, usize, usize)) -> Vec<Case> {
    let plain = Sampling::default();
    let samplers = [
        Sampling { temperature: 0.0, ..plain.clone() },
        plain.clone(),
        Sampling { temperature: 0.7, top_k: 3, ..plain.clone() },
        Sampling { top_p: 0.8, min_p: 0.05, ..plain.clone() },
        Sampling { typical_p: 0.7, ..plain.clone() },
        Sampling { temperature: 0.0, repetition_penalty: 1.4, penalty_window: Some(5), ..plain.clone() },
        Sampling { presence_penalty: 0.5, frequency_penalty: 0.3, penalty_window: Some(9), ..plain.clone() },
        Sampling { logit_bias: vec![(1, 1.5), (2, f32::NEG_INFINITY)], banned_tokens: vec![0], ..plain.clone() },
        Sampling { tokens_min: 6, end_tokens: vec![1], ..plain.clone() },
        Sampling { temperature: 1.5, end_tokens: vec![2, 3], ..plain.clone() },
        // These cases have a constraint.
        Sampling { temperature: 0.0, ..plain.clone() },
        Sampling { temperature: 0.8, top_p: 0.9, ..plain },
    ];
    let vocabulary = target.1 as u64;
    let case = |(i, sampling): (usize, Sampling)| {
        let prompt_len = 1 + (i * 5) % 17;
        let prompt = (0..prompt_len as u64).map(|j| (mix(i as u64 * 100 + j / 2) % vocabulary) as Token).collect();
        let form = if i >= 10 { Form::Forbidding } else { Form::Free };
        Case { target, prompt, sampling, seed: 40 + i as u64, tokens_max: 12 + (i * 7) % 30, form }
    };
    samplers.into_iter().enumerate().map(case).collect()
}

/// Number of slots for checkpoints, besides those of the running sequences.
const CHECKPOINTS: usize = 3;
/// Maximum number of tokens of a source.
const SOURCE_MAX: usize = 5;

/// The encoder source of a case; some cases have the same source.
fn source(case: &Case) -> Vec<Token> {
    let (which, vocabulary) = (case.seed % 3, case.target.1 as u64);
    (0..2 + which).map(|i| (mix(which * 10 + i) % vocabulary) as Token).collect()
}

fn request(case: &Case, setting: &Setting, drafters: &[u8]) -> Request {
    Request {
        tokens_max: Some(case.tokens_max),
        sampling: case.sampling.clone(),
        constraint: constraint(case),
        source: setting.has_encoder.then(|| source(case).into()),
        prediction: case.prompt[case.prompt.len() / 2..].to_vec(),
        seed: case.seed,
        promise: setting.promise,
        budget: setting.budget.clone(),
        drafters: drafters.to_vec(),
        log_probabilities: setting.log_probabilities,
        top_log_probabilities: if setting.log_probabilities { TOP } else { 0 },
        ..Request::new(case.prompt.clone())
    }
}

fn engine((table, executor): (&Table, Box<dyn Executor>), setting: &Setting, drafters: &[&Registered]) -> Engine {
    let mut engine = Engine::new(executor, setting.batch, usize::MAX);
    for drafter in drafters {
        engine.add_drafter((drafter.make)(table));
    }
    engine.hold_costs(costs(drafters.len()));
    engine
}

/// The toy of a setting.
fn executor(table: &Table, setting: &Setting) -> Box<dyn Executor> {
    let pages = 600usize.div_ceil(setting.page_len);
    if setting.ranks {
        assert!(!(setting.states || setting.has_encoder || setting.remote_logits), "two ranks: {setting:?}");
        let toy = RanksExecutor::new(table.clone(), setting.page_len, pages, setting.rows_max);
        let toy = toy.with_fault(setting.fault);
        return Box::new(match setting.window {
            Some(window) => toy.with_window(window, setting.batch),
            None => toy,
        });
    }
    let mut toy = ToyExecutor::new(table.clone(), setting.page_len, pages, setting.rows_max);
    if let Some(window) = setting.window {
        toy = toy.with_window(window, setting.batch);
    }
    if setting.states {
        toy = toy.with_states(setting.batch + CHECKPOINTS).with_failing_passes(3);
    }
    if setting.has_encoder {
        toy = toy.with_encoder(SOURCE_MAX, 2, SOURCE_MAX.div_ceil(2) * setting.batch);
    }
    let toy = toy.with_fault(setting.fault);
    if setting.experts {
        return Box::new(ExpertsExecutor::new(toy, Experts::default(), ManualClock::default()));
    }
    toy.boxed(setting.remote_logits)
}

/// Fixed costs, with which some drafts pay and others do not. They differ between drafters.
pub(crate) fn costs(drafters: usize) -> Costs {
    let points = vec![(1, 1.0), (2, 1.03), (4, 1.1), (8, 1.2), (9, 1.6), (16, 1.8)];
    let drafter = |i: usize| DrafterCosts { call: 0.001, step: 0.02 * (1 + i % 7) as f64, catch_up: 0.001 };
    Costs { curves: vec![Curve::new(0, points)], drafters: (0..drafters).map(drafter).collect() }
}

/// Runs an engine until it is idle; returns the tokens of each sequence with the bits of their log-probabilities.
pub fn run(engine: &mut Engine, chance: &mut dyn Chance) -> BTreeMap<SequenceId, Vec<(Token, u32)>> {
    let bits = |e: &Emitted| (e.token, e.log_probability.map_or(0, f32::to_bits));
    let (texts, _) = emitted(engine, chance);
    texts.into_iter().map(|(sequence, text)| (sequence, text.iter().map(bits).collect())).collect()
}

/// Runs an engine until it is idle; returns the tokens of each sequence, and the messages of drafters that failed.
fn emitted(engine: &mut Engine, chance: &mut dyn Chance) -> (BTreeMap<SequenceId, Vec<Emitted>>, Vec<String>) {
    let mut texts: BTreeMap<SequenceId, Vec<Emitted>> = BTreeMap::new();
    let mut failures = Vec::new();
    while !engine.is_idle() {
        for event in engine.step(chance) {
            match event {
                Event::Tokens { sequence, emitted } => texts.entry(*sequence).or_default().extend_from_slice(emitted),
                Event::DrafterFailed { sequence, drafter, message } => {
                    failures.push(format!("{sequence:?}: drafter {drafter} failed: {message}"));
                }
                _ => {}
            }
        }
    }
    (texts, failures)
}

/// Checks that all cases (of one target) get the oracle's tokens and log-probabilities, run together in one engine, and
/// that no drafter fails.
///
/// # Errors
/// The first difference: case and setting, the token's index, and the expected token.
pub fn exact(cases: &[Case], setting: &Setting, drafters: &[&Registered]) -> Result<(), String> {
    let (seed, vocabulary, order) = cases[0].target;
    // A token that a grammar forces has to be possible in the table.
    let is_guided = cases.iter().any(|case| matches!(case.form, Form::Grammar(_) | Form::AfterThoughts(_)));
    let table = if is_guided { Table::dense(vocabulary, order, seed) } else { Table::seeded(vocabulary, order, seed) };
    exact_by((&table, executor(&table, setting)), cases, setting, drafters)
}

/// [`exact`] with a given target: its table, and the executor that the engine runs. The cases' [`Case::target`] must be
/// a name that no other target has.
///
/// # Errors
/// As [`exact`].
pub fn exact_by(
    (table, executor): (&Table, Box<dyn Executor>),
    cases: &[Case],
    setting: &Setting,
    drafters: &[&Registered],
) -> Result<(), String> {
    let mut engine = engine((table, executor), setting, drafters);
    let numbers: Vec<u8> = (0..drafters.len() as u8).collect();
    let ids: Vec<SequenceId> = cases
        .iter()
        .map(|case| engine.submit(request(case, setting, &numbers)).map_err(|error| format!("{case:?}: {error}")))
        .collect::<Result<_, _>>()?;
    let (written, failures) = emitted(&mut engine, &mut Race);
    if let Some(failure) = failures.first() {
        return Err(format!("{setting:?}: {failure}"));
    }
    for (case, id) in cases.iter().zip(ids) {
        assert_eq!(case.target, cases[0].target, "cases of one target");
        let mut expected = oracle_tokens(table, case, setting.has_encoder).to_vec();
        if !setting.log_probabilities {
            expected.iter_mut().for_each(|token| *token = (token.0, 0, Vec::new()));
        }
        let written = written.get(&id).map_or(&[][..], Vec::as_slice);
        let found = written.iter().map(|e| (e.token, e.log_probability.map_or(0, f32::to_bits), bits(&e.top)));
        let found: Vec<ScoredToken> = found.collect();
        if expected != found {
            let at = expected.iter().zip(&found).take_while(|(a, b)| a == b).count();
            let names: Vec<_> = drafters.iter().map(|drafter| drafter.name).collect();
            return Err(format!(
                "{case:?}\n{setting:?}\ndrafters {names:?}\nfirst difference at token {at}: \
                 expected {:?} of {}, found {:?} of {}",
                expected.get(at),
                expected.len(),
                found.get(at),
                found.len()
            ));
        }
    }
    Ok(())
}

/// A token with the bits of its log-probability, and of the most probable tokens at its position.
type ScoredToken = (Token, u32, Vec<(Token, u32)>);

/// The oracle's output for a case. It is cached, since a case is run under many settings.
fn oracle_tokens(table: &Table, case: &Case, has_encoder: bool) -> Arc<Vec<ScoredToken>> {
    static CACHE: Mutex<BTreeMap<String, Arc<Vec<ScoredToken>>>> = Mutex::new(BTreeMap::new());
    let name = format!("{case:?} {has_encoder}");
    let cache = || CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cached) = cache().get(&name) {
        return Arc::clone(cached);
    }
    let table = &if has_encoder { table.with_source(&source(case)) } else { table.clone() };
    let mut tokens = case.prompt.clone();
    let expected = decode(&specified(table, case), &case.sampling, case.seed, &case.prompt, case.tokens_max);
    let scored = expected.into_iter().map(|(token, found)| {
        let logits = table.logits(&tokens);
        // Log-probabilities are those of the model without the constraint.
        let own = if case.form != Form::Free { log_probability(&logits, token).to_bits() } else { found };
        tokens.push(token);
        (token, own, oracle::top(&logits, TOP))
    });
    let scored = Arc::new(scored.collect());
    cache().insert(name, Arc::clone(&scored));
    scored
}

/// The largest difference between the law of the output, through the engine's step, and the target's, over all texts.
/// It is computed by enumeration, for any promise.
pub fn law_error(table: &Table, case: &Case, setting: &Setting, drafters: &[&Registered]) -> f64 {
    let numbers: Vec<u8> = (0..drafters.len() as u8).collect();
    let text = |chance: &mut dyn Chance| -> Vec<Token> {
        let mut engine = engine((table, executor(table, setting)), setting, drafters);
        let id = engine.submit(request(case, setting, &numbers)).expect("a case that can run");
        let texts = run(&mut engine, chance);
        texts[&id].iter().map(|(token, _)| *token).collect()
    };
    let found: Joint = match setting.promise {
        Promise::Exact => enumerate_coupled(|chance| text(chance)),
        Promise::Rejection | Promise::Block => enumerate(|chance| text(chance)),
    };
    distance(&found, &specified(table, case).plain(&case.sampling, &case.prompt, case.tokens_max))
}

/// The selections of drafters: all of them, then all without each, then each alone, then none.
pub fn selections(all: &[Registered]) -> Vec<Vec<&Registered>> {
    let mut selections: Vec<Vec<&Registered>> = vec![all.iter().collect(), Vec::new()];
    for left_out in 0..all.len() {
        selections.push(all.iter().enumerate().filter(|(i, _)| *i != left_out).map(|(_, d)| d).collect());
        selections.push(vec![&all[left_out]]);
    }
    selections
}
