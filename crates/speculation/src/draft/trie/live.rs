//! The branches of one live sequence: its prompt's, eliminated with it, and those of its output while that is written.
//!
//! Tokens come one at a time. The windows that end at a token are each extended by one node, so every window is counted
//! once, and the text can be matched up to its last token. Going back takes the newest token's nodes and counts back,
//! in reverse order: nodes were added last, so they are the last of the array, and the first of their siblings. Nothing
//! is moved to the front or pruned here, which would have to be undone too.
//!
//! A node has at most [`FAN_MAX`] children: later ones are not learned. It bounds what one draft or one insertion costs
//! however long the prompt is, and only concerns contexts so common that each continuation is improbable.

use std::collections::VecDeque;

use crate::Token;
use crate::draft::trie::nodes::{Common, Nodes, Roots, roots_bytes};

/// Most children of a node.
pub(super) const FAN_MAX: usize = 256;

/// The tries of one sequence, in one array.
#[derive(Clone, Debug)]
pub(super) struct Live {
    /// All its tokens, prompt and output.
    tokens: Vec<Token>,
    prompt_len: usize,
    /// Tokens of a branch, the first included.
    window: usize,
    learns_prompt: bool,
    learns_output: bool,
    roots: Roots,
    nodes: Nodes,
    common: Common,
    /// Where each window that can still grow ends, the longest first; `None` where a node was full.
    ends: VecDeque<Option<u32>>,
}

impl Live {
    /// Nothing of a sequence whose prompt will have so many tokens.
    pub fn new(prompt_len: usize, window: usize, learns_prompt: bool, learns_output: bool) -> Live {
        Live {
            tokens: Vec::new(),
            prompt_len,
            window,
            learns_prompt,
            learns_output,
            roots: Roots::default(),
            nodes: Nodes::default(),
            common: Common::default(),
            ends: VecDeque::with_capacity(window),
        }
    }

    /// Its prompt, or as much as is left of it.
    pub fn prompt(&self) -> &[Token] {
        &self.tokens[..self.prompt_len.min(self.tokens.len())]
    }

    /// What was written, behind the prompt's last token.
    pub fn written(&self) -> &[Token] {
        match self.tokens.len() > self.prompt_len {
            true => &self.tokens[self.prompt_len.saturating_sub(1)..],
            false => &[],
        }
    }

    /// Learns the tokens beyond those known; the known ones are taken to be the same.
    pub fn extend(&mut self, tokens: &[Token]) {
        for &token in tokens.get(self.tokens.len()..).unwrap_or(&[]) {
            self.push(token);
        }
    }

    /// Whether a token at this place is an output, and whether it is learned.
    fn kind(&self, place: usize) -> (bool, bool) {
        let is_output = place >= self.prompt_len;
        (is_output, if is_output { self.learns_output } else { self.learns_prompt })
    }

    fn push(&mut self, token: Token) {
        let (is_output, learned) = self.kind(self.tokens.len());
        self.tokens.push(token);
        if !learned {
            self.ends.clear();
            return;
        }
        if self.ends.len() == self.window {
            self.ends.pop_front();
        }
        for end in &mut self.ends {
            *end = end.and_then(|at| self.nodes.enter(at, token, FAN_MAX));
            end.iter().for_each(|&at| self.nodes.counts_mut(at).add(is_output));
        }
        let root = *self.roots.entry(token).or_insert_with(|| self.nodes.root(token));
        self.nodes.counts_mut(root).add(is_output);
        self.common.raise(token, self.nodes.node(root).counts, is_output);
        self.ends.push_back(Some(root));
    }

    /// Forgets all but the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.tokens.len() {
            return;
        }
        while self.tokens.len() > len {
            self.pop();
        }
        // The windows that can grow now are other ones.
        let starts = self.first_start(len)..len;
        self.ends = starts.map(|start| self.find(&self.tokens[start..len])).collect();
        self.common = Common::of(self.roots.iter().map(|(token, root)| (*token, self.nodes.node(*root).counts)));
    }

    /// The first of the windows that have the token before `len` as their last.
    fn first_start(&self, len: usize) -> usize {
        let learned = (0..len).rev().take(self.window).take_while(|&place| self.kind(place).1).count();
        len - learned
    }

    fn pop(&mut self) {
        let len = self.tokens.len();
        let (is_output, _) = self.kind(len - 1);
        // Newest first: the root, then ever longer windows.
        for start in (self.first_start(len)..len).rev() {
            let parent = self.find(&self.tokens[start..len - 1]);
            let node = match (parent, len - 1 - start) {
                (_, 0) => self.roots.get(&self.tokens[start]).copied(),
                (parent, _) => parent.and_then(|parent| self.nodes.child(parent, self.tokens[len - 1])),
            };
            let Some(node) = node else { continue };
            self.nodes.counts_mut(node).take(is_output);
            if self.nodes.node(node).counts.total() == 0 {
                self.nodes.pop(node, parent);
                if len - 1 == start {
                    self.roots.remove(&self.tokens[start]);
                }
            }
        }
        self.tokens.pop();
    }

    /// Where a run of tokens ends; `None` for no tokens.
    fn find(&self, run: &[Token]) -> Option<u32> {
        let (first, rest) = run.split_first()?;
        rest.iter().try_fold(*self.roots.get(first)?, |at, &token| self.nodes.child(at, token))
    }

    /// Where a run of tokens ends, and its array.
    pub fn find_in(&self, run: &[Token]) -> Option<(&Nodes, u32)> {
        self.find(run).map(|node| (&self.nodes, node))
    }

    /// The commonest first tokens.
    pub fn common(&self) -> &Common {
        &self.common
    }

    /// Everything there is, for comparisons.
    #[cfg(test)]
    pub fn state(&self) -> String {
        let roots: std::collections::BTreeMap<_, _> = self.roots.iter().collect();
        format!("{:?} {roots:?} {:?} {:?} {:?}", self.tokens, self.nodes, self.ends, self.common)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        roots_bytes(&self.roots) + self.nodes.bytes() + self.tokens.capacity() * size_of::<Token>()
    }
}
