//! The scenarios: use cases, each with a target, drafters and requests, and a run of the engine over them.
//!
//! A scenario is run with its drafters, under the settings of `auto`, and once more without any. Requests end with a
//! token, as most answers do, so the engine does not know their lengths before.

use std::ops::Range;
use std::sync::Arc;

use foretoken_engine::{Engine, Event, Order, Race, Request};
use foretoken_speculation::{Sampling, Token};

use super::drafter::ScriptedDrafter;
use super::{Accuracy, DraftCost, DrafterScript, END, Experts, Machine, Target, Text, Times};

/// A request of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// It is submitted once all sequences together have written this many tokens.
    pub after: usize,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Tokens of its answer.
    pub answer: usize,
}

/// A use case.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// The times of passes.
    pub times: Times,
    /// The drafters, which draft in the order that the engine learns.
    pub drafters: Vec<DrafterScript>,
    /// The requests, in order.
    pub arrivals: Vec<Arrival>,
    /// Most sequences that run at a time.
    pub sequences_max: usize,
}

/// The times of some runs of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Tokens of all answers.
    pub tokens: usize,
    /// Seconds with the drafters.
    pub seconds: f64,
    /// Seconds without any.
    pub plain_seconds: f64,
}

impl Measured {
    /// How many times as fast as plain decoding.
    pub fn gain(&self) -> f64 {
        self.plain_seconds / self.seconds
    }

    /// Tokens in a second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

impl Scenario {
    /// Runs the scenario for each of these seeds, with its drafters and without.
    ///
    /// # Panics
    /// If the engine ends an answer too early, or drops a drafter.
    pub fn measure(&self, seeds: Range<u64>) -> Measured {
        let mut measured = Measured::default();
        for seed in seeds {
            measured.seconds += self.run(seed, &self.drafters);
            measured.plain_seconds += self.run(seed, &[]);
            measured.tokens += self.arrivals.iter().map(|arrival| arrival.answer).sum::<usize>();
        }
        measured
    }

    /// Seconds of a run with these drafters.
    fn run(&self, seed: u64, drafters: &[DrafterScript]) -> f64 {
        let ends = self.arrivals.iter().map(|arrival| arrival.prompt + arrival.answer - 1).collect();
        let (text, machine) = (Arc::new(Text { seed, ends }), Machine::new(seed, self.times.clone()));
        let target = Target::new(text.clone(), machine.clone());
        let mut engine = Engine::new(Box::new(target), self.sequences_max, usize::MAX);
        engine.set_clock(Box::new(machine.clock.clone()));
        let mut numbers: Vec<u8> = Vec::new();
        for (number, script) in (0..).zip(drafters) {
            let drafter = ScriptedDrafter::new(script.clone(), number, text.clone(), machine.clone());
            numbers.push(engine.add_drafter(Box::new(drafter)));
        }
        engine.measure_costs();
        let (started, mut written) = (machine.seconds(), 0);
        // Sequences are numbered in the order in which they are submitted.
        let mut coming = (0..).zip(&self.arrivals).peekable();
        while coming.peek().is_some() || !engine.is_idle() {
            while let Some((number, arrival)) =
                coming.next_if(|(_, arrival)| arrival.after <= written || engine.is_idle())
            {
                let prompt = (0..arrival.prompt).map(|position| text.token(number, position)).collect();
                engine.submit(request(prompt, &numbers)).expect("a sound request");
            }
            for event in engine.step(&mut Race) {
                match event {
                    Event::Tokens { emitted, .. } => written += emitted.len(),
                    Event::DrafterFailed { message, .. } => panic!("{}: {message}", self.name),
                    _ => {}
                }
            }
        }
        let expected: usize = self.arrivals.iter().map(|arrival| arrival.answer).sum();
        assert_eq!(written, expected, "{}: tokens written", self.name);
        machine.seconds() - started
    }
}

fn request(prompt: Vec<Token>, drafters: &[u8]) -> Request {
    let sampling = Sampling { temperature: 0.0, end_tokens: vec![END], ..Sampling::default() };
    Request { sampling, drafters: drafters.to_vec(), order: Order::Learned, ..Request::new(prompt) }
}

/// A draft model that is right with this mean probability, and reads a prompt fast.
fn model(mean: f64) -> DrafterScript {
    DrafterScript { accuracy: Accuracy::Varied(mean), cost: DraftCost::Network { step: 0.1, read: 0.005 } }
}

/// A lookup that hardly takes time, in a text of which this fraction is copied.
fn lookup(copied: f64) -> DrafterScript {
    DrafterScript { accuracy: Accuracy::Copied(copied), cost: DraftCost::Call(0.0002) }
}

/// Times of passes in which each further row takes this.
fn rows_of(row: f64) -> Times {
    Times { row, ..Times::default() }
}

/// `count` requests that arrive at the start.
fn requests(count: usize, prompt: usize, answer: usize) -> Vec<Arrival> {
    vec![Arrival { after: 0, prompt, answer }; count]
}

/// All scenarios.
pub fn scenarios() -> Vec<Scenario> {
    [of_drafters(), of_requests(), of_batches()].concat()
}

/// One sequence at a time, and drafters that are good, bad or both.
fn of_drafters() -> Vec<Scenario> {
    let scenario = |name, row, drafters, answers, answer| {
        let arrivals = requests(answers, 40, answer);
        Scenario { name, times: rows_of(row), drafters, arrivals, sequences_max: 1 }
    };
    let never = DrafterScript { accuracy: Accuracy::Varied(0.0), cost: DraftCost::Call(0.01) };
    let for_a_while = DrafterScript { accuracy: Accuracy::Within(640..1240, 0.8), ..model(0.0) };
    vec![
        // A chat on a machine with much idle compute, and a draft model of the same family.
        scenario("good-model", 0.01, vec![model(0.8)], 4, 200),
        // A chat on a few cores, whose rows take compute, and a draft model of another family.
        scenario("costly-rows", 0.15, vec![model(0.5)], 4, 200),
        // Code or text that is edited: passages are copied, and a draft model writes what is between them.
        scenario("copies-and-model", 0.02, vec![lookup(0.35), model(0.6)], 4, 200),
        // A poem in which nothing repeats, and a slow lookup: it must hardly cost time.
        scenario("never-right", 0.02, vec![never], 1, 800),
        // An answer that explains, quotes, and explains again: the planner has to notice soon when drafts pay.
        scenario("right-for-a-while", 0.02, vec![for_a_while], 1, 1800),
        // Another program takes half of the machine for a while.
        Scenario {
            times: Times { slow: 340..640, ..rows_of(0.02) },
            ..scenario("slow-for-a-while", 0.02, vec![model(0.6)], 1, 900)
        },
    ]
}

/// One sequence at a time, and prompts and answers of unusual lengths.
fn of_requests() -> Vec<Scenario> {
    let head =
        DrafterScript { accuracy: Accuracy::Varied(0.3), cost: DraftCost::Network { step: 0.05, read: 1.0 / 30.0 } };
    vec![
        // Questions about a document: a network that reads slowly may read the prompt for nothing.
        Scenario {
            name: "long-prompts",
            times: rows_of(0.02),
            drafters: vec![head, lookup(0.5)],
            arrivals: requests(10, 700, 30),
            sequences_max: 1,
        },
        // Classification: a single answer ends before the planner has learned its acceptance.
        Scenario {
            name: "short-answers",
            times: rows_of(0.02),
            drafters: vec![model(0.7)],
            arrivals: requests(80, 30, 5),
            sequences_max: 1,
        },
        // A story: passes become slower as the context grows.
        Scenario {
            name: "long-context",
            times: Times { context: 1.0 / 2000.0, ..rows_of(0.03) },
            drafters: vec![model(0.7)],
            arrivals: requests(1, 100, 4000),
            sequences_max: 1,
        },
    ]
}

/// Passes whose rows come from several sequences, or read more of the weights than others.
fn of_batches() -> Vec<Scenario> {
    let later = [200, 500, 800].map(|after| Arrival { after, prompt: 600, answer: 60 });
    let experts = Experts { count: 32, chosen: 4, ..Experts::default() };
    vec![
        // A small server under load: wasted rows slow down the other sequences.
        Scenario {
            name: "batch-of-eight",
            times: rows_of(0.1),
            drafters: vec![model(0.4)],
            arrivals: requests(8, 40, 200),
            sequences_max: 8,
        },
        // Four chats while long prompts arrive (chunked prefill).
        Scenario {
            name: "prompts-arrive",
            times: rows_of(0.03),
            drafters: vec![model(0.6)],
            arrivals: [requests(4, 40, 300), later.to_vec()].concat(),
            sequences_max: 8,
        },
        // A mixture of experts: rows that differ read other experts.
        Scenario {
            name: "experts",
            times: Times { experts: Some((experts, 0.1)), ..rows_of(0.01) },
            drafters: vec![model(0.7)],
            arrivals: requests(4, 40, 200),
            sequences_max: 1,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speculation_gains_where_drafts_are_good_and_loses_nearly_nothing_where_they_are_not() {
        let gain = |name: &str| {
            let all = scenarios();
            all.iter().find(|scenario| scenario.name == name).expect("a scenario").measure(0..1).gain()
        };
        let (good, never) = (gain("good-model"), gain("never-right"));
        assert!(good >= 1.5, "{good}");
        assert!(never >= 0.97, "{never}");
    }
}
