//! The branches of one running sequence: those of its prompt and of the source that its encoder reads, and those of its
//! output as it is written.
//!
//! Tokens come one at a time. The windows that end at a token are each extended by one node, so every window is counted
//! once, and the sequence can be matched up to its last token. Nothing is pruned here: the tries are dropped with their
//! sequence.

use std::collections::VecDeque;

use crate::trie::tries::{End, Tries};
use foretoken_speculation::Token;

/// The tries of one sequence.
#[derive(Clone, Debug)]
pub(super) struct Live {
    /// All its tokens, prompt and output.
    tokens: Vec<Token>,
    /// What an encoder reads, if there is one.
    source: Vec<Token>,
    prompt_len: usize,
    /// Tokens of a branch, the first included.
    window: usize,
    learns_prompt: bool,
    learns_output: bool,
    tries: Tries,
    /// The end of each window that can still grow, the longest first; `None` where a node was full.
    ends: VecDeque<Option<End>>,
}

impl Live {
    /// The empty state of a sequence whose prompt will have `prompt_len` tokens.
    pub fn new(prompt_len: usize, window: usize, learns_prompt: bool, learns_output: bool) -> Live {
        let (tokens, source, tries) = (Vec::new(), Vec::new(), Tries::default());
        let ends = VecDeque::with_capacity(window);
        Live { tokens, source, prompt_len, window, learns_prompt, learns_output, tries, ends }
    }

    /// Learns the source that an encoder reads, as a part of the input that no text continues.
    pub fn read(&mut self, source: &[Token]) {
        if self.learns_prompt {
            source.iter().for_each(|&token| self.add(token, false));
            self.ends.clear();
            self.source.extend(source);
        }
    }

    /// The source, if it was learned.
    pub fn source(&self) -> &[Token] {
        &self.source
    }

    /// Its prompt, or the part of it that was added so far.
    pub fn prompt(&self) -> &[Token] {
        &self.tokens[..self.prompt_len.min(self.tokens.len())]
    }

    /// The prompt's last token and the output after it; empty if there is no output.
    pub fn written(&self) -> &[Token] {
        match self.tokens.len() > self.prompt_len {
            true => &self.tokens[self.prompt_len.saturating_sub(1)..],
            false => &[],
        }
    }

    /// Its branches.
    pub fn tries(&self) -> &Tries {
        &self.tries
    }

    /// Learns the tokens beyond those added before; the first ones are assumed to be the same.
    pub fn extend(&mut self, tokens: &[Token]) {
        for &token in tokens.get(self.tokens.len()..).unwrap_or(&[]) {
            self.push(token);
        }
    }

    fn push(&mut self, token: Token) {
        let is_output = self.tokens.len() >= self.prompt_len;
        self.tokens.push(token);
        if !(if is_output { self.learns_output } else { self.learns_prompt }) {
            self.ends.clear();
            return;
        }
        self.add(token, is_output);
    }

    /// Adds a token to the windows that end at it.
    fn add(&mut self, token: Token, is_output: bool) {
        if self.ends.len() == self.window {
            self.ends.pop_front();
        }
        for end in &mut self.ends {
            *end = end.and_then(|end| self.tries.extend(end, token, is_output));
        }
        self.ends.push_back(Some(self.tries.begin(token, is_output)));
    }
}
