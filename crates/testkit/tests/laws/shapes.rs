//! A drafter that drafts a tree of a given shape, and the list of all shapes.

use foretoken_speculation::{Address, Ask, Chance, Drafter, NodeId, Promise, Proposal, SequenceId, Token};
use foretoken_testkit::table::Table;

/// The parent of every node (`None`: the root), parents before children, the children of a node in order.
pub type Shape = Vec<Option<usize>>;

/// All ordered trees of exactly `nodes` nodes below the root; their number is a Catalan number.
pub fn shapes(nodes: usize) -> Vec<Shape> {
    // Each ordered tree is listed once, by the parents of its nodes in preorder.
    let mut all = vec![(Shape::new(), Vec::new())]; // a shape, and the path to its last node
    for node in 0..nodes {
        let mut longer = Vec::new();
        for (shape, path) in all {
            for depth in 0..=path.len() {
                let mut path: Vec<usize> = path[..depth].to_vec();
                let shape: Shape = shape.iter().copied().chain([path.last().copied()]).collect();
                path.push(node);
                longer.push((shape, path));
            }
        }
        all = longer;
    }
    all.into_iter().map(|(shape, _)| shape).collect()
}

/// How the children of a node are proposed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All are drawn, without replacement.
    Drawn,
    /// All are points, by a fixed rule.
    Point,
    /// Points and draws alternate, also for the same tokens.
    Mixed,
    /// Two drafters with different laws, each drawing every child.
    Twice,
}

/// Fills the shape with tokens from a table.
pub struct Shaped<'a> {
    pub shape: &'a Shape,
    pub kind: Kind,
    pub table: Table,
}

impl Shaped<'_> {
    fn fill(&self, ask: &mut Ask<'_>, node: Option<usize>, parent: Option<NodeId>, chance: &mut dyn Chance) {
        let children: Vec<usize> = (0..self.shape.len()).filter(|&i| self.shape[i] == node).collect();
        if children.is_empty() {
            return;
        }
        let nodes = self.propose(ask, parent, children.len(), chance);
        // There are fewer nodes than children if the support was smaller. A node that was proposed twice is filled
        // once.
        for (i, (child, &node)) in children.into_iter().zip(&nodes).enumerate() {
            if !nodes[..i].contains(&node) {
                self.fill(ask, Some(child), Some(node), chance);
            }
        }
    }

    fn propose(&self, ask: &mut Ask<'_>, parent: Option<NodeId>, count: usize, chance: &mut dyn Chance) -> Vec<NodeId> {
        let vocabulary = self.table.vocabulary();
        let path = parent.map_or(Vec::new(), |parent| ask.tree.path(parent));
        let guess = |i: usize| ((path.len() + i * 2) % vocabulary) as Token;
        match self.kind {
            Kind::Point => {
                let tokens = (0..count.min(vocabulary)).map(guess);
                tokens.map(|token| ask.tree.offer(parent, token, Proposal::Point, 0)).collect()
            }
            Kind::Drawn => self.drawn(ask, parent, count, 0, chance),
            Kind::Twice => {
                let mut nodes = self.drawn(ask, parent, count, 0, chance);
                nodes.extend(self.drawn(ask, parent, count, 1, chance));
                nodes
            }
            Kind::Mixed => {
                let first = ask.tree.offer(parent, guess(0), Proposal::Point, 0);
                let mut nodes = vec![first];
                nodes.extend(self.drawn(ask, parent, count - 1, 0, chance));
                nodes.push(ask.tree.offer(parent, guess(1), Proposal::Point, 0));
                nodes
            }
        }
    }

    fn drawn(
        &self,
        ask: &mut Ask<'_>,
        parent: Option<NodeId>,
        count: usize,
        source: u8,
        chance: &mut dyn Chance,
    ) -> Vec<NodeId> {
        let path = parent.map_or(Vec::new(), |parent| ask.tree.path(parent));
        let mut tokens = ask.tokens.to_vec();
        tokens.resize(tokens.len() + usize::from(source), 0); // another drafter has another law
        let law = self.table.law(ask.sampling, &tokens, ask.prompt_len, &path);
        let position = ask.position() + path.len() as u64;
        let mut out = Vec::new();
        if ask.promise == Promise::Exact {
            chance.draw(&law, count, Address::token(ask.seed, position), &mut out);
            return out.iter().map(|&token| ask.tree.offer(parent, token, Proposal::Point, source)).collect();
        }
        let id = ask.tree.add_law(law);
        chance.draw(ask.tree.law(id), count, Address::draft(ask.pass(), position, id), &mut out);
        out.iter().map(|&token| ask.tree.offer(parent, token, Proposal::Drawn(id), source)).collect()
    }
}

impl Drafter for Shaped<'_> {
    fn name(&self) -> &str {
        "shaped"
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        for ask in asks {
            // A shape is drafted as a whole or not at all; with mixed children there may be two more nodes than
            // children.
            if ask.limits.nodes_max < 3 * self.shape.len() {
                continue;
            }
            self.fill(ask, None, None, chance);
        }
    }
    fn close(&mut self, _sequence: SequenceId) {}
}
