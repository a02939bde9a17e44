//! Tiny language models: a vocabulary of a few tokens, and a row of logits for every context.
//!
//! They are so small that every text of a few tokens can be listed with its probability, so laws can be compared
//! exactly instead of by sampling. Rows may hold minus infinity, for tokens of probability zero.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use foretoken_drafters::{LogitRows, ScoreAsk, Scorer};
use foretoken_speculation::{Context, Law, Opening, Sampling, SequenceId, Token};

/// The probability of every text of one length.
pub type Joint = BTreeMap<Vec<Token>, f64>;

type Row = dyn Fn(&[Token]) -> Vec<f32> + Send + Sync;

/// A language model as a function from all tokens so far to logits.
#[derive(Clone)]
pub struct Table {
    vocabulary: usize,
    row: Arc<Row>,
}

impl fmt::Debug for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Table").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Table {
    /// The model with these rows.
    pub fn new(vocabulary: usize, row: impl Fn(&[Token]) -> Vec<f32> + Send + Sync + 'static) -> Table {
        Table { vocabulary, row: Arc::new(row) }
    }

    /// The model whose next token has these probabilities after any context.
    pub fn constant(probabilities: &[f64]) -> Table {
        let row = logits_of(probabilities);
        Table::new(row.len(), move |_| row.clone())
    }

    /// A model drawn from a seed. Its rows depend on the last `order` tokens; about one token in five is impossible.
    pub fn seeded(vocabulary: usize, order: usize, seed: u64) -> Table {
        Table::drawn(vocabulary, order, seed, 5)
    }

    /// Like [`Table::seeded`], without impossible tokens.
    pub fn dense(vocabulary: usize, order: usize, seed: u64) -> Table {
        Table::drawn(vocabulary, order, seed, u64::MAX)
    }

    /// A model drawn from a seed, in which one token in `impossible` has probability zero.
    fn drawn(vocabulary: usize, order: usize, seed: u64, impossible: u64) -> Table {
        Table::new(vocabulary, move |tokens| {
            let last = &tokens[tokens.len().saturating_sub(order)..];
            let state = last.iter().fold(mix(seed), |state, &token| mix(state ^ u64::from(token) ^ 0xabcd_0000));
            let noise = |token: usize| mix(state.wrapping_add(token as u64 + 1));
            let certain = (mix(state) % vocabulary as u64) as usize;
            let logit = |token: usize| match noise(token) % impossible {
                0 if token != certain => f32::NEG_INFINITY,
                _ => (noise(token) >> 40) as f32 / (1 << 24) as f32 * 4.0 - 2.0,
            };
            (0..vocabulary).map(logit).collect()
        })
    }

    /// The model for sequences with this encoder source, whose rows also depend on all of the source's tokens and their
    /// order.
    pub fn with_source(&self, source: &[Token]) -> Table {
        let state = source.iter().fold(mix(source.len() as u64), |state, token| mix(state ^ u64::from(*token)));
        let (table, vocabulary) = (self.clone(), self.vocabulary as u64);
        Table::new(self.vocabulary, move |tokens| {
            let other = |(i, token): (usize, &Token)| {
                let from_end = (tokens.len() - i) as u64;
                ((u64::from(*token) + mix(state ^ from_end) % vocabulary) % vocabulary) as Token
            };
            let mut row = table.logits(&tokens.iter().enumerate().map(other).collect::<Vec<_>>());
            row.rotate_right((state % vocabulary) as usize);
            row
        })
    }

    /// Number of tokens.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The logits of the token after these.
    pub fn logits(&self, tokens: &[Token]) -> Vec<f32> {
        let row = (self.row)(tokens);
        assert!(row.len() == self.vocabulary, "a row of {} for a vocabulary of {}", row.len(), self.vocabulary);
        row
    }

    /// The law of the token after `tokens` and then `path`, under these settings.
    pub fn law(&self, sampling: &Sampling, tokens: &[Token], prompt_len: usize, path: &[Token]) -> Law {
        let logits = self.logits(&[tokens, path].concat());
        sampling.law(&logits, &Context { tokens, prompt_len, path, constraint: None })
    }

    /// The law of the next `len` tokens under plain decoding, with which everything else is compared.
    pub fn plain(&self, sampling: &Sampling, prompt: &[Token], len: usize) -> Joint {
        let mut texts = Joint::from([(Vec::new(), 1.0)]);
        for _ in 0..len {
            let mut longer = Joint::new();
            for (text, probability) in texts {
                let tokens = [prompt, &text].concat();
                for (token, p) in self.law(sampling, &tokens, prompt.len(), &[]).iter() {
                    longer.insert([&text[..], &[token]].concat(), probability * p);
                }
            }
            texts = longer;
        }
        texts
    }
}

/// The logits of these probabilities.
pub fn logits_of(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() as f32).collect()
}

/// The largest difference between two laws, over all texts.
pub fn distance(a: &Joint, b: &Joint) -> f64 {
    let one_way = |a: &Joint, b: &Joint| {
        let gap = |(text, p): (&Vec<Token>, &f64)| (p - b.get(text).unwrap_or(&0.0)).abs();
        a.iter().map(gap).fold(0.0, f64::max)
    };
    one_way(a, b).max(one_way(b, a))
}

/// The largest amount by which a token's probability exceeds `factor` times its probability under the target's law, in
/// texts after a prompt: given the tokens before it, over all prefixes of the texts that are found. Not above 0, up to
/// rounding, if the factor is a bound.
pub fn excess(found: &Joint, target: &Table, sampling: &Sampling, prompt: &[Token], factor: f64) -> f64 {
    let mut prefixes = Joint::new();
    for (text, probability) in found {
        (0..=text.len()).for_each(|len| *prefixes.entry(text[..len].to_vec()).or_insert(0.0) += probability);
    }
    let mut largest = f64::NEG_INFINITY;
    for (prefix, probability) in &prefixes {
        let Some((token, before)) = prefix.split_last() else { continue };
        let p = target.law(sampling, &[prompt, before].concat(), prompt.len(), &[]).probability(*token);
        largest = largest.max(probability / prefixes[before] - factor * p);
    }
    largest
}

/// A [`Scorer`] over a table. It checks that it is only asked to run rows that follow its cached ones.
#[derive(Clone, Debug)]
pub struct TableScorer {
    table: Table,
    /// Maximum number of tokens of a sequence that it runs.
    pub context_max: usize,
    /// Maximum number of rows of a sequence that it has room for; beyond that it gives empty rows.
    pub room: usize,
    /// Whether it can only go back by dropping all rows of a sequence.
    pub forgets: bool,
    /// The number of calls, and of rows that they computed.
    pub counts: (usize, usize),
    caches: BTreeMap<SequenceId, Vec<Token>>,
}

impl TableScorer {
    /// A scorer without bounds.
    pub fn new(table: Table) -> TableScorer {
        let (context_max, room, forgets) = (usize::MAX, usize::MAX, false);
        TableScorer { table, context_max, room, forgets, counts: (0, 0), caches: BTreeMap::new() }
    }

    /// The cached tokens of a sequence, row by row.
    pub fn cached(&self, sequence: SequenceId) -> &[Token] {
        &self.caches[&sequence]
    }

    /// The tokens that lead to a row of a span, itself included.
    fn path(cache: &[Token], ask: &ScoreAsk<'_>, row: u32) -> Vec<Token> {
        let parent = |row: u32| match ask.parents.is_empty() {
            true => row.checked_sub(1),
            false => ask.parents[row as usize],
        };
        let mut path: Vec<Token> = Vec::new();
        let mut at = Some(row);
        while let Some(row) = at {
            path.push(cache[ask.start + row as usize]);
            at = parent(row).inspect(|parent| assert!(*parent < row, "row {row} continues row {parent}"));
        }
        path.extend(cache[..ask.start].iter().rev());
        path.reverse();
        path
    }
}

impl Scorer for TableScorer {
    fn open(&mut self, opening: &Opening<'_>) {
        let sequence = opening.sequence;
        assert!(self.caches.insert(sequence, Vec::new()).is_none(), "{sequence:?} was opened twice");
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        self.counts.0 += 1;
        for ask in asks {
            let cache = self.caches.get_mut(&ask.sequence).expect("an open sequence");
            let cached = ask.start + ask.computed;
            assert!(cache.len() == cached, "{} rows cached, asked from {cached}", cache.len());
            assert!(cache[ask.start..] == ask.tokens[..ask.computed], "{cache:?} for {ask:?}");
            assert!(ask.tokens.len() > ask.computed, "nothing to run at {cached}");
            assert!(ask.wanted.iter().all(|row| (*row as usize) >= ask.computed), "a computed row is wanted: {ask:?}");
            if ask.start + ask.tokens.len() > self.room {
                ask.wanted.iter().for_each(|_| rows.push(None));
                continue;
            }
            cache.extend(&ask.tokens[ask.computed..]);
            self.counts.1 += ask.tokens.len() - ask.computed;
            for row in ask.wanted {
                let path = TableScorer::path(cache, ask, *row);
                assert!(path.len() <= self.context_max, "{} tokens for a context of {}", path.len(), self.context_max);
                rows.push(Some(&self.table.logits(&path)));
            }
        }
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize {
        let left = if self.forgets { 0 } else { len };
        self.caches.get_mut(&sequence).expect("an open sequence").truncate(left);
        left
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        let cache = self.caches.get_mut(&sequence).expect("an open sequence");
        let path: Vec<Token> = rows.iter().map(|row| cache[start + *row as usize]).collect();
        cache.truncate(start);
        cache.extend(path);
    }

    fn close(&mut self, sequence: SequenceId) {
        assert!(self.caches.remove(&sequence).is_some(), "{sequence:?} was not open");
    }

    fn context_max(&self) -> usize {
        self.context_max
    }
}

/// SplitMix64: a hash of a number.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_laws_sum_to_one_and_follow_the_chain_rule() {
        let table = Table::seeded(4, 2, 7);
        let sampling = Sampling::default();
        let joint = table.plain(&sampling, &[1, 2], 3);
        assert!((joint.values().sum::<f64>() - 1.0).abs() < 1e-12);
        let (text, &probability) = joint.iter().next().unwrap();
        let law = |path: &[Token]| table.law(&sampling, &[1, 2], 2, path);
        let product: f64 = (0..3).map(|i| law(&text[..i]).probability(text[i])).product();
        assert!((product - probability).abs() < 1e-15);
    }

    #[test]
    fn seeded_rows_have_zeros_and_always_a_possible_token() {
        let table = Table::seeded(3, 2, 1);
        let mut zeros = 0;
        for a in 0..3 {
            for b in 0..3 {
                let row = table.logits(&[a, b]);
                zeros += row.iter().filter(|&&logit| logit == f32::NEG_INFINITY).count();
                assert!(row.iter().any(|logit| logit.is_finite()));
            }
        }
        assert!((1..27).contains(&zeros));
    }
}
