//! Tests of beam searches that are cancelled or fail: they end alone, and the cache is as before.

use foretoken_engine::{BeamSearch, Engine, Event, FinishReason, Race, Request};
use foretoken_model::{Executor, ExecutorError};
use foretoken_speculation::{Constrained, Constraint, Sampling, Token, TokenSet};
use foretoken_testkit::beams::Found;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::{ToyExecutor, Watched};

use crate::beams::{expected, run, run_one};

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
    assert_eq!(Found::all(written[&kept].beams.as_ref().expect("beams")), expected(&table(), &request(3, 20)));
    assert_eq!(engine.workload().pages_held, 0);
}

/// How a search ends on an executor of this table, whose edits may fail, and the pages that are held after it.
fn end_on(table: Table, edits_fail: bool) -> (FinishReason, usize) {
    let toy = ToyExecutor::new(table, 2, 150, 24);
    let toy = Watched::new(toy, |_| Ok(())).with_edits(move |toy, edit| match edits_fail {
        true => Err(ExecutorError::Failed { message: "a planned failure".to_string() }),
        false => toy.rows(edit),
    });
    let mut engine = Engine::new(Box::new(toy), 1, usize::MAX);
    let written = run_one(&mut engine, request(4, 30));
    assert!(written.beams.is_none(), "no beams are reported");
    (written.end.expect("an end").0, engine.workload().pages_held)
}

#[test]
fn a_search_whose_rows_cannot_be_moved_or_have_no_logits_fails() {
    let moved = end_on(table(), true);
    assert_eq!(moved, (FinishReason::Failed("executor: failed: a planned failure".to_string()), 0));
    let whole = table();
    let broken = Table::new(7, move |tokens| match tokens.len() < 9 {
        true => whole.logits(tokens),
        false => vec![f32::NAN; 7],
    });
    let (FinishReason::Failed(why), 0) = end_on(broken, false) else { panic!("it fails") };
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
