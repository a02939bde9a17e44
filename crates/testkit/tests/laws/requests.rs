//! Tests of requests of one seed, one after the other, with drafters that learn from each: every output has the
//! target's law and is independent of the others.
//!
//! An output under *rejection* reveals its coins. If the next request had the same coins, a drafter that copies earlier
//! outputs would choose its offers by the coins that judge them. The number of a request keeps its coins apart from
//! those of all others; the canary omits this number.

use std::collections::BTreeMap;

use foretoken_drafters::SuffixDrafter;
use foretoken_drafters::TrieDrafter;
use foretoken_speculation::{
    Address, Ask, Chance, Drafter, Law, Opening, Promise, Proposal, Sampling, SequenceId, StepOutput, Token,
};
use foretoken_testkit::enumerator::{enumerate, enumerate_by_address};
use foretoken_testkit::table::{Joint, Table, distance};

use crate::harness::{DrafterSet, Setup};
use crate::{DETECTED, PROMPT, TOLERANCE, fixed, model};

/// A drafter that proposes the token that followed the last token in the latest output.
struct Learner {
    vocabulary: usize,
    /// Whether it draws from the frequencies of the tokens that followed, instead of offering the latest.
    draws: bool,
    ended: Vec<Token>,
    running: Vec<Token>,
}

impl Learner {
    fn followers(&self, last: Token) -> impl Iterator<Item = Token> + '_ {
        self.ended.windows(2).filter(move |pair| pair[0] == last).map(|pair| pair[1])
    }

    fn guess(&self, ask: &mut Ask<'_>, depth: u64, last: Token, chance: &mut dyn Chance) -> (Token, Proposal) {
        if !self.draws {
            let next = (last + 1) % self.vocabulary as Token;
            return (self.followers(last).last().unwrap_or(next), Proposal::Point);
        }
        let weight = |token| (token, 0.5 + self.followers(last).filter(|next| *next == token).count() as f64);
        let law = Law::from_pairs((0..self.vocabulary as Token).map(weight));
        let position = ask.position() + depth;
        if ask.promise == Promise::Exact {
            return (chance.pick(&law, Address::token(ask.seed, position)), Proposal::Point);
        }
        let id = ask.tree.add_law(law);
        let address = Address::draft(ask.pass(), position, id);
        (chance.pick(ask.tree.law(id), address), Proposal::Drawn(id))
    }
}

impl Drafter for Learner {
    fn name(&self) -> &str {
        "learner"
    }
    fn open(&mut self, opening: &Opening<'_>) {
        self.running = opening.prompt.to_vec();
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        for ask in asks {
            let (mut at, mut last, mut depth) = (None, ask.tokens[ask.tokens.len() - 1], 0);
            while ask.has_room() {
                let (token, proposal) = self.guess(ask, depth, last, chance);
                at = Some(ask.tree.offer(at, token, proposal, ask.source));
                (last, depth) = (token, depth + 1);
            }
        }
    }
    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        self.running = outputs[0].tokens.to_vec();
    }
    fn close(&mut self, _sequence: SequenceId) {
        self.ended = std::mem::take(&mut self.running);
    }
}

fn learner(draws: bool) -> Box<dyn Drafter> {
    Box::new(Learner { vocabulary: 3, draws, ended: Vec::new(), running: Vec::new() })
}

type MakeDrafterSet = fn() -> DrafterSet<'static>;

/// Sets of drafters, one of which learns, each with a length of the outputs that can be enumerated in a second or two.
const DRAFTER_SETS: [(&str, usize, MakeDrafterSet); 5] = [
    ("points of the latest text", 3, || vec![learner(false)]),
    ("draws from the latest text", 3, || vec![learner(true)]),
    ("suffix", 4, || vec![Box::new(SuffixDrafter::default())]),
    ("trie", 4, || vec![Box::new(TrieDrafter::default())]),
    ("suffix and a model", 4, || vec![Box::new(SuffixDrafter::default()), model(&Table::seeded(3, 1, 77), 1, 0.0)]),
];

/// The outputs of requests with these numbers, one after the other, with the same drafters.
fn texts(
    setup: &Setup<'_>,
    numbers: &[u64],
    drafters: &mut DrafterSet<'_>,
    chance: &mut dyn Chance,
) -> Vec<Vec<Token>> {
    let text = |&request: &u64| {
        let text = Setup { request, ..*setup }.generate(drafters, fixed(2)().as_mut(), chance);
        drafters.iter_mut().for_each(|drafter| drafter.close(SequenceId(1)));
        text
    };
    numbers.iter().map(text).collect()
}

/// The law of `count` independent outputs, concatenated.
fn product(plain: &Joint, count: usize) -> Joint {
    (0..count).fold(Joint::from([(Vec::new(), 1.0)]), |all, _| {
        let longer = |(texts, p): (&Vec<Token>, &f64)| {
            plain.iter().map(|(text, q)| ([&texts[..], text].concat(), p * q)).collect::<Vec<_>>()
        };
        all.iter().flat_map(longer).collect()
    })
}

/// The law of the last output alone.
fn last_text(law: &BTreeMap<Vec<Vec<Token>>, f64>) -> Joint {
    let mut last = Joint::new();
    law.iter().for_each(|(texts, p)| *last.entry(texts[texts.len() - 1].clone()).or_insert(0.0) += p);
    last
}

#[test]
fn outputs_of_one_seed_are_independent_whatever_was_learned() {
    let sampling = Sampling::default();
    for (seed, promise) in (0..2).flat_map(|seed| [Promise::Rejection, Promise::Block].map(|promise| (seed, promise))) {
        let target = Table::seeded(3, 2, seed);
        for (name, len, drafters) in DRAFTER_SETS {
            let setup = Setup::new(&target, &sampling, promise, &PROMPT, len);
            // An address that is used twice, within a request or by both, panics here.
            let law = enumerate(|chance| texts(&setup, &[0, 1], &mut drafters(), chance).concat());
            let error = distance(&law, &product(&target.plain(&sampling, &PROMPT, len), 2));
            assert!(error < TOLERANCE, "{promise:?} {name}, seed {seed}: {error}");
        }
        let setup = Setup::new(&target, &sampling, promise, &PROMPT, 2);
        let law = enumerate(|chance| texts(&setup, &[7, u64::MAX, 0], &mut vec![learner(false)], chance).concat());
        let error = distance(&law, &product(&target.plain(&sampling, &PROMPT, 2), 3));
        assert!(error < TOLERANCE, "{promise:?} three texts, seed {seed}: {error}");
    }
}

#[test]
fn requests_with_the_same_number_are_detected() {
    let sampling = Sampling::default();
    for promise in [Promise::Rejection, Promise::Block] {
        for (name, len, drafters) in DRAFTER_SETS {
            let error = |numbers: &[u64]| {
                let of_seed = |seed| {
                    let target = Table::dense(3, 2, seed);
                    let setup = Setup::new(&target, &sampling, promise, &PROMPT, len);
                    let law = enumerate_by_address(|chance| texts(&setup, numbers, &mut drafters(), chance));
                    distance(&last_text(&law), &target.plain(&sampling, &PROMPT, len))
                };
                (0..2).map(of_seed).fold(0.0, f64::max)
            };
            let (same, own) = (error(&[0, 0]), error(&[0, 1]));
            assert!(same > DETECTED, "{promise:?} {name}: {same}");
            assert!(own < TOLERANCE, "{promise:?} {name}: {own}");
        }
    }
}

#[test]
fn under_exact_the_output_of_a_seed_depends_on_neither_number_nor_learning() {
    let sampling = Sampling::default();
    let target = Table::dense(3, 2, 1);
    for (name, len, drafters) in DRAFTER_SETS {
        let setup = Setup::new(&target, &sampling, Promise::Exact, &PROMPT, len);
        let law = enumerate_by_address(|chance| texts(&setup, &[0, 1], &mut drafters(), chance));
        assert!(law.keys().all(|texts| texts[0] == texts[1]), "{name}");
        let error = distance(&last_text(&law), &target.plain(&sampling, &PROMPT, len));
        assert!(error < TOLERANCE, "{name}: {error}");
    }
}
