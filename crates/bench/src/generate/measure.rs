//! The loop of the measurement: repeats all variants until the results are precise enough.
//!
//! A repetition runs each group of texts with every variant of decoding before the next group, so that changes of the
//! machine affect all variants alike. The order of the variants changes with each group.

use std::ops::Range;
use std::time::Instant;

use foretoken::{Answer, Generator, Prompt, seed_of_answer};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::opening::{Notices, named_failure};
use foretoken_engine::{Request, Token};
use foretoken_speculation::{Promise, Sampling, Tenant};

use super::order::order;
use super::remaining::RemainingTime;
use super::rows::{Method, Runs, Variant, text_name};
use super::timings::GroupTiming;

/// The fewest repetitions before an interval can be considered narrow, since a median needs three.
const REPETITIONS_MIN: usize = 3;

/// Tokens of the untimed texts of the warm-up.
const WARM_UP_TOKENS: usize = 8;

/// What is measured, and for how long.
pub struct Measurement<'a> {
    /// The engine, with the drafters of all methods.
    pub generator: &'a mut Generator,
    /// Notices for the user.
    pub notices: &'a mut Notices,
    /// The prompts of all texts: the list of prompts, repeated for each answer.
    pub prompts: &'a [Vec<Token>],
    /// Answers to each prompt.
    pub n_best: usize,
    /// The methods, each under each promise and with each budget.
    pub methods: &'a [Method],
    /// The most nodes of a draft, if there is a limit.
    pub nodes_max: Option<usize>,
    /// Whether alpha is measured, too.
    pub alpha: bool,
    /// The most repetitions.
    pub repeat: usize,
    /// No further repetition begins after this many seconds.
    pub seconds: f32,
    /// The number of combinations of temperature and texts at a time, and how many of them have begun.
    pub cells: (usize, usize),
    /// Tenants so far: every variant has a new one in every repetition.
    pub tenants: u64,
}

/// The parameters that all requests of a group under one variant share.
#[derive(Clone, Copy)]
struct SharedParameters {
    temperature: f32,
    tenant: Tenant,
    /// A further limit of the tokens of each text.
    tokens_max: Option<usize>,
}

impl Measurement<'_> {
    /// Generates a few untimed tokens with every variant, so that the first one is not slowed by cold caches.
    ///
    /// # Errors
    /// The first prompt cannot be continued.
    pub fn warm_up(&mut self, temperature: f32) -> Result<(), Failure> {
        let first = 0..self.prompts.len().min(1);
        let mut plain = vec![None; first.len()];
        for method in std::iter::once(None).chain(self.methods.iter().map(Some)) {
            let shared = SharedParameters { temperature, tenant: self.new_tenant(), tokens_max: Some(WARM_UP_TOKENS) };
            let (_, answers) = self.answers(method, &first, shared, &plain)?;
            if method.is_none() {
                plain = answers.into_iter().map(Some).collect();
            }
        }
        Ok(())
    }

    /// Measures all variants at one temperature, with `parallel` texts at a time. `plain` has the answers of plain
    /// decoding, if they are known already, and is filled if not. After Ctrl-C the result has what was measured of all
    /// variants.
    ///
    /// # Errors
    /// A prompt cannot be continued.
    pub fn run(&mut self, temperature: f32, parallel: usize, plain: &mut [Option<Answer>]) -> Result<Runs, Failure> {
        let count = self.prompts.len();
        let groups: Vec<Range<usize>> =
            (0..count).step_by(parallel).map(|first| first..count.min(first + parallel)).collect();
        let methods = std::iter::once(None).chain(self.methods.iter().cloned().map(Some));
        let variants: Vec<Variant> = methods.map(|method| Variant::new(method, temperature, groups.len())).collect();
        let mut runs = Runs { temperature, parallel, groups, repetitions: 0, variants, bench_share: 0.0 };
        self.cells.1 += 1;
        let what = format!("{} of {}: temperature {temperature}, {parallel} at a time", self.cells.1, self.cells.0);
        let started = Instant::now();
        let mut remaining = RemainingTime::begin(what, count, self.repeat, f64::from(self.seconds));
        let mut generating_seconds = 0.0;
        'repetitions: while runs.repetitions < self.repeat {
            let tenants: Vec<Tenant> = runs.variants.iter().map(|_| self.new_tenant()).collect();
            for (number, group) in runs.groups.iter().enumerate() {
                let mut order = order(runs.variants.len(), runs.repetitions + number);
                if runs.repetitions == 0 {
                    // Plain decoding runs first, since the others and the oracle need its texts.
                    order.sort_by_key(|place| *place != 0);
                }
                for place in order {
                    let shared = SharedParameters { temperature, tenant: tenants[place], tokens_max: None };
                    let variant = &mut runs.variants[place];
                    let (timing, answers) = self.answers(variant.method.as_ref(), group, shared, plain)?;
                    generating_seconds += timing.all.seconds;
                    if !Interrupts::none_pending() {
                        runs.cut_short();
                        break 'repetitions;
                    }
                    variant.timings[number].push(timing);
                    let tokenizer = self.generator.prompter.tokenizer.as_deref();
                    for (prompt, answer) in group.clone().zip(answers) {
                        match &plain[prompt] {
                            Some(plain) => variant.compare(prompt, plain, &answer, tokenizer),
                            None => plain[prompt] = Some(answer),
                        }
                    }
                }
                remaining.show(runs.repetitions * count + group.end);
            }
            runs.repetitions += 1;
            let late = started.elapsed().as_secs_f32() >= self.seconds;
            if late || (runs.repetitions >= REPETITIONS_MIN && runs.are_precise()) {
                break;
            }
        }
        runs.bench_share = 1.0 - generating_seconds / started.elapsed().as_secs_f64();
        Ok(runs)
    }

    /// A new tenant, for which drafters have learned no texts.
    fn new_tenant(&mut self) -> Tenant {
        self.tenants += 1;
        Tenant(self.tenants)
    }

    /// Runs a group of prompts at the same time; returns their times and answers.
    fn answers(
        &mut self,
        method: Option<&Method>,
        group: &Range<usize>,
        shared: SharedParameters,
        plain: &[Option<Answer>],
    ) -> Result<(GroupTiming, Vec<Answer>), Failure> {
        let request = |prompt: usize| self.request(method, prompt, shared, plain[prompt].as_ref());
        let requests = group.clone().map(request).collect::<Result<_, _>>()?;
        let before = self.generator.engine.pass_totals();
        let started = Instant::now();
        let notices = &mut *self.notices;
        let answers = self.generator.run(requests, &mut |_, event| -> Result<bool, Failure> {
            notices.on_event(event);
            Ok(Interrupts::none_pending())
        })?;
        for (prompt, answer) in group.clone().zip(&answers) {
            if let Some(failure) = &answer.failure {
                let name = text_name(prompt, self.prompts.len() / self.n_best);
                return Err(Failure::Other(format!("{name}: {}", named_failure(failure))));
            }
        }
        let totals = self.generator.engine.pass_totals().since(before);
        Ok((GroupTiming::of(started, &answers, totals), answers))
    }

    /// The request for one text. `plain`: the answer of plain decoding, if it is known.
    fn request(
        &self,
        method: Option<&Method>,
        prompt: usize,
        shared: SharedParameters,
        plain: Option<&Answer>,
    ) -> Result<Request, Failure> {
        let prompter = &self.generator.prompter;
        let base = prompter.request_of_input(&Prompt::Ids(self.prompts[prompt].clone()), &prompter.decided)?;
        let draft = base.draft;
        let plainly = Request {
            seed: seed_of_answer(base.seed, prompt / (self.prompts.len() / self.n_best)),
            sampling: Sampling { temperature: shared.temperature, ..base.sampling },
            tokens_max: base.tokens_max.into_iter().chain(shared.tokens_max).min(),
            measure: self.alpha,
            tenant: shared.tenant,
            drafters: Vec::new(),
            // Under *exact* a text does not depend on the request's number, so it can be compared with the next
            // repetition's.
            promise: Promise::Exact,
            lossy_lenience: 1.0,
            ..base
        };
        let Some(method) = method else { return Ok(plainly) };
        Ok(Request {
            drafters: method.drafters.clone(),
            order: method.order,
            promise: method.verify,
            lossy_lenience: method.lossy_lenience,
            budget: method.budget.kind(self.nodes_max, plain),
            draft: method.budget.settings(draft),
            ..plainly
        })
    }
}
