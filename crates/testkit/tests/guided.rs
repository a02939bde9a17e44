//! Tests of outputs with a grammar: they are the same with any drafters, have the right law and end where the grammar
//! ends. Typical faults of grammars must be detected.

use std::sync::Arc;

use foretoken_engine::{BudgetKind, Engine, Event, FinishReason, Forcing, Race, Request, faults, guided};
use foretoken_speculation::{Promise, Sampling, Token};
use foretoken_testkit::conform::{Case, Form, Setting, drafters, exact, law_error, selections};
use foretoken_testkit::table::{Table, mix};
use foretoken_testkit::toy::ToyExecutor;
use foretoken_testkit::vocabulary;
use foretoken_text::{Grammar, GrammarSource};

/// Grammars of long outputs, with positions after which only one string can follow, and one grammar whose outputs must
/// end.
const FORMS: [&str; 4] = ["(aab|ba|bbb?a)*", "(a|b|c)*", "(abc(ab)*ca){2,}b?", "a{7}b|ba{9}"];

/// Cases of one target, whose last token ends a text.
fn cases(target: (u64, usize, usize)) -> Vec<Case> {
    let free = Sampling { end_tokens: vec![target.1 as Token - 1], ..Sampling::default() };
    let samplers = [
        Sampling { temperature: 0.0, ..free.clone() },
        free.clone(),
        Sampling { temperature: 0.7, top_k: 2, ..free.clone() },
        Sampling { top_p: 0.8, repetition_penalty: 1.3, ..free },
    ];
    let case = |(i, (form, sampling)): (usize, (&'static str, Sampling))| {
        let prompt = (0..1 + i as u64 % 5).map(|j| (mix(i as u64 * 100 + j) % target.1 as u64) as Token).collect();
        Case { target, prompt, sampling, seed: 70 + i as u64, tokens_max: 25, form: Form::Grammar(form) }
    };
    FORMS.into_iter().flat_map(|form| samplers.clone().map(|sampling| (form, sampling))).enumerate().map(case).collect()
}

/// The first difference from the oracle, over all selections of drafters; each target has every other setting.
fn difference() -> Result<(), String> {
    let all = drafters();
    for (number, target) in [(31, 6, 1), (32, 11, 2)].into_iter().enumerate() {
        let settings = [
            Setting { batch: 4, ..Setting::plain() },
            Setting { batch: 16, page_len: 3, budget: BudgetKind::default(), ..Setting::plain() },
            Setting { batch: 3, budget: BudgetKind::Fixed { nodes: 5 }, states: true, ..Setting::plain() },
            Setting { batch: 2, log_probabilities: false, ..Setting::plain() },
            Setting {
                batch: 5,
                log_probabilities: false,
                rows_max: 9,
                budget: BudgetKind::default(),
                ..Setting::plain()
            },
            Setting { batch: 3, log_probabilities: false, states: true, page_len: 2, ..Setting::plain() },
        ];
        for setting in settings.into_iter().skip(number).step_by(2) {
            for drafters in selections(&all) {
                exact(&cases(target), &setting, &drafters)?;
            }
        }
    }
    Ok(())
}

#[test]
fn guided_outputs_are_the_same_with_any_drafters() {
    difference().unwrap_or_else(|message| panic!("{message}"));
}

#[test]
fn outputs_with_a_grammar_after_thoughts_are_the_same_with_any_drafters() {
    let after_thoughts = |case: Case| match case.form {
        Form::Grammar(expression) => Case { form: Form::AfterThoughts(expression), ..case },
        _ => case,
    };
    let all = drafters();
    for target in [(31, 6, 1), (32, 11, 2)] {
        let setting = Setting { batch: 4, budget: BudgetKind::Fixed { nodes: 5 }, ..Setting::plain() };
        let cases: Vec<Case> = cases(target).into_iter().map(after_thoughts).collect();
        for drafters in selections(&all) {
            exact(&cases, &setting, &drafters).unwrap_or_else(|message| panic!("{message}"));
        }
    }
}

#[test]
fn the_mask_of_the_parent_is_detected() {
    faults::make(faults::Fault::MaskOfParent);
    assert!(difference().is_err());
}

#[test]
fn a_grammar_that_is_not_rolled_back_is_detected() {
    faults::make(faults::Fault::GrammarNotTakenBack);
    assert!(difference().is_err());
}

#[test]
fn treating_a_string_with_several_tokenizations_as_forced_is_detected() {
    faults::make(faults::Fault::ForcedBytesTaken);
    assert!(difference().is_err());
}

#[test]
fn noise_that_a_forced_token_shifts_is_detected() {
    faults::make(faults::Fault::NoiseShifted);
    assert!(difference().is_err());
}

#[test]
fn an_end_too_early_is_detected() {
    faults::make(faults::Fault::EndTooEarly);
    assert!(difference().is_err());
}

#[test]
fn the_law_of_a_guided_output_is_the_targets_under_its_mask() {
    let sampling = Sampling { temperature: 1.2, end_tokens: vec![3], ..Sampling::default() };
    let table = Table::dense(4, 2, 33);
    // The enumeration has no end tokens: these forms cannot end within three tokens. In the second a token is forced.
    // Every drafter meets every promise, with one form or the other.
    std::thread::scope(|scope| {
        for (i, (form, log_probabilities)) in [("(a|ab|bab){12}", true), ("(a|bab){12}", false)].into_iter().enumerate()
        {
            for (j, promise) in [Promise::Exact, Promise::Rejection, Promise::Block].into_iter().enumerate() {
                let (sampling, form, table) = (sampling.clone(), Form::Grammar(form), &table);
                scope.spawn(move || {
                    let case =
                        Case { target: (33, 4, 2), prompt: vec![1, 2, 1], sampling, seed: 0, tokens_max: 3, form };
                    for (_, drafter) in drafters().iter().enumerate().filter(|(k, _)| (i + j + k) % 2 == 1) {
                        let budget = BudgetKind::Fixed { nodes: 2 };
                        let setting = Setting { promise, budget, log_probabilities, ..Setting::plain() };
                        let error = law_error(table, &case, &setting, &[drafter]);
                        assert!(error < 1e-6, "{} with {setting:?}: off by {error}", drafter.name);
                    }
                });
            }
        }
    });
}

/// Runs requests of a toy target of 6 words; returns the output of each, and how it ended.
fn run(requests: Vec<Request>) -> Vec<(Vec<Token>, Option<FinishReason>)> {
    let executor = ToyExecutor::new(Table::dense(6, 1, 34), 4, 64, 32);
    let mut engine = Engine::new(Box::new(executor), 4, usize::MAX);
    let ids: Vec<_> = requests.into_iter().map(|request| engine.submit(request).expect("a good request")).collect();
    let mut ends = vec![(Vec::new(), None); ids.len()];
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            let index_of = |sequence| ids.iter().position(|id| *id == sequence).expect("one of these");
            match event {
                Event::Tokens { sequence, emitted } => {
                    ends[index_of(*sequence)].0.extend(emitted.iter().map(|emitted| emitted.token));
                }
                Event::Finished { sequence, reason, .. } => ends[index_of(*sequence)].1 = Some(reason.clone()),
                _ => {}
            }
        }
    }
    ends
}

#[test]
fn a_grammar_without_a_possible_token_ends_its_request_alone_with_a_message() {
    let tokenizer = vocabulary::target(6);
    let grammar = |expression: &str| -> Arc<Grammar> {
        Grammar::compile(&tokenizer, &GrammarSource::Regex(expression.into())).expect("a good expression")
    };
    let request = |expression: &str| {
        let constraint = Some(guided(&grammar(expression), &[4], Forcing::None));
        let sampling = Sampling { temperature: 0.0, end_tokens: vec![4], ..Sampling::default() };
        Request { tokens_max: Some(9), constraint, sampling, ..Request::new(vec![0]) }
    };
    // No token contains an x.
    let ends = run(vec![request("ax"), request("aba"), request("(ab)*")]);
    let (text, Some(FinishReason::Failed(why))) = &ends[0] else { panic!("{:?}", ends[0]) };
    assert_eq!(text, &[0]);
    assert!(
        why.starts_with("regex: expected a token that the text can go on with, found none (at token 2 of the text)"),
        "{why}"
    );
    let text_of = |tokens: &[Token]| tokenizer.decode(tokens, true);
    assert_eq!((text_of(&ends[1].0), &ends[1].1), ("aba".to_string(), &Some(FinishReason::EndToken(4))));
    assert!(text_of(&ends[2].0).replace("ab", "").is_empty(), "{:?}", ends[2]);
}
