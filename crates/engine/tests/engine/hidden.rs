//! Tests of hidden states: a drafter that needs them gets those of every token that is written, and those of the prompt
//! if it asks for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use foretoken_drafters::SuffixDrafter;
use foretoken_engine::{BudgetKind, Engine, Race, Request};
use foretoken_speculation::{Ask, Chance, Drafter, Needs, Opening, Promise, Sampling, SequenceId, StepOutput, Token};
use foretoken_testkit::conform::run;
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::{Table, mix};
use foretoken_testkit::toy::{ToyExecutor, hidden_state};

/// For each sequence how many leading tokens have states, and its length.
type Known = Arc<Mutex<BTreeMap<SequenceId, (usize, usize)>>>;

/// A drafter that checks every state that it gets, and that none is missing.
struct HiddenChecker {
    needs: Needs,
    known: Known,
}

impl Drafter for HiddenChecker {
    fn name(&self) -> &str {
        "checker"
    }

    fn needs(&self) -> Needs {
        self.needs.clone()
    }

    fn open(&mut self, opening: &Opening<'_>) {
        // A drafter that reads prompts gets the states of their last 64 tokens at least, and possibly of more.
        let unknown = if self.needs.prompt_rows { usize::MAX } else { opening.prompt.len() - 1 };
        self.known.lock().unwrap().insert(opening.sequence, (unknown, opening.prompt.len()));
    }

    fn draft(&mut self, _asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {}

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        for output in outputs {
            let mut known = self.known.lock().unwrap();
            let (next, len) = known.get_mut(&output.sequence).unwrap();
            if *next == usize::MAX && !output.hidden.is_empty() {
                assert!(output.hidden_from <= len.saturating_sub(64), "{} of {len}", output.hidden_from);
                *next = output.hidden_from;
            }
            let states = output.hidden.chunks(self.needs.hidden_layers.len());
            for (position, states) in (output.hidden_from..).zip(states) {
                // Earlier positions are there because another drafter needs the prompt's rows.
                if position < *next {
                    assert!(!self.needs.prompt_rows, "position {position} was known");
                    continue;
                }
                assert_eq!(position, *next, "{:?}", output.sequence);
                for (layer, state) in self.needs.hidden_layers.iter().zip(states) {
                    assert_eq!(*state, hidden_state(*layer, &output.tokens[..=position]), "position {position}");
                }
                *next += 1;
            }
            *len = output.tokens.len();
            let is_for_it = self.needs.prompt_rows || !output.emitted.is_empty();
            assert!(is_for_it, "only drafters that read prompts are told of passes that only read one");
        }
    }
}

#[test]
fn drafters_get_the_hidden_states_of_every_token_that_is_written() {
    let table = Table::seeded(5, 2, 8);
    for (promise, prompt_rows) in [Promise::Exact, Promise::Rejection].into_iter().flat_map(|p| [(p, true), (p, false)])
    {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 200, 20)), 3, usize::MAX);
        engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 2, 6)));
        let needs = [
            Needs { hidden_layers: vec![7, 0, 3], prompt_rows, ..Needs::default() },
            Needs { hidden_layers: vec![3], ..Needs::default() },
        ];
        let known = needs.map(|needs| {
            let known = Known::default();
            engine.add_drafter(Box::new(HiddenChecker { needs, known: known.clone() }));
            known
        });
        let request = |i: u64| Request {
            tokens_max: Some(30),
            sampling: Sampling::default(),
            seed: i,
            promise,
            budget: BudgetKind::Fixed { nodes: 4 },
            drafters: vec![0, 1, 2],
            ..Request::new((0..1 + 17 * i).map(|at| (mix(at) % 5) as Token).collect())
        };
        let ids: Vec<SequenceId> = (0..5).map(|i| engine.submit(request(i)).unwrap()).collect();
        let outputs = run(&mut engine, &mut Race);
        for (i, id) in ids.iter().enumerate() {
            let Request { sampling, seed, prompt, .. } = request(i as u64);
            if promise == Promise::Exact {
                assert_eq!(outputs[id], without_bits(decode(&table, &sampling, seed, &prompt, 30)));
            }
            for known in &known {
                let (states, len) = known.lock().unwrap()[id];
                assert_eq!(
                    (states, len),
                    (prompt.len() + 29, prompt.len() + 30),
                    "all tokens but the last have states"
                );
            }
        }
    }
}

/// The tokens with 0 as log-probabilities, which the requests did not ask for.
fn without_bits(decoded: Vec<(Token, u32)>) -> Vec<(Token, u32)> {
    decoded.into_iter().map(|(token, _)| (token, 0)).collect()
}
