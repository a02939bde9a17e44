//! Rows and the experts that their company chooses: a row says the same beside rows that choose the same experts and
//! beside rows that choose others, and a network that gathers its rows wrongly is seen.
//!
//! Which experts rows choose is not told, but how many different ones a pass reads is (`Executor::read`): two rows
//! that read no more together than one of them choose the same, and two that read the sum of both have none in common.

use std::panic::{AssertUnwindSafe, catch_unwind};

use foretoken_model::faults::{self, Fault};
use foretoken_model::{Batch, CacheType, Executor, Model, Options, PageId, PageTable, Span};
use foretoken_testkit::rows::{Numbers, first_difference};

use crate::rows::{Subject, play_subject};
use crate::{fixture, load_with};

/// Tokens of a text, of which the last one's row is looked at.
const LEN: usize = 4;
/// Texts: the row under test, copies of it, and others.
const TEXTS: usize = 1000;
const COPIES: usize = 8;

/// Many short texts in the cache of one network, all but their last rows.
struct Texts {
    model: Model,
    all: Vec<Vec<u32>>,
    tables: Vec<Vec<PageTable>>,
}

impl Texts {
    fn new(name: &str) -> Self {
        let options = Options { page_len: LEN, pages: TEXTS, rows_max: 64, ..Options::for_positions(LEN * TEXTS, 2) };
        let model = load_with(&fixture(name), options.with_cache(CacheType::F16));
        let (groups, vocabulary) = (model.capacity().groups.len(), model.spec().vocabulary);
        let mut numbers = Numbers::new(6);
        let mut all: Vec<Vec<u32>> =
            (0..TEXTS).map(|_| (0..LEN).map(|_| numbers.below(vocabulary) as u32).collect()).collect();
        for copy in 1..=COPIES {
            all[copy] = all[0].clone();
        }
        let tables = (0..TEXTS).map(|text| vec![vec![PageId(text as u32)]; groups]).collect();
        let mut texts = Self { model, all, tables };
        (0..TEXTS).for_each(|text| drop(texts.pass(&[text], 0..LEN - 1)));
        texts
    }

    /// What the last of these rows of each text says in one pass of them all, and how many experts that read.
    fn pass(&mut self, texts: &[usize], rows: std::ops::Range<usize>) -> (Vec<Vec<f32>>, usize) {
        let span = |text: &usize| Span {
            sequence: *text as u64,
            tables: &self.tables[*text],
            start: rows.start,
            tokens: &self.all[*text][rows.clone()],
            wanted: &[0],
            ..Span::default()
        };
        let spans: Vec<Span<'_>> = texts.iter().map(span).collect();
        self.model.forward(&Batch { spans: &spans, hidden_layers: &[] }).unwrap_or_else(|error| panic!("{error}"));
        let said = (0..texts.len()).map(|row| self.model.outputs().row(row).to_vec()).collect();
        (said, self.model.read().experts)
    }

    fn last_rows(&mut self, texts: &[usize]) -> (Vec<Vec<f32>>, usize) {
        self.pass(texts, LEN - 1..LEN)
    }
}

/// Beside one row, a few and many, in front of them, behind them and among them.
fn says_the_same(texts: &mut Texts, company: &[usize], alone: &[f32], what: &str) {
    for count in [1, 2, 3, 7, 20] {
        let count = count.min(company.len());
        for place in [0, count / 2, count] {
            let mut all = company[..count].to_vec();
            all.insert(place, 0);
            let said = &texts.last_rows(&all).0[place];
            assert_eq!(first_difference(said, alone), None, "{what}: at place {place} of {}", all.len());
        }
    }
}

#[test]
fn a_row_does_not_hear_which_experts_its_company_chooses() {
    for name in ["mixtral", "qwen2_moe", "olmoe", "granitemoe", "glm4_moe-groups", "ernie4_5_moe", "gemma4-experts"] {
        let mut texts = Texts::new(name);
        let (alone, own) = texts.last_rows(&[0]);
        let mut same: Vec<usize> = (1..=COPIES).collect();
        let mut others = Vec::new();
        for text in COPIES + 1..TEXTS {
            let (theirs, both) = (texts.last_rows(&[text]).1, texts.last_rows(&[0, text]).1);
            if both == own {
                same.push(text);
            } else if both == own + theirs {
                others.push(text);
            }
        }
        println!("{name}: {} other texts choose the same, {} nothing in common", same.len() - COPIES, others.len());
        assert!(!others.is_empty(), "{name}: no row that chooses other experts in every layer");
        let with_own = |company: &[usize]| [&[0], company].concat();
        same.truncate(20);
        others.truncate(20);
        assert_eq!(texts.last_rows(&with_own(&same)).1, own, "{name}: all choose the same");
        assert!(texts.last_rows(&with_own(&others)).1 >= 2 * own, "{name}: no other chooses one of them");
        let both: Vec<usize> = same.iter().zip(&others).flat_map(|(same, other)| [*same, *other]).collect();
        for (company, what) in [(&same, "the same"), (&others, "others"), (&both, "the same and others")] {
            says_the_same(&mut texts, company, &alone[0], &format!("{name}, rows that choose {what}"));
        }
    }
}

/// Whether random passes of a network show that its rows go by their company: cuts, trees and strangers.
fn is_caught(name: &str, fault: Fault) -> bool {
    let subject = Subject::new(&fixture(name), [CacheType::F16; 2]);
    faults::make(fault);
    let played = catch_unwind(AssertUnwindSafe(|| play_subject(&subject, 8)));
    faults::make(Fault::None);
    let Err(panic) = played else { return false };
    let message = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(message.contains("plainly"), "{name} with {fault:?}: {message}");
    true
}

/// Networks whose rows choose three experts: a sum of two has the same bits in both orders.
const OF_THREE: [&str; 5] = ["qwen3_moe", "olmoe", "granitemoe", "glm4_moe-groups", "gpt_oss"];

#[test]
fn sums_in_the_order_of_arrival_are_caught() {
    for name in OF_THREE {
        assert!(!is_caught(name, Fault::None), "{name} without a mistake");
        assert!(is_caught(name, Fault::SumByArrival), "{name}");
    }
    assert!(!is_caught("mixtral", Fault::SumByArrival), "a sum of two has one order");
}

#[test]
fn choices_of_a_neighbour_are_caught() {
    for name in ["mixtral", "qwen2_moe", "glm4_moe-groups"] {
        assert!(!is_caught(name, Fault::None), "{name} without a mistake");
        for fault in [Fault::ExpertsOfNeighbour, Fault::WeightsOfNeighbour] {
            assert!(is_caught(name, fault), "{name} with {fault:?}");
        }
    }
}
