//! Several users at a time share one engine, each on a thread of its own and with settings of its own.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use foretoken::generator::Choices;
use foretoken::settings::SamplingSettings;
use foretoken::{Answer, ChatMessage, Conversation, EngineThread, Error, FinishReason, Generator, Prompter, Tenant};

use crate::generators::{run, settings};

/// A user's settings.
fn wanted(temperature: f32, seed: u64, stop: &str, tokens_max: usize) -> SamplingSettings {
    SamplingSettings {
        temperature: Some(temperature),
        seed: Some(seed),
        stop: vec![stop.to_string()],
        tokens_max: tokens_max.into(),
        ignore_eos: true,
        ..SamplingSettings::default()
    }
}

/// Runs one request to its end. `patience`: the number of events after which the user cancels it.
fn serve(
    prompter: &Prompter,
    engine: &EngineThread<Generator>,
    (prompt, wanted): &(&str, SamplingSettings),
    patience: usize,
) -> Result<Answer, Error> {
    let request = prompter.request_by(*prompt, &prompter.decide(wanted)?)?;
    let mut answer = Answer::to(&request);
    let (events, received) = channel();
    let submitted = engine.submit(request, &events)?;
    answer.request = Some(submitted.request);
    drop(events);
    for (number, event) in received.iter().enumerate() {
        answer.take(&event, Instant::now());
        if number + 1 == patience {
            engine.cancel(submitted.sequence);
        }
    }
    Ok(answer)
}

#[test]
fn concurrent_users_get_the_same_texts_as_alone() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.parallel = 2;
    settings.model.ctx_size = Some(512);
    settings.speculation.memory.lookup_cache_dynamic = Some(folder.path().join("texts"));
    let mut generator = Generator::open(&settings).expect("the models open");
    let prompter = Arc::clone(&generator.prompter);
    let users = [
        ("once upon a time, there was a", wanted(0.8, 7, "never written", 40)),
        ("the little dog", wanted(0.0, 3, ".", 200)),
        ("once upon a time, there was a", wanted(1.2, 9, "never written", 500)),
    ];
    let alone = users.clone().map(|(prompt, wanted)| {
        let decided = prompter.decide(&wanted).expect("all is in its range");
        let request = prompter.request_by(prompt, &decided).expect("the model has a tokenizer");
        run(&mut generator, &[request]).remove(0)
    });
    let engine = EngineThread::start(generator).expect("the thread starts");
    let patience = [usize::MAX, usize::MAX, 2];
    let serve = |number: usize| serve(&prompter, &engine, &users[number], patience[number]);
    let together = std::thread::scope(|threads| {
        let threads = [0, 1, 2].map(|number| threads.spawn(move || serve(number)));
        threads.map(|user| user.join().expect("no user panics").expect("the requests are valid"))
    });
    for (alone, together) in alone.iter().zip(&together).take(2) {
        assert_eq!((&together.text, together.ids(), &together.reason), (&alone.text, alone.ids(), &alone.reason));
    }
    assert_eq!(together[0].reason, Some(FinishReason::Length));
    assert_eq!(together[1].reason, Some(FinishReason::StopString(".".to_string())));
    assert_eq!(together[2].reason, Some(FinishReason::Cancelled));
    assert!(alone[2].text.starts_with(&together[2].text) && together[2].ids().len() < alone[2].ids().len());
    // The engine's owner is accessed between two steps.
    let kept = engine.with(move |generator| generator.keep(&together)).expect("the thread runs");
    assert!(kept.is_ok() && folder.path().join("texts").exists());
    assert!(engine.stop().expect("nothing panicked").engine.is_idle());
}

#[test]
fn conversations_can_be_lists_of_messages_with_settings_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let settings = settings(&folder);
    let generator = Generator::open(&settings).expect("the models open");
    let prompter = &generator.prompter;
    let mut conversation = Conversation::new(prompter, Some("be brief")).expect("the demo can chat");
    let mut other = conversation.clone();
    conversation.ask("what is a dog?");
    other.messages = vec![ChatMessage::new("system", "be brief"), ChatMessage::new("user", "what is a dog?")];
    let decided = prompter.decide(&wanted(0.5, 11, "!", 9)).expect("all is in its range");
    let (by_generator, by_itself) = (conversation.request(), other.request_by(&decided));
    let (by_generator, by_itself) = (by_generator.expect("it has a template"), by_itself.expect("it has a template"));
    assert_eq!(by_generator.prompt, by_itself.prompt);
    assert_eq!((by_itself.seed, by_itself.tokens_max, by_itself.sampling.temperature), (11, Some(9), 0.5));
    assert_eq!((by_itself.stop, by_itself.drafters), (vec!["!".to_string()], by_generator.drafters));
    // This one's settings ignore end tokens, the generator's do not.
    assert!(by_itself.sampling.end_tokens.is_empty() && !by_generator.sampling.end_tokens.is_empty());
    assert_eq!((by_generator.tenant, by_generator.tokens_max), (Tenant::default(), Some(24)));
}

#[test]
fn an_invalid_setting_is_an_error_of_its_request() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.speculation.spec_type = "none".parse().expect("it is well-formed");
    let generator = Generator::with(&Choices::new(&settings), &mut |_| {}).expect("it is there");
    let hot = SamplingSettings { temperature: Some(-1.0), ..SamplingSettings::default() };
    let refused = generator.prompter.decide(&hot).expect_err("it is negative").to_string();
    assert!(refused.starts_with("temperature: expected "), "{refused}");
    let open = SamplingSettings::default();
    let seeds = [(); 2].map(|()| generator.prompter.decide(&open).expect("all is open").settings.seed);
    assert!(seeds[0].is_some() && seeds[0] != seeds[1], "each request draws its own: {seeds:?}");
}

#[test]
fn sequences_that_exceed_the_cache_are_preempted_and_keep_their_texts() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.speculation.spec_type = "suffix".parse().expect("it is well-formed");
    settings.model.ctx_size = Some(2048);
    settings.parallel = 3;
    // Three of these fill 126 of the 128 pages, and each grows by two more.
    let wanted = SamplingSettings { tokens_max: 64.into(), ignore_eos: true, ..settings.sampling.clone() };
    settings.sampling = SamplingSettings { seed: Some(3), temperature: Some(1.0), ..wanted };
    let mut generator = Generator::open(&settings).expect("it is there");
    let prompts = [3, 5, 7].map(|step: u32| (0..1330).map(|i| 300 + i * step % 997).collect::<Vec<u32>>());
    let requests = prompts.map(|prompt| generator.request(prompt).expect("tokens are a prompt"));
    let together = run(&mut generator, &requests);
    assert!(together.iter().any(|answer| answer.stats.preemptions > 0));
    for (request, together) in requests.into_iter().zip(&together) {
        let alone = run(&mut generator, &[request]).remove(0);
        assert_eq!((alone.ids(), alone.stats.preemptions), (together.ids(), 0));
        assert_eq!(alone.ids().len(), 64);
    }
}
