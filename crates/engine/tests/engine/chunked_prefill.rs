//! Tests of chunked prefill: while other requests generate, prompts are read in chunks, by the target and by draft
//! models.

use std::sync::{Arc, Mutex};

use foretoken_drafters::ModelDrafter;
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Race, Request, SequenceId};
use foretoken_speculation::costs::Curve;
use foretoken_speculation::{Costs, DrafterCosts, Token};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::{Table, mix};
use foretoken_testkit::toy::{ToyExecutor, Watched, rows};

/// The number of rows of each pass so far.
type Widths = Arc<Mutex<Vec<usize>>>;

const VOCABULARY: usize = 6;
/// Rows of the widest pass.
const ROWS_MAX: usize = 400;

fn table() -> Table {
    Table::seeded(VOCABULARY, 4, 11)
}

fn prompt(seed: u64, len: u64) -> Vec<Token> {
    (0..len).map(|at| (mix(seed + at) % VOCABULARY as u64) as Token).collect()
}

/// An engine with a draft model and held costs: a pass takes 20 ms, each row 1 ms more, and the draft model reads a
/// token in 0.5 ms. Also returns the widths of the target's and of the draft model's passes.
fn engine() -> (Engine, Widths, Widths) {
    engine_with(300)
}

/// The engine of [`engine`], with the given number of pages in the draft model's cache.
fn engine_with(draft_pages: usize) -> (Engine, Widths, Widths) {
    let (target, draft) = (Widths::default(), Widths::default());
    let recorded = |pages: usize, widths: Widths| {
        Watched::new(ToyExecutor::new(table(), 8, pages, ROWS_MAX), move |batch| {
            widths.lock().unwrap().push(rows(batch));
            Ok(())
        })
    };
    let mut engine = Engine::new(Box::new(recorded(300, target.clone())), 4, usize::MAX);
    let scorer = ExecutorScorer::new(Box::new(recorded(draft_pages, draft.clone())));
    engine.add_drafter(Box::new(ModelDrafter::new(scorer)));
    let curve = Curve::new(0, vec![(1, 0.021), (101, 0.121)]);
    let drafters = vec![DrafterCosts { call: 0.0, step: 0.002, catch_up: 0.0005 }];
    engine.hold_costs(Costs { curves: vec![curve], drafters });
    (engine, target, draft)
}

fn request(prompt: Vec<Token>, budget: &BudgetKind) -> Request {
    let budget = budget.clone();
    Request { tokens_max: Some(60), drafters: vec![0], budget, log_probabilities: true, ..Request::new(prompt) }
}

/// Runs until the engine is idle. Returns the outputs of the sequences, in this order, and how many passes the first
/// one had before the second wrote its first token.
fn run(engine: &mut Engine, ids: &[SequenceId]) -> (Vec<Vec<(Token, u32)>>, usize) {
    let (mut all, mut passes) = (vec![Vec::new(); ids.len()], 0);
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    let at = ids.iter().position(|id| id == sequence).unwrap();
                    all[at].extend(emitted.iter().map(|e| (e.token, e.log_probability.unwrap().to_bits())));
                    passes += usize::from(at == 0 && all.get(1).is_none_or(Vec::is_empty));
                }
                Event::DrafterFailed { message, .. } => panic!("no drafter fails: {message}"),
                _ => {}
            }
        }
    }
    (all, passes)
}

#[test]
fn a_long_prompt_delays_other_requests_only_a_little() {
    for budget in &[BudgetKind::Fixed { nodes: 4 }, BudgetKind::default()] {
        let (mut engine, target, draft) = engine();
        let first = Request { tokens_max: Some(200), ..request(prompt(1, 4), budget) };
        let second = request(prompt(2, 900), budget);
        let mut ids = vec![engine.submit(first.clone()).unwrap()];
        for _ in 0..3 {
            engine.step(&mut Race).iter().for_each(drop);
        }
        let before = (target.lock().unwrap().len(), draft.lock().unwrap().len());
        ids.push(engine.submit(second.clone()).unwrap());
        let (outputs, passes) = run(&mut engine, &ids);
        // In 150 ms, 88 rows can be read by the target and by the draft model: ten passes or a few more.
        let (target, draft) = (target.lock().unwrap()[before.0..].to_vec(), draft.lock().unwrap()[before.1..].to_vec());
        assert!(target.iter().all(|rows| *rows <= 90), "{budget:?}: {target:?}");
        assert!(draft.iter().all(|rows| *rows <= 110), "{budget:?}: {draft:?}");
        assert!((9..16).contains(&passes), "{budget:?}: {passes}");
        // The draft model read nothing twice.
        let wide: usize = draft.iter().filter(|rows| **rows > 16).sum();
        assert!((800..=930).contains(&wide), "{budget:?}: {draft:?}");
        let expected = decode(&table(), &second.sampling, 0, &second.prompt, 60);
        assert_eq!(outputs[1], expected, "{budget:?}");
        let expected = decode(&table(), &first.sampling, 0, &first.prompt, 200);
        assert!(expected.ends_with(&outputs[0]), "{budget:?}");
    }
}

#[test]
fn a_request_alone_reads_its_prompt_in_the_widest_passes() {
    let (mut engine, target, draft) = engine();
    let request = request(prompt(2, 900), &BudgetKind::default());
    let id = engine.submit(request.clone()).unwrap();
    let (outputs, _) = run(&mut engine, &[id]);
    assert_eq!(target.lock().unwrap()[..2], [ROWS_MAX; 2]);
    assert!(draft.lock().unwrap()[0] >= 300);
    assert_eq!(outputs[0], decode(&table(), &request.sampling, 0, &request.prompt, 60));
}

#[test]
fn a_draft_model_adopts_a_cached_prefix_before_the_first_chunk() {
    let (mut engine, _, draft) = engine();
    let budget = &BudgetKind::Fixed { nodes: 4 };
    let earlier = engine.submit(request(prompt(2, 900), budget)).unwrap();
    run(&mut engine, &[earlier]);
    let first = engine.submit(request(prompt(1, 4), budget)).unwrap();
    engine.step(&mut Race).iter().for_each(drop);
    let before = draft.lock().unwrap().len();
    let second = engine.submit(request([prompt(2, 900), vec![3; 40]].concat(), budget)).unwrap();
    run(&mut engine, &[first, second]);
    let read: usize = draft.lock().unwrap()[before..].iter().filter(|rows| **rows > 16).sum();
    assert!(read <= 60, "{read}");
}

#[test]
fn a_sequence_that_a_draft_model_has_no_room_for_does_not_block_others() {
    for budget in &[BudgetKind::Fixed { nodes: 4 }, BudgetKind::default()] {
        // The draft model has room for 320 tokens.
        let (mut engine, _, draft) = engine_with(40);
        let requests = [
            Request { tokens_max: Some(100), ..request(prompt(1, 4), budget) },
            request(prompt(2, 900), budget),
            request(prompt(3, 100), budget),
        ];
        let ids: Vec<SequenceId> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
        let (outputs, _) = run(&mut engine, &ids);
        for (output, request) in outputs.iter().zip(&requests) {
            let tokens_max = request.tokens_max.unwrap();
            assert_eq!(*output, decode(&table(), &request.sampling, 0, &request.prompt, tokens_max), "{budget:?}");
        }
        // The draft model reads the beginning of the long prompt, once, and the short prompt.
        let read: usize = draft.lock().unwrap().iter().filter(|rows| **rows > 8).sum();
        assert!((90..600).contains(&read), "{budget:?}: {read}");
    }
}

#[test]
fn draft_models_read_prompts_that_arrive_together_while_the_target_does() {
    let (mut engine, target, draft) = engine();
    let requests = [request(prompt(2, 500), &BudgetKind::default()), request(prompt(3, 500), &BudgetKind::default())];
    let ids: Vec<SequenceId> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    for _ in 0..2 {
        engine.step(&mut Race).iter().for_each(drop);
    }
    assert_eq!(target.lock().unwrap()[0], ROWS_MAX);
    assert!(draft.lock().unwrap().iter().sum::<usize>() >= 300, "{:?}", draft.lock().unwrap());
    run(&mut engine, &ids);
}
