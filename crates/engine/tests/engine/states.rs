//! Tests of recurrent states: with fewer of them than requests, and with checkpoints that later requests continue from.

use foretoken_engine::{Engine, Event, FinishReason, Race, Request, Stats, Token};
use foretoken_speculation::Tenant;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

use crate::writing::write;

#[test]
fn requests_wait_for_a_state_and_none_is_preempted_for_one() {
    for is_reversed in [false, true] {
        let toy = ToyExecutor::new(Table::dense(7, 9, 4), 4, 200, 64).with_states(2);
        let toy = if is_reversed { toy.with_groups_reversed() } else { toy };
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

/// An engine with `slots` states, and with rows or without.
fn engine(slots: usize, has_rows: bool) -> Engine {
    let toy = ToyExecutor::new(Table::seeded(7, 60, 4), 4, 200, 64).with_states(slots);
    Engine::new(Box::new(if has_rows { toy } else { toy.without_rows() }), 4, 400)
}

fn prompt(len: usize, seed: usize) -> Vec<Token> {
    (0..len).map(|i| ((i * i + seed * i / 3 + seed) % 7) as Token).collect()
}

fn request(prompt: &[Token]) -> Request {
    Request { tokens_max: Some(6), log_probabilities: true, ..Request::new(prompt.to_vec()) }
}

/// Runs a request alone and checks its output. Returns the output and the statistics.
fn run(engine: &mut Engine, request: Request) -> (Vec<Token>, Stats) {
    let expected = write(&mut self::engine(4, true), std::slice::from_ref(&request));
    engine.submit(request).unwrap();
    let (mut tokens, mut stats) = (Vec::new(), None);
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { emitted, .. } => tokens.extend(emitted.iter().map(|emitted| emitted.token)),
                Event::Finished { stats: found, .. } => stats = Some(Stats::clone(found)),
                _ => {}
            }
        }
        engine.check_pages().unwrap();
    }
    let expected: Vec<Token> = expected.into_iter().flatten().map(|(token, _)| token).collect();
    assert_eq!(tokens, expected);
    (tokens, stats.expect("it ended"))
}

#[test]
fn later_turns_continue_from_checkpoints() {
    for has_rows in [true, false] {
        let mut engine = engine(8, has_rows);
        let first = prompt(40, 1);
        // The answer begins at 36, so a checkpoint is taken there, without an extra pass.
        let (answer, stats) = run(&mut engine, Request { checkpoints: vec![36], ..request(&first) });
        assert_eq!((stats.prompt_tokens_shared, stats.prompt_passes), (0, 0));
        let shared = |engine: &mut Engine, prompt: &[Token]| run(engine, request(prompt)).1.prompt_tokens_shared;
        // The same prompt, the prompt with another end, and the prompt with its answer.
        assert_eq!(shared(&mut engine, &first), 39);
        assert_eq!(shared(&mut engine, &[&first[..36], &prompt(20, 5)].concat()), 36);
        assert_eq!(shared(&mut engine, &[&first[..38], &prompt(20, 5)].concat()), 38, "between two checkpoints");
        assert_eq!(shared(&mut engine, &[&first[..], &answer, &[3, 3]].concat()), 45);
        assert_eq!(shared(&mut engine, &first[..35]), 0, "a state cannot be rolled back");
        // Another tenant does not find the checkpoints.
        let other = Request { tenant: Tenant(5), ..request(&first) };
        assert_eq!(run(&mut engine, other).1.prompt_tokens_shared, 0);
    }
}

#[test]
fn states_are_kept_where_a_prompt_differs_from_an_earlier_one() {
    let mut engine = engine(8, true);
    let common = prompt(30, 2);
    let prompts: Vec<Vec<Token>> = (3..6).map(|seed| [&common[..], &[seed], &prompt(25, 9)].concat()).collect();
    let stats: Vec<Stats> = prompts.iter().map(|prompt| run(&mut engine, request(prompt)).1).collect();
    // The second prompt is split there, which takes a pass; the third continues from there.
    assert_eq!(stats.iter().map(|stats| stats.prompt_passes).collect::<Vec<_>>(), [0, 1, 0]);
    assert_eq!(stats.iter().map(|stats| stats.prompt_tokens_shared).collect::<Vec<_>>(), [0, 0, 30]);
}

#[test]
fn concurrent_requests_with_the_same_prompt_wait_for_the_first() {
    for has_rows in [true, false] {
        let mut engine = engine(8, has_rows);
        for seed in 0..3 {
            engine.submit(Request { seed, ..request(&prompt(50, 3)) }).unwrap();
        }
        let mut shared = Vec::new();
        while !engine.is_idle() {
            for event in engine.step(&mut Race) {
                if let Event::Finished { stats, .. } = event {
                    shared.push(stats.prompt_tokens_shared);
                }
            }
        }
        assert_eq!(shared, [0, 49, 49]);
    }
}

#[test]
fn the_least_recently_used_checkpoint_is_evicted_first() {
    let shared = |engine: &mut Engine, seed: usize| {
        run(engine, Request { tokens_max: Some(1), ..request(&prompt(20, seed)) }).1.prompt_tokens_shared
    };
    let mut engine = engine(7, false);
    // A request leaves two checkpoints: one at the end of its prompt, and its own state.
    assert_eq!([1, 2, 3].map(|seed| shared(&mut engine, seed)), [0, 0, 0]);
    assert_eq!(engine.pages().checkpoints(), 6);
    // The first is used again, so two more requests evict the second before it.
    assert_eq!(shared(&mut engine, 1), 19);
    assert_eq!([4, 5].map(|seed| shared(&mut engine, seed)), [0, 0]);
    assert_eq!([1, 2].map(|seed| shared(&mut engine, seed)), [19, 0]);
}

#[test]
fn a_state_is_saved_with_the_inputs_after_it() {
    for has_rows in [true, false] {
        let tokens = prompt(40, 7);
        for (len, checkpoints) in [(40, vec![34]), (40, vec![]), (25, vec![]), (39, vec![36])] {
            let mut first = engine(4, has_rows);
            first.save_prefix(Tenant::default(), tokens[..len].to_vec());
            run(&mut first, Request { checkpoints, ..request(&tokens) });
            let saved = first.take_saved_prefix().expect("its rows were computed");
            let mut later = engine(4, has_rows);
            assert_eq!(later.load_prefix(Some(Tenant::default()), &saved), len);
            later.check_pages().unwrap();
            let shared = run(&mut later, request(&tokens)).1.prompt_tokens_shared;
            assert_eq!(shared, len.min(39), "{len} tokens were saved");
            // Without room for the whole prefix nothing is loaded, since a state cannot be shortened.
            if has_rows {
                let small = ToyExecutor::new(Table::seeded(7, 60, 4), 4, 5, 64).with_states(2);
                assert_eq!(Engine::new(Box::new(small), 1, 400).load_prefix(None, &saved), 0);
            }
        }
    }
}

#[test]
fn a_public_prefix_is_shared_with_all_tenants_even_near_the_end_of_the_prompt() {
    for has_rows in [true, false] {
        let mut engine = engine(8, has_rows);
        let public = prompt(30, 4);
        let asked = |tenant: u64| Request {
            tenant: Tenant(tenant),
            public_prefix: 30,
            ..request(&[&public[..], &[tenant as Token % 7, 2, 3]].concat())
        };
        let shared = [1, 2, 3].map(|tenant| run(&mut engine, asked(tenant)).1.prompt_tokens_shared);
        assert_eq!(shared, [0, 30, 30]);
        // The first of several concurrent requests computes it.
        let mut engine = self::engine(8, has_rows);
        (1..5).for_each(|tenant| _ = engine.submit(asked(tenant)).unwrap());
        let mut shared = 0;
        while !engine.is_idle() {
            for event in engine.step(&mut Race) {
                if let Event::Finished { stats, .. } = event {
                    shared += stats.prompt_tokens_shared;
                }
            }
        }
        assert_eq!(shared, 90);
    }
}

#[test]
fn the_only_state_is_passed_on_to_the_next_request() {
    for has_rows in [true, false] {
        let mut engine = engine(1, has_rows);
        let first = prompt(40, 6);
        let (answer, _) = run(&mut engine, request(&first));
        let next = [&first[..], &answer, &[1, 2]].concat();
        assert_eq!(run(&mut engine, request(&next)).1.prompt_tokens_shared, 45);
        assert_eq!(run(&mut engine, request(&prompt(20, 3))).1.prompt_tokens_shared, 0);
        assert_eq!(run(&mut engine, request(&next)).1.prompt_tokens_shared, 0, "another request took the state");
    }
}
