//! What was measured: the laps of every way of decoding, and what they say together.
//!
//! Left out: how it is measured ([`super::measure`]), and how it is printed.

use std::ops::Range;

use foretoken::report::total;
use foretoken::{Answer, difference};
use foretoken_console::options::Verify;
use foretoken_engine::{PassTotals, Stats};
use foretoken_text::Tokenizer;

use super::interval::{Estimate, Sample, speed};
use super::laps::{Lap, middle};
use super::measured::{self, Measured};

/// Everything at one temperature with so many texts at a time.
pub struct Runs {
    /// The temperature.
    pub temperature: f32,
    /// Texts at a time.
    pub parallel: usize,
    /// The prompts, from 0, that ran together.
    pub groups: Vec<Range<usize>>,
    /// How often each group ran.
    pub repetitions: usize,
    /// Plain decoding, then each method under each promise with each budget.
    pub ways: Vec<Way>,
    /// The time of the measurement that was none of a text's, over all of it.
    pub bench_share: f64,
}

impl Runs {
    /// What is to be said of a way, over the groups that `shown` chooses.
    pub fn figures(&self, way: &Way, shown: &dyn Fn(&Range<usize>) -> bool) -> Figures {
        let groups: Vec<usize> = (0..self.groups.len()).filter(|group| shown(&self.groups[*group])).collect();
        let prompts = groups.iter().map(|group| self.groups[*group].len()).sum();
        let samples = |way: &Way, kind: fn(&Lap) -> Sample| -> Vec<Vec<Sample>> {
            groups.iter().map(|group| way.laps[*group].iter().map(kind).collect()).collect()
        };
        let compared = |kind: fn(&Lap) -> Sample| {
            let (own, plain) = (samples(way, kind), samples(&self.ways[0], kind));
            let estimate = Estimate::ratio(&own, &plain);
            // Plain decoding beside itself is no comparison.
            let estimate = estimate.map(|estimate| match way.method {
                Some(_) => estimate,
                None => Estimate { interval: None, ..estimate },
            });
            (speed(&own), estimate)
        };
        let ((speed, speedup), (speed_with_prompt, speedup_with_prompt)) =
            (compared(|lap| lap.behind), compared(|lap| lap.all));
        let middles: Vec<&Lap> = groups.iter().map(|group| middle(&way.laps[*group])).collect();
        let seconds: f64 = middles.iter().map(|lap| lap.all.seconds).sum();
        let drafting = middles.iter().fold(0.0, |sum, lap| sum + lap.drafting());
        let bookkeeping = middles.iter().fold(0.0, |sum, lap| sum + lap.stats.bookkeeping.as_secs_f64());
        let share = |part: f64| if seconds > 0.0 { part / seconds } else { 0.0 };
        let mut totals = PassTotals::default();
        middles.iter().for_each(|lap| totals.add(lap.totals));
        Figures {
            prompts,
            totals,
            stats: total(middles.iter().map(|lap| &lap.stats)),
            speed,
            speed_with_prompt,
            speedup,
            speedup_with_prompt,
            drafting_share: share(drafting),
            bookkeeping_share: share(bookkeeping),
            all: samples(way, |lap| lap.all),
            behind: samples(way, |lap| lap.behind),
        }
    }

    /// A name for one of the ways that no other has: its method's, with its promise and its budget where those of
    /// others are not the same.
    pub fn label(&self, way: &Way) -> String {
        let Some(method) = &way.method else { return way.name().to_string() };
        let others = || self.ways.iter().filter_map(|way| way.method.as_ref());
        let mut label = method.name.clone();
        if others().any(|other| other.verify != method.verify) {
            label += &format!(", {}", measured::named(method.verify));
        }
        if others().any(|other| other.budget != method.budget) {
            label += &format!(", {}", method.budget);
        }
        label
    }

    /// Keeps what was measured of all ways alike: of whole repetitions, or of the first one the groups that all ways
    /// have written.
    pub fn cut_short(&mut self) {
        let repetitions = self.repetitions.max(1);
        let is_whole = |group: &usize| self.ways.iter().all(|way| way.laps[*group].len() >= repetitions);
        let whole = (0..self.groups.len()).take_while(is_whole).count();
        self.groups.truncate(whole);
        self.repetitions = repetitions;
        for way in &mut self.ways {
            way.laps.truncate(whole);
            way.laps.iter_mut().for_each(|laps| laps.truncate(repetitions));
        }
    }

    /// Whether the speed-up of every method is known so well that more repetitions would hardly say more.
    pub fn are_sure(&self) -> bool {
        let sure = |way: &Way| self.figures(way, &|_| true).judged().is_some_and(|estimate| estimate.is_narrow());
        self.ways.iter().filter(|way| way.method.is_some()).all(sure)
    }
}

/// One method under one promise.
#[derive(Clone, Debug)]
pub struct Method {
    /// Its name, as on the command line.
    pub name: String,
    /// Its place among the methods of the command.
    pub number: usize,
    /// Numbers of its drafters.
    pub drafters: Vec<u8>,
    /// What is promised.
    pub verify: Verify,
    /// How much is drafted.
    pub budget: Measured,
}

/// One way of decoding, and what came of it.
pub struct Way {
    /// How it drafts; `None` is plain decoding.
    pub method: Option<Method>,
    /// Of each group its laps, one a repetition.
    pub laps: Vec<Vec<Lap>>,
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

impl Way {
    /// A way that has not run yet, of so many groups.
    pub fn new(method: Option<Method>, temperature: f32, groups: usize) -> Self {
        let promised = |method: &Method| method.verify == Verify::Exact || temperature == 0.0;
        Self {
            promised: method.as_ref().is_none_or(promised),
            method,
            laps: vec![Vec::new(); groups],
            differing: Vec::new(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.method.as_ref().map_or("plain", |method| &method.name)
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

    /// Every difference in one line, of texts of so many different prompts.
    pub fn differences(&self, prompts: usize) -> impl Iterator<Item = String> {
        let line = move |(number, difference): &(usize, String)| {
            format!("{}: {}: {difference}", self.name(), named(*number, prompts))
        };
        self.differing.iter().map(line)
    }
}

/// What text `number` is called, from 0, where so many prompts are gone through once for each answer.
pub fn named(number: usize, prompts: usize) -> String {
    let answer = if number < prompts { String::new() } else { format!(", answer {}", number / prompts + 1) };
    format!("prompt {}{answer}", number % prompts + 1)
}

/// What a row says.
pub struct Figures {
    /// Prompts.
    pub prompts: usize,
    /// Sums over the texts, each of its middle repetition.
    pub stats: Stats,
    /// Their passes.
    pub totals: PassTotals,
    /// Tokens a second behind the first token; `None` if no text has a second pass.
    pub speed: Option<f64>,
    /// Tokens a second, prompts included; `None` if nothing was written.
    pub speed_with_prompt: Option<f64>,
    /// How much faster than plain decoding behind the first token.
    pub speedup: Option<Estimate>,
    /// How much faster with the prompt.
    pub speedup_with_prompt: Option<Estimate>,
    /// Time spent drafting over all time.
    pub drafting_share: f64,
    /// Time spent deciding what to draft and learning from it over all time.
    pub bookkeeping_share: f64,
    /// All tokens and their time, of each group and repetition.
    pub all: Vec<Vec<Sample>>,
    /// The same behind the first token.
    pub behind: Vec<Vec<Sample>>,
}

impl Figures {
    /// The speed-up by which a way is judged: behind the first token, or with the prompt where nothing is behind it.
    pub fn judged(&self) -> Option<Estimate> {
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

    fn method(name: &str, verify: Verify) -> Method {
        Method {
            name: name.to_string(),
            drafters: Vec::new(),
            number: 0,
            verify,
            budget: "fixed".parse().expect("a budget"),
        }
    }

    /// A lap of six tokens, one of them in the first 10 ms.
    fn lap(milliseconds: u64) -> Lap {
        let seconds = milliseconds as f64 / 1e3;
        let stats = Stats { emitted: 6, passes: 6, ..Stats::default() };
        let behind = Sample { tokens: 5, seconds: seconds - 0.01 };
        Lap { all: Sample { tokens: 6, seconds }, behind, stats, ..Lap::default() }
    }

    #[test]
    fn a_text_that_should_be_equal_and_is_not_is_named_once() {
        let (plain, other) = (answer(&[1, 2]), answer(&[1, 3]));
        let mut way = Way::new(Some(method("lookup", Verify::Exact)), 1.0, 0);
        way.compare(0, &plain, &plain, None);
        assert_eq!(way.text(&|_| true), Text::Equal);
        way.compare(1, &plain, &other, None);
        way.compare(1, &plain, &other, None);
        assert_eq!((way.text(&|_| true), way.text(&|number| number == 0)), (Text::Differs(1), Text::Equal));
        let found: Vec<String> = way.differences(2).collect();
        assert_eq!(found, ["lookup: prompt 2: token 1: plain 2, speculative 3"]);
        assert_eq!([named(2, 2), named(5, 2)], ["prompt 1, answer 2", "prompt 2, answer 3"]);
    }

    #[test]
    fn only_what_is_promised_is_compared() {
        let (plain, other) = (answer(&[1, 2]), answer(&[1, 3]));
        for (verify, temperature, expected) in
            [(Verify::Rejection, 1.0, Text::NotPromised), (Verify::Rejection, 0.0, Text::Differs(1))]
        {
            let mut way = Way::new(Some(method("draft", verify)), temperature, 0);
            way.compare(0, &plain, &other, None);
            assert_eq!(way.text(&|_| true), expected);
        }
    }

    #[test]
    fn plain_decoding_is_held_to_its_own_first_text() {
        let mut plain = Way::new(None, 1.0, 0);
        plain.compare(0, &answer(&[1]), &answer(&[2]), None);
        assert_eq!((plain.name(), plain.text(&|_| true)), ("plain", Text::Differs(1)));
    }

    /// Two prompts, three repetitions of each.
    fn runs() -> Runs {
        let way = |method, milliseconds: [[u64; 3]; 2]| Way {
            laps: milliseconds.map(|all| all.map(lap).to_vec()).to_vec(),
            ..Way::new(method, 1.0, 2)
        };
        let plain = way(None, [[110, 110, 210], [210, 210, 210]]);
        let own = way(Some(method("lookup", Verify::Exact)), [[60, 40, 90], [110, 900, 100]]);
        let (groups, ways) = (vec![0..1, 1..2], vec![plain, own]);
        Runs { temperature: 1.0, parallel: 1, groups, repetitions: 3, ways, bench_share: 0.0 }
    }

    #[test]
    fn the_median_repetition_counts_and_speeds_are_of_sums() {
        let runs = runs();
        let figures = runs.figures(&runs.ways[1], &|_| true);
        // Ten tokens behind the first ones in 50 + 100 ms, where plain decoding took 100 + 200; twelve in 60 + 110.
        let near = |found: Option<f64>, expected: f64| found.is_some_and(|found| (found - expected).abs() < 1e-9);
        assert!(near(figures.speed, 10.0 / 0.15) && near(figures.speed_with_prompt, 12.0 / 0.17));
        let (behind, with_prompt) = (figures.speedup.expect("a ratio"), figures.speedup_with_prompt.expect("a ratio"));
        assert!(near(Some(behind.value), 2.0) && near(Some(with_prompt.value), 0.32 / 0.17), "{behind:?}");
        assert!(behind.interval.is_some_and(|(low, high)| low < 1.0 && high > 2.0), "{behind:?}");
        assert_eq!((figures.prompts, figures.stats.emitted, figures.judged()), (2, 12, Some(behind)));
        assert!(!runs.are_sure());
        let one = runs.figures(&runs.ways[1], &|group| group.start == 1);
        assert!(one.prompts == 1 && near(one.speed, 5.0 / 0.1));
        let plain = runs.figures(&runs.ways[0], &|_| true);
        assert_eq!(plain.speedup, Some(Estimate { value: 1.0, interval: None }));
    }

    #[test]
    fn ways_are_called_by_what_tells_them_apart() {
        let mut runs = runs();
        let labels = |runs: &Runs| runs.ways.iter().map(|way| runs.label(way)).collect::<Vec<_>>();
        assert_eq!(labels(&runs), ["plain", "lookup"]);
        runs.ways.push(Way::new(Some(method("lookup", Verify::Block)), 1.0, 2));
        assert_eq!(labels(&runs), ["plain", "lookup, exact", "lookup, block"]);
        let budget = "fixed:8".parse().expect("a budget");
        runs.ways.push(Way::new(Some(Method { budget, ..method("lookup", Verify::Exact) }), 1.0, 2));
        let expected = ["plain", "lookup, exact, fixed", "lookup, block, fixed", "lookup, exact, fixed:8"];
        assert_eq!(labels(&runs), expected);
    }

    #[test]
    fn one_token_answers_are_judged_with_their_prompts() {
        let mut runs = runs();
        for lap in runs.ways.iter_mut().flat_map(|way| &mut way.laps).flatten() {
            lap.behind = Sample::default();
        }
        let figures = runs.figures(&runs.ways[1], &|_| true);
        assert_eq!((figures.speed, figures.speedup), (None, None));
        assert_eq!(figures.judged(), figures.speedup_with_prompt);
    }

    #[test]
    fn ratios_that_hardly_vary_are_sure() {
        let mut runs = runs();
        // Behind the first token both groups take half as long.
        for (group, [own, plain]) in [[60, 110], [110, 210]].into_iter().enumerate() {
            runs.ways[1].laps[group] = vec![lap(own); 3];
            runs.ways[0].laps[group] = vec![lap(plain); 3];
        }
        assert!(runs.are_sure());
    }
}
