//! Compares two answers: tokens, log-probabilities to the bit, hypotheses of a beam search, text, and finish reason.
//!
//! Under *exact* verification speculative and plain decoding must be equal in all of these; `foretoken check` and the
//! benchmarks test it. Which drafter proposed a token may differ.

use foretoken_speculation::Token;
use foretoken_text::Tokenizer;

use crate::{Answer, Beam};

/// The first difference of two answers and its position, as a message; with a tokenizer also the tokens' bytes and the
/// text before them.
pub fn difference(plain: &Answer, speculative: &Answer, tokenizer: Option<&Tokenizer>) -> Option<String> {
    let shown = |token: Token| {
        let bytes = tokenizer.map(|tokenizer| tokenizer.token_bytes(token).escape_ascii().to_string());
        bytes.map_or(token.to_string(), |bytes| format!("{token} \"{bytes}\""))
    };
    let (ours, theirs) = (&plain.emitted, &speculative.emitted);
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        if a.token != b.token {
            let before = text_before(plain, i, tokenizer);
            return Some(format!("token {i}: plain {}, speculative {}{before}", shown(a.token), shown(b.token)));
        }
        let (a_bits, b_bits) = (a.log_probability.map(f32::to_bits), b.log_probability.map(f32::to_bits));
        if a_bits != b_bits {
            let (a, b) = (a.log_probability, b.log_probability);
            let before = text_before(plain, i, tokenizer);
            return Some(format!("token {i}: log-probability: plain {a:?}, speculative {b:?}{before}"));
        }
    }
    for (i, (a, b)) in plain.beams.iter().zip(&speculative.beams).enumerate() {
        if a.tokens != b.tokens || a.log_probability.to_bits() != b.log_probability.to_bits() {
            let shown = |beam: &Beam| format!("{:?} ({})", beam.tokens, beam.log_probability);
            return Some(format!("beam {i}: plain {}, speculative {}", shown(a), shown(b)));
        }
    }
    if plain.beams.len() != speculative.beams.len() {
        let (plain, speculative) = (plain.beams.len(), speculative.beams.len());
        return Some(format!("beams: plain {plain}, speculative {speculative}"));
    }
    if ours.len() != theirs.len() {
        return Some(format!("length: plain {} tokens, speculative {}", ours.len(), theirs.len()));
    }
    if plain.text != speculative.text {
        return Some(format!("text: plain {:?}, speculative {:?}", plain.text, speculative.text));
    }
    if plain.failure != speculative.failure {
        return Some(format!("failure: plain {:?}, speculative {:?}", plain.failure, speculative.failure));
    }
    let (plain, speculative) = (&plain.reason, &speculative.reason);
    (plain != speculative).then(|| format!("end: plain {plain:?}, speculative {speculative:?}"))
}

/// The end of the text before token `i`, prompt included.
fn text_before(answer: &Answer, i: usize, tokenizer: Option<&Tokenizer>) -> String {
    let Some(tokenizer) = tokenizer else { return String::new() };
    let tokens = [answer.prompt.as_slice(), &answer.ids()[..i]].concat();
    let text = tokenizer.decode(&tokens, false);
    let skip = text.chars().count().saturating_sub(80);
    format!(", after {:?}", text.chars().skip(skip).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_engine::{Emitted, FinishReason, Origin, Token};

    fn answer(tokens: &[Token]) -> Answer {
        let emitted = |token: &Token| Emitted {
            token: *token,
            origin: Origin::Target,
            depth: 0,
            pass: 1,
            p: 0.5,
            q: None,
            log_probability: Some(-0.5),
            top: Vec::new(),
            text: format!("<{token}>"),
        };
        let emitted: Vec<Emitted> = tokens.iter().map(emitted).collect();
        let text = emitted.iter().map(|emitted| emitted.text.as_str()).collect();
        Answer { emitted, text, reason: Some(FinishReason::Length), ..Answer::default() }
    }

    #[test]
    fn the_origin_of_tokens_makes_no_difference() {
        let (plain, mut speculative) = (answer(&[1, 2]), answer(&[1, 2]));
        speculative.emitted[1].origin = Origin::Drafted(0);
        assert_eq!(difference(&plain, &speculative, None), None);
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let plain = answer(&[1, 2, 3]);
        let found = |change: &dyn Fn(&mut Answer)| {
            let mut speculative = plain.clone();
            change(&mut speculative);
            difference(&plain, &speculative, None).unwrap_or_default()
        };
        assert_eq!(found(&|other| other.emitted[1].token = 7), "token 1: plain 2, speculative 7");
        let nearly = f32::from_bits((-0.5f32).to_bits() + 1);
        assert!(found(&|other| other.emitted[2].log_probability = Some(nearly)).starts_with("token 2: log-prob"));
        assert_eq!(found(&|other| drop(other.emitted.pop())), "length: plain 3 tokens, speculative 2");
        assert!(found(&|other| other.text.push('!')).starts_with("text: "));
        assert!(found(&|other| other.reason = Some(FinishReason::Context)).starts_with("end: "));
        let beam = |token: Token| Beam {
            tokens: vec![token],
            text: String::new(),
            score: -0.5,
            log_probability: -0.5,
            reason: FinishReason::Length,
        };
        let plain = Answer { beams: vec![beam(1), beam(2)], ..Answer::default() };
        let other = |beams: Vec<Beam>| difference(&plain, &Answer { beams, ..Answer::default() }, None);
        assert_eq!(other(vec![beam(1), beam(2)]), None);
        assert_eq!(other(vec![beam(1), beam(3)]).as_deref(), Some("beam 1: plain [2] (-0.5), speculative [3] (-0.5)"));
        assert_eq!(other(vec![beam(1)]).as_deref(), Some("beams: plain 2, speculative 1"));
    }
}
