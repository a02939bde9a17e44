//! Tests of the index against a naive scan.

use proptest::prelude::*;

use super::*;

fn naive(tokens: &[Token], ngram: &[Token]) -> Vec<usize> {
    (ngram.len() - 1..tokens.len()).filter(|&end| tokens[end + 1 - ngram.len()..=end] == *ngram).rev().collect()
}

#[test]
fn no_ngram_reaches_over_the_end_of_a_text() {
    let mut history = History::new([1, 2]);
    [5, 6, END, 6, 5, END].into_iter().for_each(|token| history.push(token));
    assert_eq!(history.ends(&[6]).collect::<Vec<_>>(), [3, 1]);
    assert_eq!(history.ends(&[END]).count() + history.ends(&[6, END]).count() + history.ends(&[END, 6]).count(), 0);
    assert_eq!(
        (history.first_end(&[5]), history.first_end(&[5, 5]), history.first_end(&[5, 5, 5])),
        (Some(0), None, None)
    );
}

#[test]
fn ngrams_made_to_collide_take_a_bounded_search() {
    // These tokens share a bucket in any table of up to 2^11.
    let mut history = History::new([1]);
    let colliding: Vec<Token> = (0..).filter(|token| hash(&[*token]) & 0x7ff == 3).take(300).collect();
    colliding.iter().for_each(|&token| history.push(token));
    assert_eq!(history.first_end(&colliding[299..]), Some(299));
    assert_eq!(history.first_end(&colliding[..1]), None, "after {NODES_MAX} others");
    history.push(colliding[0]);
    assert_eq!(history.first_end(&colliding[..1]), Some(300), "a node of its own");
}

#[test]
fn a_text_of_one_repeated_token_has_one_node() {
    let mut history = History::new([1, 2, 3]);
    (0..5000).for_each(|_| history.push(7));
    assert_eq!(history.ends(&[7, 7, 7]).take(3).collect::<Vec<_>>(), [4999, 4998, 4997]);
    assert_eq!(history.first_end(&[7, 7, 7]), Some(2));
    let buckets = &history.lengths[2].buckets;
    assert_eq!(buckets.iter().filter(|node| **node != NONE).count(), buckets.len() / BUCKETS_MIN);
}

#[test]
fn memory_of_three_lengths_is_at_most_56_bytes_a_token() {
    let mut history = History::new([1, 2, 5]);
    for i in 0..40_000_u32 {
        history.push(i.wrapping_mul(0x9e37_79b9) >> 18);
        assert!(i < 1000 || history.bytes() <= 56 * history.len(), "{} bytes at {i}", history.bytes());
    }
}

proptest! {
    #[test]
    fn the_index_finds_what_a_naive_scan_finds(
        more in prop::collection::vec(prop::collection::vec(0..3_u32, 1..60), 1..10),
        lengths in prop::sample::subsequence(vec![1_usize, 2, 3, 5], 1..4),
    ) {
        let mut history = History::new(lengths.clone());
        let mut text: Vec<Token> = Vec::new();
        for new in more {
            text.extend(new);
            history.extend_to(&text);
            for n in &lengths {
                for start in 0..(text.len() + 1).saturating_sub(*n).min(20) {
                    let ngram = &text[start..start + n];
                    let ends = naive(&text, ngram);
                    prop_assert_eq!(history.first_end(ngram), ends.last().copied());
                    prop_assert_eq!(history.ends(ngram).collect::<Vec<_>>(), ends);
                }
            }
            let mut shadow = History::new(lengths.clone());
            shadow.extend_to(&text);
            prop_assert_eq!(&history, &shadow);
        }
    }
}
