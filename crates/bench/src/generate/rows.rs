//! The results: the times of every variant of decoding, and the figures computed from them.
//!
//! They are measured in [`super::measure`].

use std::ops::Range;

use foretoken::report::total;
use foretoken::settings::Named;
use foretoken::{Answer, Promise, difference};
use foretoken_engine::{Order, PassTotals, Stats};
use foretoken_text::Tokenizer;

use super::budget::BudgetChoice;
use super::interval::{Estimate, Sample, medians, speed};
use super::timings::{GroupTiming, middle};

/// The results at one temperature, with one number of texts at a time.
pub struct Runs {
    /// The temperature.
    pub temperature: f32,
    /// Texts at a time.
    pub parallel: usize,
    /// The prompts, from 0, that ran at the same time.
    pub groups: Vec<Range<usize>>,
    /// How often each group ran.
    pub repetitions: usize,
    /// Plain decoding, then each method under each promise with each budget.
    pub variants: Vec<Variant>,
    /// The fraction of the measurement's time that was not spent on generation.
    pub bench_share: f64,
}

impl Runs {
    /// The figures of a variant, over the groups that `shown` chooses.
    pub fn figures(&self, variant: &Variant, shown: &dyn Fn(&Range<usize>) -> bool) -> Figures {
        let groups: Vec<usize> = (0..self.groups.len()).filter(|group| shown(&self.groups[*group])).collect();
        let prompts = groups.iter().map(|group| self.groups[*group].len()).sum();
        let samples = |variant: &Variant, kind: fn(&GroupTiming) -> Sample| -> Vec<Vec<Sample>> {
            groups.iter().map(|group| variant.timings[*group].iter().map(kind).collect()).collect()
        };
        let compared = |kind: fn(&GroupTiming) -> Sample| {
            let (own, plain) = (samples(variant, kind), samples(&self.variants[0], kind));
            let estimate = Estimate::ratio(&own, &plain);
            // Plain decoding is not compared with itself.
            let estimate = estimate.map(|estimate| match variant.method {
                Some(_) => estimate,
                None => Estimate { interval: None, ..estimate },
            });
            (speed(&own), estimate)
        };
        let ((speed, speedup), (speed_with_prompt, speedup_with_prompt)) =
            (compared(|timing| timing.after_first), compared(|timing| timing.all));
        let middles: Vec<&GroupTiming> = groups.iter().map(|group| middle(&variant.timings[*group])).collect();
        let seconds: f64 = middles.iter().map(|timing| timing.all.seconds).sum();
        let drafting = middles.iter().fold(0.0, |sum, timing| sum + timing.drafting());
        let bookkeeping = middles.iter().fold(0.0, |sum, timing| sum + timing.stats.bookkeeping.as_secs_f64());
        let share = |part: f64| if seconds > 0.0 { part / seconds } else { 0.0 };
        let mut totals = PassTotals::default();
        middles.iter().for_each(|timing| totals.add(timing.totals));
        Figures {
            prompts,
            totals,
            stats: total(middles.iter().map(|timing| &timing.stats)),
            speed,
            speed_with_prompt,
            speedup,
            speedup_with_prompt,
            drafting_share: share(drafting),
            bookkeeping_share: share(bookkeeping),
            all: samples(variant, |timing| timing.all),
            after_first: samples(variant, |timing| timing.after_first),
        }
    }

    /// A unique name for a variant: its method's, with its promise and its budget if those of others differ.
    pub fn label(&self, variant: &Variant) -> String {
        let Some(method) = &variant.method else { return variant.name().to_string() };
        let others = || self.variants.iter().filter_map(|variant| variant.method.as_ref());
        let mut label = method.name.clone();
        if others().any(|other| other.verify != method.verify) {
            label += &format!(", {}", method.verify.name());
        }
        if others().any(|other| other.budget != method.budget) {
            label += &format!(", {}", method.budget);
        }
        label
    }

    /// Keeps what was measured of all variants: complete repetitions, or in the first one the groups that all variants
    /// have completed.
    pub fn cut_short(&mut self) {
        let repetitions = self.repetitions.max(1);
        let is_whole = |group: &usize| self.variants.iter().all(|variant| variant.timings[*group].len() >= repetitions);
        let whole = (0..self.groups.len()).take_while(is_whole).count();
        self.groups.truncate(whole);
        self.repetitions = repetitions;
        for variant in &mut self.variants {
            variant.timings.truncate(whole);
            variant.timings.iter_mut().for_each(|timings| timings.truncate(repetitions));
        }
    }

    /// Whether the intervals of all methods' speed-ups are narrow.
    pub fn are_precise(&self) -> bool {
        let is_precise = |variant: &Variant| {
            self.figures(variant, &|_| true).main_speedup().is_some_and(|estimate| estimate.is_narrow())
        };
        self.variants.iter().filter(|variant| variant.method.is_some()).all(is_precise)
    }
}

/// One method under one promise.
#[derive(Clone, Debug)]
pub struct Method {
    /// Its name, as on the command line.
    pub name: String,
    /// Numbers of its drafters.
    pub drafters: Vec<u8>,
    /// The order in which they draft.
    pub order: Order,
    /// Its promise.
    pub verify: Promise,
    /// The lenience of verification; below 1 it is lossy, and the promise is not kept.
    pub lossy_lenience: f32,
    /// Its budget.
    pub budget: BudgetChoice,
}

/// One variant of decoding, and its results.
pub struct Variant {
    /// Its method; `None` is plain decoding.
    pub method: Option<Method>,
    /// For each group its times, one for each repetition.
    pub timings: Vec<Vec<GroupTiming>>,
    /// Whether its texts must equal those of plain decoding.
    promised: bool,
    /// Prompts, from 0, whose texts differ from those of plain decoding, and how.
    differing: Vec<(usize, String)>,
}

/// Whether texts equal those of plain decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextCheck {
    /// All do, as promised.
    Equal,
    /// This many do not, against the promise.
    Differs(usize),
    /// Only their distribution was promised, or nothing, if verification was lossy.
    NotPromised,
}

impl Variant {
    /// A variant without results, with this number of groups.
    pub fn new(method: Option<Method>, temperature: f32, groups: usize) -> Self {
        let is_text_promised = |method: &Method| method.verify == Promise::Exact || temperature == 0.0;
        let promised = |method: &Method| method.lossy_lenience == 1.0 && is_text_promised(method);
        Self {
            promised: method.as_ref().is_none_or(promised),
            method,
            timings: vec![Vec::new(); groups],
            differing: Vec::new(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.method.as_ref().map_or("plain", |method| &method.name)
    }

    /// Compares an answer to prompt `number` with that of plain decoding, if they must be equal.
    pub fn compare(&mut self, number: usize, plain: &Answer, answer: &Answer, tokenizer: Option<&Tokenizer>) {
        let known = self.differing.iter().any(|(other, _)| *other == number);
        if self.promised && !known {
            self.differing.extend(difference(plain, answer, tokenizer).map(|difference| (number, difference)));
        }
    }

    /// Whether the texts of the prompts that `shown` chooses are equal.
    pub fn text(&self, shown: &dyn Fn(usize) -> bool) -> TextCheck {
        match (self.promised, self.differing.iter().filter(|(number, _)| shown(*number)).count()) {
            (false, _) => TextCheck::NotPromised,
            (true, 0) => TextCheck::Equal,
            (true, count) => TextCheck::Differs(count),
        }
    }

    /// Every difference in one line; `prompts` is the number of different prompts.
    pub fn differences(&self, prompts: usize) -> impl Iterator<Item = String> {
        let line = move |(number, difference): &(usize, String)| {
            format!("{}: {}: {difference}", self.name(), text_name(*number, prompts))
        };
        self.differing.iter().map(line)
    }
}

/// The name of text `number`, from 0, where the list of `prompts` prompts is repeated for each answer.
pub fn text_name(number: usize, prompts: usize) -> String {
    let answer = if number < prompts { String::new() } else { format!(", answer {}", number / prompts + 1) };
    format!("prompt {}{answer}", number % prompts + 1)
}

/// The figures of a row.
pub struct Figures {
    /// Number of prompts.
    pub prompts: usize,
    /// Sums over the texts, each with its median repetition.
    pub stats: Stats,
    /// Totals of their passes.
    pub totals: PassTotals,
    /// Tokens per second after the first token; `None` if no text has a second pass.
    pub speed: Option<f64>,
    /// Tokens per second, prompts included; `None` if nothing was generated.
    pub speed_with_prompt: Option<f64>,
    /// The speed-up over plain decoding after the first token.
    pub speedup: Option<Estimate>,
    /// The speed-up with the prompt.
    pub speedup_with_prompt: Option<Estimate>,
    /// Time of drafting over total time.
    pub drafting_share: f64,
    /// Time of deciding what to draft and of learning from it over total time.
    pub bookkeeping_share: f64,
    /// All tokens and their time, for each group and repetition.
    pub all: Vec<Vec<Sample>>,
    /// The tokens after the first and their time, for each group and repetition.
    pub after_first: Vec<Vec<Sample>>,
}

impl Figures {
    /// Tokens of a text in the middle of its generation, prompt included, on average.
    pub fn context(&self) -> usize {
        (self.stats.prompt_tokens + self.stats.emitted / 2) / self.prompts.max(1)
    }

    /// Seconds from submitting a group to the moment when all of its texts have begun, the mean of the groups' medians:
    /// the time of reading prompts, or with an encoder of reading sources, and of the pass of the first token.
    pub fn seconds_to_first_token(&self) -> f64 {
        (medians(&self.all) - medians(&self.after_first)).max(0.0) / self.all.len().max(1) as f64
    }

    /// Tokens over passes of the target that emitted any; of beam searches their steps over passes.
    pub fn a_pass(&self) -> f64 {
        let Stats { passes, beams, .. } = &self.stats;
        if beams.steps > 0 { beams.steps as f64 / (*passes).max(1) as f64 } else { self.stats.tokens_per_pass() }
    }

    /// Accepted over drafted tokens, or the inclusion rate of beam searches; `None` if nothing was drafted.
    pub fn accepted(&self) -> Option<f64> {
        self.stats.beams.inclusion_rate().or(self.stats.acceptance_rate())
    }

    /// The time of a step of a beam search over that of its pass, if one search ran at a time; `None` without any.
    pub fn step_over_pass(&self) -> Option<f64> {
        let passes = self.stats.beams.passes_time.as_secs_f64();
        let seconds = self.stats.time.saturating_sub(self.stats.time_to_first_token).as_secs_f64();
        (passes > 0.0).then(|| seconds / passes)
    }

    /// The main speed-up: after the first token, or with the prompt if there are no tokens after it.
    pub fn main_speedup(&self) -> Option<Estimate> {
        self.speedup.or(self.speedup_with_prompt)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use foretoken_engine::{Emitted, Origin};

    /// An answer of these tokens, all of them the target's own.
    pub fn answer(tokens: &[u32]) -> Answer {
        let emitted = |token: &u32| Emitted {
            token: *token,
            origin: Origin::Target,
            depth: 0,
            pass: 1,
            p: 1.0,
            q: None,
            log_probability: None,
            top: Vec::new(),
            text: String::new(),
        };
        Answer { emitted: tokens.iter().map(emitted).collect(), ..Answer::default() }
    }

    fn method(name: &str, verify: Promise) -> Method {
        Method {
            name: name.to_string(),
            drafters: Vec::new(),
            order: Order::Given,
            verify,
            lossy_lenience: 1.0,
            budget: "fixed".parse().expect("a budget"),
        }
    }

    /// Times of six tokens, one of them in the first 10 ms.
    fn timing(milliseconds: u64) -> GroupTiming {
        let seconds = milliseconds as f64 / 1e3;
        let stats = Stats { emitted: 6, passes: 6, ..Stats::default() };
        let after_first = Sample { tokens: 5, seconds: seconds - 0.01 };
        GroupTiming { all: Sample { tokens: 6, seconds }, after_first, stats, ..GroupTiming::default() }
    }

    #[test]
    fn a_text_that_differs_against_the_promise_is_named_once() {
        let (plain, other) = (answer(&[1, 2]), answer(&[1, 3]));
        let mut variant = Variant::new(Some(method("lookup", Promise::Exact)), 1.0, 0);
        variant.compare(0, &plain, &plain, None);
        assert_eq!(variant.text(&|_| true), TextCheck::Equal);
        variant.compare(1, &plain, &other, None);
        variant.compare(1, &plain, &other, None);
        assert_eq!(
            (variant.text(&|_| true), variant.text(&|number| number == 0)),
            (TextCheck::Differs(1), TextCheck::Equal)
        );
        let found: Vec<String> = variant.differences(2).collect();
        assert_eq!(found, ["lookup: prompt 2: token 1: plain 2, speculative 3"]);
        assert_eq!([text_name(2, 2), text_name(5, 2)], ["prompt 1, answer 2", "prompt 2, answer 3"]);
    }

    #[test]
    fn only_what_is_promised_is_compared() {
        let (plain, other) = (answer(&[1, 2]), answer(&[1, 3]));
        for (verify, temperature, expected) in
            [(Promise::Rejection, 1.0, TextCheck::NotPromised), (Promise::Rejection, 0.0, TextCheck::Differs(1))]
        {
            let mut variant = Variant::new(Some(method("draft", verify)), temperature, 0);
            variant.compare(0, &plain, &other, None);
            assert_eq!(variant.text(&|_| true), expected);
            let lossy = Method { lossy_lenience: 0.5, ..method("draft", verify) };
            let mut variant = Variant::new(Some(lossy), temperature, 0);
            variant.compare(0, &plain, &other, None);
            assert_eq!(variant.text(&|_| true), TextCheck::NotPromised);
        }
    }

    #[test]
    fn plain_decoding_is_compared_with_its_own_first_text() {
        let mut plain = Variant::new(None, 1.0, 0);
        plain.compare(0, &answer(&[1]), &answer(&[2]), None);
        assert_eq!((plain.name(), plain.text(&|_| true)), ("plain", TextCheck::Differs(1)));
    }

    /// Two prompts, three repetitions of each.
    fn runs() -> Runs {
        let variant = |method, milliseconds: [[u64; 3]; 2]| Variant {
            timings: milliseconds.map(|all| all.map(timing).to_vec()).to_vec(),
            ..Variant::new(method, 1.0, 2)
        };
        let plain = variant(None, [[110, 110, 210], [210, 210, 210]]);
        let own = variant(Some(method("lookup", Promise::Exact)), [[60, 40, 90], [110, 900, 100]]);
        let (groups, variants) = (vec![0..1, 1..2], vec![plain, own]);
        Runs { temperature: 1.0, parallel: 1, groups, repetitions: 3, variants, bench_share: 0.0 }
    }

    #[test]
    fn the_median_repetition_counts_and_speeds_are_of_sums() {
        let runs = runs();
        let figures = runs.figures(&runs.variants[1], &|_| true);
        // Ten tokens after the first ones in 50 + 100 ms, where plain decoding took 100 + 200; twelve in 60 + 110.
        let near = |found: Option<f64>, expected: f64| found.is_some_and(|found| (found - expected).abs() < 1e-9);
        assert!(near(figures.speed, 10.0 / 0.15) && near(figures.speed_with_prompt, 12.0 / 0.17));
        let (after_first, with_prompt) =
            (figures.speedup.expect("a ratio"), figures.speedup_with_prompt.expect("a ratio"));
        assert!(near(Some(after_first.value), 2.0) && near(Some(with_prompt.value), 0.32 / 0.17), "{after_first:?}");
        assert!(after_first.interval.is_some_and(|(low, high)| low < 1.0 && high > 2.0), "{after_first:?}");
        assert_eq!((figures.prompts, figures.stats.emitted, figures.main_speedup()), (2, 12, Some(after_first)));
        assert!(near(Some(figures.seconds_to_first_token()), 0.01));
        assert!(!runs.are_precise());
        let one = runs.figures(&runs.variants[1], &|group| group.start == 1);
        assert!(one.prompts == 1 && near(one.speed, 5.0 / 0.1));
        let plain = runs.figures(&runs.variants[0], &|_| true);
        assert_eq!(plain.speedup, Some(Estimate { value: 1.0, interval: None }));
    }

    #[test]
    fn variants_are_named_by_what_distinguishes_them() {
        let mut runs = runs();
        let labels = |runs: &Runs| runs.variants.iter().map(|variant| runs.label(variant)).collect::<Vec<_>>();
        assert_eq!(labels(&runs), ["plain", "lookup"]);
        runs.variants.push(Variant::new(Some(method("lookup", Promise::Block)), 1.0, 2));
        assert_eq!(labels(&runs), ["plain", "lookup, exact", "lookup, block"]);
        let budget = "fixed:8".parse().expect("a budget");
        runs.variants.push(Variant::new(Some(Method { budget, ..method("lookup", Promise::Exact) }), 1.0, 2));
        let expected = ["plain", "lookup, exact, fixed", "lookup, block, fixed", "lookup, exact, fixed:8"];
        assert_eq!(labels(&runs), expected);
    }

    #[test]
    fn one_token_answers_are_compared_with_their_prompts() {
        let mut runs = runs();
        for timing in runs.variants.iter_mut().flat_map(|variant| &mut variant.timings).flatten() {
            timing.after_first = Sample::default();
        }
        let figures = runs.figures(&runs.variants[1], &|_| true);
        assert_eq!((figures.speed, figures.speedup), (None, None));
        assert_eq!(figures.main_speedup(), figures.speedup_with_prompt);
    }

    #[test]
    fn ratios_that_hardly_vary_are_precise() {
        let mut runs = runs();
        // After the first token both groups take half as long.
        for (group, [own, plain]) in [[60, 110], [110, 210]].into_iter().enumerate() {
            runs.variants[1].timings[group] = vec![timing(own); 3];
            runs.variants[0].timings[group] = vec![timing(plain); 3];
        }
        assert!(runs.are_precise());
    }
}
