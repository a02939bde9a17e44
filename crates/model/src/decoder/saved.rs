//! Saved rows of the cache, which are the same on any number of ranks: each rank has some of the heads, and a saved row
//! has all of them.

use crate::executor::{CacheRows, ExecutorError};
use crate::products::Share;

use super::Model;

/// The parts of a saved row of a cache group: the heads of the keys, and of the values, of each layer.
pub(super) struct SavedRow {
    /// For each part the number of heads and the bytes of each.
    parts: Vec<[usize; 2]>,
}

impl SavedRow {
    /// Number of bytes of the heads of all ranks.
    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|[heads, bytes]| heads * bytes).sum()
    }

    /// Number of bytes of a rank's heads.
    fn bytes_of(&self, share: Share) -> usize {
        self.parts.iter().map(|[heads, bytes]| share.of(*heads, 1).len() * bytes).sum()
    }

    /// Appends rows with all heads, made of each rank's rows with its own.
    fn merge(&self, shares: &[Share], mut of_ranks: Vec<&[u8]>, rows: usize, out: &mut Vec<u8>) {
        for [heads, bytes] in (0..rows).flat_map(|_| &self.parts) {
            for (share, left) in shares.iter().zip(&mut of_ranks) {
                let (own, behind) = left.split_at(share.of(*heads, 1).len() * bytes);
                out.extend_from_slice(own);
                *left = behind;
            }
        }
    }

    /// A rank's heads of rows with all heads.
    fn own(&self, share: Share, rows: &[u8]) -> Vec<u8> {
        let (mut own, mut left) = (Vec::new(), rows);
        while !left.is_empty() {
            for [heads, bytes] in &self.parts {
                let (part, behind) = left.split_at(heads * bytes);
                let range = share.of(*heads, 1);
                own.extend_from_slice(&part[range.start * bytes..range.end * bytes]);
                left = behind;
            }
        }
        own
    }
}

impl Model {
    /// The parts of a saved row of a cache group.
    pub(super) fn saved_row(&self, group: usize) -> SavedRow {
        let cache = &self.cache;
        let layers = cache.group_of.iter().enumerate().filter(|(_, of_layer)| **of_layer == group);
        let parts = layers.flat_map(|(layer, _)| {
            let heads = self.network.spec.kv_heads_of(layer).count;
            [&cache.keys[layer], &cache.values[layer]].map(|tensor| [heads, tensor.head_bytes()])
        });
        SavedRow { parts: parts.collect() }
    }

    /// Saves rows with the heads of all ranks, each of which calls this.
    ///
    /// # Errors
    /// A page was given back, or a rank does not answer.
    pub(super) fn save_all_heads(&self, rows: CacheRows<'_>, out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        let share = self.products.share();
        if share.is_whole() {
            return self.cache.save_rows(rows, out);
        }
        let (row, count) = (self.saved_row(rows.group), rows.positions.len());
        let shares: Vec<Share> = share.all().collect();
        let lens: Vec<usize> = shares.iter().map(|share| count * row.bytes_of(*share)).collect();
        let mut own = Vec::new();
        // It fails on all ranks alike.
        self.cache.save_rows(rows, &mut own)?;
        let all = self.products.gather_bytes(&own, &lens)?;
        let mut left = &all[..];
        let mut of_rank = |len: &usize| {
            let (own, behind) = left.split_at(*len);
            left = behind;
            own
        };
        let of_ranks = lens.iter().map(&mut of_rank).collect();
        row.merge(&shares, of_ranks, count, out);
        Ok(())
    }

    /// Loads this rank's heads of saved rows.
    ///
    /// # Errors
    /// As [`Executor::load_rows`](crate::Executor::load_rows).
    pub(super) fn load_own_heads(&mut self, rows: CacheRows<'_>, bytes: &[u8]) -> Result<(), ExecutorError> {
        let share = self.products.share();
        if share.is_whole() {
            return self.cache.load_rows(rows, bytes);
        }
        let row = self.saved_row(rows.group);
        assert_eq!(bytes.len(), rows.positions.len() * row.bytes(), "cache: bytes of saved rows {rows:?}");
        if row.bytes_of(share) == 0 {
            return Ok(());
        }
        self.cache.load_rows(rows, &row.own(share, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_ranks_are_merged_to_rows_of_one_process_and_back() {
        let row = SavedRow { parts: vec![[3, 2], [3, 1], [1, 4]] };
        assert_eq!(row.bytes(), 13);
        let whole: Vec<u8> = (0..26).collect();
        for count in [1, 2, 4] {
            let shares: Vec<Share> = Share::of_rank(0, count).all().collect();
            let own: Vec<Vec<u8>> = shares.iter().map(|share| row.own(*share, &whole)).collect();
            for (share, own) in shares.iter().zip(&own) {
                assert_eq!(own.len(), 2 * row.bytes_of(*share));
            }
            let mut merged = Vec::new();
            row.merge(&shares, own.iter().map(Vec::as_slice).collect(), 2, &mut merged);
            assert_eq!(merged, whole, "{count} ranks");
        }
    }
}
