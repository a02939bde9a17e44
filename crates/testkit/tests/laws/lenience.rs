//! Tests of lossy verification by enumeration: no token is written with more than 1 / l times its probability, given
//! what was written before it.
//!
//! The whole law is also compared with that of the reference implementation, since a mistake may keep the bound. With l
//! = 1 every question to chance must be that of the lossless verification, bit for bit.

use foretoken_drafters::ModelDrafter;
use foretoken_speculation::{
    Address, Chance, DraftTree, Drafter, Law, Lenience, Pass, Promise, Sampling, TargetLaws, Token, Verdict, theory,
    verify, verify_leniently,
};
use foretoken_testkit::table::{Joint, Table, TableScorer, distance, excess, mix};

use crate::harness::{DrafterSet, Setup, Verify};
use crate::reference::{self, Fault};
use crate::shapes::{Kind, Shape, Shaped, shapes};
use crate::transcript::Hashed;
use crate::{PROMPT, fixed, lookup, model};

const LENIENCES: [f64; 5] = [0.1, 0.3, 0.5, 0.9, 1.0];
/// Rounding.
const TOLERANCE: f64 = 1e-9;
/// An error that is larger than any rounding.
const DETECTED: f64 = 1e-3;

/// Lenient verification as a function of a setup.
fn lenient(lenience: f64) -> impl Fn(&DraftTree, &mut dyn TargetLaws, Promise, Pass, &mut dyn Chance) -> Verdict {
    move |tree, target, _, pass, chance| verify_leniently(tree, target, Lenience::Drawn(lenience), pass, chance)
}

/// The reference implementation with a fault.
fn faulty(
    fault: Fault,
    lenience: f64,
) -> impl Fn(&DraftTree, &mut dyn TargetLaws, Promise, Pass, &mut dyn Chance) -> Verdict {
    move |tree, target, _, pass, chance| reference::verify(tree, target, (fault, lenience), 3, pass, chance)
}

/// The law of a few tokens if one pass drafts a shape.
fn law_of_shape(target: &Table, draft: &Table, (shape, kind): (&Shape, Kind), verify: Verify<'_>) -> Joint {
    let sampling = Sampling::default();
    let len = shape.len().min(2) + 1;
    let setup = Setup { verify, ..Setup::new(target, &sampling, Promise::Rejection, &PROMPT, len) };
    setup.law_of_one_pass(usize::MAX, || -> DrafterSet<'_> {
        vec![Box::new(Shaped { shape, kind, table: draft.clone() })]
    })
}

/// Shapes of up to `nodes_max` nodes in this kind, each with two pairs of tables, with zeros and without.
fn each_shape(nodes_max: usize, kind: Kind, mut check: impl FnMut(&Table, &Table, (&Shape, Kind))) {
    for nodes in 1..=nodes_max {
        for (i, shape) in shapes(nodes).iter().enumerate() {
            let seed = mix((nodes * 1000 + i) as u64);
            for make in [Table::seeded as fn(_, _, _) -> _, Table::dense] {
                check(&make(3, 2, seed), &make(3, 2, seed + 1), (shape, kind));
            }
        }
    }
}

#[test]
fn no_token_is_written_with_more_than_its_bound_over_any_tree() {
    for (nodes_max, kind) in [(4, Kind::Drawn), (4, Kind::Point), (3, Kind::Mixed), (2, Kind::Twice)] {
        each_shape(nodes_max, kind, |target, draft, shape| {
            for lenience in LENIENCES {
                let found = law_of_shape(target, draft, shape, &lenient(lenience));
                let excess = excess(&found, target, &Sampling::default(), &PROMPT, 1.0 / lenience);
                assert!(excess < TOLERANCE, "lenience {lenience}, {shape:?}: {excess} above the bound");
                let error = distance(&found, &law_of_shape(target, draft, shape, &faulty(Fault::None, lenience)));
                assert!(error < TOLERANCE, "lenience {lenience}, {shape:?}: {error} from the reference");
            }
        });
    }
}

#[test]
fn the_bound_holds_over_several_passes_of_real_drafters() {
    let sampling = Sampling { temperature: 0.8, top_k: 3, ..Sampling::default() };
    let forks = |table: &Table| -> Box<dyn Drafter> {
        let mut drafter = ModelDrafter::new(TableScorer::new(table.clone()));
        drafter.settings.p_split = Some(0.2);
        Box::new(drafter)
    };
    for seed in 0..3 {
        let (target, draft) = (Table::dense(4, 2, seed), Table::seeded(4, 1, seed + 100));
        let sets: [&dyn Fn() -> DrafterSet<'static>; 5] = [
            &|| vec![model(&draft, 3, 0.0)],
            &|| vec![model(&draft, 3, 0.4)],
            &|| vec![lookup()],
            &|| vec![forks(&draft)],
            &|| vec![lookup(), model(&draft, 2, 0.0)],
        ];
        for (i, drafters) in sets.iter().enumerate() {
            for lenience in LENIENCES {
                let verify = lenient(lenience);
                let setup = Setup { verify: &verify, ..Setup::new(&target, &sampling, Promise::Rejection, &PROMPT, 3) };
                let found = setup.law(drafters, fixed(3));
                let excess = excess(&found, &target, &sampling, &PROMPT, 1.0 / lenience);
                assert!(excess < TOLERANCE, "set {i}, lenience {lenience}, seed {seed}: {excess}");
                let error = distance(&found, &target.plain(&sampling, &PROMPT, 3));
                assert!(lenience < 1.0 || error < 1e-6, "set {i}, seed {seed}: {error}");
            }
        }
    }
}

#[test]
fn it_is_lossy_and_reaches_its_bound() {
    let sampling = Sampling::default();
    let (p, q) = ([0.5, 0.3, 0.2], [0.05, 0.05, 0.9]);
    let (target, draft) = (Table::constant(&p), Table::constant(&q));
    for lenience in LENIENCES.into_iter().filter(|lenience| *lenience < 1.0) {
        let found = law_of_shape(&target, &draft, (&vec![None], Kind::Drawn), &lenient(lenience));
        let third: f64 = found.iter().filter(|(text, _)| text[0] == 2).map(|(_, probability)| probability).sum();
        assert!((third - (0.2 / lenience).min(0.9)).abs() < 1e-6, "lenience {lenience}: {third}");
        assert!(third > 0.2 + DETECTED && distance(&found, &target.plain(&sampling, &PROMPT, 2)) > DETECTED);
    }
}

#[test]
fn as_much_is_accepted_as_in_theory() {
    let sampling = Sampling::default();
    let (target, draft) = (Table::constant(&[0.5, 0.3, 0.2]), Table::constant(&[0.1, 0.2, 0.7]));
    let [p, q] = [&target, &draft].map(|table| table.law(&sampling, &PROMPT, 4, &[]));
    for lenience in LENIENCES {
        let alpha = theory::lenient_acceptance(&p, &q, lenience);
        let verify = lenient(lenience);
        let setup = Setup { verify: &verify, ..Setup::new(&target, &sampling, Promise::Rejection, &PROMPT, 1) };
        for gamma in 1..=3 {
            let accepted = setup.expected_accepted(gamma, || vec![model(&draft, gamma, 0.0)]);
            let expected = theory::expected_tokens(alpha, gamma as u32) - 1.0;
            assert!((accepted - expected).abs() < TOLERANCE, "{lenience} {gamma}: {accepted} for {expected}");
        }
    }
}

/// What chance was asked.
#[derive(Clone, Debug, PartialEq)]
enum Question {
    Coin(u64),
    Draw(Law, usize),
}

/// Chance by hashes that writes down what it is asked.
#[derive(Default)]
struct Recorded(Vec<(Address, Question)>);

impl Chance for Recorded {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        self.0.push((address, Question::Draw(law.clone(), count)));
        Hashed.draw(law, count, address, out);
    }
    fn coin(&mut self, probability: f64, address: Address) -> bool {
        self.0.push((address, Question::Coin(probability.to_bits())));
        Hashed.coin(probability, address)
    }
}

#[test]
fn a_lenience_of_one_is_the_lossless_verification_to_the_bit() {
    let coins = std::cell::Cell::new(0);
    let both = |tree: &DraftTree, target: &mut dyn TargetLaws, promise, pass, _: &mut dyn Chance| {
        let [mut lossless, mut lenient] = [Recorded::default(), Recorded::default()];
        let verdict = verify(tree, target, promise, pass, &mut lossless);
        assert_eq!(verify_leniently(tree, target, Lenience::Drawn(1.0), pass, &mut lenient), verdict);
        assert_eq!(lenient.0, lossless.0);
        coins.set(coins.get() + lossless.0.len());
        verdict
    };
    let sampling = Sampling { temperature: 1.2, top_p: 0.95, ..Sampling::default() };
    for seed in 0..8 {
        let (target, draft) = (Table::dense(10, 2, seed), Table::seeded(10, 1, seed + 1));
        for (i, shape) in shapes(4).iter().enumerate() {
            let kind = [Kind::Drawn, Kind::Mixed, Kind::Point, Kind::Twice][i % 4];
            let mut drafters: DrafterSet<'_> = vec![Box::new(Shaped { shape, kind, table: draft.clone() })];
            let setup = Setup { seed, ..Setup::new(&target, &sampling, Promise::Rejection, &PROMPT, 40) };
            Setup { verify: &both, ..setup }.generate(&mut drafters, fixed(usize::MAX)().as_mut(), &mut Hashed);
        }
    }
    assert!(coins.get() > 1000, "{} questions", coins.get());
}

#[test]
fn wrong_residuals_are_detected() {
    // What is drawn from p after a rejection exceeds the bound; a residual without lenience keeps it, and is found by
    // the comparison with the reference.
    let (mut above, mut apart) = (0.0_f64, 0.0_f64);
    each_shape(2, Kind::Drawn, |target, draft, shape| {
        for lenience in LENIENCES.into_iter().filter(|lenience| *lenience < 1.0) {
            let of_target = law_of_shape(target, draft, shape, &faulty(Fault::ResidualIsTarget, lenience));
            above = above.max(excess(&of_target, target, &Sampling::default(), &PROMPT, 1.0 / lenience));
            let lossless = law_of_shape(target, draft, shape, &faulty(Fault::ResidualWithoutLenience, lenience));
            apart = apart.max(distance(&lossless, &law_of_shape(target, draft, shape, &lenient(lenience))));
        }
    });
    assert!(above > DETECTED, "{above} above the bound");
    assert!(apart > DETECTED, "{apart} from the lossless residual");
}
