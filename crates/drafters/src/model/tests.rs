//! Tests of the draft model's bookkeeping: what it runs, what it has cached, where it stops. (Its law is tested by
//! enumeration in `foretoken_testkit`.)

use super::grow::Leaf;
use super::*;
use crate::trial::Likeliest;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{Address, DraftTree, Evidence, Law, Probes, Promise, Proposal, Sampling};

/// A network in which token t is followed by t + 1, with this logit against zeros, or by t + 2, with a logit of its
/// own; it records its passes.
struct Successor {
    logit: f32,
    second: f32,
    cached: BTreeMap<SequenceId, Vec<Token>>,
    passes: Vec<usize>,
    run: usize,
    room: usize,
    /// The row of this token has no logits.
    without_logits: Option<Token>,
}

impl Successor {
    fn drafter(logit: f32) -> ModelDrafter<Successor> {
        let mut drafter = ModelDrafter::new(Successor {
            logit,
            second: 0.0,
            cached: BTreeMap::new(),
            passes: Vec::new(),
            run: 0,
            room: usize::MAX,
            without_logits: None,
        });
        drafter.open(&Opening::new(SequenceId(1), &[]));
        drafter.open(&Opening::new(SequenceId(2), &[]));
        drafter
    }
}

impl Scorer for Successor {
    fn open(&mut self, opening: &Opening<'_>) {
        self.cached.insert(opening.sequence, Vec::new());
    }
    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        self.passes.push(asks.len());
        for ask in asks {
            let cached = self.cached.get_mut(&ask.sequence).unwrap();
            assert_eq!(cached.len(), ask.start + ask.computed);
            let lacks_logits = |row: &u32| self.without_logits == Some(ask.tokens[*row as usize]);
            if ask.start + ask.tokens.len() > self.room || ask.wanted.iter().all(lacks_logits) {
                ask.wanted.iter().for_each(|_| rows.push(None));
                continue;
            }
            cached.extend(&ask.tokens[ask.computed..]);
            self.run += ask.tokens.len() - ask.computed;
            for row in ask.wanted {
                if lacks_logits(row) {
                    rows.push(None);
                    continue;
                }
                let (token, row) = (ask.tokens[*row as usize] as usize, rows.push_zeros(10));
                (row[(token + 1) % 10], row[(token + 2) % 10]) = (self.logit, self.second);
            }
        }
    }
    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize {
        self.cached.get_mut(&sequence).unwrap().truncate(len);
        len
    }
    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        let cached = self.cached.get_mut(&sequence).unwrap();
        let path: Vec<Token> = rows.iter().map(|row| cached[start + *row as usize]).collect();
        cached.truncate(start);
        cached.extend(path);
    }
    fn close(&mut self, sequence: SequenceId) {
        self.cached.remove(&sequence);
    }
    fn context_max(&self) -> usize {
        12
    }
}

fn draft(drafter: &mut ModelDrafter<Successor>, texts: &[&[Token]], sampling: &Sampling) -> Vec<DraftTree> {
    draft_within(drafter, texts, sampling, Promise::Exact, Limits::nodes(4))
}

fn draft_within(
    drafter: &mut ModelDrafter<Successor>,
    texts: &[&[Token]],
    sampling: &Sampling,
    promise: Promise,
    limits: Limits,
) -> Vec<DraftTree> {
    let mut trees = vec![DraftTree::new(); texts.len()];
    let mut probes = vec![Probes::default(); texts.len()];
    let mut asks: Vec<Ask<'_>> = trees
        .iter_mut()
        .zip(&mut probes)
        .zip(texts)
        .zip(1..)
        .map(|(((tree, probes), tokens), id)| Ask {
            promise,
            ..Ask::new(SequenceId(id), tokens, sampling, limits, tree, probes)
        })
        .collect();
    drafter.draft(&mut asks, &mut Likeliest::default());
    trees
}

#[test]
fn it_catches_up_in_the_pass_of_the_first_step_and_batches_by_depth() {
    let mut drafter = Successor::drafter(5.0);
    let trees = draft(&mut drafter, &[&[1, 2, 3], &[7]], &Sampling::default());
    assert_eq!(trees[0].tokens(), [4, 5, 6, 7]);
    assert_eq!(trees[1].tokens(), [8, 9, 0, 1]);
    assert_eq!(drafter.scorer.passes, [2, 2, 2, 2]);
    // The last token of each chain was never run.
    assert_eq!(drafter.scorer.cached[&SequenceId(1)], [1, 2, 3, 4, 5, 6]);
    // All accepted and a bonus token: only the last drafted token and the bonus are new to it.
    let run = drafter.scorer.run;
    draft(&mut drafter, &[&[1, 2, 3, 4, 5, 6, 7, 2]], &Sampling::default());
    assert_eq!(drafter.scorer.run - run, 2 + 3);
}

#[test]
fn it_goes_back_to_the_first_difference_even_if_another_branch_was_accepted() {
    let mut drafter = Successor::drafter(5.0);
    draft(&mut drafter, &[&[1, 2, 3]], &Sampling::default());
    // The fifth token was another drafter's.
    let trees = draft(&mut drafter, &[&[1, 2, 3, 4, 8, 8]], &Sampling::default());
    assert_eq!(trees[0].tokens(), [9, 0, 1, 2]);
    assert_eq!(drafter.scorer.cached[&SequenceId(1)][..6], [1, 2, 3, 4, 8, 8]);
    // Other tokens, as drafted tokens are to the drafter of a draft model, and asked twice for the same.
    for _ in 0..2 {
        assert_eq!(draft(&mut drafter, &[&[1, 2]], &Sampling::default())[0].tokens(), [3, 4, 5, 6]);
    }
}

#[test]
fn it_stops_after_a_token_of_low_confidence_and_after_an_end_token() {
    let mut drafter = Successor::drafter(1.0);
    drafter.settings.p_min = Some(0.5);
    // e / (e + 9) is below a half: the token is offered nevertheless, and the chain ends. This also holds for greedy
    // requests.
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, ..Sampling::default() };
        assert_eq!(draft(&mut drafter, &[&[3]], &sampling)[0].tokens(), [4]);
        drafter.settings.n_min = Some(3);
        assert_eq!(draft(&mut drafter, &[&[3]], &sampling)[0].tokens(), [4, 5, 6]);
        drafter.settings.n_min = None;
    }
    let mut drafter = Successor::drafter(5.0);
    drafter.settings.p_min = Some(0.5);
    let sampling = Sampling { end_tokens: vec![5], ..Sampling::default() };
    assert_eq!(draft(&mut drafter, &[&[3]], &sampling)[0].tokens(), [4, 5]);
}

#[test]
fn bounds_of_chain_tree_context_and_room_are_kept() {
    let mut drafter = Successor::drafter(5.0);
    let sampling = Sampling::default();
    drafter.depth_max = 2;
    assert_eq!(draft(&mut drafter, &[&[3]], &sampling)[0].len(), 2);
    drafter.depth_max = 9;
    assert_eq!(draft(&mut drafter, &[&[3]], &sampling)[0].len(), 4);
    // A context of 12: the eleventh and twelfth token can be run, so two can be drafted.
    let long: Vec<Token> = (0..11).map(|token| token % 10).collect();
    assert_eq!(draft(&mut drafter, &[&long], &sampling)[0].len(), 2);
    let longer = [&long[..], &[1, 2]].concat();
    assert_eq!(draft(&mut drafter, &[&longer], &sampling)[0].len(), 0);
    // Without room for both, the sequence that fits is drafted for.
    drafter.scorer.room = 3;
    let trees = draft(&mut drafter, &[&[1, 2, 3, 4], &[1, 2]], &sampling);
    assert_eq!((trees[0].len(), trees[1].tokens()), (0, &[3, 4][..]));
    drafter.scorer.room = 9;
    assert_eq!(draft(&mut drafter, &[&[1, 2, 3, 4], &[1, 2]], &sampling)[0].tokens(), [5, 6, 7, 8]);
}

#[test]
fn noise_is_the_targets_under_exact_and_its_own_under_rejection() {
    for (promise, purpose) in [
        (Promise::Exact, foretoken_speculation::Purpose::Token),
        (Promise::Rejection, foretoken_speculation::Purpose::Draft),
    ] {
        let mut drafter = Successor::drafter(5.0);
        let (mut tree, mut probes, sampling) = (DraftTree::new(), Probes::default(), Sampling::default());
        let ask = Ask {
            promise,
            seed: 5,
            ..Ask::new(SequenceId(1), &[1, 2, 3], &sampling, Limits::nodes(2), &mut tree, &mut probes)
        };
        let mut chance = Likeliest::default();
        drafter.draft(&mut [ask], &mut chance);
        let asked: Vec<_> = chance.asked.iter().map(|at| (at.seed, at.position, at.purpose)).collect();
        assert_eq!(asked, [(5, 3, purpose), (5, 4, purpose)]);
        let drawn = |proposal| matches!(proposal, Proposal::Drawn(_));
        assert!(tree.offers().iter().all(|offer| drawn(offer.proposal) == (promise == Promise::Rejection)));
    }
}

#[test]
fn it_branches_where_the_runner_up_is_likely_and_grows_best_first() {
    let mut drafter = Successor::drafter(4.0);
    // The probabilities of e^4, e^3.3 and eight ones are 0.61, 0.30 and 0.01 each.
    drafter.scorer.second = 3.3;
    drafter.settings.p_split = Some(0.1);
    for (promise, temperature) in [Promise::Exact, Promise::Rejection, Promise::Block]
        .into_iter()
        .flat_map(|promise| [(promise, 0.0), (promise, 1.0)])
    {
        let sampling = Sampling { temperature, ..Sampling::default() };
        let mut grown = |nodes, path_min| {
            let limits = Limits { path_min, ..Limits::nodes(nodes) };
            drafter.scorer.passes.clear();
            let tree = draft_within(&mut drafter, &[&[3]], &sampling, promise, limits).remove(0);
            let parents = tree.parents().iter().map(|parent| parent.map_or(-1, |parent| parent.index() as i32));
            let nodes: Vec<(Token, i32)> = tree.tokens().iter().copied().zip(parents).collect();
            (nodes, drafter.scorer.passes.len())
        };
        // 0.61 and its child's 0.37 are more than 0.30.
        assert_eq!(grown(4, 0.0), (vec![(4, -1), (5, -1), (5, 0), (6, 0)], 2));
        // With more room 0.30 is continued in the same pass.
        assert_eq!(grown(6, 0.0), (vec![(4, -1), (5, -1), (5, 0), (6, 0), (6, 1), (7, 1)], 2));
        // A branch ends where its product falls below the limit; room for one more node leaves no choice.
        assert_eq!(grown(9, 0.35).0, [(4, -1), (5, -1), (5, 0), (6, 0), (6, 2), (7, 2)]);
        assert_eq!(grown(3, 0.0), (vec![(4, -1), (5, -1), (5, 0)], 2));
    }
    drafter.settings.p_split = Some(0.5);
    assert_eq!(draft(&mut drafter, &[&[3]], &Sampling::default())[0].tokens(), [4, 5, 6, 7]);
}

#[test]
fn greedy_siblings_are_the_next_most_probable_tokens_that_are_allowed() {
    let mut drafter = Successor::drafter(4.0);
    drafter.scorer.second = 3.3;
    drafter.settings.p_split = Some(0.001);
    let sampling = Sampling { temperature: 0.0, banned_tokens: vec![4, 0], ..Sampling::default() };
    let tree = draft(&mut drafter, &[&[3]], &sampling).remove(0);
    assert_eq!(tree.tokens(), [5, 1, 2, 3], "the most probable first, the lowest of equals, none that is banned");
    // If only one token is possible, there is no sibling.
    let only = Sampling { banned_tokens: (0..10).filter(|token| *token != 7).collect(), ..sampling };
    assert_eq!(draft(&mut drafter, &[&[3]], &only)[0].tokens(), [7, 7, 7, 7]);
}

#[test]
fn a_round_continues_the_leaves_that_are_expected_to_be_continued() {
    let growth = |gains: &[(f32, usize)]| {
        let mut growth = Growth::new(0, None);
        growth.choices = (1.5, 3);
        let leaf = |&(gain, depth): &(f32, usize)| Leaf {
            node: None,
            token: 0,
            parent_row: None,
            row: None,
            depth,
            gain,
            calibrated_gain: 1.0,
        };
        growth.leaves = gains.iter().map(leaf).collect();
        growth
    };
    let taken = |gains: &[(f32, usize)], room| {
        let mut growth = growth(gains);
        let taken: Vec<f32> = growth.take(room, 4).iter().map(|leaf| leaf.gain).collect();
        assert_eq!(taken.len() + growth.leaves.len(), gains.len());
        taken
    };
    // Children are expected at half of each: 0.25 and 0.125 under the first, 0.15 and 0.075 under the second.
    assert_eq!(taken(&[(0.3, 1), (0.5, 1), (0.1, 1)], 1), [0.5]);
    assert_eq!(taken(&[(0.3, 1), (0.5, 1), (0.1, 1)], 2), [0.5, 0.3]);
    assert_eq!(taken(&[(0.2, 1), (0.9, 1), (0.1, 1)], 3), [0.9]);
    assert_eq!(taken(&[(0.2, 1), (0.9, 1), (0.1, 1)], 4), [0.9, 0.2]);
    // If the first may have only one more, the others get the room. Of ties the earlier goes first.
    assert_eq!(taken(&[(0.2, 1), (0.9, 3), (0.2, 2)], 3), [0.9, 0.2, 0.2]);
    assert_eq!(taken(&[(0.2, 1)], 0), [0.0_f32; 0]);
    assert_eq!(taken(&[(0.0, 1)], 1), [0.0]);
}

#[test]
fn the_rows_of_an_accepted_branch_are_compacted() {
    let mut drafter = Successor::drafter(4.0);
    drafter.scorer.second = 3.3;
    drafter.settings.p_split = Some(0.1);
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let limits = Limits::nodes(8);
    draft_within(&mut drafter, &[&[3]], &sampling, Promise::Exact, limits);
    assert_eq!(drafter.scorer.cached[&SequenceId(1)], [3, 4, 5, 5]);
    // The second branch was accepted, 5 and then 6, and 9 written.
    let run = drafter.scorer.run;
    let trees = draft_within(&mut drafter, &[&[3, 5, 6, 9]], &sampling, Promise::Exact, Limits::nodes(1));
    assert_eq!(trees[0].tokens(), [0]);
    assert_eq!(drafter.scorer.cached[&SequenceId(1)], [3, 5, 6, 9]);
    assert_eq!(drafter.scorer.run - run, 2, "5 had been run, 6 had not");
}

#[test]
fn a_branch_ends_where_a_row_has_no_logits_and_others_go_on() {
    let mut drafter = Successor::drafter(4.0);
    drafter.scorer.second = 3.3;
    drafter.settings.p_split = Some(0.1);
    let mut grown = |without_logits, nodes| {
        drafter.scorer.without_logits = without_logits;
        let limits = Limits::nodes(nodes);
        let tree = draft_within(&mut drafter, &[&[3]], &Sampling::default(), Promise::Exact, limits).remove(0);
        let parents = tree.parents().iter().map(|parent| parent.map_or(-1, |parent| parent.index() as i32));
        tree.tokens().iter().copied().zip(parents).collect::<Vec<(Token, i32)>>()
    };
    assert_eq!(grown(None, 6), [(4, -1), (5, -1), (5, 0), (6, 0), (6, 1), (7, 1)]);
    // In one pass: one of two leaves has no row. In a pass of its own: all its rows are missing.
    assert_eq!(grown(Some(4), 6)[..4], [(4, -1), (5, -1), (6, 1), (7, 1)]);
    assert_eq!(grown(Some(5), 6)[..4], [(4, -1), (5, -1), (5, 0), (6, 0)]);
    assert_eq!(grown(Some(5), 4), [(4, -1), (5, -1), (5, 0), (6, 0)]);
    assert_eq!(
        grown(Some(4), 4),
        [(4, -1), (5, -1), (6, 1), (7, 1)],
        "the more probable leaf alone was asked for first"
    );
    assert_eq!(grown(Some(3), 4), [], "not even after the root");
    assert_eq!(grown(None, 4), [(4, -1), (5, -1), (5, 0), (6, 0)]);
}

/// Draws under every promise, as a drafter with settings of its own may.
struct AlwaysDraws;

impl Drafter for AlwaysDraws {
    fn name(&self) -> &str {
        "always draws"
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        for ask in asks {
            let law = Law::from_pairs([(1, 0.5), (2, 0.5)]);
            let token = chance.pick(&law, Address::token(ask.seed, ask.position()));
            ask.tree.suggest(None, token, Proposal::Point, ask.source, Evidence::estimate(0.5));
        }
    }
    fn close(&mut self, _sequence: SequenceId) {}
}

#[test]
fn an_inner_drafter_has_the_targets_noise_under_exact_alone() {
    for promise in [Promise::Exact, Promise::Rejection, Promise::Block] {
        for seed in [0, 5, u64::MAX] {
            let mut drafter = Successor::drafter(5.0);
            drafter.close(SequenceId(1));
            drafter.close(SequenceId(2));
            let mut drafter = drafter.with_inner(Box::new(AlwaysDraws));
            drafter.open(&Opening::new(SequenceId(1), &[]));
            let (mut tree, mut probes, sampling) = (DraftTree::new(), Probes::default(), Sampling::default());
            let ask = Ask {
                promise,
                seed,
                ..Ask::new(SequenceId(1), &[1, 2, 3], &sampling, Limits::nodes(3), &mut tree, &mut probes)
            };
            let mut chance = Likeliest::default();
            drafter.draft(&mut [ask], &mut chance);
            let races = chance.asked.iter().filter(|at| at.purpose == foretoken_speculation::Purpose::Token);
            let (own, other): (Vec<&Address>, Vec<_>) = races.partition(|at| at.seed == seed);
            assert_eq!(
                (own.is_empty(), other.is_empty()),
                match promise {
                    Promise::Exact => (false, true),
                    _ => (true, false),
                }
            );
        }
    }
}
