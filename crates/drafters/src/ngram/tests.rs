//! Tests of the counts against naive counting, and of proposals against examples worked out by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::trial::Trial;

const SEQUENCE: SequenceId = SequenceId(1);

/// A drafter that has learned a text, with an open sequence of tenant 1.
fn learned(order: usize, text: &[Token]) -> NgramDrafter {
    let mut drafter = NgramDrafter::new(order, NgramSource::Corpus);
    drafter.warm_up(text, 0, None);
    drafter.open(&Opening { tenant: Tenant(1), ..Opening::new(SEQUENCE, &[]) });
    drafter
}

/// What followed the latest occurrences of the context in each text, counted by a scan.
fn counted(texts: &[Vec<Token>], context: &[Token]) -> (u32, Vec<(Token, u32)>) {
    let most = if context.is_empty() { UNIGRAMS_MAX } else { OCCURRENCES_MAX };
    let mut followers = BTreeMap::new();
    for text in texts {
        let is_here = |start: &usize| text[*start..].starts_with(context);
        for start in (0..text.len()).rev().filter(is_here).take(most) {
            if let Some(&token) = text.get(start + context.len()).filter(|token| **token != END) {
                *followers.entry(token).or_insert(0) += 1;
            }
        }
    }
    (followers.values().sum(), followers.into_iter().collect())
}

proptest! {
    #[test]
    fn counts_are_those_of_a_naive_scan(
        order in 1usize..=5,
        vocabulary in prop_oneof![Just(3u32), Just(40)],
        texts in proptest::collection::vec(proptest::collection::vec(any::<u32>(), 1..700), 1..3),
    ) {
        // One token of each vocabulary stands for the end of a text.
        let token = |token: u32| if token.is_multiple_of(vocabulary) { END } else { token % vocabulary };
        let texts: Vec<Vec<Token>> = texts.iter().map(|text| text.iter().copied().map(token).collect()).collect();
        let histories: Vec<History> = texts.iter().map(|text| {
            let mut history = History::new(1..order);
            history.extend_to(text);
            history
        }).collect();
        let histories: Vec<&History> = histories.iter().collect();
        let (mut distinct, mut followers) = (Distinct::default(), Vec::new());
        for end in 1..=texts[0].len() {
            for len in 0..order.min(end + 1) {
                let context = &texts[0][end - len..end];
                if context.contains(&END) {
                    continue;
                }
                let total = count(&histories, context, &mut distinct, &mut followers);
                followers.sort_unstable();
                let expected = counted(&texts, context);
                prop_assert_eq!((total as u32, &followers), (expected.0, &expected.1));
            }
        }
    }
}

#[test]
fn q_is_the_relative_frequency_of_what_followed_through_the_temperature() {
    // After 1: three times 2, once 3.
    let text = [1, 2, 1, 3, 1, 2, 1, 2];
    for (temperature, ratio) in [(1.0, 3.0), (0.5, 9.0), (2.0, 3f64.sqrt())] {
        let mut trial = Trial::greedy(1);
        trial.promise = Promise::Rejection;
        trial.sampling.temperature = temperature;
        let tree = trial.draft(&mut learned(2, &text), &[1]);
        let Proposal::Drawn(id) = tree.offers()[0].proposal else { panic!("{tree:?}") };
        let law = tree.law(id);
        assert_eq!(law.tokens(), [2, 3]);
        let found = law.probability(2) / law.probability(3);
        assert!((found / ratio - 1.0).abs() < 1e-6, "{found} for {ratio} at temperature {temperature}");
        assert_eq!(tree.offers()[0].evidence.q, Some(law.probability(2) as f32));
    }
}

#[test]
fn filters_of_the_target_and_of_the_draft_apply_and_banned_tokens_are_skipped() {
    let text = [1, 2, 1, 3, 1, 2, 1, 4, 1, 2, 1, 3];
    let mut trial = Trial::greedy(1);
    trial.promise = Promise::Rejection;
    trial.sampling = Sampling { top_k: 2, banned_tokens: vec![2], ..Sampling::default() };
    let support = |trial: &Trial| {
        let tree = trial.draft(&mut learned(2, &text), &[1]);
        match tree.offers()[0].proposal {
            Proposal::Drawn(id) => tree.law(id).tokens().to_vec(),
            Proposal::Point => vec![tree.tokens()[0]],
        }
    };
    assert_eq!(support(&trial), [3, 4]);
    trial.settings.top_k = Some(1);
    assert_eq!(support(&trial), [3]);
    trial.sampling.banned_tokens = vec![2, 3, 4];
    assert_eq!(support(&trial), [1], "no follower is allowed, so the most frequent of all");
}

#[test]
fn greedy_takes_the_most_frequent_follower_of_the_longest_known_context_of_equals_the_lowest() {
    let chain = |order: usize, text: &[Token], end: &[Token]| {
        let tree = Trial::greedy(3).draft(&mut learned(order, text), end);
        assert!(tree.is_chain() && tree.offers().iter().all(|offer| offer.proposal == Proposal::Point));
        tree.tokens().to_vec()
    };
    let text = [5, 1, 2, 9, 6, 1, 3, 9, 6, 1, 3, 9, 5, 1, 2];
    assert_eq!(chain(2, &text, &[5, 1]), [2, 9, 6], "of 2 and 3 the lower");
    assert_eq!(chain(3, &text, &[6, 1]), [3, 9, 5]);
    assert_eq!(chain(4, &text, &[8, 6, 1]), [3, 9, 5], "the longest that is known");
    assert_eq!(chain(4, &text, &[7, 1]), [2, 9, 6]);
}

#[test]
fn the_most_frequent_of_all_are_proposed_only_if_they_are_frequent_enough() {
    let text = [4, 4, 4, 7, 8, 4, 9, 4];
    let mut drafter = learned(3, &text);
    assert_eq!(Trial::greedy(1).draft(&mut drafter, &[99]).tokens(), [4]);
    drafter.unigram_min = 0.7;
    assert!(Trial::greedy(1).draft(&mut drafter, &[99]).is_empty());
    assert!(Trial::greedy(1).draft(&mut learned(3, &[]), &[99]).is_empty(), "nothing was learned");
}

#[test]
fn a_unigram_table_drafts_and_a_longer_one_does_not_back_off_to_rare_tokens() {
    // 20 different tokens; the most frequent are 7, three times, and 5, twice.
    let text: Vec<Token> = (10..30).chain([7, 5, 7, 5, 7]).collect();
    let mut unigram = learned(1, &text);
    for end in [[99], [7]] {
        let tree = Trial::greedy(3).draft(&mut unigram, &end);
        assert_eq!(tree.tokens(), [7, 7, 7], "the same whatever came before");
    }
    let rare: Vec<Token> = (10..30).chain([7, 5, 7, 5]).collect();
    assert_eq!(Trial::greedy(1).draft(&mut learned(1, &rare), &[99]).tokens(), [5], "of equals the lowest");
    assert!(Trial::greedy(1).draft(&mut learned(2, &rare), &[99]).is_empty(), "2 of 24 are less than a tenth");
    let mut sampled = Trial::greedy(1);
    (sampled.promise, sampled.sampling.temperature) = (Promise::Rejection, 1.0);
    let tree = sampled.draft(&mut unigram, &[99]);
    let Proposal::Drawn(id) = tree.offers()[0].proposal else { panic!("{tree:?}") };
    let law = tree.law(id);
    assert_eq!(law.support_len(), FOLLOWERS_MAX);
    assert!((law.probability(7) / law.probability(5) - 1.5).abs() < 1e-6, "by how often each was written");
}

#[test]
fn trees_grow_where_the_product_of_confidences_is_greatest() {
    // After 1: 2 six times, 3 four times; after 2 always 5 and after 3 always 6.
    let text = [[1, 2, 5].repeat(6), [1, 3, 6].repeat(4)].concat();
    let mut drafter = learned(2, &text);
    (drafter.branches_max, drafter.depth_max) = (3, 2);
    let tree = Trial::greedy(9).draft(&mut drafter, &[1]);
    let paths: Vec<Vec<Token>> = tree.nodes().map(|node| tree.path(node)).collect();
    assert_eq!(paths, [vec![2], vec![2, 5], vec![3], vec![3, 6]]);
    let tree = Trial::greedy(3).draft(&mut drafter, &[1]);
    assert_eq!(tree.tokens(), [2, 5, 3]);
    let confidence = tree.offers()[0].evidence.acceptance;
    assert!((confidence - 5.5 / 10.0).abs() < 1e-6, "{confidence}");
    let mut split = Trial::greedy(9);
    split.settings.p_split = Some(0.4);
    assert_eq!(split.draft(&mut drafter, &[1]).tokens(), [2, 5], "3.5 of 10 are not more than 0.4");
    let mut sampled = Trial::greedy(9);
    (sampled.promise, sampled.sampling.temperature) = (Promise::Block, 1.0);
    let tree = sampled.draft(&mut drafter, &[1]);
    assert_eq!(tree.tokens(), [2, 3, 5, 6], "drawn siblings are offered together");
    assert!(tree.offers()[..2].iter().all(|offer| matches!(offer.proposal, Proposal::Drawn(_))));
}

#[test]
fn a_branch_ends_after_a_token_of_low_confidence() {
    let text = [[1, 2, 5, 1].repeat(5), [2, 6].repeat(3)].concat();
    let mut trial = Trial::greedy(9);
    assert_eq!(trial.draft(&mut learned(2, &text), &[1]).len(), 5);
    trial.limits.token_min = 0.6;
    let sure = trial.draft(&mut learned(2, &text), &[1]);
    assert_eq!(sure.tokens(), [2], "{:?}", sure.offers());
    trial.settings.n_min = Some(3);
    assert_eq!(trial.draft(&mut learned(2, &text), &[1]).tokens(), [2, 5, 1, 2], "low confidence again, beyond n_min");
}

#[test]
fn a_tenants_texts_are_its_own_and_a_sequence_is_forgotten_when_it_ends() {
    let mut drafter = NgramDrafter::default();
    drafter.warm_up(&[1, 2, 3].repeat(3), 0, Some(Tenant(1)));
    drafter.open(&Opening { tenant: Tenant(1), ..Opening::new(SequenceId(1), &[1]) });
    drafter.open(&Opening { tenant: Tenant(2), ..Opening::new(SequenceId(2), &[1]) });
    let draft = |drafter: &mut NgramDrafter, sequence: u64, text: &[Token]| {
        Trial { sequence: SequenceId(sequence), ..Trial::greedy(1) }.draft(drafter, text).tokens().to_vec()
    };
    assert_eq!(draft(&mut drafter, 1, &[1]), [2]);
    assert_eq!(draft(&mut drafter, 2, &[1]), [1], "only its own sequence is known, which is 1");
    assert_eq!(draft(&mut drafter, 2, &[1, 8, 1]), [8]);
    drafter.close(SequenceId(2));
    drafter.open(&Opening { tenant: Tenant(2), ..Opening::new(SequenceId(2), &[1]) });
    assert_eq!(draft(&mut drafter, 2, &[1]), [1]);
    assert_eq!(draft(&mut drafter, 1, &[1, 2, 9, 1, 2, 9, 1, 2, 9, 1, 2, 9, 1, 2]), [9], "4 times beats 3");
    let mut corpus = NgramDrafter::new(3, NgramSource::Corpus);
    corpus.open(&Opening { tenant: Tenant(1), ..Opening::new(SequenceId(1), &[1, 2, 1, 2]) });
    assert!(draft(&mut corpus, 1, &[1, 2, 1, 2]).is_empty());
    let mut text = NgramDrafter::new(3, NgramSource::Text);
    text.warm_up(&[1, 2, 1, 2], 0, None);
    text.open(&Opening { tenant: Tenant(1), ..Opening::new(SequenceId(1), &[1]) });
    assert_eq!(draft(&mut text, 1, &[1]), [1]);
}

#[test]
fn what_followed_in_the_source_of_an_encoder_is_counted_with_the_text() {
    let source = [5, 6, 7, 5, 6, 8, 5, 6, 8];
    for (counted, expected) in [(NgramSource::Text, &[8][..]), (NgramSource::Both, &[8]), (NgramSource::Corpus, &[])] {
        let mut drafter = NgramDrafter::new(3, counted);
        drafter.open(&Opening { source: &source, ..Opening::new(SEQUENCE, &[0]) });
        drafter.open(&Opening::new(SequenceId(2), &[0]));
        let draft = |drafter: &mut NgramDrafter, sequence, text: &[Token]| {
            Trial { sequence, ..Trial::greedy(1) }.draft(drafter, text).tokens().to_vec()
        };
        assert_eq!(draft(&mut drafter, SEQUENCE, &[0, 5, 6]), expected, "{counted:?}");
        assert!(draft(&mut drafter, SequenceId(2), &[0, 5, 6]).iter().all(|token| *token < 7), "{counted:?}");
        let bytes = drafter.bytes();
        drafter.close(SEQUENCE);
        assert!(counted == NgramSource::Corpus || drafter.bytes() < bytes);
    }
}
