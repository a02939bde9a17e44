//! Simple loops around drafters, budget and verifier, whose outcomes are enumerated.
//!
//! There are two: several passes of real drafters until enough tokens are written, and one pass over a tree, completed
//! with the target's own law in closed form, which allows much larger trees.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use foretoken_speculation::budget::{Budget, Limits, Outcome};
use foretoken_speculation::costs::Curve;
use foretoken_speculation::{
    Ask, Chance, Choice, Costs, DraftSettings, DraftTree, Drafter, DrafterCosts, Experience, Opening, Outlook, Pass,
    PassSoFar, Policy, Probes, Promise, Sampling, SequenceId, StepOutput, TargetLaws, Token, Verdict, choose, share,
    verify,
};
use foretoken_testkit::enumerator::{Enumerator, enumerate, enumerate_coupled};
use foretoken_testkit::table::{Joint, Table, distance};
use foretoken_testkit::toy::hidden_state;

/// A verify function: the engine's, or a canary.
pub type Verify<'a> = &'a dyn Fn(&DraftTree, &mut dyn TargetLaws, Promise, Pass, &mut dyn Chance) -> Verdict;

/// A function that chooses: the engine's, or a canary.
pub type Choose<'a> = &'a dyn Fn(&mut [Choice<'_>], &Costs, PassSoFar);

/// Drafters that fill one tree of candidates, one after the other, as in the engine.
pub type DrafterSet<'d> = Vec<Box<dyn Drafter + 'd>>;

/// All settings of a generation except its drafters.
#[derive(Copy, Clone)]
pub struct Setup<'a> {
    pub target: &'a Table,
    pub sampling: &'a Sampling,
    pub promise: Promise,
    pub prompt: &'a [Token],
    /// Number of tokens to write.
    pub len: usize,
    pub verify: Verify<'a>,
    pub choose: Choose<'a>,
    /// How candidates are chosen, and whether drafters stop when a step does not pay.
    pub policy: Policy<'a>,
    pub costs: &'a Costs,
    pub seed: u64,
    /// The request's number.
    pub request: u64,
}

impl<'a> Setup<'a> {
    pub fn new(target: &'a Table, sampling: &'a Sampling, promise: Promise, prompt: &'a [Token], len: usize) -> Self {
        let (policy, costs) = (Policy::Most, &*COSTS);
        Setup {
            target,
            sampling,
            promise,
            prompt,
            len,
            verify: &verify,
            choose: &choose,
            policy,
            costs,
            seed: 9,
            request: 0,
        }
    }

    /// The law of a program, under this promise's rule about repeated addresses.
    fn enumerate<R: Ord>(&self, f: impl FnMut(&mut Enumerator) -> R) -> BTreeMap<R, f64> {
        match self.promise {
            Promise::Exact => enumerate_coupled(f),
            Promise::Rejection | Promise::Block => enumerate(f),
        }
    }

    /// The law of `len` tokens over several passes.
    pub fn law<'d>(&self, drafters: impl Fn() -> DrafterSet<'d>, budget: impl Fn() -> Box<dyn Budget>) -> Joint {
        self.enumerate(|chance| self.generate(&mut drafters(), budget().as_mut(), chance))
    }

    /// Its distance from the target's.
    pub fn error<'d>(&self, drafters: impl Fn() -> DrafterSet<'d>, budget: impl Fn() -> Box<dyn Budget>) -> f64 {
        distance(&self.law(drafters, budget), &self.target.plain(self.sampling, self.prompt, self.len))
    }

    /// A small version of the engine's loop.
    pub fn generate(
        &self,
        drafters: &mut [Box<dyn Drafter + '_>],
        budget: &mut dyn Budget,
        chance: &mut dyn Chance,
    ) -> Vec<Token> {
        let sequence = SequenceId(1);
        let mut tokens = self.prompt.to_vec();
        let mut tree = DraftTree::new();
        let mut experience = Experience::default();
        open(drafters, self.prompt);
        let end = self.prompt.len() + self.len;
        while tokens.len() < end {
            // As in the engine, the draft is shorter than what is left, since its last token would be wasted.
            let mut limits = budget.limits();
            limits.nodes_max = limits.nodes_max.min(end - tokens.len() - 1);
            tree.clear();
            let mut candidates = DraftTree::new();
            let verdict = self.pass(drafters, &tokens, limits, &experience, [&mut candidates, &mut tree], chance);
            if !tree.is_empty() {
                budget.learn(&Outcome { tree: &tree, path: &verdict.path });
            }
            let asked: Vec<u8> = (0..drafters.len() as u8).collect();
            experience.learn(&asked, &candidates, &verdict.tokens, |_| {});
            experience.learn_pass(verdict.tokens.len(), 1.0);
            let hidden_from = if tokens.len() == self.prompt.len() { 0 } else { tokens.len() - 1 };
            tokens.extend(&verdict.tokens);
            for drafter in drafters.iter_mut() {
                let emitted = &verdict.tokens;
                let (tree, path) = (&tree, &verdict.path);
                let layers = drafter.needs().hidden_layers;
                let states =
                    |at: usize| layers.iter().map(|layer| hidden_state(*layer, &tokens[..=at])).collect::<Vec<_>>();
                let states: Vec<_> = (hidden_from..tokens.len() - 1).flat_map(states).collect();
                let hidden: Vec<&[f32]> = states.iter().map(|state| &state[..]).collect();
                drafter.observe(&[StepOutput {
                    sequence,
                    tokens: &tokens,
                    emitted,
                    tree,
                    path,
                    probes: &[],
                    hidden_from,
                    hidden: &hidden,
                }]);
            }
        }
        tokens[self.prompt.len()..end].to_vec()
    }

    /// The law of `len` tokens if one pass drafts and the rest is plain decoding.
    pub fn law_of_one_pass<'d>(&self, nodes_max: usize, drafters: impl Fn() -> DrafterSet<'d>) -> Joint {
        let passes = self.enumerate(|chance| self.first_pass(nodes_max, &mut drafters(), chance).tokens);
        let mut law = Joint::new();
        for (mut written, probability) in passes {
            written.truncate(self.len);
            let tokens = [self.prompt, &written].concat();
            // The law of the rest depends on the prompt's length only through settings that are not used here.
            for (rest, p) in self.target.plain(self.sampling, &tokens, self.len - written.len()) {
                *law.entry([&written[..], &rest].concat()).or_insert(0.0) += probability * p;
            }
        }
        law
    }

    /// Its distance from the target's.
    pub fn error_of_one_pass<'d>(&self, nodes_max: usize, drafters: impl Fn() -> DrafterSet<'d>) -> f64 {
        let law = self.law_of_one_pass(nodes_max, drafters);
        distance(&law, &self.target.plain(self.sampling, self.prompt, self.len))
    }

    /// The expected number of accepted tokens in one pass.
    pub fn expected_accepted<'d>(&self, nodes_max: usize, drafters: impl Fn() -> DrafterSet<'d>) -> f64 {
        let passes = self.enumerate(|chance| self.first_pass(nodes_max, &mut drafters(), chance).path.len());
        passes.into_iter().map(|(accepted, probability)| accepted as f64 * probability).sum()
    }

    fn first_pass(&self, nodes_max: usize, drafters: &mut DrafterSet<'_>, chance: &mut dyn Chance) -> Verdict {
        let (mut candidates, mut tree) = (DraftTree::new(), DraftTree::new());
        let (limits, trees) = (Limits::nodes(nodes_max), [&mut candidates, &mut tree]);
        self.pass(open(drafters, self.prompt), self.prompt, limits, &Experience::default(), trees, chance)
    }

    /// Drafts into the empty candidates, chooses the tree from them and verifies it.
    fn pass(
        &self,
        drafters: &mut [Box<dyn Drafter + '_>],
        tokens: &[Token],
        limits: Limits,
        experience: &Experience,
        [candidates, tree]: [&mut DraftTree; 2],
        chance: &mut dyn Chance,
    ) -> Verdict {
        let (count, nodes_max) = (drafters.len(), limits.nodes_max);
        let rate = experience.speedup() / self.costs.pass(1, tokens.len());
        let outlook =
            Outlook { costs: self.costs, experience, rate, rows: 1, context: tokens.len(), unique: 1.0, row_min: 0.0 };
        for (source, drafter) in drafters.iter_mut().enumerate() {
            let nodes_max = share(self.promise, limits.nodes_max, candidates.len(), count - 1 - source);
            let ask = Ask {
                sequence: SequenceId(1),
                tokens,
                prompt_len: self.prompt.len(),
                written_len: tokens.len(),
                constraint: None,
                sampling: self.sampling,
                settings: DraftSettings::default(),
                promise: self.promise,
                seed: self.seed,
                request: self.request,
                outlook: (self.policy == Policy::ByCost).then_some(outlook),
                limits: Limits { nodes_max, ..limits },
                tree: candidates,
                probes: &mut Probes::default(),
                source: source as u8,
            };
            drafter.draft(&mut [ask], chance);
        }
        let (promise, policy) = (self.promise, self.policy);
        let choice = Choice { promise, policy, nodes_max, constraint: None, experience, candidates, tree };
        (self.choose)(&mut [choice], self.costs, PassSoFar { rows: 1, context: tokens.len(), rate });
        assert!(tree.len() <= nodes_max, "{} nodes in a tree of {nodes_max}", tree.len());
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

/// Opens the sequence with every drafter.
fn open<'t, 'd>(drafters: &'t mut [Box<dyn Drafter + 'd>], prompt: &[Token]) -> &'t mut [Box<dyn Drafter + 'd>] {
    for drafter in drafters.iter_mut() {
        drafter.open(&Opening::new(SequenceId(1), prompt));
    }
    drafters
}

/// Costs with which some rows and steps pay and others do not: the second row is cheap, the third begins a strip, and
/// the drafters' steps differ.
static COSTS: LazyLock<Costs> = LazyLock::new(|| {
    let points = vec![(1, 1.0), (2, 1.05), (3, 1.4), (4, 1.45), (5, 1.5)];
    let drafter = |step| DrafterCosts { step, ..DrafterCosts::default() };
    Costs { curves: vec![Curve::new(0, points)], drafters: [0.1, 0.3, 0.02].map(drafter).to_vec() }
});
