//! Tests of beam search against the naive one: the same hypotheses with the same scores, alone and in batches, in
//! caches of every kind, after preemptions, and whatever the other requests do.

use std::collections::BTreeMap;
use std::sync::Arc;

use foretoken_drafters::SuffixDrafter;
use foretoken_engine::{
    Beam, BeamSearch, BudgetKind, EarlyStopping, Engine, Event, FinishReason, Race, Request, RequestError, SequenceId,
    Stats, Token,
};
use foretoken_speculation::{Constrained, Sampling};
use foretoken_testkit::beams::{Found, search};
use foretoken_testkit::forbidding::Forbidding;
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::{Table, mix};
use foretoken_testkit::toy::ToyExecutor;
use foretoken_testkit::vocabulary;

const STOPPING: [EarlyStopping; 3] = [EarlyStopping::False, EarlyStopping::True, EarlyStopping::Never];

/// What a request has written: hypotheses, or tokens, and its end.
#[derive(Debug, Default)]
pub struct Written {
    pub beams: Option<Vec<Beam>>,
    pub tokens: Vec<Token>,
    pub end: Option<(FinishReason, Stats)>,
}

/// Runs an engine until it is idle, and checks its pages after each step.
pub fn run(engine: &mut Engine) -> BTreeMap<SequenceId, Written> {
    let mut all: BTreeMap<SequenceId, Written> = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step(&mut Race).to_vec() {
            let written = all.entry(event.sequence()).or_default();
            assert!(written.end.is_none(), "an event after the end: {event:?}");
            match event {
                Event::Beams { beams, .. } => assert!(written.beams.replace(beams).is_none(), "twice"),
                Event::Tokens { emitted, .. } => written.tokens.extend(emitted.iter().map(|emitted| emitted.token)),
                Event::Finished { reason, stats, .. } => written.end = Some((reason, *stats)),
                Event::DrafterFailed { message, .. } => panic!("{message}"),
                _ => {}
            }
        }
        engine.check_pages().unwrap_or_else(|error| panic!("{error}"));
    }
    all
}

/// The hypotheses that a request alone finds.
pub fn run_one(engine: &mut Engine, request: Request) -> Written {
    let sequence = engine.submit(request).unwrap_or_else(|error| panic!("{error}"));
    run(engine).remove(&sequence).expect("it has ended")
}

/// A random number below `below`, which changes the state.
pub fn below(state: &mut u64, below: usize) -> usize {
    *state = mix(*state);
    (*state % below as u64) as usize
}

/// A random request for beams over a table of this many tokens.
pub fn random_request(state: &mut u64, vocabulary: usize) -> Request {
    let beams = 2 + below(state, 4);
    let end_tokens: Vec<Token> = (0..below(state, 4) as Token).filter(|token| (*token as usize) < vocabulary).collect();
    let settings = BeamSearch {
        beams,
        length_penalty: [-1.0, 0.0, 0.6, 1.0, 2.0][below(state, 5)],
        early_stopping: STOPPING[below(state, 3)],
        returned: 1 + below(state, beams),
    };
    let sampling = Sampling {
        temperature: 0.0,
        end_tokens,
        repetition_penalty: [1.0, 1.3][below(state, 2)],
        presence_penalty: [0.0, 0.5][below(state, 2)],
        tokens_min: below(state, 3),
        logit_bias: if below(state, 3) == 0 { vec![(2, 1.5)] } else { Vec::new() },
        ..Sampling::default()
    };
    let prompt = (0..1 + below(state, 9)).map(|_| below(state, vocabulary) as Token).collect();
    Request { tokens_max: Some(1 + below(state, 20)), sampling, beams: Some(settings), ..Request::new(prompt) }
}

/// The hypotheses that the naive search finds for a request.
pub fn expected(table: &Table, request: &Request) -> Vec<Found> {
    let settings = request.beams.expect("a request for beams");
    search(table, &request.sampling, &request.prompt, &settings, request.tokens_max.expect("a limit"))
}

#[test]
fn the_hypotheses_are_those_of_the_naive_search() {
    let mut state = 1;
    let mut ends = [0; 2];
    for (case, make) in (0..400u64).zip([Table::dense, Table::seeded].into_iter().cycle()) {
        let vocabulary = [3, 5, 7, 11][below(&mut state, 4)];
        let table = make(vocabulary, 1 + below(&mut state, 4), case);
        let toy = ToyExecutor::new(table.clone(), 1 + below(&mut state, 4), 200, 24);
        let mut request = random_request(&mut state, vocabulary);
        let source: Option<Arc<[Token]>> = (below(&mut state, 5) == 0).then(|| [2, 0, 1][..].into());
        let toy = match below(&mut state, 5) {
            _ if source.is_some() => toy.with_encoder(5, 2, 4),
            0 => toy.with_window(50, 4),
            1 => toy.with_states(3),
            2 => toy.with_states(3).without_rows(),
            _ => toy,
        };
        let mut engine = Engine::new(Box::new(toy), 1, usize::MAX);
        let table = source.as_ref().map_or(table.clone(), |source| table.with_source(source));
        request.source = source;
        let expected = expected(&table, &request);
        let written = run_one(&mut engine, request.clone());
        let message = || format!("case {case}: {:?} {:?} {:?}", request.beams, request.sampling, written.end);
        if expected.is_empty() {
            assert!(matches!(written.end, Some((FinishReason::Failed(_), _))), "{}", message());
            continue;
        }
        let beams = written.beams.as_ref().unwrap_or_else(|| panic!("{}", message()));
        assert_eq!(Found::all(beams), expected, "{}", message());
        assert!(written.tokens.is_empty(), "tokens are reported with the beams only");
        for beam in beams {
            let is_end = request.sampling.end_tokens.contains(beam.tokens.last().expect("a token"));
            let expected =
                if is_end { FinishReason::EndToken(beam.tokens[beam.tokens.len() - 1]) } else { FinishReason::Length };
            assert_eq!(beam.reason, expected);
            ends[usize::from(is_end)] += 1;
        }
    }
    assert!(ends.iter().all(|count| *count > 100), "{ends:?}");
}

#[test]
fn a_constraint_holds_for_each_hypothesis() {
    let table = Table::dense(7, 2, 3);
    for beams in [2, 3, 5] {
        let constraint = Some(Constrained::new(Box::new(Forbidding::new(7))));
        let settings = BeamSearch { returned: beams, ..BeamSearch::new(beams) };
        let request =
            Request { tokens_max: Some(12), beams: Some(settings), constraint, ..Request::new(vec![1, 2, 3]) };
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 60, 24)), 1, usize::MAX);
        let beams = run_one(&mut engine, request.clone()).beams.expect("beams");
        // Scores are not normalized again, so the constraint only takes tokens away.
        for beam in &beams {
            let constraint = Constrained::new(Box::new(Forbidding::new(7)));
            assert!(constraint.allows(&beam.tokens), "{beam:?}");
            let tokens = [&request.prompt[..], &beam.tokens].concat();
            let score =
                |at: usize| f64::from(foretoken_speculation::log_probability(&table.logits(&tokens[..at]), tokens[at]));
            let sum: f64 = (3..tokens.len()).map(score).sum();
            assert!((sum - beam.log_probability).abs() < 1e-9 && (sum / 12.0 - beam.score).abs() < 1e-9, "{beam:?}");
        }
        assert_eq!(beams.len(), settings.beams);
    }
}

#[test]
fn a_search_with_room_for_all_texts_finds_the_best_that_a_constraint_allows() {
    let (vocabulary, len) = (4, 4);
    for seed in 0..10 {
        let table = Table::dense(vocabulary, 2, seed);
        let constraint = Some(Constrained::new(Box::new(Forbidding::new(vocabulary))));
        // All texts of this length that are allowed.
        let mut all = vec![(Vec::new(), 0.0)];
        for _ in 0..len {
            let continued = |(text, sum): &(Vec<Token>, f64)| {
                let logits = table.logits(&[&[1, 2], &text[..]].concat());
                let one = |token| f64::from(foretoken_speculation::log_probability(&logits, token));
                (0..vocabulary as Token)
                    .map(|token| ([&text[..], &[token]].concat(), sum + one(token)))
                    .collect::<Vec<_>>()
            };
            all = all.iter().flat_map(continued).collect();
            all.retain(|(text, _)| Constrained::new(Box::new(Forbidding::new(vocabulary))).allows(text));
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let beams = all.len();
        let settings = BeamSearch { returned: beams, ..BeamSearch::new(beams) };
        let request = Request { tokens_max: Some(len), beams: Some(settings), constraint, ..Request::new(vec![1, 2]) };
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table, 4, 900, 300)), 1, usize::MAX);
        let found = run_one(&mut engine, request).beams.expect("beams");
        let found: Vec<(Vec<Token>, f64)> = found.into_iter().map(|beam| (beam.tokens, beam.log_probability)).collect();
        assert_eq!(found, all, "{seed}");
        assert!(beams > 9, "{beams}");
    }
}

#[test]
fn a_stop_string_ends_a_hypothesis_and_is_not_part_of_its_text() {
    let tokenizer = vocabulary::target(7);
    let mut stopped = 0;
    for seed in 0..20 {
        let table = Table::dense(7, 2, seed);
        let settings = BeamSearch { returned: 4, ..BeamSearch::new(4) };
        let request = Request {
            tokens_max: Some(9),
            beams: Some(settings),
            tokenizer: Some(tokenizer.clone()),
            stop: vec!["bc".to_string()],
            ..Request::new(vec![2, 1])
        };
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 60, 24)), 1, usize::MAX);
        for beam in run_one(&mut engine, request).beams.expect("beams") {
            let whole: String = beam.tokens.iter().filter(|token| **token != 4).map(|t| vocabulary::word(*t)).collect();
            let expected = whole.split("bc").next().unwrap_or_default();
            assert_eq!((&beam.text[..], beam.text.contains("bc")), (expected, false));
            let is_stopped = beam.reason == FinishReason::StopString("bc".to_string());
            assert_eq!(is_stopped, whole.contains("bc"), "{beam:?}");
            stopped += usize::from(is_stopped);
        }
    }
    assert!(stopped > 10, "{stopped}");
}

#[test]
fn beams_in_batches_are_those_that_each_request_has_alone() {
    let table = Table::dense(7, 3, 9);
    let mut state = 5;
    let mut preempted = 0;
    for round in 0..12 {
        // Few pages, so that sequences are preempted; passes of few rows, so that trees are read in several.
        let (pages, rows_max) = ([60, 400][round % 2], [9, 40][round / 2 % 2]);
        let toy = ToyExecutor::new(table.clone(), 2, pages, rows_max);
        let toy = if round % 3 == 0 { toy.with_states(7) } else { toy };
        let toy = if round % 5 == 0 { toy.with_failing_passes(4) } else { toy };
        let mut engine = Engine::new(Box::new(toy), 6, usize::MAX);
        let suffix = engine.add_drafter(Box::new(SuffixDrafter::default()));
        let mut all = BTreeMap::new();
        for _ in 0..9 {
            let mut beams = Request { tokens_max: Some(20), ..random_request(&mut state, 7) };
            if round % 4 < 2 {
                beams.sampling.end_tokens.clear();
            }
            let plain = Request {
                tokens_max: Some(20),
                drafters: vec![suffix],
                budget: BudgetKind::Fixed { nodes: 3 },
                ..Request::new(beams.prompt.clone())
            };
            for request in [beams, plain] {
                let sequence = engine.submit(request.clone()).unwrap_or_else(|error| panic!("{error}"));
                all.insert(sequence, request);
            }
        }
        let written = run(&mut engine);
        for (sequence, request) in all {
            let Written { beams, tokens, end } = &written[&sequence];
            preempted += end.as_ref().map_or(0, |(_, stats)| stats.preemptions);
            match beams {
                Some(beams) => assert_eq!(
                    Found::all(beams),
                    expected(&table, &request),
                    "round {round} {request:?}",
                    request = request.beams
                ),
                None => {
                    let plain = decode(&table, &request.sampling, request.seed, &request.prompt, 20);
                    assert_eq!(*tokens, plain.iter().map(|(token, _)| *token).collect::<Vec<_>>());
                }
            }
        }
    }
    assert!(preempted > 10, "{preempted}");
}

#[test]
fn requests_that_contradict_beams_or_never_fit_are_refused() {
    let engine = Engine::new(Box::new(ToyExecutor::new(Table::dense(5, 2, 1), 4, 20, 8)), 1, usize::MAX);
    let request = |beams: usize| Request {
        beams: Some(BeamSearch::new(beams)),
        tokens_max: Some(5),
        ..Request::new(vec![1, 2, 3])
    };
    assert_eq!(engine.check(&request(4)), Ok(()));
    let found = |request: &Request| match engine.check(request) {
        Err(RequestError::Beams { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let settings = |change: fn(&mut BeamSearch)| {
        let mut beams = BeamSearch::new(3);
        change(&mut beams);
        Request { beams: Some(beams), ..request(3) }
    };
    let fields = [
        found(&request(1)),
        found(&request(9)),
        found(&settings(|beams| beams.returned = 0)),
        found(&settings(|beams| beams.returned = 4)),
        found(&settings(|beams| beams.length_penalty = f32::NAN)),
        found(&Request { sampling: Sampling::default(), ..request(3) }),
        found(&Request { tokens_max: Some(0), ..request(3) }),
        found(&Request { prompt_log_probabilities: true, ..request(3) }),
        found(&Request { log_probabilities: true, ..request(3) }),
        found(&Request { top_log_probabilities: 1, ..request(3) }),
        found(&Request { prediction: vec![1], ..request(3) }),
        found(&Request { tokens_max: Some(30), ..request(3) }),
        found(&Request { tokens_max: None, ..request(3) }),
    ];
    let expected = [
        ["beams", "beams", "returned", "returned", "length_penalty", "temperature", "tokens_max"].as_slice(),
        &["prompt_log_probabilities", "log_probabilities", "top_log_probabilities", "prediction"],
        &["tokens_max", "tokens_max"],
    ];
    assert_eq!(fields[..], expected.concat());
    let error = engine.check(&Request { tokens_max: Some(30), ..request(3) }).expect_err("it does not fit");
    let message = "tokens_max: expected at most 25 (the room of the cache for 3 hypotheses) with beams, found 30";
    assert_eq!(error.to_string(), message);
}
