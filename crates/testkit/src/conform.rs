//! The conformance suite: every drafter, promise, budget and batch against the oracle. Cases are data.
//!
//! [`drafters`] is the register: a drafter that is added there is held to everything here. The suite runs all
//! drafters together, then without each of them, then each alone, then none. Under *exact*, and under any promise
//! where the law is a point mass, tokens and the bits of their log-probabilities must be the oracle's. Under
//! *rejection* the law of the text is computed by enumeration, through the engine's own step, and must be the
//! target's. Every check returns what went wrong instead of panicking, so that canaries can be shown to be caught.

use std::collections::BTreeMap;

use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Race, Request, SequenceId};
use foretoken_speculation::costs::Curve;
use foretoken_speculation::draft::{BranchSource, Layout, TrieDrafter, TrieOptions};
use foretoken_speculation::log_probability;
use foretoken_speculation::{
    Ask, Chance, Constrained, Costs, Drafter, DrafterCosts, JacobiDrafter, ModelDrafter, NgramDrafter, NgramSource,
    NodeId, PhrasesDrafter, Promise, Proposal, RandomDrafter, Sampling, SuffixDrafter, Token,
};
use foretoken_speculation::{SharedScorer, TranslatedDrafter};

use crate::dial::{enumerate, enumerate_coupled};
use crate::forbidding::Forbidding;
use crate::oracle::decode;
use crate::table::{Joint, Table, distance, mix};
use crate::toy::{Fault, ToyExecutor};
use crate::vocabulary;

/// A drafter as the suite makes it, fresh for every run, for a given target.
pub struct Registered {
    /// For messages.
    pub name: &'static str,
    /// Makes one.
    pub make: fn(&Table) -> Box<dyn Drafter>,
}

/// Every drafter there is, with the settings that matter. A new drafter is added here, and nowhere else in tests.
pub fn drafters() -> Vec<Registered> {
    let mut all = continuations();
    all.extend(with_a_model());
    all.extend(with_trees_of_a_model());
    all.extend(without_a_model());
    all.extend(tries());
    all.extend(with_another_vocabulary());
    all
}

/// What copies from the text and from texts before it.
fn continuations() -> Vec<Registered> {
    vec![
        Registered { name: "lookup", make: |_| Box::new(SuffixDrafter::lookup(1, 3, 10)) },
        Registered { name: "lookup of one occurrence", make: |_| Box::new(SuffixDrafter::lookup_chain(1, 3, 10)) },
        Registered {
            name: "lookup that the first occurrence leads",
            make: |_| {
                let mut drafter = SuffixDrafter::lookup(2, 4, 9);
                (drafter.first, drafter.candidates) = (true, 3);
                Box::new(drafter)
            },
        },
        Registered { name: "lookup of single tokens", make: |_| Box::new(SuffixDrafter::lookup(1, 1, 3)) },
        Registered { name: "suffix that soon forgets", make: |_| Box::new(SuffixDrafter::new(60)) },
        Registered {
            name: "suffix with a history",
            make: |t| {
                let mut drafter = SuffixDrafter::default();
                let text: Vec<Token> = (0..200).map(|i| (mix(i) % t.vocabulary() as u64) as Token).collect();
                drafter.warm_up(&text, 1, None);
                (drafter.token_min, drafter.gain_min, drafter.window) = (0.1, 0.0, 0);
                Box::new(drafter)
            },
        },
    ]
}

/// Models, and trees of any shape.
fn with_a_model() -> Vec<Registered> {
    vec![
        Registered { name: "draft", make: |t| Box::new(ModelDrafter::new(network(t.vocabulary(), 99))) },
        Registered {
            name: "draft by the target itself",
            make: |t| {
                Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(ToyExecutor::new(t.clone(), 4, 200, 64)))))
            },
        },
        Registered {
            name: "draft with p-min",
            make: |t| {
                let mut drafter = ModelDrafter::new(network(t.vocabulary(), 98));
                drafter.settings.p_min = Some(0.4);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft with a temperature of its own",
            make: |t| {
                let mut drafter = ModelDrafter::new(network(t.vocabulary(), 97));
                (drafter.settings.temperature, drafter.depth_max) = (Some(0.5), 3);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft without room",
            make: |t| {
                let toy = ToyExecutor::new(Table::seeded(t.vocabulary(), 2, 96), 2, 6, 4);
                Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(toy))))
            },
        },
        Registered { name: "random trees", make: |t| Box::new(RandomTrees { vocabulary: t.vocabulary() }) },
    ]
}

/// A small network of its own for a drafter.
fn network(vocabulary: usize, seed: u64) -> ExecutorScorer {
    // Few rows a pass, so that prompts are cut; pages shorter than a draft.
    ExecutorScorer::new(Box::new(ToyExecutor::new(Table::seeded(vocabulary, 2, seed), 2, 400, 5)))
}

/// Draft models that draft trees, or have a drafter of their own.
fn with_trees_of_a_model() -> Vec<Registered> {
    vec![
        Registered {
            name: "draft in trees",
            make: |t| {
                let mut drafter = ModelDrafter::new(network(t.vocabulary(), 99));
                drafter.settings.p_split = Some(0.1);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft in trees, with p-min, of its own law",
            make: |t| {
                let mut drafter = ModelDrafter::new(network(t.vocabulary(), 98));
                let settings = &mut drafter.settings;
                (settings.p_split, settings.p_min, settings.n_min) = (Some(0.3), Some(0.3), Some(2));
                (settings.top_k, settings.top_p, settings.min_p) = (Some(3), Some(0.9), Some(0.05));
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft in trees with little room",
            make: |t| {
                let toy = ToyExecutor::new(Table::seeded(t.vocabulary(), 2, 96), 2, 20, 3);
                let mut drafter = ModelDrafter::new(ExecutorScorer::new(Box::new(toy)));
                drafter.settings.p_split = Some(0.1);
                Box::new(drafter)
            },
        },
        Registered {
            name: "draft with a lookup of its own",
            make: |t| {
                let drafter = ModelDrafter::new(network(t.vocabulary(), 95));
                Box::new(drafter.with_inner(Box::new(SuffixDrafter::lookup(1, 3, 10))))
            },
        },
        Registered {
            name: "draft in trees with a draft in trees with a lookup",
            make: |t| {
                let mut inner = ModelDrafter::new(network(t.vocabulary(), 94));
                inner.settings.p_split = Some(0.2);
                let mut outer = ModelDrafter::new(network(t.vocabulary(), 95));
                outer.settings.p_split = Some(0.2);
                Box::new(outer.with_inner(Box::new(inner.with_inner(Box::new(SuffixDrafter::lookup(1, 1, 4))))))
            },
        },
    ]
}

/// Assistants with other words than the target's, both ways.
fn with_another_vocabulary() -> Vec<Registered> {
    vec![
        Registered {
            name: "translated draft",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 9, 10);
                Box::new(TranslatedDrafter::new(network(9, 95), translator))
            },
        },
        Registered {
            name: "translated draft by chance, with p-min and a window of one token",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 4, 1);
                let mut drafter = TranslatedDrafter::new(network(4, 94), translator);
                (
                    drafter.assistant.settings.temperature,
                    drafter.assistant.settings.p_min,
                    drafter.assistant.depth_max,
                ) = (Some(1.0), Some(0.3), 3);
                Box::new(drafter)
            },
        },
        Registered {
            name: "translated draft that invents spaces, without room",
            make: |t| {
                let toy = ToyExecutor::new(Table::seeded(7, 2, 93), 2, 6, 4);
                let scorer = ExecutorScorer::new(Box::new(toy));
                Box::new(TranslatedDrafter::new(scorer, vocabulary::spaced_translator(t.vocabulary())))
            },
        },
        Registered {
            name: "draft over shared tokens",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 9, 10);
                Box::new(ModelDrafter::new(SharedScorer::new(network(9, 92), translator)))
            },
        },
        Registered {
            name: "draft over shared tokens, in trees",
            make: |t| {
                let translator = vocabulary::translator(t.vocabulary(), 9, 10);
                let mut drafter = ModelDrafter::new(SharedScorer::new(network(9, 92), translator));
                drafter.settings.p_split = Some(0.1);
                Box::new(drafter.with_inner(Box::new(SuffixDrafter::lookup(1, 1, 4))))
            },
        },
        Registered {
            name: "draft over shared tokens, with p-min and spaces",
            make: |t| {
                let translator = vocabulary::spaced_translator(t.vocabulary());
                let mut drafter = ModelDrafter::new(SharedScorer::new(network(7, 91), translator));
                drafter.settings.p_min = Some(0.4);
                Box::new(drafter)
            },
        },
    ]
}

/// Trie lookahead, in every mode.
fn tries() -> Vec<Registered> {
    fn with(set: fn(&mut TrieOptions)) -> Box<dyn Drafter> {
        let mut options = TrieOptions::default();
        set(&mut options);
        Box::new(TrieDrafter::new(options))
    }
    vec![
        Registered { name: "trie", make: |_| Box::new(TrieDrafter::default()) },
        Registered { name: "trie of small capacity", make: |_| with(|o| (o.branch_length, o.capacity) = (5, Some(6))) },
        Registered { name: "trie of parallel branches", make: |_| with(|o| o.layout = Layout::Par) },
        Registered { name: "trie of one branch", make: |_| with(|o| o.layout = Layout::One) },
        Registered {
            name: "trie of inputs, which stay",
            make: |_| with(|o| (o.source, o.eliminate) = (BranchSource::Input, false)),
        },
        Registered { name: "trie of outputs", make: |_| with(|o| (o.source, o.prune) = (BranchSource::Output, false)) },
    ]
}

/// Tables, lists and blind guesses.
fn without_a_model() -> Vec<Registered> {
    /// What the target writes greedily, from token 1 on.
    fn written(table: &Table, len: usize) -> Vec<Token> {
        let mut tokens = vec![1];
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        (0..len).for_each(|_| tokens.push(table.law(&sampling, &tokens, 1, &[]).tokens()[0]));
        tokens
    }
    vec![
        Registered {
            name: "ngram",
            make: |t| {
                let mut drafter = NgramDrafter::default();
                drafter.warm_up(&written(t, 60), 0, None);
                Box::new(drafter)
            },
        },
        Registered {
            name: "ngram trees of the text",
            make: |_| {
                let mut drafter = NgramDrafter::new(2, NgramSource::Text);
                (drafter.branches_max, drafter.unigram_min) = (3, 0.0);
                Box::new(drafter)
            },
        },
        Registered {
            name: "phrases",
            make: |_| Box::new(PhrasesDrafter::new([vec![1, 2], vec![2, 1, 0, 1], vec![2, 1, 1], vec![0, 3]])),
        },
        Registered { name: "jacobi", make: |_| Box::new(JacobiDrafter::default()) },
        Registered {
            name: "jacobi of a narrow window",
            make: |_| {
                let mut drafter = JacobiDrafter::new(2, 3, 1);
                (drafter.pool_from_text, drafter.keeps_pace) = (false, true);
                Box::new(drafter)
            },
        },
        Registered { name: "random", make: |t| Box::new(RandomDrafter::new(t.vocabulary())) },
        Registered {
            name: "random forks",
            make: |t| {
                let mut drafter = RandomDrafter::new(t.vocabulary());
                (drafter.forks, drafter.support_max) = (true, 3);
                Box::new(drafter)
            },
        },
    ]
}

/// A drafter that offers point masses in a tree of random shape, a function of the sequence's tokens.
struct RandomTrees {
    vocabulary: usize,
}

impl Drafter for RandomTrees {
    fn name(&self) -> &str {
        "random-trees"
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let mut state = ask.tokens.iter().fold(1, |state, token| mix(state ^ u64::from(*token)));
            for _ in 0..12 {
                state = mix(state);
                let nodes = ask.tree.len() as u64;
                let parent = (state >> 8) % (nodes + 1);
                let parent = (parent < nodes).then(|| NodeId::new(parent as usize));
                let token = ((state >> 40) % self.vocabulary as u64) as Token;
                if ask.has_room() || ask.tree.child(parent, token).is_some() {
                    ask.tree.offer(parent, token, Proposal::Point, ask.source);
                }
            }
        }
    }

    fn close(&mut self, _sequence: SequenceId) {}
}

/// One text to be generated, as data.
#[derive(Clone, Debug)]
pub struct Case {
    /// Seed of the target's table, its vocabulary, and how many last tokens its rows depend on.
    pub target: (u64, usize, usize),
    /// The prompt.
    pub prompt: Vec<Token>,
    /// The sampling law.
    pub sampling: Sampling,
    /// Seed of the request.
    pub seed: u64,
    /// Tokens to generate.
    pub tokens_max: usize,
    /// Whether [`Forbidding`] says what may be written.
    pub constrained: bool,
}

/// How the cases of one table are run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// What is promised.
    pub promise: Promise,
    /// How much is drafted.
    pub budget: BudgetKind,
    /// Texts at a time.
    pub batch: usize,
    /// Positions a page.
    pub page_len: usize,
    /// Rows a pass.
    pub rows_max: usize,
    /// A mistake of the executor.
    pub fault: Fault,
}

impl Setting {
    /// *exact*, the heuristic budget, one text at a time.
    pub fn plain() -> Self {
        let budget = BudgetKind::Heuristic { nodes_max: 9 };
        Self { promise: Promise::Exact, budget, batch: 1, page_len: 4, rows_max: 64, fault: Fault::None }
    }
}

/// Cases over samplers of every kind, all of one target so that they can share a batch.
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
        // Under a constraint.
        Sampling { temperature: 0.0, ..plain.clone() },
        Sampling { temperature: 0.8, top_p: 0.9, ..plain },
    ];
    let vocabulary = target.1 as u64;
    let case = |(i, sampling): (usize, Sampling)| {
        let prompt_len = 1 + (i * 5) % 17;
        let prompt = (0..prompt_len as u64).map(|j| (mix(i as u64 * 100 + j / 2) % vocabulary) as Token).collect();
        let constrained = i >= 10;
        Case { target, prompt, sampling, seed: 40 + i as u64, tokens_max: 12 + (i * 7) % 30, constrained }
    };
    samplers.into_iter().enumerate().map(case).collect()
}

/// The constraint of a case, if it has one.
fn constraint(case: &Case) -> Option<Constrained> {
    let forbidding = || Box::new(Forbidding::new(case.target.1));
    case.constrained.then(|| Constrained::new(forbidding()))
}

/// What a case is decoded from: the target, or what the constraint leaves of it.
fn specified(table: &Table, case: &Case) -> Table {
    if case.constrained { Forbidding::applied_to(table, case.prompt.len()) } else { table.clone() }
}

fn request(case: &Case, setting: &Setting, drafters: &[u8]) -> Request {
    Request {
        tokens_max: Some(case.tokens_max),
        sampling: case.sampling.clone(),
        constraint: constraint(case),
        prediction: case.prompt[case.prompt.len() / 2..].to_vec(),
        seed: case.seed,
        promise: setting.promise,
        budget: setting.budget.clone(),
        drafters: drafters.to_vec(),
        log_probabilities: true,
        ..Request::new(case.prompt.clone())
    }
}

fn engine(table: &Table, setting: &Setting, drafters: &[&Registered]) -> Engine {
    let toy = ToyExecutor::new(table.clone(), setting.page_len, 600usize.div_ceil(setting.page_len), setting.rows_max);
    let mut engine = Engine::new(Box::new(toy.with_fault(setting.fault)), setting.batch, usize::MAX);
    for drafter in drafters {
        engine.add_drafter((drafter.make)(table));
    }
    engine.hold_costs(costs(drafters.len()));
    engine
}

/// Costs that do not depend on the clock, with which it is a matter of the guess whether drafting pays. Drafters
/// differ.
fn costs(drafters: usize) -> Costs {
    let points = vec![(1, 1.0), (2, 1.03), (4, 1.1), (8, 1.2), (9, 1.6), (16, 1.8)];
    let drafter = |i: usize| DrafterCosts { call: 0.001, step: 0.02 * (1 + i % 7) as f64, catch_up: 0.001 };
    Costs { curves: vec![Curve::new(0, points)], drafters: (0..drafters).map(drafter).collect() }
}

/// Runs an engine dry; what each sequence emitted, tokens and bits of log-probabilities.
pub fn run(engine: &mut Engine, chance: &mut dyn Chance) -> BTreeMap<SequenceId, Vec<(Token, u32)>> {
    let mut texts: BTreeMap<SequenceId, Vec<(Token, u32)>> = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step(chance) {
            if let Event::Tokens { sequence, emitted } = event {
                let bits = emitted.iter().map(|e| (e.token, e.log_probability.map_or(0, f32::to_bits)));
                texts.entry(*sequence).or_default().extend(bits);
            }
        }
    }
    texts
}

/// Whether all cases (of one target) get the oracle's tokens and log-probabilities, run together in one engine.
///
/// # Errors
/// The first difference: which case and setting, where, and what was expected.
pub fn exact(cases: &[Case], setting: &Setting, drafters: &[&Registered]) -> Result<(), String> {
    let (seed, vocabulary, order) = cases[0].target;
    let table = Table::seeded(vocabulary, order, seed);
    let mut engine = engine(&table, setting, drafters);
    let numbers: Vec<u8> = (0..drafters.len() as u8).collect();
    let ids: Vec<SequenceId> = cases
        .iter()
        .map(|case| engine.submit(request(case, setting, &numbers)).map_err(|error| format!("{case:?}: {error}")))
        .collect::<Result<_, _>>()?;
    let texts = run(&mut engine, &mut Race);
    for (case, id) in cases.iter().zip(ids) {
        assert_eq!(case.target, cases[0].target, "cases of one target");
        let mut expected = decode(&specified(&table, case), &case.sampling, case.seed, &case.prompt, case.tokens_max);
        if case.constrained {
            // What the model itself says of a token is told, whatever is forbidden.
            let mut tokens = case.prompt.clone();
            for (token, bits) in &mut expected {
                *bits = log_probability(&table.logits(&tokens), *token).to_bits();
                tokens.push(*token);
            }
        }
        let found = texts.get(&id).map_or(&[][..], Vec::as_slice);
        if expected != found {
            let at = expected.iter().zip(found).take_while(|(a, b)| a == b).count();
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

/// How far the law of a text, through the engine's step, is from the target's: the largest difference over texts.
/// `len` tokens, any promise, computed by enumeration.
pub fn law_error(table: &Table, case: &Case, setting: &Setting, drafters: &[&Registered]) -> f64 {
    let numbers: Vec<u8> = (0..drafters.len() as u8).collect();
    let text = |chance: &mut dyn Chance| -> Vec<Token> {
        let mut engine = engine(table, setting, drafters);
        let id = engine.submit(request(case, setting, &numbers)).expect("a case that can run");
        let texts = run(&mut engine, chance);
        texts[&id].iter().map(|(token, _)| *token).collect()
    };
    let found: Joint = match setting.promise {
        Promise::Exact => enumerate_coupled(|dial| text(dial)),
        Promise::Rejection | Promise::Block => enumerate(|dial| text(dial)),
    };
    distance(&found, &specified(table, case).plain(&case.sampling, &case.prompt, case.tokens_max))
}

/// All drafters, then without each, then each alone, then none.
pub fn selections(all: &[Registered]) -> Vec<Vec<&Registered>> {
    let mut selections: Vec<Vec<&Registered>> = vec![all.iter().collect(), Vec::new()];
    for left_out in 0..all.len() {
        selections.push(all.iter().enumerate().filter(|(i, _)| *i != left_out).map(|(_, d)| d).collect());
        selections.push(vec![&all[left_out]]);
    }
    selections
}
