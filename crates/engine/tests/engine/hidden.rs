//! Hidden states: a drafter that needs them is told those of every token that is written, and of the prompt if it asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use foretoken_drafters::SuffixDrafter;
use foretoken_engine::{BudgetKind, Engine, Race, Request};
use foretoken_speculation::{Ask, Chance, Drafter, Needs, News, Opening, Promise, Sampling, SequenceId, Token};
use foretoken_testkit::conform::run;
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::{Table, mix};
use foretoken_testkit::toy::{ToyExecutor, hidden_state};

/// By sequence: how many first tokens it has states of, and the length of the text.
type Known = Arc<Mutex<BTreeMap<SequenceId, (usize, usize)>>>;

/// Checks every state that it is told, and that none is left out.
struct Follower {
    needs: Needs,
    known: Known,
}

impl Drafter for Follower {
    fn name(&self) -> &str {
        "follower"
    }

    fn needs(&self) -> Needs {
        self.needs.clone()
    }

    fn open(&mut self, opening: &Opening<'_>) {
        // Who reads prompts is told of their last 64 tokens at least, wherever that begins.
        let unknown = if self.needs.prompt_rows { usize::MAX } else { opening.prompt.len() - 1 };
        self.known.lock().unwrap().insert(opening.sequence, (unknown, opening.prompt.len()));
    }

    fn draft(&mut self, _asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {}

    fn observe(&mut self, news: &[News<'_>]) {
        for news in news {
            let mut known = self.known.lock().unwrap();
            let (next, len) = known.get_mut(&news.sequence).unwrap();
            if *next == usize::MAX && !news.hidden.is_empty() {
                assert!(news.hidden_from <= len.saturating_sub(64), "{} of {len}", news.hidden_from);
                *next = news.hidden_from;
            }
            let states = news.hidden.chunks(self.needs.hidden_layers.len());
            for (position, states) in (news.hidden_from..).zip(states) {
                // Another drafter's need for the prompt's rows shows.
                if position < *next {
                    assert!(!self.needs.prompt_rows, "position {position} was known");
                    continue;
                }
                assert_eq!(position, *next, "{:?}", news.sequence);
                for (layer, state) in self.needs.hidden_layers.iter().zip(states) {
                    assert_eq!(*state, hidden_state(*layer, &news.tokens[..=position]), "position {position}");
                }
                *next += 1;
            }
            *len = news.tokens.len();
            assert!(self.needs.prompt_rows || !news.emitted.is_empty(), "only who reads prompts hears of them");
        }
    }
}

#[test]
fn every_token_that_is_written_has_its_hidden_states_told() {
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
            engine.add_drafter(Box::new(Follower { needs, known: known.clone() }));
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
        let texts = run(&mut engine, &mut Race);
        for (i, id) in ids.iter().enumerate() {
            let Request { sampling, seed, prompt, .. } = request(i as u64);
            if promise == Promise::Exact {
                assert_eq!(texts[id], texts_of(decode(&table, &sampling, seed, &prompt, 30)));
            }
            for known in &known {
                let (states, len) = known.lock().unwrap()[id];
                assert_eq!((states, len), (prompt.len() + 29, prompt.len() + 30), "all but the last token's");
            }
        }
    }
}

/// Without log-probabilities, for which nobody asked.
fn texts_of(decoded: Vec<(Token, u32)>) -> Vec<(Token, u32)> {
    decoded.into_iter().map(|(token, _)| (token, 0)).collect()
}
