//! Tests of several drafters that fill one tree: candidates, choosing and verification together, and typical faults of
//! choosing, which must be detected.

use foretoken_speculation::{
    Address, Ask, Chance, Choice, Context, Costs, DraftTree, Drafter, Evidence, LawId, NodeId, Offer, PassSoFar,
    Policy, Promise, Proposal, Sampling, SequenceId, Token, choose,
};
use foretoken_testkit::table::{Table, mix};

use crate::harness::{Choose, DrafterSet, Setup};
use crate::{DETECTED, PROMISES, PROMPT, TOLERANCE, fixed, lookup, model};

/// The policies that are tested.
const POLICIES: [Policy<'_>; 2] = [Policy::Most, Policy::ByCost];

/// The nodes under which a [`DrawingDrafter`] draws.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Growth {
    /// Two siblings under the root, then two under the first of them, and so on.
    Branching,
    /// Under existing nodes of any drafter; under a later node only after an earlier draw of token 0.
    Grafting,
}

/// A drafter that draws (under *exact*: races) from a table as long as there is room, at other nodes than a draft model
/// does.
struct DrawingDrafter {
    table: Table,
    at: Growth,
}

impl DrawingDrafter {
    /// Draws up to `count` siblings, as far as there is room for all of them, and returns their nodes.
    fn siblings(
        &self,
        ask: &mut Ask<'_>,
        parent: Option<NodeId>,
        count: usize,
        chance: &mut dyn Chance,
    ) -> Vec<NodeId> {
        let count = count.min(ask.limits.nodes_max.saturating_sub(ask.tree.len()));
        if count == 0 {
            return Vec::new();
        }
        let path = parent.map_or(Vec::new(), |parent| ask.tree.path(parent));
        let context = Context { tokens: ask.tokens, prompt_len: ask.prompt_len, path: &path, constraint: None };
        let law = ask.sampling.law(&self.table.logits(&[ask.tokens, &path].concat()), &context);
        let position = ask.position() + path.len() as u64;
        let mut drawn = Vec::new();
        let id = match ask.promise {
            Promise::Exact => {
                chance.draw(&law, count, Address::token(ask.seed, position), &mut drawn);
                None
            }
            Promise::Rejection | Promise::Block => {
                let id = ask.tree.add_law(law.clone());
                chance.draw(&law, count, Address::draft(ask.pass(), position, id), &mut drawn);
                Some(id)
            }
        };
        let proposal = id.map_or(Proposal::Point, Proposal::Drawn);
        let evidence = |token| Evidence::of_law(law.probability(token) as f32, law.probability(token));
        drawn.iter().map(|&token| ask.tree.suggest(parent, token, proposal, ask.source, evidence(token))).collect()
    }
}

impl Drafter for DrawingDrafter {
    fn name(&self) -> &str {
        "drawing"
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        for ask in asks {
            match self.at {
                Growth::Branching => {
                    let mut at = None;
                    while let Some(first) = self.siblings(ask, at, 2, chance).first() {
                        at = Some(*first);
                    }
                }
                Growth::Grafting => {
                    let nodes: Vec<NodeId> = ask.tree.nodes().collect();
                    let mut goes_on = true;
                    for parent in [None].into_iter().chain(nodes.into_iter().map(Some)) {
                        let drawn = if goes_on { self.siblings(ask, parent, 1, chance) } else { Vec::new() };
                        goes_on = drawn.first().is_some_and(|node| ask.tree.token(*node) == 0);
                    }
                }
            }
        }
    }
    fn close(&mut self, _sequence: SequenceId) {}
}

/// A drafter of points: a chain that is a function of the written tokens, and a sibling of its end.
struct PointDrafter(u64);

impl Drafter for PointDrafter {
    fn name(&self) -> &str {
        "points"
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let mut state = ask.tokens.iter().fold(self.0, |state, token| mix(state ^ u64::from(*token)));
            let (mut above, mut last) = (None, None);
            while ask.has_room() {
                state = mix(state);
                let evidence = Evidence::estimate((state >> 40) as f32 / (1 << 24) as f32);
                let node = ask.tree.suggest(last, (state % 3) as Token, Proposal::Point, ask.source, evidence);
                (above, last) = (last, Some(node));
                if ask.tree.depth(node) == 3 {
                    break;
                }
            }
            if ask.has_room() {
                ask.tree.suggest(
                    above,
                    (state >> 8) as Token % 3,
                    Proposal::Point,
                    ask.source,
                    Evidence::estimate(0.1),
                );
            }
        }
    }
    fn close(&mut self, _sequence: SequenceId) {}
}

fn drawing(table: &Table, at: Growth) -> Box<dyn Drafter> {
    Box::new(DrawingDrafter { table: table.clone(), at })
}

fn points(seed: u64) -> Box<dyn Drafter> {
    Box::new(PointDrafter(seed))
}

/// The error of the law with a set of drafters.
type Error<'a> = &'a dyn Fn(&Setup<'_>, usize, &dyn Fn() -> DrafterSet<'static>) -> f64;

/// The largest error of any set of drafters under these promises, with so little room that points are dropped.
fn worst_of_sets(
    chooses: (Choose<'_>, Policy<'_>),
    promises: &[Promise],
    seeds: std::ops::Range<u64>,
    nodes: &[usize],
    error: Error<'_>,
) -> (f64, String) {
    let sampling = Sampling::default();
    let mut worst = (0.0_f64, String::new());
    for seed in seeds {
        // Sparse laws are sometimes point masses, for which a draft model offers a point instead of a draw.
        let target = Table::seeded(3, 2, seed);
        let (first, second) = (Table::seeded(3, 1, seed + 20), Table::dense(3, 2, seed + 30));
        let drafter_sets: [&dyn Fn() -> DrafterSet<'static>; 8] = [
            &|| vec![model(&first, 2, 0.5), lookup()],
            &|| vec![points(seed), model(&second, 2, 0.0)],
            &|| vec![model(&first, 2, 0.0), model(&second, 2, 0.0)],
            &|| vec![drawing(&second, Growth::Branching), points(seed)],
            &|| vec![points(seed), drawing(&first, Growth::Branching)],
            &|| vec![points(seed), drawing(&second, Growth::Grafting)],
            &|| vec![points(seed), drawing(&first, Growth::Grafting), model(&second, 1, 0.0)],
            &|| vec![model(&first, 2, 0.0), points(seed), model(&second, 2, 0.4)],
        ];
        for (i, drafters) in drafter_sets.iter().enumerate() {
            for (promise, nodes) in
                promises.iter().flat_map(|promise| nodes.iter().map(move |nodes| (*promise, *nodes)))
            {
                let (choose, policy) = chooses;
                let setup = Setup { choose, policy, ..Setup::new(&target, &sampling, promise, &PROMPT, 4) };
                let error = error(&setup, nodes, drafters);
                if error > worst.0 {
                    worst = (error, format!("{promise:?} set {i}, {nodes} nodes, seed {seed}"));
                }
            }
        }
    }
    worst
}

/// The error of one pass of the drafters with plain decoding after it.
fn one_pass(setup: &Setup<'_>, nodes: usize, drafters: &dyn Fn() -> DrafterSet<'static>) -> f64 {
    setup.error_of_one_pass(nodes, drafters)
}

#[test]
fn drafters_that_share_a_pass_change_nothing() {
    for (policy, seeds) in POLICIES.into_iter().zip([0..12, 4..10]) {
        let (error, at) = worst_of_sets((&choose, policy), &PROMISES, seeds, &[1, 2, 3, 4, 5], &one_pass);
        assert!(error < TOLERANCE, "{policy:?}, {at}: {error}");
    }
}

#[test]
fn drafters_that_share_several_passes_change_nothing() {
    let passes =
        |setup: &Setup<'_>, nodes, drafters: &dyn Fn() -> DrafterSet<'static>| setup.error(drafters, fixed(nodes));
    for policy in POLICIES {
        let (error, at) = worst_of_sets((&choose, policy), &PROMISES, 4..5, &[2, 3], &passes);
        assert!(error < TOLERANCE, "{policy:?}, {at}: {error}");
    }
}

/// Copies the offers that are wanted, in their order; a law is added when its first offer is copied.
fn copy(candidates: &DraftTree, tree: &mut DraftTree, nodes_max: usize, wanted: impl Fn(&Offer) -> bool) {
    tree.clear();
    let mut copies: Vec<Option<NodeId>> = vec![None; candidates.len()];
    let mut laws: Vec<(LawId, LawId)> = Vec::new();
    for offer in candidates.offers() {
        let parent = match offer.parent.map(|parent| copies[parent.index()]) {
            Some(None) => continue,
            copy => copy.flatten(),
        };
        if !wanted(offer) || (tree.len() >= nodes_max && copies[offer.node.index()].is_none()) {
            continue;
        }
        let proposal = match offer.proposal {
            Proposal::Point => Proposal::Point,
            Proposal::Drawn(old) => {
                let known = laws.iter().find(|(from, _)| *from == old).map(|(_, to)| *to);
                Proposal::Drawn(known.unwrap_or_else(|| {
                    laws.push((old, tree.add_law(candidates.law(old).clone())));
                    laws[laws.len() - 1].1
                }))
            }
        };
        let token = candidates.token(offer.node);
        copies[offer.node.index()] = Some(tree.suggest(parent, token, proposal, offer.source, offer.evidence));
    }
}

fn is_drawn(offer: &Offer) -> bool {
    matches!(offer.proposal, Proposal::Drawn(_))
}

/// A wrong choice: it keeps a point offered before the draws only if a draw agreed with it.
fn points_that_draws_agree_with(choices: &mut [Choice<'_>], _: &Costs, _: PassSoFar) {
    for Choice { candidates, tree, nodes_max, .. } in choices {
        copy(candidates, tree, *nodes_max, |offer| is_drawn(offer) || candidates.offers_of(offer.node).any(is_drawn));
    }
}

/// A wrong choice: it drops draws with a low estimate.
fn draws_by_estimate(choices: &mut [Choice<'_>], _: &Costs, _: PassSoFar) {
    for Choice { candidates, tree, nodes_max, .. } in choices {
        copy(candidates, tree, *nodes_max, |offer| offer.evidence.acceptance >= 0.3);
    }
}

/// A wrong choice: it drops draws that are not worth their rows, like points.
fn draws_by_cost(choices: &mut [Choice<'_>], costs: &Costs, pass: PassSoFar) {
    for choice in choices {
        let (mut weighed, whole) = (DraftTree::new(), choice.candidates.clone());
        let Choice { policy, nodes_max, constraint, experience, .. } = *choice;
        let (promise, candidates, tree) = (Promise::Exact, &mut whole.clone(), &mut weighed);
        choose(&mut [Choice { promise, policy, nodes_max, constraint, experience, candidates, tree }], costs, pass);
        let is_kept = |node| {
            let path = whole.path(node);
            path.iter().try_fold(None, |at, token| weighed.child(at, *token).map(Some)).is_some()
        };
        copy(&whole, choice.tree, nodes_max, |offer| is_kept(offer.node));
    }
}

/// A wrong choice: it leaves a point above a draw at the place of its offer, before draws that decided on that draw.
fn points_too_early(choices: &mut [Choice<'_>], _: &Costs, _: PassSoFar) {
    for Choice { candidates, tree, nodes_max, .. } in choices {
        let mut needed = vec![false; candidates.len()];
        for offer in candidates.offers().iter().filter(|offer| is_drawn(offer)) {
            let mut at = offer.parent;
            while let Some(node) = at {
                needed[node.index()] = true;
                at = candidates.parent(node);
            }
        }
        copy(candidates, tree, *nodes_max, |offer| is_drawn(offer) || needed[offer.node.index()]);
    }
}

#[test]
fn a_point_that_reveals_a_later_draw_is_detected() {
    let choice: (Choose<'_>, _) = (&points_too_early, Policy::Most);
    let (error, at) = worst_of_sets(choice, &[Promise::Rejection], 0..4, &[3, 5], &one_pass);
    assert!(error > DETECTED, "{at}: {error}");
}

#[test]
fn a_point_that_is_kept_only_if_a_draw_agreed_is_detected() {
    let (sampling, table) = (Sampling::default(), Table::constant(&[0.5, 0.5]));
    let setup = |choose| Setup { choose, ..Setup::new(&table, &sampling, Promise::Rejection, &PROMPT, 2) };
    // The lookup proposes 1 after the prompt's 0. With p = q, 0.25 is written instead of 0.5, and then half of it.
    let drafters = || -> DrafterSet<'_> { vec![lookup(), model(&table, 1, 0.0)] };
    assert!((setup(&points_that_draws_agree_with).error_of_one_pass(4, drafters) - 0.125).abs() < 1e-9);
    assert!(setup(&choose).error_of_one_pass(4, drafters) < 1e-9);
    let choice: (Choose<'_>, _) = (&points_that_draws_agree_with, Policy::Most);
    let (error, at) = worst_of_sets(choice, &[Promise::Rejection], 2..6, &[5], &one_pass);
    assert!(error > DETECTED, "{at}: {error}");
}

#[test]
fn a_draw_that_is_dropped_for_its_estimate_or_its_cost_is_detected() {
    let by_estimate: (Choose<'_>, _) = (&draws_by_estimate, Policy::Most);
    for choice in [by_estimate, (&draws_by_cost, Policy::ByCost)] {
        for promise in [Promise::Rejection, Promise::Block] {
            let (error, at) = worst_of_sets(choice, &[promise], 0..2, &[5], &one_pass);
            assert!(error > DETECTED, "{at}: {error}");
        }
    }
}
