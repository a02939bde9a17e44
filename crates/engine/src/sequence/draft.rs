//! The draft of a sequence in this pass, and what is known of its drafters.
//!
//! The tree, the candidates and the lists of a pass are cleared after it; the experience, the budget and the list of
//! drafters stay.

use foretoken_speculation::budget::{Budget, Outcome};
use foretoken_speculation::{Costs, DraftTree, Experience, Judged, NodeId, Probes, Token};

use crate::faults::{Fault, is_made};
use crate::output::Drafted;
use crate::request::{Order, Request};

/// The tokens whose hidden states the drafters of a sequence need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HiddenRows {
    #[default]
    None,
    /// The pending token and drafted ones.
    Generated,
    /// The tokens of the prompt as well.
    All,
}

/// The draft of a sequence.
pub(crate) struct SequenceDraft {
    /// The drafters of the request that have not failed.
    pub(crate) drafters: Vec<u8>,
    /// The drafters that may be asked in this pass, in this order; one that fails in the pass is not removed.
    pub(crate) asking_order: Vec<u8>,
    /// The drafters that were asked in this pass.
    pub(crate) asked: Vec<u8>,
    /// The drafters that made no progress on the last chunk that they were to read: they read when they are asked for
    /// drafts.
    pub(crate) read_stalled: Vec<u8>,
    /// For each drafter whether no token of its last draft was chosen.
    unchosen: Vec<bool>,
    /// All tokens that drafters offer; the tree is chosen from them.
    pub(crate) candidates: DraftTree,
    pub(crate) tree: DraftTree,
    pub(crate) probes: Probes,
    /// Maximum number of rows that its drafters may ask for in addition to the tree.
    pub(crate) probes_max: usize,
    /// Maximum number of nodes of the tree in this pass; 0 if nothing is drafted.
    pub(crate) nodes_max: usize,
    /// Nodes of the tree of the last pass.
    pub(crate) nodes_before: usize,
    pub(crate) hidden_rows: HiddenRows,
    /// Seconds per token that draft models took to read along with the last prefill pass; `None` before the first.
    pub(crate) read_along_seconds: Option<f64>,
    pub(crate) experience: Experience,
    pub(crate) budget: Box<dyn Budget>,
}

impl SequenceDraft {
    pub(super) fn new(request: &Request, drafters: Vec<u8>) -> Self {
        Self {
            drafters,
            asking_order: Vec::new(),
            asked: Vec::new(),
            read_stalled: Vec::new(),
            unchosen: Vec::new(),
            candidates: DraftTree::new(),
            tree: DraftTree::new(),
            probes: Probes::default(),
            probes_max: 0,
            nodes_max: 0,
            nodes_before: 0,
            hidden_rows: HiddenRows::None,
            read_along_seconds: None,
            experience: Experience::default(),
            budget: request.budget.start(),
        }
    }

    /// Whether no token of this drafter's last draft was chosen.
    pub(crate) fn was_unchosen(&self, number: u8) -> bool {
        self.unchosen.get(usize::from(number)).copied().unwrap_or(false)
    }

    /// Clears the draft of the last pass, and decides in which order drafters are asked in this one.
    pub(super) fn clear(&mut self, request: &Request, costs: &Costs) {
        self.nodes_before = self.tree.len();
        self.nodes_max = 0;
        if !(is_made(Fault::DraftKept) && self.asked.is_empty()) {
            self.tree.clear();
        }
        self.candidates.clear();
        self.candidates.compare_laws(request.measure);
        self.probes.clear(0);
        self.asked.clear();
        self.asking_order.clone_from(&self.drafters);
        let learned_from = match request.order {
            Order::Given => self.asking_order.len(),
            Order::Learned => 0,
            // The first one may have failed.
            Order::LearnedBehindFirst => usize::from(self.asking_order.first() == request.drafters.first()),
        };
        if let Some(turns @ [_, _, ..]) = self.asking_order.get_mut(learned_from..) {
            // Drafters that were never asked come first; among equals the order stays.
            let worth = |source: &u8| {
                let right = self.experience.right_per_ask(*source);
                let time = costs.drafter(*source);
                let known = self.experience.knows(*source);
                if known { right / (time.call + time.step * (1.0 + right)).max(1e-9) } else { f64::INFINITY }
            };
            turns.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        }
    }

    /// Clears the draft of a sequence that is preempted.
    pub(super) fn discard(&mut self) {
        if !is_made(Fault::DraftKept) {
            self.tree.clear();
        }
        self.candidates.clear();
        self.probes.clear(0);
        self.asked.clear();
    }

    /// Lets the budget learn from a pass.
    pub(super) fn learn_budget(&mut self, path: &[NodeId]) {
        if !self.tree.is_empty() {
            self.budget.learn(&Outcome { tree: &self.tree, path });
        }
    }

    /// Learns from the candidates of the pass how right its drafters were, given the tokens that were written, for this
    /// sequence and for the experience that similar requests share. `judged` is called for each candidate.
    pub(super) fn learn(&mut self, written: &[Token], shared: &mut Experience, judged: impl FnMut(Judged)) {
        for number in &self.asked {
            let at = usize::from(*number);
            self.unchosen.resize(self.unchosen.len().max(at + 1), false);
            self.unchosen[at] = !self.tree.offers().iter().any(|offer| offer.source == *number);
        }
        self.experience.learn(&self.asked, &self.candidates, written, judged);
        shared.learn(&self.asked, &self.candidates, written, |_| {});
    }

    /// The tree of the pass as a report, given the nodes that were written.
    pub(crate) fn drafted(&self, written: &[NodeId]) -> Vec<Drafted> {
        let drafted = |node| Drafted {
            token: self.tree.token(node),
            drafter: self.tree.source(node),
            depth: self.tree.depth(node),
            accepted: written.contains(&node),
        };
        self.tree.nodes().map(drafted).collect()
    }
}
