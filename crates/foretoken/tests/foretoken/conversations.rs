//! Conversations whose turns reuse the cached rows of earlier turns.

use foretoken::{Answer, Conversation, Error, Generator, Request, Tenant};

use crate::generators::{run, settings};

/// Rows that were computed for a prompt.
fn computed(answer: &Answer) -> usize {
    answer.stats.prompt_tokens - answer.stats.prompt_tokens_shared
}

#[test]
fn every_turn_reuses_the_rows_of_the_one_before() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.model.ctx_size = Some(1024);
    settings.sampling.seed = Some(5);
    let mut generator = Generator::open(&settings).expect("the models open");
    let mut conversation = Conversation::new(&generator.prompter, Some("be brief")).expect("the demo can chat");
    let mut before: Vec<u32> = Vec::new();
    for turn in 0..10 {
        conversation.ask(format!("tell me what number {turn} did with the dog and the ball"));
        let request = conversation.request().expect("it has a template");
        assert!(request.prompt.starts_with(&before), "turn {turn} begins with all tokens of the one before");
        let answer = run(&mut generator, std::slice::from_ref(&request)).remove(0);
        // All tokens but the last generated one have a row; that one has a row only if it was drafted.
        let new = request.prompt.len() - before.len();
        assert!(new < 64, "{new} tokens are new");
        assert!(
            (new..=new + 1).contains(&computed(&answer)),
            "turn {turn}: {} rows for {new} tokens",
            computed(&answer)
        );
        let unshared = run(&mut generator, &[Request { tenant: Tenant(100 + turn), ..request }]).remove(0);
        assert_eq!((computed(&unshared), unshared.ids()), (answer.prompt.len(), answer.ids()), "turn {turn}");
        assert_eq!(unshared.text, answer.text);
        conversation.answer_with(&answer);
        before = [answer.prompt.clone(), answer.ids()].concat();
    }
    assert!(before.len() > 300, "{} tokens", before.len());
}

#[test]
fn another_answer_has_the_prompt_of_the_first_and_computes_one_row_of_it() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.model.ctx_size = Some(512);
    settings.sampling.temperature = Some(1.5);
    settings.sampling.seed = Some(5);
    let mut generator = Generator::open(&settings).expect("the models open");
    let mut conversation = Conversation::new(&generator.prompter, None).expect("the demo can chat");
    assert!(!conversation.take_back_answer(), "there is none");
    let mut answers: Vec<Answer> = Vec::new();
    for turn in ["tell me about a dog and a cat that lived in a house by the sea", "and what came then?"] {
        conversation.ask(turn);
        answers.clear();
        for again in 0..3 {
            assert_eq!(conversation.take_back_answer(), again > 0);
            let request = conversation.request().expect("it has a template");
            let seed = foretoken::seed_of_answer(request.seed, again);
            let answer = run(&mut generator, &[Request { seed, ..request }]).remove(0);
            assert!(answers.iter().all(|other| other.prompt == answer.prompt && other.ids() != answer.ids()));
            assert!(again == 0 || computed(&answer) == 1, "{} rows", computed(&answer));
            conversation.answer_with(&answer);
            answers.push(answer);
        }
    }
    // The conversation has the last answer.
    let request = conversation.request().expect("it has a template");
    assert!(request.prompt.starts_with(&[answers[2].prompt.clone(), answers[2].ids()].concat()));
    // The tokens of an answer to another prompt are not kept.
    conversation.answer_with(&Answer { text: "no".to_string(), ..Answer::default() });
    conversation.ask("so?");
    let prompt = conversation.request().expect("it has a template").prompt;
    let tokenizer = generator.prompter.tokenizer.as_ref().expect("the demo has one");
    assert!(tokenizer.decode(&prompt, false).ends_with("<|assistant|>no<|end|><|user|>so?<|end|><|assistant|>"));
}

#[test]
fn texts_that_cannot_fit_are_refused_before_they_are_tokenized() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.model.ctx_size = Some(512);
    let generator = Generator::open(&settings).expect("the models open");
    let longest = generator.prompter.tokenizer.as_ref().expect("the demo has one").token_bytes_max();
    let text = "a".repeat(512 * longest + 1);
    let expected = |what: &str| {
        let why = format!("the context is 512 tokens, of at most {longest} bytes each");
        format!("{what}: expected at most {} bytes ({why}), found {}", 512 * longest, text.len())
    };
    let refused = |request: Result<Request, Error>| request.err().expect("it is too long").to_string();
    assert_eq!(refused(generator.prompter.request(text.as_str())), expected("prompt"));
    let mut conversation = Conversation::new(&generator.prompter, None).expect("the demo can chat");
    conversation.ask(text.clone());
    assert_eq!(refused(conversation.request()), expected("messages"));
    // A long text of the template is refused as well.
    drop(conversation);
    settings.model.chat_template = Some("{{ 'a' * 1000000 }}".to_owned());
    let generator = Generator::open(&settings).expect("the models open");
    let mut conversation = Conversation::new(&generator.prompter, None).expect("it parses");
    conversation.ask("hello".to_owned());
    assert_eq!(
        refused(conversation.request()),
        format!("chat_template: expected at most {} bytes, which the context may hold, found 1000000", 512 * longest)
    );
}

#[test]
fn an_error_of_a_template_names_its_setting_and_line() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.model.chat_template = Some("\n{{ raise_exception('roles') }}".to_owned());
    let generator = Generator::open(&settings).expect("the models open");
    let mut conversation = Conversation::new(&generator.prompter, None).expect("it parses");
    conversation.ask("hello".to_owned());
    let error = conversation.request().err().expect("it fails");
    assert_eq!(error.to_string(), "chat_template: line 2: invalid operation: roles");
    assert!(matches!(error, Error::Input(_)), "{error:?}");
    assert_eq!(error.with_names(|name| format!("--{name}")), "--chat_template: line 2: invalid operation: roles");
}
