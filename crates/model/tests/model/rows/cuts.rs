//! Tests of one sequence in passes of several lengths, the simplest form of the independence of rows.

use foretoken_model::CacheType::{BF16, F16, Q8_0};
use foretoken_model::{Checkpoint, Options};
use foretoken_testkit::rows::{Numbers, first_difference};

use super::{Subject, demo, load};
use crate::fixture;
use crate::golden::goldens;

#[test]
fn a_sequence_may_be_cut_anywhere() {
    let mut numbers = Numbers::new(3);
    for path in [fixture("llama"), fixture("gpt2"), demo()] {
        let subject = Subject::new(&path, [F16; 2]);
        let tokens = subject.tokens(&mut numbers, 40);
        for (page_len, threads) in [(1, 2), (2, 1), (16, 4), (32, 3)] {
            let pages = 40usize.div_ceil(page_len);
            let options = Options { page_len, pages, rows_max: 40, ..Options::for_positions(40, threads) };
            let mut model = load(&subject.checkpoint, options);
            let alone = crate::logits(&mut model, &tokens, &[1]);
            for lengths in [&[40][..], &[7], &[33, 1], &[1, 39], &[16, 2, 5, 3, 14]] {
                let found = crate::logits(&mut model, &tokens, lengths);
                let at = first_difference(&found, &alone);
                assert_eq!(at, None, "{}: passes of {lengths:?}, pages of {page_len}", subject.name);
            }
        }
    }
}

/// Tests a sequence that crosses the border of a split of attention's positions, beyond which several threads may
/// compute one row.
#[test]
fn a_long_sequence_may_be_cut_anywhere() {
    let tokens: Vec<u32> = (0..1100).map(|i| i * 37 % 500).collect();
    for types in [[F16, F16], [Q8_0, BF16]] {
        let load = |threads| {
            let options = Options { rows_max: 1100, ..Options::for_positions(1100, threads) };
            let checkpoint = Checkpoint::open(&demo()).unwrap_or_else(|error| panic!("{error}"));
            load(&checkpoint, Options { key_type: types[0], value_type: types[1], ..options })
        };
        let whole = crate::logits(&mut load(1), &tokens, &[1100]);
        for (threads, lengths) in [(2, &[509, 1, 1, 1, 1, 1, 512, 8][..]), (3, &[64]), (2, &[500, 1, 30, 490, 7, 1])] {
            let found = crate::logits(&mut load(threads), &tokens, lengths);
            assert_eq!(first_difference(&found, &whole), None, "passes of {lengths:?}, {threads} threads");
        }
    }
}

/// Tests passes of all lengths over a window's edge, in the families with windows.
#[test]
fn a_sequence_with_a_window_may_be_cut_anywhere() {
    let mut numbers = Numbers::new(4);
    let mut windowed = 0;
    for name in &goldens() {
        let subject = Subject::new(&fixture(name), [F16; 2]);
        let spec = subject.plain.borrow().spec().clone();
        if (0..spec.layers).all(|layer| spec.attention_of(layer).window.is_none()) {
            continue;
        }
        windowed += 1;
        let tokens = subject.tokens(&mut numbers, 90);
        let options = Options { page_len: 16, pages: 6, rows_max: 90, ..Options::for_positions(96, 2) };
        let alone = crate::logits(&mut load(&subject.checkpoint, options), &tokens, &[1]);
        for lengths in [&[90][..], &[7], &[31, 1, 1, 1, 33], &[33, 32, 25], &[64, 26]] {
            let found = crate::logits(&mut load(&subject.checkpoint, options), &tokens, lengths);
            assert_eq!(first_difference(&found, &alone), None, "{name}: passes of {lengths:?}");
        }
    }
    assert!(windowed >= 8, "{windowed} networks with windows");
}
