//! A law: a probability distribution over the next token.
//!
//! It is sparse and sorted by token, so that after top-k or top-p every operation takes time only for the few tokens
//! that are left. Without such a filter a law lists the whole vocabulary, with 12 bytes a token. So laws take their
//! memory from a pool and return it when they are dropped, and a law made of another uses the same pool: passes
//! allocate nothing in proportion to the vocabulary. Clones share their memory.
//!
//! Probabilities are `f64`: they are added up, subtracted from each other and compared, and tests require the sums to
//! be right to 1e-12.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::exponential::sum;
use crate::Token;

/// A probability distribution over the next token, after all sampling settings: the tokens of positive probability in
/// ascending order, summing to 1 up to rounding. Cheap to clone.
#[derive(Clone)]
pub struct Law(Support);

/// A point mass needs no memory, so greedy decoding allocates no law.
#[derive(Clone)]
enum Support {
    Point([Token; 1]),
    Several(Arc<Several>),
}

/// At least two tokens and their probabilities, in memory that is returned to its pool.
struct Several {
    tokens: Vec<Token>,
    probabilities: Vec<f64>,
    pool: LawPool,
}

/// The memory of dropped laws, for new ones: as many as were in use at once. Clones of the pool share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LawPool(Arc<Mutex<Vec<LawMemory>>>);

type LawMemory = (Vec<Token>, Vec<f64>);

impl LawPool {
    /// The law proportional to positive weights of ascending tokens, with the sum of the weights; `None` if there is no
    /// token.
    ///
    /// # Panics
    ///
    /// Panics if the sum is not finite.
    pub(super) fn law(&self, weights: impl IntoIterator<Item = (Token, f64)>) -> Option<(Law, f64)> {
        let mut memory = self.memory();
        memory.0.clear();
        memory.1.clear();
        let weights = weights.into_iter();
        // Memory is reserved once for all tokens that there may be, instead of growing by doubling.
        let most = weights.size_hint().1.unwrap_or(0);
        memory.0.reserve(most);
        memory.1.reserve(most);
        memory.extend(weights);
        let sum = sum(&memory.1);
        self.normalized(memory, sum).map(|law| (law, sum))
    }

    /// The law proportional to the weights of all tokens of a row, from token 0 on. `weigh` writes them into a slice of
    /// `len` and returns their sum; tokens of weight zero are left out.
    ///
    /// # Panics
    ///
    /// As [`LawPool::law`].
    pub(super) fn law_of_row(&self, len: usize, weigh: impl FnOnce(&mut [f64]) -> f64) -> Option<Law> {
        let (mut tokens, mut probabilities) = self.memory();
        // Usually this memory held the law of such a row before. The tokens of a law ascend, so if there are `len` of
        // them and the last is `len - 1`, they are all tokens of the row.
        if tokens.len() != len || tokens.last().is_some_and(|&last| last as usize != len - 1) {
            tokens.clear();
            tokens.extend(0..len as Token);
        }
        probabilities.resize(len, 0.0);
        let sum = weigh(&mut probabilities);
        self.normalized((tokens, probabilities), sum)
    }

    /// Memory for a law, with the content of the law that used it last.
    fn memory(&self) -> LawMemory {
        self.0.lock().ok().and_then(|mut unused| unused.pop()).unwrap_or_default()
    }

    /// The law proportional to these weights, none of them negative; `None` if there is no token.
    ///
    /// # Panics
    ///
    /// As [`LawPool::law`].
    fn normalized(&self, (tokens, probabilities): LawMemory, sum: f64) -> Option<Law> {
        let mut law = Several { tokens, probabilities, pool: self.clone() };
        debug_assert!(law.tokens.is_sorted_by(|a, b| a < b) && law.probabilities.iter().all(|&weight| weight >= 0.0));
        if law.tokens.is_empty() {
            return None;
        }
        assert!(sum > 0.0 && sum.is_finite(), "the weights of a law sum to {sum}");
        law.scale(sum);
        match law.tokens[..] {
            [token] => Some(Law::point(token)),
            _ => Some(Law(Support::Several(Arc::new(law)))),
        }
    }
}

impl Several {
    /// Divides all weights by their sum, and leaves out the tokens whose probability is then 0: by definition the
    /// support has none of them.
    fn scale(&mut self, sum: f64) {
        let share = 1.0 / sum;
        if share.is_finite() {
            // A product takes a third of the time of a division.
            self.probabilities.iter_mut().for_each(|weight| *weight *= share);
        } else {
            self.probabilities.iter_mut().for_each(|weight| *weight /= sum);
        }
        // There is no early exit, so that this compiles to vector code: nearly all laws have no zero.
        if self.probabilities.iter().fold(false, |found, &weight| found | (weight == 0.0)) {
            let mut is_possible = self.probabilities.iter().map(|&weight| weight > 0.0);
            self.tokens.retain(|_| is_possible.next().expect("as many as tokens"));
            self.probabilities.retain(|&weight| weight > 0.0);
        }
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        let memory = (std::mem::take(&mut self.tokens), std::mem::take(&mut self.probabilities));
        if let Ok(mut unused) = self.pool.0.lock() {
            unused.push(memory);
        }
    }
}

impl Law {
    /// The point mass on a token, which greedy decoding samples from.
    pub fn point(token: Token) -> Law {
        Law(Support::Point([token]))
    }

    /// The law proportional to these weights, in any order; zero weights are left out.
    ///
    /// # Panics
    ///
    /// Panics if a weight is negative or not finite, if a token occurs twice, or if no weight is positive.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (Token, f64)>) -> Law {
        let mut pairs: Vec<(Token, f64)> = pairs.into_iter().collect();
        for &(token, weight) in &pairs {
            assert!(weight.is_finite() && weight >= 0.0, "token {token} has weight {weight}");
        }
        pairs.sort_unstable_by_key(|&(token, _)| token);
        for pair in pairs.windows(2) {
            assert!(pair[0].0 != pair[1].0, "token {} comes twice", pair[0].0);
        }
        let positive = pairs.into_iter().filter(|&(_, weight)| weight > 0.0);
        let (law, _) = LawPool::default().law(positive).expect("at least one weight of a law is positive");
        law
    }

    /// The law with the same probabilities for other tokens: token i becomes `row_tokens[i]`, which ascend.
    ///
    /// # Panics
    ///
    /// Panics if the law has clones.
    pub(super) fn with_tokens(self, row_tokens: &[Token]) -> Law {
        match self.0 {
            Support::Point([token]) => Law::point(row_tokens[token as usize]),
            Support::Several(mut law) => {
                let several = Arc::get_mut(&mut law).expect("a law without clones");
                several.tokens.iter_mut().for_each(|token| *token = row_tokens[*token as usize]);
                Law(Support::Several(law))
            }
        }
    }

    /// The tokens of positive probability, ascending.
    pub fn tokens(&self) -> &[Token] {
        match &self.0 {
            Support::Point(token) => token,
            Support::Several(law) => &law.tokens,
        }
    }

    /// The probabilities of [`Law::tokens`], in the same order.
    pub fn probabilities(&self) -> &[f64] {
        match &self.0 {
            Support::Point(_) => &[1.0],
            Support::Several(law) => &law.probabilities,
        }
    }

    /// The probability of a token; zero outside the support.
    pub fn probability(&self, token: Token) -> f64 {
        self.tokens().binary_search(&token).map_or(0.0, |i| self.probabilities()[i])
    }

    /// The tokens with their probabilities, ascending by token.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Token, f64)> + '_ {
        self.tokens().iter().copied().zip(self.probabilities().iter().copied())
    }

    /// Sum of min(p, q) over all tokens: the probability that a token drawn from the other law is accepted, alpha at
    /// one position (Leviathan et al. 2023, Theorem 3.5). It is 1 for equal laws.
    pub fn overlap(&self, other: &Law) -> f64 {
        self.paired_with(other.iter()).map(|(_, p, q)| p.min(q)).sum()
    }

    /// The residual of `weight` times this law after `other`: the law norm((w p - q)+), and its sum before it was
    /// normalized; `None` if nothing is left. `other` is ascending by token.
    pub(crate) fn minus(&self, weight: f64, other: impl Iterator<Item = (Token, f64)>) -> Option<(Law, f64)> {
        let pool = match &self.0 {
            Support::Point(_) => LawPool::default(),
            Support::Several(law) => law.pool.clone(),
        };
        let left = self.paired_with(other).map(|(token, p, q)| (token, weight * p - q));
        pool.law(left.filter(|&(_, left)| left > 0.0))
    }

    /// The tokens of this law, each with its probabilities here and in `other`, which is ascending by token.
    fn paired_with(&self, other: impl Iterator<Item = (Token, f64)>) -> impl Iterator<Item = (Token, f64, f64)> {
        let mut other = other.peekable();
        self.iter().map(move |(token, p)| {
            while other.next_if(|&(of_other, _)| of_other < token).is_some() {}
            let q = other.next_if(|&(of_other, _)| of_other == token).map_or(0.0, |(_, q)| q);
            (token, p, q)
        })
    }

    /// Number of tokens of positive probability, at least 1.
    pub fn support_len(&self) -> usize {
        self.tokens().len()
    }

    /// Whether only one token is possible.
    pub fn is_point(&self) -> bool {
        self.support_len() == 1
    }
}

impl PartialEq for Law {
    fn eq(&self, other: &Law) -> bool {
        self.tokens() == other.tokens() && self.probabilities() == other.probabilities()
    }
}

impl fmt::Debug for Law {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}
