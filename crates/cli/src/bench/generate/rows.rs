//! What was measured: the answers of each method, beside the plain ones.
//!
//! Left out: how it is printed.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use foretoken_engine::{BudgetKind, Stats};
use foretoken_text::Tokenizer;

use crate::answers::Answer;
use crate::check::difference;
use crate::options::{Budget, Verify};
use crate::report::total;

/// Everything at one temperature.
pub struct Runs {
    /// The temperature.
    pub temperature: f32,
    /// Answers of plain decoding, one a prompt.
    pub plain: Vec<Answer>,
    /// Each method under each promise.
    pub methods: Vec<Method>,
}

/// A budget that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// One that everybody can choose.
    Of(Budget),
    /// One that knows the plain text.
    Oracle,
}

impl Measured {
    /// The budget of so many nodes at most. `plain`: what plain decoding wrote.
    pub fn up_to(self, limit: Option<usize>, plain: &Answer) -> BudgetKind {
        match self {
            Self::Of(budget) => budget.up_to(limit),
            Self::Oracle => BudgetKind::Oracle { text: plain.ids().into(), nodes_max: limit.unwrap_or(16) },
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oracle => write!(f, "oracle"),
            Self::Of(budget) => write!(f, "{}", named(*budget)),
        }
    }
}

impl FromStr for Measured {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let all = || Budget::value_variants().iter().map(|budget| named(*budget)).collect::<Vec<_>>().join(", ");
        match (word, Budget::from_str(word, false)) {
            ("oracle", _) => Ok(Self::Oracle),
            (_, Ok(budget)) => Ok(Self::Of(budget)),
            (_, Err(_)) => Err(format!("expected one of {}, oracle", all())),
        }
    }
}

/// A choice as the command line names it.
pub fn named(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
}

/// One method under one promise.
pub struct Method {
    /// Its name, as on the command line.
    pub name: String,
    /// Its place among the methods of the command.
    pub number: usize,
    /// What is promised.
    pub verify: Verify,
    /// How much is drafted.
    pub budget: Measured,
    /// Its answers, one a prompt.
    pub answers: Vec<Answer>,
    /// Whether its texts must be those of plain decoding.
    promised: bool,
    /// Prompts, from 0, whose texts are not those of plain decoding, and how they differ.
    differing: Vec<(usize, String)>,
}

/// Whether texts are those of plain decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// All are, as promised.
    Equal,
    /// So many are not, against the promise.
    Differs(usize),
    /// Only their distribution was promised.
    NotPromised,
}

impl Method {
    /// A method that has not run yet.
    pub fn new(name: &str, number: usize, verify: Verify, budget: Measured, temperature: f32) -> Self {
        let promised = verify == Verify::Exact || temperature == 0.0;
        Self { name: name.to_string(), number, verify, budget, answers: Vec::new(), promised, differing: Vec::new() }
    }

    /// Compares an answer to prompt `number` with the plain one, if they are to be equal.
    pub fn compare(&mut self, number: usize, plain: &Answer, answer: &Answer, tokenizer: Option<&Tokenizer>) {
        let known = self.differing.iter().any(|(other, _)| *other == number);
        if self.promised && !known {
            self.differing.extend(difference(plain, answer, tokenizer).map(|difference| (number, difference)));
        }
    }

    /// What is to be said of the texts of the prompts that `shown` chooses.
    pub fn text(&self, shown: &dyn Fn(usize) -> bool) -> Text {
        match (self.promised, self.differing.iter().filter(|(number, _)| shown(*number)).count()) {
            (false, _) => Text::NotPromised,
            (true, 0) => Text::Equal,
            (true, count) => Text::Differs(count),
        }
    }

    /// Every difference in one line.
    pub fn differences(&self) -> impl Iterator<Item = String> {
        self.differing.iter().map(|(number, difference)| format!("{}: prompt {}: {difference}", self.name, number + 1))
    }
}

/// Keeps the faster of two answers to prompt `number`, the first of which may be missing.
pub fn keep_faster(answers: &mut Vec<Answer>, number: usize, answer: Answer) {
    match answers.get_mut(number) {
        None => answers.push(answer),
        Some(before) if answer.stats.time < before.stats.time => *before = answer,
        Some(_) => {}
    }
}

/// What a row says, of the prompts that `shown` chooses.
pub struct Figures {
    /// Prompts.
    pub prompts: usize,
    /// Sums over the texts.
    pub stats: Stats,
    /// Tokens a second behind the first token; `None` if no text has a second pass.
    pub speed: Option<f64>,
    /// Tokens a second, prompts included.
    pub speed_with_prompt: f64,
    /// Time spent drafting over all time.
    pub drafting_share: f64,
}

impl Figures {
    /// Of these answers.
    pub fn of(answers: &[Answer], shown: &dyn Fn(usize) -> bool) -> Self {
        let shown: Vec<&Stats> =
            answers.iter().enumerate().filter(|(number, _)| shown(*number)).map(|(_, answer)| &answer.stats).collect();
        let stats = total(shown.iter().copied());
        let seconds = stats.time.as_secs_f64().max(1e-9);
        let drafting: f64 = stats.drafters.iter().map(|drafter| drafter.time.as_secs_f64()).sum();
        Self {
            prompts: shown.len(),
            speed: stats.tokens_per_second(),
            speed_with_prompt: stats.emitted as f64 / seconds,
            drafting_share: drafting / seconds,
            stats,
        }
    }

    /// How much faster than the plain ones: behind the first token, and with the prompt.
    pub fn speedup(&self, plain: &Figures) -> (Option<f64>, f64) {
        let behind = self.speed.zip(plain.speed).map(|(own, plain)| own / plain);
        (behind, self.speed_with_prompt / plain.speed_with_prompt.max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_engine::{Emitted, Origin};
    use std::time::Duration;

    fn answer(tokens: &[u32], milliseconds: u64) -> Answer {
        let emitted = |token: &u32| Emitted {
            token: *token,
            origin: Origin::Target,
            depth: 0,
            pass: 1,
            p: 1.0,
            q: None,
            log_probability: None,
            text: String::new(),
        };
        let stats = Stats {
            emitted: tokens.len(),
            emitted_first: 1,
            passes: tokens.len(),
            time_to_first_token: Duration::from_millis(10),
            time: Duration::from_millis(milliseconds),
            ..Stats::default()
        };
        Answer { emitted: tokens.iter().map(emitted).collect(), stats, ..Answer::default() }
    }

    #[test]
    fn a_text_that_should_be_equal_and_is_not_is_named_once() {
        let (plain, other) = (answer(&[1, 2], 20), answer(&[1, 3], 20));
        let mut method = Method::new("lookup", 0, Verify::Exact, Measured::Oracle, 1.0);
        method.compare(0, &plain, &plain, None);
        assert_eq!(method.text(&|_| true), Text::Equal);
        method.compare(1, &plain, &other, None);
        method.compare(1, &plain, &other, None);
        assert_eq!((method.text(&|_| true), method.text(&|number| number == 0)), (Text::Differs(1), Text::Equal));
        let found: Vec<String> = method.differences().collect();
        assert_eq!(found, ["lookup: prompt 2: token 1: plain 2, speculative 3"]);
    }

    #[test]
    fn budgets_are_those_of_everybody_and_one_more() {
        for word in ["heuristic", "fixed", "oracle"] {
            assert_eq!(word.parse::<Measured>().map(|budget| budget.to_string()), Ok(word.to_string()));
        }
        assert!("magic".parse::<Measured>().is_err_and(|error| error.ends_with(", oracle")));
        let foretold = Measured::Oracle.up_to(4, &answer(&[7, 8], 20));
        assert!(matches!(foretold, BudgetKind::Oracle { text, nodes_max: 4 } if *text == [7, 8]));
    }

    #[test]
    fn only_what_is_promised_is_compared() {
        let (plain, other) = (answer(&[1, 2], 20), answer(&[1, 3], 20));
        for (verify, temperature, expected) in
            [(Verify::Rejection, 1.0, Text::NotPromised), (Verify::Rejection, 0.0, Text::Differs(1))]
        {
            let mut method = Method::new("draft", 0, verify, Measured::Of(Budget::Fixed), temperature);
            method.compare(0, &plain, &other, None);
            assert_eq!(method.text(&|_| true), expected);
        }
    }

    #[test]
    fn the_faster_repetition_counts_and_speeds_are_of_sums() {
        let mut answers = Vec::new();
        for (number, milliseconds) in [(0, 110), (0, 60), (0, 80), (1, 110)] {
            keep_faster(&mut answers, number, answer(&[1; 6], milliseconds));
        }
        let figures = Figures::of(&answers, &|_| true);
        // Ten tokens behind the first ones in 50 + 100 ms; twelve in 170.
        assert!((figures.speed.expect("a speed") - 10.0 / 0.15).abs() < 1e-9);
        assert!((figures.speed_with_prompt - 12.0 / 0.17).abs() < 1e-9);
        let plain = Figures::of(&answers[1..], &|_| true);
        let (behind, with_prompt) = figures.speedup(&plain);
        assert!((behind.expect("a ratio") - 4.0 / 3.0).abs() < 1e-9, "{behind:?}");
        assert!((with_prompt - 12.0 / 0.17 / (6.0 / 0.11)).abs() < 1e-9);
        assert_eq!(Figures::of(&answers, &|number| number == 1).prompts, 1);
    }
}
