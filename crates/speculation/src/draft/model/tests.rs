//! The draft model's bookkeeping: what it runs, what it has cached, where it stops. (Its law is proved by enumeration,
//! in the workshop's tests.)

use super::*;
use crate::budget::Limits;
use crate::{Address, DraftTree, Law, Probes, Promise, Proposal, Sampling};

/// Says that token t is followed by t + 1, with this logit against zeros; notes what it was asked.
struct Successor {
    logit: f32,
    cached: BTreeMap<SequenceId, Vec<Token>>,
    passes: Vec<usize>,
    run: usize,
    room: usize,
}

impl Successor {
    fn drafter(logit: f32) -> ModelDrafter<Successor> {
        let mut drafter = ModelDrafter::new(Successor {
            logit,
            cached: BTreeMap::new(),
            passes: Vec::new(),
            run: 0,
            room: usize::MAX,
        });
        drafter.open(SequenceId(1), &[], Tenant(0));
        drafter.open(SequenceId(2), &[], Tenant(0));
        drafter
    }
}

impl Scorer for Successor {
    fn open(&mut self, sequence: SequenceId) {
        self.cached.insert(sequence, Vec::new());
    }
    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut Rows) {
        self.passes.push(asks.len());
        for ask in asks {
            let cached = self.cached.get_mut(&ask.sequence).unwrap();
            assert_eq!(cached.len(), ask.start + ask.computed);
            if ask.start + ask.tokens.len() > self.room {
                ask.wanted.iter().for_each(|_| rows.push(None));
                continue;
            }
            cached.extend(&ask.tokens[ask.computed..]);
            self.run += ask.tokens.len() - ask.computed;
            for row in ask.wanted {
                rows.push_zeros(10)[(ask.tokens[*row as usize] as usize + 1) % 10] = self.logit;
            }
        }
    }
    fn keep(&mut self, sequence: SequenceId, len: usize) {
        self.cached.get_mut(&sequence).unwrap().truncate(len);
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

/// Always the most probable token.
struct Likeliest(Vec<Address>);

impl Chance for Likeliest {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        assert_eq!(count, 1);
        self.0.push(address);
        let best = law.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        out.clear();
        out.push(best.0);
    }
    fn coin(&mut self, _probability: f64, address: Address) -> bool {
        panic!("a drafter tosses no coin, at {address:?}");
    }
}

fn draft(drafter: &mut ModelDrafter<Successor>, texts: &[&[Token]], sampling: &Sampling) -> Vec<DraftTree> {
    let mut trees = vec![DraftTree::new(); texts.len()];
    let mut probes = vec![Probes::default(); texts.len()];
    let mut asks: Vec<Ask<'_>> = trees
        .iter_mut()
        .zip(&mut probes)
        .zip(texts)
        .zip(1..)
        .map(|(((tree, probes), tokens), id)| Ask {
            sequence: SequenceId(id),
            tokens,
            prompt_len: 1,
            sampling,
            promise: Promise::Exact,
            seed: 0,
            limits: Limits::nodes(4),
            settings: DraftSettings::default(),
            tree,
            probes,
            source: 0,
        })
        .collect();
    drafter.draft(&mut asks, &mut Likeliest(Vec::new()));
    trees
}

#[test]
fn it_catches_up_in_the_pass_of_the_first_step_and_batches_by_depth() {
    let mut drafter = Successor::drafter(5.0);
    let trees = draft(&mut drafter, &[&[1, 2, 3], &[7]], &Sampling::default());
    assert_eq!(trees[0].tokens(), [4, 5, 6, 7]);
    assert_eq!(trees[1].tokens(), [8, 9, 0, 1]);
    assert_eq!(drafter.scorer.passes, [2, 2, 2, 2]);
    // The last guess of each chain was never run.
    assert_eq!(drafter.scorer.cached[&SequenceId(1)], [1, 2, 3, 4, 5, 6]);
    // All accepted and a bonus: only the last guess and the bonus are new to it.
    drafter.keep(SequenceId(1), 7);
    let run = drafter.scorer.run;
    draft(&mut drafter, &[&[1, 2, 3, 4, 5, 6, 7, 2]], &Sampling::default());
    assert_eq!(drafter.scorer.run - run, 2 + 3);
}

#[test]
fn it_goes_back_to_the_first_difference_even_if_another_branch_won() {
    let mut drafter = Successor::drafter(5.0);
    draft(&mut drafter, &[&[1, 2, 3]], &Sampling::default());
    // Five tokens are kept, but the fifth was another drafter's.
    drafter.keep(SequenceId(1), 5);
    let trees = draft(&mut drafter, &[&[1, 2, 3, 4, 8, 8]], &Sampling::default());
    assert_eq!(trees[0].tokens(), [9, 0, 1, 2]);
    assert_eq!(drafter.scorer.cached[&SequenceId(1)][..6], [1, 2, 3, 4, 8, 8]);
    // Set back without having written anything, and asked twice for the same.
    drafter.keep(SequenceId(1), 2);
    assert_eq!(drafter.scorer.cached[&SequenceId(1)], [1, 2]);
    for _ in 0..2 {
        assert_eq!(draft(&mut drafter, &[&[1, 2]], &Sampling::default())[0].tokens(), [3, 4, 5, 6]);
    }
}

#[test]
fn it_stops_after_an_unsure_token_and_after_an_end_token() {
    let mut drafter = Successor::drafter(1.0);
    drafter.settings.p_min = Some(0.5);
    // e / (e + 9) is below a half: the token is offered all the same, and the chain ends. Also under greedy.
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
    drafter.n_max = 2;
    assert_eq!(draft(&mut drafter, &[&[3]], &sampling)[0].len(), 2);
    drafter.n_max = 9;
    assert_eq!(draft(&mut drafter, &[&[3]], &sampling)[0].len(), 4);
    // A context of 12: the eleventh and twelfth token can be run, so two can be guessed.
    let long: Vec<Token> = (0..11).map(|token| token % 10).collect();
    assert_eq!(draft(&mut drafter, &[&long], &sampling)[0].len(), 2);
    let longer = [&long[..], &[1, 2]].concat();
    assert_eq!(draft(&mut drafter, &[&longer], &sampling)[0].len(), 0);
    // No room: whoever fits is drafted for.
    drafter.scorer.room = 3;
    let trees = draft(&mut drafter, &[&[1, 2, 3, 4], &[1, 2]], &sampling);
    assert_eq!((trees[0].len(), trees[1].tokens()), (0, &[3, 4][..]));
    drafter.scorer.room = 9;
    assert_eq!(draft(&mut drafter, &[&[1, 2, 3, 4], &[1, 2]], &sampling)[0].tokens(), [5, 6, 7, 8]);
}

#[test]
fn noise_is_the_targets_under_exact_and_its_own_under_rejection() {
    for (promise, purpose) in [(Promise::Exact, crate::Purpose::Token), (Promise::Rejection, crate::Purpose::Draft)] {
        let mut drafter = Successor::drafter(5.0);
        let (mut tree, sampling) = (DraftTree::new(), Sampling::default());
        let ask = Ask {
            sequence: SequenceId(1),
            tokens: &[1, 2, 3],
            prompt_len: 1,
            sampling: &sampling,
            promise,
            seed: 5,
            settings: DraftSettings::default(),
            limits: Limits::nodes(2),
            tree: &mut tree,
            probes: &mut Probes::default(),
            source: 0,
        };
        let mut chance = Likeliest(Vec::new());
        drafter.draft(&mut [ask], &mut chance);
        let asked: Vec<_> = chance.0.iter().map(|at| (at.seed, at.position, at.purpose)).collect();
        assert_eq!(asked, [(5, 3, purpose), (5, 4, purpose)]);
        let drawn = |proposal| matches!(proposal, Proposal::Drawn(_));
        assert!(tree.offers().iter().all(|offer| drawn(offer.proposal) == (promise == Promise::Rejection)));
    }
}
