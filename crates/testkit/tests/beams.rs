//! Canaries of beam search: mistakes made on purpose that the comparison with the naive search must notice.

use foretoken_drafters::ModelDrafter;
use foretoken_engine::faults::{Fault, make};
use foretoken_engine::{BeamSearch, BudgetKind, Engine, Event, Race, Request, Token};
use foretoken_testkit::beams::search;
use foretoken_testkit::table::{Table, TableScorer};
use foretoken_testkit::toy::ToyExecutor;

/// Whether an engine that makes this mistake finds other hypotheses than the naive search.
fn is_noticed(fault: Fault) -> bool {
    let table = Table::dense(7, 3, 4);
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 2, 250, 60)), 1, usize::MAX);
    // A draft model that is right about some of the hypotheses.
    let other = Table::dense(7, 2, 4);
    let (draft, plain) = (table.clone(), other);
    let mixed =
        Table::new(7, move |tokens| if tokens.len() % 2 == 0 { draft.logits(tokens) } else { plain.logits(tokens) });
    engine.add_drafter(Box::new(ModelDrafter::new(TableScorer::new(mixed))));
    let settings = BeamSearch { returned: 4, ..BeamSearch::new(4) };
    let (drafters, budget) = (vec![0], BudgetKind::Fixed { nodes: 12 });
    let request =
        Request { tokens_max: Some(60), beams: Some(settings), drafters, budget, ..Request::new(vec![1, 2, 3, 1]) };
    let expected = search(&table, &request.sampling, &request.prompt, &settings, 60);
    let expected: Vec<Vec<Token>> = expected.into_iter().map(|found| found.tokens).collect();
    make(fault);
    engine.submit(request).unwrap_or_else(|error| panic!("{error}"));
    let mut found = Vec::new();
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            if let Event::Beams { beams, .. } = event {
                found = beams.iter().map(|beam| beam.tokens.clone()).collect();
            }
        }
    }
    make(Fault::None);
    found != expected
}

#[test]
fn mistakes_are_noticed() {
    assert!(!is_noticed(Fault::None));
    assert!(is_noticed(Fault::BeamRowsNotMoved));
    assert!(is_noticed(Fault::BeamMissing));
}
