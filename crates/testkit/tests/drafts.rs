//! Tests of the draft model over several passes, with tables whose rows depend on all tokens before them: a row that is
//! computed ahead, kept or moved to the wrong position changes the draft.

use foretoken_drafters::{LogitRows, ModelDrafter, ScoreAsk, Scorer, SharedScorer, SuffixDrafter};
use foretoken_engine::Race;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{
    Address, Ask, Chance, DraftSettings, DraftTree, Drafter, Law, NodeId, Offer, Opening, Pass, Probes, Promise,
    Sampling, SequenceId, StepOutput, Token, Verdict, verify,
};
use foretoken_testkit::table::{Table, TableScorer, mix};
use foretoken_testkit::vocabulary::translator;

const PROMISES: [Promise; 3] = [Promise::Exact, Promise::Rejection, Promise::Block];
const VOCABULARY: usize = 6;

type Draft = ModelDrafter<TableScorer>;

/// A table whose rows depend on all tokens, mostly on the last. The lower the `noise`, the more similar are tables of
/// this kind.
fn table(seed: u64, noise: f32) -> Table {
    Table::new(VOCABULARY, move |tokens| {
        let last = u64::from(tokens[tokens.len() - 1]);
        let all = tokens.iter().fold(seed, |state, &token| mix(state ^ u64::from(token)));
        let unit = |state: u64| (state >> 40) as f32 / (1 << 24) as f32;
        let logit = |token| 5.0 * unit(mix(last * 100 + token)) + noise * unit(mix(all ^ token));
        (0..VOCABULARY as u64).map(logit).collect()
    })
}

/// A table that almost certainly repeats 0, 1, 2, 3.
fn cycle() -> Table {
    Table::new(VOCABULARY, |tokens| {
        let next = (tokens[tokens.len() - 1] + 1) % 4;
        (0..VOCABULARY as Token).map(|token| if token == next { 9.0 } else { 0.1 * token as f32 }).collect()
    })
}

fn drafter(table: &Table, p_split: f32) -> Draft {
    let mut drafter = ModelDrafter::new(TableScorer::new(table.clone()));
    drafter.settings.p_split = Some(p_split);
    drafter
}

/// The settings that are the same in all passes.
struct Scenario<'a> {
    target: &'a Table,
    sampling: Sampling,
    promise: Promise,
    seed: u64,
    nodes_max: usize,
}

impl<'a> Scenario<'a> {
    fn new(target: &'a Table, promise: Promise, seed: u64) -> Self {
        Scenario { target, sampling: Sampling::default(), promise, seed, nodes_max: 7 }
    }

    /// The drafter's trees after these token lists, each a sequence.
    fn drafts(&self, drafter: &mut dyn Drafter, texts: &[&[Token]]) -> Vec<DraftTree> {
        self.drafts_by(drafter, texts, &mut Race)
    }

    fn drafts_by(&self, drafter: &mut dyn Drafter, texts: &[&[Token]], chance: &mut dyn Chance) -> Vec<DraftTree> {
        let mut trees = vec![DraftTree::new(); texts.len()];
        let mut probes = vec![Probes::default(); texts.len()];
        let mut asks: Vec<Ask<'_>> = trees
            .iter_mut()
            .zip(&mut probes)
            .zip(texts)
            .enumerate()
            .map(|(i, ((tree, probes), tokens))| Ask {
                sequence: SequenceId(i as u64),
                tokens,
                prompt_len: 1,
                written_len: tokens.len(),
                constraint: None,
                sampling: &self.sampling,
                settings: DraftSettings::default(),
                promise: self.promise,
                seed: self.seed,
                outlook: None,
                request: 0,
                limits: Limits::nodes(self.nodes_max),
                tree,
                probes,
                source: 0,
            })
            .collect();
        drafter.draft(&mut asks, chance);
        trees
    }

    fn draft(&self, drafter: &mut dyn Drafter, tokens: &[Token]) -> DraftTree {
        self.drafts(drafter, &[tokens]).remove(0)
    }

    fn verify(&self, tree: &DraftTree, tokens: &[Token]) -> Verdict {
        let mut law = |node: Option<NodeId>| {
            let path = node.map_or(Vec::new(), |node| tree.path(node));
            self.target.law(&self.sampling, tokens, 1, &path)
        };
        let pass = Pass { seed: self.seed, request: 0, start: tokens.len() as u64 };
        verify(tree, &mut law, self.promise, pass, &mut Race)
    }
}

/// Lets a drafter observe a pass, as the engine does.
fn observe(drafter: &mut dyn Drafter, before: usize, tree: &DraftTree, verdict: &Verdict, tokens: &[Token]) {
    let emitted = &tokens[before..];
    let (sequence, path) = (SequenceId(0), &verdict.path[..]);
    drafter.observe(&[StepOutput { sequence, tokens, emitted, tree, path, probes: &[], hidden_from: 0, hidden: &[] }]);
}

/// A tree's tokens and offers, which are all of it except its laws.
fn offers(tree: &DraftTree) -> (Vec<Token>, Vec<Offer>) {
    (tree.tokens().to_vec(), tree.offers().to_vec())
}

#[test]
fn a_draft_is_the_same_with_any_inner_drafter_and_takes_no_more_passes() {
    let mut fewer = 0;
    for seed in 0..6 {
        let (target, draft, innermost) = (table(seed, 0.5), table(seed + 50, 0.5), table(seed + 90, 0.8));
        for promise in PROMISES {
            for p_split in [1.0, 0.15] {
                let within =
                    || Box::new(drafter(&innermost, 0.3).with_inner(Box::new(SuffixDrafter::lookup(1, 3, 10))));
                let mut drafters: [Draft; 3] = [
                    drafter(&draft, p_split),
                    drafter(&draft, p_split).with_inner(Box::new(SuffixDrafter::lookup(1, 3, 10))),
                    drafter(&draft, p_split).with_inner(within()),
                ];
                assert_eq!(
                    drafters.each_ref().map(|drafter| drafter.name()),
                    ["draft", "draft:lookup", "draft:draft:lookup"]
                );
                let scenario = Scenario::new(&target, promise, seed);
                let mut tokens: Vec<Token> = vec![1, 2, 3, 1, 2];
                drafters.iter_mut().for_each(|drafter| drafter.open(&Opening::new(SequenceId(0), &tokens)));
                while tokens.len() < 60 {
                    let trees = drafters.each_mut().map(|drafter| scenario.draft(drafter, &tokens));
                    assert_eq!(offers(&trees[0]), offers(&trees[1]), "{promise:?} split {p_split}, seed {seed}");
                    assert_eq!(offers(&trees[0]), offers(&trees[2]), "{promise:?} split {p_split}, seed {seed}");
                    let (verdict, before) = (scenario.verify(&trees[0], &tokens), tokens.len());
                    tokens.extend(&verdict.tokens);
                    drafters.iter_mut().for_each(|drafter| observe(drafter, before, &trees[0], &verdict, &tokens));
                }
                let passes = drafters.each_ref().map(|drafter| drafter.work().unwrap().passes);
                assert!(passes[1] <= passes[0] && passes[2] <= passes[0], "{promise:?} {p_split}: {passes:?}");
                fewer += u64::from(passes[1] < passes[0]) + u64::from(passes[2] < passes[0]);
                drafters.iter_mut().for_each(|drafter| drafter.close(SequenceId(0)));
            }
        }
    }
    assert!(fewer > 60, "an inner drafter saved passes in {fewer} of 72 sequences");
}

#[test]
fn over_a_repeating_text_a_draft_with_a_lookup_takes_one_pass() {
    let target = cycle();
    let tokens: Vec<Token> = (0..20).map(|i| i % 4).collect();
    for (promise, temperature) in [(Promise::Exact, 1.0), (Promise::Rejection, 1.0), (Promise::Block, 0.0)] {
        let scenario = Scenario {
            sampling: Sampling { temperature, ..Sampling::default() },
            ..Scenario::new(&target, promise, 3)
        };
        let mut drafters =
            [drafter(&target, 1.0), drafter(&target, 1.0).with_inner(Box::new(SuffixDrafter::lookup(1, 3, 10)))];
        let trees = drafters.each_mut().map(|drafter| {
            drafter.open(&Opening::new(SequenceId(0), &tokens));
            scenario.draft(drafter, &tokens)
        });
        assert_eq!(offers(&trees[0]), offers(&trees[1]));
        assert_eq!(trees[1].tokens(), [0, 1, 2, 3, 0]);
        assert_eq!(drafters.map(|drafter| drafter.work().unwrap().passes), [5, 1], "{promise:?}");
    }
}

#[test]
fn the_inner_drafter_is_asked_again_where_it_went_wrong() {
    // The table has a period of four, with one token at which it jumps to another phase.
    let table = Table::new(VOCABULARY, |tokens| {
        let next = if tokens.len() == 24 { 2 } else { (tokens[tokens.len() - 1] + 1) % 4 };
        (0..VOCABULARY as Token).map(|token| if token == next { 9.0 } else { 0.0 }).collect()
    });
    let tokens: Vec<Token> = (0..20).map(|i| i % 4).collect();
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let scenario = Scenario { sampling, nodes_max: 12, ..Scenario::new(&table, Promise::Exact, 3) };
    let mut drafters =
        [drafter(&table, 1.0), drafter(&table, 1.0).with_inner(Box::new(SuffixDrafter::lookup(1, 3, 10)))];
    let trees = drafters.each_mut().map(|drafter| {
        drafter.depth_max = 12;
        drafter.open(&Opening::new(SequenceId(0), &tokens));
        scenario.draft(drafter, &tokens)
    });
    assert_eq!(offers(&trees[0]), offers(&trees[1]));
    assert_eq!(trees[1].tokens(), [0, 1, 2, 3, 2, 3, 0, 1, 2, 3, 0, 1]);
    assert_eq!(drafters.map(|drafter| drafter.work().unwrap().passes), [12, 2]);
}

#[test]
fn accepted_rows_are_not_run_again_whichever_branch_was_accepted() {
    for p_split in [1.0, 0.1] {
        let (target, draft) = (table(7, 0.5), table(8, 0.5));
        let mut drafter = drafter(&draft, p_split);
        let scenario = Scenario::new(&target, Promise::Exact, 5);
        let mut tokens: Vec<Token> = vec![1];
        drafter.open(&Opening::new(SequenceId(0), &tokens));
        let (mut off_the_main_chain, mut kept) = (0, 0);
        while tokens.len() < 200 {
            let tree = scenario.draft(&mut drafter, &tokens);
            let (verdict, before) = (scenario.verify(&tree, &tokens), tokens.len());
            let cached = drafter.scorer.cached(SequenceId(0)).to_vec();
            tokens.extend(&verdict.tokens);
            observe(&mut drafter, before, &tree, &verdict, &tokens);
            let main = tree.main_chain();
            off_the_main_chain += usize::from(!main.starts_with(&verdict.path));
            // A draft of one node runs the accepted tokens that were not run before, and the pending token's row.
            let (run, next) =
                (drafter.scorer.counts.1, Scenario { nodes_max: 1, ..Scenario::new(&target, Promise::Exact, 5) });
            next.draft(&mut drafter, &tokens);
            let (run, was_run) = (drafter.scorer.counts.1 - run, |node: &NodeId| {
                // Every node above an offered one was run.
                tree.parents().contains(&Some(*node))
            });
            let first_new = verdict.path.iter().position(|node| !was_run(node)).unwrap_or(verdict.path.len());
            assert!(
                run <= verdict.path.len() - first_new + 1,
                "{run} rows, path {:?}, cached {cached:?}",
                verdict.path
            );
            kept += first_new;
        }
        assert!(kept > 20, "{kept} rows were kept");
        assert_eq!(off_the_main_chain > 5, p_split < 1.0, "{off_the_main_chain} times another branch was accepted");
    }
}

#[test]
fn a_drafter_that_went_back_drafts_like_a_new_one() {
    for seed in 0..20 {
        let (target, draft) = (table(seed, 0.5), table(seed + 50, 0.7));
        let promise = PROMISES[seed as usize % 3];
        let scenario = Scenario::new(&target, promise, seed);
        let make = || drafter(&draft, 0.15).with_inner(Box::new(drafter(&target, 0.3)));
        let mut drafter = make();
        let mut tokens: Vec<Token> = vec![2, 0];
        drafter.open(&Opening::new(SequenceId(0), &tokens));
        for step in 0..40u64 {
            let tree = scenario.draft(&mut drafter, &tokens);
            let mut fresh = make();
            fresh.open(&Opening::new(SequenceId(0), &tokens[..2]));
            let expected = scenario.draft(&mut fresh, &tokens);
            assert_eq!(offers(&tree), offers(&expected), "{promise:?} seed {seed}, step {step}");
            let state = mix(seed * 1000 + step);
            if state.is_multiple_of(3) {
                // The text goes back to any length, then another token follows.
                tokens.truncate(2 + (state >> 8) as usize % (tokens.len() - 1));
                tokens.push((state >> 30) as Token % VOCABULARY as Token);
            } else {
                let (verdict, before) = (scenario.verify(&tree, &tokens), tokens.len());
                tokens.extend(&verdict.tokens);
                observe(&mut drafter, before, &tree, &verdict, &tokens);
            }
        }
    }
}

#[test]
fn trees_of_several_sequences_share_their_passes() {
    let draft = table(4, 0.5);
    let scenario = Scenario::new(&draft, Promise::Exact, 2);
    let texts: [&[Token]; 3] = [&[1, 2, 3], &[4], &[0, 5, 5, 2]];
    let alone = texts.map(|text| {
        let mut drafter = drafter(&draft, 0.1);
        drafter.open(&Opening::new(SequenceId(0), &[]));
        (scenario.draft(&mut drafter, text), drafter.work().unwrap().passes)
    });
    let mut drafter = drafter(&draft, 0.1);
    (0..3).for_each(|id| drafter.open(&Opening::new(SequenceId(id), &[])));
    let together = scenario.drafts(&mut drafter, &texts);
    for (tree, (expected, _)) in together.iter().zip(&alone) {
        assert_eq!(offers(tree), offers(expected));
        assert!(!tree.is_chain());
    }
    assert_eq!(Some(drafter.work().unwrap().passes), alone.iter().map(|(_, passes)| *passes).max());
}

/// A [`Chance`] that panics at one of its draws.
struct BreakingChance(usize);

impl Chance for BreakingChance {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        self.0 = self.0.checked_sub(1).expect("a draw that goes wrong");
        Race.draw(law, count, address, out);
    }

    fn coin(&mut self, probability: f64, address: Address) -> bool {
        Race.coin(probability, address)
    }
}

/// A [`Scorer`] that panics in one of its passes, when it has run the first sequence.
struct BreakingScorer(TableScorer, usize);

impl Scorer for BreakingScorer {
    fn open(&mut self, opening: &Opening<'_>) {
        self.0.open(opening);
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        let goes_well = self.1 > 0;
        self.1 = self.1.wrapping_sub(1);
        self.0.score(if goes_well { asks } else { &asks[..1] }, rows);
        assert!(goes_well, "a pass that goes wrong");
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize {
        self.0.truncate(sequence, len)
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        self.0.keep_path(sequence, start, rows);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.0.close(sequence);
    }

    fn context_max(&self) -> usize {
        self.0.context_max()
    }
}

#[test]
fn a_panic_leaves_the_drafts_of_all_sequences_right() {
    let (target, draft) = (table(3, 0.5), table(4, 0.5));
    let make = |passes: usize, has_inner: bool| {
        let mut drafter = ModelDrafter::new(BreakingScorer(TableScorer::new(draft.clone()), passes));
        drafter.settings.p_split = Some(0.15);
        let mut drafter =
            if has_inner { drafter.with_inner(Box::new(SuffixDrafter::lookup(1, 1, 4))) } else { drafter };
        (0..2).for_each(|id| drafter.open(&Opening::new(SequenceId(id), &[])));
        drafter
    };
    let texts: [&[Token]; 2] = [&[1, 2, 3, 1, 2, 3], &[4, 5, 4]];
    let mut broken = 0;
    for (promise, has_inner) in PROMISES.into_iter().flat_map(|promise| [(promise, false), (promise, true)]) {
        let scenario = Scenario::new(&target, promise, 6);
        for (draws, passes) in (0..8).map(|n| (n, usize::MAX)).chain((0..5).map(|n| (usize::MAX, n))) {
            let mut drafter = make(passes, has_inner);
            let mut attempt = || scenario.drafts_by(&mut drafter, &texts, &mut BreakingChance(draws));
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut attempt));
            broken += usize::from(caught.is_err());
            drafter.scorer.1 = usize::MAX;
            // The drafter is asked again, or after a token that no branch had, or after other tokens, which only
            // networks compare.
            let texts: [&[Token]; 4] = [texts[0], &[1, 2, 3, 1, 2, 3, 5], &[1, 2, 3, 1, 2, 3, 5, 3], &[1, 2, 0]];
            for text in texts.into_iter().take(if has_inner { 3 } else { 4 }) {
                let expected = scenario.draft(&mut make(usize::MAX, false), text);
                let found = scenario.draft(&mut drafter, text);
                assert_eq!(offers(&found), offers(&expected), "{promise:?}, {draws} draws, {passes} passes: {text:?}");
            }
        }
    }
    assert!(broken > 40, "{broken} of 78 drafts went wrong");
}

#[test]
fn a_branch_over_shared_tokens_may_end_where_its_siblings_go_on() {
    let mut ended = 0;
    for (seed, context_max) in (0..6).flat_map(|seed| (5..14).map(move |context_max| (seed, context_max))) {
        let assistant = Table::seeded(9, 2, seed + 40);
        let make = |context_max| {
            let mut scorer = TableScorer::new(assistant.clone());
            scorer.context_max = context_max;
            let mut drafter = ModelDrafter::new(SharedScorer::new(scorer, translator(11, 9, 10)));
            drafter.settings.p_split = Some(0.1);
            drafter
        };
        let target = Table::seeded(11, 2, seed);
        for promise in PROMISES {
            let scenario = Scenario::new(&target, promise, seed);
            let tokens: Vec<Token> = (0..5).map(|i| (mix(seed * 10 + i) % 4) as Token).collect();
            let mut drafters = [
                make(context_max),
                make(context_max).with_inner(Box::new(SuffixDrafter::lookup(1, 1, 4))),
                make(usize::MAX),
            ];
            let trees = drafters.each_mut().map(|drafter| {
                drafter.open(&Opening::new(SequenceId(0), &tokens));
                scenario.draft(drafter, &tokens)
            });
            assert_eq!(offers(&trees[0]), offers(&trees[1]), "{promise:?} seed {seed}, context {context_max}");
            let goes_on = !trees[0].is_empty();
            ended += usize::from(goes_on && offers(&trees[0]) != offers(&trees[2]));
        }
    }
    assert!(ended > 10, "{ended} drafts ended at the assistant's context");
}
