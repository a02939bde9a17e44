//! Tests with injected faults. Each must be detected, since otherwise the tests of laws prove nothing.

use foretoken_drafters::SuffixDrafter;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{
    Address, Ask, Chance, Context, DraftSettings, DraftTree, Drafter, Law, Opening, Probes, Promise, Proposal,
    Sampling, SequenceId, TargetLaws, Token, verify,
};
use foretoken_testkit::enumerator::Enumerator;
use foretoken_testkit::table::{Table, logits_of};

use crate::harness::{DrafterSet, Setup, Verify};
use crate::reference::{self, Fault};
use crate::shapes::{Kind, Shape, Shaped};
use crate::{DETECTED, PROMPT, fixed};

/// The largest error of the reference implementation with a fault, over a few trees.
pub fn worst(fault: Fault) -> f64 {
    let shapes: [Shape; 3] = [vec![None, Some(0)], vec![None, None], vec![None, Some(0), None, Some(2)]];
    let sampling = Sampling::default();
    let mut worst = 0.0_f64;
    for (seed, shape) in (0..4).flat_map(|seed| shapes.iter().map(move |shape| (seed, shape))) {
        let target = Table::seeded(3, 2, seed);
        let table = Table::seeded(3, 2, seed + 40);
        for kind in [Kind::Drawn, Kind::Mixed, Kind::Twice] {
            let verify = |tree: &_, target: &mut dyn TargetLaws, _, pass, chance: &mut dyn Chance| {
                reference::verify(tree, target, (fault, 1.0), 3, pass, chance)
            };
            let setup = Setup { verify: &verify, ..Setup::new(&target, &sampling, Promise::Rejection, &PROMPT, 3) };
            let error = setup.error_of_one_pass(usize::MAX, || -> DrafterSet<'_> {
                vec![Box::new(Shaped { shape, kind, table: table.clone() })]
            });
            worst = worst.max(error);
        }
    }
    worst
}

#[test]
fn a_residual_that_is_the_target_is_detected() {
    assert!(worst(Fault::ResidualIsTarget) > DETECTED);
}

#[test]
fn a_residual_that_is_not_clamped_is_detected() {
    assert!(worst(Fault::NoClamp) > DETECTED);
}

#[test]
fn a_bonus_from_the_row_above_is_detected() {
    assert!(worst(Fault::BonusOffByOne) > DETECTED);
}

#[test]
fn siblings_judged_as_if_drawn_with_replacement_are_detected() {
    assert!(worst(Fault::WithReplacement) > DETECTED);
}

#[test]
fn offers_merged_with_their_nodes_are_detected() {
    assert!(worst(Fault::MergedOffers) > DETECTED);
}

/// Whether one sibling or two are offered from a law can depend on what was drawn above. So block verification that is
/// chosen because the tree turned out to be a chain is chosen by drawn values.
#[test]
fn block_verification_chosen_after_the_draw_is_detected() {
    let shape = vec![None, Some(0), Some(1), Some(1)];
    let sampling = Sampling::default();
    let chosen = |tree: &DraftTree, target: &mut dyn TargetLaws, _, pass, chance: &mut dyn Chance| {
        let promise = if tree.is_chain() { Promise::Block } else { Promise::Rejection };
        verify(tree, target, promise, pass, chance)
    };
    let error = |seed, verify: Verify<'_>| {
        let (target, dense) = (Table::dense(3, 2, seed), Table::dense(3, 1, seed + 40));
        // After a 0 only one token is possible, so there is no second sibling.
        let table = Table::new(3, move |tokens| match tokens {
            [.., 0] => logits_of(&[0.0, 1.0, 0.0]),
            _ => dense.logits(tokens),
        });
        let setup = Setup { verify, ..Setup::new(&target, &sampling, Promise::Block, &PROMPT, 4) };
        let drafters =
            || -> DrafterSet<'_> { vec![Box::new(Shaped { shape: &shape, kind: Kind::Drawn, table: table.clone() })] };
        setup.error_of_one_pass(usize::MAX, drafters)
    };
    assert!((0..4).map(|seed| error(seed, &chosen)).fold(0.0, f64::max) > DETECTED);
    assert!((0..4).map(|seed| error(seed, &verify)).fold(0.0, f64::max) < 1e-9);
}

#[test]
#[should_panic(expected = "used twice at Address { seed: 9, request: 0, pass: 4, position: 4, purpose: Draft")]
fn a_coin_with_the_noise_of_the_draft_is_refused_by_its_address() {
    worst(Fault::SharedNoise);
}

/// Shows why that address is refused: with one number for draw and coin, a token that is accepted only below its ratio
/// is drawn only if the number lies in its own interval.
#[test]
fn a_coin_with_the_noise_of_the_draft_gives_another_law() {
    let (p, q, steps) = ([0.5_f64, 0.5], [0.8_f64, 0.2], 10_000);
    let mut written = [0.0; 2];
    for step in 0..steps {
        let noise = (f64::from(step) + 0.5) / f64::from(steps);
        let token = usize::from(noise >= q[0]);
        // The residual has token 1 alone, whichever token was rejected.
        let token = if noise < (p[token] / q[token]).min(1.0) { token } else { 1 };
        written[token] += 1.0 / f64::from(steps);
    }
    assert!((written[0] - p[0]).abs() > DETECTED, "{written:?}");
}

/// A drafter that looks at its draws before it offers them.
struct PeekingDrafter {
    table: Table,
    /// The draw is dropped if its probability is below this.
    drop_below: f64,
    /// Whether two are drawn and the more probable one is offered first.
    reorder: bool,
}

impl Drafter for PeekingDrafter {
    fn name(&self) -> &str {
        "peeking"
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        for ask in asks {
            if !ask.has_room() {
                continue;
            }
            let context = Context { tokens: ask.tokens, prompt_len: ask.prompt_len, path: &[], constraint: None };
            let law = ask.sampling.law(&self.table.logits(ask.tokens), &context);
            let q = |token: Token| law.probability(token);
            let mut out = Vec::new();
            let id = ask.tree.add_law(law.clone());
            let address = Address::draft(ask.pass(), ask.position(), id);
            chance.draw(&law, if self.reorder { 2 } else { 1 }, address, &mut out);
            if self.reorder {
                out.sort_by(|&a, &b| q(b).total_cmp(&q(a)));
            }
            out.retain(|&token| q(token) >= self.drop_below);
            for token in out {
                ask.tree.offer(None, token, Proposal::Drawn(id), ask.source);
            }
        }
    }
    fn close(&mut self, _sequence: SequenceId) {}
}

#[test]
fn a_confidence_rule_that_drops_its_own_draw_is_detected() {
    let (table, sampling) = (Table::constant(&[0.9, 0.1]), Sampling::default());
    let setup = Setup::new(&table, &sampling, Promise::Rejection, &[0], 2);
    let drafter = |drop_below| {
        let table = table.clone();
        move || -> DrafterSet<'_> {
            vec![Box::new(PeekingDrafter { table: table.clone(), drop_below, reorder: false })]
        }
    };
    assert!(setup.error(drafter(0.0), fixed(1)) < 1e-9);
    // The first token is written with 0.99 instead of 0.9; the second token, which is written plainly, contributes the
    // factor 0.9.
    assert!((setup.error(drafter(0.5), fixed(1)) - 0.09 * 0.9).abs() < 1e-6);
}

#[test]
fn siblings_sorted_after_the_draw_are_detected() {
    let (target, table) = (Table::constant(&[0.3, 0.3, 0.4]), Table::constant(&[0.6, 0.3, 0.1]));
    let sampling = Sampling::default();
    let setup = Setup::new(&target, &sampling, Promise::Rejection, &[0], 2);
    let drafter = || -> DrafterSet<'_> {
        vec![Box::new(PeekingDrafter { table: table.clone(), drop_below: 0.0, reorder: true })]
    };
    assert!(setup.error_of_one_pass(2, drafter) > DETECTED);
}

/// A drafter that keeps all its tokens when the sequence goes back would copy tokens that were never written.
#[test]
#[should_panic(expected = "tokens indexed of")]
fn a_drafter_that_was_not_rolled_back_is_detected() {
    let mut drafter = SuffixDrafter::lookup(1, 3, 10);
    drafter.open(&Opening::new(SequenceId(1), &PROMPT));
    let (sampling, mut tree) = (Sampling::default(), DraftTree::new());
    let ask = Ask {
        sequence: SequenceId(1),
        tokens: &PROMPT[..2],
        prompt_len: 2,
        written_len: (PROMPT[..2]).len(),
        constraint: None,
        sampling: &sampling,
        settings: DraftSettings::default(),
        promise: Promise::Exact,
        seed: 0,
        outlook: None,
        request: 0,
        limits: Limits::nodes(4),
        tree: &mut tree,
        probes: &mut Probes::default(),
        source: 0,
    };
    drafter.draft(&mut [ask], &mut Enumerator::default());
}

#[test]
#[should_panic(expected = "gives it zero")]
fn a_draw_that_its_law_excludes_is_refused() {
    let mut tree = DraftTree::new();
    let law = tree.add_law(Law::point(3));
    tree.offer(None, 4, Proposal::Drawn(law), 0);
}
