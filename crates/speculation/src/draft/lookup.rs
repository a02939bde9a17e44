//! Prompt lookup: what followed the last time these tokens were written.
//!
//! The longest run of last tokens, from `ngram_max` tokens down to `ngram_min`, that was written before is found, its
//! latest occurrence wins, and what followed there is proposed (Saxena 2023; transformers' `prompt_lookup_num_tokens`,
//! which takes the earliest occurrence instead). Where the copy reaches the end of the text it goes on reading what it
//! just proposed, as LZ77 does, so that a text of period 1 gets a whole chain and not one token.
//!
//! The index is a list per n-gram length: for each position, the position before it where an n-gram of the same hash
//! ended. The last entry of the list is the answer. Going back pops entries and undoes them in the map, so it costs what
//! it forgets. Hashes may collide; a candidate is compared, and the chain walked on if it was another n-gram.
//!
//! Left out: learning across sequences, and branching where an n-gram was followed by different tokens.

use std::collections::{BTreeMap, HashMap};

use crate::draft::{Ask, Drafter};
use crate::{Chance, NodeId, Proposal, SequenceId, Tenant, Token};

/// A [`Drafter`] that copies from the sequence itself. Proposes point masses; needs no model and no chance.
#[derive(Debug)]
pub struct LookupDrafter {
    /// Longest run of last tokens that is looked up (transformers' `max_matching_ngram_size`).
    ngram_max: usize,
    /// Shortest run that counts as a match.
    ngram_min: usize,
    /// Most tokens proposed per pass (transformers' `prompt_lookup_num_tokens`).
    tokens_max: usize,
    indexes: BTreeMap<SequenceId, Index>,
}

impl Default for LookupDrafter {
    /// Runs of 3 tokens down to 1, and 10 tokens proposed. transformers' default is 2 down to 1 and 10, llama.cpp's
    /// n-gram drafter looks for 12: since the longest match wins, a longer maximum costs only its index.
    fn default() -> LookupDrafter {
        LookupDrafter::new(1, 3, 10)
    }
}

impl LookupDrafter {
    /// A drafter that matches runs of `ngram_max` down to `ngram_min` tokens, and proposes up to `tokens_max`.
    ///
    /// # Panics
    ///
    /// Panics if `ngram_min` is 0 or more than `ngram_max`.
    pub fn new(ngram_min: usize, ngram_max: usize, tokens_max: usize) -> LookupDrafter {
        assert!(1 <= ngram_min && ngram_min <= ngram_max, "n-grams of {ngram_min} to {ngram_max} tokens");
        LookupDrafter { ngram_min, ngram_max, tokens_max, indexes: BTreeMap::new() }
    }
}

impl Drafter for LookupDrafter {
    fn name(&self) -> &str {
        "lookup"
    }

    fn open(&mut self, sequence: SequenceId, prompt: &[Token], _tenant: Tenant) {
        let mut index = Index::new(self.ngram_min, self.ngram_max);
        index.extend(prompt);
        let before = self.indexes.insert(sequence, index);
        assert!(before.is_none(), "{sequence:?} was opened twice");
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let index = self.indexes.get_mut(&ask.sequence);
            let index = index.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
            index.extend(ask.tokens);
            let Some(from) = index.latest_match(ask.tokens) else { continue };
            let mut parent: Option<NodeId> = None;
            for token in copy(ask.tokens, from, self.tokens_max) {
                if !ask.has_room() {
                    break;
                }
                parent = Some(ask.tree.offer(parent, token, Proposal::Point, ask.source));
            }
        }
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) {
        let index = self.indexes.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        index.truncate(len);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.indexes.remove(&sequence);
    }
}

/// What follows position `from`, running on into the copy itself at the end of the text.
fn copy(tokens: &[Token], from: usize, len: usize) -> impl Iterator<Item = Token> + '_ {
    let period = tokens.len() - from;
    (0..len).map(move |i| tokens[from + i % period])
}

/// Where each n-gram of one sequence was seen last.
#[derive(Debug, PartialEq)]
struct Index {
    ngram_min: usize,
    /// One per length from `ngram_min` up.
    lengths: Vec<Occurrences>,
    /// How many tokens are indexed.
    len: usize,
}

/// The occurrences of all n-grams of one length.
#[derive(Debug, Default, PartialEq)]
struct Occurrences {
    /// Hash of an n-gram to the latest position where one of that hash ends.
    latest: HashMap<u64, u32>,
    /// For each position where an n-gram ends (the first ends at n - 1): its hash, and where the one before ended.
    ends: Vec<(u64, Option<u32>)>,
}

impl Index {
    fn new(ngram_min: usize, ngram_max: usize) -> Index {
        let lengths = (ngram_min..=ngram_max).map(|_| Occurrences::default()).collect();
        Index { ngram_min, lengths, len: 0 }
    }

    /// Indexes the tokens beyond those known; the known ones are taken to be the same.
    fn extend(&mut self, tokens: &[Token]) {
        for end in self.len..tokens.len() {
            for (i, occurrences) in self.lengths.iter_mut().enumerate() {
                let n = self.ngram_min + i;
                if end + 1 >= n {
                    let hash = hash(&tokens[end + 1 - n..=end]);
                    let end = u32::try_from(end).expect("sequences of fewer than 2^32 tokens");
                    occurrences.ends.push((hash, occurrences.latest.insert(hash, end)));
                }
            }
        }
        self.len = self.len.max(tokens.len());
    }

    /// Forgets all but the first `len` tokens.
    fn truncate(&mut self, len: usize) {
        for (i, occurrences) in self.lengths.iter_mut().enumerate() {
            let ngrams = (len + 1).saturating_sub(self.ngram_min + i);
            while occurrences.ends.len() > ngrams {
                match occurrences.ends.pop() {
                    Some((hash, Some(before))) => occurrences.latest.insert(hash, before),
                    Some((hash, None)) => occurrences.latest.remove(&hash),
                    None => None,
                };
            }
        }
        self.len = self.len.min(len);
    }

    /// The position after the latest earlier occurrence of the longest run of last tokens.
    fn latest_match(&self, tokens: &[Token]) -> Option<usize> {
        assert!(self.len == tokens.len(), "{} tokens indexed of {}", self.len, tokens.len());
        for (i, occurrences) in self.lengths.iter().enumerate().rev() {
            let n = self.ngram_min + i;
            let Some(&(_, mut candidate)) = occurrences.ends.last() else { continue };
            while let Some(end) = candidate {
                let after = end as usize + 1;
                if tokens[after - n..after] == tokens[tokens.len() - n..] {
                    return Some(after);
                }
                candidate = occurrences.ends[after - n].1;
            }
        }
        None
    }
}

/// A 64-bit hash of an n-gram: multiply and fold, as in wyhash. Quality matters little, since matches are compared.
fn hash(ngram: &[Token]) -> u64 {
    ngram.iter().fold(0x9e37_79b9_7f4a_7c15, |state, &token| {
        let product = u128::from(state ^ u64::from(token)) * 0xa076_1d64_78bd_642f;
        (product as u64) ^ ((product >> 64) as u64)
    })
}

#[cfg(test)]
mod tests;
