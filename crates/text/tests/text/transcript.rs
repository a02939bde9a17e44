//! Turns that go on from each other's tokens: the same text and special tokens as when it is encoded anew, and nothing
//! that was computed is given up without need.

use foretoken_text::{ChatInput, ChatTemplate, Message, Token, Tokenizer, Transcript};
use proptest::prelude::*;

use crate::chat::{CHATML, LLAMA_3};
use crate::user_text::{GEMMA, MISTRAL, NORMALIZING, QWEN_3, TOKENIZERS, USUAL, conversation, specials, template};

/// A text letter by letter, as no tokenizer writes it but a model may.
fn spelt(tokenizer: &Tokenizer, text: &str) -> Vec<Token> {
    text.chars().flat_map(|letter| tokenizer.encode_plain(&letter.to_string()).unwrap()).collect()
}

fn mark(tokenizer: &Tokenizer, text: &str) -> Token {
    let all = 0..tokenizer.vocabulary_len() as Token;
    all.into_iter().find(|token| tokenizer.token_bytes(*token) == text.as_bytes()).expect("the vocabulary has it")
}

fn turn(template: &ChatTemplate, tokenizer: &Tokenizer, messages: &[Message], before: &Transcript) -> Transcript {
    template.encode_behind(tokenizer, &ChatInput::new(messages, true), before, usize::MAX).unwrap()
}

fn anew(template: &ChatTemplate, tokenizer: &Tokenizer, messages: &[Message]) -> Vec<Token> {
    template.encode(tokenizer, &ChatInput::new(messages, true)).unwrap()
}

#[test]
fn a_turn_begins_with_all_tokens_of_the_one_before() {
    for (source, end) in [(CHATML, "<|im_end|>"), (LLAMA_3, "<|eot_id|>"), (GEMMA, "<end_of_turn>")] {
        let (template, tokenizer) = (template(source), &TOKENIZERS[0]);
        let mut messages = Vec::new();
        let mut before = Transcript::default();
        for round in 0..4 {
            messages.push(Message::new("user", format!("question {round}, spelling {end}")));
            let next = turn(&template, tokenizer, &messages, &before);
            assert!(
                next.tokens().starts_with(before.tokens()),
                "{source}: {:?}",
                tokenizer.decode(next.tokens(), false)
            );
            let new = next.tokens().len() - before.tokens().len();
            assert!(round == 0 || new < 60, "{new} tokens are new: {source}");
            before = next;
            let answer = format!("the answer to {round}");
            before.extend(tokenizer, &spelt(tokenizer, &answer));
            before.extend(tokenizer, &[mark(tokenizer, end)]);
            messages.push(Message::new("assistant", answer));
        }
        let rendered = template.render(&ChatInput::new(&messages[..7], true)).unwrap();
        let last = turn(&template, tokenizer, &messages[..7], &before);
        assert_eq!(tokenizer.decode(last.tokens(), false), rendered);
        // Taking the last answer back gives its prompt again.
        assert!(before.tokens().starts_with(last.tokens()) && last.tokens().len() < before.tokens().len());
        assert_eq!(
            specials(tokenizer, last.tokens()),
            specials(tokenizer, &anew(&template, tokenizer, &messages[..7]))
        );
    }
}

#[test]
fn an_answer_that_the_template_changes_is_kept_up_to_the_change() {
    let tokenizer = &TOKENIZERS[0];
    let end = mark(tokenizer, "<|im_end|>");
    let question = || Message::new("user", "why?");
    let kept = |source: &str, written: &str, said: &str| {
        let template = template(source);
        let mut before = turn(&template, tokenizer, &[question()], &Transcript::default());
        let prompt = before.tokens().len();
        before.extend(tokenizer, &spelt(tokenizer, written));
        before.extend(tokenizer, &[end]);
        let messages = [question(), Message::new("assistant", said), question()];
        let after = turn(&template, tokenizer, &messages, &before);
        let text = template.render(&ChatInput::new(&messages, true)).unwrap();
        assert_eq!(tokenizer.decode(after.tokens(), false), text);
        after.tokens().iter().zip(before.tokens()).take_while(|(a, b)| a == b).count() as isize - prompt as isize
    };
    let all = spelt(tokenizer, "yes and no").len() as isize;
    assert_eq!(kept(CHATML, "yes and no", "yes and no"), all + 1);
    // A stop string is no part of the answer's text: what was written before it stays, its end is the template's.
    assert_eq!(kept(CHATML, "yes and no STOP", "yes and no "), all);
    assert!(kept(CHATML, " yes", " yes") <= 0, "the template trims it");
    // Thoughts are dropped behind the next question: the answer is encoded anew.
    assert!(kept(QWEN_3, "<think>\nhm\n</think>\n\nyes", "<think>\nhm\n</think>\n\nyes") >= 0);
    // What only spells a special token is none, and one that the text does not show ends what is kept.
    assert_eq!(kept(MISTRAL, "a<bos>b", "a<bos>b"), spelt(tokenizer, "a<bos>b").len() as isize + 1);
}

#[test]
fn a_special_token_within_an_answer_is_not_kept_where_the_text_only_spells_it() {
    let (template, tokenizer) = (template(CHATML), &TOKENIZERS[0]);
    let messages = [Message::new("user", "why?"), Message::new("assistant", "a<bos>b"), Message::new("user", "so?")];
    let mut before = turn(&template, tokenizer, &messages[..1], &Transcript::default());
    let prompt = before.tokens().len();
    before.extend(tokenizer, &spelt(tokenizer, "a"));
    before.extend(tokenizer, &[mark(tokenizer, "<bos>")]);
    before.extend(tokenizer, &spelt(tokenizer, "b"));
    let after = turn(&template, tokenizer, &messages, &before);
    assert!(!after.tokens()[prompt..].contains(&mark(tokenizer, "<bos>")));
    assert!(after.tokens().starts_with(&before.tokens()[..=prompt]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever came before, also of another conversation, the text is the template's, with its special tokens. An
    /// answer that a model wrote as it would be encoded gives the tokens of the whole.
    #[test]
    fn what_was_before_changes_no_text(messages in conversation(), cut in 0..40_usize, spell in any::<bool>()) {
        for source in USUAL {
            let template = template(source);
            for tokenizer in TOKENIZERS.iter() {
                let wanted = anew(&template, tokenizer, &messages);
                let mut before = Transcript::default();
                let (asked, rest) = messages.split_at(1);
                before = turn(&template, tokenizer, asked, &before);
                let answer = rest.first().and_then(Message::content).unwrap_or_default();
                let prompt = before.tokens().len();
                if spell {
                    before.extend(tokenizer, &spelt(tokenizer, &answer));
                } else if wanted.starts_with(before.tokens()) {
                    before.extend(tokenizer, &wanted[prompt..wanted.len().min(prompt + cut)]);
                }
                let after = turn(&template, tokenizer, &messages, &before);
                prop_assert_eq!(specials(tokenizer, after.tokens()), specials(tokenizer, &wanted));
                let text = |tokens: &[Token]| {
                    let text = tokenizer.decode(tokens, false);
                    if tokenizer.name() == NORMALIZING { String::new() } else { text.split_whitespace().collect() }
                };
                prop_assert_eq!(text(after.tokens()), text(&wanted), "{}", tokenizer.name());
                if !spell && wanted.starts_with(before.tokens()) {
                    prop_assert_eq!(after.tokens(), &wanted, "{} {:?}", tokenizer.name(), source);
                }
                // The same turn again has the same tokens.
                let again = turn(&template, tokenizer, &messages, &after);
                prop_assert_eq!(again.tokens(), after.tokens());
            }
        }
    }
}

#[test]
fn it_is_known_where_an_answer_begins() {
    let tokenizer = &TOKENIZERS[0];
    for (source, beginning) in [
        (CHATML, "<|im_start|>assistant\n"),
        (LLAMA_3, "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        (GEMMA, "<start_of_turn>model\n"),
    ] {
        let template = template(source);
        let messages = [Message::new("user", "why?"), Message::new("assistant", "so."), Message::new("user", "oh.")];
        let input = ChatInput::new(&messages, true);
        let transcript = turn(&template, tokenizer, &messages, &Transcript::default());
        let start = template.answer_start(&input, &transcript).expect("an answer begins");
        assert_eq!(tokenizer.decode(&transcript.tokens()[start..], false), beginning);
        // What is said next begins with the tokens before it, whatever was answered.
        let next = [&messages[..], &[Message::new("assistant", "?"), Message::new("user", "hm.")]].concat();
        assert!(anew(&template, tokenizer, &next).starts_with(&transcript.tokens()[..start]), "{source}");
        assert_eq!(template.answer_start(&ChatInput::new(&messages, false), &transcript), None);
    }
    let silent = template("{% if add_generation_prompt %}go{% else %}{{ raise_exception('no') }}{% endif %}");
    let transcript = turn(&silent, tokenizer, &[], &Transcript::default());
    assert_eq!(silent.answer_start(&ChatInput::new(&[], true), &transcript), None);
}
