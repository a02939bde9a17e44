//! Tests of lossy verification through the engine's step: its bound by enumeration, its greedy form, that statistics
//! say it, and which requests are refused.

use foretoken_drafters::{ModelDrafter, PredictionDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, ExecutorScorer, Race, Request, RequestError, Stats};
use foretoken_speculation::{Chance, Drafter, Promise, Sampling, Token, theory};
use foretoken_testkit::enumerator::enumerate;
use foretoken_testkit::table::{Joint, Table, distance, excess};
use foretoken_testkit::toy::ToyExecutor;

use crate::writing::write_alone;

const PROMPT: [Token; 4] = [1, 0, 1, 0];

type Make = fn() -> Box<dyn Drafter>;

fn toy(table: Table) -> Box<ToyExecutor> {
    Box::new(ToyExecutor::new(table, 4, 30, 64))
}

fn draft() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(ExecutorScorer::new(toy(Table::dense(3, 1, 7)))))
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

/// A request under *rejection*, with the only drafter of its engine.
fn request(len: usize, lossy_lenience: f32) -> Request {
    Request {
        tokens_max: Some(len),
        sampling: Sampling::default(),
        promise: Promise::Rejection,
        lossy_lenience,
        budget: BudgetKind::Fixed { nodes: 3 },
        drafters: vec![0],
        ..Request::new(PROMPT.to_vec())
    }
}

fn write(table: &Table, drafter: Box<dyn Drafter>, request: Request, chance: &mut dyn Chance) -> (Vec<Token>, Stats) {
    let mut engine = Engine::new(toy(table.clone()), 1, usize::MAX);
    engine.add_drafter(drafter);
    write_alone(&mut engine, request, chance)
}

#[test]
fn no_token_is_written_with_more_than_its_bound() {
    let (sampling, suffix): (_, Make) = (Sampling::default(), || Box::new(SuffixDrafter::default()));
    for (name, make, len) in [("suffix", suffix, 4), ("draft", draft as Make, 3)] {
        for seed in 0..3 {
            let table = Table::dense(3, 2, seed);
            let plain = table.plain(&sampling, &PROMPT, len);
            for lenience in [0.1, 0.3, 0.5, 0.9, 1.0] {
                let found: Joint = enumerate(|chance| write(&table, make(), request(len, lenience), chance).0);
                let excess = excess(&found, &table, &sampling, &PROMPT, 1.0 / f64::from(lenience));
                assert!(excess < 1e-9, "{name}, lenience {lenience}, seed {seed}: {excess} above the bound");
                let is_lossy = distance(&found, &plain) > 1e-3;
                assert!(is_lossy == (lenience < 0.9) || lenience == 0.9, "{name}, lenience {lenience}, seed {seed}");
            }
        }
    }
}

#[test]
fn greedily_a_token_is_accepted_that_is_probable_enough() {
    // 1 is six tenths as probable as 0; the filter would leave 0 alone.
    let table = Table::constant(&[0.5, 0.3, 0.2]);
    let predicted = |lossy_lenience: f32, promise: Promise| {
        let sampling = Sampling { top_k: 1, ..greedy() };
        let request = Request {
            prediction: vec![1, 0, 2, 1],
            sampling,
            promise,
            measure: true,
            seed: 5,
            ..request(5, lossy_lenience)
        };
        write(&table, Box::new(PredictionDrafter::default()), request, &mut Race)
    };
    for promise in [Promise::Exact, Promise::Rejection, Promise::Block] {
        assert_eq!(predicted(1.0, promise).0, [0; 5], "{promise:?}");
        assert_eq!(predicted(0.61, promise).0, [0; 5], "{promise:?}");
        let (text, stats) = predicted(0.59, promise);
        assert_eq!((&text[..3], stats.lossy_lenience), (&[1, 0, 0][..], Some(0.59)), "{promise:?}");
        assert_eq!(&predicted(0.39, promise).0[..3], [1, 0, 2], "{promise:?}");
    }
    // Without drafts nothing is lost.
    let plain = Request { drafters: Vec::new(), sampling: greedy(), ..request(5, 0.1) };
    let (text, stats) = write(&table, draft(), plain, &mut Race);
    assert_eq!((text, stats.lossy_lenience), (vec![0; 5], None));
}

#[test]
fn alpha_is_that_of_lenient_verification() {
    let (p, q) = ([0.5, 0.3, 0.2], [0.1, 0.1, 0.8]);
    let table = Table::constant(&p);
    let drafter = || Box::new(ModelDrafter::new(ExecutorScorer::new(toy(Table::constant(&q)))));
    let alpha = |lossy_lenience: f32, sampling: Sampling| {
        let request = Request { measure: true, sampling, ..request(20, lossy_lenience) };
        let (_, stats) = write(&table, drafter(), request, &mut Race);
        stats.drafters[0].alpha().expect("it was measured")
    };
    let [p, q] = [&p, &q].map(|row| Table::constant(row).law(&Sampling::default(), &PROMPT, 4, &[]));
    for lenience in [1.0_f32, 0.5, 0.3] {
        let expected = theory::lenient_acceptance(&p, &q, f64::from(lenience));
        let found = alpha(lenience, Sampling::default());
        assert!((found - expected).abs() < 1e-6, "lenience {lenience}: {found} for {expected}");
    }
    // The draft's most probable token is two fifths as probable as the target's.
    assert_eq!([1.0, 0.41, 0.39].map(|lenience| alpha(lenience, greedy())), [0.0, 0.0, 1.0]);
}

#[test]
fn a_lenience_beside_what_it_would_break_is_refused() {
    let mut engine = Engine::new(toy(Table::dense(3, 2, 0)), 1, usize::MAX);
    engine.add_drafter(draft());
    let mut refusal = |request: Request| engine.submit(request).expect_err("it is refused");
    for found in [0.0, -1.0, 1.5, f32::NAN] {
        let refused = refusal(request(4, found));
        assert_eq!(
            refused.to_string(),
            format!("lossy_lenience: expected a number above 0 and up to 1, found {found}")
        );
    }
    for promise in [Promise::Exact, Promise::Block] {
        let refused = refusal(Request { promise, ..request(4, 0.5) });
        assert_eq!(refused, RequestError::LenientPromise { promise });
    }
    let budget = BudgetKind::Oracle { text: vec![1].into(), nodes_max: 2 };
    let refused = refusal(Request { budget, sampling: greedy(), ..request(4, 0.5) });
    assert_eq!(refused, RequestError::LenientOracle { found: 0.5 });
}
