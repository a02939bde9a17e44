//! Tests of the isolation of rows in networks of experts: a row has the same logits together with rows that choose the
//! same experts and with rows that choose others, and faults in the gathering of rows are detected.
//!
//! An executor does not report which experts rows choose, but how many distinct ones a pass reads
//! (`Executor::weights_read`): two rows that read no more together than one of them choose the same experts, and two
//! that read the sum of both have none in common.

use std::panic::{AssertUnwindSafe, catch_unwind};

use foretoken_model::faults::{self, Fault};
use foretoken_model::{Batch, CacheType, Executor, Model, Options, PageId, PageTable, Span};
use foretoken_testkit::rows::{Numbers, first_difference};

use crate::rows::{Subject, play_subject};
use crate::{fixture, load_with};

/// Tokens of a sequence; the row of the last one is compared.
const LEN: usize = 4;
/// Number of sequences: the one under test, copies of it, and other sequences.
const SEQUENCES: usize = 1000;
const COPIES: usize = 8;

/// Many short sequences in the cache of one network, each without its last row.
struct Sequences {
    model: Model,
    all: Vec<Vec<u32>>,
    tables: Vec<Vec<PageTable>>,
}

impl Sequences {
    fn new(name: &str) -> Self {
        let options =
            Options { page_len: LEN, pages: SEQUENCES, rows_max: 64, ..Options::for_positions(LEN * SEQUENCES, 2) };
        let model = load_with(&fixture(name), options.with_cache(CacheType::F16));
        let (groups, vocabulary) = (model.capacity().groups.len(), model.spec().vocabulary);
        let mut numbers = Numbers::new(6);
        let mut all: Vec<Vec<u32>> =
            (0..SEQUENCES).map(|_| (0..LEN).map(|_| numbers.below(vocabulary) as u32).collect()).collect();
        for copy in 1..=COPIES {
            all[copy] = all[0].clone();
        }
        let tables = (0..SEQUENCES).map(|sequence| vec![vec![PageId(sequence as u32)]; groups]).collect();
        let mut sequences = Self { model, all, tables };
        (0..SEQUENCES).for_each(|sequence| drop(sequences.pass(&[sequence], 0..LEN - 1)));
        sequences
    }

    /// The logits of the last of these rows of each sequence, all in one pass, and the number of experts that the pass
    /// read.
    fn pass(&mut self, sequences: &[usize], rows: std::ops::Range<usize>) -> (Vec<Vec<f32>>, usize) {
        let span = |sequence: &usize| Span {
            sequence: *sequence as u64,
            tables: &self.tables[*sequence],
            start: rows.start,
            tokens: &self.all[*sequence][rows.clone()],
            wanted: &[0],
            ..Span::default()
        };
        let spans: Vec<Span<'_>> = sequences.iter().map(span).collect();
        self.model.forward(&Batch { spans: &spans, hidden_layers: &[] }).unwrap_or_else(|error| panic!("{error}"));
        let logits = (0..sequences.len()).map(|row| self.model.outputs().row(row).to_vec()).collect();
        (logits, self.model.weights_read().experts)
    }

    fn last_rows(&mut self, sequences: &[usize]) -> (Vec<Vec<f32>>, usize) {
        self.pass(sequences, LEN - 1..LEN)
    }
}

/// Asserts that the logits of sequence 0 stay the same together with one other row, a few and many: before, after and
/// among them.
fn assert_unchanged(sequences: &mut Sequences, others: &[usize], alone: &[f32], what: &str) {
    for count in [1, 2, 3, 7, 20] {
        let count = count.min(others.len());
        for place in [0, count / 2, count] {
            let mut all = others[..count].to_vec();
            all.insert(place, 0);
            let found = &sequences.last_rows(&all).0[place];
            assert_eq!(first_difference(found, alone), None, "{what}: at place {place} of {}", all.len());
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_experts_of_other_rows() {
    for name in ["mixtral", "qwen2_moe", "olmoe", "granitemoe", "glm4_moe-groups", "ernie4_5_moe", "gemma4-experts"] {
        let mut sequences = Sequences::new(name);
        let (alone, own) = sequences.last_rows(&[0]);
        let mut same: Vec<usize> = (1..=COPIES).collect();
        let mut others = Vec::new();
        for sequence in COPIES + 1..SEQUENCES {
            let (theirs, both) = (sequences.last_rows(&[sequence]).1, sequences.last_rows(&[0, sequence]).1);
            if both == own {
                same.push(sequence);
            } else if both == own + theirs {
                others.push(sequence);
            }
        }
        println!("{name}: {} other sequences choose the same, {} nothing in common", same.len() - COPIES, others.len());
        assert!(!others.is_empty(), "{name}: no row that chooses other experts in every layer");
        let with_own = |others: &[usize]| [&[0], others].concat();
        same.truncate(20);
        others.truncate(20);
        assert_eq!(sequences.last_rows(&with_own(&same)).1, own, "{name}: all choose the same");
        assert!(sequences.last_rows(&with_own(&others)).1 >= 2 * own, "{name}: no other chooses one of them");
        let both: Vec<usize> = same.iter().zip(&others).flat_map(|(same, other)| [*same, *other]).collect();
        for (others, what) in [(&same, "the same"), (&others, "others"), (&both, "the same and others")] {
            assert_unchanged(&mut sequences, others, &alone[0], &format!("{name}, rows that choose {what}"));
        }
    }
}

/// Whether random passes of a network (cuts, trees and other sequences) detect that its rows depend on other rows.
fn is_caught(name: &str, fault: Fault) -> bool {
    let subject = Subject::new(&fixture(name), [CacheType::F16; 2]);
    faults::make(fault);
    let played = catch_unwind(AssertUnwindSafe(|| play_subject(&subject, 8)));
    faults::make(Fault::None);
    let Err(panic) = played else { return false };
    let message = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(message.contains("in the reference"), "{name} with {fault:?}: {message}");
    true
}

/// Networks whose rows choose three experts: a sum of two has the same bits in both orders.
const THREE_CHOSEN: [&str; 5] = ["qwen3_moe", "olmoe", "granitemoe", "glm4_moe-groups", "gpt_oss"];

#[test]
fn sums_in_the_order_of_arrival_are_detected() {
    for name in THREE_CHOSEN {
        assert!(!is_caught(name, Fault::None), "{name} without a fault");
        assert!(is_caught(name, Fault::SumByArrival), "{name}");
    }
    assert!(!is_caught("mixtral", Fault::SumByArrival), "a sum of two has one order");
}

#[test]
fn choices_of_another_row_are_detected() {
    for name in ["mixtral", "qwen2_moe", "glm4_moe-groups"] {
        assert!(!is_caught(name, Fault::None), "{name} without a fault");
        for fault in [Fault::ExpertsOfNeighbour, Fault::WeightsOfNeighbour] {
            assert!(is_caught(name, fault), "{name} with {fault:?}");
        }
    }
}
