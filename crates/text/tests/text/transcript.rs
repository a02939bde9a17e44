//! Turns that reuse the tokens of earlier turns: the text and the special tokens are those of a fresh encoding, and as
//! many tokens as possible are kept.

use foretoken_text::{ChatInput, ChatTemplate, Message, Token, Tokenizer, Transcript};
use proptest::prelude::*;

use crate::chat::{CHATML, LLAMA_3};
use crate::user_text::{
    GEMMA, MISTRAL, NORMALIZING, QWEN_3, TOKENIZERS, USUAL, conversation, special_tokens, template,
};

/// A text letter by letter, as a model may write it, but no tokenizer.
fn letter_by_letter(tokenizer: &Tokenizer, text: &str) -> Vec<Token> {
    text.chars().flat_map(|letter| tokenizer.encode_plain(&letter.to_string()).unwrap()).collect()
}

fn mark(tokenizer: &Tokenizer, text: &str) -> Token {
    let all = 0..tokenizer.vocabulary_len() as Token;
    all.into_iter().find(|token| tokenizer.token_bytes(*token) == text.as_bytes()).expect("the vocabulary has it")
}

fn turn(template: &ChatTemplate, tokenizer: &Tokenizer, messages: &[Message], before: &Transcript) -> Transcript {
    template.encode_after(tokenizer, &ChatInput::new(messages, true), before, usize::MAX).unwrap()
}

fn fresh(template: &ChatTemplate, tokenizer: &Tokenizer, messages: &[Message]) -> Vec<Token> {
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
            before.extend(tokenizer, &letter_by_letter(tokenizer, &answer));
            before.extend(tokenizer, &[mark(tokenizer, end)]);
            messages.push(Message::new("assistant", answer));
        }
        let rendered = template.render(&ChatInput::new(&messages[..7], true)).unwrap();
        let last = turn(&template, tokenizer, &messages[..7], &before);
        assert_eq!(tokenizer.decode(last.tokens(), false), rendered);
        // Without the last answer the prompt is the same again.
        assert!(before.tokens().starts_with(last.tokens()) && last.tokens().len() < before.tokens().len());
        assert_eq!(
            special_tokens(tokenizer, last.tokens()),
            special_tokens(tokenizer, &fresh(&template, tokenizer, &messages[..7]))
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
        before.extend(tokenizer, &letter_by_letter(tokenizer, written));
        before.extend(tokenizer, &[end]);
        let messages = [question(), Message::new("assistant", said), question()];
        let after = turn(&template, tokenizer, &messages, &before);
        let text = template.render(&ChatInput::new(&messages, true)).unwrap();
        assert_eq!(tokenizer.decode(after.tokens(), false), text);
        after.tokens().iter().zip(before.tokens()).take_while(|(a, b)| a == b).count() as isize - prompt as isize
    };
    let all = letter_by_letter(tokenizer, "yes and no").len() as isize;
    assert_eq!(kept(CHATML, "yes and no", "yes and no"), all + 1);
    // A stop string is not part of the answer's text: the tokens before it are kept, the rest is the template's.
    assert_eq!(kept(CHATML, "yes and no STOP", "yes and no "), all);
    assert!(kept(CHATML, " yes", " yes") <= 0, "the template trims it");
    // The template drops thoughts of earlier turns, so the answer is encoded again.
    assert!(kept(QWEN_3, "<think>\nhm\n</think>\n\nyes", "<think>\nhm\n</think>\n\nyes") >= 0);
    // The text of a special token is not the token, and a token that the text does not show ends the kept part.
    assert_eq!(kept(MISTRAL, "a<bos>b", "a<bos>b"), letter_by_letter(tokenizer, "a<bos>b").len() as isize + 1);
}

#[test]
fn a_special_token_in_an_answer_is_not_kept_if_the_text_only_spells_it() {
    let (template, tokenizer) = (template(CHATML), &TOKENIZERS[0]);
    let messages = [Message::new("user", "why?"), Message::new("assistant", "a<bos>b"), Message::new("user", "so?")];
    let mut before = turn(&template, tokenizer, &messages[..1], &Transcript::default());
    let prompt = before.tokens().len();
    before.extend(tokenizer, &letter_by_letter(tokenizer, "a"));
    before.extend(tokenizer, &[mark(tokenizer, "<bos>")]);
    before.extend(tokenizer, &letter_by_letter(tokenizer, "b"));
    let after = turn(&template, tokenizer, &messages, &before);
    assert!(!after.tokens()[prompt..].contains(&mark(tokenizer, "<bos>")));
    assert!(after.tokens().starts_with(&before.tokens()[..=prompt]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever the earlier transcript is, even one of another conversation, text and special tokens are the
    /// template's. If the model wrote an answer in canonical tokens, the result equals encoding the whole.
    #[test]
    fn earlier_transcripts_do_not_change_the_text(
        messages in conversation(),
        cut in 0..40_usize,
        is_letter_by_letter in any::<bool>(),
    ) {
        for source in USUAL {
            let template = template(source);
            for tokenizer in TOKENIZERS.iter() {
                let wanted = fresh(&template, tokenizer, &messages);
                let mut before = Transcript::default();
                let (asked, rest) = messages.split_at(1);
                before = turn(&template, tokenizer, asked, &before);
                let answer = rest.first().and_then(Message::content).unwrap_or_default();
                let prompt = before.tokens().len();
                if is_letter_by_letter {
                    before.extend(tokenizer, &letter_by_letter(tokenizer, &answer));
                } else if wanted.starts_with(before.tokens()) {
                    before.extend(tokenizer, &wanted[prompt..wanted.len().min(prompt + cut)]);
                }
                let after = turn(&template, tokenizer, &messages, &before);
                prop_assert_eq!(special_tokens(tokenizer, after.tokens()), special_tokens(tokenizer, &wanted));
                let text = |tokens: &[Token]| {
                    let text = tokenizer.decode(tokens, false);
                    if tokenizer.name() == NORMALIZING { String::new() } else { text.split_whitespace().collect() }
                };
                prop_assert_eq!(text(after.tokens()), text(&wanted), "{}", tokenizer.name());
                if !is_letter_by_letter && wanted.starts_with(before.tokens()) {
                    prop_assert_eq!(after.tokens(), &wanted, "{} {:?}", tokenizer.name(), source);
                }
                // The same turn again gives the same tokens.
                let again = turn(&template, tokenizer, &messages, &after);
                prop_assert_eq!(again.tokens(), after.tokens());
            }
        }
    }
}

#[test]
fn the_start_of_the_answer_is_found() {
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
        // The next turn begins with the tokens before it, whatever the answer was.
        let next = [&messages[..], &[Message::new("assistant", "?"), Message::new("user", "hm.")]].concat();
        assert!(fresh(&template, tokenizer, &next).starts_with(&transcript.tokens()[..start]), "{source}");
        assert_eq!(template.answer_start(&ChatInput::new(&messages, false), &transcript), None);
    }
    let silent = template("{% if add_generation_prompt %}go{% else %}{{ raise_exception('no') }}{% endif %}");
    let transcript = turn(&silent, tokenizer, &[], &Transcript::default());
    assert_eq!(silent.answer_start(&ChatInput::new(&[], true), &transcript), None);
}
