//! A log of tokens, indexed by its n-grams: where each of them occurred before.
//!
//! For a few lengths n, every n-gram of the log is a *node*: the position where it ended first. Nodes are listed in
//! buckets by the hash of the n-gram; all later ends of an n-gram are a list, from the latest to the first. Two numbers
//! per position hold both: `links` is the bucket's next node at a first end and the previous end at any other, and
//! `marks` is the latest end at a first end and the first end at any other. N-grams are compared with the log itself,
//! so hashes may collide, and no n-gram is hidden by a more frequent one, as it would be in a hash chain of positions.
//!
//! The table of buckets doubles by appending a copy of itself: old nodes are then listed in both halves, new ones in
//! one. Nothing is hashed again.
//!
//! A suffix automaton would give the longest match at once, but takes hundreds of bytes per token; this index takes
//! `4 + 8 L` bytes for L lengths, and 4 to 8 per length for buckets. The true length of a match is found by comparing
//! backwards, from the ends of the longest n-gram that matches. Old texts cannot be removed from a history: callers
//! drop whole histories.

use foretoken_speculation::Token;

/// The separator of two texts of one log. No n-gram contains it, and no match or continuation goes past it.
pub(super) const END: Token = Token::MAX;

/// No position.
const NONE: u32 = u32::MAX;
/// Minimum number of buckets.
const BUCKETS_MIN: usize = 16;
/// Maximum number of nodes of a bucket that are searched, so that tokens that were chosen to collide cost no more than
/// others. An n-gram beyond them gets a second node, and its earlier ends are no longer found. Buckets without an
/// attack have about one node.
const NODES_MAX: usize = 32;

/// A log of tokens and the ends of its n-grams.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct History {
    tokens: Vec<Token>,
    /// One per length, shortest first.
    lengths: Vec<Ends>,
}

/// The ends of all n-grams of one length.
#[derive(Clone, Debug, PartialEq)]
struct Ends {
    n: usize,
    /// By hash: the newest node.
    buckets: Vec<u32>,
    links: Vec<u32>,
    marks: Vec<u32>,
}

impl History {
    /// An empty log that indexes n-grams of these lengths, shortest first.
    pub(super) fn new(lengths: impl IntoIterator<Item = usize>) -> History {
        let ends = |n| Ends { n, buckets: vec![NONE; BUCKETS_MIN], links: Vec::new(), marks: Vec::new() };
        let lengths: Vec<Ends> = lengths.into_iter().map(ends).collect();
        assert!(lengths.is_sorted_by_key(|ends| ends.n), "lengths of n-grams, shortest first: {lengths:?}");
        History { tokens: Vec::new(), lengths }
    }

    /// All tokens.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        let numbers = |ends: &Ends| ends.buckets.capacity() + ends.links.capacity() + ends.marks.capacity();
        4 * (self.tokens.capacity() + self.lengths.iter().map(numbers).sum::<usize>())
    }

    /// Appends the tokens beyond those in the log; the first ones are assumed to be the same.
    pub(super) fn extend_to(&mut self, tokens: &[Token]) {
        for &token in tokens.get(self.len()..).unwrap_or(&[]) {
            self.push(token);
        }
    }

    /// Appends a token.
    pub(super) fn push(&mut self, token: Token) {
        assert!(self.len() < NONE as usize, "a history of fewer than 2^32 tokens");
        push_exactly(&mut self.tokens, token);
        self.lengths.iter_mut().for_each(|ends| ends.push(&self.tokens));
    }

    /// The lengths of n-grams that are indexed, the longest first.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.lengths.iter().rev().map(|ends| ends.n)
    }

    /// The position of the last token of this n-gram where it was written first.
    pub(super) fn first_end(&self, ngram: &[Token]) -> Option<usize> {
        let ends = self.lengths.iter().find(|ends| ends.n == ngram.len())?;
        ends.node(&self.tokens, ngram).map(|first| first as usize)
    }

    /// The positions of the last token of this n-gram wherever it was written, the latest first.
    pub(super) fn ends(&self, ngram: &[Token]) -> impl Iterator<Item = usize> + '_ {
        let ends = self.lengths.iter().find(|ends| ends.n == ngram.len());
        let start = ends.and_then(|ends| {
            let first = ends.node(&self.tokens, ngram)?;
            Some((ends, first, ends.marks[first as usize]))
        });
        std::iter::successors(start, |&(ends, first, end)| {
            (end != first).then(|| (ends, first, ends.links[end as usize]))
        })
        .map(|(_, _, end)| end as usize)
    }
}

impl Ends {
    fn bucket(&self, ngram: &[Token]) -> usize {
        hash(ngram) as usize & (self.buckets.len() - 1)
    }

    /// The first end of this n-gram.
    fn node(&self, tokens: &[Token], ngram: &[Token]) -> Option<u32> {
        let mut node = self.buckets[self.bucket(ngram)];
        for _ in 0..NODES_MAX {
            if node == NONE {
                return None;
            }
            let after = node as usize + 1;
            if tokens[after - self.n..after] == *ngram {
                return Some(node);
            }
            node = self.links[node as usize];
        }
        None
    }

    /// Indexes the n-gram at the end of `tokens`.
    fn push(&mut self, tokens: &[Token]) {
        if tokens.len() > self.buckets.len() {
            self.buckets.extend_from_within(..);
        }
        let end = tokens.len() as u32 - 1;
        let (mut link, mut mark) = (NONE, NONE);
        let ngram = &tokens[tokens.len().saturating_sub(self.n)..];
        if ngram.len() == self.n && !ngram.contains(&END) {
            if let Some(first) = self.node(tokens, ngram) {
                let latest = &mut self.marks[first as usize];
                (link, mark) = (*latest, first);
                *latest = end;
            } else {
                let bucket = self.bucket(ngram);
                (link, mark) = (self.buckets[bucket], end);
                self.buckets[bucket] = end;
            }
        }
        push_exactly(&mut self.links, link);
        push_exactly(&mut self.marks, mark);
    }
}

/// Pushes with an eighth of slack; [`Vec::push`] would double the capacity.
fn push_exactly<T>(vec: &mut Vec<T>, value: T) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact((vec.len() / 8).max(64));
    }
    vec.push(value);
}

/// A 64-bit hash of an n-gram: multiply and fold, as in wyhash. Collisions only cost time, since n-grams are compared.
fn hash(ngram: &[Token]) -> u64 {
    ngram.iter().fold(0x9e37_79b9_7f4a_7c15, |state, &token| {
        let product = u128::from(state ^ u64::from(token)) * 0xa076_1d64_78bd_642f;
        (product as u64) ^ ((product >> 64) as u64)
    })
}

#[cfg(test)]
mod tests;
