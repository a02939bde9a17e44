//! The choice of a row's experts and their weights: a pure function of the row's router logits.
//!
//! Logits become scores by the family's rule ([`Scoring`]), corrections are added for the choice alone, groups that are
//! not among the best are excluded, and the largest of the remaining scores are chosen. Of experts with equal scores
//! the one with the lower number comes first, so that a row makes the same choice everywhere. The chosen experts are
//! few, so they are found in one pass that keeps the best so far, without sorting or allocating. A row with a NaN among
//! its scores gets NaN as the weights of its experts; other rows are not affected. The families check the description
//! of the router ([`Experts`]).

use crate::spec::{Experts, GroupScore, Groups, Scoring, Sum};

/// The buffers of the choice of one row, kept between rows.
#[derive(Default)]
pub(crate) struct ExpertSelector {
    /// The score of each expert.
    scores: Vec<f32>,
    /// The numbers by which experts are compared.
    ranks: Vec<f32>,
    groups: Vec<f32>,
    chosen_groups: Vec<u32>,
}

impl ExpertSelector {
    /// Appends the experts that a row chooses, the highest score first, and their weights.
    ///
    /// `logits` are the router's, one per expert; `corrections` are as many, or none.
    pub(crate) fn select(
        &mut self,
        layer: &Experts,
        logits: &[f32],
        corrections: &[f32],
        (experts, weights): (&mut Vec<u32>, &mut Vec<f32>),
    ) {
        let Self { scores, ranks, groups, chosen_groups } = self;
        let router = &layer.router;
        score(router.scoring, logits, scores);
        ranks.clear();
        match (corrections, router.groups) {
            // Logits have the same order as the scores, and no rounding has made two of them equal.
            ([], None) => ranks.extend(logits),
            ([], Some(_)) => ranks.extend(&*scores),
            _ => ranks.extend(scores.iter().zip(corrections).map(|(score, correction)| score + correction)),
        }
        if scores.iter().chain(&*ranks).any(|number| number.is_nan()) {
            experts.extend(0..layer.chosen as u32);
            weights.extend(std::iter::repeat_n(f32::NAN, layer.chosen));
            return;
        }
        if let Some(Groups { count, chosen, by }) = router.groups {
            let size = layer.count / count;
            groups.clear();
            groups.extend(ranks.chunks_exact(size).map(|group| group_score(by, group)));
            chosen_groups.clear();
            largest(groups, chosen, chosen_groups);
            for (number, group) in ranks.chunks_exact_mut(size).enumerate() {
                if !chosen_groups.contains(&(number as u32)) {
                    group.fill(f32::NEG_INFINITY);
                }
            }
        }
        let first = experts.len();
        largest(ranks, layer.chosen, experts);
        let own = &experts[first..];
        let score_of = |expert: &u32| scores[*expert as usize];
        let divisor = match router.divided {
            None => 1.0,
            Some(Sum { added, least }) => (own.iter().map(score_of).sum::<f32>() + added).max(least),
        };
        weights.extend(own.iter().map(|expert| score_of(expert) / divisor * router.factor));
    }
}

/// The scores of logits.
fn score(scoring: Scoring, logits: &[f32], scores: &mut Vec<f32>) {
    scores.clear();
    match scoring {
        Scoring::Sigmoid => scores.extend(logits.iter().map(|x| 1.0 / (1.0 + (-x).exp()))),
        Scoring::Softmax => {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.extend(logits.iter().map(|x| (x - largest).exp()));
            let sum: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= sum);
        }
    }
}

/// The number by which a group is compared with others.
fn group_score(by: GroupScore, group: &[f32]) -> f32 {
    let [mut best, mut second] = [f32::NEG_INFINITY; 2];
    for rank in group.iter().copied() {
        if rank > best {
            (best, second) = (rank, best);
        } else if rank > second {
            second = rank;
        }
    }
    match by {
        GroupScore::Best => best,
        GroupScore::BestTwo => best + second,
    }
}

/// Appends the indices of the `count` largest values, the largest first; of ties the lower index comes first. No value
/// may be NaN.
fn largest(values: &[f32], count: usize, all: &mut Vec<u32>) {
    let first = all.len();
    let value_of = |number: &u32| values[*number as usize];
    for (number, value) in values.iter().copied().enumerate() {
        if all.len() - first == count {
            if all.last().is_none_or(|last| value_of(last) >= value) {
                continue;
            }
            all.pop();
        }
        let before = all[first..].iter().rposition(|better| value_of(better) >= value);
        all.insert(before.map_or(first, |at| first + at + 1), number as u32);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spec;

    fn layer(count: usize, chosen: usize, router: spec::Router) -> Experts {
        Experts { count, chosen, ffn_width: 1, router, shared: None, beside_dense: false, layers: vec![true] }
    }

    fn chosen(layer: &Experts, logits: &[f32], corrections: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        ExpertSelector::default().select(layer, logits, corrections, (&mut experts, &mut weights));
        (experts, weights)
    }

    /// The definition of the choice, as plain as possible: everything is sorted.
    fn select_naively(layer: &Experts, logits: &[f32], corrections: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let Experts { count, chosen, router, .. } = layer;
        let mut scores = Vec::new();
        score(router.scoring, logits, &mut scores);
        let rank = |expert: usize| match (corrections, router.groups) {
            ([], None) => logits[expert],
            ([], _) => scores[expert],
            _ => scores[expert] + corrections[expert],
        };
        let best = |all: Vec<usize>, by: &dyn Fn(usize) -> f32| {
            let mut all = all;
            all.sort_by(|a, b| by(*b).partial_cmp(&by(*a)).unwrap().then(a.cmp(b)));
            all
        };
        let mut open: Vec<usize> = (0..*count).collect();
        if let Some(groups) = router.groups {
            let size = count / groups.count;
            let taken = match groups.by {
                GroupScore::Best => 1,
                GroupScore::BestTwo => 2,
            };
            let by = |group: usize| {
                let own = best((group * size..(group + 1) * size).collect(), &rank);
                own[..taken].iter().map(|expert| rank(*expert)).sum()
            };
            let kept = best((0..groups.count).collect(), &by)[..groups.chosen].to_vec();
            open.retain(|expert| kept.contains(&(expert / size)));
        }
        let own = best(open, &rank)[..*chosen].to_vec();
        let sum: f32 = own.iter().map(|expert| scores[*expert]).sum();
        let divisor = router.divided.map_or(1.0, |Sum { added, least }| (sum + added).max(least));
        let weights = own.iter().map(|expert| scores[*expert] / divisor * router.factor).collect();
        (own.into_iter().map(|expert| expert as u32).collect(), weights)
    }

    fn bits(weights: &[f32]) -> Vec<u32> {
        weights.iter().map(|weight| weight.to_bits()).collect()
    }

    const SIGMOID: spec::Router = spec::Router { scoring: Scoring::Sigmoid, ..spec::Router::SOFTMAX };

    #[test]
    fn of_equal_scores_the_lower_number_comes_first() {
        let (experts, weights) = chosen(&layer(5, 3, spec::Router::SOFTMAX), &[1.0, 2.0, 1.0, 2.0, 1.0], &[]);
        assert_eq!(experts, [1, 3, 0]);
        assert!(weights[0] == weights[1] && weights[1] > weights[2] && weights.iter().sum::<f32>() < 1.0);
        let (experts, _) = chosen(&layer(3, 2, SIGMOID), &[-0.0, 0.0, -0.0], &[]);
        assert_eq!(experts, [0, 1]);
    }

    #[test]
    fn a_softmax_over_the_chosen_sums_up_to_one() {
        let (experts, weights) =
            chosen(&layer(4, 2, spec::Router::SOFTMAX_OF_CHOSEN), &[0.0, 3f32.ln(), -9.0, 0.0], &[]);
        assert_eq!(experts, [1, 0]);
        assert!((weights[0] - 0.75).abs() < 1e-6 && (weights[1] - 0.25).abs() < 1e-6, "{weights:?}");
    }

    #[test]
    fn corrections_count_for_the_choice_alone() {
        let router = spec::Router { corrected: true, factor: 2.0, ..SIGMOID };
        let (experts, weights) = chosen(&layer(3, 2, router), &[0.0, 5.0, 0.0], &[0.0, -9.0, 0.25]);
        assert_eq!((experts, weights), (vec![2, 0], vec![1.0, 1.0]));
    }

    #[test]
    fn only_experts_of_the_best_groups_are_chosen() {
        let groups = |by| spec::Router { groups: Some(Groups { count: 2, chosen: 1, by }), ..SIGMOID };
        let logits = [4.0, -4.0, 1.0, 1.0];
        let experts = |by| chosen(&layer(4, 2, groups(by)), &logits, &[]).0;
        assert_eq!(experts(GroupScore::Best), [0, 1]);
        assert_eq!(experts(GroupScore::BestTwo), [2, 3]);
    }

    #[test]
    fn a_sum_of_zero_is_raised_to_the_least_divisor() {
        let least = Some(Sum { added: 0.0, least: 0.5 });
        let (_, weights) = chosen(&layer(2, 1, spec::Router { divided: least, ..SIGMOID }), &[-200.0, -201.0], &[]);
        assert_eq!(weights, [0.0]);
        let added = Some(Sum { added: 1e-20, least: 0.0 });
        let (_, weights) = chosen(&layer(2, 1, spec::Router { divided: added, ..SIGMOID }), &[-200.0, -201.0], &[]);
        assert_eq!(weights, [0.0]);
    }

    #[test]
    fn nan_among_the_logits_makes_the_weights_of_the_row_nan() {
        let groups = Some(Groups { count: 2, chosen: 1, by: GroupScore::BestTwo });
        for router in [spec::Router::SOFTMAX_OF_CHOSEN, SIGMOID, spec::Router { groups, ..SIGMOID }] {
            for wrong in [f32::NAN, -f32::NAN] {
                let logits = [9.0, 1.0, wrong, 5.0];
                let (experts, weights) = chosen(&layer(4, 2, router), &logits, &[]);
                assert!(experts.iter().all(|expert| *expert < 4) && experts.len() == 2, "{experts:?}");
                assert!(weights.len() == 2 && weights.iter().all(|weight| weight.is_nan()), "{weights:?}");
            }
        }
        // Infinite logits have finite sigmoids.
        let (experts, weights) = chosen(&layer(3, 2, SIGMOID), &[f32::NEG_INFINITY, f32::INFINITY, 0.0], &[]);
        assert_eq!((experts, weights), (vec![1, 2], vec![1.0, 0.5]));
    }

    fn routers() -> impl Strategy<Value = (Experts, bool)> {
        let sums =
            [None, Some(Sum::PLAIN), Some(Sum { added: 1e-20, least: 0.0 }), Some(Sum { added: 0.0, least: 0.4 })];
        let of_groups = (1usize..5, 2usize..5, 0usize..4, any::<bool>());
        let choices = (any::<bool>(), any::<bool>(), 0usize..4, 0usize..16, any::<bool>());
        (of_groups, choices).prop_map(move |((count, size, kept, two), (softmax, corrected, sum, few, grouped))| {
            let by = if two { GroupScore::BestTwo } else { GroupScore::Best };
            let groups = grouped.then_some(Groups { count, chosen: 1 + kept % count, by });
            let open = groups.map_or(count * size, |groups| groups.chosen * size);
            let scoring = if softmax { Scoring::Softmax } else { Scoring::Sigmoid };
            let router = spec::Router { scoring, corrected, groups, divided: sums[sum], factor: 1.5 };
            (layer(count * size, 1 + few % open, router), corrected)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// There are few distinct numbers, so that many are equal.
        #[test]
        fn the_choice_is_that_of_the_definition(
            (layer, corrected) in routers(),
            logits in prop::collection::vec(-4i8..5, 16),
            corrections in prop::collection::vec(-4i8..5, 16),
        ) {
            let logits: Vec<f32> = logits[..layer.count].iter().map(|x| f32::from(*x) * 0.75).collect();
            let corrections: Vec<f32> = corrections[..layer.count].iter().map(|x| f32::from(*x) * 0.125).collect();
            let corrections = if corrected { &corrections[..] } else { &[] };
            let found = chosen(&layer, &logits, corrections);
            let expected = select_naively(&layer, &logits, corrections);
            prop_assert_eq!(found.0, expected.0);
            prop_assert_eq!(bits(&found.1), bits(&expected.1));
        }
    }
}
