//! Plain loops around drafters, budget and verifier, to be enumerated.
//!
//! Two of them: several passes of real drafters until enough tokens are written, and one pass over a tree, completed
//! with the target's own law in closed form, which reaches much larger trees.

use std::collections::BTreeMap;

use foretoken_speculation::budget::{Budget, Limits, Outcome};
use foretoken_speculation::draft::{Calibration, merge, share};
use foretoken_speculation::{
    Ask, Chance, DraftSettings, DraftTree, Drafter, News, Pass, Probes, Promise, Sampling, SequenceId, TargetLaws,
    Tenant, Token, Verdict, verify,
};
use foretoken_testkit::dial::{Dial, enumerate, enumerate_coupled};
use foretoken_testkit::table::{Joint, Table, distance};

/// A verify function: the product's, or a canary.
pub type Verify<'a> = &'a dyn Fn(&DraftTree, &mut dyn TargetLaws, Promise, Pass, &mut dyn Chance) -> Verdict;

/// A merge function: the product's, or a canary.
pub type Merge<'a> = &'a dyn Fn(Promise, &mut DraftTree, &Calibration, usize, &mut DraftTree);

/// Drafters that fill one tree, one after the other; if there are several, one of candidates, as in the engine.
pub type Team<'d> = Vec<Box<dyn Drafter + 'd>>;

/// Everything about a generation but its drafters.
#[derive(Copy, Clone)]
pub struct Setup<'a> {
    pub target: &'a Table,
    pub sampling: &'a Sampling,
    pub promise: Promise,
    pub prompt: &'a [Token],
    /// Tokens to write.
    pub len: usize,
    pub verify: Verify<'a>,
    pub merge: Merge<'a>,
    pub seed: u64,
    /// The request's number.
    pub request: u64,
}

impl<'a> Setup<'a> {
    pub fn new(target: &'a Table, sampling: &'a Sampling, promise: Promise, prompt: &'a [Token], len: usize) -> Self {
        Setup { target, sampling, promise, prompt, len, verify: &verify, merge: &merge, seed: 9, request: 0 }
    }

    /// The law of any program of chance under this promise's rule about addresses.
    fn enumerate<R: Ord>(&self, f: impl FnMut(&mut Dial) -> R) -> BTreeMap<R, f64> {
        match self.promise {
            Promise::Exact => enumerate_coupled(f),
            Promise::Rejection | Promise::Block => enumerate(f),
        }
    }

    /// How far the law of `len` tokens over several passes is from the target's.
    pub fn error<'d>(&self, drafters: impl Fn() -> Team<'d>, budget: impl Fn() -> Box<dyn Budget>) -> f64 {
        let law = self.enumerate(|dial| self.generate(&mut drafters(), budget().as_mut(), dial));
        distance(&law, &self.target.plain(self.sampling, self.prompt, self.len))
    }

    /// The engine's loop in small.
    pub fn generate(
        &self,
        drafters: &mut [Box<dyn Drafter + '_>],
        budget: &mut dyn Budget,
        chance: &mut dyn Chance,
    ) -> Vec<Token> {
        let sequence = SequenceId(1);
        let mut tokens = self.prompt.to_vec();
        let mut tree = DraftTree::new();
        let mut calibration = Calibration::default();
        open(drafters, self.prompt);
        let end = self.prompt.len() + self.len;
        while tokens.len() < end {
            // A draft as long as what is left would be wasted, as in the engine.
            let mut limits = budget.limits();
            limits.nodes_max = limits.nodes_max.min(end - tokens.len() - 1);
            tree.clear();
            let verdict = self.pass(drafters, &tokens, limits, &calibration, &mut tree, chance);
            if !tree.is_empty() {
                budget.learn(&Outcome { tree: &tree, path: &verdict.path });
                calibration.learn(&tree, &verdict.path);
            }
            let kept = tokens.len() + verdict.path.len();
            tokens.extend(&verdict.tokens);
            for drafter in drafters.iter_mut() {
                drafter.keep(sequence, kept);
                let emitted = &verdict.tokens;
                let (tree, path) = (&tree, &verdict.path);
                drafter.observe(&[News { sequence, tokens: &tokens, emitted, tree, path, probes: &[] }]);
            }
        }
        tokens[self.prompt.len()..end].to_vec()
    }

    /// How far the law of `len` tokens is from the target's, where one pass drafts and all that follows is plain.
    pub fn error_of_one_pass<'d>(&self, nodes_max: usize, drafters: impl Fn() -> Team<'d>) -> f64 {
        let passes = self.enumerate(|dial| self.first_pass(nodes_max, &mut drafters(), dial).tokens);
        let mut law = Joint::new();
        for (mut written, probability) in passes {
            written.truncate(self.len);
            let tokens = [self.prompt, &written].concat();
            // The law of what follows depends on the prompt's length only through settings not used here.
            for (rest, p) in self.target.plain(self.sampling, &tokens, self.len - written.len()) {
                *law.entry([&written[..], &rest].concat()).or_insert(0.0) += probability * p;
            }
        }
        distance(&law, &self.target.plain(self.sampling, self.prompt, self.len))
    }

    /// Expected number of accepted tokens in one pass.
    pub fn expected_accepted<'d>(&self, nodes_max: usize, drafters: impl Fn() -> Team<'d>) -> f64 {
        let passes = self.enumerate(|dial| self.first_pass(nodes_max, &mut drafters(), dial).path.len());
        passes.into_iter().map(|(accepted, probability)| accepted as f64 * probability).sum()
    }

    fn first_pass(&self, nodes_max: usize, drafters: &mut Team<'_>, chance: &mut dyn Chance) -> Verdict {
        let (mut tree, calibration) = (DraftTree::new(), Calibration::default());
        let limits = Limits::nodes(nodes_max);
        self.pass(open(drafters, self.prompt), self.prompt, limits, &calibration, &mut tree, chance)
    }

    /// Drafts into `tree`, which is empty, and verifies it.
    fn pass(
        &self,
        drafters: &mut [Box<dyn Drafter + '_>],
        tokens: &[Token],
        limits: Limits,
        calibration: &Calibration,
        tree: &mut DraftTree,
        chance: &mut dyn Chance,
    ) -> Verdict {
        let (mut candidates, count) = (DraftTree::new(), drafters.len());
        for (source, drafter) in drafters.iter_mut().enumerate() {
            let (tree, nodes_max) = match count {
                1 => (&mut *tree, limits.nodes_max),
                _ => {
                    let to_come = count - 1 - source;
                    let nodes_max = share(self.promise, limits.nodes_max, candidates.len(), to_come);
                    (&mut candidates, nodes_max)
                }
            };
            let ask = Ask {
                sequence: SequenceId(1),
                tokens,
                prompt_len: self.prompt.len(),
                sampling: self.sampling,
                settings: DraftSettings::default(),
                promise: self.promise,
                seed: self.seed,
                request: self.request,
                limits: Limits { nodes_max, ..limits },
                tree,
                probes: &mut Probes::default(),
                source: source as u8,
            };
            drafter.draft(&mut [ask], chance);
        }
        if count > 1 {
            (self.merge)(self.promise, &mut candidates, calibration, limits.nodes_max, tree);
        }
        assert!(tree.len() <= limits.nodes_max, "{} nodes in a tree of {}", tree.len(), limits.nodes_max);
        let mut path = Vec::new();
        let mut law = |node| {
            tree.path_into(node, &mut path);
            self.target.law(self.sampling, tokens, self.prompt.len(), &path)
        };
        let at = Pass { seed: self.seed, request: self.request, start: tokens.len() as u64 };
        let verdict = (self.verify)(tree, &mut law, self.promise, at, chance);
        assert_eq!(verdict.tokens.len(), verdict.path.len() + 1);
        for (i, &node) in verdict.path.iter().enumerate() {
            assert_eq!(tree.token(node), verdict.tokens[i]);
            assert_eq!(tree.parent(node), i.checked_sub(1).map(|i| verdict.path[i]));
        }
        verdict
    }
}

/// Opens the one sequence with every drafter.
fn open<'t, 'd>(drafters: &'t mut [Box<dyn Drafter + 'd>], prompt: &[Token]) -> &'t mut [Box<dyn Drafter + 'd>] {
    for drafter in drafters.iter_mut() {
        drafter.open(SequenceId(1), prompt, Tenant(0));
    }
    drafters
}
