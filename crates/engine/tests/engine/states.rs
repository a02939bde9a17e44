//! Recurrent states: fewer of them than texts.

use foretoken_engine::{Engine, Event, FinishReason, Race, Request};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

#[test]
fn texts_wait_for_a_state_and_nobody_is_preempted_for_one() {
    for turned in [false, true] {
        let toy = ToyExecutor::new(Table::dense(7, 9, 4), 4, 200, 64).with_states(2);
        let toy = if turned { toy.with_groups_turned() } else { toy };
        let mut engine = Engine::new(Box::new(toy), 8, usize::MAX);
        for (seed, priority) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 0), (5, 0)] {
            let prompt = vec![1, 2, seed as u32];
            engine
                .submit(Request { tokens_max: Some(5 + seed), seed: seed as u64, priority, ..Request::new(prompt) })
                .unwrap();
        }
        let mut ended = 0;
        while !engine.is_idle() {
            assert!(engine.workload().running <= 2, "{:?}", engine.workload());
            for event in engine.step(&mut Race) {
                if let Event::Finished { reason, stats, .. } = event {
                    assert_eq!((reason, stats.preemptions), (&FinishReason::Length, 0));
                    ended += 1;
                }
            }
            engine.check_pages().unwrap();
        }
        assert_eq!(ended, 6);
    }
}
