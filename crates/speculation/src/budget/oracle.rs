//! What a budget would do that knew the text: let exactly those nodes stand that will be accepted.
//!
//! It is the upper bound of what any budget can gain by choosing nodes: every row of the pass is then one that is kept, and
//! no accepted node is lost. It cannot be a [`super::Budget`], because it decides after drafting, by looking at what was
//! drafted. Hence its law: it drops draws by their value, so it is only lawful where the target's pick does not depend on
//! what was offered: under *exact*, and where every law is a point mass.
//!
//! Left out: the time of drafting what is then dropped. A budget that could save that would gain more.

use crate::{DraftTree, NodeId, Token};

/// The nodes of the tree that say what will be written, from below the root downwards. `future`: the tokens that plain
/// decoding writes after the pending one.
pub fn foreseen(tree: &DraftTree, future: &[Token]) -> Vec<NodeId> {
    let mut path: Vec<NodeId> = Vec::new();
    for token in future {
        let Some(node) = tree.child(path.last().copied(), *token) else { break };
        path.push(node);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Proposal;

    #[test]
    fn the_branch_that_will_be_written_is_found() {
        let mut tree = DraftTree::new();
        let one = tree.offer(None, 1, Proposal::Point, 0);
        tree.offer(Some(one), 9, Proposal::Point, 0);
        let two = tree.offer(Some(one), 2, Proposal::Point, 0);
        assert_eq!(foreseen(&tree, &[1, 2, 3]), [one, two]);
        assert_eq!(foreseen(&tree, &[1]), [one]);
        assert!(foreseen(&tree, &[7, 1]).is_empty() && foreseen(&tree, &[]).is_empty());
    }
}
