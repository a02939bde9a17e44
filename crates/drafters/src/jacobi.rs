//! Jacobi lookahead: the target computes proposals for several later positions in additional rows of its pass.
//!
//! This is lookahead decoding (Fu, Bailis, Stoica & Zhang 2024, "Break the Sequential Dependency of LLM Inference Using
//! Lookahead Decoding", arXiv 2402.02057), without a draft model. A *window* of W columns follows the pending token.
//! Its level 0 is a guess of the next tokens, a chain: the *trunk*, of which the pending token itself is column 0.
//! Levels 1 to N - 2 of a column continue its trunk token. All of them are probes of one pass
//! ([`foretoken_speculation::Probes`]); the most probable token after the last level of a column completes an n-gram of
//! N tokens, which begins with the trunk token before the column. These n-grams go into a *pool*, and each level moves
//! up by one: a Jacobi iteration whose history is the n-grams. In the same pass the n-grams of the pool that begin with
//! the pending token are verified, as branches of the draft tree.
//!
//! As in the authors' code: the first N - 2 passes fill the levels one by one, starting from tokens of the prompt; the
//! pool keeps for each first token the G latest n-grams, an n-gram found again counting as new; end tokens are replaced
//! in the window, since nothing useful follows them; and the window advances by one column per pass however many tokens
//! are accepted (their `ALWAYS_FWD_ONE`), unless `keeps_pace` is set. Their code draws tokens of the prompt at random;
//! here a hash chooses them, so that the output is a function of the request.
//!
//! A pass that has no room for the whole window (near the end of the context, or in a large batch) runs without it, and
//! the window stays as it is. The window holds the most probable tokens; the authors found no benefit in drawing them
//! from the laws instead.

mod pool;

use std::collections::BTreeMap;

use foretoken_speculation::argmax;
use foretoken_speculation::{Ask, Drafter, Needs, Opening, Probes, StepOutput};
use foretoken_speculation::{Chance, Evidence, NodeId, Proposal, SequenceId, Token};
use pool::Pool;

/// A [`Drafter`] of n-grams that the target computes ahead. Proposes point masses; needs no model of its own and no
/// chance.
///
/// A pass has up to (N - 1) W - 1 probes ([`JacobiDrafter::probes`]) and (N - 1) G nodes.
#[derive(Debug)]
pub struct JacobiDrafter {
    /// Whether n-grams of the prompt and of the output go into the pool too (the authors' `POOL_FROM_PROMPT`).
    pub pool_from_text: bool,
    /// Whether the window moves by as many columns as tokens were written, new columns being tokens of the prompt.
    pub keeps_pace: bool,
    columns: usize,
    ngram: usize,
    guesses_max: usize,
    sequences: BTreeMap<SequenceId, State>,
}

/// Tokens of each level when this many levels are filled: a pass of filling uses up one column. The trunk is one
/// shorter than the others, since the pending token is its first column.
fn widths(columns: usize, ngram: usize, levels: usize) -> impl Iterator<Item = usize> {
    let trunk = columns + ngram - 2 - levels;
    (0..levels).map(move |level| if level == 0 { trunk } else { trunk + 1 })
}

/// The state of one sequence.
#[derive(Clone, Debug)]
struct State {
    columns: usize,
    prompt: Vec<Token>,
    /// Trunk and levels; those that are not filled yet are missing.
    levels: Vec<Vec<Token>>,
    pool: Pool,
    /// Tokens whose n-grams are in the pool.
    pooled: usize,
    /// The number of tokens that were taken from the prompt to fill the window.
    picked: u64,
    end_tokens: Vec<Token>,
    /// Length of the sequence when the window's probes were asked for, if they were.
    asked_at: Option<usize>,
}

impl Default for JacobiDrafter {
    /// W = 3, N = 4, G = 2: with the pending token 15 rows at most, 6 of them nodes.
    fn default() -> JacobiDrafter {
        JacobiDrafter::new(3, 4, 2)
    }
}

impl JacobiDrafter {
    /// A drafter with a window of `columns` (W) columns, n-grams of `ngram` (N) tokens, and at most `guesses_max` (G)
    /// of them verified in a pass. The authors use W = 15, N = 5 and G = 15 for a 7 B model on a GPU, where rows are
    /// free.
    ///
    /// # Panics
    ///
    /// Panics if `columns` or `guesses_max` is 0 or `ngram` is less than 3.
    pub fn new(columns: usize, ngram: usize, guesses_max: usize) -> JacobiDrafter {
        assert!(columns >= 1 && guesses_max >= 1, "a window of {columns} columns and {guesses_max} guesses");
        assert!(ngram >= 3, "n-grams of {ngram} tokens");
        JacobiDrafter {
            pool_from_text: true,
            keeps_pace: false,
            columns,
            ngram,
            guesses_max,
            sequences: BTreeMap::new(),
        }
    }

    /// Maximum number of rows of a window: those of the full one, (N - 1) W - 1, or of a narrow one while it is being
    /// filled.
    pub fn probes(&self) -> usize {
        let rows = |levels: usize| widths(self.columns, self.ngram, levels).sum();
        (1..self.ngram).map(rows).max().unwrap_or(0)
    }

    /// Offers the n-grams of the pool that begin with the pending token, the latest first.
    fn offer_guesses(&self, ask: &mut Ask<'_>, state: &State) {
        let guesses: Vec<&[Token]> = state.pool.guesses(ask.tokens[ask.tokens.len() - 1]).collect();
        for guess in &guesses {
            let mut parent: Option<NodeId> = None;
            let mut gain = 1.0;
            for (i, &token) in guess.iter().enumerate() {
                if !ask.has_room() {
                    return;
                }
                let before = guesses.iter().filter(|other| other[..i] == guess[..i]).count();
                let with = guesses.iter().filter(|other| other[..=i] == guess[..=i]).count();
                let acceptance = AGREEMENT * with as f32 / before as f32;
                let known = ask.tree.child(parent, token);
                let own = known.is_some_and(|node| ask.tree.offers_of(node).any(|offer| offer.source == ask.source));
                parent = match known.filter(|_| own) {
                    Some(node) => Some(node),
                    None => {
                        let evidence = Evidence::estimate(acceptance);
                        Some(ask.tree.suggest(parent, token, Proposal::Point, ask.source, evidence))
                    }
                };
                gain *= acceptance;
                if !ask.is_confident(acceptance, gain) {
                    break;
                }
            }
        }
    }
}

/// Estimated probability that one of the n-grams at a node has the right next token.
const AGREEMENT: f32 = 0.6;

impl State {
    fn new(prompt: &[Token], columns: usize, ngram: usize, guesses_max: usize) -> State {
        let mut state = State {
            columns,
            prompt: prompt.to_vec(),
            levels: Vec::new(),
            pool: Pool::new(ngram, guesses_max),
            pooled: 0,
            picked: 0,
            end_tokens: Vec::new(),
            asked_at: None,
        };
        let trunk = widths(columns, ngram, 1).sum();
        let trunk = (0..trunk).map(|_| state.pick()).collect();
        state.levels.push(trunk);
        state
    }

    /// A token of the prompt, a different one each time.
    fn pick(&mut self) -> Token {
        self.picked += 1;
        let hash = self.picked.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (self.prompt.len() as u64) << 32;
        let hash = (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.prompt.get(((hash >> 32) % self.prompt.len().max(1) as u64) as usize).copied().unwrap_or(0)
    }

    /// Rows of the window as it is.
    fn rows(&self) -> usize {
        self.levels.iter().map(Vec::len).sum()
    }

    /// Asks for the rows of the window: the trunk, then the levels of each column.
    fn ask(&mut self, len: usize, probes: &mut Probes, source: u8) {
        self.asked_at = None;
        if probes.room() < self.rows() {
            return;
        }
        self.asked_at = Some(len);
        let mut trunk: Vec<Option<usize>> = vec![None];
        for &token in &self.levels[0] {
            let parent = trunk[trunk.len() - 1];
            trunk.push(Some(probes.ask(parent, token, source)));
        }
        for column in 0..self.levels.get(1).map_or(0, Vec::len) {
            let mut parent = trunk[column];
            for level in &self.levels[1..] {
                parent = Some(probes.ask(parent, level[column], source));
            }
        }
    }

    /// The most probable token after the last level of each column, in the order in which [`State::ask`] asked.
    fn results(&mut self, logits: &[&[f32]]) -> Vec<Token> {
        assert!(logits.len() == self.rows(), "{} rows for a window of {}", logits.len(), self.rows());
        let (trunk, depth) = (self.levels[0].len(), self.levels.len() - 1);
        let columns = self.levels[depth].len();
        (0..columns)
            .map(|column| {
                let row = if depth == 0 { column } else { trunk + (column + 1) * depth - 1 };
                let token = argmax(logits[row]) as Token;
                if self.end_tokens.contains(&token) { self.pick() } else { token }
            })
            .collect()
    }

    /// Moves the window after a pass in which it was run after the token `pending`; by `columns_max` columns, but at
    /// most by its width.
    fn advance(&mut self, pending: Token, results: Vec<Token>, columns_max: usize) {
        let ngram = self.pool.ngram();
        if self.levels.len() < ngram - 1 {
            // Filling: every level loses its first column, except the first one above the trunk.
            self.levels.push(results);
            let last = self.levels.len() - 1;
            let first = if last == 1 { last } else { self.levels.len() };
            for level in &mut self.levels[..first] {
                level.remove(0);
            }
            return;
        }
        let mut found = Vec::with_capacity(ngram);
        for column in 0..results.len() {
            found.clear();
            found.push(if column == 0 { pending } else { self.levels[0][column - 1] });
            found.extend(self.levels[1..].iter().map(|level| level[column]));
            found.push(results[column]);
            self.pool.add(&found);
        }
        self.levels.push(results);
        self.levels.remove(0);
        self.levels[0].remove(0);
        for _ in 1..columns_max.min(self.columns) {
            for level in 0..self.levels.len() {
                let token = self.pick();
                self.levels[level].push(token);
                self.levels[level].remove(0);
            }
        }
    }

    /// Adds the n-grams of the sequence that are not in the pool yet.
    fn pool_text(&mut self, tokens: &[Token]) {
        let ngram = self.pool.ngram();
        for end in self.pooled.max(ngram - 1)..tokens.len() {
            self.pool.add(&tokens[end + 1 - ngram..=end]);
        }
        self.pooled = self.pooled.max(tokens.len());
    }
}

impl Drafter for JacobiDrafter {
    fn name(&self) -> &str {
        "jacobi"
    }

    fn needs(&self) -> Needs {
        Needs { probes_max: self.probes(), ..Needs::default() }
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let state = State::new(opening.prompt, self.columns, self.ngram, self.guesses_max);
        let before = self.sequences.insert(opening.sequence, state);
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let state = self.sequences.get_mut(&ask.sequence);
            let state = state.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
            if self.pool_from_text {
                state.pool_text(ask.written());
            }
            state.end_tokens.clone_from(&ask.sampling.end_tokens);
            state.ask(ask.tokens.len(), ask.probes, ask.source);
            self.offer_guesses(ask, &self.sequences[&ask.sequence]);
        }
    }

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        for output in outputs {
            let state = self.sequences.get_mut(&output.sequence);
            let state = state.unwrap_or_else(|| panic!("{:?} was not opened", output.sequence));
            let Some(len) = state.asked_at.take().filter(|_| !output.probes.is_empty()) else { continue };
            let results = state.results(output.probes);
            let columns_max = if self.keeps_pace { output.tokens.len() - len } else { 1 };
            state.advance(output.tokens[len - 1], results, columns_max);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}

#[cfg(test)]
mod tests;
