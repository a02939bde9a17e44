//! Tests of requests with invalid inputs: constraints that fail, and predictions with unknown tokens.

use std::collections::BTreeMap;

use foretoken_engine::{Engine, Event, FinishReason, Race, Request};
use foretoken_speculation::{Constrained, Constraint, Token, TokenSet};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

/// A constraint that forbids nothing and fails at its third token: by a panic, or by refusing an allowed token.
#[derive(Clone)]
struct Breaking(usize, bool);

impl Constraint for Breaking {
    fn allowed(&mut self) -> TokenSet {
        TokenSet::all()
    }

    fn accept(&mut self, _token: Token) -> bool {
        self.0 += 1;
        assert!(self.0 < 3 || !self.1, "a planned failure");
        self.0 < 3
    }

    fn roll_back(&mut self, tokens: usize) {
        self.0 -= tokens;
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_that_fails_ends_only_its_request() {
    let table = Table::dense(7, 2, 4);
    for panics in [true, false] {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 60, 30)), 2, usize::MAX);
        let request =
            |constraint: Option<Constrained>| Request { tokens_max: Some(20), constraint, ..Request::new(vec![1, 2]) };
        let broken = engine.submit(request(Some(Constrained::new(Box::new(Breaking(0, panics)))))).unwrap();
        let free = engine.submit(request(None)).unwrap();
        let (mut written, mut reasons) = (BTreeMap::<_, usize>::new(), BTreeMap::new());
        while !engine.is_idle() {
            for event in engine.step(&mut Race) {
                match event {
                    Event::Tokens { sequence, emitted } => *written.entry(*sequence).or_default() += emitted.len(),
                    Event::Finished { sequence, reason, .. } => drop(reasons.insert(*sequence, reason.clone())),
                    _ => {}
                }
            }
        }
        // The constraint is asked about the most probable token before it is written, and accepts it afterwards.
        assert_eq!((written[&broken], written[&free]), (if panics { 2 } else { 3 }, 20));
        assert!(matches!(&reasons[&broken], FinishReason::Failed(_)), "{reasons:?}");
        assert_eq!(reasons[&free], FinishReason::Length);
    }
}

#[test]
fn a_prediction_of_unknown_tokens_is_refused() {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(Table::dense(7, 2, 4), 4, 60, 30)), 1, usize::MAX);
    let request = Request { prediction: vec![3, 7], ..Request::new(vec![1]) };
    let refused = engine.submit(request).unwrap_err().to_string();
    assert_eq!(refused, "prediction: token 1: expected a number below 7 (the vocabulary), found 7");
}
