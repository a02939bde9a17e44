//! Several drafters, one tree: candidates, choosing and verification together, and the mistakes that choosing invites.

use foretoken_speculation::{
    Address, Ask, Chance, Choice, Context, Costs, DraftTree, Drafter, Evidence, LawId, NodeId, Offer, PassSoFar,
    Policy, Promise, Proposal, Sampling, SequenceId, Token, choose,
};
use foretoken_testkit::table::{Table, mix};

use crate::harness::{Choose, Setup, Team};
use crate::{PROMISES, PROMPT, TOLERANCE, fixed, lookup, model};

/// An error that no rounding makes.
const SEEN: f64 = 1e-3;

/// By as many as are allowed, and by what each costs.
const POLICIES: [Policy<'_>; 2] = [Policy::Most, Policy::ByCost];

/// Where a [`Grower`] grows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Where {
    /// Two siblings under the root, then two under the first of them, and so on.
    Branching,
    /// Under nodes that are there already, whoever made them; under a later one only after an earlier draw of token 0.
    Grafting,
}

/// A drafter that draws (under *exact*: races) from a table as long as there is room, elsewhere than a model does.
struct Grower {
    table: Table,
    at: Where,
}

impl Grower {
    /// Draws up to `count` siblings, as far as there is room for all of them, and says what they are.
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

impl Drafter for Grower {
    fn name(&self) -> &str {
        "grower"
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        for ask in asks {
            match self.at {
                Where::Branching => {
                    let mut at = None;
                    while let Some(first) = self.siblings(ask, at, 2, chance).first() {
                        at = Some(*first);
                    }
                }
                Where::Grafting => {
                    let there: Vec<NodeId> = ask.tree.nodes().collect();
                    let mut goes_on = true;
                    for parent in [None].into_iter().chain(there.into_iter().map(Some)) {
                        let drawn = if goes_on { self.siblings(ask, parent, 1, chance) } else { Vec::new() };
                        goes_on = drawn.first().is_some_and(|node| ask.tree.token(*node) == 0);
                    }
                }
            }
        }
    }
    fn close(&mut self, _sequence: SequenceId) {}
}

/// A drafter of points: a chain that is a function of what was written, and a sibling of its end.
struct Guesser(u64);

impl Drafter for Guesser {
    fn name(&self) -> &str {
        "guesser"
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

fn grower(table: &Table, at: Where) -> Box<dyn Drafter> {
    Box::new(Grower { table: table.clone(), at })
}

fn guesser(seed: u64) -> Box<dyn Drafter> {
    Box::new(Guesser(seed))
}

/// How far off a team is.
type Error<'a> = &'a dyn Fn(&Setup<'_>, usize, &dyn Fn() -> Team<'static>) -> f64;

/// The largest error of any team under these promises, with so little room that points are dropped.
fn worst_of_teams(
    chooses: (Choose<'_>, Policy<'_>),
    promises: &[Promise],
    seeds: std::ops::Range<u64>,
    nodes: &[usize],
    error: Error<'_>,
) -> (f64, String) {
    let sampling = Sampling::default();
    let mut worst = (0.0_f64, String::new());
    for seed in seeds {
        // Sparse laws are sometimes point masses: a model then says a point where it mostly draws.
        let target = Table::seeded(3, 2, seed);
        let (first, second) = (Table::seeded(3, 1, seed + 20), Table::dense(3, 2, seed + 30));
        let teams: [&dyn Fn() -> Team<'static>; 8] = [
            &|| vec![model(&first, 2, 0.5), lookup()],
            &|| vec![guesser(seed), model(&second, 2, 0.0)],
            &|| vec![model(&first, 2, 0.0), model(&second, 2, 0.0)],
            &|| vec![grower(&second, Where::Branching), guesser(seed)],
            &|| vec![guesser(seed), grower(&first, Where::Branching)],
            &|| vec![guesser(seed), grower(&second, Where::Grafting)],
            &|| vec![guesser(seed), grower(&first, Where::Grafting), model(&second, 1, 0.0)],
            &|| vec![model(&first, 2, 0.0), guesser(seed), model(&second, 2, 0.4)],
        ];
        for (i, team) in teams.iter().enumerate() {
            for (promise, nodes) in
                promises.iter().flat_map(|promise| nodes.iter().map(move |nodes| (*promise, *nodes)))
            {
                let (choose, policy) = chooses;
                let setup = Setup { choose, policy, ..Setup::new(&target, &sampling, promise, &PROMPT, 4) };
                let error = error(&setup, nodes, team);
                if error > worst.0 {
                    worst = (error, format!("{promise:?} team {i}, {nodes} nodes, seed {seed}"));
                }
            }
        }
    }
    worst
}

/// One pass of the team, and plain decoding behind it.
fn one_pass(setup: &Setup<'_>, nodes: usize, team: &dyn Fn() -> Team<'static>) -> f64 {
    setup.error_of_one_pass(nodes, team)
}

#[test]
fn teams_that_share_a_pass_change_nothing() {
    for (policy, seeds) in POLICIES.into_iter().zip([0..12, 4..10]) {
        let (error, at) = worst_of_teams((&choose, policy), &PROMISES, seeds, &[1, 2, 3, 4, 5], &one_pass);
        assert!(error < TOLERANCE, "{policy:?}, {at}: {error}");
    }
}

#[test]
fn teams_that_share_several_passes_change_nothing() {
    let passes = |setup: &Setup<'_>, nodes, team: &dyn Fn() -> Team<'static>| setup.error(team, fixed(nodes));
    for policy in POLICIES {
        let (error, at) = worst_of_teams((&choose, policy), &PROMISES, 4..5, &[2, 3], &passes);
        assert!(error < TOLERANCE, "{policy:?}, {at}: {error}");
    }
}

/// Copies the offers that are wanted, in their order; a law is added where its first offer is copied.
fn copy(candidates: &DraftTree, tree: &mut DraftTree, nodes_max: usize, wanted: impl Fn(&Offer) -> bool) {
    tree.clear();
    let mut places: Vec<Option<NodeId>> = vec![None; candidates.len()];
    let mut laws: Vec<(LawId, LawId)> = Vec::new();
    for offer in candidates.offers() {
        let parent = match offer.parent.map(|parent| places[parent.index()]) {
            Some(None) => continue,
            place => place.flatten(),
        };
        if !wanted(offer) || (tree.len() >= nodes_max && places[offer.node.index()].is_none()) {
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
        places[offer.node.index()] = Some(tree.suggest(parent, token, proposal, offer.source, offer.evidence));
    }
}

fn is_drawn(offer: &Offer) -> bool {
    matches!(offer.proposal, Proposal::Drawn(_))
}

/// A choice that keeps a point offered before the draws only if a draw agreed with it.
fn agreeing(choices: &mut [Choice<'_>], _: &Costs, _: PassSoFar) {
    for Choice { candidates, tree, nodes_max, .. } in choices {
        copy(candidates, tree, *nodes_max, |offer| is_drawn(offer) || candidates.offers_of(offer.node).any(is_drawn));
    }
}

/// A choice that drops a draw of which its drafter thinks little.
fn choosy(choices: &mut [Choice<'_>], _: &Costs, _: PassSoFar) {
    for Choice { candidates, tree, nodes_max, .. } in choices {
        copy(candidates, tree, *nodes_max, |offer| offer.evidence.acceptance >= 0.3);
    }
}

/// A choice that weighs draws like everything else, and drops those that are not worth their rows.
fn weighing_draws(choices: &mut [Choice<'_>], costs: &Costs, pass: PassSoFar) {
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

/// A choice that leaves a point that a draw hangs on where it was offered, before draws that decided on that draw.
fn early(choices: &mut [Choice<'_>], _: &Costs, _: PassSoFar) {
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
fn a_point_that_tells_of_a_later_draw_is_seen() {
    let (error, at) = worst_of_teams((&early, Policy::Most), &[Promise::Rejection], 0..4, &[3, 5], &one_pass);
    assert!(error > SEEN, "{at}: {error}");
}

#[test]
fn a_point_that_stays_only_if_a_draw_agreed_is_seen() {
    let (sampling, table) = (Sampling::default(), Table::constant(&[0.5, 0.5]));
    let setup = |choose| Setup { choose, ..Setup::new(&table, &sampling, Promise::Rejection, &PROMPT, 2) };
    // The lookup says 1 after the prompt's 0. With p = q, 0.25 is written where 0.5 is due, and then half of it.
    let team = || -> Team<'_> { vec![lookup(), model(&table, 1, 0.0)] };
    assert!((setup(&agreeing).error_of_one_pass(4, team) - 0.125).abs() < 1e-9);
    assert!(setup(&choose).error_of_one_pass(4, team) < 1e-9);
    let (error, at) = worst_of_teams((&agreeing, Policy::Most), &[Promise::Rejection], 2..6, &[5], &one_pass);
    assert!(error > SEEN, "{at}: {error}");
}

#[test]
fn a_draw_that_is_dropped_for_its_evidence_or_its_cost_is_seen() {
    let choosy: (Choose<'_>, _) = (&choosy, Policy::Most);
    for chooses in [choosy, (&weighing_draws, Policy::ByCost)] {
        for promise in [Promise::Rejection, Promise::Block] {
            let (error, at) = worst_of_teams(chooses, &[promise], 0..2, &[5], &one_pass);
            assert!(error > SEEN, "{at}: {error}");
        }
    }
}
