//! Tests of networks with an encoder: refused sources, sources that are computed once, and an encoder that fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_engine::{Engine, Event, FinishReason, Race, Request, SequenceId, Token};
use foretoken_model::ExecutorError;
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::{ToyExecutor, Watched};

fn table() -> Table {
    Table::dense(7, 3, 9)
}

fn request(source: &[Token]) -> Request {
    Request { source: Some(source.into()), tokens_max: Some(9), ..Request::new(vec![1, 2]) }
}

/// The finish reason and the output of each request.
fn run(engine: &mut Engine, requests: Vec<Request>) -> Vec<(FinishReason, Vec<Token>)> {
    let ids: Vec<SequenceId> = requests.into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let (mut outputs, mut reasons) = (BTreeMap::<_, Vec<Token>>::new(), BTreeMap::new());
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    outputs.entry(*sequence).or_default().extend(emitted.iter().map(|emitted| emitted.token));
                }
                Event::Finished { sequence, reason, .. } => _ = reasons.insert(*sequence, reason.clone()),
                _ => {}
            }
        }
        engine.check_pages().unwrap();
    }
    ids.iter().map(|id| (reasons[id].clone(), outputs.remove(id).unwrap_or_default())).collect()
}

#[test]
fn invalid_sources_are_refused() {
    let plain = || ToyExecutor::new(table(), 4, 60, 30);
    let refused = |toy: ToyExecutor, source: Option<&[Token]>| {
        let request = Request { source: source.map(Into::into), ..Request::new(vec![1]) };
        Engine::new(Box::new(toy), 1, usize::MAX).submit(request).unwrap_err().to_string()
    };
    assert_eq!(refused(plain(), Some(&[1])), "source: expected none, since the network has no encoder, found one");
    let with_encoder = || plain().with_encoder(5, 2, 2);
    assert_eq!(refused(with_encoder(), None), "source: expected what the network's encoder is to read, found none");
    assert_eq!(refused(with_encoder(), Some(&[])), "source: expected 1 to 4 tokens, found 0");
    assert_eq!(refused(with_encoder(), Some(&[1; 5])), "source: expected 1 to 4 tokens, found 5");
    assert_eq!(
        refused(with_encoder(), Some(&[1, 7])),
        "source: token 1: expected a number below 7 (the encoder's vocabulary), found 7"
    );
}

#[test]
fn a_source_is_computed_once_and_an_encoder_that_fails_ends_only_its_request() {
    let computed = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&computed);
    let toy = ToyExecutor::new(table(), 4, 60, 30).with_encoder(5, 2, 9);
    let open = toy.open_count();
    // It counts the sources that it computes, and fails on those that contain a 6.
    let encoder = Watched::new(toy, |_| Ok(())).with_open(move |source| {
        if source.is_some_and(|source| source.tokens.contains(&6)) {
            return Err(ExecutorError::Failed { message: "the encoder was lost".to_string() });
        }
        let computes = source.is_some_and(|source| !source.is_computed);
        count.fetch_add(usize::from(computes), Ordering::Relaxed);
        Ok(())
    });
    let mut engine = Engine::new(Box::new(encoder), 3, usize::MAX);
    engine.measure_costs();
    computed.store(0, Ordering::Relaxed);
    let sources: [&[Token]; 7] = [&[3, 4], &[3, 4], &[6, 1], &[4, 3], &[3, 4], &[6, 1], &[4, 3, 3]];
    let results = run(&mut engine, sources.map(request).to_vec());
    for (source, (reason, output)) in sources.iter().zip(results) {
        if source.contains(&6) {
            let expected = FinishReason::Failed("executor: failed: the encoder was lost".to_string());
            assert_eq!((reason, output), (expected, Vec::new()));
            continue;
        }
        let sampling = request(source).sampling;
        let expected = decode(&table().with_source(source), &sampling, 0, &[1, 2], 9);
        let expected: Vec<Token> = expected.into_iter().map(|(token, _)| token).collect();
        assert_eq!((reason, output), (FinishReason::Length, expected), "{source:?}");
    }
    assert_eq!(computed.load(Ordering::Relaxed), 3, "three different sources without a 6");
    assert_eq!(open.load(Ordering::Relaxed), 0, "sequences are released");
}
