//! Tests of beam searches that are cancelled or fail: they end alone, and the cache is as before.

use foretoken_engine::{BeamSearch, Engine, Event, FinishReason, Race, Request};
use foretoken_model::{Batch, CacheEdit, Capacity, Executor, ExecutorError, HostOutputs, Outputs, Source};
use foretoken_speculation::{Constrained, Constraint, Sampling, Token, TokenSet};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

use crate::beams::{expected, found, run, run_one};

fn request(beams: usize, tokens: usize) -> Request {
    let settings = BeamSearch { returned: beams, ..BeamSearch::new(beams) };
    Request { tokens_max: Some(tokens), beams: Some(settings), ..Request::new(vec![1, 2, 3, 1]) }
}

fn table() -> Table {
    Table::dense(7, 3, 4)
}

#[test]
fn a_cancelled_search_reports_no_beams_and_releases_its_pages() {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 2, 90, 24)), 2, usize::MAX);
    let kept = engine.submit(request(3, 20)).expect("it fits");
    let cancelled = engine.submit(request(4, 20)).expect("it fits");
    for _ in 0..7 {
        assert!(engine.step(&mut Race).iter().all(|event| matches!(event, Event::Prompt { .. })));
    }
    engine.cancel(cancelled);
    let written = run(&mut engine);
    assert!(written[&cancelled].beams.is_none());
    assert_eq!(written[&cancelled].end.as_ref().map(|(reason, _)| reason), Some(&FinishReason::Cancelled));
    assert_eq!(found(written[&kept].beams.as_ref().expect("beams")), expected(&table(), &request(3, 20)));
    assert_eq!(engine.workload().pages_held, 0);
}

/// An executor whose edits fail, or whose logits become NaN after a number of passes.
struct Broken {
    toy: ToyExecutor,
    edits_fail: bool,
    passes_left: usize,
    outputs: HostOutputs,
}

impl Executor for Broken {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        self.toy.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        self.toy.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        self.toy.forward(batch)?;
        let rows: usize = batch.spans.iter().map(|span| span.wanted.len()).sum();
        self.outputs.vocabulary = self.toy.capacity().vocabulary;
        self.outputs.logits = (0..rows).flat_map(|row| self.toy.outputs().row(row).to_vec()).collect();
        self.passes_left = self.passes_left.saturating_sub(1);
        if let Some(last) = self.outputs.logits.last_mut().filter(|_| self.passes_left == 0) {
            *last = f32::NAN;
        }
        Ok(())
    }

    fn outputs(&self) -> &dyn Outputs {
        &self.outputs
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        match self.edits_fail {
            true => Err(ExecutorError::Failed { message: "a planned failure".to_string() }),
            false => self.toy.rows(edit),
        }
    }

    fn capacity(&self) -> &Capacity {
        self.toy.capacity()
    }
}

/// How a search ends on an executor that breaks, and the pages that are held after it.
fn end_on(edits_fail: bool, passes_left: usize) -> (FinishReason, usize) {
    let toy = ToyExecutor::new(table(), 2, 150, 24);
    let broken = Broken { toy, edits_fail, passes_left, outputs: HostOutputs::default() };
    let mut engine = Engine::new(Box::new(broken), 1, usize::MAX);
    let written = run_one(&mut engine, request(4, 30));
    assert!(written.beams.is_none(), "no beams are reported");
    (written.end.expect("an end").0, engine.workload().pages_held)
}

#[test]
fn a_search_whose_rows_cannot_be_moved_or_have_no_logits_fails() {
    let moved = end_on(true, usize::MAX);
    assert_eq!(moved, (FinishReason::Failed("executor: failed: a planned failure".to_string()), 0));
    let (FinishReason::Failed(why), 0) = end_on(false, 6) else { panic!("it fails") };
    assert!(why.contains("found NaN"), "{why}");
}

/// Allows two tokens, then none.
#[derive(Clone, Debug, Default)]
struct Two(usize);

impl Constraint for Two {
    fn allowed(&mut self) -> TokenSet {
        if self.0 < 2 { TokenSet::all() } else { TokenSet::none() }
    }

    fn accept(&mut self, _token: Token) -> bool {
        self.0 += 1;
        self.0 <= 2
    }

    fn roll_back(&mut self, tokens: usize) {
        self.0 -= tokens;
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_search_that_cannot_go_on_fails_or_answers_with_what_has_ended() {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 2, 150, 24)), 1, usize::MAX);
    let constraint = Some(Constrained::new(Box::new(Two::default())));
    let stuck = run_one(&mut engine, Request { constraint: constraint.clone(), ..request(3, 30) });
    let Some((FinishReason::Failed(why), _)) = &stuck.end else { panic!("{stuck:?}") };
    assert!(why.starts_with("constraint: ") && stuck.beams.is_none(), "{why}");
    let sampling = Sampling { temperature: 0.0, end_tokens: vec![0, 1, 2], ..Sampling::default() };
    let ended = run_one(&mut engine, Request { constraint, sampling, ..request(3, 30) });
    let beams = ended.beams.expect("some have ended");
    assert!(!beams.is_empty() && beams.iter().all(|beam| beam.tokens.len() <= 2), "{beams:?}");
}
