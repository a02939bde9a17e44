//! One text in the making: its tokens, how many of them are cached, its pages, and its state as text.
//!
//! The cached length is at most the number of tokens minus one: the last token is pending, the root of the next
//! tree. While a prompt is being computed it is less. Everything kept here is advanced by emitted tokens alone, so
//! nothing has to go back when a draft is refused.

use std::time::Instant;

use foretoken_model::PageTable;
use foretoken_speculation::budget::Budget;
use foretoken_speculation::{DraftTree, SequenceId, Token};
use foretoken_text::{StopMatcher, TextStream};

use crate::output::{Emitted, FinishReason, Origin};
use crate::request::Request;
use crate::stats::{DrafterStats, Stats};

/// The rows of a sequence in one pass, kept for their memory.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) tokens: Vec<Token>,
    /// Empty if the rows are a chain.
    pub(crate) parents: Vec<Option<u32>>,
    pub(crate) wanted: Vec<u32>,
}

pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) request: Request,
    pub(crate) tokens: Vec<Token>,
    pub(crate) cached: usize,
    /// The sequence ends when it has so many tokens.
    pub(crate) limit: usize,
    pub(crate) tables: Vec<PageTable>,
    pub(crate) tree: DraftTree,
    pub(crate) rows: Rows,
    pub(crate) budget: Box<dyn Budget>,
    pub(crate) stats: Stats,
    pub(crate) finished: Option<FinishReason>,
    stream: Option<TextStream>,
    stop: StopMatcher,
    submitted: Instant,
}

impl Sequence {
    pub(crate) fn new(id: SequenceId, request: Request, context: usize, drafters: usize) -> Self {
        let prompt_len = request.prompt.len();
        let limit = request.tokens_max.map_or(context, |tokens| context.min(prompt_len.saturating_add(tokens)));
        let stream = request
            .tokenizer
            .as_ref()
            .map(|tokenizer| TextStream::new(tokenizer.clone(), &request.prompt).skip_special(!request.special));
        Self {
            id,
            tokens: request.prompt.clone(),
            cached: 0,
            limit,
            tables: Vec::new(),
            tree: DraftTree::new(),
            rows: Rows::default(),
            budget: request.budget.start(),
            stats: Stats {
                prompt_tokens: prompt_len,
                drafters: vec![DrafterStats::default(); drafters],
                ..Stats::default()
            },
            // Nothing asked for is an answer too: the sequence ends before it is admitted.
            finished: (limit == prompt_len).then_some(FinishReason::Length),
            stream,
            stop: StopMatcher::new(request.stop.clone()),
            submitted: Instant::now(),
            request,
        }
    }

    /// Tokens without a cache row, the pending one included.
    pub(crate) fn uncached(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// Fills `rows` with `take` uncached tokens and, if they end with the pending token, with the tree below it.
    pub(crate) fn lay_out_rows(&mut self, take: usize) {
        let Rows { tokens, parents, wanted } = &mut self.rows;
        tokens.clear();
        parents.clear();
        wanted.clear();
        tokens.extend_from_slice(&self.tokens[self.cached..self.cached + take]);
        if self.cached + take < self.tokens.len() {
            return;
        }
        let root = take as u32 - 1;
        tokens.extend_from_slice(self.tree.tokens());
        wanted.extend(root..tokens.len() as u32);
        if !self.tree.is_chain() {
            parents.extend((0..take as u32).map(|row| row.checked_sub(1)));
            let below = |parent: &Option<_>| {
                parent.map_or(root, |node: foretoken_speculation::NodeId| take as u32 + node.index() as u32)
            };
            parents.extend(self.tree.parents().iter().map(|parent| Some(below(parent))));
        }
    }

    /// Appends one chosen token; says what it completes, and notes if it ends the sequence.
    pub(crate) fn append(&mut self, token: Token, origin: Origin, log_probability: Option<f32>) -> Emitted {
        self.tokens.push(token);
        self.stats.emitted += 1;
        self.stats.time = self.submitted.elapsed();
        if self.stats.emitted == 1 {
            self.stats.time_to_first_token = self.stats.time;
        }
        let mut emitted = Emitted { token, origin, log_probability, text: String::new() };
        if self.request.sampling.end_tokens.contains(&token) {
            self.finished = Some(FinishReason::EndToken(token));
            return emitted;
        }
        if let Some(stream) = &mut self.stream {
            let pushed = self.stop.push(&stream.push(token));
            emitted.text = pushed.text;
            if pushed.stopped {
                self.finished = self.stop.matched().map(|stop| FinishReason::StopString(stop.to_string()));
            }
        }
        if self.finished.is_none() && self.tokens.len() >= self.limit {
            let asked = self.request.tokens_max.is_some_and(|tokens| self.stats.emitted >= tokens);
            self.finished = Some(if asked { FinishReason::Length } else { FinishReason::Context });
        }
        emitted
    }

    /// Text that was held back and can be released now that the sequence has ended.
    pub(crate) fn held_text(&mut self) -> String {
        if matches!(self.finished, Some(FinishReason::StopString(_))) {
            return String::new();
        }
        let Some(stream) = &self.stream else { return String::new() };
        let rest = self.stop.push(stream.finish());
        format!("{}{}", rest.text, self.stop.finish())
    }
}
