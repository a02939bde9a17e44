//! Probes: rows that a drafter wants computed besides the draft tree.
//!
//! A probe is a token under the root or under another probe. Its row is computed in the same pass as the tree and its
//! logits go back to the drafter that asked, through [`crate::StepOutput`]. Probes are never verified and their rows
//! are never kept. Rows of sequence and tree do not attend to them, so they change no other result. Jacobi lookahead
//! consists of probes.
//!
//! A probe cannot stand under a node of the draft tree: it would have to be asked for after all drafters are done.

use crate::Token;

/// The probes of one sequence in one pass, flat, each with its parent.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    tokens: Vec<Token>,
    parents: Vec<Option<u32>>,
    sources: Vec<u8>,
    rows_max: usize,
}

impl Probes {
    /// Removes all probes and keeps the memory; from now on there is room for `rows_max`.
    pub fn clear(&mut self, rows_max: usize) {
        self.tokens.clear();
        self.parents.clear();
        self.sources.clear();
        self.rows_max = rows_max;
    }

    /// How many more probes fit into the pass.
    pub fn room(&self) -> usize {
        self.rows_max - self.len()
    }

    /// Asks for the row of `token` after the probe `parent` (`None`: after the pending token), and returns its index.
    ///
    /// # Panics
    ///
    /// Panics if there is no room, or if the parent is not a probe of the same drafter.
    pub fn ask(&mut self, parent: Option<usize>, token: Token, source: u8) -> usize {
        assert!(self.room() > 0, "{} probes of {}", self.len() + 1, self.rows_max);
        if let Some(parent) = parent {
            assert!(
                self.sources.get(parent) == Some(&source),
                "probe {parent} of {} is not this drafter's",
                self.len()
            );
        }
        self.tokens.push(token);
        self.parents.push(parent.map(|parent| parent as u32));
        self.sources.push(source);
        self.len() - 1
    }

    /// Number of probes.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens of the probes.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// For each probe the probe that it continues, `None` for the pending token; parents come before their children.
    pub fn parents(&self) -> &[Option<u32>] {
        &self.parents
    }

    /// For each probe the drafter that asked for it.
    pub fn sources(&self) -> &[u8] {
        &self.sources
    }
}
