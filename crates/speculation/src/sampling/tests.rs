//! Tests of sampling against results of transformers, against a naive implementation, and with rows that are not
//! finite.

use proptest::prelude::*;

use super::*;

const ROW: [f32; 12] = [1.5, -0.5, 3.25, 0.0, 2.0, 2.0, -3.0, 0.75, 2.875, -1.25, 1.0, 0.5];
const WRITTEN: [Token; 6] = [2, 4, 4, 6, 0, 2];

fn nothing() -> Context<'static> {
    Context { tokens: &[0], prompt_len: 1, path: &[], constraint: None }
}

/// Parses settings as `golden/sampling.txt` writes them.
fn parse(settings: &str) -> Sampling {
    let mut sampling = Sampling::default();
    for setting in settings.split_whitespace() {
        let (name, value) = setting.split_once('=').unwrap();
        match name {
            "top_k" => sampling.top_k = value.parse().unwrap(),
            "logit_bias" => {
                let (token, bias) = value.split_once(':').unwrap();
                sampling.logit_bias.push((token.parse().unwrap(), bias.parse().unwrap()));
            }
            "banned_tokens" => sampling.banned_tokens.push(value.parse().unwrap()),
            "tokens_min" => sampling.tokens_min = value.parse().unwrap(),
            "end_tokens" => sampling.end_tokens.push(value.parse().unwrap()),
            other => {
                let parameter = Sampling::PARAMETERS.iter().find(|parameter| parameter.name == other).unwrap();
                *(parameter.get_mut)(&mut sampling) = value.parse().unwrap();
            }
        }
    }
    sampling
}

#[test]
fn laws_are_those_of_transformers() {
    let mut cases = 0;
    for line in include_str!("../../golden/sampling.txt").lines() {
        let (settings, left) = line.split_once('|').unwrap();
        // The same context, once as written tokens and once with a path in a tree.
        let whole = Context { tokens: &WRITTEN, prompt_len: 3, path: &[], constraint: None };
        let split = Context { tokens: &WRITTEN[..4], prompt_len: 3, path: &WRITTEN[4..], constraint: None };
        let law = parse(settings).law(&ROW, &whole);
        assert_eq!(law, parse(settings).law(&ROW, &split), "{settings}");
        let expected: Vec<(Token, f64)> = left
            .split_whitespace()
            .map(|pair| pair.split_once(':').unwrap())
            .map(|(token, p)| (token.parse().unwrap(), p.parse().unwrap()))
            .collect();
        assert_eq!(law.support_len(), expected.len(), "{settings}: {law:?}");
        for (token, p) in expected {
            assert!((law.probability(token) - p).abs() < 1e-6, "{settings}: {token} {} {p}", law.probability(token));
        }
        cases += 1;
    }
    assert_eq!(cases, 22);
}

/// A naive implementation of the filters, with full sorts, directly from their definitions.
fn naive(sampling: &Sampling, logits: &[f32]) -> Law {
    let temperature = f64::from(sampling.temperature);
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut left: Vec<(Token, f64)> = (0..).zip(logits.iter().map(|&logit| f64::from(logit))).collect();
    let by_rank = |left: &mut Vec<(Token, f64)>, rank: &dyn Fn(f64) -> f64| {
        left.sort_by(|a, b| rank(a.1).total_cmp(&rank(b.1)).then(a.0.cmp(&b.0)));
    };
    if sampling.top_k > 0 && sampling.top_k < left.len() {
        by_rank(&mut left, &|logit| -logit);
        let kth = left[sampling.top_k - 1].1;
        left.retain(|&(_, logit)| logit >= kth);
    }
    left.sort_by_key(|&(token, _)| token);
    for item in &mut left {
        item.1 = ((item.1 - f64::from(largest)) / temperature).exp();
    }
    left.retain(|&(_, weight)| weight > 0.0);
    let total = |left: &[(Token, f64)]| left.iter().map(|item| item.1).sum::<f64>();
    if sampling.top_p < 1.0 {
        let enough = f64::from(sampling.top_p) * total(&left);
        by_rank(&mut left, &|weight| -weight);
        let len = (1..left.len()).find(|&len| total(&left[..len]) >= enough).unwrap_or(left.len());
        left.truncate(len);
        left.sort_by_key(|&(token, _)| token);
    }
    let largest = left.iter().map(|item| item.1).fold(0.0, f64::max);
    left.retain(|&(_, weight)| weight >= f64::from(sampling.min_p) * largest);
    if sampling.typical_p < 1.0 {
        let sum = total(&left);
        let surprise = |weight: f64| -(weight / sum).ln();
        let entropy: f64 = left.iter().map(|&(_, weight)| weight / sum * surprise(weight)).sum();
        let rank = |weight: f64| (surprise(weight) - entropy).abs();
        by_rank(&mut left, &rank);
        let enough = f64::from(sampling.typical_p) * sum;
        let len = (1..left.len()).find(|&len| total(&left[..len]) >= enough).unwrap_or(left.len());
        let limit = rank(left[len - 1].1);
        left.retain(|&(_, weight)| rank(weight) <= limit);
    }
    Law::from_pairs(left)
}

fn settings() -> impl Strategy<Value = Sampling> {
    let p = || prop_oneof![Just(1.0_f32), 0.05..1.0_f32];
    (0.1..3.0_f32, 0..40_usize, p(), prop_oneof![Just(0.0_f32), 0.0..0.5_f32], p()).prop_map(
        |(temperature, top_k, top_p, min_p, typical_p)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            ..Sampling::default()
        },
    )
}

/// Rows with many ties: halves between -8 and 8, some impossible.
fn tied_row() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![9 => (-16..16_i32).prop_map(|half| half as f32 / 2.0), 1 => Just(f32::NEG_INFINITY)];
    prop::collection::vec(logit, 1..700).prop_filter("something possible", |row| row.iter().any(|x| x.is_finite()))
}

fn any_row() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(prop_oneof![any::<f32>(), -10.0..10.0_f32, Just(f32::NAN), Just(f32::INFINITY)], 1..50)
}

proptest! {
    #[test]
    fn filters_agree_with_their_naive_implementation(sampling in settings(), row in tied_row()) {
        let (law, expected) = (sampling.law(&row, &nothing()), naive(&sampling, &row));
        prop_assert_eq!(law.tokens(), expected.tokens());
        for (token, p) in law.iter() {
            prop_assert!((p - expected.probability(token)).abs() < 1e-12);
        }
    }

    #[test]
    fn reused_memory_carries_no_state(a in settings(), b in settings(), rows in [tied_row(), tied_row()]) {
        let penalties = Sampling { repetition_penalty: 1.2, frequency_penalty: 0.4, ..b };
        let context = Context { tokens: &[1, 2, 1, 900], prompt_len: 1, path: &[0, 1], constraint: None };
        let mut scratch = Scratch::default();
        for (sampling, row) in [(&a, &rows[0]), (&penalties, &rows[1]), (&penalties, &rows[0]), (&a, &rows[1])] {
            prop_assert_eq!(sampling.law_with(row, &context, &mut scratch), sampling.law(row, &context));
        }
    }

    #[test]
    fn every_row_has_a_law(sampling in settings(), row in any_row(), greedy: bool) {
        let temperature = if greedy { 0.0 } else { sampling.temperature };
        let sampling = Sampling { temperature, repetition_penalty: 1e-30, presence_penalty: -1e30, ..sampling };
        let law = sampling.law(&row, &Context { tokens: &[0, 1, 2], prompt_len: 1, path: &[3], constraint: None });
        prop_assert!((law.probabilities().iter().sum::<f64>() - 1.0).abs() < 1e-9);
        prop_assert!(law.tokens().is_sorted_by(|a, b| a < b));
        prop_assert!((law.tokens()[law.support_len() - 1] as usize) < row.len());
        let sum: f64 = (0..row.len() as Token).map(|token| f64::from(log_probability(&row, token)).exp()).sum();
        prop_assert!(sum == 0.0 || (sum - 1.0).abs() < 1e-4, "{}", sum);
    }

    #[test]
    fn top_tokens_are_the_first_by_probability(tied in tied_row(), any in any_row(), count in 0..25_usize) {
        for row in [&tied, &any] {
            let logit = |token: Token| sane(row[token as usize]);
            let possible = (0..row.len() as Token).filter(|&token| logit(token) > f32::NEG_INFINITY);
            let mut all: Vec<Token> = possible.collect();
            // The sort is stable, so of ties the lowest token comes first.
            all.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap());
            let bits = |(token, value): (Token, f32)| (token, value.to_bits());
            let expected: Vec<_> =
                all.into_iter().take(count).map(|token| bits((token, log_probability(row, token)))).collect();
            prop_assert_eq!(RawLaw::new(row).top(count).into_iter().map(bits).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn greedy_is_the_first_of_the_best(row in tied_row()) {
        let law = Sampling { temperature: 0.0, top_k: 3, ..Sampling::default() }.law(&row, &nothing());
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        prop_assert_eq!(law, Law::point(row.iter().position(|&logit| logit == best).unwrap() as Token));
    }
}

#[test]
fn penalties_count_the_tokens_of_the_window() {
    let sampling =
        Sampling { presence_penalty: 1.0, frequency_penalty: 0.25, penalty_window: Some(3), ..Sampling::default() };
    // The last three are 1, 2, 2: the 0 before them is outside the window, and token 9 is beyond the row.
    let law = |tokens: &[Token], path: &[Token]| {
        sampling.law(&[0.0; 4], &Context { tokens, prompt_len: 0, path, constraint: None })
    };
    let expected = Law::from_pairs((0..).zip([0.0, -1.25, -1.5, 0.0].map(|x| power_of_two(x * LOG2_E))));
    assert_eq!(law(&[0, 0, 1], &[2, 2]), expected);
    assert_eq!(law(&[0, 0, 1, 2, 2], &[]), expected);
    assert_eq!(law(&[0, 9], &[1, 2, 2]), expected);
    assert_eq!(law(&[9, 9, 9], &[]), law(&[], &[]));
    let off = Sampling { penalty_window: Some(0), ..sampling.clone() };
    assert_eq!(
        off.law(&[0.0; 4], &Context { tokens: &[1], prompt_len: 0, path: &[], constraint: None }).support_len(),
        4
    );
    assert_eq!(
        off.law(&[0.0; 4], &Context { tokens: &[1], prompt_len: 0, path: &[], constraint: None }).probability(1),
        0.25
    );
}

#[test]
fn when_nothing_is_left_the_lowest_allowed_token_is_written() {
    let row = [f32::NEG_INFINITY, f32::NAN, f32::NEG_INFINITY];
    let mut sampling = Sampling::default();
    assert_eq!(sampling.law(&row, &nothing()), Law::point(0));
    sampling.banned_tokens = vec![0];
    assert_eq!(sampling.law(&row, &nothing()), Law::point(1));
    sampling.logit_bias = vec![(1, f32::NEG_INFINITY)];
    assert_eq!(sampling.law(&[1.0; 2], &nothing()), Law::point(0));
    assert_eq!(sampling.law(&row, &nothing()), Law::point(2));
    (sampling.tokens_min, sampling.end_tokens) = (1, vec![2]);
    assert_eq!(sampling.law(&row, &nothing()), Law::point(0));
}

#[test]
fn logits_that_are_not_finite_count_as_documented() {
    let law = Sampling::default().law(&[f32::INFINITY, f32::NAN, 3.0, f32::MAX], &nothing());
    assert_eq!(law, Law::from_pairs([(0, 0.5), (3, 0.5)]));
    let cold = Sampling { temperature: 1e-38, ..Sampling::default() };
    assert_eq!(cold.law(&[1.0, 1.5, -f32::MAX], &nothing()), Law::point(1));
    assert_eq!(log_probability(&[0.0, 0.0], 1), -std::f32::consts::LN_2);
    assert_eq!(log_probability(&[0.0, f32::NAN], 1), f32::NEG_INFINITY);
    assert_eq!(log_probability(&[0.0, f32::NAN], 0), 0.0);
    assert_eq!(log_probability(&[0.0], 7), f32::NEG_INFINITY);
    let half = -std::f32::consts::LN_2;
    assert_eq!(RawLaw::new(&[f32::NAN, f32::MAX, 3.0, f32::INFINITY]).top(2), [(1, half), (3, half)]);
    assert_eq!(RawLaw::new(&[f32::NAN, f32::NEG_INFINITY]).top(2), []);
    assert_eq!(RawLaw::new(&[]).top(2), []);
}

#[test]
fn settings_out_of_range_are_named() {
    assert_eq!(Sampling::default().problem(), None);
    let message = |sampling: Sampling| sampling.problem().unwrap().to_string();
    let temperature = Sampling { temperature: -1.0, ..Sampling::default() };
    assert_eq!(message(temperature), "temperature: expected a number from 0 up, found -1");
    let top_p = Sampling { top_p: f32::NAN, ..Sampling::default() };
    assert_eq!(message(top_p), "top_p: expected a number from 0 to 1, found NaN");
    let bias = Sampling { logit_bias: vec![(3, f32::INFINITY)], ..Sampling::default() };
    assert_eq!(message(bias), "logit_bias: expected finite numbers or minus infinity, found inf for token 3");
    let wrong = [
        Sampling { temperature: f32::INFINITY, ..Sampling::default() },
        Sampling { min_p: 1.5, ..Sampling::default() },
        Sampling { typical_p: 0.0, ..Sampling::default() },
        Sampling { repetition_penalty: 0.0, ..Sampling::default() },
        Sampling { presence_penalty: f32::NAN, ..Sampling::default() },
        Sampling { frequency_penalty: f32::NEG_INFINITY, ..Sampling::default() },
    ];
    assert!(wrong.iter().all(|sampling| sampling.problem().is_some()));
}

#[test]
fn each_number_is_a_row_of_the_table() {
    let mut all = Sampling::default();
    for parameter in Sampling::PARAMETERS {
        let mut one = Sampling::default();
        for sampling in [&mut one, &mut all] {
            *(parameter.get_mut)(sampling) = 0.25;
        }
        assert_eq!((parameter.get)(&one), 0.25);
        let written = format!("{one:?}");
        assert!(written.contains(&format!(" {}: 0.25,", parameter.name)), "{}: {written}", parameter.name);
    }
    let written = format!("{all:?}");
    assert_eq!(written.matches('.').count(), written.matches("0.25").count(), "a number without a row: {written}");
}

#[test]
fn filters_alone_say_nothing_of_tokens() {
    let filters = Sampling { temperature: 0.5, top_k: 7, top_p: 0.9, typical_p: 0.8, ..Sampling::default() };
    let all = Sampling {
        repetition_penalty: 1.5,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        penalty_window: Some(3),
        logit_bias: vec![(1, 1.0)],
        banned_tokens: vec![2],
        tokens_min: 4,
        end_tokens: vec![3],
        ..filters.clone()
    };
    assert_eq!(all.filters_only(), filters);
    assert!(all.has_penalties() && !filters.has_penalties());
}

#[test]
fn laws_are_normalized_sorted_and_positive() {
    let law = Law::from_pairs([(9, 3.0), (2, 1.0), (4, 0.0)]);
    assert_eq!((law.tokens(), law.probabilities()), (&[2, 9][..], &[0.25, 0.75][..]));
    assert_eq!((law.probability(9), law.probability(4), law.probability(3)), (0.75, 0.0, 0.0));
    assert!(Law::point(3).is_point() && !law.is_point());
    let tiny = Law::from_pairs([(0, f64::MAX / 2.0), (1, f64::MIN_POSITIVE)]);
    assert!(tiny.is_point(), "a probability that underflows is left out: {tiny:?}");
}

#[test]
#[should_panic(expected = "comes twice")]
fn a_token_has_one_probability() {
    Law::from_pairs([(1, 0.5), (1, 0.5)]);
}

#[test]
fn laws_of_a_large_vocabulary_reuse_their_memory() {
    let row: Vec<f32> = (0..131_072_u32).map(|token| (token.wrapping_mul(2_654_435_761) >> 8) as f32 / 2e6).collect();
    let (sampling, mut scratch) = (Sampling::default(), Scratch::default());
    let mut pass = || {
        let laws = [0, 1, 2].map(|_| sampling.law_with(&row, &Context::EMPTY, &mut scratch));
        let q = Sampling { temperature: 2.0, ..Sampling::default() }.law_with(&row, &Context::EMPTY, &mut scratch);
        assert!(laws.iter().all(|law| law.support_len() == row.len() && *law == laws[0]));
        laws[0].minus(1.0, q.iter()).expect("the laws differ").0.clone()
    };
    let first = pass();
    drop((pass(), pass()));
    let allocated = allocation_counter::measure(|| assert_eq!(pass(), first)).bytes_total;
    assert!(allocated < 1000, "{allocated} bytes");
}
