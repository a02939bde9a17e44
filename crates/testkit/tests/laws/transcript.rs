//! Tests of *exact* token by token: with noise that is a function of the address, the output with any drafter equals
//! that without drafters.

use foretoken_speculation::budget::Heuristic;
use foretoken_speculation::{Address, Chance, Law, Promise, Purpose, Sampling, Token};
use foretoken_testkit::table::{Table, mix};

use crate::harness::{DrafterSet, Setup};
use crate::shapes::{Kind, Shape, Shaped, shapes};
use crate::{PROMPT, fixed, lookup, model};

/// A [`Chance`] by the race, with noise hashed from the address and the token.
pub struct Hashed;

impl Hashed {
    /// An exponential variable.
    fn noise(address: Address, token: u32) -> f64 {
        let Address { seed, request, pass, position, purpose, index } = address;
        let words = [request, pass, position, purpose as u64, u64::from(index), u64::from(token)];
        let hash = words.into_iter().fold(mix(seed), |state, word| mix(state ^ mix(word)));
        -(-((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64).ln_1p()
    }
}

impl Chance for Hashed {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        let mut race: Vec<_> = law.iter().map(|(token, p)| (Hashed::noise(address, token) / p, token)).collect();
        race.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        out.clear();
        out.extend(race.iter().take(count).map(|&(_, token)| token));
    }
    fn coin(&mut self, probability: f64, address: Address) -> bool {
        assert!(address.purpose == Purpose::Coin);
        (-Hashed::noise(address, 0)).exp() < probability
    }
}

const LEN: usize = 60;

#[test]
fn the_output_with_any_drafter_is_that_without_drafters() {
    let settings = [
        Sampling { temperature: 0.0, ..Sampling::default() },
        Sampling::default(),
        Sampling { temperature: 1.5, top_k: 6, top_p: 0.9, repetition_penalty: 1.2, ..Sampling::default() },
    ];
    let forest: Vec<Shape> = shapes(4);
    for seed in 0..12 {
        let target = Table::dense(10, 2, seed);
        let draft = Table::seeded(10, 1, seed + 1);
        for sampling in &settings {
            let setup = Setup { seed, ..Setup::new(&target, sampling, Promise::Exact, &PROMPT, LEN) };
            let write =
                |mut drafters: DrafterSet<'_>| setup.generate(&mut drafters, &mut Heuristic::new(6), &mut Hashed);
            let alone = write(vec![]);
            assert_eq!(alone.len(), LEN);
            assert_eq!(write(vec![lookup()]), alone);
            assert_eq!(write(vec![model(&draft, 4, 0.0)]), alone);
            assert_eq!(write(vec![model(&target, 4, 0.3), lookup(), model(&draft, 2, 0.0)]), alone);
        }
        for (i, shape) in forest.iter().enumerate() {
            let kind = [Kind::Drawn, Kind::Mixed, Kind::Point][i % 3];
            let mut drafters: DrafterSet<'_> = vec![Box::new(Shaped { shape, kind, table: draft.clone() })];
            let setup = Setup { seed, ..Setup::new(&target, &settings[1], Promise::Exact, &PROMPT, LEN) };
            let alone = setup.generate(&mut [], fixed(0)().as_mut(), &mut Hashed);
            let drafted = setup.generate(&mut drafters, fixed(usize::MAX)().as_mut(), &mut Hashed);
            assert_eq!(drafted, alone, "{shape:?}");
        }
    }
}

#[test]
fn without_a_drafter_all_promises_have_the_same_output() {
    let (target, sampling) = (Table::dense(10, 2, 3), Sampling::default());
    let text = |promise| {
        let setup = Setup::new(&target, &sampling, promise, &PROMPT, LEN);
        setup.generate(&mut [], fixed(0)().as_mut(), &mut Hashed)
    };
    assert_eq!(text(Promise::Exact), text(Promise::Rejection));
    assert_eq!(text(Promise::Exact), text(Promise::Block));
}
