//! The loop of the measurement: who runs when, until it is known well enough.
//!
//! A repetition takes every group of texts once through every way of decoding before it goes on to the next group, so
//! that whatever the machine does meanwhile hits all ways alike. The order of the ways is another in each turn. Left
//! out: what the laps say.

use std::ops::Range;
use std::time::Instant;

use foretoken::{Answer, Generator, seed_of_answer};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::opening::{Notices, named_failure};
use foretoken_engine::{Request, Token};
use foretoken_speculation::{Promise, Sampling, Tenant};

use super::laps::Lap;
use super::left::Left;
use super::order::order;
use super::rows::{Method, Runs, Way, named};

/// So many repetitions come before an interval is believed to be narrow: a median of two is none.
const REPETITIONS_MIN: usize = 3;

/// Tokens of the untimed texts at the start.
const WARM_UP_TOKENS: usize = 8;

/// What is measured, and for how long.
pub struct Measurement<'a> {
    /// The engine, with the drafters of all methods.
    pub generator: &'a mut Generator,
    /// What the user is told of it.
    pub notices: &'a mut Notices,
    /// The prompts of all texts: a list as often as each prompt has answers.
    pub prompts: &'a [Vec<Token>],
    /// Answers to each prompt.
    pub n_best: usize,
    /// The methods, each under each promise and with each budget.
    pub methods: &'a [Method],
    /// Most nodes of a draft, if there is a limit.
    pub nodes_max: Option<usize>,
    /// Whether alpha is measured as well.
    pub alpha: bool,
    /// Most repetitions.
    pub repeat: usize,
    /// No further repetition begins after so many seconds.
    pub seconds: f32,
    /// Temperatures with numbers of texts at a time that are measured, and how many of them have begun.
    pub cells: (usize, usize),
    /// Tenants so far: every way has a new one in every repetition.
    pub tenants: u64,
}

/// What the requests of a turn have in common.
#[derive(Clone, Copy)]
struct Turn {
    temperature: f32,
    tenant: Tenant,
    /// Limits the tokens of each text further.
    tokens_max: Option<usize>,
}

impl Measurement<'_> {
    /// Lets every way of decoding write a few tokens untimed: who comes first should not pay for what is cold.
    ///
    /// # Errors
    /// The first prompt cannot be continued.
    pub fn warm_up(&mut self, temperature: f32) -> Result<(), Failure> {
        let first = 0..self.prompts.len().min(1);
        let mut plain = vec![None; first.len()];
        for method in std::iter::once(None).chain(self.methods.iter().map(Some)) {
            let turn = Turn { temperature, tenant: self.new_tenant(), tokens_max: Some(WARM_UP_TOKENS) };
            let (_, answers) = self.answers(method, &first, turn, &plain)?;
            if method.is_none() {
                plain = answers.into_iter().map(Some).collect();
            }
        }
        Ok(())
    }

    /// All ways at one temperature, with so many texts at a time. `plain` holds what plain decoding wrote, if that is
    /// known already, and is filled if not. After Ctrl-C what was measured of all ways alike.
    ///
    /// # Errors
    /// A prompt cannot be continued.
    pub fn run(&mut self, temperature: f32, parallel: usize, plain: &mut [Option<Answer>]) -> Result<Runs, Failure> {
        let count = self.prompts.len();
        let groups: Vec<Range<usize>> =
            (0..count).step_by(parallel).map(|first| first..count.min(first + parallel)).collect();
        let methods = std::iter::once(None).chain(self.methods.iter().cloned().map(Some));
        let ways: Vec<Way> = methods.map(|method| Way::new(method, temperature, groups.len())).collect();
        let mut runs = Runs { temperature, parallel, groups, repetitions: 0, ways, bench_share: 0.0 };
        self.cells.1 += 1;
        let what = format!("{} of {}: temperature {temperature}, {parallel} at a time", self.cells.1, self.cells.0);
        let started = Instant::now();
        let mut left = Left::begin(what, count, self.repeat, f64::from(self.seconds));
        let mut of_texts = 0.0;
        'repetitions: while runs.repetitions < self.repeat {
            let tenants: Vec<Tenant> = runs.ways.iter().map(|_| self.new_tenant()).collect();
            for (number, group) in runs.groups.iter().enumerate() {
                let mut order = order(runs.ways.len(), runs.repetitions + number);
                if runs.repetitions == 0 {
                    // Its texts are what others are compared with, and what an oracle knows.
                    order.sort_by_key(|place| *place != 0);
                }
                for place in order {
                    let turn = Turn { temperature, tenant: tenants[place], tokens_max: None };
                    let way = &mut runs.ways[place];
                    let (lap, answers) = self.answers(way.method.as_ref(), group, turn, plain)?;
                    of_texts += lap.all.seconds;
                    if !Interrupts::goes_on() {
                        runs.cut_short();
                        break 'repetitions;
                    }
                    way.laps[number].push(lap);
                    let tokenizer = self.generator.prompter.tokenizer.as_deref();
                    for (prompt, answer) in group.clone().zip(answers) {
                        match &plain[prompt] {
                            Some(plain) => way.compare(prompt, plain, &answer, tokenizer),
                            None => plain[prompt] = Some(answer),
                        }
                    }
                }
                left.show(runs.repetitions * count + group.end);
            }
            runs.repetitions += 1;
            let late = started.elapsed().as_secs_f32() >= self.seconds;
            if late || (runs.repetitions >= REPETITIONS_MIN && runs.are_sure()) {
                break;
            }
        }
        runs.bench_share = 1.0 - of_texts / started.elapsed().as_secs_f64();
        Ok(runs)
    }

    /// A tenant of whom drafters that learn from texts have seen none.
    fn new_tenant(&mut self) -> Tenant {
        self.tenants += 1;
        Tenant(self.tenants)
    }

    /// The answers to a group of prompts that run together, and what they took.
    fn answers(
        &mut self,
        method: Option<&Method>,
        group: &Range<usize>,
        turn: Turn,
        plain: &[Option<Answer>],
    ) -> Result<(Lap, Vec<Answer>), Failure> {
        let request = |prompt: usize| self.request(method, prompt, turn, plain[prompt].as_ref());
        let requests = group.clone().map(request).collect::<Result<_, _>>()?;
        let before = self.generator.engine.pass_totals();
        let started = Instant::now();
        let notices = &mut *self.notices;
        let answers = self.generator.run(requests, &mut |_, event| -> Result<bool, Failure> {
            notices.hear(event);
            Ok(Interrupts::goes_on())
        })?;
        for (prompt, answer) in group.clone().zip(&answers) {
            if let Some(failure) = &answer.failure {
                let name = named(prompt, self.prompts.len() / self.n_best);
                return Err(Failure::Other(format!("{name}: {}", named_failure(failure))));
            }
        }
        let totals = self.generator.engine.pass_totals().since(before);
        Ok((Lap::of(started, &answers, totals), answers))
    }

    /// The request for one text. `plain`: what plain decoding wrote, if it is known.
    fn request(
        &self,
        method: Option<&Method>,
        prompt: usize,
        turn: Turn,
        plain: Option<&Answer>,
    ) -> Result<Request, Failure> {
        let base = self.generator.request(self.prompts[prompt].clone())?;
        let draft = base.draft;
        let plainly = Request {
            seed: seed_of_answer(base.seed, prompt / (self.prompts.len() / self.n_best)),
            sampling: Sampling { temperature: turn.temperature, ..base.sampling },
            tokens_max: base.tokens_max.into_iter().chain(turn.tokens_max).min(),
            measure: self.alpha,
            tenant: turn.tenant,
            drafters: Vec::new(),
            // Under *exact* a text does not depend on which request it is, and can be compared with the next
            // repetition's.
            promise: Promise::Exact,
            ..base
        };
        let Some(method) = method else { return Ok(plainly) };
        let asked = &self.generator.prompter.methods[method.number];
        Ok(Request {
            drafters: asked.drafters.clone(),
            order: asked.order,
            promise: method.verify.into(),
            budget: method.budget.kind(self.nodes_max, plain),
            draft: method.budget.settings(draft),
            ..plainly
        })
    }
}
