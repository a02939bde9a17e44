//! An engine on a thread generates the same texts as the loop of `answers.rs`, and no caller ever hangs. The loop
//! returns answers in the order of their requests.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use foretoken::{
    Answer, Engine, EngineThread, Error, Event, FinishReason, Promise, Request, RequestError, Sampling, Submitted,
};
use foretoken_drafters::{RandomDrafter, SuffixDrafter};
use foretoken_model::Executor;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::{ToyExecutor, Watched};

/// An engine for two sequences at a time, with two drafters.
fn engine(context: usize) -> Engine {
    let network = ToyExecutor::new(Table::dense(7, 2, 3), 8, 2 * context.div_ceil(8), 64);
    with(Box::new(network), context)
}

fn with(network: Box<dyn Executor>, context: usize) -> Engine {
    let mut engine = Engine::new(network, 2, context);
    engine.add_drafter(Box::new(SuffixDrafter::new(1000)));
    engine.add_drafter(Box::new(RandomDrafter::new(7)));
    engine
}

fn request(first: u32, tokens_max: usize) -> Request {
    Request {
        tokens_max: Some(tokens_max),
        sampling: Sampling::default(),
        seed: 5,
        promise: Promise::Rejection,
        drafters: vec![0, 1],
        budget: foretoken_engine::BudgetKind::Fixed { nodes: 4 },
        ..Request::new(vec![first, 1, 2])
    }
}

/// The next event; instead of hanging, the test fails.
fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(Duration::from_secs(60)).expect("an event comes")
}

/// The finish reason of the next request that ends.
fn end(events: &Receiver<Event>) -> FinishReason {
    loop {
        if let Event::Finished { reason, .. } = next(events) {
            return reason;
        }
    }
}

/// The answers of a loop on this thread.
fn looped(engine: &mut Engine, requests: Vec<Request>) -> Result<Vec<Answer>, Error> {
    foretoken::answers::run(engine, requests, &mut |_, _| Ok(true), &mut |_, _| Ok(()))
}

/// The answers of a thread to requests that it accepts.
fn threaded(thread: &EngineThread<Engine>, requests: Vec<Request>) -> Vec<Answer> {
    let mut answers: Vec<Answer> = requests.iter().map(Answer::to).collect();
    let (events, received) = channel();
    let submitted = thread.submit_all(requests, &events).expect("the thread runs");
    let submitted: Vec<Submitted> = submitted.into_iter().map(|one| one.expect("the request is valid")).collect();
    while answers.iter().any(|answer| answer.reason.is_none()) {
        let event = next(&received);
        let number = submitted.iter().position(|one| one.sequence == event.sequence()).expect("it is one of these");
        answers[number].request = Some(submitted[number].request);
        answers[number].take(&event, Instant::now());
    }
    answers
}

#[test]
fn the_texts_equal_those_of_a_loop() {
    let requests = || (0..7).map(|i| request(i, 5 + 3 * i as usize)).collect::<Vec<Request>>();
    let texts = |answers: Vec<Answer>| -> Vec<_> {
        answers.iter().map(|answer| (answer.ids(), answer.request, answer.stats.passes)).collect()
    };
    let thread = EngineThread::start(engine(64)).expect("the thread starts");
    let expected = texts(looped(&mut engine(64), requests()).expect("the requests are valid"));
    assert_eq!(texts(threaded(&thread, requests())), expected);
    let engine = thread.stop().expect("nothing panicked");
    assert!(engine.is_idle() && engine.next_request() == 7);
}

#[test]
fn answers_are_handed_over_in_order_as_soon_as_they_are_complete() {
    let mut engine = engine(64);
    // The second is refused, the third is shorter than the first, the last is longest.
    let requests = vec![request(0, 10), Request::new(Vec::new()), request(1, 3), request(2, 40)];
    let finished = std::cell::Cell::new(0);
    let mut order = Vec::new();
    let mut watch = |_: usize, event: &Event| -> Result<bool, Error> {
        finished.set(finished.get() + usize::from(matches!(event, Event::Finished { .. })));
        Ok(true)
    };
    let mut complete = |number: usize, answer: &Answer| -> Result<(), Error> {
        order.push((number, answer.emitted.len(), finished.get()));
        Ok(())
    };
    foretoken::answers::run(&mut engine, requests, &mut watch, &mut complete).expect("three requests are valid");
    assert_eq!(order, [(0, 10, 2), (1, 0, 2), (2, 3, 2), (3, 40, 3)]);
    let mut go_on = |_: usize, _: &Event| -> Result<bool, Error> { Ok(true) };
    let mut refuse = |_: usize, _: &Answer| -> Result<(), Error> { Err(Error::Thread("enough".to_string())) };
    let requests = vec![request(0, 3), request(1, 50)];
    let failed = foretoken::answers::run(&mut engine, requests, &mut go_on, &mut refuse);
    assert_eq!(failed, Err(Error::Thread("enough".to_string())));
    assert!(engine.is_idle(), "the other is cancelled");
}

#[test]
fn stopping_the_loop_also_cancels_requests_that_have_not_begun() {
    let (mut begun, mut order) = (BTreeSet::new(), Vec::new());
    let requests = (0..5).map(|first| request(first, 1 << 20)).collect();
    let mut stop = |number: usize, event: &Event| -> Result<bool, Error> {
        if !matches!(event, Event::Finished { .. }) {
            begun.insert(number);
        }
        Ok(!matches!(event, Event::Tokens { .. }))
    };
    let mut complete = |number: usize, answer: &Answer| -> Result<(), Error> {
        order.push((number, answer.reason.clone()));
        Ok(())
    };
    foretoken::answers::run(&mut engine(1 << 20), requests, &mut stop, &mut complete).expect("they fit");
    assert_eq!(order, [0, 1, 2, 3, 4].map(|number: usize| (number, Some(FinishReason::Cancelled))));
    assert!(begun.iter().all(|number| *number < 2), "there is room for two: {begun:?}");
}

#[test]
fn requests_are_taken_while_there_is_room_and_answers_returned_as_they_are_complete() {
    let mut engine = engine(64);
    // The first is longest, the third is refused.
    let mut requests = (0..7).map(|first| match first {
        0 => request(0, 60),
        2 => Request::new(Vec::new()),
        _ => request(first, 3),
    });
    let mut order = Vec::new();
    let mut next = |engine: &Engine| -> Result<Option<Request>, Error> {
        assert!(engine.workload().waiting < 2, "two wait at most");
        Ok(requests.next())
    };
    let mut done = |number: usize, answer: Answer| -> Result<(), Error> {
        order.push((number, answer.emitted.len()));
        Ok(())
    };
    foretoken::answers::run_each(&mut engine, 2, &mut next, &mut |_, _| Ok(true), &mut done)
        .expect("six requests are valid");
    assert_ne!(order[0].0, 0, "the first is not waited for: {order:?}");
    order.sort_unstable();
    assert_eq!(order, [(0, 60), (1, 3), (2, 0), (3, 3), (4, 3), (5, 3), (6, 3)]);
    assert!(engine.is_idle());
}

#[test]
fn a_request_that_is_refused_comes_back_and_the_others_run() {
    let thread = EngineThread::start(engine(64)).expect("the thread starts");
    let (events, received) = channel();
    let submitted = thread.submit_all(vec![request(0, 3), Request::new(Vec::new()), request(1, 3)], &events);
    let submitted = submitted.expect("the thread runs");
    assert_eq!(submitted[1], Err(RequestError::EmptyPrompt));
    assert_eq!(submitted[2].as_ref().map(|submitted| submitted.request), Ok(1));
    assert_eq!([end(&received), end(&received)], [FinishReason::Length, FinishReason::Length]);
    let refused = thread.submit(request(9, 3), &events).expect_err("the vocabulary has 7 tokens");
    assert!(matches!(refused, Error::Request(RequestError::Token { found: 9, .. })), "{refused}");
    let answers = looped(&mut engine(64), vec![Request::new(Vec::new()), request(1, 2)]).expect("one request is valid");
    assert!(answers[0].failure.is_some() && answers[1].emitted.len() == 2);
}

#[test]
fn requests_that_are_cancelled_or_disconnected_end() {
    let thread = EngineThread::start(engine(1 << 20)).expect("the thread starts");
    let (events, received) = channel();
    let endless = thread.submit(request(0, 1 << 20), &events).expect("it fits");
    assert!(matches!(next(&received), Event::Prompt { .. }));
    thread.cancel(endless.sequence);
    assert_eq!(end(&received), FinishReason::Cancelled);
    for _ in 0..2 {
        thread.submit(request(0, 1 << 20), &channel().0).expect("it fits");
    }
    // There is room for two sequences: this one begins when one of those ends.
    thread.submit(request(3, 4), &events).expect("it fits");
    assert_eq!(end(&received), FinishReason::Length);
}

#[test]
fn dropping_the_thread_ends_all_requests() {
    let thread = EngineThread::start(engine(1 << 20)).expect("the thread starts");
    let (events, received) = channel();
    for first in 0..3 {
        thread.submit(request(first, 1 << 20), &events).expect("it fits");
    }
    drop(events);
    drop(thread);
    let ends = received.iter().filter(|event| matches!(event, Event::Finished { reason: FinishReason::Cancelled, .. }));
    assert_eq!(ends.count(), 3);
}

/// A network that panics in its third pass.
fn panics(toy: ToyExecutor) -> Watched {
    let mut passes = 0;
    Watched::new(toy, move |_| {
        passes += 1;
        assert!(passes < 3, "pass {passes} was one too many");
        Ok(())
    })
}

#[test]
fn after_a_panic_all_requests_end_and_all_calls_fail() {
    let network = panics(ToyExecutor::new(Table::dense(7, 2, 3), 8, 20, 64));
    let thread = EngineThread::start(with(Box::new(network), 64)).expect("the thread starts");
    let (events, received) = channel();
    let submitted = thread.submit_all((0..4).map(|first| request(first, 30)).collect(), &events).expect("they fit");
    assert!(submitted.iter().all(Result::is_ok));
    let expected = FinishReason::Failed("the engine stopped: pass 3 was one too many".to_string());
    for _ in 0..4 {
        assert_eq!(end(&received), expected);
    }
    let stopped = Error::Stopped("pass 3 was one too many".to_string());
    assert_eq!(thread.submit(request(0, 3), &events), Err(stopped.clone()));
    thread.cancel(submitted[0].as_ref().expect("it was accepted").sequence);
    assert_eq!(thread.submit_all(vec![request(0, 3)], &events), Err(stopped.clone()));
    assert_eq!(thread.stop().map(|_| ()), Err(stopped));
}

#[test]
fn an_error_that_all_requests_share_refuses_all() {
    let wrong = || Request { drafters: vec![7], ..request(1, 3) };
    let refused = Error::Request(RequestError::Drafter { found: 7, count: 2 });
    let mut engine = engine(1 << 20);
    assert_eq!(looped(&mut engine, vec![request(0, 1 << 20), wrong(), request(2, 1 << 20)]), Err(refused));
    assert!(engine.is_idle(), "those that were accepted are cancelled");
    let answers = looped(&mut engine, vec![request(3, 4)]).expect("the request is valid");
    assert_eq!(answers[0].reason, Some(FinishReason::Length));
}

#[test]
fn a_closure_runs_between_two_steps() {
    let thread = EngineThread::start(engine(1 << 20)).expect("the thread starts");
    let (events, received) = channel();
    thread.submit(request(0, 1 << 20), &events).expect("it fits");
    assert!(matches!(next(&received), Event::Prompt { .. }));
    let is_idle = thread.with(|engine| {
        engine.set_next_request(70);
        engine.is_idle()
    });
    assert_eq!(is_idle, Ok(false));
    assert_eq!(thread.submit(request(1, 3), &events).map(|submitted| submitted.request), Ok(70));
}

#[test]
fn a_panic_of_a_closure_ends_the_thread() {
    let thread = EngineThread::start(engine(1 << 20)).expect("the thread starts");
    let (events, received) = channel();
    thread.submit(request(0, 1 << 20), &events).expect("it fits");
    let found: Result<(), Error> = thread.with(|_| panic!("half done"));
    let stopped = Error::Stopped("half done".to_string());
    assert_eq!(found, Err(stopped.clone()));
    assert_eq!(end(&received), FinishReason::Failed("the engine stopped: half done".to_string()));
    assert_eq!(thread.with(|engine| engine.is_idle()), Err(stopped.clone()));
    assert_eq!(thread.stop().map(|_| ()), Err(stopped));
}
